//! [`Shared`]: the state that all cores of an NFS server share. Changed by atomics, or behind
//! mutexes off the data path.

use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::AtomicUsize;

use server_core::refusals::Refusals;
use server_core::{Hub, Served};

use crate::config::NfsPortal;
use crate::groups::Groups;
use crate::model::{Edition, Model};
use crate::mounts::Mounts;
use crate::pace::Paces;
use crate::replies::Replies;
use crate::state::State;

/// State shared by all cores.
pub(crate) struct Shared {
    pub hub: Arc<Hub>,
    /// The configuration in force.
    pub served: Served<Model, NfsPortal>,
    pub replies: Replies,
    pub mounts: Mounts,
    /// Accounts of clients with limits of service.
    pub paces: Paces,
    /// State of NFSv4's clients.
    pub state: State,
    /// Groups of users, where the machine's own count.
    pub groups: Groups,
    /// Hosts that were disconnected.
    pub refusals: Refusals<IpAddr>,
    /// Connections that there are.
    pub clients: AtomicUsize,
}

impl Shared {
    /// A server on the cores of `hub` that serves `model`.
    pub(crate) fn new(hub: Arc<Hub>, model: Model, state: State, replies: Replies) -> Arc<Self> {
        Arc::new(Self {
            hub,
            served: Served::new(model),
            replies,
            mounts: Mounts::default(),
            paces: Paces::default(),
            state,
            groups: Groups::default(),
            refusals: Refusals::default(),
            clients: AtomicUsize::new(0),
        })
    }

    /// The configuration in force.
    pub(crate) fn model(&self) -> Arc<Edition> {
        self.served.now()
    }
}
