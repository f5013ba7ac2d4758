//! Names of state: makes the server's stateids, compares them, and keeps the current stateid of a
//! COMPOUND (RFC 8881 §8.2, §16.2.3.1.2).

use super::saved::saved;
use crate::v4::{Stateid, Status};

/// The number of an open, of a set of locks or of a delegation. Never used twice.
pub(super) type StateNo = u64;

/// Makes numbers of state, and ties them to this start of the server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Names {
    start: u32,
    last: StateNo,
}

saved! { Names { start, last } }

impl Names {
    /// `start` differs from that of earlier starts, so their stateids are unknown now.
    pub(super) fn new(start: u32) -> Self {
        Names { start, last: 0 }
    }

    pub(super) fn next(&mut self) -> StateNo {
        self.last += 1;
        self.last
    }

    pub(super) fn stateid(&self, number: StateNo, seqid: u32) -> Stateid {
        let mut other = [0; 12];
        other[..4].copy_from_slice(&self.start.to_be_bytes());
        other[4..].copy_from_slice(&number.to_be_bytes());
        Stateid { seqid, other }
    }

    /// The number in a stateid of this start. In 4.1 one of an earlier start is BAD_STATEID.
    pub(super) fn number(&self, stateid: &Stateid) -> Result<StateNo, Status> {
        let (start, number) = stateid.other.split_at(4);
        if start != self.start.to_be_bytes() {
            return Err(Status::BadStateid);
        }
        number.try_into().map(StateNo::from_be_bytes).map_err(|_| Status::BadStateid)
    }
}

/// The seqid after `seqid`: 0 is left out (RFC 8881 §8.2.2).
pub(super) fn bumped(seqid: u32) -> u32 {
    seqid.checked_add(1).unwrap_or(1)
}

/// Compares a client's seqid with that of the state; 0 means the latest (RFC 8881 §8.2.2).
pub(super) fn check_seqid(sent: u32, latest: u32) -> Result<(), Status> {
    if sent == 0 || sent == latest {
        Ok(())
    } else if latest.wrapping_sub(sent) < u32::MAX / 2 {
        Err(Status::OldStateid)
    } else {
        Err(Status::BadStateid)
    }
}

/// The current and the saved stateid of one COMPOUND.
#[derive(Debug, Clone, Copy, Default)]
pub struct Current {
    current: Option<Stateid>,
    saved: Option<Stateid>,
}

impl Current {
    /// After an operation that returns a stateid.
    pub fn set(&mut self, stateid: Stateid) {
        self.current = Some(stateid);
    }

    /// After an operation that sets another current file handle.
    pub fn clear(&mut self) {
        self.current = None;
    }

    /// SAVEFH.
    pub fn save(&mut self) {
        self.saved = self.current;
    }

    /// RESTOREFH.
    pub fn restore(&mut self) {
        self.current = self.saved;
    }

    /// The stateid that an operation's argument means.
    ///
    /// # Errors
    /// BAD_STATEID: the argument is [`Stateid::CURRENT`], and there is none.
    pub fn resolve(&self, stateid: Stateid) -> Result<Stateid, Status> {
        if stateid == Stateid::CURRENT { self.current.ok_or(Status::BadStateid) } else { Ok(stateid) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// RFC 8881 §8.2.2: smaller is OLD_STATEID, greater is BAD_STATEID, over the wrap as well.
    #[test]
    fn a_seqid_is_compared_over_its_wrap() {
        assert_eq!(check_seqid(0, 7), Ok(()));
        assert_eq!(check_seqid(7, 7), Ok(()));
        assert_eq!(check_seqid(6, 7), Err(Status::OldStateid));
        assert_eq!(check_seqid(8, 7), Err(Status::BadStateid));
        assert_eq!(bumped(u32::MAX), 1);
        assert_eq!(check_seqid(u32::MAX, 1), Err(Status::OldStateid));
        assert_eq!(check_seqid(1, u32::MAX), Err(Status::BadStateid));
    }

    /// RFC 8881 §16.2.3.1.2.
    #[test]
    fn the_current_stateid_follows_the_current_file_handle() {
        let names = Names::new(5);
        let (one, other) = (names.stateid(1, 1), names.stateid(2, 1));
        let mut current = Current::default();
        assert_eq!(current.resolve(Stateid::CURRENT), Err(Status::BadStateid));
        assert_eq!(current.resolve(other), Ok(other));
        current.set(one);
        current.save();
        current.clear();
        assert_eq!(current.resolve(Stateid::CURRENT), Err(Status::BadStateid));
        current.set(other);
        assert_eq!(current.resolve(Stateid::CURRENT), Ok(other));
        current.restore();
        assert_eq!(current.resolve(Stateid::CURRENT), Ok(one));
    }

    #[test]
    fn a_stateid_of_an_earlier_start_is_bad() {
        let stateid = Names::new(5).stateid(3, 1);
        assert_eq!(Names::new(5).number(&stateid), Ok(3));
        assert_eq!(Names::new(6).number(&stateid), Err(Status::BadStateid));
    }
}
