//! The two tasks of a TCP connection: one sends the protocol's PDUs, one splits received bytes into
//! PDUs.

use std::rc::Rc;

use arrayvec::ArrayVec;
use iscsi::digest::Crc32c;
use iscsi::frame::{Cut, Cutter, FrameError, MAX_TRAILER_LEN, header_len, trailer_len, verify_trailer};
use iscsi::initiator::{ConnectionId, Segment, TaskKey};
use iscsi::keys::Params;
use iscsi::pdu::{Bhs, Opcode};
use runtime::{Gather, TcpStream};

use super::event::{act, follow_up, heard};
use super::state::{Core, Inner};
use crate::bell::Bell;
use crate::error::Error;
use crate::payload::Out;
use crate::wire::tcp::Tcp;

/// Approximate bytes per send; later data joins the next one.
const BATCH: usize = 1 << 20;
/// Bytes per receive.
const RECEIVE: usize = 64 << 10;
/// Minimum length of unneeded data for which the kernel discards it instead of copying.
const DISCARD: usize = 48 << 10;
/// Bytes per receive while such data is expected: a few headers.
const SHORT: usize = 512;

/// Sends until the connection breaks.
pub(super) async fn send(
    inner: Rc<Inner>,
    stream: Rc<TcpStream>,
    on: ConnectionId,
    serial: u64,
    bell: Rc<Bell>,
) {
    let mut gather = Gather::new();
    loop {
        bell.heard().await;
        loop {
            {
                let mut core = inner.core.borrow_mut();
                core.protocol.transmit(on, BATCH, &mut Out(&mut gather));
                // Waiting commands may have moved to other connections.
                core.ring_links();
            }
            if gather.is_empty() {
                break;
            }
            let (sent, back) = stream.send(gather).await;
            gather = back;
            if let Err(e) = sent {
                inner.lose_link(serial, Error::lost(&e));
                return;
            }
        }
    }
}

/// Receives until the connection breaks. `rest` arrived with the last Login Response.
pub(super) async fn receive(
    inner: Rc<Inner>,
    stream: Rc<TcpStream>,
    on: ConnectionId,
    serial: u64,
    params: Params,
    rest: Vec<u8>,
) {
    let mut reader = Reader::new(&params);
    let mut outcome = reader.feed(&inner, on, &rest);
    let closed = || Err(Error::Lost("the target closed the connection".to_owned()));
    while outcome.is_ok() {
        if inner.core.borrow().has_queue {
            // Send the results of the collected completions before the next receive copies up to 64
            // KiB, so that the target can work meanwhile. One turn for the queue's owner, one for
            // the sender.
            runtime::yield_now().await;
            runtime::yield_now().await;
        }
        let unwanted = reader.unwanted();
        if unwanted > 0 {
            outcome = match stream.discard(unwanted).await {
                Ok(0) => closed(),
                Ok(len) => reader.skip(&inner, on, len),
                Err(e) => Err(Error::lost(&e)),
            };
            continue;
        }
        outcome = match stream.recv_some(reader.room()).await {
            Ok(bytes) if bytes.is_empty() => closed(),
            Ok(bytes) => reader.feed(&inner, on, &bytes),
            Err(e) => Err(Error::lost(&e)),
        };
    }
    if let Err(error) = outcome {
        inner.lose_link(serial, error);
    }
}

/// A Data-In whose data arrives in pieces.
struct Stream {
    bhs: Bhs,
    /// `None` for repeated or early data.
    key: Option<TaskKey>,
    /// Offset of the next byte in the read.
    at: usize,
    /// Bytes still to arrive.
    left: usize,
    crc: Crc32c,
    /// The received part of padding and digest.
    trailer: ArrayVec<u8, MAX_TRAILER_LEN>,
    trailer_len: usize,
    /// The data is dropped.
    unwanted: bool,
}

/// Splits a connection's bytes into PDUs. Data-In data is copied directly from the receive buffer
/// to its place; only PDUs split by a receive are kept.
struct Reader {
    cutter: Cutter,
    /// The start of an incomplete PDU.
    kept: Vec<u8>,
    stream: Option<Stream>,
    /// The last Data-In was long, and its data was dropped.
    discarding: bool,
    /// A wrong header digest may cost only the PDU: ErrorRecoveryLevel 1 or 2.
    recovers: bool,
    /// The last header's digest was wrong: the next one must be correct.
    suspect: bool,
    /// Remaining bytes to drop of a PDU with a wrong header digest.
    skipping: usize,
}

impl Reader {
    fn new(params: &Params) -> Self {
        Reader {
            cutter: Tcp::cutter(params),
            kept: Vec::new(),
            stream: None,
            discarding: false,
            recovers: params.error_recovery_level > 0,
            suspect: false,
            skipping: 0,
        }
    }

    /// Maximum bytes of the next receive.
    fn room(&self) -> usize {
        if self.discarding { SHORT } else { RECEIVE }
    }

    /// Number of the next bytes to drop, if a call of their own is worth it.
    fn unwanted(&self) -> usize {
        match &self.stream {
            // Also discard the rest after a short receive or a discard.
            Some(stream) if stream.unwanted && (self.discarding || stream.left >= DISCARD) => stream.left,
            _ => 0,
        }
    }

    /// Like [`Reader::feed`] for `len` of the [`Reader::unwanted`] bytes, which the kernel
    /// discarded.
    fn skip(&mut self, inner: &Inner, on: ConnectionId, len: usize) -> Result<(), Error> {
        let mut core = inner.core.borrow_mut();
        let core = &mut *core;
        heard(core, on);
        if let Some(stream) = &mut self.stream {
            stream.at += len;
            stream.left = stream.left.saturating_sub(len);
            if stream.left == 0 {
                self.feed_stream(inner, core, on, &[])?;
            }
        }
        follow_up(inner, core);
        Ok(())
    }

    fn feed(&mut self, inner: &Inner, on: ConnectionId, mut bytes: &[u8]) -> Result<(), Error> {
        let mut core = inner.core.borrow_mut();
        let core = &mut *core;
        heard(core, on);
        while !bytes.is_empty() {
            if self.skipping > 0 {
                let now = self.skipping.min(bytes.len());
                bytes = &bytes[now..];
                self.skipping -= now;
                continue;
            }
            if self.stream.is_some() {
                bytes = self.feed_stream(inner, core, on, bytes)?;
                continue;
            }
            if self.kept.is_empty() {
                let (taken, wanted) = self.cut(inner, core, on, bytes)?;
                bytes = &bytes[taken..];
                if wanted && self.stream.is_none() {
                    self.kept.extend_from_slice(bytes);
                    break;
                }
                continue;
            }
            // Add only as many bytes to the kept ones as the next step needs, so that later bytes
            // are not copied.
            let mut kept = std::mem::take(&mut self.kept);
            let more = self.missing(&kept)?.min(bytes.len());
            kept.extend_from_slice(&bytes[..more]);
            bytes = &bytes[more..];
            let (taken, wanted) = self.cut(inner, core, on, &kept)?;
            if wanted && taken == 0 {
                self.kept = kept;
            } else {
                kept.clear();
                self.kept = kept;
            }
        }
        follow_up(inner, core);
        Ok(())
    }

    /// Missing bytes of the PDU that begins in `kept` for the next step, at least 1.
    fn missing(&self, kept: &[u8]) -> Result<usize, Error> {
        let needed = match self.cutter.cut(kept) {
            Ok(Cut::NeedMore { at_least }) => at_least,
            Ok(Cut::Partial { data_offset, data_len, trailer, .. }) => data_offset + data_len + trailer,
            Ok(Cut::Pdu { consumed, .. }) | Err(FrameError::DataDigest { consumed, .. }) => consumed,
            Err(error) => return Err(broken(error)),
        };
        Ok(needed.saturating_sub(kept.len()).max(1))
    }

    /// Handles whole PDUs at the start of `bytes`. Returns the number of bytes handled, and whether
    /// an incomplete PDU follows.
    fn cut(
        &mut self,
        inner: &Inner,
        core: &mut Core,
        on: ConnectionId,
        bytes: &[u8],
    ) -> Result<(usize, bool), Error> {
        let mut at = 0;
        while at < bytes.len() {
            let rest = &bytes[at..];
            let cut = match self.cutter.cut(rest) {
                Ok(cut) => cut,
                Err(FrameError::DataDigest { bhs, consumed, .. }) => {
                    self.suspect = false;
                    core.protocol.bad_data_digest(on, &bhs)?;
                    at += consumed;
                    continue;
                }
                Err(error) => {
                    at += self.skip_pdu(core, rest, error)?;
                    continue;
                }
            };
            self.suspect &= matches!(cut, Cut::NeedMore { .. });
            match cut {
                Cut::NeedMore { .. } => return Ok((at, true)),
                Cut::Partial { bhs, data_offset, data_len, trailer, .. } => {
                    if bhs.opcode() != Some(Opcode::DataIn) {
                        return Ok((at, true));
                    }
                    let place = core.protocol.expect_data(on, bhs)?;
                    let (key, offset) = place.map_or((None, 0), |(key, offset)| (Some(key), offset));
                    let token = key.map(|key| core.protocol.token_mut(key));
                    let unwanted = !self.cutter.data_digest
                        && token.is_none_or(|token| token.is_some_and(|task| task.discards()));
                    self.discarding = unwanted && data_len >= DISCARD;
                    self.stream = Some(Stream {
                        bhs: *bhs,
                        key,
                        at: offset as usize,
                        left: data_len,
                        crc: Crc32c::new(),
                        trailer: ArrayVec::new(),
                        trailer_len: trailer,
                        unwanted,
                    });
                    let left = self.feed_stream(inner, core, on, &rest[data_offset..])?.len();
                    return Ok((bytes.len() - left, true));
                }
                Cut::Pdu { bhs, data, consumed, .. } => {
                    self.discarding &= data.is_empty();
                    let event = core.protocol.handle(on, bhs, Segment::Here(&rest[data]))?;
                    act(inner, core, on, event)?;
                    at += consumed;
                }
            }
        }
        Ok((at, false))
    }

    /// Drops the PDU at the start of `bytes` if only its header digest is wrong, and the one before
    /// was correct. Its header's length is trusted if a header with a correct digest follows (RFC
    /// 7143 §7.7); otherwise the connection ends. Returns how many of its bytes are available.
    fn skip_pdu(&mut self, core: &mut Core, bytes: &[u8], error: FrameError) -> Result<usize, Error> {
        let bhs = Bhs::ref_from(bytes).filter(|_| matches!(error, FrameError::HeaderDigest));
        let bhs = bhs.filter(|bhs| {
            self.recovers && !self.suspect && bhs.data_segment_len() <= self.cutter.max_data_segment
        });
        let Some(bhs) = bhs else { return Err(broken(error)) };
        self.suspect = true;
        core.protocol.bad_header_digest();
        let data_len = bhs.data_segment_len() as usize;
        let len =
            header_len(bhs.total_ahs_len(), true) + data_len + trailer_len(data_len, self.cutter.data_digest);
        self.skipping = len.saturating_sub(bytes.len());
        Ok(len.min(bytes.len()))
    }

    /// Places more data of a Data-In, and handles it after its last byte. Returns the bytes after
    /// it.
    fn feed_stream<'b>(
        &mut self,
        inner: &Inner,
        core: &mut Core,
        on: ConnectionId,
        bytes: &'b [u8],
    ) -> Result<&'b [u8], Error> {
        let Some(stream) = &mut self.stream else { return Ok(bytes) };
        let (data, bytes) = bytes.split_at(stream.left.min(bytes.len()));
        if let Some(key) = stream.key {
            core.protocol.place(key, stream.at, data);
        }
        if self.cutter.data_digest {
            stream.crc.update(data);
        }
        stream.at += data.len();
        stream.left -= data.len();
        if stream.left > 0 {
            return Ok(bytes);
        }
        let missing = stream.trailer_len - stream.trailer.len();
        let (trailer, bytes) = bytes.split_at(missing.min(bytes.len()));
        // There is room: a trailer has at most MAX_TRAILER_LEN bytes.
        let _ = stream.trailer.try_extend_from_slice(trailer);
        if stream.trailer.len() < stream.trailer_len {
            return Ok(bytes);
        }
        let whole = !self.cutter.data_digest || verify_trailer(stream.crc, &stream.trailer);
        let bhs = stream.bhs;
        self.stream = None;
        if !whole {
            core.protocol.bad_data_digest(on, &bhs)?;
            return Ok(bytes);
        }
        let event = core.protocol.handle(on, &bhs, Segment::Placed::<&[u8]>)?;
        act(inner, core, on, event)?;
        Ok(bytes)
    }
}

/// After an unreadable header the start of the next PDU is unknown, so the connection ends (RFC
/// 7143 §7.7).
fn broken(error: FrameError) -> Error {
    Error::Lost(error.to_string())
}
