//! Vital product data (SPC-4 §7.8): pages 00h, 80h and 87h here, the others in files of their own.

mod block;
mod extended;
mod identification;

pub use block::{BlockCharacteristics, BlockLimits, LogicalBlockProvisioning, ProvisioningType};
pub use extended::ExtendedInquiry;
pub use identification::{Association, Designator, Identification, Identifier};

use super::Fields;

/// Supported VPD Pages.
pub const SUPPORTED_PAGES: u8 = 0x00;
/// Unit Serial Number.
pub const UNIT_SERIAL: u8 = 0x80;
/// Device Identification.
pub const IDENTIFICATION: u8 = 0x83;
/// Extended INQUIRY Data.
pub const EXTENDED_INQUIRY: u8 = 0x86;
/// Mode Page Policy.
pub const MODE_PAGE_POLICY: u8 = 0x87;
/// Block Limits.
pub const BLOCK_LIMITS: u8 = 0xB0;
/// Block Device Characteristics.
pub const BLOCK_CHARACTERISTICS: u8 = 0xB1;
/// Logical Block Provisioning.
pub const LOGICAL_BLOCK_PROVISIONING: u8 = 0xB2;

/// A page: its header and `body`. `peripheral` is the first byte of standard INQUIRY data
/// ([`super::inquiry::StandardInquiry::peripheral`]). A body beyond 65535 bytes is truncated.
pub fn emit(peripheral: u8, page: u8, body: &[u8]) -> Vec<u8> {
    let body = &body[..body.len().min(usize::from(u16::MAX))];
    let mut out = vec![peripheral, page];
    out.extend((body.len() as u16).to_be_bytes());
    out.extend(body);
    out
}

/// The page code of a page, and the received part of its body.
pub fn parse(bytes: &[u8]) -> Option<(u8, &[u8])> {
    let len = usize::from(Fields(bytes).u16(2)?);
    let body = bytes.get(4..)?;
    Some((bytes[1], &body[..body.len().min(len)]))
}

/// The body of page 00h for pages in any order; the page itself is in the list.
pub fn supported_pages(pages: &[u8]) -> Vec<u8> {
    let mut list = vec![SUPPORTED_PAGES];
    list.extend(pages);
    list.sort_unstable();
    list.dedup();
    list
}

/// The body of page 80h: a serial number in printable ASCII.
pub fn unit_serial(serial: &str) -> Vec<u8> {
    serial.chars().map(|c| if matches!(c, ' '..='~') { c as u8 } else { b' ' }).take(252).collect()
}

/// The serial number in the body of page 80h, without padding.
pub fn parse_unit_serial(body: &[u8]) -> String {
    body.iter()
        .map(|&b| if matches!(b, b' '..=b'~') { char::from(b) } else { ' ' })
        .collect::<String>()
        .trim()
        .into()
}

/// The body of page 87h: all I_T nexuses share all mode pages and subpages.
pub const ALL_MODE_PAGES_SHARED: [u8; 4] = [0x3F, 0xFF, 0x00, 0x00];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn supported_pages_ascend_whatever_their_order_was() {
        let body = supported_pages(&[0xB0, 0x83, 0x80, 0x83]);
        assert_eq!(emit(0, SUPPORTED_PAGES, &body), [0, 0, 0, 4, 0x00, 0x80, 0x83, 0xB0]);
    }

    #[test]
    fn a_page_that_is_cut_gives_what_came() {
        let page = emit(0x20, UNIT_SERIAL, &unit_serial("0123\n"));
        assert_eq!(page, b"\x20\x80\x00\x050123 ");
        assert_eq!(parse(&page), Some((UNIT_SERIAL, b"0123 ".as_slice())));
        assert_eq!(parse(&page[..6]), Some((UNIT_SERIAL, b"01".as_slice())));
        assert_eq!(parse(&page[..3]), None);
        assert_eq!(parse_unit_serial(b"  01\0\xFF"), "01");
    }
}
