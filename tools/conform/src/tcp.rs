//! PDUs over TCP, one at a time, with the configured digests and any change that a check makes to
//! the bytes.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use iscsi::digest;
use iscsi::frame::{Digests, emit_pdu, padding_len};
use iscsi::pdu::{BHS_LEN, Bhs};

use crate::lost::Lost;
use crate::pdu::Pdu;
use crate::stream::Stream;

/// Timeout of a send to a target that does not receive.
const SEND: Duration = Duration::from_secs(10);

pub(crate) struct Tcp {
    stream: Stream,
    /// The digests, in both directions.
    pub digests: Digests,
}

impl Tcp {
    pub fn connect(address: SocketAddr, limit: Duration) -> Result<Self, Lost> {
        let stream = Stream::connect(address, limit, SEND)?;
        Ok(Self { stream, digests: Digests::default() })
    }

    /// The bytes of a PDU, with correct lengths and digests.
    pub fn encode(&self, bhs: &Bhs, ahs: &[u8], data: &[u8]) -> Vec<u8> {
        let mut bytes = Vec::new();
        emit_pdu(&mut bhs.clone(), ahs, data, self.digests, &mut bytes);
        bytes
    }

    pub fn send(&mut self, bytes: &[u8]) -> Result<(), Lost> {
        self.stream.send(bytes)
    }

    /// The next PDU, at the latest at `until`. The bytes of an incomplete PDU are kept.
    pub fn receive(&mut self, until: Instant) -> Result<Pdu, Lost> {
        loop {
            if let Some((pdu, used)) = cut(&self.stream.received, self.digests)? {
                self.stream.received.drain(..used);
                return Ok(pdu);
            }
            self.stream.more(until)?;
        }
    }
}

/// The PDU at the start of `bytes`, and its length in bytes. A data segment is at most 16 MiB: its
/// length field has 24 bits.
fn cut(bytes: &[u8], digests: Digests) -> Result<Option<(Pdu, usize)>, Lost> {
    let Some(bhs) = Bhs::ref_from(bytes) else { return Ok(None) };
    let headers = BHS_LEN + bhs.total_ahs_len();
    let data_at = headers + if digests.header { digest::DIGEST_LEN } else { 0 };
    if digests.header {
        let (Some(header), Some(wire)) = (bytes.get(..headers), bytes.get(headers..data_at)) else {
            return Ok(None);
        };
        if digest::crc32c(header) != wire {
            return Err(Lost::Garbled(format!("a header digest that is wrong, behind {bhs}")));
        }
    }
    let data_end = data_at + bhs.data_segment_len() as usize;
    let padded = data_end + padding_len(bhs.data_segment_len() as usize);
    let has_digest = digests.data && bhs.data_segment_len() > 0;
    let end = padded + if has_digest { digest::DIGEST_LEN } else { 0 };
    let (Some(_), Some(ahs), Some(data), Some(segment)) = (
        bytes.get(..end),
        bytes.get(BHS_LEN..headers),
        bytes.get(data_at..data_end),
        bytes.get(data_at..padded),
    ) else {
        return Ok(None);
    };
    let data_digest_right = !has_digest || bytes.get(padded..end) == Some(&digest::crc32c(segment)[..]);
    let padding_is_zero = segment.iter().skip(data.len()).all(|byte| *byte == 0);
    let pdu = Pdu {
        bhs: *bhs,
        ahs: ahs.to_vec(),
        data: data.to_vec(),
        data_digest_right,
        padding_is_zero,
        header: None,
        invalidated: None,
    };
    Ok(Some((pdu, end)))
}
