//! Makes iSCSI sessions from the connection flags, and lets a copy use a session's disk.

use std::cell::Cell;
use std::path::Path;
use std::time::Duration;

use iscsi::chap::{Credential, Hash};
use iscsi::keys::DigestChoice;
use iscsi::login::initiator::Chap;
use iscsi_client::tune::Tune;
use iscsi_client::{Error, Options, Session, Url};
use runtime::Chain;

use super::copy::{Disk, RemoteError};
use super::nfs::{Intent, OpenFile};
use crate::args::{ChapHash, Connect, Digest, Remote, Spread, Tuning};
use crate::secret::{self, Whose};

/// The reason why there is no session.
#[derive(Debug, thiserror::Error)]
pub enum ConnectError {
    /// A secret is missing or cannot be read.
    #[error("{0}")]
    Secret(String),
    /// An error of the target or the network.
    #[error("{0}")]
    Session(#[from] Error),
    /// An error of the NFS server.
    #[error("{0}")]
    Files(#[from] nfs_client::Error),
    #[error("{0}")]
    Naming(#[from] crate::naming::LinkError),
}

/// CHAP names and files of their secrets, as the command line gives them.
#[derive(Clone, Copy, Debug, Default)]
pub struct Names<'a> {
    pub user: Option<&'a str>,
    pub secret_file: Option<&'a Path>,
    pub mutual_user: Option<&'a str>,
    pub mutual_secret_file: Option<&'a Path>,
}

impl<'a> From<&'a Connect> for Names<'a> {
    fn from(args: &'a Connect) -> Self {
        Self {
            user: args.user.as_deref(),
            secret_file: args.secret_file.as_deref(),
            mutual_user: args.mutual_user.as_deref(),
            mutual_secret_file: args.mutual_secret_file.as_deref(),
        }
    }
}

/// The CHAP credentials for `url`: the initiator's, and the target's for mutual CHAP. `None`
/// without a user name.
///
/// # Errors
/// A secret is missing, cannot be read, or is part of the URL.
pub fn credentials(
    url: &Url,
    names: Names<'_>,
) -> Result<Option<(Credential, Option<Credential>)>, ConnectError> {
    let in_url = url.credential.as_ref();
    if in_url.is_some_and(|credential| !credential.secret.is_empty()) {
        let what = "everybody who lists processes sees the secret in this URL: leave it out, as in iscsi://USER@HOST, and \
                    give it with --secret-file FILE, in STAG_SECRET, or when asked";
        return Err(ConnectError::Secret(what.into()));
    }
    let with = |whose, name: &str, file| {
        let secret = secret::of(whose, name, file).map_err(ConnectError::Secret)?;
        Ok::<_, ConnectError>(Credential { name: name.to_owned(), secret })
    };
    let Some(user) = in_url.map(|credential| credential.name.as_str()).or(names.user) else {
        return match names.mutual_user {
            None => Ok(None),
            // The target would not prove itself: mutual CHAP needs the initiator's CHAP first.
            Some(_) => Err(ConnectError::Secret(
                "--mutual-user needs --user: CHAP proves the initiator first".into(),
            )),
        };
    };
    let own = with(Whose::User, user, names.secret_file)?;
    let target =
        names.mutual_user.map(|name| with(Whose::Target, name, names.mutual_secret_file)).transpose()?;
    Ok(Some((own, target)))
}

/// CHAP with the target of `url`.
///
/// # Errors
/// A secret is missing or cannot be read.
pub fn chap(url: &Url, args: &Connect) -> Result<Option<Chap>, ConnectError> {
    let hashes = args.chap_hash.map(hash).into_iter().collect();
    Ok(credentials(url, args.into())?.map(|(credential, target)| Chap { credential, target, hashes }))
}

/// `url` without its user, whose credential is part of the options.
pub fn place(url: &Url) -> Url {
    Url { credential: None, ..url.clone() }
}

/// The initiator's options for a session with [`place`] of `url`.
///
/// # Errors
/// A secret is missing or cannot be read.
pub fn options(url: &Url, args: &Connect) -> Result<Options, ConnectError> {
    Ok(Options { chap: chap(url, args)?, ..options_without_chap(args) })
}

/// The initiator's options that do not depend on the URL.
pub fn options_without_chap(args: &Connect) -> Options {
    let timeout = Duration::from_secs(args.timeout.into());
    let options = Options {
        initiator: args.initiator.clone(),
        header_digest: digest(args.header_digest),
        data_digest: digest(args.data_digest),
        iser_crc: args.rdma_crc.into(),
        iser_markers: args.rdma_markers,
        iser_unsolicited: u32::try_from(args.iser_unsolicited).unwrap_or(u32::MAX),
        iser_provider: args.rdma.into(),
        connections: args.connections,
        portals: args.portals.clone(),
        spread: match args.spread {
            Spread::LeastOutstanding => iscsi_client::Spread::LeastOutstanding,
            Spread::RoundRobin => iscsi_client::Spread::RoundRobin,
        },
        error_recovery_level: args.erl.unwrap_or(Options::default().error_recovery_level),
        connect_timeout: timeout,
        command_timeout: timeout,
        reconnect_timeout: args.reconnect_or(Options::default().reconnect_timeout),
        tune: match args.tune {
            Some(Tuning::Auto) => Tune::Auto,
            Some(Tuning::Off) | None => Tune::Off,
        },
        ..Options::default()
    };
    args.settings.applied(options)
}

fn hash(hash: ChapHash) -> Hash {
    match hash {
        ChapHash::Md5 => Hash::Md5,
        ChapHash::Sha1 => Hash::Sha1,
        ChapHash::Sha256 => Hash::Sha256,
        ChapHash::Sha3 => Hash::Sha3_256,
    }
}

fn digest(digest: Digest) -> DigestChoice {
    match digest {
        Digest::Never => DigestChoice::Never,
        Digest::Allow => DigestChoice::Allow,
        Digest::Prefer => DigestChoice::Prefer,
        Digest::Require => DigestChoice::Require,
    }
}

/// Logs in to the target of `url`.
pub async fn session(url: &Url, args: &Connect) -> Result<Session, ConnectError> {
    Ok(Session::connect(&place(url), options(url, args)?).await?)
}

/// A disk with a session of its own.
pub struct Unit {
    url: Url,
    disk: iscsi_client::Disk,
    /// Whether it refused to write zeros without being sent them.
    no_zeros: Cell<bool>,
}

/// Logs in and opens the disk of `url`.
pub async fn open(url: &Url, args: &Connect) -> Result<Unit, ConnectError> {
    let session = session(url, args).await?;
    let disk = match iscsi_client::Disk::open(&session, url.lun.unwrap_or(0)).await {
        Ok(disk) => disk,
        Err(error) => {
            // The first error is the one to report.
            let _ = session.close().await;
            return Err(error.into());
        }
    };
    Ok(Unit { url: url.clone(), disk, no_zeros: Cell::new(false) })
}

impl Unit {
    pub async fn close(&self) {
        if let Err(error) = self.disk.session().close().await {
            tracing::warn!(url = %self.url, %error, "no answer to the logout");
        }
    }

    fn blocks(&self, bytes: u64) -> u64 {
        bytes / u64::from(self.disk.block_len())
    }
}

/// A unit or a file, on a connection of its own.
pub enum Opened {
    Unit(Unit),
    /// A file of NFS.
    File(OpenFile),
}

/// Opens the unit or file of `remote`. If it is an NFS directory, opens the file `name` in it.
pub async fn open_remote(
    remote: &Remote,
    args: &Connect,
    intent: Intent,
    name: Option<&[u8]>,
) -> Result<Opened, ConnectError> {
    match remote {
        Remote::Unit(url) => Ok(Opened::Unit(open(url, args).await?)),
        Remote::File(url) => Ok(Opened::File(OpenFile::open(url, args, intent, name).await?)),
    }
}

impl Opened {
    /// Ends the session.
    ///
    /// # Errors
    /// The NFS server fails to close the file.
    pub async fn close(&self) -> Result<(), RemoteError> {
        match self {
            Self::Unit(unit) => {
                unit.close().await;
                Ok(())
            }
            Self::File(file) => Ok(file.close().await?),
        }
    }
}

impl Disk for Opened {
    fn place(&self) -> String {
        match self {
            Self::Unit(unit) => unit.url.to_string(),
            Self::File(file) => file.place().to_owned(),
        }
    }

    fn block_bytes(&self) -> u32 {
        match self {
            Self::Unit(unit) => unit.disk.block_len(),
            Self::File(_) => 1,
        }
    }

    fn bytes(&self) -> u64 {
        match self {
            Self::Unit(unit) => unit.disk.len(),
            Self::File(file) => file.bytes(),
        }
    }

    fn room(&self) -> Option<u64> {
        match self {
            Self::Unit(unit) => Some(unit.disk.len()),
            Self::File(_) => None,
        }
    }

    async fn read(&self, at: u64, len: usize) -> Result<Chain, RemoteError> {
        match self {
            Self::Unit(unit) => Ok(unit.read(at, len).await?),
            Self::File(file) => Ok(file.read(at, len).await?),
        }
    }

    async fn write(&self, at: u64, data: Chain) -> Result<(), RemoteError> {
        match self {
            Self::Unit(unit) => Ok(unit.disk.write(unit.blocks(at), data).await?),
            Self::File(file) => Ok(file.write(at, data).await?),
        }
    }

    async fn zero(&self, at: u64, len: u64) -> Result<bool, RemoteError> {
        match self {
            Self::Unit(unit) => Ok(unit.zero(at, len).await?),
            Self::File(file) => Ok(file.is_hole()),
        }
    }

    fn under_way(&self, write: bool) -> u64 {
        match self {
            Self::Unit(unit) => {
                unit.disk.session().tuning().map_or(0, |tuning| tuning.bytes_under_way(write))
            }
            Self::File(file) => file.under_way(),
        }
    }

    fn reconnects(&self) -> u64 {
        match self {
            Self::Unit(unit) => unit.disk.session().reconnects(),
            // Its client repeats what the server has not made stable.
            Self::File(_) => 0,
        }
    }

    async fn sync(&self) -> Result<(), RemoteError> {
        match self {
            Self::Unit(unit) => Ok(unit.sync().await?),
            Self::File(file) => Ok(file.sync().await?),
        }
    }

    async fn cut(&self, end: u64) -> Result<(), RemoteError> {
        match self {
            Self::Unit(_) => Ok(()),
            Self::File(file) => Ok(file.cut(end).await?),
        }
    }

    async fn end(&self, end: u64) -> Result<(), RemoteError> {
        match self {
            Self::Unit(_) => Ok(()),
            Self::File(file) => Ok(file.end(end).await?),
        }
    }
}

impl Unit {
    async fn read(&self, at: u64, len: usize) -> Result<Chain, Error> {
        let blocks =
            u32::try_from(self.blocks(len as u64)).map_err(|_| Error::Argument("too long a read"))?;
        self.disk.read(self.blocks(at), blocks).await
    }

    async fn zero(&self, at: u64, len: u64) -> Result<bool, Error> {
        // Only where zeros free blocks: otherwise it is no better than writing them, which every
        // unit can do.
        if !self.disk.can_unmap() || self.no_zeros.get() {
            return Ok(false);
        }
        match self.disk.write_zeros(self.blocks(at), self.blocks(len)).await {
            Ok(()) => Ok(true),
            Err(error) if error.is_unsupported() => {
                self.no_zeros.set(true);
                Ok(false)
            }
            Err(error) => Err(error),
        }
    }

    async fn sync(&self) -> Result<(), Error> {
        match self.disk.sync().await {
            // A unit without a cache need not know the command.
            Err(error) if error.is_unsupported() => Ok(()),
            other => other,
        }
    }
}
