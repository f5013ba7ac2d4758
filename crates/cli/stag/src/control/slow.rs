//! `stag slow`: a daemon's slowest commands, with the time of each stage.

use std::fmt::Write;
use std::time::Duration;

use iscsi_server::{Progress, SlowCommand};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::client::{CallError, Client};
use super::daemon::Daemon;
use super::protocol::{Fault, Kind, json};
use crate::args;
use crate::exit::Exit;
use crate::out;
use crate::shown::duration;
use crate::state::hex;

pub const VERB: &str = "slow";

/// Time for a core to answer.
const PATIENCE: Duration = Duration::from_secs(2);

/// A slow command. Times are seconds.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Slow {
    pub initiator: String,
    pub target: String,
    /// The session's TSIH.
    pub session: u16,
    pub lun: u16,
    /// Initiator Task Tag.
    pub itt: u32,
    /// `read`, `write` or `other`.
    pub operation: String,
    /// The first 16 bytes of its CDB, hexadecimal.
    pub cdb: String,
    /// `ended`, or the stage that it is in: `order`, `data` or `medium`.
    pub state: String,
    /// How long ago its status was ready.
    pub ended_ago_s: Option<f64>,
    /// All stages that are known together.
    pub took_s: f64,
    pub order_s: f64,
    pub data_s: f64,
    pub medium_s: f64,
    /// Unknown until the initiator acknowledges the status, and where it had nothing else to say.
    pub send_s: Option<f64>,
}

impl From<SlowCommand> for Slow {
    fn from(of: SlowCommand) -> Self {
        let took_s = of.took().as_secs_f64();
        let [order_s, data_s, medium_s] = of.stages.map(|stage| stage.as_secs_f64());
        let (state, ended_ago_s) = match of.progress {
            Progress::Waits => ("order", None),
            Progress::Data => ("data", None),
            Progress::Medium => ("medium", None),
            Progress::Ended(at) => ("ended", Some(at.elapsed().as_secs_f64())),
        };
        Self {
            initiator: of.initiator,
            target: of.target,
            session: of.tsih,
            lun: of.lun,
            itt: of.itt,
            operation: of.operation.to_owned(),
            cdb: hex(&of.cdb),
            state: state.to_owned(),
            ended_ago_s,
            took_s,
            order_s,
            data_s,
            medium_s,
            send_s: of.send.map(|send| send.as_secs_f64()),
        }
    }
}

/// The verb.
///
/// # Errors
/// A core does not answer.
pub fn answer(daemon: &Daemon) -> Result<Value, Fault> {
    let silent = || Fault::new(Kind::Failed, "a core does not answer: what it does is not known");
    let all = daemon.server.slow(PATIENCE).ok_or_else(silent)?;
    json(&all.into_iter().map(Slow::from).collect::<Vec<_>>())
}

pub fn command(args: &args::Slow) -> Exit {
    match run(args) {
        Ok(text) => out::print(&text),
        Err(error) => error.show(),
    }
}

fn run(args: &args::Slow) -> Result<String, CallError> {
    let value = Client::connect(args.at.control.as_deref())?.call(VERB, Map::new(), |_| ())?;
    let mut all: Vec<Slow> = serde_json::from_value(value)?;
    all.truncate(args.most);
    if args.json {
        return Ok(format!("{:#}\n", serde_json::to_value(&all)?));
    }
    Ok(text(&all))
}

fn text(all: &[Slow]) -> String {
    let mut out = String::new();
    if all.is_empty() {
        return "no command took 10 ms or more\n".to_owned();
    }
    let row = |out: &mut String, cells: [&str; 5], rest: &str| {
        let [took, order, data, medium, send] = cells;
        // A string takes everything.
        let _ = writeln!(out, "{took:>9} {order:>9} {data:>9} {medium:>9} {send:>9}  {rest}");
    };
    row(&mut out, ["ms", "order", "data", "medium", "send"], "command");
    for one in all {
        let ms = |seconds: f64| format!("{:.1}", seconds * 1e3);
        let send = one.send_s.map_or_else(|| "-".to_owned(), ms);
        let when = match one.ended_ago_s {
            Some(ago) => format!("{} ago", duration(ago)),
            None => format!("STILL IN {}", one.state.to_uppercase()),
        };
        let rest = format!(
            "{} of {}/{} from {} (session {}), {when}, CDB {}",
            one.operation, one.target, one.lun, one.initiator, one.session, one.cdb
        );
        let cells = [ms(one.took_s), ms(one.order_s), ms(one.data_s), ms(one.medium_s), send];
        row(&mut out, cells.each_ref().map(String::as_str), &rest);
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_command_is_a_line_with_its_stages() {
        let at_work = Slow {
            initiator: "iqn.2026-01.org.example:i".into(),
            target: "iqn.2026-01.org.example:t".into(),
            session: 7,
            lun: 3,
            itt: 1,
            operation: "write".into(),
            cdb: "2a00".into(),
            state: "data".into(),
            ended_ago_s: None,
            took_s: 1.25,
            order_s: 0.0,
            data_s: 1.2,
            medium_s: 0.05,
            send_s: None,
        };
        let ended =
            Slow { state: "ended".into(), ended_ago_s: Some(2.0), send_s: Some(0.001), ..at_work.clone() };
        let text = text(&[at_work, ended]);
        let lines: Vec<_> = text.lines().collect();
        assert_eq!(
            lines[1],
            "   1250.0       0.0    1200.0      50.0         -  write of iqn.2026-01.org.example:t/3 \
             from iqn.2026-01.org.example:i (session 7), STILL IN DATA, CDB 2a00"
        );
        assert!(lines[2].contains("      1.0  write of") && lines[2].contains(", 2.0 s ago, "), "{text}");
    }
}
