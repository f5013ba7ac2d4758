//! Once warm, READ and WRITE allocate nothing, and a READ sends the store's own memory, unless the
//! unit has secrets.

#[path = "../src/store/passed_on.rs"]
mod passed_on;

use std::cell::Cell;
use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use device::{
    Cdb, Command, DataMover, Execution, ItlNexus, LogicalUnit, Lost, Nexus, NexusId, Outcome, TaskAttribute,
};
use objects::store::embedded::EmbeddedStore;
use objects::store::{
    Applied, Attribute, Attributes, Change, CheckReport, Commit, Difference, Error, Extent, Hold, Io, List,
    Membership, ObjectInfo, ObjectStore, PartitionInfo, RootInfo, Scope, Step, Times, TimesUpdate,
};
use objects::unit::{OsdOptions, OsdUnit};
use osd::attributes::numbers::partition_security;
use osd::cdb::{Isolation, ObjectRange};
use osd::continuation::{Continuation, Descriptor};
use osd::{Command as Osd, Id};
use runtime::testing::Counting;
use runtime::{Buf, Chain, Region};

use passed_on::passed_on;

#[global_allocator]
static ALLOCATOR: Counting = Counting;

const LEN: u64 = 64 << 10;
const ID: Id = Id::new(0x1_0000, 0x1_0000);

/// A store whose data is memory sent without a copy, like an embedded store's page cache, and that
/// keeps no data it is given.
struct Lending {
    metadata: EmbeddedStore,
    region: Arc<Region>,
}

impl Lending {
    fn new() -> Self {
        Self {
            metadata: EmbeddedStore::in_memory(1 << 30).unwrap(),
            region: Region::new(LEN as usize).unwrap(),
        }
    }
}

impl ObjectStore for Lending {
    passed_on!(metadata: root partition times touch attribute attributes list membership memberships reserve_ids extents differences check);

    fn object(&self, id: Id) -> Result<ObjectInfo, Error> {
        Ok(ObjectInfo { length: LEN, ..self.metadata.object(id)? })
    }
    fn hold(&self) -> Hold {
        Hold::keep(HELD.with(Rc::clone))
    }
    fn read(&self, _id: Id, at: u64, len: usize) -> Io<Chain> {
        Io::ok(self.region.slice(at as usize, len).unwrap().into())
    }
    fn apply(&self, change: Change, commit: Commit) -> Io<Applied> {
        if matches!(change.steps[..], [Step::Write { .. }, Step::SetTimes { .. }]) {
            return Io::ok(Applied::default());
        }
        self.metadata.apply(change, commit)
    }
    fn sync(&self, scope: Scope) -> Io<()> {
        self.metadata.sync(scope)
    }
}

thread_local! {
    /// Each hold keeps one more reference to it.
    static HELD: Rc<()> = Rc::new(());
    /// Number of times that the connection takes no more.
    static FULL: Cell<u32> = const { Cell::new(0) };
    static PUT: Cell<(u64, bool)> = const { Cell::new((0, true)) };
}

struct Mover(Buf);

impl DataMover for Mover {
    fn put_data(&mut self, data: Buf) {
        let (bytes, lent) = PUT.get();
        PUT.set((bytes + data.len() as u64, lent && data.is_region()));
    }
    fn poll_put_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Lost>> {
        match FULL.get().checked_sub(1) {
            None => Poll::Ready(Ok(())),
            Some(less) => {
                FULL.set(less);
                Poll::Pending
            }
        }
    }
    fn poll_get_data(&mut self, _: &mut Context<'_>, len: usize) -> Poll<Result<Chain, Lost>> {
        Poll::Ready(Ok(self.0.slice(..len).into()))
    }
    fn poll_lost(&mut self, _: &mut Context<'_>) -> Poll<Lost> {
        Poll::Pending
    }
}

fn run(unit: &Arc<OsdUnit>, command: Command, data: &Buf) -> Outcome {
    match unit.execute(command, Mover(data.clone())) {
        Execution::Done(_, outcome) => outcome,
        Execution::Running(mut future) => {
            match Pin::new(&mut future).poll(&mut Context::from_waker(Waker::noop())) {
                Poll::Ready((_, outcome)) => outcome,
                Poll::Pending => panic!("nothing to wait for"),
            }
        }
    }
}

fn nexus() -> Arc<ItlNexus> {
    Arc::new(ItlNexus::new(
        Arc::new(Nexus {
            id: NexusId(1),
            principal: None,
            transport_id: Vec::new(),
            initiator: "iqn.2000-01.com.example:host".into(),
            target_port: 1,
            target: "iqn.2000-01.com.example:target".into(),
            ports: None,
        }),
        false,
    ))
}

fn command(nexus: &Arc<ItlNexus>, cdb: Cdb, data_out_len: u64, data_in_len: u64) -> Command {
    Command {
        cdb,
        attribute: TaskAttribute::Simple,
        nexus: nexus.clone().into(),
        tag: 0,
        data_out_len,
        data_in_len,
    }
}

#[test]
fn a_warm_unit_reads_and_writes_without_allocating_and_lends_what_is_read() {
    let store = Lending::new();
    let unit = OsdUnit::new(Arc::new(store), OsdOptions::default()).unwrap();
    let nexus = nexus();
    let data = Buf::from(vec![7; LEN as usize]);
    let encoded = |osd: Osd, isolation: Isolation| {
        let mut cdb = osd::Cdb::new(osd);
        cdb.options.isolation = isolation;
        cdb.encode().unwrap()
    };
    let plain = |osd| command(&nexus, Cdb::new(&encoded(osd, Isolation::Default)).unwrap(), 0, 0);
    assert_eq!(run(&unit, plain(Osd::CreatePartition { requested: ID.partition }), &data), Outcome::GOOD);
    let create = Osd::Create { partition: ID.partition, requested: ID.object, count: 1 };
    assert_eq!(run(&unit, plain(create), &data), Outcome::GOOD);
    let range = ObjectRange { start: 0, len: LEN };
    for (name, isolation) in [("none", Isolation::None), ("range", Isolation::Range)] {
        let kinds: [(Osd, u64, u64); 2] = [(Osd::Read(ID, range), 0, LEN), (Osd::Write(ID, range), LEN, 0)];
        for (osd, out, room) in kinds {
            // An isolated READ puts a copy: it takes memory for that.
            let copies = room > 0 && isolation != Isolation::None;
            PUT.set((0, true));
            let mut left = Vec::new();
            for round in 0..64 {
                let whole = encoded(osd, isolation);
                let before = Counting::allocations_here();
                let cdb = Cdb::new(&whole).unwrap();
                let of_cdb = Counting::allocations_here() - before;
                let command = command(&nexus, cdb, out, room);
                let before = Counting::allocations_here();
                let outcome = run(&unit, command, &data);
                let allocated = Counting::allocations_here() - before + of_cdb;
                assert_eq!(outcome, Outcome { wanted_in: room, wanted_out: out, ..Outcome::GOOD });
                if round >= 8 {
                    left.push(allocated);
                }
            }
            if copies {
                assert!(!PUT.get().1, "others may change what is lent");
                continue;
            }
            assert!(left.iter().all(|allocations| *allocations == 0), "{osd:?}, isolation {name}: {left:?}");
            if room > 0 {
                assert_eq!(PUT.get(), (64 * LEN, true));
            }
        }
    }
}

#[test]
fn a_unit_in_which_a_partition_demands_security_lends_nothing_of_any() {
    let store = Lending::new();
    let secret = ID.partition + 1;
    let demand = partition_security::DEFAULT_METHOD;
    let mut change = Change::new();
    change.push(Step::CreatePartition(secret));
    change.set_attribute(Id::partition(secret), demand.page.0, demand.number, &[1]);
    let mut applied = store.metadata.apply(change, Commit::Relaxed);
    let applied = Pin::new(&mut applied).poll(&mut Context::from_waker(Waker::noop()));
    assert!(matches!(applied, Poll::Ready(Ok(_))), "memory is not waited for");
    let unit = OsdUnit::new(Arc::new(store), OsdOptions::default()).unwrap();
    let nexus = nexus();
    let data = Buf::from(vec![7; LEN as usize]);
    let send = |osd, room| {
        let command = command(&nexus, Cdb::new(&osd::Cdb::new(osd).encode().unwrap()).unwrap(), 0, room);
        run(&unit, command, &data)
    };
    send(Osd::CreatePartition { requested: ID.partition }, 0);
    send(Osd::Create { partition: ID.partition, requested: ID.object, count: 1 }, 0);
    PUT.set((0, true));
    let outcome = send(Osd::Read(ID, ObjectRange { start: 0, len: LEN }), LEN);
    assert_eq!(outcome, Outcome::read(LEN));
    assert_eq!(PUT.get(), (LEN, false), "its reader may stall until a secret lies there");
}

#[test]
fn a_reader_that_stalls_keeps_no_space_from_others_and_gets_copies_from_then_on() {
    let store = Lending::new();
    let unit = OsdUnit::new(Arc::new(store), OsdOptions::default()).unwrap();
    let nexus = nexus();
    let command = |osd, out: &[u8], room| {
        let mut cdb = osd::Cdb::new(osd);
        cdb.continuation = out.len() as u32;
        command(&nexus, Cdb::new(&cdb.encode().unwrap()).unwrap(), out.len() as u64, room)
    };
    let none = Buf::from(Vec::new());
    run(&unit, command(Osd::CreatePartition { requested: ID.partition }, &[], 0), &none);
    let create = Osd::Create { partition: ID.partition, requested: ID.object, count: 1 };
    run(&unit, command(create, &[], 0), &none);
    let whole = ObjectRange { start: 0, len: LEN };
    let read = Osd::Read(ID, ObjectRange { start: 0, len: 4 * LEN });
    let list = Descriptor::ScatterGather(vec![whole; 4]);
    let list = Continuation::new(vec![list]).encode(read.action()).unwrap();
    let held = || HELD.with(Rc::strong_count) - 1;
    PUT.set((0, true));
    let command = command(read, &list, 4 * LEN);
    let mover = Mover(Buf::from(list));
    FULL.set(2);
    let Execution::Running(mut reading) = unit.execute(command, mover) else { panic!("it waits") };
    let mut cx = Context::from_waker(Waker::noop());
    // It is asked at once, and then until there is room.
    assert!(Pin::new(&mut reading).poll(&mut cx).is_pending());
    assert_eq!(PUT.get(), (LEN, true), "one that keeps up is lent what it reads");
    assert_eq!(held(), 0, "for as long as its reader likes");
    let Poll::Ready((_, outcome)) = Pin::new(&mut reading).poll(&mut cx) else { panic!("there is room") };
    assert_eq!(outcome.wanted_in, 4 * LEN);
    assert_eq!((PUT.get(), held()), ((4 * LEN, false), 0));
}
