//! Transports of a connection's PDUs and data: TCP ([`tcp`]), or RDMA by iSER ([`iser`]).
//!
//! Code above this module does not depend on the transport. The kind is an enum, matched where the
//! two differ: no virtual call and no boxed mover on the data path.

pub(crate) mod iser;
pub(crate) mod tcp;

use std::sync::Arc;

use iscsi::pdu::{BHS_LEN, Lun};
use iscsi::stream::Limits;
use iscsi::target::{Sink, TaskKey};
use runtime::Gather;

use crate::lun_map::View;
use crate::wire::Segment;

/// A connection's transport to its initiator.
pub(crate) enum Transport {
    /// A TCP stream.
    Tcp(tcp::Tcp),
    /// A queue pair. The connection's [`Outbox`] has its state for sending.
    Iser(iser::Iser),
}

/// A transport and the data that waits to be sent by it.
pub(crate) struct Link {
    pub transport: Transport,
    pub outbox: Outbox,
}

/// Input with which a connection begins its full-feature phase.
pub(crate) enum Start {
    /// Limits of the connection, and the bytes received after the last login PDU.
    Tcp(Limits, Vec<u8>),
    /// Whether the initiator begins with a Hello (RFC 7145 §5.1.3).
    Iser { hello: bool },
}

/// Output of a connection.
#[derive(Default)]
pub(crate) struct Outbox {
    /// TCP: PDUs, until the send loop takes them.
    pub gather: Gather,
    /// Whether units' memory may be sent by reference.
    pub lend: bool,
    /// Whether the socket may copy short data from units' memory under a guard. Not if its bytes
    /// are needed before, for a digest, or a second time.
    pub holds: bool,
    /// iSER: posts PDUs and data at once.
    pub iser: Option<Box<iser::Outgoing>>,
    /// The connection is gone: discard further PDUs.
    pub muted: bool,
    /// The units that the session sees, for the format of sense data.
    pub view: Arc<View>,
}

impl Outbox {
    /// Discards all output from now on, including what is queued.
    pub(crate) fn mute(&mut self) {
        self.muted = true;
        self.gather = Gather::new();
    }

    /// From here on units' memory is sent with its present content.
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

    fn descriptor_sense(&self, lun: Lun) -> bool {
        self.view.luns.get(lun).is_some_and(|entry| entry.unit.descriptor_sense())
    }

    #[inline]
    fn whole(&mut self) {
        if let Some(iser) = &mut self.iser {
            iser.whole();
        }
    }
}
