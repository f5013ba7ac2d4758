//! Two ends, their hosts and the bytes between them, from a seed.
//!
//! The hosts check what they are told against what has happened at the other end.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use crate::forwarder::{Event, Final, Forwarder};
use crate::handshake::{Answering, Calling, Own, Said};
use crate::limits::Limits;
use crate::message::{Attach, Attention, Attribute, Command, Function, Managed, NotBegun, Outcome, View};
use crate::number::Number;
use crate::owner::{Owner, Progress};
use crate::secret::Secret;
use crate::{Connection, Time};

pub const FORWARDER: u64 = 0x11;
pub const OWNER: u64 = 0x22;

/// Numbers from a seed (SplitMix64).
pub struct Chance(pub u64);

impl Chance {
    pub fn draw(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    pub fn below(&mut self, end: u64) -> u64 {
        self.draw() % end.max(1)
    }

    pub fn once_in(&mut self, many: u64) -> bool {
        self.below(many) == 0
    }
}

pub fn secret() -> Secret {
    Secret::new(b"of the group: 32 bytes, at random").expect("a secret")
}

pub fn own() -> Own {
    Own { gateway: 1, instance: FORWARDER, channel: 0, owner: OWNER, versions: 1..=1, secret: 5, piece: 8192 }
}

pub fn limits() -> Limits {
    Limits { piece: 4096, commands: 4, nexuses: 3, unsolicited: 100 }
}

pub fn nexus(unit: u32) -> Attach {
    Attach {
        itl: 0,
        nexus: 77,
        unit,
        tenure: 1,
        read_only: false,
        new: true,
        generation: 0,
        port: 9,
        transport_id: vec![0x45, 0, 0, 4, b'i', b'q', b'n', 0],
        initiator: "iqn.1993-08.org.debian:01:abc".into(),
        target: "iqn.2026-01.org.example:disk".into(),
        principal: None,
        attentions: Vec::new(),
    }
}

pub fn command(itl: u32, tag: u64, data_out: u64, data_in: u64) -> Command {
    let cdb = vec![if data_out > 0 { 0x2a } else { 0x28 }, 0, 0, 0, 0, 1, 0, 0, 1, 0];
    let attribute = Attribute::Simple;
    Command { itl, generation: 0, token: 0, tag, attribute, data_out, data_in, room: data_in, cdb }
}

/// The byte at `at` of the data of a command.
fn pattern(tag: u64, at: u64) -> u8 {
    (tag.wrapping_mul(31) as u8).wrapping_add(at as u8)
}

fn patterns(tag: u64, from: u64, len: u64) -> Vec<u8> {
    (from..from + len).map(|at| pattern(tag, at)).collect()
}

/// A command at the forwarder's host.
#[derive(Debug)]
struct Op {
    itl: u32,
    tag: u64,
    out: u64,
    sent: u64,
    may_send: u64,
    data_in: u64,
    room: u64,
    got: Vec<u8>,
    unchecked: Vec<u8>,
    function: bool,
}

/// A command at the owner's host.
#[derive(Debug)]
struct Job {
    command: Command,
    begun: bool,
    asked: u64,
    got: Vec<u8>,
    unchecked: Vec<u8>,
    sent: u64,
}

/// Bytes of one way of one connection.
#[derive(Default)]
struct Way {
    bytes: Vec<u8>,
    /// So many more are delivered before the connection is cut.
    left: Option<usize>,
    /// All that were sent.
    total: usize,
}

enum Link {
    Down,
    Shaking {
        calling: Box<Calling>,
        answering: Box<Answering>,
    },
    /// The forwarder waits for the owner's last word, and has sent nothing yet.
    Half {
        calling: Box<Calling>,
        owner: Connection,
    },
    Up {
        forwarder: Connection,
        owner: Connection,
    },
}

pub struct World {
    pub chance: Chance,
    pub now: Time,
    pub forwarder: Forwarder,
    pub owner: Owner,
    link: Link,
    nonce: u8,
    up: Way,
    down: Way,
    ops: BTreeMap<Number, Op>,
    jobs: BTreeMap<Number, Job>,
    functions: Vec<(Number, u32, Function)>,
    /// What has begun at the owner, by number.
    began: BTreeSet<Number>,
    /// What must never begin.
    never: BTreeSet<Number>,
    pub ends: BTreeMap<Number, Final>,
    attached: BTreeSet<u32>,
    attentions: BTreeMap<u32, Vec<Attention>>,
    told: BTreeMap<u32, Vec<Attention>>,
    views: BTreeMap<u32, View>,
    itls: Vec<u32>,
    tags: u64,
    pub losses: usize,
    /// Cuts the next connections after so many bytes to the owner, or to the forwarder.
    pub cuts: Vec<(Option<usize>, Option<usize>)>,
}

impl World {
    pub fn new(seed: u64) -> Self {
        Self {
            chance: Chance(seed),
            now: Duration::from_secs(1),
            forwarder: Forwarder::new(own().piece),
            owner: Owner::new(limits()),
            link: Link::Down,
            nonce: 0,
            up: Way::default(),
            down: Way::default(),
            ops: BTreeMap::new(),
            jobs: BTreeMap::new(),
            functions: Vec::new(),
            began: BTreeSet::new(),
            never: BTreeSet::new(),
            ends: BTreeMap::new(),
            attached: BTreeSet::new(),
            attentions: BTreeMap::new(),
            told: BTreeMap::new(),
            views: BTreeMap::new(),
            itls: Vec::new(),
            tags: 0,
            losses: 0,
            cuts: Vec::new(),
        }
    }

    /// Bytes of the present connection: to the owner and to the forwarder.
    pub fn sent(&self) -> (usize, usize) {
        (self.up.total, self.down.total)
    }

    pub fn is_up(&self) -> bool {
        matches!(self.link, Link::Up { .. })
    }

    pub fn call(&mut self) {
        self.nonce += 1;
        let (up, down) = if self.cuts.is_empty() { (None, None) } else { self.cuts.remove(0) };
        self.up = Way { left: up, ..Way::default() };
        self.down = Way { left: down, ..Way::default() };
        let mut out = Vec::new();
        let calling = Box::new(Calling::open(own(), &secret(), [self.nonce; 32], &mut out));
        self.up.send(&out);
        self.link = Link::Shaking { calling, answering: Box::default() };
    }

    /// The connection is lost at both ends.
    pub fn lose(&mut self) {
        self.losses += 1;
        self.link = Link::Down;
        self.forwarder.lost();
        // An owner may not notice before the next connection.
        if self.chance.once_in(2) {
            self.owner.lost();
        }
        self.jobs.values_mut().for_each(|job| job.unchecked.clear());
        self.ops.values_mut().for_each(|op| op.unchecked.clear());
    }

    /// Takes some bytes of a way. `None`: the connection is cut.
    fn take(&mut self, to_owner: bool, most: usize) -> Option<Vec<u8>> {
        let way = if to_owner { &mut self.up } else { &mut self.down };
        let mut len = way.bytes.len().min(most);
        if let Some(left) = &mut way.left {
            if *left == 0 && len > 0 {
                return None;
            }
            len = len.min(*left);
            *left -= len;
        }
        Some(way.bytes.drain(..len).collect())
    }

    fn deliver(&mut self, to_owner: bool) {
        if matches!(self.link, Link::Down) {
            return;
        }
        let most = if self.chance.once_in(3) { 1 + self.chance.below(40) as usize } else { 4000 };
        let Some(bytes) = self.take(to_owner, most) else { return self.lose() };
        let mut input = &bytes[..];
        match std::mem::replace(&mut self.link, Link::Down) {
            Link::Down => {}
            Link::Shaking { calling, mut answering } if to_owner => {
                let said = answering.advance(&mut input).expect("an honest peer");
                let mut out = Vec::new();
                match said {
                    None => {}
                    Some(Said::Hello(claim)) => {
                        assert_eq!(claim, own());
                        let nonce = [self.nonce | 0x80; 32];
                        answering.challenge((2, OWNER, 1), &limits(), &secret(), nonce, &mut out);
                    }
                    Some(Said::Proven) => {
                        let token = self.now.as_nanos() as u64;
                        let remembers = self.owner.remembers();
                        let keys = answering.accept(remembers, token, &mut out).expect("proven");
                        let owner = self.owner.connect(self.now, keys, own().piece, token);
                        self.down.send(&out);
                        self.link = Link::Half { calling, owner };
                        return self.owner_gets(owner, input);
                    }
                }
                self.down.send(&out);
                self.link = Link::Shaking { calling, answering };
            }
            Link::Shaking { mut calling, answering } => {
                let mut out = Vec::new();
                assert!(calling.advance(&mut input, &mut out).expect("an honest peer").is_none());
                self.up.send(&out);
                self.link = Link::Shaking { calling, answering };
            }
            Link::Half { mut calling, owner } if !to_owner => {
                let mut out = Vec::new();
                match calling.advance(&mut input, &mut out).expect("an honest peer") {
                    None => self.link = Link::Half { calling, owner },
                    Some(welcome) => {
                        let forwarder =
                            self.forwarder.connect(self.now, welcome, &mut out).expect("an honest peer");
                        self.up.send(&out);
                        self.link = Link::Up { forwarder, owner };
                        self.forwarder_gets(forwarder, input);
                    }
                }
            }
            Link::Half { calling, owner } => {
                self.link = Link::Half { calling, owner };
                self.owner_gets(owner, input);
            }
            Link::Up { forwarder, owner } => {
                self.link = Link::Up { forwarder, owner };
                if to_owner { self.owner_gets(owner, input) } else { self.forwarder_gets(forwarder, input) }
            }
        }
    }

    fn owner_gets(&mut self, connection: Connection, mut input: &[u8]) {
        while let Some(progress) =
            self.owner.receive(connection, self.now, &mut input).expect("an honest peer")
        {
            match progress {
                Progress::Attach(attach) => assert!(self.attached.insert(attach.itl)),
                Progress::Detach { itl } => assert!(self.attached.remove(&itl)),
                Progress::Command { number, command, unsolicited } => {
                    assert!(self.attached.contains(&command.itl));
                    let asked = unsolicited.into();
                    let (got, unchecked) = Default::default();
                    let job = Job { command, begun: false, asked, got, unchecked, sent: 0 };
                    assert!(self.jobs.insert(number, job).is_none());
                }
                Progress::Function { number, itl, function } => {
                    self.began.insert(number);
                    self.functions.push((number, itl, function));
                }
                Progress::Data { number, offset, bytes, last } => {
                    let Some(job) = self.jobs.get_mut(&number) else { continue };
                    assert_eq!(offset, job.got.len() as u64);
                    job.unchecked.extend(bytes);
                    if last {
                        job.got.append(&mut job.unchecked);
                    }
                }
                Progress::Room { .. } | Progress::Abort { .. } | Progress::Settled => {}
                Progress::Beat { token } => assert!(token <= self.now.as_nanos() as u64),
            }
        }
        assert!(input.is_empty());
    }

    fn forwarder_gets(&mut self, connection: Connection, mut input: &[u8]) {
        while let Some(event) =
            self.forwarder.receive(connection, self.now, &mut input).expect("an honest peer")
        {
            match event {
                Event::Room { number, end } => {
                    let op = self.ops.get_mut(&number).expect("it has no end");
                    assert!(op.may_send < end && end <= op.out);
                    op.may_send = end;
                }
                Event::Data { number, offset, bytes, last } => {
                    let op = self.ops.get_mut(&number).expect("it has no end");
                    assert_eq!(offset, op.got.len() as u64);
                    op.unchecked.extend(bytes);
                    assert!((op.got.len() + op.unchecked.len()) as u64 <= op.room);
                    if last {
                        op.got.append(&mut op.unchecked);
                    }
                }
                Event::End { number, end } => self.ends(number, end),
                Event::Cleared { itl } => assert!(self.itls.contains(&itl)),
                Event::Attentions { itl, attentions } => {
                    self.told.insert(itl, attentions);
                }
                Event::View(view) => {
                    self.views.insert(view.unit, view);
                }
            }
        }
        assert!(input.is_empty());
    }

    /// The forwarder's host learns what became of a forwarding.
    fn ends(&mut self, number: Number, end: Final) {
        let op = self.ops.remove(&number).expect("a forwarding ends once");
        let job = self.jobs.get(&number);
        assert!(job.is_none_or(|job| !job.begun), "{number} has ended, and runs: {end:?}");
        match &end {
            Final::NotBegun(reason) => {
                assert!(!self.began.contains(&number), "{number} has begun: {reason:?}");
                self.never.insert(number);
            }
            Final::Ended => assert!(self.began.contains(&number)),
            Final::Managed(result) => {
                assert!(op.function && self.began.contains(&number));
                assert_eq!(*result, Managed::Done);
            }
            Final::Outcome { outcome, whole } => {
                assert!(!op.function && self.began.contains(&number));
                if *whole {
                    assert_eq!(op.got, patterns(op.tag, 0, outcome.wanted_in.min(op.data_in)));
                }
                if self.losses == 0 {
                    assert!(whole);
                }
            }
        }
        assert!(self.ends.insert(number, end).is_none(), "{number} ends twice");
    }

    pub fn attach(&mut self, unit: u32) -> u32 {
        let mut out = Vec::new();
        let itl = self.forwarder.attach(nexus(unit), &mut out).expect("there is room");
        self.up.send(&out);
        self.itls.push(itl);
        itl
    }

    pub fn submit(&mut self) {
        if self.itls.is_empty() {
            return;
        }
        let itl = self.itls[self.chance.below(self.itls.len() as u64) as usize];
        self.tags += 1;
        let (tag, len) = (self.tags, self.chance.below(60));
        let (out, data_in) = match self.chance.below(5) {
            0 => (0, 0),
            1 => (len, self.chance.below(60)),
            2 | 3 => (len, 0),
            _ => (0, len),
        };
        let mut command = command(itl, tag, out, data_in);
        command.room = self.chance.below(data_in + 1);
        let most = u64::from(self.forwarder.unsolicited_room()).min(out);
        let sent = self.chance.below(most + 1);
        let data = patterns(tag, 0, sent);
        let mut bytes = Vec::new();
        let room = command.room;
        let Ok(number) =
            self.forwarder.submit(command, &[&data[..data.len() / 2], &data[data.len() / 2..]], &mut bytes)
        else {
            return;
        };
        bytes.extend(&data);
        self.up.send(&bytes);
        let (got, unchecked) = Default::default();
        #[rustfmt::skip]
        let op = Op { itl, tag, out, sent, may_send: sent, data_in, room, got, unchecked, function: false };
        assert!(self.ops.insert(number, op).is_none());
    }

    fn manage(&mut self) {
        let Some(itl) = self.itls.first().copied() else { return };
        let mut bytes = Vec::new();
        let Ok(number) = self.forwarder.manage(itl, Function::LogicalUnitReset, &mut bytes) else { return };
        self.up.send(&bytes);
        let (got, unchecked) = Default::default();
        #[rustfmt::skip]
        let op = Op { itl, tag: 0, out: 0, sent: 0, may_send: 0, data_in: 0, room: 0, got, unchecked, function: true };
        self.ops.insert(number, op);
    }

    fn some_op(&mut self) -> Option<Number> {
        let at = self.chance.below(self.ops.len() as u64) as usize;
        self.ops.keys().nth(at).copied()
    }

    /// The forwarder's host goes on with a command: sends Data-Out, gives room for Data-In.
    fn forward(&mut self) {
        let Some(number) = self.some_op() else { return };
        let mut bytes = Vec::new();
        let op = self.ops.get_mut(&number).expect("it is one");
        if op.may_send > op.sent {
            let len = 1 + self.chance.below(op.may_send - op.sent);
            let data = patterns(op.tag, op.sent, len);
            if self.forwarder.data(number, &[&data], &mut bytes).is_ok() {
                op.sent += len;
                bytes.extend(data);
            }
        }
        if op.data_in > op.room {
            op.room += 1 + self.chance.below(op.data_in - op.room);
            self.forwarder.room(number, op.room, &mut bytes);
        }
        self.up.send(&bytes);
    }

    fn abort(&mut self) {
        let Some(number) = self.some_op() else { return };
        let mut bytes = Vec::new();
        self.forwarder.abort(number, &mut bytes);
        self.up.send(&bytes);
    }

    /// The owner's host goes on with a command.
    fn execute(&mut self) {
        if let Some((number, itl, function)) = self.functions.pop() {
            assert_eq!(function, Function::LogicalUnitReset);
            self.clear(itl);
            // Whoever resets waits for the end of all that has begun.
            let begun: Vec<Number> = self
                .jobs
                .iter()
                .filter(|(_, job)| job.begun && job.command.itl == itl)
                .map(|(number, _)| *number)
                .collect();
            for job in begun {
                self.jobs.remove(&job);
                self.owner.ended(job);
            }
            return self.owner.managed(number, Managed::Done);
        }
        let at = self.chance.below(self.jobs.len() as u64) as usize;
        let Some(number) = self.jobs.keys().nth(at).copied() else { return };
        let job = self.jobs.get_mut(&number).expect("it is one");
        if !job.begun {
            if self.chance.once_in(10) {
                self.jobs.remove(&number);
                return self.owner.refuse(number, NotBegun::NotOwner);
            }
            if self.owner.begin(number) {
                assert!(!self.never.contains(&number), "{number} begins, and was to begin never");
                self.began.insert(number);
                job.begun = true;
            } else {
                self.jobs.remove(&number);
            }
            return;
        }
        let (out, data_in) = (job.command.data_out, job.command.data_in);
        let tag = job.command.tag;
        if (job.got.len() as u64) < out {
            if !self.owner.moves(number) {
                self.jobs.remove(&number);
                return self.owner.ended(number);
            }
            if job.asked == job.got.len() as u64 {
                let end = job.asked + 1 + self.chance.below(out - job.asked);
                job.asked = self.owner.ask(number, end);
            }
            return;
        }
        assert_eq!(job.got, patterns(tag, 0, out));
        let moves = self.owner.moves(number);
        if job.sent < data_in && moves {
            let room = self.owner.room(number);
            if room > 0 {
                let len = 1 + self.chance.below(room);
                let data = patterns(tag, job.sent, len);
                let mut bytes = Vec::new();
                assert!(self.owner.data(number, &[&data], &mut bytes));
                bytes.extend(data);
                job.sent += len;
                self.send_down(&bytes);
            }
            return;
        }
        if job.sent < data_in && self.chance.once_in(2) {
            self.jobs.remove(&number);
            return self.owner.ended(number);
        }
        let outcome = Outcome { status: 0, wanted_in: data_in, wanted_out: out, sense: Vec::new() };
        self.jobs.remove(&number);
        self.owner.finish(number, outcome);
    }

    /// The owner clears a nexus: a reset, or PREEMPT AND ABORT of another one.
    fn clear(&mut self, itl: u32) {
        let begun = self.owner.clear(itl, None);
        if !self.attached.contains(&itl) {
            return;
        }
        for (number, op) in &self.ops {
            if op.itl == itl && !op.function && !self.began.contains(number) {
                self.never.insert(*number);
            }
        }
        for number in begun {
            assert!(self.jobs[&number].begun && !self.owner.moves(number));
        }
    }

    fn attend(&mut self) {
        let Some(itl) = self.attached.first().copied() else { return };
        let list: Vec<Attention> =
            (0..self.chance.below(4)).map(|_| Attention(0x2a, self.chance.below(10) as u8)).collect();
        self.owner.attentions(itl, list.clone());
        self.attentions.insert(itl, list);
        let descriptor_sense = self.chance.once_in(2);
        let unit = nexus(itl).unit;
        self.owner.view(View {
            unit,
            device_type: 0,
            descriptor_sense,
            write_protected: false,
            block_size: 512,
            blocks: self.chance.below(4),
        });
    }

    fn flush(&mut self) {
        let mut bytes = Vec::new();
        self.forwarder.flush(&mut bytes);
        self.up.send(&bytes);
        let mut bytes = Vec::new();
        if self.down.bytes.len() < 500 {
            self.owner.flush(self.now, 200, &mut bytes);
        }
        self.send_down(&bytes);
    }

    /// Something happens.
    pub fn step(&mut self) {
        match self.chance.below(40) {
            0..12 => self.deliver(true),
            12..24 => self.deliver(false),
            24..30 => self.execute(),
            30..33 => self.forward(),
            33..36 => self.flush(),
            36 | 37 => self.submit(),
            38 => match self.chance.below(12) {
                0..4 => self.abort(),
                4 => self.manage(),
                5 => {
                    let itl = self.itls.first().copied().unwrap_or(1);
                    self.clear(itl);
                }
                _ => self.attend(),
            },
            _ => self.now += Duration::from_millis(10),
        }
        if matches!(self.link, Link::Down) && self.chance.once_in(3) {
            self.call();
        }
    }

    /// Nothing new happens until all has ended, over connections that hold.
    pub fn settle(&mut self) {
        for _ in 0..100_000 {
            if self.ops.is_empty() && self.jobs.is_empty() && self.is_up() && self.is_quiet() {
                break;
            }
            match self.chance.below(6) {
                0 => self.deliver(true),
                1 => self.deliver(false),
                2 => self.execute(),
                3 => self.forward(),
                _ => self.flush(),
            }
            if matches!(self.link, Link::Down) {
                self.call();
            }
        }
        assert!(self.ops.is_empty(), "without an end: {:?}", self.ops);
        assert!(self.jobs.is_empty(), "still at the owner: {:?}", self.jobs);
        assert_eq!(self.forwarder.outstanding().count(), 0);
        assert_eq!(self.owner.begun().count(), 0);
        for (itl, list) in &self.attentions {
            assert_eq!(self.told.get(itl).cloned().unwrap_or_default(), *list);
        }
    }

    /// What the owner writes to a connection that is lost is lost too.
    fn send_down(&mut self, bytes: &[u8]) {
        if matches!(self.link, Link::Half { .. } | Link::Up { .. }) {
            self.down.send(bytes);
        }
    }

    fn is_quiet(&mut self) -> bool {
        let mut bytes = Vec::new();
        let more = self.owner.flush(self.now, 1 << 20, &mut bytes);
        let quiet = bytes.is_empty() && !more && self.up.bytes.is_empty() && self.down.bytes.is_empty();
        self.send_down(&bytes);
        quiet
    }

    /// The owner's fence: what has no end is unknown. Returns how many, and how many of them never
    /// began.
    pub fn fence(self) -> (usize, usize) {
        let unknown = self.forwarder.fenced();
        let all: BTreeSet<Number> = self.ops.keys().copied().collect();
        assert_eq!(unknown.iter().copied().collect::<BTreeSet<_>>(), all);
        let never = unknown.iter().filter(|number| !self.began.contains(number)).count();
        (unknown.len(), never)
    }
}

impl Way {
    fn send(&mut self, bytes: &[u8]) {
        self.bytes.extend(bytes);
        self.total += bytes.len();
    }
}
