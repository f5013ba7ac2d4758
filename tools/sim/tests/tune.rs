//! A session that tunes itself, in simulated time: the part of a path that it fills, and how few
//! changes it makes for that. No figure here depends on the machine's speed.

use std::time::Duration;

use sim::wan::{Outcome, Path, Work, run};

/// 1 MB/s at 80 ms: 80 kB in flight, as 1 Gb/s at 23 ms have 2.9 MB, in a fraction of the bytes.
const FAR: Path = Path { rate: 1_000_000, rtt: Duration::from_millis(80), window: 1 << 20 };

const READS: Work = Work {
    write: false,
    io: 4096,
    depth: 200,
    initial_r2t: false,
    limit: None,
    time: Duration::from_secs(12),
};

fn ran(path: Path, work: Work) -> Outcome {
    run(path, work, 1).unwrap_or_else(|error| panic!("{path:?} {work:?}: {error}"))
}

#[test]
fn reads_and_writes_fill_nine_tenths_of_any_path() {
    let paths = [
        FAR,
        Path { rate: 2_000_000, rtt: Duration::from_millis(5), ..FAR },
        Path { rate: 500_000, rtt: Duration::from_millis(140), ..FAR },
        Path { rate: 500_000, rtt: Duration::from_millis(23), ..FAR },
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
fn solicited_writes_reach_nine_tenths_of_what_the_deepest_queue_does() {
    // Commands wait behind outgoing data, and R2Ts come in bunches: no depth fills the whole path.
    let work = Work { write: true, initial_r2t: true, ..READS };
    let deepest = ran(FAR, Work { limit: Some(128), ..work });
    assert!(deepest.rate >= 0.8 * FAR.rate as f64, "{deepest:?}");
    let tuned = ran(FAR, work);
    assert!(tuned.rate >= 0.9 * deepest.rate, "{tuned:?} {deepest:?}");
    // An R2T costs a round trip more, so it takes more commands than unsolicited writes.
    let unsolicited = ran(FAR, Work { initial_r2t: false, ..work });
    assert!(tuned.commands >= unsolicited.commands, "{tuned:?} {unsolicited:?}");
}

#[test]
fn a_session_that_keeps_to_few_commands_does_not_fill_it() {
    let few = ran(FAR, Work { limit: Some(4), ..READS });
    // Four commands a round trip, and not more.
    let four = 4.0 * f64::from(READS.io) / FAR.rtt.as_secs_f64();
    assert!(few.rate <= 1.01 * four && few.rate >= 0.7 * four, "{few:?}");
    assert!(few.rate < 0.3 * FAR.rate as f64);
}

#[test]
fn it_comes_to_rest() {
    let minute = ran(FAR, Work { time: Duration::from_secs(60), ..READS });
    assert!(minute.changes <= 20, "{minute:?}");
    // No more than four times of what the path holds.
    let holds = (FAR.rate as f64 * FAR.rtt.as_secs_f64() / f64::from(READS.io)) as usize;
    assert!(minute.commands <= 4 * holds, "{minute:?}");
}

#[test]
fn links_that_carry_too_little_get_company() {
    // A link has 8 kB on their way one way, where the path has room for 40 kB: one fills a fifth of
    // it.
    let narrow = Path { window: 8_000, ..FAR };
    let one = ran(narrow, Work { limit: Some(200), ..READS });
    assert!(one.rate <= 0.25 * FAR.rate as f64, "{one:?}");
    let tuned = ran(narrow, Work { time: Duration::from_secs(60), ..READS });
    assert_eq!(tuned.connections, 4, "{tuned:?}");
    assert!(tuned.rate >= 2.5 * one.rate, "{tuned:?} {one:?}");
}

#[test]
fn the_same_seed_is_the_same_run() {
    let [first, second] = [ran(FAR, READS), ran(FAR, READS)];
    assert_eq!((first.ended, first.changes, first.commands), (second.ended, second.changes, second.commands));
}
