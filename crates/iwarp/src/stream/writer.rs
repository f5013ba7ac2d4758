//! FPDUs into the byte stream (RFC 5044 §4): length, markers, padding, CRC around a DDP segment. Knows no operation.

use zerocopy::IntoBytes;

use crate::crc::{CRC_LEN, Crc32c, crc32c};
use crate::ddp::{self, Untagged, queue};
use crate::rdmap::{Culprit, Opcode, TERMINATE_MAX_LEN, Terminate, emit_terminate};

use super::framing::{LENGTH_LEN, MARKER_GAP, MARKER_LEN, padding};
use super::inbound::CONTROL_MAX_LEN;
use super::{Options, Payload, Sink};

/// Payloads of long segments of an RDMA Write are a multiple of this, so that each begins where a cache line does.
const LINE: usize = 64;
/// Payloads of long segments of an RDMA Read Response are a multiple of this, so that each begins where a disk's block does: who reads
/// what is to be written to a disk may put whole blocks to their place at once, and no others.
const BLOCK: usize = 512;
/// ULPDUs up to this length are put together before they are written: a message that is a header, such as iSER's, is no longer.
const SHORT: usize = 119;
/// Tagged segments that carry so much are long: a receiver takes the payload of each straight into its place.
const LONG: usize = 8 << 10;

/// How FPDUs are written.
#[derive(Debug)]
pub(super) struct Writer {
    crc: bool,
    markers: bool,
    /// Bytes of payload that a tagged segment has room for.
    tagged_max: usize,
    untagged_max: usize,
    /// Bytes until the next marker.
    to_marker: usize,
    /// Bytes since the FPDU's start, markers in it included.
    since: usize,
    sum: Crc32c,
}

impl Writer {
    pub(super) fn new(crc: bool, markers: bool, max_fpdu: usize) -> Self {
        let max_fpdu = max_fpdu.clamp(Options::MIN_FPDU, Options::MAX_FPDU);
        let in_markers = if markers { (max_fpdu / 512 + 1) * MARKER_LEN } else { 0 };
        // Length, ULPDU and padding fill a multiple of four.
        let ulpdu = ((max_fpdu - in_markers - CRC_LEN) & !3) - LENGTH_LEN;
        let ulpdu = ulpdu.min(usize::from(u16::MAX));
        let tagged = ulpdu - ddp::TAGGED_LEN;
        Self {
            crc,
            markers,
            tagged_max: tagged,
            untagged_max: ulpdu - ddp::UNTAGGED_LEN,
            to_marker: 0,
            since: 0,
            sum: Crc32c::new(),
        }
    }

    /// Bytes of payload that a tagged segment carries at most.
    pub(super) fn tagged_max(&self, opcode: Opcode) -> usize {
        let line = if opcode == Opcode::ReadResponse { BLOCK } else { LINE };
        if self.tagged_max >= LONG { self.tagged_max & !(line - 1) } else { self.tagged_max }
    }

    /// Bytes of payload that the first segment of a tagged message of `len` bytes carries. Where segments are long it is the one
    /// that is shorter: it comes with the header of the next, and with what was sent before, in one receive.
    pub(super) fn tagged_first(&self, opcode: Opcode, len: usize) -> usize {
        let most = self.tagged_max(opcode);
        match len % most {
            _ if len <= most => len,
            rest if rest > 0 && most >= LONG => rest,
            _ => most,
        }
    }

    /// Bytes of payload that an untagged segment carries at most.
    pub(super) fn untagged_max(&self) -> usize {
        self.untagged_max
    }

    /// One FPDU: a DDP header and its payload.
    #[inline]
    pub(super) fn fpdu<P: Payload>(&mut self, header: &[u8], payload: P, sink: &mut impl Sink<P>) {
        let ulpdu_len = header.len() + payload.len();
        if !self.markers
            && ulpdu_len <= SHORT
            && let Some(bytes) = payload.as_stable()
        {
            return self.short(header, bytes, sink);
        }
        self.head(ulpdu_len, header, sink);
        if !payload.is_empty() {
            self.payload(payload, sink);
        }
        self.trailer(ulpdu_len, sink);
    }

    /// One short FPDU, without markers: digested and put at once.
    #[inline]
    fn short<P>(&self, header: &[u8], payload: &[u8], sink: &mut impl Sink<P>) {
        let mut fpdu = [0; LENGTH_LEN + SHORT + 3 + CRC_LEN];
        let ulpdu_len = header.len() + payload.len();
        let end = LENGTH_LEN + ulpdu_len;
        fpdu[..LENGTH_LEN].copy_from_slice(&(ulpdu_len as u16).to_be_bytes());
        fpdu[LENGTH_LEN..LENGTH_LEN + header.len()].copy_from_slice(header);
        fpdu[LENGTH_LEN + header.len()..end].copy_from_slice(payload);
        let end = end + padding(ulpdu_len);
        if self.crc {
            let crc = crc32c(&fpdu[..end]);
            fpdu[end..end + CRC_LEN].copy_from_slice(&crc);
        }
        sink.bytes(&fpdu[..end + CRC_LEN]);
    }

    /// One FPDU without payload.
    pub(super) fn empty<P>(&mut self, header: &[u8], sink: &mut impl Sink<P>) {
        if !self.markers && header.len() <= SHORT {
            return self.short(header, &[], sink);
        }
        self.head(header.len(), header, sink);
        self.trailer(header.len(), sink);
    }

    /// One FPDU that is a header of RDMAP's behind one of DDP's.
    pub(super) fn message<P>(&mut self, header: &Untagged, body: &[u8], sink: &mut impl Sink<P>) {
        let mut ulpdu = [0; ddp::UNTAGGED_LEN + CONTROL_MAX_LEN];
        let len = ddp::UNTAGGED_LEN + body.len();
        ulpdu[..ddp::UNTAGGED_LEN].copy_from_slice(header.as_bytes());
        ulpdu[ddp::UNTAGGED_LEN..len].copy_from_slice(body);
        self.empty(&ulpdu[..len], sink);
    }

    /// The Terminate: the first and last message of its queue.
    pub(super) fn terminate<P>(
        &mut self,
        error: Terminate,
        culprit: Option<&Culprit>,
        sink: &mut impl Sink<P>,
    ) {
        let mut body = [0; TERMINATE_MAX_LEN];
        let len = emit_terminate(error, culprit, &mut body);
        let header = Untagged::new(Opcode::Terminate, true, None, queue::TERMINATE, 1, 0);
        self.message(&header, &body[..len], sink);
    }

    #[inline]
    fn head<P>(&mut self, ulpdu_len: usize, header: &[u8], sink: &mut impl Sink<P>) {
        let mut head = [0; LENGTH_LEN + ddp::UNTAGGED_LEN + CONTROL_MAX_LEN];
        // At most 65535: headers are short, and segments are cut to fit.
        head[..LENGTH_LEN].copy_from_slice(&(ulpdu_len as u16).to_be_bytes());
        head[LENGTH_LEN..LENGTH_LEN + header.len()].copy_from_slice(header);
        self.since = 0;
        self.sum = Crc32c::new();
        self.put(&head[..LENGTH_LEN + header.len()], true, sink);
    }

    #[inline]
    fn trailer<P>(&mut self, ulpdu_len: usize, sink: &mut impl Sink<P>) {
        let pad = padding(ulpdu_len);
        let mut trailer = [0; 3 + CRC_LEN];
        if self.markers {
            self.put(&trailer[..pad], true, sink);
            // A marker right before the CRC is under it.
            self.due_marker(sink);
            let crc = if self.crc { self.sum.finish() } else { [0; CRC_LEN] };
            self.put(&crc, false, sink);
            return;
        }
        if self.crc {
            self.sum.update(&trailer[..pad]);
            trailer[pad..pad + CRC_LEN].copy_from_slice(&self.sum.finish());
        }
        sink.bytes(&trailer[..pad + CRC_LEN]);
    }

    /// Puts bytes of this side's own, with the markers that are due before and between them.
    #[inline]
    fn put<P>(&mut self, mut bytes: &[u8], sum: bool, sink: &mut impl Sink<P>) {
        if !self.markers {
            if self.crc && sum {
                self.sum.update(bytes);
            }
            return sink.bytes(bytes);
        }
        while !bytes.is_empty() {
            self.due_marker(sink);
            let (now, later) = bytes.split_at(bytes.len().min(self.to_marker));
            if self.crc && sum {
                self.sum.update(now);
            }
            sink.bytes(now);
            self.passed(now.len());
            bytes = later;
        }
    }

    #[inline]
    fn payload<P: Payload>(&mut self, mut payload: P, sink: &mut impl Sink<P>) {
        while self.markers {
            self.due_marker(sink);
            if payload.len() <= self.to_marker {
                self.passed(payload.len());
                break;
            }
            let n = self.to_marker;
            let now = payload.split_to(n);
            self.whole(now, sink);
            self.passed(n);
        }
        self.whole(payload, sink);
    }

    #[inline]
    fn whole<P: Payload>(&mut self, payload: P, sink: &mut impl Sink<P>) {
        let payload = if self.crc { payload.with_crc(&mut self.sum) } else { payload };
        sink.payload(payload);
    }

    fn passed(&mut self, n: usize) {
        self.to_marker -= n;
        self.since += n;
    }

    /// Puts the marker that is due, if one is: it points back to the FPDU's start; right before an FPDU it says 0
    /// (RFC 5044 §4.3).
    fn due_marker<P>(&mut self, sink: &mut impl Sink<P>) {
        if self.to_marker > 0 {
            return;
        }
        let [high, low] = (self.since as u16).to_be_bytes();
        let marker = [0, 0, high, low];
        if self.crc {
            self.sum.update(&marker);
        }
        sink.bytes(&marker);
        if self.since > 0 {
            self.since += MARKER_LEN;
        }
        self.to_marker = MARKER_GAP;
    }
}
