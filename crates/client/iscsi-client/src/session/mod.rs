//! Sessions: run commands over connections, and reconnect after a loss.
//!
//! [`iscsi::initiator`] implements the protocol; this crate owns sockets, time and waiting tasks.

mod event;
mod iser;
mod mend;
mod notice;
mod pilot;
mod queue;
mod queued;
mod reach;
mod refusal;
mod state;
mod supervise;
mod tcp;
mod ticket;

use std::rc::Rc;
use std::time::Duration;

use iscsi::initiator::{Command as ProtocolCommand, ConnectionId, Recoveries, TaskKey};
use iscsi::keys::Params;
use iscsi::login::initiator::Chap;
use iscsi::pdu::{
    Isid, LogoutReason, Lun, Residual, TaskAttribute, TaskManagementFunction, TaskManagementResult,
};
use runtime::{Chain, pool};
use smallvec::SmallVec;

use crate::dial::Portal;
use crate::error::{Error, ScsiError};
use crate::options::Options;
use crate::payload::{Data, Destination};
use crate::url::{Transport, Url};
pub use queue::{Queue, Transfer};
pub use queued::Completed;
use state::Inner;
pub use ticket::Ticket;

/// The longest read of a command, bytes.
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
    /// Data to write; `None` for none.
    pub write: Option<Chain>,
    /// Maximum bytes to read; `None` for none.
    pub read_len: Option<u32>,
    /// Whether to resend it after its session was lost, when it may already have run. Right for
    /// reads and plain writes, wrong for read-modify-write commands.
    pub repeatable: bool,
}

impl Command {
    /// A repeatable command without data.
    pub fn new(lun: Lun, cdb: &[u8]) -> Self {
        let attribute = TaskAttribute::Simple;
        Command { lun, cdb: cdb.into(), attribute, write: None, read_len: None, repeatable: true }
    }

    /// Adds a read of at most `len` bytes.
    #[must_use]
    pub fn reading(self, len: u32) -> Self {
        Command { read_len: Some(len), ..self }
    }

    /// Adds data to write.
    #[must_use]
    pub fn writing(self, data: impl Into<Chain>) -> Self {
        Command { write: Some(data.into()), ..self }
    }

    /// Makes it non-repeatable.
    #[must_use]
    pub fn once(self) -> Self {
        Command { repeatable: false, ..self }
    }
}

/// The end of a command.
#[derive(Debug, Clone)]
pub struct Response {
    /// The SCSI status.
    pub status: u8,
    /// Sense data as received; empty if there is none.
    pub sense: Vec<u8>,
    /// The data read.
    pub data: Chain,
    /// Residual of the write, or of the read if there is no write.
    pub residual: Residual,
    /// Residual of the read of a bidirectional command.
    pub read_residual: Residual,
}

impl Response {
    /// Returns itself if the status is GOOD or CONDITION MET.
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

/// A session with a target: one or more connections, many concurrent commands. Clones are handles
/// to the same session, which lives until the last one is dropped; [`Session::close`] logs it out.
///
/// It belongs to the thread, and the [`runtime::Runtime`], that created it.
#[derive(Clone)]
pub struct Session {
    owner: Rc<Owner>,
}

/// Ends the session's tasks when the last handle is dropped.
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
        let isid = options.isid.map_or_else(isid, Ok)?;
        let inner = Rc::new(Inner::new(options, chap, Portal::from(url), target, isid, mend::begin));
        // From here on dropping the owner ends the tasks.
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

    /// Starts a command and returns as soon as it is queued; the [`Ticket`] waits for its end.
    /// Start many before awaiting the first, to put many PDUs into one send. Waits while
    /// [`Options::queue_depth`] commands are outstanding.
    ///
    /// # Errors
    /// [`Error::Argument`] for a CDB of an invalid length or a read of more than [`MAX_READ`];
    /// otherwise the reason why the session ended.
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
        ticket::submit(inner, destination, write_len, |proto, task| proto.submit(protocol, task))
    }

    /// Sends a task management function to a unit, over the first connection. The session's own
    /// commands that it ends, those sent before it, end with [`Error::Aborted`] once the target
    /// reports the function complete. Functions for single tasks end none: see [`Session::abort`].
    ///
    /// # Errors
    /// The reason why the session ended, or [`Error::TimedOut`].
    pub async fn task_management(
        &self,
        function: TaskManagementFunction,
        lun: Lun,
    ) -> Result<Option<TaskManagementResult>, Error> {
        let on = self.inner().first_link().ok_or_else(no_connection)?;
        self.manage(on, function, lun, None).await
    }

    /// Ends a command by ABORT TASK (RFC 7143 §11.5.1). Its ticket ends with [`Error::Aborted`] if
    /// the target aborted the command, or did not get it yet. Returns whether it did: if not, the
    /// ticket has the command's answer, or will.
    ///
    /// # Errors
    /// As [`Session::task_management`]; [`Error::Lost`] while the command has no connection.
    pub async fn abort(&self, ticket: &Ticket) -> Result<bool, Error> {
        let inner = self.inner();
        let Some(slot) = ticket.unanswered_in(inner) else { return Ok(false) };
        let (key, lun, on) = {
            let mut core = inner.core.borrow_mut();
            let core = &mut *core;
            let Some(key) = core.slots.get(slot).map(|entry| entry.key) else { return Ok(false) };
            if core.protocol.is_waiting(key) {
                if let Some(task) = core.protocol.forget(key) {
                    inner.fail_task(core, &task, Error::Aborted);
                }
                return Ok(true);
            }
            let Some(lun) = core.protocol.lun_of(key) else { return Ok(false) };
            (key, lun, core.protocol.connection_of(key).ok_or_else(no_connection)?)
        };
        let result = self.manage(on, TaskManagementFunction::AbortTask, lun, Some(key)).await?;
        Ok(result == Some(TaskManagementResult::FunctionComplete))
    }

    async fn manage(
        &self,
        on: ConnectionId,
        function: TaskManagementFunction,
        lun: Lun,
        task: Option<TaskKey>,
    ) -> Result<Option<TaskManagementResult>, Error> {
        let inner = self.inner();
        let ticket = ticket::submit(inner, Destination::Nothing, 0, |proto, token| {
            proto.task_management(on, function, lun, task, token)
        })?;
        let limit = inner.options.command_timeout;
        let response =
            runtime::timeout(limit, ticket).await.unwrap_or(Err(Error::TimedOut("task management")))?;
        Ok(TaskManagementResult::from_code(response.status))
    }

    /// The LUNs of the target's units, from REPORT LUNS.
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

    /// Runs a repeatable command, and retries it after unit attentions and busy statuses.
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

    /// The negotiated parameters of the newest login.
    pub fn params(&self) -> Params {
        self.inner().params()
    }

    /// Current number of connections; 0 while the session reconnects.
    pub fn connections(&self) -> usize {
        self.inner().link_count()
    }

    /// Number of reconnects of the session.
    pub fn reconnects(&self) -> u64 {
        self.inner().reconnects()
    }

    /// Number of error recoveries, within connections and of connections.
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

    /// TargetPortalGroupTag of the newest login, if the target said it. A login with the same ISID
    /// reinstates a session of the same portal group only (RFC 7143 §4.4.3).
    pub fn portal_group(&self) -> Option<u16> {
        self.inner().core.borrow().portal_group
    }

    /// Ends the session at once and without a logout, also for all other handles. Outstanding
    /// commands end with [`Error::Closed`]; the target may still carry them out.
    pub fn end(&self) {
        self.inner().shut(Error::Closed);
    }

    /// Logs out and ends the session, also for all other handles. Outstanding commands end with
    /// [`Error::Closed`].
    ///
    /// # Errors
    /// [`Error::TimedOut`] if the target does not answer the logout; the session is closed anyway.
    pub async fn close(&self) -> Result<(), Error> {
        let inner = self.inner();
        let Some(on) = inner.first_link() else {
            inner.shut(Error::Closed);
            return Ok(());
        };
        inner.begin_closing();
        let logout = ticket::submit(inner, Destination::Nothing, 0, |proto, task| {
            // No request may follow a logout (RFC 7143 §11.14): drop the waiting ones.
            proto.hold(true);
            proto.logout(on, LogoutReason::CloseSession, task)
        });
        let answer = match logout {
            Ok(ticket) => {
                let limit = inner.options.connect_timeout.min(Duration::from_secs(5));
                runtime::timeout(limit, ticket).await.map_err(|_| Error::TimedOut("logout"))
            }
            Err(e) => Ok(Err(e)),
        };
        inner.shut(Error::Closed);
        match answer {
            // A target may close the connection instead of answering: this counts as a regular end.
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

fn no_connection() -> Error {
    Error::Lost("no connection at the moment".to_owned())
}

/// Memory for a read of more than one buffer of the pool, all of it at once. Two reads that each
/// hold a part and wait for the rest would deadlock.
async fn long_destination(len: usize) -> Result<Destination, Error> {
    loop {
        if let Some(destination) = Destination::in_pieces(len) {
            return Ok(destination);
        }
        if pool::stats().limit < len {
            return Err(Error::Argument("the read is longer than all buffers are together"));
        }
        runtime::sleep(Duration::from_millis(1)).await;
    }
}

/// Limits the retries with a unit that reports busy or a unit attention.
#[derive(Debug, Default)]
pub(crate) struct Patience {
    attentions: u32,
    busy: u32,
}

impl Patience {
    /// Returns whether to retry, after a pause if the unit is busy.
    pub async fn wait(&mut self, error: Error) -> Result<(), Error> {
        const MAX_ATTENTIONS: u32 = 16;
        const MAX_BUSY: u32 = 10;
        if error.sense_key() == Some(scsi::SenseKey::UnitAttention) && self.attentions < MAX_ATTENTIONS {
            self.attentions += 1;
            return Ok(());
        }
        let busy = matches!(&error, Error::Scsi(e) if e.status == 0x08 || e.status == 0x28);
        if busy && self.busy < MAX_BUSY {
            runtime::sleep(Duration::from_millis(10 << self.busy)).await;
            self.busy += 1;
            return Ok(());
        }
        Err(error)
    }
}

/// A random initiator session ID (RFC 7143 §11.12.5).
pub(crate) fn isid() -> Result<Isid, Error> {
    let mut random = [0; 5];
    runtime::random(&mut random).map_err(|_| Error::Argument("the system has no randomness"))?;
    let [a, b, c, q0, q1] = random;
    Ok(Isid::random([a, b, c], u16::from_be_bytes([q0, q1])))
}

/// CHAP settings: the URL's credential takes precedence over the options.
pub(crate) fn chap_of(url: &Url, options: &Options) -> Option<Chap> {
    match (&url.credential, &options.chap) {
        (None, chap) => chap.clone(),
        (Some(credential), None) => {
            Some(Chap { credential: credential.clone(), target: None, hashes: Vec::new() })
        }
        (Some(credential), Some(chap)) => Some(Chap { credential: credential.clone(), ..chap.clone() }),
    }
}
