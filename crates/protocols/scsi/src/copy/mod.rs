//! Third-party copy (SPC-4 §5.17, §6.4; SBC-3 §4.28): EXTENDED COPY's parameter lists, LID1 and
//! LID4, with block to block segments. Copies by token, and the data of the commands that query
//! results.
//!
//! Owns bytes, limits and the records of copies. It never moves a block and knows no unit.

mod list;
mod operations;
pub mod rod;
mod status;
mod tokens;

pub use list::{CopyList, CopyListError, Cscd, ListIdUsage, Segment, SegmentLength};
pub use operations::{Ending, Operations, Originator};
pub use status::{CopyProgress, CopyRecords, CopyState, RecordError};
pub use tokens::Tokens;

/// CSCD descriptors in one parameter list: MAXIMUM CSCD DESCRIPTOR COUNT.
pub const MAX_CSCDS: usize = 16;
/// Segment descriptors in one parameter list: MAXIMUM SEGMENT DESCRIPTOR COUNT.
pub const MAX_SEGMENTS: usize = 64;
/// Bytes of all descriptors of one parameter list: MAXIMUM DESCRIPTOR LIST LENGTH.
pub(crate) const MAX_DESCRIPTOR_LIST_BYTES: u32 = 4096;
/// Maximum bytes to copy in one segment: MAXIMUM SEGMENT LENGTH.
pub const MAX_SEGMENT_BYTES: u32 = 32 << 20;
/// Copies that a unit runs concurrently: MAXIMUM CONCURRENT COPIES.
pub(crate) const MAX_CONCURRENT: u8 = 16;

/// DESCRIPTOR TYPE CODE of an identification descriptor CSCD descriptor.
pub(crate) const CSCD_IDENTIFICATION: u8 = 0xe4;
/// DESCRIPTOR TYPE CODE of a block device to block device segment.
pub(crate) const SEGMENT_BLOCKS: u8 = 0x02;
/// DESCRIPTOR TYPE CODE of a block device to block device segment with byte offsets and a byte
/// count.
pub(crate) const SEGMENT_BYTES: u8 = 0x0a;

/// SERVICE ACTION of RECEIVE COPY RESULTS (SPC-4 §6.17 to §6.20): those that block to block copies
/// need.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum ResultsAction {
    /// RECEIVE COPY STATUS(LID1).
    CopyStatus = 0x00,
    /// RECEIVE COPY OPERATING PARAMETERS.
    OperatingParameters = 0x03,
    /// RECEIVE COPY FAILURE DETAILS(LID1), formerly FAILED SEGMENT DETAILS.
    FailedSegmentDetails = 0x04,
    /// RECEIVE COPY STATUS(LID4).
    CopyStatusLid4 = 0x05,
    /// RECEIVE ROD TOKEN INFORMATION.
    RodTokenInformation = 0x07,
}

impl ResultsAction {
    /// All of them.
    pub const ALL: [Self; 5] = [
        Self::CopyStatus,
        Self::OperatingParameters,
        Self::FailedSegmentDetails,
        Self::CopyStatusLid4,
        Self::RodTokenInformation,
    ];

    /// From the SERVICE ACTION field.
    pub fn from_code(code: u8) -> Option<Self> {
        Self::ALL.into_iter().find(|a| *a as u8 == code)
    }
}

/// RECEIVE COPY OPERATING PARAMETERS data (SPC-4 §6.19) for a unit with blocks of `block_length`
/// bytes.
pub fn operating_parameters(block_length: u32) -> Vec<u8> {
    let types = [SEGMENT_BLOCKS, SEGMENT_BYTES, CSCD_IDENTIFICATION];
    let mut data = vec![0u8; 44];
    // SNLID: list identifiers are optional.
    data[4] = 1;
    data[8..10].copy_from_slice(&(MAX_CSCDS as u16).to_be_bytes());
    data[10..12].copy_from_slice(&(MAX_SEGMENTS as u16).to_be_bytes());
    data[12..16].copy_from_slice(&MAX_DESCRIPTOR_LIST_BYTES.to_be_bytes());
    data[16..20].copy_from_slice(&MAX_SEGMENT_BYTES.to_be_bytes());
    // No inline data, no held data, no streams: bytes 20 to 31 stay zero.
    data[34..36].copy_from_slice(&u16::from(MAX_CONCURRENT).to_be_bytes());
    data[36] = MAX_CONCURRENT;
    // DATA SEGMENT GRANULARITY, a power of two.
    data[37] = block_length.trailing_zeros() as u8;
    data[43] = types.len() as u8;
    data.extend_from_slice(&types);
    let available = (data.len() - 4) as u32;
    data[..4].copy_from_slice(&available.to_be_bytes());
    data
}

/// Page code of the Third-party Copy VPD page.
pub const THIRD_PARTY_COPY_PAGE: u8 = 0x8f;

/// The body of the Third-party Copy VPD page (SPC-4 §7.8.17) for a unit with blocks of
/// `block_length` bytes. It lists the commands, descriptors and sizes that [`CopyList::parse`] and
/// its copy manager support.
pub fn third_party_copy_page(block_length: u32) -> Vec<u8> {
    let results = ResultsAction::ALL.map(|action| action as u8);
    // EXTENDED COPY(LID1) and (LID4), POPULATE TOKEN, WRITE USING TOKEN, COPY OPERATION ABORT;
    // RECEIVE COPY RESULTS with its service actions.
    let commands =
        [&[0x83, 5, 0x00, 0x01, 0x10, 0x11, 0x1C, 0x84, results.len() as u8][..], &results].concat();
    let types = [SEGMENT_BLOCKS, SEGMENT_BYTES, CSCD_IDENTIFICATION];
    let mut parameters = vec![0; 28];
    parameters[4..6].copy_from_slice(&(MAX_CSCDS as u16).to_be_bytes());
    parameters[6..8].copy_from_slice(&(MAX_SEGMENTS as u16).to_be_bytes());
    parameters[8..12].copy_from_slice(&MAX_DESCRIPTOR_LIST_BYTES.to_be_bytes());
    let mut general = vec![0; 32];
    general[..4].copy_from_slice(&u32::from(MAX_CONCURRENT).to_be_bytes());
    general[4..8].copy_from_slice(&u32::from(MAX_CONCURRENT).to_be_bytes());
    general[8..12].copy_from_slice(&MAX_SEGMENT_BYTES.to_be_bytes());
    general[12] = block_length.trailing_zeros() as u8;
    let [limits, features, rod_types] = rod::descriptors(block_length);
    let mut page = Vec::new();
    for (kind, content) in [
        limits,
        (0x0001u16, [&[commands.len() as u8][..], &commands].concat()),
        (0x0004, parameters),
        (0x0008, [&[types.len() as u8][..], &types].concat()),
        // No CSCD descriptor IDs other than indexes into the list.
        (0x000c, vec![0, 0]),
        features,
        rod_types,
        (0x8001, general),
    ] {
        // The length of each descriptor is a multiple of four bytes.
        let length = content.len().next_multiple_of(4);
        page.extend_from_slice(&kind.to_be_bytes());
        page.extend_from_slice(&(length as u16).to_be_bytes());
        page.extend_from_slice(&content);
        page.resize(page.len() + length - content.len(), 0);
    }
    page
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn operating_parameters_say_what_is_parsed() {
        let data = operating_parameters(4096);
        assert_eq!(data.len(), 47);
        assert_eq!(data[..5], [0, 0, 0, 43, 1]);
        assert_eq!(data[8..12], [0, 16, 0, 64]);
        assert_eq!(data[37], 12);
        assert_eq!(data[43..], [3, 0x02, 0x0a, 0xe4]);
    }

    #[test]
    fn the_vpd_page_is_a_list_of_whole_descriptors_in_ascending_order() {
        let page = third_party_copy_page(512);
        assert_eq!(page[..4], [0, 0, 0, 0x20]);
        let commands = [0, 1, 0, 16, 14, 0x83, 5, 0, 1, 0x10, 0x11, 0x1C, 0x84, 5, 0, 3, 4, 5, 7, 0];
        assert_eq!(page[36..56], commands);
        let (mut rest, mut kinds) = (&page[..], Vec::new());
        while let [a, b, c, d, ..] = *rest {
            kinds.push(u16::from_be_bytes([a, b]));
            let length = usize::from(u16::from_be_bytes([c, d]));
            assert_eq!(length % 4, 0);
            rest = &rest[4 + length..];
        }
        assert!(rest.is_empty());
        assert_eq!(kinds, [0, 1, 4, 8, 12, 0x106, 0x108, 0x8001]);
    }

    #[test]
    fn one_descriptor_too_many_of_each_kind_still_fits_the_list_length() {
        // So the error reports the count and not the length.
        assert!((MAX_CSCDS + 1) * 32 + (MAX_SEGMENTS + 1) * 32 <= MAX_DESCRIPTOR_LIST_BYTES as usize);
    }
}
