//! The seat of an I_T_L nexus at a unit that changes its owner: its unit attentions go along.

use std::sync::Arc;

use device::{ItlNexus, LogicalUnit};
use disk::unit::DiskUnit;
use peer_link::Attention;
use scsi::UnitAttention;

/// Attaches a nexus to a unit that this gateway owns now, with the attentions that an owner before
/// it has left; `None` for a new session. False: its port's registration is another user's.
pub fn take(unit: &Arc<DiskUnit>, itl: &Arc<ItlNexus>, kept: Option<Vec<UnitAttention>>) -> bool {
    let owner = unit.nexuses().owner(&itl.nexus);
    if let Some(owner) = owner.filter(|owner| itl.nexus.principal.as_ref() != Some(owner)) {
        let (initiator, owner) = (&itl.nexus.initiator, owner.user);
        tracing::warn!(initiator, owner, "refused: the initiator port belongs to another user");
        return false;
    }
    clear(itl);
    unit.attach(itl);
    if let Some(kept) = kept {
        itl.clear_attention(UnitAttention::PowerOnResetOrBusDeviceReset);
        kept.into_iter().for_each(|attention| itl.establish(attention));
        itl.establish(UnitAttention::AsymmetricAccessStateChanged);
    }
    true
}

/// Detaches a nexus, and returns its attentions for the next owner.
pub fn leave(unit: &Arc<DiskUnit>, itl: &ItlNexus) -> Vec<UnitAttention> {
    let left = itl.attentions();
    clear(itl);
    unit.detach(itl.nexus.id);
    left
}

fn clear(itl: &ItlNexus) {
    itl.attentions().into_iter().for_each(|attention| itl.clear_attention(attention));
}

/// Attentions as they cross the link.
pub fn to_wire(attentions: Vec<UnitAttention>) -> Vec<Attention> {
    let codes = attentions.into_iter().map(UnitAttention::additional);
    codes.map(|code| Attention(code.asc, code.ascq)).collect()
}

/// The same, without those that this release does not know.
pub fn from_wire(attentions: &[Attention]) -> Vec<UnitAttention> {
    attentions.iter().filter_map(|Attention(asc, ascq)| UnitAttention::of(*asc, *ascq)).collect()
}
