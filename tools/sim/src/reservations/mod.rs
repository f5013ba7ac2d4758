//! A world in which several initiators register, reserve, preempt, clear and release at random,
//! while sessions break and the server is changed, replaced and killed. RESERVATION CONFLICT comes
//! exactly when SPC-4 demands it ([`model`]), however commands overlap ([`history`]), and a write
//! that conflicts is not executed.

mod history;
mod model;

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::io;
use std::rc::Rc;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use disk::unit::{DiskOptions, Persist};
use iscsi_client::{Command, Error, Lun, Options, Response, Session, Url};
use runtime::{Pooled, sim};
use scsi::cdb::build::{self, Flags};
use scsi::{Sense, SenseKey, Status};

use crate::daemon::{self, NAME};
use crate::host::{Disturbance, Host, Medium};

use crate::oracle::OpId;
use crate::plan::Plan;
use crate::random::Rng;
use crate::run::{Failure, Report, in_world};
use crate::verdict::Verdict;
use history::History;
use model::{Key, Outcome, Request, TYPES};

/// Blocks of the disk, of 512 bytes. Each write has one of its own.
const BLOCKS: usize = 512;
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
    conflicts: Cell<u64>,
    verdict: Verdict,
}

/// One initiator.
struct Client {
    number: usize,
    session: Session,
    books: Rc<Books>,
    /// The key with which it believes to be registered.
    key: Cell<Key>,
    /// Commands that were lost with their session, and the reconnects at that time: they may still
    /// run until the session has reconnected.
    limbo: RefCell<Vec<(OpId, u64)>>,
}

impl Client {
    fn next(&self, rng: &mut Rng) -> Request {
        // Mostly its own key, which another initiator may have removed.
        let key = if rng.chance(900) { self.key.get() } else { rng.below(4) as Key };
        let kind = rng.pick(&TYPES);
        match rng.below(16) {
            0 | 1 => Request::Register {
                key,
                new: rng.below(4) as Key,
                aptpl: rng.chance(500),
                force: rng.chance(400),
            },
            2 | 3 => Request::Reserve { key, kind },
            4 => Request::Release { key, kind: if rng.chance(300) { kind } else { 0 } },
            5 if rng.chance(300) => Request::Clear { key },
            5 | 6 => Request::Preempt { key, victim: rng.below(4) as Key, kind, abort: rng.chance(500) },
            7 => Request::TestUnitReady,
            8 => Request::ReadKeys,
            9 => Request::ReadReservation,
            10..=12 => Request::Read,
            _ => Request::Write,
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
        books.history.borrow_mut().submit(op, self.number, request);
        if request == Request::Write {
            books.writes.borrow_mut().insert(op, None);
        }
        books.verdict.note(format_args!("initiator {}: op {op}: {request:?}", self.number));
        let told = |what| format!("initiator {}, op {op} ({request:?}): {what}", self.number);
        let outcome = self.outcome(op, request).await.map_err(told)?;
        let reconnects = self.session.reconnects();
        books.verdict.note(format_args!("initiator {}: op {op}: {outcome:?}", self.number));
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
        if let (Request::Register { new, .. }, Outcome::Good) = (request, &outcome) {
            self.key.set(new);
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
            match self.session.execute(command(op, request).once()).await {
                Ok(response) if matches!(response.status, 0x08 | 0x28) => {
                    runtime::sleep(Duration::from_millis(1)).await;
                }
                Ok(response) => {
                    if let Some(outcome) = outcome(request, &response)? {
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

fn command(op: OpId, request: Request) -> Command {
    let out = |action: u8, kind: u8, key: Key, action_key: Key, aptpl: bool| {
        let mut list = vec![0; 24];
        (list[7], list[15], list[20]) = (key, action_key, u8::from(aptpl));
        let cdb = build::persistent_reserve_out(action, kind, list.len() as u32);
        Command::new(Lun::ZERO, &cdb).writing(runtime::Buf::from(list))
    };
    match request {
        Request::Register { key, new, aptpl, force } => out(if force { 6 } else { 0 }, 0, key, new, aptpl),
        Request::Reserve { key, kind } => out(1, kind, key, 0, false),
        Request::Release { key, kind } => out(2, kind, key, 0, false),
        Request::Clear { key } => out(3, 0, key, 0, false),
        Request::Preempt { key, victim, kind, abort } => out(4 + u8::from(abort), kind, key, victim, false),
        Request::TestUnitReady => Command::new(Lun::ZERO, &build::test_unit_ready()),
        Request::ReadKeys => Command::new(Lun::ZERO, &build::persistent_reserve_in(0, 256)).reading(256),
        Request::ReadReservation => {
            Command::new(Lun::ZERO, &build::persistent_reserve_in(1, 256)).reading(256)
        }
        Request::Read => {
            let cdb = build::read10(op as u32 % BLOCKS as u32, 1, Flags::default());
            Command::new(Lun::ZERO, &cdb).reading(512)
        }
        Request::Write => {
            let cdb = build::write10(op as u32 % BLOCKS as u32, 1, Flags::default());
            Command::new(Lun::ZERO, &cdb).writing(runtime::Buf::from(stamp(op).to_vec()))
        }
    }
}

fn stamp(op: OpId) -> [u8; 512] {
    let mut block = [0; 512];
    block.chunks_exact_mut(8).for_each(|word| word.copy_from_slice(&op.to_be_bytes()));
    block
}

/// Reads an answer; `None` for a unit attention.
fn outcome(request: Request, response: &Response) -> Result<Option<Outcome>, String> {
    let sense = Sense::parse(&response.sense);
    let code = sense.map(|sense| (sense.key, sense.additional.asc, sense.additional.ascq));
    match (Status::from_code(response.status), code) {
        (Some(Status::Good), _) => {}
        (Some(Status::ReservationConflict), _) => return Ok(Some(Outcome::Conflict)),
        (_, Some((SenseKey::UnitAttention, 0x29 | 0x2a | 0x2f | 0x3f, _))) => return Ok(None),
        (_, Some((SenseKey::IllegalRequest, asc, ascq))) => return Ok(Some(Outcome::Refused(asc, ascq))),
        _ => return Err(format!("status {:#04x} with sense {:02x?}", response.status, response.sense)),
    }
    let data = response.data.to_vec();
    // PRGENERATION and ADDITIONAL LENGTH precede the list (SPC-4 §6.15).
    let list = || data.get(8..).unwrap_or_default();
    Ok(Some(match request {
        Request::ReadKeys => {
            let mut keys: Vec<Key> = list().chunks(8).filter_map(|key| key.last().copied()).collect();
            keys.sort_unstable();
            Outcome::Keys(keys)
        }
        Request::ReadReservation => {
            Outcome::Held(list().get(7).zip(list().get(13)).map(|(key, kind)| (*key, *kind)))
        }
        _ => Outcome::Good,
    }))
}

async fn whole(seed: u64, loud: bool) -> Result<Report, String> {
    let mut rng = Rng::new(seed ^ 0x5052_4f55);
    let mut settings = Plan::new(seed).target;
    (settings.iser, settings.chap) = (None, None);
    let config = daemon::config(&settings);
    let cores = daemon::cores(1 + rng.index(3));
    let persist: Arc<dyn Persist> = Arc::new(Kept::default());
    let options = DiskOptions { persist: Some(persist), ..DiskOptions::default() };
    let medium = Medium::new(BLOCKS, options, (0, 0));
    let mut host = Host::new(cores, config, vec![medium], rng.pick(&[1, 1000, 20_000]));
    host.start()?;
    let initiators = 2 + rng.index(3);
    let books = Rc::new(Books {
        history: RefCell::new(History::new(initiators)),
        writes: RefCell::default(),
        last_op: Cell::new(0),
        conflicts: Cell::new(0),
        verdict: Verdict::new(loud),
    });
    let url = Url::portal("10.0.0.200", 3260).with_unit(NAME, 0);
    let mut running = Vec::new();
    for number in 0..initiators {
        let options = Options {
            initiator: format!("iqn.2026-01.example.sim:{number}"),
            connections: rng.pick(&[1, 1, 2]),
            error_recovery_level: rng.pick(&[0, 2]),
            command_timeout: Duration::from_secs(20),
            reconnect_timeout: Duration::from_secs(600),
            max_replays: 250,
            ..Options::default()
        };
        let session = Session::connect(&url, options).await.map_err(|error| format!("no login: {error}"))?;
        let client =
            Client { number, session, books: books.clone(), key: Cell::new(0), limbo: RefCell::default() };
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
        let is_there = medium.get(block * 512..(block + 1) * 512) == Some(&stamp(*op)[..]);
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
