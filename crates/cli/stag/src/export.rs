//! An export on the command line and in the configuration: the name by which clients mount it, and
//! its tree.

use std::fmt;
use std::path::{Path, PathBuf};

use backing::size::{Size, parse_size};
use toml::Spanned;
use toml::de::DeValue;

use crate::config::settings::Setting;
use crate::config::value::{Misfit, Value};

/// NFS's port (RFC 1813 §2.1, IANA).
pub const NFS_PORT: u16 = nfs_server::config::PORT;
/// The port of NFS over RDMA, if an address has none.
pub const NFS_RDMA_PORT: u16 = nfs_server::config::RDMA_PORT;

/// An export of the command line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Given {
    pub name: String,
    pub shown: Shown,
}

/// The tree of an export.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Shown {
    /// A directory of this machine.
    Directory(PathBuf),
    /// Memory, so many bytes at most.
    Memory(u64),
}

impl Default for Shown {
    fn default() -> Self {
        Self::Memory(0)
    }
}

impl Shown {
    /// The directory, if it is one.
    pub fn below(&self) -> Option<&Path> {
        match self {
            Self::Directory(path) => Some(path),
            Self::Memory(_) => None,
        }
    }

    fn of(text: &str, from: Option<&Path>) -> Result<Self, String> {
        if let Some(size) = text.strip_prefix("mem:") {
            return parse_size(size).map(Self::Memory).map_err(|error| error.to_string());
        }
        if text.is_empty() {
            return Err("an export shows a directory, or mem:SIZE".into());
        }
        Ok(Self::Directory(from.map_or_else(|| text.into(), |from| from.join(text))))
    }
}

impl fmt::Display for Shown {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Directory(path) => write!(f, "{}", path.display()),
            Self::Memory(bytes) => write!(f, "mem:{}", Size(*bytes)),
        }
    }
}

impl Value for Shown {
    fn parse(text: &str, _: &Setting) -> Result<Self, Misfit> {
        let instead = || "write a directory, or memory as mem:1G".to_owned();
        Self::of(text, None).map_err(|what| Misfit { what: Some(what), instead: instead() })
    }

    fn read(
        setting: &Setting,
        found: &Spanned<DeValue<'_>>,
        at: &crate::config::Place<'_>,
        problems: &mut crate::config::Problems,
    ) -> Option<Self> {
        let text = String::read(setting, found, at, problems)?;
        match Self::of(&text, Some(at.directory)) {
            Ok(shown) => Some(shown),
            Err(what) => {
                problems.error(&found.span(), what, "write a directory, or memory as \"mem:1G\"");
                None
            }
        }
    }

    fn show(&self) -> Option<String> {
        (*self != Self::default()).then(|| self.to_string())
    }
}

/// Checks the name of an export: a path without empty components, `.` and `..`.
///
/// # Errors
/// The name is invalid.
pub fn check_name(name: &str) -> Result<(), String> {
    let Some(path) = name.strip_prefix('/') else {
        return Err(format!("the name of an export begins with /: \"{name}\" does not"));
    };
    // Longer paths cannot be mounted (RFC 1813 §5.1.2).
    if name.len() > nfs_server::config::LONGEST_NAME {
        return Err(format!("the name has more than {} bytes", nfs_server::config::LONGEST_NAME));
    }
    let wrong = |part: &str| matches!(part, "" | "." | "..") || part.contains(char::is_control);
    match path.is_empty() || !path.split('/').any(wrong) {
        true => Ok(()),
        false => Err(format!("\"{name}\" has a component that is empty, . or ..")),
    }
}

/// `NAME=PATH` of the command line.
///
/// # Errors
/// `text` is not `NAME=PATH`, or either is invalid.
pub fn parse(text: &str) -> Result<Given, String> {
    let (name, path) =
        text.split_once('=').ok_or("write NAME=PATH, such as /data=/srv/data or /scratch=mem:1G")?;
    check_name(name)?;
    let shown = Shown::of(path, std::env::current_dir().ok().as_deref())?;
    Ok(Given { name: name.to_owned(), shown })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_plain_paths() {
        for good in ["/", "/data", "/a/b.c", "/a..b"] {
            assert_eq!(check_name(good), Ok(()), "{good}");
        }
        for bad in ["", "data", "/data/", "//", "/a//b", "/a/./b", "/..", "/a\n"] {
            assert!(check_name(bad).is_err(), "{bad}");
        }
        assert!(check_name(&format!("/{}", "x".repeat(1024))).is_err());
    }

    #[test]
    fn an_export_is_a_name_and_a_path() {
        let given = parse("/scratch=mem:1M").unwrap();
        assert_eq!((given.name.as_str(), given.shown), ("/scratch", Shown::Memory(1 << 20)));
        assert_eq!(parse("/d=/srv=x").unwrap().shown, Shown::Directory("/srv=x".into()));
        assert!(parse("/d").is_err() && parse("d=/srv").is_err() && parse("/d=").is_err());
    }
}
