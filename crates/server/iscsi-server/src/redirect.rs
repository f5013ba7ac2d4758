//! Sending initiators elsewhere (RFC 7143 §11.13.5, Status-Class 1). When, and to where, is the configuration's and
//! `drain`'s to say.

use iscsi::discovery::TargetAddress;
use iscsi::login::target::{Auth, Grant, Moved, Refusal};

use crate::config::Redirect;

/// What a login is told, which has been granted all else.
///
/// # Errors
/// The redirection, if it is told at once. Else the grant has it, for when the initiator has proved who it is.
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
