//! EXTENDED COPY between units and within one, as in iscsi-test-cu and beyond.

use scsi::AdditionalSense as A;

use super::*;

fn cscd(naa: &[u8]) -> Vec<u8> {
    let mut d = vec![0xe4, 0, 0, 0, 1, 3, 0, naa.len() as u8];
    d.extend(naa);
    d.resize(28, 0);
    d.extend([0, 0, 2, 0]);
    d
}

fn blocks(source: u16, destination: u16, count: u16, from: u64, to: u64) -> Vec<u8> {
    let mut d = vec![0x02, 0, 0, 0x18];
    d.extend([source.to_be_bytes(), destination.to_be_bytes(), [0, 0], count.to_be_bytes()].concat());
    d.extend([from.to_be_bytes(), to.to_be_bytes()].concat());
    d
}

fn bytes(count: u32, from: u64, to: u64, from_offset: u16, to_offset: u16) -> Vec<u8> {
    let mut d = vec![0x0a, 0, 0, 0x1c, 0, 0, 0, 0];
    d.extend(count.to_be_bytes());
    d.extend([from.to_be_bytes(), to.to_be_bytes()].concat());
    d.extend([from_offset.to_be_bytes(), to_offset.to_be_bytes()].concat());
    d
}

fn copy(it: &Initiator, id: u8, usage: u8, cscds: &[Vec<u8>], segments: &[Vec<u8>]) -> Ran {
    let (c, s) = (cscds.concat(), segments.concat());
    let mut list = vec![id, usage << 3];
    list.extend((c.len() as u16).to_be_bytes());
    list.extend([0; 4]);
    list.extend((s.len() as u32).to_be_bytes());
    list.extend([0; 4]);
    list.extend([c, s].concat());
    it.run_out(&cdb16(0x83, 0, 0, list.len() as u32), &list)
}

fn results(it: &Initiator, action: u8, id: u8) -> Ran {
    let mut cdb = cdb16(0x84, action, 0, 1024);
    cdb[2] = id;
    it.run(&cdb)
}

fn own(it: &Initiator) -> Vec<u8> {
    cscd(&it.unit.options().identity.naa)
}

#[test]
fn blocks_are_copied_within_a_unit_even_where_they_overlap_a_chunk() {
    let it = pair();
    let data: Vec<u8> = (0..2048 * 512u32).map(|n| (n / 512) as u8 | 1).collect();
    it.write(0, &data).good();
    copy(&it, 1, 2, &[own(&it)], &[blocks(0, 0, 2048, 0, BLOCKS - 2048)]).good();
    assert_eq!(it.read(2048, 2048).good(), data);
    copy(&it, 1, 2, &[own(&it)], &[blocks(0, 0, 8, 0, 4)]).good();
    assert_eq!(it.read(4, 8).good(), data[..8 * 512]);
}

#[test]
fn bytes_are_copied_from_and_to_the_middle_of_blocks() {
    let it = pair();
    let data: Vec<u8> = (0..4096u32).map(|n| (n % 251) as u8).collect();
    it.write(0, &data).good();
    it.write(100, &[0xee; 2048]).good();
    copy(&it, 1, 2, &[own(&it)], &[bytes(1000, 1, 100, 7, 300)]).good();
    let mut expected = vec![0xee; 2048];
    expected[300..1300].copy_from_slice(&data[519..1519]);
    assert_eq!(it.read(100, 4).good(), expected);
}

#[test]
fn blocks_are_copied_between_units_of_different_block_sizes() {
    let registry = Registry::new();
    let unit = |name: &str, block_size| {
        let options = DiskOptions { block_size, thin: true, ..DiskOptions::default() }.with_identity(name);
        DiskUnit::new(Arc::new(MemoryStore::new(2 << 20, true).unwrap()), options, &registry).unwrap()
    };
    let (small, large) = (unit("small", 512), unit("large", 4096));
    let (a, b) = (Initiator::new(&small, 1), Initiator::new(&large, 1));
    let data: Vec<u8> = (0..8192u32).map(|n| (n % 253) as u8).collect();
    a.write(0, &data).good();
    let mut to = cscd(&large.options().identity.naa);
    to[29..32].copy_from_slice(&[0, 0x10, 0]);
    copy(&a, 1, 2, &[own(&a), to.clone()], &[blocks(0, 1, 16, 0, 5)]).good();
    assert_eq!(b.read(5, 2).good(), data);
    copy(&a, 1, 2, &[own(&a), to.clone()], &[blocks(0, 1, 3, 0, 5)])
        .fails(SenseKey::CopyAborted, A::UNEXPECTED_INEXACT_SEGMENT);
    // An initiator without access to the second unit does not get it through the first.
    let stranger = Initiator::new(&small, 7);
    copy(&stranger, 1, 2, &[own(&a), to], &[blocks(0, 1, 16, 0, 5)])
        .fails(SenseKey::CopyAborted, A::COPY_TARGET_DEVICE_NOT_REACHABLE);
}

#[test]
fn what_an_initiator_may_not_do_its_copy_may_not_do_either() {
    let unit = disk(options());
    let (a, b) = (Initiator::new(&unit, 1), Initiator::new(&unit, 2));
    let masked = Initiator::fresh(&unit, 3, true);
    masked.run(&[0; 6]).sense();
    let segment = [blocks(0, 0, 1, 0, 9)];
    copy(&masked, 1, 2, &[own(&a)], &segment).fails(SenseKey::CopyAborted, A::WRITE_PROTECTED);
    let mut list = [0u64.to_be_bytes(), 5u64.to_be_bytes()].concat();
    list.extend([0; 8]);
    b.run_out(&[0x5f, 6, 0, 0, 0, 0, 0, 0, 24, 0], &list).good();
    list.rotate_left(8);
    list[8..16].fill(0);
    b.run_out(&[0x5f, 1, 1, 0, 0, 0, 0, 0, 24, 0], &list).good();
    let ran = copy(&a, 1, 2, &[own(&a)], &segment);
    assert_eq!(ran.outcome.status, Status::ReservationConflict);
}

#[test]
fn what_iscsi_test_cu_sends_wrong_is_refused_as_it_expects() {
    let it = pair();
    let cscds = |n| vec![own(&it); n];
    let segment = || blocks(0, 0, 1, 0, 1);
    copy(&it, 1, 0, &cscds(17), &[segment()]).refused(A::TOO_MANY_TARGET_DESCRIPTORS);
    copy(&it, 1, 0, &cscds(1), &vec![segment(); 65]).refused(A::TOO_MANY_SEGMENT_DESCRIPTORS);
    copy(&it, 1, 0, &cscds(17), &vec![segment(); 200]).refused(A::PARAMETER_LIST_LENGTH_ERROR);
    let mut strange = own(&it);
    strange[0] = 0xe0;
    copy(&it, 1, 0, &[strange], &[segment()]).refused(A::UNSUPPORTED_TARGET_DESCRIPTOR_TYPE_CODE);
    let mut stream = segment();
    stream[0] = 3;
    copy(&it, 1, 0, &cscds(1), &[stream]).refused(A::UNSUPPORTED_SEGMENT_DESCRIPTOR_TYPE_CODE);
    it.run(&cdb16(0x83, 0, 0, 0)).good();
    // A descriptor index that does not exist, and a range beyond the end.
    copy(&it, 1, 0, &cscds(1), &[blocks(0, 1, 1, 0, 1)]).fails(SenseKey::CopyAborted, A::new(0x08, 0x04));
    copy(&it, 1, 0, &cscds(1), &[blocks(0, 0, 2048, 0, BLOCKS - 1)])
        .fails(SenseKey::CopyAborted, A::NO_ADDITIONAL_SENSE_INFORMATION);
    copy(&it, 1, 0, &[cscd(&[0x3f; 8])], &[segment()])
        .fails(SenseKey::CopyAborted, A::COPY_TARGET_DEVICE_NOT_REACHABLE);
}

#[test]
fn results_are_held_as_the_list_identifier_usage_says() {
    let it = pair();
    results(&it, 0, 1).refused(A::INVALID_FIELD_IN_CDB);
    copy(&it, 1, 2, &[own(&it)], &[blocks(0, 0, 1, 0, 1)]).good();
    results(&it, 0, 1).refused(A::INVALID_FIELD_IN_CDB);
    copy(&it, 1, 0, &[own(&it)], &[blocks(0, 0, 4, 0, 8)]).good();
    assert_eq!(results(&it, 0, 1).good(), [0, 0, 0, 8, 1, 0, 1, 0, 0, 0, 8, 0]);
    copy(&it, 1, 0, &[own(&it)], &[blocks(0, 0, 1, 0, 9), blocks(0, 3, 1, 0, 9)]).sense();
    // The segment that failed was being processed.
    assert_eq!(results(&it, 0, 1).good()[4..7], [2, 0, 2]);
    let details = results(&it, 4, 1).good();
    assert_eq!((details[56], details[60], details[62]), (2, 0x70, 0x0a));
    assert_eq!(results(&it, 3, 0).good()[8..12], [0, 16, 0, 64]);
}

/// A nexus of host 1 with `target`, whose user has authenticated with the credential of this
/// number, if any.
fn host(id: u64, target: &str, credential: Option<u8>) -> Nexus {
    let principal = credential.map(|byte| device::Principal { user: "alice".into(), credential: [byte; 32] });
    Nexus { id: NexusId(id), target: target.into(), principal, ..nexus(1) }
}

/// Two units of one daemon.
fn two() -> [Arc<DiskUnit>; 2] {
    let registry = Registry::new();
    ["one", "two"].map(|name| {
        let store = Arc::new(MemoryStore::new(2 << 20, true).unwrap());
        DiskUnit::new(store, options().with_identity(name), &registry).unwrap()
    })
}

#[test]
fn another_session_s_unit_is_reached_by_the_same_principal_only() {
    let [one, two] = two();
    let segment = [blocks(0, 1, 1, 0, 0)];
    let there = Initiator::with(&two, host(20, "b", Some(1)), false).settled();
    let both = [own(&Initiator::new(&one, 9)), own(&there)];
    for (what, nexus, read_only, reached) in [
        ("the same principal", host(10, "a", Some(1)), false, true),
        ("nobody has proved anything", host(11, "a", None), false, false),
        ("another credential", host(12, "a", Some(2)), false, false),
        ("its own target masks the unit", host(13, "b", Some(1)), false, false),
        ("it may only read", host(14, "a", Some(1)), true, false),
        ("another initiator", Nexus { initiator: "iqn.x".into(), ..host(15, "a", Some(1)) }, false, false),
    ] {
        let here = Initiator::with(&one, nexus, read_only).settled();
        let ran = copy(&here, 1, 2, &both, &segment);
        match reached {
            true => assert_eq!(ran.outcome.status, Status::Good, "{what}"),
            false => assert_eq!(
                ran.sense(),
                (SenseKey::CopyAborted, A::COPY_TARGET_DEVICE_NOT_REACHABLE),
                "{what}"
            ),
        }
    }
    // Sessions without authentication do not count as the same initiator.
    let unproved = Initiator::with(&two, host(21, "c", None), false).settled();
    let here = Initiator::with(&one, host(16, "a", None), false).settled();
    copy(&here, 1, 2, &both, &segment).fails(SenseKey::CopyAborted, A::COPY_TARGET_DEVICE_NOT_REACHABLE);
    drop(unproved);
}

#[test]
fn what_the_other_session_may_not_do_there_a_copy_may_not_do_either() {
    let [one, two] = two();
    let here = Initiator::with(&one, host(10, "a", Some(1)), false).settled();
    let there = Initiator::with(&two, host(20, "b", Some(1)), true).settled();
    let both = [own(&here), own(&there)];
    copy(&here, 1, 2, &both, &[blocks(0, 1, 1, 0, 0)]).fails(SenseKey::CopyAborted, A::WRITE_PROTECTED);
    copy(&here, 1, 2, &both, &[blocks(1, 0, 1, 0, 0)]).good();
    // Another initiator has reserved the unit.
    let other = Initiator::new(&two, 7);
    other.run(&[0x16, 0, 0, 0, 0, 0]).good();
    copy(&here, 1, 2, &both, &[blocks(1, 0, 1, 0, 0)])
        .fails(SenseKey::CopyAborted, A::THIRD_PARTY_DEVICE_FAILURE);
}
