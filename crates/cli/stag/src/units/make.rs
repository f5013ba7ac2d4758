//! Opens one unit, and makes another one over the store of one that is open.

use std::fs::File;
use std::io::{Seek, SeekFrom};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use backing::BlockStore;
use backing::spec::{CacheMode, Opened, Source, StoreSpec};
use ceph::{ImageName, Login, RbdStore};
use device::Identity;
use disk::unit::{DiskOptions, DiskUnit, FilePersist, Persist, Registry, Thresholds};
use iscsi_store::{Chap, Credential, IscsiStore, Provider, Url};
use nbd_store::{NbdStore, Uri};

use super::objects;
use super::open::{OpenDisk, OpenKind, OpenUnit, Place, Unopened};
use super::prefault::prefault;
use crate::gateways::{Shared, SharedUnit};
use crate::health;
use crate::identity::{self, Carried, Reservations, Settled};
use crate::unit::{Backing, UnitSpec};

/// How long an operation of a medium behind a network may take, unless said otherwise, seconds.
const OP_TIMEOUT_S: u32 = 30;

/// What a unit is opened with.
pub struct Around<'a> {
    pub registry: &'a Registry,
    pub carried: &'a Carried,
    /// The units of the group, if this daemon is a gateway of one.
    pub shared: Option<&'a Shared>,
}

/// Opens one unit. Blocks on its medium.
///
/// # Errors
/// It cannot be served.
pub fn open(spec: &UnitSpec, place: &Place, around: &Around<'_>) -> Result<OpenUnit, Unopened> {
    let unit = open_kind(spec, place, around)?;
    health::begin(&unit, place);
    Ok(unit)
}

fn open_kind(spec: &UnitSpec, place: &Place, around: &Around<'_>) -> Result<OpenUnit, Unopened> {
    let (kind, settled) = match &spec.backing {
        Backing::Memory(bytes) => open_disk(Source::Memory(*bytes), spec, place, around)?,
        Backing::Path(path) => open_disk(Source::File(path.clone()), spec, place, around)?,
        Backing::Rbd(name) => match around.shared.filter(|_| spec.may_be_shared()) {
            Some(group) => {
                let open = opens_when_owned(spec, around.registry, group.op_timeout());
                let (unit, settled) = group.open(name, spec, open)?;
                (OpenKind::Shared(unit), settled)
            }
            None => open_image(name, spec, around.registry)?,
        },
        Backing::Nbd(uri) => serve_elsewhere(open_export(uri, spec)?, spec, place, around)?,
        Backing::Iscsi(url) => serve_elsewhere(open_far_unit(url, spec)?, spec, place, around)?,
        Backing::Objects(_) | Backing::ObjectMemory(_) => {
            identity::prepare_store(spec, around.carried, place)?;
            let store = objects::open(spec)?;
            let settled = identity::settle(spec, place, around.carried)?;
            let unit = objects::unit(store, spec, &settled.names, persist(spec, &settled))?;
            (OpenKind::Objects(unit), settled)
        }
    };
    Ok(OpenUnit { spec: spec.clone(), kind, settled })
}

fn open_disk(
    source: Source,
    spec: &UnitSpec,
    place: &Place,
    around: &Around<'_>,
) -> Result<(OpenKind, Settled), Unopened> {
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
    let opened = store.open()?;
    let settled = identity::settle(spec, place, around.carried)?;
    let disk = disk_options(spec, &opened, &settled);
    let unit =
        DiskUnit::new(opened.store.clone(), disk, around.registry).map_err(|error| error.to_string())?;
    let disk = OpenDisk { opened, unit };
    tell_of_tail(spec, disk.opened.block_size);
    if options.prefault == Some(true) {
        prefault(spec, &disk)?;
    }
    Ok((OpenKind::Disk(disk), settled))
}

fn open_image(
    name: &ImageName,
    spec: &UnitSpec,
    registry: &Registry,
) -> Result<(OpenKind, Settled), Unopened> {
    let options = &spec.options;
    let login = Login { user: options.ceph_user.clone(), conf: options.ceph_conf.clone() };
    let key_file = options.luks_key_file.clone();
    if let Some(file) = &key_file {
        crate::secret::warn_of_readers(file);
    }
    let store = RbdStore::open(name, login, options.ro == Some(true), key_file, op_timeout(spec))?;
    let settled = identity::of_image(&store);
    let geometry = store.geometry();
    // A write is on all replicas before it is answered: nothing is left to flush.
    let (block_size, cache) = (options.block_bytes(), CacheMode::WriteThrough);
    let opened = Opened { store: Arc::new(store), block_size, cache, geometry };
    Ok((OpenKind::Disk(disk_over(opened, spec, &settled, registry)?), settled))
}

fn open_export(uri: &Uri, spec: &UnitSpec) -> Result<Elsewhere, String> {
    let (read_only, op_timeout) = (spec.options.ro == Some(true), op_timeout(spec));
    let store = NbdStore::open(nbd_store::Source { uri: uri.clone(), read_only, op_timeout })
        .map_err(|error| format!("{uri}: {error}"))?;
    // Without flushes the server has no cache that an initiator could ask it to write.
    let has_cache = store.export().flags.flush();
    Ok(Elsewhere { store: Arc::new(store), has_cache })
}

fn open_far_unit(url: &Url, spec: &UnitSpec) -> Result<Elsewhere, String> {
    let options = &spec.options;
    let chap = match (&options.far_user, &options.far_secret_file) {
        (Some(user), Some(file)) => {
            let (_, secret) =
                crate::secret::read(file).map_err(|error| format!("{url}: {}: {error}", file.display()))?;
            crate::secret::warn_of_readers(file);
            let credential = Credential { name: user.clone(), secret };
            Some(Chap { credential, target: None, hashes: Vec::new() })
        }
        _ => None,
    };
    let source = iscsi_store::Source {
        url: url.clone(),
        initiator: options.far_initiator.clone().unwrap_or_else(crate::iqn::default_initiator),
        chap,
        provider: Provider::Software,
        read_only: options.ro == Some(true),
        op_timeout: op_timeout(spec),
    };
    let store = IscsiStore::open(source).map_err(|error| format!("{url}: {error}"))?;
    let has_cache = store.write_cache();
    Ok(Elsewhere { store: Arc::new(store), has_cache })
}

/// The medium of another server.
struct Elsewhere {
    store: Arc<dyn BlockStore>,
    /// Flushes may be of use.
    has_cache: bool,
}

fn serve_elsewhere(
    medium: Elsewhere,
    spec: &UnitSpec,
    place: &Place,
    around: &Around<'_>,
) -> Result<(OpenKind, Settled), Unopened> {
    let options = &spec.options;
    let geometry = medium.store.geometry();
    let block_size = options.bs.unwrap_or(if geometry.block <= 512 { 512 } else { 4096 });
    if geometry.block > block_size {
        let (block, path) = (geometry.block, &spec.backing);
        let instead = if block > 4096 { "no unit has them" } else { "write bs=4096" };
        return Err(format!(
            "{path}: the server's blocks are {block} bytes, more than {block_size}: {instead}"
        )
        .into());
    }
    let usual = if medium.has_cache { CacheMode::WriteBack } else { CacheMode::WriteThrough };
    let cache = options.cache.unwrap_or(usual);
    let settled = identity::settle(spec, place, around.carried)?;
    let opened = Opened { store: medium.store, block_size, cache, geometry };
    Ok((OpenKind::Disk(disk_over(opened, spec, &settled, around.registry)?), settled))
}

/// Makes the disk over an image of the group, whenever that is this gateway's.
fn opens_when_owned(spec: &UnitSpec, registry: &Registry, op_timeout: Duration) -> gateway::Open {
    let (spec, registry) = (spec.clone(), registry.clone());
    Box::new(move |serving, health| {
        let store = RbdStore::of_group(serving, op_timeout, health.clone());
        let store = Arc::new(store.map_err(|error| error.to_string())?);
        let settled = identity::of_image(&store);
        let opened = Opened {
            store: store.clone(),
            block_size: spec.options.block_bytes(),
            // A write is on all replicas before it is answered: nothing is left to flush.
            cache: CacheMode::WriteThrough,
            geometry: store.geometry(),
        };
        Ok(gateway::Owned { disk: disk_over(opened, &spec, &settled, &registry)?.unit, store })
    })
}

/// A disk over a medium behind a network.
///
/// # Errors
/// It cannot be served.
fn disk_over(
    opened: Opened,
    spec: &UnitSpec,
    settled: &Settled,
    registry: &Registry,
) -> Result<OpenDisk, String> {
    let disk = disk_options(spec, &opened, settled);
    let unit = DiskUnit::new(opened.store.clone(), disk, registry).map_err(|error| error.to_string())?;
    Ok(OpenDisk { opened, unit })
}

fn op_timeout(spec: &UnitSpec) -> Duration {
    Duration::from_secs(spec.options.op_timeout_s.unwrap_or(OP_TIMEOUT_S).into())
}

/// Warns of bytes behind the last whole block, which are not served.
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
/// It cannot be served.
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
            let unit = before.successor(options, registry).map_err(|error| error.to_string())?;
            unit.nexuses().inherit(before.nexuses());
            OpenKind::Disk(OpenDisk { opened: opened.clone(), unit })
        }
        OpenKind::Objects(before) => {
            OpenKind::Objects(objects::remake(before, spec, &settled.names, persist(spec, &settled))?)
        }
        OpenKind::Shared(_) => return Err(SharedUnit::AT_START.into()),
    };
    Ok(OpenUnit { spec: spec.clone(), kind, settled })
}

fn disk_options(spec: &UnitSpec, opened: &Opened, settled: &Settled) -> DiskOptions {
    let options = &spec.options;
    let physical = opened.geometry.physical_block.max(opened.block_size);
    // A physical block that is no power of two blocks has no exponent, so it is not reported.
    let exponent = physical.is_power_of_two().then(|| (physical / opened.block_size).ilog2() as u8);
    DiskOptions {
        block_size: opened.block_size,
        physical_block_exponent: options.pbe.or(exponent).unwrap_or(0),
        read_only: options.ro.unwrap_or(false),
        removable: options.removable.unwrap_or(false),
        thin: options.thin.unwrap_or(false),
        write_cache: opened.cache.write_cache(),
        identity: identity::names(options, Identity::of("Disk").named(settled.names.clone())),
        persist: persist(spec, settled),
        sanitize_record: settled.sanitize.clone(),
        sanitize_bytes_per_s: options.sanitize_rate,
        thresholds: Thresholds { available: options.warn_available, used: options.warn_used },
    }
}

/// The store of persistent reservations: the file `aptpl`, else where the unit's identity says.
fn persist(spec: &UnitSpec, settled: &Settled) -> Option<Arc<dyn Persist>> {
    let file = |path: &PathBuf| Reservations::File(path.clone());
    match spec.options.aptpl.as_ref().map(file).or_else(|| settled.reservations.clone())? {
        Reservations::File(path) => Some(Arc::new(FilePersist::new(path))),
        Reservations::Image(image) => Some(image),
    }
}
