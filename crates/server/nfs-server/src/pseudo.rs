//! [`Pseudo`]: the read-only directories above the exports, made of their names (RFC 8881 §7.3).

use tree::NodeId;

use crate::handle::{ExportId, Handles};

/// The root's place in [`Pseudo::nodes`].
pub(crate) const ROOT: usize = 0;

/// The directories above the exports.
pub(crate) struct Pseudo {
    /// In handles, the export of these directories.
    pub export: ExportId,
    pub nodes: Vec<Node>,
}

/// A directory, or the root of an export.
pub(crate) struct Node {
    /// Its file id, and its name in handles.
    pub id: u64,
    /// Changes with its entries.
    pub change: u64,
    pub name: Box<[u8]>,
    pub parent: usize,
    /// The export that is here, by its place in the model.
    pub export: Option<usize>,
    /// By their places, in the order of their names.
    pub children: Vec<usize>,
}

impl Pseudo {
    /// The pseudo file system of exports with these names.
    pub(crate) fn new<'n>(names: impl Iterator<Item = &'n str>, handles: &Handles) -> Self {
        let node = |path: &str, name: &str, parent| Node {
            // No export's name begins so.
            id: handles.export(&format!("pseudo {path}")).0,
            change: 0,
            name: name.as_bytes().into(),
            parent,
            export: None,
            children: Vec::new(),
        };
        let mut nodes = vec![node("", "", ROOT)];
        for (export, path) in names.enumerate() {
            let (mut at, mut so_far) = (ROOT, String::new());
            for name in path.split('/').filter(|name| !name.is_empty()) {
                so_far = format!("{so_far}/{name}");
                let known = |child: &&usize| *nodes[**child].name == *name.as_bytes();
                at = match nodes[at].children.iter().find(known) {
                    Some(child) => *child,
                    None => {
                        let child = nodes.len();
                        nodes.push(node(&so_far, name, at));
                        nodes[at].children.push(child);
                        child
                    }
                };
            }
            nodes[at].export = Some(export);
        }
        for at in 0..nodes.len() {
            let mut children = std::mem::take(&mut nodes[at].children);
            children.sort_by(|one, other| nodes[*one].name.cmp(&nodes[*other].name));
            let names: Vec<_> =
                children.iter().map(|child| String::from_utf8_lossy(&nodes[*child].name)).collect();
            nodes[at].change = handles.export(&names.join("/")).0;
            nodes[at].children = children;
        }
        Self { export: handles.export(""), nodes }
    }

    /// The directory that has this name in handles.
    pub(crate) fn of(&self, node: &NodeId) -> Option<usize> {
        self.nodes.iter().position(|one| one.id.to_be_bytes() == *node.bytes())
    }

    /// The place of an export's root.
    pub(crate) fn of_export(&self, export: usize) -> Option<usize> {
        self.nodes.iter().position(|node| node.export == Some(export))
    }

    /// The child of this name.
    pub(crate) fn child(&self, of: usize, name: &[u8]) -> Option<usize> {
        self.nodes[of].children.iter().copied().find(|child| *self.nodes[*child].name == *name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_directories_are_those_of_the_names() {
        let handles = Handles::new([1; 16]);
        let names = ["/srv/b", "/srv/a", "/data"];
        let pseudo = Pseudo::new(names.into_iter(), &handles);
        let shown = |at: usize| -> Vec<&[u8]> {
            pseudo.nodes[at].children.iter().map(|child| &*pseudo.nodes[*child].name).collect()
        };
        assert_eq!(shown(ROOT), [&b"data"[..], b"srv"]);
        let srv = pseudo.child(ROOT, b"srv").unwrap();
        assert_eq!(shown(srv), [b"a", b"b"]);
        assert_eq!(pseudo.nodes[srv].export, None);
        let a = pseudo.child(srv, b"a").unwrap();
        assert_eq!((pseudo.nodes[a].export, pseudo.of_export(1)), (Some(1), Some(a)));
        let fewer = Pseudo::new(["/srv/a"].into_iter(), &handles);
        let same = fewer.child(ROOT, b"srv").unwrap();
        assert_eq!(fewer.nodes[same].id, pseudo.nodes[srv].id);
        assert_ne!(fewer.nodes[same].change, pseudo.nodes[srv].change);
    }

    #[test]
    fn an_export_can_be_the_root() {
        let pseudo = Pseudo::new(["/"].into_iter(), &Handles::new([1; 16]));
        assert_eq!((pseudo.nodes.len(), pseudo.nodes[ROOT].export), (1, Some(0)));
    }
}
