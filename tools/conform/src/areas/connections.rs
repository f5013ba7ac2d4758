//! Several connections of one session (RFC 7143 §4.2.2, §6.3.1, §13.2).

use iscsi::pdu::{LogoutReason, Opcode, RESERVED_TAG, TaskManagementFunction as Function};
use iscsi::sn;

use super::logout::logout;
use super::task;
use crate::check::Area::Connections;
use crate::check::Check;
use crate::conn::{Conn, QUIET};
use crate::finding::{Verdict, expect, not_applicable, setup, should, wrong};
use crate::lab::Lab;
use crate::login::{FULL_FEATURE, OPERATIONAL, status_name};
use crate::pdu::Pdu;
use crate::scsi::Command;

const ONE: &str = "A session is one nexus however many connections it has.";
const ROOM: &str = "What was agreed on is what the target has room for.";
const OVER: &str = "The initiator concludes all of them with the answer: one that is executed afterwards writes old data over new.";

pub(super) const CHECKS: &[Check] = &[
    Check::must(Connections, "second-connection", "RFC 7143 §6.3.1, §13.2",
        "A further connection joins its session: the same TSIH, and its commands are executed.",
        ONE,
        |lab| {
            let (mut first, mut second) = two(lab)?;
            expect(first.tsih == second.tsih, format!("TSIH {}", first.tsih), || format!("TSIH {}", second.tsih))?;
            second.cmd_sn = first.cmd_sn;
            second.run(&Command::new(&[0; 6]))?.good("a command over the second connection")?;
            first.cmd_sn = second.cmd_sn;
            first.run(&Command::new(&[0; 6]))?.good("a command over the first connection").map(|_| ())
        }),
    Check::must(Connections, "one-count-of-commands", "RFC 7143 §4.2.2.1",
        "ExpCmdSN and MaxCmdSN are the session's: each connection tells of commands that came over the other.",
        ONE,
        |lab| {
            let (mut first, mut second) = two(lab)?;
            for _ in 0..4 {
                first.run(&Command::new(&[0; 6]))?;
            }
            second.cmd_sn = first.cmd_sn;
            let answer = second.ping(b"count")?;
            expect(answer.exp_cmd_sn() == first.cmd_sn, format!("ExpCmdSN {}", first.cmd_sn), || {
                format!("ExpCmdSN {}", answer.exp_cmd_sn())
            })?;
            expect(sn::ge(answer.max_cmd_sn(), first.max_cmd_sn), "no smaller window", || format!("MaxCmdSN {}", answer.max_cmd_sn()))
        }),
    Check::must(Connections, "statsn-of-each", "RFC 7143 §4.2.2.2",
        "StatSN is each connection's own: statuses of the one leave no gap in the other's.",
        "Initiators look for lost statuses on each connection.",
        |lab| {
            let (mut first, mut second) = two(lab)?;
            let want = second.exp_stat_sn;
            for _ in 0..3 {
                first.run(&Command::new(&[0; 6]))?;
            }
            second.cmd_sn = first.cmd_sn;
            let got = second.ping(b"own")?.stat_sn();
            expect(got == want, format!("StatSN {want}"), || format!("StatSN {got}"))
        }),
    Check::must(Connections, "order-over-connections", "RFC 7143 §4.2.2.1",
        "A command that comes over one connection waits for those before it, which come over the other.",
        "A read would overtake the write whose data it is to see.",
        |lab| {
            let (mut first, mut second) = two(lab)?;
            let earlier = first.take_cmd_sn();
            second.cmd_sn = first.cmd_sn;
            let late = second.start(&Command::new(&[0; 6]))?;
            second.quiet("no status before the command ahead has come", |pdu| pdu.itt() == late.itt && pdu.is(Opcode::ScsiResponse))?;
            first.cmd_sn = earlier;
            first.run(&Command::new(&[0; 6]))?.good("the command ahead")?;
            second.finish_task(&late)?.good("the command that waited")?;
            Ok(())
        }),
    Check::must(Connections, "answers-where-it-was-asked", "RFC 7143 §4.2.5.1",
        "Data and status of a command come over the connection that the command came over.",
        "The buffers belong to that connection.",
        |lab| {
            let (mut first, mut second) = two(lab)?;
            for _ in 0..4 {
                second.cmd_sn = first.cmd_sn;
                let one = second.start(&Command::reading(&crate::scsi::inquiry(None, 36), 36))?;
                first.cmd_sn = second.cmd_sn;
                let two = first.start(&Command::reading(&crate::scsi::inquiry(None, 36), 36))?;
                second.finish_task(&one)?.good("INQUIRY over the second connection")?;
                first.finish_task(&two)?.good("INQUIRY over the first connection")?;
            }
            Ok(())
        }),
    Check::must(Connections, "no-more-than-agreed", "RFC 7143 §13.2, §11.13.5",
        "A connection beyond MaxConnections is refused: Too many connections (0206h); those that are there live on.",
        ROOM,
        |lab| {
            let mut first = lab.ready(&[("MaxConnections", "1")])?;
            let login = lab.further(&first, 2);
            let (mut conn, _) = match lab.secured(&login) {
                Ok(at) => at,
                // The target may refuse it at the first request.
                Err(finding) => {
                    let seen = format!("{finding:?}");
                    should(seen.contains("0206"), status_name(0x0206), || "another refusal".to_owned())?;
                    return first.ping(b"alive").map(|_| ());
                }
            };
            let keys = lab.usual_keys(&login);
            let keys: Vec<(&str, &str)> = keys.iter().map(|(k, v)| (k.as_str(), v.as_str())).collect();
            let answer = conn.login_step(OPERATIONAL, Some(FULL_FEATURE), &keys)?;
            expect(!answer.is_success(), format!("login status {}", status_name(0x0206)), || answer.told())?;
            should(answer.status() == 0x0206, format!("login status {}", status_name(0x0206)), || answer.told())?;
            first.run(&Command::new(&[0; 6]))?.good("the first connection's command").map(|_| ())
        }).tcp(),
    Check::must(Connections, "third-of-two", "RFC 7143 §13.2, §11.13.5",
        "With MaxConnections=2 agreed on a third connection is refused.",
        ROOM,
        |lab| {
            let (mut first, mut second) = two(lab)?;
            let login = lab.further(&first, 3);
            if let Ok(mut third) = lab.try_open(&login) {
                third.is_full_feature = false;
                return wrong("a third connection", "a refusal");
            }
            second.cmd_sn = first.cmd_sn;
            first.ping(b"one")?;
            second.ping(b"two").map(|_| ())
        }),
    Check::must(Connections, "logout-of-one", "RFC 7143 §11.14.1",
        "A logout of one connection leaves the others, and the session, as they are.",
        ONE,
        |lab| {
            let (mut first, mut second) = two(lab)?;
            second.cmd_sn = first.cmd_sn;
            logout(&mut second, LogoutReason::CloseConnection, 2, true)?;
            drop(second);
            first.run(&Command::new(&[0; 6]))?.good("the first connection's command").map(|_| ())
        }),
    Check::must(Connections, "logout-of-another", "RFC 7143 §11.14.1, §11.14.3",
        "A connection may be logged out over another one of its session; it is closed then.",
        "It is how a connection that hangs is cleared away.",
        |lab| {
            let (mut first, mut second) = two(lab)?;
            let answer = logout(&mut first, LogoutReason::CloseConnection, 2, true)?;
            first.is_full_feature = true;
            let got = answer.bhs.as_logout_response().response;
            expect(got == 0, "response 0", || format!("response {got}"))?;
            expect(second.is_closed(), "the second connection is closed", || "it stays open".to_owned())?;
            second.is_full_feature = false;
            first.run(&Command::new(&[0; 6]))?.good("the first connection's command").map(|_| ())
        }),
    Check::must(Connections, "logout-of-all", "RFC 7143 §11.14.1",
        "A logout of the session, over one connection, ends them all.",
        ONE,
        |lab| {
            let (mut first, mut second) = two(lab)?;
            logout(&mut first, LogoutReason::CloseSession, 1, true)?;
            second.is_full_feature = false;
            expect(second.is_closed(), "the second connection is closed", || "it stays open".to_owned())
        }),
    Check::must(Connections, "immediate-on-any", "RFC 7143 §4.2.2.1",
        "Immediate pings over both connections are answered while the session waits for a command.",
        "A connection is alive or not by itself.",
        |lab| {
            let (mut first, mut second) = two(lab)?;
            let gap = first.take_cmd_sn();
            second.cmd_sn = first.cmd_sn;
            let late = second.start(&Command::new(&[0; 6]))?;
            first.ping(b"one")?;
            second.ping(b"two")?;
            first.cmd_sn = gap;
            first.run(&Command::new(&[0; 6]))?;
            second.finish_task(&late)?.good("the command that waited").map(|_| ())
        }),
    Check::must(Connections, "abort-waits-for-commands-on-their-way", "RFC 7143 §4.2.3.3, §11.5.1",
        "An immediate ABORT TASK SET is not answered by \"Function complete\" (0) before the commands numbered before it have come, over whatever connection.",
        OVER,
        |lab| waits_for_the_command_ahead(lab, Function::AbortTaskSet)),
    Check::must(Connections, "clear-waits-for-commands-on-their-way", "RFC 7143 §4.2.3.3, §11.5.1",
        "An immediate CLEAR TASK SET is not answered by \"Function complete\" (0) before the commands numbered before it have come, over whatever connection.",
        OVER,
        |lab| waits_for_the_command_ahead(lab, Function::ClearTaskSet)).destructive(),
    Check::must(Connections, "abort-waits-for-acknowledgements", "RFC 7143 §4.2.3.3",
        "An ABORT TASK SET is not answered by \"Function complete\" (0) while a status that was sent over another connection is not acknowledged.",
        "A status that comes behind the answer could be taken for that of a new task with the same tag.",
        waits_for_acknowledgements),
    Check::must(Connections, "another-isid-does-not-join", "RFC 7143 §6.3.1, §11.12.6",
        "A login with the session's TSIH and another ISID does not join it.",
        "TSIH and ISID name a session together.",
        |lab| {
            let mut first = lab.ready(&[("MaxConnections", "2")])?;
            let mut login = lab.further(&first, 2);
            login.isid = lab.isid();
            if let Ok(mut joined) = lab.try_open(&login) {
                joined.is_full_feature = false;
                return wrong("a connection to the session", "a refusal");
            }
            first.run(&Command::new(&[0; 6]))?.good("the session's command").map(|_| ())
        }).tcp(),
    Check::should(Connections, "leading-keys-are-over", "RFC 7143 §13, §6.3.1",
        "A key of the leading login (MaxBurstLength) is not negotiated again by a further connection.",
        "Commands of the session are on their way under what was agreed.",
        |lab| {
            let first = offered(lab)?;
            let login = lab.further(&first, 2);
            let (mut conn, _) = lab.secured(&login)?;
            let answer = conn.login_step(OPERATIONAL, None, &[("MaxBurstLength", "4096")])?;
            let told = answer.get("MaxBurstLength");
            let declined = !answer.is_success() || matches!(told, Some("Reject" | "Irrelevant"));
            expect(declined, "Reject, or a refusal", || answer.told())
        }),
    Check::must(Connections, "writes-over-both", "RFC 7143 §4.2.5.1, §4.2.2.1",
        "Writes in turns over two connections each get their own data, over the connection of the write.",
        ONE,
        |lab| {
            let (mut first, mut second) = two(lab)?;
            for n in 0..8 {
                let (one, other) = if n % 2 == 0 { (&mut first, &mut second) } else { (&mut second, &mut first) };
                let out = lab.outgoing(one, 16_384)?;
                one.run(&out.command)?.good("the write")?;
                lab.confirm(one, &out)?;
                other.cmd_sn = one.cmd_sn;
            }
            Ok(())
        }),
];

/// The first connection of a session that may have two.
pub(super) fn offered(lab: &Lab) -> Verdict<Conn> {
    let conn = lab.ready(&[("MaxConnections", "2")])?;
    match conn.number("MaxConnections", 1) {
        0 | 1 => not_applicable("not offered: the target answers MaxConnections=1"),
        _ => Ok(conn),
    }
}

/// The response to a task management request over `first`. Answers pings over `second` meanwhile,
/// which acknowledges the statuses that came there.
fn concluded(first: &mut Conn, second: &mut Conn, itt: u32) -> Verdict<u8> {
    let is_answer = |pdu: &Pdu| pdu.is(Opcode::TaskManagementResponse) && pdu.itt() == itt;
    for _ in 0..20 {
        if let Some(pdu) = first.anything(QUIET, is_answer) {
            return Ok(pdu.bhs.as_task_management_response().response);
        }
        second.anything(QUIET, |_| false);
    }
    second.ping(b"all has come")?;
    Ok(first.answer(Opcode::TaskManagementResponse, itt)?.bhs.as_task_management_response().response)
}

/// The answer to an immediate ABORT TASK SET waits for the acknowledgement of a status on another
/// connection, whose pings are answered without one.
fn waits_for_acknowledgements(lab: &Lab) -> Verdict<()> {
    let (mut first, mut second) = two(lab)?;
    second.acknowledges = false;
    second.cmd_sn = first.cmd_sn;
    second.run(&Command::new(&[0; 6]))?.good("a command over the second connection")?;
    first.cmd_sn = second.cmd_sn;
    let itt = task::send(&mut first, Function::AbortTaskSet, None, RESERVED_TAG, 0)?;
    let is_answer = |pdu: &Pdu| pdu.is(Opcode::TaskManagementResponse) && pdu.itt() == itt;
    for _ in 0..2 {
        if let Some(early) = first.anything(QUIET, is_answer) {
            let code = early.bhs.as_task_management_response().response;
            expect(code != 0, "no response 0 before the status is acknowledged", || task::told(code))?;
            return not_applicable(format!("the target answers {}", task::told(code)));
        }
        second.anything(QUIET, |_| false);
    }
    second.acknowledges = true;
    second.exp_stat_sn = second.exp_stat_sn.wrapping_add(1);
    second.ping(b"it has come")?;
    let code = concluded(&mut first, &mut second, itt)?;
    should(code == 0, task::told(0), || task::told(code))?;
    first.run(&Command::new(&[0; 6]))?.good("a command after it").map(|_| ())
}

/// Both connections of a session.
pub(super) fn two(lab: &Lab) -> Verdict<(Conn, Conn)> {
    let first = offered(lab)?;
    let second = lab.open(&lab.further(&first, 2));
    let second = setup(second, "to a second connection")?;
    Ok((first, second))
}

/// The answer to an immediate `function` waits for a command before it that comes over another
/// connection.
fn waits_for_the_command_ahead(lab: &Lab, function: Function) -> Verdict<()> {
    let (mut first, mut second) = two(lab)?;
    let missing = first.take_cmd_sn();
    let itt = task::send(&mut first, function, None, RESERVED_TAG, 0)?;
    let is_answer = |pdu: &Pdu| pdu.is(Opcode::TaskManagementResponse) && pdu.itt() == itt;
    if let Some(early) = first.anything(QUIET, is_answer) {
        let code = early.bhs.as_task_management_response().response;
        let expected = "no response 0 before the command ahead has come";
        expect(code != 0, expected, || task::told(code))?;
        return not_applicable(format!("the target answers {}", task::told(code)));
    }
    second.cmd_sn = missing;
    second.start(&Command::new(&[0; 6]))?;
    let code = concluded(&mut first, &mut second, itt)?;
    should(code == 0, task::told(0), || task::told(code))?;
    first.run(&Command::new(&[0; 6]))?.good("a command after it").map(|_| ())
}
