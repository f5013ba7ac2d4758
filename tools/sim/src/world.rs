//! One run: everything in one loop, in simulated time.

use std::cell::{Cell, RefCell};
use std::fmt;
use std::rc::Rc;
use std::sync::Arc;

use backing::StoreError;
use backing::faulty::{Action, Faults, FaultyStore, Operations, Rule};
use backing::model::ModelStore;

use crate::clock::{Clock, MS, Micros, SECOND};
use crate::initiator::{Initiator, Shared};
use crate::network::{LinkId, Network, Side};
use crate::oracle::{Oracle, SECTOR};
use crate::plan::{InitiatorPlan, Plan, Trouble};
use crate::random::Rng;
use crate::target::{Target, send_targets};
use crate::trace::{Trace, note};
use crate::workload::{Excuses, Workload};

/// Simulated time in which something must have come of something.
const PATIENCE: Micros = 300 * SECOND;
/// Rounds at one moment of time.
const MOST_ROUNDS: u32 = 100_000;
/// EIO.
const EIO: StoreError = StoreError::Io(5);

/// What a run came to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Report {
    /// The seed.
    pub seed: u64,
    /// A digest of everything that happened.
    pub digest: u64,
    /// Lines of the record.
    pub lines: u64,
    /// Commands that ended.
    pub commands: u64,
    /// Sessions that were lost and made anew.
    pub losses: u64,
    /// Power cuts and kills.
    pub restarts: u64,
    /// Connections that were lost while their session went on.
    pub connections: u64,
    /// Tasks that went on on another connection.
    pub reassigns: u64,
    /// Bytes of writes that landed.
    pub landed: u64,
    /// How long it took, in simulated time.
    pub time: Micros,
}

/// What went wrong in a run.
#[derive(Clone, Debug)]
pub struct Failure {
    /// The seed.
    pub seed: u64,
    /// What must never happen, and did.
    pub what: String,
    /// Where everybody stood.
    pub state: Vec<String>,
    /// The newest lines of the record.
    pub trace: Vec<String>,
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for line in self.trace.iter().chain(&self.state) {
            writeln!(f, "{line}")?;
        }
        write!(f, "seed {}: {}\nagain: SIM_SEED={} cargo test -p sim", self.seed, self.what, self.seed)
    }
}

struct World {
    seed: u64,
    plan: Plan,
    clock: Rc<Clock>,
    trace: Rc<Trace>,
    network: Rc<RefCell<Network>>,
    model: ModelStore,
    faults: Faults,
    target: Rc<Target>,
    initiators: Vec<Initiator>,
    oracle: Rc<RefCell<Oracle>>,
    excuses: Rc<Cell<Excuses>>,
    /// Lives of the target that have ended.
    incarnation: Rc<Cell<u64>>,
    rng: Rng,
    /// Troubles still to come.
    next_trouble: usize,
    /// The target is killed then.
    kill_at: Option<(Micros, bool, Micros)>,
    /// It is started then.
    start_at: Option<Micros>,
    /// Troubles that may have cost sessions.
    disruptions: u64,
    restarts: u64,
    /// When something last came of something.
    progress: (u64, Micros),
    finishing: bool,
    /// A sync was made to fail since the store was opened.
    sync_failed: bool,
}

/// Runs a seed. `loud` prints the record as it grows.
///
/// # Errors
/// What must never happen, and did.
pub fn run(seed: u64, loud: bool) -> Result<Report, Box<Failure>> {
    let mut world = World::new(seed, Plan::new(seed), loud);
    world.run().map_err(|what| Box::new(world.failure(what)))
}

/// Runs a seed in which nothing goes wrong but links that break, many of them, if its world is at ErrorRecoveryLevel 2.
pub fn run_with_cuts(seed: u64) -> Option<Result<Report, Box<Failure>>> {
    let mut plan = Plan::new(seed);
    let keeps = |initiator: &InitiatorPlan| initiator.offer.error_recovery_level == 2;
    if plan.target.level < 2 || !plan.initiators.iter().all(keeps) {
        return None;
    }
    let commands: u64 = plan.initiators.iter().map(|initiator| initiator.commands).sum();
    plan.troubles = (1..=8).map(|part| (commands * part / 9, Trouble::Cut)).collect();
    // Time for the slowest of links.
    plan.target.time2retain = 60;
    for initiator in &mut plan.initiators {
        initiator.offer.default_time2retain_s = 60;
        initiator.mix.logout = 0;
    }
    let mut world = World::new(seed, plan, false);
    Some(world.run().map_err(|what| Box::new(world.failure(what))))
}

/// A fault that the rules do not allow. A simulator that does not find it proves nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sabotage {
    /// Some writes of the store are said to be done, and are not.
    LostWrites,
    /// Syncs of the store are said to be done, and are not.
    LyingSyncs,
    /// A write of the store never ends.
    EndlessWrite,
    /// Data that lands is damaged.
    SpoiltLandings,
    /// Data that a read has for its initiator changes when the read moves to another connection.
    SpoiltMoves,
}

/// Runs a seed with a fault that must be found.
///
/// # Errors
/// As [`run`].
pub fn run_sabotaged(seed: u64, sabotage: Sabotage) -> Result<Report, Box<Failure>> {
    let mut world = World::new(seed, Plan::new(seed), false);
    let writes = Operations::WRITE.or(Operations::ZEROS).or(Operations::DISCARD);
    match sabotage {
        Sabotage::LostWrites => {
            world.faults.add(Rule::new(writes, Action::Lie).after(30).times(3));
        }
        Sabotage::LyingSyncs => {
            world.faults.add(Rule::new(Operations::SYNC, Action::Lie));
        }
        Sabotage::EndlessWrite => {
            let never = Action::Delay(u64::MAX..u64::MAX);
            world.faults.add(Rule::new(writes, never).after(30).times(1));
        }
        Sabotage::SpoiltLandings => world.target.spoil_landings(),
        Sabotage::SpoiltMoves => world.target.spoil_moves(),
    }
    world.run().map_err(|what| Box::new(world.failure(what)))
}

impl World {
    fn new(seed: u64, plan: Plan, loud: bool) -> Self {
        let mut rng = Rng::new(seed);
        let clock = Rc::new(Clock::default());
        let trace = Rc::new(Trace::new(clock.clone(), loud));
        let network = Rc::new(RefCell::new(Network::new(rng.fork())));
        let bytes = plan.blocks as usize * plan.block as usize;
        let mut model = ModelStore::new(bytes, SECTOR as u32);
        if plan.lands {
            model = model.landing().expect("a few megabytes of memory");
        }
        let faults = Faults::new();
        if let Some(delay) = plan.store_delay {
            faults.add(Rule::new(Operations::ALL, Action::Delay(0..delay)).seed(rng.bits()));
        }
        let store = FaultyStore::new(Arc::new(model.clone()), faults.clone());
        let target = Target::new(
            plan.target.clone(),
            plan.disk.clone(),
            Arc::new(store),
            network.clone(),
            clock.clone(),
            trace.clone(),
            rng.fork(),
        );
        let oracle = Rc::new(RefCell::new(Oracle::new(bytes / SECTOR, plan.block as usize / SECTOR)));
        let excuses = Rc::new(Cell::new(Excuses::default()));
        let incarnation = Rc::<Cell<u64>>::default();
        let shared = Shared {
            clock: clock.clone(),
            trace: trace.clone(),
            network: network.clone(),
            quality: plan.quality,
            oracle: oracle.clone(),
            last_op: Rc::default(),
            excuses: excuses.clone(),
            incarnation: incarnation.clone(),
            chap: plan.target.chap.clone(),
            text: Rc::new(send_targets(plan.target.text_len)),
            queue_depth: plan.target.queue_depth,
            resets_by_others: plan.resets_by_others,
        };
        let initiators = plan.initiators.iter().enumerate().map(|(number, own)| {
            let workload = Workload::new(&plan, own);
            let size = (plan.blocks, plan.most_blocks);
            Initiator::new(number, own.clone(), workload, size, shared.clone(), rng.fork())
        });
        let initiators = initiators.collect();
        Self {
            seed,
            clock,
            trace,
            network,
            model,
            faults,
            target,
            initiators,
            oracle,
            excuses,
            incarnation,
            rng,
            next_trouble: 0,
            kill_at: None,
            start_at: None,
            disruptions: 0,
            restarts: 0,
            progress: (0, 0),
            finishing: false,
            sync_failed: false,
            plan,
        }
    }

    fn run(&mut self) -> Result<Report, String> {
        loop {
            self.settle()?;
            self.check()?;
            if self.initiators.iter().all(Initiator::is_over) {
                break;
            }
            self.advance()?;
        }
        self.last_look()?;
        let commands = self.initiators.iter().map(Initiator::ended).sum();
        Ok(Report {
            seed: self.seed,
            digest: self.trace.digest(),
            lines: self.trace.count(),
            commands,
            losses: self.initiators.iter().map(|initiator| initiator.mishaps().0).sum(),
            restarts: self.restarts,
            connections: self.initiators.iter().map(|initiator| initiator.recoveries().0).sum(),
            landed: self.target.landed(),
            reassigns: self.initiators.iter().map(|initiator| initiator.recoveries().1).sum(),
            time: self.clock.now(),
        })
    }

    /// Lets everybody do what there is to do at this moment.
    fn settle(&mut self) -> Result<(), String> {
        for _ in 0..MOST_ROUNDS {
            let now = self.clock.now();
            self.network.borrow_mut().deliver(now);
            self.faults.step(0);
            let mut moved = self.target.pump();
            for initiator in &mut self.initiators {
                moved |= initiator.pump()?;
            }
            moved |= self.make_trouble();
            if let Some(incident) = self.target.incident() {
                return Err(incident);
            }
            if !moved {
                return Ok(());
            }
        }
        Err("there is no end of things to do at one moment".to_owned())
    }

    /// Moves time to the next thing that happens.
    fn advance(&mut self) -> Result<(), String> {
        let now = self.clock.now();
        let initiators = self.initiators.iter().filter_map(Initiator::next_event);
        let others = [
            self.network.borrow().next_event(now),
            self.target.next_event(),
            self.faults.next_step().map(|steps| now + steps),
            self.kill_at.map(|(at, ..)| at),
            self.start_at,
        ];
        let next = initiators.chain(others.into_iter().flatten()).filter(|at| *at > now).min();
        let Some(next) = next else { return Err("nothing will ever happen again".to_owned()) };
        self.clock.advance_to(next);
        self.faults.step(next - now);
        let ended: u64 = self.initiators.iter().map(Initiator::ended).sum();
        if ended != self.progress.0 {
            self.progress = (ended, next);
        }
        if next > self.progress.1 + PATIENCE {
            return Err(format!("nothing has ended for {} seconds", PATIENCE / SECOND));
        }
        Ok(())
    }

    /// Rules of the whole.
    fn check(&mut self) -> Result<(), String> {
        let most = self.target.most_queued((self.plan.most_blocks * u64::from(self.plan.block)) as usize);
        let longest = self.target.longest_queue();
        if longest > most {
            return Err(format!("{longest} bytes queued to one peer, more than {most}"));
        }
        for (number, initiator) in self.initiators.iter().enumerate() {
            let (losses, failed) = initiator.mishaps();
            if losses + failed > 0 && self.disruptions == 0 {
                return Err(format!("initiator {number} lost a session, or a login, for no reason"));
            }
            if losses > self.disruptions {
                return Err(format!(
                    "initiator {number} lost {losses} sessions by {} troubles",
                    self.disruptions
                ));
            }
        }
        if !self.finishing && self.initiators.iter().all(Initiator::is_waiting) {
            // What is left of the troubles does not come any more.
            self.next_trouble = self.plan.troubles.len();
            if self.kill_at.is_none() && self.start_at.is_none() && self.model.powered() {
                self.finishing = true;
                note!(self.trace, "world: the work is done");
                for (number, initiator) in self.initiators.iter_mut().enumerate() {
                    initiator.finish(number == 0);
                }
            }
        }
        Ok(())
    }

    /// Lets happen what the plan has for this moment. Answers whether there was anything.
    fn make_trouble(&mut self) -> bool {
        let now = self.clock.now();
        let submitted: u64 = self.initiators.iter().map(Initiator::submitted).sum();
        let mut any = false;
        while let Some((at, trouble)) = self.plan.troubles.get(self.next_trouble).copied() {
            if at > submitted {
                break;
            }
            self.next_trouble += 1;
            self.trouble(trouble);
            any = true;
        }
        if !self.model.powered() && self.kill_at.is_none() && self.start_at.is_none() {
            // The power went after a number of operations: the machine lives a moment longer, on nothing.
            self.kill_at = Some((now + self.rng.below(2 * MS), self.rng.chance(500), 50 * MS));
        }
        if let Some((at, silent, down)) = self.kill_at
            && at <= now
        {
            self.kill_at = None;
            self.target.kill(silent);
            self.incarnation.set(self.incarnation.get() + 1);
            let mut oracle = self.oracle.borrow_mut();
            if !self.model.powered() {
                oracle.power_cut();
            } else if self.sync_failed {
                oracle.reopened_after_failed_sync();
            }
            self.sync_failed = false;
            drop(oracle);
            self.restarts += 1;
            self.start_at = Some(now + down.max(1));
            any = true;
        }
        if self.start_at.is_some_and(|at| at <= now) {
            self.start_at = None;
            self.model.power_on();
            self.target.start();
            any = true;
        }
        any
    }

    fn any_link(&mut self) -> Option<LinkId> {
        let links: Vec<LinkId> = self.initiators.iter().flat_map(Initiator::links).collect();
        if links.is_empty() { None } else { Some(self.rng.pick(&links)) }
    }

    /// A link whose login is done on both sides: only there digests guard what is sent.
    fn any_full_link(&mut self) -> Option<LinkId> {
        let links: Vec<LinkId> = self.initiators.iter().flat_map(Initiator::full_links).collect();
        if links.is_empty() { None } else { Some(self.rng.pick(&links)) }
    }

    fn excuse(&self, change: impl FnOnce(&mut Excuses)) {
        let mut excuses = self.excuses.get();
        change(&mut excuses);
        self.excuses.set(excuses);
    }

    fn trouble(&mut self, trouble: Trouble) {
        note!(self.trace, "world: {trouble:?}");
        let now = self.clock.now();
        self.disruptions += u64::from(trouble.disrupts());
        match trouble {
            Trouble::Cut => {
                if let Some(link) = self.any_link() {
                    self.network.borrow_mut().cut(now, link);
                }
            }
            Trouble::Vanish => {
                if let Some(link) = self.any_link() {
                    self.network.borrow_mut().vanish(link);
                }
            }
            Trouble::FlipUp | Trouble::FlipDown => {
                let side = if trouble == Trouble::FlipUp { Side::Initiator } else { Side::Target };
                if let Some(link) = self.any_full_link() {
                    self.network.borrow_mut().flip(link, side);
                }
            }
            Trouble::Deaf(time) => {
                let number = self.rng.index(self.initiators.len());
                self.initiators[number].deafen(now + time);
            }
            Trouble::Kill { silent, down } => {
                if self.start_at.is_none() {
                    self.kill_at.get_or_insert((now, silent, down));
                }
            }
            Trouble::PowerCut { silent, down, after } => {
                self.excuse(|excuses| (excuses.reads, excuses.writes) = (true, true));
                let seed = self.rng.bits();
                if self.start_at.is_some() {
                    return;
                }
                if after > 0 {
                    self.model.cut_power_after(after, seed);
                } else if self.model.powered() {
                    self.model.cut_power(seed);
                    self.kill_at = Some((now, silent, down));
                }
            }
            Trouble::ReadErrors(times) => {
                self.excuse(|excuses| excuses.reads = true);
                self.faults.add(Rule::new(Operations::READ, Action::Fail(EIO)).times(times));
            }
            Trouble::WriteErrors(times) => {
                self.excuse(|excuses| excuses.writes = true);
                let writes = Operations::WRITE.or(Operations::DISCARD).or(Operations::ZEROS);
                self.faults.add(Rule::new(writes, Action::Fail(EIO)).times(times));
            }
            Trouble::SyncError => {
                self.excuse(|excuses| excuses.writes = true);
                self.model.fail_next_sync(EIO);
                self.sync_failed = true;
            }
            Trouble::Space(bytes) => {
                self.excuse(|excuses| excuses.space = true);
                self.faults.limit_space(Some(bytes));
            }
            Trouble::SpaceAgain => self.faults.limit_space(None),
        }
    }

    /// Everybody has left: nothing may be left behind, and what was promised must be on the medium.
    fn last_look(&mut self) -> Result<(), String> {
        // The target notices the end of its links.
        let until = self.clock.now() + 60 * SECOND;
        while self.target.leftovers() != (0, 0, 0) {
            let now = self.clock.now();
            let next = [
                self.network.borrow().next_event(now),
                self.target.next_event(),
                self.faults.next_step().map(|steps| now + steps.max(1)),
            ];
            let Some(next) = next.into_iter().flatten().filter(|at| *at > now).min() else { break };
            if next > until {
                break;
            }
            self.clock.advance_to(next);
            self.faults.step(next - now);
            self.settle()?;
        }
        let leftovers = self.target.leftovers();
        if leftovers != (0, 0, 0) {
            return Err(format!("sessions, links and tasks left behind: {leftovers:?}"));
        }
        self.target.kill(true);
        self.model.cut_power(self.rng.bits());
        let mut oracle = self.oracle.borrow_mut();
        oracle.power_cut();
        let bytes = (self.plan.blocks * u64::from(self.plan.block)) as usize;
        let medium = self.model.durable_bytes(0, bytes).unwrap_or_default();
        oracle.saw(u64::MAX, 0, &medium, false).map_err(|what| format!("on the medium at the end: {what}"))
    }

    fn failure(&self, what: String) -> Failure {
        let mut state = self.target.describe();
        state.extend(self.initiators.iter().flat_map(Initiator::describe));
        Failure { seed: self.seed, what, state, trace: self.trace.tail() }
    }
}
