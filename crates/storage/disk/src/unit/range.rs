//! A run of logical blocks, checked against the medium.

/// Blocks within the medium.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Range {
    pub lba: u64,
    /// Its first byte in the store.
    pub at: u64,
    /// Bytes, a multiple of the block size.
    pub bytes: u64,
}

impl Range {
    /// The block after the last one.
    pub fn end(&self, shift: u32) -> u64 {
        self.lba + (self.bytes >> shift)
    }

    /// The range in pieces of one chunk each, in order.
    pub fn chunks(self, shift: u32) -> impl Iterator<Item = Self> {
        self.steps(shift, super::limits::CHUNK_BYTES as u64)
    }

    /// The range in pieces of `step` bytes, a multiple of the block size; the last piece may be
    /// shorter.
    pub fn steps(self, shift: u32, step: u64) -> impl Iterator<Item = Self> {
        (0..self.bytes.div_ceil(step)).map(move |n| {
            let offset = n * step;
            Self {
                lba: self.lba + (offset >> shift),
                at: self.at + offset,
                bytes: step.min(self.bytes - offset),
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steps_cover_the_range_in_order_without_gaps() {
        let range = Range { lba: 10, at: 5120, bytes: 5 * 512 };
        let steps: Vec<_> = range.steps(9, 1024).collect();
        assert_eq!(
            steps,
            [
                Range { lba: 10, at: 5120, bytes: 1024 },
                Range { lba: 12, at: 6144, bytes: 1024 },
                Range { lba: 14, at: 7168, bytes: 512 },
            ]
        );
        assert_eq!(steps[2].end(9), range.end(9));
        assert_eq!(Range { bytes: 0, ..range }.steps(9, 1024).count(), 0);
    }
}
