//! Commands that manage a running daemon.

use std::path::PathBuf;

use clap::Args;

/// Which daemon.
#[derive(Clone, Debug, Default, Args)]
pub struct At {
    /// The daemon's control socket [default: /run/stag/control.sock, or stag/control.sock in $XDG_RUNTIME_DIR if not root]
    #[arg(long, value_name = "PATH", env = "STAG_CONTROL", hide_env_values = true)]
    pub control: Option<PathBuf>,
}

/// Show what a running daemon serves, and to whom
#[derive(Clone, Debug, Args)]
#[command(long_about = "Show what a running daemon serves, and to whom.\n\n\
    Portals, targets and their units, sessions and their connections, and how the cores' buffers are used.")]
#[command(
    after_long_help = "Examples:\n  stag status\n  stag status --json | jq '.sessions[].initiator'\n  stag status --control /run/stag/second.sock"
)]
pub struct Status {
    #[command(flatten)]
    pub at: At,
    /// As JSON
    #[arg(long)]
    pub json: bool,
}

/// Show the target port groups of a running daemon, or change one's access state
#[derive(Clone, Debug, Args)]
#[command(
    long_about = "Show the target port groups of a running daemon, or change one's access state (ALUA).\n\n\
    A change is told to every initiator; the command ends when it is done. Initiators that use several paths then leave those \
    of a group that is not active any more, and prefer those that are active/optimized."
)]
#[command(
    after_long_help = "Examples:\n  stag alua\n  stag alua iqn.2026-01.org.example:disks 1 standby\n  stag alua --json | jq '.[].groups[].state'"
)]
pub struct Alua {
    #[command(flatten)]
    pub at: At,
    /// The target whose group is meant
    #[arg(value_name = "IQN", requires_all = ["group", "state"])]
    pub target: Option<String>,
    /// The group's id
    #[arg(value_name = "GROUP", value_parser = clap::value_parser!(u16).range(1..))]
    pub group: Option<u16>,
    /// What it becomes: active/optimized, active/non-optimized, standby, unavailable or offline
    #[arg(value_name = "STATE", value_parser = access_state)]
    pub state: Option<String>,
    /// As JSON
    #[arg(long)]
    pub json: bool,
}

fn access_state(text: &str) -> Result<String, String> {
    let names = scsi::data::target_port_groups::AccessState::NAMES.map(|(name, _)| name);
    if names.contains(&text) { Ok(text.to_owned()) } else { Err(format!("write {}", names.join(", "))) }
}
