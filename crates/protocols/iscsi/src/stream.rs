//! One connection's incoming byte stream (RFC 7143 §11.1): received bytes become PDUs. THE reader
//! of PDUs for both sides. Owns no payload memory, reads no clock and knows no task.
//!
//! # Receiving
//! Call [`Stream::step`] with the received bytes until it returns [`Step::More`]. A PDU that is
//! whole in the input comes as one [`Step::Pdu`]. Of any other the stream keeps the header, and
//! names the bytes of the data segment as they arrive: take them by reference, copy them to their
//! place, or receive straight into that place. Then report them with [`Stream::took`].
//! ```
//! # use iscsi::frame::FrameError;
//! # use iscsi::pdu::Bhs;
//! # use iscsi::stream::{Step, Stream};
//! # fn place(_: &Bhs, _: usize, _: &[u8]) {}
//! # fn pdu(_: &Bhs, _: Option<&[u8]>) {}
//! fn receive(stream: &mut Stream, mut input: &[u8]) -> Result<(), FrameError> {
//!     loop {
//!         match stream.step(&mut input)? {
//!             Step::More => return Ok(()),
//!             Step::Payload { here: 0, .. } => return Ok(()), // or receive into the place
//!             Step::Payload { bhs, offset, here, .. } => {
//!                 let (bytes, rest) = input.split_at(here);
//!                 place(bhs, offset, bytes);
//!                 stream.took(bytes);
//!                 input = rest;
//!             }
//!             Step::Pdu(whole) => pdu(whole.bhs, Some(whole.data)),
//!             Step::Taken(taken) => pdu(taken.bhs, None),
//!             Step::Damaged(_) | Step::Dropped => {} // tell the state machine
//!         }
//!     }
//! }
//! ```
//! An error is final: the start of the next PDU is unknown (RFC 7143 §7.7, §7.8).
//!
//! # Checks before a place is named
//! The stream checks the header digest, the AHSs, and both lengths against this side's limits. If a
//! PDU is whole in the input, its data digest is checked first as well. Of a longer one the data is
//! placed as it arrives; its digest is checked before [`Step::Taken`] reports it.
//!
//! # Resynchronisation
//! A wrong data digest costs the PDU ([`Step::Damaged`]), not the connection (§7.8). A wrong header
//! digest makes the lengths in that header unreliable. With [`Limits::resync`] the stream follows
//! them once, and believes them if a header with a correct digest comes next (§7.7).

use arrayvec::ArrayVec;

use crate::digest::{self, Crc32c};
use crate::frame::{Digests, FrameError, MAX_TRAILER_LEN, header_len, trailer_len, verify_trailer};
use crate::keys::Params;
use crate::pdu::{BHS_LEN, Bhs, ahs};
use crate::text::LOGIN_SEGMENT_LEN;

/// Limits and digests of the PDUs that a connection accepts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// The digests that PDUs carry.
    pub digests: Digests,
    /// The maximum data segment that this side receives, bytes: the MaxRecvDataSegmentLength that
    /// it declared.
    pub max_data_segment: u32,
    /// The maximum length of AHSs that this side receives, bytes; at most [`ahs::MAX_LEN`].
    pub max_ahs: usize,
    /// A wrong header digest costs the PDU only: ErrorRecoveryLevel 1 and 2.
    pub resync: bool,
}

impl Limits {
    /// Before the full feature phase: no digests, no AHSs.
    pub const LOGIN: Self = Self {
        digests: Digests { header: false, data: false },
        max_data_segment: LOGIN_SEGMENT_LEN as u32,
        max_ahs: 0,
        resync: false,
    };

    /// The full feature phase of an initiator: a target's PDUs have no AHS.
    pub fn of_initiator(params: &Params) -> Self {
        Self {
            digests: params.digests(),
            max_data_segment: params.max_recv_data_segment_length,
            max_ahs: 0,
            resync: params.error_recovery_level > 0,
        }
    }

    /// The full feature phase of a target.
    pub fn of_target(params: &Params) -> Self {
        Self { max_ahs: ahs::MAX_LEN, ..Self::of_initiator(params) }
    }

    /// Length on the wire of the PDU with this header, bytes, if its lengths are right.
    #[inline]
    pub fn pdu_len(&self, bhs: &Bhs) -> usize {
        let data_len = bhs.data_segment_len() as usize;
        header_len(bhs.total_ahs_len(), self.digests.header)
            + data_len
            + trailer_len(data_len, self.digests.data)
    }

    /// Checks what has arrived of a header at the start of `bytes`.
    #[inline]
    fn measure(&self, bytes: &[u8]) -> Result<Measured, FrameError> {
        let Some(bhs) = Bhs::ref_from(bytes) else { return Ok(Measured::Short { at_least: BHS_LEN }) };
        let ahs_len = bhs.total_ahs_len();
        let data_len = bhs.data_segment_len();
        // Limits are checked before the digest: with a corrupt length, the missing bytes would
        // never arrive, or be too many.
        if ahs_len > self.max_ahs {
            return Err(FrameError::AhsTooLong { len: ahs_len, max: self.max_ahs });
        }
        let headers_end = BHS_LEN + ahs_len;
        let len = header_len(ahs_len, self.digests.header);
        let trailer = trailer_len(data_len as usize, self.digests.data);
        let lengths = Lengths { ahs: ahs_len, header: len, data: data_len as usize, trailer };
        let too_long = FrameError::DataSegmentTooLong { len: data_len, max: self.max_data_segment };
        if self.digests.header {
            let Some(wire) = bytes.get(headers_end..len) else {
                return Ok(Measured::Short { at_least: len });
            };
            if digest::crc32c(&bytes[..headers_end]) != wire {
                return match self.resync && data_len <= self.max_data_segment {
                    true => Ok(Measured::Garbled(lengths)),
                    false => Err(FrameError::HeaderDigest),
                };
            }
        }
        if data_len > self.max_data_segment {
            return Err(too_long);
        }
        let Some(ahs) = bytes.get(BHS_LEN..headers_end) else {
            return Ok(Measured::Short { at_least: headers_end });
        };
        ahs::validate(ahs)?;
        Ok(Measured::Whole(lengths))
    }
}

/// Received part of a header.
enum Measured {
    /// Too few bytes for the next check.
    Short { at_least: usize },
    /// The header digest is wrong; so the lengths may be.
    Garbled(Lengths),
    /// A whole, valid header.
    Whole(Lengths),
}

/// The lengths of a PDU's parts, bytes.
#[derive(Clone, Copy)]
struct Lengths {
    ahs: usize,
    /// BHS, AHSs, header digest.
    header: usize,
    data: usize,
    /// Padding and data digest.
    trailer: usize,
}

/// A PDU that has arrived.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Received<'a> {
    /// The header.
    pub bhs: &'a Bhs,
    /// All AHSs, well-formed.
    pub ahs: &'a [u8],
    /// The data segment without padding; empty if it was taken as [`Step::Payload`].
    pub data: &'a [u8],
    /// Padding and data digest, as they arrived.
    pub trailer: &'a [u8],
}

/// The meaning of the next bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Step<'a> {
    /// More bytes are needed; the input is used up.
    More,
    /// A PDU that was whole in the input, with correct digests.
    Pdu(Received<'a>),
    /// Data of a PDU that is not whole in the input. Its first `here` bytes are at the start of the
    /// input. They stay there until the driver takes them, in pieces of any length
    /// ([`Stream::took`]). The step comes at least once for each such PDU, the first time with
    /// offset 0.
    Payload {
        /// The header, valid.
        bhs: &'a Bhs,
        /// All AHSs, well-formed.
        ahs: &'a [u8],
        /// Bytes from the start of the data segment.
        offset: usize,
        /// Bytes of it at the start of the input; 0 only if the input is empty.
        here: usize,
        /// Bytes of it that follow directly. The driver may receive them straight into their place.
        rest: usize,
    },
    /// The PDU whose data was taken is complete, with a correct data digest.
    Taken(Received<'a>),
    /// The PDU is complete, and its data digest is wrong. The receiver may drop it, reject it
    /// (0x02), and continue (RFC 7143 §7.8).
    Damaged(Received<'a>),
    /// A PDU is dropped because its header digest was wrong.
    Dropped,
}

/// The current part of a PDU.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    /// Nothing of the next PDU has arrived.
    Between,
    /// In a header of which some has been kept.
    Header,
    /// In data that the driver takes.
    Payload,
    /// In the padding or the digest after such data.
    Trailer,
    /// In a PDU that is dropped, with so many bytes to come.
    Dropping(usize),
}

/// One connection's incoming stream.
#[derive(Debug)]
pub struct Stream {
    limits: Limits,
    phase: Phase,
    /// The header of a PDU that is not whole in one input.
    header: Vec<u8>,
    /// Length of its AHSs, bytes.
    ahs: usize,
    /// Length of its data segment, bytes.
    data: usize,
    /// Bytes of that data still to be taken.
    left: usize,
    crc: Crc32c,
    trailer: ArrayVec<u8, MAX_TRAILER_LEN>,
    /// The last header's digest was wrong: the next one must be correct.
    suspect: bool,
}

impl Stream {
    /// A stream at the start of a PDU.
    pub fn new(limits: Limits) -> Self {
        Self {
            limits,
            phase: Phase::Between,
            header: Vec::new(),
            ahs: 0,
            data: 0,
            left: 0,
            crc: Crc32c::new(),
            trailer: ArrayVec::new(),
            suspect: false,
        }
    }

    /// The limits of the connection.
    #[inline]
    pub fn limits(&self) -> &Limits {
        &self.limits
    }

    /// Changes the limits from the next PDU on, for example after a login.
    pub fn set_limits(&mut self, limits: Limits) {
        self.limits = limits;
    }

    /// Whether the stream is between two PDUs: nothing of the next one has arrived.
    #[inline]
    pub fn is_between(&self) -> bool {
        self.phase == Phase::Between
    }

    /// Bytes that the stream keeps of an incomplete header.
    pub fn kept(&self) -> usize {
        self.header.capacity()
    }

    /// Bytes of the current data segment that were not taken yet.
    #[inline]
    pub fn left(&self) -> usize {
        self.left
    }

    /// Reports that the driver took `bytes`, the next bytes of the data that [`Self::step`] named.
    /// At most `here + rest`.
    #[inline]
    pub fn took(&mut self, bytes: &[u8]) {
        debug_assert!(bytes.len() <= self.left, "more was taken than was named");
        self.left = self.left.saturating_sub(bytes.len());
        if self.limits.digests.data {
            self.crc.update(bytes);
        }
    }

    /// Reports that the driver took the next `n` bytes of the data that [`Self::step`] named,
    /// without showing them to the stream. Only without data digests, which cover all bytes.
    #[inline]
    pub fn took_unseen(&mut self, n: usize) {
        debug_assert!(!self.limits.digests.data && n <= self.left, "more was taken than was named");
        self.left = self.left.saturating_sub(n);
    }

    /// The meaning of the bytes at the start of `input`; removes all but payload from it.
    #[inline]
    pub fn step<'s, 'i: 's>(&'s mut self, input: &mut &'i [u8]) -> Result<Step<'s>, FrameError> {
        loop {
            match self.phase {
                Phase::Between if input.is_empty() => return Ok(Step::More),
                Phase::Between => match self.limits.measure(input)? {
                    Measured::Whole(lengths)
                        if input.len() >= lengths.header + lengths.data + lengths.trailer =>
                    {
                        self.suspect = false;
                        let (header, rest) = input.split_at(lengths.header);
                        *input = rest;
                        return Ok(whole(header, lengths, input, self.limits.digests.data));
                    }
                    measured => {
                        let len = match measured {
                            Measured::Short { .. } => input.len(),
                            Measured::Whole(lengths) | Measured::Garbled(lengths) => lengths.header,
                        };
                        let (header, rest) = input.split_at(len);
                        self.header.clear();
                        self.header.extend_from_slice(header);
                        *input = rest;
                        self.phase = Phase::Header;
                    }
                },
                Phase::Header => match self.limits.measure(&self.header)? {
                    Measured::Short { .. } if input.is_empty() => return Ok(Step::More),
                    Measured::Short { at_least } => {
                        let len = input.len().min(at_least.saturating_sub(self.header.len()));
                        let (more, rest) = input.split_at(len);
                        self.header.extend_from_slice(more);
                        *input = rest;
                    }
                    Measured::Garbled(_) if self.suspect => return Err(FrameError::HeaderDigest),
                    Measured::Garbled(lengths) => {
                        self.suspect = true;
                        self.phase = Phase::Dropping(lengths.data + lengths.trailer);
                        return Ok(Step::Dropped);
                    }
                    Measured::Whole(lengths) => {
                        self.suspect = false;
                        if input.len() >= lengths.data + lengths.trailer {
                            self.phase = Phase::Between;
                            return Ok(whole(&self.header, lengths, input, self.limits.digests.data));
                        }
                        (self.ahs, self.data, self.left) = (lengths.ahs, lengths.data, lengths.data);
                        self.crc = Crc32c::new();
                        self.trailer.clear();
                        self.phase = Phase::Payload;
                    }
                },
                Phase::Payload if self.left > 0 => {
                    let here = self.left.min(input.len());
                    let (bhs, ahs) = split_header(&self.header, self.ahs);
                    let (offset, rest) = (self.data - self.left, self.left - here);
                    return Ok(Step::Payload { bhs, ahs, offset, here, rest });
                }
                Phase::Payload => self.phase = Phase::Trailer,
                Phase::Trailer => {
                    let len = trailer_len(self.data, self.limits.digests.data);
                    let (more, rest) = input.split_at(input.len().min(len - self.trailer.len()));
                    // There is room: a trailer has at most MAX_TRAILER_LEN bytes.
                    self.trailer.extend(more.iter().copied());
                    *input = rest;
                    if self.trailer.len() < len {
                        return Ok(Step::More);
                    }
                    self.phase = Phase::Between;
                    let intact = !self.limits.digests.data || verify_trailer(self.crc, &self.trailer);
                    let (bhs, ahs) = split_header(&self.header, self.ahs);
                    let pdu = Received { bhs, ahs, data: &[], trailer: &self.trailer };
                    return Ok(if intact { Step::Taken(pdu) } else { Step::Damaged(pdu) });
                }
                Phase::Dropping(left) => {
                    let len = left.min(input.len());
                    *input = &input[len..];
                    if len < left {
                        self.phase = Phase::Dropping(left - len);
                        return Ok(Step::More);
                    }
                    self.phase = Phase::Between;
                }
            }
        }
    }
}

/// Takes the PDU with this header off the start of `input`, where the rest of it is whole.
#[inline]
fn whole<'s, 'i: 's>(
    header: &'s [u8],
    lengths: Lengths,
    input: &mut &'i [u8],
    data_digest: bool,
) -> Step<'s> {
    let (bhs, ahs) = split_header(header, lengths.ahs);
    let (data, rest) = input.split_at(lengths.data);
    let (trailer, rest) = rest.split_at(lengths.trailer);
    *input = rest;
    let pdu = Received { bhs, ahs, data, trailer };
    if data_digest && !data.is_empty() {
        let mut crc = Crc32c::new();
        crc.update(data);
        if !verify_trailer(crc, trailer) {
            return Step::Damaged(pdu);
        }
    }
    Step::Pdu(pdu)
}

/// The BHS and the AHSs of a header that was measured.
#[inline]
fn split_header(header: &[u8], ahs_len: usize) -> (&Bhs, &[u8]) {
    let bhs = Bhs::ref_from(header).unwrap_or(&Bhs::ZERO);
    (bhs, header.get(BHS_LEN..BHS_LEN + ahs_len).unwrap_or_default())
}

/// A PDU with memory of its own.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Owned {
    /// The header.
    pub bhs: Bhs,
    /// All AHSs, well-formed.
    pub ahs: Vec<u8>,
    /// The data segment without padding.
    pub data: Vec<u8>,
    /// Padding and data digest, as they arrived.
    pub trailer: ArrayVec<u8, MAX_TRAILER_LEN>,
    /// The data digest is correct, or there is none.
    pub intact: bool,
}

/// Collects a stream's PDUs in memory of their own: for logins, discovery and tests, where data
/// has no place to go to.
#[derive(Debug)]
pub struct Assembler {
    stream: Stream,
    /// Received bytes that the stream has not seen, and those before.
    input: Vec<u8>,
    /// Bytes of `input` that it has seen.
    at: usize,
    data: Vec<u8>,
}

impl Assembler {
    /// An assembler at the start of a PDU.
    pub fn new(limits: Limits) -> Self {
        Self { stream: Stream::new(limits), input: Vec::new(), at: 0, data: Vec::new() }
    }

    /// The limits of the connection.
    pub fn limits(&self) -> &Limits {
        self.stream.limits()
    }

    /// Changes the limits from the next PDU on.
    pub fn set_limits(&mut self, limits: Limits) {
        self.stream.set_limits(limits);
    }

    /// Adds received bytes.
    pub fn push(&mut self, bytes: &[u8]) {
        self.input.drain(..self.at);
        self.at = 0;
        self.input.reserve_exact(bytes.len());
        self.input.extend_from_slice(bytes);
    }

    /// Memory that it holds, bytes.
    pub fn held(&self) -> usize {
        self.input.capacity() + self.data.capacity() + self.stream.kept()
    }

    /// The received bytes after the last PDU: for the next reader. Call it between two PDUs.
    pub fn take_rest(&mut self) -> Vec<u8> {
        self.input.drain(..self.at);
        self.at = 0;
        std::mem::take(&mut self.input)
    }

    /// Whether nothing of a next PDU has arrived.
    pub fn is_empty(&self) -> bool {
        self.at == self.input.len() && self.stream.is_between()
    }

    /// Frees the input if all of it is used.
    fn free_used(&mut self) {
        if self.at == self.input.len() {
            (self.input, self.at) = (Vec::new(), 0);
        }
    }

    /// The next whole PDU. A wrong data digest is an error.
    pub fn next_pdu(&mut self) -> Result<Option<Owned>, FrameError> {
        match self.next_any()? {
            Some(pdu) if !pdu.intact => Err(FrameError::DataDigest { bhs: pdu.bhs }),
            pdu => Ok(pdu),
        }
    }

    /// The next whole PDU, also one with a wrong data digest.
    pub fn next_any(&mut self) -> Result<Option<Owned>, FrameError> {
        loop {
            let mut rest = &self.input[self.at..];
            let step = self.stream.step(&mut rest)?;
            self.at = self.input.len() - rest.len();
            let (pdu, intact) = match step {
                Step::More | Step::Payload { here: 0, .. } => {
                    self.free_used();
                    return Ok(None);
                }
                Step::Dropped => continue,
                Step::Payload { here, .. } => {
                    let bytes = &self.input[self.at..self.at + here];
                    self.data.extend_from_slice(bytes);
                    self.stream.took(bytes);
                    self.at += here;
                    continue;
                }
                Step::Pdu(pdu) | Step::Taken(pdu) => (pdu, true),
                Step::Damaged(pdu) => (pdu, false),
            };
            let mut data = std::mem::take(&mut self.data);
            data.extend_from_slice(pdu.data);
            let trailer = pdu.trailer.iter().copied().collect();
            let pdu = Owned { bhs: *pdu.bhs, ahs: pdu.ahs.to_vec(), data, trailer, intact };
            self.free_used();
            return Ok(Some(pdu));
        }
    }
}

/// All PDUs of `bytes`, which end with the last of them.
pub fn pdus(limits: Limits, bytes: &[u8]) -> Result<Vec<Owned>, FrameError> {
    let mut assembler = Assembler::new(limits);
    assembler.push(bytes);
    let mut all = Vec::new();
    while let Some(pdu) = assembler.next_pdu()? {
        all.push(pdu);
    }
    if assembler.is_empty() { Ok(all) } else { Err(FrameError::Incomplete) }
}

#[cfg(test)]
mod tests;
