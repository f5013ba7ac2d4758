//! Tokens of the HTTP API: their roles, and their file in the state directory. A token is shown
//! once, when it is made; only its SHA-256 is kept. No hash gives 256 random bits away.

use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};
use std::time::{SystemTime, UNIX_EPOCH};

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use crate::state::{self, hex};

/// The beginning of every token, by which scanners for leaked secrets find it.
const BEGINNING: &str = "stag_";
/// Tokens at most.
const MOST: usize = 1000;
/// The largest file that is read, bytes.
const MAX_FILE: usize = 1 << 20;

/// What a token permits. Each role may do what those before it may.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum Role {
    /// Read metrics
    Metrics,
    /// Read everything, without secrets
    Read,
    /// Move clients: drain, disconnect, ALUA
    Operate,
    /// Change what is served
    Admin,
}

impl Role {
    /// Its name.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Metrics => "metrics",
            Self::Read => "read",
            Self::Operate => "operate",
            Self::Admin => "admin",
        }
    }
}

/// A token, as it is kept.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Token {
    pub name: String,
    pub role: Role,
    /// Seconds since 1970.
    pub made_unix_s: u64,
    /// Its SHA-256, hexadecimal.
    sha256: String,
}

/// SHA-256 of a token's text.
pub type Hash = [u8; 32];

/// All tokens of a daemon.
pub struct Tokens {
    path: Result<PathBuf, String>,
    /// Held while the file is replaced. `all` is not: `find` must not wait for a medium.
    changing: Mutex<()>,
    /// As in the file; an error if that cannot be read.
    all: Mutex<Result<Vec<Token>, String>>,
}

impl Tokens {
    /// The tokens in `tokens.json` of the state directory.
    pub fn load() -> Self {
        let directory = state::directory().ok_or_else(|| "there is no state directory".to_owned());
        Self::of(directory.map(|directory| directory.join("tokens.json")))
    }

    fn of(path: Result<PathBuf, String>) -> Self {
        let all = path.clone().and_then(|path| read(&path));
        Self { path, changing: Mutex::default(), all: Mutex::new(all) }
    }

    /// Names and roles.
    ///
    /// # Errors
    /// The file cannot be read.
    pub fn list(&self) -> Result<Vec<Token>, String> {
        self.all.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Makes a token, and returns its text.
    ///
    /// # Errors
    /// The name is taken or none, or the file cannot be written.
    pub fn add(&self, name: &str, role: Role) -> Result<String, String> {
        let is_word = |c: char| c.is_ascii_alphanumeric() || "-_.@".contains(c);
        if name.is_empty() || name.len() > 64 || !name.chars().all(is_word) {
            return Err("a token's name has 1 to 64 letters, digits and -_.@".into());
        }
        let mut random = [0; 32];
        runtime::random(&mut random).map_err(|error| format!("there are no random bits: {error}"))?;
        let text = format!("{BEGINNING}{}", hex(&random));
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let token =
            Token { name: name.to_owned(), role, made_unix_s: now.as_secs(), sha256: hex(&hash(&text)) };
        self.change(|all| {
            if all.iter().any(|other| other.name == name) {
                return Err(format!("there is a token {name} already: remove it first"));
            }
            if all.len() >= MOST {
                return Err(format!("there are {MOST} tokens already: remove one"));
            }
            all.push(token);
            Ok(())
        })?;
        Ok(text)
    }

    /// Removes a token. Whether it was there.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn remove(&self, name: &str) -> Result<bool, String> {
        let mut was_there = false;
        self.change(|all| {
            let before = all.len();
            all.retain(|token| token.name != name);
            was_there = all.len() < before;
            Ok(())
        })?;
        Ok(was_there)
    }

    /// Name and role of the token with this text.
    #[cfg(feature = "http")]
    pub fn find(&self, text: &str) -> Option<(String, Role)> {
        self.find_by_hash(&hash(text))
    }

    /// Name and role of the token whose text has this hash: none once it has been removed.
    #[cfg(feature = "http")]
    pub fn find_by_hash(&self, wanted: &Hash) -> Option<(String, Role)> {
        let wanted = hex(wanted);
        let all = self.all.lock().unwrap_or_else(PoisonError::into_inner);
        let mut found = None;
        // All are compared, each in a time that does not depend on its bytes.
        for token in all.as_ref().ok()? {
            if is_equal(wanted.as_bytes(), token.sha256.as_bytes()) {
                found = Some((token.name.clone(), token.role));
            }
        }
        found
    }

    fn change(&self, edit: impl FnOnce(&mut Vec<Token>) -> Result<(), String>) -> Result<(), String> {
        let _changing = self.changing.lock();
        let mut next = self.list()?;
        edit(&mut next)?;
        let path = self.path.clone()?;
        let failed = |error: std::io::Error| format!("{} cannot be written: {error}", path.display());
        let bytes = serde_json::to_vec_pretty(&next).map_err(|error| failed(error.into()))?;
        state::make_folder(&path)?;
        backing::durable::replace(&path, &bytes).map_err(failed)?;
        *self.all.lock().unwrap_or_else(PoisonError::into_inner) = Ok(next);
        Ok(())
    }
}

fn read(path: &Path) -> Result<Vec<Token>, String> {
    let failed = |error: &dyn std::fmt::Display| {
        format!("{} cannot be read: {error}; repair it, or remove it with all tokens", path.display())
    };
    let bytes = backing::durable::read(path, MAX_FILE).map_err(|error| failed(&error))?;
    bytes.map_or(Ok(Vec::new()), |bytes| serde_json::from_slice(&bytes).map_err(|error| failed(&error)))
}

/// The hash of a text.
pub fn hash(text: &str) -> Hash {
    Sha256::digest(text.as_bytes()).into()
}

/// Compares in a time that depends on the lengths alone.
#[cfg(feature = "http")]
pub fn is_equal(one: &[u8], other: &[u8]) -> bool {
    let different = one.iter().zip(other).fold(0, |so_far, (a, b)| std::hint::black_box(so_far | (a ^ b)));
    one.len() == other.len() && different == 0
}

#[cfg(all(test, feature = "http"))]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn a_token_is_found_by_its_text_and_only_its_hash_is_kept() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("tokens.json");
        let tokens = Tokens::of(Ok(path.clone()));
        let [one, two] = [("ops", Role::Operate), ("prometheus", Role::Metrics)]
            .map(|(name, role)| tokens.add(name, role).unwrap());
        assert!(one.len() == 69 && one.starts_with("stag_") && one != two, "{one}");
        assert_eq!(tokens.find(&one), Some(("ops".into(), Role::Operate)));
        let kept = std::fs::read_to_string(&path).unwrap();
        assert!(!kept.contains(&one[5..]) && kept.contains("ops"), "{kept}");
        assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        // Another daemon reads the same.
        let tokens = Tokens::of(Ok(path.clone()));
        assert_eq!(tokens.find(&two), Some(("prometheus".into(), Role::Metrics)));
        assert!(tokens.remove("ops").unwrap() && !tokens.remove("ops").unwrap());
        for none in [one.as_str(), "", "stag_", &two[..68], &two[5..], &hex(&hash(&two))] {
            assert_eq!(tokens.find(none), None, "{none}");
        }
        assert!(tokens.add("prometheus", Role::Read).unwrap_err().contains("already"));
        for name in ["", "a b", "a\n", &"a".repeat(65)] {
            assert!(tokens.add(name, Role::Read).is_err(), "{name:?}");
        }
    }

    #[test]
    fn a_file_that_cannot_be_read_admits_nobody_and_is_not_replaced() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("tokens.json");
        std::fs::write(&path, "[{").unwrap();
        let tokens = Tokens::of(Ok(path.clone()));
        assert_eq!(tokens.find(""), None);
        assert!(tokens.list().unwrap_err().contains("cannot be read"));
        assert!(tokens.add("a", Role::Admin).unwrap_err().contains("cannot be read"));
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "[{");
    }

    #[test]
    fn each_role_may_do_what_those_before_it_may() {
        assert!(Role::Metrics < Role::Read && Role::Read < Role::Operate && Role::Operate < Role::Admin);
    }
}
