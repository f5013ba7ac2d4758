//! Converts charts to PNG with the fonts of the machine. Without fonts it makes no PNG, because the
//! text would be missing.

use std::sync::Arc;

use resvg::tiny_skia::{Color, Pixmap, Transform};
use resvg::usvg::{Options, Tree, fontdb};

/// Pixels for each unit of the SVG.
const SCALE: f32 = 2.0;

/// Renders PNG.
pub struct Painter {
    fonts: Arc<fontdb::Database>,
}

impl Painter {
    /// A painter with the fonts of this machine; `None` if it has none.
    pub fn new() -> Option<Self> {
        let mut fonts = fontdb::Database::new();
        fonts.load_system_fonts();
        let sans = ["DejaVu Sans", "Noto Sans", "Liberation Sans", "Verdana", "Arial"];
        let has =
            |name: &str| fonts.faces().any(|face| face.families.iter().any(|(family, _)| family == name));
        let family = sans.iter().find(|name| has(name)).map(|name| (*name).to_owned());
        let family =
            family.or_else(|| fonts.faces().next()?.families.first().map(|(name, _)| name.clone()))?;
        fonts.set_sans_serif_family(family);
        Some(Self { fonts: Arc::new(fonts) })
    }

    /// Renders the output of [`crate::plot::alone`] as PNG.
    ///
    /// # Errors
    /// The reason in words, if it cannot be rendered.
    pub(crate) fn paint(&self, svg: &str) -> Result<Vec<u8>, String> {
        let options = Options {
            fontdb: Arc::clone(&self.fonts),
            font_family: "sans-serif".to_owned(),
            ..Options::default()
        };
        let tree = Tree::from_str(svg, &options).map_err(|error| error.to_string())?;
        let size = tree.size().to_int_size().scale_by(SCALE).ok_or("no size")?;
        let mut pixmap = Pixmap::new(size.width(), size.height()).ok_or("too large")?;
        pixmap.fill(Color::WHITE);
        resvg::render(&tree, Transform::from_scale(SCALE, SCALE), &mut pixmap.as_mut());
        pixmap.encode_png().map_err(|error| error.to_string())
    }
}
