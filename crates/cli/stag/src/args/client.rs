//! The commands that work on units and on files of NFS: `ls`, `info`, `read`, `write`, `cp`, `cat`
//! and `rm`.

use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use clap::{Args, ValueEnum};

use iscsi_client::tune::Settings;

use super::url::{self, Remote};

/// How to reach a target, the same for every command.
#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "Connection")]
pub struct Connect {
    /// This initiator's name [default: from /etc/iscsi/initiatorname.iscsi if readable, else made
    /// of this host's name]
    #[arg(
        long,
        value_name = "IQN",
        env = "STAG_INITIATOR",
        default_value_t = crate::iqn::default_initiator(),
        hide_default_value = true
    )]
    pub initiator: String,
    /// CHAP name; a name in the URL has priority. The secret comes from --secret-file, STAG_SECRET
    /// or a prompt
    #[arg(long, value_name = "NAME")]
    pub user: Option<String>,
    /// File with the CHAP secret and nothing else
    #[arg(long, value_name = "FILE")]
    pub secret_file: Option<PathBuf>,
    /// CHAP name that the target must prove (mutual CHAP). Its secret comes from
    /// --mutual-secret-file, STAG_MUTUAL_SECRET or a prompt
    #[arg(long, value_name = "NAME")]
    pub mutual_user: Option<String>,
    /// File with the target's CHAP secret and nothing else
    #[arg(long, value_name = "FILE", requires = "mutual_user")]
    pub mutual_secret_file: Option<PathBuf>,
    /// Offer only this CHAP algorithm [default: offer all]
    #[arg(long, value_enum, value_name = "HASH")]
    pub chap_hash: Option<ChapHash>,
    /// CRC32C of PDU headers
    #[arg(long, value_enum, default_value_t = Digest::Allow)]
    pub header_digest: Digest,
    /// CRC32C of PDU data
    #[arg(long, value_enum, default_value_t = Digest::Allow)]
    pub data_digest: Digest,
    /// With iser:// and nfs+rdma://, CRC32C of data that software iWARP sends; digests apply to
    /// iscsi:// only
    #[arg(long, value_enum, default_value_t = RdmaCrc::Prefer)]
    pub rdma_crc: RdmaCrc,
    /// With iser://, require markers in data that software iWARP receives (RFC 5044 §4.3)
    #[arg(long)]
    pub rdma_markers: bool,
    /// With iser://, the longest write whose data goes with its command, if the target permits; it
    /// fetches longer ones
    #[arg(long, value_name = "SIZE", default_value = "8K", value_parser = super::size)]
    pub iser_unsolicited: u64,
    /// With iser:// and nfs+rdma://, the RDMA implementation
    #[arg(long, value_enum, default_value_t = Rdma::Software)]
    pub rdma: Rdma,
    /// Connections of the session (MC/S)
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=64))]
    pub connections: u16,
    /// Further addresses of the target's portal group, to which connections go in turn after the
    /// URL's own; of bench also its sessions
    #[arg(long, value_name = "HOST[:PORT]", value_delimiter = ',', value_parser = portal)]
    pub portals: Vec<(String, u16)>,
    /// How commands are spread over several connections
    #[arg(long, value_enum, default_value_t = Spread::LeastOutstanding)]
    pub spread: Spread,
    /// Session parameters as `stag tune` prints them: connections=4&first-burst=1M…; parameters
    /// after the ? of a URL have priority
    #[arg(long, value_name = "KEY=VALUE&…", default_value = "", hide_default_value = true)]
    pub settings: Settings,
    /// Whether sessions adapt while they run: commands in flight, connections, unsolicited data
    /// [default: auto for read, write and cp, else off]
    #[arg(long, value_enum, value_name = "HOW")]
    pub tune: Option<Tuning>,
    /// Highest error recovery level to negotiate: 0 starts a new session after any fault, 1 has
    /// lost and damaged PDUs sent again, 2 also moves commands of a lost connection to another one
    /// [default: 2, for bench 0]
    #[arg(long, value_name = "LEVEL", value_parser = clap::value_parser!(u8).range(0..=2))]
    pub erl: Option<u8>,
    /// Timeout of the connection and of each command, seconds
    #[arg(long, value_name = "SECONDS", default_value_t = 30, value_parser = clap::value_parser!(u32).range(1..=3600))]
    pub timeout: u32,
    /// Seconds to try to reconnect to a lost target or server; 0 ends the command [default: 60 for
    /// units, 120 for files of NFS, 0 for tune and osd bench]
    #[arg(long, value_name = "SECONDS")]
    pub reconnect: Option<u32>,
}

/// Reads `HOST[:PORT]`.
fn portal(text: &str) -> Result<(String, u16), String> {
    let url: iscsi_client::Url = format!("iscsi://{text}").parse().map_err(|_| PORTAL.to_owned())?;
    match url.target.is_none() && url.credential.is_none() && !text.contains(['/', '?']) {
        true => Ok((url.host, url.port)),
        false => Err(PORTAL.to_owned()),
    }
}

const PORTAL: &str = "a host and a port, such as 192.0.2.2:3260 or [2001:db8::2]";

impl Connect {
    /// Time to try to reconnect, or `default`.
    pub fn reconnect_or(&self, default: Duration) -> Duration {
        self.reconnect.map_or(default, |seconds| Duration::from_secs(seconds.into()))
    }
}

impl Default for Connect {
    /// What holds if the command line says nothing.
    fn default() -> Self {
        Self {
            initiator: crate::iqn::default_initiator(),
            user: None,
            secret_file: None,
            mutual_user: None,
            mutual_secret_file: None,
            chap_hash: None,
            header_digest: Digest::Allow,
            data_digest: Digest::Allow,
            rdma_crc: RdmaCrc::Prefer,
            rdma_markers: false,
            iser_unsolicited: 8192,
            rdma: Rdma::Software,
            connections: 1,
            portals: Vec::new(),
            spread: Spread::LeastOutstanding,
            settings: Settings::default(),
            tune: None,
            erl: None,
            timeout: 30,
            reconnect: None,
        }
    }
}

/// Whether a digest is used.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Digest {
    /// No digest
    Never,
    /// If the target requires it
    Allow,
    /// If the target supports it
    Prefer,
    /// Always; without it, the login fails
    Require,
}

/// An algorithm of CHAP.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum ChapHash {
    /// Supported by every target
    Md5,
    /// RFC 7143
    Sha1,
    /// RFC 7143
    Sha256,
    /// RFC 7143
    #[value(name = "sha3-256")]
    Sha3,
}

/// How commands are spread over the connections of a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Spread {
    /// To the connection with the fewest outstanding commands
    LeastOutstanding,
    /// To each in turn
    RoundRobin,
}

/// Whether sessions tune themselves.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Tuning {
    /// Adapt to the path, within the given bounds
    Auto,
    /// Keep the given values
    Off,
}

/// Who moves the bytes of an RDMA connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Rdma {
    /// iWARP in software over TCP, with any network card
    Software,
    /// An RDMA device, by rdma-core: InfiniBand, RoCE or iWARP
    Verbs,
}

impl From<Rdma> for rdma::Provider {
    fn from(rdma: Rdma) -> Self {
        match rdma {
            Rdma::Software => Self::Software,
            Rdma::Verbs => Self::Verbs,
        }
    }
}

/// Whether software iWARP adds a CRC to what it sends.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum RdmaCrc {
    /// Only if the target asks for it
    Never,
    /// Always
    Prefer,
    /// Always; without it, the connection fails
    Require,
}

impl From<RdmaCrc> for rdma::Crc {
    fn from(crc: RdmaCrc) -> Self {
        match crc {
            RdmaCrc::Never => Self::Never,
            RdmaCrc::Prefer => Self::Prefer,
            RdmaCrc::Require => Self::Require,
        }
    }
}

/// How data is moved.
#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "Transfer")]
pub struct Transfer {
    /// Commands in flight
    #[arg(long, value_name = "N", default_value_t = 16, value_parser = clap::value_parser!(u16).range(1..=1024))]
    pub depth: u16,
    /// Bytes of one command
    #[arg(long, value_name = "SIZE", default_value = "256K", value_parser = block)]
    pub block: u64,
    /// The most bytes a second
    #[arg(long, value_name = "SIZE", value_parser = rate)]
    pub limit: Option<u64>,
    /// Hide the progress bar, which is shown only on a terminal
    #[arg(short, long)]
    pub quiet: bool,
}

/// List the targets behind a portal and their units, or the files of an NFS server
#[derive(Clone, Debug, Args)]
#[command(
    long_about = "List the targets behind a portal and their units, or the files of an NFS server.\n\n\
    nfs://HOST lists the server's exports. With a path, lists the files there: type and permissions, links, owner, group, \
    bytes, time of the last change (UTC) and name.\n\n\
    iscsi:// opens a discovery session (SendTargets). --units logs in to each target and lists its units, one URL a line \
    with type and size. The URL of a target lists the units of that target."
)]
#[command(
    after_long_help = "Examples:\n  stag ls 192.0.2.1\n  stag ls --isns 192.0.2.30\n  stag ls --units iscsi://192.0.2.1:3260\n  stag ls --json '[2001:db8::1]:3260'\n  stag ls nfs://192.0.2.1/srv/tree"
)]
pub struct Ls {
    /// HOST[:PORT] or iscsi://HOST[:PORT][/IQN]; iser:// uses RDMA; nfs://HOST[:PORT][/PATH],
    /// or nfs+rdma://
    #[arg(value_name = "PORTAL", value_parser = url::listed, required_unless_present = "isns")]
    pub url: Option<Remote>,
    /// Ask this iSNS server for targets instead of a portal
    #[arg(long, value_name = "HOST[:PORT]", value_parser = isns_server, conflicts_with = "url")]
    pub isns: Option<String>,
    /// List the units of each target too
    #[arg(short, long)]
    pub units: bool,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
    #[command(flatten)]
    pub connect: Connect,
}

/// Show everything that a unit or an NFS file reports about itself
#[derive(Clone, Debug, Args)]
#[command(
    long_about = "Show everything that a unit or an NFS file reports about itself: INQUIRY data, vital product data pages, \
    capacity, block sizes, provisioning, limits and mode pages. For nfs://: protocol version, limits of the server, \
    the file's attributes, and free space of its file system."
)]
#[command(
    after_long_help = "Examples:\n  stag info iscsi://192.0.2.1/iqn.2026-01.org.example:disks/0\n  stag info --json URL | jq .capacity_bytes\n  stag info nfs://192.0.2.1/srv/tree"
)]
pub struct Info {
    /// The unit: iscsi://HOST[:PORT]/IQN/LUN, or iser:// for RDMA. Or an NFS file:
    /// nfs://HOST[:PORT]/PATH, or nfs+rdma://
    #[arg(value_name = "URL", value_parser = url::remote)]
    pub url: Remote,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
    #[command(flatten)]
    pub connect: Connect,
}

/// Read a unit or an NFS file into a file or to stdout
#[derive(Clone, Debug, Args)]
#[command(
    after_long_help = "Examples:\n  stag read URL -o disk.img\n  stag read URL --length 512 | xxd\n  stag read URL --offset 1G --length 64M -o part.img"
)]
pub struct Read {
    /// The unit: iscsi://HOST[:PORT]/IQN/LUN, or iser:// for RDMA. Or an NFS file:
    /// nfs://HOST[:PORT]/PATH, or nfs+rdma://
    #[arg(value_name = "URL", value_parser = url::remote)]
    pub url: Remote,
    /// The output file, - for stdout; zeros become holes in a new file
    #[arg(short, long, value_name = "FILE", default_value = "-")]
    pub output: Place,
    /// First byte; any number, not only that of a block
    #[arg(long, value_name = "SIZE", default_value = "0", value_parser = super::size)]
    pub offset: u64,
    /// Number of bytes [default: to the end]
    #[arg(long, value_name = "SIZE", value_parser = super::size)]
    pub length: Option<u64>,
    #[command(flatten)]
    pub transfer: Transfer,
    #[command(flatten)]
    pub connect: Connect,
}

/// Write a file or stdin to a unit or an NFS file
#[derive(Clone, Debug, Args)]
#[command(long_about = "Write a file or stdin to a unit or an NFS file.\n\n\
    Ends when all of the input is on the medium (SYNCHRONIZE CACHE), unless --no-sync. Input that ends within a block \
    replaces only the beginning of that block. Creates a missing NFS file, and keeps the rest of an existing one; \
    `stag cp` replaces it.")]
#[command(
    after_long_help = "Examples:\n  stag write URL -i disk.img\n  zcat disk.img.gz | stag write URL\n  stag write URL --offset 1M -i boot.bin"
)]
pub struct Write {
    /// The unit: iscsi://HOST[:PORT]/IQN/LUN, or iser:// for RDMA. Or an NFS file:
    /// nfs://HOST[:PORT]/PATH, or nfs+rdma://
    #[arg(value_name = "URL", value_parser = url::remote)]
    pub url: Remote,
    /// The input file, - for stdin
    #[arg(short, long, value_name = "FILE", default_value = "-")]
    pub input: Place,
    /// First byte; any number, not only that of a block
    #[arg(long, value_name = "SIZE", default_value = "0", value_parser = super::size)]
    pub offset: u64,
    /// Do not wait for the data to reach the medium
    #[arg(long)]
    pub no_sync: bool,
    #[command(flatten)]
    pub transfer: Transfer,
    #[command(flatten)]
    pub connect: Connect,
}

/// Copy between units, NFS files, local files and stdio
#[derive(Clone, Debug, Args)]
#[command(long_about = "Copy between units, NFS files, local files and stdio.\n\n\
    Either side is a URL, a file, or - for stdin and stdout. Runs of zeros become holes in a file and unmapped blocks on a \
    thin unit; holes of a file are skipped. --verify reads the data back from the unit and compares it.\n\n\
    nfs://HOST[:PORT]/EXPORT/PATH names a file or directory of any NFS server, without mounting it. ?vers=3, 4.1 or 4.2 chooses \
    the version [default: the newest that the server has], ?uid=N&gid=N the user [default: the user of this process]. \
    nfs+rdma:// uses RDMA, by software iWARP (or --rdma verbs) and port 20049. -r \
    copies whole directories: files, directories and symbolic links, with their permissions. It reports each file that it cannot copy, copies all \
    others, and exits with status 1. A copy continues when a lost server is back within --reconnect seconds; --resume continues one that has ended.")]
#[command(
    after_long_help = "Examples:\n  stag cp disk.img iscsi://192.0.2.1/iqn.2026-01.org.example:disks/0\n  stag cp --connections 4 URL backup.img\n  stag cp --verify URL1 URL2\n  stag cp --differing --limit 50M URL1 URL2\n  stag cp --check backup.img URL\n  stag cp URL - | zstd > disk.img.zst\n  stag cp -r photos nfs://192.0.2.1/srv/tree\n  stag cp -r --check photos nfs://192.0.2.1/srv/tree\n  stag cp 'nfs://192.0.2.1/srv/tree/a.txt?vers=3&uid=1000' ."
)]
pub struct Cp {
    /// The source
    #[arg(value_name = "FROM")]
    pub from: Place,
    /// The destination
    #[arg(value_name = "TO")]
    pub to: Place,
    /// Copy directories with their contents
    #[arg(short, long, conflicts_with_all = ["verify", "raw"])]
    pub recursive: bool,
    /// With -r, keep modification times and modes, and owners and groups where permitted
    #[arg(short, long, requires = "recursive")]
    pub preserve: bool,
    /// With -r, continue a copy that ended early: --preserve, and skip files whose copy has their
    /// size and time
    #[arg(long, requires = "recursive")]
    pub resume: bool,
    /// Read the data back and compare it
    #[arg(long)]
    pub verify: bool,
    /// Compare, write nothing, and exit with status 1 if anything differs. With -r, compare
    /// directories
    #[arg(long, conflicts_with_all = ["preserve", "resume", "verify"])]
    pub check: bool,
    /// Read the destination first, and write only what differs
    #[arg(long, conflicts_with_all = ["recursive", "check"])]
    pub differing: bool,
    /// Write zeros as data: no holes, no unmapping
    #[arg(long)]
    pub no_sparse: bool,
    /// Copy a file byte by byte, even if it looks like an image (qcow2, VMDK, VHDX, VDI)
    #[arg(long)]
    pub raw: bool,
    #[command(flatten)]
    pub transfer: Transfer,
    #[command(flatten)]
    pub connect: Connect,
}

/// Print NFS files
#[derive(Clone, Debug, Args)]
#[command(
    after_long_help = "Examples:\n  stag cat nfs://192.0.2.1/srv/tree/motd\n  stag cat URL1 URL2 | sort"
)]
pub struct Cat {
    /// The files: nfs://HOST[:PORT]/PATH, or nfs+rdma://; or units
    #[arg(value_name = "URL", value_parser = url::remote, required = true)]
    pub urls: Vec<Remote>,
    #[command(flatten)]
    pub connect: Connect,
}

/// Remove NFS files
#[derive(Clone, Debug, Args)]
#[command(
    after_long_help = "Examples:\n  stag rm nfs://192.0.2.1/srv/tree/old.log\n  stag rm -r nfs://192.0.2.1/srv/tree/photos"
)]
pub struct Rm {
    /// The files: nfs://HOST[:PORT]/PATH, or nfs+rdma://
    #[arg(value_name = "URL", value_parser = url::file, required = true)]
    pub urls: Vec<nfs_client::Url>,
    /// Remove directories with their contents
    #[arg(short, long)]
    pub recursive: bool,
    /// Ignore missing files
    #[arg(short, long)]
    pub force: bool,
    #[command(flatten)]
    pub connect: Connect,
}

/// Where data comes from or goes to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Place {
    /// A unit, or a file of NFS.
    Remote(Remote),
    /// A file.
    File(PathBuf),
    /// stdin or stdout.
    Stdio,
}

impl std::fmt::Display for Place {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Remote(url) => url.fmt(f),
            Self::File(path) => path.display().fmt(f),
            Self::Stdio => f.write_str("-"),
        }
    }
}

impl FromStr for Place {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "-" => Ok(Self::Stdio),
            _ if nfs_client::Url::is_one(text)
                || ["iscsi://", "iser://"].iter().any(|scheme| text.starts_with(scheme)) =>
            {
                url::remote(text).map(Self::Remote)
            }
            "" => Err("write a file, a URL or -".into()),
            _ => Ok(Self::File(text.into())),
        }
    }
}

fn isns_server(text: &str) -> Result<String, String> {
    crate::naming::server(text).ok_or_else(|| "write HOST or HOST:PORT".into())
}

fn rate(text: &str) -> Result<u64, String> {
    super::size(text).and_then(|bytes| if bytes > 0 { Ok(bytes) } else { Err("nothing would move".into()) })
}

fn block(text: &str) -> Result<u64, String> {
    let bytes = super::size(text)?;
    if (512..=16 << 20).contains(&bytes) && bytes.is_power_of_two() {
        Ok(bytes)
    } else {
        Err("write a power of two from 512 to 16M".into())
    }
}
