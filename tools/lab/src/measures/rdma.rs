//! `rdma`: RDMA itself, between the two sides of `stag rdma-bench`.
//!
//! It reads the settings `operation` ("read", "write", "send"), `block`, `depth`, `outstanding`,
//! `spin` (of both sides), `digests`, `seconds` and `warmup`.

use super::words;
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
        let spin = point.whole("spin")?.map(|spin| spin.to_string());
        if let Some(spin) = &spin {
            answer.args(["--spin", spin]);
        }
        let mut running = context.start(answer, "rdma-answer")?;
        // It prints its listening address, alone on a line.
        let text = std::net::SocketAddr::new(address, 0).to_string();
        let server = context.wait_for(&mut running, text.trim_end_matches('0'))?;
        let operation = point.text("operation")?.unwrap_or_else(|| "read".to_owned());
        let (seconds, warmup) = words::times(point)?;
        let mut command = context.stag(Role::Client);
        command.args(["rdma-bench", server.trim(), "--json", "--operation", &operation, "--rdma-crc", crc]);
        command.args(["--time", &seconds.to_string(), "--warmup", &warmup.to_string()]);
        if let Some(spin) = &spin {
            command.args(["--spin", spin]);
        }
        for (setting, option) in [("block", "--size"), ("depth", "--depth"), ("outstanding", "--outstanding")]
        {
            if let Some(number) = point.whole(setting)? {
                command.args([option, &number.to_string()]);
            }
        }
        let printed = context.output(command, "rdma-load")?;
        let mut found = words::json("stag rdma-bench", &printed)?;
        let run = found["runs"][0].take();
        if words::number(&run, "ops")? <= 0.0 {
            return Err(Error::Failed("no message ended".to_owned()));
        }
        let mb_s = words::number(&run, "mb_s")?;
        let mut sample = Sample::new();
        sample.rate("mb_s", mb_s, "MB/s");
        sample.rate("ops_s", words::number(&run, "ops_s")?, "/s");
        for place in ["mean", "p50", "p99", "p999"] {
            sample.cost(&format!("{place}_us"), words::number(&run["lat_us"], place)?, "µs");
        }
        sample.fact("rtt_ms", words::number(&run, "rtt_us")? / 1e3, "ms");
        words::of_the_link(&mut sample, context, mb_s);
        words::processor(&mut sample, &run, "target", "server_us", "server_cpu_percent");
        words::processor(&mut sample, &run, "client", "client_us", "client_cpu_percent");
        sample.raw = run;
        Ok(sample)
    }
}
