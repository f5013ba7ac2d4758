//! Charts of kind "cdf": the share of I/Os by their latency, over all rounds.

use super::charts::{combinations, name};
use crate::experiment::{Experiment, Kind, Scale};
use crate::figure::digits;
use crate::plot::{Chart, numeric};
use crate::results::Found;
use load::Distribution;

/// The lines of the combinations of the plot's axes of which a tool printed its latencies.
pub(super) fn series(
    experiment: &Experiment,
    axes: &[String],
    found: &[&Found],
) -> Vec<(String, Distribution)> {
    let with: Vec<&Found> = found.iter().copied().filter(|found| found.distribution.count() > 0).collect();
    let mut all = Vec::new();
    for line in combinations(experiment, axes, &with) {
        if let Some(one) = with.iter().find(|found| found.is_at(&line)) {
            all.push((name(experiment, &line), one.distribution.clone()));
        }
    }
    all
}

/// The chart of these lines; `None` without any.
pub fn chart(title: &str, subtitle: String, lines: &[(String, Distribution)]) -> Option<Chart> {
    let percent = |(name, distribution): &(String, Distribution)| {
        let above = distribution.shares().into_iter().filter(|(us, _)| *us > 0.0);
        (name.clone(), above.map(|(us, share)| (us, share * 100.0)).collect())
    };
    let lines: Vec<_> = lines.iter().map(percent).collect();
    let (places, series) = numeric(&lines, |us| format!("{} µs", digits(us, 4)));
    (!places.is_empty()).then(|| Chart {
        title: title.to_owned(),
        subtitle,
        x_title: "Latency (µs, logarithmic)".to_owned(),
        x_scale: Scale::Log10,
        x_bytes: false,
        y_title: "I/Os that took no longer (%)".to_owned(),
        y_scale: Scale::Linear,
        kind: Kind::Cdf,
        places,
        series,
    })
}
