//! The shipped server and client in simulated worlds: no seed finds anything, and each is one run.

use std::time::{Duration, Instant};

use sim::{Sabotage, shipped};

/// Seeds of a normal run, if time allows.
const SEEDS: u64 = 200;
/// No new seed is begun after this.
const TIME: Duration = Duration::from_secs(25);

#[test]
fn reads_return_what_was_written_whatever_breaks() {
    if let Some(seed) = std::env::var("SIM_SEED").ok().and_then(|seed| seed.parse().ok()) {
        shipped::run(seed, true).unwrap_or_else(|failure| panic!("{failure}"));
        return;
    }
    let began = Instant::now();
    let (mut seeds, mut reconnects, mut recovered, mut restarts, mut aborted) = (0, 0, 0, 0, 0);
    for seed in 0..SEEDS {
        if began.elapsed() > TIME {
            break;
        }
        let report = shipped::run(seed, false).unwrap_or_else(|failure| panic!("{failure}"));
        reconnects += report.reconnects;
        recovered += report.recovered;
        restarts += report.restarts;
        aborted += report.aborted;
        seeds += 1;
    }
    // Runs in which nothing breaks prove nothing.
    let broken = (reconnects, recovered, restarts, aborted);
    assert!(
        seeds < 30
            || reconnects > seeds && recovered > seeds / 4 && restarts > seeds / 4 && aborted > seeds / 4,
        "{seeds}: {broken:?}"
    );
}

#[test]
fn a_seed_repeats_itself() {
    for seed in 1000..1012 {
        let first = shipped::run(seed, false).unwrap_or_else(|failure| panic!("{failure}"));
        let second = shipped::run(seed, false).unwrap_or_else(|failure| panic!("{failure}"));
        assert_eq!(first, second, "seed {seed}");
    }
}

#[test]
fn no_waiting_command_reaches_the_disk_that_replaces_its_own() {
    let mut good = 0;
    for seed in 0..60 {
        good += shipped::replacement::run(seed, false).unwrap_or_else(|failure| panic!("{failure}")).commands;
    }
    assert!(good > 60, "{good}");
}

#[test]
fn no_write_is_done_after_its_abort_was_answered() {
    let mut aborted = 0;
    for seed in 0..100 {
        aborted += shipped::aborts::run(seed, false).unwrap_or_else(|failure| panic!("{failure}")).aborted;
    }
    assert!(aborted > 500, "{aborted}");
}

/// Runs seeds, in which commands must be refused and servers be killed.
fn refusals(seeds: u64, run: fn(u64, bool) -> Result<shipped::Report, Box<shipped::Failure>>) {
    let (mut refused, mut restarts) = (0, 0);
    for seed in 0..seeds {
        let report = run(seed, false).unwrap_or_else(|failure| panic!("{failure}"));
        refused += report.refused;
        restarts += report.restarts;
    }
    assert!(refused > 5 * seeds && restarts > seeds / 20, "{refused} refused, {restarts} restarts");
}

#[test]
fn reservations_conflict_exactly_when_spc_says_so() {
    refusals(200, shipped::reservations::run);
}

#[test]
fn copies_reach_what_their_session_reaches_and_nothing_else() {
    refusals(150, shipped::copies::run);
}

/// What the first of some seeds finds of a fault that was planted.
fn found(sabotage: Sabotage) -> String {
    let failures: Vec<_> = (0..60)
        .filter_map(|seed| shipped::run_sabotaged(seed, sabotage).err())
        .map(|failure| failure.what)
        .collect();
    assert!(failures.len() > 3, "{sabotage:?} was found {} times only", failures.len());
    failures.join("\n")
}

#[test]
fn writes_that_a_store_loses_are_found() {
    assert!(found(Sabotage::LostWrites).contains("saw in sector"));
}

#[test]
fn syncs_that_a_store_only_pretends_are_found() {
    assert!(found(Sabotage::LyingSyncs).contains("saw in sector"));
}

#[test]
fn a_write_that_never_ends_is_found() {
    found(Sabotage::EndlessWrite);
}
