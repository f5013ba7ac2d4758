//! Data from the initiator: immediate, unsolicited, and solicited by R2T (RFC 7143 §4.2.5.2, §11.7,
//! §11.8).

use iscsi::pdu::{DataOut as DataOutPdu, FINAL, Opcode, RESERVED_TAG, U32};

use crate::check::Area::DataOut;
use crate::check::Check;
use crate::conn::{Conn, Ending, QUIET};
use crate::finding::{Finding, Verdict, expect, not_applicable, should, wrong};
use crate::lab::Lab;
use crate::pdu::Pdu;
use crate::scsi::{Command, Done, Outgoing, Task, read10, write10};

const COMBINE: &str =
    "Initiators and targets agree on one of four ways for a write's data, and every one is in use.";
const R2T: &str =
    "The initiator sends just what an R2T asks for: a wrong one puts wrong data into the unit, or none.";
const INTACT: &str = "A write that ended well although its data was not there has corrupted the unit.";
const UNASKED: &str =
    "The target has no room for what was not agreed on; and what it takes nevertheless it may put anywhere.";

/// Bytes of a write that needs R2Ts, whatever may be unsolicited.
const LONG: usize = 128 << 10;

pub(super) const CHECKS: &[Check] = &[
    Check::must(DataOut, "solicited-alone", "RFC 7143 §13.10, §13.11, §11.8",
        "With InitialR2T=Yes and ImmediateData=No all data is asked for by R2T, and arrives whole.",
        COMBINE,
        |lab| combination(lab, "Yes", "No")),
    Check::must(DataOut, "immediate-then-solicited", "RFC 7143 §13.10, §13.11, §11.8",
        "With InitialR2T=Yes and ImmediateData=Yes data comes with the command, and the rest by R2T.",
        COMBINE,
        |lab| combination(lab, "Yes", "Yes")),
    Check::must(DataOut, "unsolicited-then-solicited", "RFC 7143 §13.10, §13.11, §11.8",
        "With InitialR2T=No and ImmediateData=No unsolicited data follows the command, up to FirstBurstLength, and the rest by R2T.",
        COMBINE,
        |lab| combination(lab, "No", "No")).tcp(),
    Check::must(DataOut, "immediate-and-unsolicited", "RFC 7143 §13.10, §13.11, §11.8",
        "With InitialR2T=No and ImmediateData=Yes data comes with the command and after it, up to FirstBurstLength, and the rest by R2T.",
        COMBINE,
        |lab| combination(lab, "No", "Yes")).tcp(),
    Check::must(DataOut, "short-immediate", "RFC 7143 §13.11",
        "A write of one block whose data is all immediate needs no R2T.",
        COMBINE,
        |lab| {
            let mut conn = lab.ready(&[("ImmediateData", "Yes")])?;
            if !conn.flag("ImmediateData", true) {
                return not_applicable("the target answers ImmediateData=No");
            }
            let out = lab.outgoing(&mut conn, 1)?;
            if out.command.out.len() > conn.target_segment() {
                return not_applicable("a block is longer than the target's MaxRecvDataSegmentLength");
            }
            let done = conn.run(&out.command)?.good("the write")?;
            expect(done.of(Opcode::ReadyToTransfer).is_empty(), "no R2T", || "an R2T".to_owned())?;
            lab.confirm(&mut conn, &out)
        }),
    Check::must(DataOut, "less-than-allowed-unasked", "RFC 7143 §4.2.5.2, §11.3.1",
        "An initiator may send less unsolicited data than it might: F=1 in the command, no immediate data, and the target asks for all by R2T.",
        COMBINE,
        |lab| {
            let mut conn = lab.ready(&[("InitialR2T", "No"), ("ImmediateData", "Yes")])?;
            let mut out = lab.outgoing(&mut conn, LONG)?;
            out.command.unsolicited = false;
            let done = conn.run(&out.command)?.good("the write")?;
            tiles(&done, 0, out.command.out.len())?;
            lab.confirm(&mut conn, &out)
        }).tcp(),
    Check::must(DataOut, "r2ts-cover-the-data", "RFC 7143 §11.8, §13.19",
        "The R2Ts of a command ask, in order, for all of its data that was not sent unsolicited, each byte once.",
        R2T,
        |lab| {
            let (mut conn, out) = solicited(lab, &[], LONG)?;
            let done = conn.run(&out.command)?.good("the write")?;
            tiles(&done, 0, out.command.out.len())
        }).tcp(),
    Check::must(DataOut, "r2ts-begin-after-immediate", "RFC 7143 §11.8.4",
        "After immediate data the first R2T asks for what follows it.",
        R2T,
        |lab| {
            let mut conn = lab.ready(&[("ImmediateData", "Yes"), ("FirstBurstLength", "4096")])?;
            if !conn.flag("ImmediateData", true) {
                return not_applicable("the target answers ImmediateData=No");
            }
            let out = lab.outgoing(&mut conn, LONG)?;
            let sent = conn.target_segment().min(conn.number("FirstBurstLength", 65_536) as usize).min(out.command.out.len());
            let done = conn.run(&out.command)?.good("the write")?;
            tiles(&done, sent, out.command.out.len())
        }).tcp(),
    Check::must(DataOut, "r2tsn-from-0-by-one", "RFC 7143 §11.8.3, §4.2.2.4",
        "The R2Ts of a command have R2TSN 0, 1, 2 and so on.",
        "Where an R2T is lost, the initiator finds out by its number.",
        |lab| {
            let (mut conn, out) = solicited(lab, &[("MaxBurstLength", "8192"), ("FirstBurstLength", "8192")], LONG)?;
            let done = conn.run(&out.command)?.good("the write")?;
            for (want, pdu) in done.of(Opcode::ReadyToTransfer).iter().enumerate() {
                let got = pdu.word(36);
                expect(got == want as u32, format!("R2TSN {want}"), || format!("R2TSN {got}"))?;
            }
            Ok(())
        }).tcp(),
    Check::must(DataOut, "r2ts-fit-a-burst", "RFC 7143 §13.13, §11.8.4",
        "No R2T asks for more than MaxBurstLength, nor for nothing.",
        "The initiator would have to break what was agreed.",
        |lab| {
            for limit in ["4096", "16384"] {
                let keys = [("MaxBurstLength", limit), ("FirstBurstLength", limit)];
                let (mut conn, out) = solicited(lab, &keys, LONG)?;
                let burst = conn.number("MaxBurstLength", 262_144);
                let done = conn.run(&out.command)?.good("the write")?;
                for pdu in done.of(Opcode::ReadyToTransfer) {
                    let len = pdu.word(44);
                    expect((1..=burst).contains(&len), format!("1 to {burst} bytes"), || format!("{len} bytes"))?;
                }
            }
            Ok(())
        }).tcp(),
    Check::must(DataOut, "r2t-fields", "RFC 7143 §11.8",
        "An R2T has F=1, its command's Initiator Task Tag, and a Target Transfer Tag other than ffffffffh.",
        R2T,
        |lab| {
            let (mut conn, out) = solicited(lab, &[], LONG)?;
            let done = conn.run(&out.command)?.good("the write")?;
            for pdu in done.of(Opcode::ReadyToTransfer) {
                expect(pdu.bhs.is_final() && pdu.word(20) != RESERVED_TAG, "F=1 and a Target Transfer Tag", || pdu.bhs.to_string())?;
                expect(pdu.data.is_empty(), "no data", || format!("{} bytes of data", pdu.data.len()))?;
            }
            Ok(())
        }).tcp(),
    Check::must(DataOut, "r2t-statsn-is-the-next", "RFC 7143 §11.8, §4.2.2.2",
        "An R2T carries the next StatSN and does not use it up.",
        "It would look as if a status had been lost.",
        |lab| {
            let (mut conn, out) = solicited(lab, &[], LONG)?;
            let want = conn.exp_stat_sn;
            let done = conn.run(&out.command)?.good("the write")?;
            for pdu in done.of(Opcode::ReadyToTransfer) {
                let got = pdu.stat_sn();
                expect(got == want, format!("StatSN {want}"), || format!("StatSN {got}"))?;
            }
            let got = done.pdus.last().map_or(0, Pdu::stat_sn);
            expect(got == want, format!("StatSN {want} in the status"), || format!("StatSN {got}"))
        }).tcp(),
    Check::must(DataOut, "one-r2t-at-a-time", "RFC 7143 §13.17",
        "With MaxOutstandingR2T=1 the second R2T of a command comes only when the first is served.",
        "An initiator with room for one forgets the others, and its write never ends.",
        |lab| {
            let keys = [("MaxOutstandingR2T", "1"), ("MaxBurstLength", "4096"), ("FirstBurstLength", "4096")];
            let (mut conn, out) = solicited(lab, &keys, LONG)?;
            let task = conn.start(&out.command)?;
            let (mut early, mut looked) = (false, 0);
            let done = conn.finish_with(&task, |conn, task, r2t| {
                if looked < 4 {
                        looked += 1;
                    early = conn.anything(QUIET / 4, |pdu| pdu.is(Opcode::ReadyToTransfer)).is_some();
                }
                if early {
                    return wrong("a second R2T before the first was served", "one R2T at a time");
                }
                serve(conn, task, r2t)
            })?;
            done.good("the write").map(|_| ())
        }).tcp(),
    Check::must(DataOut, "several-r2ts-within-their-number", "RFC 7143 §13.17",
        "With MaxOutstandingR2T=4 no more than 4 R2Ts of a command wait to be served.",
        "An initiator has room for as many as it agreed to.",
        |lab| {
            let keys = [("MaxOutstandingR2T", "4"), ("MaxBurstLength", "4096"), ("FirstBurstLength", "4096")];
            let (mut conn, out) = solicited(lab, &keys, LONG)?;
            let limit = conn.number("MaxOutstandingR2T", 1);
            let task = conn.start(&out.command)?;
            let mut waiting: Vec<Pdu> = Vec::new();
            let done = conn.finish_with(&task, |conn, task, r2t| {
                waiting.push(r2t.clone());
                while let Some(more) = conn.anything(QUIET / 8, |pdu| pdu.is(Opcode::ReadyToTransfer)) {
                    waiting.push(more);
                }
                expect(waiting.len() <= limit as usize, format!("at most {limit} R2Ts at a time"), || format!("{} R2Ts", waiting.len()))?;
                for r2t in waiting.drain(..) {
                    serve(conn, task, &r2t)?;
                }
                Ok(())
            })?;
            done.good("the write").map(|_| ())
        }).tcp(),
    Check::must(DataOut, "small-segments", "RFC 7143 §11.7, §13.12",
        "The data of an R2T may come in Data-Out PDUs of any length, here 512 bytes and 1 byte less than 1000.",
        "MaxRecvDataSegmentLength is a limit and no length.",
        |lab| {
            for segment in [512, 999] {
                let (mut conn, mut out) = solicited(lab, &[], 32_768)?;
                out.command.segment = Some(segment);
                conn.run(&out.command)?.good("the write")?;
                lab.confirm(&mut conn, &out)?;
            }
            Ok(())
        }).tcp(),
    Check::must(DataOut, "underflow", "RFC 7143 §11.4.5",
        "A write that takes less than the Expected Data Transfer Length says by how much: U=1 and the Residual Count.",
        "The initiator has to know that not all of its data was taken.",
        |lab| {
            let mut conn = lab.ready(&[])?;
            let mut out = lab.outgoing(&mut conn, 1)?;
            let block = out.command.out.len();
            out.command.out.resize(block * 3, 0);
            let done = conn.run(&out.command)?;
            if !done.is_good() {
                return should(false, "status GOOD and an underflow", || done.told());
            }
            let right = done.underflow && done.residual as usize == block * 2;
            expect(right, format!("an underflow of {} bytes", block * 2), || done.residual_told())
        }),
    Check::must(DataOut, "overflow", "RFC 7143 §11.4.5",
        "A write of more blocks than the Expected Data Transfer Length covers never ends well without saying so: O=1 and the Residual Count.",
        "Blocks that were never sent would be believed to be written.",
        |lab| {
            let mut conn = lab.ready(&[])?;
            let mut out = lab.outgoing(&mut conn, 4096)?;
            let len = out.command.out.len();
            let block = len / usize::from(out.blocks);
            if out.blocks < 2 {
                return not_applicable("blocks are too long for this check");
            }
            out.command.out.truncate(len - block);
            let done = conn.run(&out.command)?;
            if !done.is_good() {
                return Ok(());
            }
            let right = done.overflow && done.residual as usize == block;
            expect(right, format!("an overflow of {block} bytes, or no GOOD"), || done.residual_told())
        }),
    Check::must(DataOut, "nothing-to-write", "SBC-3 §5.32, RFC 7143 §11.4.5",
        "WRITE (10) of 0 blocks ends with status GOOD and asks for no data.",
        "A transfer length of 0 is no error, and hosts send it.",
        |lab| {
            let mut conn = lab.ready(&[])?;
            let done = conn.run(&Command::new(&write10(0, 0)))?;
            if done.sense_code() == Some((7, 0x27, 0)) {
                return not_applicable("the unit is write-protected");
            }
            done.good("WRITE (10) of 0 blocks").map(|_| ())
        }).writing(),
    Check::must(DataOut, "wrong-datasn", "RFC 7143 §4.2.2.4, §7.9, §11.7.5",
        "A sequence of Data-Out with a DataSN left out never leads to status GOOD at ErrorRecoveryLevel 0.",
        INTACT,
        |lab| {
            let (mut conn, out) = solicited(lab, &[], 32_768)?;
            broken(&mut conn, &out, |conn, task, r2t| {
                let (ttt, at, len) = place(r2t);
                pieces(conn, task, ttt, at..at + len, |n| if n == 0 { 0 } else { n + 7 })
            })
        }).tcp(),
    Check::must(DataOut, "wrong-offset", "RFC 7143 §11.7.6, §13.18, §7.9",
        "With DataPDUInOrder=Yes a Data-Out whose Buffer Offset leaves a gap never leads to status GOOD.",
        INTACT,
        |lab| {
            let (mut conn, out) = solicited(lab, &[], 32_768)?;
            broken(&mut conn, &out, |conn, task, r2t| {
                let (ttt, at, len) = place(r2t);
                let half = len / 2;
                pieces(conn, task, ttt, at + half..at + len, |n| n)
            })
        }).tcp(),
    Check::must(DataOut, "less-than-asked-for", "RFC 7143 §11.7.1, §11.8, §7.9",
        "A sequence that ends with F=1 before all that the R2T asked for has come never leads to status GOOD.",
        INTACT,
        |lab| {
            let (mut conn, out) = solicited(lab, &[], 32_768)?;
            broken(&mut conn, &out, |conn, task, r2t| {
                let (ttt, at, len) = place(r2t);
                conn.data_out(task, ttt, at, (len / 2).max(1), 0)
            })
        }).tcp(),
    Check::must(DataOut, "more-than-asked-for", "RFC 7143 §11.7, §11.8, §7.13",
        "A Data-Out beyond what its R2T asked for is not taken: the unit has no more than was asked for.",
        "It goes where another command's data, or the target's own memory is.",
        |lab| {
            let (mut conn, out) = solicited(lab, &[], 4096)?;
            let unit = lab.unit(&mut conn)?;
            // Where the data would lie that is sent beyond the R2T.
            let blocks = 8192_u32.div_ceil(unit.block_len);
            let read = read10(out.lba + u32::from(out.blocks), blocks as u16);
            let behind = Command::reading(&read, blocks * unit.block_len);
            let before = conn.run(&behind)?.good("READ (10)")?.data;
            let task = conn.start(&out.command)?;
            let mut once = true;
            let outcome = conn.finish_with(&task, |conn, task, r2t| {
                let (ttt, at, len) = place(r2t);
                if std::mem::take(&mut once) {
                    let far = conn.data_out_header(task, ttt, 0, at + len + 4096);
                    conn.post(far, &[0x5a; 512])?;
                }
                conn.data_out(task, ttt, at, len, 0)
            });
            match outcome {
                Ok(done) if done.is_good() => {
                    lab.confirm(&mut conn, &out)?;
                    let after = conn.run(&behind)?.good("READ (10)")?.data;
                    expect(after == before, "the blocks behind the write as they were", || "other data".to_owned())
                }
                _ => Ok(()),
            }
        }).tcp(),
    Check::should(DataOut, "unknown-transfer-tag", "RFC 7143 §11.7.4, §11.17.1, §7.13",
        "A Data-Out of no task is rejected or dropped, and the session goes on.",
        "It may be the late data of a task that was aborted.",
        |lab| {
            let mut conn = lab.ready(&[])?;
            let mut stray = DataOutPdu::new(0x7777, 0x8888, conn.lun, 0, 0);
            stray.flags = FINAL;
            stray.exp_stat_sn = U32::new(conn.exp_stat_sn);
            conn.post(stray, &[0; 512])?;
            // A Reject is a valid answer.
            conn.anything(QUIET, |pdu| pdu.is(Opcode::Reject));
            conn.ping(b"still there")?;
            conn.settle()
        }).tcp(),
    Check::must(DataOut, "immediate-although-not-agreed", "RFC 7143 §13.11, §11.4.7.2",
        "Immediate data with ImmediateData=No agreed on does not lead to a write that ends well by it.",
        UNASKED,
        |lab| {
            let mut conn = lab.ready(&[("ImmediateData", "No"), ("InitialR2T", "Yes")])?;
            let out = lab.outgoing(&mut conn, 1)?;
            let mut header = conn.command_header(&out.command);
            header.cmd_sn = U32::new(conn.take_cmd_sn());
            conn.post(header, &out.command.out)?;
            unwanted(&mut conn, header.itt.get())
        }).tcp(),
    Check::must(DataOut, "unsolicited-although-not-agreed", "RFC 7143 §13.10, §11.4.7.2",
        "Unsolicited Data-Out with InitialR2T=Yes agreed on does not lead to a write that ends well by it.",
        UNASKED,
        |lab| {
            let mut conn = lab.ready(&[("ImmediateData", "No"), ("InitialR2T", "Yes")])?;
            let out = lab.outgoing(&mut conn, 1)?;
            let mut header = conn.command_header(&out.command);
            header.cmd_sn = U32::new(conn.take_cmd_sn());
            header.set_final(false);
            conn.post(header, &[])?;
            let mut data = DataOutPdu::new(header.itt.get(), RESERVED_TAG, conn.lun, 0, 0);
            data.flags = FINAL;
            data.exp_stat_sn = U32::new(conn.exp_stat_sn);
            conn.post(data, &out.command.out)?;
            unwanted(&mut conn, header.itt.get())
        }).tcp(),
    Check::must(DataOut, "more-immediate-than-first-burst", "RFC 7143 §13.14, §11.3.5",
        "Immediate data of more than FirstBurstLength does not lead to a write that ends well by it.",
        UNASKED,
        |lab| {
            let keys = [("ImmediateData", "Yes"), ("FirstBurstLength", "512"), ("MaxBurstLength", "16384")];
            let mut conn = lab.ready(&keys)?;
            if !conn.flag("ImmediateData", true) {
                return not_applicable("the target answers ImmediateData=No");
            }
            let out = lab.outgoing(&mut conn, 4096)?;
            if out.command.out.len() > conn.target_segment() || out.command.out.len() <= conn.number("FirstBurstLength", 0) as usize {
                return not_applicable("no length lies between FirstBurstLength and MaxRecvDataSegmentLength");
            }
            let mut header = conn.command_header(&out.command);
            header.cmd_sn = U32::new(conn.take_cmd_sn());
            conn.post(header, &out.command.out)?;
            unwanted(&mut conn, header.itt.get())
        }).tcp(),
    Check::must(DataOut, "writes-side-by-side", "RFC 7143 §11.8, §4.2.5.3",
        "Two writes whose R2Ts are served in turns each get their own data.",
        R2T,
        |lab| {
            let keys = [("MaxBurstLength", "4096"), ("FirstBurstLength", "4096")];
            let (mut conn, one) = solicited(lab, &keys, 16_384)?;
            let other = lab.outgoing_behind(&mut conn, 16_384, one.blocks)?;
            let (first, second) = (conn.start(&one.command)?, conn.start(&other.command)?);
            let mut ended = 0;
            for _ in 0..64 {
                let (a, b) = (first.itt, second.itt);
                let pdu = conn.wait("R2Ts and statuses of both writes", |pdu| pdu.itt() == a || pdu.itt() == b)?;
                let task = if pdu.itt() == a { &first } else { &second };
                if pdu.is(Opcode::ReadyToTransfer) {
                    serve(&mut conn, task, &pdu)?;
                    continue;
                }
                expect(pdu.is(Opcode::ScsiResponse) && pdu.bhs.as_scsi_response().status == 0, "status GOOD", || pdu.bhs.to_string())?;
                ended += 1;
                if ended == 2 {
                    lab.confirm(&mut conn, &one)?;
                    return lab.confirm(&mut conn, &other);
                }
            }
            wrong("64 PDUs and no end", "two statuses")
        }).tcp(),
];

fn place(r2t: &Pdu) -> (u32, usize, usize) {
    (r2t.word(20), r2t.word(40) as usize, r2t.word(44) as usize)
}

fn serve(conn: &mut Conn, task: &Task, r2t: &Pdu) -> Verdict {
    let (ttt, at, len) = place(r2t);
    conn.data_out(task, ttt, at, len, 0)
}

/// Sends a part of the command's data in two or more Data-Out PDUs, numbered by `number`.
fn pieces(
    conn: &mut Conn,
    task: &Task,
    ttt: u32,
    place: std::ops::Range<usize>,
    number: impl Fn(u32) -> u32,
) -> Verdict {
    let data = task.command.out.get(place.clone()).unwrap_or_default().to_vec();
    let segment = conn.target_segment().min(place.len() / 2).max(1);
    let count = data.chunks(segment).count();
    for (n, part) in data.chunks(segment).enumerate() {
        let mut pdu = conn.data_out_header(task, ttt, number(n as u32), place.start + n * segment);
        pdu.flags = if n + 1 == count { FINAL } else { 0 };
        conn.post(pdu, part)?;
    }
    Ok(())
}

/// A session where all data is solicited, and a write of `bytes` bytes.
fn solicited(lab: &Lab, keys: &[(&str, &str)], bytes: usize) -> Verdict<(Conn, Outgoing)> {
    let all: Vec<(&str, &str)> =
        [("InitialR2T", "Yes"), ("ImmediateData", "No")].into_iter().chain(keys.iter().copied()).collect();
    let mut conn = lab.ready(&all)?;
    if conn.flag("ImmediateData", true) || !conn.flag("InitialR2T", true) {
        return not_applicable("the target does not agree that all data is asked for");
    }
    let out = lab.outgoing(&mut conn, bytes)?;
    Ok((conn, out))
}

fn combination(lab: &Lab, initial_r2t: &str, immediate: &str) -> Verdict {
    let mut conn = lab.ready(&[("InitialR2T", initial_r2t), ("ImmediateData", immediate)])?;
    for (key, want, default) in [("InitialR2T", initial_r2t, true), ("ImmediateData", immediate, true)] {
        if conn.flag(key, default) != (want == "Yes") {
            return not_applicable(format!("the target does not agree on {key}={want}"));
        }
    }
    for bytes in [1, 4096, LONG] {
        let out = lab.outgoing(&mut conn, bytes)?;
        conn.run(&out.command)?.good("the write")?;
        lab.confirm(&mut conn, &out)?;
    }
    Ok(())
}

/// Fails unless the R2Ts request `from` to `to` in order, each byte once.
fn tiles(done: &Done, from: usize, to: usize) -> Verdict {
    let mut at = from;
    for pdu in done.of(Opcode::ReadyToTransfer) {
        let (_, offset, len) = place(pdu);
        expect(offset == at, format!("an R2T from {at} on"), || format!("one from {offset} on"))?;
        at += len;
    }
    expect(at == to, format!("R2Ts up to {to}"), || format!("R2Ts up to {at}"))
}

/// Fails if a write ends with status GOOD although `respond` answers its first R2T wrongly.
fn broken(conn: &mut Conn, out: &Outgoing, respond: impl Fn(&mut Conn, &Task, &Pdu) -> Verdict) -> Verdict {
    let task = conn.start(&out.command)?;
    let mut first = true;
    let outcome = conn.finish_with(&task, |conn, task, r2t| {
        if std::mem::take(&mut first) { respond(conn, task, r2t) } else { serve(conn, task, r2t) }
    });
    match outcome {
        Ok(done) => {
            // A target may solicit the missing data again: R2Ts after the first one cover it.
            let asked: usize = done.of(Opcode::ReadyToTransfer).iter().map(|pdu| place(pdu).2).sum();
            let again = asked > task.command.out.len();
            expect(!done.is_good() || again, "any end but status GOOD", || done.told())
        }
        // A Reject, or the end of the connection.
        Err(Finding::Wrong { .. }) => Ok(()),
        Err(other) => Err(other),
    }
}

/// Fails if the task ends with status GOOD. Its data was not solicited by R2T and must not count.
fn unwanted(conn: &mut Conn, itt: u32) -> Verdict {
    match conn.outcome(|pdu| pdu.itt() == itt || pdu.is(Opcode::Reject)) {
        Ending::Closed => Ok(()),
        Ending::Silent => wrong(
            "no answer, and the connection stays open",
            "CHECK CONDITION, a Reject, an R2T, or the end of the connection",
        ),
        Ending::Pdu(pdu) if pdu.is(Opcode::ScsiResponse) => {
            let good = pdu.bhs.as_scsi_response().status == 0 && pdu.bhs.as_scsi_response().response == 0;
            should(!good, "CHECK CONDITION, a Reject, or the end of the connection", || {
                "status GOOD".to_owned()
            })
        }
        Ending::Pdu(_) => Ok(()),
    }
}
