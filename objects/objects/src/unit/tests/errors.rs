//! Malformed commands: which field sense data points to, and which functions it says were done.

use osd::attributes::numbers::user_information as info;
use osd::cdb::Isolation;
use osd::sense::function;

use super::*;

fn put(cdb: &mut [u8], at: usize, value: u32) {
    cdb[at..at + 4].copy_from_slice(&value.to_be_bytes());
}

#[test]
fn what_is_no_osd_command_is_refused_where_it_is_wrong() {
    let it = Client::ready();
    let (good, ..) = it.ask(Osd::Read(ID, range(0, 0))).build();
    let with = |at: usize, value: u8| {
        let mut cdb = good.clone();
        cdb[at] = value;
        it.raw(&cdb, &[])
    };
    with(8, 0x77).bad_field(8);
    with(7, 100).bad_field(7);
    with(10, 0x03).bad_field(10);
    with(10, 0x07).bad_field(10);
    with(12, 0x01).bad_field(12);
    let format = with(11, 0x00);
    let sense = format.bad_field(11);
    assert!(matches!(sense.key_specific, Some(KeySpecific::Field(FieldPointer { bit: Some(5), .. }))));
    it.raw(&good[..100], &[]).bad_field(7);
    with(11, 0x30).good();
}

#[test]
fn ids_that_are_not_there_are_told_apart() {
    for it in Client::each_form() {
        for id in [Id::new(P, O + 1), Id::new(P, 5)] {
            it.ask(Osd::Read(id, range(0, 1))).send().bad_field(24);
            it.ask(Osd::Write(id, range(0, 1))).data(b"x").send().bad_field(24);
            it.ask(Osd::Append { id, len: 1 }).data(b"x").send().bad_field(24);
            it.ask(Osd::Remove(id)).send().bad_field(24);
            it.ask(Osd::GetAttributes(id)).send().bad_field(24);
            it.ask(Osd::SetAttributes(id)).send().bad_field(24);
        }
        for id in [Id::new(P + 1, O), Id::new(5, O), Id::new(0, O)] {
            it.ask(Osd::Read(id, range(0, 1))).send().bad_field(16);
            it.ask(Osd::SetAttributes(id)).send().bad_field(16);
            it.ask(Osd::Remove(id)).send().bad_field(16);
        }
        // A partition or the root is no user object.
        it.ask(Osd::Read(Id::partition(P), range(0, 1))).send().bad_field(24);
        it.ask(Osd::Write(Id::ROOT, range(0, 1))).data(b"x").send();
    }
}

#[test]
fn lists_that_are_not_in_data_out_are_refused_at_their_fields() {
    let it = Client::ready();
    let (good, out, _) =
        it.ask(Osd::Write(ID, range(0, 3))).data(b"abc").get(&[FREE]).set(FREE, b"1").build();
    it.raw(&good, &out).good();
    let with = |at: usize, value: u32| {
        let mut cdb = good.clone();
        put(&mut cdb, at, value);
        it.raw(&cdb, &out)
    };
    // The get list behind the end, within the data, and with no offset.
    with(56, 0x0000_1000).bad_field(56);
    with(56, 0).bad_field(56);
    with(56, 0xFFFF_FFFF).bad_field(56);
    with(56, 0x8000_0001).bad_field(56);
    // The set list on the get list, and longer than what there is.
    let mut cdb = good.clone();
    cdb.copy_within(56..60, 72);
    it.raw(&cdb, &out).bad_field(72);
    with(68, 10_000).bad_field(72);
    // Retrieved attributes within the data of a read.
    let (mut cdb, out, _) = it.ask(Osd::Read(ID, range(0, 100))).get(&[FREE]).build();
    put(&mut cdb, 64, 0xB000_0001);
    it.raw(&cdb, &out).bad_field(64);
}

#[test]
fn malformed_lists_are_refused_at_their_bytes() {
    for it in Client::each_form() {
        let version = it.form.version();
        let header = osd::attributes::list::header_len(version) as u16;
        let (cdb, out, _) = it.ask(Osd::SetAttributes(ID)).set(FREE, b"12345").build();
        let with = |at: usize, value: u8| {
            let mut out = out.clone();
            out[at] = value;
            it.raw(&cdb, &out)
        };
        with(0, 1).bad_parameter(0);
        // A value that goes beyond the list.
        let length_at = if version == Version::Osd1 { header + 8 } else { header + 14 };
        with(usize::from(length_at), 1).fails(SenseKey::IllegalRequest, (0x1A, 0x00));
        with(usize::from(header) - 1, 200).fails(SenseKey::IllegalRequest, (0x26, 0x00));
        // The second of two settings.
        let ran = it.ask(Osd::SetAttributes(ID)).set(FREE, b"12345678").set(info::ID, b"").send();
        let entry = osd::attributes::list::entry_len(version, 8) as u16;
        let sense = ran.bad_parameter(header + entry);
        let about = sense::Descriptor::parse_all(&sense.descriptors);
        assert!(about.contains(&sense::Descriptor::Attributes(vec![info::ID])), "{about:?}");
        // Neither was set.
        assert_eq!(it.get(ID, FREE).good().value(), b"");
        let (_, completed, id) = ran.functions();
        assert_eq!(id, ID);
        assert_eq!(completed & function::SET_ATTRIBUTES, 0);
        assert_ne!(completed & function::VALIDATION, 0);
    }
}

#[test]
fn what_was_not_begun_is_said() {
    let it = Client::ready();
    let ran = it.ask(Osd::Read(Id::new(P, O + 9), range(0, 1))).get(&[FREE]).set(FREE, b"x").send();
    let (not_begun, completed, id) = ran.functions();
    assert_eq!(id, Id::new(P, O + 9));
    assert_eq!(not_begun, function::GET_ATTRIBUTES | function::SET_ATTRIBUTES);
    assert_eq!(
        completed,
        function::VALIDATION
            | function::COMMAND_CAPABILITY
            | function::SET_CAPABILITY
            | function::GET_CAPABILITY
    );
}

#[test]
fn a_vendors_isolation_is_nobodys() {
    let it = Client::ready();
    let ran = it.ask(Osd::Read(ID, range(0, 0))).isolation(Isolation::Vendor).send();
    ran.bad_field(10);
}

#[test]
fn ranges_that_wrap_around_are_refused() {
    let it = Client::ready();
    it.ask(Osd::Read(ID, range(u64::MAX, 2))).send().bad_field(32);
    it.ask(Osd::Write(ID, range(u64::MAX, 2))).data(b"xx").send().bad_field(32);
    it.ask(Osd::Write(ID, range(1 << 56, 2))).data(b"xx").send().quota();
    let (mut cdb, out, _) = it.ask(Osd::Write(ID, range(0, 1))).data(b"x").build();
    cdb[32..40].fill(0xFF);
    it.raw(&cdb, &out).bad_field(32);
}

#[test]
fn objects_that_a_continuation_names_besides_are_not_left_out_in_silence() {
    let it = Client::ready();
    it.set(ID, FREE, b"kept").good();
    let others = || Descriptor::UserObjects(vec![O + 1]);
    it.ask(Osd::Remove(ID)).descriptor(others()).send().bad_parameter(40);
    it.ask(Osd::SetAttributes(ID)).descriptor(others()).set(FREE, b"new").send().bad_parameter(40);
    assert_eq!(it.get(ID, FREE).good().value(), b"kept");
}
