//! Task management (RFC 7143 §11.5, §11.6, §4.2.3).

use iscsi::pdu::{
    Lun, Opcode, RESERVED_TAG, TaskManagementFunction as Function, TaskManagementRequest,
    TaskManagementResult, U32,
};

use super::data_in::absent;
use crate::check::Area::Task;
use crate::check::Check;
use crate::conn::{Conn, Ending, QUIET};
use crate::finding::{Verdict, expect, not_applicable, should, wrong};
use crate::lab::Lab;
use crate::pdu::Pdu;
use crate::scsi::{Command, Task as Started};

const MEANS: &str = "After the response the initiator reuses what the task had: a task that goes on then writes old data over new.";
const CODES: &str = "Initiators escalate, from abort to reset to a new session, by what the response says.";
const RESET: &str =
    "A reset is what hosts do when nothing else helps; one that does half of it leaves them worse off.";

const NOT_SUPPORTED: u8 = 5;

pub(super) const CHECKS: &[Check] = &[
    Check::must(Task, "abort-of-a-task-that-is-over", "RFC 7143 §11.6.1, §11.5.1",
        "ABORT TASK of a task that has ended is answered by \"Task does not exist\" (1).",
        CODES,
        |lab| {
            let mut conn = lab.ready(&[])?;
            let done = conn.run(&Command::new(&[0; 6]))?;
            let code = manage(&mut conn, Function::AbortTask, None, done.itt, done.cmd_sn)?;
            expect(code == 1, told(1), || told(code))
        }),
    Check::must(Task, "abort-of-a-task-not-yet-there", "RFC 7143 §11.6.1, §11.5.1",
        "ABORT TASK of a task that has not come, with its CmdSN within the window, is answered by \"Function complete\" (0), and its CmdSN counts as received.",
        "The command may be on its way, or lost: without the rule the session would wait for it, or execute it after the abort.",
        |lab| {
            let mut conn = lab.ready(&[])?;
            let missing = conn.take_cmd_sn();
            let code = manage(&mut conn, Function::AbortTask, None, 0x5555, missing)?;
            expect(code == 0, told(0), || told(code))?;
            let answer = conn.ping(b"gap")?;
            let want = missing.wrapping_add(1);
            expect(answer.exp_cmd_sn() == want, format!("ExpCmdSN {want}"), || format!("ExpCmdSN {}", answer.exp_cmd_sn()))?;
            conn.run(&Command::new(&[0; 6]))?.good("TEST UNIT READY").map(|_| ())
        }),
    Check::must(Task, "abort-of-a-running-task", "RFC 7143 §11.6.1, §4.2.3",
        "ABORT TASK of a write whose data is on its way is answered by \"Function complete\" (0), and the write ends without a status.",
        MEANS,
        |lab| {
            let (mut conn, task, r2t) = waiting(lab)?;
            let itt = send(&mut conn, Function::AbortTask, None, task.itt, task.cmd_sn)?;
            ended(&mut conn, itt, &task, &r2t)
        }).tcp(),
    Check::should(Task, "abort-does-not-wait-for-data", "RFC 7143 §11.6.1, §4.2.3",
        "ABORT TASK of a write that waits for data is answered without that data.",
        "The initiator aborts because something hangs; data may be what hangs.",
        |lab| {
            let (mut conn, task, _) = waiting(lab)?;
            let code = manage(&mut conn, Function::AbortTask, None, task.itt, task.cmd_sn)?;
            expect(code == 0, told(0), || told(code))?;
            gone(&mut conn, &task)
        }).tcp(),
    Check::must(Task, "abort-task-set", "RFC 7143 §11.6.1, §4.2.3.3, SAM-5 §7.3",
        "ABORT TASK SET ends the session's own writes, whose data it still gets, without a status.",
        MEANS,
        |lab| {
            let (mut conn, task, r2t) = waiting(lab)?;
            let itt = send(&mut conn, Function::AbortTaskSet, None, RESERVED_TAG, 0)?;
            ended(&mut conn, itt, &task, &r2t)
        }).tcp(),
    Check::must(Task, "late-data-of-an-aborted-task", "RFC 7143 §4.2.3.1, §11.6.1",
        "Data-Out that comes after its task was aborted is dropped, and the session goes on.",
        "It was on its way already.",
        |lab| {
            let (mut conn, task, r2t) = waiting(lab)?;
            let itt = send(&mut conn, Function::AbortTask, None, task.itt, task.cmd_sn)?;
            let answer = conn.anything(WAIT, |pdu| pdu.is(Opcode::TaskManagementResponse) && pdu.itt() == itt);
            if answer.is_none() {
                return not_applicable("the target answers only once it has the data");
            }
            conn.data_out(&task, r2t.word(20), r2t.word(40) as usize, r2t.word(44) as usize, 0)?;
            // A Reject is valid, as is silence; a status is not.
            conn.quiet("no status of the aborted task", |pdu| pdu.itt() == task.itt && pdu.is(Opcode::ScsiResponse))?;
            conn.settle()
        }).tcp(),
    Check::must(Task, "unit-that-is-not-there", "RFC 7143 §11.6.1",
        "ABORT TASK SET of a unit that is not there is answered by \"LUN does not exist\" (2).",
        CODES,
        |lab| {
            let mut conn = lab.ready(&[])?;
            let Some(lun) = absent(&mut conn)? else {
                return not_applicable("no number was found that no unit has");
            };
            let code = manage(&mut conn, Function::AbortTaskSet, Some(lun), RESERVED_TAG, 0)?;
            expect(code != 0, told(2), || told(code))?;
            should(code == 2, told(2), || told(code))
        }),
    Check::must(Task, "unknown-function", "RFC 7143 §11.6.1, §11.5.1",
        "A function that does not exist is answered by \"Task management function not supported\" (5), \"Function rejected\" (255) or a Reject.",
        CODES,
        |lab| {
            let mut conn = lab.ready(&[])?;
            let itt = conn.tag();
            let mut request = TaskManagementRequest::new(itt, Function::AbortTask, conn.lun);
            request.flags = 0x80 | 0x7e;
            request.as_bhs_mut().set_immediate(true);
            (request.cmd_sn, request.exp_stat_sn) = (U32::new(conn.cmd_sn), U32::new(conn.exp_stat_sn));
            conn.post(request, &[])?;
            match conn.outcome(|pdu| pdu.itt() == itt || pdu.is(Opcode::Reject)) {
                Ending::Pdu(pdu) if pdu.is(Opcode::Reject) => Ok(()),
                Ending::Pdu(pdu) => {
                    let code = pdu.bhs.as_task_management_response().response;
                    expect(matches!(code, 5 | 255), told(5), || told(code))
                }
                Ending::Closed => should(false, told(5), || "the connection was closed".to_owned()),
                Ending::Silent => wrong("no answer", told(5)),
            }
        }),
    Check::must(Task, "reassign-without-recovery", "RFC 7143 §11.6.1, §7.2.2",
        "TASK REASSIGN at ErrorRecoveryLevel 0 is answered by \"Task allegiance reassignment not supported\" (4), or by a reason against it.",
        CODES,
        |lab| {
            let mut conn = lab.ready(&[])?;
            let code = manage(&mut conn, Function::TaskReassign, None, 0x5555, 0)?;
            expect(code != 0, told(4), || told(code))?;
            should(code == 4, told(4), || told(code))
        }),
    Check::must(Task, "in-its-turn", "RFC 7143 §11.5, §4.2.2.1",
        "A request that is not immediate takes its turn by CmdSN, uses it up, and is answered.",
        "Initiators may send it so, to have all commands before it covered.",
        |lab| {
            let mut conn = lab.ready(&[])?;
            let (itt, number) = (conn.tag(), conn.take_cmd_sn());
            let mut request = TaskManagementRequest::new(itt, Function::AbortTaskSet, conn.lun);
            request.as_bhs_mut().set_immediate(false);
            request.referenced_task_tag = U32::new(RESERVED_TAG);
            (request.cmd_sn, request.exp_stat_sn) = (U32::new(number), U32::new(conn.exp_stat_sn));
            conn.post(request, &[])?;
            let answer = conn.answer(Opcode::TaskManagementResponse, itt)?;
            let want = number.wrapping_add(1);
            expect(answer.exp_cmd_sn() == want, format!("ExpCmdSN {want}"), || format!("ExpCmdSN {}", answer.exp_cmd_sn()))
        }),
    Check::must(Task, "others-live-on", "RFC 7143 §11.5.1, SAM-5 §7.3",
        "ABORT TASK SET of one session leaves another session's task alone.",
        "The task set is that of an I_T nexus.",
        |lab| {
            let (mut conn, task, r2t) = waiting(lab)?;
            let mut other = lab.ready(&[])?;
            let code = manage(&mut other, Function::AbortTaskSet, None, RESERVED_TAG, 0)?;
            if code == NOT_SUPPORTED {
                return not_applicable("the target does not support ABORT TASK SET");
            }
            expect(code == 0, told(0), || told(code))?;
            conn.data_out(&task, r2t.word(20), r2t.word(40) as usize, r2t.word(44) as usize, 0)?;
            conn.finish_task(&task)?.good("the other session's write").map(|_| ())
        }).tcp(),
    Check::must(Task, "clear-task-set", "RFC 7143 §11.6.1, SAM-5 §7.5",
        "CLEAR TASK SET is answered, and ends the session's own writes that wait for data.",
        MEANS,
        |lab| {
            let (mut conn, task, r2t) = waiting(lab)?;
            let itt = send(&mut conn, Function::ClearTaskSet, None, RESERVED_TAG, 0)?;
            ended(&mut conn, itt, &task, &r2t)
        }).tcp().destructive(),
    Check::must(Task, "unit-reset", "RFC 7143 §11.5.1, SAM-5 §6.3.3",
        "LOGICAL UNIT RESET is answered by \"Function complete\" (0), and ends all tasks of the unit.",
        RESET,
        |lab| {
            let (mut conn, task, r2t) = waiting(lab)?;
            let itt = send(&mut conn, Function::LogicalUnitReset, None, RESERVED_TAG, 0)?;
            ended(&mut conn, itt, &task, &r2t)
        }).tcp().destructive(),
    Check::must(Task, "unit-reset-is-told", "SAM-5 §5.14, §6.3.3, SPC-4 table 45",
        "After LOGICAL UNIT RESET, other sessions are told by a unit attention 29h.",
        "Their reservations and mode pages may be gone, and their commands are.",
        |lab| {
            let (mut conn, mut other) = (lab.ready(&[])?, lab.ready(&[])?);
            let code = manage(&mut conn, Function::LogicalUnitReset, None, RESERVED_TAG, 0)?;
            expect(code == 0, told(0), || told(code))?;
            attention(&mut other)
        }).destructive(),
    Check::must(Task, "warm-reset", "RFC 7143 §11.5.1, SAM-5 §6.3.2",
        "TARGET WARM RESET is answered by \"Function complete\" (0), or is not supported (5), not authorized (6) or rejected (255); sessions live on.",
        RESET,
        |lab| {
            let mut conn = lab.ready(&[])?;
            let code = manage(&mut conn, Function::TargetWarmReset, None, RESERVED_TAG, 0)?;
            match code {
                5 | 6 | 255 => not_applicable(format!("the target answers {}", told(code))),
                _ => {
                    expect(code == 0, told(0), || told(code))?;
                    conn.ping(b"alive")?;
                    conn.settle()
                }
            }
        }).destructive(),
    Check::must(Task, "cold-reset", "RFC 7143 §11.5.1, SAM-5 §6.3.2",
        "TARGET COLD RESET closes all connections of the target, or is not supported (5), not authorized (6) or rejected (255).",
        RESET,
        |lab| {
            let (mut conn, mut other) = (lab.ready(&[])?, lab.ready(&[])?);
            let itt = send(&mut conn, Function::TargetColdReset, None, RESERVED_TAG, 0)?;
            match conn.outcome(|pdu| pdu.itt() == itt) {
                Ending::Pdu(pdu) => {
                    let code = pdu.bhs.as_task_management_response().response;
                    if matches!(code, 5 | 6 | 255) {
                        return not_applicable(format!("the target answers {}", told(code)));
                    }
                    expect(code == 0, told(0), || told(code))?;
                    expect(conn.is_closed(), "the connection is closed", || "it stays open".to_owned())?;
                }
                Ending::Closed => {}
                Ending::Silent => return wrong("no answer", told(0)),
            }
            expect(other.is_closed(), "other sessions' connections are closed", || "one stays open".to_owned())?;
            (conn.is_full_feature, other.is_full_feature) = (false, false);
            lab.try_open(&lab.normal())?.settle()
        }).destructive(),
];

pub(super) fn told(code: u8) -> String {
    match TaskManagementResult::from_code(code) {
        Some(known) => format!("response {code} ({})", known.name()),
        None => format!("response {code}"),
    }
}

/// Sends an immediate request; returns its tag.
pub(super) fn send(
    conn: &mut Conn,
    function: Function,
    lun: Option<Lun>,
    referenced: u32,
    number: u32,
) -> Verdict<u32> {
    let itt = conn.tag();
    let mut request = TaskManagementRequest::new(itt, function, lun.unwrap_or(conn.lun));
    request.as_bhs_mut().set_immediate(true);
    request.referenced_task_tag = U32::new(referenced);
    request.ref_cmd_sn = U32::new(number);
    (request.cmd_sn, request.exp_stat_sn) = (U32::new(conn.cmd_sn), U32::new(conn.exp_stat_sn));
    conn.post(request, &[])?;
    Ok(itt)
}

/// Sends a request and returns the response's code.
pub(super) fn manage(
    conn: &mut Conn,
    function: Function,
    lun: Option<Lun>,
    referenced: u32,
    number: u32,
) -> Verdict<u8> {
    let itt = send(conn, function, lun, referenced, number)?;
    Ok(conn.answer(Opcode::TaskManagementResponse, itt)?.bhs.as_task_management_response().response)
}

/// A session with a write whose first R2T has arrived and is unanswered.
pub(super) fn waiting(lab: &Lab) -> Verdict<(Conn, Started, Pdu)> {
    let mut conn = lab.ready(&[("InitialR2T", "Yes"), ("ImmediateData", "No")])?;
    let mut out = lab.outgoing(&mut conn, 4096)?;
    out.command.unsolicited = false;
    let task = conn.start(&out.command)?;
    let r2t = conn.answer(Opcode::ReadyToTransfer, task.itt)?;
    Ok((conn, task, r2t))
}

/// Time to wait for an answer that may validly wait for data.
const WAIT: std::time::Duration = std::time::Duration::from_millis(500);

/// Answers the R2T, as an initiator must (RFC 7143 §4.2.3.3). Fails unless the request succeeds and
/// the task ends without a status.
fn ended(conn: &mut Conn, itt: u32, task: &Started, r2t: &Pdu) -> Verdict {
    conn.data_out(task, r2t.word(20), r2t.word(40) as usize, r2t.word(44) as usize, 0)?;
    let code = conn.answer(Opcode::TaskManagementResponse, itt)?.bhs.as_task_management_response().response;
    if code == NOT_SUPPORTED {
        return should(false, told(0), || told(code));
    }
    // The task may have completed before the abort.
    let over =
        conn.history.iter().any(|bhs| bhs.itt() == task.itt && bhs.opcode() == Some(Opcode::ScsiResponse));
    if over {
        return Ok(());
    }
    if code == 1 {
        // The task was complete, so its status must be sent.
        let status = conn.anything(QUIET, |pdu| pdu.itt() == task.itt && pdu.is(Opcode::ScsiResponse));
        return expect(status.is_some(), "response 0, or the task's status", || told(code));
    }
    expect(code == 0, told(0), || told(code))?;
    gone(conn, task)
}

/// Fails if another PDU of the task arrives, or the session does not continue normally.
fn gone(conn: &mut Conn, task: &Started) -> Verdict {
    let itt = task.itt;
    conn.quiet("no status of the aborted task", |pdu| pdu.itt() == itt && pdu.is(Opcode::ScsiResponse))?;
    conn.settle()
}

fn attention(other: &mut Conn) -> Verdict {
    for _ in 0..8 {
        let done = other.run(&Command::new(&[0; 6]))?;
        match done.sense_code() {
            Some((6, 0x29, _)) => return Ok(()),
            Some((6, ..)) => {}
            _ => return wrong(done.told(), "CHECK CONDITION, UNIT ATTENTION, code 29h"),
        }
    }
    wrong("other unit attentions", "CHECK CONDITION, UNIT ATTENTION, code 29h")
}
