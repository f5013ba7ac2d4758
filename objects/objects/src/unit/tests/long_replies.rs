//! Long replies: put piece by piece as the initiator takes them, true to one time, and of the
//! promised length.

use std::sync::Mutex;

use osd::continuation::{Criterion, Query};
use osd::data;

use super::*;
use crate::store::{Change, CollectionType, Commit, Step};

const PAGE: Page = Page(0x1_0000);
/// The most that a command puts between two looks at whether there is room.
const PIECE: usize = 64 << 10;

/// The data that an initiator has taken, and its pace.
#[derive(Default)]
struct Taken {
    data: Vec<u8>,
    /// Bytes put since the command last asked for room, and the most that there ever were.
    put: usize,
    most: usize,
    /// Pieces that it takes before it stops to read.
    patience: usize,
}

/// An initiator that sends all at once and takes data at its own pace.
struct Slow {
    taken: Arc<Mutex<Taken>>,
    data_out: Vec<u8>,
}

impl DataMover for Slow {
    fn put_data(&mut self, data: Buf) {
        let mut taken = self.taken.lock().unwrap();
        taken.put += data.len();
        taken.most = taken.most.max(taken.put);
        taken.data.extend(data.to_vec());
    }
    fn poll_put_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Lost>> {
        let mut taken = self.taken.lock().unwrap();
        if taken.put == 0 {
            return Poll::Ready(Ok(()));
        }
        let Some(patience) = taken.patience.checked_sub(1) else { return Poll::Pending };
        (taken.put, taken.patience) = (0, patience);
        Poll::Ready(Ok(()))
    }
    fn poll_get_data(&mut self, _: &mut Context<'_>, len: usize) -> Poll<Result<Chain, Lost>> {
        let rest = self.data_out.split_off(len.min(self.data_out.len()));
        Poll::Ready(Ok(std::mem::replace(&mut self.data_out, rest).into()))
    }
    fn poll_lost(&mut self, _: &mut Context<'_>) -> Poll<Lost> {
        Poll::Pending
    }
}

fn start(
    it: &Client,
    cdb: &[u8],
    data_out: Vec<u8>,
    taken: &Arc<Mutex<Taken>>,
) -> impl Future<Output = (Slow, Outcome)> + use<> {
    match it.execute(cdb, data_out.len() as u64, 64 << 20, Slow { taken: taken.clone(), data_out }) {
        Execution::Running(future) => future,
        Execution::Done(..) => panic!("it waits for nothing"),
    }
}

/// Runs a command whose initiator stops to read after `patience` pieces, until `meanwhile` is done.
/// Returns the data put, and the most that was put without asking.
#[track_caller]
fn stalled(it: &Client, ask: Ask<'_>, patience: usize, meanwhile: impl FnOnce()) -> (Ran, usize) {
    let (cdb, out, retrieved) = ask.build();
    let taken = Arc::new(Mutex::new(Taken { patience, ..Taken::default() }));
    let mut future = pin!(start(it, &cdb, out, &taken));
    let polled = poll(&mut future);
    assert!(polled.is_pending(), "it put all it had to an initiator that does not read");
    meanwhile();
    taken.lock().unwrap().patience = usize::MAX;
    let (_, outcome) = block_on(future);
    let taken = std::mem::take(&mut *taken.lock().unwrap());
    (Ran { outcome, data: taken.data, version: it.form.version(), retrieved }, taken.most)
}

fn value(number: u32) -> Vec<u8> {
    vec![number as u8; 60_000 - number as usize]
}

/// A unit whose object has `count` long attributes.
fn with_attributes(count: u32) -> Client {
    let it = Client::ready();
    let mut change = Change::new();
    for number in 1..=count {
        change.set_attribute(Id::new(P, O), PAGE.0, number, &value(number));
    }
    block_on(it.unit.store().apply(change, Commit::Relaxed)).unwrap();
    it
}

fn all(it: &Client) -> Ask<'_> {
    it.ask(Osd::GetAttributes(ID)).get(&[AttributeId::new(PAGE, AttributeId::ALL)]).allocation(u32::MAX)
}

#[test]
fn a_long_list_of_attributes_is_put_in_pieces_and_is_whole() {
    let it = with_attributes(40);
    let (ran, most) = stalled(&it, all(&it), 0, || {});
    let ran = ran.good();
    assert!(most <= PIECE, "{most} bytes at once");
    // A list that reads in one go, whose length is the true one.
    let list = ValueList::parse(&ran.data, ran.version).unwrap();
    let values: Vec<_> = list.iter().filter(|value| value.attribute.number > 0).collect();
    assert_eq!(values.len(), 40);
    for (number, found) in (1..).zip(values) {
        assert!((found.attribute.number, found.bytes) == (number, &value(number)[..]), "{number}");
    }
    assert_eq!(ran.outcome.wanted_in, ran.data.len() as u64);
    // As much of it as there is room for.
    let (cut, _) = stalled(&it, all(&it).allocation(1_000_000), 0, || {});
    assert!(cut.good().data == ran.data[..1_000_000]);
}

#[test]
fn a_long_list_keeps_nobody_from_the_object_while_it_is_not_taken() {
    let it = with_attributes(40);
    let (ran, _) = stalled(&it, all(&it), 2, || {
        // Of the same length, and what needs the partition for itself.
        it.set(ID, AttributeId::new(PAGE, 39), &vec![0xEE; 60_000 - 39]).good();
        it.ask(Osd::CreateSnapshot { requested: P + 7, source: P, method: 0 }).send().good();
    });
    let values = ran.good().values();
    assert_eq!(values.last().unwrap().1, value(40));
    assert_eq!(values[values.len() - 2].1[0], 0xEE, "as it is when it is put");
}

#[test]
fn a_long_list_whose_length_changes_while_it_is_put_ends_with_aborted_command() {
    let changes: [fn(&Client); 3] = [
        |it| drop(it.set(ID, AttributeId::new(PAGE, 39), b"").good()),
        |it| drop(it.set(ID, AttributeId::new(PAGE, 39), &[1; 60_001]).good()),
        |it| drop(it.ask(Osd::Remove(ID)).send().good()),
    ];
    for change in changes {
        let it = with_attributes(40);
        let (ran, most) = stalled(&it, all(&it), 2, || change(&it));
        match ran.outcome.sense.as_ref().map(|sense| sense.key) {
            Some(SenseKey::AbortedCommand) => assert_eq!(ran.functions().0, 0),
            // There is nothing any more to be listed.
            found => assert_eq!(found, Some(SenseKey::IllegalRequest)),
        }
        assert!(most <= PIECE);
    }
    // A list that is kept is as it was.
    let it = with_attributes(4);
    let (ran, _) = stalled(&it, all(&it), 1, || drop(it.set(ID, AttributeId::new(PAGE, 3), b"").good()));
    assert_eq!(ran.good().values().len(), 5);
}

#[test]
fn a_removal_waits_for_its_initiator_and_then_for_its_partition() {
    let it = with_attributes(40);
    let every = AttributeId::new(PAGE, AttributeId::ALL);
    let ask = it.ask(Osd::Remove(ID)).get(&[every]).allocation(u32::MAX);
    let (ran, _) = stalled(&it, ask, 2, || {
        it.ask(Osd::CreateSnapshot { requested: P + 7, source: P, method: 0 }).send().good();
    });
    assert_eq!(ran.good().values().len(), 41);
    it.ask(Osd::GetAttributes(ID)).get(&[every]).send().bad_field(24);
    it.ask(Osd::GetAttributes(Id::new(P + 7, O))).get(&[AttributeId::new(PAGE, 40)]).send().good();
}

#[test]
fn a_creation_that_fails_leaves_alone_what_got_its_id_while_its_list_was_not_taken() {
    const LENGTH: AttributeId = osd::attributes::numbers::user_information::LOGICAL_LENGTH;
    let it = with_attributes(40);
    let every = |page| AttributeId::new(page, AttributeId::ALL);
    let id = Id::new(P, O + 7);
    let again = || {
        it.tick(1);
        it.ask(Osd::Remove(id)).send().good();
        it.create(id.object).good();
    };
    let source = osd::continuation::CopySource { id: ID, attributes: true, freeze: false, time: 0 };
    let copy = Osd::CopyUserObjects { partition: P, requested: id.object, method: 0 };
    let copy = it.ask(copy).descriptor(Descriptor::CopySource(source));
    let (ran, _) = stalled(&it, copy.get(&[every(PAGE)]).allocation(u32::MAX), 2, again);
    assert_eq!(ran.outcome.status, Status::CheckCondition);
    it.get(id, LENGTH).good();
    it.ask(Osd::Remove(id)).send().good();

    let mut create = it.ask(Osd::Create { partition: P, requested: id.object, count: 1 });
    for number in 1..=10 {
        create = create.set(AttributeId::new(PAGE, number), &value(number));
    }
    let (ran, _) = stalled(&it, create.get(&[every(PAGE)]).allocation(u32::MAX), 2, again);
    assert_eq!(ran.outcome.status, Status::CheckCondition);
    it.get(id, LENGTH).good();

    let page = Page(Page::PARTITION + PAGE.0);
    let mut change = Change::new();
    for number in 1..=40 {
        change.set_attribute(Id::partition(P), page.0, number, &value(number));
    }
    block_on(it.unit.store().apply(change, Commit::Relaxed)).unwrap();
    let clone = it.ask(Osd::CreateClone { requested: P + 7, source: P, method: 0 });
    let (ran, _) = stalled(&it, clone.get(&[every(page)]).allocation(u32::MAX), 2, || {
        it.tick(1);
        let scope = osd::cdb::RemoveScope::Contents;
        it.ask(Osd::RemovePartition { partition: P + 7, scope }).send().good();
        it.ask(Osd::CreatePartition { requested: P + 7 }).send().good();
        it.ask(Osd::Create { partition: P + 7, requested: O, count: 1 }).send().good();
    });
    assert_eq!(ran.outcome.status, Status::CheckCondition);
    it.get(Id::new(P + 7, O), LENGTH).good();
}

#[test]
fn a_long_list_of_many_objects_is_put_in_pieces() {
    let it = Client::ready();
    for number in 1..30 {
        it.ask(Osd::Create { partition: P, requested: O + number, count: 1 })
            .set(AttributeId::new(PAGE, 1), &vec![number as u8; 50_000])
            .send()
            .good();
    }
    it.ask(Osd::CreateCollection { partition: P, requested: O + 99 }).send().good();
    let mut join = Change::new();
    for number in 1..30 {
        join.push(Step::Join { object: Id::new(P, O + number), collection: O + 99, number: 1 });
    }
    block_on(it.unit.store().apply(join, Commit::Relaxed)).unwrap();
    let ask = it.ask(Osd::GetMemberAttributes(Id::new(P, O + 99)));
    let ask = ask.get(&[AttributeId::new(PAGE, 1)]).allocation(u32::MAX);
    let (ran, most) = stalled(&it, ask.clone(), 0, || {});
    assert!(most <= PIECE, "{most} bytes at once");
    let objects = ran.good().objects();
    assert_eq!(objects.len(), 29);
    for (number, (id, values)) in (1..).zip(&objects) {
        assert!((*id, values[0].1.len(), values[0].1[0]) == (O + number, 50_000, number as u8));
    }
    let (ran, _) = stalled(&it, ask, 1, || drop(it.ask(Osd::Remove(Id::new(P, O + 29))).send().good()));
    ran.fails(SenseKey::AbortedCommand, (0, 0));
}

#[test]
fn a_long_map_is_of_one_time_and_put_in_pieces() {
    const PARTS: u64 = 6000;
    let it = Client::ready();
    let id = Id::new(P, O);
    let mut change = Change::new();
    for part in 0..PARTS / 2 {
        change.push(Step::Write { id, at: part * 8192, data: vec![1; 100].into() });
    }
    block_on(it.unit.store().apply(change, Commit::Relaxed)).unwrap();
    let map = Osd::ReadMap { id: ID, allocation: 1 << 20, start: 0, map_type: 0 };
    let expected = it.ask(map).send().good().data;
    let (ran, most) = stalled(&it, it.ask(map), 0, || drop(it.write(0, &[2; 1 << 20]).good()));
    assert!(most <= PIECE, "{most} bytes at once");
    let ran = ran.good();
    assert!(ran.data == expected, "it is as it was when it was read");
    let (total, parts) = data::map(&ran.data).unwrap();
    let mut end = 0;
    let found = parts.inspect(|part| {
        assert_eq!(part.offset, end);
        end += u64::from(part.len);
    });
    assert_eq!((found.count() as u64, total), (total, total));
    assert!(total >= PARTS - 1, "{total}");
    // Parts of more than 32 bits and at odd places come out as they went in.
    it.ask(Osd::Clear(ID, range((1 << 34) + 12_345, 7))).send().good();
    let ran = it.ask(map).send().good();
    let (_, parts) = data::map(&ran.data).unwrap();
    assert_eq!(parts.map(|part| u64::from(part.len)).sum::<u64>(), it.length());
}

#[test]
fn a_long_query_is_of_one_time_and_put_in_pieces() {
    let it = Client::ready();
    it.ask(Osd::Create { partition: P, requested: 0, count: 20_000 }).send().good();
    let attribute = osd::attributes::numbers::user_information::ID;
    let query =
        Query { all: true, criteria: vec![Criterion { attribute, min: Vec::new(), max: Vec::new() }] };
    let command = Osd::Query { id: Id::partition(P), immediate: false, allocation: 1 << 20, matches: 0 };
    let ask = it.ask(command).descriptor(Descriptor::Query(query));
    let (ran, most) =
        stalled(&it, ask, 0, || drop(it.ask(Osd::Remove(Id::new(P, O + 19_000))).send().good()));
    assert!(most <= PIECE, "{most} bytes at once");
    let ran = ran.good();
    let (total, ids) = data::query_ids(&ran.data).unwrap();
    assert_eq!(total, 20_001);
    assert!(ids.eq(O..=O + 20_000));
}

#[test]
fn a_gap_before_retrieved_attributes_is_filled_as_it_is_taken() {
    const GAP: u64 = 5 << 20;
    let it = with_attributes(1);
    let (mut cdb, out, _) = all(&it).build();
    // The offset field of the retrieved attributes: 8-byte steps times two to the exponent.
    let offset = osd::offset::encode(GAP, Version::Osd2).unwrap();
    cdb[64..68].copy_from_slice(&offset.to_be_bytes());
    let taken = Arc::new(Mutex::new(Taken { patience: usize::MAX, ..Taken::default() }));
    let (_, outcome) = block_on(start(&it, &cdb, out, &taken));
    assert_eq!(outcome.status, Status::Good, "{:?}", outcome.sense);
    let taken = taken.lock().unwrap();
    assert!(taken.most <= 1 << 20, "{} bytes at once", taken.most);
    assert!(taken.data[..GAP as usize].iter().all(|byte| *byte == 0));
    let list = ValueList::parse(&taken.data[GAP as usize..], Version::Osd2).unwrap();
    assert_eq!(list.iter().last().unwrap().bytes, value(1));
}

#[test]
fn however_many_attributes_and_pages_there_are_all_of_them_are_listed() {
    let it = Client::ready();
    let id = Id::new(P, O);
    let mut change = Change::new();
    for number in 0..1000u32 {
        change.set_attribute(id, PAGE.0, number * 3 + 1, b"x");
        change.set_attribute(id, PAGE.0 + 1 + number, u32::MAX - 1, b"y");
    }
    block_on(it.unit.store().apply(change, Commit::Relaxed)).unwrap();
    let numbers = |page| -> Vec<u32> {
        let ran = it.ask(Osd::GetAttributes(ID)).get(&[AttributeId::new(page, AttributeId::ALL)]);
        ran.send().good().values().iter().map(|(id, _)| id.number).collect()
    };
    assert!(numbers(PAGE).into_iter().eq(std::iter::once(0).chain((0..1000).map(|number| number * 3 + 1))));
    assert!(numbers(Page(0)).into_iter().skip(6).eq(PAGE.0..=PAGE.0 + 1000));
    let every = AttributeId::new(Page::ALL, u32::MAX - 1);
    let values = it.ask(Osd::GetAttributes(ID)).get(&[every]).send().good().values();
    assert!(values.iter().map(|(id, _)| id.page.0).eq(PAGE.0 + 1..=PAGE.0 + 1000));
}

#[test]
fn an_object_names_only_so_many_collections_whatever_its_quota() {
    const MOST: u32 = crate::unit::limits::MAX_COLLECTIONS;
    let it = Client::ready();
    let id = Id::new(P, O);
    let mut change = Change::new();
    for number in 1..=MOST + 1 {
        let collection = O + u64::from(number);
        change.push(Step::CreateCollection(Id::new(P, collection), CollectionType::LINKED));
        if number < MOST {
            change.push(Step::Join { object: id, collection, number });
        }
    }
    block_on(it.unit.store().apply(change, Commit::Relaxed)).unwrap();
    let name = |number: u32| {
        let pointer = AttributeId::new(osd::attributes::numbers::collections::PAGE, number);
        it.set(ID, pointer, &(O + u64::from(number)).to_be_bytes())
    };
    name(MOST).good();
    name(MOST + 1).quota();
    let page = osd::attributes::numbers::collections::PAGE;
    let ran = it.ask(Osd::GetAttributes(ID)).get(&[AttributeId::new(page, AttributeId::ALL)]);
    let found = ran.send().good().values();
    assert!(found.iter().map(|(id, _)| id.number).eq(0..=MOST));
}
