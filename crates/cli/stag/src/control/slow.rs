//! `stag slow`: a daemon's slowest commands and NFS calls, with the time of each stage.

use std::fmt::Write;
use std::time::Duration;

use iscsi_server::{Progress, SlowCommand};
use nfs_server::SlowCall;
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

/// A slow command or call. Times are seconds.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Slow {
    #[serde(flatten)]
    pub what: What,
    /// `ended`, or the stage that it is in: `order`, `data` or `medium`.
    pub state: String,
    /// How long ago its status or reply was ready.
    pub ended_ago_s: Option<f64>,
    /// All stages that are known together.
    pub took_s: f64,
    pub order_s: f64,
    pub medium_s: f64,
    /// Unknown until the initiator acknowledges the status, and where it had nothing else to say;
    /// of NFS until the kernel has taken the reply, and over RDMA.
    pub send_s: Option<f64>,
}

/// What was slow.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(tag = "protocol", rename_all = "lowercase")]
pub enum What {
    Iscsi(Command),
    Nfs(Call),
}

/// A SCSI command.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Command {
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
    /// How long its unit waited for the initiator, seconds.
    pub data_s: f64,
}

/// An NFS call.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Call {
    /// The client's address and port.
    pub client: String,
    /// The export of its file, where it names one.
    pub export: Option<String>,
    /// 3 or 4.
    pub version: u32,
    /// The procedure of version 3, or the first 16 operations of a COMPOUND, in small letters.
    pub operations: Vec<String>,
    /// The operation that a COMPOUND is in.
    pub operation: Option<String>,
    pub xid: u32,
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
        let what = What::Iscsi(Command {
            initiator: of.initiator,
            target: of.target,
            session: of.tsih,
            lun: of.lun,
            itt: of.itt,
            operation: of.operation.to_owned(),
            cdb: hex(&of.cdb),
            data_s,
        });
        let send_s = of.send.map(|send| send.as_secs_f64());
        Self { what, state: state.to_owned(), ended_ago_s, took_s, order_s, medium_s, send_s }
    }
}

impl From<SlowCall> for Slow {
    fn from(of: SlowCall) -> Self {
        let took_s = of.took().as_secs_f64();
        let (state, ended_ago_s) = match of.progress {
            nfs_server::Progress::Waits => ("order", None),
            nfs_server::Progress::Medium => ("medium", None),
            nfs_server::Progress::Ended(at) => ("ended", Some(at.elapsed().as_secs_f64())),
        };
        let (order_s, medium_s) = (of.order.as_secs_f64(), of.medium.as_secs_f64());
        let send_s = of.send.map(|send| send.as_secs_f64());
        let what = What::Nfs(Call {
            client: of.client.to_string(),
            export: of.export,
            version: of.version,
            operations: of.operations,
            operation: of.operation,
            xid: of.xid,
        });
        Self { what, state: state.to_owned(), ended_ago_s, took_s, order_s, medium_s, send_s }
    }
}

impl Slow {
    /// Seconds that its unit waited for the initiator; `None` of NFS, where the data come with the
    /// call.
    pub fn data_s(&self) -> Option<f64> {
        match &self.what {
            What::Iscsi(command) => Some(command.data_s),
            What::Nfs(_) => None,
        }
    }

    /// When it was, or that it still is.
    pub fn when(&self) -> String {
        match (self.ended_ago_s, &self.what) {
            (Some(ago), _) => format!("{} ago", duration(ago)),
            (None, What::Nfs(Call { operation: Some(operation), .. })) => {
                format!("still in {}, in {operation}", self.state)
            }
            (None, _) => format!("still in {}", self.state),
        }
    }
}

impl Call {
    /// Its operations in one text.
    pub fn called(&self) -> String {
        match self.operations.as_slice() {
            [] => "call".to_owned(),
            all => all.join(" "),
        }
    }
}

/// The verb.
///
/// # Errors
/// A core does not answer.
pub fn answer(daemon: &Daemon) -> Result<Value, Fault> {
    let silent = || Fault::new(Kind::Failed, "a core does not answer: what it does is not known");
    let commands = daemon.server.slow(PATIENCE).ok_or_else(silent)?;
    let calls = daemon.files.slow(PATIENCE).ok_or_else(silent)?;
    let mut all: Vec<Slow> =
        commands.into_iter().map(Slow::from).chain(calls.into_iter().map(Slow::from)).collect();
    all.sort_by(|one, other| other.took_s.total_cmp(&one.took_s));
    json(&all)
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
        let known = |seconds: Option<f64>| seconds.map_or_else(|| "-".to_owned(), ms);
        let mut when = one.when();
        if one.ended_ago_s.is_none() {
            when.make_ascii_uppercase();
        }
        let rest = match &one.what {
            What::Iscsi(it) => format!(
                "{} of {}/{} from {} (session {}), {when}, CDB {}",
                it.operation, it.target, it.lun, it.initiator, it.session, it.cdb
            ),
            What::Nfs(it) => format!(
                "{} of {} from {} (NFS {}), {when}, XID {:#010x}",
                it.called(),
                it.export.as_deref().unwrap_or("no export"),
                it.client,
                it.version,
                it.xid
            ),
        };
        let cells =
            [ms(one.took_s), ms(one.order_s), known(one.data_s()), ms(one.medium_s), known(one.send_s)];
        row(&mut out, cells.each_ref().map(String::as_str), &rest);
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_command_is_a_line_with_its_stages() {
        let command = Command {
            initiator: "iqn.2026-01.org.example:i".into(),
            target: "iqn.2026-01.org.example:t".into(),
            session: 7,
            lun: 3,
            itt: 1,
            operation: "write".into(),
            cdb: "2a00".into(),
            data_s: 1.2,
        };
        let at_work = Slow {
            what: What::Iscsi(command),
            state: "data".into(),
            ended_ago_s: None,
            took_s: 1.25,
            order_s: 0.0,
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

    #[test]
    fn each_call_is_a_line_among_the_commands_and_keeps_its_names() {
        let call = SlowCall {
            client: "192.0.2.7:900".parse().unwrap(),
            export: Some("/data".into()),
            version: 4,
            operations: ["sequence", "putfh", "write"].map(str::to_owned).into(),
            operation: Some("write".into()),
            xid: 0x2a,
            progress: nfs_server::Progress::Medium,
            order: Duration::from_millis(250),
            medium: Duration::from_secs(1),
            send: None,
        };
        let value = serde_json::to_value([Slow::from(call)]).unwrap();
        let told = serde_json::json!([{
            "protocol": "nfs", "client": "192.0.2.7:900", "export": "/data", "version": 4,
            "operations": ["sequence", "putfh", "write"], "operation": "write", "xid": 42,
            "state": "medium", "ended_ago_s": null, "took_s": 1.25, "order_s": 0.25, "medium_s": 1.0, "send_s": null,
        }]);
        assert_eq!(value, told);
        let all: Vec<Slow> = serde_json::from_value(value).unwrap();
        assert_eq!(
            text(&all).lines().nth(1),
            Some(
                "   1250.0     250.0         -    1000.0         -  sequence putfh write of /data from 192.0.2.7:900 (NFS 4), \
                 STILL IN MEDIUM, IN WRITE, XID 0x0000002a"
            )
        );
    }
}
