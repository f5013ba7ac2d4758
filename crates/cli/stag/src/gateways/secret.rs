//! The lines of the group's secret file.

use std::path::Path;

use zeroize::Zeroizing;

use crate::config::gateways::{secret, secrets_of};
use crate::state::hex;

/// Bytes of a new secret.
const BYTES: usize = 32;

/// A new secret as a line, with the newest line of `after` before it.
///
/// # Errors
/// The file cannot be read, or the system has no random bytes.
pub fn lines(after: Option<&Path>) -> Result<Zeroizing<String>, String> {
    let mut bytes = Zeroizing::new([0; BYTES]);
    getrandom::fill(&mut *bytes).map_err(|error| format!("there are no random bytes: {error}"))?;
    let mut lines = Zeroizing::new(String::new());
    let mut number = 1;
    if let Some(file) = after {
        let wrong = |error: &dyn std::fmt::Display| format!("{}: {error}", file.display());
        let (_, text) = crate::secret::read_bytes(file).map_err(|error| wrong(&error))?;
        let known = secrets_of(&text).map_err(|error| wrong(&error))?;
        let newest = known.into_keys().next_back().unwrap_or_default();
        let is_newest = |line: &&[u8]| secret(line).is_some_and(|(number, _)| number == newest);
        let line = text.split(|byte| *byte == b'\n').find(is_newest).unwrap_or_default();
        lines.push_str(&String::from_utf8_lossy(line.trim_ascii()));
        lines.push('\n');
        number = newest.checked_add(1).ok_or_else(|| wrong(&"its numbers are used up"))?;
    }
    let digits = Zeroizing::new(hex(&*bytes));
    lines.push_str(&format!("{number} {}\n", *digits));
    Ok(lines)
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
        assert_eq!(secrets.into_keys().collect::<Vec<_>>(), [1, 2]);
        std::fs::write(file.path(), both.as_bytes()).unwrap();
        let next = lines(Some(file.path())).unwrap();
        assert_eq!(secrets_of(next.as_bytes()).unwrap().into_keys().collect::<Vec<_>>(), [2, 3]);
        assert!(lines(Some(Path::new("/no/such/file"))).is_err());
    }
}
