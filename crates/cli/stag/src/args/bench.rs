//! `stag bench`: what is run, how it is measured and how it is told.

use std::path::PathBuf;
use std::str::FromStr;

use clap::{Args, ValueEnum};

use super::url::Remote;
use super::{Connect, url};

/// Measure units or files: rates, latencies and processor time; verify their data
#[derive(Clone, Debug, Args)]
#[command(long_about = "Measure units or files: rates, latencies and processor time; verify their data.\n\n\
    Every combination of the block sizes, depths and patterns is a run of its own. Patterns that write destroy the data on \
    the units, so they need --destroy. With --rate, latency counts from the time an I/O was due, however late it \
    could be sent.\n\n\
    With --verify, every written block carries its address and a generation, and every block read is compared \
    with the acknowledged writes, also after a reconnect. At the end of a run all blocks written in \
    it are read once more.\n\n\
    A load that writes creates a missing NFS file, and extends one shorter than --span. Writes \
    are UNSTABLE, with a COMMIT after every 64 MiB and at the end; with --file-sync or --verify each is FILE_SYNC. \
    Errors count a file in blocks of 512 bytes.\n\n\
    The patterns null, getattr, lookup, create and readdirplus load an NFS server with calls without data; the URL names a \
    directory, of which getattr and lookup take the existing entries. In version 4 create opens a file and closes it, \
    and readdirplus is READDIR with attributes.")]
#[command(after_long_help = EXAMPLES)]
pub struct Bench {
    /// The units: iscsi://HOST[:PORT]/IQN/LUN, or iser:// for RDMA; or files:
    /// nfs://HOST[:PORT]/PATH, or nfs+rdma://
    #[arg(value_name = "URL", value_parser = url::remote, required = true)]
    pub urls: Vec<Remote>,
    #[command(flatten)]
    pub load: Load,
    #[command(flatten)]
    pub limits: Measure,
    #[command(flatten)]
    pub output: Output,
    #[command(flatten)]
    pub connect: Connect,
}

/// What is done.
#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "Load")]
pub struct Load {
    /// Kinds of I/O, one or more
    #[arg(short, long, visible_alias = "rw", value_enum, value_delimiter = ',', default_value = "randread")]
    pub pattern: Vec<Pattern>,
    /// Bytes of an I/O: 4k, a list 4k,64k or a sweep 512..1M that doubles; of files up to 16M
    #[arg(short, long, value_name = "SIZES", default_value = "4k")]
    pub bs: Sizes,
    /// Commands in flight on each session: 32, a list 1,8,32 or a sweep 1..128 that doubles
    #[arg(short, long, value_name = "NUMBERS", default_value = "32")]
    pub depth: Depths,
    /// Reads in 100 I/Os of rw and randrw
    #[arg(long, value_name = "PERCENT", default_value_t = 50, value_parser = clap::value_parser!(u8).range(0..=100))]
    pub read_percent: u8,
    /// Choose random addresses by Zipf's law with this exponent, such as 0.99 [default: uniform]
    #[arg(long, value_name = "THETA", value_parser = theta)]
    pub zipf: Option<f64>,
    /// Sessions per initiator and unit
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=1024))]
    pub sessions: u16,
    /// Initiators; .1, .2, … is appended to the name of --initiator
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=1024))]
    pub initiators: u16,
    /// Only the first SIZE bytes of each unit
    #[arg(long, value_name = "SIZE", value_parser = super::size)]
    pub span: Option<u64>,
    /// I/Os a second over all sessions, sent on schedule; latency counts from the time one was due
    #[arg(long, value_name = "IOPS", value_parser = positive)]
    pub rate: Option<f64>,
    /// Compare every block read with the writes of this run
    #[arg(long)]
    pub verify: bool,
    /// Memory for the generations of --verify, 8 bytes per I/O address; bounds the part of the
    /// units in use
    #[arg(long, value_name = "SIZE", default_value = "256M", value_parser = super::size)]
    pub verify_memory: u64,
    /// For units: what becomes of read data; --verify delivers. Data of NFS are always delivered
    #[arg(long, value_enum, value_name = "HOW", default_value_t = Receive::Deliver)]
    pub receive: Receive,
    /// For files: each write is stable before its reply (FILE_SYNC)
    #[arg(long)]
    pub file_sync: bool,
    /// For files: bytes of a READ or WRITE at most; those of one I/O are in flight together
    /// [default: what the server takes]
    #[arg(long, value_name = "SIZE", value_parser = call_bytes)]
    pub call: Option<u32>,
    /// For files over RDMA: RDMA Reads of the server in flight at most; they fetch what is written
    /// [default: 128]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=128))]
    pub rdma_reads: Option<u16>,
    /// For files over RDMA: the longest segment of memory that a call names, of 64 at most
    /// [default: one for all of a call's data]
    #[arg(long, value_name = "SIZE", value_parser = call_bytes)]
    pub rdma_segment: Option<u32>,
    /// Write everything once before each run
    #[arg(long)]
    pub fill: bool,
    /// Permit the destruction of the data on the units: required to write
    #[arg(long)]
    pub destroy: bool,
    /// Seed of the random numbers: the same seed gives the same addresses
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub seed: u64,
}

impl Load {
    /// Where read data goes. Data to verify is always delivered.
    pub fn received(&self) -> Receive {
        if self.verify { Receive::Deliver } else { self.receive }
    }
}

/// Where the data that is read from a unit goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Receive {
    /// They are placed in a buffer of the I/O, as a program that uses them needs it
    Deliver,
    /// They are dropped; from 48 KiB on the kernel copies nothing
    Drop,
}

impl Receive {
    /// As it is written.
    pub fn name(self) -> &'static str {
        match self {
            Self::Deliver => "deliver",
            Self::Drop => "drop",
        }
    }
}

/// How it is measured.
#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "Measurement")]
pub struct Measure {
    /// Seconds of each run
    #[arg(short, long, value_name = "SECONDS", default_value_t = 5.0, value_parser = positive)]
    pub time: f64,
    /// I/Os of each run, instead of a time
    #[arg(short = 'n', long, value_name = "N", conflicts_with = "time", value_parser = clap::value_parser!(u64).range(1..))]
    pub count: Option<u64>,
    /// Seconds of load before each run, not measured
    #[arg(long, value_name = "SECONDS", default_value_t = 0.0, value_parser = not_negative)]
    pub warmup: f64,
    /// Print a line each interval to stderr: IOPS, MB/s, latencies, errors; --json has them too
    /// [0.1s to 3600s]
    #[arg(long, value_name = "1s", value_parser = interval)]
    pub interval: Option<f64>,
    /// Threads; sessions are spread over them
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=1024))]
    pub threads: u16,
    /// Processors to run on, one per thread in turn: 1 or 0,2
    #[arg(long, value_name = "CPUS", value_delimiter = ',')]
    pub cpus: Vec<u16>,
    /// How long to poll for responses before sleeping, µs [default: 50 with at most two I/Os in
    /// flight, else 0]
    #[arg(long, value_name = "µs", value_parser = clap::value_parser!(u32).range(0..=1_000_000))]
    pub spin: Option<u32>,
    /// End a run after this many errors
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..))]
    pub max_errors: u64,
    /// Also measure the processor time of this process: the target's
    #[arg(long, value_name = "PID", value_parser = clap::value_parser!(u32).range(1..))]
    pub target_pid: Option<u32>,
    /// The same for the only process with this name
    #[arg(long, value_name = "NAME", conflicts_with = "target_pid")]
    pub target_comm: Option<String>,
}

/// How it is told.
#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "Output")]
pub struct Output {
    /// Print one JSON document at the end
    #[arg(long)]
    pub json: bool,
    /// Print CSV, a line per run
    #[arg(long, conflicts_with = "json")]
    pub csv: bool,
    /// Also write the latencies of the only run to FILE: the percentile log of HdrHistogram
    /// (.hgrm), µs
    #[arg(long, value_name = "FILE")]
    pub histogram: Option<PathBuf>,
    /// Hide the progress line, which is shown only on a terminal
    #[arg(short, long)]
    pub quiet: bool,
}

const EXAMPLES: &str = "\
Examples:
  stag bench iscsi://192.0.2.1/iqn.2026-01.org.example:disks/0
  stag bench URL --bs 512..1M --time 2 --csv > sweep.csv
  stag bench nfs://192.0.2.1/data/file --span 1G --fill --destroy --pattern randread,randwrite
  stag bench nfs://192.0.2.1/data/directory --pattern getattr,lookup,readdirplus
  stag bench URL --pattern randrw --read-percent 70 --zipf 0.99 --depth 1,8,32 --destroy
  stag bench URL --pattern randwrite --verify --destroy --time 60     (restart the target meanwhile)
  stag bench URL --time 60 --interval 1s --histogram latency.hgrm
  stag bench URL --rate 20000 --time 30 --target-comm tgtd --json | jq '.runs[0].lat_us.p99'
  stag bench iser://192.0.2.1/iqn.2026-01.org.example:disks/0 --bs 512..1M --pattern read,write --destroy --csv
  stag bench URL1 URL2 --initiators 4 --sessions 2 --connections 2 --threads 2 --cpus 2,3

Why --destroy: a network disk does not reveal a file system that another host has mounted, and URLs look alike.";

/// Which I/Os, and where. The names are fio's.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Pattern {
    /// Sequential reads
    Read,
    /// Sequential writes
    Write,
    /// Sequential reads and writes
    Rw,
    /// Random reads
    Randread,
    /// Random writes
    Randwrite,
    /// Random reads and writes
    Randrw,
    /// NFS: the null procedure
    Null,
    /// NFS: attributes of a directory's entries, at random
    Getattr,
    /// NFS: lookups of a directory's names, at random
    Lookup,
    /// NFS: new files in a directory, which are removed at the end
    Create,
    /// NFS: the first entries of a directory with their attributes, up to 32 KiB of names
    Readdirplus,
}

impl Pattern {
    /// Its name on the command line and in reports.
    pub fn name(self) -> &'static str {
        match self {
            Self::Read => "read",
            Self::Write => "write",
            Self::Rw => "rw",
            Self::Randread => "randread",
            Self::Randwrite => "randwrite",
            Self::Randrw => "randrw",
            Self::Null => "null",
            Self::Getattr => "getattr",
            Self::Lookup => "lookup",
            Self::Create => "create",
            Self::Readdirplus => "readdirplus",
        }
    }

    /// Whether it moves no data: it needs a directory, and has no block size.
    pub fn is_metadata(self) -> bool {
        matches!(self, Self::Null | Self::Getattr | Self::Lookup | Self::Create | Self::Readdirplus)
    }

    /// Whether addresses are random.
    pub fn is_random(self) -> bool {
        matches!(self, Self::Randread | Self::Randwrite | Self::Randrw | Self::Getattr | Self::Lookup)
    }

    /// Of 100 I/Os, how many read, where `mixed` of a mixed pattern do.
    pub fn read_percent(self, mixed: u8) -> u8 {
        match self {
            Self::Read | Self::Randread => 100,
            Self::Null | Self::Getattr | Self::Lookup | Self::Readdirplus => 100,
            Self::Write | Self::Randwrite | Self::Create => 0,
            Self::Rw | Self::Randrw => mixed,
        }
    }
}

/// Bytes of an I/O, one or more, 512 to 16 MiB.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sizes(pub Vec<u32>);

/// The longest I/O, bytes.
const LONGEST: u64 = 16 << 20;
/// The longest READ or WRITE of NFS, bytes.
const LONGEST_CALL: u64 = 1 << 20;

/// Commands in flight, one or more, 1 to 4096.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Depths(pub Vec<u16>);

impl FromStr for Sizes {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let one = |word: &str| {
            let size = super::size(word)?;
            u32::try_from(size)
                .ok()
                .filter(|size| (512..=LONGEST).contains(&u64::from(*size)) && size % 512 == 0)
                .ok_or_else(|| format!("{word} is not a multiple of 512 from 512 to 16M"))
        };
        series(text, one).map(Self)
    }
}

impl FromStr for Depths {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let one = |word: &str| {
            let depth = word.trim().parse::<u32>().ok().filter(|depth| (1..=4096).contains(depth));
            depth.ok_or_else(|| format!("{word} is not a number from 1 to 4096"))
        };
        let depths = series(text, one)?;
        Ok(Self(depths.into_iter().filter_map(|depth| u16::try_from(depth).ok()).collect()))
    }
}

fn call_bytes(text: &str) -> Result<u32, String> {
    let bytes = super::size(text)?;
    u32::try_from(bytes)
        .ok()
        .filter(|bytes| (512..=LONGEST_CALL).contains(&u64::from(*bytes)) && bytes % 512 == 0)
        .ok_or_else(|| format!("{text} is not a multiple of 512 from 512 to 1M"))
}

/// Reads `a,b,c..d`: numbers, and sweeps that double from `c` and end with `d`.
pub(super) fn series(text: &str, one: impl Fn(&str) -> Result<u32, String>) -> Result<Vec<u32>, String> {
    let mut numbers = Vec::new();
    for word in text.split(',') {
        let Some((first, last)) = word.split_once("..") else {
            numbers.push(one(word)?);
            continue;
        };
        let (mut at, last) = (one(first)?, one(last)?);
        if at > last {
            return Err(format!("{word} runs downwards: write the smaller number first"));
        }
        while at < last {
            numbers.push(at);
            at = at.saturating_mul(2);
        }
        numbers.push(last);
    }
    Ok(numbers)
}

fn number(text: &str) -> Result<f64, String> {
    text.parse::<f64>().ok().filter(|n| n.is_finite()).ok_or_else(|| format!("{text} is not a number"))
}

pub(super) fn positive(text: &str) -> Result<f64, String> {
    number(text).and_then(|n| {
        if (0.001..=1e9).contains(&n) { Ok(n) } else { Err(format!("{text} is not from 0.001 to 10⁹")) }
    })
}

pub(super) fn not_negative(text: &str) -> Result<f64, String> {
    number(text).and_then(|n| {
        if (0.0..=1e6).contains(&n) { Ok(n) } else { Err(format!("{text} is not from 0 to 10⁶")) }
    })
}

/// `1s`, `500ms` or a number of seconds.
fn interval(text: &str) -> Result<f64, String> {
    let (digits, unit) = match (text.strip_suffix("ms"), text.strip_suffix('s')) {
        (Some(digits), _) => (digits, 1e-3),
        (None, digits) => (digits.unwrap_or(text), 1.0),
    };
    number(digits)
        .map(|n| n * unit)
        .ok()
        .filter(|n| (0.1..=3600.0).contains(n))
        .ok_or_else(|| format!("{text} is no interval from 0.1s to 3600s"))
}

fn theta(text: &str) -> Result<f64, String> {
    number(text).and_then(|n| {
        if (0.01..=5.0).contains(&n) { Ok(n) } else { Err(format!("{text} is not from 0.01 to 5")) }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_one_a_list_or_a_sweep_that_doubles() {
        assert_eq!("4k".parse::<Sizes>().unwrap().0, [4096]);
        assert_eq!("512,64K".parse::<Sizes>().unwrap().0, [512, 65536]);
        let sweep = "512..1M".parse::<Sizes>().unwrap().0;
        assert_eq!((sweep.len(), sweep[0], sweep[1], sweep[11]), (12, 512, 1024, 1 << 20));
        assert_eq!("4k..20k".parse::<Sizes>().unwrap().0, [4096, 8192, 16384, 20480]);
        assert_eq!("16M".parse::<Sizes>().unwrap().0, [16 << 20]);
        for wrong in ["", "0", "511", "513", "17M", "1M..512", "4k..", "..4k", "4k,,8k", "x", "4k...8k"] {
            assert!(wrong.parse::<Sizes>().is_err(), "{wrong}");
        }
    }

    #[test]
    fn depths_are_one_a_list_or_a_sweep_that_doubles() {
        assert_eq!("1,8,32".parse::<Depths>().unwrap().0, [1, 8, 32]);
        assert_eq!("1..8,100".parse::<Depths>().unwrap().0, [1, 2, 4, 8, 100]);
        for wrong in ["0", "4097", "-1", "1.5", "a", "9..3"] {
            assert!(wrong.parse::<Depths>().is_err(), "{wrong}");
        }
    }

    #[test]
    fn numbers_that_make_no_sense_are_refused() {
        for wrong in ["0", "-1", "NaN", "inf", "1e10", ""] {
            assert!(positive(wrong).is_err(), "{wrong}");
        }
        for wrong in ["0", "513", "2M", ""] {
            assert!(call_bytes(wrong).is_err(), "{wrong}");
        }
        assert_eq!(call_bytes("4k"), Ok(4096));
        assert_eq!((positive("0.5"), not_negative("0"), theta("0.99")), (Ok(0.5), Ok(0.0), Ok(0.99)));
        assert_eq!([interval("1s"), interval("500ms"), interval("2")], [Ok(1.0), Ok(0.5), Ok(2.0)]);
        for wrong in ["", "s", "0", "99ms", "3601s", "1m", "NaN"] {
            assert!(interval(wrong).is_err(), "{wrong}");
        }
        assert!(theta("9").is_err() && not_negative("-0.1").is_err());
    }

    #[test]
    fn a_pattern_is_called_what_the_command_line_calls_it() {
        for pattern in Pattern::value_variants() {
            let named = pattern.to_possible_value().map(|value| value.get_name().to_owned());
            assert_eq!(named.as_deref(), Some(pattern.name()));
        }
    }
}
