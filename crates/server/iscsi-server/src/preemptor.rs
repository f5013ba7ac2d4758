//! Aborts tasks for units: those of a preempted nexus, and those that a unit's own task management
//! ends.

use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Weak};

use device::{AbortTasks, Charge, Command, Deed, ItlNexus, Tasks};

use crate::remote::{Remote, Victims};
use crate::session::Session;
use crate::shared::Shared;
use crate::{audit, qos};

/// Has `ask` act on tasks on each connection of a session; returns the number of tasks.
pub(crate) async fn ask_session(
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

/// The same in several sessions.
async fn ask_sessions(
    concerned: Vec<(Arc<Session>, Victims)>,
    ask: impl AsyncFn(&Remote, Victims) -> usize,
) -> usize {
    let mut count = 0;
    for (session, victims) in concerned {
        count += ask_session(&session, &victims, &ask).await;
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
        Box::pin(ask_sessions(self.victims(&nexus, which, except), Remote::abort))
    }

    fn count(
        &self,
        nexus: Arc<ItlNexus>,
        which: Tasks,
        except: Option<&Command>,
    ) -> Pin<Box<dyn Future<Output = usize>>> {
        Box::pin(ask_sessions(self.victims(&nexus, which, except), Remote::count))
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
