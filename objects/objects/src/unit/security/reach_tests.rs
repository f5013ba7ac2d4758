//! The reach of a permission: over partitions, time, attributes and bytes.

use osd::attributes::numbers::{
    attributes_access, collection_security, partition_information, partition_security, root_security,
    user_information, user_security,
};
use osd::attributes::{AttributeId, Page};
use osd::cdb::{KeyToSet, List};
use osd::continuation::{CopySource, Criterion, Descriptor, Query};
use osd::security::credential::Credential;
use osd::security::{Direction, Method, Sealer};
use osd::sense::code;
use osd::{Capability, Command as Osd, Id, ObjectType, Permissions};
use scsi::SenseKey;

use super::super::tests::{Ask, Client, ID, O, P, Ran, range};
use super::tests::{Manager, SEED, protected, read, seal, sealed, set};
use crate::store::{Change, Commit};

const Q: u64 = P + 1;

/// Everything on the root, as `narrow` leaves it.
fn root(manager: &Manager, client: &Client, method: Method, narrow: fn(&mut Capability)) -> Credential {
    let mut capability = manager.capability(client, ObjectType::Root, Id::ROOT, method);
    narrow(&mut capability);
    manager.sign(client, capability, &manager.working[0])
}

fn partition(manager: &Manager, client: &Client, narrow: fn(&mut Capability)) -> Credential {
    let mut capability = manager.capability(client, ObjectType::Partition, Id::partition(P), Method::CmdRsp);
    narrow(&mut capability);
    manager.sign(client, capability, &manager.working[1])
}

/// Makes another partition with an object, which any client may do where no method is demanded.
fn open_partition(client: &Client) {
    client.ask(Osd::CreatePartition { requested: Q }).send().good();
    client.ask(Osd::Create { partition: Q, requested: O, count: 1 }).send().good();
}

fn open<'a>(ask: Ask<'a>) -> Ask<'a> {
    ask.set(partition_security::DEFAULT_METHOD, &[0])
}

fn source() -> Descriptor {
    Descriptor::CopySource(CopySource { id: ID, attributes: false, freeze: false, time: 0 })
}

#[test]
fn a_command_proves_what_every_partition_that_it_touches_demands() {
    let (client, manager) = protected(Method::CmdRsp);
    let everything = root(&manager, &client, Method::CmdRsp, |_| {});
    let snapshot = || client.ask(Osd::CreateSnapshot { requested: Q, source: P, method: 0 });
    let clone = || client.ask(Osd::CreateClone { requested: Q, source: P, method: 0 });
    open(snapshot()).send().bad_field(82);
    open(clone()).send().bad_field(82);
    // An open clone is not filled again from a protected source.
    sealed(&client, open(clone()), &everything).good();
    client.ask(Osd::Read(Id::new(Q, O), range(0, 8))).send().good();
    let refresh = || client.ask(Osd::RefreshSnapshotOrClone { partition: Q });
    open(refresh()).send().bad_field(82);
    sealed(&client, refresh(), &everything).good();
    client
        .ask(Osd::CopyUserObjects { partition: Q, requested: 0, method: 0 })
        .descriptor(source())
        .send()
        .bad_field(82);
    let compare = Osd::ReadMapsAndCompare { id: Id::new(Q, O), allocation: 64, other: P, map_type: 0 };
    client.ask(compare).send().bad_field(82);
    sealed(&client, client.ask(compare), &everything).good();
    // A snapshot keeps demanding what its source did.
    let taken = Osd::CreateSnapshot { requested: Q + 1, source: P, method: 0 };
    sealed(&client, client.ask(taken), &everything).good();
    sealed(
        &client,
        open(client.ask(Osd::SetAttributes(Id::partition(P)))),
        &partition(&manager, &client, |_| {}),
    )
    .good();
    read(&client).send().good();
    client.ask(Osd::RestorePartition { partition: P, snapshot: Q + 1 }).send().bad_field(82);
}

#[test]
fn formatting_takes_a_proof_as_strong_as_that_of_the_most_secret_partition() {
    let (client, manager) = protected(Method::AllData);
    open_partition(&client);
    let everything = |method| root(&manager, &client, method, |_| {});
    let format = || client.ask(Osd::Format { capacity: 0 });
    format().send().bad_field(82);
    sealed(&client, format(), &everything(Method::CmdRsp)).bad_field(82);
    assert!(client.unit.store().object(ID).is_ok());
    sealed(&client, format(), &everything(Method::AllData)).good();
    assert!(client.unit.store().object(ID).is_err());
    // Nothing is secured any more.
    format().send().good();
}

#[test]
fn a_partition_that_is_secured_while_formatting_waits_is_not_erased() {
    let (client, manager) = protected(Method::NoSec);
    client.ask(Osd::Create { partition: P, requested: O + 1, count: 1 }).send().good();
    let (cdb, out, _) =
        client.ask(Osd::Format { capacity: 0 }).set(root_security::OLDEST_NONCE, &[0; 6]).build();
    let demand = || {
        let ask = client.ask(Osd::SetAttributes(Id::partition(P)));
        ask.set(partition_security::DEFAULT_METHOD, &[2]).send().good();
    };
    client.raw_stalled(&cdb, &out, demand).bad_field(82);
    assert!(client.unit.store().object(ID).is_ok());
    drop(manager);
}

#[test]
fn a_weaker_proof_of_the_root_does_not_open_a_partition_that_demands_more() {
    let (client, manager) = protected(Method::AllData);
    let weak = root(&manager, &client, Method::CmdRsp, |_| {});
    let snapshot = || client.ask(Osd::CreateSnapshot { requested: Q, source: P, method: 0 });
    sealed(&client, snapshot(), &weak).bad_field(82);
    sealed(&client, snapshot(), &root(&manager, &client, Method::AllData, |_| {})).good();
}

#[test]
fn a_list_shows_attributes_of_those_partitions_only_whose_method_was_proved() {
    let (client, manager) = protected(Method::CmdRsp);
    open_partition(&client);
    let name = partition_information::NAME;
    client.set(Id::partition(Q), name, b"open").good();
    set(&client, Id::partition(P), name, b"secret", &partition(&manager, &client, |_| {})).good();
    let list = || {
        let list = List { attributes: true, ..List::new(0, 512) };
        client.ask(Osd::List(list)).get(&[name])
    };
    let holds = |data: &[u8], text: &[u8]| data.windows(text.len()).any(|part| part == text);
    let anybody = list().send().good().data;
    assert!(holds(&anybody, b"open") && !holds(&anybody, b"secret"), "{anybody:?}");
    // The existence of the partition is no secret.
    assert!(holds(&anybody, &P.to_be_bytes()));
    let proved = sealed(&client, list(), &root(&manager, &client, Method::CmdRsp, |_| {})).good().data;
    assert!(holds(&proved, b"open") && holds(&proved, b"secret"));
}

#[test]
fn what_did_not_exist_when_a_command_came_is_not_open_to_it_when_it_goes_on() {
    let (client, _manager) = protected(Method::CmdRsp);
    let theirs = Id::new(Q, O);
    let set = client.ask(Osd::SetAttributes(theirs)).set(user_information::NAME, b"mine");
    let (cdb, out, _) = set.build();
    let made = || {
        open_partition(&client);
        client.set(Id::partition(Q), partition_security::DEFAULT_METHOD, &[2]).good();
    };
    client.raw_stalled(&cdb, &out, made).bad_field(82);
    // A partition that is not there is not open either where those that will be are not.
    client.set(Id::ROOT, root_security::PARTITION_DEFAULT_METHOD, &[2]).good();
    client.ask(Osd::Read(Id::new(Q + 7, O), range(0, 8))).send().bad_field(82);
}

type Way = fn(&Client, &Manager);

#[test]
fn a_permission_that_ends_while_the_initiator_is_waited_for_is_none() {
    let ways: [(Way, fn(Ran)); 5] = [
        (
            |client, manager| {
                set(
                    client,
                    ID,
                    user_security::POLICY_TAG,
                    &[0, 0, 0, 8],
                    &manager.grant(client, Method::CmdRsp, |_| {}),
                )
                .good();
            },
            |ran| {
                ran.bad_field(140);
            },
        ),
        (
            |client, manager| {
                set(
                    client,
                    Id::partition(P),
                    partition_security::FROZEN_KEYS,
                    &[0, 2],
                    &partition(manager, client, |_| {}),
                )
                .good();
            },
            |ran| {
                ran.fails(SenseKey::IllegalRequest, code::WORKING_KEY_FROZEN);
            },
        ),
        (
            |client, manager| drop(manager.set_key(client, KeyToSet::Working, P, 1, [9; 20]).good()),
            |ran| {
                ran.bad_field(81);
            },
        ),
        (
            |client, _| client.tick(50),
            |ran| {
                ran.bad_field(84);
            },
        ),
        (
            |client, manager| {
                set(
                    client,
                    Id::partition(P),
                    partition_security::DEFAULT_METHOD,
                    &[3],
                    &partition(manager, client, |_| {}),
                )
                .good();
            },
            |ran| {
                ran.bad_field(82);
            },
        ),
    ];
    for (change, refused) in ways {
        let (client, manager) = protected(Method::CmdRsp);
        let all = manager.grant(&client, Method::CmdRsp, |_| {});
        set(&client, ID, user_security::POLICY_TAG, &[0, 0, 0, 7], &all).good();
        let now = client.clock.0.load(std::sync::atomic::Ordering::Relaxed);
        let grant = manager.grant(&client, Method::CmdRsp, |c| (c.policy_tag, c.expires) = (7, now + 40));
        let write = seal(&client, client.ask(Osd::Write(ID, range(0, 8))).data(b"too late"), &grant);
        let before = client.unit.store().object(ID).unwrap();
        refused(client.raw_stalled(&write.cdb, &write.out, || change(&client, &manager)));
        let after = client.unit.store().object(ID).unwrap();
        assert_eq!((before.length, before.times.data_modified), (after.length, after.times.data_modified));
    }
}

#[test]
fn a_read_whose_reader_stalls_ends_with_its_permission() {
    let (client, manager) = protected(Method::CmdRsp);
    let all = manager.grant(&client, Method::CmdRsp, |_| {});
    let data = vec![7; 3 << 20];
    sealed(&client, client.ask(Osd::Write(ID, range(0, 3 << 20))).data(&data), &all).good();
    let long = seal(&client, client.ask(Osd::Read(ID, range(0, 3 << 20))), &all);
    let ran = client.raw_stalled(&long.cdb, &long.out, || {
        manager.set_key(&client, KeyToSet::Working, P, 1, [9; 20]).good();
    });
    ran.bad_field(81);
    assert!(ran.data.len() < data.len());
}

#[test]
fn a_creation_that_waits_is_permitted_by_the_tag_that_permitted_it_before() {
    let (client, manager) = protected(Method::CmdRsp);
    let tag = client.ask(Osd::SetAttributes(Id::partition(P)));
    let tag = tag.set(partition_security::POLICY_TAG, &[0, 0, 0, 5]);
    sealed(&client, tag, &partition(&manager, &client, |_| {})).good();
    let mut capability = manager.capability(&client, ObjectType::User, Id::partition(P), Method::CmdRsp);
    capability.policy_tag = 5;
    let grant = manager.sign(&client, capability, &manager.working[1]);
    let attributes = [1, 2].map(|number| AttributeId::new(Page(0x1_0000), number));
    // It waits at each of the points at which it asks its initiator, and last for room for a list
    // that is longer than a piece.
    for free in 0..8 {
        let requested = O + 10 + free as u64;
        let mut create = client.ask(Osd::Create { partition: P, requested, count: 1 }).get(&attributes);
        for attribute in attributes {
            create = create.set(attribute, &[7; 60_000]);
        }
        let create = seal(&client, create, &grant);
        let (_, outcome) = Client::end(client.start_late(&create.cdb, &create.out, 64 << 20, free, 1));
        assert_eq!(outcome.status, scsi::Status::Good, "{free}: {:?}", outcome.sense);
    }
}

#[test]
fn a_capability_of_a_partition_is_none_of_an_object_that_is_not_there() {
    let (client, manager) = protected(Method::CmdRsp);
    let whole = partition(&manager, &client, |_| {});
    let get = client.ask(Osd::GetAttributes(Id::new(P, O + 5))).get(&[user_information::NAME]);
    sealed(&client, get, &whole).bad_field(128);
}

#[test]
fn refreshing_and_comparing_with_another_partition_take_the_roots_capability() {
    let (client, manager) = protected(Method::CmdRsp);
    let everything = root(&manager, &client, Method::CmdRsp, |_| {});
    sealed(&client, client.ask(Osd::CreateClone { requested: Q, source: P, method: 0 }), &everything).good();
    let refresh = || client.ask(Osd::RefreshSnapshotOrClone { partition: Q });
    // The clone has its source's keys.
    let mut own = manager.capability(&client, ObjectType::Partition, Id::partition(Q), Method::CmdRsp);
    let of_clone = manager.sign(&client, own, &manager.working[1]);
    sealed(&client, refresh(), &of_clone).bad_field(152);
    sealed(&client, refresh(), &everything).good();
    let compare = Osd::ReadMapsAndCompare { id: Id::new(Q, O), allocation: 64, other: P, map_type: 0 };
    own.object_type = ObjectType::User.code();
    own.object = O;
    let of_object = manager.sign(&client, own, &manager.working[1]);
    sealed(&client, client.ask(compare), &of_object).bad_field(152);
    sealed(&client, client.ask(compare), &everything).good();
    let itself = Osd::ReadMapsAndCompare { id: Id::new(Q, O), allocation: 64, other: Q, map_type: 0 };
    sealed(&client, client.ask(itself), &of_object).good();
}

#[test]
fn a_key_that_cannot_be_read_is_not_taken_for_none() {
    let (client, manager) = protected(Method::CmdRsp);
    let change = Change::of(crate::store::Step::SetAttribute {
        id: Id::ROOT,
        page: super::keyring::PAGE,
        number: 1,
        value: crate::store::Value::from_slice(b"damaged"),
    });
    super::super::tests::block_on(client.unit.store().apply(change, Commit::Relaxed)).unwrap();
    // Without a master key, any client could bring one.
    let set =
        osd::cdb::SetKey { key: KeyToSet::Root, partition: 0, version: 0, key_id: *b"mine---", seed: SEED };
    let refused = client.ask(Osd::SetKey(set)).send();
    assert_eq!(refused.sense().key, SenseKey::MediumError);
    let read = sealed(&client, read(&client), &manager.grant(&client, Method::CmdRsp, |_| {}));
    assert_eq!(read.sense().key, SenseKey::MediumError);
}

#[test]
fn a_query_asks_for_attributes_that_its_capability_names_only() {
    let (client, manager) = protected(Method::CmdRsp);
    let whole = partition(&manager, &client, |_| {});
    let allowed = user_information::LOGICAL_LENGTH;
    let value = [allowed.page.0.to_be_bytes(), allowed.number.to_be_bytes()].concat();
    let list = AttributeId::new(attributes_access::PAGE, 5);
    sealed(&client, client.ask(Osd::SetAttributes(Id::partition(P))).set(list, &value), &whole).good();
    let mut limited = manager.capability(&client, ObjectType::Collection, Id::new(P, 0), Method::CmdRsp);
    limited.allowed_attributes = 5;
    let limited = manager.sign(&client, limited, &manager.working[1]);
    let query = |attribute| {
        let criteria = vec![Criterion { attribute, min: Vec::new(), max: Vec::new() }];
        client
            .ask(Osd::Query { id: Id::new(P, 0), immediate: false, allocation: 64, matches: 0 })
            .descriptor(Descriptor::Query(Query { all: true, criteria }))
    };
    sealed(&client, query(allowed), &limited).good();
    sealed(&client, query(user_information::NAME), &limited).bad_field(136);
}

#[test]
fn a_range_keeps_a_capability_from_cutting_an_object_off_and_from_copying_it() {
    let (client, manager) = protected(Method::CmdRsp);
    let part = manager.grant(&client, Method::CmdRsp, |c| (c.range_start, c.range_len) = (0, 4));
    set(&client, ID, user_information::NAME, b"name", &part).good();
    set(&client, ID, user_information::LOGICAL_LENGTH, &[0; 8], &part).bad_field(168);
    let part = manager.grant(&client, Method::CmdRsp, |c| (c.object, c.range_start, c.range_len) = (0, 0, 4));
    let copy =
        client.ask(Osd::CopyUserObjects { partition: P, requested: 0, method: 0 }).descriptor(source());
    sealed(&client, copy, &part).bad_field(168);
}

fn copy(client: &Client, attributes: bool) -> Ask<'_> {
    let source = CopySource { id: ID, attributes, freeze: false, time: 0 };
    let copy = client.ask(Osd::CopyUserObjects { partition: P, requested: 0, method: 0 });
    copy.descriptor(Descriptor::CopySource(source))
}

/// A credential for every object of a type in [`P`], as `narrow` leaves it.
fn every(
    manager: &Manager,
    client: &Client,
    kind: ObjectType,
    narrow: impl FnOnce(&mut Capability),
) -> Credential {
    let mut capability = manager.capability(client, kind, Id::partition(P), Method::CmdRsp);
    narrow(&mut capability);
    manager.sign(client, capability, &manager.working[1])
}

#[test]
fn a_copy_of_attributes_takes_the_permissions_to_get_and_to_set_them() {
    let (client, manager) = protected(Method::CmdRsp);
    let with = |permissions| every(&manager, &client, ObjectType::User, |c| c.permissions = permissions);
    let plain = Permissions::CREATE | Permissions::READ | Permissions::WRITE;
    sealed(&client, copy(&client, false), &with(plain)).good();
    for too_few in [plain, plain | Permissions::GET_ATTR, plain | Permissions::SET_ATTR] {
        sealed(&client, copy(&client, true), &with(too_few)).bad_field(129);
    }
    let attributes = plain | Permissions::GET_ATTR | Permissions::SET_ATTR;
    sealed(&client, copy(&client, true), &with(attributes)).good();
    // A tag that comes along decides about access.
    let all = manager.grant(&client, Method::CmdRsp, |_| {});
    set(&client, ID, user_security::POLICY_TAG, &[0, 0, 0, 7], &all).good();
    sealed(&client, copy(&client, true), &with(attributes)).bad_field(129);
    sealed(&client, copy(&client, true), &with(attributes | Permissions::POL_SEC)).good();
    // The one that the partition has for new objects takes its place.
    let whole = partition(&manager, &client, |_| {});
    set(&client, Id::partition(P), partition_security::OBJECT_POLICY_TAG, &[0, 0, 0, 8], &whole).good();
    sealed(&client, copy(&client, true), &with(attributes)).good();
    // Of a capability for some attributes, none are copied.
    let list = |number| AttributeId::new(attributes_access::PAGE, number);
    let one = [user_information::NAME.page.0.to_be_bytes(), [0xFF; 4]].concat();
    set(&client, Id::partition(P), list(5), &one, &whole).good();
    set(&client, Id::partition(P), list(6), &[0xFF; 8], &whole).good();
    let limited = |list| every(&manager, &client, ObjectType::User, |c| c.allowed_attributes = list);
    sealed(&client, copy(&client, false), &limited(5)).good();
    sealed(&client, copy(&client, true), &limited(5)).bad_field(136);
    sealed(&client, copy(&client, true), &limited(6)).good();
}

#[test]
fn a_tag_is_that_of_all_objects_which_a_command_reads_or_fills() {
    let (client, manager) = protected(Method::CmdRsp);
    let collection = Id::new(P, O + 5);
    let all = |kind| every(&manager, &client, kind, |_| {});
    let create = Osd::CreateCollection { partition: P, requested: collection.object };
    sealed(&client, client.ask(create), &all(ObjectType::Collection)).good();
    let tag = client.ask(Osd::SetAttributes(Id::partition(P)));
    let tag = tag.set(partition_security::POLICY_TAG, &[0, 0, 0, 5]);
    sealed(&client, tag, &partition(&manager, &client, |_| {})).good();
    let tagged = |kind| every(&manager, &client, kind, |c| c.policy_tag = 5);
    let source = collection.object;
    let track = Osd::CreateUserTrackingCollection { partition: P, requested: 0, source };
    let query = Osd::Query { id: Id::new(P, 0), immediate: false, allocation: 64, matches: source };
    let query =
        || client.ask(query).descriptor(Descriptor::Query(Query { all: false, criteria: Vec::new() }));
    sealed(&client, copy(&client, false), &tagged(ObjectType::User)).bad_field(140);
    sealed(&client, client.ask(track), &tagged(ObjectType::Collection)).bad_field(140);
    sealed(&client, query(), &tagged(ObjectType::Collection)).bad_field(140);
    let all_users = all(ObjectType::User);
    set(&client, ID, user_security::POLICY_TAG, &[0, 0, 0, 5], &all_users).good();
    let of_collection = collection_security::POLICY_TAG;
    set(&client, collection, of_collection, &[0, 0, 0, 5], &all(ObjectType::Collection)).good();
    sealed(&client, copy(&client, false), &tagged(ObjectType::User)).good();
    sealed(&client, client.ask(track), &tagged(ObjectType::Collection)).good();
    sealed(&client, query(), &tagged(ObjectType::Collection)).good();
}

#[test]
fn the_lists_that_capabilities_name_are_set_by_those_who_set_security() {
    let (client, manager) = protected(Method::CmdRsp);
    let list = AttributeId::new(attributes_access::PAGE, 5);
    let set = || client.ask(Osd::SetAttributes(Id::partition(P))).set(list, &[0xFF; 8]);
    let plain = partition(&manager, &client, |c| c.permissions = Permissions::SET_ATTR);
    sealed(&client, set(), &plain).bad_field(129);
    let more = partition(&manager, &client, |c| c.permissions = Permissions::SET_ATTR | Permissions::POL_SEC);
    sealed(&client, set(), &more).good();
    assert_eq!(list.page, Page::of(ObjectType::Partition, 4));
}

/// The attributes that a store keeps of a partition's security, and the partition's creation time.
fn kept(client: &Client, partition: u64) -> (Vec<(u32, u32, Vec<u8>)>, u64) {
    let (store, id) = (client.unit.store(), Id::partition(partition));
    let mut kept = Vec::new();
    for page in [partition_security::PAGE.0, attributes_access::PAGE.0, super::keyring::PAGE] {
        let which = crate::store::Attributes::Page(page);
        store
            .attributes(id, which, &mut |attribute| {
                kept.push((attribute.page, attribute.number, attribute.value.to_vec()));
                true
            })
            .unwrap();
    }
    (kept, store.times(id).unwrap().created)
}

#[test]
fn refreshing_and_restoring_bring_no_security_of_another_time_back() {
    let (client, manager) = protected(Method::CmdRsp);
    let everything = root(&manager, &client, Method::CmdRsp, |_| {});
    let whole = partition(&manager, &client, |_| {});
    let list = |number| AttributeId::new(attributes_access::PAGE, number);
    let set = |attribute, value: &[u8]| {
        let ask = client.ask(Osd::SetAttributes(Id::partition(P))).set(attribute, value);
        sealed(&client, ask, &whole).good();
    };
    set(list(6), &[0xFF; 8]);
    for requested in [Q, Q + 1] {
        let clone = match requested {
            Q => Osd::CreateSnapshot { requested, source: P, method: 0 },
            _ => Osd::CreateClone { requested, source: P, method: 0 },
        };
        client.tick(10);
        sealed(&client, client.ask(clone), &everything).good();
    }
    // The snapshot's time had an open key, another list, and none of these.
    manager.set_key(&client, KeyToSet::Working, P, 2, [9; 20]).good();
    set(list(6), &[]);
    set(list(5), &[0xFF; 8]);
    set(partition_security::POLICY_TAG, &[0, 0, 0, 9]);
    set(partition_security::FROZEN_KEYS, &[0, 4]);
    let (before, clone) = (kept(&client, P), kept(&client, Q + 1));
    assert_ne!(before.0, clone.0);
    sealed(&client, client.ask(Osd::RestorePartition { partition: P, snapshot: Q }), &everything).good();
    assert_eq!(kept(&client, P), before);
    sealed(&client, client.ask(Osd::RefreshSnapshotOrClone { partition: Q + 1 }), &everything).good();
    assert_eq!(kept(&client, Q + 1), clone);
}

#[test]
fn a_key_is_set_with_all_that_its_command_sets_or_not_at_all() {
    let (client, manager) = protected(Method::CmdRsp);
    let grant = manager.grant(&client, Method::CmdRsp, |_| {});
    let set = osd::cdb::SetKey {
        key: KeyToSet::Working,
        partition: P,
        version: 1,
        key_id: *b"another",
        seed: [9; 20],
    };
    let signer = manager.capability(&client, ObjectType::Partition, Id::partition(P), Method::CmdRsp);
    let signer = manager.sign(&client, signer, &manager.partitions[1]);
    let ask = |method| client.ask(Osd::SetKey(set)).set(partition_security::DEFAULT_METHOD, &[method]);
    let refused = sealed(&client, ask(9), &signer);
    assert_eq!(refused.sense().key, SenseKey::IllegalRequest);
    sealed(&client, read(&client), &grant).good();
    sealed(&client, ask(2), &signer).good();
    sealed(&client, read(&client), &grant).bad_field(184);
}

#[test]
fn limits_of_nonces_are_an_hour_at_most() {
    let (client, manager) = protected(Method::CmdRsp);
    let whole = partition(&manager, &client, |_| {});
    let set = |value: u64| {
        let value = &value.to_be_bytes()[2..];
        let ask = client.ask(Osd::SetAttributes(Id::partition(P)));
        sealed(&client, ask.set(partition_security::NEWEST_NONCE, value), &whole)
    };
    set(3_600_000).good();
    assert_eq!(set(3_600_001).sense().key, SenseKey::IllegalRequest);
}

#[test]
fn a_tunnelled_command_is_under_the_seals_of_the_command_that_it_is_in() {
    let (client, manager) = protected(Method::NoSec);
    client.set(Id::ROOT, root_security::DEFAULT_METHOD, &[3]).good();
    let everything = root(&manager, &client, Method::AllData, |_| {});
    let tunnel = |cdb: &[u8]| {
        let mut whole = [0; 16];
        whole[..cdb.len()].copy_from_slice(cdb);
        client.ask(Osd::PerformScsiCommand { cdb: whole })
    };
    // PERSISTENT RESERVE OUT, REGISTER.
    let mut list = vec![0; 24];
    list[8..16].copy_from_slice(b"ourkey!!");
    let register = || tunnel(&[0x5F, 0, 0, 0, 0, 0, 0, 0, 24, 0]).data(&list);
    let mut altered = seal(&client, register(), &everything);
    altered.out[9] ^= 1;
    client.raw(&altered.cdb, &altered.out).fails(SenseKey::IllegalRequest, code::INVALID_DATA_OUT_ICV);
    // Nothing of it is done if its settings are not permitted.
    let plain = root(&manager, &client, Method::AllData, |c| {
        c.permissions = Permissions::DEV_MGMT | Permissions::GLOBAL | Permissions::SET_ATTR;
    });
    let tag = register().set(root_security::DEFAULT_METHOD, &[0]);
    sealed(&client, tag, &plain).bad_field(129);
    let keys = || {
        let keys = seal(&client, tunnel(&[0x5E, 0, 0, 0, 0, 0, 0, 0, 64, 0]), &everything);
        let ran = client.raw(&keys.cdb, &keys.out).good();
        let at = keys.data_in_icv.unwrap() as usize;
        let mut sealer = Sealer::new(manager.algorithm, &everything.key, &keys.nonce, Direction::In);
        sealer.update(&ran.data[..at]);
        let len = 8 + u64::from(ran.data[7]);
        assert!(sealer.verify([len, 0, 0], &ran.data[at..]), "its answer is sealed");
        ran.data
    };
    assert_eq!(keys()[7], 0);
    sealed(&client, register(), &everything).good();
    assert_eq!(keys()[8..16], *b"ourkey!!");
}
