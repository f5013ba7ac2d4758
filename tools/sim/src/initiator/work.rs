//! What an initiator does in its session: commands, pings, texts, aborts, logouts, as its workload says.
//!
//! What comes of them is in `ending`.

use iscsi::initiator::{Command, ConnectionId, TaskKey};
use iscsi::pdu::{LogoutReason, Lun, TaskAttribute, TaskManagementFunction};

use super::link::Phase;
use super::reach::Reach;
use super::{Initiator, Op, Purpose, Stage, State, Token};
use crate::clock::Micros;
use crate::network::LinkId;
use crate::oracle::OpId;
use crate::trace::note;
use crate::workload::{Action, Kind, Scsi};

impl Initiator {
    pub(super) fn new_op(&mut self) -> OpId {
        self.shared.last_op.set(self.shared.last_op.get() + 1);
        self.shared.last_op.get()
    }

    pub(super) fn token(op: OpId) -> Token {
        Token { op, data: Vec::new(), reach: Reach::default() }
    }

    pub(super) fn track(&mut self, op: OpId, key: Result<TaskKey, Token>, purpose: Purpose) {
        if let Ok(key) = key {
            self.ops.insert(op, Op { purpose, key, replayed: false, since: self.now(), aborting: false });
        }
    }

    pub(super) fn ping(&mut self, on: ConnectionId, id: LinkId) {
        let op = self.new_op();
        let key = self.protocol.ping(on, Self::token(op));
        self.track(op, key, Purpose::Ping(id));
    }

    /// A connection in full-feature phase, chosen by chance.
    pub(super) fn any_connection(&mut self) -> Option<(ConnectionId, LinkId)> {
        let full: Vec<_> = self
            .links
            .iter()
            .filter_map(|link| match &link.phase {
                Phase::Full(on, _) => Some((*on, link.id)),
                Phase::Login(_) => None,
            })
            .collect();
        if full.is_empty() { None } else { Some(self.rng.pick(&full)) }
    }

    /// Submits what is next.
    pub(super) fn work(&mut self) -> Result<bool, String> {
        let connected = self.links.iter().any(|link| matches!(link.phase, Phase::Full(..)));
        if self.state != State::Up || !connected {
            return Ok(false);
        }
        let now = self.now();
        let mut any = false;
        while self.ops.len() < self.plan.depth && self.state == State::Up {
            if let Some(scsi) = self.again.pop() {
                self.submit(scsi)?;
                any = true;
                continue;
            }
            match self.stage {
                Stage::Work if self.submitted < self.plan.commands => {
                    if now < self.next_command {
                        break;
                    }
                    self.next_command = now + self.rng.below(self.plan.pause + 1);
                    self.submitted += 1;
                    self.act()?;
                }
                Stage::Work if self.ops.is_empty() => self.stage = Stage::Waiting,
                Stage::Work | Stage::Waiting => break,
                Stage::Reading(lba) if lba < self.blocks => {
                    let blocks = (self.blocks - lba).min(self.most_blocks);
                    self.stage = Stage::Reading(lba + blocks);
                    self.submit(self.workload.read_of(lba, blocks, false))?;
                }
                Stage::Reading(_) if self.ops.is_empty() => {
                    self.stage = Stage::Leaving;
                    self.submit(self.workload.sync())?;
                }
                Stage::Leaving if self.ops.is_empty() => self.log_out(),
                Stage::Reading(_) | Stage::Leaving => break,
            }
            any = true;
        }
        Ok(any)
    }

    pub(super) fn act(&mut self) -> Result<(), String> {
        let next = self.shared.last_op.get() + 1;
        let action = {
            let oracle = self.shared.oracle.borrow();
            self.workload.next(&mut self.rng, &oracle, next)
        };
        let Some((on, link)) = self.any_connection() else { return Ok(()) };
        match action {
            Action::Scsi(scsi) => return self.submit(*scsi),
            Action::Ping => self.ping(on, link),
            // One text at a time (RFC 7143 §11.10).
            Action::Text if self.ops.values().any(|op| matches!(op.purpose, Purpose::Text)) => {}
            Action::Text => {
                let op = self.new_op();
                let text = b"SendTargets=\0".to_vec().into();
                let key = self.protocol.text(on, text, Self::token(op));
                self.track(op, key, Purpose::Text);
            }
            Action::Abort => self.abort(),
            Action::Manage(function) => {
                let op = self.new_op();
                let victims = self.ops.iter().filter(|(_, op)| matches!(op.purpose, Purpose::Scsi(_)));
                // What waits for the window has no CmdSN yet and comes after the function.
                let victims = victims.filter(|(_, op)| self.protocol.connection_of(op.key).is_some());
                let victims = victims.map(|(id, op)| (*id, op.key)).collect();
                note!(self.shared.trace, "initiator {}: op {op} {function}", self.number);
                let key = self.protocol.task_management(on, function, Lun::ZERO, None, Self::token(op));
                self.track(op, key, Purpose::Manage(victims));
            }
            Action::Logout => self.log_out(),
        }
        Ok(())
    }

    pub(super) fn abort(&mut self) {
        if self.protocol.orphans() > 0 {
            // Which connection has what is not settled.
            return;
        }
        let sent: Vec<(OpId, TaskKey)> = self
            .ops
            .iter()
            .filter(|(_, op)| matches!(op.purpose, Purpose::Scsi(_)))
            .filter(|(_, op)| self.protocol.connection_of(op.key).is_some())
            .map(|(id, op)| (*id, op.key))
            .collect();
        if sent.is_empty() {
            return;
        }
        let (victim, key) = self.rng.pick(&sent);
        self.abort_op(victim, key);
    }

    pub(super) fn abort_op(&mut self, victim: OpId, key: TaskKey) {
        // It goes where the command went (RFC 7143 §11.5.1).
        let Some(on) = self.protocol.connection_of(key) else { return };
        let op = self.new_op();
        note!(self.shared.trace, "initiator {}: op {op} ABORT TASK of op {victim}", self.number);
        let function = TaskManagementFunction::AbortTask;
        let task = self.protocol.task_management(on, function, Lun::ZERO, Some(key), Self::token(op));
        self.track(op, task, Purpose::Abort(victim, key));
        if let Some(op) = self.ops.get_mut(&victim) {
            op.aborting = true;
        }
    }

    /// Others may have ended commands of ours without a word: asks after those that were sent before then.
    pub(super) fn ask_after(&mut self, before: Micros) {
        if self.protocol.orphans() > 0 {
            return;
        }
        let silent = self.ops.iter().filter(|(_, op)| {
            matches!(op.purpose, Purpose::Scsi(_))
                && !op.aborting
                && op.since <= before
                && self.protocol.connection_of(op.key).is_some()
        });
        let silent: Vec<(OpId, TaskKey)> = silent.map(|(id, op)| (*id, op.key)).collect();
        silent.into_iter().for_each(|(id, key)| self.abort_op(id, key));
    }

    pub(super) fn log_out(&mut self) {
        let Some((on, _)) = self.any_connection() else { return };
        let op = self.new_op();
        note!(self.shared.trace, "initiator {}: op {op} logs out", self.number);
        let key = self.protocol.logout(on, LogoutReason::CloseSession, Self::token(op));
        self.track(op, key, Purpose::Logout);
        self.state = State::LoggingOut;
    }

    pub(super) fn submit(&mut self, scsi: Scsi) -> Result<(), String> {
        let op = self.new_op();
        note!(
            self.shared.trace,
            "initiator {}: op {op} {} {:?}, looks from {}, out {:?}, in {:?}{}",
            self.number,
            scsi.name,
            scsi.writes,
            scsi.first,
            scsi.data_out.as_ref().map(Vec::len),
            scsi.read_len,
            if scsi.durable { ", durable" } else { "" },
        );
        let scsi = self.restamp(scsi, op);
        {
            let mut oracle = self.shared.oracle.borrow_mut();
            if !scsi.writes.is_empty() {
                oracle.submit_write(op, scsi.writes.clone(), scsi.content);
            }
            match scsi.kind {
                Kind::Read | Kind::CompareAndWrite(_) | Kind::Verify(_) => oracle.submit_look(op),
                _ => {}
            }
            if !scsi.syncs.is_empty() {
                oracle.submit_sync(op, scsi.syncs.clone());
            }
        }
        let command = Command {
            lun: Lun::new(scsi.lun).unwrap_or_default(),
            attribute: TaskAttribute::Simple,
            cdb: &scsi.cdb,
            write: scsi.data_out.clone().map(Into::into),
            read_len: scsi.read_len,
            may_repeat: scsi.may_repeat,
        };
        let key = self.protocol.submit(command, Self::token(op));
        let key = key.map_err(|_| "the session takes no command though there is room".to_owned())?;
        self.ops.insert(
            op,
            Op {
                purpose: Purpose::Scsi(Box::new(scsi)),
                key,
                replayed: false,
                since: self.now(),
                aborting: false,
            },
        );
        Ok(())
    }

    /// A command that is submitted a second time carries its own number, and is a command of its own.
    pub(super) fn restamp(&self, mut scsi: Scsi, op: OpId) -> Scsi {
        use crate::oracle::Content;
        let oracle = self.shared.oracle.borrow();
        let content = match scsi.content {
            Content::Zeros => return scsi,
            Content::Stamp(_) => Content::Stamp(op),
            Content::Repeated(_) => Content::Repeated(op),
        };
        if content == scsi.content {
            return scsi;
        }
        scsi.content = content;
        let Some(data) = &mut scsi.data_out else { return scsi };
        let Some(sectors) = scsi.writes.first().cloned() else { return scsi };
        let skip = if let Kind::CompareAndWrite(guess) = &scsi.kind { guess.len() } else { 0 };
        for (piece, sector) in data[skip..].chunks_exact_mut(crate::oracle::SECTOR).zip(sectors) {
            piece.copy_from_slice(&oracle.bytes(content, sector));
        }
        scsi
    }
}
