//! What carries a connection's PDUs and data: TCP ([`tcp`]), or RDMA by iSER ([`iser`]).
//!
//! Above this nothing knows which. A connection's kind is an enum that is looked at where the two
//! differ: no virtual call and no boxed mover on the way.

pub(crate) mod iser;
pub(crate) mod tcp;

use iscsi::pdu::BHS_LEN;
use iscsi::stream::Limits;
use iscsi::target::{Sink, TaskKey};
use runtime::Gather;

use crate::wire::Segment;

/// How a connection reaches its initiator.
pub(crate) enum Transport {
    /// A TCP stream.
    Tcp(tcp::Tcp),
    /// A queue pair. What it moves is in the connection's [`Outbox`].
    Iser(iser::Iser),
}

/// A transport and what waits to be sent by it.
pub(crate) struct Link {
    pub transport: Transport,
    pub outbox: Outbox,
}

/// What a connection begins its full-feature phase with.
pub(crate) enum Start {
    /// What the connection accepts, and the bytes received after the last login PDU.
    Tcp(Limits, Vec<u8>),
    /// Whether the initiator begins with a Hello (RFC 7145 §5.1.3).
    Iser { hello: bool },
}

/// What a connection has to send next.
#[derive(Default)]
pub(crate) struct Outbox {
    /// TCP: PDUs, until the send loop takes them.
    pub gather: Gather,
    /// Whether units' memory may be sent by reference.
    pub lend: bool,
    /// Whether the socket may copy short data from units' memory under a guard: not if its bytes are
    /// needed before, for a digest, or once more.
    pub holds: bool,
    /// iSER: where PDUs are posted at once, and data too.
    pub iser: Option<Box<iser::Outgoing>>,
    /// The connection is gone: what is still said goes nowhere.
    pub muted: bool,
}

impl Outbox {
    /// Nothing is sent any more, of what is queued either.
    pub(crate) fn mute(&mut self) {
        self.muted = true;
        self.gather = Gather::new();
    }

    /// Units' memory is sent as it is now from here on.
    pub(crate) fn stop_lending(&mut self) {
        self.lend = false;
        self.holds = false;
        self.gather.copy_held();
        if let Some(iser) = &mut self.iser {
            iser.stop_lending();
        }
    }
}

impl Sink<Segment> for Outbox {
    #[inline]
    fn bytes(&mut self, bytes: &[u8]) {
        match &mut self.iser {
            None if self.muted => {}
            None => self.gather.push_copy(bytes),
            Some(iser) => iser.bytes(bytes),
        }
    }

    #[inline]
    fn header(&mut self, header: &[u8; BHS_LEN]) {
        match &mut self.iser {
            None if self.muted => {}
            None => self.gather.push_header(header),
            Some(iser) => iser.bytes(header),
        }
    }

    #[inline]
    fn payload(&mut self, payload: Segment) {
        match &mut self.iser {
            None if self.lend => self.gather.push_lent(payload.0),
            None if self.muted => {}
            None => self.gather.push(payload.0),
            Some(iser) => iser.payload(payload.0),
        }
    }

    #[inline]
    fn ends(&mut self, task: TaskKey) {
        if let Some(iser) = &mut self.iser {
            iser.ends(task);
        }
    }

    #[inline]
    fn whole(&mut self) {
        if let Some(iser) = &mut self.iser {
            iser.whole();
        }
    }
}
