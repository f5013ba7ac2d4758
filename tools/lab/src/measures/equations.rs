//! `equations`: the prediction of the thesis' equations for this machine, and the measured gain of
//! iSER over iSCSI on it.
//!
//! It reads the settings of `bench`, except `transport`: both are measured.

use super::bench;
use super::servers::Served;
use crate::context::Context;
use crate::equations::{self, Known, gain_percent};
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
            _ => self.known.insert((context.round, equations::measure()?)).1.clone(),
        };
        let rate = |transport: &str| -> Result<f64, Error> {
            let mut over = point.clone();
            over.settings.insert("transport".to_owned(), toml::Value::String(transport.to_owned()));
            let mut served = Served::start(&over, context)?;
            let sample = bench::load(&over, context, &mut served, &mut bench::Asked::new());
            served.end(context);
            let sample = sample?;
            let rate = sample.values.get("mb_s").map(|quantity| quantity.value);
            rate.ok_or_else(|| Error::Failed("stag bench told no rate".to_owned()))
        };
        let (old, new) = (rate("iscsi")?, rate("iser")?);
        let machine = known.machine;
        let mut sample = Sample::new();
        sample.rate("memory_gb_s", machine.memory_bandwidth / 1e9, "GB/s");
        sample.fact("memory_mhz", machine.memory_clock / 1e6, "MHz");
        sample.fact("io_mhz", machine.io_clock / 1e6, "MHz");
        sample.fact("with_copies_gb_s", machine.with_copies() / 1e9, "GB/s");
        sample.fact("without_copies_gb_s", machine.without_copies() / 1e9, "GB/s");
        sample.fact("foretold_percent", machine.gain_percent(), "%");
        sample.rate("iscsi_mb_s", old, "MB/s");
        sample.rate("iser_mb_s", new, "MB/s");
        sample.rate("measured_percent", gain_percent(new, old), "%");
        known.sources.iter().for_each(|source| sample.note(source.as_str()));
        Ok(sample)
    }
}
