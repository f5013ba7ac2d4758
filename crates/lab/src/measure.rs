//! The seam between the frame, which knows the matrix, the rounds and the records, and the kinds of measurement, each of which
//! knows how one point is taken.

use crate::context::Context;
use crate::point::Point;
use crate::sample::Sample;

/// One kind of measurement, for the points of one experiment in one run of the lab.
///
/// It may keep between points what is dear to set up (a server, a link): the frame goes through the points in the order of the
/// axes, the last axis changing fastest, and drops the measure when the experiment ends, is interrupted, or has failed.
pub trait Measure {
    /// Takes `point` once. It ends before `context.deadline()`, or soon after `context.stop()` is asked; the helpers of
    /// [`Context`] see to that for every process that they start.
    ///
    /// # Errors
    /// What kept it from a figure. The frame records it and goes on with the next point.
    fn run(&mut self, point: &Point, context: &mut Context) -> Result<Sample, Error>;
}

/// Why there is no figure of a point.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The machine lacks something, such as a peer that is not installed: the point is skipped and the report says why.
    #[error("{0}")]
    Missing(String),
    /// The experiment's file asks for what makes no sense.
    #[error("the experiment: {0}")]
    Experiment(String),
    /// A command failed, in its words.
    #[error("{0}")]
    Failed(String),
    /// It took longer than the point may.
    #[error("no end within {0:.0} s")]
    Late(f64),
    /// The user wants it to end.
    #[error("interrupted")]
    Stopped,
    /// Something of the system.
    #[error("{what}: {error}")]
    Io {
        /// What was tried.
        what: String,
        /// What came of it.
        #[source]
        error: std::io::Error,
    },
}

impl Error {
    /// For `map_err`: puts words to an error of the system.
    pub fn io(what: impl Into<String>) -> impl FnOnce(std::io::Error) -> Self {
        let what = what.into();
        move |error| Self::Io { what, error }
    }
}
