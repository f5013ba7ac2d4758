//! The lab: experiments that are told in files (`experiment`), run point by point over links that are emulated or the machine's
//! own (`run`), recorded with all that the figures depend on (`record`, `machine`), and made into pages (`report`) and
//! comparisons (`compare`).
//!
//! What it measures are commands that users run too: it starts the `stag` binary, and peers where they are installed, and
//! never links a target or an initiator into itself. It changes nothing outside of its results folder, and ends whatever it
//! has started.
#![forbid(unsafe_code)]

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
pub mod plot;
pub mod point;
pub mod progress;
pub mod record;
pub mod report;
pub mod results;
pub mod run;
pub mod sample;
pub mod spread;

pub use context::{Context, Role, Stop};
pub use experiment::Experiment;
pub use measure::{Error, Measure};
pub use point::{Point, Value};
pub use record::Record;
pub use sample::{Better, Quantity, Sample};
