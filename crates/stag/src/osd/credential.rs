//! Credentials for devices with security.

use initiator::objects::Objects;

use super::error::OsdError;
use crate::args::osd::Reach;

/// Gives the device the credential that was named, if one was.
///
/// # Errors
/// One that cannot be read or used.
pub async fn attach(device: Objects, reach: &Reach) -> Result<Objects, OsdError> {
    match &reach.credential {
        None => Ok(device),
        Some(path) => Err(OsdError::wrong(
            format!("{}: credentials cannot be used yet", path.display()),
            "leave --credential out",
        )),
    }
}
