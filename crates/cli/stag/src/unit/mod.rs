//! The description of one logical unit, from the command line or a configuration file, as plain
//! data.
//!
//! Owns the options' names, values and contradictions. Must never open anything: that is `serve`'s.

pub(crate) mod limits;
pub(crate) mod options;
mod parse;

use std::borrow::Cow;
use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};

use backing::size::{Size, parse_size};
use backing::spec::CacheMode;
use ceph::{ImageName, NameError};
use iscsi_store::{Transport, Url, UrlError};
use nbd::uri::{Address, Uri, UriError, is_uri};

use crate::config::Gateways;
use crate::config::settings::{Group, Media};

pub use options::{OptionError, Options};
pub use parse::parse;

/// The ceph.conf of images that name none.
const USUAL_CONF: &str = "/etc/ceph/ceph.conf";

/// The smallest capacity of objects, bytes.
const MIN_CAPACITY: u64 = 1 << 20;

/// The medium of a unit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Backing {
    /// In memory, this many bytes; gone when the daemon ends.
    Memory(u64),
    /// In a file or on a block device.
    Path(PathBuf),
    /// An RBD image of a Ceph cluster.
    Rbd(ImageName),
    /// An export of an NBD server.
    Nbd(Uri),
    /// A unit of an iSCSI target.
    Iscsi(Url),
    /// Objects, in a directory: an object-based storage device.
    Objects(PathBuf),
    /// Objects in memory, this many bytes of them; gone when the daemon ends.
    ObjectMemory(u64),
}

impl Backing {
    /// Its path, if it is in a file, on a device or in a directory.
    pub fn path(&self) -> Option<&Path> {
        match self {
            Self::Memory(_) | Self::ObjectMemory(_) | Self::Rbd(_) | Self::Nbd(_) | Self::Iscsi(_) => None,
            Self::Path(path) | Self::Objects(path) => Some(path),
        }
    }

    /// Its address, if it is another server's and has no other name that is kept.
    pub fn address(&self) -> Option<String> {
        matches!(self, Self::Nbd(_) | Self::Iscsi(_)).then(|| self.to_string())
    }

    /// Its name, by which [`UnitSpec::medium`] knows it; `None` in memory.
    pub fn medium(&self) -> Option<Cow<'_, OsStr>> {
        match self {
            Self::Rbd(_) | Self::Nbd(_) | Self::Iscsi(_) => Some(OsString::from(self.to_string()).into()),
            _ => self.path().map(|path| OsStr::new(path).into()),
        }
    }
}

impl std::fmt::Display for Backing {
    /// As it is written.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Memory(bytes) => write!(f, "mem:{}", Size(*bytes)),
            Self::Path(path) => path.display().fmt(f),
            Self::Rbd(name) => write!(f, "rbd:{name}"),
            Self::Nbd(uri) => write!(f, "{uri}"),
            Self::Iscsi(url) => write!(f, "{url}"),
            Self::Objects(path) => write!(f, "osd:{}", path.display()),
            Self::ObjectMemory(bytes) => write!(f, "osd:mem:{}", Size(*bytes)),
        }
    }
}

/// Whether `path` is the URL of a unit of a target.
pub fn is_url(path: &str) -> bool {
    [Transport::Tcp, Transport::Iser].iter().any(|transport| path.starts_with(transport.scheme()))
}

/// The URL of a unit to serve: it names a target, and nothing that is secret or a setting.
fn far_unit(path: &str) -> Result<Url, (String, &'static str)> {
    // An error must not show a secret that stands in the URL.
    let named = "write it as in iscsi://HOST/iqn.2026-01.org.example:disk/0";
    let url: Url =
        path.parse().map_err(|error: UrlError| (format!("the URL names no unit: {error}"), named))?;
    if url.credential.is_some() {
        let what = "a user or secret in a URL is visible to all who see it".to_owned();
        return Err((what, "write far-user and far-secret-file instead"));
    }
    if !url.settings.is_empty() {
        return Err((
            "the URL of a unit to serve has no settings".to_owned(),
            "leave out what follows the ?",
        ));
    }
    match url.target {
        None => Err(("the URL names no target".to_owned(), named)),
        Some(_) => Ok(Url { lun: Some(url.lun.unwrap_or(0)), ..url }),
    }
}

/// A logical unit as configured. An option that is `None` was left to the daemon.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnitSpec {
    pub backing: Backing,
    pub options: Options,
}

/// An option that contradicts another.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{what}")]
pub struct Contradiction {
    /// The option to change.
    pub option: &'static str,
    /// The contradiction.
    pub what: String,
    /// The advice: text to write instead.
    pub instead: String,
}

impl UnitSpec {
    /// Reads `path` (a file's or device's path, `mem:SIZE`, `rbd:POOL/IMAGE`, `nbd://HOST/EXPORT`,
    /// `iscsi://HOST/TARGET/LUN`, `iser://HOST/TARGET/LUN` or `osd:DIR`) and combines it with
    /// `options`.
    ///
    /// # Errors
    /// Every contradiction that can be seen without opening anything.
    pub fn new(path: &str, options: Options) -> Result<Self, Vec<Contradiction>> {
        match path.strip_prefix("osd:") {
            Some(directory) => Self::objects(directory, options),
            None => Self::disk(path, options),
        }
    }

    /// Whether all gateways of a group serve it, if the daemon is in one.
    pub fn may_be_shared(&self) -> bool {
        let Options { ro, shared, .. } = &self.options;
        let is_image = matches!(&self.backing, Backing::Rbd(name) if name.snapshot.is_none());
        is_image && *ro != Some(true) && *shared != Some(false)
    }

    /// The medium that no other unit may write at the same time, as it is written; `None` in memory.
    /// Images of one name are two if their clusters are: `group` has its own for the units of its
    /// gateways.
    pub fn medium(&self, group: Option<&Gateways>) -> Option<Cow<'_, OsStr>> {
        let name = self.backing.medium()?;
        if !matches!(self.backing, Backing::Rbd(_)) {
            return Some(name);
        }
        let group = group.filter(|_| self.may_be_shared());
        let conf = group.map_or(&self.options.ceph_conf, |group| &group.ceph_conf);
        let Some(conf) = conf.as_deref().filter(|conf| *conf != Path::new(USUAL_CONF)) else {
            return Some(name);
        };
        let mut name = name.into_owned();
        name.push(",ceph-conf=");
        name.push(conf);
        Some(name.into())
    }

    /// Whether initiators are told when the unit becomes `now` over the same store. A unit of
    /// objects in a directory tells them only if its names change.
    pub fn is_told_anew(&self, now: &Self) -> bool {
        let called = |unit: &Self| {
            let Options { vendor, product, revision, serial, naa, identity, .. } = unit.options.clone();
            (vendor, product, revision, serial, naa, identity)
        };
        !matches!(now.backing, Backing::Objects(_)) || called(self) != called(now)
    }

    fn objects(directory: &str, options: Options) -> Result<Self, Vec<Contradiction>> {
        let mut found: Vec<Contradiction> = options
            .given()
            .into_iter()
            .filter(|setting| setting.media == Media::Disks)
            .map(|setting| Contradiction {
                option: setting.name,
                what: format!("objects have no {}", setting.name),
                instead: format!(
                    "leave {} out: an osd:DIR takes {}",
                    setting.name,
                    crate::suggest::list(options::of_objects())
                ),
            })
            .collect();
        if directory.is_empty() {
            let instead = "write a directory, as in osd:/var/lib/stag/objects".to_owned();
            found.push(Contradiction { option: "path", what: "the directory is missing".into(), instead });
        }
        if options.capacity.is_some_and(|bytes| bytes < MIN_CAPACITY) {
            found.push(Contradiction {
                option: "capacity",
                what: "that is too little for objects".into(),
                instead: format!("write {} or more", Size(MIN_CAPACITY)),
            });
        }
        let backing = match directory.strip_prefix("mem:").map(parse_size) {
            None => Backing::Objects(directory.into()),
            Some(Ok(bytes)) if bytes >= MIN_CAPACITY => Backing::ObjectMemory(bytes),
            Some(_) => {
                found.push(Contradiction {
                    option: "path",
                    what: format!("`{directory}` is no size of memory for objects"),
                    instead: format!("write {} or more, as in osd:mem:1G", Size(MIN_CAPACITY)),
                });
                Backing::ObjectMemory(0)
            }
        };
        if let (Backing::ObjectMemory(_), Some(_)) = (&backing, options.capacity) {
            found.push(Contradiction {
                option: "capacity",
                what: "memory has its capacity in its path".into(),
                instead: "write osd:mem:SIZE and leave capacity out".into(),
            });
        }
        match found.is_empty() {
            true => Ok(Self { backing, options }),
            false => Err(found),
        }
    }

    fn disk(path: &str, options: Options) -> Result<Self, Vec<Contradiction>> {
        let mut found = Vec::new();
        let mut wrong = |option, what: String, instead: &str| {
            found.push(Contradiction { option, what, instead: instead.to_owned() });
        };
        let (backing, size) = match path.strip_prefix("mem:").map(parse_size) {
            None => match path.strip_prefix("rbd:").map(str::parse) {
                None if is_uri(path) => match path.parse() {
                    Ok(uri) => (Backing::Nbd(uri), None),
                    Err(error) => {
                        let error: UriError = error;
                        wrong("path", format!("`{path}` names no export: {error}"), UriError::INSTEAD);
                        (Backing::Path(path.into()), None)
                    }
                },
                None if is_url(path) => match far_unit(path) {
                    Ok(url) => (Backing::Iscsi(url), None),
                    Err((what, instead)) => {
                        wrong("path", what, instead);
                        (Backing::Path(path.into()), None)
                    }
                },
                None => (Backing::Path(path.into()), options.size),
                Some(Ok(name)) => (Backing::Rbd(name), None),
                Some(Err(error)) => {
                    let error: NameError = error;
                    wrong("path", error.to_string(), NameError::INSTEAD);
                    (Backing::Path(path.into()), None)
                }
            },
            Some(Ok(bytes)) => (Backing::Memory(bytes), Some(bytes)),
            Some(Err(error)) => {
                wrong("path", error.to_string(), "write how large the memory is, as in mem:1G");
                (Backing::Memory(0), None)
            }
        };
        for option in options.given().into_iter().filter(|setting| setting.media == Media::Objects) {
            let what = format!("{} is for objects", option.name);
            wrong(option.name, what, "write osd:DIR as the path, or leave it out");
        }
        let in_memory = matches!(backing, Backing::Memory(_));
        let on_ceph = matches!(backing, Backing::Rbd(_));
        let over_iscsi = matches!(backing, Backing::Iscsi(_));
        let of_server = match &backing {
            Backing::Nbd(_) => Some("an NBD export"),
            Backing::Iscsi(_) => Some("a unit of a target"),
            _ => None,
        };
        let own: [(&str, bool, &str); 5] = [
            ("size", options.size.is_some(), "size: rbd resize changes it"),
            ("cache", options.cache.is_some(), "cache: each write is on all replicas"),
            ("engine", options.engine.is_some(), "engine: librbd reads and writes it"),
            ("format", options.format.is_some(), "format of a file"),
            ("prefault", options.prefault == Some(true), "blocks of a file to take"),
        ];
        for (option, _, what) in own.into_iter().filter(|(_, given, _)| on_ceph && *given) {
            wrong(option, format!("an RBD image has no {what}"), "leave it out");
        }
        let own: [(&str, bool, &str); 5] = [
            ("size", options.size.is_some(), "size: the server says it"),
            ("engine", options.engine.is_some(), "engine: the server reads and writes it"),
            ("format", options.format.is_some(), "format of a file"),
            ("prefault", options.prefault == Some(true), "blocks of a file to take"),
            ("cache", options.cache == Some(CacheMode::Direct), "cache of this host to write past"),
        ];
        for (option, _, what) in own.into_iter().filter(|(_, given, _)| *given) {
            let Some(kind) = of_server else { break };
            wrong(option, format!("{kind} has no {what}"), "leave it out");
        }
        let ceph = (on_ceph, "RBD images", "rbd:POOL/IMAGE");
        let far = (over_iscsi, "units of iSCSI targets", "iscsi://HOST/TARGET/LUN");
        let remote = (
            on_ceph || of_server.is_some(),
            "media of other servers",
            "rbd:POOL/IMAGE, nbd://HOST/EXPORT or iscsi://HOST/TARGET/LUN",
        );
        for (option, given, (fits, what, path)) in [
            ("ceph-user", options.ceph_user.is_some(), ceph),
            ("ceph-conf", options.ceph_conf.is_some(), ceph),
            ("luks-key-file", options.luks_key_file.is_some(), ceph),
            ("far-user", options.far_user.is_some(), far),
            ("far-secret-file", options.far_secret_file.is_some(), far),
            ("far-initiator", options.far_initiator.is_some(), far),
            ("op-timeout", options.op_timeout_s.is_some(), remote),
        ] {
            if given && !fits {
                let instead = format!("write {path} as the path, or leave it out");
                wrong(option, format!("{option} is for {what}"), &instead);
            }
        }
        if options.far_user.is_some() != options.far_secret_file.is_some() {
            let what = "CHAP takes a user and a secret".to_owned();
            wrong("far-user", what, "write far-user and far-secret-file, or neither");
        }
        if let Some(Err(error)) = options.far_initiator.as_deref().map(crate::iqn::check) {
            wrong("far-initiator", error, "write an iSCSI name, as in iqn.2026-01.org.example:stag");
        }
        if let Backing::Nbd(Uri { address: Address::Unix(socket), .. }) = &backing
            && !socket.starts_with('/')
        {
            let what = format!("the path of the socket, `{socket}`, is relative");
            wrong("path", what, "write the whole path, as in nbd+unix:///?socket=/run/nbd.sock");
        }
        if options.shared.is_some() && !on_ceph {
            let instead = "write rbd:POOL/IMAGE as the path, or leave it out";
            wrong("shared", "only RBD images are shared by gateways".into(), instead);
        }
        if options.luks_key_file.is_some() && options.thin == Some(true) {
            let what = "an encrypted image gives no space back".to_owned();
            wrong("thin", what, "leave it out");
        }
        let snapshot = matches!(&backing, Backing::Rbd(ImageName { snapshot: Some(_), .. }));
        if options.shared == Some(true) && on_ceph && (snapshot || options.ro == Some(true)) {
            let what = "gateways share only an image that is written".to_owned();
            wrong("shared", what, "leave shared out: each gateway reads the image by itself");
        }
        if let (Backing::Rbd(ImageName { snapshot: Some(_), .. }), Some(false)) = (&backing, options.ro) {
            wrong("ro", "a snapshot cannot be written".into(), "leave ro out, or serve the image itself");
        }
        if path.is_empty() {
            wrong("path", "the path is empty".into(), "write a file, a block device, or mem:1G");
        }
        if let "mem" | "memory" | "ram" = path {
            let instead = "write mem:SIZE, as in mem:1G; a file of that name is ./mem";
            wrong("path", format!("`{path}` does not say how large the memory is"), instead);
        }
        if path == "osd" {
            let instead = "write osd:DIR, as in osd:/var/lib/stag/objects; a file of that name is ./osd";
            wrong("path", "`osd` does not say where the objects are".into(), instead);
        }
        if options.prefault == Some(true) {
            for (option, given) in [("thin", options.thin), ("ro", options.ro)] {
                if given == Some(true) {
                    let what = format!("prefault takes all room at once, and {option} none");
                    wrong("prefault", what, "leave one of them out");
                }
            }
        }
        let block = u64::from(options.block_bytes());
        if let Some(size) = size {
            let option = if in_memory { "path" } else { "size" };
            if size == 0 {
                wrong(option, "a unit has at least one block".into(), "write a size such as 1G");
            } else if size % block != 0 {
                let instead = format!("write {} instead of {size}", size.next_multiple_of(block));
                wrong(option, format!("{size} bytes are not a multiple of the {block}-byte block"), &instead);
            }
        }
        if in_memory {
            if options.size.is_some() {
                wrong("size", "memory has its size in its path".into(), "write mem:SIZE and leave size out");
            }
            if let Some(cache) = options.cache {
                let what = format!("memory has no cache to be {}", cache);
                wrong("cache", what, "leave cache out");
            }
            if let Some(engine) = options.engine {
                let what = format!("memory is not read and written by {engine}");
                wrong("engine", what, "leave engine out");
            }
            if options.format.is_some() {
                wrong("format", "memory has no format".into(), "leave format out");
            }
        }
        if options.quota.is_some() && !in_memory {
            let what = "a file or device is bounded by what it lies on".to_owned();
            wrong("quota", what, "leave quota out, or put the file where there is less space");
        }
        for (option, given) in [
            ("quota", options.quota),
            ("warn-used", options.warn_used),
            ("warn-available", options.warn_available),
        ] {
            if given.is_some() && options.thin != Some(true) {
                wrong(option, format!("{option} is for thin units"), "write thin too, or leave it out");
            }
        }
        if let (Some(engine), Some(cache)) = (options.engine, options.cache)
            && let Err(instead) = engine.fits(cache)
        {
            wrong("engine", format!("engine={engine} does not go with cache={cache}"), instead);
        }
        if found.is_empty() { Ok(Self { backing, options }) } else { Err(found) }
    }

    /// The unit in words, for `check-config`.
    pub fn describe(&self) -> String {
        let mut words = match &self.backing {
            Backing::Memory(bytes) => vec![format!("memory, {}", Size(*bytes))],
            Backing::Path(path) => vec![path.display().to_string()],
            Backing::Rbd(name) => vec![format!("Ceph's image {name}")],
            Backing::Nbd(uri) => vec![format!("NBD export {uri}")],
            Backing::Iscsi(url) => vec![format!("unit of a target, {url}")],
            Backing::Objects(path) => return self.describe_objects(format!("objects in {}", path.display())),
            Backing::ObjectMemory(bytes) => {
                return self.describe_objects(format!("objects in memory, {}", Size(*bytes)));
            }
        };
        let options = &self.options;
        words.extend(options.size.map(|size| format!("{} (made if missing)", Size(size))));
        words.push(format!("{}-byte blocks", options.block_bytes()));
        words.extend(options.cache.map(|cache| cache.to_string()));
        for (set, name) in
            [(options.ro, "read-only"), (options.removable, "removable"), (options.thin, "thin")]
        {
            words.extend((set == Some(true)).then(|| name.to_owned()));
        }
        words.extend(options.limits.describe());
        self.say_others(words, &["size", "bs", "cache", "ro", "removable", "thin"])
    }

    fn describe_objects(&self, place: String) -> String {
        let options = &self.options;
        let mut words = vec![place];
        words.extend(options.capacity.map(|bytes| format!("at most {}", Size(bytes))));
        words.extend(options.name.as_ref().map(|name| format!("called {name}")));
        words.extend(options.limits.describe());
        self.say_others(words, &["capacity", "name"])
    }

    /// `words`, and each option given whose name is not in `said`.
    fn say_others(&self, mut words: Vec<String>, said: &[&str]) -> String {
        words.extend(self.options.said(said));
        words.join(", ")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wrong(path: &str, options: &[(&str, &str)]) -> Vec<&'static str> {
        let mut set = Options::default();
        for (name, value) in options {
            set.set(name, value).unwrap();
        }
        UnitSpec::new(path, set).unwrap_err().into_iter().map(|found| found.option).collect()
    }

    #[test]
    fn units_of_targets_are_read_without_secrets() {
        let none = Options::default();
        let unit = |path: &str| UnitSpec::new(path, none.clone());
        for (path, shown) in [
            ("iscsi://h/iqn.2026-01.org.example:a", "iscsi://h:3260/iqn.2026-01.org.example:a/0"),
            ("iser://[::1]:99/iqn.2026-01.org.example:a/7", "iser://[::1]:99/iqn.2026-01.org.example:a/7"),
        ] {
            assert_eq!(unit(path).unwrap().backing.to_string(), shown);
        }
        for path in ["iscsi://h", "iscsi://h/iqn.2026-01.org.example:a/0?depth=3"] {
            assert!(unit(path).is_err(), "{path}");
        }
        let wrong = unit("iscsi://me%twelve-letters@h/iqn.2026-01.org.example:a/0").unwrap_err();
        assert_eq!(wrong[0].option, "path");
        assert!(!format!("{wrong:?}").contains("twelve-letters"), "{wrong:?}");
        let url = "iscsi://h/iqn.2026-01.org.example:a/0";
        assert_eq!(self::wrong(url, &[("far-user", "a")]), ["far-user"]);
        assert_eq!(self::wrong(url, &[("far-initiator", "me")]), ["far-initiator"]);
        assert_eq!(self::wrong(url, &[("size", "1G"), ("cache", "direct")]), ["size", "cache"]);
        let far = [("far-user", "a"), ("far-secret-file", "/s"), ("op-timeout", "5")];
        assert_eq!(self::wrong("/x", &far), ["far-user", "far-secret-file", "op-timeout"]);
    }

    #[test]
    fn exports_of_nbd_servers_are_read_and_shown_in_one_form() {
        for (text, shown) in [
            ("nbd://host", "nbd://host/"),
            ("nbd://host:10809/a%2cb", "nbd://host/a%2Cb"),
            ("nbd+unix:///x?socket=/run/s", "nbd+unix:///x?socket=/run/s"),
        ] {
            let unit = UnitSpec::new(text, Options::default()).unwrap();
            assert!(matches!(unit.backing, Backing::Nbd(_)));
            assert_eq!(unit.backing.to_string(), shown);
            assert_eq!(unit.backing.medium(), Some(OsStr::new(shown).into()));
        }
        assert_eq!(wrong("nbds://host/x", &[]), ["path"]);
        assert_eq!(wrong("nbd:///x", &[]), ["path"]);
        assert_eq!(wrong("nbd+unix:///x?socket=run/s", &[]), ["path"]);
        let all = [("size", "1G"), ("engine", "uring"), ("prefault", ""), ("ceph-user", "a")];
        assert_eq!(wrong("nbd://host/x", &all), ["size", "engine", "prefault", "ceph-user"]);
        assert_eq!(wrong("nbd://host/x", &[("cache", "direct")]), ["cache"]);
        let mut options = Options::default();
        options.set("op-timeout", "5").unwrap();
        options.set("cache", "writethrough").unwrap();
        UnitSpec::new("nbd://host/x", options).unwrap();
        assert_eq!(wrong("/x", &[("op-timeout", "5")]), ["op-timeout"]);
    }

    #[test]
    fn contradictions_name_the_option_to_blame() {
        assert_eq!(wrong("mem:1G", &[("size", "1G")]), ["size"]);
        assert_eq!(wrong("/x", &[("quota", "1G"), ("thin", "")]), ["quota"]);
        assert_eq!(wrong("mem:1G", &[("warn-used", "1G")]), ["warn-used"]);
        assert_eq!(wrong("mem:many", &[]), ["path"]);
        assert_eq!(wrong("mem:0", &[]), ["path"]);
        assert_eq!(wrong("mem:1G", &[("cache", "direct"), ("format", "raw")]), ["cache", "format"]);
        assert_eq!(wrong("mem:1G", &[("prefault", ""), ("thin", "")]), ["prefault"]);
        assert_eq!(wrong("mem:1G", &[("engine", "uring")]), ["engine"]);
        assert_eq!(wrong("/x", &[("cache", "direct"), ("engine", "inline")]), ["engine"]);
        assert_eq!(wrong("mem:1536", &[("bs", "4096")]), ["path"]);
        assert_eq!(wrong("/x", &[("size", "5000")]), ["size"]);
        assert_eq!(wrong("/x", &[("size", "0")]), ["size"]);
        assert_eq!(wrong("", &[]), ["path"]);
        assert_eq!(wrong("mem", &[]), ["path"]);
        assert_eq!(wrong("osd", &[]), ["path"]);
        assert_eq!(wrong("osd:", &[]), ["path"]);
        assert_eq!(wrong("rbd:disk", &[]), ["path"]);
        assert_eq!(wrong("rbd:pool/disk", &[("size", "1G"), ("cache", "direct")]), ["size", "cache"]);
        assert_eq!(wrong("rbd:pool/disk", &[("engine", "uring"), ("format", "raw")]), ["engine", "format"]);
        assert_eq!(wrong("rbd:pool/disk@noon", &[("ro", "no")]), ["ro"]);
        let of_ceph =
            [("ceph-user", "stag"), ("ceph-conf", "/x"), ("luks-key-file", "/k"), ("op-timeout", "30")];
        assert_eq!(wrong("/x", &of_ceph), ["ceph-user", "ceph-conf", "luks-key-file", "op-timeout"]);
        assert_eq!(wrong("rbd:pool/disk", &[("luks-key-file", "/k"), ("thin", "")]), ["thin"]);
        assert_eq!(wrong("osd:/x", &[("bs", "512"), ("thin", "")]), ["bs", "thin"]);
        assert_eq!(wrong("osd:/x", &[("capacity", "4K")]), ["capacity"]);
        assert_eq!(wrong("osd:mem:4K", &[]), ["path"]);
        assert_eq!(wrong("osd:mem:1G", &[("capacity", "1G")]), ["capacity"]);
        assert_eq!(wrong("/x", &[("capacity", "1G"), ("name", "x")]), ["capacity", "name"]);
    }

    #[test]
    fn a_directory_of_objects_is_shown_as_it_was_asked_for() {
        let mut options = Options::default();
        for (name, value) in [("capacity", "10G"), ("name", "attic"), ("iops", "100")] {
            options.set(name, value).unwrap();
        }
        let spec = UnitSpec::new("osd:/srv/objects", options).unwrap();
        assert_eq!(spec.backing.to_string(), "osd:/srv/objects");
        assert_eq!(spec.describe(), "objects in /srv/objects, at most 10G, called attic, at most 100 IOPS");
    }
}
