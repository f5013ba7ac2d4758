//! Single scenes, in which Ceph answers at once: what the machine asks for, and in which order.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::effect::{Effect, Event, Locked, Request, Snapshot, Stop};
use crate::gateway::Gateway;
use crate::id::{Epoch, GatewayId, InstanceId, Time, UnitId, Version};
use crate::record::{Member, Place, Refusal, Standing};
use crate::timers::Timers;

const UNIT: UnitId = UnitId(1);
const STEP: Duration = Duration::from_millis(50);

#[derive(Default)]
struct Scene {
    now: Time,
    object: Snapshot,
    epoch: Epoch,
    locks: BTreeMap<UnitId, InstanceId>,
    gateways: BTreeMap<InstanceId, Gateway>,
    /// Everything asked for but looks, with who asked.
    done: Vec<(InstanceId, Effect)>,
}

impl Scene {
    fn starts(&mut self, id: u16, instance: u64) -> InstanceId {
        let own = Member {
            instance: InstanceId(instance),
            addresses: vec![format!("192.0.2.{id}:0/{instance}")],
            protocol: 1..=1,
            secret: 1,
            standing: Standing::Serving,
        };
        let gateway = Gateway::new(self.now, GatewayId(id), own, Timers::default());
        self.gateways.insert(InstanceId(instance), gateway);
        self.passes(Duration::from_secs(1));
        InstanceId(instance)
    }

    fn asks(&mut self, instance: InstanceId, asked: Request) {
        let event = Event::Request { request: 1, asked };
        let now = self.now;
        self.gateway(instance).handle(now, event);
        self.passes(Duration::from_secs(1));
    }

    fn gateway(&mut self, instance: InstanceId) -> &mut Gateway {
        self.gateways.get_mut(&instance).expect("the gateway lives")
    }

    fn executes(&mut self, instance: InstanceId) -> bool {
        let now = self.now;
        self.gateway(instance).executes(UNIT, now)
    }

    fn passes(&mut self, time: Duration) {
        let end = self.now + time;
        while self.now < end {
            self.now += STEP;
            let instances: Vec<InstanceId> = self.gateways.keys().copied().collect();
            for instance in instances {
                let now = self.now;
                self.gateway(instance).tick(now);
                while let Some(effect) = self.gateways.get_mut(&instance).and_then(Gateway::effect) {
                    self.carry_out(instance, effect);
                }
            }
        }
    }

    fn carry_out(&mut self, instance: InstanceId, effect: Effect) {
        if !matches!(effect, Effect::Look { .. } | Effect::Notify) {
            self.done.push((instance, effect.clone()));
        }
        let event = match effect {
            Effect::Look { beat } => {
                beat.map(|beat| self.object.beats.insert(instance, beat));
                Event::Seen(self.object.clone())
            }
            Effect::Change { expect, version, record } => {
                let changes = expect == self.object.version;
                if changes {
                    self.object.version = version;
                    self.object.record = record;
                }
                Event::Changed(changes)
            }
            Effect::Blocklist { instance, .. } => {
                self.epoch.0 += 1;
                Event::Blocklisted { instance, epoch: Some(self.epoch) }
            }
            Effect::AwaitMap => Event::Map(self.epoch),
            Effect::Acquire { unit } => {
                let holder = *self.locks.entry(unit).or_insert(instance);
                let outcome = if holder == instance { Locked::Acquired } else { Locked::By(holder) };
                Event::Lock { unit, outcome }
            }
            Effect::Break { unit, .. } => {
                self.locks.remove(&unit);
                Event::Broken { unit }
            }
            Effect::Open { unit } => Event::Opened { unit },
            Effect::Drain { unit, asked } => Event::Drained { unit, asked },
            Effect::Release { unit } => {
                self.locks.remove(&unit);
                Event::Released { unit }
            }
            Effect::Stop(_) => {
                self.gateways.remove(&instance);
                return;
            }
            _ => return,
        };
        let now = self.now;
        self.gateway(instance).handle(now, event);
    }

    /// Where an effect is among all that were asked for.
    fn place(&self, what: impl Fn(&InstanceId, &Effect) -> bool) -> usize {
        self.done.iter().position(|(by, effect)| what(by, effect)).expect("it was asked for")
    }
}

#[test]
fn a_gateway_executes_as_long_as_its_heartbeats_are_confirmed() {
    let mut scene = Scene::default();
    let one = scene.starts(1, 11);
    scene.asks(one, Request::Add(UNIT));
    assert!(scene.executes(one));
    scene.now += Timers::default().lease;
    assert!(!scene.executes(one), "it was paused, and has not asked yet");
    scene.passes(Duration::from_secs(1));
    assert!(scene.executes(one));
}

#[test]
fn a_restart_fences_the_former_life_before_it_joins() {
    let mut scene = Scene::default();
    let former = scene.starts(1, 11);
    scene.asks(former, Request::Add(UNIT));
    scene.gateways.remove(&former);
    let one = scene.starts(1, 12);
    scene.passes(Timers::default().suspected);
    let blocklist = scene.place(|_, effect| matches!(effect, Effect::Blocklist { .. }));
    let broken =
        scene.place(|_, effect| matches!(effect, Effect::Break { instance, .. } if *instance == former));
    let opened = scene.place(|by, effect| *by == one && matches!(effect, Effect::Open { .. }));
    let barrier = scene.place(|by, effect| *by == one && *effect == Effect::AwaitMap);
    assert!(blocklist < broken && broken < opened && barrier < opened);
    assert!(scene.executes(one));
}

#[test]
fn a_move_releases_at_the_owner_before_the_next_one_opens() {
    let mut scene = Scene::default();
    let one = scene.starts(1, 11);
    scene.asks(one, Request::Add(UNIT));
    let two = scene.starts(2, 21);
    scene.asks(two, Request::Move(UNIT, GatewayId(2)));
    let drain = scene.place(|by, effect| *by == one && matches!(effect, Effect::Drain { .. }));
    let release = scene.place(|by, effect| *by == one && *effect == Effect::Release { unit: UNIT });
    let open = scene.place(|by, effect| *by == two && *effect == Effect::Open { unit: UNIT });
    assert!(drain < release && release < open);
    assert!(scene.executes(two) && !scene.executes(one));
    assert_eq!(scene.object.record.places[&UNIT], Place::Owned { by: GatewayId(2) });
}

#[test]
fn a_silent_owner_is_taken_out_and_finds_out_when_it_wakes() {
    let mut scene = Scene::default();
    let one = scene.starts(1, 11);
    scene.asks(one, Request::Add(UNIT));
    let two = scene.starts(2, 21);
    let paused = scene.gateways.remove(&one).expect("the gateway lives");
    scene.passes(Timers::default().silent + Duration::from_secs(1));
    assert!(scene.executes(two));
    scene.gateways.insert(one, paused);
    assert!(!scene.executes(one));
    scene.passes(Duration::from_secs(1));
    assert!(scene.done.contains(&(one, Effect::Stop(Stop::TakenOut))));
}

#[test]
fn a_gateway_that_wakes_in_a_group_made_anew_begins_another_life() {
    // The new record's version is lower than the one that the gateway knows, and higher.
    for other in [101, 301] {
        let mut scene = Scene::default();
        let one = scene.starts(1, 201);
        scene.asks(one, Request::Add(UNIT));
        let paused = scene.gateways.remove(&one).expect("the gateway lives");
        let known = scene.object.version;
        scene.object = Snapshot::default();
        scene.starts(2, other);
        assert_eq!(scene.object.version < known, other < one.0);
        scene.gateways.insert(one, paused);
        scene.passes(Duration::from_secs(1));
        assert!(scene.done.contains(&(one, Effect::Stop(Stop::Anew))), "made by {other}");
    }
}

#[test]
fn a_change_in_flight_does_not_fit_an_object_that_was_made_anew() {
    let mut scene = Scene::default();
    let one = scene.starts(1, 201);
    let mut paused = scene.gateways.remove(&one).expect("the gateway lives");
    paused.handle(scene.now, Event::Request { request: 1, asked: Request::Add(UNIT) });
    let is_change = |effect: &Effect| matches!(effect, Effect::Change { .. });
    let change = std::iter::from_fn(|| paused.effect()).find(is_change).expect("it adds the unit");
    scene.object = Snapshot::default();
    scene.starts(2, 301);
    scene.gateways.insert(one, paused);
    // An OSD carries it out late. The new object has had as many changes as the old one.
    scene.carry_out(one, change);
    assert!(scene.object.record.members.keys().eq(&[GatewayId(2)]));
    assert!(scene.object.record.places.is_empty());
}

#[test]
fn a_gateway_that_joins_while_the_object_is_removed_begins_another_life() {
    let mut scene = Scene::default();
    let former = scene.starts(1, 11);
    scene.gateways.remove(&former);
    let one = scene.starts(1, 12);
    assert!(scene.gateways.contains_key(&one), "it waits for its former life's silence");
    scene.object = Snapshot::default();
    scene.passes(Duration::from_secs(1));
    assert!(scene.done.contains(&(one, Effect::Stop(Stop::Anew))));
}

#[test]
fn a_lost_peer_link_alone_takes_no_gateway_out() {
    let mut scene = Scene::default();
    let one = scene.starts(1, 11);
    let two = scene.starts(2, 21);
    let now = scene.now;
    scene.gateway(two).handle(now, Event::Peer { instance: one, lost: true });
    scene.passes(Duration::from_secs(20));
    assert_eq!(scene.object.record.members.len(), 2);
    // With its heartbeats gone as well, it goes sooner than another one.
    scene.gateways.remove(&one);
    scene.passes(Timers::default().suspected + Duration::from_millis(500));
    assert_eq!(scene.object.record.members.len(), 1);
}

#[test]
fn others_end_the_fence_that_a_dead_gateway_began() {
    let mut scene = Scene::default();
    let one = scene.starts(1, 11);
    scene.starts(2, 21);
    scene.starts(3, 31);
    scene.gateways.remove(&InstanceId(31));
    let mut record = scene.object.record.clone();
    record.begin_fence(GatewayId(3), GatewayId(1));
    scene.object = Snapshot { version: Version(scene.object.version.0 + 1), record, ..scene.object.clone() };
    scene.gateways.remove(&one);
    scene.passes(Timers::default().relieve + Duration::from_secs(1));
    assert!(scene.object.record.is_fenced(InstanceId(31)));
}

#[test]
fn a_gateway_that_leaves_hands_its_units_over_without_a_fence() {
    let mut scene = Scene::default();
    let one = scene.starts(1, 11);
    scene.asks(one, Request::Add(UNIT));
    let two = scene.starts(2, 21);
    scene.asks(one, Request::Leave);
    assert!(scene.executes(two));
    assert!(scene.done.contains(&(one, Effect::Stop(Stop::Left))));
    assert_eq!(scene.object.record.fences.len(), 0);
    let now = scene.now;
    let view = scene.gateway(two).view(now);
    assert_eq!((view.gateways.len(), view.here), (1, vec![UNIT]));
}

#[test]
fn a_request_that_lost_the_race_for_the_record_is_tried_again() {
    let mut scene = Scene::default();
    let (one, two) = (scene.starts(1, 11), scene.starts(2, 21));
    let now = scene.now;
    for (instance, unit) in [(one, 1), (two, 2)] {
        let event = Event::Request { request: unit.into(), asked: Request::Add(UnitId(unit)) };
        scene.gateway(instance).handle(now, event);
    }
    scene.passes(Duration::from_secs(1));
    assert!(scene.object.record.places.keys().eq(&[UnitId(1), UnitId(2)]));
    for (instance, request) in [(one, 1), (two, 2)] {
        assert!(scene.done.contains(&(instance, Effect::Requested { request, outcome: Ok(()) })));
    }
}

#[test]
fn a_unit_is_being_added_until_the_record_has_it() {
    let mut scene = Scene::default();
    let one = scene.starts(1, 11);
    let now = scene.now;
    for (request, unit) in [(1, UNIT), (2, UnitId(2))] {
        scene.gateway(one).handle(now, Event::Request { request, asked: Request::AddHere(unit) });
    }
    // The change for one is in flight, and the other one waits.
    assert!([UNIT, UnitId(2)].iter().all(|unit| scene.gateway(one).is_adding(*unit)));
    assert!(!scene.gateway(one).is_adding(UnitId(3)));
    scene.passes(Duration::from_secs(1));
    assert!(!scene.gateway(one).is_adding(UNIT) && !scene.gateway(one).is_adding(UnitId(2)));
    assert_eq!(scene.object.record.places.len(), 2);
}

#[test]
fn a_second_daemon_of_one_name_is_refused_and_fences_no_one() {
    let mut scene = Scene::default();
    let one = scene.starts(1, 11);
    scene.asks(one, Request::Add(UNIT));
    let second = scene.starts(1, 12);
    scene.passes(Duration::from_secs(5));
    assert!(scene.done.contains(&(second, Effect::Stop(Stop::Refused(Refusal::Lives)))));
    assert!(scene.executes(one) && scene.object.record.fences.is_empty());
}
