//! The document and its targets, units and ACLs.

use std::collections::{HashMap, HashSet};
use std::net::{IpAddr, Ipv6Addr, SocketAddr, SocketAddrV6};
use std::ops::Range;

use toml::Spanned;
use toml::de::{DeTable, DeValue};

use super::auth::{self, Place};
use super::iser::{iser, transport};
use super::isns::isns;
use super::limits::limits;
use super::model::{Acl, AclLun, Config, Lun, Portal, Target};
use super::problem::Problems;
use super::reader::{At, Table, int, mismatch, table};
use super::redirect::redirect;
use crate::unit::limits::{self, Limits};
use crate::unit::{Options, UnitSpec};

/// iSCSI's port (RFC 7143 §4.2.7.4, IANA).
pub const ISCSI_PORT: u16 = 3260;
/// Logical unit numbers end here: SAM-5's flat space addressing has 14 bits.
pub const LUNS: Range<u64> = 0..16384;
const GROUPS: Range<u64> = 1..65536;
const POOL: Range<u64> = 1 << 20..1 << 40;

/// Reads the whole document.
pub fn document(document: &Spanned<DeTable<'_>>, place: &Place<'_>, problems: &mut Problems) -> Config {
    // The document itself stands nowhere in particular: complaints about it point at its beginning.
    let mut given = Table::new("the configuration", document.get_ref(), 0..0);
    let mut config = Config {
        cores: given.int("cores", 0..1025, problems).map(|at| at.value as u16),
        spin_us: given.int("spin", 0..1_000_001, problems).map(|at| at.value as u32),
        zero_copy: given.bool("zero-copy", problems),
        pool_bytes: given.size("pool", POOL, problems).map(|at| at.value),
        log: given.string("log", problems).and_then(|log| check_log(log, problems)),
        ..Config::default()
    };
    for portal in given.tables("portal", problems).unwrap_or_default() {
        portals(portal, &mut config.portals, problems);
    }
    if let Some(table) = given.table("limits", problems) {
        config.limits = limits(table, problems);
    }
    if let Some(table) = given.table("iser", problems) {
        config.iser = iser(table, problems);
    }
    if let Some(table) = given.table("isns", problems) {
        config.isns = isns(table, problems);
    }
    if let Some(mut table) = given.table("discovery", problems) {
        if let Some(value) = table.take("auth") {
            config.discovery = auth::auth(value, place, problems).unwrap_or_default();
        }
        table.end(problems);
    }
    let targets = given.tables("target", problems);
    if targets.as_ref().is_none_or(Vec::is_empty) {
        given.missing("target", "[[target]] and under it iqn = \"iqn.2026-01.org.example:disks\"", problems);
    }
    let groups: Vec<u16> = if config.portals.is_empty() {
        vec![1]
    } else {
        config.portals.iter().map(|portal| portal.group).collect()
    };
    let mut names = HashSet::new();
    for given in targets.unwrap_or_default() {
        if let Some((span, target)) = target(given, &groups, place, problems) {
            if !names.insert(target.iqn.to_ascii_lowercase()) {
                let what = format!("there are two targets \"{}\"", target.iqn);
                problems.error(&span, what, "give each its own iqn; one target may have many units");
            }
            config.targets.push(target);
        }
    }
    one_use_of_each_path(&config, given.span.clone(), problems);
    given.end(problems);
    config
}

fn check_log(log: At<String>, problems: &mut Problems) -> Option<String> {
    match crate::log::check(&log.value) {
        Ok(()) => Some(log.value),
        Err(what) => {
            problems.error(&log.span, what, "write error, warn, info, debug or trace, or target=level,…");
            None
        }
    }
}

fn portals(mut given: Table<'_>, portals: &mut Vec<Portal>, problems: &mut Problems) {
    let group = given.int("group", GROUPS, problems).map_or(1, |at| at.value as u16);
    let transports = transport(&mut given, problems);
    let addresses = given.list("listen");
    if addresses.as_ref().is_none_or(Vec::is_empty) {
        given.missing("listen", "listen = \"0.0.0.0:3260\"", problems);
    }
    for value in addresses.unwrap_or_default() {
        let DeValue::String(text) = value.get_ref() else {
            mismatch::<()>("listen", "an address in quotes", value.get_ref(), value.span(), problems);
            continue;
        };
        let Some(listen) = address(text) else {
            let what = format!("\"{text}\" is no address to listen on");
            problems.error(
                &value.span(),
                what,
                "write an IP address and a port: \"192.0.2.1:3260\" or \"[::]:3260\"",
            );
            continue;
        };
        if portals.iter().any(|other| other.listen == listen && listen.port() != 0) {
            problems.error(&value.span(), format!("{listen} is listened on twice"), "leave one of them out");
            continue;
        }
        portals.push(Portal { listen, group, transports });
    }
    given.end(problems);
}

/// `ADDRESS:PORT` or `ADDRESS` alone, for iSCSI's port. A link-local address names its interface: `[fe80::1%eth0]:3260`.
pub fn address(text: &str) -> Option<SocketAddr> {
    if let Some((ip, rest)) = text.trim_start_matches('[').split_once('%') {
        let (zone, port) = match rest.split_once(']') {
            None => (rest, ISCSI_PORT),
            Some((zone, "")) => (zone, ISCSI_PORT),
            Some((zone, port)) => (zone, port.strip_prefix(':')?.parse().ok()?),
        };
        return Some(SocketAddrV6::new(ip.parse::<Ipv6Addr>().ok()?, port, 0, interface(zone)?).into());
    }
    let alone = || text.trim_start_matches('[').trim_end_matches(']').parse::<IpAddr>();
    text.parse().ok().or_else(|| Some(SocketAddr::new(alone().ok()?, ISCSI_PORT)))
}

/// The number of an interface, by its number or its name.
fn interface(zone: &str) -> Option<u32> {
    if let Ok(index) = zone.parse() {
        return (index > 0).then_some(index);
    }
    // The kernel's names end at 15 bytes (IFNAMSIZ).
    if zone.is_empty() || zone.len() > 15 || zone.contains('\0') {
        return None;
    }
    let socket = rustix::net::socket(rustix::net::AddressFamily::INET6, rustix::net::SocketType::DGRAM, None);
    rustix::net::netdevice::name_to_index(socket.ok()?, zone).ok()
}

fn target(
    mut given: Table<'_>,
    groups: &[u16],
    place: &Place<'_>,
    problems: &mut Problems,
) -> Option<(Range<usize>, Target)> {
    let iqn = given.string("iqn", problems);
    match &iqn {
        None => given.missing("iqn", "iqn = \"iqn.2026-01.org.example:disks\"", problems),
        Some(iqn) => check_name(iqn, problems),
    }
    let alias = given.string("alias", problems);
    if let Some(alias) = alias.as_ref().filter(|alias| alias.value.len() > 255) {
        problems.error(&alias.span, "an alias has at most 255 bytes", "write a shorter one (RFC 7143 §13.7)");
    }
    let mut served_by = Vec::new();
    for value in given.list("groups").unwrap_or_default() {
        let Some(group) = int("groups", value, GROUPS, problems) else { continue };
        let group = group.map(|group| group as u16);
        if groups.contains(&group.value) {
            served_by.push(group.value);
        } else {
            let what = format!("no portal has group {}", group.value);
            problems.error(
                &group.span,
                what,
                format!("there are {groups:?}; a portal names its own with group = N"),
            );
        }
    }
    let auth = given.take("auth").and_then(|value| auth::auth(value, place, problems)).unwrap_or_default();
    let redirect = given.take("redirect").map(|value| redirect(value, problems));
    let units = units(&mut given, redirect.is_some(), problems);
    let acls = given.tables("acl", problems).map(|tables| {
        let mut acls: Vec<Acl> = Vec::new();
        let mut names = HashSet::new();
        let there: HashSet<u16> = units.iter().map(|unit| unit.lun).collect();
        for table in tables {
            let span = table.span.clone();
            let Some(acl) = acl(table, &units, &there, place, problems) else { continue };
            if !names.insert(acl.initiator.to_ascii_lowercase()) {
                let what = format!("there are two ACLs for \"{}\"", acl.initiator);
                problems.error(&span, what, "put what it may do into one of them");
            }
            acls.push(acl);
        }
        acls
    });
    let ports = if served_by.is_empty() { &distinct(groups) } else { &served_by };
    let alua = given.table("alua", problems);
    let alua = alua.and_then(|table| super::alua::alua(table, ports, place.directory, problems));
    let span = given.span.clone();
    given.end(problems);
    let iqn = iqn?.value;
    Some((
        span,
        Target {
            iqn,
            alias: alias.map_or_else(String::new, |at| at.value),
            groups: served_by,
            auth,
            units,
            acls,
            redirect: redirect.flatten(),
            alua,
        },
    ))
}

fn distinct(groups: &[u16]) -> Vec<u16> {
    let mut groups = groups.to_vec();
    groups.sort_unstable();
    groups.dedup();
    groups
}

fn check_name(name: &At<String>, problems: &mut Problems) {
    if let Err(what) = crate::iqn::check(&name.value) {
        let what = format!("\"{}\" is no iSCSI name: {what}", name.value);
        problems.error(&name.span, what, crate::iqn::EXAMPLE);
    }
}

/// `elsewhere`: the target need have no units here.
fn units(given: &mut Table<'_>, elsewhere: bool, problems: &mut Problems) -> Vec<Lun> {
    let mut units: Vec<Lun> = Vec::new();
    let mut numbers = HashSet::new();
    let tables = given.tables("unit", problems).unwrap_or_default();
    if tables.is_empty() && !elsewhere {
        given.missing("unit", "[[target.unit]] and under it lun = 0 and path = \"/srv/disk.img\"", problems);
    }
    for table in tables {
        let span = table.span.clone();
        let Some((number, spec)) = unit(table, problems) else { continue };
        let Some(number) = number else { continue };
        if !numbers.insert(number.value) {
            let what = format!("there are two units with lun = {}", number.value);
            problems.error(&number.span, what, "give each a number of its own");
            continue;
        }
        let _ = span;
        units.push(Lun { lun: number.value as u16, spec });
    }
    units
}

fn unit(mut given: Table<'_>, problems: &mut Problems) -> Option<(Option<At<u64>>, UnitSpec)> {
    let number = given.take("lun");
    let number = match number {
        Some(value) => int("lun", value, LUNS, problems),
        None => {
            given.missing("lun", "lun = 0", problems);
            None
        }
    };
    let path = given.string("path", problems);
    if path.is_none() {
        given.missing(
            "path",
            "path = \"/srv/disk.img\", path = \"mem:1G\" or path = \"osd:/srv/objects\"",
            problems,
        );
    }
    // Every other key is an option, read by the grammar that the command line has too.
    let mut options = Options::default();
    let mut places = HashMap::new();
    for (key, value) in given.rest() {
        let Some(text) = option_text(&key.value, value, problems) else { continue };
        if let Err(error) = options.set(&key.value, &text) {
            let unknown = matches!(error, crate::unit::OptionError::Unknown { .. });
            let span = if unknown { key.span.clone() } else { value.span() };
            problems.error(&span, error.to_string(), error.instead());
        }
        places.insert(key.value, value.span());
    }
    let path = path?;
    match UnitSpec::new(&path.value, options) {
        Ok(spec) => Some((number, spec)),
        Err(contradictions) => {
            for found in contradictions {
                let span = places.get(found.option).unwrap_or(&path.span);
                problems.error(span, found.what, found.instead);
            }
            None
        }
    }
}

/// `there`: the numbers of `units`.
fn acl(
    mut given: Table<'_>,
    units: &[Lun],
    there: &HashSet<u16>,
    place: &Place<'_>,
    problems: &mut Problems,
) -> Option<Acl> {
    let initiator = given.string("initiator", problems);
    match &initiator {
        None => given.missing("initiator", "initiator = \"iqn.1993-08.org.debian:01:abc\"", problems),
        Some(name) => {
            // A trailing * stands for any ending; what is before it need not be a whole name.
            if !name.value.ends_with('*') {
                check_name(name, problems);
            } else if name.value[..name.value.len() - 1].contains('*') {
                problems.error(
                    &name.span,
                    "a `*` stands at the end of a name only",
                    "write one * at the end",
                );
            }
        }
    }
    let auth = given.take("auth").and_then(|value| auth::auth(value, place, problems));
    let all_read_only = given.bool("ro", problems).unwrap_or(false);
    let mut luns = None;
    if let Some(values) = given.list("luns") {
        let mut seen: Vec<AclLun> = Vec::new();
        let mut numbers = HashSet::new();
        for value in values {
            let Some(lun) = acl_lun(value, all_read_only, there, problems) else { continue };
            if !numbers.insert(lun.seen_as) {
                let what = format!("the initiator sees two units as {}", lun.seen_as);
                problems.error(&value.span(), what, "give one of them another number with as = N");
            }
            seen.push(lun);
        }
        luns = Some(seen);
    } else if all_read_only {
        let as_it_is = |unit: &Lun| AclLun { lun: unit.lun, seen_as: unit.lun, read_only: true };
        luns = Some(units.iter().map(as_it_is).collect());
    }
    let limits = acl_limits(&mut given, problems);
    given.end(problems);
    Some(Acl { initiator: initiator?.value, auth, luns, limits })
}

/// Limits are read by the grammar that units have for theirs.
fn acl_limits(given: &mut Table<'_>, problems: &mut Problems) -> Limits {
    let mut limits = Limits::default();
    for name in limits::NAMES {
        let Some(value) = given.take(name) else { continue };
        let Some(text) = option_text(name, value, problems) else { continue };
        if let Err(error) = limits.set(name, &text) {
            problems.error(&value.span(), error.to_string(), error.instead());
        }
    }
    limits
}

/// The value of an option as the command line would have it.
fn option_text(key: &str, value: &Spanned<DeValue<'_>>, problems: &mut Problems) -> Option<String> {
    Some(match value.get_ref() {
        DeValue::String(text) => text.to_string(),
        DeValue::Integer(number) if number.radix() == 10 => number.as_str().to_owned(),
        DeValue::Float(number) => number.as_str().to_owned(),
        DeValue::Boolean(yes) => if *yes { "yes" } else { "no" }.to_owned(),
        other => {
            return mismatch(key, "text, a number, true or false", other, value.span(), problems);
        }
    })
}

fn acl_lun(
    value: &Spanned<DeValue<'_>>,
    all_read_only: bool,
    there: &HashSet<u16>,
    problems: &mut Problems,
) -> Option<AclLun> {
    let (lun, seen_as, read_only) = match value.get_ref() {
        DeValue::Integer(_) => (int("luns", value, LUNS, problems)?, None, all_read_only),
        DeValue::Table(_) => {
            let mut given = table("luns", value, "a table", problems)?;
            let lun = given.int("lun", LUNS, problems);
            if lun.is_none() {
                given.missing("lun", "{ lun = 0, as = 1, ro = true }", problems);
            }
            let seen_as = given.int("as", LUNS, problems);
            let read_only = given.bool("ro", problems).unwrap_or(all_read_only);
            given.end(problems);
            (lun?, seen_as, read_only)
        }
        other => {
            return mismatch("luns", "an array of numbers or tables", other, value.span(), problems);
        }
    };
    if !u16::try_from(lun.value).is_ok_and(|lun| there.contains(&lun)) {
        let mut numbers: Vec<String> = there.iter().map(u16::to_string).collect();
        numbers.sort_unstable();
        let what = format!("the target has no unit with lun = {}", lun.value);
        let there = crate::suggest::list(numbers.iter().map(String::as_str));
        problems.error(&lun.span, what, format!("its units have {there}"));
        return None;
    }
    let seen_as = seen_as.map_or(lun.value, |at| at.value);
    Some(AclLun { lun: lun.value as u16, seen_as: seen_as as u16, read_only })
}

/// Two units that write to one file destroy each other's data.
fn one_use_of_each_path(config: &Config, span: Range<usize>, problems: &mut Problems) {
    let mut used: HashMap<&std::path::Path, bool> = HashMap::new();
    for unit in config.targets.iter().flat_map(|target| &target.units) {
        let Some(path) = unit.spec.backing.path() else { continue };
        let writes = unit.spec.options.ro != Some(true);
        let both = used.get(path).is_some_and(|other| *other || writes);
        if both {
            let what = format!("two units use {}", path.display());
            problems.error(&span, what, "give each its own file, or make both read-only with ro = true");
        }
        *used.entry(path).or_default() |= writes;
    }
}
