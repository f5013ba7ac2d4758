//! `stag doctor`: which configuration it looks at.

use std::path::PathBuf;

use clap::Args;

use super::control::At;

/// Look at this machine, and say what it lacks to serve or use disks
#[derive(Clone, Debug, Args)]
#[command(long_about = "Look at this machine, and say what it lacks to serve or use disks.\n\n\
    It looks at the kernel and io_uring; processors, memory and open files that limits leave; the sandbox; the state directory and the file \
    systems of units; ports, MTUs, socket buffers and congestion control; and settings of open-iscsi and dm-multipath where they are \
    installed. Each problem has a remedy. It changes nothing, opens no unit, and does not disturb a daemon that runs.\n\n\
    Limits are those of the user and service that runs it: for a service's, run it as its user within its unit.")]
#[command(
    after_long_help = "Exits with status 1 if something does not work, and 0 if all works, even if it could work better.\n\n\
    Examples:\n  stag doctor\n  stag doctor --config /etc/stag/stag.toml\n  stag doctor --json | jq '.findings[] | select(.level != \"ok\")'"
)]
pub struct Doctor {
    /// Check the ports, units and exports of this configuration; without it, port 3260
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,
    #[command(flatten)]
    pub at: At,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}
