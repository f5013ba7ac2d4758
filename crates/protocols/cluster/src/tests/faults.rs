//! Pauses, kills, cuts, slow OSDs, and requests of an administrator.

use std::time::Duration;

use super::world::{CLIENTS, End, FAULTS, Happening, NODES, UNITS, World};
use crate::effect::{Event, Request};
use crate::id::{GatewayId, UnitId};

/// Something breaks, and the next fault gets its time.
pub fn one(world: &mut World) {
    let node = world.queue.chance.below(NODES);
    let now = world.queue.now;
    match world.queue.chance.below(13) {
        0..3 => {
            let long = world.queue.chance.percent(30);
            let length = if long {
                world.queue.chance.millis(5_000, 60_000)
            } else {
                world.queue.chance.millis(100, 5_000)
            };
            let paused = &mut world.nodes[node].paused;
            *paused = (*paused).max(now + length);
            world.queue.after(length, Happening::Wake { node });
        }
        3 => {
            let delay = world.queue.chance.millis(200, 8_000);
            world.nodes[node].paused = now;
            world.deferred[node].clear();
            world.nodes[node].dies(&mut world.queue, delay);
        }
        4..8 => {
            // Some outlast a watch.
            let longest = if world.queue.chance.percent(20) { 45_000 } else { 10_000 };
            let length = world.queue.chance.millis(100, longest);
            let other = match world.queue.chance.below(8) {
                0..3 => End::Rados,
                3..6 => End::Node((node + 1 + world.queue.chance.below(NODES - 1)) % NODES),
                _ => End::Client(world.queue.chance.below(CLIENTS)),
            };
            let ways = world.queue.chance.below(3);
            for (from, to) in
                [(End::Node(node), other), (other, End::Node(node))].into_iter().take(ways.max(1))
            {
                let (from, to) = if ways == 0 { (to, from) } else { (from, to) };
                world.queue.cuts.insert((from, to), now + length);
            }
        }
        8 => world.queue.slow = now + world.queue.chance.millis(500, 6_000),
        9 => {
            // Everything but Ceph, or Ceph too.
            let length = world.queue.chance.millis(1_000, 20_000);
            let all = world.queue.chance.percent(50);
            let others = (0..NODES).filter(|other| *other != node).map(End::Node);
            let others = others.chain((0..CLIENTS).map(End::Client));
            for other in others.chain(all.then_some(End::Rados)) {
                world.queue.cuts.insert((End::Node(node), other), now + length);
                world.queue.cuts.insert((other, End::Node(node)), now + length);
            }
        }
        10 | 11 => {
            let unit = UnitId(world.queue.chance.below(UNITS as usize) as u32);
            let to = GatewayId(world.queue.chance.below(NODES) as u16 + 1);
            asks(world, node, Request::Move(unit, to));
        }
        _ => {
            let asked = if world.queue.chance.percent(50) { Request::Spread } else { Request::Leave };
            asks(world, node, asked);
        }
    }
    let next = world.queue.chance.millis(100, 6_000);
    if now + next < FAULTS {
        world.queue.after(next, Happening::Fault);
    }
}

fn asks(world: &mut World, node: usize, asked: Request) {
    if world.queue.now >= world.nodes[node].paused {
        world.nodes[node].event(&mut world.queue, Event::Request { request: 0, asked });
    }
}

/// The end of all faults.
pub fn heal(world: &mut World) {
    world.queue.cuts.clear();
    world.queue.slow = Duration::ZERO;
    for node in 0..NODES {
        world.nodes[node].paused = world.queue.now;
        world.queue.after(Duration::ZERO, Happening::Wake { node });
    }
}
