//! Writes FPDUs to the byte stream (RFC 5044 §4): length, markers, padding, CRC around a DDP
//! segment. Knows no operation.

use zerocopy::IntoBytes;

use crate::crc::{CRC_LEN, Crc32c, crc32c};
use crate::ddp::{self, Untagged, queue};
use crate::rdmap::{Culprit, Opcode, TERMINATE_MAX_LEN, Terminate, emit_terminate};

use super::framing::{LENGTH_LEN, MARKER_GAP, MARKER_LEN, padding};
use super::inbound::CONTROL_MAX_LEN;
use super::{Options, Payload, Sink};

/// Alignment in bytes of long segments of an RDMA Write, so that each begins at a cache line.
const LINE: usize = 64;
/// Alignment in bytes of long segments of an RDMA Read Response, so that each begins at a disk
/// block. A reader that writes to a disk can then place whole blocks directly.
const BLOCK: usize = 512;
/// ULPDUs up to this length, in bytes, are assembled before they are written: a message that is
/// only a header, such as iSER's, fits.
const SHORT: usize = 119;
/// Minimum payload, in bytes, of a long tagged segment: a receiver places such payload directly.
const LONG: usize = 8 << 10;

/// The state of FPDU output.
#[derive(Debug)]
pub(super) struct Writer {
    crc: bool,
    markers: bool,
    /// Maximum payload bytes of a tagged segment.
    tagged_max: usize,
    untagged_max: usize,
    /// Bytes until the next marker.
    to_marker: usize,
    /// Bytes since the FPDU's start, including markers.
    since: usize,
    sum: Crc32c,
}

impl Writer {
    pub(super) fn new(crc: bool, markers: bool, max_fpdu: usize) -> Self {
        let max_fpdu = max_fpdu.clamp(Options::MIN_FPDU, Options::MAX_FPDU);
        let in_markers = if markers { (max_fpdu / 512 + 1) * MARKER_LEN } else { 0 };
        // Length field, ULPDU and padding together are a multiple of four.
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

    /// Maximum payload bytes of a tagged segment of this operation.
    pub(super) fn tagged_max(&self, opcode: Opcode) -> usize {
        let line = if opcode == Opcode::ReadResponse { BLOCK } else { LINE };
        if self.tagged_max >= LONG { self.tagged_max & !(line - 1) } else { self.tagged_max }
    }

    /// Payload bytes of the first segment of a tagged message of `len` bytes. Where segments are
    /// long, the first one is the shorter one: a receiver gets it with earlier bytes and the next
    /// header in one receive.
    pub(super) fn tagged_first(&self, opcode: Opcode, len: usize) -> usize {
        let most = self.tagged_max(opcode);
        match len % most {
            _ if len <= most => len,
            rest if rest > 0 && most >= LONG => rest,
            _ => most,
        }
    }

    /// Maximum payload bytes of an untagged segment.
    pub(super) fn untagged_max(&self) -> usize {
        self.untagged_max
    }

    /// Writes one FPDU: a DDP header and its payload.
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

    /// Writes one short FPDU without markers: computes the CRC and appends it in one piece.
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

    /// Writes one FPDU without payload.
    pub(super) fn empty<P>(&mut self, header: &[u8], sink: &mut impl Sink<P>) {
        if !self.markers && header.len() <= SHORT {
            return self.short(header, &[], sink);
        }
        self.head(header.len(), header, sink);
        self.trailer(header.len(), sink);
    }

    /// Writes one FPDU with an RDMAP header after the DDP header.
    pub(super) fn message<P>(&mut self, header: &Untagged, body: &[u8], sink: &mut impl Sink<P>) {
        let mut ulpdu = [0; ddp::UNTAGGED_LEN + CONTROL_MAX_LEN];
        let len = ddp::UNTAGGED_LEN + body.len();
        ulpdu[..ddp::UNTAGGED_LEN].copy_from_slice(header.as_bytes());
        ulpdu[ddp::UNTAGGED_LEN..len].copy_from_slice(body);
        self.empty(&ulpdu[..len], sink);
    }

    /// Writes the Terminate: the only message of its queue.
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
        // At most 65535: headers are short, and segments are limited to fit.
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
            // The CRC covers a marker right before it.
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

    /// Appends bytes of this side, with the markers that are due before and between them.
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
    fn payload<P: Payload>(&mut self, payload: P, sink: &mut impl Sink<P>) {
        if self.markers {
            return self.marked(payload, sink);
        }
        let payload = if self.crc { payload.with_crc(&mut self.sum) } else { payload };
        sink.payload(payload);
    }

    /// Copies a payload with the markers that are due before and between its bytes: by reference
    /// each 508 bytes of it would be a piece of their own.
    fn marked<P: Payload>(&mut self, payload: P, sink: &mut impl Sink<P>) {
        let markers = match payload.len().checked_sub(self.to_marker + 1) {
            Some(behind) => 1 + behind / MARKER_GAP,
            None => 0,
        };
        let len = payload.len() + markers * MARKER_LEN;
        sink.marked(payload, len, |payload, place| {
            let (mut from, mut to, mut readable) = (0, 0, true);
            while to < place.len() {
                if let Some(marker) = self.next_marker() {
                    place[to..to + MARKER_LEN].copy_from_slice(&marker);
                    to += MARKER_LEN;
                }
                let n = self.to_marker.min(place.len() - to);
                readable &= payload.copy_to(from, &mut place[to..to + n]);
                self.passed(n);
                (from, to) = (from + n, to + n);
            }
            if self.crc {
                self.sum.update(place);
            }
            readable
        });
    }

    fn passed(&mut self, n: usize) {
        self.to_marker -= n;
        self.since += n;
    }

    /// Appends a marker if one is due.
    fn due_marker<P>(&mut self, sink: &mut impl Sink<P>) {
        if let Some(marker) = self.next_marker() {
            if self.crc {
                self.sum.update(&marker);
            }
            sink.bytes(&marker);
        }
    }

    /// The marker, if one is due. It points back to the FPDU's start; right before an FPDU it is 0
    /// (RFC 5044 §4.3).
    #[inline]
    fn next_marker(&mut self) -> Option<[u8; MARKER_LEN]> {
        if self.to_marker > 0 {
            return None;
        }
        let [high, low] = (self.since as u16).to_be_bytes();
        if self.since > 0 {
            self.since += MARKER_LEN;
        }
        self.to_marker = MARKER_GAP;
        Some([0, 0, high, low])
    }
}
