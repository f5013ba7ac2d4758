//! Stands in for the HTTP server in a build without it.

use std::convert::Infallible;
use std::io;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use crate::config;
use crate::control::daemon::Daemon;

/// Never exists.
pub struct Listener(Infallible);

impl Listener {
    /// Refuses.
    ///
    /// # Errors
    /// Always.
    pub fn bind(_: &config::Http, _: Option<(SocketAddr, OwnedFd)>) -> io::Result<Self> {
        Err(io::Error::new(io::ErrorKind::Unsupported, "this program was built without the feature `http`"))
    }

    /// Never called.
    ///
    /// # Errors
    /// Never.
    pub fn start(self) -> io::Result<Self> {
        match self.0 {}
    }

    /// Never called.
    pub fn serve(self, _: &Arc<Daemon>) -> Self {
        match self.0 {}
    }
}

/// As the server that it stands for, it ends when it is dropped.
impl Drop for Listener {
    fn drop(&mut self) {
        match self.0 {}
    }
}
