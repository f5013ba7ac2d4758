//! `stag identity`.

use std::path::PathBuf;

use clap::Args;

/// Show the identity of files, devices and object stores, or settle it after a copy
#[derive(Clone, Debug, Args)]
#[command(
    long_about = "Show the identity of files, devices and object stores, or settle it after a copy.\n\n\
    A unit's serial number and worldwide name are created once and belong to its medium: they move with a file. A copied file carries \
    the identity of the original, and Stag does not serve it until you settle which of them keeps it: --new gives the copy a new \
    identity; --keep states that the original is gone (a restored backup, a file moved to another file system)."
)]
#[command(
    after_long_help = "Examples:\n  stag identity /srv/disk.img\n  stag identity --new /srv/copy.img\n  stag identity --keep /srv/restored/*.img"
)]
pub struct Identity {
    /// Files, block devices, or directories of objects; stop serving them before a change
    #[arg(value_name = "PATH", required = true)]
    pub paths: Vec<PathBuf>,
    /// Give each a new identity
    #[arg(long, conflicts_with = "keep")]
    pub new: bool,
    /// Let each keep the identity it carries
    #[arg(long)]
    pub keep: bool,
}
