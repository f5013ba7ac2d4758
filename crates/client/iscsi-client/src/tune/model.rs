//! Simulates a plan in simulated time: a line with a rate and a delay, connections with a limit of
//! bytes in flight, outstanding commands, and a target that solicits data. It shares no arithmetic
//! with the plan, so it detects a round trip that the plan forgets.
//!
//! All commands begin together, the worst case: they wait for their R2Ts together.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};
use std::time::Duration;

use runtime::SystemLimits;

use super::plan::tests::STAG;
use super::plan::{Allowed, LENGTHS, Measured, Plan, RoundTrips, Shape, plan};

/// Bytes put on the line at a time.
const SEGMENT: u64 = 64 << 10;
/// Bytes that a unit takes at a time.
const CHUNK: u64 = 1 << 20;

/// A target's way to solicit the data of writes.
#[derive(Clone, Copy, Debug)]
struct Asking {
    /// Maximum outstanding R2Ts of a command, or RDMA Reads of a connection.
    most: usize,
    /// Bytes per request.
    burst: u64,
    /// No part of a longer write is unsolicited, and `most` is for all commands together.
    iser: bool,
    /// Chunks that the target requests before the unit needs them.
    ahead: u64,
}

/// A line, and the bytes in flight of one connection.
#[derive(Clone, Copy, Debug)]
struct Line {
    /// Bytes a second.
    rate: u64,
    rtt: Duration,
    reach: u64,
}

/// A load.
#[derive(Clone, Copy, Debug)]
struct Load {
    write: bool,
    block: u64,
    shape: Shape,
    connections: u64,
    unasked: u64,
}

#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Event {
    /// A command is sent.
    Begin(usize),
    /// The command arrives at the target.
    Came(usize),
    /// Data arrives.
    Data(usize, u64),
    /// The target's request arrives.
    Asked(usize, u64),
    /// Data of a connection is acknowledged.
    Acknowledged(usize, u64),
}

#[derive(Clone, Copy, Debug, Default)]
struct Command {
    got: u64,
    asked: u64,
    /// Received bytes beyond whole R2Ts or RDMA Reads. Below: the number outstanding.
    part: u64,
    open: usize,
}

struct World {
    line: Line,
    load: Load,
    asking: Asking,
    now: u64,
    free_at: u64,
    events: BinaryHeap<Reverse<(u64, u64, Event)>>,
    serial: u64,
    commands: Vec<Command>,
    /// Per connection: data waiting for the line, and bytes in flight.
    queues: Vec<(VecDeque<(usize, u64)>, u64)>,
    /// Per session: outstanding RDMA Reads, and commands that wait for one.
    reads: Vec<(usize, VecDeque<usize>)>,
    /// Bytes of each outstanding RDMA Read or R2T, by command.
    bursts: Vec<VecDeque<u64>>,
}

impl World {
    fn new(line: Line, load: Load, asking: Asking) -> Self {
        let sessions = usize::from(load.shape.sessions);
        let commands = sessions * usize::from(load.shape.depth);
        let mut world = Self {
            line,
            load,
            asking,
            now: 0,
            free_at: 0,
            events: BinaryHeap::new(),
            serial: 0,
            commands: vec![Command::default(); commands],
            queues: vec![(VecDeque::new(), 0); sessions * load.connections as usize],
            reads: vec![(0, VecDeque::new()); sessions],
            bursts: vec![VecDeque::new(); commands],
        };
        (0..commands).for_each(|command| world.at(0, Event::Begin(command)));
        world
    }

    fn at(&mut self, time: u64, event: Event) {
        self.serial += 1;
        self.events.push(Reverse((time, self.serial, event)));
    }

    fn half(&self) -> u64 {
        self.line.rtt.as_nanos() as u64 / 2
    }

    fn session(&self, command: usize) -> usize {
        command / usize::from(self.load.shape.depth)
    }

    fn connection(&self, command: usize) -> usize {
        let connections = self.load.connections as usize;
        self.session(command) * connections + command % connections
    }

    /// The used share of the line's rate, after a warm-up.
    fn share(mut self) -> f64 {
        let all = self.commands.len() as u64 * self.load.block;
        // On a short path, long enough that single segments do not matter.
        let busy = all.max(200 * SEGMENT) * 1_000_000_000 / self.line.rate;
        let warm = 20 * self.half() + 2 * busy;
        let end = warm + 28 * self.half() + 2 * busy;
        let mut bytes = 0;
        while let Some(Reverse((time, _, event))) = self.events.pop() {
            if time > end {
                break;
            }
            self.now = time;
            if let Event::Data(_, len) = &event
                && time > warm
            {
                bytes += len;
            }
            self.happens(event);
        }
        bytes as f64 * 1e9 / (end - warm) as f64 / self.line.rate as f64
    }

    fn happens(&mut self, event: Event) {
        match event {
            Event::Begin(at) => {
                self.commands[at] = Command::default();
                let goes = self.goes_unasked();
                // Over TCP a write queues behind other data even without data of its own.
                if goes > 0 || (self.load.write && !self.asking.iser) {
                    self.commands[at].asked = goes;
                    self.send(at, goes);
                } else {
                    self.at(self.now + self.half(), Event::Came(at));
                }
            }
            Event::Came(at) if self.load.write => self.ask(at),
            Event::Came(at) => self.send(at, self.load.block),
            Event::Data(at, len) => self.data(at, len),
            Event::Asked(at, len) => self.send(at, len),
            Event::Acknowledged(connection, len) => {
                self.queues[connection].1 -= len;
                self.pump(connection);
            }
        }
    }

    /// Unsolicited bytes of a command.
    fn goes_unasked(&self) -> u64 {
        let Load { write, block, unasked, .. } = self.load;
        match write && (block <= unasked || !self.asking.iser) {
            true => block.min(unasked),
            false => 0,
        }
    }

    fn data(&mut self, at: usize, len: u64) {
        let Load { write, block, .. } = self.load;
        self.commands[at].got += len;
        let whole = self.commands[at].got == block;
        if !write {
            return if whole {
                self.at(self.now, Event::Begin(at))
            };
        }
        if self.commands[at].got > self.goes_unasked() {
            self.commands[at].part += len;
        }
        while let Some(first) = self.bursts[at].front().copied()
            && self.commands[at].part >= first
        {
            self.bursts[at].pop_front();
            self.commands[at].part -= first;
            self.commands[at].open -= 1;
            if self.asking.iser {
                let session = self.session(at);
                self.reads[session].0 -= 1;
                if let Some(next) = self.reads[session].1.pop_front() {
                    self.ask(next);
                }
            }
        }
        match whole {
            true => self.at(self.now + self.half(), Event::Begin(at)),
            // The target requests data only after all unsolicited data has arrived.
            false if self.commands[at].got >= self.goes_unasked() => self.ask(at),
            false => {}
        }
    }

    /// The target requests as much as it may.
    fn ask(&mut self, at: usize) {
        let session = self.session(at);
        loop {
            let Command { got, asked, open, .. } = self.commands[at];
            let wanted = self.load.block.min((got / CHUNK + 1 + self.asking.ahead).saturating_mul(CHUNK));
            if asked >= wanted {
                return;
            }
            let outstanding = if self.asking.iser { self.reads[session].0 } else { open };
            if outstanding >= self.asking.most {
                if self.asking.iser && !self.reads[session].1.contains(&at) {
                    self.reads[session].1.push_back(at);
                }
                return;
            }
            let len = self.asking.burst.min(wanted - asked);
            self.commands[at].asked += len;
            self.commands[at].open += 1;
            self.reads[session].0 += usize::from(self.asking.iser);
            self.bursts[at].push_back(len);
            self.at(self.now + self.half(), Event::Asked(at, len));
        }
    }

    fn send(&mut self, at: usize, len: u64) {
        let connection = self.connection(at);
        self.queues[connection].0.push_back((at, len));
        self.pump(connection);
    }

    /// Puts data on the line, up to a connection's limit in flight.
    fn pump(&mut self, connection: usize) {
        let half = self.half();
        loop {
            let (waiting, on_their_way) = &mut self.queues[connection];
            let Some((at, left)) = waiting.front_mut() else { return };
            let (at, len) = (*at, (*left).min(SEGMENT));
            if *on_their_way + len > self.line.reach.max(SEGMENT) {
                return;
            }
            *left -= len;
            *on_their_way += len;
            if *left == 0 {
                waiting.pop_front();
            }
            self.free_at = self.free_at.max(self.now) + len * 1_000_000_000 / self.line.rate;
            self.at(self.free_at + half, Event::Data(at, len));
            self.at(self.free_at + 2 * half, Event::Acknowledged(connection, len));
        }
    }
}

/// 1 Gb/s.
const RATE: u64 = 125_000_000;
/// 0.2, 1400 and 8600 miles, µs.
const MILES: [(&str, u64); 3] = [("0.2 miles", 50), ("1400 miles", 23_000), ("8600 miles", 141_000)];

/// Typical targets: Stag, and some with lower limits.
fn targets() -> Vec<(&'static str, Allowed)> {
    let iser = Allowed { iser: true, connections: 1, segment: 65_536, ..STAG };
    vec![
        ("as it comes", STAG),
        ("long first bursts", Allowed { first_burst: 1 << 20, segment: 1 << 20, ..STAG }),
        ("one connection", Allowed { connections: 1, ..STAG }),
        ("one R2T", Allowed { outstanding_r2t: 1, max_burst: 262_144, connections: 1, ..STAG }),
        ("R2T first", Allowed { initial_r2t: true, segment: 65_536, first_burst: 65_536, ..STAG }),
        ("R2T before all data", Allowed { initial_r2t: true, immediate_data: false, window: 512, ..STAG }),
        ("few commands", Allowed { window: 64, connections: 1, ..STAG }),
        ("iSER", iser),
        ("iSER, short segments", Allowed { segment: 8192, ..iser }),
        ("iSER, 16 reads", Allowed { reads: 16, ..iser }),
        ("iSER, 4 reads", Allowed { reads: 4, ..iser }),
    ]
}

/// A default system, and one with larger automatic buffers.
fn systems() -> [SystemLimits; 2] {
    let usual = SystemLimits {
        send_auto: 4 << 20,
        recv_auto: 6 << 20,
        send_max: 212_992,
        recv_max: 212_992,
        congestion: "bbr".into(),
        congestion_allowed: vec!["bbr".into()],
    };
    [usual.clone(), SystemLimits { send_auto: 64 << 20, recv_auto: 64 << 20, ..usual }]
}

fn measured(rtt: Duration) -> Measured {
    let alone = rtt + Duration::from_secs_f64(65_536.0 / RATE as f64);
    let rtt = RoundTrips { least: rtt, p50: rtt, p90: rtt, most: rtt };
    Measured { rtt, alone, read: RATE as f64, write: None, loss: 0.0 }
}

/// The way in which a target with these limits solicits data. Stag's looks ahead, depending on the
/// round trip.
fn asking(allowed: &Allowed, plan: &Plan, rtt: Duration) -> Asking {
    let settings = &plan.settings;
    let step = [500, 5_000, 40_000].iter().filter(|us| rtt >= Duration::from_micros(**us)).count();
    match allowed.iser {
        true => Asking {
            most: allowed.reads.min(settings.reads.unwrap()).into(),
            burst: 512 << 10,
            iser: true,
            ahead: [4, 4, 8, 16][step],
        },
        false => Asking {
            most: settings.outstanding_r2t.unwrap().into(),
            burst: settings.max_burst.unwrap().into(),
            iser: false,
            ahead: [0, 2, 4, 8][step],
        },
    }
}

/// Bytes in flight of one connection: two thirds of a send buffer, half of a receive buffer. The
/// kernel doubles configured ones.
fn reach(plan: &Plan, system: &SystemLimits) -> u64 {
    let send = plan.settings.send_buffer.map_or(system.send_auto as u64, |bytes| 2 * u64::from(bytes));
    let recv = plan.settings.recv_buffer.map_or(system.recv_auto as u64, |bytes| 2 * u64::from(bytes));
    (send * 2 / 3).min(recv / 2)
}

/// The share of the line that commands of `block` bytes get by a plan, and the possible maximum.
fn share(
    plan: &Plan,
    allowed: &Allowed,
    system: &SystemLimits,
    rtt: Duration,
    load: (bool, u64, Shape),
) -> (f64, f64) {
    let (write, block, shape) = load;
    let connections = plan.settings.connections.unwrap_or(1).into();
    let load = Load { write, block, shape, connections, unasked: plan.unasked.into() };
    let line = Line { rate: RATE, rtt, reach: reach(plan, system) };
    let asking = asking(allowed, plan, rtt);
    // With eight sessions the target's maximum of RDMA Reads is the limit.
    let fetched = 8 * asking.most as u64 * block.min(asking.burst);
    let most = match write && asking.iser && block > load.unasked {
        true => (fetched as f64 / (RATE as f64 * rtt.as_secs_f64())).min(1.0),
        false => 1.0,
    };
    (World::new(line, load, asking).share(), most)
}

/// For every length, direction and target.
#[test]
fn plans_use_nine_tenths_of_any_path() {
    let mut fall_short = Vec::new();
    for (name, allowed) in targets() {
        for (system, limits) in systems().iter().enumerate() {
            for (miles, us) in MILES {
                let rtt = Duration::from_micros(us);
                let plan = plan(&measured(rtt), &allowed, limits);
                let both = Shape { depth: plan.depth, sessions: plan.sessions };
                let lengths = LENGTHS.map(u64::from).into_iter().chain([96 << 10, 300 << 10]);
                let mut loads: Vec<(bool, u64, Shape)> = Vec::new();
                for write in [false, true] {
                    loads.extend(lengths.clone().map(|block| (write, block, plan.shape(write, block))));
                    // The choice for both directions.
                    loads.push((write, plan.io.into(), both));
                }
                for load in loads {
                    let (share, most) = share(&plan, &allowed, limits, rtt, load);
                    assert!(share < 1.01, "{name}, {miles}: {share:.3} of a line is more than there is");
                    if share < 0.9 * most {
                        let (write, block, shape) = load;
                        let what = if write { "writes" } else { "reads" };
                        fall_short.push(format!(
                            "{name}, system {system}, {miles}, {what} of {} KiB: {share:.3}, {shape:?}",
                            block >> 10
                        ));
                    }
                }
            }
        }
    }
    assert!(fall_short.is_empty(), "{}", fall_short.join("\n"));
}

#[test]
fn as_many_long_writes_as_short_ones_leave_the_path_idle() {
    // A quarter of each write is unsolicited; the rest waits for a round trip.
    let [_, limits] = systems();
    let rtt = Duration::from_micros(23_000);
    let plan = plan(&measured(rtt), &STAG, &limits);
    let share = |write, block, shape| share(&plan, &STAG, &limits, rtt, (write, block, shape)).0;
    let as_reads = plan.shape(false, 1 << 20);
    let [read, write] = [false, true].map(|write| share(write, 1 << 20, as_reads));
    assert!(read >= 0.9 && write < 0.9, "{read:.3} {write:.3}");
    // With one command at a time, its round trips determine the rate.
    let one = Shape { depth: 1, sessions: 1 };
    let lone = |block: u64, turns: f64| block as f64 / (block as f64 + turns * 0.023 * RATE as f64);
    for (write, block, turns) in [(false, 1 << 20, 1.0), (true, 64 << 10, 1.0), (true, 1 << 20, 2.0)] {
        let share = share(write, block, one);
        assert!((share / lone(block, turns) - 1.0).abs() < 0.1, "{write} {block}: {share:.4}");
    }
}
