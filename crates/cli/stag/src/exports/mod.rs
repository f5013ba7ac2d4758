//! The trees of files that are exported: opened for a configuration, and taken over into the next
//! one where that asks for the same.

mod key;

use std::collections::HashMap;
use std::ffi::CString;
use std::io::{self, ErrorKind, Read, Write};
use std::path::Path;
use std::sync::{Arc, Weak};
use std::time::Duration;

use backing::Health;
use folder::{Folder, Options};
use memory_tree::{Limits, MemoryTree, Root};
use nfs_server::config::{ClientRule, GroupLookup, NfsConfig, NfsLimits, QosLimits};
use nix::unistd::{Uid, User};
use tree::Tree;

use crate::config::{Config, Export};
use crate::export::Shown;
use crate::health::Medium;
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

/// The open trees, by what they show.
#[derive(Clone, Default)]
pub struct Trees(HashMap<(String, Shown), Open>);

/// An open tree.
#[derive(Clone)]
enum Open {
    Folder(Arc<Folder>),
    Memory(Arc<MemoryTree>),
}

impl Open {
    fn tree(&self) -> Arc<dyn Tree> {
        match self {
            Self::Folder(folder) => folder.clone(),
            Self::Memory(memory) => memory.clone(),
        }
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

    /// Tells of each tree whether it is in use, now and later.
    pub fn watched(&self) -> Vec<Weak<dyn Tree>> {
        self.0.values().map(|open| Arc::downgrade(&open.tree())).collect()
    }

    /// Those in memory alone.
    pub fn in_memory(&self) -> Self {
        let memory = self.0.iter().filter(|(_, open)| matches!(open, Open::Memory(_)));
        Self(memory.map(|(asked, open)| (asked.clone(), open.clone())).collect())
    }

    /// Whether this is one of them.
    pub fn has(&self, tree: &Weak<dyn Tree>) -> bool {
        self.0.values().any(|open| Weak::ptr_eq(&Arc::downgrade(&open.tree()), tree))
    }

    /// Writes the trees in memory for a successor, which [`Self::load`]s them. None may be in use.
    ///
    /// # Errors
    /// The writer's.
    pub fn save(&self, to: &mut impl Write) -> io::Result<()> {
        for ((name, _), open) in &self.0 {
            let Open::Memory(tree) = open else { continue };
            to.write_all(&(name.len() as u32).to_be_bytes())?;
            to.write_all(name.as_bytes())?;
            tree.save(to)?;
        }
        to.write_all(&0u32.to_be_bytes())
    }

    /// The trees in memory of a predecessor, for the exports of `config` that have their names.
    ///
    /// # Errors
    /// The reader's; [`ErrorKind::StorageFull`]: `config` has no place for one of them.
    pub fn load(config: &Config, from: &mut impl Read) -> io::Result<Self> {
        let mut trees = HashMap::new();
        loop {
            let mut len = [0; 4];
            from.read_exact(&mut len)?;
            let len = u32::from_be_bytes(len);
            if len == 0 {
                return Ok(Self(trees));
            }
            let mut name = Vec::new();
            from.by_ref().take(len.into()).read_to_end(&mut name)?;
            let no_place = || {
                let name = String::from_utf8_lossy(&name);
                let what = format!("there is no place for the files of export {name}, which are in memory");
                io::Error::new(ErrorKind::StorageFull, what)
            };
            let export = config.exports.iter().find(|export| export.name.as_bytes() == name);
            let memory = export.and_then(|export| match export.shown {
                Shown::Memory(bytes) => Some((export, Limits { bytes, files: FILES })),
                Shown::Directory(_) => None,
            });
            let (export, limits) = memory.ok_or_else(no_place)?;
            let tree = MemoryTree::load(limits, from).map_err(|error| match error.kind() {
                ErrorKind::StorageFull => no_place(),
                _ => error,
            })?;
            trees.insert(asked(export), Open::Memory(Arc::new(tree)));
        }
    }

    /// The health of what an export shows; `None` if it cannot fail.
    pub fn health(&self, export: &Export) -> Option<&Arc<Health>> {
        self.medium(export, export.is_writable())?.health()
    }

    /// The tree of an open export, and whether any client may write to it.
    pub fn medium(&self, export: &Export, is_writable: bool) -> Option<Medium<'_>> {
        match (self.0.get(&asked(export))?, &export.shown) {
            (Open::Folder(folder), _) => Some(Medium::Folder(folder, is_writable)),
            (Open::Memory(tree), Shown::Memory(size)) => Some(Medium::Memory(tree, *size, is_writable)),
            (Open::Memory(_), Shown::Directory(_)) => None,
        }
    }

    /// The names of the exports whose trees are their own: those in memory.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.0.keys().map(|(name, _)| name.as_str()).filter(|name| !name.is_empty())
    }
}

/// The key of an export's tree. All exports of a directory share one tree, which keeps its files'
/// state. Each export in memory has its own.
pub fn asked(export: &Export) -> (String, Shown) {
    let own = match export.shown {
        Shown::Memory(_) => export.name.clone(),
        Shown::Directory(_) => String::new(),
    };
    (own, export.shown.clone())
}

fn open(export: &Export) -> Result<Open, String> {
    match &export.shown {
        Shown::Memory(bytes) => memory(*bytes),
        Shown::Directory(path) => directory(path, export),
    }
}

fn memory(bytes: u64) -> Result<Open, String> {
    let limits = Limits { bytes, files: FILES };
    let tree =
        MemoryTree::new(limits, Root { mode: 0o777, uid: 0, gid: 0 }).map_err(|error| error.to_string())?;
    Ok(Open::Memory(Arc::new(tree)))
}

fn directory(path: &Path, export: &Export) -> Result<Open, String> {
    // What is known of a directory belongs to it, whatever it is exported as.
    let state = state::path("exports", &path.display().to_string())?;
    let options = Options { asynchronous: export.asynchronous, ..Options::new(state) };
    let folder = Folder::open(path, &options).map_err(|error| error.to_string())?;
    folder.health().serve_as_export(&export.name);
    Ok(Open::Folder(Arc::new(folder)))
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
        let exclusive = export.exclusive || matches!(export.shown, Shown::Memory(_));
        Some(nfs_server::config::Export { name: export.name.clone(), tree, exclusive, clients })
    };
    Ok(NfsConfig {
        portals: config.nfs_portals(),
        exports: config.exports.iter().filter_map(export).collect(),
        limits: NfsLimits {
            connections: config.nfs.connections as usize,
            connections_per_address: config.nfs.connections_per_address,
            calls: config.nfs.calls.into(),
            send_high_water: usize::try_from(config.nfs.send_high_water).unwrap_or(usize::MAX),
            lease: Duration::from_secs(config.nfs.lease_s.into()),
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
