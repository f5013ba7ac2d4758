//! Data to the initiator, statuses and residuals (RFC 7143 §11.3, §11.4, §11.7).

use iscsi::pdu::{Lun, Opcode, RESERVED_TAG};

use crate::check::Area::DataIn;
use crate::check::Check;
use crate::conn::Conn;
use crate::finding::{Verdict, expect, not_applicable, setup, should};
use crate::lab::{Lab, Unit};
use crate::scsi::{CHECK_CONDITION, Command, Done, inquiry, read10};

const RESIDUAL: &str =
    "An initiator that is not told of a residual takes what its buffer held before for data.";
const FIT: &str = "What is longer than the initiator declared has no room there.";
const SENSE: &str =
    "Without its sense data nobody knows why a command failed, and hosts retry, or take a disk offline.";
const ORDER: &str = "Initiators place data by these fields; where they are wrong, data lands in the wrong place, or is thought lost.";

pub(super) const CHECKS: &[Check] = &[
    Check::must(DataIn, "whole-read", "RFC 7143 §11.3.4, §11.7",
        "A read of as many bytes as the Expected Data Transfer Length brings them all, with status GOOD and no residual.",
        "It is what every read is.",
        |lab| {
            let (_, done, bytes) = read(lab, &[], 65_536)?;
            expect(done.data.len() as u32 == bytes, format!("{bytes} bytes"), || format!("{} bytes", done.data.len()))?;
            expect(!done.overflow && !done.underflow, "no residual", || done.residual_told())
        }),
    Check::must(DataIn, "same-data-in-any-pieces", "RFC 7143 §11.7, §13.12",
        "The same blocks read in data segments of 512 bytes and of 64 KiB are the same.",
        ORDER,
        |lab| {
            let (_, one, _) = read(lab, &[("MaxRecvDataSegmentLength", "512")], 32_768)?;
            let (_, other, _) = read(lab, &[], 32_768)?;
            expect(one.data == other.data, "the same data", || "other data".to_owned())
        }).tcp(),
    Check::must(DataIn, "underflow", "RFC 7143 §11.4.5, SAM-5",
        "A read that moves less than the Expected Data Transfer Length says by how much: U=1 and the Residual Count.",
        RESIDUAL,
        |lab| {
            let (mut conn, unit) = ready(lab, &[])?;
            let done = conn.run(&Command { edtl: Some(unit.block_len * 3), ..Command::reading(&read10(0, 1), unit.block_len) })?;
            underflow(&done, unit.block_len * 2)
        }),
    Check::must(DataIn, "underflow-of-inquiry", "RFC 7143 §11.4.5, SPC-4 §4.3.5.6",
        "INQUIRY data shorter than the Expected Data Transfer Length leaves a residual of the difference.",
        RESIDUAL,
        |lab| {
            let mut conn = lab.ready(&[])?;
            let done = conn.run(&Command::reading(&inquiry(None, 36), 255))?.good("INQUIRY")?;
            underflow(&done, 255 - 36)
        }),
    Check::must(DataIn, "overflow", "RFC 7143 §11.4.5, §11.3.4",
        "A read of more than the Expected Data Transfer Length moves no more than that, and says how much is missing: O=1 and the Residual Count.",
        "What goes beyond lands in memory that the initiator uses for something else.",
        |lab| {
            let (mut conn, unit) = ready(lab, &[])?;
            let done = conn.run(&Command::reading(&read10(0, 3), unit.block_len))?;
            expect(done.beyond == 0, "nothing beyond the Expected Data Transfer Length", || format!("{} bytes beyond it", done.beyond))?;
            overflow(&done, unit.block_len * 2)
        }),
    Check::must(DataIn, "overflow-of-nothing-expected", "RFC 7143 §11.4.5, §11.3.4",
        "A read with an Expected Data Transfer Length of 0 sends no data.",
        "An initiator that expects nothing has no buffer.",
        |lab| {
            let (mut conn, unit) = ready(lab, &[])?;
            let done = conn.run(&Command::reading(&read10(0, 1), 0))?;
            let sent: usize = done.of(Opcode::DataIn).iter().map(|pdu| pdu.data.len()).sum();
            expect(sent == 0, "no data", || format!("{sent} bytes"))?;
            if done.is_good() { overflow(&done, unit.block_len) } else { Ok(()) }
        }),
    Check::must(DataIn, "nothing-to-read", "RFC 7143 §11.4.5, SBC-3 §5.8",
        "READ (10) of 0 blocks ends with status GOOD and no data.",
        "It is no error, and in READ (6) alone 0 means 256.",
        |lab| {
            let mut conn = lab.ready(&[])?;
            let done = conn.run(&Command::new(&read10(0, 0)))?.good("READ (10) of 0 blocks")?;
            expect(done.data.is_empty() && !done.overflow, "no data and no residual", || done.residual_told())
        }),
    Check::must(DataIn, "segments-fit-the-initiator", "RFC 7143 §13.12, §11.7",
        "No Data-In is longer than the initiator's MaxRecvDataSegmentLength.",
        FIT,
        |lab| {
            for limit in ["512", "1024", "4096", "8192"] {
                let (conn, done, _) = read(lab, &[("MaxRecvDataSegmentLength", limit)], 32_768)?;
                let longest = done.pdus.iter().map(|pdu| pdu.data.len()).max().unwrap_or(0);
                expect(longest <= limit.parse().unwrap_or(0), format!("at most {limit} bytes"), || format!("{longest} bytes"))?;
                drop(conn);
            }
            Ok(())
        }).tcp(),
    Check::must(DataIn, "segments-fit-an-odd-limit", "RFC 7143 §13.12, §11.7",
        "A MaxRecvDataSegmentLength that is no power of two (1000) is kept as well.",
        FIT,
        |lab| {
            let (_, done, bytes) = read(lab, &[("MaxRecvDataSegmentLength", "1000")], 32_768)?;
            let longest = done.pdus.iter().map(|pdu| pdu.data.len()).max().unwrap_or(0);
            expect(longest <= 1000, "at most 1000 bytes", || format!("{longest} bytes"))?;
            expect(done.data.len() as u32 == bytes, format!("{bytes} bytes in all"), || format!("{} bytes", done.data.len()))
        }).tcp(),
    Check::must(DataIn, "datasn-from-0-by-one", "RFC 7143 §11.7.5, §4.2.2.4",
        "The Data-In PDUs of a command have DataSN 0, 1, 2 and so on.",
        ORDER,
        |lab| {
            let (_, done, _) = read(lab, &[("MaxRecvDataSegmentLength", "1024")], 16_384)?;
            for (want, pdu) in done.of(Opcode::DataIn).iter().enumerate() {
                let got = pdu.word(36);
                expect(got == want as u32, format!("DataSN {want}"), || format!("DataSN {got}"))?;
            }
            Ok(())
        }).tcp(),
    Check::must(DataIn, "offsets-follow", "RFC 7143 §11.7.6, §13.18",
        "With DataPDUInOrder=Yes each Data-In's Buffer Offset is where the one before ended.",
        ORDER,
        |lab| {
            let (_, done, _) = read(lab, &[("MaxRecvDataSegmentLength", "1024")], 16_384)?;
            let mut want = 0;
            for pdu in done.of(Opcode::DataIn) {
                let got = pdu.word(40);
                expect(got == want, format!("Buffer Offset {want}"), || format!("Buffer Offset {got}"))?;
                want += pdu.data.len() as u32;
            }
            Ok(())
        }).tcp(),
    Check::must(DataIn, "sequences-fit-a-burst", "RFC 7143 §13.13, §11.7.1",
        "No Data-In sequence, up to its F bit, is longer than MaxBurstLength.",
        "The initiator's room for one sequence is that much.",
        |lab| {
            let keys = [("MaxRecvDataSegmentLength", "1024"), ("MaxBurstLength", "4096"), ("FirstBurstLength", "4096")];
            let (conn, done, _) = read(lab, &keys, 32_768)?;
            let burst = conn.number("MaxBurstLength", 262_144) as usize;
            let mut sequence = 0;
            for pdu in done.of(Opcode::DataIn) {
                sequence += pdu.data.len();
                expect(sequence <= burst, format!("at most {burst} bytes before F=1"), || format!("{sequence} bytes"))?;
                if pdu.bhs.is_final() {
                    sequence = 0;
                }
            }
            Ok(())
        }).tcp(),
    Check::must(DataIn, "last-is-final", "RFC 7143 §11.7.1",
        "The last Data-In of a command has F=1.",
        ORDER,
        |lab| {
            let (_, done, _) = read(lab, &[("MaxRecvDataSegmentLength", "1024")], 16_384)?;
            let last = done.of(Opcode::DataIn).last().map(|pdu| pdu.bhs.flags);
            match last {
                Some(flags) => expect(flags & 0x80 != 0, "F=1", || format!("flags {flags:#04x}")),
                None => not_applicable("no Data-In came"),
            }
        }).tcp(),
    Check::must(DataIn, "status-with-data", "RFC 7143 §11.7.3",
        "A Data-In that carries the status (S=1) is the last one, has F=1, and its status is no CHECK CONDITION.",
        "A CHECK CONDITION needs its sense data, and there is no room for both.",
        |lab| {
            let (_, done, _) = read(lab, &[("MaxRecvDataSegmentLength", "1024")], 16_384)?;
            let all = done.of(Opcode::DataIn);
            for (n, pdu) in all.iter().enumerate().filter(|(_, pdu)| pdu.bhs.flags & 1 != 0) {
                expect(n + 1 == all.len() && pdu.bhs.is_final(), "S=1 in the last Data-In only, with F=1", || pdu.bhs.to_string())?;
                let status = pdu.bhs.as_data_in().status;
                expect(status != CHECK_CONDITION, "no CHECK CONDITION", || "CHECK CONDITION".to_owned())?;
            }
            Ok(())
        }).tcp(),
    Check::must(DataIn, "expdatasn-counts", "RFC 7143 §11.4.8",
        "ExpDataSN of a SCSI Response is the number of Data-In and R2T PDUs that were sent for the command.",
        "At ErrorRecoveryLevel 1 the initiator asks for what it misses by that.",
        |lab| {
            let (mut conn, unit) = ready(lab, &[("MaxRecvDataSegmentLength", "512")])?;
            let mut seen = 0;
            // After a residual, or an error, many targets do not send the status in the last
            // Data-In.
            for command in [
                Command::reading(&read10(0, 8), unit.block_len * 8),
                Command { edtl: Some(unit.block_len * 16), ..Command::reading(&read10(0, 8), 0) },
                Command::reading(&[0xff; 6], 512),
                Command::new(&[0; 6]),
            ] {
                let done = conn.run(&command)?;
                if let Some(pdu) = done.of(Opcode::ScsiResponse).last() {
                    let (want, got) = (done.of(Opcode::DataIn).len() as u32, pdu.word(36));
                    expect(got == want, format!("ExpDataSN {want}"), || format!("ExpDataSN {got}"))?;
                    seen += 1;
                }
            }
            if seen == 0 { not_applicable("no SCSI Response came") } else { Ok(()) }
        }).tcp(),
    Check::must(DataIn, "no-tag-unless-asked-back", "RFC 7143 §11.7.4, §11.7.2",
        "At ErrorRecoveryLevel 0 a Data-In has A=0 and Target Transfer Tag ffffffffh.",
        "A tag asks for an acknowledgement that the initiator does not know at that level.",
        |lab| {
            let (_, done, _) = read(lab, &[("MaxRecvDataSegmentLength", "1024")], 16_384)?;
            for pdu in done.of(Opcode::DataIn) {
                let (flags, ttt) = (pdu.bhs.flags, pdu.word(20));
                expect(flags & 0x40 == 0, "A=0", || "A=1".to_owned())?;
                should(ttt == RESERVED_TAG, "Target Transfer Tag ffffffffh", || format!("Target Transfer Tag {ttt:08x}h"))?;
            }
            Ok(())
        }).tcp(),
    Check::must(DataIn, "padding", "RFC 7143 §11.2.1.6, §11.1",
        "Data whose length is no multiple of four is followed by padding on the wire, which is not counted.",
        "A target that leaves it away loses its initiator's place in the stream.",
        |lab| {
            let mut conn = lab.ready(&[])?;
            for len in [5, 6, 7, 33] {
                let done = conn.run(&Command::reading(&inquiry(None, len), len.into()))?.good("INQUIRY")?;
                expect(done.data.len() == usize::from(len), format!("{len} bytes"), || format!("{} bytes", done.data.len()))?;
            }
            Ok(())
        }),
    Check::should(DataIn, "padding-is-zero", "RFC 7143 §11.1",
        "Padding bytes are zero.",
        "Other bytes are pieces of the target's memory, or of other people's data.",
        |lab| {
            let mut conn = lab.ready(&[])?;
            for len in [5, 6, 7] {
                let done = conn.run(&Command::reading(&inquiry(None, len), len.into()))?;
                expect(done.pdus.iter().all(|pdu| pdu.padding_is_zero), "zeros", || "other bytes".to_owned())?;
            }
            Ok(())
        }).tcp(),
    Check::must(DataIn, "beyond-the-end", "RFC 7143 §11.4.7, SBC-3 §4.6",
        "A read beyond the last block ends with CHECK CONDITION, LOGICAL BLOCK ADDRESS OUT OF RANGE.",
        "A host that sees GOOD believes in blocks that are not there.",
        |lab| {
            let (mut conn, unit) = ready(lab, &[])?;
            let Ok(last) = u32::try_from(unit.blocks) else {
                return not_applicable("the unit is larger than READ (10) can reach");
            };
            let done = conn.run(&Command::reading(&read10(last - 1, 2), unit.block_len * 2))?;
            expect(done.sense_code() == Some((5, 0x21, 0)), "CHECK CONDITION, sense key 0x5, code 21h/00h", || done.told())
        }),
    Check::must(DataIn, "unknown-command", "SPC-4 §4.2, RFC 7143 §11.4.7",
        "A command that the unit does not know ends with CHECK CONDITION, INVALID COMMAND OPERATION CODE.",
        SENSE,
        |lab| {
            let mut conn = lab.ready(&[])?;
            let done = conn.run(&Command::new(&[0xff; 6]))?;
            expect(done.sense_code() == Some((5, 0x20, 0)), "CHECK CONDITION, sense key 0x5, code 20h/00h", || done.told())
        }),
    Check::must(DataIn, "sense-comes-along", "RFC 7143 §11.4.7.2, SAM-5 §5.13",
        "A CHECK CONDITION brings its sense data in the SCSI Response, at least 8 bytes, behind their length.",
        SENSE,
        |lab| {
            let mut conn = lab.ready(&[])?;
            let done = conn.run(&Command::new(&[0xff; 6]))?;
            expect(done.status == CHECK_CONDITION, "CHECK CONDITION", || done.told())?;
            let data = done.pdus.last().map_or(0, |pdu| pdu.data.len());
            expect(done.sense.len() >= 8 && data == done.sense.len() + 2, "SenseLength, and as many bytes of sense data, 8 or more", || {
                format!("a data segment of {data} bytes with {} of sense data", done.sense.len())
            })
        }),
    Check::must(DataIn, "residual-of-a-failed-read", "RFC 7143 §11.4.5",
        "A read that fails before any data says that all of it is missing, or says nothing of residuals, and never that none is.",
        RESIDUAL,
        |lab| {
            let mut conn = lab.ready(&[])?;
            let done = conn.run(&Command::reading(&[0xff; 6], 4096))?;
            expect(done.status == CHECK_CONDITION, "CHECK CONDITION", || done.told())?;
            let told = !done.underflow || done.residual == 4096;
            expect(told && !done.overflow, "an underflow of 4096 bytes", || done.residual_told())?;
            should(done.underflow, "an underflow of 4096 bytes", || done.residual_told())
        }),
    Check::must(DataIn, "unit-that-is-not-there", "SPC-4 §6.6.2, SAM-5 §4.7",
        "INQUIRY to a unit that is not there answers with peripheral qualifier 011b, other commands with LOGICAL UNIT NOT SUPPORTED.",
        "Hosts look for units so; an error in the place of an answer stops the search.",
        |lab| {
            let mut conn = lab.ready(&[])?;
            let Some(lun) = absent(&mut conn)? else {
                return not_applicable("no number was found that no unit has");
            };
            let done = conn.run(&Command::reading(&inquiry(None, 36), 36).at(lun))?.good("INQUIRY")?;
            let first = done.data.first().copied().unwrap_or(0);
            expect(first == 0x7f, "peripheral qualifier 011b, type 1fh", || format!("first byte {first:#04x}"))?;
            let done = conn.run(&Command::new(&[0; 6]).at(lun))?;
            expect(done.sense_code() == Some((5, 0x25, 0)), "CHECK CONDITION, sense key 0x5, code 25h/00h", || done.told())
        }),
    Check::must(DataIn, "many-reads-at-once", "RFC 7143 §11.7, §4.2.2",
        "Sixteen reads at once, of different blocks, each bring their own data.",
        ORDER,
        |lab| {
            let (mut conn, unit) = ready(lab, &[])?;
            let singles: Vec<Vec<u8>> = (0..16)
                .map(|n| conn.run(&Command::reading(&read10(n, 1), unit.block_len)).map(|done| done.data))
                .collect::<Result<_, _>>()?;
            let room = conn.max_cmd_sn.wrapping_sub(conn.cmd_sn).wrapping_add(1).min(16);
            let tasks = (0..room)
                .map(|n| conn.start(&Command::reading(&read10(n, 1), unit.block_len)))
                .collect::<Result<Vec<_>, _>>()?;
            for (task, want) in tasks.iter().zip(&singles) {
                let done = conn.finish_task(task)?.good("READ (10)")?;
                expect(done.data == *want, "the block's data", || "other data".to_owned())?;
            }
            Ok(())
        }),
];

fn ready(lab: &Lab, keys: &[(&str, &str)]) -> Verdict<(Conn, Unit)> {
    let mut conn = lab.ready(keys)?;
    let unit = lab.unit(&mut conn)?;
    Ok((conn, unit))
}

/// Reads `bytes` from the first block on; also returns the expected number of bytes.
fn read(lab: &Lab, keys: &[(&str, &str)], bytes: u32) -> Verdict<(Conn, Done, u32)> {
    let (mut conn, unit) = ready(lab, keys)?;
    let blocks = bytes.div_ceil(unit.block_len);
    let len = blocks * unit.block_len;
    let done = conn.run(&Command::reading(&read10(0, blocks as u16), len))?;
    Ok((conn, done.good("READ (10)")?, len))
}

fn underflow(done: &Done, bytes: u32) -> Verdict {
    let right = done.underflow && !done.overflow && done.residual == bytes;
    expect(right, format!("an underflow of {bytes} bytes"), || {
        format!("{}, {}", done.told(), done.residual_told())
    })
}

fn overflow(done: &Done, bytes: u32) -> Verdict {
    if !done.is_good() {
        // SPC lets a target refuse a read beyond the expected length.
        return should(false, format!("status GOOD and an overflow of {bytes} bytes"), || done.told());
    }
    let right = done.overflow && !done.underflow && done.residual == bytes;
    expect(right, format!("an overflow of {bytes} bytes"), || {
        format!("{}, {}", done.told(), done.residual_told())
    })
}

/// A LUN that no unit of the target has, according to REPORT LUNS.
pub(super) fn absent(conn: &mut Conn) -> Verdict<Option<Lun>> {
    let report = Command::reading(&[0xa0, 0, 0, 0, 0, 0, 0, 0, 0x10, 0, 0, 0], 4096);
    let done = setup(conn.run(&report), "to a list of the target's units")?;
    let units: Vec<&[u8]> = done.data.get(8..).unwrap_or_default().chunks_exact(8).collect();
    Ok((1..256).rev().filter_map(Lun::new).find(|lun| !units.contains(&&lun.0[..])))
}
