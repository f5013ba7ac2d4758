//! The messages of a transport: calls to send, each with the length of its reply, and replies.

use runtime::Chain;

use crate::error::Error;

/// Bound on a reply's length, in bytes. Over RDMA the client exposes memory for the part that
/// exceeds a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Room {
    /// The most bytes of the item that a server may place by RDMA Write: a READ's data. It has to
    /// be the last of the results.
    pub item: usize,
    /// The most bytes of the other results.
    pub rest: usize,
}

impl Room {
    /// Room for results without lists, data or paths.
    pub const SMALL: Self = Room::results(1 << 10);

    /// Room for results of this length, without data.
    pub const fn results(rest: usize) -> Self {
        Room { item: 0, rest }
    }

    /// Room for the results of a READ.
    pub const fn read(count: u32) -> Self {
        Room { item: count as usize, ..Room::SMALL }
    }
}

/// A call to send, or the answer to a call of the server's: its record mark, header and arguments,
/// then the payload of a WRITE.
#[derive(Debug, Clone)]
pub(crate) struct Message {
    /// Everything before the payload, with a mark that counts the payload and its padding.
    pub head: Vec<u8>,
    /// The payload, without padding.
    pub payload: Chain,
    /// Bound on the reply's length.
    pub room: Room,
}

impl Message {
    /// The answer to a call of the server's.
    pub fn answer(record: Vec<u8>) -> Self {
        let mark = rpc::record::LAST | record.len() as u32;
        let head = [&mark.to_be_bytes(), &record[..]].concat();
        Message { head, payload: Chain::new(), room: Room::SMALL }
    }
}

/// An RPC message from a server. Of a long one, and over RDMA, only the beginning is in one piece.
#[derive(Debug, Default)]
pub(crate) struct Record {
    pub bytes: Vec<u8>,
    /// Payload that follows the bytes: data and padding of a READ.
    pub apart: Chain,
}

impl Record {
    /// Copies everything into one piece.
    pub fn join(&mut self) {
        if self.apart.is_empty() {
            return;
        }
        let apart = std::mem::take(&mut self.apart);
        let at = self.bytes.len();
        self.bytes.resize(at + apart.len(), 0);
        apart.copy_to_slice(&mut self.bytes[at..]);
    }
}

impl From<Vec<u8>> for Record {
    fn from(bytes: Vec<u8>) -> Self {
        Record { bytes, apart: Chain::new() }
    }
}

/// A message from a server.
pub(crate) enum Received {
    /// An RPC message.
    Record(Record),
    /// The call of this XID has no reply that can be used.
    Failed(u32, Error),
}
