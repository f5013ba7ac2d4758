//! Warnings about configurations that are legal and probably not intended. The daemon prints them
//! at start, and `check-config` prints them too.

use backing::size::Size;

use crate::config::{Auth, Config, Export, Target};
use crate::export::Shown;
use crate::unit::Backing;

/// Everything that is worth a warning.
pub fn warnings(config: &Config) -> Vec<String> {
    let open = config.targets.iter().filter_map(|target| open_to_all(config, target));
    let exported = config.exports.iter().filter_map(|export| exported_to_all(config, export));
    open.chain(exported).chain(too_much_memory(config, memory())).collect()
}

/// A target that every host of a network may read and write.
fn open_to_all(config: &Config, target: &Target) -> Option<String> {
    if target.acls.is_some() || target.auth != Auth::None || target.units.is_empty() {
        return None;
    }
    let serves = |group: u16| target.groups.is_empty() || target.groups.contains(&group);
    let portal =
        config.portals.iter().find(|portal| serves(portal.group) && !portal.listen.ip().is_loopback())?;
    let may = match target.units.iter().all(|unit| unit.spec.options.ro == Some(true)) {
        true => "read",
        false => "read and write",
    };
    Some(format!(
        "every host that reaches {} may {may} the units of {}: it has neither CHAP (auth) nor access lists (acl)",
        portal.listen, target.iqn
    ))
}

/// An export that every host of a network may mount and write to, though nobody has said so: a
/// client with the network `*` says it.
fn exported_to_all(config: &Config, export: &Export) -> Option<String> {
    if !export.clients.is_empty() {
        return None;
    }
    let portals = config.nfs_portals();
    let portal = portals.iter().find(|portal| !portal.listen.ip().is_loopback())?;
    Some(format!(
        "every host that reaches {} may read and write the export {}: it names no clients ([[export.client]])",
        portal.listen, export.name
    ))
}

/// Units and exports in memory that together are larger than this machine's memory.
fn too_much_memory(config: &Config, machine: Option<u64>) -> Option<String> {
    let of = |unit: &crate::config::Lun| match unit.spec.backing {
        Backing::Memory(bytes) => unit.spec.options.quota.unwrap_or(bytes).min(bytes),
        Backing::ObjectMemory(bytes) => bytes,
        Backing::Path(_) | Backing::Objects(_) | Backing::Rbd(_) | Backing::Nbd(_) | Backing::Iscsi(_) => 0,
    };
    let units = config.targets.iter().flat_map(|target| &target.units);
    let exports = config.exports.iter().map(|export| match export.shown {
        Shown::Memory(bytes) => bytes,
        Shown::Directory(_) => 0,
    });
    let wanted = units.map(of).chain(exports).fold(0u64, u64::saturating_add);
    let machine = machine.filter(|machine| wanted > *machine)?;
    Some(format!(
        "the units and exports in memory have {} together, and this machine has {}: the system will end the daemon when they are filled",
        Size(wanted),
        // In whole GiB, if there is at least one.
        Size(if machine >> 30 > 0 { machine >> 30 << 30 } else { machine })
    ))
}

/// The memory of this machine, bytes.
fn memory() -> Option<u64> {
    let text = std::fs::read_to_string("/proc/meminfo").ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix("MemTotal:"))?;
    line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()?.checked_mul(1024)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config;

    fn said(text: &str) -> Vec<String> {
        let text = format!(
            "[[portal]]\nlisten = \"0.0.0.0:3260\"\n[[target]]\niqn = \"iqn.2026-01.org.example:t\"\n{text}"
        );
        let (config, _) =
            config::load_text("test", &text, &config::Place::new(std::path::Path::new(""))).unwrap();
        let mut said: Vec<String> = config.targets.iter().filter_map(|of| open_to_all(&config, of)).collect();
        said.extend(config.exports.iter().filter_map(|of| exported_to_all(&config, of)));
        said.extend(too_much_memory(&config, Some(1 << 30)));
        said
    }

    const UNIT: &str = "[[target.unit]]\nlun = 0\npath = \"mem:1G\"\n";

    #[test]
    fn an_open_target_is_reported_unless_it_is_for_loopback_only() {
        assert_eq!(
            said(UNIT),
            [
                "every host that reaches 0.0.0.0:3260 may read and write the units of iqn.2026-01.org.example:t: it has neither CHAP \
              (auth) nor access lists (acl)"
            ]
        );
        assert!(said(&format!("{UNIT}ro = true\n"))[0].contains(" may read the units "));
        assert!(
            said(&format!("{UNIT}[[target.acl]]\ninitiator = \"iqn.1993-08.org.debian:01:a\"\n")).is_empty()
        );
        let chap = "[target.auth]\nusers = [{ name = \"a\", secret = \"a secret of its own\" }]\n";
        assert!(said(&format!("{chap}{UNIT}")).is_empty());
    }

    #[test]
    fn an_export_without_clients_is_reported_unless_it_is_for_loopback_only() {
        let export = "[[export]]\nname = \"/data\"\npath = \"/srv/data\"\n";
        let listen = |at: &str| format!("[nfs]\nlisten = [\"{at}:2049\"]\n");
        assert_eq!(
            said(&format!("{}{export}", listen("0.0.0.0"))),
            [
                "every host that reaches 0.0.0.0:2049 may read and write the export /data: it names no clients ([[export.client]])"
            ]
        );
        assert!(said(export).is_empty(), "it listens at loopback");
        assert!(said(&format!("{}{export}", listen("127.0.0.1"))).is_empty());
        let all = "[[export.client]]\nnetwork = \"*\"\n";
        assert!(said(&format!("{}{export}{all}", listen("0.0.0.0"))).is_empty(), "somebody has said so");
    }

    #[test]
    fn more_memory_than_there_is_is_told_and_a_quota_counts() {
        let acl = "[[target.acl]]\ninitiator = \"iqn.1993-08.org.debian:01:a\"\n";
        let unit = |lun, rest: &str| format!("[[target.unit]]\nlun = {lun}\npath = \"mem:1G\"\n{rest}");
        let both = said(&format!("{}{}{acl}", unit(0, ""), unit(1, "")));
        assert_eq!(
            both,
            [
                "the units and exports in memory have 2G together, and this machine has 1G: the system will end the daemon when they are filled"
            ]
        );
        let export = "[[export]]\nname = \"/data\"\npath = \"mem:1G\"\n";
        assert_eq!(said(&format!("{}{acl}{export}", unit(0, ""))), both);
        let small = "thin = true\nquota = \"1M\"\n";
        assert!(said(&format!("{}{}{acl}", unit(0, small), unit(1, small))).is_empty());
    }
}
