//! The summary that `stag check-config` prints of a valid configuration. It has no secrets.

use std::fmt::Write;

use scsi::data::target_port_groups::AccessState;

use super::model::{AclLun, AluaGroup, Auth, Config, Redirect, Target};
use super::settings::Group;
use super::value::{Value, table_values};

// Special code reads these.
table_values! {
    AclLun, |_, _, _| None, acl_lun;
    AluaGroup, |_, _, _| None, |group: &AluaGroup| group.id.to_string();
}

/// `config` in words.
pub fn summary(config: &Config) -> String {
    let mut out = String::new();
    let _ = write_summary(&mut out, config);
    out
}

fn write_summary(out: &mut String, config: &Config) -> std::fmt::Result {
    if config.portals.is_empty() {
        writeln!(out, "listens where --listen says")?;
    }
    for portal in &config.portals {
        let lets_in = portal.lets_in();
        writeln!(out, "listens on {} for {lets_in} (portal group {})", portal.listen, portal.group)?;
    }
    writeln!(out, "discovery: {}", auth(&config.discovery))?;
    if let Some(isns) = &config.isns {
        let more = with(&isns.said(&["server"]));
        writeln!(out, "registers with the iSNS server {}{more}", isns.server)?;
    }
    if let Some(http) = &config.http {
        let more = with(&http.said(&["listen"]));
        writeln!(out, "answers HTTP on {}: /metrics, /healthz, /readyz{more}", http.listen)?;
    }
    if let Some(group) = &config.gateways {
        let more = with(&group.said(&["number", "pool", "secret-file"]));
        writeln!(out, "gateway {} of {} in pool {}{more}", group.number, group.members.len(), group.pool)?;
        for member in &group.members {
            let portals: Vec<String> = member.portals.iter().map(ToString::to_string).collect();
            writeln!(out, "  gateway {}: {}, link {}", member.number, portals.join(" and "), member.link)?;
        }
    }
    let all = [
        ("daemon", config.daemon.said(&[])),
        ("limits", config.limits.said(&[])),
        ("iser", config.iser.said(&[])),
    ];
    for (name, said) in all.iter().filter(|(_, said)| !said.is_empty()) {
        writeln!(out, "{name}: {}", said.join(", "))?;
    }
    for target in &config.targets {
        write_target(out, target)?;
    }
    write_exports(out, config)?;
    Ok(())
}

fn write_exports(out: &mut String, config: &Config) -> std::fmt::Result {
    if !config.nfs_portals().is_empty() {
        let listen: Vec<String> = config.nfs_portals().iter().map(ToString::to_string).collect();
        let more = with(&config.nfs.said(&["listen", "verbs"]));
        writeln!(out, "\nNFS listens on {}{more}", listen.join(" and "))?;
    }
    for export in &config.exports {
        let how = if export.asynchronous { ", asynchronous" } else { "" };
        let whose = if export.exclusive { ", exclusive" } else { "" };
        writeln!(out, "\nexport {}: {}{how}{whose}", export.name, export.shown)?;
        if export.clients.is_empty() {
            writeln!(out, "  open to everybody, root squashed")?;
        }
        for client in &export.clients {
            let more = with(&client.said(&["network"]));
            let limits: String = client.limits.describe().iter().map(|limit| format!(", {limit}")).collect();
            writeln!(out, "  {}{more}{limits}", client.network)?;
        }
    }
    Ok(())
}

fn write_target(out: &mut String, target: &Target) -> std::fmt::Result {
    let alias = if target.alias.is_empty() { String::new() } else { format!(" \"{}\"", target.alias) };
    writeln!(out, "\ntarget {}{alias}", target.iqn)?;
    writeln!(out, "  authentication: {}", auth(&target.auth))?;
    if !target.groups.is_empty() {
        writeln!(out, "  portal groups: {:?}", target.groups)?;
    }
    if let Some(to) = &target.redirect {
        writeln!(out, "  sends initiators to {}", redirect(to))?;
    }
    if let Some(alua) = &target.alua {
        let who = match (alua.explicit, alua.implicit) {
            (true, true) => "initiators and the target change states",
            (true, false) => "initiators change states",
            (false, true) => "the target changes states",
            (false, false) => "nobody changes states",
        };
        let more = with(&alua.said(&["explicit", "implicit", "group"]));
        writeln!(out, "  asymmetric access: {who}{more}")?;
        for group in &alua.groups {
            let preferred = if group.preferred { ", preferred" } else { "" };
            let (id, ports) = (group.id, &group.portal_groups);
            let states = match group.states.len() {
                all if all == AccessState::NAMES.len() => String::new(),
                _ => with(&group.said(&["id", "portal-groups", "state", "preferred"])),
            };
            let state = group.state.name();
            writeln!(out, "    group {id} of portal groups {ports:?}: {state}{preferred}{states}")?;
        }
    }
    for unit in &target.units {
        writeln!(out, "  lun {}: {}", unit.lun, unit.spec.describe())?;
    }
    let Some(acls) = &target.acls else { return writeln!(out, "  open to every initiator") };
    if acls.is_empty() {
        writeln!(out, "  open to nobody: its list of ACLs is empty")?;
    }
    for acl in acls {
        let proof =
            acl.auth.as_ref().map_or_else(String::new, |own| format!(", authentication: {}", auth(own)));
        let user = acl.user.as_ref().map_or_else(String::new, |user| format!(", as user {user} only"));
        let sees = match &acl.luns {
            None => "all units".to_owned(),
            Some(luns) => {
                if luns.is_empty() {
                    "nothing".to_owned()
                } else {
                    luns.iter().map(acl_lun).collect::<Vec<_>>().join(", ")
                }
            }
        };
        let limits: String = acl.limits.describe().iter().map(|limit| format!(", {limit}")).collect();
        writeln!(out, "  {}: {sees}{proof}{user}{limits}", acl.initiator)?;
    }
    Ok(())
}

/// A unit as an initiator sees it.
pub fn acl_lun(lun: &AclLun) -> String {
    let renamed = if lun.seen_as == lun.unit { String::new() } else { format!(" as {}", lun.seen_as) };
    format!("lun {}{renamed}{}", lun.unit, if lun.read_only { " read-only" } else { "" })
}

/// The redirection of a target, in words.
pub fn redirect(to: &Redirect) -> String {
    let how = if to.permanent { "for good" } else { "for now" };
    let when = if to.after_auth { ", once they have proved who they are" } else { "" };
    format!("{} {how}{when}", to.address)
}

/// `said`, to append to a line.
fn with(said: &[String]) -> String {
    said.iter().map(|one| format!(", {one}")).collect()
}

/// Initiators' authentication, in words without secrets.
pub fn auth(auth: &Auth) -> String {
    match auth {
        Auth::None => "none".into(),
        Auth::Chap(chap) => {
            let names: Vec<&str> = chap.users.iter().map(|user| user.name.as_str()).collect();
            let hashes: Vec<String> = chap.hashes.iter().filter_map(Value::show).collect();
            let mutual =
                chap.mutual.as_ref().map_or_else(String::new, |own| format!(", mutual as {}", own.name));
            format!("CHAP as {}{mutual} ({})", names.join(" or "), hashes.join(", "))
        }
    }
}
