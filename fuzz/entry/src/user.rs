//! Input of users: the configuration file, and URLs of portals, targets and units.

use crate::input::Seed;
use iscsi_client::Url;
#[cfg(feature = "config")]
use std::path::Path;

/// A configuration: every mistake is shown, and an accepted one can be summed up.
#[cfg(feature = "config")]
pub fn config(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else { return };
    // No secret is found in a directory that is none.
    match stag::check_config_text(text, Path::new("/dev/null")) {
        Ok(shown) | Err(shown) => assert!(!shown.is_empty() || text.trim().is_empty()),
    }
}

/// A file with every key (a copy of an example in docs/, which may change without this), and files
/// with one mistake each.
#[cfg(feature = "config")]
pub fn config_seeds() -> Vec<(&'static str, Seed)> {
    let seed = |text: &str| Seed::new().bytes(text);
    let target = "[[target]]\niqn = \"iqn.2026-01.org.stag:x\"\n";
    let unit = "[[target.unit]]\nlun = 0\npath = \"mem:1M\"\n";
    let users = "[target.auth]\nusers = [{ name = \"u\", secret = \"a long enough secret\" }]\n";
    vec![
        ("every-key", seed(include_str!("every-key.toml"))),
        ("small", seed(&format!("{target}{unit}"))),
        ("chap", seed(&format!("{target}{users}hashes = [\"sha256\"]\n{unit}"))),
        ("unknown-key", seed(&format!("{target}{unit}siez = \"1G\"\n"))),
        ("duplicate-lun", seed(&format!("{target}{unit}{unit}"))),
        ("bad-name", seed("[[target]]\niqn = \"iqn.x:\u{e9}\"\n")),
        ("bad-portal", seed("[[portal]]\nlisten = [\"1.2.3.4:99999\", \"[::1\", \"\"]\ngroup = 70000\n")),
        ("syntax", seed("[[target]\niqn = 'x\n")),
        (
            "limits",
            seed(
                "cores = -1\npool = \"1Q\"\n[limits]\nsessions = 1e9\nfirst-burst = \"2M\"\nmax-burst = \"1M\"\n",
            ),
        ),
        (
            "acl",
            seed(&format!(
                "{target}{unit}[[target.acl]]\ninitiator = \"*\"\nluns = [0, 1, {{ lun = 0, as = 2 }}]\n"
            )),
        ),
    ]
}

/// A URL: a parsed one can be printed, and then parses to the same.
pub fn url(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else { return };
    match text.parse::<Url>() {
        Ok(url) => {
            let without = Url { credential: None, ..url.clone() };
            let shown = without.to_string();
            assert_eq!(shown.parse::<Url>().as_ref().ok(), Some(&without), "{shown}");
            assert!(!format!("{url:?}").contains("secret of the user"));
        }
        Err(error) => assert!(!error.to_string().is_empty()),
    }
}

/// URLs of each form, and malformed ones.
pub fn url_seeds() -> Vec<(&'static str, Seed)> {
    let seed = |text: &str| Seed::new().bytes(text);
    vec![
        ("unit", seed("iscsi://192.0.2.1:3260/iqn.2026-01.org.stag:disk/0")),
        ("login", seed("iscsi://user%secret of the user@host/iqn.2026-01.org.stag:disk/16383")),
        ("ipv6", seed("iscsi://[2001:db8::1]:860/iqn.2026-01.org.stag:disk")),
        ("portal", seed("iscsi://host")),
        ("bad-port", seed("iscsi://host:0/eui.02004567a425678d/1")),
        ("rest", seed("iscsi://host/iqn.2026-01.org.stag:disk/0/more")),
    ]
}
