//! The session's tasks by Initiator Task Tag. A tag contains a slot's index and the slot's use
//! count, so that a late PDU of an ended task never matches its successor.

use std::collections::VecDeque;

use crate::pdu::{Lun, TaskManagementFunction};
use crate::text::Assembler;

use super::ids::{ConnectionId, TaskKey};
use super::trouble::Trouble;

/// The type of a task.
#[derive(Debug)]
pub(super) enum Kind<P> {
    Scsi(Scsi<P>),
    TaskManagement(Scope),
    Text(Assembler),
    Ping,
    Logout,
    /// An internal ping: its answer shows missing PDUs. It has no token, like all variants below.
    Probe,
    /// The internal TASK REASSIGN of that task.
    Reassign {
        task: TaskKey,
        /// The task was resent on another connection before.
        sent_again: bool,
    },
    /// The internal logout of the connection with that CID, for recovery of its tasks.
    Removal(u16),
}

/// The tasks of the issuing session that a function ends, if they were sent before it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Scope {
    Nothing,
    Task(TaskKey),
    Unit(Lun),
    Target,
}

impl Scope {
    pub fn of(function: TaskManagementFunction, lun: Lun, task: Option<TaskKey>) -> Self {
        use TaskManagementFunction as Function;
        match function {
            Function::AbortTask => task.map_or(Scope::Nothing, Scope::Task),
            Function::AbortTaskSet | Function::ClearTaskSet | Function::LogicalUnitReset => Scope::Unit(lun),
            Function::TargetWarmReset | Function::TargetColdReset => Scope::Target,
            _ => Scope::Nothing,
        }
    }
}

/// The newest aborted tasks of other connections than their function's. The order of PDUs holds
/// within a connection only, so a PDU of such a task may arrive after the function's response.
#[derive(Debug, Default)]
pub(super) struct Aborted(VecDeque<TaskKey>);

impl Aborted {
    /// Tasks kept.
    const MOST: usize = 4096;

    pub fn has(&self, key: TaskKey) -> bool {
        self.0.contains(&key)
    }

    pub fn add(&mut self, key: TaskKey) {
        if self.0.len() >= Self::MOST {
            self.0.pop_front();
        }
        self.0.push_back(key);
    }
}

/// The state of a SCSI command.
#[derive(Debug)]
pub(super) struct Scsi<P> {
    pub lun: Lun,
    pub attribute: crate::pdu::TaskAttribute,
    pub cdb: [u8; 16],
    /// The CDB's bytes beyond the first 16.
    pub cdb_rest: Option<Box<[u8]>>,
    pub write: Option<P>,
    pub write_len: u32,
    /// The expected read length, bytes; `None` if the command reads nothing.
    pub read_len: Option<u32>,
    pub may_repeat: bool,
    /// Bytes placed so far.
    pub received: u32,
    /// The DataSN of the next Data-In.
    pub data_sn: u32,
    /// The R2TSN of the next R2T.
    pub r2t_sn: u32,
    /// The number of R2Ts whose data has not been passed to the sink yet.
    pub r2ts_open: u16,
    /// Bytes of the write that were sent unsolicited or requested by R2Ts.
    pub solicited: u32,
    /// After a reassignment, the target may restart at any number that it has used.
    pub restart_data: bool,
    pub restart_r2t: bool,
    /// The connection's segment length when the command was sent (RFC 7143 §11.16.1).
    pub segment_epoch: u16,
    /// The missing PDUs, from the first fault on.
    pub trouble: Option<Box<Trouble>>,
}

impl<P> Scsi<P> {
    /// Records that all Data-In before `next` have arrived. The R2Ts of a bidirectional command
    /// share their numbers (RFC 7143 §11.7.5).
    pub fn data_came(&mut self, next: u32) {
        (self.data_sn, self.restart_data) = (next, false);
        let shared = self.write.is_some();
        if shared {
            self.r2t_sn = next;
        }
        if let Some(trouble) = &mut self.trouble {
            trouble.data_came(next);
            if shared {
                trouble.r2t_came(next);
            }
        }
    }

    /// As [`Self::data_came`], for R2Ts.
    pub fn r2t_came(&mut self, next: u32) {
        (self.r2t_sn, self.restart_r2t) = (next, false);
        let shared = self.read_len.is_some();
        if shared {
            self.data_sn = next;
        }
        if let Some(trouble) = &mut self.trouble {
            trouble.r2t_came(next);
            if shared {
                trouble.data_came(next);
            }
        }
    }

    /// Resets the progress to that of an unsent command.
    pub fn rewind(&mut self) {
        (self.received, self.data_sn, self.solicited) = (0, 0, 0);
        (self.r2t_sn, self.r2ts_open) = (0, 0);
        (self.restart_data, self.restart_r2t, self.trouble) = (false, false, None);
    }
}

#[derive(Debug)]
pub(super) struct Task<P, T> {
    /// `Some` until the task ends.
    pub token: Option<T>,
    pub kind: Kind<P>,
    pub cmd_sn: u32,
    /// The connection that it was sent on; `None` while it waits, and while its connection is lost.
    pub connection: Option<ConnectionId>,
    /// The CID of the lost connection that it was sent on.
    pub orphan: Option<u16>,
    /// Whether it was sent, on this connection or an earlier one.
    pub sent: bool,
    /// It was resent on another connection without knowing whether the first one arrived.
    pub moved: bool,
    /// The number of moves to another connection.
    pub moves: u8,
    /// Ticks since it was sent, or a PDU for it arrived.
    pub idle: u8,
    /// The number of recovery attempts.
    pub tries: u8,
    /// The number of the internal ping whose answer shows the state of the task.
    pub probe: u32,
}

impl<P, T> Task<P, T> {
    /// Resets the task to that of an unsent one.
    pub fn begin_again(&mut self) {
        (self.connection, self.orphan) = (None, None);
        (self.sent, self.moved, self.idle, self.tries) = (false, false, 0, 0);
        if let Kind::Scsi(scsi) = &mut self.kind {
            scsi.rewind();
        }
    }
}

#[derive(Debug)]
struct Slot<P, T> {
    generation: u16,
    task: Option<Task<P, T>>,
}

#[derive(Debug)]
pub(super) struct Tasks<P, T> {
    slots: Vec<Slot<P, T>>,
    free: Vec<u16>,
    max: usize,
    len: usize,
    /// The number of SCSI commands among them.
    commands: usize,
    /// The number of internal tasks, which are counted separately.
    internal: usize,
}

/// The maximum number of internal tasks, in addition to the owner's.
const MAX_INTERNAL: usize = 256;

impl<P, T> Tasks<P, T> {
    /// Slot 0xffff stays unused: the tag 0xffffffff is reserved (RFC 7143 §11.2.1.8).
    pub fn new(max: usize) -> Self {
        Tasks {
            slots: Vec::new(),
            free: Vec::new(),
            max: max.clamp(1, 0xffff),
            len: 0,
            commands: 0,
            internal: 0,
        }
    }

    pub fn len(&self) -> usize {
        self.len
    }

    /// The number of the owner's SCSI commands.
    pub fn commands(&self) -> usize {
        self.commands
    }

    /// Inserts a task; returns the token if the limit is reached.
    #[inline]
    pub fn insert(
        &mut self,
        token: T,
        kind: Kind<P>,
        cmd_sn: u32,
        connection: Option<ConnectionId>,
    ) -> Result<TaskKey, T> {
        if self.len >= self.max {
            return Err(token);
        }
        let Some(index) = self.free_slot() else { return Err(token) };
        self.len += 1;
        self.commands += usize::from(matches!(kind, Kind::Scsi(_)));
        Ok(self.put(index, Some(token), kind, cmd_sn, connection))
    }

    /// As [`Tasks::insert`] for an internal task. `None` if there are too many.
    pub fn insert_internal(&mut self, kind: Kind<P>, cmd_sn: u32, on: ConnectionId) -> Option<TaskKey> {
        if self.internal >= MAX_INTERNAL {
            return None;
        }
        let index = self.free_slot()?;
        self.internal += 1;
        Some(self.put(index, None, kind, cmd_sn, Some(on)))
    }

    #[inline]
    fn free_slot(&mut self) -> Option<u16> {
        match self.free.pop() {
            Some(index) => Some(index),
            None if self.slots.len() < 0xffff => {
                self.slots.push(Slot { generation: 0, task: None });
                Some((self.slots.len() - 1) as u16)
            }
            None => None,
        }
    }

    #[inline]
    fn put(
        &mut self,
        index: u16,
        token: Option<T>,
        kind: Kind<P>,
        cmd_sn: u32,
        connection: Option<ConnectionId>,
    ) -> TaskKey {
        let slot = &mut self.slots[usize::from(index)];
        slot.generation = slot.generation.wrapping_add(1);
        let (orphan, sent, moved, moves, idle, tries, probe) = (None, false, false, 0, 0, 0, 0);
        slot.task =
            Some(Task { token, kind, cmd_sn, connection, orphan, sent, moved, moves, idle, tries, probe });
        TaskKey(u32::from(slot.generation) << 16 | u32::from(index))
    }

    pub fn get(&self, key: TaskKey) -> Option<&Task<P, T>> {
        let slot = self.slots.get(key.index())?;
        if u32::from(slot.generation) == key.0 >> 16 { slot.task.as_ref() } else { None }
    }

    pub fn get_mut(&mut self, key: TaskKey) -> Option<&mut Task<P, T>> {
        let slot = self.slots.get_mut(key.index())?;
        if u32::from(slot.generation) == key.0 >> 16 { slot.task.as_mut() } else { None }
    }

    /// Ends a task. Its content is dropped in place: only the token, and the result of `about`, are
    /// moved out.
    pub fn remove<R>(&mut self, key: TaskKey, about: impl FnOnce(&Task<P, T>) -> R) -> Option<(T, R)> {
        let slot = self.slots.get_mut(key.index())?;
        if u32::from(slot.generation) != key.0 >> 16 {
            return None;
        }
        let task = slot.task.as_mut()?;
        let told = about(task);
        let token = task.token.take();
        self.commands -= usize::from(token.is_some() && matches!(task.kind, Kind::Scsi(_)));
        slot.task = None;
        self.free.push(key.index() as u16);
        match &token {
            Some(_) => self.len -= 1,
            None => self.internal -= 1,
        }
        Some((token?, told))
    }

    pub fn iter_mut(&mut self) -> impl Iterator<Item = (TaskKey, &mut Task<P, T>)> {
        self.slots.iter_mut().enumerate().filter_map(|(i, s)| {
            let task = s.task.as_mut()?;
            Some((TaskKey(u32::from(s.generation) << 16 | i as u32), task))
        })
    }

    pub fn iter(&self) -> impl Iterator<Item = (TaskKey, &Task<P, T>)> {
        self.slots.iter().enumerate().filter_map(|(i, s)| {
            let task = s.task.as_ref()?;
            Some((TaskKey(u32::from(s.generation) << 16 | i as u32), task))
        })
    }
}
