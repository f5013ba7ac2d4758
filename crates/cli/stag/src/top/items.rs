//! The rows of each view of `stag top` with their numbers, and the columns that these stand in.
//! Does no I/O.

use std::collections::HashMap;
use std::rc::Rc;

use super::rates::{Rates, Row, Top, session_name, unit_name};
use super::shown::Unit;
use crate::control::exports::{ClientStatus, ExportStatus};
use crate::control::status::{CoreStatus, SessionStatus, Status, TargetStatus, UnitStatus};

/// A view.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Tab {
    Units,
    Sessions,
    Cores,
    Exports,
    Clients,
}

/// A number of each row.
#[derive(Debug, PartialEq, Eq)]
pub struct Column {
    /// The key that sorts by it.
    pub key: char,
    pub title: &'static str,
    /// The title without abbreviation.
    pub long: &'static str,
    pub unit: Unit,
    /// With the gap before it, and a place for the mark of the order.
    pub width: u16,
    /// The narrowest screen on which it is shown.
    pub from: u16,
}

const fn column(key: char, title: &'static str, long: &'static str, unit: Unit, width: u16) -> Column {
    Column { key, title, long, unit, width, from: 0 }
}

const fn wide(column: Column, from: u16) -> Column {
    Column { from, ..column }
}

const READ_BYTES: Column = column('R', "read B", "bytes read/s", Unit::Rate, 8);
const WRITTEN_BYTES: Column = column('W', "write B", "bytes written/s", Unit::Rate, 9);

/// The first columns of units and of sessions: [`load`].
const LOAD: &[Column] = &[
    column('a', "all", "commands/s", Unit::Rate, 6),
    column('r', "reads", "reads/s", Unit::Rate, 7),
    column('w', "writes", "writes/s", Unit::Rate, 8),
    wide(column('o', "others", "other commands/s", Unit::Rate, 8), 90),
    READ_BYTES,
    WRITTEN_BYTES,
    column('b', "bad", "bad: commands/s not ended GOOD", Unit::Rate, 6),
    column('m', "mean", "mean time in the daemon", Unit::Micros, 8),
    column('9', "p99", "99 % took less than", Unit::Micros, 8),
];
const UNITS: &[Column] = &[wide(column('s', "size", "size", Unit::Size, 12), 110)];
const SESSIONS: &[Column] = &[
    wide(column('c', "conns", "connections", Unit::Whole, 7), 100),
    wide(column('g', "age", "time since the login", Unit::Age, 13), 115),
];
const CORES: &[Column] = &[
    column('u', "busy", "busy", Unit::Part, 7),
    column('c', "conns", "connections", Unit::Whole, 7),
    column('l', "pool", "of the buffer pool in use", Unit::Size, 11),
    column('w', "waits", "waits/s for a buffer", Unit::Rate, 7),
    column('t', "TCP B", "bytes/s received over TCP", Unit::Rate, 8),
    column('d', "direct B", "of these direct to a unit", Unit::Rate, 10),
    column('x', "RDMA in", "bytes/s received over RDMA", Unit::Rate, 10),
    column('y', "out", "bytes/s sent over RDMA", Unit::Rate, 8),
];
const EXPORTS: &[Column] = &[
    column('a', "calls", "calls/s", Unit::Rate, 8),
    READ_BYTES,
    WRITTEN_BYTES,
    column('b', "bad", "bad: calls/s, medium failed", Unit::Rate, 6),
    column('l', "limited", "calls/s that a limit delayed", Unit::Rate, 9),
];
const CLIENTS: &[Column] = &[
    column('a', "calls", "calls/s", Unit::Rate, 8),
    column('c', "core", "core", Unit::Whole, 7),
    column('g', "age", "time since it connected", Unit::Age, 13),
];

impl Tab {
    pub const ALL: [Self; 5] = [Self::Units, Self::Sessions, Self::Cores, Self::Exports, Self::Clients];

    pub fn title(self) -> &'static str {
        match self {
            Self::Units => "Units",
            Self::Sessions => "Sessions",
            Self::Cores => "Cores",
            Self::Exports => "Exports",
            Self::Clients => "NFS clients",
        }
    }

    /// One of them.
    pub fn one(self) -> &'static str {
        match self {
            Self::Units => "unit",
            Self::Sessions => "session",
            Self::Cores => "core",
            Self::Exports => "export",
            Self::Clients => "NFS client",
        }
    }

    pub fn columns(self) -> impl Iterator<Item = &'static Column> {
        let (common, own): (&[Column], _) = match self {
            Self::Units => (LOAD, UNITS),
            Self::Sessions => (LOAD, SESSIONS),
            Self::Cores => (&[], CORES),
            Self::Exports => (&[], EXPORTS),
            Self::Clients => (&[], CLIENTS),
        };
        common.iter().chain(own)
    }

    /// Titles and units of the lines over time ([`Item::series`]).
    pub fn series(self) -> &'static [(&'static str, Unit)] {
        match self {
            Self::Units | Self::Sessions => {
                &[("commands/s", Unit::Rate), ("bytes/s", Unit::Rate), ("mean time", Unit::Micros)]
            }
            Self::Cores => &[("busy", Unit::Part), ("TCP bytes/s", Unit::Rate), ("RDMA bytes/s", Unit::Rate)],
            Self::Exports => &[("calls/s", Unit::Rate), ("bytes/s", Unit::Rate)],
            Self::Clients => &[("calls/s", Unit::Rate)],
        }
    }

    /// Returns true if a daemon of this status has the view.
    pub fn is_of(self, status: &Status) -> bool {
        let files = !status.nfs.exports.is_empty();
        match self {
            Self::Units | Self::Sessions => !files || !status.targets.is_empty(),
            Self::Cores => true,
            Self::Exports | Self::Clients => files,
        }
    }
}

/// A row.
#[derive(Clone, Debug, PartialEq)]
pub struct Item {
    /// Its name, unique in its view.
    pub name: String,
    /// What a filter finds beside the name: the target, addresses, the path.
    pub more: String,
    /// The same of several rows: the initiators of a unit's target.
    pub initiators: Option<Rc<str>>,
    /// One for each column of the view; none where it is not known.
    pub values: Vec<Option<f64>>,
    /// One for each of [`Tab::series`].
    pub series: Vec<Option<f64>>,
    /// Whether it is degraded or failed.
    pub troubled: bool,
}

impl Item {
    /// Whether it has `text`, in small letters, in a name.
    pub fn has(&self, text: &str) -> bool {
        let texts =
            [&self.name, &self.more].map(String::as_str).into_iter().chain(self.initiators.as_deref());
        texts.into_iter().any(|one| one.to_lowercase().contains(text))
    }
}

/// The rows of `tab`. Without `change`, the status before and the rates since, rates are not known.
pub fn items(tab: Tab, now: &Status, change: Option<(&Status, &Top)>) -> Vec<Item> {
    match tab {
        Tab::Units => units(now, change.map(|(_, top)| top)),
        Tab::Sessions => sessions(now, change.map(|(_, top)| top)),
        Tab::Cores => cores(now, change),
        Tab::Exports => exports(now, change),
        Tab::Clients => clients(now, change.map(|(_, top)| top)),
    }
}

/// Rates by the names of their rows.
fn by_name(rows: Option<&Vec<Row>>) -> HashMap<&str, &Rates> {
    rows.into_iter().flatten().map(|row| (row.name.as_str(), &row.rates)).collect()
}

/// The values of [`LOAD`].
fn load(rates: Option<&Rates>) -> Vec<Option<f64>> {
    let Some(rates) = rates else { return vec![None; LOAD.len()] };
    let Rates { reads, writes, others, read_bytes, written_bytes, failed, mean_us, p99_us } = *rates;
    let known = [rates.all(), reads, writes, others, read_bytes, written_bytes, failed];
    known.map(Some).into_iter().chain([mean_us, p99_us]).collect()
}

fn load_series(rates: Option<&Rates>) -> Vec<Option<f64>> {
    let bytes = rates.map(|rates| rates.read_bytes + rates.written_bytes);
    vec![rates.map(Rates::all), bytes, rates.and_then(|rates| rates.mean_us)]
}

fn units(now: &Status, top: Option<&Top>) -> Vec<Item> {
    let rates = by_name(top.map(|top| &top.units));
    let mut initiators: HashMap<&str, String> = HashMap::new();
    for session in &now.sessions {
        let Some(target) = session.target.as_deref() else { continue };
        let names = initiators.entry(target).or_default();
        names.push_str(&session.initiator);
        names.push(' ');
    }
    let initiators: HashMap<&str, Rc<str>> =
        initiators.into_iter().map(|(target, names)| (target, names.into())).collect();
    let all = now.targets.iter().flat_map(|target| target.units.iter().map(move |unit| (target, unit)));
    let item = |(target, unit): (&TargetStatus, &UnitStatus)| {
        let name = unit_name(&target.iqn, unit.lun);
        let rates = rates.get(name.as_str()).copied();
        let mut values = load(rates);
        values.push(Some(unit.size as f64));
        Item {
            more: format!("{} {}", unit.path, target.alias),
            initiators: initiators.get(target.iqn.as_str()).cloned(),
            values,
            series: load_series(rates),
            troubled: unit.health.state != "ok",
            name,
        }
    };
    all.map(item).collect()
}

fn sessions(now: &Status, top: Option<&Top>) -> Vec<Item> {
    let rates = by_name(top.map(|top| &top.sessions));
    let item = |session: &SessionStatus| {
        let name = session_name(session);
        let rates = rates.get(name.as_str()).copied();
        let mut values = load(rates);
        values.extend([Some(session.connections.len() as f64), Some(session.age_s)]);
        let peers = session.connections.iter().map(|connection| connection.peer.as_str());
        let names = [session.target.as_deref(), session.user.as_deref()];
        Item {
            more: names.into_iter().flatten().chain(peers).collect::<Vec<_>>().join(" "),
            initiators: None,
            values,
            series: load_series(rates),
            troubled: false,
            name,
        }
    };
    now.sessions.iter().map(item).collect()
}

fn cores(now: &Status, change: Option<(&Status, &Top)>) -> Vec<Item> {
    let item = |(at, core): (usize, &Option<CoreStatus>)| {
        let old = change.and_then(|(before, _)| before.cores.get(at)?.as_ref());
        let rate = |of: fn(&CoreStatus) -> u64| {
            let (core, old, (_, top)) = (core.as_ref()?, old?, change?);
            Some(of(core).saturating_sub(of(old)) as f64 / top.seconds)
        };
        let of = |of: fn(&CoreStatus) -> usize| core.as_ref().map(|core| of(core) as f64);
        let busy = change.filter(|_| core.is_some()).and_then(|(_, top)| top.cores.get(at).copied());
        let tcp = rate(|core| core.tcp.received);
        let rdma_in = rate(|core| core.rdma.in_place + core.rdma.by_reference + core.rdma.copied_in);
        let rdma_out = rate(|core| core.rdma.sent);
        Item {
            name: format!("core {at}"),
            more: String::new(),
            initiators: None,
            values: vec![
                busy,
                of(|core| core.connections),
                of(|core| core.pool_in_use),
                rate(|core| core.pool_waits),
                tcp,
                rate(|core| core.tcp.landed),
                rdma_in,
                rdma_out,
            ],
            series: vec![busy, tcp, rdma_in.zip(rdma_out).map(|(read, sent)| read + sent)],
            troubled: core.is_none(),
        }
    };
    now.cores.iter().enumerate().map(item).collect()
}

fn exports(now: &Status, change: Option<(&Status, &Top)>) -> Vec<Item> {
    let rates = by_name(change.map(|(_, top)| &top.exports));
    let waits: HashMap<&str, u64> = change
        .into_iter()
        .flat_map(|(before, _)| &before.nfs.exports)
        .map(|export| (export.name.as_str(), export.limit_waits))
        .collect();
    let item = |export: &ExportStatus| {
        let rates = rates.get(export.name.as_str()).copied();
        let before = waits.get(export.name.as_str()).copied().unwrap_or(0);
        let waited = change.map(|(_, top)| export.limit_waits.saturating_sub(before) as f64 / top.seconds);
        let of = |of: fn(&Rates) -> f64| rates.map(of);
        Item {
            name: export.name.clone(),
            more: export.path.clone(),
            initiators: None,
            values: vec![
                of(Rates::all),
                of(|rates| rates.read_bytes),
                of(|rates| rates.written_bytes),
                of(|rates| rates.failed),
                waited,
            ],
            series: vec![of(Rates::all), of(|rates| rates.read_bytes + rates.written_bytes)],
            troubled: export.health.state != "ok",
        }
    };
    now.nfs.exports.iter().map(item).collect()
}

fn clients(now: &Status, top: Option<&Top>) -> Vec<Item> {
    let rates = by_name(top.map(|top| &top.clients));
    let item = |client: &ClientStatus| {
        let calls = rates.get(client.peer.as_str()).map(|rates| rates.all());
        Item {
            name: client.peer.clone(),
            more: String::new(),
            initiators: None,
            values: vec![calls, Some(client.core as f64), Some(client.age_s)],
            series: vec![calls],
            troubled: false,
        }
    };
    now.nfs.clients.iter().map(item).collect()
}
