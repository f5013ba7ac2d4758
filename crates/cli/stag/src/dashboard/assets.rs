//! Files that pages name: the style, the icon, and what draws charts. They are part of the program,
//! and strangers may have them. Their folder is named after their content, so that browsers keep
//! them until it changes.

use std::sync::LazyLock;

use crate::state::hex;
use crate::tokens::hash;

/// Names, types and contents. uPlot is Leon Sorokin's, version 1.6.32, under the MIT licence,
/// which has to come with every copy.
const ALL: [(&str, &str, &str); 6] = [
    ("style.css", "text/css; charset=utf-8", include_str!("assets/style.css")),
    ("icon.svg", "image/svg+xml", include_str!("assets/icon.svg")),
    ("live.js", "text/javascript; charset=utf-8", include_str!("assets/live.js")),
    ("uPlot.js", "text/javascript; charset=utf-8", include_str!("assets/uPlot.iife.min.js")),
    ("uPlot.css", "text/css; charset=utf-8", include_str!("assets/uPlot.min.css")),
    ("uPlot.LICENSE", "text/plain; charset=utf-8", include_str!("assets/uPlot.LICENSE")),
];

/// The folder of this program's files.
static FOLDER: LazyLock<String> = LazyLock::new(|| {
    let all: Vec<&str> = ALL.iter().map(|(.., content)| *content).collect();
    format!("/assets/{}/", &hex(&hash(&all.concat()))[..16])
});

/// The path of the file `name`.
pub fn path(name: &str) -> String {
    format!("{}{name}", *FOLDER)
}

/// A file, as it is sent.
pub struct File {
    pub kind: &'static str,
    pub content: &'static str,
    /// Whether browsers may keep it.
    pub is_kept: bool,
}

/// The file at `path`. A page that an older program has written names another folder: it gets the
/// files of now, which are not kept under that name.
pub fn find(path: &str) -> Option<File> {
    let (_, name) = path.strip_prefix("/assets/")?.split_once('/')?;
    let (_, kind, content) = ALL.iter().find(|(own, ..)| *own == name)?;
    Some(File { kind, content, is_kept: path.starts_with(FOLDER.as_str()) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn browsers_keep_files_of_this_program_alone() {
        let kept = |path: &str| find(path).map(|file| file.is_kept);
        assert_eq!(kept(&path("style.css")), Some(true));
        assert_eq!(kept("/assets/0123456789abcdef/style.css"), Some(false));
        for none in ["/assets/style.css", "/assets//", &path("nothing"), &path("../style.css"), "/style.css"]
        {
            assert_eq!(kept(none), None, "{none}");
        }
    }

    #[test]
    fn all_files_together_are_small_and_name_no_other_host() {
        let bytes: usize = ALL.iter().map(|(.., content)| content.len()).sum();
        assert!(bytes < 100_000, "{bytes}");
        for (path, _, content) in ALL.iter().filter(|(path, ..)| !path.contains("uPlot")) {
            let names = content.replace("http://www.w3.org/2000/svg", "");
            assert!(!names.contains("://"), "{path}");
        }
        assert!(ALL[5].2.starts_with("The MIT License"));
        assert!(ALL[3].2.contains("(v1.6.32)"));
    }

    /// The contrast of colours (WCAG 2.2 §1.4.3), of both schemes.
    #[test]
    fn text_can_be_read_in_both_schemes() {
        let style = ALL[0].2;
        let (light, dark) = style.split_once("prefers-color-scheme: dark").unwrap();
        for scheme in [light, dark] {
            let colour = |name: &str| {
                let found = scheme.split(&format!("--{name}: #")).nth(1).unwrap_or_else(|| panic!("{name}"));
                let part = |at: usize| {
                    let value = f64::from(u8::from_str_radix(&found[at..at + 2], 16).unwrap()) / 255.0;
                    if value <= 0.040_45 { value / 12.92 } else { ((value + 0.055) / 1.055).powf(2.4) }
                };
                0.2126 * part(0) + 0.7152 * part(2) + 0.0722 * part(4)
            };
            let contrast = |one: &str, other: &str| {
                let (one, other) = (colour(one), colour(other));
                (one.max(other) + 0.05) / (one.min(other) + 0.05)
            };
            for ground in ["ground", "raised"] {
                for text in ["text", "quiet", "link", "good", "warn", "bad"] {
                    assert!(contrast(text, ground) >= 4.5, "{text} on {ground}: {}", contrast(text, ground));
                }
            }
            assert!(contrast("on-action", "action") >= 4.5);
            assert!(contrast("edge", "ground") >= 3.0, "the border of a field");
        }
    }
}
