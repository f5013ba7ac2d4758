//! Writes what was imported as a configuration of Stag.

use std::collections::BTreeMap;
use std::fmt::Write;

use super::{Acl, Chap, Imported, Target};

pub(super) fn text(imported: &Imported) -> String {
    let mut text = "# Made by `stag import`. Each unit has the serial number and worldwide name by which initiators know it.\n"
        .to_owned();
    for note in &imported.notes {
        let _ = writeln!(text, "# Not carried over: {note}");
    }
    let groups = groups(&imported.targets);
    for (group, portals) in &groups {
        let _ = writeln!(
            text,
            "\n[[portal]]\nlisten = {}\ngroup = {group}",
            list(portals.iter().map(|at| quoted(at)))
        );
    }
    if let Some(chap) = &imported.discovery {
        let _ = writeln!(text, "\n[discovery]\nauth = {}", auth(chap));
    }
    imported.targets.iter().for_each(|target| text.push_str(&written(target, &groups)));
    text
}

fn written(target: &Target, groups: &BTreeMap<usize, Vec<String>>) -> String {
    let mut text = format!("\n[[target]]\niqn = {}\n", quoted(&target.iqn));
    let own =
        groups.iter().filter(|(_, portals)| portals.iter().any(|portal| target.portals.contains(portal)));
    let own: Vec<String> = own.map(|(group, _)| group.to_string()).collect();
    if own.len() < groups.len() {
        let _ = writeln!(text, "groups = {}", list(own.into_iter()));
    }
    if let Some(chap) = &target.auth {
        let _ = writeln!(text, "auth = {}", auth(chap));
    }
    for unit in &target.units {
        let _ = writeln!(text, "\n[[target.unit]]\nlun = {}\npath = {}", unit.lun, quoted(&unit.path));
        for (key, value) in &unit.options {
            let _ = writeln!(text, "{key} = {value}");
        }
    }
    target.acls.iter().for_each(|acl| text.push_str(&rights(acl)));
    text
}

fn rights(acl: &Acl) -> String {
    let mut text = format!("\n[[target.acl]]\ninitiator = {}\n", quoted(&acl.initiator));
    if let Some(chap) = &acl.auth {
        let _ = writeln!(text, "auth = {}", auth(chap));
    }
    if let Some(luns) = &acl.luns {
        let lun = |(lun, seen, read_only): &(u16, u16, bool)| match read_only {
            true => format!("{{ lun = {lun}, as = {seen}, ro = true }}"),
            false => format!("{{ lun = {lun}, as = {seen} }}"),
        };
        let _ = writeln!(text, "luns = {}", list(luns.iter().map(lun)));
    }
    if acl.read_only {
        text.push_str("ro = true\n");
    }
    text
}

/// Portals in groups: those that the same targets have are in one, by their tags from 1 on.
fn groups(targets: &[Target]) -> BTreeMap<usize, Vec<String>> {
    let mut users: BTreeMap<&String, Vec<usize>> = BTreeMap::new();
    for (number, target) in targets.iter().enumerate() {
        for portal in &target.portals {
            let users = users.entry(portal).or_default();
            if !users.contains(&number) {
                users.push(number);
            }
        }
    }
    let mut groups: BTreeMap<&Vec<usize>, Vec<String>> = BTreeMap::new();
    users.iter().for_each(|(portal, users)| groups.entry(users).or_default().push((*portal).clone()));
    (1..).zip(groups.into_values()).collect()
}

fn auth(chap: &Chap) -> String {
    let user = |(name, secret): &(String, String)| {
        format!("{{ name = {}, secret = {} }}", quoted(name), quoted(secret))
    };
    let mutual = chap.mutual.as_ref().map_or(String::new(), |mutual| format!(", mutual = {}", user(mutual)));
    format!("{{ users = {}{mutual} }}", list(chap.users.iter().map(user)))
}

fn list(items: impl Iterator<Item = String>) -> String {
    format!("[{}]", items.collect::<Vec<_>>().join(", "))
}

fn quoted(text: &str) -> String {
    toml::Value::from(text).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn portals_of_the_same_targets_share_a_group_and_others_do_not() {
        let target = |portals: &[&str]| Target {
            portals: portals.iter().map(|portal| (*portal).to_owned()).collect(),
            ..Target::default()
        };
        let (a, b, c) = ("192.0.2.1:3260", "192.0.2.2:3260", "192.0.2.3:3260");
        let groups = groups(&[target(&[a, b, c]), target(&[c])]);
        assert_eq!(groups, BTreeMap::from([(1, vec![a.to_owned(), b.to_owned()]), (2, vec![c.to_owned()])]));
    }
}
