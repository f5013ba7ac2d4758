//! The protocol between the two sides of `stag rdma-bench`, beside the load. The request is private
//! data of the connection request; messages have 32 bytes. Parses hostile bytes; does no I/O.

use crate::args::rdma_bench::{MAX_LEN, Operation};

/// The first bytes of private data: name and version of this protocol.
const MAGIC: [u8; 8] = *b"stagrb\0\x01";
/// Length of a [`Hello`], bytes; verbs carry 56, and InfiniBand pads with zeros.
pub const HELLO: usize = 24;
/// Length of a [`Message`], bytes.
pub const MESSAGE: usize = 32;
/// The most messages in flight.
pub const MAX_DEPTH: u32 = 4096;

/// The request of the side that loads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hello {
    pub operation: Operation,
    /// Bytes of a message, 1 to [`MAX_LEN`].
    pub size: u32,
    /// Messages in flight, 1 to [`MAX_DEPTH`].
    pub depth: u32,
    /// RDMA Reads on the wire at once, 1 to [`MAX_DEPTH`].
    pub outstanding: u16,
}

impl Hello {
    pub fn encode(&self) -> [u8; HELLO] {
        let mut bytes = [0; HELLO];
        bytes[..8].copy_from_slice(&MAGIC);
        bytes[8] = match self.operation {
            Operation::Read => 1,
            Operation::Write => 2,
            Operation::Send => 3,
        };
        bytes[12..16].copy_from_slice(&self.size.to_be_bytes());
        bytes[16..20].copy_from_slice(&self.depth.to_be_bytes());
        bytes[20..22].copy_from_slice(&self.outstanding.to_be_bytes());
        bytes
    }

    /// Of private data; `None` if it is something else.
    pub fn parse(bytes: &[u8]) -> Option<Self> {
        let bytes: &[u8; HELLO] = bytes.first_chunk()?;
        if bytes[..8] != MAGIC {
            return None;
        }
        let operation = match bytes[8] {
            1 => Operation::Read,
            2 => Operation::Write,
            3 => Operation::Send,
            _ => return None,
        };
        let word = |at: usize| u32::from_be_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]]);
        let hello = Self {
            operation,
            size: word(12),
            depth: word(16),
            outstanding: u16::from_be_bytes([bytes[20], bytes[21]]),
        };
        let fits = (1..=MAX_LEN).contains(&hello.size)
            && (1..=MAX_DEPTH).contains(&hello.depth)
            && (1..=MAX_DEPTH).contains(&hello.outstanding.into());
        fits.then_some(hello)
    }
}

/// The meaning of a Send. A Send of the load ([`Self::Data`]) is followed by its payload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Message {
    /// To the other side, first: where is the memory? (The side that accepts a connection of iWARP
    /// may send nothing before it has received something, RFC 5044 §7.1.)
    Where,
    /// The answer: the memory that the side that loads may reach.
    Memory {
        stag: u32,
        /// The tagged offset that it begins at.
        origin: u64,
        /// Its length, bytes.
        len: u64,
    },
    /// To the other side: what time is it there?
    Mark(u64),
    Marked {
        mark: u64,
        /// Processor time of that side, ns.
        cpu_ns: u64,
    },
    /// To the other side: RDMA Writes up to this number have been sent.
    Wrote(u64),
    /// To the other side: the Send of this number, with the load's bytes behind it.
    Data(u64),
    /// To the side that loads: everything up to this number has arrived.
    Arrived(u64),
}

impl Message {
    /// As the head of a Send.
    pub fn encode(self) -> [u8; MESSAGE] {
        let (kind, words) = match self {
            Self::Memory { stag, origin, len } => (1, [stag.into(), origin, len]),
            Self::Mark(mark) => (2, [mark, 0, 0]),
            Self::Marked { mark, cpu_ns } => (3, [mark, cpu_ns, 0]),
            Self::Wrote(number) => (4, [number, 0, 0]),
            Self::Data(number) => (5, [number, 0, 0]),
            Self::Arrived(number) => (6, [number, 0, 0]),
            Self::Where => (7, [0; 3]),
        };
        let mut bytes = [0; MESSAGE];
        bytes[0] = kind;
        for (place, word) in bytes[8..].chunks_exact_mut(8).zip(words) {
            place.copy_from_slice(&word.to_be_bytes());
        }
        bytes
    }

    /// The head of a Send; `None` if it is nothing that is known here.
    pub fn parse(bytes: &[u8; MESSAGE]) -> Option<Self> {
        let mut words = [0u64; 3];
        for (word, place) in words.iter_mut().zip(bytes[8..].chunks_exact(8)) {
            *word = place.iter().fold(0, |word, byte| word << 8 | u64::from(*byte));
        }
        Some(match bytes[0] {
            1 => Self::Memory { stag: u32::try_from(words[0]).ok()?, origin: words[1], len: words[2] },
            2 => Self::Mark(words[0]),
            3 => Self::Marked { mark: words[0], cpu_ns: words[1] },
            4 => Self::Wrote(words[0]),
            5 => Self::Data(words[0]),
            6 => Self::Arrived(words[0]),
            7 => Self::Where,
            _ => return None,
        })
    }
}

/// Reads the head of what has arrived.
pub fn head(message: &runtime::Chain) -> Option<Message> {
    if message.len() < MESSAGE {
        return None;
    }
    let mut first = message.clone();
    first.truncate(MESSAGE);
    let mut bytes = [0; MESSAGE];
    first.copy_to_slice(&mut bytes);
    Message::parse(&bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_said_is_read_as_it_was_said() {
        let hello = Hello { operation: Operation::Write, size: 4096, depth: 7, outstanding: 4 };
        assert_eq!(Hello::parse(&hello.encode()), Some(hello));
        let mut padded = hello.encode().to_vec();
        padded.resize(56, 0);
        assert_eq!(Hello::parse(&padded), Some(hello));
        for message in [
            Message::Memory { stag: u32::MAX, origin: u64::MAX, len: 1 },
            Message::Mark(2),
            Message::Marked { mark: 2, cpu_ns: 3 },
            Message::Wrote(u64::MAX),
            Message::Data(5),
            Message::Arrived(6),
            Message::Where,
        ] {
            assert_eq!(Message::parse(&message.encode()), Some(message));
        }
    }

    #[test]
    fn what_makes_no_sense_is_refused() {
        let hello = Hello { operation: Operation::Read, size: 1, depth: 1, outstanding: 1 };
        assert_eq!(Hello::parse(&hello.encode()[..HELLO - 1]), None);
        assert_eq!(Hello::parse(&[0; HELLO]), None);
        for wrong in [
            Hello { size: 0, ..hello },
            Hello { size: MAX_LEN + 1, ..hello },
            Hello { depth: 0, ..hello },
            Hello { depth: MAX_DEPTH + 1, ..hello },
            Hello { outstanding: 0, ..hello },
        ] {
            assert_eq!(Hello::parse(&wrong.encode()), None, "{wrong:?}");
        }
        assert_eq!(Message::parse(&[0; MESSAGE]), None);
        let mut long = Message::Memory { stag: 0, origin: 0, len: 0 }.encode();
        long[8] = 1;
        assert_eq!(Message::parse(&long), None, "an STag has 32 bits");
    }
}
