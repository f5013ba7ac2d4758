//! Both ends under losses of the connection: every forwarding ends once, and truly.

use super::world::World;
use crate::forwarder::Final;
use crate::message::NotBegun;

/// A short life: two nexuses, some commands, and all that may happen to them.
fn life(seed: u64, cuts: Vec<(Option<usize>, Option<usize>)>, steps: usize) -> World {
    let mut world = World::new(seed);
    world.cuts = cuts;
    world.attach(1);
    world.attach(2);
    world.call();
    for _ in 0..steps {
        world.step();
    }
    world
}

#[test]
fn without_a_loss_every_command_ends_with_all_of_its_data() {
    let (mut outcomes, mut others) = (0, 0);
    for seed in 0..30 {
        let mut world = life(seed, Vec::new(), 600);
        world.settle();
        assert_eq!(world.losses, 0);
        let is_outcome = |end: &&Final| matches!(end, Final::Outcome { whole: true, .. });
        let of_seed = world.ends.values().filter(is_outcome).count();
        outcomes += of_seed;
        others += world.ends.len() - of_seed;
    }
    assert!(outcomes > 100 && others > 20, "{outcomes} outcomes, {others} others");
}

/// The same life, cut after each byte to the owner, and after each byte to the forwarder.
#[test]
fn a_loss_at_every_byte_loses_no_end() {
    let (mut not_received, mut ended, mut outcomes) = (0, 0, 0);
    for seed in [3, 8, 21] {
        let whole = life(seed, Vec::new(), 300);
        let (up, down) = whole.sent();
        let ups = (0..=up).map(|at| (Some(at), None));
        let downs = (0..=down).map(|at| (None, Some(at)));
        for cut in ups.chain(downs) {
            let mut world = life(seed, vec![cut], 300);
            world.settle();
            for end in world.ends.values() {
                match end {
                    Final::NotBegun(NotBegun::NotReceived) => not_received += 1,
                    Final::Ended => ended += 1,
                    Final::Outcome { .. } => outcomes += 1,
                    _ => {}
                }
            }
        }
    }
    assert!(not_received > 500 && ended > 500 && outcomes > 5000, "{not_received} {ended} {outcomes}");
}

#[test]
fn many_losses_in_a_row_lose_no_end() {
    let mut losses = 0;
    for seed in 0..300 {
        let mut chance = super::world::Chance(seed ^ 0xabcd);
        let cut = |chance: &mut super::world::Chance| match chance.below(3) {
            0 => (Some(chance.below(1500) as usize), None),
            1 => (None, Some(chance.below(1500) as usize)),
            _ => (Some(chance.below(3000) as usize), Some(chance.below(3000) as usize)),
        };
        let cuts = (0..6).map(|_| cut(&mut chance)).collect();
        let mut world = life(seed, cuts, 1500);
        world.settle();
        losses += world.losses;
    }
    assert!(losses > 600, "{losses}");
}

#[test]
fn the_fence_of_an_owner_leaves_nothing_without_an_end() {
    let (mut unknown, mut never) = (0, 0);
    for seed in 0..60 {
        let mut world = life(seed, Vec::new(), 300);
        if seed % 2 == 0 {
            world.lose();
        }
        let (all, of_them) = world.fence();
        unknown += all;
        never += of_them;
    }
    // Some of them had begun, and others not: the forwarder cannot tell.
    assert!(never > 0 && never < unknown, "{never} of {unknown}");
}
