//! [`SlowCall`]: a slow call with the time of each stage; and [`Courses`], the calls that a
//! connection could not answer at once.
//!
//! A call that is answered where it was received has taken no longer than a turn of its core, so
//! nothing is noted of it. The times of the others are those of the turns: nothing here reads the
//! clock. A call is decoded for this only once it is slow.

use std::cell::{Cell, RefCell};
use std::future::poll_fn;
use std::net::SocketAddr;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use nfs::v4::{self, Fore};
use nfs::{mount, v3};
use rpc::message::{Call, Message};
use rpc::xdr::Reader;
use runtime::Buf;
use server_core::slow::{AT_WORK, FLOOR, Slow};

use crate::client::Client;
use crate::model::Model;

/// The slowest calls of one core.
pub(crate) type SlowLog = server_core::slow::SlowLog<SlowCall>;

/// Replies of slow calls at most that are watched until they are sent.
const MOST: usize = 32;
/// Operations of a COMPOUND at most that are told of.
const MOST_OPERATIONS: usize = 16;

/// How far a call has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Progress {
    /// It waits for its turn: for a limit of service, or for the groups of its user.
    Waits,
    /// Its export is at work.
    Medium,
    /// Its reply was ready at this time.
    Ended(Instant),
}

/// A slow call.
#[derive(Clone, Debug)]
pub struct SlowCall {
    /// The client's end of the connection.
    pub client: SocketAddr,
    /// The name of the export; `None` where the call names no file of one.
    pub export: Option<String>,
    /// The version of its program: of NFS 3 or 4.
    pub version: u32,
    /// The procedure of version 3, or the first operations of a COMPOUND, in small letters. Of
    /// another program its name.
    pub operations: Vec<String>,
    /// Of a COMPOUND that is at work: the operation that it is in.
    pub operation: Option<String>,
    /// The call's XID.
    pub xid: u32,
    /// How far it has come.
    pub progress: Progress,
    /// How long it waited for its turn.
    pub order: Duration,
    /// The rest of the time until its reply was ready.
    pub medium: Duration,
    /// From then until the kernel had taken all of its reply, where that is known.
    pub send: Option<Duration>,
}

impl SlowCall {
    /// The time of all stages that are known.
    pub fn took(&self) -> Duration {
        self.order + self.medium + self.send.unwrap_or_default()
    }
}

impl Slow for SlowCall {
    fn took(&self) -> Duration {
        Self::took(self)
    }

    fn ended(&self) -> Option<Instant> {
        match self.progress {
            Progress::Ended(at) => Some(at),
            Progress::Waits | Progress::Medium => None,
        }
    }
}

/// How far a call has come, as its own code notes it.
#[derive(Clone, Copy, Default)]
struct Turn {
    /// It waits for its turn since then.
    waits: Option<Instant>,
    /// How long it waited before that.
    waited: Duration,
    /// Operations of a COMPOUND that have begun.
    operations: u32,
}

impl Turn {
    fn order(&self, now: Instant) -> Duration {
        self.waited + self.waits.map_or(Duration::ZERO, |since| now.saturating_duration_since(since))
    }
}

/// A call that could not be answered at once.
struct AtWork {
    /// Its first bytes, which the call itself holds as long.
    first: Buf,
    arrival: Instant,
    turn: Turn,
}

/// Calls that could not be answered at once, by their places.
#[derive(Default)]
struct Places {
    all: Vec<Option<AtWork>>,
    free: Vec<usize>,
}

impl Places {
    fn add(&mut self, one: AtWork) -> usize {
        match self.free.pop() {
            Some(place) => {
                self.all[place] = Some(one);
                place
            }
            None => {
                self.all.push(Some(one));
                self.all.len() - 1
            }
        }
    }

    fn remove(&mut self, place: usize) -> Option<AtWork> {
        let one = self.all[place].take();
        if one.is_some() {
            self.free.push(place);
        }
        one
    }
}

/// The calls of a connection that it could not answer at once.
pub(crate) struct Courses {
    log: Rc<SlowLog>,
    /// The turn of the call that is polled.
    waits: Cell<Option<Instant>>,
    waited: Cell<Duration>,
    operations: Cell<u32>,
    at_work: RefCell<Places>,
    /// Calls whose replies are not sent yet, in the order of the replies.
    unsent: RefCell<Vec<SlowCall>>,
    /// How many of them the socket is taking.
    leaving: Cell<usize>,
}

impl Courses {
    pub(crate) fn new(log: Rc<SlowLog>) -> Self {
        Self {
            log,
            waits: Cell::default(),
            waited: Cell::default(),
            operations: Cell::default(),
            at_work: RefCell::default(),
            unsent: RefCell::default(),
            leaving: Cell::default(),
        }
    }

    /// Waits for `turn`, which is no work for the call that is polled.
    pub(crate) async fn wait<T>(&self, turn: impl Future<Output = T>) -> T {
        self.waits.set(Some(runtime::now()));
        let turn = turn.await;
        if let Some(since) = self.waits.take() {
            self.waited.set(self.waited.get() + runtime::now().saturating_duration_since(since));
        }
        turn
    }

    /// So many operations of the call that is polled have begun: none of one that is no COMPOUND.
    #[inline]
    pub(crate) fn begins(&self, operations: u32) {
        self.operations.set(operations);
    }

    /// Takes what the call that was polled has noted.
    fn take(&self) -> Turn {
        Turn { waits: self.waits.take(), waited: self.waited.take(), operations: self.operations.take() }
    }

    fn put(&self, turn: Turn) {
        self.waits.set(turn.waits);
        self.waited.set(turn.waited);
        self.operations.set(turn.operations);
    }

    /// A slow call has ended. `is_sent`: its reply waits to be sent.
    pub(crate) fn ended(&self, slow: SlowCall, is_sent: bool) {
        let mut unsent = self.unsent.borrow_mut();
        if is_sent && unsent.len() < MOST {
            unsent.push(slow);
        } else {
            self.keep(slow);
        }
    }

    /// The socket takes all replies that wait.
    pub(crate) fn leave(&self) {
        self.leaving.set(self.unsent.borrow().len());
    }

    /// The kernel has taken these replies.
    #[inline]
    pub(crate) fn sent(&self) {
        if self.leaving.get() > 0 {
            self.take_sent();
        }
    }

    #[inline(never)]
    fn take_sent(&self) {
        let now = runtime::now();
        let sent: Vec<_> = self.unsent.borrow_mut().drain(..self.leaving.take()).collect();
        for mut slow in sent {
            slow.send = slow.ended().map(|at| now.saturating_duration_since(at));
            self.keep(slow);
        }
    }

    /// The connection has ended: what was not sent never is.
    pub(crate) fn close(&self) {
        self.leaving.set(0);
        std::mem::take(&mut *self.unsent.borrow_mut()).into_iter().for_each(|slow| self.keep(slow));
    }

    fn keep(&self, slow: SlowCall) {
        self.log.keep(slow, runtime::now());
    }

    /// The slow calls that are not in the log: those that have been at work for long, and those
    /// whose replies are not sent.
    pub(crate) fn slow_now(&self, client: &Client) -> Vec<SlowCall> {
        let now = runtime::now();
        let mut all = self.unsent.borrow().clone();
        let at_work = self.at_work.borrow();
        let long = |one: &&AtWork| now.saturating_duration_since(one.arrival) >= AT_WORK;
        all.extend(at_work.all.iter().flatten().filter(long).map(|one| {
            let progress = if one.turn.waits.is_some() { Progress::Waits } else { Progress::Medium };
            one.slow(client, progress, now)
        }));
        all
    }
}

impl AtWork {
    fn slow(&self, client: &Client, progress: Progress, now: Instant) -> SlowCall {
        let is_over = matches!(progress, Progress::Ended(_));
        let begun = if is_over { 0 } else { self.turn.operations as usize };
        let named = named(&self.first, begun, &client.model());
        let order = self.turn.order(now);
        SlowCall {
            client: client.peer,
            export: named.export,
            version: named.version,
            operations: named.operations,
            operation: named.operation,
            xid: named.xid,
            progress,
            order,
            medium: now.saturating_duration_since(self.arrival).saturating_sub(order),
            send: None,
        }
    }
}

/// A call that goes on as a task.
pub(crate) struct Followed {
    client: Rc<Client>,
    place: usize,
}

impl Followed {
    /// The call that begins with `first`, and that its connection has just polled, or not yet.
    pub(crate) fn new(client: &Rc<Client>, first: Buf) -> Self {
        let courses = &client.courses;
        let one = AtWork { first, arrival: runtime::now(), turn: courses.take() };
        let place = courses.at_work.borrow_mut().add(one);
        Self { client: client.clone(), place }
    }

    /// Runs it to its end. Returns also what it was, if it was slow.
    pub(crate) async fn run<T>(self, mut call: impl Future<Output = T> + Unpin) -> (T, Option<SlowCall>) {
        let output = poll_fn(|context| self.poll(&mut call, context)).await;
        let (courses, now) = (&self.client.courses, runtime::now());
        let one = courses.at_work.borrow_mut().remove(self.place);
        let is_slow = |one: &AtWork| {
            let took = now.saturating_duration_since(one.arrival);
            took >= FLOOR && courses.log.takes(took, now)
        };
        let slow = one.filter(is_slow).map(|one| one.slow(&self.client, Progress::Ended(now), now));
        (output, slow)
    }

    fn poll<F: Future + Unpin>(&self, call: &mut F, context: &mut Context<'_>) -> Poll<F::Output> {
        let courses = &self.client.courses;
        let turn = courses.at_work.borrow().all[self.place].as_ref().map(|one| one.turn);
        courses.put(turn.unwrap_or_default());
        let polled = Pin::new(call).poll(context);
        let turn = courses.take();
        if let Some(one) = &mut courses.at_work.borrow_mut().all[self.place] {
            one.turn = turn;
        }
        polled
    }
}

impl Drop for Followed {
    fn drop(&mut self) {
        // A call that has run to its end gave its place back then, and nothing came between.
        self.client.courses.at_work.borrow_mut().remove(self.place);
    }
}

/// What a call says of itself.
#[derive(Default)]
struct Named {
    version: u32,
    xid: u32,
    operations: Vec<String>,
    operation: Option<String>,
    export: Option<String>,
}

/// Decodes the first bytes of a call. `begun` operations of a COMPOUND have begun, or it is over.
fn named(first: &Buf, begun: usize, model: &Model) -> Named {
    let mut from = Reader::new(first.as_slice().unwrap_or_default());
    let Ok(Message::Call(Call { xid, program, version, procedure, .. })) = Message::read(&mut from) else {
        return Named::default();
    };
    let mut named = Named { version, xid, ..Named::default() };
    let export = |handle: &[u8]| model.file(handle).ok().map(|(export, _)| export.config.name.clone());
    let small = |name: &dyn std::fmt::Debug| format!("{name:?}").to_ascii_lowercase();
    match (program, version) {
        (v3::PROGRAM, v3::VERSION) => {
            named.operations.extend(v3::Procedure::from_code(procedure).map(|it| small(&it)));
            // All arguments begin with the handle of a file, but those of NULL.
            named.export = from.opaque(v3::MAX_HANDLE).ok().and_then(export);
        }
        (v3::PROGRAM, _) if procedure == v4::COMPOUND => {
            let Ok(call) = v4::Call::<Fore>::read(from.remaining()) else { return named };
            let mut operations = call.operations;
            for number in 1..=begun.max(MOST_OPERATIONS) {
                let Some(Ok(arguments)) = operations.head() else { break };
                let name = small(&arguments.operation());
                if let v4::Arguments::PutFh(handle) = &arguments {
                    named.export = named.export.or_else(|| export(handle.bytes()));
                }
                if number == begun {
                    named.operation = Some(name.clone());
                }
                if number <= MOST_OPERATIONS {
                    named.operations.push(name);
                }
                // What follows data that lie elsewhere is not told.
                if operations.payload(arguments.payload()).is_err() {
                    break;
                }
            }
        }
        (mount::PROGRAM, _) => named.operations.push("mount".to_owned()),
        _ => {}
    }
    named
}
