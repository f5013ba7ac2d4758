//! Output of a connection: StatSN, Target Transfer Tags that belong to no task, and the bytes
//! around each data segment.

use super::payload::{Payload, Sink};
use crate::digest;
use crate::frame::{Digests, padding_len};
use crate::pdu::Bhs;
use crate::sn;

/// The maximum data segment that every initiator receives, bytes. With iSER it is less than the 512
/// of RFC 7143 §13.12, since Linux's initiator has no room for more, whatever it declares.
const LEAST_SEGMENT: u32 = 128;
const ZEROS: [u8; 3] = [0; 3];

/// A connection's outgoing direction.
#[derive(Debug)]
pub(super) struct Output {
    stat_sn: u32,
    /// ExpStatSN of the initiator's last PDU.
    exp_stat_sn: u32,
    next_tag: u32,
    max_segment: u32,
    digests: Digests,
}

impl Output {
    /// A direction whose next StatSN is `stat_sn`, to a peer that receives `max_segment` bytes.
    pub fn new(stat_sn: u32, max_segment: u32, digests: Digests) -> Self {
        let mut output = Self { stat_sn, exp_stat_sn: stat_sn, next_tag: 0, max_segment: 0, digests };
        output.set_max_segment(max_segment);
        output
    }

    /// The StatSN of the next PDU that advances it.
    #[inline]
    pub fn stat_sn(&self) -> u32 {
        self.stat_sn
    }

    /// Takes the next StatSN.
    #[inline]
    pub fn next_stat_sn(&mut self) -> u32 {
        let stat_sn = self.stat_sn;
        self.stat_sn = stat_sn.wrapping_add(1);
        stat_sn
    }

    /// ExpStatSN of the initiator's last PDU.
    #[inline]
    pub fn exp_stat_sn(&self) -> u32 {
        self.exp_stat_sn
    }

    /// A PDU has come whose sender expects this StatSN next.
    #[inline]
    pub fn expects(&mut self, exp_stat_sn: u32) {
        self.exp_stat_sn = exp_stat_sn;
    }

    /// Whether the initiator has acknowledged all PDUs before this StatSN. A StatSN that was never
    /// sent acknowledges nothing.
    pub fn is_acknowledged(&self, stat_sn: u32) -> bool {
        sn::ge(self.exp_stat_sn, stat_sn) && !sn::lt(self.stat_sn, self.exp_stat_sn)
    }

    /// A new Target Transfer Tag that belongs to no task.
    pub fn tag(&mut self) -> u32 {
        self.next_tag = self.next_tag.wrapping_add(1) % (u32::MAX - 1);
        self.next_tag
    }

    /// The maximum data segment to send, bytes.
    #[inline]
    pub fn max_segment(&self) -> u32 {
        self.max_segment
    }

    /// Sets it to what the peer receives, in whole words: required for data that continues in
    /// another PDU (RFC 7143 §11.7).
    pub fn set_max_segment(&mut self, bytes: u32) {
        self.max_segment = bytes.max(LEAST_SEGMENT) & !3;
    }

    /// Sends a PDU with a small data segment, which is copied.
    pub fn send_small<P>(&self, bhs: Bhs, segment: &[u8], sink: &mut impl Sink<P>) {
        self.send_header(bhs, segment.len(), sink);
        if segment.is_empty() {
            return sink.whole();
        }
        sink.bytes(segment);
        sink.bytes(&ZEROS[..padding_len(segment.len())]);
        if self.digests.data {
            sink.bytes(&digest::data(segment));
        }
        sink.whole();
    }

    /// Sends a PDU with the data segment `data`.
    #[inline]
    pub fn send<P: Payload>(&self, bhs: Bhs, data: P, sink: &mut impl Sink<P>) {
        self.send_header(bhs, data.len(), sink);
        if data.is_empty() {
            return sink.whole();
        }
        let padding = &ZEROS[..padding_len(data.len())];
        let mut digest = None;
        let data = match self.digests.data {
            false => data,
            true => {
                let (data, value) = data.with_digest();
                digest = Some(value);
                data
            }
        };
        sink.payload(data);
        if !padding.is_empty() {
            sink.bytes(padding);
        }
        if let Some(digest) = digest {
            sink.bytes(&digest);
        }
        sink.whole();
    }

    #[inline]
    fn send_header<P>(&self, mut bhs: Bhs, data_len: usize, sink: &mut impl Sink<P>) {
        bhs.set_data_segment_len(data_len);
        sink.header(bhs.bytes());
        if self.digests.header {
            sink.bytes(&digest::header(bhs.bytes(), &[]));
        }
    }
}
