//! Initiators that register, reserve and preempt through the gateways. Their commands, and the
//! oracle that judges each answer, are those of [`reservations`](crate::reservations): reservations
//! hold at all gateways, whichever owns the unit, and outlive each of them.

use std::cell::Cell;
use std::rc::Rc;
use std::time::Duration;

use iscsi_client::Options;

use super::initiator::SILENT;
use super::node::portal;
use super::{NODES, RESERVED};
use crate::random::Rng;
use crate::reservations::{Books, Client, Nexus, Place, Ports};
use crate::verdict::Verdict;

/// Number of initiator ports. The last has no session; others register it.
const PORTS: usize = 4;
/// Blocks of the unit. Each write has one of its own.
pub(super) const BLOCKS: usize = 8192;
/// The longest pause between two commands of an initiator, µs.
const PAUSE: u64 = 800_000;

pub(super) struct Registrants {
    books: Rc<Books>,
    is_ending: Rc<Cell<bool>>,
    running: Vec<runtime::JoinHandle<()>>,
}

impl Registrants {
    /// Starts an initiator at one gateway each, and one of them at a second one too.
    pub(super) fn start(verdict: &Rc<Verdict>, rng: &mut Rng) -> Self {
        let ports = Ports { initiators: PORTS, targets: NODES };
        let place = Place { ports, lun: RESERVED as u16, blocks: BLOCKS };
        let books = Books::new(place, true, verdict.clone());
        let is_ending = Rc::new(Cell::new(false));
        let first = rng.index(NODES);
        let mut nexuses = vec![ports.nexus(0, first), ports.nexus(0, (first + 1) % NODES)];
        nexuses.extend((1..PORTS - 1).map(|initiator| ports.nexus(initiator, rng.index(NODES))));
        let start = |nexus| {
            let gateway = 1 + ports.target(nexus) as u8;
            runtime::spawn(work(nexus, gateway, books.clone(), is_ending.clone(), rng.fork()))
        };
        let running = nexuses.into_iter().map(start).collect();
        Self { books, is_ending, running }
    }

    /// Ends their work after the commands in flight. Returns what they have done.
    pub(super) async fn stop(self) -> Result<Rc<Books>, String> {
        self.is_ending.set(true);
        for task in self.running {
            task.await.map_err(|error| format!("a registrant: {error:?}"))?;
        }
        Ok(self.books)
    }
}

async fn work(nexus: Nexus, gateway: u8, books: Rc<Books>, is_ending: Rc<Cell<bool>>, mut rng: Rng) {
    let options = || Options {
        connect_timeout: Duration::from_secs(2),
        ping_interval: SILENT,
        command_timeout: Duration::from_secs(20),
        reconnect_timeout: Duration::from_secs(600),
        max_replays: 250,
        error_recovery_level: 0,
        ..Options::default()
    };
    let client = loop {
        match Client::connect(nexus, portal(gateway), options(), books.clone()).await {
            Ok(client) => break client,
            Err(_) if is_ending.get() => return,
            Err(_) => runtime::sleep(Duration::from_millis(100)).await,
        }
    };
    while !is_ending.get() && !books.verdict.has_failed() {
        client.step(&mut rng).await;
        runtime::sleep(Duration::from_micros(rng.below(PAUSE))).await;
    }
    client.close().await;
}
