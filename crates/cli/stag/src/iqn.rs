//! iSCSI names as users write them, checked by the protocol's own rules, and Stag's default names.

use crate::machine;

/// The target that versions up to 0.1 served if no name was given, on every machine.
pub const OLD_DEFAULT_TARGET: &str = "iqn.2026-01.org.stag:disk";
/// The file in which open-iscsi keeps this machine's initiator name.
const INITIATOR_NAME: &str = "/etc/iscsi/initiatorname.iscsi";
/// Advice for an invalid name.
pub const EXAMPLE: &str = "write a name such as iqn.2026-01.org.example:disks (RFC 7143 §4.2.7)";

/// The target that `stag serve` serves if no name is given: one of this machine.
pub fn default_target() -> String {
    format!("iqn.2026-01.org.stag:{}:disk", machine::tag())
}

/// The name of this machine as an initiator: the system's if it can be read, else a default.
pub fn default_initiator() -> String {
    let system = std::fs::read_to_string(INITIATOR_NAME).ok().and_then(|text| initiator_name(&text));
    system.unwrap_or_else(|| format!("iqn.2026-01.org.stag:{}:initiator", machine::tag()))
}

fn initiator_name(text: &str) -> Option<String> {
    let name = text.lines().find_map(|line| line.trim().strip_prefix("InitiatorName="))?.trim();
    check(name).is_ok().then(|| name.to_owned())
}

/// Whether `name` is an iSCSI name.
///
/// # Errors
/// It is not.
pub fn check(name: &str) -> Result<(), String> {
    iscsi::name::check(name).map_err(|error| error.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_systems_initiator_name_is_found_among_comments() {
        let text = "## DO NOT EDIT\n#InitiatorName=iqn.1993-08.org.debian:01:old\n InitiatorName=iqn.1993-08.org.debian:01:abc \n";
        assert_eq!(initiator_name(text).as_deref(), Some("iqn.1993-08.org.debian:01:abc"));
        for text in ["", "GenerateName=yes\n", "InitiatorName=\n", "InitiatorName=nonsense\n"] {
            assert_eq!(initiator_name(text), None);
        }
    }
}
