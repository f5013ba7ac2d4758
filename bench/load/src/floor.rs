//! The floor: the bytes of iSCSI over TCP, and nothing of iSCSI.
//!
//! A request is 48 bytes, an answer 48 bytes and the payload; for writes the payload goes with the
//! request. The server's payload lies anywhere in 1 GiB of memory (`--floor-mib`), as a disk's
//! does, so that it comes from memory and not from a cache. Both sides do what is best for TCP and
//! nothing else: no header is read, and the receive itself scatters payload to its place. Answers
//! go out in chunks, so that both sides work at the same time.
//!
//! Any cost of a target beyond this is its own. [`many`] serves many connections.

use std::io::{ErrorKind, IoSlice, IoSliceMut, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::time::{Duration, Instant};

use load::cpu::{self, Sample};
use load::{Engine, Random};
use memmap2::{Advice, MmapMut};
use rustix::io::Errno;
use rustix::net::{RecvAncillaryBuffer, RecvFlags, SendAncillaryBuffer, SendFlags};

use serde::Serialize;

use crate::args::{Args, Pattern};
use crate::report::{Report, Tally};
use crate::run::{PATIENCE, payload};
use crate::wire::{self, BHS};
use crate::{LoadError, many, socket};

/// Answers of one send, and their bytes: enough to make the call cheap, few enough that the client
/// begins meanwhile.
const CHUNK: usize = 32;
const CHUNK_BYTES: usize = 64 * 1024;
/// The first bytes of a connection.
const MAGIC: &[u8; 8] = b"floor 1\n";
/// The longest time for which the server polls its socket before it sleeps, so that no wake-up is
/// measured.
pub(crate) const AWAKE: Duration = Duration::from_micros(100);

/// The request of a client, in its first 48 bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Hello {
    pub(crate) block: usize,
    pub(crate) depth: u16,
    read: bool,
    random: bool,
    /// Number of connections, each of which begins with this message.
    pub(crate) connections: u16,
}

impl Hello {
    fn to_bytes(self) -> [u8; BHS] {
        let mut bytes = [0; BHS];
        bytes[..8].copy_from_slice(MAGIC);
        wire::put32(&mut bytes, 8, self.block as u32);
        wire::put32(&mut bytes, 12, u32::from(self.depth));
        (bytes[16], bytes[17]) = (u8::from(self.read), u8::from(self.random));
        wire::put32(&mut bytes, 20, u32::from(self.connections));
        bytes
    }

    fn parse(bytes: &[u8; BHS]) -> Option<Self> {
        let (block, depth) = (wire::get32(bytes, 8) as usize, wire::get32(bytes, 12));
        let (read, connections) = (bytes[16] != 0, wire::get32(bytes, 20));
        let sane = bytes.starts_with(MAGIC)
            && (512..=1 << 20).contains(&block)
            && (1..=1024).contains(&depth)
            && (1..=if read { 4096 } else { 1 }).contains(&connections);
        sane.then_some(Self {
            block,
            depth: depth as u16,
            read,
            random: bytes[17] != 0,
            connections: connections as u16,
        })
    }
}

/// The server's account of one connection; printed as JSON.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub struct Served {
    /// I/Os answered, the client's warm-up included.
    pub ios: u64,
    /// Processor microseconds per I/O, without those in which it waited awake.
    pub working_us: f64,
}

/// Listens on `address`, passes the bound address to `ready`, and serves one connection after the
/// other for ever; reports each to `done`. Payload lies in `memory` bytes.
pub fn listen(
    address: SocketAddr,
    memory: usize,
    ready: impl FnOnce(SocketAddr),
    done: impl Fn(&Served),
) -> Result<(), LoadError> {
    let listener = TcpListener::bind(address).map_err(|e| LoadError::Io("listening", e))?;
    if address.ip().is_loopback() {
        socket::unpaced(&listener);
    }
    let mut memory = MmapMut::map_anon(memory).map_err(|e| LoadError::Io("getting memory", e))?;
    // Large pages, as a careful target uses them: TLB misses are not to be measured. A kernel
    // without them refuses.
    let _ = memory.advise(Advice::HugePage);
    // Every page is allocated and none is the shared page of zeros.
    memory.fill(0xa5);
    ready(listener.local_addr().map_err(|e| LoadError::Io("listening", e))?);
    for stream in listener.incoming() {
        let stream = stream.map_err(|e| LoadError::Io("accepting", e))?;
        let served = greeted(&stream, memory.len()).and_then(|hello| match hello.connections {
            1 => serve_one(stream, hello, &mut memory),
            _ => many::serve(stream, hello, &listener, &memory),
        });
        match served {
            Ok(served) => done(&served),
            Err(error) => eprintln!("stag-load: floor: {error}"),
        }
    }
    Ok(())
}

/// Serves the only connection of a client until it ends.
///
/// # Errors
/// The socket's, and a first message that is none of [`run`]'s.
pub fn serve(stream: TcpStream, memory: &mut [u8]) -> Result<Served, LoadError> {
    let hello = greeted(&stream, memory.len())?;
    serve_one(stream, hello, memory)
}

/// The request of a new client.
pub(crate) fn greeted(mut stream: &TcpStream, memory: usize) -> Result<Hello, LoadError> {
    let io = |e| LoadError::Io("serving", e);
    stream.set_nodelay(true).map_err(io)?;
    stream.set_read_timeout(Some(Duration::from_secs(60))).map_err(io)?;
    stream.set_write_timeout(Some(Duration::from_secs(60))).map_err(io)?;
    let mut hello = [0; BHS];
    stream.read_exact(&mut hello).map_err(io)?;
    let hello = Hello::parse(&hello).filter(|hello| hello.block <= memory);
    hello.ok_or_else(|| LoadError::Protocol("no client of the floor".into()))
}

fn serve_one(stream: TcpStream, hello: Hello, memory: &mut [u8]) -> Result<Served, LoadError> {
    let before = cpu::own();
    let mut server = Server::new(stream, hello, memory.len(), 1);
    let served = if hello.read { server.reads(memory) } else { server.writes(memory) };
    match served {
        // A client that is done closes the connection with I/Os in flight.
        Err(LoadError::Io(_, e))
            if matches!(e.kind(), ErrorKind::ConnectionReset | ErrorKind::BrokenPipe) => {}
        Err(other) => return Err(other),
        Ok(()) => {}
    }
    let used = cpu::own().saturating_sub(before);
    let working_us = used.saturating_sub(server.waited).as_secs_f64() * 1e6 / server.ios.max(1) as f64;
    Ok(Served { ios: server.ios, working_us })
}

/// Sequence of offsets in the memory.
struct Places {
    slots: u64,
    random: Option<Random>,
    next: u64,
}

impl Places {
    fn new(hello: Hello, memory: usize, seed: u64) -> Self {
        let slots = (memory / hello.block) as u64;
        Self { slots, random: hello.random.then(|| Random::new(0, seed)), next: 0 }
    }

    fn draw(&mut self) -> usize {
        match &mut self.random {
            Some(random) => random.below(self.slots) as usize,
            None => {
                self.next = (self.next + 1) % self.slots;
                self.next as usize
            }
        }
    }
}

/// Number of I/Os of `block` bytes in one call.
fn chunk(block: usize) -> usize {
    (CHUNK_BYTES / block).clamp(2, CHUNK)
}

pub(crate) struct Server {
    pub(crate) stream: TcpStream,
    hello: Hello,
    places: Places,
    pub(crate) ios: u64,
    /// Time in which it polled without work.
    waited: Duration,
}

impl Server {
    pub(crate) fn new(stream: TcpStream, hello: Hello, memory: usize, seed: u64) -> Self {
        let places = Places::new(hello, memory, seed);
        Self { stream, hello, places, ios: 0, waited: Duration::ZERO }
    }

    /// Answers `due` reads.
    pub(crate) fn answer(&mut self, mut due: usize, memory: &[u8]) -> Result<(), LoadError> {
        let block = self.hello.block;
        let header = [0; BHS];
        while due > 0 {
            let now = due.min(chunk(block));
            let mut slices = [IoSlice::new(&[]); 2 * CHUNK];
            for pair in slices[..2 * now].chunks_exact_mut(2) {
                let at = self.places.draw() * block;
                pair[0] = IoSlice::new(&header);
                pair[1] = IoSlice::new(&memory[at..at + block]);
            }
            send_all(&self.stream, &mut slices[..2 * now])?;
            self.ios += now as u64;
            due -= now;
        }
        Ok(())
    }

    fn reads(&mut self, memory: &[u8]) -> Result<(), LoadError> {
        let mut requests = vec![0; usize::from(self.hello.depth) * BHS];
        let mut partial = 0;
        loop {
            let got = self.receive(&mut [IoSliceMut::new(&mut requests)])?;
            if got == 0 {
                return Ok(());
            }
            let due = (partial + got) / BHS;
            partial = (partial + got) % BHS;
            self.answer(due, memory)?;
        }
    }

    fn writes(&mut self, memory: &mut [u8]) -> Result<(), LoadError> {
        let block = self.hello.block;
        let answers = [0; BHS * CHUNK];
        let most = chunk(block);
        loop {
            // In ascending order, so that all can be borrowed at once; a place drawn twice is
            // received into once.
            let mut drawn = [usize::MAX; CHUNK];
            drawn[..most].fill_with(|| self.places.draw());
            drawn.sort_unstable();
            let mut headers = [[0; BHS]; CHUNK];
            let mut slices: [IoSliceMut<'_>; 2 * CHUNK] = std::array::from_fn(|_| IoSliceMut::new(&mut []));
            let (mut count, mut rest, mut passed) = (0, &mut *memory, 0);
            for (&slot, header) in drawn[..most].iter().zip(&mut headers) {
                let Some(skip) = (slot * block).checked_sub(passed) else { continue };
                let (place, after) = std::mem::take(&mut rest)[skip..].split_at_mut(block);
                (rest, passed) = (after, (slot + 1) * block);
                slices[2 * count] = IoSliceMut::new(header);
                slices[2 * count + 1] = IoSliceMut::new(place);
                count += 1;
            }
            let mut left = &mut slices[..2 * count];
            let mut partial = 0;
            while !left.is_empty() {
                let got = self.receive(left)?;
                if got == 0 {
                    return Ok(());
                }
                IoSliceMut::advance_slices(&mut left, got);
                let whole = (partial + got) / (BHS + block);
                partial = (partial + got) % (BHS + block);
                send_all(&self.stream, &mut [IoSlice::new(&answers[..whole * BHS])])?;
                self.ios += whole as u64;
            }
        }
    }

    /// Receives the next bytes; polls first, then sleeps. 0 at the end.
    fn receive(&mut self, into: &mut [IoSliceMut<'_>]) -> Result<usize, LoadError> {
        let (mut flags, mut from, mut waited) = (RecvFlags::DONTWAIT, None, Duration::ZERO);
        loop {
            let got = rustix::net::recvmsg(&self.stream, into, &mut RecvAncillaryBuffer::default(), flags);
            let awake = flags.contains(RecvFlags::DONTWAIT);
            match got {
                Ok(message) => {
                    self.waited += waited;
                    return Ok(message.bytes);
                }
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) if awake => {
                    waited = from.get_or_insert_with(Instant::now).elapsed();
                    if waited > AWAKE {
                        flags = RecvFlags::empty();
                    }
                    std::hint::spin_loop();
                }
                Err(errno) => return Err(LoadError::Io("receiving", errno.into())),
            }
        }
    }
}

/// Sends everything, sleeping while the socket is full. Returns the number of calls.
fn send_all(stream: &TcpStream, mut slices: &mut [IoSlice<'_>]) -> Result<u64, LoadError> {
    IoSlice::advance_slices(&mut slices, 0);
    let mut calls = 0;
    while !slices.is_empty() {
        calls += 1;
        match rustix::net::sendmsg(stream, slices, &mut SendAncillaryBuffer::default(), SendFlags::NOSIGNAL) {
            Ok(sent) => IoSlice::advance_slices(&mut slices, sent),
            Err(Errno::INTR) => {}
            Err(errno) => return Err(LoadError::Io("sending", errno.into())),
        }
    }
    Ok(calls)
}

/// Loads the server at `portal` (`HOST:PORT`) with the options `args`.
///
/// # Errors
/// The socket's, and patterns that have no meaning for a floor.
pub fn run(args: &Args, portal: &str) -> Result<Report, LoadError> {
    let mixed = matches!(args.pattern, Pattern::Rm | Pattern::Sm) || args.pattern.is_call();
    let read = args.pattern.read_percent(0) == 100;
    if mixed || args.fill || args.connections != 1 && !read {
        return Err(LoadError::Usage("the floor is reads, or writes on one connection".into()));
    }
    let (block, depth) = (args.block, args.depth);
    let hello = Hello { block, depth, read, random: args.pattern.random(), connections: args.connections };
    if args.connections != 1 {
        return many::run(args, portal, hello);
    }
    let mut client = Client::new(connect(portal, hello)?, hello);
    let mut load = Load::new(args);
    client.request(&mut load)?;
    load.measure(args, |load, limit| client.until(load, limit, args.spin))
}

/// Connects and sends `hello`.
pub(crate) fn connect(portal: &str, hello: Hello) -> Result<TcpStream, LoadError> {
    let io = |what| move |e| LoadError::Io(what, e);
    let mut stream = socket::connect(portal)?;
    stream.set_nodelay(true).map_err(io("setting a socket option"))?;
    stream.set_read_timeout(Some(PATIENCE)).map_err(io("setting a socket option"))?;
    stream.set_write_timeout(Some(PATIENCE)).map_err(io("setting a socket option"))?;
    stream.write_all(&hello.to_bytes()).map_err(io("sending"))?;
    Ok(stream)
}

/// State shared by all connections of a client: the receive buffer, and the counts.
pub(crate) struct Load {
    buffer: Vec<u8>,
    pub(crate) tally: Tally,
}

/// One connection of a client.
pub(crate) struct Client {
    pub(crate) stream: TcpStream,
    hello: Hello,
    /// A window of requests, for writes with their payload.
    requests: Vec<u8>,
    /// Bytes of the next answer that have arrived.
    partial: usize,
    /// Answers come in order, so that slots are used in turn.
    engine: Engine,
    /// The slot of the next answer.
    next: u16,
}

impl Load {
    pub(crate) fn new(args: &Args) -> Self {
        Self { buffer: vec![0; args.receive()], tally: Tally::default() }
    }

    /// Measures `until`, which runs the load for a time, after a warm-up.
    pub(crate) fn measure(
        mut self,
        args: &Args,
        mut until: impl FnMut(&mut Self, Duration) -> Result<(), LoadError>,
    ) -> Result<Report, LoadError> {
        until(&mut self, Duration::from_secs_f64(args.warmup.clamp(0.0, 3600.0)))?;
        self.tally = Tally::default();
        let start = Sample::take(args.target_pid);
        until(&mut self, Duration::from_secs_f64(args.seconds.clamp(0.001, 86400.0)))?;
        Report::new(args, self.tally, &start)
    }
}

impl Client {
    pub(crate) fn new(stream: TcpStream, hello: Hello) -> Self {
        let mut requests = Vec::new();
        let block = payload(hello.block);
        // Long payload is sent from one place again and again, as the iSCSI client does.
        for _ in 0..if hello.read { hello.depth.into() } else { chunk(hello.block) } {
            requests.extend_from_slice(&[0; BHS]);
            if !hello.read {
                requests.extend_from_slice(&block);
            }
        }
        Self { stream, hello, requests, partial: 0, engine: Engine::closed(hello.depth), next: 0 }
    }

    /// Sends as many requests as there is room for.
    pub(crate) fn request(&mut self, load: &mut Load) -> Result<(), LoadError> {
        let now = Instant::now();
        let count = std::iter::from_fn(|| self.engine.begin(now)).count();
        let one = if self.hello.read { BHS } else { BHS + self.hello.block };
        let mut left = count * one;
        while left > 0 {
            let now = left.min(self.requests.len());
            load.tally.calls += send_all(&self.stream, &mut [IoSlice::new(&self.requests[..now])])?;
            left -= now;
        }
        Ok(())
    }

    fn until(&mut self, load: &mut Load, limit: Duration, spin: bool) -> Result<(), LoadError> {
        let from = Instant::now();
        while from.elapsed() < limit {
            self.receive(load, spin)?;
        }
        Ok(())
    }

    /// Receives answers, those available or after waiting for some, and sends as many requests
    /// again.
    pub(crate) fn receive(&mut self, load: &mut Load, at_once: bool) -> Result<(), LoadError> {
        let answer = if self.hello.read { BHS + self.hello.block } else { BHS };
        let flags = if at_once { RecvFlags::DONTWAIT } else { RecvFlags::empty() };
        load.tally.calls += 1;
        let got = match rustix::net::recv(&self.stream, &mut load.buffer[..], flags) {
            Ok((_, 0)) => return Err(LoadError::Protocol("the floor closed the connection".into())),
            Ok((_, got)) => got,
            Err(Errno::INTR) => return Ok(()),
            Err(Errno::AGAIN) if at_once => return Ok(()),
            Err(errno) => return Err(LoadError::Io("receiving", errno.into())),
        };
        let whole = (self.partial + got) / answer;
        self.partial = (self.partial + got) % answer;
        if whole == 0 {
            return Ok(());
        }
        let now = Instant::now();
        for _ in 0..whole {
            if let Some(ns) = self.engine.end(self.next, now) {
                load.tally.latency.record(ns);
                load.tally.ios += 1;
            }
            self.next = (self.next + 1) % self.hello.depth;
        }
        self.request(load)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_message_says_what_is_asked_for_and_nonsense_is_refused() {
        let hello = Hello { block: 4096, depth: 32, read: true, random: false, connections: 256 };
        assert_eq!(Hello::parse(&hello.to_bytes()), Some(hello));
        assert_eq!(Hello::parse(&[0; BHS]), None);
        assert_eq!(Hello::parse(&Hello { read: false, ..hello }.to_bytes()), None, "writes have one");
        for (at, value) in [(8, 511), (8, 1 << 21), (12, 0), (12, 1025), (20, 0), (20, 4097)] {
            let mut bytes = hello.to_bytes();
            wire::put32(&mut bytes, at, value);
            assert_eq!(Hello::parse(&bytes), None, "{value} at {at}");
        }
    }
}
