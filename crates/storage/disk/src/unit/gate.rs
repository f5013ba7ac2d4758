//! The checks before any command runs, in this order: unit attentions, the target port's access
//! state, reservations, sanitizing, the medium, write protection.

use device::{Command, ItlNexus, Outcome};
use scsi::cdb::{self, opcode};
use scsi::reservation::access;
use scsi::{AdditionalSense, Sense, SenseKey};

use super::DiskUnit;

/// Bits of a unit's `flags`.
pub(super) mod flag {
    /// The medium was ejected.
    pub(crate) const NO_MEDIUM: u32 = 1;
    /// A SANITIZE runs.
    pub(crate) const SANITIZING: u32 = 1 << 1;
    /// A SANITIZE failed, and neither another one nor EXIT FAILURE MODE has cleared the failure.
    pub(crate) const SANITIZE_FAILED: u32 = 1 << 2;
    /// The unit is read-only.
    pub(crate) const READ_ONLY: u32 = 1 << 3;
    /// SWP of the Control mode page.
    pub(crate) const SOFTWARE_PROTECTED: u32 = 1 << 4;
    /// WCE is zero.
    pub(crate) const WRITE_THROUGH: u32 = 1 << 5;
    pub(crate) const DESCRIPTOR_SENSE: u32 = 1 << 6;
    /// There are tokens that a write may revoke.
    pub const TOKENS: u32 = 1 << 7;
    /// Soft thresholds are enabled.
    pub(crate) const WATCHED: u32 = 1 << 8;
    /// Different initiators have access to the unit, and at least one of them may write.
    pub const SHARED: u32 = 1 << 9;
    /// Another unit, whose write cache is off, takes this one's place.
    pub(crate) const LEAVING: u32 = 1 << 10;
    /// WCE is one, or was: writes from then may need a flush.
    pub(crate) const CACHED: u32 = 1 << 11;

    /// Any of these takes a READ off the fast path.
    pub(crate) const STOPS_READ: u32 = NO_MEDIUM | SANITIZING | SANITIZE_FAILED;
    /// Any of these takes a WRITE off the fast path.
    pub(crate) const STOPS_WRITE: u32 = STOPS_READ | READ_ONLY | SOFTWARE_PROTECTED;
}

impl DiskUnit {
    /// The checks before the CDB is decoded.
    pub(super) fn gate_nexus(&self, command: &Command) -> Result<(), Outcome> {
        let verdict = command.nexus.verdict();
        if verdict.clear() {
            return Ok(());
        }
        let code = command.cdb.opcode();
        // SAM-5 §5.14.4: these run even with a pending unit attention. REQUEST SENSE returns it as
        // its data.
        let exempt = matches!(code, opcode::INQUIRY | opcode::REPORT_LUNS | opcode::REQUEST_SENSE);
        self.nexuses.gate(command, exempt, || access(command.cdb.bytes()))
    }

    /// RESERVATION CONFLICT, if a reservation of another nexus does not allow `cdb`.
    pub(super) fn check_reservation(&self, nexus: &ItlNexus, cdb: &[u8]) -> Result<(), Outcome> {
        self.nexuses.check(nexus, access(cdb))
    }

    /// The checks of a decoded command.
    pub(super) fn gate_state(&self, command: &Command, decoded: &cdb::Command) -> Result<(), Outcome> {
        use cdb::Command as C;
        let flags = self.flags();
        if flags & (flag::SANITIZING | flag::SANITIZE_FAILED) != 0 {
            // SBC-3 §4.11.2: the commands that run during a sanitize, and after one failed.
            let always =
                matches!(decoded, C::Inquiry(_) | C::ReportLuns(_) | C::RequestSense { .. } | C::LogSense(_));
            if flags & flag::SANITIZING != 0 && !always {
                return Err(Sense::sanitize_in_progress(self.sanitize_progress()).into());
            }
            if flags & flag::SANITIZE_FAILED != 0 && !always && !matches!(decoded, C::Sanitize(_)) {
                return Err(sanitize_failed().into());
            }
        }
        if flags & flag::NO_MEDIUM != 0 && decoded.needs_medium() {
            return Err(Sense::medium_not_present().into());
        }
        if decoded.writes_medium() {
            self.check_writable(&command.nexus)?;
        }
        Ok(())
    }

    /// DATA PROTECT, if `nexus` may not write.
    pub(super) fn check_writable(&self, nexus: &ItlNexus) -> Result<(), Sense> {
        let flags = self.flags();
        if flags & flag::READ_ONLY != 0 || nexus.read_only {
            return Err(Sense::write_protected());
        }
        if flags & flag::SOFTWARE_PROTECTED != 0 {
            return Err(Sense::software_write_protected());
        }
        Ok(())
    }
}

/// The sense data for every command after a failed sanitize.
pub(super) fn sanitize_failed() -> Sense {
    Sense::new(SenseKey::MediumError, AdditionalSense::SANITIZE_COMMAND_FAILED)
}
