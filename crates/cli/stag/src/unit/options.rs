//! The options of a logical unit: one name and one grammar each, the same on the command line and
//! in a file.

use std::path::PathBuf;

use backing::engine::Engine;
use backing::spec::CacheMode;

use super::limits::Limits;
use crate::config::settings::{
    Applies, Cell, Group, Media, Setting, bytes, number, printable, settings, size, sizes, text, words,
    yes_no,
};
use crate::config::value::{Misfit, Value, word_values};
use crate::config::words::{CACHES, ENGINES, IDENTITIES};
use crate::identity::Choice;
use crate::suggest;

/// The one format that is served.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Raw;

/// An NAA designator (VPD page 83h): 8 bytes, or 16 if they begin with 6.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Naa(pub Vec<u8>);

word_values! {
    Raw as FORMATS {
        "raw" = Raw, "the bytes are the disk, whatever they look like";
    }
}

impl Value for Naa {
    fn parse(text: &str, setting: &Setting) -> Result<Self, Misfit> {
        Self::new(text).ok_or_else(|| Misfit::new(setting, text))
    }

    fn show(&self) -> Option<String> {
        Some(self.0.iter().map(|byte| format!("{byte:02x}")).collect())
    }
}

const SOME: Setting = size(1, u64::MAX).hint("write a size such as 10G");

settings! {
    /// The options of a unit, on the command line after its path with commas:
    /// `PATH,option=value,flag`.
    pub struct Options in "options of a unit", AtOnce {
        /// Make the file this long, sparse, if it is missing or empty. One that exists must have
        /// this size.
        "size" size: Option<u64> = None, size(0, u64::MAX).otherwise("what the medium has");
        /// Logical block size, bytes.
        "bs" bs: Option<u32> = None, sizes(&[512, 4096]).otherwise("512");
        /// A physical block is 2^pbe logical blocks (SBC-3 §5.16.2).
        "pbe" pbe: Option<u8> = None,
            number(0, 15).otherwise("what the medium has")
                .hint("write 0 to 15: a physical block is 2^pbe logical blocks, so bs=512,pbe=3 is 512e");
        /// Refuse writes.
        "ro" ro: Option<bool> = None, yes_no().otherwise("no");
        /// The medium can be ejected (RMB=1).
        "removable" removable: Option<bool> = None, yes_no().otherwise("no");
        /// UNMAP and WRITE SAME give space back to the medium (LBPME=1).
        "thin" thin: Option<bool> = None, yes_no().otherwise("no");
        /// When written data reaches the medium.
        "cache" cache: Option<CacheMode> = None, words(CACHES).otherwise("as the medium suggests");
        /// By which calls a file or block device is read and written.
        "engine" engine: Option<Engine> = None, words(ENGINES).otherwise("as `cache` suggests");
        /// Unit serial number (VPD page 80h).
        "serial" serial: Option<String> = None, printable(64).otherwise("the unit's own").of(Media::All);
        /// T10 VENDOR IDENTIFICATION.
        "vendor" vendor: Option<String> = None, printable(8).otherwise("STAG").of(Media::All);
        /// PRODUCT IDENTIFICATION.
        "product" product: Option<String> = None, printable(16).otherwise("Disk, or OSD for objects").of(Media::All);
        /// PRODUCT REVISION LEVEL.
        "revision" revision: Option<String> = None, printable(4).otherwise("0.1").of(Media::All);
        /// Worldwide name (NAA designator, VPD page 83h).
        "naa" naa: Option<Naa> = None,
            text("16 hexadecimal digits, or 32 that begin with 6").otherwise("the unit's own").of(Media::All)
                .hint("write 16 hexadecimal digits that begin with 2, 3 or 5, or 32 that begin with 6");
        /// Whose serial number and worldwide name it has, where they are not given.
        "identity" identity: Option<Choice> = None, words(IDENTITIES).otherwise("as of its target").of(Media::All);
        /// Serve a file or device as it is, even if it looks like an image of another format
        /// (qcow2, VMDK, VHDX, VHD, VDI).
        "format" format: Option<Raw> = None, words(FORMATS).otherwise("images are refused").hint("write raw: other formats are not read");
        /// Take all memory, or all blocks of a file, before the unit is served.
        "prefault" prefault: Option<bool> = None, yes_no().otherwise("no");
        /// The file that keeps persistent reservations over a power loss.
        "aptpl" aptpl: Option<PathBuf> = None,
            text("a path").otherwise("beside a file, else in the state directory")
                .hint("write the path of the file that keeps persistent reservations");
        /// As which client of Ceph an RBD image is opened, without `client.`.
        "ceph-user" ceph_user: Option<String> = None, printable(64).otherwise("admin");
        /// The cluster's configuration file, for an RBD image.
        "ceph-conf" ceph_conf: Option<PathBuf> = None,
            text("a path").otherwise("$CEPH_CONF, else /etc/ceph/ceph.conf")
                .hint("write the path of the cluster's ceph.conf");
        /// The file that has the passphrase of an RBD image that is encrypted with LUKS.
        "luks-key-file" luks_key_file: Option<PathBuf> = None,
            text("a path").otherwise("not encrypted").hint("write the path of a file that only the daemon reads");
        /// As which user this host logs in to the target of an `iscsi://` or `iser://` unit (CHAP).
        "far-user" far_user: Option<String> = None, printable(223).otherwise("no CHAP");
        /// The file that has this user's secret.
        "far-secret-file" far_secret_file: Option<PathBuf> = None,
            text("a path").otherwise("no CHAP").hint("write the path of a file that only the daemon reads");
        /// The initiator's name towards that target. Two hosts with one name end each other's
        /// sessions.
        "far-initiator" far_initiator: Option<String> = None,
            printable(223).otherwise("of /etc/iscsi/initiatorname.iscsi if readable, else the machine's");
        /// How long an operation may wait for the cluster, server or target of a unit behind a
        /// network.
        "op-timeout" op_timeout_s: Option<u32> = None, number(1, 600).unit("s").otherwise("30");
        /// Whether all gateways of the group serve an RBD image as one unit.
        "shared" shared: Option<bool> = None, yes_no().otherwise("yes, of an image that is written, in a group of gateways");
        /// The most bytes a second that SANITIZE writes.
        "sanitize-rate" sanitize_rate: Option<u64> = None,
            size(1, u64::MAX).otherwise("no limit").hint("write how many bytes a second, as in 100M");
        /// The most memory that a thin unit in memory takes. A write that needs more fails.
        "quota" quota: Option<u64> = None, SOME.otherwise("all of its size");
        /// Initiators are warned when so much of a thin unit is allocated.
        "warn-used" warn_used: Option<u64> = None, SOME.otherwise("never");
        /// Initiators are warned when no more than this can still be allocated of a thin unit.
        "warn-available" warn_available: Option<u64> = None, SOME.otherwise("never");
        /// The most that objects take.
        "capacity" capacity: Option<u64> = None, SOME.otherwise("all that the file system has").of(Media::Objects);
        /// Count how long its commands spend in each stage, for the metrics of each unit. At most
        /// 32 units have it.
        "stages" stages: Option<bool> = None, yes_no().otherwise("no, of each target only").of(Media::All);
        /// The OSD name, which clients see (root information attribute 9).
        "name" name: Option<String> = None, bytes(1, 255, "text").otherwise("none").of(Media::Objects);
    }
    parts {
        /// What the unit serves at most.
        limits: Limits,
    }
}

/// All options, those of service last.
pub fn all() -> impl Iterator<Item = &'static Setting> {
    Options::SETTINGS.iter().chain(Limits::SETTINGS)
}

/// The names of the options of objects.
pub fn of_objects() -> impl Iterator<Item = &'static str> {
    all().filter(|setting| setting.media != Media::Disks).map(|setting| setting.name)
}

/// The reason why an option was refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum OptionError {
    /// No option has that name.
    #[error("there is no option `{name}`")]
    Unknown {
        /// The unknown name.
        name: String,
        /// Advice: a similar name, or all names.
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
        /// The value given.
        value: String,
        /// The advice: text to write instead.
        instead: String,
    },
}

impl OptionError {
    /// The advice: text to write instead.
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

    /// The options that were given.
    pub fn given(&self) -> Vec<&'static Setting> {
        let cells = self.cells().into_iter().chain(self.limits.cells());
        all().zip(cells).filter(|(_, cell)| cell.show().is_some()).map(|(setting, _)| setting).collect()
    }

    /// Sets the option called `name` from its text. An empty `value` says yes to an option that is
    /// yes or no.
    ///
    /// # Errors
    /// [`OptionError`], with advice.
    pub fn set(&mut self, name: &str, value: &str) -> Result<(), OptionError> {
        let done = set(self, name, value).or_else(|| set(&mut self.limits, name, value));
        done.unwrap_or_else(|| {
            let names = || all().map(|setting| setting.name);
            let instead = match suggest::nearest(name, names()) {
                _ if name == "read-only" || name == "readonly" => "did you mean `ro`?".to_owned(),
                Some(near) => format!("did you mean `{near}`?"),
                None => format!("there are {}", suggest::list(names())),
            };
            Err(OptionError::Unknown { name: name.to_owned(), instead })
        })
    }
}

/// Sets the option of `group` that is called `name`, which is said once; `None` if there is none.
pub fn set<G: Group>(group: &mut G, name: &str, value: &str) -> Option<Result<(), OptionError>> {
    let mut all = G::SETTINGS.iter().zip(group.cells_mut());
    let (setting, cell) = all.find(|(setting, _)| setting.name == name)?;
    let name = setting.name;
    if cell.show().is_some() {
        return Some(Err(OptionError::Twice(name)));
    }
    Some(cell.set(setting, value).map_err(|misfit| OptionError::Value {
        name,
        value: value.to_owned(),
        instead: misfit.what.unwrap_or(misfit.instead),
    }))
}

impl Naa {
    /// From digits; the first one determines how many there must be (SPC-4 §7.8.6.6).
    pub fn new(value: &str) -> Option<Self> {
        let digits = value.strip_prefix("naa.").or_else(|| value.strip_prefix("0x")).unwrap_or(value);
        if !digits.bytes().all(|digit| digit.is_ascii_hexdigit()) {
            return None;
        }
        match (digits.len(), digits.bytes().next()?) {
            (16, b'2' | b'3' | b'5') => {
                Some(Self(u64::from_str_radix(digits, 16).ok()?.to_be_bytes().into()))
            }
            (32, b'6') => Some(Self(u128::from_str_radix(digits, 16).ok()?.to_be_bytes().into())),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::settings::Form;

    #[test]
    fn every_name_can_be_set_once_and_only_once() {
        for setting in all() {
            let value = match (setting.name, setting.form) {
                ("naa", _) => "naa.6000000000000000000000000000000A",
                (_, Form::Words(words)) => words[0].0,
                (_, Form::Size(..)) => "1G",
                (_, Form::Sizes(_)) => "4k",
                (_, Form::YesNo) => "no",
                _ => "3",
            };
            let (name, mut options) = (setting.name, Options::default());
            assert_eq!(options.set(name, value), Ok(()), "{name}={value}");
            assert_ne!(options, Options::default(), "{name} changes nothing");
            assert_eq!(options.given().iter().map(|setting| setting.name).collect::<Vec<_>>(), [name]);
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
            ("identity", "mine"),
            ("format", "qcow2"),
            ("prefault", "later"),
            ("aptpl", ""),
            ("ceph-user", ""),
            ("ceph-conf", ""),
            ("luks-key-file", ""),
            ("far-user", ""),
            ("far-secret-file", ""),
            ("far-initiator", ""),
            ("op-timeout", "0"),
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
