//! The kinds of measurement, by the names that experiments call them. Each starts commands that users run too, at the two ends of
//! the path, and reads what they print; none judges a figure.

mod bench;
mod equations;
mod osd;
mod rdma;
mod scratch;
mod servers;
mod words;

use crate::experiment::Experiment;
use crate::measure::{Error, Measure};

/// The names that experiments may use.
pub const KINDS: &[&str] = &["bench", "osd", "rdma", "equations"];

/// The measure that `experiment` asks for.
///
/// # Errors
/// [`Error::Experiment`] if there is none of that name.
pub fn of(experiment: &Experiment) -> Result<Box<dyn Measure>, Error> {
    Ok(match experiment.measure.as_str() {
        "bench" => Box::new(bench::Bench),
        "osd" => Box::new(osd::Osd),
        "rdma" => Box::new(rdma::Rdma),
        "equations" => Box::new(equations::Equations::default()),
        other => {
            let kinds = KINDS.join(", ");
            return Err(Error::Experiment(format!(
                "no kind of measurement is called `{other}`: there are {kinds}"
            )));
        }
    })
}
