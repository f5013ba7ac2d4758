//! Parameter lists that initiators send: MODE SELECT in sequences with MODE SENSE and saved values;
//! UNMAP, SANITIZE OVERWRITE and FORMAT UNIT.

use crate::input::{Input, Seed};
use scsi::SenseKey;
use scsi::cdb::{FormatUnit, ModeSelect, ModeSense, PageControl};
use scsi::data::{format::FormatHeader, sanitize::Overwrite, unmap};
use scsi::mode::{Config, Medium, ModeData, Pages, select_list};

const MEDIUM: Medium = Medium { blocks: 2048, block_len: 512, write_protected: false };

/// A byte of settings; then lists as flags and a chunk, each one MODE SELECT, or saved values to
/// restore.
pub fn mode_select(data: &[u8]) {
    let mut input = Input::new(data);
    let bits = input.u8();
    let config = Config {
        write_cache: bits & 1 != 0,
        write_cache_changeable: bits & 2 != 0,
        thin: bits & 4 != 0,
        saving: bits & 8 != 0,
        task_set_per_nexus: bits & 16 != 0,
        thresholds: Default::default(),
    };
    let mut pages = Pages::new(&config);
    for _ in 0..16 {
        if input.is_empty() {
            break;
        }
        let flags = input.u8();
        let list = input.chunk();
        let before = pages.clone();
        if flags & 0x80 != 0 {
            pages.restore(list);
        } else {
            let parameter_len = (list.len() as u16).saturating_add(u16::from(flags >> 3 & 1));
            let request = ModeSelect {
                page_format: flags & 1 == 0,
                save: flags & 2 != 0,
                parameter_len,
                long: flags & 4 != 0,
            };
            match pages.select(&request, list, &MEDIUM) {
                Ok(done) => assert!(done.changed || current(&pages, flags) == current(&before, flags)),
                Err(sense) => {
                    assert_eq!(sense.key, SenseKey::IllegalRequest);
                    assert_eq!(pages, before, "a refused list changes nothing");
                }
            }
        }
        assert!(config.write_cache_changeable || pages.write_cache() == config.write_cache);
        let mut other = Pages::new(&config);
        assert!(other.restore(&pages.saved_bytes()), "what we save, we read");
        assert_eq!(other.saved_bytes(), pages.saved_bytes());
        if flags & 0x40 != 0 {
            pages.reset();
        }
    }
}

/// MODE SENSE's data for all pages' current values, as an initiator decodes it.
fn current(pages: &Pages, flags: u8) -> ModeData {
    let request = ModeSense {
        no_block_descriptor: flags & 0x20 != 0,
        long_lba_accepted: flags & 0x10 != 0,
        control: PageControl::Current,
        page: 0x3f,
        subpage: 0xff,
        allocation: 0xffff,
        long: true,
    };
    let bytes = pages.sense(&request, &MEDIUM).expect("all pages can be asked for");
    let data = ModeData::parse(&bytes, true).expect("what we say, we read");
    assert_eq!(data.write_cache(), Some(pages.write_cache()));
    assert_eq!(data.write_protected, pages.software_write_protect());
    data
}

/// WCE on and off in both forms, with and without block descriptors, saving, and malformed lists.
pub fn mode_select_seeds() -> Vec<(&'static str, Seed)> {
    let caching = |write_cache: bool| {
        let config = Config {
            write_cache,
            write_cache_changeable: true,
            thin: true,
            saving: true,
            task_set_per_nexus: false,
            thresholds: Default::default(),
        };
        current(&Pages::new(&config), 0).page(8, 0).expect("a Caching page").to_vec()
    };
    let lists = |bits: u8, lists: &[(u8, Vec<u8>)]| {
        lists.iter().fold(Seed::new().bytes([bits]), |seed, (flags, list)| seed.bytes([*flags]).chunk(list))
    };
    let (on, off) = (caching(true), caching(false));
    let described = [&[0, 0, 0, 8, 0, 0, 8, 0, 0, 0, 2, 0][..], &select_list(8, &on, false)[4..]].concat();
    let config = Config {
        write_cache: true,
        write_cache_changeable: true,
        thin: true,
        saving: true,
        task_set_per_nexus: true,
        thresholds: Default::default(),
    };
    let saved = Pages::new(&config).saved_bytes();
    let mut wrong = on.clone();
    wrong[3] ^= 0xff;
    vec![
        ("write-cache", lists(0x0f, &[(0, select_list(8, &on, false)), (4, select_list(8, &off, true))])),
        ("saved", lists(0x0f, &[(2, select_list(8, &off, false)), (0x44, select_list(8, &on, true))])),
        ("not-saving", lists(0x07, &[(2, select_list(8, &off, false))])),
        ("not-changeable", lists(0x09, &[(0, select_list(8, &off, false)), (0, select_list(8, &on, false))])),
        ("block-descriptor", lists(0x0f, &[(0, described)])),
        ("restore", lists(0x1f, &[(0x80, saved), (0x40, Vec::new())])),
        ("unchangeable-bits", lists(0x0f, &[(0, select_list(8, &wrong, false))])),
        ("no-such-page", lists(0x0f, &[(0, select_list(0x30, &[0; 10], false))])),
        ("cut-short", lists(0x0f, &[(8, select_list(8, &on, false)), (0, vec![0, 0, 0])])),
    ]
}

/// Byte 0 selects the command of the parameter list in the rest.
pub fn lists(data: &[u8]) {
    let mut input = Input::new(data);
    let bits = input.u8();
    let list = input.rest();
    match bits & 3 {
        0 | 1 => {
            let limits = unmap::Limits {
                capacity: if bits & 4 != 0 { u64::MAX } else { 1 << 20 },
                max_blocks: if bits & 8 != 0 { u32::MAX } else { 4096 },
                max_ranges: if bits & 16 != 0 { u32::MAX } else { 16 },
            };
            match unmap::parse(list, &limits) {
                Ok(ranges) => {
                    assert!(ranges.len() <= limits.max_ranges as usize && 16 * ranges.len() <= list.len());
                    let total: u64 = ranges.iter().map(|range| u64::from(range.blocks)).sum();
                    assert!(limits.max_blocks == u32::MAX || total <= u64::from(limits.max_blocks));
                    for range in &ranges {
                        let end = range.lba.checked_add(u64::from(range.blocks)).expect("no range wraps");
                        assert!(end <= limits.capacity);
                    }
                    assert_eq!(unmap::parse(&unmap::emit(&ranges), &limits), Ok(ranges));
                }
                Err(sense) => assert_eq!(sense.key, SenseKey::IllegalRequest),
            }
        }
        2 => match Overwrite::parse(list, 512) {
            Ok(overwrite) => {
                assert!((1..=31).contains(&overwrite.count));
                assert!((1..=512).contains(&overwrite.pattern.len()));
            }
            Err(sense) => assert_eq!(sense.key, SenseKey::IllegalRequest),
        },
        _ => {
            let command = FormatUnit {
                has_data: bits & 4 != 0,
                long_list: bits & 8 != 0,
                complete_list: bits & 16 != 0,
                defect_list_format: bits >> 5,
            };
            if let Err(sense) = FormatHeader::parse(&command, list) {
                assert_eq!(sense.key, SenseKey::IllegalRequest);
            }
        }
    }
}

/// Lists of each command: whole, at their limits, and cut short.
pub fn lists_seeds() -> Vec<(&'static str, Seed)> {
    let seed = |bits: u8| Seed::new().bytes([bits]);
    let range = |lba, blocks| unmap::UnmapRange { lba, blocks };
    vec![
        ("unmap", seed(0).bytes(unmap::emit(&[range(0, 8), range(1 << 19, 4088), range(1 << 20, 0)]))),
        ("unmap-many", seed(0x1c).bytes(unmap::emit(&[range(1, 1); 40]))),
        ("unmap-wraps", seed(0x1c).bytes(unmap::emit(&[range(u64::MAX, 2)]))),
        ("unmap-too-much", seed(0).bytes(unmap::emit(&[range(0, 4000), range(0, 97)]))),
        ("unmap-short", seed(0).bytes([0, 22, 0, 16, 0, 0, 0, 0, 1])),
        ("overwrite", seed(2).bytes([0x83, 0, 0, 2, 0xaa, 0x55])),
        ("overwrite-block", seed(2).bytes([1, 0, 2, 0]).bytes([0x5a; 512])),
        ("format", seed(7).bytes([0, 2, 0, 0])),
        ("format-long", seed(15).bytes([0, 0, 0, 0, 0, 0, 0, 0])),
        ("format-defects", seed(7).bytes([0, 0, 0, 8]).bytes([0; 8])),
    ]
}
