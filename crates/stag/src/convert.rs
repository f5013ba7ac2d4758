//! From what people wrote to what the server wants: opens units, and turns the configuration's structs into `target`'s.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use backing::spec::{Opened, Source, StoreSpec};
use device::{Identity, PortGroups};
use disk::unit::{DiskOptions, DiskUnit, FilePersist, Persist, Registry, Thresholds};
use iscsi::chap::{self, Hash, Secret};
use scsi::alua::Groups;
use scsi::data::target_port_groups::{TargetPortGroup, supported};
use target::config as server;

use crate::config::{Acl, AclLun, Alua, AluaGroup, Auth, ChapHash, Config, Credential, Iser, Limits, Target};
use crate::unit::{Backing, UnitSpec};
use crate::units::{OpenDisk, OpenKind, OpenUnit, Place, Units, place};

/// Microseconds that a core looks for new work before it sleeps, if nobody says otherwise.
const SPIN_US: u32 = 50;
/// Bytes of payload buffers a core, if nobody says otherwise.
const POOL_BYTES: u64 = 256 << 20;

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
        discovery_auth: auth(config.discovery.clone()),
        limits: limits(&config.limits),
        cores: config.cores.unwrap_or(0).into(),
        spin_us: config.spin_us.unwrap_or(SPIN_US),
        zero_copy: config.zero_copy.unwrap_or(true),
        pool_bytes: usize::try_from(config.pool_bytes.unwrap_or(POOL_BYTES)).unwrap_or(usize::MAX),
        iser: iser(&config.iser),
    }
}

fn iser(said: &Iser) -> server::IserConfig {
    let own = server::IserConfig::default();
    server::IserConfig {
        crc: said.crc.unwrap_or(own.crc),
        max_fpdu: said.fpdu.map_or(own.max_fpdu, |bytes| bytes as usize),
        markers: said.markers.unwrap_or(own.markers),
        reads: said.reads.unwrap_or(own.reads),
        unsolicited_data: said.unsolicited_data.unwrap_or(own.unsolicited_data),
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
        auth: auth(target.auth),
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
pub fn open(spec: &UnitSpec, place: &Place, registry: &Registry) -> Result<OpenUnit, String> {
    let source = match &spec.backing {
        Backing::Memory(bytes) => Source::Memory(*bytes),
        Backing::Path(path) => Source::File(path.clone()),
        Backing::Objects(_) | Backing::ObjectMemory(_) => {
            let unit = crate::object_units::open(spec, &seed(spec, &place.0, place.1), persist(spec))?;
            return Ok(OpenUnit { spec: spec.clone(), kind: OpenKind::Objects(unit) });
        }
    };
    let kind = OpenKind::Disk(open_disk(source, spec, place, registry)?);
    Ok(OpenUnit { spec: spec.clone(), kind })
}

fn open_disk(
    source: Source,
    spec: &UnitSpec,
    (iqn, lun): &Place,
    registry: &Registry,
) -> Result<OpenDisk, String> {
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
    let disk = disk_options(spec, &opened, iqn, *lun);
    let unit = DiskUnit::new(opened.store.clone(), disk, registry).map_err(|error| error.to_string())?;
    Ok(OpenDisk { opened, unit })
}

/// Another unit over the store of an open one, with its reservations.
///
/// # Errors
/// Why it cannot be served.
pub fn remake(
    open: &OpenUnit,
    spec: &UnitSpec,
    (iqn, lun): &Place,
    registry: &Registry,
) -> Result<OpenUnit, String> {
    let kind = match &open.kind {
        OpenKind::Disk(OpenDisk { opened, unit: before }) => {
            let options = disk_options(spec, opened, iqn, *lun);
            let unit =
                DiskUnit::new(opened.store.clone(), options, registry).map_err(|error| error.to_string())?;
            unit.nexuses().inherit(before.nexuses());
            OpenKind::Disk(OpenDisk { opened: opened.clone(), unit })
        }
        OpenKind::Objects(before) => OpenKind::Objects(crate::object_units::remake(
            before,
            spec,
            &seed(spec, iqn, *lun),
            persist(spec),
        )?),
    };
    Ok(OpenUnit { spec: spec.clone(), kind })
}

fn disk_options(spec: &UnitSpec, opened: &Opened, iqn: &str, lun: u16) -> DiskOptions {
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
        identity: identity(options, DiskOptions::default().with_identity(&seed(spec, iqn, lun)).identity),
        persist: persist(spec),
        sanitize_bytes_per_s: options.sanitize_rate,
        thresholds: Thresholds { available: options.warn_available, used: options.warn_used },
    }
}

/// What is said of a unit's names, and its own where nothing is said.
pub fn identity(said: &crate::unit::Options, own: Identity) -> Identity {
    Identity {
        vendor: said.vendor.clone().unwrap_or(own.vendor),
        product: said.product.clone().unwrap_or(own.product),
        revision: said.revision.clone().unwrap_or(own.revision),
        serial: said.serial.clone().unwrap_or(own.serial),
        naa: said.naa.clone().unwrap_or(own.naa),
    }
}

/// What a unit's names are made of. The same unit has the same names after every start: those of a path belong to the path, those
/// of memory to the LUN.
fn seed(spec: &UnitSpec, iqn: &str, lun: u16) -> String {
    match spec.backing.path() {
        Some(path) => std::fs::canonicalize(path).unwrap_or_else(|_| path.to_owned()).display().to_string(),
        None => format!("{iqn}/{lun}"),
    }
}

/// Where persistent reservations are kept: where `aptpl` says, else beside a file. A device in /dev has no place beside it
/// that would be there after a restart.
fn persist(spec: &UnitSpec) -> Option<Arc<dyn Persist>> {
    let path = match (&spec.options.aptpl, &spec.backing) {
        (Some(path), _) => path.clone(),
        (None, Backing::Path(path)) if !path.starts_with(Path::new("/dev")) => {
            let mut beside = path.clone().into_os_string();
            beside.push(".reservations");
            beside.into()
        }
        (None, Backing::Objects(directory)) => directory.join("reservations"),
        _ => return None,
    };
    Some(Arc::new(FilePersist::new(path)))
}

fn acl(acl: Acl) -> server::Acl {
    let lun = |lun: AclLun| server::AclLun { seen_as: lun.seen_as, unit: lun.lun, read_only: lun.read_only };
    server::Acl {
        initiator: acl.initiator,
        auth: acl.auth.map(auth),
        luns: acl.luns.map(|luns| luns.into_iter().map(lun).collect()),
        limits: acl.limits.qos(),
    }
}

fn auth(auth: Auth) -> server::Auth {
    let credential = |own: Credential| chap::Credential { name: own.name, secret: Secret::new(own.secret) };
    match auth {
        Auth::None => server::Auth::None,
        Auth::Chap(chap) => server::Auth::Chap(server::Chap {
            users: chap.users.into_iter().map(credential).collect(),
            mutual: chap.mutual.map(credential),
            hashes: chap.hashes.into_iter().map(hash).collect(),
        }),
    }
}

fn hash(hash: ChapHash) -> Hash {
    match hash {
        ChapHash::Md5 => Hash::Md5,
        ChapHash::Sha1 => Hash::Sha1,
        ChapHash::Sha256 => Hash::Sha256,
        ChapHash::Sha3_256 => Hash::Sha3_256,
    }
}

/// The server's own bounds, with those that were said put in their place.
fn limits(said: &Limits) -> server::Limits {
    let own = server::Limits::default();
    let seconds = |said: Option<u32>, own: Duration| said.map_or(own, |s| Duration::from_secs(s.into()));
    let max_burst = said.max_burst.unwrap_or(own.max_burst);
    server::Limits {
        connections: said.connections.map_or(own.connections, |n| n as usize),
        logins: said.logins.map_or(own.logins, |n| n as usize),
        sessions: said.sessions.map_or(own.sessions, |n| n as usize),
        connections_per_session: said.connections_per_session.unwrap_or(own.connections_per_session),
        queue_depth: said.queue_depth.unwrap_or(own.queue_depth),
        max_recv_data_segment: said.max_recv_data_segment.unwrap_or(own.max_recv_data_segment),
        max_burst,
        // FirstBurstLength is no more than MaxBurstLength (RFC 7143 §13.14).
        first_burst: said.first_burst.unwrap_or(own.first_burst).min(max_burst),
        max_outstanding_r2t: said.max_outstanding_r2t.unwrap_or(own.max_outstanding_r2t),
        login_timeout: seconds(said.login_timeout, own.login_timeout),
        nop_interval: seconds(said.nop_interval, own.nop_interval),
        nop_timeout: seconds(said.nop_timeout, own.nop_timeout),
        send_high_water: said.send_high_water.map_or(own.send_high_water, |n| n as usize),
        // The reader has seen to it that it is 0 to 2.
        error_recovery_level: said.error_recovery_level.map_or(own.error_recovery_level, |n| n.min(2) as u8),
        default_time2wait_s: said.default_time2wait.unwrap_or(own.default_time2wait_s),
        default_time2retain_s: said.default_time2retain.unwrap_or(own.default_time2retain_s),
        unacknowledged: said.unacknowledged.map_or(own.unacknowledged, |n| n as usize),
        data_timeout: seconds(said.data_timeout, own.data_timeout),
        congestion: said.congestion.or(own.congestion),
    }
}
