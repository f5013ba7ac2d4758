//! Logout Request (RFC 7143 §11.14) and Logout Response (§11.15).

use super::bhs::Tag;
use super::codes::{Named, code_points};
use super::{FINAL, U16, U32, header};

code_points! {
    /// The reason of a logout (RFC 7143 §11.14.1).
    pub enum LogoutReason: u8 {
        /// Closes the session with all its connections.
        CloseSession = 0 => "close the session",
        /// Closes the connection with this CID.
        CloseConnection = 1 => "close the connection",
        /// Removes the connection with this CID, to recover its tasks on another
        /// (ErrorRecoveryLevel 2).
        RemoveForRecovery = 2 => "remove the connection for recovery",
    }
}

code_points! {
    /// The result of a logout (RFC 7143 §11.15.1).
    pub enum LogoutResult: u8 {
        /// The connection or session is closed.
        Success = 0 => "closed successfully",
        /// There is no connection with this CID.
        CidNotFound = 1 => "CID not found",
        /// The target does not support connection recovery.
        RecoveryNotSupported = 2 => "connection recovery not supported",
        /// The target could not clean up.
        CleanupFailed = 3 => "cleanup failed",
    }
}

header! {
    /// Logout Request (RFC 7143 §11.14).
    pub struct LogoutRequest {
        /// Byte 1: 1 and the reason.
        pub flags: u8,
        /// Bytes 2 and 3, reserved.
        pub reserved_2: [u8; 2],
        ..
        /// Bytes 8 to 15, reserved.
        pub reserved_8: [u8; 8],
        /// Initiator Task Tag.
        pub itt: U32,
        /// The CID of the connection; reserved if the session is closed.
        pub cid: U16,
        /// Bytes 22 and 23, reserved.
        pub reserved_22: [u8; 2],
        /// CmdSN.
        pub cmd_sn: U32,
        /// ExpStatSN.
        pub exp_stat_sn: U32,
        /// Bytes 32 to 47, reserved.
        pub reserved_32: [u8; 16],
    }
    trace "Logout Request" |pdu, f| {
        itt: Tag(pdu.itt.get()), reason: Named(pdu.reason(), pdu.reason_code()), cid: pdu.cid,
        cmdsn: pdu.cmd_sn, expstatsn: pdu.exp_stat_sn,
    }
}

impl LogoutRequest {
    /// A request in the order of commands (not immediate).
    pub fn new(itt: u32, reason: LogoutReason, cid: u16) -> Self {
        let mut pdu = Self::zeroed();
        pdu.flags = FINAL | reason.code();
        pdu.itt.set(itt);
        pdu.cid.set(cid);
        pdu
    }

    /// The reason's seven bits.
    #[inline]
    pub const fn reason_code(&self) -> u8 {
        self.flags & 0x7f
    }

    /// The reason; `None` if unassigned.
    #[inline]
    pub const fn reason(&self) -> Option<LogoutReason> {
        LogoutReason::from_code(self.reason_code())
    }
}

header! {
    /// Logout Response (RFC 7143 §11.15).
    pub struct LogoutResponse {
        /// Byte 1: 1.
        pub flags: u8,
        /// Response, a [`LogoutResult`].
        pub response: u8,
        /// Byte 3, reserved.
        pub reserved_3: u8,
        ..
        /// Bytes 8 to 15, reserved.
        pub reserved_8: [u8; 8],
        /// Initiator Task Tag of the request.
        pub itt: U32,
        /// Bytes 20 to 23, reserved.
        pub reserved_20: [u8; 4],
        /// StatSN.
        pub stat_sn: U32,
        /// ExpCmdSN.
        pub exp_cmd_sn: U32,
        /// MaxCmdSN.
        pub max_cmd_sn: U32,
        /// Bytes 36 to 39, reserved.
        pub reserved_36: [u8; 4],
        /// Time2Wait in seconds before a new login or a reassignment (§11.15.3).
        pub time2wait: U16,
        /// Time2Retain in seconds: the time after Time2Wait for which the target retains the tasks
        /// (§11.15.4).
        pub time2retain: U16,
        /// Bytes 44 to 47, reserved.
        pub reserved_44: [u8; 4],
    }
    trace "Logout Response" |pdu, f| {
        itt: Tag(pdu.itt.get()), response: Named(pdu.result(), pdu.response), statsn: pdu.stat_sn,
        expcmdsn: pdu.exp_cmd_sn, maxcmdsn: pdu.max_cmd_sn,
        time2wait: format_args!("{}s", pdu.time2wait),
        time2retain: format_args!("{}s", pdu.time2retain),
    }
}

impl LogoutResponse {
    /// The response to the request with `itt`; times are in seconds.
    pub fn new(itt: u32, result: LogoutResult, time2wait: u16, time2retain: u16) -> Self {
        let mut pdu = Self::zeroed();
        pdu.flags = FINAL;
        pdu.response = result.code();
        pdu.itt.set(itt);
        pdu.time2wait.set(time2wait);
        pdu.time2retain.set(time2retain);
        pdu
    }

    /// The result; `None` if unassigned.
    #[inline]
    pub const fn result(&self) -> Option<LogoutResult> {
        LogoutResult::from_code(self.response)
    }
}
