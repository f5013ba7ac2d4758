//! PDUs over TCP, one at a time, with the configured digests and any change that a check makes to
//! the bytes.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use iscsi::frame::{Digests, emit_pdu, padding_len};
use iscsi::pdu::{Bhs, ahs};
use iscsi::stream::{Assembler, Limits, Owned};

use crate::lost::Lost;
use crate::pdu::Pdu;
use crate::stream::Stream;

/// Timeout of a send to a target that does not receive.
const SEND: Duration = Duration::from_secs(10);

pub(crate) struct Tcp {
    stream: Stream,
    pdus: Assembler,
}

/// A target may send any values that the fields can hold: a data segment has up to 16 MiB.
const ANY: Limits = Limits { max_data_segment: (1 << 24) - 1, max_ahs: ahs::MAX_LEN, ..Limits::LOGIN };

impl Tcp {
    pub fn connect(address: SocketAddr, limit: Duration) -> Result<Self, Lost> {
        let stream = Stream::connect(address, limit, SEND)?;
        Ok(Self { stream, pdus: Assembler::new(ANY) })
    }

    /// Sets the digests, in both directions.
    pub fn set_digests(&mut self, digests: Digests) {
        self.pdus.set_limits(Limits { digests, ..ANY });
    }

    /// The bytes of a PDU, with correct lengths and digests.
    pub fn encode(&self, bhs: &Bhs, ahs: &[u8], data: &[u8]) -> Vec<u8> {
        let mut bytes = Vec::new();
        emit_pdu(&mut bhs.clone(), ahs, data, self.pdus.limits().digests, &mut bytes);
        bytes
    }

    pub fn send(&mut self, bytes: &[u8]) -> Result<(), Lost> {
        self.stream.send(bytes)
    }

    /// The next PDU, at the latest at `until`. The bytes of an incomplete PDU are kept.
    pub fn receive(&mut self, until: Instant) -> Result<Pdu, Lost> {
        loop {
            self.pdus.push(&std::mem::take(&mut self.stream.received));
            if let Some(pdu) = self.pdus.next_any().map_err(|error| Lost::Garbled(format!("a {error}")))? {
                return Ok(seen(pdu));
            }
            self.stream.more(until)?;
        }
    }
}

fn seen(pdu: Owned) -> Pdu {
    let padding = pdu.trailer.iter().take(padding_len(pdu.data.len()));
    Pdu {
        padding_is_zero: padding.into_iter().all(|byte| *byte == 0),
        bhs: pdu.bhs,
        ahs: pdu.ahs,
        data: pdu.data,
        data_digest_right: pdu.intact,
        header: None,
        invalidated: None,
    }
}
