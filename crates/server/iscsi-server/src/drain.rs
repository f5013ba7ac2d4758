//! Taking initiators off a portal, a target or the whole server before maintenance: new logins are refused or sent elsewhere, every
//! session is asked to log out, and what is left after a while is dropped with notice (RFC 7143 §11.9, events 1 to 3).
//!
//! It must never touch what is at work: an initiator that is asked ends its own commands before it logs out.

use std::collections::HashSet;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use iscsi::login::target::{Claim, Grant, Refusal};
use iscsi::name;
use iscsi::pdu::LoginStatus;

use crate::Handle;
use crate::config::Redirect;
use crate::connection::ConnectionId;
use crate::redirect;
use crate::server::Shared;
use crate::session::{Member, Session};

/// How often it is looked who is left.
const LOOK: Duration = Duration::from_millis(100);
/// Time for connections that are dropped to end.
const LAST: Duration = Duration::from_secs(10);

/// What is drained.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DrainScope {
    /// The whole server.
    All,
    /// The target with this name.
    Target(String),
    /// What came through the portal that listens at this address.
    Portal(SocketAddr),
}

impl std::fmt::Display for DrainScope {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::All => f.write_str("everything"),
            Self::Target(name) => write!(f, "target {name}"),
            Self::Portal(address) => write!(f, "portal {address}"),
        }
    }
}

/// How it is drained.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DrainOptions {
    /// Time that initiators have to log out.
    pub timeout: Duration,
    /// Where new logins are sent; refused if nowhere.
    pub redirect: Option<Redirect>,
}

/// How far a drain is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DrainState {
    /// Initiators have been asked to log out.
    Asking,
    /// Their time is up: connections are being dropped.
    Dropping,
    /// Nobody is left. New logins are refused or sent elsewhere until the drain is undone.
    Drained,
}

/// A drain as it is now.
#[derive(Clone, Debug)]
pub struct DrainStatus {
    /// What is drained.
    pub scope: DrainScope,
    /// How far it is.
    pub state: DrainState,
    /// Connections that were asked to log out.
    pub asked: usize,
    /// Connections that had to be dropped.
    pub dropped: usize,
    /// Connections that are left.
    pub left: usize,
    /// How long ago it began.
    pub age: Duration,
    /// How long initiators still have to log out.
    pub remaining: Duration,
    /// Where new logins are sent.
    pub redirect: Option<Redirect>,
}

/// Why nothing is drained.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DrainError {
    /// No such target, or no portal listens there.
    #[error("there is no {0}")]
    Unknown(DrainScope),
    /// It is being drained already.
    #[error("{0} is being drained already")]
    Again(DrainScope),
    /// The server is ending.
    #[error("the server is ending")]
    Ending,
}

/// All drains of a server. Looked at by logins only.
#[derive(Default)]
pub(crate) struct Drains {
    any: AtomicBool,
    list: Mutex<Vec<Arc<Drain>>>,
}

struct Drain {
    scope: DrainScope,
    options: DrainOptions,
    began: Instant,
    state: Mutex<DrainState>,
    undone: AtomicBool,
    asked: AtomicUsize,
    dropped: AtomicUsize,
    left: AtomicUsize,
}

impl Drain {
    fn covers(&self, target: Option<&str>, portal: SocketAddr) -> bool {
        match &self.scope {
            DrainScope::All => true,
            DrainScope::Target(name) => target.is_some_and(|target| name::eq(target, name)),
            DrainScope::Portal(address) => *address == portal,
        }
    }

    /// The connections that it is about, by session, and whether these are all that the session has.
    fn affected(&self, shared: &Shared) -> Vec<(Arc<Session>, Vec<Member>, bool)> {
        let of = |session: Arc<Session>| {
            let target = session.target_name();
            let mut members = session.connections();
            let all = members.len();
            members.retain(|member| self.covers(target, member.arrival.portal));
            let whole = members.len() == all;
            (!members.is_empty()).then_some((session, members, whole))
        };
        shared.registry.all().into_iter().filter_map(of).collect()
    }

    fn set(&self, state: DrainState) {
        *self.state.lock().unwrap_or_else(PoisonError::into_inner) = state;
    }

    fn is_undone(&self) -> bool {
        self.undone.load(Ordering::Acquire)
    }

    fn status(&self) -> DrainStatus {
        let age = self.began.elapsed();
        DrainStatus {
            scope: self.scope.clone(),
            state: *self.state.lock().unwrap_or_else(PoisonError::into_inner),
            asked: self.asked.load(Ordering::Relaxed),
            dropped: self.dropped.load(Ordering::Relaxed),
            left: self.left.load(Ordering::Relaxed),
            age,
            remaining: self.options.timeout.saturating_sub(age),
            redirect: self.options.redirect.clone(),
        }
    }
}

impl Drains {
    fn list(&self) -> MutexGuard<'_, Vec<Arc<Drain>>> {
        self.list.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether a login may go on that came through the portal at `portal`; where it is sent once it has proved itself goes into the
    /// grant.
    ///
    /// # Errors
    /// The refusal, or the redirection.
    pub(crate) fn check(
        &self,
        claim: &Claim<'_>,
        portal: SocketAddr,
        grant: &mut Grant,
    ) -> Result<(), Refusal> {
        if !self.any.load(Ordering::Acquire) {
            return Ok(());
        }
        let drain = self.list().iter().find(|drain| drain.covers(claim.target, portal)).cloned();
        match drain.map(|drain| drain.options.redirect.clone()) {
            None => Ok(()),
            Some(Some(to)) => redirect::send(&to, grant),
            Some(None) => Err(Refusal::Status(LoginStatus::ServiceUnavailable)),
        }
    }

    /// Whether initiators are to be told of this portal.
    pub(crate) fn offers(&self, portal: SocketAddr) -> bool {
        !self.any.load(Ordering::Acquire)
            || !self.list().iter().any(|drain| drain.scope == DrainScope::Portal(portal))
    }
}

impl Handle {
    /// Begins to drain `scope`; [`Self::drains`] shows how it goes.
    ///
    /// # Errors
    /// Any [`DrainError`].
    pub fn drain(&self, scope: DrainScope, options: DrainOptions) -> Result<(), DrainError> {
        let shared = self.shared();
        let known = match &scope {
            DrainScope::All => true,
            DrainScope::Target(name) => shared.model().target(name).is_some(),
            DrainScope::Portal(address) => shared.portals().iter().any(|portal| portal.address == *address),
        };
        if !known {
            return Err(DrainError::Unknown(scope));
        }
        let drain = Arc::new(Drain {
            scope: scope.clone(),
            options,
            began: runtime::clock(),
            state: Mutex::new(DrainState::Asking),
            undone: AtomicBool::new(false),
            asked: AtomicUsize::new(0),
            dropped: AtomicUsize::new(0),
            left: AtomicUsize::new(0),
        });
        {
            let mut list = shared.drains.list();
            if list.iter().any(|other| other.scope == scope) {
                return Err(DrainError::Again(scope));
            }
            list.push(drain.clone());
            shared.drains.any.store(true, Ordering::Release);
        }
        drain.left.store(
            drain.affected(shared).iter().map(|(_, members, _)| members.len()).sum(),
            Ordering::Relaxed,
        );
        tracing::info!(%scope, connections = drain.left.load(Ordering::Relaxed), "draining");
        let core = shared.core_handles().next().ok_or(DrainError::Ending)?;
        let shared = shared.clone();
        core.run(move || async move { run(&shared, &drain).await }).map_err(|_| DrainError::Ending)
    }

    /// Ends a drain: new logins are let in again. What has been dropped stays so. False if `scope` is not being drained.
    pub fn undrain(&self, scope: &DrainScope) -> bool {
        let shared = self.shared();
        let mut list = shared.drains.list();
        let Some(at) = list.iter().position(|drain| drain.scope == *scope) else { return false };
        list.swap_remove(at).undone.store(true, Ordering::Release);
        shared.drains.any.store(!list.is_empty(), Ordering::Release);
        tracing::info!(%scope, "draining no more");
        true
    }

    /// All drains that have not been undone.
    pub fn drains(&self) -> Vec<DrainStatus> {
        self.shared().drains.list().iter().map(|drain| drain.status()).collect()
    }
}

/// Sees a drain through.
async fn run(shared: &Arc<Shared>, drain: &Drain) {
    let deadline = drain.began + drain.options.timeout;
    // Logins that were let in before it began may end in a session after it did.
    let last_login = drain.began + shared.limits().login_timeout;
    let mut asked: HashSet<ConnectionId> = HashSet::new();
    loop {
        if drain.is_undone() || shared.is_stopping() {
            return;
        }
        let affected = drain.affected(shared);
        let left: usize = affected.iter().map(|(_, members, _)| members.len()).sum();
        drain.left.store(left, Ordering::Relaxed);
        let now = runtime::now();
        if left > 0 && now >= deadline {
            drain.set(DrainState::Dropping);
            drop_all(drain, &affected).await;
            continue;
        }
        drain.set(if left > 0 { DrainState::Asking } else { DrainState::Drained });
        if left == 0 && now >= last_login {
            return tracing::info!(scope = %drain.scope, "drained");
        }
        for (_, members, _) in &affected {
            for member in members.iter().filter(|member| asked.insert(member.remote.id)) {
                drain.asked.fetch_add(1, Ordering::Relaxed);
                member.remote.ask_for_logout(deadline.saturating_duration_since(now));
            }
        }
        runtime::sleep(LOOK).await;
    }
}

/// Drops connections with notice, and waits for their end.
async fn drop_all(drain: &Drain, affected: &[(Arc<Session>, Vec<Member>, bool)]) {
    for (session, members, whole) in affected {
        tracing::info!(initiator = session.port.initiator, tsih = session.tsih, scope = %drain.scope,
            connections = members.len(), "dropped: it has not logged out in time");
        drain.dropped.fetch_add(members.len(), Ordering::Relaxed);
        if *whole {
            session.end();
        }
        for member in members {
            match whole {
                true => member.remote.announce_session_drop(session),
                false => member.remote.announce_connection_drop(member.cid, session),
            }
            member.remote.shut();
        }
    }
    let wait = async {
        for (_, members, _) in affected {
            for member in members {
                member.remote.close().await;
            }
        }
    };
    // A unit that does not end its commands holds them; the next look finds them again.
    let _ = runtime::timeout(LAST, Box::pin(wait)).await;
}
