//! Every metric: its name, kind, labels and help, and where its values come from.
//! docs/src/reference/metrics.md is made of it.

use admin_http::exposition::{Family, Kind, Number, Rows};

use super::picture::Picture;
use super::sums::Initiator;
use crate::control::gateways::{Counts, FENCING, GroupStatus, Member};
use crate::control::health::ServedHealth;
use crate::control::status::{CoreStatus, Io, Stage, UnitStatus};
use crate::health::space::{FileSystem, Level};

/// Scope of a metric: determines the number of its series, and the bound above which it is left
/// out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Of {
    /// The daemon. One series or few.
    Daemon,
    /// The daemon; sums over its cores.
    Sums,
    /// Each core.
    Cores,
    /// Each unit, without a bound.
    Units,
    /// Each unit, unless there are too many.
    UnitDetails,
    /// Each unit whose options ask for it; the configuration bounds their number.
    Asking,
    /// Each target; all together if there are too many.
    Targets,
    /// Each initiator with each target, unless there are too many.
    Initiators,
    /// Each NFS export, unless there are too many.
    Exports,
}

impl Of {
    /// As a label.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Daemon | Self::Sums => "daemon",
            Self::Cores => "cores",
            Self::Units => "units",
            Self::UnitDetails => "unit-details",
            Self::Asking => "units that ask",
            Self::Targets => "targets",
            Self::Initiators => "initiators",
            Self::Exports => "exports",
        }
    }
}

/// A metric.
pub struct Metric {
    /// Its name, kind, labels and help.
    pub family: Family,
    pub of: Of,
    /// Writes its values.
    pub tell: fn(&Picture, &mut Rows<'_>),
}

const fn metric(
    of: Of,
    kind: Kind,
    name: &'static str,
    labels: &'static [&'static str],
    help: &'static str,
    tell: fn(&Picture, &mut Rows<'_>),
) -> Metric {
    Metric { family: Family { name, kind, labels, help }, of, tell }
}

/// Metrics that the bounds have left out. Written last, once this is known.
pub const LEFT_OUT: Family = Family {
    name: "stag_metrics_left_out",
    kind: Kind::Gauge,
    labels: &["detail"],
    help: "1 where there are too many of something to tell of each: see the reference of metrics.",
};

const UNIT: &[&str] = &["target", "lun"];
const CORE: &[&str] = &["core"];
const EXPORT: &[&str] = &["export"];
const GATEWAY: &[&str] = &["gateway"];
const MOUNT: &[&str] = &["mount"];
const PAIR: &[&str] = &["initiator", "target"];

use Kind::{Counter, Gauge, Histogram, Info};
use Of::{Asking, Cores, Daemon, Exports, Initiators, Sums, Targets, UnitDetails, Units};

/// All metrics but [`LEFT_OUT`], in the order in which they are written.
#[rustfmt::skip]
pub const TABLE: &[Metric] = &[
    metric(Daemon, Info, "stag_build_info", &["version"], "The version of the daemon.",
        |of, rows| rows.row(&[&of.status.version], 1_u64)),
    metric(Daemon, Info, "stag_runtime_info", &["runtime"], "What carries out the daemon's I/O: io_uring, or epoll where io_uring is forbidden.",
        |of, rows| rows.row(&[&of.status.runtime], 1_u64)),
    metric(Daemon, Gauge, "stag_health_state", &[], "The health that stag status --check tells: 0 ok, 1 warning, 2 critical.",
        |of, rows| rows.row(&[], level(of.status.health.state))),
    metric(Daemon, Gauge, "stag_health_problems", &["level"], "Problems of units and exports, by their urgency.", |of, rows| {
        for (name, level) in [("warning", Level::Warning), ("critical", Level::Critical)] {
            rows.row(&[name], of.status.health.problems.iter().filter(|problem| problem.level == level).count());
        }
    }),
    metric(Daemon, Gauge, "stag_metrics_gather_seconds", &[], "How long it took to gather these metrics from the cores.",
        |of, rows| rows.row(&[], of.took_s)),
    metric(Daemon, Gauge, "stag_targets", &[], "iSCSI targets.", |of, rows| rows.row(&[], of.status.targets.len())),
    metric(Daemon, Gauge, "stag_units", &[], "Logical units of all targets.", |of, rows| rows.row(&[], of.units())),
    metric(Daemon, Gauge, "stag_sessions", &[], "iSCSI sessions, those of discovery among them.",
        |of, rows| rows.row(&[], of.status.sessions.len())),
    metric(Daemon, Gauge, "stag_connections", &["transport"], "Connections of sessions, by what carries them.", |of, rows| {
        for transport in ["iscsi", "iser"] {
            let connections = of.status.sessions.iter().flat_map(|session| &session.connections);
            rows.row(&[transport], connections.filter(|connection| connection.transport == transport).count());
        }
    }),

    metric(Units, Gauge, "stag_unit_size_bytes", UNIT, "Capacity of the unit.", |of, rows| units(of, rows, |unit| Some(unit.size))),
    metric(Units, Gauge, "stag_unit_state", UNIT, "Health of the unit: 0 ok, 1 degraded, 2 failed.",
        |of, rows| units(of, rows, |unit| Some(state(&unit.health)))),
    metric(Units, Counter, "stag_unit_commands_total", &["target", "lun", "operation"], "SCSI commands that have ended.", |of, rows| {
        each_unit(of, |target, lun, unit| commands(&unit.io, |operation, count| rows.row(&[target, lun, operation], count)));
    }),
    metric(Units, Counter, "stag_unit_transferred_bytes_total", &["target", "lun", "direction"], "Data that commands called for.", |of, rows| {
        each_unit(of, |target, lun, unit| bytes(&unit.io, |direction, count| rows.row(&[target, lun, direction], count)));
    }),
    metric(Units, Counter, "stag_unit_failed_commands_total", UNIT, "Commands that ended with another status than GOOD.",
        |of, rows| units(of, rows, |unit| Some(unit.io.failed))),
    metric(UnitDetails, Info, "stag_unit_info", &["target", "lun", "kind", "path", "serial", "naa", "access"],
        "What the unit is and what it lies on.", |of, rows| each_unit(of, |target, lun, unit| {
            let access = if unit.read_only { "read-only" } else { "read-write" };
            rows.row(&[target, lun, &unit.kind, &unit.path, &unit.serial, &unit.naa, access], 1_u64);
        })),
    metric(UnitDetails, Info, "stag_unit_owner_info", &["target", "lun", "gateway"],
        "Which gateway of the group owns the unit; none of a unit that is moved, and of one that no group serves.", |of, rows| {
            each_unit(of, |target, lun, unit| if let Some(owner) = unit.shared.as_ref().and_then(|shared| shared.owner) {
                rows.row(&[target, lun, &owner.to_string()], 1_u64);
            });
        }),
    metric(UnitDetails, Gauge, "stag_unit_allocated_bytes", UNIT, "What the unit takes of its file system, where that can be told.",
        |of, rows| units(of, rows, |unit| unit.allocated.or_else(|| unit.objects.as_ref().map(|objects| objects.used)))),
    metric(UnitDetails, Gauge, "stag_unit_refused_operations", UNIT, "Operations that the medium failed since the unit was last well.",
        |of, rows| units(of, rows, |unit| Some(unit.health.refused))),
    metric(Sums, Histogram, "stag_command_duration_seconds", UNIT,
        "Time from a command's turn until its status was ready, with that of the data of writes; of one command in eight.", |of, rows| {
            for (target, lun, io) in of.latencies() {
                let mut so_far = (0, 0);
                let bounds = BOUNDS.iter().map(|(bucket, bound)| {
                    let more: u64 = io.buckets.iter().take(bucket + 1).skip(so_far.0).sum();
                    so_far = (bucket + 1, so_far.1 + more);
                    (*bound, so_far.1)
                });
                rows.histogram(&[target, &lun], bounds, io.buckets.iter().sum(), io.time_ns as f64 / 1e9);
            }
        }),

    metric(Asking, Histogram, "stag_unit_stage_seconds", &["target", "lun", "operation", "stage"],
        "Time of the stages of the unit's commands; of one command in eight. Only of a unit with the option stages.", |of, rows| {
            each_unit(of, |target, lun, unit| {
                unit.stages.iter().for_each(|one| stage(one, rows, &[target, lun, &one.operation, &one.stage]));
            });
        }),

    metric(Targets, Counter, "stag_target_commands_total", &["target", "status", "sense_key"],
        "SCSI commands that have ended, by SAM-5 status and, for CHECK CONDITION, sense key; none of an outcome that never came.", |of, rows| {
            for (target, work) in of.work() {
                for one in &work.outcomes {
                    rows.row(&[target, &one.status, &one.sense_key], one.commands);
                }
            }
        }),
    metric(Targets, Histogram, "stag_command_stage_seconds", &["target", "operation", "stage"],
        "Time of a command's stages; of one command in eight.", |of, rows| {
            for (target, work) in of.work() {
                work.stages.iter().for_each(|one| stage(one, rows, &[target, &one.operation, &one.stage]));
            }
        }),
    metric(Targets, Counter, "stag_target_limit_waits_total", &["target"], "Commands that waited for a limit of service, and then ran.",
        |of, rows| of.work().iter().for_each(|(target, work)| rows.row(&[target], work.limit_waits))),
    metric(Targets, Counter, "stag_target_limit_wait_seconds_total", &["target"], "How long they waited.",
        |of, rows| of.work().iter().for_each(|(target, work)| rows.row(&[target], work.limit_wait_s))),

    metric(Initiators, Gauge, "stag_initiator_sessions", PAIR, "Sessions of the initiator with the target; without one in discovery.",
        |of, rows| initiators(of, |initiator, target, one| rows.row(&[initiator, target], one.sessions))),
    metric(Initiators, Gauge, "stag_initiator_connections", PAIR, "Connections of these sessions.",
        |of, rows| initiators(of, |initiator, target, one| rows.row(&[initiator, target], one.connections))),
    metric(Initiators, Counter, "stag_initiator_commands_total", &["initiator", "target", "operation"],
        "SCSI commands of the initiator since it has had a session with the target.", |of, rows| initiators(of, |initiator, target, one| {
            commands(&one.io, |operation, count| rows.row(&[initiator, target, operation], count));
        })),
    metric(Initiators, Counter, "stag_initiator_transferred_bytes_total", &["initiator", "target", "direction"],
        "Data that these commands called for.", |of, rows| initiators(of, |initiator, target, one| {
            bytes(&one.io, |direction, count| rows.row(&[initiator, target, direction], count));
        })),
    metric(Initiators, Counter, "stag_initiator_failed_commands_total", PAIR, "Those of these commands that ended with another status than GOOD.",
        |of, rows| initiators(of, |initiator, target, one| rows.row(&[initiator, target], one.io.failed))),

    metric(Sums, Counter, "stag_digest_errors_total", &[], "PDUs that were dropped for a wrong digest.",
        |of, rows| rows.row(&[], of.status.recoveries.digest_errors)),
    metric(Sums, Counter, "stag_recovery_snacks_total", &[], "Requests of initiators to send something again (SNACK).",
        |of, rows| rows.row(&[], of.status.recoveries.snacks)),
    metric(Sums, Counter, "stag_recovery_rejected_snacks_total", &[], "Those of these requests that could not be met.",
        |of, rows| rows.row(&[], of.status.recoveries.rejected_snacks)),
    metric(Sums, Counter, "stag_recovery_resent_pdus_total", &[], "PDUs that were sent again.",
        |of, rows| rows.row(&[], of.status.recoveries.resent_pdus)),
    metric(Sums, Counter, "stag_recovery_r2ts_total", &[], "Times that lost Data-Out was asked for again.",
        |of, rows| rows.row(&[], of.status.recoveries.recovery_r2ts)),
    metric(Sums, Counter, "stag_recovery_reassigned_tasks_total", &[], "Tasks that went on on another connection.",
        |of, rows| rows.row(&[], of.status.recoveries.reassigned_tasks)),

    metric(Daemon, Gauge, "stag_nfs_connections", &[], "Connections of NFS clients.", |of, rows| rows.row(&[], of.status.nfs.clients.len())),
    metric(Exports, Gauge, "stag_export_state", EXPORT, "Health of the export: 0 ok, 1 degraded, 2 failed.",
        |of, rows| of.status.nfs.exports.iter().for_each(|one| rows.row(&[&one.name], state(&one.health)))),
    metric(Exports, Counter, "stag_export_calls_total", EXPORT, "NFS calls for the export.",
        |of, rows| of.status.nfs.exports.iter().for_each(|one| rows.row(&[&one.name], one.calls))),
    metric(Exports, Counter, "stag_export_transferred_bytes_total", &["export", "direction"], "Data that was read and written.", |of, rows| {
        for one in &of.status.nfs.exports {
            bytes(&one.io(), |direction, count| rows.row(&[&one.name, direction], count));
        }
    }),
    metric(Exports, Counter, "stag_export_failed_calls_total", EXPORT, "Calls that failed because of the medium, or because it is full.",
        |of, rows| of.status.nfs.exports.iter().for_each(|one| rows.row(&[&one.name], one.errors))),

    metric(Exports, Counter, "stag_export_limit_waits_total", EXPORT, "READs, WRITEs and COPYs that waited for a limit of service.",
        |of, rows| of.status.nfs.exports.iter().for_each(|one| rows.row(&[&one.name], one.limit_waits))),
    metric(Exports, Counter, "stag_export_limit_wait_seconds_total", EXPORT, "How long they waited.",
        |of, rows| of.status.nfs.exports.iter().for_each(|one| rows.row(&[&one.name], one.limit_wait_s))),
    metric(Sums, Counter, "stag_nfs_operations_total", &["version", "operation", "outcome"],
        "Procedures of version 3 and operations of version 4 that were executed, by outcome; none of an operation that never came.", |of, rows| {
            for one in &of.status.nfs.operations {
                for (outcome, count) in [("done", one.done), ("refused", one.refused), ("delayed", one.delayed), ("failed", one.failed)] {
                    rows.row(&[&one.version.to_string(), &one.name, outcome], count);
                }
            }
        }),

    metric(Daemon, Info, "stag_gateway_info", GATEWAY, "Which gateway of its group the daemon is.",
        |of, rows| group(of, |group| rows.row(&[&group.gateway.to_string()], 1_u64))),
    metric(Daemon, Gauge, "stag_gateway_member_state", GATEWAY, "A gateway of the group: 0 serving, 1 leaving, 2 being taken out or not in the group.", |of, rows| {
        members(of, |gateway, member| rows.row(&[gateway], match member.standing.as_str() {
            "serving" => 0_u64,
            FENCING => 2,
            _ => 1,
        }));
        group(of, |group| group.missing.iter().for_each(|number| rows.row(&[&number.to_string()], 2_u64)));
    }),
    metric(Daemon, Gauge, "stag_gateway_member_silent_seconds", GATEWAY, "How long the daemon has seen the gateway's heartbeat stand still.",
        |of, rows| members(of, |gateway, member| rows.row(&[gateway], member.silent_ms as f64 / 1e3))),
    metric(Daemon, Gauge, "stag_gateway_member_units", GATEWAY, "Units that the gateway owns.",
        |of, rows| members(of, |gateway, member| rows.row(&[gateway], member.units))),
    metric(Daemon, Gauge, "stag_gateway_link_up", GATEWAY, "Whether the connections are up by which commands go to the gateway; none while no command does.", |of, rows| {
        members(of, |gateway, member| if let Some(up) = member.link { rows.row(&[gateway], up) });
    }),
    metric(Daemon, Counter, "stag_gateway_lives_total", &[], "Lives that the daemon has begun in its group: another one each time that it was out of it.",
        |of, rows| group(of, |group| rows.row(&[], group.life))),
    metric(Daemon, Counter, "stag_gateway_moves_total", &[], "Units that came here from a gateway that handed them over.",
        |of, rows| counts(of, rows, |counts| counts.moves)),
    metric(Daemon, Counter, "stag_gateway_takeovers_total", &[], "Units that came here from a gateway that was taken out.",
        |of, rows| counts(of, rows, |counts| counts.takeovers)),
    metric(Daemon, Counter, "stag_gateway_fences_total", &[], "Gateways that this one has taken out, earlier lives of its own among them.",
        |of, rows| counts(of, rows, |counts| counts.fences)),
    metric(Daemon, Counter, "stag_gateway_forwarded_commands_total", &[], "Commands that were forwarded to the owners of their units.",
        |of, rows| counts(of, rows, |counts| counts.forwarded)),
    metric(Daemon, Counter, "stag_gateway_forwarded_bytes_total", &["direction"], "Data of forwarded commands.", |of, rows| group(of, |group| {
        for (direction, bytes) in [("read", group.counts.forwarded_read_bytes), ("write", group.counts.forwarded_written_bytes)] {
            rows.row(&[direction], bytes);
        }
    })),

    metric(Daemon, Gauge, "stag_file_system_size_bytes", MOUNT, "Size of a file system that units or exports lie on, or of an export in memory.",
        |of, rows| file_systems(of, rows, |system| system.size)),
    metric(Daemon, Gauge, "stag_file_system_used_bytes", MOUNT, "What is taken of it, by whomever.",
        |of, rows| file_systems(of, rows, |system| system.used)),
    metric(Daemon, Gauge, "stag_file_system_free_bytes", MOUNT, "What the daemon may still take of it.",
        |of, rows| file_systems(of, rows, |system| system.free)),
    metric(Daemon, Gauge, "stag_file_system_provisioned_bytes", MOUNT, "What its units have been promised.",
        |of, rows| file_systems(of, rows, |system| system.provisioned)),
    metric(Daemon, Gauge, "stag_file_system_allocated_bytes", MOUNT, "What its units take.",
        |of, rows| file_systems(of, rows, |system| system.allocated)),
    metric(Daemon, Gauge, "stag_file_system_overcommitted_bytes", MOUNT, "What its units may still ask for and that is not there.",
        |of, rows| file_systems(of, rows, |system| system.overcommitted)),
    metric(Daemon, Gauge, "stag_file_system_state", MOUNT, "Its state: 0 ok, 1 warning (90 % full), 2 critical.",
        |of, rows| file_systems(of, rows, |system| level(system.state))),

    metric(Cores, Gauge, "stag_core_up", CORE, "Whether the core answered. One that did not has no other series.", |of, rows| {
        of.status.cores.iter().enumerate().for_each(|(at, core)| rows.row(&[&at.to_string()], core.is_some()));
    }),
    metric(Cores, Counter, "stag_core_busy_seconds_total", CORE, "Processor time of the core's thread.", |of, rows| {
        cores(of, |core, one| if let Some(busy) = one.busy_s { rows.row(&[core], busy) });
    }),
    metric(Cores, Counter, "stag_core_stalls_total", CORE,
        "Turns of the core's loop that took longer than 1 ms. All else on the core waited meanwhile: for a call that blocked, a long computation, or the processor.",
        |of, rows| cores(of, |core, one| rows.row(&[core], one.stalls))),
    metric(Cores, Counter, "stag_core_stall_seconds_total", CORE, "How long those turns took.",
        |of, rows| cores(of, |core, one| rows.row(&[core], one.stalls_s))),
    metric(Cores, Gauge, "stag_core_connections", CORE, "Connections that live on the core.",
        |of, rows| cores(of, |core, one| rows.row(&[core], one.connections))),
    metric(Cores, Gauge, "stag_pool_in_use_bytes", CORE, "What is in use of the core's buffer pool.",
        |of, rows| cores(of, |core, one| rows.row(&[core], one.pool_in_use))),
    metric(Cores, Gauge, "stag_pool_high_water_bytes", CORE, "The most of the pool that was ever in use.",
        |of, rows| cores(of, |core, one| rows.row(&[core], one.pool_high_water))),
    metric(Cores, Gauge, "stag_pool_mapped_bytes", CORE, "Memory that the pool has mapped.",
        |of, rows| cores(of, |core, one| rows.row(&[core], one.pool_mapped))),
    metric(Cores, Gauge, "stag_pool_limit_bytes", CORE, "Memory that the pool may map.",
        |of, rows| cores(of, |core, one| rows.row(&[core], one.pool_limit))),
    metric(Cores, Counter, "stag_pool_waits_total", CORE, "Times that something had to wait for a buffer.",
        |of, rows| cores(of, |core, one| rows.row(&[core], one.pool_waits))),
    metric(Cores, Gauge, "stag_retained_bytes", CORE, "Data that is kept because initiators may ask for it again.",
        |of, rows| cores(of, |core, one| rows.row(&[core], one.kept))),
    metric(Cores, Counter, "stag_retained_given_up_total", CORE, "Times that data was kept no longer, since there was too much.",
        |of, rows| cores(of, |core, one| rows.row(&[core], one.kept_given_up))),
    metric(Cores, Counter, "stag_pings_total", CORE, "Pings that were sent to silent initiators.",
        |of, rows| cores(of, |core, one| rows.row(&[core], one.pings))),
    metric(Cores, Gauge, "stag_pings_waiting", CORE, "Connections whose pings wait for their turn.",
        |of, rows| cores(of, |core, one| rows.row(&[core], one.pings_waiting))),
    metric(Cores, Counter, "stag_tcp_received_bytes_total", CORE, "Payload that came over TCP.",
        |of, rows| cores(of, |core, one| rows.row(&[core], one.tcp.received))),
    metric(Cores, Counter, "stag_tcp_placed_bytes_total", CORE, "Of that, what was received straight into a unit's memory.",
        |of, rows| cores(of, |core, one| rows.row(&[core], one.tcp.landed))),
    metric(Cores, Counter, "stag_copied_bytes_total", CORE, "Bytes copied in user space on their way from and to clients.",
        |of, rows| cores(of, |core, one| rows.row(&[core], one.copies.user))),
    metric(Cores, Counter, "stag_socket_bytes_total", &["core", "way"], "Bytes that sockets moved, headers included, by how: `sent` and `received` are copied by the kernel, `lent` is sent by reference, `dropped` is thrown away in the kernel.", |of, rows| {
        cores(of, |core, one| {
            let copies = one.copies;
            for (way, bytes) in [("sent", copies.sent), ("lent", copies.lent), ("received", copies.received), ("dropped", copies.dropped)] {
                rows.row(&[core, way], bytes);
            }
        });
    }),
    metric(Cores, Counter, "stag_rdma_received_bytes_total", &["core", "way"], "Payload that the built-in iWARP received, by what became of it.", |of, rows| {
        cores(of, |core, one| {
            for (way, bytes) in [("in-place", one.rdma.in_place), ("by-reference", one.rdma.by_reference), ("copied", one.rdma.copied_in)] {
                rows.row(&[core, way], bytes);
            }
        });
    }),
    metric(Cores, Counter, "stag_rdma_sent_bytes_total", CORE, "Payload that the built-in iWARP sent.",
        |of, rows| cores(of, |core, one| rows.row(&[core], one.rdma.sent))),
    metric(Cores, Counter, "stag_rdma_sent_copied_bytes_total", CORE, "Of that, what was copied first.",
        |of, rows| cores(of, |core, one| rows.row(&[core], one.rdma.copied_out))),

    metric(Daemon, Counter, "process_cpu_seconds_total", &[], "Processor time of the process, user's and system's.",
        |of, rows| maybe(rows, of.process.cpu_s)),
    metric(Daemon, Gauge, "process_virtual_memory_bytes", &[], "Memory that is mapped.", |of, rows| maybe(rows, of.process.virtual_bytes)),
    metric(Daemon, Gauge, "process_resident_memory_bytes", &[], "Memory that is resident.", |of, rows| maybe(rows, of.process.resident_bytes)),
    metric(Daemon, Gauge, "process_open_fds", &[], "Descriptors that are open.", |of, rows| maybe(rows, of.process.open_fds)),
    metric(Daemon, Gauge, "process_max_fds", &[], "Descriptors that may be open.", |of, rows| maybe(rows, of.process.max_fds)),
    metric(Daemon, Gauge, "process_start_time_seconds", &[], "When the process started, since 1970.",
        |of, rows| maybe(rows, of.process.start_unix_s)),
];

/// Bounds of latencies, each with the last of `Io`'s buckets below it: 2^(9 + n) ns. With +Inf
/// there are 12.
pub const BOUNDS: [(usize, &str); 11] = [
    (4, "0.000008192"),
    (5, "0.000016384"),
    (6, "0.000032768"),
    (7, "0.000065536"),
    (8, "0.000131072"),
    (9, "0.000262144"),
    (11, "0.001048576"),
    (13, "0.004194304"),
    (15, "0.016777216"),
    (18, "0.134217728"),
    (21, "1.073741824"),
];

/// Bounds of stages' times: 2^(12 + 2n) ns end bucket n; the last bucket has none.
pub const STAGE_BOUNDS: [&str; iscsi_server::STAGE_BUCKETS - 1] = [
    "0.000004096",
    "0.000016384",
    "0.000065536",
    "0.000262144",
    "0.001048576",
    "0.004194304",
    "0.016777216",
    "0.067108864",
    "0.268435456",
    "1.073741824",
    "4.294967296",
];

/// The histogram of a stage.
fn stage(one: &Stage, rows: &mut Rows<'_>, labels: &[&str]) {
    let mut so_far = 0;
    let bounds = STAGE_BOUNDS.iter().zip(one.buckets).map(|(bound, more)| {
        so_far += more;
        (*bound, so_far)
    });
    rows.histogram(labels, bounds, one.buckets.iter().sum(), one.seconds);
}

fn level(level: Level) -> u64 {
    match level {
        Level::Ok => 0,
        Level::Warning => 1,
        Level::Critical => 2,
    }
}

fn state(health: &ServedHealth) -> u64 {
    match health.state.as_str() {
        "failed" => 2,
        "degraded" => 1,
        _ => 0,
    }
}

fn each_unit(of: &Picture, mut tell: impl FnMut(&str, &str, &UnitStatus)) {
    for target in &of.status.targets {
        target.units.iter().for_each(|unit| tell(&target.iqn, &unit.lun.to_string(), unit));
    }
}

fn units<N: Into<Number>>(of: &Picture, rows: &mut Rows<'_>, value: impl Fn(&UnitStatus) -> Option<N>) {
    each_unit(of, |target, lun, unit| {
        if let Some(value) = value(unit) {
            rows.row(&[target, lun], value);
        }
    });
}

fn initiators(of: &Picture, mut tell: impl FnMut(&str, &str, &Initiator)) {
    of.totals.initiators.iter().for_each(|((initiator, target), one)| tell(initiator, target, one));
}

fn commands(io: &Io, mut tell: impl FnMut(&str, u64)) {
    for (operation, count) in [("read", io.reads), ("write", io.writes), ("other", io.others)] {
        tell(operation, count);
    }
}

fn bytes(io: &Io, mut tell: impl FnMut(&str, u64)) {
    tell("read", io.read_bytes);
    tell("write", io.written_bytes);
}

fn group(of: &Picture, tell: impl FnOnce(&GroupStatus)) {
    if let Some(group) = &of.status.gateways {
        tell(group);
    }
}

fn members(of: &Picture, mut tell: impl FnMut(&str, &Member)) {
    group(of, |group| {
        group.members.iter().for_each(|member| tell(&member.number.to_string(), member));
    });
}

fn counts(of: &Picture, rows: &mut Rows<'_>, value: impl FnOnce(&Counts) -> u64) {
    group(of, |group| rows.row(&[], value(&group.counts)));
}

fn file_systems(of: &Picture, rows: &mut Rows<'_>, value: impl Fn(&FileSystem) -> u64) {
    of.status.health.file_systems.iter().for_each(|system| rows.row(&[&system.mount], value(system)));
}

fn cores(of: &Picture, mut tell: impl FnMut(&str, &CoreStatus)) {
    for (at, core) in of.status.cores.iter().enumerate() {
        if let Some(core) = core {
            tell(&at.to_string(), core);
        }
    }
}

fn maybe<N: Into<Number>>(rows: &mut Rows<'_>, value: Option<N>) {
    if let Some(value) = value {
        rows.row(&[], value);
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::fmt::Write;

    use super::*;
    use crate::config::MOST_UNITS_WITH_STAGES;
    use crate::metrics::picture::{
        MOST_EXPORTS, MOST_INITIATORS, MOST_TARGETS, MOST_TARGETS_IN_DETAIL, MOST_UNITS_IN_DETAIL,
    };

    const PAGE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../../docs/src/reference/metrics.md");

    fn page() -> String {
        let again = "STAG_WRITE_DOCS=1 cargo test -p stag the_page_of_metrics";
        let mut page = format!(
            "# Metrics\n\n\
             You need this page when you write a query or an alert. `{again}` writes it. [Watch it with Prometheus](../guide/prometheus.md) \
             says how to get them.\n\n\
             Times are seconds, sizes bytes; counters begin at 0 with the daemon, also with one that takes over. Labels:\n\n\
             | label | value |\n|---|---|\n\
             | `target`, `lun` | the iSCSI name of the target, the number of the unit in it |\n\
             | `operation` | `read`, `write`, `other`; of NFS, the name of the procedure (RFC 1813) or operation (RFC 8881) in small letters |\n\
             | `stage` | `order`: from its turn by CmdSN until its unit gets it (older commands, a limit of service, data that the initiator has to \
             take first); `data`: its unit waits for the initiator's data, or until it takes some; `medium`: the rest of the time until its status \
             is ready; `send`: from then until the initiator acknowledges it (ExpStatSN), unless it had no other command and took more than 100 ms |\n\
             | `status`, `sense_key` | SCSI status; the sense key of `check-condition`, none of other statuses |\n\
             | `version`, `outcome` | of NFS: 3 or 4; `done`, `refused` (the client asked for something that is not there, that it may not do, or that is wrong), \
             `delayed` (it was told to ask again later), `failed` (the medium or the server, or no space) |\n\
             | `direction` | `read`: to clients; `write`: from clients |\n\
             | `core` | the number of the daemon's thread |\n\
             | `gateway` | the number of a gateway in its group |\n\n\
             ## Bounds\n\n\
             The number of series is bounded: 10,000 units make less than 100,000. `stag_metrics_left_out` is 1 where something is left out.\n\n\
             | more than | then |\n|---|---|\n\
             | {MOST_UNITS_IN_DETAIL} units | metrics marked \"unit-details\" are left out; latencies have no `lun` |\n\
             | {MOST_UNITS_WITH_STAGES} units with the option `stages` | the configuration is refused |\n\
             | {MOST_TARGETS} targets, and more units than that | latencies have no `target` |\n\
             | {MOST_TARGETS_IN_DETAIL} targets | metrics marked \"targets\" have no `target`: they are sums over all |\n\
             | {MOST_INITIATORS} pairs of an initiator and a target | metrics marked \"initiators\" are left out |\n\
             | {MOST_EXPORTS} exports | metrics marked \"exports\" are left out |\n\n\
             If a core does not answer in time, `stag_core_up` is 0 for it, and the counters that are sums over all cores are missing until it does.\n\n\
             ## All metrics\n\n\
             | metric | kind | labels | of | meaning |\n|---|---|---|---|---|\n"
        );
        for (family, of) in
            TABLE.iter().map(|metric| (&metric.family, metric.of)).chain([(&LEFT_OUT, Of::Daemon)])
        {
            let labels: Vec<_> = family.labels.iter().map(|label| format!("`{label}`")).collect();
            let _ = writeln!(
                page,
                "| `{}` | {} | {} | {} | {} |",
                family.name,
                family.kind.name(),
                labels.join(", "),
                of.name(),
                family.help
            );
        }
        page
    }

    #[test]
    fn the_page_of_metrics_is_the_generated_one() {
        let page = page();
        if std::env::var_os("STAG_WRITE_DOCS").is_some() {
            std::fs::write(PAGE, &page).unwrap();
        }
        let there = std::fs::read_to_string(PAGE).unwrap_or_default();
        assert!(
            there == page,
            "STAG_WRITE_DOCS=1 cargo test -p stag the_page_of_metrics writes docs/src/reference/metrics.md"
        );
    }

    #[test]
    fn names_follow_the_rules_of_prometheus() {
        let mut names = BTreeSet::new();
        for family in TABLE.iter().map(|metric| &metric.family).chain([&LEFT_OUT]) {
            let Family { name, kind, help, .. } = family;
            assert!(names.insert(*name), "{name} is there twice");
            assert!(name.starts_with("stag_") || name.starts_with("process_"), "{name}");
            assert_eq!(name.ends_with("_total"), *kind == Counter, "{name}");
            assert_eq!(name.ends_with("_info"), *kind == Info, "{name}");
            assert!(help.ends_with('.') && !help.contains(['\n', '\\', '"']), "{name}: {help}");
        }
    }

    #[test]
    fn bounds_are_the_ends_of_buckets() {
        for (bucket, bound) in BOUNDS {
            let seconds: f64 = bound.parse().unwrap();
            assert_eq!((seconds * 1e9).round() as u64, 512 << bucket, "{bound}");
        }
        for (bucket, bound) in STAGE_BOUNDS.iter().enumerate() {
            let seconds: f64 = bound.parse().unwrap();
            assert_eq!((seconds * 1e9).round() as u64, 4096 << (2 * bucket), "{bound}");
        }
        assert!(BOUNDS.len() < 12 && BOUNDS.iter().all(|(bucket, _)| *bucket < iscsi_server::BUCKETS - 1));
    }
}
