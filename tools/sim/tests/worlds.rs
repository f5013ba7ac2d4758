//! Seeds that every run of the tests executes: none finds a defect, each repeats, and planted
//! faults are found.

use std::time::{Duration, Instant};

use sim::plan::{Change, Plan, Sabotage, Trouble};
use sim::{Failure, Report, aborts, copies, gateways, nfs_state, replacement, reservations, tasks, world};

/// Seeds of a normal run, if time allows.
const SEEDS: u64 = 200;
/// Time after which no new seed is begun.
const TIME: Duration = Duration::from_secs(25);

#[test]
fn reads_return_what_was_written_whatever_breaks() {
    if let Some(seed) = std::env::var("SIM_SEED").ok().and_then(|seed| seed.parse().ok()) {
        world::run(seed, true).unwrap_or_else(|failure| panic!("{failure}"));
        return;
    }
    let began = Instant::now();
    let (mut seeds, mut reconnects, mut recovered, mut restarts, mut aborted, mut touched) =
        (0, 0, 0, 0, 0, 0);
    for seed in 0..SEEDS {
        if began.elapsed() > TIME {
            break;
        }
        let report = world::run(seed, false).unwrap_or_else(|failure| panic!("{failure}"));
        reconnects += report.reconnects;
        recovered += report.recovered;
        restarts += report.restarts;
        aborted += report.aborted;
        touched += report.touched;
        seeds += 1;
    }
    // Runs in which nothing breaks prove nothing.
    let broken = (reconnects, recovered, restarts, aborted, touched);
    assert!(
        seeds < 30
            || reconnects > seeds
                && recovered > seeds / 4
                && restarts > seeds / 4
                && aborted > seeds / 4
                && touched > seeds,
        "{seeds}: {broken:?}"
    );
}

#[test]
fn a_seed_repeats_itself() {
    for seed in 1000..1012 {
        let first = world::run(seed, false).unwrap_or_else(|failure| panic!("{failure}"));
        let second = world::run(seed, false).unwrap_or_else(|failure| panic!("{failure}"));
        assert_eq!(first, second, "seed {seed}");
    }
}

/// A path so slow that a ping's answer waits for seconds behind the data of RDMA Reads.
#[test]
fn an_initiator_whose_data_still_comes_over_iser_is_not_given_up() {
    world::run(4146, false).unwrap_or_else(|failure| panic!("{failure}"));
}

#[test]
fn at_level_2_links_that_break_cost_connections_and_no_sessions() {
    let (mut recovered, mut reconnects) = (0, 0);
    let plans = (20_000..).filter_map(|seed| Some((seed, Plan::with_cuts(seed)?)));
    for (seed, plan) in plans.take(12) {
        let report = world::run_as(seed, plan).unwrap_or_else(|failure| panic!("{failure}"));
        recovered += report.recovered;
        reconnects += report.reconnects;
    }
    assert!(recovered > 20 && reconnects == 0, "{recovered} {reconnects}");
}

#[test]
fn no_waiting_command_reaches_the_disk_that_replaces_its_own() {
    let mut good = 0;
    for seed in 0..60 {
        good += replacement::run(seed, false).unwrap_or_else(|failure| panic!("{failure}")).commands;
    }
    assert!(good > 60, "{good}");
}

/// How many of 60 seeds report a planted fault in these words.
fn reports(run: fn(u64) -> Result<Report, Box<Failure>>, words: &str) -> usize {
    let failures: Vec<_> = (0..60).filter_map(|seed| run(seed).err()).map(|failure| failure.what).collect();
    failures.iter().filter(|what| what.contains(words)).count()
}

#[test]
fn a_replacement_that_waiting_commands_do_not_notice_is_found() {
    let found = reports(replacement::run_unnoticed, "is on the new disk");
    assert!(found > 10, "found {found} times");
}

#[test]
fn no_write_is_done_after_its_abort_was_answered() {
    let mut aborted = 0;
    for seed in 0..100 {
        aborted += aborts::run(seed, false).unwrap_or_else(|failure| panic!("{failure}")).aborted;
    }
    assert!(aborted > 500, "{aborted}");
}

/// Runs seeds, in which commands must be refused and servers be killed.
fn refusals(seeds: u64, run: fn(u64, bool) -> Result<Report, Box<Failure>>) {
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
    refusals(200, reservations::run);
}

#[test]
fn copies_reach_what_their_session_reaches_and_nothing_else() {
    refusals(150, copies::run);
}

#[test]
fn copies_that_reach_units_by_a_name_alone_are_found() {
    let found = reports(copies::run_by_name, "must not reach");
    assert!(found > 5, "found {found} times");
}

#[test]
fn what_an_nfs_client_holds_nobody_else_gets_and_a_restart_gives_back() {
    let (mut refused, mut restarts, mut reclaimed) = (0, 0, 0);
    for seed in 0..200 {
        let report = nfs_state::run(seed, false).unwrap_or_else(|failure| panic!("{failure}"));
        refused += report.refused;
        restarts += report.restarts;
        reclaimed += report.reclaimed;
        if seed < 5 {
            assert_eq!(nfs_state::run(seed, false).ok(), Some(report), "seed {seed}");
        }
    }
    assert!(refused > 1000 && restarts > 50 && reclaimed > 100, "{refused} {restarts} {reclaimed}");
}

#[test]
fn an_nfs_server_that_forgets_its_clients_is_found() {
    for (sabotage, seen) in [
        (nfs_state::Sabotage::NoRecords, "cannot reclaim"),
        (nfs_state::Sabotage::NothingCarried, "a session is lost"),
    ] {
        let failures = (0..60).filter_map(|seed| nfs_state::run_sabotaged(seed, sabotage).err());
        let found = failures.filter(|failure| failure.what.contains(seen)).count();
        assert!(found > 10, "{sabotage:?} was found {found} times");
    }
}

#[test]
fn a_disk_on_a_file_returns_what_was_written_whatever_breaks() {
    let (mut restarts, mut commands) = (0, 0);
    for seed in 0..100 {
        let report = world::run_on_files(seed, false).unwrap_or_else(|failure| panic!("{failure}"));
        restarts += report.restarts;
        commands += report.commands;
        if seed < 5 {
            assert_eq!(world::run_on_files(seed, false).ok(), Some(report), "seed {seed}");
        }
    }
    assert!(restarts > 50 && commands > 5000, "{restarts} restarts, {commands} commands");
}

/// Failures that 60 seeds report of a planted fault, one a line.
fn found(sabotage: Sabotage) -> String {
    found_in(Plan::new, sabotage)
}

fn found_in(plan: fn(u64) -> Plan, sabotage: Sabotage) -> String {
    let failures: Vec<_> = (0..60)
        .filter_map(|seed| world::run_sabotaged(seed, plan(seed), sabotage).err())
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
fn data_that_is_damaged_without_a_digest_is_found() {
    assert!(found(Sabotage::DamagedData).contains("saw in sector"));
}

#[test]
fn syncs_that_a_file_store_only_pretends_are_found() {
    assert!(found_in(Plan::on_files, Sabotage::LyingSyncs).contains("saw in sector"));
}

/// The plan of a seed in which another server follows a failed flush that no administrator
/// acknowledges.
fn with_a_forgotten_failure(seed: u64) -> Option<Plan> {
    let mut plan = Plan::on_files(seed);
    let fails = |trouble: &Trouble| matches!(trouble, Trouble::SyncError);
    let at = plan.troubles.iter().find(|(_, trouble)| fails(trouble))?.0;
    let kills = |(when, trouble): &(u64, Trouble)| *when > at + 5 && matches!(trouble, Trouble::Kill { .. });
    let follows = plan.troubles.iter().any(kills)
        || plan.changes.iter().any(|(when, change)| *when > at + 5 && *change == Change::TakeOver);
    plan.troubles.retain(|(_, trouble)| !matches!(trouble, Trouble::Acknowledge));
    (plan.disk.write_cache && follows).then_some(plan)
}

#[test]
fn a_failed_flush_that_the_next_server_forgets_is_found() {
    let plans = (0..2000).filter_map(|seed| Some((seed, with_a_forgotten_failure(seed)?)));
    let mut failures =
        plans.filter_map(|(seed, plan)| world::run_sabotaged(seed, plan, Sabotage::ForgottenFailures).err());
    assert!(failures.any(|failure| failure.what.contains("saw in sector")));
}

#[test]
fn commands_keep_the_order_of_their_attributes_and_are_executed_once() {
    let (mut commands, mut recovered) = (0, 0);
    for seed in 0..150 {
        let report = tasks::run(seed, false).unwrap_or_else(|failure| panic!("{failure}"));
        commands += report.commands;
        recovered += report.recovered;
    }
    assert!(commands > 7000 && recovered > 3, "{commands} commands, {recovered} connections recovered");
}

#[test]
fn attributes_that_a_target_ignores_are_found() {
    let failures: Vec<_> = (0..20).filter_map(|seed| tasks::run_without_order(seed).err()).collect();
    let found = failures.iter().filter(|failure| failure.what.contains("not in order")).count();
    assert!(found > 10, "found {found} times");
}

#[test]
fn a_write_that_never_ends_is_found() {
    found(Sabotage::EndlessWrite);
}

#[test]
fn gateways_are_one_to_their_initiators_whatever_breaks() {
    let (mut commands, mut restarts, mut given_up, mut refused) = (0, 0, 0, 0);
    for seed in 0..40 {
        let report = gateways::run(seed, false).unwrap_or_else(|failure| panic!("{failure}"));
        commands += report.commands;
        restarts += report.restarts;
        given_up += report.aborted;
        refused += report.refused;
        if seed < 3 {
            assert_eq!(gateways::run(seed, false).ok(), Some(report), "seed {seed}");
        }
    }
    let told = format!("{commands} {restarts} {given_up} {refused}");
    assert!(commands > 20_000 && restarts > 40 && given_up > 40 && refused > 1000, "{told}");
}

/// Some seed finds a gateway's mistake, in one of these words. `seeds` saves time: those before its
/// first did not find it.
fn finds(mistake: gateways::Mistake, mut seeds: std::ops::Range<u64>, words: &[&str]) {
    let is_found = |seed: &u64| {
        let failure = gateways::run_mistaken(*seed, mistake).err();
        failure.is_some_and(|failure| words.iter().any(|one| failure.what.contains(one)))
    };
    let found = seeds.find(is_found);
    println!("{mistake:?} is found by seed {found:?}");
    assert!(found.is_some(), "no seed finds {mistake:?}");
}

#[test]
fn a_cluster_that_refuses_no_fenced_gateway_is_found() {
    finds(gateways::Mistake::NoFence, 0..20, &["landed"]);
}

#[test]
fn a_new_owner_without_the_newest_map_is_found() {
    finds(gateways::Mistake::NoBarrier, 0..20, &["landed", "returned"]);
}

#[test]
fn commands_of_initiators_that_have_gone_are_found() {
    finds(gateways::Mistake::NotFresh, 0..20, &["landed"]);
}

#[test]
fn reservations_that_a_new_owner_forgets_are_found() {
    finds(gateways::Mistake::Forgetful, 0..20, &["instead of one of"]);
}
