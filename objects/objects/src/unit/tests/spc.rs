//! INQUIRY, supported operation codes, REQUEST SENSE, MODE SENSE, reservations, and attaching as
//! open-osd does it.

use osd::attributes::numbers::root_information as info;
use osd::data;
use scsi::data::inquiry::StandardInquiry;
use scsi::data::opcodes::parse_all;
use scsi::data::vpd::{Identification, Identifier};

use super::*;

fn page(it: &Client, page: u8) -> Vec<u8> {
    it.raw(&[0x12, 1, page, 4, 0, 0], &[]).good().data
}

#[test]
fn the_unit_says_that_it_is_an_osd() {
    let it = Client::empty();
    let data = it.raw(&[0x12, 0, 0, 0, 96, 0], &[]).good().data;
    let inquiry = StandardInquiry::parse(&data).unwrap();
    assert_eq!((inquiry.device_type, inquiry.version, inquiry.hierarchical), (0x11, 5, true));
    assert!(inquiry.command_queuing && !inquiry.third_party_copy && !inquiry.removable);
    assert_eq!(data[3] & 0x0F, 2);
    assert_eq!(inquiry.versions[..], [0x0340, 0x0440, 0x0448, 0x0300, 0x0960]);
    assert_eq!(it.unit.device_type(), 0x11);
    assert!(it.unit.descriptor_sense());
    for allocation in [0u8, 1, 36, 255] {
        let ran = it.raw(&[0x12, 0, 0, 0, allocation, 0], &[]).good();
        assert_eq!(ran.data.len(), usize::from(allocation).min(96));
        assert_eq!(ran.outcome.wanted_in, ran.data.len() as u64);
    }
}

#[test]
fn every_page_that_is_listed_is_there_and_no_other() {
    let it = Client::empty();
    let pages = page(&it, 0)[4..].to_vec();
    assert!(pages.is_sorted());
    for code in 0..=0xFF {
        let ran = it.raw(&[0x12, 1, code, 4, 0, 0], &[]);
        if pages.contains(&code) {
            let data = ran.good().data;
            assert_eq!((data[0], data[1]), (0x11, code));
            assert_eq!(usize::from(u16::from_be_bytes([data[2], data[3]])), data.len() - 4);
        } else {
            ran.bad_field(2);
        }
    }
    for code in [0x00, 0x80, 0x83, 0xB0, 0xB1] {
        assert!(pages.contains(&code), "{code:02x}");
    }
    assert_eq!(page(&it, 0x80)[4..], it.unit.options().identity.serial.as_bytes()[..]);
    let Identification(names) = Identification::parse(&page(&it, 0x83)[4..]);
    assert!(
        names.iter().any(|name| name.identifier == Identifier::Naa(it.unit.options().identity.naa.clone()))
    );
    assert!(data::parse_security_token(&page(&it, 0xB1)).is_some());
}

#[test]
fn the_security_token_is_each_nexuss_own() {
    let it = Client::empty();
    let other = Client::to(&it.unit, 2, it.clock.clone());
    assert_ne!(page(&it, 0xB1), page(&other, 0xB1));
    assert_eq!(page(&it, 0xB1), page(&it, 0xB1));
}

#[test]
fn nothing_that_is_reported_supported_is_an_invalid_operation_code() {
    let it = Client::ready();
    let mut cdb = [0; 12];
    cdb[..2].copy_from_slice(&[0xA3, 0x0C]);
    cdb[6..10].copy_from_slice(&65_535u32.to_be_bytes());
    let commands = parse_all(&it.raw(&cdb, &[]).good().data).unwrap();
    let of_osd = commands.iter().filter(|command| command.opcode == 0x7F);
    let (first, second): (Vec<&scsi::data::opcodes::SupportedCommand>, Vec<_>) =
        of_osd.partition(|command| command.len == 200);
    assert_eq!((first.len(), second.len()), (23, 39));
    assert!(second.iter().all(|command| command.len == 236));
    for command in &commands {
        let mut one = cdb;
        one[2] = if command.service_action.is_some() { 2 } else { 1 };
        one[3] = command.opcode;
        one[4..6].copy_from_slice(&command.service_action.unwrap_or(0).to_be_bytes());
        let data = it.raw(&one, &[]).good().data;
        assert_eq!(data[1], 3, "{command:?}");
        assert_eq!(usize::from(u16::from_be_bytes([data[2], data[3]])), data.len() - 4);
        assert_eq!(data.len() - 4, usize::from(command.len));
        // REPORT LUNS is the server's to answer.
        if command.opcode == 0xA0 || command.opcode == 0x7F {
            continue;
        }
        let mut cdb = vec![0; usize::from(command.len)];
        cdb[0] = command.opcode;
        if let Some(action) = command.service_action {
            cdb[1] = action as u8;
        }
        let ran = it.raw(&cdb, &[]);
        if ran.outcome.status == Status::CheckCondition {
            assert_ne!(
                ran.sense().additional,
                AdditionalSense::INVALID_COMMAND_OPERATION_CODE,
                "{command:?}"
            );
        }
    }
    // Commands of disks are not among them.
    for opcode in [0x28, 0x2A, 0x25, 0x35, 0x42, 0x04, 0x1B] {
        refused(
            &it.raw(&[opcode, 0, 0, 0, 0, 0, 0, 0, 0, 0], &[]),
            AdditionalSense::INVALID_COMMAND_OPERATION_CODE,
        );
        assert!(commands.iter().all(|command| command.opcode != opcode));
    }
}

#[test]
fn unit_attentions_come_first_and_request_sense_takes_them() {
    let it = Client::ready();
    let fresh = Client::fresh(&it.unit, 5, false, it.clock.clone());
    fresh.raw(&[0x12, 0, 0, 0, 36, 0], &[]).good();
    fresh.read(0, 0).fails(SenseKey::UnitAttention, (0x29, 0x00));
    fresh.read(0, 0).good();
    it.unit.reset(device::ResetKind::LogicalUnit, None);
    let data = fresh.raw(&[0x03, 1, 0, 0, 252, 0], &[]).good().data;
    assert_eq!(data[..4], [0x72, 6, 0x29, 0x03]);
    fresh.raw(&[0; 6], &[]).good();
    it.raw(&[0; 6], &[]).fails(SenseKey::UnitAttention, (0x29, 0x03));
    it.unit.detach(it.nexus.nexus.id);
}

#[test]
fn mode_sense_says_that_sense_data_has_descriptors() {
    let it = Client::empty();
    let data = it.raw(&[0x1A, 0, 0x0A, 0, 255, 0], &[]).good().data;
    assert_eq!(data[3..7], [0, 0x0A, 10, 0x06]);
    it.raw(&[0x1A, 0, 0x08, 0, 255, 0], &[]).bad_field(2);
    refused(&it.raw(&[0x15, 0x10, 0, 0, 4, 0], &[0; 4]), AdditionalSense::INVALID_COMMAND_OPERATION_CODE);
}

/// PERSISTENT RESERVE OUT with a key and a service action key.
fn reserve_out(it: &Client, action: u8, kind: u8, key: u64, new: u64) -> Ran {
    let mut cdb = [0; 10];
    cdb[..3].copy_from_slice(&[0x5F, action, kind]);
    cdb[8] = 24;
    let mut list = [0; 24];
    list[..8].copy_from_slice(&key.to_be_bytes());
    list[8..16].copy_from_slice(&new.to_be_bytes());
    it.raw(&cdb, &list)
}

#[test]
fn a_reservation_keeps_others_from_writing_and_lets_them_read() {
    let it = Client::ready();
    let other = Client::to(&it.unit, 2, it.clock.clone());
    reserve_out(&it, 0, 0, 0, 7).good();
    // Write exclusive.
    reserve_out(&it, 1, 1, 7, 0).good();
    it.write(0, b"mine").good();
    let conflicts = |ran: Ran| ran.outcome.status == Status::ReservationConflict;
    assert!(conflicts(other.write(0, b"x")));
    assert!(conflicts(other.create(O + 1)));
    assert!(conflicts(other.set(ID, info::OSD_NAME, b"x")));
    assert_eq!(other.read(0, 4).good().data, b"mine");
    other.get(ID, osd::attributes::numbers::user_information::LOGICAL_LENGTH).good();
    let setting = other.ask(Osd::Read(ID, range(0, 4)));
    assert!(conflicts(setting.set(osd::AttributeId::new(osd::Page(0x1_0000), 1), b"x").send()));
    reserve_out(&it, 2, 1, 7, 0).good();
    // Exclusive access.
    reserve_out(&it, 1, 3, 7, 0).good();
    assert!(conflicts(other.read(0, 4)));
    other.raw(&[0; 6], &[]).good();
    let keys = other.raw(&[0x5E, 0, 0, 0, 0, 0, 0, 0, 255, 0], &[]).good().data;
    assert_eq!(keys[8..16], 7u64.to_be_bytes());
    // It moves to the unit that takes over.
    let told = it.unit.nexuses().hand_over().unwrap();
    let successor = Client::empty();
    successor.unit.nexuses().take_over(&told).unwrap();
    assert!(conflicts(
        Client::to(&successor.unit, 9, it.clock.clone()).ask(Osd::Format { capacity: 0 }).send()
    ));
}

#[test]
fn a_nexus_that_may_not_write_reads_and_is_told_so_otherwise() {
    let it = Client::ready();
    it.write(0, b"data").good();
    let reader = Client::fresh(&it.unit, 2, true, it.clock.clone());
    reader.nexus.take_attention();
    assert_eq!(reader.read(0, 4).good().data, b"data");
    let protected = |ran: Ran| {
        ran.fails(SenseKey::DataProtect, (0x27, 0x00));
    };
    protected(reader.write(0, b"x"));
    protected(reader.create(O + 1));
    protected(reader.set(Id::ROOT, info::OSD_NAME, b"x"));
    let name = osd::attributes::numbers::user_information::NAME;
    protected(reader.ask(Osd::Read(ID, range(0, 4))).set(name, b"x").send());
    reader.ask(Osd::FlushOsd { scope: osd::cdb::FlushScope::Contents }).send().good();
}

#[test]
fn open_osds_questions_at_attaching_are_answered_in_order() {
    for form in [Form::Osd2, Form::Osd1] {
        let mut it = Client::empty();
        it.form = form;
        it.raw(&[0; 6], &[]).good();
        let asked = [
            info::VENDOR,
            info::PRODUCT,
            info::MODEL,
            info::REVISION,
            info::SERIAL,
            info::OSD_NAME,
            info::TOTAL_CAPACITY,
            info::USED_CAPACITY,
            info::PARTITIONS,
            info::CLOCK,
            info::SYSTEM_ID,
        ];
        let mut ask = it.ask(Osd::GetAttributes(Id::ROOT)).get(&asked);
        // Under NOSEC its capability is marked OSD-1, with no object.
        ask.cdb.capability =
            osd::Capability { format: 1, permissions: osd::Permissions::ALL, ..osd::Capability::default() };
        let (mut cdb, out, _) = ask.build();
        cdb[7] = 228;
        let mut ran = it.raw(&cdb, &out).good();
        ran.version = form.version();
        let values = ran.values();
        assert_eq!(values.iter().map(|(id, _)| *id).collect::<Vec<_>>(), asked);
        let lens: Vec<usize> = values.iter().map(|(_, value)| value.len()).collect();
        assert_eq!(lens, [8, 16, 32, 4, 16, 0, 8, 8, 8, 6, 20]);
        assert_eq!(values[0].1, b"STAG    ");
        assert_eq!(values[10].1, it.unit.options().system_id);
    }
}

#[test]
fn no_command_descriptor_block_panics() {
    let it = Client::ready();
    let mut seed = 1u64;
    let mut next = || {
        seed = seed.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (seed >> 33) as u32
    };
    for round in 0..30_000 {
        let mut cdb = [0; 236];
        for byte in &mut cdb {
            // Small numbers are where the cases are.
            *byte = if next() & 7 == 0 { next() as u8 } else { next() as u8 & 1 };
        }
        let len = [200, 224, 236][round % 3];
        cdb[0] = 0x7F;
        cdb[7] = (len - 8) as u8;
        let version = if len == 200 { Version::Osd1 } else { Version::Osd2 };
        let action = osd::Action::ALL[next() as usize % osd::Action::ALL.len()];
        let Some(code) = action.code(version) else { continue };
        cdb[8..10].copy_from_slice(&code.to_be_bytes());
        cdb[10] &= 0x1F;
        cdb[11] = cdb[11] & 0xCF | ((next() as u8 % 3 + 1) << 4);
        cdb[12] = 0;
        cdb[16..32].copy_from_slice(&[[0, 0, 0, 0, 0, 1, 0, 0], [0, 0, 0, 0, 0, 1, 0, 0]].concat());
        let mut out = [0; 600];
        for byte in &mut out {
            *byte = if next() & 3 == 0 { next() as u8 } else { 0 };
        }
        out[0] = if next() & 1 == 0 { 1 } else { 9 };
        it.raw(&cdb[..len], &out[..next() as usize % 600]);
    }
}
