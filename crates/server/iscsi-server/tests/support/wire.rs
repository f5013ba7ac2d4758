//! A blocking iSER initiator for tests, with an iWARP of its own. It gives its answers to the
//! target's RDMA Reads to the test as bytes. The test may send them in any pieces, cut into other
//! FPDUs, late, damaged, or never. It only writes.

use std::collections::{BTreeMap, VecDeque};
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};

use iscsi::login::initiator::{Config, Established, InitiatorLogin, Step as LoginStep};
use iscsi::pdu::{Bhs, Lun, NopOut, Opcode, ScsiCommand, TaskAttribute};
use iser::Control;
use iwarp::crc::crc32c;
use iwarp::mpa::{self, CrcPolicy, Reply, Requester};
use iwarp::stag::{Registration, Rights};
use iwarp::stream::{Event, Options, Place, SendFlags, Step, Stream};

use super::iser::{LINUX, Message, at, parse};

/// An event from the target.
enum Happening {
    Message(Message),
    /// An RDMA Read, and the bytes that answer it.
    Asked(Vec<u8>),
    /// The connection has ended.
    Over,
}

pub struct Wire {
    pub socket: TcpStream,
    stream: Stream,
    input: Vec<u8>,
    /// The received part of a message.
    message: Vec<u8>,
    /// Memory that the target may read, by STag.
    memory: BTreeMap<u32, Vec<u8>>,
    asked: VecDeque<Vec<u8>>,
    early: VecDeque<Message>,
    pub session: Option<Established>,
    pub crc: bool,
    pub cmd_sn: u32,
    itt: u32,
}

impl Wire {
    /// Connects and logs in; FPDUs are as long as possible.
    pub fn login(to: SocketAddr, number: u8, crc: bool) -> Self {
        Self::login_as(to, super::Client::config(number), crc)
    }

    pub fn login_as(to: SocketAddr, config: Config, crc: bool) -> Self {
        let mut wire = Self::connect(to, crc);
        wire.log_in(config);
        wire
    }

    /// Only connects.
    pub fn connect(to: SocketAddr, crc: bool) -> Self {
        let mut socket = TcpStream::connect(to).expect("the portal listens");
        socket.set_read_timeout(Some(super::PATIENCE)).expect("a timeout can be set");
        socket.set_nodelay(true).expect("it can be set");
        let policy = if crc { CrcPolicy::Require } else { CrcPolicy::Never };
        let options = mpa::Options { crc: policy, ird: 64, ord: 1, ..mpa::Options::default() };
        let mut requester = Requester::new(options, &LINUX.encode()).expect("it fits");
        socket.write_all(requester.request()).expect("the target reads");
        let mut input = Vec::new();
        let agreed = loop {
            let mut rest = &input[..];
            let reply = requester.receive(&mut rest).expect("a reply");
            let left = rest.len();
            input.drain(..input.len() - left);
            match reply {
                Some(Reply::Accepted { agreed, .. }) => break agreed,
                Some(Reply::Rejected { .. }) => panic!("the portal takes iSER"),
                None => assert!(receive(&mut socket, &mut input), "the target closed the connection"),
            }
        };
        assert_eq!(agreed.crc, crc);
        let options = Options { receive_size: 76 + 8192 + 4, ..Options::new([7; 16]) };
        let mut stream = Stream::new(&agreed, &options);
        stream.post_receives(300);
        let mut wire = Self {
            socket,
            stream,
            input,
            message: Vec::new(),
            memory: BTreeMap::new(),
            asked: VecDeque::new(),
            early: VecDeque::new(),
            session: None,
            crc,
            cmd_sn: 1,
            itt: 100,
        };
        let mut out = Vec::new();
        wire.stream.start::<Vec<u8>>(&mut out);
        wire.send_bytes(&out);
        wire
    }

    fn log_in(&mut self, mut config: Config) {
        config.offer = config.offer.over_rdma();
        let mut login = InitiatorLogin::new(config);
        let mut request = login.start();
        loop {
            self.send(Control::default(), request.header.into(), &request.data);
            let reply = self.receive().expect("the target answers");
            match login.handle(reply.bhs.as_login_response(), &reply.data).expect("the login succeeds") {
                LoginStep::Send(next) => request = next,
                LoginStep::Done(established) => {
                    self.cmd_sn = established.exp_cmd_sn;
                    self.session = Some(*established);
                    return;
                }
                other => panic!("{other:?}"),
            }
        }
    }

    /// Sends bytes of the stream as they are.
    pub fn send_bytes(&mut self, bytes: &[u8]) {
        self.socket.write_all(bytes).expect("the target reads");
    }

    /// Sends one PDU.
    pub fn send(&mut self, control: Control, mut bhs: Bhs, data: &[u8]) {
        bhs.set_data_segment_len(data.len());
        let bytes = self.message([&control.encode()[..], bhs.bytes(), data].concat());
        self.send_bytes(&bytes);
    }

    /// Sends the beginning of a message, in one segment that is not its last (RFC 5041 §4.1). Only
    /// without CRCs.
    pub fn send_beginning(&mut self, beginning: Vec<u8>) {
        let mut bytes = self.message(beginning);
        assert!(!self.crc && fpdus(&bytes).len() == 1);
        bytes[2] &= !0x40;
        self.send_bytes(&bytes);
    }

    fn message(&mut self, message: Vec<u8>) -> Vec<u8> {
        let mut out = Vec::new();
        self.stream.send(message, SendFlags::default(), &mut out).expect("the stream is open");
        out
    }

    /// Receives until there is an event.
    fn happening(&mut self) -> Happening {
        loop {
            let mut rest = &self.input[..];
            let step = self.stream.step(&mut rest).expect("the target keeps to the rules");
            let took = match step {
                Step::Payload { here, place, .. } => {
                    assert_eq!(place, Place::Receive, "nothing else was asked for");
                    self.message.extend_from_slice(&rest[..here]);
                    self.stream.took(&rest[..here]);
                    here
                }
                _ => 0,
            };
            let left = rest.len() - took;
            self.input.drain(..self.input.len() - left);
            match step {
                Step::More | Step::Payload { here: 0, .. } => {
                    if !receive(&mut self.socket, &mut self.input) {
                        return Happening::Over;
                    }
                }
                Step::Payload { .. } => {}
                Step::Event(Event::Received { invalidated, .. }) => {
                    self.stream.post_receives(1);
                    let message = std::mem::take(&mut self.message);
                    let invalidated = invalidated.map(|gone| rdma::Stag(gone.stag.0));
                    return Happening::Message(parse(&message, invalidated));
                }
                Step::Event(Event::ReadRequest { index, offset, len }) => {
                    let memory = self.memory.get(&index).expect("what it names is exposed");
                    let data = memory[offset as usize..][..len as usize].to_vec();
                    let mut out = Vec::new();
                    self.stream.read_response(data, &mut out).expect("it was asked for");
                    return Happening::Asked(out);
                }
                Step::Event(event) => {
                    println!("the connection ends: {event:?}");
                    return Happening::Over;
                }
            }
        }
    }

    /// The next PDU; `None` when the connection has ended.
    pub fn receive(&mut self) -> Option<Message> {
        if let Some(message) = self.early.pop_front() {
            return Some(message);
        }
        loop {
            match self.happening() {
                Happening::Message(message) => return Some(message),
                Happening::Asked(bytes) => self.asked.push_back(bytes),
                Happening::Over => return None,
            }
        }
    }

    /// The answer with this tag; others are kept for [`Self::receive`].
    pub fn answer(&mut self, itt: u32) -> Message {
        let mut others = VecDeque::new();
        loop {
            let message = self.receive().expect("an answer");
            if message.bhs.itt() == itt {
                others.append(&mut self.early);
                self.early = others;
                return message;
            }
            others.push_back(message);
        }
    }

    /// Bytes that answer the target's next RDMA Read.
    pub fn asked(&mut self) -> Vec<u8> {
        if let Some(bytes) = self.asked.pop_front() {
            return bytes;
        }
        loop {
            match self.happening() {
                Happening::Asked(bytes) => return bytes,
                Happening::Message(message) => self.early.push_back(message),
                Happening::Over => panic!("the target has asked for nothing"),
            }
        }
    }

    /// Whether the target has sent an RDMA Read that was seen here and not answered.
    pub fn is_asked(&self) -> bool {
        !self.asked.is_empty()
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

    /// Sends a command that writes `data`, whose first `immediate` bytes go with it.
    pub fn write(&mut self, lun: u16, cdb: &[u8], data: &[u8], immediate: usize) -> ScsiCommand {
        let mut command = self.command(lun, cdb);
        command.set_write(true);
        command.edtl.set(data.len() as u32);
        let write = (immediate < data.len()).then(|| self.expose(data, immediate));
        self.send(Control { read: None, write }, command.into(), &data[..immediate]);
        command
    }

    /// Lets the target read `data`; returns its STag and offset, from byte `base` on.
    pub fn expose(&mut self, data: &[u8], base: usize) -> iser::Remote {
        // Each under an index of its own: a used one is not requested again.
        let index = self.memory.len() as u32;
        let rights = Rights::REMOTE_READ | Rights::REMOTE_INVALIDATE;
        let domain = self.stream.domain();
        let registration = Registration { index, base: 0, len: data.len() as u64, rights, domain };
        let stag = self.stream.register(registration).expect("there is room");
        self.memory.insert(index, data.to_vec());
        at(rdma::Stag(stag.0), base as u64)
    }

    /// Waits for the end of a command, which must be GOOD.
    pub fn good(&mut self, command: &ScsiCommand) {
        let (status, sense) = self.answer(command.itt.get()).status();
        assert_eq!(status, 0, "{sense:02x?}");
    }

    /// Takes the unit attention that a new session finds.
    pub fn settle(&mut self, lun: u16) {
        loop {
            let command = self.command(lun, &[0; 6]);
            self.send(Control::default(), command.into(), &[]);
            if self.answer(command.itt.get()).status().0 == 0 {
                return;
            }
        }
    }

    /// Returns when the target has taken in all that was sent before.
    pub fn ping(&mut self) {
        let itt = self.tag();
        let mut ping = NopOut::ping(itt);
        ping.as_bhs_mut().set_immediate(true);
        ping.cmd_sn.set(self.cmd_sn);
        self.send(Control::default(), ping.into(), &[]);
        assert_eq!(self.answer(itt).bhs.opcode(), Some(Opcode::NopIn));
    }
}

/// Receives the bytes that have come. False: the stream has ended.
fn receive(socket: &mut TcpStream, input: &mut Vec<u8>) -> bool {
    let mut piece = [0; 65536];
    loop {
        match socket.read(&mut piece) {
            Ok(0) => return false,
            Ok(n) => {
                input.extend_from_slice(&piece[..n]);
                return true;
            }
            Err(error) if error.kind() == std::io::ErrorKind::ConnectionReset => return false,
            Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
            Err(error) => panic!("nothing came: {error}"),
        }
    }
}

/// Bytes before an FPDU's payload that is an RDMA Read's: the ULPDU's length and a tagged header
/// (RFC 5044 §4.1, RFC 5041 §4.2).
pub const HEAD: usize = 2 + 14;

/// Ranges of the FPDUs in a stream that consists of tagged segments only.
pub fn fpdus(bytes: &[u8]) -> Vec<std::ops::Range<usize>> {
    let mut all = Vec::new();
    let mut start = 0;
    while start < bytes.len() {
        let ulpdu = usize::from(u16::from_be_bytes([bytes[start], bytes[start + 1]]));
        let end = start + (2 + ulpdu).next_multiple_of(4) + 4;
        all.push(start..end);
        start = end;
    }
    all
}

/// The payload of an FPDU of a tagged segment.
pub fn payload(fpdu: &[u8]) -> &[u8] {
    let ulpdu = usize::from(u16::from_be_bytes([fpdu[0], fpdu[1]]));
    &fpdu[HEAD..2 + ulpdu]
}

/// The same answer to an RDMA Read in FPDUs with payloads of the lengths in `len`.
pub fn recut(bytes: &[u8], crc: bool, mut len: impl FnMut() -> usize) -> Vec<u8> {
    let data: Vec<u8> = fpdus(bytes).into_iter().flat_map(|fpdu| payload(&bytes[fpdu]).to_vec()).collect();
    let first = u64::from_be_bytes(bytes[8..16].try_into().expect("eight bytes"));
    let mut out = Vec::new();
    let mut done = 0;
    while done < data.len() {
        let now = len().min(data.len() - done);
        let start = out.len();
        out.extend_from_slice(&((14 + now) as u16).to_be_bytes());
        // DDP's control field has the L bit in the last segment only (RFC 5041 §4.1); RDMAP's is
        // that of the first.
        let last = if done + now == data.len() { 0x40 } else { 0 };
        out.extend_from_slice(&[bytes[2] & !0x40 | last, bytes[3]]);
        out.extend_from_slice(&bytes[4..8]);
        out.extend_from_slice(&(first + done as u64).to_be_bytes());
        out.extend_from_slice(&data[done..done + now]);
        out.resize(start + (out.len() - start).next_multiple_of(4), 0);
        let sum = if crc { crc32c(&out[start..]) } else { [0; 4] };
        out.extend_from_slice(&sum);
        done += now;
    }
    out
}
