//! The host of the peer link on a core of the server: what other threads have it do.

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::io;
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use device::NexusId;
use peer_link::Limits;
use peer_units::{Host, HostConfig};
use runtime::{ListenOptions, TcpListener};
use server_core::{Core, Post};

use super::units::Units;

/// The most forwarders: instances, times their cores.
const PEERS: usize = 1024;
/// The first number of a nexus of another gateway. Sessions count from 1.
const FIRST_NEXUS: u64 = 1 << 40;

/// The gateways and lives that are in the group.
pub type Members = Arc<Mutex<BTreeSet<(u16, u64)>>>;

/// The host's place on its core.
#[derive(Default)]
struct Slot(RefCell<Option<Host>>);

/// Reaches the host.
#[derive(Clone, Copy)]
pub struct HostAt(Post);

impl HostAt {
    /// Starts to listen for other gateways, on the core of `post`. Blocks.
    ///
    /// # Errors
    /// The address cannot be listened on.
    pub fn start(post: Post, units: &Arc<Units>, at: SocketAddr, members: Members) -> io::Result<Self> {
        let known = units.all();
        let next = AtomicU64::new(FIRST_NEXUS);
        let (gateway, secrets, fresh) =
            (units.config.number, units.config.secrets.clone(), units.config.timers.fresh);
        let (say, hear) = runtime::channel();
        let started = post.run(move |core: Rc<Core>| async move {
            let listener = match TcpListener::bind(at, ListenOptions::default()) {
                Ok(listener) => listener,
                Err(error) => return drop(say.send(Err(error))),
            };
            let config = HostConfig {
                gateway,
                instance: 0,
                secrets,
                versions: peer_link::VERSIONS,
                limits: Limits::default(),
                fresh,
                peers: PEERS,
                is_member: Box::new(move |gateway, instance| {
                    members.lock().unwrap_or_else(PoisonError::into_inner).contains(&(gateway, instance))
                }),
                nexus_id: Box::new(move || NexusId(next.fetch_add(1, Ordering::Relaxed))),
            };
            let host = Host::new(config, runtime::Handle::here());
            known.iter().for_each(|unit| host.add_unit(unit.number, unit.unit.ports()));
            *core.own::<Slot>().0.borrow_mut() = Some(host.clone());
            // The receiver waits for it.
            let _ = say.send(Ok(()));
            host.listen(listener).await;
        });
        match (started, hear.recv()) {
            (Ok(()), Ok(listening)) => listening.map(|()| Self(post)),
            _ => Err(io::Error::other("a core has ended before its time")),
        }
    }

    /// Has the host do something. A core that has stopped has none.
    pub fn with(&self, act: impl FnOnce(&Host) + Send + 'static) {
        let _ = self.0.run(move |core: Rc<Core>| async move {
            if let Some(host) = &*core.own::<Slot>().0.borrow() {
                act(host);
            }
        });
    }

    /// Runs a future on the host's core.
    pub fn spawn<F: Future<Output = ()> + 'static>(&self, make: impl FnOnce() -> F + Send + 'static) {
        let _ = self.0.run(move |_| make());
    }
}
