//! The automatic tuning of a session ([`crate::tune::Tune::Auto`]): samples its traffic, lets the
//! [`Governor`] decide, and applies the decision. Decides nothing itself, and never delays a
//! command.
//!
//! While no command is outstanding it sends no pings and takes samples rarely.

use std::rc::Rc;
use std::time::Duration;

use runtime::{SystemLimits, TcpInfo};

use super::state::{Core, Inner, State};
use super::{Destination, Session, ticket};
use crate::dial::dial;
use crate::error::Error;
use crate::options::most_unsolicited;
use crate::tune::governor::{Bounds, Governor, Sample};
use crate::tune::{MOST_CONNECTIONS, Tune, Tuning};

/// Initial maximum of outstanding commands, limited by the queue depth.
const FIRST_COMMANDS: usize = 32;
/// Interval between samples of an idle session.
const IDLE: Duration = Duration::from_secs(1);
/// Timeout of a ping. A longer round trip only shows a busy path, as the answer itself would.
const PING: Duration = Duration::from_secs(5);

impl Inner {
    /// Starts the tuning of the session, if enabled.
    pub(super) fn start_pilot(self: &Rc<Self>) {
        if self.options.tune == Tune::Auto {
            self.keep_pilot(runtime::spawn(pilot(self.clone())));
        }
    }

    /// The round trip of a ping on the first connection.
    pub(super) async fn ping(self: &Rc<Self>) -> Result<Duration, Error> {
        let on = self.first_link().ok_or(Error::Lost("no connection at the moment".to_owned()))?;
        let begun = runtime::now();
        let ticket = ticket::submit(self, Destination::Nothing, 0, |protocol, task| protocol.ping(on, task))?;
        ticket.await?;
        Ok(runtime::now().saturating_duration_since(begun))
    }

    /// The kernel's statistics of each connection's path.
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
    /// The round trip of a ping (NOP-Out) on the first connection, after everything queued there.
    ///
    /// # Errors
    /// The reason why the session ended; [`Error::TimedOut`] after
    /// [`crate::Options::command_timeout`].
    pub async fn ping(&self) -> Result<Duration, Error> {
        let inner = self.inner();
        let limit = inner.options.command_timeout;
        runtime::timeout(limit, inner.ping()).await.unwrap_or(Err(Error::TimedOut("ping")))
    }

    /// The kernel's statistics of the path of each connection, over TCP and software iWARP.
    pub fn paths(&self) -> Vec<TcpInfo> {
        self.inner().paths()
    }

    /// The size of the target's command window (MaxCmdSN).
    pub fn window(&self) -> u32 {
        self.inner().core.borrow().protocol.window()
    }

    /// Over iSER, the negotiated maximum of outstanding RDMA Reads of the target.
    pub fn rdma_reads(&self) -> Option<u16> {
        self.inner().core.borrow().links.first()?.pair.as_ref().map(|pair| pair.ird())
    }

    /// The observations and decisions of the automatic tuning; `None` if it is off.
    pub fn tuning(&self) -> Option<Tuning> {
        self.inner().core.borrow().tuning.clone()
    }
}

/// The counters at the last sample.
#[derive(Default)]
struct Before {
    bytes: u64,
    commands: u64,
    /// Sum over all senders since they connected: time busy, and time waiting for the buffer or the
    /// peer's window.
    busy: Duration,
    waited: Duration,
}

/// Tunes until the session ends; starts over after each login.
async fn pilot(inner: Rc<Inner>) {
    // These limits do not change while a session runs.
    let system = runtime::blocking(SystemLimits::read).await;
    loop {
        let Some(generation) = up(&inner).await else { return };
        if !fly(&inner, &system, generation).await {
            return;
        }
    }
}

/// Waits until there is a session. Returns its generation; `None` if there will be none.
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
        runtime::sleep(Duration::from_millis(100)).await;
    }
}

/// Tunes one session. Returns whether another one may follow.
async fn fly(inner: &Rc<Inner>, system: &SystemLimits, generation: u64) -> bool {
    let mut governor = Governor::new(bounds(inner, system));
    apply(inner, &governor, 0);
    let mut before = look(inner).1;
    let mut at = runtime::now();
    // Connections up to this serial number already have the decided settings.
    let mut had = inner.core.borrow().serials;
    loop {
        runtime::sleep(if is_idle(inner) { IDLE } else { governor.interval() }).await;
        match &inner.core.borrow().state {
            State::Over(_) | State::Closing => return false,
            State::Up if inner.core.borrow().generation == generation => {}
            _ => return true,
        }
        let (limited, now) = look(inner);
        // Take the time before the round trip, which may itself take a while.
        let seen_at = runtime::now();
        let commands = now.commands - before.commands;
        let rtt = match commands {
            // Do not disturb an idle session.
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
            // Data moved meanwhile belongs to neither sample.
            before = look(inner).1;
            at = runtime::now();
        }
    }
}

/// The recent minimum round trip. The kernel's value for segments and their acknowledgements
/// excludes the queues of both sides. Without a socket (verbs), the round trip of a ping.
async fn round_trip(inner: &Rc<Inner>) -> Option<Duration> {
    let seen = inner.paths().iter().map(|path| path.min_rtt).filter(|rtt| !rtt.is_zero()).min();
    match seen {
        Some(rtt) => Some(rtt),
        None => runtime::timeout(PING, inner.ping()).await.ok().and_then(Result::ok),
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
    let takes = most_unsolicited(&params);
    let goes_unasked = !params.rdma_extensions && !params.initial_r2t;
    Bounds {
        least_commands: FIRST_COMMANDS.min(inner.queue_depth()),
        most_commands: inner.queue_depth(),
        least_connections: u16::try_from(inner.link_count()).unwrap_or(1).max(1),
        most_connections,
        unsolicited: if params.rdma_extensions { (options.iser_unsolicited, takes) } else { (0, 0) },
        first_burst: if goes_unasked { params.first_burst_length } else { 0 },
        // Keep a configured buffer. The kernel doubles the requested size.
        send_buffer: match options.path.send_buffer {
            Some(_) => (u64::MAX, 0),
            None => (system.send_auto as u64, 2 * system.send_max as u64),
        },
    }
}

/// Whether commands waited for the limit since the last sample, and the current counters.
fn look(inner: &Inner) -> (bool, Before) {
    let (mut busy, mut waited) = (Duration::ZERO, Duration::ZERO);
    for path in inner.paths() {
        busy += path.busy;
        waited += path.limited_by_buffer + path.limited_by_window;
    }
    let core = &mut *inner.core.borrow_mut();
    let (bytes, commands) = core.moved;
    // Outstanding commands never exceed the queue depth: reaching it is the limit.
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
    // A receiver's window is about half of its buffer; the kernel doubles fixed buffers.
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

/// Applies the governor's decision, as far as possible at once, and publishes its observations.
/// Connections up to the serial number `had` already have their buffers.
fn apply(inner: &Inner, governor: &Governor, had: u64) {
    let core = &mut *inner.core.borrow_mut();
    let decision = governor.decision();
    core.protocol.limit_outstanding(decision.commands);
    if let Some(bytes) = decision.unsolicited {
        core.protocol.change_unsolicited(bytes);
    }
    if let Some(bytes) = decision.send_buffer {
        // If this fails, the old buffer only costs some of the rate.
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

/// Adds connections up to `wanted`, as far as the target accepts them.
async fn widen(inner: &Rc<Inner>, generation: u64, wanted: u16) {
    loop {
        let Some(cid) = free_cid(&inner.core.borrow(), generation, wanted) else { return };
        let portal = inner.portal_of(cid);
        let dialed = dial(&portal, &inner.further_config(cid), &inner.options).await;
        // The session may have changed meanwhile, or be closing.
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

/// An unused CID of the session, if it should have more connections.
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
