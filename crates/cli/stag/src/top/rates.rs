//! The load of a daemon's units, sessions, exports, NFS clients and cores, as the difference of two
//! statuses. Does no I/O.

use std::collections::HashMap;

use serde::Serialize;

use crate::control::status::{Io, SessionStatus, Stage, Status, TargetStatus};

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

    /// Commands of all kinds a second.
    pub fn all(&self) -> f64 {
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

/// The name of a unit's row.
pub fn unit_name(target: &str, lun: u16) -> String {
    format!("{target}/{lun}")
}

/// The name of a session's row.
pub fn session_name(session: &SessionStatus) -> String {
    format!("{} ({})", session.initiator, session.tsih)
}

impl Top {
    /// The rates between two statuses.
    pub fn between(before: &Status, now: &Status) -> Self {
        let seconds = (now.uptime_s - before.uptime_s).max(1e-3);
        let units = |status: &Status| -> Vec<(String, Io)> {
            let of = |target: &TargetStatus| {
                let named = target.units.iter().map(|unit| (unit_name(&target.iqn, unit.lun), unit.io));
                named.collect::<Vec<_>>()
            };
            status.targets.iter().flat_map(of).collect()
        };
        let mut units = rows(&units(before), &units(now), seconds, Clone::clone);
        let mut sessions =
            rows(&before.sessions, &now.sessions, seconds, |session| (session_name(session), session.io));
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
            work: crate::control::status::Work { stages, ..Default::default() },
        };
        let before = target(vec![stage("data", 1.0, 10), stage("medium", 1.0, 10)]);
        let now = target(vec![stage("data", 1.5, 20), stage("medium", 1.0, 10), stage("send", 0.001, 1)]);
        let write = Spent { target: "t".into(), operation: "write".into(), ..Spent::default() };
        assert_eq!(spent(Some(&before), &now), [Spent { data_us: 50_000.0, send_us: 1000.0, ..write }]);
        assert_eq!(spent(Some(&now), &now), []);
    }
}
