//! The trees of files that are exported: opened for a configuration, and taken over into the next
//! one where that asks for the same.

mod key;

use std::collections::HashMap;
use std::ffi::CString;
use std::io;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::{Arc, Weak};

use folder::{Folder, Options};
use memory_tree::{Limits, MemoryTree, Root};
use nfs_server::config::{ClientRule, GroupLookup, NfsConfig, NfsLimits, QosLimits};
use nix::unistd::{Uid, User};
use tree::Tree;

use crate::config::{Config, Export};
use crate::export::Shown;
use crate::state;

/// Files of an export in memory, at most. Their memory counts against its size besides.
const FILES: u64 = 1 << 32;

/// An export that cannot be served.
#[derive(Debug, thiserror::Error)]
#[error("export {name}: {reason}")]
pub struct ExportError {
    name: String,
    reason: String,
}

/// An open tree.
#[derive(Clone)]
enum Open {
    Memory(Arc<MemoryTree>),
    Directory(Arc<Folder>),
}

impl Open {
    fn tree(&self) -> Arc<dyn Tree> {
        match self {
            Self::Memory(tree) => tree.clone(),
            Self::Directory(tree) => tree.clone(),
        }
    }
}

/// The open trees, by what they show.
#[derive(Clone, Default)]
pub struct Trees(HashMap<(String, Shown), Open>);

/// Tells whether a tree is in use.
pub struct Watched {
    tree: Weak<dyn Tree>,
    /// Uses that do not count.
    own: usize,
}

impl Watched {
    pub fn is_used(&self) -> bool {
        self.tree.strong_count() > self.own
    }
}

impl Trees {
    /// The trees of `config`: those of `self` where the same is asked for, the others opened.
    ///
    /// # Errors
    /// The first that cannot be opened.
    pub fn next(&self, config: &Config) -> Result<Self, ExportError> {
        let failed = |export: &Export, reason| ExportError { name: export.name.clone(), reason };
        if let Some((export, reason)) = config.contradicting_export() {
            return Err(failed(export, reason));
        }
        let mut trees = HashMap::new();
        for export in &config.exports {
            let asked = asked(export);
            if trees.contains_key(&asked) {
                continue;
            }
            let tree = match self.0.get(&asked) {
                Some(tree) => tree.clone(),
                None => open(export).map_err(|reason| failed(export, reason))?,
            };
            trees.insert(asked, tree);
        }
        Ok(Self(trees))
    }

    /// Tells of each tree whether it is in use beside `kept`, now and later.
    pub fn watched(&self, kept: &[InMemory]) -> Vec<Watched> {
        let watched = |tree: Arc<dyn Tree>| {
            let own = kept.iter().any(|it| std::ptr::addr_eq(Arc::as_ptr(&it.tree), Arc::as_ptr(&tree)));
            Watched { tree: Arc::downgrade(&tree), own: own.into() }
        };
        self.0.values().map(Open::tree).map(watched).collect()
    }

    /// The exports in memory, by name.
    pub fn in_memory(&self) -> Vec<InMemory> {
        let of = |((name, shown), open): (&(String, Shown), &Open)| match (shown, open) {
            (Shown::Memory(bytes), Open::Memory(tree)) => {
                Some(InMemory { name: name.clone(), bytes: *bytes, tree: tree.clone() })
            }
            _ => None,
        };
        let mut all: Vec<InMemory> = self.0.iter().filter_map(of).collect();
        all.sort_unstable_by(|one, other| one.name.cmp(&other.name));
        all
    }

    /// These trees, for [`Self::next`] to choose from.
    pub fn of_memory(all: impl IntoIterator<Item = InMemory>) -> Self {
        let of = |it: InMemory| ((it.name, Shown::Memory(it.bytes)), Open::Memory(it.tree));
        Self(all.into_iter().map(of).collect())
    }
}

/// An export in memory, whose files end with the daemon unless another takes them over.
#[derive(Clone)]
pub struct InMemory {
    pub name: String,
    /// Its size.
    pub bytes: u64,
    pub tree: Arc<MemoryTree>,
}

impl InMemory {
    /// The export of another daemon, which hands it over in `memory` and `from`.
    ///
    /// # Errors
    /// Those of [`MemoryTree::take_over`].
    pub fn take_over(
        name: String,
        bytes: u64,
        memory: OwnedFd,
        from: &mut impl io::Read,
    ) -> io::Result<Self> {
        let tree = MemoryTree::take_over(limits(bytes), memory, from)?;
        Ok(Self { name, bytes, tree: Arc::new(tree) })
    }
}

/// Whether a configuration has this export in memory.
pub fn has_memory(config: &Config, name: &str, bytes: u64) -> bool {
    config.exports.iter().any(|export| export.name == name && export.shown == Shown::Memory(bytes))
}

/// The key of an export's tree. All exports of a directory share one tree, which keeps its files'
/// state. Each export in memory has its own.
fn asked(export: &Export) -> (String, Shown) {
    let own = match export.shown {
        Shown::Memory(_) => export.name.clone(),
        Shown::Directory(_) => String::new(),
    };
    (own, export.shown.clone())
}

fn open(export: &Export) -> Result<Open, String> {
    match &export.shown {
        Shown::Memory(bytes) => memory(*bytes).map(Open::Memory),
        Shown::Directory(path) => directory(path, export).map(Open::Directory),
    }
}

fn limits(bytes: u64) -> Limits {
    Limits { bytes, files: FILES }
}

fn memory(bytes: u64) -> Result<Arc<MemoryTree>, String> {
    let root = Root { mode: 0o777, uid: 0, gid: 0 };
    Ok(Arc::new(MemoryTree::new(limits(bytes), root).map_err(|error| error.to_string())?))
}

fn directory(path: &Path, export: &Export) -> Result<Arc<Folder>, String> {
    // What is known of a directory belongs to it, whatever it is exported as.
    let state = state::path("exports", &path.display().to_string())?;
    let options = Options { asynchronous: export.asynchronous, ..Options::new(state) };
    Ok(Arc::new(Folder::open(path, &options).map_err(|error| error.to_string())?))
}

/// The configuration of NFS, with the open trees.
///
/// # Errors
/// There is no key for file handles.
pub fn nfs_config(config: &Config, trees: &Trees) -> Result<NfsConfig, String> {
    let export = |export: &Export| {
        let tree = trees.0.get(&asked(export))?.tree();
        let rule = |client: &crate::config::Client| ClientRule {
            network: client.network,
            read_only: client.read_only,
            squash: client.squash,
            anonymous: (client.anonuid, client.anongid),
            limits: Some(client.limits.qos()).filter(QosLimits::any).map(Arc::new),
        };
        let clients = export.clients.iter().map(rule).collect();
        Some(nfs_server::config::Export { name: export.name.clone(), tree, clients })
    };
    Ok(NfsConfig {
        portals: config.nfs_portals(),
        exports: config.exports.iter().filter_map(export).collect(),
        limits: NfsLimits {
            connections: config.nfs.connections as usize,
            calls: config.nfs.calls.into(),
            send_high_water: usize::try_from(config.nfs.send_high_water).unwrap_or(usize::MAX),
            ..NfsLimits::default()
        },
        key: if config.exports.is_empty() { [0; 16] } else { key::kept()? },
        groups: config.nfs.manage_gids.then(|| Arc::new(groups_of) as GroupLookup),
        // Beside the key, without which nothing is exported.
        clients: state::path("nfs", "clients").ok(),
    })
}

/// The groups of a user, by the machine's name services. Blocks.
fn groups_of(uid: u32) -> Option<Vec<u32>> {
    let user = User::from_uid(Uid::from_raw(uid));
    let user = user.inspect_err(|error| tracing::warn!(uid, %error, "a user was not looked up")).ok()??;
    let name = CString::new(user.name).ok()?;
    let groups = nix::unistd::getgrouplist(&name, user.gid);
    let groups = groups.inspect_err(|error| tracing::warn!(uid, %error, "groups were not looked up")).ok()?;
    Some(groups.into_iter().map(|group| group.as_raw()).collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Client;

    fn export(name: &str, path: &Path) -> Export {
        Export { name: name.into(), shown: Shown::Directory(path.to_owned()), ..Export::default() }
    }

    #[test]
    fn exports_of_one_directory_share_its_tree_and_memory_is_an_exports_own() {
        let dir = tempfile::tempdir().unwrap();
        let memory =
            |name: &str| Export { name: name.into(), shown: Shown::Memory(1 << 20), ..Export::default() };
        let read_only = Client { read_only: true, ..Client::default() };
        let exports = vec![
            export("/rw", dir.path()),
            Export { clients: vec![read_only], ..export("/ro", dir.path()) },
            memory("/a"),
            memory("/b"),
        ];
        let config = Config { exports, ..Config::default() };
        let trees = Trees::default().next(&config).unwrap();
        let of = |at: usize| trees.0[&asked(&config.exports[at])].tree();
        assert!(Arc::ptr_eq(&of(0), &of(1)) && !Arc::ptr_eq(&of(2), &of(3)));
        let next = trees.next(&config).unwrap();
        assert!(Arc::ptr_eq(&of(0), &next.0[&asked(&config.exports[0])].tree()), "it goes on");
    }

    #[test]
    fn one_directory_is_not_exported_with_async_and_without() {
        let path = Path::new("/srv/data");
        let exports = vec![export("/a", path), Export { asynchronous: true, ..export("/b", path) }];
        let config = Config { exports, ..Config::default() };
        let error = Trees::default().next(&config).err().unwrap().to_string();
        assert!(error.contains("/srv/data is exported with `async` and without: see /a"), "{error}");
    }

    #[test]
    fn async_changes_with_the_next_start() {
        let old = Config { exports: vec![export("/a", Path::new("/srv/data"))], ..Config::default() };
        let mut new = old.clone();
        new.exports[0].asynchronous = true;
        assert_eq!(new.until_next_start(&old), old);
    }
}
