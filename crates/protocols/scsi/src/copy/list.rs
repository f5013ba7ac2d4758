//! Parses the parameter lists of EXTENDED COPY(LID1) and (LID4) (SPC-4 §6.4.2 to §6.5), or reports
//! the faulty byte.

use arrayvec::ArrayVec;

use super::{
    CSCD_IDENTIFICATION, MAX_CSCDS, MAX_DESCRIPTOR_LIST_BYTES, MAX_SEGMENTS, SEGMENT_BLOCKS, SEGMENT_BYTES,
};
use crate::{AdditionalSense, Sense};

/// Bytes of the list's header.
const HEADER_LEN: usize = 16;
/// Bytes of the header of a LID4 list.
const HEADER_LEN_LID4: usize = 48;
/// Bytes of every CSCD descriptor except the extension, which is not supported.
const CSCD_LEN: usize = 32;
/// The longest designator that fits an identification descriptor.
const MAX_DESIGNATOR: usize = 20;

/// LIST ID USAGE (SPC-4 table 110).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ListIdUsage {
    /// 00b: the results are held for RECEIVE COPY RESULTS.
    Hold,
    /// 10b: the results may be discarded.
    Discard,
    /// 11b: there is no list identifier.
    None,
}

/// One copy source or copy destination: an identification descriptor CSCD descriptor (SPC-4
/// §6.4.5.5).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cscd {
    /// CODE SET.
    pub code_set: u8,
    /// ASSOCIATION.
    pub association: u8,
    /// DESIGNATOR TYPE.
    pub designator_type: u8,
    /// DESIGNATOR.
    pub designator: ArrayVec<u8, MAX_DESIGNATOR>,
    /// PERIPHERAL DEVICE TYPE.
    pub device_type: u8,
    /// PAD.
    pub pad: bool,
    /// DISK BLOCK LENGTH in bytes; 0 if not stated.
    pub block_length: u32,
}

/// The length of a segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SegmentLength {
    /// Blocks: of the destination's length if `of_destination` (the DC bit), else of the source's.
    Blocks {
        /// BLOCK DEVICE NUMBER OF BLOCKS.
        count: u16,
        /// DC.
        of_destination: bool,
    },
    /// Bytes, from and to an offset within the first block.
    Bytes {
        /// NUMBER OF BYTES.
        count: u32,
        /// SOURCE BLOCK DEVICE BYTE OFFSET.
        source_offset: u16,
        /// DESTINATION BLOCK DEVICE BYTE OFFSET.
        destination_offset: u16,
    },
}

/// One block to block segment (SPC-4 §6.4.6.4, §6.4.6.12).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Segment {
    /// CAT: residual data carries over to the next segment.
    pub cat: bool,
    /// Index of the source's CSCD descriptor; it may be out of range.
    pub source: u16,
    /// Index of the destination's CSCD descriptor; it may be out of range.
    pub destination: u16,
    /// First LBA of the source.
    pub source_lba: u64,
    /// First LBA of the destination.
    pub destination_lba: u64,
    /// Length of the data to copy.
    pub length: SegmentLength,
}

/// A parsed parameter list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CopyList {
    /// LIST IDENTIFIER; 8 bits in a LID1 list, 32 bits in a LID4 list.
    pub list_id: u32,
    /// LIST ID USAGE.
    pub usage: ListIdUsage,
    /// IMMED: return status before the copy is done. LID4 only.
    pub immediate: bool,
    /// The copy sources and destinations.
    pub cscds: ArrayVec<Cscd, MAX_CSCDS>,
    /// The segments, to be processed in order.
    pub segments: Vec<Segment>,
}

/// Why a parameter list is rejected.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum CopyListError {
    /// PARAMETER LIST LENGTH ERROR: it is cut short, or longer than [`MAX_DESCRIPTOR_LIST_BYTES`].
    #[error("parameter list length error")]
    Length,
    /// INVALID FIELD IN PARAMETER LIST at this byte.
    #[error("invalid field in byte {0} of the parameter list")]
    Field(u16),
    /// TOO MANY TARGET DESCRIPTORS.
    #[error("more than {MAX_CSCDS} CSCD descriptors")]
    TooManyCscds,
    /// TOO MANY SEGMENT DESCRIPTORS.
    #[error("more than {MAX_SEGMENTS} segment descriptors")]
    TooManySegments,
    /// UNSUPPORTED TARGET DESCRIPTOR TYPE CODE at this byte.
    #[error("unsupported CSCD descriptor type in byte {0}")]
    CscdType(u16),
    /// UNSUPPORTED SEGMENT DESCRIPTOR TYPE CODE at this byte.
    #[error("unsupported segment descriptor type in byte {0}")]
    SegmentType(u16),
    /// INLINE DATA LENGTH EXCEEDED: inline data is not supported.
    #[error("inline data is not supported")]
    InlineData,
}

impl From<CopyListError> for Sense {
    fn from(error: CopyListError) -> Self {
        use AdditionalSense as A;
        match error {
            CopyListError::Length => Self::parameter_list_length_error(),
            CopyListError::Field(byte) => Self::invalid_field_in_parameter_list(byte, None),
            CopyListError::TooManyCscds => Self::in_parameter_list(A::TOO_MANY_TARGET_DESCRIPTORS, 2, None),
            CopyListError::TooManySegments => {
                Self::in_parameter_list(A::TOO_MANY_SEGMENT_DESCRIPTORS, 8, None)
            }
            CopyListError::CscdType(byte) => {
                Self::in_parameter_list(A::UNSUPPORTED_TARGET_DESCRIPTOR_TYPE_CODE, byte, None)
            }
            CopyListError::SegmentType(byte) => {
                Self::in_parameter_list(A::UNSUPPORTED_SEGMENT_DESCRIPTOR_TYPE_CODE, byte, None)
            }
            CopyListError::InlineData => Self::in_parameter_list(A::INLINE_DATA_LENGTH_EXCEEDED, 12, None),
        }
    }
}

fn be16(bytes: &[u8], at: usize) -> Option<u16> {
    bytes.get(at..at + 2)?.try_into().ok().map(u16::from_be_bytes)
}

fn be32(bytes: &[u8], at: usize) -> Option<u32> {
    bytes.get(at..at + 4)?.try_into().ok().map(u32::from_be_bytes)
}

fn be64(bytes: &[u8], at: usize) -> Option<u64> {
    bytes.get(at..at + 8)?.try_into().ok().map(u64::from_be_bytes)
}

/// A byte's offset in the list, for a field pointer.
fn place(at: usize) -> u16 {
    u16::try_from(at).unwrap_or(u16::MAX)
}

impl CopyList {
    /// The longest parameter list to receive, in bytes: the parser would reject a longer one.
    pub const MAX_LEN: u32 = HEADER_LEN_LID4 as u32 + MAX_DESCRIPTOR_LIST_BYTES;

    /// Reads a parameter list of PARAMETER LIST LENGTH bytes. The caller handles a length of zero,
    /// which is no error and copies nothing.
    ///
    /// # Errors
    /// A [`CopyListError`]; the unit must then copy nothing.
    pub fn parse(list: &[u8]) -> Result<Self, CopyListError> {
        let length = CopyListError::Length;
        let header = list.get(..HEADER_LEN).ok_or(length)?;
        let cscd_len = be16(header, 2).ok_or(length)?;
        let segment_len = be32(header, 8).ok_or(length)?;
        if be32(header, 12) != Some(0) {
            return Err(CopyListError::InlineData);
        }
        let total = u32::from(cscd_len).checked_add(segment_len).ok_or(length)?;
        if total > MAX_DESCRIPTOR_LIST_BYTES {
            return Err(length);
        }
        let (cscd_len, segment_len) =
            (usize::from(cscd_len), usize::try_from(segment_len).map_err(|_| length)?);
        let segments_at = HEADER_LEN + cscd_len;
        let cscds = list.get(HEADER_LEN..segments_at).ok_or(length)?;
        let segments = list.get(segments_at..segments_at + segment_len).ok_or(length)?;
        let usage = match header[1] >> 3 & 0x03 {
            0b00 => ListIdUsage::Hold,
            0b10 => ListIdUsage::Discard,
            0b11 if header[0] == 0 => ListIdUsage::None,
            0b11 => return Err(CopyListError::Field(0)),
            _ => return Err(CopyListError::Field(1)),
        };
        Ok(Self {
            list_id: header[0].into(),
            usage,
            immediate: false,
            cscds: Self::parse_cscds(cscds, HEADER_LEN)?,
            segments: Self::parse_segments(segments, segments_at)?,
        })
    }

    /// Reads a LID4 parameter list.
    ///
    /// # Errors
    /// A [`CopyListError`]; the unit must then copy nothing.
    pub fn parse_lid4(list: &[u8]) -> Result<Self, CopyListError> {
        let length = CopyListError::Length;
        let header = list.get(..HEADER_LEN_LID4).ok_or(length)?;
        // PARAMETER LIST FORMAT, HEADER CSCD DESCRIPTOR LIST LENGTH, HEADER CSCD DESCRIPTOR TYPE
        // CODE.
        for (at, wrong) in [(0, header[0] != 1), (2, be16(header, 2) != Some(0x20)), (16, header[16] != 0xFF)]
        {
            if wrong {
                return Err(CopyListError::Field(at));
            }
        }
        let (cscd_len, segment_len) = (be16(header, 42).ok_or(length)?, be16(header, 44).ok_or(length)?);
        if be16(header, 46) != Some(0) {
            return Err(CopyListError::InlineData);
        }
        if u32::from(cscd_len) + u32::from(segment_len) > MAX_DESCRIPTOR_LIST_BYTES {
            return Err(length);
        }
        let segments_at = HEADER_LEN_LID4 + usize::from(cscd_len);
        let cscds = list.get(HEADER_LEN_LID4..segments_at).ok_or(length)?;
        let segments = list.get(segments_at..segments_at + usize::from(segment_len)).ok_or(length)?;
        let immediate = header[15] & 0x01 != 0;
        // G_SENSE: GOOD status comes without sense data.
        if header[15] & 0x02 != 0 {
            return Err(CopyListError::Field(15));
        }
        let list_id = be32(header, 20).ok_or(length)?;
        let usage = match header[1] >> 3 & 0x03 {
            0b00 => ListIdUsage::Hold,
            0b10 => ListIdUsage::Discard,
            0b11 if list_id == 0 && !immediate => ListIdUsage::None,
            _ => return Err(CopyListError::Field(1)),
        };
        Ok(Self {
            list_id,
            usage,
            immediate,
            cscds: Self::parse_cscds(cscds, HEADER_LEN_LID4)?,
            segments: Self::parse_segments(segments, segments_at)?,
        })
    }

    fn parse_cscds(bytes: &[u8], base: usize) -> Result<ArrayVec<Cscd, MAX_CSCDS>, CopyListError> {
        if bytes.len() % CSCD_LEN != 0 {
            return Err(CopyListError::Length);
        }
        if bytes.len() / CSCD_LEN > MAX_CSCDS {
            return Err(CopyListError::TooManyCscds);
        }
        let mut cscds = ArrayVec::new();
        for (n, d) in bytes.chunks_exact(CSCD_LEN).enumerate() {
            let at = base + n * CSCD_LEN;
            if d[0] != CSCD_IDENTIFICATION {
                return Err(CopyListError::CscdType(place(at)));
            }
            let designator = d[8..28].get(..usize::from(d[7])).ok_or(CopyListError::Field(place(at + 7)))?;
            cscds.push(Cscd {
                code_set: d[4] & 0x0f,
                association: d[5] >> 4 & 0x03,
                designator_type: d[5] & 0x0f,
                designator: designator.iter().copied().collect(),
                device_type: d[1] & 0x1f,
                pad: d[28] & 0x04 != 0,
                block_length: u32::from_be_bytes([0, d[29], d[30], d[31]]),
            });
        }
        Ok(cscds)
    }

    fn parse_segments(bytes: &[u8], base: usize) -> Result<Vec<Segment>, CopyListError> {
        let mut segments = Vec::new();
        let mut at = 0;
        while at < bytes.len() {
            let rest = &bytes[at..];
            let length = usize::from(be16(rest, 2).ok_or(CopyListError::Length)?);
            let kind = rest[0];
            let expected = match kind {
                SEGMENT_BLOCKS => 0x18,
                SEGMENT_BYTES => 0x1c,
                _ => return Err(CopyListError::SegmentType(place(base + at))),
            };
            if length != expected {
                return Err(CopyListError::Field(place(base + at + 2)));
            }
            if segments.len() == MAX_SEGMENTS {
                return Err(CopyListError::TooManySegments);
            }
            let segment = rest.get(..4 + length).and_then(|d| Self::parse_segment(kind, d));
            segments.push(segment.ok_or(CopyListError::Length)?);
            at += 4 + length;
        }
        Ok(segments)
    }

    /// Parses one whole descriptor, `d`, of a supported type.
    fn parse_segment(kind: u8, d: &[u8]) -> Option<Segment> {
        let length = if kind == SEGMENT_BLOCKS {
            SegmentLength::Blocks { count: be16(d, 10)?, of_destination: d[1] & 0x02 != 0 }
        } else {
            SegmentLength::Bytes {
                count: be32(d, 8)?,
                source_offset: be16(d, 28)?,
                destination_offset: be16(d, 30)?,
            }
        };
        Some(Segment {
            cat: d[1] & 0x01 != 0,
            source: be16(d, 4)?,
            destination: be16(d, 6)?,
            source_lba: be64(d, 12)?,
            destination_lba: be64(d, 20)?,
            length,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cscd(kind: u8) -> Vec<u8> {
        let mut d = vec![kind, 0, 0, 0, 1, 3, 0, 16];
        d.extend_from_slice(&[0x60; 16]);
        d.extend_from_slice(&[0; 4]);
        d.extend_from_slice(&[0, 0, 2, 0]);
        d
    }

    fn blocks(kind: u8) -> Vec<u8> {
        let mut d = vec![kind, 2, 0, 0x18, 0, 0, 0, 1, 0, 0, 8, 0];
        d.extend_from_slice(&5u64.to_be_bytes());
        d.extend_from_slice(&6u64.to_be_bytes());
        d
    }

    fn bytes() -> Vec<u8> {
        let mut d = vec![0x0a, 0, 0, 0x1c, 0, 0, 0, 0, 0, 1, 0, 0];
        d.extend_from_slice(&7u64.to_be_bytes());
        d.extend_from_slice(&8u64.to_be_bytes());
        d.extend_from_slice(&[0, 3, 0, 4]);
        d
    }

    fn list(cscds: &[Vec<u8>], segments: &[Vec<u8>]) -> Vec<u8> {
        let (c, s) = (cscds.concat(), segments.concat());
        let mut list = vec![9, 0];
        list.extend_from_slice(&(c.len() as u16).to_be_bytes());
        list.extend_from_slice(&[0; 4]);
        list.extend_from_slice(&(s.len() as u32).to_be_bytes());
        list.extend_from_slice(&[0; 4]);
        [list, c, s].concat()
    }

    #[test]
    fn a_lid4_list_has_a_longer_header_and_the_same_descriptors() {
        let mut list = vec![0; 48];
        (list[0], list[1], list[3], list[15], list[16]) = (1, 0x10, 0x20, 1, 0xFF);
        list[20..24].copy_from_slice(&0x0102_0304u32.to_be_bytes());
        let (cscds, segments) = ([cscd(0xe4), cscd(0xe4)].concat(), [blocks(2), bytes()].concat());
        list[42..44].copy_from_slice(&(cscds.len() as u16).to_be_bytes());
        list[44..46].copy_from_slice(&(segments.len() as u16).to_be_bytes());
        list.extend([cscds, segments].concat());
        let parsed = CopyList::parse_lid4(&list).unwrap();
        assert_eq!((parsed.list_id, parsed.usage), (0x0102_0304, ListIdUsage::Discard));
        assert!(parsed.immediate);
        assert_eq!((parsed.cscds.len(), parsed.segments.len()), (2, 2));
        let refused = |at: usize, value: u8| {
            let mut list = list.clone();
            list[at] = value;
            CopyList::parse_lid4(&list).unwrap_err()
        };
        for (at, value) in [(0, 0), (16, 0), (15, 2), (1, 0x18), (1, 0x08)] {
            assert_eq!(refused(at, value), CopyListError::Field(at as u16));
        }
        assert_eq!(refused(3, 0x21), CopyListError::Field(2));
        assert_eq!(refused(47, 1), CopyListError::InlineData);
        assert_eq!(refused(48, 0xe0), CopyListError::CscdType(48));
        for cut in 0..list.len() {
            assert!(CopyList::parse_lid4(&list[..cut]).is_err());
        }
    }

    #[test]
    fn both_segment_types_are_read() {
        let parsed = CopyList::parse(&list(&[cscd(0xe4), cscd(0xe4)], &[blocks(2), bytes()])).unwrap();
        assert_eq!((parsed.list_id, parsed.usage), (9, ListIdUsage::Hold));
        assert_eq!(parsed.cscds[0].designator.as_slice(), [0x60; 16]);
        assert_eq!((parsed.cscds[0].designator_type, parsed.cscds[0].block_length), (3, 512));
        assert_eq!(
            parsed.segments,
            [
                Segment {
                    cat: false,
                    source: 0,
                    destination: 1,
                    source_lba: 5,
                    destination_lba: 6,
                    length: SegmentLength::Blocks { count: 2048, of_destination: true },
                },
                Segment {
                    cat: false,
                    source: 0,
                    destination: 0,
                    source_lba: 7,
                    destination_lba: 8,
                    length: SegmentLength::Bytes { count: 65536, source_offset: 3, destination_offset: 4 },
                },
            ]
        );
    }

    #[test]
    fn a_list_that_is_cut_anywhere_is_a_length_error() {
        let whole = list(&[cscd(0xe4)], &[blocks(2), bytes()]);
        for cut in 0..whole.len() {
            assert_eq!(CopyList::parse(&whole[..cut]), Err(CopyListError::Length), "{cut}");
        }
    }

    #[test]
    fn too_many_descriptors_are_named_and_too_long_a_list_is_a_length_error() {
        let many = |c, s| CopyList::parse(&list(&vec![cscd(0xe4); c], &vec![blocks(2); s]));
        assert!(many(MAX_CSCDS, MAX_SEGMENTS).is_ok());
        assert_eq!(many(MAX_CSCDS + 1, 1), Err(CopyListError::TooManyCscds));
        assert_eq!(many(1, MAX_SEGMENTS + 1), Err(CopyListError::TooManySegments));
        assert_eq!(many(MAX_CSCDS + 1, 140), Err(CopyListError::Length));
    }

    #[test]
    fn unknown_descriptors_are_named_by_type() {
        assert_eq!(CopyList::parse(&list(&[cscd(0xe0)], &[blocks(2)])), Err(CopyListError::CscdType(16)));
        assert_eq!(CopyList::parse(&list(&[cscd(0xe4)], &[blocks(3)])), Err(CopyListError::SegmentType(48)));
    }

    #[test]
    fn bad_fields_are_pointed_at() {
        let mut long = list(&[cscd(0xe4)], &[]);
        long[16 + 7] = 21;
        assert_eq!(CopyList::parse(&long), Err(CopyListError::Field(23)));
        let mut usage = list(&[], &[]);
        usage[1] = 0x08;
        assert_eq!(CopyList::parse(&usage), Err(CopyListError::Field(1)));
        usage[1] = 0x18;
        assert_eq!(CopyList::parse(&usage), Err(CopyListError::Field(0)));
        usage[0] = 0;
        assert_eq!(CopyList::parse(&usage).unwrap().usage, ListIdUsage::None);
        usage[12] = 1;
        assert_eq!(CopyList::parse(&usage), Err(CopyListError::InlineData));
        let mut short = list(&[], &[blocks(2)]);
        short[16 + 3] = 0x10;
        assert_eq!(CopyList::parse(&short), Err(CopyListError::Field(18)));
    }

    #[test]
    fn no_altered_byte_panics() {
        let whole = list(&[cscd(0xe4)], &[blocks(2), bytes()]);
        for at in 0..whole.len() {
            for value in [0, 1, 0x7f, 0x80, 0xff] {
                let mut bent = whole.clone();
                bent[at] = value;
                let _ = CopyList::parse(&bent);
            }
        }
    }
}
