//! The faults: machines pause and die, links are cut in one or both directions, parts of the
//! cluster are slow or silent. Meanwhile an administrator moves units.

use std::sync::Mutex;
use std::time::Duration;

use cluster::{GatewayId, Request, UnitId};
use rados::model::{Cluster, OSDS};
use runtime::sim::{self, Machine};

use super::judge::Judge;
use super::node::Node;
use super::{IMAGES, NODES, lock};
use crate::random::Rng;
use crate::verdict::Verdict;

/// The machine of all initiators.
const CLIENTS: Machine = Machine(0);
/// Duration of the faults.
const FAULTS: Duration = Duration::from_secs(60);

/// Which faults there are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Which {
    Any,
    /// Initiators cannot reach a gateway for longer than they wait for it. All else works.
    DeafGateways,
    /// A gateway's operations reach the cluster late, after others have taken its units.
    LateGateways,
}

/// Breaks things for a while, and mends all. Returns how many gateways were killed.
pub(super) async fn cause(
    which: Which,
    nodes: &mut [Node],
    cluster: &Cluster,
    judge: &Mutex<Judge>,
    verdict: &Verdict,
    rng: &mut Rng,
) -> Result<u64, String> {
    let end = runtime::clock() + FAULTS;
    let mut killed = 0;
    // Frequent faults in some worlds, long undisturbed ones in others.
    let pause = rng.pick(&[2_000, 8_000, 25_000]);
    runtime::sleep(Duration::from_secs(2)).await;
    while runtime::clock() < end {
        if let Some(what) = lock(judge).wrong().or(verdict.wrong()) {
            return Err(what);
        }
        for node in nodes.iter_mut().filter(|node| !node.is_running()) {
            if rng.chance(500) {
                verdict.note(format_args!("gateway {} starts again", node.number));
                node.start()?;
            }
        }
        let at = rng.index(NODES);
        let wait = match which {
            Which::Any => {
                let left = end.saturating_duration_since(runtime::clock());
                killed += one(nodes, at, cluster, left, verdict, rng).await;
                rng.between(100, pause)
            }
            Which::DeafGateways => {
                let long = rng.between(12_000, 20_000);
                sim::cut(CLIENTS, nodes[at].machine(), Duration::from_millis(long));
                long + 2_000
            }
            Which::LateGateways => {
                let long = rng.between(3_000, 9_000);
                cluster.cut(nodes[at].machine(), true, Duration::from_millis(long));
                long + 2_000
            }
        };
        runtime::sleep(Duration::from_millis(wait)).await;
    }
    cluster.heal();
    for one in std::iter::once(CLIENTS).chain(nodes.iter().map(Node::machine)) {
        sim::pause(one, Duration::ZERO);
        for other in std::iter::once(CLIENTS).chain(nodes.iter().map(Node::machine)) {
            sim::cut(one, other, Duration::ZERO);
        }
    }
    for node in nodes.iter_mut().filter(|node| !node.is_running()) {
        node.start()?;
    }
    Ok(killed)
}

/// Breaks one thing of a gateway's, for no longer than `left`. Returns 1 if it is a kill.
async fn one(
    nodes: &mut [Node],
    at: usize,
    cluster: &Cluster,
    left: Duration,
    verdict: &Verdict,
    rng: &mut Rng,
) -> u64 {
    let machine = nodes[at].machine();
    let long = Duration::from_millis(match rng.chance(250) {
        true => rng.between(5_000, 60_000),
        false => rng.between(100, 6_000),
    })
    .min(left);
    let is_running = nodes[at].is_running();
    let choice = rng.below(20);
    verdict.note(format_args!("gateway {}: fault {choice} for {long:?}", at + 1));
    match choice {
        0..5 if is_running => sim::pause(machine, long),
        5..8 if is_running => {
            nodes[at].kill().await;
            return 1;
        }
        8..11 => {
            // From the cluster, in one direction or both.
            let ways = rng.below(3);
            for sends in [true, false] {
                if ways == 2 || (ways == 0) == sends {
                    cluster.cut(machine, sends, long);
                }
            }
        }
        11..14 => {
            let others = [nodes[(at + 1) % NODES].machine(), nodes[(at + 2) % NODES].machine()];
            let other = if rng.chance(500) { CLIENTS } else { rng.pick(&others) };
            let ways = rng.below(3);
            if ways != 1 {
                sim::cut(machine, other, long);
            }
            if ways != 0 {
                sim::cut(other, machine, long);
            }
        }
        14 => {
            // From everything, or from all but the cluster.
            let others = nodes.iter().map(Node::machine).filter(|other| *other != machine);
            for other in others.chain([CLIENTS]) {
                sim::cut(machine, other, long);
                sim::cut(other, machine, long);
            }
            if rng.chance(500) {
                cluster.cut(machine, true, long);
                cluster.cut(machine, false, long);
            }
        }
        15 => match rng.below(4) {
            0 => cluster.slow(long),
            1 => cluster.stop_osd(rng.index(OSDS), long.min(Duration::from_secs(20))),
            2 => cluster.silence(long),
            _ => cluster.lose_watches(machine),
        },
        16 => {
            let links = sim::links();
            if !links.is_empty() {
                sim::reset(links[rng.index(links.len())]);
            }
        }
        17 if is_running => {
            nodes[at].leave().await;
        }
        18 => nodes[at].ask(Request::Spread),
        _ => {
            let unit = UnitId(1 + rng.index(IMAGES.len()) as u32);
            nodes[at].ask(Request::Move(unit, GatewayId(1 + rng.index(NODES) as u16)));
        }
    }
    0
}
