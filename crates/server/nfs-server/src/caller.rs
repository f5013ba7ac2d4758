//! From an RPC credential to a [`Caller`]: the identity that the client claims, changed by the
//! export's rules.

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Instant;

use rpc::auth::{Credential, OpaqueAuth};
use rpc::message::AuthStat;
use tree::Caller;

use crate::config::{ClientRule, GroupLookup, Squash};
use crate::groups::Groups;

/// Identities that a connection keeps decoded. A machine has few users at a time.
const KEPT: usize = 8;
/// The longest credential, bytes.
type Body = arrayvec::ArrayVec<u8, { rpc::auth::MAX_AUTH_BODY }>;

/// The identity that a client claims. AUTH_NONE is anonymous.
#[derive(Clone, Debug)]
pub(crate) enum Identity {
    Anonymous,
    Unix { uid: u32, gid: u32, groups: Arc<[u32]> },
}

/// A user of a client.
pub(crate) struct User {
    /// The identity that the client claims.
    pub claimed: Rc<Identity>,
    /// The same with the groups that the machine knows, and until when.
    managed: RefCell<Option<(Rc<Identity>, Instant)>>,
}

impl User {
    /// The identity, with the groups that the machine knows. The primary group stays the client's.
    pub(crate) async fn managed(&self, groups: &Groups, lookup: &GroupLookup) -> Rc<Identity> {
        let Identity::Unix { uid, gid, .. } = *self.claimed else { return self.claimed.clone() };
        if let Some((identity, until)) = &*self.managed.borrow()
            && runtime::now() < *until
        {
            return identity.clone();
        }
        let (groups, until) = groups.of(uid, lookup).await;
        let identity = Rc::new(Identity::Unix { uid, gid, groups });
        *self.managed.borrow_mut() = Some((identity.clone(), until));
        identity
    }
}

/// The identities that a connection has seen last, by their credentials.
#[derive(Default)]
pub(crate) struct Identities(RefCell<Vec<(u32, Body, Rc<User>)>>);

impl Identities {
    /// The user who made a call.
    ///
    /// # Errors
    /// The credential is malformed, or of a flavor that is not served.
    pub(crate) fn of(&self, credential: &OpaqueAuth<'_>) -> Result<Rc<User>, AuthStat> {
        let mut kept = self.0.borrow_mut();
        let body = credential.body.bytes();
        let known = kept.iter().find(|(flavor, known, _)| *flavor == credential.flavor && known[..] == *body);
        if let Some((_, _, user)) = known {
            return Ok(user.clone());
        }
        let claimed = Rc::new(match credential.credential()? {
            Credential::None => Identity::Anonymous,
            Credential::Sys(sys) => {
                Identity::Unix { uid: sys.uid, gid: sys.gid, groups: sys.gids.iter().copied().collect() }
            }
            Credential::Other(_) => return Err(AuthStat::TooWeak),
        });
        let user = Rc::new(User { claimed, managed: RefCell::default() });
        if kept.len() == KEPT {
            kept.remove(0);
        }
        let mut copy = Body::new();
        if copy.try_extend_from_slice(body).is_ok() {
            kept.push((credential.flavor, copy, user.clone()));
        }
        Ok(user)
    }
}

impl Identity {
    /// The caller that `rule` makes of it.
    pub(crate) fn squashed(&self, rule: &ClientRule) -> Caller {
        let (anonymous_uid, anonymous_gid) = rule.anonymous;
        let anonymous = || Caller { uid: anonymous_uid, gid: anonymous_gid, groups: Arc::from([]) };
        let Self::Unix { uid, gid, groups } = self else { return anonymous() };
        match rule.squash {
            Squash::None => Caller { uid: *uid, gid: *gid, groups: groups.clone() },
            Squash::All => anonymous(),
            Squash::Root => Caller {
                uid: if *uid == 0 { anonymous_uid } else { *uid },
                gid: if *gid == 0 { anonymous_gid } else { *gid },
                groups: match groups.contains(&0) {
                    true => groups.iter().map(|gid| if *gid == 0 { anonymous_gid } else { *gid }).collect(),
                    false => groups.clone(),
                },
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rpc::auth::AuthSys;
    use rpc::xdr::Opaque;

    fn identity(uid: u32, gid: u32, groups: &[u32]) -> Identity {
        Identity::Unix { uid, gid, groups: groups.into() }
    }

    #[test]
    fn the_super_user_is_squashed_wherever_a_0_is() {
        let rule = ClientRule { anonymous: (7, 8), ..ClientRule::default() };
        let caller = identity(0, 0, &[0, 5]).squashed(&rule);
        assert_eq!((caller.uid, caller.gid, &caller.groups[..]), (7, 8, &[8, 5][..]));
        let caller = identity(3, 0, &[5]).squashed(&rule);
        assert_eq!((caller.uid, caller.gid, &caller.groups[..]), (3, 8, &[5][..]));
        let none = ClientRule { squash: Squash::None, ..rule.clone() };
        assert_eq!(identity(0, 0, &[0]).squashed(&none).uid, 0);
        let all = ClientRule { squash: Squash::All, ..rule };
        let caller = identity(3, 4, &[5]).squashed(&all);
        assert_eq!((caller.uid, caller.gid, caller.groups.len()), (7, 8, 0));
        assert_eq!(Identity::Anonymous.squashed(&none).uid, 7, "AUTH_NONE is nobody");
    }

    #[test]
    fn a_connection_keeps_the_last_identities_and_refuses_other_flavors() {
        let identities = Identities::default();
        let mut buffer = Vec::new();
        for uid in 0..20 {
            let sys = AuthSys {
                stamp: 1,
                machine: Opaque::new(b"client").unwrap(),
                uid,
                gid: 1,
                gids: Default::default(),
            };
            let auth = sys.auth(&mut buffer);
            let (first, again) = (identities.of(&auth).unwrap(), identities.of(&auth).unwrap());
            assert!(Rc::ptr_eq(&first, &again));
            assert!(matches!(*first.claimed, Identity::Unix { uid: own, .. } if own == uid));
        }
        assert_eq!(identities.0.borrow().len(), KEPT);
        let gss = OpaqueAuth { flavor: 6, body: Opaque::EMPTY };
        assert_eq!(identities.of(&gss).err(), Some(AuthStat::TooWeak));
        let bad = OpaqueAuth { flavor: 1, body: Opaque::new(&[1, 2]).unwrap() };
        assert_eq!(identities.of(&bad).err(), Some(AuthStat::BadCred));
    }
}
