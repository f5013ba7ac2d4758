//! The durations of the machine, and how they have to relate.
//!
//! None of them guards data: OSDs do, by the blocklist. They decide how fast the group acts, and
//! how old a command may be when it begins.

use std::time::Duration;

/// Durations. The same in all gateways of a group.
#[derive(Clone, Debug)]
pub struct Timers {
    /// Between two heartbeats.
    pub beat: Duration,
    /// How long a confirmed heartbeat lets this gateway execute, from when it was sent.
    pub lease: Duration,
    /// A gateway whose counter stays the same for so long, and whose peer link is lost, is taken
    /// out.
    pub suspected: Duration,
    /// A gateway whose counter stays the same for so long is taken out.
    pub silent: Duration,
    /// How long the gateway that took another one out has for its blocklist entry before all
    /// others make one too.
    pub relieve: Duration,
    /// How long a blocklist entry lasts. A gateway must not wake after longer.
    pub fence: Duration,
    /// Between two tries to get a lock that another instance holds.
    pub retry: Duration,
    /// How long a planned move may wait for commands in flight.
    pub drain: Duration,
    /// How long a command may wait for an owner.
    pub hold: Duration,
    /// How old the last round trip with a command's initiator may be when the command goes on.
    pub fresh: Duration,
}

impl Default for Timers {
    fn default() -> Self {
        Self {
            beat: Duration::from_millis(250),
            lease: Duration::from_millis(800),
            suspected: Duration::from_millis(1_200),
            silent: Duration::from_millis(2_500),
            relieve: Duration::from_millis(1_500),
            fence: Duration::from_secs(30 * 24 * 3_600),
            retry: Duration::from_millis(100),
            drain: Duration::from_secs(5),
            hold: Duration::from_secs(10),
            fresh: Duration::from_secs(2),
        }
    }
}

impl Timers {
    /// What is wrong with these durations.
    ///
    /// # Errors
    /// The first relation that does not hold.
    pub fn check(&self) -> Result<(), &'static str> {
        // Two clocks may run at rates that differ by a tenth. Real ones differ by 0.01 %.
        let with_drift = |duration: Duration| duration + duration / 10;
        let rules = [
            (self.beat * 3 <= self.lease, "a lease has to outlast the loss of two heartbeats"),
            (with_drift(self.lease) < self.suspected, "a lease has to end before its gateway is taken out"),
            (self.suspected <= self.silent, "a suspected gateway is taken out no later than another one"),
            (self.fence > Duration::from_secs(3_600), "a blocklist entry has to outlast any pause"),
        ];
        rules.into_iter().find(|(holds, _)| !holds).map_or(Ok(()), |(_, wrong)| Err(wrong))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_defaults_relate_as_they_have_to() {
        assert_eq!(Timers::default().check(), Ok(()));
    }

    #[test]
    fn a_lease_that_outlasts_the_suspicion_is_refused() {
        let timers = Timers { lease: Duration::from_millis(1_150), ..Timers::default() };
        assert!(timers.check().is_err());
    }
}
