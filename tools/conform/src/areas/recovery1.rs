//! Recovery within a command and within a connection: ErrorRecoveryLevel 1, and the behavior at
//! level 0 (RFC 7143 §7.1.4, §11.16).

use iscsi::pdu::{NopOut, Opcode, SnackRequest, SnackType, U32};

use super::digests::digested;
use crate::check::Area::Recovery1;
use crate::check::Check;
use crate::conn::{Conn, Ending};
use crate::finding::{Finding, Verdict, expect, not_applicable, should, wrong};
use crate::lab::Lab;
use crate::pdu::Pdu;
use crate::scsi::{Command, Task, read10};

const LOST: &str = "The initiator misses a PDU and asks for it: what it gets must be what was sent.";
const BROKEN: &str = "A digest error costs one PDU at this level, and not the session.";

pub(super) const CHECKS: &[Check] = &[
    Check::must(Recovery1, "snack-at-level-0", "RFC 7143 §11.16, §7.1.5",
        "At ErrorRecoveryLevel 0 a SNACK is rejected, or costs the connection; it brings nothing out of turn.",
        "There is nothing kept that could be sent again.",
        |lab| {
            let mut conn = lab.ready(&[])?;
            let missed = conn.ping(b"kept?")?.stat_sn();
            snack(&mut conn, SnackType::Status, u32::MAX, u32::MAX, missed, 1)?;
            match conn.outcome(|_| true) {
                Ending::Pdu(pdu) if pdu.is(Opcode::Reject) => Ok(()),
                Ending::Pdu(pdu) => should(false, "a Reject", || pdu.bhs.to_string()),
                Ending::Closed => Ok(()),
                Ending::Silent => should(false, "a Reject", || "no answer".to_owned()),
            }
        }).tcp(),
    Check::must(Recovery1, "status-again", "RFC 7143 §11.16, §7.1.4.2",
        "A Status SNACK brings the statuses of its run again, as they were, with their StatSN.",
        LOST,
        |lab| {
            let mut conn = level(lab, 1, &[])?;
            conn.acknowledges = false;
            let mut sent = Vec::new();
            for n in 0..4u8 {
                sent.push(conn.ping(&[n; 20])?);
            }
            let first = sent.first().map_or(0, Pdu::stat_sn);
            snack(&mut conn, SnackType::Status, u32::MAX, u32::MAX, first, 4)?;
            for pdu in &sent {
                let again = conn.wait("the status again", |again| again.is(Opcode::NopIn) || again.is(Opcode::Reject))?;
                same(&again, pdu)?;
            }
            Ok(())
        }).tcp(),
    Check::must(Recovery1, "status-again-of-a-command", "RFC 7143 §11.16, §7.1.4.2",
        "A Status SNACK brings a SCSI Response again, with its sense data.",
        LOST,
        |lab| {
            let mut conn = level(lab, 1, &[])?;
            conn.acknowledges = false;
            let done = conn.run(&Command::new(&[0xff; 6]))?;
            let Some(status) = done.pdus.last().cloned() else { return wrong("no status", "a SCSI Response") };
            snack(&mut conn, SnackType::Status, u32::MAX, u32::MAX, status.stat_sn(), 1)?;
            let again = conn.wait("the SCSI Response again", |pdu| pdu.itt() == done.itt || pdu.is(Opcode::Reject))?;
            same(&again, &status)
        }).tcp(),
    Check::must(Recovery1, "all-unacknowledged-statuses", "RFC 7143 §11.16.5, §11.16.6",
        "A Status SNACK with BegRun 0 and RunLength 0 brings all statuses that are not acknowledged.",
        LOST,
        |lab| {
            let mut conn = level(lab, 1, &[])?;
            conn.acknowledges = false;
            let sent = [conn.ping(b"one")?, conn.ping(b"two")?, conn.ping(b"three")?];
            snack(&mut conn, SnackType::Status, u32::MAX, u32::MAX, 0, 0)?;
            for pdu in &sent {
                let (itt, what) = (pdu.itt(), "each status that is not acknowledged, again");
                let again = conn.wait(what, |again| again.itt() == itt || again.is(Opcode::Reject))?;
                same(&again, pdu)?;
            }
            Ok(())
        }).tcp(),
    Check::must(Recovery1, "acknowledged-status-is-gone", "RFC 7143 §11.16, §4.2.2.2",
        "A Status SNACK for a StatSN that was acknowledged, or never sent, is rejected.",
        "The initiator is confused, or somebody else.",
        |lab| {
            let mut conn = level(lab, 1, &[])?;
            let old = conn.ping(b"old")?.stat_sn();
            for _ in 0..3 {
                conn.ping(b"newer")?;
            }
            snack(&mut conn, SnackType::Status, u32::MAX, u32::MAX, old, 1)?;
            rejected(&mut conn)
        }).tcp(),
    Check::must(Recovery1, "data-again", "RFC 7143 §11.16, §7.1.4.1",
        "A Data SNACK brings the Data-In PDUs of its run again: the same bytes, with their DataSN and Buffer Offset.",
        LOST,
        |lab| {
            let (mut conn, done, unit) = read(lab, &[])?;
            let _ = unit;
            let data: Vec<Pdu> = done.of(Opcode::DataIn).into_iter().cloned().collect();
            let Some(run) = data.get(1..3) else { return not_applicable("the read came in fewer than three PDUs") };
            snack(&mut conn, SnackType::DataR2t, done.itt, u32::MAX, 1, 2)?;
            for pdu in run {
                let again = conn.wait("the Data-In again", |again| again.is(Opcode::DataIn) || again.is(Opcode::Reject))?;
                expect(again.is(Opcode::DataIn), "the Data-In again", || format!("a Reject, reason {}", again.reject_reason()))?;
                expect(again.word(36) == pdu.word(36) && again.word(40) == pdu.word(40), format!("DataSN {}, Buffer Offset {}", pdu.word(36), pdu.word(40)), || {
                    format!("DataSN {}, Buffer Offset {}", again.word(36), again.word(40))
                })?;
                expect(again.data == pdu.data, "the same data", || "other data".to_owned())?;
            }
            conn.acknowledges = true;
            conn.ping(b"on").map(|_| ())
        }).tcp(),
    Check::must(Recovery1, "all-data-again", "RFC 7143 §11.16.5, §11.16.6",
        "A Data SNACK with BegRun 0 and RunLength 0 brings all Data-In of the command again.",
        LOST,
        |lab| {
            let (mut conn, done, _) = read(lab, &[])?;
            let count = done.of(Opcode::DataIn).len();
            snack(&mut conn, SnackType::DataR2t, done.itt, u32::MAX, 0, 0)?;
            for n in 0..count {
                let again = conn.wait("all Data-In again", |again| again.is(Opcode::DataIn) || again.is(Opcode::Reject))?;
                expect(again.is(Opcode::DataIn), "all Data-In again", || format!("a Reject, reason {}", again.reject_reason()))?;
                expect(again.word(36) == n as u32, format!("DataSN {n}"), || format!("DataSN {}", again.word(36)))?;
            }
            Ok(())
        }).tcp(),
    Check::must(Recovery1, "data-never-sent", "RFC 7143 §11.16",
        "A Data SNACK for a DataSN that was never sent is rejected.",
        "There is nothing to send, and silence makes the initiator wait.",
        |lab| {
            let (mut conn, done, _) = read(lab, &[])?;
            snack(&mut conn, SnackType::DataR2t, done.itt, u32::MAX, 4000, 1)?;
            rejected(&mut conn)
        }).tcp(),
    Check::must(Recovery1, "data-of-no-task", "RFC 7143 §11.16",
        "A Data SNACK for a task that does not exist is rejected.",
        "There is nothing to send, and silence makes the initiator wait.",
        |lab| {
            let mut conn = level(lab, 1, &[])?;
            snack(&mut conn, SnackType::DataR2t, 0x7171, u32::MAX, 0, 1)?;
            rejected(&mut conn)
        }).tcp(),
    Check::must(Recovery1, "r2t-again", "RFC 7143 §11.16, §7.1.4.1",
        "A SNACK for an R2T brings it again: the same R2TSN, offset and length.",
        "A write whose R2T is lost waits for ever.",
        |lab| {
            let mut conn = level(lab, 1, &[("InitialR2T", "Yes"), ("ImmediateData", "No")])?;
            let mut out = lab.outgoing(&mut conn, 8192)?;
            out.command.unsolicited = false;
            let task = conn.start(&out.command)?;
            let r2t = conn.answer(Opcode::ReadyToTransfer, task.itt)?;
            snack(&mut conn, SnackType::DataR2t, task.itt, u32::MAX, r2t.word(36), 1)?;
            let again = conn.answer(Opcode::ReadyToTransfer, task.itt)?;
            for (at, name) in [(36, "R2TSN"), (40, "Buffer Offset"), (44, "Desired Data Transfer Length")] {
                expect(again.word(at) == r2t.word(at), format!("{name} {}", r2t.word(at)), || format!("{name} {}", again.word(at)))?;
            }
            conn.data_out(&task, again.word(20), again.word(40) as usize, again.word(44) as usize, 0)?;
            conn.finish_task(&task)?.good("the write")?;
            lab.confirm(&mut conn, &out)
        }).tcp(),
    Check::must(Recovery1, "r-data", "RFC 7143 §11.16.1, §11.16.3",
        "An R-Data SNACK after a changed MaxRecvDataSegmentLength brings all data again, cut anew, and a response with its SNACK Tag.",
        "The run of DataSN is another one after the change, so that a Data SNACK cannot name what is missing.",
        |lab| {
            let (mut conn, done, _) = read(lab, &[])?;
            if done.of(Opcode::ScsiResponse).is_empty() && done.of(Opcode::DataIn).len() < 2 {
                return not_applicable("the read came in one PDU");
            }
            let (itt, want) = (done.itt, done.data.len());
            snack(&mut conn, SnackType::RData, itt, 0x0abc, 0, 0)?;
            let mut got = 0;
            loop {
                let pdu = conn.wait("all data and the response again", |pdu| pdu.itt() == itt || pdu.is(Opcode::Reject))?;
                match pdu.bhs.opcode() {
                    Some(Opcode::DataIn) => {
                        got += pdu.data.len();
                        // A status in the last Data-In has no SNACK Tag, so the response must be a
                        // separate PDU (§11.16.3).
                        expect(pdu.bhs.flags & 1 == 0, "the status in a SCSI Response", || "S=1 in a Data-In".to_owned())?;
                    }
                    Some(Opcode::ScsiResponse) => {
                        let tag = pdu.word(20);
                        expect(got == want, format!("{want} bytes"), || format!("{got} bytes"))?;
                        return expect(tag == 0x0abc, "SNACK Tag abch", || format!("SNACK Tag {tag:x}h"));
                    }
                    // §11.16.3 lets a target abort the task, or reject data that it cannot send
                    // again.
                    _ => return should(false, "all data and the response again", || format!("a Reject, reason {}", pdu.reject_reason())),
                }
            }
        }).tcp(),
    Check::must(Recovery1, "data-ack", "RFC 7143 §11.7.2, §11.16.4",
        "A Data-In with A=1 ends a sequence, has a Target Transfer Tag, and the read goes on and ends after a DataACK.",
        "The target asks for it to forget what it keeps; a read that then does not end is worse than one without recovery.",
        |lab| {
            let keys = [("MaxBurstLength", "4096"), ("FirstBurstLength", "4096"), ("MaxRecvDataSegmentLength", "1024")];
            let mut conn = level(lab, 1, &keys)?;
            let unit = lab.unit(&mut conn)?;
            let blocks = (65_536 / unit.block_len) as u16;
            let task = conn.start(&Command::reading(&read10(0, blocks), 65_536))?;
            let (itt, mut asked, mut got) = (task.itt, 0, 0);
            loop {
                let pdu = conn.wait("the read's data and status", |pdu| pdu.itt() == itt || pdu.is(Opcode::Reject))?;
                expect(!pdu.is(Opcode::Reject), "the read's data and status", || format!("a Reject, reason {}", pdu.reject_reason()))?;
                if pdu.is(Opcode::DataIn) && pdu.bhs.flags & 0x40 != 0 {
                    asked += 1;
                    let ttt = pdu.word(20);
                    expect(pdu.bhs.is_final(), "A=1 with F=1 only", || pdu.bhs.to_string())?;
                    expect(ttt != u32::MAX, "a Target Transfer Tag", || "ffffffffh".to_owned())?;
                    let lun = pdu.bhs.lun();
                    snack_at(&mut conn, SnackType::DataAck, u32::MAX, ttt, pdu.word(36).wrapping_add(1), 0, lun)?;
                }
                got += pdu.data.len();
                let ended = pdu.is(Opcode::ScsiResponse) || pdu.bhs.flags & 1 != 0;
                if ended {
                    break;
                }
            }
            if asked == 0 {
                return not_applicable("the target asks for no acknowledgement of data");
            }
            expect(got >= usize::from(blocks) * unit.block_len as usize, "all data", || format!("{got} bytes"))?;
            conn.ping(b"on").map(|_| ())
        }).tcp(),
    Check::must(Recovery1, "header-digest-costs-one-pdu", "RFC 7143 §7.8, §7.1.5",
        "At ErrorRecoveryLevel 1 a PDU with a wrong header digest is dropped and the connection goes on.",
        BROKEN,
        |lab| {
            let keys = [("ErrorRecoveryLevel", "1"), ("HeaderDigest", "CRC32C")];
            offered(lab, 1)?;
            let mut conn = digested(lab, &keys, true, false)?;
            let mut ping = NopOut::ping(0x4242);
            (ping.cmd_sn, ping.exp_stat_sn) = (U32::new(conn.cmd_sn), U32::new(conn.exp_stat_sn));
            let mut bytes = conn.encode(ping, &[], &[]);
            if let Some(byte) = bytes.get_mut(30) {
                *byte ^= 1;
            }
            conn.post_bytes(&bytes)?;
            conn.quiet("no answer to the broken PDU", |pdu| pdu.itt() == 0x4242)
        }).tcp(),
    Check::must(Recovery1, "command-again", "RFC 7143 §7.2.1, §7.8",
        "A command that was lost is executed when it is sent again, with the same CmdSN and Initiator Task Tag.",
        "It is how the gap in CmdSN is closed.",
        |lab| {
            offered(lab, 1)?;
            let keys = [("ErrorRecoveryLevel", "1"), ("HeaderDigest", "CRC32C")];
            let mut conn = digested(lab, &keys, true, false)?;
            let command = Command::new(&[0; 6]);
            let mut header = conn.command_header(&command);
            header.cmd_sn = U32::new(conn.take_cmd_sn());
            let mut bytes = conn.encode(header, &[], &[]);
            if let Some(byte) = bytes.get_mut(30) {
                *byte ^= 1;
            }
            conn.post_bytes(&bytes)?;
            let later = conn.start(&command)?;
            conn.quiet("no status of a later command", |pdu| pdu.itt() == later.itt && pdu.is(Opcode::ScsiResponse))?;
            let again = conn.start_as(header, &command)?;
            conn.finish_task(&again)?.good("the command that was sent again")?;
            conn.finish_task(&later)?.good("the command after it").map(|_| ())
        }).tcp(),
    Check::must(Recovery1, "data-digest-is-recovered", "RFC 7143 §7.8, §7.1.4.1",
        "A Data-Out with a wrong data digest is rejected (02h), and the target asks for its data again, or ends the command with CHECK CONDITION.",
        BROKEN,
        |lab| {
            offered(lab, 1)?;
            let keys = [("ErrorRecoveryLevel", "1"), ("DataDigest", "CRC32C"), ("InitialR2T", "Yes"), ("ImmediateData", "No")];
            let mut conn = digested(lab, &keys, false, true)?;
            let mut out = lab.outgoing(&mut conn, 8192)?;
            out.command.segment = Some(2048);
            let task = conn.start(&out.command)?;
            recovered(lab, &mut conn, &task, &out, |conn, task, r2t| {
                let (ttt, at, len) = (r2t.word(20), r2t.word(40) as usize, r2t.word(44) as usize);
                for (n, part) in task.command.out.get(at..at + len).unwrap_or_default().to_vec().chunks(2048).enumerate() {
                    let mut pdu = conn.data_out_header(task, ttt, n as u32, at + n * 2048);
                    pdu.flags = if (n + 1) * 2048 >= len { 0x80 } else { 0 };
                    let mut bytes = conn.encode(pdu, &[], part);
                    if n == 1 {
                        if let Some(byte) = bytes.get_mut(100) {
                            *byte ^= 1;
                        }
                    }
                    conn.post_bytes(&bytes)?;
                }
                Ok(())
            })
        }).tcp(),
    Check::must(Recovery1, "lost-data-is-recovered", "RFC 7143 §7.9, §7.1.4.1",
        "A Data-Out that is missing is asked for again by a recovery R2T, or ends its command with CHECK CONDITION.",
        LOST,
        |lab| {
            let mut conn = level(lab, 1, &[("InitialR2T", "Yes"), ("ImmediateData", "No")])?;
            let mut out = lab.outgoing(&mut conn, 8192)?;
            out.command.segment = Some(2048);
            let task = conn.start(&out.command)?;
            recovered(lab, &mut conn, &task, &out, |conn, task, r2t| {
                let (ttt, at, len) = (r2t.word(20), r2t.word(40) as usize, r2t.word(44) as usize);
                for (n, part) in task.command.out.get(at..at + len).unwrap_or_default().to_vec().chunks(2048).enumerate() {
                    let mut pdu = conn.data_out_header(task, ttt, n as u32, at + n * 2048);
                    pdu.flags = if (n + 1) * 2048 >= len { 0x80 } else { 0 };
                    if n != 1 {
                        conn.post(pdu, part)?;
                    }
                }
                Ok(())
            })
        }).tcp(),
];

/// A SNACK for what the target cannot send again is rejected, or costs the connection.
fn rejected(conn: &mut Conn) -> Verdict {
    match conn.outcome(|_| true) {
        Ending::Pdu(pdu) if pdu.is(Opcode::Reject) => Ok(()),
        Ending::Pdu(pdu) => wrong(pdu.bhs.to_string(), "a Reject"),
        Ending::Closed => Ok(()),
        Ending::Silent => should(false, "a Reject", || "no answer".to_owned()),
    }
}

/// Sends a SNACK.
fn snack(conn: &mut Conn, kind: SnackType, itt: u32, tag: u32, begin: u32, length: u32) -> Verdict {
    let lun = conn.lun;
    snack_at(conn, kind, itt, tag, begin, length, lun)
}

fn snack_at(
    conn: &mut Conn,
    kind: SnackType,
    itt: u32,
    tag: u32,
    begin: u32,
    length: u32,
    lun: iscsi::pdu::Lun,
) -> Verdict {
    let mut request = SnackRequest::new(kind, itt, tag, begin, length);
    request.exp_stat_sn = U32::new(conn.exp_stat_sn);
    if kind != SnackType::Status {
        request.lun = lun;
    }
    conn.post(request, &[])
}

/// Not applicable unless the target agrees to that level or a higher one.
pub(super) fn offered(lab: &Lab, level: u32) -> Verdict {
    let wanted = level.to_string();
    let conn = lab.session(&[("ErrorRecoveryLevel", &wanted)])?;
    let got = conn.number("ErrorRecoveryLevel", 0);
    if got < level {
        return not_applicable(format!("not offered: the target answers ErrorRecoveryLevel={got}"));
    }
    Ok(())
}

/// A session of that level.
pub(super) fn level(lab: &Lab, level: u32, keys: &[(&str, &str)]) -> Verdict<Conn> {
    let wanted = level.to_string();
    let all: Vec<(&str, &str)> =
        [("ErrorRecoveryLevel", wanted.as_str())].into_iter().chain(keys.iter().copied()).collect();
    let mut conn = lab.session(&all)?;
    let got = conn.number("ErrorRecoveryLevel", 0);
    if got < level {
        return not_applicable(format!("not offered: the target answers ErrorRecoveryLevel={got}"));
    }
    crate::finding::setup(conn.settle(), "with a unit that is ready")?;
    Ok(conn)
}

/// A session of level 1 with a read of 16 KiB in many PDUs, whose status is not acknowledged.
fn read(lab: &Lab, keys: &[(&str, &str)]) -> Verdict<(Conn, crate::scsi::Done, u32)> {
    let all: Vec<(&str, &str)> =
        [("MaxRecvDataSegmentLength", "1024")].into_iter().chain(keys.iter().copied()).collect();
    let mut conn = level(lab, 1, &all)?;
    let unit = lab.unit(&mut conn)?;
    conn.acknowledges = false;
    let blocks = 16_384 / unit.block_len;
    let done =
        conn.run(&Command::reading(&read10(0, blocks as u16), blocks * unit.block_len))?.good("READ (10)")?;
    Ok((conn, done, unit.block_len))
}

/// Fails unless a PDU was repeated unchanged, except that ExpCmdSN and MaxCmdSN may have advanced.
fn same(again: &Pdu, before: &Pdu) -> Verdict {
    expect(!again.is(Opcode::Reject), "the same PDU again", || {
        format!("a Reject, reason {}", again.reject_reason())
    })?;
    let (a, b) = (again.bhs.bytes(), before.bhs.bytes());
    let equal = a.get(..28) == b.get(..28) && a.get(36..) == b.get(36..) && again.data == before.data;
    expect(equal, before.bhs.to_string(), || again.bhs.to_string())
}

/// Fails unless a write whose first data is lost ends with all data stored, or with CHECK
/// CONDITION.
fn recovered(
    lab: &Lab,
    conn: &mut Conn,
    task: &Task,
    out: &crate::scsi::Outgoing,
    respond: impl Fn(&mut Conn, &Task, &Pdu) -> Verdict,
) -> Verdict {
    let itt = task.itt;
    let mut first = true;
    for _ in 0..64 {
        let pdu = conn
            .wait("a recovery R2T, a Reject or a status", |pdu| pdu.itt() == itt || pdu.is(Opcode::Reject))?;
        match pdu.bhs.opcode() {
            Some(Opcode::ReadyToTransfer) if std::mem::take(&mut first) => respond(conn, task, &pdu)?,
            Some(Opcode::ReadyToTransfer) => {
                conn.data_out(task, pdu.word(20), pdu.word(40) as usize, pdu.word(44) as usize, 0)?;
            }
            Some(Opcode::Reject) => {
                let reason = pdu.bhs.as_reject().reason;
                expect(reason == 2, "reason 02h (data digest error)", || pdu.reject_reason())?;
            }
            _ => {
                let good = pdu.bhs.as_scsi_response().status == 0;
                return if good { lab.confirm(conn, out) } else { Ok(()) };
            }
        }
    }
    Err(Finding::Wrong { seen: "64 PDUs and no end".to_owned(), expected: "a status".to_owned() })
}
