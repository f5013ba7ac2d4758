//! Sends OSD commands to a unit as a server would, with Data-Out and Data-In in memory. Knows the wire through crate `osd`
//! only.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll};

use device::{Command, DataMover, Execution, ItlNexus, LogicalUnit, Lost, Nexus, NexusId, TaskAttribute};
use objects::store::ObjectStore;
use objects::unit::{Clock, OsdOptions, OsdUnit};
use osd::attributes::AttributeId;
use osd::attributes::list::{ValueList, header_len, parse_many, write_entry, write_get};
use osd::cdb::{AttributeParameters, Cdb, Region};
use osd::continuation::{Continuation, Descriptor};
use osd::{Command as Osd, Form, Version, offset};
use runtime::{Buf, Chain};
use scsi::reservation::TransportId;
use scsi::{FieldPointer, KeySpecific, Sense, SenseKey, Status};

/// A clock that a test moves.
#[derive(Default)]
pub struct Hands(AtomicU64);

impl Clock for Hands {
    fn now_ms(&self) -> u64 {
        self.0.fetch_add(1, Ordering::Relaxed)
    }
}

/// Data of one command, in memory. It is not always ready at once.
struct Memory {
    data_out: Vec<u8>,
    data_in: Vec<u8>,
    room: usize,
    pending: bool,
}

impl DataMover for Memory {
    fn put_data(&mut self, data: Buf) {
        let left = self.room.saturating_sub(self.data_in.len());
        self.data_in.extend(data.to_vec().into_iter().take(left));
    }

    fn poll_put_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Lost>> {
        if std::mem::take(&mut self.pending) {
            cx.waker().wake_by_ref();
            return Poll::Pending;
        }
        Poll::Ready(Ok(()))
    }

    fn poll_get_data(&mut self, _: &mut Context<'_>, len: usize) -> Poll<Result<Chain, Lost>> {
        let rest = self.data_out.split_off(len.min(self.data_out.len()));
        let data = std::mem::replace(&mut self.data_out, rest);
        Poll::Ready(Ok(data.into()))
    }

    fn poll_lost(&mut self, _: &mut Context<'_>) -> Poll<Lost> {
        Poll::Pending
    }
}

/// A command with its data and attributes.
#[derive(Clone, Debug)]
pub struct Request {
    pub command: Osd,
    pub form: Form,
    pub fua: bool,
    pub get: Vec<AttributeId>,
    pub set: Vec<(AttributeId, Vec<u8>)>,
    pub data: Vec<u8>,
    pub descriptors: Vec<Descriptor>,
    /// LIST_ATTR: what is got comes with the list.
    pub listed: bool,
}

impl Request {
    pub fn new(command: Osd) -> Self {
        Self {
            command,
            form: Form::Osd2,
            fua: false,
            get: Vec::new(),
            set: Vec::new(),
            data: Vec::new(),
            descriptors: Vec::new(),
            listed: false,
        }
    }
    pub fn get(mut self, attributes: &[AttributeId]) -> Self {
        self.get.extend(attributes);
        self
    }
    pub fn data(mut self, data: &[u8]) -> Self {
        self.data = data.to_vec();
        self
    }
    pub fn with(mut self, descriptor: Descriptor) -> Self {
        self.descriptors.push(descriptor);
        self
    }
}

/// Why a command is refused, as far as sense data tells and the model foretells it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// INVALID FIELD IN CDB.
    Cdb(u16),
    /// INVALID FIELD IN PARAMETER LIST.
    Parameter,
    /// PARTITION OR COLLECTION CONTAINS USER OBJECTS.
    NotEmpty,
    /// QUOTA ERROR.
    Quota,
    /// WRITE PROTECTED.
    Protected,
    /// WRITE ERROR or UNRECOVERED READ ERROR.
    Medium,
    /// READ PAST END: so many bytes were there.
    PastEnd(u64),
}

/// What came of a command.
#[derive(Debug)]
pub struct Answer {
    pub result: Result<(), Fault>,
    pub data: Vec<u8>,
    pub retrieved_at: usize,
    pub version: Version,
}

impl Answer {
    /// The attributes that were retrieved, in order; one that does not exist has no value.
    pub fn values(&self) -> Vec<(AttributeId, Vec<u8>)> {
        let list = self.data.get(self.retrieved_at..).unwrap_or_default();
        let list = ValueList::parse_retrieved(list, self.version).expect("a list of values");
        list.iter().map(|value| (value.attribute, value.bytes.to_vec())).collect()
    }

    /// The ids of the objects in a list of many, and the attributes of the first.
    pub fn of_many(&self) -> (Vec<u64>, Vec<(AttributeId, Vec<u8>)>) {
        let list = self.data.get(self.retrieved_at..).unwrap_or_default();
        let found = parse_many(list, self.version).expect("a list of many objects");
        let mut ids: Vec<u64> = found.iter().map(|object| object.id).collect();
        ids.dedup();
        let first = found.iter().filter(|object| object.id == ids[0]).flat_map(|object| object.values.iter());
        let first = first.map(|value| (value.attribute, value.bytes.to_vec())).collect();
        (ids, first)
    }

    /// The attribute `at` of those that were retrieved, as a number.
    pub fn number(&self, at: usize) -> u64 {
        self.values()[at].1.iter().fold(0, |number, byte| number << 8 | u64::from(*byte))
    }
}

fn fault(sense: &Sense) -> Fault {
    let code = (sense.additional.asc, sense.additional.ascq);
    match (sense.key, code, sense.key_specific) {
        (
            SenseKey::IllegalRequest,
            (0x24, 0),
            Some(KeySpecific::Field(FieldPointer { in_cdb: true, byte, .. })),
        ) => Fault::Cdb(byte),
        (
            SenseKey::IllegalRequest,
            (0x26, 0),
            Some(KeySpecific::Field(FieldPointer { in_cdb: false, .. })),
        ) => Fault::Parameter,
        (SenseKey::IllegalRequest, (0x2C, 0x0A), _) => Fault::NotEmpty,
        (SenseKey::DataProtect, (0x55, 0x07), _) => Fault::Quota,
        (SenseKey::DataProtect, (0x27, 0), _) => Fault::Protected,
        (SenseKey::MediumError, _, _) => Fault::Medium,
        (SenseKey::RecoveredError, (0x3B, 0x17), _) => {
            Fault::PastEnd(sense.command_specific.expect("how many bytes were there"))
        }
        _ => panic!("sense data that nothing calls for: {sense:?}"),
    }
}

/// A unit on a store, and an initiator's way to it.
pub struct Client {
    unit: Arc<OsdUnit>,
    nexus: Arc<ItlNexus>,
}

impl Client {
    pub fn new(store: Arc<dyn ObjectStore>, clock: Arc<Hands>) -> Self {
        let options = OsdOptions { clock, ..OsdOptions::default() }.with_identity("model");
        let unit = OsdUnit::new(store, options).expect("a unit");
        let initiator = "iqn.2000-01.com.example:model".to_owned();
        let nexus = Nexus {
            id: NexusId(1),
            principal: None,
            transport_id: TransportId::iscsi_port(&initiator, 1).expect("a name").bytes().to_vec(),
            initiator,
            target_port: 1,
            target: "iqn.2000-01.com.example:target".into(),
            ports: None,
        };
        let nexus = Arc::new(ItlNexus::new(Arc::new(nexus), false));
        unit.attach(&nexus);
        assert!(nexus.take_attention().is_some());
        Self { unit, nexus }
    }

    pub async fn send(&self, request: &Request) -> Answer {
        let version = request.form.version();
        let mut cdb = Cdb::new(request.command);
        cdb.form = request.form;
        cdb.options.fua = request.fua;
        let mut out = Vec::new();
        if !request.descriptors.is_empty() {
            let continuation = Continuation::new(request.descriptors.clone());
            out = continuation.encode(request.command.action()).expect("a continuation");
            cdb.continuation = out.len() as u32;
        }
        out.extend(&request.data);
        let mut place = |list: Vec<u8>| {
            let at = offset::round_up(out.len() as u64, version).expect("an offset");
            out.resize(at as usize, 0xEE);
            out.extend(&list);
            Region { len: list.len() as u32, offset: at }
        };
        let get = (!request.get.is_empty()).then(|| {
            let mut list = Vec::new();
            write_get(&mut list, version, request.get.iter().copied());
            place(list)
        });
        let set = (!request.set.is_empty()).then(|| {
            let mut list = vec![osd::attributes::list::TYPE_VALUES];
            list.resize(header_len(version), 0);
            for (attribute, value) in &request.set {
                write_entry(&mut list, version, *attribute, Some(value)).expect("a value");
            }
            place(list)
        });
        let data_in = request.command.data_in_len();
        let retrieved_at = offset::round_up(data_in, version).expect("an offset");
        let apart = get.is_some() && !request.listed;
        let retrieved = apart.then_some(Region { len: 1 << 20, offset: retrieved_at });
        if get.is_some() || set.is_some() {
            cdb.attributes = AttributeParameters::List { get, retrieved, set };
        }
        let room = if apart { retrieved_at as usize + (1 << 20) } else { data_in as usize };
        let bytes = cdb.encode().expect("a CDB");
        let command = Command {
            cdb: device::Cdb::new(&bytes).expect("a CDB"),
            attribute: TaskAttribute::Simple,
            nexus: self.nexus.clone().into(),
            tag: 0,
            data_out_len: out.len() as u64,
            data_in_len: room as u64,
        };
        let mover = Memory { data_out: out, data_in: Vec::new(), room, pending: true };
        let (mover, outcome) = match self.unit.execute(command, mover) {
            Execution::Done(mover, outcome) => (mover, outcome),
            Execution::Running(future) => future.await,
        };
        let result = match (outcome.status, &outcome.sense) {
            (Status::Good, None) => Ok(()),
            (Status::CheckCondition, Some(sense)) => {
                let described = osd::sense::Descriptor::parse_all(&sense.descriptors);
                assert!(
                    described.iter().any(|d| matches!(d, osd::sense::Descriptor::Object { .. })),
                    "sense data of no object: {sense:?}"
                );
                Err(fault(sense))
            }
            other => panic!("{request:?} ended with {other:?}"),
        };
        Answer { result, data: mover.data_in, retrieved_at: retrieved_at as usize, version }
    }
}
