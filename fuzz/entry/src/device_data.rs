//! Answers of devices: INQUIRY and its vital product data, capacity, LUNs, mode, log and other
//! parameter data, as the initiator decodes them. Data that can be encoded again decodes to the
//! same.

use crate::input::{Input, Seed};
use scsi::data::{capacity, inquiry, lba_status, log, luns, opcodes, target_port_groups, tmfs, vpd};
use scsi::mode::ModeData;

const STANDARD: u8 = 0;
const VPD: u8 = 1;
const CAPACITY: u8 = 2;
const LUNS: u8 = 3;
const LBA_STATUS: u8 = 4;
const LOG: u8 = 5;
const OPCODES: u8 = 6;
const GROUPS: u8 = 7;
const TMFS: u8 = 8;
const MODE_6: u8 = 9;
const MODE_10: u8 = 10;
const KINDS: u8 = 11;

/// Byte 0 selects the type of data of the rest.
pub fn run(data: &[u8]) {
    let mut input = Input::new(data);
    let kind = input.u8() % KINDS;
    let bytes = input.rest();
    match kind {
        STANDARD => {
            if let Some(data) = inquiry::StandardInquiry::parse(bytes) {
                let again = inquiry::StandardInquiry::parse(&data.emit()).expect("what we say, we read");
                assert_eq!(again.emit(), data.emit());
                assert!(!format!("{data:?}").contains(char::is_control));
            }
        }
        VPD => vital(bytes),
        CAPACITY => {
            if let Some(data) = capacity::ReadCapacity10::parse(bytes) {
                assert_eq!(data.emit(), bytes[..8]);
            }
            if let Some(data) = capacity::ReadCapacity16::parse(bytes) {
                assert_eq!(capacity::ReadCapacity16::parse(&data.emit()), Some(data));
            }
        }
        LUNS => {
            if let Some((list, _)) = luns::parse(bytes) {
                assert!(8 * list.len() <= bytes.len());
                for number in list.iter().filter_map(luns::decode) {
                    assert_eq!(luns::decode(&luns::encode(number)), Some(number));
                }
                assert_eq!(luns::parse(&luns::emit(&list)), Some((list.clone(), list.len() as u32)));
            }
        }
        LBA_STATUS => {
            if let Some(ranges) = lba_status::parse(bytes) {
                assert_eq!(lba_status::parse(&lba_status::emit(&ranges)), Some(ranges));
            }
        }
        LOG => {
            if let Some((page, _, body)) = log::parse(bytes) {
                assert!(page < 0x40 && log::parse_parameters(body).len() <= body.len() / 4);
            }
        }
        OPCODES => {
            if let Some(commands) = opcodes::parse_all(bytes) {
                assert!(commands.len() <= bytes.len() / 8);
            }
        }
        GROUPS => {
            if let Some(groups) = target_port_groups::parse(bytes) {
                assert_eq!(target_port_groups::parse(&target_port_groups::emit(&groups, None)), Some(groups));
            }
        }
        TMFS => {
            if let Some(data) = tmfs::SupportedTmfs::parse(bytes) {
                assert_eq!(tmfs::SupportedTmfs::parse(&data.emit(true)), Some(data));
            }
        }
        mode => {
            if let Some(data) = ModeData::parse(bytes, mode == MODE_10) {
                assert!(data.pages.len() <= bytes.len() / 2);
                let _ = data.write_cache();
            }
        }
    }
}

fn vital(bytes: &[u8]) {
    let Some((page, body)) = vpd::parse(bytes) else { return };
    assert!(body.len() <= bytes.len() - 4);
    match page {
        vpd::IDENTIFICATION => {
            let list = vpd::Identification::parse(body);
            let again = vpd::Identification::parse(&list.body());
            assert_eq!(again.body(), list.body(), "what is cut once stays so");
        }
        vpd::BLOCK_LIMITS => {
            if let Some(limits) = vpd::BlockLimits::parse(body) {
                assert_eq!(vpd::BlockLimits::parse(&limits.body()), Some(limits));
            }
        }
        vpd::BLOCK_CHARACTERISTICS => {
            if let Some(data) = vpd::BlockCharacteristics::parse(body) {
                assert_eq!(vpd::BlockCharacteristics::parse(&data.body()), Some(data));
            }
        }
        vpd::LOGICAL_BLOCK_PROVISIONING => {
            if let Some(data) = vpd::LogicalBlockProvisioning::parse(body) {
                assert_eq!(vpd::LogicalBlockProvisioning::parse(&data.body()), Some(data));
            }
        }
        vpd::EXTENDED_INQUIRY => {
            if let Some(data) = vpd::ExtendedInquiry::parse(body) {
                assert_eq!(vpd::ExtendedInquiry::parse(&data.body()), Some(data));
            }
        }
        _ => assert!(!vpd::parse_unit_serial(body).contains(char::is_control)),
    }
}

/// Answers of a disk, whole and cut short.
pub fn seeds() -> Vec<(&'static str, Seed)> {
    let page = |code: u8, body: &[u8]| Seed::new().bytes([VPD]).bytes(vpd::emit(0, code, body));
    let names = vpd::Identification(vec![
        vpd::Designator::unit(vpd::Identifier::naa_local(0x1234_5678)),
        vpd::Designator::unit(vpd::Identifier::t10_vendor("STAG", "disk 1")),
        vpd::Designator::iscsi_port(vpd::Identifier::RelativeTargetPort(1)),
        vpd::Designator::iscsi_port(vpd::Identifier::TargetPortGroup(2)),
        vpd::Designator::iscsi_device(vpd::Identifier::ScsiName("iqn.2026-01.org.stag:disk".to_owned())),
        vpd::Designator::unit(vpd::Identifier::Eui64(vec![1; 12])),
    ]);
    let standard = inquiry::StandardInquiry::disk("STAG", "disk", "0001", true).emit();
    let ranges = [
        lba_status::LbaStatus { lba: 0, blocks: 8, provisioning: lba_status::Provisioning::Mapped },
        lba_status::LbaStatus { lba: 8, blocks: 1, provisioning: lba_status::Provisioning::Deallocated },
    ];
    let groups = [target_port_groups::TargetPortGroup::optimized(1, vec![1, 2])];
    let log = [0x0c, 0, 0, 16, 0, 1, 3, 8, 0, 0, 0, 9, 1, 0, 0, 0, 0, 2, 3, 0];
    let opcodes = [
        0, 0, 0, 28, 0x28, 0, 0, 0, 0, 2, 0, 10, 0, 10, 0, 0, 0, 0, 0, 1, 0, 0, 0, 30, 0x9e, 0, 0, 16, 0, 1,
        0, 16,
    ];
    let caching = [0x08, 0x12, 4, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
    let extension = [0x4a, 1, 0, 4, 0, 0, 0, 0];
    let seed = |kind: u8| Seed::new().bytes([kind]);
    vec![
        ("standard", seed(STANDARD).bytes(&standard)),
        ("standard-36", seed(STANDARD).bytes(&standard[..36])),
        ("serial", page(vpd::UNIT_SERIAL, b" 0123456789abcdef ")),
        ("identification", page(vpd::IDENTIFICATION, &names.body())),
        ("block-limits", page(vpd::BLOCK_LIMITS, &[1; 60])),
        ("block-limits-short", page(vpd::BLOCK_LIMITS, &[1; 12])),
        ("characteristics", page(vpd::BLOCK_CHARACTERISTICS, &[0, 1, 0, 0x35, 2, 0, 0, 0])),
        ("provisioning", page(vpd::LOGICAL_BLOCK_PROVISIONING, &[0, 0xe4, 2, 0])),
        ("extended-inquiry", page(vpd::EXTENDED_INQUIRY, &[7; 60])),
        (
            "capacity",
            seed(CAPACITY).bytes([0, 0, 0, 1, 0, 0, 0, 0xff, 0, 0, 2, 0, 0, 3, 0xc0, 0]).bytes([0; 16]),
        ),
        (
            "luns",
            seed(LUNS).bytes(luns::emit(&[luns::encode(0), luns::encode(300), [0xc1, 1, 0, 0, 0, 0, 0, 0]])),
        ),
        ("lba-status", seed(LBA_STATUS).bytes(lba_status::emit(&ranges))),
        ("log", seed(LOG).bytes(log)),
        ("opcodes", seed(OPCODES).bytes(opcodes)),
        ("groups", seed(GROUPS).bytes(target_port_groups::emit(&groups, None))),
        ("tmfs", seed(TMFS).bytes(tmfs::SupportedTmfs::ISCSI.emit(true))),
        ("mode-6", seed(MODE_6).bytes([31, 0, 0x90, 8, 0, 0, 1, 0, 0, 0, 2, 0]).bytes(caching)),
        ("mode-10", seed(MODE_10).bytes([0, 34, 0, 0, 0, 0, 0, 0]).bytes(caching).bytes(extension)),
    ]
}
