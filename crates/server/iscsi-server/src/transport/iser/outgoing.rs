//! Posts to a connection's queue pair: PDUs as Sends, a read's data as RDMA Writes, RDMA Reads for
//! a write's data.
//!
//! It keeps the steering tags of each command by task. So a task cannot use another task's, and no
//! tag is used after its response. Posts never wait, and are on the wire in the order of their
//! calls: a response follows its data.

use std::collections::VecDeque;

use iscsi::sn;
use iscsi::target::{Read, TaskKey};
use iser::Control;
use rdma::{Flags, QueuePair, Remote, Stag};
use runtime::{Buf, Chain};

use super::id_of;
use crate::end::NoStag;

/// Most marks kept.
const MARKS: usize = 1024;

/// One connection's way out.
pub(crate) struct Outgoing {
    pair: QueuePair,
    /// The PDU that is being written: iSER header, BHS and small data.
    head: Vec<u8>,
    /// Data of the PDU, sent by reference.
    data: Chain,
    /// STag that the PDU being written invalidates.
    invalidate: Option<Stag>,
    /// Whether the initiator lets its STags be invalidated by responses.
    remote_invalidation: bool,
    /// Whether units' memory may be sent by reference.
    lend: bool,
    /// Sending by reference has been stopped, though the queue pair would do it: memory that may
    /// change is copied first.
    copy: bool,
    /// StatSNs, and the mark ([`QueuePair::posted`]) before a PDU took that StatSN; both grow.
    marks: VecDeque<(u32, u64)>,
    /// iSER control header of each task's command, by slot.
    tags: Vec<Option<(TaskKey, Control)>>,
    /// RDMA Reads that may still be posted; `None`: only the queue pair's own limit holds.
    reads: Option<u16>,
    /// RDMA Reads that wait for that limit.
    waiting: VecDeque<(u64, Remote, usize)>,
}

impl Outgoing {
    pub(crate) fn new(pair: QueuePair, remote_invalidation: bool, lend: bool) -> Self {
        Self {
            pair,
            head: Vec::with_capacity(512),
            data: Chain::new(),
            invalidate: None,
            remote_invalidation,
            lend,
            copy: false,
            marks: VecDeque::new(),
            tags: Vec::new(),
            reads: None,
            waiting: VecDeque::new(),
        }
    }

    /// Bytes posted that the network has not taken.
    pub(crate) fn queued(&self) -> usize {
        self.pair.queued()
    }

    /// The initiator answers fewer RDMA Reads at a time than its connection request declared.
    pub(crate) fn limit_reads(&mut self, most: u16) {
        if most < self.pair.ord() {
            self.reads = Some(most);
        }
    }

    /// From here on units' memory is sent with its present content.
    pub(crate) fn stop_lending(&mut self) {
        self.copy |= std::mem::take(&mut self.lend);
    }

    /// A PDU has come whose sender expects the status `expected` next; the next status sent to it
    /// will be `next`. The initiator has everything that was posted before a status it
    /// acknowledges. Headers around memory sent by reference may then be reused (see
    /// [`crate::transport::tcp`]'s loans).
    pub(crate) fn confirm(&mut self, next: u32, expected: u32) {
        // A StatSN that was never sent confirms nothing.
        if !self.lend || sn::lt(next, expected) {
            return;
        }
        let mut confirmed = None;
        while let Some((status, mark)) = self.marks.front()
            && sn::lt(*status, expected)
        {
            confirmed = Some(*mark);
            self.marks.pop_front();
        }
        if let Some(mark) = confirmed {
            self.pair.confirm(mark);
        }
        // An initiator that confirms nothing is lent nothing; more marks than that needs are not
        // kept.
        if self.marks.len() < MARKS && self.marks.back().is_none_or(|(status, _)| *status != next) {
            self.marks.push_back((next, self.pair.posted()));
        }
    }

    /// A command has come.
    pub(crate) fn remember(&mut self, task: TaskKey, control: Control) {
        if self.tags.len() <= task.slot() {
            self.tags.resize(task.slot() + 1, None);
        }
        let known = &mut self.tags[task.slot()];
        // A second command with the first's tag is refused, and must not change where the first's
        // data goes.
        if known.is_none_or(|(other, _)| other != task) {
            *known = Some((task, control));
        }
    }

    fn control(&self, task: TaskKey) -> Control {
        match self.tags.get(task.slot()) {
            Some(Some((known, control))) if *known == task => *control,
            _ => Control::default(),
        }
    }

    /// Data-in of a task, which belongs at `offset` of the initiator's buffer.
    pub(crate) fn write(&mut self, task: TaskKey, offset: u32, data: Buf) -> Result<(), NoStag> {
        let to = remote(self.control(task).read)?.plus(offset.into());
        let mut chain = Chain::new();
        match (self.copy && data.is_lent()).then(|| data.stable()).flatten() {
            Some(copy) => chain.push(copy),
            // Without a buffer to copy it to, it is sent by reference.
            None => chain.push(data),
        }
        self.pair.post_write(to, chain, None);
        Ok(())
    }

    /// Fetches a part of a task's data-out.
    pub(crate) fn read(&mut self, task: TaskKey, read: Read) -> Result<(), NoStag> {
        let from = remote(self.control(task).write)?.plus(read.offset.into());
        let (id, len) = (id_of(task, read.at), read.len as usize);
        match &mut self.reads {
            Some(0) => self.waiting.push_back((id, from, len)),
            Some(left) => {
                *left -= 1;
                self.pair.post_read(from, len, id);
            }
            None => self.pair.post_read(from, len, id),
        }
        Ok(())
    }

    /// An RDMA Read has ended: posts a waiting one.
    pub(crate) fn read_done(&mut self) {
        let Some(left) = &mut self.reads else { return };
        match self.waiting.pop_front() {
            Some((id, from, len)) => self.pair.post_read(from, len, id),
            None => *left += 1,
        }
    }

    pub(crate) fn bytes(&mut self, bytes: &[u8]) {
        self.begin();
        match self.data.is_empty() {
            true => self.head.extend_from_slice(bytes),
            // Padding of data sent by reference: a ping's.
            false => self.data.push(bytes.to_vec()),
        }
    }

    pub(crate) fn payload(&mut self, payload: Buf) {
        self.begin();
        self.data.push(payload);
    }

    fn begin(&mut self) {
        if self.head.is_empty() {
            // A target's PDUs never name memory (RFC 7145 §9.2).
            self.head.extend_from_slice(&Control::default().encode());
        }
    }

    /// The PDU that follows ends `task`.
    pub(crate) fn ends(&mut self, task: TaskKey) {
        if self.remote_invalidation {
            self.invalidate = self.control(task).invalidates().map(Stag);
        }
        if let Some(known) = self.tags.get_mut(task.slot()) {
            *known = None;
        }
    }

    /// The PDU is whole.
    pub(crate) fn whole(&mut self) {
        // RFC 7145 §7.3: an initiator must see a target's PDUs at once.
        let flags = Flags { invalidate: self.invalidate.take(), solicited: true };
        self.pair.post_send(&self.head, std::mem::take(&mut self.data), flags, None);
        self.head.clear();
    }
}

fn remote(place: Option<iser::Remote>) -> Result<Remote, NoStag> {
    let place = place.ok_or(NoStag)?;
    Ok(Remote { stag: Stag(place.stag), offset: place.offset })
}
