//! Measures the cost of queue pairs: two of them over loopback, or a plain TCP stream that carries
//! the same bytes.
//!
//! `pingpong OPERATION [--size BYTES] [--depth N] [--seconds S] [--crc on|off] [--fpdu BYTES]
//! [--lend on|off] [--spin US] [--cores SERVER,CLIENT]`
//!
//! Operations, always `depth` of them in flight:
//! - `write`: the client sends a request of 76 bytes. The server writes `size` bytes to the memory
//!   that the client exposed, and answers by a Send of 76 bytes that invalidates the STag: an iSER
//!   READ.
//! - `fetch`: the client sends a request, the server reads `size` bytes from the client by RDMA
//!   Read, and answers: an iSER WRITE.
//! - `read`: the client reads `size` bytes of the server by RDMA Read.
//! - `send`: the client sends `size` bytes, the server answers with as many.
//! - `tcp`: the client sends 76 bytes and gets `size` + 76, without any protocol between.
//! - `pull`: the client sends 76 bytes, the server answers 48, gets `size`, and answers with 76:
//!   TCP's `fetch`.
//!
//! Prints operations and bytes per second, and the cost of an operation on each side's processor.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use rdma::{Completion, Counters, Crc, Flags, Listener, Options, QueuePair, Remote, Rights, Stag};
use runtime::{
    Buf, BufMut, Bytes, Chain, Config, Gather, ListenOptions, Region, Runtime, TcpListener, TcpStream, pool,
};

/// Bytes of a request or an answer: iSER's header and a BHS.
const MESSAGE: usize = 76;
/// Bytes of a server's request for data over TCP: an R2T.
const R2T: usize = 48;

#[derive(Clone, Copy, PartialEq)]
enum Operation {
    Write,
    Fetch,
    Read,
    Send,
    Tcp,
    Pull,
}

#[derive(Clone)]
struct Arguments {
    operation: Operation,
    size: usize,
    depth: usize,
    time: Duration,
    crc: bool,
    fpdu: usize,
    lend: bool,
    spin_us: u32,
    cores: (usize, usize),
}

fn usage(wrong: &str) -> ! {
    eprintln!("pingpong: {wrong}");
    eprintln!(
        "usage: pingpong write|fetch|read|send|tcp|pull [--size BYTES] [--depth N] [--seconds S] [--crc on|off] [--fpdu BYTES] \
         [--lend on|off] [--spin US] [--cores SERVER,CLIENT]"
    );
    std::process::exit(2);
}

fn arguments() -> Arguments {
    let mut all = std::env::args().skip(1);
    let operation = match all.next().as_deref() {
        Some("write") => Operation::Write,
        Some("fetch") => Operation::Fetch,
        Some("read") => Operation::Read,
        Some("send") => Operation::Send,
        Some("tcp") => Operation::Tcp,
        Some("pull") => Operation::Pull,
        _ => usage("which operation?"),
    };
    let mut parsed = Arguments {
        operation,
        size: 4096,
        depth: 32,
        time: Duration::from_secs(1),
        crc: false,
        fpdu: Options::default().max_fpdu,
        lend: false,
        spin_us: 5,
        cores: (0, 1),
    };
    while let Some(option) = all.next() {
        let value = all.next().unwrap_or_else(|| usage(&format!("{option} needs a value")));
        let number =
            |text: &str| -> usize { text.parse().unwrap_or_else(|_| usage(&format!("{option} {text}?"))) };
        let switch = || match value.as_str() {
            "on" => true,
            "off" => false,
            _ => usage(&format!("{option} {value}?")),
        };
        match option.as_str() {
            "--size" => parsed.size = number(&value).clamp(1, pool::MAX_ALLOC),
            "--depth" => parsed.depth = number(&value).clamp(1, 4096),
            "--seconds" => parsed.time = Duration::from_secs_f64(value.parse().unwrap_or(1.0)),
            "--crc" => parsed.crc = switch(),
            "--fpdu" => parsed.fpdu = number(&value),
            "--lend" => parsed.lend = switch(),
            "--spin" => parsed.spin_us = number(&value) as u32,
            "--cores" => match value.split_once(',') {
                Some((server, client)) => parsed.cores = (number(server), number(client)),
                None => usage("--cores SERVER,CLIENT"),
            },
            other => usage(&format!("{other}?")),
        }
    }
    parsed
}

fn options(arguments: &Arguments) -> Options {
    Options {
        crc: if arguments.crc { Crc::Require } else { Crc::Never },
        max_fpdu: arguments.fpdu,
        receives: 2 * arguments.depth as u32,
        receive_size: arguments.size.max(MESSAGE) as u32,
        lend: arguments.lend,
        send_high_water: 8 << 20,
        ..Options::default()
    }
}

/// Processor time of the thread, seconds.
fn thread_time() -> f64 {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    time.tv_sec as f64 + time.tv_nsec as f64 * 1e-9
}

/// A message that names memory.
fn message(stag: Option<Stag>, slot: usize) -> [u8; MESSAGE] {
    let mut bytes = [0; MESSAGE];
    bytes[..4].copy_from_slice(&stag.map_or(0, |stag| stag.0).to_be_bytes());
    bytes[4..8].copy_from_slice(&(slot as u32).to_be_bytes());
    bytes
}

fn parse(chain: &Chain) -> (Stag, usize) {
    let bytes = chain.bufs()[0].as_slice().expect("stable");
    let word = |at: usize| u32::from_be_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]]);
    (Stag(word(0)), word(4) as usize)
}

/// The server's data: a region, as in a memory unit, or a pool buffer.
struct Source {
    region: std::sync::Arc<Region>,
    next: usize,
    size: usize,
}

impl Source {
    fn new(size: usize) -> Self {
        let region = Region::new(64 << 20).expect("memory");
        region.fill(0, 64 << 20, 7).expect("within");
        Self { region, next: 0, size }
    }

    fn next(&mut self) -> Buf {
        let at = self.next;
        self.next = (at + self.size.next_multiple_of(4096) * 17) % (32 << 20);
        self.region.slice(at, self.size).expect("within")
    }
}

async fn serve(mut listener: Listener, arguments: &Arguments) -> Counters {
    let incoming = listener.accept().await.expect("a client");
    let pair = incoming.accept(&[], &options(arguments)).await.expect("accepted");
    let mut source = Source::new(arguments.size);
    let whole =
        pair.expose_source(Chain::from(source.region.slice(0, 32 << 20).expect("within"))).expect("exposed");
    if arguments.operation == Operation::Read {
        // The client requests the STag once.
        let _ = pair.next().await;
        pair.post_send(&message(Some(whole), 0), Chain::new(), Flags::default(), None);
    }
    let mut asked = vec![Stag(0); arguments.depth];
    // A client that reuses a slot has received the slot's previous answer.
    let mut marks = vec![0; arguments.depth];
    while let Ok(completion) = pair.next().await {
        match completion {
            Completion::Received { message: request, .. } => {
                pair.post_receives(1);
                if arguments.operation == Operation::Send {
                    pair.post_send(&[], request, Flags::default(), None);
                    continue;
                }
                let (stag, slot) = parse(&request);
                let remote = Remote { stag, offset: 0 };
                match arguments.operation {
                    Operation::Write => {
                        pair.confirm(marks[slot]);
                        pair.post_write(remote, source.next().into(), None);
                        let flags = Flags { invalidate: Some(stag), solicited: false };
                        pair.post_send(&message(None, slot), Chain::new(), flags, None);
                        marks[slot] = pair.posted();
                    }
                    _ => {
                        asked[slot] = stag;
                        pair.post_read(remote, arguments.size, slot as u64);
                    }
                }
            }
            Completion::Read { id, .. } => {
                let flags = Flags { invalidate: Some(asked[id as usize]), solicited: false };
                pair.post_send(&message(None, id as usize), Chain::new(), flags, None);
            }
            _ => {}
        }
    }
    pair.counters()
}

/// Exposes a buffer and requests that the server fill or read it.
fn ask(pair: &QueuePair, operation: Operation, buffer: BufMut, stags: &mut [Stag], slot: usize) {
    let stag = match operation {
        Operation::Fetch => pair.expose_source(buffer.into()),
        _ => pair.expose([buffer], Rights::Write),
    };
    let stag = stag.expect("an STag");
    stags[slot] = stag;
    pair.post_send(&message(Some(stag), slot), Chain::new(), Flags::default(), None);
}

async fn call(address: SocketAddr, arguments: &Arguments) -> (u64, Duration, Vec<f32>, Counters) {
    let (pair, _) = rdma::connect(address, &[], &options(arguments)).await.expect("connected");
    let Arguments { operation, size, depth, time, .. } = *arguments;
    let mut remote = Remote { stag: Stag(0), offset: 0 };
    if operation == Operation::Read {
        pair.post_send(b"where", Chain::new(), Flags::default(), None);
        if let Ok(Completion::Received { message, .. }) = pair.next().await {
            remote.stag = parse(&message).0;
        }
    }
    let mut stags = vec![Stag(0); depth];
    let data = pool::alloc_zeroed(size).expect("a buffer").freeze();
    let mut reads = 0u64;
    let mut start_one = |slot: usize, stags: &mut [Stag], used: Option<BufMut>| match operation {
        Operation::Send => pair.post_send(&[], data.clone().into(), Flags::default(), None),
        Operation::Read => {
            reads += 1;
            let place = reads.wrapping_mul(size.next_multiple_of(4096) as u64 * 17) % (31 << 20);
            pair.post_read(remote.plus(place), size, slot as u64);
        }
        _ => {
            let buffer = used.unwrap_or_else(|| pool::alloc(size).expect("a buffer"));
            ask(&pair, operation, buffer, stags, slot);
        }
    };
    let start = Instant::now();
    let mut begun = vec![start; depth];
    (0..depth).for_each(|slot| start_one(slot, &mut stags, None));
    let (mut operations, mut times, mut turn) = (0u64, Vec::with_capacity(1 << 20), 0);
    loop {
        let slot = match pair.next().await.expect("the server is there") {
            Completion::Received { message, .. } => {
                pair.post_receives(1);
                if operation == Operation::Send {
                    turn = (turn + 1) % depth;
                    turn
                } else {
                    parse(&message).1
                }
            }
            Completion::Read { id, .. } => id as usize,
            _ => continue,
        };
        let now = Instant::now();
        if times.len() < times.capacity() {
            times.push((now - begun[slot]).as_nanos() as f32 / 1e3);
        }
        begun[slot] = now;
        operations += 1;
        if now - start >= time {
            return (operations, now - start, times, pair.counters());
        }
        let used = match operation {
            Operation::Write | Operation::Fetch => {
                let withdrawn = pair.withdraw(stags[slot]).expect("it is ours");
                withdrawn.buffers.into_iter().next()
            }
            _ => None,
        };
        start_one(slot, &mut stags, used);
    }
}

/// The unread rest of a TCP stream.
struct Reader<'a> {
    stream: &'a TcpStream,
    have: Bytes,
}

impl Reader<'_> {
    /// Takes as many whole units of `len` bytes as have arrived, at least one. Does not read the
    /// bytes.
    async fn take(&mut self, len: usize, left: &mut usize) -> Option<usize> {
        let mut count = 0;
        loop {
            while !self.have.is_empty() {
                let here = self.have.len().min(len - *left);
                self.have.advance(here);
                *left += here;
                if *left == len {
                    (*left, count) = (0, count + 1);
                }
            }
            if count > 0 {
                return Some(count);
            }
            self.have = self.stream.recv_some(usize::MAX).await.ok().filter(|bytes| !bytes.is_empty())?;
        }
    }
}

/// TCP's server: `size` bytes and a message for each request.
async fn serve_tcp(mut listener: TcpListener, arguments: &Arguments) -> Counters {
    let stream = listener.accept().await.expect("a client");
    let mut source = Source::new(arguments.size);
    let (mut gather, mut have) = (Gather::new(), 0usize);
    let mut counters = Counters::default();
    while let Ok(bytes) = stream.recv_some(usize::MAX).await {
        if bytes.is_empty() {
            break;
        }
        counters.receives += 1;
        have += bytes.len();
        while have >= MESSAGE {
            have -= MESSAGE;
            gather.push_copy(&[0; R2T]);
            gather.push(source.next());
            gather.push_copy(&[0; MESSAGE - R2T]);
        }
        let (result, back) = stream.send(gather).await;
        gather = back;
        counters.sends += 1;
        if result.is_err() {
            break;
        }
    }
    counters
}

async fn call_tcp(address: SocketAddr, arguments: &Arguments) -> (u64, Duration, Vec<f32>, Counters) {
    let stream = TcpStream::connect(address, Duration::from_secs(5)).await.expect("connected");
    let answer = arguments.size + MESSAGE;
    let (mut gather, mut reader) = (Gather::new(), Reader { stream: &stream, have: Bytes::new() });
    let start = Instant::now();
    let (mut operations, mut count, mut left) = (0, arguments.depth, 0);
    let mut times = Vec::with_capacity(1 << 20);
    loop {
        let begun = Instant::now();
        (0..count).for_each(|_| gather.push_copy(&[0; MESSAGE]));
        let (result, back) = stream.send(gather).await;
        result.expect("the server is there");
        gather = back;
        count = reader.take(answer, &mut left).await.expect("the server is there");
        operations += count as u64;
        let now = Instant::now();
        if times.len() < times.capacity() {
            times.push((now - begun).as_nanos() as f32 / 1e3);
        }
        if now - start >= arguments.time {
            return (operations, now - start, times, Counters::default());
        }
    }
}

/// The `pull` server: requests the data of each request, and answers when it has arrived. Requests
/// and data arrive interleaved, since the client sends both.
async fn serve_pull(mut listener: TcpListener, arguments: &Arguments) -> Counters {
    let stream = listener.accept().await.expect("a client");
    let mut gather = Gather::new();
    let (mut requests, mut owed, mut have) = (0usize, 0usize, 0usize);
    let mut counters = Counters::default();
    while let Ok(bytes) = stream.recv_some(usize::MAX).await {
        if bytes.is_empty() {
            break;
        }
        counters.receives += 1;
        have += bytes.len();
        // The client answers all requests for data before it sends new requests.
        loop {
            if owed > 0 {
                if have < arguments.size {
                    break;
                }
                have -= arguments.size;
                owed -= 1;
                gather.push_copy(&[1; MESSAGE]);
            } else if have >= MESSAGE {
                have -= MESSAGE;
                requests += 1;
            } else {
                break;
            }
            if owed == 0 && have < MESSAGE && requests > 0 {
                (0..requests).for_each(|_| gather.push_copy(&[2; R2T]));
                (owed, requests) = (requests, 0);
            }
        }
        let (result, back) = stream.send(gather).await;
        gather = back;
        counters.sends += 1;
        if result.is_err() {
            break;
        }
    }
    counters
}

async fn call_pull(address: SocketAddr, arguments: &Arguments) -> (u64, Duration, Vec<f32>, Counters) {
    let stream = TcpStream::connect(address, Duration::from_secs(5)).await.expect("connected");
    let data = pool::alloc_zeroed(arguments.size).expect("a buffer").freeze();
    let (mut gather, mut reader) = (Gather::new(), Reader { stream: &stream, have: Bytes::new() });
    let start = Instant::now();
    let mut operations = 0;
    let mut times = Vec::with_capacity(1 << 20);
    loop {
        let begun = Instant::now();
        (0..arguments.depth).for_each(|_| gather.push_copy(&[0; MESSAGE]));
        let (result, back) = stream.send(gather).await;
        result.expect("the server is there");
        gather = back;
        for (len, answer) in [(R2T, true), (MESSAGE, false)] {
            let (mut left, mut count) = (0, 0);
            while count < arguments.depth {
                let more = reader.take(len, &mut left).await.expect("the server is there");
                count += more;
                if answer {
                    (0..more).for_each(|_| gather.push(data.clone()));
                    let (result, back) = stream.send(gather).await;
                    result.expect("the server is there");
                    gather = back;
                }
            }
        }
        operations += arguments.depth as u64;
        let now = Instant::now();
        if times.len() < times.capacity() {
            times.push((now - begun).as_nanos() as f32 / 1e3);
        }
        if now - start >= arguments.time {
            return (operations, now - start, times, Counters::default());
        }
    }
}

fn main() {
    let arguments = arguments();
    let (tell, told) = std::sync::mpsc::channel();
    let here = SocketAddr::from(([127, 0, 0, 1], 0));
    let for_server = arguments.clone();
    let server = std::thread::spawn(move || {
        let arguments = for_server;
        let config =
            Config { core: Some(arguments.cores.0), spin_us: arguments.spin_us, ..Config::default() };
        let runtime = Runtime::new(config).expect("a ring");
        let counters = runtime.block_on(async {
            match arguments.operation {
                Operation::Tcp | Operation::Pull => {
                    let listener = TcpListener::bind(here, ListenOptions::default()).expect("a listener");
                    tell.send(listener.local_addr().expect("an address")).expect("somebody listens");
                    match arguments.operation {
                        Operation::Tcp => serve_tcp(listener, &arguments).await,
                        _ => serve_pull(listener, &arguments).await,
                    }
                }
                _ => {
                    let listener = Listener::bind(here).expect("a listener");
                    tell.send(listener.local_addr().expect("an address")).expect("somebody listens");
                    serve(listener, &arguments).await
                }
            }
        });
        (thread_time(), counters)
    });
    let address = told.recv().expect("the server listens");
    let config = Config { core: Some(arguments.cores.1), spin_us: arguments.spin_us, ..Config::default() };
    let runtime = Runtime::new(config).expect("a ring");
    let before = thread_time();
    let (operations, time, mut times, client_counters) = runtime.block_on(async {
        match arguments.operation {
            Operation::Tcp => call_tcp(address, &arguments).await,
            Operation::Pull => call_pull(address, &arguments).await,
            _ => call(address, &arguments).await,
        }
    });
    let client_time = thread_time() - before;
    drop(runtime);
    let (server_time, server_counters) = server.join().expect("the server");
    times.sort_by(f32::total_cmp);
    let each = |time: f64| time / operations as f64 * 1e6;
    let rate = operations as f64 / time.as_secs_f64();
    println!(
        "{:>9.0}/s {:>8.1} MB/s  {:.1} us median {:.1} us 99%  server {:.3} us each, client {:.3} us each",
        rate,
        rate * arguments.size as f64 / 1e6,
        times[times.len() / 2],
        times[times.len() * 99 / 100],
        each(server_time),
        each(client_time),
    );
    for (side, counters) in [("server", server_counters), ("client", client_counters)] {
        if counters != Counters::default() {
            let each = |n: u64| n as f64 / operations as f64;
            println!(
                "  {side}: in: {:.1} copied, {:.1} by reference, {:.1} in place; out: {:.1} sent, {:.1} copied; {:.3} receives, \
                 {:.3} sends each",
                each(counters.copied_in),
                each(counters.by_reference),
                each(counters.in_place),
                each(counters.sent),
                each(counters.copied_out),
                each(counters.receives),
                each(counters.sends),
            );
        }
    }
}
