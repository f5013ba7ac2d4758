//! The I/Os of a run, and the part of a unit that each session works on. Plain values; no I/O.

use std::time::Instant;

use load::{Pace, Random, Window, Zipf};

use crate::args::{Bench, Pattern};

/// One run: one pattern, block size and depth.
#[derive(Clone, Debug)]
pub struct Run {
    /// Order and kind of the I/Os.
    pub pattern: Pattern,
    /// Percentage of reads.
    pub read_percent: u8,
    /// Bytes of an I/O; 1 if it moves no data, so that its places are entries of a directory.
    pub bs: u32,
    /// Commands in flight on each session.
    pub depth: u16,
}

/// All runs that the command line asks for.
pub fn runs(args: &Bench) -> Vec<Run> {
    let load = &args.load;
    let mut runs = Vec::new();
    for (turn, &bs) in load.bs.0.iter().enumerate() {
        for &depth in &load.depth.0 {
            for &pattern in &load.pattern {
                if pattern.is_metadata() && turn > 0 {
                    continue;
                }
                let bs = if pattern.is_metadata() { 1 } else { bs };
                let read_percent = pattern.read_percent(load.read_percent);
                runs.push(Run { pattern, read_percent, bs, depth });
            }
        }
    }
    runs
}

/// Whether any run writes to the units.
pub fn destroys(args: &Bench) -> bool {
    args.load.fill || runs(args).iter().any(|run| run.read_percent < 100)
}

/// One session of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Seat {
    /// Index of its URL.
    pub unit: usize,
    /// Number of its initiator, from 0.
    pub initiator: u16,
    /// Its number among the sessions of its unit.
    pub index: u64,
    /// Number of sessions with its unit.
    pub of: u64,
    /// Its number among all sessions.
    pub number: u64,
}

/// All sessions of a run, in an order that spreads the units over threads.
pub fn seats(args: &Bench) -> Vec<Seat> {
    let (units, initiators, sessions) = (args.urls.len(), args.load.initiators, args.load.sessions);
    let of = u64::from(initiators) * u64::from(sessions);
    let mut seats = Vec::new();
    for session in 0..sessions {
        for initiator in 0..initiators {
            for unit in 0..units {
                let index = u64::from(session) * u64::from(initiators) + u64::from(initiator);
                seats.push(Seat { unit, initiator, index, of, number: seats.len() as u64 });
            }
        }
    }
    seats
}

/// The places that a session works on: numbers of I/Os' lengths from the unit's beginning.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Part {
    pub first: u64,
    pub places: u64,
    /// Place at which sequential I/Os begin, counted from `first`.
    pub start: u64,
}

impl Part {
    /// A session's part of `places` places. With `alone`, no two sessions share a place. Otherwise
    /// all sessions share all places and begin at different ones.
    pub fn new(places: u64, seat: &Seat, alone: bool) -> Self {
        let cut = |index: u64| (u128::from(places) * u128::from(index) / u128::from(seat.of.max(1))) as u64;
        if alone {
            let first = cut(seat.index);
            return Self { first, places: cut(seat.index + 1) - first, start: 0 };
        }
        Self { first: 0, places, start: cut(seat.index) }
    }
}

/// Chooses the place of the next I/O, and whether it writes.
#[derive(Clone, Debug)]
pub struct Source {
    part: Part,
    random: Random,
    zipf: Option<Zipf>,
    is_random: bool,
    read_percent: u64,
    cursor: u64,
}

impl Source {
    /// For a session of `run`.
    pub fn new(run: &Run, part: Part, zipf: Option<f64>, seed: u64, seat: &Seat) -> Self {
        Self {
            part,
            random: Random::new(seed, seat.number),
            // All sessions of a unit have the same popular places.
            zipf: zipf.map(|theta| Zipf::new(part.places, theta, seed ^ seat.unit as u64)),
            is_random: run.pattern.is_random(),
            read_percent: run.read_percent.into(),
            cursor: part.start,
        }
    }

    /// Whether the next I/O writes.
    #[inline]
    pub fn writes(&mut self) -> bool {
        match self.read_percent {
            100 => false,
            0 => true,
            percent => self.random.below(100) >= percent,
        }
    }

    /// The next place, from the part's first.
    #[inline]
    pub fn place(&mut self) -> u64 {
        if self.is_random {
            return match &self.zipf {
                Some(zipf) => zipf.next(&mut self.random),
                None => self.random.below(self.part.places),
            };
        }
        let place = self.cursor;
        self.cursor = if place + 1 >= self.part.places { 0 } else { place + 1 };
        place
    }
}

/// The measured window of a load that begins at `now`.
pub fn window(now: Instant, args: &Bench) -> Window {
    Window::new(now, args.limits.warmup, args.limits.count.is_none().then_some(args.limits.time))
}

/// A session's share of `total`; the first sessions take the remainder.
pub fn share(total: u64, number: u64, of: u64) -> u64 {
    let of = of.max(1);
    total / of + u64::from(number < total % of)
}

/// A session's share of a rate; the sessions take turns.
pub fn pace(args: &Bench, seat: &Seat, sessions: usize, now: Instant) -> Option<Pace> {
    let sessions = sessions.max(1) as f64;
    args.load.rate.map(|rate| Pace::new(now, rate / sessions, seat.number as f64 / sessions))
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;
    use crate::args::{Cli, Command};

    fn args(words: &str) -> Bench {
        let words = format!("stag bench {words}");
        match Cli::try_parse_from(words.split(' ')).unwrap().command {
            Command::Bench(args) => *args,
            _ => unreachable!(),
        }
    }

    const A: &str = "iscsi://h/iqn.2026-01.org.example:a/0";
    const B: &str = "iscsi://h/iqn.2026-01.org.example:b/0";

    #[test]
    fn every_combination_is_a_run() {
        let args = args(&format!("{A} --bs 4k,8k --depth 1..4 --pattern read,randrw --read-percent 70"));
        let runs = runs(&args);
        assert_eq!(runs.len(), 12);
        assert_eq!((runs[0].bs, runs[0].depth, runs[0].read_percent), (4096, 1, 100));
        assert_eq!((runs[11].bs, runs[11].depth, runs[11].read_percent), (8192, 4, 70));
    }

    #[test]
    fn patterns_without_data_run_once_a_depth_whatever_the_sizes() {
        let found = runs(&args("nfs://h/data --bs 4k,8k --depth 1,2 --pattern lookup,create"));
        let found: Vec<_> =
            found.iter().map(|run| (run.pattern, run.bs, run.depth, run.read_percent)).collect();
        let of = |depth| [(Pattern::Lookup, 1, depth, 100), (Pattern::Create, 1, depth, 0)];
        assert_eq!(found, [of(1), of(2)].concat());
    }

    #[test]
    fn what_writes_is_known_before_it_does() {
        for (words, writes) in [
            ("--pattern read,randread", false),
            ("--pattern randread --fill", true),
            ("--pattern read,write", true),
            ("--pattern rw --read-percent 100", false),
            ("--pattern randrw", true),
        ] {
            assert_eq!(destroys(&args(&format!("{A} {words}"))), writes, "{words}");
        }
    }

    #[test]
    fn sessions_are_the_product_of_units_initiators_and_sessions() {
        let seats = seats(&args(&format!("{A} {B} --initiators 3 --sessions 2")));
        assert_eq!(seats.len(), 12);
        for unit in 0..2 {
            let mut indexes: Vec<u64> = seats.iter().filter(|s| s.unit == unit).map(|s| s.index).collect();
            indexes.sort_unstable();
            assert_eq!(indexes, [0, 1, 2, 3, 4, 5]);
        }
    }

    #[test]
    fn parts_that_stand_alone_cover_all_places_once() {
        for (places, of) in [(10u64, 3u64), (3, 7), (1 << 40, 5)] {
            let mut at = 0;
            for index in 0..of {
                let seat = Seat { unit: 0, initiator: 0, index, of, number: index };
                let part = Part::new(places, &seat, true);
                assert_eq!(part.first, at);
                at += part.places;
            }
            assert_eq!(at, places);
        }
    }

    #[test]
    fn sequential_sources_go_round_and_random_ones_stay_within() {
        let args = args(&format!("{A} --pattern read,randread,randrw"));
        let seat = Seat { unit: 0, initiator: 0, index: 1, of: 2, number: 1 };
        let runs = runs(&args);
        let part = Part::new(4, &seat, false);
        let mut source = Source::new(&runs[0], part, None, 1, &seat);
        let places: Vec<u64> = (0..6).map(|_| source.place()).collect();
        assert_eq!(places, [2, 3, 0, 1, 2, 3]);
        for zipf in [None, Some(1.1)] {
            let mut source = Source::new(&runs[2], part, zipf, 1, &seat);
            assert!((0..100).all(|_| source.place() < 4));
            let writes = (0..1000).filter(|_| source.writes()).count();
            assert!((400..600).contains(&writes), "{writes}");
        }
    }

    #[test]
    fn shares_add_up() {
        for (total, of) in [(10, 3), (2, 5), (0, 4), (7, 7)] {
            assert_eq!((0..of).map(|n| share(total, n, of)).sum::<u64>(), total);
        }
    }
}
