//! Plays a hostile peer through an RDMA device of this machine: it tries to access memory beyond
//! what was exposed to it, and to keep a connection from closing. It checks that every attempt
//! fails:
//!
//!     verbs-attack ADDRESS[:PORT]
//!
//! Each attack uses its own connection to a listener in the same process. Exits with 0 if no byte
//! outside exposed memory was read or written and the connection closed, otherwise with the error.

use std::net::SocketAddr;
use std::process::ExitCode;
use std::time::Duration;

use runtime::{BufMut, Chain, pool};
use verbs::{Buffers, Completion, Error, Listener, Options, QueuePair, Remote, Rights};

type Outcome<T> = Result<T, String>;

/// Bytes of a buffer, and the number of bytes exposed.
const WHOLE: usize = 8192;
const EXPOSED: usize = 4096;
/// The victim's bytes, and the attacker's.
const OURS: u8 = 0xaa;
const THEIRS: u8 = 0x55;

fn said(error: impl std::fmt::Display) -> String {
    error.to_string()
}

fn victim_buffer() -> Outcome<BufMut> {
    let mut buffer = pool::alloc(WHOLE).ok_or("no memory")?;
    buffer.fill(OURS);
    buffer.truncate(EXPOSED);
    Ok(buffer)
}

fn stolen() -> Outcome<Chain> {
    let mut data = pool::alloc(1024).ok_or("no memory")?;
    data.fill(THEIRS);
    Ok(data.freeze().into())
}

/// Both ends of a new connection.
async fn pair(listener: &mut Listener, address: SocketAddr) -> Outcome<(QueuePair, QueuePair)> {
    pair_with(listener, address, 4).await
}

/// Like [`pair`]; the attacker posts this number of receives.
async fn pair_with(
    listener: &mut Listener,
    address: SocketAddr,
    first_receives: u32,
) -> Outcome<(QueuePair, QueuePair)> {
    let options = Options { receives: 4, receive_size: 4096, ..Options::default() };
    let theirs = Options { first_receives, ..options.clone() };
    let attacker = runtime::spawn(async move { verbs::connect(address, &[], &theirs).await });
    let victim = listener.accept().await.map_err(said)?.accept(&[], &options).await.map_err(said)?;
    let (attacker, _) = attacker.await.map_err(|_| "the attacker panicked")?.map_err(said)?;
    Ok((victim, attacker))
}

/// Whether an RDMA Write succeeds. A failed write is reported as the end of the connection. On
/// iWARP, where a write completes once it is sent, that report comes a little later.
async fn write(attacker: &QueuePair, to: Remote) -> Outcome<bool> {
    attacker.post_write(to, stolen()?, Some(1));
    match attacker.next().await {
        Ok(Completion::Written { .. }) => {
            Ok(runtime::timeout(Duration::from_millis(500), attacker.next()).await.is_err())
        }
        Ok(Completion::Flushed { .. }) | Err(Error::Operation { .. } | Error::Disconnected) => Ok(false),
        other => Err(format!("{other:?}")),
    }
}

/// The data of an RDMA Read, if it succeeds.
async fn read(attacker: &QueuePair, from: Remote) -> Outcome<Option<Vec<u8>>> {
    attacker.post_read(from, 1024, 1);
    match attacker.next().await {
        Ok(Completion::Read { data, .. }) => Ok(Some(data.to_vec())),
        Ok(Completion::Flushed { .. }) | Err(Error::Operation { .. } | Error::Disconnected) => Ok(None),
        other => Err(format!("{other:?}")),
    }
}

/// Waits until the peer receives a Send posted after the bind: windows are bound in the order of
/// posts.
async fn settled(victim: &QueuePair, attacker: &QueuePair) -> Outcome<()> {
    victim.post_send(b"exposed", Chain::new(), None, false, None).map_err(said)?;
    match attacker.next().await {
        Ok(Completion::Received { .. }) => Ok(()),
        other => Err(format!("{other:?}")),
    }
}

/// Withdraws the buffer, and checks all of it.
fn untouched(victim: &QueuePair, stag: u32, from: usize) -> Outcome<()> {
    let withdrawn = victim.withdraw(stag).map_err(said)?;
    for mut buffer in withdrawn.buffers {
        // A copy in another buffer shows nothing beyond its end.
        if withdrawn.invalidated || !withdrawn.busy {
            if let Some(at) = buffer.iter().skip(from).position(|&byte| byte == THEIRS) {
                return Err(format!("byte {} was written", at + from));
            }
            buffer.set_len(WHOLE.min(buffer.capacity()));
            if let Some(at) = buffer.iter().skip(EXPOSED).position(|&byte| byte == THEIRS) {
                return Err(format!("byte {} was written", at + EXPOSED));
            }
        }
    }
    Ok(())
}

/// A peer without receives lets no Send complete. The connection closes all the same.
async fn held_open(listener: &mut Listener, address: SocketAddr) -> Outcome<()> {
    let (victim, _attacker) = pair_with(listener, address, 0).await?;
    victim.post_send(b"bye", Chain::new(), None, false, Some(1)).map_err(said)?;
    victim.disconnect();
    while victim.next().await.is_ok() {}
    Ok(())
}

async fn attack(name: &str, listener: &mut Listener, address: SocketAddr) -> Outcome<()> {
    if name == "a closing connection held open" {
        return held_open(listener, address).await;
    }
    let (victim, attacker) = pair(listener, address).await?;
    // Without windows a slot's length is a power of two, and it is open for reads and writes. Only
    // this peer uses its bytes.
    let windows = victim.takes_invalidation();
    let exposed = victim.expose(Buffers::from_iter([victim_buffer()?]), Rights::Write).map_err(said)?;
    settled(&victim, &attacker).await?;
    let at = |bytes: i64| Remote { offset: exposed.offset.wrapping_add_signed(bytes), ..exposed };
    match name {
        "what was exposed may be written" => {
            if !write(&attacker, at(0)).await? {
                return Err("it could not".to_owned());
            }
            let withdrawn = victim.withdraw(exposed.stag).map_err(said)?;
            let bytes = withdrawn.buffers.first().ok_or("no buffer came back")?;
            let right =
                bytes[..1024].iter().all(|&b| b == THEIRS) && bytes[1024..].iter().all(|&b| b != THEIRS);
            return if right { Ok(()) } else { Err("it is not there".to_owned()) };
        }
        "a write past the end" => {
            if write(&attacker, at(EXPOSED as i64 - 512)).await? && windows {
                return Err("it went through".to_owned());
            }
            return untouched(&victim, exposed.stag, if windows { 0 } else { EXPOSED });
        }
        "a write before the start" => {
            if write(&attacker, at(-512)).await? {
                return Err("it went through".to_owned());
            }
        }
        "a read of what may be written only" => {
            let got = read(&attacker, at(0)).await?;
            if got.is_some_and(|got| windows || got.contains(&OURS)) {
                return Err("it went through".to_owned());
            }
        }
        "a write to what was taken back" => {
            let mut kept = victim.withdraw(exposed.stag).map_err(said)?;
            runtime::sleep(Duration::from_millis(50)).await;
            if write(&attacker, at(0)).await? && windows {
                return Err("it went through".to_owned());
            }
            let buffer = kept.buffers.pop().ok_or("no buffer came back")?;
            return if buffer.contains(&THEIRS) { Err("it is there".to_owned()) } else { Ok(()) };
        }
        "another connection's key" => {
            let (_other, thief) = pair(listener, address).await?;
            if write(&thief, at(0)).await? || victim.exposed() != 1 {
                return Err("it went through".to_owned());
            }
        }
        "a key that was never given" => {
            for stag in [exposed.stag ^ 0x100, exposed.stag.wrapping_add(1), 0x0000_0100, 0xffff_ffff] {
                let (_other, thief) = pair(listener, address).await?;
                if write(&thief, Remote { stag, ..exposed }).await? {
                    return Err(format!("{stag:#x} went through"));
                }
            }
        }
        _ => return Err("no such attack".to_owned()),
    }
    untouched(&victim, exposed.stag, 0)
}

const ATTACKS: [&str; 8] = [
    "what was exposed may be written",
    "a write past the end",
    "a write before the start",
    "a read of what may be written only",
    "a write to what was taken back",
    "another connection's key",
    "a key that was never given",
    "a closing connection held open",
];

async fn run(address: SocketAddr) -> Outcome<()> {
    let mut listener = Listener::bind(address, 8).map_err(said)?;
    let mut wrong = Vec::new();
    for name in ATTACKS {
        let outcome = runtime::timeout(Duration::from_secs(20), attack(name, &mut listener, address)).await;
        match outcome.unwrap_or_else(|_| Err("it takes too long".to_owned())) {
            Ok(()) => println!("ok: {name}"),
            Err(error) => {
                println!("FAILED: {name}: {error}");
                wrong.push(name);
            }
        }
    }
    if wrong.is_empty() { Ok(()) } else { Err(wrong.join(", ")) }
}

fn main() -> ExitCode {
    let address = std::env::args().nth(1).unwrap_or_default();
    let address = address.parse().or_else(|_| format!("{address}:7175").parse());
    let (Ok(address), Ok(runtime)) = (address, runtime::Runtime::new(runtime::Config::default())) else {
        eprintln!("usage: verbs-attack ADDRESS[:PORT], on a machine with io_uring");
        return ExitCode::from(2);
    };
    match runtime.block_on(run(address)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("verbs-attack: {error}");
            ExitCode::FAILURE
        }
    }
}
