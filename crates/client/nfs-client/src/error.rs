//! Errors between a client and a server.

use nfs::mount;
use nfs::v4::Status;
use rpc::message::{AcceptStat, AuthStat, RejectStat};
use rpc::xdr::Malformed;

/// Any error of this crate. Cheap to clone: one lost server may end many calls.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// The host name has no address.
    #[error("cannot resolve {host}: {reason}")]
    Resolve {
        /// The host name.
        host: String,
        /// The resolver's error.
        reason: String,
    },
    /// No connection.
    #[error("cannot connect to {place}: {reason}")]
    Connect {
        /// Host and port.
        place: String,
        /// The system's error.
        reason: String,
    },
    /// The server did not answer for the time in which calls are retransmitted.
    #[error("no answer from {place} for {seconds} s ({reason}): is the server running, and the network up?")]
    Silent {
        /// Host and port.
        place: String,
        /// Time without an answer, seconds.
        seconds: u64,
        /// Reason why the last connection ended.
        reason: String,
    },
    /// The server does not run this program, or not in this version.
    #[error("the server does not serve program {program} in version {version}{}", range(.versions))]
    Unserved {
        /// Program number.
        program: u32,
        /// Version of the program.
        version: u32,
        /// The lowest and the highest version that it serves, if it serves any.
        versions: Option<(u32, u32)>,
    },
    /// The server rejected the credential.
    #[error("the server rejects the credential ({0:?}): it may want Kerberos, or a client port below 1024")]
    Auth(AuthStat),
    /// The server could not decode or execute the call.
    #[error("the server could not execute the call: {0}")]
    Refused(&'static str),
    /// An operation of NFS failed.
    #[error("{}", words(*.0))]
    Status(Status),
    /// MOUNT failed.
    #[error("the server does not let it be mounted: {}", mount_words(*.0))]
    Mount(mount::Status),
    /// No part of the path is exported to this client.
    #[error("{reason}{}", list(.exports))]
    NotExported {
        /// The server's error for the whole path.
        reason: String,
        /// The server's exports.
        exports: Vec<String>,
    },
    /// A path leads out of the export.
    #[error(
        "the path, or a symbolic link in it, leads out of what the server exports: write the path that it leads to"
    )]
    Outside,
    /// The server's reply makes no sense.
    #[error("the server's reply makes no sense: {0}")]
    Malformed(#[from] Malformed),
    /// The server's reply is not one of the call's.
    #[error("the server's reply makes no sense: {0}")]
    Nonsense(&'static str),
}

fn range(versions: &Option<(u32, u32)>) -> String {
    versions.map_or_else(String::new, |(low, high)| format!(", but in versions {low} to {high}"))
}

fn list(exports: &[String]) -> String {
    match exports {
        [] => String::new(),
        some => format!("; it exports {}", some.join(", ")),
    }
}

fn mount_words(status: mount::Status) -> &'static str {
    match status {
        mount::Status::NoEnt => "no such file or directory",
        mount::Status::NotDir => "not a directory",
        mount::Status::Perm | mount::Status::Acces => {
            "permission denied: look at the export's clients; an export without `insecure` wants ports below 1024, which root has"
        }
        mount::Status::NameTooLong => "the path is too long",
        mount::Status::Inval => "invalid argument",
        mount::Status::NotSupp => "not supported",
        mount::Status::Io | mount::Status::ServerFault => "the server failed",
    }
}

/// An error of NFS in words.
fn words(status: Status) -> String {
    let known = match status {
        Status::Perm => {
            "operation not permitted: only the file's owner may do this (?uid=N), or the server wants root's ports below 1024"
        }
        Status::NoEnt => "no such file or directory",
        Status::Io => "the server's medium failed",
        Status::Access => {
            "permission denied: choose another user with ?uid=N&gid=N, or look at the export's rules"
        }
        Status::Exist => "the file exists",
        Status::NotDir => "not a directory",
        Status::IsDir => "is a directory",
        Status::Inval => "invalid argument",
        Status::FBig => "the file would be too large",
        Status::NoSpc => "no space is left on the server",
        Status::RoFs => "the export is read-only",
        Status::NameTooLong => "the name is too long",
        Status::NotEmpty => "the directory is not empty",
        Status::DQuot => "the quota is exceeded",
        Status::Stale => "the file is not there any more (its handle is stale)",
        Status::NotSupp => "the server does not support this operation",
        Status::Delay => "the server asks to try again later, for too long",
        Status::Grace => "the server has restarted, and clients may still reclaim: try again later",
        Status::WrongSec => "the server wants another security flavor, such as Kerberos",
        Status::MinorVersMismatch => "the server does not speak this version: leave ?vers= out",
        Status::ShareDenied => "another client has the file open, and denies this access",
        _ => return format!("the server answered {status:?} ({})", status.code()),
    };
    known.to_owned()
}

impl Error {
    /// The error of a call that the server accepted and did not execute.
    pub(crate) fn of_accepted(program: u32, version: u32, stat: &AcceptStat) -> Option<Self> {
        let unserved = |versions| Error::Unserved { program, version, versions };
        match stat {
            AcceptStat::Success(()) => None,
            AcceptStat::ProgUnavail(()) => Some(unserved(None)),
            AcceptStat::ProgMismatch(versions) => Some(unserved(Some((versions.low, versions.high)))),
            AcceptStat::ProcUnavail(()) => Some(Error::Refused("it has no such procedure")),
            AcceptStat::GarbageArgs(()) => Some(Error::Refused("it cannot decode the arguments")),
            AcceptStat::SystemErr(()) => Some(Error::Refused("a system error")),
        }
    }

    /// The error of a call that the server denied.
    pub(crate) fn of_denied(stat: RejectStat) -> Self {
        match stat {
            RejectStat::AuthError(stat) => Error::Auth(stat),
            RejectStat::RpcMismatch(_) => Error::Refused("it does not speak version 2 of RPC"),
        }
    }

    /// Whether the server was not reached, so that the last call changed nothing there.
    pub fn is_unreachable(&self) -> bool {
        matches!(self, Error::Resolve { .. } | Error::Connect { .. })
    }
}
