//! Numbers and names in few letters. A number takes six columns at most, an age twelve.

use crate::shown::duration;

/// What a number counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unit {
    /// Commands, calls or bytes a second.
    Rate,
    /// A number of things.
    Whole,
    /// Microseconds.
    Micros,
    /// Seconds since an event.
    Age,
    /// Bytes.
    Size,
    /// A part of 1, in percent.
    Part,
}

impl Unit {
    pub fn show(self, value: f64) -> String {
        match self {
            Self::Rate if value > 0.0 && value < 9.95 => format!("{value:.1}"),
            Self::Rate | Self::Whole => thousands(value),
            Self::Micros => micros(value),
            Self::Age => duration(value),
            Self::Size => size(value),
            Self::Part => format!("{:.0}%", value * 100.0),
        }
    }

    /// A dash for what is not known.
    pub fn show_known(self, value: Option<f64>) -> String {
        value.map_or_else(|| "-".to_owned(), |value| self.show(value))
    }
}

/// Three digits and a point, for a number that has any behind it.
fn digits(value: f64) -> String {
    match value {
        value if value < 9.995 => format!("{value:.2}"),
        value if value < 99.95 => format!("{value:.1}"),
        value => format!("{value:.0}"),
    }
}

fn thousands(value: f64) -> String {
    if value < 9999.5 {
        return format!("{value:.0}");
    }
    let mut value = value / 1e3;
    for unit in ["k", "M", "G", "T"] {
        if value < 999.5 {
            return digits(value) + unit;
        }
        value /= 1e3;
    }
    format!("{value:.0}P")
}

/// As configurations write sizes: a k is 1024.
fn size(value: f64) -> String {
    let mut value = value;
    for unit in ["", "k", "M", "G", "T"] {
        if value < 1023.5 {
            let whole = value.fract() == 0.0;
            return if whole { format!("{value:.0}{unit}") } else { digits(value) + unit };
        }
        value /= 1024.0;
    }
    format!("{value:.0}P")
}

fn micros(value: f64) -> String {
    match value {
        0.0 => "0µs".to_owned(),
        value if value < 999.5 => digits(value) + "µs",
        value if value < 999_500.0 => digits(value / 1e3) + "ms",
        value => digits(value / 1e6) + "s",
    }
}

/// The end of a name tells more than its beginning.
pub fn shortened(name: &str, most: usize) -> String {
    let length = name.chars().count();
    if length <= most {
        return name.to_owned();
    }
    std::iter::once('…').chain(name.chars().skip(length + 1 - most)).take(most).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_take_six_columns_at_most() {
        let rate = |value| Unit::Rate.show(value);
        assert_eq!([0.0, 0.25, 12.4, 9999.4].map(rate), ["0", "0.2", "12", "9999"]);
        assert_eq!([9999.6, 123_456.0, 999_600.0, 1.5e9].map(rate), ["10.0k", "123k", "1.00M", "1.50G"]);
        let time = |value| Unit::Micros.show(value);
        assert_eq!([0.5, 99.96, 999.6, 2.5e6].map(time), ["0.50µs", "100µs", "1.00ms", "2.50s"]);
        let size = |value| Unit::Size.show(value);
        assert_eq!([0.0, 65536.0, 1.5 * 1024.0 * 1024.0, 1023.9].map(size), ["0", "64k", "1.50M", "1.00k"]);
        assert_eq!((Unit::Part.show(0.996), Unit::Whole.show(7.0)), ("100%".into(), "7".into()));
        for power in 0..70 {
            let value = 1.97f64.powi(power);
            for unit in [Unit::Rate, Unit::Whole, Unit::Micros] {
                let shown = unit.show(value.min(9e17));
                assert!(shown.chars().count() <= 6 || (unit == Unit::Micros && value > 9e10), "{shown}");
            }
        }
    }

    #[test]
    fn long_names_keep_their_ends() {
        assert_eq!(shortened("short", 8), "short");
        assert_eq!(shortened("iqn.2026-01.org.example:disks/17", 10), "…:disks/17");
        assert_eq!((shortened("disks", 1), shortened("disks", 0)), ("…".into(), String::new()));
    }
}
