//! Checks and repairs a directory of objects that is not being served.

use std::path::Path;

use super::error::OsdError;

/// Checks `path`, and repairs it if that is wanted.
///
/// # Errors
/// What is wrong with it.
pub fn check(path: &Path, _repair: bool, _as_json: bool) -> Result<String, OsdError> {
    Err(OsdError::wrong(format!("{} cannot be checked yet", path.display()), "serve it, and check its URL"))
}
