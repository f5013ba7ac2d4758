//! Commands that report capabilities and state: REPORT SUPPORTED OPERATION CODES, ... TASK
//! MANAGEMENT FUNCTIONS, REQUEST SENSE, LOG SENSE, READ DEFECT DATA, SEND DIAGNOSTIC, FORMAT UNIT.

use device::{Command, DataMover, Outcome};
use scsi::Sense;
use scsi::cdb::table::Entry;
use scsi::cdb::{
    FormatUnit, LogSense, ReadDefectData, ReportSupportedOpcodes, ReportSupportedTmfs, SendDiagnostic,
    opcode as op,
};
use scsi::data::format::FormatHeader;
use scsi::data::tmfs::SupportedTmfs;
use scsi::data::{defects, log, opcodes};

use super::DiskUnit;
use super::gate::{flag, sanitize_failed};

impl DiskUnit {
    /// Whether this unit supports a command of the decoder.
    fn supports(&self, command: &Command, entry: &Entry) -> bool {
        match (entry.opcode, entry.service_action) {
            (op::UNMAP, _) => self.options.thin,
            // SBC-3 §4.11.1: both erases need a unit whose blocks can be erased.
            (op::SANITIZE, Some(0x02 | 0x03)) => self.options.thin,
            (op::MAINTENANCE_IN, Some(op::SA_REPORT_TIMESTAMP)) => false,
            (op::MAINTENANCE_OUT, Some(op::SA_SET_TARGET_PORT_GROUPS)) => {
                command.nexus.ports.as_ref().is_some_and(|ports| ports.explicit())
            }
            _ => true,
        }
    }

    /// REPORT SUPPORTED OPERATION CODES.
    pub(super) fn report_supported_opcodes(
        &self,
        command: &Command,
        mover: &mut dyn DataMover,
        cdb: ReportSupportedOpcodes,
    ) -> Result<Outcome, Outcome> {
        let data = opcodes::report(&cdb, |entry| self.supports(command, entry))?;
        Ok(self.answer(mover, data, u64::from(cdb.allocation)))
    }

    /// REPORT SUPPORTED TASK MANAGEMENT FUNCTIONS.
    pub(super) fn report_supported_tmfs(
        &self,
        mover: &mut dyn DataMover,
        cdb: ReportSupportedTmfs,
    ) -> Result<Outcome, Outcome> {
        Ok(self.answer(mover, SupportedTmfs::ISCSI.emit(cdb.extended), u64::from(cdb.allocation)))
    }

    /// REQUEST SENSE: returns pending sense data with GOOD.
    pub(super) fn request_sense(
        &self,
        command: &Command,
        mover: &mut dyn DataMover,
        descriptor: bool,
        allocation: u8,
    ) -> Result<Outcome, Outcome> {
        let flags = self.flags();
        let sense = match command.nexus.take_attention() {
            Some(attention) => Sense::from(attention),
            None if flags & flag::SANITIZING != 0 => Sense::sanitize_in_progress(self.sanitize_progress()),
            None if flags & flag::SANITIZE_FAILED != 0 => sanitize_failed(),
            None if flags & flag::NO_MEDIUM != 0 => Sense::medium_not_present(),
            None => Sense::no_sense(),
        };
        Ok(self.answer(mover, sense.emit(descriptor).to_vec(), u64::from(allocation)))
    }

    pub(super) async fn log_sense(
        &self,
        mover: &mut dyn DataMover,
        cdb: LogSense,
    ) -> Result<Outcome, Outcome> {
        let data = log::sense(&cdb, self.resources_in_sets().await)?;
        Ok(self.answer(mover, data, u64::from(cdb.allocation)))
    }

    /// READ DEFECT DATA: an empty list.
    pub(super) fn read_defect_data(
        &self,
        mover: &mut dyn DataMover,
        cdb: ReadDefectData,
    ) -> Result<Outcome, Outcome> {
        Ok(self.answer(mover, defects::emit_empty(&cdb), u64::from(cdb.allocation)))
    }

    /// SEND DIAGNOSTIC: the default self-test passes; there are no pages and no other tests.
    pub(super) fn send_diagnostic(&self, cdb: SendDiagnostic) -> Result<Outcome, Outcome> {
        if cdb.code != 0 {
            return Err(Sense::invalid_field_in_cdb(1, Some(7)).into());
        }
        if cdb.parameter_len != 0 {
            return Err(Sense::invalid_field_in_cdb(3, None).into());
        }
        Ok(Outcome::GOOD)
    }

    /// FORMAT UNIT: the medium is always formatted, so its data stays (SBC-3 §5.3 leaves that to
    /// the unit). A thin unit deallocates everything.
    pub(super) async fn format_unit(
        &self,
        command: &Command,
        mover: &mut dyn DataMover,
        cdb: FormatUnit,
    ) -> Result<Outcome, Outcome> {
        let wanted = FormatHeader::len(&cdb) as u64;
        let list = self.parameter_list(command, mover, wanted).await?;
        FormatHeader::parse(&cdb, &list)?;
        if self.options.thin {
            let all = self.range(0, self.capacity())?;
            self.deallocate(mover, all).await?;
            self.flush(0).await?;
        }
        Ok(Outcome::wrote(wanted))
    }
}
