//! `auth` of a target, an ACL or of discovery: `"none"`, or a table with CHAP names, secrets and
//! hashes.

use std::ops::Range;
use std::path::PathBuf;

use iscsi::chap::{Hash, Secret};
use toml::Spanned;
use toml::de::DeValue;
use zeroize::Zeroizing;

use super::model::{Acl, Auth, Chap, Credential, key};
use super::place::Place;
use super::problem::{Problems, mismatch};
use super::reader::{At, Table, table};
use super::summary;
use super::value::{Value, table_values};
use super::words::HASHES;
use crate::{credentials, suggest};

/// Bytes of a secret. RFC 7143 §12.1.3 demands 96 random bits; CHAP's own length field ends at 255
/// (RFC 1994 §4.1).
pub const SECRET_BYTES: std::ops::RangeInclusive<usize> = 12..=255;

/// Prefix of paths of systemd credentials.
const CREDENTIALS: &str = "$CREDENTIALS_DIRECTORY/";

table_values! {
    Auth, auth, summary::auth;
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
        given.missing("users", key("auth", "users").required.unwrap_or_default(), problems);
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
    let hash = key("auth", "hashes").element();
    let hashes = match given.list("hashes") {
        // The strongest first.
        None => vec![Hash::Sha3_256, Hash::Sha256, Hash::Sha1, Hash::Md5],
        Some(names) if names.is_empty() => {
            let there = suggest::list(HASHES.iter().map(|(name, _)| *name));
            let instead = format!("there are {there}; leave `hashes` out for all");
            problems.error(&given.span, "no hash is left to use", instead);
            Vec::new()
        }
        Some(names) => {
            names.into_iter().filter_map(|name| Hash::read(&hash, name, place, problems)).collect()
        }
    };
    given.end(problems);
    (!seen.is_empty()).then_some(Chap { users: seen, mutual, hashes })
}

/// Checks the user whom an ACL names. `auth` is what holds for the ACL.
pub fn check_user(user: &At<String>, auth: &Auth, problems: &mut Problems) {
    // Mistakes in the users themselves have been reported.
    if problems.fatal() {
        return;
    }
    let Auth::Chap(chap) = auth else {
        let what = format!("nobody proves to be the user \"{}\" where auth = \"none\"", user.value);
        problems.error(&user.span, what, "leave `user` out, or give the ACL or the target CHAP users");
        return;
    };
    if !chap.users.iter().any(|other| other.name == user.value) {
        let there = suggest::list(chap.users.iter().map(|user| user.name.as_str()));
        let what = format!("there is no user \"{}\"", user.value);
        problems.error(&user.span, what, format!("there are {there}"));
    }
}

/// Warns of rights of an initiator whose name several users may take. `auth` is the target's.
pub fn shared_by_users(auth: &Auth, acls: &[Acl], spans: &[Range<usize>], problems: &mut Problems) {
    let own_rights = |acl: &Acl| {
        let limited = acl.limits != Default::default();
        limited || acl.luns.is_some() || acl.auth.is_some() || acl.user.is_some()
    };
    if !acls.iter().any(own_rights) {
        return;
    }
    let shared = |acl: &Acl| match acl.auth.as_ref().unwrap_or(auth) {
        Auth::Chap(chap) => acl.user.is_none() && chap.users.len() > 1,
        Auth::None => false,
    };
    let mut all = acls.iter().zip(spans).filter(|(acl, _)| shared(acl));
    if let Some((first, span)) = all.next() {
        let more = match all.count() {
            0 => String::new(),
            1 => " and one more".to_owned(),
            more => format!(" and {more} more"),
        };
        let what = format!(
            "several users may log in under the name {}{more}, and have the rights of that name",
            first.initiator
        );
        problems.warn(span, what, "name the user whose it is: user = \"alice\"");
    }
}

fn credential(mut given: Table<'_>, place: &Place<'_>, problems: &mut Problems) -> Option<Credential> {
    let name = given.value(&key("users", "name"), place, problems);
    let inline = given.text("secret", problems);
    let file = given.text("secret-file", problems);
    let secret = match (inline, file) {
        (Some(inline), None) => {
            if place.open_to_others {
                let what = "a secret stands in a file that others may read";
                problems.warn(&inline.span, what, "chmod 600 the file, or use secret-file");
            }
            check(Secret::new(inline.value.into_bytes()), &inline.span, problems)
        }
        (None, Some(file)) => from_file(&file, place, problems),
        (Some(_), Some(file)) => {
            problems.error(&file.span, "the secret is given twice", "leave `secret` or `secret-file` out");
            None
        }
        (None, None) => {
            given.missing("secret", "secret-file = \"alice.secret\", or secret = \"…\"", problems);
            None
        }
    };
    given.end(problems);
    Some(Credential { name: name?.value, secret: secret? })
}

/// Reads a secret from a file that holds it alone.
fn from_file(file: &At<String>, place: &Place<'_>, problems: &mut Problems) -> Option<Secret> {
    let wanted = "write the path of a file that holds the secret alone";
    match content(file, wanted, place, problems)? {
        Content::Read(_, mut bytes) => check(Secret::new(std::mem::take(&mut *bytes)), &file.span, problems),
        Content::Unseen => Some(Secret::new(*b"not seen by who checks")),
    }
}

/// A secret file, as this process sees it.
pub enum Content {
    /// Its path, and its bytes without the newline at the end.
    Read(PathBuf, Zeroizing<Vec<u8>>),
    /// Only the service itself sees it.
    Unseen,
}

/// Reads a file of secrets. `$CREDENTIALS_DIRECTORY/NAME` is one of the service's credentials
/// (systemd.exec(5), LoadCredential=). `wanted` is advice about a file that cannot be read.
pub fn content(
    file: &At<String>,
    wanted: &str,
    place: &Place<'_>,
    problems: &mut Problems,
) -> Option<Content> {
    let span = &file.span;
    let credential = file.value.starts_with(CREDENTIALS);
    // The service manager need not show credentials to other commands of the service, such as those
    // of ExecReload=.
    let unseen = |problems: &mut Problems| {
        problems.warn(span, "only the service itself sees this secret: it is not checked", "");
        Some(Content::Unseen)
    };
    let path = match file.value.strip_prefix(CREDENTIALS) {
        None => place.directory.join(&file.value),
        Some(name) => match credentials::directory() {
            Some(directory) => directory.join(name),
            None if place.serves => {
                let what = "this process has no credentials of systemd's";
                let instead =
                    format!("give the service LoadCredential={name}:FILE, or write the file's path here");
                problems.error(span, what, instead);
                return None;
            }
            None => return unseen(problems),
        },
    };
    place.secret_files.borrow_mut().push(path.clone());
    match crate::secret::read_bytes(&path) {
        Ok((mode, bytes)) => {
            if mode & 0o077 != 0 {
                let what = format!("others may read {}", path.display());
                problems.warn(span, what, format!("chmod 600 {}", path.display()));
            }
            Some(Content::Read(path, bytes))
        }
        Err(_) if credential && !place.serves => unseen(problems),
        Err(error) => {
            let what = format!("the secret cannot be read: {}: {error}", path.display());
            problems.error(span, what, wanted);
            None
        }
    }
}

fn check(secret: Secret, span: &Range<usize>, problems: &mut Problems) -> Option<Secret> {
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
