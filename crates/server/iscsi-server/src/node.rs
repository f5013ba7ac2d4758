//! A target as it runs: its configuration and the access to it.

use std::sync::Arc;

use device::PortGroups;

use crate::config::{Acl, TargetConfig};

/// A target.
#[derive(Debug)]
pub(crate) struct Target {
    pub config: TargetConfig,
    /// Its target port groups.
    pub ports: Arc<PortGroups>,
}

impl Target {
    /// A target of a server whose portals are in `groups`.
    pub(crate) fn new(config: TargetConfig, groups: &[u16]) -> Arc<Self> {
        let ports = port_groups(&config, groups);
        Arc::new(Self { config, ports })
    }

    /// The same target with another configuration. Its sessions know its target port groups, so
    /// those change too.
    pub(crate) fn changed(&self, config: TargetConfig, groups: &[u16]) -> Arc<Self> {
        let same = match (&self.config.ports, &config.ports) {
            (Some(before), Some(now)) => Arc::ptr_eq(before, now),
            _ => false,
        };
        if !same {
            self.ports.become_like(&port_groups(&config, groups));
        }
        Arc::new(Self { config, ports: self.ports.clone() })
    }

    /// Whether portal group `group` reaches it.
    pub(crate) fn serves(&self, group: u16) -> bool {
        self.config.groups.is_empty() || self.config.groups.contains(&group)
    }

    /// See [`TargetConfig::acl`].
    pub(crate) fn acl(&self, initiator: &str) -> Option<Option<&Acl>> {
        self.config.acl(initiator)
    }
}

/// The target port groups of `config`, on a server whose portals are in `groups`.
fn port_groups(config: &TargetConfig, groups: &[u16]) -> Arc<PortGroups> {
    let serves = |group: &u16| config.groups.is_empty() || config.groups.contains(group);
    let own: Vec<u16> = groups.iter().copied().filter(serves).collect();
    config.ports.clone().unwrap_or_else(|| PortGroups::symmetric(&own))
}
