//! A server of several units on media that outlive it, and an administrator's actions on it, for
//! worlds without power cuts.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use backing::BlockStore;
use backing::faulty::{Action, Faults, FaultyStore, Operations, Rule};
use backing::model::ModelStore;
use disk::unit::{DiskOptions, DiskUnit, Registry};
use iscsi_server::config::{LunConfig, ServerConfig};
use iscsi_server::{CoresConfig, Server, Unit};
use runtime::sim;
use server_core::qos::{Limiter, QosLimits};

use crate::executions::Executions;
use crate::random::Rng;
use crate::verdict::Verdict;

/// Bytes of a sector of every medium.
const SECTOR: u32 = 512;

/// Disturbance by [`Host::disturb`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Disturbance {
    /// A link was reset.
    Cut,
    /// A configuration was applied.
    Apply,
    /// Another server took over.
    TakeOver,
    /// The server was killed and started again.
    Kill,
}

/// A unit's medium, and its place on the server.
pub(crate) struct Medium {
    pub(crate) model: ModelStore,
    pub(crate) options: DiskOptions,
    /// Target, by its index in the configuration, and LUN.
    pub(crate) at: (usize, u16),
}

impl Medium {
    pub(crate) fn new(blocks: usize, options: DiskOptions, at: (usize, u16)) -> Self {
        // Without a write cache: an acknowledged write is on the medium.
        let options = DiskOptions { write_cache: false, ..options };
        Self { model: ModelStore::new(blocks * SECTOR as usize, SECTOR), options, at }
    }
}

/// The server, and the state that outlives it.
pub(crate) struct Host {
    cores: CoresConfig,
    config: ServerConfig,
    pub(crate) media: Vec<Medium>,
    /// Longest operation of the media, µs.
    delay: u64,
    /// Record of accesses to the media.
    pub(crate) executions: Option<Executions>,
    /// The limits of all units.
    limits: QosLimits,
    registry: Registry,
    server: Option<Server>,
    /// The open units, in the order of the media.
    units: Vec<Open>,
}

struct Open {
    store: Arc<dyn BlockStore>,
    unit: Arc<DiskUnit>,
}

impl Host {
    /// A server that has not been started. `config` has no units.
    pub(crate) fn new(cores: CoresConfig, config: ServerConfig, media: Vec<Medium>, delay: u64) -> Self {
        Self {
            cores,
            config,
            media,
            delay,
            executions: None,
            limits: QosLimits::default(),
            registry: Registry::new(),
            server: None,
            units: Vec::new(),
        }
    }

    fn open(&self, medium: &Medium) -> Result<Open, String> {
        let faults = Faults::timed();
        faults.add(Rule::new(Operations::ALL, Action::Delay(0..self.delay)));
        let mut store: Arc<dyn BlockStore> =
            Arc::new(FaultyStore::new(Arc::new(medium.model.clone()), faults));
        if let Some(executions) = &self.executions {
            store = executions.watch(store);
        }
        Ok(Open { unit: self.unit(&store, medium)?, store })
    }

    fn unit(&self, store: &Arc<dyn BlockStore>, medium: &Medium) -> Result<Arc<DiskUnit>, String> {
        DiskUnit::new(store.clone(), medium.options.clone(), &self.registry)
            .map_err(|error| format!("{error:?}"))
    }

    /// Opens all units, as a new daemon does.
    fn open_all(&mut self) -> Result<(), String> {
        self.registry = Registry::new();
        self.units = self.media.iter().map(|medium| self.open(medium)).collect::<Result<_, _>>()?;
        Ok(())
    }

    fn serving(&self) -> ServerConfig {
        let mut config = self.config.clone();
        for (open, medium) in self.units.iter().zip(&self.media) {
            let (target, lun) = medium.at;
            let unit = Unit::Disk(open.unit.clone());
            config.targets[target].units.push(LunConfig {
                lun,
                unit,
                limiter: Arc::new(Limiter::new(self.limits)),
                stages: false,
            });
        }
        config
    }

    pub(crate) fn start(&mut self) -> Result<(), String> {
        self.open_all()?;
        self.server = Some(Server::start(self.cores, self.serving()).map_err(|error| error.to_string())?);
        Ok(())
    }

    /// Does something to the server or to a link.
    ///
    /// # Errors
    /// The server refuses the action.
    async fn disturb(&mut self, rng: &mut Rng) -> Result<Disturbance, String> {
        use Disturbance::{Apply, Cut, Kill, TakeOver};
        let what = rng.pick(&[Cut, Cut, Apply, Apply, TakeOver, Kill]);
        match what {
            Cut => {
                let links = sim::links();
                if !links.is_empty() {
                    sim::reset(links[rng.index(links.len())]);
                }
            }
            Apply => self.apply(rng).await?,
            TakeOver => self.take_over().await?,
            Kill => {
                self.kill().await;
                runtime::sleep(Duration::from_millis(rng.below(500))).await;
                self.start()?;
            }
        }
        Ok(what)
    }

    /// Disturbs the server and its links, up to a number of times, until all of `running` have
    /// ended. `done` gets each disturbance that was done, and `None` when one begins. Returns the
    /// number of kills of the server.
    ///
    /// # Errors
    /// The server refuses a disturbance.
    pub(crate) async fn troubles<T>(
        &mut self,
        mut most: u32,
        verdict: &Verdict,
        running: &[runtime::JoinHandle<T>],
        rng: &mut Rng,
        done: impl Fn(Option<Disturbance>),
    ) -> Result<u64, String> {
        let mut restarts = 0;
        while !running.iter().all(runtime::JoinHandle::is_finished) {
            runtime::sleep(Duration::from_micros(rng.below(60_000))).await;
            if most == 0 || verdict.has_failed() {
                continue;
            }
            most -= 1;
            verdict.note(format_args!("a disturbance"));
            done(None);
            let what = self.disturb(rng).await?;
            verdict.note(format_args!("{what:?}: done"));
            done(Some(what));
            restarts += u64::from(what == Disturbance::Kill);
        }
        Ok(restarts)
    }

    /// Ends the server as `kill -9` does.
    pub(crate) async fn kill(&mut self) {
        let gone = (self.server.take(), std::mem::take(&mut self.units));
        sim::aside(move || drop(gone)).await;
    }

    /// Limits all units.
    pub(crate) async fn limit(&mut self, limits: QosLimits) -> Result<(), String> {
        self.limits = limits;
        let Some(handle) = self.server.as_ref().map(Server::handle) else { return Ok(()) };
        let config = self.serving();
        sim::aside(move || handle.apply(config)).await.map(drop).map_err(|error| error.to_string())
    }

    /// Applies a configuration: another queue depth, and perhaps another unit on the same medium,
    /// as after a change of options.
    async fn apply(&mut self, rng: &mut Rng) -> Result<(), String> {
        let Some(handle) = self.server.as_ref().map(Server::handle) else { return Ok(()) };
        if rng.chance(500) {
            let at = rng.index(self.units.len());
            let unit = self.unit(&self.units[at].store, &self.media[at])?;
            unit.nexuses().inherit(self.units[at].unit.nexuses());
            self.units[at].unit = unit;
        }
        self.config.limits.queue_depth = rng.pick(&[2, 16, 64]);
        let config = self.serving();
        sim::aside(move || handle.apply(config)).await.map(drop).map_err(|error| error.to_string())
    }

    /// Another server takes over the listening sockets, the media and the reservations: `stag`'s
    /// `handover`.
    async fn take_over(&mut self) -> Result<(), String> {
        let Some(old) = self.server.take() else { return Ok(()) };
        let core = old.core();
        let sockets = core.listening_sockets().into_iter();
        let sockets: io::Result<Vec<_>> = sockets.map(|(at, socket)| Ok((at, socket.try_clone()?))).collect();
        let sockets = sockets.map_err(|error| error.to_string())?;
        let units = std::mem::take(&mut self.units);
        let told = sim::aside(move || {
            core.pause(Duration::from_secs(10));
            let told: Vec<_> = units.iter().map(|open| open.unit.nexuses().hand_over()).collect();
            core.let_go();
            drop((units, old));
            told
        })
        .await;
        self.open_all()?;
        for (Open { unit, .. }, told) in self.units.iter().zip(told) {
            let Some(told) = told else { continue };
            let taken = unit.nexuses().take_over(&told);
            taken.map_err(|error| error.to_string())?;
        }
        let server = Server::start_with(self.cores, self.serving(), sockets);
        self.server = Some(server.map_err(|error| error.to_string())?);
        Ok(())
    }

    /// Durable content of a medium.
    pub(crate) fn medium(&self, at: usize, blocks: usize) -> Vec<u8> {
        self.media[at].model.durable_bytes(0, blocks * SECTOR as usize).unwrap_or_default()
    }
}
