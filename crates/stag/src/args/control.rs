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
