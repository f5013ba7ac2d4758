//! Applies a new [`Model`] to the units that it consists of, and to the existing sessions.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use server_core::Applied;

use crate::Unit;
use crate::account::Accounts;
use crate::model::{Edition, Model};
use crate::preemptor::Preemptor;
use crate::renewal::{self, Renewal};
use crate::shared::Shared;
use crate::stages::UnitStages;

/// Tells units their aborter and the target ports that reach them. Skips units with the same ports
/// in `before`.
pub(crate) fn connect_units(shared: &Arc<Shared>, before: &Model, model: &Model) {
    let mut known: HashMap<usize, Vec<u16>> = HashMap::new();
    for target in &before.targets {
        let ports = before.ports(target);
        known.extend(target.config.units.iter().map(|unit| (unit.unit.address(), ports.clone())));
    }
    let preemptor = Arc::new(Preemptor(Arc::downgrade(shared)));
    for target in &model.targets {
        let ports = model.ports(target);
        for lun in &target.config.units {
            if known.get(&lun.unit.address()) != Some(&ports) {
                lun.unit.connect(preemptor.clone(), &ports);
            }
        }
    }
}

/// Has the existing sessions see `now`.
pub(crate) fn renew_sessions(shared: &Arc<Shared>, now: &Edition) -> Applied {
    let mut applied = Applied::default();
    for session in shared.registry.all() {
        match renewal::renew(shared, &session, now) {
            Renewal::Same => {}
            Renewal::Changed => applied.changed += 1,
            Renewal::Leaving => applied.leaving.push(session.tsih.into()),
        }
    }
    applied
}

/// Forgets what targets did that are served no more.
pub(crate) fn forget_targets(shared: &Shared, before: &Model, now: &Model) {
    let name = |target: &Arc<crate::node::Target>| target.config.name.clone();
    let gone: Arc<[String]> = before.targets.iter().map(name).filter(|it| now.target(it).is_none()).collect();
    if gone.is_empty() {
        return;
    }
    for core in shared.hub.posts() {
        let gone = gone.clone();
        // A core that has stopped counts nothing.
        let _ = core.run(move |core| async move {
            gone.iter().for_each(|target| core.own::<Accounts>().forget(target));
        });
    }
}

/// Forgets the stages of units for which they are not counted any more.
pub(crate) fn forget_stages(shared: &Shared, before: &Model, now: &Model) {
    let counted = |model: &Model| -> HashSet<usize> {
        let units = model.targets.iter().flat_map(|target| &target.config.units);
        units.filter(|lun| lun.stages).map(|lun| lun.unit.address()).collect()
    };
    let gone: Arc<[usize]> = counted(before).difference(&counted(now)).copied().collect();
    if gone.is_empty() {
        return;
    }
    for core in shared.hub.posts() {
        let gone = gone.clone();
        // A core that has stopped counts nothing.
        let _ = core.run(move |core| async move {
            gone.iter().for_each(|unit| core.own::<UnitStages>().forget(*unit));
        });
    }
}

/// Flushes units that no target serves any more. They are closed when their last command has ended.
pub(crate) fn retire_units(shared: &Shared, before: &Model, now: &Model) {
    let units = |model: &Model| -> Vec<Unit> {
        model.targets.iter().flat_map(|t| t.config.units.iter().map(|lun| lun.unit.clone())).collect()
    };
    let left: HashSet<usize> = units(now).iter().map(Unit::address).collect();
    let gone: Vec<Unit> = units(before).into_iter().filter(|unit| !left.contains(&unit.address())).collect();
    if gone.is_empty() {
        return;
    }
    let addresses: Arc<[usize]> = gone.iter().map(Unit::address).collect();
    for core in shared.hub.posts() {
        let addresses = addresses.clone();
        let _ = core.run(move |core| async move {
            addresses.iter().for_each(|unit| core.ended.forget(*unit));
        });
    }
    // A core that has stopped has flushed everything.
    let _ = shared.hub.first().run(move |_| async move {
        for unit in gone {
            if let Err(error) = unit.flush().await {
                tracing::error!(%error, "a unit that is served no more could not be flushed");
            }
        }
    });
}
