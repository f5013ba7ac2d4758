//! `stag osd bench`: what is done to a device of objects, and how it is told.

use std::path::PathBuf;

use clap::{Args, ValueEnum};
use iscsi_client::Url;

use super::bench::{not_negative, positive};
use super::{Connect, url};

/// Measure an object device: latencies and rates of one kind of command
#[derive(Clone, Debug, Args)]
#[command(long_about = "Measure an object device: latencies and rates of one kind of command.\n\n\
    Each client is a session of its own with one command in flight. The run writes only to a partition that it creates and \
    removes, unless --partition names one. The device must not require credentials.")]
#[command(after_long_help = EXAMPLES)]
pub struct OsdBench {
    /// The device: iscsi://HOST[:PORT]/IQN/LUN, or iser:// for RDMA
    #[arg(value_name = "URL", value_parser = url::unit, required_unless_present = "floor")]
    pub url: Option<Url>,
    /// The kind of command
    #[arg(value_enum, default_value_t = What::Ping)]
    pub what: What,
    /// Sessions, each with one command in flight
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=256))]
    pub clients: u16,
    /// Bytes of one read or write
    #[arg(long, value_name = "SIZE", default_value = "4k", value_parser = transfer)]
    pub size: u32,
    /// Bytes of each client's object, read and written sequentially
    #[arg(long, value_name = "SIZE", default_value = "16M", value_parser = super::size)]
    pub span: u64,
    /// Make changes durable before they complete (FUA)
    #[arg(long)]
    pub durable: bool,
    /// Use this partition, created if missing, and keep it afterwards
    #[arg(long, value_name = "ID", value_parser = super::place::id)]
    pub partition: Option<u64>,
    /// For fill: the number of objects in the partition at the end
    #[arg(long, value_name = "N", default_value_t = 1000)]
    pub objects: u64,
    /// Instead of a device: overwrite 4 KiB of this file and fdatasync, repeatedly: the least cost
    /// of a durable command
    #[arg(long, value_name = "FILE", conflicts_with = "url")]
    pub floor: Option<PathBuf>,
    /// Seconds of the run
    #[arg(short, long, value_name = "SECONDS", default_value_t = 5.0, value_parser = positive)]
    pub time: f64,
    /// Commands of each client, instead of a time
    #[arg(long, value_name = "N", conflicts_with = "floor", value_parser = clap::value_parser!(u64).range(1..))]
    pub count: Option<u64>,
    /// Prepare and warm up, print `ready` on stderr, and begin when a line comes on stdin, so that
    /// several processes begin together
    #[arg(long, conflicts_with = "floor")]
    pub wait: bool,
    /// Seconds of load before the run, not measured
    #[arg(long, value_name = "SECONDS", default_value_t = 0.1, value_parser = not_negative)]
    pub warmup: f64,
    /// How long to poll for responses before sleeping, µs
    #[arg(long, value_name = "µs", default_value_t = 50, value_parser = clap::value_parser!(u32).range(0..=1_000_000))]
    pub spin: u32,
    /// Also measure the processor time of this process: the target's
    #[arg(long, value_name = "PID", value_parser = clap::value_parser!(u32).range(1..))]
    pub target_pid: Option<u32>,
    /// Print one line of JSON
    #[arg(long)]
    pub json: bool,
    #[command(flatten)]
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
    /// CREATE of an object, then REMOVE of it: two results
    Create,
    /// GET ATTRIBUTES: one of 8 bytes, of one object
    Getattr,
    /// SET ATTRIBUTES: one of 8 bytes, of one object
    Setattr,
    /// READ
    Read,
    /// WRITE
    Write,
    /// GET ATTRIBUTES of random objects of the partition
    Lookup,
    /// LIST of a thousand ids, from a random object
    List,
    /// CREATE until the partition has --objects
    Fill,
    /// READ (16) of a disk
    DiskRead,
}

fn transfer(text: &str) -> Result<u32, String> {
    let size = u32::try_from(super::size(text)?).ok().filter(|size| (1..=16 << 20).contains(size));
    size.ok_or_else(|| format!("{text} is not from 1 to 16M"))
}
