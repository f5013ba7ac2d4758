//! Quotas: requests beyond them are refused, by every command.

use osd::attributes::numbers::{
    current_command, partition_quotas as partition, root_quotas as root, user_information as info,
    user_quotas as user,
};

use super::*;
use crate::store::{BLOCK, Change, Commit, ObjectStore, Step};

fn number(value: u64) -> [u8; 8] {
    value.to_be_bytes()
}

#[test]
fn no_object_grows_beyond_its_maximum_length() {
    for it in Client::each_form() {
        it.set(ID, user::MAX_LENGTH, &number(100)).good();
        it.write(0, &[1; 100]).good();
        it.write(50, &[1; 51]).quota();
        it.ask(Osd::Append { id: ID, len: 1 }).data(b"x").send().quota();
        it.set(ID, info::LOGICAL_LENGTH, &number(101)).quota();
        if it.form != Form::Osd1 {
            it.ask(Osd::Clear(ID, range(100, 1))).send().quota();
        }
        assert_eq!(it.length(), 100);
        // A command that does not grow the object is allowed, even beyond a quota that was set
        // later.
        it.set(ID, user::MAX_LENGTH, &number(10)).good();
        it.write(50, &[2; 10]).good();
        it.set(ID, info::LOGICAL_LENGTH, &number(60)).good();
        assert_eq!(it.get(ID, user::MAX_LENGTH).good().number(), 10);
        it.set(ID, user::MAX_LENGTH, &[]).good();
        assert_eq!(it.get(ID, user::MAX_LENGTH).good().number(), u64::MAX);
        it.write(0, &[1; 1000]).good();
        it.set(ID, user::MAX_LENGTH, &[0; 4]).fails(SenseKey::IllegalRequest, (0x26, 0x00));
    }
}

#[test]
fn new_objects_and_partitions_get_what_is_prescribed_above_them() {
    let it = Client::ready();
    it.set(Id::partition(P), partition::DEFAULT_MAX_OBJECT_LENGTH, &number(10)).good();
    it.create(O + 1).good();
    assert_eq!(it.get(Id::new(P, O + 1), user::MAX_LENGTH).good().number(), 10);
    let too_long = Osd::CreateAndWrite { partition: P, requested: O + 2, range: range(0, 11) };
    it.ask(too_long).data(&[0; 11]).send().quota();
    it.get(Id::new(P, O + 2), info::ID).bad_field(24);
    it.write(0, &[0; 11]).good();

    it.set(Id::ROOT, root::PARTITION_OBJECTS, &number(2)).good();
    it.set(Id::ROOT, root::PARTITION_CAPACITY, &number(1 << 20)).good();
    it.set(Id::ROOT, root::COLLECTIONS_PER_OBJECT, &3u32.to_be_bytes()).good();
    it.set(Id::ROOT, root::DEFAULT_MAX_OBJECT_LENGTH, &number(5)).good();
    it.ask(Osd::CreatePartition { requested: P + 1 }).send().good();
    let of = |attribute| it.get(Id::partition(P + 1), attribute).good().number();
    assert_eq!(of(partition::OBJECTS), 2);
    assert_eq!(of(partition::CAPACITY), 1 << 20);
    assert_eq!(of(partition::COLLECTIONS_PER_OBJECT), 3);
    assert_eq!(of(partition::DEFAULT_MAX_OBJECT_LENGTH), 5);
    assert_eq!(it.get(Id::partition(P), partition::OBJECTS).good().number(), u64::MAX);
}

#[test]
fn a_partition_holds_no_more_objects_than_its_quota() {
    for it in Client::each_form() {
        it.set(Id::partition(P), partition::OBJECTS, &number(3)).good();
        let many = |count| it.ask(Osd::Create { partition: P, requested: 0, count }).send();
        many(3).quota();
        many(2).good();
        many(1).quota();
        let written = Osd::CreateAndWrite { partition: P, requested: 0, range: range(0, 1) };
        it.ask(written).data(b"x").send().quota();
        it.ask(Osd::Remove(ID)).send().good();
        many(1).good();
    }
}

#[test]
fn a_partition_holds_no_more_bytes_than_its_quota() {
    let it = Client::ready();
    it.set(Id::partition(P), partition::CAPACITY, &number(16_384)).good();
    it.write(0, &[1; 12_288]).good();
    it.write(12_288, &[1; 4097]).quota();
    // Overwriting takes no more.
    it.write(1, &[2; 12_000]).good();
    it.write(12_288, &[1; 4096]).good();
    it.write(16_384, b"x").quota();
    it.ask(Osd::Append { id: ID, len: 1 }).data(b"x").send().quota();
    let other = Osd::CreateAndWrite { partition: P, requested: O + 1, range: range(0, 1) };
    it.ask(other).data(b"x").send().quota();
    // A hole takes no room, and freed room may be used again.
    it.set(ID, info::LOGICAL_LENGTH, &number(1 << 30)).good();
    it.ask(Osd::Clear(ID, range(0, 8192))).send().good();
    it.ask(other).data(b"x").send().good();
    // Raised, in the command that needs it not yet.
    it.write(0, &[1; 8192]).quota();
    it.set(Id::partition(P), partition::CAPACITY, &number(1 << 20)).good();
    it.write(0, &[1; 8192]).good();
}

#[test]
fn a_long_write_stops_where_the_quota_does() {
    let it = Client::ready();
    it.set(Id::partition(P), partition::CAPACITY, &number(2 << 20)).good();
    it.write(0, &vec![1; 3 << 20]).quota();
    assert_eq!(it.length(), 0);
    let create = Osd::CreateAndWrite { partition: P, requested: O + 1, range: range(0, 3 << 20) };
    it.ask(create).data(&vec![1; 3 << 20]).send().quota();
    it.get(Id::new(P, O + 1), info::ID).bad_field(24);
    it.write(0, &vec![1; 2 << 20]).good();
}

#[test]
fn the_root_holds_no_more_partitions_than_its_quota() {
    for it in Client::each_form() {
        it.set(Id::ROOT, root::PARTITIONS, &number(2)).good();
        it.ask(Osd::CreatePartition { requested: 0 }).send().good();
        it.ask(Osd::CreatePartition { requested: 0 }).send().quota();
    }
}

#[test]
fn a_full_store_is_a_quota_too() {
    let it = Client::ready();
    for n in 0..(CAPACITY >> 20) {
        it.write(n << 20, &vec![1; 1 << 20]).good();
    }
    it.write(CAPACITY, &[1; 1]).quota();
    assert_eq!(it.length(), CAPACITY);
}

#[test]
fn a_quota_holds_for_the_length_that_the_same_list_sets_behind_it() {
    use osd::attributes::numbers::{user_information::LOGICAL_LENGTH, user_quotas::MAX_LENGTH};
    let it = Client::ready();
    let both = |max: u64, length: u64| {
        let ask = it.ask(Osd::SetAttributes(ID)).set(MAX_LENGTH, &max.to_be_bytes());
        ask.set(LOGICAL_LENGTH, &length.to_be_bytes()).send()
    };
    both(100, 101).quota();
    assert_eq!(it.length(), 0);
    both(100, 100).good();
    both(200, 150).good();
    both(10, 120).good();
    assert_eq!(it.length(), 120, "it may become shorter");
}

#[test]
fn pieces_of_one_write_count_together_and_a_block_of_several_once() {
    let it = Client::ready();
    it.set(Id::partition(P), partition::CAPACITY, &number(2 * BLOCK)).good();
    let write = |ranges: Vec<osd::cdb::ObjectRange>| {
        let len = ranges.iter().map(|range| range.len).sum();
        it.ask(Osd::Write(ID, range(0, len)))
            .descriptor(Descriptor::ScatterGather(ranges))
            .data(&vec![1; len as usize])
            .send()
    };
    write((0..3).map(|n| range(n * 10 * BLOCK, 1)).collect()).quota();
    assert_eq!(it.length(), 0);
    write(vec![range(0, 1), range(10, 1), range(BLOCK + 5, 1), range(5, 1)]).good();
    // Existing blocks need no room.
    write(vec![range(0, 10), range(BLOCK, 10)]).good();
    write(vec![range(0, 10), range(2 * BLOCK, 10)]).quota();
}

#[test]
fn a_punch_that_spreads_data_over_more_blocks_needs_room_for_them() {
    let it = Client::ready();
    // Every second block has data.
    for n in 0..4 {
        it.write(2 * n * BLOCK, &[1 + n as u8; BLOCK as usize]).good();
    }
    let capacity =
        |blocks: u64| it.set(Id::partition(P), partition::CAPACITY, &number(blocks * BLOCK)).good();
    let used = || {
        let used = osd::attributes::numbers::partition_information::USED_CAPACITY;
        it.get(Id::partition(P), used).good().number() / BLOCK
    };
    let punch = |start, len| it.ask(Osd::Punch(ID, range(start, len))).send();
    capacity(4);
    let before = it.read(0, 7 * BLOCK).good().data;
    // The three that come behind would lie in two blocks each.
    punch(0, 100).quota();
    assert_eq!((it.read(0, 7 * BLOCK).good().data, used()), (before.clone(), 4));
    capacity(6);
    punch(0, 100).quota();
    // The first block keeps the bytes before the range, and gets none of those behind it.
    punch(50, 100).quota();
    // By whole blocks nothing spreads.
    punch(2 * BLOCK, 2 * BLOCK).good();
    punch(0, BLOCK).good();
    assert_eq!(used(), 2);
    capacity(4);
    punch(0, 100).good();
    assert_eq!(used(), 4);
    // Nor does it spread further.
    punch(0, 100).good();
    let both = [before[4 * BLOCK as usize], before[6 * BLOCK as usize]];
    let data = it.read(0, 4 * BLOCK - 200).good_or_short();
    assert!(both.iter().all(|byte| data.iter().filter(|found| *found == byte).count() as u64 == BLOCK));
    // A punch that cuts off the end moves nothing.
    capacity(0);
    punch(BLOCK, u64::MAX / 2).good();
}

#[test]
fn no_object_names_more_collections_than_its_quota() {
    use osd::attributes::numbers::collections;
    let it = Client::ready();
    let collection = |n| Id::new(P, O + 100 + n);
    for n in 0..2 {
        it.ask(Osd::CreateCollection { partition: P, requested: collection(n).object }).send().good();
    }
    let name = |number, n: u64| {
        it.set(ID, AttributeId::new(collections::PAGE, number), &collection(n).object.to_be_bytes())
    };
    let into = |id: u64| {
        let all = osd::continuation::Query { all: true, criteria: Vec::new() };
        let query = Osd::Query { id: Id::partition(P), immediate: false, allocation: 100, matches: id };
        it.ask(query).descriptor(Descriptor::Query(all)).send()
    };
    let members = |id| it.unit.store().object(id).unwrap().members;
    it.set(Id::partition(P), partition::COLLECTIONS_PER_OBJECT, &1u32.to_be_bytes()).good();
    name(1, 0).good();
    name(2, 1).quota();
    into(collection(1).object).quota();
    assert_eq!(members(collection(1)), 0);
    // It is a member already.
    into(collection(0).object).good();
    // Tracking collections are in no object's page, and do not count.
    let tracking = it.track(collection(0).object).object;
    into(tracking).good();
    assert_eq!(members(Id::new(P, tracking)), 1);
    name(1, 1).good();
    assert_eq!((members(collection(0)), members(collection(1))), (0, 1));
}

/// Makes the object longer just before an append to it.
fn write_before_an_append(store: &Oracle, change: &Change) -> bool {
    let appends = change.steps.iter().any(|step| matches!(step, Step::Append { .. }));
    if appends {
        let write = Step::Write { id: ID, at: 85, data: vec![3; 5].into() };
        block_on(store.apply(write.into(), Commit::Relaxed)).unwrap();
    }
    appends
}

#[test]
fn an_append_that_a_write_overtakes_keeps_the_maximum_length_at_every_level() {
    for isolation in [Isolation::None, Isolation::Strict, Isolation::Range, Isolation::Functional] {
        let clock = Arc::new(TestClock::default());
        let store = Oracle::new(CAPACITY);
        let it = Client::on(&store, options(&clock), clock);
        it.make();
        it.set(ID, user::MAX_LENGTH, &number(100)).good();
        it.write(0, &[1; 80]).good();
        let append = |data: &[u8]| {
            it.ask(Osd::Append { id: ID, len: data.len() as u64 }).data(data).isolation(isolation).send()
        };
        store.meddle(write_before_an_append);
        append(&[2; 20]).quota();
        assert_eq!(it.length(), 90, "{isolation:?}");
        store.meddle(write_before_an_append);
        append(&[2; 10]).good();
        assert_eq!(it.read(80, 20).good().data[10..], [2; 10], "{isolation:?}");
    }
}

#[test]
fn appends_and_writes_of_many_threads_keep_the_maximum_length_and_what_is_acknowledged() {
    const MAX: u64 = 20_000;
    const LEN: u64 = 50;
    for isolation in [Isolation::None, Isolation::Strict, Isolation::Range, Isolation::Functional] {
        let it = Client::ready();
        it.set(ID, user::MAX_LENGTH, &number(MAX)).good();
        let threads: Vec<_> = (1..=4u8)
            .map(|n| {
                let it = Client::to(&it.unit, 10 + u64::from(n), it.clock.clone());
                std::thread::spawn(move || {
                    let mut appended = Vec::new();
                    for round in 0..200u64 {
                        if n % 2 == 0 {
                            // Leaps ahead of the end as it was.
                            let place = it.length() + round % 3;
                            it.ask(Osd::Write(ID, range(place, 1))).data(b"w").isolation(isolation).send();
                        } else {
                            let append = it.ask(Osd::Append { id: ID, len: LEN }).data(&[n; LEN as usize]);
                            let append = append.isolation(isolation).get(&[current_command::APPEND_ADDRESS]);
                            let ran = append.send();
                            if ran.outcome.status == Status::Good {
                                appended.push(ran.number());
                            }
                        }
                        assert!(it.length() <= MAX, "{isolation:?}");
                    }
                    (n, appended)
                })
            })
            .collect();
        let appended: Vec<_> = threads.into_iter().map(|thread| thread.join().unwrap()).collect();
        assert!(it.length() > MAX - LEN, "the quota was never met");
        let mut places: Vec<u64> = appended.iter().flat_map(|(_, places)| places.iter().copied()).collect();
        places.sort_unstable();
        assert!(places.windows(2).all(|two| two[1] - two[0] >= LEN), "two appends went to one place");
        let data = it.read(0, it.length()).good().data;
        for (n, places) in appended {
            for place in places {
                let bytes = &data[place as usize..(place + LEN) as usize];
                // A write that knew of an end before this one may have come after it.
                assert!(bytes.iter().all(|byte| [n, b'w'].contains(byte)), "an append is not where it went");
            }
        }
    }
}

#[test]
fn a_long_append_is_in_one_piece_though_a_write_moves_the_end_meanwhile() {
    const LEN: u64 = 2_500_000;
    let it = Client::ready();
    it.set(ID, user::MAX_LENGTH, &number(10_000_000)).good();
    it.write(0, &[1; 100]).good();
    let append = it.ask(Osd::Append { id: ID, len: LEN }).data(&vec![2; LEN as usize]);
    let mut future = append.begin(0, 1, 1);
    assert!(poll(&mut future).is_pending());
    assert_eq!(it.length(), 100 + (1 << 20), "the first piece is there");
    it.write(9_000_000, b"far away").good();
    assert_eq!(block_on(future).1.status, Status::Good);
    assert_eq!(it.length(), 9_000_008);
    let data = it.read(0, it.length()).good().data;
    assert!(data[100..100 + LEN as usize].iter().all(|byte| *byte == 2));
    assert!(data[100 + LEN as usize..9_000_000].iter().all(|byte| *byte == 0));
    assert_eq!(data[9_000_000..], *b"far away");
}

#[test]
fn quotas_of_a_partition_change_when_nobody_is_at_work_who_may_have_looked_at_them() {
    let it = Client::ready();
    let name = osd::attributes::numbers::partition_information::NAME;
    for (attribute, value, waits) in [
        (partition::CAPACITY, &number(1 << 30)[..], true),
        (partition::OBJECTS, &[], true),
        (name, b"x", false),
    ] {
        let working = block_on(it.unit.exclusion.write(P, P + 1));
        let mut future = it.ask(Osd::SetAttributes(Id::partition(P))).set(attribute, value).begin(0, 0, 0);
        let polled = poll(&mut future);
        assert_eq!(polled.is_pending(), waits, "{attribute}");
        drop(working);
        if waits {
            assert_eq!(block_on(future).1.status, Status::Good);
        }
    }
    // Nor between two pieces of a long command, unless the initiator is waited for.
    let mut future = it.ask(Osd::Write(ID, range(0, 3 << 20))).data(&vec![1; 3 << 20]).begin(0, 1, 1);
    assert!(poll(&mut future).is_pending());
    let alone = block_on(it.unit.exclusion.atomic(P, P + 1));
    assert!(poll(&mut future).is_pending(), "it does not look");
    drop(alone);
    assert_eq!(block_on(future).1.status, Status::Good);
}
