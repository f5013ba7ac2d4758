//! Making the session, watching over it, and making it anew.

use std::future::{Future, poll_fn};
use std::pin::{Pin, pin};
use std::rc::Rc;
use std::task::Poll;
use std::time::{Duration, Instant};

use iscsi::login::initiator::{Config, InitiatorLoginError};
use iscsi::pdu::LoginStatus;

use super::iser;
use super::state::{FIRST_CMD_SN, Inner, Link, State, Task};
use super::tcp;
use crate::bell::Bell;
use crate::dial::{Dialed, dial};
use crate::error::Error;
use crate::wire::Wire;

/// A session that is lost within this time of its login was lost at once.
const SHORT_LIFE: Duration = Duration::from_millis(500);

impl Inner {
    /// Logs in all connections.
    pub(super) async fn establish(self: &Rc<Self>) -> Result<(), Error> {
        let mut config = Config {
            initiator: self.options.initiator.clone(),
            alias: self.options.alias.clone(),
            target: Some(self.target.clone()),
            isid: self.isid,
            tsih: 0,
            cid: 0,
            cmd_sn: FIRST_CMD_SN,
            itt: 0,
            chap: self.chap.clone(),
            offer: self.options.offer(self.home.transport),
            session: None,
            skip_security: false,
        };
        let leading = dial(&self.home, &config, &self.options).await?;
        let (params, portal) = (leading.login.params.clone(), leading.portal.clone());
        config.tsih = leading.login.tsih;
        self.install(leading, 0)?;
        let wanted = self.options.connections.clamp(1, 64).min(params.max_connections.max(1));
        config.session = Some(params);
        for cid in 1..wanted {
            config.cid = cid;
            config.cmd_sn = self.core.borrow().protocol.cmd_sn();
            match dial(&portal, &config, &self.options).await {
                Ok(further) => self.install(further, cid)?,
                Err(error) if no_more(&error) => {
                    tracing::info!(connections = cid, "the target takes no more connections");
                    break;
                }
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Takes a connection into the session and starts its tasks.
    fn install(self: &Rc<Self>, dialed: Dialed, cid: u16) -> Result<(), Error> {
        let mut core = self.core.borrow_mut();
        let core = &mut *core;
        match &core.state {
            State::Over(error) => return Err(error.clone()),
            // A session that lost its first connection while the next logged in has to begin anew.
            State::Down(error) if cid != 0 => return Err(error.clone()),
            _ => {}
        }
        if cid == 0 {
            core.state = State::Up;
            core.portal = dialed.portal;
            core.alias = dialed.login.target_alias.clone();
            let now = ring::now();
            core.up_since = Some(now);
            core.slots.iter_mut().for_each(|(_, slot)| slot.since = now);
            core.queued.iter_mut().for_each(|(_, queued)| queued.since = now);
        }
        // As much as one PDU takes: unsolicited Data-Out would need receives that nobody promised.
        let segment = dialed.login.params.target_recv_data_segment_length;
        core.protocol.limit_unsolicited(self.options.iser_unsolicited.min(segment));
        let on = core.protocol.connect(cid, &dialed.login);
        let generation = core.generation;
        let bell = Rc::new(Bell::default());
        let mut pair = None;
        let tasks = match dialed.wire {
            Wire::Iser(wire) => {
                pair = Some(wire.pair.clone());
                let send = iser::send(self.clone(), wire.pair.clone(), on, generation, bell.clone());
                let receive = iser::receive(self.clone(), *wire, on, generation);
                [ring::spawn(send), ring::spawn(receive)]
            }
            Wire::Tcp(wire) => {
                let (stream, rest) = (Rc::new(wire.stream), wire.received);
                let send = tcp::send(self.clone(), stream.clone(), on, generation, bell.clone());
                let receive = tcp::receive(self.clone(), stream, on, generation, dialed.login.params, rest);
                [ring::spawn(send), ring::spawn(receive)]
            }
        };
        core.links.push(Link { on, bell, pair, tasks, last_heard: ring::now(), pinged: None });
        core.ring_links();
        Ok(())
    }

    pub(super) fn start_supervisor(self: &Rc<Self>) {
        self.keep_supervisor(ring::spawn(supervise(self.clone())));
    }

    /// Pings silent connections; finds those that do not answer and commands that take too long.
    fn check(&self, now: Instant) {
        if let Some((generation, error)) = self.find_dead(now) {
            self.lose(generation, error);
        }
    }

    fn find_dead(&self, now: Instant) -> Option<(u64, Error)> {
        let mut core = self.core.borrow_mut();
        let core = &mut *core;
        let interval = self.options.ping_interval;
        let mut dead = None;
        let mut ping = Vec::new();
        for link in &mut core.links {
            match link.pinged {
                Some(since) if now >= since + interval => {
                    // Anything heard since shows that the target lives.
                    if link.last_heard > since {
                        link.pinged = None;
                    } else {
                        dead = Some(Error::TimedOut("ping"));
                    }
                }
                None if now >= link.last_heard + interval => {
                    link.pinged = Some(now);
                    ping.push(link.on);
                }
                _ => {}
            }
        }
        let limit = self.options.command_timeout;
        let late = |since: Instant| now >= since + limit;
        if core.slots.iter().any(|(_, s)| s.answer.is_none() && late(s.since))
            || core.queued.iter().any(|(_, q)| late(q.since))
        {
            dead = Some(Error::TimedOut("command"));
        }
        for on in ping {
            // A full table is a sign of life enough.
            let _ = core.protocol.ping(on, Task::Ping);
        }
        core.ring_links();
        dead.map(|error| (core.generation, error))
    }
}

/// Whether the target says that it takes no further connection, and nothing worse.
fn no_more(error: &Error) -> bool {
    use LoginStatus::{CannotIncludeInSession, TooManyConnections};
    matches!(error, Error::Login(InitiatorLoginError::Status(TooManyConnections | CannotIncludeInSession)))
}

/// Watches until the session is over.
async fn supervise(inner: Rc<Inner>) {
    let o = &inner.options;
    let shortest = o.ping_interval.min(o.command_timeout).max(Duration::from_millis(40));
    let tick = (shortest / 4).clamp(Duration::from_millis(10), Duration::from_secs(1));
    loop {
        either(inner.supervisor_bell.heard(), ring::sleep(tick)).await;
        let state = inner.core.borrow().state.clone();
        match state {
            State::Up => inner.check(ring::now()),
            State::Closing => {}
            State::Down(_) => reconnect(&inner).await,
            State::Over(_) => return,
        }
    }
}

/// Logs in again and again until it works or the time is up.
async fn reconnect(inner: &Rc<Inner>) {
    let deadline = ring::now() + inner.options.reconnect_timeout;
    let mut pause = Duration::from_millis(50);
    let since = inner.core.borrow().up_since;
    if since.is_some_and(|since| ring::now() < since + SHORT_LIFE) {
        // A target that takes logins and drops the session at once is not to be hammered.
        ring::sleep(pause).await;
    }
    loop {
        let Err(error) = inner.establish().await else {
            inner.core.borrow_mut().reconnects += 1;
            tracing::info!(target = %inner.target, "session made anew");
            return;
        };
        // Part of it may be up: it is taken down again.
        let generation = inner.core.borrow().generation;
        inner.lose(generation, error.clone());
        if matches!(inner.core.borrow().state, State::Over(_)) {
            return;
        }
        if ring::now() + pause >= deadline || is_final(&error) {
            inner.end(&mut inner.core.borrow_mut(), error);
            return;
        }
        ring::sleep(pause).await;
        pause = (pause * 2).min(Duration::from_secs(2));
    }
}

/// Whether trying again is of no use: the target knows us and does not want us.
fn is_final(error: &Error) -> bool {
    matches!(
        error,
        Error::Login(InitiatorLoginError::Status(
            LoginStatus::AuthenticationFailure
                | LoginStatus::AuthorizationFailure
                | LoginStatus::TargetRemoved
        )) | Error::Login(InitiatorLoginError::Chap(_))
    )
}

/// Waits for the first of two.
async fn either(a: impl Future<Output = ()>, b: impl Future<Output = ()>) {
    let (mut a, mut b) = (pin!(a), pin!(b));
    poll_fn(|cx| {
        let ready = Pin::new(&mut a).poll(cx).is_ready() || Pin::new(&mut b).poll(cx).is_ready();
        if ready { Poll::Ready(()) } else { Poll::Pending }
    })
    .await;
}
