//! Aborts tasks for units: those of a preempted nexus, and those that a unit's own task management
//! ends.

use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Weak};
use std::time::Duration;

use device::{AbortTasks, Charge, Command, Deed, ItlNexus, Tasks};

use crate::remote::{Remote, Victims};
use crate::session::Session;
use crate::shared::Shared;
use crate::{audit, qos};

/// Most looks for tasks that are being reassigned, and the pause between two.
const PASSES: usize = 16;
const PAUSE: Duration = Duration::from_millis(1);

/// Has `ask` act on tasks on each connection of a session; returns the number of tasks.
async fn ask_session(
    session: &Session,
    victims: &Victims,
    ask: &impl AsyncFn(&Remote, Victims) -> usize,
) -> usize {
    let mut count = 0;
    for member in session.connections() {
        count += ask(&member.remote, victims.clone()).await;
    }
    count
}

/// Aborts tasks on all connections of a session; says how many there were. Looks again for tasks
/// that were between two connections meanwhile.
pub(crate) async fn abort_in(session: &Session, victims: &Victims) -> usize {
    let mut count = 0;
    // Bounded: an initiator that reassigns tasks without end delays nobody's function for ever.
    for _ in 0..PASSES {
        let at_rest = session.moves.at_rest();
        count += ask_session(session, victims, &Remote::abort).await;
        if at_rest.is_some() && session.moves.at_rest() == at_rest {
            break;
        }
        runtime::sleep(PAUSE).await;
    }
    count
}

async fn count_in(session: &Session, victims: &Victims) -> usize {
    ask_session(session, victims, &Remote::count).await
}

/// The sum of `ask` over several sessions.
async fn ask_sessions(
    concerned: Vec<(Arc<Session>, Victims)>,
    ask: impl AsyncFn(&Session, &Victims) -> usize,
) -> usize {
    let mut count = 0;
    for (session, victims) in concerned {
        count += ask(&session, &victims).await;
    }
    count
}

/// Aborts the tasks of a preempted nexus (PREEMPT AND ABORT, SPC-4 §5.13.11.2.5), and those that a
/// unit's own task management ends.
pub(crate) struct Preemptor(pub Weak<Shared>);

impl Preemptor {
    /// The sessions of `nexus`, with the affected tasks of each.
    fn victims(
        &self,
        nexus: &Arc<ItlNexus>,
        which: Tasks,
        except: Option<&Command>,
    ) -> Vec<(Arc<Session>, Victims)> {
        // No task has a tag that iSCSI cannot have.
        let only = match which {
            Tasks::All => None,
            Tasks::Tagged(tag) => match u32::try_from(tag) {
                Ok(itt) => Some(itt),
                Err(_) => return Vec::new(),
            },
        };
        // The command that asks is a task of its own nexus: it must not wait for its own end.
        let own = except.filter(|except| Arc::ptr_eq(nexus, except.nexus.shared()));
        let except = own.and_then(|except| u32::try_from(except.tag).ok());
        let Some(shared) = self.0.upgrade() else { return Vec::new() };
        let of_session = |session: Arc<Session>| {
            let unit =
                session.view().luns.iter().find(|entry| Arc::ptr_eq(&entry.nexus, nexus))?.unit.clone();
            Some((session, Victims::Of(unit, only, except)))
        };
        shared.registry.all().into_iter().filter_map(of_session).collect()
    }
}

impl AbortTasks for Preemptor {
    fn abort(
        &self,
        nexus: Arc<ItlNexus>,
        which: Tasks,
        except: Option<&Command>,
    ) -> Pin<Box<dyn Future<Output = usize>>> {
        Box::pin(ask_sessions(self.victims(&nexus, which, except), abort_in))
    }

    fn count(
        &self,
        nexus: Arc<ItlNexus>,
        which: Tasks,
        except: Option<&Command>,
    ) -> Pin<Box<dyn Future<Output = usize>>> {
        Box::pin(ask_sessions(self.victims(&nexus, which, except), count_in))
    }

    fn limits(&self, nexus: &Arc<ItlNexus>, writes: bool) -> Option<Charge> {
        let session = self.0.upgrade()?.registry.of_nexus(nexus.nexus.id)?;
        let view = session.view();
        let entry = view.luns.iter().find(|entry| Arc::ptr_eq(&entry.nexus, nexus))?;
        Some(qos::charge([entry.limiter.clone(), session.limiter.clone()], writes))
    }

    fn did(&self, command: &Command, deed: Deed) {
        let Some(shared) = self.0.upgrade() else { return };
        let nexus = command.nexus.shared();
        if let Some(session) = shared.registry.of_nexus(nexus.nexus.id) {
            let view = session.view();
            let lun = view.luns.iter().find(|entry| Arc::ptr_eq(&entry.nexus, nexus)).map(|entry| entry.lun);
            audit::did(&session, lun, deed);
        }
    }
}
