//! The principal that a login has authenticated, and ownership of nexuses.
//!
//! An I_T nexus has commands in flight, registrations and a view of units. All of it is found by
//! names that an initiator claims (InitiatorName, ISID). So a nexus belongs to the principal who
//! has it, and no other principal gets it by the same names. Ownership must never keep an initiator
//! out where no authentication is demanded: there names are all there is (RFC 7143 §9.2).

use std::sync::OnceLock;

use device::{Nexus, Principal};
use iscsi::chap::{self, Credential, Hash};
use iscsi::pdu::LoginStatus;

use crate::config::Auth;
use crate::model::Model;

/// Key of the digests in [`Principal::credential`].
static KEY: OnceLock<[u8; 32]> = OnceLock::new();

/// Recognizes principals by `key`, which is secret, over restarts of the daemon. Registrations keep
/// digests of secrets under this key. Without a call before the first login the key is random, and
/// owners of kept registrations are forgotten.
pub fn recognize_principals_by(key: [u8; 32]) {
    if KEY.set(key).is_err() {
        tracing::warn!("owners of registrations are not recognized: a login came before their key");
    }
}

/// `None`: the system has no randomness.
fn key() -> Option<&'static [u8; 32]> {
    if let Some(key) = KEY.get() {
        return Some(key);
    }
    let mut key = [0; 32];
    chap::os_random(&mut key).ok().map(|()| KEY.get_or_init(|| key))
}

/// The principal who knows this credential.
fn principal(of: &Credential) -> Result<Principal, LoginStatus> {
    let key = key().ok_or(LoginStatus::TargetError)?;
    // With the name, so that equal secrets of two users do not show.
    let salt = [&key[..], of.name.as_bytes()].concat();
    let mut credential = [0; 32];
    credential.copy_from_slice(&Hash::Sha256.response(0, &of.secret, &salt));
    Ok(Principal { user: of.name.clone(), credential })
}

impl Model {
    /// Authentication demanded of an initiator of this name, and the only user allowed, if its ACL
    /// entry names one. `target` is `None` in a discovery session. `None`: it has no access.
    pub(crate) fn demand(&self, target: Option<&str>, initiator: &str) -> Option<(&Auth, Option<&str>)> {
        let Some(target) = target else { return Some((&self.discovery_auth, None)) };
        let target = self.target(target)?;
        let acl = target.acl(initiator)?;
        let auth = acl.and_then(|acl| acl.auth.as_ref()).unwrap_or(&target.config.auth);
        Some((auth, acl.and_then(|acl| acl.user.as_deref())))
    }

    /// The credential by which `user` may log in under this name.
    pub(crate) fn credential(
        &self,
        target: Option<&str>,
        initiator: &str,
        user: &str,
    ) -> Option<&Credential> {
        let (Auth::Chap(chap), bound) = self.demand(target, initiator)? else { return None };
        chap::find(&chap.users, user).filter(|_| bound.is_none_or(|bound| bound == user))
    }

    /// The principal that a login has authenticated as `user`; `None` if no authentication was
    /// demanded.
    ///
    /// # Errors
    /// Login status for the initiator.
    pub(crate) fn principal(
        &self,
        target: Option<&str>,
        initiator: &str,
        user: Option<&str>,
    ) -> Result<Option<Principal>, LoginStatus> {
        let Some(user) = user else { return Ok(None) };
        let credential = self.credential(target, initiator, user).ok_or(LoginStatus::TargetError)?;
        principal(credential).map(Some)
    }

    /// Refuses `nexus` to its principal if it belongs to `owner`, another one.
    ///
    /// An owner whose credential is not accepted any more keeps nothing. A changed secret, or a
    /// removed user, must not keep out a user who is admitted now.
    ///
    /// # Errors
    /// Login status for the initiator.
    pub(crate) fn check_owner(&self, nexus: &Nexus, owner: Option<&Principal>) -> Result<(), LoginStatus> {
        let Some(owner) = owner.filter(|owner| nexus.principal.as_ref() != Some(owner)) else {
            return Ok(());
        };
        let now = self.credential(Some(&nexus.target), &nexus.initiator, &owner.user);
        let keeps = now.and_then(|now| principal(now).ok()).is_some_and(|now| now == *owner);
        if !keeps {
            return Ok(());
        }
        let user = nexus.principal.as_ref().map(|principal| principal.user.as_str());
        tracing::warn!(
            initiator = nexus.initiator,
            target = nexus.target,
            user,
            owner = owner.user,
            "refused: the initiator port belongs to another user"
        );
        Err(LoginStatus::AuthorizationFailure)
    }
}
