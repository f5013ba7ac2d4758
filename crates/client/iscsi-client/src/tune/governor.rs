//! Decides the changes of a session's settings while it runs, from samples of its own traffic.
//!
//! It searches the smallest number of outstanding commands with the highest throughput. It doubles
//! the number while that gains at least a tenth, otherwise takes the last step back and stays
//! there. After a hold time it tries again, and doubles that time after each failure. So on any
//! path useless changes become rarer and rarer.
//!
//! It adds connections, one at a time, if the sockets limit the throughput rather than the
//! commands, and stops once one gains nothing. Unsolicited data and the splitting of writes depend
//! on the round trip alone.
//!
//! It sees only the [`Sample`], reads no clock, and never exceeds its [`Bounds`].

use std::time::Duration;

/// Above this RTT a round trip costs more than a copy: send data unsolicited where allowed.
pub const FAR: Duration = Duration::from_micros(500);
/// Below this RTT it no longer does; between the two nothing changes.
const NEAR: Duration = Duration::from_micros(250);
/// Minimum factor of a gain.
const GAIN: f64 = 1.10;
/// Minimum factor of a gain by a connection, which costs more than a command.
const CONNECTION_GAIN: f64 = 1.08;
/// A throughput below this factor shows that the path has changed.
const LOSS: f64 = 0.7;
/// Number of consecutive intervals that must show it.
const CERTAIN: u8 = 3;
/// Factor of the send buffer to the path's bytes in flight: 1.5, since two thirds are usable, plus
/// a quarter for variation.
const ROOM: f64 = 1.875;
/// Minimum growth of the send buffer: one part in this many.
const STEP: u64 = 8;
/// Hold time of a result: initial and maximum.
const HOLD: (Duration, Duration) = (Duration::from_secs(10), Duration::from_secs(320));
/// Share of the sockets' capacity above which they may limit the throughput.
const FULL: f64 = 0.6;
/// Minimum share of the time that a sender waits for its buffer or for the peer's window.
const WAITED: f64 = 0.2;

/// The limits of a session's settings.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Bounds {
    /// Initial and minimum number of outstanding commands.
    pub least_commands: usize,
    /// Maximum number of outstanding commands: the session's queue depth.
    pub most_commands: usize,
    /// Initial and minimum number of connections.
    pub least_connections: u16,
    /// Maximum number of connections, as the target allows.
    pub most_connections: u16,
    /// iSER: maximum bytes sent with a command, by the options and by the target. 0 over TCP.
    pub unsolicited: (u32, u32),
    /// The longest fully unsolicited write, bytes; 0 for none.
    pub first_burst: u32,
    /// A socket's send buffer in bytes: its automatic maximum, and the largest that may be
    /// requested.
    pub send_buffer: (u64, u64),
}

/// The observations of one interval.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Sample {
    /// Length of the interval.
    pub time: Duration,
    /// Bytes transferred by commands that ended in it.
    pub bytes: u64,
    /// Whether commands waited for the limit of outstanding ones.
    pub limited: bool,
    /// The minimum round trip since the last sample, if observed.
    pub rtt: Option<Duration>,
    /// Number of connections.
    pub connections: u16,
    /// Bytes in flight that the sockets of one connection allow, as far as this side knows.
    pub reach: u64,
    /// Share of its busy time that a sender waited for its buffer or for the peer's window, 0 to 1.
    pub waited: f64,
}

/// The settings of a session from now on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Decision {
    /// Maximum number of outstanding commands.
    pub commands: usize,
    /// Number of connections.
    pub connections: u16,
    /// iSER: the longest write sent with its command, bytes; `None` over TCP.
    pub unsolicited: Option<u32>,
    /// Maximum length of a write before it is split, bytes; `None`: no extra limit.
    pub write_piece: Option<u32>,
    /// The sockets' send buffers, bytes; `None`: automatic.
    pub send_buffer: Option<u64>,
}

/// Phase of the governor.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Phase {
    /// Searches for more throughput with more commands; `before`: the rate with fewer.
    Seeking { before: f64 },
    /// Keeps the result for this time.
    Holding { left: Duration, rate: f64, doubts: u8 },
    /// Tries one more connection.
    Widening { before: f64, rate: f64 },
}

/// Decides for one session.
#[derive(Debug, Clone)]
pub struct Governor {
    bounds: Bounds,
    now: Decision,
    phase: Phase,
    /// Hold time of the next result.
    hold: Duration,
    /// The minimum round trip.
    rtt: Option<Duration>,
    /// The current interval began with a change, so it mixes both settings.
    settling: bool,
    /// Another connection gained nothing.
    wide_enough: bool,
    rate: f64,
    changes: u64,
    reverted: u64,
}

impl Governor {
    /// For a session with its bounds' minimum settings.
    pub fn new(bounds: Bounds) -> Self {
        let most_commands = bounds.most_commands.max(1);
        let least_commands = bounds.least_commands.clamp(1, most_commands);
        let least_connections = bounds.least_connections.max(1);
        let most_connections = bounds.most_connections.max(least_connections);
        let bounds = Bounds { least_commands, most_commands, least_connections, most_connections, ..bounds };
        let (mine, theirs) = bounds.unsolicited;
        Self {
            bounds,
            now: Decision {
                commands: least_commands,
                connections: least_connections,
                unsolicited: (theirs > 0).then_some(mine.min(theirs)),
                write_piece: None,
                send_buffer: None,
            },
            phase: Phase::Seeking { before: 0.0 },
            hold: HOLD.0,
            rtt: None,
            settling: true,
            wide_enough: false,
            rate: 0.0,
            changes: 0,
            reverted: 0,
        }
    }

    /// The current settings.
    pub fn decision(&self) -> Decision {
        self.now
    }

    /// The minimum round trip, and the highest rate in bytes per second.
    pub fn seen(&self) -> (Option<Duration>, f64) {
        (self.rtt, self.rate)
    }

    /// Decisions that changed something, and those of them that reverted another one.
    pub fn changes(&self) -> (u64, u64) {
        (self.changes, self.reverted)
    }

    /// Length of the next interval: long enough for a change to show, short enough to react soon.
    pub fn interval(&self) -> Duration {
        let rtt = self.rtt.unwrap_or(Duration::from_millis(10));
        (rtt * 8).clamp(Duration::from_millis(100), Duration::from_secs(2))
    }

    /// Evaluates the sample of an interval. Returns whether a setting changes.
    pub fn observe(&mut self, sample: &Sample) -> bool {
        let before = self.now;
        if let Some(rtt) = sample.rtt {
            self.heed_round_trip(rtt);
        }
        let seconds = sample.time.as_secs_f64();
        if std::mem::take(&mut self.settling) || seconds <= 0.0 {
            return self.changed(before);
        }
        let rate = sample.bytes as f64 / seconds;
        self.rate = self.rate.max(rate);
        self.make_room();
        match self.phase {
            // Without use of the current limit the effect of a higher one is unknown.
            Phase::Seeking { .. } if !sample.limited => {}
            Phase::Seeking { before } => self.seek(before, rate, sample),
            Phase::Holding { left, rate: found, doubts } => self.keep(left, found, doubts, rate, sample),
            Phase::Widening { before, rate: found } => self.judge_connection(before, found, rate, sample),
        }
        self.changed(before)
    }

    fn changed(&mut self, before: Decision) -> bool {
        let changed = self.now != before;
        self.changes += u64::from(changed);
        // A change of commands or connections only affects new commands.
        self.settling |= (self.now.commands, self.now.connections) != (before.commands, before.connections);
        changed
    }

    /// Applies the decisions that depend on the round trip alone.
    fn heed_round_trip(&mut self, rtt: Duration) {
        let least = self.rtt.map_or(rtt, |least| least.min(rtt));
        self.rtt = Some(least);
        let (mine, theirs) = self.bounds.unsolicited;
        if least >= FAR {
            self.now.unsolicited = (theirs > 0).then_some(theirs);
            self.now.write_piece = Some(self.bounds.first_burst).filter(|bytes| *bytes > 0);
        } else if least < NEAR {
            self.now.unsolicited = (theirs > 0).then_some(mine.min(theirs));
            self.now.write_piece = None;
        }
    }

    /// Grows the send buffer to the path's need at the observed rate. A sender that finds it full
    /// continues when a third of it is empty, so two thirds must fill the path. It only grows, in
    /// steps worth a system call.
    fn make_room(&mut self) {
        let (auto, most) = self.bounds.send_buffer;
        let Some(rtt) = self.rtt.filter(|rtt| *rtt >= FAR) else { return };
        let wanted = (self.rate * rtt.as_secs_f64() * ROOM) as u64;
        let has = self.now.send_buffer.unwrap_or(auto);
        if wanted > has && wanted.min(most) > has + has / STEP {
            self.now.send_buffer = Some(wanted.min(most));
        }
    }

    /// Evaluates `rate` with all outstanding commands in use; fewer gave `before`.
    fn seek(&mut self, before: f64, rate: f64, sample: &Sample) {
        let doubled = (self.now.commands * 2).min(self.bounds.most_commands);
        if rate >= before * GAIN && doubled > self.now.commands {
            self.now.commands = doubled;
            self.phase = Phase::Seeking { before: rate };
            // Connections that gained nothing with fewer commands may gain now.
            (self.hold, self.wide_enough) = (HOLD.0, false);
            return;
        }
        if before > 0.0 && rate < before * GAIN && self.now.commands > self.bounds.least_commands {
            // The last step gained nothing.
            self.now.commands = (self.now.commands / 2).max(self.bounds.least_commands);
            self.reverted += 1;
        }
        self.found(rate.max(before), sample);
    }

    /// The number of commands suffices. Checks for another limit of the throughput.
    fn found(&mut self, rate: f64, sample: &Sample) {
        if self.is_narrow(rate, sample) {
            self.now.connections += 1;
            self.phase = Phase::Widening { before: rate, rate };
            return;
        }
        self.phase = Phase::Holding { left: self.hold, rate, doubts: 0 };
    }

    /// Whether the sockets may limit the throughput, and another connection is allowed.
    fn is_narrow(&self, rate: f64, sample: &Sample) -> bool {
        if self.wide_enough || self.now.connections >= self.bounds.most_connections {
            return false;
        }
        let Some(rtt) = self.rtt.filter(|rtt| *rtt >= FAR) else { return false };
        let on_their_way = rate * rtt.as_secs_f64() / f64::from(sample.connections.max(1));
        sample.waited >= WAITED || on_their_way >= FULL * sample.reach as f64
    }

    /// Evaluates `rate` after adding a connection; `before` was without it.
    fn judge_connection(&mut self, before: f64, found: f64, rate: f64, sample: &Sample) {
        if sample.connections < self.now.connections {
            // The connection failed: the target does not allow it, or the login failed.
            self.now.connections =
                sample.connections.clamp(self.bounds.least_connections, self.now.connections);
            self.wide_enough = true;
            self.phase = Phase::Holding { left: self.hold, rate: found, doubts: 0 };
            return;
        }
        if !sample.limited {
            self.phase = Phase::Holding { left: self.hold, rate: found, doubts: 0 };
            return;
        }
        // Keep the connection in any case: removing it would cost more.
        self.wide_enough = rate < before * CONNECTION_GAIN;
        self.found(rate.max(found), sample);
    }

    fn keep(&mut self, left: Duration, found: f64, doubts: u8, rate: f64, sample: &Sample) {
        if !sample.limited {
            // Without demand the throughput proves nothing.
            self.phase = Phase::Holding { left: left.saturating_sub(sample.time), rate: found, doubts: 0 };
            return;
        }
        let doubts = if rate < found * LOSS { doubts + 1 } else { 0 };
        if doubts >= CERTAIN {
            // The path has changed, or others use it too.
            self.phase = Phase::Seeking { before: rate / GAIN };
            return;
        }
        let left = left.saturating_sub(sample.time);
        if left.is_zero() && self.now.commands < self.bounds.most_commands {
            self.hold = (self.hold * 2).min(HOLD.1);
            self.phase = Phase::Seeking { before: rate };
            self.now.commands = (self.now.commands * 2).min(self.bounds.most_commands);
            return;
        }
        let left = if left.is_zero() { self.hold } else { left };
        self.phase = Phase::Holding { left, rate: found, doubts };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BOUNDS: Bounds = Bounds {
        least_commands: 8,
        most_commands: 1024,
        least_connections: 1,
        most_connections: 4,
        unsolicited: (0, 0),
        first_burst: 262_144,
        send_buffer: (4 << 20, 16 << 20),
    };
    const IO: f64 = 65_536.0;

    /// A path: bytes per second, round trip, bytes in flight of a connection.
    #[derive(Clone, Copy)]
    struct Path {
        rate: f64,
        rtt: Duration,
        reach: u64,
    }

    impl Path {
        /// The rate of commands of 64 KiB with the decision's settings.
        fn brings(&self, decision: Decision) -> f64 {
            let by_commands = decision.commands as f64 * IO / self.rtt.as_secs_f64();
            let by_sockets = f64::from(decision.connections) * self.reach as f64 / self.rtt.as_secs_f64();
            self.rate.min(by_commands).min(by_sockets)
        }

        fn run(&self, governor: &mut Governor, time: Duration) -> Vec<Decision> {
            let (mut at, mut decisions) = (Duration::ZERO, Vec::new());
            while at < time {
                let interval = governor.interval();
                let bytes = (self.brings(governor.decision()) * interval.as_secs_f64()) as u64;
                let sample = Sample {
                    time: interval,
                    bytes,
                    limited: true,
                    rtt: Some(self.rtt),
                    connections: governor.decision().connections,
                    reach: self.reach,
                    waited: 0.0,
                };
                if governor.observe(&sample) {
                    decisions.push(governor.decision());
                }
                at += interval;
            }
            decisions
        }
    }

    fn far(mbit: f64, ms: u64) -> Path {
        Path { rate: mbit * 1e6 / 8.0, rtt: Duration::from_millis(ms), reach: 64 << 20 }
    }

    #[test]
    fn within_seconds_a_path_is_full_whatever_it_is_like() {
        for (mbit, ms) in [(10.0, 1), (100.0, 10), (1000.0, 1), (1000.0, 23), (1000.0, 140), (10_000.0, 23)] {
            let path = far(mbit, ms);
            let mut governor = Governor::new(BOUNDS);
            path.run(&mut governor, Duration::from_secs(20));
            let most = path.brings(Decision { commands: BOUNDS.most_commands, ..governor.decision() });
            let brings = path.brings(governor.decision());
            assert!(brings >= 0.9 * most, "{mbit} Mb/s, {ms} ms: {:?}", governor.decision());
            // At most four times the path's capacity, if that exceeds the initial number.
            let holds = (path.rate * path.rtt.as_secs_f64() / IO) as usize;
            assert!(governor.decision().commands <= (4 * holds).max(2 * BOUNDS.least_commands));
        }
    }

    #[test]
    fn what_is_changed_in_vain_is_changed_ever_more_rarely() {
        let path = far(1000.0, 23);
        let mut governor = Governor::new(BOUNDS);
        path.run(&mut governor, Duration::from_secs(30));
        let settled = governor.decision();
        let in_an_hour = path.run(&mut governor, Duration::from_secs(3600));
        assert!(in_an_hour.len() <= 40, "{} changes", in_an_hour.len());
        // It probes, and returns each time.
        assert!(
            in_an_hour.iter().all(|d| d.commands == settled.commands || d.commands == 2 * settled.commands)
        );
        assert_eq!(governor.decision().commands, settled.commands);
    }

    #[test]
    fn who_asks_for_little_changes_nothing() {
        let mut governor = Governor::new(BOUNDS);
        let before = governor.decision();
        for _ in 0..1000 {
            let sample = Sample { time: Duration::from_millis(200), bytes: 4096, ..Sample::default() };
            assert!(!governor.observe(&sample));
        }
        assert_eq!(governor.decision(), before);
    }

    #[test]
    fn bounds_hold_whatever_is_seen() {
        let mut state = 1u64;
        let mut random = move || {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            state >> 33
        };
        for bounds in [
            BOUNDS,
            Bounds {
                least_commands: 0,
                most_commands: 0,
                least_connections: 0,
                most_connections: 0,
                ..BOUNDS
            },
            Bounds { least_commands: 64, most_commands: 3, unsolicited: (8192, 65_536), ..BOUNDS },
        ] {
            let mut governor = Governor::new(bounds);
            for _ in 0..20_000 {
                let sample = Sample {
                    time: Duration::from_micros(random() % 3_000_000),
                    bytes: random() << (random() % 30),
                    limited: random() % 3 > 0,
                    rtt: (random() % 2 == 0).then(|| Duration::from_micros(random() % 200_000)),
                    connections: (random() % 6) as u16,
                    reach: random() % (8 << 20),
                    waited: (random() % 100) as f64 / 100.0,
                };
                governor.observe(&sample);
                let now = governor.decision();
                assert!((1..=bounds.most_commands.max(1)).contains(&now.commands), "{now:?}");
                assert!((1..=bounds.most_connections.max(1)).contains(&now.connections), "{now:?}");
            }
        }
    }

    #[test]
    fn sockets_that_hold_the_rate_down_get_company_as_far_as_that_helps() {
        // 3 MiB of 17.5 MB in flight.
        let narrow = Path { reach: 3 << 20, ..far(1000.0, 140) };
        let mut governor = Governor::new(BOUNDS);
        narrow.run(&mut governor, Duration::from_secs(60));
        assert_eq!(governor.decision().connections, 4);
        // Here the path is the limit: one connection suffices, and no second one is tried.
        let mut governor = Governor::new(BOUNDS);
        far(1000.0, 23).run(&mut governor, Duration::from_secs(60));
        assert_eq!(governor.decision().connections, 1);
        // On a short path the bytes in flight show nothing.
        let near = Path { reach: 1 << 16, ..far(1000.0, 0) };
        let mut governor = Governor::new(BOUNDS);
        Path { rtt: Duration::from_micros(100), ..near }.run(&mut governor, Duration::from_secs(60));
        assert_eq!(governor.decision().connections, 1);
    }

    #[test]
    fn a_connection_that_does_not_come_is_not_waited_for() {
        let mut governor = Governor::new(BOUNDS);
        let sample = Sample {
            time: Duration::from_millis(200),
            bytes: 3 << 20,
            limited: true,
            rtt: Some(Duration::from_millis(140)),
            connections: 1,
            reach: 1 << 20,
            waited: 0.9,
        };
        for _ in 0..1000 {
            governor.observe(&sample);
        }
        assert_eq!(governor.decision().connections, 1);
        assert!(governor.changes().0 < 30);
    }

    #[test]
    fn a_path_that_becomes_another_is_learnt_again() {
        let mut governor = Governor::new(BOUNDS);
        far(100.0, 10).run(&mut governor, Duration::from_secs(20));
        let before = governor.decision().commands;
        let faster = far(10_000.0, 10);
        faster.run(&mut governor, Duration::from_secs(60));
        assert!(governor.decision().commands > before);
        assert!(faster.brings(governor.decision()) >= 0.9 * faster.rate);
    }

    #[test]
    fn a_send_buffer_grows_with_what_the_path_takes_and_not_beyond_its_bound() {
        for (path, least, most) in
            [(far(1000.0, 23), 5_000_000, 6_000_000), (far(10_000.0, 23), 14 << 20, 16 << 20)]
        {
            let mut governor = Governor::new(BOUNDS);
            path.run(&mut governor, Duration::from_secs(30));
            let bytes = governor.decision().send_buffer.unwrap();
            assert!((least..=most).contains(&bytes), "{bytes}");
        }
        // The automatic buffer suffices here.
        for path in [far(100.0, 23), Path { rtt: Duration::from_micros(50), ..far(10_000.0, 0) }] {
            let mut governor = Governor::new(BOUNDS);
            path.run(&mut governor, Duration::from_secs(30));
            assert_eq!(governor.decision().send_buffer, None);
        }
    }

    #[test]
    fn far_away_what_can_goes_unasked_and_near_by_it_is_fetched() {
        let mut governor = Governor::new(Bounds { unsolicited: (8192, 65_536), ..BOUNDS });
        let seen = |rtt_us| Sample {
            time: Duration::from_millis(100),
            rtt: Some(Duration::from_micros(rtt_us)),
            ..Sample::default()
        };
        assert!(governor.observe(&seen(23_000)));
        assert_eq!(
            (governor.decision().unsolicited, governor.decision().write_piece),
            (Some(65_536), Some(262_144))
        );
        // The minimum counts: one slow answer changes nothing.
        assert!(governor.observe(&seen(100)));
        assert_eq!((governor.decision().unsolicited, governor.decision().write_piece), (Some(8192), None));
        assert!(!governor.observe(&seen(50_000)));
        assert!(!governor.observe(&seen(300)));
    }
}
