//! The fate of each packet of one direction: whether the queue has room for it, when the line has
//! sent it, whether the line loses it, and when it comes out. A pure model: the caller passes the
//! time in, and nothing is read, written or waited for. The same packets at the same times with the
//! same seed always have the same fate.

use std::collections::VecDeque;

use super::rates::Rates;
use super::spec::{Direction, Queue};

/// Random numbers that are the same on every machine: splitmix64 (Steele, Lea and Flood 2014).
#[derive(Clone, Debug)]
pub(crate) struct Dice(u64);

impl Dice {
    /// The random numbers of one use, which differ from those of other uses of the same seed.
    pub(crate) fn new(seed: u64, of: u64) -> Self {
        let mut dice = Self(seed ^ of.wrapping_mul(0xd6e8_feb8_6659_fd93));
        dice.next();
        dice
    }

    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// Uniform in [0, 1).
    pub(crate) fn unit(&mut self) -> f64 {
        (self.next() >> 11) as f64 / (1u64 << 53) as f64
    }
}

/// Random loss, of single packets or in bursts (Gilbert's model of two states; the bad state loses
/// every packet).
#[derive(Clone, Debug)]
struct Loss {
    dice: Dice,
    part: f64,
    /// The probability that a burst begins with the next packet, and that it ends after one.
    begin: f64,
    end: f64,
    bad: bool,
}

impl Loss {
    fn new(part: f64, burst: f64, dice: Dice) -> Self {
        let end = 1.0 / burst;
        Self { dice, part, begin: end * part / (1.0 - part), end, bad: false }
    }

    fn loses(&mut self) -> bool {
        if self.part == 0.0 {
            return false;
        }
        if self.end >= 1.0 {
            return self.dice.unit() < self.part;
        }
        let turn = self.dice.unit();
        self.bad = if self.bad { turn >= self.end } else { turn < self.begin };
        self.bad
    }
}

/// The fate of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// It comes out at this time, ns, behind all earlier packets.
    Deliver(u64),
    /// It comes out at this time, ns, behind packets sent after it.
    DeliverLate(u64),
    /// The line lost it.
    Lost,
    QueueFull,
}

/// One direction's queue and line.
#[derive(Clone, Debug)]
pub(crate) struct Shaper {
    /// `None` without a limit.
    rates: Option<Rates>,
    queue: Queue,
    overhead: u64,
    delay_ps: u64,
    jitter_ps: f64,
    reorder: f64,
    reorder_by_ps: u64,
    loss: Loss,
    jitter_dice: Dice,
    reorder_dice: Dice,
    /// When the line will have sent all accepted packets, ps.
    free_ps: u64,
    /// How long the line takes for all accepted packets together, ps.
    taken_ps: u64,
    /// When the last packet in order comes out, ps.
    last_ps: u64,
    /// When each waiting packet will have been sent, ps; kept only if the queue counts packets.
    waiting: VecDeque<u64>,
}

impl Shaper {
    /// `stream` distinguishes directions with the same seed.
    pub(crate) fn new(direction: &Direction, overhead: u32, seed: u64, stream: u64) -> Self {
        let dice = |of: u64| Dice::new(seed, stream * 16 + of);
        let ps = |time: std::time::Duration| u64::try_from(time.as_nanos() * 1000).unwrap_or(u64::MAX / 4);
        Self {
            rates: Rates::of(direction),
            queue: direction.queue,
            overhead: overhead.into(),
            delay_ps: ps(direction.delay),
            jitter_ps: ps(direction.jitter) as f64,
            reorder: direction.reorder,
            reorder_by_ps: ps(direction.reorder_by),
            loss: Loss::new(direction.loss, direction.burst, dice(1)),
            jitter_dice: dice(2),
            reorder_dice: dice(3),
            free_ps: 0,
            taken_ps: 0,
            last_ps: 0,
            waiting: VecDeque::new(),
        }
    }

    /// Bytes on the wire that wait or are being sent at `now_ns`.
    pub(crate) fn backlog(&self, now_ns: u64) -> u64 {
        self.rates.as_ref().map_or(0, |rates| rates.bytes(now_ns * 1000, self.free_ps))
    }

    /// Begins the plan of rates at this time, ns, or keeps the first rate. Accepted packets are
    /// sent as they would have been.
    pub(crate) fn begin_plan(&mut self, began_ns: Option<u64>) {
        if let Some(rates) = &mut self.rates {
            rates.begin(began_ns.map(|ns| ns * 1000));
        }
    }

    /// When the line has sent everything, and how long it has been sending in all until `now_ns`,
    /// ns.
    pub(crate) fn sending(&self, now_ns: u64) -> (u64, u64) {
        let left = self.free_ps.saturating_sub(now_ns * 1000);
        (self.free_ps.div_ceil(1000), self.taken_ps.saturating_sub(left) / 1000)
    }

    /// The fate of a packet of `bytes` (without the overhead) that arrives at `now_ns`. `now_ns`
    /// must not decrease.
    pub(crate) fn packet(&mut self, now_ns: u64, bytes: u64) -> Verdict {
        let now_ps = now_ns * 1000;
        let wire = bytes + self.overhead;
        if self.rates.is_some() && !self.has_room(now_ns, now_ps, wire) {
            return Verdict::QueueFull;
        }
        let sent_ps = match &self.rates {
            None => now_ps,
            Some(rates) => {
                let begins = self.free_ps.max(now_ps);
                self.free_ps = rates.sent(begins, wire);
                self.taken_ps += self.free_ps - begins;
                if matches!(self.queue, Queue::Packets(_)) {
                    self.waiting.push_back(self.free_ps);
                }
                self.free_ps
            }
        };
        if self.loss.loses() {
            return Verdict::Lost;
        }
        let mut out = sent_ps + self.delay_ps;
        if self.jitter_ps > 0.0 {
            let by = (self.jitter_dice.unit() * 2.0 - 1.0) * self.jitter_ps;
            out = out.saturating_add_signed(by as i64).max(sent_ps);
        }
        if self.reorder > 0.0 && self.reorder_dice.unit() < self.reorder {
            return Verdict::DeliverLate((out + self.reorder_by_ps).div_ceil(1000));
        }
        out = out.max(self.last_ps);
        self.last_ps = out;
        Verdict::Deliver(out.div_ceil(1000))
    }

    fn has_room(&mut self, now_ns: u64, now_ps: u64, wire: u64) -> bool {
        match self.queue {
            Queue::Bytes(most) => self.backlog(now_ns) + wire <= most,
            Queue::Packets(most) => {
                while self.waiting.front().is_some_and(|sent| *sent <= now_ps) {
                    self.waiting.pop_front();
                }
                self.waiting.len() < most as usize
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::super::spec::{RateChange, RatePlan};
    use super::*;

    const MS: u64 = 1_000_000;

    fn plain() -> Direction {
        Direction {
            delay: Duration::from_millis(10),
            jitter: Duration::ZERO,
            rate: Some(1_000_000_000),
            rate_plan: None,
            queue: Queue::Bytes(1_000_000),
            loss: 0.0,
            burst: 1.0,
            reorder: 0.0,
            reorder_by: Duration::from_micros(500),
        }
    }

    #[test]
    fn a_packet_takes_its_time_on_the_line_and_the_delay() {
        let mut shaper = Shaper::new(&plain(), 38, 1, 0);
        // 1538 bytes at 1 Gb/s are 12.304 µs.
        assert_eq!(shaper.packet(5 * MS, 1500), Verdict::Deliver(15 * MS + 12_304));
        // The next one waits for it.
        assert_eq!(shaper.packet(5 * MS, 1500), Verdict::Deliver(15 * MS + 24_608));
        // The first has been sent, and half of the second.
        assert_eq!(shaper.sending(5 * MS + 18_456), (5 * MS + 24_608, 18_456));
        assert_eq!(shaper.sending(6 * MS), (5 * MS + 24_608, 24_608));
        // The line is idle again at 6 ms.
        assert_eq!(shaper.packet(6 * MS, 1500), Verdict::Deliver(16 * MS + 12_304));
    }

    #[test]
    fn each_phase_of_a_rate_plan_carries_what_its_rate_allows() {
        // 1 Gb/s for 20 ms, then 100 Mb/s for 10 ms, again and again; always asked for more.
        let changes = vec![RateChange { at: Duration::from_millis(20), rate: 100_000_000 }];
        let rate_plan = Some(RatePlan { changes, period: Some(Duration::from_millis(30)) });
        let queue = Queue::Bytes(20 * 1538);
        let mut shaper = Shaper::new(&Direction { rate_plan, queue, ..plain() }, 38, 1, 0);
        shaper.begin_plan(Some(100 * MS));
        let mut carried = [0u64; 8];
        for now in (100 * MS..230 * MS).step_by(5_000) {
            if let Verdict::Deliver(out) = shaper.packet(now, 1500) {
                let sent = out - 10 * MS - 100 * MS;
                let (cycle, within) = (sent / (30 * MS), sent % (30 * MS));
                let phase = cycle * 2 + u64::from(within > 20 * MS);
                if let Some(carried) = carried.get_mut(phase as usize) {
                    *carried += 1538;
                }
            }
        }
        for (phase, carried) in carried.into_iter().enumerate() {
            let asked = if phase % 2 == 0 { 2_500_000 } else { 125_000 };
            // A packet counts where it ends.
            assert!(carried.abs_diff(asked) <= 1538, "phase {phase}: {carried} of {asked} bytes");
        }
    }

    #[test]
    fn a_full_queue_counts_what_the_line_sends_at_the_rates_to_come() {
        let changes = vec![RateChange { at: Duration::from_micros(100), rate: 100_000_000 }];
        let rate_plan = Some(RatePlan { changes, period: None });
        let mut shaper = Shaper::new(&Direction { rate_plan, ..plain() }, 38, 1, 0);
        shaper.begin_plan(Some(0));
        for _ in 0..100 {
            assert!(matches!(shaper.packet(0, 1500), Verdict::Deliver(_)));
        }
        assert_eq!(shaper.backlog(0), 100 * 1538);
        // 12,500 bytes are sent in the first 100 µs, and 1250 in the next.
        assert_eq!(shaper.backlog(100_000), 100 * 1538 - 12_500);
        assert_eq!(shaper.backlog(200_000), 100 * 1538 - 13_750);
        // The plan begins anew: what was accepted is sent as before.
        let (free, _) = shaper.sending(200_000);
        shaper.begin_plan(Some(200_000));
        assert_eq!(shaper.sending(200_000).0, free);
    }

    #[test]
    fn what_finds_the_queue_full_is_dropped_and_costs_the_line_nothing() {
        let mut shaper = Shaper::new(&Direction { queue: Queue::Bytes(10 * 1538), ..plain() }, 38, 1, 0);
        let verdicts: Vec<Verdict> = (0..20).map(|_| shaper.packet(0, 1500)).collect();
        assert!(verdicts[..10].iter().all(|v| matches!(v, Verdict::Deliver(_))), "{verdicts:?}");
        assert!(verdicts[10..].iter().all(|v| *v == Verdict::QueueFull), "{verdicts:?}");
        assert_eq!(shaper.backlog(0), 10 * 1538);
        // One packet has been sent, so one fits.
        assert_eq!(shaper.packet(12_304, 1500), Verdict::Deliver(10 * MS + 11 * 12_304));
        assert_eq!(shaper.packet(12_304, 1500), Verdict::QueueFull);
    }

    #[test]
    fn a_queue_of_packets_counts_packets_of_any_size() {
        let mut shaper = Shaper::new(&Direction { queue: Queue::Packets(3), ..plain() }, 38, 1, 0);
        let small: Vec<Verdict> = (0..5).map(|_| shaper.packet(0, 40)).collect();
        assert_eq!(small.iter().filter(|v| **v == Verdict::QueueFull).count(), 2);
        assert!(matches!(shaper.packet(624, 9000), Verdict::Deliver(_)), "one has been sent");
        assert_eq!(shaper.packet(624, 40), Verdict::QueueFull);
    }

    #[test]
    fn the_same_seed_loses_the_same_packets_and_as_many_as_asked() {
        let direction = Direction { loss: 0.02, rate: None, ..plain() };
        let lost = |seed| -> Vec<usize> {
            let mut shaper = Shaper::new(&direction, 38, seed, 0);
            (0..100_000).filter(|at| shaper.packet(*at as u64, 1500) == Verdict::Lost).collect()
        };
        let first = lost(7);
        assert_eq!(first, lost(7));
        assert_ne!(first, lost(8));
        assert!((1850..2150).contains(&first.len()), "{} of 100000", first.len());
    }

    #[test]
    fn bursts_lose_as_many_packets_in_longer_rows() {
        let direction = Direction { loss: 0.02, burst: 8.0, rate: None, ..plain() };
        let mut shaper = Shaper::new(&direction, 38, 3, 0);
        let lost: Vec<bool> = (0..400_000).map(|at| shaper.packet(at, 1500) == Verdict::Lost).collect();
        let all = lost.iter().filter(|lost| **lost).count();
        let rows = lost.windows(2).filter(|pair| !pair[0] && pair[1]).count();
        assert!((7000..9000).contains(&all), "{all} of 400000");
        let row = all as f64 / rows as f64;
        assert!((7.0..9.0).contains(&row), "{row} in a row");
    }

    #[test]
    fn jitter_keeps_the_order_and_its_bounds() {
        let direction = Direction { jitter: Duration::from_millis(2), ..plain() };
        let mut shaper = Shaper::new(&direction, 38, 1, 0);
        let mut last = 0;
        let mut delays = Vec::new();
        for at in 0..10_000u64 {
            let now = at * 100_000;
            let Verdict::Deliver(due) = shaper.packet(now, 1500) else { panic!("nothing is dropped") };
            assert!(due >= last);
            last = due;
            delays.push(due - now);
        }
        assert!(delays.iter().all(|delay| (8 * MS..12 * MS + 20_000).contains(delay)));
        assert!(delays.iter().any(|delay| *delay > 11 * MS));
    }

    #[test]
    fn what_is_reordered_comes_late_and_moves_no_other() {
        let direction = Direction { reorder: 0.1, ..plain() };
        let mut shaper = Shaper::new(&direction, 38, 1, 0);
        let (mut late, mut last) = (0, 0);
        for at in 0..10_000u64 {
            let now = at * 20_000;
            match shaper.packet(now, 1500) {
                Verdict::Deliver(due) => {
                    assert_eq!(due, now + 10 * MS + 12_304);
                    assert!(due > last);
                    last = due;
                }
                Verdict::DeliverLate(due) => {
                    assert_eq!(due, now + 10 * MS + 12_304 + 500_000);
                    late += 1;
                }
                other => panic!("{other:?}"),
            }
        }
        assert!((850..1150).contains(&late), "{late} of 10000");
    }

    #[test]
    fn loss_does_not_change_with_jitter() {
        let lost = |jitter| -> Vec<u64> {
            let direction = Direction { loss: 0.1, jitter, rate: None, ..plain() };
            let mut shaper = Shaper::new(&direction, 38, 5, 1);
            (0..1000).filter(|at| shaper.packet(*at, 1500) == Verdict::Lost).collect()
        };
        assert_eq!(lost(Duration::ZERO), lost(Duration::from_millis(1)));
    }
}
