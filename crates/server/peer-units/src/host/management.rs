//! Ends tasks: those of a preempted nexus of another gateway, and those that a task management
//! function of another gateway's initiator ends, whatever gateway they came by.

use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;

use device::{AbortTasks, Command, ItlNexus, LogicalUnit, ResetKind, Tasks};
use peer_link::{Function, Managed, Number};
use runtime::Handle;
use scsi::UnitAttention;

use super::peer::Peer;
use super::{Shared, host};

/// [`Managed::Failed`]: the unit is not this owner's, so its tasks go on at the next one.
const NOT_OWNER: u8 = 2;

/// Reaches the tasks of other gateways from any core.
pub(super) struct Aborter {
    pub host: u64,
    pub core: Handle,
}

/// Which tasks, and the one that asks.
type Selection = (Arc<ItlNexus>, Tasks, Option<(Arc<ItlNexus>, u64)>);

impl Aborter {
    fn ask<Fut: Future<Output = usize> + 'static>(
        &self,
        selection: Selection,
        act: impl FnOnce(Rc<Shared>, Selection) -> Fut + Send + 'static,
    ) -> Pin<Box<dyn Future<Output = usize>>> {
        let number = self.host;
        let asked = self.core.call(move || async move {
            match host(number) {
                Some(host) => act(host, selection).await,
                None => 0,
            }
        });
        Box::pin(async move { asked.await.unwrap_or(0) })
    }
}

fn selection(nexus: Arc<ItlNexus>, which: Tasks, except: Option<&Command>) -> Selection {
    (nexus, which, except.map(|command| (command.nexus.shared().clone(), command.tag)))
}

impl AbortTasks for Aborter {
    fn abort(
        &self,
        nexus: Arc<ItlNexus>,
        which: Tasks,
        except: Option<&Command>,
    ) -> Pin<Box<dyn Future<Output = usize>>> {
        self.ask(selection(nexus, which, except), abort)
    }

    fn count(
        &self,
        nexus: Arc<ItlNexus>,
        which: Tasks,
        except: Option<&Command>,
    ) -> Pin<Box<dyn Future<Output = usize>>> {
        self.ask(selection(nexus, which, except), |host, selection| async move {
            host.executing().iter().map(|peer| begun(peer, &selection).len()).sum()
        })
    }
}

/// The commands of a peer that are selected and have begun.
fn begun(peer: &Peer, (nexus, which, except): &Selection) -> Vec<Number> {
    let own = except.as_ref().filter(|(own, _)| Arc::ptr_eq(own, nexus)).map(|(_, tag)| *tag);
    let jobs = peer.itls_of(nexus).into_iter().flat_map(|itl| peer.jobs_of(itl));
    let selected = jobs.filter(|job| match which {
        Tasks::All => Some(job.tag) != own,
        Tasks::Tagged(tag) => job.tag == *tag && Some(job.tag) != own,
    });
    selected.map(|job| job.number).collect()
}

async fn abort(host: Rc<Shared>, selection: Selection) -> usize {
    let (nexus, which, except) = &selection;
    let mut waits = Vec::new();
    for peer in host.executing() {
        let numbers = match which {
            Tasks::Tagged(_) => {
                let numbers = begun(&peer, &selection);
                numbers.iter().for_each(|number| peer.abort(*number));
                numbers
            }
            Tasks::All => {
                let mut numbers = Vec::new();
                for itl in peer.itls_of(nexus) {
                    let own =
                        |tag: u64| peer.jobs_of(itl).iter().find(|job| job.tag == tag).map(|job| job.number);
                    let except = except.as_ref().filter(|(own, _)| Arc::ptr_eq(own, nexus));
                    numbers.extend(peer.clear(itl, except.and_then(|(_, tag)| own(*tag))));
                }
                numbers
            }
        };
        waits.push((peer, numbers));
    }
    let mut count = 0;
    for (peer, numbers) in waits {
        peer.over(&numbers).await;
        count += numbers.len();
    }
    count
}

/// Does what an initiator of another gateway asks for. Its own tasks that it concerns have ended.
pub(super) async fn manage(peer: &Peer, number: Number, itl: u32, function: Function) {
    let kind = match function {
        Function::ClearTaskSet => None,
        Function::LogicalUnitReset => Some(ResetKind::LogicalUnit),
        Function::TargetWarmReset => Some(ResetKind::TargetWarm),
        Function::TargetColdReset => Some(ResetKind::TargetCold),
        Function::Unknown(_) => return peer.managed(number, Managed::Rejected),
    };
    // The unit stays here until it is done.
    let Some((local, begun)) = peer.local(itl).and_then(|(key, local)| Some((local, peer.open(key.unit)?)))
    else {
        return peer.managed(number, Managed::Failed(NOT_OWNER));
    };
    let Some(unit) = local.unit() else {
        // Its registration is another user's.
        return peer.managed(number, Managed::Rejected);
    };
    for nexus in unit.nexuses().attached() {
        if Arc::ptr_eq(&nexus, &local.itl) {
            continue;
        }
        let aborted = unit.nexuses().abort_tasks(nexus.clone(), Tasks::All, None).await;
        if kind.is_none() && aborted.unwrap_or(0) > 0 {
            nexus.establish(UnitAttention::CommandsClearedByAnotherInitiator);
        }
    }
    if let Some(kind) = kind {
        unit.reset(kind, Some(local.itl.nexus.id));
    }
    drop(begun);
    peer.managed(number, Managed::Done);
}
