//! The arguments of `stag lab link`.

use std::ffi::OsString;
use std::path::PathBuf;

use ::lab::link::{Backend, LinkOptions};
use clap::{Args, ValueEnum};

/// Run a command on an emulated link
#[derive(Clone, Debug, Args)]
#[command(long_about = "Run a command on an emulated link.\n\n\
    Makes two network namespaces joined by a line of stated delay, rate, queue, loss and order; runs what --serve names on side A, \
    waits until that listens on a TCP port, and runs COMMAND (a shell without one) on side B. Needs no root. Everything is gone \
    when COMMAND ends, or stag does, in whatever way; then the counters of the line are printed. Ends with COMMAND's status.\n\n\
    Side A is 198.18.0.1 and 2001:2::1, side B 198.18.0.2 and 2001:2::2; commands find their own side's address in $STAG_LAB_ADDRESS \
    and the other's in $STAG_LAB_PEER.\n\n\
    Links: lan (25 µs one way), metro (0.25 ms), wan-0.2mi (2 µs), wan-1400mi (11.5 ms), wan-8600mi (70.6 ms), each of 1 Gb/s. \
    Where a value says X, X/Y is X from side A to side B, and Y from B to A.")]
#[command(after_long_help = "Examples:\n  \
    stag lab link wan-1400mi\n  \
    stag lab link metro --measure --mtu 9000 -- true\n  \
    stag lab link wan-1400mi --serve 'stag serve mem:1G' -- sh -c 'stag bench iscsi://$STAG_LAB_PEER/IQN/0'\n  \
    stag lab link lan --delay 5ms --rate 100Mb/s/10Mb/s --loss 0.1%/0 --seed 7 -- COMMAND")]
pub struct LabLink {
    /// The link that values which are not given are taken from
    #[arg(value_name = "LINK", value_parser = preset)]
    pub preset: String,
    /// One way, without the time on the line: 11.5ms, 250us
    #[arg(long, value_name = "TIME")]
    pub delay: Option<String>,
    /// The delay varies evenly by up to this much either way; the order is kept
    #[arg(long, value_name = "TIME")]
    pub jitter: Option<String>,
    /// Bits per second on the wire: 1Gb/s, 100Mb/s, unlimited
    #[arg(long, value_name = "RATE")]
    pub rate: Option<String>,
    /// What may wait for the line: 512KiB, 1000p (packets), auto (what passes in a round trip, and 500 kB at least)
    #[arg(long, value_name = "SIZE")]
    pub queue: Option<String>,
    /// The part of packets that the line loses: 0.1% or 0.001
    #[arg(long, value_name = "PART")]
    pub loss: Option<String>,
    /// How many packets are lost in a row, on average
    #[arg(long, value_name = "PACKETS")]
    pub burst: Option<String>,
    /// The part of packets that come late, behind others
    #[arg(long, value_name = "PART")]
    pub reorder: Option<String>,
    /// How much later those come [default: 500us]
    #[arg(long, value_name = "TIME")]
    pub reorder_by: Option<String>,
    /// The largest IP packet, bytes: 576 to 9216 [default: 1500]
    #[arg(long, value_name = "BYTES")]
    pub mtu: Option<u32>,
    /// What each packet costs on the wire beside itself, bytes [default: 38, Ethernet's]
    #[arg(long, value_name = "BYTES")]
    pub overhead: Option<u32>,
    /// What all chance is drawn from: the same packets fare the same [default: 1]
    #[arg(long, value_name = "NUMBER")]
    pub seed: Option<u64>,
    /// What does the work
    #[arg(long, value_name = "WHAT", value_enum, default_value_t)]
    pub emulator: Emulator,
    /// What to run on side A, by sh
    #[arg(long, value_name = "COMMAND")]
    pub serve: Option<String>,
    /// Measure the link first: round trip, loss, rate
    #[arg(long)]
    pub measure: bool,
    /// Write the link's values, how it came up, what was measured and the counters there, as JSON
    #[arg(long, value_name = "FILE")]
    pub record: Option<PathBuf>,
    /// What to run on side B, with its arguments
    #[arg(value_name = "COMMAND", last = true)]
    pub command: Vec<OsString>,
}

/// What emulates the link.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum Emulator {
    /// netem where the kernel has it and it can do what is asked for, else tun
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
            queue: self.queue.clone(),
            loss: self.loss.clone(),
            burst: self.burst.clone(),
            reorder: self.reorder.clone(),
            reorder_by: self.reorder_by.clone(),
            mtu: self.mtu,
            overhead: self.overhead,
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
