//! Worlds in which `stag conform` judges the server: every check of iSCSI, iSER and NFS, in
//! simulated time.
//!
//! The suite is a thread that is not a core. It sends what no client of this workspace sends.

use std::time::Duration;

use conform::{Account, Options, ShareOptions, Transport};
use disk::unit::DiskOptions;
use iscsi::chap::{Credential, Secret};
use iscsi_server::config::{Limits, ServerConfig};
use runtime::sim::{self, Network};

use crate::daemon::{self, NAME, TARGET_SECRET};
use crate::host::{Host, Medium};
use crate::nfs_state;
use crate::plan::Plan;
use crate::random::Rng;

/// Blocks of the disk, of 512 bytes.
const BLOCKS: usize = 16 << 11;
const TIME_LIMIT: Duration = Duration::from_secs(24 * 3600);
const USER: (&str, &str) = ("conform", "a secret of 16 B");

/// Servers to judge.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Subject {
    /// The target, over TCP.
    Tcp,
    /// The same, where CHAP is required both ways.
    Chap,
    /// The target, over iSER.
    Iser,
    /// The server of files.
    Share,
}

/// The report of every check of a subject.
///
/// # Errors
/// The checks could not begin.
///
/// # Panics
/// The world has failed.
pub fn judge(subject: Subject, seed: u64) -> Result<conform::Report, String> {
    let mut rng = Rng::new(seed ^ 0x434f_4e46);
    let network = Network {
        jitter: Duration::from_micros(rng.pick(&[20, 500])),
        window: rng.pick(&[64 << 10, 256 << 10]),
        segment: rng.pick(&[1000, 64 << 10]),
        ..Network::default()
    };
    let config = sim::Config { network, time_limit: TIME_LIMIT, ..sim::Config::new(seed) };
    sim::run(config, move || async move {
        match subject {
            Subject::Share => share(&mut rng).await,
            _ => target(subject, &mut rng).await,
        }
    })
    .output
}

async fn target(subject: Subject, rng: &mut Rng) -> Result<conform::Report, String> {
    let mut settings = Plan::new(0).target;
    settings.chap = (subject == Subject::Chap).then(|| (USER.0.to_owned(), USER.1.to_owned()));
    let config = ServerConfig { limits: Limits::default(), ..daemon::config(&settings) };
    let medium = Medium::new(BLOCKS, DiskOptions::default(), (0, 0));
    let mut host = Host::new(daemon::cores(1 + rng.index(3)), config, vec![medium], 1);
    host.start()?;
    let transport = if subject == Subject::Iser { Transport::Iser } else { Transport::Tcp };
    let mut options = Options::new(transport, "10.0.0.200", 3260, NAME, 0);
    (options.write, options.destructive) = (true, true);
    let credential =
        |name: &str, secret: &str| Credential { name: name.into(), secret: Secret::new(secret.as_bytes()) };
    options.account = (subject == Subject::Chap).then(|| Account {
        initiator: credential(USER.0, USER.1),
        target: Some(credential("target", TARGET_SECRET)),
    });
    let report = sim::aside(move || conform::run(options, &conform::checks(), &mut |_| {})).await;
    host.kill().await;
    report.map_err(|error| error.to_string())
}

async fn share(rng: &mut Rng) -> Result<conform::Report, String> {
    let mut host = nfs_state::host::Host::new(1 + rng.index(3), None)?;
    host.start()?;
    let options = ShareOptions::new("10.0.0.200", nfs::PORT, format!("/{}", nfs_state::EXPORT).as_bytes());
    let report = sim::aside(move || conform::run_share(options, &conform::checks(), &mut |_| {})).await;
    host.kill().await;
    report.map_err(|error| error.to_string())
}
