//! `stag osd bench`: what is done to a device of objects, and how it is told.

use std::path::PathBuf;

use clap::{Args, ValueEnum};
use iscsi_client::Url;

use super::bench::{not_negative, positive};
use super::{Connect, url};

/// Measure a device of objects: latencies and rates of one kind of command
#[derive(Clone, Debug, Args)]
#[command(long_about = "Measure a device of objects: latencies and rates of one kind of command.\n\n\
    Each client is a session of its own with one command under way. All that is created and written lies in a partition that is made for \
    this run and removed after it, unless --partition names one. The device must want no credentials.")]
#[command(after_long_help = EXAMPLES)]
pub struct OsdBench {
    /// The device: iscsi://HOST[:PORT]/IQN/LUN, or iser:// for RDMA
    #[arg(value_name = "URL", value_parser = url::unit, required_unless_present = "floor")]
    pub url: Option<Url>,
    /// What to do
    #[arg(value_enum, default_value_t = What::Ping)]
    pub what: What,
    /// Sessions, each with one command under way
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=256))]
    pub clients: u16,
    /// Bytes of one read or write
    #[arg(long, value_name = "SIZE", default_value = "4k", value_parser = transfer)]
    pub size: u32,
    /// Bytes of each client's object that reads and writes go through from its beginning to its end
    #[arg(long, value_name = "SIZE", default_value = "16M", value_parser = super::size)]
    pub span: u64,
    /// Commands that change something are on stable storage when they end (FUA); else they are not promised
    #[arg(long)]
    pub durable: bool,
    /// Use this partition, which is made if it is missing, and leave what was made there, if not removed
    #[arg(long, value_name = "ID", value_parser = super::place::id)]
    pub partition: Option<u64>,
    /// fill: how many objects the partition has in the end
    #[arg(long, value_name = "N", default_value_t = 1000)]
    pub objects: u64,
    /// Instead: overwrite 4 KiB of this file, and fdatasync, over and over: what every durable command costs at least
    #[arg(long, value_name = "FILE", conflicts_with = "url")]
    pub floor: Option<PathBuf>,
    /// Seconds of the run
    #[arg(short, long, value_name = "SECONDS", default_value_t = 5.0, value_parser = positive)]
    pub time: f64,
    /// Seconds of load before it that do not count
    #[arg(long, value_name = "SECONDS", default_value_t = 0.1, value_parser = not_negative)]
    pub warmup: f64,
    /// How long to look for answers before sleeping, µs
    #[arg(long, value_name = "µs", default_value_t = 50, value_parser = clap::value_parser!(u32).range(0..=1_000_000))]
    pub spin: u32,
    /// Count the processor time of this process too: the target's
    #[arg(long, value_name = "PID", value_parser = clap::value_parser!(u32).range(1..))]
    pub target_pid: Option<u32>,
    /// As one line of JSON
    #[arg(long)]
    pub json: bool,
    #[command(flatten)]
    #[allow(missing_docs)]
    pub connect: Connect,
}

const EXAMPLES: &str = "\
Examples:
  stag osd bench iscsi://192.0.2.1/iqn.2026-01.org.example:osd/0
  stag osd bench URL create --durable
  stag osd bench URL read --size 200k --clients 8 --json | jq .mb_s
  stag osd bench URL fill --partition 0x20000 --objects 1000000
  stag osd bench --floor /srv/objects/floor";

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
}

fn transfer(text: &str) -> Result<u32, String> {
    let size = u32::try_from(super::size(text)?).ok().filter(|size| (1..=16 << 20).contains(size));
    size.ok_or_else(|| format!("{text} is not from 1 to 16M"))
}
