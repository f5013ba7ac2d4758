//! The driver of one gateway: what `ceph::group` and a server do around the machine.
//!
//! It has a clock of its own, a RADOS client, and connections of initiators. It executes a command
//! whose initiator was there a moment ago, if it owns the unit, and refuses it else. Commands of
//! one block begin one at a time.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use super::chance::Chance;
use super::checker::Block;
use super::client::{Action, Command, FromClient, ToClient};
use super::rados::{BLOCKS, Op, Reply};
use super::world::{Happening, Queue};
use crate::effect::{Effect, Event};
use crate::gateway::Gateway;
use crate::id::{Epoch, GatewayId, InstanceId, Time, UnitId};
use crate::mistake::Mistake;
use crate::record::{Member, Standing};
use crate::timers::Timers;

/// Between two pings of initiators.
const LINK: Duration = Duration::from_millis(250);

#[derive(Clone, Copy, Debug)]
pub enum Outcome {
    Value(u64),
    /// It never begins.
    Refused,
}

/// What an operation's answer is for.
#[derive(Clone, Copy, Debug)]
pub enum Then {
    Beat,
    Seen,
    Watch,
    Changed,
    Locked(UnitId),
    Broken(UnitId),
    Opened(UnitId),
    Released(UnitId),
    Data(u64),
}

#[derive(Clone, Copy, Debug)]
pub enum Ask {
    Blocklist(InstanceId),
    Map,
}

struct Local {
    command: Command,
    client: usize,
    connection: u64,
}

struct Connection {
    number: u64,
    heard: Time,
}

pub struct Node {
    pub index: usize,
    pub id: GatewayId,
    pub machine: Option<Gateway>,
    pub instance: InstanceId,
    /// Until when the process does not run.
    pub paused: Duration,
    pub lives: u64,
    mistake: Mistake,
    epoch: Epoch,
    offset: Duration,
    /// The clock's rate, in parts of a million.
    rate: u64,
    tick: Option<Duration>,
    connections: BTreeMap<usize, Connection>,
    /// The latest connection of each initiator with a former life.
    before: BTreeMap<usize, u64>,
    locals: BTreeMap<u64, Local>,
    running: BTreeMap<Block, VecDeque<u64>>,
    draining: Vec<(UnitId, Time)>,
    memory: BTreeMap<UnitId, [u64; BLOCKS]>,
}

impl Node {
    pub fn new(index: usize, mistake: Mistake, chance: &mut Chance) -> Self {
        Self {
            index,
            id: GatewayId(index as u16 + 1),
            machine: None,
            instance: InstanceId(0),
            paused: Duration::ZERO,
            lives: 0,
            mistake,
            epoch: Epoch(0),
            // The mistake is one of people who trust NTP.
            offset: chance
                .millis(10_000, if mistake == Mistake::ComparingClocks { 10_300 } else { 4_000_000 }),
            // Up to 2 %: two hundred times what quartz does.
            rate: 980_000 + chance.below(40_000) as u64,
            tick: None,
            connections: BTreeMap::new(),
            before: BTreeMap::new(),
            locals: BTreeMap::new(),
            running: BTreeMap::new(),
            draining: Vec::new(),
            memory: BTreeMap::new(),
        }
    }

    fn local(&self, now: Duration) -> Time {
        let micros = now.as_micros() as u64;
        self.offset + Duration::from_nanos(micros * self.rate / 1_000)
    }

    pub fn executes(&self, unit: UnitId, now: Duration) -> bool {
        let local = self.local(now);
        now >= self.paused && self.machine.as_ref().is_some_and(|machine| machine.executes(unit, local))
    }

    /// A new life, unless there is one.
    pub fn starts(&mut self, queue: &mut Queue) {
        if self.machine.is_some() {
            return;
        }
        self.instance = InstanceId(queue.number());
        self.lives += 1;
        self.epoch = Epoch(0);
        let own = Member {
            instance: self.instance,
            addresses: vec![format!("192.0.2.{}:0/{}", self.index + 1, self.instance.0)],
            protocol: 1..=1,
            secret: 1,
            standing: Standing::Serving,
        };
        let mut machine = Gateway::new(self.local(queue.now), self.id, own, Timers::default());
        machine.make(self.mistake);
        self.machine = Some(machine);
        self.send(queue, Op::Watch, Then::Watch);
        let (node, from) = (self.index, self.instance);
        queue.after(LINK, Happening::Link { node, from });
        self.goes_on(queue);
    }

    /// The end of this life; what it has sent is on its way all the same.
    pub fn dies(&mut self, queue: &mut Queue, until: Duration) {
        self.machine = None;
        self.tick = None;
        for (client, connection) in std::mem::take(&mut self.connections) {
            self.before.insert(client, connection.number);
            self.tell(queue, client, connection.number, ToClient::Reset);
        }
        self.locals.clear();
        self.running.clear();
        self.draining.clear();
        self.memory.clear();
        queue.after(until, Happening::Start { node: self.index });
    }

    pub fn event(&mut self, queue: &mut Queue, event: Event) {
        let now = self.local(queue.now);
        if let Some(machine) = &mut self.machine {
            machine.tick(now);
            machine.handle(now, event);
        }
        self.goes_on(queue);
    }

    pub fn tick(&mut self, queue: &mut Queue, from: InstanceId) {
        if self.instance == from {
            self.tick = None;
            let now = self.local(queue.now);
            if let Some(machine) = &mut self.machine {
                machine.tick(now);
            }
            self.goes_on(queue);
        }
    }

    pub fn map(&mut self, from: InstanceId, epoch: Epoch) {
        if self.instance == from {
            self.epoch = self.epoch.max(epoch);
        }
    }

    /// An OSD has answered.
    pub fn reply(&mut self, queue: &mut Queue, from: InstanceId, epoch: Epoch, reply: Reply, then: Then) {
        if self.instance != from || self.machine.is_none() {
            return;
        }
        self.epoch = self.epoch.max(epoch);
        let event = match (then, reply) {
            (_, Reply::Fenced) => Event::Fenced,
            (Then::Beat, _) => {
                self.send(queue, Op::Read, Then::Seen);
                return;
            }
            (Then::Watch, _) => return,
            (Then::Data(local), reply) => {
                let value = match (&reply, self.locals.get(&local)) {
                    (Reply::Values(values), Some(held)) => values[held.command.block],
                    _ => 0,
                };
                return self.done(queue, local, value);
            }
            (Then::Seen, Reply::Seen(snapshot)) => Event::Seen(snapshot),
            (Then::Changed, Reply::Changed(done)) => Event::Changed(done),
            (Then::Locked(unit), Reply::Lock(outcome)) => Event::Lock { unit, outcome },
            (Then::Broken(unit), _) => Event::Broken { unit },
            (Then::Opened(unit), Reply::Values(values)) => {
                self.memory.insert(unit, values);
                Event::Opened { unit }
            }
            (Then::Released(unit), _) => Event::Released { unit },
            (then, reply) => unreachable!("{reply:?} for {then:?}"),
        };
        self.event(queue, event);
    }

    /// The monitors have answered.
    pub fn answer(&mut self, queue: &mut Queue, from: InstanceId, epoch: Epoch, ask: Ask) {
        if self.instance != from || self.machine.is_none() {
            return;
        }
        let event = match ask {
            Ask::Blocklist(instance) => Event::Blocklisted { instance, epoch: Some(epoch) },
            Ask::Map => {
                self.epoch = self.epoch.max(epoch);
                Event::Map(self.epoch)
            }
        };
        self.event(queue, event);
    }

    /// The driver's own timer.
    pub fn link(&mut self, queue: &mut Queue, from: InstanceId) {
        let Some(machine) = self.machine.as_mut().filter(|_| self.instance == from) else { return };
        let now = self.offset + Duration::from_nanos(queue.now.as_micros() as u64 * self.rate / 1_000);
        machine.tick(now);
        let clients: Vec<(usize, u64)> =
            self.connections.iter().map(|(client, c)| (*client, c.number)).collect();
        for (client, number) in clients {
            self.tell(queue, client, number, ToClient::Ping(now));
        }
        if queue.chance.percent(5) {
            self.send(queue, Op::Watch, Then::Watch);
        }
        queue.after(LINK, Happening::Link { node: self.index, from });
        self.goes_on(queue);
    }

    /// An initiator's message.
    pub fn client(&mut self, queue: &mut Queue, client: usize, number: u64, message: FromClient) {
        let is_old = self.before.get(&client).is_some_and(|before| *before >= number);
        if self.machine.is_none() || is_old {
            self.tell(queue, client, number, ToClient::Reset);
            return;
        }
        let now = self.local(queue.now);
        let known = self.connections.get(&client).map(|connection| connection.number);
        if known.is_some_and(|known| known > number) {
            return;
        }
        if known != Some(number) {
            self.connections.insert(client, Connection { number, heard: Time::ZERO });
        }
        match message {
            FromClient::Closed => {
                self.connections.remove(&client);
            }
            FromClient::Pong(sent) => {
                let Some(connection) = self.connections.get_mut(&client) else { return };
                connection.heard = connection.heard.max(sent);
            }
            FromClient::Command(command) => {
                let heard = self.connections.get(&client).map_or(Time::ZERO, |connection| connection.heard);
                let admits = self.machine.as_ref().and_then(|machine| machine.admits_until(command.unit));
                let is_fresh = now.saturating_sub(heard) <= Timers::default().fresh;
                if is_fresh && admits.is_some_and(|end| now < end) {
                    self.begins(queue, command, client, number);
                } else {
                    let message = ToClient::Answer { op: command.op, outcome: Outcome::Refused };
                    self.tell(queue, client, number, message);
                }
            }
        }
        self.goes_on(queue);
    }

    fn begins(&mut self, queue: &mut Queue, command: Command, client: usize, connection: u64) {
        let id = queue.number();
        self.locals.insert(id, Local { command, client, connection });
        let block = (command.unit, command.block);
        let waiting = self.running.entry(block).or_default();
        waiting.push_back(id);
        if waiting.len() == 1 {
            self.issue(queue, block);
        }
    }

    /// Carries out all effects, and sets the timer.
    fn goes_on(&mut self, queue: &mut Queue) {
        while let Some(effect) = self.machine.as_mut().and_then(Gateway::effect) {
            self.carry_out(queue, effect);
        }
        let now = self.local(queue.now);
        if let Some(due) = self.machine.as_ref().and_then(|machine| machine.due(now)) {
            let wait = due.saturating_sub(now).as_micros() as u64;
            let at = queue.now + Duration::from_micros(wait * 1_000_000 / self.rate + 2);
            if self.tick.is_none_or(|tick| at < tick || tick < queue.now) {
                self.tick = Some(at);
                queue.after(at - queue.now, Happening::Tick { node: self.index, from: self.instance });
            }
        }
    }

    fn carry_out(&mut self, queue: &mut Queue, effect: Effect) {
        match effect {
            Effect::Look { beat: Some(beat) } => self.send(queue, Op::Beat(beat), Then::Beat),
            Effect::Look { beat: None } => self.send(queue, Op::Read, Then::Seen),
            Effect::Change { expect, version, record } => {
                self.send(queue, Op::Change { expect, version, record }, Then::Changed)
            }
            Effect::Notify => queue.after(Duration::from_micros(500), Happening::Notify),
            Effect::Blocklist { instance, .. } => self.monitor(queue, Ask::Blocklist(instance)),
            Effect::AwaitMap => self.monitor(queue, Ask::Map),
            Effect::Acquire { unit } => self.send(queue, Op::Acquire(unit), Then::Locked(unit)),
            Effect::Break { unit, instance } => {
                self.send(queue, Op::Break(unit, instance), Then::Broken(unit))
            }
            Effect::Open { unit } => self.send(queue, Op::Open(unit), Then::Opened(unit)),
            Effect::Release { unit } => self.send(queue, Op::Release(unit), Then::Released(unit)),
            Effect::Drain { unit, asked } => {
                self.draining.push((unit, asked));
                self.drained(queue.now);
            }
            Effect::Requested { .. } => {}
            Effect::Stop(_) => {
                let until = queue.chance.millis(100, 2_000);
                self.dies(queue, until);
            }
        }
    }

    /// Begins the first command of a block's queue on the medium, or answers it from memory.
    fn issue(&mut self, queue: &mut Queue, block: Block) {
        while let Some(id) = self.running.get(&block).and_then(|waiting| waiting.front().copied()) {
            let Some(command) = self.locals.get(&id).map(|local| local.command) else { return };
            let (unit, index) = block;
            match command.action {
                Action::Write => {
                    let op = Op::Write { unit, block: index, value: command.op };
                    return self.send(queue, op, Then::Data(id));
                }
                Action::Fetch => return self.send(queue, Op::Fetch(unit), Then::Data(id)),
                Action::Inquire => {
                    let value = self.memory.get(&unit).map_or(0, |values| values[index]);
                    let outcome =
                        if self.executes(unit, queue.now) { Outcome::Value(value) } else { Outcome::Refused };
                    self.finish(queue, id, outcome);
                    self.pop(block);
                }
            }
        }
        self.drained(queue.now);
    }

    fn pop(&mut self, block: Block) {
        if let Some(waiting) = self.running.get_mut(&block) {
            waiting.pop_front();
            if waiting.is_empty() {
                self.running.remove(&block);
            }
        }
    }

    /// The medium has answered a command.
    fn done(&mut self, queue: &mut Queue, id: u64, value: u64) {
        let Some(command) = self.locals.get(&id).map(|local| local.command) else { return };
        if command.action == Action::Write {
            self.memory.entry(command.unit).or_default()[command.block] = command.op;
        }
        self.finish(queue, id, Outcome::Value(value));
        let block = (command.unit, command.block);
        self.pop(block);
        self.issue(queue, block);
        self.goes_on(queue);
    }

    /// Reports units of which nothing runs any more.
    fn drained(&mut self, now: Duration) {
        let now = self.local(now);
        let (done, left): (Vec<_>, Vec<_>) = std::mem::take(&mut self.draining)
            .into_iter()
            .partition(|(unit, _)| !self.running.keys().any(|(of, _)| of == unit));
        self.draining = left;
        if let Some(machine) = &mut self.machine {
            for (unit, asked) in done {
                machine.handle(now, Event::Drained { unit, asked });
            }
        }
    }

    fn finish(&mut self, queue: &mut Queue, id: u64, outcome: Outcome) {
        let Some(local) = self.locals.remove(&id) else { return };
        let message = ToClient::Answer { op: local.command.op, outcome };
        self.tell(queue, local.client, local.connection, message);
    }

    fn tell(&self, queue: &mut Queue, client: usize, connection: u64, message: ToClient) {
        let delay = queue.way();
        queue.after(delay, Happening::ToClient { node: self.index, client, connection, message });
    }

    fn send(&self, queue: &mut Queue, op: Op, then: Then) {
        let delay = queue.osd();
        let (node, from, epoch) = (self.index, self.instance, self.epoch);
        queue.after(delay, Happening::Osd { node, from, epoch, op, then });
    }

    fn monitor(&self, queue: &mut Queue, ask: Ask) {
        let delay = queue.chance.millis(50, 1_000);
        queue.after(delay, Happening::Monitor { node: self.index, from: self.instance, ask });
    }
}
