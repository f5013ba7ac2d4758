//! READ CAPACITY (10) and (16) data (SBC-3 §5.15, §5.16).

use super::Fields;

/// READ CAPACITY (10) data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReadCapacity10 {
    /// The last LBA; `None` if it does not fit: then use READ CAPACITY (16).
    pub last_lba: Option<u32>,
    /// Block length in bytes.
    pub block_len: u32,
}

impl ReadCapacity10 {
    /// For a medium that ends at `last_lba`.
    pub fn new(last_lba: u64, block_len: u32) -> Self {
        // FFFFFFFFh means that the address does not fit, so it cannot be an address itself.
        Self { last_lba: u32::try_from(last_lba).ok().filter(|&l| l != u32::MAX), block_len }
    }

    /// The data, 8 bytes.
    pub fn emit(&self) -> [u8; 8] {
        let mut out = [0; 8];
        out[..4].copy_from_slice(&self.last_lba.unwrap_or(u32::MAX).to_be_bytes());
        out[4..].copy_from_slice(&self.block_len.to_be_bytes());
        out
    }

    /// Reads the data.
    pub fn parse(bytes: &[u8]) -> Option<Self> {
        let f = Fields(bytes);
        Some(Self { last_lba: Some(f.u32(0)?).filter(|&l| l != u32::MAX), block_len: f.u32(4)? })
    }
}

/// READ CAPACITY (16) data of a unit without protection information.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReadCapacity16 {
    /// The last LBA.
    pub last_lba: u64,
    /// Block length in bytes.
    pub block_len: u32,
    /// LOGICAL BLOCKS PER PHYSICAL BLOCK EXPONENT, 0 to 15.
    pub physical_exponent: u8,
    /// LOWEST ALIGNED LBA, 0 to 3FFFh.
    pub lowest_aligned: u16,
    /// LBPME: blocks may be deallocated.
    pub provisioning: bool,
    /// LBPRZ: deallocated blocks read as zeros.
    pub deallocated_is_zero: bool,
}

impl ReadCapacity16 {
    /// Length of the data in bytes.
    pub const LEN: usize = 32;

    /// The data.
    pub fn emit(&self) -> [u8; Self::LEN] {
        let mut out = [0; Self::LEN];
        out[..8].copy_from_slice(&self.last_lba.to_be_bytes());
        out[8..12].copy_from_slice(&self.block_len.to_be_bytes());
        out[13] = self.physical_exponent & 0x0F;
        let provisioning = u16::from(self.provisioning) << 15 | u16::from(self.deallocated_is_zero) << 14;
        out[14..16].copy_from_slice(&(provisioning | (self.lowest_aligned & 0x3FFF)).to_be_bytes());
        out
    }

    /// Reads the data; the 12 bytes of early SBC-2 devices are enough.
    pub fn parse(bytes: &[u8]) -> Option<Self> {
        let f = Fields(bytes);
        let provisioning = f.u16(14).unwrap_or(0);
        Some(Self {
            last_lba: f.u64(0)?,
            block_len: f.u32(8)?,
            physical_exponent: f.u8(13).unwrap_or(0) & 0x0F,
            lowest_aligned: provisioning & 0x3FFF,
            provisioning: provisioning & 0x8000 != 0,
            deallocated_is_zero: provisioning & 0x4000 != 0,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_last_lba_that_does_not_fit_is_reported_as_all_ones() {
        assert_eq!(ReadCapacity10::new(0x1234, 512).emit(), [0, 0, 0x12, 0x34, 0, 0, 2, 0]);
        for last in [0xFFFF_FFFF, 1 << 32] {
            let capacity = ReadCapacity10::new(last, 4096);
            assert_eq!(capacity.emit(), [0xFF, 0xFF, 0xFF, 0xFF, 0, 0, 0x10, 0]);
            assert_eq!(ReadCapacity10::parse(&capacity.emit()), Some(capacity));
        }
        assert_eq!(ReadCapacity10::new(0xFFFF_FFFE, 512).last_lba, Some(0xFFFF_FFFE));
    }

    #[test]
    fn a_thin_unit_with_4k_sectors_says_so() {
        let capacity = ReadCapacity16 {
            last_lba: 0x01_0203_0405,
            block_len: 512,
            physical_exponent: 3,
            lowest_aligned: 7,
            provisioning: true,
            deallocated_is_zero: true,
        };
        let data = capacity.emit();
        assert_eq!(data[..16], [0, 0, 0, 1, 2, 3, 4, 5, 0, 0, 2, 0, 0, 3, 0xC0, 7]);
        assert_eq!(data[16..], [0; 16]);
        assert_eq!(ReadCapacity16::parse(&data), Some(capacity));
        assert_eq!(ReadCapacity16::parse(&data[..11]), None);
        assert!(!ReadCapacity16::parse(&data[..12]).unwrap().provisioning);
    }
}
