//! `stag osd bench`: loads a device of objects with one kind of command at a time and tells what it
//! measured.
//!
//! Each client is a session of its own with one command in flight, as the clients of the paper were
//! that the lab repeats. It builds CDBs by crate `osd` and sends them by crate `initiator`, over
//! TCP and iSER alike, and looks at no payload. It judges nothing.

mod drive;
mod floor;
mod objects;
mod requests;
mod tally;

use iscsi_client::objects::ObjectError;
use serde_json::Value;

use super::error::OsdError;
use crate::args::osd_bench::OsdBench;
use crate::client::connect::ConnectError;

/// The reason why nothing was measured.
#[derive(Debug, thiserror::Error)]
enum LoadError {
    /// The target or the way to it.
    #[error(transparent)]
    Session(#[from] ConnectError),
    /// The device, of the partition of this run.
    #[error(transparent)]
    Object(#[from] ObjectError),
    /// The device answered what nothing can be made of.
    #[error("{0}")]
    Answer(String),
    /// The line that begins a run with --wait has not come.
    #[error("no line came on standard input: {0}")]
    Line(String),
}

impl From<iscsi_client::Error> for LoadError {
    fn from(error: iscsi_client::Error) -> Self {
        Self::Session(error.into())
    }
}

impl LoadError {
    fn at(self, place: impl std::fmt::Display) -> OsdError {
        let place = place.to_string();
        match self {
            Self::Session(error) => OsdError::Connect { place, error },
            Self::Object(error) => OsdError::Object { place, error },
            Self::Line(_) => {
                OsdError::wrong(self.to_string(), "without --wait the run begins by itself".to_owned())
            }
            Self::Answer(what) => {
                OsdError::wrong(format!("{place}: {what}"), format!("what the device is: stag info {place}"))
            }
        }
    }
}

/// Runs it on a ring of its own.
pub fn bench(args: &OsdBench) -> Result<String, OsdError> {
    let found = match &args.floor {
        Some(path) => floor::run(args, path)?,
        None => drive::run(args)?,
    };
    Ok(if args.json { format!("{found}\n") } else { table(&found) })
}

/// The result as text: a line for each kind of command.
fn table(found: &Value) -> String {
    let mut text = String::new();
    for part in [Some(found), found.get("remove")].into_iter().flatten() {
        let number = |name: &str| part[name].as_f64();
        let word = part["what"].as_str().unwrap_or_default();
        if let Some(made) = part["made"].as_u64() {
            text += &format!("{word:<10}{made} made in {:.2} s\n", number("seconds").unwrap_or_default());
            continue;
        }
        let shown = |name: &str, unit: &str| {
            number(name).map_or_else(String::new, |value| format!("  {value:.2} {unit}"))
        };
        text += &format!("{word:<10}{:.0}/s", number("ops_s").unwrap_or_default());
        if number("mb_s").is_some_and(|rate| rate > 0.0) {
            text += &shown("mb_s", "MB/s");
        }
        text += &format!(
            "{}  (mean{},{}, p99{})",
            shown("p50_us", "µs"),
            shown("mean_us", "µs"),
            shown("stdev_us", "µs stdev"),
            shown("p99_us", "µs")
        );
        text += &shown("client_us", "µs client");
        text += &shown("target_us", "µs target");
        if let Some(error) = part["first_error"].as_str() {
            text += &format!("  ERRORS: {} ({error})", part["errors"]);
        }
        text.push('\n');
    }
    text
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_create_is_told_in_two_lines_and_a_fill_in_one() {
        let part = |what: &str| {
            json!({ "what": what, "ops_s": 5000.4, "mb_s": 0.0, "p50_us": 199.5, "mean_us": 200.0, "stdev_us": 1.5, "p99_us": 300.0,
                    "client_us": 10.0, "target_us": null, "errors": 0, "first_error": null })
        };
        let mut found = part("create");
        found["remove"] = part("remove");
        let text = table(&found);
        assert_eq!(text.lines().count(), 2);
        assert!(
            text.contains("create    5000/s  199.50 µs")
                && !text.contains("MB/s")
                && !text.contains("target"),
            "{text}"
        );
        let fill = table(&json!({ "what": "fill", "made": 7, "seconds": 0.5 }));
        assert_eq!(fill, "fill      7 made in 0.50 s\n");
    }
}
