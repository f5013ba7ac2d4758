//! The configuration in force: one immutable [`Model`] at a time, which a change replaces whole.

use std::net::IpAddr;
use std::sync::Arc;

use server_core::portals;
use tree::NodeId;

use crate::config::{ClientRule, Export, GroupLookup, NfsConfig, NfsLimits, NfsPortal};
use crate::handle::{self, ExportId, Handles};
use crate::pseudo::Pseudo;

/// A portal of the server.
pub(crate) type PortalEntry = portals::Portal<NfsPortal>;

/// A model with its portals.
pub(crate) type Edition = server_core::Edition<Model, NfsPortal>;

/// An immutable configuration.
pub(crate) struct Model {
    /// In the order of the configuration.
    pub exports: Vec<Arc<Exported>>,
    pub limits: NfsLimits,
    pub handles: Handles,
    pub pseudo: Pseudo,
    pub groups: Option<GroupLookup>,
}

/// An export.
pub(crate) struct Exported {
    pub id: ExportId,
    pub config: Export,
}

impl Model {
    /// The model of `config`.
    pub(crate) fn new(config: NfsConfig) -> Self {
        let handles = Handles::new(config.key);
        let exported = |config: Export| Arc::new(Exported { id: handles.export(&config.name), config });
        let pseudo = Pseudo::new(config.exports.iter().map(|export| export.name.as_str()), &handles);
        Self {
            exports: config.exports.into_iter().map(exported).collect(),
            limits: config.limits,
            handles,
            pseudo,
            groups: config.groups,
        }
    }

    /// No export, under the bounds and with the handles of this one.
    pub(crate) fn nothing(&self) -> Self {
        let pseudo = Pseudo::new(std::iter::empty(), &self.handles);
        let groups = self.groups.clone();
        Self { exports: Vec::new(), limits: self.limits, handles: self.handles, pseudo, groups }
    }

    /// The export with this id.
    pub(crate) fn export(&self, id: ExportId) -> Option<&Arc<Exported>> {
        self.exports.iter().find(|export| export.id == id)
    }

    /// The export that `path` leads into, and the names that go on from its root. The longest name
    /// counts.
    pub(crate) fn path<'p>(&self, path: &'p [u8]) -> Option<(&Arc<Exported>, Vec<&'p [u8]>)> {
        let names: Vec<&[u8]> = names(path).collect();
        let inside = self.exports.iter().filter_map(|export| {
            let own: Vec<&[u8]> = names_of(&export.config.name).collect();
            names.starts_with(&own).then_some((own.len(), export))
        });
        let (len, export) = inside.max_by_key(|(len, _)| *len)?;
        Some((export, names[len..].to_vec()))
    }

    /// The file that a handle names, and its export.
    pub(crate) fn file(&self, handle: &[u8]) -> Result<(&Arc<Exported>, NodeId), BadHandle> {
        let (export, node) = self.handles.read(handle).ok_or(BadHandle::Forged)?;
        Ok((self.export(export).ok_or(BadHandle::Gone)?, node))
    }

    /// The handle of a file.
    pub(crate) fn handle(&self, export: &Exported, node: &NodeId) -> handle::Bytes {
        self.handles.make(export.id, node)
    }
}

/// Why a handle names nothing.
pub(crate) enum BadHandle {
    /// This server did not make it.
    Forged,
    /// Its export is not served any more.
    Gone,
}

impl Exported {
    /// The networks of the clients that may mount it; empty if every client may.
    pub(crate) fn networks(&self) -> Vec<String> {
        self.config.clients.iter().map(|rule| rule.network.to_string()).collect()
    }

    /// The rule for a client at this address; `None`: it may do nothing.
    pub(crate) fn rule(&self, client: IpAddr) -> Option<ClientRule> {
        let rules = &self.config.clients;
        if rules.is_empty() {
            return Some(ClientRule::default());
        }
        let matching = rules.iter().filter(|rule| rule.network.contains(client));
        matching.max_by_key(|rule| rule.network.prefix()).cloned()
    }
}

/// The names of a path, without empty ones and `.`.
fn names(path: &[u8]) -> impl Iterator<Item = &[u8]> {
    path.split(|byte| *byte == b'/').filter(|name| !name.is_empty() && *name != b".")
}

fn names_of(path: &str) -> impl Iterator<Item = &[u8]> {
    names(path.as_bytes())
}
