//! Seeds that every run of the tests goes through, and the proof that a seed repeats.

use std::time::{Duration, Instant};

use sim::Sabotage;
use sim::plan::Plan;

/// Seeds of a normal run, if time allows.
const SEEDS: u64 = 400;
/// No new seed is begun after this.
const TIME: Duration = Duration::from_secs(25);

#[test]
fn whatever_goes_wrong_reads_return_what_was_written_and_every_command_ends_once() {
    if let Some(seed) = std::env::var("SIM_SEED").ok().and_then(|seed| seed.parse().ok()) {
        if let Err(failure) = sim::run(seed, true) {
            panic!("{failure}");
        }
        return;
    }
    let began = Instant::now();
    let (mut seeds, mut losses, mut restarts) = (0, 0, 0);
    let (mut connections, mut reassigns, mut landed, mut fetched) = (0, 0, 0, 0);
    for seed in 0..SEEDS {
        if began.elapsed() > TIME {
            break;
        }
        match sim::run(seed, false) {
            Ok(report) => {
                (losses, restarts) = (losses + report.losses, restarts + report.restarts);
                let over_rdma = Plan::new(seed).target.iser.is_some();
                landed += u64::from(report.landed > 0 && !over_rdma);
                fetched += u64::from(report.landed > 0 && over_rdma);
                (connections, reassigns) = (connections + report.connections, reassigns + report.reassigns);
            }
            Err(failure) => panic!("{failure}"),
        }
        seeds += 1;
    }
    // Runs in which nothing goes wrong prove nothing.
    assert!(seeds < 50 || losses > seeds && restarts > seeds / 4, "{seeds} {losses} {restarts}");
    assert!(seeds < 50 || landed > seeds / 20 && fetched > seeds / 20, "{seeds} {landed} {fetched}");
    assert!(seeds < 50 || connections > seeds / 4 && reassigns > seeds / 5, "{connections} {reassigns}");
}

#[test]
fn a_third_of_the_worlds_speaks_iser_with_every_kind_of_queue_pair() {
    let setups: Vec<_> = (0..SEEDS).filter_map(|seed| Plan::new(seed).target.iser).collect();
    assert!((100..180).contains(&setups.len()), "{} of {SEEDS} worlds", setups.len());
    for wanted in [true, false] {
        assert!(setups.iter().any(|setup| setup.crc == wanted));
        assert!(setups.iter().any(|setup| setup.markers == wanted));
    }
}

#[test]
fn a_seed_repeats_itself_to_the_last_line() {
    for seed in 1000..1025 {
        let reports = [sim::run(seed, false), sim::run(seed, false)];
        let [Ok(first), Ok(second)] = reports else { panic!("seed {seed} fails") };
        assert_eq!(first, second);
        assert!(first.lines > 100);
    }
}

/// What the first of some seeds finds of a fault that was planted.
fn found(sabotage: Sabotage) -> String {
    found_in(40, sabotage)
}

fn found_in(seeds: u64, sabotage: Sabotage) -> String {
    let runs = (0..seeds).map(|seed| sim::run_sabotaged(seed, sabotage));
    let failures: Vec<_> = runs.filter_map(Result::err).collect();
    assert!(failures.len() > 3, "{sabotage:?} was found {} times only", failures.len());
    failures.into_iter().map(|failure| failure.what + "\n").collect()
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
fn at_level_2_links_that_break_cost_connections_and_no_sessions() {
    let (mut connections, mut reassigns, mut losses) = (0, 0, 0);
    for report in (20_000..).filter_map(sim::run_with_cuts).take(12) {
        let report = report.unwrap_or_else(|failure| panic!("{failure}"));
        losses += report.losses;
        (connections, reassigns) = (connections + report.connections, reassigns + report.reassigns);
    }
    assert!(connections > 20 && reassigns > 20 && losses == 0, "{connections} {reassigns} {losses}");
}

#[test]
fn data_that_changes_when_its_read_moves_to_another_connection_is_found() {
    // Few reads of this length are sent by reference and move as well.
    assert!(found_in(200, Sabotage::SpoiltMoves).contains("saw in sector"));
}

#[test]
fn data_that_lands_damaged_is_found() {
    assert!(found_in(120, Sabotage::SpoiltLandings).contains("saw in sector"));
}

#[test]
fn data_that_lands_damaged_over_rdma_is_found() {
    let over_rdma = (0..200).filter(|seed| Plan::new(*seed).target.iser.is_some());
    let runs = over_rdma.map(|seed| sim::run_sabotaged(seed, Sabotage::SpoiltLandings));
    let failures: Vec<_> = runs.filter_map(Result::err).collect();
    assert!(failures.len() > 3, "it was found {} times only", failures.len());
    assert!(failures.iter().any(|failure| failure.what.contains("saw in sector")));
}

#[test]
fn a_write_that_never_ends_is_found() {
    assert!(found(Sabotage::EndlessWrite).contains("nothing has ended"));
}
