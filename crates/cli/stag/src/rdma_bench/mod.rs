//! `stag rdma-bench`: RDMA Reads, Writes and Sends between two sides, measured without any storage
//! above them. This file runs the runs and prints; the two sides are in [`server`] and [`client`],
//! and their protocol in [`wire`].

mod client;
mod report;
mod server;
mod wire;

use std::future::poll_fn;
use std::net::SocketAddr;
use std::task::Poll;
use std::time::Duration;

use rdma::{Completion, Options, QueuePair};

use crate::args::rdma_bench::{RdmaBench, Wire};
use crate::exit::Exit;
use crate::out::{self, OutError};

/// Memory for buffers beside the clients', bytes.
const POOL: usize = 128 << 20;

/// The reason why there is no report.
#[derive(Debug, thiserror::Error)]
pub enum RdmaBenchError {
    /// The address cannot be had.
    #[error("{0}: {1}")]
    Listen(SocketAddr, rdma::Error),
    /// The other side is not there.
    #[error("{0}: {1}")]
    Connect(SocketAddr, rdma::Error),
    /// The other side does not want to.
    #[error("the other side refuses: {0}")]
    Refused(String),
    /// The connection has ended.
    #[error(transparent)]
    Rdma(#[from] rdma::Error),
    /// The other side breaks the rules.
    #[error("the other side is no `stag rdma-bench`, or another version: {0}")]
    Peer(&'static str),
    /// It took too long.
    #[error("timed out: {0}")]
    TimedOut(&'static str),
    /// The line that begins a run with --wait has not come.
    #[error("no line came on standard input: {0}")]
    Line(String),
    #[error("out of memory for buffers")]
    Memory,
    #[error("{0}")]
    System(String),
    /// stdout takes no more.
    #[error(transparent)]
    Output(#[from] OutError),
}

impl RdmaBenchError {
    fn exit(&self) -> Exit {
        match self {
            Self::Listen(..) => Exit::Startup,
            Self::Connect(..) | Self::Refused(_) => Exit::Unreachable,
            _ => Exit::Failed,
        }
    }
}

/// Runs one side of it.
pub fn rdma_bench(args: &RdmaBench) -> Exit {
    // The side that answers has memory for all its clients.
    let clients = if args.server.is_some() { 1 } else { server::CLIENTS };
    let memory = usize::try_from(args.answer.memory).unwrap_or(usize::MAX).saturating_mul(clients);
    let config = runtime::Config {
        spin_us: args.wire.spin,
        core: args.wire.cpu.map(usize::from),
        pool_bytes: memory.saturating_add(POOL),
        ..runtime::Config::default()
    };
    let ended = match runtime::Runtime::new(config) {
        Ok(runtime) => runtime.block_on(async {
            match args.server {
                None => server::serve(args).await,
                Some(server) => load(args, server).await,
            }
        }),
        Err(error) => Err(RdmaBenchError::System(format!("no io_uring: {error}"))),
    };
    match ended {
        Ok(()) => Exit::Done,
        Err(RdmaBenchError::Output(error)) => error.show(),
        Err(error) => {
            say!("stag: {error}");
            error.exit()
        }
    }
}

/// Every combination of the command line.
async fn load(args: &RdmaBench, server: SocketAddr) -> Result<(), RdmaBenchError> {
    let mut reports = Vec::new();
    if !args.output.json {
        out::write(report::HEAD.as_bytes())?;
    }
    for operation in &args.load.operation {
        for size in &args.load.size.0 {
            for depth in &args.load.depth.0 {
                let ended = client::run(args, server, *operation, *size, u32::from(*depth)).await;
                if ended.is_err() && args.output.json && !reports.is_empty() {
                    // Report earlier results even if a later run fails.
                    out::write(report::json(&reports).as_bytes())?;
                }
                let report = ended?;
                if !args.output.json {
                    out::write(report.line().as_bytes())?;
                }
                reports.push(report);
            }
        }
    }
    if args.output.json {
        out::write(report::json(&reports).as_bytes())?;
    }
    Ok(())
}

/// The queue pair's configuration on both sides.
fn options(wire: &Wire, receives: u32, receive_size: u32, outstanding: u16) -> Options {
    Options {
        provider: wire.rdma.into(),
        ird: outstanding,
        ord: outstanding,
        receives,
        receive_size,
        send_high_water: 8 << 20,
        setup_timeout: Duration::from_secs(wire.timeout.into()),
        crc: wire.rdma_crc.into(),
        max_fpdu: usize::try_from(wire.fpdu).unwrap_or(65_536),
        unsound_windows: wire.any_windows,
        ..Options::default()
    }
}

/// A completion that is there already.
async fn ready(pair: &QueuePair) -> Option<Result<Completion, rdma::Error>> {
    poll_fn(|cx| match pair.poll_next(cx) {
        Poll::Ready(completion) => Poll::Ready(Some(completion)),
        Poll::Pending => Poll::Ready(None),
    })
    .await
}

/// Processor time of this process, ns.
fn cpu_ns() -> u64 {
    u64::try_from(load::cpu::own().as_nanos()).unwrap_or(u64::MAX)
}
