//! Direct placement: a running WRITE's data is received straight into the store's memory, some
//! blocks at a time.
//!
//! To other commands each such receive is an ordinary write of its blocks. It claims them while it
//! fills them, which never waits, and obeys the same restrictions as a write.

use std::sync::Arc;

use device::{Command, Fill, Land, Landing};
use runtime::{Buf, Use};
use scsi::cdb::opcode;

use super::gate::flag;
use super::{DiskUnit, Range};

impl DiskUnit {
    /// Whether the unit can place the data of a command with this CDB directly, once it has passed
    /// its checks: only a WRITE to memory.
    pub fn lands(&self, cdb: &[u8]) -> bool {
        let is_write =
            |code| matches!(code, opcode::WRITE_6 | opcode::WRITE_10 | opcode::WRITE_12 | opcode::WRITE_16);
        cdb.first().is_some_and(|code| is_write(*code)) && self.store.lands()
    }

    /// The place for the data of a WRITE of `range` that has passed its checks. `None` if direct
    /// placement is not possible or not worthwhile.
    pub(super) fn landing(self: &Arc<Self>, command: &Command, range: Range) -> Option<Landing> {
        let long = range.bytes >= device::LEAST_LANDING as u64;
        let all = command.data_out_len >= range.bytes;
        (long && all && self.store.lands()).then(|| Landing {
            unit: Use::of(self).into_rc(),
            at: range.at,
            len: range.bytes,
            block: self.options.block_size,
        })
    }
}

impl Land for DiskUnit {
    fn land(&self, at: u64, len: usize, fill: &mut Fill<'_>) -> Option<Buf> {
        // If another command has the blocks, or waits, the data goes through a buffer and the write
        // takes its turn.
        let _claim = self.stripes.try_claim(at, len as u64)?;
        // Tokens must be revoked before their data changes; an ordinary write does that.
        if self.flags() & (flag::STOPS_WRITE | flag::TOKENS) != 0 {
            return None;
        }
        self.store.land(at, len, fill)
    }
}
