//! Protocol violations (RFC 7143 §7.7, §7.13, §11.2, §11.17).

use iscsi::pdu::{Bhs, DataOut, LoginRequest, NopOut, Opcode, ScsiCommand, TaskAttribute, U24, U32};

use crate::check::Area::Protocol;
use crate::check::Check;
use crate::conn::{Conn, Ending, QUIET};
use crate::finding::{Verdict, expect, should, wrong};
use crate::lab::Lab;
use crate::pdu::Pdu;
use crate::scsi::{Command, inquiry};

const STRAY: &str = "PDUs that make no sense come from broken initiators and from attackers: they must not do anything, nor harm others.";
const FUTURE: &str =
    "Reserved bits get a meaning some day; targets of today have to get on with initiators of that day.";

pub(super) const CHECKS: &[Check] = &[
    Check::must(Protocol, "unknown-opcode", "RFC 7143 §11.17.1, §7.13",
        "A PDU of an opcode that does not exist is rejected, or costs its connection; other sessions live on.",
        STRAY, |lab| stray(lab, 0x1b)),
    Check::must(Protocol, "opcode-of-targets", "RFC 7143 §11.2.1.2, §7.13",
        "A PDU of an opcode that only targets send is rejected, or costs its connection.",
        STRAY, |lab| stray(lab, 0x21)),
    Check::must(Protocol, "private-opcode", "RFC 7143 §11.2.1.2, §11.17.1",
        "A PDU of a private opcode that the target does not know is rejected, or costs its connection.",
        STRAY, |lab| stray(lab, 0x1c)),
    Check::must(Protocol, "login-in-full-feature", "RFC 7143 §6.3, §7.13",
        "A Login Request in the full feature phase is rejected, or costs its connection.",
        "A session's names and rights are those of its login.",
        |lab| {
            let mut conn = lab.session(&[])?;
            let mut request = LoginRequest::new(0x4242, conn.isid, conn.tsih, conn.cid);
            request.flags = 0x87;
            (request.cmd_sn, request.exp_stat_sn) = (U32::new(conn.cmd_sn), U32::new(conn.exp_stat_sn));
            conn.post(request, b"InitiatorName=iqn.2026-01.org.stag:conform.other\0")?;
            match conn.outcome(|pdu| pdu.is(Opcode::LoginResponse) || pdu.is(Opcode::Reject)) {
                Ending::Closed => Ok(()),
                Ending::Pdu(pdu) if pdu.is(Opcode::LoginResponse) => {
                    let class = pdu.bhs.as_login_response().status_class;
                    expect(class != 0, "a Reject, or the end of the connection", || "a successful login".to_owned())
                }
                Ending::Pdu(_) => Ok(()),
                Ending::Silent => wrong("no answer, and the connection stays open", "a Reject, or the end of the connection"),
            }
        }),
    Check::must(Protocol, "reserved-bits-are-ignored", "RFC 7143 §11.1, §11.2",
        "Reserved bits that are set in a ping do not keep it from being answered.",
        FUTURE,
        |lab| {
            let mut conn = lab.session(&[])?;
            let itt = conn.tag();
            let mut ping = NopOut::ping(itt);
            ping.flags = 0xff;
            ping.reserved_2 = [0xff, 0xff];
            ping.reserved_32 = [0xff; 16];
            (ping.cmd_sn, ping.exp_stat_sn) = (U32::new(conn.cmd_sn), U32::new(conn.exp_stat_sn));
            conn.post(ping, b"bits")?;
            let answer = conn.answer(Opcode::NopIn, itt)?;
            expect(answer.data == b"bits", "the ping's data", || "other data".to_owned())
        }),
    Check::must(Protocol, "own-reserved-bits-are-zero", "RFC 7143 §11.1, §11.19",
        "Reserved bits of the target's NOP-In, SCSI Response and Text Response are zero.",
        FUTURE,
        |lab| {
            let mut conn = lab.ready(&[])?;
            let nop = conn.ping(b"bits")?;
            zero(&nop, &[2, 3, 36, 47])?;
            let done = conn.run(&Command::new(&[0xff; 6]))?;
            if let Some(pdu) = done.pdus.last().filter(|pdu| pdu.is(Opcode::ScsiResponse)) {
                zero(pdu, &[8, 15])?;
            }
            match conn.text_step(&[("X-org.stag.conform", "1")]) {
                Ok(answer) => zero(&answer.last(), &[2, 3, 36, 47]),
                // Another check tests whether the target answers texts.
                Err(_) => Ok(()),
            }
        }),
    Check::must(Protocol, "segment-too-long", "RFC 7143 §13.12, §7.7",
        "A data segment longer than the target's MaxRecvDataSegmentLength is not taken: a Reject, or the end of the connection.",
        "A buffer of the declared length is written past its end.",
        |lab| {
            let mut conn = lab.session(&[])?;
            let len = conn.target_segment() + 4;
            if len > 4 << 20 {
                return crate::finding::not_applicable("the target takes segments of more than 4 MiB");
            }
            let mut ping = NopOut::ping(0x4242);
            (ping.cmd_sn, ping.exp_stat_sn) = (U32::new(conn.cmd_sn), U32::new(conn.exp_stat_sn));
            // The target may close the connection before it has read everything.
            let sent = conn.post(ping, &vec![0x5a; len]);
            let ending = if sent.is_ok() { conn.outcome(|pdu| pdu.is(Opcode::NopIn) || pdu.is(Opcode::Reject)) } else { Ending::Closed };
            match ending {
                Ending::Pdu(pdu) if pdu.is(Opcode::NopIn) => wrong("the ping was answered", "a Reject, or the end of the connection"),
                Ending::Pdu(_) | Ending::Closed => others(lab),
                Ending::Silent => should(false, "a Reject, or the end of the connection", || "no answer".to_owned()),
            }
        }).tcp(),
    Check::must(Protocol, "unknown-ahs", "RFC 7143 §11.2.2.1, §7.7",
        "A command with an AHS of an unknown type is executed without it, refused or rejected, in good order.",
        STRAY,
        |lab| {
            let ahs = [0, 5, 0x3f, 0, 1, 2, 3, 4];
            with_ahs(lab, &ahs)
        }).tcp(),
    Check::must(Protocol, "ahs-longer-than-told", "RFC 7143 §11.2.2, §7.7",
        "A command whose AHSLength passes TotalAHSLength is refused or rejected, or costs its connection.",
        "What follows the header would be read as a part of it.",
        |lab| {
            let ahs = [0x0f, 0xff, 1, 0, 1, 2, 3, 4];
            with_ahs(lab, &ahs)
        }).tcp(),
    Check::must(Protocol, "ahs-of-no-length", "RFC 7143 §11.2.2, §7.7",
        "A command with an AHS of length 0 is refused or rejected, or costs its connection, at once.",
        "A loop over headers that does not get ahead never ends.",
        |lab| {
            let ahs = [0, 0, 0, 0, 0, 0, 0, 0];
            with_ahs(lab, &ahs)
        }).tcp(),
    Check::must(Protocol, "command-with-reserved-tag", "RFC 7143 §11.2.1.8",
        "A SCSI Command with the Initiator Task Tag ffffffffh, which names no task, does not take the target out of step.",
        STRAY,
        |lab| {
            let mut conn = lab.ready(&[])?;
            let mut header = ScsiCommand::new(u32::MAX, conn.lun, TaskAttribute::Simple, &[0; 6]);
            header.cmd_sn = U32::new(conn.cmd_sn);
            header.exp_stat_sn = U32::new(conn.exp_stat_sn);
            conn.post(header, &[])?;
            match conn.outcome(|pdu| pdu.is(Opcode::Reject) || pdu.is(Opcode::ScsiResponse)) {
                Ending::Pdu(pdu) => {
                    should(pdu.is(Opcode::Reject), "a Reject", || pdu.bhs.to_string())?;
                    others(lab)
                }
                Ending::Closed => others(lab),
                Ending::Silent => should(false, "a Reject", || "no answer".to_owned()),
            }
        }),
    Check::must(Protocol, "tag-in-use", "RFC 7143 §11.2.1.8, SAM-5 §5.10",
        "A command with the tag of one that is running does not end it with status GOOD and wrong data.",
        "Data of the one is given to the other.",
        |lab| {
            let (mut conn, task, r2t) = super::task::waiting(lab)?;
            let command = Command::reading(&inquiry(None, 36), 36);
            let mut header = conn.command_header(&command);
            header.itt = U32::new(task.itt);
            header.cmd_sn = U32::new(conn.take_cmd_sn());
            conn.start_as(header, &command)?;
            let _ = r2t;
            match conn.outcome(|pdu| pdu.itt() == task.itt || pdu.is(Opcode::Reject)) {
                Ending::Closed => {}
                Ending::Pdu(pdu) if pdu.is(Opcode::DataIn) => return should(false, "a Reject, or the end of one command", || pdu.bhs.to_string()),
                Ending::Pdu(_) => {}
                Ending::Silent => return should(false, "a Reject, or the end of one command", || "no answer".to_owned()),
            }
            conn.is_full_feature = false;
            others(lab)
        }).tcp(),
    Check::must(Protocol, "half-a-pdu", "RFC 7143 §7.14, §6.3.6",
        "A connection that ends in the middle of a PDU leaves other sessions as they are.",
        "Networks break connections at any byte.",
        |lab| {
            let mut witness = lab.ready(&[])?;
            for part in [1, 40, 48, 49, 55] {
                let mut conn = lab.session(&[])?;
                let mut ping = NopOut::ping(0x4242);
                (ping.cmd_sn, ping.exp_stat_sn) = (U32::new(conn.cmd_sn), U32::new(conn.exp_stat_sn));
                let bytes = conn.encode(ping, &[], b"halfway");
                conn.post_bytes(bytes.get(..part).unwrap_or_default())?;
                conn.is_full_feature = false;
            }
            witness.run(&Command::new(&[0; 6]))?.good("the other session's command").map(|_| ())
        }).tcp(),
    Check::must(Protocol, "pieces-of-pdus", "RFC 7143 §11.1",
        "PDUs are understood however TCP cuts the stream: byte by byte, and several at once.",
        "TCP promises the bytes in order and nothing about where they are cut.",
        |lab| {
            let mut conn = lab.session(&[])?;
            let mut stream = Vec::new();
            for n in 0..4 {
                let mut ping = NopOut::ping(0x4000 + n);
                (ping.cmd_sn, ping.exp_stat_sn) = (U32::new(conn.cmd_sn), U32::new(conn.exp_stat_sn));
                stream.extend(conn.encode(ping, &[], b"pieces!"));
            }
            let (whole, bits) = stream.split_at(112);
            conn.post_bytes(whole)?;
            for byte in bits.chunks(1) {
                conn.post_bytes(byte)?;
            }
            for n in 0..4 {
                let answer = conn.answer(Opcode::NopIn, 0x4000 + n)?;
                expect(answer.data == b"pieces!", "the ping's data", || "other data".to_owned())?;
            }
            Ok(())
        }).tcp(),
    Check::must(Protocol, "stray-pdus-of-all-kinds", "RFC 7143 §7.13, §11.2",
        "Stray PDUs of all opcodes, with all flags set, leave the target alive for others.",
        STRAY,
        |lab| {
            for code in [0x02, 0x04, 0x05, 0x06, 0x10] {
                let mut conn = lab.session(&[])?;
                let mut header: Bhs = DataOut::new(0x9999, 0x8888, conn.lun, 7, 0xffff_ff00).into();
                header.opcode_byte = 0x40 | code;
                header.flags = 0xff;
                conn.post(header, &[])?;
                // Accept any answer.
                conn.anything(QUIET, |_| true);
                conn.is_full_feature = false;
            }
            others(lab)
        }),
    Check::must(Protocol, "reject-has-no-tag", "RFC 7143 §11.17",
        "A Reject has the Initiator Task Tag ffffffffh, its own StatSN, and the rejected header as its data.",
        "Initiators find the PDU by its header; a tag would end a task of theirs.",
        |lab| {
            let mut conn = lab.session(&[])?;
            let want = conn.exp_stat_sn;
            let mut header: Bhs = NopOut::ping(0x4242).into();
            header.opcode_byte = 0x1b | 0x40;
            conn.post(header, &[])?;
            match conn.outcome(|pdu| pdu.is(Opcode::Reject)) {
                Ending::Pdu(pdu) => {
                    expect(pdu.itt() == u32::MAX, "Initiator Task Tag ffffffffh", || format!("{:08x}h", pdu.itt()))?;
                    expect(pdu.stat_sn() == want, format!("StatSN {want}"), || format!("StatSN {}", pdu.stat_sn()))?;
                    let same = pdu.data.get(16..20) == Some(&[0, 0, 0x42, 0x42][..]) && pdu.data.len() >= 48;
                    expect(same, "the header of the PDU", || format!("{} bytes", pdu.data.len()))
                }
                _ => crate::finding::not_applicable("the target closes the connection instead"),
            }
        }),
    Check::must(Protocol, "endless-segment", "RFC 7143 §7.5, §13.12",
        "A header that promises 16 MiB of data, which never come, harms nobody else.",
        "Whoever connects could hold the target's memory, or its attention.",
        |lab| {
            let mut witness = lab.ready(&[])?;
            let mut conn = lab.session(&[])?;
            let mut ping = NopOut::ping(0x4242);
            (ping.cmd_sn, ping.exp_stat_sn) = (U32::new(conn.cmd_sn), U32::new(conn.exp_stat_sn));
            let mut bytes = conn.encode(ping, &[], &[]);
            if let (Some(place), Some(most)) = (bytes.get_mut(5..8), U24::new(U24::MAX)) {
                place.copy_from_slice(&most.get().to_be_bytes()[1..]);
            }
            conn.post_bytes(&bytes)?;
            witness.run(&Command::new(&[0; 6]))?.good("the other session's command")?;
            conn.is_full_feature = false;
            Ok(())
        }).tcp(),
];

/// Fails unless a new session works.
fn others(lab: &Lab) -> Verdict {
    lab.try_open(&lab.normal())?.settle()
}

fn stray(lab: &Lab, code: u8) -> Verdict {
    let mut conn = lab.session(&[])?;
    let mut header: Bhs = NopOut::ping(0x4242).into();
    header.opcode_byte = code | 0x40;
    conn.post(header, &[])?;
    match conn.outcome(|pdu| pdu.itt() == 0x4242 || pdu.is(Opcode::Reject)) {
        Ending::Pdu(pdu) if pdu.is(Opcode::Reject) => others(lab),
        Ending::Pdu(pdu) => wrong(pdu.bhs.to_string(), "a Reject, or the end of the connection"),
        Ending::Closed => others(lab),
        Ending::Silent => {
            should(false, "a Reject", || "no answer".to_owned())?;
            others(lab)
        }
    }
}

fn with_ahs(lab: &Lab, ahs: &[u8]) -> Verdict {
    let mut conn: Conn = lab.ready(&[])?;
    let command = Command::new(&[0; 6]);
    let mut header = conn.command_header(&command);
    header.cmd_sn = U32::new(conn.cmd_sn);
    conn.post_with(iser::Control::default(), header, ahs, &[])?;
    let itt = header.itt.get();
    conn.is_full_feature = false;
    match conn.outcome(|pdu| pdu.itt() == itt || pdu.is(Opcode::Reject)) {
        Ending::Pdu(_) | Ending::Closed => others(lab),
        Ending::Silent => wrong(
            "no answer, and the connection stays open",
            "a status, a Reject, or the end of the connection",
        ),
    }
}

/// Fails unless these bytes of the header are zero.
fn zero(pdu: &Pdu, at: &[usize]) -> Verdict {
    for n in at {
        let byte = pdu.bhs.bytes().get(*n).copied().unwrap_or(0);
        expect(byte == 0, format!("byte {n} of the header 0"), || format!("{byte:#04x} in {}", pdu.bhs))?;
    }
    Ok(())
}
