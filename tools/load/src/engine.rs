//! The loop of a load: when a command may begin, and whether one that ended counts. A closed loop
//! keeps a depth of commands in flight; an open one begins them at a rate. It does no I/O and reads
//! no clock: the driver passes the time in.

use std::collections::VecDeque;
use std::time::Instant;

use crate::{Pace, seconds};

/// The time in which commands count.
#[derive(Clone, Copy, Debug)]
pub struct Window {
    /// When counting begins, after the warm-up.
    pub start: Instant,
    /// When it ends; `None` if something else ends it, such as a count.
    pub end: Option<Instant>,
}

impl Window {
    /// For a load that begins at `now`: seconds of warm-up, and seconds that count.
    pub fn new(now: Instant, warmup: f64, time: Option<f64>) -> Self {
        let start = now + seconds(warmup);
        Self { start, end: time.map(|time| start + seconds(time)) }
    }

    /// Whether a command of this time counts.
    #[inline]
    pub fn counts(&self, at: Instant) -> bool {
        at >= self.start && !self.is_over(at)
    }

    /// Whether no more commands are to begin.
    #[inline]
    pub fn is_over(&self, at: Instant) -> bool {
        self.end.is_some_and(|end| at >= end)
    }
}

/// A command in flight.
#[derive(Clone, Copy, Debug)]
struct Slot {
    /// When it was due, or began.
    from: Instant,
    /// Whether it counts, if that is known when it begins.
    counts: Option<bool>,
}

/// The loop of one source of commands: a session, a queue pair, a socket.
#[derive(Debug)]
pub struct Engine {
    /// `None` while nothing counts yet.
    window: Option<Window>,
    pace: Option<Pace>,
    left: Option<u64>,
    slots: Vec<Slot>,
    /// First in, first out: if commands end in order, the n-th has the slot n modulo the depth.
    free: VecDeque<u16>,
    last: Option<Instant>,
    stopped: bool,
}

impl Engine {
    /// A closed loop of `depth` commands, none of which counts until [`Engine::open`].
    pub fn warming(depth: u16) -> Self {
        let idle = Slot { from: Instant::now(), counts: None };
        Self {
            window: None,
            pace: None,
            left: None,
            slots: vec![idle; depth.into()],
            free: (0..depth).collect(),
            last: None,
            stopped: false,
        }
    }

    /// A closed loop of `depth` commands, which all count.
    pub fn closed(depth: u16) -> Self {
        let mut engine = Self::warming(depth);
        engine.open(Instant::now());
        engine
    }

    /// A loop whose commands count in `window`: with `pace` an open one, with `count` over after so
    /// many commands. A command of a closed loop without a count counts if it ends in the window.
    /// Any other counts if it is due in the window, so that all commands that were due are
    /// reported.
    pub fn new(depth: u16, window: Window, pace: Option<Pace>, count: Option<u64>) -> Self {
        Self { window: Some(window), pace, left: count, ..Self::warming(depth) }
    }

    /// From `now` on every command that ends counts, except those that have ended already.
    pub fn open(&mut self, now: Instant) {
        (self.window, self.last) = (Some(Window { start: now, end: None }), None);
    }

    /// Begins no further command.
    pub fn stop(&mut self) {
        self.stopped = true;
    }

    /// Ends the window at `now`, or right after the warm-up.
    pub fn cut(&mut self, now: Instant) {
        if let Some(window) = self.window.as_mut().filter(|window| !window.is_over(now)) {
            window.end = Some(now.max(window.start));
        }
    }

    /// Whether counting has begun.
    pub fn has_begun(&self, now: Instant) -> bool {
        self.window.is_some_and(|window| now >= window.start)
    }

    /// Whether no more commands are to begin.
    pub fn is_over(&self, now: Instant) -> bool {
        self.stopped || self.left == Some(0) || self.window.is_some_and(|window| window.is_over(now))
    }

    /// Whether no command is in flight.
    pub fn is_idle(&self) -> bool {
        self.free.len() == self.slots.len()
    }

    /// Whether a command may begin at `now`.
    #[inline]
    pub fn may_begin(&self, now: Instant) -> bool {
        let due = self.pace.as_ref().is_none_or(|pace| pace.next_due() <= now);
        due && !self.free.is_empty() && !self.is_over(now)
    }

    /// Begins a command if one may begin at `now`. Returns its slot, below the depth.
    #[inline]
    pub fn begin(&mut self, now: Instant) -> Option<u16> {
        if !self.may_begin(now) {
            return None;
        }
        let slot = self.free.pop_front()?;
        let from = self.pace.as_mut().and_then(|pace| pace.take(now)).unwrap_or(now);
        let known = self.pace.is_some() || self.left.is_some();
        let counts = known.then(|| self.window.is_some_and(|window| window.counts(from)));
        if let (Some(left), Some(true)) = (&mut self.left, counts) {
            *left -= 1;
        }
        *self.slots.get_mut(usize::from(slot))? = Slot { from, counts };
        Some(slot)
    }

    /// Ends the command of `slot`. Returns its latency in ns, from the time at which it was due, if
    /// it counts.
    #[inline]
    pub fn end(&mut self, slot: u16, at: Instant) -> Option<u64> {
        let Slot { from, counts } = *self.slots.get(usize::from(slot))?;
        self.free.push_back(slot);
        let counts = counts.unwrap_or_else(|| self.window.is_some_and(|window| window.counts(at)));
        counts.then(|| {
            self.last = Some(at);
            at.saturating_duration_since(from).as_nanos() as u64
        })
    }

    /// Ends the command of `slot` that failed: it does not count.
    pub fn fail(&mut self, slot: u16) {
        self.free.push_back(slot);
    }

    /// When to look at the engine again if no command ends: when the next command is due, or when
    /// the window ends while nothing is in flight.
    pub fn wake(&self, now: Instant) -> Option<Instant> {
        let over = self.is_over(now);
        let due = self.pace.as_ref().filter(|_| !over && !self.free.is_empty()).map(Pace::next_due);
        match (due, self.window.and_then(|window| window.end)) {
            (Some(due), Some(end)) => Some(due.min(end)),
            (None, Some(end)) if !over && self.is_idle() => Some(end),
            (due, _) => due,
        }
    }

    /// Calls `each` for every command that was due in the window and could not begin, with the ns
    /// that it waited until the end: commands that were not sent count too.
    pub fn unsent(&mut self, mut each: impl FnMut(u64)) {
        let (Some(pace), Some(Window { start, end: Some(end) })) = (&mut self.pace, self.window) else {
            return;
        };
        while pace.next_due() < end {
            let Some(due) = pace.take(end) else { break };
            if due >= start {
                each(end.saturating_duration_since(due).as_nanos() as u64);
            }
        }
    }

    /// The seconds of the window, or those until the last command that counted.
    pub fn seconds(&self) -> f64 {
        let Some(window) = self.window else { return 0.0 };
        let until = window.end.or(self.last).unwrap_or(window.start);
        until.saturating_duration_since(window.start).as_secs_f64()
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    const MS: Duration = Duration::from_millis(1);

    fn begun(engine: &mut Engine, now: Instant) -> Vec<u16> {
        std::iter::from_fn(|| engine.begin(now)).collect()
    }

    #[test]
    fn a_closed_loop_keeps_its_depth_and_counts_ends_within_the_window() {
        let now = Instant::now();
        let mut engine = Engine::new(2, Window::new(now, 0.01, Some(0.1)), None, None);
        assert_eq!(begun(&mut engine, now), [0, 1]);
        assert_eq!(engine.end(0, now + 9 * MS), None, "in the warm-up");
        assert_eq!(begun(&mut engine, now + 9 * MS), [0]);
        assert_eq!(engine.end(1, now + 10 * MS), Some(10_000_000));
        assert_eq!(engine.wake(now), None, "a command is in flight");
        assert!(begun(&mut engine, now + 110 * MS).is_empty() && engine.is_over(now + 110 * MS));
        assert_eq!(engine.end(0, now + 110 * MS), None, "after the end");
        assert!(engine.is_idle());
        assert!((engine.seconds() - 0.1).abs() < 1e-9);
    }

    #[test]
    fn slots_go_round_where_commands_end_in_order() {
        let now = Instant::now();
        let mut engine = Engine::warming(3);
        assert_eq!(begun(&mut engine, now), [0, 1, 2]);
        for number in 0..10u16 {
            assert_eq!(engine.end(number % 3, now), None, "nothing counts yet");
            assert_eq!(engine.begin(now), Some(number % 3));
        }
        engine.open(now + MS);
        assert_eq!(engine.end(1, now + 2 * MS), Some(2_000_000));
        assert!((engine.seconds() - 0.001).abs() < 1e-9);
        engine.stop();
        assert_eq!(engine.begin(now + 2 * MS), None);
    }

    #[test]
    fn an_open_loop_counts_from_when_a_command_was_due() {
        let now = Instant::now();
        let mut engine =
            Engine::new(2, Window::new(now, 0.0, Some(0.01)), Some(Pace::new(now, 1000.0, 0.0)), None);
        assert_eq!(begun(&mut engine, now), [0]);
        assert_eq!(engine.wake(now), Some(now + MS));
        assert_eq!(begun(&mut engine, now + 5 * MS), [1], "the depth is reached");
        // It was due after 1 ms, and ends after the window in which it counts.
        assert_eq!(engine.end(1, now + 12 * MS), Some(11_000_000));
        let mut waited = Vec::new();
        engine.unsent(|ns| waited.push(ns));
        assert_eq!((waited.len(), waited[0], waited[7]), (8, 8_000_000, 1_000_000));
    }

    #[test]
    fn a_count_ends_the_load_and_what_fails_is_not_counted() {
        let now = Instant::now();
        let mut engine = Engine::new(4, Window::new(now, 0.0, None), None, Some(3));
        assert_eq!(begun(&mut engine, now), [0, 1, 2]);
        assert!(engine.is_over(now) && !engine.is_idle());
        assert_eq!(engine.end(2, now + 7 * MS), Some(7_000_000));
        engine.fail(0);
        engine.fail(1);
        assert!(engine.is_idle() && (engine.seconds() - 0.007).abs() < 1e-9);
    }

    #[test]
    fn a_load_that_is_cut_ends_at_once_but_not_before_its_warm_up() {
        let now = Instant::now();
        let mut engine = Engine::new(1, Window::new(now, 0.01, Some(1.0)), None, None);
        engine.cut(now + 2 * MS);
        assert!(!engine.is_over(now + 2 * MS) && engine.is_over(now + 10 * MS));
        engine.cut(now + 50 * MS);
        assert_eq!(engine.seconds(), 0.0);
    }
}
