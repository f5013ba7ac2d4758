//! An I_T_L nexus of another gateway's initiator, as a unit of this gateway has it. All channels of
//! that gateway share it.

use std::cell::{Cell, RefCell};
use std::sync::Arc;

use device::{ItlNexus, Nexus, Principal};
use disk::unit::DiskUnit;
use peer_link::{Attach, Attention};
use scsi::UnitAttention;

/// The key of a nexus: the forwarder's instance, its number of the I_T nexus, and the unit.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Key {
    pub instance: u64,
    pub nexus: u64,
    pub unit: u32,
}

pub(super) struct Local {
    pub itl: Arc<ItlNexus>,
    /// The session is new: POWER ON, RESET, OR BUS DEVICE RESET OCCURRED is pending.
    new: Cell<bool>,
    /// The unit attentions that are pending while this gateway has no unit for it.
    kept: RefCell<Vec<UnitAttention>>,
    unit: RefCell<Option<Arc<DiskUnit>>>,
}

impl Local {
    pub fn new(attach: &Attach, nexus: Arc<Nexus>) -> Self {
        let kept = attach.attentions.iter().filter_map(|Attention(asc, ascq)| UnitAttention::of(*asc, *ascq));
        Self {
            itl: Arc::new(ItlNexus::new(nexus, attach.read_only)),
            new: Cell::new(attach.new),
            kept: RefCell::new(kept.collect()),
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
        let owner = unit.nexuses().owner(&self.itl.nexus);
        if let Some(owner) = owner.filter(|owner| self.itl.nexus.principal.as_ref() != Some(owner)) {
            let (initiator, owner) = (&self.itl.nexus.initiator, owner.user);
            tracing::warn!(initiator, owner, "refused: the initiator port belongs to another user");
            return;
        }
        device::LogicalUnit::attach(&**unit, &self.itl);
        if !self.new.replace(false) {
            self.itl.clear_attention(UnitAttention::PowerOnResetOrBusDeviceReset);
            self.kept.take().into_iter().for_each(|attention| self.itl.establish(attention));
            self.itl.establish(UnitAttention::AsymmetricAccessStateChanged);
        }
        *self.unit.borrow_mut() = Some(unit.clone());
    }

    /// This gateway has the unit no more, or the nexus goes.
    pub fn detach(&self) {
        let Some(unit) = self.unit.borrow_mut().take() else { return };
        *self.kept.borrow_mut() = self.itl.attentions();
        for attention in self.itl.attentions() {
            self.itl.clear_attention(attention);
        }
        device::LogicalUnit::detach(&*unit, self.itl.nexus.id);
    }

    /// The pending unit attentions, as they go to the forwarder.
    pub fn attentions(&self) -> Vec<Attention> {
        let codes = |attention: UnitAttention| attention.additional();
        let all = self.itl.attentions().into_iter().map(codes);
        all.map(|code| Attention(code.asc, code.ascq)).collect()
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
        // The states of the group's ports are not on the link.
        ports: None,
    }
}
