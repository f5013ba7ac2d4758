//! The session of one core: it carries commands out, and is replaced when it has ended. Owns what
//! becomes of commands without an answer.
//!
//! A command whose session has ended may still run at the target. The rule:
//! - A new session has the name of the old one: the same initiator, ISID, target and portal
//!   group, with TSIH 0. That is a session reinstatement (RFC 7143 §6.3.5): the target terminates
//!   all tasks of the old session, and closes its connections, whose data can then reach no task.
//!   The login succeeds after that. So once it has, nothing of the old session comes later, and
//!   the store sends the command again. The unit above holds the sectors of a change meanwhile,
//!   so nothing newer was acknowledged there.
//! - A target that is silent gets half of `op_timeout`; then its session is replaced.
//! - A change that has no answer after `op_timeout` ends as unknown. Before that, the link ends its
//!   session and puts the store in doubt: no core sends anything else, over no session, until the
//!   reinstatement. So nothing newer can be overtaken, and no read sees the change come late.
//! - A login that leads to another portal group reinstates nothing (RFC 7143 §4.4.3: it makes
//!   another I_T nexus). So it is refused while a change of the old session is in doubt.

use std::cell::{Cell, RefCell};
use std::fmt::Display;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

use backing::StoreError;
use backing::health::problems::Kind;
use backing::remote::before;
use iscsi_client::{Command, Error, Response, Session, Unit};
use runtime::Notify;
use scsi::Sense;
use scsi::cdb::build;

use crate::common::{Common, Share};
use crate::judge::{Attention, Verdict, judge};
use crate::look::{Far, OpenError, look};

/// How often a command is sent whose session ends.
pub(crate) const ATTEMPTS: u32 = 3;
/// How often a command is sent that ends with a unit attention, or aborted.
const TRIES: u32 = 32;
/// Pause before a command is sent again to a unit that is busy.
const BUSY: Duration = Duration::from_millis(50);
/// Pause between two tries to log in.
const PAUSE: Duration = Duration::from_secs(1);
/// Pause after a session has ended: a target may drop each at once.
const BREATH: Duration = Duration::from_millis(100);
/// How often an idle session is looked at.
const LOOK: Duration = Duration::from_secs(5);
/// How long a change without an answer waits for the reinstatement, so that it is over when its end
/// is told.
const GRACE: Duration = Duration::from_secs(3);
/// How long a store that is closed waits for its last flush.
const FAREWELL: Duration = Duration::from_secs(5);

thread_local! {
    /// The links of this core.
    static LINKS: RefCell<Vec<Rc<Link>>> = RefCell::default();
}

/// What the success of a command says of the far cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Effect {
    /// It changes nothing.
    None,
    /// The change is durable, or its caller sees to that.
    Durable,
    /// The change may be in the cache only, if there is one.
    Cached,
    /// What was in the cache before is durable.
    Flush,
}

impl Effect {
    fn is_change(self) -> bool {
        matches!(self, Self::Durable | Self::Cached)
    }
}

pub(crate) struct Link {
    pub common: Arc<Common>,
    pub share: Arc<Share>,
    core: usize,
    state: RefCell<State>,
    /// This link has put the store in doubt.
    is_fenced: Cell<bool>,
    /// The last session has ended with a change that it may still carry out.
    is_in_doubt: Cell<bool>,
    /// The portal group of the last session; `None` before the first.
    group: Cell<Option<Option<u16>>>,
    /// The last login has become a session that served: no unit attention was missed since.
    has_served: Cell<bool>,
    /// How often the far cache may have been lost.
    resets: Cell<u64>,
    /// The far unit's size has changed.
    is_stale: Cell<bool>,
    /// There may be a session, or none any more.
    change: Notify,
}

enum State {
    /// There is no session; whether there has been none for longer than an operation may take.
    Connecting {
        is_late: bool,
    },
    Serving(Rc<Serving>),
    Closed,
}

/// One session, from its login to its loss.
pub(crate) struct Serving {
    unit: Unit,
    pub far: Far,
    /// WRITE SAME was refused.
    pub writes_no_same: Cell<bool>,
    /// SYNCHRONIZE CACHE was refused: there is no cache.
    pub flushes_nothing: Cell<bool>,
}

impl Serving {
    fn session(&self) -> &Session {
        self.unit.session()
    }

    pub(crate) fn command(&self, cdb: &[u8]) -> Command {
        // The link itself sends it again.
        self.unit.command(cdb).once()
    }
}

impl Link {
    /// This core's link of a store, if there is one.
    pub(crate) fn known(common: &Arc<Common>) -> Option<Rc<Self>> {
        LINKS.with_borrow(|links| links.iter().find(|link| Arc::ptr_eq(&link.common, common)).cloned())
    }

    /// This core's link of a store. Starts to log in if there is none.
    pub(crate) fn of(common: &Arc<Common>) -> Rc<Self> {
        if let Some(link) = Self::known(common) {
            return link;
        }
        let link = Rc::new(Self {
            common: common.clone(),
            share: common.enter(),
            core: runtime::current_core(),
            state: RefCell::new(State::Connecting { is_late: false }),
            is_fenced: Cell::new(false),
            is_in_doubt: Cell::new(false),
            group: Cell::new(None),
            has_served: Cell::new(false),
            resets: Cell::new(0),
            is_stale: Cell::new(false),
            change: Notify::default(),
        });
        LINKS.with_borrow_mut(|links| links.push(link.clone()));
        let this = link.clone();
        runtime::spawn(async move {
            let _end = OnEnd(this.clone());
            let serving = runtime::spawn(this.clone().serve());
            this.common.remote.closed().await;
            serving.abort();
            this.leave_for_good().await;
        });
        link
    }

    fn deadline(&self) -> Instant {
        runtime::now() + self.common.source.op_timeout
    }

    /// The session, once there is one.
    pub(crate) async fn serving(&self) -> Result<Rc<Serving>, StoreError> {
        self.serving_by(self.deadline()).await
    }

    async fn serving_by(&self, deadline: Instant) -> Result<Rc<Serving>, StoreError> {
        let found = || match &*self.state.borrow() {
            State::Serving(serving) => Some(Ok(serving.clone())),
            State::Connecting { is_late: false } => None,
            State::Connecting { is_late: true } | State::Closed => Some(Err(StoreError::Unknown)),
        };
        let wait = async {
            self.common.remote.settled().await;
            self.change.until(found).await
        };
        before(deadline, wait).await.unwrap_or(Err(StoreError::Unknown))
    }

    /// Carries out a command within the time that an operation may take.
    pub(crate) async fn ask(&self, command: Command, effect: Effect) -> Result<Response, StoreError> {
        Ok(self.ask_by(|_| command.clone(), effect).await?.0)
    }

    /// [`Self::ask`] with a command that depends on the session: the far unit may have another
    /// cache mode at the next one. Also returns the session that carried it out.
    pub(crate) async fn ask_by(
        &self,
        make: impl Fn(&Serving) -> Command,
        effect: Effect,
    ) -> Result<(Response, Rc<Serving>), StoreError> {
        let deadline = self.deadline();
        let (mut attempts, mut tries) = (0, 0);
        // A session that was lost with this change, and whose reinstatement is not known yet.
        let mut in_doubt = None;
        loop {
            let serving = match self.serving_by(deadline).await {
                Ok(serving) => serving,
                Err(error) => {
                    if let Some(lost) = in_doubt {
                        self.shut_out(&lost).await;
                    }
                    return Err(error);
                }
            };
            in_doubt = None;
            let covered = self.share.changes.to_flush();
            let command = make(&serving);
            let Some(started) = before(deadline, serving.session().start(command.clone())).await else {
                return Err(StoreError::Unknown);
            };
            let outcome = match started {
                Ok(ticket) => match before(deadline, ticket).await {
                    Some(outcome) => outcome,
                    None => {
                        if effect.is_change() {
                            self.shut_out(&serving).await;
                        }
                        return Err(StoreError::Unknown);
                    }
                },
                Err(error @ Error::Argument(_)) => {
                    tracing::error!(path = self.common.remote.health().path(), %error, "a command cannot be sent");
                    return Err(StoreError::Io(libc::EINVAL));
                }
                Err(error) => {
                    self.leave(&serving, &error);
                    continue;
                }
            };
            let verdict = match &outcome {
                Ok(response) => judge(response.status, Sense::parse(&response.sense).as_ref()),
                // The target ends the command alone: the session goes on.
                Err(Error::TargetFailure | Error::Rejected(_)) => Verdict::Again,
                Err(error) => {
                    attempts += 1;
                    if effect.is_change() {
                        self.doubt(&serving);
                        in_doubt = Some(serving.clone());
                    }
                    self.leave(&serving, error);
                    if attempts == ATTEMPTS {
                        if let Some(lost) = in_doubt {
                            self.shut_out(&lost).await;
                        }
                        return Err(StoreError::Unknown);
                    }
                    continue;
                }
            };
            tries += 1;
            match (verdict, outcome) {
                (Verdict::Good, Ok(response)) => {
                    match effect {
                        Effect::Cached if serving.far.write_cache => self.share.changes.changed(),
                        Effect::Flush => self.share.changes.has_flushed(covered),
                        Effect::None | Effect::Durable | Effect::Cached => {}
                    }
                    return Ok((response, serving));
                }
                (Verdict::Attention(attention), _) => self.heed(&serving, attention).await,
                (Verdict::EarlierFailed, _) => self.common.remote.flush_failed(libc::EIO).await,
                (Verdict::Again, _) => {}
                (Verdict::Busy, _) => {
                    // As long as it takes.
                    tries -= 1;
                    runtime::sleep(BUSY).await;
                }
                (Verdict::Failed(error), Ok(response)) => {
                    return Err(self.failed(error, effect, &command, &response).await);
                }
                (Verdict::Good | Verdict::Failed(_), Err(_)) => return Err(StoreError::Io(libc::EIO)),
            }
            if tries == TRIES {
                return Err(self.report(StoreError::Io(libc::EIO), effect, None));
            }
            // The target has ended it, so it cannot come late.
            if runtime::now() >= deadline {
                return Err(StoreError::Unknown);
            }
        }
    }

    /// Reports the failure of a command.
    #[cold]
    async fn failed(
        &self,
        error: StoreError,
        effect: Effect,
        command: &Command,
        response: &Response,
    ) -> StoreError {
        let sense = Sense::parse(&response.sense);
        tracing::debug!(
            path = self.common.remote.health().path(),
            opcode = command.cdb.first(),
            status = response.status,
            ?sense,
            "the far unit refuses"
        );
        match error {
            // The caller has another way.
            StoreError::Unsupported => return error,
            StoreError::OutOfRange => {
                self.is_stale.set(true);
                self.change.notify();
            }
            _ if effect == Effect::Flush => self.common.remote.flush_failed(libc::EIO).await,
            _ => {}
        }
        self.report(error, effect, sense.and_then(|sense| sense.information))
    }

    fn report(&self, error: StoreError, effect: Effect, lba: Option<u64>) -> StoreError {
        let errno = match error {
            StoreError::NoSpace => libc::ENOSPC,
            StoreError::ReadOnly => libc::EROFS,
            StoreError::Fenced => libc::EBUSY,
            StoreError::Io(errno) => errno,
            _ => libc::EIO,
        };
        self.common.remote.health().report(Kind::of_errno(errno, effect != Effect::None), errno, lba);
        error
    }

    /// Acts upon a unit attention.
    async fn heed(&self, serving: &Rc<Serving>, attention: Attention) {
        match attention {
            Attention::Reset => self.cache_lost().await,
            Attention::Capacity => {
                self.is_stale.set(true);
                self.change.notify();
            }
            // The next login asks for all of it.
            Attention::Identity => self.leave(serving, &"the unit says that it has changed"),
            Attention::NexusLost | Attention::Other => {}
        }
    }

    pub(crate) fn resets(&self) -> u64 {
        self.resets.get()
    }

    /// The far cache may be gone.
    async fn cache_lost(&self) {
        self.resets.set(self.resets() + 1);
        if self.share.changes.lost() {
            tracing::error!(
                path = self.common.remote.health().path(),
                "the far unit was reset with unflushed changes"
            );
            self.common.remote.flush_failed(libc::EIO).await;
        }
    }

    /// Ends a session, if it is not replaced yet.
    fn leave(&self, serving: &Rc<Serving>, why: &dyn Display) {
        let mut state = self.state.borrow_mut();
        if !matches!(&*state, State::Serving(now) if Rc::ptr_eq(now, serving)) {
            return;
        }
        *state = State::Connecting { is_late: false };
        drop(state);
        tracing::warn!(path = self.common.remote.health().path(), core = self.core, %why, "a session has ended");
        serving.session().end();
        self.change.notify();
    }

    /// `serving` has ended, or is about to, with a change that it may still carry out.
    fn doubt(&self, serving: &Rc<Serving>) {
        if !matches!(&*self.state.borrow(), State::Serving(now) if !Rc::ptr_eq(now, serving)) {
            self.is_in_doubt.set(true);
        }
    }

    /// A change has no answer, and `serving` was the last session to carry it. Puts the
    /// store in doubt until that is reinstated. Waits for it a moment.
    #[cold]
    async fn shut_out(&self, serving: &Rc<Serving>) {
        if matches!(&*self.state.borrow(), State::Serving(now) if !Rc::ptr_eq(now, serving)) {
            return;
        }
        self.is_in_doubt.set(true);
        if !self.is_fenced.replace(true) {
            let why = "a change has no answer: nothing is sent until its session is replaced";
            self.common.remote.doubt(why.into());
        }
        self.leave(serving, &"a change has no answer in time");
        before(runtime::now() + GRACE, self.change.until(|| (!self.is_fenced.get()).then_some(()))).await;
    }

    /// The last session that was lost is reinstated.
    fn lower(&self) {
        self.is_in_doubt.set(false);
        if self.is_fenced.replace(false) {
            self.common.remote.settle();
        }
    }

    /// Logs in, serves, and logs in again.
    async fn serve(self: Rc<Self>) {
        let mut late_from = self.deadline();
        loop {
            match self.log_in().await {
                Ok(serving) => {
                    let serving = Rc::new(serving);
                    *self.state.borrow_mut() = State::Serving(serving.clone());
                    self.lower();
                    self.common.remote.tell_usable();
                    self.change.notify();
                    self.watch(&serving).await;
                    late_from = self.deadline();
                    runtime::sleep(BREATH).await;
                }
                Err(error) => {
                    self.common.remote.tell_unusable(format!("no session with the target: {error}"));
                    if runtime::now() >= late_from {
                        *self.state.borrow_mut() = State::Connecting { is_late: true };
                        self.change.notify();
                    }
                    runtime::sleep(PAUSE).await;
                }
            }
        }
    }

    async fn log_in(&self) -> Result<Serving, OpenError> {
        let source = &self.common.source;
        let options = source.options(self.common.isid(self.core));
        let session = Session::connect(&source.url, options).await?;
        let group = session.portal_group();
        match self.group.get() {
            Some(before) if self.is_in_doubt.get() && before != group => {
                // The error of the logout would hide the reason.
                let _ = session.close().await;
                let why = "the login led to another portal group, which does not end the old session's tasks";
                return Err(OpenError::Other(why.to_owned()));
            }
            _ => self.group.set(Some(group)),
        }
        self.lower();
        self.change.notify();
        let had_served = self.has_served.replace(false);
        let mut heard = Vec::new();
        let looked = look(&session, source.lun(), &mut heard).await;
        // A unit that lost only the nexus says so. Any other one may have been powered on.
        let kept = had_served && heard.contains(&Attention::NexusLost) && !heard.contains(&Attention::Reset);
        if !kept {
            self.cache_lost().await;
        }
        let (unit, far) = looked?;
        self.common.reopened(&far).map_err(|why| OpenError::Other(why.to_owned()))?;
        self.has_served.set(true);
        let (writes_no_same, flushes_nothing) = Default::default();
        Ok(Serving { unit, far, writes_no_same, flushes_nothing })
    }

    /// Waits for the end of a session.
    async fn watch(&self, serving: &Rc<Serving>) {
        loop {
            let found = || match &*self.state.borrow() {
                State::Serving(now) if Rc::ptr_eq(now, serving) => self.is_stale.get().then_some(true),
                _ => Some(false),
            };
            match runtime::timeout(LOOK, self.change.until(found)).await {
                Ok(false) => return,
                Ok(true) => {
                    self.is_stale.set(false);
                    self.measure(serving).await;
                }
                // It may have ended without a command.
                Err(_) if serving.session().connections() == 0 => {
                    self.leave(serving, &"the target has ended it");
                }
                Err(_) => {}
            }
        }
    }

    /// Asks for the far unit's size again.
    async fn measure(&self, serving: &Rc<Serving>) {
        let command = serving.command(&build::read_capacity16(32)).reading(32);
        let Ok(response) = self.ask(command, Effect::None).await else { return };
        let Some(capacity) = iscsi_client::ReadCapacity16::parse(&response.data.to_vec()) else { return };
        if capacity.block_len != self.common.far.capacity.block_len {
            return self.leave(serving, &"the unit has other blocks now");
        }
        self.common.remote.saw_size(Far { capacity, ..serving.far.clone() }.size());
    }

    /// Flushes and logs out: the next initiator does not know of these changes.
    async fn leave_for_good(&self) {
        let was = self.state.replace(State::Closed);
        self.change.notify();
        let State::Serving(serving) = was else { return };
        let flush = async {
            if self.share.changes.is_any() {
                let cdb = build::synchronize_cache10();
                let _ = serving.session().execute(serving.command(&cdb)).await;
            }
            // A target that does not answer sees the connection end.
            let _ = serving.session().close().await;
        };
        before(runtime::now() + FAREWELL, flush).await;
    }
}

/// Lets others know that a core's link has gone, however its task ends.
struct OnEnd(Rc<Link>);

impl Drop for OnEnd {
    fn drop(&mut self) {
        let Self(link) = self;
        link.state.replace(State::Closed);
        link.change.notify();
        // The thread may be ending.
        let _ = LINKS.try_with(|links| links.borrow_mut().retain(|other| !Rc::ptr_eq(other, link)));
    }
}
