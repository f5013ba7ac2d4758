//! What `stag gateways` shows: the group as one gateway knows it.

use std::time::Duration;

use crate::id::{Epoch, GatewayId, InstanceId, UnitId};
use crate::record::{Fence, Place, Record, Standing};

/// The group as one gateway knows it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct View {
    /// The gateways that serve.
    pub gateways: Vec<Row>,
    /// The owners of units, as planned.
    pub units: Vec<(UnitId, Place)>,
    /// The units that the gateway asked executes.
    pub here: Vec<UnitId>,
    /// The last fences, latest first.
    pub fences: Vec<Fence>,
    /// The map epoch behind which owners open units.
    pub barrier: Epoch,
    /// The version of the peer protocol in use.
    pub protocol: Option<u16>,
    /// The number of the secret in use.
    pub secret: Option<u32>,
}

/// A gateway.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Row {
    /// Its name.
    pub gateway: GatewayId,
    /// Its life.
    pub instance: InstanceId,
    /// What it may do.
    pub standing: Standing,
    /// How long the gateway asked has seen its counter stay the same.
    pub silent: Duration,
    /// How many units it owns.
    pub units: usize,
    /// Whether it is the gateway asked.
    pub own: bool,
}

pub(crate) fn of(
    record: &Record,
    own: GatewayId,
    silent: impl Fn(InstanceId) -> Duration,
    executes: impl Fn(UnitId) -> bool,
) -> View {
    let row = |(gateway, member): (&GatewayId, &crate::record::Member)| Row {
        gateway: *gateway,
        instance: member.instance,
        standing: member.standing,
        silent: silent(member.instance),
        units: record.units_of(*gateway).count(),
        own: *gateway == own,
    };
    View {
        gateways: record.members.iter().map(row).collect(),
        units: record.places.iter().map(|(unit, place)| (*unit, *place)).collect(),
        here: record.places.keys().copied().filter(|unit| executes(*unit)).collect(),
        fences: record.fences.iter().rev().copied().collect(),
        barrier: record.barrier,
        protocol: record.protocol(),
        secret: record.secret(),
    }
}
