//! A hand-made peer: it speaks iWARP over a plain socket, from its own thread, and sends and splits
//! bytes at will.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use iwarp::crc::crc32c;
use rdma::{Listener, Options, QueuePair};

use super::loopback;

/// A request of revision 2 without markers, IRD and ORD 16. Tests may add the flag for a CRC.
const REQUEST: &[u8; 24] = b"MPA ID Req Frame\x10\x02\x00\x04\x00\x10\x00\x10";
const CRC_FLAG: u8 = 0x40;
const FLAGS_AT: usize = 16;
/// Bytes of an FPDU with an RDMA Read Request.
const READ_REQUEST: usize = 52;
const SEND: u8 = 3;
const READ_RESPONSE: u8 = 2;

/// The connection after the setup.
pub struct Peer {
    pub socket: TcpStream,
    crc: bool,
    msn: u32,
}

/// An RDMA Read Request of the queue pair, with its destination.
#[derive(Clone, Copy, Debug)]
pub struct Asked {
    stag: u32,
    to: u64,
    pub len: usize,
}

/// An accepted queue pair, and its peer.
pub async fn raw(crc: bool, options: &Options) -> (QueuePair, Peer) {
    let mut listener = Listener::bind(loopback()).expect("a listener");
    let mut socket = TcpStream::connect(listener.local_addr().expect("an address")).expect("connected");
    socket.set_nodelay(true).expect("an option");
    socket.set_read_timeout(Some(Duration::from_secs(60))).expect("an option");
    let mut request = *REQUEST;
    request[FLAGS_AT] |= if crc { CRC_FLAG } else { 0 };
    socket.write_all(&request).expect("sent");
    let incoming = listener.accept().await.expect("a connection");
    let pair = incoming.accept(b"", options).await.expect("accepted");
    assert_eq!(pair.has_crc(), crc);
    let mut reply = [0; 24];
    socket.read_exact(&mut reply).expect("a reply");
    assert_eq!(&reply[..16], b"MPA ID Rep Frame");
    (pair, Peer { socket, crc, msn: 1 })
}

impl Peer {
    fn fpdu(&self, ulpdu: &[u8]) -> Vec<u8> {
        let mut bytes = (ulpdu.len() as u16).to_be_bytes().to_vec();
        bytes.extend_from_slice(ulpdu);
        bytes.resize(bytes.len().next_multiple_of(4), 0);
        let crc = if self.crc { crc32c(&bytes) } else { [0; 4] };
        bytes.extend_from_slice(&crc);
        bytes
    }

    /// A Send in one FPDU.
    pub fn message(&mut self, payload: &[u8]) -> Vec<u8> {
        let mut ulpdu = vec![0x41, 0x40 | SEND, 0, 0, 0, 0];
        [0, self.msn, 0].iter().for_each(|word| ulpdu.extend_from_slice(&word.to_be_bytes()));
        self.msn += 1;
        ulpdu.extend_from_slice(payload);
        self.fpdu(&ulpdu)
    }

    /// The bytes `at..at + len` of the requested data, in one FPDU; `data` is all of it.
    pub fn response(&self, asked: Asked, data: &[u8], at: usize, len: usize) -> Vec<u8> {
        self.response_at(asked, at, &data[at..at + len])
    }

    /// These bytes of the requested data, from byte `at` of it on, in one FPDU.
    pub fn response_at(&self, asked: Asked, at: usize, data: &[u8]) -> Vec<u8> {
        let last = at + data.len() == asked.len;
        let mut ulpdu = vec![if last { 0xc1 } else { 0x81 }, 0x40 | READ_RESPONSE];
        ulpdu.extend_from_slice(&asked.stag.to_be_bytes());
        ulpdu.extend_from_slice(&(asked.to + at as u64).to_be_bytes());
        ulpdu.extend_from_slice(data);
        self.fpdu(&ulpdu)
    }

    /// The answer to one read in FPDUs of at most `most` bytes of payload.
    pub fn answer(&self, asked: Asked, data: &[u8], most: usize) -> Vec<u8> {
        let mut bytes = Vec::new();
        let mut at = 0;
        while at < asked.len || at == 0 {
            let len = most.min(asked.len - at);
            bytes.extend(self.response(asked, data, at, len));
            at += len.max(1);
        }
        bytes
    }

    /// Sends the first message, for which the accepting side waits, and returns the requested
    /// reads.
    pub fn begin(&mut self, reads: usize) -> Vec<Asked> {
        let hello = self.message(b"hello");
        self.socket.write_all(&hello).expect("sent");
        self.asked(reads)
    }

    /// Receives `reads` RDMA Read Requests.
    pub fn asked(&mut self, reads: usize) -> Vec<Asked> {
        (0..reads)
            .map(|_| {
                let mut fpdu = [0; READ_REQUEST];
                self.socket.read_exact(&mut fpdu).expect("a request");
                assert_eq!(fpdu[2..4], [0x41, 0x41], "an RDMA Read Request");
                let word = |at: usize| u32::from_be_bytes(fpdu[at..at + 4].try_into().expect("four bytes"));
                let to = u64::from(word(24)) << 32 | u64::from(word(28));
                Asked { stag: word(20), to, len: word(32) as usize }
            })
            .collect()
    }
}
