//! CREATE, CREATE PARTITION, FORMAT OSD, REMOVE, REMOVE PARTITION.

use osd::ObjectType;
use osd::attributes::numbers::{
    current_command, partition_information, root_information, timestamps, user_information as info,
};
use osd::cdb::RemoveScope;

use super::*;
use crate::store::{Change, Commit, Io, ObjectStore, Step};

#[test]
fn one_object_gets_the_id_that_is_requested_or_one_of_the_units_choice() {
    for it in Client::each_form() {
        it.create(O).bad_field(24);
        it.create(0xFFFF).bad_field(24);
        it.ask(Osd::Create { partition: P + 9, requested: 0, count: 1 }).send().bad_field(16);
        it.ask(Osd::Create { partition: 0, requested: 0, count: 1 }).send().bad_field(16);
        let chosen = |count| {
            it.ask(Osd::Create { partition: P, requested: 0, count })
                .get(&[current_command::OBJECT_ID, current_command::OBJECT_TYPE])
                .send()
                .good()
        };
        let (first, second) = (chosen(0).values(), chosen(1).values());
        assert_ne!(first[0].1, second[0].1);
        assert_eq!(first[1].1, [0x80]);
        let id = u64::from_be_bytes(first[0].1[..].try_into().unwrap());
        assert!(id >= 0x1_0000);
        assert_eq!(it.get(Id::new(P, id), info::ID).good().number(), id);
    }
}

#[test]
fn many_objects_are_created_with_their_attributes_and_the_highest_id_is_told() {
    for it in Client::each_form() {
        let ran = it
            .ask(Osd::Create { partition: P, requested: 0, count: 500 })
            .set(FREE, b"each")
            .get(&[current_command::OBJECT_ID, FREE])
            .send()
            .good();
        // A list of many objects, in which each has its own.
        let created = ran.objects();
        let last = created[499].0;
        let got = vec![(current_command::OBJECT_ID, last.to_be_bytes().to_vec()), (FREE, b"each".to_vec())];
        assert_eq!(created, (last - 499..=last).map(|object| (object, got.clone())).collect::<Vec<_>>());
        let cut = it.ask(Osd::Create { partition: P, requested: 0, count: 2 }).get(&[FREE]).allocation(20);
        assert_eq!(cut.send().good().data.len(), 20);
        let (mut cdb, _, at) =
            it.ask(Osd::Create { partition: P, requested: 0, count: 3 }).get(&[FREE]).build();
        cdb[11] = 0x20;
        cdb[52..80].fill(0);
        cdb[52..56].copy_from_slice(&0xFFFF_FFFEu32.to_be_bytes());
        cdb[56..60].copy_from_slice(&100u32.to_be_bytes());
        let page = it.raw(&cdb, &[]).good().data;
        assert_eq!(page[at..at + 4], 0xFFFF_FFFEu32.to_be_bytes(), "a page is the command's");
        for object in [last - 499, last - 250, last] {
            assert_eq!(it.get(Id::new(P, object), FREE).good().value(), b"each");
        }
        assert_eq!(it.get(Id::partition(P), partition_information::OBJECTS).good().number(), 506);
        it.ask(Osd::Create { partition: P, requested: O + 1, count: 2 }).send().bad_field(24);
        let refused = it.ask(Osd::Create { partition: P, requested: 0, count: 3 }).set(info::ID, &[]).send();
        refused.fails(SenseKey::IllegalRequest, (0x26, 0x00));
        assert_eq!(it.get(Id::partition(P), partition_information::OBJECTS).good().number(), 506);
    }
}

#[test]
fn as_many_objects_as_one_command_can_ask_for_are_created() {
    let it = Client::ready();
    it.ask(Osd::Create { partition: P, requested: 0, count: u16::MAX }).send().good();
    let objects = it.get(Id::partition(P), partition_information::OBJECTS).good().number();
    assert_eq!(objects, 65_536);
}

#[test]
fn a_create_whose_attribute_step_fails_leaves_nothing() {
    for it in Client::each_form() {
        let create = || it.ask(Osd::Create { partition: P, requested: O + 1, count: 1 });
        let ran = create().set(FREE, b"fine").set(info::USED_CAPACITY, &[0; 8]).send();
        ran.fails(SenseKey::IllegalRequest, (0x26, 0x00));
        it.get(Id::new(P, O + 1), info::ID).bad_field(24);
        let ran = it.ask(Osd::CreatePartition { requested: P + 1 }).set(FREE, b"wrong page").send();
        ran.fails(SenseKey::IllegalRequest, (0x26, 0x00));
        it.get(Id::partition(P + 1), partition_information::ID).bad_field(16);
    }
}

#[test]
fn partitions_are_made_by_request_or_choice_and_removed_when_empty() {
    for it in Client::each_form() {
        it.ask(Osd::CreatePartition { requested: P }).send().bad_field(16);
        it.ask(Osd::CreatePartition { requested: 0xFFFF }).send().bad_field(16);
        let name = partition_information::NAME;
        let ran = it
            .ask(Osd::CreatePartition { requested: 0 })
            .set(name, b"a name")
            .get(&[current_command::PARTITION_ID, current_command::OBJECT_TYPE, name])
            .send()
            .good();
        let values = ran.values();
        let chosen = u64::from_be_bytes(values[0].1[..].try_into().unwrap());
        assert_eq!((&values[1].1[..], &values[2].1[..]), (&[2][..], &b"a name"[..]));
        assert_eq!(it.get(Id::ROOT, root_information::PARTITIONS).good().number(), 2);
        let remove = |partition, scope| it.ask(Osd::RemovePartition { partition, scope }).send();
        let full = remove(P, RemoveScope::Empty);
        full.fails(SenseKey::IllegalRequest, (0x2C, 0x0A));
        remove(chosen, RemoveScope::Empty).good();
        remove(chosen, RemoveScope::Empty).bad_field(16);
        remove(0, RemoveScope::Contents).bad_field(16);
        remove(P, RemoveScope::Contents).good();
        it.read(0, 0).bad_field(16);
        assert_eq!(it.get(Id::ROOT, root_information::PARTITIONS).good().number(), 0);
    }
}

#[test]
fn a_removal_gets_attributes_before_the_object_goes() {
    for it in Client::each_form() {
        it.write(0, b"12345").good();
        let ran = it.ask(Osd::Remove(ID)).set(FREE, b"last").get(&[info::LOGICAL_LENGTH, FREE]).send().good();
        assert_eq!(ran.values()[0].1, 5u64.to_be_bytes());
        assert_eq!(ran.values()[1].1, b"last");
        it.ask(Osd::Remove(ID)).send().bad_field(24);
        let ran = it
            .ask(Osd::RemovePartition { partition: P, scope: RemoveScope::Empty })
            .get(&[partition_information::OBJECTS])
            .send()
            .good();
        assert_eq!(ran.number(), 0);
    }
}

#[test]
fn format_removes_everything_and_may_set_attributes_of_the_root() {
    for it in Client::each_form() {
        it.set(Id::ROOT, root_information::OSD_NAME, b"old").good();
        let too_much = it.ask(Osd::Format { capacity: CAPACITY + 1 }).send();
        too_much.bad_field(if it.form == Form::Osd1 { 36 } else { 32 });
        let ran = it
            .ask(Osd::Format { capacity: 0 })
            .set(root_information::OSD_NAME, b"new")
            .get(&[root_information::PARTITIONS, root_information::OSD_NAME])
            .send()
            .good();
        assert_eq!(ran.values()[0].1, [0; 8]);
        assert_eq!(ran.values()[1].1, b"new");
        it.read(0, 0).bad_field(16);
        it.ask(Osd::Format { capacity: CAPACITY }).send().good();
        let name = it.get(Id::ROOT, root_information::OSD_NAME).good();
        assert_eq!(name.value(), b"");
        it.make();
    }
}

#[test]
fn the_highest_id_is_given_to_nothing() {
    let it = Client::ready();
    it.create(u64::MAX).bad_field(24);
    it.ask(Osd::CreateCollection { partition: P, requested: u64::MAX }).send().bad_field(24);
    let range = range(0, 1);
    let write = Osd::CreateAndWrite { partition: P, requested: u64::MAX, range };
    it.ask(write).data(b"x").send().bad_field(24);
    it.ask(Osd::CreatePartition { requested: u64::MAX }).send().bad_field(16);
    it.ask(Osd::CreatePartition { requested: u64::MAX - 1 }).send().good();
    let highest = Osd::Create { partition: u64::MAX - 1, requested: u64::MAX - 1, count: 1 };
    it.ask(highest).send().good();
}

#[test]
fn a_creation_that_is_whole_stays_when_its_initiator_is_lost() {
    let it = Client::ready();
    let create = Osd::Create { partition: P, requested: O + 7, count: 1 };
    let write = Osd::CreateAndWrite { partition: P, requested: O + 8, range: range(0, 0) };
    let clone = Osd::CreateClone { requested: P + 7, source: P, method: 0 };
    for command in [create, write, clone] {
        let of_type = command.object_type().unwrap();
        let long = [1, 2].map(|number| AttributeId::new(Page::of(of_type, 0x1_0000), number));
        let ask = it.ask(command).get(&long);
        let (cdb, out, _) = long.into_iter().fold(ask, |ask, of| ask.set(of, &[7; 60_000])).build();
        // It is lost while it takes its list.
        let mover = TestMover { room: 1 << 20, ..TestMover::aborted_after(1, &out) };
        let (data, outcome) = Client::end(it.execute(&cdb, out.len() as u64, 1 << 20, mover));
        assert_eq!(outcome, Outcome::GOOD);
        assert!(!data.is_empty() && data.len() < 120_000, "{}", data.len());
    }
    it.get(Id::new(P, O + 7), info::ID).good();
    it.get(Id::new(P, O + 8), info::ID).good();
    it.get(Id::new(P + 7, O), info::ID).good();
}

#[test]
fn an_object_that_is_created_again_within_a_millisecond_has_another_time() {
    let it = Client::ready();
    let time = |id: Id, of_type| {
        let created = AttributeId::new(timestamps::page(of_type), timestamps::CREATED);
        it.get(id, created).good().number()
    };
    let mut before = 0;
    for _ in 0..3 {
        it.create(O + 7).good();
        let created = time(Id::new(P, O + 7), ObjectType::User);
        assert!(created > before);
        before = created;
        it.ask(Osd::Remove(Id::new(P, O + 7))).send().good();
    }
    it.ask(Osd::CreateCollection { partition: P, requested: O + 7 }).send().good();
    assert!(time(Id::new(P, O + 7), ObjectType::Collection) > before);
    let before = time(Id::partition(P), ObjectType::Partition);
    it.ask(Osd::RemovePartition { partition: P, scope: RemoveScope::Contents }).send().good();
    it.make();
    assert!(time(Id::partition(P), ObjectType::Partition) > before);
}

#[test]
fn a_create_and_write_that_fails_leaves_an_object_alone_that_got_its_id_meanwhile() {
    let it = Client::ready();
    let id = Id::new(P, O + 7);
    let range = range(0, 2_000_000);
    let create = Osd::CreateAndWrite { partition: P, requested: id.object, range };
    // The command finds at its end that the attribute cannot be set.
    let ask = it.ask(create).data(&vec![1; 2_000_000]).set(info::USED_CAPACITY, &[0; 8]);
    let mut writing = ask.begin(0, 1, 1);
    assert!(poll(&mut writing).is_pending());
    it.ask(Osd::Remove(id)).send().good();
    it.create(id.object).good();
    assert_eq!(block_on(writing).1.status, Status::CheckCondition);
    it.get(id, info::LOGICAL_LENGTH).good();
}

#[test]
fn a_create_and_write_puts_nothing_into_an_object_that_got_its_id_meanwhile() {
    let it = Client::ready();
    let id = Id::new(P, O + 7);
    let create = Osd::CreateAndWrite { partition: P, requested: id.object, range: range(0, 2_000_000) };
    let mut writing = it.ask(create).data(&vec![1; 2_000_000]).begin(0, 1, 1);
    assert!(poll(&mut writing).is_pending());
    it.ask(Osd::Remove(id)).send().good();
    it.create(id.object).good();
    assert_eq!(block_on(writing).1.status, Status::CheckCondition);
    assert_eq!(it.get(id, info::LOGICAL_LENGTH).good().number(), 0);
}

/// Right before a creation is undone: removes the first object that it has made, and creates
/// another one with its id.
fn remake(store: &Oracle, change: &Change) -> bool {
    let removed = change.steps.iter().find_map(|step| match step {
        Step::RemoveUser(id) => Some(*id),
        _ => None,
    });
    let Some(id) = removed else { return false };
    let remade = [Step::RemoveUser(id), Step::CreateUser(id)].into_iter().collect();
    assert!(matches!(store.apply(remade, Commit::Relaxed), Io::Ready(Some(Ok(_)))));
    true
}

#[test]
fn the_undoing_of_a_creation_leaves_an_object_alone_that_gets_its_id() {
    let (store, clock) = (Oracle::new(CAPACITY), Arc::new(TestClock(AtomicU64::new(1_000_000))));
    let it = Client::on(&store, options(&clock), clock);
    it.make();
    let objects = || it.get(Id::partition(P), partition_information::OBJECTS).good().number();
    store.meddle(remake);
    let write = Osd::CreateAndWrite { partition: P, requested: O + 7, range: range(0, 2_000_000) };
    let failing = it.ask(write).data(&vec![1; 2_000_000]).set(info::USED_CAPACITY, &[0; 8]).send();
    failing.fails(SenseKey::IllegalRequest, (0x26, 0x00));
    assert_eq!((objects(), it.get(Id::new(P, O + 7), info::LOGICAL_LENGTH).good().number()), (2, 0));
    // Of several, the others go. A page that there is none of fails the command.
    store.meddle(remake);
    let (mut cdb, ..) = it.ask(Osd::Create { partition: P, requested: 0, count: 3 }).get(&[FREE]).build();
    cdb[11] = 0x20;
    cdb[52..80].fill(0);
    cdb[52..56].copy_from_slice(&info::ID.page.0.to_be_bytes());
    cdb[56..60].copy_from_slice(&100u32.to_be_bytes());
    it.raw(&cdb, &[]).bad_field(52);
    assert_eq!(objects(), 3);
}

/// Right before something is created, creates another thing with its id.
fn take_id(store: &Oracle, change: &Change) -> bool {
    let taken = change.steps.iter().find_map(|step| match step {
        Step::CreateUser(id) | Step::CreateCollection(id, _) | Step::Copy { to: id, .. } => {
            Some(Step::CreateUser(*id))
        }
        Step::CreatePartition(id) | Step::Duplicate { id, .. } => Some(Step::CreatePartition(*id)),
        _ => None,
    });
    let Some(taken) = taken else { return false };
    assert!(matches!(store.apply(taken.into(), Commit::Relaxed), Io::Ready(Some(Ok(_)))));
    true
}

#[test]
fn a_creation_gets_another_id_when_others_take_the_one_that_the_unit_chose() {
    let create = |count| Osd::Create { partition: P, requested: 0, count };
    let write = |len| Osd::CreateAndWrite { partition: P, requested: 0, range: range(0, len) };
    let commands = [
        create(1),
        create(3),
        write(5),
        write(1_500_000),
        Osd::CreateCollection { partition: P, requested: 0 },
        Osd::CopyUserObjects { partition: P, requested: 0, method: 0 },
        Osd::CreatePartition { requested: 0 },
        Osd::CreateClone { requested: 0, source: P, method: 0 },
    ];
    for isolation in [Isolation::None, Isolation::Strict] {
        for command in commands {
            let (store, clock) = (Oracle::new(CAPACITY), Arc::new(TestClock(AtomicU64::new(1_000_000))));
            let it = Client::on(&store, options(&clock), clock);
            it.make();
            let data = vec![7; command.data_out_len() as usize];
            let mut ask = it.ask(command).data(&data).isolation(isolation).get(&[current_command::OBJECT_ID]);
            if matches!(command, Osd::CopyUserObjects { .. }) {
                let source =
                    osd::continuation::CopySource { id: ID, attributes: false, freeze: false, time: 0 };
                ask = ask.descriptor(Descriptor::CopySource(source));
            }
            store.meddle(take_id);
            let ran = ask.send().good();
            if let Osd::CreateAndWrite { range, .. } = command {
                let id = Id::new(P, ran.number());
                assert!(it.ask(Osd::Read(id, range)).send().good().data == data);
            }
        }
        let it = Client::ready();
        assert_eq!(it.create(O).sense().key, SenseKey::IllegalRequest, "a requested id stays requested");
    }
}
