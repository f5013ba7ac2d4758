//! Initiators that register, reserve, preempt, clear and release at random, and the shared record
//! that judges each answer.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::rc::Rc;
use std::time::Duration;

use iscsi::pdu::Isid;
use iscsi_client::{Error, Options, Session, Url};

use super::cdb::{self, Answer, Place};
use super::history::History;
use super::model::{Key, Nexus, Outcome, Request, TYPES, Whom};
use crate::daemon::NAME;
use crate::oracle::OpId;
use crate::random::Rng;
use crate::verdict::Verdict;

/// A command meets unit attentions or BUSY for no longer than this.
const PATIENCE: Duration = Duration::from_secs(200);

/// The state that all initiators share.
pub(crate) struct Books {
    history: RefCell<History>,
    /// Writes by their block, and whether they were done; `None` if that is unknown.
    writes: RefCell<BTreeMap<OpId, Option<bool>>>,
    last_op: Cell<OpId>,
    place: Place,
    /// Whether the unit's owner may change under a command, which then ends unknown.
    owner_changes: bool,
    /// The key with which each nexus was registered last, as far as its initiator was told.
    keys: RefCell<Vec<Key>>,
    conflicts: Cell<u64>,
    pub(crate) verdict: Rc<Verdict>,
}

impl Books {
    pub(crate) fn new(place: Place, owner_changes: bool, verdict: Rc<Verdict>) -> Rc<Self> {
        Rc::new(Self {
            history: RefCell::new(History::new(place.ports)),
            writes: RefCell::default(),
            last_op: Cell::new(0),
            place,
            owner_changes,
            keys: RefCell::new(vec![0; place.ports.initiators * place.ports.targets]),
            conflicts: Cell::new(0),
            verdict,
        })
    }

    /// The server has started anew.
    pub(super) fn restart(&self) {
        self.history.borrow_mut().restart();
    }

    /// Commands until now.
    pub(crate) fn commands(&self) -> u64 {
        self.last_op.get()
    }

    /// Commands that ended with RESERVATION CONFLICT.
    pub(crate) fn conflicts(&self) -> u64 {
        self.conflicts.get()
    }

    /// Holds the unit's content at the end against the writes.
    ///
    /// # Errors
    /// A write that was refused is there, or an acknowledged one is not.
    pub(crate) fn check(&self, content: &[u8]) -> Result<(), String> {
        for (op, done) in self.writes.borrow().iter() {
            let is_there = self.place.has(content, *op);
            if done.is_some_and(|done| done != is_there) {
                return Err(format!(
                    "the write of op {op} is on the disk: {is_there}, and must be: {done:?}"
                ));
            }
        }
        Ok(())
    }
}

/// One session.
pub(crate) struct Client {
    nexus: Nexus,
    session: Session,
    pub(crate) books: Rc<Books>,
    /// Commands that were lost with their session, and the reconnects at that time: they may still
    /// run until the session has reconnected.
    limbo: RefCell<Vec<(OpId, u64)>>,
}

impl Client {
    /// Logs in at the portal of the nexus's target port. The initiator's name and ISID come from the
    /// nexus, all else from `options`.
    ///
    /// # Errors
    /// No login.
    pub(crate) async fn connect(
        nexus: Nexus,
        portal: SocketAddr,
        options: Options,
        books: Rc<Books>,
    ) -> Result<Self, Error> {
        let url = Url::portal(portal.ip().to_string(), portal.port()).with_unit(NAME, 0);
        let initiator = cdb::name(books.place.ports.initiator(nexus));
        let options = Options { initiator, isid: Some(Isid(cdb::ISID)), ..options };
        let session = Session::connect(&url, options).await?;
        Ok(Self { nexus, session, books, limbo: RefCell::default() })
    }

    /// Runs one command, any.
    pub(crate) async fn step(&self, rng: &mut Rng) {
        // While the fate of one is open, others would multiply the possible states.
        let waits = self.books.owner_changes && !self.limbo.borrow().is_empty();
        let request = if waits { Request::TestUnitReady } else { self.next(rng) };
        if let Err(what) = self.run(request).await {
            self.books.verdict.fail(what);
        }
    }

    /// Logs out. Returns how often the session was made anew.
    pub(crate) async fn close(&self) -> u64 {
        let reconnects = self.session.reconnects();
        if !self.books.verdict.has_failed() {
            drop(self.session.close().await);
        }
        reconnects
    }

    fn next(&self, rng: &mut Rng) -> Request {
        let ports = self.books.place.ports;
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
        let (ports, mut keys) = (self.books.place.ports, self.books.keys.borrow_mut());
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
        let answer = self.answer(op, request).await.map_err(told)?;
        let reconnects = self.session.reconnects();
        books.verdict.note(format_args!("nexus {}: op {op}: {answer:?}", self.nexus));
        let Some(answer) = answer else {
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
        let Answer::Outcome(outcome) = answer else {
            books.history.borrow_mut().give_up(op);
            return Ok(());
        };
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
        match self.answer(0, Request::ReadReservation).await? {
            Some(Answer::Outcome(Outcome::Held(Some((_, kind))))) => Ok(kind),
            _ => Ok(TYPES[0]),
        }
    }

    /// `None` if the command was lost.
    async fn answer(&self, op: OpId, request: Request) -> Result<Option<Answer>, String> {
        let place = self.books.place;
        let until = runtime::clock() + PATIENCE;
        while runtime::clock() < until {
            match self.session.execute(cdb::command(op, request, place).once()).await {
                Ok(response) if matches!(response.status, 0x08 | 0x28) => {
                    runtime::sleep(Duration::from_millis(if self.books.owner_changes { 50 } else { 1 }))
                        .await;
                }
                Ok(response) => match cdb::answer(request, &response, place.ports)? {
                    Answer::Attention => {}
                    Answer::Unknown if !self.books.owner_changes => {
                        return Err(format!(
                            "status {:#04x} with sense {:02x?}",
                            response.status, response.sense
                        ));
                    }
                    answer => return Ok(Some(answer)),
                },
                Err(Error::Lost(_) | Error::TimedOut(_) | Error::Login(_) | Error::Connect { .. }) => {
                    return Ok(None);
                }
                Err(error) => return Err(format!("it ended with an error: {error}")),
            }
        }
        Err("it never gets past unit attentions".into())
    }
}
