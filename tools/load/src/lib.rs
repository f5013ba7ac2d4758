//! The load engine. A driver brings the I/O: iSCSI and iSER (`stag bench`), objects (`stag osd
//! bench`), RDMA (`stag rdma-bench`), and iSCSI and TCP without any library (`stag-load`). The
//! engine decides when a command may begin ([`Engine`]: a closed loop, or an open one at a rate)
//! and which commands count, and measures their time ([`Latency`], [`cpu`]). It does no I/O but for
//! reading /proc.
#![forbid(unsafe_code)]
#![allow(missing_docs, reason = "only this workspace uses it: a name that says all needs no comment")]

pub mod between;
pub mod cpu;
mod distribution;
mod engine;
mod latency;
pub mod machine;
mod pace;
pub mod random;
mod zipf;

pub use distribution::Distribution;
pub use engine::{Engine, Window};
pub use latency::{Latency, round};
pub use pace::Pace;
pub use random::Random;
pub use zipf::Zipf;

use std::time::Duration;

/// `seconds` as a duration; the longest that can be added to an instant where they are too many.
pub fn seconds(seconds: f64) -> Duration {
    Duration::try_from_secs_f64(seconds).unwrap_or(Duration::MAX / 16)
}
