//! The side that loads: keeps messages in flight, counts completions, and measures the time.

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use load::cpu::{Sample, Spent};
use load::{Engine, Latency, seconds};
use rdma::{Completion, Flags, QueuePair, Remote, Stag};
use runtime::Chain;

use super::report::Report;
use super::server::{SPARE, zeros};
use super::wire::{Hello, MESSAGE, Message, head};
use super::{RdmaBenchError, options};
use crate::args::rdma_bench::{Operation, RdmaBench, Register};
use crate::release;

/// Round trips that are measured before the load.
const PINGS: u64 = 5;
/// Notifications about writes to the other side, per queue depth.
const TOLD: u32 = 16;
/// Marks of the load, behind those of the pings.
const FROM: u64 = PINGS;
const UNTIL: u64 = PINGS + 1;

/// One run over a connection of its own.
pub async fn run(
    args: &RdmaBench,
    server: SocketAddr,
    operation: Operation,
    size: u32,
    depth: u32,
) -> Result<Report, RdmaBenchError> {
    let outstanding = args.load.outstanding.map_or(depth, u32::from).min(u32::from(u16::MAX)) as u16;
    let hello = Hello { operation, size, depth, outstanding };
    let options = options(&args.wire, 2 * depth + SPARE, MESSAGE as u32, outstanding);
    let (pair, _) = rdma::connect(server, &hello.encode(), &options).await.map_err(|error| match error {
        rdma::Error::Rejected(why) => RdmaBenchError::Refused(said(&why)),
        error => RdmaBenchError::Connect(server, error),
    })?;
    let timeout = Duration::from_secs(args.wire.timeout.into());
    let patience = seconds(args.load.warmup) + seconds(args.load.time) + timeout;
    let loading = Load::begin(&pair, hello, timeout);
    let mut load = loading.await?;
    if args.load.register != Register::Never {
        load.exposed = Some(Exposed::new(&pair, size, args.load.register)?);
    }
    if args.load.wait {
        release::wait().map_err(RdmaBenchError::Line)?;
    }
    let measured = runtime::timeout(patience, load.measure(args)).await;
    let found = measured.map_err(|_| RdmaBenchError::TimedOut("the end of the run"))??;
    let report = Report::new(&load.hello, &pair, found);
    pair.disconnect();
    let _ = runtime::timeout(timeout, async { while pair.next().await.is_ok() {} }).await;
    Ok(report)
}

/// The text of a refusal, as far as it is printable.
fn said(why: &[u8]) -> String {
    let text: String =
        why.iter().take_while(|byte| (b' '..=b'~').contains(*byte)).map(|byte| char::from(*byte)).collect();
    if text.is_empty() { "no reason given".into() } else { text }
}

/// Whether the other side is notified of write `number` out of a batch that ends with `last`. It
/// only acknowledges notifications, and only an acknowledgement makes room for more writes. With a
/// notification of the last write alone, the path would be empty while it waits.
fn is_told(number: u64, last: u64, depth: u32) -> bool {
    let every = u64::from(depth / TOLD).max(1);
    number == last || number % every == every - 1
}

/// The result of one run.
pub struct Found {
    pub latency: Latency,
    pub rtt: Duration,
    /// Processor time of this process, and of the other side's as the target's.
    pub spent: Spent,
}

/// The memory of this side's messages, which the other side could reach.
struct Exposed {
    data: Chain,
    each: bool,
    /// The STags of the messages in flight, the oldest first; those of a run stay.
    stags: VecDeque<Stag>,
}

impl Exposed {
    fn new(pair: &QueuePair, size: u32, when: Register) -> Result<Self, RdmaBenchError> {
        let mut exposed =
            Self { data: zeros(size.into())?, each: when == Register::Message, stags: VecDeque::new() };
        if !exposed.each {
            exposed.add(pair)?;
        }
        Ok(exposed)
    }

    fn add(&mut self, pair: &QueuePair) -> Result<(), RdmaBenchError> {
        self.stags.push_back(pair.expose_source(self.data.clone())?);
        Ok(())
    }

    /// Before a message is posted.
    fn before(&mut self, pair: &QueuePair) -> Result<(), RdmaBenchError> {
        if self.each { self.add(pair) } else { Ok(()) }
    }

    /// When the oldest message has ended.
    fn after(&mut self, pair: &QueuePair) {
        if self.each
            && let Some(stag) = self.stags.pop_front()
        {
            pair.withdraw(stag);
        }
    }
}

struct Load<'a> {
    pair: &'a QueuePair,
    hello: Hello,
    exposed: Option<Exposed>,
    /// The other side's memory, and its length in messages.
    remote: Remote,
    places: u64,
    /// The payload of each write or send.
    data: Chain,
    engine: Engine,
    /// The next message's number, and that of the first which has not ended.
    next: u64,
    done: u64,
    rtt: Duration,
}

/// The completions of one poll.
#[derive(Default)]
struct Came {
    /// Messages up to this number, exclusively, have ended.
    done: Option<u64>,
    /// A mark came back, with the other side's processor time in ns.
    marked: Option<(u64, u64)>,
    memory: Option<(Remote, u64)>,
}

impl<'a> Load<'a> {
    /// Learns of the memory and measures the way.
    async fn begin(pair: &'a QueuePair, hello: Hello, timeout: Duration) -> Result<Self, RdmaBenchError> {
        let data = match hello.operation {
            Operation::Read => Chain::new(),
            _ => zeros(hello.size.into())?,
        };
        // It is bounded by a queue depth, of 16 bits.
        let depth = u16::try_from(hello.depth).unwrap_or(u16::MAX);
        let mut load = Self {
            pair,
            hello,
            exposed: None,
            remote: Remote { stag: Stag(0), offset: 0 },
            places: 1,
            data,
            engine: Engine::warming(depth),
            next: 0,
            done: 0,
            rtt: Duration::MAX,
        };
        let meeting = async {
            load.say(Message::Where);
            let (remote, len) = loop {
                if let Some(memory) = load.take().await?.memory {
                    break memory;
                }
            };
            load.remote = remote;
            load.places = len / u64::from(hello.size);
            if load.places == 0 && hello.operation != Operation::Send {
                return Err(RdmaBenchError::Peer("it lends too little memory"));
            }
            for ping in 0..PINGS {
                let begin = Instant::now();
                load.say(Message::Mark(ping));
                while load.take().await?.marked.is_none() {}
                load.rtt = load.rtt.min(begin.elapsed());
            }
            Ok(())
        };
        runtime::timeout(timeout, meeting)
            .await
            .map_err(|_| RdmaBenchError::TimedOut("the other side's memory"))??;
        Ok(load)
    }

    fn say(&self, message: Message) {
        self.pair.post_send(&message.encode(), Chain::new(), Flags::default(), None);
    }

    /// Posts as many messages as there is room for.
    fn post(&mut self, now: Instant) -> Result<(), RdmaBenchError> {
        let size = self.hello.size as usize;
        let last = (self.done + u64::from(self.hello.depth)).saturating_sub(1);
        // Messages end in order, so that a message's slot follows from its number.
        while self.engine.begin(now).is_some() {
            if let Some(exposed) = &mut self.exposed {
                exposed.before(self.pair)?;
            }
            let number = self.next;
            let place = || self.remote.plus(number % self.places * size as u64);
            match self.hello.operation {
                Operation::Read => self.pair.post_read(place(), size, number),
                Operation::Write => {
                    self.pair.post_write(place(), self.data.clone(), None);
                    if is_told(number, last, self.hello.depth) {
                        self.say(Message::Wrote(number));
                    }
                }
                Operation::Send => {
                    let head = Message::Data(number).encode();
                    self.pair.post_send(&head, self.data.clone(), Flags::default(), None);
                }
            }
            self.next += 1;
        }
        Ok(())
    }

    /// Waits for something, and takes all that there is.
    async fn take(&mut self) -> Result<Came, RdmaBenchError> {
        let mut came = Came::default();
        let mut completion = Some(self.pair.next().await);
        while let Some(result) = completion {
            match result? {
                Completion::Read { id, .. } => came.done = Some(id + 1),
                Completion::Received { message, .. } => {
                    self.pair.post_receives(1);
                    match head(&message) {
                        Some(Message::Arrived(number)) => came.done = Some(number.saturating_add(1)),
                        Some(Message::Marked { mark, cpu_ns }) => came.marked = Some((mark, cpu_ns)),
                        Some(Message::Memory { stag, origin, len }) => {
                            came.memory = Some((Remote { stag: Stag(stag), offset: origin }, len));
                        }
                        _ => return Err(RdmaBenchError::Peer("it sent what makes no sense")),
                    }
                }
                _ => {}
            }
            // The first of these is waited for by itself: the next message may depend on it.
            if came.memory.is_some() {
                break;
            }
            completion = super::ready(self.pair).await;
        }
        if came.done.is_some_and(|done| done > self.next) {
            return Err(RdmaBenchError::Peer("it has what was never sent"));
        }
        Ok(came)
    }

    /// Runs the load, first without counting. Messages that end together with the start of counting
    /// are not counted. The run ends with the first messages that end after its time, so that
    /// bursts on a long path are counted whole.
    async fn measure(&mut self, args: &RdmaBench) -> Result<Found, RdmaBenchError> {
        let start = Instant::now();
        let from = start + seconds(args.load.warmup);
        let until = from + seconds(args.load.time);
        let mut latency = Latency::default();
        let (mut before, mut server_from) = (None, None);
        self.post(start)?;
        let spent = loop {
            let came = self.take().await?;
            if let Some((FROM, cpu_ns)) = came.marked {
                server_from = Some(cpu_ns);
            }
            let Some(done) = came.done.filter(|done| *done > self.done) else { continue };
            let now = Instant::now();
            for number in self.done..done {
                let ended = self.engine.end((number % u64::from(self.hello.depth)) as u16, now);
                ended.into_iter().for_each(|ns| latency.record(ns));
                if let Some(exposed) = &mut self.exposed {
                    exposed.after(self.pair);
                }
            }
            self.done = done;
            match &before {
                None if now >= from => {
                    self.engine.open(now);
                    before = Some(Sample::take(None));
                    self.say(Message::Mark(FROM));
                }
                Some(before) if now >= until => {
                    let spent = Sample::take(None).since(before);
                    break Spent { time: seconds(self.engine.seconds()), ..spent };
                }
                _ => {}
            }
            self.post(now)?;
        };
        self.say(Message::Mark(UNTIL));
        let server_until = loop {
            match self.take().await?.marked {
                Some((FROM, cpu_ns)) => server_from = Some(cpu_ns),
                Some((UNTIL, cpu_ns)) => break cpu_ns,
                _ => {}
            }
        };
        let server = Duration::from_nanos(server_until.saturating_sub(server_from.unwrap_or(server_until)));
        Ok(Found { latency, rtt: self.rtt, spent: Spent { target: Some(server), ..spent } })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn writes_are_announced_often_enough_to_keep_others_in_flight() {
        let told = |from: u64, last: u64, depth| -> Vec<u64> {
            (from..=last).filter(|number| is_told(*number, last, depth)).collect()
        };
        let first = told(0, 127, 128);
        assert_eq!((first.len(), first.first(), first.last()), (16, Some(&7), Some(&127)));
        // Marks follow the order of writes, even if a batch does not begin with a group.
        assert_eq!(told(128, 135, 128), [135]);
        assert_eq!(told(130, 145, 128), [135, 143, 145]);
        assert_eq!(told(0, 4, 5), [0, 1, 2, 3, 4]);
        assert_eq!(told(77, 77, 4096), [77]);
    }
}
