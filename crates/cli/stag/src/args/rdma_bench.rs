//! `stag rdma-bench`: which side this is, what is moved and how it is told.

use std::net::SocketAddr;
use std::str::FromStr;

use clap::{Args, ValueEnum};

use super::bench::{Depths, not_negative, positive, series};
use super::{Rdma, RdmaCrc};

/// Measure RDMA itself: reads, writes and sends between two sides
#[derive(Clone, Debug, Args)]
#[command(
    long_about = "Measure RDMA itself: reads, writes and sends between two sides, without storage.\n\n\
    One side listens and exposes memory; the other one connects to it, generates the load and reports. Both use software iWARP, which \
    needs no RDMA hardware, or both an RDMA device (--rdma verbs). Every combination of operations, sizes and depths is a run over a \
    connection of its own.\n\n\
    An RDMA Write or a Send is in flight until the other side acknowledges it, as with InfiniBand, so \
    that --depth means the same for all operations."
)]
#[command(after_long_help = EXAMPLES)]
pub struct RdmaBench {
    /// The listening side; without it, listen
    #[arg(value_name = "HOST[:PORT]", value_parser = place)]
    pub server: Option<SocketAddr>,
    #[command(flatten)]
    pub answer: Answer,
    #[command(flatten)]
    pub load: RdmaLoad,
    #[command(flatten)]
    pub wire: Wire,
    #[command(flatten)]
    pub output: RdmaOutput,
}

/// The side that answers.
#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "Listening side")]
pub struct Answer {
    /// Listen on this IP address, port 18515 unless given, and print it. Port 0 takes a free port
    /// [default: 127.0.0.1:18515]
    #[arg(short, long, value_name = "ADDR:PORT", value_parser = listen, conflicts_with = "server")]
    pub listen: Option<SocketAddr>,
    /// Exit after the first client
    #[arg(long, conflicts_with = "server")]
    pub once: bool,
    /// Most memory per client; at most eight clients connect
    #[arg(long, value_name = "SIZE", default_value = "64M", value_parser = super::size, conflicts_with = "server")]
    pub memory: u64,
}

/// What is done.
#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "Load")]
pub struct RdmaLoad {
    /// Operations, one or more
    #[arg(short, long, value_enum, value_delimiter = ',', default_value = "read")]
    pub operation: Vec<Operation>,
    /// Bytes of a message: 4k, a list 4k,64k or a sweep 1k..4M that doubles; at most 16M
    #[arg(short, long, visible_alias = "bs", value_name = "SIZES", default_value = "64k")]
    pub size: Lengths,
    /// Messages in flight: 16, a list 1,4,16 or a sweep 1..64 that doubles
    #[arg(short, long, value_name = "NUMBERS", default_value = "16")]
    pub depth: Depths,
    /// Most RDMA Reads on the wire at once (ORD); further ones wait [default: --depth]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=4096))]
    pub outstanding: Option<u16>,
    /// When this side exposes the memory of its messages to the other one
    #[arg(long, value_enum, value_name = "WHEN", default_value_t = Register::Never)]
    pub register: Register,
    /// Seconds of each run
    #[arg(short, long, value_name = "SECONDS", default_value_t = 5.0, value_parser = positive)]
    pub time: f64,
    /// Connect, print `ready` on stderr, and begin each run when a line comes on stdin, so that
    /// several processes begin together
    #[arg(long)]
    pub wait: bool,
    /// Seconds of load before each run, not measured
    #[arg(long, value_name = "SECONDS", default_value_t = 0.2, value_parser = not_negative)]
    pub warmup: f64,
}

/// How the bytes are moved.
#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "Connection")]
pub struct Wire {
    /// The RDMA implementation, the same on both sides
    #[arg(long, value_enum, default_value_t = Rdma::Software)]
    pub rdma: Rdma,
    /// With --rdma verbs, bind memory windows of any device that has them: Linux's rxe too, whose
    /// windows let the other side reach up to 2 MiB around the memory
    #[arg(long)]
    pub any_windows: bool,
    /// CRC32C of data that software iWARP sends; on if either side asks for it
    #[arg(long, value_enum, default_value_t = RdmaCrc::Never)]
    pub rdma_crc: RdmaCrc,
    /// Longest FPDU that software iWARP sends from this side, bytes
    #[arg(long, value_name = "SIZE", default_value = "64K", value_parser = fpdu)]
    pub fpdu: u64,
    /// How long to poll for work before sleeping, µs
    #[arg(long, value_name = "µs", default_value_t = 50, value_parser = clap::value_parser!(u32).range(0..=1_000_000))]
    pub spin: u32,
    /// The processor to run on
    #[arg(long, value_name = "CPU")]
    pub cpu: Option<u16>,
    /// Timeout of the connection and of the end of a run, seconds
    #[arg(long, value_name = "SECONDS", default_value_t = 30, value_parser = clap::value_parser!(u32).range(1..=3600))]
    pub timeout: u32,
}

/// How it is told.
#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "Output")]
pub struct RdmaOutput {
    /// Print one JSON document at the end
    #[arg(long)]
    pub json: bool,
}

const EXAMPLES: &str = "\
Examples:
  stag rdma-bench --listen 192.0.2.1                             (on the one machine)
  stag rdma-bench 192.0.2.1 --operation read,write --size 512..1M
  stag rdma-bench 192.0.2.1 --depth 100 --outstanding 4 --json | jq '.runs[].mb_s'
  stag rdma-bench 192.0.2.1 --operation send --size 64 --depth 1      (latency)";

/// The port, where none is named.
pub const PORT: u16 = 18515;
/// The longest message, bytes.
pub const MAX_LEN: u32 = 16 << 20;

/// What is moved, and who asks for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Operation {
    /// RDMA Reads of the other side's memory
    Read,
    /// RDMA Writes to the other side's memory
    Write,
    /// Sends
    Send,
}

/// When memory gets an STag.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Register {
    /// No message needs it
    Never,
    /// Once, for the whole run
    Run,
    /// For each message, as iSER does: exposed before, withdrawn when the message ends
    Message,
}

impl Operation {
    /// Its name on the command line and in reports.
    pub fn name(self) -> &'static str {
        match self {
            Self::Read => "read",
            Self::Write => "write",
            Self::Send => "send",
        }
    }
}

/// Bytes of a message, one or more, 1 to [`MAX_LEN`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Lengths(pub Vec<u32>);

impl FromStr for Lengths {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let one = |word: &str| {
            let len = u32::try_from(super::size(word)?).ok().filter(|len| (1..=MAX_LEN).contains(len));
            len.ok_or_else(|| format!("{word} is not from 1 to 16M"))
        };
        series(text, one).map(Self)
    }
}

fn fpdu(text: &str) -> Result<u64, String> {
    super::size(text).and_then(|len| match len {
        256..=65_544 => Ok(len),
        _ => Err("write a length from 256 to 64K".into()),
    })
}

fn listen(text: &str) -> Result<SocketAddr, String> {
    match text.parse::<std::net::IpAddr>() {
        Ok(address) => Ok((address, PORT).into()),
        Err(_) => text
            .parse()
            .map_err(|_| "write an IP address and a port: 192.0.2.1, 192.0.2.1:18515 or [::]:0".into()),
    }
}

/// An address, or a name that is looked up, with a port or for the usual one.
fn place(text: &str) -> Result<SocketAddr, String> {
    use std::net::ToSocketAddrs;
    if let Ok(address) = listen(text) {
        return Ok(address);
    }
    let found = match text.rsplit_once(':') {
        Some((_, port)) if !port.is_empty() && port.bytes().all(|byte| byte.is_ascii_digit()) => {
            text.to_socket_addrs()
        }
        _ => (text, PORT).to_socket_addrs(),
    };
    let mut found = found.map_err(|error| format!("{text}: {error}"))?;
    found.next().ok_or_else(|| format!("{text} has no address"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lengths_are_one_a_list_or_a_sweep_that_doubles() {
        assert_eq!("1".parse::<Lengths>().unwrap().0, [1]);
        assert_eq!("4k..16k,1M".parse::<Lengths>().unwrap().0, [4096, 8192, 16384, 1 << 20]);
        for wrong in ["", "0", "17M", "1..", "x"] {
            assert!(wrong.parse::<Lengths>().is_err(), "{wrong}");
        }
    }

    #[test]
    fn the_other_side_has_a_port_of_its_own_if_none_is_named() {
        assert_eq!(place("192.0.2.1").unwrap(), "192.0.2.1:18515".parse().unwrap());
        assert_eq!(place("[2001:db8::1]:7").unwrap(), "[2001:db8::1]:7".parse().unwrap());
        assert_eq!(listen("::").unwrap(), "[::]:18515".parse().unwrap());
        assert!(listen("localhost").is_err() && fpdu("255").is_err() && fpdu("64K").is_ok());
    }
}
