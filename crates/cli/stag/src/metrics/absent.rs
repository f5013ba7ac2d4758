//! Stands in for the HTTP server in a build without it.

use std::io;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use crate::config;
use crate::control::daemon::Daemon;

/// Serves nothing.
pub struct Listener(());

impl Listener {
    /// Refuses an address.
    ///
    /// # Errors
    /// There is one.
    pub fn bind(http: Option<&config::Http>, _: Option<(SocketAddr, OwnedFd)>) -> io::Result<Self> {
        match http {
            None => Ok(Self(())),
            Some(_) => {
                let what = "this program was built without the feature `http`";
                Err(io::Error::new(io::ErrorKind::Unsupported, what))
            }
        }
    }

    /// Does nothing.
    ///
    /// # Errors
    /// Never.
    pub fn start(self) -> io::Result<Self> {
        Ok(self)
    }

    /// Does nothing.
    pub fn serve(self, _: &Arc<Daemon>) -> Self {
        self
    }
}

/// As the server that it stands for, it ends when it is dropped.
impl Drop for Listener {
    fn drop(&mut self) {}
}
