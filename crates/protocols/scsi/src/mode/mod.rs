//! Mode parameters (SPC-4 §7.5, SBC-3 §6.5): the pages of a disk as a table of current, changeable,
//! default and saved values.
//!
//! [`Pages`] answers MODE SENSE and applies MODE SELECT. Its owner stores saved values
//! ([`Pages::saved_bytes`]) and reports changes to other I_T nexuses. It does not interpret the
//! bits.

mod read;
mod select;
mod table;

#[cfg(test)]
mod tests;

pub use read::{ModeData, select_list};
pub use select::Selected;

use crate::Sense;
use crate::cdb::{ModeSense, PageControl};

/// PAGE CODE of the Read-Write Error Recovery page.
pub const READ_WRITE_ERROR_RECOVERY: u8 = 0x01;
/// PAGE CODE of the Caching page.
pub const CACHING: u8 = 0x08;
/// PAGE CODE of the Control page; subpage 01h is Control Extension.
pub const CONTROL: u8 = 0x0A;
/// PAGE CODE of the Informational Exceptions Control page; subpage 02h is Logical Block
/// Provisioning.
pub const INFORMATIONAL_EXCEPTIONS: u8 = 0x1C;
/// PAGE CODE for all pages.
pub const ALL_PAGES: u8 = 0x3F;
/// SUBPAGE CODE for all subpages.
pub const ALL_SUBPAGES: u8 = 0xFF;

/// The initial values of a unit's pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Config {
    /// WCE: writes may stay in a volatile cache.
    pub write_cache: bool,
    /// Whether MODE SELECT may change WCE.
    pub write_cache_changeable: bool,
    /// Whether the unit is thin: then it has the Logical Block Provisioning page.
    pub thin: bool,
    /// Whether values can be saved (PS, SP).
    pub saving: bool,
    /// TST is 001b: one task set per I_T nexus, instead of one for all.
    pub task_set_per_nexus: bool,
    /// A thin unit's initial thresholds; `None` turns one off.
    pub thresholds: Thresholds,
}

/// The soft thresholds of a thin unit, in threshold sets (SBC-3 §4.7.3.7).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Thresholds {
    /// Armed decreasing: reached when the available sets drop to this number or less.
    pub available: Option<u32>,
    /// Armed increasing: reached when the used sets rise to this number or more.
    pub used: Option<u32>,
}

/// The unit's values for header and block descriptor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Medium {
    /// Blocks of the medium.
    pub blocks: u64,
    /// Block length in bytes; 0 for a medium without blocks, which has no block descriptor.
    pub block_len: u32,
    /// The medium is read-only, whatever SWP is.
    pub write_protected: bool,
}

/// One page or subpage. Values are without the page's header.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Page {
    code: u8,
    subpage: u8,
    current: Vec<u8>,
    changeable: Vec<u8>,
    default: Vec<u8>,
    saved: Vec<u8>,
}

impl Page {
    /// Length of the page's own header in bytes.
    const fn header_len(&self) -> usize {
        if self.subpage == 0 { 2 } else { 4 }
    }

    fn values(&self, control: PageControl) -> &[u8] {
        match control {
            PageControl::Current => &self.current,
            PageControl::Changeable => &self.changeable,
            PageControl::Default => &self.default,
            PageControl::Saved => &self.saved,
        }
    }

    fn emit(&self, control: PageControl, saving: bool, out: &mut Vec<u8>) {
        let values = self.values(control);
        let first = u8::from(saving) << 7 | self.code; // PS
        if self.subpage == 0 {
            out.extend([first, values.len() as u8]);
        } else {
            out.extend([first | 0x40, self.subpage]); // SPF
            out.extend((values.len() as u16).to_be_bytes());
        }
        out.extend(values);
    }
}

/// A unit's mode pages.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pages {
    pages: Vec<Page>,
    saving: bool,
}

impl Pages {
    /// The pages of a disk, all at their defaults.
    pub fn new(config: &Config) -> Self {
        Self { pages: table::pages(config), saving: config.saving }
    }

    /// The pages of an object-based storage device. None can be changed: sense data is always in
    /// descriptor format.
    pub fn objects() -> Self {
        Self { pages: table::object_pages(), saving: false }
    }

    /// WCE of the Caching page.
    pub fn write_cache(&self) -> bool {
        self.bit(CACHING, table::WCE)
    }

    /// D_SENSE of the Control page: sense data in descriptor format.
    pub fn descriptor_sense(&self) -> bool {
        self.bit(CONTROL, table::D_SENSE)
    }

    /// SWP of the Control page: the unit rejects writes.
    pub fn software_write_protect(&self) -> bool {
        self.bit(CONTROL, table::SWP)
    }

    /// The enabled thresholds. None while LBPERE of the Read-Write Error Recovery page is zero,
    /// which disables their reports.
    pub fn thresholds(&self) -> Thresholds {
        let page = self.pages.iter().find(|p| (p.code, p.subpage) == (INFORMATIONAL_EXCEPTIONS, 0x02));
        let reported = self.bit(READ_WRITE_ERROR_RECOVERY, table::LBPERE);
        let Some(page) = page.filter(|_| reported) else { return Thresholds::default() };
        let enabled = |at: usize| {
            let d = page.current.get(at..at + 8)?;
            (d[0] & table::ENABLED != 0).then(|| u32::from_be_bytes([d[4], d[5], d[6], d[7]]))
        };
        Thresholds { available: enabled(table::THRESHOLDS), used: enabled(table::THRESHOLDS + 8) }
    }

    fn bit(&self, code: u8, (byte, mask): (usize, u8)) -> bool {
        let page = self.pages.iter().find(|p| p.code == code && p.subpage == 0);
        page.and_then(|p| p.current.get(byte)).is_some_and(|b| b & mask != 0)
    }

    /// MODE SENSE (6, 10) data, whole.
    ///
    /// # Errors
    /// INVALID FIELD IN CDB for an unknown page or subpage; SAVING PARAMETERS NOT SUPPORTED for
    /// saved values.
    pub fn sense(&self, request: &ModeSense, medium: &Medium) -> Result<Vec<u8>, Sense> {
        if request.control == PageControl::Saved && !self.saving {
            return Err(Sense::saving_parameters_not_supported());
        }
        let page_matches = |p: &&Page| request.page == ALL_PAGES || p.code == request.page;
        let subpage_matches = |p: &&Page| request.subpage == ALL_SUBPAGES || p.subpage == request.subpage;
        if !self.pages.iter().any(|p| page_matches(&p)) {
            return Err(Sense::invalid_field_in_cdb(2, Some(5)));
        }
        let mut pages = self.pages.iter().filter(page_matches).filter(subpage_matches).peekable();
        // A request for all pages has subpage 00h or FFh; other subpages are reserved.
        if pages.peek().is_none()
            || (request.page == ALL_PAGES && !matches!(request.subpage, 0 | ALL_SUBPAGES))
        {
            return Err(Sense::invalid_field_in_cdb(3, None));
        }
        let descriptor = self.block_descriptor(request, medium);
        // WP, and DPOFUA: DPO and FUA are supported. Both exist only for devices with blocks.
        let write_protected = medium.write_protected || self.software_write_protect();
        let device_specific = if medium.block_len == 0 { 0 } else { u8::from(write_protected) << 7 | 0x10 };
        let mut out = if request.long {
            let long_lba = u8::from(descriptor.len() == 16);
            vec![0, 0, 0, device_specific, long_lba, 0, 0, descriptor.len() as u8]
        } else {
            vec![0, 0, device_specific, descriptor.len() as u8]
        };
        out.extend(descriptor);
        for page in pages {
            page.emit(request.control, self.saving, &mut out);
        }
        // MODE DATA LENGTH does not count itself.
        if request.long {
            let len = (out.len() - 2) as u16;
            out[..2].copy_from_slice(&len.to_be_bytes());
        } else {
            out[0] = u8::try_from(out.len() - 1).unwrap_or(u8::MAX);
        }
        Ok(out)
    }

    /// The block descriptor: short (8 bytes), long LBA (16 bytes) or none.
    fn block_descriptor(&self, request: &ModeSense, medium: &Medium) -> Vec<u8> {
        if request.no_block_descriptor || medium.block_len == 0 {
            return Vec::new();
        }
        if request.long_lba_accepted {
            return [&medium.blocks.to_be_bytes()[..], &[0; 4], &medium.block_len.to_be_bytes()].concat();
        }
        // FFFFFFFFh if the medium has more blocks (SBC-3 §6.5.2.2).
        let blocks = u32::try_from(medium.blocks).unwrap_or(u32::MAX);
        let [_, len @ ..] = medium.block_len.to_be_bytes();
        [&blocks.to_be_bytes()[..], &[0], &len].concat()
    }

    /// Handles a reset of the unit: current values become the saved ones, or the defaults if saving
    /// is not supported.
    pub fn reset(&mut self) {
        for page in &mut self.pages {
            page.current.clone_from(if self.saving { &page.saved } else { &page.default });
        }
    }

    /// The saved values for stable storage: for each page its code, subpage, length and values.
    pub fn saved_bytes(&self) -> Vec<u8> {
        let mut out = Vec::new();
        for page in &self.pages {
            out.extend([page.code, page.subpage]);
            out.extend((page.saved.len() as u16).to_be_bytes());
            out.extend(&page.saved);
        }
        out
    }

    /// Restores saved values at start-up, as saved and current values. Bits that are not changeable
    /// keep their default. Skips pages that are unknown or now have another length. Returns whether
    /// `bytes` was well formed.
    pub fn restore(&mut self, mut bytes: &[u8]) -> bool {
        while let Some((&[code, subpage, high, low], rest)) = bytes.split_first_chunk::<4>() {
            let Some((values, rest)) = rest.split_at_checked(usize::from(u16::from_be_bytes([high, low])))
            else {
                return false;
            };
            bytes = rest;
            let same = |p: &&mut Page| (p.code, p.subpage, p.default.len()) == (code, subpage, values.len());
            if let Some(page) = self.pages.iter_mut().find(same) {
                for (i, value) in values.iter().enumerate() {
                    let mask = page.changeable[i];
                    page.saved[i] = page.default[i] & !mask | value & mask;
                }
                page.current.clone_from(&page.saved);
            }
        }
        bytes.is_empty()
    }
}
