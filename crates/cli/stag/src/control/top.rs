//! `stag top`: the load of a daemon's units, sessions, exports, NFS clients and cores, as the
//! difference of two statuses.

use std::collections::HashMap;
use std::fmt::Write;
use std::time::{Duration, Instant};

use backing::size::Size;
use serde::Serialize;

use super::client::{CallError, Client};
use super::status::{Io, Stage, Status, TargetStatus, UnitStatus};
use crate::args;
use crate::exit::Exit;
use crate::out::{self, OutError};

/// Rows of a table at most: the busiest.
const ROWS: usize = 20;
/// Clears the screen and goes to its top left corner (ECMA-48).
const CLEAR: &str = "\x1b[H\x1b[2J";

/// Rates per second.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Rates {
    pub reads: f64,
    pub writes: f64,
    /// Other commands a second.
    pub others: f64,
    /// Bytes read a second.
    pub read_bytes: f64,
    /// Bytes written a second.
    pub written_bytes: f64,
    /// Commands a second that did not end with GOOD.
    pub failed: f64,
    /// Mean time of the timed commands in the daemon, µs.
    pub mean_us: Option<f64>,
    /// 99th percentile of that time, µs: a power of two of nanoseconds.
    pub p99_us: Option<f64>,
}

/// One row of a table: a name and its rates.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Row {
    pub name: String,
    pub rates: Rates,
}

/// Everything at one moment.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Top {
    /// Length of the interval, seconds.
    pub seconds: f64,
    pub total: Rates,
    /// Units, the busiest first.
    pub units: Vec<Row>,
    /// Sessions, the busiest first.
    pub sessions: Vec<Row>,
    /// Where the time of commands went, by target and operation: one command in eight.
    pub stages: Vec<Spent>,
    /// Exports, the busiest first. Their calls are `others`.
    pub exports: Vec<Row>,
    /// Connections of NFS clients, the busiest first. Their calls are `others`.
    pub clients: Vec<Row>,
    /// Utilization of each core's thread, 0 to 1.
    pub cores: Vec<f64>,
}

/// Mean times of the stages of one operation of a target, µs.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Spent {
    pub target: String,
    pub operation: String,
    pub order_us: f64,
    pub data_us: f64,
    pub medium_us: f64,
    pub send_us: f64,
}

/// Times spent between two statuses of a target.
fn spent(before: Option<&TargetStatus>, now: &TargetStatus) -> Vec<Spent> {
    let mut all: Vec<Spent> = Vec::new();
    for stage in &now.work.stages {
        let old = before.and_then(|before| {
            let alike = |it: &&Stage| it.operation == stage.operation && it.stage == stage.stage;
            before.work.stages.iter().find(alike)
        });
        let count = |of: &Stage| of.buckets.iter().sum::<u64>();
        let commands = count(stage).saturating_sub(old.map_or(0, count));
        if commands == 0 {
            continue;
        }
        let mean = (stage.seconds - old.map_or(0.0, |old| old.seconds)).max(0.0) / commands as f64 * 1e6;
        let at = all.iter().position(|one| one.operation == stage.operation).unwrap_or_else(|| {
            let (target, operation) = (now.iqn.clone(), stage.operation.clone());
            all.push(Spent { target, operation, ..Spent::default() });
            all.len() - 1
        });
        match stage.stage.as_str() {
            "order" => all[at].order_us = mean,
            "data" => all[at].data_us = mean,
            "medium" => all[at].medium_us = mean,
            _ => all[at].send_us = mean,
        }
    }
    all
}

impl Rates {
    fn between(before: &Io, now: &Io, seconds: f64) -> Self {
        // A count that has fallen belongs to a new daemon or session.
        let rate = |before: u64, now: u64| now.saturating_sub(before) as f64 / seconds;
        let timed = now.timed.saturating_sub(before.timed);
        let time = now.time_ns.saturating_sub(before.time_ns);
        Self {
            reads: rate(before.reads, now.reads),
            writes: rate(before.writes, now.writes),
            others: rate(before.others, now.others),
            read_bytes: rate(before.read_bytes, now.read_bytes),
            written_bytes: rate(before.written_bytes, now.written_bytes),
            failed: rate(before.failed, now.failed),
            mean_us: (timed > 0).then(|| time as f64 / timed as f64 / 1e3),
            p99_us: percentile(&before.buckets, &now.buckets, 0.99),
        }
    }

    fn all(&self) -> f64 {
        self.reads + self.writes + self.others
    }
}

/// Upper end of the bucket that holds the quantile `part` of the counts between `before` and `now`,
/// µs.
fn percentile(before: &[u64], now: &[u64], part: f64) -> Option<f64> {
    let counts: Vec<u64> = now
        .iter()
        .enumerate()
        .map(|(at, count)| count.saturating_sub(before.get(at).copied().unwrap_or(0)))
        .collect();
    let all: u64 = counts.iter().sum();
    let wanted = (all as f64 * part).ceil() as u64;
    let mut sum = 0;
    for (at, count) in counts.into_iter().enumerate() {
        sum += count;
        if sum >= wanted && all > 0 {
            return Some((512u64 << at.min(50)) as f64 / 1e3);
        }
    }
    None
}

impl Top {
    /// The rates between two statuses.
    pub fn between(before: &Status, now: &Status) -> Self {
        let seconds = (now.uptime_s - before.uptime_s).max(1e-3);
        let units = |status: &Status| -> Vec<(String, Io)> {
            let of = |target: &TargetStatus| {
                let named = |unit: &UnitStatus| (format!("{}/{}", target.iqn, unit.lun), unit.io);
                target.units.iter().map(named).collect::<Vec<_>>()
            };
            status.targets.iter().flat_map(of).collect()
        };
        let mut units = rows(&units(before), &units(now), seconds, Clone::clone);
        let mut sessions = rows(&before.sessions, &now.sessions, seconds, |session| {
            (format!("{} ({})", session.initiator, session.tsih), session.io)
        });
        let total = {
            let sum = |status: &Status| {
                let mut all = Io::default();
                status.targets.iter().flat_map(|target| &target.units).for_each(|unit| all.add(&unit.io));
                all
            };
            Rates::between(&sum(before), &sum(now), seconds)
        };
        let stages = now
            .targets
            .iter()
            .flat_map(|target| spent(before.targets.iter().find(|old| old.iqn == target.iqn), target));
        let stages = stages.collect();
        let mut exports =
            rows(&before.nfs.exports, &now.nfs.exports, seconds, |export| (export.name.clone(), export.io()));
        let mut clients = rows(&before.nfs.clients, &now.nfs.clients, seconds, |client| {
            (client.peer.clone(), Io { others: client.calls, ..Io::default() })
        });
        for rows in [&mut units, &mut sessions, &mut exports, &mut clients] {
            rows.sort_by(|a, b| b.rates.all().total_cmp(&a.rates.all()));
        }
        let busy = |status: &Status, at: usize| status.cores.get(at).and_then(|core| core.as_ref()?.busy_s);
        let cores = (0..now.cores.len()).map(|at| {
            busy(now, at).zip(busy(before, at)).map_or(0.0, |(now, before)| (now - before) / seconds)
        });
        Self {
            seconds,
            total,
            units,
            sessions,
            stages,
            exports,
            clients,
            cores: cores.map(|busy| busy.clamp(0.0, 1.0)).collect(),
        }
    }
}

/// Rates of each of `now` since `before`, matched by name. A new one counts from 0.
fn rows<T>(before: &[T], now: &[T], seconds: f64, of: impl Fn(&T) -> (String, Io)) -> Vec<Row> {
    let old: HashMap<String, Io> = before.iter().map(&of).collect();
    let row = |one| {
        let (name, io) = of(one);
        let none = Io::default();
        let rates = Rates::between(old.get(&name).unwrap_or(&none), &io, seconds);
        Row { name, rates }
    };
    now.iter().map(row).collect()
}

pub fn command(args: &args::Top) -> Exit {
    match run(args) {
        Ok(None) => Exit::Done,
        Ok(Some(error)) => error.show(),
        Err(error) => error.show(),
    }
}

/// Shows one screen after another; `Some` once stdout is closed.
fn run(args: &args::Top) -> Result<Option<OutError>, CallError> {
    let interval = Duration::try_from_secs_f64(args.interval).unwrap_or(Duration::from_secs(1));
    let mut client = Client::connect(args.at.control.as_deref())?;
    let mut before: Status = client.ask("status")?;
    loop {
        let next = Instant::now() + interval;
        std::thread::sleep(next.saturating_duration_since(Instant::now()));
        let now: Status = client.ask("status")?;
        let top = Top::between(&before, &now);
        let text = match args.json {
            true => serde_json::to_string(&top).map_err(std::io::Error::from)? + "\n",
            false => text(&now, &top),
        };
        let clear = if args.once || args.json { "" } else { CLEAR };
        let printed = out::write(format!("{clear}{text}").as_bytes());
        if printed.is_err() || args.once {
            return Ok(printed.err());
        }
        before = now;
    }
}

fn text(status: &Status, top: &Top) -> String {
    let mut out = String::new();
    let _ = write_text(&mut out, status, top);
    out
}

fn write_text(out: &mut String, status: &Status, top: &Top) -> std::fmt::Result {
    let connections: usize = status.sessions.iter().map(|session| session.connections.len()).sum();
    writeln!(
        out,
        "stag {}, process {}: {} sessions, {connections} connections, {} NFS clients, cores {}",
        status.version,
        status.pid,
        status.sessions.len(),
        status.nfs.clients.len(),
        top.cores.iter().map(|busy| format!("{:.0}%", busy * 100.0)).collect::<Vec<_>>().join(" "),
    )?;
    let files = !status.nfs.exports.is_empty();
    let disks = !files || !status.targets.is_empty();
    let tables = [
        ("unit", &top.units, disks),
        ("session", &top.sessions, disks),
        ("export", &top.exports, files),
        ("NFS client", &top.clients, files),
    ];
    for (title, rows, _) in tables.into_iter().filter(|(.., shown)| *shown) {
        writeln!(
            out,
            "\n{:<44} {:>9} {:>9} {:>8} {:>9} {:>9} {:>6} {:>8} {:>8}",
            title, "reads/s", "writes/s", "others", "read B/s", "write B/s", "bad/s", "mean µs", "p99 < µs"
        )?;
        let total = Row { name: "all".into(), rates: top.total.clone() };
        let total = (title == "unit").then_some(&total);
        for row in total.into_iter().chain(rows.iter().take(ROWS)) {
            let rates = &row.rates;
            let time = |us: Option<f64>| us.map_or("-".to_owned(), |us| format!("{us:.1}"));
            writeln!(
                out,
                "{:<44} {:>9.0} {:>9.0} {:>8.0} {:>9} {:>9} {:>6.0} {:>8} {:>8}",
                shortened(&row.name, 44),
                rates.reads,
                rates.writes,
                rates.others,
                bytes(rates.read_bytes),
                bytes(rates.written_bytes),
                rates.failed,
                time(rates.mean_us),
                time(rates.p99_us),
            )?;
        }
        if rows.len() > ROWS {
            writeln!(out, "and {} more", rows.len() - ROWS)?;
        }
    }
    if !top.stages.is_empty() {
        writeln!(
            out,
            "\n{:<44} {:>9} {:>9} {:>9} {:>9}",
            "mean µs of stages", "order", "data", "medium", "send"
        )?;
    }
    for one in top.stages.iter().take(ROWS) {
        let name = shortened(&format!("{} {}", one.target, one.operation), 44);
        let Spent { order_us, data_us, medium_us, send_us, .. } = one;
        writeln!(out, "{name:<44} {order_us:>9.1} {data_us:>9.1} {medium_us:>9.1} {send_us:>9.1}")?;
    }
    Ok(())
}

/// The end of a name tells more than its beginning.
fn shortened(name: &str, most: usize) -> String {
    let length = name.chars().count();
    if length <= most {
        return name.to_owned();
    }
    std::iter::once('…').chain(name.chars().skip(length + 1 - most)).collect()
}

/// Bytes a second in few letters: to a whole KiB.
fn bytes(rate: f64) -> String {
    match rate {
        rate if rate >= 1e9 => format!("{:.2} G", rate / 1e9),
        rate if rate >= 1e6 => format!("{:.1} M", rate / 1e6),
        rate if rate >= 1e3 => format!("{:.0} k", rate / 1e3),
        rate => Size(rate as u64).to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn buckets(first: [u64; 3]) -> [u64; iscsi_server::BUCKETS] {
        std::array::from_fn(|at| first.get(at).copied().unwrap_or(0))
    }

    #[test]
    fn rates_are_what_came_between_by_the_time_between() {
        let before = Io { reads: 100, read_bytes: 1000, buckets: buckets([5, 0, 0]), ..Io::default() };
        let now = Io {
            reads: 300,
            read_bytes: 5000,
            timed: 10,
            time_ns: 20_000,
            buckets: buckets([5, 98, 2]),
            ..before
        };
        let rates = Rates::between(&before, &now, 2.0);
        assert_eq!((rates.reads, rates.read_bytes, rates.writes), (100.0, 2000.0, 0.0));
        assert_eq!((rates.mean_us, rates.p99_us), (Some(2.0), Some(2.048)));
        // A new daemon counts from 0.
        assert_eq!(Rates::between(&now, &before, 2.0).reads, 0.0);
        assert_eq!(percentile(&[], &[], 0.99), None);
    }

    #[test]
    fn stages_are_means_of_what_came_between() {
        let stage = |name: &str, seconds: f64, commands: u64| {
            let mut buckets = [0; iscsi_server::STAGE_BUCKETS];
            buckets[3] = commands;
            Stage { operation: "write".into(), stage: name.into(), seconds, buckets }
        };
        let target = |stages| TargetStatus {
            iqn: "t".into(),
            alias: String::new(),
            groups: Vec::new(),
            managed: false,
            units: Vec::new(),
            work: super::super::status::Work { stages, ..Default::default() },
        };
        let before = target(vec![stage("data", 1.0, 10), stage("medium", 1.0, 10)]);
        let now = target(vec![stage("data", 1.5, 20), stage("medium", 1.0, 10), stage("send", 0.001, 1)]);
        let write = Spent { target: "t".into(), operation: "write".into(), ..Spent::default() };
        assert_eq!(spent(Some(&before), &now), [Spent { data_us: 50_000.0, send_us: 1000.0, ..write }]);
        assert_eq!(spent(Some(&now), &now), []);
    }

    #[test]
    fn long_names_keep_their_ends() {
        assert_eq!(shortened("short", 8), "short");
        assert_eq!(shortened("iqn.2026-01.org.example:disks/17", 10), "…:disks/17");
    }
}
