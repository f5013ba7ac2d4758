//! Settings that all kinds of measurement share, and parsing of commands' output.

use std::process::Command;

use serde_json::Value;

use crate::context::Context;
use crate::measure::Error;
use crate::point::Point;
use crate::sample::Sample;

/// The transport of SCSI commands to a unit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Transport {
    /// iSCSI over TCP.
    Iscsi,
    /// iSER, over software iWARP.
    Iser,
}

impl Transport {
    /// The point's transport; iSCSI by default.
    ///
    /// # Errors
    /// If it names no transport.
    pub fn of(point: &Point) -> Result<Self, Error> {
        match point.text("transport")?.as_deref() {
            None | Some("iscsi" | "tcp") => Ok(Self::Iscsi),
            Some("iser") => Ok(Self::Iser),
            Some(other) => {
                Err(Error::Experiment(format!("`transport` is {other}, and should be iscsi or iser")))
            }
        }
    }

    /// The scheme of URLs.
    pub fn scheme(self) -> &'static str {
        match self {
            Self::Iscsi => "iscsi",
            Self::Iser => "iser",
        }
    }
}

/// The measured seconds, and the warm-up seconds before them.
///
/// # Errors
/// If a value is not a number.
pub fn times(point: &Point) -> Result<(f64, f64), Error> {
    Ok((point.real("seconds")?.unwrap_or(1.0), point.real("warmup")?.unwrap_or(0.1)))
}

/// Whether the unit goes past the page cache: `cache=direct` among its options.
///
/// # Errors
/// If the options are no words.
pub(crate) fn is_direct(point: &Point) -> Result<bool, Error> {
    Ok(point.words("unit-options")?.iter().any(|option| option == "cache=direct"))
}

/// Passes times and digests on to a command: no digests, unless `digests = true`. With `ios`, so
/// many I/Os are measured instead of a time.
///
/// # Errors
/// If a value has the wrong type.
pub fn common(command: &mut Command, point: &Point, ios: Option<u64>) -> Result<(), Error> {
    let (seconds, warmup) = times(point)?;
    match ios {
        Some(ios) => command.args(["--count", &ios.to_string()]),
        None => command.args(["--time", &seconds.to_string()]),
    };
    command.args(["--warmup", &warmup.to_string()]);
    let when = if point.truth("digests")?.unwrap_or(false) { "require" } else { "never" };
    command.args(["--header-digest", when, "--data-digest", when, "--rdma-crc", when]);
    Ok(())
}

/// Parses the JSON output of a command.
///
/// # Errors
/// If it is not JSON.
pub fn json(name: &str, text: &str) -> Result<Value, Error> {
    serde_json::from_str(text.trim()).map_err(|error| {
        let shown: String = text.chars().take(200).collect();
        Error::Failed(format!("{name} printed what is no JSON ({error}): {shown:?}"))
    })
}

/// The number `name` of `found`.
///
/// # Errors
/// If it has no such number.
pub fn number(found: &Value, name: &str) -> Result<f64, Error> {
    found[name]
        .as_f64()
        .ok_or_else(|| Error::Failed(format!("there is no number `{name}` in what was printed")))
}

/// Adds the payload's part of the link's rate on the wire, where the link has a rate.
pub(crate) fn of_the_link(sample: &mut Sample, context: &Context, mb_s: f64) {
    if let Some(rate) = context.link.as_ref().and_then(|link| link.rate_bits).filter(|rate| *rate > 0.0) {
        sample.rate("link_percent", mb_s * 8e6 / rate * 100.0, "%");
    }
}

/// Adds processor time: µs per operation, and percent of one processor.
pub fn processor(sample: &mut Sample, found: &Value, side: &str, each: &str, percent: &str) {
    if let Some(us) = found[each].as_f64() {
        sample.cost(&format!("{side}_us"), us, "µs");
    }
    if let Some(busy) = found[percent].as_f64() {
        sample.fact(&format!("{side}_percent"), busy, "%");
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::context::LinkFacts;
    use crate::point::Value as At;

    fn point(settings: &str) -> Point {
        let settings = settings.parse().expect("TOML");
        Point {
            experiment: "x".into(),
            coordinates: vec![("block".into(), At::Whole(512))],
            settings,
            quick: true,
        }
    }

    #[test]
    fn a_transport_is_iscsi_unless_said_and_nothing_else_than_two() {
        assert_eq!(Transport::of(&point("")).unwrap(), Transport::Iscsi);
        assert_eq!(Transport::of(&point("transport = 'iser'")).unwrap().scheme(), "iser");
        assert!(Transport::of(&point("transport = 'nvme'")).is_err());
    }

    #[test]
    fn checksums_are_off_unless_they_are_asked_for() {
        let said_of = |settings, ios| {
            let mut command = Command::new("stag");
            common(&mut command, &point(settings), ios).unwrap();
            command.get_args().map(|word| word.to_string_lossy().into_owned()).collect::<Vec<_>>().join(" ")
        };
        let said = |settings| said_of(settings, None);
        assert_eq!(
            said("seconds = 2\nwarmup = 0.5"),
            "--time 2 --warmup 0.5 --header-digest never --data-digest never --rdma-crc never"
        );
        assert!(said("digests = true").contains("--data-digest require --rdma-crc require"));
        assert!(said_of("seconds = 2", Some(9)).starts_with("--count 9 --warmup 0.1 --header-digest"));
    }

    #[test]
    fn what_is_no_json_is_told_with_its_beginning() {
        let error = json("stag bench", "Segmentation fault").unwrap_err();
        assert!(error.to_string().contains("Segmentation fault"), "{error}");
        assert!(number(&json("x", "{\"a\": 1}\n").unwrap(), "b").is_err());
    }

    #[test]
    fn the_share_of_a_link_counts_payload_in_bits() {
        let mut context =
            Context::new("stag".into(), ".".into(), std::time::Duration::from_secs(1), Default::default());
        let mut sample = Sample::new();
        of_the_link(&mut sample, &context, 62.5);
        assert!(sample.values.is_empty());
        context.link = Some(LinkFacts { name: "lan".into(), rate_bits: Some(1e9), rtt_ms: 0.05, mtu: 1500 });
        of_the_link(&mut sample, &context, 62.5);
        assert!((sample.values["link_percent"].value - 50.0).abs() < 1e-9);
    }
}
