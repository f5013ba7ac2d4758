//! Reads tgt's targets.conf: directives `name value`, and sections `<name value>` … `</name>`.
//! tgt-admin numbers targets in the order of their names, and units without a number in that of
//! their paths.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use super::{Acl, Chap, Imported, Target, Unit};
use crate::config;

/// Files that one configuration may include.
const MOST_FILES: usize = 1000;
/// tgtd's own portals, where targets.conf has none.
const PORTALS: [&str; 2] = ["0.0.0.0:3260", "[::]:3260"];

/// Directives that are carried over: outside of targets, in a target, and in both of a target and a
/// store.
const OUTSIDE: [&str; 3] = ["default-driver", "incomingdiscoveryuser", "outgoingdiscoveryuser"];
const OF_TARGET: [&str; 8] = [
    "driver",
    "controller_tid",
    "initiator-address",
    "initiator-name",
    "incominguser",
    "outgoinguser",
    "backing-store",
    "direct-store",
];
const OF_STORE: [&str; 12] = [
    "device-type",
    "bs-type",
    "block-size",
    "readonly",
    "removable",
    "thin_provisioning",
    "write-cache",
    "scsi_sn",
    "vendor_id",
    "product_id",
    "product_rev",
    "lun",
];

/// Directives of a section, or of all that stands outside of one.
#[derive(Debug, Default)]
struct Section {
    /// The value in its first line: the name of a target, the path of a store.
    value: String,
    values: Vec<(String, String)>,
    sections: Vec<(String, Section)>,
}

impl Section {
    /// All values of a directive.
    fn all(&self, name: &str) -> impl Iterator<Item = &str> {
        self.values.iter().filter(move |(other, _)| other == name).map(|(_, value)| value.as_str())
    }

    /// The last value of a directive.
    fn last(&self, name: &str) -> Option<&str> {
        self.all(name).last()
    }

    /// Notes the directives that are in none of `known`. Their values may be secret.
    fn note_others(&self, whose: &str, known: &[&[&str]], imported: &mut Imported) {
        let is_known = |name: &str| known.iter().any(|names| names.contains(&name));
        for (name, _) in self.values.iter().filter(|(name, _)| !is_known(name)) {
            imported.note(format!("{whose}: the directive {name}"));
        }
    }
}

pub(super) fn read(text: &str, path: &Path, ignore_addresses: bool) -> Result<Imported, String> {
    let mut lines = Vec::new();
    included(text, path, &mut lines, &mut 0)?;
    let mut lines = lines.into_iter();
    let all = section(&mut lines, None)?;
    let mut imported = Imported {
        discovery: chap(&all, "incomingdiscoveryuser", "outgoingdiscoveryuser"),
        ..Imported::default()
    };
    all.note_others("outside of targets", &[&OUTSIDE], &mut imported);
    let mut targets: BTreeMap<&str, Vec<&Section>> = BTreeMap::new();
    for (name, section) in &all.sections {
        match name.as_str() {
            "target" => targets.entry(&section.value).or_default().push(section),
            other => imported.note(format!("the section <{other}>")),
        }
    }
    let mut number = 0;
    for (iqn, parts) in targets {
        let [part] = parts[..] else { return Err(format!("the target {iqn} stands there twice")) };
        let driver = part.last("driver").or(all.last("default-driver")).unwrap_or("iscsi");
        number = match part.last("controller_tid").map(str::parse) {
            None => number + 1,
            Some(Ok(number)) => number,
            Some(Err(_)) => return Err(format!("controller_tid of {iqn} is no number")),
        };
        if driver != "iscsi" {
            imported.note(format!("{iqn}, which is of {driver}: Stag's targets are of iSCSI and iSER alike"));
            if driver != "iser" {
                continue;
            }
        }
        if let Some(target) = target(part, number, ignore_addresses, &mut imported)? {
            imported.targets.push(target);
        }
    }
    Ok(imported)
}

/// Appends the lines of a file and of those that it includes, without comments, `\` at the end of
/// lines, and spaces around.
fn included(text: &str, path: &Path, lines: &mut Vec<String>, files: &mut usize) -> Result<(), String> {
    *files += 1;
    if *files > MOST_FILES {
        return Err(format!("it includes more than {MOST_FILES} files"));
    }
    let text = text.replace("\\\n", " ");
    for line in text.lines() {
        let line = line.trim();
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        let Some(what) = line.strip_prefix("include ").or_else(|| line.strip_prefix("<<include ")) else {
            lines.push(line.to_owned());
            continue;
        };
        let what = what.trim().trim_end_matches(">>").trim_matches('"');
        for file in matching(&path.parent().unwrap_or(Path::new(".")).join(what)) {
            let text =
                config::read(&file).map_err(|error| format!("{} cannot be read: {error}", file.display()))?.0;
            included(&text, &file, lines, files)?;
        }
    }
    Ok(())
}

/// The files that a path with `*` in its last part means, in the order of their names.
fn matching(path: &Path) -> Vec<PathBuf> {
    let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
    let Some((beginning, end)) = name.split_once('*') else { return vec![path.to_owned()] };
    let entries = std::fs::read_dir(path.parent().unwrap_or(Path::new("."))).into_iter().flatten().flatten();
    let fits = |name: &str| {
        name.len() + 1 >= beginning.len() + end.len() && name.starts_with(beginning) && name.ends_with(end)
    };
    let mut files: Vec<PathBuf> = entries
        .filter(|entry| entry.file_name().to_str().is_some_and(fits))
        .map(|entry| entry.path())
        .collect();
    files.sort();
    files
}

/// Reads up to the end of the section `within`, or of everything.
fn section(lines: &mut impl Iterator<Item = String>, within: Option<&str>) -> Result<Section, String> {
    let mut section = Section::default();
    while let Some(line) = lines.next() {
        if let Some(name) = line.strip_prefix("</") {
            let name = name.trim_end_matches('>').trim().to_ascii_lowercase();
            return match within == Some(name.as_str()) {
                true => Ok(section),
                false => Err(format!("</{name}> ends no section that has begun")),
            };
        }
        if let Some(head) = line.strip_prefix('<') {
            let (name, value) = pair(head.trim_end_matches('>'));
            // Only stores stand in targets, and nothing in stores.
            if within.is_some_and(|outer| outer != "target") {
                return Err(format!("<{name}> stands within <{}>", within.unwrap_or_default()));
            }
            let mut inner = self::section(lines, Some(&name))?;
            inner.value = value;
            section.sections.push((name, inner));
            continue;
        }
        section.values.push(pair(&line));
    }
    match within {
        None => Ok(section),
        Some(name) => Err(format!("<{name}> has no </{name}>")),
    }
}

/// A directive's name in small letters, and its value without quotes.
fn pair(line: &str) -> (String, String) {
    let line = line.trim();
    let (name, value) = line.split_once(|c: char| c.is_whitespace() || c == '=').unwrap_or((line, ""));
    let value = value.trim_start_matches(|c: char| c.is_whitespace() || c == '=').trim();
    let value = value.strip_prefix('"').and_then(|value| value.strip_suffix('"')).unwrap_or(value);
    (name.to_ascii_lowercase(), value.to_owned())
}

/// The users of two directives with `NAME SECRET`.
fn chap(section: &Section, incoming: &str, outgoing: &str) -> Option<Chap> {
    let user = |value: &str| {
        let (name, secret) = value.split_once(char::is_whitespace).unwrap_or((value, ""));
        (name.trim_matches('"').to_owned(), secret.trim().trim_matches('"').to_owned())
    };
    let users: Vec<(String, String)> = section.all(incoming).map(user).collect();
    (!users.is_empty()).then(|| Chap { users, mutual: section.all(outgoing).next().map(user) })
}

fn target(
    part: &Section,
    number: u32,
    ignore_addresses: bool,
    imported: &mut Imported,
) -> Result<Option<Target>, String> {
    let iqn = part.value.as_str();
    let addresses: Vec<&str> = part.all("initiator-address").filter(|address| *address != "ALL").collect();
    if !addresses.is_empty() {
        imported.note(format!(
            "{iqn}: it admits {} only, and Stag admits by names and CHAP; {}",
            addresses.join(", "),
            match ignore_addresses {
                true => "now every address may reach it",
                false => "the target is left out unless --ignore-addresses is given",
            }
        ));
        if !ignore_addresses {
            return Ok(None);
        }
    }
    let mut target = Target {
        iqn: iqn.to_owned(),
        portals: PORTALS.map(str::to_owned).to_vec(),
        auth: chap(part, "incominguser", "outgoinguser"),
        acls: part
            .all("initiator-name")
            .map(|name| Acl { initiator: name.to_owned(), ..Acl::default() })
            .collect(),
        units: Vec::new(),
    };
    part.note_others(iqn, &[&OF_TARGET, &OF_STORE], imported);
    let none = Section::default();
    let mut stores: Vec<(&str, &str, &Section)> = Vec::new();
    for (kind, store) in &part.sections {
        stores.push((kind, &store.value, store));
    }
    for kind in ["backing-store", "direct-store"] {
        stores.extend(part.all(kind).map(|path| (kind, path, &none)));
    }
    stores.sort_by_key(|(kind, path, _)| (*kind, *path));
    let numbers = stores.iter().filter_map(|(.., store)| store.last("lun")?.parse().ok());
    let mut taken: Vec<u16> = numbers.collect();
    for (kind, path, store) in stores {
        store.note_others(&format!("{iqn}, {path}"), &[&OF_STORE], imported);
        let lun = match store.last("lun") {
            Some(lun) => lun.parse().map_err(|_| format!("lun {lun} of {path} is no number"))?,
            // LUN 0 is tgt's controller.
            None => (1..=u16::MAX).find(|lun| !taken.contains(lun)).unwrap_or(u16::MAX),
        };
        taken.push(lun);
        match unit(kind, path, lun, number, (store, part)) {
            Ok(unit) => target.units.push(unit),
            Err(what) => imported.note(format!("{iqn} LUN {lun}: {what}")),
        }
    }
    target.units.sort_by_key(|unit| unit.lun);
    Ok(Some(target))
}

/// `within`: the directives of the store, and those of its target for all its stores.
fn unit(kind: &str, path: &str, lun: u16, target: u32, within: (&Section, &Section)) -> Result<Unit, String> {
    let of = |name: &str| within.0.last(name).or(within.1.last(name));
    if kind != "backing-store" {
        return Err(format!("{path} is a {kind}, whose own identity tgt takes over; Stag has no such units"));
    }
    for (name, usual) in [("device-type", "disk"), ("bs-type", "rdwr")] {
        match of(name) {
            None => {}
            Some(value) if value == usual || (name, value) == ("bs-type", "aio") => {}
            Some(value) => {
                return Err(format!(
                    "{path} has {name} {value}; Stag serves files and block devices as disks"
                ));
            }
        }
    }
    let mut options: Vec<(&'static str, toml::Value)> = Vec::new();
    match of("block-size") {
        None | Some("512") => {}
        Some("4096") => options.push(("bs", 4096.into())),
        Some(other) => return Err(format!("{path} has blocks of {other} bytes; Stag's have 512 or 4096")),
    }
    for (name, key) in [("readonly", "ro"), ("removable", "removable"), ("thin_provisioning", "thin")] {
        if matches!(of(name), Some("1" | "yes" | "on")) {
            options.push((key, true.into()));
        }
    }
    options
        .push(("cache", if of("write-cache") == Some("off") { "writethrough" } else { "writeback" }.into()));
    let serial = of("scsi_sn").map_or_else(|| format!("beaf{target}{lun}"), str::to_owned);
    options.push(("serial", serial.into()));
    let id = u64::from(target) << 16 | u64::from(lun);
    options.push(("naa", format!("60000000000000000e{id:014x}").into()));
    for (name, key, usual) in [
        ("vendor_id", "vendor", "IET"),
        ("product_id", "product", "VIRTUAL-DISK"),
        ("product_rev", "revision", "0001"),
    ] {
        options.push((key, of(name).unwrap_or(usual).into()));
    }
    Ok(Unit { lun, path: path.to_owned(), options })
}

#[cfg(test)]
mod tests {
    use super::*;

    const TWO: &str = "# tgt\ndefault-driver iscsi\n<target iqn.2026-01.org.example:b>\n  backing-store /srv/b.img\n</target>\n\
        <target iqn.2026-01.org.example:a>\n  <backing-store /srv/y.img>\n    lun 1\n    write-cache off\n    scsi_sn S1\n    block-size 4096\n  </backing-store>\n\
        <backing-store /srv/x.img>\n readonly 1\n </backing-store>\n  vendor_id ACME\n  incominguser alice \"a secret of its own\"\n  outgoinguser disk another-secret\n\
        initiator-name iqn.2026-01.org.example:host\n</target>\n";

    fn imported(text: &str) -> Imported {
        read(text, Path::new("/etc/tgt/targets.conf"), false).unwrap()
    }

    fn option(unit: &Unit, key: &str) -> String {
        let found = unit.options.iter().find(|(name, _)| *name == key);
        found
            .map(|(_, value)| value.as_str().map_or_else(|| value.to_string(), str::to_owned))
            .unwrap_or_default()
    }

    #[test]
    fn units_get_the_numbers_and_names_that_tgt_gives_them() {
        let imported = imported(TWO);
        assert!(imported.notes.is_empty(), "{:?}", imported.notes);
        let [a, b] = &imported.targets[..] else { panic!("{imported:?}") };
        assert_eq!(
            (a.iqn.as_str(), b.iqn.as_str()),
            ("iqn.2026-01.org.example:a", "iqn.2026-01.org.example:b")
        );
        let units: Vec<(u16, &str, String, String)> = a
            .units
            .iter()
            .chain(&b.units)
            .map(|unit| (unit.lun, unit.path.as_str(), option(unit, "serial"), option(unit, "naa")))
            .collect();
        assert_eq!(
            units,
            [
                (1, "/srv/y.img", "S1".into(), "60000000000000000e00000000010001".into()),
                (2, "/srv/x.img", "beaf12".into(), "60000000000000000e00000000010002".into()),
                (1, "/srv/b.img", "beaf21".into(), "60000000000000000e00000000020001".into()),
            ]
        );
        let about = |unit: &Unit| ["bs", "ro", "cache", "vendor"].map(|key| option(unit, key));
        assert_eq!(about(&a.units[0]), ["4096", "", "writethrough", "ACME"]);
        assert_eq!(about(&a.units[1]), ["", "true", "writeback", "ACME"]);
        assert_eq!(about(&b.units[0]), ["", "", "writeback", "IET"]);
        let chap = a.auth.as_ref().unwrap();
        assert_eq!(chap.users, [("alice".to_owned(), "a secret of its own".to_owned())]);
        assert_eq!(chap.mutual, Some(("disk".to_owned(), "another-secret".to_owned())));
        assert_eq!((a.acls[0].initiator.as_str(), b.acls.len()), ("iqn.2026-01.org.example:host", 0));
    }

    #[test]
    fn a_target_that_admits_addresses_is_left_out_unless_told_otherwise() {
        let text = TWO
            .replace("backing-store /srv/b.img", "backing-store /srv/b.img\ninitiator-address 192.0.2.0/24");
        let kept = imported(&text);
        assert_eq!(kept.targets.len(), 1);
        assert!(
            kept.notes[0].contains("192.0.2.0/24") && kept.notes[0].contains("left out"),
            "{:?}",
            kept.notes
        );
        let all = read(&text, Path::new("/x"), true).unwrap();
        assert_eq!((all.targets.len(), all.notes.len()), (2, 1));
        assert_eq!(imported(&text.replace("192.0.2.0/24", "ALL")).targets.len(), 2);
    }

    #[test]
    fn directives_that_mean_nothing_here_are_told() {
        let text = TWO
            .replace("default-driver iscsi", "default-driver iscsi\ncontrol-port 1")
            .replace("lun 1", "lun 1\nbsoflags sync")
            .replace("vendor_id ACME", "vendor_id ACME\nMaxBurstLength 65536\nMaxBurstLength 65536");
        let notes = imported(&text).notes;
        let told = [
            "outside of targets: the directive control-port",
            "iqn.2026-01.org.example:a: the directive maxburstlength",
            "iqn.2026-01.org.example:a, /srv/y.img: the directive bsoflags",
        ];
        assert_eq!(notes, told);
    }

    #[test]
    fn files_that_are_included_are_read_in_the_order_of_their_names() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::create_dir(dir.path().join("conf.d")).unwrap();
        for name in ["b.conf", "a.conf", "c.off"] {
            let text =
                format!("<target iqn.2026-01.org.example:{name}>\nbacking-store /srv/{name}\n</target>\n");
            std::fs::write(dir.path().join("conf.d").join(name), text).unwrap();
        }
        let imported = read("include conf.d/*.conf\n", &dir.path().join("targets.conf"), false).unwrap();
        let names: Vec<&str> = imported.targets.iter().map(|target| target.units[0].path.as_str()).collect();
        assert_eq!(names, ["/srv/a.conf", "/srv/b.conf"]);
        let itself = dir.path().join("loop.conf");
        std::fs::write(&itself, "include loop.conf\n").unwrap();
        assert!(read("include loop.conf\n", &itself, false).unwrap_err().contains("more than 1000"));
    }

    #[test]
    fn damaged_texts_are_refused_with_what_is_wrong() {
        for (text, word) in [
            ("<target a>\n", "has no </target>"),
            ("</target>\n", "ends no section"),
            ("<target a>\n</store>\n", "ends no section"),
            ("<target a>\n</target>\n<target a>\n</target>\n", "twice"),
            ("<target a>\n<backing-store /x>\n<deeper>\n", "within <backing-store>"),
            ("<target a>\n<backing-store /x>\nlun one\n</backing-store>\n</target>\n", "is no number"),
        ] {
            let error = read(text, Path::new("/x"), false).unwrap_err();
            assert!(error.contains(word), "{text}: {error}");
        }
        for end in 0..TWO.len() {
            let _ = read(&TWO[..end], Path::new("/x"), false);
        }
    }
}
