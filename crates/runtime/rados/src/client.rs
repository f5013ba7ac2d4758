//! One client of a cluster that images and objects share: one address, one OSD map. Everything here
//! blocks. `either` documents the calls.

use std::sync::Arc;
use std::time::Duration;

use crate::connection::{Connection, Login, Pool};
use crate::error::Error;
use crate::library::library;
use crate::object::Object;
use crate::unpinned;

/// Time to connect; librados itself gives up after 30 s.
const CONNECT: Duration = Duration::from_secs(60);

/// A client of a cluster. Clones share it; it ends with the last of them, of its objects and of its
/// images.
#[derive(Clone)]
pub struct Client(pub(crate) Arc<Connection>);

impl Client {
    pub fn connect(login: &Login, op_timeout: Option<Duration>) -> Result<Self, Error> {
        let (library, login) = (library()?, login.clone());
        let connect = move || Connection::open(library, &login, op_timeout);
        unpinned::run("connecting to the cluster", CONNECT, connect)?
            .map(|connection| Self(Arc::new(connection)))
    }

    pub fn address(&self) -> Result<String, Error> {
        self.0.address()
    }

    pub fn blocklist(&self, addresses: &[String], lasts: Duration) -> Result<u32, Error> {
        let seconds = u32::try_from(lasts.as_secs()).unwrap_or(u32::MAX);
        // At once: each waits for a proposal of the monitors, up to a second.
        let added = std::thread::scope(|scope| {
            let calls: Vec<_> = addresses
                .iter()
                .map(|address| {
                    let call = move || self.0.blocklist(address, seconds);
                    std::thread::Builder::new().spawn_scoped(scope, call)
                })
                .collect();
            calls.into_iter().try_for_each(|call| {
                let ended = call.ok().and_then(|call| call.join().ok());
                ended.unwrap_or(Err(Error::NoThread))
            })
        });
        added?;
        self.0.epoch()
    }

    pub fn latest_map(&self) -> Result<u32, Error> {
        // In this order: what is waited for is as new as what was told.
        let epoch = self.0.epoch()?;
        self.0.await_map().map(|()| epoch)
    }

    pub fn object(&self, pool: &str, namespace: Option<&str>, name: &str) -> Result<Object, Error> {
        Object::new(Pool::open(self.0.clone(), pool, namespace)?, name)
    }
}
