//! `sessions`: the cost of idle sessions, and their effect on one that works.
//!
//! It reads the settings of `bench`, `held`, the number of sessions, and `pings-s`, the longest
//! wait for the server's first ping of them. If a server does not hold that many, a tenth is tried,
//! then a hundredth: a note gives the reason. Each attempt starts a new server: the memory of an
//! idle session is that of the first ones a server holds, since it keeps the memory for later ones.

use std::time::{Duration, Instant};

use serde_json::Value;

use super::bench::by_stag_load;
use super::servers::{Served, stag_load};
use super::words::{self, Transport};
use crate::context::{Context, Role, Running};
use crate::measure::{Error, Measure};
use crate::point::Point;
use crate::sample::Sample;

/// The number of loads beside the idle sessions; their median counts.
const BESIDE: usize = 3;
/// The shortest time for which the processor time of idle sessions is measured, seconds.
const IDLE_S: f64 = 3.0;

/// The measure `sessions`; see the module.
pub struct Sessions;

impl Measure for Sessions {
    fn run(&mut self, point: &Point, context: &mut Context) -> Result<Sample, Error> {
        let asked = point.whole("held")?.unwrap_or(10_000);
        let mut refused = Vec::new();
        for count in [asked, asked / 10, asked / 100].into_iter().filter(|count| *count > 0) {
            let mut served = Served::start(point, context)?;
            let measured = with(point, context, &mut served, count);
            served.end(context);
            match measured {
                Ok(mut sample) => {
                    refused.drain(..).for_each(|why| sample.note(why));
                    return Ok(sample);
                }
                Err(error @ (Error::Stopped | Error::Late(_) | Error::Missing(_))) => return Err(error),
                Err(error) => refused.push(format!("it does not hold {count} sessions: {error}")),
            }
        }
        Err(Error::Failed(refused.join("; ")))
    }
}

/// Measures a server without sessions, beside `count` idle ones, and after them.
fn with(point: &Point, context: &Context, served: &mut Served, count: u64) -> Result<Sample, Error> {
    let rate = |served: &mut Served| {
        let sample = by_stag_load(point, context, served)?;
        Ok(sample.values.get("iops").map_or(0.0, |quantity| quantity.value))
    };
    let mut sample = Sample::new();
    served.notes.iter().for_each(|note| sample.note(note.as_str()));
    context.sleep(Duration::from_millis(500))?;
    sample.cost("idle_percent", busy_percent(context, served.pid())?, "%");
    let alone = rate(served)?;
    let before = memory(served.pid())?;
    let mut holder = Holder::start(context, served, count)?;
    #[expect(clippy::cast_precision_loss, reason = "thousands of sessions, and their memory")]
    let (sessions, grown) = (count as f64, memory(served.pid())?.saturating_sub(before) as f64);
    sample.fact("sessions", sessions, "");
    sample.cost("session_bytes", grown / sessions, "B");
    sample.rate("logins_s", sessions / holder.login_s, "/s");
    let longest =
        Instant::now() + Duration::from_secs_f64(point.real("pings-s")?.unwrap_or(0.0).clamp(0.0, 60.0));
    while Instant::now() < longest && holder.pings(context)? == 0.0 {
        context.sleep(Duration::from_millis(200))?;
    }
    let (first, begun) = (holder.pings(context)?, Instant::now());
    let mut rates = (0..BESIDE).map(|_| rate(served)).collect::<Result<Vec<f64>, Error>>()?;
    rates.sort_by(f64::total_cmp);
    let beside = rates.get(BESIDE / 2).copied().unwrap_or_default();
    let (middle, between) = (holder.pings(context)?, Instant::now());
    sample.cost("held_percent", busy_percent(context, served.pid())?, "%");
    let (last, ended) = (holder.pings(context)?, Instant::now());
    sample.fact("pings_s", (last - middle) / (ended - between).as_secs_f64(), "/s");
    sample.fact("pings_beside_s", (middle - first) / (between - begun).as_secs_f64(), "/s");
    drop(holder);
    let alone = f64::midpoint(alone, rate(served)?);
    sample.rate("iops_alone", alone, "IOPS");
    sample.rate("iops", beside, "IOPS");
    sample.rate("beside", beside / alone, "");
    Ok(sample)
}

/// The processor time of a server that has nothing to do, percent of one processor.
fn busy_percent(context: &Context, pid: u32) -> Result<f64, Error> {
    let before = load::cpu::Sample::take(Some(pid));
    context.sleep(Duration::from_secs_f64(IDLE_S))?;
    let spent = load::cpu::Sample::take(Some(pid)).since(&before);
    let used = spent.target.ok_or_else(|| Error::Failed("the server ended".to_owned()))?;
    Ok(spent.percent(used))
}

/// The resident memory of a process without the pages that it shares with files, bytes.
pub(super) fn memory(pid: u32) -> Result<u64, Error> {
    let path = format!("/proc/{pid}/status");
    let text = std::fs::read_to_string(&path).map_err(Error::io(path.clone()))?;
    own_memory(&text).ok_or_else(|| Error::Failed(format!("{path} has no RssAnon")))
}

fn own_memory(status: &str) -> Option<u64> {
    let line = status.lines().find_map(|line| line.strip_prefix("RssAnon:"))?;
    line.split_whitespace().next()?.parse::<u64>().ok().map(|kib| kib << 10)
}

/// `stag-load --hold`: it keeps sessions idle, and answers each line with the number of pings.
struct Holder {
    running: Running,
    /// The time of all logins, one after the other, seconds.
    login_s: f64,
    /// The number of lines asked so far.
    asked: usize,
}

impl Holder {
    fn start(context: &Context, served: &Served, count: u64) -> Result<Self, Error> {
        let mut command = context.command(Role::Client, stag_load(context)?);
        command.args(["--hold", &count.to_string(), &served.url(Transport::Iscsi)?]);
        let mut running = context.start_with_input(command, "hold")?;
        let line = context.wait_for(&mut running, "seconds")?;
        let login_s = words::number(&words::json("stag-load", &line)?, "seconds")?;
        Ok(Self { running, login_s, asked: 0 })
    }

    /// The number of pings answered until now.
    fn pings(&mut self, context: &Context) -> Result<f64, Error> {
        self.running.tell(b"?\n")?;
        self.asked += 1;
        loop {
            let printed = self.running.printed()?;
            let whole = printed.split_inclusive('\n').filter(|line| line.ends_with('\n'));
            if let Some(line) = whole.filter(|line| line.contains("pings")).nth(self.asked - 1) {
                let found: Value = words::json("stag-load", line)?;
                return words::number(&found, "pings");
            }
            if self.running.status()?.is_some() {
                return Err(self.running.failure());
            }
            context.sleep(Duration::from_millis(2))?;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_counts_private_pages_only() {
        let status = "Name:\tx\nVmRSS:\t  900 kB\nRssAnon:\t     12 kB\nRssFile:\t 800 kB\n";
        assert_eq!(own_memory(status), Some(12 << 10));
        assert_eq!(own_memory("VmRSS: 1 kB\n"), None);
        assert!(memory(std::process::id()).unwrap() > 0 && memory(u32::MAX).is_err());
    }
}
