//! `stag serve` and `stag demo`.

use std::net::SocketAddr;
use std::path::PathBuf;

use clap::Args;

use iscsi_server::config::IserConfig;

use crate::config::reference::{self, help};
use crate::config::settings::flag;
use crate::config::{Crc, Daemon};
use crate::control::place::Place;
use crate::export::Given;
use crate::unit::UnitSpec;

/// Serve disks and files
#[derive(Clone, Debug, Args)]
#[command(
    long_about = "Serve disks and files until SIGTERM or SIGINT: disks over iSCSI, trees of files over NFS.\n\n\
    Each PATH becomes a logical unit, numbered from 0 in the order given. It is a file, a block device, mem:SIZE, \
    osd:DIR (objects in a directory), rbd:POOL/IMAGE (an image of a Ceph cluster), nbd://HOST/EXPORT (an export of an NBD server), or iscsi://HOST/TARGET/LUN and iser://HOST/TARGET/LUN (a unit of an iSCSI target). Once the daemon serves, it prints the URL of each unit on a line of its own. \
    Without PATH and --config it starts empty; `stag apply FILE` configures it."
)]
#[command(after_long_help = format!("{}\n{EXAMPLES}", reference::options()))]
pub struct Serve {
    /// The units: a file, a block device, mem:SIZE, osd:DIR, rbd:POOL/IMAGE or nbd://HOST/EXPORT,
    /// and its options
    #[arg(value_name = "PATH[,option...]", value_parser = crate::unit::parse)]
    pub units: Vec<UnitSpec>,
    /// A configuration file; a target of its own serves PATHs given beside it
    #[arg(short, long, value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// Listen on this IP address, port 3260 unless given; repeatable. Replaces the portals of the
    /// configuration. Port 0 takes a free port [default: 127.0.0.1:3260]
    #[arg(short, long, value_name = "ADDR:PORT", value_parser = address)]
    pub listen: Vec<SocketAddr>,
    /// Listen for iSER on the RDMA devices with this address (rdma-core: InfiniBand, RoCE, iWARP,
    /// the kernel's siw); repeatable. Without --listen and configured portals, listen nowhere else
    #[arg(long, value_name = "ADDR:PORT", value_parser = address, conflicts_with = "no_iser")]
    pub verbs: Vec<SocketAddr>,
    /// Name of the target that serves the PATHs [default: iqn.2026-01.org.stag:HOST-ID:disk, with
    /// this host's name and six digits from its machine-id]
    #[arg(long, value_name = "IQN", value_parser = iqn)]
    pub iqn: Option<String>,
    /// Export a directory, or memory (mem:SIZE), to NFS clients as NAME; repeatable. Every client
    /// may mount it; only a configuration file can restrict that
    #[arg(long, value_name = "NAME=PATH", value_parser = crate::export::parse)]
    pub export: Vec<Given>,
    /// Listen for NFS on this IP address, port 2049 unless given; repeatable. Replaces the
    /// addresses of the configuration [default: 127.0.0.1:2049]
    #[arg(long, value_name = "ADDR:PORT", value_parser = nfs_address)]
    pub nfs: Vec<SocketAddr>,
    /// Listen for NFS on the RDMA devices with this IP address, port 20049 unless given;
    /// repeatable. Replaces those of the configuration. Without --nfs and configured addresses,
    /// listen nowhere else
    #[arg(long, value_name = "ADDR:PORT", value_parser = nfs_rdma_address)]
    pub nfs_verbs: Vec<SocketAddr>,
    /// Answer HTTP for administrators on this IP address, port 3261 unless given: /metrics for
    /// Prometheus, /healthz, /readyz. Replaces the address of the configuration [default: nowhere]
    #[arg(long, value_name = "ADDR:PORT", value_parser = http_address)]
    pub http: Option<SocketAddr>,
    #[arg(long, value_name = "N", help = help::<Daemon>("cores"), value_parser = flag::<Daemon, u16>("cores"))]
    pub cores: Option<u16>,
    #[arg(long, value_name = "µs", help = help::<Daemon>("spin"), value_parser = flag::<Daemon, u32>("spin"))]
    pub spin: Option<u32>,
    /// Copy read data into the socket instead of sending a memory unit's pages without a copy
    #[arg(long)]
    pub no_zero_copy: bool,
    /// Keep all rights of the process. By default it confines itself to its units' directories and
    /// the system calls that serving needs
    #[arg(long)]
    pub no_sandbox: bool,
    /// Accept iSCSI over TCP only. By default each address also accepts iSER over iWARP
    #[arg(long)]
    pub no_iser: bool,
    /// Control socket for `stag status` and other commands: a path, or none. The first daemon on a
    /// host gets the default path [default: control.sock in $RUNTIME_DIRECTORY (systemd), in
    /// /run/stag for root, in $XDG_RUNTIME_DIR/stag, or in /tmp/stag-UID]
    #[arg(long, value_name = "PATH", value_parser = control, env = "STAG_CONTROL", hide_env_values = true)]
    pub control: Option<Place>,
    /// Replace the running daemon. It finishes the commands it has, then hands over its listening
    /// sockets and reservations. No client is refused; initiators reconnect by themselves. If the
    /// new daemon cannot serve, the old one continues
    #[arg(long)]
    pub takeover: bool,
    /// Take over even though units in memory lose their data
    #[arg(long, requires = "takeover")]
    pub lose_memory_units: bool,
    #[arg(long, value_name = "WHEN", help = help::<IserConfig>("crc"), value_parser = flag::<IserConfig, Crc>("crc"))]
    pub iser_crc: Option<Crc>,
}

const EXAMPLES: &str = "\
Examples:
  stag serve mem:1G
  stag serve osd:/var/lib/stag/objects
  stag serve rbd:rbd/disk,thin,ceph-user=stag
  stag serve nbd://backup.example.org/disk,thin 'nbd+unix:///?socket=/run/nbd.sock'
  stag serve --listen 0.0.0.0:3260 /srv/a.img,size=100G,thin /dev/sdb,cache=direct
  stag serve --listen '[::]:3260' --iqn iqn.2026-01.org.example:media /srv/dvd.iso,ro,removable
  stag serve --export /data=/srv/data
  stag serve --nfs 0.0.0.0:2049 --export /scratch=mem:4G
  stag serve --config /etc/stag.toml";

/// Serve a new disk, write to it and read it back: a check that Stag works here
#[derive(Clone, Debug, Args)]
#[command(long_about = "Serve a new disk, write to it and read it back: a check that Stag works here.\n\n\
    Creates a sparse file in a new directory, serves it on a free loopback port, logs in with Stag's own \
    initiator, writes a pattern that reveals stale and misplaced blocks, reads it back and compares. Leaves nothing \
    behind, unless --keep continues to serve.")]
#[command(after_long_help = "Examples:\n  stag demo\n  stag demo --size 1G --keep")]
pub struct Demo {
    /// Size of the disk
    #[arg(long, value_name = "SIZE", default_value = "64M", value_parser = super::size)]
    pub size: u64,
    /// Continue to serve the disk until interrupted
    #[arg(long)]
    pub keep: bool,
}

pub(super) fn address(text: &str) -> Result<SocketAddr, String> {
    crate::config::address(text).ok_or_else(|| {
        "write an IP address and a port: 192.0.2.1:3260, [::]:3260 or [fe80::1%eth0]:3260".into()
    })
}

fn nfs_address(text: &str) -> Result<SocketAddr, String> {
    crate::config::address_or(text, crate::export::NFS_PORT)
        .ok_or_else(|| "write an IP address, with or without a port: 192.0.2.1 or 192.0.2.1:2049".into())
}

fn nfs_rdma_address(text: &str) -> Result<SocketAddr, String> {
    crate::config::address_or(text, crate::export::NFS_RDMA_PORT)
        .ok_or_else(|| "write an IP address, with or without a port: 192.0.2.1 or 192.0.2.1:20049".into())
}

fn http_address(text: &str) -> Result<SocketAddr, String> {
    crate::config::address_or(text, crate::config::HTTP_PORT)
        .ok_or_else(|| "write an IP address, with or without a port: 127.0.0.1 or 127.0.0.1:3261".into())
}

fn control(text: &str) -> Result<Place, std::convert::Infallible> {
    text.parse()
}

fn iqn(text: &str) -> Result<String, String> {
    crate::iqn::check(text)
        .map(|()| text.to_owned())
        .map_err(|what| format!("{what}; {}", crate::iqn::EXAMPLE))
}
