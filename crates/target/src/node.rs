//! A target as it runs: its configuration and who may use it.

use std::sync::Arc;

use iscsi::name;

use crate::config::{Acl, TargetConfig};

/// A target.
#[derive(Debug)]
pub(crate) struct Target {
    pub config: TargetConfig,
}

impl Target {
    pub(crate) fn new(config: TargetConfig) -> Arc<Self> {
        Arc::new(Self { config })
    }

    /// The same target with another configuration.
    pub(crate) fn changed(&self, config: TargetConfig) -> Arc<Self> {
        Arc::new(Self { config })
    }

    /// Whether it is reached through portal group `group`.
    pub(crate) fn serves(&self, group: u16) -> bool {
        self.config.groups.is_empty() || self.config.groups.contains(&group)
    }

    /// Whether `initiator` may log in, and under which entry: `None` if not, `Some(None)` if everybody may. The entry
    /// with the longest match counts.
    pub(crate) fn acl(&self, initiator: &str) -> Option<Option<&Acl>> {
        let Some(acls) = &self.config.acls else { return Some(None) };
        let initiator = name::normalize(initiator);
        let matching = acls.iter().filter_map(|acl| {
            let pattern = name::normalize(&acl.initiator);
            let length = match pattern.strip_suffix('*') {
                Some(start) if initiator.starts_with(start) => start.len(),
                None if pattern == initiator => usize::MAX,
                _ => return None,
            };
            Some((length, acl))
        });
        matching.max_by_key(|(length, _)| *length).map(|(_, acl)| Some(acl))
    }
}
