//! A world in which the server copies blocks between units for several initiators: EXTENDED COPY
//! with both kinds of list identifiers, and copies by token. A copy reaches the units that its
//! session sees, and those that another session of the same CHAP user sees under the same name on
//! another target. It must reach no other unit, and leave the content there unchanged. Sessions ask
//! for the status of their copies and abort some.
//!
//! Commands that overlap touch different blocks, so that the content of each block is known, except
//! after lost commands.

mod cdb;
mod status;

use std::cell::{Cell, RefCell};
use std::collections::BTreeSet;
use std::ops::Range;
use std::rc::Rc;
use std::time::{Duration, Instant};

use disk::unit::DiskOptions;
use iscsi::chap::{Credential, Hash, Secret};
use iscsi_client::{Chap, Command, Error, Lun, Options, Session, Url};
use iscsi_server::config::{self, Acl, AclLun, Auth, TargetConfig};
use runtime::sim;
use scsi::cdb::build::{self, Flags};
use scsi::{Sense, SenseKey, Status};

use crate::daemon::{self, NAME};
use crate::host::{Host, Medium};

use crate::plan::Plan;
use crate::random::Rng;
use crate::run::{Failure, Report, in_world};
use crate::verdict::Verdict;
use cdb::Segment;
use status::{Copy, How, State, Told};

/// Blocks of each unit, of 512 bytes.
const BLOCKS: usize = 64;
const MOST_BLOCKS: u64 = 12;
/// Units: two of the first target, one of the second.
const UNITS: [(usize, u16); 3] = [(0, 0), (0, 1), (1, 0)];
const TARGETS: [&str; 2] = [NAME, "iqn.2026-01.example.sim:second"];
/// Tries of a command that meets a unit attention or BUSY.
const TRIES: u32 = 1000;
const TIME_LIMIT: Duration = Duration::from_secs(3600);
/// Tokens die after 60 s without use.
const TOKEN_LIFE: Duration = Duration::from_secs(50);
/// Time in which a copy in the background ends whose session can no longer ask for it.
const COPY_LIFE: Duration = Duration::from_secs(2);

/// Runs a seed. `loud` prints each command and its outcome.
///
/// # Errors
/// The rule that was broken, and how.
pub fn run(seed: u64, loud: bool) -> Result<Report, Box<Failure>> {
    let config = sim::Config { time_limit: TIME_LIMIT, ..sim::Config::new(seed) };
    in_world("--copies", seed, config, move || whole(seed, true, loud))
}

/// Runs a seed in which the server takes everyone who claims an initiator's name for the same user:
/// a fault that must be found.
///
/// # Errors
/// The rule that was broken, and how.
pub fn run_by_name(seed: u64) -> Result<Report, Box<Failure>> {
    let config = sim::Config { time_limit: TIME_LIMIT, ..sim::Config::new(seed) };
    in_world("--copies", seed, config, move || whole(seed, false, false))
}

/// A unit as a session sees it.
#[derive(Clone, Copy, Debug)]
struct View {
    lun: u16,
    unit: usize,
    read_only: bool,
}

/// An initiator with a session, and the units that it sees.
#[derive(Clone, Debug)]
struct Party {
    initiator: &'static str,
    user: Option<&'static str>,
    target: usize,
    sees: Vec<View>,
}

const FIRST: &str = "iqn.2026-01.example.sim:first";
const MASKED: &str = "iqn.2026-01.example.sim:masked";

/// The sessions of a seed.
fn parties(rng: &mut Rng) -> Vec<Party> {
    let chap = rng.chance(700);
    let sees = |target: usize| {
        let units = UNITS.iter().enumerate().filter(move |(_, (of, _))| *of == target);
        units.map(|(unit, (_, lun))| View { lun: *lun, unit, read_only: false }).collect::<Vec<_>>()
    };
    let party = |initiator, user, target| Party {
        initiator,
        user: Some(user).filter(|_| chap),
        target,
        sees: sees(target),
    };
    let mut parties = vec![party(FIRST, "alice", 0)];
    if rng.chance(700) {
        parties.push(party(FIRST, "alice", 1));
    }
    if rng.chance(700) {
        // Only the name of the first one.
        parties.push(party(FIRST, "mallory", rng.index(2)));
    }
    if rng.chance(700) {
        let only = View { lun: 0, unit: 1, read_only: rng.chance(500) };
        parties.push(Party { sees: vec![only], ..party(MASKED, "alice", 0) });
    }
    parties
}

/// Configures the server's targets for the same sessions.
fn targets(config: &mut config::ServerConfig, parties: &[Party]) {
    let users = ["alice", "mallory"].map(credential);
    let chap = parties.iter().any(|party| party.user.is_some());
    let first = &config.targets[0];
    let auth = match chap {
        true => Auth::Chap(config::Chap { users: users.to_vec(), mutual: None, hashes: Hash::ALL.to_vec() }),
        false => Auth::None,
    };
    let acl = |initiator: &str| Acl {
        initiator: initiator.to_owned(),
        auth: None,
        user: None,
        luns: None,
        limits: Default::default(),
    };
    let masked = parties.iter().find(|party| party.initiator == MASKED).map(|party| {
        let seen =
            |view: &View| AclLun { seen_as: view.lun, unit: UNITS[view.unit].1, read_only: view.read_only };
        Acl { luns: Some(party.sees.iter().map(seen).collect()), ..acl(MASKED) }
    });
    let acls = Some(masked.into_iter().chain([acl(FIRST)]).collect());
    config.targets = TARGETS
        .map(|name| TargetConfig {
            name: name.into(),
            auth: auth.clone(),
            acls: Option::clone(&acls),
            ..first.clone()
        })
        .to_vec();
    config.targets[1].acls = Some(vec![acl(FIRST)]);
}

fn credential(user: &str) -> Credential {
    Credential { name: user.into(), secret: Secret::new(format!("{user}: a long secret").into_bytes()) }
}

/// Whether a session reaches a unit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Reach {
    No,
    /// Through another session, which may be down.
    Perhaps,
    Yes,
}

/// Blocks of a unit.
type Blocks = (usize, Range<usize>);

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Changed {
    No,
    Perhaps,
    Yes,
}

/// A token, and the blocks that it represents.
#[derive(Clone)]
struct Token {
    bytes: Vec<u8>,
    of: Blocks,
    content: Vec<BTreeSet<u64>>,
    /// Whether its blocks were written since.
    changed: Changed,
    made: Instant,
    /// [`Books::era`] before it.
    era: u64,
}

/// The state that all sessions share.
struct Books {
    parties: Vec<Party>,
    naas: Vec<Vec<u8>>,
    /// Possible values of each block of each unit.
    content: RefCell<Vec<Vec<BTreeSet<u64>>>>,
    /// Readers of each block in flight, or -1 for a writer.
    claims: RefCell<Vec<Vec<i32>>>,
    tokens: RefCell<Vec<Token>>,
    /// Beginnings and ends of disturbances so far.
    era: Cell<u64>,
    last_op: Cell<u64>,
    refused: Cell<u64>,
    verdict: Verdict,
}

/// Blocks that a command in flight reads and writes.
struct Claim {
    books: Rc<Books>,
    reads: Vec<Blocks>,
    writes: Vec<Blocks>,
}

impl Drop for Claim {
    fn drop(&mut self) {
        let mut claims = self.books.claims.borrow_mut();
        for (unit, range) in &self.reads {
            claims[*unit][range.clone()].iter_mut().for_each(|readers| *readers -= 1);
        }
        for (unit, range) in &self.writes {
            claims[*unit][range.clone()].fill(0);
        }
    }
}

fn overlap(one: &Blocks, other: &Blocks) -> bool {
    one.0 == other.0 && one.1.start < other.1.end && other.1.start < one.1.end
}

impl Books {
    fn next_op(&self) -> u64 {
        self.last_op.set(self.last_op.get() + 1);
        self.last_op.get()
    }

    /// `None` if others use the blocks, or the command itself would both read and write some.
    fn claim(self: &Rc<Self>, reads: Vec<Blocks>, writes: Vec<Blocks>) -> Option<Claim> {
        let mut claims = self.claims.borrow_mut();
        let free = |(unit, range): &Blocks, most| {
            claims[*unit][range.clone()].iter().all(|n| (0..=most).contains(n))
        };
        let itself = writes
            .iter()
            .enumerate()
            .any(|(at, write)| reads.iter().chain(&writes[..at]).any(|other| overlap(write, other)));
        if itself || !reads.iter().all(|blocks| free(blocks, i32::MAX)) || !writes.iter().all(|b| free(b, 0))
        {
            return None;
        }
        for (unit, range) in &reads {
            claims[*unit][range.clone()].iter_mut().for_each(|readers| *readers += 1);
        }
        for (unit, range) in &writes {
            claims[*unit][range.clone()].fill(-1);
        }
        Some(Claim { books: self.clone(), reads, writes })
    }

    fn content_of(&self, (unit, range): &Blocks) -> Vec<BTreeSet<u64>> {
        self.content.borrow()[*unit][range.clone()].to_vec()
    }

    /// The tokens of blocks that are written.
    fn touch(&self, blocks: &Blocks, changed: Changed) {
        for token in self.tokens.borrow_mut().iter_mut().filter(|token| overlap(&token.of, blocks)) {
            token.changed = token.changed.max(changed);
        }
    }

    /// Blocks were written; if not `surely`, then perhaps, in part or as a whole.
    fn wrote(&self, (unit, range): &Blocks, new: Vec<BTreeSet<u64>>, surely: bool) {
        if surely {
            self.touch(&(*unit, range.clone()), Changed::Yes);
        }
        for (block, mut new) in self.content.borrow_mut()[*unit][range.clone()].iter_mut().zip(new) {
            if !surely {
                new.append(block);
            }
            *block = new;
        }
    }

    fn disturbed_since(&self, era: u64) -> bool {
        self.era.get() != era || era % 2 == 1
    }

    /// Whether `party` reaches `unit`, to write it if `writes`.
    fn reach(&self, party: &Party, unit: usize, writes: bool) -> Reach {
        if let Some(view) = party.sees.iter().find(|view| view.unit == unit) {
            return if view.read_only && writes { Reach::No } else { Reach::Yes };
        }
        let elsewhere = self.parties.iter().any(|other| {
            party.user.is_some()
                && (other.user, other.initiator) == (party.user, party.initiator)
                && other.target != party.target
                && other.sees.iter().any(|view| view.unit == unit)
        });
        match (elsewhere, self.era.get()) {
            (false, _) => Reach::No,
            (true, 0) => Reach::Yes,
            (true, _) => Reach::Perhaps,
        }
    }
}

/// Result of a command.
enum End {
    Good(Vec<u8>),
    Refused(SenseKey, u8, u8),
    /// The command was lost with its session.
    Lost,
}

/// One session.
struct Client {
    number: usize,
    session: Session,
    books: Rc<Books>,
}

fn stamp(op: u64, block: usize) -> u64 {
    op << 16 | block as u64
}

fn some_blocks(rng: &mut Rng, unit: usize, len: u64) -> Blocks {
    let start = rng.below(BLOCKS as u64 - len + 1) as usize;
    (unit, start..start + len as usize)
}

impl Client {
    fn party(&self) -> &Party {
        &self.books.parties[self.number]
    }

    /// Does one thing. An error is a defect.
    async fn work(self: &Rc<Self>, rng: &mut Rng) -> Result<(), String> {
        let op = self.books.next_op();
        let view = rng.pick(&self.party().sees);
        let len = rng.between(1, MOST_BLOCKS);
        let done = match rng.below(20) {
            0..=3 => self.write(op, view, some_blocks(rng, view.unit, len)).await,
            4..=7 => self.read(view, some_blocks(rng, view.unit, len)).await,
            8..=13 => self.copy(op, view, rng).await,
            14..=15 => self.populate(op, view, some_blocks(rng, view.unit, len)).await,
            _ => self.use_token(op, view, rng).await,
        };
        done.map_err(|what| format!("session {}, op {op}: {what}", self.number))
    }

    async fn write(&self, op: u64, view: View, at: Blocks) -> Result<(), String> {
        let Some(_claim) = self.books.claim(vec![], vec![at.clone()]) else { return Ok(()) };
        let new: Vec<_> = at.1.clone().map(|block| stamp(op, block)).collect();
        let bytes: Vec<u8> = new.iter().flat_map(|stamp| stamp.to_be_bytes().repeat(64)).collect();
        let new = new.into_iter().map(|stamp| BTreeSet::from([stamp])).collect();
        let cdb = build::write10(at.1.start as u32, at.1.len() as u16, Flags::default());
        let command = command(view.lun, &cdb).writing(runtime::Buf::from(bytes));
        self.books.touch(&at, Changed::Perhaps);
        match self.run(op, &format!("WRITE {at:?}"), command).await? {
            End::Good(_) if view.read_only => return Err("a read-only LUN was written".into()),
            End::Good(_) => self.books.wrote(&at, new, true),
            End::Refused(SenseKey::DataProtect, ..) if view.read_only => {}
            End::Lost => self.books.wrote(&at, new, false),
            End::Refused(key, asc, ascq) => return Err(format!("WRITE: {key:?} {asc:#x}/{ascq:#x}")),
        }
        Ok(())
    }

    async fn read(&self, view: View, at: Blocks) -> Result<(), String> {
        let Some(_claim) = self.books.claim(vec![at.clone()], vec![]) else { return Ok(()) };
        let cdb = build::read10(at.1.start as u32, at.1.len() as u16, Flags::default());
        let command = command(view.lun, &cdb).reading(at.1.len() as u32 * 512);
        match self.run(0, &format!("READ {at:?}"), command).await? {
            End::Good(data) => saw(&mut self.books.content.borrow_mut()[at.0], at.1, &data),
            End::Lost => Ok(()),
            End::Refused(key, asc, ascq) => Err(format!("READ: {key:?} {asc:#x}/{ascq:#x}")),
        }
    }

    async fn copy(self: &Rc<Self>, op: u64, view: View, rng: &mut Rng) -> Result<(), String> {
        let (books, party) = (&self.books, self.party());
        let mut pairs: Vec<(Blocks, Blocks)> = Vec::new();
        for _ in 0..rng.pick(&[1, 1, 2, 3]) {
            let len = rng.between(1, MOST_BLOCKS);
            let unit = |rng: &mut Rng| match rng.chance(600) {
                true => rng.pick(&party.sees).unit,
                false => rng.index(UNITS.len()),
            };
            let (from, to) = (unit(rng), unit(rng));
            pairs.push((some_blocks(rng, from, len), some_blocks(rng, to, len)));
        }
        let (reads, writes): (Vec<_>, Vec<_>) = pairs.iter().cloned().unzip();
        let Some(_claim) = books.claim(reads, writes) else { return Ok(()) };
        let reach = |pair: &(Blocks, Blocks)| {
            books.reach(party, pair.0.0, false).min(books.reach(party, pair.1.0, true))
        };
        // Segments are copied in order, up to the first one out of reach.
        let begun = pairs.iter().position(|pair| reach(pair) == Reach::No).unwrap_or(pairs.len());
        let all = begun == pairs.len();
        let perhaps = pairs.iter().any(|pair| reach(pair) == Reach::Perhaps);
        let segment = |(from, to): &(Blocks, Blocks)| Segment {
            from: from.0 as u16,
            from_lba: from.1.start as u64,
            to: to.0 as u16,
            to_lba: to.1.start as u64,
            blocks: from.1.len() as u16,
        };
        let segments: Vec<_> = pairs.iter().map(segment).collect();
        let lid4 = rng.chance(500);
        let how = How { lid4, held: lid4 || rng.chance(600), immediate: lid4 && rng.chance(400) };
        let bytes = pairs.iter().map(|(from, _)| from.1.len() as u64 * 512).collect();
        let before = (books.era.get(), self.session.reconnects());
        let copy = Rc::new(Copy::new(how, view.lun, op as u32, bytes, before));
        let command = cdb::extended_copy(view.lun, how, op as u32, &books.naas, &segments);
        pairs[..begun].iter().for_each(|(_, to)| books.touch(to, Changed::Perhaps));
        let what = format!("EXTENDED COPY {pairs:?}, {how:?}, in reach: {all}");
        let watch = (!how.immediate && rng.chance(600))
            .then(|| runtime::spawn(self.clone().watch(copy.clone(), rng.fork())));
        let mut end = self.run(op, &what, command).await?;
        copy.ended.set(true);
        if let Some(watch) = watch {
            watch.await.map_err(|error| format!("{error:?}"))??;
        }
        if how.immediate && matches!(end, End::Good(_)) {
            end = self.follow(&copy, rng).await?;
        }
        let copied = self.settle(&copy, &end).await?;
        let good = matches!(end, End::Good(_));
        match end {
            End::Good(_) if !all => return Err("a copy reached a unit that it must not reach".into()),
            End::Refused(..) if !all => books.refused.set(books.refused.get() + 1),
            End::Refused(SenseKey::CopyAborted, 0, 0) if copy.aborted.get() => {}
            End::Refused(SenseKey::CopyAborted, 0x0d, 2) if perhaps || books.era.get() > 0 => {}
            End::Refused(key, asc, ascq) => {
                return Err(format!("EXTENDED COPY in reach: {key:?} {asc:#x}/{ascq:#x}"));
            }
            End::Good(_) | End::Lost => {}
        }
        if copied > begun {
            return Err(format!("the status tells of {copied} copied segments, and {begun} are in reach"));
        }
        for (n, (from, to)) in pairs[..begun].iter().enumerate() {
            books.wrote(to, books.content_of(from), good || n < copied);
        }
        Ok(())
    }

    /// Whether the server may have forgotten a copy.
    fn may_be_forgotten(&self, copy: &Copy) -> bool {
        let (era, reconnects) = copy.before;
        self.books.disturbed_since(era) || self.session.reconnects() != reconnects
    }

    /// The status of a copy; `None` if there is none, or the command was lost.
    async fn status(&self, copy: &Copy) -> Result<Option<Told>, String> {
        let told = match self.ending(copy.ask()).await? {
            End::Good(data) => Some(copy.read(&data)?),
            End::Refused(SenseKey::IllegalRequest, 0x24, 0) | End::Lost => None,
            End::Refused(key, asc, ascq) => return Err(format!("COPY STATUS: {key:?} {asc:#x}/{ascq:#x}")),
        };
        self.books.verdict.note(format_args!("session {}: op {}: {told:?}", self.number, copy.id));
        Ok(told)
    }

    /// COPY OPERATION ABORT. If it succeeds, the copy has ended.
    async fn abort(&self, copy: &Copy) -> Result<(), String> {
        copy.aborted.set(true);
        match self.ending(copy.abort()).await? {
            End::Good(_) => match self.status(copy).await? {
                Some(Told { state: State::Running, .. }) => Err("an aborted copy goes on".into()),
                None if !self.may_be_forgotten(copy) => Err("an aborted copy has no status".into()),
                _ => Ok(()),
            },
            End::Refused(SenseKey::IllegalRequest, 0x24, 0) | End::Lost => Ok(()),
            End::Refused(key, asc, ascq) => Err(format!("COPY OPERATION ABORT: {key:?} {asc:#x}/{ascq:#x}")),
        }
    }

    /// Asks for the status of a copy in the foreground until it ends, and may abort it.
    async fn watch(self: Rc<Self>, copy: Rc<Copy>, mut rng: Rng) -> Result<(), String> {
        while !copy.ended.get() {
            runtime::sleep(Duration::from_micros(rng.below(4000))).await;
            if copy.how.lid4 && rng.chance(100) {
                self.abort(&copy).await?;
            }
            let was_told = copy.told.get().is_some();
            match self.status(&copy).await? {
                Some(Told { state: State::Running, .. }) => {}
                Some(_) => return Ok(()),
                None if was_told && copy.how.held && !self.may_be_forgotten(&copy) => {
                    return Err("a running copy has no status".into());
                }
                None => {}
            }
        }
        Ok(())
    }

    /// The end of a copy in the background, which may be aborted.
    async fn follow(&self, copy: &Copy, rng: &mut Rng) -> Result<End, String> {
        loop {
            runtime::sleep(Duration::from_micros(rng.below(4000))).await;
            if rng.chance(100) {
                self.abort(copy).await?;
            }
            match self.status(copy).await?.map(|told| told.state) {
                Some(State::Running) => {}
                Some(State::Done) => return Ok(End::Good(Vec::new())),
                Some(State::Failed(Some((key, asc, ascq)))) => return Ok(End::Refused(key, asc, ascq)),
                Some(State::Failed(None) | State::Terminated) => {
                    return Ok(End::Refused(SenseKey::CopyAborted, 0, 0));
                }
                None if self.may_be_forgotten(copy) => {
                    runtime::sleep(COPY_LIFE).await;
                    return Ok(End::Lost);
                }
                None => return Err("a copy in the background has no status".into()),
            }
        }
    }

    /// Compares the status of a copy with its end. Returns how many segments it tells to be copied.
    async fn settle(&self, copy: &Copy, end: &End) -> Result<usize, String> {
        let before = copy.told.get().filter(|told| told.state != State::Running);
        let told = self.status(copy).await?;
        let is_told_once = !copy.how.lid4 && before.is_some_and(|told| told.state == State::Done);
        let (told, last) = match (told, before) {
            _ if self.may_be_forgotten(copy) => return Ok(0),
            (Some(_), _) if is_told_once => return Err("the status of a LID1 copy is told twice".into()),
            (None, None) if copy.how.held => return Err("the status of an ended copy is not held".into()),
            (None, None) => return Ok(0),
            (told, before) => (told, told.or(before)),
        };
        let Some(last) = last else { return Ok(0) };
        let is_right = match (last.state, end) {
            (State::Done, End::Good(_)) => true,
            (State::Failed(None), End::Refused(..)) => true,
            (State::Failed(Some(code)), End::Refused(key, asc, ascq)) => code == (*key, *asc, *ascq),
            (State::Terminated, End::Refused(SenseKey::CopyAborted, ..)) => true,
            // The end is unknown.
            (State::Done | State::Failed(_) | State::Terminated, End::Lost) => true,
            _ => false,
        };
        if !is_right {
            return Err(format!("the status of an ended copy is {last:?}"));
        }
        if let (State::Failed(None), End::Refused(key, asc, ascq)) = (last.state, end) {
            self.details(copy, (*key, *asc, *ascq)).await?;
        }
        if told.is_some() && last.state == State::Done && !copy.how.lid4 && self.status(copy).await?.is_some()
        {
            return Err("the status of a LID1 copy is told twice".into());
        }
        Ok(if last.state == State::Done { last.segments } else { last.segments.saturating_sub(1) })
    }

    /// The details of a failed LID1 copy, which are told once.
    async fn details(&self, copy: &Copy, code: status::Code) -> Result<(), String> {
        let first = self.ending(copy.ask_for_details()).await?;
        let again = self.ending(copy.ask_for_details()).await?;
        match (first, again) {
            _ if self.may_be_forgotten(copy) => Ok(()),
            (End::Good(data), End::Refused(SenseKey::IllegalRequest, 0x24, 0)) => {
                match status::details_in(&data) {
                    Some(details) if details == code => Ok(()),
                    details => Err(format!("failure details {details:?} instead of {code:?}")),
                }
            }
            _ => Err("failure details are not told, or told twice".into()),
        }
    }

    async fn populate(&self, op: u64, view: View, of: Blocks) -> Result<(), String> {
        let books = &self.books;
        let Some(_claim) = books.claim(vec![of.clone()], vec![]) else { return Ok(()) };
        let (era, made) = (books.era.get(), runtime::clock());
        let (lba, blocks) = (of.1.start as u64, of.1.len() as u32);
        let populate = cdb::populate_token(view.lun, op as u32, lba, blocks);
        let populated = self.run(op, &format!("POPULATE TOKEN {of:?}"), populate).await?;
        let token = match populated {
            End::Good(_) => {
                self.run(op, "RECEIVE ROD TOKEN", cdb::receive_token(view.lun, op as u32)).await?
            }
            other => other,
        };
        match token {
            End::Good(data) => {
                let bytes = cdb::token_in(&data).ok_or("no token")?;
                let content = books.content_of(&of);
                let token = Token { bytes, of, content, changed: Changed::No, made, era };
                books.tokens.borrow_mut().push(token);
                Ok(())
            }
            End::Lost => Ok(()),
            End::Refused(..) if books.disturbed_since(era) => Ok(()),
            End::Refused(key, asc, ascq) => Err(format!("POPULATE TOKEN: {key:?} {asc:#x}/{ascq:#x}")),
        }
    }

    async fn use_token(&self, op: u64, view: View, rng: &mut Rng) -> Result<(), String> {
        let (books, party) = (&self.books, self.party());
        let count = books.tokens.borrow().len();
        if count == 0 {
            return Ok(());
        }
        let at = rng.index(count);
        let before = books.tokens.borrow()[at].clone();
        let to = some_blocks(rng, view.unit, before.of.1.len() as u64);
        let Some(_claim) = books.claim(vec![], vec![to.clone()]) else { return Ok(()) };
        let reach = books.reach(party, before.of.0, false);
        let in_reach = reach != Reach::No && !view.read_only;
        let (lba, blocks) = (to.1.start as u64, to.1.len() as u32);
        let command = cdb::write_using_token(view.lun, op as u32, &before.bytes, lba, blocks);
        if in_reach {
            books.touch(&to, Changed::Perhaps);
        }
        let what = format!("WRITE USING TOKEN of {:?} to {to:?}, in reach: {in_reach}", before.of);
        let end = self.run(op, &what, command).await?;
        let after = books.tokens.borrow()[at].changed;
        let excused = reach == Reach::Perhaps
            || after != Changed::No
            || books.disturbed_since(before.era)
            || runtime::clock() > before.made + TOKEN_LIFE;
        match end {
            End::Good(_) if !in_reach => return Err("a token reached a unit that it must not reach".into()),
            End::Good(_) if before.changed == Changed::Yes => {
                return Err("a token was used after its blocks had been written".into());
            }
            End::Good(_) => books.wrote(&to, before.content, true),
            End::Refused(..) if !in_reach => books.refused.set(books.refused.get() + 1),
            End::Refused(..) if excused => books.wrote(&to, before.content, false),
            End::Refused(key, asc, ascq) => {
                return Err(format!("WRITE USING TOKEN: {key:?} {asc:#x}/{ascq:#x}"));
            }
            End::Lost if in_reach => books.wrote(&to, before.content, false),
            End::Lost => {}
        }
        Ok(())
    }

    /// Runs a command to its end. After a loss nothing more of it is executed.
    async fn run(&self, op: u64, what: &str, command: Command) -> Result<End, String> {
        self.books.verdict.note(format_args!("session {}: op {op}: {what}", self.number));
        let end = self.ending(command).await?;
        let told: &dyn std::fmt::Debug = match &end {
            End::Good(_) => &"good",
            End::Refused(key, asc, ascq) => &(*key, *asc, *ascq),
            End::Lost => &"lost",
        };
        self.books.verdict.note(format_args!("session {}: op {op}: {told:?}", self.number));
        if matches!(end, End::Lost) {
            // The session's next answer proves that the lost session and its tasks are gone.
            let ready = command_of_no_data();
            while let End::Lost = self.ending(ready.clone()).await? {
                runtime::sleep(Duration::from_millis(10)).await;
            }
        }
        Ok(end)
    }

    async fn ending(&self, command: Command) -> Result<End, String> {
        for _ in 0..TRIES {
            let response = match self.session.execute(command.clone().once()).await {
                Ok(response) => response,
                Err(Error::Lost(_) | Error::TimedOut(_) | Error::Login(_) | Error::Connect { .. }) => {
                    return Ok(End::Lost);
                }
                Err(error) => return Err(format!("it ended with an error: {error}")),
            };
            let sense = Sense::parse(&response.sense);
            let code = sense.map(|sense| (sense.key, sense.additional.asc, sense.additional.ascq));
            match (Status::from_code(response.status), code) {
                (Some(Status::Good), _) => return Ok(End::Good(response.data.to_vec())),
                (Some(Status::Busy | Status::TaskSetFull), _) => {
                    runtime::sleep(Duration::from_millis(1)).await
                }
                (_, Some((SenseKey::UnitAttention, ..))) => {}
                (_, Some((key, asc, ascq))) => return Ok(End::Refused(key, asc, ascq)),
                _ => {
                    return Err(format!(
                        "status {:#04x} with sense {:02x?}",
                        response.status, response.sense
                    ));
                }
            }
        }
        Err("it never gets past unit attentions".into())
    }
}

fn command(lun: u16, cdb: &[u8]) -> Command {
    Command::new(Lun::new(lun).unwrap_or(Lun::ZERO), cdb)
}

fn command_of_no_data() -> Command {
    command(0, &build::test_unit_ready())
}

/// Checks blocks that were read.
fn saw(unit: &mut [BTreeSet<u64>], range: Range<usize>, data: &[u8]) -> Result<(), String> {
    for (block, seen) in range.zip(data.chunks(512)) {
        let value = seen.get(..8).and_then(|word| word.try_into().ok()).map_or(0, u64::from_be_bytes);
        let whole = value.to_be_bytes().repeat(64) == seen;
        if !whole || !unit[block].contains(&value) {
            let may = &unit[block];
            return Err(format!("block {block} holds {value:#x} (whole: {whole}), and may hold {may:#x?}"));
        }
        unit[block] = BTreeSet::from([value]);
    }
    Ok(())
}

async fn whole(seed: u64, users: bool, loud: bool) -> Result<Report, String> {
    let mut rng = Rng::new(seed ^ 0x434f_5059);
    let mut settings = Plan::new(seed).target;
    (settings.iser, settings.chap) = (None, None);
    let mut config = daemon::config(&settings);
    let cores = daemon::cores(1 + rng.index(3));
    let parties = parties(&mut rng);
    targets(&mut config, &parties);
    let medium = |unit: usize| {
        let options = DiskOptions::default().with_identity(&format!("unit {unit}"));
        Medium::new(BLOCKS, options, UNITS[unit])
    };
    let media: Vec<_> = (0..UNITS.len()).map(medium).collect();
    let naas = media.iter().map(|medium| medium.options.identity.naa.clone()).collect();
    let mut host = Host::new(cores, config, media, rng.pick(&[1, 1000, 20_000]));
    host.start()?;
    let books = Rc::new(Books {
        parties,
        naas,
        content: RefCell::new(vec![vec![BTreeSet::from([0]); BLOCKS]; UNITS.len()]),
        claims: RefCell::new(vec![vec![0; BLOCKS]; UNITS.len()]),
        tokens: RefCell::default(),
        era: Cell::new(0),
        last_op: Cell::new(0),
        refused: Cell::new(0),
        verdict: Verdict::new(loud),
    });
    let mut clients = Vec::new();
    for (number, party) in books.parties.iter().enumerate() {
        books.verdict.note(format_args!("session {number}: {party:?}"));
        let url = Url::portal("10.0.0.200", 3260).with_unit(TARGETS[party.target], 0);
        // The fault: the server sees one user behind all names.
        let seen = |user| if users { user } else { "alice" };
        let chap = |user| Chap { credential: credential(seen(user)), target: None, hashes: Vec::new() };
        let options = Options {
            initiator: party.initiator.to_owned(),
            chap: party.user.map(chap),
            connections: rng.pick(&[1, 1, 2]),
            error_recovery_level: rng.pick(&[0, 2]),
            reconnect_timeout: Duration::from_secs(600),
            max_replays: 250,
            ..Options::default()
        };
        let session = Session::connect(&url, options).await.map_err(|error| format!("no login: {error}"))?;
        clients.push(Rc::new(Client { number, session, books: books.clone() }));
    }
    // All sessions exist before the first copy, so that it is known which units they reach.
    let mut running = Vec::new();
    for client in clients.iter().flat_map(|client| [client, client]) {
        running.push(runtime::spawn(lane(client.clone(), rng.fork())));
    }
    let most = rng.pick(&[0, 0, 1, 4]);
    let changes = |_| books.era.set(books.era.get() + 1);
    let restarts = host.troubles(most, &books.verdict, &running, &mut rng, changes).await?;
    for lane in running {
        lane.await.map_err(|error| format!("a session: {error:?}"))?;
    }
    let reconnects = clients.iter().map(|client| client.session.reconnects()).sum();
    if let Some(what) = books.verdict.wrong() {
        return Err(what);
    }
    for client in clients {
        drop(client.session.close().await);
    }
    host.kill().await;
    for (unit, content) in books.content.borrow_mut().iter_mut().enumerate() {
        saw(content, 0..BLOCKS, &host.medium(unit, BLOCKS))
            .map_err(|what| format!("at the end, unit {unit}: {what}"))?;
    }
    let (commands, refused) = (books.last_op.get(), books.refused.get());
    Ok(Report { commands, refused, restarts, reconnects, ..Report::default() })
}

async fn lane(client: Rc<Client>, mut rng: Rng) {
    let pause = rng.pick(&[0, 2000, 50_000]);
    for _ in 0..24 {
        runtime::sleep(Duration::from_micros(rng.below(pause))).await;
        if client.books.verdict.has_failed() {
            return;
        }
        if let Err(what) = client.work(&mut rng).await {
            client.books.verdict.fail(what);
        }
    }
}
