//! A queue pair in software on a real socket. Its peer sends segments that are valid except for the
//! input's changes. The queue pair exposes memory, has reads and an atomic of its own in flight,
//! and is ended by its peer. Each of its posts has one completion, and memory that the peer may not
//! write stays as it was.

use crate::fpdus::{joined, segment, wire};
use crate::input::{Input, Seed};
use rdma::{Atomic, Completion, Flags, Options, QueuePair, Remote, Rights, Stag};
use runtime::{Chain, Gather, ListenOptions, Runtime, TcpListener, TcpStream, pool};
use std::net::{Shutdown, SocketAddr};
use std::time::Duration;

/// Time limit of any operation; longer is a hang.
const PATIENCE: Duration = Duration::from_secs(20);
/// Bytes of each exposed memory.
const LEN: usize = 1024;
/// Bytes of the FPDU that asks for a read: length, untagged header, request, CRC.
const READ_REQUEST: usize = 2 + 18 + 28 + 4;

/// Memory that the peer may name.
struct Exposed {
    stags: Vec<Stag>,
    /// STags that the peer has invalidated.
    gone: Vec<Stag>,
}

impl Exposed {
    fn of(pair: &QueuePair) -> Self {
        let buffers = || {
            pool::alloc_many(LEN).expect("buffers").into_iter().map(|mut buffer| {
                buffer.fill(0xee);
                buffer
            })
        };
        let source: Chain = buffers().map(runtime::BufMut::freeze).collect();
        let stags = vec![
            pair.expose(buffers(), Rights::All).expect("room"),
            pair.expose(buffers(), Rights::ReadWrite).expect("room"),
            pair.expose(buffers(), Rights::Write).expect("room"),
            pair.expose_source(source).expect("room"),
            pair.expose_sink(LEN as u64).expect("room"),
        ];
        Self { stags, gone: Vec::new() }
    }

    fn stag(&self, which: u8, sink: u32) -> u32 {
        match which {
            0xff => sink,
            _ => self.stags.get(usize::from(which)).map_or(u32::from(which), |stag| stag.0),
        }
    }
}

async fn put(stream: &TcpStream, bytes: &[u8]) -> bool {
    let mut gather = Gather::new();
    gather.push_copy(bytes);
    stream.send(gather).await.0.is_ok()
}

/// At least `len` bytes, or fewer at the end.
async fn take(stream: &TcpStream, len: usize) -> Vec<u8> {
    let mut all = Vec::new();
    while all.len() < len {
        match stream.recv_some(4096).await {
            Ok(bytes) if !bytes.is_empty() => all.extend_from_slice(&bytes),
            _ => break,
        }
    }
    all
}

async fn meet(listener: &mut TcpListener, bits: u8) -> (QueuePair, TcpStream) {
    let address = listener.local_addr().expect("an address");
    let peer = TcpStream::connect(address, PATIENCE).await.expect("a connection");
    let stream = listener.accept().await.expect("a connection");
    let mut request = *b"MPA ID Req Frame\x10\x02\x00\x04\x00\x10\x00\x10";
    request[16] |= if bits & 2 != 0 { 0x40 } else { 0 } | if bits & 1 != 0 { 0x80 } else { 0 };
    assert!(put(&peer, &request).await);
    let incoming = rdma::accept(stream, Vec::new(), PATIENCE).await.expect("a good request");
    let options = Options {
        ird: u16::from(bits >> 4 & 3) + 1,
        ord: u16::from(bits >> 6) + 1,
        receives: 4,
        receive_size: 600,
        stags: 8,
        crc: rdma::Crc::Never,
        markers: bits & 4 != 0,
        max_fpdu: if bits & 8 != 0 { 256 } else { 65_536 },
        ..Options::default()
    };
    let pair = incoming.accept(b"", &options).await.expect("accepted");
    assert_eq!(take(&peer, 24).await.len(), 24);
    (pair, peer)
}

async fn talk(listener: &mut TcpListener, data: &[u8]) {
    let mut input = Input::new(data);
    let (bits, cut) = (input.u8(), usize::from(input.u8()) * 16 + 1);
    let (pair, peer) = meet(listener, bits).await;
    let mut exposed = Exposed::of(&pair);
    let remote = Remote { stag: Stag(5), offset: 0 };
    pair.post_read(remote, 100, 1);
    pair.post_read(remote, 50, 2);
    pair.post_atomic(remote, Atomic::FetchAdd { add: 1, mask: 0 }, 3);
    pair.post_send(b"hello", Chain::new(), Flags::default(), Some(4));
    // Posted work goes out after the peer's first message.
    let markers = bits & 4 != 0;
    let hello = wire(&mut Input::new(&[]), markers, true, |_| 0);
    assert!(put(&peer, &hello).await);
    let first = pair.next().await.expect("a message");
    assert!(matches!(first, Completion::Received { .. }), "{first:?}");
    // The peer's own marker comes first.
    let at = if bits & 1 != 0 { 4 } else { 0 };
    let asked = take(&peer, at + READ_REQUEST).await;
    let sink = asked.get(at + 20..at + 24).map_or(0, |b| u32::from_be_bytes([b[0], b[1], b[2], b[3]]));
    let bytes = wire(&mut input, markers, true, |which| exposed.stag(which, sink));
    let mut sent = true;
    for piece in bytes[hello.len()..].chunks(cut) {
        // The queue pair may have closed it because of an earlier piece.
        sent = sent && put(&peer, piece).await;
    }
    let _ = peer.shutdown(Shutdown::Write);
    let mut ends = [0; 5];
    loop {
        match pair.next().await {
            Ok(Completion::Received { message, invalidated, .. }) => {
                assert!(message.len() <= 600);
                pair.post_receives(1);
                exposed.gone.extend(invalidated);
            }
            Ok(Completion::Read { id, data }) => {
                assert_eq!(data.len(), if id == 1 { 100 } else { 50 });
                ends[id as usize] += 1;
            }
            Ok(Completion::Sent { id } | Completion::Atomic { id, .. } | Completion::Flushed { id }) => {
                ends[id as usize] += 1;
            }
            Ok(_) => {}
            Err(_) => break,
        }
    }
    assert_eq!(ends, [0, 1, 1, 1, 1], "each post has one completion");
    for stag in &exposed.stags {
        let withdrawn = pair.withdraw(*stag).expect("it is lent until it is withdrawn");
        assert_eq!(withdrawn.invalidated, exposed.gone.contains(stag));
        assert!(withdrawn.placed.is_none_or(|placed| placed <= LEN as u64));
    }
}

/// Byte 0: the negotiated options, byte 1: the size of pieces, in units of 16 bytes; then
/// [`wire`]'s. STags 0 to 4 are memory for everything, to read and write, to write, to read, and a
/// sink; 255 is that of the queue pair's own reads.
///
/// # Panics
/// When the queue pair does, hangs, or reports an impossible completion.
pub fn run(data: &[u8]) {
    thread_local! {
        static RING: Runtime = Runtime::new(runtime::Config::default()).expect("a ring");
    }
    RING.with(|ring| {
        ring.block_on(async {
            let loopback = SocketAddr::from(([127, 0, 0, 1], 0));
            let mut listener = TcpListener::bind(loopback, ListenOptions::default()).expect("a listener");
            runtime::timeout(PATIENCE, talk(&mut listener, data)).await.expect("it ends")
        })
    });
}

/// Each operation on each memory, answers to the queue pair's own requests, and Terminates.
pub fn seeds() -> Vec<(&'static str, Seed)> {
    let data = [0x5a; 300];
    let write =
        |which, offset, last: bool| segment(if last { 0xc0 } else { 0x80 }, 0, which, 0, offset, &data);
    let answers = || {
        [
            segment(0xc0, 2, 0xff, 0, 0, &data[..100]),
            segment(0xc0, 2, 0xff, 0, 100, &data[..50]),
            segment(0x40, 11, 0, 0, 0, &[0; 12]),
        ]
    };
    let reads = || (0..4).map(|which| segment(0x40, 1, which, 0, 5, &data));
    vec![
        (
            "sends",
            joined(0x40, 255, [segment(0x00, 3, 9, 0, 0, &data), segment(0x40, 3, 9, 0, 0, &data[..50])]),
        ),
        (
            "sends-in-pieces",
            joined(0x46, 0, [segment(0x00, 3, 9, 0, 0, &data), segment(0x40, 3, 9, 0, 0, &data)]),
        ),
        (
            "writes",
            joined(
                0x40,
                255,
                [write(0, 0, false), write(0, 300, true), write(1, 0, true), write(2, 724, true)],
            ),
        ),
        ("writes-sink", joined(0x40, 3, [write(4, 0, false), write(4, 300, true), write(4, 725, true)])),
        ("writes-source", joined(0x40, 255, [write(3, 0, true)])),
        ("reads", joined(0x70, 255, reads())),
        ("reads-crc-markers", joined(0x7f, 10, reads().take(3))),
        ("reads-too-deep", joined(0x40, 255, reads())),
        ("answers", joined(0xc0, 255, answers())),
        ("answers-one-by-one", joined(0x0f, 255, answers())),
        ("atomic", joined(0x70, 255, [segment(0x40, 10, 0, 0, 8, b""), segment(0x40, 10, 0, 8, 16, b"")])),
        ("invalidate", joined(0x40, 255, [segment(0x40, 4, 1, 0, 0, b"x"), write(1, 0, true)])),
        ("immediate", joined(0x42, 255, [segment(0x40, 8, 0, 0, 0, &[1; 8])])),
        ("terminate", joined(0x40, 255, [segment(0x40, 7, 0, 0, 0, &[0x21, 2, 3, 0])])),
        ("unknown", joined(0x40, 255, [write(77, 0, true)])),
    ]
}
