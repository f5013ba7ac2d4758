//! Handles the events of a connection, on any transport.

use std::time::Duration;

use iscsi::initiator::{ConnectionId, Event};

use super::notice;
use super::state::{Core, Inner, Removal, Task};
use crate::error::Error;

/// Records that a connection is alive.
pub(super) fn heard(core: &mut Core, on: ConnectionId) {
    if let Some(link) = core.links.iter_mut().find(|l| l.on == on) {
        link.last_heard = runtime::now();
    }
}

/// Sends the results of a receive, and wakes the waiting tasks.
pub(super) fn follow_up(inner: &Inner, core: &mut Core) {
    core.ring_links();
    if core.leaving.is_some() {
        // Outstanding commands may have ended.
        inner.supervisor_bell.ring();
    }
    if !core.ended.is_empty() {
        inner.queue_bell.ring();
        inner.room.wake_all();
    }
}

/// Handles an event of the protocol.
pub(super) fn act(
    inner: &Inner,
    core: &mut Core,
    on: ConnectionId,
    event: Option<Event<Task>>,
) -> Result<(), Error> {
    match event {
        None => {}
        Some(Event::Done(_, task, completion)) => inner.complete(core, task, completion),
        Some(Event::Pong(_, task @ Task::Waited { .. })) => inner.complete_plain(core, &task, 0),
        Some(Event::Pong(..)) => {
            if let Some(link) = core.links.iter_mut().find(|l| l.on == on) {
                link.pinged = None;
            }
        }
        Some(Event::TaskManagement(_, task, result, aborted)) => {
            for (_, mut task) in aborted {
                core.withdraw(&mut task);
                inner.fail_task(core, &task, Error::Aborted);
            }
            inner.complete_plain(core, &task, result.map_or(0xff, |r| r.code()));
        }
        Some(Event::LoggedOut(_, Task::Leave, _)) => {
            if let Some(leaving) = &mut core.leaving {
                leaving.done = true;
                inner.supervisor_bell.ring();
            }
        }
        Some(Event::LoggedOut(_, task, result)) => {
            inner.complete_plain(core, &task, result.map_or(0xff, |r| r.code()));
        }
        Some(Event::Text(_, task, text)) => notice::heard_text(inner, core, on, &task, text),
        Some(Event::Rejected(reason, task)) => {
            tracing::debug!(?reason, "the target rejected a PDU");
            if let Some((_, task)) = task {
                inner.fail_task(core, &task, Error::Rejected(reason));
            }
        }
        Some(Event::Lost(_, task)) => {
            let lost =
                Error::Lost("the target does not know the command after its connection was lost".to_owned());
            inner.fail_task(core, &task, lost);
        }
        Some(Event::Removed { cid, result, time2wait_s, .. }) => {
            core.removal = Some(Removal { cid, result, time2wait: Duration::from_secs(time2wait_s.into()) });
            inner.mender_bell.ring();
        }
        Some(Event::Async(message)) => notice::heed(inner, core, on, &message)?,
    }
    Ok(())
}
