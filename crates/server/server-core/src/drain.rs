//! Removes clients from a portal, a target or the whole server before maintenance. New logins are
//! refused or redirected, every client is asked to leave, and the remaining ones are dropped with
//! notice after a timeout.
//!
//! A drain never touches commands: a client that is asked to leave ends its own first. The front
//! end selects the clients of a drain, and asks and drops them ([`Audience`]).

use std::collections::HashSet;
use std::future::Future;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use crate::audit::TARGET;
use crate::{ConnectionId, Hub};

/// Interval at which a drain counts the connections that are left.
const LOOK: Duration = Duration::from_millis(100);
/// Time for connections that are dropped to end.
const LAST: Duration = Duration::from_secs(10);

/// Scope of a drain.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Scope {
    /// The whole server.
    All,
    /// The target with this name.
    Target(String),
    /// The connections that came through the portal that listens at this address.
    Portal(SocketAddr),
}

impl std::fmt::Display for Scope {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::All => f.write_str("everything"),
            Self::Target(name) => write!(f, "target {name}"),
            Self::Portal(address) => write!(f, "portal {address}"),
        }
    }
}

/// Options of a drain. `Elsewhere` is a front end's type for a redirection target.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Options<Elsewhere> {
    /// Time that clients have to leave.
    pub timeout: Duration,
    /// Redirection target for new logins; `None` refuses them.
    pub redirect: Option<Elsewhere>,
}

/// Progress of a drain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// Clients have been asked to leave.
    Asking,
    /// Their time is up: connections are being dropped.
    Dropping,
    /// No connection is left. New logins are refused or redirected until the drain is undone.
    Drained,
}

/// Snapshot of a drain.
#[derive(Clone, Debug)]
pub struct Status<Elsewhere> {
    /// Scope of the drain.
    pub scope: Scope,
    /// Its progress.
    pub state: State,
    /// Connections that were asked to leave.
    pub asked: usize,
    /// Connections that had to be dropped.
    pub dropped: usize,
    /// Connections that are left.
    pub left: usize,
    /// Time since it began.
    pub age: Duration,
    /// Time that clients still have to leave.
    pub remaining: Duration,
    /// Redirection target for new logins.
    pub redirect: Option<Elsewhere>,
}

/// Reason why a drain did not begin.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// No such target, or no portal listens there.
    #[error("there is no {0}")]
    Unknown(Scope),
    /// It is being drained already.
    #[error("{0} is being drained already")]
    Again(Scope),
    /// The server is ending.
    #[error("the server is ending")]
    Ending,
}

/// The clients of a front end.
pub trait Audience: Send + Sync + 'static {
    /// Connections that are asked and dropped together: those of one session that a drain affects.
    type Group;

    /// The connections that a drain of `scope` affects now.
    fn affected(&self, scope: &Scope) -> Vec<Self::Group>;

    /// The connections of a group.
    fn connections(&self, group: &Self::Group) -> Vec<ConnectionId>;

    /// Asks a connection of a group to leave within `time`.
    fn ask_to_leave(&self, group: &Self::Group, connection: ConnectionId, time: Duration);

    /// Drops a group with notice, as part of a drain of `scope`. The returned future completes when
    /// the group's connections have ended.
    fn drop_with_notice(&self, group: &Self::Group, scope: &Scope) -> Pin<Box<dyn Future<Output = ()>>>;

    /// Time after the beginning of a drain within which a login that was admitted before it must
    /// have ended.
    fn login_time(&self) -> Duration;
}

/// All drains of a front end. Only logins look it up.
pub struct Drains<Elsewhere> {
    any: AtomicBool,
    list: Mutex<Vec<Arc<Drain<Elsewhere>>>>,
}

struct Drain<Elsewhere> {
    scope: Scope,
    options: Options<Elsewhere>,
    began: Instant,
    state: Mutex<State>,
    undone: AtomicBool,
    asked: AtomicUsize,
    dropped: AtomicUsize,
    left: AtomicUsize,
}

impl<Elsewhere> Default for Drains<Elsewhere> {
    fn default() -> Self {
        Self { any: AtomicBool::new(false), list: Mutex::default() }
    }
}

impl<Elsewhere: Clone + Send + Sync + 'static> Drains<Elsewhere> {
    fn list(&self) -> MutexGuard<'_, Vec<Arc<Drain<Elsewhere>>>> {
        self.list.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The redirection target of the drain whose scope `covers` a login, if any; the inner `None`
    /// refuses the login.
    pub fn covering(&self, covers: impl Fn(&Scope) -> bool) -> Option<Option<Elsewhere>> {
        if !self.any.load(Ordering::Acquire) {
            return None;
        }
        let list = self.list();
        list.iter().find(|drain| covers(&drain.scope)).map(|drain| drain.options.redirect.clone())
    }

    /// Whether clients may be offered this portal.
    pub fn offers(&self, portal: SocketAddr) -> bool {
        self.covering(|scope| *scope == Scope::Portal(portal)).is_none()
    }

    /// Begins to drain `scope`, which exists; [`Self::all`] shows its progress.
    ///
    /// # Errors
    /// [`Error::Again`] and [`Error::Ending`].
    pub fn begin(
        &self,
        scope: Scope,
        options: Options<Elsewhere>,
        hub: &Arc<Hub>,
        audience: Arc<impl Audience>,
    ) -> Result<(), Error> {
        let drain = Arc::new(Drain {
            scope: scope.clone(),
            options,
            began: runtime::clock(),
            state: Mutex::new(State::Asking),
            undone: AtomicBool::new(false),
            asked: AtomicUsize::new(0),
            dropped: AtomicUsize::new(0),
            left: AtomicUsize::new(0),
        });
        {
            let mut list = self.list();
            if list.iter().any(|other| other.scope == scope) {
                return Err(Error::Again(scope));
            }
            list.push(drain.clone());
            self.any.store(true, Ordering::Release);
        }
        let affected = audience.affected(&scope);
        let left: usize = affected.iter().map(|group| audience.connections(group).len()).sum();
        drain.left.store(left, Ordering::Relaxed);
        tracing::info!(target: TARGET, what = "drain", %scope, connections = left, "draining");
        let owner = hub.clone();
        let ran = hub.first().run(move |_| async move { drain.run(&owner, &*audience).await });
        ran.map_err(|_| Error::Ending)
    }

    /// Ends a drain: new logins are admitted again. Connections already dropped stay dropped.
    /// Returns false if `scope` is not being drained.
    pub fn undo(&self, scope: &Scope) -> bool {
        let mut list = self.list();
        let Some(at) = list.iter().position(|drain| drain.scope == *scope) else { return false };
        list.swap_remove(at).undone.store(true, Ordering::Release);
        self.any.store(!list.is_empty(), Ordering::Release);
        tracing::info!(target: TARGET, what = "undrain", %scope, "draining no more");
        true
    }

    /// All drains that have not been undone.
    pub fn all(&self) -> Vec<Status<Elsewhere>> {
        self.list().iter().map(|drain| drain.status()).collect()
    }
}

impl<Elsewhere: Clone> Drain<Elsewhere> {
    fn set(&self, state: State) {
        *self.state.lock().unwrap_or_else(PoisonError::into_inner) = state;
    }

    fn status(&self) -> Status<Elsewhere> {
        let age = self.began.elapsed();
        Status {
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

    /// Runs a drain to its end.
    async fn run(&self, hub: &Hub, audience: &impl Audience) {
        let deadline = self.began + self.options.timeout;
        // Logins that were admitted before it began may end in a session after it did.
        let last_login = self.began + audience.login_time();
        let mut asked: HashSet<ConnectionId> = HashSet::new();
        loop {
            if self.undone.load(Ordering::Acquire) || hub.is_closed() {
                return;
            }
            let affected: Vec<_> = audience
                .affected(&self.scope)
                .into_iter()
                .map(|group| (audience.connections(&group), group))
                .collect();
            let left: usize = affected.iter().map(|(connections, _)| connections.len()).sum();
            self.left.store(left, Ordering::Relaxed);
            let now = runtime::now();
            if left > 0 && now >= deadline {
                self.set(State::Dropping);
                self.dropped.fetch_add(left, Ordering::Relaxed);
                let groups = affected.iter().map(|(_, group)| group);
                let ends: Vec<_> =
                    groups.map(|group| audience.drop_with_notice(group, &self.scope)).collect();
                let wait = async {
                    for end in ends {
                        end.await;
                    }
                };
                // A unit that does not end its commands keeps connections; the next check finds
                // them.
                let _ = runtime::timeout(LAST, Box::pin(wait)).await;
                continue;
            }
            self.set(if left > 0 { State::Asking } else { State::Drained });
            if left == 0 && now >= last_login {
                return tracing::info!(target: TARGET, what = "drained", scope = %self.scope, "drained");
            }
            for (connections, group) in &affected {
                for connection in connections.iter().filter(|connection| asked.insert(**connection)) {
                    self.asked.fetch_add(1, Ordering::Relaxed);
                    audience.ask_to_leave(group, *connection, deadline.saturating_duration_since(now));
                }
            }
            runtime::sleep(LOOK).await;
        }
    }
}
