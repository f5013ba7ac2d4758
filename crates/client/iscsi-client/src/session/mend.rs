//! Error recovery level 2: restores lost connections while their session continues, and reassigns
//! their tasks (RFC 7143 §7.2.2, §6.3.4).
//!
//! If another connection exists, a logout on it removes the lost one, and the tasks continue there
//! at once; the connection itself is restored in parallel. Otherwise a new connection with the same
//! CID replaces it. If recovery takes too long the session is lost, and reconnects as at level 0.

use std::rc::Rc;
use std::time::Duration;

use iscsi::login::initiator::InitiatorLoginError;
use iscsi::pdu::{LoginStatus, LogoutResult};
use runtime::JoinHandle;

use super::refusal::{is_final, no_more};
use super::state::{Broken, Inner, Removal, State};
use super::supervise::either;
use crate::dial::dial;
use crate::error::Error;

/// Timeout for the answer to a removal.
const REMOVAL_TIME: Duration = Duration::from_secs(5);
/// The pause between two connection attempts: initial and maximum.
const PAUSE: (Duration, Duration) = (Duration::from_millis(50), Duration::from_secs(2));

/// The next step for a connection.
enum Step {
    /// Remove it by a logout on another connection.
    Remove(Broken),
    /// Restore it; another connection has its tasks.
    Replace(Broken),
    /// Restore it: there is no other connection.
    Reinstate(Broken),
}

/// Spawns the recovery of a session's lost connections.
pub(super) fn begin(inner: Rc<Inner>, generation: u64) -> JoinHandle<()> {
    runtime::spawn(mend(inner, generation))
}

/// Recovers until no connection is broken, or the session has changed.
async fn mend(inner: Rc<Inner>, generation: u64) {
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
                either(inner.mender_bell.heard(), runtime::sleep(pause)).await;
                pause = (pause * 2).min(PAUSE.1);
            }
            Err(error) => return inner.lose(generation, error),
        }
    }
}

/// The next step; waiting tasks take precedence over connections.
fn next(inner: &Inner, generation: u64) -> Option<Step> {
    let core = inner.core.borrow();
    if core.generation != generation || !matches!(core.state, State::Up) {
        return None;
    }
    let waiting = core.broken.iter().find(|broken| !broken.adopted);
    Some(match (waiting, core.links.is_empty()) {
        (Some(broken), false) => Step::Remove(broken.clone()),
        (Some(broken), true) => Step::Reinstate(broken.clone()),
        // All connections are lost after reassignments: those that took the tasks are among the
        // broken ones.
        (None, true) => Step::Reinstate(core.broken.first()?.clone()),
        (None, false) => Step::Replace(core.broken.first()?.clone()),
    })
}

/// Removes a connection at the target, and moves its tasks. Returns false without an answer, or if
/// no other connection is left.
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
    let deadline = runtime::now() + REMOVAL_TIME;
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
        if runtime::now() >= deadline {
            // A connection without an answer to a logout is not reliable.
            inner.lose_link(serial, Error::TimedOut("logout for recovery"));
            return Ok(false);
        }
        either(inner.mender_bell.heard(), runtime::sleep(Duration::from_millis(100))).await;
    };
    match answer {
        // A target cannot have tasks of an unknown connection; it will report that for each.
        Removal { result: Some(LogoutResult::Success | LogoutResult::CidNotFound), time2wait, .. } => {
            runtime::sleep(time2wait).await;
            adopt(inner, generation, broken.cid)
        }
        _ => Err(broken.error.clone()),
    }
}

/// Moves the tasks of a connection that the target has removed.
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

/// Restores a connection with its old CID. Returns whether that succeeded.
async fn connect(inner: &Rc<Inner>, generation: u64, broken: &Broken, others: bool) -> Result<bool, Error> {
    let params = inner.params();
    let begin = broken.since + Duration::from_secs(params.default_time2wait_s.into());
    if !others {
        runtime::sleep(begin.saturating_duration_since(runtime::now())).await;
    }
    let end = begin + Duration::from_secs(params.default_time2retain_s.into());
    let portal = inner.portal_of(broken.cid);
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
        // The target allows no further connection, so continue without it. That is certain once the
        // target has dropped all lost ones.
        Err(error) if others && no_more(&error) && runtime::now() >= end => {
            inner.core.borrow_mut().broken.retain(|other| other.cid != broken.cid);
            Ok(true)
        }
        Err(error) if is_final(&error) || session_gone(&error) => Err(error),
        Err(error) => {
            let alone = inner.link_count() == 0;
            // The target drops the tasks after Time2Wait and Time2Retain.
            if alone && runtime::now() >= end { Err(error) } else { Ok(false) }
        }
    }
}

/// Whether the target no longer has the session.
fn session_gone(error: &Error) -> bool {
    matches!(error, Error::Login(InitiatorLoginError::Status(LoginStatus::SessionDoesNotExist)))
}
