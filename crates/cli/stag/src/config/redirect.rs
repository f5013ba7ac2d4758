//! `redirect` of a target: where it is instead, as text, or as a table that says more.

use iscsi::discovery::TargetAddress;
use toml::Spanned;
use toml::de::DeValue;

use super::model::{Redirect, key};
use super::place::Place;
use super::problem::{Problems, mismatch};
use super::reader::{At, table};
use super::summary;
use super::value::table_values;

const EXAMPLE: &str = "write \"192.0.2.20:3260\", or { to = \"192.0.2.20:3260\", permanent = true }";

table_values! {
    Redirect, redirect, summary::redirect;
}

/// Reads the value of a `redirect` key.
pub fn redirect(
    value: &Spanned<DeValue<'_>>,
    place: &Place<'_>,
    problems: &mut Problems,
) -> Option<Redirect> {
    match value.get_ref() {
        DeValue::String(text) => {
            let address = address(&At { value: text.to_string(), span: value.span() }, problems)?;
            Some(Redirect { address, permanent: false, after_auth: false })
        }
        DeValue::Table(_) => {
            let mut given = table("redirect", value, "a table", problems)?;
            let to = given.value(&key("redirect", "to"), place, problems);
            let permanent = given.value(&key("redirect", "permanent"), place, problems);
            let after_auth = given.value(&key("redirect", "after-auth"), place, problems);
            given.end(problems);
            Some(Redirect {
                address: address(&to?, problems)?,
                permanent: permanent.is_some_and(|at| at.value),
                after_auth: after_auth.is_some_and(|at| at.value),
            })
        }
        other => mismatch("redirect", "an address in quotes, or a table", other, value.span(), problems),
    }
}

fn address(text: &At<String>, problems: &mut Problems) -> Option<TargetAddress> {
    let Some(address) = TargetAddress::parse(&text.value) else {
        problems.error(&text.span, format!("\"{}\" is no portal to send initiators to", text.value), EXAMPLE);
        return None;
    };
    if address.portal_group_tag.is_some() {
        let what = "a redirection tells no portal group (RFC 7143 §13.8)";
        problems.error(&text.span, what, format!("write \"{}:{}\"", address.host, address.port));
        return None;
    }
    Some(address)
}
