//! The CRC32C that ends an FPDU (RFC 5044 §4.4), over bytes that may be scattered. Knows nothing of
//! the data that it covers.

use crc_fast::CrcAlgorithm;

/// Bytes of the CRC field.
pub(crate) const CRC_LEN: usize = 4;

/// A CRC32C in wire order: least significant byte first, as in iSCSI (RFC 5044 §4.4, RFC 7143
/// appendix A.4).
pub(crate) type CrcBytes = [u8; CRC_LEN];

/// The CRC of one run of bytes.
#[inline]
pub fn crc32c(bytes: &[u8]) -> CrcBytes {
    crc_fast::crc32_iscsi(bytes).to_le_bytes()
}

/// A CRC32C in progress; four bytes of state.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Crc32c(u32);

impl Default for Crc32c {
    fn default() -> Self {
        Self::new()
    }
}

impl Crc32c {
    /// The CRC state before the first byte.
    #[inline]
    pub const fn new() -> Self {
        Self(u32::MAX)
    }

    /// Adds the next bytes.
    #[inline]
    pub fn update(&mut self, bytes: &[u8]) {
        if !bytes.is_empty() {
            let mut digest =
                crc_fast::Digest::new_with_init_state(CrcAlgorithm::Crc32Iscsi, u64::from(self.0));
            digest.update(bytes);
            self.0 = digest.get_state() as u32;
        }
    }

    /// The CRC of all bytes so far, in wire order.
    #[inline]
    pub const fn finish(&self) -> CrcBytes {
        (!self.0).to_le_bytes()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_crc_is_that_of_iscsi() {
        assert_eq!(crc32c(&[0; 32]), [0xaa, 0x36, 0x91, 0x8a]);
        assert_eq!(crc32c(&[0xff; 32]), [0x43, 0xab, 0xa8, 0x62]);
    }

    #[test]
    fn scattered_bytes_have_the_crc_of_contiguous_ones() {
        let bytes: Vec<u8> = (0..1000u32).map(|i| (i * 7) as u8).collect();
        for cut in [0, 1, 3, 500, 999, 1000] {
            let mut crc = Crc32c::new();
            crc.update(&bytes[..cut]);
            crc.update(&bytes[cut..]);
            assert_eq!(crc.finish(), crc32c(&bytes));
        }
    }
}
