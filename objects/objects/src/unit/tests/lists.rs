//! LIST and LIST COLLECTION: length limits, continuation, and changes meanwhile.

use osd::cdb::{List, ListCollection};
use osd::data::{self, ListHeader, Listed};

use super::*;

fn list(partition: u64, allocation: u64, initial: u64, list_id: u32) -> Osd {
    Osd::List(List { initial, list_id, ..List::new(partition, allocation) })
}

fn header(ran: &Ran) -> ListHeader {
    ListHeader::parse(&ran.data, ran.version).unwrap()
}

fn ids(ran: &Ran) -> Vec<u64> {
    data::list_ids(&ran.data).collect()
}

#[test]
fn a_list_says_where_to_go_on_and_how_long_the_whole_is() {
    for it in Client::each_form() {
        it.ask(Osd::Create { partition: P, requested: 0, count: 99 }).send().good();
        let all: Vec<u64> = (O..O + 100).collect();
        let ran = it.ask(list(P, 24 + 8 * 100, 0, 0)).send().good();
        assert_eq!(ids(&ran), all);
        let whole = ListHeader {
            additional_len: 16 + 800,
            continuation: 0,
            list_id: 0,
            changed: false,
            listed: Listed::UserObjects,
            attributes: false,
        };
        assert_eq!(header(&ran), whole);
        let ran = it.ask(list(P, 24 + 8 * 99 + 7, 0, 0)).send().good();
        assert_eq!((ids(&ran).len(), header(&ran).continuation), (99, O + 99));
        assert_eq!(header(&ran).additional_len, whole.additional_len);
        let ran = it.ask(list(P, 200, O + 99, header(&ran).list_id)).send().good();
        assert_eq!((ids(&ran), header(&ran).continuation), (vec![O + 99], 0));
        // From an id that nothing has.
        let ran = it.ask(list(P, 24 + 16, O + 97, 0)).send().good();
        assert_eq!((ids(&ran), header(&ran).continuation), (vec![O + 97, O + 98], O + 99));
        assert_eq!(header(&ran).additional_len, 16 + 24);
        for cut in [0, 8, 23] {
            assert_eq!(it.ask(list(P, cut, 0, 0)).send().good().data.len() as u64, cut);
        }
        // As much as there is room for, whatever the CDB allows.
        let ran = it.ask(list(P, u64::MAX, 0, 0)).room(40).send().good();
        assert_eq!((ids(&ran).len(), header(&ran).continuation), (2, O + 2));
    }
}

#[test]
fn partitions_and_collections_have_lists_of_their_own() {
    for it in Client::each_form() {
        it.ask(Osd::CreatePartition { requested: P + 5 }).send().good();
        it.ask(Osd::CreateCollection { partition: P, requested: O + 7 }).send().good();
        let ran = it.ask(list(0, 4096, 0, 0)).send().good();
        assert_eq!((ids(&ran), header(&ran).listed), (vec![P, P + 5], Listed::Partitions));
        let ran = it.ask(list(P, 4096, 0, 0)).send().good();
        assert_eq!(ids(&ran), [O]);
        let of = |object| {
            let id = Id::new(P, object);
            ListCollection::new(id, 4096)
        };
        let ran = it.ask(Osd::ListCollection(of(0))).send().good();
        assert_eq!(ids(&ran), [O + 7]);
        assert_eq!(ran.data[23], if ran.version == Version::Osd2 { 0x11 << 2 } else { 0 });
        it.ask(Osd::ListCollection(of(O))).send().bad_field(24);
        it.ask(list(P + 1, 4096, 0, 0)).send().bad_field(16);
    }
    let it = Client::ready();
    let sorted = List { sort: 1, ..List::new(P, 4096) };
    it.ask(Osd::List(sorted)).send().bad_field(11);
}

#[test]
fn a_list_that_goes_on_tells_whether_something_was_created_or_removed_since() {
    let it = Client::ready();
    it.ask(Osd::Create { partition: P, requested: 0, count: 9 }).send().good();
    it.ask(Osd::CreatePartition { requested: P + 1 }).send().good();
    let begin = || header(&it.ask(list(P, 24 + 16, 0, 0)).send().good());
    let go_on =
        |from: &ListHeader| header(&it.ask(list(P, 24 + 16, from.continuation, from.list_id)).send().good());
    let first = begin();
    assert!(first.list_id != 0 && !first.changed);
    it.write(0, b"does not concern the list").good();
    it.ask(Osd::Create { partition: P + 1, requested: 0, count: 1 }).send().good();
    let second = go_on(&first);
    assert!(!second.changed && second.list_id == first.list_id);
    it.ask(Osd::Remove(Id::new(P, O + 8))).send().good();
    let third = go_on(&second);
    assert!(third.changed);
    assert!(go_on(&third).changed, "it stays changed");
    assert!(!go_on(&begin()).changed);
}

#[test]
fn attributes_come_with_their_objects_as_many_as_fit_whole() {
    let it = Client::ready();
    for object in 1..10 {
        let set = vec![object as u8; 100];
        it.ask(Osd::Create { partition: P, requested: O + object, count: 1 }).set(FREE, &set).send().good();
    }
    let ask = |allocation, initial| {
        let list = List { initial, attributes: true, ..List::new(P, allocation) };
        let mut ask = it.ask(Osd::List(list)).get(&[FREE]);
        ask.allocation = 0;
        ask.send().good()
    };
    // 24, then 16 + 16 for the first, and 16 + 16 + 104 for each of the others.
    let ran = ask(24 + 32 + 2 * 136 + 135, 0);
    let found = data::list_objects(&ran.data).unwrap();
    assert_eq!(found.iter().map(|object| object.id).collect::<Vec<_>>(), [O, O + 1, O + 2]);
    assert_eq!(found[2].values.iter().next().unwrap().bytes, [2; 100]);
    assert_eq!((header(&ran).continuation, header(&ran).attributes), (O + 3, true));
    // One that has no room alone says how much it needs.
    let ran = ask(24 + 135, O + 3);
    assert_eq!((header(&ran).continuation, header(&ran).additional_len), (O + 3, 16 + 136));
    let ran = ask(24 + 7 * 136, O + 3);
    assert_eq!((data::list_objects(&ran.data).unwrap().len(), header(&ran).continuation), (7, 0));
}

#[test]
fn a_list_with_attributes_has_no_use_for_the_offset_of_retrieved_ones() {
    let it = Client::ready();
    it.set(ID, FREE, b"value").good();
    let list = List { attributes: true, ..List::new(P, 4096) };
    let (cdb, out, _) = it.ask(Osd::List(list)).get(&[FREE]).allocation(4096).build();
    // Within the list, unused, and none of OSD-2's; each with an allocation length.
    for offset in [[0; 4], [0xFF; 4], [0x50, 0, 0, 1]] {
        let mut cdb = cdb.clone();
        cdb[64..68].copy_from_slice(&offset);
        let ran = it.raw(&cdb, &out).good();
        let found = data::list_objects(&ran.data).unwrap();
        assert_eq!(found[0].values.iter().next().unwrap().bytes, b"value");
    }
    // Without LIST_ATTR it is where they go.
    let plain = List { attributes: false, ..list };
    let (mut cdb, out, _) = it.ask(Osd::List(plain)).get(&[FREE]).allocation(4096).build();
    cdb[64..68].copy_from_slice(&[0; 4]);
    it.raw(&cdb, &out).bad_field(64);
}

#[test]
fn a_reply_is_bounded_whatever_room_there_is() {
    let it = Client::ready();
    for _ in 0..3 {
        it.ask(Osd::Create { partition: P, requested: 0, count: 60_000 }).send().good();
    }
    let (mut from, mut seen, mut pieces) = (0, 0, 0);
    loop {
        let ran = it.ask(list(P, 64 << 20, from, 0)).send().good();
        assert!(ran.data.len() <= 1 << 20);
        seen += ids(&ran).len();
        pieces += 1;
        from = header(&ran).continuation;
        if from == 0 {
            break;
        }
    }
    assert_eq!((seen, pieces), (180_001, 2));
}
