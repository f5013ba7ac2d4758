//! Text requests in the full feature phase (RFC 7143 §6.4, §11.10, §11.11).

use iscsi::pdu::{Opcode, RESERVED_TAG, RejectReason, TextRequest, U32};

use crate::check::Area::Text;
use crate::check::Check;
use crate::conn::{Conn, Ending};
use crate::finding::{Verdict, expect, not_applicable, should, wrong};
use crate::pdu::Pdu;
use crate::scsi::{Command, read10};

const LIVE: &str = "Declarations change while a session lives: this is how.";
const PARTS: &str = "Text goes to and fro in parts, and only tags and bits keep the parts together.";

pub(super) const CHECKS: &[Check] = &[
    Check::must(Text, "unknown-key", "RFC 7143 §6.2, §6.4",
        "A key that the target does not know is answered by NotUnderstood in the full feature phase too.",
        "New keys come into use only because old targets answer them so.",
        |lab| {
            let mut conn = lab.session(&[])?;
            let answer = conn.text_step(&[("X-org.stag.conform", "1")])?;
            expect(answer.get("X-org.stag.conform") == Some("NotUnderstood"), "NotUnderstood", || pairs(&answer.pairs))
        }),
    Check::must(Text, "final-answer", "RFC 7143 §11.11.1, §11.11.4",
        "The response to a whole and final request has F=1, the request's Initiator Task Tag, and Target Transfer Tag ffffffffh.",
        PARTS,
        |lab| {
            let mut conn = lab.session(&[])?;
            let answer = conn.text_step(&[("X-org.stag.conform", "1")])?.last();
            let (flags, ttt) = (answer.bhs.flags, answer.word(20));
            expect(flags & 0xc0 == 0x80 && ttt == RESERVED_TAG, "F=1, C=0, Target Transfer Tag ffffffffh", || {
                format!("flags {flags:#04x}, Target Transfer Tag {ttt:08x}h")
            })
        }),
    Check::must(Text, "declares-again", "RFC 7143 §13.12, §6.4",
        "MaxRecvDataSegmentLength may be declared again in the full feature phase, and holds for what is sent from then on.",
        LIVE,
        |lab| {
            let mut conn = lab.ready(&[])?;
            let unit = lab.unit(&mut conn)?;
            conn.text_step(&[("MaxRecvDataSegmentLength", "512")])?;
            let blocks = (8192 / unit.block_len).max(1) as u16;
            let read = Command::reading(&read10(0, blocks), u32::from(blocks) * unit.block_len);
            let done = conn.run(&read)?.good("READ (10)")?;
            let longest = done.pdus.iter().map(|pdu| pdu.data.len()).max().unwrap_or(0);
            expect(longest <= 512, "data segments of at most 512 bytes", || format!("{longest} bytes"))
        }).tcp(),
    Check::must(Text, "leading-keys-are-over", "RFC 7143 §13, §6.4",
        "A key of the leading login (InitialR2T) cannot be negotiated in the full feature phase: Reject, or a refusal.",
        "Commands are on their way under what was agreed.",
        |lab| {
            let mut conn = lab.session(&[])?;
            match text(&mut conn, &[("InitialR2T", "No")], true)? {
                Ending::Closed => Ok(()),
                Ending::Pdu(pdu) if pdu.is(Opcode::Reject) => Ok(()),
                Ending::Pdu(pdu) => {
                    let told = String::from_utf8_lossy(&pdu.data).replace('\0', " ");
                    let declined = ["Reject", "NotUnderstood", "Irrelevant"].iter().any(|word| told.contains(word));
                    expect(declined || told.trim().is_empty(), "Reject", || told)
                }
                Ending::Silent => wrong("no answer", "Reject"),
            }
        }),
    Check::must(Text, "key-again", "RFC 7143 §6.4",
        "A key that comes again within one negotiation, in a second request too, is rejected: protocol error (04h).",
        "The two sides would mean different values by one key.",
        |lab| {
            for second in ["1024", "2048"] {
                let mut conn = lab.session(&[])?;
                let itt = conn.tag();
                let mut request = request(&conn, itt, RESERVED_TAG, 0);
                conn.post(request, b"MaxRecvDataSegmentLength=1024\0")?;
                let answer = conn.answer(Opcode::TextResponse, itt)?;
                (request.flags, request.ttt) = (0x80, U32::new(answer.word(20)));
                request.as_bhs_mut().lun = answer.bhs.lun();
                (request.cmd_sn, request.exp_stat_sn) = (U32::new(conn.cmd_sn), U32::new(conn.exp_stat_sn));
                conn.post(request, format!("MaxRecvDataSegmentLength={second}\0").as_bytes())?;
                match conn.outcome(|pdu: &Pdu| pdu.is(Opcode::Reject) || pdu.itt() == itt) {
                    Ending::Closed => should(false, "a Reject", || "the connection was closed".to_owned())?,
                    Ending::Silent => wrong("no answer", "a Reject")?,
                    Ending::Pdu(pdu) if !pdu.is(Opcode::Reject) => wrong(pdu.bhs.to_string(), "a Reject")?,
                    Ending::Pdu(pdu) => {
                        let reason = pdu.bhs.as_reject().reason_code();
                        should(reason == Some(RejectReason::ProtocolError), "reason 04h, protocol error", || {
                            format!("{reason:?}")
                        })?;
                    }
                }
            }
            Ok(())
        }).tcp(),
    Check::must(Text, "several-keys", "RFC 7143 §6.2, §6.4",
        "Each key of a request is answered, in one exchange.",
        LIVE,
        |lab| {
            let mut conn = lab.session(&[])?;
            let answer = conn.text_step(&[("X-org.stag.conform.a", "1"), ("X-org.stag.conform.b", "2"), ("X-org.stag.conform.c", "3")])?;
            let count = answer.pairs.iter().filter(|(_, value)| value == "NotUnderstood").count();
            expect(count == 3, "three answers", || pairs(&answer.pairs))
        }),
    Check::must(Text, "request-in-two-parts", "RFC 7143 §6.2, §11.10.2, §11.11.2",
        "A request whose C bit is set is answered by an empty response with F=0 and a Target Transfer Tag; the next part completes it.",
        PARTS,
        |lab| {
            let mut conn = lab.session(&[])?;
            let itt = conn.tag();
            let mut request = request(&conn, itt, RESERVED_TAG, 0x40);
            conn.post(request, b"X-org.stag.con")?;
            let part = conn.answer(Opcode::TextResponse, itt)?;
            let (flags, ttt) = (part.bhs.flags, part.word(20));
            expect(part.data.is_empty(), "an empty response", || format!("{} bytes of text", part.data.len()))?;
            expect(flags & 0x80 == 0 && ttt != RESERVED_TAG, "F=0 and a Target Transfer Tag", || {
                format!("flags {flags:#04x}, Target Transfer Tag {ttt:08x}h")
            })?;
            (request.flags, request.ttt) = (0x80, U32::new(ttt));
            request.as_bhs_mut().lun = part.bhs.lun();
            (request.cmd_sn, request.exp_stat_sn) = (U32::new(conn.cmd_sn), U32::new(conn.exp_stat_sn));
            conn.post(request, b"form=1\0")?;
            let whole = conn.answer(Opcode::TextResponse, itt)?;
            let told = String::from_utf8_lossy(&whole.data).into_owned();
            expect(told.contains("X-org.stag.conform=NotUnderstood"), "X-org.stag.conform=NotUnderstood", || told.replace('\0', " "))
        }),
    Check::must(Text, "not-final-unasked", "RFC 7143 §11.11.1",
        "A request with F=0 is answered with F=0 and a Target Transfer Tag: the initiator has more to say.",
        PARTS,
        |lab| {
            let mut conn = lab.session(&[])?;
            let itt = conn.tag();
            let request = request(&conn, itt, RESERVED_TAG, 0);
            conn.post(request, b"X-org.stag.conform=1\0")?;
            let answer = conn.answer(Opcode::TextResponse, itt)?;
            let (flags, ttt) = (answer.bhs.flags, answer.word(20));
            expect(flags & 0x80 == 0 && ttt != RESERVED_TAG, "F=0 and a Target Transfer Tag", || {
                format!("flags {flags:#04x}, Target Transfer Tag {ttt:08x}h")
            })
        }),
    Check::must(Text, "unknown-tag", "RFC 7143 §11.10.4, §11.17.1",
        "A request that goes on with a Target Transfer Tag that was never given is rejected.",
        "It belongs to nothing: answered, it would be taken for the beginning of something.",
        |lab| {
            let mut conn = lab.session(&[])?;
            let itt = conn.tag();
            let request = request(&conn, itt, 0x0bad_beef, 0x80);
            conn.post(request, b"X-org.stag.conform=1\0")?;
            match conn.outcome(|pdu| pdu.is(Opcode::Reject) || pdu.itt() == itt) {
                Ending::Closed => should(false, "a Reject", || "the connection was closed".to_owned()),
                Ending::Pdu(pdu) if pdu.is(Opcode::Reject) => Ok(()),
                Ending::Pdu(pdu) => wrong(pdu.bhs.to_string(), "a Reject"),
                Ending::Silent => wrong("no answer", "a Reject"),
            }
        }),
    Check::must(Text, "begins-anew", "RFC 7143 §11.10.4, §6.4",
        "A request with Target Transfer Tag ffffffffh begins a new exchange, also where one is not over.",
        "An initiator that gives a negotiation up must be able to begin another.",
        |lab| {
            let mut conn = lab.session(&[])?;
            let itt = conn.tag();
            let request = request(&conn, itt, RESERVED_TAG, 0x40);
            conn.post(request, b"X-org.stag.old=")?;
            conn.answer(Opcode::TextResponse, itt)?;
            let answer = conn.text_step(&[("X-org.stag.new", "1")])?;
            let told = pairs(&answer.pairs);
            expect(answer.get("X-org.stag.new") == Some("NotUnderstood") && answer.pairs.len() == 1, "an answer to the new request alone", || told)
        }),
    Check::must(Text, "answers-fit-the-initiator", "RFC 7143 §13.12, §11.11.2",
        "No Text Response is longer than the initiator's MaxRecvDataSegmentLength; a longer answer comes in parts.",
        "A data segment beyond what the initiator declared makes it drop the connection.",
        |lab| {
            let mut conn = lab.session(&[("MaxRecvDataSegmentLength", "512")])?;
            let names: Vec<String> = (0..40).map(|n| format!("X-org.stag.conform.a-key-with-a-name{n}")).collect();
            let keys: Vec<(&str, &str)> = names.iter().map(|name| (name.as_str(), "1")).collect();
            let answer = conn.text_step(&keys)?;
            let longest = answer.pdus.iter().map(|pdu| pdu.data.len()).max().unwrap_or(0);
            expect(longest <= 512, "at most 512 bytes", || format!("{longest} bytes"))?;
            expect(answer.pairs.len() == 40, "40 answers", || format!("{} answers", answer.pairs.len()))?;
            match answer.pdus.len() {
                1 => not_applicable("the answer fits one PDU"),
                _ => Ok(()),
            }
        }).tcp(),
    Check::must(Text, "in-its-turn", "RFC 7143 §11.10, §4.2.2.1",
        "A Text Request that is not immediate takes its turn by CmdSN and uses it up.",
        "Open initiators send it so.",
        |lab| {
            let mut conn = lab.session(&[])?;
            let (itt, number) = (conn.tag(), conn.take_cmd_sn());
            let mut request = request(&conn, itt, RESERVED_TAG, 0x80);
            request.as_bhs_mut().set_immediate(false);
            request.cmd_sn = U32::new(number);
            conn.post(request, b"X-org.stag.conform=1\0")?;
            let got = conn.answer(Opcode::TextResponse, itt)?.exp_cmd_sn();
            let want = number.wrapping_add(1);
            expect(got == want, format!("ExpCmdSN {want}"), || format!("ExpCmdSN {got}"))
        }),
];

fn pairs(pairs: &[(String, String)]) -> String {
    match pairs {
        [] => "no keys".to_owned(),
        pairs => pairs.iter().map(|(key, value)| format!("{key}={value}")).collect::<Vec<_>>().join(", "),
    }
}

fn request(conn: &Conn, itt: u32, ttt: u32, flags: u8) -> TextRequest {
    let mut request = TextRequest::new(itt, ttt);
    request.as_bhs_mut().set_immediate(true);
    request.flags = flags;
    (request.cmd_sn, request.exp_stat_sn) = (U32::new(conn.cmd_sn), U32::new(conn.exp_stat_sn));
    request
}

/// Sends one request; returns the result.
fn text(conn: &mut Conn, pairs: &[(&str, &str)], last: bool) -> Verdict<Ending> {
    let itt = conn.tag();
    let request = request(conn, itt, RESERVED_TAG, if last { 0x80 } else { 0 });
    conn.post(request, &crate::login::text(pairs))?;
    Ok(conn.outcome(|pdu: &Pdu| pdu.is(Opcode::Reject) || pdu.itt() == itt))
}
