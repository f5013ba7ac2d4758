//! Timestamps: those that each command sets, and their bypass.

use osd::attributes::numbers::{timestamps, user_information as info};
use osd::{ObjectType, attributes::numbers};

use super::*;

/// Created, attributes accessed, attributes modified, data accessed, data modified.
fn times(it: &Client, id: Id, kind: ObjectType) -> Vec<u64> {
    let numbers = [
        timestamps::CREATED,
        timestamps::ATTRIBUTES_ACCESSED,
        timestamps::ATTRIBUTES_MODIFIED,
        timestamps::DATA_ACCESSED,
        timestamps::DATA_MODIFIED,
    ];
    let page = timestamps::page(kind);
    let asked = numbers.map(|number| AttributeId::new(page, number));
    let ran = it.ask(Osd::GetAttributes(id)).get(&asked).bypass().send().good();
    let number = |value: Vec<u8>| value.iter().fold(0, |n, byte| n << 8 | u64::from(*byte));
    ran.values().into_iter().map(|(_, value)| number(value)).collect()
}

#[test]
fn each_kind_of_access_leaves_its_time() {
    for it in Client::each_form() {
        let start = 1_000_000;
        assert_eq!(times(&it, ID, ObjectType::User), [start, 0, start, 0, start]);
        it.tick(1);
        it.write(0, b"x").good();
        it.tick(1);
        it.read(0, 1).good();
        it.tick(1);
        it.set(ID, FREE, b"x").good();
        it.tick(1);
        it.get(ID, FREE).good();
        assert_eq!(times(&it, ID, ObjectType::User), [start, start + 4, start + 3, start + 2, start + 1]);
        // Of partitions and of the root, whose pages have fewer.
        it.get(Id::partition(P), FREE).good();
        assert_eq!(times(&it, Id::partition(P), ObjectType::Partition)[..2], [start, start + 4]);
        it.set(Id::ROOT, numbers::root_information::OSD_NAME, b"x").good();
        assert_eq!(times(&it, Id::ROOT, ObjectType::Root), [0, 0, start + 4, 0, 0]);
        it.tick(1);
        it.ask(Osd::Append { id: ID, len: 1 }).data(b"y").send().good();
        assert_eq!(times(&it, ID, ObjectType::User)[4], start + 5);
        if it.form != Form::Osd1 {
            it.tick(1);
            it.ask(Osd::Clear(ID, range(0, 1))).send().good();
            it.ask(Osd::Punch(ID, range(0, 1))).send().good();
            assert_eq!(times(&it, ID, ObjectType::User)[4], start + 6);
        }
        // A collection's data is its list of members.
        let (set, own) = (Id::new(P, O + 9), AttributeId::new(Page::of(ObjectType::Collection, 0x1_0000), 1));
        let start = it.clock.0.load(Ordering::Relaxed);
        it.ask(Osd::CreateCollection { partition: P, requested: set.object }).send().good();
        let (allocation, initial, list_id) = (100, 0, 0);
        let list =
            osd::cdb::ListCollection { initial, list_id, ..osd::cdb::ListCollection::new(set, allocation) };
        it.tick(1);
        it.ask(Osd::ListCollection(list)).send().good();
        it.tick(1);
        it.set(set, own, b"x").good();
        it.tick(1);
        it.get(set, own).good();
        assert_eq!(times(&it, set, ObjectType::Collection), [start, start + 3, start + 2, start + 1, start]);
    }
}

#[test]
fn a_command_a_partition_or_the_root_may_leave_times_alone() {
    let it = Client::ready();
    let before = times(&it, ID, ObjectType::User);
    it.tick(10);
    let quietly = |ask: Ask<'_>| ask.bypass().send().good();
    let everything = |run: &dyn Fn(Ask<'_>)| {
        run(it.ask(Osd::Write(ID, range(0, 1))).data(b"x"));
        run(it.ask(Osd::Read(ID, range(0, 1))).get(&[FREE]));
        run(it.ask(Osd::SetAttributes(ID)).set(FREE, b"x").get(&[info::ID]));
        run(it.ask(Osd::Append { id: ID, len: 1 }).data(b"x"));
        run(it.ask(Osd::Clear(ID, range(0, 1))));
    };
    everything(&|ask| {
        quietly(ask);
    });
    assert_eq!(times(&it, ID, ObjectType::User), before);
    let bypass = |kind| AttributeId::new(timestamps::page(kind), timestamps::BYPASS);
    let loudly = |ask: Ask<'_>| {
        ask.send().good();
    };
    it.set(Id::partition(P), bypass(ObjectType::Partition), &[0x7F]).good();
    everything(&loudly);
    assert_eq!(times(&it, ID, ObjectType::User), before);
    // An object that is created has its time all the same: capabilities name it by that.
    it.create(O + 1).good();
    assert_eq!(times(&it, Id::new(P, O + 1), ObjectType::User), [1_000_010, 0, 0, 0, 0]);
    it.set(Id::partition(P), bypass(ObjectType::Partition), &[0]).good();
    it.set(Id::ROOT, bypass(ObjectType::Root), &[0x7F]).good();
    it.ask(Osd::CreatePartition { requested: P + 1 }).send().good();
    let of_partition = it.get(Id::partition(P + 1), bypass(ObjectType::Partition)).good();
    assert_eq!(of_partition.value(), [0x7F], "it says nothing itself, so the root's counts");
    everything(&loudly);
    assert_ne!(times(&it, ID, ObjectType::User), before);
    it.set(Id::ROOT, bypass(ObjectType::Root), &[5]).bad_parameter(16);
    it.set(Id::ROOT, bypass(ObjectType::Root), &[]).good();
    assert_eq!(it.get(Id::ROOT, bypass(ObjectType::Root)).good().value(), [0]);
}

#[test]
fn the_time_of_a_write_is_in_its_change_and_outlives_the_process_with_it() {
    let rig = crate::store::embedded::testing::Rig::new(1000, 1 << 20);
    let clock = Arc::new(TestClock(AtomicU64::new(1_000_000)));
    let unit = |clock| OsdUnit::new(Arc::new(rig.open()), options(clock)).unwrap();
    let it = Client::to(&unit(&clock), 1, clock.clone());
    it.make();
    it.create(O + 1).good();
    it.tick(1);
    it.write(0, b"x").good();
    it.tick(1);
    it.ask(Osd::Append { id: Id::new(P, O + 1), len: 1 }).data(b"y").send().good();
    // Nothing is flushed, nor written at the end.
    drop(it);
    let it = Client::to(&unit(&clock), 1, clock.clone());
    let modified = |id| times(&it, id, ObjectType::User)[4];
    assert_eq!((modified(ID), modified(Id::new(P, O + 1))), (1_000_001, 1_000_002));
}
