//! What goes into a target's connection at its beginning, and what its PDUs mean to whoever runs commands.

use std::time::Duration;

use smallvec::SmallVec;

use super::inbound::WriteLimits;
use super::recovery;
use super::tasks::TaskKey;
use super::window::{Cid, Window};
use crate::pdu::Lun;

/// What negotiation and the session give a connection to begin with.
#[derive(Debug)]
pub struct Config {
    /// Its CID.
    pub cid: Cid,
    /// The session's command window.
    pub window: Window,
    /// The StatSN of its first response.
    pub stat_sn: u32,
    /// Commands outstanding at most; the window's depth.
    pub queue_depth: u32,
    /// Bounds on writes.
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
    /// Silence after which [`Connection::handle_timeout`] pings; zero for never.
    pub nop_interval: Duration,
    /// Time for the answer to a ping.
    pub nop_timeout: Duration,
    /// What ErrorRecoveryLevel 1 or 2 may cost; `None` at level 0.
    pub recovery: Option<recovery::Limits>,
}

/// A SCSI command, ready to be run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ScsiCommand {
    /// Its task.
    pub task: TaskKey,
    /// Its Initiator Task Tag.
    pub itt: u32,
    /// The unit it is for.
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
    /// Its own tag.
    pub itt: u32,
    /// The Function field's seven bits.
    pub function: u8,
    /// The unit.
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

/// A whole text request, however many PDUs it came in.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TextExchange {
    /// Its tag.
    pub itt: u32,
    /// The LUN field, echoed.
    pub lun: Lun,
    /// The keys.
    pub text: Vec<u8>,
    /// It begins an exchange: what was negotiated in another that did not end is void (§11.10.4).
    pub begins: bool,
    /// The F bit: the initiator has no more to say.
    pub is_final: bool,
    /// Whether it was immediate.
    pub immediate: bool,
}

/// A logout request (RFC 7143 §11.14).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LogoutRequest {
    /// Its tag.
    pub itt: u32,
    /// The reason code: 0 close the session, 1 close a connection, 2 remove a connection for recovery.
    pub reason: u8,
    /// Which connection.
    pub cid: Cid,
    /// Whether it was immediate.
    pub immediate: bool,
}

/// What a PDU means to whoever runs commands.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// Run this.
    Command(ScsiCommand),
    /// More of the task's data-out is [available](Connection::data_available).
    Data(TaskKey),
    /// Do this, then answer with [`Connection::task_management_response`].
    TaskManagement(TaskManagement),
    /// Answer with [`Connection::text_response`].
    Text(TextExchange),
    /// Answer with [`Connection::logout_response`].
    Logout(LogoutRequest),
}

/// Why the connection cannot go on. At ErrorRecoveryLevel 0 it is dropped (RFC 7143 §7.1.4).
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Fatal {
    /// A PDU that has no place in full-feature phase.
    #[error("opcode {0:#04x} in full-feature phase")]
    Opcode(u8),
    /// No answer to a ping.
    #[error("the initiator did not answer a NOP-In")]
    Silent,
    /// The peer sends what it may not, again and again.
    #[error("too many rejected PDUs")]
    TooManyRejects,
    /// It does not acknowledge what it gets, and asks for more and more.
    #[error("too many responses that the initiator does not acknowledge")]
    Unacknowledged,
}

/// The end of a command, as its unit tells it.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct Completion {
    /// SCSI status.
    pub status: u8,
    /// Sense data, as bytes.
    pub sense: Option<Box<[u8]>>,
    /// Bytes of data-in that the CDB called for.
    pub wanted_in: u64,
    /// Bytes of data-out that the CDB called for.
    pub wanted_out: u64,
}

/// What [`Connection::abort`] found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Abort {
    /// No such task any more.
    Gone,
    /// Its unit was not at work on it: it is over.
    Ended,
    /// Its unit is at work, or RDMA Reads are: it is over when [`Connection::finish`] has been called for it, and
    /// [`Connection::read_done`] for the last of them.
    Running,
}
