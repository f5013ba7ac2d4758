//! The life of a connection: one [`Phase`] after the other, and never back.

use std::cell::Cell;

/// Phases of a connection's life, in order.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Phase {
    /// It receives, and serves commands.
    #[default]
    Running,
    /// It takes no more commands, and closes when the running ones have ended: another daemon takes
    /// over.
    Draining,
    /// It ends when everything queued has been sent.
    Closing {
        /// It was asked a second time to close: its tasks need not wait for another connection.
        again: bool,
    },
    /// Detached (ErrorRecoveryLevel 2): it sends and receives nothing any more; its tasks wait for
    /// another connection.
    Detached,
    /// Its tasks need not wait any longer.
    Retired,
    /// No more I/O, and no task is kept: the running ones end.
    Lost,
    /// All tasks have ended, and the counts of recovery are in the session's account.
    Ended,
    /// It has left its session.
    Over,
}

/// A connection's phase.
#[derive(Default)]
pub(super) struct Life(Cell<Phase>);

impl Life {
    #[inline]
    pub(super) fn phase(&self) -> Phase {
        self.0.get()
    }

    /// Advances to a later phase. False if it is there already, or past it.
    pub(super) fn advance(&self, to: Phase) -> bool {
        let goes = self.phase() < to;
        if goes {
            self.0.set(to);
        }
        goes
    }

    /// Begins to close. If it is closing already, or is detached, its tasks are to end.
    pub(super) fn close(&self) {
        match self.phase() {
            Phase::Running | Phase::Draining => self.0.set(Phase::Closing { again: false }),
            Phase::Closing { .. } => self.0.set(Phase::Closing { again: true }),
            Phase::Detached => self.0.set(Phase::Retired),
            Phase::Retired | Phase::Lost | Phase::Ended | Phase::Over => {}
        }
    }

    /// Drops its socket and keeps its tasks. False if it has done so already, or is past that.
    pub(super) fn detach(&self) -> bool {
        match self.phase() {
            Phase::Closing { again: true } => self.advance(Phase::Retired),
            _ => self.advance(Phase::Detached),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_life_goes_forward_only() {
        let life = Life::default();
        assert!(life.advance(Phase::Draining) && !life.advance(Phase::Draining));
        life.close();
        assert_eq!(life.phase(), Phase::Closing { again: false });
        assert!(life.detach() && !life.detach());
        assert!(!life.advance(Phase::Closing { again: true }) && !life.advance(Phase::Running));
        assert!(life.advance(Phase::Lost) && !life.detach());
        life.close();
        assert_eq!(life.phase(), Phase::Lost);
    }

    #[test]
    fn a_connection_that_is_closed_twice_keeps_no_task_waiting() {
        for closes_before_it_detaches in [0, 1, 2] {
            let life = Life::default();
            (0..closes_before_it_detaches).for_each(|_| life.close());
            assert!(life.detach());
            let retired = closes_before_it_detaches == 2;
            assert_eq!(life.phase() == Phase::Retired, retired);
            life.close();
            assert_eq!(life.phase(), Phase::Retired);
        }
    }
}
