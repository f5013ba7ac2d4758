//! Direct placement: the transport receives a write's data from the network straight into its place
//! in the unit's memory.
//!
//! Owns the types for it. A unit that runs a WRITE names the place of the command's data
//! ([`crate::DataMover::lands`]). A transport may then receive into that memory ([`Land::land`]),
//! with one receive that does not wait. Nothing here ever waits, and the unit's memory is not held
//! between two receives. So an abort, a reset or the end of a unit waits for nothing.

use std::rc::Rc;
use std::sync::Arc;

use runtime::{Buf, RegionRange};

/// Minimum bytes for a receive of its own: copying less takes less time.
pub const LEAST: usize = 16 << 10;

/// Fills the start of the given memory at once, and returns the number of bytes.
pub type Fill<'a> = dyn FnMut(&mut RegionRange) -> usize + 'a;

/// A unit whose memory transports may receive into.
pub trait Land {
    /// Lets `fill` place data of a running WRITE at byte `at` of the medium, up to `len` bytes.
    /// Both are multiples of the logical block. It acts as an ordinary write of these blocks, with
    /// the same exclusion of atomic commands. Returns the bytes placed, whole blocks, which the
    /// command then writes to the same place.
    ///
    /// `None`: the unit refuses these blocks, or refuses now. Nothing was filled, and the data must
    /// go through a buffer.
    fn land(&self, at: u64, len: usize, fill: &mut Fill<'_>) -> Option<Buf>;
}

impl<T: Land + ?Sized> Land for Arc<T> {
    fn land(&self, at: u64, len: usize, fill: &mut Fill<'_>) -> Option<Buf> {
        (**self).land(at, len, fill)
    }
}

/// The place of one command's data on the medium.
#[derive(Clone)]
pub struct Landing {
    /// The unit, referenced only by this core.
    pub unit: Rc<dyn Land>,
    /// Byte of the medium where the command's data-out begins; the data is contiguous.
    pub at: u64,
    /// Length of the data, bytes.
    pub len: u64,
    /// The unit's logical block, bytes: a power of two.
    pub block: u32,
}

impl std::fmt::Debug for Landing {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Landing({} bytes at {})", self.len, self.at)
    }
}

/// The way to receive the next bytes of a command's data: see [`Landing::step`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// Receive this number of bytes directly, at this byte of the medium.
    Land(u64, usize),
    /// Receive this number of bytes into a buffer, up to the next start or end of a block.
    Aside(usize),
    /// Receive all the rest into a buffer.
    Rest,
}

impl Landing {
    /// Decides how to receive the next bytes of the command's data-out, from `offset` on. `wanted`:
    /// bytes still missing. `there`: bytes in the socket now. `least`: shortest run worth a receive
    /// of its own, one block if it extends the previous run. `wanted` and `there` are at least 1.
    pub fn step(&self, offset: u64, wanted: usize, there: usize, least: usize) -> Step {
        let block = u64::from(self.block);
        let belong = usize::try_from(self.len.saturating_sub(offset)).unwrap_or(usize::MAX).min(wanted);
        let whole = |bytes: usize| bytes - bytes % self.block as usize;
        let skew = (offset % block) as usize;
        let until = if skew == 0 { 0 } else { self.block as usize - skew };
        if whole(belong.saturating_sub(until)) < least {
            return Step::Rest;
        }
        if until > 0 {
            return Step::Aside(until.min(there));
        }
        match whole(belong.min(there)) {
            0 => Step::Aside(there.min(wanted)),
            few if few < least => Step::Aside(few),
            enough => Step::Land(self.at + offset, enough),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Nowhere;

    impl Land for Nowhere {
        fn land(&self, _at: u64, _len: usize, _fill: &mut Fill<'_>) -> Option<Buf> {
            None
        }
    }

    fn landing() -> Landing {
        Landing { unit: Rc::new(Nowhere), at: 4096, len: 100_352, block: 512 }
    }

    #[test]
    fn only_whole_blocks_land_and_only_where_they_belong() {
        let landing = landing();
        let step = |offset, wanted, there| landing.step(offset, wanted, there, 16_384);
        assert_eq!(step(0, 65_536, 65_536), Step::Land(4096, 65_536));
        assert_eq!(step(0, 65_536, 20_000), Step::Land(4096, 19_968));
        assert_eq!(step(1024, 65_536, 65_536), Step::Land(5120, 65_536));
        // Within a block whose other bytes are in a buffer.
        assert_eq!(step(1000, 65_536, 65_536), Step::Aside(24));
        assert_eq!(step(1000, 65_536, 10), Step::Aside(10));
        // No more than the command requests, even if the peer sends more.
        assert_eq!(step(65_536, 65_536, 65_536), Step::Land(69_632, 34_816));
        assert_eq!(step(100_352, 65_536, 65_536), Step::Rest);
        assert_eq!(step(1 << 40, 65_536, 65_536), Step::Rest);
    }

    #[test]
    fn what_is_too_little_to_be_worth_it_goes_aside() {
        let landing = landing();
        let step = |offset, wanted, there| landing.step(offset, wanted, there, 16_384);
        assert_eq!(step(0, 16_383, 16_383), Step::Rest);
        assert_eq!(step(0, 65_536, 3000), Step::Aside(2560));
        assert_eq!(step(0, 65_536, 100), Step::Aside(100));
        // A run that extends the previous one may be as short as one block.
        assert_eq!(landing.step(65_536, 700, 700, 512), Step::Land(69_632, 512));
        assert_eq!(landing.step(65_536, 500, 500, 512), Step::Rest);
    }
}
