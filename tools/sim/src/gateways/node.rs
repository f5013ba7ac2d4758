//! One gateway: the shipped server and the shipped gateway, on a machine of their own.

use std::collections::BTreeMap;
use std::io;
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use ceph::group::Serving;
use ceph::{ImageName, Login, RbdStore};
use cluster::{GatewayId, Request, Timers, UnitId};
use disk::unit::{DiskOptions, DiskUnit, Persist, Registry};
use gateway::{Gateway, Owned, Units};
use iscsi_server::config::LunConfig;
use iscsi_server::{Server, Unit};
use peer_link::Secret;
use rados::model::Cluster;
use runtime::Pooled;
use runtime::sim::{self, Machine, on_machine};

use super::{IMAGES, NODES, SPARE};
use crate::daemon;
use crate::plan::Plan;
use crate::random::Rng;

/// Timeout of an operation on an image.
const OP_TIMEOUT: Duration = Duration::from_secs(12);
/// A move in a quiet group ends within this time.
const MOVE: Duration = Duration::from_secs(10);
/// A unit that comes or goes does so within this time. Its gateway may be shut out meanwhile.
const COME_AND_GO: Duration = Duration::from_secs(60);

pub(super) struct Node {
    pub(super) number: u8,
    cluster: Rc<Cluster>,
    /// `Timers::fresh`.
    fresh: Duration,
    keeps: bool,
    cores: usize,
    running: Option<Running>,
}

struct Running {
    server: Server,
    units: Arc<Units>,
    gateway: Arc<Gateway>,
}

/// The unit of the image that comes and goes.
const SPARE_UNIT: UnitId = UnitId(IMAGES.len() as u32 + 1);

/// A gateway's iSCSI portal.
pub(super) fn portal(number: u8) -> SocketAddr {
    SocketAddr::from(([10, 0, 1, number], 3260))
}

/// The address of a gateway's peer link.
fn link(number: u8) -> SocketAddr {
    SocketAddr::from(([10, 0, 1, number], 3261))
}

fn name(image: &str) -> ImageName {
    ImageName { pool: "pool".into(), namespace: None, image: image.into(), snapshot: None }
}

/// Makes the disk over an image. `keeps`: with the reservations that are kept there.
fn open(keeps: bool, serving: &Serving, health: &Arc<backing::Health>) -> Result<Owned, String> {
    let store = RbdStore::of_group(serving, OP_TIMEOUT, health.clone());
    let store = Arc::new(store.map_err(|error| error.to_string())?);
    let persist = store.persist().map(|kept| if keeps { kept } else { Arc::new(Forgetful(kept)) });
    let options = DiskOptions { write_cache: false, persist, ..DiskOptions::default() };
    let disk = DiskUnit::new(store.clone(), options.with_identity(&store.seed()), &Registry::new());
    Ok(Owned { disk: disk.map_err(|error| error.to_string())?, store })
}

/// What an image keeps, of which the next owner knows nothing.
struct Forgetful(Arc<dyn Persist>);

impl Persist for Forgetful {
    fn save(&self, bytes: Vec<u8>) -> Pooled<io::Result<()>> {
        self.0.save(bytes)
    }

    fn load(&self, max: usize) -> io::Result<Option<Vec<u8>>> {
        self.0.load(max).map(|_| None)
    }

    fn keeps_all(&self) -> bool {
        true
    }
}

impl Node {
    /// `keeps`: it goes on with the reservations of an image's last owner.
    pub(super) fn new(number: u8, cluster: Rc<Cluster>, fresh: Duration, keeps: bool, cores: usize) -> Self {
        Self { number, cluster, fresh, keeps, cores, running: None }
    }

    pub(super) fn machine(&self) -> Machine {
        Machine(self.number)
    }

    pub(super) fn is_running(&self) -> bool {
        self.running.is_some()
    }

    /// Starts the daemon.
    pub(super) fn start(&mut self) -> Result<(), String> {
        let running = on_machine(self.machine(), || self.begin())?;
        self.running = Some(running);
        Ok(())
    }

    fn begin(&self) -> Result<Running, String> {
        let numbers = 1..=NODES as u8;
        let secret = Secret::new(&[7; 32]).ok_or("no secret")?;
        let units = Units::new(gateway::Config {
            number: self.number.into(),
            links: numbers.map(|number| (number.into(), link(number))).collect(),
            secrets: BTreeMap::from([(1, secret)]),
            login: Login { user: Some(self.number.to_string()), conf: Some(self.cluster.conf().to_owned()) },
            pool: "pool".into(),
            namespace: None,
            object: "group".into(),
            op_timeout: OP_TIMEOUT,
            timers: Timers { fresh: self.fresh, ..Timers::default() },
        })?;
        let mut settings = Plan::new(1).target;
        (settings.iser, settings.chap) = (None, None);
        // The server itself gives silent initiators up late.
        (settings.nop_interval, settings.nop_timeout) = (Duration::from_secs(30), Duration::from_secs(30));
        let mut config = daemon::config(&settings);
        config.portals[0].listen = portal(self.number);
        config.portals[0].group = self.number.into();
        let mut images = BTreeMap::new();
        for (lun, image) in IMAGES.into_iter().enumerate() {
            let number = lun as u32 + 1;
            let keeps = self.keeps;
            let open = move |serving: &Serving, health: &Arc<_>| open(keeps, serving, health);
            let shared = units.add(number, name(image), Box::new(open))?;
            let unit = Unit::Group(shared.unit.clone());
            config.targets[0].units.push(LunConfig {
                lun: lun as u16,
                unit,
                limiter: Arc::default(),
                stages: false,
            });
            images.insert(number, name(image));
        }
        let server = Server::start(daemon::cores(self.cores), config).map_err(|error| error.to_string())?;
        let gateway = Gateway::start(units.clone(), images, server.core().hub().first());
        Ok(Running { gateway: Arc::new(gateway.map_err(|error| error.to_string())?), units, server })
    }

    /// Ends it as `kill -9` does.
    pub(super) async fn kill(&mut self) {
        let Some(running) = self.running.take() else { return };
        sim::pause(self.machine(), Duration::ZERO);
        self.cluster.kill(self.machine());
        sim::aside(move || drop(running)).await;
    }

    /// Ends it as SIGTERM does: others take its units first.
    pub(super) async fn leave(&mut self) {
        let Some(Running { server, gateway, .. }) = self.running.take() else { return };
        sim::aside(move || {
            gateway.leave();
            // The gateway has no units any more: a flush that fails says nothing.
            drop(server.stop(Duration::from_secs(1)));
        })
        .await;
        self.cluster.kill(self.machine());
    }

    /// Asks for a change of the group, and does not wait.
    pub(super) fn ask(&self, request: Request) {
        let Some(gateway) = self.running.as_ref().map(|running| running.gateway.clone()) else { return };
        runtime::spawn(async move {
            // It may be refused, or take too long while something is broken.
            let _ = sim::aside(move || gateway.ask(request)).await;
        });
    }
}

/// Adds a unit at one gateway, gives it to another one that does not know it, and takes it out
/// while the gateway is cut from the cluster. Nothing else breaks.
pub(super) async fn come_and_go(nodes: &[Node], cluster: &Cluster, rng: &mut Rng) -> Result<(), String> {
    let node = &nodes[rng.index(NODES)];
    let Some(Running { units, gateway, .. }) = &node.running else {
        return Err("a gateway does not run at the end".to_owned());
    };
    let view = |of: &Gateway| of.status().view.filter(|view| !view.gateways.is_empty());
    let here = || view(gateway).is_some_and(|view| view.here.contains(&SPARE_UNIT));
    let are_in = || view(gateway).is_some_and(|view| view.gateways.len() == NODES);
    comes("all gateways are in the group", are_in).await?;
    let open = |serving: &Serving, health: &Arc<_>| open(true, serving, health);
    on_machine(node.machine(), || units.add(SPARE_UNIT.0, name(SPARE), Box::new(open)).map(drop))?;
    gateway.add(SPARE_UNIT.0);
    comes("a new unit is served where it was added", here).await?;
    let other = &nodes[(usize::from(node.number) + rng.below(2) as usize) % NODES];
    let moves = gateway.counts().moves;
    node.ask(Request::Move(SPARE_UNIT, GatewayId(other.number.into())));
    let is_back = || gateway.counts().moves > moves && here();
    comes("a unit comes back from gateways that do not know it", is_back).await?;
    for sends in [true, false] {
        cluster.cut(node.machine(), sends, Duration::from_millis(rng.between(100, 20_000)));
    }
    runtime::sleep(Duration::from_millis(rng.between(0, 12_000))).await;
    gateway.remove(SPARE_UNIT.0);
    let is_gone = |node: &Node| {
        let view = node.running.as_ref().and_then(|running| view(&running.gateway));
        view.is_some_and(|view| view.units.iter().all(|(unit, _)| *unit != SPARE_UNIT))
    };
    comes("a unit that was taken out goes", || nodes.iter().all(is_gone)).await
}

/// Waits for something that the group owes.
async fn comes(what: &str, is_so: impl Fn() -> bool) -> Result<(), String> {
    let until = runtime::clock() + COME_AND_GO;
    while !is_so() {
        if runtime::clock() >= until {
            return Err(format!("not within {COME_AND_GO:?}: {what}"));
        }
        runtime::sleep(Duration::from_millis(100)).await;
    }
    Ok(())
}

/// Moves each unit in a group in which nothing breaks any more.
pub(super) async fn move_all(nodes: &[Node], rng: &mut Rng) -> Result<(), String> {
    for unit in 1..=IMAGES.len() as u32 {
        let (asked, to) = (&nodes[rng.index(NODES)], 1 + rng.index(NODES) as u16);
        let Some(gateway) = asked.running.as_ref().map(|running| running.gateway.clone()) else {
            return Err("a gateway does not run at the end".to_owned());
        };
        let until = runtime::clock() + MOVE;
        loop {
            let gateway = gateway.clone();
            match sim::aside(move || gateway.move_unit(unit, to)).await {
                Ok(()) if runtime::clock() < until => break,
                late if runtime::clock() >= until => {
                    return Err(format!("unit {unit} was not at gateway {to} after {MOVE:?}: {late:?}"));
                }
                // One that was out of the group a moment ago is not in it yet.
                _ => runtime::sleep(Duration::from_millis(100)).await,
            }
        }
    }
    Ok(())
}
