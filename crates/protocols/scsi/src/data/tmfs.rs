//! REPORT SUPPORTED TASK MANAGEMENT FUNCTIONS data (SPC-4 §6.36).

/// The functions that a unit supports.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct SupportedTmfs {
    /// ATS: ABORT TASK.
    pub abort_task: bool,
    /// ATSS: ABORT TASK SET.
    pub abort_task_set: bool,
    /// CACAS: CLEAR ACA.
    pub clear_aca: bool,
    /// CTSS: CLEAR TASK SET.
    pub clear_task_set: bool,
    /// LURS: LOGICAL UNIT RESET.
    pub logical_unit_reset: bool,
    /// QTS: QUERY TASK.
    pub query_task: bool,
    /// TRS: TARGET RESET.
    pub target_reset: bool,
    /// QAES: QUERY ASYNCHRONOUS EVENT.
    pub query_async_event: bool,
    /// QTSS: QUERY TASK SET.
    pub query_task_set: bool,
    /// ITNRS: I_T NEXUS RESET.
    pub nexus_reset: bool,
}

impl SupportedTmfs {
    /// The functions of an RFC 7143 iSCSI target without auto contingent allegiance.
    pub const ISCSI: Self = Self {
        abort_task: true,
        abort_task_set: true,
        clear_aca: false,
        clear_task_set: true,
        logical_unit_reset: true,
        query_task: false,
        target_reset: true,
        query_async_event: false,
        query_task_set: false,
        nexus_reset: false,
    };

    /// The data: 4 bytes, or with `extended` (REPD) 16 bytes without timeout values.
    pub fn emit(&self, extended: bool) -> Vec<u8> {
        let first = u8::from(self.abort_task) << 7
            | u8::from(self.abort_task_set) << 6
            | u8::from(self.clear_aca) << 5
            | u8::from(self.clear_task_set) << 4
            | u8::from(self.logical_unit_reset) << 3
            | u8::from(self.query_task) << 2
            | u8::from(self.target_reset) << 1;
        let second = u8::from(self.query_async_event) << 2
            | u8::from(self.query_task_set) << 1
            | u8::from(self.nexus_reset);
        let mut out = vec![first, second, 0, 0];
        if extended {
            out[3] = 12; // ADDITIONAL DATA LENGTH
            out.resize(16, 0);
        }
        out
    }

    /// Reads the data of either form.
    pub fn parse(bytes: &[u8]) -> Option<Self> {
        let &[first, second, ..] = bytes else { return None };
        Some(Self {
            abort_task: first & 0x80 != 0,
            abort_task_set: first & 0x40 != 0,
            clear_aca: first & 0x20 != 0,
            clear_task_set: first & 0x10 != 0,
            logical_unit_reset: first & 0x08 != 0,
            query_task: first & 0x04 != 0,
            target_reset: first & 0x02 != 0,
            query_async_event: second & 0x04 != 0,
            query_task_set: second & 0x02 != 0,
            nexus_reset: second & 0x01 != 0,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_extended_data_is_16_bytes_and_says_so() {
        assert_eq!(SupportedTmfs::ISCSI.emit(false), [0xDA, 0, 0, 0]);
        assert_eq!(SupportedTmfs::ISCSI.emit(true), [0xDA, 0, 0, 12, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
    }

    #[test]
    fn every_function_has_its_own_bit() {
        for bits in (0..16).map(|i| 1u16 << i).filter(|b| b & 0xFE07 != 0) {
            let wire = bits.to_be_bytes();
            assert_eq!(SupportedTmfs::parse(&wire).unwrap().emit(false)[..2], wire);
        }
    }
}
