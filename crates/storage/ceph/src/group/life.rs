//! One life of a gateway: its clients of the cluster, the machine, and what the machine asks for.
//! The group's thread runs it and never waits for the cluster: what does is done on threads of its
//! own, which tell their outcome.
//!
//! A life has two clients. Its units' images share one, whose address the locks name. The record,
//! heartbeats and the blocklist go through the other, so that no load delays a heartbeat. A fence
//! takes both.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use cluster::record::{Member, Next, Place, Standing};
use cluster::view::Row;
use cluster::{
    Effect, Epoch, Event, Gateway, GatewayId, InstanceId, Refusal, Request, Stop, Time, UnitId, View,
};
use rados::{Client, Error, Object, Source, Watch};
use runtime::{Receiver, RecvTimeoutError, Sender, channel, clock_since_boot as clock};

use super::object::{self, Wrong, errno};
use super::unit::{self, Gate, Serving, Slot};
use super::{Answer, NotDone, Report, Reporter, Shared, Status, Wanted, lock};
use crate::name::ImageName;

/// Pause before what has failed is tried again.
const AGAIN: Duration = Duration::from_millis(250);
/// Pause before the group is asked again to take a unit from here.
const AWAY: Duration = Duration::from_secs(5);
/// How long a notification waits for the watchers.
const NOTIFY: Duration = Duration::from_secs(2);

/// What the group's thread is told.
pub(super) enum Told {
    /// By this life.
    Of(u64, Happened),
    Ask(Request, Answer),
    /// A unit more.
    Add(UnitId, ImageName),
    /// A unit is taken out.
    Remove(UnitId),
    /// Whether the peer link to an instance is lost.
    Link(InstanceId, bool),
    End,
}

pub(super) enum Happened {
    Event(Event),
    /// A unit's operation has failed, and is tried again.
    Failed(UnitId, String),
    /// Something else has failed, and is tried again.
    Problem(String),
    /// What has failed works now.
    Works,
    /// A try to watch the object has ended. Whether it is watched.
    Watching(bool),
    /// This life cannot go on.
    Lost(String),
}

impl Told {
    #[cfg(test)]
    pub(super) fn event(self) -> Option<Event> {
        match self {
            Self::Of(_, Happened::Event(event)) => Some(event),
            _ => None,
        }
    }
}

/// By which a life's threads tell.
#[derive(Clone)]
pub(super) struct Teller {
    life: u64,
    to: Sender<Told>,
}

impl Teller {
    #[cfg(test)]
    pub(super) fn for_tests() -> (Self, Receiver<Told>) {
        let (to, told) = channel();
        (Self { life: 1, to }, told)
    }

    fn tell(&self, happened: Happened) -> bool {
        self.to.send(Told::Of(self.life, happened)).is_ok()
    }

    pub(super) fn event(&self, event: Event) {
        self.tell(Happened::Event(event));
    }

    pub(super) fn failed(&self, unit: UnitId, why: String) {
        self.tell(Happened::Failed(unit, why));
    }

    pub(super) fn lost(&self, why: String) {
        self.tell(Happened::Lost(why));
    }
}

/// Why a life is over.
#[derive(Debug)]
pub(super) enum Over {
    /// The host has ended it.
    Ended,
    Stopped(Stop),
    Failed(String),
}

impl fmt::Display for Over {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Ended => "this daemon ends",
            Self::Stopped(Stop::Fenced) => "the cluster has shut this gateway out",
            Self::Stopped(Stop::TakenOut) => "the group has taken this gateway out: it was silent",
            Self::Stopped(Stop::Left) => "this gateway has left the group",
            Self::Stopped(Stop::Anew) => "the group's object was removed, and perhaps made anew",
            Self::Stopped(Stop::Refused(Refusal::Protocol)) => {
                "no version of the peer protocol is spoken by all gateways: upgrade the oldest first"
            }
            Self::Stopped(Stop::Refused(Refusal::Secret)) => {
                "the group uses a newer secret: give it to this gateway"
            }
            Self::Stopped(Stop::Refused(Refusal::Lives)) => {
                "another daemon is this gateway of the group: give each gateway a number of its own"
            }
            Self::Stopped(Stop::Refused(_)) => "the group has no room for this gateway",
            Self::Failed(why) => why,
        })
    }
}

/// A unit here: its image, and its gate.
struct Unit {
    slot: Slot,
    gate: Arc<Gate>,
    /// The host has it.
    reported: bool,
}

impl Unit {
    fn new(unit: UnitId, data: &Client, source: Source, tell: &Teller) -> Self {
        let (slot, gate) = (Slot::new(unit, data.clone(), source), Gate::new(unit, tell.clone()));
        Self { slot, gate, reported: false }
    }
}

/// Whether somebody notifies this life.
enum Watching {
    No { since: Time },
    Trying,
    Yes,
}

pub(super) struct Life {
    machine: Gateway,
    tell: Teller,
    control: Client,
    data: Client,
    object: Object,
    units: BTreeMap<UnitId, Unit>,
    /// Where an image is.
    source: Box<dyn Fn(&ImageName) -> Source + Send>,
    wanted: Arc<Mutex<Wanted>>,
    /// When the group was last asked to take a unit from here.
    asked_away: BTreeMap<UnitId, Time>,
    own: GatewayId,
    /// To the thread that looks.
    look: Sender<Option<u64>>,
    watching: Watching,
    /// Ending it waits for the OSD, so the group's thread never takes it out.
    watch: Arc<Mutex<Option<Watch>>>,
    /// Whose heartbeats were in the object.
    beats: BTreeSet<InstanceId>,
    requests: BTreeMap<u64, Answer>,
    asked: u64,
    /// For threads that try again.
    over: Arc<AtomicBool>,
    status: Arc<Mutex<Status>>,
    /// The view that the host was told last.
    told: View,
}

impl Life {
    /// Connects, and begins to join. Blocks.
    pub(super) fn begin(shared: &Shared, number: u64, report: &mut Reporter) -> Result<Self, Error> {
        let config = &shared.config;
        let control = Client::connect(&config.login, None)?;
        let data = Client::connect(&config.login, Some(config.op_timeout))?;
        let object = control.object(&config.pool, config.namespace.as_deref(), &config.object)?;
        let addresses: Vec<String> = [&data, &control]
            .into_iter()
            .map(|client| client.address().map(|address| rados::plain_address(&address).to_owned()))
            .collect::<Result<_, _>>()?;
        let instance = unit::instance(&addresses[0]);
        let tell = Teller { life: number, to: shared.tell.clone() };
        let (login, op_timeout) = (config.login.clone(), config.op_timeout);
        let source = move |name: &ImageName| name.source(login.clone(), op_timeout);
        let wanted = lock(&shared.wanted).units.clone();
        let units = wanted.iter().map(|(unit, name)| (*unit, Unit::new(*unit, &data, source(name), &tell)));
        let units: BTreeMap<UnitId, Unit> = units.collect();
        let own = Member {
            instance,
            addresses: addresses.clone(),
            protocol: config.protocol.clone(),
            secret: config.secret,
            standing: Standing::Serving,
        };
        let over = Arc::new(AtomicBool::new(false));
        let (look, looks) = channel();
        let looker = {
            let (object, tell, over) = (object.clone(), tell.clone(), over.clone());
            move || looks_at(&object, instance, &looks, &tell, &over)
        };
        if !rados::start_unpinned(looker) {
            return Err(Error::NoThread);
        }
        let now = clock();
        let mut machine = Gateway::new(now, config.gateway, own, config.timers.clone());
        // Answers to these have no one who waits: number 0.
        for unit in wanted.keys() {
            machine.handle(now, Event::Request { request: 0, asked: Request::Add(*unit) });
        }
        report(Report::Begins { instance, addresses });
        Ok(Self {
            machine,
            units,
            source: Box::new(source),
            wanted: shared.wanted.clone(),
            asked_away: BTreeMap::new(),
            own: config.gateway,
            tell,
            control,
            data,
            object,
            look,
            watching: Watching::No { since: Time::ZERO },
            watch: Arc::default(),
            beats: BTreeSet::new(),
            requests: BTreeMap::new(),
            asked: 0,
            over,
            status: shared.status.clone(),
            told: View::default(),
        })
    }

    /// Until the life is over.
    pub(super) fn run(&mut self, told: &Receiver<Told>, report: &mut Reporter) -> Over {
        loop {
            // Gates close before anything that follows from it.
            self.publish(report);
            self.take_out(report);
            while let Some(effect) = self.machine.effect() {
                if let Effect::Stop(stop) = effect {
                    return Over::Stopped(stop);
                }
                self.carry_out(effect, report);
            }
            let now = clock();
            let due = self.machine.due(now).map_or(Duration::from_secs(1), |due| due.saturating_sub(now));
            let next = told.recv_timeout(due);
            let now = clock();
            self.machine.tick(now);
            match next {
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) | Ok(Told::End) => return Over::Ended,
                Ok(Told::Ask(asked, answer)) => {
                    self.asked += 1;
                    self.requests.insert(self.asked, answer);
                    self.machine.handle(now, Event::Request { request: self.asked, asked });
                }
                Ok(Told::Add(unit, name)) if lock(&self.wanted).units.contains_key(&unit) => {
                    let new = || Unit::new(unit, &self.data, (self.source)(&name), &self.tell);
                    self.units.entry(unit).or_insert_with(new);
                    self.machine.handle(now, Event::Request { request: 0, asked: Request::AddHere(unit) });
                }
                Ok(Told::Remove(unit)) => drop(self.asked_away.remove(&unit)),
                Ok(Told::Of(life, happened)) if life == self.tell.life => {
                    if let Some(over) = self.happened(now, happened, report) {
                        return over;
                    }
                }
                // Of an earlier life, or taken out again.
                Ok(Told::Of(..) | Told::Add(..)) => {}
                Ok(Told::Link(instance, lost)) => self.machine.handle(now, Event::Peer { instance, lost }),
            }
        }
    }

    fn happened(&mut self, now: Time, happened: Happened, report: &mut Reporter) -> Option<Over> {
        match happened {
            Happened::Event(event) => {
                if let Event::Opened { .. } = event {
                    lock(&self.status).problem = None;
                }
                if let Event::Seen(snapshot) = &event {
                    self.beats = snapshot.beats.keys().copied().collect();
                    if snapshot.version.0 > 0 {
                        self.watch(now);
                    }
                }
                self.machine.handle(now, event);
            }
            Happened::Failed(unit, why) => {
                self.problem(why, report);
                self.machine.handle(now, Event::Failed { unit });
            }
            Happened::Problem(why) => self.problem(why, report),
            Happened::Works => lock(&self.status).problem = None,
            Happened::Watching(is_watched) => {
                self.watching = if is_watched { Watching::Yes } else { Watching::No { since: now } };
                self.machine.handle(now, Event::Notified);
            }
            Happened::Lost(why) => return Some(Over::Failed(why)),
        }
        None
    }

    fn problem(&mut self, why: String, report: &mut Reporter) {
        let before = lock(&self.status).problem.replace(why.clone());
        if before.as_ref() != Some(&why) {
            tracing::warn!(%why, "a gateway of a group cannot go on, and tries again");
            report(Report::Problem(why));
        }
    }

    /// Tells cores until when they may begin commands, and others the view.
    fn publish(&mut self, report: &mut Reporter) {
        for (unit, here) in &self.units {
            here.gate.set(self.machine.admits_until(*unit));
        }
        let view = self.machine.view(clock());
        // How long each is silent changes all the time.
        let members = |view: &View| -> Vec<_> {
            view.gateways.iter().map(|row| (row.gateway, row.instance, row.standing)).collect()
        };
        let told = &self.told;
        let same = (members(told), &told.units, &told.fences, told.secret, told.protocol)
            == (members(&view), &view.units, &view.fences, view.secret, view.protocol);
        if !same {
            self.told = view.clone();
            report(Report::Changed(view.clone()));
        }
        lock(&self.status).view = Some(view);
    }

    fn carry_out(&mut self, effect: Effect, report: &mut Reporter) {
        let tell = self.tell.clone();
        match effect {
            Effect::Look { beat } => drop(self.look.send(beat)),
            Effect::Change { expect, version, record } => {
                let (object, known, over) = (self.object.clone(), self.beats.clone(), self.over.clone());
                let versions = (expect, version);
                beside(&self.tell, move || {
                    let changed = again(&tell, &over, || object::change(&object, versions, &record, &known));
                    changed.into_iter().for_each(|done| tell.event(Event::Changed(done)));
                });
            }
            Effect::Notify => {
                let object = self.object.clone();
                // Others look anyway: it only hurries them.
                beside(&self.tell, move || drop(object.notify(NOTIFY)));
            }
            Effect::Blocklist { instance, addresses, lasts } => {
                tracing::warn!(?instance, ?addresses, "a silent gateway is kept from the cluster");
                let control = self.control.clone();
                beside(&self.tell, move || {
                    let epoch = control.blocklist(&addresses, lasts);
                    if let Err(error) = &epoch {
                        tell.tell(Happened::Problem(error.to_string()));
                    }
                    tell.event(Event::Blocklisted { instance, epoch: epoch.ok().map(Epoch) });
                });
            }
            Effect::AwaitMap => {
                let (data, over) = (self.data.clone(), self.over.clone());
                beside(&self.tell, move || {
                    let epoch = again(&tell, &over, || data.latest_map());
                    epoch.into_iter().for_each(|epoch| tell.event(Event::Map(Epoch(epoch))));
                });
            }
            Effect::Acquire { unit } if !lock(&self.wanted).units.contains_key(&unit) => self.pass_on(unit),
            Effect::Acquire { unit } => self.with(unit, |slot, tell| slot.tell(tell, slot.acquire())),
            Effect::Break { unit, instance } => {
                self.with(unit, move |slot, tell| slot.tell(tell, slot.break_lock(instance)))
            }
            Effect::Open { unit } => self.serve(unit, report),
            Effect::Drain { unit, asked } => match self.units.get(&unit) {
                Some(here) => here.gate.drain(asked),
                None => tell.event(Event::Drained { unit, asked }),
            },
            Effect::Release { unit } => {
                self.gone(unit, report);
                self.with(unit, |slot, tell| slot.release(tell));
            }
            Effect::Requested { request, outcome } => {
                if let Some(answer) = self.requests.remove(&request) {
                    answer(outcome.map_err(NotDone::Refused));
                }
            }
            Effect::Stop(_) => {}
        }
    }

    /// Does something with a unit's image on a thread.
    fn with(&self, unit: UnitId, what: impl FnOnce(&Slot, &Teller) + Send + 'static) {
        let tell = self.tell.clone();
        match self.units.get(&unit) {
            Some(here) => {
                let slot = here.slot.clone();
                beside(&self.tell, move || what(&slot, &tell));
            }
            // Soon enough: a pause of the machine follows.
            None => tell.failed(unit, format!("unit {} is not here", unit.0)),
        }
    }

    /// Has the group remove what was taken out here, and lets go of it when the group has. It may
    /// have to be asked more than once: it did not hear of it, or the unit's commands did not end in
    /// time.
    fn take_out(&mut self, report: &mut Reporter) {
        // Before this gateway is in, the view says nothing.
        if !self.told.gateways.iter().any(|row| row.own) {
            return;
        }
        let places = &self.told.units;
        let (mut left, mut gone) = (Vec::new(), Vec::new());
        lock(&self.wanted).out.retain(|unit| {
            let Some((_, place)) = places.iter().find(|(other, _)| other == unit) else {
                let may_come = self.machine.is_adding(*unit);
                if !may_come {
                    gone.push(*unit);
                }
                return may_come;
            };
            if !matches!(place, Place::Moving { to: Next::Removed, .. }) {
                left.push(*unit);
            }
            true
        });
        self.asked_away.retain(|unit, _| places.iter().any(|(other, _)| other == unit));
        for unit in gone {
            self.gone(unit, report);
            if let Some(here) = self.units.remove(&unit) {
                // Closing an image that is still open waits for the cluster.
                beside(&self.tell, move || drop(here));
            }
        }
        left.into_iter().for_each(|unit| self.ask_away(unit, Request::Remove(unit)));
    }

    /// Moves a unit that this gateway does not know to the next one, which may.
    fn pass_on(&mut self, unit: UnitId) {
        let why = format!("unit {} is not known here: give all gateways the same units", unit.0);
        self.tell.failed(unit, why);
        let rows = self.told.gateways.iter().filter(|row| row.standing == Standing::Serving);
        let (below, above): (Vec<&Row>, Vec<&Row>) = rows.partition(|row| row.gateway <= self.own);
        let next = above.first().or_else(|| below.first().filter(|row| !row.own)).map(|row| row.gateway);
        if let Some(next) = next {
            self.ask_away(unit, Request::Move(unit, next));
        }
    }

    /// Asks the group to take a unit from here, unless it was asked a moment ago.
    fn ask_away(&mut self, unit: UnitId, asked: Request) {
        let now = clock();
        if self.asked_away.get(&unit).is_none_or(|last| *last + AWAY <= now) {
            self.asked_away.insert(unit, now);
            self.machine.handle(now, Event::Request { request: 0, asked });
        }
    }

    fn serve(&mut self, unit: UnitId, report: &mut Reporter) {
        if let Some(here) = self.units.get_mut(&unit)
            && let Some(open) = here.slot.open()
        {
            here.reported = true;
            here.gate.opens();
            report(Report::Serve(Serving::new(unit, open, here.gate.clone())));
        } else {
            self.tell.failed(unit, format!("unit {} is not open", unit.0));
        }
    }

    /// The host has to let go of the unit.
    fn gone(&mut self, unit: UnitId, report: &mut Reporter) {
        if let Some(here) = self.units.get_mut(&unit)
            && std::mem::replace(&mut here.reported, false)
        {
            report(Report::Gone(unit));
        }
    }

    /// Watches the object, unless it is being watched.
    fn watch(&mut self, now: Time) {
        let waits = match self.watching {
            Watching::Yes => lock(&self.watch).as_ref().is_some_and(|watch| watch.check().is_ok()),
            Watching::Trying => true,
            Watching::No { since } => now < since + AGAIN,
        };
        if waits {
            return;
        }
        self.watching = Watching::Trying;
        let (object, tell, kept) = (self.object.clone(), self.tell.clone(), self.watch.clone());
        beside(&self.tell, move || {
            let before = lock(&kept).take();
            drop(before);
            let to = tell.clone();
            let watch = object.watch(Arc::new(move |_| to.event(Event::Notified))).ok();
            let is_watched = watch.is_some();
            *lock(&kept) = watch;
            tell.tell(Happened::Watching(is_watched));
        });
    }

    /// Lets go of everything. What waits for the cluster ends on threads.
    pub(super) fn end(mut self, report: &mut Reporter) {
        self.over.store(true, Ordering::Release);
        for here in self.units.values() {
            here.gate.set(None);
        }
        let units: Vec<UnitId> = self.units.keys().copied().collect();
        units.into_iter().for_each(|unit| self.gone(unit, report));
        std::mem::take(&mut self.requests).into_values().for_each(|answer| answer(Err(NotDone::Unknown)));
        let tell = self.tell.clone();
        beside(&tell, move || {
            self.units.values().for_each(|here| here.slot.close());
            drop(self);
        });
    }
}

/// Runs `f` on a thread. Without one the life ends: the machine waits for what `f` tells.
fn beside(tell: &Teller, f: impl FnOnce() + Send + 'static) {
    if !rados::start_unpinned(f) {
        tell.lost("the system has no thread for what waits for the cluster".into());
    }
}

/// Calls `f` until it succeeds; `None` if this gateway is fenced, or its life is over.
fn again<T>(tell: &Teller, over: &AtomicBool, f: impl Fn() -> Result<T, Error>) -> Option<T> {
    loop {
        match f() {
            Ok(value) => return Some(value),
            Err(error) if errno(&error) == Some(libc::ESHUTDOWN) => {
                tell.event(Event::Fenced);
                return None;
            }
            Err(_) if over.load(Ordering::Acquire) => return None,
            Err(error) => {
                tell.tell(Happened::Problem(error.to_string()));
                runtime::nap(AGAIN);
            }
        }
    }
}

/// The thread that writes heartbeats and reads the object.
fn looks_at(
    object: &Object,
    own: InstanceId,
    looks: &Receiver<Option<u64>>,
    tell: &Teller,
    over: &AtomicBool,
) {
    let mut failing = false;
    while let Ok(beat) = looks.recv() {
        loop {
            if over.load(Ordering::Acquire) {
                return;
            }
            match object::look(object, own, beat) {
                Ok(snapshot) => {
                    if std::mem::replace(&mut failing, false) {
                        tell.tell(Happened::Works);
                    }
                    tell.event(Event::Seen(snapshot));
                    break;
                }
                Err(wrong) if wrong.errno() == Some(libc::ESHUTDOWN) => return tell.event(Event::Fenced),
                Err(wrong @ (Wrong::Record(_) | Wrong::Removed)) => return tell.lost(wrong.to_string()),
                Err(wrong) => {
                    failing = true;
                    tell.tell(Happened::Problem(wrong.to_string()));
                    runtime::nap(AGAIN);
                }
            }
        }
    }
}
