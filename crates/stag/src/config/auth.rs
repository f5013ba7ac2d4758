//! `auth` of a target, an ACL or of discovery: `"none"`, or a table with CHAP names, secrets and hashes.

use std::ops::Range;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use toml::Spanned;
use toml::de::DeValue;

use super::model::{Auth, Chap, ChapHash, Credential};
use super::problem::Problems;
use super::reader::{Table, mismatch, table};
use crate::suggest;

/// Bytes of a secret. RFC 7143 §12.1.3 demands 96 random bits; CHAP's own length field ends at 255 (RFC 1994 §4.1).
pub const SECRET_BYTES: std::ops::RangeInclusive<usize> = 12..=255;

/// What reading secrets needs to know of the file that names them.
pub struct Place<'a> {
    /// The directory that relative paths start from.
    pub directory: &'a Path,
    /// Whether others may read the configuration itself.
    pub open_to_others: bool,
}

/// Reads the value of an `auth` key.
pub fn auth(value: &Spanned<DeValue<'_>>, place: &Place<'_>, problems: &mut Problems) -> Option<Auth> {
    match value.get_ref() {
        DeValue::String(text) if text == "none" => Some(Auth::None),
        DeValue::String(text) => {
            let what = format!("there is no authentication \"{text}\"");
            let instead =
                "write auth = \"none\" or auth = { users = [{ name = \"…\", secret-file = \"…\" }] }";
            problems.error(&value.span(), what, instead);
            None
        }
        DeValue::Table(_) => {
            chap(table("auth", value, "a table", problems)?, place, problems).map(Auth::Chap)
        }
        other => mismatch("auth", "\"none\" or a table", other, value.span(), problems),
    }
}

fn chap(mut given: Table<'_>, place: &Place<'_>, problems: &mut Problems) -> Option<Chap> {
    let span = given.span.clone();
    let users = given.tables("users", problems);
    if users.as_ref().is_none_or(Vec::is_empty) {
        given.missing("users", "users = [{ name = \"alice\", secret-file = \"alice.secret\" }]", problems);
    }
    let mut seen: Vec<Credential> = Vec::new();
    for user in users.unwrap_or_default() {
        let span = user.span.clone();
        if let Some(user) = credential(user, place, problems) {
            if seen.iter().any(|other| other.name == user.name) {
                problems.error(
                    &span,
                    format!("there are two users `{}`", user.name),
                    "give each its own name",
                );
            }
            seen.push(user);
        }
    }
    let mutual = given.table("mutual", problems);
    let mutual_span = mutual.as_ref().map_or(span, |table| table.span.clone());
    let mutual = mutual.and_then(|table| credential(table, place, problems));
    if mutual.as_ref().is_some_and(|mutual| seen.iter().any(|user| user.secret == mutual.secret)) {
        let what =
            "the target proves itself with a secret that a user has too, so that user can pose as the target";
        problems.error(&mutual_span, what, "give `mutual` a secret of its own (RFC 7143 §12.1.3)");
    }
    let hashes = match given.list("hashes") {
        None => ChapHash::ALL.map(|(_, hash)| hash).to_vec(),
        Some(names) if names.is_empty() => {
            let there = suggest::list(ChapHash::ALL.map(|(name, _)| name));
            let instead = format!("there are {there}; leave `hashes` out for all");
            problems.error(&given.span, "no hash is left to use", instead);
            Vec::new()
        }
        Some(names) => names.into_iter().filter_map(|name| hash(name, problems)).collect(),
    };
    given.end(problems);
    (!seen.is_empty()).then_some(Chap { users: seen, mutual, hashes })
}

fn hash(value: &Spanned<DeValue<'_>>, problems: &mut Problems) -> Option<ChapHash> {
    let DeValue::String(text) = value.get_ref() else {
        return mismatch("hashes", "an array of names", value.get_ref(), value.span(), problems);
    };
    let found = ChapHash::ALL.iter().find(|(name, _)| name == text).map(|(_, hash)| *hash);
    if found.is_none() {
        let names = ChapHash::ALL.map(|(name, _)| name);
        let instead = match suggest::nearest(text, names) {
            Some(near) => format!("did you mean \"{near}\"?"),
            None => format!("there are {}", suggest::list(names)),
        };
        problems.error(&value.span(), format!("CHAP has no hash \"{text}\""), instead);
    }
    found
}

fn credential(mut given: Table<'_>, place: &Place<'_>, problems: &mut Problems) -> Option<Credential> {
    let name = given.string("name", problems);
    let inline = given.string("secret", problems);
    let file = given.string("secret-file", problems);
    let secret = match (inline, file) {
        (Some(inline), None) => {
            if place.open_to_others {
                let what = "a secret stands in a file that others may read";
                problems.warn(&inline.span, what, "chmod 600 the file, or use secret-file");
            }
            check(inline.value.into_bytes(), &inline.span, problems)
        }
        (None, Some(file)) => {
            let path = place.directory.join(&file.value);
            from_file(&path, &file.span, problems)
        }
        (Some(_), Some(file)) => {
            problems.error(&file.span, "the secret is given twice", "leave `secret` or `secret-file` out");
            None
        }
        (None, None) => {
            given.missing("secret", "secret-file = \"alice.secret\", or secret = \"…\"", problems);
            None
        }
    };
    match &name {
        None => given.missing("name", "name = \"alice\"", problems),
        Some(name) if !(1..=255).contains(&name.value.len()) => {
            problems.error(&name.span, "a CHAP name has 1 to 255 bytes", "write a name");
        }
        Some(_) => {}
    }
    given.end(problems);
    Some(Credential { name: name?.value, secret: secret? })
}

fn from_file(path: &PathBuf, span: &Range<usize>, problems: &mut Problems) -> Option<Vec<u8>> {
    let read = || -> std::io::Result<(u32, Vec<u8>)> {
        let about = std::fs::metadata(path)?;
        if !about.is_file() || about.len() > 4096 {
            return Err(std::io::Error::other("not a small file"));
        }
        Ok((about.permissions().mode(), std::fs::read(path)?))
    };
    match read() {
        Ok((mode, mut secret)) => {
            if mode & 0o077 != 0 {
                let what = format!("others may read {}", path.display());
                problems.warn(span, what, format!("chmod 600 {}", path.display()));
            }
            while secret.last().is_some_and(|byte| matches!(byte, b'\n' | b'\r')) {
                secret.pop();
            }
            check(secret, span, problems)
        }
        Err(error) => {
            let what = format!("the secret cannot be read: {}: {error}", path.display());
            problems.error(span, what, "write the path of a file that holds the secret alone");
            None
        }
    }
}

fn check(secret: Vec<u8>, span: &Range<usize>, problems: &mut Problems) -> Option<Vec<u8>> {
    if SECRET_BYTES.contains(&secret.len()) {
        return Some(secret);
    }
    let what = format!(
        "a CHAP secret has {} to {} bytes, and not {}",
        SECRET_BYTES.start(),
        SECRET_BYTES.end(),
        secret.len()
    );
    problems.error(span, what, "openssl rand -base64 24 makes a good one");
    None
}
