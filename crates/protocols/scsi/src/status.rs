//! The status byte that ends a command (SAM-5 §5.3.1).

use std::fmt;

/// The status of a command (SAM-5 table 38).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Status {
    /// The command completed without error.
    Good = 0x00,
    /// Sense data describes the error.
    CheckCondition = 0x02,
    /// PRE-FETCH: everything fits in the cache.
    ConditionMet = 0x04,
    /// The unit cannot accept the command now; retry later.
    Busy = 0x08,
    /// A reservation of another I_T nexus forbids the command.
    ReservationConflict = 0x18,
    /// The task set is full.
    TaskSetFull = 0x28,
    /// An auto contingent allegiance is in force.
    AcaActive = 0x30,
    /// Another I_T nexus aborted the command, and TAS is one.
    TaskAborted = 0x40,
}

impl Status {
    /// The status with this code; `None` for obsolete and reserved codes.
    pub const fn from_code(code: u8) -> Option<Self> {
        Some(match code {
            0x00 => Self::Good,
            0x02 => Self::CheckCondition,
            0x04 => Self::ConditionMet,
            0x08 => Self::Busy,
            0x18 => Self::ReservationConflict,
            0x28 => Self::TaskSetFull,
            0x30 => Self::AcaActive,
            0x40 => Self::TaskAborted,
            _ => return None,
        })
    }

    /// The byte on the wire.
    pub const fn code(self) -> u8 {
        self as u8
    }
}

impl fmt::Display for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Good => "GOOD",
            Self::CheckCondition => "CHECK CONDITION",
            Self::ConditionMet => "CONDITION MET",
            Self::Busy => "BUSY",
            Self::ReservationConflict => "RESERVATION CONFLICT",
            Self::TaskSetFull => "TASK SET FULL",
            Self::AcaActive => "ACA ACTIVE",
            Self::TaskAborted => "TASK ABORTED",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_code_that_is_known_comes_back_as_itself() {
        let known: Vec<u8> =
            (0..=255).filter(|&c| Status::from_code(c).is_some_and(|s| s.code() == c)).collect();
        assert_eq!(known, [0x00, 0x02, 0x04, 0x08, 0x18, 0x28, 0x30, 0x40]);
    }
}
