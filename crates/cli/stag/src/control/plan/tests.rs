//! A plan reports each setting that changes. The list of settings comes from the reader itself, so
//! these tests cover new settings too.

use std::collections::BTreeSet;
use std::path::Path;

use super::*;
use crate::config::settings::{Form, Setting};
use crate::config::{self, Daemon, Place as Files, reference};

/// A table: its header, and the keys that it always has.
type Table = (&'static str, &'static [(&'static str, &'static str)]);

const TABLES: [Table; 13] = [
    ("", &[]),
    ("[[portal]]", &[("listen", "\"192.0.2.1:3260\""), ("group", "1")]),
    ("[limits]", &[]),
    ("[iser]", &[]),
    ("[isns]", &[("server", "\"192.0.2.30\"")]),
    ("[http]", &[("listen", "\"127.0.0.1:3261\"")]),
    ("[discovery]", &[]),
    ("[[target]]", &[("iqn", "\"iqn.2026-01.org.example:t\"")]),
    ("[[target.unit]]", &[("lun", "0"), ("path", "\"/srv/x.img\"")]),
    ("[[target.acl]]", &[("initiator", "\"iqn.2026-01.org.example:i\"")]),
    ("[nfs]", &[]),
    ("[[export]]", &[("name", "\"/data\""), ("path", "\"mem:1M\"")]),
    ("[[export.client]]", &[("network", "\"192.0.2.0/24\"")]),
];
/// A medium that has settings of its own.
const FAR: (&str, &str) = ("path", "\"iscsi://192.0.2.1/iqn.2026-01.org.example:far/0\"");
/// Users that an ACL can name.
const USERS: &str = "{ users = [{ name = \"a\", secret = \"one-one-one-one\" }, { name = \"b\", secret = \"two-two-two-two\" }] }";

/// Only for tests of ALUA: it requires certain portal groups.
const ALUA: [Table; 2] =
    [("[target.alua]", &[]), ("[[target.alua.group]]", &[("id", "1"), ("portal-groups", "[1]")])];

/// Only for tests of a group of gateways: portals have its number. A comment tells the tables of
/// the members apart.
const GATEWAYS: [Table; 4] = [
    ("[gateways]", &[("number", "1"), ("pool", "\"rbd\""), ("secret-file", "\"$CREDENTIALS_DIRECTORY/a\"")]),
    (
        "[[gateways.member]] # 1",
        &[("number", "1"), ("link", "\"192.0.2.11\""), ("portals", "\"192.0.2.11\"")],
    ),
    (
        "[[gateways.member]] # 2",
        &[("number", "2"), ("link", "\"192.0.2.12\""), ("portals", "\"192.0.2.12\"")],
    ),
    ("[[gateways.member]]", &[("number", "3"), ("link", "\"192.0.2.13\""), ("portals", "\"192.0.2.13\"")]),
];
/// Those whose keys are tested.
const OF_GATEWAYS: [Table; 2] = [GATEWAYS[0], GATEWAYS[3]];

/// Keys that are tables of their own, and those of a unit that are not options.
const TABLE_KEYS: [&str; 17] = [
    "gateways",
    "member",
    "portal",
    "limits",
    "iser",
    "isns",
    "http",
    "discovery",
    "target",
    "unit",
    "acl",
    "alua",
    "lun",
    "path",
    "nfs",
    "export",
    "client",
];

/// Two values of a setting, and other keys with theirs.
type Values = (String, String, &'static [(&'static str, &'static str)]);

/// Two values of a setting of a table, and other keys that these need.
fn values(header: &str, setting: &Setting) -> Option<Values> {
    let (a, b) = match (setting.name, setting.form) {
        ("auth", _) => (
            "{ users = [{ name = \"a\", secret = \"the same length\" }] }".to_owned(),
            "{ users = [{ name = \"a\", secret = \"the sbme length\" }] }".to_owned(),
        ),
        ("number", _) if header == "[gateways]" => ("1".to_owned(), "2".to_owned()),
        (_, Form::Number(..) | Form::Seconds) if setting.unit.is_empty() && setting.name != "pbe" => {
            match setting.form {
                Form::Number(_, most) if most < u64::MAX => ((most - 1).to_string(), most.to_string()),
                _ => ("1".to_owned(), "2".to_owned()),
            }
        }
        (_, Form::Number(_, most)) => ((most - 1).to_string(), most.to_string()),
        (_, Form::Size(_, u64::MAX)) => ("\"1M\"".to_owned(), "\"2M\"".to_owned()),
        (_, Form::Size(least, _)) => (least.to_string(), (2 * least).to_string()),
        (_, Form::Sizes(of)) => (of[0].to_string(), of[1].to_string()),
        (_, Form::YesNo) => ("false".to_owned(), "true".to_owned()),
        (_, Form::Words([one])) => (String::new(), format!("\"{}\"", one.0)),
        (_, Form::Words(words)) => (format!("\"{}\"", words[0].0), format!("\"{}\"", words[1].0)),
        (name, _) => {
            let (a, b) = match name {
                "name" if header == "[[export]]" => ("\"/a\"", "\"/b\""),
                "path" => ("\"mem:1M\"", "\"/srv/files\""),
                "rpcbind" => ("\"/run/a.sock\"", "\"/run/b.sock\""),
                "network" => ("\"192.0.2.0/24\"", "\"2001:db8::/32\""),
                "sandbox-directories" => ("[\"/srv/a\"]", "[\"/srv/b\"]"),
                "log" => ("\"info\"", "\"debug\""),
                "listen" | "verbs" => ("\"192.0.2.1:3260\"", "\"192.0.2.2:3260\""),
                "congestion-control" => ("\"cubic\"", "\"bbr\""),
                "server" => ("\"192.0.2.30\"", "\"192.0.2.31\""),
                "iqn" => ("\"iqn.2026-01.org.example:t\"", "\"iqn.2026-01.org.example:u\""),
                "initiator" | "far-initiator" => {
                    ("\"iqn.2026-01.org.example:i\"", "\"iqn.2026-01.org.example:j\"")
                }
                "hosts" => ("[\"a\"]", "[\"b\"]"),
                "groups" => ("[]", "[1]"),
                "luns" => ("[]", "[0]"),
                "redirect" => ("\"192.0.2.20:1\"", "\"192.0.2.20:2\""),
                "naa" => ("\"3000000000000001\"", "\"3000000000000002\""),
                "aptpl" | "keep" | "ceph-conf" | "luks-key-file" | "far-secret-file" | "certificate"
                | "key" => ("\"/srv/a\"", "\"/srv/b\""),
                "states" => ("[\"active/optimized\"]", "[\"active/optimized\", \"standby\"]"),
                "secret-file" => ("\"$CREDENTIALS_DIRECTORY/a\"", "\"$CREDENTIALS_DIRECTORY/b\""),
                "link" | "portals" => ("\"192.0.2.21\"", "\"192.0.2.22\""),
                "pool" | "namespace" | "object" | "alias" | "entity" | "serial" | "vendor" | "product"
                | "revision" | "name" | "user" | "ceph-user" | "far-user" => ("\"a\"", "\"b\""),
                _ => return None,
            };
            (a.to_owned(), b.to_owned())
        }
    };
    let more: &[(&str, &str)] = match (header, setting.name) {
        ("[[target.unit]]", "name" | "capacity") => &[("path", "\"osd:/srv/objects\"")],
        ("[[target.unit]]", "ceph-user" | "ceph-conf" | "luks-key-file" | "op-timeout" | "shared") => {
            &[("path", "\"rbd:pool/disk\"")]
        }
        ("[[target.unit]]", "far-user") => &[FAR, ("far-secret-file", "\"/srv/a\"")],
        ("[[target.unit]]", "far-secret-file") => &[FAR, ("far-user", "\"a\"")],
        ("[[target.unit]]", "far-initiator") => &[FAR],
        ("[[target.unit]]", "quota") => &[("path", "\"mem:1G\""), ("thin", "true")],
        ("[[target.unit]]", "warn-used" | "warn-available") => &[("thin", "true")],
        (_, "burst") => &[("iops", "100")],
        ("[[target.acl]]", "user") => &[("auth", USERS)],
        ("[http]", "dashboard") => &[("api", "true")],
        ("[http]", "certificate") => &[("key", "\"/srv/key\"")],
        ("[http]", "key") => &[("certificate", "\"/srv/pem\"")],
        _ => &[],
    };
    Some((a, b, more))
}

/// The whole configuration, with `lines` in the table `header` instead of its lines of the same
/// keys.
fn text(header: &str, lines: &[(&str, &str)]) -> String {
    let mut text = String::new();
    let mut tables = TABLES.to_vec();
    if header.contains("alua") {
        // Below its target, before the units.
        tables.splice(8..8, ALUA);
    }
    if header.contains("gateways") || lines.iter().any(|(key, _)| *key == "shared") {
        tables[1].1 = &[("listen", "\"192.0.2.1:3260\"")];
        tables.extend(GATEWAYS);
    }
    for (name, usual) in tables {
        text += &format!("{name}\n");
        let here = if name == header { lines } else { &[] };
        let left = usual.iter().filter(|(key, _)| !here.iter().any(|(other, _)| other == key));
        // An empty value leaves the key out.
        for (key, value) in left.chain(here).filter(|(_, value)| !value.is_empty()) {
            text += &format!("{key} = {value}\n");
        }
    }
    text
}

fn read(text: &str) -> Result<Config, String> {
    // Who does not serve need not see secrets.
    let place = Files { serves: false, ..Files::new(Path::new("/nowhere")) };
    let read = config::load_text("stag.toml", text, &place);
    read.map(|(config, _)| config).map_err(|errors| format!("{:?}\n{text}", miette::Report::new(errors)))
}

/// The keys of the table `header`: the reader lists them when it meets an unknown key.
fn keys(header: &str) -> BTreeSet<String> {
    let place = Files { serves: false, ..Files::new(Path::new("/nowhere")) };
    let text = text(header, &[("zzzzzzzzzz", "1")]);
    let errors = config::load_text("stag.toml", &text, &place).unwrap_err().errors;
    let unknown = errors.iter().find(|error| error.to_string().contains("zzzzzzzzzz")).unwrap();
    let help = miette::Diagnostic::help(unknown).unwrap().to_string();
    let list = help.split("there are ").nth(1).unwrap_or_else(|| panic!("{header}: {help}"));
    let words = list.split([',', ' ']).filter(|word| !word.is_empty() && *word != "and");
    words.filter(|word| !TABLE_KEYS.contains(word)).map(str::to_owned).collect()
}

#[test]
fn the_reader_takes_the_keys_of_the_tables() {
    for (header, _) in TABLES.iter().chain(&ALUA).chain(&OF_GATEWAYS) {
        let of_table: BTreeSet<String> =
            reference::keys(Some(header)).iter().map(|setting| setting.name.to_owned()).collect();
        let but = |keys: BTreeSet<String>| -> BTreeSet<String> {
            keys.into_iter().filter(|key| !TABLE_KEYS.contains(&key.as_str())).collect()
        };
        assert_eq!(keys(header), but(of_table), "{header}");
    }
}

#[test]
fn every_setting_that_changes_is_told() {
    let mut tested = 0;
    for (header, _) in TABLES.iter().chain(&ALUA).chain(&OF_GATEWAYS) {
        for setting in reference::keys(Some(header)) {
            let key = setting.name;
            // Not tested here: a unit's path, and the keys that define ALUA's groups.
            if matches!(
                (*header, key),
                ("[[target.unit]]", "path") | ("[target.alua]", "group") | (_, "portal-groups")
            ) {
                continue;
            }
            let Some((a, b, more)) = values(header, &setting) else {
                panic!("{header} {key}: a setting without values in this test")
            };
            let config = |value: &str| {
                let lines: Vec<(&str, &str)> = more.iter().copied().chain([(key, value)]).collect();
                read(&text(header, &lines)).unwrap_or_else(|error| panic!("{header} {key}: {error}"))
            };
            let (old, new) = (config(&a), config(&b));
            assert_ne!(old, new, "{header} {key}");
            let plan = Plan::new(&old, &new, &Units::default().fates(&new, false), &Vec::new());
            let told = plan.text();
            assert!(!told.is_empty(), "{header} {key}: {a} to {b} is not told");
            assert!(!told.contains("length"), "{header} {key}: a secret is told: {told}");
            // Keys that identify a table are part of its line.
            let by_place = ["listen", "verbs", "iqn", "lun", "initiator", "id", "ro", "network"]
                .contains(&key)
                || [("[[export]]", "name"), ("[[gateways.member]]", "number")].contains(&(*header, key));
            if !by_place && *header != "[discovery]" {
                assert!(told.contains(key), "{header} {key}: {told}");
            }
            let same = Plan::new(&old, &old, &Units::default().fates(&old, false), &Vec::new());
            assert!(
                same.at_next_start.is_empty() && same.text().is_empty(),
                "{header} {key}: {}",
                same.text()
            );
            tested += 1;
        }
    }
    assert!(tested > 90, "{tested}");
}

#[test]
fn what_waits_for_the_next_start_is_told_again_until_then() {
    let old = read(&text("", &[])).unwrap();
    let waits = |setting: &&Setting| setting.when() == Applies::NextStart;
    for setting in Daemon::SETTINGS.iter().filter(waits) {
        let (key, (a, b, _)) = (setting.name, values("", setting).unwrap());
        let with = |value: &str| read(&text("", &[(key, value)])).unwrap();
        let new = [with(&a), with(&b)].into_iter().find(|new| *new != old).unwrap();
        let kept = new.clone().until_next_start(&old);
        assert_eq!(kept, old, "{key}");
        let plan = Plan::new(&kept, &new, &Units::default().fates(&new, false), &Vec::new());
        assert!(plan.at_next_start.iter().any(|line| line.starts_with(key)), "{key}: {plan:?}");
    }
}

#[test]
fn the_order_of_acls_is_told() {
    let one = "[[target.acl]]\ninitiator = \"iqn.2026-01.org.example:a*\"\n";
    let two = "[[target.acl]]\ninitiator = \"iqn.2026-01.org.example:b*\"\n";
    let base = "[[target]]\niqn = \"iqn.2026-01.org.example:t\"\n";
    let (old, new) =
        (read(&format!("{base}{one}{two}")).unwrap(), read(&format!("{base}{two}{one}")).unwrap());
    let plan = Plan::new(&old, &new, &HashMap::new(), &Vec::new());
    assert!(plan.text().contains("order of its ACLs"), "{}", plan.text());
}

#[test]
fn a_daemon_joins_leaves_and_changes_its_group_when_it_starts() {
    let plan =
        |old: &Config, new: &Config| Plan::new(old, new, &Units::default().fates(new, false), &Vec::new());
    let (alone, group) = (read(&text("", &[])).unwrap(), read(&text("[gateways]", &[])).unwrap());
    assert!(plan(&alone, &group).refused[0].contains("joins a group when it starts"));
    assert!(plan(&group, &alone).refused[0].contains("leaves its group when it ends"));
    let second = read(&text("[gateways]", &[("number", "2")])).unwrap();
    assert_eq!(plan(&group, &second).refused, ["gateways number: 2 instead of 1: restart the daemon"]);
    let mut other = group.clone();
    let changed = other.gateways.as_mut().unwrap();
    changed.members.pop();
    changed.secrets.insert(7, peer_link::Secret::new(&[7; 32]).unwrap());
    let told = plan(&group, &other);
    assert_eq!(told.at_next_start, ["gateways: secrets 7", "gateways: no gateway 3 any more"]);
    assert!(told.refused.is_empty() && told.changes.is_empty());
    assert_eq!(other.until_next_start(&group), group);

    let image =
        "[[target]]\niqn = \"iqn.2026-01.example:t\"\n[[target.unit]]\nlun = 0\npath = \"rbd:rbd/vm\"\n";
    let with = read(&format!("{}\n{image}", text("[gateways]", &[]))).unwrap();
    assert!(!plan(&group, &with).text().contains("of the group"));
    let gone = "- image rbd/vm of the group\n    its initiators lose it at all gateways\n";
    assert!(plan(&with, &group).text().ends_with(gone), "{}", plan(&with, &group).text());
}
