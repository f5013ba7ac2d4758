//! Who has an image's exclusive lock, and how it is taken from a client that cannot be ended.

use std::sync::Arc;
use std::time::Duration;

use rados::{Client, Error, Image, Login};

use crate::name::ImageName;

/// How long an operation may take.
const PATIENCE: Duration = Duration::from_secs(30);

/// The client that has an image's lock.
pub struct LockOwner {
    pub address: String,
    /// It was shut out of the cluster, and had the lock till then.
    pub is_out: bool,
}

/// Who has an image's lock; `None` if nobody has it. With `and_break` the cluster then refuses all
/// that this client sends, and nobody has the lock; but not if it gives the lock back before.
/// Blocks.
///
/// # Errors
/// An [`Error`]. The client may still have the lock.
pub fn lock_owner(name: &ImageName, login: Login, and_break: bool) -> Result<Option<LockOwner>, Error> {
    let client = Client::connect(&login, Some(PATIENCE))?;
    let image = Image::open_unlocked(&client, &name.source(login, PATIENCE), Arc::new(|| {}))?;
    let Some(address) = image.lock_owner()? else { return Ok(None) };
    let is_out = and_break && image.break_lock(&address)?;
    Ok(Some(LockOwner { address, is_out }))
}
