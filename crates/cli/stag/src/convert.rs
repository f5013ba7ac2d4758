//! Turns the configuration's structs into `iscsi_server`'s, with the units that are open for them.

use std::sync::Arc;

use iscsi_server::config as server;
use server_core::CoresConfig;

use crate::config::{Acl, Config, Target};
use crate::units::{self, Units};

pub fn cores(config: &Config) -> CoresConfig {
    let daemon = &config.daemon;
    CoresConfig {
        count: daemon.cores.into(),
        spin_us: daemon.spin_us,
        pool_bytes: usize::try_from(daemon.pool_bytes).unwrap_or(usize::MAX),
    }
}

/// The configuration of iSCSI: what `config` says, with the units that are open for it.
pub fn iscsi_config(config: &Config, units: &Units) -> server::ServerConfig {
    let portal = |portal: &crate::config::Portal| server::Portal {
        listen: portal.listen,
        group: portal.group,
        transports: portal.transports,
    };
    server::ServerConfig {
        portals: config.portals.iter().map(portal).collect(),
        targets: config.targets.iter().map(|target| target_config(target, units)).collect(),
        discovery_auth: config.discovery.clone(),
        limits: config.limits,
        zero_copy: config.daemon.zero_copy,
        iser: config.iser,
    }
}

/// A target with those of its units that are open.
pub fn target_config(target: &Target, units: &Units) -> server::TargetConfig {
    let iqn = units::name(&target.iqn);
    let unit = |lun: &crate::config::Lun| {
        let open = units.open.get(&(iqn.clone(), lun.lun))?;
        Some(server::LunConfig {
            lun: lun.lun,
            unit: open.served(),
            // The server keeps an existing limiter of the unit, and gives it these limits.
            limiter: Arc::new(server::Limiter::new(lun.spec.options.limits.qos())),
            stages: lun.spec.options.stages == Some(true),
        })
    };
    let ports = units.ports.get(&*iqn).map(|(_, ports)| ports.clone());
    let has_shared = target.units.iter().any(|unit| unit.spec.may_be_shared());
    let elsewhere = units.shared.iter().filter(|_| has_shared).flat_map(|group| group.portals_elsewhere());
    server::TargetConfig {
        units: target.units.iter().filter_map(unit).collect(),
        name: target.iqn.clone(),
        alias: target.alias.clone(),
        groups: target.groups.clone(),
        auth: target.auth.clone(),
        acls: target.acls.clone().map(|acls| acls.into_iter().map(acl).collect()),
        redirect: target.redirect.clone(),
        ports,
        elsewhere: elsewhere.collect(),
    }
}

fn acl(acl: Acl) -> server::Acl {
    server::Acl {
        initiator: acl.initiator,
        auth: acl.auth,
        user: acl.user,
        luns: acl.luns,
        limits: acl.limits.qos(),
    }
}
