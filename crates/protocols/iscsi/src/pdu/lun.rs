//! Logical unit numbers (SAM-5 §4.7) as the eight bytes in PDUs, and 24-bit lengths.

use core::fmt;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// An eight-byte logical unit number. Single-level numbers convert from and to `u16`; others are
/// kept unchanged.
#[derive(
    Clone,
    Copy,
    PartialEq,
    Eq,
    Hash,
    Default,
    PartialOrd,
    Ord,
    FromBytes,
    IntoBytes,
    KnownLayout,
    Immutable,
    Unaligned,
)]
#[repr(transparent)]
pub struct Lun(pub [u8; 8]);

impl Lun {
    /// LUN 0, which is also the value of reserved fields.
    pub const ZERO: Self = Self([0; 8]);

    /// The well-known logical unit REPORT LUNS (SAM-5 §4.7.7.5.1: extended addressing, W-LUN 01h).
    pub const REPORT_LUNS: Self = Self([0xc1, 0x01, 0, 0, 0, 0, 0, 0]);

    /// The single-level number 0 to 16383: peripheral device addressing below 256 (SAM-5 §4.7.7.2),
    /// flat space addressing from there (§4.7.7.3). `None` above 16383.
    #[inline]
    pub const fn new(number: u16) -> Option<Self> {
        let [high, low] = number.to_be_bytes();
        match number {
            0..256 => Some(Self([0, low, 0, 0, 0, 0, 0, 0])),
            256..0x4000 => Some(Self([0x40 | high, low, 0, 0, 0, 0, 0, 0])),
            _ => None,
        }
    }

    /// The number in flat space addressing, also below 256. `None` above 16383.
    #[inline]
    pub const fn flat(number: u16) -> Option<Self> {
        let [high, low] = number.to_be_bytes();
        if number < 0x4000 { Some(Self([0x40 | high, low, 0, 0, 0, 0, 0, 0])) } else { None }
    }

    /// The number of a single-level LUN, by peripheral device addressing of bus 0 or by flat space
    /// addressing. `None` for every other method, a bus other than 0, or a second level.
    #[inline]
    pub const fn number(self) -> Option<u16> {
        let [first, second, rest @ ..] = self.0;
        if u64::from_be_bytes([0, 0, rest[0], rest[1], rest[2], rest[3], rest[4], rest[5]]) != 0 {
            return None;
        }
        match first {
            0 => Some(second as u16),
            0x40..0x80 => Some(u16::from_be_bytes([first & 0x3f, second])),
            _ => None,
        }
    }

    /// The encoding of [`Self::new`] for a single-level LUN, so that one unit has one value. Every
    /// other LUN stays as it is.
    #[inline]
    pub const fn canonical(self) -> Self {
        match self.number() {
            Some(number) => match Self::new(number) {
                Some(lun) => lun,
                None => self,
            },
            None => self,
        }
    }

    /// Whether it addresses a well-known logical unit (SAM-5 §4.7.7.5.1).
    #[inline]
    pub const fn is_well_known(self) -> bool {
        self.0[0] == 0xc1
    }
}

impl From<[u8; 8]> for Lun {
    fn from(bytes: [u8; 8]) -> Self {
        Self(bytes)
    }
}

impl From<Lun> for [u8; 8] {
    fn from(lun: Lun) -> Self {
        lun.0
    }
}

impl fmt::Display for Lun {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.number() {
            Some(number) => write!(f, "{number}"),
            None => write!(f, "{:#018x}", u64::from_be_bytes(self.0)),
        }
    }
}

impl fmt::Debug for Lun {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Lun({self})")
    }
}

/// A big-endian unsigned number of three bytes, such as DataSegmentLength (RFC 7143 §11.2.1.6).
#[derive(
    Clone, Copy, PartialEq, Eq, Hash, Default, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned,
)]
#[repr(transparent)]
pub struct U24([u8; 3]);

impl U24 {
    /// The largest value, 2^24 - 1.
    pub const MAX: u32 = 0xff_ffff;

    /// Zero.
    pub const ZERO: Self = Self([0; 3]);

    /// Converts a number; `None` if it exceeds [`Self::MAX`].
    #[inline]
    pub const fn new(value: u32) -> Option<Self> {
        match value.to_be_bytes() {
            [0, a, b, c] => Some(Self([a, b, c])),
            _ => None,
        }
    }

    /// The number.
    #[inline]
    pub const fn get(self) -> u32 {
        u32::from_be_bytes([0, self.0[0], self.0[1], self.0[2]])
    }
}

impl fmt::Debug for U24 {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "U24({})", self.get())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_single_level_number_survives_both_address_methods() {
        for n in 0..0x4000 {
            assert_eq!(Lun::new(n).and_then(Lun::number), Some(n));
            assert_eq!(Lun::flat(n).and_then(Lun::number), Some(n));
            assert_eq!(Lun::flat(n).map(Lun::canonical), Lun::new(n));
        }
        assert_eq!(Lun::new(0x4000), None);
        assert_eq!(Lun::flat(0xffff), None);
    }

    #[test]
    fn small_numbers_use_peripheral_addressing_and_large_ones_flat_space() {
        assert_eq!(Lun::new(5), Some(Lun([0, 5, 0, 0, 0, 0, 0, 0])));
        assert_eq!(Lun::new(0x1234), Some(Lun([0x52, 0x34, 0, 0, 0, 0, 0, 0])));
        assert_eq!(Lun::flat(5), Some(Lun([0x40, 5, 0, 0, 0, 0, 0, 0])));
    }

    #[test]
    fn other_buses_levels_and_methods_have_no_number() {
        assert_eq!(Lun([1, 5, 0, 0, 0, 0, 0, 0]).number(), None);
        assert_eq!(Lun([0, 5, 0, 1, 0, 0, 0, 0]).number(), None);
        assert_eq!(Lun([0, 0, 0, 0, 0, 0, 0, 1]).number(), None);
        assert_eq!(Lun([0x80, 5, 0, 0, 0, 0, 0, 0]).number(), None);
        assert_eq!(Lun::REPORT_LUNS.number(), None);
        assert_eq!(Lun::REPORT_LUNS.canonical(), Lun::REPORT_LUNS);
        assert!(Lun::REPORT_LUNS.is_well_known());
        assert_eq!(Lun::REPORT_LUNS.to_string(), "0xc101000000000000");
        assert_eq!(Lun::new(300).unwrap().to_string(), "300");
    }

    #[test]
    fn three_byte_numbers_refuse_what_does_not_fit() {
        assert_eq!(U24::new(0x01_2345).map(|v| v.0), Some([0x01, 0x23, 0x45]));
        assert_eq!(U24::new(U24::MAX).map(U24::get), Some(U24::MAX));
        assert_eq!(U24::new(U24::MAX + 1), None);
    }
}
