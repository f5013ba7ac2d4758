//! Additional Header Segments (RFC 7143 §11.2.2): iterating over those of a received PDU, and
//! writing Extended CDB and Expected Bidirectional Read Data Length. Works on the bytes between BHS
//! and header digest, including padding.

use thiserror::Error;

/// AHSType of an extended CDB (§11.2.2.3).
pub(crate) const TYPE_EXTENDED_CDB: u8 = 1;
/// AHSType of the expected bidirectional read data length (§11.2.2.4).
pub(crate) const TYPE_BIDI_READ_LENGTH: u8 = 2;
/// The maximum length of all AHSs, bytes: TotalAHSLength counts up to 255 words of four bytes.
pub const MAX_LEN: usize = 255 * 4;
/// The maximum length of a CDB, bytes (SPC-4 §4.2.3): 16 in the BHS and 244 in an Extended CDB AHS.
pub const MAX_CDB_LEN: usize = 260;

/// One Additional Header Segment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Ahs<'a> {
    /// The CDB's bytes after the first 16, 1 to 244 of them, without padding (§11.2.2.3).
    ExtendedCdb(&'a [u8]),
    /// The expected read length of a bidirectional command, bytes (§11.2.2.4).
    BidiReadLength(u32),
    /// An unknown type, with its specific bytes.
    Other {
        /// AHSType, 6 bits.
        kind: u8,
        /// AHS-Specific, without padding.
        specific: &'a [u8],
    },
}

/// Why a list of AHSs is invalid: a format error of RFC 7143 §7.7.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum AhsError {
    /// An AHS exceeds TotalAHSLength.
    #[error("an AHS at byte {offset} exceeds TotalAHSLength")]
    Truncated {
        /// The start of the AHS, in bytes from the end of the BHS.
        offset: usize,
    },
    /// AHSLength is invalid for the type.
    #[error("an AHS of type {kind} has the length {len}")]
    Length {
        /// AHSType.
        kind: u8,
        /// AHSLength.
        len: u16,
    },
}

/// Iterates over the AHSs of a PDU. The first error ends the iteration.
pub fn iter(bytes: &[u8]) -> Iter<'_> {
    Iter { bytes, offset: 0 }
}

/// Checks that all AHSs are well-formed.
pub fn validate(bytes: &[u8]) -> Result<(), AhsError> {
    iter(bytes).try_for_each(|ahs| ahs.map(drop))
}

/// An iterator over the AHSs of a PDU.
#[derive(Debug, Clone)]
pub struct Iter<'a> {
    bytes: &'a [u8],
    offset: usize,
}

impl<'a> Iter<'a> {
    fn step(&mut self, rest: &'a [u8]) -> Result<Ahs<'a>, AhsError> {
        let truncated = AhsError::Truncated { offset: self.offset };
        let Some((&[high, low, kind], specific)) = rest.split_first_chunk::<3>() else {
            return Err(truncated);
        };
        let kind = kind & 0x3f;
        let len = u16::from_be_bytes([high, low]);
        let Some(specific) = specific.get(..usize::from(len)) else {
            return Err(truncated);
        };
        // TotalAHSLength includes padding (§11.2.2) and counts words, so the input never ends
        // within the padding.
        self.offset = (self.offset + 3 + usize::from(len)).next_multiple_of(4);
        match kind {
            // One reserved byte, then the CDB's bytes from 16 on.
            TYPE_EXTENDED_CDB => match specific {
                [_, cdb @ ..] if !cdb.is_empty() && cdb.len() <= MAX_CDB_LEN - 16 => {
                    Ok(Ahs::ExtendedCdb(cdb))
                }
                _ => Err(AhsError::Length { kind, len }),
            },
            TYPE_BIDI_READ_LENGTH => match *specific {
                [_, a, b, c, d] => Ok(Ahs::BidiReadLength(u32::from_be_bytes([a, b, c, d]))),
                _ => Err(AhsError::Length { kind, len }),
            },
            _ => Ok(Ahs::Other { kind, specific }),
        }
    }
}

impl<'a> Iterator for Iter<'a> {
    type Item = Result<Ahs<'a>, AhsError>;

    fn next(&mut self) -> Option<Self::Item> {
        let rest = self.bytes.get(self.offset..).filter(|rest| !rest.is_empty())?;
        let ahs = self.step(rest);
        if ahs.is_err() {
            self.offset = self.bytes.len();
        }
        Some(ahs)
    }
}

impl Ahs<'_> {
    /// The length on the wire, including padding, bytes.
    pub(crate) fn encoded_len(&self) -> usize {
        let specific = match self {
            Ahs::ExtendedCdb(cdb) => 1 + cdb.len(),
            Ahs::BidiReadLength(_) => 5,
            Ahs::Other { specific, .. } => specific.len(),
        };
        (3 + specific).next_multiple_of(4)
    }

    /// Appends the AHS with its padding. Returns false and writes nothing if the area would exceed
    /// [`MAX_LEN`], or if a CDB would exceed [`MAX_CDB_LEN`] or be empty.
    #[must_use]
    pub fn emit<const N: usize>(&self, out: &mut arrayvec::ArrayVec<u8, N>) -> bool {
        let start = out.len();
        let end = start + self.encoded_len();
        if end > MAX_LEN.min(N) {
            return false;
        }
        // The length was checked above.
        let mut put = |bytes: &[u8]| {
            let _ = out.try_extend_from_slice(bytes);
        };
        match *self {
            Ahs::ExtendedCdb(cdb) => {
                if cdb.is_empty() || cdb.len() > MAX_CDB_LEN - 16 {
                    return false;
                }
                let [high, low] = (cdb.len() as u16 + 1).to_be_bytes();
                put(&[high, low, TYPE_EXTENDED_CDB, 0]);
                put(cdb);
            }
            Ahs::BidiReadLength(length) => {
                put(&[0, 5, TYPE_BIDI_READ_LENGTH, 0]);
                put(&length.to_be_bytes());
            }
            Ahs::Other { kind, specific } => {
                let [high, low] = (specific.len() as u16).to_be_bytes();
                put(&[high, low, kind & 0x3f]);
                put(specific);
            }
        }
        let padding = end - out.len();
        let _ = out.try_extend_from_slice(&[0; 3][..padding]);
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use arrayvec::ArrayVec;
    use proptest::prelude::*;

    #[test]
    fn a_32_byte_cdb_and_a_bidi_length_travel_as_the_rfc_draws_them() {
        let cdb: [u8; 16] = core::array::from_fn(|i| i as u8 + 1);
        let mut out = ArrayVec::<u8, MAX_LEN>::new();
        assert!(Ahs::ExtendedCdb(&cdb).emit(&mut out));
        assert!(Ahs::BidiReadLength(0x1234).emit(&mut out));
        // AHSLength of an extended CDB is CDBLength - 15 (§11.2.2.3).
        assert_eq!(&out[..4], &[0, 17, 1, 0]);
        assert_eq!(&out[4..20], &cdb);
        assert_eq!(&out[20..], &[0, 5, 2, 0, 0, 0, 0x12, 0x34]);
        let all: Result<Vec<_>, _> = iter(&out).collect();
        assert_eq!(all, Ok(vec![Ahs::ExtendedCdb(&cdb), Ahs::BidiReadLength(0x1234)]));
    }

    #[test]
    fn lengths_beyond_the_area_or_wrong_for_the_type_are_refused() {
        assert_eq!(validate(&[0, 0]), Err(AhsError::Truncated { offset: 0 }));
        assert_eq!(validate(&[0, 2, 9, 0]), Err(AhsError::Truncated { offset: 0 }));
        assert_eq!(validate(&[0, 1, 1, 0]), Err(AhsError::Length { kind: 1, len: 1 }));
        assert_eq!(validate(&[0, 1, 2, 0]), Err(AhsError::Length { kind: 2, len: 1 }));
        assert_eq!(validate(&[0, 1, 9, 0, 0xff, 0xff, 9, 0]), Err(AhsError::Truncated { offset: 4 }));
        assert_eq!(validate(&[]), Ok(()));
        let mut long = vec![0u8; 252];
        long[..3].copy_from_slice(&[0, 246, 1]);
        assert_eq!(validate(&long), Err(AhsError::Length { kind: 1, len: 246 }));
    }

    proptest! {
        #[test]
        fn what_is_emitted_reads_back(
            cdb in proptest::collection::vec(any::<u8>(), 1..=244),
            length: u32,
            kind in 3u8..64,
            specific in proptest::collection::vec(any::<u8>(), 0..300),
        ) {
            let list = [Ahs::Other { kind, specific: &specific }, Ahs::BidiReadLength(length), Ahs::ExtendedCdb(&cdb)];
            let mut out = ArrayVec::<u8, MAX_LEN>::new();
            for ahs in &list {
                prop_assert!(ahs.emit(&mut out));
            }
            prop_assert_eq!(out.len() % 4, 0);
            let back: Result<Vec<_>, _> = iter(&out).collect();
            prop_assert_eq!(back, Ok(list.to_vec()));
        }

        #[test]
        fn any_bytes_are_walked_without_panic_and_to_an_end(bytes in proptest::collection::vec(any::<u8>(), 0..1100)) {
            prop_assert!(iter(&bytes).count() <= bytes.len());
        }
    }
}
