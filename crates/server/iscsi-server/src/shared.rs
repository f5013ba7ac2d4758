//! [`Shared`]: state that all cores of an iSCSI server share. Changed by atomics, or behind mutexes
//! off the data path.

use std::hash::RandomState;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};

use iscsi::discovery::{Record, SendTargets, TargetAddress};
use iscsi::name;
use iscsi::target::recovery::Recovered;
use iscsi::text::TextBuf;
use server_core::admission::Rules;
use server_core::drain::Drains;
use server_core::refusals::Refusals;
use server_core::{Hub, Served};

use crate::config::{Auth, Limits, Portal, Redirect, Transports};
use crate::model::{Edition, Model, PortalEntry};
use crate::node::Target;
use crate::qos::Initiators;
use crate::session::Registry;

/// State that all cores share.
pub(crate) struct Shared {
    /// The cores, and the admission of connections to them.
    pub hub: Arc<Hub>,
    /// The current edition of the model.
    pub served: Served<Model, Portal>,
    pub registry: Arc<Registry>,
    pub drains: Drains<Redirect>,
    pub initiators: Initiators,
    /// Initiators that were disconnected from targets, by both names.
    pub refusals: Refusals<(String, String)>,
    /// Hashes names to numbers that others cannot predict.
    pub names: RandomState,
    /// Counts of recovery on connections that have ended.
    recovered: Mutex<Recovered>,
}

/// A listening portal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BoundPortal {
    /// The address, with the actual port.
    pub address: SocketAddr,
    /// Target portal group tag.
    pub group: u16,
    /// Transports that initiators may use at it.
    pub transports: Transports,
}

impl BoundPortal {
    pub(crate) fn of(portal: &PortalEntry) -> Self {
        let asked = &portal.asked;
        Self { address: portal.address, group: asked.group, transports: asked.transports }
    }
}

impl Shared {
    /// A server on the cores of `hub` that serves `model`.
    pub(crate) fn new(hub: Arc<Hub>, model: Model) -> Arc<Self> {
        Arc::new(Self {
            hub,
            served: Served::new(model),
            registry: Arc::default(),
            drains: Drains::default(),
            initiators: Initiators::default(),
            refusals: Refusals::default(),
            names: RandomState::new(),
            recovered: Mutex::default(),
        })
    }

    /// The current model.
    pub(crate) fn model(&self) -> Arc<Edition> {
        self.served.now()
    }

    /// The current bounds.
    pub(crate) fn limits(&self) -> Limits {
        self.model().limits
    }

    /// Counts of recovery on connections that have ended.
    pub(crate) fn recovered(&self) -> Recovered {
        *self.recovered.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds the counts of recovery of a connection that ends.
    pub(crate) fn keep_recovered(&self, of: &Recovered) {
        if *of != Recovered::default() {
            self.recovered.lock().unwrap_or_else(PoisonError::into_inner).add(of);
        }
    }

    /// Current bounds on logins.
    pub(crate) fn rules(&self) -> Rules {
        let limits = self.limits();
        Rules {
            connections: limits.connections,
            connections_per_address: limits.connections_per_address,
            logins: limits.logins,
            logins_per_address: limits.logins_per_address,
            login_memory: limits.login_memory,
        }
    }

    /// The listening portals.
    pub(crate) fn portals(&self) -> Vec<BoundPortal> {
        self.model().portals.iter().map(BoundPortal::of).collect()
    }

    /// The answer to SendTargets (RFC 7143 Appendix C) for `initiator`, which connected to `local`.
    /// If it has not authenticated (`proved`), the answer does not reveal the names in the ACLs of
    /// protected targets.
    pub(crate) fn send_targets(
        &self,
        wanted: SendTargets<'_>,
        (initiator, proved): (&str, bool),
        own: Option<&Target>,
        local: SocketAddr,
        out: &mut TextBuf,
    ) {
        let model = self.model();
        for target in &model.targets {
            // A normal session learns of its own target only.
            let has_session = own.is_some();
            let own = own.is_none_or(|own| own.config.name == target.config.name);
            let named = match wanted {
                SendTargets::All | SendTargets::This => true,
                SendTargets::Named(wanted) => name::eq(&target.config.name, wanted),
            };
            if !(own && named) || target.acl(initiator).is_none() {
                continue;
            }
            if !(proved || has_session)
                && target.config.acls.is_some()
                && matches!(model.demand(Some(&target.config.name), initiator), Some((Auth::Chap(_), _)))
            {
                continue;
            }
            let portals = model.portals.iter().map(BoundPortal::of);
            let portals = portals.filter(|portal| {
                target.serves(portal.group)
                    && self.drains.offers(portal.address)
                    && is_on_the_way(portal.address, local)
            });
            let addresses = portals
                .map(|portal| {
                    // A wildcard is no address to connect to: use the address that the initiator
                    // connected to.
                    let mut address = portal.address;
                    if address.ip().is_unspecified() {
                        address.set_ip(local.ip().to_canonical());
                    }
                    TargetAddress::new(address, portal.group)
                })
                .chain(target.config.elsewhere.iter().cloned())
                .collect();
            Record { name: target.config.name.clone(), addresses }.put(out);
        }
    }
}

/// Whether an initiator that connected to `local` can reach a portal: at a link-local address, if
/// it is on that link. The answer omits the zone of such an address, which names an interface of
/// this machine.
fn is_on_the_way(portal: SocketAddr, local: SocketAddr) -> bool {
    let link = |address: SocketAddr| match address {
        SocketAddr::V6(v6) if v6.ip().is_unicast_link_local() => Some(v6.scope_id()),
        _ => None,
    };
    link(portal).is_none_or(|scope| link(local) == Some(scope))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn link_local_portals_are_told_to_those_on_their_link_only() {
        let told = |portal: &str, local: &str| {
            is_on_the_way(portal.parse().expect("an address"), local.parse().expect("an address"))
        };
        assert!(told("[fe80::1%2]:3260", "[fe80::1%2]:3260"));
        assert!(!told("[fe80::1%2]:3260", "[fe80::1%3]:3260"));
        assert!(!told("[fe80::1%2]:3260", "192.0.2.1:3260"));
        assert!(told("192.0.2.1:3260", "[fe80::1%2]:3260"));
        assert!(told("[::]:3260", "[2001:db8::1]:3260"));
    }
}
