//! The instance of an image that is in service: a connection of its own, the open image, its lock.
//! Owns its replacement, and the meaning of librbd's errors. Never waits on a core.
//!
//! In a group of gateways the instance is the group's, which replaces it after the life that it
//! belongs to.
//!
//! An operation without an answer may be carried out at any later time. So its instance is kept
//! from the cluster (fenced) before the operation ends, and a new instance is opened. The same
//! happens after the cluster has shut an instance out.

use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;

use backing::health::problems::Kind;
use backing::{Health, StoreError};
use rados::{About, Changed, Error, Image, Source, Successor};
use runtime::Awaited;

use crate::persist::Kept;
use crate::store::BLOCK;

/// Pause between two tries to fence an instance, or to open one.
const PAUSE: Duration = Duration::from_secs(1);
const LONGEST_PAUSE: Duration = Duration::from_secs(60);

pub(crate) struct Live {
    keeper: Keeper,
    op_timeout: Duration,
    about: About,
    health: Arc<Health>,
    /// Bytes, as last seen.
    size: AtomicU64,
    /// Held while the size is read.
    looking: Mutex<()>,
    /// Reservations.
    kept: Kept,
    state: Awaited<State>,
}

/// Who replaces an instance.
enum Keeper {
    /// The image's own thread.
    Thread(Box<Source>, Sender<Ask>),
    /// The group, by another life of this gateway.
    Group(Lost),
}

/// Tells the group why its life is over.
pub(crate) type Lost = Box<dyn Fn(&str) + Send + Sync>;

/// What the image's thread is asked for.
enum Ask {
    /// To replace the instance at this address.
    Replace(String),
    /// To look at the image's size.
    Look,
}

struct State {
    /// Counts instances.
    generation: u64,
    phase: Phase,
}

enum Phase {
    Serving(Image),
    /// The last instance may still write.
    Fencing,
    /// It no longer may, and the next one is being opened.
    Opening,
    /// The next one could not be opened yet.
    Failing,
}

/// The open image, and the number of its instance.
pub(crate) type Instance = (Image, u64);

impl Live {
    /// Opens the first instance. Blocks.
    pub(crate) fn open(source: Source, health: Arc<Health>) -> Result<Arc<Self>, Error> {
        let (ask, asked) = channel();
        let image = Image::open(&source, changed(&ask))?;
        let op_timeout = source.op_timeout;
        let source = Source { known: Some(image.about().clone()), ..source };
        let this = Self::new(image, op_timeout, health, Keeper::Thread(Box::new(source), ask));
        let live = Arc::downgrade(&this);
        match rados::start_unpinned(move || serve_requests(&live, &asked)) {
            true => Ok(this),
            false => Err(Error::NoThread),
        }
    }

    /// An instance that is a group's. It is told `lost` when it has to be replaced.
    pub(crate) fn of_group(image: Image, op_timeout: Duration, health: Arc<Health>, lost: Lost) -> Arc<Self> {
        Self::new(image, op_timeout, health, Keeper::Group(lost))
    }

    fn new(image: Image, op_timeout: Duration, health: Arc<Health>, keeper: Keeper) -> Arc<Self> {
        let (about, looking) = (image.about().clone(), Mutex::default());
        let state = Awaited::new(State { generation: 0, phase: Phase::Serving(image) });
        health.expect_size(about.size);
        let size = about.size.into();
        Arc::new(Self { keeper, op_timeout, about, health, size, looking, kept: Kept::default(), state })
    }

    pub(crate) fn is_of_group(&self) -> bool {
        matches!(self.keeper, Keeper::Group(_))
    }

    /// The group's instance writes nothing any more: it has ended, or storage refuses it.
    pub(crate) fn over(&self) {
        let mut before = None;
        self.state.change(|state| before = Some(std::mem::replace(&mut state.phase, Phase::Failing)));
        if let Some(Phase::Serving(image)) = before {
            // The last one closes the image, which waits for the cluster.
            rados::start_unpinned(move || drop(image));
        }
    }

    pub(crate) fn kept(&self) -> &Kept {
        &self.kept
    }

    /// What the image was when it was first opened.
    pub(crate) fn about(&self) -> &About {
        &self.about
    }

    /// Bytes, as last seen.
    pub(crate) fn size(&self) -> u64 {
        self.size.load(Ordering::Acquire)
    }

    /// Reads the image's size. Blocks.
    pub(crate) fn look(&self) {
        let _looking = self.looking.lock();
        if let Err(error) = self.see_size() {
            tracing::warn!(path = self.health.path(), %error, "a change was not seen");
        }
    }

    /// Reads the size of the instance in service; the next one tells its own. Blocks.
    pub(crate) fn see_size(&self) -> Result<(), Error> {
        let size = self.serving().map(|image| image.size()).transpose()?;
        size.into_iter().for_each(|size| self.saw(size));
        Ok(())
    }

    fn saw(&self, size: u64) {
        let before = self.size.swap(size, Ordering::AcqRel);
        if before != size {
            tracing::warn!(path = self.health.path(), before, size, "the medium's size changed");
            self.health.saw_size(size);
        }
    }

    /// The instance in service, unless it is being replaced.
    pub(crate) fn serving(&self) -> Option<Image> {
        self.state.with(|state| match &state.phase {
            Phase::Serving(image) => Some(image.clone()),
            Phase::Fencing | Phase::Opening | Phase::Failing => None,
        })
    }

    /// The instance in service. Waits for one that is being opened, as long as an operation may
    /// take.
    pub(crate) async fn instance(&self) -> Result<Instance, StoreError> {
        let found = |state: &State| match &state.phase {
            Phase::Serving(image) => Some(Ok((image.clone(), state.generation))),
            Phase::Fencing | Phase::Opening => None,
            Phase::Failing => Some(Err(StoreError::Fenced)),
        };
        runtime::timeout(self.op_timeout, self.state.until(found)).await.unwrap_or(Err(StoreError::Fenced))
    }

    /// The store's error for an operation of the instance `generation` that has failed. If the
    /// operation may still be carried out, this waits until it no longer may.
    #[cold]
    pub(crate) async fn failed(&self, generation: u64, error: io::Error, at: u64, write: bool) -> StoreError {
        let errno = error.raw_os_error();
        match errno {
            None if error.kind() == io::ErrorKind::ResourceBusy => return StoreError::Unknown,
            Some(libc::ESHUTDOWN) => self.replace(generation, "the cluster has shut this daemon out"),
            // Others' writes fail so while another client has the lock.
            Some(libc::EROFS) if write => {
                self.replace(generation, "another client has taken the image's lock")
            }
            Some(libc::ETIMEDOUT | libc::ECANCELED) => {
                let seconds = self.op_timeout.as_secs();
                self.replace(generation, &format!("the cluster has not answered for {seconds} s"));
                self.state.until(|state| state.is_fenced(generation).then_some(())).await;
            }
            Some(libc::EINVAL) => {}
            _ => {
                let errno = errno.unwrap_or(libc::EIO);
                self.health.report(Kind::of_errno(errno, write), errno, Some(at / u64::from(BLOCK)));
            }
        }
        meaning(errno.unwrap_or(libc::EIO), write)
    }

    /// Starts to replace the instance `generation`, unless that was done.
    fn replace(&self, generation: u64, why: &str) {
        let before = self.state.with(|state| match state.phase {
            Phase::Serving(_) if state.generation == generation => {
                Some(std::mem::replace(&mut state.phase, Phase::Fencing))
            }
            _ => None,
        });
        let Some(Phase::Serving(image)) = before else { return };
        self.health.failed(format!("{why}: a new instance is opened"));
        match &self.keeper {
            // The thread ends no sooner than `self`, not by a panic either.
            Keeper::Thread(_, ask) => drop(ask.send(Ask::Replace(image.address().to_owned()))),
            Keeper::Group(lost) => lost(why),
        }
    }

    /// Puts an instance into service.
    fn serve(&self, image: Image) -> Result<(), String> {
        self.kept.look(&image)?;
        self.saw(image.about().size);
        self.health.recovered();
        tracing::warn!(path = self.health.path(), "a new instance of the image is in service");
        // Last: from here on it is not replaced without being fenced.
        self.state.change(|state| {
            state.generation += 1;
            state.phase = Phase::Serving(image);
        });
        Ok(())
    }

    fn enter(&self, phase: Phase) {
        self.state.change(|state| state.phase = phase);
    }
}

impl State {
    /// Whether nothing of the instance `generation` is carried out any more.
    fn is_fenced(&self, generation: u64) -> bool {
        self.generation != generation || matches!(self.phase, Phase::Opening | Phase::Failing)
    }
}

/// The store's error for one of librbd's.
fn meaning(errno: i32, write: bool) -> StoreError {
    match errno {
        // This client is on the blocklist, or another one has its lock.
        libc::ESHUTDOWN => StoreError::Fenced,
        libc::EROFS if write => StoreError::Fenced,
        libc::ETIMEDOUT | libc::ECANCELED => StoreError::Unknown,
        // The image has become smaller.
        libc::EINVAL => StoreError::OutOfRange,
        _ => StoreError::from_errno(errno),
    }
}

/// What an image calls after each change of its header.
fn changed(ask: &Sender<Ask>) -> Changed {
    let ask = ask.clone();
    Arc::new(move || drop(ask.send(Ask::Look)))
}

/// The thread of an image. The senders go with the store.
fn serve_requests(live: &Weak<Live>, asked: &Receiver<Ask>) {
    while let Ok(ask) = asked.recv() {
        let Some(this) = live.upgrade() else { return };
        match ask {
            Ask::Replace(before) => {
                drop(this);
                // Without its next instance the unit would never answer again.
                if until_no_panic("replacing an instance", || replace(live, &before)).is_none() {
                    return;
                }
            }
            // Not here: while OSDs are silent it takes long, and an instance may have to be fenced.
            Ask::Look => drop(rados::start_unpinned(move || this.look())),
        }
    }
}

/// The result of `f`, which is called until it does not panic, less and less often: it may ask for
/// a map of the cluster each time. `what` is its name in the log.
fn until_no_panic<R>(what: &str, f: impl Fn() -> R) -> R {
    let mut pause = PAUSE;
    loop {
        match catch_unwind(AssertUnwindSafe(&f)) {
            Ok(result) => return result,
            Err(_) => tracing::error!("{what} has panicked, which is a defect of this daemon: trying again"),
        }
        std::thread::sleep(pause);
        pause = (2 * pause).min(LONGEST_PAUSE);
    }
}

/// Tries until it is done; `None` if the store has gone.
fn replace(live: &Weak<Live>, before: &str) -> Option<()> {
    let (source, changed) = match &live.upgrade()?.keeper {
        Keeper::Thread(source, ask) => (source.clone(), changed(ask)),
        Keeper::Group(_) => return None,
    };
    let mut next = loop {
        match Successor::to(before, &source) {
            Ok(successor) => {
                live.upgrade()?.enter(Phase::Opening);
                break successor.open(changed.clone()).map(Image::Ceph);
            }
            // Nothing may be answered before.
            Err(error) => live.upgrade()?.health.failed(format!("its last instance is not fenced: {error}")),
        }
        std::thread::sleep(PAUSE);
    };
    loop {
        let this = live.upgrade()?;
        let Err(reason) = next.map_err(|error| error.to_string()).and_then(|image| this.serve(image)) else {
            return Some(());
        };
        this.health.failed(format!("no new instance could be opened yet: {reason}"));
        this.enter(Phase::Failing);
        drop(this);
        std::thread::sleep(PAUSE);
        next = Image::open(&source, changed.clone());
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    #[test]
    fn a_panic_is_no_end() {
        let calls = Cell::new(0);
        let result = until_no_panic("a test", || {
            calls.set(calls.get() + 1);
            assert!(calls.get() > 1, "the first time");
            calls.get()
        });
        assert_eq!(result, 2);
    }

    #[test]
    fn a_fenced_client_and_an_unknown_outcome_are_no_medium_errors() {
        assert_eq!(meaning(libc::ESHUTDOWN, false), StoreError::Fenced);
        assert_eq!(meaning(libc::EROFS, true), StoreError::Fenced);
        assert_eq!(meaning(libc::ETIMEDOUT, true), StoreError::Unknown);
        assert_eq!(meaning(libc::EINVAL, true), StoreError::OutOfRange);
        assert_eq!(meaning(libc::ENOSPC, true), StoreError::NoSpace);
        assert_eq!(meaning(libc::EDQUOT, true), StoreError::NoSpace);
        assert_eq!(meaning(libc::EIO, false), StoreError::Io(libc::EIO));
    }
}
