//! Whether the initiator lives: the last input, and the ping that waits for its answer.

use std::time::{Duration, Instant};

use super::events::Fatal;

/// The silence of a connection.
#[derive(Debug)]
pub(super) struct Keepalive {
    last_heard: Instant,
    /// The unanswered ping: its tag, and when it was sent.
    ping: Option<(u32, Instant)>,
    /// When the last ping was sent that was answered; at first, the beginning.
    proved: Instant,
    interval: Duration,
    timeout: Duration,
}

impl Keepalive {
    /// Pings after `interval` of silence, zero for never, and gives up after `timeout` more.
    pub fn new(interval: Duration, timeout: Duration, now: Instant) -> Self {
        Self { last_heard: now, ping: None, proved: now, interval, timeout }
    }

    /// The peer sent or accepted some bytes.
    #[inline]
    pub fn heard(&mut self, now: Instant) {
        self.last_heard = now;
    }

    /// The time of the last input.
    #[inline]
    pub fn last_heard(&self) -> Instant {
        self.last_heard
    }

    /// The silence after which it pings; zero means never.
    pub fn interval(&self) -> Duration {
        self.interval
    }

    /// Whether a ping is unanswered.
    pub fn is_pinged(&self) -> bool {
        self.ping.is_some()
    }

    /// The answer to the ping with this tag arrived.
    pub fn answered(&mut self, tag: u32) {
        if let Some((_, sent)) = self.ping.take_if(|(sent, _)| *sent == tag) {
            self.proved = sent;
        }
    }

    /// The beginning of the last round trip that has been proved.
    pub fn proved(&self) -> Instant {
        self.proved
    }

    /// When to look again.
    pub fn deadline(&self) -> Option<Instant> {
        match self.ping {
            Some((_, sent)) => Some(sent + self.timeout),
            None if self.interval.is_zero() => None,
            None => Some(self.last_heard + self.interval),
        }
    }

    /// Whether to ping now; an error if the peer stayed silent after the last ping.
    pub fn is_due(&mut self, now: Instant) -> Result<bool, Fatal> {
        match self.ping {
            // Any input since the ping proves that the peer lives, even if it never answers pings.
            Some((_, sent)) if self.last_heard > sent => {
                self.ping = None;
                Ok(false)
            }
            Some((_, sent)) if now >= sent + self.timeout => Err(Fatal::Silent),
            Some(_) => Ok(false),
            None => Ok(!self.interval.is_zero() && now >= self.last_heard + self.interval),
        }
    }

    /// A ping with this tag was sent.
    pub fn pinged(&mut self, tag: u32, now: Instant) {
        self.ping = Some((tag, now));
    }
}
