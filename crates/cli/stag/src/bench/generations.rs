//! The generations of each place of a unit: the latest acknowledged, and the latest sent.
//!
//! A place is as long as an I/O; its generations count its writes from 1. Every later read must
//! find an acknowledged write. A write that failed, or whose end is unknown, may be found or not.
//! Only one write of a place is in flight at a time, so their order is known. A place takes 8
//! bytes.

/// Generations that a read may find.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Expected {
    /// Any content: no write was acknowledged yet.
    Anything,
    /// A generation of this range: the first is acknowledged, those after it were sent.
    From(u32, u32),
}

/// The generations of places 0 to n-1.
#[derive(Debug)]
pub struct Generations {
    /// Acknowledged in bits 0 to 31, sent in bits 32 to 62, a write in flight in bit 63.
    places: Vec<u64>,
}

/// Bytes of memory that a place takes.
pub const BYTES_OF_PLACE: u64 = 8;
const UNDER_WAY: u64 = 1 << 63;
const LAST: u64 = (1 << 31) - 1;

impl Generations {
    /// Nothing is known of `n` places.
    pub fn new(n: usize) -> Self {
        Self { places: vec![0; n] }
    }

    fn acknowledged(place: u64) -> u32 {
        place as u32
    }

    fn sent(place: u64) -> u32 {
        (place >> 32 & LAST) as u32
    }

    /// Begins a write and returns its generation. `None` while another write of the place is in
    /// flight, if the place does not exist, or after 2³¹ − 1 writes of it.
    pub fn begin_write(&mut self, at: u64) -> Option<u32> {
        let place = usize::try_from(at).ok().and_then(|at| self.places.get_mut(at))?;
        let next = u64::from(Self::sent(*place)) + 1;
        if *place & UNDER_WAY != 0 || next > LAST {
            return None;
        }
        *place = UNDER_WAY | next << 32 | u64::from(Self::acknowledged(*place));
        Some(next as u32)
    }

    /// Ends a write. Without `acknowledged`, it is unknown whether the unit has the data.
    pub fn end_write(&mut self, at: u64, acknowledged: bool) {
        let Some(place) = usize::try_from(at).ok().and_then(|at| self.places.get_mut(at)) else { return };
        *place &= !UNDER_WAY;
        if acknowledged {
            let sent = u64::from(Self::sent(*place));
            *place = sent << 32 | sent;
        }
    }

    /// The oldest generation that a read that begins now may find; 0 if it may find anything.
    pub fn begin_read(&self, at: u64) -> u32 {
        self.get(at).map_or(0, Self::acknowledged)
    }

    /// The generations that a read that ends now may have found. `oldest` is the value that
    /// [`Generations::begin_read`] returned.
    pub fn end_read(&self, at: u64, oldest: u32) -> Expected {
        match (oldest, self.get(at)) {
            (0, _) | (_, None) => Expected::Anything,
            (oldest, Some(place)) => Expected::From(oldest, Self::sent(place)),
        }
    }

    /// Whether a write of the place was acknowledged, and none is in flight.
    pub fn is_known(&self, at: u64) -> bool {
        self.get(at).is_some_and(|place| Self::acknowledged(place) != 0 && place & UNDER_WAY == 0)
    }

    fn get(&self, at: u64) -> Option<u64> {
        self.places.get(usize::try_from(at).ok()?).copied()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_place_that_was_never_written_may_hold_anything() {
        let map = Generations::new(2);
        assert_eq!(map.end_read(0, map.begin_read(0)), Expected::Anything);
        assert!(!map.is_known(0));
    }

    #[test]
    fn an_acknowledged_write_must_be_found() {
        let mut map = Generations::new(1);
        assert_eq!(map.begin_write(0), Some(1));
        map.end_write(0, true);
        assert_eq!(map.end_read(0, map.begin_read(0)), Expected::From(1, 1));
        assert!(map.is_known(0));
    }

    #[test]
    fn a_write_of_unknown_outcome_may_show_until_the_next_acknowledged_one() {
        let mut map = Generations::new(1);
        for acknowledged in [true, false, false] {
            map.begin_write(0);
            map.end_write(0, acknowledged);
        }
        assert_eq!(map.end_read(0, map.begin_read(0)), Expected::From(1, 3));
        assert_eq!(map.begin_write(0), Some(4));
        map.end_write(0, true);
        assert_eq!(map.end_read(0, map.begin_read(0)), Expected::From(4, 4));
    }

    #[test]
    fn a_read_beside_a_write_may_find_either() {
        let mut map = Generations::new(1);
        map.begin_write(0);
        map.end_write(0, true);
        let before = map.begin_read(0);
        map.begin_write(0);
        let during = map.begin_read(0);
        map.end_write(0, true);
        assert_eq!(map.end_read(0, before), Expected::From(1, 2));
        assert_eq!(map.end_read(0, during), Expected::From(1, 2));
        assert_eq!(map.end_read(0, map.begin_read(0)), Expected::From(2, 2));
    }

    #[test]
    fn a_place_has_one_write_at_a_time() {
        let mut map = Generations::new(1);
        assert_eq!(map.begin_write(0), Some(1));
        assert_eq!(map.begin_write(0), None);
        assert!(!map.is_known(0));
        map.end_write(0, false);
        assert_eq!(map.begin_write(0), Some(2));
        assert_eq!(map.begin_write(1), None);
        map.end_write(7, true);
    }

    #[test]
    fn generations_never_wrap() {
        let mut map = Generations { places: vec![LAST << 32 | 7] };
        assert_eq!(map.begin_write(0), None);
        assert_eq!(map.end_read(0, map.begin_read(0)), Expected::From(7, LAST as u32));
    }
}
