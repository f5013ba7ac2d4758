//! `osd`: an object storage device that `stag serve` serves, under the load of `stag osd bench`.
//!
//! It reads the settings `command` ("ping", "create", "remove", "getattr", "setattr", "read",
//! "write"), `block`, `clients`, `durable`, `span`, `store` ("file": on the file system of the
//! results; "memory"), `transport`, `digests`, `seconds` and `warmup`.

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
        let unit = match point.text("store")?.as_deref() {
            None | Some("file") => {
                format!("osd:{}", context.folder.join("objects").display().to_string().replace(',', "\\,"))
            }
            Some("memory") => "osd:mem:1G".to_owned(),
            Some(other) => {
                return Err(Error::Experiment(format!("`store` is {other}, and should be file or memory")));
            }
        };
        let served = Served::stag_unit(point, context, &unit, None)?;
        load(point, context, &served)
    }
}

fn load(point: &Point, context: &Context, served: &Served) -> Result<Sample, Error> {
    let url = served.url(Transport::of(point)?)?;
    let what = point.text("command")?.unwrap_or_else(|| "ping".to_owned());
    // The run that creates objects also removes them.
    let run = if what == "remove" { "create" } else { &what };
    let mut command = context.stag(Role::Client);
    command.args(["osd", "bench", &url, run, "--json"]);
    words::common(&mut command, point)?;
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
    let printed = context.output(command, "stag-osd-bench")?;
    let found = words::json("stag osd bench", &printed)?;
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
    for name in ["mean_us", "p50_us", "p99_us"] {
        sample.cost(name, words::number(part, name)?, "µs");
    }
    sample.fact("stdev_us", words::number(part, "stdev_us")?, "µs");
    words::processor(&mut sample, part, "target", "target_us", "");
    words::processor(&mut sample, part, "client", "client_us", "");
    sample.raw = found;
    Ok(sample)
}
