//! Logs the session in, monitors it, and reconnects.

use std::future::{Future, poll_fn};
use std::pin::{Pin, pin};
use std::rc::Rc;
use std::task::Poll;
use std::time::{Duration, Instant};

use iscsi::initiator::ConnectionId;
use iscsi::login::initiator::Config;

use super::iser;
use super::refusal::{Refusals, no_more};
use super::state::{FIRST_CMD_SN, Inner, Link, State, Task};
use super::tcp;
use crate::bell::Bell;
use crate::dial::{Dialed, dial};
use crate::error::Error;
use crate::options::most_unsolicited;
use crate::wire::Wire;

/// A session lost within this time of its login counts as lost at once.
const SHORT_LIFE: Duration = Duration::from_millis(500);

impl Inner {
    /// The parameters of a login.
    pub(super) fn login_config(&self) -> Config {
        Config {
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
        }
    }

    /// The parameters for another connection of the session.
    pub(super) fn further_config(&self, cid: u16) -> Config {
        let core = self.core.borrow();
        Config {
            tsih: core.tsih,
            cid,
            cmd_sn: core.protocol.cmd_sn(),
            session: Some(core.protocol.params().clone()),
            ..self.login_config()
        }
    }

    /// Logs in all connections.
    pub(super) async fn establish(self: &Rc<Self>) -> Result<(), Error> {
        let home = self.core.borrow().home.clone();
        let leading = match dial(&home, &self.login_config(), &self.options).await {
            Ok(leading) => leading,
            Err(error) => {
                // A permanent redirect may point to a dead portal, so retry the original address.
                self.core.borrow_mut().home = self.home.clone();
                return Err(error);
            }
        };
        if leading.moved_for_good {
            self.core.borrow_mut().home = leading.portal.clone();
        }
        let most = leading.login.params.max_connections.max(1);
        self.install(leading, 0, true)?;
        // As many connections as before, if automatic tuning had added some.
        let grown = self.core.borrow().tuning.as_ref().map_or(0, |tuning| tuning.connections);
        let wanted = self.options.connections.max(grown).clamp(1, 64).min(most);
        for cid in 1..wanted {
            match dial(&self.portal_of(cid), &self.further_config(cid), &self.options).await {
                Ok(further) => drop(self.install(further, cid, false)?),
                Err(error) if no_more(&error) => {
                    tracing::info!(connections = cid, "the target takes no more connections");
                    break;
                }
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Adds a connection to the session and starts its tasks.
    pub(super) fn install(
        self: &Rc<Self>,
        dialed: Dialed,
        cid: u16,
        leading: bool,
    ) -> Result<ConnectionId, Error> {
        let mut core = self.core.borrow_mut();
        let core = &mut *core;
        match &core.state {
            State::Over(error) => return Err(error.clone()),
            // The session lost its first connection during the login of the next: start over.
            State::Down(error) if !leading => return Err(error.clone()),
            _ => {}
        }
        if leading {
            core.state = State::Up;
            (core.leaving, core.not_before) = (None, None);
            core.doomed.clear();
            core.protocol.hold(false);
            core.tsih = dialed.login.tsih;
            core.portal = dialed.portal;
            core.portal_group = dialed.login.portal_group_tag;
            core.alias = dialed.login.target_alias.clone();
            let now = runtime::now();
            core.up_since = Some(now);
            core.slots.iter_mut().for_each(|(_, slot)| slot.since = now);
            core.queued.iter_mut().for_each(|(_, queued)| queued.since = now);
        }
        let most = most_unsolicited(&dialed.login.params);
        let unsolicited = core.tuning.as_ref().and_then(|tuning| tuning.unsolicited);
        core.protocol.limit_unsolicited(unsolicited.unwrap_or(self.options.iser_unsolicited).min(most));
        let on = core.protocol.connect(cid, &dialed.login);
        core.serials += 1;
        let serial = core.serials;
        let bell = Rc::new(Bell::default());
        let (mut pair, mut socket) = (None, std::rc::Weak::new());
        let tasks = match dialed.wire {
            Wire::Iser(wire) => {
                pair = Some(wire.pair.clone());
                let send = iser::send(self.clone(), wire.pair.clone(), on, serial, bell.clone());
                let receive = iser::receive(self.clone(), *wire, on, serial);
                [runtime::spawn(send), runtime::spawn(receive)]
            }
            Wire::Tcp(wire) => {
                let (stream, rest) = wire.into_parts();
                let stream = Rc::new(stream);
                socket = Rc::downgrade(&stream);
                let send = tcp::send(self.clone(), stream.clone(), on, serial, bell.clone());
                let receive = tcp::receive(self.clone(), stream, on, serial, dialed.login.params, rest);
                [runtime::spawn(send), runtime::spawn(receive)]
            }
        };
        let last_heard = runtime::now();
        core.links.push(Link {
            on,
            cid,
            serial,
            bell,
            pair,
            stream: socket,
            tasks,
            last_heard,
            receives: 0,
            pinged: None,
        });
        core.ring_links();
        Ok(on)
    }

    pub(super) fn start_supervisor(self: &Rc<Self>) {
        self.keep_supervisor(runtime::spawn(supervise(self.clone())));
    }

    /// Pings idle connections; detects unanswered pings and overdue commands. With a `tick`,
    /// requests missing PDUs again.
    fn check(self: &Rc<Self>, now: Instant, tick: bool) {
        let (generation, dead, late) = self.find_dead(now, tick);
        for (serial, error) in dead {
            self.lose_link(serial, error);
        }
        if let Some(error) = late {
            self.lose(generation, error);
        }
    }

    /// This process was paused for so long. It read nothing meanwhile, so a missing answer proves
    /// nothing yet.
    fn forgive(&self, slept: Duration, now: Instant) {
        if slept.is_zero() {
            return;
        }
        for link in &mut self.core.borrow_mut().links {
            let heard_since = |ping: &Instant| link.last_heard > *ping;
            link.pinged = link.pinged.filter(|ping| !heard_since(ping)).map(|ping| (ping + slept).min(now));
            link.last_heard = (link.last_heard + slept).min(now);
        }
    }

    /// The serials of dead connections with their errors, and the error of a dead session.
    fn find_dead(&self, now: Instant, tick: bool) -> (u64, Vec<(u64, Error)>, Option<Error>) {
        let mut core = self.core.borrow_mut();
        let core = &mut *core;
        let interval = self.options.ping_interval;
        let (mut dead, mut late) = (Vec::new(), None);
        let told = Error::Lost("the target drops the connection".to_owned());
        dead.extend(core.doomed.drain(..).map(|serial| (serial, told.clone())));
        let mut ping = Vec::new();
        for link in &mut core.links {
            link.listen(now);
            match link.pinged {
                Some(since) if now >= since + interval => {
                    // Any PDU since then shows that the target is alive.
                    if link.last_heard > since {
                        link.pinged = None;
                    } else {
                        dead.push((link.serial, Error::TimedOut("ping")));
                    }
                }
                None if now >= link.last_heard + interval => {
                    link.pinged = Some(now);
                    ping.push(link.on);
                }
                _ => {}
            }
        }
        match tick.then(|| core.protocol.tick()).flatten() {
            Some((Some(on), error)) => {
                let link = core.links.iter().find(|link| link.on == on);
                dead.extend(link.map(|link| (link.serial, error.into())));
            }
            Some((None, error)) => late = Some(error.into()),
            None => {}
        }
        let limit = self.options.command_timeout;
        let is_late = |since: Instant| now >= since + limit;
        if core.slots.iter().any(|(_, s)| s.answer.is_none() && is_late(s.since))
            || core.queued.iter().any(|(_, q)| is_late(q.since))
        {
            late = Some(Error::TimedOut("command"));
        }
        for on in ping {
            // A full table means recent traffic, so no ping is needed.
            let _ = core.protocol.ping(on, Task::Ping);
        }
        core.ring_links();
        (core.generation, dead, late)
    }
}

/// Monitors until the session ends.
async fn supervise(inner: Rc<Inner>) {
    let o = &inner.options;
    let shortest = o.ping_interval.min(o.command_timeout).max(Duration::from_millis(40));
    let tick = (shortest / 4).clamp(Duration::from_millis(10), Duration::from_secs(1));
    let mut next_tick = runtime::now() + tick;
    loop {
        let begun = runtime::now();
        either(inner.supervisor_bell.heard(), runtime::sleep(tick)).await;
        let state = inner.core.borrow().state.clone();
        let now = runtime::now();
        inner.forgive(now.saturating_duration_since(begun).saturating_sub(2 * tick), now);
        match state {
            State::Up => {
                let due = now >= next_tick;
                if due {
                    next_tick = now + tick;
                }
                inner.check(now, due);
                inner.leave(now);
            }
            State::Closing => {}
            State::Down(_) => reconnect(&inner).await,
            State::Over(_) => return,
        }
    }
}

/// Retries the login until it succeeds, is refused permanently, or the time is up.
async fn reconnect(inner: &Rc<Inner>) {
    let deadline = runtime::now() + inner.options.reconnect_timeout;
    let mut pause = Duration::from_millis(50);
    let mut refusals = Refusals::new(inner.options.reconnect_timeout);
    let since = inner.core.borrow().up_since;
    if since.is_some_and(|since| runtime::now() < since + SHORT_LIFE) {
        // Do not flood a target that accepts logins but drops the session at once.
        runtime::sleep(pause).await;
    }
    let not_before = inner.core.borrow().not_before;
    if let Some(at) = not_before {
        runtime::sleep_until(at.min(deadline)).await;
    }
    loop {
        let Err(error) = inner.establish().await else {
            inner.core.borrow_mut().reconnects += 1;
            tracing::info!(target = %inner.target, "session made anew");
            return;
        };
        // Drop connections that were already established.
        let generation = inner.core.borrow().generation;
        inner.lose(generation, error.clone());
        if matches!(inner.core.borrow().state, State::Over(_)) {
            return;
        }
        if refusals.settle(&error, runtime::now()) || runtime::now() + pause >= deadline {
            inner.end(&mut inner.core.borrow_mut(), error);
            return;
        }
        runtime::sleep(pause).await;
        pause = (pause * 2).min(Duration::from_secs(2));
    }
}

/// Waits for the first of two futures.
pub(super) async fn either(a: impl Future<Output = ()>, b: impl Future<Output = ()>) {
    let (mut a, mut b) = (pin!(a), pin!(b));
    poll_fn(|cx| {
        let ready = Pin::new(&mut a).poll(cx).is_ready() || Pin::new(&mut b).poll(cx).is_ready();
        if ready { Poll::Ready(()) } else { Poll::Pending }
    })
    .await;
}
