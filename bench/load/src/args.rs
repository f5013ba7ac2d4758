//! The command line.

use std::net::SocketAddr;

use clap::{Parser, ValueEnum};

use crate::LoadError;

/// Loads an iSCSI logical unit or a file of NFS and prints one line of JSON
#[derive(Clone, Debug, Parser)]
#[command(name = "stag-load", version, after_help = EXAMPLES)]
pub struct Args {
    /// The unit: iscsi://HOST:PORT/IQN/LUN, a file: nfs://HOST:PORT/EXPORT/FILE (version 3), or
    /// tcp://HOST:PORT of a --floor-target
    #[arg(required_unless_present_any = ["null_target", "floor_target", "between"])]
    pub url: Option<String>,
    /// Kind and order of I/Os
    #[arg(default_value = "rr")]
    pub pattern: Pattern,
    /// Bytes of one I/O, 512 to 1M; a multiple of the unit's block size
    #[arg(default_value = "4K", value_parser = parse_bytes)]
    pub block: usize,
    /// Commands in flight on each connection
    #[arg(default_value_t = 32, value_parser = clap::value_parser!(u16).range(1..=1024))]
    pub depth: u16,
    /// How long to measure, in seconds
    #[arg(default_value_t = 5.0)]
    pub seconds: f64,
    /// Connections, each with a session of its own
    #[arg(default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=256))]
    pub connections: u16,
    /// Poll the sockets instead of sleeping until one is readable
    #[arg(long)]
    pub spin: bool,
    /// Bytes of one receive [default: eight I/Os, from 64K to 512K]. A client that receives a whole
    /// window at once works in lock-step with the target; several receives keep both busy
    #[arg(long, value_name = "BYTES", value_parser = parse_bytes)]
    pub receive: Option<usize>,
    /// Reads in 100 commands of a mixed pattern
    #[arg(long, default_value_t = 70, value_parser = clap::value_parser!(u8).range(0..=100))]
    pub read_percent: u8,
    /// Seconds of load before the measurement
    #[arg(long, default_value_t = 0.2)]
    pub warmup: f64,
    /// Write every block of the unit once, in order, instead of measuring
    #[arg(long, conflicts_with_all = ["connections", "warmup"])]
    pub fill: bool,
    /// Also report the processor time of this process (the target's) per I/O
    #[arg(long, value_name = "PID")]
    pub target_pid: Option<u32>,
    /// The initiator's name: one host, however many connections. With --hold a session's number is
    /// appended
    #[arg(long, default_value = "iqn.2026-01.org.stag:load")]
    pub initiator: String,
    /// Where MOUNT is served, if not at the port of NFS
    #[arg(long, value_name = "PORT")]
    pub mount_port: Option<u16>,
    /// Instead of loading: log in N sessions and keep them idle until the end of standard input.
    /// For each line of it, print the number of pings answered
    #[arg(long, value_name = "N", conflicts_with_all = ["fill", "target_pid"], value_parser = clap::value_parser!(u32).range(1..=60_000))]
    pub hold: Option<u32>,
    /// Instead of loading: serve raw TCP with the byte counts of iSCSI, on ADDR:PORT
    #[arg(long, value_name = "ADDR:PORT", conflicts_with_all = ["url", "null_target"])]
    pub floor_target: Option<SocketAddr>,
    /// MiB of memory for the payload of a --floor-target
    #[arg(long, value_name = "MIB", default_value_t = 1024, value_parser = clap::value_parser!(u32).range(1..=65_536))]
    pub floor_mib: u32,
    /// Instead of loading: serve a target that stores nothing, on ADDR:PORT: the cost of iSCSI
    /// itself, and a check of this tool
    #[arg(long, value_name = "ADDR:PORT", conflicts_with = "url")]
    pub null_target: Option<SocketAddr>,
    /// Instead of loading: print the time of a cache line between two cores, ns
    #[arg(long, value_name = "CORE", num_args = 2, conflicts_with_all = ["url", "null_target", "floor_target"])]
    pub between: Vec<usize>,
}

impl Args {
    /// Bytes taken off a socket at once.
    pub fn receive(&self) -> usize {
        self.receive.unwrap_or_else(|| (8 * self.block).clamp(64 * 1024, 512 * 1024))
    }
}

const EXAMPLES: &str = "\
Examples:
  stag-load iscsi://127.0.0.1:3260/iqn.2026-01.org.stag:disk/0 rr 4K 32 5
  stag-load --target-pid $(pidof tgtd) iscsi://127.0.0.1:3260/iqn.2001-04.com.example:t/1 sw 256K 16 5
  stag-load --target-pid $(pidof stag) nfs://127.0.0.1:2049/data/file getattr 4K 32 5
  stag-load --floor-target 127.0.0.1:3261 & stag-load --target-pid $! tcp://127.0.0.1:3261 rr 4K 32 5
  stag-load --hold 10000 iscsi://127.0.0.1:3260/iqn.2026-01.org.stag:disk/0";

/// Kinds and order of I/Os.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Pattern {
    /// Random reads
    Rr,
    /// Random writes
    Rw,
    /// Random reads and writes
    Rm,
    /// Sequential reads
    Sr,
    /// Sequential writes
    Sw,
    /// Sequential reads and writes
    Sm,
    /// NULL
    Null,
    /// GETATTR of the file
    Getattr,
    /// LOOKUP of the file in its directory
    Lookup,
    /// READDIRPLUS of the file, which is a directory of one reply
    Readdirplus,
    /// CREATE of new names in the file, which is a directory
    Create,
}

impl Pattern {
    /// Whether addresses are random.
    pub fn random(self) -> bool {
        matches!(self, Self::Rr | Self::Rw | Self::Rm)
    }

    /// Only NFS has it: calls without data.
    pub fn is_call(self) -> bool {
        !matches!(self, Self::Rr | Self::Rw | Self::Rm | Self::Sr | Self::Sw | Self::Sm)
    }

    /// Percentage of commands that read; `mixed` for a mixed pattern.
    pub fn read_percent(self, mixed: u8) -> u8 {
        match self {
            Self::Rr | Self::Sr => 100,
            Self::Rw | Self::Sw => 0,
            _ => mixed,
        }
    }
}

/// Bytes with an optional K or M (powers of 1024), from 512 bytes to 1 MiB, in steps of 512.
fn parse_bytes(text: &str) -> Result<usize, String> {
    let (digits, unit) = match text.trim_end_matches("iB").trim_end_matches(['k', 'K', 'm', 'M']) {
        digits if digits.len() == text.len() => (digits, 1),
        digits if text[digits.len()..].starts_with(['m', 'M']) => (digits, 1 << 20),
        digits => (digits, 1 << 10),
    };
    let bytes = digits.parse::<usize>().ok().and_then(|n| n.checked_mul(unit));
    bytes
        .filter(|n| (512..=1 << 20).contains(n) && n % 512 == 0)
        .ok_or_else(|| "write a multiple of 512 from 512 to 1M, for example 4K".into())
}

/// Address of a unit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unit {
    /// Host and port as `ToSocketAddrs` takes them.
    pub portal: String,
    /// The target's name.
    pub target: String,
    /// The LUN.
    pub lun: u16,
}

impl Unit {
    /// Takes `iscsi://HOST[:PORT]/IQN/LUN` apart; the port is 3260 if there is none.
    ///
    /// # Errors
    /// [`LoadError::Usage`] that shows what is expected.
    pub fn parse(url: &str) -> Result<Self, LoadError> {
        let usage = || LoadError::Usage(format!("'{url}' is not of the form iscsi://HOST:PORT/IQN/LUN"));
        let rest = url.strip_prefix("iscsi://").ok_or_else(usage)?;
        let (portal, rest) = rest.split_once('/').ok_or_else(usage)?;
        let (target, lun) = rest.split_once('/').ok_or_else(usage)?;
        let lun = lun.parse().ok().filter(|lun| *lun < 1 << 14).ok_or_else(usage)?;
        let has_port =
            portal.rsplit_once(':').is_some_and(|(host, _)| !host.contains(':') || host.ends_with(']'));
        let portal = if has_port { portal.to_owned() } else { format!("{portal}:3260") };
        if target.is_empty() || portal.starts_with(':') {
            return Err(usage());
        }
        Ok(Self { portal, target: target.to_owned(), lun })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_line_is_consistent() {
        use clap::CommandFactory;
        Args::command().debug_assert();
    }

    #[test]
    fn sizes_are_read_with_and_without_units() {
        assert_eq!(parse_bytes("512"), Ok(512));
        assert_eq!(parse_bytes("4K"), Ok(4096));
        assert_eq!(parse_bytes("256KiB"), Ok(256 * 1024));
        assert_eq!(parse_bytes("1M"), Ok(1 << 20));
        for bad in ["", "K", "2M", "0", "511", "513", "1G", "-1", "18446744073709551615K"] {
            assert!(parse_bytes(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn urls_are_taken_apart() {
        let unit = Unit::parse("iscsi://127.0.0.1:3261/iqn.x:a/7").unwrap();
        assert_eq!(unit, Unit { portal: "127.0.0.1:3261".into(), target: "iqn.x:a".into(), lun: 7 });
        assert_eq!(Unit::parse("iscsi://[::1]/iqn.x:a/0").unwrap().portal, "[::1]:3260");
        assert_eq!(Unit::parse("iscsi://[::1]:99/iqn.x:a/0").unwrap().portal, "[::1]:99");
        for bad in [
            "iscsi://h/t",
            "http://h/t/0",
            "iscsi://h/t/x",
            "iscsi:///t/0",
            "iscsi://h//0",
            "iscsi://h/t/16384",
        ] {
            assert!(Unit::parse(bad).is_err(), "{bad}");
        }
    }
}
