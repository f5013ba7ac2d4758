//! Limits of service of a unit or of an initiator: their names and grammar, the same for both.

use std::time::Duration;

use backing::size::{Size, parse_size};
use target::config::{DEFAULT_BURST, MAX_BURST, QosLimits, Rates};

use super::options::OptionError;

/// The names of the limits.
pub const NAMES: [&str; 7] =
    ["iops", "read-iops", "write-iops", "bandwidth", "read-bandwidth", "write-bandwidth", "burst"];

/// What was said of limits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Limits {
    /// `iops`, `read-iops`, `write-iops`: commands that move blocks, a second.
    pub iops: Rates,
    /// `bandwidth`, `read-bandwidth`, `write-bandwidth`: bytes a second.
    pub bandwidth: Rates,
    /// `burst`: how much may be saved up, as the time that it stands for.
    pub burst: Option<Duration>,
}

impl Limits {
    /// Sets the limit called `name`, one of [`NAMES`], from its text.
    ///
    /// # Errors
    /// [`OptionError`], which says what to write instead.
    pub fn set(&mut self, name: &'static str, value: &str) -> Result<(), OptionError> {
        let fit =
            |instead: &str| OptionError::Value { name, value: value.to_owned(), instead: instead.to_owned() };
        if name == "burst" {
            let burst = seconds(value).filter(|burst| *burst <= MAX_BURST);
            let burst = burst.ok_or_else(|| fit("write seconds, 0 to 3600, as in 0.5"))?;
            return super::options::once(name, &mut self.burst, burst);
        }
        let (rates, parsed) = match name.ends_with("bandwidth") {
            true => (&mut self.bandwidth, parse_size(value).ok()),
            false => (&mut self.iops, value.parse().ok()),
        };
        let instead = match name.ends_with("bandwidth") {
            true => "write bytes a second, as in 100M",
            false => "write how many a second, as in 1000",
        };
        let slot = match name.split_once('-') {
            Some(("read", _)) => &mut rates.read,
            Some(_) => &mut rates.write,
            None => &mut rates.total,
        };
        super::options::once(name, slot, parsed.filter(|rate| *rate > 0).ok_or_else(|| fit(instead))?)
    }

    /// As the server takes them.
    pub fn qos(&self) -> QosLimits {
        QosLimits { iops: self.iops, bandwidth: self.bandwidth, burst: self.burst.unwrap_or(DEFAULT_BURST) }
    }

    /// In words; nothing if there are none.
    pub fn describe(&self) -> Vec<String> {
        let words = |what: &str, rates: Rates, show: &dyn Fn(u64) -> String| {
            let parts = [("", rates.total), ("read ", rates.read), ("write ", rates.write)];
            parts
                .into_iter()
                .filter_map(|(kind, rate)| Some(format!("{} {kind}{what}", show(rate?))))
                .collect::<Vec<_>>()
        };
        let mut all = words("IOPS", self.iops, &|rate| rate.to_string());
        all.extend(words("bytes/s", self.bandwidth, &|rate| Size(rate).to_string()));
        all.iter_mut().for_each(|word| word.insert_str(0, "at most "));
        all
    }
}

/// Seconds, with or without a fraction of up to nine digits.
fn seconds(value: &str) -> Option<Duration> {
    let (whole, fraction) = value.split_once('.').unwrap_or((value, "0"));
    let digits = |text: &str, most: usize| {
        (1..=most).contains(&text.len()) && text.bytes().all(|digit| digit.is_ascii_digit())
    };
    if !digits(whole, 6) || !digits(fraction, 9) {
        return None;
    }
    let nanos = format!("{fraction:0<9}").parse().ok()?;
    Some(Duration::new(whole.parse().ok()?, nanos))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_limit_is_set_once_and_means_what_it_says() {
        let mut limits = Limits::default();
        for (name, value) in NAMES.into_iter().zip(["900", "800", "700", "6M", "5M", "4M", "0.25"]) {
            assert_eq!(limits.set(name, value), Ok(()), "{name}");
            assert_eq!(limits.set(name, value), Err(OptionError::Twice(name)));
        }
        let qos = limits.qos();
        assert_eq!(qos.iops, Rates { total: Some(900), read: Some(800), write: Some(700) });
        assert_eq!(qos.bandwidth, Rates { total: Some(6 << 20), read: Some(5 << 20), write: Some(4 << 20) });
        assert_eq!(qos.burst, Duration::from_millis(250));
        assert_eq!(limits.describe()[4], "at most 5M read bytes/s");
    }

    #[test]
    fn what_is_no_limit_is_refused() {
        for (name, value) in [
            ("iops", "0"),
            ("iops", "many"),
            ("iops", "1.5"),
            ("bandwidth", "0"),
            ("write-bandwidth", "fast"),
            ("burst", "-1"),
            ("burst", "3601"),
            ("burst", "1."),
            ("burst", "1.0000000001"),
            ("burst", "99999999"),
        ] {
            assert!(Limits::default().set(name, value).is_err(), "{name}={value}");
        }
        assert_eq!(seconds("3600"), Some(MAX_BURST));
        assert_eq!(seconds("0.000000001"), Some(Duration::from_nanos(1)));
    }
}
