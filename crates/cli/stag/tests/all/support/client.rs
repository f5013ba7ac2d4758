//! A blocking iSCSI client of one connection with many commands in flight: the protocol crate's
//! state machine over a socket. It never logs in again by itself, since tests want to see
//! connections end.

use std::collections::VecDeque;
use std::io::{self, ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use iscsi::frame::{Digests, emit_pdu};
use iscsi::initiator::{Command, ConnectionId, Event, Place, Segment, Session, SessionConfig};
use iscsi::keys::Offer;
use iscsi::login::initiator::{Config, Established, InitiatorLogin, Step};
use iscsi::pdu::{Bhs, Isid, Lun, PduRef, ResponseCode, TaskAttribute};
use iscsi::stream::{Assembler, Limits};

/// Timeout of an answer.
const PATIENCE: Duration = Duration::from_secs(60);
const READ_SEGMENT: u32 = 262_144;

pub const GOOD: u8 = 0x00;
pub const CHECK_CONDITION: u8 = 0x02;
pub const RESERVATION_CONFLICT: u8 = 0x18;
const UNIT_ATTENTION: u8 = 6;

/// A command in flight.
pub struct Task {
    id: u64,
    data: Vec<u8>,
}

impl Place<&[u8]> for Task {
    fn place(&mut self, offset: usize, data: &[u8]) {
        self.data.place(offset, data);
    }
}

/// The result of a command.
#[derive(Clone, Debug)]
pub struct Answer {
    /// The id that [`Client::submit`] returned.
    pub id: u64,
    /// SAM status.
    pub status: u8,
    pub sense: Vec<u8>,
    pub data: Vec<u8>,
}

impl Answer {
    /// SENSE KEY, 0 if there is no sense.
    pub fn sense_key(&self) -> u8 {
        match self.sense.first().map(|code| code & 0x7f) {
            Some(0x72 | 0x73) => self.sense.get(1).map_or(0, |byte| byte & 0x0f),
            Some(_) => self.sense.get(2).map_or(0, |byte| byte & 0x0f),
            None => 0,
        }
    }

    /// ADDITIONAL SENSE CODE and its qualifier, zeros if there are none.
    pub fn additional(&self) -> (u8, u8) {
        let at = match self.sense.first().map(|code| code & 0x7f) {
            Some(0x72 | 0x73) => 2,
            _ => 12,
        };
        self.sense.get(at..at + 2).map_or((0, 0), |bytes| (bytes[0], bytes[1]))
    }
}

pub struct Client {
    stream: TcpStream,
    session: Session<Vec<u8>, Task>,
    on: ConnectionId,
    pdus: Assembler,
    answers: VecDeque<Answer>,
    next_id: u64,
}

impl Client {
    /// Logs in to `target` as `initiator`, whose initiator port is the same each time.
    pub fn login(portal: SocketAddr, target: &str, initiator: &str) -> io::Result<Self> {
        let mut stream = TcpStream::connect_timeout(&portal, PATIENCE)?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(PATIENCE))?;
        stream.set_write_timeout(Some(PATIENCE))?;
        let mut pdus = Assembler::new(Limits::LOGIN);
        let login = Self::negotiate(&mut stream, &mut pdus, target, initiator)?;
        let mut session = Session::new(SessionConfig { max_tasks: 1024, first_cmd_sn: 1 });
        let on = session.connect(0, &login);
        pdus.set_limits(Limits::of_initiator(&login.params));
        Ok(Self { stream, session, on, pdus, answers: VecDeque::new(), next_id: 0 })
    }

    fn negotiate(
        stream: &mut TcpStream,
        pdus: &mut Assembler,
        target: &str,
        initiator: &str,
    ) -> io::Result<Established> {
        let mut login = InitiatorLogin::new(Config {
            initiator: initiator.to_owned(),
            alias: None,
            target: Some(target.to_owned()),
            isid: Isid::random([1, 2, 3], 0),
            tsih: 0,
            cid: 0,
            cmd_sn: 1,
            itt: 0,
            chap: None,
            offer: Offer { max_recv_data_segment_length: READ_SEGMENT, ..Offer::default() },
            session: None,
            skip_security: true,
        });
        let mut request = login.start();
        loop {
            let mut bytes = Vec::new();
            emit_pdu(&mut Bhs::from(request.header), &[], &request.data, Digests::default(), &mut bytes);
            stream.write_all(&bytes)?;
            let (bhs, data) = next_pdu(stream, pdus)?;
            let Some(PduRef::LoginResponse(response)) = bhs.view() else {
                return Err(broken("no Login Response"));
            };
            request = match login.handle(response, &data).map_err(broken)? {
                Step::Send(request) => request,
                Step::Done(established) => return Ok(*established),
                Step::Moved { address, .. } => return Err(broken(format!("moved to {address}"))),
            };
        }
    }

    /// Queues a command for LUN 0; [`Self::answers`] sends it.
    pub fn submit(&mut self, cdb: &[u8], write: Option<Vec<u8>>, read_len: Option<u32>) -> u64 {
        self.next_id += 1;
        let command = Command {
            lun: Lun::ZERO,
            attribute: TaskAttribute::Simple,
            cdb,
            write,
            read_len,
            may_repeat: false,
        };
        let task = Task { id: self.next_id, data: Vec::new() };
        assert!(self.session.submit(command, task).is_ok(), "too many commands at once");
        self.next_id
    }

    /// Commands in flight.
    pub fn outstanding(&self) -> usize {
        self.session.len()
    }

    /// Sends what is queued.
    pub fn send(&mut self) -> io::Result<()> {
        let mut bytes = Wire(Vec::new());
        self.session.transmit(self.on, usize::MAX, &mut bytes);
        self.stream.write_all(&bytes.0)
    }

    /// Sends what is queued, and waits for an answer.
    ///
    /// # Errors
    /// The connection ends, or nothing arrives within the timeout.
    pub fn answer(&mut self) -> io::Result<Answer> {
        loop {
            if let Some(answer) = self.answers.pop_front() {
                return Ok(answer);
            }
            self.send()?;
            self.hear()?;
        }
    }

    /// Reads the answers that were sent before the connection ended, without sending anything more.
    pub fn last_words(&mut self) -> Vec<Answer> {
        while self.hear().is_ok() {}
        self.answers.drain(..).collect()
    }

    /// Runs one command, alone. After a unit attention, sends the command again.
    pub fn run(&mut self, cdb: &[u8], write: Option<Vec<u8>>, read_len: Option<u32>) -> io::Result<Answer> {
        loop {
            let id = self.submit(cdb, write.clone(), read_len);
            let answer = self.answer()?;
            assert_eq!(answer.id, id, "no other command is on its way");
            if answer.status != CHECK_CONDITION || answer.sense_key() != UNIT_ATTENTION {
                return Ok(answer);
            }
        }
    }

    fn hear(&mut self) -> io::Result<()> {
        let (bhs, data) = next_pdu(&mut self.stream, &mut self.pdus)?;
        match self.session.handle(self.on, &bhs, Segment::Here(data.as_slice())).map_err(broken)? {
            Some(Event::Done(_, task, completion)) => {
                if completion.response != ResponseCode::CommandCompleted {
                    return Err(broken("the target failed"));
                }
                let (status, sense) = (completion.status, completion.sense);
                self.answers.push_back(Answer { id: task.id, status, sense, data: task.data });
            }
            Some(Event::Rejected(reason, _)) => return Err(broken(format!("rejected: {reason:?}"))),
            _ => {}
        }
        Ok(())
    }
}

fn broken(what: impl ToString) -> io::Error {
    io::Error::new(ErrorKind::InvalidData, what.to_string())
}

fn next_pdu(stream: &mut TcpStream, pdus: &mut Assembler) -> io::Result<(Bhs, Vec<u8>)> {
    loop {
        if let Some(pdu) = pdus.next_pdu().map_err(broken)? {
            return Ok((pdu.bhs, pdu.data));
        }
        let mut piece = [0; 65536];
        match stream.read(&mut piece)? {
            0 => return Err(ErrorKind::UnexpectedEof.into()),
            n => pdus.push(&piece[..n]),
        }
    }
}

/// Bytes to be sent.
struct Wire(Vec<u8>);

impl iscsi::target::Sink<Vec<u8>> for Wire {
    fn bytes(&mut self, bytes: &[u8]) {
        self.0.extend_from_slice(bytes);
    }
    fn payload(&mut self, payload: Vec<u8>) {
        self.0.extend_from_slice(&payload);
    }
}
