//! The record that travels with a unit: its reservations, registrations and what else has to
//! outlive its owner.
//!
//! It is an object beside the image, changed by compare-and-set on its version. A command that
//! changes it (PERSISTENT RESERVE OUT, SPC-6 §5.13) answers GOOD only after the change is kept. This
//! file knows when that is; the bytes are the unit's.

use crate::id::Version;

/// The record of one unit at its owner.
#[derive(Debug)]
pub struct Carried {
    version: Version,
    state: State,
}

#[derive(Debug, PartialEq, Eq)]
enum State {
    /// The object has what this owner knows.
    Kept,
    /// A change is in flight.
    Keeping,
    /// Somebody else changed the object: this gateway is not the owner any more.
    Lost,
}

/// Why a change cannot begin, or was not kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refused {
    /// Another change is in flight: the command waits for it.
    Busy,
    /// The record is another owner's. The command ends without GOOD, and the unit closes.
    Lost,
}

impl Carried {
    /// The record as the owner loaded it when it opened the unit.
    #[must_use]
    pub fn loaded(version: Version) -> Self {
        Self { version, state: State::Kept }
    }

    /// Begins a change. The driver writes the bytes if the object still has the returned version.
    ///
    /// # Errors
    /// If no change can begin now.
    pub fn change(&mut self) -> Result<Version, Refused> {
        match self.state {
            State::Kept => {
                self.state = State::Keeping;
                Ok(self.version)
            }
            State::Keeping => Err(Refused::Busy),
            State::Lost => Err(Refused::Lost),
        }
    }

    /// The write has ended: with the object's new version, or because the version differed. `Ok`
    /// lets the command answer GOOD.
    ///
    /// # Errors
    /// [`Refused::Lost`] if the change was not kept.
    pub fn written(&mut self, outcome: Option<Version>) -> Result<(), Refused> {
        if !invariant::invariant!(self.state == State::Keeping, "no change of the record is in flight") {
            return Err(Refused::Lost);
        }
        match outcome {
            Some(version) => {
                self.version = version;
                self.state = State::Kept;
                Ok(())
            }
            None => {
                self.state = State::Lost;
                Err(Refused::Lost)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_change_that_met_another_owner_is_never_good() {
        let mut carried = Carried::loaded(Version(4));
        assert_eq!(carried.change(), Ok(Version(4)));
        assert_eq!(carried.change(), Err(Refused::Busy));
        assert_eq!(carried.written(Some(Version(5))), Ok(()));
        assert_eq!(carried.change(), Ok(Version(5)));
        assert_eq!(carried.written(None), Err(Refused::Lost));
        assert_eq!(carried.change(), Err(Refused::Lost));
    }
}
