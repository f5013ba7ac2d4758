//! The file server, the state that outlives it, and an administrator's actions on it.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use memory_tree::{Limits, MemoryTree, Root};
use nfs_server::config::{ClientRule, Export, NfsConfig, NfsLimits, NfsPortal, Squash};
use runtime::sim;
use server_core::{CoresConfig, Server};

use super::{EXPORT, Sabotage};

/// A server, and the state that outlives it: the tree, and the file of the clients' records.
pub(crate) struct Host {
    cores: CoresConfig,
    config: NfsConfig,
    running: Option<(Server, nfs_server::Handle)>,
    sabotage: Option<Sabotage>,
}

impl Host {
    /// A server that has not been started, of an empty tree in memory.
    pub(crate) fn new(cores: usize, sabotage: Option<Sabotage>) -> Result<Self, String> {
        let limits = Limits { bytes: 16 << 20, files: 1 << 12 };
        let tree = MemoryTree::new(limits, Root { mode: 0o777, uid: 0, gid: 0 });
        let export = Export {
            name: format!("/{EXPORT}"),
            tree: Arc::new(tree.map_err(|error| error.to_string())?),
            exclusive: true,
            clients: vec![ClientRule { squash: Squash::None, ..ClientRule::default() }],
        };
        let path = "/var/lib/stag/clients".into();
        let config = NfsConfig {
            portals: vec![NfsPortal { listen: SocketAddr::from(([10, 0, 0, 200], nfs::PORT)), verbs: false }],
            exports: vec![export],
            limits: NfsLimits::default(),
            key: [3; 16],
            groups: None,
            clients: (sabotage != Some(Sabotage::NoRecords)).then_some(path),
        };
        let cores = CoresConfig { count: cores, spin_us: 0, pool_bytes: 16 << 20 };
        Ok(Self { cores, config, running: None, sabotage })
    }

    /// Starts the server.
    pub(crate) fn start(&mut self) -> Result<(), String> {
        self.begin(Vec::new(), &[]).map_err(|error| error.to_string())
    }

    fn begin(&mut self, sockets: Vec<(SocketAddr, std::os::fd::OwnedFd)>, carried: &[u8]) -> io::Result<()> {
        let server = Server::start(self.cores, sockets)?;
        let nfs = nfs_server::begin(&server, self.config.clone(), carried)?;
        self.running = Some((server, nfs));
        Ok(())
    }

    /// Ends the server as `kill -9` does.
    pub(crate) async fn kill(&mut self) {
        let gone = self.running.take();
        sim::aside(move || drop(gone)).await;
    }

    /// Applies the configuration again.
    pub(crate) async fn apply(&self) -> Result<(), String> {
        let Some((_, nfs)) = &self.running else { return Ok(()) };
        let (nfs, config) = (nfs.clone(), self.config.clone());
        sim::aside(move || nfs.apply(config)).await.map_err(|error| error.to_string())
    }

    /// Another server takes over the listening sockets, and the clients' state.
    pub(crate) async fn take_over(&mut self) -> Result<(), String> {
        let Some((server, nfs)) = self.running.take() else { return Ok(()) };
        let core = server.handle();
        let sockets = core.listening_sockets().into_iter();
        let sockets: io::Result<Vec<_>> = sockets.map(|(at, socket)| Ok((at, socket.try_clone()?))).collect();
        let sockets = sockets.map_err(|error| error.to_string())?;
        let forgets = self.sabotage == Some(Sabotage::NothingCarried);
        let carried = sim::aside(move || {
            core.pause(Duration::from_secs(10));
            let carried = if forgets { Vec::new() } else { nfs.hand_over() };
            core.let_go();
            drop((nfs, core, server));
            carried
        })
        .await;
        self.begin(sockets, &carried).map_err(|error| error.to_string())
    }
}
