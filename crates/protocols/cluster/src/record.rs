//! What the group has agreed on: one RADOS object, changed by compare-and-set on its version.
//!
//! Each function here is one change: it reads nothing but the record, and gateways that race for a
//! change lose or win it whole. Heartbeats are counters beside the record in the same object, so
//! that a heartbeat conflicts with no change.

use std::collections::{BTreeMap, VecDeque};
use std::fmt;
use std::ops::RangeInclusive;

use crate::id::{Epoch, GatewayId, InstanceId, UnitId};

/// The number of fences that the record remembers.
pub const FENCES: usize = 64;
/// The most members.
pub const MEMBERS: usize = 256;
/// The most units.
pub const PLACES: usize = 16_384;
/// The most addresses of a member.
pub const ADDRESSES: usize = 16;
/// The most bytes of an address.
pub const ADDRESS: usize = 64;

/// The group.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Record {
    /// The gateways that serve, by name.
    pub members: BTreeMap<GatewayId, Member>,
    /// The plan: who shall own each unit. RBD's lock says who owns it.
    pub places: BTreeMap<UnitId, Place>,
    /// The highest map epoch of all fences. An owner needs a map at least as new before it serves.
    pub barrier: Epoch,
    /// The last fences, oldest first.
    pub fences: VecDeque<Fence>,
    /// What a newer release has added ([`crate::codec`]).
    pub kept: BTreeMap<u16, Vec<u8>>,
}

/// A gateway of the group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Member {
    /// Its present life.
    pub instance: InstanceId,
    /// All addresses of its RADOS client (`ADDRESS:PORT/NONCE`): what a fence blocklists.
    pub addresses: Vec<String>,
    /// The versions of the peer protocol that it speaks.
    pub protocol: RangeInclusive<u16>,
    /// The newest secret of the group that it has.
    pub secret: u32,
    /// What it may do.
    pub standing: Standing,
}

/// What a member may do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Standing {
    /// It serves.
    Serving,
    /// It hands its units over and goes.
    Leaving,
    /// It is being fenced. No way leads back: its next life is another instance.
    Fencing {
        /// Who found it silent.
        by: GatewayId,
    },
}

/// Who shall own a unit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// No gateway can own it now.
    Vacant,
    /// This gateway takes its lock, or has it.
    Owned {
        /// The owner.
        by: GatewayId,
    },
    /// The owner hands it over.
    Moving {
        /// The owner until it has released the lock.
        from: GatewayId,
        /// What follows.
        to: Next,
    },
}

/// What follows when an owner has released a unit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Next {
    /// Another owner.
    Gateway(GatewayId),
    /// No owner: the last gateway leaves.
    Vacant,
    /// The group serves the unit no more.
    Removed,
}

/// An instance that was taken out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fence {
    /// The gateway.
    pub gateway: GatewayId,
    /// Its life that ended.
    pub instance: InstanceId,
    /// Who found it silent.
    pub by: GatewayId,
    /// The map epoch from which on OSDs refuse it.
    pub epoch: Epoch,
}

/// Why the record cannot be changed so.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// The gateway's last life is still a member: it has to be taken out first.
    Predecessor,
    /// Another daemon is this gateway, and lives.
    Lives,
    /// No version of the peer protocol is spoken by all.
    Protocol,
    /// The gateway does not have the secret that the group uses.
    Secret,
    /// The record has no room for another gateway, unit or address.
    Full,
    /// The group does not serve this unit.
    NoUnit,
    /// This gateway is no member that serves.
    NoGateway,
    /// The unit has no owner now, or is being moved.
    NotNow,
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Predecessor => "the gateway's last life is still a member",
            Self::Lives => "another daemon is this gateway",
            Self::Protocol => "no version of the peer protocol is spoken by all gateways",
            Self::Secret => "the gateway does not have the group's secret",
            Self::Full => "the group's record has no room",
            Self::NoUnit => "the group does not serve this unit",
            Self::NoGateway => "this gateway is no member that serves",
            Self::NotNow => "the unit has no owner now, or is being moved",
        })
    }
}

impl Record {
    /// The version of the peer protocol to use: the newest that all members speak.
    #[must_use]
    pub fn protocol(&self) -> Option<u16> {
        common(self.members.values().map(|member| &member.protocol))
    }

    /// The secret to use: the newest that all members have.
    #[must_use]
    pub fn secret(&self) -> Option<u32> {
        self.members.values().map(|member| member.secret).min()
    }

    /// The member of this instance.
    #[must_use]
    pub fn member(&self, instance: InstanceId) -> Option<(GatewayId, &Member)> {
        self.members.iter().find(|(_, member)| member.instance == instance).map(|(id, member)| (*id, member))
    }

    /// Whether OSDs of a map at [`Record::barrier`] refuse this instance.
    #[must_use]
    pub fn is_fenced(&self, instance: InstanceId) -> bool {
        self.fences.iter().any(|fence| fence.instance == instance)
    }

    /// Lets a gateway in.
    ///
    /// # Errors
    /// If the group cannot work with it.
    pub fn join(&mut self, id: GatewayId, member: Member) -> Result<(), Refusal> {
        if self.members.contains_key(&id) {
            return Err(Refusal::Predecessor);
        }
        if self.members.len() >= MEMBERS
            || member.addresses.len() > ADDRESSES
            || member.addresses.iter().any(|address| address.len() > ADDRESS)
        {
            return Err(Refusal::Full);
        }
        if common(self.members.values().map(|member| &member.protocol).chain([&member.protocol])).is_none() {
            return Err(Refusal::Protocol);
        }
        if self.secret().is_some_and(|secret| member.secret < secret) {
            return Err(Refusal::Secret);
        }
        self.members.insert(id, member);
        self.settle();
        Ok(())
    }

    /// Begins to fence a member. Whether that changed anything.
    pub fn begin_fence(&mut self, id: GatewayId, by: GatewayId) -> bool {
        match self.members.get_mut(&id) {
            Some(member) if !matches!(member.standing, Standing::Fencing { .. }) => {
                member.standing = Standing::Fencing { by };
                true
            }
            _ => false,
        }
    }

    /// Ends a fence: the instance is blocklisted from `epoch` on. Its units get new owners.
    /// Whether that changed anything.
    pub fn end_fence(&mut self, instance: InstanceId, epoch: Epoch) -> bool {
        let Some((gateway, member)) = self.member(instance) else { return false };
        let Standing::Fencing { by } = member.standing else { return false };
        self.members.remove(&gateway);
        self.barrier = self.barrier.max(epoch);
        self.fences.push_back(Fence { gateway, instance, by, epoch });
        if self.fences.len() > FENCES {
            self.fences.pop_front();
        }
        self.places.retain(|_, place| match *place {
            Place::Owned { by } if by == gateway => {
                *place = Place::Vacant;
                true
            }
            Place::Moving { from, to } if from == gateway => match to {
                Next::Removed => false,
                Next::Gateway(to) => {
                    *place = Place::Owned { by: to };
                    true
                }
                Next::Vacant => {
                    *place = Place::Vacant;
                    true
                }
            },
            Place::Moving { from, to: Next::Gateway(to) } if to == gateway => {
                *place = Place::Owned { by: from };
                true
            }
            _ => true,
        });
        self.settle();
        true
    }

    /// Serves one more unit. Whether that changed anything.
    ///
    /// # Errors
    /// If the record has no room for it.
    pub fn add(&mut self, unit: UnitId) -> Result<bool, Refusal> {
        if self.places.contains_key(&unit) {
            return Ok(false);
        }
        if self.places.len() >= PLACES {
            return Err(Refusal::Full);
        }
        self.places.insert(unit, Place::Vacant);
        self.settle();
        Ok(true)
    }

    /// [`Self::add`], at the gateway `by`. A unit that is being removed stays. Whether that changed
    /// anything.
    ///
    /// # Errors
    /// If the record has no room for it.
    pub fn add_at(&mut self, unit: UnitId, by: GatewayId) -> Result<bool, Refusal> {
        let serves = self.serves(by);
        let place = match self.places.get(&unit).copied() {
            Some(Place::Moving { from, to: Next::Removed }) if from != by && serves => {
                Place::Moving { from, to: Next::Gateway(by) }
            }
            Some(Place::Moving { from, to: Next::Removed }) => Place::Owned { by: from },
            Some(_) => return Ok(false),
            None if serves && self.places.len() < PLACES => Place::Owned { by },
            None => return self.add(unit),
        };
        self.places.insert(unit, place);
        Ok(true)
    }

    /// Begins to serve a unit no more. One that is being moved goes nowhere then.
    ///
    /// # Errors
    /// If it is not served.
    pub fn remove(&mut self, unit: UnitId) -> Result<(), Refusal> {
        match self.places.get_mut(&unit) {
            None => Err(Refusal::NoUnit),
            Some(Place::Vacant) => {
                self.places.remove(&unit);
                Ok(())
            }
            Some(place) => {
                if let Place::Owned { by: from } | Place::Moving { from, .. } = *place {
                    *place = Place::Moving { from, to: Next::Removed };
                }
                Ok(())
            }
        }
    }

    /// Begins to move a unit to another gateway. A unit that is there stays.
    ///
    /// # Errors
    /// If there is no such unit or gateway, or the unit is being moved.
    pub fn begin_move(&mut self, unit: UnitId, to: GatewayId) -> Result<(), Refusal> {
        if !self.serves(to) {
            return Err(Refusal::NoGateway);
        }
        let place = self.places.get_mut(&unit).ok_or(Refusal::NoUnit)?;
        match *place {
            Place::Owned { by } if by == to => Ok(()),
            Place::Owned { by } => {
                *place = Place::Moving { from: by, to: Next::Gateway(to) };
                Ok(())
            }
            _ => Err(Refusal::NotNow),
        }
    }

    /// The owner has released the unit. Whether that changed anything.
    pub fn end_move(&mut self, unit: UnitId) -> bool {
        let Some(Place::Moving { to, .. }) = self.places.get(&unit).copied() else { return false };
        match to {
            Next::Gateway(by) if self.serves(by) => self.places.insert(unit, Place::Owned { by }),
            Next::Gateway(_) | Next::Vacant => self.places.insert(unit, Place::Vacant),
            Next::Removed => self.places.remove(&unit),
        };
        self.settle();
        true
    }

    /// The owner keeps a unit that it could not hand over. Whether that changed anything.
    pub fn cancel_move(&mut self, unit: UnitId) -> bool {
        match self.places.get_mut(&unit) {
            Some(place) => match *place {
                Place::Moving { from, .. } => {
                    *place = Place::Owned { by: from };
                    true
                }
                _ => false,
            },
            None => false,
        }
    }

    /// Moves units from gateways that own many to those that own few. Whether that changed
    /// anything.
    pub fn spread(&mut self) -> bool {
        let mut changed = false;
        while let (Some((few, least)), Some((many, most))) = (self.few(), self.many()) {
            if most - least < 2 {
                break;
            }
            let owned =
                self.places.iter_mut().find(|(_, place)| matches!(place, Place::Owned { by } if *by == many));
            let Some((_, place)) = owned else { break };
            *place = Place::Moving { from: many, to: Next::Gateway(few) };
            changed = true;
        }
        changed
    }

    /// Begins to leave: the gateway's units move to others, one step with its standing. Whether
    /// that changed anything.
    pub fn leave(&mut self, id: GatewayId) -> bool {
        let Some(member) = self.members.get_mut(&id) else { return false };
        let begun = member.standing == Standing::Serving;
        if begun {
            member.standing = Standing::Leaving;
        }
        let own: Vec<UnitId> = self.units_of(id).collect();
        for unit in &own {
            let to = self.few().map_or(Next::Vacant, |(few, _)| Next::Gateway(few));
            self.places.insert(*unit, Place::Moving { from: id, to });
        }
        begun || !own.is_empty()
    }

    /// Removes a member that has left and has nothing any more. Whether that changed anything.
    pub fn left(&mut self, id: GatewayId) -> bool {
        let free = !self.places.values().any(|place| match place {
            Place::Vacant => false,
            Place::Owned { by } => *by == id,
            Place::Moving { from, to } => *from == id || *to == Next::Gateway(id),
        });
        let leaving = self.members.get(&id).is_some_and(|member| member.standing == Standing::Leaving);
        if free && leaving {
            self.members.remove(&id);
        }
        free && leaving
    }

    /// Whether this gateway may become an owner.
    #[must_use]
    pub fn serves(&self, id: GatewayId) -> bool {
        self.members.get(&id).is_some_and(|member| member.standing == Standing::Serving)
    }

    /// The units that a gateway shall own.
    pub fn units_of(&self, id: GatewayId) -> impl Iterator<Item = UnitId> + '_ {
        self.places
            .iter()
            .filter(move |(_, place)| matches!(place, Place::Owned { by } if *by == id))
            .map(|(unit, _)| *unit)
    }

    /// Gives each vacant unit to the serving member that owns the fewest.
    fn settle(&mut self) {
        let vacant: Vec<UnitId> =
            self.places.iter().filter(|(_, place)| **place == Place::Vacant).map(|(unit, _)| *unit).collect();
        for unit in vacant {
            let Some((by, _)) = self.few() else { return };
            self.places.insert(unit, Place::Owned { by });
        }
    }

    /// How many units each serving member owns or shall own.
    fn loads(&self) -> impl Iterator<Item = (GatewayId, usize)> + '_ {
        let load = |id: GatewayId| {
            let of = |place: &&Place| match place {
                Place::Owned { by } => *by == id,
                Place::Moving { to, .. } => *to == Next::Gateway(id),
                Place::Vacant => false,
            };
            self.places.values().filter(of).count()
        };
        self.members.keys().filter(|id| self.serves(**id)).map(move |id| (*id, load(*id)))
    }

    fn few(&self) -> Option<(GatewayId, usize)> {
        self.loads().min_by_key(|(id, load)| (*load, *id))
    }

    fn many(&self) -> Option<(GatewayId, usize)> {
        self.loads().max_by_key(|(id, load)| (*load, *id))
    }
}

/// The newest version that lies in all ranges.
fn common<'a>(ranges: impl Iterator<Item = &'a RangeInclusive<u16>>) -> Option<u16> {
    let (mut oldest, mut newest) = (0, None);
    for range in ranges {
        oldest = oldest.max(*range.start());
        newest = Some(newest.map_or(*range.end(), |end: u16| end.min(*range.end())));
    }
    newest.filter(|newest| *newest >= oldest)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn member(instance: u64) -> Member {
        Member {
            instance: InstanceId(instance),
            addresses: vec![format!("192.0.2.1:0/{instance}")],
            protocol: 1..=2,
            secret: 1,
            standing: Standing::Serving,
        }
    }

    fn group(members: u16, units: u32) -> Record {
        let mut record = Record::default();
        for id in 1..=members {
            record.join(GatewayId(id), member(u64::from(id))).expect("a gateway joins");
        }
        for unit in 0..units {
            record.add(UnitId(unit)).expect("there is room");
        }
        record
    }

    fn owned(record: &Record, id: u16) -> usize {
        record.units_of(GatewayId(id)).count()
    }

    #[test]
    fn owners_are_spread_and_those_of_a_lost_gateway_again() {
        let mut record = group(3, 6);
        assert_eq!([owned(&record, 1), owned(&record, 2), owned(&record, 3)], [2, 2, 2]);
        assert!(!record.end_fence(InstanceId(2), Epoch(9)), "a fence has to begin first");
        assert!(record.begin_fence(GatewayId(2), GatewayId(1)));
        assert!(record.end_fence(InstanceId(2), Epoch(9)));
        assert_eq!([owned(&record, 1), owned(&record, 3)], [3, 3]);
        assert_eq!(record.barrier, Epoch(9));
        assert!(record.is_fenced(InstanceId(2)));
    }

    #[test]
    fn a_gateway_that_shares_no_version_or_secret_is_refused() {
        let mut record = group(2, 0);
        assert_eq!(record.protocol(), Some(2));
        let newer = Member { protocol: 3..=4, ..member(9) };
        assert_eq!(record.join(GatewayId(9), newer), Err(Refusal::Protocol));
        let older = Member { secret: 0, ..member(9) };
        assert_eq!(record.join(GatewayId(9), older), Err(Refusal::Secret));
        assert_eq!(record.join(GatewayId(1), member(9)), Err(Refusal::Predecessor));
    }

    #[test]
    fn a_rolling_upgrade_uses_the_newest_version_that_all_speak() {
        let mut record = group(2, 0);
        record.join(GatewayId(3), Member { protocol: 2..=3, secret: 2, ..member(3) }).expect("joins");
        assert_eq!((record.protocol(), record.secret()), (Some(2), Some(1)));
    }

    #[test]
    fn a_move_ends_at_its_target_or_back_at_its_owner() {
        let mut record = group(2, 1);
        let unit = UnitId(0);
        assert_eq!(record.begin_move(unit, GatewayId(2)), Ok(()));
        assert_eq!(record.begin_move(unit, GatewayId(2)), Err(Refusal::NotNow));
        assert!(record.cancel_move(unit));
        assert_eq!(record.places[&unit], Place::Owned { by: GatewayId(1) });
        assert_eq!(record.begin_move(unit, GatewayId(2)), Ok(()));
        record.begin_fence(GatewayId(2), GatewayId(1));
        record.end_fence(InstanceId(2), Epoch(1));
        assert_eq!(record.places[&unit], Place::Owned { by: GatewayId(1) });
    }

    #[test]
    fn the_last_gateway_leaves_its_units_vacant() {
        let mut record = group(2, 2);
        for id in [1, 2] {
            assert!(record.leave(GatewayId(id)));
            assert!(!record.left(GatewayId(id)), "it still has units");
            for unit in [0, 1] {
                if matches!(record.places[&UnitId(unit)], Place::Moving { from, .. } if from == GatewayId(id))
                {
                    assert!(record.end_move(UnitId(unit)));
                }
            }
            assert!(record.left(GatewayId(id)));
        }
        assert!(record.places.values().all(|place| *place == Place::Vacant));
        record.join(GatewayId(1), member(7)).expect("a gateway joins");
        assert_eq!(owned(&record, 1), 2);
    }

    #[test]
    fn a_unit_is_added_where_it_is_asked_for_and_stays_if_it_was_being_removed() {
        let mut record = group(1, 1);
        record.join(GatewayId(2), member(2)).expect("a gateway joins");
        let new = UnitId(9);
        let at = |record: &Record| record.places[&new];
        // The first one would be chosen by load after this.
        record.add(UnitId(8)).expect("there is room");
        assert_eq!(record.add_at(new, GatewayId(2)), Ok(true));
        assert_eq!(at(&record), Place::Owned { by: GatewayId(2) });
        assert_eq!(record.add_at(new, GatewayId(1)), Ok(false), "it has an owner");
        record.remove(new).expect("it is there");
        assert_eq!(record.add_at(new, GatewayId(2)), Ok(true));
        assert_eq!(at(&record), Place::Owned { by: GatewayId(2) });
        record.remove(new).expect("it is there");
        assert_eq!(record.add_at(new, GatewayId(1)), Ok(true));
        let moving = Place::Moving { from: GatewayId(2), to: Next::Gateway(GatewayId(1)) };
        assert_eq!(at(&record), moving);
        record.remove(new).expect("it is there");
        assert_eq!(at(&record), Place::Moving { from: GatewayId(2), to: Next::Removed });
        assert!(record.end_move(new) && !record.places.contains_key(&new));
    }

    #[test]
    fn spreading_moves_the_excess_only() {
        let mut record = group(1, 4);
        record.join(GatewayId(2), member(2)).expect("a gateway joins");
        assert!(record.spread());
        let moving = record.places.values().filter(|place| matches!(place, Place::Moving { .. })).count();
        assert_eq!((owned(&record, 1), moving), (2, 2));
        assert!(!record.spread());
    }
}
