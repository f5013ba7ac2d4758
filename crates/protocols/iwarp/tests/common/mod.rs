//! One side of a connection for tests: a stream with the memory behind it. Panics when a step names
//! a byte outside posted or registered memory.
#![allow(dead_code, reason = "each test file uses its part")]

use std::collections::{HashMap, VecDeque};

use iwarp::crc::crc32c;
use iwarp::ddp::{Tagged, Untagged};
use iwarp::mpa::{Agreed, Role};
use iwarp::rdmap::{Opcode, Terminate};
use iwarp::stag::{Domain, Registration, Rights, Stag};
use iwarp::stream::{Event, Options, Place, Step, Stream};
use zerocopy::IntoBytes;

/// The protection domain of all streams here.
pub const DOMAIN: Domain = Domain(5);

/// An event that one side saw.
#[derive(Debug, Clone, PartialEq)]
pub enum Seen {
    Message { data: Vec<u8>, solicited: bool, invalidated: Option<u32> },
    Immediate([u8; 8], bool),
    Asked { index: u32, offset: u64, len: u32 },
    Read(u64, Vec<u8>),
    Atomic(u64, u64),
    Terminated(u16),
}

/// A request of the peer to answer.
#[derive(Debug, Clone, Copy)]
enum Asked {
    Read { index: u32, offset: u64, len: u32 },
    Atomic { original: u64 },
}

pub struct Side {
    pub stream: Stream,
    /// Memory by index.
    pub memory: Vec<Vec<u8>>,
    pub stags: Vec<Stag>,
    pub receive_size: u32,
    pub seen: Vec<Seen>,
    pub out: Vec<u8>,
    message: Vec<u8>,
    /// Lengths of our reads, by id.
    pub lens: HashMap<u64, u32>,
    reads: HashMap<u64, Vec<u8>>,
    asked: VecDeque<Asked>,
    /// By index: the peer, or a read of this side, may write this memory now.
    pub writable: Vec<bool>,
    /// Data that the peer read, in order.
    pub given: Vec<Vec<u8>>,
    /// Bytes of payload placed.
    pub placed: usize,
}

pub fn agreed(role: Role, crc: bool, send_markers: bool, receive_markers: bool) -> Agreed {
    Agreed { role, revision: 2, crc, send_markers, receive_markers, ird: 4, ord: 4, rtr: None }
}

pub fn options(seed: u8) -> Options {
    Options { receive_size: 4096, domain: DOMAIN, ..Options::new([seed; 16]) }
}

pub fn all_rights() -> Rights {
    Rights::LOCAL_WRITE
        | Rights::REMOTE_READ
        | Rights::REMOTE_WRITE
        | Rights::REMOTE_ATOMIC
        | Rights::REMOTE_INVALIDATE
}

impl Side {
    pub fn new(agreed: &Agreed, options: &Options) -> Self {
        Self {
            stream: Stream::new(agreed, options),
            memory: Vec::new(),
            stags: Vec::new(),
            receive_size: options.receive_size,
            seen: Vec::new(),
            out: Vec::new(),
            message: Vec::new(),
            lens: HashMap::new(),
            reads: HashMap::new(),
            asked: VecDeque::new(),
            writable: Vec::new(),
            given: Vec::new(),
            placed: 0,
        }
    }

    /// A responder without CRC and markers, with two receives posted.
    pub fn plain() -> Self {
        let mut side = Self::new(&agreed(Role::Responder, false, false, false), &options(7));
        side.stream.post_receives(2);
        side
    }

    pub fn expose(&mut self, len: usize, base: u64, rights: Rights) -> Stag {
        self.expose_in(len, base, rights, DOMAIN)
    }

    pub fn expose_in(&mut self, len: usize, base: u64, rights: Rights, domain: Domain) -> Stag {
        let index = self.memory.len() as u32;
        let registration = Registration { index, base, len: len as u64, rights, domain };
        let stag = self.stream.register(registration).expect("room");
        self.memory.push((0..len).map(|i| (i * 31 + index as usize) as u8).collect());
        self.stags.push(stag);
        self.writable.push(
            domain == DOMAIN && (rights.contain(Rights::REMOTE_WRITE) || rights.contain(Rights::LOCAL_WRITE)),
        );
        stag
    }

    /// Invalidates the STag of this memory.
    pub fn withdraw(&mut self, index: usize) {
        self.stream.invalidate(self.stags[index]).expect("live");
        self.writable[index] = false;
    }

    fn place(&mut self, place: Place, offset: u64, bytes: &[u8], rest: usize) {
        let at = usize::try_from(offset).expect("an offset within memory");
        let end = at.checked_add(bytes.len() + rest).expect("no wrap");
        match place {
            Place::Receive => {
                assert!(end <= self.receive_size as usize, "beyond the posted receive");
                assert_eq!(at, self.message.len(), "a message comes in order");
                self.message.extend_from_slice(bytes);
            }
            Place::Tagged(index) => {
                let memory = &mut self.memory[index as usize];
                assert!(end <= memory.len(), "beyond the registered range");
                assert!(self.writable[index as usize], "memory that nobody may write");
                memory[at..at + bytes.len()].copy_from_slice(bytes);
            }
            Place::Read(id) => {
                assert!(end <= self.lens[&id] as usize, "beyond the read");
                let data = self.reads.entry(id).or_default();
                assert_eq!(at, data.len(), "a read's data comes in order");
                data.extend_from_slice(bytes);
            }
        }
        self.placed += bytes.len();
    }

    /// Takes bytes off the wire, with at most `most` bytes of payload at a time.
    pub fn receive(&mut self, mut input: &[u8], most: usize) -> Result<(), Terminate> {
        loop {
            match self.stream.step(&mut input)? {
                Step::More => {
                    assert!(input.is_empty(), "More only when the input is used up");
                    return Ok(());
                }
                Step::Payload { place, offset, here, rest } => {
                    assert!(here > 0 || input.is_empty());
                    assert!(here <= input.len());
                    self.place(place, offset, &[], here + rest);
                    if here == 0 {
                        return Ok(());
                    }
                    let (bytes, behind) = input.split_at(here.min(most));
                    self.place(place, offset, bytes, 0);
                    self.stream.took(bytes);
                    input = behind;
                }
                Step::Event(event) => self.event(event),
            }
        }
    }

    fn event(&mut self, event: Event) {
        match event {
            Event::Received { len, solicited, invalidated } => {
                let data = std::mem::take(&mut self.message);
                assert_eq!(data.len(), len as usize);
                if let Some(invalidated) = invalidated {
                    assert_eq!(self.stags[invalidated.index as usize], invalidated.stag);
                    self.writable[invalidated.index as usize] = false;
                }
                self.seen.push(Seen::Message { data, solicited, invalidated: invalidated.map(|i| i.index) });
            }
            Event::Immediate { data, solicited } => self.seen.push(Seen::Immediate(data, solicited)),
            Event::ReadRequest { index, offset, len } => {
                assert!(len > 0);
                assert!(offset + u64::from(len) <= self.memory[index as usize].len() as u64);
                self.seen.push(Seen::Asked { index, offset, len });
                self.asked.push_back(Asked::Read { index, offset, len });
            }
            Event::AtomicRequest { index, offset, operation } => {
                let at = offset as usize;
                let value = &mut self.memory[index as usize][at..at + 8];
                let original = u64::from_be_bytes(value.try_into().expect("eight bytes"));
                value.copy_from_slice(&operation.apply(original).to_be_bytes());
                self.asked.push_back(Asked::Atomic { original });
            }
            Event::ReadDone { id } => {
                let data = self.reads.remove(&id).unwrap_or_default();
                self.seen.push(Seen::Read(id, data));
            }
            Event::AtomicDone { id, original } => self.seen.push(Seen::Atomic(id, original)),
            Event::Terminated(terminated) => self.seen.push(Seen::Terminated(terminated.code)),
        }
    }

    /// Answers all requests of the peer, and flushes the stream.
    pub fn answer(&mut self) {
        while let Some(asked) = self.asked.pop_front() {
            match asked {
                Asked::Read { index, offset, len } => {
                    let at = offset as usize;
                    let data = self.memory[index as usize][at..at + len as usize].to_vec();
                    self.given.push(data.clone());
                    self.stream.read_response(data, &mut self.out).expect("asked");
                }
                Asked::Atomic { original } => {
                    self.stream.atomic_response::<Vec<u8>>(original, &mut self.out).expect("asked");
                }
            }
        }
        if self.stream.wants_flush() {
            self.stream.flush::<Vec<u8>>(&mut self.out);
        }
        assert!(!self.stream.wants_flush());
    }
}

/// An FPDU of these bytes, with a correct CRC.
pub fn fpdu(ulpdu: &[u8]) -> Vec<u8> {
    let mut bytes = (ulpdu.len() as u16).to_be_bytes().to_vec();
    bytes.extend_from_slice(ulpdu);
    bytes.resize(bytes.len().next_multiple_of(4), 0);
    let crc = crc32c(&bytes);
    bytes.extend_from_slice(&crc);
    bytes
}

/// An FPDU of a tagged segment.
pub fn tagged(opcode: Opcode, last: bool, stag: Stag, to: u64, payload: &[u8]) -> Vec<u8> {
    fpdu(&[Tagged::new(opcode, last, stag, to).as_bytes(), payload].concat())
}

/// An FPDU of an untagged segment.
pub fn untagged(opcode: Opcode, last: bool, qn: u32, msn: u32, mo: u32, payload: &[u8]) -> Vec<u8> {
    fpdu(&[Untagged::new(opcode, last, None, qn, msn, mo).as_bytes(), payload].concat())
}

/// An FPDU of a Send with Invalidate.
pub fn invalidating(stag: Stag, msn: u32) -> Vec<u8> {
    fpdu(Untagged::new(Opcode::SendInvalidate, true, Some(stag), 0, msn, 0).as_bytes())
}

/// An FPDU of an RDMA Read Request.
pub fn read_request(msn: u32, len: u32, source: Stag, to: u64) -> Vec<u8> {
    let mut body = Vec::new();
    body.extend_from_slice(&0x0a0b_0c0du32.to_be_bytes());
    body.extend_from_slice(&0x10u64.to_be_bytes());
    body.extend_from_slice(&len.to_be_bytes());
    body.extend_from_slice(&source.0.to_be_bytes());
    body.extend_from_slice(&to.to_be_bytes());
    untagged(Opcode::ReadRequest, true, 1, msn, 0, &body)
}
