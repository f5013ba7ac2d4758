//! The document and its targets, units and ACLs.

use std::collections::{HashMap, HashSet};
use std::net::{IpAddr, Ipv6Addr, SocketAddr, SocketAddrV6};
use std::ops::Range;
use std::path::Path;

use toml::Spanned;
use toml::de::{DeTable, DeValue};

use super::auth;
use super::gateways::{self, Around};
use super::model::{Acl, AclLun, Auth, Config, Daemon, Gateways, Http, Isns, Lun, Portal, Target, key};
use super::place::Place;
use super::problem::{Problems, mismatch};
use super::reader::{At, Table, table};
use super::settings::{Group, Setting, setting};
use super::value::Value;
use crate::identity::Choice;
use crate::unit::limits::Limits;
use crate::unit::{Contradiction, Options, UnitSpec, options};

/// iSCSI's port (RFC 7143 §4.2.7.4, IANA).
pub const ISCSI_PORT: u16 = 3260;
/// The port of HTTP for administrators, beside iSCSI's.
pub const HTTP_PORT: u16 = 3261;
/// The port on which gateways of a group reach each other, beside those.
pub const LINK_PORT: u16 = 3262;
/// Logical unit numbers end here: SAM-5's flat space addressing has 14 bits.
pub const LUNS: Range<u64> = 0..16384;

/// Reads the whole document.
pub fn document(document: &Spanned<DeTable<'_>>, place: &Place<'_>, problems: &mut Problems) -> Config {
    if let Some(groups) = place.managed {
        return managed(document, groups, place, problems);
    }
    // The document has no span of its own: complaints about it point at its beginning.
    let mut given = Table::new("the configuration", document.get_ref(), 0..0);
    let mut config = Config::default();
    let identity = identity::<Daemon>(&mut given, place, problems);
    given.fill(&mut config.daemon, place, problems);
    if let Some(table) = given.table("gateways", problems) {
        config.gateways = gateways::gateways(table, place, problems);
    }
    let group = config.gateways.as_ref();
    for portal in given.tables("portal", problems).unwrap_or_default() {
        portals(portal, &mut config.portals, group, place, problems);
    }
    if let Some(table) = given.table("limits", problems) {
        limits(table, &mut config.limits, place, problems);
    }
    if let Some(mut table) = given.table("iser", problems) {
        table.fill(&mut config.iser, place, problems);
        table.end(problems);
    }
    if let Some(table) = given.table("isns", problems) {
        config.isns = isns(table, place, problems);
    }
    if let Some(table) = given.table("http", problems) {
        config.http = http(table, place, problems);
    }
    if let Some(mut table) = given.table("discovery", problems) {
        let auth = table.value(&key("[discovery]", "auth"), place, problems);
        config.discovery = auth.map(|at| at.value).unwrap_or_default();
        table.end(problems);
    }
    let groups = config.groups();
    let around = Around::of(config.gateways.as_ref());
    config.targets = targets(&mut given, &groups, around, place, identity, problems);
    super::exports::nfs(&mut given, &mut config, place, problems);
    super::exports::exports(&mut given, &mut config, place, problems);
    config.secret_files = place.secret_files.take();
    units_together(&config, given.span.clone(), problems);
    given.end(problems);
    config
}

/// Reads the managed document, which has targets and exports alone. `groups` are the portal groups.
fn managed(
    document: &Spanned<DeTable<'_>>,
    groups: &[u16],
    place: &Place<'_>,
    problems: &mut Problems,
) -> Config {
    let mut given = Table::new("the managed document", document.get_ref(), 0..0);
    let targets = targets(&mut given, groups, Around::Elsewhere, place, None, problems);
    let mut config = Config { targets, ..Config::default() };
    super::exports::exports(&mut given, &mut config, place, problems);
    config.secret_files = place.secret_files.take();
    units_together(&config, given.span.clone(), problems);
    given.end(problems);
    config
}

/// Reads all `[[target]]`. None is legal: a daemon may start empty, and be configured later.
fn targets(
    given: &mut Table<'_>,
    groups: &[u16],
    around: Around<'_>,
    place: &Place<'_>,
    identity: Option<Choice>,
    problems: &mut Problems,
) -> Vec<Target> {
    let mut targets = Vec::new();
    let mut names = HashSet::new();
    let mut spans = Vec::new();
    for given in given.tables("target", problems).unwrap_or_default() {
        if let Some((span, target)) = target(given, groups, around, place, identity, problems) {
            if !names.insert(target.iqn.to_ascii_lowercase()) {
                let what = format!("there are two targets \"{}\"", target.iqn);
                problems.error(&span, what, "give each its own iqn; one target may have many units");
            }
            targets.push(target);
            spans.push(span);
        }
    }
    if let Around::Group(group) = around
        && let Some((at, what, instead)) = gateways::check_two(&targets, Some(group))
    {
        problems.error(&spans[at], what, instead);
    }
    targets
}

fn limits(
    mut given: Table<'_>,
    limits: &mut iscsi_server::config::Limits,
    place: &Place<'_>,
    problems: &mut Problems,
) {
    given.fill(limits, place, problems);
    let (first, max) = (limits.first_burst, limits.max_burst);
    if first > max {
        if let (Some(span), Some(_)) = (given.said("first-burst"), given.said("max-burst")) {
            let what = format!("first-burst ({first}) is more than max-burst ({max})");
            problems.error(&span, what, "make it as large or smaller (RFC 7143 §13.14)");
        }
        limits.first_burst = max;
    }
    given.end(problems);
}

fn isns(mut given: Table<'_>, place: &Place<'_>, problems: &mut Problems) -> Option<Isns> {
    let mut isns = Isns::default();
    given.fill(&mut isns, place, problems);
    let server = given.value::<String>(&setting::<Isns>("server"), place, problems);
    given.end(problems);
    let server = server?;
    let Some(named) = crate::naming::server(&server.value) else {
        let what = format!("\"{}\" is no iSNS server", server.value);
        problems.error(&server.span, what, "write \"192.0.2.30\", or with a port \"192.0.2.30:3205\"");
        return None;
    };
    Some(Isns { server: named, ..isns })
}

fn http(mut given: Table<'_>, place: &Place<'_>, problems: &mut Problems) -> Option<Http> {
    let mut http = Http::default();
    given.fill(&mut http, place, problems);
    let listen = given.value::<String>(&setting::<Http>("listen"), place, problems);
    given.end(problems);
    let At { value, span } = listen?;
    let listen = address_or(&value, HTTP_PORT);
    if listen.is_none() {
        let what = format!("\"{value}\" is no address");
        problems.error(&span, what, "write an IP address, with or without a port: \"127.0.0.1:3261\"");
    }
    let http = Http { listen: listen?, ..http };
    if http.is_exposed() {
        let what = "tokens would cross the network in the clear";
        let instead = "add certificate and key, listen on the loopback, or add insecure = true";
        problems.error(&span, what, instead);
    }
    if http.certificate.is_some() != http.key.is_some() {
        problems.error(&span, "certificate and key belong together", "give both, or none");
    }
    if http.dashboard && !http.api {
        let what = "the dashboard makes changes by the API, which is off";
        problems.error(&span, what, "add api = true, or leave dashboard out");
    }
    Some(http)
}

fn portals(
    mut given: Table<'_>,
    portals: &mut Vec<Portal>,
    group: Option<&Gateways>,
    place: &Place<'_>,
    problems: &mut Problems,
) {
    let mut like = Portal::default();
    given.fill(&mut like, place, problems);
    if let Some(group) = group {
        gateways::portal(group, &mut like, given.said("group"), problems);
    }
    let addresses = given.elements::<SocketAddr>(&setting::<Portal>("listen"), place, problems);
    for At { value: listen, span } in addresses.unwrap_or_default() {
        let portal = Portal { listen, ..like.clone() };
        if let Some(other) = portals.iter().find(|other| other.excludes(&portal)) {
            let (what, instead) = match other.listen == listen {
                true => (format!("{listen} is listened on twice"), "leave one of them out"),
                false => (
                    format!(
                        "{listen} and {} cannot both be listened on: one has all addresses",
                        other.listen
                    ),
                    "leave one of them out, or give them different ports",
                ),
            };
            problems.error(&span, what, instead);
            continue;
        }
        portals.push(portal);
    }
    given.end(problems);
}

/// `ADDRESS:PORT`, or `ADDRESS` with iSCSI's port. A link-local address names its interface:
/// `[fe80::1%eth0]:3260`.
pub fn address(text: &str) -> Option<SocketAddr> {
    address_or(text, ISCSI_PORT)
}

/// [`address`] with the default port `usual`.
pub fn address_or(text: &str, usual: u16) -> Option<SocketAddr> {
    if let Some((ip, rest)) = text.trim_start_matches('[').split_once('%') {
        let (zone, port) = match rest.split_once(']') {
            None => (rest, usual),
            Some((zone, "")) => (zone, usual),
            Some((zone, port)) => (zone, port.strip_prefix(':')?.parse().ok()?),
        };
        return Some(SocketAddrV6::new(ip.parse::<Ipv6Addr>().ok()?, port, 0, interface(zone)?).into());
    }
    let alone = || text.trim_start_matches('[').trim_end_matches(']').parse::<IpAddr>();
    text.parse().ok().or_else(|| Some(SocketAddr::new(alone().ok()?, usual)))
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
    around: Around<'_>,
    place: &Place<'_>,
    identity_of_all: Option<Choice>,
    problems: &mut Problems,
) -> Option<(Range<usize>, Target)> {
    let mut target = Target::default();
    given.fill(&mut target, place, problems);
    let iqn = given.value::<String>(&setting::<Target>("iqn"), place, problems);
    if let Some(iqn) = &iqn {
        check_name(iqn, problems);
    }
    for group in given.elements::<u16>(&setting::<Target>("groups"), place, problems).unwrap_or_default() {
        if groups.contains(&group.value) {
            target.groups.push(group.value);
        } else {
            let what = format!("no portal has group {}", group.value);
            let instead = format!("there are {groups:?}; a portal names its own with group = N");
            problems.error(&group.span, what, instead);
        }
    }
    let auth = target.auth.clone();
    let identity = identity::<Target>(&mut given, place, problems).or(identity_of_all);
    let mut units = units(&mut given, around, place, problems);
    for unit in &mut units {
        unit.spec.options.identity = unit.spec.options.identity.or(identity);
    }
    let acls = given.tables("acl", problems).map(|tables| {
        let mut acls: Vec<Acl> = Vec::new();
        let mut spans = Vec::new();
        let mut names = HashSet::new();
        let there: HashSet<u16> = units.iter().map(|unit| unit.lun).collect();
        for table in tables {
            let span = table.span.clone();
            let Some(acl) = acl(table, &auth, &units, &there, place, problems) else { continue };
            spans.push(span.clone());
            if !names.insert(acl.initiator.to_ascii_lowercase()) {
                let what = format!("there are two ACLs for \"{}\"", acl.initiator);
                problems.error(&span, what, "put what it may do into one of them");
            }
            acls.push(acl);
        }
        super::auth::shared_by_users(&auth, &acls, &spans, problems);
        acls
    });
    let ports = if target.groups.is_empty() { &distinct(groups) } else { &target.groups };
    let alua = given.table("alua", problems);
    let alua_span = alua.as_ref().map(|table| table.span.clone());
    let alua = alua.and_then(|table| super::alua::alua(table, ports, place, problems));
    let target = Target { units, acls, alua, ..target };
    if let (Some(span), Some((what, instead))) = (alua_span, around.check_target(&target)) {
        problems.error(&span, what, instead);
    }
    let span = given.span.clone();
    given.end(problems);
    Some((span, Target { iqn: iqn?.value, ..target }))
}

/// The group's setting `identity`, for all units below it that have none of their own.
fn identity<G: Group>(given: &mut Table<'_>, place: &Place<'_>, problems: &mut Problems) -> Option<Choice> {
    given.value(&setting::<G>("identity"), place, problems).map(|at| at.value)
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

/// A target may have none yet.
fn units(given: &mut Table<'_>, around: Around<'_>, place: &Place<'_>, problems: &mut Problems) -> Vec<Lun> {
    let mut units: Vec<Lun> = Vec::new();
    let mut numbers = HashSet::new();
    let tables = given.tables("unit", problems).unwrap_or_default();
    for table in tables {
        let Some((number, spec)) = unit(table, around, place, problems) else { continue };
        let Some(number) = number else { continue };
        if !numbers.insert(number.value) {
            let what = format!("there are two units with lun = {}", number.value);
            problems.error(&number.span, what, "give each a number of its own");
            continue;
        }
        units.push(Lun { lun: number.value, spec });
    }
    units
}

fn unit(
    mut given: Table<'_>,
    around: Around<'_>,
    place: &Place<'_>,
    problems: &mut Problems,
) -> Option<(Option<At<u16>>, UnitSpec)> {
    let directory = place.directory;
    let number = given.value(&key("[[target.unit]]", "lun"), place, problems);
    let path = given.value::<String>(&key("[[target.unit]]", "path"), place, problems);
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
    let Options { aptpl, ceph_conf, luks_key_file, far_secret_file, .. } = &mut options;
    let paths = [aptpl, ceph_conf, luks_key_file, far_secret_file];
    for path in paths.into_iter().flatten() {
        *path = directory.join(&*path);
    }
    let tell = |contradictions: Vec<Contradiction>, problems: &mut Problems| {
        for found in contradictions {
            let span = places.get(found.option).unwrap_or(&path.span);
            problems.error(span, found.what, found.instead);
        }
    };
    match UnitSpec::new(&from(directory, &path.value), options) {
        Ok(spec) => {
            tell(around.check(&spec), problems);
            Some((number, spec))
        }
        Err(contradictions) => {
            tell(contradictions, problems);
            None
        }
    }
}

/// A unit's path. A relative one starts from the configuration's directory, not from the daemon's
/// working directory.
fn from(directory: &Path, path: &str) -> String {
    let (kind, rest) = match path.strip_prefix("osd:") {
        Some(rest) => ("osd:", rest),
        None => ("", path),
    };
    // A path that names no file is reported when the unit is parsed.
    if ["mem:", "rbd:"].iter().any(|kind| rest.starts_with(kind))
        || nbd::uri::is_uri(rest)
        || crate::unit::is_url(rest)
        || ["", "mem", "memory", "ram", "osd"].contains(&rest)
    {
        return path.to_owned();
    }
    format!("{kind}{}", directory.join(rest).display())
}

/// Reads an ACL of a target. `targets` is the target's authentication, and `there` the numbers of
/// its `units`.
fn acl(
    mut given: Table<'_>,
    targets: &Auth,
    units: &[Lun],
    there: &HashSet<u16>,
    place: &Place<'_>,
    problems: &mut Problems,
) -> Option<Acl> {
    let mut acl = Acl::default();
    given.fill(&mut acl, place, problems);
    let initiator = given.value::<String>(&setting::<Acl>("initiator"), place, problems);
    // A trailing * stands for any ending; the text before it need not be a whole name.
    match initiator.as_ref().map(|name| (name, name.value.strip_suffix('*'))) {
        Some((name, None)) => check_name(name, problems),
        Some((name, Some(beginning))) if beginning.contains('*') => {
            problems.error(&name.span, "a `*` stands at the end of a name only", "write one * at the end");
        }
        _ => {}
    }
    let user = given.value::<String>(&setting::<Acl>("user"), place, problems);
    if let Some(user) = &user {
        auth::check_user(user, acl.auth.as_ref().unwrap_or(targets), problems);
    }
    let all_read_only = given.value(&setting::<Acl>("ro"), place, problems).is_some_and(|at| at.value);
    let mut luns = None;
    if let Some(values) = given.list("luns") {
        let mut seen: Vec<AclLun> = Vec::new();
        let (mut numbers, mut units) = (HashSet::new(), HashSet::new());
        for value in values {
            let Some(lun) = acl_lun(value, all_read_only, there, place, problems) else { continue };
            // A reservation belongs to a session's nexus with one LUN. A second LUN for the same
            // unit would bypass it.
            if !units.insert(lun.unit) {
                let what = format!("the initiator sees the unit with lun = {} twice", lun.unit);
                problems.error(&value.span(), what, "leave one of them out");
            }
            if !numbers.insert(lun.seen_as) {
                let what = format!("the initiator sees two units as {}", lun.seen_as);
                problems.error(&value.span(), what, "give one of them another number with as = N");
            }
            seen.push(lun);
        }
        luns = Some(seen);
    } else if all_read_only {
        let as_it_is = |unit: &Lun| AclLun { unit: unit.lun, seen_as: unit.lun, read_only: true };
        luns = Some(units.iter().map(as_it_is).collect());
    }
    let limits = limits_of_service(&mut given, problems);
    given.end(problems);
    let user = user.map(|user| user.value);
    Some(Acl { initiator: initiator?.value, user, luns, limits, ..acl })
}

/// Reads limits with the grammar of units' limits.
pub(super) fn limits_of_service(given: &mut Table<'_>, problems: &mut Problems) -> Limits {
    let mut limits = Limits::default();
    for setting in Limits::SETTINGS {
        let Some(value) = given.take(setting.name) else { continue };
        let Some(text) = option_text(setting.name, value, problems) else { continue };
        if let Some(Err(error)) = options::set(&mut limits, setting.name, &text) {
            problems.error(&value.span(), error.to_string(), error.instead());
        }
    }
    limits
}

/// The value of an option in the form that the command line uses.
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
    place: &Place<'_>,
    problems: &mut Problems,
) -> Option<AclLun> {
    let number = Setting { name: "luns", ..key("luns", "lun") };
    let (lun, seen_as, read_only) = match value.get_ref() {
        DeValue::Integer(_) => {
            let lun = u16::read(&number, value, place, problems)?;
            (At { value: lun, span: value.span() }, None, all_read_only)
        }
        DeValue::Table(_) => {
            let mut given = table("luns", value, "a table", problems)?;
            let lun = given.value(&key("luns", "lun"), place, problems);
            let seen_as = given.value::<u16>(&key("luns", "as"), place, problems);
            let read_only = given.value(&key("luns", "ro"), place, problems);
            given.end(problems);
            (lun?, seen_as, read_only.map_or(all_read_only, |at| at.value))
        }
        other => {
            return mismatch("luns", "an array of numbers or tables", other, value.span(), problems);
        }
    };
    if !there.contains(&lun.value) {
        let mut numbers: Vec<String> = there.iter().map(u16::to_string).collect();
        numbers.sort_unstable();
        let what = format!("the target has no unit with lun = {}", lun.value);
        let there = crate::suggest::list(numbers.iter().map(String::as_str));
        problems.error(&lun.span, what, format!("its units have {there}"));
        return None;
    }
    let seen_as = seen_as.map_or(lun.value, |at| at.value);
    Some(AclLun { unit: lun.value, seen_as, read_only })
}

/// Mistakes of units together: two that write to one file destroy each other's data.
fn units_together(config: &Config, span: Range<usize>, problems: &mut Problems) {
    if let Some(what) = config.too_many_stages() {
        problems.error(&span, what, "take `stages` out of some");
    }
    for medium in config.media_of_two() {
        let what = format!("two units use {}", medium.display());
        problems.error(&span, what, "give each its own file, or make both read-only with ro = true");
    }
}
