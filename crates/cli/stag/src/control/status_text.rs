//! `status` as text: what `stag status` prints. Reads a [`Status`] and nothing else.

use std::fmt::Write;

use backing::size::Size;

use super::status::{CoreStatus, Io, Recoveries, SessionStatus, Status};
use crate::shown::duration;

/// The whole status.
pub fn text(status: &Status) -> String {
    let mut out = String::new();
    // A string takes everything.
    let _ = write_text(&mut out, status);
    out
}

fn write_text(out: &mut String, status: &Status) -> std::fmt::Result {
    writeln!(
        out,
        "stag {}, process {}, serving for {}",
        status.version,
        status.pid,
        duration(status.uptime_s)
    )?;
    if status.runtime == runtime::Backend::Epoll.name() {
        writeln!(out, "runs on epoll instead of io_uring")?;
    }
    for portal in &status.portals {
        writeln!(
            out,
            "listens on {} for {} (portal group {})",
            portal.listen, portal.transports, portal.group
        )?;
    }
    for listen in &status.nfs.listen {
        writeln!(out, "listens on {listen} for NFS")?;
    }
    out.push_str(&status.health.text());
    for target in &status.targets {
        let alias = if target.alias.is_empty() { String::new() } else { format!(" \"{}\"", target.alias) };
        let managed = if target.managed { " (managed)" } else { "" };
        writeln!(out, "\ntarget {}{alias}{managed}", target.iqn)?;
        for unit in &target.units {
            let mut words = vec![unit.path.clone(), Size(unit.size).to_string()];
            match &unit.objects {
                None => words.push(format!("{}-byte blocks", unit.block)),
                Some(objects) => words.push(format!(
                    "{} used, {} partitions, {} objects",
                    Size(objects.used),
                    objects.partitions,
                    objects.objects
                )),
            }
            words.extend(unit.read_only.then(|| "read-only".to_owned()));
            words.extend(unit.thin.then(|| "thin".to_owned()));
            words.extend((!unit.write_cache).then(|| "write-through".to_owned()));
            words.extend(unit.engine.as_ref().map(|engine| format!("engine {engine}")));
            words.extend(unit.allocated.map(|bytes| format!("{} allocated", Size(bytes))));
            words.extend(unit.shared.as_ref().map(|shared| format!("owner: {}", shared.owner_text())));
            words.extend((unit.health.state != "ok").then(|| unit.health.state.to_uppercase()));
            words.extend(done(&unit.io));
            writeln!(out, "  lun {}: {}", unit.lun, words.join(", "))?;
        }
        for session in status.sessions.iter().filter(|s| s.target.as_ref() == Some(&target.iqn)) {
            write_session(out, session)?;
        }
    }
    out.push_str(&status.nfs.text());
    let discovery: Vec<_> = status.sessions.iter().filter(|session| session.target.is_none()).collect();
    if !discovery.is_empty() {
        writeln!(out, "\ndiscovery")?;
    }
    for session in discovery {
        write_session(out, session)?;
    }
    writeln!(out)?;
    if let Some(said) = recovered(&status.recoveries) {
        writeln!(out, "all sessions so far: {said}")?;
    }
    for (at, core) in status.cores.iter().enumerate() {
        match core {
            None => writeln!(out, "core {at}: does not answer")?,
            Some(core) => write_core(out, at, core)?,
        }
    }
    Ok(())
}

fn write_core(out: &mut String, at: usize, core: &CoreStatus) -> std::fmt::Result {
    write!(
        out,
        "core {at}: {} connections, buffers {} of {} in use, {} at most so far",
        core.connections,
        Size(core.pool_in_use as u64),
        Size(core.pool_limit as u64),
        Size(core.pool_high_water as u64),
    )?;
    if core.pool_waits > 0 {
        write!(out, ", waited for {} times", core.pool_waits)?;
    }
    if core.kept > 0 {
        write!(out, ", {} kept for recovery", Size(core.kept as u64))?;
    }
    if core.kept_given_up > 0 {
        write!(out, ", given up {} times", core.kept_given_up)?;
    }
    if core.pings_waiting > 0 {
        write!(out, ", {} pings wait for their turn", core.pings_waiting)?;
    }
    if core.stalls > 0 {
        write!(
            out,
            ", {} stalls of 1 ms and more, {:.1} ms at most",
            core.stalls,
            core.longest_stall_s * 1e3
        )?;
    }
    if core.tcp.received > 0 {
        let (received, landed) = (Size(core.tcp.received), Size(core.tcp.landed));
        write!(out, "; TCP {received} received ({landed} straight to where it belongs)")?;
    }
    if core.rdma.sent + core.rdma.in_place + core.rdma.by_reference + core.rdma.copied_in > 0 {
        let received = core.rdma.in_place + core.rdma.by_reference + core.rdma.copied_in;
        let rdma = &core.rdma;
        let (placed, copied, sent) = (Size(rdma.placed), Size(rdma.copied_in), Size(rdma.sent));
        write!(
            out,
            "; RDMA {} received ({placed} into units, {copied} copied), {sent} sent",
            Size(received)
        )?;
    }
    writeln!(out)
}

/// Counts of error recovery, if any is not 0.
fn recovered(of: &Recoveries) -> Option<String> {
    let words = [
        (of.snacks, "SNACKs"),
        (of.rejected_snacks, "of them rejected"),
        (of.resent_pdus, "PDUs sent again"),
        (of.recovery_r2ts, "times data asked for again"),
        (of.digest_errors, "wrong digests"),
        (of.reassigned_tasks, "tasks reassigned"),
    ];
    let there = words.iter().filter(|(count, _)| *count > 0);
    let said: Vec<String> = there.map(|(count, what)| format!("{count} {what}")).collect();
    (!said.is_empty()).then(|| format!("recovered: {}", said.join(", ")))
}

/// Counts of reads and writes, if any is not 0.
fn done(io: &Io) -> Option<String> {
    let any = io.reads + io.writes > 0;
    any.then(|| {
        let (read, written) = (Size(io.read_bytes), Size(io.written_bytes));
        format!("{} reads ({read}), {} writes ({written})", io.reads, io.writes)
    })
}

fn write_session(out: &mut String, session: &SessionStatus) -> std::fmt::Result {
    writeln!(
        out,
        "  session {} of {} (isid {}{}), portal group {}, recovery level {}, for {}{}",
        session.tsih,
        session.initiator,
        session.isid,
        session.user.as_ref().map_or_else(String::new, |user| format!(", user {user}")),
        session.group,
        session.error_recovery_level,
        duration(session.age_s),
        done(&session.io).map_or_else(String::new, |done| format!(": {done}")),
    )?;
    if let Some(said) = recovered(&session.recoveries) {
        writeln!(out, "    {said}")?;
    }
    for connection in &session.connections {
        let digests = match (connection.header_digest, connection.data_digest) {
            (true, true) => ", header and data digests",
            (true, false) => ", header digests",
            (false, true) => ", data digests",
            (false, false) => "",
        };
        writeln!(
            out,
            "    connection {} from {} by {}{digests}, on core {}, for {}",
            connection.cid,
            connection.peer,
            connection.transport,
            connection.core,
            duration(connection.age_s),
        )?;
    }
    Ok(())
}
