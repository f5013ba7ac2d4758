//! A portal's answers to login requests: admission, the authentication demanded, and what an
//! initiator learns before it has authenticated.
//!
//! Where CHAP is demanded, an unauthenticated initiator learns nothing. A target that does not
//! exist, one whose ACL lacks the initiator's name, and one that has it answer alike until
//! authentication: with a challenge, and 0201h for any wrong response. Where there are ACLs without
//! CHAP, the first two get 0202h. Where nothing is protected, a name that is not served gets 0203h.

use std::hash::BuildHasher;
use std::net::SocketAddr;
use std::sync::Arc;

use iscsi::chap::{ChapError, Hash, Secret};
use iscsi::keys::Offer;
use iscsi::login::SessionType;
use iscsi::login::target::{Auth as AuthDemand, Claim, Directory, Grant, Refusal};
use iscsi::name;
use iscsi::pdu::LoginStatus;

use crate::config::{Auth, Chap};
use crate::drain;
use crate::model::Model;
use crate::node::Target;
use crate::offer::{offer, offer_iser};
use crate::redirect;
use crate::session::PortName;
use crate::shared::Shared;

/// A portal, as one connection's login finds it.
pub(crate) struct Door<'a> {
    pub shared: &'a Shared,
    pub model: &'a Model,
    /// The portal group that the connection came through.
    pub group: u16,
    /// The portal's address.
    pub portal: SocketAddr,
    /// For a connection over RDMA: the longest data segment that it takes, bytes.
    pub rdma: Option<usize>,
}

impl Door<'_> {
    fn offer(&self, session_type: SessionType) -> Offer {
        let offer = offer(&self.model.limits, session_type);
        match self.rdma {
            Some(segment) => offer_iser(offer, &self.model.iser, segment),
            None => offer,
        }
    }

    /// The target that is claimed, if it is served here.
    fn target(&self, claim: &Claim<'_>) -> Option<&Arc<Target>> {
        self.model.target(claim.target?).filter(|target| target.serves(self.group))
    }

    /// Whether the target of the claim, if there is one, is here and admits this initiator name.
    fn is_expected(&self, claim: &Claim<'_>) -> bool {
        claim.target.is_none()
            || self.target(claim).is_some_and(|target| target.acl(claim.initiator).is_some())
    }

    /// Answer to an initiator without access, or to one that names a target that is not here.
    fn stranger(&self, claim: &Claim<'_>, grant: Grant) -> Result<Grant, Refusal> {
        if let Some(hashes) = self.decoy(claim) {
            // A challenge that no secret answers.
            return Ok(Grant { auth: AuthDemand::Chap { hashes, mutual: None, required: true }, ..grant });
        }
        let listed = self.model.targets.iter().any(|target| target.config.acls.is_some());
        Err(Refusal::Status(if listed { LoginStatus::AuthorizationFailure } else { LoginStatus::NotFound }))
    }

    /// The hashes of a challenge to an initiator without access; `None` if no target demands CHAP.
    /// A name gets the same ones each time: those of a target with CHAP, so that they do not reveal
    /// which names are served.
    fn decoy(&self, claim: &Claim<'_>) -> Option<Vec<Hash>> {
        let pick = |name: &str, from: usize| {
            let number = self.shared.names.hash_one(name::normalize(name));
            usize::try_from(number % from as u64).unwrap_or(0)
        };
        let own = self.target(claim).filter(|target| chaps(target).next().is_some());
        let target = match own {
            Some(own) => own,
            None => {
                let all = || self.model.targets.iter().filter(|target| chaps(target).next().is_some());
                let count = all().count();
                all().nth(pick(claim.target?, count.max(1)))?
            }
        };
        // As the target demands of all initiators, or else of one that has an ACL entry.
        let chap = match &target.config.auth {
            Auth::Chap(chap) => chap,
            Auth::None => chaps(target).nth(pick(claim.initiator, chaps(target).count().max(1)))?,
        };
        Some(chap.hashes.clone())
    }

    /// Whether an expected initiator may log in now, apart from authentication.
    fn admit_further(&self, claim: &Claim<'_>, grant: &mut Grant) -> Result<(), Refusal> {
        let PortName { initiator, target, .. } = port_name(claim, self.group);
        if self.shared.refusals.covers(&(initiator, target), runtime::now()) {
            return Err(Refusal::Status(LoginStatus::ServiceUnavailable));
        }
        drain::check(&self.shared.drains, claim, self.portal, grant)?;
        if claim.tsih != 0 {
            let session = self.shared.registry.find(claim.tsih);
            let port = port_name(claim, self.group);
            let Some(session) = session.filter(|session| session.port == port) else {
                return Err(Refusal::Status(LoginStatus::SessionDoesNotExist));
            };
            let mut members = session.connections().into_iter();
            let replaces = session.target_name().is_some() && members.any(|other| other.cid == claim.cid);
            if session.params.max_connections == 1 && !session.recovers_connections() && !replaces {
                return Err(Refusal::Status(LoginStatus::TooManyConnections));
            }
            grant.session = Some(session.params.clone());
            return Ok(());
        }
        // An initiator may add connections to a session that it has here; the redirection concerns
        // new sessions only.
        match self.target(claim).and_then(|target| target.config.redirect.as_ref()) {
            Some(to) => redirect::send(to, grant),
            None => Ok(()),
        }
    }
}

impl Directory for Door<'_> {
    fn admit(&self, claim: &Claim<'_>) -> Result<Grant, Refusal> {
        if self.shared.hub.is_closed() {
            return Err(Refusal::Status(LoginStatus::ServiceUnavailable));
        }
        let mut grant = Grant {
            auth: AuthDemand::None,
            offer: self.offer(claim.session_type),
            portal_group_tag: self.group,
            alias: None,
            session: None,
            then: None,
        };
        if !self.is_expected(claim) {
            return self.stranger(claim, grant);
        }
        if let Some(target) = self.target(claim) {
            grant.alias = Some(target.config.alias.clone()).filter(|alias| !alias.is_empty());
        }
        if let Some((Auth::Chap(chap), _)) = self.model.demand(claim.target, claim.initiator) {
            grant.auth =
                AuthDemand::Chap { hashes: chap.hashes.clone(), mutual: chap.mutual.clone(), required: true };
        }
        match self.admit_further(claim, &mut grant) {
            Ok(()) => Ok(grant),
            // Only authenticated initiators learn about existing sessions and drains.
            Err(refusal @ Refusal::Status(_)) if grant.auth != AuthDemand::None => {
                Ok(Grant { then: Some(refusal), session: None, ..grant })
            }
            Err(refusal) => Err(refusal),
        }
    }

    fn random(&self, bytes: &mut [u8]) -> Result<(), ChapError> {
        runtime::random(bytes).map_err(|_| ChapError::NoRandom)
    }

    fn secret(&self, claim: &Claim<'_>, user: &str) -> Option<Secret> {
        let credential = self.model.credential(claim.target, claim.initiator, user);
        credential.filter(|_| self.is_expected(claim)).map(|credential| credential.secret.clone())
    }
}

/// The CHAP settings of a target: its own, and those of its ACL.
pub(crate) fn chaps(target: &Target) -> impl Iterator<Item = &Chap> {
    let entries = target.config.acls.iter().flatten().filter_map(|acl| acl.auth.as_ref());
    std::iter::once(&target.config.auth).chain(entries).filter_map(|auth| match auth {
        Auth::Chap(chap) => Some(chap),
        Auth::None => None,
    })
}

fn port_name(claim: &Claim<'_>, group: u16) -> PortName {
    PortName {
        initiator: name::normalize(claim.initiator),
        isid: claim.isid,
        target: claim.target.map(name::normalize).unwrap_or_default(),
        group,
    }
}
