//! The `[limits]` table.

use target::config::Congestion;

use super::model::Limits;
use super::problem::Problems;
use super::reader::{At, Table};

/// Reads `[limits]`.
pub fn limits(mut given: Table<'_>, problems: &mut Problems) -> Limits {
    let n = |at: At<u64>| u32::try_from(at.value).unwrap_or(u32::MAX);
    let h = |at: At<u64>| u16::try_from(at.value).unwrap_or(u16::MAX);
    // Ranges of the sizes are those of their keys (RFC 7143 §13.12 to §13.17).
    const DATA: std::ops::Range<u64> = 512..1 << 24;
    // A data segment is received into one buffer of the pool, its padding and digest too: 1 MiB at most (`ring::pool`).
    const SEGMENT: std::ops::Range<u64> = 512..(1 << 20) - 4095;
    let limits = Limits {
        connections: given.int("connections", 1..1 << 20, problems).map(n),
        logins: given.int("logins", 1..1 << 20, problems).map(n),
        sessions: given.int("sessions", 1..1 << 20, problems).map(n),
        connections_per_session: given.int("connections-per-session", 1..65536, problems).map(h),
        queue_depth: given.int("queue-depth", 1..16385, problems).map(n),
        max_recv_data_segment: given.size("max-recv-data-segment", SEGMENT, problems).map(n),
        max_outstanding_r2t: given.int("max-outstanding-r2t", 1..65536, problems).map(h),
        login_timeout: given.int("login-timeout", 1..3601, problems).map(n),
        nop_interval: given.int("nop-interval", 0..86401, problems).map(n),
        nop_timeout: given.int("nop-timeout", 1..3601, problems).map(n),
        send_high_water: given.size("send-high-water", 65536..1 << 31, problems).map(n),
        error_recovery_level: given.int("error-recovery-level", 0..3, problems).map(h),
        default_time2wait: given.int("default-time2wait", 0..3601, problems).map(h),
        default_time2retain: given.int("default-time2retain", 0..3601, problems).map(h),
        unacknowledged: given.size("unacknowledged", 65536..1 << 31, problems).map(n),
        data_timeout: given.int("data-timeout", 1..3601, problems).map(n),
        congestion: congestion(&mut given, problems),
        max_burst: None,
        first_burst: None,
    };
    let max_burst = given.size("max-burst", DATA, problems);
    let first_burst = given.size("first-burst", DATA, problems);
    if let (Some(first), Some(max)) = (&first_burst, &max_burst)
        && first.value > max.value
    {
        let what = format!("first-burst ({}) is more than max-burst ({})", first.value, max.value);
        problems.error(&first.span, what, "make it as large or smaller (RFC 7143 §13.14)");
    }
    given.end(problems);
    Limits { max_burst: max_burst.map(n), first_burst: first_burst.map(n), ..limits }
}

/// `congestion-control`.
fn congestion(given: &mut Table<'_>, problems: &mut Problems) -> Option<Congestion> {
    let name = given.string("congestion-control", problems)?;
    let congestion = Congestion::new(&name.value);
    if congestion.is_none() {
        let what = format!("`{}` is the name of no congestion control", name.value);
        problems.error(
            &name.span,
            what,
            "write one of net.ipv4.tcp_available_congestion_control, such as \"bbr\"",
        );
    }
    congestion
}
