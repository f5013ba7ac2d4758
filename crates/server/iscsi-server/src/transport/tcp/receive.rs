//! Cutting what a socket delivers into PDUs, with as little copying as can be.
//!
//! Whole PDUs are handled where they lie in the receive buffer. A PDU whose data segment has only begun gets a buffer of its
//! own, aligned, and if much of it is still to come that is received straight into it. Where it belongs in the memory of a unit
//! that lends it, it lands there ([`super::landing`]), and nobody copies it: a command whose immediate data is long is begun with
//! its header, so that its unit can say where. After a long segment headers are received by themselves, since another one like it may
//! follow.
//!
//! A wrong data digest costs the PDU and not the connection (RFC 7143 §7.8). A wrong header digest leaves the beginning of the next PDU
//! uncertain: at ErrorRecoveryLevel 1 and 2 it is believed to be where the header says if a header with a right digest is there,
//! and else, and at level 0, the connection ends.

use std::rc::Rc;
use std::time::Duration;

use iscsi::digest::Crc32c;
use iscsi::frame::{Cut, Cutter, FrameError, header_len, trailer_len, verify_trailer};
use iscsi::pdu::Bhs;
use runtime::{Buf, BufMut, Chain, Destination, Scatter, TcpStream, pool};
use server_core::TcpAccount;

use super::landing::{self, Landed};
use crate::end::End;

/// Bytes still to come for which a receive of their own is worth a system call.
const DIRECT: usize = 16 << 10;

/// Bytes of a data segment after which headers are received by themselves: what comes with a header is copied once more than what does
/// not, and a receive brings up to 64 KiB. Of shorter segments that costs as much as it saves (measured at 64 KiB, depth 32).
const LONG: usize = 128 << 10;

/// How many headers: a command's, and that of the Data-Out that it is asked for.
const HEADERS: u8 = 2;

/// PDUs in half of a receive that are many.
const MANY: usize = 4;

/// PDUs whose headers are looked at before they are handled, so that their units can ask for memory
/// meanwhile. Measured: 4 gain as much as 8 for 512 bytes, 16 gain less.
const AHEAD: usize = 8;

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

pub(super) struct Body {
    pub bhs: Bhs,
    ahs: Vec<u8>,
    /// Data segment, padding and digest, but for what has landed.
    pub bytes: BufMut,
    pub filled: usize,
    pub data_len: usize,
    /// Its command was begun.
    begun: bool,
    /// What lies where it belongs.
    pub landed: Landed,
}

/// Who takes what a connection receives.
pub(crate) trait Taker {
    /// A whole PDU: without its data if its digest is wrong.
    fn pdu(&mut self, bhs: &Bhs, ahs: &[u8], data: Option<Buf>) -> Result<(), End>;

    /// The PDU with this header is among the next [`AHEAD`] ones.
    fn soon(&self, bhs: &Bhs);

    /// Half of many PDUs are through.
    fn halfway(&mut self) -> Result<(), End>;

    /// Begins a command whose data segment, of `len` bytes, is still to come. False: not this one.
    fn begin(&mut self, bhs: &Bhs, ahs: &[u8], len: usize) -> Result<bool, End>;

    /// Where the data of a PDU belongs from byte `filled` of its segment on, if it may land there now, and at which offset of its
    /// command's data-out that is.
    fn place(&self, bhs: &Bhs, filled: usize) -> Option<(device::Landing, u64)>;

    /// A PDU is whole of which some has landed, or whose command was `begun`.
    fn long(&mut self, bhs: &Bhs, ahs: &[u8], data: Chain, begun: bool) -> Result<(), End>;
}

/// One connection's incoming stream.
pub(crate) struct Receiver {
    cutter: Cutter,
    /// Where its core counts payload.
    account: Rc<TcpAccount>,
    partial: Partial,
    early: Option<Buf>,
    /// What a receive into place goes by; made for the first one.
    scatter: Option<Scatter>,
    /// So many headers are received by themselves.
    headers: u8,
    /// A wrong header digest may cost the PDU only.
    recovers: bool,
    /// The last header's digest was wrong: the next one must be right.
    suspect: bool,
    /// PDUs that were dropped for that, since it was asked last.
    dropped: u32,
}

impl Receiver {
    /// A stream cut by `cutter`, of which `early` has been received already.
    pub(crate) fn new(cutter: Cutter, early: Vec<u8>, recovers: bool, account: Rc<TcpAccount>) -> Self {
        Self {
            account,
            recovers,
            suspect: false,
            dropped: 0,
            cutter,
            partial: Partial::Nothing,
            early: (!early.is_empty()).then(|| early.into()),
            scatter: None,
            headers: 0,
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

    /// Receives once and gives all PDUs that are whole now to `taker`.
    pub(crate) async fn feed(&mut self, stream: &TcpStream, taker: &mut impl Taker) -> Result<(), End> {
        if self.awaits_long() {
            return self.feed_body(stream, taker).await;
        }
        let received = match self.early.take() {
            Some(early) => early,
            None => stream.recv_some(self.most()).await?.into(),
        };
        if received.is_empty() {
            return Err(End::HungUp);
        }
        self.take(received, taker).await
    }

    /// Bytes to receive next at most.
    #[inline]
    fn most(&mut self) -> usize {
        if self.headers == 0 {
            return usize::MAX;
        }
        self.headers -= 1;
        header_len(0, self.cutter.header_digest)
    }

    /// Cuts `received` into PDUs.
    async fn take(&mut self, mut received: Buf, taker: &mut impl Taker) -> Result<(), End> {
        loop {
            match std::mem::replace(&mut self.partial, Partial::Nothing) {
                Partial::Nothing => return self.cut(&received, taker).await,
                Partial::Header(header) => {
                    if self.header(header, &mut received, taker).await? {
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
                    self.whole(body, taker)?;
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
    async fn cut(&mut self, received: &Buf, taker: &mut impl Taker) -> Result<(), End> {
        let bytes = received.as_slice().unwrap_or_default();
        let (mut at, mut count, mut payload) = (0, 0, 0);
        let mut ahead = Ahead::default();
        while at < bytes.len() {
            ahead.look(&self.cutter, bytes, taker);
            let cut = match self.cutter.cut(&bytes[at..]) {
                Ok(cut) => cut,
                Err(FrameError::DataDigest { bhs, consumed, .. }) => {
                    self.suspect = false;
                    taker.pdu(&bhs, &[], None)?;
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
                    payload += data.len();
                    let data = match data.is_empty() {
                        true => Buf::new(),
                        false => received.slice(at + data.start..at + data.end),
                    };
                    taker.pdu(bhs, ahs, Some(data))?;
                    let first_half = at < bytes.len() / 2;
                    at += consumed;
                    count += 1;
                    if first_half && at >= bytes.len() / 2 && count >= MANY {
                        taker.halfway()?;
                    }
                }
                Cut::Partial { bhs, ahs, data_offset, data_len, trailer } => {
                    self.account.count(payload, 0);
                    let mut body = Body::new(*bhs, ahs.to_vec(), data_len, trailer).await?;
                    let begun = &bytes[at + data_offset..];
                    body.bytes[..begun.len()].copy_from_slice(begun);
                    body.filled = begun.len();
                    body.begin(taker)?;
                    self.partial = Partial::Body(body);
                    return Ok(());
                }
                Cut::NeedMore { .. } => {
                    self.account.count(payload, 0);
                    self.partial = Partial::Header(bytes[at..].to_vec());
                    return Ok(());
                }
            }
        }
        self.account.count(payload, 0);
        Ok(())
    }

    /// Adds to a header that was cut short, until it is whole. True when all of `received` went into it.
    async fn header(
        &mut self,
        mut header: Vec<u8>,
        received: &mut Buf,
        taker: &mut impl Taker,
    ) -> Result<bool, End> {
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
                    let mut body = Body::new(*bhs, ahs.to_vec(), data_len, trailer).await?;
                    // What of it is here already is taken first, and lies where it is.
                    let begun = received.split_to(received.len().min(data_len + trailer));
                    begun.copy_to(&mut body.bytes[..begun.len()]);
                    body.filled = begun.len();
                    if body.filled < body.bytes.len() {
                        body.begin(taker)?;
                        self.partial = Partial::Body(body);
                        return Ok(true);
                    }
                    self.partial = Partial::Body(body);
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
    fn whole(&mut self, mut body: Body, taker: &mut impl Taker) -> Result<(), End> {
        if body.data_len >= LONG {
            self.headers = HEADERS;
        }
        if self.cutter.data_digest && body.data_len > 0 {
            let mut digest = Crc32c::new();
            digest.update(&body.bytes[..body.data_len]);
            if !verify_trailer(digest, &body.bytes[body.data_len..]) {
                return taker.pdu(&body.bhs, &body.ahs, None);
            }
        }
        body.bytes.truncate(body.data_len);
        if !body.begun && body.landed.is_empty() {
            self.account.count(body.data_len, 0);
            return taker.pdu(&body.bhs, &body.ahs, Some(body.bytes.freeze()));
        }
        let data = body.landed.among(body.bytes.freeze(), &self.account);
        taker.long(&body.bhs, &body.ahs, data, body.begun)
    }

    /// Receives the rest of a large data segment into its place.
    async fn feed_body(&mut self, stream: &TcpStream, taker: &mut impl Taker) -> Result<(), End> {
        let Partial::Body(mut body) = std::mem::replace(&mut self.partial, Partial::Nothing) else {
            return Ok(());
        };
        if !self.recovers && !self.cutter.data_digest {
            landing::receive(stream, &mut body, taker).await?;
        }
        let rest = body.bytes.len() - body.filled;
        if rest > 0 {
            body = self.fill(stream, body, rest).await?;
        }
        self.whole(body, taker)
    }

    /// Receives the `rest` of a data segment into its buffer.
    async fn fill(&mut self, stream: &TcpStream, body: Body, rest: usize) -> Result<Body, End> {
        let Body { bhs, ahs, bytes, filled, data_len, begun, landed } = body;
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
        Ok(Body { bhs, ahs, bytes, filled, data_len, begun, landed })
    }
}

/// Looks at the headers of PDUs that are handled later. This is only a hint: nothing in a header has
/// been checked yet.
#[derive(Default)]
struct Ahead {
    /// Where the next header is, of the bytes received.
    at: usize,
    /// Headers that were looked at, and whose PDU was not handled yet.
    seen: usize,
}

impl Ahead {
    /// Looks at further headers. Called once before each PDU is handled.
    #[inline]
    fn look(&mut self, cutter: &Cutter, bytes: &[u8], taker: &impl Taker) {
        while self.seen < AHEAD
            && let Some(bhs) = bytes.get(self.at..).and_then(Bhs::ref_from)
        {
            taker.soon(bhs);
            let data_len = bhs.data_segment_len() as usize;
            self.at += header_len(bhs.total_ahs_len(), cutter.header_digest)
                + data_len
                + trailer_len(data_len, cutter.data_digest);
            self.seen += 1;
        }
        self.seen = self.seen.saturating_sub(1);
    }
}

impl Body {
    async fn new(bhs: Bhs, ahs: Vec<u8>, data_len: usize, trailer: usize) -> Result<Self, End> {
        let len = data_len + trailer;
        let bytes = match pool::alloc(len) {
            Some(bytes) => bytes,
            None if len > pool::MAX_ALLOC => return Err(End::NoBuffers),
            // Others hold them all. They mostly give some back soon; a connection that got none for long gives back its own.
            None => runtime::timeout(PATIENCE, pool::alloc_wait(len)).await.map_err(|_| End::NoBuffers)?,
        };
        Ok(Self { bhs, ahs, bytes, filled: 0, data_len, begun: false, landed: Landed::default() })
    }

    /// Begins its command if much of its data is still to come.
    fn begin(&mut self, taker: &mut impl Taker) -> Result<(), End> {
        if self.bytes.len() - self.filled >= DIRECT {
            self.begun = taker.begin(&self.bhs, &self.ahs, self.data_len)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;

    use iscsi::frame::{Digests, emit_pdu};
    use iscsi::pdu::NopOut;

    use super::*;

    /// Notes the tags of the PDUs that it hears of.
    #[derive(Default)]
    struct Notes {
        soon: RefCell<Vec<u32>>,
        handled: Vec<u32>,
    }

    impl Taker for Notes {
        fn pdu(&mut self, bhs: &Bhs, _: &[u8], _: Option<Buf>) -> Result<(), End> {
            let ahead = self.soon.borrow().len() - self.handled.len();
            assert!((1..=AHEAD).contains(&ahead), "{ahead} headers were looked at");
            self.handled.push(bhs.itt());
            Ok(())
        }

        fn soon(&self, bhs: &Bhs) {
            self.soon.borrow_mut().push(bhs.itt());
        }

        fn halfway(&mut self) -> Result<(), End> {
            Ok(())
        }

        fn begin(&mut self, _: &Bhs, _: &[u8], _: usize) -> Result<bool, End> {
            Ok(false)
        }

        fn place(&self, _: &Bhs, _: usize) -> Option<(device::Landing, u64)> {
            None
        }

        fn long(&mut self, _: &Bhs, _: &[u8], _: Chain, _: bool) -> Result<(), End> {
            Ok(())
        }
    }

    #[test]
    fn each_header_is_looked_at_once_before_its_pdu_is_handled() {
        for digests in [false, true] {
            let mut bytes = Vec::new();
            for tag in 0..100u32 {
                let mut bhs: Bhs = NopOut::ping(tag).into();
                let data = vec![0x5a; [0, 0, 1, 512, 0, 7][tag as usize % 6]];
                emit_pdu(&mut bhs, &[], &data, Digests { header: digests, data: digests }, &mut bytes);
            }
            let cutter =
                Cutter { header_digest: digests, data_digest: digests, max_data_segment: 8192, max_ahs: 0 };
            let mut receiver = Receiver::new(cutter, Vec::new(), false, Rc::default());
            let mut notes = Notes::default();
            let runtime = runtime::Runtime::new(runtime::Config::default()).expect("io_uring works here");
            let taken = runtime.block_on(receiver.take(bytes.into(), &mut notes));
            assert!(taken.is_ok());
            assert_eq!(notes.handled, (0..100).collect::<Vec<_>>());
            assert_eq!(*notes.soon.borrow(), notes.handled);
        }
    }
}
