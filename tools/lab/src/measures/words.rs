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

/// Passes times and checksums on to a command: none, unless `digests = true`, or unless the setting
/// of one of them says so. With `ios`, so many I/Os are measured instead of a time.
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
    for sum in ["header-digest", "data-digest", "rdma-crc"] {
        let when = point.text(sum)?.unwrap_or_else(|| when.to_owned());
        command.args([&format!("--{sum}"), &when]);
    }
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

/// How many times the requested round trip probes may take before readers are told.
const MOST_RTT: f64 = 1.2;

/// Adds the payload's part of the link's rate on the wire, where the link has a rate. Notes a link
/// that is shorter than the emulator can be.
pub(crate) fn of_the_link(sample: &mut Sample, context: &Context, mb_s: f64) {
    if let Some(link) = context.link.as_ref().filter(|link| link.rtt_ms > link.asked_ms * MOST_RTT) {
        sample.note(format!(
            "the emulator cannot be as short as link {} here: of a round trip of {:.0} µs that was asked for, probes took {:.0}",
            link.name,
            link.asked_ms * 1e3,
            link.rtt_ms * 1e3
        ));
    }
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

/// Adds what all processors of the machine did: for each operation, and in percent of one of them.
pub fn machine(sample: &mut Sample, found: &Value) {
    let found = &found["machine"];
    let kinds = [
        ("machine_user_us", "user_us"),
        ("machine_system_us", "system_us"),
        ("machine_irq_us", "irq_us"),
        ("machine_softirq_us", "softirq_us"),
    ];
    let kinds = kinds.map(|(name, field)| (name, found[field].as_f64()));
    for (name, us) in kinds {
        if let Some(us) = us {
            sample.cost(name, us, "µs");
        }
    }
    if kinds.iter().all(|(_, us)| us.is_some()) {
        sample.cost("machine_us", kinds.iter().filter_map(|(_, us)| *us).sum(), "µs");
    }
    if let Some(busy) = found["cpu_percent"].as_f64() {
        sample.fact("machine_percent", busy, "%");
    }
    for name in ["interrupts", "switches"] {
        if let Some(count) = found[name].as_f64() {
            sample.cost(name, count, "");
        }
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
        let header = said("header-digest = 'require'");
        assert!(header.ends_with("--header-digest require --data-digest never --rdma-crc never"), "{header}");
        assert!(
            said("digests = true\nrdma-crc = 'never'").ends_with("--data-digest require --rdma-crc never")
        );
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
        context.link = Some(LinkFacts {
            name: "lan".into(),
            rate_bits: Some(1e9),
            rtt_ms: 0.06,
            asked_ms: 0.052,
            mtu: 1500,
        });
        of_the_link(&mut sample, &context, 62.5);
        assert!((sample.values["link_percent"].value - 50.0).abs() < 1e-9);
        assert_eq!(sample.notes, Vec::<String>::new());
        context.link.iter_mut().for_each(|link| link.rtt_ms = 0.13);
        of_the_link(&mut sample, &context, 62.5);
        assert!(
            sample.notes[0].ends_with("of 52 µs that was asked for, probes took 130"),
            "{:?}",
            sample.notes
        );
    }
}
