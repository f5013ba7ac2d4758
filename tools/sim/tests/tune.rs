//! A session that tunes itself, in simulated time: what it reaches of a path, and how little it changes to get there. No figure here
//! depends on the machine's speed.

use sim::clock::{MS, SECOND};
use sim::wan::{Outcome, Path, Work, run};

/// 2 MB/s at 40 ms: 80 kB on their way, as 1 Gb/s at 23 ms have 2.9 MB, in a fraction of the bytes.
const FAR: Path = Path { rate: 2_000_000, rtt: 40 * MS, window: 1 << 20 };

const READS: Work =
    Work { write: false, io: 4096, depth: 200, initial_r2t: false, limit: None, time: 12 * SECOND };

fn ran(path: Path, work: Work) -> Outcome {
    run(path, work, 1).unwrap_or_else(|error| panic!("{path:?} {work:?}: {error}"))
}

#[test]
fn reads_and_writes_fill_nine_tenths_of_any_path() {
    let paths = [
        FAR,
        Path { rate: 4_000_000, rtt: 2 * MS, ..FAR },
        Path { rate: 1_000_000, rtt: 140 * MS, ..FAR },
        Path { rate: 500_000, rtt: 23 * MS, ..FAR },
    ];
    for path in paths {
        for write in [false, true] {
            let outcome = ran(path, Work { write, ..READS });
            let part = outcome.rate / path.rate as f64;
            assert!(part >= 0.9, "{path:?}, writes {write}: {part:.3} of the path, {outcome:?}");
            assert!(part <= 1.0, "{path:?}: {part:.3} of the path is more than there is");
        }
    }
}

#[test]
fn writes_that_have_to_be_asked_for_fill_four_fifths() {
    // Commands wait behind data on their way out, and R2Ts come by the bunch.
    let outcome = ran(FAR, Work { write: true, initial_r2t: true, ..READS });
    assert!(outcome.rate >= 0.8 * FAR.rate as f64, "{outcome:?}");
    // An R2T is a round trip more: it takes more commands than writes that go unasked.
    let unasked = ran(FAR, Work { write: true, ..READS });
    assert!(outcome.commands >= unasked.commands, "{outcome:?} {unasked:?}");
}

#[test]
fn a_session_that_keeps_to_few_commands_does_not_fill_it() {
    let few = ran(FAR, Work { limit: Some(4), ..READS });
    // Four commands a round trip, and not more.
    let four = 4.0 * f64::from(READS.io) / (FAR.rtt as f64 / SECOND as f64);
    assert!(few.rate <= 1.01 * four && few.rate >= 0.7 * four, "{few:?}");
    assert!(few.rate < 0.3 * FAR.rate as f64);
}

#[test]
fn it_comes_to_rest() {
    let minute = ran(FAR, Work { time: 60 * SECOND, ..READS });
    assert!(minute.changes <= 20, "{minute:?}");
    // No more than four times of what the path holds.
    let holds = (FAR.rate * FAR.rtt / SECOND / u64::from(READS.io)) as usize;
    assert!(minute.commands <= 4 * holds, "{minute:?}");
}

#[test]
fn links_that_carry_too_little_get_company() {
    // A link has 8 kB on their way one way, where the path has room for 40 kB: one fills a fifth of it.
    let narrow = Path { window: 8_000, ..FAR };
    let one = ran(narrow, Work { limit: Some(200), ..READS });
    assert!(one.rate <= 0.25 * FAR.rate as f64, "{one:?}");
    let tuned = ran(narrow, Work { time: 60 * SECOND, ..READS });
    assert_eq!(tuned.connections, 4, "{tuned:?}");
    assert!(tuned.rate >= 2.5 * one.rate, "{tuned:?} {one:?}");
}

#[test]
fn the_same_seed_is_the_same_run() {
    let [first, second] = [ran(FAR, READS), ran(FAR, READS)];
    assert_eq!((first.ended, first.changes, first.commands), (second.ended, second.changes, second.commands));
}
