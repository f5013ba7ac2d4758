//! `stag import`: whose configuration it reads.

use std::path::PathBuf;

use clap::Args;

/// Make a configuration of LIO's or tgt's
#[derive(Clone, Debug, Args)]
#[command(long_about = "Make a configuration of LIO's or tgt's.\n\n\
    Reads what targetcli saves of LIO (/etc/target/saveconfig.json) or tgt's targets.conf with the files that it includes, and prints a \
    configuration of Stag with the same targets, units, portals, ACLs and CHAP users. Units keep their serial numbers and worldwide names, so \
    that initiators and multipath know them as the same disks; two targets must therefore never serve one file at a time.\n\n\
    What Stag has no equal of is told on stderr and in comments. A target that Stag would open wider than it was is left out.")]
#[command(after_long_help = "Exits with status 3 if the result needs a change, such as a longer secret.\n\n\
    Examples:\n  stag import /etc/target/saveconfig.json\n  stag import /etc/tgt/targets.conf --output /etc/stag/stag.toml && stag check-config /etc/stag/stag.toml")]
pub struct Import {
    /// LIO's saveconfig.json or tgt's targets.conf
    #[arg(value_name = "FILE")]
    pub file: PathBuf,
    /// Write a new file for this user alone, instead of to stdout
    #[arg(short, long, value_name = "FILE")]
    pub output: Option<PathBuf>,
    /// Import targets that tgt opens to some addresses only; Stag then opens them to all
    #[arg(long)]
    pub ignore_addresses: bool,
}
