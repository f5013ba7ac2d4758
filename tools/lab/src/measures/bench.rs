//! `bench`: a unit that Stag or a peer serves, under the load of `stag bench` or `stag-load`; or a
//! file, without a server, under that of fio.
//!
//! It reads the settings `server`, `unit`, `transport`, `pattern`, `block`, `depth` or
//! `total-depth`, `connections`, `sessions`, `spread`, `digests`, `seconds`, `warmup`, `spin`,
//! `bench-options`, `rdma-markers`, `receive`, `client`, `peak-part`, `count-payload`, `cut-after`
//! and `tune`. With `peak-part`,
//! `stag-load` first measures the peak, and `stag bench` then loads at that part of its rate. With
//! `tune`, the recommendations of `stag tune` for the path are applied. One run of `stag tune` per
//! round covers points that differ in their request size alone: its output has values for each
//! length.

use std::collections::BTreeMap;
use std::time::Duration;

use nix::sys::resource::{UsageWho, getrusage};
use nix::sys::time::{TimeVal, TimeValLike as _};
use serde_json::Value;

use super::fio;
use super::servers::{Payload, Served, need, stag_load};
use super::words::{self, Transport};
use crate::context::{Context, Role};
use crate::measure::{Error, Measure};
use crate::point::Point;
use crate::sample::Sample;

/// The maximum number of commands of one `stag bench` session in flight.
const MOST_DEPTH: u64 = 4096;

/// The least processor time that can be divided into a program's own and the kernel's, seconds: the
/// system tells the two apart by ticks of up to 10 ms.
const LEAST_CPU_S: f64 = 0.2;

/// The measure `bench`; see the module.
#[derive(Default)]
pub struct Bench {
    asked: Asked,
}

/// The output of `stag tune` in this round, by its arguments.
pub type Asked = BTreeMap<String, Value>;

impl Measure for Bench {
    fn run(&mut self, point: &Point, context: &mut Context) -> Result<Sample, Error> {
        let [server, client] = [point.text("server")?, point.text("client")?];
        let of_stag = server.as_deref().is_none_or(|name| name == "stag")
            && client.as_deref().is_none_or(|name| name == "stag-bench");
        if !of_stag && context.addresses(Role::Target).len() > 1 {
            let why = "several lines are for Stag's server and `stag bench`: leave out `server` and `client`, or `link-lines`";
            return Err(Error::Experiment(why.to_owned()));
        }
        if server.as_deref() == Some("fio") {
            return fio::run(point, context);
        }
        let mut served = Served::start(point, context)?;
        let measured = match point.text("client")?.as_deref() {
            None | Some("stag-bench") => load(point, context, &mut served, &mut self.asked),
            Some("stag-load") => by_stag_load(point, context, &mut served),
            Some(other) => {
                Err(Error::Experiment(format!("`client` is {other}, and should be stag-bench or stag-load")))
            }
        };
        let measured = match measured {
            Ok(mut sample) if point.truth("count-payload")?.unwrap_or(false) => {
                let counted = served.payload(context, Transport::of(point)?);
                counted.map(|counted| {
                    account(&mut sample, &counted);
                    sample
                })
            }
            measured => measured,
        };
        served.end(context);
        measured
    }
}

/// The figures of the target's account: what became of its payload over iSER, and its copies for
/// each byte that crossed its sockets. With those of the client it makes the copies at both ends.
fn account(sample: &mut Sample, counted: &Payload) {
    counted.moved.iter().for_each(|(name, bytes)| sample.fact(&format!("{name}_mb"), bytes / 1e6, "MB"));
    let of = |name: &str| counted.copies.get(name).copied().unwrap_or(0.0);
    let kernel = of("sent") + of("received");
    let crossed = kernel + of("lent") + of("dropped");
    if crossed <= 0.0 {
        return;
    }
    let (user, kernel) = (of("user") / crossed, kernel / crossed);
    sample.fact("target_user_copies", user, "");
    sample.fact("target_kernel_copies", kernel, "");
    let client = |name: &str| sample.values.get(name).map(|value| value.value);
    if let (Some(its), Some(kernels)) = (client("client_user_copies"), client("client_kernel_copies")) {
        sample.fact("user_copies", user + its, "");
        sample.fact("copies", user + its + kernel + kernels, "");
    }
}

/// The client's copies for each byte that crossed its sockets, by user space and by the kernel.
fn copies_of_client(sample: &mut Sample, run: &Value) {
    let bytes = |name: &str| run["copies"][name].as_f64();
    if let (Some(crossed), Some(user), Some(kernel)) = (bytes("crossed"), bytes("user"), bytes("kernel"))
        && crossed > 0.0
    {
        sample.fact("client_user_copies", user / crossed, "");
        sample.fact("client_kernel_copies", kernel / crossed, "");
    }
}

/// Runs `stag-load` once against the served unit.
pub(crate) fn by_stag_load(point: &Point, context: &Context, served: &mut Served) -> Result<Sample, Error> {
    let url = served.url(Transport::Iscsi)?;
    let pattern = point.text("pattern")?.unwrap_or_else(|| "randread".to_owned());
    let short = match pattern.as_str() {
        "randread" => "rr",
        "randwrite" => "rw",
        "read" => "sr",
        "write" => "sw",
        other => return Err(Error::Experiment(format!("stag-load has no pattern {other}"))),
    };
    let whole = |name: &str, usual| point.whole(name).map(|n| n.unwrap_or(usual).to_string());
    let (seconds, warmup) = words::times(point)?;
    let mut command = context.command(Role::Client, stag_load(context)?);
    command.args(["--target-pid", &served.pid().to_string(), "--warmup", &warmup.to_string()]);
    if point.whole("spin")?.unwrap_or(0) > 0 {
        command.arg("--spin");
    }
    command.args([&url, short, &whole("block", 4096)?, &whole("depth", 32)?, &seconds.to_string()]);
    command.arg(whole("sessions", 1)?);
    let mut run = words::json("stag-load", &context.output(command, "stag-load")?)?;
    if let Some(working) = served.working_us(context)? {
        run["working_us"] = working.into();
    }
    let mut sample = read_stag_load(&run)?;
    served.notes.iter().for_each(|note| sample.note(note.as_str()));
    sample.raw = run;
    Ok(sample)
}

/// Reads the figures of one run of `stag-load`, with the floor's own account of its time.
fn read_stag_load(run: &Value) -> Result<Sample, Error> {
    let mut sample = Sample::new();
    counted(&mut sample, run)?;
    for name in ["p50_us", "p99_us", "p999_us", "max_us"] {
        sample.cost(name, words::number(run, name)?, "µs");
    }
    words::processor(&mut sample, run, "target", "target_us", "target_busy");
    if let Some(working) = run["working_us"].as_f64() {
        sample.cost("target_us", working, "µs");
    }
    words::processor(&mut sample, run, "client", "client_us", "client_busy");
    Ok(sample)
}

/// The figures of a record's point, read anew in what was printed.
///
/// # Errors
/// If they are not there.
pub(super) fn read_again(point: &Point, raw: &Value) -> Result<Sample, Error> {
    if point.text("server")?.as_deref() == Some("fio") {
        let pattern = point.text("pattern")?;
        return fio::read(raw, pattern.is_none_or(|pattern| pattern.ends_with("read")));
    }
    if point.text("client")?.as_deref() == Some("stag-load") {
        return read_stag_load(raw);
    }
    let mut sample = Sample::new();
    // With `tune`, its output stands beside.
    read(&mut sample, raw.get("bench").unwrap_or(raw))?;
    Ok(sample)
}

/// Runs `stag bench` once against the served unit.
pub fn load(
    point: &Point,
    context: &Context,
    served: &mut Served,
    asked: &mut Asked,
) -> Result<Sample, Error> {
    let transport = Transport::of(point)?;
    let url = served.url(transport)?;
    let pattern = point.text("pattern")?.unwrap_or_else(|| "randread".to_owned());
    let block = point.whole("block")?.unwrap_or(4096);
    let sessions = point.whole("sessions")?.unwrap_or(1).max(1);
    let connections = point.whole("connections")?.unwrap_or(1);
    let depth = match point.whole("total-depth")? {
        Some(total) => (total / sessions).max(1),
        None => point.whole("depth")?.unwrap_or(32),
    };
    let mut sample = Sample::new();
    served.notes.iter().for_each(|note| sample.note(note.as_str()));
    let mut command = context.stag(Role::Client);
    command.args(["bench", &url, "--json", "--quiet", "--pattern", &pattern, "--bs", &block.to_string()]);
    words::common(&mut command, point, None)?;
    command.args(["--seed", &context.seed.to_string(), "--target-pid", &served.pid().to_string()]);
    let cut = point.real("cut-after")?;
    command.args(["--reconnect", if cut.is_some() { "20" } else { "0" }]);
    if point.truth("rdma-markers")?.unwrap_or(false) {
        command.arg("--rdma-markers");
    }
    if let Some(receive) = point.text("receive")? {
        command.args(["--receive", &receive]);
    }
    let writes = pattern != "read" && pattern != "randread";
    if writes {
        command.arg("--destroy");
    }
    if let Some(spin) = point.whole("spin")? {
        command.args(["--spin", &spin.to_string()]);
    }
    let others = Served::other_portals(context);
    if !others.is_empty() {
        command.args(["--portals", &others.join(",")]);
    }
    if let Some(spread) = point.text("spread")? {
        command.args(["--spread", &spread]);
    }
    let tuned = match point.truth("tune")?.unwrap_or(false) {
        true => Some(tune(point, context, &url, block, writes, asked)?),
        false => None,
    };
    match &tuned {
        Some(tuned) => {
            command.args(&tuned.arguments);
            sample.note(format!("stag tune chose: {}", tuned.arguments.join(" ")));
        }
        None => {
            command.args(["--depth", &depth.to_string(), "--sessions", &sessions.to_string()]);
            command.args(["--connections", &connections.to_string()]);
        }
    }
    if let Some(part) = point.real("peak-part")? {
        let peak = by_stag_load(point, context, served)?.values.get("iops").map_or(0.0, |peak| peak.value);
        command.args(["--rate", &format!("{:.0}", (peak * part).max(1.0))]);
    }
    command.args(point.words("bench-options")?);
    let before = children();
    let running = context.start(command, "stag-bench")?;
    if let Some(cut) = cut {
        let (_, warmup) = words::times(point)?;
        context.sleep(Duration::try_from_secs_f64(warmup + cut).unwrap_or_default())?;
        cut_one(context, &url)?;
    }
    let printed = context.finish(running)?;
    let after = children();
    let mut found = words::json("stag bench", &printed)?;
    let run = found["runs"][0].take();
    read(&mut sample, &run)?;
    let (seconds, warmup) = words::times(point)?;
    let ios = words::number(&run, "ios")? * (1.0 + warmup / seconds);
    if let Some(own) = own_us(after.0 - before.0, after.1 - before.1, ios) {
        sample.cost("own_us", own, "µs");
    }
    words::of_the_link(&mut sample, context, words::number(&run, "mb_s")?);
    sample.raw = match tuned {
        Some(tuned) => serde_json::json!({ "bench": run, "tune": tuned.raw }),
        None => run,
    };
    Ok(sample)
}

/// Has the kernel abort one of the client's connections with the target (`ss --kill`): the program
/// finds it broken, and the target gets a reset.
///
/// # Errors
/// If there is none, or the kernel refuses.
fn cut_one(context: &Context, url: &str) -> Result<(), Error> {
    if context.link.is_none() {
        return Err(Error::Experiment(
            "`cut-after` needs a `link`: there the lab may abort connections".into(),
        ));
    }
    let portal = url.split_once("://").map_or(url, |(_, rest)| rest);
    let portal = portal.split_once('/').map_or(portal, |(portal, _)| portal);
    let ss = |words: &[&str], name| {
        let mut command = context.command(Role::Client, need("ss", "iproute2")?);
        command.args(["--tcp", "--numeric", "--no-header"]).args(words);
        context.output(command, name)
    };
    let found = ss(&["state", "established", "dst", portal], "ss")?;
    // Without the column of the state, the local address is the third.
    let local = found.lines().next().and_then(|line| line.split_whitespace().nth(2));
    let local = local.ok_or_else(|| Error::Failed(format!("ss finds no connection to {portal}")))?;
    let killed = ss(&["--kill", "src", local, "dst", portal], "ss-kill")?;
    // It prints those that it has killed.
    match killed.contains(local) {
        true => Ok(()),
        false => Err(Error::Missing("the kernel aborts no connections (CONFIG_INET_DIAG_DESTROY)".into())),
    }
}

/// Processor time of the ended children of this process outside the kernel and inside, seconds.
fn children() -> (f64, f64) {
    let Ok(usage) = getrusage(UsageWho::RUSAGE_CHILDREN) else { return (0.0, 0.0) };
    let seconds = |time: TimeVal| time.num_microseconds() as f64 / 1e6;
    (seconds(usage.user_time()), seconds(usage.system_time()))
}

/// Processor time of the client outside the kernel for one I/O, µs. `None` below
/// [`LEAST_CPU_S`].
fn own_us(user_s: f64, system_s: f64, ios: f64) -> Option<f64> {
    (user_s + system_s >= LEAST_CPU_S).then(|| 1e6 * user_s / ios)
}

/// Reads the rates of one run, unless I/Os failed or none ended.
fn counted(sample: &mut Sample, run: &Value) -> Result<(), Error> {
    if words::number(run, "errors")? > 0.0 {
        let why = run["first_error"].as_str().unwrap_or("it does not say why");
        return Err(Error::Failed(format!("{} I/Os failed: {why}", run["errors"])));
    }
    if words::number(run, "ios")? <= 0.0 {
        return Err(Error::Failed(format!("no I/O ended within {} s", run["seconds"])));
    }
    sample.rate("iops", words::number(run, "iops")?, "IOPS");
    sample.rate("mb_s", words::number(run, "mb_s")?, "MB/s");
    Ok(())
}

/// Reads the figures of one run of `stag bench`.
pub(super) fn read(sample: &mut Sample, run: &Value) -> Result<(), Error> {
    counted(sample, run)?;
    for place in ["mean", "p50", "p99", "p999", "max"] {
        sample.cost(&format!("{place}_us"), words::number(&run["lat_us"], place)?, "µs");
    }
    words::processor(sample, run, "target", "target_us", "target_cpu_percent");
    words::processor(sample, run, "client", "client_us", "client_cpu_percent");
    words::machine(sample, run);
    copies_of_client(sample, run);
    for (name, field) in [("reassigned", "reassigns"), ("reconnected", "reconnects")] {
        if let Some(count) = run[field].as_f64().filter(|count| *count > 0.0) {
            sample.fact(name, count, "");
        }
    }
    Ok(())
}

/// The recommendations of `stag tune`.
struct Tuned {
    /// Arguments for `stag bench`.
    arguments: Vec<String>,
    raw: Value,
}

/// Runs `stag tune`, which measures the path.
fn tune(
    point: &Point,
    context: &Context,
    url: &str,
    block: u64,
    writes: bool,
    asked: &mut Asked,
) -> Result<Tuned, Error> {
    // The key has all coordinates and settings except those of the load; the unit's address differs
    // at each point.
    let own = ["block", "depth", "total-depth", "pattern", "seconds", "warmup", "tune"];
    let settings = point.settings.iter().filter(|(name, _)| !own.contains(&name.as_str()));
    let coordinates = point.coordinates.iter().filter(|(name, _)| !own.contains(&name.as_str()));
    let about = format!(
        "{} {} {writes} {:?} {:?}",
        context.path,
        context.round,
        coordinates.collect::<Vec<_>>(),
        settings.collect::<Vec<_>>()
    );
    let raw = match asked.get(&about) {
        Some(raw) => raw.clone(),
        None => {
            let mut command = context.stag(Role::Client);
            command.args(["tune", url, "--json", "--quiet"]).args(point.words("tune-options")?);
            if writes {
                // The lab owns the unit.
                command.arg("--destroy");
            }
            let raw = words::json("stag tune", &context.output(command, "stag-tune")?)?;
            asked.insert(about, raw.clone());
            raw
        }
    };
    let arguments = chosen(&raw, block, writes)?;
    Ok(Tuned { arguments, raw })
}

/// The recommendations as arguments of `stag bench` for requests of `block` bytes. `stag tune`
/// prints depth and sessions for some lengths. Between two of them the bytes in flight are those of
/// the longer one, whose solicited data may need more.
fn chosen(raw: &Value, block: u64, writes: bool) -> Result<Vec<String>, Error> {
    let none = |what: &str| Error::Failed(format!("stag tune printed no `{what}`"));
    let list = raw["arguments"].as_array().ok_or_else(|| none("arguments"))?;
    let mut arguments: Vec<String> =
        list.iter().filter_map(|word| word.as_str().map(str::to_owned)).collect();
    let loads = raw["loads"].as_array().ok_or_else(|| none("loads"))?;
    let length = |load: &Value| load["bs"].as_u64().unwrap_or(0);
    let longer = loads.iter().filter(|load| length(load) >= block).min_by_key(|load| length(load));
    let load = longer.or(loads.iter().max_by_key(|load| length(load))).ok_or_else(|| none("loads"))?;
    let shape = &load[if writes { "write" } else { "read" }];
    let sessions = shape["sessions"].as_u64().ok_or_else(|| none("loads[].sessions"))?.clamp(1, 64);
    let commands = shape["depth"].as_u64().ok_or_else(|| none("loads[].depth"))?.min(MOST_DEPTH);
    let bytes = commands.saturating_mul(length(load));
    let depth = bytes.div_ceil(block.max(1)).clamp(1, MOST_DEPTH);
    arguments.extend(["--depth".to_owned(), depth.to_string()]);
    arguments.extend(["--sessions".to_owned(), sessions.to_string()]);
    Ok(arguments)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn run(ios: u64, errors: u64) -> Value {
        json!({ "ios": ios, "iops": 1000.0, "mb_s": 4.096, "errors": errors, "first_error": if errors > 0 { json!("no medium") } else { Value::Null },
                "seconds": 1.0, "lat_us": { "mean": 3.0, "p50": 2.0, "p99": 9.0, "p999": 11.0, "max": 12.0 }, "client_us": 1.5, "client_cpu_percent": 15.0,
                "target_us": null, "target_cpu_percent": null })
    }

    #[test]
    fn figures_keep_their_units_and_what_was_not_measured_is_left_out() {
        let mut sample = Sample::new();
        read(&mut sample, &run(1000, 0)).unwrap();
        let names: Vec<&str> = sample.values.keys().map(String::as_str).collect();
        assert_eq!(
            names,
            [
                "client_percent",
                "client_us",
                "iops",
                "max_us",
                "mb_s",
                "mean_us",
                "p50_us",
                "p999_us",
                "p99_us"
            ]
        );
        assert_eq!((sample.values["p50_us"].value, sample.values["p50_us"].unit.as_str()), (2.0, "µs"));
    }

    /// 100 bytes by reference and received: the target copies none, the client each one twice.
    #[test]
    fn copies_are_told_for_each_byte_at_both_ends() {
        let mut run = run(1000, 0);
        run["copies"] = json!({ "crossed": 100, "user": 98, "kernel": 100 });
        let mut sample = Sample::new();
        read(&mut sample, &run).unwrap();
        let copies = [("user", 3.0), ("sent", 10.0), ("lent", 90.0), ("received", 0.0), ("dropped", 0.0)];
        let copies = copies.map(|(name, bytes)| (name.to_owned(), bytes)).into();
        account(&mut sample, &Payload { moved: vec![("copied_out".to_owned(), 2e6)], copies });
        let told = |name: &str| (sample.values[name].value * 1e6).round() / 1e6;
        assert_eq!((told("client_user_copies"), told("client_kernel_copies")), (0.98, 1.0));
        assert_eq!((told("target_user_copies"), told("target_kernel_copies")), (0.03, 0.1));
        assert_eq!((told("user_copies"), told("copies"), told("copied_out_mb")), (1.01, 2.11, 2.0));
    }

    #[test]
    fn the_machines_work_is_told_for_each_io() {
        let mut run = run(1000, 0);
        run["machine"] = json!({ "cpu_percent": 150.0, "user_us": 1.0, "system_us": 2.0, "irq_us": 0.0, "softirq_us": 3.0,
                                 "interrupts": 0.5, "switches": 0.25 });
        let mut sample = Sample::new();
        read(&mut sample, &run).unwrap();
        let told = |name: &str| sample.values[name].value;
        assert_eq!((told("machine_us"), told("machine_softirq_us"), told("interrupts")), (6.0, 3.0, 0.5));
        assert_eq!((told("machine_percent"), told("switches")), (150.0, 0.25));
        run["machine"] = Value::Null;
        let mut sample = Sample::new();
        read(&mut sample, &run).unwrap();
        assert!(!sample.values.contains_key("machine_us"), "what was not measured is left out");
    }

    #[test]
    fn tune_gives_a_depth_per_request_size_and_direction() {
        let shape = |depth: u32, sessions: u32| json!({ "depth": depth, "sessions": sessions });
        let raw = json!({ "arguments": ["--settings", "connections=4"], "loads": [
            { "bs": 262_144, "read": shape(35, 1), "write": shape(35, 1) },
            { "bs": 65_536, "read": shape(70, 2), "write": shape(70, 2) },
            { "bs": 1_048_576, "read": shape(9, 1), "write": shape(16, 1) },
        ] });
        let said = |block, writes| chosen(&raw, block, writes).unwrap().join(" ");
        assert_eq!(said(65_536, false), "--settings connections=4 --depth 70 --sessions 2");
        assert!(said(1 << 20, false).ends_with("--depth 9 --sessions 1"));
        assert!(said(1 << 20, true).ends_with("--depth 16 --sessions 1"));
        // Between two lengths, the bytes in flight of the longer one; outside, those of the longest
        // and the shortest.
        assert!(said(512 << 10, true).ends_with("--depth 32 --sessions 1"));
        assert!(said(3 << 20, true).ends_with("--depth 6 --sessions 1"));
        assert!(said(16_384, true).ends_with("--depth 280 --sessions 2"));
        assert!(said(1 << 40, false).ends_with("--depth 1 --sessions 1"));
        assert!(said(0, false).ends_with("--depth 4096 --sessions 2"));
        for nothing in
            [json!({ "loads": [] }), json!({ "arguments": [], "loads": [] }), json!({ "arguments": [] })]
        {
            assert!(chosen(&nothing, 512, true).is_err());
        }
    }

    /// There it would abort a connection of the machine's own.
    #[test]
    fn without_a_link_no_connection_is_aborted() {
        let context = Context::new("stag".into(), ".".into(), Duration::from_secs(1), Default::default());
        let refused = cut_one(&context, "iscsi://127.0.0.1:3260/iqn.x/0").unwrap_err();
        assert!(matches!(&refused, Error::Experiment(why) if why.contains("`link`")), "{refused}");
    }

    #[test]
    fn too_few_ticks_give_no_processor_time_of_the_client() {
        assert_eq!(own_us(0.3, 0.7, 1e6), Some(0.3));
        assert_eq!(own_us(0.0, 0.1, 1e5), None);
    }

    #[test]
    fn a_run_that_failed_or_did_nothing_is_no_figure() {
        let failed = read(&mut Sample::new(), &run(1000, 3)).unwrap_err().to_string();
        assert!(failed.contains("no medium"), "{failed}");
        assert!(read(&mut Sample::new(), &run(0, 0)).is_err());
    }
}
