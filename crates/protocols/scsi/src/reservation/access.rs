//! The commands that a reservation allows: SPC-4 tables 65 and 66, SBC-3 table 13, and SPC-2's
//! rules for RESERVE. Owns the classification of CDBs; holds no state.

/// The class of a command under another nexus's reservation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// Allowed under every reservation.
    Always,
    /// Allowed under every persistent reservation, but a conflict under RESERVE(6)/(10).
    Status,
    /// Allowed under write exclusive types; a conflict under exclusive access types and under
    /// RESERVE.
    Read,
    /// A conflict under every type unless the nexus holds it (or is registered, for the registrants
    /// types).
    Write,
    /// PERSISTENT RESERVE IN: allowed under persistent reservations, a conflict under RESERVE even
    /// for its holder.
    PersistentIn,
    /// PERSISTENT RESERVE OUT: its own rules under persistent reservations, a conflict under
    /// RESERVE.
    PersistentOut,
    /// RESERVE and RELEASE: their own rules (SPC-4 §5.13.3).
    Legacy,
}

/// Classifies a CDB. Commands outside the tables are [`Access::Write`], the strictest class.
pub fn access(cdb: &[u8]) -> Access {
    let byte = |at: usize| cdb.get(at).copied().unwrap_or(0);
    let action = byte(1) & 0x1f;
    match byte(0) {
        // INQUIRY, REPORT LUNS, REQUEST SENSE, LOG SENSE, READ CAPACITY(10).
        0x12 | 0xa0 | 0x03 | 0x4d | 0x25 => Access::Always,
        // TEST UNIT READY.
        0x00 => Access::Status,
        0x5e => Access::PersistentIn,
        0x5f => Access::PersistentOut,
        // RESERVE(6), RELEASE(6), RESERVE(10), RELEASE(10).
        0x16 | 0x17 | 0x56 | 0x57 => Access::Legacy,
        // PREVENT ALLOW MEDIUM REMOVAL: allowing removal is harmless.
        0x1e if byte(4) & 0x03 == 0 => Access::Always,
        // START STOP UNIT with START=1 and no POWER CONDITION.
        0x1b if byte(4) & 0xf3 == 0x01 => Access::Status,
        // READ(6/10/12/16), VERIFY(10/12/16), PRE-FETCH(10/16).
        0x08 | 0x28 | 0xa8 | 0x88 | 0x2f | 0xaf | 0x8f | 0x34 | 0x90 => Access::Read,
        // MODE SENSE(6/10), READ DEFECT DATA(10/12), READ BUFFER, RECEIVE DIAGNOSTIC RESULTS, READ
        // ATTRIBUTE, RECEIVE COPY RESULTS.
        0x1a | 0x5a | 0x37 | 0xb7 | 0x3c | 0x1c | 0x8c | 0x84 => Access::Read,
        // POPULATE TOKEN reads; EXTENDED COPY, WRITE USING TOKEN and the others of this operation
        // code write.
        0x83 if action == 0x10 => Access::Read,
        // SERVICE ACTION IN(16): READ CAPACITY(16); GET LBA STATUS, REPORT REFERRALS.
        0x9e => match action {
            0x10 => Access::Always,
            0x12 | 0x13 => Access::Read,
            _ => Access::Write,
        },
        // MAINTENANCE IN: REPORT SUPPORTED OPERATION CODES, ... TASK MANAGEMENT FUNCTIONS; the
        // REPORTs of aliases, identifying information, priority, target port groups, timestamp.
        0xa3 => match action {
            0x0c | 0x0d => Access::Read,
            0x05 | 0x0a | 0x0b | 0x0e | 0x0f => Access::Status,
            _ => Access::Write,
        },
        _ => Access::Write,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_tables_rows_are_kept() {
        assert_eq!(access(&[0x12, 0, 0, 0, 0, 0]), Access::Always);
        assert_eq!(access(&[0x9e, 0x10]), Access::Always);
        assert_eq!(access(&[0x9e, 0x12]), Access::Read);
        assert_eq!(access(&[0x9e, 0x11]), Access::Write);
        for writes in
            [0x0a, 0x2a, 0xaa, 0x8a, 0x2e, 0xae, 0x8e, 0x89, 0x8b, 0x9c, 0x41, 0x93, 0x42, 0x48, 0x35, 0x91]
        {
            assert_eq!(access(&[writes, 0, 0, 0, 0, 0]), Access::Write, "{writes:02x}");
        }
        assert_eq!(access(&[0x1e, 0, 0, 0, 0, 0]), Access::Always);
        assert_eq!(access(&[0x1e, 0, 0, 0, 1, 0]), Access::Write);
        assert_eq!(access(&[0x1b, 0, 0, 0, 1, 0]), Access::Status);
        assert_eq!(access(&[0x1b, 0, 0, 0, 3, 0]), Access::Write);
        assert_eq!(access(&[0x1b, 0, 0, 0, 0x11, 0]), Access::Write);
        assert_eq!(access(&[0x83, 0x10]), Access::Read);
        assert_eq!(access(&[0x83, 0x11]), Access::Write);
        assert_eq!(access(&[]), Access::Status);
    }
}
