//! Checks an experiment: its names, its axes, and that plots, tables and claims name existing axes
//! and values.

use std::collections::BTreeSet;

use super::{
    Axis, Choice, Experiment, FORMAT, Finding, Kind, MOST_POINTS, Plot, ROUNDS, Range, Scale, Selection,
};
use crate::measures::RECORDED;
use crate::point::Value;

impl Experiment {
    pub(super) fn check(&self) -> Result<(), String> {
        if self.format != FORMAT {
            return Err(format!("format {} is not known; this program reads format {FORMAT}", self.format));
        }
        is_name("name", &self.name)?;
        for (what, rounds) in [("rounds", Some(self.rounds)), ("quick.rounds", self.quick.rounds)] {
            if rounds.is_some_and(|rounds| !(1..=1000).contains(&rounds)) {
                return Err(format!("`{what}` should be from 1 to 1000"));
            }
        }
        let times = [
            ("timeout-s", Some(self.timeout_s)),
            ("expect-s", Some(self.expect_s)),
            ("quick.timeout-s", self.quick.timeout_s),
            ("quick.expect-s", self.quick.expect_s),
        ];
        for (what, seconds) in times {
            if seconds.is_some_and(|seconds| !(0.01..=86400.0).contains(&seconds)) {
                return Err(format!("`{what}` should be from 0.01 to 86400"));
            }
        }
        let of_axes = self.axis.iter().flat_map(|axis| axis.settings.values());
        for settings in of_axes.chain([&self.settings, &self.quick.settings]) {
            let rounds = settings.get(ROUNDS);
            if rounds
                .is_some_and(|rounds| rounds.as_integer().is_none_or(|rounds| !(1..=1000).contains(&rounds)))
            {
                return Err("the setting `rounds` should be a whole number from 1 to 1000".to_owned());
            }
        }
        self.check_axes()?;
        self.check_programs()?;
        self.check_shown()?;
        for finding in &self.finding {
            self.check_finding(finding).map_err(|why| format!("finding \"{}\": {why}", finding.claim))?;
        }
        for reference in &self.reference {
            if reference.rows.iter().any(|row| row.len() != reference.columns.len()) {
                return Err(format!(
                    "reference \"{}\": a row has not as many cells as there are columns",
                    reference.title
                ));
            }
        }
        Ok(())
    }

    fn check_axes(&self) -> Result<(), String> {
        let mut names = BTreeSet::new();
        let mut product = 1_usize;
        for axis in &self.axis {
            if axis.name.is_empty() || !names.insert(&axis.name) {
                return Err(format!("there are two axes `{}`, or one without a name", axis.name));
            }
            if self.settings.contains_key(&axis.name) || self.quick.settings.contains_key(&axis.name) {
                return Err(format!("`{}` is an axis and a setting", axis.name));
            }
            if axis.values.is_empty() || axis.quick.as_ref().is_some_and(Vec::is_empty) {
                return Err(format!("axis `{}` has no values", axis.name));
            }
            for list in std::iter::once(&axis.values).chain(&axis.quick) {
                for (at, value) in list.iter().enumerate() {
                    let text = value.to_string();
                    if text.is_empty()
                        || text.contains([',', '=', '\n'])
                        || value.number().is_some_and(|n| !n.is_finite())
                    {
                        return Err(format!("axis `{}`: {text:?} is no value for an axis", axis.name));
                    }
                    if list.iter().take(at).any(|before| before.same(value)) {
                        return Err(format!("axis `{}` has {value} twice", axis.name));
                    }
                }
            }
            for value in axis.settings.keys().chain(axis.labels.keys()) {
                if !axis.every_value().any(|known| known.to_string() == *value) {
                    return Err(format!("axis `{}` has no value {value}", axis.name));
                }
            }
            product = product.saturating_mul(axis.every_value().count());
            if product > MOST_POINTS {
                return Err(format!("the axes make more than {MOST_POINTS} points"));
            }
        }
        for quick in [false, true] {
            let points = self.points(quick);
            if points.is_empty() {
                return Err("every point is skipped".to_owned());
            }
            // Another program's links are its own.
            let points = points.into_iter().filter(|_| self.measure != RECORDED);
            for point in points {
                crate::path::check(&point).map_err(|why| format!("point {}: {why}", point.key()))?;
            }
        }
        Ok(())
    }

    fn check_shown(&self) -> Result<(), String> {
        for skip in &self.skip {
            self.check_selection(&skip.at)?;
        }
        let mut names = BTreeSet::new();
        for plot in &self.plot {
            is_name("plot.name", &plot.name)?;
            let wrong = |why: String| format!("plot `{}`: {why}", plot.name);
            if !names.insert(&plot.name) {
                return Err(wrong("there are two of this name".to_owned()));
            }
            self.check_selection(&plot.at).map_err(wrong)?;
            let distribution = plot.kind == Kind::Cdf;
            let of_x = std::iter::once(&plot.x).filter(|_| !distribution);
            for axis in of_x.chain(&plot.series).chain(&plot.panel) {
                self.check_axis(axis).map_err(wrong)?;
            }
            let given = !plot.x.is_empty() || !plot.quantity.list().is_empty();
            if distribution
                && (given || plot.reference.is_some() || plot.x_scale.is_some() || plot.y_scale.is_some())
            {
                let why =
                    "cdf draws latencies by their share: leave out `x`, `quantity`, `reference` and scales";
                return Err(wrong(why.to_owned()));
            }
            if !distribution && plot.quantity.list().is_empty() {
                return Err(wrong("no quantity".to_owned()));
            }
            if matches!(plot.y_scale, Some(Scale::Category | Scale::Log2)) {
                return Err(wrong("`y-scale` should be linear or log10".to_owned()));
            }
            if plot.kind == Kind::Bars && plot.y_scale == Some(Scale::Log10) {
                // The length of a bar shows its value only from a zero baseline.
                return Err(wrong("bars begin at zero, which log10 has not".to_owned()));
            }
        }
        for plot in &self.plot {
            self.check_reference(plot).map_err(|why| format!("plot `{}`: {why}", plot.name))?;
        }
        for table in &self.table {
            let wrong = |why: String| format!("table \"{}\": {why}", table.title);
            self.check_selection(&table.at).map_err(wrong)?;
            for axis in table.rows.iter().chain(&table.columns) {
                self.check_axis(axis).map_err(wrong)?;
            }
            if table.quantity.list().is_empty() {
                return Err(wrong("no quantity".to_owned()));
            }
        }
        Ok(())
    }

    fn check_reference(&self, plot: &Plot) -> Result<(), String> {
        let Some(title) = &plot.reference else { return Ok(()) };
        let reference =
            self.reference_of(plot).ok_or_else(|| format!("there is no reference \"{title}\""))?;
        let needed = [("x", &reference.x, true), ("panel", &reference.panel, plot.panel.is_some())];
        for (what, column, needed) in needed {
            match column {
                None if needed => return Err(format!("reference \"{title}\" says no column `{what}`")),
                Some(column) if !reference.columns.contains(column) => {
                    return Err(format!("reference \"{title}\" has no column `{column}`"));
                }
                _ => {}
            }
        }
        Ok(())
    }

    fn check_finding(&self, finding: &Finding) -> Result<(), String> {
        self.check_selection(&finding.of)?;
        self.check_selection(&finding.at)?;
        for (axis, value) in finding.to.iter().chain(&finding.against).flatten() {
            self.check_value(axis, value)?;
        }
        if finding.at_least.is_none() && finding.at_most.is_none() {
            return Err("say `at-least`, `at-most` or both".to_owned());
        }
        if finding.against.is_some() && finding.to.is_none() && finding.to_quantity.is_none() {
            return Err(
                "`against` needs `to`: write the ratio of two selections with `of` and `to`".to_owned()
            );
        }
        Ok(())
    }

    fn check_selection(&self, selection: &Selection) -> Result<(), String> {
        for (axis, choice) in selection {
            match choice {
                Choice::One(value) => self.check_value(axis, value)?,
                Choice::Any(values) => values.iter().try_for_each(|value| self.check_value(axis, value))?,
                Choice::Range(Range { from, to }) => {
                    self.check_axis(axis)?;
                    if from.iter().chain(to).any(|end| end.number().is_none())
                        || (from.is_none() && to.is_none())
                    {
                        return Err(format!("`{axis}`: a range goes from a number to a number"));
                    }
                }
            }
        }
        Ok(())
    }

    fn check_axis(&self, name: &str) -> Result<&Axis, String> {
        self.axis(name).ok_or_else(|| format!("there is no axis `{name}`"))
    }

    fn check_value(&self, name: &str, value: &Value) -> Result<(), String> {
        let axis = self.check_axis(name)?;
        if axis.every_value().any(|known| known.same(value)) {
            return Ok(());
        }
        Err(format!("axis `{name}` has no value {value}"))
    }
}

fn is_name(what: &str, name: &str) -> Result<(), String> {
    let good = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
    if name.is_empty() || name.len() > 64 || name.starts_with('-') || !name.chars().all(good) {
        return Err(format!("`{what}` should be of lower-case letters, digits and hyphens, not {name:?}"));
    }
    Ok(())
}
