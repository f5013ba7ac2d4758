//! The identity of a unit: the serial number and the worldwide name by which initiators recognise
//! it. It is made once, at random, and belongs to the medium and not to its path. Two media never
//! have the same one. Deriving it from names is an administrator's choice.
//!
//! docs/src/design/security.md has the rules; `record` says where they are written down.

mod choice;
pub mod command;
mod memory;
mod record;

use std::collections::HashSet;
use std::fs::{self, File};
use std::io;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use ceph::RbdStore;
use device::{Identity, Names, Persist};
use disk::unit::FilePersist;
use objects::store::embedded::{self, UNFINISHED};
use sha2::{Digest, Sha256};

use crate::block_device;
use crate::image;
use crate::state::{self, hex};
use crate::unit::{Backing, Options, UnitSpec};
use crate::units::Place;
pub use choice::Choice;
use memory::Claim;
pub use memory::sweep;
use record::{Home, Kept, Origin, Record};

/// Serial numbers of units that the daemon which this one replaces has served.
pub type Carried = HashSet<String>;

/// Where persistent reservations are kept.
#[derive(Clone)]
pub enum Reservations {
    File(PathBuf),
    /// In the metadata of the image itself.
    Image(Arc<dyn Persist>),
}

/// Identity of a unit, as settled when it was opened.
#[derive(Clone)]
pub struct Settled {
    /// Its names, unless others are configured.
    pub names: Names,
    /// Its persistent reservations, unless another place is configured.
    pub reservations: Option<Reservations>,
    /// Where a disk keeps the record of a sanitize.
    pub sanitize: Option<Arc<dyn Persist>>,
    /// Claim of a memory unit's key, held as long as the unit is open.
    claim: Option<Arc<Claim>>,
}

impl Settled {
    /// Called when the unit is removed. A memory unit's data is lost with it, so its identity is
    /// removed too: no later unit may have it.
    pub fn end(&self) {
        if let Some(claim) = &self.claim {
            claim.end();
        }
    }
}

/// Settles a unit's identity. Its medium is open and locked, so that no other daemon does the same.
///
/// # Errors
/// It cannot be served under any identity; with advice.
pub fn settle(spec: &UnitSpec, place: &Place, carried: &Carried) -> Result<Settled, String> {
    let derived = Names::derived(&seed(spec, place));
    let (key, claim) = match &spec.backing {
        Backing::Memory(_) | Backing::ObjectMemory(_) => {
            let key = memory_key(place);
            match Claim::take(&key) {
                Ok(claim) => (Some(key), Some(Arc::new(claim))),
                Err(why) => return Ok(for_this_run(spec, place, derived, &why)),
            }
        }
        Backing::Path(path) if is_device(path) => (Some(device_key(path)), None),
        // A server tells nothing that names an export in the world. A target does, but initiators
        // that see both units must not take them for paths to one.
        backing => (backing.address(), None),
    };
    let reservations = kept_at(spec, key.as_deref(), "reservations").map(Reservations::File);
    let sanitize = match &spec.backing {
        // A medium in memory ends with the daemon.
        Backing::Memory(_) | Backing::ObjectMemory(_) | Backing::Objects(_) => None,
        _ => kept_at(spec, key.as_deref(), "sanitize"),
    };
    let sanitize = sanitize.map(|file| Arc::new(FilePersist::new(file)) as Arc<dyn Persist>);
    let settled = |names| Settled { names, reservations, sanitize, claim };
    if spec.options.identity == Some(Choice::Derived) {
        // It may have been served before, and a client may have written what looks like an image:
        // only warn.
        if let Some(why) = image(spec) {
            tracing::warn!("{why}");
        }
        return Ok(settled(derived));
    }
    // If all names are configured, the record is not needed.
    let needed = spec.options.serial.is_none()
        || spec.options.naa.is_none()
        || matches!(spec.backing, Backing::Objects(_) | Backing::ObjectMemory(_));
    let what = spec.backing.to_string();
    match own(spec, key.as_deref(), &derived, carried) {
        Ok(names) => Ok(settled(names)),
        Err(Refusal::Medium(why)) => Err(why),
        Err(Refusal::Record(why)) if needed => Err(format!("{what}: {why}")),
        Err(Refusal::Record(why)) => {
            tracing::debug!(%what, why, "its identity is not kept");
            Ok(settled(derived))
        }
    }
}

/// The identity of an RBD image: it is the same wherever the image is served, and goes with it.
pub fn of_image(store: &RbdStore) -> Settled {
    let reservations = store.persist().map(Reservations::Image);
    Settled { reservations, sanitize: store.sanitize_record(), ..of_seed(&store.seed()) }
}

/// The identity of the image that `seed` names in the world.
pub fn of_seed(seed: &str) -> Settled {
    let digest: [u8; 32] = Sha256::digest(format!("rbd:{seed}")).into();
    let number = digest.first_chunk::<16>().map_or(0, |bytes| u128::from_be_bytes(*bytes));
    Settled { names: Names::random(number), reservations: None, sanitize: None, claim: None }
}

/// The same unit with the changed `spec`.
///
/// # Errors
/// It cannot be served under the identity that `spec` asks for.
pub fn again(before: &Settled, was: &UnitSpec, spec: &UnitSpec, place: &Place) -> Result<Settled, String> {
    let choice = |spec: &UnitSpec| spec.options.identity.unwrap_or(Choice::Own);
    // An image has only one.
    if choice(was) == choice(spec) || matches!(spec.backing, Backing::Rbd(_)) {
        return Ok(before.clone());
    }
    let derived = Names::derived(&seed(spec, place));
    let names = match (choice(spec), &spec.backing) {
        (Choice::Derived, _) => derived,
        (Choice::Own, Backing::Memory(_) | Backing::ObjectMemory(_)) if before.claim.is_none() => {
            random().map_err(|error| error.to_string())?
        }
        (Choice::Own, backing) => {
            let key = match backing {
                Backing::Path(path) if is_device(path) => Some(device_key(path)),
                Backing::Memory(_) | Backing::ObjectMemory(_) => Some(memory_key(place)),
                backing => backing.address(),
            };
            own(spec, key.as_deref(), &derived, &Carried::new()).map_err(Refusal::text)?
        }
    };
    Ok(Settled { names, ..before.clone() })
}

/// The reason why a unit has no names.
enum Refusal {
    /// The medium is not a raw disk.
    Medium(String),
    /// The record cannot be read, or cannot be kept.
    Record(String),
}

impl Refusal {
    fn text(self) -> String {
        match self {
            Self::Medium(why) | Self::Record(why) => why,
        }
    }
}

impl From<String> for Refusal {
    fn from(why: String) -> Self {
        Self::Record(why)
    }
}

/// Whether a medium looks like an image of another format, and what to do.
fn image(spec: &UnitSpec) -> Option<String> {
    match (&spec.backing, spec.options.format) {
        (Backing::Path(path), None) => image::mistaken(path, "write format=raw to serve it as it is"),
        _ => None,
    }
}

/// The names of a unit from its record, which is made if there is none.
fn own(spec: &UnitSpec, key: Option<&str>, derived: &Names, carried: &Carried) -> Result<Names, Refusal> {
    let medium = spec.backing.path().filter(|_| key.is_none()).map(fs::canonicalize).transpose();
    let medium = medium.map_err(|error| error.to_string())?;
    let home = home(&spec.backing, medium.as_deref(), key).map_err(|error| error.to_string())?;
    let origin = || medium.as_deref().map(Origin::of).transpose().map_err(|error| error.to_string());
    let now = origin()?;
    if let Some((kept, record)) = home.find()? {
        let names = record.names().ok_or_else(|| "its identity has no names".to_owned())?;
        match (record.origin(), &now) {
            (Some(of), Some(now)) if !of.is_same(now) && matches!(kept, Kept::State(_)) => {
                // It is known by its path alone, and another file is there now.
                tracing::info!(path = %now.path().display(), "another file than before: it gets an identity of its own");
            }
            (Some(of), Some(now)) => {
                admit(of, now)?;
                if of.path() != now.path() {
                    tracing::info!(from = %of.path().display(), to = %now.path().display(), naa = hex(&names.naa), "moved; it keeps its identity");
                    // The record of a read-only medium may stay as it is: its path is only for
                    // messages.
                    if let Err(why) = home.put(&kept, &record.moved_to(now.clone())) {
                        tracing::debug!(why, "its identity still names the old path");
                    }
                }
                return Ok(names);
            }
            _ => return Ok(names),
        }
    }
    let before = carried.contains(&derived.serial) || was_served(spec, medium.as_deref());
    // A medium that was served holds what its clients wrote: no check for images.
    if let (false, Some(why)) = (before, image(spec)) {
        return Err(Refusal::Medium(why));
    }
    let names = if before { derived.clone() } else { random().map_err(|error| error.to_string())? };
    let kept = home.keep(&Record::new(&names, now.clone())).map_err(|why| {
        format!("its identity can be kept nowhere ({why}). Or choose its names: serial and naa, or identity=derived")
    })?;
    // On overlayfs, setting the attribute copies the file up: it is another file then.
    let after = origin()?;
    if after != now {
        home.put(&kept, &Record::new(&names, after))?;
    }
    let naa = hex(&names.naa);
    let path = spec.backing.to_string();
    match before {
        true => tracing::warn!(
            path, naa, serial = names.serial, %kept,
            "it was served under names made from its path, and keeps them; `stag identity --new` gives it names of its own"
        ),
        false => tracing::info!(path, naa, serial = names.serial, %kept, "it has an identity of its own now"),
    }
    Ok(names)
}

/// Whether the file may go by the identity that was made for `of`.
fn admit(of: &Origin, now: &Origin) -> Result<(), String> {
    let path = now.path().display();
    // If the original is still there, this file is a copy. Only the path shows this for a snapshot
    // of the whole file system.
    let other = of.path() != now.path() && is_there(of, now.path());
    if of.is_same(now) && !other {
        return Ok(());
    }
    let advice = "two disks of one identity are one disk to initiators, which then destroy the data of both";
    Err(match other {
        true => format!(
            "it is a copy of {}, with its identity: {advice}. Give it one of its own: stag identity --new {path}",
            of.path().display()
        ),
        false => format!(
            "its identity was made for another file (last at {}), so it was copied, restored, or moved from another file system: \
             {advice}. If the other one is gone: stag identity --keep {path}; if not: stag identity --new {path}",
            of.path().display()
        ),
    })
}

/// Whether the file of `of` is still at its path, and is not the file at `now` by another name.
fn is_there(of: &Origin, now: &Path) -> bool {
    let number = |path: &Path| fs::metadata(path).map(|about| (about.dev(), about.ino())).ok();
    Origin::of(of.path()).is_ok_and(|there| there.is_same(of)) && number(of.path()) != number(now)
}

/// Whether a version that derived names has served it: it has left persistent reservations beside a
/// file, or a store of objects.
fn was_served(spec: &UnitSpec, medium: Option<&Path>) -> bool {
    match (&spec.backing, medium) {
        (Backing::Objects(_), Some(directory)) => is_store(directory),
        (Backing::Path(path), Some(_)) => beside(path, "reservations").exists(),
        _ => false,
    }
}

/// Whether a directory holds a whole store of objects.
pub fn is_store(directory: &Path) -> bool {
    ["arena", "metadata.redb"].iter().all(|file| directory.join(file).exists())
}

/// Creates the directory of a store of objects, with an identity in it, before the store. A store
/// without an identity is therefore of an older version.
///
/// # Errors
/// It cannot be created.
pub fn prepare_store(spec: &UnitSpec, carried: &Carried, place: &Place) -> Result<(), String> {
    let Backing::Objects(path) = &spec.backing else { return Ok(()) };
    let failed = |error: io::Error| format!("{} cannot be made: {error}", path.display());
    let is_empty = match fs::read_dir(path) {
        Ok(mut entries) => entries.all(|entry| entry.is_ok_and(|entry| entry.file_name() == UNFINISHED)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => true,
        Err(error) => return Err(failed(error)),
    };
    if is_empty {
        backing::new_directory(path).map_err(|error| error.to_string())?;
        embedded::begin(path).map_err(failed)?;
    }
    if spec.options.identity == Some(Choice::Derived) || !is_empty {
        return Ok(());
    }
    own(spec, None, &Names::derived(&seed(spec, place)), carried).map(|_| ()).map_err(Refusal::text)
}

/// Gives a newly made file an identity, which the caller makes durable together with the file. If
/// this fails, the unit gets one when it is opened.
pub fn mark_new(path: &Path, file: &File) {
    let mark = || -> io::Result<()> {
        let path = fs::canonicalize(path)?;
        record::set_attribute(file, &Record::new(&random()?, Some(Origin::of(&path)?)))
    };
    if let Err(error) = mark() {
        tracing::debug!(path = %path.display(), %error, "no identity yet");
    }
}

/// The configured names of a unit, and its own for those not configured.
pub fn names(said: &Options, own: Identity) -> Identity {
    Identity {
        vendor: said.vendor.clone().unwrap_or(own.vendor),
        product: said.product.clone().unwrap_or(own.product),
        revision: said.revision.clone().unwrap_or(own.revision),
        serial: said.serial.clone().unwrap_or(own.serial),
        naa: said.naa.clone().map_or(own.naa, |naa| naa.0),
    }
}

/// Names that are unique in the world.
fn random() -> io::Result<Names> {
    let mut bytes = [0; 16];
    getrandom::fill(&mut bytes).map_err(|error| io::Error::other(error.to_string()))?;
    Ok(Names::random(u128::from_be_bytes(bytes)))
}

/// Source of derived names: the path, another server's address, or for memory the target and
/// number.
fn seed(spec: &UnitSpec, (iqn, lun): &Place) -> String {
    match spec.backing.path() {
        Some(path) => fs::canonicalize(path).unwrap_or_else(|_| path.to_owned()).display().to_string(),
        None => spec.backing.address().unwrap_or_else(|| format!("{iqn}/{lun}")),
    }
}

/// Gives a memory unit that cannot have a lasting identity one for as long as it exists.
fn for_this_run(spec: &UnitSpec, place: &Place, derived: Names, why: &str) -> Settled {
    let names = match spec.options.identity {
        Some(Choice::Derived) => derived,
        Some(Choice::Own) | None => {
            let configured = spec.options.serial.is_some() && spec.options.naa.is_some();
            if !configured {
                tracing::warn!(
                    target_name = &*place.0,
                    lun = place.1,
                    why,
                    "this memory unit has another identity at the next start"
                );
            }
            random().unwrap_or(derived)
        }
    };
    Settled { names, reservations: None, sanitize: None, claim: None }
}

/// The places where a unit's record may be.
fn home(backing: &Backing, medium: Option<&Path>, key: Option<&str>) -> io::Result<Home> {
    let state = |key: &str| state::path("identities", key).map(Kept::State).map_err(io::Error::other);
    Ok(match (backing, medium) {
        (Backing::Objects(_), Some(directory)) => Home {
            file: Some(File::open(directory)?),
            places: vec![Kept::Beside(directory.join("identity"))],
        },
        (_, Some(path)) => {
            let mut places = vec![Kept::Attribute, Kept::Beside(beside(path, "identity"))];
            places.extend(state(&format!("file:{}", path.display())));
            Home { file: Some(File::open(path)?), places }
        }
        (_, None) => Home { file: None, places: vec![state(key.unwrap_or_default())?] },
    })
}

/// The default place of persistent reservations and the like: beside a file, in a store of objects,
/// else in the state directory. A file beside a device in /dev would not survive a restart.
fn kept_at(spec: &UnitSpec, key: Option<&str>, kind: &str) -> Option<PathBuf> {
    match &spec.backing {
        Backing::Objects(directory) => return Some(directory.join(kind)),
        Backing::Path(path) if key.is_none() || !path.starts_with("/dev") => {
            return Some(beside(path, kind));
        }
        _ => {}
    }
    let path = state::path(kind, key?).ok()?;
    state::make_folder(&path).is_ok().then_some(path)
}

/// The file beside `path` with this ending.
pub fn beside(path: &Path, ending: &str) -> PathBuf {
    let mut beside = path.as_os_str().to_owned();
    beside.push(".");
    beside.push(ending);
    beside.into()
}

/// Whether `path` names a block device.
pub fn is_device(path: &Path) -> bool {
    fs::metadata(path).is_ok_and(|about| about.file_type().is_block_device())
}

fn memory_key((iqn, lun): &Place) -> String {
    format!("{}{iqn}/{lun}", memory::PREFIX)
}

/// Key of a block device in the state directory. It does not depend on the device's name.
pub fn device_key(path: &Path) -> String {
    match block_device::stable_id(path) {
        Some(id) => format!("device:{id}"),
        None => {
            tracing::warn!(path = %path.display(), "the system knows no id of this device: its identity belongs to its path");
            format!("device:path:{}", path.display())
        }
    }
}
