//! Opening a folder: detects the process's privileges and the file system's features.

use std::fs::DirBuilder;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use backing::Health;
use runtime::FileHandle;
use rustix::fs::{FlockOperation, Mode, OFlags};
use rustix::io::Errno;
use rustix::process::Resource;
use rustix::thread::CapabilitySet;
use tree::{Caller, Time, TreeError, TreeLimits};

use crate::base::Base;
use crate::cache::Cache;
use crate::durable::Durability;
use crate::ids::Ids;
use crate::locator::{By, Locator};
use crate::names::Names;
use crate::node::{Descriptors, Node};
use crate::permit::Permit;
use crate::seal::{self, Seal};
use crate::stat::{Changes, Stat};
use crate::table::Table;

const EXT4: u64 = 0xef53;
const XFS: u64 = 0x5846_5342;
const BTRFS: u64 = 0x9123_683e;
const TMPFS: u64 = 0x0102_1994;
const F2FS: u64 = 0xf2f5_2010;
const BCACHEFS: u64 = 0xca45_1a4e;
const OVERLAY: u64 = 0x794c_7630;

/// Time that another process has to release the state directory, and the interval of attempts.
const PATIENCE: Duration = Duration::from_secs(3);
const PAUSE: Duration = Duration::from_millis(10);

/// Options of a folder.
#[derive(Clone, Debug)]
pub struct Options {
    /// A directory for the folder's persistent state, for it alone and outside of it. It is created
    /// if missing. If it is lost, existing ids of files become invalid.
    pub state: PathBuf,
    /// Answer before changes are on the medium. A crash of the machine then loses changes that
    /// clients think safe.
    pub asynchronous: bool,
    /// Serve all callers as the process's own user, even if the process could act as each of them.
    pub as_itself: bool,
    /// Most descriptors to use; `None` uses half of the process's limit.
    pub descriptors: Option<usize>,
}

impl Options {
    /// The usual, with this state directory.
    pub fn new(state: impl Into<PathBuf>) -> Self {
        Self { state: state.into(), asynchronous: false, as_itself: false, descriptors: None }
    }
}

/// Error of opening a folder.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// The folder itself.
    #[error("{path}: the folder cannot be opened: {error}", path = path.display())]
    Folder {
        /// Its path.
        path: PathBuf,
        /// Why.
        error: io::Error,
    },
    /// Its state directory.
    #[error("{path}: the state directory cannot be used: {error}", path = path.display())]
    State {
        /// Its path.
        path: PathBuf,
        /// Why.
        error: io::Error,
    },
    /// Another process serves the folder.
    #[error("{path}: another process exports this folder: end it, or export another one", path = .0.display())]
    InUse(PathBuf),
    /// Clients could read the key.
    #[error("{path}: the state directory lies in the folder: choose one outside", path = .0.display())]
    StateInside(PathBuf),
    /// There is no procfs.
    #[error("/proc/self/fd cannot be opened: mount /proc: {0}")]
    NoProc(io::Error),
}

/// Locks the state directory for this process, as long as the descriptor is open. `None`: another
/// process holds it. A process that was killed may hold it for a moment.
fn hold(state: &Path) -> io::Result<Option<OwnedFd>> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let directory = rustix::fs::open(state, flags, Mode::empty())?;
    let deadline = Instant::now() + PATIENCE;
    loop {
        match rustix::fs::flock(&directory, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => return Ok(Some(directory)),
            Err(Errno::WOULDBLOCK) if Instant::now() < deadline => std::thread::sleep(PAUSE),
            Err(Errno::WOULDBLOCK) => return Ok(None),
            Err(Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
}

/// Opens a folder.
pub(crate) fn open(path: &Path, options: &Options) -> Result<Arc<Base>, OpenError> {
    let of_folder = |error: io::Error| OpenError::Folder { path: path.to_owned(), error };
    let of_state = |error: io::Error| OpenError::State { path: options.state.clone(), error };
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let root = rustix::fs::open(path, flags, Mode::empty()).map_err(|errno| of_folder(errno.into()))?;
    let stat = Stat::of(root.as_fd()).map_err(|error| of_folder(as_io(error)))?;

    DirBuilder::new().recursive(true).mode(0o700).create(&options.state).map_err(of_state)?;
    let state = options.state.canonicalize().map_err(of_state)?;
    if state.starts_with(path.canonicalize().map_err(of_folder)?) {
        return Err(OpenError::StateInside(state));
    }
    let held = hold(&state).map_err(of_state)?.ok_or_else(|| OpenError::InUse(path.to_owned()))?;
    let seal = Seal::load(&state.join("key")).map_err(of_state)?;

    let kind = rustix::fs::fstatfs(&root).map_or(0, |fs| fs.f_type as u64);
    let is_local = [EXT4, XFS, BTRFS, TMPFS, F2FS, BCACHEFS, OVERLAY].contains(&kind);
    let as_caller = !options.as_itself && can_act_as_others();
    let by = if as_caller && !is_confined() && has_handles(root.as_fd()) {
        By::Handles(is_local.then(Box::<Ids>::default))
    } else {
        By::Table(Mutex::new(Table::load(&state.join("places"), seal).map_err(of_state)?))
    };
    let by_handle = matches!(by, By::Handles(_));
    let locator = Locator { seal, by, root: (stat.device(), stat.inode()) };
    let id = locator.id(root.as_fd(), c"", &stat).map_err(|error| of_folder(as_io(error)))?;
    let root_path =
        rustix::fs::openat(&root, ".", OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())
            .map_err(|errno| of_folder(errno.into()))?;

    let own = (!as_caller).then(own_user).transpose().map_err(of_folder)?;
    let permit = Permit {
        // Without its capabilities the super-user has fewer permissions than the mode check
        // assumes.
        by_mode: is_local && own.as_ref().is_none_or(|own| own.uid != 0 || has_capabilities()),
        own,
        lists: supports(root.as_fd(), c"system.posix_acl_access"),
    };
    let limits = TreeLimits {
        file_size: i64::MAX as u64,
        name: 255,
        links: match kind {
            EXT4 => 65_000,
            BTRFS => 65_535,
            XFS => i32::MAX as u32,
            _ => 32_000,
        },
        time: Time { seconds: 0, nanoseconds: 1 },
        extended_attributes: supports(root.as_fd(), c"user.stag"),
    };
    let health = Health::new(path.display().to_string());
    let durability = Durability::new(health, options.asynchronous).map_err(of_state)?;
    let descriptors = Descriptors::open(root).map_err(OpenError::NoProc)?;
    let allowed = rustix::process::getrlimit(Resource::Nofile).current.unwrap_or(1 << 20);
    let most = options.descriptors.unwrap_or(usize::try_from(allowed / 2).unwrap_or(usize::MAX));

    if let Some(own) = &permit.own {
        tracing::warn!(path = %path.display(), uid = own.uid, "every caller of this folder acts as this user");
    }
    tracing::info!(path = %path.display(), as_caller, by_handle, "a folder is open");
    Ok(Arc::new_cyclic(|me| Base {
        me: me.clone(),
        _held: held,
        path: path.to_owned(),
        root: Node::new(id, &stat, None, root_path),
        descriptors,
        locator,
        // A file may need one for its name, one to be read, and one to be written.
        cache: Cache::new(most / 3),
        names: Names::default(),
        changes: Changes::default(),
        permit,
        durability,
        limits,
        is_local,
        in_memory: kind == TMPFS,
        patience: Default::default(),
    }))
}

fn as_io(error: TreeError) -> io::Error {
    io::Error::other(error)
}

/// Whether this process can act as any user.
fn can_act_as_others() -> bool {
    rustix::process::geteuid().is_root() && has_capabilities()
}

/// Whether this process has the capabilities of the super-user that files need.
fn has_capabilities() -> bool {
    let needed = CapabilitySet::CHOWN
        | CapabilitySet::DAC_OVERRIDE
        | CapabilitySet::DAC_READ_SEARCH
        | CapabilitySet::FOWNER
        | CapabilitySet::FSETID
        | CapabilitySet::SETGID
        | CapabilitySet::SETUID;
    rustix::thread::capabilities(None).is_ok_and(|sets| sets.effective.contains(needed))
}

/// The process's own user and groups.
fn own_user() -> io::Result<Caller> {
    let groups: Vec<u32> = rustix::process::getgroups()?.into_iter().map(|group| group.as_raw()).collect();
    let (uid, gid) = (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw());
    Ok(Caller { uid, gid, groups: groups.into() })
}

/// Whether files can be opened by handles that fit an id. In a user namespace only handles of
/// directories can be opened, which O_DIRECTORY would hide.
fn has_handles(root: BorrowedFd<'_>) -> bool {
    FileHandle::of(root, c"").is_ok_and(|handle| {
        handle.bytes().len() < seal::MOST
            && (1..=0xff).contains(&handle.kind())
            && handle.open(root, libc::O_PATH).is_ok()
    })
}

/// Whether Landlock keeps this process from parts of the host. Landlock decides by a file's path. A
/// file that was opened by its handle has no path as long as the names above it are not cached, and
/// so cannot be read.
fn is_confined() -> bool {
    let opened = rustix::fs::open("/", OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty());
    matches!(opened, Err(Errno::ACCESS))
}

/// Whether the file system has extended attributes like this one.
fn supports(root: BorrowedFd<'_>, name: &std::ffi::CStr) -> bool {
    !matches!(rustix::fs::fgetxattr_query(root, name), Err(Errno::OPNOTSUPP))
}
