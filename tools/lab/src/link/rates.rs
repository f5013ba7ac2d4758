//! The rate of a line over time: constant, or by a plan that may repeat. It tells how much a line
//! sends between two times, and how long it takes for so many bytes, exactly and without a loop
//! over the plan's repetitions. Pure: the caller passes the time in.

use super::spec::Direction;

/// The work of sending one byte: bits per second, times picoseconds.
pub(crate) const BYTE: u128 = 8_000_000_000_000;

/// A time from which the line has another rate.
#[derive(Clone, Copy, Debug)]
struct Step {
    /// From the begin of the plan, ps.
    at_ps: u64,
    /// Bits per second.
    rate: u64,
    /// The work that the line does before.
    before: u128,
}

/// The rates of a line that has one.
#[derive(Clone, Debug)]
pub(crate) struct Rates {
    /// The first is at 0.
    steps: Vec<Step>,
    /// After which time the plan begins again, ps, and the work that the line does in it.
    period: Option<(u64, u128)>,
    /// When the plan began, ps. Before that the line has the first rate.
    began_ps: Option<u64>,
}

impl Rates {
    /// `None` for a direction without a limit.
    pub(crate) fn of(direction: &Direction) -> Option<Self> {
        let ps = |time: std::time::Duration| u64::try_from(time.as_nanos() * 1000).unwrap_or(u64::MAX);
        let mut steps = vec![Step { at_ps: 0, rate: direction.rate?, before: 0 }];
        let plan = direction.rate_plan.as_ref();
        for change in plan.iter().flat_map(|plan| &plan.changes) {
            let before = Self::after(&steps, ps(change.at));
            steps.push(Step { at_ps: ps(change.at), rate: change.rate, before });
        }
        let period = plan.and_then(|plan| plan.period);
        let period = period.map(|period| (ps(period), Self::after(&steps, ps(period))));
        Some(Self { steps, period, began_ps: None })
    }

    /// The work from the plan's begin until `within_ps`.
    fn after(steps: &[Step], within_ps: u64) -> u128 {
        let at = steps.partition_point(|step| step.at_ps <= within_ps);
        steps.get(at.saturating_sub(1)).map_or(0, |step| {
            step.before + u128::from(within_ps.saturating_sub(step.at_ps)) * u128::from(step.rate)
        })
    }

    /// Begins the plan at this time, or has the line keep the first rate.
    pub(crate) fn begin(&mut self, began_ps: Option<u64>) {
        self.began_ps = began_ps;
    }

    /// The steps that count now: all, or the first before the plan has begun.
    fn steps(&self) -> &[Step] {
        if self.began_ps.is_some() { &self.steps } else { self.steps.get(..1).unwrap_or_default() }
    }

    /// The work that the line can do until `at_ps`.
    fn work(&self, at_ps: u64) -> u128 {
        let time = at_ps.saturating_sub(self.began_ps.unwrap_or(0));
        match self.period.filter(|_| self.began_ps.is_some()) {
            Some((period, of_it)) => {
                u128::from(time / period) * of_it + Self::after(self.steps(), time % period)
            }
            None => Self::after(self.steps(), time),
        }
    }

    /// The bytes that the line can send from one time to another.
    pub(crate) fn bytes(&self, from_ps: u64, to_ps: u64) -> u64 {
        (self.work(to_ps).saturating_sub(self.work(from_ps)) / BYTE) as u64
    }

    /// When the line has sent bytes that it begins to send at `from_ps`, ps.
    pub(crate) fn sent(&self, from_ps: u64, bytes: u64) -> u64 {
        let mut work = self.work(from_ps) + u128::from(bytes) * BYTE;
        let mut time = self.began_ps.unwrap_or(0);
        if let Some((period, of_it)) = self.period.filter(|_| self.began_ps.is_some()) {
            time = time.saturating_add((work / of_it) as u64 * period);
            work %= of_it;
        }
        let steps = self.steps();
        let at = steps.partition_point(|step| step.before <= work).saturating_sub(1);
        let within = steps
            .get(at)
            .map_or(0, |step| u128::from(step.at_ps) + (work - step.before) / u128::from(step.rate));
        time.saturating_add(within as u64)
    }
}

#[cfg(test)]
mod tests {
    use super::super::options::{LinkOptions, RateStep};
    use super::*;

    const MS: u64 = 1_000_000_000;

    /// 1 Gb/s for 2 ms, 100 Mb/s for 1 ms, 2 Gb/s for the rest of each period.
    fn rates(period: Option<&str>) -> Rates {
        let step = |at: &str, rate: &str| RateStep { at: at.into(), rate: rate.into() };
        let options = LinkOptions {
            rate_plan: vec![step("0", "1Gb/s"), step("2ms", "100Mb/s"), step("3ms", "2Gb/s")],
            rate_period: period.map(str::to_owned),
            ..LinkOptions::of("lan")
        };
        Rates::of(&options.resolve().unwrap().a_to_b).unwrap()
    }

    #[test]
    fn before_the_plan_begins_the_line_has_the_first_rate() {
        let rates = rates(Some("4ms"));
        assert_eq!(rates.bytes(0, 100 * MS), 12_500_000);
        assert_eq!(rates.sent(7 * MS, 125_000), 8 * MS);
    }

    #[test]
    fn each_phase_sends_at_its_rate_and_the_last_one_lasts() {
        let mut rates = rates(None);
        rates.begin(Some(10 * MS));
        assert_eq!(rates.bytes(10 * MS, 12 * MS), 250_000);
        assert_eq!(rates.bytes(12 * MS, 13 * MS), 12_500);
        assert_eq!(rates.bytes(13 * MS, 1013 * MS), 250_000_000);
        // Across both changes.
        assert_eq!(rates.bytes(11 * MS, 14 * MS), 125_000 + 12_500 + 250_000);
        assert_eq!(rates.sent(11 * MS, 125_000 + 12_500 + 250_000), 14 * MS);
        // 6000 bits at 1 Gb/s and 6000 at a tenth.
        assert_eq!(rates.sent(12 * MS - 6_000_000, 1500), 12 * MS + 60_000_000);
    }

    #[test]
    fn a_period_repeats_from_the_begin_of_the_plan() {
        let mut rates = rates(Some("4ms"));
        rates.begin(Some(5 * MS));
        let each = 250_000 + 12_500 + 250_000;
        assert_eq!(rates.bytes(5 * MS, 5 * MS + 1000 * 4 * MS), 1000 * each);
        assert_eq!(rates.bytes(5 * MS + 400 * MS + 2 * MS, 5 * MS + 400 * MS + 3 * MS), 12_500);
        for from in [5, 6, 7, 8, 9, 401, 999] {
            for bytes in [1, 1538, each, 12_345_678] {
                let sent = rates.sent(from * MS, bytes);
                assert_eq!(rates.bytes(from * MS, sent + 1000), bytes, "{bytes} from {from} ms");
                assert!(rates.bytes(from * MS, sent.saturating_sub(1000)) < bytes);
            }
        }
        // It begins anew.
        rates.begin(Some(7 * MS));
        assert_eq!(rates.bytes(7 * MS, 9 * MS), 250_000);
    }
}
