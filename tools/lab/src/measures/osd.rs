//! `osd`: an object storage device that `stag serve` serves, under the load of `stag osd bench`.
//!
//! It reads the settings `command` ("ping", "create", "remove", "getattr", "setattr", "read",
//! "write", "lookup", "list"; "disk-read": of a disk on the same file system; "floor": one
//! overwrite of 4 KiB there and fdatasync, without a server), `block`, `clients`, `durable`,
//! `objects` (so many are made before), `span`, `store` ("file": on the file system of the results;
//! "memory"), `transport`, `digests`, `seconds` and `warmup`.

use std::process::Command;

use super::servers::Served;
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
            return read(&context.output(command, "stag-osd-bench")?, &what, context);
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
        load(point, context, &served, &what)
    }
}

/// The partition that has many objects.
const PARTITION: &str = "0x100000";

fn times(command: &mut Command, point: &Point) -> Result<(), Error> {
    let (seconds, warmup) = words::times(point)?;
    command.args(["--time", &seconds.to_string(), "--warmup", &warmup.to_string()]);
    Ok(())
}

fn load(point: &Point, context: &Context, served: &Served, what: &str) -> Result<Sample, Error> {
    let url = served.url(Transport::of(point)?)?;
    // The run that creates objects also removes them.
    let run = if what == "remove" { "create" } else { what };
    let mut command = context.stag(Role::Client);
    command.args(["osd", "bench", &url, run, "--json"]);
    if let Some(objects) = point.whole("objects")? {
        let mut fill = context.stag(Role::Client);
        fill.args(["osd", "bench", &url, "fill", "--partition", PARTITION, "--objects"]);
        context.output(
            {
                fill.arg(objects.to_string());
                fill
            },
            "fill",
        )?;
        command.args(["--partition", PARTITION]);
    }
    words::common(&mut command, point, None)?;
    command.args(["--target-pid", &served.pid().to_string()]);
    for (setting, option) in
        [("clients", "--clients"), ("block", "--size"), ("span", "--span"), ("spin", "--spin")]
    {
        if let Some(number) = point.whole(setting)? {
            command.args([option, &number.to_string()]);
        }
    }
    if point.truth("durable")?.unwrap_or(false) {
        command.arg("--durable");
    }
    read(&context.output(command, "stag-osd-bench")?, what, context)
}

fn read(printed: &str, what: &str, context: &Context) -> Result<Sample, Error> {
    let found = words::json("stag osd bench", printed)?;
    let part = if what == "remove" { &found["remove"] } else { &found };
    if words::number(part, "errors")? > 0.0 {
        let why = part["first_error"].as_str().unwrap_or("it does not say why");
        return Err(Error::Failed(format!("{} commands failed: {why}", part["errors"])));
    }
    if words::number(part, "ops")? <= 0.0 {
        return Err(Error::Failed("no command ended".to_owned()));
    }
    let mut sample = Sample::new();
    sample.rate("ops_s", words::number(part, "ops_s")?, "/s");
    let mb_s = words::number(part, "mb_s")?;
    if mb_s > 0.0 {
        sample.rate("mb_s", mb_s, "MB/s");
        words::of_the_link(&mut sample, context, mb_s);
    }
    for name in ["mean_us", "p50_us", "p99_us", "p999_us"] {
        sample.cost(name, words::number(part, name)?, "µs");
    }
    sample.fact("stdev_us", words::number(part, "stdev_us")?, "µs");
    words::processor(&mut sample, part, "target", "target_us", "");
    words::processor(&mut sample, part, "client", "client_us", "");
    sample.raw = found;
    Ok(sample)
}
