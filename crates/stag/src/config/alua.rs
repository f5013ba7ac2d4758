//! The `[target.alua]` table: which portal groups make which target port groups, and how those change their states.

use std::ops::Range;

use scsi::data::target_port_groups::AccessState;

use super::model::{Alua, AluaGroup};
use super::problem::Problems;
use super::reader::{At, Table, int, mismatch};

const GROUPS: Range<u64> = 1..65_536;
/// Milliseconds that a change may take: Linux gives up after a minute.
const TRANSITION_MS: Range<u64> = 0..60_001;

/// Reads `[target.alua]` of a target that portal groups `served_by` serve; `at` is the target's directory for relative paths.
pub fn alua(
    mut given: Table<'_>,
    served_by: &[u16],
    directory: &std::path::Path,
    problems: &mut Problems,
) -> Option<Alua> {
    let mut alua = Alua {
        explicit: given.bool("explicit", problems).unwrap_or(false),
        implicit: given.bool("implicit", problems).unwrap_or(true),
        transition_hint_s: given.int("transition-hint", 0..256, problems).map_or(0, |at| at.value as u8),
        transition_ms: given.int("transition", TRANSITION_MS, problems).map_or(0, |at| at.value as u32),
        keep: given.string("keep", problems).map(|at| directory.join(at.value)),
        groups: Vec::new(),
    };
    let tables = given.tables("group", problems).unwrap_or_default();
    if tables.is_empty() {
        given.missing("group", "[[target.alua.group]] and under it id = 1 and portal-groups = [1]", problems);
    }
    for table in tables {
        let Some(group) = group(table, served_by, &alua.groups, problems) else { continue };
        alua.groups.push(group);
    }
    for port in served_by {
        if !alua.groups.is_empty() && !alua.groups.iter().any(|group| group.portal_groups.contains(port)) {
            let what = format!("portal group {port} is in no target port group");
            problems.error(
                &given.span,
                what,
                format!("add it to portal-groups of one: portal-groups = [{port}]"),
            );
        }
    }
    given.end(problems);
    (!alua.groups.is_empty()).then_some(alua)
}

fn group(
    mut given: Table<'_>,
    served_by: &[u16],
    others: &[AluaGroup],
    problems: &mut Problems,
) -> Option<AluaGroup> {
    let id = given.int("id", GROUPS, problems);
    match &id {
        None => given.missing("id", "id = 1", problems),
        Some(id) if others.iter().any(|other| u64::from(other.id) == id.value) => {
            let what = format!("there are two target port groups with id = {}", id.value);
            problems.error(&id.span, what, "give each a number of its own");
        }
        Some(_) => {}
    }
    let mut portal_groups = Vec::new();
    let listed = given.list("portal-groups");
    if listed.as_ref().is_none_or(Vec::is_empty) {
        given.missing("portal-groups", "portal-groups = [1]", problems);
    }
    for value in listed.unwrap_or_default() {
        let Some(port) = int("portal-groups", value, GROUPS, problems) else { continue };
        let port = port.map(|port| port as u16);
        if !served_by.contains(&port.value) {
            let what = format!("portal group {} does not serve the target", port.value);
            problems.error(&port.span, what, format!("these do: {served_by:?}"));
        } else if portal_groups.contains(&port.value)
            || others.iter().any(|other| other.portal_groups.contains(&port.value))
        {
            let what = format!("portal group {} is in two target port groups", port.value);
            problems.error(&port.span, what, "leave it in one of them");
        } else {
            portal_groups.push(port.value);
        }
    }
    if portal_groups.len() > 255 {
        problems.error(&given.span, "a target port group has at most 255 ports", "make two of it");
    }
    let state = given.string("state", problems).and_then(|word| state("state", &word, problems));
    let state = state.unwrap_or(AccessState::ActiveOptimized);
    let preferred = given.bool("preferred", problems).unwrap_or(false);
    let mut states = Vec::new();
    for value in given.list("states").unwrap_or_default() {
        let toml::de::DeValue::String(text) = value.get_ref() else {
            mismatch::<()>("states", "a state in quotes", value.get_ref(), value.span(), problems);
            continue;
        };
        let word = At { value: text.to_string(), span: value.span() };
        states.extend(self::state("states", &word, problems));
    }
    if states.is_empty() {
        states = AccessState::NAMES.map(|(_, state)| state).to_vec();
    } else if !states.contains(&state) {
        let what = format!("the group begins {}, which is none of its states", state.name());
        problems.error(&given.span, what, format!("add \"{}\" to states", state.name()));
    }
    given.end(problems);
    Some(AluaGroup { id: id?.value as u16, portal_groups, state, preferred, states })
}

fn state(key: &str, word: &At<String>, problems: &mut Problems) -> Option<AccessState> {
    let found = AccessState::named(&word.value);
    if found.is_none() {
        let what = format!("{key}: \"{}\" is no state", word.value);
        let names = AccessState::NAMES.map(|(name, _)| format!("\"{name}\""));
        problems.error(&word.span, what, format!("write {}", names.join(", ")));
    }
    found
}
