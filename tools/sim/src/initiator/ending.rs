//! How tasks end, and what the oracle learns of it.

use iscsi::initiator::{Completion, Event};
use iscsi::pdu::{LogoutResult, RejectReason, TaskManagementResult};

use super::{Initiator, Op, Purpose, Stage, State, Token};
use crate::clock::MS;
use crate::oracle::{Ending, OpId};
use crate::trace::note;
use crate::workload::{self, Answer, Kind, Scsi};

impl Initiator {
    pub(super) fn on_event(&mut self, event: Event<Token>) -> Result<(), String> {
        match event {
            Event::Done(_, token, completion) => self.done(token, &completion),
            Event::Pong(_, token) => {
                let op = self.take(&token)?;
                // A sign of life, but no progress.
                self.ended -= 1;
                if let Purpose::Ping(id) = op.purpose {
                    let link = self.links.iter_mut().find(|link| link.id == id);
                    link.into_iter().for_each(|link| link.pinged = None);
                }
                Ok(())
            }
            Event::Text(_, token, text) => {
                self.take(&token)?;
                match text == *self.shared.text {
                    true => Ok(()),
                    false => Err(format!("op {}: {} bytes of text are wrong", token.op, text.len())),
                }
            }
            Event::TaskManagement(_, token, result, ended) => {
                for (_, mut token) in ended {
                    // Nothing of it may arrive any more: the stream would end for it.
                    let _ = self.withdraw(&mut token, None);
                    self.aborted(token.op);
                }
                self.managed(&token, result)
            }
            Event::LoggedOut(_, token, result) => {
                self.take(&token)?;
                if result != Some(LogoutResult::Success) {
                    return Err(format!("op {}: logout: {result:?}", token.op));
                }
                let exposed: usize =
                    self.links.iter().filter_map(|link| link.pair.as_ref()).map(|pair| pair.exposed()).sum();
                if self.ops.is_empty() && exposed > 0 {
                    return Err(format!("initiator {}: {exposed} pieces of memory nobody uses", self.number));
                }
                self.logged_out();
                Ok(())
            }
            Event::Async(message) => Err(format!("initiator {}: {message}", self.number)),
            Event::Lost(_, token) => match self.ops.get(&token.op).is_some_and(|op| op.replayed) {
                // It lost its connection, and whoever knows what became of it says that nothing more does.
                true => {
                    self.aborted(token.op);
                    Ok(())
                }
                false => Err(format!("op {}: the target does not know it", token.op)),
            },
            Event::Removed { cid, result, time2wait_s, .. } => {
                self.removed(cid, result, time2wait_s);
                Ok(())
            }
            // A text that came damaged was not one: it is not asked again.
            Event::Rejected(Some(RejectReason::DataDigestError), Some((_, token))) => {
                let op = self.take(&token)?;
                match op.purpose {
                    Purpose::Text => Ok(()),
                    _ => Err(format!("op {}: rejected", token.op)),
                }
            }
            Event::Rejected(reason, task) => Err(format!(
                "initiator {}: rejected: {reason:?}, {:?}",
                self.number,
                task.map(|(_, token)| token.op)
            )),
        }
    }

    /// A task ends; it must be one that has not.
    fn take(&mut self, token: &Token) -> Result<Op, String> {
        self.ended += 1;
        self.ops.remove(&token.op).ok_or_else(|| format!("op {} ended twice", token.op))
    }

    fn logged_out(&mut self) {
        // The commands that were under way are over (RFC 7143 §11.14); what was never sent goes to the next session.
        self.drop_links();
        for (_, token) in self.protocol.disconnect(self.plan.first_cmd_sn) {
            self.give_up(token.op);
        }
        for op in std::mem::take(&mut self.lost) {
            self.shared.oracle.borrow_mut().end_write(op, Ending::Unknown);
        }
        self.ops.values_mut().for_each(|op| op.replayed = true);
        if self.stage == Stage::Leaving {
            note!(self.shared.trace, "initiator {}: has left", self.number);
            self.state = State::Over;
        } else {
            let pause = self.rng.between(0, 20 * MS);
            self.state = State::Down(self.now() + pause);
        }
    }

    fn managed(&mut self, token: &Token, result: Option<TaskManagementResult>) -> Result<(), String> {
        let op = self.take(token)?;
        note!(self.shared.trace, "initiator {}: op {} ends: {result:?}", self.number, token.op);
        match (op.purpose, result) {
            (Purpose::Abort(victim, _), Some(TaskManagementResult::FunctionComplete)) => {
                // It will not be answered any more, and was not: a target that has answered has no task to abort.
                if self.answered.contains(&victim) {
                    return Err(format!("op {victim} was aborted after it had been answered"));
                }
                Ok(())
            }
            (Purpose::Abort(victim, key), Some(TaskManagementResult::TaskDoesNotExist)) => {
                // Its answer came before this one, unless another function of ours is ending it, or somebody else has ended it
                // without a word.
                let other = self.ops.values().any(|op| match &op.purpose {
                    Purpose::Abort(id, _) => *id == victim,
                    Purpose::Manage(victims) => victims.iter().any(|(id, _)| *id == victim),
                    _ => false,
                });
                if other {
                    return Ok(());
                }
                let level = self.protocol.params().error_recovery_level;
                if let Some(op) = self.ops.get_mut(&victim).filter(|op| op.replayed && level == 2) {
                    // It has ended on the connection that it lost, and its status comes when it is reassigned.
                    op.aborting = false;
                    return Ok(());
                }
                match self.forget(key) {
                    None => Ok(()),
                    Some(_) if self.shared.resets_by_others => {
                        self.aborted(victim);
                        Ok(())
                    }
                    Some(_) => Err(format!("op {victim} is not at the target, and was not answered")),
                }
            }
            (Purpose::Manage(_), Some(TaskManagementResult::FunctionComplete)) => Ok(()),
            (purpose, result) => Err(format!("op {}: {result:?} for {purpose:?}", token.op)),
        }
    }

    /// A command is over without an answer: it may have happened.
    fn aborted(&mut self, id: OpId) {
        if self.ops.remove(&id).is_none() {
            return;
        }
        self.ended += 1;
        self.shared.oracle.borrow_mut().abort(id);
    }

    fn done(&mut self, token: Token, completion: &Completion) -> Result<(), String> {
        let id = token.op;
        let op = self.take(&token)?;
        self.answered.insert(id);
        let Purpose::Scsi(scsi) = op.purpose else {
            return Err(format!("op {id}: a SCSI response to {:?}", op.purpose));
        };
        let answer = workload::judge(&scsi, completion, self.shared.excuses.get())
            .map_err(|wrong| format!("op {id} ({}): {wrong}", scsi.name))?;
        note!(self.shared.trace, "initiator {}: op {id} ends: {answer:?}", self.number);
        self.tell(id, &scsi, answer, &token.data, op.replayed)?;
        self.shared.oracle.borrow_mut().end_look(id);
        if answer == Answer::Attention {
            self.again.push(*scsi);
            if self.shared.resets_by_others {
                self.ask_after(self.now());
            }
        }
        Ok(())
    }

    /// Tells the oracle.
    fn tell(
        &mut self,
        id: OpId,
        scsi: &Scsi,
        answer: Answer,
        data: &[u8],
        replayed: bool,
    ) -> Result<(), String> {
        let mut oracle = self.shared.oracle.borrow_mut();
        // Of a command that was sent again, an earlier sending may have run.
        let refused = if replayed { Ending::Unknown } else { Ending::Refused };
        // The target died after it had answered: what it wrote was done before, and if that was no promise it may be lost.
        let stale = self.incarnation != self.shared.incarnation.get();
        let done = match (stale, scsi.durable) {
            (true, false) => Ending::Unknown,
            (_, durable) => Ending::Done { durable },
        };
        // Of what a target promised that has died since, only what was told in time is in the books.
        oracle.end_sync(id, answer == Answer::Good && !stale);
        match (&scsi.kind, answer) {
            (Kind::Read, Answer::Good) => {
                let whole = data.len() / crate::oracle::SECTOR * crate::oracle::SECTOR;
                oracle.saw(id, scsi.first, &data[..whole], stale)
            }
            (Kind::Verify(guess), Answer::Good) => oracle.saw(id, scsi.first, guess, stale),
            (Kind::CompareAndWrite(guess), Answer::Good) => {
                let result = oracle.saw(id, scsi.first, guess, stale);
                oracle.end_write(id, done);
                result
            }
            (Kind::CompareAndWrite(guess) | Kind::Verify(guess), Answer::Miscompare) => {
                let wrong = oracle.had_to_see(id, scsi.first, guess);
                oracle.end_write(id, refused);
                match wrong {
                    true => Err(format!("op {id} ({}) did not find what is there", scsi.name)),
                    false => Ok(()),
                }
            }
            (Kind::Sync, _) => Ok(()),
            (_, Answer::Good) => {
                oracle.end_write(id, done);
                Ok(())
            }
            (_, Answer::Attention | Answer::Refused) => {
                oracle.end_write(id, refused);
                Ok(())
            }
            (_, Answer::Failed | Answer::Miscompare) => {
                oracle.end_write(id, Ending::Unknown);
                Ok(())
            }
        }
    }
}
