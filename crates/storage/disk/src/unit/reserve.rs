//! Reservation commands of a disk: transfers their parameter data; `device::Nexuses` executes them.

use device::{Command, DataMover, Outcome};
use scsi::cdb::{PersistentReserveIn, PersistentReserveOut};

use super::DiskUnit;

impl DiskUnit {
    /// PERSISTENT RESERVE IN.
    pub(super) fn persistent_in(
        &self,
        command: &Command,
        mover: &mut dyn DataMover,
        cdb: PersistentReserveIn,
    ) -> Result<Outcome, Outcome> {
        let data = self.nexuses.persistent_in(&command.nexus, cdb.action)?;
        Ok(self.answer(mover, data, u64::from(cdb.allocation)))
    }

    /// PERSISTENT RESERVE OUT.
    pub(super) async fn persistent_out(
        &self,
        command: &Command,
        mover: &mut dyn DataMover,
        cdb: PersistentReserveOut,
    ) -> Result<Outcome, Outcome> {
        let wanted = u64::from(cdb.parameter_len);
        let list = self.parameter_list(command, mover, wanted).await?;
        self.nexuses.persistent_out(command, cdb, &list).await?;
        Ok(Outcome::wrote(wanted))
    }
}
