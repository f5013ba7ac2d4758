//! Logout (RFC 7143 §11.14, §11.15).

use iscsi::pdu::{LogoutReason, LogoutRequest, Opcode, U32};

use crate::check::Area::Logout;
use crate::check::Check;
use crate::conn::{Conn, Ending};
use crate::finding::{Verdict, expect, should, wrong};
use crate::pdu::Pdu;
use crate::scsi::Command;

const CLEAN: &str = "An initiator that has logged out believes that nothing of it is left at the target.";
const CODES: &str = "What recovery is possible the initiator learns by the response.";

pub(super) const CHECKS: &[Check] = &[
    Check::must(
        Logout,
        "of-the-session",
        "RFC 7143 §11.14.1, §11.15.1",
        "A logout of the session is answered by response 0.",
        CLEAN,
        |lab| {
            let mut conn = lab.session(&[])?;
            let answer = logout(&mut conn, LogoutReason::CloseSession, 1, true)?;
            code(&answer, 0)
        },
    ),
    Check::must(
        Logout,
        "of-the-connection",
        "RFC 7143 §11.14.1, §11.15.1",
        "A logout of the session's only connection is answered by response 0.",
        CLEAN,
        |lab| {
            let mut conn = lab.session(&[])?;
            let answer = logout(&mut conn, LogoutReason::CloseConnection, 1, true)?;
            code(&answer, 0)
        },
    ),
    Check::should(
        Logout,
        "in-its-turn",
        "RFC 7143 §11.14, §4.2.2.1",
        "A logout that is not immediate is answered once the commands before it have been.",
        CLEAN,
        |lab| {
            let mut conn = lab.ready(&[])?;
            let task = conn.start(&Command::new(&[0; 6]))?;
            let answer = logout(&mut conn, LogoutReason::CloseSession, 1, false)?;
            code(&answer, 0)?;
            let first = conn.history.iter().position(|bhs| bhs.itt() == task.itt);
            expect(first.is_some(), "the status of the command before", || {
                "the logout's response alone".to_owned()
            })
        },
    ),
    Check::should(
        Logout,
        "closes-the-connection",
        "RFC 7143 §11.14, §4.2.6",
        "After the response the connection ends.",
        "Connections that nobody uses add up.",
        |lab| {
            let mut conn = lab.session(&[])?;
            let answer = logout(&mut conn, LogoutReason::CloseSession, 1, true)?;
            code(&answer, 0)?;
            expect(conn.is_closed(), "the target closes the connection", || "it stays open".to_owned())
        },
    ),
    Check::should(
        Logout,
        "nothing-after-it",
        "RFC 7143 §11.14, §4.2.6",
        "A command after the logout is not executed.",
        CLEAN,
        |lab| {
            let mut conn = lab.ready(&[])?;
            let itt = conn.tag();
            let request = request(&mut conn, itt, LogoutReason::CloseSession, 1, true);
            conn.post(request, &[])?;
            conn.is_full_feature = false;
            // The target may have closed the connection already.
            let Ok(task) = conn.start(&Command::new(&[0; 6])) else { return Ok(()) };
            match conn.outcome(|pdu| pdu.itt() == task.itt && pdu.is(Opcode::ScsiResponse)) {
                Ending::Pdu(pdu) => wrong(pdu.bhs.to_string(), "no status"),
                Ending::Closed | Ending::Silent => Ok(()),
            }
        },
    ),
    Check::must(
        Logout,
        "ends-the-session",
        "RFC 7143 §11.14.1, §11.13.5",
        "After a logout of the session its TSIH is good for nothing: Session does not exist (020ah).",
        CLEAN,
        |lab| {
            let mut conn = lab.session(&[])?;
            let login = lab.further(&conn, 2);
            logout(&mut conn, LogoutReason::CloseSession, 1, true)?;
            drop(conn);
            runtime::nap(crate::conn::QUIET);
            match lab.try_open(&login) {
                Ok(mut joined) => {
                    joined.is_full_feature = false;
                    wrong("a connection to the session", "login status 020a")
                }
                Err(_) => Ok(()),
            }
        },
    ),
    Check::must(
        Logout,
        "unknown-connection",
        "RFC 7143 §11.15.1",
        "A logout of a connection that is not there is answered by \"CID was not found\" (1), and the session lives on.",
        CODES,
        |lab| {
            let mut conn = lab.session(&[])?;
            let answer = logout(&mut conn, LogoutReason::CloseConnection, 4711, true)?;
            conn.is_full_feature = true;
            code(&answer, 1)?;
            conn.ping(b"alive").map(|_| ())
        },
    ),
    Check::must(
        Logout,
        "no-recovery-at-level-0",
        "RFC 7143 §11.15.1, §11.14.1",
        "A logout to recover a connection, at ErrorRecoveryLevel 0, is answered by \"Connection recovery is not supported\" (2).",
        CODES,
        |lab| {
            let mut conn = lab.session(&[])?;
            let answer = logout(&mut conn, LogoutReason::RemoveForRecovery, 1, true)?;
            let got = answer.bhs.as_logout_response().response;
            expect(got != 0, "response 2", || format!("response {got}"))?;
            should(got == 2, "response 2", || format!("response {got}"))
        },
    ),
    Check::must(
        Logout,
        "unknown-reason",
        "RFC 7143 §11.14.1, §11.17.1",
        "A logout of a reason that does not exist is rejected, or answered by another response than 0.",
        CODES,
        |lab| {
            let mut conn = lab.session(&[])?;
            let itt = conn.tag();
            let mut request = request(&mut conn, itt, LogoutReason::CloseSession, 1, true);
            request.flags = 0x80 | 0x55;
            conn.post(request, &[])?;
            match conn.outcome(|pdu| pdu.itt() == itt || pdu.is(Opcode::Reject)) {
                Ending::Pdu(pdu) if pdu.is(Opcode::LogoutResponse) => {
                    let got = pdu.bhs.as_logout_response().response;
                    expect(got != 0, "a Reject", || format!("response {got}"))
                }
                Ending::Pdu(_) | Ending::Closed => Ok(()),
                Ending::Silent => wrong("no answer", "a Reject"),
            }
        },
    ),
    Check::must(
        Logout,
        "times-in-range",
        "RFC 7143 §11.15.3, §11.15.4",
        "Time2Wait and Time2Retain of the response are at most 3600 s.",
        "Initiators wait that long.",
        |lab| {
            let mut conn = lab.session(&[])?;
            let answer = logout(&mut conn, LogoutReason::CloseSession, 1, true)?;
            let response = answer.bhs.as_logout_response();
            let (wait, retain) = (response.time2wait.get(), response.time2retain.get());
            expect(wait <= 3600 && retain <= 3600, "at most 3600 s", || format!("{wait} and {retain} s"))
        },
    ),
];

fn request(conn: &mut Conn, itt: u32, reason: LogoutReason, cid: u16, immediate: bool) -> LogoutRequest {
    let mut request = LogoutRequest::new(itt, reason, cid);
    request.as_bhs_mut().set_immediate(immediate);
    let number = if immediate { conn.cmd_sn } else { conn.take_cmd_sn() };
    (request.cmd_sn, request.exp_stat_sn) = (U32::new(number), U32::new(conn.exp_stat_sn));
    request
}

/// Logs out and returns the response.
pub(super) fn logout(conn: &mut Conn, reason: LogoutReason, cid: u16, immediate: bool) -> Verdict<Pdu> {
    let itt = conn.tag();
    let request = request(conn, itt, reason, cid, immediate);
    conn.post(request, &[])?;
    let answer = conn.answer(Opcode::LogoutResponse, itt)?;
    conn.is_full_feature = false;
    Ok(answer)
}

fn code(answer: &Pdu, want: u8) -> Verdict {
    let got = answer.bhs.as_logout_response().response;
    expect(got == want, format!("response {want}"), || format!("response {got}"))
}
