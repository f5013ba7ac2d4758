//! The printed result of a run.

use load::Latency;
use load::cpu::Sample;
use serde::Serialize;

use crate::LoadError;
use crate::args::Args;

/// The result of a run; printed as JSON.
#[derive(Debug, Serialize)]
pub struct Report {
    /// The pattern, e.g. `rr`.
    pub pattern: String,
    /// Bytes of one I/O.
    pub block: usize,
    /// Commands in flight on each connection.
    pub depth: u16,
    pub connections: u16,
    /// Seconds measured.
    pub seconds: f64,
    /// I/Os completed in them.
    pub ios: u64,
    pub iops: f64,
    /// Megabytes (10^6) a second.
    pub mb_s: f64,
    /// Half of the I/Os took no longer than this many microseconds.
    pub p50_us: f64,
    /// 99 of 100 took no longer.
    pub p99_us: f64,
    /// 999 of 1000 took no longer.
    pub p999_us: f64,
    pub max_us: f64,
    /// `LATENCY:COUNT` of each bucket that has any: the longest latency in it, ns.
    pub histogram_ns: String,
    /// This client's processor microseconds per I/O.
    pub client_us: f64,
    /// This client's use of a core over the measured time, percent.
    pub client_busy: f64,
    /// This client's system calls per I/O.
    pub calls: f64,
    /// The target's processor microseconds per I/O, if it was named: waiting awake counts as well
    /// as working.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub target_us: Option<f64>,
    /// The target's use of a core over the measured time, percent, if it was named.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub target_busy: Option<f64>,
    /// I/Os that ended in anything but GOOD and all their bytes.
    pub errors: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub first_error: Option<String>,
}

/// The counts over all connections.
#[derive(Debug)]
pub struct Tally {
    /// Commands that ended, well or not.
    pub ios: u64,
    /// Commands that did not end with GOOD and exactly their bytes.
    pub errors: u64,
    /// The first such, in words.
    pub first_error: Option<String>,
    /// From a command's queueing to its status.
    pub latency: Latency,
    pub calls: u64,
}

impl Default for Tally {
    fn default() -> Self {
        // Two digits: 60 KB, and recording is an index and an addition.
        Self { ios: 0, errors: 0, first_error: None, latency: Latency::new(2), calls: 0 }
    }
}

impl Report {
    /// Builds the report of the options `args`, the counts, and the clocks since `start`.
    ///
    /// # Errors
    /// If the target's process was named and is not there.
    pub fn new(args: &Args, tally: Tally, start: &Sample) -> Result<Self, LoadError> {
        let spent = Sample::take(args.target_pid).since(start);
        if args.target_pid.is_some() && spent.target.is_none() {
            return Err(LoadError::Usage("the process named with --target-pid is not there".into()));
        }
        let seconds = spent.time.as_secs_f64();
        let iops = tally.ios as f64 / seconds;
        let each = |used| spent.each_us(used, iops);
        Ok(Self {
            pattern: format!("{:?}", args.pattern).to_lowercase(),
            block: args.block,
            depth: args.depth,
            connections: args.connections,
            seconds,
            ios: tally.ios,
            iops,
            mb_s: iops * args.block as f64 / 1e6,
            p50_us: tally.latency.quantile_us(0.5),
            p99_us: tally.latency.quantile_us(0.99),
            p999_us: tally.latency.quantile_us(0.999),
            max_us: tally.latency.max_us(),
            histogram_ns: tally.latency.distribution().to_string(),
            client_us: each(spent.own),
            client_busy: spent.percent(spent.own),
            calls: tally.calls as f64 / tally.ios.max(1) as f64,
            target_us: spent.target.map(each),
            target_busy: spent.target.map(|used| spent.percent(used)),
            errors: tally.errors,
            first_error: tally.first_error,
        })
    }
}
