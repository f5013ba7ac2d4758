//! The example that is shipped, and what the messages for common mistakes say.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use backing::spec::CacheMode;
use iscsi::chap::Secret;

use super::model::{AclLun, Auth};
use super::settings::{Form, Group};
use super::*;
use crate::unit::Backing;

const EXAMPLE: &str = include_str!("../../../../../dist/stag.toml.example");

fn with_directory(text: &str, directory: &Path) -> (Option<Config>, Vec<Problem>) {
    parse(text, &Place::new(directory))
}

/// The errors of `text`: the offending text, the mistake, and the advice.
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
    assert_eq!(chap.users[0].secret, Secret::new(*b"correct horse battery"));
    assert_eq!(chap.mutual.as_ref().unwrap().secret, Secret::new(*b"staple staple staple"));
    let acls = disks.acls.as_ref().unwrap();
    assert_eq!(acls[0].user.as_deref(), Some("backup"));
    assert_eq!(acls[1].luns.as_ref().unwrap()[0], AclLun { unit: 1, seen_as: 0, read_only: true });
    let to = config.targets[1].redirect.as_ref().unwrap();
    assert_eq!((to.address.to_string().as_str(), to.permanent), ("192.0.2.20:3260", false));
    assert_eq!(config.targets[2].units[0].spec.backing, Backing::Memory(1 << 30));
    assert_eq!(config.targets[2].acls, None);
    assert_eq!((config.nfs.listen.len(), config.exports.len()), (1, 1));
    assert_eq!(
        config.exports[0].clients,
        [Client {
            network: "192.0.2.0/24".parse().unwrap(),
            limits: crate::unit::limits::Limits { bandwidth: Some(100 << 20), ..Default::default() },
            ..Client::default()
        }]
    );
}

#[test]
fn the_example_shows_every_key_and_the_defaults() {
    for key in reference::keys(None).iter().filter(|key| !matches!(key.form, Form::List(Form::Table(_)))) {
        let line = format!("{} = ", key.name);
        assert!(EXAMPLE.contains(&line), "dist/stag.toml.example does not show `{}`", key.name);
    }
    // Tables whose values are their defaults, unless their comments say otherwise.
    let whole = EXAMPLE.find("[isns]").unwrap();
    let (config, problems) = with_directory(&EXAMPLE[..whole], Path::new("/nowhere"));
    assert_eq!(problems, []);
    let config = config.unwrap();
    let said = |said: Vec<String>| said.iter().map(|one| one.split(' ').next().unwrap().to_owned()).collect();
    let all: [Vec<String>; 3] =
        [said(config.daemon.said(&[])), said(config.limits.said(&[])), said(config.iser.said(&[]))];
    assert_eq!(all[0], ["log", "log-format"]);
    assert_eq!(all[1], ["congestion-control"]);
    assert_eq!(all[2], Vec::<String>::new());
}

#[test]
fn a_certificate_needs_its_key() {
    let found = errors("[http]\nlisten = \"127.0.0.1\"\ncertificate = \"a.pem\"\n");
    assert_eq!(found[0].1, "certificate and key belong together");
}

/// Each word of `group`'s settings is read, and shown as it is written.
fn check_words<G: Group>(mut group: G) {
    for (setting, cell) in G::SETTINGS.iter().zip(group.cells_mut()) {
        let Form::Words(words) = setting.form else { continue };
        for (word, _) in words {
            cell.set(setting, word).unwrap();
            assert_eq!(cell.show().as_deref(), Some(*word), "{}", setting.name);
        }
        assert!(cell.set(setting, "qqqqqq").unwrap_err().instead.contains(words[0].0), "{}", setting.name);
    }
}

#[test]
fn every_word_of_a_setting_is_read_and_shown_as_it_is_written() {
    check_words(Daemon::default());
    check_words(Portal::default());
    check_words(iscsi_server::config::IserConfig::default());
    check_words(AluaGroup::default());
    check_words(crate::unit::Options::default());
    let names =
        |words: &[settings::Word]| words.iter().map(|(word, _)| (*word).to_owned()).collect::<Vec<_>>();
    let engines = backing::engine::Engine::ALL.map(|(engine, _)| engine.to_string());
    assert_eq!(names(words::ENGINES), engines);
    let states = scsi::data::target_port_groups::AccessState::NAMES.map(|(name, _)| name);
    assert_eq!(names(words::STATES), states);
}

#[test]
fn the_summary_says_every_setting_that_the_file_says() {
    let text = "cores = 3\n[limits]\nnop-interval = 30\nmax-burst = \"128K\"\n[iser]\ncrc = \"require\"\n\
                [isns]\nserver = \"192.0.2.30\"\nesi = 60\n[[target]]\niqn = \"iqn.2026-01.org.example:t\"\n\
                [[target.unit]]\nlun = 0\npath = \"/x\"\nthin = true\nwarn-used = \"80G\"\nvendor = \"ACME\"\n";
    let (config, problems) = with_directory(text, Path::new("/nowhere"));
    assert_eq!(problems, []);
    let said = summary(&config.unwrap());
    for line in [
        "daemon: cores 3\n",
        "limits: max-burst 128k, first-burst 128k, nop-interval 30\n",
        "iser: crc require\n",
        "192.0.2.30:3205, esi 60\n",
        "lun 0: /x, 512-byte blocks, thin, vendor ACME, warn-used 80G\n",
    ] {
        assert!(said.contains(line), "{line} is not in\n{said}");
    }
}

#[test]
fn a_redirected_target_needs_an_address_without_a_group_and_no_units() {
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
fn port_groups_name_a_portal_group_once_and_supported_states() {
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
    let unit = &target.units[0].spec.options.limits;
    assert_eq!((unit.iops, unit.burst), (Some(500), Some(std::time::Duration::from_millis(500))));
    assert_eq!(target.acls.unwrap()[0].limits.read_bandwidth, Some(10 << 20));
    let found = errors(&text.replace("10M", "fast"));
    assert_eq!(found[0].0, "\"fast\"");
}

#[test]
fn the_units_whose_stages_are_counted_are_bounded() {
    let unit =
        |lun: usize| format!("[[target.unit]]\nlun = {lun}\npath = \"mem:1M\"\nstages = {}\n", lun != 7);
    let text = |units: usize| {
        let units: String = (0..units).map(unit).collect();
        format!("[[target]]\niqn = \"iqn.2026-01.org.example:t\"\n{units}")
    };
    let (config, problems) = with_directory(&text(MOST_UNITS_WITH_STAGES + 1), Path::new("/nowhere"));
    assert_eq!(problems, []);
    let found = errors(&text(MOST_UNITS_WITH_STAGES + 2));
    assert!(found[0].1.starts_with("33 units have `stages`"), "{found:?}");
    let other = text(9).replace("example:t", "example:u");
    let (other, _) = with_directory(&other, Path::new("/nowhere"));
    let twice = config.unwrap().join(other.unwrap(), "both").unwrap_err();
    assert!(twice[0].contains("40 units have `stages`"), "{twice:?}");
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

/// A target with these users, one unit and these ACLs.
fn with_users(users: &[&str], acls: &str) -> String {
    let user = |name: &&str| format!("{{ name = \"{name}\", secret = \"123456789012{name}\" }}");
    let users: Vec<String> = users.iter().map(user).collect();
    format!(
        "[[target]]\niqn = \"iqn.2026-01.org.example:t\"\nauth = {{ users = [{}] }}\n[[target.unit]]\nlun = 0\n\
         path = \"mem:1M\"\n{acls}",
        users.join(", ")
    )
}

const ALICES: &str = "[[target.acl]]\ninitiator = \"iqn.2026-01.org.example:a\"\nluns = [0]\n";
const BOBS: &str = "[[target.acl]]\ninitiator = \"iqn.2026-01.org.example:b\"\n";

#[test]
fn an_acl_s_user_is_one_whom_its_authentication_knows() {
    let text = with_users(&["alice", "bob"], &format!("{ALICES}user = \"alice\"\n{BOBS}user = \"bob\"\n"));
    let (config, problems) = with_directory(&text, Path::new("/nowhere"));
    assert_eq!(problems, []);
    let config = config.unwrap();
    let said = summary(&config);
    assert!(said.contains("iqn.2026-01.org.example:a: lun 0, as user alice only"), "{said}");
    let found = errors(&text.replace("user = \"bob\"", "user = \"carol\""));
    let expected = ("\"carol\"", "there is no user \"carol\"", "there are alice and bob");
    assert_eq!(found, [(expected.0.into(), expected.1.into(), expected.2.into())]);
    let found = target_errors(&format!("auth = \"none\"\n{ALICES}user = \"alice\"\n"));
    assert!(found[0].1.contains("where auth = \"none\""), "{found:?}");
    let own = "auth = { users = [{ name = \"carol\", secret = \"1234567890123\" }] }\nuser = \"carol\"\n";
    let text = with_users(&["alice"], &format!("{BOBS}{own}"));
    assert!(with_directory(&text, Path::new("/nowhere")).0.is_some());
}

#[test]
fn a_privileged_name_that_several_users_may_claim_is_warned_of() {
    let warned = |users: &[&str], acls: &str| {
        let (config, problems) = with_directory(&with_users(users, acls), Path::new("/nowhere"));
        assert!(config.is_some(), "{problems:?}");
        problems.into_iter().map(|problem| problem.what).collect::<Vec<_>>()
    };
    let two = ["alice", "bob"];
    let found = warned(&two, &format!("{ALICES}{BOBS}"));
    assert_eq!(
        found,
        [
            "several users may log in under the name iqn.2026-01.org.example:a and one more, and have the rights of that name"
        ]
    );
    assert_eq!(warned(&two, &format!("{ALICES}user = \"alice\"\n{BOBS}")).len(), 1);
    assert_eq!(warned(&two, &format!("{BOBS}ro = true\n")).len(), 1);
    assert_eq!(warned(&two, &format!("{BOBS}iops = 5\n")).len(), 1);
    assert_eq!(warned(&two, &format!("{ALICES}user = \"alice\"\n{BOBS}user = \"bob\"\n")).len(), 0);
    assert_eq!(warned(&["alice"], &format!("{ALICES}{BOBS}")).len(), 0);
    assert_eq!(warned(&two, BOBS).len(), 0, "no name has rights that another has not");
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
    let twice = "luns = [0, { lun = 0, as = 1 }]\n";
    assert!(what(&format!("{target}{acl}{twice}")).contains("sees the unit with lun = 0 twice"));
    let portal = "[[portal]]\nlisten = \"127.0.0.1:3260\"\n";
    assert!(what(&format!("{portal}{portal}{target}")).contains("listened on twice"));
}

#[test]
fn exports_of_one_folder_that_contradict_each_other_are_told_once_and_where() {
    let export = |name: &str, folder: &str, more: &str| {
        format!("[[export]]\nname = \"{name}\"\npath = \"{folder}\"\n{more}")
    };
    let (first, other) = (export("/a", "/srv/a", ""), export("/c", "/srv/c", ""));
    let second = export("/b", "/srv/a", "async = true\n");
    let text = format!("{first}{second}{other}");
    let (_, problems) = with_directory(&text, Path::new("/nowhere"));
    assert_eq!(problems.len(), 1, "{problems:?}");
    assert_eq!(problems[0].span.start, first.len());
    assert!(problems[0].what.contains("see /a"), "{problems:?}");
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
    let (config, warnings) = load(&path, true).unwrap();
    assert_eq!(warnings.len(), 1);
    assert!(!format!("{config:?} {}", summary(&config)).contains("123456789012"));
    fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
    assert!(load(&path, true).unwrap().1.is_empty());
}

#[test]
fn a_shown_error_names_file_line_column_text_and_remedy() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("stag.toml");
    fs::write(&path, "cores = 1\nspiin = 20\n[[target]]\niqn = \"iqn.2026-01.org.example:t\"\n[[target.unit]]\nlun = 0\npath = \"mem:1M\"\n").unwrap();
    let error = load(&path, true).unwrap_err();
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

#[test]
fn addresses_that_exclude_each_other_are_found() {
    let portals = |addresses: &[&str]| {
        let portals: String =
            addresses.iter().map(|address| format!("[[portal]]\nlisten = \"{address}\"\n")).collect();
        with_directory(&portals, Path::new("/nowhere")).0.is_some()
    };
    for both in [
        ["127.0.0.1:3260", "0.0.0.0:3260"],
        ["0.0.0.0:3260", "127.0.0.1:3260"],
        ["[::]:3260", "[::1]:3260"],
        ["[fe80::1%1]:3260", "[::]:3260"],
        ["0.0.0.0:3260", "0.0.0.0:3260"],
    ] {
        assert!(!portals(&both), "{both:?}");
    }
    // As the kernel has it, with IPV6_V6ONLY.
    for both in [
        ["0.0.0.0:3260", "[::]:3260"],
        ["127.0.0.1:3260", "[::]:3260"],
        ["0.0.0.0:3260", "127.0.0.1:3261"],
        ["0.0.0.0:0", "127.0.0.1:0"],
        ["127.0.0.1:3260", "127.0.0.2:3260"],
    ] {
        assert!(portals(&both), "{both:?}");
    }
}

#[test]
fn nothing_to_serve_and_a_target_without_units_are_legal() {
    for text in ["", "cores = 1\n", "[[target]]\niqn = \"iqn.2026-01.org.example:t\"\n"] {
        let (config, problems) = with_directory(text, Path::new("/nowhere"));
        assert!(config.is_some() && problems.is_empty(), "{text}: {problems:?}");
    }
}

#[test]
fn no_message_shows_a_secret_of_the_file() {
    for text in [
        // Too short a secret, a mistake beside one, and no TOML at all.
        "auth = { users = [{ name = \"a\", secret = \"hush-hush\" }] }\n",
        "auth = { users = [{ nmae = \"a\", secret = \"hush-hush-hush-hush\" }] }\n",
        "auth = { users = [{ name = \"a\", secret = \"hush-hush-hush-hush }] }\n",
        "auth = { users = [{ name = \"a\", secret = hush-hush-hush }] }\n",
    ] {
        let text = format!("[[target]]\niqn = \"iqn.2026-01.org.example:t\"\n{text}");
        let place = Place { open_to_others: true, ..Place::new(Path::new("/nowhere")) };
        let errors = load_text("stag.toml", &text, &place).unwrap_err();
        let shown = format!("{:?}", miette::Report::new(errors));
        assert!(!shown.contains("hush") && shown.contains('*'), "{shown}");
    }
}

#[test]
fn a_secret_of_the_services_credentials_is_checked_by_the_service_alone() {
    let text = "[[target]]\niqn = \"iqn.2026-01.org.example:t\"\n\
                auth = { users = [{ name = \"a\", secret-file = \"$CREDENTIALS_DIRECTORY/alice\" }] }\n";
    let read = |serves| parse(text, &Place { serves, ..Place::new(Path::new("/nowhere")) });
    let (config, problems) = read(true);
    assert!(config.is_none() && problems[0].instead.contains("LoadCredential=alice:FILE"), "{problems:?}");
    let (config, problems) = read(false);
    assert!(config.is_some() && problems[0].warning, "{problems:?}");
}
