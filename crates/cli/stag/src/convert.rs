//! From what people wrote to what the server wants: opens units, and turns the configuration's structs into `iscsi_server`'s.

use std::fs::File;
use std::io::{Seek, SeekFrom};
use std::sync::Arc;
use std::time::Duration;

use backing::spec::{Opened, Source, StoreSpec};
use device::{Identity, PortGroups};
use disk::unit::{DiskOptions, DiskUnit, FilePersist, Persist, Registry, Thresholds};
use iscsi_server::config as server;
use scsi::alua::Groups;
use scsi::data::target_port_groups::{TargetPortGroup, supported};

use crate::config::{Acl, Alua, AluaGroup, Config, Target};
use crate::health;
use crate::identity::{self, Carried, Settled};
use crate::prefault::prefault;
use crate::unit::{Backing, UnitSpec};
use crate::units::{OpenDisk, OpenKind, OpenUnit, Place, Units, place};

/// The server's configuration: what `config` says, with the units that are open for it.
pub fn server_config(config: &Config, units: &Units) -> server::ServerConfig {
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
        cores: config.daemon.cores.into(),
        spin_us: config.daemon.spin_us,
        zero_copy: config.daemon.zero_copy,
        pool_bytes: usize::try_from(config.daemon.pool_bytes).unwrap_or(usize::MAX),
        iser: config.iser,
    }
}

/// A target with those of its units that are open.
pub fn target_config(target: &Target, units: &Units) -> server::TargetConfig {
    let target = target.clone();
    let unit = |lun: &crate::config::Lun| {
        let open = units.open.get(&place(&target.iqn, lun.lun))?;
        Some(server::LunConfig {
            lun: lun.lun,
            unit: open.served(),
            // One that there was for the unit goes on, with these limits.
            limiter: Arc::new(server::Limiter::new(lun.spec.options.limits.qos())),
        })
    };
    let ports = units.ports.get(&target.iqn.to_ascii_lowercase()).map(|(_, ports)| ports.clone());
    server::TargetConfig {
        units: target.units.iter().filter_map(unit).collect(),
        name: target.iqn,
        alias: target.alias,
        groups: target.groups,
        auth: target.auth,
        acls: target.acls.map(|acls| acls.into_iter().map(acl).collect()),
        redirect: target.redirect,
        ports,
    }
}

/// Makes a target's port groups, with the states that were kept of them.
///
/// # Errors
/// Why there are none.
pub fn port_groups(alua: &Alua) -> Result<Arc<PortGroups>, String> {
    let group = |group: &AluaGroup| TargetPortGroup {
        id: group.id,
        preferred: group.preferred,
        state: group.state,
        supported: group.states.iter().fold(supported::TRANSITIONING, |bits, state| bits | state.support()),
        status: scsi::alua::STATUS_NONE,
        ports: group.portal_groups.clone(),
    };
    let groups = alua.groups.iter().map(group).collect();
    let groups = Groups::new(groups, alua.explicit, alua.implicit, alua.transition_hint_s);
    let keep = alua.keep.as_ref().map(|path| Arc::new(FilePersist::new(path)) as Arc<dyn Persist>);
    let transition = Duration::from_millis(alua.transition_ms.into());
    PortGroups::new(groups.map_err(|error| error.to_string())?, transition, keep)
        .map_err(|error| format!("its target port groups: {error}"))
}

/// Opens one unit. Blocks on its medium.
///
/// # Errors
/// Why it cannot be served.
pub fn open(
    spec: &UnitSpec,
    place: &Place,
    registry: &Registry,
    carried: &Carried,
) -> Result<OpenUnit, String> {
    let unit = open_kind(spec, place, registry, carried)?;
    health::begin(&unit, place);
    Ok(unit)
}

fn open_kind(
    spec: &UnitSpec,
    place: &Place,
    registry: &Registry,
    carried: &Carried,
) -> Result<OpenUnit, String> {
    let (kind, settled) = match &spec.backing {
        Backing::Memory(bytes) => open_disk(Source::Memory(*bytes), spec, place, registry, carried)?,
        Backing::Path(path) => open_disk(Source::File(path.clone()), spec, place, registry, carried)?,
        Backing::Objects(_) | Backing::ObjectMemory(_) => {
            identity::prepare_store(spec, carried, place)?;
            let store = crate::object_units::open(spec)?;
            let settled = identity::settle(spec, place, carried)?;
            let unit = crate::object_units::unit(store, spec, &settled.names, persist(spec, &settled))?;
            (OpenKind::Objects(unit), settled)
        }
    };
    Ok(OpenUnit { spec: spec.clone(), kind, settled })
}

fn open_disk(
    source: Source,
    spec: &UnitSpec,
    place: &Place,
    registry: &Registry,
    carried: &Carried,
) -> Result<(OpenKind, Settled), String> {
    let options = &spec.options;
    let store = StoreSpec {
        source,
        size: options.size,
        cache: options.cache,
        engine: options.engine,
        thin: Some(options.thin.unwrap_or(false)),
        block_size: options.bs,
        read_only: options.ro.unwrap_or(false),
        quota: options.quota,
    };
    let opened = store.open().map_err(|error| error.to_string())?;
    let settled = identity::settle(spec, place, carried)?;
    let disk = disk_options(spec, &opened, &settled);
    let unit = DiskUnit::new(opened.store.clone(), disk, registry).map_err(|error| error.to_string())?;
    let disk = OpenDisk { opened, unit };
    tell_of_tail(spec, disk.opened.block_size);
    if options.prefault == Some(true) {
        prefault(spec, &disk)?;
    }
    Ok((OpenKind::Disk(disk), settled))
}

/// What is left of a medium behind its last whole block is not served.
fn tell_of_tail(spec: &UnitSpec, block: u32) {
    let Some(path) = spec.backing.path() else { return };
    let Ok(bytes) = File::open(path).and_then(|mut file| file.seek(SeekFrom::End(0))) else { return };
    let tail = bytes % u64::from(block);
    if tail > 0 {
        tracing::warn!(path = %path.display(), bytes, block, tail, "the last bytes are less than a block: initiators do not see them");
    }
}

/// Another unit over the store of an open one, with its reservations.
///
/// # Errors
/// Why it cannot be served.
pub fn remake(
    open: &OpenUnit,
    spec: &UnitSpec,
    place: &Place,
    registry: &Registry,
) -> Result<OpenUnit, String> {
    let settled = identity::again(&open.settled, &open.spec, spec, place)?;
    let kind = match &open.kind {
        OpenKind::Disk(OpenDisk { opened, unit: before }) => {
            let options = disk_options(spec, opened, &settled);
            let unit =
                DiskUnit::new(opened.store.clone(), options, registry).map_err(|error| error.to_string())?;
            unit.nexuses().inherit(before.nexuses());
            OpenKind::Disk(OpenDisk { opened: opened.clone(), unit })
        }
        OpenKind::Objects(before) => OpenKind::Objects(crate::object_units::remake(
            before,
            spec,
            &settled.names,
            persist(spec, &settled),
        )?),
    };
    Ok(OpenUnit { spec: spec.clone(), kind, settled })
}

fn disk_options(spec: &UnitSpec, opened: &Opened, settled: &Settled) -> DiskOptions {
    let options = &spec.options;
    let physical = opened.geometry.physical_block.max(opened.block_size);
    // A physical block that is no power of two blocks has no exponent: then it is not told.
    let exponent = physical.is_power_of_two().then(|| (physical / opened.block_size).ilog2() as u8);
    DiskOptions {
        block_size: opened.block_size,
        physical_block_exponent: options.pbe.or(exponent).unwrap_or(0),
        read_only: options.ro.unwrap_or(false),
        removable: options.removable.unwrap_or(false),
        thin: options.thin.unwrap_or(false),
        write_cache: opened.cache.write_cache(),
        identity: names(options, Identity::of("Disk").named(settled.names.clone())),
        persist: persist(spec, settled),
        sanitize_bytes_per_s: options.sanitize_rate,
        thresholds: Thresholds { available: options.warn_available, used: options.warn_used },
    }
}

/// What is said of a unit's names, and its own where nothing is said.
pub fn names(said: &crate::unit::Options, own: Identity) -> Identity {
    Identity {
        vendor: said.vendor.clone().unwrap_or(own.vendor),
        product: said.product.clone().unwrap_or(own.product),
        revision: said.revision.clone().unwrap_or(own.revision),
        serial: said.serial.clone().unwrap_or(own.serial),
        naa: said.naa.clone().map_or(own.naa, |naa| naa.0),
    }
}

/// Where persistent reservations are kept: where `aptpl` says, else where the unit's identity has settled it.
fn persist(spec: &UnitSpec, settled: &Settled) -> Option<Arc<dyn Persist>> {
    let path = spec.options.aptpl.as_ref().or(settled.reservations.as_ref())?;
    Some(Arc::new(FilePersist::new(path)))
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
