//! The commands of SPC-4 that every unit has: INQUIRY with its VPD pages, REQUEST SENSE, MODE
//! SENSE, supported operation codes, reservations, target port groups.

use device::{Command, DataMover, GetData, Outcome};
use osd::{Action, Form, data};
use scsi::Sense;
use scsi::cdb::{self, table};
use scsi::data::inquiry::StandardInquiry;
use scsi::data::opcodes::{self, Described};
use scsi::data::target_port_groups;
use scsi::data::tmfs::SupportedTmfs;
use scsi::data::vpd::{self, ExtendedInquiry};
use scsi::mode::Medium;

use super::OsdUnit;

const PAGES: [u8; 7] = [
    vpd::SUPPORTED_PAGES,
    vpd::UNIT_SERIAL,
    vpd::IDENTIFICATION,
    vpd::EXTENDED_INQUIRY,
    vpd::MODE_PAGE_POLICY,
    data::VPD_OSD_INFORMATION,
    data::VPD_SECURITY_TOKEN,
];

/// Parameter lists that are longer than this make no sense.
pub(super) const MAX_PARAMETER_LIST: u64 = 64 << 10;

/// Seconds that most commands take at most; those that go through everything may take longer.
const SHORT_S: u32 = 30;
const LONG_S: u32 = 3600;

/// CDB USAGE DATA of an OSD command: all bytes of its form but reserved ones.
static USAGE: [u8; 236] = {
    let mut usage = [0xFF; 236];
    // CONTROL and the reserved bytes behind it; the ADDITIONAL CDB LENGTH; the reserved ones behind
    // the timestamps.
    usage[0] = osd::cdb::OPCODE;
    let mut at = 1;
    while at < 7 {
        usage[at] = 0;
        at += 1;
    }
    usage[10] = 0x1F;
    usage[13] = 0;
    usage[15] = 0;
    usage
};

impl OsdUnit {
    /// Whether the unit runs one of the commands that SPC-4's decoder knows.
    pub(super) fn supports(&self, command: &Command, entry: &table::Entry) -> bool {
        use cdb::opcode as op;
        match (entry.opcode, entry.service_action) {
            (op::MAINTENANCE_OUT, Some(op::SA_SET_TARGET_PORT_GROUPS)) => {
                command.nexus.ports.as_ref().is_some_and(|ports| ports.explicit())
            }
            (op::MAINTENANCE_IN, action) => action != Some(op::SA_REPORT_TIMESTAMP),
            (opcode, _) => matches!(
                opcode,
                op::TEST_UNIT_READY
                    | op::REQUEST_SENSE
                    | op::INQUIRY
                    | op::MODE_SENSE_6
                    | op::MODE_SENSE_10
                    | op::RESERVE_6
                    | op::RESERVE_10
                    | op::RELEASE_6
                    | op::RELEASE_10
                    | op::SEND_DIAGNOSTIC
                    | op::PERSISTENT_RESERVE_IN
                    | op::PERSISTENT_RESERVE_OUT
                    | op::REPORT_LUNS
            ),
        }
    }

    fn inquiry(&self, command: &Command, cdb: cdb::Inquiry) -> Result<Vec<u8>, Sense> {
        let options = &self.options;
        let standard = StandardInquiry {
            device_type: data::DEVICE_TYPE,
            version: 5,
            third_party_copy: false,
            target_port_groups: command.nexus.ports.as_ref().map_or(1, |ports| ports.tpgs()),
            versions: [
                data::version::OSD,
                data::version::OSD_2,
                data::version::OSD_2_INCITS,
                data::version::SPC_3,
                data::version::ISCSI,
            ]
            .into_iter()
            .collect(),
            ..StandardInquiry::disk(
                &options.identity.vendor,
                &options.identity.product,
                &options.identity.revision,
                false,
            )
        };
        let Some(page) = cdb.page else { return Ok(standard.emit()) };
        let body = match page {
            vpd::SUPPORTED_PAGES => vpd::supported_pages(&PAGES),
            vpd::UNIT_SERIAL => vpd::unit_serial(&options.identity.serial),
            vpd::IDENTIFICATION => self
                .nexuses
                .identification(
                    &command.nexus,
                    &options.identity.naa,
                    &options.identity.vendor,
                    &options.identity.serial,
                )
                .body(),
            vpd::EXTENDED_INQUIRY => {
                let extended = ExtendedInquiry {
                    simple: true,
                    ordered: true,
                    head_of_queue: true,
                    ..Default::default()
                };
                extended.body()
            }
            vpd::MODE_PAGE_POLICY => vpd::ALL_MODE_PAGES_SHARED.to_vec(),
            data::VPD_OSD_INFORMATION => return Ok(data::vpd_information()),
            data::VPD_SECURITY_TOKEN => {
                return Ok(data::vpd_security_token(&self.security_token(&command.nexus.nexus)));
            }
            _ => return Err(Sense::invalid_field_in_cdb(2, None)),
        };
        Ok(vpd::emit(standard.peripheral(), page, &body))
    }

    fn report_supported_opcodes(
        &self,
        command: &Command,
        cdb: &cdb::ReportSupportedOpcodes,
    ) -> Result<Vec<u8>, Sense> {
        let spc =
            || table::ALL.iter().copied().filter(|entry| self.supports(command, entry)).map(Described::from);
        // Of the operation code 7Fh by ascending service action: OSD-1's, OSD-2's, and both tunnels
        // of each.
        let mut actions: Vec<(u16, Form, Action)> = Action::ALL
            .iter()
            .flat_map(|&action| {
                let of = |form: Form| action.code(form.version()).map(|code| (code, form, action));
                [of(Form::Osd1), of(Form::Osd2)].into_iter().flatten()
            })
            .collect();
        actions.sort_unstable_by_key(|(code, ..)| *code);
        let described: Vec<([u8; 236], Form, Action)> = actions
            .into_iter()
            .map(|(code, form, action)| {
                let mut usage = USAGE;
                usage[7] = (form.len() - 8) as u8; // at most 228
                usage[8..10].copy_from_slice(&code.to_be_bytes());
                (usage, form, action)
            })
            .collect();
        let osd = || {
            described.iter().map(|(usage, form, action)| Described {
                opcode: osd::cdb::OPCODE,
                service_action: action.code(form.version()),
                usage: &usage[..form.len()],
                nominal_s: 0,
                recommended_s: recommended_s(*action),
            })
        };
        // The operation codes ascend.
        let below = || spc().filter(|entry| entry.opcode < osd::cdb::OPCODE);
        let above = || spc().filter(|entry| entry.opcode > osd::cdb::OPCODE);
        opcodes::report_of(cdb, || below().chain(osd()).chain(above()))
    }

    /// Commands that wait for nothing: their parameter data, and how much of it is wanted. `None`
    /// for the others.
    pub(super) fn answer_at_once(
        &self,
        command: &Command,
        decoded: &cdb::Command,
    ) -> Option<Result<(Vec<u8>, u64), Outcome>> {
        use cdb::Command as C;
        let nexus = &command.nexus;
        let sensed = |result: Result<Vec<u8>, Sense>, allocation: u64| {
            result.map(|data| (data, allocation)).map_err(Outcome::from)
        };
        Some(match *decoded {
            C::TestUnitReady => Ok((Vec::new(), 0)),
            C::RequestSense { descriptor, allocation } => {
                let sense = nexus.take_attention().map_or(Sense::no_sense(), Sense::from);
                Ok((sense.emit(descriptor).to_vec(), u64::from(allocation)))
            }
            C::Inquiry(cdb) => sensed(self.inquiry(command, cdb), u64::from(cdb.allocation)),
            C::ModeSense(cdb) => {
                let medium = Medium { blocks: 0, block_len: 0, write_protected: false };
                sensed(self.modes.sense(&cdb, &medium), u64::from(cdb.allocation))
            }
            C::Reserve => self.nexuses.reserve_legacy(nexus, false).map(|_| (Vec::new(), 0)),
            C::Release => self.nexuses.reserve_legacy(nexus, true).map(|_| (Vec::new(), 0)),
            C::PersistentReserveIn(cdb) => {
                self.nexuses.persistent_in(nexus, cdb.action).map(|data| (data, u64::from(cdb.allocation)))
            }
            C::ReportTargetPortGroups(cdb) => {
                let (groups, transition_s) = self.nexuses.port_groups(nexus);
                let data = target_port_groups::emit(&groups, cdb.extended.then_some(transition_s));
                Ok((data, u64::from(cdb.allocation)))
            }
            C::ReportSupportedOpcodes(cdb) => {
                sensed(self.report_supported_opcodes(command, &cdb), u64::from(cdb.allocation))
            }
            C::ReportSupportedTmfs(cdb) => {
                Ok((SupportedTmfs::ISCSI.emit(cdb.extended), u64::from(cdb.allocation)))
            }
            C::SendDiagnostic(cdb) if cdb.code != 0 => Err(Sense::invalid_field_in_cdb(1, Some(7)).into()),
            C::SendDiagnostic(cdb) if cdb.parameter_len != 0 => {
                Err(Sense::invalid_field_in_cdb(3, None).into())
            }
            C::SendDiagnostic(_) => Ok((Vec::new(), 0)),
            C::PersistentReserveOut(_) | C::SetTargetPortGroups { .. } => return None,
            // The decoder knows the commands of disks.
            _ => Err(Sense::invalid_opcode().into()),
        })
    }

    pub(super) async fn run_spc(
        &self,
        command: &Command,
        mover: &mut dyn DataMover,
        decoded: cdb::Command,
    ) -> Result<Outcome, Outcome> {
        use cdb::Command as C;
        match decoded {
            C::PersistentReserveOut(cdb) => {
                let list = parameter_list(command, mover, cdb.parameter_len).await?;
                self.nexuses.persistent_out(command, cdb, &list).await?;
                Ok(Outcome::wrote(u64::from(cdb.parameter_len)))
            }
            C::SetTargetPortGroups { parameter_len } => {
                if !command.nexus.ports.as_ref().is_some_and(|ports| ports.explicit()) {
                    return Err(Sense::invalid_service_action().into());
                }
                let list = parameter_list(command, mover, parameter_len).await?;
                let wanted_out = u64::from(parameter_len);
                let set = self.nexuses.set_port_groups(command, &list).await;
                set.map_err(|sense| Outcome { wanted_out, ..sense.into() })?;
                Ok(Outcome::wrote(wanted_out))
            }
            _ => Err(Sense::invalid_opcode().into()),
        }
    }
}

/// RECOMMENDED COMMAND TIMEOUT in seconds.
const fn recommended_s(action: Action) -> u32 {
    match action {
        Action::Format
        | Action::RemovePartition
        | Action::FlushCollection
        | Action::FlushPartition
        | Action::FlushOsd
        | Action::ObjectStructureCheck
        | Action::RemoveMemberObjects
        | Action::SetMemberAttributes
        | Action::CopyUserObjects
        | Action::Query => LONG_S,
        _ => SHORT_S,
    }
}

/// A parameter list of `len` bytes, which must be what the initiator sends and no more than is
/// reasonable.
async fn parameter_list(command: &Command, mover: &mut dyn DataMover, len: u32) -> Result<Vec<u8>, Outcome> {
    let wanted_out = u64::from(len);
    if wanted_out > MAX_PARAMETER_LIST || command.data_out_len < wanted_out {
        return Err(Outcome { wanted_out, ..Sense::parameter_list_length_error().into() });
    }
    if len == 0 {
        return Ok(Vec::new());
    }
    let list = mover.get_data(len as usize).await.map_err(|_| Outcome::GOOD)?;
    if list.len() == len as usize {
        Ok(list.to_vec())
    } else {
        Err(Outcome { wanted_out, ..Sense::parameter_list_length_error().into() })
    }
}
