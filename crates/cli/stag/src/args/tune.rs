//! `stag tune`: what it may touch, and how long.

use std::path::PathBuf;

use clap::Args;
use iscsi_client::Url;

use super::{Connect, url};

/// Measure the path to a unit and choose how a session should use it
#[derive(Clone, Debug, Args)]
#[command(long_about = "Measure the path to a unit and choose how a session should use it.\n\n\
    Pings the target, loads the unit for a few seconds, learns what the target allows, and chooses connections, bursts, R2Ts or RDMA Reads, \
    block size, depth and socket buffers by the arithmetic of bandwidth and delay, which it shows; and it says how many commands of other \
    lengths it takes, of reads and of writes, since a write that is longer than what goes unasked takes a round trip more. Then it measures again, with what it has \
    chosen, and prints the words to paste: a URL, options of `stag bench` and `stag cp`, open-iscsi's iscsid.conf, and [limits] of the \
    target if a stag serves it.\n\n\
    It only reads, unless --destroy says that what is on the unit may be lost. Each load is bounded by --time and --most.")]
#[command(after_long_help = EXAMPLES)]
pub struct Tune {
    /// The unit: iscsi://HOST[:PORT]/IQN/LUN, or iser:// for RDMA
    #[arg(value_name = "URL", value_parser = url::unit)]
    pub url: Url,
    /// As JSON
    #[arg(long)]
    pub json: bool,
    /// Write what was chosen into a file: open-iscsi's iscsid.conf or a node's record, or (a name that ends in .toml) the [limits]
    /// of the stag that serves. What else is in it stays
    #[arg(long, value_name = "FILE")]
    pub apply_to: Option<PathBuf>,
    /// Measure writes too: what is on the unit is lost
    #[arg(long)]
    pub destroy: bool,
    /// Seconds of each load that count
    #[arg(short, long, value_name = "SECONDS", default_value_t = 1.5, value_parser = seconds)]
    pub time: f64,
    /// Bytes that each load moves at most
    #[arg(long, value_name = "SIZE", default_value = "1G", value_parser = super::size)]
    pub most: u64,
    /// Only the first SIZE bytes of the unit
    #[arg(long, value_name = "SIZE", default_value = "1G", value_parser = super::size)]
    pub span: u64,
    /// Pings
    #[arg(long, value_name = "N", default_value_t = 20, value_parser = clap::value_parser!(u16).range(1..=1000))]
    pub pings: u16,
    /// Do not say on stderr what is being measured
    #[arg(short, long)]
    pub quiet: bool,
    #[command(flatten)]
    #[allow(missing_docs)]
    pub connect: Connect,
}

const EXAMPLES: &str = "\
Examples:
  stag tune iscsi://192.0.2.1/iqn.2026-01.org.example:disks/0
  stag tune iser://192.0.2.1/iqn.2026-01.org.example:disks/0 --destroy
  stag tune URL --json | jq -r .words.url
  stag tune URL --apply-to /etc/iscsi/iscsid.conf
  stag tune URL --apply-to /etc/stag.toml && stag apply /etc/stag.toml";

fn seconds(text: &str) -> Result<f64, String> {
    let number = text.parse::<f64>().ok().filter(|n| (0.1..=60.0).contains(n));
    number.ok_or_else(|| format!("{text} is not from 0.1 to 60"))
}
