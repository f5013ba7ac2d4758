//! The equivalent of rdmacm-utils' `rping`, by this crate: clients and servers of both programs
//! interoperate.
//!
//!     verbs-rping -s -a 10.99.0.2 [-p 7174] [-C rounds]
//!     verbs-rping -c -a 10.99.0.2 [-p 7174] [-C rounds] [-S bytes] [-V] [-i] [-w]
//!
//! In each round the client advertises its data, and the server fetches it by RDMA Read and
//! confirms. Then the client advertises a buffer, and the server writes the data there by RDMA
//! Write and confirms. `-i`, between two of this crate: the server invalidates the advertised
//! memory. `-w`: use memory windows, even if the device does not enforce their bounds (rxe).

use std::process::ExitCode;
use std::time::{Duration, Instant};

use runtime::{Chain, pool};
use verbs::{Buffers, Completion, Error, Listener, Options, QueuePair, Remote, Rights};

struct Arguments {
    server: bool,
    address: String,
    port: u16,
    rounds: u32,
    bytes: usize,
    verify: bool,
    invalidate: bool,
    windows: bool,
}

fn arguments() -> Option<Arguments> {
    let mut parsed = Arguments {
        server: false,
        address: String::new(),
        port: 7174,
        rounds: 10,
        bytes: 64,
        verify: false,
        invalidate: false,
        windows: false,
    };
    let mut role = false;
    let mut words = std::env::args().skip(1);
    while let Some(word) = words.next() {
        match word.as_str() {
            "-s" => (parsed.server, role) = (true, true),
            "-c" => role = true,
            "-V" => parsed.verify = true,
            "-i" => parsed.invalidate = true,
            "-w" => parsed.windows = true,
            "-a" => parsed.address = words.next()?,
            "-p" => parsed.port = words.next()?.parse().ok()?,
            "-C" => parsed.rounds = words.next()?.parse().ok()?,
            "-S" => parsed.bytes = words.next()?.parse().ok().filter(|n| (1..=64 << 20).contains(n))?,
            _ => return None,
        }
    }
    role.then_some(parsed)
}

/// A message: an address, a key and a length, in network byte order.
fn message(remote: Remote, len: usize) -> [u8; 16] {
    let mut bytes = [0; 16];
    bytes[..8].copy_from_slice(&remote.offset.to_be_bytes());
    bytes[8..12].copy_from_slice(&remote.stag.to_be_bytes());
    bytes[12..].copy_from_slice(&(len as u32).to_be_bytes());
    bytes
}

fn parse(message: &Chain) -> Result<(Remote, usize), String> {
    let bytes: [u8; 16] = message.to_vec().try_into().map_err(|_| "a message of a wrong length")?;
    let (offset, rest) = bytes.split_at(8);
    let (stag, len) = rest.split_at(4);
    let offset = offset.try_into().map(u64::from_be_bytes).map_err(|_| "no address")?;
    let stag = stag.try_into().map(u32::from_be_bytes).map_err(|_| "no key")?;
    let len = len.try_into().map(u32::from_be_bytes).map_err(|_| "no length")?;
    Ok((Remote { stag, offset }, len as usize))
}

/// The next Send of the peer, and the key that it invalidated.
async fn receive(pair: &QueuePair) -> Result<(Chain, Option<u32>), Error> {
    loop {
        if let Completion::Received { message, invalidated } = pair.next().await? {
            pair.post_receives(1);
            return Ok((message, invalidated));
        }
    }
}

async fn serve(pair: &QueuePair, invalidate: bool) -> Result<u32, Box<dyn std::error::Error>> {
    let mut rounds = 0;
    loop {
        let request = match receive(pair).await {
            Ok((request, _)) => request,
            Err(Error::Disconnected) => return Ok(rounds),
            Err(error) => return Err(error.into()),
        };
        let (source, len) = parse(&request)?;
        pair.post_read(source, len.min(64 << 20), 1);
        let data = loop {
            if let Completion::Read { data, .. } = pair.next().await? {
                break data;
            }
        };
        let inv = |remote: Remote| invalidate.then_some(remote.stag);
        pair.post_send(&message(source, len), Chain::new(), inv(source), false, None)?;
        let (room, room_len) = parse(&receive(pair).await?.0)?;
        let mut data = data;
        data.truncate(room_len);
        pair.post_write(room, data, None);
        pair.post_send(&message(room, room_len), Chain::new(), inv(room), true, None)?;
        rounds += 1;
    }
}

/// Bytes without a zero except the last, as rping's server requires.
fn pattern(round: u32, bytes: usize) -> Result<Buffers, Error> {
    let mut buffers = pool::alloc_many(bytes).ok_or(Error::NoMemory("the pattern"))?;
    let mut at = 0usize;
    for buffer in &mut buffers {
        for byte in buffer.iter_mut() {
            *byte = 65 + ((at + round as usize) % 58) as u8;
            at += 1;
            if at == bytes {
                *byte = 0;
            }
        }
    }
    Ok(buffers.into_iter().collect())
}

async fn ask(pair: &QueuePair, arguments: &Arguments) -> Result<(), Box<dyn std::error::Error>> {
    for round in 0..arguments.rounds {
        let buffers = pattern(round, arguments.bytes)?;
        let source: Chain = buffers.into_iter().map(runtime::BufMut::freeze).collect();
        let expected = source.to_vec();
        let from = pair.expose_source(source)?;
        pair.post_send(&message(from, arguments.bytes), Chain::new(), None, true, None)?;
        receive(pair).await?;
        pair.withdraw(from.stag)?;
        let room = pool::alloc_many(arguments.bytes).ok_or("no memory")?.into_iter().map(|mut buffer| {
            buffer.fill(0);
            buffer
        });
        let to = pair.expose(room.collect(), Rights::Write)?;
        pair.post_send(&message(to, arguments.bytes), Chain::new(), None, true, None)?;
        let (_, invalidated) = receive(pair).await?;
        if arguments.invalidate && pair.takes_invalidation() && invalidated != Some(to.stag) {
            return Err(format!("invalidated {invalidated:?} instead of {:#x}", to.stag).into());
        }
        let withdrawn = pair.withdraw(to.stag)?;
        let got: Vec<u8> = withdrawn.buffers.iter().flat_map(|buffer| buffer.iter().copied()).collect();
        if arguments.verify && got != expected {
            let at = got.iter().zip(&expected).position(|(a, b)| a != b);
            return Err(format!("round {round}: {} bytes came back, wrong from {at:?} on", got.len()).into());
        }
    }
    Ok(())
}

async fn run(arguments: &Arguments) -> Result<(), Box<dyn std::error::Error>> {
    let address = format!("{}:{}", arguments.address, arguments.port).parse()?;
    let options =
        Options { receives: 8, receive_size: 4096, unsound_windows: arguments.windows, ..Options::default() };
    if arguments.server {
        let mut listener = Listener::bind(address, 8)?;
        println!("listening on {}", listener.local().map_or_else(String::new, |a| a.to_string()));
        let incoming = listener.accept().await?;
        println!("from {:?}, ird {} ord {}", incoming.peer(), incoming.ird(), incoming.ord());
        let pair = incoming.accept(&[], &options).await?;
        println!("served {} rounds", serve(&pair, arguments.invalidate).await?);
        return Ok(());
    }
    let (pair, _) = verbs::connect(address, &[], &options).await?;
    println!("connected: ird {} ord {}, windows {}", pair.ird(), pair.ord(), pair.takes_invalidation());
    let begun = Instant::now();
    ask(&pair, arguments).await?;
    println!("{} rounds of {} bytes in {:?}", arguments.rounds, arguments.bytes, begun.elapsed());
    pair.disconnect();
    loop {
        match pair.next().await {
            Ok(_) => {}
            Err(Error::Disconnected) => return Ok(()),
            Err(error) => return Err(error.into()),
        }
    }
}

fn main() -> ExitCode {
    let Some(arguments) = arguments() else {
        eprintln!("usage: verbs-rping -s|-c -a ADDRESS [-p PORT] [-C ROUNDS] [-S BYTES] [-V] [-i] [-w]");
        return ExitCode::from(2);
    };
    let runtime =
        match runtime::Runtime::new(runtime::Config { pool_bytes: 64 << 20, ..runtime::Config::default() }) {
            Ok(runtime) => runtime,
            Err(error) => {
                eprintln!("io_uring: {error}");
                return ExitCode::FAILURE;
            }
        };
    let done = runtime.block_on(runtime::timeout(Duration::from_secs(60), run(&arguments)));
    match done {
        Ok(Ok(())) => ExitCode::SUCCESS,
        Ok(Err(error)) => {
            eprintln!("verbs-rping: {error}");
            ExitCode::FAILURE
        }
        Err(_) => {
            eprintln!("verbs-rping: it takes too long");
            ExitCode::FAILURE
        }
    }
}
