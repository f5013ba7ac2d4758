//! The well-known rping test, either side, by [`rdma`]. The client advertises a source, the server
//! reads it by RDMA Read and sends "go". The client advertises a sink, the server writes the bytes
//! there by RDMA Write and sends "go". The options are rping's own:
//!
//! `rping -s|-c [-a ADDRESS] [-p PORT] [-C COUNT] [-S SIZE] [-V] [-P] [-d] [--crc
//! never|prefer|require] [--markers] [--fpdu BYTES]`
//!
//! `-V` verifies the returned data, `-P` keeps serving after the first connection, `-d` prints each
//! step.

use std::net::{IpAddr, SocketAddr};
use std::process::ExitCode;
use std::time::Duration;

use rdma::{Completion, Crc, Error, Flags, Listener, Options, QueuePair, Remote, Rights, Stag};
use runtime::{Chain, Config, Runtime, pool};

/// Address, key and size of memory, as rping sends them.
const ADVERTISEMENT: usize = 16;
/// Maximum duration of one round.
const PATIENCE: Duration = Duration::from_secs(10);

struct Arguments {
    server: bool,
    address: IpAddr,
    port: u16,
    count: Option<u64>,
    size: usize,
    verify: bool,
    persistent: bool,
    chatty: bool,
    options: Options,
}

fn usage(wrong: &str) -> ! {
    eprintln!("rping: {wrong}");
    eprintln!(
        "usage: rping -s|-c [-a ADDRESS] [-p PORT] [-C COUNT] [-S SIZE] [-V] [-P] [-d] [--crc never|prefer|require] \
         [--markers] [--fpdu BYTES]"
    );
    std::process::exit(2);
}

fn arguments() -> Arguments {
    let mut all = std::env::args().skip(1);
    let mut server = None;
    let mut parsed = Arguments {
        server: false,
        address: IpAddr::from([127, 0, 0, 1]),
        port: 7174,
        count: None,
        size: 64,
        verify: false,
        persistent: false,
        chatty: false,
        options: Options { crc: Crc::Never, ..Options::default() },
    };
    while let Some(option) = all.next() {
        let mut value = || all.next().unwrap_or_else(|| usage(&format!("{option} needs a value")));
        fn number<T: std::str::FromStr>(option: &str, text: String) -> T {
            text.parse().unwrap_or_else(|_| usage(&format!("{option} {text}: not understood")))
        }
        match option.as_str() {
            "-s" => server = Some(true),
            "-c" => server = Some(false),
            "-a" => parsed.address = number("-a", value()),
            "-p" => parsed.port = number("-p", value()),
            "-C" => parsed.count = Some(number("-C", value())),
            "-S" => parsed.size = number::<usize>("-S", value()).clamp(1, pool::MAX_ALLOC),
            "-V" => parsed.verify = true,
            "-P" => parsed.persistent = true,
            "-d" | "-v" => parsed.chatty = true,
            "--crc" => {
                parsed.options.crc = match value().as_str() {
                    "never" => Crc::Never,
                    "prefer" => Crc::Prefer,
                    "require" => Crc::Require,
                    other => usage(&format!("--crc {other}: not understood")),
                }
            }
            "--markers" => parsed.options.markers = true,
            "--fpdu" => parsed.options.max_fpdu = number("--fpdu", value()),
            other => usage(&format!("{other}: not understood")),
        }
    }
    parsed.server = server.unwrap_or_else(|| usage("neither -s nor -c"));
    parsed
}

/// An error message.
type Outcome<T> = Result<T, String>;

fn said(error: Error) -> String {
    error.to_string()
}

async fn next(pair: &QueuePair) -> Outcome<Completion> {
    match runtime::timeout(PATIENCE, pair.next()).await {
        Ok(completion) => completion.map_err(said),
        Err(_) => Err("the peer is silent".to_owned()),
    }
}

fn advertisement(offset: u64, stag: Stag, size: usize) -> [u8; ADVERTISEMENT] {
    let mut message = [0; ADVERTISEMENT];
    message[..8].copy_from_slice(&offset.to_be_bytes());
    message[8..12].copy_from_slice(&stag.0.to_be_bytes());
    message[12..].copy_from_slice(&(size as u32).to_be_bytes());
    message
}

fn parse(message: &Chain) -> Outcome<(Remote, usize)> {
    let bytes: [u8; ADVERTISEMENT] = message
        .to_vec()
        .try_into()
        .map_err(|_| format!("a message of {} bytes instead of an advertisement", message.len()))?;
    let part = |at: usize| u32::from_be_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]]);
    let offset = u64::from(part(0)) << 32 | u64::from(part(4));
    Ok((Remote { stag: Stag(part(8)), offset }, part(12) as usize))
}

fn send(pair: &QueuePair, message: &[u8]) {
    pair.post_send(message, Chain::new(), Flags::default(), None);
}

/// The next message, or `None` when the peer has closed.
async fn message(pair: &QueuePair) -> Outcome<Option<Chain>> {
    let next = match runtime::timeout(PATIENCE, pair.next()).await {
        Ok(Err(Error::Closed)) => return Ok(None),
        Ok(next) => next.map_err(said)?,
        Err(_) => return Err("the peer is silent".to_owned()),
    };
    match next {
        Completion::Received { message, .. } => {
            pair.post_receives(1);
            Ok(Some(message))
        }
        other => Err(format!("{other:?} instead of a message")),
    }
}

/// Serves one client until it closes; returns the number of rounds.
async fn serve(pair: QueuePair, arguments: &Arguments) -> Outcome<u64> {
    let mut rounds = 0;
    loop {
        let Some(source) = message(&pair).await? else { return Ok(rounds) };
        let (source, size) = parse(&source)?;
        if size > pool::MAX_ALLOC {
            return Err(format!("{size} bytes are too many"));
        }
        pair.post_read(source, size, 1);
        let data = match next(&pair).await? {
            Completion::Read { data, .. } => data,
            other => return Err(format!("{other:?} instead of what was read")),
        };
        send(&pair, &[0; ADVERTISEMENT]);
        let Some(sink) = message(&pair).await? else { return Err("closed within a round".to_owned()) };
        let (sink, room) = parse(&sink)?;
        if room < size {
            return Err(format!("a sink of {room} bytes for {size}"));
        }
        if arguments.chatty {
            let start = data.to_vec();
            println!("server: round {rounds}: {}", String::from_utf8_lossy(&start[..size.min(32)]));
        }
        pair.post_write(sink, data, None);
        send(&pair, &[0; ADVERTISEMENT]);
        rounds += 1;
    }
}

/// The text that rping sends: printable, different in each round, with a zero only at its end.
fn pattern(size: usize, round: u64) -> Vec<u8> {
    let mut text = format!("rdma-ping-{round}: ").into_bytes();
    while text.len() < size {
        text.push(b'A' + ((text.len() as u64 + round) % 58) as u8);
    }
    text.truncate(size);
    text[size - 1] = 0;
    text
}

/// Sends `count` patterns through the server.
async fn ping(pair: &QueuePair, arguments: &Arguments) -> Outcome<u64> {
    let size = arguments.size;
    let mut rounds = 0;
    while arguments.count.is_none_or(|count| rounds < count) {
        let text = pattern(size, rounds);
        let mut buffer = pool::alloc(size).ok_or("no buffer")?;
        buffer.copy_from_slice(&text);
        let source = pair.expose_source(buffer.into()).map_err(said)?;
        send(pair, &advertisement(0, source, size));
        let Some(_) = message(pair).await? else { return Err("closed before it had read".to_owned()) };
        pair.withdraw(source);
        let buffer = pool::alloc_zeroed(size).ok_or("no buffer")?;
        let sink = pair.expose([buffer], Rights::Write).map_err(said)?;
        send(pair, &advertisement(0, sink, size));
        let Some(_) = message(pair).await? else { return Err("closed before it had written".to_owned()) };
        let back = pair.withdraw(sink).ok_or("the sink is gone")?;
        if arguments.chatty {
            println!("client: round {rounds}: {}", String::from_utf8_lossy(&text[..size.min(32)]));
        }
        if arguments.verify && !back.buffers.iter().flat_map(|buffer| buffer.iter()).eq(&text) {
            return Err(format!("round {rounds}: other bytes came back"));
        }
        rounds += 1;
    }
    Ok(rounds)
}

async fn run(arguments: Arguments) -> Outcome<()> {
    let address = SocketAddr::new(arguments.address, arguments.port);
    if !arguments.server {
        let (pair, _) = rdma::connect(address, &[], &arguments.options).await.map_err(said)?;
        let rounds = ping(&pair, &arguments).await?;
        pair.disconnect();
        while pair.next().await.is_ok() {}
        println!("rping: {rounds} rounds of {} bytes{}", arguments.size, crc(&pair));
        return Ok(());
    }
    let mut listener = Listener::bind(address).map_err(said)?;
    loop {
        let incoming = listener.accept().await.map_err(said)?;
        let peer = incoming.peer_addr();
        let pair = incoming.accept(&[], &arguments.options).await.map_err(said)?;
        let crc = crc(&pair);
        match serve(pair, &arguments).await {
            Ok(rounds) => println!("rping: {peer} had {rounds} rounds{crc}"),
            Err(error) if arguments.persistent => eprintln!("rping: {peer}: {error}"),
            Err(error) => return Err(error),
        }
        if !arguments.persistent {
            return Ok(());
        }
    }
}

fn crc(pair: &QueuePair) -> &'static str {
    if pair.has_crc() { ", with CRC" } else { "" }
}

fn main() -> ExitCode {
    let arguments = arguments();
    let outcome = match Runtime::new(Config::default()) {
        Ok(runtime) => runtime.block_on(run(arguments)),
        Err(error) => Err(format!("no ring: {error}")),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("rping: {error}");
            ExitCode::FAILURE
        }
    }
}
