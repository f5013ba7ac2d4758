//! Reads FPDUs from the byte stream (RFC 5044 §4): length, markers, padding, CRC. Passes headers to
//! `inbound` and names payload; knows no operation.

use crate::crc::{CRC_LEN, Crc32c, crc32c};
use crate::ddp;
use crate::rdmap::Terminate;

use super::inbound::{Body, CONTROL_MAX_LEN};
use super::{Over, Place, Step, Stream};

/// Bytes of the ULPDU length before each ULPDU.
pub(super) const LENGTH_LEN: usize = 2;
/// Bytes of a marker.
pub(super) const MARKER_LEN: usize = 4;
/// Bytes from the end of one marker to the start of the next (RFC 5044 §4.3).
pub(super) const MARKER_GAP: usize = 512 - MARKER_LEN;

/// Bytes up to and including the control bytes of DDP and RDMAP.
const PEEK: usize = LENGTH_LEN + 2;

/// The current part of an FPDU.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    /// In the ULPDU length or the DDP header.
    Header,
    /// In payload that the driver takes.
    Payload,
    /// In an RDMAP header, which the stream takes itself.
    Control,
    /// In the padding or the CRC.
    Trailer,
}

/// Progress in the current FPDU.
#[derive(Debug)]
pub(super) struct Framing {
    crc: bool,
    markers: bool,
    phase: Phase,
    /// Bytes received of the header, of the control payload or of the trailer.
    have: usize,
    head: [u8; LENGTH_LEN + ddp::UNTAGGED_LEN],
    control: [u8; CONTROL_MAX_LEN],
    /// The segment's payload is an RDMAP header.
    is_control: bool,
    /// Bytes of the segment's payload.
    payload_len: usize,
    /// Payload bytes still to arrive.
    left: usize,
    place: Place,
    /// Offset of the next payload byte from the place's start.
    offset: u64,
    /// Bytes of padding.
    pad: usize,
    trailer: [u8; 3 + CRC_LEN],
    sum: Crc32c,
    /// The CRC of this FPDU was already checked and correct.
    checked: bool,
    /// Bytes until the next marker.
    to_marker: usize,
    marker: [u8; MARKER_LEN],
    marker_have: usize,
    /// Bytes since the FPDU's start, including markers.
    since: usize,
}

impl Framing {
    pub(super) fn new(crc: bool, markers: bool) -> Self {
        Self {
            crc,
            markers,
            phase: Phase::Header,
            have: 0,
            head: [0; LENGTH_LEN + ddp::UNTAGGED_LEN],
            control: [0; CONTROL_MAX_LEN],
            is_control: false,
            payload_len: 0,
            left: 0,
            place: Place::Receive,
            offset: 0,
            pad: 0,
            trailer: [0; 3 + CRC_LEN],
            sum: Crc32c::new(),
            checked: false,
            to_marker: 0,
            marker: [0; MARKER_LEN],
            marker_have: 0,
            since: 0,
        }
    }

    #[inline]
    pub(super) fn took(&mut self, bytes: &[u8]) {
        debug_assert!(
            self.phase == Phase::Payload && bytes.len() <= self.left,
            "more was taken than was named"
        );
        let n = bytes.len().min(self.left);
        self.left -= n;
        self.offset += n as u64;
        self.passed(&bytes[..n], !self.checked);
    }

    #[inline]
    pub(super) fn took_unseen(&mut self, n: usize) {
        debug_assert!(
            !self.crc && self.phase == Phase::Payload && n <= self.left,
            "more was taken than was named"
        );
        let n = n.min(self.left);
        self.left -= n;
        self.offset += n as u64;
        if self.markers {
            self.to_marker = self.to_marker.saturating_sub(n);
            self.since += n;
        }
    }

    pub(super) fn to_end(&self) -> usize {
        self.pad + CRC_LEN
    }

    pub(super) fn to_next_tagged(&self) -> usize {
        self.to_end() + LENGTH_LEN + ddp::TAGGED_LEN
    }

    pub(super) fn is_between(&self) -> bool {
        !self.markers && self.phase == Phase::Header && self.have == 0
    }

    pub(super) fn is_checked(&self) -> bool {
        self.checked
    }

    /// Accounts for bytes other than markers; with `sum`, the CRC covers them.
    #[inline]
    fn passed(&mut self, bytes: &[u8], sum: bool) {
        if self.crc && sum {
            self.sum.update(bytes);
        }
        if self.markers {
            self.to_marker = self.to_marker.saturating_sub(bytes.len());
            self.since += bytes.len();
        }
    }

    /// The number of bytes, at most `want`, before the next marker.
    #[inline]
    fn run(&self, want: usize) -> usize {
        if self.markers { want.min(self.to_marker) } else { want }
    }

    /// Takes up to `want` bytes, less if a marker or the input's end comes first.
    #[inline]
    fn take<'a>(&mut self, input: &mut &'a [u8], want: usize, sum: bool) -> &'a [u8] {
        let (bytes, rest) = input.split_at(self.run(want).min(input.len()));
        *input = rest;
        self.passed(bytes, sum);
        bytes
    }

    /// Takes a due marker; `false` if the input ends within it.
    fn take_marker(&mut self, input: &mut &[u8]) -> Result<bool, Terminate> {
        let (bytes, rest) = input.split_at((MARKER_LEN - self.marker_have).min(input.len()));
        *input = rest;
        self.marker[self.marker_have..self.marker_have + bytes.len()].copy_from_slice(bytes);
        self.marker_have += bytes.len();
        if self.marker_have < MARKER_LEN {
            return Ok(false);
        }
        // The reserved half is ignored, but the CRC covers it (RFC 5044 §4.3).
        if u16::from_be_bytes([self.marker[2], self.marker[3]]) != self.since as u16 {
            return Err(Terminate::Marker);
        }
        if self.crc {
            self.sum.update(&self.marker);
        }
        if self.since > 0 {
            self.since += MARKER_LEN;
        }
        self.marker_have = 0;
        self.to_marker = MARKER_GAP;
        Ok(true)
    }

    /// Starts the next FPDU.
    fn reset(&mut self) {
        self.phase = Phase::Header;
        self.have = 0;
        self.since = 0;
        self.checked = false;
        self.sum = Crc32c::new();
    }
}

/// Bytes of padding after the length field and `ulpdu_len` bytes, to a multiple of four.
#[inline]
pub(super) const fn padding(ulpdu_len: usize) -> usize {
    (LENGTH_LEN + ulpdu_len).wrapping_neg() % 4
}

/// Length in bytes of the whole FPDUs, without markers, at the start of `bytes`.
pub(super) fn whole_fpdus(bytes: &[u8]) -> usize {
    let mut end = 0;
    while let Some(&[high, low]) = bytes[end..].first_chunk() {
        let ulpdu_len = usize::from(u16::from_be_bytes([high, low]));
        let next = end + LENGTH_LEN + ulpdu_len + padding(ulpdu_len) + CRC_LEN;
        if next > bytes.len() {
            break;
        }
        end = next;
    }
    end
}

impl Stream {
    /// Returns the meaning of the next bytes of `input`. Takes all bytes other than payload off
    /// `input`, up to the next step.
    ///
    /// An error ends the stream: see [`Self::terminate`]. After a Terminate all further bytes are
    /// taken and ignored, and the result is [`Step::More`].
    #[inline]
    pub fn step(&mut self, input: &mut &[u8]) -> Result<Step, Terminate> {
        match self.over {
            None => {}
            Some(Over::Failed(error)) => return Err(error),
            Some(Over::Closed) => {
                *input = &[];
                return Ok(Step::More);
            }
        }
        self.advance(input).inspect_err(|&error| self.over = Some(Over::Failed(error)))
    }

    fn advance(&mut self, input: &mut &[u8]) -> Result<Step, Terminate> {
        loop {
            if self.framing.markers
                && self.framing.to_marker == 0
                && !(self.framing.phase == Phase::Payload && self.framing.left == 0)
                && !self.framing.take_marker(input)?
            {
                return Ok(Step::More);
            }
            match self.framing.phase {
                Phase::Header => {
                    if self.framing.have == 0 && !self.framing.markers {
                        match self.whole(input)? {
                            Whole::Step(step) => return Ok(step),
                            Whole::Nothing => continue,
                            Whole::No => {}
                        }
                    }
                    if !self.header(input)? {
                        return Ok(Step::More);
                    }
                }
                Phase::Payload if self.framing.left == 0 => {
                    self.framing.phase = Phase::Trailer;
                    self.framing.have = 0;
                }
                Phase::Payload => {
                    self.still_placeable()?;
                    let run = self.framing.run(self.framing.left);
                    let here = run.min(input.len());
                    let (place, offset) = (self.framing.place, self.framing.offset);
                    return Ok(Step::Payload { place, offset, here, rest: run - here });
                }
                Phase::Control => {
                    let (have, want) = (self.framing.have, self.framing.left);
                    let bytes = self.framing.take(input, want, true);
                    self.framing.control[have..have + bytes.len()].copy_from_slice(bytes);
                    self.framing.have += bytes.len();
                    self.framing.left -= bytes.len();
                    if self.framing.left == 0 {
                        self.framing.phase = Phase::Trailer;
                        self.framing.have = 0;
                    } else if input.is_empty() {
                        return Ok(Step::More);
                    }
                }
                Phase::Trailer => {
                    if !self.trailer(input)? {
                        if input.is_empty() {
                            return Ok(Step::More);
                        }
                        continue;
                    }
                    self.framing.reset();
                    let control = self.framing.control;
                    if let Some(event) =
                        self.finish(&control[..self.framing.payload_len.min(CONTROL_MAX_LEN)])?
                    {
                        return Ok(Step::Event(event));
                    }
                }
            }
        }
    }

    /// Handles an FPDU that is whole in the input, without markers: one pass for its CRC, no copy
    /// of its header.
    #[inline]
    fn whole(&mut self, input: &mut &[u8]) -> Result<Whole, Terminate> {
        let bytes = *input;
        let Some(&[high, low]) = bytes.first_chunk::<LENGTH_LEN>() else { return Ok(Whole::No) };
        let ulpdu_len = usize::from(u16::from_be_bytes([high, low]));
        let covered = LENGTH_LEN + ulpdu_len + padding(ulpdu_len);
        let Some(fpdu) = bytes.get(..covered + CRC_LEN) else { return Ok(Whole::No) };
        if self.framing.crc && crc32c(&fpdu[..covered]) != fpdu[covered..] {
            return Err(Terminate::Crc);
        }
        let ulpdu = &fpdu[LENGTH_LEN..LENGTH_LEN + ulpdu_len];
        let header_len = ddp::header_len(*ulpdu.first().ok_or(Terminate::Malformed)?);
        let Some((header, payload)) = ulpdu.split_at_checked(header_len) else {
            return Err(Terminate::Malformed);
        };
        let place = match self.segment(header, payload.len())? {
            Body::Place { place, offset } if !payload.is_empty() => (place, offset),
            _ => {
                *input = &bytes[covered + CRC_LEN..];
                return Ok(self
                    .finish(payload)?
                    .map_or(Whole::Nothing, |event| Whole::Step(Step::Event(event))));
            }
        };
        let framing = &mut self.framing;
        framing.phase = Phase::Payload;
        (framing.place, framing.offset) = place;
        (framing.payload_len, framing.left) = (payload.len(), payload.len());
        framing.pad = padding(ulpdu_len);
        framing.is_control = false;
        framing.checked = true;
        *input = &bytes[LENGTH_LEN + header_len..];
        Ok(Whole::Step(Step::Payload { place: place.0, offset: place.1, here: payload.len(), rest: 0 }))
    }

    /// Collects the ULPDU length and the DDP header; `false` if the input ends first.
    fn header(&mut self, input: &mut &[u8]) -> Result<bool, Terminate> {
        let framing = &mut self.framing;
        let need =
            if framing.have < PEEK { PEEK } else { LENGTH_LEN + ddp::header_len(framing.head[LENGTH_LEN]) };
        let bytes = framing.take(input, need - framing.have, true);
        framing.head[framing.have..framing.have + bytes.len()].copy_from_slice(bytes);
        framing.have += bytes.len();
        if framing.have < need {
            return Ok(!input.is_empty());
        }
        let ulpdu_len = usize::from(u16::from_be_bytes([framing.head[0], framing.head[1]]));
        let header_len = ddp::header_len(framing.head[LENGTH_LEN]);
        let payload_len = ulpdu_len.checked_sub(header_len).ok_or(Terminate::Malformed)?;
        if need == PEEK {
            return Ok(!input.is_empty());
        }
        let head = framing.head;
        let body = self.segment(&head[LENGTH_LEN..need], payload_len)?;
        let framing = &mut self.framing;
        framing.have = 0;
        (framing.payload_len, framing.left) = (payload_len, payload_len);
        framing.pad = padding(ulpdu_len);
        framing.is_control = matches!(body, Body::Control);
        framing.phase = match body {
            Body::Place { place, offset } => {
                (framing.place, framing.offset) = (place, offset);
                Phase::Payload
            }
            Body::Control => Phase::Control,
        };
        Ok(true)
    }

    /// Collects padding and CRC; whether the trailer is complete and correct.
    fn trailer(&mut self, input: &mut &[u8]) -> Result<bool, Terminate> {
        let framing = &mut self.framing;
        if framing.checked && framing.have == 0 {
            // The CRC of the whole FPDU was already correct: skip the trailer.
            if let Some(rest) = input.get(framing.pad + CRC_LEN..) {
                *input = rest;
                return Ok(true);
            }
        }
        // The CRC covers the padding but not itself; a marker between the two is taken between the
        // two rounds.
        let in_pad = framing.have < framing.pad;
        let end = if in_pad { framing.pad } else { framing.pad + CRC_LEN };
        let bytes = framing.take(input, end - framing.have, in_pad && !framing.checked);
        framing.trailer[framing.have..framing.have + bytes.len()].copy_from_slice(bytes);
        framing.have += bytes.len();
        if framing.have < framing.pad + CRC_LEN {
            return Ok(false);
        }
        let field = &framing.trailer[framing.pad..framing.pad + CRC_LEN];
        if framing.crc && !framing.checked && framing.sum.finish() != field {
            return Err(Terminate::Crc);
        }
        Ok(true)
    }
}

/// Result for an FPDU that may be whole in the input.
enum Whole {
    /// The FPDU is not whole.
    No,
    /// The FPDU was whole and gives a step.
    Step(Step),
    /// The FPDU was whole and gives no step.
    Nothing,
}
