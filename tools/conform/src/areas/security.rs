//! AuthMethod and CHAP (RFC 7143 §12, §9.2).

use iscsi::chap::Secret;
use iscsi::text::{parse_binary, to_hex};

use crate::check::Area::Security;
use crate::check::Check;
use crate::conn::{Conn, Ending};
use crate::finding::{Verdict, expect, not_applicable, should, wrong};
use crate::lab::{Challenge, Lab, own_challenge};
use crate::login::{Answer, FULL_FEATURE, OPERATIONAL, Refused, SECURITY, refused, status_name};
use crate::options::Account;

const IN: &str = "Whoever gets in so needs no secret.";

pub(super) const CHECKS: &[Check] = &[
    Check::must(
        Security,
        "method-is-chosen-from-the-offer",
        "RFC 7143 §12, §6.2.1",
        "AuthMethod is answered by one of the methods offered, or the login is refused.",
        "The initiator cannot do a method that it did not offer.",
        |lab| {
            let answer = offer(lab, "CHAP,None")?;
            if !answer.is_success() {
                return expect(
                    answer.status() == 0x0201,
                    format!("AuthMethod, or status {}", status_name(0x0201)),
                    || answer.told(),
                );
            }
            let told = answer.get("AuthMethod");
            expect(matches!(told, Some("CHAP" | "None")), "AuthMethod=CHAP or AuthMethod=None", || {
                answer.told()
            })
        },
    ),
    Check::must(
        Security,
        "unknown-method",
        "RFC 7143 §12, §6.2.1, §11.13.5",
        "A login with no AuthMethod that the target supports does not go on.",
        IN,
        |lab| {
            let mut conn = lab.connect()?;
            let login = lab.normal();
            let mut keys = lab.names(&login);
            keys.push(("AuthMethod", "X-org.stag.conform.trust-me"));
            let request = conn.login_request(SECURITY, None);
            conn.post(request, &crate::login::text(&keys))?;
            match conn.outcome(|_| true) {
                Ending::Closed => should(false, format!("status {}", status_name(0x0201)), || {
                    "the connection was closed without a status".to_owned()
                }),
                Ending::Silent => wrong("no answer", format!("status {}", status_name(0x0201))),
                Ending::Pdu(pdu) => {
                    let text = String::from_utf8_lossy(&pdu.data).into_owned();
                    let answer = Answer { pdus: vec![pdu], ..Answer::default() };
                    let declined = !answer.is_success() || text.contains("AuthMethod=Reject");
                    expect(declined, "Reject, or a refusal", || text.replace('\0', " "))?;
                    should(!answer.is_success(), format!("status {}", status_name(0x0201)), || {
                        text.replace('\0', " ")
                    })
                }
            }
        },
    ),
    Check::must(
        Security,
        "none-where-chap-is-required",
        "RFC 7143 §12, §11.13.5",
        "A target that requires CHAP refuses AuthMethod=None: Authentication failure (0201h).",
        IN,
        |lab| {
            account(lab)?;
            required(lab)?;
            let answer = offer(lab, "None")?;
            expect(!answer.is_success() || answer.get("AuthMethod") == Some("Reject"), "a refusal", || {
                answer.told()
            })
        },
    ),
    Check::must(
        Security,
        "no-way-around-the-security-stage",
        "RFC 7143 §6.3.2, §11.13.5",
        "A login that begins in the operational stage, at a target that requires CHAP, does not reach the full feature phase.",
        IN,
        |lab| {
            account(lab)?;
            required(lab)?;
            let mut conn = lab.connect()?;
            let login = lab.normal();
            let mut answer = conn.login_step(OPERATIONAL, Some(FULL_FEATURE), &lab.names(&login))?;
            for _ in 0..3 {
                expect(
                    !(answer.is_success() && answer.transits() && answer.flags() & 3 == 3),
                    "a refusal",
                    || "the full feature phase".to_owned(),
                )?;
                if !answer.is_success() {
                    return Ok(());
                }
                answer = conn.login_step(OPERATIONAL, Some(FULL_FEATURE), &[])?;
            }
            wrong("a login that neither goes on nor is refused", "a refusal")
        },
    ),
    Check::must(
        Security,
        "no-way-out-of-chap",
        "RFC 7143 §12.1.3, §6.3.2",
        "After the challenge, a request to go on without CHAP_N and CHAP_R does not leave the security stage.",
        IN,
        |lab| {
            let (_, mut conn, _) = challenged(lab, "5")?;
            let request = conn.login_request(SECURITY, Some(OPERATIONAL));
            conn.post(request, &[])?;
            let answer = conn.login_answer(SECURITY)?;
            expect(!(answer.is_success() && answer.transits()), "T=0, or a refusal", || {
                "the operational stage".to_owned()
            })
        },
    ),
    Check::must(
        Security,
        "no-leap-before-the-challenge",
        "RFC 7143 §12.1.3, §6.3.2",
        "After AuthMethod=CHAP, a request to go on without CHAP_A does not leave the security stage.",
        IN,
        |lab| {
            account(lab)?;
            let (mut conn, _) = methods(lab)?;
            let request = conn.login_request(SECURITY, Some(OPERATIONAL));
            conn.post(request, &[])?;
            let answer = conn.login_answer(SECURITY)?;
            expect(!(answer.is_success() && answer.transits()), "T=0, or a refusal", || {
                "the operational stage".to_owned()
            })
        },
    ),
    Check::must(
        Security,
        "chap-md5",
        "RFC 7143 §12.1.3",
        "CHAP with MD5 (5) lets the right secret in: every target has it.",
        "It is what all initiators can do.",
        |lab| hash(lab, "5", true),
    ),
    Check::must(
        Security,
        "chap-sha1",
        "RFC 7143 §12.1.3, IANA PPP authentication algorithms",
        "If CHAP with SHA-1 (6) is offered by the target, it lets the right secret in.",
        "Algorithms have numbers, and both sides must mean the same by them.",
        |lab| hash(lab, "6", false),
    ),
    Check::must(
        Security,
        "chap-sha256",
        "RFC 7143 §12.1.3, IANA PPP authentication algorithms",
        "If CHAP with SHA-256 (7) is offered by the target, it lets the right secret in.",
        "Algorithms have numbers, and both sides must mean the same by them.",
        |lab| hash(lab, "7", false),
    ),
    Check::must(
        Security,
        "chap-sha3-256",
        "RFC 7143 §12.1.3, IANA PPP authentication algorithms",
        "If CHAP with SHA3-256 (8) is offered by the target, it lets the right secret in.",
        "Algorithms have numbers, and both sides must mean the same by them.",
        |lab| hash(lab, "8", false),
    ),
    Check::should(
        Security,
        "chap-order",
        "RFC 7143 §12.1.3, §6.2.1",
        "Of the algorithms that a target has, the one that stands first in the initiator's CHAP_A is chosen.",
        "CHAP_A is in the order of the initiator's preference; a target that follows its own may take MD5 where both have more.",
        |lab| {
            account(lab)?;
            let chosen = |offered: &str| -> Verdict<Option<String>> {
                let (mut conn, _) = methods(lab)?;
                let answer = conn.login_step(SECURITY, None, &[("CHAP_A", offered)])?;
                Ok(answer.get("CHAP_A").filter(|_| answer.is_success()).map(str::to_owned))
            };
            for other in ["7", "6", "8"] {
                if chosen(other)?.as_deref() != Some(other) || chosen("5")?.as_deref() != Some("5") {
                    continue;
                }
                for offered in [format!("{other},5"), format!("5,{other}")] {
                    let first = offered.split(',').next();
                    let told = chosen(&offered)?;
                    expect(told.as_deref() == first, format!("the first of {offered}"), || {
                        format!("{told:?}")
                    })?;
                }
                return Ok(());
            }
            not_applicable("the target has no two algorithms")
        },
    ),
    Check::must(
        Security,
        "chap-unknown-algorithm",
        "RFC 7143 §12.1.3",
        "A CHAP_A of which the target knows no algorithm ends the login.",
        IN,
        |lab| {
            account(lab)?;
            let (mut conn, _) = methods(lab)?;
            let answer = conn.login_step(SECURITY, None, &[("CHAP_A", "250")])?;
            expect(
                !answer.is_success() || answer.get("CHAP_A") == Some("Reject"),
                "Reject, or a refusal",
                || answer.told(),
            )
        },
    ),
    Check::must(
        Security,
        "chap-wrong-secret",
        "RFC 7143 §12.1.3, §11.13.5",
        "A wrong CHAP response is refused: Authentication failure (0201h).",
        IN,
        |lab| {
            let (account, mut conn, challenge) = challenged(lab, "5")?;
            let response = challenge.response(&Secret::new(*b"this is another secret"));
            denied(&mut conn, &account.initiator.name, &response)
        },
    ),
    Check::must(
        Security,
        "chap-unknown-name",
        "RFC 7143 §12.1.3, §11.13.5",
        "An unknown CHAP name is refused, with the right secret too: Authentication failure (0201h).",
        IN,
        |lab| {
            let (account, mut conn, challenge) = challenged(lab, "5")?;
            let response = challenge.response(&account.initiator.secret);
            denied(&mut conn, "nobody-has-this-name", &response)
        },
    ),
    Check::must(
        Security,
        "chap-empty-response",
        "RFC 7143 §12.1.3, §11.13.5",
        "An empty CHAP response is refused.",
        "A comparison over the length of what came compares nothing.",
        |lab| {
            let (account, mut conn, _) = challenged(lab, "5")?;
            denied(&mut conn, &account.initiator.name, "0x")
        },
    ),
    Check::must(
        Security,
        "chap-short-response",
        "RFC 7143 §12.1.3, §11.13.5",
        "The first byte of the right response alone is refused.",
        "One byte is guessed in 256 attempts.",
        |lab| {
            let (account, mut conn, challenge) = challenged(lab, "5")?;
            let response = challenge.response(&account.initiator.secret);
            denied(&mut conn, &account.initiator.name, response.get(..4).unwrap_or("0x00"))
        },
    ),
    Check::must(
        Security,
        "chap-replay",
        "RFC 7143 §12.1.3, §9.2.1",
        "A response to an earlier challenge is refused: each login has a challenge of its own.",
        "Whoever has listened once gets in.",
        |lab| {
            let (account, old_conn, old) = challenged(lab, "5")?;
            drop(old_conn);
            let (_, mut conn, new) = challenged(lab, "5")?;
            expect(old.bytes != new.bytes, "another challenge than the last time", || {
                "the same challenge twice".to_owned()
            })?;
            denied(&mut conn, &account.initiator.name, &old.response(&account.initiator.secret))
        },
    ),
    Check::should(
        Security,
        "chap-challenge-length",
        "RFC 7143 §12.1.3, §9.2.1",
        "A challenge has at least as many bytes as the hash.",
        "Short challenges come again, and their answers with them.",
        |lab| {
            let (_, _, challenge) = challenged(lab, "5")?;
            let len = challenge.bytes.len();
            expect(len >= 16, "16 bytes or more", || format!("{len} bytes"))
        },
    ),
    Check::must(
        Security,
        "chap-nothing-told-on-failure",
        "RFC 7143 §12.1.3, §9.2.1",
        "A refused login tells no key: not its own name, and no response to the initiator's challenge.",
        "A target that answers challenges of people whom it does not know can be asked for its secret, guess by guess.",
        |lab| {
            let (account, mut conn, challenge) = challenged(lab, "5")?;
            let response = challenge.response(&Secret::new(*b"this is another secret"));
            let ours = own_challenge();
            let keys = [
                ("CHAP_N", account.initiator.name.as_str()),
                ("CHAP_R", &response),
                ("CHAP_I", "9"),
                ("CHAP_C", &ours),
            ];
            let answer = conn.login_step(SECURITY, Some(OPERATIONAL), &keys)?;
            expect(!answer.is_success(), "a refusal", || answer.told())?;
            let told = answer.get("CHAP_R").or(answer.get("CHAP_N"));
            expect(told.is_none(), "no CHAP_N and no CHAP_R", || format!("{told:?}"))
        },
    ),
    Check::must(
        Security,
        "chap-mutual",
        "RFC 7143 §12.1.3",
        "To an initiator's challenge the target answers with its name and the right response.",
        "It is the initiator's proof that it writes to the right place.",
        mutual,
    ),
    Check::must(
        Security,
        "chap-reflection",
        "RFC 7143 §12.1.3, §9.2.1",
        "A target that is sent its own challenge back does not answer it.",
        "Otherwise it tells the very response that it asks for: whoever reflects it gets in on a second connection.",
        |lab| {
            let (account, mut conn, challenge) = challenged(lab, "5")?;
            let response = challenge.response(&account.initiator.secret);
            let (id, theirs) = (challenge.id.to_string(), to_hex(&challenge.bytes));
            let keys = [
                ("CHAP_N", account.initiator.name.as_str()),
                ("CHAP_R", &response),
                ("CHAP_I", &id),
                ("CHAP_C", &theirs),
            ];
            let answer = conn.login_step(SECURITY, Some(OPERATIONAL), &keys)?;
            expect(answer.get("CHAP_R").is_none(), "no CHAP_R", || "CHAP_R".to_owned())?;
            should(!answer.is_success(), "a refusal", || answer.told())
        },
    ),
];

fn account(lab: &Lab) -> Verdict<&Account> {
    match &lab.options.account {
        Some(account) => Ok(account),
        None => not_applicable("no CHAP name and secret were given (--user, --secret-file)"),
    }
}

fn offer(lab: &Lab, methods: &str) -> Verdict<Answer> {
    let mut conn = lab.connect()?;
    let login = lab.normal();
    let mut keys = lab.names(&login);
    keys.push(("AuthMethod", methods));
    conn.login_step(SECURITY, None, &keys)
}

/// Not applicable if the target accepts AuthMethod=None.
fn required(lab: &Lab) -> Verdict {
    let answer = offer(lab, "None,CHAP")?;
    match answer.get("AuthMethod") {
        Some("None") => not_applicable("the target does not require CHAP"),
        _ => Ok(()),
    }
}

/// A connection on which CHAP was negotiated.
fn methods(lab: &Lab) -> Verdict<(Conn, Answer)> {
    let mut conn = lab.connect()?;
    let login = lab.normal();
    let mut keys = lab.names(&login);
    keys.push(("AuthMethod", "CHAP"));
    let answer = conn.login_step(SECURITY, None, &keys)?;
    expect(answer.get("AuthMethod") == Some("CHAP"), "AuthMethod=CHAP", || answer.told())?;
    Ok((conn, answer))
}

/// A connection on which the target has sent its challenge.
fn challenged<'a>(lab: &'a Lab, algorithms: &str) -> Verdict<(&'a Account, Conn, Challenge)> {
    let account = account(lab)?;
    let (mut conn, _) = methods(lab)?;
    let answer = conn.login_step(SECURITY, None, &[("CHAP_A", algorithms)])?;
    let challenge = Challenge::of(&answer)?;
    Ok((account, conn, challenge))
}

fn hash(lab: &Lab, number: &str, required: bool) -> Verdict {
    let account = account(lab)?;
    let (mut conn, _) = methods(lab)?;
    let answer = conn.login_step(SECURITY, None, &[("CHAP_A", number)])?;
    if !required && (!answer.is_success() || answer.get("CHAP_A") == Some("Reject")) {
        return not_applicable("the target does not offer this algorithm");
    }
    let challenge = Challenge::of(&answer)?;
    expect(challenge.hash.number().to_string() == number, format!("CHAP_A={number}"), || answer.told())?;
    let response = challenge.response(&account.initiator.secret);
    let keys = [("CHAP_N", account.initiator.name.as_str()), ("CHAP_R", &response)];
    let answer = conn.login_step(SECURITY, Some(OPERATIONAL), &keys)?;
    expect(answer.is_success() && answer.transits(), "the operational stage", || answer.told())
}

/// Fails unless this name and response are refused.
fn denied(conn: &mut Conn, name: &str, response: &str) -> Verdict {
    let request = conn.login_request(SECURITY, Some(OPERATIONAL));
    conn.post(request, &crate::login::text(&[("CHAP_N", name), ("CHAP_R", response)]))?;
    match refused(conn, "the login is refused")? {
        Refused::Status(status) => {
            should(status == 0x0201, format!("status {}", status_name(0x0201)), || {
                format!("status {}", status_name(status))
            })
        }
        Refused::Otherwise => should(false, format!("status {}", status_name(0x0201)), || {
            "the end of the connection".to_owned()
        }),
    }
}

fn mutual(lab: &Lab) -> Verdict {
    let (account, mut conn, challenge) = challenged(lab, "5")?;
    let Some(target) = &account.target else {
        return not_applicable(
            "no name and secret of the target's were given (--mutual-user, --mutual-secret-file)",
        );
    };
    let response = challenge.response(&account.initiator.secret);
    let ours = own_challenge();
    let keys = [
        ("CHAP_N", account.initiator.name.as_str()),
        ("CHAP_R", &response),
        ("CHAP_I", "200"),
        ("CHAP_C", &ours),
    ];
    let answer = conn.login_step(SECURITY, Some(OPERATIONAL), &keys)?;
    expect(answer.is_success(), "the login goes on", || answer.told())?;
    let bytes = parse_binary(&ours, 1024).unwrap_or_default();
    let want = challenge.hash.response(200, &target.secret, &bytes);
    let got = answer.get("CHAP_R").and_then(|text| parse_binary(text, 1024));
    expect(got.as_deref() == Some(&want[..]), "the right CHAP_R", || match got {
        Some(_) => "a wrong CHAP_R".to_owned(),
        None => answer.told(),
    })?;
    expect(answer.get("CHAP_N") == Some(&target.name), format!("CHAP_N={}", target.name), || answer.told())
}
