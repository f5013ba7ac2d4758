//! A queue pair without I/O: software iWARP's startup and its stream, the memory that the peer may reach, and whole messages.
//!
//! What is in the messages is iSER's business (`crate::iser`). Both sides of a link use this, one as it calls, one as it answers.

use std::collections::BTreeMap;
use std::mem::take;

use iwarp::mpa::{self, CrcPolicy, Reply, Requester, Responder};
use iwarp::rdmap::{Terminate, Terminated};
use iwarp::stag::{Registration, Rights, Stag};
use iwarp::stream::{Event, Landing, Options, Place, Remote, SendFlags, Step, Stream};
use runtime::{Buf, Chain};

/// How a queue pair is run.
#[derive(Clone, Copy, Debug)]
pub struct Setup {
    /// FPDUs carry a CRC.
    pub crc: bool,
    /// This side asks for markers.
    pub markers: bool,
    /// RDMA Reads at a time, each way.
    pub depth: u16,
    /// Bytes of an FPDU at most.
    pub max_fpdu: usize,
    /// Receives posted.
    pub receives: u32,
    /// Bytes of each.
    pub receive_size: u32,
    /// What STags are derived from.
    pub seed: [u8; 16],
}

/// What has come of what arrived.
#[derive(Debug)]
pub enum Happening {
    /// A Send, and the STag that it invalidated.
    Message(Vec<u8>, Option<u32>),
    /// All data of the RDMA Read with this number.
    Read(u64, Chain),
}

/// Memory for what RDMA Reads bring, beside the queue pair's own: asked anew for each piece. Without a CRC a piece is what has come of
/// an FPDU's payload, with one all of it, once its CRC was found right; with markers there is none, as `rdma` has it.
pub trait Sink {
    /// Takes some of `bytes`, which the RDMA Read with this number has brought from its byte `offset` on; `rest` more of the same
    /// payload follow them.
    fn place(&self, id: u64, offset: u64, bytes: &[u8], rest: usize) -> Placed;
}

/// What became of the first bytes of a piece.
#[derive(Debug)]
pub enum Placed {
    /// They lie where they belong.
    There(Buf),
    /// So many, at least one, are the queue pair's to keep.
    Aside(usize),
}

/// Why a queue pair is over.
#[derive(Debug, thiserror::Error)]
pub enum Fault {
    /// The startup failed.
    #[error("startup: {0}")]
    Startup(#[from] mpa::Error),
    /// The peer rejects the connection.
    #[error("rejected")]
    Rejected,
    /// What came cannot be.
    #[error("ends the stream: {0:?}")]
    Ours(Terminate),
    /// The peer says that what it got cannot be.
    #[error("the peer ends the stream: {0:?}")]
    Theirs(Terminated),
}

enum Stage {
    Calling(Requester),
    Answering(Responder),
    Running(Box<Stream>),
}

/// Memory that the peer may reach.
struct Memory {
    stag: Stag,
    bytes: Vec<u8>,
    /// The end of the last byte that was placed.
    placed: usize,
}

/// One side of a queue pair.
pub struct Pair {
    setup: Setup,
    stage: Stage,
    /// What may leave.
    output: Vec<u8>,
    /// FPDUs that wait for the stream to be allowed to send.
    held: Vec<u8>,
    /// Messages that wait for the startup.
    early: Vec<Vec<u8>>,
    /// What there is of a Send.
    message: Vec<u8>,
    memory: BTreeMap<u32, Memory>,
    next_index: u32,
    /// What there is of RDMA Reads.
    reads: BTreeMap<u64, Chain>,
    /// Payload of an FPDU whose CRC was not seen, of the RDMA Read with this number, and whether it is all of it.
    unchecked: Option<(u64, Vec<u8>, bool)>,
}

impl Pair {
    /// The side that connects.
    ///
    /// # Errors
    /// None that this setup can cause.
    pub fn call(setup: Setup) -> Result<Self, Fault> {
        let requester = Requester::new(setup.options(), &[])?;
        let output = requester.request().to_vec();
        Ok(Self { output, ..Self::new(setup, Stage::Calling(requester)) })
    }

    /// The side that is connected to.
    pub fn answer(setup: Setup) -> Self {
        Self::new(setup, Stage::Answering(Responder::new()))
    }

    fn new(setup: Setup, stage: Stage) -> Self {
        Self {
            setup,
            stage,
            output: Vec::new(),
            held: Vec::new(),
            early: Vec::new(),
            message: Vec::new(),
            memory: BTreeMap::new(),
            next_index: 0,
            reads: BTreeMap::new(),
            unchecked: None,
        }
    }

    fn run(&mut self, agreed: &mpa::Agreed) {
        let options = Options {
            max_fpdu: self.setup.max_fpdu,
            receive_size: self.setup.receive_size,
            ..Options::new(self.setup.seed)
        };
        let mut stream = Stream::new(agreed, &options);
        stream.post_receives(self.setup.receives);
        stream.start::<Vec<u8>>(&mut self.held);
        self.stage = Stage::Running(Box::new(stream));
        for message in take(&mut self.early) {
            self.send(message, None);
        }
    }

    /// Takes what may leave now.
    pub fn take_output(&mut self) -> Vec<u8> {
        match &self.stage {
            Stage::Running(stream) if stream.may_send() => self.output.append(&mut self.held),
            _ => {}
        }
        take(&mut self.output)
    }

    /// Bytes that wait for the peer to speak first.
    pub fn held(&self) -> usize {
        self.held.len()
    }

    /// Sends a message, and has the peer take an STag of its own back with it.
    pub fn send(&mut self, message: Vec<u8>, invalidate: Option<u32>) {
        match &mut self.stage {
            Stage::Running(stream) => {
                let flags = SendFlags { invalidate: invalidate.map(Stag), solicited: false };
                // A stream that is over says nothing more.
                let _ = stream.send(message, flags, &mut self.held);
            }
            _ => self.early.push(message),
        }
    }

    /// Writes into the peer's memory.
    ///
    /// # Errors
    /// What the stream does not take, and should.
    pub fn write(&mut self, stag: u32, to: u64, data: Vec<u8>) -> Result<(), String> {
        let Stage::Running(stream) = &mut self.stage else {
            return Err("an RDMA Write before startup".to_owned());
        };
        if stream.is_over() {
            return Ok(());
        }
        let remote = Remote { stag: Stag(stag), to };
        stream.write(remote, data, &mut self.held).map_err(|error| format!("an RDMA Write: {error}"))
    }

    /// Reads the peer's memory.
    ///
    /// # Errors
    /// What the stream does not take, and should.
    pub fn read(&mut self, stag: u32, to: u64, len: u32, id: u64) -> Result<(), String> {
        let Stage::Running(stream) = &mut self.stage else {
            return Err("an RDMA Read before startup".to_owned());
        };
        if stream.is_over() {
            return Ok(());
        }
        let remote = Remote { stag: Stag(stag), to };
        let posted = stream.read::<Vec<u8>>(remote, len, Landing::Given, id, &mut self.held);
        posted.map_err(|error| format!("an RDMA Read: {error}"))
    }

    /// Lets the peer write to memory of `bytes.len()` bytes, or read it. Answers its STag and the offset of its first byte.
    ///
    /// # Errors
    /// There are more registrations than the stream takes.
    pub fn expose(&mut self, bytes: Vec<u8>, writable: bool) -> Result<(u32, u64), String> {
        let Stage::Running(stream) = &mut self.stage else { return Err("memory before startup".to_owned()) };
        let index = self.next_index;
        self.next_index = self.next_index.wrapping_add(1);
        // Anywhere, as virtual addresses are; now and then at the end of all offsets.
        let len = bytes.len() as u64;
        let base = if index % 5 == 4 { u64::MAX - len } else { u64::from(index) << 33 };
        let reach = if writable { Rights::REMOTE_WRITE } else { Rights::REMOTE_READ };
        let rights = reach | Rights::REMOTE_INVALIDATE;
        let registration = Registration { index, base, len, rights, domain: stream.domain() };
        let stag = stream.register(registration).map_err(|error| format!("memory: {error}"))?;
        self.memory.insert(index, Memory { stag, bytes, placed: 0 });
        Ok((stag.0, base))
    }

    /// Takes memory back: its bytes, and how far the peer has written.
    pub fn withdraw(&mut self, stag: u32) -> Option<(Vec<u8>, usize)> {
        if let Stage::Running(stream) = &mut self.stage {
            stream.invalidate(Stag(stag));
        }
        let index = *self.memory.iter().find(|(_, memory)| memory.stag.0 == stag)?.0;
        self.memory.remove(&index).map(|memory| (memory.bytes, memory.placed))
    }

    /// Pieces of memory exposed.
    pub fn exposed(&self) -> usize {
        self.memory.len()
    }

    /// Takes what it can of `input` until something has happened. What RDMA Reads bring goes to `sink`, as far as that takes it.
    ///
    /// # Errors
    /// The connection is over. A Terminate may be among what leaves.
    pub fn next(&mut self, input: &mut Vec<u8>, sink: Option<&dyn Sink>) -> Result<Option<Happening>, Fault> {
        let mut rest = input.as_slice();
        let outcome = self.digest(&mut rest, sink.filter(|_| !self.setup.markers));
        let left = rest.len();
        input.drain(..input.len() - left);
        outcome
    }

    fn digest(&mut self, input: &mut &[u8], sink: Option<&dyn Sink>) -> Result<Option<Happening>, Fault> {
        loop {
            match &mut self.stage {
                Stage::Calling(requester) => match requester.receive(input)? {
                    None => return Ok(None),
                    Some(Reply::Accepted { agreed, .. }) => self.run(&agreed),
                    Some(Reply::Rejected { .. }) => return Err(Fault::Rejected),
                },
                Stage::Answering(responder) => {
                    let Some(request) = responder.receive(input)? else { return Ok(None) };
                    let (reply, agreed) = request.accept(&self.setup.options(), &[])?;
                    self.output.extend(reply);
                    self.run(&agreed);
                }
                Stage::Running(stream) => {
                    let step = stream.step(input).map_err(|error| {
                        stream.terminate::<Vec<u8>>(error, &mut self.held);
                        Fault::Ours(error)
                    })?;
                    if step != Step::More {
                        self.settle(sink);
                    }
                    let Stage::Running(stream) = &mut self.stage else { return Ok(None) };
                    match step {
                        Step::More | Step::Payload { here: 0, .. } => return Ok(None),
                        Step::Payload { place, offset, here, rest } => {
                            let (bytes, after) = input.split_at(here);
                            stream.took(bytes);
                            *input = after;
                            self.place(place, offset as usize, bytes, rest, sink);
                        }
                        Step::Event(event) => {
                            if let Some(happening) = self.on_event(event)? {
                                return Ok(Some(happening));
                            }
                        }
                    }
                }
            }
        }
    }

    /// What there is of an FPDU's payload was found right, if it is all of it.
    fn settle(&mut self, sink: Option<&dyn Sink>) {
        if let Some((id, bytes, _)) = self.unchecked.take_if(|(.., whole)| *whole) {
            self.keep(id, &bytes, 0, sink);
        }
    }

    /// Keeps what an RDMA Read has brought, or has it kept elsewhere.
    fn keep(&mut self, id: u64, bytes: &[u8], rest: usize, sink: Option<&dyn Sink>) {
        let kept = self.reads.entry(id).or_default();
        let mut left = bytes;
        while !left.is_empty() {
            let placed = sink.map(|sink| sink.place(id, kept.len() as u64, left, rest));
            let piece = match placed.unwrap_or(Placed::Aside(left.len())) {
                Placed::There(buf) => buf,
                Placed::Aside(len) => Buf::from(left[..len].to_vec()),
            };
            left = &left[piece.len()..];
            kept.push(piece);
        }
    }

    fn place(&mut self, place: Place, offset: usize, bytes: &[u8], rest: usize, sink: Option<&dyn Sink>) {
        let at = match place {
            Place::Receive => &mut self.message,
            Place::Read(id) => {
                let unchecked = self.unchecked.as_ref().map_or(0, |(_, bytes, _)| bytes.len());
                let kept = self.reads.get(&id).map_or(0, Chain::len);
                assert_eq!(kept + unchecked, offset, "what is not placed by name comes in order");
                if self.setup.crc && sink.is_some() {
                    let (_, payload, whole) = self.unchecked.get_or_insert_with(|| (id, Vec::new(), false));
                    payload.extend_from_slice(bytes);
                    *whole = rest == 0;
                } else {
                    self.keep(id, bytes, rest, sink);
                }
                return;
            }
            Place::Tagged(index) => {
                // What the stream names is registered, and within its bounds: a panic here is what this program looks for.
                let memory = self.memory.get_mut(&index).expect("a place that is registered");
                memory.bytes[offset..offset + bytes.len()].copy_from_slice(bytes);
                memory.placed = memory.placed.max(offset + bytes.len());
                return;
            }
        };
        assert_eq!(at.len(), offset, "what is not placed by name comes in order");
        at.extend_from_slice(bytes);
    }

    fn on_event(&mut self, event: Event) -> Result<Option<Happening>, Fault> {
        let Stage::Running(stream) = &mut self.stage else { return Ok(None) };
        let happening = match event {
            Event::Received { len, invalidated, .. } => {
                let message = take(&mut self.message);
                assert_eq!(message.len(), len as usize, "a message is as long as it says");
                stream.post_receives(1);
                Some(Happening::Message(message, invalidated.map(|invalidated| invalidated.stag.0)))
            }
            Event::ReadRequest { index, offset, len } => {
                let memory = self.memory.get(&index).expect("a source that is registered");
                let data = memory.bytes[offset as usize..][..len as usize].to_vec();
                stream.read_response(data, &mut self.held).expect("the answer to what was asked");
                None
            }
            Event::ReadDone { id } => Some(Happening::Read(id, self.reads.remove(&id).unwrap_or_default())),
            Event::Terminated(terminated) => return Err(Fault::Theirs(terminated)),
            // Nobody here sends these.
            Event::Immediate { .. } | Event::AtomicRequest { .. } | Event::AtomicDone { .. } => None,
        };
        if stream.wants_flush() {
            stream.flush::<Vec<u8>>(&mut self.held);
        }
        Ok(happening)
    }
}

impl Setup {
    fn options(&self) -> mpa::Options {
        let crc = if self.crc { CrcPolicy::Require } else { CrcPolicy::Never };
        mpa::Options {
            crc,
            markers: self.markers,
            ird: self.depth,
            ord: self.depth,
            ..mpa::Options::default()
        }
    }
}
