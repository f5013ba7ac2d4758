//! Counts of what has happened to this gateway's units in the group, from one view of it to the
//! next.

use std::collections::BTreeSet;

use cluster::{GatewayId, InstanceId, Place, View};

/// Counts since the gateway has started, over all its lives.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Units that came here from a gateway that handed them over.
    pub moves: u64,
    /// Units that came here from a gateway that was taken out.
    pub takeovers: u64,
    /// Gateways that this one has taken out, earlier lives of its own among them.
    pub fences: u64,
}

impl Counts {
    /// Adds what has happened between two views to gateway `own` in its present life.
    pub(crate) fn add(&mut self, before: &View, now: &View, (own, instance): (GatewayId, InstanceId)) {
        // The first view tells what has happened before.
        if before.gateways.is_empty() {
            return;
        }
        let fenced: BTreeSet<InstanceId> = now.fences.iter().map(|fence| fence.instance).collect();
        let known: BTreeSet<InstanceId> = before.fences.iter().map(|fence| fence.instance).collect();
        let new = now.fences.iter().filter(|fence| !known.contains(&fence.instance));
        self.fences += new.filter(|fence| fence.by == own).count() as u64;
        let of = |view: &View, gateway: GatewayId| {
            view.gateways.iter().find(|row| row.gateway == gateway).map(|row| row.instance)
        };
        if of(now, own) != Some(instance) {
            return;
        }
        for (unit, place) in &now.units {
            let Place::Owned { by } = place else { continue };
            // A view has its units in order.
            let Ok(at) = before.units.binary_search_by_key(unit, |(unit, _)| *unit) else { continue };
            let old = match before.units[at].1 {
                Place::Owned { by } | Place::Moving { from: by, .. } => of(before, by),
                Place::Vacant => None,
            };
            match old.filter(|old| *by == own && *old != instance) {
                Some(old) if fenced.contains(&old) => self.takeovers += 1,
                Some(_) => self.moves += 1,
                None => {}
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use cluster::record::{Fence, Next, Standing};
    use cluster::view::Row;
    use cluster::{Epoch, UnitId};

    use super::*;

    const OWN: (GatewayId, InstanceId) = (GatewayId(1), InstanceId(11));

    /// Gateways by number and instance, places, and who was taken out by whom.
    fn view(gateways: &[(u16, u64)], places: &[Place], fences: &[(u64, u16)]) -> View {
        let row = |(number, instance): &(u16, u64)| Row {
            gateway: GatewayId(*number),
            instance: InstanceId(*instance),
            standing: Standing::Serving,
            silent: Duration::ZERO,
            units: 0,
            own: *number == 1,
        };
        let fence = |(instance, by): &(u64, u16)| Fence {
            gateway: GatewayId(2),
            instance: InstanceId(*instance),
            by: GatewayId(*by),
            epoch: Epoch(7),
        };
        View {
            gateways: gateways.iter().map(row).collect(),
            units: places.iter().enumerate().map(|(at, place)| (UnitId(at as u32), *place)).collect(),
            fences: fences.iter().map(fence).collect(),
            ..View::default()
        }
    }

    fn by(number: u16) -> Place {
        Place::Owned { by: GatewayId(number) }
    }

    fn after(views: &[View]) -> (u64, u64, u64) {
        let mut counts = Counts::default();
        views.windows(2).for_each(|pair| counts.add(&pair[0], &pair[1], OWN));
        (counts.moves, counts.takeovers, counts.fences)
    }

    #[test]
    fn units_that_come_here_are_moved_or_taken_over() {
        let (all, left) = ([(1, 11), (2, 22), (3, 33)], [(1, 11), (3, 33)]);
        let first = view(&all, &[by(2), by(2), by(3), by(1), Place::Vacant], &[]);
        let moving = Place::Moving { from: GatewayId(2), to: Next::Gateway(GatewayId(1)) };
        let on_the_way = view(&all, &[moving, by(2), by(3), by(1), by(1)], &[]);
        let moved = view(&all, &[by(1), by(2), by(3), by(1), by(1)], &[]);
        assert_eq!(
            after(&[first.clone(), on_the_way.clone()]),
            (0, 0, 0),
            "a vacant unit has no owner before"
        );
        assert_eq!(after(&[first.clone(), on_the_way, moved.clone()]), (1, 0, 0));
        assert_eq!(after(&[first.clone(), moved.clone()]), (1, 0, 0), "a view between may be missed");
        let taken = view(&left, &[by(1), by(1), by(3), by(1), by(1)], &[(22, 1)]);
        assert_eq!(after(&[moved.clone(), taken.clone(), taken.clone()]), (0, 1, 1));
        let by_another = view(&left, &[by(1), by(3), by(3), by(1), by(1)], &[(22, 3)]);
        assert_eq!(after(&[moved, by_another]), (0, 0, 0));
        // What has happened before this gateway looked, and to its own former life.
        assert_eq!(after(&[View::default(), taken.clone()]), (0, 0, 0));
        let alone = view(&[(1, 10)], &[by(1)], &[]);
        let again = view(&[(1, 11)], &[by(1)], &[(10, 1)]);
        assert_eq!(after(&[alone.clone(), again]), (0, 1, 1));
        assert_eq!(after(&[taken, alone]), (0, 0, 0), "this life is not in the group");
    }
}
