//! Offsets into Data-In and Data-Out buffers: 32 bits on the wire, a mantissa of 28 bits and an
//! exponent of 4.
//!
//! The offset is mantissa × 2^(exponent + 8) bytes. OSD-1's exponent is unsigned, so its steps are
//! of 256 bytes and more; OSD-2's is signed, −5 the least, so its finest steps are of 8 bytes.

use crate::Version;

/// The field's value when there is no such offset.
pub const UNUSED: u32 = 0xFFFF_FFFF;

/// Bits of the mantissa.
const MANTISSA_BITS: u32 = 28;

/// The least shift (exponent + 8) of each version, and the greatest.
const fn shifts(version: Version) -> (u32, u32) {
    match version {
        Version::Osd1 => (8, 23),
        Version::Osd2 => (3, 15),
    }
}

/// An exponent below −5, which no version defines.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("an offset with an exponent below -5")]
pub struct InvalidOffset;

/// The offset in bytes; `None` for an unused field.
///
/// # Errors
/// The exponent is one that OSD-2 does not allow.
pub const fn decode(field: u32, version: Version) -> Result<Option<u64>, InvalidOffset> {
    if field == UNUSED {
        return Ok(None);
    }
    let exponent = field >> MANTISSA_BITS;
    let mantissa = (field & ((1 << MANTISSA_BITS) - 1)) as u64;
    let shift = match version {
        Version::Osd1 => exponent + 8,
        // Two's complement of 4 bits: 8 to 15 mean −8 to −1.
        Version::Osd2 if exponent < 8 => exponent + 8,
        Version::Osd2 => exponent - 8,
    };
    if shift < shifts(version).0 {
        return Err(InvalidOffset);
    }
    Ok(Some(mantissa << shift))
}

/// The field for an offset of `bytes`; `None` when `version` cannot express exactly that many: see
/// [`round_up`].
pub const fn encode(bytes: u64, version: Version) -> Option<u32> {
    let (least, greatest) = shifts(version);
    let mut shift = least;
    // The finest step whose mantissa fits; a coarser one could not express what this one cannot.
    while bytes >> shift >= 1 << MANTISSA_BITS {
        shift += 1;
        if shift > greatest {
            return None;
        }
    }
    if bytes & ((1 << shift) - 1) != 0 {
        return None;
    }
    let exponent = shift.wrapping_sub(8) & 0xF;
    let field = exponent << MANTISSA_BITS | (bytes >> shift) as u32;
    // The greatest mantissa with an exponent of all ones means that there is no offset.
    if field == UNUSED { None } else { Some(field) }
}

/// The least offset of at least `bytes` that `version` can express; `None` beyond the greatest one.
pub const fn round_up(bytes: u64, version: Version) -> Option<u64> {
    let (least, greatest) = shifts(version);
    let mut shift = least;
    while shift <= greatest {
        let step = 1u64 << shift;
        let Some(rounded) = bytes.checked_next_multiple_of(step) else { return None };
        if encode(rounded, version).is_some() {
            return Some(rounded);
        }
        shift += 1;
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn the_exponent_is_signed_in_osd_2_only() {
        assert_eq!(decode(0xB000_0001, Version::Osd2), Ok(Some(8)));
        assert_eq!(decode(0x0000_0001, Version::Osd2), Ok(Some(256)));
        assert_eq!(decode(0x1000_0003, Version::Osd1), Ok(Some(3 * 512)));
        assert_eq!(decode(0xB000_0001, Version::Osd1), Ok(Some(1 << 19)));
        assert_eq!(decode(0xA000_0001, Version::Osd2), Err(InvalidOffset));
        assert_eq!(decode(0x8000_0000, Version::Osd2), Err(InvalidOffset));
        assert_eq!(decode(UNUSED, Version::Osd2), Ok(None));
    }

    #[test]
    fn osd_2_counts_in_eights_and_osd_1_in_256ths() {
        assert_eq!(encode(64, Version::Osd2), Some(0xB000_0008));
        assert_eq!(encode(64, Version::Osd1), None);
        assert_eq!(encode(512, Version::Osd1), Some(2));
        assert_eq!(encode(12, Version::Osd2), None);
        assert_eq!(round_up(12, Version::Osd2), Some(16));
        assert_eq!(round_up(12, Version::Osd1), Some(256));
        assert_eq!(round_up(u64::MAX, Version::Osd1), None);
    }

    proptest! {
        #[test]
        fn what_can_be_encoded_decodes_to_itself(bytes in any::<u64>(), shift in 0u32..64, one in any::<bool>()) {
            let version = if one { Version::Osd1 } else { Version::Osd2 };
            let bytes = bytes >> shift;
            if let Some(field) = encode(bytes, version) {
                prop_assert_eq!(decode(field, version), Ok(Some(bytes)));
            }
            if let Some(up) = round_up(bytes, version) {
                prop_assert!(up >= bytes && encode(up, version).is_some());
            }
        }

        #[test]
        fn every_field_that_decodes_has_an_encoding(field in any::<u32>(), one in any::<bool>()) {
            let version = if one { Version::Osd1 } else { Version::Osd2 };
            if let Ok(Some(bytes)) = decode(field, version) {
                prop_assert!(encode(bytes, version).is_some(), "{} bytes", bytes);
            }
        }
    }
}
