//! `stag lock`.

use clap::Args;

use crate::unit::UnitSpec;

/// Show which client of a Ceph cluster has an image's exclusive lock, or shut it out
#[derive(Clone, Debug, Args)]
#[command(
    long_about = "Show which client of a Ceph cluster has an image's exclusive lock, or shut it out.\n\n\
    A daemon serves an image only while it has its lock. It takes the lock of a dead client by itself, after half a minute, and never that of a \
    client that lives: a virtual machine, or another daemon. With --break the cluster refuses all that this client sends from now on, to this and all other \
    images, and the lock is free. What it has not written yet is lost. A daemon that waits for the lock then serves the image."
)]
#[command(
    after_long_help = "Examples:\n  stag lock rbd:rbd/disk\n  stag lock rbd:rbd/disk,ceph-user=stag\n  stag lock --break rbd:rbd/disk,ceph-user=stag"
)]
pub struct Lock {
    /// The image, as `stag serve` takes it
    #[arg(value_name = "rbd:POOL/IMAGE[,option...]", value_parser = crate::unit::parse)]
    pub image: UnitSpec,
    /// Have the cluster shut out the client that has the lock
    #[arg(long = "break")]
    pub and_break: bool,
}
