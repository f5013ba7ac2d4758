//! A world in which several initiators register, reserve, preempt, clear and release at random,
//! while sessions break and the server is changed, replaced and killed. RESERVATION CONFLICT comes
//! exactly when SPC-4 demands it ([`model`]), however commands overlap ([`history`]), and a write
//! that conflicts is not executed. Initiator ports have sessions through one or two target ports;
//! one of them has none, and is registered by others only.

mod cdb;
mod history;
mod model;

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::io;
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use disk::unit::{DiskOptions, Persist};
use iscsi::pdu::Isid;
use iscsi_client::{Error, Options, Session, Url};
use iscsi_server::config::Portal;
use runtime::{Pooled, sim};

use crate::daemon::{self, NAME};
use crate::host::{Disturbance, Host, Medium};

use crate::oracle::OpId;
use crate::plan::Plan;
use crate::random::Rng;
use crate::run::{Failure, Report, in_world};
use crate::verdict::Verdict;
use history::History;
use model::{Key, Nexus, Outcome, Ports, Request, TYPES, Whom};

/// Blocks of the disk, of 512 bytes. Each write has one of its own.
const BLOCKS: usize = 512;
/// TCP port of the first target port.
const PORT: u16 = 3260;
/// Tries of a command that meets a unit attention or BUSY.
const TRIES: u32 = 1000;
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

/// The state that all initiators share.
struct Books {
    history: RefCell<History>,
    /// Writes by their block, and whether they were done; `None` if that is unknown.
    writes: RefCell<BTreeMap<OpId, Option<bool>>>,
    last_op: Cell<OpId>,
    ports: Ports,
    /// The key with which each nexus was registered last, as far as its initiator was told.
    keys: RefCell<Vec<Key>>,
    conflicts: Cell<u64>,
    verdict: Verdict,
}

/// One session.
struct Client {
    nexus: Nexus,
    session: Session,
    books: Rc<Books>,
    /// Commands that were lost with their session, and the reconnects at that time: they may still
    /// run until the session has reconnected.
    limbo: RefCell<Vec<(OpId, u64)>>,
}

impl Client {
    fn next(&self, rng: &mut Rng) -> Request {
        let ports = self.books.ports;
        // Mostly its own key, which another initiator may have removed.
        let own = self.books.keys.borrow()[self.nexus];
        let key = if rng.chance(900) { own } else { rng.below(4) as Key };
        let kind = rng.pick(&TYPES);
        match rng.below(20) {
            0..=2 => Request::Register {
                key,
                new: rng.below(4) as Key,
                aptpl: rng.chance(500),
                force: rng.chance(400),
                whom: match rng.below(6) {
                    0 | 1 => Whom::AllTargets,
                    2 | 3 => Whom::Named(rng.below(1 << ports.initiators) as u32),
                    _ => Whom::Own,
                },
            },
            3 | 4 => Request::Reserve { key, kind },
            5 => Request::Release { key, kind: if rng.chance(300) { kind } else { 0 } },
            6 if rng.chance(300) => Request::Clear { key },
            6 | 7 => Request::Preempt { key, victim: rng.below(4) as Key, kind, abort: rng.chance(500) },
            8 | 9 => Request::Move {
                key,
                new: rng.below(4) as Key,
                to: ports.nexus(rng.index(ports.initiators), rng.index(ports.targets)),
                unregister: rng.chance(500),
                aptpl: rng.chance(500),
            },
            10 => Request::TestUnitReady,
            11 => Request::ReadKeys,
            12 => Request::ReadReservation,
            13 => Request::ReadFullStatus,
            14..=16 => Request::Read,
            _ => Request::Write,
        }
    }

    /// A command has succeeded.
    fn learn(&self, request: Request) {
        let (ports, mut keys) = (self.books.ports, self.books.keys.borrow_mut());
        let (initiator, target) = (ports.initiator(self.nexus), ports.target(self.nexus));
        match request {
            Request::Register { new, whom, .. } => {
                keys[self.nexus] = new;
                let others: Vec<Nexus> = match whom {
                    Whom::Own => Vec::new(),
                    Whom::AllTargets => {
                        (0..ports.targets).map(|target| ports.nexus(initiator, target)).collect()
                    }
                    Whom::Named(named) => {
                        let named = (0..ports.initiators).filter(|other| named >> other & 1 != 0);
                        named.map(|other| ports.nexus(other, target)).collect()
                    }
                };
                others.into_iter().for_each(|other| keys[other] = new);
            }
            Request::Move { new, to, unregister, .. } => {
                keys[to] = new;
                if unregister {
                    keys[self.nexus] = 0;
                }
            }
            _ => {}
        }
    }

    /// Runs a command to its end, and reports it to the history.
    async fn run(&self, mut request: Request) -> Result<(), String> {
        if let Request::Release { kind: kind @ 0, .. } = &mut request {
            *kind = self.held().await?;
        }
        let books = &self.books;
        books.last_op.set(books.last_op.get() + 1);
        let op = books.last_op.get();
        books.history.borrow_mut().submit(op, self.nexus, request);
        if request == Request::Write {
            books.writes.borrow_mut().insert(op, None);
        }
        books.verdict.note(format_args!("nexus {}: op {op}: {request:?}", self.nexus));
        let told = |what| format!("nexus {}, op {op} ({request:?}): {what}", self.nexus);
        let outcome = self.outcome(op, request).await.map_err(told)?;
        let reconnects = self.session.reconnects();
        books.verdict.note(format_args!("nexus {}: op {op}: {outcome:?}", self.nexus));
        let Some(outcome) = outcome else {
            self.limbo.borrow_mut().push((op, reconnects));
            return Ok(());
        };
        // The session has answered, so commands lost with an earlier one can no longer run.
        self.limbo.borrow_mut().retain(|(op, of)| {
            if *of < reconnects {
                books.history.borrow_mut().give_up(*op);
            }
            *of >= reconnects
        });
        if outcome == Outcome::Conflict {
            books.conflicts.set(books.conflicts.get() + 1);
        }
        if outcome == Outcome::Good {
            self.learn(request);
        }
        if request == Request::Write {
            books.writes.borrow_mut().insert(op, Some(outcome == Outcome::Good));
        }
        books.history.borrow_mut().end(op, &outcome).map_err(told)
    }

    /// TYPE of the reservation, or of some.
    async fn held(&self) -> Result<u8, String> {
        match self.outcome(0, Request::ReadReservation).await? {
            Some(Outcome::Held(Some((_, kind)))) => Ok(kind),
            _ => Ok(TYPES[0]),
        }
    }

    /// `None` if the command was lost.
    async fn outcome(&self, op: OpId, request: Request) -> Result<Option<Outcome>, String> {
        for _ in 0..TRIES {
            match self.session.execute(cdb::command(op, request, self.books.ports).once()).await {
                Ok(response) if matches!(response.status, 0x08 | 0x28) => {
                    runtime::sleep(Duration::from_millis(1)).await;
                }
                Ok(response) => {
                    if let Some(outcome) = cdb::outcome(request, &response, self.books.ports)? {
                        return Ok(Some(outcome));
                    }
                }
                Err(Error::Lost(_) | Error::TimedOut(_) | Error::Login(_) | Error::Connect { .. }) => {
                    return Ok(None);
                }
                Err(error) => return Err(format!("it ended with an error: {error}")),
            }
        }
        Err("it never gets past unit attentions".into())
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
    let books = Rc::new(Books {
        history: RefCell::new(History::new(ports)),
        writes: RefCell::default(),
        last_op: Cell::new(0),
        ports,
        keys: RefCell::new(vec![0; ports.initiators * ports.targets]),
        conflicts: Cell::new(0),
        verdict: Verdict::new(loud),
    });
    let mut running = Vec::new();
    for nexus in sessions(ports, &mut rng) {
        let url = Url::portal("10.0.0.200", PORT + ports.target(nexus) as u16).with_unit(NAME, 0);
        let options = Options {
            initiator: cdb::name(ports.initiator(nexus)),
            isid: Some(Isid(cdb::ISID)),
            connections: rng.pick(&[1, 1, 2]),
            error_recovery_level: rng.pick(&[0, 2]),
            command_timeout: Duration::from_secs(20),
            reconnect_timeout: Duration::from_secs(600),
            max_replays: 250,
            ..Options::default()
        };
        let session = Session::connect(&url, options).await.map_err(|error| format!("no login: {error}"))?;
        let client = Client { nexus, session, books: books.clone(), limbo: RefCell::default() };
        running.push(runtime::spawn(work(Rc::new(client), rng.fork())));
    }
    let restarted = |what| {
        if what == Some(Disturbance::Kill) {
            books.history.borrow_mut().restart();
        }
    };
    let most = rng.pick(&[0, 1, 3, 6]);
    let restarts = host.troubles(most, &books.verdict, &running, &mut rng, restarted).await?;
    let mut report = Report { restarts, ..Report::default() };
    for client in running {
        report.reconnects += client.await.map_err(|error| format!("a client: {error:?}"))?;
    }
    report.commands = books.last_op.get();
    report.refused = books.conflicts.get();
    if let Some(what) = books.verdict.wrong() {
        return Err(what);
    }
    host.kill().await;
    let medium = host.medium(0, BLOCKS);
    for (op, done) in books.writes.borrow().iter() {
        let block = *op as usize % BLOCKS;
        let is_there = medium.get(block * 512..(block + 1) * 512) == Some(&cdb::stamp(*op)[..]);
        if done.is_some_and(|done| done != is_there) {
            return Err(format!("the write of op {op} is on the disk: {is_there}, and must be: {done:?}"));
        }
    }
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
                let request = client.next(&mut rng);
                if let Err(what) = client.run(request).await {
                    client.books.verdict.fail(what);
                }
            }
        }));
    }
    for lane in lanes {
        if let Err(error) = lane.await {
            client.books.verdict.fail(format!("{error:?}"));
        }
    }
    let reconnects = client.session.reconnects();
    if !client.books.verdict.has_failed() {
        drop(client.session.close().await);
    }
    reconnects
}
