//! Changes of a running server: a configuration is applied whole or not at all.

use std::collections::{HashMap, HashSet};
use std::io;
use std::sync::Arc;

use server_core::portals;

use crate::Unit;
use crate::config::{Auth, ServerConfig};
use crate::model::{Model, PortalEntry};
use crate::preemptor::Preemptor;
use crate::renewal::{self, Renewal};
use crate::shared::Shared;
use crate::{qos, service};

/// What a change has come to.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Applied {
    /// Sessions whose units have changed.
    pub changed: usize,
    /// TSIHs of the sessions that were asked to leave, and are closed if they do not within two
    /// seconds.
    pub leaving: Vec<u16>,
}

/// Tells units who aborts tasks for them and by which ports they are reached: those for which
/// `before` did not.
pub(crate) fn connect_units(shared: &Arc<Shared>, model: &Model, before: Option<&Model>) {
    let mut known: HashMap<usize, Vec<u16>> = HashMap::new();
    for target in before.iter().flat_map(|before| &before.targets) {
        let ports = before.map(|before| before.ports(target)).unwrap_or_default();
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

/// Serves nothing any more, and lets go of units and sockets: for a server whose cores have ended.
pub(crate) fn serve_nothing(shared: &Shared) {
    let before = shared.model();
    let nothing = nothing(&before);
    shared.set_model(Arc::new(Model::new(nothing, Vec::new(), Some(&before))));
}

/// Forgets all targets and their units, and keeps the sockets: what is paused is handed over.
pub(crate) fn let_go_of_units(shared: &Shared) {
    let before = shared.model();
    let nothing = nothing(&before);
    shared.set_model(Arc::new(Model::new(nothing, before.portals.clone(), Some(&before))));
}

/// Serves what `config` says from now on. Units that are to go on are those that are the very same
/// there. Nothing has changed if this fails: all that can fail is done first. Blocks, and must not
/// be called on a core.
///
/// # Errors
/// When an address cannot be listened on.
pub(crate) fn apply(shared: &Arc<Shared>, config: ServerConfig) -> io::Result<Applied> {
    let _alone = shared.hub.change();
    let before = shared.model();
    let (portals, fresh) = portals::prepare(&shared.hub, &before.portals, &config.portals)?;
    let mut config = config;
    qos::carry(&before.targets, &mut config);
    let model = Arc::new(Model::new(config, portals, Some(&before)));
    connect_units(shared, &model, Some(&before));
    shared.set_model(model.clone());
    shared.hub.set_paused(false);
    // From here on logins see the new model; those that had seen the old one look again when they
    // have their place.
    let service = |portal: &PortalEntry| service::at(shared, portal);
    portals::settle(&shared.hub, &before.portals, &model.portals, &fresh, service);
    let mut applied = Applied::default();
    for session in shared.registry.all() {
        match renewal::renew(shared, &session, &model) {
            Renewal::Same => {}
            Renewal::Changed => applied.changed += 1,
            Renewal::Leaving => applied.leaving.push(session.tsih),
        }
    }
    retire_units(shared, &before, &model);
    Ok(applied)
}

/// Flushes units that nobody serves any more. They are closed when their last command has ended.
fn retire_units(shared: &Shared, before: &Model, now: &Model) {
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

/// What a server is configured to that serves nothing.
fn nothing(before: &Model) -> ServerConfig {
    ServerConfig {
        portals: Vec::new(),
        targets: Vec::new(),
        discovery_auth: Auth::None,
        limits: before.limits,
        zero_copy: before.zero_copy,
        iser: before.iser,
    }
}
