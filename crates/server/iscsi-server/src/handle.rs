//! [`Handle`]: queries and changes of a running server, from any thread. Nothing here is on the
//! data path. Calls wait for the cores, so a core must never make one.

use std::collections::HashMap;
use std::io;
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use device::{AccessError, PortGroups};
use iscsi::keys::Digest;
use iscsi::target::recovery::Recovered;
use scsi::data::target_port_groups::AccessState;

use server_core::drain::{self, Scope};
use server_core::tally::Counts;
use server_core::{Applied, Change, Core};

use crate::Unit;
use crate::account::{Accounts, TargetCounts};
use crate::config::{Redirect, ServerConfig};
use crate::drain::{Leaving, leaving};
use crate::model::Model;
use crate::notices;
use crate::qos;
use crate::remote;
use crate::session::Standing;
use crate::shared::{BoundPortal, Shared};
use crate::slow::SlowCommand;
use crate::stages::{Stages, UnitStages};

/// A running server's interface for administrators. Cheap to clone.
#[derive(Clone)]
pub struct Handle {
    pub(crate) shared: Arc<Shared>,
}

/// One session as it is now.
#[derive(Clone, Debug)]
pub struct SessionStatus {
    /// Target Session Identifying Handle.
    pub tsih: u16,
    /// The initiator's name.
    pub initiator: String,
    /// The authenticated user of its initiator.
    pub user: Option<String>,
    /// Its ISID.
    pub isid: [u8; 6],
    /// The target's name; `None` in a discovery session.
    pub target: Option<String>,
    /// The portal group that it came through.
    pub group: u16,
    /// The ErrorRecoveryLevel that was negotiated.
    pub error_recovery_level: u8,
    /// MaxConnections that was negotiated.
    pub max_connections: u16,
    /// Age of the session.
    pub age: Duration,
    /// Its connections.
    pub connections: Vec<ConnectionStatus>,
}

/// One connection of a session.
#[derive(Clone, Debug)]
pub struct ConnectionStatus {
    /// Its CID.
    pub cid: u16,
    /// The initiator's end.
    pub peer: SocketAddr,
    /// The core that serves it.
    pub core: usize,
    /// Whether its data moves by RDMA (iSER).
    pub iser: bool,
    /// Whether headers have a digest.
    pub header_digest: bool,
    /// Whether data has a digest.
    pub data_digest: bool,
    /// Age of the connection.
    pub age: Duration,
}

/// One target as it is served now.
#[derive(Clone, Debug)]
pub struct TargetStatus {
    /// Its name.
    pub name: String,
    /// Its alias; empty for none.
    pub alias: String,
    /// Portal groups that serve it; empty for all.
    pub groups: Vec<u16>,
    /// Its units by their numbers.
    pub units: Vec<(u16, Unit)>,
}

/// Work that the server has done since its start.
#[derive(Clone, Debug, Default)]
pub struct Activity {
    /// Counts of the existing sessions' present connections, by TSIH.
    pub sessions: HashMap<u16, Counts>,
    /// For each unit of each target: counts of all sessions since the start.
    pub units: Vec<Flow>,
    /// Counts of each target, by its name.
    pub targets: HashMap<String, TargetCounts>,
    /// Work of recovery in the existing sessions (ErrorRecoveryLevel 1 and 2), by TSIH.
    pub session_recoveries: HashMap<u16, Recovered>,
    /// The same, of all sessions since the start.
    pub recoveries: Recovered,
    /// Whether all cores have answered. If not, their counts are missing.
    pub complete: bool,
}

/// Work done with one unit.
#[derive(Clone, Debug)]
pub struct Flow {
    /// A target of it.
    pub target: String,
    /// Its number there.
    pub lun: u16,
    /// Counts of the work.
    pub counts: Counts,
    /// Times of one command in eight, by stage, if they are counted for the unit.
    pub stages: Option<Box<Stages>>,
}

/// A session that was dropped.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Disconnected {
    /// The initiator's name.
    pub initiator: String,
    /// The target's name; `None` in a discovery session.
    pub target: Option<String>,
    /// How many connections it had.
    pub connections: usize,
}

/// Reason for which a target port group's state was not changed.
#[derive(Debug, thiserror::Error)]
pub enum SetAccessError {
    /// No target has that name.
    #[error("there is no target {0}")]
    NoTarget(String),
    /// The groups refused the change.
    #[error(transparent)]
    Access(#[from] AccessError),
    /// The server has ended.
    #[error("the server has ended")]
    Ended,
}

impl Handle {
    pub(crate) fn new(shared: Arc<Shared>) -> Self {
        Self { shared }
    }

    /// Serves `config` from now on, whole or not at all. Unchanged parts keep running: units (the
    /// same [`Unit`]), portals by the address that was asked for, targets by their names. Unit
    /// attentions tell sessions about units that came, went or changed. Sessions that have lost
    /// their access are asked to log out, and closed two seconds later; other sessions notice
    /// nothing. Bounds and authentication hold for new logins, limits of service for all sessions.
    /// The settings that the cores were started with (their number, polling, pools) stay.
    ///
    /// Blocks, and must not be called on a core.
    ///
    /// # Errors
    /// If it cannot listen on an address; nothing has changed then.
    pub fn apply(&self, config: ServerConfig) -> io::Result<Applied> {
        let mut change = Change::begin(&self.shared.hub);
        self.prepare(&mut change, config)?;
        Ok(change.commit())
    }

    /// The part of [`Self::apply`] that can fail. Nothing has changed before `change` is committed.
    ///
    /// # Errors
    /// If it cannot listen on an address.
    pub fn prepare(&self, change: &mut Change<'_>, mut config: ServerConfig) -> io::Result<()> {
        let before = self.shared.model();
        qos::carry(&before.targets, &mut config);
        let portals = config.portals.clone();
        change.prepare(&self.shared, Model::new(config, Some(&before)), &portals)
    }

    /// Counts of sessions and units. Leaves out cores that do not answer within `patience`.
    pub fn activity(&self, patience: Duration) -> Activity {
        // Read before the cores are asked: a connection that ends meanwhile is counted once, or at
        // the next call.
        let mut recoveries = self.shared.recovered();
        let mut session_recoveries: HashMap<u16, Recovered> =
            self.shared.registry.all().iter().map(|session| (session.tsih, session.recovered())).collect();
        let ask = |core: &Rc<Core>| {
            let targets = core.own::<Accounts>().all();
            let stages = core.own::<UnitStages>().all();
            (remote::counted(core), core.ended.counts(), remote::recovered(core), targets, stages)
        };
        let per_core = self.shared.hub.on_each_core(patience, ask);
        let complete = per_core.iter().all(Option::is_some);
        let (mut units, mut sessions) = (HashMap::<usize, Counts>::new(), HashMap::<u16, Counts>::new());
        let mut targets = HashMap::<String, TargetCounts>::new();
        let mut stages = HashMap::<usize, Box<Stages>>::new();
        for (connections, ended, recovered, accounts, of_units) in per_core.into_iter().flatten() {
            for (target, counts) in accounts {
                targets.entry(target).or_default().add(&counts);
            }
            of_units.into_iter().for_each(|(unit, times)| stages.entry(unit).or_default().add(&times));
            for (tsih, recovered) in recovered {
                recoveries.add(&recovered);
                session_recoveries.entry(tsih).or_default().add(&recovered);
            }
            for (tsih, unit, counts) in connections {
                sessions.entry(tsih).or_default().add(&counts);
                units.entry(unit).or_default().add(&counts);
            }
            ended.into_iter().for_each(|(unit, counts)| units.entry(unit).or_default().add(&counts));
        }
        let mut activity =
            Activity { sessions, targets, session_recoveries, recoveries, complete, ..Activity::default() };
        for target in &self.shared.model().targets {
            for lun in &target.config.units {
                let unit = lun.unit.address();
                let counts = units.get(&unit).copied().unwrap_or_default();
                let stages = lun.stages.then(|| stages.get(&unit).cloned().unwrap_or_default());
                activity.units.push(Flow {
                    target: target.config.name.clone(),
                    lun: lun.lun,
                    counts,
                    stages,
                });
            }
        }
        activity
    }

    /// The slowest commands of each core, and those that have been at work for long; the slowest
    /// first. `None` for a core that does not answer within `patience`.
    pub fn slow(&self, patience: Duration) -> Option<Vec<SlowCommand>> {
        let per_core = self.shared.hub.on_each_core(patience, |core| remote::slow(core));
        let all: Option<Vec<_>> = per_core.into_iter().collect();
        let mut all: Vec<SlowCommand> = all?.into_iter().flatten().map(Into::into).collect();
        all.sort_by_key(|one| std::cmp::Reverse(one.took()));
        Some(all)
    }

    /// Whether the session of [`Applied::leaving`] still exists.
    pub fn has_session(&self, tsih: u64) -> bool {
        u16::try_from(tsih).is_ok_and(|tsih| self.shared.registry.find(tsih).is_some())
    }

    /// The portals, with the actual ports.
    pub fn portals(&self) -> Vec<BoundPortal> {
        self.shared.portals()
    }

    /// The targets.
    pub fn targets(&self) -> Vec<TargetStatus> {
        let of = |target: &Arc<crate::node::Target>| TargetStatus {
            name: target.config.name.clone(),
            alias: target.config.alias.clone(),
            groups: target.config.groups.clone(),
            units: target.config.units.iter().map(|unit| (unit.lun, unit.unit.clone())).collect(),
        };
        self.shared.model().targets.iter().map(of).collect()
    }

    /// The sessions, in the order of their TSIHs.
    pub fn sessions(&self) -> Vec<SessionStatus> {
        let mut all = self.shared.registry.all();
        all.sort_by_key(|session| session.tsih);
        let there = |member: &crate::session::Member| member.standing == Standing::Alive;
        let connection = |member: crate::session::Member| ConnectionStatus {
            cid: member.cid,
            peer: member.arrival.peer,
            core: member.remote.core.index(),
            iser: member.arrival.iser,
            header_digest: member.arrival.header_digest == Digest::Crc32c,
            data_digest: member.arrival.data_digest == Digest::Crc32c,
            age: member.arrival.at.elapsed(),
        };
        all.into_iter()
            .map(|session| SessionStatus {
                tsih: session.tsih,
                initiator: session.port.initiator.clone(),
                user: session.nexus.principal.as_ref().map(|principal| principal.user.clone()),
                isid: session.port.isid.0,
                target: session.target().map(|target| target.config.name.clone()),
                group: session.port.group,
                error_recovery_level: session.params.error_recovery_level,
                max_connections: session.params.max_connections,
                age: session.since.elapsed(),
                connections: session.connections().into_iter().filter(there).map(connection).collect(),
            })
            .collect()
    }

    /// The current target port groups of the target with this name.
    pub fn port_groups(&self, target: &str) -> Option<Arc<PortGroups>> {
        self.shared.model().target(target).map(|target| target.ports.clone())
    }

    /// Changes the state of one of a target's port groups, as [`PortGroups::change`] does, on a
    /// core. Returns when it has changed.
    ///
    /// # Errors
    /// The reason for which the state has not changed.
    pub fn set_access(&self, target: &str, group: u16, state: AccessState) -> Result<(), SetAccessError> {
        let ports = self.port_groups(target).ok_or_else(|| SetAccessError::NoTarget(target.to_owned()))?;
        let changed = self.shared.hub.wait_for(move || async move { ports.change(group, state).await });
        Ok(changed.map_err(|_| SetAccessError::Ended)??)
    }

    /// The state that [`Self::set_access`] would change now; `None` if it is that already.
    ///
    /// # Errors
    /// The reason for which it would be refused.
    pub fn would_set_access(
        &self,
        target: &str,
        group: u16,
        state: AccessState,
    ) -> Result<Option<AccessState>, SetAccessError> {
        let ports = self.port_groups(target).ok_or_else(|| SetAccessError::NoTarget(target.to_owned()))?;
        let changes = ports.would_change(group, state).map_err(AccessError::Change)?;
        let before = ports.groups().into_iter().find(|one| one.id == group);
        Ok(before.filter(|_| changes).map(|group| group.state))
    }

    /// Drops a session, with notice, and refuses its initiator's logins to the target for `time`.
    /// Blocks until the session has ended, and must not be called on a core. `None` if there is no
    /// such session.
    pub fn disconnect(&self, tsih: u16, time: Duration) -> Option<Disconnected> {
        let session = self.shared.registry.find(tsih)?;
        let names = (session.port.initiator.clone(), session.port.target.clone());
        self.shared.refusals.refuse(names, runtime::clock(), time);
        let members = notices::drop_session(&session);
        let gone = Disconnected {
            initiator: session.port.initiator.clone(),
            target: session.target_name().map(str::to_owned),
            connections: members.len(),
        };
        crate::audit::disconnected(&session, &members, time);
        let registry = self.shared.registry.clone();
        // If the core has stopped, so has the session.
        let _ = self.shared.hub.wait_for(move || async move { registry.end(&session).await });
        Some(gone)
    }

    /// Begins to drain `scope`; [`Self::drains`] shows the progress.
    ///
    /// # Errors
    /// Any [`drain::Error`].
    pub fn drain(&self, scope: Scope, options: drain::Options<Redirect>) -> Result<(), drain::Error> {
        let shared = &self.shared;
        self.exists(&scope)?;
        shared.drains.begin(scope, options, &shared.hub, shared.clone())
    }

    /// The sessions that a drain of `scope` would ask to leave now.
    ///
    /// # Errors
    /// [`drain::Error::Unknown`] and [`drain::Error::Again`].
    pub fn would_drain(&self, scope: &Scope) -> Result<Vec<Leaving>, drain::Error> {
        self.exists(scope)?;
        if self.drains().iter().any(|drain| drain.scope == *scope) {
            return Err(drain::Error::Again(scope.clone()));
        }
        Ok(leaving(&self.shared, scope))
    }

    fn exists(&self, scope: &Scope) -> Result<(), drain::Error> {
        let exists = match scope {
            Scope::All => true,
            Scope::Target(name) => self.shared.model().target(name).is_some(),
            Scope::Portal(address) => self.shared.portals().iter().any(|portal| portal.address == *address),
        };
        if exists { Ok(()) } else { Err(drain::Error::Unknown(scope.clone())) }
    }

    /// Ends a drain: the server accepts new logins again. Dropped sessions stay dropped. False if
    /// `scope` is not being drained.
    pub fn undrain(&self, scope: &Scope) -> bool {
        self.shared.drains.undo(scope)
    }

    /// All drains that have not been undone.
    pub fn drains(&self) -> Vec<drain::Status<Redirect>> {
        self.shared.drains.all()
    }

    /// Limits have changed, of units by [`server_core::qos::Limiter::set`] or of ACL entries:
    /// commands that wait are charged anew. Cheap, and never on the data path.
    pub fn limits_changed(&self) {
        self.shared.limits_changed();
    }
}

impl Shared {
    /// Limits of service have changed.
    pub(crate) fn limits_changed(&self) {
        let model = self.model();
        for session in self.registry.all() {
            if let Some(target) = session.target_name().and_then(|name| model.target(name)) {
                let acl = target.acl(&session.port.initiator).flatten();
                let limits = acl.map(|acl| acl.limits).unwrap_or_default();
                if limits != session.limiter.limits() {
                    session.limiter.set(limits);
                }
            }
            for member in session.connections() {
                member.remote.limits_changed();
            }
        }
    }
}
