//! The valid answers to each key (RFC 7143 §6.2, §13).

use iscsi::text::parse_number;

use crate::check::Area::Keys;
use crate::check::Check;
use crate::finding::{Verdict, expect, not_applicable, should, untested};
use crate::lab::Lab;
use crate::login::{Answer, OPERATIONAL};

const DIFFER: &str = "Both sides compute the result from offer and answer; where the answer breaks the rule, they end with different ones.";
const LIMIT: &str = "A target that takes more than it was offered sends what its initiator has no room for.";
const REFUSE: &str = "A value out of range that is accepted is a limit that nobody keeps.";
const UNKNOWN: &str = "New keys come into use only because old targets answer them so.";

/// Declares a check of one offer: the key, the offered value, and the valid answers.
macro_rules! offer {
    ($name:literal, $clause:literal, $requires:literal, $why:expr, $key:literal = $value:literal, $rule:expr) => {
        Check::must(Keys, $name, concat!("RFC 7143 ", $clause), $requires, $why, |lab| {
            single(lab, $key, $value, $rule)
        })
    };
}

pub(super) const CHECKS: &[Check] = &[
    offer!("initial-r2t-yes", "§13.10, §6.2.2", "InitialR2T=Yes is answered by Yes, or not at all: the result is the OR of both.", DIFFER,
        "InitialR2T" = "Yes", Rule::ExactlyIfAtAll("Yes")),
    offer!("initial-r2t-no", "§13.10, §6.2.2", "InitialR2T=No is answered by Yes or No.", DIFFER,
        "InitialR2T" = "No", Rule::Bool),
    offer!("immediate-data-no", "§13.11, §6.2.2", "ImmediateData=No is answered by No, or not at all: the result is the AND of both.", DIFFER,
        "ImmediateData" = "No", Rule::ExactlyIfAtAll("No")),
    offer!("immediate-data-yes", "§13.11, §6.2.2", "ImmediateData=Yes is answered by Yes or No.", DIFFER,
        "ImmediateData" = "Yes", Rule::Bool),
    offer!("max-connections-1", "§13.2, §6.2.2", "MaxConnections=1 is answered by 1: the result is the minimum.", LIMIT,
        "MaxConnections" = "1", Rule::Exactly("1")),
    offer!("max-connections-most", "§13.2", "MaxConnections=65535 is answered by a number from 1 to 65535.", LIMIT,
        "MaxConnections" = "65535", Rule::Range(1, 65_535)),
    offer!("max-connections-0", "§13.2, §6.2.2", "MaxConnections=0 is out of range: Reject, an admissible value, or a refusal.", REFUSE,
        "MaxConnections" = "0", Rule::Inadmissible(1, 65_535)),
    offer!("max-burst-least", "§13.13, §6.2.2", "MaxBurstLength=512 is answered by 512: the result is the minimum.", LIMIT,
        "MaxBurstLength" = "512", Rule::Exactly("512")),
    offer!("max-burst-most", "§13.13", "MaxBurstLength=16777215 is answered by a number from 512 to that.", LIMIT,
        "MaxBurstLength" = "16777215", Rule::Range(512, 16_777_215)),
    offer!("max-burst-too-little", "§13.13, §6.2.2", "MaxBurstLength=511 is out of range: Reject, an admissible value, or a refusal.", REFUSE,
        "MaxBurstLength" = "511", Rule::Inadmissible(512, 16_777_215)),
    offer!("max-burst-too-much", "§13.13, §6.2.2", "MaxBurstLength=16777216 is out of range: Reject, an admissible value, or a refusal.", REFUSE,
        "MaxBurstLength" = "16777216", Rule::Inadmissible(512, 16_777_215)),
    offer!("max-burst-no-number", "§6.1, §6.2.2", "MaxBurstLength=many is no number: Reject, an admissible value, or a refusal.", REFUSE,
        "MaxBurstLength" = "many", Rule::Inadmissible(512, 16_777_215)),
    offer!("max-burst-negative", "§6.1, §6.2.2", "MaxBurstLength=-1 is no number of iSCSI's: Reject, an admissible value, or a refusal.", REFUSE,
        "MaxBurstLength" = "-1", Rule::Inadmissible(512, 16_777_215)),
    offer!("hexadecimal-number", "§6.1", "A number may be hexadecimal: MaxBurstLength=0x2000 is answered by at most 8192.", DIFFER,
        "MaxBurstLength" = "0x2000", Rule::Range(512, 8192)),
    offer!("first-burst-least", "§13.14, §6.2.2", "FirstBurstLength=512 is answered by 512, or is Irrelevant.", LIMIT,
        "FirstBurstLength" = "512", Rule::Exactly("512")),
    offer!("first-burst-too-little", "§13.14, §6.2.2", "FirstBurstLength=1 is out of range: Reject, an admissible value, or a refusal.", REFUSE,
        "FirstBurstLength" = "1", Rule::Inadmissible(512, 16_777_215)),
    offer!("time2wait-most", "§13.15, §6.2.2", "DefaultTime2Wait=3600 is answered by 3600: the result is the maximum.", DIFFER,
        "DefaultTime2Wait" = "3600", Rule::Exactly("3600")),
    offer!("time2wait-least", "§13.15", "DefaultTime2Wait=0 is answered by a number from 0 to 3600.", DIFFER,
        "DefaultTime2Wait" = "0", Rule::Range(0, 3600)),
    offer!("time2wait-too-much", "§13.15, §6.2.2", "DefaultTime2Wait=3601 is out of range: Reject, an admissible value, or a refusal.", REFUSE,
        "DefaultTime2Wait" = "3601", Rule::Inadmissible(0, 3600)),
    offer!("time2retain-0", "§13.16, §6.2.2", "DefaultTime2Retain=0 is answered by 0: the result is the minimum.", LIMIT,
        "DefaultTime2Retain" = "0", Rule::Exactly("0")),
    offer!("time2retain-most", "§13.16", "DefaultTime2Retain=3600 is answered by a number from 0 to 3600.", LIMIT,
        "DefaultTime2Retain" = "3600", Rule::Range(0, 3600)),
    offer!("outstanding-r2t-1", "§13.17, §6.2.2", "MaxOutstandingR2T=1 is answered by 1: the result is the minimum.", LIMIT,
        "MaxOutstandingR2T" = "1", Rule::Exactly("1")),
    offer!("outstanding-r2t-most", "§13.17", "MaxOutstandingR2T=65535 is answered by a number from 1 to 65535.", LIMIT,
        "MaxOutstandingR2T" = "65535", Rule::Range(1, 65_535)),
    offer!("outstanding-r2t-0", "§13.17, §6.2.2", "MaxOutstandingR2T=0 is out of range: Reject, an admissible value, or a refusal.", REFUSE,
        "MaxOutstandingR2T" = "0", Rule::Inadmissible(1, 65_535)),
    offer!("pdu-in-order-yes", "§13.18, §6.2.2", "DataPDUInOrder=Yes is answered by Yes, or not at all: the result is the OR of both.", DIFFER,
        "DataPDUInOrder" = "Yes", Rule::ExactlyIfAtAll("Yes")),
    offer!("sequence-in-order-yes", "§13.19, §6.2.2", "DataSequenceInOrder=Yes is answered by Yes, or not at all: the result is the OR of both.", DIFFER,
        "DataSequenceInOrder" = "Yes", Rule::ExactlyIfAtAll("Yes")),
    offer!("in-order-no", "§13.18, §6.2.2", "DataPDUInOrder=No is answered by Yes or No.", DIFFER,
        "DataPDUInOrder" = "No", Rule::Bool),
    offer!("recovery-level-0", "§13.20, §6.2.2", "ErrorRecoveryLevel=0 is answered by 0: the result is the minimum.", LIMIT,
        "ErrorRecoveryLevel" = "0", Rule::Exactly("0")),
    offer!("recovery-level-2", "§13.20", "ErrorRecoveryLevel=2 is answered by 0, 1 or 2.", LIMIT,
        "ErrorRecoveryLevel" = "2", Rule::Range(0, 2)),
    offer!("recovery-level-3", "§13.20, §6.2.2", "ErrorRecoveryLevel=3 is out of range: Reject, an admissible value, or a refusal.", REFUSE,
        "ErrorRecoveryLevel" = "3", Rule::Inadmissible(0, 2)),
    offer!("boolean-of-another-kind", "§6.1, §6.2.2", "InitialR2T=Maybe is no boolean: Reject, an admissible value, or a refusal.", REFUSE,
        "InitialR2T" = "Maybe", Rule::InadmissibleBool),
    offer!("unknown-key", "§6.2, §6.1", "A key that the target does not know is answered by NotUnderstood.", UNKNOWN,
        "NobodyKnowsThisKey" = "1", Rule::Exactly("NotUnderstood")),
    offer!("private-key", "§6.2, §13.22", "A private key (X-) that the target does not know is answered by NotUnderstood.", UNKNOWN,
        "X-org.stag.conform" = "1", Rule::Exactly("NotUnderstood")),
    offer!("keys-are-case-sensitive", "§6.1", "maxburstlength is another key than MaxBurstLength: NotUnderstood.", UNKNOWN,
        "maxburstlength" = "8192", Rule::Exactly("NotUnderstood")),
    offer!("task-reporting", "§13.23", "TaskReporting=RFC3720,ResponseFence,FastAbort is answered by one of these.", "The key tells what a response of task management means.",
        "TaskReporting" = "RFC3720,ResponseFence,FastAbort", Rule::Known(&["RFC3720", "ResponseFence", "FastAbort"])),
    offer!("protocol-level", "§13.24, RFC 7144 §3", "iSCSIProtocolLevel=1 is answered by 0 or 1.", "Initiators learn by it which SAM features may be used.",
        "iSCSIProtocolLevel" = "1", Rule::Known(&["0", "1"])),
    offer!("markers", "§13.25", "IFMarker=Yes, which is obsolete, is not answered by Yes.", "Nobody sends markers any more; a stream with them cannot be read.",
        "IFMarker" = "Yes", Rule::Not("Yes")),
    offer!("header-digest-none", "§13.1, §6.2.1", "HeaderDigest=None is answered by None, or by Reject where digests are required.", DIFFER,
        "HeaderDigest" = "None", Rule::Listed(&["None"])),
    offer!("header-digest-crc32c", "§13.1, §6.2.1", "HeaderDigest=CRC32C is answered by CRC32C, or by Reject where no digest is wanted.", DIFFER,
        "HeaderDigest" = "CRC32C", Rule::Listed(&["CRC32C"])).tcp(),
    offer!("data-digest-crc32c", "§13.1, §6.2.1", "DataDigest=CRC32C is answered by CRC32C, or by Reject where no digest is wanted.", DIFFER,
        "DataDigest" = "CRC32C", Rule::Listed(&["CRC32C"])).tcp(),
    offer!("list-of-unknown-values", "§6.2.1", "A list of which the target knows no value is answered by Reject, or the login is refused.", REFUSE,
        "HeaderDigest" = "X-org.stag.conform.sum", Rule::Listed(&[])),
    offer!("list-with-unknown-values", "§6.2.1", "Of a list the first value that the target knows and wants is chosen; others are skipped.", UNKNOWN,
        "DataDigest" = "X-org.stag.conform.sum,None", Rule::Listed(&["None"])),
    Check::must(Keys, "digest-order", "RFC 7143 §6.2.1, §13.1",
        "Of two digests that it supports the target chooses the one that is named first.",
        "The initiator orders by what it prefers; it may have to pay for a CRC that it does not want.",
        digest_order).tcp(),
    Check::must(Keys, "all-at-once", "RFC 7143 §6.2, §6.3",
        "Operational keys offered in one request are answered in the same exchange, each once.",
        "A key that is not answered has no result.",
        all_at_once),
    Check::should(Keys, "first-burst-within-max-burst", "RFC 7143 §13.14",
        "FirstBurstLength comes out no greater than MaxBurstLength.",
        "An initiator would send more unsolicited data than a burst may be long.",
        first_within_max),
    Check::must(Keys, "declared-segment-in-range", "RFC 7143 §13.12",
        "The MaxRecvDataSegmentLength that the target declares is from 512 to 16777215.",
        LIMIT,
        |lab| {
            let mut conn = lab.operational()?;
            let answer = conn.login_step(OPERATIONAL, None, &[("MaxRecvDataSegmentLength", "8192")])?;
            expect(answer.is_success(), "the login goes on", || answer.told())?;
            let told = conn.agreed("MaxRecvDataSegmentLength").map(str::to_owned);
            // Without a declaration of the target, its limit is the default of 8192.
            let Some(told) = told else { return not_applicable("the target declares none so far: 8192 holds") };
            let number = parse_number(&told).filter(|n| (512..=16_777_215).contains(n));
            expect(number.is_some(), "a number from 512 to 16777215", || format!("MaxRecvDataSegmentLength={told}"))
        }).tcp(),
    Check::must(Keys, "segment-too-little", "RFC 7143 §13.12, §6.2.2",
        "MaxRecvDataSegmentLength=1 is out of range: Reject or a refusal, and never a data segment of that length.",
        REFUSE,
        |lab| {
            let mut conn = lab.operational()?;
            let answer = conn.login_step(OPERATIONAL, None, &[("MaxRecvDataSegmentLength", "1")])?;
            let told = answer.get("MaxRecvDataSegmentLength");
            should(!answer.is_success() || told == Some("Reject"), "Reject, or a refusal", || answer.told())
        }).tcp(),
    Check::should(Keys, "irrelevant-in-discovery", "RFC 7143 §13.2, §6.2",
        "MaxConnections in a discovery session is answered by Irrelevant, Reject or 1.",
        "A discovery session has one connection.",
        |lab| {
            let (mut conn, _) = lab.secured(&lab.discovery())?;
            let answer = conn.login_step(OPERATIONAL, None, &[("MaxConnections", "8")])?;
            expect(answer.is_success(), "the login goes on", || answer.told())?;
            let told = answer.get("MaxConnections");
            expect(matches!(told, None | Some("Irrelevant" | "Reject" | "1")), "Irrelevant, Reject or 1", || answer.told())
        }),
    Check::should(Keys, "irrelevant-first-burst", "RFC 7143 §13.14, §6.2",
        "With InitialR2T=Yes and ImmediateData=No, FirstBurstLength is answered by Irrelevant or a number.",
        "There is no unsolicited data whose length could be limited.",
        |lab| {
            let mut conn = lab.operational()?;
            let keys = [("InitialR2T", "Yes"), ("ImmediateData", "No"), ("FirstBurstLength", "4096")];
            let answer = conn.login_step(OPERATIONAL, None, &keys)?;
            expect(answer.is_success(), "the login goes on", || answer.told())?;
            let told = answer.get("FirstBurstLength");
            let number = told.and_then(parse_number).is_some_and(|n| (512..=4096).contains(&n));
            expect(number || told == Some("Irrelevant"), "Irrelevant, or a number from 512 to 4096", || answer.told())
        }),
    Check::should(Keys, "no-sendtargets-in-login", "RFC 7143 §13.3",
        "SendTargets is no key of the login phase: Reject, or a refusal.",
        "It is for the full feature phase only; before it nobody may be known.",
        |lab| {
            let mut conn = lab.operational()?;
            let answer = conn.login_step(OPERATIONAL, None, &[("SendTargets", "All")])?;
            let told = answer.get("SendTargets");
            let declined = !answer.is_success() || matches!(told, Some("Reject" | "NotUnderstood" | "Irrelevant"));
            expect(declined && answer.get("TargetAddress").is_none(), "Reject, or a refusal", || answer.told())
        }),
];

#[derive(Clone, Copy)]
enum Rule {
    Exactly(&'static str),
    /// This value, or no answer: the offer has decided it (RFC 7143 §6.2.2).
    ExactlyIfAtAll(&'static str),
    Bool,
    /// A number in this range.
    Range(u64, u64),
    /// The offer was outside this range: Reject, a number within, or a refused login.
    Inadmissible(u64, u64),
    /// The offer was not a boolean: Reject, Yes, No, or a refused login.
    InadmissibleBool,
    /// One of these, or Reject, or a refused login.
    Listed(&'static [&'static str]),
    /// One of these. NotUnderstood is a warning: the key is newer than RFC 3720.
    Known(&'static [&'static str]),
    Not(&'static str),
}

fn single(lab: &Lab, key: &str, value: &str, rule: Rule) -> Verdict {
    let mut conn = lab.operational()?;
    let mut keys = vec![(key, value)];
    // Otherwise the key could be irrelevant.
    if key == "FirstBurstLength" {
        keys.insert(0, ("ImmediateData", "Yes"));
    }
    let answer = conn.login_step(OPERATIONAL, None, &keys)?;
    let refusable = matches!(rule, Rule::Inadmissible(..) | Rule::InadmissibleBool | Rule::Listed(_));
    if !answer.is_success() {
        return expect(refusable && answer.status() >> 8 == 2, format!("an answer to {key}={value}"), || {
            answer.told()
        });
    }
    expect(answer.malformed.is_none(), "a text of key=value pairs", || {
        answer.malformed.clone().unwrap_or_default()
    })?;
    let told = answer.pairs.iter().filter(|(name, _)| name == key).count();
    expect(told <= 1, format!("one answer to {key}"), || answer.told())?;
    let Some(told) = answer.get(key) else {
        if matches!(rule, Rule::ExactlyIfAtAll(_)) {
            return Ok(());
        }
        return expect(false, format!("an answer to {key}={value}"), || answer.told());
    };
    let number = parse_number(told);
    let within = |low, high| number.is_some_and(|n| (low..=high).contains(&n));
    let irrelevant = key == "FirstBurstLength" && told == "Irrelevant";
    let (holds, expected) = match rule {
        Rule::Exactly(wanted) | Rule::ExactlyIfAtAll(wanted) => {
            let same = told == wanted || (number.is_some() && number == parse_number(wanted));
            (same || irrelevant, format!("{key}={wanted}"))
        }
        Rule::Bool => (matches!(told, "Yes" | "No"), format!("{key}=Yes or {key}=No")),
        Rule::Range(low, high) => (within(low, high), format!("a number from {low} to {high}")),
        Rule::Inadmissible(low, high) => (
            told == "Reject" || irrelevant || within(low, high),
            format!("Reject, or a number from {low} to {high}"),
        ),
        Rule::InadmissibleBool => (matches!(told, "Reject" | "Yes" | "No"), "Reject, Yes or No".to_owned()),
        Rule::Listed(values) => (
            told == "Reject" || values.contains(&told),
            format!("Reject{}", values.iter().map(|v| format!(" or {v}")).collect::<String>()),
        ),
        Rule::Known(values) => {
            if told == "NotUnderstood" {
                return should(false, format!("one of {}", values.join(", ")), || format!("{key}={told}"));
            }
            (values.contains(&told), format!("one of {}", values.join(", ")))
        }
        Rule::Not(value) => (told != value, format!("not {value}")),
    };
    expect(holds, expected, || format!("{key}={told} in answer to {key}={value}"))
}

fn chosen(lab: &Lab, list: &str) -> Verdict<Answer> {
    lab.operational()?.login_step(OPERATIONAL, None, &[("HeaderDigest", list)])
}

fn digest_order(lab: &Lab) -> Verdict {
    for alone in ["CRC32C", "None"] {
        if chosen(lab, alone)?.get("HeaderDigest") != Some(alone) {
            return not_applicable(format!(
                "HeaderDigest={alone} is not accepted alone: there is nothing to choose"
            ));
        }
    }
    for (list, first) in [("CRC32C,None", "CRC32C"), ("None,CRC32C", "None")] {
        let answer = chosen(lab, list)?;
        expect(
            answer.get("HeaderDigest") == Some(first),
            format!("HeaderDigest={first} in answer to {list}"),
            || answer.told(),
        )?;
    }
    Ok(())
}

fn all_at_once(lab: &Lab) -> Verdict {
    let mut conn = lab.operational()?;
    let keys: Vec<(String, String)> = lab
        .usual_keys(&lab.normal())
        .into_iter()
        // Declarations need no answer, nor does a key whose offer alone decides.
        .filter(|(key, _)| {
            !["MaxRecvDataSegmentLength", "InitialR2T", "DataPDUInOrder", "DataSequenceInOrder"]
                .contains(&key.as_str())
        })
        .collect();
    let pairs: Vec<(&str, &str)> = keys.iter().map(|(key, value)| (key.as_str(), value.as_str())).collect();
    let mut answer = conn.login_step(OPERATIONAL, None, &pairs)?;
    expect(answer.is_success(), "the login goes on", || answer.told())?;
    // The target may answer the remaining keys in the next exchange.
    let more = conn.login_step(OPERATIONAL, None, &[])?;
    answer.pairs.extend(more.pairs);
    for (key, value) in &keys {
        let count = answer.pairs.iter().filter(|(name, _)| name == key).count();
        expect(count == 1, format!("one answer to {key}={value}"), || format!("{count} answers"))?;
    }
    Ok(())
}

fn first_within_max(lab: &Lab) -> Verdict {
    let mut conn = lab.operational()?;
    let keys = [("ImmediateData", "Yes"), ("MaxBurstLength", "4096"), ("FirstBurstLength", "65536")];
    let answer = conn.login_step(OPERATIONAL, None, &keys)?;
    if !answer.is_success() {
        // An offer above MaxBurstLength is also an error of the initiator.
        return untested(format!("the target refuses such an offer: {}", answer.told()));
    }
    if matches!(answer.get("FirstBurstLength"), Some("Reject" | "Irrelevant")) {
        return Ok(());
    }
    let (first, max) = (conn.number("FirstBurstLength", 65_536), conn.number("MaxBurstLength", 262_144));
    expect(first <= max, "FirstBurstLength of at most MaxBurstLength", || {
        format!("FirstBurstLength={first} and MaxBurstLength={max}")
    })
}
