//! The few fields of the few PDUs that a load needs, read from and written into 48-byte headers
//! (RFC 7143 §11).

/// A basic header segment.
pub type Bhs = [u8; BHS];
/// Its length in bytes (RFC 7143 §11.2.1).
pub const BHS: usize = 48;
/// The tag that names nothing (RFC 7143 §11.2.1.8).
pub const NO_TAG: u32 = 0xffff_ffff;

/// Opcodes (RFC 7143 §11.2.1.2), the immediate bit not included.
pub mod op {
    pub const NOP_OUT: u8 = 0x00;
    pub const SCSI_COMMAND: u8 = 0x01;
    pub const LOGIN: u8 = 0x03;
    pub const DATA_OUT: u8 = 0x05;
    pub const LOGOUT: u8 = 0x06;
    pub const NOP_IN: u8 = 0x20;
    pub const SCSI_RESPONSE: u8 = 0x21;
    pub const LOGIN_RESPONSE: u8 = 0x23;
    pub const DATA_IN: u8 = 0x25;
    pub const LOGOUT_RESPONSE: u8 = 0x26;
    pub const R2T: u8 = 0x31;
    pub const ASYNC: u8 = 0x32;
    pub const REJECT: u8 = 0x3f;
}

/// The F (or T) bit of byte 1.
pub const FINAL: u8 = 0x80;
/// The I bit of byte 0.
pub const IMMEDIATE: u8 = 0x40;
/// The S bit of a Data-In's byte 1: it carries the status.
pub const STATUS: u8 = 0x01;

/// Four big-endian bytes at `at`.
pub fn get32(bytes: &[u8], at: usize) -> u32 {
    u32::from_be_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
}

/// Writes four big-endian bytes at `at`.
pub fn put32(bytes: &mut [u8], at: usize, value: u32) {
    bytes[at..at + 4].copy_from_slice(&value.to_be_bytes());
}

/// DataSegmentLength, without padding.
pub fn data_len(bhs: &Bhs) -> usize {
    usize::from(bhs[5]) << 16 | usize::from(bhs[6]) << 8 | usize::from(bhs[7])
}

/// Sets DataSegmentLength.
///
/// # Panics
/// If `len` does not fit 24 bits.
pub fn set_data_len(bhs: &mut Bhs, len: usize) {
    assert!(len < 1 << 24);
    bhs[5..8].copy_from_slice(&(len as u32).to_be_bytes()[1..]);
}

/// The bytes that follow a header: additional header segments, the data segment and its padding (no
/// digests).
pub fn body_len(bhs: &Bhs) -> usize {
    usize::from(bhs[4]) * 4 + data_len(bhs).next_multiple_of(4)
}

/// Writes a LUN below 16,384 into bytes 8 to 15 (SAM-5 §4.7: peripheral below 256, flat space
/// above).
pub fn set_lun(bhs: &mut Bhs, lun: u16) {
    let method = if lun < 256 { 0 } else { 0x4000 };
    bhs[8..10].copy_from_slice(&(method | (lun & 0x3fff)).to_be_bytes());
}

/// Whether serial number `a` comes after `b` (RFC 1982).
pub fn after(a: u32, b: u32) -> bool {
    (a.wrapping_sub(b) as i32) > 0
}

/// The key=value pairs of a text segment.
pub fn pairs(text: &[u8]) -> impl Iterator<Item = (&str, &str)> {
    text.split(|byte| *byte == 0).filter_map(|pair| std::str::from_utf8(pair).ok()?.split_once('='))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn serial_numbers_wrap() {
        assert!(after(0, u32::MAX));
        assert!(after(5, 4));
        assert!(!after(4, 4));
        assert!(!after(u32::MAX, 0));
    }

    #[test]
    fn body_counts_ahs_and_padding_but_not_the_header() {
        let mut bhs = [0; BHS];
        set_data_len(&mut bhs, 5);
        bhs[4] = 2;
        assert_eq!(data_len(&bhs), 5);
        assert_eq!(body_len(&bhs), 16);
    }

    #[test]
    fn text_pairs_skip_what_has_no_equals_sign() {
        let found: Vec<_> = pairs(b"A=1\0junk\0B=x=y\0").collect();
        assert_eq!(found, [("A", "1"), ("B", "x=y")]);
    }
}
