//! The report of a run as JSON, as CSV and as a table. Scripts read the fields, so their names are
//! stable.

use std::fmt::Write as _;

use iscsi_client::tune::Tuning;
use load::cpu::Spent;
use load::round;
use serde::Serialize;
use serde_json::Value;

use super::drive::Outcome;
use super::plan::Run;
use super::series::Interval;
use super::tally::Tally;
use crate::args::{Bench, Rdma, Remote};

/// Version of the format: increases when a field changes its meaning or is removed.
pub const FORMAT: u32 = 1;

/// Everything, as `--json` prints it.
#[derive(Debug, Serialize)]
pub struct Document<'a> {
    format: u32,
    version: &'static str,
    runs: &'a [Report],
}

/// Latencies in µs.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Latency {
    min: f64,
    mean: f64,
    p50: f64,
    p90: f64,
    p99: f64,
    p999: f64,
    p9999: f64,
    max: f64,
}

impl Latency {
    /// Of the recorded latencies.
    fn of(latency: &load::Latency) -> Self {
        let at = |quantile| round(latency.quantile_us(quantile), 3);
        Self {
            min: round(latency.min_us(), 3),
            mean: round(latency.mean_us(), 3),
            p50: at(0.5),
            p90: at(0.9),
            p99: at(0.99),
            p999: at(0.999),
            p9999: at(0.9999),
            max: round(latency.max_us(), 3),
        }
    }
}

#[derive(Clone, Debug, Serialize)]
pub struct Report {
    urls: Vec<String>,
    pattern: &'static str,
    read_percent: u8,
    zipf: Option<f64>,
    /// Bytes; 0 if no data moves.
    bs: u32,
    /// Commands in flight of each session.
    depth: u16,
    /// Of each session.
    connections: u16,
    /// In all.
    sessions: usize,
    initiators: u16,
    threads: u16,
    /// I/Os a second that were asked for.
    rate: Option<f64>,
    verify: bool,
    /// Whether data read from units were delivered into buffers or dropped.
    receive: &'static str,
    seconds: f64,
    ios: u64,
    reads: u64,
    writes: u64,
    iops: f64,
    /// 10⁶ bytes a second.
    mb_s: f64,
    lat_us: Latency,
    /// `LATENCY:COUNT` of each bucket that has any: the longest latency in it, ns.
    histogram_ns: String,
    /// With --interval: the run by intervals.
    intervals: Option<Vec<Interval>>,
    /// Processor time of this process, µs an I/O.
    client_us: f64,
    /// The same, in percent of one processor.
    client_cpu_percent: f64,
    target_us: Option<f64>,
    target_cpu_percent: Option<f64>,
    /// Work of all of this machine's processors; `null` without /proc/stat.
    machine: Option<Machine>,
    /// Bytes that this process copied, warm-up included; `null` for files.
    copies: Option<Copies>,
    /// I/Os that were due and could not be sent before the end. `lat_us` counts them with the time
    /// that they waited.
    unsent: u64,
    /// I/Os that failed and blocks that were wrong.
    pub errors: u64,
    pub first_error: Option<String>,
    /// Sessions that were lost and made again.
    reconnects: u64,
    /// Commands sent again within their session.
    retries: u64,
    /// Data, R2Ts and statuses asked for again.
    snacks: u64,
    /// Commands that were reassigned to another connection.
    reassigns: u64,
    /// Connections lost and made again within their session.
    replaced_connections: u64,
    /// Blocks that were compared with their stamp.
    verified_blocks: u64,
    /// Entries of a directory that one I/O lists; `null` if it lists none.
    entries_per_io: Option<f64>,
    /// State of the first session's tuning; `null` if it does not tune itself.
    tuning: Option<Tuned>,
}

/// Bytes of a run, warm-up included, by who copied them in this process.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
struct Copies {
    /// Through sockets, in either direction, headers included.
    crossed: u64,
    /// Copied in user space.
    user: u64,
    /// Copied by the kernel, into sockets and out of them.
    kernel: u64,
}

impl From<runtime::Copies> for Copies {
    fn from(copies: runtime::Copies) -> Self {
        Self { crossed: copies.crossed(), user: copies.user, kernel: copies.kernel() }
    }
}

/// Work of all of this machine's processors during the run, for the load and everything else.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
struct Machine {
    /// In percent of one processor.
    cpu_percent: f64,
    /// In programs, in system calls, in interrupt handlers and in their deferred work, µs an I/O.
    user_us: f64,
    system_us: f64,
    irq_us: f64,
    softirq_us: f64,
    /// Interrupts an I/O.
    interrupts: f64,
    /// Context switches an I/O.
    switches: f64,
}

impl Machine {
    /// Of a run with `iops` I/Os a second.
    fn of(cpu: &Spent, iops: f64) -> Option<Self> {
        let machine = cpu.machine?;
        let ios = (iops * cpu.time.as_secs_f64()).max(1e-9);
        let us = |used| round(cpu.each_us(used, iops), 3);
        Some(Self {
            cpu_percent: round(cpu.percent(machine.busy()), 2),
            user_us: us(machine.user),
            system_us: us(machine.system),
            irq_us: us(machine.irq),
            softirq_us: us(machine.softirq),
            interrupts: round(machine.interrupts as f64 / ios, 4),
            switches: round(machine.switches as f64 / ios, 4),
        })
    }
}

/// State of a session's tuning.
#[derive(Clone, Debug, Serialize)]
struct Tuned {
    /// Commands in flight.
    commands: usize,
    connections: u16,
    /// iSER: the longest unsolicited write, bytes.
    unsolicited: Option<u32>,
    /// The longest write that was not split, bytes.
    write_piece: Option<u32>,
    /// Size of the sockets' send buffers, bytes.
    send_buffer: Option<u64>,
    /// The shortest round trip.
    rtt_us: f64,
    /// The highest rate over an interval, 10⁶ bytes a second.
    mb_s: f64,
    changes: u64,
    /// Changes that were undone.
    reverted: u64,
}

impl From<&Tuning> for Tuned {
    fn from(tuning: &Tuning) -> Self {
        Self {
            commands: tuning.commands,
            connections: tuning.connections,
            unsolicited: tuning.unsolicited,
            write_piece: tuning.write_piece,
            send_buffer: tuning.send_buffer,
            rtt_us: round(tuning.rtt.as_secs_f64() * 1e6, 3),
            mb_s: round(tuning.rate / 1e6, 3),
            changes: tuning.changes,
            reverted: tuning.reverted,
        }
    }
}

impl Report {
    /// Whether it ended before its load began.
    pub fn is_empty(&self) -> bool {
        self.seconds == 0.0
    }

    /// Of a run over `sessions`.
    pub fn new(
        args: &Bench,
        run: &Run,
        sessions: usize,
        tally: &Tally,
        outcome: &Outcome,
        intervals: Option<Vec<Interval>>,
    ) -> Self {
        let seconds = outcome.seconds.max(1e-9);
        let iops = tally.ios() as f64 / seconds;
        let cpu = outcome.cpu.unwrap_or_default();
        let bs = if run.pattern.is_metadata() { 0 } else { run.bs };
        let (listings, entries) = tally.listed;
        let (us, percent) = (|used| round(cpu.each_us(used, iops), 3), |used| round(cpu.percent(used), 2));
        Self {
            urls: args.urls.iter().map(ToString::to_string).collect(),
            pattern: run.pattern.name(),
            read_percent: run.read_percent,
            zipf: args.load.zipf,
            bs,
            depth: run.depth,
            connections: args.connect.connections,
            sessions,
            initiators: args.load.initiators,
            threads: args.limits.threads,
            rate: args.load.rate,
            verify: args.load.verify,
            receive: args.load.received().name(),
            seconds: round(outcome.seconds, 6),
            ios: tally.ios(),
            reads: tally.reads,
            writes: tally.writes,
            iops: round(iops, 1),
            mb_s: round(iops * f64::from(bs) / 1e6, 3),
            lat_us: Latency::of(&tally.latency),
            histogram_ns: tally.latency.distribution().to_string(),
            intervals,
            client_us: us(cpu.own),
            client_cpu_percent: percent(cpu.own),
            target_us: cpu.target.map(us),
            target_cpu_percent: cpu.target.map(percent),
            machine: Machine::of(&cpu, iops),
            // The client of files copies where nothing is counted, and a card copies by itself.
            copies: is_counted(args).then(|| outcome.copies.into()),
            unsent: tally.unsent,
            errors: tally.errors,
            first_error: tally.messages.first().cloned(),
            reconnects: tally.reconnects,
            retries: tally.recovered.retries,
            snacks: tally.recovered.snacks,
            reassigns: tally.recovered.reassigns,
            replaced_connections: tally.recovered.connections,
            verified_blocks: tally.verified,
            entries_per_io: (listings > 0).then(|| round(entries as f64 / listings as f64, 1)),
            tuning: tally.tuning.as_ref().map(Tuned::from),
        }
    }
}

/// Returns true if this client counts all its copies: it loads units, over TCP or software iWARP.
fn is_counted(args: &Bench) -> bool {
    let units = args.urls.iter().all(|url| matches!(url, Remote::Unit(_)));
    units && args.connect.rdma == Rdma::Software
}

/// All runs as one JSON document.
pub fn json(runs: &[Report]) -> String {
    let document = Document { format: FORMAT, version: env!("CARGO_PKG_VERSION"), runs };
    // Numbers, strings and lists of them: nothing that JSON does not have.
    serde_json::to_string_pretty(&document).unwrap_or_default() + "\n"
}

const COLUMNS: &str = "urls,pattern,read_percent,zipf,bs,depth,connections,sessions,initiators,threads,rate,verify,seconds,\
    ios,reads,writes,iops,mb_s,lat_min_us,lat_mean_us,lat_p50_us,lat_p90_us,lat_p99_us,lat_p999_us,lat_p9999_us,lat_max_us,\
    client_us,client_cpu_percent,target_us,target_cpu_percent,unsent,errors,first_error,reconnects,verified_blocks,\
    retries,snacks,reassigns,replaced_connections,entries_per_io\n";

/// The first line of the CSV (RFC 4180).
pub fn csv_head() -> &'static str {
    COLUMNS
}

/// A run as a line of CSV. A missing value is an empty field.
pub fn csv(run: &Report) -> String {
    let run = serde_json::to_value(run).unwrap_or_default();
    let field = |column: &str| {
        let latency = column.strip_prefix("lat_").and_then(|name| name.strip_suffix("_us"));
        match latency.map_or(&run[column], |name| &run["lat_us"][name]) {
            Value::Null => String::new(),
            Value::String(text) => quoted(text),
            Value::Array(urls) => {
                quoted(&urls.iter().filter_map(Value::as_str).collect::<Vec<_>>().join(" "))
            }
            Value::Number(n) if n.is_f64() => n.as_f64().unwrap_or_default().to_string(),
            other => other.to_string(),
        }
    };
    COLUMNS.trim_end().split(',').map(field).collect::<Vec<_>>().join(",") + "\n"
}

fn quoted(text: &str) -> String {
    if text.contains([',', '"', '\n', '\r']) {
        format!("\"{}\"", text.replace('"', "\"\""))
    } else {
        text.to_owned()
    }
}

pub fn table_head(target: bool) -> String {
    let mut line = format!(
        "{:<11} {:>6} {:>5} {:>9} {:>9} {:>8} {:>8} {:>8} {:>8} {:>8} {:>9} {:>9} {:>9}",
        "pattern",
        "bs",
        "depth",
        "IOPS",
        "MB/s",
        "mean µs",
        "p50",
        "p90",
        "p99",
        "p99.9",
        "p99.99",
        "max",
        "client µs"
    );
    if target {
        let _ = write!(line, " {:>9} {:>8}", "target µs", "target %");
    }
    line + "\n"
}

/// A run as a line of the table, and what there is to say besides.
pub fn table(run: &Report, target: bool) -> String {
    let lat = &run.lat_us;
    let mut line = format!(
        "{:<11} {:>6} {:>5} {:>9.0} {:>9.1} {:>8.1} {:>8.1} {:>8.1} {:>8.1} {:>8.1} {:>9.1} {:>9.1} {:>9.2}",
        run.pattern,
        size(run.bs),
        run.depth,
        run.iops,
        run.mb_s,
        lat.mean,
        lat.p50,
        lat.p90,
        lat.p99,
        lat.p999,
        lat.p9999,
        lat.max,
        run.client_us
    );
    if target {
        let number = |n: Option<f64>, digits| n.map_or_else(|| "-".into(), |n| format!("{n:.digits$}"));
        let _ = write!(line, " {:>9} {:>8}", number(run.target_us, 2), number(run.target_cpu_percent, 1));
    }
    line.push('\n');
    let mut say = |what: &str, n: u64| {
        if n > 0 {
            let _ = writeln!(line, "          {what}: {n}");
        }
    };
    say("due and not sent", run.unsent);
    say("sessions made anew", run.reconnects);
    say("connections made again", run.replaced_connections);
    say("commands reassigned to another connection", run.reassigns);
    say("commands sent again", run.retries);
    say("SNACKs", run.snacks);
    say("blocks verified", run.verified_blocks);
    say("entries of a listing", run.entries_per_io.unwrap_or(0.0) as u64);
    say("ERRORS", run.errors);
    line
}

/// Bytes in the unit that divides them.
fn size(bytes: u32) -> String {
    match bytes {
        0 => "-".to_owned(),
        b if b % (1 << 20) == 0 => format!("{}M", b >> 20),
        b if b % (1 << 10) == 0 => format!("{}k", b >> 10),
        b => b.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use clap::Parser;
    use load::cpu::Spent;

    use super::super::plan;
    use super::*;
    use crate::args::{Cli, Command};

    fn report() -> Report {
        let words = "stag bench iscsi://h/iqn.2026-01.org.example:a/0 --bs 4k";
        let Command::Bench(args) = Cli::try_parse_from(words.split(' ')).unwrap().command else {
            unreachable!()
        };
        let mut tally = Tally::default();
        for us in 1..=1000 {
            tally.done(false, us * 1000);
        }
        tally.error(|| "one, \"two\"".into());
        let (time, own, target) =
            (Duration::from_secs(2), Duration::from_millis(500), Some(Duration::from_secs(1)));
        let machine = load::machine::Machine {
            user: own,
            system: own,
            softirq: own,
            interrupts: 250,
            switches: 500,
            ..Default::default()
        };
        let copies = runtime::Copies { user: 1, sent: 2, lent: 3, received: 4, dropped: 5 };
        let outcome =
            Outcome { seconds: 2.0, cpu: Some(Spent { time, own, target, machine: Some(machine) }), copies };
        Report::new(&args, &plan::runs(&args)[0], 1, &tally, &outcome, None)
    }

    /// Scripts read these fields: to remove one or change its meaning, raise [`FORMAT`].
    #[test]
    fn the_json_has_the_fields_that_scripts_read() {
        let document: serde_json::Value = serde_json::from_str(&json(&[report()])).unwrap();
        assert_eq!(document["format"], 1);
        assert!(document["version"].is_string());
        let run = &document["runs"][0];
        let names: Vec<&str> = run.as_object().unwrap().keys().map(String::as_str).collect();
        let mut expected = vec![
            "urls",
            "pattern",
            "read_percent",
            "zipf",
            "bs",
            "depth",
            "connections",
            "sessions",
            "initiators",
            "threads",
            "tuning",
            "rate",
            "verify",
            "receive",
            "seconds",
            "ios",
            "reads",
            "writes",
            "iops",
            "mb_s",
            "lat_us",
            "histogram_ns",
            "intervals",
            "client_us",
            "client_cpu_percent",
            "target_us",
            "target_cpu_percent",
            "machine",
            "copies",
            "unsent",
            "errors",
            "first_error",
            "reconnects",
            "retries",
            "snacks",
            "reassigns",
            "replaced_connections",
            "verified_blocks",
            "entries_per_io",
        ];
        let mut sorted = names.clone();
        sorted.sort_unstable();
        expected.sort_unstable();
        assert_eq!(sorted, expected);
        let mut latencies: Vec<&str> =
            run["lat_us"].as_object().unwrap().keys().map(String::as_str).collect();
        latencies.sort_unstable();
        assert_eq!(latencies, ["max", "mean", "min", "p50", "p90", "p99", "p999", "p9999"]);
        assert_eq!((&run["iops"], &run["mb_s"]), (&500.0.into(), &2.048.into()));
        assert_eq!((&run["client_us"], &run["target_us"]), (&500.0.into(), &1000.0.into()));
        assert_eq!(run["target_cpu_percent"], 50.0);
        let machine = serde_json::json!({ "cpu_percent": 75.0, "user_us": 500.0, "system_us": 500.0, "irq_us": 0.0,
            "softirq_us": 500.0, "interrupts": 0.25, "switches": 0.5 });
        assert_eq!(run["machine"], machine);
        assert_eq!(run["copies"], serde_json::json!({ "crossed": 14, "user": 1, "kernel": 6 }));
        assert_eq!(run["receive"], "deliver");
        assert!(run["zipf"].is_null() && run["rate"].is_null() && run["intervals"].is_null());
        let histogram: load::Distribution = run["histogram_ns"].as_str().unwrap().parse().unwrap();
        assert_eq!(histogram.count(), 1000);
    }

    #[test]
    fn a_line_of_csv_has_a_field_for_each_column() {
        let line = csv(&report());
        let (mut fields, mut in_quotes) = (1, false);
        for c in line.trim_end().chars() {
            match c {
                '"' => in_quotes = !in_quotes,
                ',' if !in_quotes => fields += 1,
                _ => {}
            }
        }
        assert_eq!(fields, csv_head().split(',').count());
        assert!(line.contains("\"one, \"\"two\"\"\""), "{line}");
        let begin = "iscsi://h:3260/iqn.2026-01.org.example:a/0,randread,100,,4096,32,1,1,1,1,,false,2,1000,1000,0,500,2.048,1,";
        assert!(line.starts_with(begin), "{line}");
    }

    #[test]
    fn the_table_has_its_columns_and_names_errors() {
        let (head, line) = (table_head(true), table(&report(), true));
        assert_eq!(head.split_whitespace().count(), 19);
        assert!(line.contains("  4k ") && line.contains(" 500 ") && line.contains("ERRORS: 1"), "{line}");
        assert!(!table(&report(), false).contains("1000.00"));
    }

    #[test]
    fn sizes_are_told_as_they_are_written() {
        assert_eq!([512, 4096, 65536, 1 << 20, 1536].map(size), ["512", "4k", "64k", "1M", "1536"]);
    }
}
