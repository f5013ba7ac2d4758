//! `rdma`: RDMA itself, between the two sides of `stag rdma-bench`.
//!
//! It reads the settings `operation` ("read", "write", "send"), `block`, `depth`, `outstanding`,
//! `register` ("never", "run", "message"), `clients` (processes that begin together and load one
//! listening side), `spin` and `fpdu` (of both sides), `digests`, `seconds` and `warmup`.

use load::Distribution;
use serde_json::{Value, json};

use super::{HISTOGRAM, words};
use crate::context::{Context, Role};
use crate::measure::{Error, Measure};
use crate::point::Point;
use crate::sample::Sample;

/// The measure `rdma`; see the module.
pub struct Rdma;

impl Measure for Rdma {
    fn run(&mut self, point: &Point, context: &mut Context) -> Result<Sample, Error> {
        let address = context.address(Role::Target);
        let crc = if point.truth("digests")?.unwrap_or(false) { "require" } else { "never" };
        let mut answer = context.stag(Role::Target);
        let listen = std::net::SocketAddr::new(address, 0).to_string();
        answer.args(["rdma-bench", "--listen", &listen, "--rdma-crc", crc]);
        let mut both = Vec::new();
        for setting in ["spin", "fpdu"] {
            if let Some(number) = point.whole(setting)? {
                both.extend([format!("--{setting}"), number.to_string()]);
            }
        }
        answer.args(&both);
        let mut running = context.start(answer, "rdma-answer")?;
        // It prints its listening address, alone on a line.
        let text = std::net::SocketAddr::new(address, 0).to_string();
        let server = context.wait_for(&mut running, text.trim_end_matches('0'))?;
        let operation = point.text("operation")?.unwrap_or_else(|| "read".to_owned());
        let (seconds, warmup) = words::times(point)?;
        let mut options =
            ["rdma-bench", server.trim(), "--json", "--operation", &operation].map(str::to_owned).to_vec();
        options.extend(["--rdma-crc", crc, "--wait"].map(str::to_owned));
        options.extend(["--time", &seconds.to_string(), "--warmup", &warmup.to_string()].map(str::to_owned));
        options.extend(both);
        for (setting, option) in [("block", "--size"), ("depth", "--depth"), ("outstanding", "--outstanding")]
        {
            if let Some(number) = point.whole(setting)? {
                options.extend([option.to_owned(), number.to_string()]);
            }
        }
        if let Some(register) = point.text("register")? {
            options.extend(["--register".to_owned(), register]);
        }
        let mut clients = Vec::new();
        for number in 0..point.whole("clients")?.unwrap_or(1).max(1) {
            let mut command = context.stag(Role::Client);
            command.args(&options);
            clients.push(context.start_with_input(command, &format!("rdma-load-{number}"))?);
        }
        for client in &mut clients {
            context.wait_for(client, "ready")?;
        }
        for client in &mut clients {
            client.tell(b"\n")?;
        }
        let mut runs = Vec::new();
        for client in clients {
            runs.push(words::json("stag rdma-bench", &context.finish(client)?)?["runs"][0].take());
        }
        let run = if runs.len() == 1 { runs.remove(0) } else { together(runs)? };
        let mut sample = read(&run)?;
        words::of_the_link(&mut sample, context, words::number(&run, "mb_s")?);
        sample.raw = run;
        Ok(sample)
    }
}

/// The runs of several clients as one: rates add up, and latencies are those of all messages. Each
/// client counts the processor time that the listening side used meanwhile for all of them.
fn together(runs: Vec<Value>) -> Result<Value, Error> {
    let (mut ops, mut ops_s, mut mb_s) = (0, 0.0, 0.0);
    let (mut waited, mut client_us, mut client_percent, mut server_percent) = (0.0, 0.0, 0.0, 0.0);
    let mut rtt_us = f64::INFINITY;
    let mut all = Distribution::default();
    for run in &runs {
        let number = |name: &str| words::number(run, name);
        ops += run["ops"].as_u64().unwrap_or_default();
        ops_s += number("ops_s")?;
        mb_s += number("mb_s")?;
        waited += number("ops")? * words::number(&run["lat_us"], "mean")?;
        client_us += number("ops")? * number("client_us")?;
        client_percent += number("client_cpu_percent")?;
        server_percent += number("server_cpu_percent")?;
        rtt_us = rtt_us.min(number("rtt_us")?);
        all.add(&run[HISTOGRAM].as_str().unwrap_or_default().parse().map_err(Error::Failed)?);
    }
    let at = |part| all.quantile_us(part).map(|(_, high)| high);
    #[expect(clippy::cast_precision_loss, reason = "messages of seconds, and some clients")]
    let (each, clients) = (ops.max(1) as f64, runs.len().max(1) as f64);
    server_percent /= clients;
    Ok(json!({
        "ops": ops, "ops_s": ops_s, "mb_s": mb_s, "rtt_us": rtt_us, HISTOGRAM: all.to_string(),
        "lat_us": { "mean": waited / each, "p50": at(0.5), "p99": at(0.99), "p999": at(0.999) },
        "client_us": client_us / each, "client_cpu_percent": client_percent,
        "server_us": server_percent * 1e4 / ops_s, "server_cpu_percent": server_percent,
        "clients": runs,
    }))
}

/// Reads the figures of one run of `stag rdma-bench`.
///
/// # Errors
/// If no message ended.
pub(super) fn read(run: &Value) -> Result<Sample, Error> {
    if words::number(run, "ops")? <= 0.0 {
        return Err(Error::Failed("no message ended".to_owned()));
    }
    let mut sample = Sample::new();
    sample.rate("mb_s", words::number(run, "mb_s")?, "MB/s");
    sample.rate("ops_s", words::number(run, "ops_s")?, "/s");
    for place in ["mean", "p50", "p99", "p999"] {
        sample.cost(&format!("{place}_us"), words::number(&run["lat_us"], place)?, "µs");
    }
    sample.fact("rtt_ms", words::number(run, "rtt_us")? / 1e3, "ms");
    words::processor(&mut sample, run, "target", "server_us", "server_cpu_percent");
    words::processor(&mut sample, run, "client", "client_us", "client_cpu_percent");
    Ok(sample)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn several_clients_are_one_run_with_the_sum_of_their_rates() {
        let one = |ops: u64, mean: f64, histogram: &str| {
            json!({ "ops": ops, "ops_s": ops, "mb_s": 2.0, "rtt_us": mean, "histogram_ns": histogram, "lat_us": { "mean": mean },
                    "client_us": 1.0, "client_cpu_percent": 30.0, "server_us": 9.0, "server_cpu_percent": 80.0 })
        };
        let run = together(vec![one(100, 5.0, "5119:100"), one(300, 9.0, "9215:300")]).unwrap();
        let sample = read(&run).unwrap();
        let value = |name: &str| sample.values[name].value;
        assert_eq!((value("ops_s"), value("mb_s"), value("mean_us")), (400.0, 4.0, 8.0));
        assert_eq!(
            (value("client_percent"), value("target_percent"), value("target_us")),
            (60.0, 80.0, 2000.0)
        );
        assert_eq!((value("p50_us"), run["histogram_ns"].as_str()), (9.215, Some("5119:100 9215:300")));
        assert!(together(vec![json!({ "ops": 1 })]).is_err());
    }
}
