//! Warnings about configurations that are legal and probably not intended. The daemon prints them
//! at start, and `check-config` prints them too.

use backing::size::Size;

use crate::config::{Auth, Config, Target};
use crate::unit::Backing;

/// Everything that is worth a warning.
pub fn warnings(config: &Config) -> Vec<String> {
    let open = config.targets.iter().filter_map(|target| open_to_all(config, target));
    open.chain(too_much_memory(config, memory())).collect()
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

/// Memory units that together are larger than this machine's memory.
fn too_much_memory(config: &Config, machine: Option<u64>) -> Option<String> {
    let of = |unit: &crate::config::Lun| match unit.spec.backing {
        Backing::Memory(bytes) => unit.spec.options.quota.unwrap_or(bytes).min(bytes),
        Backing::ObjectMemory(bytes) => bytes,
        Backing::Path(_) | Backing::Objects(_) => 0,
    };
    let units = config.targets.iter().flat_map(|target| &target.units);
    let wanted = units.fold(0u64, |sum, unit| sum.saturating_add(of(unit)));
    let machine = machine.filter(|machine| wanted > *machine)?;
    Some(format!(
        "the units in memory have {} together, and this machine has {}: the system will end the daemon when they are filled",
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
    fn more_memory_than_there_is_is_told_and_a_quota_counts() {
        let acl = "[[target.acl]]\ninitiator = \"iqn.1993-08.org.debian:01:a\"\n";
        let unit = |lun, rest: &str| format!("[[target.unit]]\nlun = {lun}\npath = \"mem:1G\"\n{rest}");
        let both = said(&format!("{}{}{acl}", unit(0, ""), unit(1, "")));
        assert_eq!(
            both,
            [
                "the units in memory have 2G together, and this machine has 1G: the system will end the daemon when they are filled"
            ]
        );
        let small = "thin = true\nquota = \"1M\"\n";
        assert!(said(&format!("{}{}{acl}", unit(0, small), unit(1, small))).is_empty());
    }
}
