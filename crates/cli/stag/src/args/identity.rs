//! `stag identity`.

use std::path::PathBuf;

use clap::Args;

/// Show the identity of units on files, devices and stores of objects, or settle it after a copy
#[derive(Clone, Debug, Args)]
#[command(
    long_about = "Show the identity of units on files, devices and stores of objects, or settle it after a copy.\n\n\
    A unit's serial number and worldwide name are made once and belong to its medium: they move with a file. A copy of a file brings \
    the identity of the original, and is not served until it is settled which of both keeps it: --new gives the copy one of its own, \
    --keep says that the original is gone (a backup that was restored, a file that was moved to another file system)."
)]
#[command(
    after_long_help = "Examples:\n  stag identity /srv/disk.img\n  stag identity --new /srv/copy.img\n  stag identity --keep /srv/restored/*.img"
)]
pub struct Identity {
    /// Files, block devices, or directories of objects, none of which is being served when it is changed
    #[arg(value_name = "PATH", required = true)]
    pub paths: Vec<PathBuf>,
    /// Give each an identity of its own
    #[arg(long, conflicts_with = "keep")]
    pub new: bool,
    /// Let each keep the identity that it has brought
    #[arg(long)]
    pub keep: bool,
}
