//! The work of all of the machine's processors together, from /proc/stat. Also counts interrupts
//! and context switches.

use std::fs;
use std::time::Duration;

/// A tick of /proc on every supported architecture is a hundredth of a second (USER_HZ).
const TICK_MS: u64 = 10;

/// Counted since the machine booted, or between two moments.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Machine {
    /// In programs, niced ones included.
    pub user: Duration,
    /// In system calls.
    pub system: Duration,
    /// In interrupt handlers.
    pub irq: Duration,
    /// In deferred work of interrupts.
    pub softirq: Duration,
    /// Taken by the hypervisor.
    pub stolen: Duration,
    pub interrupts: u64,
    /// Context switches.
    pub switches: u64,
}

impl Machine {
    /// Since boot. `None` without /proc/stat.
    pub fn now() -> Option<Self> {
        Some(Self::read(&fs::read_to_string("/proc/stat").ok()?))
    }

    /// From the text of /proc/stat (proc(5)): user, nice, system, irq, softirq and steal of the
    /// first line; `intr` and `ctxt`.
    pub fn read(text: &str) -> Self {
        let first = text.lines().next().unwrap_or_default();
        // More than 32 bits: 128 processors idle for that many ticks in four days.
        let ticks: Vec<u64> =
            first.split_whitespace().skip(1).map(|word| word.parse().unwrap_or(0)).collect();
        let of =
            |at: usize| Duration::from_millis(ticks.get(at).map_or(0, |ticks| ticks.saturating_mul(TICK_MS)));
        let count = |name: &str| {
            let line = text.lines().find_map(|line| line.strip_prefix(name));
            line.and_then(|line| line.split_whitespace().next()?.parse().ok()).unwrap_or(0)
        };
        Self {
            user: of(0) + of(1),
            system: of(2),
            irq: of(5),
            softirq: of(6),
            stolen: of(7),
            interrupts: count("intr "),
            switches: count("ctxt "),
        }
    }

    /// What it did after `before`.
    pub fn since(&self, before: &Self) -> Self {
        Self {
            user: self.user.saturating_sub(before.user),
            system: self.system.saturating_sub(before.system),
            irq: self.irq.saturating_sub(before.irq),
            softirq: self.softirq.saturating_sub(before.softirq),
            stolen: self.stolen.saturating_sub(before.stolen),
            interrupts: self.interrupts.saturating_sub(before.interrupts),
            switches: self.switches.saturating_sub(before.switches),
        }
    }

    /// Time of programs and their system calls. Excludes interrupts, which serve whichever program
    /// waits for them.
    pub fn programs(&self) -> Duration {
        self.user + self.system
    }

    /// All work.
    pub fn busy(&self) -> Duration {
        self.programs() + self.irq + self.softirq
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BEFORE: &str = "cpu  100 10 50 900 3 7 40 20 0 0\ncpu0 1 2 3\nintr 2000 1 2\nctxt 300\n";
    const AFTER: &str = "cpu  200 10 150 950 3 17 90 80 0 0\ncpu0 1 2 3\nintr 5000 1 2\nctxt 800\n";

    #[test]
    fn the_kinds_of_time_and_the_counts_are_told_apart() {
        let did = Machine::read(AFTER).since(&Machine::read(BEFORE));
        let ms = Duration::from_millis;
        let expected = Machine {
            user: ms(1000),
            system: ms(1000),
            irq: ms(100),
            softirq: ms(500),
            stolen: ms(600),
            interrupts: 3000,
            switches: 500,
        };
        assert_eq!(did, expected);
        assert_eq!((did.programs(), did.busy()), (ms(2000), ms(2600)));
        assert_eq!(Machine::read(""), Machine::default());
    }

    #[test]
    fn a_machine_of_many_processors_that_is_up_for_long_counts_too() {
        let read = Machine::read("cpu  6000000000 0 50 9000000000 3 7 40 20 0 0\n");
        let ms = Duration::from_millis;
        assert_eq!((read.user, read.irq, read.softirq), (ms(60_000_000_000), ms(70), ms(400)));
        assert_eq!(read.stolen, ms(200));
    }

    #[test]
    fn this_machine_counts() {
        let now = Machine::now().unwrap();
        assert!(now.busy() > Duration::ZERO && now.interrupts > 0 && now.switches > 0, "{now:?}");
    }
}
