//! The data of all metrics at one moment, and the bounds of the number of series.

use admin_http::exposition::{Format, Kind, Text};

use super::process::Process;
use super::sums::Totals;
use super::table::{LEFT_OUT, Metric, Of, TABLE};
use crate::control::status::{Io, Status, Work};

/// With more units than this, only their most important metrics are exported, and latencies by
/// target.
pub const MOST_UNITS_IN_DETAIL: usize = 1000;
/// With more units than [`MOST_UNITS_IN_DETAIL`] and more targets than this, there is only one
/// latency histogram for all.
pub const MOST_TARGETS: usize = 500;
/// With more targets than this, what became of their commands is told of all together.
pub const MOST_TARGETS_IN_DETAIL: usize = 50;
/// With more pairs of an initiator and a target than this, none of them is exported.
pub const MOST_INITIATORS: usize = 256;
/// With more exports than this, none of them is exported.
pub const MOST_EXPORTS: usize = 1000;

/// A daemon at one moment.
pub struct Picture {
    pub status: Status,
    /// The sums of `status`.
    pub totals: Totals,
    pub process: Process,
    /// Whether it has been replaced by another daemon, or ends.
    pub ends: bool,
    /// Time to gather it, seconds.
    pub took_s: f64,
}

impl Picture {
    /// Units of all targets.
    pub fn units(&self) -> usize {
        self.status.targets.iter().map(|target| target.units.len()).sum()
    }

    /// Latencies by target and number. With too many units, by target; with too many targets too,
    /// of all together.
    pub fn latencies(&self) -> Vec<(&str, String, Io)> {
        let targets = &self.status.targets;
        if self.units() <= MOST_UNITS_IN_DETAIL {
            let of = |target: &'_ crate::control::status::TargetStatus| {
                target.units.iter().map(|unit| (unit.lun.to_string(), unit.io)).collect::<Vec<_>>()
            };
            let named = targets
                .iter()
                .flat_map(|target| of(target).into_iter().map(|(lun, io)| (target.iqn.as_str(), lun, io)));
            return named.collect();
        }
        if targets.len() <= MOST_TARGETS {
            let sums = &self.totals.targets;
            let sum = |iqn: &str| sums.get(iqn).copied().unwrap_or_default();
            return targets.iter().map(|one| (one.iqn.as_str(), String::new(), sum(&one.iqn))).collect();
        }
        vec![("", String::new(), self.totals.all)]
    }

    /// What became of the commands of each target, by its name; with too many targets, of all
    /// together.
    pub fn work(&self) -> Vec<(&str, &Work)> {
        let targets = &self.status.targets;
        if targets.len() <= MOST_TARGETS_IN_DETAIL {
            return targets.iter().map(|one| (one.iqn.as_str(), &one.work)).collect();
        }
        vec![("", &self.totals.work)]
    }

    /// The number of units, initiators or exports, and the bound above which they are left out.
    fn count(&self, of: Of) -> (usize, usize) {
        match of {
            Of::UnitDetails => (self.units(), MOST_UNITS_IN_DETAIL),
            Of::Initiators => (self.totals.initiators.len(), MOST_INITIATORS),
            Of::Exports => (self.status.nfs.exports.len(), MOST_EXPORTS),
            Of::Daemon | Of::Sums | Of::Cores | Of::Units | Of::Asking | Of::Targets => (0, 0),
        }
    }

    /// Whether `metric` is exported. A sum over cores is not if one core did not answer: a counter
    /// that falls counts as restarted.
    fn tells(&self, metric: &Metric, left_out: &[Of]) -> bool {
        let counts = matches!(metric.family.kind, Kind::Counter | Kind::Histogram);
        let sums = !matches!(metric.of, Of::Daemon | Of::Cores);
        (self.status.complete || !(counts && sums)) && !left_out.contains(&metric.of)
    }

    /// All metrics.
    pub fn text(&self, format: Format) -> Text {
        let mut text = Text::new(format);
        let bounded = [Of::UnitDetails, Of::Initiators, Of::Exports];
        let above = |of: &Of| {
            let (there_are, most) = self.count(*of);
            there_are > most
        };
        let left_out: Vec<Of> = bounded.into_iter().filter(above).collect();
        for metric in TABLE.iter().filter(|metric| self.tells(metric, &left_out)) {
            (metric.tell)(self, &mut text.family(&metric.family));
        }
        let mut rows = text.family(&LEFT_OUT);
        for of in bounded {
            rows.row(&[of.name()], left_out.contains(&of));
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::MOST_UNITS_WITH_STAGES;
    use crate::control::counted::Ended;
    use crate::control::status::{CoreStatus, SessionStatus, Stage, TargetStatus, UnitStatus};
    use crate::metrics::sums::Sums;
    use serde_json::json;

    fn unit(lun: u16) -> UnitStatus {
        let mut counts = Io { reads: 7, timed: 1, time_ns: 20_000, ..Io::default() };
        counts.buckets[6] = 1;
        let unit = json!({
            "lun": lun, "path": "mem:1M", "size": 1 << 20, "block": 512, "read_only": false, "thin": true, "write_cache": true,
            "engine": null, "serial": "1", "allocated": 4096, "io": counts,
        });
        serde_json::from_value(unit).unwrap()
    }

    fn core() -> CoreStatus {
        let core = json!({
            "connections": 1, "pool_in_use": 1, "pool_high_water": 2, "pool_mapped": 3, "pool_limit": 4, "busy_s": 1.5,
        });
        serde_json::from_value(core).unwrap()
    }

    fn session(at: usize) -> SessionStatus {
        let session = json!({
            "tsih": 1, "initiator": format!("iqn.2026-01.example:{at}"), "isid": "00", "target": "iqn.2026-01.example:0", "group": 1,
            "error_recovery_level": 0, "max_connections": 1, "age_s": 1.0, "connections": [], "io": Io::default(),
        });
        serde_json::from_value(session).unwrap()
    }

    /// As much as there can be of one target.
    fn work() -> Work {
        let ended = |(status, key, _): (&str, &str, u64)| Ended {
            status: status.into(),
            sense_key: key.into(),
            commands: 1,
        };
        let outcomes = iscsi_server::TargetCounts::default().outcomes().map(ended).collect();
        let stage = |(operation, stage, _): (&str, &str, &iscsi_server::Times)| Stage {
            operation: operation.into(),
            stage: stage.into(),
            seconds: 0.25,
            buckets: [1; iscsi_server::STAGE_BUCKETS],
        };
        let stages = iscsi_server::Stages::default().iter().map(stage).collect();
        Work { outcomes, limit_waits: 2, limit_wait_s: 0.5, stages }
    }

    fn picture(targets: usize, units: u16, sessions: usize) -> Picture {
        let target = |at| TargetStatus {
            iqn: format!("iqn.2026-01.example:{at}"),
            alias: String::new(),
            groups: Vec::new(),
            managed: false,
            units: (0..units).map(unit).collect(),
            work: work(),
        };
        let status = Status {
            version: "0".into(),
            pid: 1,
            uptime_s: 1.0,
            runtime: "epoll".into(),
            portals: Vec::new(),
            targets: (0..targets).map(target).collect(),
            sessions: (0..sessions).map(session).collect(),
            recoveries: Default::default(),
            health: Default::default(),
            nfs: Default::default(),
            gateways: None,
            cores: vec![Some(core()), None],
            complete: true,
            generation: 1,
        };
        let totals = Sums::default().at(&status);
        Picture { status, totals, process: Process::default(), ends: false, took_s: 0.0 }
    }

    fn lines(picture: &Picture) -> Vec<String> {
        picture.text(Format::Prometheus).finish().lines().map(str::to_owned).collect()
    }

    fn count(lines: &[String], beginning: &str) -> usize {
        lines.iter().filter(|line| line.starts_with(beginning)).count()
    }

    #[test]
    fn ten_thousand_units_stay_below_a_hundred_thousand_series() {
        let operation = |at: u32| {
            let counts = json!({"version": 4, "name": at.to_string(), "done": 1, "refused": 0, "delayed": 0, "failed": 0});
            serde_json::from_value(counts).unwrap()
        };
        for (targets, units) in [(10_000, 1), (500, 20), (50, 200), (1, 10_000)] {
            let mut picture = picture(targets, units, 10_000);
            let units = picture.status.targets.iter_mut().flat_map(|target| &mut target.units);
            units.take(MOST_UNITS_WITH_STAGES).for_each(|unit| unit.stages = work().stages);
            picture.status.nfs.operations = (0..98).map(operation).collect();
            picture.status.cores = (0..64).map(|_| Some(core())).collect();
            let series = picture.text(Format::OpenMetrics).series();
            assert!((80_000..=100_000).contains(&series), "{targets} targets: {series} series");
        }
    }

    #[test]
    fn latencies_lose_labels_rather_than_units_where_there_are_many() {
        let buckets = |targets, units| {
            count(&lines(&picture(targets, units, 0)), "stag_command_duration_seconds_count")
        };
        assert_eq!([buckets(4, 5), buckets(400, 5), buckets(2000, 5)], [20, 400, 1]);
        let all = lines(&picture(2000, 5, 0));
        assert!(all.contains(&"stag_command_duration_seconds_count 10000".to_owned()));
    }

    #[test]
    fn outcomes_lose_the_target_rather_than_counts_where_there_are_many() {
        let few = lines(&picture(MOST_TARGETS_IN_DETAIL, 1, 0));
        let busy = "stag_target_commands_total{target=\"iqn.2026-01.example:7\",status=\"busy\"} 1";
        let ill = "status=\"check-condition\",sense_key=\"medium-error\"} 1";
        assert!(few.iter().any(|line| line == busy), "{few:#?}");
        assert_eq!(few.iter().filter(|line| line.ends_with(ill)).count(), MOST_TARGETS_IN_DETAIL);
        let many = lines(&picture(MOST_TARGETS_IN_DETAIL + 1, 1, 0));
        let told = |line: &str| many.iter().any(|told| told == line);
        assert_eq!(count(&many, "stag_target_commands_total{"), iscsi_server::OUTCOMES);
        assert!(told("stag_target_commands_total{status=\"busy\"} 51"), "{many:#?}");
        let read = "stag_command_stage_seconds_bucket{operation=\"read\",stage=\"medium\"";
        assert!(told(&format!("{read},le=\"0.000004096\"}} 51")));
        assert!(told(&format!("{read},le=\"4.294967296\"}} 561")), "{many:#?}");
        assert!(told(&format!("{read},le=\"+Inf\"}} 612")));
        assert!(told("stag_command_stage_seconds_sum{operation=\"write\",stage=\"send\"} 12.75"));
        assert!(
            told("stag_target_limit_waits_total 102") && told("stag_target_limit_wait_seconds_total 25.5")
        );
    }

    /// Prometheus takes a counter that falls for one that has begun anew.
    #[test]
    fn sums_do_not_fall_when_something_of_them_is_taken_out() {
        let mut status = picture(52, 20, 1).status;
        let mut sums = Sums::default();
        let mut told = |status: &Status| {
            let totals = sums.at(status);
            let reads = totals.initiators.values().map(|one| one.io.reads).sum::<u64>();
            let of_target = totals.targets["iqn.2026-01.example:0"].buckets[6];
            let work = (totals.work.limit_waits, totals.work.outcomes[0].commands);
            (work, totals.all.buckets[6], of_target, reads)
        };
        status.sessions[0].io.reads = 10;
        assert_eq!(told(&status), ((104, 52), 1040, 20, 10));
        status.targets.pop();
        status.targets[0].units.pop();
        // One of its connections has ended.
        status.sessions[0].io.reads = 4;
        assert_eq!(told(&status), ((104, 52), 1040, 20, 10));
        status.targets[0].units[0].io.buckets[6] += 5;
        status.targets[0].work.limit_waits += 1;
        status.sessions[0].io.reads += 2;
        assert_eq!(told(&status), ((105, 52), 1045, 25, 12));
    }

    #[test]
    fn only_a_unit_that_asks_for_it_has_its_stages_told() {
        let mut picture = picture(1, 3, 0);
        picture.status.targets[0].units[1].stages = work().stages;
        let all = lines(&picture);
        let of_unit = "stag_unit_stage_seconds_count{target=\"iqn.2026-01.example:0\",lun=\"1\",";
        assert_eq!(count(&all, "stag_unit_stage_seconds_count{"), 12);
        assert_eq!(count(&all, of_unit), 12);
        assert!(all.contains(&format!("{of_unit}operation=\"write\",stage=\"data\"}} 12")), "{all:#?}");
    }

    #[test]
    fn a_group_tells_its_members_owners_and_counts() {
        let mut picture = picture(1, 3, 0);
        let told = |picture: &Picture, beginning: &str| {
            lines(picture).into_iter().filter(|line| line.starts_with(beginning)).collect::<Vec<_>>()
        };
        assert_eq!((told(&picture, "stag_gateway_").len(), told(&picture, "stag_unit_owner").len()), (0, 0));
        let member = |number: u16, standing: &str, link: Option<bool>| {
            json!({ "number": number, "instance": "", "standing": standing, "silent_ms": 250, "units": 1,
                    "own": number == 1, "link": link })
        };
        let group = json!({
            "gateway": 1, "life": 2, "problem": null, "missing": [4], "units": [], "fences": [],
            "members": [member(1, "serving", None), member(2, "leaving", Some(true)), member(3, "being taken out", Some(false))],
            "counts": { "moves": 5, "takeovers": 6, "fences": 7, "forwarded": 8, "forwarded_read_bytes": 9,
                        "forwarded_written_bytes": 10 },
        });
        picture.status.gateways = serde_json::from_value(group).unwrap();
        for (unit, owner) in picture.status.targets[0].units.iter_mut().zip([Some(2), None]) {
            let shared = json!({ "image": "rbd/a", "owner": owner, "moving_to": null, "here": false });
            unit.shared = serde_json::from_value(shared).unwrap();
        }
        let states = told(&picture, "stag_gateway_member_state{");
        assert_eq!(
            states,
            [1, 2, 3, 4].map(|number: u16| {
                let state = [0, 1, 2, 2][usize::from(number) - 1];
                format!("stag_gateway_member_state{{gateway=\"{number}\"}} {state}")
            })
        );
        let up = |number, up| format!("stag_gateway_link_up{{gateway=\"{number}\"}} {up}");
        assert_eq!(told(&picture, "stag_gateway_link_up{"), [up(2, 1), up(3, 0)]);
        let owner = "stag_unit_owner_info{target=\"iqn.2026-01.example:0\",lun=\"0\",gateway=\"2\"} 1";
        assert_eq!(told(&picture, "stag_unit_owner_info{"), [owner]);
        for line in [
            "info{gateway=\"1\"} 1",
            "member_silent_seconds{gateway=\"3\"} 0.25",
            "member_units{gateway=\"2\"} 1",
            "lives_total 2",
            "moves_total 5",
            "takeovers_total 6",
            "fences_total 7",
            "forwarded_commands_total 8",
            "forwarded_bytes_total{direction=\"read\"} 9",
            "forwarded_bytes_total{direction=\"write\"} 10",
        ] {
            assert_eq!(
                told(&picture, "stag_gateway_")
                    .iter()
                    .filter(|one| one.ends_with(&format!("_{line}")))
                    .count(),
                1,
                "{line}"
            );
        }
    }

    #[test]
    fn too_many_initiators_are_told_only_by_their_number() {
        let few = lines(&picture(1, 1, MOST_INITIATORS));
        assert_eq!(count(&few, "stag_initiator_sessions{"), MOST_INITIATORS);
        let many = lines(&picture(1, 1, MOST_INITIATORS + 1));
        assert_eq!((count(&many, "stag_initiator_"), count(&many, "stag_sessions 257")), (0, 1));
        assert_eq!(count(&many, "stag_metrics_left_out{detail=\"initiators\"} 1"), 1);
    }

    /// A sum without one core's part would be smaller than the one before. Prometheus takes that
    /// for a restart, and its next rate for a burst.
    #[test]
    fn a_core_that_does_not_answer_is_missing_and_so_are_the_sums() {
        let mut picture = picture(1, 1, 1);
        picture.status.complete = false;
        let lines = lines(&picture);
        assert_eq!(count(&lines, "stag_core_up{core=\"1\"} 0"), 1);
        assert_eq!(
            (count(&lines, "stag_core_busy_seconds_total{"), count(&lines, "stag_unit_size_bytes{")),
            (1, 1)
        );
        for sum in [
            "stag_unit_commands_total",
            "stag_command_duration",
            "stag_initiator_commands",
            "stag_target_",
            "stag_digest",
        ] {
            assert_eq!(count(&lines, sum), 0, "{sum}");
        }
    }

    #[test]
    fn a_histogram_counts_up_to_what_it_has_in_all() {
        let mut picture = picture(1, 1, 0);
        let io = &mut picture.status.targets[0].units[0].io;
        // One in each bucket, and two in the last.
        io.buckets = [1; iscsi_server::BUCKETS];
        io.buckets[iscsi_server::BUCKETS - 1] = 2;
        io.timed = io.buckets.iter().sum();
        let lines = lines(&picture);
        let counts: Vec<u64> = lines
            .iter()
            .filter(|line| line.starts_with("stag_command_duration_seconds_bucket"))
            .filter_map(|line| line.rsplit_once(' ')?.1.parse().ok())
            .collect();
        assert!(counts.len() <= 12, "{counts:?}");
        assert!(counts.windows(2).all(|pair| pair[0] < pair[1]), "{counts:?}");
        assert_eq!(counts.last(), Some(&25));
        // 2^(9 + n) ns end bucket n: 8.192 µs the fifth.
        assert!(lines[..].iter().any(|line| line.contains("le=\"0.000008192\"} 5")), "{lines:#?}");
    }
}
