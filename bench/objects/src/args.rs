//! The command line.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Parser, ValueEnum};

/// Loads an object-based storage device with one kind of command and prints one line of JSON
#[derive(Clone, Debug, Parser)]
#[command(name = "stag-osd-load", version)]
pub struct Args {
    /// The unit: iscsi://HOST:PORT/IQN/LUN or iser://…
    #[arg(required_unless_present = "floor")]
    pub url: Option<initiator::Url>,
    /// What to do
    #[arg(default_value = "ping")]
    pub what: What,
    /// Sessions, each with one command under way
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=256))]
    pub clients: u16,
    /// Bytes of one read or write
    #[arg(long, default_value_t = 4096, value_parser = clap::value_parser!(u32).range(1..=16 << 20))]
    pub size: u32,
    /// Bytes of each client's object that reads and writes go through from its beginning to its end
    #[arg(long, default_value_t = 16 << 20)]
    pub span: u64,
    /// How long to measure, seconds
    #[arg(long, default_value_t = 1.0)]
    pub seconds: f64,
    /// How long to load before that, seconds
    #[arg(long, default_value_t = 0.1)]
    pub warmup: f64,
    /// Commands that change something are on stable storage when they end (FUA); else they are not promised
    #[arg(long)]
    pub durable: bool,
    /// The partition that is used; it is created if it is missing
    #[arg(long, default_value_t = 0x10000)]
    pub partition: u64,
    /// fill: how many objects the partition has in the end
    #[arg(long, default_value_t = 1000)]
    pub objects: u64,
    /// Report the processor time of this process (the target's) per command too
    #[arg(long, value_name = "PID")]
    pub target_pid: Option<u32>,
    /// Wait awake for so many microseconds, at most
    #[arg(long, default_value_t = 50)]
    pub spin: u32,
    /// Without CRC or digests
    #[arg(long)]
    pub no_digests: bool,
    /// Instead: overwrite 4 KiB of this file, and fdatasync, over and over
    #[arg(long, value_name = "FILE")]
    pub floor: Option<PathBuf>,
}

impl Args {
    pub fn measure(&self) -> Duration {
        Duration::try_from_secs_f64(self.seconds).unwrap_or(Duration::from_secs(1))
    }

    pub fn warm(&self) -> Duration {
        Duration::try_from_secs_f64(self.warmup).unwrap_or_default()
    }
}

/// A kind of load.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum What {
    /// TEST UNIT READY
    Ping,
    /// CREATE of one object, then REMOVE of what was created: two results
    Create,
    /// GET ATTRIBUTES: one of 8 bytes, of one object
    Getattr,
    /// SET ATTRIBUTES: one of 8 bytes, of one object
    Setattr,
    /// READ
    Read,
    /// WRITE
    Write,
    /// GET ATTRIBUTES of objects of the partition, at random
    Lookup,
    /// LIST of a thousand ids, from an object at random
    List,
    /// CREATE of many until the partition has --objects
    Fill,
    /// READ (16) of a disk
    DiskRead,
    /// WRITE (16) of a disk
    DiskWrite,
}
