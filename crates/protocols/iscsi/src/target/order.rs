//! Checks CmdSN: the order of a connection's requests (RFC 7143 §4.2.2.1), the ones that wait for
//! their turn, the immediate ones, which have none, and those after a logout.

use std::collections::BTreeMap;

use invariant::invariant;

use super::events::{Completion, Event, Fatal, ScsiCommand};
use super::tasks::TaskKey;
use super::window::{Admission, Cid, Window};
use crate::pdu::{Bhs, Lun, NopOut, RejectReason};
use crate::sn;

/// The maximum number of unfinished immediate commands, in addition to the window's.
pub(super) const MAX_IMMEDIATE: usize = 16;
/// The number of rejected PDUs after which a connection is dropped.
pub(super) const MAX_REJECTS: u32 = 256;

/// Bytes that a PDU without a task may hold while it waits for its turn, in addition to
/// FirstBurstLength: pings and text then cost no more than commands with unsolicited data.
pub(super) const HELD_BESIDES: usize = 1024;

/// A numbered PDU that waits for its turn.
#[derive(Debug)]
pub(super) enum Work<P> {
    Event(Event),
    /// Refused at arrival: its response waits for the command's turn.
    Refuse(TaskKey, Completion),
    Ping(NopOut, P),
    /// The initiator's text is incomplete, or it requests more of ours.
    MoreText(u32, Lun),
    Reject(RejectReason, Bhs),
    /// It was sent after the initiator's logout.
    Late(Bhs),
}

/// The order of a connection's requests.
#[derive(Debug)]
pub(super) struct Order<P> {
    cid: Cid,
    window: Window,
    /// Numbered requests that wait for their turn.
    held: BTreeMap<u32, Work<P>>,
    /// Unfinished immediate commands.
    immediate: usize,
    /// Unfinished immediate task management requests and logouts.
    managing: usize,
    /// The limit of `managing`: the maximum number of commands to abort.
    max_managing: usize,
    /// A logout is in progress: requests from this CmdSN on are late.
    leaving: Option<u32>,
    /// The late requests received. They are rejected if the logout fails; else the connection's end
    /// answers them. At most [`MAX_REJECTS`].
    late: Vec<Bhs>,
    rejects: u32,
}

impl<P> Order<P> {
    /// The order of connection `cid` in its session's window. `max_managing` limits the immediate
    /// task management requests.
    pub fn new(cid: Cid, window: Window, max_managing: usize) -> Self {
        let (held, late) = (BTreeMap::new(), Vec::new());
        Self { cid, window, held, immediate: 0, managing: 0, max_managing, leaving: None, late, rejects: 0 }
    }

    /// The connection's identifier.
    pub fn cid(&self) -> Cid {
        self.cid
    }

    /// ExpCmdSN and MaxCmdSN.
    #[inline]
    pub fn numbers(&self) -> (u32, u32) {
        self.window.numbers()
    }

    /// Checks the number of a request that has one. `fence`: the LUN of an ORDERED command.
    #[inline]
    pub fn receive(&mut self, cmd_sn: u32, fence: Option<Lun>) -> Admission {
        self.window.receive(cmd_sn, self.cid, fence)
    }

    /// The command with this number has ended: later ones need not wait for it.
    #[inline]
    pub fn lift(&self, cmd_sn: u32) {
        self.window.lift(cmd_sn);
    }

    /// Gives a place in the window back: a numbered request has ended.
    #[inline]
    pub fn complete(&mut self) {
        self.window.complete();
    }

    /// Keeps a request until its turn.
    pub fn hold(&mut self, cmd_sn: u32, work: Work<P>) {
        self.held.insert(cmd_sn, work);
    }

    /// Takes over a command that another connection held.
    pub fn adopt(&mut self, command: ScsiCommand) {
        self.window.move_held(command.cmd_sn, self.cid);
        self.held.insert(command.cmd_sn, Work::Event(Event::Command(command)));
    }

    /// The next request that waited for its turn and has it now.
    pub fn next_due(&mut self) -> Option<Work<P>> {
        if self.held.is_empty() {
            return None;
        }
        let exp = self.window.numbers().0;
        // Serial numbers wrap: the oldest is the farthest behind ExpCmdSN.
        let due = self.held.keys().copied().filter(|cmd_sn| sn::lt(*cmd_sn, exp));
        let oldest = due.reduce(|a, b| if sn::lt(b, a) { b } else { a })?;
        self.held.remove(&oldest)
    }

    /// Whether [`Self::next_due`] and [`Self::take_released`] would return nothing.
    #[inline]
    pub fn is_in_order(&self) -> bool {
        self.held.is_empty() && !self.window.has_released()
    }

    /// Whether no request waits for its turn.
    pub fn is_empty(&self) -> bool {
        self.held.is_empty()
    }

    /// Takes the connections of the session that hold requests whose turn has come.
    pub fn take_released(&mut self) -> Vec<Cid> {
        self.window.take_released()
    }

    /// Gives up a held request: it is aborted. False if it is not held.
    pub fn give_up(&mut self, cmd_sn: u32) -> bool {
        let held = self.held.remove(&cmd_sn).is_some();
        if held {
            self.window.give_up(cmd_sn);
        }
        held
    }

    /// Gives up a command that another connection has released, and that has no task here.
    pub fn abandon(&mut self, cmd_sn: u32) {
        self.window.give_up(cmd_sn);
    }

    /// Gives up all held requests, so that the session's other connections continue.
    pub fn give_up_all(&mut self) {
        for cmd_sn in std::mem::take(&mut self.held).into_keys() {
            self.window.give_up(cmd_sn);
        }
    }

    /// Takes the held request of task `key` without giving up its number.
    pub fn take_held(&mut self, key: TaskKey, cmd_sn: u32) -> Option<Work<P>> {
        let task = match self.held.get(&cmd_sn)? {
            Work::Event(Event::Command(command)) => command.task,
            Work::Refuse(task, _) => *task,
            _ => return None,
        };
        if task == key { self.held.remove(&cmd_sn) } else { None }
    }

    /// Ends held commands, at their turn, with the completion that `end` returns for their LUN.
    pub fn refuse_held(&mut self, end: impl Fn(Lun) -> Option<Completion>) {
        for work in self.held.values_mut() {
            if let Work::Event(Event::Command(command)) = work
                && let Some(completion) = end(command.lun)
            {
                *work = Work::Refuse(command.task, completion);
            }
        }
    }

    /// Skips a command when it arrives. True if it had not arrived.
    pub fn skip(&mut self, cmd_sn: u32) -> bool {
        self.window.skip(cmd_sn)
    }

    /// Skips all commands numbered before `cmd_sn` that have not arrived.
    pub fn skip_before(&mut self, cmd_sn: u32) {
        // At most the window's depth.
        let (mut next, max) = self.window.numbers();
        while sn::lt(next, cmd_sn) && sn::le(next, max) {
            self.window.skip(next);
            next = next.wrapping_add(1);
        }
    }

    /// Whether one more immediate command fits.
    #[inline]
    pub fn has_immediate_room(&self) -> bool {
        self.immediate < MAX_IMMEDIATE
    }

    /// A command begins.
    #[inline]
    pub fn begin(&mut self, immediate: bool) {
        self.immediate += usize::from(immediate);
    }

    /// An immediate command ends.
    #[inline]
    pub fn end_immediate(&mut self) {
        if invariant!(self.immediate > 0, "more immediate commands ended than began") {
            self.immediate -= 1;
        }
    }

    /// Whether one more immediate task management request or logout fits.
    pub fn has_managing_room(&self) -> bool {
        self.managing < self.max_managing
    }

    /// A task management request or a logout begins.
    pub fn begin_managing(&mut self, immediate: bool) {
        self.managing += usize::from(immediate);
    }

    /// It ends.
    pub fn end_managing(&mut self, immediate: bool) {
        if immediate && invariant!(self.managing > 0, "more task management ended than began") {
            self.managing -= 1;
        }
    }

    /// A logout was requested: requests after it are late.
    pub fn leave(&mut self, cmd_sn: u32, immediate: bool) {
        self.leaving = Some(if immediate { cmd_sn } else { cmd_sn.wrapping_add(1) });
    }

    /// Whether a logout is in progress.
    #[inline]
    pub fn is_leaving(&self) -> bool {
        self.leaving.is_some()
    }

    /// Whether a request with this number follows the logout.
    pub fn is_late(&self, cmd_sn: u32) -> bool {
        self.leaving.is_some_and(|from| sn::le(from, cmd_sn))
    }

    /// Keeps a late request, for [`Self::stay`].
    pub fn keep_late(&mut self, bhs: Bhs) -> Result<(), Fatal> {
        self.count_reject()?;
        self.late.push(bhs);
        Ok(())
    }

    /// The logout failed. Returns the late requests.
    pub fn stay(&mut self) -> Vec<Bhs> {
        self.leaving = None;
        std::mem::take(&mut self.late)
    }

    /// Counts a rejected PDU.
    pub fn count_reject(&mut self) -> Result<(), Fatal> {
        self.rejects += 1;
        if self.rejects > MAX_REJECTS { Err(Fatal::TooManyRejects) } else { Ok(()) }
    }
}
