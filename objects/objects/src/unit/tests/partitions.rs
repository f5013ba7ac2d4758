//! Snapshots and clones of partitions, copies of objects, maps, structure checks.

use osd::attributes::numbers::{current_command, partition_information, user_information};
use osd::cdb::{RemoveScope, StructureScope};
use osd::continuation::{CopySource, duplication};
use osd::data::{self, MapDescriptor, MapType};

use super::*;

fn snapshot(requested: u64, method: u8) -> Osd {
    Osd::CreateSnapshot { requested, source: P, method }
}

fn parts(ran: &Ran) -> (u64, Vec<MapDescriptor>) {
    let (count, parts) = data::map(&ran.data).unwrap();
    (count, parts.collect())
}

#[test]
fn a_snapshot_stays_as_it_was_and_a_clone_goes_its_own_way() {
    let it = Client::ready();
    it.write(0, b"before").good();
    let used = it.unit.store().root().used;
    let name = partition_information::NAME;
    let ran =
        it.ask(snapshot(0, 0)).set(name, b"kept").get(&[current_command::PARTITION_ID, name]).send().good();
    let made = ran.values();
    assert_eq!(made[1].1, b"kept");
    let kept = u64::from_be_bytes(made[0].1[..].try_into().unwrap());
    let clone = P + 0x77;
    it.ask(Osd::CreateClone { requested: clone, source: kept, method: 0 }).send().good();
    it.write(0, b"after!").good();
    let read = |partition| it.ask(Osd::Read(Id::new(partition, O), range(0, 6))).send().good().data;
    assert_eq!(
        (read(P), read(kept), read(clone)),
        (b"after!".to_vec(), b"before".to_vec(), b"before".to_vec())
    );
    let write = |partition| it.ask(Osd::Write(Id::new(partition, O), range(0, 1))).data(b"B").send();
    write(kept).fails(SenseKey::DataProtect, (0x27, 0));
    it.set(Id::new(kept, O), FREE, b"no").fails(SenseKey::DataProtect, (0x27, 0));
    it.ask(Osd::Create { partition: kept, requested: 0, count: 1 })
        .send()
        .fails(SenseKey::DataProtect, (0x27, 0));
    write(clone).good();
    assert_eq!((read(kept), read(clone)), (b"before".to_vec(), b"Before".to_vec()));
    it.ask(Osd::RestorePartition { partition: P, snapshot: kept }).send().good();
    assert_eq!(read(P), b"before");
    it.write(0, b"newer!").good();
    it.ask(Osd::RefreshSnapshotOrClone { partition: kept }).send().good();
    assert_eq!(read(kept), b"newer!");
    it.ask(Osd::DetachClone { partition: kept }).send().bad_field(16);
    it.ask(Osd::DetachClone { partition: clone }).send().good();
    it.ask(Osd::DetachClone { partition: clone }).send().bad_field(16);
    it.ask(Osd::RemovePartition { partition: kept, scope: RemoveScope::Contents }).send().good();
    assert_eq!(read(clone), b"Before");
    assert!(it.unit.store().root().used >= used);
}

#[test]
fn duplicates_that_cannot_be_are_refused_at_the_field_that_is_wrong() {
    let it = Client::ready();
    it.ask(snapshot(P, 0)).send().bad_field(16);
    it.ask(snapshot(7, 0)).send().bad_field(16);
    it.ask(Osd::CreateClone { requested: 0, source: P + 1, method: 0 }).send().bad_field(40);
    it.ask(Osd::CreateClone { requested: 0, source: 0, method: 0 }).send().bad_field(40);
    for method in [duplication::PRE_ALLOCATED, duplication::BYTE_BY_BYTE, duplication::HIGHER_DATA, 2] {
        it.ask(snapshot(0, method)).send().bad_field(14);
    }
    for method in [duplication::SPACE_EFFICIENT, duplication::FASTER_COPY, duplication::DO_NOT_CARE] {
        it.ask(snapshot(0, method)).send().good();
    }
    it.ask(Osd::RefreshSnapshotOrClone { partition: P }).send().bad_field(16);
    it.ask(Osd::RestorePartition { partition: P, snapshot: P }).send().bad_field(40);
    it.ask(Osd::RestorePartition { partition: P + 0x99, snapshot: P + 1 }).send().bad_field(16);
    let other = P + 0x50;
    it.ask(Osd::CreatePartition { requested: other }).send().good();
    it.ask(snapshot(P + 0x60, 0)).send().good();
    it.ask(Osd::RestorePartition { partition: other, snapshot: P + 0x60 }).send().bad_field(40);
    // A duplicate whose attributes cannot be set leaves nothing.
    let refused = it.ask(snapshot(P + 0x61, 0)).set(partition_information::ID, &[0; 8]).send();
    refused.fails(SenseKey::IllegalRequest, (0x26, 0));
    it.get(Id::partition(P + 0x61), partition_information::NAME).bad_field(16);
}

#[test]
fn a_copy_has_the_data_and_if_asked_the_attributes_of_its_source() {
    let it = Client::ready();
    it.write(5000, b"far").good();
    it.set(ID, FREE, b"mine").good();
    it.tick(1000);
    it.ask(Osd::CreatePartition { requested: P + 1 }).send().good();
    for (partition, attributes) in [(P, false), (P + 1, true)] {
        let source = CopySource { id: ID, attributes, freeze: true, time: 0 };
        let copy = Osd::CopyUserObjects { partition, requested: O + 50, method: 0 };
        let ran = it.ask(copy).descriptor(Descriptor::CopySource(source)).get(&[FREE]).send().good();
        assert_eq!(ran.value(), if attributes { &b"mine"[..] } else { b"" });
        let id = Id::new(partition, O + 50);
        let read = it.ask(Osd::Read(id, range(4999, 4))).send().good().data;
        assert_eq!(read, b"\0far");
        assert_ne!(
            it.unit.store().object(id).unwrap().times.created,
            it.unit.store().object(ID).unwrap().times.created
        );
        it.ask(Osd::Write(id, range(5000, 3))).data(b"FAR").send().good();
    }
    assert_eq!(it.read(5000, 3).good().data, b"far");
}

#[test]
fn a_copy_of_nothing_or_over_something_is_refused() {
    let it = Client::ready();
    let copy = |requested, method| Osd::CopyUserObjects { partition: P, requested, method };
    let source = |object| {
        let id = Id::new(P, object);
        Descriptor::CopySource(CopySource { id, attributes: true, freeze: false, time: 0 })
    };
    it.ask(copy(0, 0)).send().bad_field(48);
    it.ask(copy(O, 0)).descriptor(source(O)).send().bad_field(24);
    it.ask(copy(0, 9)).descriptor(source(O)).send().bad_field(14);
    it.ask(copy(0, 0)).descriptor(source(O + 9)).send().bad_parameter(48);
    let refused = it.ask(copy(O + 1, 0)).descriptor(source(O)).set(user_information::ID, &[0; 8]).send();
    refused.fails(SenseKey::IllegalRequest, (0x26, 0));
    it.get(Id::new(P, O + 1), FREE).bad_field(24);
}

#[test]
fn a_map_tells_data_from_holes_and_what_is_too_long_for_one_descriptor_in_several() {
    let it = Client::ready();
    let tib = 1u64 << 40;
    it.write(0, &[7; 8192]).good();
    it.set(ID, user_information::LOGICAL_LENGTH, &(tib + 100).to_be_bytes()).good();
    let map = |allocation, start, map_type| {
        parts(&it.ask(Osd::ReadMap { id: ID, allocation, start, map_type }).send().good())
    };
    let (count, all) = map(1 << 16, 0, 0);
    assert_eq!((count, all.len()), (258, 258));
    assert_eq!(all[0], MapDescriptor { kind: MapType::Written, offset: 0, len: 8192 });
    assert!(all[1..].iter().all(|part| part.kind == MapType::Hole));
    let end = all.iter().fold(0, |at, part| {
        assert_eq!(part.offset, at);
        at + u64::from(part.len)
    });
    assert_eq!(end, tib + 100);
    let (count, some) = map(8 + 16 * 3 + 15, 0, 0);
    assert_eq!((count, &some[..]), (258, &all[..3]));
    assert_eq!(map(1 << 16, 4096, 1).1, [MapDescriptor { kind: MapType::Written, offset: 4096, len: 4096 }]);
    assert_eq!(map(1 << 16, 0, 2).0, 257);
    assert_eq!(map(1 << 16, 0, 3).0, 0);
    assert_eq!(map(1 << 16, tib + 100, 0).0, 0);
    it.ask(Osd::ReadMap { id: ID, allocation: 8, start: tib + 101, map_type: 0 }).send().bad_field(40);
    it.ask(Osd::ReadMap { id: ID, allocation: 8, start: 0, map_type: 9 }).send().bad_field(48);
    it.ask(Osd::ReadMap { id: Id::new(P, O + 1), allocation: 8, start: 0, map_type: 0 }).send().bad_field(24);
}

#[test]
fn a_comparison_tells_what_has_changed_since_a_snapshot() {
    let it = Client::ready();
    it.write(0, &[1; 20_000]).good();
    it.ask(snapshot(P + 1, 0)).send().good();
    let compare = |map_type| {
        let command = Osd::ReadMapsAndCompare { id: ID, allocation: 4096, other: P + 1, map_type };
        parts(&it.ask(command).send().good()).1
    };
    assert_eq!(compare(0), []);
    it.write(4096, b"new").good();
    it.ask(Osd::Clear(ID, range(8192, 4096))).send().good();
    it.set(ID, user_information::LOGICAL_LENGTH, &16_384u64.to_be_bytes()).good();
    let covered = |parts: &[MapDescriptor], at| {
        parts.iter().any(|part| part.offset <= at && at < part.offset + u64::from(part.len))
    };
    let all = compare(0);
    assert!([4096, 8192, 12_287, 16_384, 19_999].iter().all(|at| covered(&all, *at)), "{all:?}");
    assert!(![0, 4095, 12_288, 16_383, 20_000].iter().any(|at| covered(&all, *at)), "{all:?}");
    assert!(covered(&compare(1), 4096) && !covered(&compare(1), 8192));
    assert!(covered(&compare(2), 8192) && covered(&compare(2), 16_384));
    let with = |other| Osd::ReadMapsAndCompare { id: ID, allocation: 4096, other, map_type: 0 };
    it.ask(with(P + 2)).send().bad_field(40);
}

#[test]
fn a_structure_check_of_what_is_whole_ends_well() {
    let it = Client::ready();
    it.ask(Osd::ObjectStructureCheck(StructureScope::Root)).send().good();
    it.ask(Osd::ObjectStructureCheck(StructureScope::Partition(P))).send().good();
    it.ask(Osd::ObjectStructureCheck(StructureScope::Partition(P + 1))).send().bad_field(16);
}

#[test]
fn a_partition_that_has_the_id_of_another_that_is_gone_is_not_what_its_duplicates_were_made_of() {
    let it = Client::ready();
    it.write(0, b"secret").good();
    let (snapshot, clone) = (P + 0x10, P + 0x11);
    it.ask(Osd::CreateSnapshot { requested: snapshot, source: P, method: 0 }).send().good();
    it.ask(Osd::CreateClone { requested: clone, source: P, method: 0 }).send().good();
    let refresh = |partition| it.ask(Osd::RefreshSnapshotOrClone { partition }).send();
    let restore = |partition| it.ask(Osd::RestorePartition { partition, snapshot }).send();
    let remove = |partition| {
        it.ask(Osd::RemovePartition { partition, scope: RemoveScope::Contents }).send().good();
    };
    let read = |partition| it.ask(Osd::Read(Id::new(partition, O), range(0, 6))).send().good().data;
    remove(P);
    refresh(snapshot).bad_field(16);
    restore(P).bad_field(16);
    // Another partition, which another client may have made.
    it.make();
    it.write(0, b"theirs").good();
    for duplicate in [snapshot, clone] {
        refresh(duplicate).bad_field(16);
        assert_eq!(read(duplicate), b"secret");
    }
    restore(P).bad_field(40);
    assert_eq!(read(P), b"theirs");
    // Nor is a duplicate that has the id.
    remove(P);
    it.ask(Osd::CreateClone { requested: P, source: snapshot, method: 0 }).send().good();
    restore(P).bad_field(40);
    refresh(snapshot).bad_field(16);
    // It is a duplicate of that snapshot, and both keep their kind when content goes from one to
    // the other.
    refresh(P).good();
    let own = P + 0x12;
    it.ask(Osd::CreateSnapshot { requested: own, source: P, method: 0 }).send().good();
    refresh(P).good();
    it.ask(Osd::Write(ID, range(0, 6))).data(b"newer!").send().good();
    it.ask(Osd::RestorePartition { partition: P, snapshot: own }).send().good();
    assert_eq!(read(P), b"secret");
    refresh(own).good();
    // A duplicate without a source goes on as it is, and may be let go.
    it.ask(Osd::DetachClone { partition: clone }).send().good();
    assert_eq!(read(clone), b"secret");
}
