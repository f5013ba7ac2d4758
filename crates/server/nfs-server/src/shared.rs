//! [`Shared`]: what all cores of an NFS server share. Changed by atomics, or behind mutexes off the
//! data path.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use server_core::Hub;

use crate::config::NfsConfig;
use crate::model::{Model, PortalEntry};
use crate::mounts::Mounts;
use crate::pace::Paces;
use crate::replies::Replies;
use crate::state::State;

/// What all cores share.
pub(crate) struct Shared {
    pub hub: Arc<Hub>,
    model: Mutex<Arc<Model>>,
    /// Counts models.
    generation: AtomicU64,
    pub replies: Replies,
    pub mounts: Mounts,
    /// Accounts of clients with limits of service.
    pub paces: Paces,
    /// What is known of NFSv4's clients.
    pub state: State,
    /// Connections that there are.
    pub clients: AtomicUsize,
}

impl Shared {
    /// A server on the cores of `hub` that serves `model`.
    pub(crate) fn new(hub: Arc<Hub>, model: Model, state: State, replies: Replies) -> Arc<Self> {
        Arc::new(Self {
            hub,
            model: Mutex::new(Arc::new(model)),
            generation: AtomicU64::new(0),
            replies,
            mounts: Mounts::default(),
            paces: Paces::default(),
            state,
            clients: AtomicUsize::new(0),
        })
    }

    /// What is served now.
    pub(crate) fn model(&self) -> Arc<Model> {
        self.model.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Changes with the model.
    pub(crate) fn generation(&self) -> u64 {
        self.generation.load(Ordering::Acquire)
    }

    /// Serves another model from now on.
    pub(crate) fn set_model(&self, model: Arc<Model>) {
        *self.model.lock().unwrap_or_else(PoisonError::into_inner) = model;
        self.generation.fetch_add(1, Ordering::AcqRel);
    }

    /// Serves nothing any more, at `portals`.
    pub(crate) fn serve_nothing(&self, portals: Vec<PortalEntry>) {
        let before = self.model();
        let config = NfsConfig {
            portals: portals.iter().map(|portal| portal.asked).collect(),
            exports: Vec::new(),
            limits: before.limits,
            key: [0; 16],
            clients: None,
        };
        let mut nothing = Model::new(config, portals);
        nothing.handles = before.handles;
        self.set_model(Arc::new(nothing));
    }
}
