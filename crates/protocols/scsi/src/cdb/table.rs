//! The table of the decoded commands: for each the length of its CDB, its valid bits and its
//! timeouts. Decoding checks reserved bits against it and REPORT SUPPORTED OPERATION CODES reports
//! it, so the two cannot differ.

use super::opcode as op;
use crate::Sense;

/// One command: an operation code and, where it has them, a service action.
#[derive(Debug)]
pub struct Entry {
    /// The standard's name.
    pub name: &'static str,
    /// OPERATION CODE.
    pub opcode: u8,
    /// SERVICE ACTION, for operation codes that have service actions.
    pub service_action: Option<u8>,
    /// Length of the CDB in bytes: 6, 10, 12 or 16.
    pub len: u8,
    /// CDB USAGE DATA (SPC-4 §6.35.3): a one for each bit in use; only the first `len` bytes count.
    pub usage: [u8; 16],
    /// NOMINAL COMMAND PROCESSING TIMEOUT in seconds; 0 means not reported.
    pub nominal_s: u32,
    /// RECOMMENDED COMMAND TIMEOUT in seconds; 0 means not reported.
    pub recommended_s: u32,
    /// Bits that must be zero: a mask over the CDB's 16 bytes in memory order.
    reserved: u128,
}

/// Bits of byte 1 that select how to check protection information (RDPROTECT, WRPROTECT, VRPROTECT,
/// ORPROTECT).
const PROTECT: u8 = 0xE0;
/// Ignored bits of CONTROL (SAM-5 §5.2): the two vendor specific ones, and the obsolete FLAG and
/// LINK. NACA is not ignored: NORMACA is zero because there is no auto contingent allegiance, so
/// NACA is an error.
const CONTROL_IGNORED: u8 = 0xC3;

impl Entry {
    /// `ignored`: (byte, bits) that are obsolete or belong to a feature that the unit lacks:
    /// neither used nor rejected.
    const fn new(
        name: &'static str,
        opcode: u8,
        service_action: Option<u8>,
        used: &[u8],
        ignored: &[(usize, u8)],
        recommended_s: u32,
    ) -> Self {
        let len = used.len();
        let mut usage = [0u8; 16];
        let mut reserved = [0u8; 16];
        let mut i = 0;
        while i < len {
            usage[i] = used[i];
            reserved[i] = !used[i];
            i += 1;
        }
        usage[0] = opcode;
        reserved[0] = 0;
        if let Some(action) = service_action {
            usage[1] = (usage[1] & 0xE0) | action;
            reserved[1] &= 0xE0;
        }
        reserved[len - 1] &= !CONTROL_IGNORED;
        if len == 6 {
            // LOGICAL UNIT NUMBER of SCSI-2; old initiators still fill it.
            reserved[1] &= 0x1F;
        }
        let mut i = 0;
        while i < ignored.len() {
            reserved[ignored[i].0] &= !ignored[i].1;
            i += 1;
        }
        Self {
            name,
            opcode,
            service_action,
            len: len as u8,
            usage,
            nominal_s: 0,
            recommended_s,
            reserved: u128::from_ne_bytes(reserved),
        }
    }

    /// Rejects a CDB that is too short or has a reserved bit set, with a pointer to the field.
    #[inline]
    pub(super) fn check(&self, cdb: &[u8; 16], len: usize) -> Result<(), Sense> {
        if u128::from_ne_bytes(*cdb) & self.reserved == 0 && len >= usize::from(self.len) {
            return Ok(());
        }
        Err(self.refusal(cdb, len))
    }

    #[cold]
    fn refusal(&self, cdb: &[u8; 16], len: usize) -> Sense {
        let reserved = self.reserved.to_ne_bytes();
        for (i, (byte, mask)) in cdb.iter().zip(reserved).enumerate() {
            let wrong = byte & mask;
            if wrong != 0 {
                // A field's pointer is its most significant bit, whether that bit is set or not.
                let bit = if i == 1 && self.has_protect() && wrong & PROTECT != 0 {
                    7
                } else {
                    7 - wrong.leading_zeros() as u8
                };
                return Sense::invalid_field_in_cdb(i as u16, Some(bit));
            }
        }
        Sense::invalid_field_in_cdb(len as u16, None)
    }

    /// Whether byte 1 starts with a protection field.
    const fn has_protect(&self) -> bool {
        matches!(
            self.opcode,
            op::READ_10
                | op::READ_12
                | op::READ_16
                | op::WRITE_10
                | op::WRITE_12
                | op::WRITE_16
                | op::WRITE_AND_VERIFY_10
                | op::WRITE_AND_VERIFY_12
                | op::WRITE_AND_VERIFY_16
                | op::VERIFY_10
                | op::VERIFY_12
                | op::VERIFY_16
                | op::WRITE_SAME_10
                | op::WRITE_SAME_16
                | op::WRITE_ATOMIC_16
                | op::COMPARE_AND_WRITE
                | op::ORWRITE_16
        )
    }
}

/// Timeout in seconds of a command that only transfers or reports data.
const SHORT: u32 = 30;
/// Timeout in seconds of commands whose work grows with their range.
const LONG: u32 = 120;
/// Timeout in seconds of commands that may process the whole medium.
const WHOLE: u32 = 7200;

/// GROUP NUMBER: ignored in every command, since the unit has no grouping function (GROUP_SUP is
/// zero; SBC-3 §4.22).
const GROUP: u8 = 0x3F;

macro_rules! table {
    ($($name:ident = $text:literal, $opcode:expr, $action:expr, [$($used:expr),*], [$($ignored:expr),*], $timeout:expr;)*) => {
        $(
            #[doc = $text]
            pub static $name: Entry = Entry::new($text, $opcode, $action, &[$($used),*], &[$($ignored),*], $timeout);
        )*

        /// Every command, by ascending operation code and service action.
        pub static ALL: &[&Entry] = &[$(&$name),*];
    };
}

table! {
    TEST_UNIT_READY = "TEST UNIT READY", op::TEST_UNIT_READY, None, [0, 0, 0, 0, 0, 0], [], SHORT;
    REQUEST_SENSE = "REQUEST SENSE", op::REQUEST_SENSE, None, [0, 0x01, 0, 0, 0xFF, 0], [], SHORT;
    FORMAT_UNIT = "FORMAT UNIT", op::FORMAT_UNIT, None, [0, 0x3F, 0, 0, 0, 0], [(2, 0xFF), (3, 0xFF), (4, 0xFF)], WHOLE;
    READ_6 = "READ (6)", op::READ_6, None, [0, 0x1F, 0xFF, 0xFF, 0xFF, 0], [], SHORT;
    WRITE_6 = "WRITE (6)", op::WRITE_6, None, [0, 0x1F, 0xFF, 0xFF, 0xFF, 0], [], SHORT;
    INQUIRY = "INQUIRY", op::INQUIRY, None, [0, 0x01, 0xFF, 0xFF, 0xFF, 0], [], SHORT;
    MODE_SELECT_6 = "MODE SELECT (6)", op::MODE_SELECT_6, None, [0, 0x11, 0, 0, 0xFF, 0], [], SHORT;
    RESERVE_6 = "RESERVE (6)", op::RESERVE_6, None, [0, 0, 0, 0, 0, 0], [(2, 0xFF), (3, 0xFF), (4, 0xFF)], SHORT;
    RELEASE_6 = "RELEASE (6)", op::RELEASE_6, None, [0, 0, 0, 0, 0, 0], [(2, 0xFF), (3, 0xFF), (4, 0xFF)], SHORT;
    MODE_SENSE_6 = "MODE SENSE (6)", op::MODE_SENSE_6, None, [0, 0x08, 0xFF, 0xFF, 0xFF, 0], [], SHORT;
    START_STOP_UNIT = "START STOP UNIT", op::START_STOP_UNIT, None, [0, 0x01, 0, 0x0F, 0xF7, 0], [], SHORT;
    SEND_DIAGNOSTIC = "SEND DIAGNOSTIC", op::SEND_DIAGNOSTIC, None, [0, 0xF7, 0, 0xFF, 0xFF, 0], [], SHORT;
    PREVENT_ALLOW_MEDIUM_REMOVAL = "PREVENT ALLOW MEDIUM REMOVAL", op::PREVENT_ALLOW_MEDIUM_REMOVAL, None,
        [0, 0, 0, 0, 0x03, 0], [], SHORT;
    READ_CAPACITY_10 = "READ CAPACITY (10)", op::READ_CAPACITY_10, None, [0, 0, 0, 0, 0, 0, 0, 0, 0, 0],
        [(1, 0x01), (2, 0xFF), (3, 0xFF), (4, 0xFF), (5, 0xFF), (8, 0x01)], SHORT;
    READ_10 = "READ (10)", op::READ_10, None, [0, 0x18, 0xFF, 0xFF, 0xFF, 0xFF, 0, 0xFF, 0xFF, 0],
        [(1, 0x07), (6, GROUP)], SHORT;
    WRITE_10 = "WRITE (10)", op::WRITE_10, None, [0, 0x18, 0xFF, 0xFF, 0xFF, 0xFF, 0, 0xFF, 0xFF, 0],
        [(1, 0x03), (6, GROUP)], SHORT;
    WRITE_AND_VERIFY_10 = "WRITE AND VERIFY (10)", op::WRITE_AND_VERIFY_10, None,
        [0, 0x16, 0xFF, 0xFF, 0xFF, 0xFF, 0, 0xFF, 0xFF, 0], [(1, 0x01), (6, GROUP)], SHORT;
    VERIFY_10 = "VERIFY (10)", op::VERIFY_10, None, [0, 0x16, 0xFF, 0xFF, 0xFF, 0xFF, 0, 0xFF, 0xFF, 0],
        [(1, 0x01), (6, GROUP)], SHORT;
    PRE_FETCH_10 = "PRE-FETCH (10)", op::PRE_FETCH_10, None, [0, 0x02, 0xFF, 0xFF, 0xFF, 0xFF, 0, 0xFF, 0xFF, 0],
        [(1, 0x01), (6, GROUP)], SHORT;
    SYNCHRONIZE_CACHE_10 = "SYNCHRONIZE CACHE (10)", op::SYNCHRONIZE_CACHE_10, None,
        [0, 0x02, 0xFF, 0xFF, 0xFF, 0xFF, 0, 0xFF, 0xFF, 0], [(1, 0x05), (6, GROUP)], LONG;
    READ_DEFECT_DATA_10 = "READ DEFECT DATA (10)", op::READ_DEFECT_DATA_10, None,
        [0, 0, 0x1F, 0, 0, 0, 0, 0xFF, 0xFF, 0], [], SHORT;
    WRITE_SAME_10 = "WRITE SAME (10)", op::WRITE_SAME_10, None, [0, 0x18, 0xFF, 0xFF, 0xFF, 0xFF, 0, 0xFF, 0xFF, 0],
        [(1, 0x01), (6, GROUP)], LONG;
    UNMAP = "UNMAP", op::UNMAP, None, [0, 0x01, 0, 0, 0, 0, 0, 0xFF, 0xFF, 0], [(6, GROUP)], LONG;
    SANITIZE_OVERWRITE = "SANITIZE: OVERWRITE", op::SANITIZE, Some(0x01),
        [0, 0xA0, 0, 0, 0, 0, 0, 0xFF, 0xFF, 0], [], WHOLE;
    SANITIZE_BLOCK_ERASE = "SANITIZE: BLOCK ERASE", op::SANITIZE, Some(0x02),
        [0, 0xA0, 0, 0, 0, 0, 0, 0xFF, 0xFF, 0], [], WHOLE;
    SANITIZE_CRYPTOGRAPHIC_ERASE = "SANITIZE: CRYPTOGRAPHIC ERASE", op::SANITIZE, Some(0x03),
        [0, 0xA0, 0, 0, 0, 0, 0, 0xFF, 0xFF, 0], [], WHOLE;
    SANITIZE_EXIT_FAILURE_MODE = "SANITIZE: EXIT FAILURE MODE", op::SANITIZE, Some(0x1F),
        [0, 0xA0, 0, 0, 0, 0, 0, 0xFF, 0xFF, 0], [], SHORT;
    LOG_SENSE = "LOG SENSE", op::LOG_SENSE, None, [0, 0x01, 0xFF, 0xFF, 0, 0xFF, 0xFF, 0xFF, 0xFF, 0], [], SHORT;
    MODE_SELECT_10 = "MODE SELECT (10)", op::MODE_SELECT_10, None, [0, 0x11, 0, 0, 0, 0, 0, 0xFF, 0xFF, 0], [], SHORT;
    RESERVE_10 = "RESERVE (10)", op::RESERVE_10, None, [0, 0, 0, 0, 0, 0, 0, 0, 0, 0], [(2, 0xFF), (3, 0xFF)], SHORT;
    RELEASE_10 = "RELEASE (10)", op::RELEASE_10, None, [0, 0, 0, 0, 0, 0, 0, 0, 0, 0], [(2, 0xFF), (3, 0xFF)], SHORT;
    MODE_SENSE_10 = "MODE SENSE (10)", op::MODE_SENSE_10, None, [0, 0x18, 0xFF, 0xFF, 0, 0, 0, 0xFF, 0xFF, 0], [], SHORT;
    PR_IN_READ_KEYS = "PERSISTENT RESERVE IN: READ KEYS", op::PERSISTENT_RESERVE_IN, Some(0),
        [0, 0, 0, 0, 0, 0, 0, 0xFF, 0xFF, 0], [], SHORT;
    PR_IN_READ_RESERVATION = "PERSISTENT RESERVE IN: READ RESERVATION", op::PERSISTENT_RESERVE_IN, Some(1),
        [0, 0, 0, 0, 0, 0, 0, 0xFF, 0xFF, 0], [], SHORT;
    PR_IN_REPORT_CAPABILITIES = "PERSISTENT RESERVE IN: REPORT CAPABILITIES", op::PERSISTENT_RESERVE_IN, Some(2),
        [0, 0, 0, 0, 0, 0, 0, 0xFF, 0xFF, 0], [], SHORT;
    PR_IN_READ_FULL_STATUS = "PERSISTENT RESERVE IN: READ FULL STATUS", op::PERSISTENT_RESERVE_IN, Some(3),
        [0, 0, 0, 0, 0, 0, 0, 0xFF, 0xFF, 0], [], SHORT;
    PR_OUT_REGISTER = "PERSISTENT RESERVE OUT: REGISTER", op::PERSISTENT_RESERVE_OUT, Some(0),
        [0, 0, 0xFF, 0, 0, 0xFF, 0xFF, 0xFF, 0xFF, 0], [], SHORT;
    PR_OUT_RESERVE = "PERSISTENT RESERVE OUT: RESERVE", op::PERSISTENT_RESERVE_OUT, Some(1),
        [0, 0, 0xFF, 0, 0, 0xFF, 0xFF, 0xFF, 0xFF, 0], [], SHORT;
    PR_OUT_RELEASE = "PERSISTENT RESERVE OUT: RELEASE", op::PERSISTENT_RESERVE_OUT, Some(2),
        [0, 0, 0xFF, 0, 0, 0xFF, 0xFF, 0xFF, 0xFF, 0], [], SHORT;
    PR_OUT_CLEAR = "PERSISTENT RESERVE OUT: CLEAR", op::PERSISTENT_RESERVE_OUT, Some(3),
        [0, 0, 0xFF, 0, 0, 0xFF, 0xFF, 0xFF, 0xFF, 0], [], SHORT;
    PR_OUT_PREEMPT = "PERSISTENT RESERVE OUT: PREEMPT", op::PERSISTENT_RESERVE_OUT, Some(4),
        [0, 0, 0xFF, 0, 0, 0xFF, 0xFF, 0xFF, 0xFF, 0], [], SHORT;
    PR_OUT_PREEMPT_AND_ABORT = "PERSISTENT RESERVE OUT: PREEMPT AND ABORT", op::PERSISTENT_RESERVE_OUT, Some(5),
        [0, 0, 0xFF, 0, 0, 0xFF, 0xFF, 0xFF, 0xFF, 0], [], SHORT;
    PR_OUT_REGISTER_AND_IGNORE = "PERSISTENT RESERVE OUT: REGISTER AND IGNORE EXISTING KEY", op::PERSISTENT_RESERVE_OUT,
        Some(6), [0, 0, 0xFF, 0, 0, 0xFF, 0xFF, 0xFF, 0xFF, 0], [], SHORT;
    PR_OUT_REGISTER_AND_MOVE = "PERSISTENT RESERVE OUT: REGISTER AND MOVE", op::PERSISTENT_RESERVE_OUT, Some(7),
        [0, 0, 0xFF, 0, 0, 0xFF, 0xFF, 0xFF, 0xFF, 0], [], SHORT;
    EXTENDED_COPY_LID1 = "EXTENDED COPY (LID1)", op::EXTENDED_COPY, Some(0),
        [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xFF, 0xFF, 0xFF, 0xFF, 0, 0], [], LONG;
    EXTENDED_COPY_LID4 = "EXTENDED COPY (LID4)", op::EXTENDED_COPY, Some(op::SA_EXTENDED_COPY_LID4),
        [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xFF, 0xFF, 0xFF, 0xFF, 0, 0], [], LONG;
    POPULATE_TOKEN = "POPULATE TOKEN", op::EXTENDED_COPY, Some(op::SA_POPULATE_TOKEN),
        [0, 0, 0, 0, 0, 0, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0, 0], [(14, GROUP)], SHORT;
    WRITE_USING_TOKEN = "WRITE USING TOKEN", op::EXTENDED_COPY, Some(op::SA_WRITE_USING_TOKEN),
        [0, 0, 0, 0, 0, 0, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0, 0], [(14, GROUP)], LONG;
    COPY_OPERATION_ABORT = "COPY OPERATION ABORT", op::EXTENDED_COPY, Some(op::SA_COPY_OPERATION_ABORT),
        [0, 0, 0xFF, 0xFF, 0xFF, 0xFF, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0], [], SHORT;
    RECEIVE_COPY_STATUS_LID1 = "RECEIVE COPY STATUS (LID1)", op::RECEIVE_COPY_RESULTS, Some(0),
        [0, 0, 0xFF, 0, 0, 0, 0, 0, 0, 0, 0xFF, 0xFF, 0xFF, 0xFF, 0, 0], [], SHORT;
    RECEIVE_COPY_OPERATING_PARAMETERS = "RECEIVE COPY OPERATING PARAMETERS", op::RECEIVE_COPY_RESULTS, Some(3),
        [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xFF, 0xFF, 0xFF, 0xFF, 0, 0], [(2, 0xFF)], SHORT;
    RECEIVE_COPY_FAILURE_DETAILS = "RECEIVE COPY FAILURE DETAILS (LID1)", op::RECEIVE_COPY_RESULTS, Some(4),
        [0, 0, 0xFF, 0, 0, 0, 0, 0, 0, 0, 0xFF, 0xFF, 0xFF, 0xFF, 0, 0], [], SHORT;
    RECEIVE_COPY_STATUS_LID4 = "RECEIVE COPY STATUS (LID4)", op::RECEIVE_COPY_RESULTS, Some(5),
        [0, 0, 0xFF, 0xFF, 0xFF, 0xFF, 0, 0, 0, 0, 0xFF, 0xFF, 0xFF, 0xFF, 0, 0], [], SHORT;
    RECEIVE_ROD_TOKEN_INFORMATION = "RECEIVE ROD TOKEN INFORMATION", op::RECEIVE_COPY_RESULTS, Some(7),
        [0, 0, 0xFF, 0xFF, 0xFF, 0xFF, 0, 0, 0, 0, 0xFF, 0xFF, 0xFF, 0xFF, 0, 0], [], SHORT;
    READ_16 = "READ (16)", op::READ_16, None,
        [0, 0x18, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0, 0],
        [(1, 0x06), (14, GROUP)], SHORT;
    COMPARE_AND_WRITE = "COMPARE AND WRITE", op::COMPARE_AND_WRITE, None,
        [0, 0x18, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0, 0, 0, 0xFF, 0, 0],
        [(1, 0x02), (14, GROUP)], SHORT;
    WRITE_16 = "WRITE (16)", op::WRITE_16, None,
        [0, 0x18, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0, 0],
        [(1, 0x02), (14, GROUP)], SHORT;
    ORWRITE_16 = "ORWRITE (16)", op::ORWRITE_16, None,
        [0, 0x18, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0, 0],
        [(1, 0x02), (14, GROUP)], SHORT;
    WRITE_AND_VERIFY_16 = "WRITE AND VERIFY (16)", op::WRITE_AND_VERIFY_16, None,
        [0, 0x16, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0, 0],
        [(14, GROUP)], SHORT;
    VERIFY_16 = "VERIFY (16)", op::VERIFY_16, None,
        [0, 0x16, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0, 0],
        [(14, GROUP)], SHORT;
    PRE_FETCH_16 = "PRE-FETCH (16)", op::PRE_FETCH_16, None,
        [0, 0x02, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0, 0],
        [(14, GROUP)], SHORT;
    SYNCHRONIZE_CACHE_16 = "SYNCHRONIZE CACHE (16)", op::SYNCHRONIZE_CACHE_16, None,
        [0, 0x02, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0, 0],
        [(1, 0x04), (14, GROUP)], LONG;
    WRITE_SAME_16 = "WRITE SAME (16)", op::WRITE_SAME_16, None,
        [0, 0x19, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0, 0],
        [(14, GROUP)], LONG;
    WRITE_ATOMIC_16 = "WRITE ATOMIC (16)", op::WRITE_ATOMIC_16, None,
        [0, 0x18, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0, 0],
        [(14, GROUP)], SHORT;
    READ_CAPACITY_16 = "READ CAPACITY (16)", op::SERVICE_ACTION_IN_16, Some(op::SA_READ_CAPACITY_16),
        [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xFF, 0xFF, 0xFF, 0xFF, 0, 0],
        [(2, 0xFF), (3, 0xFF), (4, 0xFF), (5, 0xFF), (6, 0xFF), (7, 0xFF), (8, 0xFF), (9, 0xFF), (14, 0x01)], SHORT;
    GET_LBA_STATUS = "GET LBA STATUS (16)", op::SERVICE_ACTION_IN_16, Some(op::SA_GET_LBA_STATUS),
        [0, 0, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0, 0], [], SHORT;
    REPORT_LUNS = "REPORT LUNS", op::REPORT_LUNS, None, [0, 0, 0xFF, 0, 0, 0, 0xFF, 0xFF, 0xFF, 0xFF, 0, 0], [], SHORT;
    REPORT_TARGET_PORT_GROUPS = "REPORT TARGET PORT GROUPS", op::MAINTENANCE_IN, Some(op::SA_REPORT_TARGET_PORT_GROUPS),
        [0, 0xE0, 0, 0, 0, 0, 0xFF, 0xFF, 0xFF, 0xFF, 0, 0], [], SHORT;
    REPORT_SUPPORTED_OPCODES = "REPORT SUPPORTED OPERATION CODES", op::MAINTENANCE_IN,
        Some(op::SA_REPORT_SUPPORTED_OPCODES), [0, 0, 0x87, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0, 0], [], SHORT;
    REPORT_SUPPORTED_TMFS = "REPORT SUPPORTED TASK MANAGEMENT FUNCTIONS", op::MAINTENANCE_IN,
        Some(op::SA_REPORT_SUPPORTED_TMFS), [0, 0, 0x80, 0, 0, 0, 0xFF, 0xFF, 0xFF, 0xFF, 0, 0], [], SHORT;
    REPORT_TIMESTAMP = "REPORT TIMESTAMP", op::MAINTENANCE_IN, Some(op::SA_REPORT_TIMESTAMP),
        [0, 0, 0, 0, 0, 0, 0xFF, 0xFF, 0xFF, 0xFF, 0, 0], [], SHORT;
    SET_TARGET_PORT_GROUPS = "SET TARGET PORT GROUPS", op::MAINTENANCE_OUT, Some(op::SA_SET_TARGET_PORT_GROUPS),
        [0, 0, 0, 0, 0, 0, 0xFF, 0xFF, 0xFF, 0xFF, 0, 0], [], LONG;
    READ_12 = "READ (12)", op::READ_12, None, [0, 0x18, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0, 0],
        [(1, 0x07), (10, GROUP)], SHORT;
    WRITE_12 = "WRITE (12)", op::WRITE_12, None, [0, 0x18, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0, 0],
        [(1, 0x03), (10, GROUP)], SHORT;
    WRITE_AND_VERIFY_12 = "WRITE AND VERIFY (12)", op::WRITE_AND_VERIFY_12, None,
        [0, 0x16, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0, 0], [(1, 0x01), (10, GROUP)], SHORT;
    VERIFY_12 = "VERIFY (12)", op::VERIFY_12, None, [0, 0x16, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0, 0],
        [(1, 0x01), (10, GROUP)], SHORT;
    READ_DEFECT_DATA_12 = "READ DEFECT DATA (12)", op::READ_DEFECT_DATA_12, None,
        [0, 0x1F, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0, 0], [], SHORT;
}

/// The entry of an operation code and, if it has them, a service action; `None` for an unknown
/// command.
pub fn find(opcode: u8, service_action: Option<u8>) -> Option<&'static Entry> {
    ALL.iter().copied().find(|e| e.opcode == opcode && e.service_action == service_action)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_ascends_and_no_command_is_in_it_twice() {
        let keys: Vec<_> = ALL.iter().map(|e| (e.opcode, e.service_action)).collect();
        assert!(keys.windows(2).all(|w| w[0] < w[1]), "{keys:?}");
    }

    #[test]
    fn the_length_of_a_cdb_follows_the_group_of_its_operation_code() {
        for entry in ALL {
            let len = match entry.opcode >> 5 {
                0 => 6,
                1 | 2 => 10,
                4 => 16,
                5 => 12,
                group => panic!("{}: group {group}", entry.name),
            };
            assert_eq!(entry.len, len, "{}", entry.name);
        }
    }

    #[test]
    fn every_command_refuses_naca() {
        let naca = |e: &Entry| e.reserved.to_ne_bytes()[usize::from(e.len) - 1] & 0x04 != 0;
        assert!(ALL.iter().all(|e| naca(e)));
    }

    #[test]
    fn an_operation_code_has_service_actions_in_all_of_its_entries_or_in_none() {
        for entry in ALL {
            let has = entry.service_action.is_some();
            assert!(ALL.iter().all(|e| e.opcode != entry.opcode || e.service_action.is_some() == has));
        }
    }
}
