//! The `[target.alua]` table: which portal groups make which target port groups, and how those
//! change their states.

use super::model::{Alua, AluaGroup};
use super::place::Place;
use super::problem::Problems;
use super::reader::Table;
use super::settings::setting;
use scsi::data::target_port_groups::AccessState;

/// Reads `[target.alua]` of a target that portal groups `served_by` serve.
pub fn alua(
    mut given: Table<'_>,
    served_by: &[u16],
    place: &Place<'_>,
    problems: &mut Problems,
) -> Option<Alua> {
    let mut alua = Alua::default();
    given.fill(&mut alua, place, problems);
    let tables = given.tables("group", problems).unwrap_or_default();
    if tables.is_empty() {
        let example = setting::<Alua>("group").required.unwrap_or_default();
        given.missing("group", example, problems);
    }
    for table in tables {
        let Some(group) = group(table, served_by, &alua.groups, place, problems) else { continue };
        alua.groups.push(group);
    }
    for port in served_by {
        if !alua.groups.is_empty() && !alua.groups.iter().any(|group| group.portal_groups.contains(port)) {
            let what = format!("portal group {port} is in no target port group");
            let instead = format!("add it to portal-groups of one: portal-groups = [{port}]");
            problems.error(&given.span, what, instead);
        }
    }
    given.end(problems);
    (!alua.groups.is_empty()).then_some(alua)
}

fn group(
    mut given: Table<'_>,
    served_by: &[u16],
    others: &[AluaGroup],
    place: &Place<'_>,
    problems: &mut Problems,
) -> Option<AluaGroup> {
    let mut group = AluaGroup::default();
    given.fill(&mut group, place, problems);
    if let Some(span) = given.said("id").filter(|_| others.iter().any(|other| other.id == group.id)) {
        let what = format!("there are two target port groups with id = {}", group.id);
        problems.error(&span, what, "give each a number of its own");
    }
    let ports = given.elements::<u16>(&setting::<AluaGroup>("portal-groups"), place, problems);
    for port in ports.unwrap_or_default() {
        let taken = |group: &AluaGroup| group.portal_groups.contains(&port.value);
        if !served_by.contains(&port.value) {
            let what = format!("portal group {} does not serve the target", port.value);
            problems.error(&port.span, what, format!("these do: {served_by:?}"));
        } else if taken(&group) || others.iter().any(taken) {
            let what = format!("portal group {} is in two target port groups", port.value);
            problems.error(&port.span, what, "leave it in one of them");
        } else {
            group.portal_groups.push(port.value);
        }
    }
    if group.portal_groups.len() > 255 {
        problems.error(&given.span, "a target port group has at most 255 ports", "make two of it");
    }
    if group.states.is_empty() {
        group.states = AccessState::NAMES.map(|(_, state)| state).to_vec();
    } else if !group.states.contains(&group.state) {
        let what = format!("the group begins {}, which is none of its states", group.state.name());
        problems.error(&given.span, what, format!("add \"{}\" to states", group.state.name()));
    }
    given.end(problems);
    (group.id > 0).then_some(group)
}
