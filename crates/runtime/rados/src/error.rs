//! Why a library, a cluster or an image cannot be used.

use std::io;

/// Why a library cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LoadError {
    /// It is not installed.
    #[error("{library} is not there: install {package} ({why})")]
    Library { library: &'static str, package: &'static str, why: String },
    /// It is too old.
    #[error("{library} has no function {function}: install a newer {package} (Ceph 16 or later)")]
    Function { library: &'static str, package: &'static str, function: &'static str },
}

/// Why an image cannot be opened, or a call for it failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    #[error(transparent)]
    Load(#[from] LoadError),
    /// A name has a zero byte in it.
    #[error("{0:?} is no name: it has a zero byte in it")]
    Name(String),
    /// A call failed.
    #[error("{what}: {}", io::Error::from_raw_os_error(*errno))]
    Call { what: String, errno: i32 },
    /// Another client holds the exclusive lock, and lives.
    #[error(
        "another client has the image's exclusive lock, {owner}: end that one first, or shut it out (stag lock --break)"
    )]
    Held { owner: String },
    /// The address is that of a machine or a network, not of one client.
    #[error("{0:?} is not the address of one client: it has no nonce")]
    NoNonce(String),
    /// It is not the image that was opened before.
    #[error("another image has its name now")]
    Another,
    /// The image cannot be locked.
    #[error("the image has no exclusive lock: rbd feature enable POOL/IMAGE exclusive-lock")]
    NoLock,
    /// librbd prefers settings of an image or its pool to those of its client.
    #[error(
        "the configuration of the image or its pool sets {name} to {found}, with which it is not served: rbd config image set {image} {name} {needed}"
    )]
    Setting { image: String, name: String, found: String, needed: &'static str },
    #[error("the system has no thread for the image")]
    NoThread,
    /// A call did not end in time.
    #[error("{what} is not done after {seconds} s: is the cluster up? (ceph -s)")]
    TooLate { what: &'static str, seconds: u64 },
}

impl Error {
    /// The error of a call that returned `code`, if it is one: 0 and more are success.
    pub(crate) fn check(code: i32, what: impl FnOnce() -> String) -> Result<i32, Self> {
        match code {
            0.. => Ok(code),
            _ => Err(Self::Call { what: what(), errno: code.saturating_neg() }),
        }
    }
}
