//! The pages of SBC-3 and SBC-4: Block Limits (B0h), Block Device Characteristics (B1h), Logical
//! Block Provisioning (B2h).

use crate::data::Fields;

/// Block Limits (SBC-3 §6.5.3). Lengths and counts are in blocks; 0 means not reported, unless
/// noted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct BlockLimits {
    /// WSNZ: the unit rejects WRITE SAME of 0 blocks; without it, 0 means all to the end.
    pub write_same_non_zero: bool,
    /// MAXIMUM COMPARE AND WRITE LENGTH; 0 means that the command is not supported.
    pub max_compare_and_write: u8,
    /// OPTIMAL TRANSFER LENGTH GRANULARITY.
    pub optimal_granularity: u16,
    /// MAXIMUM TRANSFER LENGTH.
    pub max_transfer: u32,
    /// OPTIMAL TRANSFER LENGTH.
    pub optimal_transfer: u32,
    /// MAXIMUM PREFETCH LENGTH.
    pub max_prefetch: u32,
    /// MAXIMUM UNMAP LBA COUNT: blocks of one UNMAP; FFFFFFFFh for no limit, 0 if UNMAP is not
    /// supported.
    pub max_unmap: u32,
    /// MAXIMUM UNMAP BLOCK DESCRIPTOR COUNT; FFFFFFFFh for no limit, 0 if UNMAP is not supported.
    pub max_unmap_ranges: u32,
    /// OPTIMAL UNMAP GRANULARITY.
    pub unmap_granularity: u32,
    /// UNMAP GRANULARITY ALIGNMENT, with UGAVALID.
    pub unmap_alignment: Option<u32>,
    /// MAXIMUM WRITE SAME LENGTH; 0 for no limit.
    pub max_write_same: u64,
    /// MAXIMUM ATOMIC TRANSFER LENGTH; 0 means that WRITE ATOMIC is not supported.
    pub max_atomic: u32,
    /// ATOMIC ALIGNMENT.
    pub atomic_alignment: u32,
    /// ATOMIC TRANSFER LENGTH GRANULARITY.
    pub atomic_granularity: u32,
    /// MAXIMUM ATOMIC TRANSFER LENGTH WITH ATOMIC BOUNDARY.
    pub max_atomic_with_boundary: u32,
    /// MAXIMUM ATOMIC BOUNDARY SIZE; 0 means that boundaries are not supported.
    pub max_atomic_boundary: u32,
}

impl BlockLimits {
    /// The body, 60 bytes.
    pub fn body(&self) -> Vec<u8> {
        let mut out = vec![u8::from(self.write_same_non_zero), self.max_compare_and_write];
        out.extend(self.optimal_granularity.to_be_bytes());
        for value in [
            self.max_transfer,
            self.optimal_transfer,
            self.max_prefetch,
            self.max_unmap,
            self.max_unmap_ranges,
            self.unmap_granularity,
            self.unmap_alignment.map_or(0, |a| a | 0x8000_0000),
        ] {
            out.extend(value.to_be_bytes());
        }
        out.extend(self.max_write_same.to_be_bytes());
        for value in [
            self.max_atomic,
            self.atomic_alignment,
            self.atomic_granularity,
            self.max_atomic_with_boundary,
            self.max_atomic_boundary,
        ] {
            out.extend(value.to_be_bytes());
        }
        out
    }

    /// Reads the body. Fields missing from an older device's shorter page are 0.
    pub fn parse(body: &[u8]) -> Option<Self> {
        let f = Fields(body);
        let word = |at| f.u32(at).unwrap_or(0);
        let alignment = word(28);
        Some(Self {
            write_same_non_zero: f.u8(0)? & 1 != 0,
            max_compare_and_write: f.u8(1)?,
            optimal_granularity: f.u16(2)?,
            max_transfer: f.u32(4)?,
            optimal_transfer: f.u32(8)?,
            max_prefetch: word(12),
            max_unmap: word(16),
            max_unmap_ranges: word(20),
            unmap_granularity: word(24),
            unmap_alignment: (alignment & 0x8000_0000 != 0).then_some(alignment & 0x7FFF_FFFF),
            max_write_same: f.u64(32).unwrap_or(0),
            max_atomic: word(40),
            atomic_alignment: word(44),
            atomic_granularity: word(48),
            max_atomic_with_boundary: word(52),
            max_atomic_boundary: word(56),
        })
    }
}

/// Block Device Characteristics (SBC-4 §6.6.2).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct BlockCharacteristics {
    /// MEDIUM ROTATION RATE: 0 not reported, 1 does not rotate, otherwise revolutions per minute.
    pub rotation_rate: u16,
    /// PRODUCT TYPE.
    pub product_type: u8,
    /// WABEREQ, WRITE AFTER BLOCK ERASE REQUIRED: 1 means that reads after SANITIZE BLOCK ERASE
    /// succeed.
    pub after_block_erase: u8,
    /// WACEREQ, WRITE AFTER CRYPTOGRAPHIC ERASE REQUIRED, likewise.
    pub after_cryptographic_erase: u8,
    /// NOMINAL FORM FACTOR.
    pub form_factor: u8,
    /// FUAB: FUA and SYNCHRONIZE CACHE behave as in SBC-3, not as in SBC-2.
    pub fua_behavior: bool,
    /// VBULS: VERIFY with BYTCHK 00b succeeds on unmapped blocks.
    pub verify_unmapped: bool,
}

impl BlockCharacteristics {
    /// The body, 60 bytes.
    pub fn body(&self) -> Vec<u8> {
        let mut out = vec![0; 60];
        out[..2].copy_from_slice(&self.rotation_rate.to_be_bytes());
        out[2] = self.product_type;
        out[3] = (self.after_block_erase & 3) << 6
            | (self.after_cryptographic_erase & 3) << 4
            | (self.form_factor & 0x0F);
        out[4] = u8::from(self.fua_behavior) << 1 | u8::from(self.verify_unmapped);
        out
    }

    /// Reads the body.
    pub fn parse(body: &[u8]) -> Option<Self> {
        let b: &[u8; 5] = body.first_chunk()?;
        Some(Self {
            rotation_rate: u16::from_be_bytes([b[0], b[1]]),
            product_type: b[2],
            after_block_erase: b[3] >> 6,
            after_cryptographic_erase: (b[3] >> 4) & 3,
            form_factor: b[3] & 0x0F,
            fua_behavior: b[4] & 0x02 != 0,
            verify_unmapped: b[4] & 0x01 != 0,
        })
    }
}

/// PROVISIONING TYPE (SBC-3 table 206).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum ProvisioningType {
    /// 000b: fully provisioned, or not reported.
    #[default]
    Full,
    /// 001b: resource provisioned.
    Resource,
    /// 010b: thin provisioned.
    Thin,
    /// Any other code.
    Reserved(u8),
}

/// Logical Block Provisioning (SBC-3 §6.5.4).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct LogicalBlockProvisioning {
    /// THRESHOLD EXPONENT: a threshold set has 2 to this many blocks; 0 means no thresholds.
    pub threshold_exponent: u8,
    /// LBPU: UNMAP.
    pub unmap: bool,
    /// LBPWS: WRITE SAME (16) with UNMAP.
    pub write_same16: bool,
    /// LBPWS10: WRITE SAME (10) with UNMAP.
    pub write_same10: bool,
    /// LBPRZ: 001b means that unmapped blocks read as zeros; three bits, of which SBC-3 defines the
    /// lowest.
    pub reads_zero: u8,
    /// ANC_SUP: anchored blocks.
    pub anchor: bool,
    /// PROVISIONING TYPE.
    pub kind: ProvisioningType,
}

impl LogicalBlockProvisioning {
    /// The body, 4 bytes: no provisioning group descriptor.
    pub fn body(&self) -> Vec<u8> {
        let kind = match self.kind {
            ProvisioningType::Full => 0,
            ProvisioningType::Resource => 1,
            ProvisioningType::Thin => 2,
            ProvisioningType::Reserved(bits) => bits & 7,
        };
        let flags = u8::from(self.unmap) << 7
            | u8::from(self.write_same16) << 6
            | u8::from(self.write_same10) << 5
            | (self.reads_zero & 7) << 2
            | u8::from(self.anchor) << 1;
        vec![self.threshold_exponent, flags, kind, 0]
    }

    /// Reads the body.
    pub fn parse(body: &[u8]) -> Option<Self> {
        let b: &[u8; 3] = body.first_chunk()?;
        Some(Self {
            threshold_exponent: b[0],
            unmap: b[1] & 0x80 != 0,
            write_same16: b[1] & 0x40 != 0,
            write_same10: b[1] & 0x20 != 0,
            reads_zero: (b[1] >> 2) & 7,
            anchor: b[1] & 0x02 != 0,
            kind: match b[2] & 7 {
                0 => ProvisioningType::Full,
                1 => ProvisioningType::Resource,
                2 => ProvisioningType::Thin,
                bits => ProvisioningType::Reserved(bits),
            },
        })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::data::vpd;

    #[test]
    fn every_block_limit_stands_where_sbc_4_puts_it() {
        let limits = BlockLimits {
            write_same_non_zero: true,
            max_compare_and_write: 0x02,
            optimal_granularity: 0x0304,
            max_transfer: 0x05,
            optimal_transfer: 0x06,
            max_prefetch: 0x07,
            max_unmap: 0x08,
            max_unmap_ranges: 0x09,
            unmap_granularity: 0x0A,
            unmap_alignment: Some(0x0B),
            max_write_same: 0x0C,
            max_atomic: 0x0D,
            atomic_alignment: 0x0E,
            atomic_granularity: 0x0F,
            max_atomic_with_boundary: 0x10,
            max_atomic_boundary: 0x11,
        };
        let page = vpd::emit(0, vpd::BLOCK_LIMITS, &limits.body());
        assert_eq!(page.len(), 64);
        assert_eq!(page[..8], [0, 0xB0, 0, 0x3C, 1, 2, 3, 4]);
        for (at, value) in
            [(11, 5), (15, 6), (19, 7), (23, 8), (27, 9), (31, 10), (32, 0x80), (35, 11), (43, 12), (47, 13)]
        {
            assert_eq!(page[at], value, "byte {at}");
        }
        for (at, value) in [(51, 14), (55, 15), (59, 16), (63, 17)] {
            assert_eq!(page[at], value, "byte {at}");
        }
        assert_eq!(BlockLimits::parse(&page[4..]), Some(limits));
    }

    #[test]
    fn the_short_page_of_sbc_2_has_transfer_lengths_only() {
        let limits = BlockLimits { max_transfer: 8, optimal_transfer: 9, ..BlockLimits::default() };
        assert_eq!(BlockLimits::parse(&limits.body()[..12]), Some(limits));
        assert_eq!(BlockLimits::parse(&limits.body()[..11]), None);
    }

    #[test]
    fn characteristics_of_something_that_does_not_rotate() {
        let data = BlockCharacteristics {
            rotation_rate: 1,
            after_block_erase: 1,
            after_cryptographic_erase: 1,
            fua_behavior: true,
            ..BlockCharacteristics::default()
        };
        let page = vpd::emit(0, vpd::BLOCK_CHARACTERISTICS, &data.body());
        assert_eq!(page[..9], [0, 0xB1, 0, 0x3C, 0, 1, 0, 0x50, 2]);
        assert_eq!(page.len(), 64);
        assert_eq!(BlockCharacteristics::parse(&page[4..]), Some(data));
    }

    #[test]
    fn a_thin_unit_lists_how_it_can_be_unmapped() {
        let data = LogicalBlockProvisioning {
            unmap: true,
            write_same16: true,
            write_same10: true,
            reads_zero: 1,
            kind: ProvisioningType::Thin,
            ..LogicalBlockProvisioning::default()
        };
        let page = vpd::emit(0, vpd::LOGICAL_BLOCK_PROVISIONING, &data.body());
        assert_eq!(page, [0, 0xB2, 0, 4, 0, 0xE4, 2, 0]);
        assert_eq!(LogicalBlockProvisioning::parse(&page[4..]), Some(data));
    }

    proptest! {
        #[test]
        fn no_body_makes_a_page_panic(body in proptest::collection::vec(any::<u8>(), 0..70)) {
            let _ = BlockLimits::parse(&body);
            let _ = BlockCharacteristics::parse(&body);
            if let Some(data) = LogicalBlockProvisioning::parse(&body) {
                prop_assert_eq!(LogicalBlockProvisioning::parse(&data.body()), Some(data));
            }
        }
    }
}
