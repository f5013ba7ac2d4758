//! An I_T_L nexus of another gateway's initiator, as a unit of this gateway has it. All channels of
//! that gateway share it.

use std::cell::RefCell;
use std::sync::Arc;

use device::{ItlNexus, Nexus, PortGroups, Principal};
use disk::unit::DiskUnit;
use peer_link::{Attach, Attention};
use scsi::UnitAttention;

use crate::seat;

/// The key of a nexus: the forwarder's instance, its number of the I_T nexus, and the unit.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Key {
    pub instance: u64,
    pub nexus: u64,
    pub unit: u32,
}

pub(super) struct Local {
    pub itl: Arc<ItlNexus>,
    /// [`Attach::tenure`].
    pub tenure: u64,
    /// The unit attentions that are pending while this gateway has no unit for it; `None` for a
    /// new session.
    kept: RefCell<Option<Vec<UnitAttention>>>,
    unit: RefCell<Option<Arc<DiskUnit>>>,
}

impl Local {
    pub fn new(attach: &Attach, nexus: Arc<Nexus>, ports: Option<Arc<PortGroups>>) -> Self {
        let kept = (!attach.new).then(|| seat::from_wire(&attach.attentions));
        Self {
            itl: Arc::new(ItlNexus::with_ports(nexus, attach.read_only, ports)),
            tenure: attach.tenure,
            kept: RefCell::new(kept),
            unit: RefCell::default(),
        }
    }

    /// The unit, if this gateway has it and the nexus may use it.
    pub fn unit(&self) -> Option<Arc<DiskUnit>> {
        self.unit.borrow().clone()
    }

    /// This gateway has the unit now.
    pub fn attach(&self, unit: &Arc<DiskUnit>) {
        self.detach();
        let kept = self.kept.borrow().clone();
        if seat::take(unit, &self.itl, kept) {
            *self.kept.borrow_mut() = Some(Vec::new());
            *self.unit.borrow_mut() = Some(unit.clone());
        }
    }

    /// This gateway has the unit no more, or the nexus goes.
    pub fn detach(&self) {
        if let Some(unit) = self.unit.borrow_mut().take() {
            *self.kept.borrow_mut() = Some(seat::leave(&unit, &self.itl));
        }
    }

    /// `next` takes its place. A unit that has `next` has this one no more.
    pub fn give_way(&self, next: &Self) {
        match next.unit() {
            Some(_) => drop(self.unit.borrow_mut().take()),
            None => self.detach(),
        }
    }

    /// The pending unit attentions, as they go to the forwarder.
    pub fn attentions(&self) -> Vec<Attention> {
        match &*self.kept.borrow() {
            Some(kept) if self.unit.borrow().is_none() => seat::to_wire(kept.clone()),
            _ => seat::to_wire(self.itl.attentions()),
        }
    }
}

impl Drop for Local {
    fn drop(&mut self) {
        self.detach();
    }
}

/// The I_T nexus that a forwarder attaches.
pub(super) fn nexus(attach: &Attach, id: device::NexusId) -> Nexus {
    let principal = |principal: &peer_link::Principal| Principal {
        user: principal.user.clone(),
        credential: principal.credential,
    };
    Nexus {
        id,
        initiator: attach.initiator.clone(),
        principal: attach.principal.as_ref().map(principal),
        transport_id: attach.transport_id.clone(),
        target_port: attach.port,
        target: attach.target.clone(),
        // The unit has its own.
        ports: None,
    }
}
