//! What `stag gateways` shows: the group as one gateway knows it.

use std::time::Duration;

use crate::effect::Request;
use crate::id::{Epoch, GatewayId, InstanceId, UnitId};
use crate::record::{Fence, Member, Next, Place, Record, Refusal, Standing};

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

impl View {
    /// The moves that a request would begin now: unit, owner and next owner.
    ///
    /// # Errors
    /// The group would refuse it.
    pub fn moves(&self, asked: Request) -> Result<Vec<(UnitId, GatewayId, GatewayId)>, Refusal> {
        let member = |row: &Row| {
            let (instance, standing) = (row.instance, row.standing);
            (row.gateway, Member { instance, addresses: Vec::new(), protocol: 1..=1, secret: 0, standing })
        };
        let mut record = Record {
            members: self.gateways.iter().map(member).collect(),
            places: self.units.iter().copied().collect(),
            ..Record::default()
        };
        match asked {
            Request::Move(unit, to) => record.begin_move(unit, to)?,
            Request::Spread => drop(record.spread()),
            Request::Add(_) | Request::AddHere(_) | Request::Remove(_) | Request::Leave => {}
        }
        let begun = |(unit, before): &(UnitId, Place)| match (before, record.places.get(unit)) {
            (Place::Owned { by }, Some(Place::Moving { to: Next::Gateway(to), .. })) => {
                Some((*unit, *by, *to))
            }
            _ => None,
        };
        Ok(self.units.iter().filter_map(begun).collect())
    }
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_plan_is_what_the_record_would_begin() {
        let row = |number: u16, standing| Row {
            gateway: GatewayId(number),
            instance: InstanceId(number.into()),
            standing,
            silent: Duration::ZERO,
            units: 0,
            own: false,
        };
        let owned = |unit: u32, by: u16| (UnitId(unit), Place::Owned { by: GatewayId(by) });
        let moving = Place::Moving { from: GatewayId(1), to: Next::Gateway(GatewayId(2)) };
        let view = View {
            gateways: vec![row(1, Standing::Serving), row(2, Standing::Serving), row(3, Standing::Leaving)],
            units: vec![owned(1, 1), owned(2, 1), owned(3, 1), owned(4, 1), (UnitId(5), moving)],
            ..View::default()
        };
        let moved = |unit: u32| (UnitId(unit), GatewayId(1), GatewayId(2));
        let to = |unit: u32, gateway: u16| view.moves(Request::Move(UnitId(unit), GatewayId(gateway)));
        assert_eq!(to(2, 2), Ok(vec![moved(2)]));
        assert_eq!(to(2, 1), Ok(vec![]), "it is there");
        assert_eq!(to(2, 3), Err(Refusal::NoGateway), "it leaves");
        assert_eq!(to(5, 1), Err(Refusal::NotNow));
        assert_eq!(to(9, 1), Err(Refusal::NoUnit));
        // Four and the one that comes: one more makes three and two.
        assert_eq!(view.moves(Request::Spread), Ok(vec![moved(1)]));
    }
}
