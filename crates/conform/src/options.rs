//! What a run is told: where the target is, who asks, and what may be done to it.

use std::time::Duration;

use iscsi::chap::Credential;

/// What carries the PDUs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Transport {
    /// TCP.
    Tcp,
    /// iSER over software iWARP.
    Iser,
}

/// CHAP: who the initiator is, and who the target has to be.
#[derive(Clone, Debug)]
pub struct Account {
    /// The initiator's name and secret.
    pub initiator: Credential,
    /// The target's, for mutual CHAP.
    pub target: Option<Credential>,
}

/// What a run is told.
#[derive(Clone, Debug)]
pub struct Options {
    /// How the target is reached.
    pub transport: Transport,
    /// Host name or address, without brackets.
    pub host: String,
    /// TCP port.
    pub port: u16,
    /// TargetName.
    pub target: String,
    /// Logical unit number, 0 to 16383.
    pub lun: u16,
    /// InitiatorName.
    pub initiator: String,
    /// CHAP; without it the suite asks for AuthMethod=None.
    pub account: Option<Account>,
    /// Whether blocks may be written: [`Options::AREA`] bytes from [`Options::write_at`] on. What was there is written back.
    pub write: bool,
    /// First byte of the area that may be written, rounded up to a whole block.
    pub write_at: u64,
    /// Whether units and targets may be reset.
    pub destructive: bool,
    /// How long an answer may take.
    pub answer_within: Duration,
    /// How long a check may take in all.
    pub check_within: Duration,
}

impl Options {
    /// Bytes that checks write at most.
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
}
