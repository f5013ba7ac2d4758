use proptest::prelude::*;

use super::*;
use crate::reservation::{InAction, OutAction};
use crate::{AdditionalSense, FieldPointer, KeySpecific};

fn refused_at(cdb: &[u8]) -> FieldPointer {
    let sense = decode(cdb).expect_err("it was accepted");
    assert_eq!(sense.additional, AdditionalSense::INVALID_FIELD_IN_CDB);
    match sense.key_specific {
        Some(KeySpecific::Field(pointer)) => pointer,
        other => panic!("no field pointer but {other:?}"),
    }
}

fn at(byte: u16, bit: impl Into<Option<u8>>) -> FieldPointer {
    FieldPointer { in_cdb: true, byte, bit: bit.into() }
}

fn plain(lba: u64, blocks: u32) -> Transfer {
    Transfer { lba, blocks, dpo: false, fua: false }
}

#[test]
fn a_length_of_zero_in_read_6_and_write_6_means_256_blocks() {
    assert_eq!(decode(&[0x08, 0x01, 2, 3, 0, 0]), Ok(Command::Read(plain(0x1_0203, 256))));
    assert_eq!(decode(&[0x0A, 0x1F, 0xFF, 0xFF, 1, 0]), Ok(Command::Write(plain(0x1F_FFFF, 1))));
}

#[test]
fn the_logical_unit_number_of_scsi_2_is_ignored_in_six_byte_cdbs() {
    assert_eq!(decode(&[0x08, 0xE1, 2, 3, 4, 0]), Ok(Command::Read(plain(0x1_0203, 4))));
    assert_eq!(decode(&[0x00, 0x20, 0, 0, 0, 0]), Ok(Command::TestUnitReady));
}

#[test]
fn reads_and_writes_of_every_length_carry_their_fields() {
    let all = Transfer { dpo: true, fua: true, ..plain(0x0102_0304, 0x0506) };
    assert_eq!(decode(&[0x28, 0x18, 1, 2, 3, 4, 0, 5, 6, 0]), Ok(Command::Read(all)));
    assert_eq!(decode(&[0x2A, 0x18, 1, 2, 3, 4, 0, 5, 6, 0]), Ok(Command::Write(all)));
    let all = Transfer { fua: true, ..plain(0x0102_0304, 0x0506_0708) };
    assert_eq!(decode(&[0xA8, 0x08, 1, 2, 3, 4, 5, 6, 7, 8, 0, 0]), Ok(Command::Read(all)));
    assert_eq!(decode(&[0xAA, 0x08, 1, 2, 3, 4, 5, 6, 7, 8, 0, 0]), Ok(Command::Write(all)));
    let all = Transfer { dpo: true, ..plain(0x0102_0304_0506_0708, 0x090A_0B0C) };
    assert_eq!(decode(&[0x88, 0x10, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 0, 0]), Ok(Command::Read(all)));
    assert_eq!(decode(&[0x8A, 0x10, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 0, 0]), Ok(Command::Write(all)));
}

#[test]
fn a_cdb_may_be_padded_to_the_16_bytes_of_an_iscsi_header_with_anything() {
    let mut cdb = [0xEE; 16];
    cdb[..10].copy_from_slice(&[0x28, 0, 0, 0, 0, 9, 0, 0, 1, 0]);
    assert_eq!(decode(&cdb), Ok(Command::Read(plain(9, 1))));
}

#[test]
fn a_cdb_shorter_than_its_operation_code_says_is_refused() {
    assert_eq!(refused_at(&[0x28, 0, 0, 0, 0, 9]), at(6, None));
    assert_eq!(decode(&[]), Err(Sense::invalid_opcode()));
}

#[test]
fn protection_information_is_refused_with_a_pointer_to_its_field() {
    for value in 1..8u8 {
        for opcode in [0x28, 0x2A, 0x2E, 0x2F, 0x41] {
            assert_eq!(refused_at(&[opcode, value << 5, 0, 0, 0, 0, 0, 0, 1, 0]), at(1, 7));
        }
        for opcode in [0xA8, 0xAA, 0xAE, 0xAF] {
            assert_eq!(refused_at(&[opcode, value << 5, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0]), at(1, 7));
        }
        for opcode in [0x88, 0x89, 0x8A, 0x8B, 0x8E, 0x8F, 0x93, 0x9C] {
            let mut cdb = [0; 16];
            cdb[0] = opcode;
            cdb[1] = value << 5;
            assert_eq!(refused_at(&cdb), at(1, 7));
        }
    }
}

#[test]
fn obsolete_bits_and_the_group_number_are_ignored() {
    // FUA_NV and RELADR, and a group of 3.
    assert_eq!(decode(&[0x2A, 0x03, 0, 0, 0, 0, 3, 0, 1, 0]), Ok(Command::Write(plain(0, 1))));
    let prefetch = CacheRange { lba: 0, blocks: 1, immediate: true };
    assert_eq!(decode(&[0x34, 0x02, 0, 0, 0, 0, 3, 0, 1, 0]), Ok(Command::PreFetch(prefetch)));
    assert_eq!(decode(&[0x25, 0, 1, 2, 3, 4, 0, 0, 1, 0]), Ok(Command::ReadCapacity10));
}

#[test]
fn naca_is_refused_and_the_other_bits_of_control_that_are_in_use_are_not() {
    assert_eq!(refused_at(&[0x00, 0, 0, 0, 0, 0x04]), at(5, 2));
    assert_eq!(refused_at(&[0x28, 0, 0, 0, 0, 0, 0, 0, 1, 0x04]), at(9, 2));
    assert_eq!(decode(&[0x00, 0, 0, 0, 0, 0xC3]), Ok(Command::TestUnitReady));
}

#[test]
fn operation_codes_that_nobody_knows_are_refused_as_such() {
    for opcode in [0x01, 0x3B, 0x7F, 0x85, 0xA1, 0xC0, 0xFF] {
        assert_eq!(decode(&[opcode; 16]), Err(Sense::invalid_opcode()));
    }
}

#[test]
fn service_actions_that_nobody_knows_are_refused_with_a_pointer_to_theirs() {
    for (opcode, known) in [
        (0x48u8, &[1u8, 2, 3, 0x1F][..]),
        (0x5E, &[0, 1, 2, 3]),
        (0x5F, &[0, 1, 2, 3, 4, 5, 6, 7]),
        (0x83, &[0, 1, 0x10, 0x11, 0x1C]),
        (0x84, &[0, 3, 4, 5, 7]),
        (0x9E, &[0x10, 0x12]),
        (0xA3, &[0x0A, 0x0C, 0x0D, 0x0F]),
        (0xA4, &[0x0A]),
    ] {
        for action in 0..32u8 {
            let mut cdb = [0; 16];
            (cdb[0], cdb[1]) = (opcode, action);
            if opcode == 0x48 && action == 1 {
                cdb[8] = 5;
            }
            if known.contains(&action) {
                decode(&cdb).expect("a known service action");
            } else {
                assert_eq!(refused_at(&cdb), at(1, 4));
            }
        }
    }
}

#[test]
fn verify_takes_three_values_of_bytchk_and_asks_for_data_by_them() {
    let verify = |b: u8, len: u8| match decode(&[0x2F, b << 1, 0, 0, 0, 7, 0, 0, len, 0]) {
        Ok(Command::Verify(v)) => (v.check, v.blocks_out()),
        other => panic!("{other:?}"),
    };
    assert_eq!(verify(0, 4), (ByteCheck::Medium, 0));
    assert_eq!(verify(1, 4), (ByteCheck::Blocks, 4));
    assert_eq!(verify(3, 4), (ByteCheck::OneBlock, 1));
    assert_eq!(verify(3, 0), (ByteCheck::OneBlock, 0));
    assert_eq!(refused_at(&[0x2F, 0x04, 0, 0, 0, 7, 0, 0, 4, 0]), at(1, 2));
}

#[test]
fn write_and_verify_takes_two_values_of_bytchk() {
    let expected = WriteAndVerify { lba: 7, blocks: 4, compare: true, dpo: true };
    assert_eq!(decode(&[0x2E, 0x12, 0, 0, 0, 7, 0, 0, 4, 0]), Ok(Command::WriteAndVerify(expected)));
    assert_eq!(refused_at(&[0x2E, 0x04, 0, 0, 0, 7, 0, 0, 4, 0]), at(1, 2));
    assert_eq!(refused_at(&[0x2E, 0x06, 0, 0, 0, 7, 0, 0, 4, 0]), at(1, 2));
    assert_eq!(refused_at(&[0x2E, 0x08, 0, 0, 0, 7, 0, 0, 4, 0]), at(1, 3));
}

#[test]
fn write_same_has_no_anchor_without_unmap_and_ndob_only_with_16_bytes() {
    assert_eq!(refused_at(&[0x41, 0x10, 0, 0, 0, 0, 0, 0, 1, 0]), at(1, 4));
    let expected = WriteSame { lba: 0, blocks: 1, unmap: true, anchor: true, no_data_out: false };
    assert_eq!(decode(&[0x41, 0x19, 0, 0, 0, 0, 0, 0, 1, 0]), Ok(Command::WriteSame(expected)));
    let expected = WriteSame { no_data_out: true, ..expected };
    assert_eq!(
        decode(&[0x93, 0x19, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0]),
        Ok(Command::WriteSame(expected))
    );
    // LBDATA and PBDATA requested data other than the sent data; they are no longer supported.
    assert_eq!(refused_at(&[0x41, 0x02, 0, 0, 0, 0, 0, 0, 1, 0]), at(1, 1));
    assert_eq!(refused_at(&[0x41, 0x04, 0, 0, 0, 0, 0, 0, 1, 0]), at(1, 2));
}

/// The reserved bytes before the count must be zero.
#[test]
fn compare_and_write_has_a_block_count_of_one_byte() {
    let mut cdb = [0x89, 0, 0, 0, 0, 0, 0, 0, 0, 5, 0, 0, 0, 255, 0, 0];
    assert_eq!(decode(&cdb), Ok(Command::CompareAndWrite(plain(5, 255))));
    cdb[12] = 1;
    assert_eq!(refused_at(&cdb), at(12, 0));
}

#[test]
fn write_atomic_carries_its_boundary_and_a_length_of_16_bits() {
    let expected = WriteAtomic { transfer: Transfer { fua: true, ..plain(5, 0x0304) }, boundary: 0x0102 };
    assert_eq!(
        decode(&[0x9C, 0x08, 0, 0, 0, 0, 0, 0, 0, 5, 1, 2, 3, 4, 0, 0]),
        Ok(Command::WriteAtomic(expected))
    );
}

#[test]
fn sanitize_refuses_reserved_bits_and_wrong_parameter_list_lengths() {
    let cdb = |flags: u8, len: u16| [0x48, flags, 0, 0, 0, 0, 0, (len >> 8) as u8, len as u8, 0];
    assert_eq!(refused_at(&cdb(0x42, 0)), at(1, 6));
    assert_eq!(refused_at(&cdb(0x02, 8)), at(7, None));
    assert_eq!(refused_at(&cdb(0x1F, 8)), at(7, None));
    for len in 0..5 {
        assert_eq!(refused_at(&cdb(0x01, len)), at(7, None));
    }
    for byte in 2..7 {
        let mut cdb = cdb(0x02, 0);
        cdb[byte] = byte as u8;
        assert_eq!(refused_at(&cdb).byte, byte as u16);
    }
    let expected = Sanitize {
        action: SanitizeAction::Overwrite,
        immediate: true,
        allow_unrestricted_exit: true,
        parameter_len: 516,
    };
    assert_eq!(decode(&cdb(0xA1, 516)), Ok(Command::Sanitize(expected)));
}

/// ALLOCATION LENGTH has 16 bits.
#[test]
fn inquiry_rejects_a_page_code_without_evpd() {
    assert_eq!(refused_at(&[0x12, 0, 1, 1, 0, 0]), at(2, None));
    assert_eq!(refused_at(&[0x12, 2, 0, 1, 0, 0]), at(1, 1));
    let expected = Inquiry { page: Some(0x83), allocation: 512 };
    assert_eq!(decode(&[0x12, 1, 0x83, 2, 0, 0]), Ok(Command::Inquiry(expected)));
    let expected = Inquiry { page: None, allocation: 36 };
    assert_eq!(decode(&[0x12, 0, 0, 0, 36, 0]), Ok(Command::Inquiry(expected)));
}

#[test]
fn mode_sense_splits_page_control_and_page() {
    let expected = ModeSense {
        no_block_descriptor: true,
        long_lba_accepted: true,
        control: PageControl::Default,
        page: 0x3F,
        subpage: 0xFF,
        allocation: 0x0102,
        long: true,
    };
    assert_eq!(decode(&[0x5A, 0x18, 0xBF, 0xFF, 0, 0, 0, 1, 2, 0]), Ok(Command::ModeSense(expected)));
    let expected = ModeSense {
        long_lba_accepted: false,
        control: PageControl::Changeable,
        page: 8,
        subpage: 0,
        allocation: 255,
        long: false,
        ..expected
    };
    assert_eq!(decode(&[0x1A, 0x08, 0x48, 0, 255, 0]), Ok(Command::ModeSense(expected)));
}

#[test]
fn third_party_and_extent_reservations_are_refused() {
    assert_eq!(decode(&[0x16, 0, 0, 0, 0, 0]), Ok(Command::Reserve));
    assert_eq!(decode(&[0x57, 0, 0, 0, 0, 0, 0, 0, 0, 0]), Ok(Command::Release));
    assert_eq!(refused_at(&[0x16, 0x10, 0, 0, 0, 0]), at(1, 4));
    assert_eq!(refused_at(&[0x16, 0x01, 0, 0, 0, 0]), at(1, 0));
    assert_eq!(refused_at(&[0x56, 0x10, 0, 0, 0, 0, 0, 0, 0, 0]), at(1, 4));
}

#[test]
fn every_power_condition_is_carried_for_the_unit_to_judge() {
    for power_condition in 0..16u8 {
        let expected = StartStopUnit {
            immediate: true,
            power_condition_modifier: 0,
            power_condition,
            no_flush: true,
            load_eject: true,
            start: false,
        };
        assert_eq!(
            decode(&[0x1B, 1, 0, 0, power_condition << 4 | 6, 0]),
            Ok(Command::StartStopUnit(expected))
        );
    }
}

#[test]
fn report_supported_operation_codes_carries_what_its_options_ask_for() {
    let cdb = |options: u8| [0xA3, 0x0C, options, 0x9E, 0, 0x10, 0, 0, 2, 0, 0, 0];
    let options = |options| match decode(&cdb(options)) {
        Ok(Command::ReportSupportedOpcodes(r)) => (r.options, r.timeouts, r.allocation),
        other => panic!("{other:?}"),
    };
    assert_eq!(options(0x80), (ReportingOptions::All, true, 512));
    assert_eq!(options(1), (ReportingOptions::Opcode(0x9E), false, 512));
    assert_eq!(options(2), (ReportingOptions::ServiceAction(0x9E, 0x10), false, 512));
    assert_eq!(options(3), (ReportingOptions::Either(0x9E, 0x10), false, 512));
    assert_eq!(refused_at(&cdb(4)), at(2, 2));
}

#[test]
fn persistent_reserve_out_carries_scope_type_and_a_length_of_32_bits() {
    let expected =
        PersistentReserveOut { action: OutAction::PreemptAndAbort, scope: 1, kind: 7, parameter_len: 24 };
    assert_eq!(decode(&[0x5F, 5, 0x17, 0, 0, 0, 0, 0, 24, 0]), Ok(Command::PersistentReserveOut(expected)));
}

#[test]
fn what_the_builders_build_decodes_to_what_was_meant() {
    use build::Flags;
    let fua = Transfer { fua: true, ..plain(7, 8) };
    assert_eq!(decode(&build::read(7, 8, Flags::FUA)), Ok(Command::Read(fua)));
    assert_eq!(decode(&build::write(7, 8, Flags::FUA)), Ok(Command::Write(fua)));
    assert_eq!(build::read(7, 8, Flags::default()).len(), 10);
    assert_eq!(build::read(1 << 32, 8, Flags::default()).len(), 16);
    assert_eq!(decode(&build::read(1 << 32, 8, Flags::default())), Ok(Command::Read(plain(1 << 32, 8))));
    assert_eq!(decode(&build::write(7, 65536, Flags::default())), Ok(Command::Write(plain(7, 65536))));
    assert_eq!(decode(&build::read12(7, 8, Flags::FUA)), Ok(Command::Read(fua)));
    assert_eq!(decode(&build::write12(7, 8, Flags::FUA)), Ok(Command::Write(fua)));
    assert_eq!(decode(&build::compare_and_write(7, 8, Flags::FUA)), Ok(Command::CompareAndWrite(fua)));
    assert_eq!(decode(&build::test_unit_ready()), Ok(Command::TestUnitReady));
    assert_eq!(decode(&build::read_capacity10()), Ok(Command::ReadCapacity10));
    assert_eq!(decode(&build::read_capacity16(32)), Ok(Command::ReadCapacity16 { allocation: 32 }));
    assert_eq!(
        decode(&build::get_lba_status(3, 24)),
        Ok(Command::GetLbaStatus(GetLbaStatus { lba: 3, allocation: 24 }))
    );
    assert_eq!(
        decode(&build::inquiry(Some(0xB0), 0x0140)),
        Ok(Command::Inquiry(Inquiry { page: Some(0xB0), allocation: 0x0140 }))
    );
    let same = WriteSame { lba: 1, blocks: 2, unmap: true, anchor: false, no_data_out: true };
    assert_eq!(decode(&build::write_same16(1, 2, true, true)), Ok(Command::WriteSame(same)));
    assert_eq!(decode(&build::unmap(24)), Ok(Command::Unmap(Unmap { anchor: false, parameter_len: 24 })));
    let range = CacheRange { lba: 0, blocks: 0, immediate: false };
    assert_eq!(decode(&build::synchronize_cache10()), Ok(Command::SynchronizeCache(range)));
    assert_eq!(decode(&build::synchronize_cache16(0, 0)), Ok(Command::SynchronizeCache(range)));
    let select = ModeSelect { page_format: true, save: true, parameter_len: 24, long: false };
    assert_eq!(decode(&build::mode_select6(true, 24)), Ok(Command::ModeSelect(select)));
    let select = ModeSelect { long: true, ..select };
    assert_eq!(decode(&build::mode_select10(true, 24)), Ok(Command::ModeSelect(select)));
    for long in [false, true] {
        let expected = ModeSense {
            no_block_descriptor: true,
            long_lba_accepted: false,
            control: PageControl::Saved,
            page: 8,
            subpage: 1,
            allocation: 200,
            long,
        };
        let cdb = if long {
            build::mode_sense10(PageControl::Saved, 8, 1, true, 200)
        } else {
            build::mode_sense6(PageControl::Saved, 8, 1, true, 200)
        };
        assert_eq!(decode(&cdb), Ok(Command::ModeSense(expected)));
    }
    let verify = Verify { lba: 1, blocks: 2, check: ByteCheck::OneBlock, dpo: false };
    assert_eq!(decode(&build::verify16(1, 2, 3)), Ok(Command::Verify(verify)));
    let luns = ReportLuns { select: SelectReport::All, allocation: 16 };
    assert_eq!(decode(&build::report_luns(2, 16)), Ok(Command::ReportLuns(luns)));
    let keys = PersistentReserveIn { action: InAction::ReadFullStatus, allocation: 8 };
    assert_eq!(decode(&build::persistent_reserve_in(3, 8)), Ok(Command::PersistentReserveIn(keys)));
    let register = PersistentReserveOut { action: OutAction::Register, scope: 0, kind: 1, parameter_len: 24 };
    assert_eq!(decode(&build::persistent_reserve_out(0, 1, 24)), Ok(Command::PersistentReserveOut(register)));
    assert!(decode(&build::request_sense(true, 252)).is_ok());
    assert!(decode(&build::start_stop_unit(true, true)).is_ok());
    assert!(decode(&build::report_supported_opcodes(true, 512)).is_ok());
    assert!(decode(&build::report_target_port_groups(512)).is_ok());
    assert!(decode(&build::log_sense(0, 0xFF, 512)).is_ok());
}

#[test]
fn what_writes_the_medium_needs_it() {
    for entry in table::ALL {
        let mut cdb = [0; 16];
        cdb[0] = entry.opcode;
        cdb[1] = entry.service_action.unwrap_or(0);
        if entry.opcode == op::SANITIZE && cdb[1] == 1 {
            cdb[8] = 8;
        }
        let command = decode(&cdb).expect(entry.name);
        assert!(!command.writes_medium() || command.needs_medium(), "{}", entry.name);
    }
    assert!(!decode(&[0x12, 0, 0, 0, 36, 0]).unwrap().needs_medium());
}

proptest! {
    #[test]
    fn no_bytes_make_decode_panic(cdb in proptest::collection::vec(any::<u8>(), 0..=300)) {
        let _ = decode(&cdb);
    }

    #[test]
    fn a_known_command_decodes_or_fails_with_a_pointer_into_its_cdb(
        which in 0..table::ALL.len(),
        mut cdb in proptest::array::uniform16(any::<u8>()),
    ) {
        let entry = table::ALL[which];
        cdb[0] = entry.opcode;
        if let Some(action) = entry.service_action {
            cdb[1] = cdb[1] & 0xE0 | action;
        }
        if let Err(sense) = decode(&cdb) {
            prop_assert_eq!(sense.additional, AdditionalSense::INVALID_FIELD_IN_CDB);
            let Some(KeySpecific::Field(pointer)) = sense.key_specific else { panic!("no pointer") };
            prop_assert!(pointer.in_cdb && pointer.byte < u16::from(entry.len), "{:?}", pointer);
        }
    }

    #[test]
    fn setting_every_bit_of_the_usage_data_is_never_refused_as_reserved(which in 0..table::ALL.len()) {
        let entry = table::ALL[which];
        prop_assert!(entry.check(&entry.usage, 16).is_ok());
    }
}
