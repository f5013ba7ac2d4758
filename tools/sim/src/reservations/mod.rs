//! A world in which several initiators register, reserve, preempt, clear and release at random,
//! while sessions break and the server is changed, replaced and killed. RESERVATION CONFLICT comes
//! exactly when SPC-4 demands it ([`model`]), however commands overlap ([`history`]), and a write
//! that conflicts is not executed. Initiator ports have sessions through one or two target ports;
//! one of them has none, and is registered by others only.

mod cdb;
mod history;
mod initiators;
mod model;

use std::io;
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use disk::unit::{DiskOptions, Persist};
use iscsi_client::Options;
use iscsi_server::config::Portal;
use runtime::{Pooled, sim};

pub(crate) use cdb::Place;
pub(crate) use initiators::{Books, Client};
pub(crate) use model::{Nexus, Ports};

use crate::daemon;
use crate::host::{Disturbance, Host, Medium};
use crate::plan::Plan;
use crate::random::Rng;
use crate::run::{Failure, Report, in_world};
use crate::verdict::Verdict;

/// Blocks of the disk.
const BLOCKS: usize = 512;
/// TCP port of the first target port.
const PORT: u16 = 3260;
const TIME_LIMIT: Duration = Duration::from_secs(3600);

/// Runs a seed. `loud` prints each command and its outcome.
///
/// # Errors
/// The rule that was broken, and how.
pub fn run(seed: u64, loud: bool) -> Result<Report, Box<Failure>> {
    let config = sim::Config { time_limit: TIME_LIMIT, ..sim::Config::new(seed) };
    in_world("--reservations", seed, config, move || whole(seed, loud))
}

/// Storage of the APTPL state: it outlives the server.
#[derive(Clone, Default)]
struct Kept(Arc<Mutex<Option<Vec<u8>>>>);

impl Persist for Kept {
    fn save(&self, bytes: Vec<u8>) -> Pooled<io::Result<()>> {
        let kept = self.clone();
        Pooled::new(async move {
            runtime::sleep(Duration::from_micros(200)).await;
            *kept.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(bytes);
            runtime::sleep(Duration::from_micros(200)).await;
            Ok(())
        })
    }

    fn load(&self, _max: usize) -> io::Result<Option<Vec<u8>>> {
        Ok(self.0.lock().unwrap_or_else(PoisonError::into_inner).clone())
    }
}

/// The portal of a target port.
fn portal(target: u16) -> Portal {
    let listen = SocketAddr::from(([10, 0, 0, 200], PORT + target));
    Portal { listen, group: cdb::target_port(target.into()), transports: Default::default() }
}

/// The nexuses with a session: one or two of each initiator port but the last.
fn sessions(ports: Ports, rng: &mut Rng) -> Vec<Nexus> {
    let mut sessions = Vec::new();
    for initiator in 0..ports.initiators - 1 {
        let first = rng.index(ports.targets);
        sessions.push(ports.nexus(initiator, first));
        // Few sessions: the possible orders of their commands are many.
        if ports.initiators < 5 && rng.chance(500) {
            sessions.extend((0..ports.targets).filter(|t| *t != first).map(|t| ports.nexus(initiator, t)));
        }
    }
    sessions
}

async fn whole(seed: u64, loud: bool) -> Result<Report, String> {
    let mut rng = Rng::new(seed ^ 0x5052_4f55);
    let mut settings = Plan::new(seed).target;
    (settings.iser, settings.chap) = (None, None);
    let mut config = daemon::config(&settings);
    // One more initiator port than has sessions.
    let ports = Ports { initiators: 3 + rng.index(3), targets: rng.pick(&[1, 2, 2]) };
    config.portals = (0..ports.targets as u16).map(portal).collect();
    let cores = daemon::cores(1 + rng.index(3));
    let persist: Arc<dyn Persist> = Arc::new(Kept::default());
    let options = DiskOptions { persist: Some(persist), ..DiskOptions::default() };
    let medium = Medium::new(BLOCKS, options, (0, 0));
    let mut host = Host::new(cores, config, vec![medium], rng.pick(&[1, 1000, 20_000]));
    host.start()?;
    let verdict = Rc::new(Verdict::new(loud));
    let books = Books::new(Place { ports, lun: 0, blocks: BLOCKS }, false, verdict.clone());
    let mut running = Vec::new();
    for nexus in sessions(ports, &mut rng) {
        let options = Options {
            connections: rng.pick(&[1, 1, 2]),
            error_recovery_level: rng.pick(&[0, 2]),
            command_timeout: Duration::from_secs(20),
            reconnect_timeout: Duration::from_secs(600),
            max_replays: 250,
            ..Options::default()
        };
        let portal = portal(ports.target(nexus) as u16).listen;
        let client = Client::connect(nexus, portal, options, books.clone());
        let client = client.await.map_err(|error| format!("no login: {error}"))?;
        running.push(runtime::spawn(work(Rc::new(client), rng.fork())));
    }
    let restarted = |what| {
        if what == Some(Disturbance::Kill) {
            books.restart();
        }
    };
    let most = rng.pick(&[0, 1, 3, 6]);
    let restarts = host.troubles(most, &verdict, &running, &mut rng, restarted).await?;
    let mut report = Report { restarts, ..Report::default() };
    for client in running {
        report.reconnects += client.await.map_err(|error| format!("a client: {error:?}"))?;
    }
    report.commands = books.commands();
    report.refused = books.conflicts();
    if let Some(what) = verdict.wrong() {
        return Err(what);
    }
    host.kill().await;
    books.check(&host.medium(0, BLOCKS))?;
    Ok(report)
}

/// Work of an initiator; returns the number of times that its session was made anew.
async fn work(client: Rc<Client>, mut rng: Rng) -> u64 {
    let depth = rng.pick(&[1, 1, 2, 3]);
    let pause = rng.pick(&[0, 2000, 50_000]);
    let mut lanes = Vec::new();
    for _ in 0..depth {
        let (client, mut rng) = (client.clone(), rng.fork());
        lanes.push(runtime::spawn(async move {
            for _ in 0..36 / depth {
                runtime::sleep(Duration::from_micros(rng.below(pause))).await;
                if client.books.verdict.has_failed() {
                    return;
                }
                client.step(&mut rng).await;
            }
        }));
    }
    for lane in lanes {
        if let Err(error) = lane.await {
            client.books.verdict.fail(format!("{error:?}"));
        }
    }
    client.close().await
}
