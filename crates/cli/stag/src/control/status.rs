//! `status`: the state of a daemon and its clients as JSON; `status_text` has the same as text.

use std::collections::HashMap;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::client::{CallError, Client};
pub use super::counted::{Stage, Work};
use super::daemon::{Daemon, Running};
use super::exports::NfsStatus;
use super::gateways::{self, GroupStatus, SharedUnit};
use super::health::{self, Health, ServedHealth};
use super::protocol::{Fault, json};
use crate::args;
use crate::config;
use crate::exit::Exit;
use crate::health::space::Spaces;
use crate::managed::Document;
use crate::out;
use crate::state::hex;
use crate::unit::{Backing, UnitSpec};
use crate::units::{self, OpenKind};

/// Time for a core to answer.
const PATIENCE: Duration = Duration::from_secs(2);

/// A daemon as it is now.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Status {
    pub version: String,
    pub pid: u32,
    /// Seconds since the daemon started to serve.
    pub uptime_s: f64,
    /// What carries out its I/O: `io_uring` or `epoll`.
    #[serde(default)]
    pub runtime: String,
    pub portals: Vec<PortalStatus>,
    pub targets: Vec<TargetStatus>,
    pub sessions: Vec<SessionStatus>,
    /// Recoveries of all sessions, ended ones included.
    #[serde(default)]
    pub recoveries: Recoveries,
    /// Health of units and their file systems.
    #[serde(default)]
    pub health: Health,
    #[serde(default)]
    pub nfs: NfsStatus,
    /// The group of gateways that it is one of.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gateways: Option<GroupStatus>,
    /// The cores' threads; `None` for one that did not answer.
    pub cores: Vec<Option<CoreStatus>>,
    /// Whether all threads have answered. If not, their counts are missing from every sum.
    #[serde(default)]
    pub complete: bool,
    /// The number of the change that has made what is served. It grows with each.
    #[serde(default)]
    pub generation: u64,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct PortalStatus {
    pub listen: String,
    /// Target portal group tag.
    pub group: u16,
    /// Transports that it accepts.
    pub transports: String,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct TargetStatus {
    pub iqn: String,
    /// Its alias; empty for none.
    pub alias: String,
    /// Portal groups that serve it; empty for all.
    pub groups: Vec<u16>,
    /// Whether it is in the managed document. Otherwise it is in the administrator's configuration.
    #[serde(default)]
    pub managed: bool,
    pub units: Vec<UnitStatus>,
    #[serde(default)]
    pub work: Work,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct UnitStatus {
    /// Its number in its target.
    pub lun: u16,
    /// `disk` or `objects`; `shared` for a disk that another gateway owns.
    #[serde(default = "disk")]
    pub kind: String,
    /// Its path, or `mem:SIZE`.
    pub path: String,
    /// Bytes.
    pub size: u64,
    /// Bytes of a logical block.
    pub block: u32,
    /// Whether it can be written.
    pub read_only: bool,
    /// Whether unmapped blocks are given back.
    pub thin: bool,
    /// Whether writes may wait in a volatile cache.
    pub write_cache: bool,
    /// The I/O engine that was configured for it.
    pub engine: Option<String>,
    pub serial: String,
    /// Its worldwide name: the NAA designator, in hexadecimal.
    #[serde(default)]
    pub naa: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub objects: Option<ObjectsStatus>,
    /// Who owns it, if a group of gateways serves it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub shared: Option<SharedUnit>,
    #[serde(default)]
    pub health: ServedHealth,
    /// Bytes that it takes of its file system, where that can be said.
    #[serde(default)]
    pub allocated: Option<u64>,
    /// Counts of its commands.
    pub io: Io,
    /// Times of one command in eight, of those stages that there were; none of a unit without
    /// `stages`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub stages: Vec<Stage>,
}

fn disk() -> String {
    "disk".into()
}

/// Contents of a unit of objects.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct ObjectsStatus {
    /// Bytes in use.
    pub used: u64,
    pub partitions: u64,
    pub objects: u64,
}

/// Counts of commands. One command of eight is timed.
pub use iscsi_server::Counts as Io;

/// Counts of error recovery (ErrorRecoveryLevel 1 and 2; digest errors at every level).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Recoveries {
    /// SNACKs that requested retransmission.
    pub snacks: u64,
    /// Those of them that were rejected.
    pub rejected_snacks: u64,
    /// PDUs that were sent again.
    pub resent_pdus: u64,
    /// Times that lost data-out was asked for again.
    pub recovery_r2ts: u64,
    /// PDUs that were dropped for a wrong digest.
    pub digest_errors: u64,
    /// Tasks that were reassigned to another connection.
    pub reassigned_tasks: u64,
}

impl From<iscsi_server::Recovered> for Recoveries {
    fn from(of: iscsi_server::Recovered) -> Self {
        let iscsi_server::Recovered {
            snacks,
            rejected_snacks,
            resent_pdus,
            recovery_r2ts,
            digest_errors,
            reassigned_tasks,
        } = of;
        Self { snacks, rejected_snacks, resent_pdus, recovery_r2ts, digest_errors, reassigned_tasks }
    }
}

#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct SessionStatus {
    /// Target Session Identifying Handle.
    pub tsih: u16,
    pub initiator: String,
    /// The CHAP user as whom it has authenticated.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub user: Option<String>,
    /// Its ISID, hexadecimal.
    pub isid: String,
    /// The target's name; none in a discovery session.
    pub target: Option<String>,
    pub group: u16,
    pub error_recovery_level: u8,
    pub max_connections: u16,
    /// Seconds since it logged in.
    pub age_s: f64,
    pub connections: Vec<ConnectionStatus>,
    /// Counts of the connections that it has now.
    pub io: Io,
    /// Recoveries of all connections that it has had.
    #[serde(default)]
    pub recoveries: Recoveries,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct ConnectionStatus {
    pub cid: u16,
    pub peer: String,
    /// `iscsi` or `iser`.
    pub transport: String,
    /// Whether headers have a digest.
    pub header_digest: bool,
    /// Whether data has a digest.
    pub data_digest: bool,
    /// Its core.
    pub core: usize,
    /// Seconds since it connected.
    pub age_s: f64,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct CoreStatus {
    /// Connections that live on it.
    pub connections: usize,
    /// Bytes of its buffer pool that are in use.
    pub pool_in_use: usize,
    /// The most that ever were.
    pub pool_high_water: usize,
    /// Bytes that it has mapped.
    pub pool_mapped: usize,
    /// Bytes that it may map.
    pub pool_limit: usize,
    /// Number of waits for a buffer. RDMA takes its buffers from the same pool.
    #[serde(default)]
    pub pool_waits: u64,
    /// Bytes that are kept for retransmission.
    #[serde(default)]
    pub kept: usize,
    /// Number of times that a connection discarded its kept data, since the limit was reached.
    #[serde(default)]
    pub kept_given_up: u64,
    /// Pings that it has sent to silent initiators.
    #[serde(default)]
    pub pings: u64,
    /// Connections whose pings wait for their turn, because so many are silent.
    #[serde(default)]
    pub pings_waiting: usize,
    /// Turns of its loop that took longer than 1 ms: all else on the core waited meanwhile.
    #[serde(default)]
    pub stalls: u64,
    /// How long they took in all, seconds.
    #[serde(default)]
    pub stalls_s: f64,
    /// How long the longest took, seconds.
    #[serde(default)]
    pub longest_stall_s: f64,
    /// Payload that came over TCP.
    #[serde(default)]
    pub tcp: TcpStatus,
    /// Payload that RDMA moved.
    #[serde(default)]
    pub rdma: RdmaStatus,
    /// Bytes that its sockets moved, and that it copied.
    #[serde(default)]
    pub copies: CopiesStatus,
    /// Processor time that its thread has used, seconds; where the system tells.
    pub busy_s: Option<f64>,
}

/// Payload received over TCP on a core, bytes. If a unit is in memory, data that was not placed
/// directly is copied once more.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct TcpStatus {
    /// Data segments of all kinds.
    pub received: u64,
    /// Of these, received directly into a unit's memory.
    pub landed: u64,
}

/// Bytes that a core moved through its sockets, headers included, by who copied them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct CopiesStatus {
    /// Copied in user space.
    pub user: u64,
    /// Sent, copied by the kernel.
    pub sent: u64,
    /// Sent by reference.
    pub lent: u64,
    /// Received, copied by the kernel.
    pub received: u64,
    /// Received and thrown away by the kernel, without a copy.
    pub dropped: u64,
}

impl From<runtime::Copies> for CopiesStatus {
    fn from(copies: runtime::Copies) -> Self {
        let runtime::Copies { user, sent, lent, received, dropped } = copies;
        Self { user, sent, lent, received, dropped }
    }
}

/// Payload that Stag's own iWARP has moved on a core, bytes. It copies short messages, and data
/// that the pool had no room to receive in place.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RdmaStatus {
    /// Received directly to its destination.
    pub in_place: u64,
    /// Passed on in the receive buffer, without a copy.
    pub by_reference: u64,
    /// Copied to its destination.
    pub copied_in: u64,
    /// Part of `in_place` and `copied_in`: data of long writes in the memory of units, fetched by
    /// RDMA Read. Received there without a CRC; with a CRC, copied there once it is verified.
    #[serde(default)]
    pub placed: u64,
    pub sent: u64,
    /// Of that, copied first.
    pub copied_out: u64,
}

/// The verb.
///
/// # Errors
/// Never.
pub fn answer(daemon: &Daemon) -> Result<Value, Fault> {
    json(&status(daemon, PATIENCE))
}

/// The current status of `daemon`. Each request to the cores waits for `patience` at most.
pub fn status(daemon: &Daemon, patience: Duration) -> Status {
    let server = &daemon.server;
    let running = daemon.running();
    let mut activity = server.activity(patience);
    let mut flows: Flows = activity
        .units
        .into_iter()
        .map(|flow| ((flow.target, flow.lun), (flow.counts, flow.stages)))
        .collect();
    let spaces = daemon.monitor.spaces(patience);
    let group = daemon.gateways().map(gateways::status);
    let owners: HashMap<&str, &SharedUnit> =
        group.iter().flat_map(|group| &group.units).map(|unit| (unit.image.as_str(), unit)).collect();
    let health = health::all(&running, &spaces, group.as_ref());
    let busy = busy_cores();
    let (nfs, nfs_complete) = NfsStatus::now(daemon, patience);
    let cores = daemon.core.cores(patience);
    let complete = activity.complete && nfs_complete && cores.iter().all(Option::is_some);
    let managed = running.parts.managed.as_ref().map(Document::targets).unwrap_or_default();
    let configured: HashMap<&str, &config::Target> =
        running.config.targets.iter().map(|target| (target.iqn.as_str(), target)).collect();
    Status {
        version: env!("CARGO_PKG_VERSION").to_owned(),
        pid: std::process::id(),
        uptime_s: daemon.started.elapsed().as_secs_f64(),
        runtime: daemon.core.backend().name().to_owned(),
        portals: server.portals().into_iter().map(portal).collect(),
        targets: server
            .targets()
            .into_iter()
            .map(|one| {
                let work = activity.targets.get(&one.name).map(Work::of).unwrap_or_default();
                let managed = managed.contains(&one.name.to_ascii_lowercase());
                let one = target(one, &configured, &running, &spaces, &owners, &mut flows);
                TargetStatus { work, managed, ..one }
            })
            .collect(),
        sessions: server
            .sessions()
            .into_iter()
            .map(|one| {
                let counts = activity.sessions.remove(&one.tsih).unwrap_or_default();
                let recovered = activity.session_recoveries.remove(&one.tsih).unwrap_or_default();
                session(one, counts, recovered)
            })
            .collect(),
        recoveries: activity.recoveries.into(),
        health,
        nfs,
        gateways: group,
        cores: cores
            .into_iter()
            .enumerate()
            .map(|(at, core)| core.map(|core| self::core(core, busy.get(&at).copied())))
            .collect(),
        complete,
        generation: running.parts.generation,
    }
}

fn portal(portal: iscsi_server::BoundPortal) -> PortalStatus {
    PortalStatus {
        listen: portal.address.to_string(),
        group: portal.group,
        transports: config::lets_in(portal.transports).to_owned(),
    }
}

/// Counts of units, and their stages if they are counted, by their targets and numbers.
type Flows = HashMap<(String, u16), (iscsi_server::Counts, Option<Box<iscsi_server::Stages>>)>;

fn target(
    served: iscsi_server::TargetStatus,
    configured: &HashMap<&str, &config::Target>,
    running: &Running,
    spaces: &Spaces,
    owners: &HashMap<&str, &SharedUnit>,
    flows: &mut Flows,
) -> TargetStatus {
    let configured = configured.get(served.name.as_str());
    let specs: HashMap<u16, &UnitSpec> =
        configured.iter().flat_map(|target| &target.units).map(|unit| (unit.lun, &unit.spec)).collect();
    let mut one = |(number, one): (u16, iscsi_server::Unit)| {
        let (counts, stages) = flows.remove(&(served.name.clone(), number)).unwrap_or_default();
        let place = units::place(&served.name, number);
        let open = running.units.open.get(&place).map(|open| &**open);
        let mut status = UnitStatus {
            health: health::of(open.and_then(crate::health::of)),
            allocated: spaces.used.get(&place).copied(),
            stages: stages.map(|stages| Stage::all(&stages)).unwrap_or_default(),
            ..unit(number, &one, specs.get(&number).copied(), counts)
        };
        if let Some(OpenKind::Shared(shared)) = open.map(|open| &open.kind) {
            status.naa = hex(&shared.identity.naa);
            status.serial.clone_from(&shared.identity.serial);
            if let Some(Backing::Rbd(name)) = open.map(|open| &open.spec.backing) {
                status.shared = owners.get(name.to_string().as_str()).map(|unit| (*unit).clone());
            }
        }
        status
    };
    let units = served.units.into_iter().map(&mut one).collect();
    TargetStatus {
        iqn: served.name,
        alias: served.alias,
        groups: served.groups,
        managed: false,
        units,
        work: Work::default(),
    }
}

fn unit(
    lun: u16,
    unit: &iscsi_server::Unit,
    spec: Option<&UnitSpec>,
    counts: iscsi_server::Counts,
) -> UnitStatus {
    let path = spec.map_or_else(String::new, |spec| spec.backing.to_string());
    let disk = match unit {
        iscsi_server::Unit::Disk(disk) => disk.clone(),
        iscsi_server::Unit::Group(unit) => match unit.disk() {
            Some(disk) => disk,
            // Its owner knows it.
            None => {
                return UnitStatus {
                    lun,
                    kind: "shared".into(),
                    path,
                    size: unit.size(),
                    block: unit.block_size(),
                    read_only: false,
                    thin: spec.is_some_and(|spec| spec.options.thin == Some(true)),
                    write_cache: false,
                    engine: None,
                    serial: String::new(),
                    naa: String::new(),
                    objects: None,
                    shared: None,
                    health: ServedHealth::default(),
                    allocated: None,
                    io: counts,
                    stages: Vec::new(),
                };
            }
        },
        iscsi_server::Unit::Objects(unit) => {
            let (options, root) = (unit.options(), unit.store().root());
            return UnitStatus {
                lun,
                kind: "objects".into(),
                path,
                size: root.capacity,
                block: 0,
                read_only: options.read_only,
                thin: false,
                write_cache: true,
                engine: None,
                serial: options.identity.serial.clone(),
                naa: hex(&options.identity.naa),
                objects: Some(ObjectsStatus {
                    used: root.used,
                    partitions: root.partitions,
                    objects: root.objects,
                }),
                shared: None,
                health: ServedHealth::default(),
                allocated: None,
                io: counts,
                stages: Vec::new(),
            };
        }
    };
    let options = disk.options();
    UnitStatus {
        lun,
        kind: self::disk(),
        path,
        size: disk.blocks() * u64::from(options.block_size),
        block: options.block_size,
        read_only: options.read_only,
        thin: options.thin,
        write_cache: options.write_cache,
        engine: spec.and_then(|spec| spec.options.engine).map(|engine| engine.to_string()),
        serial: options.identity.serial.clone(),
        naa: hex(&options.identity.naa),
        objects: None,
        shared: None,
        health: ServedHealth::default(),
        allocated: None,
        io: counts,
        stages: Vec::new(),
    }
}

fn session(
    session: iscsi_server::SessionStatus,
    counts: iscsi_server::Counts,
    recovered: iscsi_server::Recovered,
) -> SessionStatus {
    SessionStatus {
        tsih: session.tsih,
        initiator: session.initiator,
        user: session.user,
        isid: session.isid.iter().map(|byte| format!("{byte:02x}")).collect(),
        target: session.target,
        group: session.group,
        error_recovery_level: session.error_recovery_level,
        max_connections: session.max_connections,
        age_s: session.age.as_secs_f64(),
        connections: session.connections.into_iter().map(connection).collect(),
        io: counts,
        recoveries: recovered.into(),
    }
}

fn connection(connection: iscsi_server::ConnectionStatus) -> ConnectionStatus {
    ConnectionStatus {
        cid: connection.cid,
        peer: connection.peer.to_string(),
        transport: if connection.iser { "iser" } else { "iscsi" }.to_owned(),
        header_digest: connection.header_digest,
        data_digest: connection.data_digest,
        core: connection.core,
        age_s: connection.age.as_secs_f64(),
    }
}

/// Processor time of the cores' threads, seconds, as far as the system tells.
fn busy_cores() -> HashMap<usize, f64> {
    // Linux shows clock ticks to programs in units of 1/100 s (USER_HZ).
    const TICKS: f64 = 100.0;
    let threads = std::fs::read_dir("/proc/self/task").into_iter().flatten().flatten();
    let busy = |thread: std::fs::DirEntry| {
        let stat = std::fs::read_to_string(thread.path().join("stat")).ok()?;
        // PID (NAME) STATE …: a name may have spaces.
        let (head, rest) = stat.rsplit_once(')')?;
        let core = head.split_once("(core-")?.1.parse().ok()?;
        let fields: Vec<&str> = rest.split_whitespace().collect();
        let ticks: u64 = fields.get(11)?.parse::<u64>().ok()? + fields.get(12)?.parse::<u64>().ok()?;
        Some((core, ticks as f64 / TICKS))
    };
    threads.filter_map(busy).collect()
}

fn core(core: iscsi_server::CoreStatus, busy_s: Option<f64>) -> CoreStatus {
    CoreStatus {
        connections: core.connections,
        pool_in_use: core.pool.in_use,
        pool_high_water: core.pool.high_water,
        pool_mapped: core.pool.mapped,
        pool_limit: core.pool.limit,
        pool_waits: core.pool.waits,
        kept: core.kept,
        kept_given_up: core.kept_given_up,
        pings: core.pings,
        pings_waiting: core.pings_waiting,
        stalls: core.stalls.count,
        stalls_s: core.stalls.total.as_secs_f64(),
        longest_stall_s: core.stalls.longest.as_secs_f64(),
        tcp: TcpStatus { received: core.tcp.received, landed: core.tcp.landed },
        rdma: RdmaStatus {
            in_place: core.rdma.in_place,
            by_reference: core.rdma.by_reference,
            copied_in: core.rdma.copied_in,
            placed: core.rdma.placed,
            sent: core.rdma.sent,
            copied_out: core.rdma.copied_out,
        },
        copies: core.copies.into(),
        busy_s,
    }
}

pub fn command(args: &args::Status) -> Exit {
    if args.check {
        return check(args);
    }
    match run(args) {
        Ok(text) => out::print(&text),
        Err(error) => error.show(),
    }
}

fn check(args: &args::Status) -> Exit {
    let asked =
        Client::connect(args.at.control.as_deref()).and_then(|mut client| client.ask::<Status>("status"));
    match asked {
        Ok(status) => match out::print(&status.health.check()) {
            Exit::Done => status.health.exit(),
            other => other,
        },
        Err(error) => {
            error.show();
            Exit::CheckUnknown
        }
    }
}

fn run(args: &args::Status) -> Result<String, CallError> {
    let mut client = Client::connect(args.at.control.as_deref())?;
    if args.json {
        let value: Value = client.ask("status")?;
        return Ok(format!("{value:#}\n"));
    }
    let status: Status = client.ask("status")?;
    Ok(super::status_text::text(&status))
}
