//! An OSD on a memory store, driven without a ring: each command as an initiator would send it.

mod attributes;
mod creation;
mod data;
mod errors;
mod isolation;
mod lists;
mod long_replies;
mod partitions;
mod power_cuts;
mod queries;
mod quotas;
mod sequences;
mod sets;
mod spc;
mod times;
mod tunnels;

use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll, Wake, Waker};

use device::{
    Command, DataMover, Execution, ItlNexus, LogicalUnit, Lost, Nexus, NexusId, Outcome, TaskAttribute,
};
use osd::attributes::list::{ValueList, parse_many, write_get, write_values};
use osd::attributes::{AttributeId, Page};
use osd::cdb::{AttributeParameters, Cdb, Isolation, Region, Timestamps};
use osd::continuation::{Continuation, Descriptor};
use osd::sense;
use osd::{Command as Osd, Form, Id, Version, offset};
use runtime::{Buf, Chain, Pooled};
use scsi::reservation::TransportId;
use scsi::{AdditionalSense, FieldPointer, KeySpecific, Sense, SenseKey, Status};

use super::{Clock, OsdOptions, OsdUnit};
use crate::oracle::Oracle;

struct Thread(std::thread::Thread);

impl Wake for Thread {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

pub fn block_on<F: Future>(future: F) -> F::Output {
    let mut future = pin!(future);
    let waker = Waker::from(Arc::new(Thread(std::thread::current())));
    loop {
        if let Poll::Ready(output) = future.as_mut().poll(&mut Context::from_waker(&waker)) {
            return output;
        }
        std::thread::park();
    }
}

/// Polls a future once, with a waker that does nothing.
pub fn poll<F: Future + Unpin>(future: &mut F) -> Poll<F::Output> {
    pin!(future).poll(&mut Context::from_waker(Waker::noop()))
}

/// Data-out from a vector, data-in into one.
pub struct TestMover {
    data_out: Vec<u8>,
    room: usize,
    data_in: Vec<u8>,
    /// Number of times that data or room is not there yet.
    pending: usize,
    /// Number of times that it is there before that.
    free: usize,
    /// Number of requests until its command is aborted.
    asks: usize,
}

impl TestMover {
    /// Its command is aborted when it has been asked so often whether there is room.
    pub fn aborted_after(asks: usize, data_out: &[u8]) -> Self {
        Self { data_out: data_out.to_vec(), room: 0, data_in: Vec::new(), pending: 0, free: 0, asks }
    }

    fn wait(&mut self, cx: &Context<'_>) -> bool {
        if self.free > 0 || self.pending == 0 {
            self.free = self.free.saturating_sub(1);
            return false;
        }
        self.pending -= 1;
        cx.waker().wake_by_ref();
        true
    }
}

impl DataMover for TestMover {
    fn put_data(&mut self, data: Buf) {
        let left = self.room.saturating_sub(self.data_in.len());
        self.data_in.extend(data.to_vec().into_iter().take(left));
    }

    fn poll_put_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Lost>> {
        if self.asks == 0 {
            return Poll::Ready(Err(Lost));
        }
        self.asks -= 1;
        if self.wait(cx) { Poll::Pending } else { Poll::Ready(Ok(())) }
    }

    fn poll_get_data(&mut self, cx: &mut Context<'_>, len: usize) -> Poll<Result<Chain, Lost>> {
        if self.asks == 0 {
            return Poll::Ready(Err(Lost));
        }
        if self.wait(cx) {
            return Poll::Pending;
        }
        let rest = self.data_out.split_off(len.min(self.data_out.len()));
        let data = std::mem::replace(&mut self.data_out, rest);
        Poll::Ready(Ok(data.into()))
    }

    fn poll_lost(&mut self, _: &mut Context<'_>) -> Poll<Lost> {
        if self.asks == 0 { Poll::Ready(Lost) } else { Poll::Pending }
    }
}

pub type Got = Vec<(AttributeId, Vec<u8>)>;

#[derive(Debug)]
pub struct Ran {
    pub outcome: Outcome,
    pub data: Vec<u8>,
    version: Version,
    retrieved: usize,
}

impl Ran {
    #[track_caller]
    pub fn good(self) -> Self {
        assert_eq!(self.outcome.status, Status::Good, "{:?}", self.outcome.sense);
        assert_eq!(self.outcome.sense, None);
        self
    }

    /// Its data, if it ended well or with what there was.
    #[track_caller]
    pub fn good_or_short(self) -> Vec<u8> {
        if self.outcome.status != Status::Good {
            self.fails(SenseKey::RecoveredError, sense::code::READ_PAST_END);
        }
        self.data
    }

    #[track_caller]
    pub fn sense(&self) -> &Sense {
        assert_eq!(self.outcome.status, Status::CheckCondition, "{self:?}");
        self.outcome.sense.as_ref().unwrap()
    }

    #[track_caller]
    pub fn fails(&self, key: SenseKey, additional: (u8, u8)) -> &Sense {
        let sense = self.sense();
        let found = (sense.additional.asc, sense.additional.ascq);
        assert_eq!((sense.key, found), (key, additional), "{sense:?}");
        sense
    }

    /// INVALID FIELD IN CDB at `byte`.
    #[track_caller]
    pub fn bad_field(&self, byte: u16) -> &Sense {
        self.points_at((0x24, 0x00), true, byte)
    }

    /// INVALID FIELD IN PARAMETER LIST at `byte`.
    #[track_caller]
    pub fn bad_parameter(&self, byte: u16) -> &Sense {
        self.points_at((0x26, 0x00), false, byte)
    }

    #[track_caller]
    fn points_at(&self, additional: (u8, u8), cdb: bool, at: u16) -> &Sense {
        let sense = self.fails(SenseKey::IllegalRequest, additional);
        let Some(KeySpecific::Field(FieldPointer { in_cdb, byte, .. })) = sense.key_specific else {
            panic!("no field: {sense:?}");
        };
        assert_eq!((in_cdb, byte), (cdb, at));
        sense
    }

    #[track_caller]
    pub fn quota(&self) {
        self.fails(SenseKey::DataProtect, sense::code::QUOTA);
    }

    /// The functions that were not begun and those that were done, and the object that sense data
    /// names.
    #[track_caller]
    pub fn functions(&self) -> (u32, u32, Id) {
        for descriptor in sense::Descriptor::parse_all(&self.sense().descriptors) {
            if let sense::Descriptor::Object { not_initiated, completed, id } = descriptor {
                return (not_initiated, completed, id);
            }
        }
        panic!("no object identification");
    }

    pub fn values(&self) -> Vec<(AttributeId, Vec<u8>)> {
        let list = self.data.get(self.retrieved..).unwrap_or_default();
        let list = ValueList::parse_retrieved(list, self.version).unwrap();
        list.iter().map(|value| (value.attribute, value.bytes.to_vec())).collect()
    }

    /// The attributes that were retrieved of each of many objects.
    #[track_caller]
    pub fn objects(&self) -> Vec<(u64, Got)> {
        let list = self.data.get(self.retrieved..).unwrap_or_default();
        let mut objects: Vec<(u64, Got)> = Vec::new();
        for object in parse_many(list, self.version).unwrap() {
            let values = object.values.iter().map(|value| (value.attribute, value.bytes.to_vec()));
            match objects.last_mut() {
                Some((id, found)) if *id == object.id => found.extend(values),
                _ => objects.push((object.id, values.collect())),
            }
        }
        objects
    }

    /// The one attribute that was retrieved.
    #[track_caller]
    pub fn value(&self) -> Vec<u8> {
        let values = self.values();
        assert_eq!(values.len(), 1, "{values:?}");
        values[0].1.clone()
    }

    /// The one attribute that was retrieved, as a number.
    #[track_caller]
    pub fn number(&self) -> u64 {
        self.value().iter().fold(0, |number, byte| number << 8 | u64::from(*byte))
    }
}

/// A clock that stands still until it is set.
#[derive(Default)]
pub struct TestClock(pub AtomicU64);

impl Clock for TestClock {
    fn now_ms(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

#[derive(Clone)]
pub struct Client {
    pub unit: Arc<OsdUnit>,
    pub nexus: Arc<ItlNexus>,
    pub clock: Arc<TestClock>,
    pub form: Form,
}

pub const CAPACITY: u64 = 64 << 20;
/// The partition that [`Client::ready`] makes.
pub const P: u64 = 0x1_0000;
/// The user object that it makes there.
pub const O: u64 = 0x1_0000;
pub const ID: Id = Id::new(P, O);

/// An attribute of a user object that clients define.
pub const FREE: AttributeId = AttributeId::new(Page(0x1_0000), 1);

pub fn options(clock: &Arc<TestClock>) -> OsdOptions {
    OsdOptions { clock: clock.clone(), ..OsdOptions::default() }.with_identity("test")
}

impl Client {
    pub fn empty() -> Self {
        let clock = Arc::new(TestClock(AtomicU64::new(1_000_000)));
        let options = options(&clock);
        Self::of(options, clock)
    }

    pub fn of(options: OsdOptions, clock: Arc<TestClock>) -> Self {
        Self::on(&Oracle::new(CAPACITY), options, clock)
    }

    pub fn on(store: &Oracle, options: OsdOptions, clock: Arc<TestClock>) -> Self {
        let unit = OsdUnit::new(Arc::new(store.clone()), options).unwrap();
        Self::to(&unit, 1, clock)
    }

    pub fn to(unit: &Arc<OsdUnit>, id: u64, clock: Arc<TestClock>) -> Self {
        let this = Self::fresh(unit, id, false, clock);
        assert!(this.nexus.take_attention().is_some());
        this
    }

    pub fn fresh(unit: &Arc<OsdUnit>, id: u64, read_only: bool, clock: Arc<TestClock>) -> Self {
        let initiator = format!("iqn.2000-01.com.example:host{id}");
        let nexus = Arc::new(ItlNexus::new(
            Arc::new(Nexus {
                id: NexusId(id),
                principal: None,
                transport_id: TransportId::iscsi_port(&initiator, id).unwrap().bytes().to_vec(),
                initiator,
                target_port: 1,
                target: "iqn.2000-01.com.example:target".into(),
                ports: None,
            }),
            read_only,
        ));
        unit.attach(&nexus);
        Self { unit: unit.clone(), nexus, clock, form: Form::Osd2 }
    }

    /// Of a new unit with a partition and an empty user object.
    pub fn ready() -> Self {
        let this = Self::empty();
        this.make();
        this
    }

    /// The same in each form of CDB.
    pub fn each_form() -> impl Iterator<Item = Self> {
        [Form::Osd1, Form::Osd2Draft, Form::Osd2].into_iter().map(|form| {
            let mut this = Self::ready();
            this.form = form;
            this
        })
    }

    pub fn make(&self) {
        self.ask(Osd::CreatePartition { requested: P }).send().good();
        self.create(O).good();
    }

    pub fn start(&self, cdb: &[u8], out: &[u8], room: usize, pending: usize) -> Execution<TestMover> {
        self.start_late(cdb, out, room, 0, pending)
    }

    pub fn execute<M: DataMover + 'static>(
        &self,
        cdb: &[u8],
        data_out_len: u64,
        data_in_len: u64,
        mover: M,
    ) -> Execution<M> {
        let command = Command {
            cdb: device::Cdb::new(cdb).unwrap(),
            attribute: TaskAttribute::Simple,
            nexus: self.nexus.clone().into(),
            tag: 0,
            data_out_len,
            data_in_len,
        };
        self.unit.execute(command, mover)
    }

    /// The mover keeps it waiting `pending` times, after it has not for `free` times.
    pub fn start_late(
        &self,
        cdb: &[u8],
        out: &[u8],
        room: usize,
        free: usize,
        pending: usize,
    ) -> Execution<TestMover> {
        let mover = TestMover { room, pending, free, ..TestMover::aborted_after(usize::MAX, out) };
        self.execute(cdb, out.len() as u64, room as u64, mover)
    }

    pub fn end(execution: Execution<TestMover>) -> (Vec<u8>, Outcome) {
        let (mover, outcome) = match execution {
            Execution::Done(mover, outcome) => (mover, outcome),
            Execution::Running(future) => block_on(future),
        };
        (mover.data_in, outcome)
    }

    pub fn raw(&self, cdb: &[u8], out: &[u8]) -> Ran {
        let (data, outcome) = Self::end(self.start(cdb, out, 64 << 20, 0));
        Ran { outcome, data, version: self.form.version(), retrieved: 0 }
    }

    /// Runs any CDB, whose first wait for the initiator lasts until `meanwhile` is done. A READ
    /// asks twice before it waits.
    pub fn raw_stalled(&self, cdb: &[u8], out: &[u8], meanwhile: impl FnOnce()) -> Ran {
        let Execution::Running(mut future) = self.start(cdb, out, 64 << 20, 2) else {
            panic!("it did not wait")
        };
        let polled = poll(&mut future);
        assert!(polled.is_pending(), "it did not wait");
        meanwhile();
        let (mover, outcome) = block_on(future);
        Ran { outcome, data: mover.data_in, version: self.form.version(), retrieved: 0 }
    }

    pub fn ask(&self, command: Osd) -> Ask<'_> {
        let mut cdb = Cdb::new(command);
        cdb.form = self.form;
        Ask {
            client: self,
            cdb,
            data: Vec::new(),
            get: Vec::new(),
            set: Vec::new(),
            allocation: 1 << 20,
            descriptors: Vec::new(),
            room: 64 << 20,
        }
    }

    pub fn create(&self, object: u64) -> Ran {
        self.ask(Osd::Create { partition: P, requested: object, count: 1 }).send()
    }

    /// Creates a tracking collection with the members of `source`.
    pub fn track(&self, source: u64) -> Id {
        let create = Osd::CreateUserTrackingCollection { partition: P, requested: 0, source };
        let created = osd::attributes::numbers::current_command::OBJECT_ID;
        Id::new(P, self.ask(create).get(&[created]).send().good().number())
    }

    pub fn write(&self, start: u64, data: &[u8]) -> Ran {
        self.ask(Osd::Write(ID, range(start, data.len() as u64))).data(data).send()
    }

    pub fn read(&self, start: u64, len: u64) -> Ran {
        self.ask(Osd::Read(ID, range(start, len))).send()
    }

    pub fn get(&self, id: Id, attribute: AttributeId) -> Ran {
        self.ask(Osd::GetAttributes(id)).get(&[attribute]).send()
    }

    pub fn set(&self, id: Id, attribute: AttributeId, value: &[u8]) -> Ran {
        self.ask(Osd::SetAttributes(id)).set(attribute, value).send()
    }

    pub fn length(&self) -> u64 {
        self.get(ID, osd::attributes::numbers::user_information::LOGICAL_LENGTH).good().number()
    }

    pub fn tick(&self, ms: u64) {
        self.clock.0.fetch_add(ms, Ordering::Relaxed);
    }
}

pub fn range(start: u64, len: u64) -> osd::cdb::ObjectRange {
    osd::cdb::ObjectRange { start, len }
}

#[derive(Clone)]
pub struct Ask<'a> {
    client: &'a Client,
    pub cdb: Cdb,
    data: Vec<u8>,
    get: Vec<AttributeId>,
    set: Vec<(AttributeId, Vec<u8>)>,
    allocation: u32,
    descriptors: Vec<Descriptor>,
    room: usize,
}

impl Ask<'_> {
    pub fn data(mut self, data: &[u8]) -> Self {
        self.data = data.to_vec();
        self
    }
    pub fn get(mut self, attributes: &[AttributeId]) -> Self {
        self.get.extend(attributes);
        self
    }
    pub fn set(mut self, attribute: AttributeId, value: &[u8]) -> Self {
        self.set.push((attribute, value.to_vec()));
        self
    }
    pub fn allocation(mut self, bytes: u32) -> Self {
        self.allocation = bytes;
        self
    }
    pub fn room(mut self, bytes: usize) -> Self {
        self.room = bytes;
        self
    }
    pub fn descriptor(mut self, descriptor: Descriptor) -> Self {
        self.descriptors.push(descriptor);
        self
    }
    pub fn isolation(mut self, isolation: Isolation) -> Self {
        self.cdb.options.isolation = isolation;
        self
    }
    pub fn fua(mut self) -> Self {
        self.cdb.options.fua = true;
        self
    }
    pub fn bypass(mut self) -> Self {
        self.cdb.timestamps = Timestamps::Bypass;
        self
    }

    /// The CDB and its Data-Out, and where retrieved attributes go.
    pub fn build(mut self) -> (Vec<u8>, Vec<u8>, usize) {
        let version = self.cdb.form.version();
        let mut out = Vec::new();
        if !self.descriptors.is_empty() {
            let continuation = Continuation::new(std::mem::take(&mut self.descriptors));
            out = continuation.encode(self.cdb.command.action()).unwrap();
            self.cdb.continuation = out.len() as u32;
        }
        out.extend(&self.data);
        let mut retrieved_at = 0;
        if !self.get.is_empty() || !self.set.is_empty() {
            let place = |out: &mut Vec<u8>, list: &[u8]| {
                let at = offset::round_up(out.len() as u64, version).unwrap();
                out.resize(at as usize, 0xEE);
                out.extend(list);
                Some(Region { len: list.len() as u32, offset: at })
            };
            let get = (!self.get.is_empty()).then(|| {
                let mut list = Vec::new();
                write_get(&mut list, version, self.get.iter().copied());
                list
            });
            let get = get.and_then(|list| place(&mut out, &list));
            let set = (!self.set.is_empty()).then(|| {
                let mut list = Vec::new();
                let values = self.set.iter().map(|(attribute, value)| (*attribute, Some(&value[..])));
                write_values(&mut list, version, values).unwrap();
                list
            });
            let set = set.and_then(|list| place(&mut out, &list));
            let behind = self.cdb.command.data_in_len();
            let at = offset::round_up(behind, version).unwrap();
            retrieved_at = at as usize;
            let retrieved = get.map(|_| Region { len: self.allocation, offset: at });
            self.cdb.attributes = AttributeParameters::List { get, retrieved, set };
        }
        (self.cdb.encode().unwrap().to_vec(), out, retrieved_at)
    }

    /// Begins a command that has to wait: see [`Client::start_late`].
    #[track_caller]
    pub fn begin(self, room: usize, free: usize, pending: usize) -> Pooled<(TestMover, Outcome)> {
        let client = self.client;
        let (cdb, out, _) = self.build();
        match client.start_late(&cdb, &out, room, free, pending) {
            Execution::Running(future) => future,
            Execution::Done(..) => panic!("it waits for nothing"),
        }
    }

    /// Number of pauses for others, of 1000 at most. Its mover is asked for data `asked` times
    /// before.
    pub fn pauses(self, asked: usize) -> usize {
        let room = self.room;
        let (mover, outcome) = block_on(self.begin(room, asked, 1000));
        assert_eq!(outcome.status, Status::Good, "{:?}", outcome.sense);
        1000 - mover.pending
    }

    pub fn send(self) -> Ran {
        block_on(self.run(0))
    }

    /// The same with the mover ready only at the third time of asking.
    pub fn send_slowly(self) -> Ran {
        block_on(self.run(3))
    }

    /// The same with a mover that keeps it waiting `pending` times.
    pub async fn run(self, pending: usize) -> Ran {
        let (client, version, room) = (self.client, self.cdb.form.version(), self.room);
        let (cdb, out, retrieved) = self.build();
        let (mover, outcome) = match client.start(&cdb, &out, room, pending) {
            Execution::Done(mover, outcome) => (mover, outcome),
            Execution::Running(future) => future.await,
        };
        Ran { outcome, data: mover.data_in, version, retrieved }
    }
}

#[track_caller]
pub fn refused(ran: &Ran, additional: AdditionalSense) {
    ran.fails(SenseKey::IllegalRequest, (additional.asc, additional.ascq));
}
