//! Cutting what a socket delivers into PDUs, with as little copying as can be.
//!
//! Whole PDUs are handled where they lie in the receive buffer. A PDU whose data segment has only begun gets a buffer of its
//! own, aligned, and if much of it is still to come that is received straight into it; so a large write's payload is never
//! copied in user space.
//!
//! A wrong data digest costs the PDU and not the connection (RFC 7143 §7.8). A wrong header digest leaves the beginning of the next PDU
//! uncertain: at ErrorRecoveryLevel 1 and 2 it is believed to be where the header says if a header with a right digest is there,
//! and else, and at level 0, the connection ends.

use std::time::Duration;

use iscsi::digest::Crc32c;
use iscsi::frame::{Cut, Cutter, FrameError, header_len, trailer_len, verify_trailer};
use iscsi::pdu::Bhs;
use ring::{Buf, BufMut, Destination, Scatter, TcpStream, pool};

use crate::connection::End;

/// Bytes still to come for which a receive of their own is worth a system call.
const DIRECT: usize = 16 << 10;

/// PDUs in half of a receive that are many.
const MANY: usize = 4;

/// How long a data segment waits for a buffer.
const PATIENCE: Duration = Duration::from_secs(5);

/// What has arrived of a PDU that is not whole yet.
enum Partial {
    Nothing,
    /// Some of its header.
    Header(Vec<u8>),
    /// Its header, and some of its data segment.
    Body(Body),
    /// Its header was not right, and this many bytes are still to be dropped.
    Skip(usize),
}

struct Body {
    bhs: Bhs,
    ahs: Vec<u8>,
    /// Data segment, padding and digest.
    bytes: BufMut,
    filled: usize,
    data_len: usize,
}

/// One connection's incoming stream.
pub(crate) struct Receiver {
    cutter: Cutter,
    partial: Partial,
    early: Option<Buf>,
    /// What a receive into place goes by; made for the first one.
    scatter: Option<Scatter>,
    /// A wrong header digest may cost the PDU only.
    recovers: bool,
    /// The last header's digest was wrong: the next one must be right.
    suspect: bool,
    /// PDUs that were dropped for that, since it was asked last.
    dropped: u32,
}

impl Receiver {
    /// A stream cut by `cutter`, of which `early` has been received already.
    pub(crate) fn new(cutter: Cutter, early: Vec<u8>, recovers: bool) -> Self {
        Self {
            recovers,
            suspect: false,
            dropped: 0,
            cutter,
            partial: Partial::Nothing,
            early: (!early.is_empty()).then(|| early.into()),
            scatter: None,
        }
    }

    /// PDUs that were dropped for a wrong header digest, since this was asked last.
    pub(crate) fn take_dropped(&mut self) -> u32 {
        std::mem::take(&mut self.dropped)
    }

    /// Whether the next receive is for the rest of a long data segment.
    pub(crate) fn awaits_long(&self) -> bool {
        matches!(&self.partial, Partial::Body(body) if body.bytes.len() - body.filled >= DIRECT)
    }

    /// Receives once and gives all PDUs that are whole now to `handle`: without their data if its digest is wrong. When half of many
    /// are through, `halfway` is called.
    pub(crate) async fn feed(
        &mut self,
        stream: &TcpStream,
        mut handle: impl FnMut(&Bhs, &[u8], Option<Buf>) -> Result<(), End>,
        mut halfway: impl FnMut() -> Result<(), End>,
    ) -> Result<(), End> {
        if self.awaits_long() {
            return self.feed_body(stream, handle).await;
        }
        let received = match self.early.take() {
            Some(early) => early,
            None => stream.recv_some(usize::MAX).await?.into(),
        };
        if received.is_empty() {
            return Err(End::HungUp);
        }
        self.take(received, &mut handle, &mut halfway).await
    }

    /// Cuts `received` into PDUs.
    async fn take(
        &mut self,
        mut received: Buf,
        handle: &mut impl FnMut(&Bhs, &[u8], Option<Buf>) -> Result<(), End>,
        halfway: &mut impl FnMut() -> Result<(), End>,
    ) -> Result<(), End> {
        loop {
            match std::mem::replace(&mut self.partial, Partial::Nothing) {
                Partial::Nothing => return self.cut(&received, handle, halfway).await,
                Partial::Header(header) => {
                    if self.header(header, &mut received).await? {
                        return Ok(());
                    }
                    // Whole already if it has no data segment, even when nothing is left of what was received.
                    continue;
                }
                Partial::Body(mut body) => {
                    let len = received.len().min(body.bytes.len() - body.filled);
                    received.split_to(len).copy_to(&mut body.bytes[body.filled..body.filled + len]);
                    body.filled += len;
                    if body.filled < body.bytes.len() {
                        self.partial = Partial::Body(body);
                        return Ok(());
                    }
                    self.whole(body, handle)?;
                }
                Partial::Skip(len) => {
                    let now = len.min(received.len());
                    received.split_to(now);
                    if now < len {
                        self.partial = Partial::Skip(len - now);
                    }
                }
            }
            if received.is_empty() {
                return Ok(());
            }
        }
    }

    /// Handles the PDUs that are whole, and keeps the beginning of the one that is not.
    async fn cut(
        &mut self,
        received: &Buf,
        handle: &mut impl FnMut(&Bhs, &[u8], Option<Buf>) -> Result<(), End>,
        halfway: &mut impl FnMut() -> Result<(), End>,
    ) -> Result<(), End> {
        let bytes = received.as_slice().unwrap_or_default();
        let (mut at, mut count) = (0, 0);
        while at < bytes.len() {
            let cut = match self.cutter.cut(&bytes[at..]) {
                Ok(cut) => cut,
                Err(FrameError::DataDigest { bhs, consumed, .. }) => {
                    self.suspect = false;
                    handle(&bhs, &[], None)?;
                    at += consumed;
                    continue;
                }
                Err(error) => {
                    let skipped = self.skip(&bytes[at..], error)?;
                    at += skipped;
                    continue;
                }
            };
            self.suspect &= matches!(cut, Cut::NeedMore { .. });
            match cut {
                Cut::Pdu { bhs, ahs, data, consumed } => {
                    let data = match data.is_empty() {
                        true => Buf::new(),
                        false => received.slice(at + data.start..at + data.end),
                    };
                    handle(bhs, ahs, Some(data))?;
                    let first_half = at < bytes.len() / 2;
                    at += consumed;
                    count += 1;
                    if first_half && at >= bytes.len() / 2 && count >= MANY {
                        halfway()?;
                    }
                }
                Cut::Partial { bhs, ahs, data_offset, data_len, trailer } => {
                    let mut body = Body::new(*bhs, ahs.to_vec(), data_len, trailer).await?;
                    let begun = &bytes[at + data_offset..];
                    body.bytes[..begun.len()].copy_from_slice(begun);
                    body.filled = begun.len();
                    self.partial = Partial::Body(body);
                    return Ok(());
                }
                Cut::NeedMore { .. } => {
                    self.partial = Partial::Header(bytes[at..].to_vec());
                    return Ok(());
                }
            }
        }
        Ok(())
    }

    /// Adds to a header that was cut short, until it is whole. True when all of `received` went into it.
    async fn header(&mut self, mut header: Vec<u8>, received: &mut Buf) -> Result<bool, End> {
        loop {
            let cut = match self.cutter.cut(&header) {
                Ok(cut) => cut,
                Err(error) => {
                    self.skip(&header, error)?;
                    return Ok(received.is_empty());
                }
            };
            self.suspect &= matches!(cut, Cut::NeedMore { .. });
            match cut {
                Cut::NeedMore { at_least } => {
                    let len = received.len().min(at_least.saturating_sub(header.len()));
                    if len == 0 {
                        self.partial = Partial::Header(header);
                        return Ok(true);
                    }
                    let start = header.len();
                    header.resize(start + len, 0);
                    received.split_to(len).copy_to(&mut header[start..]);
                }
                Cut::Partial { bhs, ahs, data_len, trailer, .. } => {
                    self.partial = Partial::Body(Body::new(*bhs, ahs.to_vec(), data_len, trailer).await?);
                    return Ok(false);
                }
                // Only a header without data gets here whole: no byte of a data segment is added above.
                Cut::Pdu { bhs, ahs, .. } => {
                    self.partial = Partial::Body(Body::new(*bhs, ahs.to_vec(), 0, 0).await?);
                    return Ok(false);
                }
            }
        }
    }

    /// Drops the PDU at the start of `bytes` if nothing is wrong with it but its header's digest, and the one before it was right.
    /// Says how many bytes of it are there; what is not will be dropped as it comes.
    fn skip(&mut self, bytes: &[u8], error: FrameError) -> Result<usize, End> {
        let bhs = Bhs::ref_from(bytes).filter(|_| matches!(error, FrameError::HeaderDigest));
        let Some(bhs) = bhs.filter(|_| self.recovers && !self.suspect) else { return Err(error.into()) };
        let data_len = bhs.data_segment_len();
        if data_len > self.cutter.max_data_segment {
            return Err(error.into());
        }
        self.suspect = true;
        self.dropped += 1;
        let data_len = data_len as usize;
        let len =
            header_len(bhs.total_ahs_len(), true) + data_len + trailer_len(data_len, self.cutter.data_digest);
        if len > bytes.len() {
            self.partial = Partial::Skip(len - bytes.len());
        }
        Ok(len.min(bytes.len()))
    }

    /// A PDU with a buffer of its own is complete.
    fn whole(
        &self,
        mut body: Body,
        handle: &mut impl FnMut(&Bhs, &[u8], Option<Buf>) -> Result<(), End>,
    ) -> Result<(), End> {
        if self.cutter.data_digest && body.data_len > 0 {
            let mut digest = Crc32c::new();
            digest.update(&body.bytes[..body.data_len]);
            if !verify_trailer(digest, &body.bytes[body.data_len..]) {
                return handle(&body.bhs, &body.ahs, None);
            }
        }
        body.bytes.truncate(body.data_len);
        handle(&body.bhs, &body.ahs, Some(body.bytes.freeze()))
    }

    /// Receives the rest of a large data segment into its place.
    async fn feed_body(
        &mut self,
        stream: &TcpStream,
        mut handle: impl FnMut(&Bhs, &[u8], Option<Buf>) -> Result<(), End>,
    ) -> Result<(), End> {
        let Partial::Body(Body { bhs, ahs, bytes, filled, data_len }) =
            std::mem::replace(&mut self.partial, Partial::Nothing)
        else {
            return Ok(());
        };
        let rest = bytes.len() - filled;
        let mut scatter = self.scatter.take().unwrap_or_default();
        scatter.push(Destination::from_offset(bytes, filled));
        let (result, mut scatter) = stream.recv_into(scatter, rest).await;
        if result? < rest {
            return Err(End::HungUp);
        }
        let bytes = scatter.take().into_iter().next().and_then(Destination::into_buf);
        self.scatter = Some(scatter);
        let bytes = bytes.ok_or(End::NoBuffers)?;
        let filled = bytes.len();
        self.whole(Body { bhs, ahs, bytes, filled, data_len }, &mut handle)
    }
}

impl Body {
    async fn new(bhs: Bhs, ahs: Vec<u8>, data_len: usize, trailer: usize) -> Result<Self, End> {
        let len = data_len + trailer;
        let bytes = match pool::alloc(len) {
            Some(bytes) => bytes,
            None if len > pool::MAX_ALLOC => return Err(End::NoBuffers),
            // Others hold them all. They mostly give some back soon; a connection that got none for long gives back its own.
            None => ring::timeout(PATIENCE, pool::alloc_wait(len)).await.map_err(|_| End::NoBuffers)?,
        };
        Ok(Self { bhs, ahs, bytes, filled: 0, data_len })
    }
}
