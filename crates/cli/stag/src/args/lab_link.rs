//! The arguments of `stag lab link`.

use std::ffi::OsString;
use std::path::PathBuf;

use ::lab::link::{Backend, LineOptions, LinkOptions, RateStep};
use clap::{Args, ValueEnum};

/// Run a command on an emulated link
#[derive(Clone, Debug, Args)]
#[command(long_about = "Run a command on an emulated link.\n\n\
    Creates two network namespaces joined by a line with the given delay, rate, queue, loss and reordering. Runs the command of --serve \
    on side A, waits until it listens on a TCP port, and runs COMMAND (default: a shell) on side B. Needs no root. Everything disappears \
    when COMMAND or stag ends, however it ends. Prints the line's counters and exits with COMMAND's status.\n\n\
    Side A is 198.18.0.1 and 2001:2::1, side B 198.18.0.2 and 2001:2::2; $STAG_LAB_ADDRESS holds the own side's address, \
    $STAG_LAB_PEER the other's. The second of several lines has 198.18.1.1 and 198.18.1.2, and so on; $STAG_LAB_PEERS holds the other side's \
    addresses on all lines.\n\n\
    Links: lan (25 µs one way), metro (0.25 ms), wan-0.2mi (2 µs), wan-1400mi (11.5 ms), wan-8600mi (70.6 ms), each of 1 Gb/s. \
    A value X/Y means X from side A to side B, and Y from B to A.")]
#[command(after_long_help = "Examples:\n  \
    stag lab link wan-1400mi\n  \
    stag lab link metro --measure --mtu 9000 -- true\n  \
    stag lab link wan-1400mi --serve 'stag serve mem:1G' -- sh -c 'stag bench iscsi://$STAG_LAB_PEER/IQN/0'\n  \
    stag lab link lan --delay 5ms --rate 100Mb/s/10Mb/s --loss 0.1%/0 --seed 7 -- COMMAND\n  \
    stag lab link metro --rate-plan 0=1Gb/s,500ms=100Mb/s --rate-period 1s -- COMMAND")]
pub struct LabLink {
    /// The link that supplies all values not given
    #[arg(value_name = "LINK", value_parser = preset)]
    pub preset: String,
    /// One-way delay, without serialisation: 11.5ms, 250us
    #[arg(long, value_name = "TIME")]
    pub delay: Option<String>,
    /// Vary the delay uniformly by up to this much either way, in order
    #[arg(long, value_name = "TIME")]
    pub jitter: Option<String>,
    /// Bits per second on the wire: 1Gb/s, 100Mb/s, unlimited
    #[arg(long, value_name = "RATE")]
    pub rate: Option<String>,
    /// Vary the rate from COMMAND's start on, instead of --rate: 0=1Gb/s,2s=100Mb/s
    #[arg(long, value_name = "PLAN", value_delimiter = ',', conflicts_with = "rate")]
    pub rate_plan: Vec<RateStep>,
    /// Repeat that plan after this time
    #[arg(long, value_name = "TIME", requires = "rate_plan")]
    pub rate_period: Option<String>,
    /// One of several lines, each with addresses of its own: 'rate=100Mb/s delay=1ms mtu=9000'.
    /// Values that it does not give are the link's; repeatable
    #[arg(long = "line", value_name = "VALUES")]
    pub lines: Vec<LineOptions>,
    /// Queue limit: 512KiB, 1000p (packets), or auto: a round trip, at least 500 kB and 16p
    #[arg(long, value_name = "SIZE")]
    pub queue: Option<String>,
    /// Share of packets lost: 0.1% or 0.001
    #[arg(long, value_name = "PART")]
    pub loss: Option<String>,
    /// Mean number of packets lost in a row
    #[arg(long, value_name = "PACKETS")]
    pub burst: Option<String>,
    /// Share of packets delivered late, behind others
    #[arg(long, value_name = "PART")]
    pub reorder: Option<String>,
    /// Extra delay of those packets [default: 500us]
    #[arg(long, value_name = "TIME")]
    pub reorder_by: Option<String>,
    /// The largest IP packet, bytes: 576 to 65535 [default: 1500]
    #[arg(long, value_name = "BYTES")]
    pub mtu: Option<u32>,
    /// Bytes on the wire per packet beside itself [default: 38, Ethernet's]
    #[arg(long, value_name = "BYTES")]
    pub overhead: Option<u32>,
    /// TCP's congestion control at both ends: cubic, reno, bbr [default: the machine's]
    #[arg(long, value_name = "NAME")]
    pub congestion: Option<String>,
    /// Seed of all random choices [default: 1]
    #[arg(long, value_name = "NUMBER")]
    pub seed: Option<u64>,
    /// The emulator
    #[arg(long, value_name = "WHAT", value_enum, default_value_t)]
    pub emulator: Emulator,
    /// Command to run on side A, by sh
    #[arg(long, value_name = "COMMAND")]
    pub serve: Option<String>,
    /// Measure the link first: round trip, loss, rate
    #[arg(long)]
    pub measure: bool,
    /// Write the link's values, setup, measurements and counters to this file, as JSON
    #[arg(long, value_name = "FILE")]
    pub record: Option<PathBuf>,
    /// Command to run on side B, with its arguments
    #[arg(value_name = "COMMAND", last = true)]
    pub command: Vec<OsString>,
}

/// What emulates the link.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum Emulator {
    /// netem if the kernel has it and it supports the values, else tun
    #[default]
    Auto,
    /// Stag's own, between two TUN devices
    Tun,
    /// The kernel's netem, on veth devices
    Netem,
}

impl LabLink {
    /// The link that is asked for, in words.
    pub fn options(&self) -> LinkOptions {
        LinkOptions {
            preset: self.preset.clone(),
            delay: self.delay.clone(),
            jitter: self.jitter.clone(),
            rate: self.rate.clone(),
            rate_plan: self.rate_plan.clone(),
            rate_period: self.rate_period.clone(),
            lines: self.lines.clone(),
            queue: self.queue.clone(),
            loss: self.loss.clone(),
            burst: self.burst.clone(),
            reorder: self.reorder.clone(),
            reorder_by: self.reorder_by.clone(),
            mtu: self.mtu,
            overhead: self.overhead,
            congestion: self.congestion.clone(),
            seed: self.seed,
            backend: Some(match self.emulator {
                Emulator::Auto => Backend::Auto,
                Emulator::Tun => Backend::Tun,
                Emulator::Netem => Backend::Netem,
            }),
        }
    }
}

fn preset(text: &str) -> Result<String, String> {
    text.parse::<LinkOptions>().map(|options| options.preset).map_err(|error| error.to_string())
}
