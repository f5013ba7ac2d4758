//! The lab runs experiments described in files (`experiment`) point by point (`run`), over emulated
//! links or the machine's own interfaces. It records the figures with everything they depend on
//! (`record`, `machine`). From the records it makes pages (`report`) and comparisons (`compare`).
//!
//! It measures commands that users run too: it starts the `stag` binary, and peers where they are
//! installed, and links no target and no initiator into itself. It changes nothing outside of its
//! results folder, and ends every process that it started.
#![forbid(unsafe_code)]
#![deny(clippy::print_stdout, clippy::print_stderr)]
#![allow(missing_docs, reason = "only this workspace uses it: a name that says all needs no comment")]

mod awake;
mod chance;
pub mod compare;
pub mod context;
pub mod equations;
pub mod experiment;
pub mod figure;
pub mod finding;
pub mod library;
pub mod link;
pub mod load;
pub mod machine;
pub mod measure;
pub mod measures;
mod path;
pub mod pgf;
pub mod plot;
pub mod point;
pub mod printed;
pub mod progress;
pub mod record;
pub mod recorded;
pub mod report;
pub mod results;
pub mod run;
pub mod sample;
pub mod spread;
pub mod verify;

pub use context::{Context, Role, Stop};
pub use experiment::Experiment;
pub use measure::{Error, Measure};
pub use point::{Point, Value};
pub use record::Record;
pub use sample::{Better, Quantity, Sample};
