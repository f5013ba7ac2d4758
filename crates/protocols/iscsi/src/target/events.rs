//! The configuration of a target's connection, and the events that its PDUs cause.

use std::time::Duration;

use smallvec::SmallVec;

use super::inbound::WriteLimits;
use super::recovery;
use super::tasks::TaskKey;
use super::window::{Cid, Window};
use crate::pdu::{Bhs, Lun};

/// The results of negotiation and the session's state, for a new connection.
#[derive(Debug)]
pub struct Config {
    /// Its CID.
    pub cid: Cid,
    /// The session's command window.
    pub window: Window,
    /// The StatSN of its first response.
    pub stat_sn: u32,
    /// The maximum number of outstanding commands; the window's depth.
    pub queue_depth: u32,
    /// The negotiated limits of writes.
    pub write: WriteLimits,
    /// The initiator's MaxRecvDataSegmentLength, bytes.
    pub peer_max_data_segment: u32,
    /// HeaderDigest=CRC32C.
    pub header_digest: bool,
    /// DataDigest=CRC32C.
    pub data_digest: bool,
    /// A discovery session: text, NOP and logout only (RFC 7143 §4.3).
    pub discovery: bool,
    /// iSER: data moves by RDMA, so no R2T is ever sent.
    pub rdma: bool,
    /// The silence after which [`Connection::handle_timeout`] pings; zero means never.
    pub nop_interval: Duration,
    /// The time limit for the answer to a ping.
    pub nop_timeout: Duration,
    /// The limits of recovery at ErrorRecoveryLevel 1 or 2; `None` at level 0.
    pub recovery: Option<recovery::Limits>,
}

/// A SCSI command, ready to be run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ScsiCommand {
    /// The command's task.
    pub task: TaskKey,
    /// Its Initiator Task Tag.
    pub itt: u32,
    /// The LUN of its logical unit, in its [canonical](Lun::canonical) encoding.
    pub lun: Lun,
    /// The CDB: 16 bytes, or more with an Extended CDB (RFC 7143 §11.2.2.3).
    pub cdb: SmallVec<[u8; 16]>,
    /// The ATTR field, 0 to 7 (§11.3.1).
    pub attribute: u8,
    /// CmdSN.
    pub cmd_sn: u32,
    /// Expected data-in, bytes.
    pub expected_in: u32,
    /// Expected data-out, bytes.
    pub expected_out: u32,
}

/// A task management function request (RFC 7143 §11.5).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TaskManagement {
    /// Its Initiator Task Tag.
    pub itt: u32,
    /// The Function field's seven bits.
    pub function: u8,
    /// The LUN, in its [canonical](Lun::canonical) encoding.
    pub lun: Lun,
    /// Referenced Task Tag.
    pub referenced: u32,
    /// RefCmdSN.
    pub ref_cmd_sn: u32,
    /// Its CmdSN.
    pub cmd_sn: u32,
    /// Whether it was immediate.
    pub immediate: bool,
    /// ExpDataSN, of TASK REASSIGN (§11.5.6).
    pub exp_data_sn: u32,
}

/// A whole text request, received in one or more PDUs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TextExchange {
    /// The header of its last PDU, which a Reject repeats.
    pub header: Bhs,
    /// Its Initiator Task Tag.
    pub itt: u32,
    /// The LUN field, which the response returns.
    pub lun: Lun,
    /// The text of the request.
    pub text: Vec<u8>,
    /// It begins an exchange: an unfinished earlier negotiation is void (§11.10.4).
    pub begins: bool,
    /// The F bit: the initiator's last text of the exchange.
    pub is_final: bool,
    /// Whether it was immediate.
    pub immediate: bool,
}

/// A logout request (RFC 7143 §11.14).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LogoutRequest {
    /// Its Initiator Task Tag.
    pub itt: u32,
    /// The reason code: 0 close the session, 1 close a connection, 2 remove a connection for
    /// recovery.
    pub reason: u8,
    /// The CID of the connection.
    pub cid: Cid,
    /// Whether it was immediate.
    pub immediate: bool,
}

/// A request for the caller.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// Run this command.
    Command(ScsiCommand),
    /// More of the task's data-out is [available](Connection::data_available).
    Data(TaskKey),
    /// Execute the function, then answer with [`Connection::task_management_response`].
    TaskManagement(TaskManagement),
    /// Answer with [`Connection::text_response`].
    Text(TextExchange),
    /// Answer with [`Connection::logout_response`].
    Logout(LogoutRequest),
}

/// Why the connection must end. At ErrorRecoveryLevel 0 it is dropped (RFC 7143 §7.1.4).
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Fatal {
    /// A PDU that is invalid in full-feature phase.
    #[error("opcode {0:#04x} in full-feature phase")]
    Opcode(u8),
    /// A ping was not answered.
    #[error("the initiator did not answer a NOP-In")]
    Silent,
    /// The peer sent too many PDUs that were rejected.
    #[error("too many rejected PDUs")]
    TooManyRejects,
    /// The peer sends requests and does not acknowledge their responses.
    #[error("too many responses that the initiator does not acknowledge")]
    Unacknowledged,
}

/// The end of a command, from its logical unit.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct Completion {
    /// SCSI status.
    pub status: u8,
    /// Sense data, as bytes.
    pub sense: Option<Box<[u8]>>,
    /// The length of data-in according to the CDB, bytes.
    pub wanted_in: u64,
    /// The length of data-out according to the CDB, bytes.
    pub wanted_out: u64,
}

/// The result of [`Connection::abort`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Abort {
    /// The task does not exist.
    Gone,
    /// The logical unit was not running it: the task has ended.
    Ended,
    /// The logical unit or RDMA Reads are still at work. The task ends after
    /// [`Connection::finish`], and after [`Connection::read_done`] for the last of them.
    Running,
}
