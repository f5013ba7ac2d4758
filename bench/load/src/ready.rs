//! Waits until any of many sockets is readable or writable (epoll(7)).

use std::net::TcpStream;
use std::os::fd::{AsFd, OwnedFd};
use std::time::Duration;

use rustix::buffer::spare_capacity;
use rustix::event::{Timespec, epoll};
use rustix::io::Errno;

use crate::LoadError;

/// A queue of ready sockets, each reported by its number.
pub(crate) struct Ready {
    epoll: OwnedFd,
    events: Vec<epoll::Event>,
}

impl Ready {
    /// An empty queue that reports at most so many sockets at once.
    pub(crate) fn new(most: usize) -> Result<Self, LoadError> {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC).map_err(waiting)?;
        Ok(Self { epoll, events: Vec::with_capacity(most) })
    }

    /// A queue of these sockets, numbered from 0.
    pub(crate) fn of<'a>(streams: impl ExactSizeIterator<Item = &'a TcpStream>) -> Result<Self, LoadError> {
        let ready = Self::new(streams.len())?;
        for (number, stream) in streams.enumerate() {
            ready.add(stream, number as u64)?;
        }
        Ok(ready)
    }

    /// Starts to report when `socket` can be read.
    pub(crate) fn add(&self, socket: impl AsFd, number: u64) -> Result<(), LoadError> {
        let data = epoll::EventData::new_u64(number);
        epoll::add(&self.epoll, socket, data, epoll::EventFlags::IN).map_err(waiting)
    }

    /// Starts to report also when `socket` can be written, or stops that.
    pub(crate) fn watch(&self, socket: impl AsFd, number: u64, writing: bool) -> Result<(), LoadError> {
        let mut wanted = epoll::EventFlags::IN;
        wanted.set(epoll::EventFlags::OUT, writing);
        epoll::modify(&self.epoll, socket, epoll::EventData::new_u64(number), wanted).map_err(waiting)
    }

    /// Waits for some, for at most `patience` if that is given.
    pub(crate) fn wait(&mut self, patience: Option<Duration>) -> Result<(), LoadError> {
        let patience = patience
            .map(|time| Timespec { tv_sec: time.as_secs() as i64, tv_nsec: i64::from(time.subsec_nanos()) });
        loop {
            self.events.clear();
            match epoll::wait(&self.epoll, spare_capacity(&mut self.events), patience.as_ref()) {
                Err(Errno::INTR) => {}
                other => return other.map(drop).map_err(waiting),
            }
        }
    }

    /// The numbers of those that the last wait found.
    pub(crate) fn numbers(&self) -> impl ExactSizeIterator<Item = usize> {
        self.events.iter().map(|event| event.data.u64() as usize)
    }
}

pub(crate) fn waiting(errno: Errno) -> LoadError {
    LoadError::Io("waiting", errno.into())
}
