//! What a run found, as it is printed.

use std::time::{Duration, Instant};

use serde::Serialize;

use crate::args::Args;
use crate::session::Tally;
use crate::{LoadError, cpu};

/// What a run found; printed as JSON.
#[derive(Debug, Serialize)]
pub struct Report {
    /// What was done, e.g. `rr`.
    pub pattern: String,
    /// Bytes of one I/O.
    pub block: usize,
    /// Commands in flight on each connection.
    pub depth: u16,
    /// Connections.
    pub connections: u16,
    /// Seconds measured.
    pub seconds: f64,
    /// I/Os completed in them.
    pub ios: u64,
    /// I/Os a second.
    pub iops: f64,
    /// Megabytes (10^6) a second.
    pub mb_s: f64,
    /// Half of the I/Os took no longer than this many microseconds.
    pub p50_us: f64,
    /// 99 of 100 took no longer.
    pub p99_us: f64,
    /// The longest.
    pub max_us: f64,
    /// This client's processor microseconds per I/O.
    pub client_us: f64,
    /// Of the time measured, how many percent of a core this client used.
    pub client_busy: f64,
    /// This client's system calls per I/O.
    pub calls: f64,
    /// The target's processor microseconds per I/O, if it was named: waiting awake counts as well as working.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub target_us: Option<f64>,
    /// Of the time measured, how many percent of a core the target used, if it was named.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub target_busy: Option<f64>,
    /// I/Os that ended in anything but GOOD and all their bytes.
    pub errors: u64,
    /// The first of them.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub first_error: Option<String>,
}

/// The clocks at the beginning of what is measured.
#[derive(Debug)]
pub struct Start {
    at: Instant,
    own: Option<Duration>,
    target: Option<Duration>,
}

/// What the clocks have counted since a [`Start`].
#[derive(Debug)]
pub struct Elapsed {
    time: Duration,
    own: Option<Duration>,
    target: Option<Duration>,
}

impl Start {
    /// Reads the clocks.
    pub fn now(args: &Args) -> Self {
        let (own, target) = (cpu::used(std::process::id()), args.target_pid.and_then(cpu::used));
        Self { at: Instant::now(), own, target }
    }

    /// Reads them again.
    ///
    /// # Errors
    /// If the target's process was named and is not there.
    pub fn elapsed(&self, args: &Args) -> Result<Elapsed, LoadError> {
        let time = self.at.elapsed();
        let since = |before: Option<Duration>, pid| Some(cpu::used(pid)?.saturating_sub(before?));
        let own = since(self.own, std::process::id());
        let target = args.target_pid.and_then(|pid| since(self.target, pid));
        if args.target_pid.is_some() && target.is_none() {
            return Err(LoadError::Usage("the process named with --target-pid is not there".into()));
        }
        Ok(Elapsed { time, own, target })
    }
}

impl Report {
    /// Puts together what `args` asked for, what was counted, the system `calls` that it took, and the clocks.
    pub fn new(args: &Args, tally: Tally, calls: u64, elapsed: &Elapsed) -> Self {
        let seconds = elapsed.time.as_secs_f64();
        let iops = tally.ios as f64 / seconds;
        let per_io = |amount: f64| amount / tally.ios.max(1) as f64;
        let us = |ns: u64| ns as f64 / 1e3;
        let spent = |cpu: Duration| per_io(us(cpu.as_nanos() as u64));
        let busy = |cpu: Duration| 100.0 * cpu.as_secs_f64() / seconds;
        Self {
            pattern: format!("{:?}", args.pattern).to_lowercase(),
            block: args.block,
            depth: args.depth,
            connections: args.connections,
            seconds,
            ios: tally.ios,
            iops,
            mb_s: iops * args.block as f64 / 1e6,
            p50_us: us(tally.latency_ns.value_at_quantile(0.5)),
            p99_us: us(tally.latency_ns.value_at_quantile(0.99)),
            max_us: us(tally.latency_ns.max()),
            client_us: elapsed.own.map_or(f64::NAN, spent),
            client_busy: elapsed.own.map_or(f64::NAN, busy),
            calls: per_io(calls as f64),
            target_us: elapsed.target.map(spent),
            target_busy: elapsed.target.map(busy),
            errors: tally.errors,
            first_error: tally.first_error,
        }
    }
}
