//! The shipped machine over a model of RADOS, from a seed.
//!
//! - `scenes`: single scenes in which Ceph answers at once.
//! - `chance`: the seed's numbers.
//! - `rados`: OSDs with map epochs of their own, monitors, locks, watches and the blocklist.
//! - `node`: the driver of one gateway: what `stag` does around the machine, peer link included.
//! - `client`: an initiator that writes numbered values, reads, and gives silent paths up.
//! - `checker`: what must hold after each step.
//! - `faults`: pauses, kills, cuts, slow OSDs, and requests of an administrator.
//! - `world`: the queue of what happens, and how it ends.

mod chance;
mod checker;
mod client;
mod faults;
mod node;
mod rados;
mod scenes;
mod world;

use crate::mistake::Mistake;
use world::{Stats, World};

fn all_hold(seeds: impl Iterator<Item = u64>, steps: u64) -> Stats {
    let mut total = Stats::default();
    for seed in seeds {
        if total.steps >= steps {
            break;
        }
        match World::run(seed, Mistake::None) {
            Ok(stats) => total.add(&stats),
            Err(wrong) => panic!("seed {seed}: {wrong}"),
        }
    }
    total
}

/// For longer, and from other seeds:
/// `CLUSTER_FROM=5000 CLUSTER_STEPS=100000000 cargo test -p cluster --lib -- --nocapture a_million`
#[test]
fn a_million_steps_break_no_rule() {
    let number = |name: &str, default| {
        std::env::var(name).ok().and_then(|value| value.parse::<u64>().ok()).unwrap_or(default)
    };
    let steps = number("CLUSTER_STEPS", 1_000_000);
    let total = all_hold(number("CLUSTER_FROM", 1_000).., steps);
    println!("{total:?}");
    assert!(total.steps >= steps);
    // A world in which nothing happens proves nothing.
    assert!(total.fences > 10 && total.moves > 10 && total.acknowledged > 10_000, "{total:?}");
}

/// Some seed finds that the mistake breaks one of these rules. `first` saves time: seeds before it
/// did not find it.
fn is_found(mistake: Mistake, first: u64, rules: &[&str]) {
    for seed in first..first + 400 {
        match World::run(seed, mistake) {
            Err(wrong) if rules.iter().any(|rule| wrong.contains(rule)) => {
                return println!("{mistake:?} is found by seed {seed}: {wrong}");
            }
            _ => {}
        }
    }
    panic!("no seed finds {mistake:?}");
}

#[test]
fn a_new_owner_without_the_barrier_is_found() {
    is_found(Mistake::NoBarrier, 10, &["not the owner"]);
}

#[test]
fn watchers_taken_for_members_are_found() {
    is_found(Mistake::WatchersAsMembers, 485, &["not the owner", "gateways execute"]);
}

#[test]
fn a_comparison_of_two_clocks_is_found() {
    is_found(Mistake::ComparingClocks, 10, &["not the owner"]);
}

#[test]
fn a_takeover_without_a_blocklist_entry_is_found() {
    is_found(Mistake::NoBlocklist, 17, &["not the owner"]);
}

#[test]
fn a_lease_that_is_the_only_guard_is_found() {
    is_found(Mistake::LeaseWithoutGuard, 26, &["not the owner"]);
}
