//! The example that is shipped, and what the messages for common mistakes say.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use backing::spec::CacheMode;

use super::model::{AclLun, Auth};
use super::*;
use crate::unit::Backing;

const EXAMPLE: &str = include_str!("../../../../docs/stag.toml.example");

fn with_directory(text: &str, directory: &Path) -> (Option<Config>, Vec<Problem>) {
    parse(text, &Place { directory, open_to_others: false })
}

/// The errors of `text`: the offending text, what is wrong, and what to write instead.
fn errors(text: &str) -> Vec<(String, String, String)> {
    let (config, problems) = with_directory(text, Path::new("/nowhere"));
    assert!(config.is_none(), "no error in:\n{text}");
    problems.into_iter().map(|p| (text[p.span].to_owned(), p.what, p.instead)).collect()
}

/// As [`errors`], of a target with `units` and `rest`.
fn target_errors(rest: &str) -> Vec<(String, String, String)> {
    errors(&format!(
        "[[target]]\niqn = \"iqn.2026-01.org.example:t\"\n{rest}\n[[target.unit]]\nlun = 0\npath = \"mem:1M\"\n"
    ))
}

#[test]
fn the_shipped_example_is_in_order_and_means_what_it_says() {
    let directory = tempfile::tempdir().unwrap();
    for (name, secret) in
        [("backup.secret", "correct horse battery"), ("target.secret", "staple staple staple")]
    {
        let path = directory.path().join(name);
        fs::write(&path, format!("{secret}\n")).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
    }
    let (config, problems) = with_directory(EXAMPLE, directory.path());
    assert_eq!(problems, []);
    let config = config.unwrap();
    assert_eq!(config.portals.len(), 3);
    assert_eq!(config.targets.len(), 3);
    let disks = &config.targets[0];
    assert_eq!(disks.units[0].spec.options.cache, Some(CacheMode::WriteBack));
    let alua = disks.alua.as_ref().unwrap();
    assert_eq!((alua.groups.len(), alua.keep.clone().unwrap()), (2, "/srv/stag/disks.alua".into()));
    let Auth::Chap(chap) = &disks.auth else { panic!("{:?}", disks.auth) };
    assert_eq!(chap.users[0].secret, b"correct horse battery");
    assert_eq!(chap.mutual.as_ref().unwrap().secret, b"staple staple staple");
    let acls = disks.acls.as_ref().unwrap();
    assert_eq!(acls[1].luns.as_ref().unwrap()[0], AclLun { lun: 1, seen_as: 0, read_only: true });
    let to = config.targets[1].redirect.as_ref().unwrap();
    assert_eq!((to.address.to_string().as_str(), to.permanent), ("192.0.2.20:3260", false));
    assert_eq!(config.targets[2].units[0].spec.backing, Backing::Memory(1 << 30));
    assert_eq!(config.targets[2].acls, None);
}

#[test]
fn the_example_mentions_every_key() {
    let limits = [
        "connections",
        "logins",
        "sessions",
        "connections-per-session",
        "queue-depth",
        "max-recv-data-segment",
        "max-burst",
        "first-burst",
        "max-outstanding-r2t",
        "login-timeout",
        "nop-interval",
        "nop-timeout",
        "send-high-water",
        "error-recovery-level",
        "default-time2wait",
        "default-time2retain",
        "unacknowledged",
        "data-timeout",
        "transport",
        "crc",
        "fpdu",
        "markers",
        "reads",
        "unsolicited-data",
        "explicit",
        "implicit",
        "transition",
        "transition-hint",
        "keep",
        "id",
        "portal-groups",
        "state",
        "preferred",
        "states",
    ];
    let others = [
        "cores",
        "spin",
        "zero-copy",
        "pool",
        "log",
        "listen",
        "group",
        "iqn",
        "alias",
        "groups",
        "auth",
        "users",
        "mutual",
        "hashes",
        "secret",
        "secret-file",
        "lun",
        "path",
        "initiator",
        "luns",
        "as",
        "ro",
        "redirect",
        "to",
        "permanent",
        "after-auth",
        "server",
        "entity",
        "period",
        "esi",
        "iops",
        "read-iops",
        "bandwidth",
        "burst",
    ];
    for key in limits.iter().chain(&others).chain(&crate::unit::options::NAMES) {
        assert!(EXAMPLE.contains(&format!("{key} = ")), "docs/stag.toml.example does not show `{key}`");
    }
}

#[test]
fn a_target_that_is_elsewhere_needs_no_units_and_an_address_without_a_group() {
    let text = |to: &str| format!("[[target]]\niqn = \"iqn.2026-01.org.example:t\"\nredirect = {to}\n");
    let (config, problems) = with_directory(&text("\"[2001:db8::7]\""), Path::new("/nowhere"));
    assert_eq!(problems, []);
    let to = config.unwrap().targets.remove(0).redirect.unwrap();
    assert_eq!((to.address.to_string().as_str(), to.permanent), ("[2001:db8::7]:3260", false));
    for (wrong, what) in [
        ("\"192.0.2.7:3260,1\"", "portal group"),
        ("\"a b\"", "is no portal"),
        ("{ permanent = true }", "has no `to`"),
        ("7", "an address in quotes"),
    ] {
        let found = errors(&text(wrong));
        assert!(found[0].1.contains(what), "{wrong}: {found:?}");
    }
}

#[test]
fn target_port_groups_have_each_portal_group_once_and_states_that_they_support() {
    let target_errors = |rest: &str| format!("{:?}", target_errors(rest));
    let found = target_errors("[target.alua]\n[[target.alua.group]]\nid = 1\nportal-groups = [2]");
    assert!(found.contains("portal group 2 does not serve the target"), "{found}");
    let group = "[[target.alua.group]]\nid = 1\nportal-groups = [1]\n";
    let found = target_errors(&format!("[target.alua]\n{group}{group}"));
    assert!(found.contains("two target port groups with id = 1"), "{found}");
    assert!(found.contains("portal group 1 is in two target port groups"), "{found}");
    let found = target_errors(&format!("[target.alua]\n{group}state = \"asleep\""));
    assert!(found.contains("\\\"standby\\\""), "{found}");
    let found = target_errors(&format!("[target.alua]\n{group}states = [\"standby\"]"));
    assert!(found.contains("none of its states"), "{found}");
    assert!(target_errors("[target.alua]\nexplicit = true").contains("has no `group`"));
}

#[test]
fn limits_are_read_alike_for_units_and_initiators() {
    let text = "[[target]]\niqn = \"iqn.2026-01.org.example:t\"\n[[target.unit]]\nlun = 0\npath = \"mem:1M\"\niops = 500\n\
                burst = 0.5\n[[target.acl]]\ninitiator = \"iqn.2026-01.org.example:i\"\nread-bandwidth = \"10M\"\n";
    let (config, problems) = with_directory(text, Path::new("/nowhere"));
    assert_eq!(problems, []);
    let target = config.unwrap().targets.remove(0);
    let unit = target.units[0].spec.options.limits;
    assert_eq!((unit.iops.total, unit.burst), (Some(500), Some(std::time::Duration::from_millis(500))));
    assert_eq!(target.acls.unwrap()[0].limits.bandwidth.read, Some(10 << 20));
    let found = errors(&text.replace("10M", "fast"));
    assert_eq!(found[0].0, "\"fast\"");
}

#[test]
fn a_link_local_address_names_its_interface() {
    let scope = |text: &str| match address(text)? {
        std::net::SocketAddr::V6(address) => Some((address.port(), address.scope_id())),
        std::net::SocketAddr::V4(_) => None,
    };
    assert_eq!(scope("[fe80::1%7]:99"), Some((99, 7)));
    assert_eq!(scope("[fe80::1%7]"), Some((3260, 7)));
    assert_eq!(scope("fe80::1%7"), Some((3260, 7)));
    let lo = std::fs::read_to_string("/sys/class/net/lo/ifindex").ok();
    assert!(lo.is_none() || scope("[fe80::1%lo]:1").is_some_and(|(_, index)| index > 0));
    for wrong in [
        "[fe80::1%]:1",
        "[fe80::1%none-such-if]:1",
        "[fe80::1%a name that is too long]:1",
        "1.2.3.4%1",
        "[fe80::1%0]",
    ] {
        assert_eq!(address(wrong), None, "{wrong}");
    }
}

#[test]
fn an_unknown_key_is_pointed_at_and_the_nearest_known_one_is_named() {
    let found = target_errors("alais = \"x\"");
    assert_eq!(found, [("alais".into(), "target knows no `alais`".into(), "did you mean `alias`?".into())]);
    let found = errors(
        "[[target]]\niqn = \"iqn.2026-01.org.example:t\"\n[[target.unit]]\nlun = 0\npath = \"mem:1M\"\nremoveable = true\n",
    );
    assert_eq!(found[0].0, "removeable");
    assert_eq!(found[0].2, "did you mean `removable`?");
}

#[test]
fn all_mistakes_are_told_at_once_in_the_order_of_the_file() {
    let found = errors(
        "cores = \"two\"\n[limits]\nqueue-depth = 0\n[[target]]\niqn = \"disks\"\n[[target.unit]]\nlun = 20000\npath = \"mem:1M\"\nbs = 520\n",
    );
    let offending: Vec<&str> = found.iter().map(|(text, ..)| text.as_str()).collect();
    assert_eq!(offending, ["\"two\"", "0", "\"disks\"", "20000", "520"]);
    assert!(found[1].2.contains("1 to 16384"), "{found:?}");
    assert!(found[4].2.contains("512 or 4096"), "{found:?}");
}

#[test]
fn an_acl_that_names_an_absent_lun_is_told_which_there_are() {
    let text = "[[target]]\niqn = \"iqn.2026-01.org.example:t\"\n[[target.unit]]\nlun = 3\npath = \"mem:1M\"\n\
                [[target.acl]]\ninitiator = \"iqn.2026-01.org.example:i\"\nluns = [3, 7]\n";
    let found = errors(text);
    assert_eq!(
        found,
        [("7".into(), "the target has no unit with lun = 7".into(), "its units have 3".into())]
    );
}

#[test]
fn duplicates_are_found() {
    let unit = "[[target.unit]]\nlun = 0\npath = \"/a\"\n";
    let target = format!("[[target]]\niqn = \"iqn.2026-01.org.example:t\"\n{unit}");
    let what = |text: &str| errors(text).into_iter().map(|(_, what, _)| what).collect::<Vec<_>>().join("; ");
    assert!(what(&format!("{target}{unit}")).contains("two units with lun = 0"));
    assert!(what(&format!("{target}{target}")).contains("two targets"));
    assert!(what(&format!("{target}[[target.unit]]\nlun = 1\npath = \"/a\"\n")).contains("two units use /a"));
    assert!(what(&format!("{target}lun = 1\n")).contains("duplicate key"));
    let acl = "[[target.acl]]\ninitiator = \"iqn.2026-01.org.example:i\"\n";
    assert!(what(&format!("{target}{acl}{acl}")).contains("two ACLs"));
    let portal = "[[portal]]\nlisten = \"127.0.0.1:3260\"\n";
    assert!(what(&format!("{portal}{portal}{target}")).contains("listened on twice"));
}

#[test]
fn two_read_only_units_may_share_a_file() {
    let text = "[[target]]\niqn = \"iqn.2026-01.org.example:t\"\n[[target.unit]]\nlun = 0\npath = \"/a\"\nro = true\n\
                [[target.unit]]\nlun = 1\npath = \"/a\"\nro = true\n";
    assert!(with_directory(text, Path::new("")).0.is_some());
}

#[test]
fn secrets_are_checked_and_never_shown() {
    let short = target_errors("auth = { users = [{ name = \"alice\", secret = \"hunter2\" }] }");
    assert!(short[0].1.contains("12 to 255 bytes, and not 7"), "{short:?}");
    assert!(!short[0].1.contains("hunter2"));
    let same = target_errors(
        "auth = { users = [{ name = \"a\", secret = \"123456789012\" }], mutual = { name = \"t\", secret = \"123456789012\" } }",
    );
    assert!(same[0].1.contains("pose as the target"), "{same:?}");
    let hash = target_errors(
        "auth = { users = [{ name = \"a\", secret = \"123456789012\" }], hashes = [\"sha265\"] }",
    );
    assert_eq!(hash[0].2, "did you mean \"sha256\"?");
    let missing = target_errors("auth = { users = [{ name = \"a\", secret-file = \"gone\" }] }");
    assert!(missing[0].1.contains("/nowhere/gone"), "{missing:?}");
}

#[test]
fn a_file_that_others_may_read_is_warned_of_and_used() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("stag.toml");
    let text = "[[target]]\niqn = \"iqn.2026-01.org.example:t\"\nauth = { users = [{ name = \"a\", secret = \"123456789012\" }] }\n\
                [[target.unit]]\nlun = 0\npath = \"mem:1M\"\n";
    fs::write(&path, text).unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o644)).unwrap();
    let (config, warnings) = load(&path).unwrap();
    assert_eq!(warnings.len(), 1);
    assert!(!format!("{config:?} {}", summary(&config)).contains("123456789012"));
    fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
    assert!(load(&path).unwrap().1.is_empty());
}

#[test]
fn a_shown_error_names_file_line_column_text_and_remedy() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("stag.toml");
    fs::write(&path, "cores = 1\nspiin = 20\n[[target]]\niqn = \"iqn.2026-01.org.example:t\"\n[[target.unit]]\nlun = 0\npath = \"mem:1M\"\n").unwrap();
    let error = load(&path).unwrap_err();
    let mut shown = String::new();
    let theme = miette::GraphicalTheme::unicode_nocolor();
    miette::GraphicalReportHandler::new_themed(theme).render_report(&mut shown, &error).unwrap();
    for part in ["stag.toml:2:1", "spiin = 20", "did you mean `spin`?"] {
        assert!(shown.contains(part), "{part} is not in\n{shown}");
    }
}

#[test]
fn no_text_makes_the_reader_panic() {
    let base = EXAMPLE.as_bytes();
    // Every prefix of the example, and the example with one byte struck out at a time.
    for at in (0..base.len()).filter(|at| EXAMPLE.is_char_boundary(*at)) {
        let _ = with_directory(&EXAMPLE[..at], Path::new("/nowhere"));
    }
    for at in (0..base.len()).step_by(3) {
        let mut text = base.to_vec();
        text.remove(at);
        if let Ok(text) = String::from_utf8(text) {
            let _ = with_directory(&text, Path::new("/nowhere"));
        }
    }
}

#[test]
fn a_data_segment_that_no_buffer_holds_is_refused() {
    let found = errors("[limits]\nmax-recv-data-segment = \"1M\"\n");
    assert!(found.iter().any(|(text, _, _)| text == "\"1M\""), "{found:?}");
}
