//! The options of a run: the target, the initiator's identity, and the permitted actions.

use std::time::Duration;

use iscsi::chap::Credential;

/// The transport of the PDUs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Transport {
    /// iSCSI over TCP.
    Tcp,
    /// iSER over software iWARP.
    Iser,
}

/// CHAP: the credentials of the initiator, and of the target.
#[derive(Clone, Debug)]
pub struct Account {
    /// The initiator's name and secret.
    pub initiator: Credential,
    /// The target's name and secret, for mutual CHAP.
    pub target: Option<Credential>,
}

/// The options of a run.
#[derive(Clone, Debug)]
pub struct Options {
    /// The transport to the target.
    pub transport: Transport,
    /// Host name or address, without brackets.
    pub host: String,
    /// TCP port.
    pub port: u16,
    pub target: String,
    /// Logical unit number, 0 to 16383.
    pub lun: u16,
    pub initiator: String,
    /// CHAP credentials; without them the suite offers AuthMethod=None.
    pub account: Option<Account>,
    /// Whether checks may write blocks: [`Options::AREA`] bytes from [`Options::write_at`] on. The
    /// run restores them.
    pub write: bool,
    /// First byte of the writable area, rounded up to a whole block.
    pub write_at: u64,
    /// Whether checks may reset units and targets.
    pub destructive: bool,
    /// Timeout for an answer.
    pub answer_within: Duration,
    /// Timeout for a whole check.
    pub check_within: Duration,
}

impl Options {
    /// Maximum bytes that checks write.
    pub const AREA: u64 = 1 << 20;

    /// A run that only reads, with the usual time limits.
    pub fn new(transport: Transport, host: &str, port: u16, target: &str, lun: u16) -> Self {
        Self {
            transport,
            host: host.to_owned(),
            port,
            target: target.to_owned(),
            lun,
            initiator: "iqn.2026-01.org.stag:conform".to_owned(),
            account: None,
            write: false,
            write_at: 0,
            destructive: false,
            answer_within: Duration::from_secs(5),
            check_within: Duration::from_secs(30),
        }
    }

    /// The unit's URL.
    pub(crate) fn url(&self) -> String {
        let scheme = match self.transport {
            Transport::Tcp => "iscsi",
            Transport::Iser => "iser",
        };
        let host = match self.host.contains(':') {
            true => format!("[{}]", self.host),
            false => self.host.clone(),
        };
        format!("{scheme}://{host}:{}/{}/{}", self.port, self.target, self.lun)
    }
}
