//! INQUIRY, READ CAPACITY, and the reported capabilities of the unit.

use scsi::AdditionalSense as A;
use scsi::data::opcodes::parse_all;
use scsi::data::vpd::{self, Association, Identification, Identifier};

use super::*;

fn page(it: &Initiator, page: u8) -> Vec<u8> {
    it.run(&[0x12, 1, page, 4, 0, 0]).good()
}

#[test]
fn every_page_that_is_listed_is_there_and_no_other() {
    let it = pair();
    let listed = page(&it, 0);
    let pages = &listed[4..];
    assert!(pages.is_sorted());
    for code in 0..=0xff {
        let ran = it.run(&[0x12, 1, code, 4, 0, 0]);
        if pages.contains(&code) {
            let data = ran.good();
            assert_eq!(data[1], code);
            assert_eq!(usize::from(u16::from_be_bytes([data[2], data[3]])), data.len() - 4);
        } else {
            ran.refused(A::INVALID_FIELD_IN_CDB);
        }
    }
    for code in [0x00, 0x80, 0x83, 0x86, 0x8f, 0xb0, 0xb1, 0xb2] {
        assert!(pages.contains(&code), "{code:02x}");
    }
}

#[test]
fn inquiry_truncates_its_data_and_ignores_unit_attentions() {
    let it = Initiator::fresh(&disk(options()), 1, false);
    for allocation in [0u8, 1, 5, 36, 255] {
        let ran = it.run(&[0x12, 0, 0, 0, allocation, 0]);
        assert_eq!(ran.data.len(), usize::from(allocation).min(96));
        assert_eq!(ran.outcome, Outcome::read(ran.data.len() as u64));
    }
    it.run(&[0; 6]).fails(SenseKey::UnitAttention, A::POWER_ON_RESET_OR_BUS_DEVICE_RESET);
    it.run(&[0; 6]).good();
}

#[test]
fn identification_names_unit_port_and_target() {
    let it = pair();
    let data = page(&it, 0x83);
    let Identification(names) = Identification::parse(&data[4..]);
    let naa = Identifier::Naa(it.unit.options().identity.naa.clone());
    assert!(names.iter().any(|d| d.association == Association::LogicalUnit && d.identifier == naa));
    let port = Identifier::ScsiName("iqn.2000-01.com.example:target,t,0x0001".into());
    assert!(names.iter().any(|d| d.association == Association::TargetPort && d.identifier == port));
    assert!(names.iter().any(|d| d.identifier == Identifier::RelativeTargetPort(1)));
}

#[test]
fn the_same_seed_gives_the_same_identity_and_another_another() {
    let (a, b) = (options(), DiskOptions::default().with_identity("other"));
    let (a, b) = (a.identity, b.identity);
    assert_eq!(a, options().identity);
    assert!(a.naa != b.naa && a.serial != b.serial);
    assert_eq!(a.check(), Ok(()));
}

#[test]
fn capacity_is_told_in_both_forms() {
    let it = pair();
    assert_eq!(it.run(&cdb10(0x25, 0, 0)).good(), [0, 0, 0x0f, 0xff, 0, 0, 2, 0]);
    let data = it.run(&cdb16(0x9e, 0x10, 0, 32)).good();
    assert_eq!(data[..14], [0, 0, 0, 0, 0, 0, 0x0f, 0xff, 0, 0, 2, 0, 0, 3]);
    assert_eq!(data[14] & 0xc0, 0xc0);
    for allocation in 0..16 {
        assert_eq!(it.run(&cdb16(0x9e, 0x10, 0, allocation)).good().len(), allocation as usize);
    }
}

#[test]
fn limits_of_a_thick_unit_name_no_unmap() {
    let it = Initiator::new(&disk(DiskOptions { thin: false, ..options() }), 1);
    let limits = vpd::BlockLimits::parse(&page(&it, 0xb0)[4..]).unwrap();
    assert_eq!((limits.max_unmap, limits.max_unmap_ranges), (0, 0));
    assert!(limits.max_atomic != 0 && limits.max_atomic <= limits.max_transfer);
    assert_eq!(vpd::BlockCharacteristics::parse(&page(&it, 0xb1)[4..]).unwrap().after_block_erase, 0);
}

fn opcodes(it: &Initiator) -> Vec<scsi::data::opcodes::SupportedCommand> {
    let mut cdb = [0; 12];
    cdb[0] = 0xa3;
    cdb[1] = 0x0c;
    cdb[8] = 0xff;
    parse_all(&it.run(&cdb).good()).unwrap()
}

#[test]
fn nothing_that_is_reported_supported_is_an_invalid_operation_code() {
    for thin in [true, false] {
        let it = Initiator::new(&disk(DiskOptions { thin, ..options() }), 1);
        let commands = opcodes(&it);
        assert!(commands.len() > 50);
        assert_eq!(commands.iter().any(|c| c.opcode == 0x42), thin);
        // The server answers REPORT LUNS.
        for command in commands.iter().filter(|c| c.opcode != 0xa0) {
            let mut cdb = vec![0; usize::from(command.len)];
            cdb[0] = command.opcode;
            if let Some(action) = command.service_action {
                cdb[1] = action as u8;
            }
            let ran = it.run(&cdb);
            if ran.outcome.status == Status::CheckCondition {
                assert_ne!(ran.sense().1, A::INVALID_COMMAND_OPERATION_CODE, "{command:?}");
            }
        }
    }
}

#[test]
fn request_sense_takes_what_is_pending() {
    let it = Initiator::fresh(&disk(options()), 1, false);
    let data = it.run(&[0x03, 0, 0, 0, 252, 0]).good();
    assert_eq!((data[0], data[2], data[12], data[13]), (0x70, 6, 0x29, 0x00));
    let data = it.run(&[0x03, 1, 0, 0, 252, 0]).good();
    assert_eq!((data[0], data[1]), (0x72, 0));
    it.run(&[0; 6]).good();
}

#[test]
fn no_command_descriptor_block_panics() {
    let it = pair();
    let mut seed = 1u64;
    for _ in 0..20_000 {
        let mut cdb = [0; 16];
        for byte in &mut cdb {
            seed = seed.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            // Prefer small numbers, which reach more cases.
            *byte = if seed >> 62 == 0 { (seed >> 33) as u8 } else { (seed >> 33) as u8 & 3 };
        }
        cdb[0] = (seed >> 40) as u8;
        it.run_out(&cdb, &[0; 600]);
    }
}
