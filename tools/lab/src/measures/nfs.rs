//! `nfs`: a file of a tree in memory that `stag serve` exports, under the load of `stag bench`.
//!
//! It reads the settings `transport` ("tcp", "rdma": software iWARP), `version` ("3", "4.1",
//! "4.2"), `pattern`, `block` (bytes of an I/O), `call` (bytes of a READ or WRITE at most), `depth`
//! (I/Os in flight on the one connection, as the threads of a mount have), `span-each` (the file
//! has so many bytes for each of them), `ios-each` (so many I/Os for each of them are measured,
//! instead of a time), `file-sync`, `rdma-reads`, `rdma-segment`, `spin`, `serve-options`,
//! `target-cores`, `digests`, `seconds` and `warmup`.

use std::net::SocketAddr;

use super::bench;
use super::words;
use crate::context::{Context, Role, Running};
use crate::measure::{Error, Measure};
use crate::point::Point;
use crate::sample::Sample;

/// The name of the export.
const EXPORT: &str = "/lab";
/// Memory of the tree beyond its file's bytes.
const BESIDE: u64 = 16 << 20;

/// The measure `nfs`; see the module.
pub struct Nfs;

impl Measure for Nfs {
    fn run(&mut self, point: &Point, context: &mut Context) -> Result<Sample, Error> {
        let depth = point.whole("depth")?.unwrap_or(1).max(1);
        let bytes = depth.saturating_mul(point.whole("span-each")?.unwrap_or(16 << 20));
        let (served, place) = serve(point, context, bytes)?;
        let version = point.value("version").map(|version| format!("?vers={version}")).unwrap_or_default();
        let url = |scheme: &str| format!("{scheme}://{place}/file{version}");
        fill(context, &url("nfs"), bytes)?;
        let scheme = match point.text("transport")?.as_deref() {
            None | Some("tcp") => "nfs",
            Some("rdma") => "nfs+rdma",
            Some(other) => {
                return Err(Error::Experiment(format!("`transport` is {other}, and should be tcp or rdma")));
            }
        };
        let pattern = point.text("pattern")?.unwrap_or_else(|| "read".to_owned());
        let mut command = context.stag(Role::Client);
        command.args(["bench", &url(scheme), "--json", "--quiet", "--destroy", "--pattern", &pattern]);
        command.args(["--depth", &depth.to_string(), "--span", &bytes.to_string()]);
        command.args(["--seed", &context.seed.to_string(), "--target-pid", &served.pid().to_string()]);
        command.args(["--reconnect", "0"]);
        let ios = point.whole("ios-each")?.map(|ios| ios.saturating_mul(depth));
        words::common(&mut command, point, ios)?;
        for (setting, option) in [
            ("block", "--bs"),
            ("call", "--call"),
            ("rdma-reads", "--rdma-reads"),
            ("rdma-segment", "--rdma-segment"),
            ("spin", "--spin"),
        ] {
            if let Some(number) = point.whole(setting)? {
                command.args([option, &number.to_string()]);
            }
        }
        if point.truth("file-sync")?.unwrap_or(false) {
            command.arg("--file-sync");
        }
        let mut found = words::json("stag bench", &context.output(command, "stag-bench")?)?;
        let run = found["runs"][0].take();
        let mut sample = Sample::new();
        bench::read(&mut sample, &run)?;
        words::of_the_link(&mut sample, context, words::number(&run, "mb_s")?);
        sample.raw = run;
        Ok(sample)
    }
}

/// Starts the server. Its export has room for a file of `bytes`. Returns HOST:PORT/EXPORT too.
fn serve(point: &Point, context: &Context, bytes: u64) -> Result<(Running, String), Error> {
    let any_port = SocketAddr::new(context.address(Role::Target), 0).to_string();
    let cores = point.whole("target-cores")?.unwrap_or(1).to_string();
    // The tree's own records count too.
    let size = bytes.saturating_add(bytes / 64).saturating_add(BESIDE);
    let mut command = context.stag(Role::Target);
    command.args(["--log", "warn", "serve", "--control", "none", "--cores", &cores]);
    command.args(["--listen", &any_port, "--nfs", &any_port, "--export", &format!("{EXPORT}=mem:{size}")]);
    command.args(point.words("serve-options")?);
    let mut running = context.start(command, "stag-serve")?;
    let line = context.wait_for(&mut running, "nfs://")?;
    let place = line.split_once("nfs://").map_or("", |(_, place)| place.trim()).to_owned();
    Ok((running, place))
}

/// Writes the whole file from the server's own end, so that the load reads no holes and writes to
/// no memory for the first time.
fn fill(context: &Context, url: &str, bytes: u64) -> Result<(), Error> {
    let mut command = context.stag(Role::Target);
    command.args(["bench", url, "--fill", "--destroy", "--json", "--quiet", "--span", &bytes.to_string()]);
    command.args(["--pattern", "read", "--bs", "1M", "--depth", "4", "--count", "1"]);
    context.output(command, "fill").map(drop)
}
