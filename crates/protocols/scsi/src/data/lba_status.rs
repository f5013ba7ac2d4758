//! GET LBA STATUS data (SBC-3 §5.4.2).

use super::Fields;

/// PROVISIONING STATUS (SBC-3 table 55).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Provisioning {
    /// The blocks have storage on the medium (or their state is unknown).
    Mapped,
    /// The blocks have no storage.
    Deallocated,
    /// The blocks have no storage yet, but it is reserved for them.
    Anchored,
}

/// A range of blocks in the same state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LbaStatus {
    /// First LBA.
    pub lba: u64,
    /// Blocks, at least 1.
    pub blocks: u32,
    /// The state of these blocks.
    pub provisioning: Provisioning,
}

/// Length in bytes of the data with this number of descriptors.
pub const fn len(descriptors: usize) -> usize {
    8 + 16 * descriptors
}

/// Number of descriptors that fit into an ALLOCATION LENGTH. At least 1: the range must be found to
/// report its length.
pub const fn fit(allocation: u32) -> usize {
    let whole = allocation.saturating_sub(8) as usize / 16;
    if whole == 0 { 1 } else { whole }
}

/// The data.
pub fn emit(ranges: &[LbaStatus]) -> Vec<u8> {
    let mut out = Vec::with_capacity(len(ranges.len()));
    out.extend(((4 + 16 * ranges.len()) as u32).to_be_bytes()); // PARAMETER DATA LENGTH
    out.extend([0; 4]);
    for range in ranges {
        out.extend(range.lba.to_be_bytes());
        out.extend(range.blocks.to_be_bytes());
        let status = match range.provisioning {
            Provisioning::Mapped => 0,
            Provisioning::Deallocated => 1,
            Provisioning::Anchored => 2,
        };
        out.extend([status, 0, 0, 0]);
    }
    out
}

/// Reads the data; returns the complete descriptors.
pub fn parse(bytes: &[u8]) -> Option<Vec<LbaStatus>> {
    let said = Fields(bytes).u32(0)? as usize;
    let list = bytes.get(8..bytes.len().min(said.saturating_add(4)).max(8))?;
    let range = |d: &[u8]| {
        let f = Fields(d);
        Some(LbaStatus {
            lba: f.u64(0)?,
            blocks: f.u32(8)?,
            provisioning: match f.u8(12)? & 0x0F {
                1 => Provisioning::Deallocated,
                2 => Provisioning::Anchored,
                _ => Provisioning::Mapped,
            },
        })
    };
    list.chunks_exact(16).map(range).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_range_is_a_descriptor_of_16_bytes() {
        let ranges = [
            LbaStatus { lba: 0x0102, blocks: 8, provisioning: Provisioning::Deallocated },
            LbaStatus { lba: 0x010A, blocks: 1, provisioning: Provisioning::Mapped },
        ];
        let data = emit(&ranges);
        assert_eq!(data[..24], [0, 0, 0, 36, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 2, 0, 0, 0, 8, 1, 0, 0, 0]);
        assert_eq!(data.len(), len(2));
        assert_eq!(parse(&data).as_deref(), Some(&ranges[..]));
        assert_eq!(parse(&data[..30]).as_deref(), Some(&ranges[..1]));
        assert_eq!(parse(&data[..7]), None);
    }

    #[test]
    fn an_allocation_length_of_24_has_room_for_one_range() {
        assert_eq!((fit(0), fit(24), fit(39), fit(40)), (1, 1, 1, 2));
    }
}
