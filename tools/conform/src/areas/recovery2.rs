//! Lost and replaced connections: ErrorRecoveryLevel 2 (RFC 7143 §7.2.2, §7.1.4.3, §6.3.4).

use std::time::Duration;

use iscsi::pdu::{LogoutReason, Opcode, TaskManagementFunction as Function};

use super::connections::two as two_at_0;
use super::logout::logout;
use super::task::manage;
use crate::check::Area::Recovery2;
use crate::check::Check;
use crate::conn::Conn;
use crate::finding::{Verdict, expect, not_applicable, setup, should, wrong};
use crate::lab::Lab;
use crate::pdu::Pdu;
use crate::scsi::{Command, Outgoing, Task};

const LIVES: &str =
    "A connection that breaks costs its commands nothing at this level: they go on elsewhere.";

/// The keys of a session that survives its connections.
const KEYS: [(&str, &str); 5] = [
    ("ErrorRecoveryLevel", "2"),
    ("DefaultTime2Wait", "0"),
    ("DefaultTime2Retain", "20"),
    ("InitialR2T", "Yes"),
    ("ImmediateData", "No"),
];

pub(super) const CHECKS: &[Check] = &[
    Check::must(Recovery2, "session-outlives-its-connection", "RFC 7143 §6.3.4, §7.1.4.3, §13.16",
        "A session whose only connection is lost can be joined again within Time2Retain, by its TSIH and the same CID.",
        LIVES,
        |lab| {
            let mut old = level2(lab, &[])?;
            let login = again(lab, &old, old.cid);
            lose(&mut old);
            drop(old);
            let mut new = lab.try_open(&login)?;
            new.settle()?;
            new.run(&Command::new(&[0; 6]))?.good("a command over the new connection").map(|_| ())
        }).tcp(),
    Check::must(Recovery2, "task-is-reassigned", "RFC 7143 §7.2.2, §11.5.1, §11.6.1",
        "A write that waits for data when its connection is lost goes on over another one after TASK REASSIGN.",
        LIVES,
        |lab| {
            let (mut new, task, out) = orphan(lab, true)?;
            let code = manage(&mut new, Function::TaskReassign, None, task.itt, 0)?;
            expect(code == 0, "response 0 (Function complete)", || format!("response {code}"))?;
            new.finish_task(&task)?.good("the write over the new connection")?;
            lab.confirm(&mut new, &out)
        }).tcp(),
    Check::must(Recovery2, "lost-status-comes-again", "RFC 7143 §7.2.2, §11.5.4",
        "A command whose status was lost with its connection tells it over another one after TASK REASSIGN.",
        LIVES,
        |lab| {
            let mut old = level2(lab, &[])?;
            old.acknowledges = false;
            let done = old.run(&Command::new(&[0xff; 6]))?;
            let login = again(lab, &old, old.cid);
            lose(&mut old);
            drop(old);
            let mut new = lab.try_open(&login)?;
            let code = manage(&mut new, Function::TaskReassign, None, done.itt, 0)?;
            if code == 1 {
                return should(false, "response 0, and the status again", || "response 1 (Task does not exist)".to_owned());
            }
            expect(code == 0, "response 0 (Function complete)", || format!("response {code}"))?;
            let status = new.answer(Opcode::ScsiResponse, done.itt)?;
            let (got, want) = (status.bhs.as_scsi_response().status, done.status);
            expect(got == want, format!("status {want:#04x}"), || format!("status {got:#04x}"))
        }).tcp(),
    Check::must(Recovery2, "logout-for-recovery", "RFC 7143 §11.14.1, §11.15, §7.2.2",
        "A logout of a lost connection, for recovery, is answered by response 0 over another connection of the session.",
        LIVES,
        |lab| {
            let (mut first, second) = two(lab)?;
            lose_now(second);
            runtime::nap(Duration::from_millis(100));
            let answer = logout(&mut first, LogoutReason::RemoveForRecovery, 2, true)?;
            first.is_full_feature = true;
            let got = answer.bhs.as_logout_response().response;
            expect(got == 0, "response 0", || format!("response {got}"))?;
            first.run(&Command::new(&[0; 6]))?.good("a command over the other connection").map(|_| ())
        }).tcp(),
    Check::must(Recovery2, "reassigned-to-another-connection", "RFC 7143 §7.2.2, §11.14.1",
        "A write of a connection that was logged out for recovery goes on over another connection of its session.",
        LIVES,
        |lab| {
            let (mut first, mut second) = two(lab)?;
            let mut out = lab.outgoing(&mut first, 4096)?;
            second.cmd_sn = first.cmd_sn;
            out.command.unsolicited = false;
            let task = second.start(&out.command)?;
            second.answer(Opcode::ReadyToTransfer, task.itt)?;
            first.cmd_sn = second.cmd_sn;
            lose_now(second);
            runtime::nap(Duration::from_millis(100));
            let answer = logout(&mut first, LogoutReason::RemoveForRecovery, 2, true)?;
            first.is_full_feature = true;
            let got = answer.bhs.as_logout_response().response;
            expect(got == 0, "response 0", || format!("response {got}"))?;
            let code = manage(&mut first, Function::TaskReassign, None, task.itt, 0)?;
            expect(code == 0, "response 0 (Function complete)", || format!("response {code}"))?;
            first.finish_task(&task)?.good("the write over the other connection")?;
            lab.confirm(&mut first, &out)
        }).tcp(),
    Check::must(Recovery2, "task-still-allegiant", "RFC 7143 §11.6.1, §7.2.2",
        "TASK REASSIGN of a task whose connection lives is answered by \"Task still allegiant\" (3), or another refusal.",
        "Two connections would serve one task.",
        |lab| {
            let (mut first, mut second) = two(lab)?;
            let mut out = lab.outgoing(&mut first, 4096)?;
            second.cmd_sn = first.cmd_sn;
            out.command.unsolicited = false;
            let task = second.start(&out.command)?;
            second.answer(Opcode::ReadyToTransfer, task.itt)?;
            first.cmd_sn = second.cmd_sn;
            let code = manage(&mut first, Function::TaskReassign, None, task.itt, 0)?;
            expect(code != 0, "response 3 (Task still allegiant)", || "response 0".to_owned())?;
            should(code == 3, "response 3 (Task still allegiant)", || format!("response {code}"))
        }).tcp(),
    Check::must(Recovery2, "unknown-task-is-not-reassigned", "RFC 7143 §11.6.1",
        "TASK REASSIGN of a task that does not exist is answered by \"Task does not exist\" (1).",
        "The initiator learns so that it has to send the command again.",
        |lab| {
            let mut conn = level2(lab, &[])?;
            let code = manage(&mut conn, Function::TaskReassign, None, 0x7171, 0)?;
            expect(code == 1, "response 1 (Task does not exist)", || format!("response {code}"))
        }).tcp(),
    Check::must(Recovery2, "time2retain-ends", "RFC 7143 §13.16, §6.3.6, §11.13.5",
        "After Time2Retain, of 1 s here, the session is gone: Session does not exist (020ah).",
        "What nobody comes back for must not be kept for ever, its reservations least of all.",
        |lab| {
            let mut old = level2(lab, &[("DefaultTime2Retain", "1")])?;
            if old.number("DefaultTime2Retain", 20) != 1 || old.number("DefaultTime2Wait", 2) > 2 {
                return not_applicable("the target does not agree on such times");
            }
            let wait = old.number("DefaultTime2Wait", 2);
            let login = again(lab, &old, old.cid);
            lose(&mut old);
            drop(old);
            runtime::nap(Duration::from_millis(2500) + Duration::from_secs(wait.into()));
            match lab.try_open(&login) {
                Ok(mut joined) => {
                    joined.is_full_feature = false;
                    wrong("the session lives still", "login status 020a")
                }
                Err(_) => Ok(()),
            }
        }).tcp(),
    Check::must(Recovery2, "connection-is-reinstated", "RFC 7143 §6.3.4",
        "A login with the CID of a connection that lives replaces it, and its tasks can be reassigned.",
        LIVES,
        |lab| {
            let (mut new, task, out) = orphan(lab, false)?;
            let code = manage(&mut new, Function::TaskReassign, None, task.itt, 0)?;
            expect(code == 0, "response 0 (Function complete)", || format!("response {code}"))?;
            new.finish_task(&task)?.good("the write over the new connection")?;
            lab.confirm(&mut new, &out)
        }).tcp(),
];

fn level2(lab: &Lab, keys: &[(&str, &str)]) -> Verdict<Conn> {
    let mut conn = lab.session(&[&KEYS[..], keys].concat())?;
    let got = conn.number("ErrorRecoveryLevel", 0);
    if got < 2 {
        return not_applicable(format!("not offered: the target answers ErrorRecoveryLevel={got}"));
    }
    setup(conn.settle(), "with a unit that is ready")?;
    Ok(conn)
}

/// Two connections of a session of level 2.
fn two(lab: &Lab) -> Verdict<(Conn, Conn)> {
    let first = level2(lab, &[("MaxConnections", "2")])?;
    if first.number("MaxConnections", 1) < 2 {
        // `two_at_0` reports the reason.
        return two_at_0(lab);
    }
    let login = again(lab, &first, 2);
    let second = setup(lab.open(&login), "to a second connection")?;
    Ok((first, second))
}

/// The login of another connection of `conn`'s session.
fn again(lab: &Lab, conn: &Conn, cid: u16) -> crate::lab::Login {
    lab.further(conn, cid)
}

/// Closes the connection without a logout.
fn lose(conn: &mut Conn) {
    conn.is_full_feature = false;
}

fn lose_now(mut conn: Conn) {
    lose(&mut conn);
}

/// A write that got its R2T and lost its connection, and the replacing connection. `dead`: the old
/// one was closed before.
fn orphan(lab: &Lab, dead: bool) -> Verdict<(Conn, Task, Outgoing)> {
    let mut old = level2(lab, &[])?;
    let mut out = lab.outgoing(&mut old, 4096)?;
    out.command.unsolicited = false;
    let task = old.start(&out.command)?;
    let r2t: Pdu = old.answer(Opcode::ReadyToTransfer, task.itt)?;
    let _ = r2t;
    let login = again(lab, &old, old.cid);
    lose(&mut old);
    let mut kept = Some(old);
    if dead {
        kept = None;
        runtime::nap(Duration::from_millis(100));
    }
    let mut new = lab.try_open(&login)?;
    drop(kept);
    // Tags continue after those of the old connection.
    for _ in 0..0x100 {
        new.tag();
    }
    Ok((new, task, out))
}
