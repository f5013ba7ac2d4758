//! What a session changes of itself while it runs, as a function of what it sees of its own traffic.
//!
//! It looks for the fewest commands under way that bring the most: it doubles them as long as that brings a tenth more, goes back one
//! step when it does not, and stays there. After a while, longer each time in vain, it looks again. So whatever a path does, what is
//! changed in vain is changed ever more rarely. Connections are added where the sockets, and not the commands, hold the rate down, one
//! at a time, and no more once one has brought nothing. What goes unasked, and how writes are split, follows the round trip alone.
//!
//! It sees only what is in [`Sample`], knows no clock, and never asks for more than its [`Bounds`].

use std::time::Duration;

/// A round trip from which on it is dearer than a copy: what can goes unasked.
pub const FAR: Duration = Duration::from_micros(500);
/// A round trip below which it is not any more: between the two nothing changes.
const NEAR: Duration = Duration::from_micros(250);
/// What is more by this factor is more.
const GAIN: f64 = 1.10;
/// The same for a connection, which costs more than a command.
const CONNECTION_GAIN: f64 = 1.08;
/// What is less by this factor shows that the path is another.
const LOSS: f64 = 0.7;
/// Intervals in a row that have to show it.
const CERTAIN: u8 = 3;
/// A send buffer for what the path holds: half as much again, so that two thirds of it are enough, and a quarter for what varies.
const ROOM: f64 = 1.875;
/// It grows by the n-th part of itself at least.
const STEP: u64 = 8;
/// How long what was found holds, at first and at most.
const HOLD: (Duration, Duration) = (Duration::from_secs(10), Duration::from_secs(320));
/// The part of what sockets can have on their way from which on they may be what holds the rate down.
const FULL: f64 = 0.6;
/// The part of the time for which a sender has to have waited for room, or for the peer's window.
const WAITED: f64 = 0.2;

/// Within what a session may be changed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Bounds {
    /// Commands under way: to begin with and at least.
    pub least_commands: usize,
    /// Commands under way at most: the session's queue depth.
    pub most_commands: usize,
    /// Connections: to begin with and at least.
    pub least_connections: u16,
    /// Connections at most, as the target allows.
    pub most_connections: u16,
    /// iSER: bytes that a command may bring along, by the options and by what the target takes. 0: over TCP.
    pub unsolicited: (u32, u32),
    /// The longest write that goes unasked, bytes; 0 where none does.
    pub first_burst: u32,
    /// Bytes that a socket's send buffer grows to by itself, and that it may be given at most.
    pub send_buffer: (u64, u64),
}

/// What was seen over an interval.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Sample {
    /// How long it was.
    pub time: Duration,
    /// What commands that have ended in it have moved, bytes.
    pub bytes: u64,
    /// Commands have waited for the limit on those under way.
    pub limited: bool,
    /// The shortest round trip that was seen since the last sample, if any was.
    pub rtt: Option<Duration>,
    /// Connections that there were.
    pub connections: u16,
    /// Bytes that the sockets of one connection can have on their way, as far as this side knows.
    pub reach: u64,
    /// The part of its busy time for which a sender waited for its buffer or for the peer's window, 0 to 1.
    pub waited: f64,
}

/// What a session is to be like from now on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Decision {
    /// Commands that the target is given at a time.
    pub commands: usize,
    /// Connections.
    pub connections: u16,
    /// iSER: the longest write that goes with its command, bytes; `None` over TCP.
    pub unsolicited: Option<u32>,
    /// The longest write that is not split, bytes; `None`: as long as a command may be.
    pub write_piece: Option<u32>,
    /// What sockets' send buffers are to be, bytes; `None`: as they grow by themselves.
    pub send_buffer: Option<u64>,
}

/// What the governor is about.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Phase {
    /// More commands bring more, as far as is known; the rate with fewer.
    Seeking { before: f64 },
    /// What was found holds for so much longer.
    Holding { left: Duration, rate: f64, doubts: u8 },
    /// A connection more is being tried.
    Widening { before: f64, rate: f64 },
}

/// Decides for one session.
#[derive(Debug, Clone)]
pub struct Governor {
    bounds: Bounds,
    now: Decision,
    phase: Phase,
    /// How long the next find holds.
    hold: Duration,
    /// The shortest round trip.
    rtt: Option<Duration>,
    /// The interval under way began with a change: what it shows is of both.
    settling: bool,
    /// Another connection has brought nothing.
    wide_enough: bool,
    rate: f64,
    changes: u64,
    reverted: u64,
}

impl Governor {
    /// For a session that begins as its bounds say at least.
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

    /// What holds at the moment.
    pub fn decision(&self) -> Decision {
        self.now
    }

    /// The shortest round trip, and the highest rate in bytes a second.
    pub fn seen(&self) -> (Option<Duration>, f64) {
        (self.rtt, self.rate)
    }

    /// Decisions that changed something, and those of them that took another back.
    pub fn changes(&self) -> (u64, u64) {
        (self.changes, self.reverted)
    }

    /// How long the next interval is to be: long enough that what was changed shows, short enough that it is found out soon.
    pub fn interval(&self) -> Duration {
        let rtt = self.rtt.unwrap_or(Duration::from_millis(10));
        (rtt * 8).clamp(Duration::from_millis(100), Duration::from_secs(2))
    }

    /// Takes in what an interval has shown. Answers whether something changes.
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
            // Who does not use what there is says nothing about what more would bring.
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
        // Commands and connections show only in what is begun from now on.
        self.settling |= (self.now.commands, self.now.connections) != (before.commands, before.connections);
        changed
    }

    /// What the round trip alone decides.
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

    /// Sees to it that a send buffer is no less than the path takes at the rate that was seen: a sender that finds it full goes on when
    /// a third of it is empty, so that two thirds have to fill the path. It only grows, in steps that are worth a system call.
    fn make_room(&mut self) {
        let (auto, most) = self.bounds.send_buffer;
        let Some(rtt) = self.rtt.filter(|rtt| *rtt >= FAR) else { return };
        let wanted = (self.rate * rtt.as_secs_f64() * ROOM) as u64;
        let has = self.now.send_buffer.unwrap_or(auto);
        if wanted > has && wanted.min(most) > has + has / STEP {
            self.now.send_buffer = Some(wanted.min(most));
        }
    }

    /// The commands under way were all used, and brought `rate`; fewer had brought `before`.
    fn seek(&mut self, before: f64, rate: f64, sample: &Sample) {
        let doubled = (self.now.commands * 2).min(self.bounds.most_commands);
        if rate >= before * GAIN && doubled > self.now.commands {
            self.now.commands = doubled;
            self.phase = Phase::Seeking { before: rate };
            // What was no use with fewer may be now.
            (self.hold, self.wide_enough) = (HOLD.0, false);
            return;
        }
        if before > 0.0 && rate < before * GAIN && self.now.commands > self.bounds.least_commands {
            // The last step was in vain.
            self.now.commands = (self.now.commands / 2).max(self.bounds.least_commands);
            self.reverted += 1;
        }
        self.found(rate.max(before), sample);
    }

    /// So many commands are enough. What else could hold the rate down?
    fn found(&mut self, rate: f64, sample: &Sample) {
        if self.is_narrow(rate, sample) {
            self.now.connections += 1;
            self.phase = Phase::Widening { before: rate, rate };
            return;
        }
        self.phase = Phase::Holding { left: self.hold, rate, doubts: 0 };
    }

    /// Whether the sockets may be what holds the rate down, and another one may be had.
    fn is_narrow(&self, rate: f64, sample: &Sample) -> bool {
        if self.wide_enough || self.now.connections >= self.bounds.most_connections {
            return false;
        }
        let Some(rtt) = self.rtt.filter(|rtt| *rtt >= FAR) else { return false };
        let on_their_way = rate * rtt.as_secs_f64() / f64::from(sample.connections.max(1));
        sample.waited >= WAITED || on_their_way >= FULL * sample.reach as f64
    }

    /// A connection more has brought `rate`, without it there was `before`.
    fn judge_connection(&mut self, before: f64, found: f64, rate: f64, sample: &Sample) {
        if sample.connections < self.now.connections {
            // It is not there: the target does not want it, or the login has failed.
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
        // It stays in any case: to have it gone would cost more than it does.
        self.wide_enough = rate < before * CONNECTION_GAIN;
        self.found(rate.max(found), sample);
    }

    fn keep(&mut self, left: Duration, found: f64, doubts: u8, rate: f64, sample: &Sample) {
        if !sample.limited {
            // What is not asked for cannot be brought.
            self.phase = Phase::Holding { left: left.saturating_sub(sample.time), rate: found, doubts: 0 };
            return;
        }
        let doubts = if rate < found * LOSS { doubts + 1 } else { 0 };
        if doubts >= CERTAIN {
            // The path is another, or somebody else uses it too.
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

    /// A path: bytes a second, round trip, bytes on their way of a connection.
    #[derive(Clone, Copy)]
    struct Path {
        rate: f64,
        rtt: Duration,
        reach: u64,
    }

    impl Path {
        /// What commands of 64 KiB bring, as many at a time as the decision says.
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
            // No more than four times of what the path holds, where it holds more than a session begins with.
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
        // It looks, and comes back each time.
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
        // 3 MiB of 17.5 MB on their way.
        let narrow = Path { reach: 3 << 20, ..far(1000.0, 140) };
        let mut governor = Governor::new(BOUNDS);
        narrow.run(&mut governor, Duration::from_secs(60));
        assert_eq!(governor.decision().connections, 4);
        // Here the path is what holds it down: one is enough, and no second one is tried.
        let mut governor = Governor::new(BOUNDS);
        far(1000.0, 23).run(&mut governor, Duration::from_secs(60));
        assert_eq!(governor.decision().connections, 1);
        // Near by, nothing can be told from what is on its way.
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
        // What grows by itself is enough here.
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
        // The shortest counts: one slow answer changes nothing.
        assert!(governor.observe(&seen(100)));
        assert_eq!((governor.decision().unsolicited, governor.decision().write_piece), (Some(8192), None));
        assert!(!governor.observe(&seen(50_000)));
        assert!(!governor.observe(&seen(300)));
    }
}
