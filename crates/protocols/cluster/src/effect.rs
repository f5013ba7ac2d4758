//! What the machine asks its driver for, and what the driver tells it.
//!
//! Each effect that says so is answered by exactly one event, maybe very late: RADOS clients send
//! an operation until it is answered. A driver whose client gives an operation up (a timeout) must
//! end the instance, since the operation may still be carried out.

use std::collections::BTreeMap;
#[cfg(test)]
use std::collections::BTreeSet;
use std::time::Duration;

use crate::id::{Epoch, GatewayId, InstanceId, Time, UnitId, Version};
use crate::record::{Record, Refusal};

/// What the driver does.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Effect {
    /// Writes this gateway's counter, if there is one, and then reads the whole object. Answered by
    /// [`Event::Seen`].
    Look {
        /// The heartbeat counter.
        beat: Option<u64>,
    },
    /// Replaces the record if the object's record still has this version, and removes the counters
    /// of instances that the new one does not name. Answered by [`Event::Changed`].
    Change {
        /// The version that is replaced; version 0 is an object that does not exist.
        expect: Version,
        /// The object's new version.
        version: Version,
        /// The new record.
        record: Record,
    },
    /// Notifies the watchers of the object that the record has changed: only to hurry them.
    Notify,
    /// Blocklists all addresses of an instance. Answered by [`Event::Blocklisted`].
    Blocklist {
        /// The instance.
        instance: InstanceId,
        /// Its addresses; all entries are sent at once.
        addresses: Vec<String>,
        /// How long the entries last.
        lasts: Duration,
    },
    /// Gets the latest OSD map. Answered by [`Event::Map`].
    AwaitMap,
    /// Acquires the unit's exclusive lock. Answered by [`Event::Lock`].
    Acquire {
        /// The unit.
        unit: UnitId,
    },
    /// Breaks the unit's lock if this instance holds it. Answered by [`Event::Broken`].
    Break {
        /// The unit.
        unit: UnitId,
        /// The instance, which is fenced.
        instance: InstanceId,
    },
    /// Opens the unit for commands, its reservations included. Answered by [`Event::Opened`].
    Open {
        /// The unit.
        unit: UnitId,
    },
    /// Reports by [`Event::Drained`] when no begun command of the unit is left. Until then the
    /// machine admits none.
    Drain {
        /// The unit.
        unit: UnitId,
        /// Which request this is.
        asked: Time,
    },
    /// Closes the unit and releases its lock. Answered by [`Event::Released`].
    Release {
        /// The unit.
        unit: UnitId,
    },
    /// Tells how a request of the administrator went.
    Requested {
        /// The driver's number of the request.
        request: u64,
        /// The record has it now, or cannot.
        outcome: Result<(), Refusal>,
    },
    /// This life of the gateway is over. The driver drops its RADOS client, all connections and all
    /// commands, and begins a new life with another instance.
    Stop(Stop),
}

/// Why a life is over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stop {
    /// An OSD has refused this instance.
    Fenced,
    /// The group has taken this gateway out.
    TakenOut,
    /// This gateway has left as it was asked to.
    Left,
    /// The group's object was removed, and perhaps made anew: its record is another group's.
    Anew,
    /// The group cannot work with this gateway.
    Refused(Refusal),
}

/// What the driver tells.
#[derive(Clone, Debug)]
pub enum Event {
    /// The object was read.
    Seen(Snapshot),
    /// The record was changed (`true`), or had another version.
    Changed(bool),
    /// A watcher was notified, or has lost its watch.
    Notified,
    /// The monitors have the entries from this epoch on, or `None` if they refused them.
    Blocklisted {
        /// The instance.
        instance: InstanceId,
        /// The epoch.
        epoch: Option<Epoch>,
    },
    /// This gateway's RADOS client has this map.
    Map(Epoch),
    /// An attempt to get a lock has ended.
    Lock {
        /// The unit.
        unit: UnitId,
        /// How.
        outcome: Locked,
    },
    /// The lock was broken, or this instance does not hold it any more.
    Broken {
        /// The unit.
        unit: UnitId,
    },
    /// The unit is open.
    Opened {
        /// The unit.
        unit: UnitId,
    },
    /// No begun command of the unit is left.
    Drained {
        /// The unit.
        unit: UnitId,
        /// The request.
        asked: Time,
    },
    /// The lock is released.
    Released {
        /// The unit.
        unit: UnitId,
    },
    /// An operation on the unit failed for another reason than a fence; it is tried again.
    Failed {
        /// The unit.
        unit: UnitId,
    },
    /// An operation was refused because this instance is blocklisted (ESHUTDOWN).
    Fenced,
    /// The peer link to an instance is up or lost. A hint: it never decides alone.
    Peer {
        /// The instance.
        instance: InstanceId,
        /// Whether the link is lost.
        lost: bool,
    },
    /// The administrator asks for a change.
    Request {
        /// The driver's number of the request.
        request: u64,
        /// What is asked.
        asked: Request,
    },
}

/// What an administrator asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Request {
    /// `stag move UNIT GATEWAY`.
    Move(UnitId, GatewayId),
    /// Moves units so that all gateways own about as many.
    Spread,
    /// Serves one more unit, at the gateway with the fewest.
    Add(UnitId),
    /// Serves one more unit, at this gateway: others may not know it yet.
    AddHere(UnitId),
    /// Serves a unit no more.
    Remove(UnitId),
    /// This gateway hands its units over and leaves.
    Leave,
}

/// How an attempt to get a lock has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Locked {
    /// The lock is this gateway's.
    Acquired,
    /// Another instance holds it.
    By(InstanceId),
}

/// The group's object as it was read.
#[derive(Clone, Debug, Default)]
pub struct Snapshot {
    /// The record's version.
    pub version: Version,
    /// The record.
    pub record: Record,
    /// The counters of all instances.
    pub beats: BTreeMap<InstanceId, u64>,
    /// Who watches the object: no list of members.
    #[cfg(test)]
    pub watchers: BTreeSet<InstanceId>,
}
