//! `osd`: an object storage device that `stag serve` serves, under the load of `stag osd bench`.
//!
//! It reads the settings `command` ("ping", "create", "remove", "getattr", "setattr", "read",
//! "write", "lookup", "list"; "disk-read": of a disk on the same file system; "floor": one
//! overwrite of 4 KiB there and fdatasync, without a server), `block`, `clients`, `processes`,
//! `ios`, `durable`, `objects` (so many are made before), `span`, `store` ("file": on the file
//! system of the results; "memory"), `transport`, `digests`, `seconds`, `warmup`, `bench-options`
//! and `count-memory` (the memory that the target has taken for each client).
//!
//! With `processes`, each client is a process. They begin together, and each does its share of
//! `ios` commands. The throughput is what all have moved until the slowest had done its share.

use std::process::Command;

use serde_json::{Value, json};

use super::servers::Served;
use super::sessions;
use super::words::{self, Transport};
use crate::context::{Context, Role};
use crate::measure::{Error, Measure};
use crate::point::Point;
use crate::sample::Sample;

/// The measure `osd`; see the module.
pub struct Osd;

impl Measure for Osd {
    fn run(&mut self, point: &Point, context: &mut Context) -> Result<Sample, Error> {
        let what = point.text("command")?.unwrap_or_else(|| "ping".to_owned());
        let on_disk = |name: &str| context.folder.join(name).display().to_string().replace(',', "\\,");
        if what == "floor" {
            // A device interrupts one processor, and to wake another takes longer.
            let mut command = context.stag(Role::Target);
            command.args(["osd", "bench", "--json", "--floor"]).arg(context.folder.join("floor"));
            times(&mut command, point)?;
            let printed = context.output(command, "stag-osd-bench")?;
            return told(words::json("stag osd bench", &printed)?, &what, context);
        }
        let unit = match point.text("store")?.as_deref() {
            _ if what == "disk-read" => {
                let span = point.whole("span")?.unwrap_or(16 << 20);
                format!("{},size={span}", on_disk("disk.img"))
            }
            None | Some("file") => format!("osd:{}", on_disk("objects")),
            Some("memory") => "osd:mem:1G".to_owned(),
            Some(other) => {
                return Err(Error::Experiment(format!("`store` is {other}, and should be file or memory")));
            }
        };
        let served = Served::stag_unit(point, context, &unit, None)?;
        if what == "disk-read" {
            served.fill(context)?;
        }
        let before = sessions::memory(served.pid())?;
        let mut sample = match point.truth("processes")?.unwrap_or(false) {
            true => together(point, context, &served, &what),
            false => load(point, context, &served, &what),
        }?;
        if point.truth("count-memory")?.unwrap_or(false) {
            let grown = sessions::memory(served.pid())?.saturating_sub(before);
            let clients = point.whole("clients")?.unwrap_or(1).max(1);
            #[expect(clippy::cast_precision_loss, reason = "mebibytes, and some clients")]
            sample.cost("memory_kib", grown as f64 / clients as f64 / 1024.0, "KiB");
        }
        Ok(sample)
    }
}

/// The partition that has many objects, and the first of those that processes have for themselves.
const PARTITION: u64 = 0x10_0000;

fn times(command: &mut Command, point: &Point) -> Result<(), Error> {
    let (seconds, warmup) = words::times(point)?;
    command.args(["--time", &seconds.to_string(), "--warmup", &warmup.to_string()]);
    Ok(())
}

/// `stag osd bench` with the settings that one client and several processes share.
fn bench(
    point: &Point,
    context: &Context,
    url: &str,
    what: &str,
    ios: Option<u64>,
) -> Result<Command, Error> {
    // The run that creates objects also removes them.
    let run = if what == "remove" { "create" } else { what };
    let mut command = context.stag(Role::Client);
    command.args(["osd", "bench", url, run, "--json"]);
    words::common(&mut command, point, ios)?;
    for (setting, option) in [("block", "--size"), ("span", "--span"), ("spin", "--spin")] {
        if let Some(number) = point.whole(setting)? {
            command.args([option, &number.to_string()]);
        }
    }
    if point.truth("durable")?.unwrap_or(false) {
        command.arg("--durable");
    }
    command.args(point.words("bench-options")?);
    Ok(command)
}

fn load(point: &Point, context: &Context, served: &Served, what: &str) -> Result<Sample, Error> {
    let url = served.url(Transport::of(point)?)?;
    let mut command = bench(point, context, &url, what, None)?;
    let partition = PARTITION.to_string();
    if let Some(objects) = point.whole("objects")? {
        let mut fill = context.stag(Role::Client);
        fill.args([
            "osd",
            "bench",
            &url,
            "fill",
            "--partition",
            &partition,
            "--objects",
            &objects.to_string(),
        ]);
        context.output(fill, "fill")?;
        command.args(["--partition", &partition]);
    }
    command.args(["--target-pid", &served.pid().to_string()]);
    if let Some(clients) = point.whole("clients")? {
        command.args(["--clients", &clients.to_string()]);
    }
    told(words::json("stag osd bench", &context.output(command, "stag-osd-bench")?)?, what, context)
}

/// Runs a process for each client. They begin together once all are prepared.
fn together(point: &Point, context: &Context, served: &Served, what: &str) -> Result<Sample, Error> {
    let clients = point.whole("clients")?.unwrap_or(1).max(1);
    let ios = point.whole("ios")?.ok_or_else(|| {
        Error::Experiment("`processes` needs `ios`, the commands of all clients together".to_owned())
    })?;
    let url = served.url(Transport::of(point)?)?;
    let mut running = Vec::new();
    for number in 0..clients {
        let mut command = bench(point, context, &url, what, Some(ios.div_ceil(clients)))?;
        command.args(["--wait", "--partition", &(PARTITION + number).to_string()]);
        running.push(context.start_with_input(command, &format!("client-{number}"))?);
    }
    for client in &mut running {
        context.wait_for(client, "ready")?;
    }
    let before = load::cpu::Sample::take(Some(served.pid()));
    for client in &mut running {
        client.tell(b"\n")?;
    }
    let mut each = Vec::new();
    for client in running {
        each.push(words::json("stag osd bench", &context.finish(client)?)?);
    }
    let spent = load::cpu::Sample::take(Some(served.pid())).since(&before);
    let mut found = json!({ "processes": each });
    if let Some(used) = spent.target {
        found["target_s"] = used.as_secs_f64().into();
    }
    told(found, what, context)
}

fn told(found: Value, what: &str, context: &Context) -> Result<Sample, Error> {
    let mut sample = read(&found, what)?;
    if let Some(mb_s) = sample.values.get("mb_s").map(|rate| rate.value) {
        words::of_the_link(&mut sample, context, mb_s);
    }
    sample.raw = found;
    Ok(sample)
}

/// The figures of a record's point, read anew in what was printed.
///
/// # Errors
/// If they are not there.
pub(super) fn read_again(point: &Point, raw: &Value) -> Result<Sample, Error> {
    read(raw, point.text("command")?.as_deref().unwrap_or_default())
}

fn read(found: &Value, what: &str) -> Result<Sample, Error> {
    if let Some(each) = found["processes"].as_array() {
        return read_together(found, each);
    }
    let part = if what == "remove" { &found["remove"] } else { found };
    without_errors(part)?;
    let mut sample = Sample::new();
    sample.rate("ops_s", words::number(part, "ops_s")?, "/s");
    let mb_s = words::number(part, "mb_s")?;
    if mb_s > 0.0 {
        sample.rate("mb_s", mb_s, "MB/s");
    }
    for name in ["mean_us", "p50_us", "p99_us", "p999_us"] {
        sample.cost(name, words::number(part, name)?, "µs");
    }
    sample.fact("stdev_us", words::number(part, "stdev_us")?, "µs");
    words::processor(&mut sample, part, "target", "target_us", "");
    words::processor(&mut sample, part, "client", "client_us", "");
    Ok(sample)
}

/// Reads the figures of processes that began together. A client that begins late, since it had to
/// wait for a processor, is as slow as one that ends late.
fn read_together(found: &Value, each: &[Value]) -> Result<Sample, Error> {
    let (mut ops, mut bytes, mut sum, mut waited, mut client) = (0.0, 0.0, 0.0, 0.0, 0.0);
    let (mut began, mut ended) = (f64::INFINITY, f64::NEG_INFINITY);
    for one in each {
        without_errors(one)?;
        let own = words::number(one, "ops")?;
        ops += own;
        bytes += own * words::number(one, "size")?;
        sum += words::number(one, "mb_s")?;
        waited += own * words::number(one, "mean_us")?;
        client += own * words::number(one, "client_us")?;
        began = began.min(words::number(one, "began_s")?);
        ended = ended.max(words::number(one, "ended_s")?);
    }
    let slowest = ended - began;
    if slowest.is_nan() || slowest <= 0.0 {
        return Err(Error::Failed("the processes measured no time".to_owned()));
    }
    let mut sample = Sample::new();
    sample.rate("ops_s", ops / slowest, "/s");
    if bytes > 0.0 {
        sample.rate("mb_s", bytes / 1e6 / slowest, "MB/s");
        sample.fact("sum_mb_s", sum, "MB/s");
    }
    sample.cost("slowest_s", slowest, "s");
    sample.cost("mean_us", waited / ops, "µs");
    sample.cost("client_us", client / ops, "µs");
    if let Some(target) = found["target_s"].as_f64() {
        sample.cost("target_us", target * 1e6 / ops, "µs");
    }
    Ok(sample)
}

fn without_errors(part: &Value) -> Result<(), Error> {
    if words::number(part, "errors")? > 0.0 {
        let why = part["first_error"].as_str().unwrap_or("it does not say why");
        return Err(Error::Failed(format!("{} commands failed: {why}", part["errors"])));
    }
    if words::number(part, "ops")? <= 0.0 {
        return Err(Error::Failed("no command ended".to_owned()));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_slowest_process_decides_the_throughput_of_all() {
        let one = |began: f64, ended: f64, errors: u64| {
            let rate = 200.0 / (ended - began);
            json!({ "ops": 1000, "size": 200_000, "mb_s": rate, "mean_us": 10.0, "client_us": 2.0, "errors": errors,
                    "first_error": null, "began_s": began, "ended_s": ended })
        };
        let found = json!({ "processes": [one(1.0, 2.0, 0), one(1.5, 3.0, 0)], "target_s": 1.0 });
        let sample = read(&found, "read").unwrap();
        let value = |name: &str| sample.values[name].value;
        // 400 MB, from the first one's beginning to the last one's end.
        assert_eq!((value("slowest_s"), value("mb_s"), value("target_us")), (2.0, 200.0, 500.0));
        assert!((value("sum_mb_s") - 333.3).abs() < 0.1);
        assert!(read(&json!({ "processes": [one(1.0, 2.0, 0), one(1.0, 2.0, 1)] }), "read").is_err());
        assert!(read(&json!({ "processes": [] }), "read").is_err());
    }
}
