//! A raw iSER initiator for tests: it sends the messages that a test makes, exposes the memory that
//! it names, and returns the answers. Its queue pair answers the target's RDMA Reads while it waits
//! for a message, and at no other time.

use std::collections::VecDeque;
use std::future::Future;
use std::net::SocketAddr;

use iscsi::login::initiator::{Config, Established, InitiatorLogin, Step};
use iscsi::pdu::{Bhs, Lun, Opcode, ScsiCommand, TaskAttribute};
use iser::{Control, HEAD_LEN, HEADER_LEN, Header, Layout, Limits, PrivateData};
use rdma::{Completion, Flags, Options, QueuePair, Rights, Stag};
use runtime::{Chain, Runtime, pool};

/// Runs a test's initiator on a ring of its own, for a limited time.
pub fn run<F: Future>(future: F) -> F::Output {
    let runtime = Runtime::new(runtime::Config::default()).expect("a ring");
    runtime.block_on(async {
        runtime::timeout(5 * super::PATIENCE, future).await.expect("the test ends in time")
    })
}

/// A received PDU.
#[derive(Debug)]
pub struct Message {
    pub bhs: Bhs,
    pub data: Vec<u8>,
    pub invalidated: Option<Stag>,
}

impl Message {
    /// Status and sense data of a SCSI Response.
    pub fn status(&self) -> (u8, Vec<u8>) {
        assert_eq!(self.bhs.opcode(), Some(Opcode::ScsiResponse), "{}", self.bhs);
        (self.bhs.as_scsi_response().status, self.data.get(2..).unwrap_or_default().to_vec())
    }
}

pub struct Client {
    pub pair: QueuePair,
    /// Private data of the target's reply.
    pub reply: PrivateData,
    pub session: Option<Established>,
    pub cmd_sn: u32,
    itt: u32,
    early: VecDeque<Message>,
}

pub fn options() -> Options {
    Options { ird: 64, ord: 1, receives: 300, receive_size: 76 + 8192 + 4, ..Options::default() }
}

/// Private data of Linux's initiator.
pub const LINUX: PrivateData = PrivateData { zero_based: false, remote_invalidation: true };

/// Pseudorandom bytes.
pub fn pattern(len: usize, seed: u32) -> Vec<u8> {
    let mut state = seed.wrapping_mul(2_654_435_761) | 1;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 17;
        state ^= state << 5;
        (state >> 8) as u8
    };
    (0..len).map(|_| next()).collect()
}

/// The same in buffers of the pool.
pub fn chain(bytes: &[u8]) -> Chain {
    let mut chain = Chain::new();
    for part in bytes.chunks(pool::MAX_ALLOC) {
        let mut buffer = pool::alloc(part.len()).expect("a buffer");
        buffer.copy_from_slice(part);
        chain.push(buffer.freeze());
    }
    chain
}

impl Client {
    /// Only makes a queue pair.
    pub async fn connect(to: SocketAddr, own: PrivateData, options: &Options) -> Result<Self, rdma::Error> {
        let (pair, reply) = rdma::connect(to, &own.encode(), options).await?;
        let reply = PrivateData::decode(&reply);
        Ok(Self { pair, reply, session: None, cmd_sn: 1, itt: 100, early: VecDeque::new() })
    }

    /// Connects and logs in as Linux does.
    pub async fn login(to: SocketAddr, number: u8) -> Self {
        Self::login_as(to, super::Client::config(number), LINUX, &options()).await
    }

    pub async fn login_as(to: SocketAddr, config: Config, own: PrivateData, options: &Options) -> Self {
        let mut client = Self::connect(to, own, options).await.expect("the portal takes iSER");
        client.log_in(config).await.expect("the login succeeds");
        client
    }

    /// Logs in, or returns the error.
    pub async fn log_in(&mut self, mut config: Config) -> Result<(), String> {
        config.offer = config.offer.over_rdma();
        let mut login = InitiatorLogin::new(config);
        let mut request = login.start();
        loop {
            self.send(Control::default(), request.header.into(), &request.data);
            let reply = self.receive().await.ok_or("the target closed the connection")?;
            match login.handle(reply.bhs.as_login_response(), &reply.data).map_err(|e| e.to_string())? {
                Step::Send(next) => request = next,
                Step::Done(established) => {
                    self.cmd_sn = established.exp_cmd_sn;
                    self.session = Some(*established);
                    return Ok(());
                }
                other => return Err(format!("{other:?}")),
            }
        }
    }

    /// Sends one PDU.
    pub fn send(&self, control: Control, bhs: Bhs, data: &[u8]) {
        self.send_with_ahs(control, bhs, &[], data);
    }

    /// Sends one PDU with AHSs.
    pub fn send_with_ahs(&self, control: Control, mut bhs: Bhs, ahs: &[u8], data: &[u8]) {
        bhs.set_data_segment_len(data.len());
        bhs.total_ahs_words = (ahs.len() / 4) as u8;
        let message = [&control.encode()[..], bhs.bytes(), ahs, data].concat();
        self.send_raw(&message);
    }

    /// Sends arbitrary bytes as a message.
    pub fn send_raw(&self, message: &[u8]) {
        self.pair.post_send(message, Chain::new(), Flags::default(), None);
        self.pair.flush();
    }

    /// The next PDU; `None` when the connection has ended.
    pub async fn receive(&mut self) -> Option<Message> {
        if let Some(message) = self.early.pop_front() {
            return Some(message);
        }
        loop {
            match self.pair.next().await {
                Ok(Completion::Received { message, invalidated, .. }) => {
                    self.pair.post_receives(1);
                    return Some(parse(&message.to_vec(), invalidated));
                }
                Ok(_) => {}
                Err(error) => {
                    println!("the connection has ended: {error}");
                    return None;
                }
            }
        }
    }

    /// The answer to the command or request with this tag; others are kept for [`Self::receive`].
    pub async fn answer(&mut self, itt: u32) -> Message {
        let mut others = VecDeque::new();
        loop {
            let message = self.receive().await.expect("an answer");
            if message.bhs.itt() == itt {
                others.append(&mut self.early);
                self.early = others;
                return message;
            }
            others.push_back(message);
        }
    }

    pub fn tag(&mut self) -> u32 {
        self.itt += 1;
        self.itt
    }

    /// A numbered command for `lun`, not sent yet.
    pub fn command(&mut self, lun: u16, cdb: &[u8]) -> ScsiCommand {
        let itt = self.tag();
        let lun = Lun::new(lun).expect("a small number");
        let mut command = ScsiCommand::new(itt, lun, TaskAttribute::Simple, cdb);
        command.cmd_sn.set(self.cmd_sn);
        self.cmd_sn = self.cmd_sn.wrapping_add(1);
        command
    }

    /// Runs a command that reads into memory exposed for it; returns its response and all of that
    /// memory.
    pub async fn read(&mut self, lun: u16, cdb: &[u8], len: usize) -> (Message, Vec<u8>) {
        let (command, stag) = self.start_read(lun, cdb, len);
        let message = self.answer(command.itt.get()).await;
        (message, self.take(stag))
    }

    /// Sends a command that reads.
    pub fn start_read(&mut self, lun: u16, cdb: &[u8], len: usize) -> (ScsiCommand, Stag) {
        let mut command = self.command(lun, cdb);
        command.set_read(true);
        command.edtl.set(len as u32);
        let stag = self.sink(len);
        self.send(Control { read: Some(at(stag, 0)), write: None }, command.into(), &[]);
        (command, stag)
    }

    /// Exposes memory for a read.
    pub fn sink(&self, len: usize) -> Stag {
        let buffers: Vec<_> = pool::alloc_many(len.max(1)).expect("buffers").into_iter().collect();
        let buffers = buffers.into_iter().map(|mut buffer| {
            buffer.fill(0xee);
            buffer
        });
        self.pair.expose(buffers, Rights::Write).expect("an STag")
    }

    /// Takes back memory exposed for a read.
    pub fn take(&self, stag: Stag) -> Vec<u8> {
        let withdrawn = self.pair.withdraw(stag).expect("it is exposed");
        withdrawn.buffers.iter().flat_map(|buffer| buffer.iter().copied()).collect()
    }

    /// Runs a write whose first `immediate` bytes go with the command, like Linux: the base offset
    /// counts them.
    pub async fn write(&mut self, lun: u16, cdb: &[u8], data: &[u8], immediate: usize) -> Message {
        let (command, stag) = self.start_write(lun, cdb, data, immediate);
        let message = self.answer(command.itt.get()).await;
        self.pair.withdraw(stag).expect("it is exposed");
        message
    }

    /// Sends a command that writes.
    pub fn start_write(
        &mut self,
        lun: u16,
        cdb: &[u8],
        data: &[u8],
        immediate: usize,
    ) -> (ScsiCommand, Stag) {
        let mut command = self.command(lun, cdb);
        command.set_write(true);
        command.edtl.set(data.len() as u32);
        let stag = self.pair.expose_source(chain(data)).expect("an STag");
        let write = (immediate < data.len()).then(|| at(stag, immediate as u64));
        self.send(Control { read: None, write }, command.into(), &data[..immediate]);
        (command, stag)
    }

    /// Takes the unit attention that a new session finds.
    pub async fn settle(&mut self, lun: u16) {
        loop {
            let command = self.command(lun, &[0; 6]);
            self.send(Control::default(), command.into(), &[]);
            if self.answer(command.itt.get()).await.status().0 == 0 {
                return;
            }
        }
    }

    /// Whether the connection answers a ping.
    pub async fn is_alive(&mut self) -> bool {
        let itt = self.tag();
        let mut ping = iscsi::pdu::NopOut::ping(itt);
        ping.cmd_sn.set(self.cmd_sn);
        self.send(Control::default(), ping.into(), &[]);
        self.receive().await.is_some_and(|message| message.bhs.opcode() == Some(Opcode::NopIn))
    }
}

pub fn at(stag: Stag, offset: u64) -> iser::Remote {
    iser::Remote { stag: stag.0, offset }
}

/// Parses a message.
pub fn parse(message: &[u8], invalidated: Option<Stag>) -> Message {
    let header = Header::decode(message).expect("an iSER header");
    assert_eq!(header, Header::Control(Control::default()), "a target names no memory");
    let layout = Layout::of(message, message.len(), Limits { data: 8192, ahs: 0 }).expect("a whole PDU");
    let bhs = *Bhs::ref_from(&message[HEADER_LEN..HEAD_LEN]).expect("a BHS");
    Message { bhs, data: message[layout.data].to_vec(), invalidated }
}
