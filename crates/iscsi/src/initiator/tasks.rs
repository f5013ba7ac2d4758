//! The session's tasks by Initiator Task Tag. A tag holds a slot's number and how often the slot was used, so that a late
//! PDU for an ended task never meets its successor.

use crate::pdu::Lun;
use crate::text::Assembler;

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
}

#[derive(Debug)]
pub(super) struct Task<P, T> {
    /// There until the task ends.
    pub token: Option<T>,
    pub kind: Kind<P>,
    pub cmd_sn: u32,
    /// Where it was sent; `None` while it waits.
    pub connection: Option<ConnectionId>,
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
}

impl<P, T> Tasks<P, T> {
    /// Slot 0xffff stays unused: the tag 0xffffffff is reserved (RFC 7143 §11.2.1.8).
    pub fn new(max: usize) -> Self {
        Tasks { slots: Vec::new(), free: Vec::new(), max: max.clamp(1, 0xffff), len: 0 }
    }

    pub fn len(&self) -> usize {
        self.len
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
        let index = match self.free.pop() {
            Some(index) => index,
            None if self.slots.len() < self.max => {
                self.slots.push(Slot { generation: 0, task: None });
                (self.slots.len() - 1) as u16
            }
            None => return Err(token),
        };
        let slot = &mut self.slots[usize::from(index)];
        slot.generation = slot.generation.wrapping_add(1);
        slot.task = Some(Task { token: Some(token), kind, cmd_sn, connection });
        self.len += 1;
        Ok(TaskKey(u32::from(slot.generation) << 16 | u32::from(index)))
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
        slot.task = None;
        self.free.push(key.index() as u16);
        self.len -= 1;
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
