//! Task Management Function Request (RFC 7143 §11.5) and Response (§11.6).

use super::bhs::Tag;
use super::codes::{Named, code_points};
use super::{FINAL, Lun, RESERVED_TAG, U32, header};

code_points! {
    /// The function of a task management request (RFC 7143 §11.5.1; 9 to 12 are from RFC 7144, for
    /// iSCSIProtocolLevel 2).
    pub enum TaskManagementFunction: u8 {
        /// Abort the task with the Referenced Task Tag.
        AbortTask = 1 => "ABORT TASK",
        /// Abort all tasks of this session on the logical unit.
        AbortTaskSet = 2 => "ABORT TASK SET",
        /// Clear the auto contingent allegiance.
        ClearAca = 3 => "CLEAR ACA",
        /// Abort all tasks of all sessions in the logical unit's task set.
        ClearTaskSet = 4 => "CLEAR TASK SET",
        /// Reset the logical unit.
        LogicalUnitReset = 5 => "LOGICAL UNIT RESET",
        /// Reset all logical units of the target.
        TargetWarmReset = 6 => "TARGET WARM RESET",
        /// Reset all logical units of the target and end all its sessions.
        TargetColdReset = 7 => "TARGET COLD RESET",
        /// Move a task's allegiance to this connection (ErrorRecoveryLevel 2).
        TaskReassign = 8 => "TASK REASSIGN",
        /// Query whether a task exists.
        QueryTask = 9 => "QUERY TASK",
        /// Query whether any task of this session is in the task set.
        QueryTaskSet = 10 => "QUERY TASK SET",
        /// Reset the I_T nexus.
        ItNexusReset = 11 => "I_T NEXUS RESET",
        /// Query whether a unit attention is pending.
        QueryAsynchronousEvent = 12 => "QUERY ASYNCHRONOUS EVENT",
    }
}

code_points! {
    /// The result of a task management request (RFC 7143 §11.6.1; 7 is from RFC 7144).
    pub enum TaskManagementResult: u8 {
        /// The function is complete.
        FunctionComplete = 0 => "Function complete",
        /// The task does not exist.
        TaskDoesNotExist = 1 => "Task does not exist",
        /// The logical unit does not exist.
        LunDoesNotExist = 2 => "LUN does not exist",
        /// The task's allegiance is still to its old connection.
        TaskStillAllegiant = 3 => "Task still allegiant",
        /// The target cannot reassign tasks.
        ReassignmentNotSupported = 4 => "Task allegiance reassignment not supported",
        /// The target does not support this function.
        NotSupported = 5 => "Task management function not supported",
        /// The initiator is not authorized.
        AuthorizationFailed = 6 => "Function authorization failed",
        /// A query found the task or condition.
        FunctionSucceeded = 7 => "Function succeeded",
        /// Rejected for any other reason.
        FunctionRejected = 255 => "Function rejected",
    }
}

header! {
    /// Task Management Function Request (RFC 7143 §11.5).
    pub struct TaskManagementRequest {
        /// Byte 1: 1 and the function.
        pub flags: u8,
        /// Bytes 2 and 3, reserved.
        pub reserved_2: [u8; 2],
        ..
        /// The logical unit, if the function concerns one.
        pub lun: Lun,
        /// Initiator Task Tag of this request.
        pub itt: U32,
        /// Referenced Task Tag: the task of ABORT TASK and TASK REASSIGN, else the reserved tag.
        pub referenced_task_tag: U32,
        /// CmdSN.
        pub cmd_sn: U32,
        /// ExpStatSN.
        pub exp_stat_sn: U32,
        /// RefCmdSN: the CmdSN of the task of ABORT TASK.
        pub ref_cmd_sn: U32,
        /// ExpDataSN, of TASK REASSIGN.
        pub exp_data_sn: U32,
        /// Bytes 40 to 47, reserved.
        pub reserved_40: [u8; 8],
    }
    trace "Task Management Request" |pdu, f| {
        itt: Tag(pdu.itt.get()), function: Named(pdu.function(), pdu.function_code()),
        lun: pdu.lun, rtt: Tag(pdu.referenced_task_tag.get()), cmdsn: pdu.cmd_sn,
        expstatsn: pdu.exp_stat_sn, refcmdsn: pdu.ref_cmd_sn, expdatasn: pdu.exp_data_sn,
    }
}

impl TaskManagementRequest {
    /// An immediate request that refers to no task.
    pub fn new(itt: u32, function: TaskManagementFunction, lun: Lun) -> Self {
        let mut pdu = Self::zeroed();
        pdu.as_bhs_mut().set_immediate(true);
        pdu.flags = FINAL | function.code();
        pdu.lun = lun;
        pdu.itt.set(itt);
        pdu.referenced_task_tag.set(RESERVED_TAG);
        pdu
    }

    /// The function's seven bits.
    #[inline]
    pub const fn function_code(&self) -> u8 {
        self.flags & 0x7f
    }

    /// The function; `None` if unassigned.
    #[inline]
    pub const fn function(&self) -> Option<TaskManagementFunction> {
        TaskManagementFunction::from_code(self.function_code())
    }
}

header! {
    /// Task Management Function Response (RFC 7143 §11.6).
    pub struct TaskManagementResponse {
        /// Byte 1: 1.
        pub flags: u8,
        /// Response, a [`TaskManagementResult`].
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
        /// Bytes 36 to 47, reserved.
        pub reserved_36: [u8; 12],
    }
    trace "Task Management Response" |pdu, f| {
        itt: Tag(pdu.itt.get()), response: Named(pdu.result(), pdu.response), statsn: pdu.stat_sn,
        expcmdsn: pdu.exp_cmd_sn, maxcmdsn: pdu.max_cmd_sn,
    }
}

impl TaskManagementResponse {
    /// The response to the request with `itt`.
    pub fn new(itt: u32, result: TaskManagementResult) -> Self {
        let mut pdu = Self::zeroed();
        pdu.flags = FINAL;
        pdu.response = result.code();
        pdu.itt.set(itt);
        pdu
    }

    /// The result; `None` if unassigned.
    #[inline]
    pub const fn result(&self) -> Option<TaskManagementResult> {
        TaskManagementResult::from_code(self.response)
    }
}
