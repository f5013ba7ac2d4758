//! Where commands go, which wait, which are sent again, and which end.
//!
//! A command waits here until its unit has an owner, goes to it, and is kept until its outcome has
//! come. Three rules:
//! - A command goes on only if its sender was there a moment ago. A gateway that was paused, or
//!   that held a command, would otherwise execute what its initiator has long sent over another
//!   path.
//! - A command that may have begun ends only by its outcome, by its owner's word that it never will
//!   begin, or by its owner's fence. So nothing of it touches the medium afterwards.
//! - A command that its lost owner may have executed is executed again only if it is a READ. A
//!   WRITE that is executed twice undoes what others have written between, and read.

use std::collections::BTreeMap;

use crate::effect::Effect;
use crate::id::{CommandId, InstanceId, Time, UnitId};
#[cfg(test)]
use crate::mistake::Mistake;
use crate::timers::Timers;

/// What executing a command twice would do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Nothing: READ and its like.
    Read,
    /// It replaces blocks: WRITE and its like.
    Write,
    /// It depends on what is there, or changes the unit's state.
    Other,
}

/// Who sent a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Origin {
    /// An initiator of this gateway.
    Initiator,
    /// Another gateway, which took this one for the owner.
    Peer,
}

/// How a command ends without an outcome of its owner.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ended {
    /// It never began and never will: BUSY for an initiator; a peer may send it elsewhere.
    NotBegun,
    /// It may have been executed, and nothing of it is in flight any more: ABORTED COMMAND.
    Unknown,
}

/// Where commands for a unit go now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Route {
    /// This gateway serves the unit.
    Here,
    /// This gateway is about to serve it.
    SoonHere,
    /// The owner is another gateway.
    Owner(InstanceId),
    /// There is no owner now.
    Nowhere,
}

/// The commands that wait for an owner, or for an owner's outcome.
#[derive(Debug, Default)]
pub struct Holding {
    commands: BTreeMap<CommandId, Held>,
    /// What tests put back.
    #[cfg(test)]
    pub mistake: Mistake,
}

#[derive(Debug)]
struct Held {
    unit: UnitId,
    kind: Kind,
    origin: Origin,
    since: Time,
    /// When the latest completed round trip with the sender began.
    heard: Time,
    state: State,
}

#[derive(Debug, PartialEq, Eq)]
enum State {
    /// It has not begun.
    Waiting { until: Time },
    /// It has not begun; its initiator is pinged first.
    Asking,
    /// The owner has it, as far as is known.
    Sent { to: InstanceId, cancelling: bool },
}

impl Holding {
    /// A command has arrived. `heard` is when the latest completed round trip with its sender
    /// began.
    pub fn submit(
        &mut self,
        now: Time,
        id: CommandId,
        unit: UnitId,
        kind: Kind,
        origin: Origin,
        heard: Time,
    ) {
        let state = State::Waiting { until: now };
        self.commands.insert(id, Held { unit, kind, origin, since: now, heard, state });
    }

    /// The initiator of a command has answered a ping that was sent at `heard`.
    pub fn there(&mut self, now: Time, id: CommandId, heard: Time) {
        if let Some(held) = self.commands.get_mut(&id) {
            held.heard = held.heard.max(heard);
            if held.state == State::Asking {
                held.state = State::Waiting { until: now };
            }
        }
    }

    /// The owner's outcome has come: the command is done.
    pub fn answered(&mut self, id: CommandId) {
        self.commands.remove(&id);
    }

    /// The owner `from` says that it never will begin the command.
    pub fn refused(&mut self, now: Time, id: CommandId, from: InstanceId, timers: &Timers) -> Option<Effect> {
        let held = self.commands.get_mut(&id)?;
        match held.state {
            State::Sent { to, cancelling: true } if to == from => {
                self.commands.remove(&id);
                Some(Effect::End { command: id, ended: Ended::NotBegun })
            }
            State::Sent { to, cancelling: false } if to == from => {
                held.state = State::Waiting { until: now + timers.retry };
                None
            }
            _ => None,
        }
    }

    /// The connection of the command's initiator is gone, or it aborts the command: it must not
    /// begin any more.
    pub fn abort(&mut self, id: CommandId) -> Option<Effect> {
        let held = self.commands.get_mut(&id)?;
        match &mut held.state {
            State::Sent { to, cancelling } => {
                *cancelling = true;
                Some(Effect::Cancel { command: id, to: *to })
            }
            State::Waiting { .. } | State::Asking => {
                self.commands.remove(&id);
                Some(Effect::End { command: id, ended: Ended::NotBegun })
            }
        }
    }

    /// Moves every command as far as it can go. `alive` says of an instance whether it may still
    /// execute: it is false only once the record has its fence, or its release of all units.
    pub fn advance(
        &mut self,
        now: Time,
        timers: &Timers,
        route: impl Fn(UnitId) -> Route,
        alive: impl Fn(InstanceId) -> bool,
        effects: &mut impl Extend<Effect>,
    ) {
        #[cfg(test)]
        let mistake = self.mistake;
        self.commands.retain(|id, held| {
            let command = *id;
            if let State::Sent { to, .. } = held.state
                && !alive(to)
            {
                let again = held.kind == Kind::Read;
                #[cfg(test)]
                let again = again || mistake == Mistake::ResendWrites;
                if !again {
                    effects.extend([Effect::End { command, ended: Ended::Unknown }]);
                    return false;
                }
                held.state = State::Waiting { until: now };
            }
            let late = held.since + timers.hold <= now;
            match &mut held.state {
                State::Sent { to, cancelling } => {
                    if late && !*cancelling {
                        *cancelling = true;
                        effects.extend([Effect::Cancel { command, to: *to }]);
                        #[cfg(test)]
                        if mistake == Mistake::EndsUnasked {
                            effects.extend([Effect::End { command, ended: Ended::Unknown }]);
                            return false;
                        }
                    }
                    return true;
                }
                State::Waiting { until } if !late && *until > now => return true,
                State::Asking if !late => return true,
                State::Waiting { .. } | State::Asking => {}
            }
            let route = route(held.unit);
            let homeless = held.origin == Origin::Peer && !matches!(route, Route::Here | Route::SoonHere);
            if late || homeless {
                effects.extend([Effect::End { command, ended: Ended::NotBegun }]);
                return false;
            }
            let stale = now.saturating_sub(held.heard) > timers.fresh;
            #[cfg(test)]
            let stale = stale
                && match held.origin {
                    Origin::Initiator => mistake != Mistake::StaleCommands,
                    Origin::Peer => mistake != Mistake::StaleTokens,
                };
            let (state, effect) = match route {
                Route::SoonHere | Route::Nowhere => return true,
                Route::Here | Route::Owner(_) if stale => match held.origin {
                    Origin::Initiator => (Some(State::Asking), Effect::Ask { command }),
                    Origin::Peer => (None, Effect::End { command, ended: Ended::NotBegun }),
                },
                Route::Here => (None, Effect::Run { command }),
                Route::Owner(to) => {
                    (Some(State::Sent { to, cancelling: false }), Effect::Forward { command, to })
                }
            };
            effects.extend([effect]);
            state.is_some_and(|state| {
                held.state = state;
                true
            })
        });
    }

    /// When a command goes on by itself.
    #[must_use]
    pub fn due(&self, now: Time, timers: &Timers) -> Option<Time> {
        let of = |held: &Held| match held.state {
            State::Waiting { until } if until > now => Some(until),
            State::Sent { cancelling: true, .. } => None,
            _ => Some(held.since + timers.hold),
        };
        self.commands.values().filter_map(of).min()
    }

    /// How many commands wait or are at an owner.
    #[must_use]
    pub fn len(&self) -> usize {
        self.commands.len()
    }

    /// Whether no command waits or is at an owner.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.commands.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    const ID: CommandId = CommandId(1);
    const UNIT: UnitId = UnitId(1);
    const OWNER: InstanceId = InstanceId(7);

    fn at(second: u64) -> Time {
        Duration::from_secs(second)
    }

    fn held(kind: Kind, origin: Origin) -> Holding {
        let mut holding = Holding::default();
        holding.submit(at(0), ID, UNIT, kind, origin, at(0));
        holding
    }

    fn advance(holding: &mut Holding, now: u64, route: Route, alive: bool) -> Vec<Effect> {
        let mut effects = Vec::new();
        holding.advance(at(now), &Timers::default(), |_| route, |_| alive, &mut effects);
        effects
    }

    fn end(ended: Ended) -> Vec<Effect> {
        vec![Effect::End { command: ID, ended }]
    }

    #[test]
    fn a_lost_owners_read_goes_to_the_next_one_and_its_write_ends() {
        let forward = |to| vec![Effect::Forward { command: ID, to }];
        for kind in [Kind::Read, Kind::Write, Kind::Other] {
            let mut holding = held(kind, Origin::Initiator);
            assert_eq!(advance(&mut holding, 0, Route::Owner(OWNER), true), forward(OWNER));
            let next = advance(&mut holding, 1, Route::Owner(InstanceId(8)), false);
            let expected = if kind == Kind::Read { forward(InstanceId(8)) } else { end(Ended::Unknown) };
            assert_eq!(next, expected, "{kind:?}");
        }
    }

    #[test]
    fn a_held_command_asks_for_its_initiator_before_it_goes_on() {
        let mut holding = held(Kind::Other, Origin::Initiator);
        assert_eq!(advance(&mut holding, 0, Route::Nowhere, true), []);
        assert_eq!(advance(&mut holding, 5, Route::Here, true), [Effect::Ask { command: ID }]);
        assert_eq!(advance(&mut holding, 6, Route::Here, true), []);
        holding.there(at(6), ID, at(5));
        assert_eq!(advance(&mut holding, 6, Route::Here, true), [Effect::Run { command: ID }]);
        assert!(holding.is_empty());
    }

    #[test]
    fn a_peers_command_that_is_stale_or_homeless_never_begins() {
        let mut holding = held(Kind::Write, Origin::Peer);
        assert_eq!(advance(&mut holding, 1, Route::SoonHere, true), []);
        assert_eq!(advance(&mut holding, 3, Route::Here, true), end(Ended::NotBegun));
        let mut holding = held(Kind::Write, Origin::Peer);
        assert_eq!(advance(&mut holding, 0, Route::Owner(OWNER), true), end(Ended::NotBegun));
    }

    #[test]
    fn a_command_is_held_for_ten_seconds_and_ends_as_never_begun() {
        let mut holding = held(Kind::Write, Origin::Initiator);
        assert_eq!(advance(&mut holding, 9, Route::Nowhere, true), []);
        assert_eq!(advance(&mut holding, 10, Route::Nowhere, true), end(Ended::NotBegun));
    }

    #[test]
    fn a_sent_command_ends_by_its_living_owners_word_only() {
        let mut holding = held(Kind::Write, Origin::Initiator);
        advance(&mut holding, 0, Route::Owner(OWNER), true);
        let cancel = Effect::Cancel { command: ID, to: OWNER };
        assert_eq!(advance(&mut holding, 10, Route::Owner(OWNER), true), [cancel]);
        assert_eq!(advance(&mut holding, 99, Route::Owner(OWNER), true), []);
        assert_eq!(holding.refused(at(99), ID, InstanceId(8), &Timers::default()), None);
        let ended = holding.refused(at(99), ID, OWNER, &Timers::default());
        assert_eq!(ended, end(Ended::NotBegun).pop());
    }
}
