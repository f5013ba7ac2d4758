//! `commands`: a server and a client that the experiment's file describes by their commands.
//!
//! The server is started and set up, then the client; the client's `run` is the load, and what it
//! prints has the figures. The processor time of both is counted by the lab, where they run on this
//! machine.

mod end;
mod figures;

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use nix::sys::resource::{UsageWho, getrusage};
use nix::sys::time::TimeValLike as _;
use serde_json::Value;

use self::end::End;
use super::words::times;
use crate::context::{Context, Role, Running};
use crate::experiment::Experiment;
use crate::experiment::program::{self, Program, choose};
use crate::load::group_seconds;
use crate::measure::{Error, Measure};
use crate::point::Point;
use crate::sample::Sample;

/// The pause before a command of `setup` is tried again.
const PAUSE: Duration = Duration::from_millis(50);
/// The size of a unit unless `unit-size` says otherwise, bytes.
const UNIT: u64 = 64 << 20;
/// The most that `run` may print, bytes: a record keeps it.
const MOST_KEPT: usize = 1 << 20;
/// The shortest load whose processor time is told, seconds: the system counts in hundredths.
const LEAST_S: f64 = 0.2;

/// The measure `commands`; see the module.
pub struct Commands {
    servers: BTreeMap<String, Program>,
    clients: BTreeMap<String, Program>,
}

impl Commands {
    pub fn of(experiment: &Experiment) -> Self {
        Self { servers: experiment.server.clone(), clients: experiment.client.clone() }
    }
}

impl Measure for Commands {
    fn run(&mut self, point: &Point, context: &mut Context) -> Result<Sample, Error> {
        let pick = |programs, what: &str| {
            choose(programs, point.text(what)?.as_deref())
                .map_err(|why| Error::Experiment(format!("`{what}` {why}")))
        };
        let context = &*context;
        let (server, client) = (pick(&self.servers, "server")?, pick(&self.clients, "client")?);
        let mut words = Words::of(point, context, server, client)?;
        let mut end = End::at("server", server, Role::Target, context)?;
        if server.names("unit") || client.names("unit") {
            words.give("unit", make_unit(&mut end, point)?);
        }
        let served = Started::start(server, end, &mut words, context)?;
        words.give("url", served.words.text(&server.url)?);
        let end = End::at("client", client, Role::Client, context)?;
        let helper = Started::start(client, end, &mut words, context)?;

        let spent = |who: &Started<'_>| who.running.as_ref().map_or(0.0, |it| group_seconds(it.pid()));
        let (target, own, began) = (spent(&served), spent(&helper) + children_seconds(), Instant::now());
        let printed = helper.output(&client.run, "load")?;
        let seconds = began.elapsed().as_secs_f64();
        let (target, own) = (spent(&served) - target, spent(&helper) + children_seconds() - own);

        let mut sample = Sample::new();
        if seconds >= LEAST_S {
            if served.end.is_here() && served.running.is_some() {
                sample.fact("target_percent", target / seconds * 100.0, "%");
            }
            if helper.end.is_here() {
                sample.fact("client_percent", own / seconds * 100.0, "%");
            }
        }
        let mut raw = serde_json::Map::new();
        raw.insert("client".to_owned(), kept(&printed, client)?);
        if !server.run.is_empty() {
            let printed = served.output(&server.run, "told")?;
            raw.insert("server".to_owned(), kept(&printed, server)?);
        }
        sample.raw = Value::Object(raw);
        read(&mut sample, [server, client])?;
        for (percent, each) in [("target_percent", "target_us"), ("client_percent", "client_us")] {
            let of = |name: &str| sample.values.get(name).map(|quantity| quantity.value);
            if let (Some(percent), Some(iops), None) =
                (of(percent), of("iops").filter(|n| *n > 0.0), of(each))
            {
                sample.cost(each, percent * 1e4 / iops, "µs");
            }
        }
        Ok(sample)
    }
}

/// The figures of a record's point, read anew in what was printed.
///
/// # Errors
/// If they are not there.
pub(super) fn read_again(experiment: &Experiment, point: &Point, raw: &Value) -> Result<Sample, Error> {
    let pick =
        |programs, what: &str| choose(programs, point.text(what)?.as_deref()).map_err(Error::Experiment);
    let programs = [pick(&experiment.server, "server")?, pick(&experiment.client, "client")?];
    let mut sample = Sample { raw: raw.clone(), ..Sample::new() };
    read(&mut sample, programs)?;
    Ok(sample)
}

/// Adds the figures of server and client, from the output that the sample keeps.
fn read(sample: &mut Sample, [server, client]: [&Program; 2]) -> Result<(), Error> {
    for (what, program) in [("client", client), ("server", server)] {
        if !program.figures.is_empty() {
            let kept = &sample.raw[what];
            let printed = kept.as_str().map_or_else(|| kept.to_string(), str::to_owned);
            figures::read(sample, &program.figures, &printed)?;
        }
    }
    Ok(())
}

/// The part of `printed` for the record: its JSON alone, if all figures stand there.
///
/// # Errors
/// If it is longer than [`MOST_KEPT`].
fn kept(printed: &str, program: &Program) -> Result<Value, Error> {
    if printed.len() > MOST_KEPT {
        let why = format!("`run` printed {} bytes, and a record keeps {MOST_KEPT} at most", printed.len());
        return Err(Error::Failed(why));
    }
    let in_json = program.figures.values().all(|figure| figure.json.is_some());
    let json = if in_json { figures::json(printed, &program.figures) } else { None };
    Ok(json.unwrap_or_else(|| printed.into()))
}

/// Makes the file that a unit of the point is.
fn make_unit(end: &mut End<'_>, point: &Point) -> Result<String, Error> {
    let in_memory = match point.text("unit")?.as_deref() {
        None | Some("file") => false,
        Some("tmpfs") => true,
        Some(other) => {
            return Err(Error::Experiment(format!("`unit` is {other}, and should be file or tmpfs")));
        }
    };
    end.make_unit(in_memory, point.whole("unit-size")?.unwrap_or(UNIT))
}

/// A program at its end of the path: its folder, and what was started there.
struct Started<'a> {
    running: Option<Running>,
    end: End<'a>,
    words: Words<'a>,
    /// Commands for the end of the point, before what was started is ended.
    last: &'a [Vec<String>],
}

impl<'a> Started<'a> {
    /// Writes its files, starts it, and waits until it is ready and set up.
    fn start(
        program: &'a Program,
        mut end: End<'a>,
        words: &mut Words<'a>,
        context: &Context,
    ) -> Result<Self, Error> {
        words.give("folder", end.folder().to_owned());
        for (name, value) in &program.env {
            end.env.push((name.clone(), words.text(value)?));
        }
        for (name, text) in &program.files {
            end.write(name, &words.text(text)?)?;
        }
        let mut started = Self { running: None, end, words: words.clone(), last: &program.end };
        if !program.start.is_empty() {
            started.running = Some(started.end.start(started.words.command(&program.start)?, "start")?);
        }
        let until = Instant::now() + Duration::from_secs_f64(program.patience_s);
        if let (Some(running), Some(ready)) = (&mut started.running, &program.ready) {
            context.wait_for_line(running, until, |line| ready.0.is_match(line))?;
        }
        for command in &program.setup {
            while let Err(error) = started.output(command, "setup") {
                if let Some(running) = &mut started.running {
                    if running.status()?.is_some() {
                        return Err(running.failure());
                    }
                }
                if matches!(error, Error::Stopped | Error::Late(_) | Error::Missing(_))
                    || Instant::now() > until
                {
                    return Err(error);
                }
                context.sleep(PAUSE)?;
            }
        }
        Ok(started)
    }

    /// Runs a command there and returns what it prints.
    fn output(&self, command: &[String], name: &str) -> Result<String, Error> {
        self.end.output(self.words.command(command)?, name)
    }
}

impl Drop for Started<'_> {
    fn drop(&mut self) {
        for command in self.last {
            if let Ok(words) = self.words.command(command) {
                self.end.last(words);
            }
        }
    }
}

/// The values of names in the commands of one point.
#[derive(Clone)]
struct Words<'a> {
    point: &'a Point,
    given: BTreeMap<&'static str, String>,
}

impl<'a> Words<'a> {
    fn of(point: &'a Point, context: &Context, server: &Program, client: &Program) -> Result<Self, Error> {
        let address = |program: &Program, role| match &program.host {
            Some(host) => host.address.clone(),
            None => context.address(role).to_string(),
        };
        let mut words = Self { point, given: BTreeMap::new() };
        words.give("address", address(server, Role::Target));
        words.give("client-address", address(client, Role::Client));
        for name in ["port", "port-2", "port-3", "port-4"] {
            words.give(name, context.free_port()?.to_string());
        }
        let (seconds, warmup) = times(point)?;
        words.give("seconds", seconds.to_string());
        words.give("seconds-ms", format!("{:.0}", seconds * 1e3));
        words.give("warmup", warmup.to_string());
        words.give("warmup-ms", format!("{:.0}", warmup * 1e3));
        words.give("seed", context.seed.to_string());
        words.give("round", context.round.to_string());
        words.give("stag", context.stag.display().to_string());
        words.give("unit-size", point.whole("unit-size")?.unwrap_or(UNIT).to_string());
        Ok(words)
    }

    fn give(&mut self, name: &'static str, value: String) {
        self.given.insert(name, value);
    }

    /// The words that `name` stands for: several if it is a setting that is a list.
    fn values(&self, name: &str) -> Result<Vec<String>, Error> {
        if let Some(value) = self.given.get(name) {
            return Ok(vec![value.clone()]);
        }
        if let (true, Ok(Some(size))) = (name == "block", self.point.whole(name)) {
            return Ok(vec![size.to_string()]);
        }
        if matches!(self.point.settings.get(name), Some(toml::Value::Array(_))) {
            return self.point.words(name);
        }
        let value = self.point.value(name).map(|value| vec![value.to_string()]);
        value.ok_or_else(|| Error::Experiment(format!("`{name}` has no value at this point")))
    }

    fn text(&self, text: &str) -> Result<String, Error> {
        program::expand(text, |name| self.values(name).map(|values| values.join(" ")))
    }

    fn command(&self, words: &[String]) -> Result<Vec<String>, Error> {
        let mut command = Vec::new();
        for word in words {
            match program::sole_name(word) {
                Some(name) => command.extend(self.values(name)?),
                None => command.push(self.text(word)?),
            }
        }
        Ok(command)
    }
}

/// Processor time of the ended children of this process, seconds.
fn children_seconds() -> f64 {
    let Ok(usage) = getrusage(UsageWho::RUSAGE_CHILDREN) else { return 0.0 };
    (usage.user_time() + usage.system_time()).num_microseconds() as f64 / 1e6
}
