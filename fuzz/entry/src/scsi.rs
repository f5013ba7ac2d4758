//! Input of SCSI devices and initiators: sense data, and the parameter lists of commands.

use crate::input::Seed;
use scsi::copy::CopyList;
use scsi::{AdditionalSense, Sense, SenseKey};

/// Sense data of either format. The descriptor format keeps all that was parsed; the fixed format
/// may lose some, but only once.
pub fn sense(data: &[u8]) {
    let Some(sense) = Sense::parse(data) else { return };
    let _ = format!("{sense:?}");
    for descriptor in [false, true] {
        let bytes = sense.emit(descriptor);
        let again = Sense::parse(&bytes).expect("sense data that we emit parses");
        assert_eq!(again.key, sense.key);
        assert_eq!(Sense::parse(&again.emit(descriptor)).as_ref(), Some(&again), "emitting settles at once");
    }
    assert_eq!(Sense::parse(&sense.emit(true)).as_ref(), Some(&sense), "the descriptor format loses nothing");
}

/// Both formats with all they can carry, and cut short.
pub fn sense_seeds() -> Vec<(&'static str, Seed)> {
    let plain = Sense::new(SenseKey::MediumError, AdditionalSense::new(0x11, 0));
    let field = Sense::invalid_field_in_parameter_list(12, Some(3));
    let mut fixed = [0u8; 18];
    fixed[..8].copy_from_slice(&[0xf0, 0, 0xe5, 1, 2, 3, 4, 10]);
    fixed[12..].copy_from_slice(&[0x24, 0, 0, 0xcf, 0, 2]);
    let descriptors = [
        0x72, 0x05, 0x24, 0x00, 0, 0, 0, 28, // header
        0x00, 0x0a, 0x80, 0, 0, 0, 0, 1, 0, 0, 0, 2, // information
        0x02, 0x06, 0, 0, 0xcf, 0, 2, 0, // sense key specific
        0x04, 0x02, 0, 0xe0, // stream
        0x05, 0x02, 0, 0x20, // block
    ];
    // More descriptors than sense data may have, and one that is shorter than its kind.
    let mut many = vec![0x72, 0x05, 0x24, 0x00, 0, 0, 0, 255];
    (0..51).for_each(|n| many.extend([0x80 + n, 3, 1, 2, 3]));
    let mut short = vec![0x72, 0x05, 0x24, 0x00, 0, 0, 0, 244, 0x02, 5, 0, 0, 0xcf, 0, 2];
    short.extend([0x80, 235]);
    short.resize(252, 0);
    vec![
        ("descriptors-beyond-252-bytes", Seed::new().bytes(many)),
        ("key-specific-of-5-bytes", Seed::new().bytes(short)),
        ("fixed", Seed::new().bytes(plain.emit(false))),
        ("descriptor", Seed::new().bytes(field.emit(true))),
        ("fixed-full", Seed::new().bytes(fixed)),
        ("descriptor-full", Seed::new().bytes(descriptors)),
        ("fixed-short", Seed::new().bytes(&fixed[..3])),
        ("descriptor-short", Seed::new().bytes(&descriptors[..13])),
        ("deferred", Seed::new().bytes([0x71, 0, 3, 0, 0, 0, 0, 0])),
    ]
}

/// The parameter list of EXTENDED COPY.
pub fn copy_list(data: &[u8]) {
    match CopyList::parse(data) {
        Ok(list) => {
            assert!(
                list.cscds.len() <= scsi::copy::MAX_CSCDS && list.segments.len() <= scsi::copy::MAX_SEGMENTS
            );
            assert!(16 + 32 * list.cscds.len() <= data.len());
        }
        Err(error) => {
            assert!(!error.to_string().is_empty());
            let _ = Sense::from(error);
        }
    }
}

/// Lists of both segment types, and with lengths that do not fit.
pub fn copy_list_seeds() -> Vec<(&'static str, Seed)> {
    let cscd = |n: u8| {
        let mut bytes = [0u8; 32];
        bytes[0] = 0xe4;
        bytes[4..8].copy_from_slice(&[1, 3, 0, 16]);
        bytes[8..24].copy_from_slice(&[n; 16]);
        bytes[30] = 2;
        bytes
    };
    let blocks = [0x02, 2, 0, 0x18, 0, 0, 0, 1, 0, 0, 0, 8, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 9];
    let bytes = [
        0x0a, 1, 0, 0x1c, 0, 0, 0, 1, 0, 0, 2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 9, 0, 1, 0, 2,
    ];
    let header = |flags: u8, cscds: u16, segments: u32| {
        let head = Seed::new().bytes([7, flags, (cscds >> 8) as u8, cscds as u8, 0, 0, 0, 0]);
        head.bytes(segments.to_be_bytes()).bytes([0; 4])
    };
    vec![
        ("blocks", header(0, 64, 28).bytes(cscd(1)).bytes(cscd(2)).bytes(blocks)),
        ("bytes", header(0x10, 64, 60).bytes(cscd(1)).bytes(cscd(2)).bytes(blocks).bytes(bytes)),
        ("no-segments", header(0, 32, 0).bytes(cscd(1))),
        ("short", header(0, 64, 28).bytes(cscd(1))),
        ("huge-lengths", header(0, 0xffff, 0xffff_ffff).bytes(cscd(1))),
        ("wrong-type", header(0, 32, 28).bytes([0xff; 32]).bytes(blocks)),
    ]
}

/// The parameter list of EXTENDED COPY (LID4).
pub fn copy_list_lid4(data: &[u8]) {
    match CopyList::parse_lid4(data) {
        Ok(list) => assert!(
            list.cscds.len() <= scsi::copy::MAX_CSCDS && list.segments.len() <= scsi::copy::MAX_SEGMENTS
        ),
        Err(error) => {
            assert!(!error.to_string().is_empty());
            let _ = Sense::from(error);
        }
    }
}

/// As [`copy_list_seeds`], under LID4's longer header.
pub fn copy_list_lid4_seeds() -> Vec<(&'static str, Seed)> {
    let mut cscd = [0u8; 32];
    cscd[0] = 0xe4;
    cscd[4..8].copy_from_slice(&[1, 3, 0, 16]);
    cscd[8..24].copy_from_slice(&[7; 16]);
    cscd[30] = 2;
    let blocks = [0x02, 2, 0, 0x18, 0, 0, 0, 0, 0, 0, 0, 8, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 9];
    let header = |immediate: u8, cscds: u16, segments: u16| {
        let mut head = [0u8; 48];
        (head[0], head[3], head[15], head[16], head[23]) = (1, 0x20, immediate, 0xff, 9);
        head[42..44].copy_from_slice(&cscds.to_be_bytes());
        head[44..46].copy_from_slice(&segments.to_be_bytes());
        Seed::new().bytes(head)
    };
    vec![
        ("whole", header(0, 32, 28).bytes(cscd).bytes(blocks)),
        ("immediate", header(1, 32, 28).bytes(cscd).bytes(blocks)),
        ("huge-lengths", header(0, 0xffff, 0xffff).bytes(cscd)),
        ("short", header(0, 64, 28).bytes(cscd)),
    ]
}

/// The parameter lists of POPULATE TOKEN and WRITE USING TOKEN, and the token in the latter; the
/// first byte gives the block size.
pub fn rod_tokens(data: &[u8]) {
    use scsi::copy::rod::{BlockRange, MAX_BYTES, MAX_RANGES, PopulateList, WriteList, present};
    let Some((first, list)) = data.split_first() else { return };
    let block_len = [512, 4096][usize::from(first & 1)];
    let bounded = |ranges: &[BlockRange]| {
        assert!(ranges.len() <= MAX_RANGES);
        let bytes: u64 = ranges.iter().map(|range| u64::from(range.blocks) * u64::from(block_len)).sum();
        assert!(bytes <= MAX_BYTES);
    };
    if let Ok(list) = PopulateList::parse(list, block_len) {
        bounded(&list.ranges);
    }
    if let Ok(list) = WriteList::parse(list, block_len) {
        bounded(&list.ranges);
        let _ = present(&list.token);
    }
}

/// Both lists, with a token of each kind, and cut short.
pub fn rod_tokens_seeds() -> Vec<(&'static str, Seed)> {
    use scsi::copy::rod::{TOKEN_LEN, TYPE_CHANGE_VULNERABLE, TokenFields, zero_token};
    let range = |lba: u64, blocks: u32| [&lba.to_be_bytes()[..], &blocks.to_be_bytes(), &[0; 4]].concat();
    let populate = |ranges: &[Vec<u8>]| {
        let len = 16 * ranges.len() as u16;
        let mut head = [0u8; 16];
        head[..2].copy_from_slice(&(len + 14).to_be_bytes());
        head[14..].copy_from_slice(&len.to_be_bytes());
        Seed::new().bytes([0]).bytes(head).bytes(ranges.concat())
    };
    let write = |token: &[u8; TOKEN_LEN], ranges: &[Vec<u8>]| {
        let len = 16 * ranges.len() as u16;
        let mut head = vec![0u8; 536];
        head[..2].copy_from_slice(&(len + 534).to_be_bytes());
        head[16..16 + TOKEN_LEN].copy_from_slice(token);
        head[534..].copy_from_slice(&len.to_be_bytes());
        Seed::new().bytes([1]).bytes(head).bytes(ranges.concat())
    };
    let made = TokenFields {
        rod_type: TYPE_CHANGE_VULNERABLE,
        id: [1; 8],
        creator: &[0x60; 16],
        bytes: 1 << 20,
        block_len: 512,
        physical_exponent: 3,
        target: "iqn.2026-01.org.example:t",
        secret: [9; 32],
    };
    vec![
        ("populate", populate(&[range(0, 8), range(64, 8)])),
        ("populate-overlapping", populate(&[range(0, 8), range(4, 8)])),
        ("populate-vast", populate(&[range(u64::MAX, u32::MAX)])),
        ("write", write(&made.emit(), &[range(0, 8), range(64, 8)])),
        ("write-zeros", write(&zero_token(), &[range(0, 8)])),
        ("write-no-token", write(&[0xff; TOKEN_LEN], &[range(0, 8)])),
    ]
}

/// Any bytes as a CDB.
pub fn cdb(data: &[u8]) {
    let cdb = &data[..data.len().min(260)];
    let _ = scsi::reservation::access(cdb);
    match scsi::cdb::decode(cdb) {
        Ok(command) => {
            assert!(!format!("{command:?}").is_empty());
            // iSCSI's field is padded with zeros.
            if cdb.len() < 16 {
                let mut padded = [0; 16];
                padded[..cdb.len()].copy_from_slice(cdb);
                assert_eq!(scsi::cdb::decode(&padded), Ok(command));
            }
        }
        Err(sense) => {
            assert_eq!(sense.key, SenseKey::IllegalRequest);
            let _ = (sense.emit(false), sense.emit(true));
        }
    }
}

/// One CDB of every command that an initiator builds, and each entry of the command table with
/// nothing set.
pub fn cdb_seeds() -> Vec<(&'static str, Seed)> {
    use scsi::cdb::build::{self, Flags};
    let seed = |cdb: build::CdbBytes| Seed::new().bytes(cdb);
    vec![
        ("inquiry-vpd", seed(build::inquiry(Some(0xb0), 255))),
        ("report-luns", seed(build::report_luns(0, 4096))),
        ("read-capacity-16", seed(build::read_capacity16(32))),
        ("get-lba-status", seed(build::get_lba_status(1 << 40, 1024))),
        ("read-10", seed(build::read10(7, 8, Flags::FUA))),
        ("read-16", seed(build::read16(7, 8, Flags::default()))),
        ("write-10", seed(build::write10(7, 8, Flags::FUA))),
        ("write-12", seed(build::write12(7, 8, Flags::default()))),
        ("write-16", seed(build::write16(u64::MAX, u32::MAX, Flags::default()))),
        ("verify-16", seed(build::verify16(1, 2, 3))),
        ("compare-and-write", seed(build::compare_and_write(1, 2, Flags::default()))),
        ("write-same-16", seed(build::write_same16(1, 2, true, true))),
        ("unmap", seed(build::unmap(24))),
        ("synchronize-cache-16", seed(build::synchronize_cache16(1, 2))),
        ("mode-select-10", seed(build::mode_select10(true, 28))),
        ("start-stop-unit", seed(build::start_stop_unit(true, true))),
        ("report-supported-opcodes", seed(build::report_supported_opcodes(true, 4096))),
        ("log-sense", seed(build::log_sense(0x2f, 0, 512))),
        ("persistent-reserve-in", seed(build::persistent_reserve_in(3, 4096))),
        ("persistent-reserve-out", seed(build::persistent_reserve_out(1, 5, 24))),
        ("variable-length", Seed::new().bytes([0x7f, 0, 0, 0, 0, 0, 0, 24, 0, 9]).bytes([0; 22])),
        ("sanitize", Seed::new().bytes([0x48, 0x03, 0, 0, 0, 0, 0, 0, 0, 0])),
        ("extended-copy", Seed::new().bytes([0x83, 0]).bytes([0; 12])),
        ("receive-copy-results", Seed::new().bytes([0x84, 3]).bytes([0; 12])),
    ]
}
