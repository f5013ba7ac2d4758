//! Sessions: commands in, answers out, over connections that are made anew when they are lost.
//!
//! What the protocol demands is decided by [`iscsi::initiator`]; this owns sockets, time and waiting tasks.

mod event;
mod iser;
mod mend;
mod notice;
mod pilot;
mod queue;
mod refusal;
mod state;
mod supervise;
mod tcp;
mod ticket;

use std::rc::Rc;
use std::time::Duration;

use iscsi::initiator::{Command as ProtocolCommand, Recoveries};
use iscsi::keys::Params;
use iscsi::login::initiator::Chap;
use iscsi::pdu::{
    Isid, LogoutReason, Lun, Residual, TaskAttribute, TaskManagementFunction, TaskManagementResult,
};
use ring::{Chain, pool};
use smallvec::SmallVec;

use crate::dial::Portal;
use crate::error::{Error, ScsiError};
use crate::options::Options;
use crate::payload::{Data, Destination};
use crate::url::{Transport, Url};
pub use queue::{Completed, Queue, Transfer};
use state::Inner;
pub use ticket::Ticket;

/// The longest read that a command may ask for, bytes.
pub const MAX_READ: u32 = 64 << 20;

/// A SCSI command for [`Session::start`].
#[derive(Debug, Clone)]
pub struct Command {
    /// The logical unit.
    pub lun: Lun,
    /// 6 to 260 bytes.
    pub cdb: SmallVec<[u8; 16]>,
    /// The task attribute.
    pub attribute: TaskAttribute,
    /// What it writes; `None` if it writes nothing.
    pub write: Option<Chain>,
    /// Bytes that it reads at most; `None` if it reads nothing.
    pub read_len: Option<u32>,
    /// Whether it may be sent again when its session was lost and nobody knows whether it ran. Right for reads and
    /// plain writes, wrong for what reads and changes at once.
    pub repeatable: bool,
}

impl Command {
    /// A command without data, which may be repeated.
    pub fn new(lun: Lun, cdb: &[u8]) -> Self {
        let attribute = TaskAttribute::Simple;
        Command { lun, cdb: cdb.into(), attribute, write: None, read_len: None, repeatable: true }
    }

    /// With data to read, at most `len` bytes.
    #[must_use]
    pub fn reading(self, len: u32) -> Self {
        Command { read_len: Some(len), ..self }
    }

    /// With data to write.
    #[must_use]
    pub fn writing(self, data: impl Into<Chain>) -> Self {
        Command { write: Some(data.into()), ..self }
    }

    /// Not to be repeated.
    #[must_use]
    pub fn once(self) -> Self {
        Command { repeatable: false, ..self }
    }
}

/// How a command ended.
#[derive(Debug, Clone)]
pub struct Response {
    /// The SCSI status.
    pub status: u8,
    /// Sense data as they came; empty if there are none.
    pub sense: Vec<u8>,
    /// What was read.
    pub data: Chain,
    /// Of the write, or of the read if there is no write.
    pub residual: Residual,
    /// Of the read of a command that does both.
    pub read_residual: Residual,
}

impl Response {
    /// Itself if the status is GOOD or CONDITION MET.
    ///
    /// # Errors
    /// [`Error::Scsi`] with the status and the sense data otherwise.
    pub fn ok(self) -> Result<Self, Error> {
        match self.status {
            0x00 | 0x04 => Ok(self),
            status => {
                let sense = scsi::Sense::parse(&self.sense);
                Err(Error::Scsi(Box::new(ScsiError { status, sense })))
            }
        }
    }
}

/// A session with a target: one or more connections, many commands at once. Clones are handles to the same session, which
/// lives as long as one of them; [`Session::close`] logs it out properly.
///
/// It belongs to the thread, and the [`ring::Runtime`], that made it.
#[derive(Clone)]
pub struct Session {
    owner: Rc<Owner>,
}

/// Ends the session's tasks with its last handle.
struct Owner(Rc<Inner>);

impl Drop for Owner {
    fn drop(&mut self) {
        self.0.shut(Error::Closed);
    }
}

impl Session {
    /// Logs in to the target in the URL.
    ///
    /// # Errors
    /// Any [`Error`] of connecting and logging in; [`Error::Argument`] if the URL names no target.
    pub async fn connect(url: &Url, options: Options) -> Result<Session, Error> {
        let Some(target) = url.target.clone() else {
            return Err(Error::Argument("the URL names no target"));
        };
        let options = url.settings.applied(options);
        let chap = chap_of(url, &options);
        let inner = Rc::new(Inner::new(options, chap, Portal::from(url), target, isid()?));
        // Whatever happens from here on, dropping the owner ends the tasks.
        let session = Session { owner: Rc::new(Owner(inner.clone())) };
        inner.establish().await?;
        inner.start_supervisor();
        inner.start_pilot();
        Ok(session)
    }

    fn inner(&self) -> &Rc<Inner> {
        &self.owner.0
    }

    /// Runs a command to its end. Any SCSI status is an answer; see [`Response::ok`].
    ///
    /// # Errors
    /// As [`Session::start`] and [`Ticket`].
    pub async fn execute(&self, command: Command) -> Result<Response, Error> {
        self.start(command).await?.await
    }

    /// Starts a command and answers as soon as it has its place in the queue; the [`Ticket`] waits for its end. Starting
    /// many before awaiting the first puts many PDUs into one send. Waits while as many are under way as
    /// [`Options::queue_depth`] allows.
    ///
    /// # Errors
    /// [`Error::Argument`] for a CDB of a wrong length or a read of more than [`MAX_READ`]; whatever ended the session.
    pub async fn start(&self, command: Command) -> Result<Ticket, Error> {
        let inner = self.inner();
        if !(6..=260).contains(&command.cdb.len()) {
            return Err(Error::Argument("a CDB has 6 to 260 bytes"));
        }
        let destination = match command.read_len {
            None | Some(0) => Destination::Nothing,
            Some(len) if len > MAX_READ => return Err(Error::Argument("the read is too long")),
            Some(len) if len as usize <= pool::MAX_ALLOC => {
                let mut buf = pool::alloc_wait(len as usize).await;
                buf.set_len(len as usize);
                Destination::Pool(buf)
            }
            Some(len) if inner.home.transport == Transport::Iser => long_destination(len as usize).await?,
            Some(_) => Destination::Heap(Vec::new()),
        };
        inner.room.until(|| inner.has_room()).await;
        inner.check_open()?;
        let protocol = ProtocolCommand {
            lun: command.lun,
            attribute: command.attribute,
            cdb: &command.cdb,
            write: command.write.map(Data),
            read_len: command.read_len,
            may_repeat: command.repeatable,
        };
        let write_len = protocol.write.as_ref().map_or(0, |data: &Data| data.0.len());
        inner.submit(destination, write_len, |proto, task| proto.submit(protocol, task))
    }

    /// Sends a task management function to a unit, over the first connection.
    ///
    /// # Errors
    /// Whatever ended the session, or [`Error::TimedOut`].
    pub async fn task_management(
        &self,
        function: TaskManagementFunction,
        lun: Lun,
    ) -> Result<Option<TaskManagementResult>, Error> {
        let inner = self.inner();
        let on = inner.first_link().ok_or(Error::Lost("no connection at the moment".to_owned()))?;
        let ticket = inner.submit(Destination::Nothing, 0, |proto, task| {
            proto.task_management(on, function, lun, None, task)
        })?;
        let limit = inner.options.command_timeout;
        let response =
            ring::timeout(limit, ticket).await.unwrap_or(Err(Error::TimedOut("task management")))?;
        Ok(TaskManagementResult::from_code(response.status))
    }

    /// The numbers of the target's units, as REPORT LUNS tells them.
    ///
    /// # Errors
    /// Any [`Error`].
    pub async fn report_luns(&self) -> Result<Vec<Lun>, Error> {
        let mut len = 4096;
        loop {
            let cdb = scsi::cdb::build::report_luns(0, len);
            let command = Command::new(Lun::ZERO, &cdb).reading(len);
            let data = self.execute_patiently(command).await?.data.to_vec();
            let (luns, _) = scsi::data::luns::parse(&data).ok_or(Error::Data("REPORT LUNS"))?;
            let said = data.get(..4).and_then(|d| d.try_into().ok()).map_or(0, u32::from_be_bytes);
            if said > len - 8 && len < 1 << 20 {
                len = said.saturating_add(8).min(1 << 20);
                continue;
            }
            return Ok(luns.into_iter().map(Lun).collect());
        }
    }

    /// Runs a command that may be repeated until it neither meets a unit attention nor a busy unit.
    ///
    /// # Errors
    /// Any [`Error`], [`Error::Scsi`] included.
    pub(crate) async fn execute_patiently(&self, command: Command) -> Result<Response, Error> {
        let mut patience = Patience::default();
        loop {
            match self.execute(command.clone()).await?.ok() {
                Ok(response) => return Ok(response),
                Err(error) => patience.wait(error).await?,
            }
        }
    }

    /// What login agreed on, of the newest session if it was made anew.
    pub fn params(&self) -> Params {
        self.inner().params()
    }

    /// Connections at the moment; 0 while the session is being made anew.
    pub fn connections(&self) -> usize {
        self.inner().link_count()
    }

    /// How often the session was lost and made anew.
    pub fn reconnects(&self) -> u64 {
        self.inner().reconnects()
    }

    /// What error recovery had to do, within sessions and with their connections.
    pub fn recoveries(&self) -> Recoveries {
        self.inner().recoveries()
    }

    /// TargetAlias, if the target has one.
    pub fn target_alias(&self) -> Option<String> {
        self.inner().target_alias()
    }

    /// The target's name.
    pub fn target(&self) -> &str {
        &self.inner().target
    }

    /// Logs out and ends the session; commands under way end with [`Error::Closed`]. Other handles see the same.
    ///
    /// # Errors
    /// [`Error::TimedOut`] if the target does not answer the logout; the session is closed all the same.
    pub async fn close(&self) -> Result<(), Error> {
        let inner = self.inner();
        let Some(on) = inner.first_link() else {
            inner.shut(Error::Closed);
            return Ok(());
        };
        inner.begin_closing();
        let logout = inner.submit(Destination::Nothing, 0, |proto, task| {
            // After a logout no request may follow (RFC 7143 §11.14): what waits for the window is not sent any more.
            proto.hold(true);
            proto.logout(on, LogoutReason::CloseSession, task)
        });
        let answer = match logout {
            Ok(ticket) => {
                let limit = inner.options.connect_timeout.min(Duration::from_secs(5));
                ring::timeout(limit, ticket).await.map_err(|_| Error::TimedOut("logout"))
            }
            Err(e) => Ok(Err(e)),
        };
        inner.shut(Error::Closed);
        match answer {
            // A target may close the connection in place of an answer: the session has ended as it should.
            Ok(Ok(_) | Err(Error::Closed | Error::Lost(_))) => Ok(()),
            Ok(Err(e)) | Err(e) => Err(e),
        }
    }
}

impl std::fmt::Debug for Session {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Session({} at {})", self.target(), self.inner().portal())
    }
}

/// Memory for a read of more than the pool has in one piece, all of it at once: who had a part and waited for the rest
/// might wait for somebody who does the same.
async fn long_destination(len: usize) -> Result<Destination, Error> {
    loop {
        if let Some(destination) = Destination::in_pieces(len) {
            return Ok(destination);
        }
        if pool::stats().limit < len {
            return Err(Error::Argument("the read is longer than all buffers are together"));
        }
        ring::sleep(Duration::from_millis(1)).await;
    }
}

/// How long to bear with a unit that says "not now".
#[derive(Debug, Default)]
pub(crate) struct Patience {
    attentions: u32,
    busy: u32,
}

impl Patience {
    /// Answers whether to try again, after a while if the unit is busy.
    pub async fn wait(&mut self, error: Error) -> Result<(), Error> {
        const MAX_ATTENTIONS: u32 = 16;
        const MAX_BUSY: u32 = 10;
        if error.sense_key() == Some(scsi::SenseKey::UnitAttention) && self.attentions < MAX_ATTENTIONS {
            self.attentions += 1;
            return Ok(());
        }
        let busy = matches!(&error, Error::Scsi(e) if e.status == 0x08 || e.status == 0x28);
        if busy && self.busy < MAX_BUSY {
            ring::sleep(Duration::from_millis(10 << self.busy)).await;
            self.busy += 1;
            return Ok(());
        }
        Err(error)
    }
}

/// A random initiator session ID (RFC 7143 §11.12.5).
pub(crate) fn isid() -> Result<Isid, Error> {
    let mut random = [0; 5];
    iscsi::chap::os_random(&mut random).map_err(|_| Error::Argument("the system has no randomness"))?;
    let [a, b, c, q0, q1] = random;
    Ok(Isid::random([a, b, c], u16::from_be_bytes([q0, q1])))
}

/// CHAP by the options, with the URL's credential before theirs.
pub(crate) fn chap_of(url: &Url, options: &Options) -> Option<Chap> {
    match (&url.credential, &options.chap) {
        (None, chap) => chap.clone(),
        (Some(credential), None) => {
            Some(Chap { credential: credential.clone(), target: None, hashes: Vec::new() })
        }
        (Some(credential), Some(chap)) => Some(Chap { credential: credential.clone(), ..chap.clone() }),
    }
}
