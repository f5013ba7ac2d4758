//! Applies a new model to a session: it sees other units, or may not stay.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use device::ItlNexus;
use scsi::UnitAttention;

use crate::lun_map::View;
use crate::model::Edition;
use crate::session::Session;
use crate::shared::Shared;

/// Time to log out for initiators whose target or access is gone.
const GRACE: Duration = Duration::from_secs(2);

/// Effect of a new model on a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Renewal {
    /// Nothing.
    Same,
    /// It sees other units.
    Changed,
    /// It may not stay.
    Leaving,
}

/// Gives a session its view of `now`, or asks it to leave.
pub(crate) fn renew(shared: &Arc<Shared>, session: &Arc<Session>, now: &Edition) -> Renewal {
    let Some(view) = now.view(now.generation, session) else {
        expel(shared, session);
        return Renewal::Leaving;
    };
    // A unit knows a nexus before the nexus's first command comes.
    let introduce = |before: &View, now: &View| {
        let old = nexuses(before);
        for entry in now.luns.iter().filter(|entry| !old.contains(&Arc::as_ptr(&entry.nexus))) {
            entry.unit.attach(&entry.nexus);
            if before.luns.number(entry.lun).is_some_and(|old| !old.unit.is(&entry.unit)) {
                // The LUN now names another unit (SPC-4 §6.6.1).
                entry.nexus.establish(UnitAttention::InquiryDataHasChanged);
            }
        }
        if before.luns.inventory_differs(&now.luns) {
            now.luns.iter().for_each(|e| e.nexus.establish(UnitAttention::ReportedLunsDataHasChanged));
        }
    };
    let Some(before) = session.set_view(view, introduce) else { return Renewal::Same };
    let now = session.view();
    if nexuses(&before) == nexuses(&now) {
        return Renewal::Same;
    }
    let left: HashSet<usize> = now.luns.iter().map(|entry| entry.unit.address()).collect();
    for entry in before.luns.iter().filter(|entry| !left.contains(&entry.unit.address())) {
        entry.unit.detach(session.nexus.id);
    }
    // Has idle connections let go of removed units.
    session.connections().iter().for_each(|member| member.remote.look_again());
    Renewal::Changed
}

/// Asks a session's initiator to log out, and closes its remaining connections after [`GRACE`].
fn expel(shared: &Arc<Shared>, session: &Arc<Session>) {
    tracing::info!(initiator = session.port.initiator, tsih = session.tsih, "may not stay");
    for member in session.connections() {
        member.remote.ask_for_logout(GRACE);
    }
    let (shared, session) = (shared.clone(), session.clone());
    // A core that has stopped has no sessions.
    let _ = shared.hub.first().run(move |_| async move {
        let deadline = runtime::now() + GRACE;
        while shared.registry.has(&session) && runtime::now() < deadline {
            runtime::sleep(Duration::from_millis(20)).await;
        }
        shared.registry.end(&session).await;
    });
}

/// The nexuses of a view, by address.
fn nexuses(view: &View) -> HashSet<*const ItlNexus> {
    view.luns.iter().map(|entry| Arc::as_ptr(&entry.nexus)).collect()
}
