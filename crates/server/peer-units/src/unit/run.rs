//! One command on its way to the owner of its unit, whoever that is until it has an end. That may
//! be this gateway too.
//!
//! A command that may have begun ends by its owner's word, or by the fence of its owner. One that
//! never began goes to the next owner; so does a READ that has no outcome. Any other command
//! without an outcome ends as ABORTED COMMAND, since it must not be executed twice.

use std::future::poll_fn;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use device::{
    Command, DataMover, Execution, GetData, LogicalUnit, Lost, NexusId, Outcome, TaskAttribute, Tasks,
};
use disk::unit::DiskUnit;
use peer_link::message::Attribute;
use peer_link::{Final, Function, Managed, NotBegun, Number, Refused};
use runtime::Chain;
use scsi::{AdditionalSense, Sense, Status, cdb};

use super::link::{Link, Op, Over};
use super::{Begun, GroupUnit};
use crate::line::stable;

/// The most Data-Out that goes out with a command.
const FIRST: usize = 64 << 10;
/// How much Data-In the owner may send ahead.
const WINDOW: usize = 256 << 10;
/// A unit reads each aligned block of this length, in bytes, at one moment. A READ whose data has
/// gone on in part is executed again only from the beginning of one.
const BLOCK: u64 = 4096;
/// Pause before the owner is looked up again.
const PAUSE: Duration = Duration::from_millis(10);
/// How long a cleared command waits for its own server to abort it.
const CLEARED: Duration = Duration::from_secs(5);

struct Run<M> {
    unit: Arc<GroupUnit>,
    command: Command,
    mover: M,
    /// After that nobody has to be waited for who has not begun it.
    deadline: Instant,
    /// The first Data-Out, kept until the command has begun.
    first: Chain,
    /// Bytes of Data-In that the initiator has.
    put: u64,
}

/// One try.
struct Try {
    link: Rc<Link>,
    number: Number,
    op: Rc<Op>,
    /// Data-Out that is not sent yet.
    to_send: Chain,
    /// Bytes of Data-Out that are sent, and that were fetched.
    sent: u64,
    fetched: u64,
    /// How much is being fetched.
    fetching: Option<usize>,
    /// Bytes of this try's Data-In that have come.
    came: u64,
    /// The initiator wants it no more.
    is_lost: bool,
}

/// The decision after a try.
enum Verdict {
    Answer(Outcome),
    Again,
}

/// Any outcome: the server gives none to an initiator that is lost.
const NONE: Outcome = Outcome::status(Status::Busy);

/// Where a command goes.
enum Route {
    /// This gateway owns the unit.
    Here(Arc<DiskUnit>, Begun),
    Forwarded(Try),
}

pub(super) async fn run<M: DataMover + 'static>(
    unit: Arc<GroupUnit>,
    command: Command,
    mut mover: M,
) -> (M, Outcome) {
    let deadline = runtime::now() + unit.peers.config.hold;
    let first = command.data_out_len.min(FIRST as u64) as usize;
    let first = match first {
        0 => Chain::new(),
        len => match mover.get_data(len).await {
            Ok(data) => data.into_iter().map(stable).collect(),
            Err(Lost) => return (mover, NONE),
        },
    };
    let mut run = Run { unit, command, mover, deadline, first, put: 0 };
    loop {
        let outcome = match run.route().await {
            Err(outcome) => outcome,
            // A part of its data is of another execution.
            Ok(Route::Here(..)) if run.put > 0 => aborted(),
            Ok(Route::Here(disk, begun)) => {
                let ended = run.execute(&disk).await;
                drop(begun);
                return ended;
            }
            Ok(Route::Forwarded(this)) => match run.end(this).await {
                Verdict::Answer(outcome) => outcome,
                Verdict::Again if runtime::now() >= run.deadline => run.late(),
                Verdict::Again => match run.mover.unless_lost(runtime::sleep(PAUSE)).await {
                    Ok(()) => continue,
                    Err(Lost) => NONE,
                },
            },
        };
        return (run.mover, outcome);
    }
}

impl<M: DataMover + 'static> Run<M> {
    /// Executes it here.
    async fn execute(self, disk: &Arc<DiskUnit>) -> (M, Outcome) {
        let mover = Resumed { mover: self.mover, first: self.first };
        let (Resumed { mover, .. }, outcome) = match disk.execute(self.command, mover) {
            Execution::Done(mover, outcome) => (mover, outcome),
            Execution::Running(task) => task.await,
        };
        (mover, outcome)
    }

    /// Begins it here, or forwards it to the owner, once there is one.
    async fn route(&mut self) -> Result<Route, Outcome> {
        loop {
            // An initiator that has gone may have used another path since.
            let is_fresh = self.mover.is_fresh(self.unit.peers.config.fresh);
            match is_fresh.then(|| self.unit.begin(self.command.nexus.nexus.id)).flatten() {
                Some(Ok((disk, begun))) => return Ok(Route::Here(disk, begun)),
                Some(Err(sense)) => return Err(sense.into()),
                None => {}
            }
            if is_fresh && let Some(at) = self.unit.peers.owner(self.unit.number) {
                let link = Link::of(&self.unit.peers, at);
                match link.is_connected().then(|| self.submit(link)) {
                    Some(Ok(this)) => return Ok(Route::Forwarded(this)),
                    // Its session has gone, or has another right to write: it has to come again.
                    Some(Err(Refused::Gone)) => return Err(self.late()),
                    Some(Err(_)) | None => {}
                }
            }
            if runtime::now() >= self.deadline {
                return Err(self.late());
            }
            if self.mover.unless_lost(runtime::sleep(PAUSE)).await.is_err() {
                return Err(NONE);
            }
        }
    }

    fn submit(&self, link: Rc<Link>) -> Result<Try, Refused> {
        let Command { cdb, attribute, nexus, tag, data_out_len, data_in_len } = &self.command;
        let itl = link.itl(&self.unit, nexus.shared())?;
        let command = peer_link::Command {
            itl,
            generation: 0,
            token: 0,
            tag: *tag,
            attribute: match attribute {
                TaskAttribute::Simple => Attribute::Simple,
                TaskAttribute::Ordered => Attribute::Ordered,
                TaskAttribute::HeadOfQueue => Attribute::HeadOfQueue,
                TaskAttribute::Aca => Attribute::Aca,
            },
            data_out: *data_out_len,
            data_in: *data_in_len,
            room: (*data_in_len).min(WINDOW as u64),
            cdb: cdb.bytes().to_vec(),
        };
        let mut to_send = self.first.clone();
        let fetched = to_send.len() as u64;
        let now = to_send.split_to(link.unsolicited_room().min(to_send.len()));
        let sent = now.len() as u64;
        let (number, op) = link.submit(command, now)?;
        #[rustfmt::skip]
        let this = Try {
            link, number, op, to_send, sent, fetched, fetching: None, came: 0, is_lost: false,
        };
        Ok(this)
    }

    /// Moves data until the owner's word has come, and says what it means.
    async fn end(&mut self, mut this: Try) -> Verdict {
        let mut clock = std::pin::pin!(runtime::sleep_until(self.deadline));
        let mut is_late = false;
        let over = poll_fn(|cx| {
            if !is_late && clock.as_mut().poll(cx).is_ready() {
                is_late = true;
                if !this.link.is_connected() {
                    // The next connection asks the owner to give it up.
                    this.link.abort(this.number);
                }
            }
            self.poll(&mut this, cx)
        })
        .await;
        self.unit.peers.has_forwarded(this.came, this.sent);
        let cleared = this.op.flow.borrow().cleared;
        if this.is_lost {
            return Verdict::Answer(NONE);
        }
        match over {
            // What is cleared has no outcome; a PREEMPT AND ABORT of its own nexus's key has one.
            Over::Said(Final::Ended) if cleared => self.cleared().await,
            Over::Said(Final::Outcome { outcome, whole: true }) => Verdict::Answer(answer(outcome)),
            Over::Said(Final::NotBegun(NotBegun::Aborted)) => Verdict::Answer(self.late()),
            // A cleared one too: it comes behind what has cleared its nexus.
            Over::Said(Final::NotBegun(_)) => Verdict::Again,
            Over::Said(Final::Outcome { .. } | Final::Ended) | Over::Fenced if self.may_run_again() => {
                Verdict::Again
            }
            Over::Said(Final::Outcome { .. } | Final::Ended) | Over::Fenced => Verdict::Answer(aborted()),
            // No answer: its connection ends with this daemon.
            Over::Left => {
                let _ = self.mover.unless_lost(std::future::pending::<()>()).await;
                Verdict::Answer(NONE)
            }
            Over::Said(Final::Managed(_)) => {
                invariant::broken!("a command ended as a function");
                Verdict::Answer(Sense::internal_target_failure().into())
            }
        }
    }

    fn poll(&mut self, this: &mut Try, cx: &mut Context<'_>) -> Poll<Over> {
        this.op.wait(cx.waker());
        if !this.is_lost && (self.poll_data(this, cx).is_err() || self.mover.poll_lost(cx).is_ready()) {
            this.is_lost = true;
            this.link.abort(this.number);
        }
        let mut flow = this.op.flow.borrow_mut();
        if this.is_lost {
            flow.got = Chain::new();
        }
        // Data-In first: the outcome follows it.
        if flow.got.is_empty()
            && let Some(over) = flow.over.take()
        {
            return Poll::Ready(over);
        }
        Poll::Pending
    }

    fn poll_data(&mut self, this: &mut Try, cx: &mut Context<'_>) -> Result<(), Lost> {
        loop {
            let mut flow = this.op.flow.borrow_mut();
            if flow.got.is_empty() {
                break;
            }
            if self.put > 0 && self.mover.poll_put_ready(cx)?.is_pending() {
                break;
            }
            let mut got = std::mem::take(&mut flow.got);
            drop(flow);
            // What an earlier try has brought, the initiator has.
            let known = self.put.saturating_sub(this.came).min(got.len() as u64);
            this.came += got.len() as u64;
            got.advance(known as usize);
            self.put += got.len() as u64;
            for buf in got {
                self.mover.put_data(buf);
            }
            this.link.room(this.number, this.came + WINDOW as u64);
        }
        loop {
            let may_send = this.op.flow.borrow().may_send;
            if may_send <= this.sent {
                return Ok(());
            }
            let most = (may_send - this.sent).min(this.link.piece()) as usize;
            if this.to_send.is_empty() {
                let left = (self.command.data_out_len - this.fetched) as usize;
                let len = *this.fetching.get_or_insert(most.min(left));
                if len == 0 {
                    return Ok(());
                }
                match self.mover.poll_get_data(cx, len)? {
                    Poll::Pending => return Ok(()),
                    Poll::Ready(data) => {
                        this.fetching = None;
                        this.fetched += data.len() as u64;
                        this.to_send = data.into_iter().map(stable).collect();
                    }
                }
                if this.to_send.is_empty() {
                    return Ok(());
                }
            }
            let data = this.to_send.split_to(most.min(this.to_send.len()));
            this.sent += data.len() as u64;
            this.link.data(this.number, data);
        }
    }

    /// It was aborted at the owner for another nexus. The server here ends the task, and gives no
    /// answer.
    async fn cleared(&mut self) -> Verdict {
        let (unit, nexus) = (self.unit.clone(), self.command.nexus.shared().clone());
        let which = Tasks::Tagged(self.command.tag);
        runtime::spawn(async move { unit.nexuses.abort_tasks(nexus, which, None).await });
        let _ = self.mover.unless_lost(runtime::sleep(CLEARED)).await;
        Verdict::Answer(Outcome::status(Status::TaskAborted))
    }

    /// Whether it may be executed twice: a READ, of whose data no block is of both.
    fn may_run_again(&self) -> bool {
        let Ok(cdb::Command::Read(read)) = cdb::decode(self.command.cdb.bytes()) else { return false };
        let block_size = u64::from(self.unit.block_size());
        let next = read.lba.wrapping_mul(block_size).wrapping_add(self.put);
        self.put == 0 || block_size > 0 && next.is_multiple_of(BLOCK)
    }

    /// It has not begun, and waits no longer. With a part of a READ's data the initiator needs more
    /// than BUSY.
    fn late(&self) -> Outcome {
        if self.put == 0 { Outcome::status(Status::Busy) } else { aborted() }
    }
}

fn aborted() -> Outcome {
    Sense::aborted(AdditionalSense::NO_ADDITIONAL_SENSE_INFORMATION).into()
}

/// The owner's outcome.
fn answer(outcome: peer_link::Outcome) -> Outcome {
    let peer_link::Outcome { status, wanted_in, wanted_out, sense } = outcome;
    let Some(status) = Status::from_code(status) else { return Sense::internal_target_failure().into() };
    Outcome { status, sense: Sense::parse(&sense).map(Box::new), wanted_in, wanted_out }
}

/// Has the owner carry out a function for a session, or carries it out `here`. Whether that is
/// done.
pub(super) async fn manage(
    unit: &Arc<GroupUnit>,
    by: NexusId,
    function: Function,
    here: impl AsyncFn(&Arc<DiskUnit>),
) -> bool {
    let deadline = runtime::now() + unit.peers.config.hold;
    while runtime::now() < deadline {
        // It may have another right to write since.
        let Some(nexus) = unit.nexus(by) else { return false };
        match unit.begin(by) {
            Some(Ok((disk, begun))) => {
                here(&disk).await;
                drop(begun);
                return true;
            }
            Some(Err(_)) => return false,
            None => {}
        }
        let op = unit.peers.owner(unit.number).and_then(|at| {
            let link = Link::of(&unit.peers, at);
            let itl = link.is_connected().then(|| link.itl(unit, &nexus).ok()).flatten()?;
            link.manage(itl, function).ok()
        });
        if let Some(op) = op {
            let over = poll_fn(|cx| {
                op.wait(cx.waker());
                op.flow.borrow_mut().over.take().map_or(Poll::Pending, Poll::Ready)
            });
            match over.await {
                // The next owner is asked.
                Over::Said(Final::Managed(Managed::Failed(_))) => {}
                Over::Said(Final::Managed(result)) => return result == Managed::Done,
                // The tasks have ended with the owner, but nobody has reset the unit.
                Over::Said(_) | Over::Fenced | Over::Left => {}
            }
        }
        runtime::sleep(PAUSE).await;
    }
    false
}

/// The mover of a command whose first Data-Out was fetched before it came to its unit.
struct Resumed<M> {
    mover: M,
    first: Chain,
}

impl<M: DataMover> DataMover for Resumed<M> {
    fn put_data(&mut self, data: runtime::Buf) {
        self.mover.put_data(data);
    }

    fn holds(&self, len: usize) -> bool {
        self.mover.holds(len)
    }

    fn is_fresh(&mut self, most: Duration) -> bool {
        self.mover.is_fresh(most)
    }

    fn poll_put_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Lost>> {
        self.mover.poll_put_ready(cx)
    }

    fn poll_get_data(&mut self, cx: &mut Context<'_>, len: usize) -> Poll<Result<Chain, Lost>> {
        let more = len.saturating_sub(self.first.len());
        let more = match more {
            0 => Chain::new(),
            more => match self.mover.poll_get_data(cx, more)? {
                Poll::Ready(more) => more,
                Poll::Pending => return Poll::Pending,
            },
        };
        let mut data = self.first.split_to(len.min(self.first.len()));
        data.append(more);
        Poll::Ready(Ok(data))
    }

    fn poll_lost(&mut self, cx: &mut Context<'_>) -> Poll<Lost> {
        self.mover.poll_lost(cx)
    }
}
