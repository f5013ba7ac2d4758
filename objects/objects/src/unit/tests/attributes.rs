//! GET ATTRIBUTES and SET ATTRIBUTES in every format, every standard page, directories, "all", and
//! collections.

use osd::attributes::list::{ValueList, entry_len};
use osd::attributes::numbers::{
    attributes_access, collections, current_command, page_id, page_name, partition_information,
    partition_quotas, root_information, root_quotas, timestamps, user_information as info, user_quotas,
};
use osd::attributes::page::CurrentCommand;
use osd::cdb::{GetPage, InlineValue, SetFromBuffer};
use osd::{ObjectType, attributes::page};

use super::*;
use crate::store::{Change, CollectionType, Commit, Step};

const ANY: AttributeId = AttributeId::new(Page(0xF000_0001), 7);

fn all_of(page: Page) -> AttributeId {
    AttributeId::new(page, AttributeId::ALL)
}

fn collection(it: &Client, object: u64, kind: CollectionType) -> u64 {
    let change = Change::of(Step::CreateCollection(Id::new(P, object), kind));
    block_on(it.unit.store().apply(change, Commit::Relaxed)).unwrap();
    object
}

#[test]
fn attributes_are_set_got_replaced_and_deleted_in_lists() {
    for it in Client::each_form() {
        for id in [ID, Id::partition(P), Id::ROOT] {
            let kind = match (id.partition, id.object) {
                (0, _) => ObjectType::Root,
                (_, 0) => ObjectType::Partition,
                _ => ObjectType::User,
            };
            let one = AttributeId::new(Page::of(kind, 0x1_0000), 1);
            let two = AttributeId::new(Page::of(kind, 0x2000_0000), 0xFFFF_FFFE);
            // OSD-1's lists are shorter than the longest value.
            let long = vec![0xAB; if it.form == Form::Osd1 { 60_000 } else { 0xFFFE }];
            let ran = it
                .ask(Osd::SetAttributes(id))
                .set(one, b"first")
                .set(two, &long)
                .set(ANY, b"any")
                .get(&[two, one, ANY])
                .send()
                .good();
            assert!(ran.values() == [(two, long), (one, b"first".to_vec()), (ANY, b"any".to_vec())]);
            // Got before they are set: GET ATTRIBUTES' order.
            let ran = it.ask(Osd::GetAttributes(id)).set(one, b"second").set(two, b"").get(&[one]).send();
            assert_eq!(ran.good().value(), b"first");
            let ran = it.ask(Osd::GetAttributes(id)).get(&[one, two]).send().good();
            assert_eq!(ran.values()[0].1, b"second");
            assert_eq!(ran.values()[1].1, b"");
        }
    }
}

#[test]
fn what_is_not_defined_has_its_versions_sign() {
    let it = Client::ready();
    let ran = it.get(ID, FREE).good();
    assert_eq!(
        ran.data[8..],
        [&FREE.page.0.to_be_bytes()[..], &[0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0]].concat()
    );
    let mut first = Client::ready();
    first.form = Form::Osd1;
    let ran = first.get(ID, FREE).good();
    assert_eq!(ran.data[12..], [0xFF, 0xFF]);
    // So has a page of another kind of object.
    let ran = it.ask(Osd::GetAttributes(ID)).get(&[root_information::SYSTEM_ID, info::ID]).send().good();
    assert_eq!(ran.values()[0].1, b"");
    assert_eq!(ran.values()[1].1, O.to_be_bytes());
}

#[test]
fn an_allocation_length_cuts_the_list_and_leaves_its_length_true() {
    let it = Client::ready();
    it.set(ID, FREE, &[5; 100]).good();
    let ran = it.ask(Osd::GetAttributes(ID)).get(&[FREE, FREE]).allocation(40).send().good();
    assert_eq!((ran.data.len(), ran.outcome.wanted_in), (40, 40));
    assert_eq!(ran.data[4..8], 240u32.to_be_bytes());
    assert_eq!(ran.data[22..24], 100u16.to_be_bytes());
    let none = it.ask(Osd::GetAttributes(ID)).get(&[FREE]).allocation(0).send().good();
    assert_eq!(none.data, b"");
}

#[test]
fn one_attribute_is_set_out_of_the_cdb() {
    let it = Client::ready();
    let mut ask = it.ask(Osd::SetAttributes(ID));
    let mut set = |attribute, value: &[u8]| {
        ask.cdb.attributes =
            AttributeParameters::SetOne(InlineValue { attribute, value: value.try_into().unwrap() });
        it.raw(&ask.cdb.encode().unwrap(), &[])
    };
    set(FREE, b"eighteen bytes are").good();
    set(info::ID, &[0; 8]).bad_field(52);
    set(info::LOGICAL_LENGTH, &[0; 7]).bad_field(60);
    assert_eq!(it.get(ID, FREE).good().value(), b"eighteen bytes are");
}

/// A CDB that gets a page and sets an attribute to a value at the start of Data-Out.
fn page_of(it: &Client, command: Osd, get: Page, set: Option<(AttributeId, &[u8])>) -> Vec<u8> {
    let mut ask = it.ask(command);
    let set = set.map(|(attribute, value)| {
        let value = Region { len: value.len() as u32, offset: 0 };
        SetFromBuffer { attribute, value: (value.len > 0).then_some(value) }
    });
    let retrieved = Some(Region { len: 500, offset: 0 });
    ask.cdb.attributes = AttributeParameters::Page { get: Some(GetPage { page: get, retrieved }), set };
    ask.cdb.encode().unwrap().to_vec()
}

#[test]
fn page_format_gets_a_page_and_sets_an_attribute() {
    for it in Client::each_form() {
        let version = it.form.version();
        let page_of = |command, get, set| page_of(&it, command, get, set);
        it.tick(5);
        let page = timestamps::page(ObjectType::User);
        let data = it.raw(&page_of(Osd::GetAttributes(ID), page, None), &[]).good().data;
        assert_eq!(data.len(), 38);
        assert_eq!(data[..8], [0, 0, 0, 3, 0, 0, 0, 30]);
        assert_eq!(data[8..14], 1_000_000u64.to_be_bytes()[2..]);
        let cdb = page_of(Osd::SetAttributes(ID), user_quotas::PAGE, Some((FREE, b"value")));
        let data = it.raw(&cdb, b"value").good().data;
        assert_eq!(data, [&[0, 0, 0, 2, 0, 0, 0, 8][..], &[0xFF; 8]].concat());
        assert_eq!(it.get(ID, FREE).good().value(), b"value");
        let create = Osd::Create { partition: P, requested: 0x2_0000, count: 1 };
        let data = it.raw(&page_of(create, Page::CURRENT_COMMAND, None), &[]).good().data;
        let current = CurrentCommand::parse(&data, it.form.icv_len()).unwrap();
        assert_eq!((current.kind, current.id), (ObjectType::User, Id::new(P, 0x2_0000)));
        assert_eq!(data.len(), if version == Version::Osd1 { 56 } else { 44 + it.form.icv_len() });
        // Pages whose attributes have no fixed place, and pages of other objects.
        for page in [info::PAGE, FREE.page, root_quotas::PAGE] {
            it.raw(&page_of(Osd::GetAttributes(ID), page, None), &[]).bad_field(52);
        }
        let bad = page_of(Osd::SetAttributes(ID), page, Some((info::ID, b"")));
        it.raw(&bad, &[]).bad_field(64);
        // A creation whose page cannot be got is undone.
        let create = Osd::Create { partition: P, requested: 0x2_0001, count: 1 };
        it.raw(&page_of(create, info::PAGE, None), &[]).bad_field(52);
        it.get(Id::new(P, 0x2_0001), info::ID).bad_field(24);
        for page in [user_quotas::PAGE, timestamps::page(ObjectType::User)] {
            assert!(page::layout(page).is_some());
        }
    }
}

#[test]
fn pages_of_security_and_collections_have_their_values_at_fixed_places() {
    use osd::attributes::numbers::{collection_security, partition_security, user_security};
    for it in Client::each_form() {
        let get = |id, page| it.raw(&page_of(&it, Osd::GetAttributes(id), page, None), &[]);
        let partition = Id::partition(P);
        it.set(partition, partition_security::POLICY_TAG, b"ours").good();
        it.set(partition, partition_security::OBJECT_POLICY_TAG, b"new!").good();
        it.set(partition, partition_security::FROZEN_KEYS, &[0x80, 1]).good();
        it.set(partition, partition_security::OLDEST_NONCE, &[0, 0, 0, 0, 1, 2]).good();
        let page = get(partition, partition_security::PAGE).good().data;
        assert_eq!(page.len(), 8 + 150);
        assert_eq!(page[..8], [0x30, 0, 0, 5, 0, 0, 0, 150]);
        assert_eq!(page[8..18], [0, 0, 0, 0, 0, 0, 0, 0, 1, 2]);
        assert_eq!(page[26..36], *b"\x80\x01oursnew!");
        assert!(page[36..].iter().all(|byte| *byte == 0), "there is no key");
        let depth = it.get(partition, partition_security::NONCE_LIST_DEPTH).good().number();
        assert_eq!(page[24..26], depth.to_be_bytes()[6..]);
        let one = collection(&it, 0x2_0000, CollectionType::LINKED);
        let other = collection(&it, 0x2_0001, CollectionType::LINKED);
        it.set(Id::new(P, one), collection_security::POLICY_TAG, b"some").good();
        let page = get(Id::new(P, one), collection_security::PAGE).good().data;
        assert_eq!(page, b"\x60\0\0\x05\0\0\0\x04some");
        it.set(ID, user_security::POLICY_TAG, b"mine").good();
        assert_eq!(get(ID, user_security::PAGE).good().data, b"\0\0\0\x05\0\0\0\x04mine");
        // The value that a new object gets is in its page too.
        it.create(O + 9).good();
        assert_eq!(get(Id::new(P, O + 9), user_security::PAGE).good().data[8..], *b"new!");
        it.ask(Osd::CreateCollection { partition: P, requested: O + 10 }).send().good();
        let page = get(Id::new(P, O + 10), collection_security::PAGE).good().data;
        assert_eq!(page, b"\x60\0\0\x05\0\0\0\x04new!");
        use osd::attributes::numbers::collections;
        assert_eq!(get(ID, collections::PAGE).good().data, b"\0\0\0\x04\0\0\0\0");
        let pointer = |number| AttributeId::new(collections::PAGE, number);
        it.set(ID, pointer(7), &one.to_be_bytes()).good();
        it.set(ID, pointer(2), &other.to_be_bytes()).good();
        let expected = [&[0, 0, 0, 4, 0, 0, 0, 16][..], &other.to_be_bytes(), &one.to_be_bytes()].concat();
        assert_eq!(get(ID, collections::PAGE).good().data, expected);
        get(Id::new(P, one), collections::PAGE).bad_field(52);
        // The place of the root's keys in its page is not known for sure.
        get(Id::ROOT, osd::attributes::numbers::root_security::PAGE).bad_field(52);
        let times = get(partition, timestamps::page(ObjectType::Partition)).good().data;
        assert_eq!((times[7], times.len(), times[38]), (31, 39, 0));
        it.set(
            partition,
            AttributeId::new(timestamps::page(ObjectType::Partition), timestamps::BYPASS),
            &[0x7F],
        )
        .good();
        assert_eq!(get(partition, timestamps::page(ObjectType::Partition)).good().data[38], 0x7F);
        assert_eq!(get(Id::ROOT, timestamps::page(ObjectType::Root)).good().data.len(), 8 + 13);
    }
}

#[test]
fn information_pages_tell_of_each_kind_of_object() {
    let it = Client::ready();
    it.write(0, &[1; 5000]).good();
    let ran = it.ask(Osd::GetAttributes(ID)).get(&[all_of(info::PAGE)]).send().good();
    let values = ran.values();
    let of = |attribute: AttributeId| {
        values.iter().find(|(id, _)| *id == attribute).map(|(_, value)| value.clone()).unwrap()
    };
    assert_eq!(of(AttributeId::new(info::PAGE, 0)), page_id("INCITS", page_name(info::PAGE).unwrap()));
    assert_eq!(of(info::PARTITION_ID), P.to_be_bytes());
    assert_eq!(of(info::ID), O.to_be_bytes());
    assert_eq!(of(info::LOGICAL_LENGTH), 5000u64.to_be_bytes());
    assert_eq!(of(info::USED_CAPACITY), 8192u64.to_be_bytes());
    assert!(values.is_sorted_by_key(|(id, _)| *id));

    let of_partition = |attribute| it.get(Id::partition(P), attribute).good().number();
    assert_eq!(of_partition(partition_information::ID), P);
    assert_eq!(of_partition(partition_information::USED_CAPACITY), 8192);
    assert_eq!(of_partition(partition_information::USED_CAPACITY_INCREMENT), 4096);
    assert_eq!(of_partition(partition_information::OBJECTS), 1);

    let of_root = |attribute| it.get(Id::ROOT, attribute).good();
    assert_eq!(of_root(root_information::TOTAL_CAPACITY).number(), CAPACITY);
    assert_eq!(of_root(root_information::USED_CAPACITY).number(), 8192);
    assert_eq!(of_root(root_information::PARTITIONS).number(), 1);
    assert_eq!(of_root(root_information::CLOCK).number(), 1_000_000);
    assert_eq!(of_root(root_information::DEFAULT_ISOLATION).number(), 1);
    assert_eq!(of_root(root_information::SUPPORTED_ISOLATION).value()[0], 0b0110_1100);
    assert_eq!(of_root(root_information::MAX_CONTINUATION).number(), 65_536);
    let ran = it.ask(Osd::GetAttributes(Id::ROOT)).get(&[all_of(root_information::PAGE)]).send().good();
    let lens = [
        (0, 40),
        (3, 20),
        (4, 8),
        (5, 16),
        (6, 32),
        (7, 4),
        (8, 16),
        (0xA, 4),
        (0x80, 8),
        (0x81, 8),
        (0xC0, 8),
        (0x100, 6),
        (0x110, 1),
        (0x111, 32),
        (0x120, 8),
        (0x121, 8),
        (0x122, 8),
        (0x123, 1),
        (0x1C1, 8),
        (0x1C2, 8),
        (0x1CC, 8),
    ];
    let found: Vec<_> = ran.values().iter().map(|(id, value)| (id.number, value.len())).collect();
    for entry in lens {
        assert!(found.contains(&entry), "{entry:X?} of {found:X?}");
    }

    let object = collection(&it, 0x2_0000, CollectionType::LINKED);
    let id = Id::new(P, object);
    use osd::attributes::numbers::collection_information as collection;
    assert_eq!(it.get(id, collection::ID).good().number(), object);
    assert_eq!(it.get(id, collection::PARTITION_ID).good().number(), P);
    assert_eq!(it.get(id, collection::TYPE).good().number(), 0);
    assert_eq!(it.get(id, collection::USED_CAPACITY).good().number(), 0);
    it.set(id, collection::NAME, b"a collection").good();
    assert_eq!(it.get(id, collection::NAME).good().value(), b"a collection");
}

#[test]
fn directories_list_the_pages_that_an_object_has() {
    let it = Client::ready();
    it.set(ID, FREE, b"x").good();
    let named = Page(0x1_0001);
    let name = page_id("STAG", "A page of its own");
    it.set(ID, AttributeId::new(named, 0), &name).good();
    it.set(ID, AttributeId::new(named, 0), b"not 40 bytes").bad_parameter(16);
    it.set(ID, ANY, b"y").good();
    let directory = Page(0);
    let values = it.ask(Osd::GetAttributes(ID)).get(&[all_of(directory)]).send().good().values();
    let numbers: Vec<u32> = values.iter().map(|(id, _)| id.number).collect();
    assert_eq!(numbers, [0, 1, 2, 3, 4, 5, 0x1_0000, 0x1_0001, 0xF000_0001]);
    assert!(values.iter().all(|(id, value)| id.page == directory && value.len() == 40));
    let of = |number| &values.iter().find(|(id, _)| id.number == number).unwrap().1;
    assert_eq!(of(1)[..], page_id("INCITS", "T10 User Object Information"));
    assert_eq!(of(0x1_0001)[..], name);
    assert_eq!(of(0x1_0000)[..], *b"        unidentified attributes page\0\0\0\0");
    let root = Page::of(ObjectType::Root, 0);
    let ran = it.ask(Osd::GetAttributes(Id::ROOT)).get(&[all_of(root)]).send().good();
    let numbers: Vec<u32> = ran.values().iter().map(|(id, _)| id.number).collect();
    assert_eq!(numbers, [0, root.0, root.0 + 1, root.0 + 2, root.0 + 3, root.0 + 5]);
    // A directory is read-only, and a page that does not exist is not in it.
    it.set(ID, AttributeId::new(directory, 0x1_0000), &name).bad_parameter(8);
    assert_eq!(it.get(ID, AttributeId::new(directory, 0x1_0002)).good().value(), b"");
}

#[test]
fn every_standard_page_of_every_kind_of_object_says_which_it_is() {
    let it = Client::ready();
    let tracking = Id::new(P, collection(&it, 0x2_0000, CollectionType(1)));
    let of_each_kind = [
        (ObjectType::Root, Id::ROOT),
        (ObjectType::Partition, Id::partition(P)),
        (ObjectType::Collection, tracking),
        (ObjectType::User, ID),
    ];
    let mut seen = 0;
    for (kind, id) in of_each_kind {
        let directory =
            it.ask(Osd::GetAttributes(id)).get(&[all_of(Page::of(kind, 0))]).send().good().values();
        for page in (0..0x80).map(|number| Page::of(kind, number)) {
            let says = it.get(id, AttributeId::new(page, 0)).good().value();
            let listed = directory.iter().find(|(entry, _)| entry.number == page.0).map(|(_, value)| value);
            let Some(name) = page_name(page) else {
                assert_eq!((says.len(), listed), (0, None), "{page:?} is none");
                continue;
            };
            seen += 1;
            assert_eq!(says[..], page_id("INCITS", name), "{name}");
            assert_eq!(listed, Some(&says), "{name}");
        }
    }
    assert_eq!(seen, 22);
    let current = AttributeId::new(Page::CURRENT_COMMAND, 0);
    assert_eq!(it.get(ID, current).good().value()[..], page_id("INCITS", "Current Command"));
}

#[test]
fn all_attributes_and_all_pages_are_spread_out_in_order() {
    for it in Client::each_form() {
        it.ask(Osd::SetAttributes(ID)).set(FREE, b"one").set(ANY, b"any").send().good();
        let everything = it.ask(Osd::GetAttributes(ID)).get(&[all_of(Page::ALL)]).send().good().values();
        assert!(everything.is_sorted_by_key(|(id, _)| *id));
        assert!(everything.iter().all(|(_, value)| !value.is_empty()));
        for (attribute, value) in [(FREE, &b"one"[..]), (ANY, b"any"), (info::ID, &O.to_be_bytes())] {
            assert!(everything.contains(&(attribute, value.to_vec())), "{attribute}");
        }
        // Attribute 0 of every page: the pages' identifications.
        let ids =
            it.ask(Osd::GetAttributes(ID)).get(&[AttributeId::new(Page::ALL, 0)]).send().good().values();
        assert_eq!(ids.len(), 8);
        let current = it.ask(Osd::GetAttributes(ID)).get(&[all_of(Page::CURRENT_COMMAND)]).send().good();
        assert_eq!(current.values().len(), 7);
        assert!(current.values().contains(&(current_command::PARTITION_ID, P.to_be_bytes().to_vec())));
        // And nothing of it can be set.
        for attribute in [all_of(FREE.page), AttributeId::new(Page::ALL, 1), current_command::OBJECT_ID] {
            it.set(ID, attribute, b"x").fails(SenseKey::IllegalRequest, (0x26, 0x00));
        }
    }
}

#[test]
fn a_page_on_which_nothing_was_set_has_no_attribute_0() {
    let it = Client::ready();
    let free = Page(0x1_0005);
    let values = |attribute| it.ask(Osd::GetAttributes(ID)).get(&[attribute]).send().good().values();
    assert_eq!(values(all_of(free)), []);
    assert!(values(all_of(Page::ALL)).iter().all(|(id, _)| id.page != free));
    assert!(values(AttributeId::new(Page::ALL, 0)).iter().all(|(id, _)| id.page != free));
    // Nor when the attribute that was set is deleted again.
    let attribute = AttributeId::new(free, 3);
    it.set(ID, attribute, b"x").good();
    it.set(ID, attribute, b"").good();
    assert_eq!(values(all_of(free)), []);
    // The pages of the standard are there whatever was set, and say which they are.
    assert_eq!(values(all_of(collections::PAGE)).len(), 1);
}

#[test]
fn the_logical_length_truncates_and_extends() {
    for it in Client::each_form() {
        it.write(0, &[9; 100]).good();
        it.set(ID, info::LOGICAL_LENGTH, &10u64.to_be_bytes()).good();
        assert_eq!(it.length(), 10);
        it.set(ID, info::LOGICAL_LENGTH, &20u64.to_be_bytes()).good();
        assert_eq!(it.read(0, 20).good().data, [[9; 10], [0; 10]].concat());
        it.set(ID, info::LOGICAL_LENGTH, &[1; 7]).fails(SenseKey::IllegalRequest, (0x26, 0x00));
        it.set(ID, info::LOGICAL_LENGTH, &[]).fails(SenseKey::IllegalRequest, (0x26, 0x00));
        // With data in the same command: after it.
        let ran = it
            .ask(Osd::Write(ID, range(0, 50)))
            .data(&[1; 50])
            .set(info::LOGICAL_LENGTH, &30u64.to_be_bytes())
            .get(&[info::LOGICAL_LENGTH])
            .send()
            .good();
        assert_eq!(ran.number(), 30);
    }
}

#[test]
fn what_the_standard_works_out_cannot_be_set() {
    let it = Client::ready();
    let fixed = [
        (ID, info::USED_CAPACITY),
        (ID, info::PARTITION_ID),
        (ID, AttributeId::new(timestamps::page(ObjectType::User), timestamps::CREATED)),
        (ID, AttributeId::new(timestamps::page(ObjectType::User), timestamps::BYPASS)),
        (ID, AttributeId::new(Page(0x80), 1)),
        (ID, AttributeId::new(Page(0x8000), 1)),
        (ID, AttributeId::new(info::PAGE, 0)),
        (ID, partition_information::NAME),
        (ID, AttributeId::new(Page(0xC000_0000), 1)),
        (Id::partition(P), partition_information::OBJECTS),
        (Id::partition(P), FREE),
        (Id::ROOT, root_information::TOTAL_CAPACITY),
        (Id::ROOT, root_information::CLOCK),
    ];
    for (id, attribute) in fixed {
        it.set(id, attribute, &[0; 8]).bad_parameter(8);
    }
    for (id, attribute) in [
        (ID, info::NAME),
        (Id::partition(P), partition_information::NAME),
        (Id::ROOT, root_information::OSD_NAME),
        (Id::partition(P), AttributeId::new(attributes_access::PAGE, 3)),
    ] {
        it.set(id, attribute, b"16 bytes of name").good();
        assert_eq!(it.get(id, attribute).good().value(), b"16 bytes of name");
    }
    it.set(Id::partition(P), AttributeId::new(attributes_access::PAGE, 3), b"odd").bad_parameter(16);
}

#[test]
fn pointers_of_the_collections_page_join_and_leave() {
    for it in Client::each_form() {
        let a = collection(&it, 0x2_0000, CollectionType::LINKED);
        let b = collection(&it, 0x2_0001, CollectionType::LINKED);
        let spontaneous = collection(&it, 0x2_0002, CollectionType::SPONTANEOUS);
        let pointer = |number| AttributeId::new(collections::PAGE, number);
        let members = |object| it.unit.store().object(Id::new(P, object)).unwrap().members;
        let ran = it
            .ask(Osd::SetAttributes(ID))
            .set(pointer(1), &a.to_be_bytes())
            .set(pointer(9), &b.to_be_bytes())
            .get(&[all_of(collections::PAGE)])
            .send()
            .good();
        let values = ran.values();
        assert_eq!(values.len(), 3);
        assert_eq!(
            values[1..],
            [(pointer(1), a.to_be_bytes().to_vec()), (pointer(9), b.to_be_bytes().to_vec())]
        );
        assert_eq!((members(a), members(b)), (1, 1));
        // Another collection under the same number, and none.
        it.set(ID, pointer(9), &[]).good();
        it.set(ID, pointer(1), &b.to_be_bytes()).good();
        assert_eq!((members(a), members(b)), (0, 1));
        it.set(ID, pointer(5), &[]).good();
        let refuse = |attribute, value: &[u8]| {
            it.set(ID, attribute, value).fails(SenseKey::IllegalRequest, (0x26, 0x00));
        };
        refuse(pointer(2), &spontaneous.to_be_bytes());
        refuse(pointer(2), &O.to_be_bytes());
        refuse(pointer(2), &0x9_0000u64.to_be_bytes());
        refuse(pointer(2), &[0; 4]);
        refuse(pointer(0xFFFF_FF01), &a.to_be_bytes());
        // In the command that creates the object.
        let ran = it
            .ask(Osd::Create { partition: P, requested: 0x3_0000, count: 1 })
            .set(pointer(1), &a.to_be_bytes())
            .get(&[pointer(1)])
            .send()
            .good();
        assert_eq!(ran.number(), a);
        assert_eq!(members(a), 1);
        it.ask(Osd::Remove(Id::new(P, 0x3_0000))).send().good();
        assert_eq!(members(a), 0);
        // Only as many of them as the quota allows.
        it.set(Id::partition(P), partition_quotas::COLLECTIONS_PER_OBJECT, &1u32.to_be_bytes()).good();
        it.set(ID, pointer(2), &a.to_be_bytes()).quota();
        let ran =
            it.ask(Osd::SetAttributes(ID)).set(pointer(1), &[]).set(pointer(2), &a.to_be_bytes()).send();
        ran.good();
    }
}

#[test]
fn a_thousand_questions_have_a_thousand_answers_and_no_more_room_than_was_given() {
    let it = Client::ready();
    it.set(ID, FREE, &vec![1; 60_000]).good();
    let asked = vec![FREE; 1000];
    let ran = it.ask(Osd::GetAttributes(ID)).get(&asked).allocation(1 << 20).send().good();
    assert_eq!(ran.data.len(), 1 << 20);
    let list = ValueList::parse_retrieved(&ran.data, Version::Osd2).unwrap();
    assert_eq!(list.iter().count(), 18);
    assert_eq!(ran.data[4..8], (1000 * entry_len(Version::Osd2, 60_000) as u32).to_be_bytes());
}

#[test]
fn others_have_their_turn_while_many_attributes_are_looked_up() {
    let it = Client::ready();
    let collections = osd::attributes::numbers::collections::PAGE;
    let many: Vec<AttributeId> = (1..=20_000).map(|number| AttributeId::new(collections, number)).collect();
    // The list is taken first.
    assert!(it.ask(Osd::GetAttributes(ID)).get(&many).pauses(1) >= 15);
    // Few, but long ones.
    for number in 0..20 {
        it.set(ID, AttributeId { number: FREE.number + number, ..FREE }, &vec![1; 60_000]).good();
    }
    assert!(it.ask(Osd::GetAttributes(ID)).get(&[all_of(FREE.page)]).pauses(1) >= 10);
    // Of each of many objects not much, but of all together.
    it.ask(Osd::Create { partition: P, requested: 0, count: 200 }).send().good();
    let list = Osd::List(osd::cdb::List { attributes: true, ..osd::cdb::List::new(P, 1 << 20) });
    assert!(it.ask(list).get(&many[..200]).pauses(1) >= 30);
    let nowhere = AttributeId::new(Page::ALL, 0x7777);
    assert!(it.ask(list).get(&[nowhere; 40]).pauses(1) >= 30);
    // Nor does setting what needs no step keep the others.
    let mut create = it.ask(Osd::Create { partition: P, requested: 0, count: 100 });
    for &attribute in &many[..5000] {
        create = create.set(attribute, b"");
    }
    assert!(create.pauses(1) >= 6);
}

#[test]
fn collections_are_named_by_their_numbers_however_many_are_asked_for() {
    let it = Client::ready();
    let named = |number| AttributeId::new(osd::attributes::numbers::collections::PAGE, number);
    for n in 1..=300 {
        it.ask(Osd::CreateCollection { partition: P, requested: O + n }).send().good();
    }
    let mut set = it.ask(Osd::SetAttributes(ID));
    for n in 1..=300u32 {
        set = set.set(named(1000 - n), &(O + u64::from(n)).to_be_bytes());
    }
    // One is left again, and another one takes its number.
    set = set.set(named(999), b"").set(named(998), &(O + 1).to_be_bytes());
    set.send().good();
    let asked: Vec<AttributeId> = (698..=1000).map(named).collect();
    let values = it.ask(Osd::GetAttributes(ID)).get(&asked).send().good().values();
    for (attribute, value) in values {
        let expected = match attribute.number {
            998 => Some(O + 1),
            700..=997 => Some(O + 1000 - u64::from(attribute.number)),
            _ => None,
        };
        assert_eq!(value, expected.map(|id| id.to_be_bytes().to_vec()).unwrap_or_default(), "{attribute:?}");
    }
}
