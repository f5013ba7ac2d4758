//! Error recovery level 2: making lost connections again while their session goes on, and handing their tasks to others (RFC
//! 7143 §7.2.2, §6.3.4).
//!
//! With another connection at hand the lost one is removed by a logout there, and its tasks go on there at once; the
//! connection itself is made again beside that. Without, a new connection with the same CID takes its place. What cannot
//! be mended in time costs the session, which is then made anew as at level 0.

use std::rc::Rc;
use std::time::Duration;

use iscsi::login::initiator::InitiatorLoginError;
use iscsi::pdu::{LoginStatus, LogoutResult};

use super::refusal::{is_final, no_more};
use super::state::{Broken, Inner, Removal, State};
use super::supervise::either;
use crate::dial::dial;
use crate::error::Error;

/// How long a removal may take to be answered.
const REMOVAL_TIME: Duration = Duration::from_secs(5);
/// The pause between two tries to connect, at first and at most.
const PAUSE: (Duration, Duration) = (Duration::from_millis(50), Duration::from_secs(2));

/// What is to be done about a connection.
enum Step {
    /// Ask on another connection that it be removed.
    Remove(Broken),
    /// Make it again; another one has its tasks.
    Replace(Broken),
    /// Make it again: there is no other.
    Reinstate(Broken),
}

/// Mends until nothing is broken, or the session is another.
pub(super) async fn mend(inner: Rc<Inner>, generation: u64) {
    let mut pause = PAUSE.0;
    while let Some(step) = next(&inner, generation) {
        let outcome = match step {
            Step::Remove(broken) => remove(&inner, generation, &broken).await,
            Step::Replace(broken) => connect(&inner, generation, &broken, true).await,
            Step::Reinstate(broken) => connect(&inner, generation, &broken, false).await,
        };
        match outcome {
            Ok(true) => pause = PAUSE.0,
            Ok(false) => {
                either(inner.mender_bell.heard(), ring::sleep(pause)).await;
                pause = (pause * 2).min(PAUSE.1);
            }
            Err(error) => return inner.lose(generation, error),
        }
    }
}

/// What to do next; tasks that wait come before connections.
fn next(inner: &Inner, generation: u64) -> Option<Step> {
    let core = inner.core.borrow();
    if core.generation != generation || !matches!(core.state, State::Up) {
        return None;
    }
    let waiting = core.broken.iter().find(|broken| !broken.adopted);
    Some(match (waiting, core.links.is_empty()) {
        (Some(broken), false) => Step::Remove(broken.clone()),
        (Some(broken), true) => Step::Reinstate(broken.clone()),
        // All is lost though all was adopted: those who adopted are among the broken.
        (None, true) => Step::Reinstate(core.broken.first()?.clone()),
        (None, false) => Step::Replace(core.broken.first()?.clone()),
    })
}

/// Has the target forget a connection, and moves its tasks. Answers whether that was done; not if there was no answer, or
/// no other connection any more.
async fn remove(inner: &Rc<Inner>, generation: u64, broken: &Broken) -> Result<bool, Error> {
    let serial = {
        let mut core = inner.core.borrow_mut();
        let core = &mut *core;
        core.removal = None;
        let Some(link) = core.links.first() else { return Ok(false) };
        if !core.protocol.remove_for_recovery(link.on, broken.cid) {
            return Ok(false);
        }
        let serial = link.serial;
        core.ring_links();
        serial
    };
    let deadline = ring::now() + REMOVAL_TIME;
    let answer = loop {
        {
            let core = inner.core.borrow();
            if core.generation != generation {
                return Ok(false);
            }
            if let Some(removal) = core.removal.filter(|removal| removal.cid == broken.cid) {
                break removal;
            }
            if core.links.iter().all(|link| link.serial != serial) {
                return Ok(false);
            }
        }
        if ring::now() >= deadline {
            // Whoever does not answer a logout is not to be trusted with more.
            inner.lose_link(serial, Error::TimedOut("logout for recovery"));
            return Ok(false);
        }
        either(inner.mender_bell.heard(), ring::sleep(Duration::from_millis(100))).await;
    };
    match answer {
        // What the target does not know it cannot have tasks of; each will be told so.
        Removal { result: Some(LogoutResult::Success | LogoutResult::CidNotFound), time2wait, .. } => {
            ring::sleep(time2wait).await;
            adopt(inner, generation, broken.cid)
        }
        _ => Err(broken.error.clone()),
    }
}

/// Moves the tasks of a connection that the target has forgotten.
fn adopt(inner: &Inner, generation: u64, cid: u16) -> Result<bool, Error> {
    let mut core = inner.core.borrow_mut();
    let core = &mut *core;
    if core.generation != generation {
        return Ok(false);
    }
    core.broken.iter_mut().filter(|broken| broken.cid == cid).for_each(|broken| broken.adopted = true);
    core.protocol.adopt(cid)?;
    core.ring_links();
    Ok(true)
}

/// Makes a connection again, with its old CID. Answers whether that was done.
async fn connect(inner: &Rc<Inner>, generation: u64, broken: &Broken, others: bool) -> Result<bool, Error> {
    let params = inner.params();
    let begin = broken.since + Duration::from_secs(params.default_time2wait_s.into());
    if !others {
        ring::sleep(begin.saturating_duration_since(ring::now())).await;
    }
    let end = begin + Duration::from_secs(params.default_time2retain_s.into());
    let portal = inner.portal();
    let dialed = dial(&portal, &inner.further_config(broken.cid), &inner.options).await;
    {
        let core = inner.core.borrow();
        if core.generation != generation || !matches!(core.state, State::Up) {
            return Ok(false);
        }
    }
    match dialed {
        Ok(dialed) => {
            inner.install(dialed, broken.cid, false)?;
            let done = adopt(inner, generation, broken.cid)?;
            inner.core.borrow_mut().broken.retain(|other| other.cid != broken.cid);
            Ok(done)
        }
        // The target does without it, and so do we. That it does is sure once it has forgotten all those that were lost.
        Err(error) if others && no_more(&error) && ring::now() >= end => {
            inner.core.borrow_mut().broken.retain(|other| other.cid != broken.cid);
            Ok(true)
        }
        Err(error) if is_final(&error) || session_gone(&error) => Err(error),
        Err(error) => {
            let alone = inner.link_count() == 0;
            // The target forgets the tasks after Time2Wait and Time2Retain.
            if alone && ring::now() >= end { Err(error) } else { Ok(false) }
        }
    }
}

/// Whether the target has no such session any more.
fn session_gone(error: &Error) -> bool {
    matches!(error, Error::Login(InitiatorLoginError::Status(LoginStatus::SessionDoesNotExist)))
}
