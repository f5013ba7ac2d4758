//! The commands of asymmetric access: REPORT TARGET PORT GROUPS, SET TARGET PORT GROUPS. The target
//! owns the groups (`device::PortGroups`); a unit only reports and forwards.

use device::{Command, DataMover, Outcome};
use scsi::Sense;
use scsi::cdb::ReportTargetPortGroups;
use scsi::data::target_port_groups;

use super::DiskUnit;

impl DiskUnit {
    pub(super) fn report_target_port_groups(
        &self,
        command: &Command,
        mover: &mut dyn DataMover,
        cdb: ReportTargetPortGroups,
    ) -> Result<Outcome, Outcome> {
        let (groups, transition_s) = self.nexuses.port_groups(&command.nexus);
        let data = target_port_groups::emit(&groups, cdb.extended.then_some(transition_s));
        Ok(self.answer(mover, data, u64::from(cdb.allocation)))
    }

    /// SET TARGET PORT GROUPS: GOOD once all groups are in their new states.
    pub(super) async fn set_target_port_groups(
        &self,
        command: &Command,
        mover: &mut dyn DataMover,
        parameter_len: u32,
    ) -> Result<Outcome, Outcome> {
        // Check before fetching the list, too.
        if !command.nexus.ports.as_ref().is_some_and(|ports| ports.explicit()) {
            return Err(Sense::invalid_service_action().into());
        }
        let wanted = u64::from(parameter_len);
        let list = self.parameter_list(command, mover, wanted).await?;
        let with_data = |sense: Sense| Outcome { wanted_out: wanted, ..sense.into() };
        self.nexuses.set_port_groups(command, &list).await.map_err(with_data)?;
        Ok(Outcome::wrote(wanted))
    }
}
