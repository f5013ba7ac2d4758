//! This machine's part of Stag's default iSCSI names, so that two machines never share a name.

use std::fs;
use std::sync::OnceLock;

use backing::durable;
use sha2::{Digest, Sha256};

use crate::state::{self, hex};

/// The longest part of the host's name that is used, bytes.
const LONGEST: usize = 32;

/// The host's name and six digits of a hash of its machine-id: `alpha-3f9a01`.
pub fn tag() -> &'static str {
    static TAG: OnceLock<String> = OnceLock::new();
    TAG.get_or_init(|| {
        let host = fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
        let id = ["/etc/machine-id", "/var/lib/dbus/machine-id"].into_iter().find_map(machine_id);
        make(&host, &id.or_else(own_id).unwrap_or_default())
    })
}

fn machine_id(path: &str) -> Option<String> {
    let id = fs::read_to_string(path).ok()?;
    // An image that has not been booted has "uninitialized" there.
    let id = id.trim();
    (id.len() >= 32 && id.bytes().all(|digit| digit.is_ascii_hexdigit())).then(|| id.to_owned())
}

/// The id in the state directory, for a container without a machine-id.
fn own_id() -> Option<String> {
    let path = state::path("machine", "id").ok()?;
    if let Ok(id) = fs::read_to_string(&path) {
        return Some(id);
    }
    let mut bytes = [0; 16];
    getrandom::fill(&mut bytes).ok()?;
    state::make_folder(&path).ok()?;
    durable::replace(&path, hex(&bytes).as_bytes()).ok()?;
    Some(hex(&bytes))
}

/// Combines the host's name and a hash of the machine-id made for this purpose. The machine-id
/// itself must stay private (machine-id(5)).
fn make(host: &str, id: &str) -> String {
    let host: String = host
        .trim()
        .split('.')
        .next()
        .unwrap_or_default()
        .to_ascii_lowercase()
        .chars()
        .map(|c| if c.is_ascii_lowercase() || c.is_ascii_digit() { c } else { '-' })
        .take(LONGEST)
        .collect();
    let host = Some(host.trim_matches('-')).filter(|host| !host.is_empty()).unwrap_or("host");
    let hash = Sha256::new().chain_update("stag iSCSI name\0").chain_update(id.trim()).finalize();
    format!("{host}-{}", hex(&hash[..3]))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn machines_with_other_ids_or_hosts_have_other_tags_that_fit_a_name() {
        let tags = [make("Alpha.example.org\n", "1"), make("alpha", "2"), make("beta", "1")];
        assert!(tags[0].starts_with("alpha-") && tags[0] != tags[1] && tags[0] != tags[2]);
        for host in ["", "__", "ÄÖ", &"x".repeat(64)] {
            let name = format!("iqn.2026-01.org.stag:{}:disk", make(host, "1"));
            assert_eq!(crate::iqn::check(&name), Ok(()), "{name}");
        }
    }
}
