//! A proxy between an initiator and a target on one thread, which modifies the target's bytes
//! beyond what a queue pair can do. It breaks connections anywhere, corrupts bytes, inserts FPDUs,
//! and forwards slowly.

use std::cell::{Cell, RefCell};
use std::net::{Shutdown, SocketAddr};
use std::rc::Rc;
use std::time::Duration;

use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use runtime::{Gather, ListenOptions, TcpListener, TcpStream};

/// The fault for the target's bytes, per connection.
#[derive(Debug, Clone)]
pub enum Fault {
    /// Breaks the connection within this many bytes.
    Break(u64),
    /// Flips a bit within this many bytes.
    Garble(u64),
    /// Inserts these bytes after the FPDU of this number, on the first connection only.
    Insert(u32, Vec<u8>),
    /// Forwards at most 16 KiB, then pauses for this time.
    Slow(Duration),
}

pub struct Proxy {
    pub port: u16,
    /// Number of faults injected.
    pub done: Rc<Cell<u32>>,
    tasks: Rc<RefCell<Vec<runtime::JoinHandle<()>>>>,
    accepting: runtime::JoinHandle<()>,
}

impl Proxy {
    pub fn start(target: u16, fault: Fault, seed: u64) -> Proxy {
        let mut listener =
            TcpListener::bind("127.0.0.1:0".parse().unwrap(), ListenOptions::default()).unwrap();
        let port = listener.local_addr().unwrap().port();
        let (done, tasks) = (Rc::new(Cell::new(0)), Rc::new(RefCell::new(Vec::new())));
        let (counted, running) = (done.clone(), tasks.clone());
        let accepting = runtime::spawn(async move {
            let target: SocketAddr = ([127, 0, 0, 1], target).into();
            let mut random = SmallRng::seed_from_u64(seed);
            let mut first = true;
            while let Ok(ours) = listener.accept().await {
                let Ok(theirs) = TcpStream::connect(target, Duration::from_secs(5)).await else { continue };
                let (ours, theirs) = (Rc::new(ours), Rc::new(theirs));
                let mut work = Work::of(&fault, &mut random, first);
                first = false;
                running.borrow_mut().push(runtime::spawn(forward(ours.clone(), theirs.clone())));
                let counted = counted.clone();
                running.borrow_mut().push(runtime::spawn(async move {
                    work.run(&theirs, &ours, &counted).await;
                    let _ = (ours.shutdown(Shutdown::Both), theirs.shutdown(Shutdown::Both));
                }));
            }
        });
        Proxy { port, done, tasks, accepting }
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.accepting.abort();
        self.tasks.borrow().iter().for_each(runtime::JoinHandle::abort);
    }
}

async fn put(to: &TcpStream, bytes: &[u8]) -> bool {
    let mut gather = Gather::new();
    gather.push_copy(bytes);
    to.send(gather).await.0.is_ok()
}

async fn forward(from: Rc<TcpStream>, to: Rc<TcpStream>) {
    while let Ok(bytes) = from.recv_some(64 << 10).await {
        if bytes.is_empty() || !put(&to, &bytes).await {
            break;
        }
    }
    let _ = to.shutdown(Shutdown::Write);
}

/// The state of one connection.
struct Work {
    break_at: u64,
    garble_at: u64,
    insert: Option<(u32, Vec<u8>)>,
    pause: Duration,
    bit: u8,
    seen: u64,
    /// Bytes until the next FPDU begins; `None` during the MPA reply.
    to_go: Option<usize>,
    fpdus: u32,
    kept: Vec<u8>,
}

impl Work {
    fn of(fault: &Fault, random: &mut SmallRng, first: bool) -> Work {
        let mut work = Work {
            break_at: u64::MAX,
            garble_at: u64::MAX,
            insert: None,
            pause: Duration::ZERO,
            bit: 1 << random.random_range(0..8),
            seen: 0,
            to_go: None,
            fpdus: 0,
            kept: Vec::new(),
        };
        match fault {
            Fault::Break(most) => work.break_at = random.random_range(0..*most),
            // The MPA reply has no CRC.
            Fault::Garble(most) => work.garble_at = random.random_range(64..*most),
            Fault::Insert(after, bytes) if first => work.insert = Some((*after, bytes.clone())),
            Fault::Insert(..) => {}
            Fault::Slow(pause) => work.pause = *pause,
        }
        work
    }

    async fn run(&mut self, from: &TcpStream, to: &TcpStream, done: &Cell<u32>) {
        loop {
            let Ok(bytes) = from.recv_some(16 << 10).await else { return };
            if bytes.is_empty() {
                return;
            }
            let mut bytes = bytes.to_vec();
            let (from_byte, to_byte) = (self.seen, self.seen + bytes.len() as u64);
            self.seen = to_byte;
            if (from_byte..to_byte).contains(&self.garble_at) {
                bytes[(self.garble_at - from_byte) as usize] ^= self.bit;
                done.set(done.get() + 1);
            }
            if (from_byte..to_byte).contains(&self.break_at) {
                bytes.truncate((self.break_at - from_byte) as usize);
                done.set(done.get() + 1);
                put(to, &bytes).await;
                return;
            }
            if self.insert.is_some() {
                bytes = self.inserted(bytes, done);
            }
            if !bytes.is_empty() && !put(to, &bytes).await {
                return;
            }
            if !self.pause.is_zero() {
                done.set(done.get() + 1);
                runtime::sleep(self.pause).await;
            }
        }
    }

    /// Forwards whole FPDUs, and inserts the bytes after the chosen one.
    fn inserted(&mut self, bytes: Vec<u8>, done: &Cell<u32>) -> Vec<u8> {
        self.kept.extend(bytes);
        let mut out = Vec::new();
        loop {
            let len = match self.to_go {
                // RFC 5044 §7.1.1: 16 bytes of key, flags, revision, length of private data.
                None if self.kept.len() < 20 => return out,
                None => 20 + usize::from(u16::from_be_bytes([self.kept[18], self.kept[19]])),
                Some(_) if self.kept.len() < 2 => return out,
                Some(_) => {
                    let ulpdu = usize::from(u16::from_be_bytes([self.kept[0], self.kept[1]]));
                    (2 + ulpdu).next_multiple_of(4) + 4
                }
            };
            if self.kept.len() < len {
                return out;
            }
            out.extend(self.kept.drain(..len));
            if self.to_go.is_some() {
                self.fpdus += 1;
            }
            self.to_go = Some(0);
            if let Some((_, extra)) = self.insert.take_if(|(after, _)| self.fpdus >= *after) {
                out.extend(extra);
                out.append(&mut self.kept);
                done.set(done.get() + 1);
                return out;
            }
        }
    }
}
