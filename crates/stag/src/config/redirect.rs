//! `redirect` of a target: where it is instead, as text, or as a table that says more.

use iscsi::discovery::TargetAddress;
use toml::Spanned;
use toml::de::DeValue;

use super::model::Redirect;
use super::problem::Problems;
use super::reader::{At, mismatch, table};

const EXAMPLE: &str = "write \"192.0.2.20:3260\", or { to = \"192.0.2.20:3260\", permanent = true }";

/// Reads the value of a `redirect` key.
pub fn redirect(value: &Spanned<DeValue<'_>>, problems: &mut Problems) -> Option<Redirect> {
    match value.get_ref() {
        DeValue::String(text) => {
            let address = address(&At { value: text.to_string(), span: value.span() }, problems)?;
            Some(Redirect { address, permanent: false, after_auth: false })
        }
        DeValue::Table(_) => {
            let mut given = table("redirect", value, "a table", problems)?;
            let to = given.string("to", problems);
            if to.is_none() {
                given.missing("to", "to = \"192.0.2.20:3260\"", problems);
            }
            let permanent = given.bool("permanent", problems).unwrap_or(false);
            let after_auth = given.bool("after-auth", problems).unwrap_or(false);
            given.end(problems);
            Some(Redirect { address: address(&to?, problems)?, permanent, after_auth })
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
