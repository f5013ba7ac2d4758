//! The state directory: files that must outlive the daemon and cannot lie beside a medium. Owns its
//! place and the names of its files; knows nothing of their content.

use std::fs::DirBuilder;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

use device::Names;
use rustix::process::geteuid;

/// Longest unhashed file name, bytes: with an ending it fits the 255 of every file system.
const LONGEST: usize = 200;

/// The state directory: `$STATE_DIRECTORY` (from systemd; of several the first), `/var/lib/stag`
/// for root, else `stag` in `$XDG_STATE_HOME` or `~/.local/state`. `None` for a user without a
/// home.
pub fn directory() -> Option<PathBuf> {
    let of = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    if let Some(given) = std::env::var("STATE_DIRECTORY").ok().filter(|given| !given.is_empty()) {
        return given.split(':').next().map(PathBuf::from);
    }
    if cfg!(test) {
        // Tests must not use the directory of the machine's own daemon.
        return Some(std::env::temp_dir().join(format!("stag-tests-{}", std::process::id())));
    }
    if geteuid().is_root() {
        return Some("/var/lib/stag".into());
    }
    let state = of("XDG_STATE_HOME").or_else(|| Some(of("HOME")?.join(".local/state")))?;
    Some(state.join("stag"))
}

/// The state directory, created if it is missing. `None` if it cannot be, which its users report.
pub fn made() -> Option<PathBuf> {
    let directory = directory()?;
    make_folder(&directory.join("of")).ok()?;
    Some(directory)
}

/// The file of `kind` (a folder of the state directory) that belongs to `key`.
///
/// # Errors
/// There is no state directory.
pub fn path(kind: &str, key: &str) -> Result<PathBuf, String> {
    let directory = directory().ok_or("there is no state directory: set STATE_DIRECTORY to one")?;
    Ok(directory.join(kind).join(name(key)))
}

/// Creates the parent directory of `file`, for this user alone.
///
/// # Errors
/// It cannot be created; with advice.
pub fn make_folder(file: &Path) -> Result<(), String> {
    let folder = file.parent().unwrap_or(Path::new("/"));
    let made = DirBuilder::new().recursive(true).mode(0o700).create(folder);
    made.map_err(|error| {
        format!("{} cannot be made ({error}): set STATE_DIRECTORY to a directory that can", folder.display())
    })
}

/// A key as a file name: letters, digits and `.:_-` as they are, other bytes as `%` and two
/// hexadecimal digits. A long name ends in a hash of the whole key.
fn name(key: &str) -> String {
    let mut name = String::new();
    for byte in key.bytes() {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b':' | b'_' | b'-' => name.push(byte.into()),
            // A file name must not begin with a dot.
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
