//! Redirection at login (RFC 7143 §11.13.5, §13.8).

use iscsi::discovery::TargetAddress;

use crate::check::Area::Redirect;
use crate::check::Check;
use crate::finding::{Verdict, expect, not_applicable};
use crate::lab::Lab;
use crate::login::Answer;

const MOVED: &str = "An initiator that is told to go and not where to cannot go.";

pub(super) const CHECKS: &[Check] = &[
    Check::must(
        Redirect,
        "status",
        "RFC 7143 §11.13.5",
        "A redirection is status 0101h (temporarily) or 0102h (permanently).",
        MOVED,
        |lab| {
            let answer = moved(lab)?;
            let status = answer.status();
            expect(matches!(status, 0x0101 | 0x0102), "status 0101 or 0102", || answer.told())
        },
    ),
    Check::must(
        Redirect,
        "address",
        "RFC 7143 §11.13.5, §13.8",
        "A redirection names a TargetAddress.",
        MOVED,
        |lab| {
            let answer = moved(lab)?;
            let address = answer.get("TargetAddress").and_then(TargetAddress::parse);
            expect(address.is_some(), "TargetAddress=host[:port]", || answer.told())
        },
    ),
    Check::must(
        Redirect,
        "address-without-group-tag",
        "RFC 7143 §13.8",
        "The TargetAddress of a redirection has no portal group tag.",
        "The tag is of SendTargets alone; initiators take it for a part of the address.",
        |lab| {
            let answer = moved(lab)?;
            let address = answer.get("TargetAddress").and_then(TargetAddress::parse);
            let tag = address.and_then(|address| address.portal_group_tag);
            expect(tag.is_none(), "no portal group tag", || answer.told())
        },
    ),
];

fn moved(lab: &Lab) -> Verdict<Answer> {
    match &*lab.redirection.borrow() {
        Some(answer) => Ok(answer.clone()),
        None => not_applicable("the target does not redirect"),
    }
}
