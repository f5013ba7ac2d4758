//! The result of a run, as JSON and as a line of a table. Field names are stable: scripts read
//! them.

use load::round;
use rdma::QueuePair;
use serde::Serialize;

use super::client::Found;
use super::wire::Hello;

/// Counts up when a field changes its meaning or goes.
pub const FORMAT: u32 = 1;

/// Everything, as `--json` prints it.
#[derive(Debug, Serialize)]
struct Document<'a> {
    format: u32,
    version: &'static str,
    runs: &'a [Report],
}

/// Latencies in µs: from the post to the end.
#[derive(Clone, Debug, Serialize)]
struct Latency {
    min: f64,
    mean: f64,
    p50: f64,
    p90: f64,
    p99: f64,
    p999: f64,
    max: f64,
}

#[derive(Clone, Debug, Serialize)]
pub struct Report {
    operation: &'static str,
    /// Bytes of a message.
    size: u32,
    depth: u32,
    /// RDMA Reads on the wire at once, as negotiated.
    outstanding: u16,
    /// Whether exposed memory has an STag or a window of its own. If not, its bytes are copied.
    windows: bool,
    crc: bool,
    seconds: f64,
    ops: u64,
    ops_s: f64,
    /// 10⁶ bytes a second.
    mb_s: f64,
    lat_us: Latency,
    /// `LATENCY:COUNT` of each bucket that has any: the longest latency in it, ns.
    histogram_ns: String,
    /// The way there and back, before the load.
    rtt_us: f64,
    client_us: f64,
    client_cpu_percent: f64,
    server_us: f64,
    server_cpu_percent: f64,
}

impl Report {
    /// Of a run that found this.
    pub fn new(hello: &Hello, pair: &QueuePair, found: Found) -> Self {
        let (latency, spent) = (&found.latency, &found.spent);
        let elapsed = spent.time.as_secs_f64().max(1e-9);
        let ops = latency.count();
        let rate = ops as f64 / elapsed;
        let at = |quantile| round(latency.quantile_us(quantile), 3);
        let each = |used| round(spent.each_us(used, rate), 3);
        let percent = |used| round(spent.percent(used), 2);
        let server = spent.target.unwrap_or_default();
        Self {
            operation: hello.operation.name(),
            size: hello.size,
            depth: hello.depth,
            outstanding: pair.ord(),
            windows: pair.takes_invalidation(),
            crc: pair.has_crc(),
            seconds: round(elapsed, 6),
            ops,
            ops_s: round(rate, 1),
            mb_s: round(rate * f64::from(hello.size) / 1e6, 3),
            lat_us: Latency {
                min: round(latency.min_us(), 3),
                mean: round(latency.mean_us(), 3),
                p50: at(0.5),
                p90: at(0.9),
                p99: at(0.99),
                p999: at(0.999),
                max: round(latency.max_us(), 3),
            },
            histogram_ns: latency.distribution().to_string(),
            rtt_us: round(found.rtt.as_secs_f64() * 1e6, 3),
            client_us: each(spent.own),
            client_cpu_percent: percent(spent.own),
            server_us: each(server),
            server_cpu_percent: percent(server),
        }
    }

    /// A line under [`HEAD`].
    pub fn line(&self) -> String {
        format!(
            "{:<6}{:>9}{:>7}{:>7}{:>12.0}{:>11.1}{:>11.1}{:>11.1}{:>9.2}{:>9.2}\n",
            self.operation,
            self.size,
            self.depth,
            self.outstanding,
            self.ops_s,
            self.mb_s,
            self.lat_us.p50,
            self.lat_us.p99,
            self.client_us,
            self.server_us,
        )
    }
}

/// The head of the table.
pub const HEAD: &str =
    "what       bytes  depth    ord       ops/s       MB/s     p50 µs     p99 µs   cl. µs  ser. µs\n";

/// All runs as one JSON document.
pub fn json(runs: &[Report]) -> String {
    let document = Document { format: FORMAT, version: env!("CARGO_PKG_VERSION"), runs };
    // Numbers, strings and lists of them: nothing that JSON does not have.
    serde_json::to_string_pretty(&document).unwrap_or_default() + "\n"
}
