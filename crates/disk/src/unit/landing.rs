//! Landing: the data of a WRITE that is at work comes straight to the store's memory, some blocks at a time.
//!
//! To everybody else each such piece is a plain write of its blocks: it has its place in the exclusion while it is filled, which never
//! waits, and what a write must not do it does not do either.

use std::sync::Arc;

use device::{Command, Fill, Land, Landing};
use ring::{Buf, Use};
use scsi::cdb::opcode;

use super::gate::flag;
use super::{DiskUnit, Range};

impl DiskUnit {
    /// Whether the data of a command with this CDB may land, once it has been let in: of a WRITE to memory.
    pub fn lands(&self, cdb: &[u8]) -> bool {
        let is_write =
            |code| matches!(code, opcode::WRITE_6 | opcode::WRITE_10 | opcode::WRITE_12 | opcode::WRITE_16);
        cdb.first().is_some_and(|code| is_write(*code)) && self.store.lands()
    }

    /// Where the data of a WRITE of `range` belongs that has been let in; `None` where it cannot land, or is not worth it.
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
        // An atomic command is about: those that wait for it must be asked for their turn.
        let _counted = self.exclusion.try_write()?;
        // Tokens must be revoked before what they stand for changes: the long way does that.
        if self.flags() & (flag::STOPS_WRITE | flag::TOKENS) != 0 {
            return None;
        }
        self.store.land(at, len, fill)
    }
}
