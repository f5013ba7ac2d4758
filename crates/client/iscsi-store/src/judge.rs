//! What the end of a command means for it, for the store's cache of unflushed changes, and for what
//! the store knows of the far unit.

use backing::StoreError;
use scsi::{AdditionalSense, Sense, SenseKey};

/// A unit attention (SAM-5 §5.14). The command did not run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Attention {
    /// A power on or a reset: a volatile cache may be gone.
    Reset,
    /// The session alone was lost; the unit kept its cache.
    NexusLost,
    Capacity,
    /// The unit may be another one, or have another cache mode.
    Identity,
    Other,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    Good,
    /// Send it again at once.
    Attention(Attention),
    /// Send it again: it did not run to its end.
    Again,
    /// The same, after a pause.
    Busy,
    /// An earlier change, which was acknowledged, has failed. This command did not run.
    EarlierFailed,
    Failed(StoreError),
}

/// The verdict on a command that ended with `status`.
pub(crate) fn judge(status: u8, sense: Option<&Sense>) -> Verdict {
    match (status, sense) {
        (0x00 | 0x04, _) => Verdict::Good,
        (0x02, Some(sense)) => judge_sense(sense),
        // BUSY, TASK SET FULL, ACA ACTIVE.
        (0x08 | 0x28 | 0x30, _) => Verdict::Busy,
        // TASK ABORTED: by another initiator.
        (0x40, _) => Verdict::Again,
        // RESERVATION CONFLICT: another initiator excludes this one.
        (0x18, _) => Verdict::Failed(StoreError::Fenced),
        _ => Verdict::Failed(StoreError::Io(libc::EIO)),
    }
}

fn judge_sense(sense: &Sense) -> Verdict {
    let AdditionalSense { asc, ascq } = sense.additional;
    match sense.key {
        // A deferred error tells of an earlier command. This one did not run (SPC-4).
        SenseKey::NoSense | SenseKey::RecoveredError | SenseKey::Completed if sense.deferred => {
            Verdict::Again
        }
        SenseKey::MediumError
        | SenseKey::HardwareError
        | SenseKey::DataProtect
        | SenseKey::AbortedCommand
        | SenseKey::VolumeOverflow
            if sense.deferred =>
        {
            Verdict::EarlierFailed
        }
        SenseKey::NoSense | SenseKey::RecoveredError | SenseKey::Completed => Verdict::Good,
        SenseKey::UnitAttention => Verdict::Attention(attention(sense.additional)),
        // LOGICAL UNIT NOT READY: it becomes ready, or its path does.
        SenseKey::NotReady if asc == 0x04 => Verdict::Busy,
        SenseKey::AbortedCommand => Verdict::Again,
        SenseKey::IllegalRequest => match asc {
            0x20 | 0x24 | 0x26 => Verdict::Failed(StoreError::Unsupported),
            0x21 => Verdict::Failed(StoreError::OutOfRange),
            _ => Verdict::Failed(StoreError::Io(libc::EIO)),
        },
        SenseKey::DataProtect if (asc, ascq) == (0x27, 0x07) => Verdict::Failed(StoreError::NoSpace),
        SenseKey::DataProtect => Verdict::Failed(StoreError::ReadOnly),
        _ => Verdict::Failed(StoreError::Io(libc::EIO)),
    }
}

fn attention(code: AdditionalSense) -> Attention {
    match (code.asc, code.ascq) {
        (0x29, 0x00..=0x04) => Attention::Reset,
        (0x29, 0x07) => Attention::NexusLost,
        (0x2a, 0x09) => Attention::Capacity,
        // A medium that may have changed; mode parameters; INQUIRY data; the device identifier.
        (0x28, 0x00) | (0x2a, 0x00 | 0x01) | (0x3f, 0x03 | 0x05) => Attention::Identity,
        _ => Attention::Other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(key: SenseKey, asc: u8, ascq: u8) -> Verdict {
        judge(0x02, Some(&Sense::new(key, AdditionalSense::new(asc, ascq))))
    }

    #[test]
    fn only_a_lost_nexus_leaves_a_cache_as_it_was() {
        for ascq in 0..=4 {
            assert_eq!(check(SenseKey::UnitAttention, 0x29, ascq), Verdict::Attention(Attention::Reset));
        }
        assert_eq!(check(SenseKey::UnitAttention, 0x29, 7), Verdict::Attention(Attention::NexusLost));
        assert_eq!(check(SenseKey::UnitAttention, 0x2a, 9), Verdict::Attention(Attention::Capacity));
        assert_eq!(check(SenseKey::UnitAttention, 0x3f, 0x0e), Verdict::Attention(Attention::Other));
    }

    #[test]
    fn errors_are_the_stores() {
        use StoreError as E;
        for (key, asc, ascq, expected) in [
            (SenseKey::MediumError, 0x11, 0, E::Io(libc::EIO)),
            (SenseKey::HardwareError, 0x44, 0, E::Io(libc::EIO)),
            (SenseKey::IllegalRequest, 0x20, 0, E::Unsupported),
            (SenseKey::IllegalRequest, 0x21, 0, E::OutOfRange),
            (SenseKey::IllegalRequest, 0x25, 0, E::Io(libc::EIO)),
            (SenseKey::DataProtect, 0x27, 0, E::ReadOnly),
            (SenseKey::DataProtect, 0x27, 7, E::NoSpace),
            (SenseKey::NotReady, 0x3a, 0, E::Io(libc::EIO)),
        ] {
            assert_eq!(check(key, asc, ascq), Verdict::Failed(expected), "{key} {asc:#x}");
        }
        assert_eq!(judge(0x18, None), Verdict::Failed(E::Fenced), "RESERVATION CONFLICT");
    }

    #[test]
    fn what_may_pass_is_tried_again() {
        assert_eq!(check(SenseKey::NotReady, 0x04, 0x0a), Verdict::Busy);
        assert_eq!(check(SenseKey::AbortedCommand, 0x47, 3), Verdict::Again);
        assert_eq!([0x08, 0x28, 0x30].map(|status| judge(status, None)), [Verdict::Busy; 3]);
        assert_eq!(judge(0x40, None), Verdict::Again);
        assert_eq!(check(SenseKey::RecoveredError, 0x17, 1), Verdict::Good);
    }

    #[test]
    fn a_deferred_error_is_of_an_earlier_change() {
        let deferred = |key, asc, ascq| {
            let sense = Sense::new(key, AdditionalSense::new(asc, ascq));
            judge(0x02, Some(&Sense { deferred: true, ..sense }))
        };
        for (key, asc, ascq) in [
            (SenseKey::MediumError, 0x0c, 0),
            (SenseKey::HardwareError, 0x44, 0),
            (SenseKey::DataProtect, 0x27, 7),
            (SenseKey::AbortedCommand, 0, 0),
        ] {
            assert_eq!(deferred(key, asc, ascq), Verdict::EarlierFailed, "{key}");
        }
        // All is well with the earlier one, and this one did not run.
        for key in [SenseKey::NoSense, SenseKey::RecoveredError, SenseKey::Completed] {
            assert_eq!(deferred(key, 0x17, 1), Verdict::Again, "{key}");
        }
    }
}
