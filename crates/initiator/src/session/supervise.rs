//! Making the session, watching over it, and making it anew.

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
use crate::wire::Wire;

/// A session that is lost within this time of its login was lost at once.
const SHORT_LIFE: Duration = Duration::from_millis(500);

impl Inner {
    /// What a login is made with.
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

    /// The same for a further connection of the session.
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
                // Where it has moved to for good nobody may be any more: the next attempt begins where it was first.
                self.core.borrow_mut().home = self.home.clone();
                return Err(error);
            }
        };
        if leading.moved_for_good {
            self.core.borrow_mut().home = leading.portal.clone();
        }
        let (portal, most) = (leading.portal.clone(), leading.login.params.max_connections.max(1));
        self.install(leading, 0, true)?;
        // As many as there were before, where the session has come to more by itself.
        let grown = self.core.borrow().tuning.as_ref().map_or(0, |tuning| tuning.connections);
        let wanted = self.options.connections.max(grown).clamp(1, 64).min(most);
        for cid in 1..wanted {
            match dial(&portal, &self.further_config(cid), &self.options).await {
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

    /// Takes a connection into the session and starts its tasks.
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
            // A session that lost its first connection while the next logged in has to begin anew.
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
            core.alias = dialed.login.target_alias.clone();
            let now = ring::now();
            core.up_since = Some(now);
            core.slots.iter_mut().for_each(|(_, slot)| slot.since = now);
            core.queued.iter_mut().for_each(|(_, queued)| queued.since = now);
        }
        // As much as one PDU takes; only a target that agrees to unsolicited Data-Out has receives for it (RFC 7145 §8.1.1).
        let params = &dialed.login.params;
        let most = match params.initial_r2t {
            true => params.target_recv_data_segment_length.min(params.first_burst_length),
            false => params.first_burst_length,
        };
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
                [ring::spawn(send), ring::spawn(receive)]
            }
            Wire::Tcp(wire) => {
                let (stream, rest) = (Rc::new(wire.stream), wire.received);
                socket = Rc::downgrade(&stream);
                let send = tcp::send(self.clone(), stream.clone(), on, serial, bell.clone());
                let receive = tcp::receive(self.clone(), stream, on, serial, dialed.login.params, rest);
                [ring::spawn(send), ring::spawn(receive)]
            }
        };
        let last_heard = ring::now();
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
        self.keep_supervisor(ring::spawn(supervise(self.clone())));
    }

    /// Pings silent connections; finds those that do not answer and commands that take too long. With a `tick`, what is
    /// missing is asked for again.
    fn check(self: &Rc<Self>, now: Instant, tick: bool) {
        let (generation, dead, late) = self.find_dead(now, tick);
        for (serial, error) in dead {
            self.lose_link(serial, error);
        }
        if let Some(error) = late {
            self.lose(generation, error);
        }
    }

    /// This side has not run for so long: nobody was heard in that time, whoever spoke.
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

    /// Connections that are dead, by their serials, and why the session is.
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
                    // Anything heard since shows that the target lives.
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
            // A full table is a sign of life enough.
            let _ = core.protocol.ping(on, Task::Ping);
        }
        core.ring_links();
        (core.generation, dead, late)
    }
}

/// Watches until the session is over.
async fn supervise(inner: Rc<Inner>) {
    let o = &inner.options;
    let shortest = o.ping_interval.min(o.command_timeout).max(Duration::from_millis(40));
    let tick = (shortest / 4).clamp(Duration::from_millis(10), Duration::from_secs(1));
    let mut next_tick = ring::now() + tick;
    loop {
        let begun = ring::now();
        either(inner.supervisor_bell.heard(), ring::sleep(tick)).await;
        let state = inner.core.borrow().state.clone();
        let now = ring::now();
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

/// Logs in again and again until it works, is refused for good, or the time is up.
async fn reconnect(inner: &Rc<Inner>) {
    let deadline = ring::now() + inner.options.reconnect_timeout;
    let mut pause = Duration::from_millis(50);
    let mut refusals = Refusals::new(inner.options.reconnect_timeout);
    let since = inner.core.borrow().up_since;
    if since.is_some_and(|since| ring::now() < since + SHORT_LIFE) {
        // A target that takes logins and drops the session at once is not to be hammered.
        ring::sleep(pause).await;
    }
    let not_before = inner.core.borrow().not_before;
    if let Some(at) = not_before {
        ring::sleep_until(at.min(deadline)).await;
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
        if refusals.settle(&error, ring::now()) || ring::now() + pause >= deadline {
            inner.end(&mut inner.core.borrow_mut(), error);
            return;
        }
        ring::sleep(pause).await;
        pause = (pause * 2).min(Duration::from_secs(2));
    }
}

/// Waits for the first of two.
pub(super) async fn either(a: impl Future<Output = ()>, b: impl Future<Output = ()>) {
    let (mut a, mut b) = (pin!(a), pin!(b));
    poll_fn(|cx| {
        let ready = Pin::new(&mut a).poll(cx).is_ready() || Pin::new(&mut b).poll(cx).is_ready();
        if ready { Poll::Ready(()) } else { Poll::Pending }
    })
    .await;
}
