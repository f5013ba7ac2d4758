//! `stag tune`: what it may touch, and how long.

use std::path::PathBuf;

use clap::Args;

use super::{Connect, Remote, url};

/// Measure the path to a unit or an NFS file and choose parameters for it
#[derive(Clone, Debug, Args)]
#[command(long_about = "Measure the path to a unit or an NFS file and choose parameters for it.\n\n\
    Pings the target, loads the unit for a few seconds, learns the target's limits, and chooses connections, bursts, R2Ts or RDMA Reads, \
    block size, depth and socket buffers from bandwidth and delay, and shows the calculation. It also prints the depth needed for other \
    lengths, for reads and writes apart: a write longer than its unsolicited data takes another round trip. Then it measures again with \
    the chosen values, and prints settings to paste: a URL, options of `stag bench` and `stag cp`, open-iscsi's iscsid.conf, and [limits] \
    if Stag is the target.\n\n\
    For nfs:// and nfs+rdma:// it chooses the length and number of calls in flight, and prints options of `stag bench`, `stag cp` and \
    Linux's mount. The file needs at least 1 MiB; --destroy creates one.\n\n\
    It only reads, unless --destroy permits it to overwrite the unit. --time and --most bound each load.")]
#[command(after_long_help = EXAMPLES)]
pub struct Tune {
    /// The unit: iscsi://HOST[:PORT]/IQN/LUN, or iser:// for RDMA; or the file:
    /// nfs://HOST[:PORT]/PATH, or nfs+rdma://
    #[arg(value_name = "URL", value_parser = url::remote)]
    pub url: Remote,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
    /// Write the chosen values into a file: open-iscsi's iscsid.conf or a node record, or (a name
    /// that ends in .toml) the [limits] of a Stag configuration. All else in the file stays. Units
    /// only
    #[arg(long, value_name = "FILE")]
    pub apply_to: Option<PathBuf>,
    /// Measure writes too: destroys the data on the unit
    #[arg(long)]
    pub destroy: bool,
    /// Seconds measured of each load
    #[arg(short, long, value_name = "SECONDS", default_value_t = 1.5, value_parser = seconds)]
    pub time: f64,
    /// Most bytes that one load moves
    #[arg(long, value_name = "SIZE", default_value = "1G", value_parser = super::size)]
    pub most: u64,
    /// Only the first SIZE bytes of the unit
    #[arg(long, value_name = "SIZE", default_value = "1G", value_parser = super::size)]
    pub span: u64,
    /// Number of pings
    #[arg(long, value_name = "N", default_value_t = 20, value_parser = clap::value_parser!(u16).range(1..=1000))]
    pub pings: u16,
    /// Show no progress on stderr
    #[arg(short, long)]
    pub quiet: bool,
    #[command(flatten)]
    pub connect: Connect,
}

const EXAMPLES: &str = "\
Examples:
  stag tune iscsi://192.0.2.1/iqn.2026-01.org.example:disks/0
  stag tune iser://192.0.2.1/iqn.2026-01.org.example:disks/0 --destroy
  stag tune nfs://192.0.2.1/srv/tree/large-file
  stag tune URL --json | jq -r .words.url
  stag tune URL --apply-to /etc/iscsi/iscsid.conf
  stag tune URL --apply-to /etc/stag.toml && stag apply /etc/stag.toml";

fn seconds(text: &str) -> Result<f64, String> {
    let number = text.parse::<f64>().ok().filter(|n| (0.1..=60.0).contains(n));
    number.ok_or_else(|| format!("{text} is not from 0.1 to 60"))
}
