//! The kinds of measurement, by the names that experiments call them.

use crate::experiment::Experiment;
use crate::measure::{Error, Measure};

/// The measure that `experiment` asks for.
///
/// # Errors
/// [`Error::Experiment`] if there is none of that name.
pub fn of(experiment: &Experiment) -> Result<Box<dyn Measure>, Error> {
    Err(Error::Experiment(format!("no kind of measurement is called `{}`", experiment.measure)))
}

/// The names that experiments may use.
pub const KINDS: &[&str] = &[];
