//! What `stag check-config` prints of a configuration that is in order. Secrets are not among it.

use std::fmt::Write;

use super::model::{AclLun, Auth, Config, Target};

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
        let lets_in = super::iser::describe(portal.transports);
        writeln!(out, "listens on {} for {lets_in} (portal group {})", portal.listen, portal.group)?;
    }
    writeln!(out, "discovery: {}", auth(&config.discovery))?;
    if let Some(isns) = &config.isns {
        writeln!(out, "registers with the iSNS server {}", isns.server)?;
    }
    for target in &config.targets {
        write_target(out, target)?;
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
        let how = if to.permanent { "for good" } else { "for now" };
        let when = if to.after_auth { ", once they have proved who they are" } else { "" };
        writeln!(out, "  sends initiators to {} {how}{when}", to.address)?;
    }
    if let Some(alua) = &target.alua {
        let who = match (alua.explicit, alua.implicit) {
            (true, true) => "initiators and the target change states",
            (true, false) => "initiators change states",
            (false, true) => "the target changes states",
            (false, false) => "nobody changes states",
        };
        writeln!(out, "  asymmetric access: {who}")?;
        for group in &alua.groups {
            let preferred = if group.preferred { ", preferred" } else { "" };
            let (id, ports) = (group.id, &group.portal_groups);
            writeln!(out, "    group {id} of portal groups {ports:?}: {}{preferred}", group.state.name())?;
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
        let sees = match &acl.luns {
            None => "all units".to_owned(),
            Some(luns) => {
                let one = |lun: &AclLun| {
                    let renamed =
                        if lun.seen_as == lun.lun { String::new() } else { format!(" as {}", lun.seen_as) };
                    format!("lun {}{renamed}{}", lun.lun, if lun.read_only { " read-only" } else { "" })
                };
                if luns.is_empty() {
                    "nothing".to_owned()
                } else {
                    luns.iter().map(one).collect::<Vec<_>>().join(", ")
                }
            }
        };
        let limits: String = acl.limits.describe().iter().map(|limit| format!(", {limit}")).collect();
        writeln!(out, "  {}: {sees}{proof}{limits}", acl.initiator)?;
    }
    Ok(())
}

fn auth(auth: &Auth) -> String {
    match auth {
        Auth::None => "none".into(),
        Auth::Chap(chap) => {
            let names: Vec<&str> = chap.users.iter().map(|user| user.name.as_str()).collect();
            let hashes: Vec<&str> = chap.hashes.iter().map(|hash| hash.name()).collect();
            let mutual =
                chap.mutual.as_ref().map_or_else(String::new, |own| format!(", mutual as {}", own.name));
            format!("CHAP as {}{mutual} ({})", names.join(" or "), hashes.join(", "))
        }
    }
}
