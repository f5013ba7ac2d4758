//! Where a link's PDUs go: into its byte stream, or one by one into iSER messages, with the data moved beside them by RDMA.
//!
//! Keeps what each task's initiator advertised. It decides nothing about tasks.

use ::iser::Control;
use iscsi::target::{Payload, Read, Sink, TaskKey};

use super::payload::Segment;
use crate::iser;
use crate::rdma::Pair;

/// What a link sends.
#[derive(Default)]
pub(super) struct Output {
    /// What the network takes next.
    pub bytes: Vec<u8>,
    /// Nothing is sent any more: what is written is dropped.
    muted: bool,
    rdma: Option<Rdma>,
}

struct Rdma {
    pair: Pair,
    /// What there is of the PDU that is being written.
    pdu: Vec<u8>,
    /// The PDU being written ends this task.
    ends: Option<TaskKey>,
    /// What commands advertised, by slot.
    controls: Vec<Option<(TaskKey, Control)>>,
    fault: Option<String>,
}

impl Output {
    /// Over a queue pair that is to answer.
    pub fn over(pair: Pair) -> Self {
        let rdma = Rdma { pair, pdu: Vec::new(), ends: None, controls: Vec::new(), fault: None };
        Self { rdma: Some(rdma), ..Self::default() }
    }

    /// The queue pair, of iSER.
    pub fn pair(&mut self) -> Option<&mut Pair> {
        self.rdma.as_mut().map(|rdma| &mut rdma.pair)
    }

    /// Puts what the queue pair may send to the rest. Answers how much waits.
    pub fn gather(&mut self) -> usize {
        if let Some(rdma) = &mut self.rdma {
            self.bytes.append(&mut rdma.pair.take_output());
        }
        self.len()
    }

    /// The link is gone: what waits is dropped, and so is all that is written from now on.
    pub fn mute(&mut self) {
        self.muted = true;
        self.bytes.clear();
    }

    /// Bytes that wait to be sent.
    pub fn len(&self) -> usize {
        self.bytes.len() + self.rdma.as_ref().map_or(0, |rdma| rdma.pair.held())
    }

    /// What must never happen, and did.
    pub fn fault(&mut self) -> Option<String> {
        self.rdma.as_mut().and_then(|rdma| rdma.fault.take())
    }

    /// A PDU outside of the full-feature phase.
    pub fn pdu(&mut self, bytes: &[u8]) {
        match &mut self.rdma {
            Some(rdma) => rdma.pair.send(iser::message(Control::default(), bytes), None),
            None => self.bytes.extend_from_slice(bytes),
        }
    }

    /// A command has come with these STags.
    pub fn advertised(&mut self, task: TaskKey, control: Control) {
        let Some(rdma) = &mut self.rdma else { return };
        if rdma.controls.len() <= task.slot() {
            rdma.controls.resize(task.slot() + 1, None);
        }
        rdma.controls[task.slot()] = Some((task, control));
    }

    /// Writes a read's data, if this is iSER: gives it back otherwise.
    pub fn put(
        &mut self,
        task: TaskKey,
        mut data: Segment,
        place: impl FnOnce(usize) -> Option<(u32, usize)>,
    ) -> Option<Segment> {
        let Some(rdma) = &mut self.rdma else { return Some(data) };
        if let Some((offset, len)) = place(Payload::len(&data)) {
            let written = match rdma.control(task).and_then(|control| control.read) {
                Some(remote) => {
                    let bytes = Payload::to_vec(&data.split_to(len));
                    rdma.pair.write(remote.stag, remote.offset.wrapping_add(offset.into()), bytes)
                }
                None => Err("a read without memory".to_owned()),
            };
            rdma.fault = rdma.fault.take().or(written.err());
        }
        None
    }

    /// Whether data comes by RDMA Reads.
    pub fn reads(&self) -> bool {
        self.rdma.is_some()
    }

    /// Reads some of a write's data.
    pub fn read(&mut self, task: TaskKey, read: Read) {
        let Some(rdma) = &mut self.rdma else { return };
        let posted = match rdma.control(task).and_then(|control| control.write) {
            Some(remote) => {
                let to = remote.offset.wrapping_add(read.offset.into());
                rdma.pair.read(remote.stag, to, read.len, id_of(task, read.at))
            }
            None => Err("a write without memory".to_owned()),
        };
        rdma.fault = rdma.fault.take().or(posted.err());
    }
}

/// The number of a task's RDMA Read that fetches what begins with byte `at` of its data-out.
fn id_of(task: TaskKey, at: u32) -> u64 {
    u64::from(at) << 32 | u64::from(task.tag())
}

/// The task whose RDMA Read has this number, and which byte of its data-out that begins with.
pub(super) fn reader(id: u64) -> (TaskKey, u32) {
    (TaskKey::from_tag(id as u32), (id >> 32) as u32)
}

impl Rdma {
    fn control(&self, task: TaskKey) -> Option<Control> {
        let (owner, control) = (*self.controls.get(task.slot())?)?;
        (owner == task).then_some(control)
    }
}

impl Sink<Segment> for Output {
    fn bytes(&mut self, bytes: &[u8]) {
        match &mut self.rdma {
            Some(rdma) => rdma.pdu.extend_from_slice(bytes),
            None if self.muted => {}
            None => self.bytes.extend_from_slice(bytes),
        }
    }

    fn payload(&mut self, payload: Segment) {
        self.bytes(&Payload::to_vec(&payload));
    }

    fn ends(&mut self, task: TaskKey) {
        if let Some(rdma) = &mut self.rdma {
            rdma.ends = Some(task);
        }
    }

    fn whole(&mut self) {
        if let Some(rdma) = &mut self.rdma {
            let ended = rdma.ends.take().and_then(|task| rdma.control(task));
            let invalidate = ended.and_then(|control| control.invalidates());
            let message = iser::message(Control::default(), &std::mem::take(&mut rdma.pdu));
            rdma.pair.send(message, invalidate);
        }
    }
}
