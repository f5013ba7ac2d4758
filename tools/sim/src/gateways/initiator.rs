//! An initiator: one command at a time, over one of its paths. It gives a path up that is lost or
//! silent, and goes on over another one.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use iscsi_client::{Command, Lun, Options, Response, Session, Url};
use runtime::Buf;
use scsi::cdb::build::{Flags, compare_and_write, read10, write10};
use scsi::{Sense, SenseKey};

use super::judge::{Block, End, Judge, Kind, stamped};
use super::node::portal;
use super::{APART, BLOCKS, NODES, WRITTEN, lock};
use crate::daemon::NAME;
use crate::random::Rng;
use crate::verdict::Verdict;

/// A path that has been silent for so long is pinged, and lost after as long again. Together longer
/// than twice `Timers::fresh`, as the design page asks of initiators.
pub(super) const SILENT: Duration = Duration::from_secs(3);
/// Delay before a lost path's command is given up (`replacement_timeout`).
const REPLACED: Duration = Duration::from_secs(5);

pub(super) struct Initiator {
    number: usize,
    judge: Arc<Mutex<Judge>>,
    verdict: Rc<Verdict>,
    rng: RefCell<Rng>,
    commands: Cell<u64>,
    /// When a unit has last answered with GOOD.
    answered: RefCell<BTreeMap<usize, Instant>>,
    /// The number that was last seen in a block.
    seen: RefCell<BTreeMap<Block, u64>>,
    is_ending: Cell<bool>,
}

impl std::fmt::Debug for Initiator {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "initiator {} ({:?})", self.number, self.answered.borrow())
    }
}

impl Initiator {
    pub(super) fn new(
        number: usize,
        judge: Arc<Mutex<Judge>>,
        verdict: Rc<Verdict>,
        rng: &mut Rng,
    ) -> Rc<Self> {
        Rc::new(Self {
            number,
            judge,
            verdict,
            rng: RefCell::new(rng.fork()),
            commands: Cell::new(0),
            answered: RefCell::default(),
            seen: RefCell::default(),
            is_ending: Cell::new(false),
        })
    }

    /// Ends its work after the command in flight.
    pub(super) fn stop(&self) {
        self.is_ending.set(true);
    }

    /// Each unit has answered since then.
    pub(super) fn has_answers_since(&self, then: Instant) -> bool {
        let answered = self.answered.borrow();
        (0..WRITTEN).all(|unit| answered.get(&unit).is_some_and(|at| *at > then))
    }

    fn index(&self, below: usize) -> usize {
        self.rng.borrow_mut().index(below)
    }

    /// Sends commands until it is stopped.
    pub(super) async fn work(self: Rc<Self>) {
        let mut path = 1 + self.number % NODES;
        while !self.is_ending.get() {
            if let Some(session) = self.connect(path).await {
                self.use_path(&session, path).await;
                session.end();
            } else {
                runtime::sleep(Duration::from_millis(100)).await;
            }
            path = 1 + (path + self.index(NODES - 1)) % NODES;
        }
    }

    async fn connect(&self, path: usize) -> Option<Session> {
        let portal = portal(path as u8);
        let url = Url::portal(portal.ip().to_string(), portal.port()).with_unit(NAME, 0);
        let options = Options {
            initiator: format!("iqn.2026-01.example.sim:initiator-{}", self.number),
            connect_timeout: Duration::from_secs(2),
            ping_interval: SILENT,
            command_timeout: Duration::from_secs(100),
            reconnect_timeout: Duration::ZERO,
            max_replays: 0,
            ..Options::default()
        };
        Session::connect(&url, options).await.ok()
    }

    /// Sends commands until the path is lost, or another one is tried.
    async fn use_path(&self, session: &Session, path: usize) {
        for _ in 0..1 + self.index(200) {
            if self.is_ending.get() {
                return;
            }
            let number = self.commands.get() + 1 + self.number as u64 * (1 << 40);
            self.commands.set(self.commands.get() + 1);
            let block = (self.index(WRITTEN), self.index(BLOCKS));
            let known = self.seen.borrow().get(&block).copied().unwrap_or(0);
            let kind = match self.index(10) {
                0..4 => Kind::Read,
                4..8 => Kind::Write,
                _ => Kind::Swap(known),
            };
            lock(&self.judge).begins(number, block, kind);
            let Ok(response) = session.execute(command(number, block, kind)).await else {
                self.verdict
                    .note(format_args!("initiator {}: path {path} is lost with {number}", self.number));
                runtime::sleep(REPLACED).await;
                return lock(&self.judge).gives_up(number);
            };
            self.judge_end(number, block, kind, response);
            let thinks = self.rng.borrow_mut().below(120_000);
            runtime::sleep(Duration::from_micros(thinks)).await;
        }
    }

    fn judge_end(&self, number: u64, block: Block, kind: Kind, response: Response) {
        let sense = Sense::parse(&response.sense);
        let data = response.data.to_vec();
        self.verdict.note(format_args!(
            "initiator {}: {number}, {kind:?} of {block:?}: status {:#x} {sense:?}",
            self.number, response.status,
        ));
        let end = match (response.status, sense.as_ref().map(|sense| sense.key)) {
            (0, _) => {
                self.answered.borrow_mut().insert(block.0, runtime::clock());
                let there = match kind {
                    Kind::Read => data.first_chunk().map_or(0, |bytes| u64::from_le_bytes(*bytes)),
                    Kind::Write | Kind::Swap(_) => number,
                };
                self.seen.borrow_mut().insert(block, there);
                return lock(&self.judge).good(number, &data);
            }
            // BUSY.
            (8, _) | (2, Some(SenseKey::UnitAttention)) => End::NotBegun,
            (2, Some(SenseKey::Miscompare)) => End::Differs,
            (2, Some(SenseKey::AbortedCommand | SenseKey::NotReady)) => End::Unknown,
            (status, _) => {
                return self.verdict.fail(format!("{kind:?} ended with status {status:#x}, {sense:?}"));
            }
        };
        lock(&self.judge).ends(number, end);
    }
}

fn command(number: u64, (unit, block): Block, kind: Kind) -> Command {
    let lun = Lun::flat(unit as u16).unwrap_or(Lun::ZERO);
    let lba = (block as u64 * APART / 512) as u32;
    match kind {
        Kind::Read => Command::new(lun, &read10(lba, 1, Flags::default())).reading(512),
        Kind::Write => {
            Command::new(lun, &write10(lba, 1, Flags::default())).writing(Buf::from(stamped(number)))
        }
        Kind::Swap(expected) => {
            let both = [stamped(expected), stamped(number)].concat();
            Command::new(lun, &compare_and_write(lba.into(), 1, Flags::default())).writing(Buf::from(both))
        }
    }
    .once()
}
