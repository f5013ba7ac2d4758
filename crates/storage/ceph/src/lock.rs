//! Who has an image's exclusive lock, and how it is taken from a client that cannot be ended.

use std::sync::Arc;
use std::time::Duration;

use rados::{Client, Error, Image, Login};

use crate::name::ImageName;

/// How long an operation may take.
const PATIENCE: Duration = Duration::from_secs(30);

/// The address of the client that has an image's lock; `None` if nobody has it. With `and_break`
/// the cluster then refuses all that this client sends, and nobody has the lock. Blocks.
///
/// # Errors
/// An [`Error`]. The client may still have the lock.
pub fn lock_owner(name: &ImageName, login: Login, and_break: bool) -> Result<Option<String>, Error> {
    let client = Client::connect(&login, Some(PATIENCE))?;
    let image = Image::open_unlocked(&client, &name.source(login, PATIENCE), Arc::new(|| {}))?;
    let owner = image.lock_owner()?;
    if let (Some(owner), true) = (&owner, and_break) {
        image.break_lock(owner)?;
    }
    Ok(owner)
}
