//! The login phase (RFC 7143 §6.3, §11.12, §11.13).

use iscsi::pdu::{NopOut, Opcode, U16, U32};

use crate::check::Area::Login;
use crate::check::Check;
use crate::conn::{Conn, Ending};
use crate::finding::{Finding, Verdict, expect, not_applicable, should, wrong};
use crate::lab::Lab;
use crate::login::{Answer, FULL_FEATURE, OPERATIONAL, SECURITY, refused, refused_with, status_name, text};
use crate::scsi::Command;

const STATUS: &str =
    "An initiator decides by the status whether to try again, elsewhere, or to tell its administrator.";
const STAGES: &str = "A login that can go where it should not can go past authentication.";
const ECHO: &str =
    "Initiators check these fields, and drop a connection whose answers seem to be somebody else's.";

pub(super) const CHECKS: &[Check] = &[
    Check::must(
        Login,
        "plain-login",
        "RFC 7143 §6.3",
        "A login with usual keys leads to the full feature phase, and the unit answers there.",
        "Nothing else works without it.",
        |lab| {
            let mut conn = lab.try_open(&lab.normal())?;
            conn.settle()
        },
    ),
    Check::must(
        Login,
        "version-active",
        "RFC 7143 §11.13.1, §11.13.2",
        "Version-active is 0, and Version-max is no less.",
        "There is no other version; an initiator ends a login that speaks one.",
        |lab| {
            let (_, answer) = first(lab)?;
            let response = *answer.last().bhs.as_login_response();
            expect(response.version_active == 0, "Version-active 0", || {
                format!("Version-active {}, Version-max {}", response.version_active, response.version_max)
            })
        },
    ),
    Check::must(
        Login,
        "unsupported-version",
        "RFC 7143 §11.12.4, §11.13.5",
        "A login of versions that the target does not speak is refused: Unsupported version (0205h).",
        STATUS,
        |lab| {
            let mut conn = lab.connect()?;
            let mut request = conn.login_request(SECURITY, None);
            (request.version_max, request.version_min) = (0x7f, 0x7f);
            conn.post(request, &text(&lab.names(&lab.normal())))?;
            refused_with(&mut conn, 0x0205)
        },
    ),
    Check::must(
        Login,
        "initiator-name-required",
        "RFC 7143 §13.5, §11.13.5",
        "A login whose first request has no InitiatorName is refused: Missing parameter (0207h).",
        STATUS,
        |lab| {
            let (target, mut conn) = (lab.options.target.clone(), lab.connect()?);
            let request = conn.login_request(SECURITY, Some(OPERATIONAL));
            conn.post(request, &text(&[("SessionType", "Normal"), ("TargetName", &target)]))?;
            refused_with(&mut conn, 0x0207)
        },
    ),
    Check::must(
        Login,
        "target-name-required",
        "RFC 7143 §13.4, §11.13.5",
        "A login of a normal session whose first request has no TargetName is refused: Missing parameter (0207h).",
        STATUS,
        |lab| {
            let mut conn = lab.connect()?;
            let request = conn.login_request(SECURITY, Some(OPERATIONAL));
            conn.post(
                request,
                &text(&[("InitiatorName", &lab.options.initiator), ("SessionType", "Normal")]),
            )?;
            refused_with(&mut conn, 0x0207)
        },
    ),
    Check::must(
        Login,
        "session-type-defaults-to-normal",
        "RFC 7143 §13.21",
        "A login without SessionType is one of a normal session.",
        "Initiators may leave the key away.",
        |lab| {
            let mut conn = lab.connect()?;
            let pairs = [
                ("InitiatorName", lab.options.initiator.as_str()),
                ("TargetName", lab.options.target.as_str()),
                ("AuthMethod", if lab.options.account.is_some() { "CHAP" } else { "None" }),
            ];
            let answer = conn.login_step(SECURITY, None, &pairs)?;
            expect(answer.is_success(), "the login goes on", || answer.told())
        },
    ),
    Check::must(
        Login,
        "unknown-session-type",
        "RFC 7143 §13.21, §11.13.5",
        "A login of a SessionType that is not known is refused: Session type not supported (0209h).",
        STATUS,
        |lab| {
            let mut conn = lab.connect()?;
            let pairs = [
                ("InitiatorName", lab.options.initiator.as_str()),
                ("TargetName", lab.options.target.as_str()),
                ("SessionType", "Picnic"),
            ];
            let request = conn.login_request(SECURITY, Some(OPERATIONAL));
            conn.post(request, &text(&pairs))?;
            refused_with(&mut conn, 0x0209)
        },
    ),
    Check::must(
        Login,
        "unknown-target",
        "RFC 7143 §11.13.5",
        "A login to a target that is not there is refused: Not found (0203h).",
        STATUS,
        |lab| {
            let mut conn = lab.connect()?;
            let mut login = lab.normal();
            login.target = Some("iqn.2026-01.org.stag:conform.nobody-has-this-name".to_owned());
            let request = conn.login_request(SECURITY, Some(OPERATIONAL));
            let mut names = lab.names(&login);
            names.push(("AuthMethod", "CHAP,None"));
            conn.post(request, &text(&names))?;
            if lab.options.account.is_none() {
                return refused_with(&mut conn, 0x0203);
            }
            let answer = conn.login_answer(SECURITY)?;
            if answer.is_success() {
                return not_applicable("the target looks for names after CHAP only");
            }
            expect(answer.status() == 0x0203, status_name(0x0203), || answer.told())
        },
    ),
    Check::must(
        Login,
        "answer-repeats-the-request",
        "RFC 7143 §11.13",
        "A Login Response has the request's Initiator Task Tag and ISID, and in its stage.",
        ECHO,
        |lab| {
            let (conn, answer) = first(lab)?;
            let response = *answer.last().bhs.as_login_response();
            expect(response.itt.get() == 0x10, "Initiator Task Tag 10h", || {
                format!("{:x}h", response.itt.get())
            })?;
            expect(response.isid == conn.isid, format!("ISID {}", conn.isid), || {
                format!("ISID {}", response.isid)
            })?;
            let stage = answer.flags() >> 2 & 3;
            expect(stage == SECURITY, "CSG 0, as in the request", || format!("CSG {stage}"))
        },
    ),
    Check::must(
        Login,
        "no-transit-unasked",
        "RFC 7143 §6.3, §11.13.3",
        "The target does not set the T bit if the request did not.",
        "The initiator has more to negotiate; it would be in another stage than its target.",
        |lab| {
            let mut conn = lab.operational()?;
            let answer = conn.login_step(OPERATIONAL, None, &[])?;
            expect(answer.is_success(), "the login goes on", || answer.told())?;
            expect(!answer.transits(), "T=0", || "T=1".to_owned())?;
            let answer = conn.login_step(OPERATIONAL, None, &[("InitialR2T", "Yes")])?;
            expect(answer.is_success(), "the login goes on", || answer.told())?;
            expect(!answer.transits(), "T=0", || "T=1".to_owned())
        },
    ),
    Check::must(
        Login,
        "next-stage-no-further-than-asked",
        "RFC 7143 §11.13.4",
        "With the T bit set, the response's next stage is at most the one that was asked for, and more than the current one.",
        STAGES,
        |lab| {
            let (_, answer) = lab.secured(&lab.normal())?;
            let (csg, nsg) = (answer.flags() >> 2 & 3, answer.flags() & 3);
            expect(csg == SECURITY && nsg == OPERATIONAL, "CSG 0 and NSG 1", || {
                format!("CSG {csg} and NSG {nsg}")
            })
        },
    ),
    Check::must(
        Login,
        "tsih-only-at-the-end",
        "RFC 7143 §11.13.3",
        "The TSIH of a new session is told in the last Login Response, is not 0 there, and 0 before.",
        "A TSIH that is told too early can be used before its session is authenticated; TSIH 0 means a new session.",
        |lab| {
            let (mut conn, answer) = lab.secured(&lab.normal())?;
            expect(answer.tsih() == 0, "TSIH 0 before the end of the login", || {
                format!("TSIH {}", answer.tsih())
            })?;
            let answer = complete(lab, &mut conn)?;
            expect(answer.tsih() != 0, "a TSIH other than 0 at the end", || "TSIH 0".to_owned())
        },
    ),
    Check::must(
        Login,
        "tsih-of-its-own",
        "RFC 7143 §4.4.3, §11.13.3",
        "Two sessions at a time have two TSIHs.",
        "A further connection would join the wrong session.",
        |lab| {
            let (one, two) = (lab.try_open(&lab.normal())?, lab.try_open(&lab.normal())?);
            expect(one.tsih != two.tsih, "two TSIHs", || format!("TSIH {} twice", one.tsih))
        },
    ),
    Check::must(
        Login,
        "statsn-counts",
        "RFC 7143 §11.13.4, §4.2.2.2",
        "StatSN goes up by one with every Login Response of a connection.",
        "Initiators begin to count in the login.",
        |lab| {
            let mut conn = lab.operational()?;
            for _ in 0..3 {
                let want = conn.exp_stat_sn;
                let answer = conn.login_step(OPERATIONAL, None, &[])?;
                let got = answer.last().stat_sn();
                expect(got == want, format!("StatSN {want}"), || format!("StatSN {got}"))?;
            }
            Ok(())
        },
    ),
    Check::must(
        Login,
        "expcmdsn-is-the-first",
        "RFC 7143 §11.12.8, §4.2.2.1",
        "At the end of a leading login, ExpCmdSN is the CmdSN that the login named: Login Requests are immediate.",
        "The first command would be taken for a duplicate, or wait for one that never comes.",
        |lab| {
            let mut login = lab.normal();
            login.cmd_sn = 77;
            let conn = lab.try_open(&login)?;
            let last = conn.history.last().copied().map_or(0, |bhs| bhs.as_login_response().exp_cmd_sn.get());
            expect(last == 77, "ExpCmdSN 77", || format!("ExpCmdSN {last}"))
        },
    ),
    Check::must(
        Login,
        "stages-only-forward",
        "RFC 7143 §6.3",
        "A request of an earlier stage than the login has reached is refused.",
        STAGES,
        |lab| {
            let mut conn = lab.operational()?;
            let request = conn.login_request(SECURITY, Some(OPERATIONAL));
            conn.post(request, &text(&[("AuthMethod", "None")]))?;
            refused(&mut conn, "the login is refused").map(|_| ())
        },
    ),
    Check::must(
        Login,
        "reserved-stage",
        "RFC 7143 §11.12.3",
        "A request of the reserved stage 2 is refused.",
        STAGES,
        |lab| {
            let mut conn = lab.connect()?;
            let request = conn.login_request(2, None);
            conn.post(request, &text(&lab.names(&lab.normal())))?;
            refused(&mut conn, "the login is refused").map(|_| ())
        },
    ),
    Check::must(
        Login,
        "full-feature-is-no-stage-of-login",
        "RFC 7143 §11.12.3",
        "A Login Request whose current stage is the full feature phase is refused.",
        STAGES,
        |lab| {
            let mut conn = lab.connect()?;
            let request = conn.login_request(FULL_FEATURE, Some(FULL_FEATURE));
            conn.post(request, &text(&lab.names(&lab.normal())))?;
            refused(&mut conn, "the login is refused").map(|_| ())
        },
    ),
    Check::must(
        Login,
        "next-stage-must-be-later",
        "RFC 7143 §11.12.3, §6.3",
        "A request to go from the operational stage to itself is refused.",
        STAGES,
        |lab| {
            let mut conn = lab.operational()?;
            let request = conn.login_request(OPERATIONAL, Some(OPERATIONAL));
            conn.post(request, &[])?;
            refused(&mut conn, "the login is refused").map(|_| ())
        },
    ),
    Check::should(
        Login,
        "isid-stays",
        "RFC 7143 §11.12.5, §6.3",
        "A login whose ISID changes on the way is refused.",
        "The ISID names the session; authentication was done for another one.",
        |lab| {
            let mut conn = lab.operational()?;
            conn.isid = lab.isid();
            let request = conn.login_request(OPERATIONAL, Some(FULL_FEATURE));
            conn.post(request, &[])?;
            refused(&mut conn, "the login is refused").map(|_| ())
        },
    ),
    Check::must(
        Login,
        "text-in-two-parts",
        "RFC 7143 §6.2, §11.12.2",
        "A text that is cut in the middle of a key by the C bit is put together again; the first part is answered by an empty response.",
        "Long texts, such as certificates or many keys, come in parts.",
        |lab| {
            let mut conn = lab.operational()?;
            let whole = b"MaxBurstLength=8192\0FirstBurstLength=4096\0";
            let (one, two) = whole.split_at(25);
            let mut request = conn.login_request(OPERATIONAL, None);
            request.flags |= 0x40;
            conn.post(request, one)?;
            let answer = conn.login_answer(OPERATIONAL)?;
            expect(answer.is_success(), "the login goes on", || answer.told())?;
            expect(answer.pairs.is_empty() && !answer.transits(), "an empty response with T=0", || {
                answer.told()
            })?;
            let request = conn.login_request(OPERATIONAL, None);
            conn.post(request, two)?;
            let answer = conn.login_answer(OPERATIONAL)?;
            let both = answer.get("MaxBurstLength").is_some() && answer.get("FirstBurstLength").is_some();
            expect(both, "an answer to both keys", || answer.told())
        },
    ),
    Check::must(
        Login,
        "transit-and-continue-exclude-each-other",
        "RFC 7143 §11.12.2",
        "A request with both T and C set does not move the login on.",
        STAGES,
        |lab| {
            let mut conn = lab.operational()?;
            let mut request = conn.login_request(OPERATIONAL, Some(FULL_FEATURE));
            request.flags |= 0x40;
            conn.post(request, b"MaxBurstLength=8192\0")?;
            match conn.outcome(|_| true) {
                Ending::Closed => Ok(()),
                Ending::Pdu(pdu) => {
                    let moved = pdu.is(Opcode::LoginResponse)
                        && pdu.bhs.as_login_response().status_class == 0
                        && pdu.bhs.flags & 0x80 != 0;
                    expect(!moved, "a refusal, or a response with T=0", || {
                        "the full feature phase".to_owned()
                    })
                }
                Ending::Silent => wrong("no answer", "a refusal, or a response with T=0"),
            }
        },
    ),
    Check::must(
        Login,
        "command-during-login",
        "RFC 7143 §6.3, §11.13.5",
        "A SCSI Command in the login phase is not executed: Invalid during login (020bh), or the connection ends.",
        "Whoever can command a unit before authentication needs none.",
        |lab| {
            let mut conn = lab.operational()?;
            let command = Command::new(&[0; 6]);
            let mut header = conn.command_header(&command);
            header.cmd_sn = U32::new(conn.cmd_sn);
            conn.post(header, &[])?;
            match conn.outcome(|_| true) {
                Ending::Closed => Ok(()),
                Ending::Pdu(pdu) if pdu.is(Opcode::Reject) => Ok(()),
                Ending::Pdu(pdu) if pdu.is(Opcode::LoginResponse) => {
                    let answer = Answer { pdus: vec![pdu], ..Answer::default() };
                    expect(answer.status() >> 8 == 2, "a refusal", || answer.told())?;
                    should(answer.status() == 0x020b, "login status 020b", || answer.told())
                }
                Ending::Pdu(pdu) => {
                    wrong(pdu.bhs.to_string(), "login status 020b, or the end of the connection")
                }
                Ending::Silent => {
                    // A target may close the connection by a timer.
                    Err(Finding::Doubtful {
                        seen: "no answer, and the connection stays open".to_owned(),
                        expected: "login status 020b and the end of the connection".to_owned(),
                    })
                }
            }
        },
    ),
    Check::must(
        Login,
        "first-pdu-is-a-login",
        "RFC 7143 §4.2.4",
        "A connection whose first PDU is no Login Request is closed, and the PDU is not answered.",
        "Nothing but a login has a meaning there.",
        |lab| {
            let mut conn = lab.connect()?;
            conn.post(NopOut::ping(1), b"knock")?;
            match conn.outcome(|_| true) {
                Ending::Closed => Ok(()),
                Ending::Pdu(pdu) if pdu.is(Opcode::Reject) || pdu.is(Opcode::LoginResponse) => {
                    should(false, "the connection is closed without an answer", || pdu.bhs.to_string())
                }
                Ending::Pdu(pdu) => wrong(pdu.bhs.to_string(), "the connection is closed without an answer"),
                Ending::Silent => wrong("the connection stays open", "the connection is closed"),
            }
        },
    ),
    Check::must(
        Login,
        "unknown-tsih",
        "RFC 7143 §11.13.5, §6.3",
        "A login to a session that does not exist is refused: Session does not exist (020ah).",
        "An initiator that has been gone too long learns by it that it has to begin anew.",
        |lab| {
            // First an existing session: some targets handle one login at a time.
            let known = lab.try_open(&lab.normal())?;
            let mut conn = lab.connect()?;
            let login = lab.normal();
            let mut request = conn.login_request(SECURITY, Some(OPERATIONAL));
            request.tsih = U16::new(known.tsih.wrapping_add(0x1234).max(1));
            let mut names = lab.names(&login);
            names.push(("AuthMethod", if lab.options.account.is_some() { "CHAP" } else { "None" }));
            conn.post(request, &text(&names))?;
            no_such_session(lab, &mut conn)
        },
    ),
    Check::must(
        Login,
        "key-declared-twice",
        "RFC 7143 §6.3",
        "A login in which a key is negotiated twice is refused.",
        "What holds then is a matter of taste, and the two sides' tastes may differ.",
        |lab| {
            let mut conn = lab.operational()?;
            let answer = conn.login_step(OPERATIONAL, None, &[("MaxBurstLength", "8192")])?;
            expect(answer.is_success(), "the login goes on", || answer.told())?;
            let request = conn.login_request(OPERATIONAL, Some(FULL_FEATURE));
            conn.post(request, b"MaxBurstLength=16384\0")?;
            refused(&mut conn, "the login is refused").map(|_| ())
        },
    ),
    Check::should(
        Login,
        "text-without-equals-sign",
        "RFC 7143 §6.1, §7.7",
        "A login whose text is no list of key=value pairs is refused.",
        "What was meant is not known, and the initiator believes that it was understood.",
        |lab| {
            let mut conn = lab.operational()?;
            let request = conn.login_request(OPERATIONAL, Some(FULL_FEATURE));
            conn.post(request, b"this is no key and has no value\0")?;
            refused(&mut conn, "the login is refused").map(|_| ())
        },
    ),
    Check::must(
        Login,
        "over-long-value",
        "RFC 7143 §6.1",
        "A value of more than 255 bytes is answered, or the login is refused, in good order.",
        "Values of any length come from anybody who can connect; a buffer of 255 bytes is soon full.",
        |lab| answered_or_refused(lab, &format!("X-org.stag.conform={}\0", "v".repeat(3000))),
    ),
    Check::must(
        Login,
        "over-long-key",
        "RFC 7143 §6.1",
        "A key name of more than 63 bytes is answered, or the login is refused, in good order.",
        "Names of any length come from anybody who can connect.",
        |lab| answered_or_refused(lab, &format!("X-{}=1\0", "k".repeat(3000))),
    ),
    Check::must(
        Login,
        "whole-segment-of-keys",
        "RFC 7143 §6.2, §13.12",
        "A Login Request of 8192 bytes of text is taken: that is what MaxRecvDataSegmentLength is by default.",
        "A target with less room breaks logins with many keys.",
        |lab| {
            let mut conn = lab.operational()?;
            let mut keys = String::new();
            for n in 0.. {
                let pair = format!("X-org.stag.conform{n}=1\0");
                if keys.len() + pair.len() > 3900 {
                    break;
                }
                keys += &pair;
            }
            keys += &format!("X-org.stag.conform.fill={}\0", "f".repeat(250));
            let request = conn.login_request(OPERATIONAL, None);
            conn.post(request, keys.as_bytes())?;
            let answer = conn.login_answer(OPERATIONAL)?;
            expect(answer.is_success(), "the login goes on", || answer.told())?;
            let sent = keys.matches('=').count();
            let told = answer.pairs.iter().filter(|(_, value)| value == "NotUnderstood").count();
            expect(told == sent, format!("{sent} keys NotUnderstood"), || {
                format!("{told} keys NotUnderstood")
            })
        },
    ),
    Check::must(
        Login,
        "answers-fit-a-segment",
        "RFC 7143 §6.2, §13.12",
        "No Login Response has more than 8192 bytes of text; a longer answer comes in parts by the C bit.",
        "The initiator's room during login is 8192 bytes, whatever it will declare.",
        |lab| {
            let mut conn = lab.operational()?;
            let keys: String =
                (0..220).map(|n| format!("X-org.stag.conform.with-a-long-name{n}=1\0")).collect();
            let part = keys.as_bytes().get(..8192).unwrap_or(keys.as_bytes());
            let request = conn.login_request(OPERATIONAL, None);
            conn.post(request, part)?;
            let answer = conn.login_answer(OPERATIONAL)?;
            if !answer.is_success() {
                return not_applicable(format!("the target refuses so many keys: {}", answer.told()));
            }
            let longest = answer.pdus.iter().map(|pdu| pdu.data.len()).max().unwrap_or(0);
            expect(longest <= 8192, "at most 8192 bytes of text", || format!("{longest} bytes of text"))
        },
    ),
    Check::must(
        Login,
        "empty-request",
        "RFC 7143 §6.2",
        "A Login Request without text is answered.",
        "It is how an initiator lets the target go on with its own keys.",
        |lab| {
            let mut conn = lab.operational()?;
            let answer = conn.login_step(OPERATIONAL, None, &[])?;
            expect(answer.is_success(), "the login goes on", || answer.told())
        },
    ),
    Check::must(
        Login,
        "byte-by-byte",
        "RFC 7143 §4.2.6, §11.1",
        "A Login Request is understood however TCP cuts it.",
        "TCP is a stream: a PDU may come in any number of pieces.",
        |lab| {
            let mut conn = lab.connect()?;
            let login = lab.normal();
            let mut names = lab.names(&login);
            names.push(("AuthMethod", if lab.options.account.is_some() { "CHAP" } else { "None" }));
            let request = conn.login_request(SECURITY, None);
            let bytes = conn.encode(request, &[], &text(&names));
            for (n, byte) in bytes.chunks(1).enumerate() {
                conn.post_bytes(byte)?;
                if n % 16 == 0 {
                    runtime::nap(std::time::Duration::from_millis(1));
                }
            }
            let answer = conn.login_answer(SECURITY)?;
            expect(answer.is_success(), "the login goes on", || answer.told())
        },
    )
    .tcp(),
    Check::should(
        Login,
        "closes-after-refusal",
        "RFC 7143 §6.3, §11.13.5",
        "After a Login Response that refuses the login the target closes the connection.",
        "Connections that nobody wants add up.",
        |lab| {
            let mut conn = lab.connect()?;
            let request = conn.login_request(SECURITY, Some(OPERATIONAL));
            conn.post(request, &text(&[("SessionType", "Normal")]))?;
            refused(&mut conn, "the login is refused")?;
            expect(conn.is_closed(), "the connection is closed", || "it stays open".to_owned())
        },
    ),
    Check::must(
        Login,
        "portal-group-tag",
        "RFC 7143 §13.9",
        "The first Login Response of a normal session tells the TargetPortalGroupTag.",
        "An initiator finds out by it which of a target's portals may share a session.",
        |lab| {
            let (_, answer) = first(lab)?;
            let tag = answer.get("TargetPortalGroupTag");
            let number = tag.and_then(iscsi::text::parse_number).filter(|n| *n <= 65_535);
            expect(number.is_some(), "TargetPortalGroupTag of 0 to 65535", || answer.told())
        },
    ),
    Check::must(
        Login,
        "half-a-login-harms-nobody",
        "RFC 7143 §6.3.6",
        "A connection that ends in the middle of a Login Request leaves the target as it was.",
        "Networks break connections at any byte.",
        |lab| {
            for part in [1, 47, 48, 60] {
                let mut conn = lab.connect()?;
                let request = conn.login_request(SECURITY, Some(OPERATIONAL));
                let bytes = conn.encode(request, &[], &text(&lab.names(&lab.normal())));
                conn.post_bytes(bytes.get(..part).unwrap_or_default())?;
            }
            lab.try_open(&lab.normal())?.settle()
        },
    )
    .tcp(),
];

/// A connection after the answer to its first request, which has only the names.
fn first(lab: &Lab) -> Verdict<(Conn, Answer)> {
    let mut conn = lab.connect()?;
    let login = lab.normal();
    let mut names = lab.names(&login);
    names.push(("AuthMethod", if lab.options.account.is_some() { "CHAP" } else { "None" }));
    let answer = conn.login_step(SECURITY, None, &names)?;
    expect(answer.is_success(), "the login goes on", || answer.told())?;
    Ok((conn, answer))
}

/// From the operational stage into the full feature phase.
fn complete(lab: &Lab, conn: &mut Conn) -> Verdict<Answer> {
    let keys = lab.usual_keys(&lab.normal());
    let keys: Vec<(&str, &str)> = keys.iter().map(|(key, value)| (key.as_str(), value.as_str())).collect();
    let mut answer = conn.login_step(OPERATIONAL, Some(FULL_FEATURE), &keys)?;
    for _ in 0..4 {
        expect(answer.is_success(), "the login goes on", || answer.told())?;
        if answer.transits() {
            crate::lab::enter(conn, &answer);
            return Ok(answer);
        }
        answer = conn.login_step(OPERATIONAL, Some(FULL_FEATURE), &[])?;
    }
    wrong("no end of the operational stage", "T=1")
}

/// A target may refuse an unknown TSIH as late as at the end of the login.
fn no_such_session(lab: &Lab, conn: &mut Conn) -> Verdict {
    let expected = format!("login status {}", status_name(0x020a));
    match conn.outcome(|_| true) {
        Ending::Closed => should(false, expected, || "the connection ended without a status".to_owned()),
        Ending::Silent => wrong("no answer", expected),
        Ending::Pdu(pdu) if pdu.is(Opcode::LoginResponse) => {
            let answer = Answer { pdus: vec![pdu], ..Answer::default() };
            if answer.is_success() && answer.transits() {
                let request = conn.login_request(OPERATIONAL, Some(FULL_FEATURE));
                conn.post(request, &[])?;
                return refused_with(conn, 0x020a);
            }
            if answer.is_success() && lab.options.account.is_some() {
                return not_applicable("the target looks for the session after CHAP only");
            }
            expect(matches!(answer.status() >> 8, 2 | 3), expected.clone(), || answer.told())?;
            should(answer.status() == 0x020a, expected, || answer.told())
        }
        Ending::Pdu(pdu) => wrong(pdu.bhs.to_string(), expected),
    }
}

fn answered_or_refused(lab: &Lab, keys: &str) -> Verdict {
    let mut conn = lab.operational()?;
    let request = conn.login_request(OPERATIONAL, None);
    conn.post(request, keys.as_bytes())?;
    match conn.outcome(|pdu| pdu.is(Opcode::LoginResponse)) {
        Ending::Pdu(_) | Ending::Closed => {}
        Ending::Silent => return wrong("no answer, and the connection stays open", "an answer or a refusal"),
    }
    // Other initiators must still be able to log in.
    drop(conn);
    lab.try_open(&lab.normal()).map(|_| ())
}
