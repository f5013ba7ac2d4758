//! The table of a disk's mode pages: defaults, and the bits that MODE SELECT may change.

use super::{CACHING, CONTROL, Config, INFORMATIONAL_EXCEPTIONS, Page, READ_WRITE_ERROR_RECOVERY};

/// A bit of a page: the byte's offset after the page's header, and the mask.
pub(super) type Bit = (usize, u8);

/// WCE, byte 2 bit 2 of the Caching page (SBC-3 §6.5.5).
pub(super) const WCE: Bit = (0, 0x04);
/// D_SENSE, byte 2 bit 2 of the Control page (SPC-4 §7.5.8).
pub(super) const D_SENSE: Bit = (0, 0x04);
/// SWP, byte 4 bit 3 of the Control page.
pub(super) const SWP: Bit = (2, 0x08);

/// LBPERE, byte 7 bit 7 of the Read-Write Error Recovery page (SBC-3 §6.5.8): the unit reports
/// thresholds.
pub(super) const LBPERE: Bit = (5, 0x80);
/// Offset of the threshold descriptors in the Logical Block Provisioning page, after the page's
/// header (SBC-3 §6.5.9).
pub(super) const THRESHOLDS: usize = 12;
/// ENABLED of a threshold descriptor. THRESHOLD TYPE 000b is a soft threshold.
pub(super) const ENABLED: u8 = 0x80;
/// THRESHOLD ARMING: armed decreasing.
const DECREASING: u8 = 0x01;
/// THRESHOLD ARMING: armed increasing.
const INCREASING: u8 = 0x02;

/// AWRE and ARRE: the underlying medium reallocates blocks by itself (SBC-3 §6.5.8).
const AUTOMATIC_REALLOCATION: u8 = 0xC0;
/// GLTSD: the unit does not save log parameters by itself.
const GLTSD: u8 = 0x02;
/// QUEUE ALGORITHM MODIFIER 1h: commands may be reordered without restriction. Commands that
/// overlap and are outstanding together complete in any order.
const UNRESTRICTED_REORDERING: u8 = 0x10;
/// DEXCPT: the unit reports no informational exceptions.
const DEXCPT: u8 = 0x08;

/// A page of `len` bytes after its header: `defaults` and `changeable` list the nonzero (byte,
/// bits).
fn page(code: u8, subpage: u8, len: usize, defaults: &[Bit], changeable: &[Bit]) -> Page {
    let fill = |bits: &[Bit]| {
        let mut values = vec![0; len];
        for &(byte, bits) in bits {
            values[byte] |= bits;
        }
        values
    };
    let default = fill(defaults);
    Page {
        code,
        subpage,
        current: default.clone(),
        saved: default.clone(),
        default,
        changeable: fill(changeable),
    }
}

/// The pages in ascending order of code and subpage.
pub(super) fn pages(config: &Config) -> Vec<Page> {
    let when = |on: bool, (byte, bits): Bit| (byte, if on { bits } else { 0 });
    let configured = config.thresholds != super::Thresholds::default();
    let mut pages = vec![
        page(
            READ_WRITE_ERROR_RECOVERY,
            0,
            10,
            &[(0, AUTOMATIC_REALLOCATION), when(config.thin && configured, LBPERE)],
            &[when(config.thin, LBPERE)],
        ),
        page(CACHING, 0, 18, &[when(config.write_cache, WCE)], &[when(config.write_cache_changeable, WCE)]),
        page(
            CONTROL,
            0,
            10,
            &[
                when(config.task_set_per_nexus, (0, 0x20)), // TST
                (0, GLTSD),
                (1, UNRESTRICTED_REORDERING),
                // BUSY TIMEOUT PERIOD: unlimited.
                (6, 0xFF),
                (7, 0xFF),
            ],
            &[D_SENSE, SWP],
        ),
        page(CONTROL, 0x01, 28, &[], &[]),
        page(INFORMATIONAL_EXCEPTIONS, 0, 10, &[(0, DEXCPT)], &[]),
    ];
    if config.thin {
        let thresholds =
            [(0x01, DECREASING, config.thresholds.available), (0x02, INCREASING, config.thresholds.used)];
        let (mut defaults, mut changeable) = (Vec::new(), Vec::new());
        for (n, (resource, arming, count)) in thresholds.into_iter().enumerate() {
            let at = THRESHOLDS + 8 * n;
            defaults.extend([(at, arming | if count.is_some() { ENABLED } else { 0 }), (at + 1, resource)]);
            defaults.extend(
                count.unwrap_or(0).to_be_bytes().into_iter().zip(at + 4..).map(|(byte, at)| (at, byte)),
            );
            changeable.push((at, ENABLED));
            changeable.extend((at + 4..at + 8).map(|at| (at, 0xFF)));
        }
        pages.push(page(INFORMATIONAL_EXCEPTIONS, 0x02, THRESHOLDS + 16, &defaults, &changeable));
    }
    pages
}

/// The pages of a device without blocks.
pub(super) fn object_pages() -> Vec<Page> {
    // D_SENSE, GLTSD, UNRESTRICTED_REORDERING; BUSY TIMEOUT PERIOD: unlimited.
    let control = [D_SENSE, (0, GLTSD), (1, UNRESTRICTED_REORDERING), (6, 0xFF), (7, 0xFF)];
    vec![
        page(CONTROL, 0, 10, &control, &[]),
        page(CONTROL, 0x01, 28, &[], &[]),
        page(INFORMATIONAL_EXCEPTIONS, 0, 10, &[(0, DEXCPT)], &[]),
    ]
}
