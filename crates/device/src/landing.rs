//! Landing: a write's data goes from the network straight to where it belongs, in the memory that its unit stands on.
//!
//! Owns the words for it. A unit that runs a WRITE says where the command's data belongs ([`crate::DataMover::lands`]); a
//! transport that receives some of it may have the unit lend it that memory ([`Land::land`]) for one receive that does not
//! wait. Nothing here ever waits, and nobody holds a unit's memory between two receives: so an abort, a reset or the end of a
//! unit has nothing to wait for either.

use std::rc::Rc;
use std::sync::Arc;

use ring::{Buf, RegionRange};

/// Fewer bytes than this are not worth a receive of their own: they are copied in less time.
pub const LEAST: usize = 16 << 10;

/// Fills the beginning of a place that was lent, at once, and says how many bytes.
pub type Fill<'a> = dyn FnMut(&mut RegionRange) -> usize + 'a;

/// A unit that lends its memory.
pub trait Land {
    /// Has `fill` put bytes of a WRITE that is at work at byte `at` of the medium, up to `len` of them, both multiples of the logical
    /// block: as a plain write of these blocks does, and kept from commands that must be atomic as one. Gives the bytes that came, which
    /// the command then writes to where they are. What came must be whole blocks.
    ///
    /// `None`: not these, or not now; nothing was filled, and the bytes go the long way.
    fn land(&self, at: u64, len: usize, fill: &mut Fill<'_>) -> Option<Buf>;
}

impl<T: Land + ?Sized> Land for Arc<T> {
    fn land(&self, at: u64, len: usize, fill: &mut Fill<'_>) -> Option<Buf> {
        (**self).land(at, len, fill)
    }
}

/// Where the data of one command belongs.
#[derive(Clone)]
pub struct Landing {
    /// The unit, held by this core alone.
    pub unit: Rc<dyn Land>,
    /// Where on the medium the first byte of the command's data-out belongs, bytes; the others follow it.
    pub at: u64,
    /// How many bytes belong there.
    pub len: u64,
    /// The unit's logical block, bytes: a power of two.
    pub block: u32,
}

impl std::fmt::Debug for Landing {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Landing({} bytes at {})", self.len, self.at)
    }
}

/// What can be received next of a command's data, by [`Landing::step`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// So many bytes, at this byte of the medium.
    Land(u64, usize),
    /// So many bytes to elsewhere, so that what comes then begins or ends with a block.
    Aside(usize),
    /// All the rest to elsewhere.
    Rest,
}

impl Landing {
    /// What to do with the bytes from `offset` of the command's data-out on, of which `wanted` are to be received, `there` have come
    /// and can be received now, and `least` are worth it; where the bytes before these have landed, all that is left is. At least
    /// one byte is there and wanted.
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
        // In the middle of a block: its other bytes are elsewhere.
        assert_eq!(step(1000, 65_536, 65_536), Step::Aside(24));
        assert_eq!(step(1000, 65_536, 10), Step::Aside(10));
        // No more than the command calls for, whatever is sent.
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
        // Behind what has landed all is worth it, down to a block.
        assert_eq!(landing.step(65_536, 700, 700, 512), Step::Land(69_632, 512));
        assert_eq!(landing.step(65_536, 500, 500, 512), Step::Rest);
    }
}
