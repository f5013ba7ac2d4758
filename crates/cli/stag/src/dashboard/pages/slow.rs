//! Why it is slow: where commands spend their time, and the slowest of them.

use admin_http::Answer;

use super::super::html::Html;
use super::super::{Look, show};
use super::{of_export, of_target};
use crate::control::slow::{Slow, What};
use crate::control::status::{Stage, Work};

/// The stages in a command's order, each with what it is about.
const STAGES: [(&str, &str); 4] = [
    ("order", "waits for its turn: commands before it, or a limit of service"),
    ("data", "waits for the initiator's data"),
    ("medium", "the file, device or cluster works"),
    ("send", "until the initiator acknowledges: the network, or a busy initiator"),
];

/// The page.
pub fn page(look: &Look<'_>) -> Answer {
    look.page("Why is it slow?", "/slow", |h| {
        h.p("A command goes through four stages. The stage in which it spends its time says where to look.");
        h.tag("dl", &[("class", "text")], |h| {
            for (stage, about) in STAGES {
                h.tag("div", &[], |h| {
                    h.leaf("dt", &[], stage);
                    h.leaf("dd", &[], about);
                });
            }
        });
        let mut work = Work::default();
        look.status.targets.iter().for_each(|target| work.add(&target.work));
        stages(&work, h);
        if work.limit_waits > 0 {
            let mean = show::latency(work.limit_wait_s / work.limit_waits as f64);
            h.p(&format!(
                "{} commands waited for a limit of service, {mean} in the mean: see iops and bandwidth of units.",
                show::count(work.limit_waits)
            ));
        }
        let silent = look.status.cores.iter().filter(|core| core.is_none()).count();
        if silent > 0 {
            let what = format!("{silent} cores did not answer in time: they are overloaded, or stand still.");
            h.leaf("p", &[("class", "note mistake")], &what);
        }
        h.leaf("h2", &[], "The slowest commands");
        let found = look.get(&["slow"]).map(|value| serde_json::from_value::<Vec<Slow>>(value).unwrap_or_default());
        match found {
            Err(refused) => h.leaf("p", &[("class", "note mistake")], &refused.what),
            Ok(all) => commands(&all, h),
        }
    })
}

fn commands(all: &[Slow], h: &mut Html) {
    let heads = ["command", "#took", "#order", "#data", "#medium", "#send", "of", "from", "when", "detail"];
    h.leaf("p", &[("class", "quiet")], "Those that took 10 ms or more, of iSCSI and NFS.");
    h.table("Commands that took 10 ms or more", &heads, "No command took 10 ms or more.", all, |row, one| {
        let known = |time: Option<f64>| time.map_or_else(|| "–".to_owned(), show::latency);
        row.cell(&match &one.what {
            What::Iscsi(command) => command.operation.clone(),
            What::Nfs(call) => call.called(),
        });
        row.number(&show::latency(one.took_s))
            .number(&show::latency(one.order_s))
            .number(&known(one.data_s()));
        row.number(&show::latency(one.medium_s)).number(&known(one.send_s));
        match &one.what {
            What::Iscsi(command) => {
                let unit = format!("{} LUN {}", command.target, command.lun);
                row.link(&of_target(&command.target), &unit).cell(&command.initiator)
            }
            What::Nfs(call) => match &call.export {
                Some(export) => row.link(&of_export(export), export),
                None => row.cell("no export"),
            }
            .cell(&call.client),
        };
        row.cell(&one.when());
        row.with(|h| match &one.what {
            What::Iscsi(command) => h.leaf("code", &[], &command.cdb),
            What::Nfs(call) => h.leaf("code", &[], &format!("NFS {}, XID {:#010x}", call.version, call.xid)),
        });
    });
}

/// Times by operation and stage.
pub fn stages(work: &Work, h: &mut Html) {
    h.leaf("h2", &[], "Time by stage");
    h.leaf("p", &[("class", "quiet")], "Of one command in eight, since the daemon's start.");
    let commands = |stage: &Stage| stage.buckets.iter().sum::<u64>();
    let heads = ["operation", "stage", "#mean", "#99 % below", "#share of the time", "#timed"];
    h.table("Time of commands by stage", &heads, "No command has been timed.", &work.stages, |row, stage| {
        let all: f64 =
            work.stages.iter().filter(|one| one.operation == stage.operation).map(|one| one.seconds).sum();
        let number = commands(stage);
        row.cell(&stage.operation).cell(&stage.stage);
        row.number(&show::latency(stage.seconds / number.max(1) as f64)).number(&below(stage, number));
        row.number(&format!("{:.0} %", if all > 0.0 { stage.seconds / all * 100.0 } else { 0.0 }));
        row.number(&show::count(number));
    });
}

/// The bound below which 99 % of the times are.
fn below(stage: &Stage, number: u64) -> String {
    let mut seen = 0;
    for (at, bucket) in stage.buckets.iter().enumerate() {
        seen += bucket;
        // In whole numbers: seen / number >= 0.99.
        if u128::from(seen) * 100 >= u128::from(number) * 99 {
            let is_last = at + 1 == stage.buckets.len();
            return if is_last {
                "–".to_owned()
            } else {
                show::latency((1_u64 << (12 + 2 * at)) as f64 / 1e9)
            };
        }
    }
    "–".to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_bound_of_99_per_cent_is_that_of_a_bucket() {
        let mut stage =
            Stage { operation: "read".into(), stage: "medium".into(), seconds: 1.0, buckets: [0; 12] };
        stage.buckets[1] = 99;
        stage.buckets[5] = 1;
        assert_eq!(below(&stage, 100), "16 µs");
        stage.buckets[5] = 2;
        assert_eq!(below(&stage, 101), "4.19 ms");
        stage.buckets[11] = 100;
        assert_eq!(below(&stage, 201), "–");
    }
}
