//! The interface between the frame, which knows the matrix, the rounds and the records, and the
//! kinds of measurement, each of which measures one point.

use crate::context::Context;
use crate::point::Point;
use crate::sample::Sample;

/// One kind of measurement, for the points of one experiment in one run of the lab.
///
/// It may keep costly state between points (a server, a link). The frame visits the points in the
/// order of the axes, the last axis changing fastest. It drops the measure when the experiment
/// ends, is interrupted, or has failed.
pub trait Measure {
    /// Measures `point` once. It must end before `context.deadline()`, and soon after a request
    /// through `context.stop()`. The helpers of [`Context`] ensure that for every process that they
    /// start.
    ///
    /// # Errors
    /// The reason why there is no figure. The frame records it and continues with the next point.
    fn run(&mut self, point: &Point, context: &mut Context) -> Result<Sample, Error>;
}

/// Why a point has no figure.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The machine lacks a requirement, such as a peer that is not installed. The point is skipped,
    /// and the report says why.
    #[error("{0}")]
    Missing(String),
    /// The experiment's file has invalid settings.
    #[error("the experiment: {0}")]
    Experiment(String),
    /// A command failed, with its message.
    #[error("{0}")]
    Failed(String),
    /// The point exceeded its time limit, seconds.
    #[error("no end within {0:.0} s")]
    Late(f64),
    /// The user requested the end.
    #[error("interrupted")]
    Stopped,
    #[error("{what}: {error}")]
    Io {
        what: String,
        #[source]
        error: std::io::Error,
    },
}

impl Error {
    /// For `map_err`: adds the operation to a system error.
    pub fn io(what: impl Into<String>) -> impl FnOnce(std::io::Error) -> Self {
        let what = what.into();
        move |error| Self::Io { what, error }
    }
}
