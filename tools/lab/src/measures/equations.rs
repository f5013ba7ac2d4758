//! `equations`: the prediction of the thesis' equations for this machine, and the measured gain of
//! iSER over iSCSI on it.
//!
//! It reads the settings of `bench`, except `transport`: both are measured.

use serde_json::{Value, json};

use super::servers::Served;
use super::{bench, words};
use crate::context::Context;
use crate::equations::{self, Calibration, Known, Machine, gain_percent};
use crate::measure::{Error, Measure};
use crate::point::Point;
use crate::sample::Sample;

/// The measure `equations`; see the module. The machine's bandwidths are measured once a round:
/// they drift, as the compared figures do.
#[derive(Default)]
pub struct Equations {
    known: Option<(u32, Known)>,
}

impl Measure for Equations {
    fn run(&mut self, point: &Point, context: &mut Context) -> Result<Sample, Error> {
        let known = match &self.known {
            Some((round, known)) if *round == context.round => known.clone(),
            _ => self.known.insert((context.round, equations::measure(&context.pinning)?)).1.clone(),
        };
        let run = |transport: &str| -> Result<Value, Error> {
            let mut over = point.clone();
            over.settings.insert("transport".to_owned(), toml::Value::String(transport.to_owned()));
            let mut served = Served::start(&over, context)?;
            let sample = bench::load(&over, context, &mut served, &mut bench::Asked::new());
            served.end(context);
            Ok(sample?.raw)
        };
        let machine = known.machine;
        let raw = json!({
            "memory_bandwidth": machine.memory_bandwidth,
            "copying_bandwidth": known.copying.value(),
            "memory_calls": known.memory.calls(),
            "copying_calls": known.copying.calls(),
            "iscsi": run("iscsi")?,
            "iser": run("iser")?,
        });
        let mut sample = read(&raw)?;
        known.sources.iter().for_each(|source| sample.note(source.as_str()));
        sample.raw = raw;
        Ok(sample)
    }
}

/// Reads the figures of one run: the measured bandwidths, and the output of `stag bench`.
///
/// # Errors
/// If one is not there, or the equations do not fit them.
pub(super) fn read(raw: &Value) -> Result<Sample, Error> {
    let rate = |transport: &str| words::number(&raw[transport], "mb_s");
    let (old, new) = (rate("iscsi")?, rate("iser")?);
    let memory = words::number(raw, "memory_bandwidth")?;
    let machine = Machine::of_path(memory, words::number(raw, "copying_bandwidth")?)
        .ok_or_else(|| Error::Failed("the equations do not fit these bandwidths".to_owned()))?;
    let mut sample = Sample::new();
    sample.rate("memory_gb_s", memory / 1e9, "GB/s");
    sample.fact("memory_mhz", machine.memory_clock / 1e6, "MHz");
    sample.fact("io_mhz", machine.io_clock / 1e6, "MHz");
    sample.fact("with_copies_gb_s", machine.with_copies() / 1e9, "GB/s");
    sample.fact("without_copies_gb_s", machine.without_copies() / 1e9, "GB/s");
    sample.fact("foretold_percent", machine.gain_percent(), "%");
    sample.rate("iscsi_gb_s", old / 1e3, "GB/s");
    sample.rate("iser_gb_s", new / 1e3, "GB/s");
    sample.rate("measured_percent", gain_percent(new, old), "%");
    // Records from before have no calls.
    for input in ["memory", "copying"] {
        if let Some(calls) = calls(&raw[format!("{input}_calls")]) {
            sample.fact(&format!("{input}_spread_percent"), calls.spread_percent(), "%");
        }
    }
    let copying = machine.with_copies() / 1e9;
    if old / 1e3 > copying {
        sample.note(format!(
            "equation 5.1 is below what was measured: iSCSI with copies moved {:.2} GB/s, and its input says {copying:.2} GB/s",
            old / 1e3
        ));
    }
    Ok(sample)
}

fn calls(raw: &Value) -> Option<Calibration> {
    Calibration::of(raw.as_array()?.iter().filter_map(Value::as_f64).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_has_all_that_its_figures_follow_from() {
        let mut raw = json!({ "memory_bandwidth": 20e9, "copying_bandwidth": 2.5e9,
                              "iscsi": { "mb_s": 2000.0 }, "iser": { "mb_s": 2500.0 } });
        let sample = read(&raw).unwrap();
        let told = |name: &str| (sample.values[name].value * 1e6).round() / 1e6;
        assert_eq!((told("with_copies_gb_s"), told("foretold_percent")), (2.5, 25.0));
        assert_eq!((told("iscsi_gb_s"), told("measured_percent")), (2.0, 20.0));
        assert!(sample.notes.is_empty() && !sample.values.contains_key("memory_spread_percent"));
        raw["memory_calls"] = json!([18e9, 20e9, 22e9]);
        raw["iscsi"]["mb_s"] = json!(2600.0);
        let sample = read(&raw).unwrap();
        assert_eq!(sample.values["memory_spread_percent"].value, 20.0);
        assert!(
            sample.notes[0].contains("5.1 is below") && sample.notes[0].contains("2.60 GB/s"),
            "{:?}",
            sample.notes
        );
        raw["iser"] = Value::Null;
        assert!(read(&raw).is_err());
    }
}
