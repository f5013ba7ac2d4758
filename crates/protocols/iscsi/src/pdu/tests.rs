//! The expected bytes of each header, and properties of any 48 bytes.

use super::*;
use proptest::prelude::*;
use zerocopy::IntoBytes;

/// Bytes from words of four, as in the figures of the RFC.
fn words(words: [u32; 12]) -> [u8; 48] {
    let mut bytes = [0; 48];
    for (to, word) in bytes.chunks_exact_mut(4).zip(words) {
        to.copy_from_slice(&word.to_be_bytes());
    }
    bytes
}

fn assert_bytes(pdu: &impl Pdu, expected: [u32; 12]) {
    assert_eq!(pdu.as_bhs().bytes(), &words(expected), "{pdu}");
}

const LUN_3: Lun = Lun([0, 3, 0, 0, 0, 0, 0, 0]);

#[test]
fn scsi_command_has_the_layout_of_section_11_3() {
    let mut pdu = ScsiCommand::new(0x1122_3344, LUN_3, TaskAttribute::Ordered, &[0x8a, 0, 0, 1]);
    pdu.set_write(true);
    pdu.set_final(false);
    pdu.edtl.set(4096);
    pdu.cmd_sn.set(7);
    pdu.exp_stat_sn.set(9);
    pdu.as_bhs_mut().set_immediate(true);
    pdu.as_bhs_mut().set_data_segment_len(512);
    pdu.as_bhs_mut().set_total_ahs_len(8);
    assert_bytes(
        &pdu,
        [0x4122_0000, 0x0200_0200, 0x0003_0000, 0, 0x1122_3344, 4096, 7, 9, 0x8a00_0001, 0, 0, 0],
    );
    assert_eq!(
        pdu.to_string(),
        "SCSI Command itt=0x11223344 lun=3 edtl=4096 cmdsn=7 expstatsn=9 W attr=\"ordered\" \
         cdb=8a000001000000000000000000000000 I ahs=8 dsl=512"
    );
}

#[test]
fn a_long_cdb_goes_on_in_an_extended_cdb_ahs() {
    let cdb: [u8; 32] = core::array::from_fn(|i| i as u8);
    let pdu = ScsiCommand::new(1, Lun::ZERO, TaskAttribute::Simple, &cdb);
    assert_eq!(pdu.cdb, cdb[..16]);
    assert_eq!(ScsiCommand::extended_cdb(&cdb), Some(ahs::Ahs::ExtendedCdb(&cdb[16..])));
    assert_eq!(ScsiCommand::extended_cdb(&cdb[..16]), None);
}

#[test]
fn scsi_response_has_the_layout_of_section_11_4() {
    let mut pdu = ScsiResponse::new(5, ResponseCode::TargetFailure, 2);
    pdu.snack_tag.set(1);
    pdu.stat_sn.set(2);
    pdu.exp_cmd_sn.set(3);
    pdu.max_cmd_sn.set(4);
    pdu.exp_data_sn.set(6);
    pdu.set_residual(Residual::Underflow(100));
    pdu.set_bidi_residual(Residual::Overflow(200));
    assert_bytes(&pdu, [0x2192_0102, 0, 0, 0, 5, 1, 2, 3, 4, 6, 200, 100]);
    pdu.set_residual(Residual::Overflow(1));
    pdu.set_bidi_residual(Residual::Underflow(2));
    assert_eq!(pdu.flags, 0x8c);
    pdu.set_residual(Residual::Exact);
    assert_eq!((pdu.residual(), pdu.bidi_residual()), (Some(Residual::Exact), Some(Residual::Underflow(2))));
    pdu.flags |= 0x06;
    assert_eq!(pdu.residual(), None);
}

#[test]
fn task_management_has_the_layouts_of_sections_11_5_and_11_6() {
    let mut pdu = TaskManagementRequest::new(5, TaskManagementFunction::LogicalUnitReset, LUN_3);
    pdu.cmd_sn.set(1);
    pdu.exp_stat_sn.set(2);
    pdu.ref_cmd_sn.set(3);
    pdu.exp_data_sn.set(4);
    assert_bytes(&pdu, [0x4285_0000, 0, 0x0003_0000, 0, 5, RESERVED_TAG, 1, 2, 3, 4, 0, 0]);
    let mut pdu = TaskManagementResponse::new(5, TaskManagementResult::FunctionRejected);
    pdu.stat_sn.set(1);
    pdu.exp_cmd_sn.set(2);
    pdu.max_cmd_sn.set(3);
    assert_bytes(&pdu, [0x2280_ff00, 0, 0, 0, 5, 0, 1, 2, 3, 0, 0, 0]);
}

#[test]
fn data_pdus_have_the_layout_of_section_11_7() {
    let mut pdu = DataOut::new(5, 6, LUN_3, 7, 8);
    pdu.exp_stat_sn.set(9);
    assert_bytes(&pdu, [0x0500_0000, 0, 0x0003_0000, 0, 5, 6, 0, 9, 0, 7, 8, 0]);
    pdu.set_final(true);
    assert_eq!(pdu.flags, 0x80);

    let mut pdu = DataIn::new(5, 7, 8);
    pdu.exp_cmd_sn.set(1);
    pdu.max_cmd_sn.set(2);
    assert_bytes(&pdu, [0x2500_0000, 0, 0, 0, 5, RESERVED_TAG, 0, 1, 2, 7, 8, 0]);
    pdu.set_status(0x08, Residual::Overflow(12));
    pdu.stat_sn.set(3);
    assert_bytes(&pdu, [0x2585_0008, 0, 0, 0, 5, RESERVED_TAG, 3, 1, 2, 7, 8, 12]);
    pdu.set_wants_ack(true);
    pdu.set_status(0, Residual::Underflow(13));
    assert_eq!(pdu.flags, 0xc3);
}

#[test]
fn r2t_has_the_layout_of_section_11_8() {
    let mut pdu = ReadyToTransfer::new(5, 6, LUN_3, 7, 8, 9);
    pdu.stat_sn.set(1);
    pdu.exp_cmd_sn.set(2);
    pdu.max_cmd_sn.set(3);
    assert_bytes(&pdu, [0x3180_0000, 0, 0x0003_0000, 0, 5, 6, 1, 2, 3, 7, 8, 9]);
}

#[test]
fn asynchronous_message_has_the_layout_of_section_11_9() {
    let mut pdu = AsyncMessage::new(AsyncEvent::DropConnection, Lun::ZERO, [0x0102, 0x0304, 0x0506]);
    pdu.stat_sn.set(1);
    pdu.exp_cmd_sn.set(2);
    pdu.max_cmd_sn.set(3);
    assert_bytes(&pdu, [0x3280_0000, 0, 0, 0, RESERVED_TAG, 0, 1, 2, 3, 0x0200_0102, 0x0304_0506, 0]);
}

#[test]
fn text_has_the_layouts_of_sections_11_10_and_11_11() {
    let mut pdu = TextRequest::new(5, RESERVED_TAG);
    pdu.cmd_sn.set(1);
    pdu.exp_stat_sn.set(2);
    assert_bytes(&pdu, [0x0480_0000, 0, 0, 0, 5, RESERVED_TAG, 1, 2, 0, 0, 0, 0]);
    pdu.set_final(false);
    pdu.set_continues(true);
    assert_eq!(pdu.flags, 0x40);
    let mut pdu = TextResponse::new(5, RESERVED_TAG);
    pdu.stat_sn.set(1);
    pdu.exp_cmd_sn.set(2);
    pdu.max_cmd_sn.set(3);
    assert_bytes(&pdu, [0x2480_0000, 0, 0, 0, 5, RESERVED_TAG, 1, 2, 3, 0, 0, 0]);
    assert!(!TextResponse::new(5, 6).is_final());
}

#[test]
fn login_has_the_layouts_of_sections_11_12_and_11_13() {
    let isid = Isid::random([1, 2, 3], 0x0405);
    let mut pdu = LoginRequest::new(5, isid, 0x0607, 0x0809);
    pdu.set_stages(Stage::LoginOperationalNegotiation, Some(Stage::FullFeaturePhase));
    pdu.cmd_sn.set(1);
    pdu.exp_stat_sn.set(2);
    assert_bytes(&pdu, [0x4387_0000, 0, 0x8001_0203, 0x0405_0607, 5, 0x0809_0000, 1, 2, 0, 0, 0, 0]);
    pdu.set_continues(true);
    pdu.set_stages(Stage::SecurityNegotiation, None);
    assert_eq!(pdu.flags, 0x40);
    pdu.flags = 0x08;
    assert_eq!(pdu.current_stage(), None, "stage 2 is reserved");

    let mut pdu = LoginResponse::new(5, isid, 0x0607);
    pdu.set_stages(Stage::SecurityNegotiation, Some(Stage::LoginOperationalNegotiation));
    pdu.stat_sn.set(1);
    pdu.exp_cmd_sn.set(2);
    pdu.max_cmd_sn.set(3);
    pdu.set_status(LoginStatus::OutOfResources);
    assert_bytes(&pdu, [0x2381_0000, 0, 0x8001_0203, 0x0405_0607, 5, 0, 1, 2, 3, 0x0302_0000, 0, 0]);
    assert_eq!(
        (pdu.status(), pdu.class()),
        (Some(LoginStatus::OutOfResources), Some(StatusClass::TargetError))
    );
}

#[test]
fn logout_has_the_layouts_of_sections_11_14_and_11_15() {
    let mut pdu = LogoutRequest::new(5, LogoutReason::RemoveForRecovery, 0x0102);
    pdu.cmd_sn.set(1);
    pdu.exp_stat_sn.set(2);
    assert_bytes(&pdu, [0x0682_0000, 0, 0, 0, 5, 0x0102_0000, 1, 2, 0, 0, 0, 0]);
    let mut pdu = LogoutResponse::new(5, LogoutResult::CleanupFailed, 0x0102, 0x0304);
    pdu.stat_sn.set(1);
    pdu.exp_cmd_sn.set(2);
    pdu.max_cmd_sn.set(3);
    assert_bytes(&pdu, [0x2680_0300, 0, 0, 0, 5, 0, 1, 2, 3, 0, 0x0102_0304, 0]);
}

#[test]
fn snack_and_reject_have_the_layouts_of_sections_11_16_and_11_17() {
    let mut pdu = SnackRequest::new(SnackType::DataAck, 5, 6, 7, 8);
    pdu.lun = LUN_3;
    pdu.exp_stat_sn.set(2);
    assert_bytes(&pdu, [0x1082_0000, 0, 0x0003_0000, 0, 5, 6, 0, 2, 0, 0, 7, 8]);
    let mut pdu = Reject::new(RejectReason::WaitingForLogout);
    pdu.stat_sn.set(1);
    pdu.exp_cmd_sn.set(2);
    pdu.max_cmd_sn.set(3);
    pdu.data_sn.set(4);
    assert_bytes(&pdu, [0x3f80_0c00, 0, 0, 0, RESERVED_TAG, 0, 1, 2, 3, 4, 0, 0]);
}

#[test]
fn nops_have_the_layouts_of_sections_11_18_and_11_19() {
    let mut pdu = NopOut::ping(5);
    pdu.cmd_sn.set(1);
    pdu.exp_stat_sn.set(2);
    assert_bytes(&pdu, [0x4080_0000, 0, 0, 0, 5, RESERVED_TAG, 1, 2, 0, 0, 0, 0]);
    assert_bytes(
        &NopOut::answer(6, LUN_3),
        [0x4080_0000, 0, 0x0003_0000, 0, RESERVED_TAG, 6, 0, 0, 0, 0, 0, 0],
    );
    let mut pdu = NopIn::ping(6, LUN_3);
    pdu.stat_sn.set(1);
    pdu.exp_cmd_sn.set(2);
    pdu.max_cmd_sn.set(3);
    assert_bytes(&pdu, [0x2080_0000, 0, 0x0003_0000, 0, RESERVED_TAG, 6, 1, 2, 3, 0, 0, 0]);
    assert!(NopIn::ping(6, LUN_3).wants_answer() && !NopIn::answer(5).wants_answer());
}

#[test]
fn every_code_point_reads_back_and_the_rest_is_unknown() {
    fn check<T: Copy + PartialEq + core::fmt::Debug>(
        all: &[T],
        code: fn(T) -> u8,
        from: fn(u8) -> Option<T>,
    ) {
        assert!(all.iter().all(|&item| from(code(item)) == Some(item)));
        let known = (0..=255).filter(|&byte| from(byte).is_some()).count();
        assert_eq!(known, all.len());
    }
    check(Opcode::ALL, Opcode::code, Opcode::from_code);
    check(TaskAttribute::ALL, TaskAttribute::code, TaskAttribute::from_code);
    check(ResponseCode::ALL, ResponseCode::code, ResponseCode::from_code);
    check(TaskManagementFunction::ALL, TaskManagementFunction::code, TaskManagementFunction::from_code);
    check(TaskManagementResult::ALL, TaskManagementResult::code, TaskManagementResult::from_code);
    check(AsyncEvent::ALL, AsyncEvent::code, AsyncEvent::from_code);
    check(Stage::ALL, Stage::code, Stage::from_code);
    check(StatusClass::ALL, StatusClass::code, StatusClass::from_code);
    check(LogoutReason::ALL, LogoutReason::code, LogoutReason::from_code);
    check(LogoutResult::ALL, LogoutResult::code, LogoutResult::from_code);
    check(SnackType::ALL, SnackType::code, SnackType::from_code);
    check(RejectReason::ALL, RejectReason::code, RejectReason::from_code);
    assert!(LoginStatus::ALL.iter().all(|&s| LoginStatus::from_code(s.code()) == Some(s)));
    assert_eq!(
        (0..=u16::MAX).filter(|&c| LoginStatus::from_code(c).is_some()).count(),
        LoginStatus::ALL.len()
    );
}

#[test]
fn a_cast_by_type_looks_at_the_opcode() {
    let bhs = Bhs::from(NopOut::ping(1));
    assert!(NopOut::from_bhs(&bhs).is_some());
    assert!(ScsiCommand::from_bhs(&bhs).is_none());
    assert!(matches!(bhs.view(), Some(PduRef::NopOut(nop)) if nop.wants_answer()));
}

#[test]
#[should_panic(expected = "a data segment of 16777216 bytes")]
fn a_data_segment_beyond_24_bits_cannot_be_announced() {
    Bhs::from(NopOut::ping(1)).set_data_segment_len(1 << 24);
}

fn header_bytes() -> impl Strategy<Value = [u8; 48]> {
    (any::<[u8; 32]>(), any::<[u8; 16]>(), proptest::sample::select(Opcode::ALL), any::<bool>()).prop_map(
        |(first, last, opcode, defined)| {
            let mut bytes = [0; 48];
            bytes[..32].copy_from_slice(&first);
            bytes[32..].copy_from_slice(&last);
            if defined {
                bytes[0] = bytes[0] & 0xc0 | opcode.code();
            }
            bytes
        },
    )
}

proptest! {
    #[test]
    fn any_header_shows_itself_on_one_line_and_keeps_its_bytes(bytes in header_bytes()) {
        let bhs = Bhs::ref_from(&bytes).unwrap();
        let line = bhs.to_string();
        prop_assert!(!line.is_empty() && !line.contains('\n'));
        prop_assert_eq!(bhs.bytes(), &bytes);
        prop_assert_eq!(bhs.as_scsi_command().as_bytes(), &bytes);
        prop_assert_eq!(bhs.opcode().is_some(), bhs.view().is_some());
        prop_assert_eq!(bhs.cmd_sn().is_some() && bhs.exp_stat_sn().is_none(), false);
    }

    #[test]
    fn shared_fields_agree_with_those_of_the_header(bytes in header_bytes()) {
        let bhs = Bhs::ref_from(&bytes).unwrap();
        match bhs.view() {
            Some(PduRef::ScsiCommand(pdu)) => {
                prop_assert_eq!(bhs.cmd_sn(), Some(pdu.cmd_sn.get()));
                prop_assert_eq!(bhs.exp_stat_sn(), Some(pdu.exp_stat_sn.get()));
                prop_assert_eq!((bhs.itt(), bhs.lun()), (pdu.itt.get(), pdu.lun));
                prop_assert_eq!(bhs.data_segment_len(), pdu.data_segment_len.get());
            }
            Some(PduRef::LogoutRequest(pdu)) => prop_assert_eq!(bhs.cmd_sn(), Some(pdu.cmd_sn.get())),
            Some(PduRef::DataOut(pdu)) => {
                prop_assert_eq!(bhs.cmd_sn(), None);
                prop_assert_eq!(bhs.exp_stat_sn(), Some(pdu.exp_stat_sn.get()));
            }
            Some(PduRef::SnackRequest(pdu)) => {
                prop_assert_eq!(bhs.cmd_sn(), None);
                prop_assert_eq!(bhs.exp_stat_sn(), Some(pdu.exp_stat_sn.get()));
            }
            Some(PduRef::DataIn(_)) => prop_assert_eq!((bhs.cmd_sn(), bhs.exp_stat_sn()), (None, None)),
            _ => {}
        }
    }
}
