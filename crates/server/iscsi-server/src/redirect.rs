//! Redirection of initiators (RFC 7143 §11.13.5, Status-Class 1). The configuration and `drain`
//! decide when, and where to.

use iscsi::discovery::TargetAddress;
use iscsi::login::target::{Auth, Grant, Moved, Refusal};

use crate::config::Redirect;

/// Redirects a login that has passed all other checks.
///
/// # Errors
/// The redirection, if it is due at once. Otherwise `grant` keeps it until the initiator has
/// authenticated.
pub(crate) fn send(to: &Redirect, grant: &mut Grant) -> Result<(), Refusal> {
    // §13.8: the address of a redirection has no portal group tag.
    let address = TargetAddress { portal_group_tag: None, ..to.address.clone() }.to_string();
    let moved = Moved { address, permanently: to.permanent };
    if !to.after_auth || matches!(grant.auth, Auth::None) {
        return Err(Refusal::Moved(moved));
    }
    grant.then = Some(Refusal::Moved(moved));
    Ok(())
}
