//! One gateway of a group, over RADOS: a thread that runs `cluster::Gateway`, and reports which
//! units are this gateway's.
//!
//! - `life`: one life of the gateway: its clients of the cluster, the machine, and what it asks
//!   for.
//! - `object`: the group's object: the record, and heartbeats beside it.
//! - `unit`: the image of one unit, its lock, and its commands in flight.
//!
//! No function here that a core calls waits for the cluster. Not here: the peer link.

mod life;
mod object;
mod unit;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::ops::RangeInclusive;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use cluster::{GatewayId, InstanceId, Refusal, Request, Stop, Timers, UnitId, View};
use rados::{Client, Error, Image, Login, Source};
use runtime::{Receiver, RecvTimeoutError, Sender, channel};

use crate::name::ImageName;
use life::{Life, Over, Told};
pub use unit::{Begun, Serving};

/// Pause before a next life.
const PAUSE: Duration = Duration::from_secs(1);
/// Pause before the next try of a gateway that the group has refused.
const REFUSED: Duration = Duration::from_secs(5);

/// What a gateway is, and what it serves.
#[derive(Clone, Debug)]
pub struct GroupConfig {
    pub login: Login,
    /// Where the group's object is.
    pub pool: String,
    pub namespace: Option<String>,
    /// The group's object.
    pub object: String,
    /// This gateway, unique in the group.
    pub gateway: GatewayId,
    /// The versions of the peer protocol that it speaks.
    pub protocol: RangeInclusive<u16>,
    /// The newest secret of the group that it has.
    pub secret: u32,
    /// The same in all gateways of the group, but while the administrator changes them.
    pub units: BTreeMap<UnitId, ImageName>,
    /// How long an operation on an image may take. After that this life of the gateway ends.
    pub op_timeout: Duration,
    /// The same in all gateways of the group.
    pub timers: Timers,
}

/// What happens to this gateway. The function that gets it runs on the group's thread, and must
/// not wait.
#[derive(Debug)]
pub enum Report {
    /// A life begins: this instance, at these addresses.
    Begins { instance: InstanceId, addresses: Vec<String> },
    /// The unit's lock is this gateway's. [`Serving::opened`] lets its commands begin.
    Serve(Serving),
    /// The unit is not this gateway's any more. No begun command is left, unless its life is over.
    Gone(UnitId),
    /// Gateways, owners or fences have changed.
    Changed(View),
    /// The life is over. Another one follows, unless it was the `last`: this gateway has left, or
    /// its daemon ends.
    Over { why: String, last: bool },
    /// Something does not work now, and is tried again.
    Problem(String),
}

/// How the group is, as this gateway knows it.
#[derive(Clone, Debug, Default)]
pub struct Status {
    pub view: Option<View>,
    /// Counts lives.
    pub life: u64,
    /// What does not work now.
    pub problem: Option<String>,
    /// This gateway has left, or its group has ended.
    pub ended: bool,
}

/// Why a request was not carried out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NotDone {
    Refused(Refusal),
    /// The life ended first: it may have been carried out.
    Unknown,
}

impl fmt::Display for NotDone {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Refused(refusal) => write!(f, "the group refuses: {refusal}"),
            Self::Unknown => f.write_str("this life of the gateway ended first: look, and ask again"),
        }
    }
}

/// What names each image in the world, as [`crate::RbdStore::seed`] says, and its bytes. Blocks.
///
/// # Errors
/// The first that cannot be opened.
pub fn seeds(login: &Login, images: &[ImageName], op_timeout: Duration) -> Result<Vec<(String, u64)>, Error> {
    let client = Client::connect(login, Some(op_timeout))?;
    let look = |name: &ImageName| {
        let source = Source { read_only: true, ..name.source(login.clone(), op_timeout) };
        let image = Image::open_unlocked(&client, &source, Arc::new(|| {}))?;
        Ok((crate::store::seed(image.about()), image.about().size))
    };
    images.iter().map(look).collect()
}

/// Gets the answer to a request, on the group's thread.
pub type Answer = Box<dyn FnOnce(Result<(), NotDone>) + Send>;
type Reporter = Box<dyn FnMut(Report) + Send>;

/// A gateway of a group. Dropping it ends its life without leaving: others take it out.
pub struct Group {
    tell: Sender<Told>,
    status: Arc<Mutex<Status>>,
    wanted: Arc<Mutex<Wanted>>,
}

/// What this gateway wants of the group, in each of its lives.
#[derive(Default)]
struct Wanted {
    /// What it serves.
    units: BTreeMap<UnitId, ImageName>,
    /// What was taken out here, as long as the group may have it.
    out: BTreeSet<UnitId>,
}

impl Group {
    /// Begins to be a gateway of the group.
    ///
    /// # Errors
    /// The timers do not fit, or there is no thread.
    pub fn start(mut config: GroupConfig, report: Reporter) -> Result<Self, Error> {
        config.timers.check().map_err(|wrong| Error::Name(wrong.to_owned()))?;
        let (tell, told) = channel();
        let status = Arc::new(Mutex::new(Status::default()));
        let wanted = Wanted { units: std::mem::take(&mut config.units), out: BTreeSet::new() };
        let wanted = Arc::new(Mutex::new(wanted));
        let shared = Shared { config, tell: tell.clone(), status: status.clone(), wanted: wanted.clone() };
        match rados::start_unpinned(move || live(shared, &told, report)) {
            true => Ok(Self { tell, status, wanted }),
            false => Err(Error::NoThread),
        }
    }

    /// Asks for a change of the group.
    pub fn ask(&self, asked: Request, answer: Answer) {
        if let Err(unsent) = self.tell.send(Told::Ask(asked, answer))
            && let Told::Ask(_, answer) = unsent.0
        {
            answer(Err(NotDone::Unknown));
        }
    }

    /// Serves one more unit, at this gateway if no other one does.
    pub fn add(&self, unit: UnitId, name: ImageName) {
        {
            let mut wanted = lock(&self.wanted);
            wanted.units.insert(unit, name.clone());
            wanted.out.remove(&unit);
        }
        // A next life begins with it.
        let _ = self.tell.send(Told::Add(unit, name));
    }

    /// No gateway serves the unit any more, as soon as the group hears this one.
    pub fn remove(&self, unit: UnitId) {
        {
            let mut wanted = lock(&self.wanted);
            wanted.units.remove(&unit);
            wanted.out.insert(unit);
        }
        // A next life asks for it, too.
        let _ = self.tell.send(Told::Remove(unit));
    }

    /// What tells this gateway that a peer link to an instance is lost, or up again: a hint, so
    /// that it waits less long for a counter that stands still.
    pub fn links(&self) -> impl Fn(u64, bool) + Send + Sync + use<> {
        let tell = self.tell.clone();
        // A group that has ended hears nothing.
        move |instance, lost| drop(tell.send(Told::Link(InstanceId(instance), lost)))
    }

    #[must_use]
    pub fn status(&self) -> Status {
        lock(&self.status).clone()
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        let _ = self.tell.send(Told::End);
    }
}

/// What all lives have.
struct Shared {
    config: GroupConfig,
    tell: Sender<Told>,
    status: Arc<Mutex<Status>>,
    wanted: Arc<Mutex<Wanted>>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The group's thread: one life after the other.
fn live(shared: Shared, told: &Receiver<Told>, mut report: Reporter) {
    let mut number = 0;
    loop {
        number += 1;
        lock(&shared.status).life = number;
        let over = match Life::begin(&shared, number, &mut report) {
            Ok(mut life) => {
                let over = life.run(told, &mut report);
                life.end(&mut report);
                over
            }
            Err(error) => Over::Failed(error.to_string()),
        };
        let last = matches!(over, Over::Ended | Over::Stopped(Stop::Left));
        {
            let mut status = lock(&shared.status);
            status.view = None;
            status.ended = last;
            status.problem = (!last).then(|| over.to_string());
        }
        if !last {
            tracing::warn!(group = shared.config.object, life = number, why = %over, "a life in the group is over");
        }
        report(Report::Over { why: over.to_string(), last });
        let pause = match over {
            Over::Ended | Over::Stopped(Stop::Left) => return,
            Over::Stopped(Stop::Refused(_)) => REFUSED,
            Over::Stopped(_) | Over::Failed(_) => PAUSE,
        };
        if wait(told, pause) {
            return report(Report::Over { why: Over::Ended.to_string(), last: true });
        }
    }
}

/// Waits between two lives. Whether the group has ended meanwhile.
fn wait(told: &Receiver<Told>, pause: Duration) -> bool {
    let end = runtime::clock_since_boot() + pause;
    loop {
        match told.recv_timeout(end.saturating_sub(runtime::clock_since_boot())) {
            Ok(Told::End) | Err(RecvTimeoutError::Disconnected) => return true,
            Err(RecvTimeoutError::Timeout) => return false,
            Ok(Told::Ask(_, answer)) => answer(Err(NotDone::Unknown)),
            // Of the life before.
            Ok(Told::Of(..) | Told::Link(..) | Told::Add(..) | Told::Remove(_)) => {}
        }
    }
}
