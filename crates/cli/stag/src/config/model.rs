//! What a configuration says, each setting once: its name, type, default, range, when it applies,
//! and what it does.

use std::collections::{BTreeMap, HashMap};
use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;

pub use iscsi::chap::Credential;
pub use iscsi_server::config::{AclLun, Auth, Chap, Crc, Redirect, Transports};
use iscsi_server::config::{IserConfig, Limits};
use nfs_server::config::{NOBODY, Network, NfsPortal, Squash};
use scsi::data::target_port_groups::AccessState;

use super::settings::{
    Applies, Cell, Form, Group, Setting, bytes, either, keys_of, list, number, printable, sections, settings,
    size, table, text, words, yes_no,
};
use super::words::{CRCS, HASHES, IDENTITIES, LOG_FORMATS, RUNTIMES, SQUASHES, STATES, TRANSPORTS};
use super::{HTTP_PORT, ISCSI_PORT, LINK_PORT, LUNS};
use crate::export::Shown;
use crate::log;
use crate::unit::UnitSpec;

iscsi_server::iser_settings!(table);
iscsi_server::limits!(table);

settings! {
    /// The daemon itself.
    pub struct Daemon in "", NextStart {
        /// Threads, each on a core of its own. 0 is one for every core that the process may use.
        "cores" cores: u16 = 0, number(0, 1024).flag("--cores");
        /// How long a core looks for new work before it sleeps, at most. More makes single commands
        /// faster and costs CPU. A core does so only while it pays.
        "spin" spin_us: u32 = 50, number(0, 1_000_000).unit("µs").flag("--spin");
        /// What carries out the I/O. auto is io_uring, or what STAG_RUNTIME says.
        "runtime" runtime: runtime::Backend = runtime::Backend::Auto, words(RUNTIMES);
        /// Send a memory unit's pages to the network instead of copying what is read, from 12 KiB
        /// on, where one initiator uses it.
        "zero-copy" zero_copy: bool = true, yes_no().applies(Applies::NewConnections).flag("--no-zero-copy");
        /// Payload buffers of each core, bytes. Buffers have nine sizes, each of which has 2 MiB
        /// for itself at a time: with less than all of that, commands could wait for ever.
        "pool" pool_bytes: u64 = 256 << 20, size(18 << 20, (1 << 40) - 1);
        /// What to log: off, error, warn, info, debug, trace, or target=level,…
        "log" log: Option<log::Filter> = None,
            text("a log filter").otherwise("info").flag("--log")
                .hint("write off, error, warn, info, debug or trace, or target=level,…");
        /// How log lines look.
        "log-format" log_format: Option<log::Format> = None,
            words(LOG_FORMATS).otherwise("journald where stderr is the journal, else text").flag("--log-format");
        /// Reach only the units' directories, and make only the system calls that serving needs.
        "sandbox" sandbox: bool = true, yes_no().flag("--no-sandbox");
        /// Directories that the sandbox leaves in reach besides, for units that are added later.
        "sandbox-directories" sandbox_directories: Vec<PathBuf> = Vec::new(), list(&PATH).otherwise("none");
        /// Keep targets and exports of the daemon's own beside this file, in `managed.toml` of the
        /// state directory: what `stag apply --managed` and the HTTP API make.
        "managed" managed: bool = false, yes_no();
    }
    keys {
        /// Whose serial numbers and worldwide names units have that do not say it themselves.
        "identity" words(IDENTITIES).otherwise("own").applies(Applies::AtOnce);
    }
}

const PATH: Form = Form::Text(1, usize::MAX, "a path");
const GROUP: Form = Form::Number(1, 65_535);
const STATE: Form = Form::Words(STATES);
/// The forms of an `auth` value.
const AUTH: [Form; 2] =
    [Form::Words(&[("none", "initiators do not prove who they are")]), Form::Table("auth")];

/// Units that may have `stages`. Each makes 168 series in the metrics, and 1.3 KiB on each core.
pub const MOST_UNITS_WITH_STAGES: usize = 32;

/// A whole configuration.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Config {
    /// The daemon itself.
    pub daemon: Daemon,
    /// Files of secrets, which are read again with the configuration.
    pub secret_files: Vec<PathBuf>,
    /// iSCSI portals.
    pub portals: Vec<Portal>,
    /// Bounds.
    pub limits: Limits,
    /// iSER.
    pub iser: IserConfig,
    /// The iSNS server with which targets are registered.
    pub isns: Option<Isns>,
    /// Authentication of discovery sessions.
    pub discovery: Auth,
    /// The targets.
    pub targets: Vec<Target>,
    /// NFS.
    pub nfs: Nfs,
    /// Trees of files that NFS clients mount.
    pub exports: Vec<Export>,
    /// HTTP for administrators.
    pub http: Option<Http>,
    /// The group of gateways that this daemon is one of.
    pub gateways: Option<Gateways>,
}

impl Config {
    /// NFS portals: those configured, or one on the loopback address if something is exported.
    pub fn nfs_portals(&self) -> Vec<NfsPortal> {
        let Nfs { listen, verbs, .. } = &self.nfs;
        if listen.is_empty() && verbs.is_empty() && !self.exports.is_empty() {
            let listen = SocketAddr::new(Ipv4Addr::LOCALHOST.into(), crate::export::NFS_PORT);
            return vec![NfsPortal { listen, verbs: false }];
        }
        let portals = |all: &[SocketAddr], verbs| {
            all.iter().map(move |listen| NfsPortal { listen: *listen, verbs }).collect::<Vec<_>>()
        };
        [portals(listen, false), portals(verbs, true)].concat()
    }

    /// The mistake that too many units have `stages`.
    pub fn too_many_stages(&self) -> Option<String> {
        let units = self.targets.iter().flat_map(|target| &target.units);
        let asking = units.filter(|unit| unit.spec.options.stages == Some(true)).count();
        (asking > MOST_UNITS_WITH_STAGES)
            .then(|| format!("{asking} units have `stages`, and at most {MOST_UNITS_WITH_STAGES} may"))
    }

    /// An export that wants of a directory what another one does not, and what that is.
    pub fn contradicting_export(&self) -> Option<(&Export, String)> {
        let mut first: HashMap<&Shown, &Export> = HashMap::new();
        self.exports.iter().find_map(|export| {
            let directory = export.shown.below()?;
            let other = *first.entry(&export.shown).or_insert(export);
            let what = || {
                let path = directory.display();
                format!("{path} is exported with `async` and without: see {}", other.name)
            };
            (other.asynchronous != export.asynchronous).then(|| (export, what()))
        })
    }

    /// This configuration with those of its targets and exports that the two accept.
    pub fn only(&self, target: impl Fn(&Target) -> bool, export: impl Fn(&Export) -> bool) -> Self {
        Self {
            daemon: self.daemon.clone(),
            secret_files: self.secret_files.clone(),
            portals: self.portals.clone(),
            limits: self.limits,
            iser: self.iser,
            isns: self.isns.clone(),
            discovery: self.discovery.clone(),
            targets: self.targets.iter().filter(|one| target(one)).cloned().collect(),
            nfs: self.nfs.clone(),
            exports: self.exports.iter().filter(|one| export(one)).cloned().collect(),
            http: self.http.clone(),
            gateways: self.gateways.clone(),
        }
    }

    /// The configuration in force until the next start, where `old` was in force before.
    pub fn until_next_start(mut self, old: &Self) -> Self {
        self.daemon.until_next_start(&old.daemon);
        self.nfs.until_next_start(&old.nfs);
        self.isns = old.isns.clone();
        self.http = old.http.clone();
        self.gateways = old.gateways.clone();
        for export in &mut self.exports {
            let same = |one: &&Export| one.name == export.name && one.shown == export.shown;
            if let Some(before) = old.exports.iter().find(same) {
                export.until_next_start(before);
            }
        }
        self
    }
}

settings! {
    /// Addresses of one portal group. Without any, `--listen` says where to listen.
    pub struct Portal in "[[portal]]", AtOnce {
        /// Addresses to listen on, each an IP address with a port or for 3260. Connections of one
        /// session may spread over all addresses of a group.
        "listen" listen: SocketAddr = SocketAddr::new(Ipv4Addr::LOCALHOST.into(), ISCSI_PORT),
            list(&Form::Text(1, 255, "an address")).required("listen = \"0.0.0.0:3260\"").flag("--listen").by_hand();
        /// Target portal group tag. With `[gateways]` it is the gateway's number.
        "group" group: u16 = 1, number(1, 65_535).otherwise("1, or the gateway's number");
        /// What the portal lets in.
        "transport" transports: Transports = Transports::All, words(TRANSPORTS).flag("--no-iser");
    }
}

impl Portal {
    /// Transports that it accepts, in words.
    pub fn lets_in(&self) -> &'static str {
        lets_in(self.transports)
    }

    /// Whether the kernel lets only one of them listen: both have the same address, or one has all
    /// addresses of its family. (An IPv6 wildcard leaves IPv4 to a portal of its own:
    /// `iscsi_server` sees to it.) Addresses of RDMA devices are apart from TCP's.
    pub fn excludes(&self, other: &Self) -> bool {
        let (a, b) = (self.listen, other.listen);
        if a == b && a.port() != 0 {
            return true;
        }
        let rdma = |portal: &Self| portal.transports == Transports::Verbs;
        let one_has_all = a.ip().is_unspecified() || b.ip().is_unspecified();
        a.port() != 0
            && a.port() == b.port()
            && a.is_ipv4() == b.is_ipv4()
            && one_has_all
            && rdma(self) == rdma(other)
    }
}

/// Transports that a portal accepts, in words.
pub fn lets_in(transports: Transports) -> &'static str {
    match transports {
        Transports::All => "iSCSI and iSER",
        Transports::Tcp => "iSCSI",
        Transports::Iser => "iSER",
        Transports::Verbs => "iSER through RDMA devices",
    }
}

settings! {
    /// An iSNS server (RFC 4171) that the targets are registered with, portals and portal groups
    /// included.
    pub struct Isns in "[isns]", NextStart {
        /// The server, `HOST` or `HOST:PORT`; port 3205 if left out.
        "server" server: String = String::new(),
            text("a host, with or without a port").required("server = \"192.0.2.30:3205\"").by_hand();
        /// What names this machine there: the entity's identifier.
        // RFC 4171 §6.2.1: 4 to 256 bytes with the NUL and padding.
        "entity" entity: Option<String> = None,
            bytes(1, 255, "text").otherwise("the host's name").hint("leave it out for the host's name");
        /// How long a registration holds. It is renewed at half of that.
        "period" period_s: u32 = 300, number(20, 86_400).unit("s");
        /// Time between the server's inquiries whether the daemon lives. 0 is none.
        "esi" esi_interval_s: u32 = 0, number(0, 86_400).unit("s");
    }
}

settings! {
    /// HTTP for administrators: `/metrics`, `/healthz` and `/readyz`, to everybody who reaches the
    /// address, and the [API](api.md) to whoever has a token. Off without this table.
    pub struct Http in "[http]", NextStart {
        /// Where to listen: an IP address with a port or for 3261.
        "listen" listen: SocketAddr = SocketAddr::new(Ipv4Addr::LOCALHOST.into(), HTTP_PORT),
            text("an address").required("listen = \"127.0.0.1:3261\"").flag("--http").by_hand();
        /// Answer the API. `stag token` makes its tokens.
        "api" api: bool = false, yes_no();
        /// Answer the [dashboard](../guide/dashboard.md) at `/`. It needs `api`, whose tokens
        /// people log in with.
        "dashboard" dashboard: bool = false, yes_no();
        /// A file of certificates in PEM, the server's own first: the address speaks HTTPS. It is
        /// read again within seconds after it has changed.
        "certificate" certificate: Option<PathBuf> = None, text("a path").otherwise("HTTP without TLS");
        /// The file of the certificate's private key in PEM, without a password.
        "key" key: Option<PathBuf> = None, text("a path").otherwise("none");
        /// Whether the API may be reached without TLS at other addresses than those of the
        /// loopback: a proxy, or a network of your own, has to keep tokens secret.
        "insecure" insecure: bool = false, yes_no();
        /// Names besides `localhost`, the machine's own and addresses that a client of the API may
        /// write into Host.
        "hosts" hosts: Vec<String> = Vec::new(), list(&Form::Text(1, 253, "a host's name")).otherwise("none");
        /// Whether `/metrics` needs a token.
        "metrics-token" metrics_token: bool = false, yes_no();
    }
}

impl Http {
    /// Whether tokens would cross a network in the clear.
    pub fn is_exposed(&self) -> bool {
        let clear = self.certificate.is_none() && !self.insecure && !self.listen.ip().is_loopback();
        clear && (self.api || self.metrics_token)
    }
}

settings! {
    /// Several daemons that serve the same RBD images as one: see
    /// [gateways](../guide/gateways.md). All of them have the same tables below, and all RBD
    /// images that are written are the group's.
    pub struct Gateways in "[gateways]", NextStart {
        /// This gateway, unique in the group. It is the portal group of all portals too.
        "number" number: u16 = 0, number(1, 65_535).required("number = 1");
        /// The pool of the group's object.
        "pool" pool: String = String::new(), bytes(1, 255, "a pool").required("pool = \"rbd\"");
        /// The namespace of the group's object.
        "namespace" namespace: Option<String> = None, bytes(1, 255, "a namespace").otherwise("none");
        /// The name of the group's object.
        "object" object: String = "stag-gateways".to_owned(), bytes(1, 255, "an object's name");
        /// As which client of Ceph the group's images are opened, without `client.`.
        "ceph-user" ceph_user: Option<String> = None, printable(64).otherwise("admin");
        /// The cluster's configuration file.
        "ceph-conf" ceph_conf: Option<PathBuf> = None, text("a path").otherwise("$CEPH_CONF, else /etc/ceph/ceph.conf");
        /// The file of the secrets by which gateways know each other. `stag gateways secret` makes
        /// its lines.
        "secret-file" secret_file: PathBuf = PathBuf::new(),
            text("a path").required("secret-file = \"/etc/stag/gateways.secret\"").by_hand();
        /// How long an operation of an image may wait for the cluster.
        "op-timeout" op_timeout_s: u32 = 30, number(1, 600).unit("s");
    }
    parts {
        /// The secrets of its file by their numbers. The highest number is the newest.
        secrets: BTreeMap<u32, peer_link::Secret>,
        /// The line of its file with number 0: gateways that have it recognize users alike.
        users: Option<peer_link::Secret>,
        /// All gateways, this one too.
        members: Vec<GatewayMember>,
    }
}

settings! {
    /// A gateway of the group, the same in the file of each gateway.
    pub struct GatewayMember in "[[gateways.member]]", NextStart {
        /// Its number.
        "number" number: u16 = 0, number(1, 65_535).required("number = 1");
        /// Where the other gateways reach it: an IP address with a port or for 3262.
        "link" link: SocketAddr = SocketAddr::new(Ipv4Addr::LOCALHOST.into(), LINK_PORT),
            text("an address").required("link = \"192.0.2.11:3262\"").by_hand();
        /// Its portals as initiators are told of them, each an IP address with a port or for 3260.
        "portals" portals: Vec<SocketAddr> = Vec::new(),
            list(&Form::Text(1, 255, "an address")).required("portals = [\"192.0.2.11:3260\"]").by_hand();
    }
}

settings! {
    /// A target.
    pub struct Target in "[[target]]", AtOnce {
        /// Its iSCSI name.
        "iqn" iqn: String = String::new(),
            text("an iSCSI name").required("iqn = \"iqn.2026-01.org.example:disks\"").by_hand();
        /// What people call it.
        "alias" alias: String = String::new(),
            bytes(0, 255, "text").otherwise("none").hint("write a shorter one (RFC 7143 §13.7)");
        /// Portal groups that serve it.
        "groups" groups: Vec<u16> = Vec::new(), list(&GROUP).otherwise("all").by_hand();
        /// How initiators prove who they are.
        "auth" auth: Auth = Auth::None, either(&AUTH).applies(Applies::NewLogins);
        /// Where it is instead: initiators are sent there. Such a target needs no units.
        "redirect" redirect: Option<Redirect> = None,
            either(&[Form::Text(1, 255, "an address"), Form::Table("redirect")]).otherwise("nowhere");
    }
    keys {
        /// Whose serial numbers and worldwide names its units have that do not say it themselves.
        "identity" words(IDENTITIES).otherwise("as at the top of the file");
    }
    parts {
        /// Its logical units.
        units: Vec<Lun>,
        /// Who may log in; `None` for everybody.
        acls: Option<Vec<Acl>>,
        /// Asymmetric access; `None` for one target port group that is always active/optimized.
        alua: Option<Alua>,
    }
}

settings! {
    /// Asymmetric access to a target's units (ALUA, SPC-4 §5.15). Without it, all ports are one
    /// group that is always active/optimized.
    pub struct Alua in "[target.alua]", AtOnce {
        /// Whether initiators may change states (SET TARGET PORT GROUPS).
        "explicit" explicit: bool = false, yes_no();
        /// Whether the target itself may change states, by `stag alua`.
        "implicit" implicit: bool = true, yes_no();
        /// IMPLICIT TRANSITION TIME told to initiators. 0 says nothing.
        "transition-hint" transition_hint_s: u8 = 0, number(0, 255).unit("s");
        /// How long groups are in transition when their state changes.
        // Linux gives up after a minute.
        "transition" transition_ms: u32 = 0, number(0, 60_000).unit("ms");
        /// The file that keeps what initiators have set over a restart.
        "keep" keep: Option<PathBuf> = None, text("a path").otherwise("nothing is kept");
        /// The target port groups.
        "group" groups: Vec<AluaGroup> = Vec::new(),
            list(&Form::Table("[[target.alua.group]]")).by_hand()
                .required("[[target.alua.group]] and under it id = 1 and portal-groups = [1]");
    }
}

settings! {
    /// A target port group. Each portal group that serves the target is in one.
    pub struct AluaGroup in "[[target.alua.group]]", AtOnce {
        /// TARGET PORT GROUP.
        "id" id: u16 = 0, number(1, 65_535).required("id = 1");
        /// The portal groups that are its ports, 255 at most.
        "portal-groups" portal_groups: Vec<u16> = Vec::new(),
            list(&GROUP).required("portal-groups = [1]").by_hand();
        /// The state that it begins in.
        "state" state: AccessState = AccessState::ActiveOptimized, words(STATES);
        /// Whether initiators are told to prefer it (PREF).
        "preferred" preferred: bool = false, yes_no();
        /// The states that it can be in.
        "states" states: Vec<AccessState> = Vec::new(), list(&STATE).otherwise("all");
    }
}

/// A logical unit under its number.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Lun {
    /// 0 to 16383.
    pub lun: u16,
    /// The unit.
    pub spec: UnitSpec,
}

settings! {
    /// An initiator, or several with one beginning of their names, and what it may do. Without any,
    /// everybody sees everything.
    pub struct Acl in "[[target.acl]]", AtOnce {
        /// Its iSCSI name; a `*` at the end stands for any ending. The longest match counts.
        "initiator" initiator: String = String::new(),
            text("an iSCSI name, or its beginning and *").by_hand()
                .required("initiator = \"iqn.1993-08.org.debian:01:abc\"");
        /// How it proves who it is.
        "auth" auth: Option<Auth> = None, either(&AUTH).otherwise("as of the target");
        /// The only CHAP user who may have the name.
        "user" user: Option<String> = None, text("a user of auth").otherwise("all").by_hand();
        /// The units that it sees: a number as it is, or a table.
        "luns" luns: Option<Vec<AclLun>> = None,
            list(&Form::Either(&[Form::Number(0, LUNS.end - 1), Form::Table("luns")])).otherwise("all").by_hand();
    }
    keys {
        /// Whether all units that it sees are read-only.
        "ro" yes_no().otherwise("no");
    }
    parts {
        /// What each initiator of the name is served at most.
        limits: crate::unit::limits::Limits,
    }
}

settings! {
    /// NFS, versions 3, 4.1 and 4.2. Every address serves MOUNT and a portmapper too, so one port
    /// is all that a client needs.
    pub struct Nfs in "[nfs]", AtOnce {
        /// Addresses to listen on, each an IP address with a port or for 2049. An address with port
        /// 111 is for clients that have to ask a portmapper.
        "listen" listen: Vec<SocketAddr> = Vec::new(),
            list(&Form::Text(1, 255, "an address")).otherwise("127.0.0.1:2049, once something is exported").flag("--nfs").by_hand();
        /// Addresses to listen on through the RDMA devices that have them, by rdma-core:
        /// InfiniBand, RoCE, iWARP cards, the kernel's siw. Each is an IP address with a port or
        /// for 20049.
        "verbs" verbs: Vec<SocketAddr> = Vec::new(),
            list(&Form::Text(1, 255, "an address")).otherwise("none").flag("--nfs-verbs").by_hand();
        /// Connections at once. One more is closed at once.
        "connections" connections: u32 = 65536, number(1, (1 << 20) - 1);
        /// Connections of one address at once: an IPv4 address, or an IPv6 network of 64 bits. 0 is
        /// no limit.
        "connections-per-address" connections_per_address: usize = usize::MAX, number(0, (1 << 20) - 1);
        /// Calls of one connection that are executed at once. More wait in its socket.
        "calls" calls: u16 = 128, number(1, 4096);
        /// Bytes of replies queued to one connection's socket above which its calls wait.
        "send-high-water" send_high_water: u64 = 4 << 20, size(65536, (1 << 31) - 1);
        /// Silence after which a client of version 4 may lose its opens and locks to another one.
        /// Also the time after a start in which clients claim theirs again, and other opens wait.
        /// `stag upgrade` does not shorten it, since the clients of then know the longer one.
        "lease" lease_s: u32 = 90, number(10, 3600).unit("s").applies(Applies::NextStart);
        /// Take the supplementary groups of users from this machine (passwd and group, LDAP and
        /// others) instead of from clients, which can name 16 at most.
        "manage-gids" manage_gids: bool = false, yes_no();
        /// The socket of a running rpcbind to register NFS and MOUNT with, such as
        /// /run/rpcbind.sock.
        "rpcbind" rpcbind: Option<PathBuf> = None, text("a path").otherwise("not registered").applies(Applies::NextStart);
    }
}

settings! {
    /// A tree of files that NFS clients mount.
    pub struct Export in "[[export]]", AtOnce {
        /// The path by which clients mount it.
        "name" name: String = String::new(),
            text("a path").required("name = \"/data\"").by_hand();
        /// What it shows: a directory, or memory (`mem:1G`).
        "path" shown: Shown = Shown::default(),
            text("a directory or mem:SIZE").required("path = \"/srv/data\" or path = \"mem:1G\"");
        /// Answer before changes are on the medium, WRITE and COMMIT too. A crash of the machine
        /// then loses changes that clients were told are safe.
        "async" asynchronous: bool = false, yes_no().applies(Applies::NextStart);
        /// Only the clients of this export change its files: no program of this machine does, and
        /// no other export shows them. Clients of version 4 may then keep what they have read (read
        /// delegations). Memory is always so.
        "exclusive" exclusive: bool = false, yes_no();
    }
    parts {
        /// Who may mount it; empty for everybody.
        clients: Vec<Client>,
    }
}

impl Export {
    /// Whether a client may write to it.
    pub fn is_writable(&self) -> bool {
        self.clients.is_empty() || self.clients.iter().any(|client| !client.read_only)
    }
}

settings! {
    /// Clients of an export, and what they may do. Without any, everybody may mount it and write.
    pub struct Client in "[[export.client]]", AtOnce {
        /// Their network: an address, an address with a prefix, or `*`. The longest prefix counts.
        "network" network: Network = Network::ALL,
            text("a network").required("network = \"192.0.2.0/24\"");
        /// Whether they may only read.
        "ro" read_only: bool = false, yes_no();
        /// Whose identity is replaced by the anonymous one.
        "squash" squash: Squash = Squash::Root, words(SQUASHES);
        /// The anonymous user.
        "anonuid" anonuid: u32 = NOBODY, number(0, u32::MAX as u64);
        /// The anonymous group.
        "anongid" anongid: u32 = NOBODY, number(0, u32::MAX as u64);
    }
    parts {
        /// What each address of the network is served at most.
        limits: crate::unit::limits::Limits,
    }
}

sections! {
    /// Who may ask which targets there are.
    "[discovery]", NewLogins {
        /// How initiators prove who they are.
        "auth" either(&AUTH).otherwise("none");
    }
    /// A logical unit of the target. The options of a unit are keys too, below.
    "[[target.unit]]", AtOnce {
        /// Its number.
        "lun" number(0, LUNS.end - 1).required("lun = 0");
        /// A file, a block device, memory (`mem:1G`), objects in a directory
        /// (`osd:/srv/objects`), an RBD image of a Ceph cluster (`rbd:POOL/IMAGE`), an export of
        /// an NBD server (`nbd://HOST/EXPORT`), or a unit of an iSCSI target
        /// (`iscsi://HOST/TARGET/LUN`, `iser://…`).
        "path" text("a path, mem:SIZE, osd:DIR, rbd:POOL/IMAGE, nbd://HOST/EXPORT or iscsi://HOST/TARGET/LUN")
            .required("path = \"/srv/disk.img\", path = \"mem:1G\" or path = \"osd:/srv/objects\"");
    }
    /// CHAP names, secrets and hashes.
    "auth", NewLogins {
        /// Who may log in.
        "users" list(&Form::Table("users"))
            .required("users = [{ name = \"alice\", secret-file = \"alice.secret\" }]");
        /// What the target proves itself with.
        "mutual" keys_of("users").otherwise("none");
        /// Hashes that may be used. The initiator's order decides among them.
        "hashes" list(&Form::Words(HASHES)).otherwise("all");
    }
    /// A CHAP name and its secret, which stands in one of two places.
    "users", NewLogins {
        /// The name.
        "name" bytes(1, 255, "text").required("name = \"alice\"");
        /// The secret itself, if nobody else may read the file.
        "secret" bytes(12, 255, "text").otherwise("see `secret-file`");
        /// A file that holds the secret alone. `$CREDENTIALS_DIRECTORY/NAME` is a credential of the
        /// service.
        "secret-file" text("a path").otherwise("see `secret`");
    }
    /// Where a target is instead.
    "redirect", AtOnce {
        /// The other portal.
        "to" text("an address").required("to = \"192.0.2.20:3260\"");
        /// Whether the target has moved for good (0102h). Otherwise the next login comes here again
        /// (0101h).
        "permanent" yes_no().otherwise("no");
        /// Whether initiators learn of it only once they have proved who they are.
        "after-auth" yes_no().otherwise("no");
    }
    /// A unit as an initiator sees it.
    "luns", AtOnce {
        /// Its number in the target.
        "lun" number(0, LUNS.end - 1).required("{ lun = 0, as = 1, ro = true }");
        /// The number that the initiator uses.
        "as" number(0, LUNS.end - 1).otherwise("as `lun`");
        /// Whether the initiator may only read.
        "ro" yes_no().otherwise("as `ro` of the ACL");
    }
}

/// The key `name` of the section `header`, one of [`BY_HAND`].
pub fn key(header: &str, name: &str) -> Setting {
    let section = BY_HAND.iter().find(|section| section.header == header);
    let found = section.and_then(|section| section.keys.iter().find(|key| key.name == name));
    debug_assert!(found.is_some(), "{header} has no {name}");
    found.copied().unwrap_or(text(""))
}
