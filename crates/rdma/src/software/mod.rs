//! Software iWARP over a TCP socket.

use std::net::SocketAddr;
use std::task::{Context, Poll};

use ring::Chain;

use crate::{Buffers, Completion, Counters, Error, Flags, Remote, Rights, Stag, Withdrawn};

/// One queue pair. There is none before the protocol below is there.
pub(crate) enum Handle {}

#[allow(unused_variables)]
impl Handle {
    pub(crate) fn post_send(&self, head: &[u8], data: Chain, flags: Flags, id: Option<u64>) {
        match *self {}
    }
    pub(crate) fn post_write(&self, to: Remote, data: Chain, id: Option<u64>) {
        match *self {}
    }
    pub(crate) fn post_read(&self, from: Remote, len: usize, id: u64) {
        match *self {}
    }
    pub(crate) fn post_receives(&self, count: u32) {
        match *self {}
    }
    pub(crate) fn expose(&self, buffers: Buffers, rights: Rights) -> Result<Stag, Error> {
        match *self {}
    }
    pub(crate) fn expose_source(&self, data: Chain) -> Result<Stag, Error> {
        match *self {}
    }
    pub(crate) fn expose_sink(&self, len: u64) -> Result<Stag, Error> {
        match *self {}
    }
    pub(crate) fn withdraw(&self, stag: Stag) -> Option<Withdrawn> {
        match *self {}
    }
    pub(crate) fn poll_next(&self, cx: &mut Context<'_>) -> Poll<Result<Completion, Error>> {
        match *self {}
    }
    pub(crate) fn flush(&self) {
        match *self {}
    }
    pub(crate) fn queued(&self) -> usize {
        match *self {}
    }
    pub(crate) async fn drained_below(&self, bytes: usize) {
        match *self {}
    }
    pub(crate) fn disconnect(&self) {
        match *self {}
    }
    pub(crate) fn ord(&self) -> u16 {
        match *self {}
    }
    pub(crate) fn ird(&self) -> u16 {
        match *self {}
    }
    pub(crate) fn peer_addr(&self) -> SocketAddr {
        match *self {}
    }
    pub(crate) fn local_addr(&self) -> SocketAddr {
        match *self {}
    }
    pub(crate) fn counters(&self) -> Counters {
        match *self {}
    }
}
