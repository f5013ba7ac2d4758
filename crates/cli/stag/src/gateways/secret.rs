//! The lines of the group's secret file.

use std::path::Path;

use zeroize::Zeroizing;

use crate::config::gateways::{OF_USERS, secret, secrets_of};
use crate::state::hex;

/// Bytes of a new secret.
const BYTES: usize = 32;

/// A new secret as a line. Before it the newest line of `after` and that of users, if it has one;
/// without `after`, a new one of users.
///
/// # Errors
/// The file cannot be read, or the system has no random bytes.
pub fn lines(after: Option<&Path>) -> Result<Zeroizing<String>, String> {
    let mut lines = Zeroizing::new(String::new());
    let Some(file) = after else {
        for number in [OF_USERS, 1] {
            lines.push_str(&line(number)?);
        }
        return Ok(lines);
    };
    let wrong = |error: &dyn std::fmt::Display| format!("{}: {error}", file.display());
    let (_, text) = crate::secret::read_bytes(file).map_err(|error| wrong(&error))?;
    let known = secrets_of(&text).map_err(|error| wrong(&error))?;
    let newest = known.into_keys().next_back().unwrap_or_default();
    let stays = |line: &&[u8]| secret(line).is_some_and(|(number, _)| [OF_USERS, newest].contains(&number));
    for line in text.split(|byte| *byte == b'\n').filter(stays) {
        lines.push_str(&String::from_utf8_lossy(line.trim_ascii()));
        lines.push('\n');
    }
    let next = newest.checked_add(1).ok_or_else(|| wrong(&"its numbers are used up"))?;
    lines.push_str(&line(next)?);
    Ok(lines)
}

/// A new secret with this number.
fn line(number: u32) -> Result<Zeroizing<String>, String> {
    let mut bytes = Zeroizing::new([0; BYTES]);
    getrandom::fill(&mut *bytes).map_err(|error| format!("there are no random bytes: {error}"))?;
    let digits = Zeroizing::new(hex(&*bytes));
    Ok(Zeroizing::new(format!("{number} {}\n", *digits)))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn a_new_secret_follows_the_newest_one() {
        let first = lines(None).unwrap();
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::set_permissions(file.path(), std::fs::Permissions::from_mode(0o600)).unwrap();
        std::fs::write(file.path(), first.as_bytes()).unwrap();
        let both = lines(Some(file.path())).unwrap();
        assert!(both.starts_with(first.as_str()));
        let secrets = secrets_of(both.as_bytes()).unwrap();
        assert_eq!(secrets.into_keys().collect::<Vec<_>>(), [OF_USERS, 1, 2]);
        std::fs::write(file.path(), both.as_bytes()).unwrap();
        let next = lines(Some(file.path())).unwrap();
        let secrets = secrets_of(next.as_bytes()).unwrap();
        assert_eq!(secrets.keys().copied().collect::<Vec<_>>(), [OF_USERS, 2, 3]);
        assert_eq!(secrets[&OF_USERS], secrets_of(first.as_bytes()).unwrap()[&OF_USERS]);
        assert!(lines(Some(Path::new("/no/such/file"))).is_err());
    }
}
