//! The server side: the shipped server, its disk, and the medium, which outlives both.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use backing::faulty::{Action, Faults, FaultyStore, Operations, Rule};
use disk::unit::{DiskOptions, DiskUnit, Registry};
use iscsi::chap::{Credential, Secret};
use iscsi_client::{Transport, Url};
use iscsi_server::config::{
    Auth, Chap, Crc, IserConfig, Limits, LunConfig, Portal, ServerConfig, TargetConfig,
};
use iscsi_server::{CoresConfig, DrainOptions, DrainScope, Server, Unit};

use crate::executions::Executions;
use crate::medium::Medium;
use crate::plan::{Change, Plan, Sabotage, Settings};
use crate::random::Rng;

/// The name of the target.
pub(crate) const NAME: &str = "iqn.2026-01.example.sim:disk";
/// Secret with which the target authenticates in mutual CHAP.
pub(crate) const TARGET_SECRET: &str = "the target's own secret";

/// The deepest command window that a change sets.
pub(crate) const DEEPEST: u32 = 64;
/// The time that initiators have to log out.
const GRACE: Duration = Duration::from_secs(2);

/// The server, when it runs, and its medium.
pub(crate) struct Daemon {
    cores: CoresConfig,
    config: ServerConfig,
    options: DiskOptions,
    pub(crate) medium: Medium,
    executions: Executions,
    faults: Faults,
    /// Whether the store may have faults.
    is_faulty: bool,
    bytes: usize,
    iser: bool,
    server: Option<Server>,
    /// The unit that it serves.
    unit: Option<Unit>,
    /// Whether it serves another target beside.
    beside: bool,
}

impl Daemon {
    pub(crate) fn new(plan: &Plan, executions: &Executions, rng: &mut Rng) -> Result<Self, String> {
        let bytes = plan.blocks as usize * plan.block as usize;
        let faults = Faults::timed();
        let medium = Medium::new(plan, &faults, rng)?;
        Ok(Self {
            cores: cores(1 + rng.index(3)),
            config: config(&plan.target),
            options: plan.disk.clone(),
            medium,
            executions: executions.clone(),
            faults,
            is_faulty: plan.files.is_none(),
            bytes,
            iser: plan.target.iser.is_some(),
            server: None,
            unit: None,
            beside: false,
        })
    }

    /// The URL of its disk.
    pub(crate) fn url(&self, _initiator: usize) -> Url {
        let portal = self.config.portals[0].listen;
        let url = Url::portal(portal.ip().to_string(), portal.port()).with_unit(NAME, 0);
        Url { transport: if self.iser { Transport::Iser } else { Transport::Tcp }, ..url }
    }

    /// Starts the server, on a medium with power.
    pub(crate) async fn start(&mut self) -> Result<(), String> {
        self.medium.power_on()?;
        let config = self.with_unit()?;
        self.server = Some(
            Server::start(self.cores, config)
                .map_err(|error| format!("the server does not start: {error}"))?,
        );
        Ok(())
    }

    /// The configuration of a new server, with a new unit on the medium.
    fn with_unit(&mut self) -> Result<ServerConfig, String> {
        let mut store = self.medium.open()?;
        if self.is_faulty {
            store = Arc::new(FaultyStore::new(store, self.faults.clone()));
        }
        let store = self.executions.watch(store);
        let unit =
            DiskUnit::new(store, self.options.clone(), &Registry::new()).map_err(|e| format!("{e:?}"))?;
        self.unit = Some(Unit::Disk(unit));
        Ok(self.with_units())
    }

    fn with_units(&self) -> ServerConfig {
        let mut config = self.config.clone();
        let luns = self.unit.clone().into_iter();
        config.targets[0].units =
            luns.map(|unit| LunConfig { lun: 0, unit, limiter: Arc::default(), stages: false }).collect();
        if self.beside {
            let name = "iqn.2026-01.example.sim:beside".to_owned();
            config.targets.push(TargetConfig { name, units: Vec::new(), ..config.targets[0].clone() });
        }
        config
    }

    /// Executes a change. The server runs again afterwards.
    pub(crate) async fn change(&mut self, change: Change, rng: &mut Rng) -> Result<(), String> {
        let Some(server) = &self.server else { return Ok(()) };
        let handle = server.handle();
        match change {
            Change::Apply => {
                self.beside = !self.beside;
                self.config.limits.queue_depth = rng.pick(&[2, 16, DEEPEST]);
                self.config.limits.send_high_water = rng.pick(&[4096, 1 << 20]);
                let config = self.with_units();
                let applied = runtime::sim::aside(move || handle.apply(config)).await;
                applied.map(drop).map_err(|error| format!("it cannot be applied: {error}"))
            }
            Change::Drain => {
                let options = DrainOptions { timeout: Duration::from_secs(1), redirect: None };
                handle
                    .drain(DrainScope::All, options)
                    .map_err(|error| format!("it cannot be drained: {error}"))?;
                let deadline = runtime::clock() + Duration::from_secs(30);
                while handle.drains().iter().any(|drain| drain.left > 0) {
                    if runtime::clock() > deadline {
                        return Err(format!("a drain does not end: {:?}", handle.drains()));
                    }
                    runtime::sleep(Duration::from_millis(100)).await;
                }
                handle.undrain(&DrainScope::All);
                Ok(())
            }
            Change::TakeOver => {
                let core = server.core();
                let sockets = core.listening_sockets().into_iter();
                let sockets: std::io::Result<Vec<_>> =
                    sockets.map(|(at, socket)| Ok((at, socket.try_clone()?))).collect();
                let sockets = sockets.map_err(|error| error.to_string())?;
                let old = self.server.take();
                self.unit = None;
                runtime::sim::aside(move || {
                    core.pause(Duration::from_secs(10));
                    core.let_go();
                    drop(old);
                })
                .await;
                let config = match self.with_unit() {
                    // The power has gone meanwhile, and the machine with it.
                    Err(_) if !self.medium.is_powered() => return Ok(()),
                    config => config?,
                };
                let server = Server::start_with(self.cores, config, sockets);
                self.server = Some(server.map_err(|error| format!("it cannot be taken over: {error}"))?);
                Ok(())
            }
        }
    }

    /// Ends the server as `kill -9` does: closes its sockets and drops its tasks.
    pub(crate) async fn kill(&mut self) {
        let server = (self.server.take(), self.unit.take());
        runtime::sim::aside(move || drop(server)).await;
    }

    /// Stops the server in an orderly way.
    pub(crate) async fn stop(&mut self) -> Result<(), String> {
        let Some(server) = self.server.take() else { return Ok(()) };
        let deadline = runtime::clock() + Duration::from_secs(60);
        while server.sessions() > 0 && runtime::clock() < deadline {
            runtime::sleep(Duration::from_millis(100)).await;
        }
        let left = server.sessions();
        let stopped = runtime::sim::aside(move || server.stop(GRACE)).await;
        if left > 0 {
            return Err(format!("{left} sessions are left when all initiators have gone"));
        }
        // An error here is the failed flush of a medium with a planted fault.
        drop(stopped);
        Ok(())
    }

    /// Plants a fault that must be found.
    pub(crate) fn sabotage(&mut self, sabotage: Sabotage) {
        let writes = Operations::WRITE.or(Operations::ZEROS).or(Operations::DISCARD);
        let rule = match sabotage {
            Sabotage::LostWrites => Rule::new(writes, Action::Lie).after(30).times(3),
            Sabotage::LyingSyncs => Rule::new(Operations::SYNC, Action::Lie),
            Sabotage::EndlessWrite => Rule::new(writes, Action::Delay(u64::MAX..u64::MAX)).after(30).times(1),
            Sabotage::ForgottenFailures => return self.medium.forget_failures(),
            // The links damage the data.
            Sabotage::DamagedData => return,
        };
        self.faults.add(rule);
        self.is_faulty = true;
    }

    /// The durable content of the medium.
    pub(crate) fn content(&self) -> Vec<u8> {
        self.medium.content(self.bytes)
    }

    /// The administrator acknowledges a failed flush.
    pub(crate) async fn acknowledge(&self) {
        let Some(health) = self.medium.health() else { return };
        // The mark cannot be removed while the medium has no power.
        drop(runtime::sim::aside(move || health.acknowledge()).await);
    }
}

/// `count` cores that do not spin.
pub(crate) fn cores(count: usize) -> CoresConfig {
    CoresConfig { count, spin_us: 0, pool_bytes: 64 << 20 }
}

/// The configuration of a server with the plan's settings, without units.
pub(crate) fn config(settings: &Settings) -> ServerConfig {
    let secret =
        |name: &str, secret: &str| Credential { name: name.into(), secret: Secret::new(secret.as_bytes()) };
    let auth = settings.chap.as_ref().map_or(Auth::None, |(user, word)| {
        Auth::Chap(Chap {
            users: vec![secret(user, word)],
            mutual: Some(secret("target", TARGET_SECRET)),
            hashes: iscsi::chap::Hash::ALL.to_vec(),
        })
    });
    ServerConfig {
        portals: vec![Portal {
            listen: SocketAddr::from(([10, 0, 0, 200], 3260)),
            group: 1,
            transports: Default::default(),
        }],
        targets: vec![TargetConfig {
            name: NAME.into(),
            alias: String::new(),
            groups: vec![],
            auth: auth.clone(),
            units: vec![],
            acls: None,
            redirect: None,
            ports: None,
            elsewhere: Vec::new(),
        }],
        discovery_auth: auth,
        limits: Limits {
            connections_per_session: settings.connections,
            queue_depth: settings.queue_depth,
            max_recv_data_segment: settings.max_recv_data_segment,
            max_burst: settings.max_burst,
            first_burst: settings.first_burst.min(settings.max_burst),
            max_outstanding_r2t: settings.max_r2t,
            nop_interval: settings.nop_interval,
            nop_timeout: settings.nop_timeout,
            send_high_water: settings.send_high_water,
            error_recovery_level: settings.level,
            default_time2wait_s: settings.time2wait,
            default_time2retain_s: settings.time2retain,
            data_timeout: settings.data_timeout,
            ..Limits::default()
        },
        zero_copy: true,
        iser: settings.iser.map_or_else(Default::default, |setup| IserConfig {
            crc: if setup.crc { Crc::Require } else { Crc::Never },
            max_fpdu: setup.max_fpdu,
            markers: setup.markers,
            reads: setup.depth,
            unsolicited_data: !settings.initial_r2t,
        }),
    }
}
