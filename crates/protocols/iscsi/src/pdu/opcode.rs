//! Opcodes (RFC 7143 §11.2.1.2).

use super::codes::code_points;

code_points! {
    /// The type of a PDU, without the immediate bit. Initiators send codes below 0x20, targets send
    /// the others.
    pub enum Opcode: u8 {
        /// NOP-Out (§11.18).
        NopOut = 0x00 => "NOP-Out",
        /// SCSI Command (§11.3).
        ScsiCommand = 0x01 => "SCSI Command",
        /// Task Management Function Request (§11.5).
        TaskManagementRequest = 0x02 => "Task Management Function Request",
        /// Login Request (§11.12).
        LoginRequest = 0x03 => "Login Request",
        /// Text Request (§11.10).
        TextRequest = 0x04 => "Text Request",
        /// SCSI Data-Out (§11.7).
        DataOut = 0x05 => "SCSI Data-Out",
        /// Logout Request (§11.14).
        LogoutRequest = 0x06 => "Logout Request",
        /// SNACK Request (§11.16).
        SnackRequest = 0x10 => "SNACK Request",
        /// NOP-In (§11.19).
        NopIn = 0x20 => "NOP-In",
        /// SCSI Response (§11.4).
        ScsiResponse = 0x21 => "SCSI Response",
        /// Task Management Function Response (§11.6).
        TaskManagementResponse = 0x22 => "Task Management Function Response",
        /// Login Response (§11.13).
        LoginResponse = 0x23 => "Login Response",
        /// Text Response (§11.11).
        TextResponse = 0x24 => "Text Response",
        /// SCSI Data-In (§11.7).
        DataIn = 0x25 => "SCSI Data-In",
        /// Logout Response (§11.15).
        LogoutResponse = 0x26 => "Logout Response",
        /// Ready To Transfer (§11.8).
        ReadyToTransfer = 0x31 => "R2T",
        /// Asynchronous Message (§11.9).
        AsyncMessage = 0x32 => "Asynchronous Message",
        /// Reject (§11.17).
        Reject = 0x3f => "Reject",
    }
}

impl Opcode {
    /// Whether initiators send it.
    #[inline]
    pub const fn is_from_initiator(self) -> bool {
        self.code() < 0x20
    }

    /// Whether it is an initiator's PDU with a CmdSN, which may be immediate. Data-Out and SNACK
    /// have no CmdSN (§11.7, §11.16).
    #[inline]
    pub const fn carries_cmd_sn(self) -> bool {
        self.is_from_initiator() && !matches!(self, Self::DataOut | Self::SnackRequest)
    }
}
