//! A target's port groups (ALUA), with their saved states.

use std::sync::Arc;
use std::time::Duration;

use device::PortGroups;
use disk::unit::{FilePersist, Persist};
use scsi::alua::Groups;
use scsi::data::target_port_groups::{TargetPortGroup, supported};

use crate::config::{Alua, AluaGroup};

/// Makes a target's port groups, with their saved states.
///
/// # Errors
/// They cannot be made.
pub fn port_groups(alua: &Alua) -> Result<Arc<PortGroups>, String> {
    let group = |group: &AluaGroup| TargetPortGroup {
        id: group.id,
        preferred: group.preferred,
        state: group.state,
        supported: group.states.iter().fold(supported::TRANSITIONING, |bits, state| bits | state.support()),
        status: scsi::alua::STATUS_NONE,
        ports: group.portal_groups.clone(),
    };
    let groups = alua.groups.iter().map(group).collect();
    let groups = Groups::new(groups, alua.explicit, alua.implicit, alua.transition_hint_s);
    let keep = alua.keep.as_ref().map(|path| Arc::new(FilePersist::new(path)) as Arc<dyn Persist>);
    let transition = Duration::from_millis(alua.transition_ms.into());
    PortGroups::new(groups.map_err(|error| error.to_string())?, transition, keep)
        .map_err(|error| format!("its target port groups: {error}"))
}
