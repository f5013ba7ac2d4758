//! An open RBD image: its exclusive lock from opening to closing, its metadata, and its I/O.
//! `either` documents the calls.

use std::ffi::{CStr, c_char, c_int, c_void};
use std::future::Future;
use std::io;
use std::mem::ManuallyDrop;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use runtime::{BufMut, Bytes, timeout};
use smallvec::SmallVec;

use crate::bound::{Bound, Permit, take};
use crate::client::Client;
use crate::connection::{Connection, Login, Pool, c_string, needed, plain, text};
use crate::error::Error;
use crate::header_lock;
use crate::layout::Layout;
use crate::library::{
    CLIENT, ConfigOption, EXCLUSIVE, FEATURE_FAST_DIFF, FEATURE_LOCK, FLAGS_INVALID, ImageInfo, Library,
    RbdImage, THICK, Watcher, library,
};
use crate::luks;
use crate::operation::{Vectors, call};
use crate::run::{Run, adds, differs};
use crate::unpinned;

/// How long a client without a connection counts as a living one: `osd_client_watch_timeout` is
/// 30 s, and the OSD looks every few seconds.
const WATCH: Duration = Duration::from_secs(40);
/// Time for an image to be opened, besides waiting for a lock.
const OPEN: Duration = Duration::from_secs(60);
/// Time for a thread that is no core to wait for the end of closing.
const CLOSE: Duration = Duration::from_secs(10);
/// Interval between two looks at a lock.
const LOOK: Duration = Duration::from_millis(250);
/// Bytes in flight to one image. librbd itself would hold 100 MiB, and block its caller then.
const IN_FLIGHT: u64 = 64 << 20;
/// The least bytes that an operation on an object counts as, since librbd bounds their number too:
/// 1,024.
const LEAST: u64 = IN_FLIGHT / 1024;

/// Which image to open.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Source {
    pub login: Login,
    pub pool: String,
    pub namespace: Option<String>,
    pub image: String,
    pub snapshot: Option<String>,
    pub read_only: bool,
    /// The file with the passphrase of an image that is encrypted with LUKS.
    pub key_file: Option<PathBuf>,
    /// How long an operation may take. After that it ends with ETIMEDOUT, and may still be carried
    /// out. One that has waited so long for its turn is not carried out: `ErrorKind::ResourceBusy`.
    pub op_timeout: Duration,
    /// The image as it was opened before. Another one that has its name now is not opened, and its
    /// lock neither taken nor broken.
    pub known: Option<About>,
}

/// What an image is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct About {
    /// The cluster's id.
    pub fsid: String,
    pub pool_id: i64,
    /// The image's id, unique in its pool; a new image of an old name has another one.
    pub id: String,
    pub snapshot_id: Option<u64>,
    /// Bytes, when it was opened.
    pub size: u64,
    /// Bytes of one object, in which space is given back.
    pub object_size: u64,
    /// Whether the image knows which of its objects there are.
    pub fast_diff: bool,
    /// Whether reads and writes are decrypted and encrypted. Such an image gives no space back.
    pub encrypted: bool,
}

/// Called on a thread of librbd's after the image's header has changed: perhaps its size. Must not
/// wait.
pub type Changed = Arc<dyn Fn() + Send + Sync>;

/// An open image. Clones share it; the last one closes it.
#[derive(Clone)]
pub struct Image(Arc<Opened>);

struct Opened {
    handle: Handle,
    about: About,
    layout: Layout,
    address: String,
    op_timeout: Duration,
    bound: Bound,
}

/// A connection for the next instance of an image, made while the one before is kept from the
/// cluster.
pub struct Successor {
    source: Source,
    connection: Arc<Connection>,
}

/// An open `rbd_image_t`, which closes when it is dropped: on a thread, since that may take time.
struct Handle {
    library: &'static Library,
    image: RbdImage,
    locked: AtomicBool,
    /// librbd's number of who hears of changes, and its argument, which the image owns.
    watch: Option<(u64, *mut Changed)>,
    /// Outlives the image.
    pool: ManuallyDrop<Pool>,
}

// SAFETY: librbd allows calls from any thread, several at a time.
unsafe impl Send for Handle {}
// SAFETY: as above.
unsafe impl Sync for Handle {}

impl Image {
    pub fn open(source: &Source, changed: Changed) -> Result<Self, Error> {
        let (library, source) = (library()?, source.clone());
        open_within(move || {
            let connection = Connection::open(library, &source.login, Some(source.op_timeout))?;
            Opened::open(connection.into(), &source, changed, true)
        })
    }

    pub fn open_unlocked(client: &Client, source: &Source, changed: Changed) -> Result<Self, Error> {
        let (connection, source) = (client.0.clone(), source.clone());
        open_within(move || Opened::open(connection, &source, changed, false))
    }

    pub fn lock_owner(&self) -> Result<Option<String>, Error> {
        self.0.handle.owner()
    }

    pub fn lock(&self) -> Result<bool, Error> {
        self.0.handle.lock()
    }

    pub fn break_lock(&self, owner: &str) -> Result<bool, Error> {
        self.0.handle.break_lock(owner)
    }

    pub fn break_fenced_lock(&self, owner: &str) -> Result<(), Error> {
        let header = c_string(&format!("rbd_header.{}", self.0.about.id))?;
        header_lock::remove(&self.0.handle.pool, &header, owner)
    }

    pub fn release_lock(&self) -> Result<(), Error> {
        self.0.handle.release_lock()
    }

    pub fn about(&self) -> &About {
        &self.0.about
    }

    pub fn address(&self) -> &str {
        &self.0.address
    }

    pub async fn read(
        &self,
        at: u64,
        memory: SmallVec<[BufMut; 2]>,
    ) -> io::Result<(usize, SmallVec<[BufMut; 2]>)> {
        let bytes = memory.iter().map(BufMut::len).sum::<usize>() as u64;
        let (library, image) = self.parts();
        let permit = self.permit(self.0.layout.objects(at, bytes), bytes).await?;
        call(library, permit, self.0.op_timeout, memory, |vectors, memory, completion| {
            let vector =
                |buf: &mut BufMut| libc::iovec { iov_base: buf.as_mut_ptr().cast(), iov_len: buf.len() };
            vectors.extend(memory.iter_mut().map(vector));
            // SAFETY: the vectors and the buffers that they name live until the completion.
            unsafe { (library.rbd_aio_readv)(image, vectors.as_ptr(), count(vectors), at, completion) }
        })
        .await
    }

    pub async fn write(&self, at: u64, memory: SmallVec<[Bytes; 2]>) -> io::Result<()> {
        let bytes = memory.iter().map(|piece| piece.len()).sum::<usize>() as u64;
        let (library, image) = self.parts();
        let permit = self.permit(self.0.layout.objects(at, bytes), bytes).await?;
        call(library, permit, self.0.op_timeout, memory, |vectors, memory, completion| {
            let vector = |piece: &Bytes| libc::iovec {
                iov_base: piece.as_ptr().cast_mut().cast(),
                iov_len: piece.len(),
            };
            vectors.extend(memory.iter().map(vector));
            // SAFETY: the vectors and the bytes that they name live until the completion; librbd
            // does not write to them.
            unsafe { (library.rbd_aio_writev)(image, vectors.as_ptr(), count(vectors), at, completion) }
        })
        .await
        .map(drop)
    }

    pub async fn write_zeros(&self, at: u64, len: u64, take_room: bool) -> io::Result<()> {
        let (library, image) = self.parts();
        let flags = if take_room { THICK } else { 0 };
        // Zeros that take room are sent as data.
        let bytes = if take_room { len } else { 0 };
        let permit = self.permit(self.0.layout.objects(at, len), bytes).await?;
        call(library, permit, self.0.op_timeout, (), |_, (), completion| {
            // SAFETY: it takes numbers.
            unsafe { (library.rbd_aio_write_zeroes)(image, at, len as usize, completion, flags, 0) }
        })
        .await
        .map(drop)
    }

    pub async fn flush(&self) -> io::Result<()> {
        let (library, image) = self.parts();
        let permit = self.permit(1, 0).await?;
        call(library, permit, self.0.op_timeout, (), |_, (), completion| {
            // SAFETY: it takes nothing else.
            unsafe { (library.rbd_aio_flush)(image, completion) }
        })
        .await
        .map(drop)
    }

    pub fn size(&self) -> Result<u64, Error> {
        let ((library, image), mut size) = (self.parts(), 0);
        // SAFETY: it fills the number.
        let code = unsafe { (library.rbd_get_size)(image, &raw mut size) };
        Error::check(code, || "the image's size cannot be read".into()).map(|_| size)
    }

    pub async fn run_of_objects(&self, at: u64, len: u64) -> io::Result<(u64, bool)> {
        // Without a thread, if it never knows.
        if !self.0.about.fast_diff {
            return Ok((len, true));
        }
        let this = self.clone();
        let run = unpinned::run_beside(self.0.op_timeout, move || this.run_of_objects_now(at, len)).await?;
        run.map_err(io::Error::from_raw_os_error)
    }

    /// Whether the image knows which of its objects there are. Without its map librbd would ask for
    /// each object.
    fn knows_objects(&self) -> Result<bool, i32> {
        let ((library, image), mut flags, mut features) = (self.parts(), 0, 0);
        // SAFETY: they fill the numbers.
        let code = unsafe {
            match (library.rbd_get_features)(image, &raw mut features) {
                0.. => (library.rbd_get_flags)(image, &raw mut flags),
                code => code,
            }
        };
        // The feature may have been disabled since.
        let has_map = self.0.about.fast_diff && features & FEATURE_FAST_DIFF != 0;
        if code < 0 { Err(code.saturating_neg()) } else { Ok(has_map && flags & FLAGS_INVALID == 0) }
    }

    pub fn used(&self) -> Result<Option<u64>, Error> {
        let error = |errno| Error::Call { what: "the image's objects cannot be counted".into(), errno };
        if !self.knows_objects().map_err(error)? {
            return Ok(None);
        }
        let ((library, image), mut used) = (self.parts(), 0u64);
        // SAFETY: the callback has this argument, and is not called after the return. Null stands
        // for the beginning of time.
        let code = unsafe {
            let argument = (&raw mut used).cast();
            (library.rbd_diff_iterate2)(image, std::ptr::null(), 0, self.size()?, 0, 1, adds, argument)
        };
        if code < 0 { Err(error(code.saturating_neg())) } else { Ok(Some(used)) }
    }

    pub fn data_pool(&self) -> i64 {
        let (library, image) = self.parts();
        // SAFETY: the image is open.
        match unsafe { (library.rbd_get_data_pool_id)(image) } {
            pool @ 0.. => pool,
            _ => self.0.about.pool_id,
        }
    }

    pub fn space_of_pools(&self) -> Result<String, Error> {
        let command = c"{\"prefix\": \"df\", \"detail\": \"detail\", \"format\": \"json\"}";
        self.0.handle.pool.connection.ask_monitors(command)
    }

    fn run_of_objects_now(&self, at: u64, len: u64) -> Result<(u64, bool), i32> {
        if !self.knows_objects()? {
            return Ok((len, true));
        }
        let ((library, image), mut run) = (self.parts(), Run::new(at, len));
        // SAFETY: the callback has this argument, and is not called after the return. Null stands
        // for the beginning of time.
        let code = unsafe {
            let argument = (&raw mut run).cast();
            (library.rbd_diff_iterate2)(image, std::ptr::null(), at, len, 1, 1, differs, argument)
        };
        match code {
            0.. => Ok(run.result()),
            _ if run.ended => Ok(run.result()),
            _ => Err(code.saturating_neg()),
        }
    }

    pub fn metadata(&self, key: &str, max: usize) -> Result<Option<String>, Error> {
        let (this, c_key) = (self.clone(), c_string(key)?);
        let (code, value) = unpinned::run("reading the image's metadata", OPEN, move || {
            let mut value = vec![0u8; max + 1];
            let mut len = value.len();
            let (library, image) = this.parts();
            // SAFETY: the key ends with a zero, and the length is the buffer's.
            let code = unsafe {
                (library.rbd_metadata_get)(image, c_key.as_ptr(), value.as_mut_ptr().cast(), &raw mut len)
            };
            (code, value)
        })?;
        if code == -libc::ENOENT {
            return Ok(None);
        }
        Error::check(code, || format!("the image's metadata {key} cannot be read"))?;
        Ok(Some(text(&value)))
    }

    pub fn set_metadata(&self, key: &str, value: &str) -> impl Future<Output = io::Result<()>> + use<> {
        let (this, named) = (self.clone(), c_string(key).and_then(|key| Ok((key, c_string(value)?))));
        let limit = self.0.op_timeout;
        async move {
            let Ok((key, value)) = named else { return Err(io::ErrorKind::InvalidInput.into()) };
            let set = move || {
                let (library, image) = this.parts();
                // SAFETY: both end with zeros.
                unsafe { (library.rbd_metadata_set)(image, key.as_ptr(), value.as_ptr()) }
            };
            let code = if runtime::is_running() { unpinned::run_beside(limit, set).await? } else { set() };
            if code < 0 { Err(io::Error::from_raw_os_error(code.saturating_neg())) } else { Ok(()) }
        }
    }

    /// Waits until a call may become so many operations on objects, with so many bytes. One that
    /// becomes more than librbd takes waits until it is alone.
    async fn permit(&self, operations: u64, bytes: u64) -> io::Result<Permit<Self>> {
        let late = |_| io::ErrorKind::ResourceBusy.into();
        let bytes = bytes.max(operations.max(1).saturating_mul(LEAST));
        timeout(self.0.op_timeout, take(self.clone(), bytes)).await.map_err(late)
    }

    fn parts(&self) -> (&'static Library, RbdImage) {
        (self.0.handle.library, self.0.handle.image)
    }
}

impl AsRef<Bound> for Image {
    fn as_ref(&self) -> &Bound {
        &self.0.bound
    }
}

/// librbd's callback after a change of the header.
///
/// # Safety
/// `argument` is the [`Changed`] of an image that has not been unwatched.
unsafe extern "C" fn updated(argument: *mut c_void) {
    // SAFETY: the caller's.
    unsafe { (*argument.cast::<Changed>())() };
}

fn count(vectors: &Vectors) -> c_int {
    vectors.len() as c_int
}

impl Successor {
    /// Connects to the cluster, and keeps the instance at the address `before` from it: nothing
    /// that it has sent is carried out after the first operation of the successor on the same
    /// object.
    /// Blocks. Needs the monitors, and no OSD.
    ///
    /// # Errors
    /// An [`Error`]: the instance before may still write.
    pub fn to(before: &str, source: &Source) -> Result<Self, Error> {
        let connection = Connection::open(library()?, &source.login, Some(source.op_timeout))?;
        connection.fence(before)?;
        Ok(Self { source: source.clone(), connection: connection.into() })
    }

    /// [`Image::open`] by this connection.
    ///
    /// # Errors
    /// As there.
    pub fn open(self, changed: Changed) -> Result<Image, Error> {
        open_within(move || Opened::open(self.connection, &self.source, changed, true))
    }
}

fn open_within(open: impl FnOnce() -> Result<Opened, Error> + Send + 'static) -> Result<Image, Error> {
    unpinned::run("opening the image", OPEN + WATCH, open)?.map(|open| Image(Arc::new(open)))
}

impl Opened {
    /// Blocks.
    fn open(
        connection: Arc<Connection>,
        source: &Source,
        changed: Changed,
        lock: bool,
    ) -> Result<Self, Error> {
        let address = connection.address()?;
        let pool = Pool::open(connection, &source.pool, source.namespace.as_deref())?;
        let mut handle = Handle::open(pool, source)?;
        // Before the lock is taken, and perhaps broken.
        handle.check_identity(source)?;
        handle.check_settings(source)?;
        if !source.read_only && source.snapshot.is_none() {
            if handle.features()? & FEATURE_LOCK == 0 {
                return Err(Error::NoLock);
            }
            if lock {
                handle.wait_for_lock()?;
            }
        }
        if let Some(key_file) = &source.key_file {
            luks::decrypt(handle.library, handle.image, key_file)?;
        }
        handle.watch(changed)?;
        let about = handle.about(source)?;
        let layout = handle.layout(about.object_size)?;
        let bound = Bound::new(IN_FLIGHT);
        Ok(Self { handle, about, layout, address, op_timeout: source.op_timeout, bound })
    }
}

impl Handle {
    fn open(pool: Pool, source: &Source) -> Result<Self, Error> {
        let library = pool.connection.library;
        let (name, snapshot) =
            (c_string(&source.image)?, source.snapshot.as_deref().map(c_string).transpose()?);
        let open = match source.read_only || snapshot.is_some() {
            true => library.rbd_open_read_only,
            false => library.rbd_open,
        };
        let snapshot = snapshot.as_ref().map_or(std::ptr::null(), |name| name.as_ptr());
        let mut image = std::ptr::null_mut();
        // SAFETY: the names end with zeros, or null says that there is none.
        let opened = unsafe { open(pool.handle, name.as_ptr(), &raw mut image, snapshot) };
        Error::check(opened, || {
            let at = source.snapshot.as_ref().map_or(String::new(), |name| format!("@{name}"));
            format!("image {}{at} of pool {} cannot be opened", source.image, source.pool)
        })?;
        Ok(Self {
            library,
            image,
            locked: AtomicBool::new(false),
            watch: None,
            pool: ManuallyDrop::new(pool),
        })
    }

    fn about(&self, source: &Source) -> Result<About, Error> {
        let mut info = ImageInfo::EMPTY;
        // SAFETY: the size is the structure's.
        let code = unsafe { (self.library.rbd_stat)(self.image, &raw mut info, size_of::<ImageInfo>()) };
        Error::check(code, || "the image's size cannot be read".into())?;
        let snapshot_id = match &source.snapshot {
            None => None,
            Some(name) => {
                let (c_name, mut number) = (c_string(name)?, 0);
                // SAFETY: the name ends with a zero.
                let code =
                    unsafe { (self.library.rbd_snap_get_id)(self.image, c_name.as_ptr(), &raw mut number) };
                Error::check(code, || format!("the image has no snapshot {name}"))?;
                Some(number)
            }
        };
        Ok(About {
            fsid: self.pool.connection.fsid()?,
            pool_id: self.pool.id(),
            id: self.id()?,
            snapshot_id,
            size: info.size,
            object_size: info.object_size,
            // Objects of an encrypted image are not those of what is in it.
            fast_diff: source.key_file.is_none() && self.features()? & FEATURE_FAST_DIFF != 0,
            encrypted: source.key_file.is_some(),
        })
    }

    fn layout(&self, object: u64) -> Result<Layout, Error> {
        let (mut stripe_unit, mut stripe_count) = (0, 0);
        // SAFETY: they fill the numbers.
        let code = unsafe {
            match (self.library.rbd_get_stripe_unit)(self.image, &raw mut stripe_unit) {
                0.. => (self.library.rbd_get_stripe_count)(self.image, &raw mut stripe_count),
                code => code,
            }
        };
        Error::check(code, || "the image's stripes cannot be read".into())?;
        Ok(Layout { object, stripe_unit, stripe_count })
    }

    fn features(&self) -> Result<u64, Error> {
        let mut features = 0;
        // SAFETY: it fills the number.
        let code = unsafe { (self.library.rbd_get_features)(self.image, &raw mut features) };
        Error::check(code, || "the image's features cannot be read".into()).map(|_| features)
    }

    fn id(&self) -> Result<String, Error> {
        let mut id = [0u8; 256];
        // SAFETY: the length is the buffer's.
        let code = unsafe { (self.library.rbd_get_id)(self.image, id.as_mut_ptr().cast(), id.len()) };
        Error::check(code, || "the image has no id (format 1 is not served)".into())?;
        Ok(text(&id))
    }

    /// Checks that it is the image that was opened before.
    fn check_identity(&self, source: &Source) -> Result<(), Error> {
        let Some(About { fsid, pool_id, id, .. }) = &source.known else { return Ok(()) };
        let is_same =
            *fsid == self.pool.connection.fsid()? && *pool_id == self.pool.id() && *id == self.id()?;
        if is_same { Ok(()) } else { Err(Error::Another) }
    }

    /// Checks that librbd took no setting from the image or its pool that this client must not
    /// have.
    fn check_settings(&self, source: &Source) -> Result<(), Error> {
        let mut options = vec![ConfigOption::EMPTY; 128];
        loop {
            let mut count = options.len() as c_int;
            // SAFETY: the list has room for so many.
            let code = unsafe {
                (self.library.rbd_config_image_list)(self.image, options.as_mut_ptr(), &raw mut count)
            };
            let found = usize::try_from(count).unwrap_or(0);
            if code == -libc::ERANGE && found > options.len() {
                options.resize(found, ConfigOption::EMPTY);
                continue;
            }
            Error::check(code, || "the image's settings cannot be read".into())?;
            // SAFETY: they are strings that librbd has allocated.
            let string = |text: *mut c_char| unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned();
            let others = options.iter().take(found).filter(|option| option.source != CLIENT);
            let wrong = others
                .map(|option| (string(option.name), string(option.value)))
                .find_map(|(name, value)| needed(&name, &value).map(|needed| (name, value, needed)));
            // SAFETY: it frees what the call before has filled.
            unsafe { (self.library.rbd_config_image_list_cleanup)(options.as_mut_ptr(), count) };
            return match wrong {
                None => Ok(()),
                Some((name, found, needed)) => {
                    let namespace = source.namespace.iter().map(|namespace| format!("{namespace}/"));
                    let image = format!("{}/{}{}", source.pool, namespace.collect::<String>(), source.image);
                    Err(Error::Setting { image, name, found, needed })
                }
            };
        }
    }

    /// Has `changed` called from now on.
    fn watch(&mut self, changed: Changed) -> Result<(), Error> {
        let (mut number, argument) = (0, Box::into_raw(Box::new(changed)));
        // SAFETY: librbd calls with this argument until it is unwatched, and it lives until then.
        let code =
            unsafe { (self.library.rbd_update_watch)(self.image, &raw mut number, updated, argument.cast()) };
        if code < 0 {
            // SAFETY: it came from a box, and librbd has not taken it.
            drop(unsafe { Box::from_raw(argument) });
        } else {
            self.watch = Some((number, argument));
        }
        Error::check(code, || "the image's changes cannot be watched".into()).map(drop)
    }

    /// Takes the lock as soon as its owner is dead.
    fn wait_for_lock(&self) -> Result<(), Error> {
        let end = Instant::now() + WATCH;
        let mut told = false;
        // Taking the lock asks an owner that lives for it, and a virtual machine would give it.
        while let Some(owner) = self.owner()? {
            if !self.is_watching(&owner)? {
                tracing::warn!(owner, "the owner of the image's lock is dead: its lock is broken");
                break;
            }
            if Instant::now() >= end {
                return Err(Error::Held { owner });
            }
            if !std::mem::replace(&mut told, true) {
                let seconds = WATCH.as_secs();
                tracing::warn!(
                    owner,
                    seconds,
                    "another client has the image's lock: waiting so long for its end"
                );
            }
            std::thread::sleep(LOOK);
        }
        match self.lock()? {
            true => Ok(()),
            false => Err(match self.owner()? {
                Some(owner) => Error::Held { owner },
                None => Error::Call {
                    what: "the image cannot be locked (is it the primary one of a mirror?)".into(),
                    errno: libc::EROFS,
                },
            }),
        }
    }

    /// Takes the lock, so that librbd does not give it away when another client asks. Returns false
    /// if another client has it.
    fn lock(&self) -> Result<bool, Error> {
        // SAFETY: the image is open. librbd breaks a lock whose owner does not watch the image.
        let code = unsafe { (self.library.rbd_lock_acquire)(self.image, EXCLUSIVE) };
        if code == -libc::EROFS {
            return Ok(false);
        }
        Error::check(code, || "the image's exclusive lock cannot be taken".into())?;
        self.locked.store(true, Ordering::Release);
        Ok(true)
    }

    fn break_lock(&self, owner: &str) -> Result<bool, Error> {
        let Some(found) = self.owner()?.filter(|found| plain(found) == plain(owner)) else {
            return Ok(false);
        };
        let c_found = c_string(&found)?;
        // SAFETY: the owner ends with a zero.
        let code = unsafe { (self.library.rbd_lock_break)(self.image, EXCLUSIVE, c_found.as_ptr()) };
        // Nobody has it now, or another client.
        if [-libc::ENOENT, -libc::EBUSY].contains(&code) {
            return Ok(false);
        }
        Error::check(code, || format!("the image's exclusive lock of {found} cannot be broken"))?;
        Ok(true)
    }

    fn release_lock(&self) -> Result<(), Error> {
        if self.locked.load(Ordering::Acquire) {
            // SAFETY: the image is open.
            let code = unsafe { (self.library.rbd_lock_release)(self.image) };
            Error::check(code, || "the image's exclusive lock cannot be released".into())?;
            self.locked.store(false, Ordering::Release);
        }
        Ok(())
    }

    /// The address of the client that has the lock.
    fn owner(&self) -> Result<Option<String>, Error> {
        let (mut mode, mut count) = (0, 1);
        let mut owners: [*mut c_char; 1] = [std::ptr::null_mut()];
        // SAFETY: the list has room for so many.
        let code = unsafe {
            (self.library.rbd_lock_get_owners)(self.image, &raw mut mode, owners.as_mut_ptr(), &raw mut count)
        };
        if code == -libc::ENOENT {
            return Ok(None);
        }
        Error::check(code, || "the owner of the image's lock cannot be read".into())?;
        let owner = owners.iter().take(count).find(|owner| !owner.is_null()).map(|owner| {
            // SAFETY: it is a string that librbd has allocated.
            unsafe { CStr::from_ptr(*owner) }.to_string_lossy().into_owned()
        });
        // SAFETY: it frees what the call before has filled.
        unsafe { (self.library.rbd_lock_get_owners_cleanup)(owners.as_mut_ptr(), count) };
        Ok(owner)
    }

    /// Whether a client watches the image: it lives, or has died less than half a minute ago.
    fn is_watching(&self, client: &str) -> Result<bool, Error> {
        let mut watchers = vec![Watcher::EMPTY; 16];
        loop {
            let mut count = watchers.len();
            // SAFETY: the list has room for so many.
            let code = unsafe {
                (self.library.rbd_watchers_list)(self.image, watchers.as_mut_ptr(), &raw mut count)
            };
            if code == -libc::ERANGE && count > watchers.len() {
                watchers.resize(count, Watcher::EMPTY);
                continue;
            }
            Error::check(code, || "the image's watchers cannot be read".into())?;
            let found = watchers.iter().take(count).any(|watcher| {
                // SAFETY: it is a string that librbd has allocated.
                let address = unsafe { CStr::from_ptr(watcher.address) }.to_string_lossy();
                plain(&address) == plain(client)
            });
            // SAFETY: it frees what the call before has filled.
            unsafe { (self.library.rbd_watchers_list_cleanup)(watchers.as_mut_ptr(), count) };
            return Ok(found);
        }
    }

    /// Closes it. Blocks; with OSDs that do not answer, for ever.
    fn close(self) {
        let mut this = ManuallyDrop::new(self);
        // SAFETY: nothing uses the image afterwards, and the pool is dropped once, after it.
        unsafe {
            if let Some((number, argument)) = this.watch.take() {
                // It waits for callbacks under way.
                (this.library.rbd_update_unwatch)(this.image, number);
                drop(Box::from_raw(argument));
            }
            if this.locked.load(Ordering::Acquire) {
                (this.library.rbd_lock_release)(this.image);
            }
            (this.library.rbd_close)(this.image);
            ManuallyDrop::drop(&mut this.pool);
        }
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        let (library, image, watch) = (self.library, self.image, self.watch);
        let locked = AtomicBool::new(self.locked.load(Ordering::Acquire));
        // SAFETY: the pool is taken once.
        let pool = ManuallyDrop::new(unsafe { ManuallyDrop::take(&mut self.pool) });
        let closing = ManuallyDrop::new(Self { library, image, locked, watch, pool });
        let close = move || ManuallyDrop::into_inner(closing).close();
        if runtime::is_running() {
            unpinned::start_surely("closing an image", close);
        } else if let Err(error) = unpinned::run("closing the image", CLOSE, close) {
            tracing::warn!(%error, "an image stays open until the process ends");
        }
    }
}
