//! UNMAP's parameter list (SBC-3 §5.28.2).

use super::Fields;
use crate::Sense;

/// A range of blocks to deallocate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UnmapRange {
    /// First LBA.
    pub lba: u64,
    /// Blocks; 0 deallocates nothing and is no error.
    pub blocks: u32,
}

/// The unit's limits, as its Block Limits page reports them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Capacity of the medium in blocks.
    pub capacity: u64,
    /// MAXIMUM UNMAP LBA COUNT: total blocks of one command; FFFFFFFFh for no limit.
    pub max_blocks: u32,
    /// MAXIMUM UNMAP BLOCK DESCRIPTOR COUNT; FFFFFFFFh for no limit.
    pub max_ranges: u32,
}

/// Length of the header in bytes.
const HEADER: usize = 8;
/// Length of a block descriptor in bytes.
const DESCRIPTOR: usize = 16;

/// Reads a parameter list and checks every range. An empty list has no ranges. At most 4095 ranges
/// fit into a list.
///
/// # Errors
/// PARAMETER LIST LENGTH ERROR for a truncated list. INVALID FIELD IN PARAMETER LIST beyond the
/// unit's limits. LOGICAL BLOCK ADDRESS OUT OF RANGE beyond its medium.
pub fn parse(list: &[u8], limits: &Limits) -> Result<Vec<UnmapRange>, Sense> {
    if list.is_empty() {
        return Ok(Vec::new());
    }
    let short = Sense::parameter_list_length_error;
    // UNMAP BLOCK DESCRIPTOR DATA LENGTH; UNMAP DATA LENGTH before it is redundant.
    let len = usize::from(Fields(list).u16(2).ok_or_else(short)?);
    let descriptors = list.get(HEADER..).and_then(|d| d.get(..len)).ok_or_else(short)?;
    // An incomplete descriptor at the end is ignored (SBC-3 §5.28.2).
    let descriptors = descriptors.chunks_exact(DESCRIPTOR);
    if descriptors.len() as u64 > u64::from(limits.max_ranges) {
        return Err(Sense::invalid_field_in_parameter_list(2, None));
    }
    let mut total = 0u64;
    let mut ranges = Vec::with_capacity(descriptors.len());
    for (i, d) in descriptors.enumerate() {
        let f = Fields(d);
        let (Some(lba), Some(blocks)) = (f.u64(0), f.u32(8)) else { return Err(short()) };
        if lba.checked_add(u64::from(blocks)).is_none_or(|end| end > limits.capacity) {
            return Err(Sense::lba_out_of_range());
        }
        total += u64::from(blocks);
        if limits.max_blocks != u32::MAX && total > u64::from(limits.max_blocks) {
            let byte = HEADER + i * DESCRIPTOR + 8;
            return Err(Sense::invalid_field_in_parameter_list(byte as u16, None));
        }
        ranges.push(UnmapRange { lba, blocks });
    }
    Ok(ranges)
}

/// A parameter list of `ranges`; only the first 4095 fit.
pub fn emit(ranges: &[UnmapRange]) -> Vec<u8> {
    let ranges = &ranges[..ranges.len().min((usize::from(u16::MAX) - HEADER) / DESCRIPTOR)];
    let len = (ranges.len() * DESCRIPTOR) as u16;
    let mut out = Vec::with_capacity(HEADER + usize::from(len));
    out.extend((len + 6).to_be_bytes());
    out.extend(len.to_be_bytes());
    out.extend([0; 4]);
    for range in ranges {
        out.extend(range.lba.to_be_bytes());
        out.extend(range.blocks.to_be_bytes());
        out.extend([0; 4]);
    }
    out
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::AdditionalSense;

    const LIMITS: Limits = Limits { capacity: 1000, max_blocks: 100, max_ranges: 2 };

    fn range(lba: u64, blocks: u32) -> UnmapRange {
        UnmapRange { lba, blocks }
    }

    #[test]
    fn a_list_has_a_header_of_8_bytes_and_16_for_each_range() {
        let ranges = [range(0x0102, 3), range(1000, 0)];
        let list = emit(&ranges);
        assert_eq!(list[..24], [0, 38, 0, 32, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 2, 0, 0, 0, 3, 0, 0, 0, 0]);
        assert_eq!(parse(&list, &LIMITS), Ok(ranges.to_vec()));
    }

    #[test]
    fn nothing_to_unmap_is_no_error() {
        assert_eq!(parse(&[], &LIMITS), Ok(vec![]));
        assert_eq!(parse(&[0, 6, 0, 0, 0, 0, 0, 0], &LIMITS), Ok(vec![]));
        // An incomplete descriptor at the end is ignored.
        assert_eq!(parse(&[0, 7, 0, 1, 0, 0, 0, 0, 9], &LIMITS), Ok(vec![]));
    }

    #[test]
    fn a_list_that_is_shorter_than_it_says_is_a_length_error() {
        let list = emit(&[range(0, 1)]);
        for len in 1..list.len() {
            assert_eq!(parse(&list[..len], &LIMITS), Err(Sense::parameter_list_length_error()), "{len}");
        }
    }

    #[test]
    fn ranges_beyond_the_medium_are_out_of_range_even_when_they_wrap() {
        for (lba, blocks) in [(1000, 1), (999, 2), (u64::MAX, 2), (1001, 0)] {
            assert_eq!(parse(&emit(&[range(lba, blocks)]), &LIMITS), Err(Sense::lba_out_of_range()));
        }
    }

    #[test]
    fn more_than_the_limits_is_an_invalid_field() {
        let many = emit(&[range(0, 1), range(2, 1), range(4, 1)]);
        assert_eq!(parse(&many, &LIMITS), Err(Sense::invalid_field_in_parameter_list(2, None)));
        let big = emit(&[range(0, 60), range(100, 41)]);
        assert_eq!(parse(&big, &LIMITS), Err(Sense::invalid_field_in_parameter_list(32, None)));
        assert_eq!(
            parse(&big, &LIMITS).unwrap_err().additional,
            AdditionalSense::INVALID_FIELD_IN_PARAMETER_LIST
        );
        assert!(parse(&emit(&[range(0, 60), range(100, 40)]), &LIMITS).is_ok());
        let unlimited = Limits { capacity: u64::MAX, max_blocks: u32::MAX, max_ranges: u32::MAX };
        assert!(parse(&emit(&[range(0, u32::MAX), range(0, u32::MAX)]), &unlimited).is_ok());
    }

    proptest! {
        #[test]
        fn no_list_makes_parse_panic_or_leave_the_medium(list in proptest::collection::vec(any::<u8>(), 0..100)) {
            if let Ok(ranges) = parse(&list, &LIMITS) {
                prop_assert!(ranges.iter().all(|r| r.lba + u64::from(r.blocks) <= LIMITS.capacity));
            }
        }
    }
}
