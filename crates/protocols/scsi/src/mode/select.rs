//! MODE SELECT: reads a parameter list, checks all of it and only then changes values.

use super::{Medium, Page, Pages};
use crate::Sense;
use crate::cdb::ModeSelect;

/// The effects of a MODE SELECT.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Selected {
    /// A current value changed: other I_T nexuses get MODE PARAMETERS CHANGED.
    pub changed: bool,
    /// Saved values were set: write them to stable storage before sending status.
    pub saved: bool,
}

impl Pages {
    /// Applies a parameter list; `list` is the received data-out.
    ///
    /// # Errors
    /// INVALID FIELD IN CDB for SP without support for saving and for PF of zero. PARAMETER LIST
    /// LENGTH ERROR for a list that is truncated anywhere. INVALID FIELD IN PARAMETER LIST, with a
    /// pointer, for a page that is unknown, has another length, or changes an unchangeable bit. On
    /// error no value changes.
    pub fn select(&mut self, request: &ModeSelect, list: &[u8], medium: &Medium) -> Result<Selected, Sense> {
        if request.save && !self.saving {
            return Err(Sense::invalid_field_in_cdb(1, Some(0)));
        }
        if request.parameter_len == 0 {
            return Ok(Selected::default());
        }
        if !request.page_format {
            return Err(Sense::invalid_field_in_cdb(1, Some(4)));
        }
        let short = Sense::parameter_list_length_error;
        let list = list.get(..usize::from(request.parameter_len)).ok_or_else(short)?;
        let mut at = skip_header(list, request.long, medium)?;
        // New values of the pages, in list order.
        let mut staged: Vec<(usize, &[u8])> = Vec::new();
        while at < list.len() {
            let (which, values) = self.check_page(list, at)?;
            staged.push((which, values));
            at += self.pages[which].header_len() + values.len();
        }
        let mut done = Selected { changed: false, saved: request.save };
        for (which, values) in staged {
            let page = &mut self.pages[which];
            done.changed |= page.current != values;
            page.current.copy_from_slice(values);
        }
        if request.save {
            // SP saves all savable pages, sent or not (SPC-4 §6.10).
            for page in &mut self.pages {
                page.saved.clone_from(&page.current);
            }
        }
        Ok(done)
    }

    /// The page whose header is at `at`, and its new values, if they are allowed.
    fn check_page<'a>(&self, list: &'a [u8], at: usize) -> Result<(usize, &'a [u8]), Sense> {
        let short = Sense::parameter_list_length_error;
        let pointer = |offset: usize, bit| Sense::invalid_field_in_parameter_list((at + offset) as u16, bit);
        let page = &list[at..];
        let code = page[0] & 0x3F;
        let with_subpage = page[0] & 0x40 != 0;
        let (subpage, len, header) = if with_subpage {
            let header = page.get(..4).ok_or_else(short)?;
            (header[1], usize::from(u16::from_be_bytes([header[2], header[3]])), 4)
        } else {
            (0, usize::from(*page.get(1).ok_or_else(short)?), 2)
        };
        // The list must use the short format for subpage 00h.
        let found = |p: &Page| p.code == code && p.subpage == subpage && (subpage != 0) == with_subpage;
        let Some(which) = self.pages.iter().position(found) else {
            return Err(pointer(0, Some(5)));
        };
        let known = &self.pages[which];
        if len != known.current.len() {
            return Err(pointer(header - if with_subpage { 2 } else { 1 }, None));
        }
        let values = page.get(header..header + len).ok_or_else(short)?;
        for (i, (new, old)) in values.iter().zip(&known.current).enumerate() {
            let wrong = (new ^ old) & !known.changeable[i];
            if wrong != 0 {
                return Err(pointer(header + i, Some(7 - wrong.leading_zeros() as u8)));
            }
        }
        Ok((which, values))
    }
}

/// Checks the header and the block descriptors and returns the offset of the pages.
fn skip_header(list: &[u8], long: bool, medium: &Medium) -> Result<usize, Sense> {
    let short = Sense::parameter_list_length_error;
    let (at, len, long_lba) = if long {
        let header: &[u8; 8] = list.first_chunk().ok_or_else(short)?;
        (8, usize::from(u16::from_be_bytes([header[6], header[7]])), header[4] & 1 != 0)
    } else {
        let header: &[u8; 4] = list.first_chunk().ok_or_else(short)?;
        (4, usize::from(header[3]), false)
    };
    // MODE DATA LENGTH, MEDIUM TYPE and the device specific parameter are reserved here. Many
    // initiators echo them, so they are ignored.
    let descriptor = list.get(at..at + len).ok_or_else(short)?;
    let (blocks, blocks_any, block_len) = match (descriptor, long_lba) {
        ([], _) => return Ok(at),
        (&[a, b, c, d, _, e, f, g], false) => {
            let blocks = u32::from_be_bytes([a, b, c, d]);
            (u64::from(blocks), u64::from(u32::MAX), u32::from_be_bytes([0, e, f, g]))
        }
        (&[a, b, c, d, e, f, g, h, _, _, _, _, i, j, k, l], true) => {
            (u64::from_be_bytes([a, b, c, d, e, f, g, h]), u64::MAX, u32::from_be_bytes([i, j, k, l]))
        }
        // More than one descriptor, or a part of one: BLOCK DESCRIPTOR LENGTH is wrong.
        _ => return Err(Sense::invalid_field_in_parameter_list(if long { 6 } else { 3 }, None)),
    };
    // Neither capacity nor block length can change; 0 and all ones keep the capacity (SBC-3
    // §6.5.2).
    if blocks != 0 && blocks != blocks_any && blocks != medium.blocks {
        return Err(Sense::invalid_field_in_parameter_list(at as u16, None));
    }
    if block_len != medium.block_len {
        return Err(Sense::invalid_field_in_parameter_list(
            (at + if long_lba { 12 } else { 5 }) as u16,
            None,
        ));
    }
    Ok(at + len)
}
