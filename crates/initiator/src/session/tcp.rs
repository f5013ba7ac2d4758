//! One TCP connection's two tasks: one sends what the protocol has to say, one cuts what arrives.

use std::rc::Rc;

use arrayvec::ArrayVec;
use iscsi::digest::Crc32c;
use iscsi::frame::{Cut, Cutter, FrameError, MAX_TRAILER_LEN, header_len, trailer_len, verify_trailer};
use iscsi::initiator::{ConnectionId, Segment, TaskKey};
use iscsi::keys::Params;
use iscsi::pdu::{Bhs, Opcode};
use ring::{Gather, TcpStream};

use super::event::{act, follow_up, heard};
use super::state::{Core, Inner};
use crate::bell::Bell;
use crate::error::Error;
use crate::payload::Out;
use crate::wire::tcp::Tcp;

/// Bytes put into one send, about; what is queued meanwhile goes with the next.
const BATCH: usize = 1 << 20;
/// Bytes taken by one receive.
const RECEIVE: usize = 64 << 10;
/// From this many bytes on, data that nobody wants is thrown away by the kernel instead of copied.
const DISCARD: usize = 48 << 10;
/// Bytes taken by one receive where such data are expected: a few headers.
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
                // It may have given waiting commands to other connections.
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
            // What the ends just collected bring forth goes out before the next receive copies up to 64 KiB: the target
            // works meanwhile. One turn for the queue's owner, one for the sender.
            ring::yield_now().await;
            ring::yield_now().await;
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

/// Data-In whose data come in pieces.
struct Stream {
    bhs: Bhs,
    /// `None` for data that comes again, or too early.
    key: Option<TaskKey>,
    /// Where the next byte belongs in what the command reads.
    at: usize,
    /// Bytes still to come.
    left: usize,
    crc: Crc32c,
    /// Padding and digest, as far as they have come.
    trailer: ArrayVec<u8, MAX_TRAILER_LEN>,
    trailer_len: usize,
    /// Nobody looks at the data.
    unwanted: bool,
}

/// Cuts a connection's bytes into PDUs. Data-In goes straight from where it was received to where it belongs; only what
/// a receive cut in two is kept.
struct Reader {
    cutter: Cutter,
    /// The beginning of a PDU whose end has not come.
    kept: Vec<u8>,
    stream: Option<Stream>,
    /// The last Data-In was long, and nobody wanted it.
    discarding: bool,
    /// A wrong header digest may cost the PDU only: ErrorRecoveryLevel 1 or 2.
    recovers: bool,
    /// The last header's digest was wrong: the next one must be right.
    suspect: bool,
    /// Bytes of a PDU with a wrong header digest that are still to come, and are dropped.
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

    /// How much to receive next.
    fn room(&self) -> usize {
        if self.discarding { SHORT } else { RECEIVE }
    }

    /// How many of the next bytes nobody wants, if they are worth a call of their own.
    fn unwanted(&self) -> usize {
        match &self.stream {
            // What a short receive has left of it, or a discard, is discarded too.
            Some(stream) if stream.unwanted && (self.discarding || stream.left >= DISCARD) => stream.left,
            _ => 0,
        }
    }

    /// As [`Reader::feed`] for bytes that were thrown away, `len` of the [`Reader::unwanted`] ones.
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
            // Bytes are added to what was kept by as many as the cut asks for, so that what follows is not copied.
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

    /// How many bytes more the PDU that begins in `kept` needs for the next step, at least 1.
    fn missing(&self, kept: &[u8]) -> Result<usize, Error> {
        let needed = match self.cutter.cut(kept) {
            Ok(Cut::NeedMore { at_least }) => at_least,
            Ok(Cut::Partial { data_offset, data_len, trailer, .. }) => data_offset + data_len + trailer,
            Ok(Cut::Pdu { consumed, .. }) | Err(FrameError::DataDigest { consumed, .. }) => consumed,
            Err(error) => return Err(broken(error)),
        };
        Ok(needed.saturating_sub(kept.len()).max(1))
    }

    /// Handles whole PDUs at the start of `bytes`. Answers how many bytes are done with, and whether a PDU lacks its end.
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

    /// Drops the PDU at the start of `bytes` if nothing is wrong with it but its header's digest, and the one before it was right. It
    /// ends where its header says if a header with a right digest begins there (RFC 7143 §7.7); else the connection ends with that.
    /// Answers how many of its bytes are there.
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

    /// Places more of a Data-In; with its last byte it is handled. Answers what does not belong to it.
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

/// Where the next PDU begins nobody knows after one whose header cannot be read: the connection ends (RFC 7143 §7.7).
fn broken(error: FrameError) -> Error {
    Error::Lost(error.to_string())
}
