//! Several gateways serve the images of a modelled Ceph cluster as one, whatever breaks.
//!
//! Each gateway is the shipped server, the shipped group (`ceph::group`, `cluster`), the shipped
//! stores of images and the shipped peer link, on a machine of its own. Initiators have a path to
//! each. Machines are paused, killed and cut from each other, from the initiators and from the
//! cluster. The judge sees each write as it takes effect at an OSD.
//!
//! - `node`: one gateway. `initiator`: one initiator with its paths. `registrant`: initiators with
//!   persistent reservations.
//! - `judge`: what must hold. `faults`: what breaks.

mod faults;
mod initiator;
mod judge;
mod node;
mod registrant;

use std::rc::Rc;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use cluster::Timers;
use rados::model::Cluster;
use runtime::sim::{self, Network};

use crate::random::Rng;
use crate::run::{Failure, Report, in_world};
use crate::verdict::Verdict;
use faults::Which;
use initiator::Initiator;
use judge::Judge;
use node::Node;
use registrant::Registrants;

/// Number of gateways, and of initiators.
const NODES: usize = 3;
const INITIATORS: usize = 3;
/// The images of the units, in the order of their LUNs.
const IMAGES: [&str; 3] = ["one", "two", "reserved"];
/// The first so many are written by initiators that look at nothing else.
const WRITTEN: usize = 2;
/// The one that initiators reserve.
const RESERVED: usize = 2;
/// An image that comes and goes while the group serves the others.
const SPARE: &str = "spare";
/// Blocks of a unit that initiators use, and the bytes from one to the next: each lies in an object
/// of its own.
const BLOCKS: usize = 4;
const APART: u64 = 4096;
/// After the last fault each initiator has answers of each unit within this time.
const RECOVERY: Duration = Duration::from_secs(25);
const TIME_LIMIT: Duration = Duration::from_secs(300);

/// A mistake that must be found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mistake {
    /// OSDs refuse nobody who is on the blocklist.
    NoFence,
    /// A new owner does not wait for the map that refuses the last one.
    NoBarrier,
    /// Gateways do not check when a command's initiator last answered a ping.
    NotFresh,
    /// A new owner does not go on with the reservations of the last one.
    Forgetful,
}

/// Runs a seed.
///
/// # Errors
/// The rule that was broken, and how.
pub fn run(seed: u64, loud: bool) -> Result<Report, Box<Failure>> {
    run_with(seed, None, loud)
}

/// Runs a seed with a mistake.
///
/// # Errors
/// The rule that was broken, and how.
pub fn run_mistaken(seed: u64, mistake: Mistake) -> Result<Report, Box<Failure>> {
    run_with(seed, Some(mistake), false)
}

fn run_with(seed: u64, mistake: Option<Mistake>, loud: bool) -> Result<Report, Box<Failure>> {
    let mut rng = Rng::new(seed ^ 0x4741_5445);
    let network = Network {
        latency: Duration::from_micros(50),
        jitter: Duration::from_micros(rng.pick(&[20, 500, 20_000])),
        lost_per_million: rng.pick(&[0, 1_000]),
        ..Network::default()
    };
    let config = sim::Config { network, time_limit: TIME_LIMIT, ..sim::Config::new(seed) };
    in_world("--gateways", seed, config, move || whole(rng, mistake, loud))
}

async fn whole(mut rng: Rng, mistake: Option<Mistake>, loud: bool) -> Result<Report, String> {
    let bytes =
        |image| if image == IMAGES[RESERVED] { registrant::BLOCKS * 512 } else { BLOCKS * APART as usize };
    let images = IMAGES.iter().chain([&SPARE]).map(|image| (*image, bytes(*image)));
    let cluster = Rc::new(Cluster::start(&images.collect::<Vec<_>>()).map_err(|error| error.to_string())?);
    let judge = Arc::new(Mutex::new(Judge::default()));
    let seen = judge.clone();
    cluster.observe(Box::new(move |landing| lock(&seen).lands(landing)));
    match mistake {
        Some(Mistake::NoFence) => cluster.never_refuse(),
        Some(Mistake::NoBarrier) => cluster.tell_no_maps(),
        Some(Mistake::NotFresh | Mistake::Forgetful) | None => {}
    }
    let fresh = match mistake {
        Some(Mistake::NotFresh) => TIME_LIMIT,
        _ => Timers::default().fresh,
    };
    let verdict = Rc::new(Verdict::new(loud));
    let mut nodes = Vec::new();
    for number in 1..=NODES {
        let keeps = mistake != Some(Mistake::Forgetful);
        let cores = rng.pick(&[1, 1, 2, 3]);
        let mut node = Node::new(number as u8, cluster.clone(), fresh, keeps, cores);
        node.start()?;
        nodes.push(node);
    }
    let initiators: Vec<Rc<Initiator>> = (0..INITIATORS)
        .map(|number| Initiator::new(number, judge.clone(), verdict.clone(), &mut rng))
        .collect();
    let running: Vec<_> = initiators.iter().map(|it| runtime::spawn(it.clone().work())).collect();
    let registrants = Registrants::start(&verdict, &mut rng);
    let which = match (mistake, rng.below(20)) {
        (Some(Mistake::NotFresh), _) | (_, 0) => Which::DeafGateways,
        (Some(Mistake::NoBarrier), _) | (_, 1) => Which::LateGateways,
        _ => Which::Any,
    };
    let restarts = live(which, &mut nodes, &initiators, &cluster, &judge, &verdict, &mut rng).await;
    initiators.iter().for_each(|it| it.stop());
    for task in running {
        task.await.map_err(|error| format!("an initiator: {error:?}"))?;
    }
    let books = registrants.stop().await?;
    for node in &mut nodes {
        node.kill().await;
    }
    let mut judge = lock(&judge);
    for (unit, image) in IMAGES.iter().enumerate().take(WRITTEN) {
        judge.compare(unit, &cluster.content(image));
    }
    if let Some(what) = judge.wrong().or(verdict.wrong()) {
        return Err(what);
    }
    books.check(&cluster.content(IMAGES[RESERVED]))?;
    let restarts = restarts?;
    Ok(Report {
        commands: judge.good + books.commands(),
        aborted: judge.given_up,
        refused: books.conflicts(),
        restarts,
        ..Report::default()
    })
}

/// Lets things break, and work again. Returns how many gateways were killed.
async fn live(
    which: Which,
    nodes: &mut [Node],
    initiators: &[Rc<Initiator>],
    cluster: &Cluster,
    judge: &Mutex<Judge>,
    verdict: &Verdict,
    rng: &mut Rng,
) -> Result<u64, String> {
    let restarts = faults::cause(which, nodes, cluster, judge, verdict, rng).await?;
    verdict.note(format_args!("all faults are over"));
    let healed = runtime::clock();
    while runtime::clock() < healed + RECOVERY && !initiators.iter().all(|it| it.has_answers_since(healed)) {
        runtime::sleep(Duration::from_millis(100)).await;
    }
    if let Some(initiator) = initiators.iter().find(|it| !it.has_answers_since(healed)) {
        return Err(format!("after the last fault {initiator:?} has no answers of a unit for {RECOVERY:?}"));
    }
    node::move_all(nodes, rng).await?;
    node::come_and_go(nodes, cluster, rng).await?;
    Ok(restarts)
}

fn lock(judge: &Mutex<Judge>) -> std::sync::MutexGuard<'_, Judge> {
    judge.lock().unwrap_or_else(PoisonError::into_inner)
}
