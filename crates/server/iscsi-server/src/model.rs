//! The configuration that a server serves, which can change while it runs: one immutable [`Model`]
//! at a time, replaced whole.
//!
//! Logins, discovery and management look at the current model. A session keeps a [`View`] of it:
//! its target and the units that it sees. Each connection keeps the session's view. Per command it
//! compares one number with the session's: no lock, and no write to memory that cores share. This
//! module makes models and views.

use std::collections::HashMap;
use std::sync::Arc;

use device::Nexus;
use iscsi::name;
use server_core::portals;

use crate::config::{Acl, Auth, IserConfig, Limits, Portal, ServerConfig, TargetConfig};
use crate::lun_map::{LunMap, View};
use crate::node::Target;
use crate::session::Session;

/// A portal of the server.
pub(crate) type PortalEntry = portals::Portal<Portal>;

/// A model with its portals, valid from one change to the next.
pub(crate) type Edition = server_core::Edition<Model, Portal>;

/// Targets and settings, valid from one change to the next.
pub(crate) struct Model {
    /// In the order of the configuration.
    pub targets: Vec<Arc<Target>>,
    /// The same by normalized name.
    by_name: HashMap<String, Arc<Target>>,
    /// The portal groups.
    groups: Vec<u16>,
    pub limits: Limits,
    pub discovery_auth: Auth,
    pub zero_copy: bool,
    pub iser: IserConfig,
}

impl Model {
    /// Makes the model of `config`. Targets with the name of one of `before` continue.
    pub(crate) fn new(config: ServerConfig, before: Option<&Self>) -> Self {
        let mut groups: Vec<u16> = config.portals.iter().map(|portal| portal.group).collect();
        groups.sort_unstable();
        groups.dedup();
        let carried = |config: TargetConfig| match before.and_then(|b| b.target(&config.name)) {
            Some(old) => old.changed(config, &groups),
            None => Target::new(config, &groups),
        };
        let targets: Vec<_> = config.targets.into_iter().map(carried).collect();
        Self {
            by_name: targets.iter().map(|one| (name::normalize(&one.config.name), one.clone())).collect(),
            targets,
            groups,
            limits: config.limits,
            discovery_auth: config.discovery_auth,
            zero_copy: config.zero_copy,
            iser: config.iser,
        }
    }

    /// A model without targets, under the bounds of this one.
    pub(crate) fn nothing(&self) -> Self {
        Self {
            targets: Vec::new(),
            by_name: HashMap::new(),
            groups: Vec::new(),
            discovery_auth: Auth::None,
            limits: self.limits,
            zero_copy: self.zero_copy,
            iser: self.iser,
        }
    }

    /// The target with this name.
    pub(crate) fn target(&self, wanted: &str) -> Option<&Arc<Target>> {
        self.by_name.get(&name::normalize(wanted))
    }

    /// Relative identifiers of the ports that reach `target`.
    pub(crate) fn ports(&self, target: &Target) -> Vec<u16> {
        self.groups.iter().copied().filter(|group| target.serves(*group)).collect()
    }

    /// The session's view of the edition `generation`. `None` if the session may not stay.
    pub(crate) fn view(&self, generation: u64, session: &Session) -> Option<View> {
        let Some(wanted) = session.target_name() else {
            return Some(View { generation, target: None, luns: LunMap::default() });
        };
        let target = self.target(wanted)?;
        let acl = target.acl(&session.port.initiator).filter(|_| target.serves(session.port.group))?;
        let acl = acl_of(acl, &session.nexus)?;
        let before = session.view();
        let luns = LunMap::new(&target.config, acl, &session.nexus, Some(&before.luns));
        Some(View { generation, target: Some(target.clone()), luns })
    }

    /// View of a new session of `nexus` with `target`; `None` if its initiator has no access.
    pub(crate) fn first_view(
        &self,
        generation: u64,
        target: Option<&str>,
        initiator: &str,
        nexus: &Arc<Nexus>,
    ) -> Option<View> {
        let Some(wanted) = target else {
            return Some(View { generation, target: None, luns: LunMap::default() });
        };
        // The model may be newer than the one that the login began with.
        let target = self.target(wanted).filter(|target| target.serves(nexus.target_port))?;
        let acl = acl_of(target.acl(initiator)?, nexus)?;
        let luns = LunMap::new(&target.config, acl, nexus, None);
        Some(View { generation, target: Some(target.clone()), luns })
    }
}

/// The ACL entry of `nexus`; `None` inside if the target admits every initiator. `None` outside:
/// the entry is for another user.
fn acl_of<'a>(acl: Option<&'a Acl>, nexus: &Nexus) -> Option<Option<&'a Acl>> {
    let user = nexus.principal.as_ref().map(|principal| principal.user.as_str());
    acl.is_none_or(|acl| acl.admits(user)).then_some(acl)
}
