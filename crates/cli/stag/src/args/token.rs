//! `stag token`.

use clap::{Args, Subcommand};

use super::control::At;
use crate::tokens::Role;

/// Make, list and remove tokens of a daemon's HTTP API
#[derive(Clone, Debug, Args)]
#[command(long_about = "Make, list and remove tokens of a daemon's HTTP API.\n\n\
    A client sends its token as Authorization: Bearer TOKEN. A token has a role: metrics, read, operate or admin, each of which may do what those before it may. \
    `add` prints the token; the daemon keeps only its hash, in its state directory, so a token cannot be shown again. \
    Without any token the API refuses everything.")]
#[command(
    after_long_help = "Examples:\n  stag token add csi --role admin\n  stag token add prometheus --role metrics\n  stag token list\n  stag token remove csi"
)]
pub struct Token {
    #[command(flatten)]
    pub at: At,
    /// Print JSON
    #[arg(long, global = true)]
    pub json: bool,
    #[command(subcommand)]
    pub what: TokenWhat,
}

#[derive(Clone, Debug, Subcommand)]
pub enum TokenWhat {
    /// Make a token, and print it
    Add {
        /// Its name, which the audit log shows
        #[arg(value_name = "NAME")]
        name: String,
        /// What it permits
        #[arg(long, value_enum)]
        role: Role,
    },
    /// List names and roles
    List,
    /// Remove a token: what it was used for is refused from now on
    Remove {
        /// Its name
        #[arg(value_name = "NAME")]
        name: String,
    },
}
