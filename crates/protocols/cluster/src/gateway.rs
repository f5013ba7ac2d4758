//! The machine: one life of one gateway in the group.
//!
//! It is driven by levels, not by edges: after each event it compares the record with its own state
//! and takes every step that is possible. At most one look and one change of the record are in
//! flight. It never acts for another gateway but by taking it out.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use crate::effect::{Effect, Event, Locked, Request, Snapshot, Stop};
use crate::fencing::Fencing;
use crate::id::{Epoch, GatewayId, InstanceId, Time, UnitId, Version};
use crate::lease::Lease;
#[cfg(test)]
use crate::mistake::Mistake;
use crate::ownership::{Phase, Want};
use crate::record::{Member, Place, Record, Refusal, Standing};
use crate::silence::Silence;
use crate::timers::Timers;
use crate::view::{self, View};

/// One life of a gateway.
#[derive(Debug)]
pub struct Gateway {
    id: GatewayId,
    own: Member,
    timers: Timers,
    life: Life,
    version: Version,
    record: Record,
    beat: u64,
    look: Look,
    change: Option<Proposal>,
    lease: Lease,
    silence: Silence,
    suspects: BTreeSet<InstanceId>,
    fencing: Fencing,
    map: Map,
    phases: BTreeMap<UnitId, Phase>,
    requests: VecDeque<(u64, Request)>,
    effects: VecDeque<Effect>,
    #[cfg(test)]
    mistake: Mistake,
}

/// Where this life is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Life {
    /// No member yet. A predecessor may have to be taken out first.
    Joining,
    /// A member.
    Member,
    /// Over.
    Over,
}

/// The read of the group's object.
#[derive(Clone, Copy, Debug)]
enum Look {
    /// The next one is sent then.
    Next(Time),
    /// Sent then, when the record had version `known`; `again` if something has happened since.
    Sent { at: Time, known: Version, beating: bool, again: bool },
}

/// This gateway's OSD map.
#[derive(Clone, Copy, Debug)]
struct Map {
    epoch: Epoch,
    awaited: bool,
}

/// A change of the record in flight.
#[derive(Debug)]
struct Proposal {
    /// The version that it makes.
    version: Version,
    record: Record,
    request: Option<(u64, Request)>,
}

impl Gateway {
    /// A life that begins at `now`. `own` is what the record shall say of it.
    #[must_use]
    pub fn new(now: Time, id: GatewayId, own: Member, timers: Timers) -> Self {
        let mut gateway = Self {
            id,
            own,
            life: Life::Joining,
            version: Version(0),
            record: Record::default(),
            beat: 0,
            look: Look::Next(now),
            change: None,
            lease: Lease::new(timers.lease),
            silence: Silence::new(timers.beat),
            suspects: BTreeSet::new(),
            fencing: Fencing::default(),
            map: Map { epoch: Epoch(0), awaited: false },
            phases: BTreeMap::new(),
            requests: VecDeque::new(),
            effects: VecDeque::new(),
            timers,
            #[cfg(test)]
            mistake: Mistake::None,
        };
        gateway.tick(now);
        gateway
    }

    /// Makes the mistake from now on.
    #[cfg(test)]
    pub fn make(&mut self, mistake: Mistake) {
        self.mistake = mistake;
    }

    /// What the driver has to do next.
    pub fn effect(&mut self) -> Option<Effect> {
        self.effects.pop_front()
    }

    /// When [`Gateway::tick`] is due at the latest.
    #[must_use]
    pub fn due(&self, now: Time) -> Option<Time> {
        if self.life == Life::Over {
            return None;
        }
        let look = match self.look {
            Look::Next(at) => Some(at),
            Look::Sent { .. } => None,
        };
        // What was due and could not be done waits for an event.
        let phases = self.phases.values().filter_map(|phase| phase.due(self.timers.drain));
        phases.chain(self.fencing.due()).filter(|at| *at > now).chain(look).min()
    }

    /// Time has passed.
    pub fn tick(&mut self, now: Time) {
        self.go_on(now);
    }

    /// Something has happened.
    pub fn handle(&mut self, now: Time, event: Event) {
        if self.life == Life::Over {
            return;
        }
        match event {
            Event::Seen(snapshot) => self.seen(now, snapshot),
            Event::Changed(done) => self.changed(now, done),
            Event::Notified => self.look_soon(now),
            Event::Blocklisted { instance, epoch } => {
                self.fencing.answered(instance, epoch, now + self.timers.retry);
            }
            Event::Map(epoch) => {
                self.map = Map { epoch: self.map.epoch.max(epoch), awaited: false };
            }
            Event::Lock { unit, outcome: Locked::Acquired } => {
                self.step(unit, Phase::Locking, Phase::Locked { since: now });
            }
            Event::Lock { unit, outcome: Locked::By(holder) } => self.locked_by(now, unit, holder),
            Event::Broken { unit } => self.step(unit, Phase::Breaking, Phase::Waiting { again: now }),
            Event::Opened { unit } => self.step(unit, Phase::Opening, Phase::Serving),
            Event::Released { unit } => self.step(unit, Phase::Releasing, Phase::Away),
            Event::Drained { unit, asked } => {
                // The answer to an earlier request says nothing of commands since.
                if self.phase(unit) == (Phase::Draining { since: asked }) {
                    self.phases.insert(unit, Phase::Releasing);
                    self.effects.push_back(Effect::Release { unit });
                }
            }
            Event::Failed { unit } => {
                let phase = self.phase(unit).failed(now + self.timers.retry);
                self.phases.insert(unit, phase);
            }
            Event::Fenced => self.stop(Stop::Fenced),
            Event::Peer { instance, lost } => {
                if lost {
                    self.suspects.insert(instance);
                } else {
                    self.suspects.remove(&instance);
                }
            }
            Event::Request { request, asked } => self.requests.push_back((request, asked)),
        }
        self.go_on(now);
    }

    /// Whether a begun command may touch the unit at `now`, and its outcome come from memory.
    #[must_use]
    pub fn executes(&self, unit: UnitId, now: Time) -> bool {
        self.life == Life::Member && self.phase(unit).serves() && self.lease.holds(now)
    }

    /// Until when commands of the unit may begin if no later event comes.
    #[must_use]
    pub fn admits_until(&self, unit: UnitId) -> Option<Time> {
        let admits = self.life == Life::Member && self.phase(unit).admits();
        self.lease.end().filter(|_| admits)
    }

    /// Whether a request to serve the unit waits, or is in flight: the record may have it soon.
    #[must_use]
    pub fn is_adding(&self, unit: UnitId) -> bool {
        let in_flight = self.change.iter().filter_map(|proposal| proposal.request.as_ref());
        let adds = |asked: &Request| matches!(asked, Request::Add(it) | Request::AddHere(it) if *it == unit);
        self.requests.iter().chain(in_flight).any(|(_, asked)| adds(asked))
    }

    /// What `stag gateways` shows.
    #[must_use]
    pub fn view(&self, now: Time) -> View {
        view::of(&self.record, self.id, |instance| self.silence.of(instance), |unit| self.executes(unit, now))
    }

    fn phase(&self, unit: UnitId) -> Phase {
        self.phases.get(&unit).copied().unwrap_or(Phase::Away)
    }

    fn step(&mut self, unit: UnitId, from: Phase, to: Phase) {
        let phase = self.phase(unit);
        if invariant::invariant!(phase == from, "{unit:?} is {phase:?} and was to be {from:?}") {
            self.phases.insert(unit, to);
        }
    }

    fn stop(&mut self, stop: Stop) {
        if self.life != Life::Over {
            self.life = Life::Over;
            self.effects.clear();
            self.effects.push_back(Effect::Stop(stop));
        }
    }

    fn look_soon(&mut self, now: Time) {
        self.look = match self.look {
            Look::Next(_) => Look::Next(now),
            Look::Sent { at, known, beating, .. } => Look::Sent { at, known, beating, again: true },
        };
    }

    fn seen(&mut self, now: Time, snapshot: Snapshot) {
        let Look::Sent { at, known, beating, again } = self.look else {
            invariant::broken!("an answer to no look");
            return;
        };
        self.look = Look::Next(if again { now } else { now.max(at + self.timers.beat) });
        // One object's version never falls.
        if snapshot.version < known {
            return self.stop(Stop::Anew);
        }
        let own = self.record.members.get(&self.id);
        let stays = own.is_some_and(|own| own.standing != Standing::Leaving);
        // A look may have been overtaken by a change of this gateway's own.
        if snapshot.version >= self.version {
            self.version = snapshot.version;
            self.record = snapshot.record;
        }
        #[cfg(test)]
        self.mistaken(now, &snapshot.beats, &snapshot.watchers);
        let counter = |instance| snapshot.beats.get(&instance).copied().unwrap_or(0);
        let members = self.record.members.values().map(|member| (member.instance, counter(member.instance)));
        self.silence.read(at, now, members);
        match (self.life, self.record.members.get(&self.id)) {
            (Life::Joining, Some(member)) if member.instance == self.own.instance => self.life = Life::Member,
            (Life::Member, None) => {
                let fenced = self.record.is_fenced(self.own.instance);
                return self.stop(match fenced {
                    true => Stop::TakenOut,
                    // It has not left: the record is another group's.
                    false if stays => Stop::Anew,
                    false => Stop::Left,
                });
            }
            (Life::Member, Some(member))
                if member.instance != self.own.instance
                    || matches!(member.standing, Standing::Fencing { .. }) =>
            {
                return self.stop(Stop::TakenOut);
            }
            _ => {}
        }
        if self.life == Life::Member && beating {
            self.lease.confirmed(at);
        }
    }

    fn changed(&mut self, now: Time, done: bool) {
        let Some(proposal) = self.change.take() else {
            invariant::broken!("an answer to no change");
            return;
        };
        if !done {
            // Another gateway's change came first.
            proposal.request.into_iter().for_each(|request| self.requests.push_front(request));
            return self.look_soon(now);
        }
        // A look may have seen this change, or a later one, before its answer came.
        if self.version < proposal.version {
            self.version = proposal.version;
            self.record = proposal.record;
        }
        if let Some((request, _)) = proposal.request {
            self.effects.push_back(Effect::Requested { request, outcome: Ok(()) });
        }
        self.effects.push_back(Effect::Notify);
        self.look_soon(now);
    }

    fn locked_by(&mut self, now: Time, unit: UnitId, holder: InstanceId) {
        if !invariant::invariant!(self.phase(unit) == Phase::Locking, "{unit:?} was not being locked") {
            return;
        }
        let fenced = self.record.is_fenced(holder);
        let (phase, effect) = Phase::held(unit, holder, fenced, now, self.timers.retry);
        self.phases.insert(unit, phase);
        self.effects.extend(effect);
    }

    /// Takes every step that is possible at `now`.
    fn go_on(&mut self, now: Time) {
        if self.life == Life::Over {
            return;
        }
        if let Look::Next(at) = self.look
            && at <= now
        {
            let beating = self.life == Life::Member;
            self.beat += 1;
            let beat = self.beat;
            #[cfg(test)]
            let beat = if self.mistake == Mistake::ComparingClocks { as_stamp(now) } else { beat };
            self.look = Look::Sent { at: now, known: self.version, beating, again: false };
            self.effects.push_back(Effect::Look { beat: beating.then_some(beat) });
        }
        self.fence(now);
        self.move_units(now);
        self.propose(now);
    }

    /// Blocklists the instances that the record says are being fenced.
    fn fence(&mut self, now: Time) {
        let record = &self.record;
        self.fencing.keep(|instance| record.member(instance).is_some());
        let wanted = |member: &&Member| matches!(member.standing, Standing::Fencing { .. });
        let wanted: Vec<Member> = self.record.members.values().filter(wanted).cloned().collect();
        for member in wanted {
            let Standing::Fencing { by } = member.standing else { continue };
            let patience = if by == self.id { Time::ZERO } else { self.timers.relieve };
            #[cfg(test)]
            if self.skips_fence(now, member.instance) {
                continue;
            }
            if self.fencing.asks(member.instance, now, patience) {
                self.effects.push_back(Effect::Blocklist {
                    instance: member.instance,
                    addresses: member.addresses,
                    lasts: self.timers.fence,
                });
            }
        }
    }

    /// Takes units and hands them over as the record wants it.
    fn move_units(&mut self, now: Time) {
        if self.life != Life::Member {
            return;
        }
        let barrier = self.record.barrier;
        #[cfg(test)]
        let barrier = if self.mistake == Mistake::NoBarrier { Epoch(0) } else { barrier };
        if self.map.epoch < barrier && !self.map.awaited {
            self.map.awaited = true;
            self.effects.push_back(Effect::AwaitMap);
        }
        let units: BTreeSet<UnitId> = self.record.places.keys().chain(self.phases.keys()).copied().collect();
        for unit in units {
            let want = match self.record.places.get(&unit) {
                Some(Place::Owned { by }) if *by == self.id => Want::Own,
                _ => Want::Release,
            };
            let mut phase = self.phase(unit).settled(want);
            if let Some((next, effect)) = phase.next(unit, want, now, self.map.epoch, barrier) {
                phase = next;
                self.effects.push_back(effect);
            }
            if phase == Phase::Away {
                self.phases.remove(&unit);
            } else {
                self.phases.insert(unit, phase);
            }
        }
    }

    /// Proposes the next change of the record, if there is one and none is in flight.
    fn propose(&mut self, now: Time) {
        // Version 0 is the object before anybody has looked, or before it exists.
        let looked = !matches!(self.look, Look::Sent { .. }) || self.version != Version(0);
        while self.change.is_none() && looked && self.life != Life::Over {
            let mut record = self.record.clone();
            let request = if self.own_change(now, &mut record) {
                None
            } else if self.life == Life::Member
                && let Some((request, asked)) = self.requests.pop_front()
            {
                match self.grant(asked, &mut record) {
                    Ok(true) => Some((request, asked)),
                    outcome => {
                        let outcome = outcome.map(|_| ());
                        self.effects.push_back(Effect::Requested { request, outcome });
                        continue;
                    }
                }
            } else {
                return;
            };
            self.send_change(record, request);
        }
    }

    fn send_change(&mut self, record: Record, request: Option<(u64, Request)>) {
        let version = match self.version {
            // Of an object that was there before, a change may be in flight: it must not fit this
            // one.
            Version(0) => Version((self.own.instance.0 >> 1).max(1)),
            Version(known) => Version(known + 1),
        };
        self.effects.push_back(Effect::Change { expect: self.version, version, record: record.clone() });
        self.change = Some(Proposal { version, record, request });
    }

    /// What this gateway has to change by itself: the most urgent first.
    fn own_change(&mut self, now: Time, record: &mut Record) -> bool {
        if self.fencing.done().any(|(instance, epoch)| record.end_fence(instance, epoch)) {
            return true;
        }
        if self.life == Life::Joining {
            return self.join(record);
        }
        let units: Vec<UnitId> = record.places.keys().copied().collect();
        for unit in units {
            let Some(Place::Moving { from, .. }) = record.places.get(&unit).copied() else { continue };
            if from != self.id {
                continue;
            }
            let changed = match self.phase(unit) {
                Phase::Away => record.end_move(unit),
                Phase::Draining { since } if since + self.timers.drain <= now => record.cancel_move(unit),
                _ => false,
            };
            if changed {
                return true;
            }
        }
        if self.lease.holds(now) {
            let silent = |member: &Member| {
                let suspected = self.suspects.contains(&member.instance);
                let limit = if suspected { self.timers.suspected } else { self.timers.silent };
                self.silence.of(member.instance) >= limit
            };
            let lost: Vec<GatewayId> = record
                .members
                .iter()
                .filter(|(id, member)| **id != self.id && silent(member))
                .map(|(id, _)| *id)
                .collect();
            if lost.into_iter().filter(|id| record.begin_fence(*id, self.id)).count() > 0 {
                return true;
            }
        }
        let leaving = record.members.get(&self.id).is_some_and(|own| own.standing == Standing::Leaving);
        if leaving && record.left(self.id) {
            return true;
        }
        leaving && record.leave(self.id)
    }

    fn join(&mut self, record: &mut Record) -> bool {
        match record.join(self.id, self.own.clone()) {
            Ok(()) => true,
            // Its last life may still run: a restart is no proof that it does not. One whose
            // counter moves is another daemon of this name. The two would take turns in fencing.
            Err(Refusal::Predecessor) => {
                let before = record.members.get(&self.id).map(|before| before.instance);
                let Some(before) = before.filter(|before| *before != self.own.instance) else {
                    return false;
                };
                if self.silence.moved(before) {
                    self.stop(Stop::Refused(Refusal::Lives));
                    return false;
                }
                self.silence.of(before) >= self.timers.suspected && record.begin_fence(self.id, self.id)
            }
            Err(refusal) => {
                self.stop(Stop::Refused(refusal));
                false
            }
        }
    }

    fn grant(&self, asked: Request, record: &mut Record) -> Result<bool, Refusal> {
        match asked {
            Request::Move(unit, to) => {
                let before = record.places.get(&unit).copied();
                record.begin_move(unit, to)?;
                Ok(record.places.get(&unit).copied() != before)
            }
            Request::Spread => Ok(record.spread()),
            Request::Add(unit) => record.add(unit),
            Request::AddHere(unit) => record.add_at(unit, self.id),
            Request::Remove(unit) => record.remove(unit).map(|()| true),
            Request::Leave => Ok(record.leave(self.id)),
        }
    }
}

/// The mistakes that tests put back.
#[cfg(test)]
impl Gateway {
    /// Takes out others by what is no proof.
    fn mistaken(&mut self, now: Time, beats: &BTreeMap<InstanceId, u64>, watchers: &BTreeSet<InstanceId>) {
        if self.life != Life::Member || self.change.is_some() {
            return;
        }
        let lost = |id: &GatewayId, member: &Member| {
            let instance = member.instance;
            *id != self.id
                && match self.mistake {
                    Mistake::WatchersAsMembers => !watchers.contains(&instance),
                    Mistake::ComparingClocks => beats
                        .get(&instance)
                        .is_some_and(|beat| beat + as_stamp(self.timers.silent) < as_stamp(now)),
                    _ => false,
                }
        };
        let found = self.record.members.iter().find(|(id, member)| lost(id, member));
        if let Some((id, instance)) = found.map(|(id, member)| (*id, member.instance)) {
            let mut record = self.record.clone();
            record.begin_fence(id, self.id);
            record.end_fence(instance, record.barrier);
            self.send_change(record, None);
        }
    }

    /// Takes an instance for fenced without an entry. Whether the mistake is this one.
    fn skips_fence(&mut self, now: Time, instance: InstanceId) -> bool {
        let wait = match self.mistake {
            Mistake::NoBlocklist => Time::ZERO,
            Mistake::LeaseWithoutGuard => self.timers.lease + self.timers.silent,
            _ => return false,
        };
        if self.fencing.asks(instance, now, wait) {
            self.fencing.answered(instance, Some(self.record.barrier), now);
        }
        true
    }
}

#[cfg(test)]
fn as_stamp(time: Time) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}
