//! The state directory: what must outlive the daemon and has no place beside a medium. Owns where it is and what its files are
//! called; knows nothing of their content.

use std::fs::DirBuilder;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

use device::Names;
use rustix::process::geteuid;

/// Longest name of a file that is spelled out, bytes: with an ending it fits the 255 of every file system.
const LONGEST: usize = 200;

/// The state directory: `$STATE_DIRECTORY` (systemd's, of several the first), `/var/lib/stag` for root, else `stag` in
/// `$XDG_STATE_HOME` or `~/.local/state`. `None` for a user without a home.
pub fn directory() -> Option<PathBuf> {
    let of = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    if let Some(given) = std::env::var("STATE_DIRECTORY").ok().filter(|given| !given.is_empty()) {
        return given.split(':').next().map(PathBuf::from);
    }
    if cfg!(test) {
        // Tests keep nothing where the machine's own daemon does.
        return Some(std::env::temp_dir().join(format!("stag-tests-{}", std::process::id())));
    }
    if geteuid().is_root() {
        return Some("/var/lib/stag".into());
    }
    let state = of("XDG_STATE_HOME").or_else(|| Some(of("HOME")?.join(".local/state")))?;
    Some(state.join("stag"))
}

/// The state directory, made if it is missing; `None` if there is none, which is told to whoever needs it.
pub fn made() -> Option<PathBuf> {
    let directory = directory()?;
    make_folder(&directory.join("of")).ok()?;
    Some(directory)
}

/// The file of `kind` (a folder of the state directory) that belongs to `key`.
///
/// # Errors
/// Why there is none.
pub fn path(kind: &str, key: &str) -> Result<PathBuf, String> {
    let directory = directory().ok_or("there is no state directory: set STATE_DIRECTORY to one")?;
    Ok(directory.join(kind).join(name(key)))
}

/// Makes the folder that `file` is to be in, for this user alone.
///
/// # Errors
/// Why it cannot be made, and what to do.
pub fn make_folder(file: &Path) -> Result<(), String> {
    let folder = file.parent().unwrap_or(Path::new("/"));
    let made = DirBuilder::new().recursive(true).mode(0o700).create(folder);
    made.map_err(|error| {
        format!("{} cannot be made ({error}): set STATE_DIRECTORY to a directory that can", folder.display())
    })
}

/// A key as the name of a file: letters, digits and `.:_-` stand for themselves, other bytes as `%` and two digits. A long one
/// ends in a hash of all of it.
fn name(key: &str) -> String {
    let mut name = String::new();
    for byte in key.bytes() {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b':' | b'_' | b'-' => name.push(byte.into()),
            // No name begins with a dot.
            b'.' if !name.is_empty() => name.push('.'),
            other => name.push_str(&format!("%{other:02x}")),
        }
    }
    if name.len() > LONGEST {
        let Names { serial, naa } = Names::derived(key);
        name.truncate(LONGEST - 40);
        name.push_str(&format!("-{serial}{}", hex(&naa)));
    }
    name
}

/// Bytes in hexadecimal.
pub fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_become_names_that_are_legal_and_different() {
        assert_eq!(name("memory:iqn.2026-01.a:b/0"), "memory:iqn.2026-01.a:b%2f0");
        assert_eq!(name("../x"), "%2e.%2fx");
        let long = |last: &str| name(&format!("{}{last}", "é".repeat(200)));
        assert!(long("a").len() <= LONGEST && long("a") != long("b"));
    }
}
