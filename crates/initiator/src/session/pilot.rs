//! A session that tunes itself ([`crate::tune::Tune::Auto`]): watches its traffic, lets the [`Governor`] decide, and does what it
//! says. Nothing is decided here, and no command waits for this.
//!
//! While nothing is under way it neither pings nor looks more than once in a while.

use std::rc::Rc;
use std::time::Duration;

use ring::{SystemLimits, TcpInfo};

use super::state::{Core, Inner, State};
use super::{Destination, Session};
use crate::dial::dial;
use crate::error::Error;
use crate::tune::governor::{Bounds, Governor, Sample};
use crate::tune::{MOST_CONNECTIONS, Tune, Tuning};

/// Commands under way that a session begins with, as far as its queue depth lets it.
const FIRST_COMMANDS: usize = 32;
/// Between two looks at a session that does nothing.
const IDLE: Duration = Duration::from_secs(1);
/// How long a ping is waited for; one that takes longer says that the path is busy, which its own answer would say too.
const PING: Duration = Duration::from_secs(5);

impl Inner {
    /// Begins to tune the session, if it is to tune itself.
    pub(super) fn start_pilot(self: &Rc<Self>) {
        if self.options.tune == Tune::Auto {
            self.keep_pilot(ring::spawn(pilot(self.clone())));
        }
    }

    /// A ping's round trip, of the first connection.
    pub(super) async fn ping(self: &Rc<Self>) -> Result<Duration, Error> {
        let on = self.first_link().ok_or(Error::Lost("no connection at the moment".to_owned()))?;
        let begun = ring::now();
        let ticket = self.submit(Destination::Nothing, 0, |protocol, task| protocol.ping(on, task))?;
        ticket.await?;
        Ok(ring::now().saturating_duration_since(begun))
    }

    /// What the kernel knows of each connection's path.
    pub(super) fn paths(&self) -> Vec<TcpInfo> {
        let core = self.core.borrow();
        let info = core.links.iter().filter_map(|link| match &link.pair {
            Some(pair) => pair.tcp_info(),
            None => link.stream.upgrade()?.info().ok(),
        });
        info.collect()
    }
}

impl Session {
    /// The round trip of a ping (NOP-Out) on the first connection, behind everything that is queued there.
    ///
    /// # Errors
    /// Whatever ended the session; [`Error::TimedOut`] after [`crate::Options::command_timeout`].
    pub async fn ping(&self) -> Result<Duration, Error> {
        let inner = self.inner();
        let limit = inner.options.command_timeout;
        ring::timeout(limit, inner.ping()).await.unwrap_or(Err(Error::TimedOut("ping")))
    }

    /// What the kernel knows of the path of each connection, over TCP and software iWARP.
    pub fn paths(&self) -> Vec<TcpInfo> {
        self.inner().paths()
    }

    /// Commands that the target takes at a time (MaxCmdSN).
    pub fn window(&self) -> u32 {
        self.inner().core.borrow().protocol.window()
    }

    /// Over iSER, RDMA Reads that the target may have outstanding, as negotiated.
    pub fn rdma_reads(&self) -> Option<u16> {
        self.inner().core.borrow().links.first()?.pair.as_ref().map(|pair| pair.ird())
    }

    /// What a session that tunes itself knows and has decided; `None` of one that does not.
    pub fn tuning(&self) -> Option<Tuning> {
        self.inner().core.borrow().tuning.clone()
    }
}

/// Where the account stood at the last look.
#[derive(Default)]
struct Before {
    bytes: u64,
    commands: u64,
    /// Of all senders, since they connected: busy, and waiting for room or for the peer's window.
    busy: Duration,
    waited: Duration,
}

/// Watches until the session is over; each login begins anew.
async fn pilot(inner: Rc<Inner>) {
    // It does not change while a session runs.
    let system = ring::blocking(SystemLimits::read).await;
    loop {
        let Some(generation) = up(&inner).await else { return };
        if !fly(&inner, &system, generation).await {
            return;
        }
    }
}

/// Waits until there is a session. Its generation; `None` when there will be none.
async fn up(inner: &Inner) -> Option<u64> {
    loop {
        {
            let core = inner.core.borrow();
            match core.state {
                State::Up if !core.links.is_empty() => return Some(core.generation),
                State::Over(_) | State::Closing => return None,
                _ => {}
            }
        }
        ring::sleep(Duration::from_millis(100)).await;
    }
}

/// Tunes one session. Answers whether there may be another after it.
async fn fly(inner: &Rc<Inner>, system: &SystemLimits, generation: u64) -> bool {
    let mut governor = Governor::new(bounds(inner, system));
    apply(inner, &governor, 0);
    let mut before = look(inner).1;
    let mut at = ring::now();
    // Connections that have what was decided before.
    let mut had = inner.core.borrow().serials;
    loop {
        ring::sleep(if is_idle(inner) { IDLE } else { governor.interval() }).await;
        match &inner.core.borrow().state {
            State::Over(_) | State::Closing => return false,
            State::Up if inner.core.borrow().generation == generation => {}
            _ => return true,
        }
        let (limited, now) = look(inner);
        // Before the round trip, which may itself take a while.
        let seen_at = ring::now();
        let commands = now.commands - before.commands;
        let rtt = match commands {
            // Silence is not disturbed.
            0 => None,
            _ => round_trip(inner).await,
        };
        let sample =
            sample(inner, system, (&before, &now), limited, rtt, seen_at.saturating_duration_since(at));
        (before, at) = (now, seen_at);
        if commands == 0 {
            continue;
        }
        let changed = governor.observe(&sample);
        if changed {
            let decision = governor.decision();
            tracing::debug!(
                target = %inner.target,
                rtt_us = sample.rtt.map(|rtt| rtt.as_micros() as u64),
                mb_s = sample.bytes as f64 / sample.time.as_secs_f64().max(1e-9) / 1e6,
                commands = decision.commands,
                connections = decision.connections,
                unsolicited = decision.unsolicited,
                write_piece = decision.write_piece,
                send_buffer = decision.send_buffer,
                "tuned"
            );
        }
        apply(inner, &governor, if changed { 0 } else { had });
        had = inner.core.borrow().serials;
        if usize::from(governor.decision().connections) > inner.link_count() {
            widen(inner, generation, governor.decision().connections).await;
            // What was moved meanwhile belongs to neither.
            before = look(inner).1;
            at = ring::now();
        }
    }
}

/// The shortest round trip of late: what the kernel has seen of segments and their acknowledgements, in which nothing counts that waits
/// in queues of this side or of the target's. Where no socket is to be seen (verbs), a ping's.
async fn round_trip(inner: &Rc<Inner>) -> Option<Duration> {
    let seen = inner.paths().iter().map(|path| path.min_rtt).filter(|rtt| !rtt.is_zero()).min();
    match seen {
        Some(rtt) => Some(rtt),
        None => ring::timeout(PING, inner.ping()).await.ok().and_then(Result::ok),
    }
}

fn is_idle(inner: &Inner) -> bool {
    inner.core.borrow().protocol.is_empty()
}

fn bounds(inner: &Inner, system: &SystemLimits) -> Bounds {
    let (params, options) = (inner.params(), &inner.options);
    let most_connections = if params.rdma_extensions {
        1
    } else {
        params.max_connections.min(MOST_CONNECTIONS.max(options.connections))
    };
    // As much as one PDU takes; only a target that agrees to unsolicited Data-Out has receives for it (RFC 7145 §8.1.1).
    let takes = match params.initial_r2t {
        true => params.target_recv_data_segment_length.min(params.first_burst_length),
        false => params.first_burst_length,
    };
    let goes_unasked = !params.rdma_extensions && !params.initial_r2t;
    Bounds {
        least_commands: FIRST_COMMANDS.min(inner.queue_depth()),
        most_commands: inner.queue_depth(),
        least_connections: u16::try_from(inner.link_count()).unwrap_or(1).max(1),
        most_connections,
        unsolicited: if params.rdma_extensions { (options.iser_unsolicited, takes) } else { (0, 0) },
        first_burst: if goes_unasked { params.first_burst_length } else { 0 },
        // Who has chosen one means it. The kernel doubles what it is given.
        send_buffer: match options.path.send_buffer {
            Some(_) => (u64::MAX, 0),
            None => (system.send_auto as u64, 2 * system.send_max as u64),
        },
    }
}

/// Whether commands have waited for the limit since the last look, and where the account stands.
fn look(inner: &Inner) -> (bool, Before) {
    let (mut busy, mut waited) = (Duration::ZERO, Duration::ZERO);
    for path in inner.paths() {
        busy += path.busy;
        waited += path.limited_by_buffer + path.limited_by_window;
    }
    let core = &mut *inner.core.borrow_mut();
    let (bytes, commands) = core.moved;
    // More than its queue depth a session is never given: who fills that is limited by it.
    let limited = core.protocol.take_limited() || core.protocol.commands() >= inner.queue_depth();
    (limited, Before { bytes, commands, busy, waited })
}

fn sample(
    inner: &Inner,
    system: &SystemLimits,
    (before, now): (&Before, &Before),
    limited: bool,
    rtt: Option<Duration>,
    time: Duration,
) -> Sample {
    let busy = now.busy.saturating_sub(before.busy).as_secs_f64();
    let waited = now.waited.saturating_sub(before.waited).as_secs_f64();
    let options = &inner.options.path;
    // A receiver's window is about half of its buffer; fixed buffers are doubled by the kernel.
    let send = options.send_buffer.map_or(system.send_auto, |bytes| 2 * bytes.min(system.send_max.max(1)));
    let recv =
        options.recv_buffer.map_or(system.recv_auto, |bytes| 2 * bytes.min(system.recv_max.max(1))) / 2;
    Sample {
        time,
        bytes: now.bytes - before.bytes,
        limited,
        rtt,
        connections: u16::try_from(inner.link_count()).unwrap_or(u16::MAX),
        reach: send.min(recv) as u64,
        waited: if busy > 0.0 { (waited / busy).clamp(0.0, 1.0) } else { 0.0 },
    }
}

/// Does what the governor says, as far as it is done at once, and leaves what it knows for who asks.
/// Connections up to the serial number `had` have their buffers already.
fn apply(inner: &Inner, governor: &Governor, had: u64) {
    let core = &mut *inner.core.borrow_mut();
    let decision = governor.decision();
    core.protocol.limit_outstanding(decision.commands);
    if let Some(bytes) = decision.unsolicited {
        core.protocol.change_unsolicited(bytes);
    }
    if let Some(bytes) = decision.send_buffer {
        // A buffer that stays as it is costs some of the rate, and nothing else.
        let half = usize::try_from(bytes / 2).unwrap_or(usize::MAX);
        for link in core.links.iter().filter(|link| link.serial > had) {
            match (&link.pair, link.stream.upgrade()) {
                (Some(pair), _) => pair.set_send_buffer(half),
                (None, Some(stream)) => drop(stream.set_send_buffer(half)),
                (None, None) => {}
            }
        }
    }
    let (rtt, rate) = governor.seen();
    let (changes, reverted) = governor.changes();
    core.tuning = Some(Tuning {
        commands: decision.commands,
        connections: decision.connections,
        unsolicited: decision.unsolicited,
        write_piece: decision.write_piece,
        send_buffer: decision.send_buffer,
        rtt: rtt.unwrap_or_default(),
        rate,
        changes,
        reverted,
    });
    core.ring_links();
}

/// Adds connections until there are `wanted`, as far as the target takes them.
async fn widen(inner: &Rc<Inner>, generation: u64, wanted: u16) {
    loop {
        let portal = inner.portal();
        let Some(cid) = free_cid(&inner.core.borrow(), generation, wanted) else { return };
        let dialed = dial(&portal, &inner.further_config(cid), &inner.options).await;
        // The session may be another by now, or on its way out.
        let here = {
            let core = inner.core.borrow();
            core.generation == generation && matches!(core.state, State::Up)
        };
        match dialed {
            Ok(dialed) if here => {
                if inner.install(dialed, cid, false).is_err() {
                    return;
                }
            }
            Ok(_) => return,
            Err(error) => {
                tracing::debug!(target = %inner.target, %error, "no further connection");
                return;
            }
        }
    }
}

/// A CID that no connection of the session has, if it is to have more.
fn free_cid(core: &Core, generation: u64, wanted: u16) -> Option<u16> {
    let there = core.links.len() + core.broken.len();
    if core.generation != generation || !matches!(core.state, State::Up) || there >= usize::from(wanted) {
        return None;
    }
    let taken = |cid: u16| {
        core.links.iter().any(|link| link.cid == cid) || core.broken.iter().any(|broken| broken.cid == cid)
    };
    (0..u16::MAX).find(|cid| !taken(*cid))
}
