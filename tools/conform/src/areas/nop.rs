//! Pings (RFC 7143 §11.18, §11.19).

use iscsi::pdu::{NopOut, Opcode, RESERVED_TAG, U32};

use crate::check::Area::Nop;
use crate::check::Check;
use crate::finding::{Verdict, expect, untested};
use crate::lab::Lab;

const WHY: &str =
    "Initiators tell a dead connection from a slow one by pings; one that is not answered costs the session.";

pub(super) const CHECKS: &[Check] = &[
    Check::must(
        Nop,
        "echo",
        "RFC 7143 §11.18, §11.19",
        "A NOP-Out with a valid Initiator Task Tag is answered by a NOP-In that carries the same data.",
        WHY,
        |lab| {
            let mut conn = lab.session(&[])?;
            echoed(&mut conn, &sample(64))
        },
    ),
    Check::must(
        Nop,
        "echo-odd-lengths",
        "RFC 7143 §11.2.1.6, §11.18",
        "Ping data whose length is no multiple of four is padded on the wire and comes back without the padding.",
        "A target that counts the padding as data, or leaves it away, loses its place in the stream.",
        |lab| {
            let mut conn = lab.session(&[])?;
            (1..=5).chain(125..128).try_for_each(|len| echoed(&mut conn, &sample(len)))
        },
    ),
    Check::must(
        Nop,
        "echo-without-data",
        "RFC 7143 §11.18",
        "A NOP-Out without data is answered by a NOP-In without data.",
        WHY,
        |lab| {
            let mut conn = lab.session(&[])?;
            echoed(&mut conn, &[])
        },
    ),
    Check::must(
        Nop,
        "echo-of-a-whole-segment",
        "RFC 7143 §11.18, §13.12",
        "A ping as long as the target's MaxRecvDataSegmentLength, up to 8 KiB here, is answered.",
        "A target that declares a length takes data segments of that length.",
        |lab| {
            let mut conn = lab.session(&[])?;
            let len = conn.target_segment().min(8192);
            echoed(&mut conn, &sample(len))
        },
    )
    .tcp(),
    Check::must(
        Nop,
        "echo-fits-the-initiator",
        "RFC 7143 §11.18, §13.12",
        "The NOP-In's data is no longer than the initiator's MaxRecvDataSegmentLength; what is longer is cut off.",
        "A data segment beyond what the initiator declared makes it drop the connection.",
        |lab| {
            let mut conn = lab.session(&[("MaxRecvDataSegmentLength", "512")])?;
            let data = sample(1024.min(conn.target_segment()));
            let got = conn.ping(&data)?.data;
            expect(got.len() <= 512, "at most 512 bytes of data", || format!("{} bytes of data", got.len()))?;
            expect(data.starts_with(&got), "data that begins as the ping's does", || "other data".to_owned())
        },
    )
    .tcp(),
    Check::must(
        Nop,
        "answer-has-no-target-tag",
        "RFC 7143 §11.19",
        "A NOP-In that answers a ping has the Target Transfer Tag ffffffffh.",
        "Any other tag asks the initiator for an answer in its turn: a ping that never ends.",
        |lab| {
            let mut conn = lab.session(&[])?;
            let answer = conn.ping(b"tag")?;
            expect(answer.word(20) == RESERVED_TAG, "Target Transfer Tag ffffffffh", || {
                format!("Target Transfer Tag {:08x}h", answer.word(20))
            })
        },
    ),
    Check::must(
        Nop,
        "echo-in-turn",
        "RFC 7143 §11.18, §4.2.2.1",
        "A NOP-Out that is not immediate takes its turn by CmdSN, uses it up, and is answered.",
        "Initiators send such a ping to move ExpCmdSN on, as after a retry (RFC 7143 §10.4).",
        |lab| {
            let mut conn = lab.session(&[])?;
            let (itt, number) = (conn.tag(), conn.take_cmd_sn());
            let mut ping = NopOut::ping(itt);
            ping.as_bhs_mut().set_immediate(false);
            (ping.cmd_sn, ping.exp_stat_sn) = (U32::new(number), U32::new(conn.exp_stat_sn));
            conn.post(ping, b"in turn")?;
            let answer = conn.answer(Opcode::NopIn, itt)?;
            expect(answer.data == b"in turn", "the ping's data", || "other data".to_owned())?;
            let want = number.wrapping_add(1);
            expect(answer.exp_cmd_sn() == want, format!("ExpCmdSN {want}"), || {
                format!("ExpCmdSN {}", answer.exp_cmd_sn())
            })
        },
    ),
    Check::must(
        Nop,
        "no-echo-unasked",
        "RFC 7143 §11.18",
        "A NOP-Out with the Initiator Task Tag ffffffffh wants no answer and gets none.",
        "It is how an initiator acknowledges StatSN by itself; an answer to it would have to be acknowledged again.",
        |lab| {
            let mut conn = lab.session(&[])?;
            let mut quiet = NopOut::ping(RESERVED_TAG);
            (quiet.cmd_sn, quiet.exp_stat_sn) = (U32::new(conn.cmd_sn), U32::new(conn.exp_stat_sn));
            conn.post(quiet, &[])?;
            conn.quiet("no answer", |pdu| {
                pdu.is(Opcode::Reject)
                    || (pdu.is(Opcode::NopIn) && pdu.itt() == RESERVED_TAG && pdu.word(20) == RESERVED_TAG)
            })
        },
    ),
    Check::must(
        Nop,
        "many-at-once",
        "RFC 7143 §11.18",
        "Several pings sent at once are all answered, each with its own data.",
        "A target that keeps room for one ping at a time loses the others, and its initiator believes it dead.",
        |lab| {
            let mut conn = lab.session(&[])?;
            let mut sent = Vec::new();
            for n in 0..8u8 {
                let itt = conn.tag();
                let mut ping = NopOut::ping(itt);
                (ping.cmd_sn, ping.exp_stat_sn) = (U32::new(conn.cmd_sn), U32::new(conn.exp_stat_sn));
                conn.post(ping, &[n; 33])?;
                sent.push((itt, n));
            }
            for (itt, n) in sent {
                let answer = conn.answer(Opcode::NopIn, itt)?;
                expect(answer.data == [n; 33], "the ping's data", || "another ping's data".to_owned())?;
            }
            Ok(())
        },
    ),
    Check::must(
        Nop,
        "own-pings",
        "RFC 7143 §11.19",
        "A ping of the target's has the Initiator Task Tag ffffffffh and a valid Target Transfer Tag.",
        "An initiator cannot answer it otherwise.",
        own_pings,
    ),
];

/// Data with a period of 251 bytes.
pub(super) fn sample(len: usize) -> Vec<u8> {
    (0..len).map(|n| (n % 251) as u8).collect()
}

fn echoed(conn: &mut crate::conn::Conn, data: &[u8]) -> Verdict {
    let got = conn.ping(data)?.data;
    expect(got == data, format!("the {} bytes of the ping", data.len()), || match got.len() == data.len() {
        true => "other bytes".to_owned(),
        false => format!("{} bytes", got.len()),
    })
}

fn own_pings(lab: &Lab) -> Verdict {
    let pings = lab.pings.borrow();
    let asked = pings.iter().filter(|ping| ping.as_nop_in().ttt.get() != RESERVED_TAG);
    for ping in asked.clone() {
        expect(ping.itt() == RESERVED_TAG, "Initiator Task Tag ffffffffh", || ping.to_string())?;
    }
    match asked.count() {
        0 => untested("the target has sent no ping so far"),
        _ => Ok(()),
    }
}
