//! The path of each point: loopback, or the link that the point names. One link is up at a time, and stays up as long as points
//! name the same.

use crate::context::Context;
use crate::measure::Error;
use crate::point::Point;

/// The paths of one experiment.
pub struct Paths {
    count: u64,
}

impl Paths {
    /// None is there yet; links will be made by this program.
    pub fn new(_stag: &std::path::Path) -> Self {
        Self { count: 0 }
    }

    /// No link is up any more.
    pub fn leave(&mut self) {
        self.count += 1;
    }

    /// Whether `point` lies on another path than the one that is there.
    ///
    /// # Errors
    /// If what the point says of its link makes no sense.
    pub fn changes(&self, point: &Point) -> Result<bool, Error> {
        wanted(point).map(|_| false)
    }

    /// Makes the path of `point`, unless it is there.
    ///
    /// # Errors
    /// If it cannot be.
    pub fn lead(&mut self, point: &Point) -> Result<(), Error> {
        match wanted(point)? {
            None => Ok(()),
            Some(name) => Err(Error::Missing(format!("no link `{name}` can be emulated"))),
        }
    }

    /// Tells a measure of the path.
    pub fn enter(&self, context: &mut Context) {
        context.path = self.count;
    }

    /// What a record says of it.
    pub fn record(&self) -> serde_json::Value {
        serde_json::Value::Null
    }
}

fn wanted(point: &Point) -> Result<Option<String>, Error> {
    Ok(point.text("link")?.filter(|name| name != "loopback" && name != "none"))
}
