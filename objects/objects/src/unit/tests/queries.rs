//! QUERY.

use osd::attributes::numbers::{collections, command_tracking as tracking, user_information};
use osd::continuation::{CopySource, Criterion, Query};
use osd::data::query_ids;

use super::*;
use crate::store::{Change, CollectionType, Commit, Io, ObjectStore, Step, TimesUpdate};

const C: u64 = O + 0x1000;

fn between(attribute: AttributeId, min: &[u8], max: &[u8]) -> Criterion {
    Criterion { attribute, min: min.to_vec(), max: max.to_vec() }
}

fn looking_for(all: bool, criteria: Vec<Criterion>) -> Descriptor {
    Descriptor::Query(Query { all, criteria })
}

fn in_partition(allocation: u64, matches: u64, immediate: bool) -> Osd {
    Osd::Query { id: Id::partition(P), immediate, allocation, matches }
}

fn found(ran: &Ran) -> (u64, Vec<u64>) {
    let (count, ids) = query_ids(&ran.data).unwrap();
    (count, ids.collect())
}

/// A partition of 1000 objects, each with its number.
fn numbered() -> Client {
    let it = Client::ready();
    it.ask(Osd::Remove(ID)).send().good();
    for number in 0..1000u16 {
        let create = Osd::Create { partition: P, requested: O + u64::from(number), count: 1 };
        it.ask(create).set(FREE, &number.to_be_bytes()).send().good();
    }
    it.write(0, b"three").good();
    it
}

#[test]
fn all_or_any_of_several_ranges_match() {
    let it = numbered();
    let ask = |all, criteria| {
        found(&it.ask(in_partition(1 << 16, 0, false)).descriptor(looking_for(all, criteria)).send().good())
    };
    let range = |min: u16, max: u16| between(FREE, &min.to_be_bytes(), &max.to_be_bytes());
    let ids = |numbers: std::ops::RangeInclusive<u64>| numbers.map(|n| O + n).collect::<Vec<_>>();
    assert_eq!(ask(true, vec![range(500, 502)]).1, ids(500..=502));
    assert_eq!(ask(true, vec![range(500, 502), range(502, 900)]).1, ids(502..=502));
    assert_eq!(ask(false, vec![range(3, 4), range(998, 5000)]).1, [ids(3..=4), ids(998..=999)].concat());
    let length = between(user_information::LOGICAL_LENGTH, &1u64.to_be_bytes(), &[]);
    assert_eq!(ask(true, vec![length]).1, [O]);
    assert_eq!(ask(true, vec![]).0, 1000);
    assert_eq!(ask(false, vec![]).0, 0);
    let none = AttributeId::new(Page(0x1_0000), 2);
    assert_eq!(ask(false, vec![between(none, &[], &[])]).0, 0);
}

#[test]
fn what_has_no_room_is_counted() {
    let it = numbered();
    let everything = || looking_for(true, vec![]);
    let ran = it.ask(in_partition(12 + 16 + 7, 0, false)).descriptor(everything()).send().good();
    assert_eq!(found(&ran), (1000, vec![O, O + 1]));
    let ran = it.ask(in_partition(u64::MAX, 0, false)).descriptor(everything()).room(20).send().good();
    assert_eq!(found(&ran), (1000, vec![O]));
    assert_eq!(it.ask(in_partition(8, 0, false)).descriptor(everything()).send().good().data.len(), 8);
}

#[test]
fn a_query_that_makes_no_sense_is_refused() {
    let it = numbered();
    let everything = || looking_for(true, vec![]);
    it.ask(in_partition(100, 0, false)).send().bad_field(48);
    let source = CopySource { id: ID, attributes: false, freeze: false, time: 0 };
    it.ask(in_partition(100, 0, false)).descriptor(Descriptor::CopySource(source)).send().bad_parameter(40);
    it.ask(in_partition(100, 0, false))
        .descriptor(everything())
        .descriptor(everything())
        .send()
        .bad_parameter(40);
    it.ask(in_partition(100, 0, true)).descriptor(everything()).send().bad_field(11);
    it.ask(in_partition(100, C, false)).descriptor(everything()).send().bad_field(40);
    it.ask(in_partition(100, O, false)).descriptor(everything()).send().bad_field(40);
    let id = Id::new(P, O);
    let of_object = Osd::Query { id, immediate: false, allocation: 100, matches: 0 };
    it.ask(of_object).descriptor(everything()).send().bad_field(24);
}

#[test]
fn matches_join_a_linked_collection_by_a_number_that_is_free() {
    let it = numbered();
    it.ask(Osd::CreateCollection { partition: P, requested: C }).send().good();
    it.ask(Osd::CreateCollection { partition: P, requested: C + 1 }).send().good();
    let pointer = |number| AttributeId::new(collections::PAGE, number);
    it.set(ID, pointer(1), &(C + 1).to_be_bytes()).good();
    let first = || looking_for(true, vec![between(FREE, &[], &[0, 9])]);
    for _ in 0..2 {
        it.ask(in_partition(0, C, false)).descriptor(first()).fua().send().good();
        let members = it.unit.store().object(Id::new(P, C)).unwrap().members;
        assert_eq!(members, 10);
    }
    assert_eq!(it.get(ID, pointer(2)).good().value(), C.to_be_bytes());
    assert_eq!(it.get(Id::new(P, O + 1), pointer(1)).good().value(), C.to_be_bytes());
}

#[test]
fn a_query_goes_on_behind_its_command_and_the_tracking_page_tells_when_it_is_done() {
    let it = numbered();
    let made = it.track(0).object;
    let id = Id::new(P, made);
    let (cdb, out, _) = it.ask(in_partition(100, made, true)).descriptor(looking_for(true, vec![])).build();
    let runtime = runtime::Runtime::new(runtime::Config::default()).unwrap();
    runtime.block_on(async {
        let Execution::Running(future) = it.start(&cdb, &out, 100, 0) else { panic!("it has to wait") };
        let (mover, outcome) = future.await;
        assert_eq!((outcome.status, mover.data_in.len()), (Status::Good, 0));
        let active = it.get(id, tracking::ACTIVE_COMMAND).good().value();
        assert_eq!(active, [0x88, 0xA0], "it has only begun");
        assert!(it.get(id, tracking::PERCENT_COMPLETE).good().value()[0] < 100);
        let mut turns = 0;
        while it.get(id, tracking::PERCENT_COMPLETE).good().value() != [100] {
            runtime::yield_now().await;
            turns += 1;
            assert!(turns < 1000, "it does not end");
        }
        assert!(turns > 1, "it gave nobody a turn");
    });
    assert_eq!(it.get(id, tracking::MEMBERS).good().number(), 1000);
    assert_eq!(it.get(id, tracking::PROCESSED).good().number(), 1000);
    assert_eq!(it.get(id, tracking::ACTIVE_COMMAND).good().value(), [0, 0]);
}

/// Makes another collection of the matches' id when the first match has been found.
fn remake(store: &Oracle, change: &Change) -> bool {
    let joins = change.steps.iter().any(|step| matches!(step, Step::Join { .. }));
    if joins {
        let id = Id::new(P, C);
        let mut other = Change::of(Step::RemoveCollection { id, members: true });
        other.push(Step::CreateCollection(id, CollectionType::LINKED));
        let times = TimesUpdate { created: Some(1), ..TimesUpdate::default() };
        other.push(Step::SetTimes { id, times });
        assert!(matches!(store.apply(other, Commit::Relaxed), Io::Ready(Some(Ok(_)))));
    }
    joins
}

#[test]
fn a_query_puts_nothing_into_a_collection_that_got_the_id_meanwhile() {
    let clock = Arc::new(TestClock::default());
    let store = Oracle::new(CAPACITY);
    let it = Client::on(&store, options(&clock), clock);
    it.make();
    it.ask(Osd::CreateCollection { partition: P, requested: C }).send().good();
    store.meddle(remake);
    it.ask(in_partition(100, C, false)).descriptor(looking_for(true, vec![])).send().bad_field(24);
    assert_eq!(it.unit.store().object(Id::new(P, C)).unwrap().members, 0);
}

/// Removes an object when the first has been found that is going to be a member.
fn remove_one(store: &Oracle, change: &Change) -> bool {
    let joins = change.steps.iter().any(|step| matches!(step, Step::Join { .. }));
    if joins {
        let gone = Change::of(Step::RemoveUser(Id::new(P, O + 3)));
        assert!(matches!(store.apply(gone, Commit::Relaxed), Io::Ready(Some(Ok(_)))));
    }
    joins
}

#[test]
fn an_object_that_goes_after_it_was_found_is_no_match_and_the_others_are() {
    let clock = Arc::new(TestClock::default());
    let store = Oracle::new(CAPACITY);
    let it = Client::on(&store, options(&clock), clock);
    it.make();
    it.ask(Osd::Create { partition: P, requested: 0, count: 599 }).send().good();
    let create = |source| it.track(source).object;
    let counts = |id| {
        let of = |attribute| it.get(Id::new(P, id), attribute).good().number();
        let tracked = [tracking::PERCENT_COMPLETE, tracking::ENDED_STATUS];
        assert_eq!(tracked.map(of), [100, 0]);
        [tracking::MEMBERS, tracking::PROCESSED, tracking::MISSING_SKIPPED].map(of)
    };
    let matches = create(0);
    store.meddle(remove_one);
    let ran = it.ask(in_partition(1 << 16, matches, false)).descriptor(looking_for(true, vec![])).send();
    let (count, ids) = found(&ran.good());
    assert_eq!((count, ids.len(), ids.contains(&(O + 3))), (599, 599, false));
    assert_eq!(counts(matches), [599, 599, 1]);
    // A collection that is made of one that loses a member meanwhile.
    it.create(O + 3).good();
    let source = create(0);
    it.ask(in_partition(0, source, false)).descriptor(looking_for(true, vec![])).send().good();
    store.meddle(remove_one);
    assert_eq!(counts(create(source)), [599, 599, 1]);
}

#[test]
fn a_query_that_is_aborted_is_an_active_command_no_more() {
    let it = numbered();
    let made = it.track(0).object;
    let (cdb, out, _) = it.ask(in_partition(100, made, false)).descriptor(looking_for(true, vec![])).build();
    let aborted = it.execute(&cdb, out.len() as u64, 100, TestMover::aborted_after(1, &out));
    let Execution::Running(future) = aborted else { panic!("it has begun") };
    block_on(future);
    let of = |attribute| it.get(Id::new(P, made), attribute).good().number();
    let members = of(tracking::MEMBERS);
    assert!(members > 0 && members < 1000, "{members}");
    assert_eq!((of(tracking::ACTIVE_COMMAND), of(tracking::ENDED_STATUS)), (0, 2));
}

#[test]
fn many_criteria_make_steps_of_fewer_objects() {
    let it = Client::ready();
    it.ask(Osd::Create { partition: P, requested: 0, count: 63 }).send().good();
    let criteria = vec![between(FREE, b"a", b"b"); 1024];
    // The descriptor is taken first; without criteria one step does it.
    let pauses = it.ask(in_partition(4096, 0, false)).descriptor(looking_for(false, criteria)).pauses(1);
    assert!((16..=20).contains(&pauses), "{pauses}");
    let none = looking_for(false, Vec::new());
    assert!(it.ask(in_partition(4096, 0, false)).descriptor(none).pauses(1) <= 2);
}
