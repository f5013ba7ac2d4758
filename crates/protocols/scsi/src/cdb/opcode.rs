//! Operation codes (SPC-4 annex F.3) and the service actions beneath them.

/// TEST UNIT READY.
pub const TEST_UNIT_READY: u8 = 0x00;
/// REQUEST SENSE.
pub const REQUEST_SENSE: u8 = 0x03;
/// FORMAT UNIT.
pub const FORMAT_UNIT: u8 = 0x04;
/// READ (6).
pub const READ_6: u8 = 0x08;
/// WRITE (6).
pub const WRITE_6: u8 = 0x0A;
/// INQUIRY.
pub const INQUIRY: u8 = 0x12;
/// MODE SELECT (6).
pub const MODE_SELECT_6: u8 = 0x15;
/// RESERVE (6).
pub const RESERVE_6: u8 = 0x16;
/// RELEASE (6).
pub const RELEASE_6: u8 = 0x17;
/// MODE SENSE (6).
pub const MODE_SENSE_6: u8 = 0x1A;
/// START STOP UNIT.
pub const START_STOP_UNIT: u8 = 0x1B;
/// SEND DIAGNOSTIC.
pub const SEND_DIAGNOSTIC: u8 = 0x1D;
/// PREVENT ALLOW MEDIUM REMOVAL.
pub const PREVENT_ALLOW_MEDIUM_REMOVAL: u8 = 0x1E;
/// READ CAPACITY (10).
pub const READ_CAPACITY_10: u8 = 0x25;
/// READ (10).
pub const READ_10: u8 = 0x28;
/// WRITE (10).
pub const WRITE_10: u8 = 0x2A;
/// WRITE AND VERIFY (10).
pub const WRITE_AND_VERIFY_10: u8 = 0x2E;
/// VERIFY (10).
pub const VERIFY_10: u8 = 0x2F;
/// PRE-FETCH (10).
pub const PRE_FETCH_10: u8 = 0x34;
/// SYNCHRONIZE CACHE (10).
pub const SYNCHRONIZE_CACHE_10: u8 = 0x35;
/// READ DEFECT DATA (10).
pub const READ_DEFECT_DATA_10: u8 = 0x37;
/// WRITE SAME (10).
pub const WRITE_SAME_10: u8 = 0x41;
/// UNMAP.
pub const UNMAP: u8 = 0x42;
/// SANITIZE.
pub const SANITIZE: u8 = 0x48;
/// LOG SENSE.
pub const LOG_SENSE: u8 = 0x4D;
/// MODE SELECT (10).
pub const MODE_SELECT_10: u8 = 0x55;
/// RESERVE (10).
pub const RESERVE_10: u8 = 0x56;
/// RELEASE (10).
pub const RELEASE_10: u8 = 0x57;
/// MODE SENSE (10).
pub const MODE_SENSE_10: u8 = 0x5A;
/// PERSISTENT RESERVE IN.
pub const PERSISTENT_RESERVE_IN: u8 = 0x5E;
/// PERSISTENT RESERVE OUT.
pub const PERSISTENT_RESERVE_OUT: u8 = 0x5F;
/// Third-party copy OUT: EXTENDED COPY.
pub const EXTENDED_COPY: u8 = 0x83;
/// Third-party copy IN: RECEIVE COPY RESULTS.
pub const RECEIVE_COPY_RESULTS: u8 = 0x84;
/// READ (16).
pub const READ_16: u8 = 0x88;
/// COMPARE AND WRITE.
pub const COMPARE_AND_WRITE: u8 = 0x89;
/// WRITE (16).
pub const WRITE_16: u8 = 0x8A;
/// ORWRITE (16).
pub const ORWRITE_16: u8 = 0x8B;
/// WRITE AND VERIFY (16).
pub const WRITE_AND_VERIFY_16: u8 = 0x8E;
/// VERIFY (16).
pub const VERIFY_16: u8 = 0x8F;
/// PRE-FETCH (16).
pub const PRE_FETCH_16: u8 = 0x90;
/// SYNCHRONIZE CACHE (16).
pub const SYNCHRONIZE_CACHE_16: u8 = 0x91;
/// WRITE SAME (16).
pub const WRITE_SAME_16: u8 = 0x93;
/// WRITE ATOMIC (16).
pub const WRITE_ATOMIC_16: u8 = 0x9C;
/// SERVICE ACTION IN (16).
pub const SERVICE_ACTION_IN_16: u8 = 0x9E;
/// REPORT LUNS.
pub const REPORT_LUNS: u8 = 0xA0;
/// MAINTENANCE IN.
pub const MAINTENANCE_IN: u8 = 0xA3;
/// MAINTENANCE OUT.
pub const MAINTENANCE_OUT: u8 = 0xA4;
/// READ (12).
pub const READ_12: u8 = 0xA8;
/// WRITE (12).
pub const WRITE_12: u8 = 0xAA;
/// WRITE AND VERIFY (12).
pub const WRITE_AND_VERIFY_12: u8 = 0xAE;
/// VERIFY (12).
pub const VERIFY_12: u8 = 0xAF;
/// READ DEFECT DATA (12).
pub const READ_DEFECT_DATA_12: u8 = 0xB7;

/// EXTENDED COPY (LID4), of EXTENDED COPY.
pub const SA_EXTENDED_COPY_LID4: u8 = 0x01;
/// POPULATE TOKEN, of EXTENDED COPY (which SPC-4 calls THIRD-PARTY COPY OUT).
pub const SA_POPULATE_TOKEN: u8 = 0x10;
/// WRITE USING TOKEN, of EXTENDED COPY.
pub const SA_WRITE_USING_TOKEN: u8 = 0x11;
/// COPY OPERATION ABORT, of EXTENDED COPY.
pub const SA_COPY_OPERATION_ABORT: u8 = 0x1C;
/// READ CAPACITY (16), of SERVICE ACTION IN (16).
pub const SA_READ_CAPACITY_16: u8 = 0x10;
/// GET LBA STATUS (16), of SERVICE ACTION IN (16).
pub const SA_GET_LBA_STATUS: u8 = 0x12;
/// SET TARGET PORT GROUPS, of MAINTENANCE OUT.
pub const SA_SET_TARGET_PORT_GROUPS: u8 = 0x0A;
/// REPORT TARGET PORT GROUPS, of MAINTENANCE IN.
pub const SA_REPORT_TARGET_PORT_GROUPS: u8 = 0x0A;
/// REPORT SUPPORTED OPERATION CODES, of MAINTENANCE IN.
pub const SA_REPORT_SUPPORTED_OPCODES: u8 = 0x0C;
/// REPORT SUPPORTED TASK MANAGEMENT FUNCTIONS, of MAINTENANCE IN.
pub const SA_REPORT_SUPPORTED_TMFS: u8 = 0x0D;
/// REPORT TIMESTAMP, of MAINTENANCE IN.
pub const SA_REPORT_TIMESTAMP: u8 = 0x0F;
