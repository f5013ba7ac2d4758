//! Limits of service of a unit, of an initiator, or of a client of an export: their names and
//! grammar, the same for all.

use std::time::Duration;

use backing::size::Size;
use iscsi_server::config::{DEFAULT_BURST, QosLimits, Rates};

use crate::config::settings::{Applies, Cell, Media, Setting, number, seconds, settings, size};

const EACH: u64 = u64::MAX;
const COUNT: Setting =
    number(1, EACH).otherwise("no limit").of(Media::All).hint("write how many a second, as in 1000");
const BYTES: Setting =
    size(1, EACH).otherwise("no limit").of(Media::All).hint("write bytes a second, as in 100M");

settings! {
    /// Limits of service: of a unit for all initiators together, of an ACL for each initiator that
    /// it lets in, of clients of an export for each of their addresses.
    pub struct Limits in "limits of service", AtOnce {
        /// The most reads and writes a second.
        "iops" iops: Option<u64> = None, COUNT;
        /// The most reads a second.
        "read-iops" read_iops: Option<u64> = None, COUNT;
        /// The most writes a second.
        "write-iops" write_iops: Option<u64> = None, COUNT;
        /// The most bytes a second that reads and writes move.
        "bandwidth" bandwidth: Option<u64> = None, BYTES;
        /// The most bytes a second that reads move.
        "read-bandwidth" read_bandwidth: Option<u64> = None, BYTES;
        /// The most bytes a second that writes move.
        "write-bandwidth" write_bandwidth: Option<u64> = None, BYTES;
        /// How many seconds of a limit may be saved up while it is not used, 0 to 3600.
        "burst" burst: Option<Duration> = None, seconds().otherwise("0.1").of(Media::All);
    }
}

impl Limits {
    /// As the server takes them.
    pub fn qos(&self) -> QosLimits {
        QosLimits {
            iops: Rates { total: self.iops, read: self.read_iops, write: self.write_iops },
            bandwidth: Rates {
                total: self.bandwidth,
                read: self.read_bandwidth,
                write: self.write_bandwidth,
            },
            burst: self.burst.unwrap_or(DEFAULT_BURST),
        }
    }

    /// In words; nothing if there are none.
    pub fn describe(&self) -> Vec<String> {
        let count = |rate: u64| rate.to_string();
        let bytes = |rate: u64| Size(rate).to_string();
        let rates = [
            (self.iops.map(count), "IOPS"),
            (self.read_iops.map(count), "read IOPS"),
            (self.write_iops.map(count), "write IOPS"),
            (self.bandwidth.map(bytes), "bytes/s"),
            (self.read_bandwidth.map(bytes), "read bytes/s"),
            (self.write_bandwidth.map(bytes), "write bytes/s"),
        ];
        let rates = rates.into_iter().filter_map(|(rate, what)| Some(format!("at most {} {what}", rate?)));
        rates.chain(self.burst.map(|burst| format!("burst {} s", burst.as_secs_f64()))).collect()
    }
}

#[cfg(test)]
mod tests {
    use iscsi_server::config::MAX_BURST;

    use super::*;
    use crate::config::settings::Group;
    use crate::unit::options::{OptionError, set};

    #[test]
    fn each_limit_is_set_once_and_means_what_it_says() {
        let mut limits = Limits::default();
        for (setting, value) in Limits::SETTINGS.iter().zip(["900", "800", "700", "6M", "5M", "4M", "0.25"]) {
            let name = setting.name;
            assert_eq!(set(&mut limits, name, value), Some(Ok(())), "{name}");
            assert_eq!(set(&mut limits, name, value), Some(Err(OptionError::Twice(name))));
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
            assert!(set(&mut Limits::default(), name, value).unwrap().is_err(), "{name}={value}");
        }
        for (value, burst) in [("3600", MAX_BURST), ("0.000000001", Duration::from_nanos(1))] {
            let mut limits = Limits::default();
            assert_eq!(set(&mut limits, "burst", value), Some(Ok(())));
            assert_eq!(limits.burst, Some(burst));
        }
    }
}
