//! Header and data digests (RFC 7143 §7.8, §11.2.3, §11.2.4, §13.1).

use iscsi::pdu::{NopOut, Opcode, U32};

use super::nop::sample;
use crate::check::Area::Digests;
use crate::check::Check;
use crate::conn::{Conn, Ending};
use crate::finding::{Verdict, expect, not_applicable, should, wrong};
use crate::lab::Lab;
use crate::scsi::{Command, read10};

const WHOLE: &str = "TCP's checksum misses one error in 65536, and nothing at all within a router's memory: digests are what is left.";
const BROKEN: &str = "A PDU whose digest is wrong says nothing that can be believed; executed, it writes broken data somewhere.";

const REJECT_DATA_DIGEST: u8 = 2;

pub(super) const CHECKS: &[Check] = &[
    Check::must(Digests, "header", "RFC 7143 §13.1, §11.2.3",
        "With HeaderDigest=CRC32C every PDU of the target's has the right header digest, and the initiator's are understood.",
        WHOLE, |lab| traffic(lab, true, false)).tcp(),
    Check::must(Digests, "data", "RFC 7143 §13.1, §11.2.4",
        "With DataDigest=CRC32C every data segment of the target's has the right digest, and the initiator's are understood.",
        WHOLE, |lab| traffic(lab, false, true)).tcp(),
    Check::must(Digests, "both", "RFC 7143 §13.1, §11.2.3, §11.2.4",
        "Header and data digests work together.",
        WHOLE, |lab| traffic(lab, true, true)).tcp(),
    Check::must(Digests, "padding-is-covered", "RFC 7143 §11.2.4",
        "The data digest covers the padding, and a PDU without data has none.",
        WHOLE,
        |lab| {
            let mut conn = with(lab, false, true)?;
            for len in [0, 1, 2, 3, 4, 5] {
                let answer = conn.ping(&sample(len))?;
                expect(answer.data_digest_right && answer.data == sample(len), format!("{len} bytes and their digest"), || {
                    format!("{} bytes, digest {}", answer.data.len(), if answer.data_digest_right { "right" } else { "wrong" })
                })?;
            }
            Ok(())
        }).tcp(),
    Check::must(Digests, "ahs-is-covered", "RFC 7143 §11.2.3, §11.2.2",
        "The header digest covers additional header segments: a command with one is understood.",
        "Commands of more than 16 bytes come with an AHS.",
        |lab| {
            let mut conn = with(lab, true, false)?;
            // A CDB of 32 bytes that no unit supports: the answer shows that the target decoded the
            // PDU.
            let mut cdb = vec![0x7f, 0, 0, 0, 0, 0, 0, 24];
            cdb.extend([0xff, 0xf0]);
            cdb.resize(32, 0);
            let task = conn.start(&Command::new(&cdb))?;
            match conn.outcome(|pdu| pdu.itt() == task.itt || pdu.is(Opcode::Reject)) {
                Ending::Pdu(pdu) if pdu.is(Opcode::ScsiResponse) => conn.ping(b"in step").map(|_| ()),
                Ending::Pdu(pdu) => {
                    conn.ping(b"in step")?;
                    not_applicable(format!("the target takes no AHS: a Reject, reason {}", pdu.reject_reason()))
                }
                Ending::Closed => wrong("the connection was closed", "a SCSI Response"),
                Ending::Silent => wrong("no answer", "a SCSI Response"),
            }
        }).tcp(),
    Check::must(Digests, "not-in-login", "RFC 7143 §11.2.3, §13.1",
        "PDUs of the login phase have no digests, not the last Login Response either.",
        "They begin with the full feature phase, and both sides must agree where.",
        |lab| {
            // A digest in the last response would be read as the next PDU's header.
            let mut conn = with(lab, true, true)?;
            conn.ping(b"first").map(|_| ())
        }).tcp(),
    Check::must(Digests, "long-reads-and-writes", "RFC 7143 §11.2.4, §11.7, §11.8",
        "Reads and writes of many PDUs have right digests throughout.",
        WHOLE,
        |lab| {
            let keys = [("HeaderDigest", "CRC32C"), ("DataDigest", "CRC32C"), ("MaxRecvDataSegmentLength", "1000")];
            let mut conn = digested(lab, &keys, true, true)?;
            let unit = lab.unit(&mut conn)?;
            let blocks = 65_536 / unit.block_len;
            let read = Command::reading(&read10(0, blocks as u16), blocks * unit.block_len);
            let done = conn.run(&read)?.good("READ (10)")?;
            expect(done.pdus.iter().all(|pdu| pdu.data_digest_right), "right data digests", || "a wrong one".to_owned())?;
            let mut out = lab.outgoing(&mut conn, 32_768)?;
            out.command.segment = Some(999);
            conn.run(&out.command)?.good("the write")?;
            lab.confirm(&mut conn, &out)
        }).tcp(),
    Check::must(Digests, "wrong-header-digest", "RFC 7143 §7.8",
        "A PDU with a wrong header digest is dropped in silence: it is neither executed nor answered.",
        BROKEN,
        |lab| {
            let mut conn = with(lab, true, false)?;
            let mut bytes = ping(&mut conn, b"");
            spoil(&mut bytes, 48);
            let itt = 0x4242;
            conn.post_bytes(&bytes)?;
            match conn.outcome(|pdu| pdu.itt() == itt || pdu.is(Opcode::Reject)) {
                Ending::Pdu(pdu) if pdu.is(Opcode::NopIn) => wrong("the ping was answered", "silence, or the end of the connection"),
                Ending::Pdu(pdu) => should(false, "silence, or the end of the connection", || format!("a Reject, reason {}", pdu.reject_reason())),
                Ending::Closed | Ending::Silent => {
                    conn.is_full_feature = false;
                    Ok(())
                }
            }
        }).tcp(),
    Check::must(Digests, "wrong-header-digest-of-a-write", "RFC 7143 §7.8",
        "A command with a wrong header digest is not executed.",
        BROKEN,
        |lab| {
            let mut conn = with(lab, true, false)?;
            let command = Command::new(&[0; 6]);
            let mut header = conn.command_header(&command);
            header.cmd_sn = U32::new(conn.cmd_sn);
            let mut bytes = conn.encode(header, &[], &[]);
            spoil(&mut bytes, 50);
            conn.post_bytes(&bytes)?;
            let itt = header.itt.get();
            conn.is_full_feature = false;
            match conn.outcome(|pdu| pdu.itt() == itt) {
                Ending::Pdu(pdu) => wrong(pdu.bhs.to_string(), "silence, or the end of the connection"),
                Ending::Closed | Ending::Silent => Ok(()),
            }
        }).tcp(),
    Check::must(Digests, "wrong-data-digest", "RFC 7143 §7.8, §11.17.1",
        "A PDU with a wrong data digest is answered by a Reject of reason Data-digest error (02h), and dropped.",
        "Its header is right, so the initiator can be told which PDU it was, and send it again.",
        |lab| {
            let mut conn = with(lab, false, true)?;
            let mut bytes = ping(&mut conn, b"data");
            spoil(&mut bytes, 52);
            conn.post_bytes(&bytes)?;
            rejected(&mut conn, 0x4242)
        }).tcp(),
    Check::must(Digests, "wrong-data-digest-of-a-write", "RFC 7143 §7.8, §11.17.1",
        "Immediate data with a wrong digest is never written: the write does not end with status GOOD.",
        BROKEN,
        |lab| {
            let mut conn = with(lab, false, true)?;
            if !conn.flag("ImmediateData", true) {
                return not_applicable("the target answers ImmediateData=No");
            }
            let out = lab.outgoing(&mut conn, 1)?;
            if out.command.out.len() > conn.target_segment() {
                return not_applicable("a block is longer than the target's MaxRecvDataSegmentLength");
            }
            let mut header = conn.command_header(&out.command);
            header.cmd_sn = U32::new(conn.cmd_sn);
            let mut bytes = conn.encode(header, &[], &out.command.out);
            // Corrupt a byte of the data: the digest is that of the correct data.
            if let Some(byte) = bytes.get_mut(48 + 100) {
                *byte ^= 1;
            }
            conn.post_bytes(&bytes)?;
            let itt = header.itt.get();
            conn.is_full_feature = false;
            match conn.outcome(|pdu| pdu.itt() == itt || pdu.is(Opcode::Reject)) {
                Ending::Pdu(pdu) if pdu.is(Opcode::ScsiResponse) => {
                    expect(pdu.bhs.as_scsi_response().status != 0, "a Reject, or any status but GOOD", || "status GOOD".to_owned())
                }
                Ending::Pdu(pdu) if pdu.is(Opcode::Reject) => {
                    let reason = pdu.bhs.as_reject().reason;
                    should(reason == REJECT_DATA_DIGEST, "reason 02h", || pdu.reject_reason())
                }
                Ending::Pdu(_) => Ok(()),
                Ending::Closed => should(false, "a Reject, reason 02h", || "the connection was closed".to_owned()),
                Ending::Silent => wrong("no answer, and the connection stays open", "a Reject, reason 02h"),
            }
        }).tcp(),
    Check::must(Digests, "reject-repeats-the-header", "RFC 7143 §11.17",
        "A Reject's data is the header of the PDU that it rejects.",
        "The initiator finds out by it which of its PDUs to send again.",
        |lab| {
            let mut conn = with(lab, false, true)?;
            let mut bytes = ping(&mut conn, b"data");
            let header = bytes.get(..48).unwrap_or_default().to_vec();
            spoil(&mut bytes, 52);
            conn.post_bytes(&bytes)?;
            match conn.outcome(|pdu| pdu.is(Opcode::Reject)) {
                Ending::Pdu(pdu) => expect(pdu.data.starts_with(&header), "the PDU's 48 bytes", || format!("{} other bytes", pdu.data.len())),
                _ => not_applicable("the target sends no Reject"),
            }
        }).tcp(),
];

/// A session with these digests, or not applicable.
pub(super) fn with(lab: &Lab, header: bool, data: bool) -> Verdict<Conn> {
    let choice = |on| if on { "CRC32C" } else { "None" };
    digested(lab, &[("HeaderDigest", choice(header)), ("DataDigest", choice(data))], header, data)
}

pub(super) fn digested(lab: &Lab, keys: &[(&str, &str)], header: bool, data: bool) -> Verdict<Conn> {
    let conn = lab.session(keys)?;
    for (key, on) in [("HeaderDigest", header), ("DataDigest", data)] {
        if on && conn.agreed(key) != Some("CRC32C") {
            return not_applicable(format!(
                "not offered: the target answers {key}={}",
                conn.agreed(key).unwrap_or("(nothing)")
            ));
        }
    }
    let mut conn = conn;
    crate::finding::setup(conn.settle(), "with a unit that is ready")?;
    Ok(conn)
}

fn traffic(lab: &Lab, header: bool, data: bool) -> Verdict {
    let mut conn = with(lab, header, data)?;
    let unit = lab.unit(&mut conn)?;
    conn.ping(&sample(100))?;
    let done = conn.run(&Command::reading(&read10(0, 8), unit.block_len * 8))?.good("READ (10)")?;
    expect(done.pdus.iter().all(|pdu| pdu.data_digest_right), "right data digests", || {
        "a wrong one".to_owned()
    })?;
    let done = conn.run(&Command::new(&[0xff; 6]))?;
    expect(done.pdus.iter().all(|pdu| pdu.data_digest_right), "right data digests", || {
        "a wrong one in sense data".to_owned()
    })?;
    let out = lab.outgoing(&mut conn, 4096)?;
    conn.run(&out.command)?.good("the write").map(|_| ())
}

/// The bytes of a ping with the tag 4242h.
fn ping(conn: &mut Conn, data: &[u8]) -> Vec<u8> {
    let mut ping = NopOut::ping(0x4242);
    (ping.cmd_sn, ping.exp_stat_sn) = (U32::new(conn.cmd_sn), U32::new(conn.exp_stat_sn));
    conn.encode(ping, &[], data)
}

fn spoil(bytes: &mut [u8], at: usize) {
    if let Some(byte) = bytes.get_mut(at) {
        *byte ^= 0x10;
    }
}

fn rejected(conn: &mut Conn, itt: u32) -> Verdict {
    match conn.outcome(|pdu| pdu.itt() == itt || pdu.is(Opcode::Reject)) {
        Ending::Pdu(pdu) if pdu.is(Opcode::Reject) => {
            expect(pdu.bhs.as_reject().reason == REJECT_DATA_DIGEST, "a Reject, reason 02h", || {
                format!("a Reject, reason {}", pdu.reject_reason())
            })
        }
        Ending::Pdu(_) => wrong("the PDU was answered", "a Reject, reason 02h"),
        Ending::Closed => {
            should(false, "a Reject, reason 02h", || "the connection was closed without one".to_owned())
        }
        Ending::Silent => wrong("no answer", "a Reject, reason 02h"),
    }
}
