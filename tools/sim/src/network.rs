//! The network: byte streams with latency, jitter, stalls, cuts at any byte, bounded windows, peers that vanish, resets,
//! and bytes that flip.
//!
//! A stream delivers its bytes in order, like TCP; nothing is promised between streams. Where the pieces end has nothing
//! to do with what was written.

use std::collections::VecDeque;

use crate::clock::Micros;
use crate::random::Rng;

/// Which end of a link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    /// The end that connected.
    Initiator,
    /// The end that accepted.
    Target,
}

/// Names a link for ever.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct LinkId(pub usize);

/// What a link is like.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Quality {
    /// Time that a segment takes at least and at most.
    pub latency: (Micros, Micros),
    /// Bytes of a segment at least and at most.
    pub segment: (usize, usize),
    /// Bytes under way in one direction at most, those that arrived and were not read included.
    pub window: usize,
    /// Of a thousand segments, how many stall.
    pub stalls: u64,
    /// How long they stall at most.
    pub stall: Micros,
}

/// What a read gave.
#[derive(Debug, PartialEq, Eq)]
pub enum Received {
    /// Bytes, at least one.
    Bytes(Vec<u8>),
    /// Nothing yet.
    Nothing,
    /// The other end has closed and everything was read.
    Closed,
    /// The connection was reset.
    Reset,
}

/// One direction.
#[derive(Debug, Default)]
struct Pipe {
    segments: VecDeque<(Micros, Vec<u8>)>,
    arrived: VecDeque<u8>,
    in_flight: usize,
    last_due: Micros,
    /// The writer has closed.
    closed: Option<Micros>,
    /// When the reader learns of a reset.
    reset: Option<Micros>,
    /// A byte was flipped on the way.
    corrupted: bool,
    /// Flip a byte of the next segment.
    flip: bool,
}

struct Link {
    quality: Quality,
    /// To the target, and to the initiator.
    pipes: [Pipe; 2],
    /// Nothing is carried any more and nobody is told.
    vanished: bool,
    accept_at: Option<Micros>,
}

fn outgoing(side: Side) -> usize {
    usize::from(side == Side::Target)
}

fn incoming(side: Side) -> usize {
    1 - outgoing(side)
}

/// All links there ever were.
pub struct Network {
    links: Vec<Link>,
    rng: Rng,
    /// Bytes a second of all links together in each direction; 0: no limit.
    rate: u64,
    /// When the path is free again, to the target and to the initiator, ns.
    free: [u64; 2],
}

impl Network {
    /// No links.
    pub fn new(rng: Rng) -> Self {
        Self { links: Vec::new(), rng, rate: 0, free: [0; 2] }
    }

    /// All links share a path that carries so many bytes a second in each direction; 0: any number.
    pub fn set_rate(&mut self, rate: u64) {
        self.rate = rate;
    }

    /// When the last of `len` bytes that are sent now leaves.
    fn leaves(&mut self, now: Micros, direction: usize, len: usize) -> Micros {
        if self.rate == 0 {
            return now;
        }
        let free = &mut self.free[direction];
        *free = (*free).max(now * 1000) + len as u64 * 1_000_000_000 / self.rate;
        free.div_ceil(1000)
    }

    /// A connection is made; the target may accept it after a while.
    pub fn connect(&mut self, now: Micros, quality: Quality) -> LinkId {
        let at = now + self.delay(&quality);
        let pipes = [Pipe::default(), Pipe::default()];
        self.links.push(Link { quality, pipes, vanished: false, accept_at: Some(at) });
        LinkId(self.links.len() - 1)
    }

    /// A connection that waits to be accepted.
    pub fn accept(&mut self, now: Micros) -> Option<LinkId> {
        let at = self.links.iter().position(|link| link.accept_at.is_some_and(|at| at <= now))?;
        self.links[at].accept_at = None;
        Some(LinkId(at))
    }

    fn delay(&mut self, quality: &Quality) -> Micros {
        let mut delay = self.rng.between(quality.latency.0, quality.latency.1);
        if self.rng.chance(quality.stalls) {
            delay += self.rng.below(quality.stall + 1);
        }
        delay
    }

    /// Sends as much of `bytes` as the window takes; answers how many. After a reset or a close they go nowhere.
    pub fn send(&mut self, now: Micros, id: LinkId, side: Side, bytes: &[u8]) -> usize {
        let quality = self.links[id.0].quality;
        let pipe = &self.links[id.0].pipes[outgoing(side)];
        if pipe.closed.is_some() || pipe.reset.is_some() {
            return bytes.len();
        }
        let taken = bytes.len().min(quality.window.saturating_sub(pipe.in_flight + pipe.arrived.len()));
        let mut rest = &bytes[..taken];
        while !rest.is_empty() {
            let (low, high) = quality.segment;
            let len = (self.rng.between(low as u64, high as u64) as usize).min(rest.len());
            let mut segment = rest[..len].to_vec();
            rest = &rest[len..];
            let delay = self.delay(&quality);
            let at = self.rng.index(len);
            let bit = self.rng.below(8);
            let leaves = self.leaves(now, outgoing(side), len);
            let pipe = &mut self.links[id.0].pipes[outgoing(side)];
            if pipe.flip {
                pipe.flip = false;
                pipe.corrupted = true;
                segment[at] ^= 1 << bit;
            }
            pipe.last_due = pipe.last_due.max(leaves + delay);
            pipe.in_flight += len;
            pipe.segments.push_back((pipe.last_due, segment));
        }
        taken
    }

    /// Reads what has arrived, all of it or an arbitrary part.
    pub fn receive(&mut self, now: Micros, id: LinkId, side: Side) -> Received {
        let whole = self.rng.chance(500);
        let part = self.rng.bits();
        let link = &mut self.links[id.0];
        let pipe = &mut link.pipes[incoming(side)];
        if pipe.reset.is_some_and(|at| at <= now) {
            return Received::Reset;
        }
        let len = pipe.arrived.len();
        if len > 0 {
            let n = if whole { len } else { 1 + (part % len as u64) as usize };
            return Received::Bytes(pipe.arrived.drain(..n).collect());
        }
        let closed = pipe.closed.is_some_and(|at| at <= now) && pipe.segments.is_empty();
        if closed && !link.vanished { Received::Closed } else { Received::Nothing }
    }

    /// One end closes in good order: the other reads what was sent, and then the end.
    pub fn close(&mut self, now: Micros, id: LinkId, side: Side) {
        let quality = self.links[id.0].quality;
        let delay = self.delay(&quality);
        let pipe = &mut self.links[id.0].pipes[outgoing(side)];
        if pipe.closed.is_none() {
            pipe.last_due = pipe.last_due.max(now + delay);
            pipe.closed = Some(pipe.last_due);
        }
    }

    /// One end gives up: the other finds a reset.
    pub fn abandon(&mut self, now: Micros, id: LinkId, side: Side) {
        let quality = self.links[id.0].quality;
        let delay = self.delay(&quality);
        let link = &mut self.links[id.0];
        let out = &mut link.pipes[outgoing(side)];
        if !link.vanished {
            out.reset.get_or_insert(now + delay);
        }
        let own = &mut link.pipes[incoming(side)];
        own.reset = Some(now);
        own.segments.clear();
        own.arrived.clear();
    }

    /// The link breaks: both ends find a reset, after whatever part of the bytes under way still comes.
    pub fn cut(&mut self, now: Micros, id: LinkId) {
        for direction in 0..2 {
            let quality = self.links[id.0].quality;
            let (delay, keep) = (self.delay(&quality), self.rng.bits());
            let pipe = &mut self.links[id.0].pipes[direction];
            let at = *pipe.reset.get_or_insert(now + delay);
            while pipe.segments.back().is_some_and(|(due, _)| *due > at) {
                let Some((due, mut segment)) = pipe.segments.pop_back() else { break };
                pipe.in_flight -= segment.len();
                if pipe.segments.back().is_none_or(|(due, _)| *due <= at) {
                    // The first that is lost may be lost in part.
                    segment.truncate((keep % (segment.len() as u64 + 1)) as usize);
                    if !segment.is_empty() && due > now {
                        pipe.in_flight += segment.len();
                        pipe.segments.push_back((at.saturating_sub(1).max(now), segment));
                    }
                    break;
                }
            }
        }
    }

    /// The link goes silent for good: nobody is told.
    pub fn vanish(&mut self, id: LinkId) {
        let link = &mut self.links[id.0];
        link.vanished = true;
        for pipe in &mut link.pipes {
            pipe.in_flight = pipe.segments.drain(..).map(|(_, segment)| segment.len()).sum();
        }
    }

    /// Flips a bit of a byte that the side sends next.
    pub fn flip(&mut self, id: LinkId, side: Side) {
        self.links[id.0].pipes[outgoing(side)].flip = true;
    }

    /// Whether a bit was flipped on the way to that side.
    pub fn corrupted(&self, id: LinkId, side: Side) -> bool {
        self.links[id.0].pipes[incoming(side)].corrupted
    }

    /// Whether a reset has been seen or is on its way to either side.
    pub fn is_broken(&self, id: LinkId) -> bool {
        let link = &self.links[id.0];
        link.vanished || link.pipes.iter().any(|pipe| pipe.reset.is_some() || pipe.closed.is_some())
    }

    /// Brings what is due. Answers whether anything was.
    pub fn deliver(&mut self, now: Micros) -> bool {
        let mut any = false;
        for link in &mut self.links {
            for pipe in &mut link.pipes {
                while !link.vanished && pipe.segments.front().is_some_and(|(due, _)| *due <= now) {
                    let Some((_, segment)) = pipe.segments.pop_front() else { break };
                    pipe.in_flight -= segment.len();
                    pipe.arrived.extend(segment);
                    any = true;
                }
            }
        }
        any
    }

    /// When something happens next after `now`.
    pub fn next_event(&self, now: Micros) -> Option<Micros> {
        let pipes = self.links.iter().filter(|link| !link.vanished).flat_map(|link| {
            let accept = link.accept_at;
            let pipes = link
                .pipes
                .iter()
                .flat_map(|pipe| [pipe.segments.front().map(|(due, _)| *due), pipe.closed, pipe.reset]);
            pipes.chain([accept]).flatten()
        });
        pipes.filter(|at| *at > now).min()
    }

    /// Bytes under way and not read, of all links that work.
    pub fn bytes_held(&self) -> usize {
        self.links.iter().flat_map(|link| &link.pipes).map(|pipe| pipe.in_flight + pipe.arrived.len()).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const QUALITY: Quality =
        Quality { latency: (10, 900), segment: (1, 7), window: 64, stalls: 100, stall: 5000 };

    /// Reads at `side` until nothing comes any more; time moves on.
    fn drain(network: &mut Network, now: &mut Micros, id: LinkId, side: Side) -> (Vec<u8>, Received) {
        let mut all = Vec::new();
        loop {
            network.deliver(*now);
            match network.receive(*now, id, side) {
                Received::Bytes(bytes) => all.extend(bytes),
                Received::Nothing => match network.next_event(*now) {
                    Some(at) => *now = at,
                    None => return (all, Received::Nothing),
                },
                end => return (all, end),
            }
        }
    }

    #[test]
    fn a_stream_brings_all_bytes_in_order_within_its_window() {
        for seed in 0..50 {
            let mut network = Network::new(Rng::new(seed));
            let id = network.connect(0, QUALITY);
            let mut now = 0;
            let bytes: Vec<u8> = (0..=255).collect();
            let (mut sent, mut read) = (0, Vec::new());
            while sent < bytes.len() {
                let taken = network.send(now, id, Side::Initiator, &bytes[sent..]);
                assert!(taken <= QUALITY.window);
                sent += taken;
                read.extend(drain(&mut network, &mut now, id, Side::Target).0);
            }
            network.close(now, id, Side::Initiator);
            let (rest, end) = drain(&mut network, &mut now, id, Side::Target);
            read.extend(rest);
            assert_eq!((read, end), (bytes, Received::Closed), "seed {seed}");
        }
    }

    #[test]
    fn a_cut_link_brings_a_part_from_the_start_and_then_a_reset_to_both_ends() {
        for seed in 0..200 {
            let mut network = Network::new(Rng::new(seed));
            let id = network.connect(0, QUALITY);
            let bytes: Vec<u8> = (0..60).collect();
            network.send(0, id, Side::Initiator, &bytes);
            let mut now = 300;
            network.cut(now, id);
            let (read, end) = drain(&mut network, &mut now, id, Side::Target);
            assert!(bytes.starts_with(&read), "seed {seed}");
            assert_eq!(end, Received::Reset);
            assert_eq!(drain(&mut network, &mut now, id, Side::Initiator).1, Received::Reset);
        }
    }

    #[test]
    fn a_vanished_peer_is_silence() {
        let mut network = Network::new(Rng::new(1));
        let id = network.connect(0, QUALITY);
        network.accept(1_000_000);
        network.vanish(id);
        assert_eq!(network.send(0, id, Side::Initiator, &[0; 100]), 64, "the window fills, and that is all");
        assert_eq!(drain(&mut network, &mut 0, id, Side::Target), (Vec::new(), Received::Nothing));
    }
}
