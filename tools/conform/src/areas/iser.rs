//! iSER (RFC 7145): its keys, and data transfer by RDMA.

use iscsi::pdu::{Opcode, U32};
use iser::{Control, Header, Remote};

use crate::check::Area::Iser;
use crate::check::Check;
use crate::conn::{Conn, Ending};
use crate::finding::{Verdict, expect, not_applicable, should, wrong};
use crate::iser::PATTERN;
use crate::lab::Lab;
use crate::login::OPERATIONAL;
use crate::scsi::{Command, inquiry, read10};

const KEYS: &str = "Both sides compute the result from offer and answer; where the answer breaks the rule, they end with different ones.";
const PLACE: &str =
    "The target writes to the initiator's memory by itself: a byte too many is in somebody else's data.";

pub(super) const CHECKS: &[Check] = &[
    Check::must(Iser, "extensions", "RFC 7145 §6.3",
        "RDMAExtensions=Yes, on an RDMA connection, is answered by Yes.",
        "Without it there is no iSER session.",
        |lab| {
            let mut conn = lab.operational()?;
            let answer = conn.login_step(OPERATIONAL, None, &[("RDMAExtensions", "Yes")])?;
            expect(answer.get("RDMAExtensions") == Some("Yes"), "RDMAExtensions=Yes", || answer.told())
        }).iser(),
    Check::must(Iser, "target-segment", "RFC 7145 §6.4",
        "TargetRecvDataSegmentLength=8192 is answered by a number from 512 to 8192: the result is the minimum.",
        KEYS,
        |lab| least(lab, "TargetRecvDataSegmentLength")).iser(),
    Check::must(Iser, "initiator-segment", "RFC 7145 §6.5",
        "InitiatorRecvDataSegmentLength=8192 is answered by a number from 512 to 8192: the result is the minimum.",
        KEYS,
        |lab| least(lab, "InitiatorRecvDataSegmentLength")).iser(),
    Check::must(Iser, "no-digests", "RFC 7145 §6.1",
        "Digests are not agreed on over iSER: CRC32C,None is answered by None, or by Reject.",
        "RDMA has integrity checks of its own, and data has no PDU to hold a digest.",
        |lab| {
            let mut conn = lab.operational()?;
            let keys = [("RDMAExtensions", "Yes"), ("HeaderDigest", "CRC32C,None"), ("DataDigest", "CRC32C,None")];
            let answer = conn.login_step(OPERATIONAL, None, &keys)?;
            for key in ["HeaderDigest", "DataDigest"] {
                expect(answer.get(key) != Some("CRC32C"), format!("{key}=None"), || answer.told())?;
            }
            Ok(())
        }).iser(),
    Check::must(Iser, "no-markers", "RFC 7145 §6.2",
        "Markers are not agreed on over iSER.",
        KEYS,
        |lab| {
            let mut conn = lab.operational()?;
            let answer = conn.login_step(OPERATIONAL, None, &[("RDMAExtensions", "Yes"), ("OFMarker", "Yes")])?;
            expect(answer.get("OFMarker") != Some("Yes"), "OFMarker=No", || answer.told())
        }).iser(),
    Check::must(Iser, "reads-of-any-length", "RFC 7145 §7.3.5, §7.3.3",
        "Reads of 1 block to 1 MiB land whole in the advertised buffer, without any SCSI Data-In PDU.",
        PLACE,
        |lab| {
            let mut conn = lab.ready(&[])?;
            let unit = lab.unit(&mut conn)?;
            for bytes in [1, 4096, 65_536, 262_144, 1 << 20] {
                let blocks = u32::div_ceil(bytes, unit.block_len);
                let done = conn.run(&Command::reading(&read10(0, blocks as u16), blocks * unit.block_len))?.good("READ (10)")?;
                expect(done.of(Opcode::DataIn).is_empty(), "no Data-In", || "a Data-In".to_owned())?;
                expect(done.data.len() as u32 == blocks * unit.block_len, "all data", || format!("{} bytes", done.data.len()))?;
            }
            // The same block, alone and within a longer read.
            let one = conn.run(&Command::reading(&read10(1, 1), unit.block_len))?;
            let two = conn.run(&Command::reading(&read10(0, 2), unit.block_len * 2))?;
            expect(two.data.ends_with(&one.data), "the same data", || "other data".to_owned())
        }).iser(),
    Check::must(Iser, "nothing-beyond-the-data", "RFC 7145 §7.3.5, RFC 7143 §11.4.5",
        "A read shorter than its buffer leaves the rest of the buffer as it was.",
        PLACE,
        |lab| {
            let mut conn = lab.ready(&[])?;
            let (itt, sink) = read_into(&mut conn, &inquiry(None, 36), 4096, 4096)?;
            conn.answer(Opcode::ScsiResponse, itt)?;
            let memory = conn.iser().map(|iser| iser.withdraw(sink).0).unwrap_or_default();
            let touched = memory.get(36..).unwrap_or_default().iter().filter(|byte| **byte != PATTERN).count();
            expect(touched == 0, "36 bytes written", || format!("{touched} bytes beyond them"))
        }).iser(),
    Check::must(Iser, "nothing-beyond-what-is-expected", "RFC 7145 §7.3.5, RFC 7143 §11.3.4",
        "A read of more than the Expected Data Transfer Length leaves the buffer behind that length as it was.",
        PLACE,
        |lab| {
            let mut conn = lab.ready(&[])?;
            let unit = lab.unit(&mut conn)?;
            let (expected, len) = (unit.block_len, unit.block_len as usize * 8);
            let (itt, sink) = read_into(&mut conn, &read10(0, 8), expected, len)?;
            conn.answer(Opcode::ScsiResponse, itt)?;
            let memory = conn.iser().map(|iser| iser.withdraw(sink).0).unwrap_or_default();
            let touched = memory.get(expected as usize..).unwrap_or_default().iter().filter(|byte| **byte != PATTERN).count();
            expect(touched == 0, format!("{expected} bytes written"), || format!("{touched} bytes beyond them"))
        }).iser(),
    Check::must(Iser, "other-memory-is-left-alone", "RFC 7145 §7.3.5, RFC 5042 §6",
        "Memory that was advertised for no command is neither written nor invalidated.",
        PLACE,
        |lab| {
            let mut conn = lab.ready(&[])?;
            let unit = lab.unit(&mut conn)?;
            let guard = match conn.iser().map(|iser| iser.expose_sink(65_536)) {
                Some(Ok(guard)) => guard,
                _ => return not_applicable("no memory could be exposed"),
            };
            for _ in 0..8 {
                conn.run(&Command::reading(&read10(0, 8), unit.block_len * 8))?.good("READ (10)")?;
            }
            let (memory, invalid) = conn.iser().map(|iser| iser.withdraw(guard)).unwrap_or_default();
            expect(!invalid, "the STag as it was", || "it was invalidated".to_owned())?;
            expect(memory.iter().all(|byte| *byte == PATTERN), "the memory as it was", || "it was written to".to_owned())
        }).iser(),
    Check::must(Iser, "invalidates-its-own-tags", "RFC 7145 §7.3.2, §9.2",
        "An STag that a response invalidates is one that its own command advertised.",
        "Another command's data, on its way, would end the connection.",
        |lab| {
            let mut conn = lab.ready(&[])?;
            let (a, first) = read_into(&mut conn, &inquiry(None, 36), 36, 64)?;
            let (b, second) = read_into(&mut conn, &inquiry(None, 36), 36, 64)?;
            let mut any = false;
            for (itt, own) in [(a, first), (b, second)] {
                let pdu = conn.answer(Opcode::ScsiResponse, itt)?;
                if let Some(stag) = pdu.invalidated {
                    any = true;
                    expect(stag == own.0, format!("STag {:#010x}", own.0), || format!("STag {stag:#010x}"))?;
                }
            }
            for stag in [first, second] {
                conn.iser().map(|iser| iser.withdraw(stag));
            }
            if any { Ok(()) } else { not_applicable("the target invalidates no STag") }
        }).iser(),
    Check::must(Iser, "writes-of-any-length", "RFC 7145 §7.3.6, §7.3.3",
        "The data of writes of 1 block to 256 KiB is fetched by RDMA Read, without any R2T PDU, and arrives whole.",
        "What the unit holds must be what the initiator had.",
        |lab| {
            let mut conn = lab.ready(&[])?;
            for bytes in [1, 4096, 65_536, 262_144] {
                let mut out = lab.outgoing(&mut conn, bytes)?;
                out.command.unsolicited = false;
                let done = conn.run(&out.command)?.good("the write")?;
                expect(done.of(Opcode::ReadyToTransfer).is_empty(), "no R2T", || "an R2T".to_owned())?;
                lab.confirm(&mut conn, &out)?;
            }
            Ok(())
        }).iser(),
    Check::must(Iser, "immediate-then-fetched", "RFC 7145 §7.3.1, §9.2",
        "After immediate data the target fetches the rest from the advertised offset on, which already counts what was sent.",
        "Each side has to count the immediate data once.",
        |lab| {
            let mut conn = lab.ready(&[("ImmediateData", "Yes"), ("FirstBurstLength", "8192")])?;
            if !conn.flag("ImmediateData", true) {
                return not_applicable("the target answers ImmediateData=No");
            }
            let out = lab.outgoing(&mut conn, 65_536)?;
            conn.run(&out.command)?.good("the write")?;
            lab.confirm(&mut conn, &out)
        }).iser(),
    Check::must(Iser, "read-without-a-buffer", "RFC 7145 §7.3.1, §10.1.3",
        "A read that advertises no buffer brings no data, and the target lives on.",
        "There is nowhere to write to: STag 0 is not the initiator's memory.",
        |lab| {
            let mut conn = lab.ready(&[])?;
            let command = Command::reading(&inquiry(None, 36), 36);
            let mut header = conn.command_header(&command);
            header.cmd_sn = U32::new(conn.take_cmd_sn());
            conn.post_with(Control::default(), header, &[], &[])?;
            let itt = header.itt.get();
            match conn.outcome(|pdu| pdu.itt() == itt || pdu.is(Opcode::Reject)) {
                Ending::Pdu(pdu) if pdu.is(Opcode::ScsiResponse) => {
                    let good = pdu.bhs.as_scsi_response().status == 0 && pdu.word(44) != 36;
                    should(!good, "an error, or a residual of all data", || pdu.bhs.to_string())?;
                }
                Ending::Silent => return wrong("no answer, and the connection stays open", "a status, a Reject, or the end of the connection"),
                Ending::Pdu(_) | Ending::Closed => conn.is_full_feature = false,
            }
            lab.try_open(&lab.normal())?.settle()
        }).iser(),
    Check::must(Iser, "answers-are-control-messages", "RFC 7145 §9.2, §7.1",
        "The target's messages have an iSER header of type control, with neither a read nor a write STag.",
        "Only initiators advertise.",
        |lab| {
            let mut conn = lab.ready(&[])?;
            let pdu = conn.ping(b"header")?;
            match pdu.header {
                Some(Header::Control(control)) => expect(control == Control::default(), "WSV=0 and RSV=0", || format!("{control:?}")),
                other => wrong(format!("{other:?}"), "an iSER header of type control"),
            }
        }).iser(),
];

fn least(lab: &Lab, key: &str) -> Verdict {
    let mut conn = lab.operational()?;
    let answer = conn.login_step(OPERATIONAL, None, &[("RDMAExtensions", "Yes"), (key, "8192")])?;
    let number = answer.get(key).and_then(iscsi::text::parse_number);
    expect(number.is_some_and(|n| (512..=8192).contains(&n)), "a number from 512 to 8192", || answer.told())
}

/// Sends a read of `expected` bytes with a buffer of `len`; returns its tag and the buffer's STag.
fn read_into(conn: &mut Conn, cdb: &[u8], expected: u32, len: usize) -> Verdict<(u32, rdma::Stag)> {
    let sink = match conn.iser().map(|iser| iser.expose_sink(len)) {
        Some(Ok(sink)) => sink,
        _ => return not_applicable("no memory could be exposed"),
    };
    let command = Command::reading(cdb, expected);
    let mut header = conn.command_header(&command);
    header.cmd_sn = U32::new(conn.take_cmd_sn());
    let control = Control { read: Some(Remote { stag: sink.0, offset: 0 }), ..Control::default() };
    conn.post_with(control, header, &[], &[])?;
    Ok((header.itt.get(), sink))
}
