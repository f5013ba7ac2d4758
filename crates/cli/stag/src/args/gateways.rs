//! `stag gateways` and `stag move`.

use std::path::PathBuf;

use clap::{Args, Subcommand};

use super::control::At;

/// Show the group of gateways that a daemon is one of
#[derive(Clone, Debug, Args)]
#[command(long_about = "Show the group of gateways that a daemon is one of.\n\n\
    Lists the gateways that are in the group, the owner of each image, and the last gateways that were taken out, as the daemon knows them.")]
#[command(
    after_long_help = "Examples:\n  stag gateways\n  stag gateways --json | jq '.units[]'\n  stag gateways spread\n  \
    stag gateways secret > /etc/stag/gateways.secret"
)]
#[command(args_conflicts_with_subcommands = true)]
pub struct Gateways {
    #[command(flatten)]
    pub at: At,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
    #[command(subcommand)]
    pub action: Option<GatewaysAction>,
}

#[derive(Clone, Debug, Subcommand)]
pub enum GatewaysAction {
    Spread(Spread),
    Secret(Secret),
}

/// Move units so that all gateways own about as many
#[derive(Clone, Debug, Args)]
#[command(after_long_help = "Examples:\n  stag gateways spread --dry-run")]
pub struct Spread {
    #[command(flatten)]
    pub at: At,
    /// Only print what it would move
    #[arg(short = 'n', long)]
    pub dry_run: bool,
}

/// Print a secret file for the group
#[derive(Clone, Debug, Args)]
#[command(long_about = "Print a secret file for the group.\n\n\
    The file must be the same at all gateways, and readable by the daemon alone. By line 0 all of them recognize the users of CHAP alike; it never changes. \
    By the other lines gateways know each other. To change their secret, give a file with the next one to each gateway and restart it, one after another: \
    the group uses the newest secret that all have.")]
#[command(after_long_help = "Examples:\n  (umask 077; stag gateways secret > /etc/stag/gateways.secret)\n  \
    (umask 077; stag gateways secret --after /etc/stag/gateways.secret > gateways.next)")]
pub struct Secret {
    /// Print the file that follows this one: with its line 0, its newest secret, and a new one
    #[arg(long, value_name = "FILE")]
    pub after: Option<PathBuf>,
}

/// Move a unit to another gateway
#[derive(Clone, Debug, Args)]
#[command(
    long_about = "Move a unit to another gateway of the group, without an error for its initiators.\n\n\
    Its owner admits no more commands, waits for those in flight, and releases the image. The other gateway goes on with the unit and its reservations. \
    Commands in flight that do not end within 5 s cancel the move."
)]
#[command(
    after_long_help = "Examples:\n  stag move rbd/vm1 2\n  stag move iqn.2026-01.org.example:disks/0 2"
)]
pub struct Move {
    #[command(flatten)]
    pub at: At,
    /// The unit: POOL/IMAGE, or its target's name and number, IQN/LUN
    #[arg(value_name = "UNIT")]
    pub unit: String,
    /// The number of the gateway
    #[arg(value_name = "GATEWAY", value_parser = clap::value_parser!(u16).range(1..))]
    pub gateway: u16,
    /// Only print what it would disturb
    #[arg(short = 'n', long)]
    pub dry_run: bool,
}
