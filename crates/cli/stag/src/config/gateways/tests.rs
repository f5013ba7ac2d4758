//! What a group demands of units, targets and portals.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use super::*;
use crate::config::{self, Place, load_text};

const DIGITS: &str = "000102030405060708090a0b0c0d0e0f";

/// A group of two; this one is the second.
fn group() -> String {
    "[gateways]\nnumber = 2\npool = \"rbd\"\nsecret-file = \"gateways.secret\"\nceph-user = \"stag\"\n\
     [[gateways.member]]\nnumber = 1\nlink = \"192.0.2.11\"\nportals = \"192.0.2.11\"\n\
     [[gateways.member]]\nnumber = 2\nlink = \"192.0.2.12:9\"\nportals = [\"192.0.2.12\", \"192.0.2.13:3261\"]\n"
        .to_owned()
}

fn target(rest: &str) -> String {
    format!("[[target]]\niqn = \"iqn.2026-01.org.example:t\"\n{rest}")
}

fn unit(lun: u16, path: &str, more: &str) -> String {
    format!("[[target.unit]]\nlun = {lun}\npath = \"{path}\"\n{more}\n")
}

fn directory(secrets: &str) -> tempfile::TempDir {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("gateways.secret");
    fs::write(&file, secrets).unwrap();
    fs::set_permissions(&file, fs::Permissions::from_mode(0o600)).unwrap();
    directory
}

/// The configuration, or its errors: what is wrong, and advice.
fn read_in(directory: &Path, text: &str) -> Result<Config, Vec<String>> {
    load_text("stag.toml", text, &Place::new(directory))
        .map(|(config, warnings)| {
            assert!(warnings.is_empty(), "{warnings:?}");
            config
        })
        .map_err(|errors| errors.lines())
}

fn read(text: &str) -> Result<Config, Vec<String>> {
    read_in(directory(&format!("1 {DIGITS}\n")).path(), text)
}

/// The error of `text` beside a group, and the text that it points at.
fn error(text: &str) -> (String, String) {
    let text = group() + text;
    let directory = directory(&format!("1 {DIGITS}\n"));
    let (config, problems) = config::parse(&text, &Place::new(directory.path()));
    assert!(config.is_none(), "no error in:\n{text}");
    let problem = problems.into_iter().find(|problem| !problem.warning).unwrap();
    (text[problem.span].to_owned(), problem.what)
}

#[test]
fn a_group_is_read_and_summed_up() {
    let config = read(&(group() + "[[portal]]\nlisten = \"192.0.2.12\"\n")).unwrap();
    assert_eq!((config.portals[0].group, config.groups(), config.portal_group()), (2, vec![2], 2));
    let said = config::summary(&config);
    assert!(said.contains("gateway 2 of 2 in pool rbd, ceph-user stag\n"), "{said}");
    assert!(said.contains("gateway 2: 192.0.2.12:3260 and 192.0.2.13:3261, link 192.0.2.12:9\n"), "{said}");
    let group = config.gateways.unwrap();
    assert_eq!(group.members[0].link, "192.0.2.11:3262".parse().unwrap());
    assert_eq!((group.object.as_str(), group.op_timeout_s), ("stag-gateways", 30));
    assert_eq!(group.secrets.keys().copied().collect::<Vec<_>>(), [1]);
    assert!(config.secret_files.contains(&group.secret_file), "{:?}", config.secret_files);
    assert!(!format!("{group:?}").contains("0a"), "a secret shows");
    assert_eq!(read("").unwrap().groups(), [1]);
}

#[test]
fn members_are_told_apart_and_can_be_reached() {
    let own = group().replace("number = 2\npool", "number = 3\npool");
    assert!(read(&own).unwrap_err()[0].contains("gateway 3 is none of the group's members"));
    let twice = group().replace("number = 1\nlink", "number = 2\nlink");
    assert!(read(&twice).unwrap_err()[0].contains("two gateways with number = 2"));
    let one_link = group().replace("192.0.2.12:9", "192.0.2.11:3262");
    assert!(read(&one_link).unwrap_err()[0].contains("two gateways are reached at 192.0.2.11:3262"));
    for wrong in ["0.0.0.0", "[::]:3262", "192.0.2.12:0", "gateway-2"] {
        let found = read(&group().replace("192.0.2.12:9", wrong)).unwrap_err();
        assert!(found[0].contains("no address that others can connect to"), "{wrong}: {found:?}");
        let found = read(&group().replace("192.0.2.13:3261", wrong)).unwrap_err();
        assert!(found[0].contains("no address that others can connect to"), "{wrong}: {found:?}");
    }
    let found = read("[gateways]\nnumber = 1\n").unwrap_err();
    assert!(found.iter().any(|line| line.contains("has no `secret-file`")), "{found:?}");
}

#[test]
fn a_secret_file_has_numbered_secrets_and_none_is_shown() {
    let newer = format!("1 {DIGITS}\n\n3\t{DIGITS}{DIGITS}\r\n");
    let config = read_in(directory(&newer).path(), &group()).unwrap();
    let secrets = config.gateways.unwrap().secrets;
    assert_eq!(secrets.keys().copied().collect::<Vec<_>>(), [1, 3]);
    assert_ne!(secrets[&1], secrets[&3]);
    let alike = format!("0 {DIGITS}\n1 {DIGITS}{DIGITS}\n");
    let group_of_users = read_in(directory(&alike).path(), &group()).unwrap().gateways.unwrap();
    assert_eq!(group_of_users.secrets.keys().copied().collect::<Vec<_>>(), [1]);
    assert_eq!(group_of_users.users.unwrap(), secrets[&1]);
    for (wrong, what) in [
        (String::new(), "no secret"),
        (format!("{DIGITS}\n"), "line 1 is not"),
        (format!("0 {DIGITS}"), "no secret"),
        (format!("-1 {DIGITS}"), "line 1 is not"),
        (format!("1 {DIGITS}\n2 {}", &DIGITS[2..]), "line 2 is not"),
        (format!("1 {DIGITS}a"), "line 1 is not"),
        (format!("1 {}g", &DIGITS[1..]), "line 1 is not"),
        (format!("1 {}", DIGITS.repeat(5)), "line 1 is not"),
        (format!("1 {DIGITS}\n1 {DIGITS}\n"), "two secrets have number 1"),
    ] {
        let found = read_in(directory(&wrong).path(), &group()).unwrap_err().join("; ");
        assert!(found.contains(what) && !found.contains("0a0b"), "{wrong}: {found}");
    }
    let open = directory(&format!("1 {DIGITS}"));
    let file = open.path().join("gateways.secret");
    fs::set_permissions(&file, fs::Permissions::from_mode(0o644)).unwrap();
    let (_, warnings) = load_text("stag.toml", &group(), &Place::new(open.path())).unwrap();
    assert!(warnings[0].to_string().contains("others may read"));
}

#[test]
fn portals_have_the_gateway_s_number() {
    let (at, what) = error("[[portal]]\nlisten = \"192.0.2.12\"\ngroup = 1\n");
    assert_eq!(at, "1");
    assert!(what.contains("portal groups are the gateways' numbers"), "{what}");
    read(&(group() + "[[portal]]\nlisten = \"192.0.2.12\"\ngroup = 2\n" + &target("groups = [2]\n")))
        .unwrap();
    let (at, what) = error(&target("groups = [1]\n"));
    assert_eq!((at.as_str(), what.as_str()), ("1", "no portal has group 1"));
}

#[test]
fn a_unit_of_the_group_keeps_to_what_the_group_says() {
    for (option, value) in [
        ("ceph-user", "\"other\""),
        ("ceph-conf", "\"/etc/ceph/other.conf\""),
        ("op-timeout", "31"),
        ("aptpl", "\"/srv/a\""),
        ("luks-key-file", "\"/srv/a\""),
    ] {
        let own = format!("{option} = {value}");
        assert_eq!(error(&target(&unit(0, "rbd:rbd/a", &own))).0, value, "{option}");
        let alone = format!("{own}\nshared = false");
        let config = read(&(group() + &target(&unit(0, "rbd:rbd/a", &alone)))).unwrap();
        assert!(!config.shares(&config.targets[0].units[0].spec));
    }
    let same = "ceph-user = \"stag\"\nop-timeout = 30\nshared = true";
    let config = read(&(group() + &target(&unit(0, "rbd:rbd/a", same)))).unwrap();
    assert!(config.shares(&config.targets[0].units[0].spec));
    for (path, more) in [("rbd:rbd/a@noon", ""), ("rbd:rbd/a", "ro = true"), ("mem:1M", "")] {
        let config = read(&(group() + &target(&unit(0, path, more)))).unwrap();
        assert!(!config.shares(&config.targets[0].units[0].spec), "{path} {more}");
    }
    assert!(read(&target(&unit(0, "rbd:rbd/a", "shared = true"))).unwrap_err()[0].contains("no group"));
    read(&target(&unit(0, "rbd:rbd/a", "shared = false"))).unwrap();
}

#[test]
fn access_states_of_units_of_the_group_are_the_group_s() {
    let alua = "[target.alua]\n[[target.alua.group]]\nid = 1\nportal-groups = [2]\n";
    let (_, what) = error(&target(&format!("{alua}{}", unit(4, "rbd:rbd/a", ""))));
    assert!(what.contains("the access states of LUN 4"), "{what}");
    read(&(group() + &target(&format!("{alua}{}", unit(4, "rbd:rbd/a", "shared = false"))))).unwrap();
}

#[test]
fn an_image_is_one_unit_wherever_it_is() {
    let other = target(&unit(3, "rbd:rbd/a", "")).replace(":t", ":u");
    let both = |first: &str| group() + &target(first) + &other;
    read(&both(&unit(0, "rbd:rbd/a", ""))).unwrap();
    let found = read(&both(&unit(0, "rbd:rbd/a", "serial = \"1\""))).unwrap_err();
    assert!(found[0].contains("has other options elsewhere"), "{found:?}");
    let found = read(&both(&unit(0, "rbd:rbd/a", "shared = false"))).unwrap_err();
    assert!(found[0].contains("two units use rbd:rbd/a"), "{found:?}");
    let found = read(&both(&unit(0, "rbd:rbd/a", "ro = true"))).unwrap_err();
    assert!(found[0].contains("two units use rbd:rbd/a"), "{found:?}");
}

#[test]
fn an_image_of_another_cluster_is_another_unit() {
    let alone = |conf: &str| unit(0, "rbd:rbd/a", &format!("shared = false\nceph-conf = \"{conf}\""));
    let of_group = unit(1, "rbd:rbd/a", "");
    let with = |group: String, conf: &str| read(&(group + &target(&(alone(conf) + &of_group))));
    with(group(), "/etc/ceph/b.conf").unwrap();
    let found = with(group(), "/etc/ceph/ceph.conf").unwrap_err();
    assert!(found[0].contains("two units use rbd:rbd/a") && !found[0].contains("conf"), "{found:?}");
    let in_b = group().replace("number = 2\npool", "number = 2\nceph-conf = \"/etc/ceph/b.conf\"\npool");
    with(in_b.clone(), "/etc/ceph/ceph.conf").unwrap();
    let found = with(in_b, "/etc/ceph/b.conf").unwrap_err();
    assert!(found[0].contains("two units use rbd:rbd/a,ceph-conf=/etc/ceph/b.conf"), "{found:?}");
    let two = |other: &str| read(&target(&(alone("/etc/ceph/b.conf") + &unit(1, "rbd:rbd/a", other))));
    two("").unwrap();
    assert!(two("ceph-conf = \"/etc/ceph/b.conf\"").is_err());
}

#[test]
fn images_of_one_number_are_refused() {
    // CRC-32C of `rbd/a`, from its definition.
    let bits = |bytes: &[u8]| {
        let mut crc = u32::MAX;
        for byte in bytes {
            crc ^= u32::from(*byte);
            for _ in 0..8 {
                crc = if crc & 1 == 1 { (crc >> 1) ^ 0x82f6_3b78 } else { crc >> 1 };
            }
        }
        !crc
    };
    let name = |text: &str| text.parse::<ImageName>().unwrap();
    assert_eq!(unit_number(&name("rbd/a")), bits(b"rbd/a"));
    assert_eq!(unit_number(&name("rbd/ns/a")), bits(b"rbd/ns/a"));
    let (a, b) = ONE_NUMBER;
    assert_eq!(unit_number(&name(a)), unit_number(&name(b)));
    let (at, what) = error(&target(&(unit(0, &format!("rbd:{a}"), "") + &unit(1, &format!("rbd:{b}"), ""))));
    assert!(at.starts_with("[[target]]") && what.contains("have the same number"), "{at}: {what}");
}

/// Two images whose names have one CRC.
const ONE_NUMBER: (&str, &str) = ("rbd/ltlg9sio", "rbd/1ea7zjr9");

#[test]
fn the_managed_document_keeps_to_the_group_and_has_none() {
    let file = read(&group()).unwrap();
    let groups = file.groups();
    let place = Place { managed: Some(&groups), ..Place::new(Path::new("/nowhere")) };
    let managed = |text: &str| load_text("managed.toml", text, &place).map_err(|errors| errors.lines());
    assert!(managed(&group()).unwrap_err()[0].contains("knows no `gateways`"));
    let join = |more: &str| {
        let (config, _) = managed(&target(&unit(0, "rbd:rbd/a", more))).unwrap();
        file.clone().join(config, "both")
    };
    assert!(join("shared = true").is_ok());
    let found = join("op-timeout = 5").unwrap_err();
    assert!(found[0].starts_with("iqn.2026-01.org.example:t LUN 0: op-timeout"), "{found:?}");
    let (config, _) = managed(&target(&unit(0, "rbd:rbd/a", "shared = true"))).unwrap();
    assert!(Config::default().join(config, "both").unwrap_err()[0].contains("no group"));
}
