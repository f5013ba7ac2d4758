//! `stag serve` and `stag demo`.

use std::net::SocketAddr;
use std::path::PathBuf;

use clap::Args;

use crate::control::socket::Place;
use crate::unit::UnitSpec;

/// Serve disks
#[derive(Clone, Debug, Args)]
#[command(long_about = "Serve disks over iSCSI until SIGTERM or SIGINT.\n\n\
    Each PATH becomes a logical unit, numbered from 0 in the order given. It is a file, a block device, mem:SIZE, \
    or osd:DIR: objects in a directory. When \
    all are open and every address is listened on, the URL of each unit is printed on stdout, alone on a line.")]
#[command(after_long_help = OPTIONS)]
pub struct Serve {
    /// The units: a file, a block device, mem:SIZE or osd:DIR, and its options
    #[arg(value_name = "PATH[,option...]", value_parser = crate::unit::parse, required_unless_present = "config")]
    pub units: Vec<UnitSpec>,
    /// A configuration file; PATHs given too are served by a target of their own
    #[arg(short, long, value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// Where to listen: an IP address, with a port or for 3260; repeatable. Replaces the portals of the configuration.
    /// Port 0 takes a free one [default: 127.0.0.1:3260]
    #[arg(short, long, value_name = "ADDR:PORT", value_parser = address)]
    pub listen: Vec<SocketAddr>,
    /// Listen for iSER through the RDMA devices that have this address too, by rdma-core: InfiniBand, RoCE, iWARP cards, the
    /// kernel's siw; repeatable. Without --listen and portals of the configuration, it is the only place
    #[arg(long, value_name = "ADDR:PORT", value_parser = address, conflicts_with = "no_iser")]
    pub verbs: Vec<SocketAddr>,
    /// The name of the target that serves the PATHs
    #[arg(long, value_name = "IQN", default_value = crate::iqn::DEFAULT_TARGET, value_parser = iqn)]
    pub iqn: String,
    /// Threads, each on a core of its own; 0 for all cores that the process may use [default: 0]
    #[arg(long, value_name = "N")]
    pub cores: Option<u16>,
    /// How long a core looks for new work before it sleeps, µs: more is faster for lone commands and costs CPU meanwhile
    #[arg(long, value_name = "µs")]
    pub spin: Option<u32>,
    /// Copy read data into the socket, instead of lending a memory unit's pages to the network
    #[arg(long)]
    pub no_zero_copy: bool,
    /// Let in iSCSI over TCP only. Otherwise each address takes iSER over iWARP too, as the first bytes of a connection say
    #[arg(long)]
    pub no_iser: bool,
    /// Where to be managed (`stag status` and others): a path, or none. The usual place goes to the first daemon that takes it
    /// [default: /run/stag/control.sock, or stag/control.sock in $XDG_RUNTIME_DIR if not root]
    #[arg(long, value_name = "PATH", value_parser = control, env = "STAG_CONTROL", hide_env_values = true)]
    pub control: Option<Place>,
    /// Take the place of the daemon that runs: it gets no new connections, ends what its initiators are at, and hands over its
    /// listening sockets and reservations, so that nobody is refused; initiators come back by themselves. If this one cannot serve,
    /// the other one goes on
    #[arg(long)]
    pub takeover: bool,
    /// Take over even if units in memory lose their data by it
    #[arg(long, requires = "takeover")]
    pub lose_memory_units: bool,
    /// CRCs of iSER over iWARP: never, prefer (as the initiator asks) or require [default: prefer]
    #[arg(long, value_name = "WHEN", value_parser = crate::config::iser::crc)]
    pub iser_crc: Option<crate::config::Crc>,
}

const OPTIONS: &str = "\
Options of a unit, after its path and separated by commas (a comma of the path is written \\,):
  size=10G            make the file, sparse, if it is not there
  bs=512|4096         logical block size in bytes (512)
  pbe=N               a physical block is 2^N logical ones, 0 to 15
  ro                  refuse writes
  removable           the medium can be ejected
  thin                unmapped blocks are given back
  cache=writeback     data reaches the medium on SYNCHRONIZE CACHE and FUA (files' default)
  cache=writethrough  data is on the medium before a write is acknowledged
  cache=direct        past the kernel's cache, O_DIRECT (block devices' default)
  engine=uring        read and written by io_uring
  engine=fixed        the same, with registered buffers (the default with cache=direct)
  engine=inline       at once what the kernel's cache has, the rest by io_uring
  engine=mmap         what the kernel's cache has from a mapping of the file, the rest by io_uring
  engine=sendpage     the same, lent to the network without a copy (the default without cache=direct)
  engine=threads      by blocking calls on threads
  engine=sync         by blocking calls on the connection's core, each write durable
  serial=TEXT  vendor=TEXT  product=TEXT  revision=TEXT
                      how the unit names itself in INQUIRY
  naa=HEX             its worldwide name: 16 hexadecimal digits, or 32 that begin with 6
  aptpl=FILE          where persistent reservations are kept
  sanitize-rate=100M  the most that SANITIZE writes in a second
  iops=N  read-iops=N  write-iops=N
                      the most reads and writes that it serves in a second
  bandwidth=SIZE  read-bandwidth=SIZE  write-bandwidth=SIZE
                      the most bytes that they move in a second
  burst=SECONDS       how much of a limit may be saved up (0.1)
  warn-used=80G  warn-available=20G
                      when initiators are warned that a thin unit fills up
  quota=10G           the most memory that a thin unit in memory takes
Options of objects, osd:DIR, beside their names and limits:
  capacity=100G       the most that they take
  name=TEXT           the OSD name

Examples:
  stag serve mem:1G
  stag serve osd:/var/lib/stag/objects
  stag serve --listen 0.0.0.0:3260 /srv/a.img,size=100G,thin /dev/sdb,cache=direct
  stag serve --listen '[::]:3260' --iqn iqn.2026-01.org.example:media /srv/dvd.iso,ro,removable
  stag serve --config /etc/stag.toml";

/// Serve a new disk, write to it and read it back: shows that all works here
#[derive(Clone, Debug, Args)]
#[command(long_about = "Serve a new disk, write to it and read it back: shows that all works here.\n\n\
    Makes a sparse file in a new directory, starts a server for it on a free port of the loopback, logs in with Stag's own \
    initiator, writes a pattern that no stale or misplaced block could pass for, reads it back and compares. Leaves nothing \
    behind, unless --keep says to go on serving.")]
#[command(after_long_help = "Examples:\n  stag demo\n  stag demo --size 1G --keep")]
pub struct Demo {
    /// How large the disk is
    #[arg(long, value_name = "SIZE", default_value = "64M", value_parser = super::size)]
    pub size: u64,
    /// Go on serving the disk until interrupted
    #[arg(long)]
    pub keep: bool,
}

pub(super) fn address(text: &str) -> Result<SocketAddr, String> {
    crate::config::address(text).ok_or_else(|| {
        "write an IP address and a port: 192.0.2.1:3260, [::]:3260 or [fe80::1%eth0]:3260".into()
    })
}

fn control(text: &str) -> Result<Place, std::convert::Infallible> {
    text.parse()
}

fn iqn(text: &str) -> Result<String, String> {
    crate::iqn::check(text)
        .map(|()| text.to_owned())
        .map_err(|what| format!("{what}; {}", crate::iqn::EXAMPLE))
}
