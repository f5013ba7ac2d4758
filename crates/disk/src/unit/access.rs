//! Asymmetric access as commands see it: REPORT TARGET PORT GROUPS, SET TARGET PORT GROUPS. The groups are the target's
//! (`device::PortGroups`); a unit only tells and asks.

use device::{Command, DataMover, Outcome};
use scsi::Sense;
use scsi::cdb::ReportTargetPortGroups;
use scsi::data::target_port_groups::{self, TargetPortGroup, parse_set};

use super::DiskUnit;

/// The one target port group of a target whose ports are all alike.
const TARGET_PORT_GROUP: u16 = 1;

impl DiskUnit {
    /// The target port group of the port that the command came through; `None` where it is in none.
    pub(super) fn port_group(&self, command: &Command) -> Option<u16> {
        let nexus = &command.nexus.nexus;
        match &nexus.ports {
            Some(ports) => ports.group_of(nexus.target_port),
            None => Some(TARGET_PORT_GROUP),
        }
    }

    /// REPORT TARGET PORT GROUPS.
    pub(super) fn report_target_port_groups(
        &self,
        command: &Command,
        mover: &mut dyn DataMover,
        cdb: ReportTargetPortGroups,
    ) -> Result<Outcome, Outcome> {
        let nexus = &command.nexus.nexus;
        let (groups, transition_s) = match &nexus.ports {
            Some(ports) => (ports.groups(), ports.transition_s()),
            None => {
                let mut ports = self.nexuses.target_ports();
                ports.push(nexus.target_port);
                ports.sort_unstable();
                ports.dedup();
                (vec![TargetPortGroup::optimized(TARGET_PORT_GROUP, ports)], 0)
            }
        };
        let data = target_port_groups::emit(&groups, cdb.extended.then_some(transition_s));
        Ok(self.answer(mover, data, u64::from(cdb.allocation)))
    }

    /// SET TARGET PORT GROUPS: GOOD when all groups are in their new states.
    pub(super) async fn set_target_port_groups(
        &self,
        command: &Command,
        mover: &mut dyn DataMover,
        parameter_len: u32,
    ) -> Result<Outcome, Outcome> {
        let ports = command.nexus.nexus.ports.as_ref().filter(|ports| ports.explicit());
        let ports = ports.ok_or(Sense::invalid_service_action())?;
        let wanted = u64::from(parameter_len);
        let list = self.parameter_list(command, mover, wanted).await?;
        let with_data = |sense: Sense| Outcome { wanted_out: wanted, ..sense.into() };
        let requests = parse_set(&list).map_err(with_data)?;
        ports.set(&requests, &command.nexus).await.map_err(with_data)?;
        Ok(Outcome::wrote(wanted))
    }
}
