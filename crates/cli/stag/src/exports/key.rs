//! The key that proves file handles, which outlive the daemon.

use crate::{key, state};

/// The key of this machine's handles, made if it is missing.
///
/// # Errors
/// It can be neither read nor kept. Handles that become stale with the next start lose what clients
/// still have to write, so nothing is exported then.
pub fn kept() -> Result<[u8; 16], String> {
    key::kept(&state::path("nfs", "handle-key")?, "file handles", "which makes every handle stale")
}
