//! SendTargets (RFC 7143 §13.3, appendix C).

use iscsi::discovery::{Record, TargetAddress, read_records};
use iscsi::name;
use iscsi::pdu::{LogoutReason, LogoutRequest, NopOut, Opcode, U32};

use crate::check::Area::Discovery;
use crate::check::Check;
use crate::conn::{Conn, Ending};
use crate::finding::{Verdict, expect, should, wrong};
use crate::lab::Lab;
use crate::login::Answer;
use crate::scsi::Command;

const FIND: &str = "It is how initiators find a target; what is listed wrongly cannot be mounted.";
const OWN: &str = "An initiator learns so, within a session, which other portals its target has.";

pub(super) const CHECKS: &[Check] = &[
    Check::must(
        Discovery,
        "all",
        "RFC 7143 §13.3, appendix C",
        "SendTargets=All in a discovery session lists this target, which this initiator may log in to.",
        FIND,
        |lab| {
            let mut conn = lab.open(&lab.discovery())?;
            let (_, records) = targets(&mut conn, "All")?;
            listed(lab, &records)
        },
    ),
    Check::must(
        Discovery,
        "names-are-names",
        "RFC 7143 §4.2.7, appendix C",
        "Every TargetName in the list is an iSCSI name of at most 223 bytes, and none is there twice.",
        FIND,
        |lab| {
            let mut conn = lab.open(&lab.discovery())?;
            let (_, records) = targets(&mut conn, "All")?;
            for (n, record) in records.iter().enumerate() {
                let right = name::check(&record.name);
                expect(right.is_ok(), "an iSCSI name", || format!("TargetName={}", record.name))?;
                let twice = records.iter().take(n).any(|other| other.name == record.name);
                expect(!twice, "each target once", || format!("{} twice", record.name))?;
            }
            Ok(())
        },
    ),
    Check::must(
        Discovery,
        "addresses",
        "RFC 7143 §13.8, appendix C",
        "Every TargetAddress is an address of the form host[:port],portal-group-tag.",
        FIND,
        |lab| {
            let mut conn = lab.open(&lab.discovery())?;
            let answer = conn.text_step(&[("SendTargets", "All")])?;
            for (_, value) in answer.pairs.iter().filter(|(key, _)| key == "TargetAddress") {
                let address = TargetAddress::parse(value);
                let tagged = address.is_some_and(|address| address.portal_group_tag.is_some());
                expect(tagged, "host[:port],tag", || format!("TargetAddress={value}"))?;
            }
            Ok(())
        },
    ),
    Check::must(
        Discovery,
        "name-before-addresses",
        "RFC 7143 appendix C",
        "Each target's addresses follow its TargetName.",
        FIND,
        |lab| {
            let mut conn = lab.open(&lab.discovery())?;
            let answer = conn.text_step(&[("SendTargets", "All")])?;
            let first = answer.pairs.first().map(|(key, _)| key.as_str());
            expect(matches!(first, None | Some("TargetName")), "TargetName first", || answer.told())
        },
    ),
    Check::must(
        Discovery,
        "group-tag-as-in-login",
        "RFC 7143 §13.9, appendix C",
        "The portal group tag of a listed address of this portal is the one that a login there tells.",
        "Initiators decide by it which connections may belong to one session.",
        |lab| {
            let (_, answer) = lab.secured(&lab.normal())?;
            let (mut first, _) = (answer.get("TargetPortalGroupTag").map(str::to_owned), ());
            if first.is_none() {
                let mut conn = lab.connect()?;
                let login = lab.normal();
                let mut names = lab.names(&login);
                names.push(("AuthMethod", if lab.options.account.is_some() { "CHAP" } else { "None" }));
                first = conn.login_step(0, None, &names)?.get("TargetPortalGroupTag").map(str::to_owned);
            }
            let tag = first.and_then(|tag| tag.parse::<u16>().ok());
            let mut conn = lab.open(&lab.discovery())?;
            let (_, records) = targets(&mut conn, "All")?;
            let here = records.iter().find(|record| name::eq(&record.name, &lab.options.target));
            let tags: Vec<u16> =
                here.into_iter().flat_map(|r| &r.addresses).filter_map(|a| a.portal_group_tag).collect();
            if tags.is_empty() {
                return crate::finding::not_applicable(
                    "the list names no address for this target: the one that was asked holds",
                );
            }
            expect(
                tag.is_some_and(|tag| tags.contains(&tag)),
                format!("one of {tags:?} in the login"),
                || format!("{tag:?}"),
            )
        },
    ),
    Check::must(
        Discovery,
        "by-name",
        "RFC 7143 §13.3, appendix C",
        "SendTargets=NAME in a discovery session lists that target and no other.",
        FIND,
        |lab| {
            let mut conn = lab.open(&lab.discovery())?;
            let (_, records) = targets(&mut conn, &lab.options.target)?;
            listed(lab, &records)?;
            expect(records.len() == 1, "one target", || format!("{} targets", records.len()))
        },
    ),
    Check::must(
        Discovery,
        "unknown-name",
        "RFC 7143 §13.3, appendix C",
        "SendTargets of a name that is not there lists nothing.",
        "An initiator would take another target for the one that it looks for.",
        |lab| {
            let mut conn = lab.open(&lab.discovery())?;
            let (answer, records) = targets(&mut conn, "iqn.2026-01.org.stag:conform.nobody-has-this-name")?;
            expect(records.is_empty(), "no target", || answer.told())
        },
    ),
    Check::must(
        Discovery,
        "no-commands",
        "RFC 7143 §4.3, §11.17.1",
        "A SCSI Command in a discovery session is not executed: a Reject, or the end of the connection.",
        "Discovery sessions often need no authentication; nor do they have a unit.",
        |lab| {
            let mut conn = lab.open(&lab.discovery())?;
            let command = Command::new(&[0; 6]);
            let task = conn.start(&command)?;
            match conn.outcome(|pdu| pdu.itt() == task.itt || pdu.is(Opcode::Reject)) {
                Ending::Closed => Ok(()),
                Ending::Pdu(pdu) if pdu.is(Opcode::Reject) => Ok(()),
                Ending::Pdu(pdu) => wrong(pdu.bhs.to_string(), "a Reject, or the end of the connection"),
                Ending::Silent => should(false, "a Reject", || "no answer at all".to_owned()),
            }
        },
    ),
    Check::must(
        Discovery,
        "logout",
        "RFC 7143 §4.3, §11.14",
        "A discovery session ends by a logout like others.",
        "Otherwise each discovery leaves a connection behind.",
        |lab| {
            let mut conn = lab.open(&lab.discovery())?;
            let itt = conn.tag();
            let mut logout = LogoutRequest::new(itt, LogoutReason::CloseSession, conn.cid);
            logout.as_bhs_mut().set_immediate(true);
            (logout.cmd_sn, logout.exp_stat_sn) = (U32::new(conn.cmd_sn), U32::new(conn.exp_stat_sn));
            conn.post(logout, &[])?;
            let answer = conn.answer(Opcode::LogoutResponse, itt)?;
            conn.is_full_feature = false;
            let code = answer.bhs.as_logout_response().response;
            expect(code == 0, "response 0", || format!("response {code}"))
        },
    ),
    Check::must(
        Discovery,
        "two-at-a-time",
        "RFC 7143 §4.3, §6.3.5",
        "Two discovery sessions of one initiator live side by side.",
        "Several programs of a host ask at once.",
        |lab| {
            let mut one = lab.open(&lab.discovery())?;
            let mut two = lab.open(&lab.discovery())?;
            listed(lab, &targets(&mut one, "All")?.1)?;
            listed(lab, &targets(&mut two, "All")?.1)
        },
    ),
    Check::must(
        Discovery,
        "own-target-in-a-session",
        "RFC 7143 appendix C",
        "SendTargets without a value, in a normal session, lists the session's target and no other.",
        OWN,
        |lab| {
            let mut conn = lab.session(&[])?;
            let (_, records) = targets(&mut conn, "")?;
            listed(lab, &records)?;
            expect(records.len() == 1, "one target", || format!("{} targets", records.len()))
        },
    ),
    Check::must(
        Discovery,
        "own-name-in-a-session",
        "RFC 7143 appendix C",
        "SendTargets=NAME of the session's own target, in a normal session, lists it and no other.",
        OWN,
        |lab| {
            let mut conn = lab.session(&[])?;
            let (_, records) = targets(&mut conn, &lab.options.target)?;
            listed(lab, &records)?;
            expect(records.len() == 1, "one target", || format!("{} targets", records.len()))
        },
    ),
    Check::must(
        Discovery,
        "not-all-in-a-session",
        "RFC 7143 appendix C",
        "SendTargets=All in a normal session lists no other target than the session's.",
        "A session authenticated for one target must not tell of others.",
        |lab| {
            let mut conn = lab.session(&[])?;
            let (answer, records) = match conn.text_step(&[("SendTargets", "All")]) {
                Ok(answer) => {
                    let records = records(&answer);
                    (answer, records)
                }
                // A Reject is a valid answer too.
                Err(_) => return lab.session(&[])?.ping(b"alive").map(|_| ()),
            };
            let others = records.iter().filter(|record| !name::eq(&record.name, &lab.options.target)).count();
            expect(others == 0, "no other target", || answer.told())?;
            should(records.is_empty(), "Reject: the value is for discovery sessions", || answer.told())
        },
    ),
    Check::should(
        Discovery,
        "pings-are-for-others",
        "RFC 7143 §4.3",
        "A ping in a discovery session is answered or rejected; it does not stop the session.",
        "Initiators that keep a discovery session ping it.",
        |lab| {
            let mut conn = lab.open(&lab.discovery())?;
            let itt = conn.tag();
            let mut ping = NopOut::ping(itt);
            (ping.cmd_sn, ping.exp_stat_sn) = (U32::new(conn.cmd_sn), U32::new(conn.exp_stat_sn));
            conn.post(ping, &[])?;
            match conn.outcome(|pdu| pdu.itt() == itt || pdu.is(Opcode::Reject)) {
                Ending::Pdu(_) => listed(lab, &targets(&mut conn, "All")?.1),
                Ending::Closed => wrong("the connection is closed", "an answer or a Reject"),
                Ending::Silent => wrong("no answer", "an answer or a Reject"),
            }
        },
    ),
];

fn records(answer: &Answer) -> Vec<Record> {
    let text: Vec<u8> = answer
        .pairs
        .iter()
        .filter(|(key, _)| key == "TargetName" || key == "TargetAddress")
        .flat_map(|(key, value)| format!("{key}={value}\0").into_bytes())
        .collect();
    read_records(&text).unwrap_or_default()
}

fn targets(conn: &mut Conn, value: &str) -> Verdict<(Answer, Vec<Record>)> {
    let answer = conn.text_step(&[("SendTargets", value)])?;
    expect(answer.malformed.is_none(), "key=value pairs", || answer.malformed.clone().unwrap_or_default())?;
    let records = records(&answer);
    Ok((answer, records))
}

fn listed(lab: &Lab, records: &[Record]) -> Verdict {
    let here = records.iter().any(|record| name::eq(&record.name, &lab.options.target));
    expect(here, format!("{} in the list", lab.options.target), || match records {
        [] => "no target".to_owned(),
        more => more.iter().map(|record| record.name.as_str()).collect::<Vec<_>>().join(", "),
    })
}
