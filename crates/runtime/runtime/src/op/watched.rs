//! [`Watched`]: a descriptor that operations wait for.
//!
//! An epoll instance knows a file by its descriptor's number, and keeps it while any descriptor of
//! the same open file exists. So a number that is given to another file has to be told from the one
//! before ([`super::generation`]).

use std::ops::Deref;
use std::os::fd::{AsRawFd, OwnedFd};

use super::generation;
use crate::runtime::Core;

/// A descriptor that this core's operations may wait for. Operations on it have ended, or were
/// dropped, before this is.
#[derive(Debug)]
pub(crate) struct Watched(Option<OwnedFd>);

impl Watched {
    pub(crate) fn new(fd: OwnedFd) -> Self {
        generation::begin(fd.as_raw_fd());
        Self(Some(fd))
    }

    /// Gives the descriptor up. This core is not told of it any more.
    pub(crate) fn into_fd(mut self) -> OwnedFd {
        self.forget();
        self.0.take().expect("there until it is dropped")
    }

    fn forget(&self) {
        let Some(fd) = &self.0 else { return };
        Core::with_current(|core| {
            if let Some(core) = core {
                core.uring.forget(fd.as_raw_fd());
            }
        });
    }
}

impl Deref for Watched {
    type Target = OwnedFd;
    fn deref(&self) -> &OwnedFd {
        self.0.as_ref().expect("there until it is dropped")
    }
}

impl Drop for Watched {
    fn drop(&mut self) {
        self.forget();
    }
}
