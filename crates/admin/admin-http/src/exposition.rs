//! Metrics as text: Prometheus's format 0.0.4, and OpenMetrics 1.0.0. A [`Family`] describes a
//! metric; [`Text`] writes families one after the other.

use std::fmt::Write;

/// Format of the metrics.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// Prometheus's text format, version 0.0.4.
    Prometheus = 0,
    /// OpenMetrics 1.0.0.
    OpenMetrics = 1,
}

impl Format {
    /// Its media type.
    pub const fn content_type(self) -> &'static str {
        match self {
            Self::Prometheus => "text/plain; version=0.0.4; charset=utf-8",
            Self::OpenMetrics => "application/openmetrics-text; version=1.0.0; charset=utf-8",
        }
    }
}

/// Kinds of metrics.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// It only grows; its name ends with `_total`.
    Counter,
    /// It goes up and down.
    Gauge,
    /// Number of observations by size.
    Histogram,
    /// Words in labels, with the value 1; its name ends with `_info`.
    Info,
}

impl Kind {
    /// Its name in both formats.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Counter => "counter",
            Self::Gauge => "gauge",
            Self::Histogram => "histogram",
            Self::Info => "info",
        }
    }
}

/// Metrics of one name.
#[derive(Clone, Copy, Debug)]
pub struct Family {
    /// Its name, with the ending of its kind.
    pub name: &'static str,
    /// Its kind.
    pub kind: Kind,
    /// The names of its labels.
    pub labels: &'static [&'static str],
    /// Its meaning, in one sentence.
    pub help: &'static str,
}

impl Family {
    /// Its unit, which is the end of its name.
    pub fn unit(&self) -> Option<&'static str> {
        let name = self.name.strip_suffix("_total").unwrap_or(self.name);
        ["seconds", "bytes"].into_iter().find(|unit| name.ends_with(unit))
    }

    /// Its name in OpenMetrics, where samples have the endings.
    fn base(&self) -> &'static str {
        match self.kind {
            Kind::Counter => self.name.strip_suffix("_total").unwrap_or(self.name),
            Kind::Info => self.name.strip_suffix("_info").unwrap_or(self.name),
            Kind::Gauge | Kind::Histogram => self.name,
        }
    }
}

/// A value of a metric. Whole numbers keep all of their 64 bits.
#[derive(Clone, Copy, Debug)]
pub enum Number {
    /// A whole number.
    Whole(u64),
    /// Any other.
    Real(f64),
}

impl From<u64> for Number {
    fn from(number: u64) -> Self {
        Self::Whole(number)
    }
}

impl From<usize> for Number {
    fn from(number: usize) -> Self {
        Self::Whole(number as u64)
    }
}

impl From<bool> for Number {
    fn from(yes: bool) -> Self {
        Self::Whole(yes.into())
    }
}

impl From<f64> for Number {
    fn from(number: f64) -> Self {
        Self::Real(number)
    }
}

/// Families as text.
pub struct Text {
    out: String,
    format: Format,
    series: usize,
}

impl Text {
    /// An empty one.
    pub fn new(format: Format) -> Self {
        Self { out: String::new(), format, series: 0 }
    }

    /// Lines that have been written, without those of help.
    pub fn series(&self) -> usize {
        self.series
    }

    /// Begins a family of metrics.
    pub fn family<'a>(&'a mut self, family: &'a Family) -> Rows<'a> {
        Rows { text: self, family, begun: false }
    }

    /// All of it.
    pub fn finish(mut self) -> String {
        if self.format == Format::OpenMetrics {
            self.out.push_str("# EOF\n");
        }
        self.out
    }

    fn head(&mut self, family: &Family) {
        let (name, kind) = match self.format {
            Format::OpenMetrics => (family.base(), family.kind.name()),
            Format::Prometheus if family.kind == Kind::Info => (family.name, "gauge"),
            Format::Prometheus => (family.name, family.kind.name()),
        };
        let _ = writeln!(self.out, "# HELP {name} {}", family.help);
        let _ = writeln!(self.out, "# TYPE {name} {kind}");
        if let (Format::OpenMetrics, Some(unit)) = (self.format, family.unit()) {
            let _ = writeln!(self.out, "# UNIT {name} {unit}");
        }
    }

    fn line(&mut self, name: &str, ending: &str, labels: &Labels<'_>, bound: Option<&str>, value: Number) {
        self.series += 1;
        self.out.push_str(name);
        self.out.push_str(ending);
        let mut before = '{';
        for (label, value) in labels.names.iter().zip(labels.values) {
            // An empty label is no label.
            if value.is_empty() {
                continue;
            }
            self.out.push(before);
            self.out.push_str(label);
            self.out.push_str("=\"");
            escape(&mut self.out, value);
            self.out.push('"');
            before = ',';
        }
        if let Some(bound) = bound {
            let _ = write!(self.out, "{before}le=\"{bound}\"");
            before = ',';
        }
        if before == ',' {
            self.out.push('}');
        }
        let _ = match value {
            Number::Whole(number) => writeln!(self.out, " {number}"),
            Number::Real(number) if number.is_finite() => writeln!(self.out, " {number}"),
            Number::Real(number) if number.is_nan() => writeln!(self.out, " NaN"),
            Number::Real(number) => writeln!(self.out, " {}Inf", if number > 0.0 { '+' } else { '-' }),
        };
    }
}

struct Labels<'a> {
    names: &'a [&'a str],
    values: &'a [&'a str],
}

/// The rows of a family. Without any row, the family is not written.
pub struct Rows<'a> {
    text: &'a mut Text,
    family: &'a Family,
    begun: bool,
}

impl Rows<'_> {
    /// Writes a value, with the values of the family's labels in their order.
    pub fn row(&mut self, labels: &[&str], value: impl Into<Number>) {
        self.begin();
        let labels = Labels { names: self.family.labels, values: labels };
        self.text.line(self.family.name, "", &labels, None, value.into());
    }

    /// Writes a histogram: how many observations were no larger than each of `bounds`, how many
    /// there were in all, and their sum.
    pub fn histogram<'b>(
        &mut self,
        labels: &[&str],
        bounds: impl Iterator<Item = (&'b str, u64)>,
        count: u64,
        sum: f64,
    ) {
        self.begin();
        let (name, labels) = (self.family.name, Labels { names: self.family.labels, values: labels });
        for (bound, so_far) in bounds {
            self.text.line(name, "_bucket", &labels, Some(bound), so_far.into());
        }
        self.text.line(name, "_bucket", &labels, Some("+Inf"), count.into());
        self.text.line(name, "_sum", &labels, None, sum.into());
        self.text.line(name, "_count", &labels, None, count.into());
    }

    fn begin(&mut self) {
        if !std::mem::replace(&mut self.begun, true) {
            self.text.head(self.family);
        }
    }
}

/// Writes a label's value with its delimiters escaped.
fn escape(out: &mut String, value: &str) {
    for c in value.chars() {
        match c {
            '\\' => out.push_str("\\\\"),
            '"' => out.push_str("\\\""),
            '\n' => out.push_str("\\n"),
            c => out.push(c),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const COUNTER: Family = Family {
        name: "stag_read_bytes_total",
        kind: Kind::Counter,
        labels: &["unit", "core"],
        help: "Bytes.",
    };
    const INFO: Family =
        Family { name: "stag_build_info", kind: Kind::Info, labels: &["version"], help: "The build." };
    const HISTOGRAM: Family =
        Family { name: "stag_wait_seconds", kind: Kind::Histogram, labels: &[], help: "Waits." };

    fn written(format: Format) -> String {
        let mut text = Text::new(format);
        let mut rows = text.family(&COUNTER);
        rows.row(&["a\"\\\nb", "0"], u64::MAX);
        rows.row(&["", ""], 0.5);
        text.family(&INFO).row(&["0.1"], 1_u64);
        text.family(&HISTOGRAM).histogram(&[], [("0.5", 1), ("1.5", 3)].into_iter(), 4, 9.25);
        let _ = text.family(&COUNTER);
        assert_eq!(text.series(), 8);
        text.finish()
    }

    #[test]
    fn both_formats_are_written_as_their_specifications_say() {
        let samples = [
            "stag_read_bytes_total{unit=\"a\\\"\\\\\\nb\",core=\"0\"} 18446744073709551615\nstag_read_bytes_total 0.5\n",
            "stag_build_info{version=\"0.1\"} 1\n",
            "stag_wait_seconds_bucket{le=\"0.5\"} 1\nstag_wait_seconds_bucket{le=\"1.5\"} 3\n\
             stag_wait_seconds_bucket{le=\"+Inf\"} 4\nstag_wait_seconds_sum 9.25\nstag_wait_seconds_count 4\n",
        ];
        let [counter, info, histogram] = samples;
        assert_eq!(
            written(Format::Prometheus),
            format!(
                "# HELP stag_read_bytes_total Bytes.\n# TYPE stag_read_bytes_total counter\n{counter}\
                 # HELP stag_build_info The build.\n# TYPE stag_build_info gauge\n{info}\
                 # HELP stag_wait_seconds Waits.\n# TYPE stag_wait_seconds histogram\n{histogram}"
            )
        );
        assert_eq!(
            written(Format::OpenMetrics),
            format!(
                "# HELP stag_read_bytes Bytes.\n# TYPE stag_read_bytes counter\n# UNIT stag_read_bytes bytes\n{counter}\
                 # HELP stag_build The build.\n# TYPE stag_build info\n{info}\
                 # HELP stag_wait_seconds Waits.\n# TYPE stag_wait_seconds histogram\n# UNIT stag_wait_seconds seconds\n\
                 {histogram}# EOF\n"
            )
        );
    }

    #[test]
    fn numbers_that_are_none_have_their_names() {
        let mut text = Text::new(Format::Prometheus);
        let mut rows = text.family(&HISTOGRAM);
        [f64::NAN, f64::INFINITY, f64::NEG_INFINITY].into_iter().for_each(|number| rows.row(&[], number));
        let text = text.finish();
        let values: Vec<_> =
            text.lines().filter_map(|line| line.strip_prefix("stag_wait_seconds ")).collect();
        assert_eq!(values, ["NaN", "+Inf", "-Inf"]);
    }
}
