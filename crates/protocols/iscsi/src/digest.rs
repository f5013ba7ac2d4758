//! The CRC32C digests of RFC 7143 §13.1 over a header (BHS and AHS) and over a data segment with
//! its padding. `frame` knows their places in a PDU.

use crc_fast::CrcAlgorithm;

/// The length of a digest on the wire, bytes.
pub const DIGEST_LEN: usize = 4;

/// A CRC32C in wire order: least significant byte first (RFC 7143 appendix A.4).
pub type DigestBytes = [u8; DIGEST_LEN];

const PADDING: [u8; 3] = [0; 3];

/// The digest of contiguous bytes.
#[inline]
pub fn crc32c(bytes: &[u8]) -> DigestBytes {
    crc_fast::crc32_iscsi(bytes).to_le_bytes()
}

/// The digest of a header: 48 bytes of BHS, then all AHSs with their padding.
#[inline]
pub fn header(bhs: &[u8; 48], ahs: &[u8]) -> DigestBytes {
    if ahs.is_empty() {
        return crc32c(bhs);
    }
    let mut crc = Crc32c::new();
    crc.update(bhs);
    crc.update(ahs);
    crc.finish()
}

/// The digest of a data segment without its padding, which is digested as zeros. A sender SHOULD
/// send zeros (RFC 7143 §11.1). A receiver with the padding at hand must digest the bytes received:
/// use [`Crc32c`].
#[inline]
pub fn data(segment: &[u8]) -> DigestBytes {
    let mut crc = Crc32c::new();
    crc.update(segment);
    crc.pad(segment.len());
    crc.finish()
}

/// A CRC32C over scattered bytes; its state takes four bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Crc32c {
    state: u32,
}

impl Default for Crc32c {
    fn default() -> Self {
        Self::new()
    }
}

impl Crc32c {
    /// The CRC of no bytes.
    #[inline]
    pub const fn new() -> Self {
        Self { state: u32::MAX }
    }

    /// Adds the next bytes.
    #[inline]
    pub fn update(&mut self, bytes: &[u8]) {
        if bytes.is_empty() {
            return;
        }
        let mut digest =
            crc_fast::Digest::new_with_init_state(CrcAlgorithm::Crc32Iscsi, u64::from(self.state));
        digest.update(bytes);
        self.state = digest.get_state() as u32;
    }

    /// Adds the zeros that pad a data segment of `segment_len` bytes to a multiple of four.
    #[inline]
    pub fn pad(&mut self, segment_len: usize) {
        self.update(&PADDING[..segment_len.wrapping_neg() % 4]);
    }

    /// The digest of all bytes added so far, in wire order.
    #[inline]
    pub fn finish(&self) -> DigestBytes {
        (!self.state).to_le_bytes()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// The SCSI Read (10) command of RFC 7143 appendix A.4.
    const READ_10: [u8; 48] = [
        0x01, 0xc0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, // opcode, flags, lengths, LUN
        0x14, 0, 0, 0, 0, 0, 0x04, 0, 0, 0, 0, 0x14, 0, 0, 0, 0x18, // ITT, length, CmdSN, ExpStatSN
        0x28, 0, 0, 0, 0, 0, 0, 0, 0x02, 0, 0, 0, 0, 0, 0, 0, // CDB
    ];

    #[test]
    fn digests_are_those_of_rfc_7143_appendix_a_4() {
        let ascending: [u8; 32] = core::array::from_fn(|i| i as u8);
        let descending: [u8; 32] = core::array::from_fn(|i| 31 - i as u8);
        assert_eq!(crc32c(&[0; 32]), [0xaa, 0x36, 0x91, 0x8a]);
        assert_eq!(crc32c(&[0xff; 32]), [0x43, 0xab, 0xa8, 0x62]);
        assert_eq!(crc32c(&ascending), [0x4e, 0x79, 0xdd, 0x46]);
        assert_eq!(crc32c(&descending), [0x5c, 0xdb, 0x3f, 0x11]);
        assert_eq!(header(&READ_10, &[]), [0x56, 0x3a, 0x96, 0xd9]);
    }

    #[test]
    fn padding_counts_as_zeros() {
        assert_eq!(data(b"abcde"), crc32c(b"abcde\0\0\0"));
        assert_eq!(data(b"abcdefg"), crc32c(b"abcdefg\0"));
        assert_eq!(data(b"abcdefgh"), crc32c(b"abcdefgh"));
    }

    proptest! {
        #[test]
        fn scattered_bytes_digest_like_contiguous_ones(
            bytes in proptest::collection::vec(any::<u8>(), 0..3000),
            cuts in proptest::collection::vec(any::<proptest::sample::Index>(), 0..6),
        ) {
            let mut at: Vec<usize> = cuts.iter().map(|c| c.index(bytes.len() + 1)).collect();
            at.push(0);
            at.push(bytes.len());
            at.sort_unstable();
            let mut crc = Crc32c::new();
            for pair in at.windows(2) {
                crc.update(&bytes[pair[0]..pair[1]]);
            }
            prop_assert_eq!(crc.finish(), crc32c(&bytes));
        }

        #[test]
        fn a_header_digest_covers_bhs_then_ahs(bhs: [u8; 32], ahs in proptest::collection::vec(any::<u8>(), 0..64)) {
            let mut whole = [0u8; 48];
            whole[..32].copy_from_slice(&bhs);
            let joined = [&whole[..], &ahs[..]].concat();
            prop_assert_eq!(header(&whole, &ahs), crc32c(&joined));
        }
    }
}
