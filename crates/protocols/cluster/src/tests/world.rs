//! The queue of what happens, in simulated time, and how a world begins and ends.

use std::cmp::Ordering;
use std::collections::{BTreeMap, BinaryHeap, VecDeque};
use std::time::Duration;

use super::chance::Chance;
use super::checker::Checker;
use super::client::{Client, FromClient, ToClient};
use super::faults;
use super::node::{Ask, Node, Then};
use super::rados::{OSDS, Op, Rados, Reply};
use crate::effect::{Event, Request};
use crate::id::{Epoch, GatewayId, InstanceId, UnitId};
use crate::mistake::Mistake;
use crate::record::Place;

pub const NODES: usize = 3;
pub const CLIENTS: usize = 4;
pub const UNITS: u32 = 2;
/// How long faults come.
pub const FAULTS: Duration = Duration::from_secs(60);
/// How long after the last fault everything works again.
const RECOVERY: Duration = Duration::from_secs(20);
/// How long a planned move takes at most in a quiet group.
const MOVE: Duration = Duration::from_secs(2);

/// Two ends of a path, for cuts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum End {
    Node(usize),
    Client(usize),
    Rados,
}

pub enum Happening {
    /// An operation arrives at its OSD.
    Osd {
        node: usize,
        from: InstanceId,
        epoch: Epoch,
        op: Op,
        then: Then,
    },
    Reply {
        node: usize,
        from: InstanceId,
        epoch: Epoch,
        reply: Reply,
        then: Then,
    },
    Monitor {
        node: usize,
        from: InstanceId,
        ask: Ask,
    },
    Answer {
        node: usize,
        from: InstanceId,
        epoch: Epoch,
        ask: Ask,
    },
    OsdMap {
        osd: usize,
        epoch: Epoch,
    },
    ClientMap {
        node: usize,
        from: InstanceId,
        epoch: Epoch,
    },
    Notify,
    Notified {
        node: usize,
        from: InstanceId,
    },
    Tick {
        node: usize,
        from: InstanceId,
    },
    Link {
        node: usize,
        from: InstanceId,
    },
    /// `accepted`: the gateway's kernel has it, and the gateway does not yet.
    ToNode {
        client: usize,
        node: usize,
        connection: u64,
        message: FromClient,
        accepted: bool,
    },
    ToClient {
        node: usize,
        client: usize,
        connection: u64,
        message: ToClient,
    },
    Client {
        client: usize,
        timer: u64,
    },
    Start {
        node: usize,
    },
    /// A pause may be over.
    Wake {
        node: usize,
    },
    Fault,
}

struct Entry {
    at: Duration,
    number: u64,
    what: Happening,
}

impl PartialEq for Entry {
    fn eq(&self, other: &Self) -> bool {
        self.number == other.number
    }
}

impl Eq for Entry {}

impl PartialOrd for Entry {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Entry {
    /// The earliest is the greatest: `BinaryHeap` pops that.
    fn cmp(&self, other: &Self) -> Ordering {
        (other.at, other.number).cmp(&(self.at, self.number))
    }
}

/// Time, chance and the network.
pub struct Queue {
    pub now: Duration,
    pub chance: Chance,
    heap: BinaryHeap<Entry>,
    numbers: u64,
    instances: u64,
    /// Paths that carry nothing until then.
    pub cuts: BTreeMap<(End, End), Duration>,
    /// Until when some operations take long.
    pub slow: Duration,
}

impl Queue {
    pub fn after(&mut self, delay: Duration, what: Happening) {
        self.numbers += 1;
        self.heap.push(Entry { at: self.now + delay, number: self.numbers, what });
    }

    /// A number that no other caller gets.
    pub fn number(&mut self) -> u64 {
        self.instances += 1;
        self.instances
    }

    /// One way between two machines.
    pub fn way(&mut self) -> Duration {
        if self.chance.percent(2) { self.chance.millis(1, 60) } else { self.chance.micros(50, 600) }
    }

    /// One way to an OSD, its work included.
    pub fn osd(&mut self) -> Duration {
        if self.now < self.slow && self.chance.percent(20) {
            self.chance.millis(200, 8_000)
        } else {
            self.way()
        }
    }

    fn is_cut(&self, from: End, to: End) -> bool {
        self.cuts.get(&(from, to)).is_some_and(|until| self.now < *until)
    }
}

/// What a run did.
#[derive(Debug, Default)]
pub struct Stats {
    pub steps: u64,
    pub acknowledged: u64,
    pub refused: u64,
    pub given_up: u64,
    pub fences: u64,
    pub moves: u64,
    pub lives: u64,
    /// The longest time from the last fault until each unit had an owner.
    pub recovery: Duration,
}

impl Stats {
    pub fn add(&mut self, other: &Stats) {
        self.steps += other.steps;
        self.acknowledged += other.acknowledged;
        self.refused += other.refused;
        self.given_up += other.given_up;
        self.fences += other.fences;
        self.moves += other.moves;
        self.lives += other.lives;
        self.recovery = self.recovery.max(other.recovery);
    }
}

pub struct World {
    pub queue: Queue,
    pub rados: Rados,
    pub nodes: Vec<Node>,
    pub clients: Vec<Client>,
    pub checker: Checker,
    pub stats: Stats,
    /// What came for a gateway while it was paused.
    pub deferred: [VecDeque<Happening>; NODES],
}

impl World {
    /// Runs a seed to its end.
    ///
    /// # Errors
    /// The rule that was broken, and when.
    pub fn run(seed: u64, mistake: Mistake) -> Result<Stats, String> {
        let mut chance = Chance::new(seed);
        let nodes = (0..NODES).map(|index| Node::new(index, mistake, &mut chance)).collect();
        let mut world = World {
            queue: Queue {
                now: Duration::ZERO,
                chance,
                heap: BinaryHeap::new(),
                numbers: 0,
                instances: 0,
                cuts: BTreeMap::new(),
                slow: Duration::ZERO,
            },
            rados: Rados::default(),
            nodes,
            clients: (0..CLIENTS).map(Client::new).collect(),
            checker: Checker::default(),
            stats: Stats::default(),
            deferred: Default::default(),
        };
        world.lives().map_err(|wrong| format!("{:?}: {wrong}", world.queue.now))?;
        world.stats.acknowledged = world.checker.acknowledged;
        world.stats.refused = world.checker.refused;
        world.stats.given_up = world.checker.given_up;
        world.stats.fences = world.rados.record().fences.len() as u64;
        world.stats.lives = world.nodes.iter().map(|node| node.lives).sum();
        Ok(world.stats)
    }

    fn lives(&mut self) -> Result<(), String> {
        for node in 0..NODES {
            self.queue.after(Duration::from_millis(node as u64), Happening::Start { node });
        }
        for client in 0..CLIENTS {
            let timer = self.clients[client].timer;
            self.queue.after(Duration::from_secs(1), Happening::Client { client, timer });
        }
        self.until(Duration::from_secs(2))?;
        for unit in (0..UNITS).map(UnitId) {
            let request = Event::Request { request: 0, asked: Request::Add(unit) };
            self.nodes[0].event(&mut self.queue, request);
        }
        self.until(Duration::from_secs(3))?;
        self.queue.after(Duration::ZERO, Happening::Fault);
        self.until(FAULTS)?;
        faults::heal(self);
        let healed = self.queue.now;
        self.until_owned(healed)?;
        self.until(healed + RECOVERY)?;
        self.all_work()?;
        self.moves_end()
    }

    fn until_owned(&mut self, healed: Duration) -> Result<(), String> {
        while !(0..UNITS).all(|unit| self.owner(UnitId(unit)).is_some()) {
            if self.queue.now > healed + RECOVERY {
                return Err(format!(
                    "a unit has no owner {RECOVERY:?} after the last fault: {:?}",
                    self.rados.record()
                ));
            }
            self.until(self.queue.now + Duration::from_millis(20))?;
        }
        self.stats.recovery = self.queue.now - healed;
        Ok(())
    }

    fn all_work(&self) -> Result<(), String> {
        let idle = |client: &&Client| client.answered + RECOVERY / 2 < self.queue.now;
        match self.clients.iter().find(idle) {
            Some(client) => Err(format!("an initiator gets no answers after the last fault: {client:?}")),
            None => Ok(()),
        }
    }

    fn moves_end(&mut self) -> Result<(), String> {
        for unit in (0..UNITS).map(UnitId) {
            let members: Vec<GatewayId> = self.rados.record().members.keys().copied().collect();
            let to = members[self.queue.chance.below(members.len())];
            let asked = self.queue.chance.below(NODES);
            let request = Event::Request { request: 0, asked: Request::Move(unit, to) };
            self.nodes[asked].event(&mut self.queue, request);
            self.until(self.queue.now + MOVE)?;
            let owner = self.owner(unit).map(|node| self.nodes[node].id);
            if owner != Some(to) || self.rados.record().places[&unit] != (Place::Owned { by: to }) {
                return Err(format!("{unit:?} is at {owner:?}, {MOVE:?} after it was to move to {to:?}"));
            }
            self.stats.moves += 1;
        }
        Ok(())
    }

    /// The gateway that executes a unit's commands.
    fn owner(&self, unit: UnitId) -> Option<usize> {
        (0..NODES).find(|node| self.nodes[*node].executes(unit, self.queue.now))
    }

    fn until(&mut self, end: Duration) -> Result<(), String> {
        while self.queue.heap.peek().is_some_and(|entry| entry.at <= end) {
            let Some(entry) = self.queue.heap.pop() else { break };
            self.queue.now = entry.at;
            self.stats.steps += 1;
            self.happens(entry.what)?;
            for unit in (0..UNITS).map(UnitId) {
                let owners = self.nodes.iter().filter(|node| node.executes(unit, self.queue.now)).count();
                if owners > 1 {
                    return Err(format!("{owners} gateways execute commands of {unit:?}"));
                }
            }
        }
        self.queue.now = end;
        Ok(())
    }

    /// Whether a message has to wait: its path is cut, or its receiver is paused.
    fn waits(&mut self, what: Happening) -> Option<Happening> {
        let (from, to) = match &what {
            Happening::Osd { node, .. } | Happening::Monitor { node, .. } => (End::Node(*node), End::Rados),
            Happening::Reply { node, .. }
            | Happening::Answer { node, .. }
            | Happening::ClientMap { node, .. }
            | Happening::Notified { node, .. } => (End::Rados, End::Node(*node)),
            Happening::ToNode { client, node, accepted: false, .. } => {
                (End::Client(*client), End::Node(*node))
            }
            Happening::ToClient { node, client, .. } => (End::Node(*node), End::Client(*client)),
            Happening::Tick { node, .. } | Happening::Link { node, .. } | Happening::ToNode { node, .. } => {
                (End::Node(*node), End::Node(*node))
            }
            _ => return Some(what),
        };
        if self.queue.is_cut(from, to) {
            let again = self.queue.chance.millis(50, 400);
            self.queue.after(again, what);
            return None;
        }
        if let End::Node(node) = to {
            if self.queue.now < self.nodes[node].paused {
                // The kernel takes what comes over an open connection, whoever reads it when.
                let what = match what {
                    Happening::ToNode { client, node, connection, message, accepted: false } => {
                        if !self.clients[client].has(connection) {
                            return None;
                        }
                        Happening::ToNode { client, node, connection, message, accepted: true }
                    }
                    other => other,
                };
                self.deferred[node].push_back(what);
                return None;
            }
        }
        Some(what)
    }

    fn happens(&mut self, what: Happening) -> Result<(), String> {
        let Some(what) = self.waits(what) else { return Ok(()) };
        let Self { queue, rados, nodes, clients, checker, deferred, .. } = self;
        match what {
            Happening::Osd { node, from, epoch, op, then } => {
                let (reply, epoch) = rados.arrives(queue.now, from, epoch, &op);
                if let (Op::Write { unit, block, value }, Reply::Done) = (&op, &reply) {
                    checker.lands(queue.now, from, (*unit, *block), *value)?;
                }
                if let (Op::Open(unit), Reply::Values(_)) = (&op, &reply) {
                    checker.opens(*unit, from);
                }
                let delay = queue.osd();
                queue.after(delay, Happening::Reply { node, from, epoch, reply, then });
            }
            Happening::Monitor { node, from, ask } => {
                let epoch = match ask {
                    Ask::Blocklist(instance) => {
                        let epoch = rados.blocklist(instance);
                        for osd in 0..OSDS {
                            let delay = queue.chance.millis(1, 10_000);
                            queue.after(delay, Happening::OsdMap { osd, epoch });
                        }
                        for node in nodes.iter().filter(|node| node.machine.is_some()) {
                            let delay = queue.chance.millis(1, 10_000);
                            let what = Happening::ClientMap { node: node.index, from: node.instance, epoch };
                            queue.after(delay, what);
                        }
                        epoch
                    }
                    Ask::Map => rados.epoch,
                };
                let delay = queue.way();
                queue.after(delay, Happening::Answer { node, from, epoch, ask });
            }
            Happening::OsdMap { osd, epoch } => rados.map(osd, epoch),
            Happening::Notify => {
                let watching = rados.watching(queue.now);
                for node in nodes.iter().filter(|node| watching.contains(&node.instance)) {
                    if !queue.chance.percent(10) {
                        let delay = queue.way();
                        queue.after(delay, Happening::Notified { node: node.index, from: node.instance });
                    }
                }
            }
            Happening::ToNode { client, node, connection, message, accepted } => {
                if accepted || clients[client].has(connection) {
                    nodes[node].client(queue, client, connection, message);
                }
            }
            Happening::ToClient { node, client, connection, message } => {
                clients[client].hears(queue, checker, node, connection, message)?;
            }
            Happening::Client { client, timer } => clients[client].wakes(queue, checker, timer),
            Happening::Start { node } => nodes[node].starts(queue),
            Happening::Wake { node } => {
                if queue.now >= nodes[node].paused {
                    for what in std::mem::take(&mut deferred[node]) {
                        queue.after(Duration::ZERO, what);
                    }
                }
            }
            Happening::Fault => faults::one(self),
            Happening::Reply { node, from, epoch, reply, then } => {
                nodes[node].reply(queue, from, epoch, reply, then);
            }
            Happening::Answer { node, from, epoch, ask } => {
                nodes[node].answer(queue, from, epoch, ask);
            }
            Happening::ClientMap { node, from, epoch } => nodes[node].map(from, epoch),
            Happening::Notified { node, from } => {
                if nodes[node].instance == from {
                    nodes[node].event(queue, Event::Notified);
                }
            }
            Happening::Tick { node, from } => nodes[node].tick(queue, from),
            Happening::Link { node, from } => nodes[node].link(queue, from),
        }
        Ok(())
    }
}
