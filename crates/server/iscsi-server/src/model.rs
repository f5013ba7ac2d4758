//! What a server serves, as it can change while it runs: one immutable [`Model`] at a time, replaced whole.
//!
//! Logins, discovery and management look at the model of the moment. A session keeps a [`View`] of it: its target and the units
//! that it sees. Each connection keeps the session's view and compares one number a command with the session's, so that a command
//! takes no lock and writes to nothing that cores share. Here is how a new model comes about, and what it means for sessions.

use std::collections::{HashMap, HashSet};
use std::io;
use std::sync::{Arc, PoisonError};
use std::time::Duration;

use device::{ItlNexus, Nexus};
use iscsi::name;
use scsi::UnitAttention;
use server_core::portals;

use crate::Unit;
use crate::config::{Acl, Auth, IserConfig, Limits, Portal, ServerConfig};
use crate::lun_map::LunMap;
use crate::management::Preemptor;
use crate::node::Target;
use crate::qos;
use crate::server;
use crate::session::{Session, View};
use crate::shared::Shared;

/// A portal of the server.
pub(crate) type PortalEntry = portals::Portal<Portal>;

/// How long initiators whose target or access is gone have to log out.
const GRACE: Duration = Duration::from_secs(2);

/// What is served from one change to the next.
pub(crate) struct Model {
    /// Counts changes.
    pub generation: u64,
    /// In the order of the configuration.
    pub targets: Vec<Arc<Target>>,
    /// The same by normalized name.
    by_name: HashMap<String, Arc<Target>>,
    pub portals: Vec<PortalEntry>,
    pub limits: Limits,
    pub discovery_auth: Auth,
    pub zero_copy: bool,
    pub iser: IserConfig,
}

/// What a change has come to.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Applied {
    /// Sessions whose units have changed.
    pub changed: usize,
    /// TSIHs of the sessions that were asked to leave, and are closed if they do not within two seconds.
    pub leaving: Vec<u16>,
}

impl Model {
    /// What `config` says, at `portals`. Targets go on as they are if they have the name of one of `before`.
    pub(crate) fn new(config: ServerConfig, portals: Vec<PortalEntry>, before: Option<&Self>) -> Self {
        let mut groups: Vec<u16> = portals.iter().map(|portal| portal.asked.group).collect();
        groups.sort_unstable();
        groups.dedup();
        let carried = |config: crate::config::TargetConfig| match before.and_then(|b| b.target(&config.name))
        {
            Some(old) => old.changed(config, &groups),
            None => Target::new(config, &groups),
        };
        let targets: Vec<_> = config.targets.into_iter().map(carried).collect();
        Self {
            generation: before.map_or(0, |before| before.generation + 1),
            by_name: targets.iter().map(|one| (name::normalize(&one.config.name), one.clone())).collect(),
            targets,
            portals,
            limits: config.limits,
            discovery_auth: config.discovery_auth,
            zero_copy: config.zero_copy,
            iser: config.iser,
        }
    }

    /// The target with this name.
    pub(crate) fn target(&self, wanted: &str) -> Option<&Arc<Target>> {
        self.by_name.get(&name::normalize(wanted))
    }

    /// Relative identifiers of the ports through which `target` is reached.
    fn ports(&self, target: &Target) -> Vec<u16> {
        let mut groups: Vec<u16> = self.portals.iter().map(|portal| portal.asked.group).collect();
        groups.sort_unstable();
        groups.dedup();
        groups.retain(|group| target.serves(*group));
        groups
    }

    /// What a session through portal group `group` sees. `None` if it may not be there.
    pub(crate) fn view(&self, session: &Session) -> Option<View> {
        let Some(wanted) = session.target_name() else {
            return Some(View { generation: self.generation, target: None, luns: LunMap::default() });
        };
        let target = self.target(wanted)?;
        let acl = target.acl(&session.port.initiator).filter(|_| target.serves(session.port.group))?;
        let acl = acl_of(acl, &session.nexus)?;
        let before = session.view();
        let luns = LunMap::new(&target.config, acl, &session.nexus, Some(&before.luns));
        Some(View { generation: self.generation, target: Some(target.clone()), luns })
    }

    /// What a new session of `nexus` with `target` sees; `None` if its initiator has no business there.
    pub(crate) fn first_view(
        &self,
        target: Option<&str>,
        initiator: &str,
        nexus: &Arc<Nexus>,
    ) -> Option<View> {
        let generation = self.generation;
        let Some(wanted) = target else {
            return Some(View { generation, target: None, luns: LunMap::default() });
        };
        let target = self.target(wanted)?;
        let acl = acl_of(target.acl(initiator)?, nexus)?;
        let luns = LunMap::new(&target.config, acl, nexus, None);
        Some(View { generation, target: Some(target.clone()), luns })
    }
}

/// The ACL entry of `nexus`, `None` if everybody may come. `None` outside: the entry is for another user.
fn acl_of<'a>(acl: Option<&'a Acl>, nexus: &Nexus) -> Option<Option<&'a Acl>> {
    let user = nexus.principal.as_ref().map(|principal| principal.user.as_str());
    acl.is_none_or(|acl| acl.admits(user)).then_some(acl)
}

/// How long logins may take to end before a server is paused.
const LOGINS: Duration = Duration::from_secs(1);

impl Shared {
    /// Tells units who aborts tasks for them and by which ports they are reached: those for which `before` did not.
    pub(crate) fn connect_units(self: &Arc<Self>, model: &Model, before: Option<&Model>) {
        let mut known: HashMap<usize, Vec<u16>> = HashMap::new();
        for target in before.iter().flat_map(|before| &before.targets) {
            let ports = before.map(|before| before.ports(target)).unwrap_or_default();
            known.extend(target.config.units.iter().map(|unit| (unit.unit.address(), ports.clone())));
        }
        let preemptor = Arc::new(Preemptor(Arc::downgrade(self)));
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
    pub(crate) fn serve_nothing(&self) {
        let before = self.model();
        let nothing = nothing(&before);
        self.set_model(Arc::new(Model::new(nothing, Vec::new(), Some(&before))));
    }

    /// Closes all sessions, each as soon as its commands have ended, and lets none in until the next [`Self::apply`]. The listening
    /// sockets stay, and who connects meanwhile waits in their backlog. Blocks for `patience` or a little longer.
    pub(crate) fn pause(self: &Arc<Self>, patience: Duration) {
        let _alone = self.applying.lock().unwrap_or_else(PoisonError::into_inner);
        // Who has been accepted is let in, and then asked to come again: a login that is refused is not tried again by everybody.
        let stopping: Vec<_> = self.model().portals.iter().map(PortalEntry::stop).collect();
        let deadline = runtime::clock() + LOGINS;
        for listener in stopping {
            let _ = listener.recv_timeout(deadline.saturating_duration_since(runtime::clock()));
        }
        while self.hub.admission.logins() > 0 && runtime::clock() < deadline {
            runtime::nap(Duration::from_millis(1));
        }
        self.hub.set_paused(true);
        for session in self.registry.all() {
            session.end().iter().for_each(|member| member.remote.drain());
        }
        let deadline = runtime::clock() + patience;
        while !self.registry.all().is_empty() && runtime::clock() < deadline {
            runtime::nap(Duration::from_millis(1));
        }
        let left = self.registry.all();
        left.iter().flat_map(|session| session.end()).for_each(|member| member.remote.shut());
        let (shared, (done, wait)) = (self.clone(), runtime::channel());
        if left.is_empty() {
            return;
        }
        let ended = self.hub.first().run(move |_| async move {
            for session in left {
                shared.registry.end(&session).await;
            }
            // Only a caller that has vanished does not listen.
            let _ = done.send(());
        });
        if ended.is_ok() {
            // A peer that does not read may hold its connection for some seconds.
            let _ = wait.recv_timeout(Duration::from_secs(6));
        }
    }

    /// Forgets all targets and their units, and keeps the sockets: what is paused is handed over.
    pub(crate) fn let_go_of_units(&self) {
        let before = self.model();
        let nothing = nothing(&before);
        self.set_model(Arc::new(Model::new(nothing, before.portals.clone(), Some(&before))));
    }

    /// Serves what `config` says from now on. Units that are to go on are those that are the very same there. Nothing has changed
    /// if this fails: all that can fail is done first. Blocks, and must not be called on a core.
    ///
    /// # Errors
    /// When an address cannot be listened on.
    pub(crate) fn apply(self: &Arc<Self>, config: ServerConfig) -> io::Result<Applied> {
        let _alone = self.applying.lock().unwrap_or_else(PoisonError::into_inner);
        let before = self.model();
        let (portals, fresh) = portals::prepare(&self.hub, &before.portals, &config.portals)?;
        let mut config = config;
        qos::carry(&before.targets, &mut config);
        let model = Arc::new(Model::new(config, portals, Some(&before)));
        self.connect_units(&model, Some(&before));
        self.set_model(model.clone());
        self.hub.set_paused(false);
        // From here on logins see the new model; those that had seen the old one look again when they have their place.
        let service = |portal: &PortalEntry| server::service(self, portal);
        portals::settle(&self.hub, &before.portals, &model.portals, &fresh, service);
        let mut applied = Applied::default();
        for session in self.registry.all() {
            match self.renew(&session, &model) {
                Renewal::Same => {}
                Renewal::Changed => applied.changed += 1,
                Renewal::Leaving => applied.leaving.push(session.tsih),
            }
        }
        self.retire_units(&before, &model);
        Ok(applied)
    }

    /// Gives a session its view of `model`, or asks it to leave.
    pub(crate) fn renew(self: &Arc<Self>, session: &Arc<Session>, model: &Model) -> Renewal {
        let Some(view) = model.view(session) else {
            self.expel(session);
            return Renewal::Leaving;
        };
        // A unit knows a nexus before the nexus's first command comes.
        let introduce = |before: &View, now: &View| {
            let old = nexuses(before);
            for entry in now.luns.iter().filter(|entry| !old.contains(&Arc::as_ptr(&entry.nexus))) {
                entry.unit.attach(&entry.nexus);
                if before.luns.number(entry.lun).is_some_and(|old| !old.unit.is(&entry.unit)) {
                    // Another unit than the one that was known by this number (SPC-4 §6.6.1).
                    entry.nexus.establish(UnitAttention::InquiryDataHasChanged);
                }
            }
            if before.luns.inventory_differs(&now.luns) {
                now.luns.iter().for_each(|e| e.nexus.establish(UnitAttention::ReportedLunsDataHasChanged));
            }
        };
        let Some(before) = session.set_view(view, introduce) else { return Renewal::Same };
        let now = session.view();
        if nexuses(&before) == nexuses(&now) {
            return Renewal::Same;
        }
        let left: HashSet<usize> = now.luns.iter().map(|entry| entry.unit.address()).collect();
        for entry in before.luns.iter().filter(|entry| !left.contains(&entry.unit.address())) {
            entry.unit.detach(session.nexus.id);
        }
        // Connections that are idle let go of what is gone.
        session.connections().iter().for_each(|member| member.remote.look_again());
        Renewal::Changed
    }

    /// Asks a session's initiator to log out, and closes what is left of it after a while.
    fn expel(self: &Arc<Self>, session: &Arc<Session>) {
        tracing::info!(initiator = session.port.initiator, tsih = session.tsih, "may not stay");
        for member in session.connections() {
            member.remote.ask_for_logout(GRACE);
        }
        let (shared, session) = (self.clone(), session.clone());
        // A core that has stopped has no sessions.
        let _ = self.hub.first().run(move |_| async move {
            let deadline = runtime::now() + GRACE;
            while shared.registry.has(&session) && runtime::now() < deadline {
                runtime::sleep(Duration::from_millis(20)).await;
            }
            shared.registry.end(&session).await;
        });
    }

    /// Flushes units that nobody serves any more. They are closed when their last command has ended.
    fn retire_units(&self, before: &Model, now: &Model) {
        let units = |model: &Model| -> Vec<Unit> {
            model.targets.iter().flat_map(|t| t.config.units.iter().map(|lun| lun.unit.clone())).collect()
        };
        let left: HashSet<usize> = units(now).iter().map(Unit::address).collect();
        let gone: Vec<Unit> =
            units(before).into_iter().filter(|unit| !left.contains(&unit.address())).collect();
        if gone.is_empty() {
            return;
        }
        let addresses: Arc<[usize]> = gone.iter().map(Unit::address).collect();
        for core in self.hub.posts() {
            let addresses = addresses.clone();
            let _ = core.run(move |core| async move {
                addresses.iter().for_each(|unit| core.ended.forget(*unit));
            });
        }
        // A core that has stopped has flushed everything.
        let _ = self.hub.first().run(move |_| async move {
            for unit in gone {
                if let Err(error) = unit.flush().await {
                    tracing::error!(%error, "a unit that is served no more could not be flushed");
                }
            }
        });
    }
}

/// What a server is configured to that serves nothing.
fn nothing(before: &Model) -> ServerConfig {
    ServerConfig {
        portals: Vec::new(),
        targets: Vec::new(),
        discovery_auth: Auth::None,
        limits: before.limits,
        cores: 0,
        spin_us: 0,
        zero_copy: before.zero_copy,
        pool_bytes: 0,
        iser: before.iser,
    }
}

/// The nexuses of a view, by address.
fn nexuses(view: &View) -> HashSet<*const ItlNexus> {
    view.luns.iter().map(|entry| Arc::as_ptr(&entry.nexus)).collect()
}

/// What a new model means for a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Renewal {
    /// Nothing.
    Same,
    /// It sees other units.
    Changed,
    /// It may not stay.
    Leaving,
}
