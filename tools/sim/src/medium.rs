//! The medium of the disk in worlds of reads and writes: a model of one, or the shipped store of
//! files on the modelled files of the world. It outlives the server.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use backing::faulty::{Action, Faults, Operations, Rule};
use backing::health::Place;
use backing::model::ModelStore;
use backing::{BlockStore, FileOptions, FileStore, Health, StoreError};
use runtime::sim::medium as files;

use crate::oracle::SECTOR;
use crate::plan::{FilePlan, Plan};
use crate::random::Rng;

/// EIO.
const EIO: StoreError = StoreError::Io(5);
/// The disk's file, and those that keep the mark of a failed flush.
const DISK: &str = "/srv/disk.img";
const MARKS: [&str; 2] = ["/var/lib/stag/flush-failed/disk", "/srv/disk.img.flush-failed"];

/// The medium.
pub(crate) enum Medium {
    Model { model: ModelStore, faults: Faults },
    Files { options: FileOptions, marks: bool, health: Option<Arc<Health>> },
}

impl Medium {
    /// The medium of a plan. `faults` are those of the store above it.
    pub(crate) fn new(plan: &Plan, faults: &Faults, rng: &mut Rng) -> Result<Self, String> {
        let bytes = plan.blocks * u64::from(plan.block);
        if let Some(FilePlan { cache, engine }) = plan.files {
            let delay = Duration::from_micros(plan.store_delay.unwrap_or(20));
            files::set_delay(Duration::ZERO..delay);
            let options = FileOptions {
                size: Some(bytes),
                cache: Some(cache),
                engine,
                block_size: Some(plan.block),
                ..FileOptions::default()
            };
            return Ok(Self::Files { options, marks: true, health: None });
        }
        let mut model = ModelStore::new(bytes as usize, SECTOR as u32);
        if plan.lands {
            model = model.landing().map_err(|error| error.to_string())?;
        }
        if let Some(delay) = plan.store_delay {
            faults.add(Rule::new(Operations::ALL, Action::Delay(0..delay)).seed(rng.bits()));
        }
        Ok(Self::Model { model, faults: faults.clone() })
    }

    /// Opens the store, as a new server does. The medium has power.
    pub(crate) fn open(&mut self) -> Result<Arc<dyn BlockStore>, String> {
        match self {
            Self::Model { model, .. } => Ok(Arc::new(model.clone())),
            Self::Files { options, marks, health } => {
                let store = FileStore::open(Path::new(DISK), options).map_err(|error| error.to_string())?;
                if let (true, Some(health)) = (*marks, store.health()) {
                    let place = |file: &str| Place { file: PathBuf::from(file), make_folder: false };
                    health.keep_at(MARKS.map(place).to_vec());
                }
                *health = store.health().cloned();
                Ok(Arc::new(store))
            }
        }
    }

    /// Plants a fault that must be found: failed flushes are not remembered.
    pub(crate) fn forget_failures(&mut self) {
        if let Self::Files { marks, .. } = self {
            *marks = false;
        }
    }

    pub(crate) fn power_on(&self) -> Result<(), String> {
        match self {
            Self::Model { model, .. } => model.power_on(),
            Self::Files { .. } => return files::power_on().map_err(|error| error.to_string()),
        }
        Ok(())
    }

    pub(crate) fn is_powered(&self) -> bool {
        match self {
            Self::Model { model, .. } => model.powered(),
            Self::Files { .. } => files::is_powered(),
        }
    }

    pub(crate) fn cut_power(&self, seed: u64) {
        match self {
            Self::Model { model, .. } => drop(model.cut_power(seed)),
            Self::Files { .. } => files::cut_power(),
        }
    }

    pub(crate) fn cut_power_after(&self, operations: u64, seed: u64) {
        match self {
            Self::Model { model, .. } => model.cut_power_after(operations, seed),
            Self::Files { .. } => files::cut_power_after(operations),
        }
    }

    /// The durable content.
    pub(crate) fn content(&self, bytes: usize) -> Vec<u8> {
        let content = match self {
            Self::Model { model, .. } => model.durable_bytes(0, bytes),
            Self::Files { .. } => files::on_medium(Path::new(DISK)),
        };
        content.unwrap_or_default()
    }

    pub(crate) fn fail_reads(&self, times: u64) {
        match self {
            Self::Model { faults, .. } => {
                faults.add(Rule::new(Operations::READ, Action::Fail(EIO)).times(times));
            }
            Self::Files { .. } => files::fail_reads(Path::new(DISK), times),
        }
    }

    pub(crate) fn fail_writes(&self, times: u64) {
        let writes = Operations::WRITE.or(Operations::DISCARD).or(Operations::ZEROS);
        match self {
            Self::Model { faults, .. } => drop(faults.add(Rule::new(writes, Action::Fail(EIO)).times(times))),
            Self::Files { .. } => files::fail_writes(Path::new(DISK), times),
        }
    }

    pub(crate) fn fail_next_sync(&self) {
        match self {
            Self::Model { model, .. } => model.fail_next_sync(EIO),
            Self::Files { .. } => files::fail_flush(Path::new(DISK)),
        }
    }

    pub(crate) fn limit_space(&self, bytes: Option<u64>) {
        match self {
            Self::Model { faults, .. } => faults.limit_space(bytes),
            Self::Files { .. } => files::limit_space(Path::new(DISK), bytes),
        }
    }

    /// Whether failed flushes are remembered: then no promise of a later flush needs an excuse.
    pub(crate) fn remembers_failures(&self) -> bool {
        matches!(self, Self::Files { .. })
    }

    /// The system forgets clean pages. Returns whether that has changed what reads find.
    pub(crate) fn drop_caches(&self) -> Result<bool, String> {
        match self {
            Self::Model { .. } => Ok(false),
            Self::Files { .. } => files::drop_caches().map_err(|error| error.to_string()),
        }
    }

    /// The health of the store that was opened last.
    pub(crate) fn health(&self) -> Option<Arc<Health>> {
        match self {
            Self::Model { .. } => None,
            Self::Files { health, .. } => health.clone(),
        }
    }
}
