//! The session's tasks by Initiator Task Tag. A tag holds a slot's number and how often the slot was used, so that a late
//! PDU for an ended task never meets its successor.

use crate::pdu::Lun;
use crate::sn;
use crate::text::Assembler;

use super::inbound::Completion;
use super::session::ConnectionId;

/// A task of a session, unique over a very long time. Its number is the Initiator Task Tag.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct TaskKey(pub(super) u32);

impl TaskKey {
    /// The Initiator Task Tag.
    pub fn itt(self) -> u32 {
        self.0
    }

    fn index(self) -> usize {
        (self.0 & 0xffff) as usize
    }
}

/// What a task is.
#[derive(Debug)]
pub(super) enum Kind<P> {
    Scsi(Scsi<P>),
    TaskManagement,
    Text(Assembler),
    Ping,
    Logout,
    /// The session's own ping: what it missed shows by its answer. Without token, as all that follow.
    Probe,
    /// The session's own TASK REASSIGN of that task.
    Reassign {
        task: TaskKey,
        /// It was sent again on another connection before.
        sent_again: bool,
    },
    /// The session's own logout of the connection with that CID, to recover its tasks.
    Removal(u16),
}

/// A SCSI command's state.
#[derive(Debug)]
pub(super) struct Scsi<P> {
    pub lun: Lun,
    pub attribute: crate::pdu::TaskAttribute,
    pub cdb: [u8; 16],
    /// The CDB's bytes beyond the first 16.
    pub cdb_rest: Option<Box<[u8]>>,
    pub write: Option<P>,
    pub write_len: u32,
    /// Bytes expected from the target; `None` if the command reads nothing.
    pub read_len: Option<u32>,
    pub may_repeat: bool,
    /// Bytes placed so far.
    pub received: u32,
    /// DataSN that the next Data-In carries.
    pub data_sn: u32,
    /// R2TSN that the next R2T carries.
    pub r2t_sn: u32,
    /// R2Ts whose data has not been handed to the sink yet.
    pub r2ts_open: u16,
    /// Bytes of the write that were sent unsolicited or asked for by R2Ts.
    pub solicited: u32,
    /// The target may begin again with any number that it has used: the task was reassigned.
    pub restart_data: bool,
    pub restart_r2t: bool,
    /// The connection's segment length when the command was sent (RFC 7143 §11.16.1).
    pub segment_epoch: u16,
    /// What is missing, from the first fault on.
    pub trouble: Option<Box<Trouble>>,
}

impl<P> Scsi<P> {
    /// All Data-In before `next` have come. A bidirectional command's R2Ts have their numbers among those (RFC 7143 §11.7.5).
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

    /// As [`Self::data_came`], of R2Ts.
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

    /// As if the command had never been sent.
    pub fn rewind(&mut self) {
        (self.received, self.data_sn, self.solicited) = (0, 0, 0);
        (self.r2t_sn, self.r2ts_open) = (0, 0);
        (self.restart_data, self.restart_r2t, self.trouble) = (false, false, None);
    }
}

/// A gap in numbered PDUs, all of which from the first that is missing on were asked for again.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Gap {
    pub open: bool,
    /// The newest number that came since; one that is not after it shows that the sending again has begun.
    pub last: u32,
}

impl Gap {
    /// Notes a number that came before its turn. Answers whether to ask: for the first time, or since what was asked for
    /// is on its way and its beginning did not come.
    pub fn early(&mut self, got: u32) -> bool {
        let ask = !self.open || sn::le(got, self.last);
        *self = Gap { open: true, last: got };
        ask
    }
}

/// What a task with a fault waits for.
#[derive(Debug, Default)]
pub(super) struct Trouble {
    pub data: Gap,
    pub r2t: Gap,
    /// The command's end, and the DataSN after the last of the data that it waits for.
    pub held: Option<(Completion, u32)>,
    /// The tag of the last R-Data SNACK, without which a SCSI Response is an old one (RFC 7143 §11.4.5).
    pub snack_tag: Option<u32>,
    /// Numbers of Data-In showed the gap.
    pub seen: bool,
    /// The target cannot send again what is missing, and will end the command.
    pub refused: bool,
}

#[derive(Debug)]
pub(super) struct Task<P, T> {
    /// There until the task ends.
    pub token: Option<T>,
    pub kind: Kind<P>,
    pub cmd_sn: u32,
    /// Where it was sent; `None` while it waits, and while its connection is lost.
    pub connection: Option<ConnectionId>,
    /// The CID of the lost connection that it was sent on.
    pub orphan: Option<u16>,
    /// Whether it has left on the connection, or one before it.
    pub sent: bool,
    /// It was sent again without knowing whether the first went lost, on another connection.
    pub moved: bool,
    /// How often it was moved to another connection.
    pub moves: u8,
    /// Ticks since it was sent, or something came for it.
    pub idle: u8,
    /// How often something was done about its silence or its gaps.
    pub tries: u8,
    /// The session's ping whose answer shows what became of it.
    pub probe: u32,
}

impl<P, T> Task<P, T> {
    /// As if it had never been sent.
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
    /// Those of them that are SCSI commands.
    commands: usize,
    /// The session's own, which are not counted with the others.
    internal: usize,
}

/// The session's own tasks at once, beyond the owner's.
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

    /// Those of the owner's that are SCSI commands.
    pub fn commands(&self) -> usize {
        self.commands
    }

    pub fn is_full(&self) -> bool {
        self.len >= self.max
    }

    /// Gives the token back if there are as many as the limit.
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

    /// As [`Tasks::insert`] for a task of the session itself. `None` when it has too many.
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

    /// Ends a task. What it holds is dropped where it is: only the token, and what `about` says of the rest, is moved.
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
