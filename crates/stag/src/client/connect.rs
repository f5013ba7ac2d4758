//! From the command line's words about a connection to a session, and what a session's disk is to a copy.

use std::cell::Cell;
use std::path::Path;
use std::time::Duration;

use initiator::tune::Tune;
use initiator::{Crc, Error, Options, Provider, Session, Url};
use iscsi::chap::{Credential, Hash, Secret};
use iscsi::keys::DigestChoice;
use iscsi::login::initiator::Chap;
use ring::Chain;

use super::copy::Disk;
use crate::args::{ChapHash, Connect, Digest, Rdma, RdmaCrc, Spread, Tuning};

/// Why there is no session.
#[derive(Debug, thiserror::Error)]
pub enum ConnectError {
    /// A secret cannot be had.
    #[error("{0}")]
    Secret(String),
    /// The target's or the network's.
    #[error("{0}")]
    Session(#[from] Error),
    /// The iSNS server's.
    #[error("{0}")]
    Naming(#[from] crate::naming::LinkError),
}

/// What the initiator is told.
///
/// # Errors
/// A secret file that cannot be read.
pub fn options(args: &Connect) -> Result<Options, ConnectError> {
    let timeout = Duration::from_secs(args.timeout.into());
    let target = credential(args.mutual_user.as_deref(), args.mutual_secret_file.as_deref())?;
    let chap = credential(args.user.as_deref(), args.secret_file.as_deref())?.map(|credential| Chap {
        credential,
        target,
        hashes: args.chap_hash.map(hash).into_iter().collect(),
    });
    let options = Options {
        initiator: args.initiator.clone(),
        chap,
        header_digest: digest(args.header_digest),
        data_digest: digest(args.data_digest),
        iser_crc: match args.rdma_crc {
            RdmaCrc::Never => Crc::Never,
            RdmaCrc::Prefer => Crc::Prefer,
            RdmaCrc::Require => Crc::Require,
        },
        iser_markers: args.rdma_markers,
        iser_unsolicited: u32::try_from(args.iser_unsolicited).unwrap_or(u32::MAX),
        iser_provider: match args.rdma {
            Rdma::Software => Provider::Software,
            Rdma::Verbs => Provider::Verbs,
        },
        connections: args.connections,
        spread: match args.spread {
            Spread::LeastOutstanding => initiator::Spread::LeastOutstanding,
            Spread::RoundRobin => initiator::Spread::RoundRobin,
        },
        error_recovery_level: args.erl.unwrap_or(Options::default().error_recovery_level),
        connect_timeout: timeout,
        command_timeout: timeout,
        tune: match args.tune {
            Some(Tuning::Auto) => Tune::Auto,
            Some(Tuning::Off) | None => Tune::Off,
        },
        ..Options::default()
    };
    Ok(args.settings.applied(options))
}

/// A name, and the secret that a file holds; `None` if there is no name.
///
/// # Errors
/// A secret file that cannot be read.
pub fn credential(name: Option<&str>, file: Option<&Path>) -> Result<Option<Credential>, ConnectError> {
    let (Some(name), Some(file)) = (name, file) else { return Ok(None) };
    let mut secret = std::fs::read(file).map_err(|error| {
        ConnectError::Secret(format!("the secret cannot be read: {}: {error}", file.display()))
    })?;
    while secret.last().is_some_and(|byte| matches!(byte, b'\n' | b'\r')) {
        secret.pop();
    }
    Ok(Some(Credential { name: name.to_owned(), secret: Secret::new(secret) }))
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
///
/// # Errors
/// Whatever keeps it from that.
pub async fn session(url: &Url, args: &Connect) -> Result<Session, ConnectError> {
    Ok(Session::connect(url, options(args)?).await?)
}

/// A disk with a session of its own.
pub struct Unit {
    url: Url,
    disk: initiator::Disk,
    /// Whether it refused to make zeros by itself.
    no_zeros: Cell<bool>,
}

/// Logs in and opens the disk of `url`.
///
/// # Errors
/// Whatever keeps it from that.
pub async fn open(url: &Url, args: &Connect) -> Result<Unit, ConnectError> {
    let session = session(url, args).await?;
    let disk = match initiator::Disk::open(&session, url.lun.unwrap_or(0)).await {
        Ok(disk) => disk,
        Err(error) => {
            // The first error is the one to tell.
            let _ = session.close().await;
            return Err(error.into());
        }
    };
    Ok(Unit { url: url.clone(), disk, no_zeros: Cell::new(false) })
}

impl Unit {
    /// Logs out.
    pub async fn close(&self) {
        if let Err(error) = self.disk.session().close().await {
            tracing::warn!(url = %self.url, %error, "no answer to the logout");
        }
    }

    fn blocks(&self, bytes: u64) -> u64 {
        bytes / u64::from(self.disk.block_len())
    }
}

impl Disk for Unit {
    fn place(&self) -> String {
        self.url.to_string()
    }

    fn block_bytes(&self) -> u32 {
        self.disk.block_len()
    }

    fn bytes(&self) -> u64 {
        self.disk.len()
    }

    async fn read(&self, at: u64, len: usize) -> Result<Chain, Error> {
        let blocks =
            u32::try_from(self.blocks(len as u64)).map_err(|_| Error::Argument("too long a read"))?;
        self.disk.read(self.blocks(at), blocks).await
    }

    async fn write(&self, at: u64, data: Chain) -> Result<(), Error> {
        self.disk.write(self.blocks(at), data).await
    }

    async fn zero(&self, at: u64, len: u64) -> Result<bool, Error> {
        // Only where zeros take no room: elsewhere writing them is as good, and every unit can do it.
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

    fn under_way(&self, write: bool) -> u64 {
        self.disk.session().tuning().map_or(0, |tuning| tuning.bytes_under_way(write))
    }

    async fn sync(&self) -> Result<(), Error> {
        match self.disk.sync().await {
            // A unit without a cache need not know the command.
            Err(error) if error.is_unsupported() => Ok(()),
            other => other,
        }
    }
}
