//! Whether the emulator kept a line at its rate, and how long a line's thread may spin. Pure: the
//! caller passes the time in, and nothing is read or waited for.

/// The length of a span, ns.
const SPAN_NS: u64 = 10_000_000;
/// The part of a span, in percent, for which the line must have been asked.
const FULL_PERCENT: u64 = 90;

/// The account of a line with a rate. In spans in which the line was asked for its full rate, it
/// adds up the time in which the line stood idle while packets may have waited for the emulator.
#[derive(Debug, Default)]
pub(crate) struct Keeping {
    began: u64,
    /// How long the line had sent before the span.
    sent_before: u64,
    missed: u64,
}

/// A span in which the line was asked for its full rate, ns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Span {
    /// How long the line sent, or should have sent.
    pub(crate) asked: u64,
    /// Of that, how long it should have sent and did not.
    pub(crate) missed: u64,
}

impl Keeping {
    /// Takes account of a packet that was read at `now`, before the line has it. `sent` is how long
    /// the line has been sending in all; `free`: when it had sent, or will have sent, everything;
    /// `empty`: the last time at which no packet waited to be read. Returns the span that ended.
    pub(crate) fn read(&mut self, now: u64, sent: u64, free: u64, empty: u64) -> Option<Span> {
        let missed = self.missed + now.saturating_sub(free.max(empty).max(self.began));
        let length = now - self.began;
        if length < SPAN_NS {
            self.missed = missed;
            return None;
        }
        let asked = sent.saturating_sub(self.sent_before) + missed;
        *self = Self { began: now, sent_before: sent, missed: 0 };
        (asked * 100 >= length * FULL_PERCENT).then_some(Span { asked, missed })
    }
}

/// The most that a thread may save to spin later, ns.
const MOST_SAVED_NS: u64 = 100_000;
/// The part of the time that a thread may spin on a machine with few processors: one in so many.
const PART: u64 = 4;

/// How long a thread may spin. With few processors it takes that time from client and server.
#[derive(Debug)]
pub(crate) struct Spinning {
    unbounded: bool,
    saved: u64,
    at: u64,
}

impl Spinning {
    pub(crate) fn new(unbounded: bool) -> Self {
        Self { unbounded, saved: 0, at: 0 }
    }

    /// Whether it may spin at any time.
    pub(crate) fn is_unbounded(&self) -> bool {
        self.unbounded
    }

    /// How much of `wanted` it may spin at `now`.
    pub(crate) fn may(&mut self, now: u64, wanted: u64) -> u64 {
        if self.unbounded {
            return wanted;
        }
        self.saved = (self.saved + now.saturating_sub(self.at) / PART).min(MOST_SAVED_NS);
        self.at = now;
        self.saved.min(wanted)
    }

    /// It has spun for `spun`.
    pub(crate) fn spun(&mut self, spun: u64) {
        self.saved = self.saved.saturating_sub(spun);
    }
}

/// The emulator's own share of the way of a packet on a short link, which is taken off the delay.
#[derive(Debug)]
pub(crate) struct Share {
    /// How long it takes to wake a thread, ns; 0 on links that are not short.
    wake: u64,
    /// How long a write takes until the packet is at the other side, ns: the quick ones of late.
    write: u64,
    /// Since when the thread has slept, if a packet has woken it.
    slept: Option<u64>,
    /// The last time at which a packet came.
    came: u64,
}

impl Share {
    pub(crate) fn new(wake: u64) -> Self {
        Self { wake, write: 0, slept: None, came: 0 }
    }

    /// The thread slept from `began` on, and a packet has woken it.
    pub(crate) fn woken(&mut self, began: u64) {
        self.slept = Some(began);
    }

    /// When a packet that was read at `now` came: before the wake, if it woke the thread, and not
    /// before the thread slept or an earlier packet came.
    pub(crate) fn came(&mut self, now: u64) -> u64 {
        let began = self.slept.take();
        let came = began.map_or(now, |began| now.saturating_sub(self.wake).max(began));
        self.came = self.came.max(came);
        self.came
    }

    /// A packet was written in `took`.
    pub(crate) fn wrote(&mut self, took: u64) {
        if self.wake == 0 {
            return;
        }
        let slower = took.saturating_sub(self.write) / WRITES;
        self.write = if self.write == 0 { took } else { took.min(self.write + slower) }.min(MOST_WRITE_NS);
    }

    /// How long before a packet is due its write has to begin.
    pub(crate) fn ahead(&self) -> u64 {
        self.write
    }
}

/// The number of writes after which a slower machine is noticed.
const WRITES: u64 = 64;
/// The most that a write's time counts, ns.
const MOST_WRITE_NS: u64 = 20_000;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_packet_that_woke_the_thread_came_before_the_wake() {
        let mut share = Share::new(10 * US);
        assert_eq!(share.came(100 * US), 100 * US, "it was awake");
        share.woken(150 * US);
        assert_eq!(share.came(200 * US), 190 * US);
        assert_eq!(share.came(201 * US), 201 * US, "the next one did not wake it");
        share.woken(295 * US);
        assert_eq!(share.came(300 * US), 295 * US, "it did not sleep before");
        share.woken(250 * US);
        assert_eq!(share.came(302 * US), 295 * US, "the order stays");
    }

    #[test]
    fn writes_begin_as_much_earlier_as_quick_writes_take() {
        let mut share = Share::new(10 * US);
        assert_eq!(share.ahead(), 0);
        [9, 8, 30, 500].into_iter().for_each(|took| share.wrote(took * US));
        assert!((8 * US..=17 * US).contains(&share.ahead()), "{}", share.ahead());
        (0..10_000).for_each(|_| share.wrote(500 * US));
        assert_eq!(share.ahead(), MOST_WRITE_NS);
        share.wrote(7 * US);
        assert_eq!(share.ahead(), 7 * US);
        let mut long = Share::new(0);
        long.wrote(9 * US);
        assert_eq!(long.ahead(), 0);
    }

    const US: u64 = 1000;

    /// Reads a packet every 100 µs, of which the line sends `busy`, for 100 ms. No packet waited
    /// for longer than `waited` before its read.
    fn spans(busy: u64, waited: u64) -> Vec<Span> {
        let mut keeping = Keeping::default();
        let (mut sent, mut free) = (0, 0);
        (0..1000)
            .filter_map(|at| {
                let now = at * 100 * US;
                let span = keeping.read(now, sent, free, now.saturating_sub(waited));
                sent += busy;
                free = now + busy;
                span
            })
            .collect()
    }

    #[test]
    fn a_line_that_is_read_at_once_has_missed_nothing() {
        let full = spans(100 * US, 0);
        assert_eq!(full.len(), 9);
        assert!(full.iter().all(|span| *span == Span { asked: 10_000 * US, missed: 0 }), "{full:?}");
        assert_eq!(spans(50 * US, 0), [], "half of the rate was asked for");
    }

    #[test]
    fn a_line_that_is_idle_while_packets_wait_misses_that_time() {
        for (busy, waited, missed) in [(60, 1000, 40), (60, 35, 35), (95, 1000, 5)] {
            let found = spans(busy * US, waited * US);
            assert_eq!(found.len(), 9, "{busy} {waited}");
            for span in found {
                let expected = Span { asked: (busy + missed) * 100 * US, missed: missed * 100 * US };
                assert_eq!(span, expected, "{busy} {waited}");
            }
        }
        assert_eq!(spans(60 * US, 20 * US), [], "a fifth of the time nothing was there to be sent");
    }

    #[test]
    fn with_few_processors_a_thread_spins_a_quarter_of_the_time() {
        let mut spinning = Spinning::new(false);
        let mut all = 0;
        for at in 0..10_000u64 {
            let may = spinning.may(at * 100 * US, 80 * US);
            spinning.spun(may);
            all += may;
        }
        assert!((240..=260).contains(&(all / US / 1000)), "{all} ns of 1 s");
        // It saves no more than two or three packets need.
        assert_eq!(spinning.may(100_000_000 * US, u64::MAX), MOST_SAVED_NS);
        assert_eq!(Spinning::new(true).may(0, 80 * US), 80 * US);
    }
}
