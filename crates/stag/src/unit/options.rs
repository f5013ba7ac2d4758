//! The options of a logical unit: one name and one grammar each, the same on the command line and in a file.

use std::path::PathBuf;

use backing::engine::Engine;
use backing::size::parse_size;
use backing::spec::{CacheMode, engine_names};

use super::limits::{self, Limits};
use crate::suggest;

/// The options that a unit can have.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Options {
    /// `size`: make the file this long (sparse) if it is not there; bytes.
    pub size: Option<u64>,
    /// `bs`: logical block size in bytes, 512 or 4096.
    pub bs: Option<u32>,
    /// `pbe`: physical block exponent: a physical block is 2^pbe logical ones (SBC-3 §5.16.2), 0 to 15.
    pub pbe: Option<u8>,
    /// `ro`: the unit refuses writes.
    pub ro: Option<bool>,
    /// `removable`: the medium can be ejected (RMB=1).
    pub removable: Option<bool>,
    /// `thin`: unmapped blocks are given back to the medium (LBPME=1).
    pub thin: Option<bool>,
    /// `cache`: when written data reaches the medium.
    pub cache: Option<CacheMode>,
    /// `engine`: by which calls a file or block device is read and written.
    pub engine: Option<Engine>,
    /// `serial`: the unit serial number (VPD page 80h), 1 to 64 printable ASCII characters.
    pub serial: Option<String>,
    /// `vendor`: T10 VENDOR IDENTIFICATION, at most 8 printable ASCII characters.
    pub vendor: Option<String>,
    /// `product`: PRODUCT IDENTIFICATION, at most 16 printable ASCII characters.
    pub product: Option<String>,
    /// `revision`: PRODUCT REVISION LEVEL, at most 4 printable ASCII characters.
    pub revision: Option<String>,
    /// `naa`: the NAA designator (VPD page 83h): 8 bytes, or 16 if they begin with 6.
    pub naa: Option<Vec<u8>>,
    /// `aptpl`: the file that keeps persistent reservations over a power loss.
    pub aptpl: Option<PathBuf>,
    /// `sanitize-rate`: the most that SANITIZE writes, bytes a second.
    pub sanitize_rate: Option<u64>,
    /// `iops` and its like: what the unit serves at most.
    pub limits: Limits,
    /// `quota`: the most memory that a thin unit in memory takes, bytes.
    pub quota: Option<u64>,
    /// `warn-used`: initiators are warned when so many bytes of a thin unit are allocated.
    pub warn_used: Option<u64>,
    /// `warn-available`: initiators are warned when no more bytes than these can be allocated.
    pub warn_available: Option<u64>,
    /// `capacity`: the most that objects take, bytes.
    pub capacity: Option<u64>,
    /// `name`: the OSD name (root information attribute 9), at most 255 bytes.
    pub name: Option<String>,
}

/// The options of objects.
pub const OF_OBJECTS: [&str; 14] = [
    "capacity",
    "name",
    "serial",
    "vendor",
    "product",
    "revision",
    "naa",
    "iops",
    "read-iops",
    "write-iops",
    "bandwidth",
    "read-bandwidth",
    "write-bandwidth",
    "burst",
];
/// Those that no disk has.
pub const OF_OBJECTS_ALONE: [&str; 2] = ["capacity", "name"];

const MODES: &str = "write writeback, writethrough or direct";
/// Longest serial number, bytes.
const SERIAL: usize = 64;
/// Every option's name.
pub const NAMES: [&str; 27] = [
    "size",
    "bs",
    "pbe",
    "ro",
    "removable",
    "thin",
    "cache",
    "engine",
    "serial",
    "vendor",
    "product",
    "revision",
    "naa",
    "aptpl",
    "sanitize-rate",
    "iops",
    "read-iops",
    "write-iops",
    "bandwidth",
    "read-bandwidth",
    "write-bandwidth",
    "burst",
    "quota",
    "warn-used",
    "warn-available",
    "capacity",
    "name",
];

/// Why an option was not understood.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum OptionError {
    /// No option has that name.
    #[error("there is no option `{name}`")]
    Unknown {
        /// What was written.
        name: String,
        /// What may have been meant, or what there is.
        instead: String,
    },
    /// The option was given before.
    #[error("`{0}` is given twice")]
    Twice(&'static str),
    /// The value does not fit.
    #[error("`{value}` does not fit `{name}`")]
    Value {
        /// The option.
        name: &'static str,
        /// What was written.
        value: String,
        /// What to write.
        instead: String,
    },
}

impl OptionError {
    /// What to write instead.
    pub fn instead(&self) -> &str {
        match self {
            Self::Unknown { instead, .. } | Self::Value { instead, .. } => instead,
            Self::Twice(_) => "leave one of them out",
        }
    }
}

impl Options {
    /// The block size that is in force, in bytes.
    pub fn block_bytes(&self) -> u32 {
        self.bs.unwrap_or(512)
    }

    /// The names of those that were given.
    pub fn given(&self) -> Vec<&'static str> {
        let rate =
            |rates: &target::config::Rates| [rates.total, rates.read, rates.write].map(|rate| rate.is_some());
        let ([iops, read_iops, write_iops], [bandwidth, read_bandwidth, write_bandwidth]) =
            (rate(&self.limits.iops), rate(&self.limits.bandwidth));
        let given = [
            self.size.is_some(),
            self.bs.is_some(),
            self.pbe.is_some(),
            self.ro.is_some(),
            self.removable.is_some(),
            self.thin.is_some(),
            self.cache.is_some(),
            self.engine.is_some(),
            self.serial.is_some(),
            self.vendor.is_some(),
            self.product.is_some(),
            self.revision.is_some(),
            self.naa.is_some(),
            self.aptpl.is_some(),
            self.sanitize_rate.is_some(),
            iops,
            read_iops,
            write_iops,
            bandwidth,
            read_bandwidth,
            write_bandwidth,
            self.limits.burst.is_some(),
            self.quota.is_some(),
            self.warn_used.is_some(),
            self.warn_available.is_some(),
            self.capacity.is_some(),
            self.name.is_some(),
        ];
        NAMES.into_iter().zip(given).filter(|(_, given)| *given).map(|(name, _)| name).collect()
    }

    /// Sets the option called `name` from its text. An empty `value` says yes to an option that is yes or no.
    ///
    /// # Errors
    /// [`OptionError`], which says what to write instead.
    pub fn set(&mut self, name: &str, value: &str) -> Result<(), OptionError> {
        let Some(name) = NAMES.into_iter().find(|known| *known == name) else {
            let instead = match suggest::nearest(name, NAMES) {
                _ if name == "read-only" || name == "readonly" => "did you mean `ro`?".to_owned(),
                Some(near) => format!("did you mean `{near}`?"),
                None => format!("there are {}", suggest::list(NAMES)),
            };
            return Err(OptionError::Unknown { name: name.to_owned(), instead });
        };
        if limits::NAMES.contains(&name) {
            return self.limits.set(name, value);
        }
        let fit = |instead: String| OptionError::Value { name, value: value.to_owned(), instead };
        match name {
            "size" => once(name, &mut self.size, parse_size(value).map_err(|e| fit(e.to_string()))?),
            "bs" => {
                let bytes = parse_size(value).ok().filter(|bytes| matches!(bytes, 512 | 4096));
                once(name, &mut self.bs, bytes.ok_or_else(|| fit("write 512 or 4096".into()))? as u32)
            }
            "pbe" => {
                let exponent = value.parse().ok().filter(|exponent| *exponent <= 15);
                let instead =
                    "write 0 to 15: a physical block is 2^pbe logical blocks, so bs=512,pbe=3 is 512e";
                once(name, &mut self.pbe, exponent.ok_or_else(|| fit(instead.into()))?)
            }
            "ro" => once(name, &mut self.ro, yes_or_no(value).ok_or_else(|| fit("write yes or no".into()))?),
            "removable" => once(
                name,
                &mut self.removable,
                yes_or_no(value).ok_or_else(|| fit("write yes or no".into()))?,
            ),
            "thin" => {
                once(name, &mut self.thin, yes_or_no(value).ok_or_else(|| fit("write yes or no".into()))?)
            }
            "cache" => once(name, &mut self.cache, value.parse().map_err(|_| fit(MODES.into()))?),
            "engine" => {
                let instead = || fit(format!("write {}", engine_names()));
                once(name, &mut self.engine, value.parse().map_err(|_| instead())?)
            }
            "serial" => {
                once(name, &mut self.serial, ascii(value, SERIAL).ok_or_else(|| fit(printable(SERIAL)))?)
            }
            "vendor" => once(name, &mut self.vendor, ascii(value, 8).ok_or_else(|| fit(printable(8)))?),
            "product" => once(name, &mut self.product, ascii(value, 16).ok_or_else(|| fit(printable(16)))?),
            "revision" => once(name, &mut self.revision, ascii(value, 4).ok_or_else(|| fit(printable(4)))?),
            "naa" => once(
                name,
                &mut self.naa,
                naa(value).ok_or_else(|| {
                    fit("write 16 hexadecimal digits that begin with 2, 3 or 5, or 32 that begin with 6"
                        .into())
                })?,
            ),
            "sanitize-rate" => {
                let rate = parse_size(value).map_err(|error| fit(error.to_string()))?;
                if rate == 0 {
                    return Err(fit("write how many bytes a second, as in 100M".into()));
                }
                once(name, &mut self.sanitize_rate, rate)
            }
            "name" => {
                let fits = (1..=255).contains(&value.len());
                let name = fits.then(|| value.to_owned());
                once("name", &mut self.name, name.ok_or_else(|| fit("write 1 to 255 bytes of text".into()))?)
            }
            "quota" | "warn-used" | "warn-available" | "capacity" => {
                let bytes = parse_size(value).map_err(|error| fit(error.to_string()))?;
                if bytes == 0 {
                    return Err(fit("write a size such as 10G".into()));
                }
                let slot = match name {
                    "quota" => &mut self.quota,
                    "warn-used" => &mut self.warn_used,
                    "capacity" => &mut self.capacity,
                    _ => &mut self.warn_available,
                };
                once(name, slot, bytes)
            }
            _ => {
                if value.is_empty() {
                    return Err(fit("write the path of the file that keeps persistent reservations".into()));
                }
                once(name, &mut self.aptpl, value.into())
            }
        }
    }
}

pub(super) fn once<T>(name: &'static str, slot: &mut Option<T>, value: T) -> Result<(), OptionError> {
    match slot.replace(value) {
        None => Ok(()),
        Some(_) => Err(OptionError::Twice(name)),
    }
}

fn yes_or_no(value: &str) -> Option<bool> {
    match value {
        "" | "yes" | "true" | "on" | "1" => Some(true),
        "no" | "false" | "off" | "0" => Some(false),
        _ => None,
    }
}

fn ascii(value: &str, longest: usize) -> Option<String> {
    let fits =
        (1..=longest).contains(&value.len()) && value.bytes().all(|byte| (0x20..=0x7e).contains(&byte));
    fits.then(|| value.to_owned())
}

fn printable(longest: usize) -> String {
    format!("write 1 to {longest} printable ASCII characters")
}

/// An NAA designator (SPC-4 §7.8.6.6): its first digit says how long it is.
fn naa(value: &str) -> Option<Vec<u8>> {
    let digits = value.strip_prefix("naa.").or_else(|| value.strip_prefix("0x")).unwrap_or(value);
    if !digits.bytes().all(|digit| digit.is_ascii_hexdigit()) {
        return None;
    }
    match (digits.len(), digits.bytes().next()?) {
        (16, b'2' | b'3' | b'5') => Some(u64::from_str_radix(digits, 16).ok()?.to_be_bytes().into()),
        (32, b'6') => Some(u128::from_str_radix(digits, 16).ok()?.to_be_bytes().into()),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_name_can_be_set_once_and_only_once() {
        let values = [
            ("size", "1G"),
            ("bs", "4k"),
            ("pbe", "3"),
            ("ro", ""),
            ("removable", "no"),
            ("thin", "yes"),
            ("cache", "direct"),
            ("engine", "threads"),
            ("serial", "A 1"),
            ("vendor", "ACME"),
            ("product", "disk"),
            ("revision", "0001"),
            ("naa", "naa.6000000000000000000000000000000A"),
            ("aptpl", "/x"),
            ("sanitize-rate", "10M"),
            ("iops", "1000"),
            ("read-iops", "1000"),
            ("write-iops", "1000"),
            ("bandwidth", "100M"),
            ("read-bandwidth", "100M"),
            ("write-bandwidth", "100M"),
            ("burst", "0.5"),
            ("quota", "1G"),
            ("warn-used", "1G"),
            ("warn-available", "1G"),
            ("capacity", "1G"),
            ("name", "attic"),
        ];
        assert_eq!(values.map(|(name, _)| name), NAMES);
        for (name, value) in values {
            let mut options = Options::default();
            assert_eq!(options.set(name, value), Ok(()), "{name}={value}");
            assert_ne!(options, Options::default(), "{name} changes nothing");
            assert_eq!(options.given(), [name]);
            assert_eq!(options.set(name, value), Err(OptionError::Twice(name)));
        }
    }

    #[test]
    fn values_that_do_not_fit_say_what_does() {
        let long = "x".repeat(65);
        for (name, value) in [
            ("size", "1GB"),
            ("bs", "520"),
            ("pbe", "16"),
            ("ro", "maybe"),
            ("cache", "none"),
            ("engine", "fast"),
            ("serial", ""),
            ("serial", &long),
            ("vendor", "NINECHARS"),
            ("product", "caf\u{e9}"),
            ("naa", "6000000000000001"),
            ("naa", "\u{e9}\u{e9}"),
            ("naa", "zz00000000000001"),
            ("aptpl", ""),
            ("sanitize-rate", "0"),
            ("quota", "0"),
            ("warn-used", "much"),
            ("capacity", "0"),
            ("name", ""),
        ] {
            let error = Options::default().set(name, value).unwrap_err();
            assert!(matches!(error, OptionError::Value { .. }), "{name}={value}: {error}");
            assert!(!error.instead().is_empty());
        }
    }

    #[test]
    fn unknown_options_name_the_nearest() {
        let instead = |name| Options::default().set(name, "").unwrap_err().instead().to_owned();
        assert_eq!(instead("removeable"), "did you mean `removable`?");
        assert_eq!(instead("readonly"), "did you mean `ro`?");
        assert!(instead("flavour").contains("thin"));
    }
}
