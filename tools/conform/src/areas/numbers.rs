//! CmdSN, ExpCmdSN, MaxCmdSN, StatSN (RFC 7143 §4.2.2).

use iscsi::pdu::{NopOut, Opcode, U32};
use iscsi::sn;

use crate::check::Area::Numbers;
use crate::check::Check;
use crate::conn::{Conn, Ending, QUIET};
use crate::finding::{Verdict, expect, should, untested, wrong};
use crate::lab::Lab;
use crate::pdu::Pdu;
use crate::scsi::{Command, inquiry, read10};

const ORDER: &str =
    "Sessions of several connections, retries and the order of commands all stand on these numbers.";
const IGNORED: &str = "A number outside of the window is an old command that came late; executed, it would overwrite newer data.";

pub(super) const CHECKS: &[Check] = &[
    Check::must(
        Numbers,
        "statsn-by-one",
        "RFC 7143 §4.2.2.2",
        "StatSN goes up by one with every status of a connection, whatever PDU carries it.",
        "An initiator tells by a gap that a status was lost, and at ErrorRecoveryLevel 0 drops the session for it.",
        stat_sn_by_one,
    ),
    Check::must(
        Numbers,
        "statsn-continues-from-login",
        "RFC 7143 §4.2.2.2, §11.13.4",
        "The first status of the full feature phase has the StatSN after the last Login Response's.",
        "Initiators count from the login on.",
        |lab| {
            let mut conn = lab.session(&[])?;
            let expected = conn.exp_stat_sn;
            let answer = conn.ping(b"first")?;
            expect(answer.stat_sn() == expected, format!("StatSN {expected}"), || {
                format!("StatSN {}", answer.stat_sn())
            })
        },
    ),
    Check::must(
        Numbers,
        "expcmdsn-follows",
        "RFC 7143 §4.2.2.1",
        "ExpCmdSN goes up by one with every command that is not immediate and has been taken.",
        ORDER,
        |lab| {
            let mut conn = lab.ready(&[])?;
            for _ in 0..4 {
                let done = conn.run(&Command::new(&[0; 6]))?;
                let want = done.cmd_sn.wrapping_add(1);
                let got = done.pdus.last().map_or(0, Pdu::exp_cmd_sn);
                expect(
                    got == want,
                    format!("ExpCmdSN {want} in the status of command {}", done.cmd_sn),
                    || format!("ExpCmdSN {got}"),
                )?;
            }
            Ok(())
        },
    ),
    Check::must(
        Numbers,
        "immediate-takes-no-number",
        "RFC 7143 §4.2.2.1",
        "An immediate command carries the current CmdSN and does not use it up.",
        ORDER,
        |lab| {
            let mut conn = lab.session(&[])?;
            let want = conn.cmd_sn;
            for _ in 0..3 {
                let answer = conn.ping(b"now")?;
                expect(answer.exp_cmd_sn() == want, format!("ExpCmdSN {want}"), || {
                    format!("ExpCmdSN {}", answer.exp_cmd_sn())
                })?;
            }
            Ok(())
        },
    ),
    Check::must(
        Numbers,
        "maxcmdsn-never-back",
        "RFC 7143 §4.2.2.1",
        "MaxCmdSN never goes back and is never less than ExpCmdSN - 1.",
        "An initiator may have sent commands into a window that is then taken away.",
        max_never_back,
    ),
    Check::should(
        Numbers,
        "window-opens-again",
        "RFC 7143 §4.2.2.1",
        "Once no command is outstanding, the window lets at least one command in.",
        "A window that stays closed stops its session for good.",
        |lab| {
            let mut conn = lab.ready(&[])?;
            let answer = conn.ping(b"window")?;
            expect(sn::ge(answer.max_cmd_sn(), answer.exp_cmd_sn()), "MaxCmdSN of ExpCmdSN or more", || {
                format!("ExpCmdSN {} and MaxCmdSN {}", answer.exp_cmd_sn(), answer.max_cmd_sn())
            })
        },
    ),
    Check::must(
        Numbers,
        "gap-is-waited-for",
        "RFC 7143 §4.2.2.1",
        "A command whose CmdSN is ahead of its turn waits until those before it have come.",
        "Over several connections commands overtake one another on the network; a write must not overtake another one in the target.",
        gap,
    ),
    Check::must(
        Numbers,
        "immediate-does-not-wait",
        "RFC 7143 §4.2.2.1, §11.2.1.1",
        "An immediate command is taken at once, also while commands before it are missing.",
        "Task management that waits for a lost command cannot end the wait.",
        |lab| {
            let mut conn = lab.ready(&[])?;
            let first = conn.take_cmd_sn();
            let (ahead, _) = ahead(&mut conn)?;
            conn.ping(b"at once")?;
            let early = conn.anything(QUIET, |pdu| pdu.itt() == ahead && pdu.is(Opcode::ScsiResponse));
            fill(&mut conn, first)?;
            match early {
                Some(_) => untested("the target does not wait for the missing command"),
                None => conn.answer(Opcode::ScsiResponse, ahead).map(|_| ()),
            }
        },
    ),
    Check::must(
        Numbers,
        "duplicate-is-ignored",
        "RFC 7143 §4.2.2.1",
        "A command with a CmdSN that was taken already is ignored in silence.",
        IGNORED,
        |lab| {
            let mut conn = lab.ready(&[])?;
            let done = conn.run(&Command::new(&[0; 6]))?;
            let again = numbered(&mut conn, done.cmd_sn)?;
            ignored(&mut conn, again)
        },
    ),
    Check::must(
        Numbers,
        "old-is-ignored",
        "RFC 7143 §4.2.2.1",
        "A command with a CmdSN far before ExpCmdSN is ignored in silence.",
        IGNORED,
        |lab| {
            let mut conn = lab.ready(&[])?;
            let number = conn.cmd_sn.wrapping_sub(1000);
            let old = numbered(&mut conn, number)?;
            ignored(&mut conn, old)
        },
    ),
    Check::must(
        Numbers,
        "beyond-the-window-is-ignored",
        "RFC 7143 §4.2.2.1",
        "A command with a CmdSN beyond MaxCmdSN is ignored in silence.",
        "The window is what the target has promised to keep room for; beyond it lies what it has no room for, or forged.",
        |lab| {
            let mut conn = lab.ready(&[])?;
            let max = conn.ping(b"window")?.max_cmd_sn();
            let beyond = numbered(&mut conn, max.wrapping_add(1))?;
            ignored(&mut conn, beyond)?;
            let far = numbered(&mut conn, max.wrapping_add(1 << 20))?;
            ignored(&mut conn, far)
        },
    ),
    Check::must(
        Numbers,
        "session-goes-on-after-ignored",
        "RFC 7143 §4.2.2.1",
        "Commands that were ignored leave the window as it was: the next in turn is taken.",
        "One stray PDU must not stop a session.",
        |lab| {
            let mut conn = lab.ready(&[])?;
            let max = conn.ping(b"window")?.max_cmd_sn();
            numbered(&mut conn, max.wrapping_add(2))?;
            let number = conn.cmd_sn.wrapping_sub(2);
            numbered(&mut conn, number)?;
            conn.run(&Command::new(&[0; 6]))?.good("TEST UNIT READY")?;
            Ok(())
        },
    ),
    Check::must(
        Numbers,
        "wraps-around",
        "RFC 7143 §4.2.2, RFC 1982",
        "CmdSN is a serial number: it goes from ffffffffh to 0, and its window with it.",
        "It takes 2^32 commands to get there, some hours of a fast session: then such a target stops.",
        wraps,
    ),
    Check::must(
        Numbers,
        "any-first-number",
        "RFC 7143 §11.12.8",
        "A session begins with whatever CmdSN its leading login names.",
        "Initiators begin with numbers of their own choice.",
        |lab| {
            for first in [0, 0x1234_5678, 0x7fff_ffff, 0x8000_0000] {
                let mut login = lab.normal();
                login.cmd_sn = first;
                let mut conn = lab.try_open(&login)?;
                conn.settle()?;
                let answer = conn.ping(b"number")?;
                expect(answer.exp_cmd_sn() == conn.cmd_sn, format!("ExpCmdSN {}", conn.cmd_sn), || {
                    format!("ExpCmdSN {} after a start at {first}", answer.exp_cmd_sn())
                })?;
            }
            Ok(())
        },
    ),
    Check::must(
        Numbers,
        "whole-window-at-once",
        "RFC 7143 §4.2.2.1",
        "As many commands as the window has room for, 64 at most here, can be sent at once; each is answered.",
        "MaxCmdSN is a promise: a busy unit answers TASK SET FULL, and does not lose the command.",
        whole_window,
    ),
    Check::must(
        Numbers,
        "own-numbers-a-connection",
        "RFC 7143 §4.2.2.2",
        "Data-In without status and R2Ts do not use StatSN up.",
        "A StatSN that is used up without a status looks like a lost status.",
        |lab| {
            let mut conn = lab.ready(&[("MaxRecvDataSegmentLength", "512")])?;
            let unit = lab.unit(&mut conn)?;
            let before = conn.exp_stat_sn;
            let blocks = (4096 / unit.block_len).max(1) as u16;
            let read = Command::reading(&read10(0, blocks), u32::from(blocks) * unit.block_len);
            let done = conn.run(&read)?.good("READ (10)")?;
            let status = done.pdus.last().map_or(0, Pdu::stat_sn);
            expect(status == before, format!("StatSN {before} in the read's status"), || {
                format!("StatSN {status}")
            })
        },
    )
    .tcp(),
];

fn stat_sn_by_one(lab: &Lab) -> Verdict {
    let mut conn = lab.ready(&[])?;
    let unit = lab.unit(&mut conn)?;
    conn.ping(b"one")?;
    conn.run(&Command::reading(&inquiry(None, 36), 36))?;
    conn.run(&Command::reading(&read10(0, 1), unit.block_len))?;
    conn.ping(b"two")?;
    conn.run(&Command::new(&[0xff; 6]))?;
    conn.run(&Command::new(&[0; 6]))?;
    let numbers: Vec<(u32, String)> = conn
        .history
        .iter()
        .map(|bhs| Pdu { bhs: *bhs, ..Pdu::default() })
        .filter(Pdu::takes_stat_sn)
        .map(|pdu| (pdu.stat_sn(), crate::pdu::kind(&pdu.bhs)))
        .collect();
    if numbers.len() < 7 {
        return untested(format!("only {} statuses came", numbers.len()));
    }
    for pair in numbers.windows(2) {
        if let [(before, first), (after, second)] = pair {
            let want = before.wrapping_add(1);
            expect(
                *after == want,
                format!("StatSN {want} in the {second} after StatSN {before} in a {first}"),
                || format!("StatSN {after}"),
            )?;
        }
    }
    Ok(())
}

fn max_never_back(lab: &Lab) -> Verdict {
    let mut conn = lab.ready(&[])?;
    let unit = lab.unit(&mut conn)?;
    for _ in 0..8 {
        conn.run(&Command::reading(&read10(0, 1), unit.block_len))?;
        conn.ping(b"")?;
    }
    let mut greatest: Option<u32> = None;
    for bhs in &conn.history {
        let pdu = Pdu { bhs: *bhs, ..Pdu::default() };
        let (expected, max) = (pdu.exp_cmd_sn(), pdu.max_cmd_sn());
        expect(sn::ge(max, expected.wrapping_sub(1)), "MaxCmdSN of at least ExpCmdSN - 1", || {
            format!("ExpCmdSN {expected} and MaxCmdSN {max} in {bhs}")
        })?;
        if let Some(greatest) = greatest {
            expect(sn::ge(max, greatest), format!("MaxCmdSN of at least {greatest}"), || {
                format!("MaxCmdSN {max} in {bhs}")
            })?;
        }
        greatest = Some(max);
    }
    Ok(())
}

/// Sends a TEST UNIT READY with this CmdSN; returns its tag.
fn numbered(conn: &mut Conn, number: u32) -> Verdict<u32> {
    let command = Command::new(&[0; 6]);
    let mut header = conn.command_header(&command);
    header.cmd_sn = U32::new(number);
    Ok(conn.start_as(header, &command)?.itt)
}

/// Sends the command after a skipped CmdSN; returns its tag and number.
fn ahead(conn: &mut Conn) -> Verdict<(u32, u32)> {
    let number = conn.take_cmd_sn();
    Ok((numbered(conn, number)?, number))
}

/// Fills the gap with a ping that has the skipped number.
fn fill(conn: &mut Conn, number: u32) -> Verdict {
    let itt = conn.tag();
    let mut ping = NopOut::ping(itt);
    ping.as_bhs_mut().set_immediate(false);
    (ping.cmd_sn, ping.exp_stat_sn) = (U32::new(number), U32::new(conn.exp_stat_sn));
    conn.post(ping, &[])?;
    conn.answer(Opcode::NopIn, itt).map(|_| ())
}

fn gap(lab: &Lab) -> Verdict {
    let mut conn = lab.ready(&[])?;
    let first = conn.take_cmd_sn();
    let (second, _) = ahead(&mut conn)?;
    let (third, _) = ahead(&mut conn)?;
    conn.quiet("no answer before the command ahead has come", |pdu| {
        pdu.itt() == second || pdu.itt() == third
    })?;
    fill(&mut conn, first)?;
    let (mut order, mut seen) = (Vec::new(), 0);
    while seen < 2 {
        let pdu = conn.wait("the statuses of the commands that waited", |pdu| {
            pdu.itt() == second || pdu.itt() == third
        })?;
        order.push(pdu.itt());
        seen += 1;
    }
    should(order == [second, third], "statuses in the order of the commands", || {
        "the later command's first".to_owned()
    })
}

/// Fails if the command of this tag is answered, rejected, or ends the connection.
fn ignored(conn: &mut Conn, itt: u32) -> Verdict {
    conn.quiet("no answer at all", |pdu| pdu.itt() == itt || pdu.is(Opcode::Reject))
}

fn wraps(lab: &Lab) -> Verdict {
    let mut login = lab.normal();
    login.cmd_sn = 0xffff_fffa;
    let mut conn = lab.try_open(&login)?;
    for _ in 0..16 {
        let done = conn.run(&Command::new(&[0; 6]))?;
        let last = done.pdus.last().cloned().unwrap_or_default();
        let want = done.cmd_sn.wrapping_add(1);
        expect(last.exp_cmd_sn() == want, format!("ExpCmdSN {want:#x}"), || {
            format!("ExpCmdSN {:#x} after CmdSN {:#x}", last.exp_cmd_sn(), done.cmd_sn)
        })?;
        expect(sn::ge(last.max_cmd_sn(), want.wrapping_sub(1)), "a window that wraps too", || {
            format!("ExpCmdSN {want:#x} and MaxCmdSN {:#x}", last.max_cmd_sn())
        })?;
    }
    Ok(())
}

fn whole_window(lab: &Lab) -> Verdict {
    let mut conn = lab.ready(&[])?;
    let answer = conn.ping(b"window")?;
    let room = sn::distance(answer.exp_cmd_sn(), answer.max_cmd_sn()).wrapping_add(1).min(64);
    if room == 0 {
        return wrong("a window without room", "room for one command");
    }
    let tasks = (0..room).map(|_| conn.start(&Command::new(&[0; 6])).map(|task| task.itt));
    let tasks = tasks.collect::<Result<Vec<_>, _>>()?;
    for itt in tasks {
        match conn.outcome(|pdu| pdu.itt() == itt && pdu.is(Opcode::ScsiResponse)) {
            Ending::Pdu(_) => {}
            Ending::Closed => return wrong("the connection was closed", format!("{room} statuses")),
            Ending::Silent => return wrong("a command was not answered", format!("{room} statuses")),
        }
    }
    Ok(())
}
