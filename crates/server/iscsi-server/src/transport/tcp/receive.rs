//! Receives a connection's PDUs from its socket, with as little copying as possible.
//! [`iscsi::Stream`] parses the bytes; this module chooses their place.
//!
//! Whole PDUs are handled in the receive buffer. A PDU whose data segment is incomplete gets an
//! aligned buffer of its own, and a long rest is received straight into it. If the unit offers its
//! own memory, the rest is placed there ([`super::landing`]), without a copy: a command with much
//! immediate data is begun with its header, so that its unit can name the place. After a long
//! segment headers are received by themselves, since another such segment may follow.

use std::rc::Rc;
use std::time::Duration;

use iscsi::frame::{MAX_TRAILER_LEN, header_len, trailer_len};
use iscsi::pdu::Bhs;
use iscsi::stream::{Limits, Received, Step};
use runtime::{Buf, BufMut, Chain, Destination, Scatter, TcpStream, pool};
use server_core::TcpAccount;

use super::landing::{self, Landed};
use crate::end::End;

/// Bytes still to come for which a receive of their own is worth a system call.
const DIRECT: usize = 16 << 10;

/// Length of a data segment after which headers are received by themselves, bytes. Data that comes
/// with a header is copied once more, and a receive brings up to 64 KiB. For shorter segments that
/// costs as much as it saves (measured at 64 KiB, depth 32).
const LONG: usize = 128 << 10;

/// Headers received by themselves after a long segment: a command's, and that of the Data-Out for
/// its R2T.
const HEADERS: u8 = 2;

/// Number of PDUs in half of a receive that counts as many.
const MANY: usize = 4;

/// PDUs whose headers are looked at before they are handled, so that their units can ask for memory
/// meanwhile. Measured: 4 gain as much as 8 for 512 bytes, 16 gain less.
const AHEAD: usize = 8;

/// Longest wait of a data segment for a buffer.
const PATIENCE: Duration = Duration::from_secs(5);

/// A data segment with a buffer of its own.
pub(super) struct Body {
    /// Data segment, padding and digest, except for the bytes that were placed.
    pub bytes: BufMut,
    pub filled: usize,
    pub data_len: usize,
    /// Its command was begun.
    begun: bool,
    /// The parts that were received in place.
    pub landed: Landed,
}

/// Consumer of a connection's PDUs.
pub(crate) trait Taker {
    /// A whole PDU: without its data if its digest is wrong.
    fn pdu(&mut self, bhs: &Bhs, ahs: &[u8], data: Option<Buf>) -> Result<(), End>;

    /// Announces the PDU with this header, one of the next [`AHEAD`].
    fn soon(&self, bhs: &Bhs);

    /// Half of the PDUs of a large receive have been handled.
    fn halfway(&mut self) -> Result<(), End>;

    /// Begins a command whose data segment, of `len` bytes, is still to come. False: it was not
    /// begun.
    fn begin(&mut self, bhs: &Bhs, ahs: &[u8], len: usize) -> Result<bool, End>;

    /// The place for the data of a PDU from byte `filled` of its segment on, if it may be placed
    /// there now, and the offset of that byte in the command's data-out.
    fn place(&self, bhs: &Bhs, filled: usize) -> Option<(device::Landing, u64)>;

    /// Takes a whole PDU that was partly placed, or whose command was `begun`.
    fn long(&mut self, bhs: &Bhs, ahs: &[u8], data: Chain, begun: bool) -> Result<(), End>;
}

/// One connection's incoming bytes.
pub(crate) struct Receiver {
    pdus: iscsi::Stream,
    /// The core's account of payload.
    account: Rc<TcpAccount>,
    /// The data segment that is not whole yet.
    body: Option<Body>,
    early: Option<Buf>,
    /// Reused by receives into a buffer.
    scatter: Option<Scatter>,
    /// Number of headers still to receive by themselves.
    headers: u8,
    /// PDUs dropped for a wrong header digest since [`Self::take_dropped`].
    dropped: u32,
}

impl Receiver {
    /// A stream of which `early` has been received already.
    pub(crate) fn new(limits: Limits, early: Vec<u8>, account: Rc<TcpAccount>) -> Self {
        Self {
            pdus: iscsi::Stream::new(limits),
            account,
            body: None,
            early: (!early.is_empty()).then(|| early.into()),
            scatter: None,
            headers: 0,
            dropped: 0,
        }
    }

    /// PDUs dropped for a wrong header digest since the last call.
    pub(crate) fn take_dropped(&mut self) -> u32 {
        std::mem::take(&mut self.dropped)
    }

    /// Whether the next receive is for the rest of a long data segment.
    pub(crate) fn awaits_long(&self) -> bool {
        self.body.as_ref().is_some_and(|body| body.bytes.len() - body.filled >= DIRECT)
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
        self.take(&received, taker).await
    }

    /// Most bytes to receive next.
    #[inline]
    fn most(&mut self) -> usize {
        if self.headers == 0 {
            return usize::MAX;
        }
        self.headers -= 1;
        header_len(0, self.pdus.limits().digests.header)
    }

    /// Gives the PDUs in `received` to `taker`, and copies the start of a data segment that is not
    /// whole to a buffer.
    async fn take(&mut self, received: &Buf, taker: &mut impl Taker) -> Result<(), End> {
        let bytes = received.as_slice().unwrap_or_default();
        let limits = *self.pdus.limits();
        let (mut input, mut count, mut payload) = (bytes, 0, 0);
        let mut ahead = Ahead::default();
        loop {
            let at = bytes.len() - input.len();
            if self.pdus.is_between() {
                ahead.look(at, &limits, bytes, taker);
            }
            match self.pdus.step(&mut input)? {
                Step::More => break,
                Step::Dropped => self.dropped += 1,
                Step::Pdu(pdu) => {
                    payload += pdu.data.len();
                    let end = bytes.len() - input.len();
                    let data = match pdu.data.len() {
                        0 => Buf::new(),
                        len => {
                            let end = end - pdu.trailer.len();
                            received.slice(end - len..end)
                        }
                    };
                    taker.pdu(pdu.bhs, pdu.ahs, Some(data))?;
                    count += 1;
                    let half = bytes.len() / 2;
                    if at < half && end >= half && count >= MANY {
                        taker.halfway()?;
                    }
                }
                Step::Payload { bhs, ahs, here, rest, .. } => {
                    let body = match &mut self.body {
                        Some(body) => body,
                        None => {
                            let data_len = here + rest;
                            let mut body =
                                Body::new(data_len, trailer_len(data_len, limits.digests.data)).await?;
                            if body.bytes.len() - here >= DIRECT {
                                body.begun = taker.begin(bhs, ahs, data_len)?;
                            }
                            self.body.insert(body)
                        }
                    };
                    let (bytes, others) = input.split_at(here);
                    runtime::count_copy(here);
                    body.bytes[body.filled..body.filled + here].copy_from_slice(bytes);
                    body.filled += here;
                    input = others;
                    self.pdus.took(bytes);
                    if rest > 0 {
                        break;
                    }
                }
                Step::Taken(pdu) => {
                    if let Some(body) = self.body.take() {
                        body.give(&pdu, &self.account, taker)?;
                    }
                }
                Step::Damaged(pdu) => {
                    self.body = None;
                    taker.pdu(pdu.bhs, pdu.ahs, None)?;
                }
            }
        }
        self.account.count(payload, 0);
        Ok(())
    }

    /// Receives the rest of a large data segment directly to its place.
    async fn feed_body(&mut self, stream: &TcpStream, taker: &mut impl Taker) -> Result<(), End> {
        let Some(mut body) = self.body.take() else { return Ok(()) };
        let Limits { digests, resync, .. } = *self.pdus.limits();
        if !resync
            && !digests.data
            && let Step::Payload { bhs, .. } = self.pdus.step(&mut &[][..])?
        {
            let (bhs, before) = (*bhs, body.filled);
            landing::receive(stream, &bhs, &mut body, taker).await?;
            self.pdus.took_unseen(body.filled - before);
        }
        let filled = body.filled;
        if filled < body.bytes.len() {
            body = self.fill(stream, body).await?;
        }
        self.pdus.took(&body.bytes[filled..body.data_len]);
        if body.data_len >= LONG {
            self.headers = HEADERS;
        }
        let (mut trailer, len) = ([0; MAX_TRAILER_LEN], body.bytes.len() - body.data_len);
        trailer[..len].copy_from_slice(&body.bytes[body.data_len..]);
        match self.pdus.step(&mut &trailer[..len])? {
            Step::Taken(pdu) => body.give(&pdu, &self.account, taker),
            Step::Damaged(pdu) => taker.pdu(pdu.bhs, pdu.ahs, None),
            // The buffer is exactly as long as the rest.
            _ => Err(End::HungUp),
        }
    }

    /// Receives the rest of a data segment, and what follows it of its PDU, into its buffer.
    async fn fill(&mut self, stream: &TcpStream, body: Body) -> Result<Body, End> {
        let Body { bytes, filled, data_len, begun, landed } = body;
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
        Ok(Body { bytes, filled, data_len, begun, landed })
    }
}

/// Looks at the headers of PDUs that are handled later. This is only a hint: nothing in a header
/// has been checked yet.
#[derive(Default)]
struct Ahead {
    /// Offset of the next header in the bytes received.
    at: usize,
    /// Headers that were looked at, and whose PDU was not handled yet.
    seen: usize,
}

impl Ahead {
    /// Looks at further headers. Called once before each PDU is handled; `now` is its start.
    #[inline]
    fn look(&mut self, now: usize, limits: &Limits, bytes: &[u8], taker: &impl Taker) {
        self.at = self.at.max(now);
        while self.seen < AHEAD
            && let Some(bhs) = bytes.get(self.at..).and_then(Bhs::ref_from)
        {
            taker.soon(bhs);
            self.at += limits.pdu_len(bhs);
            self.seen += 1;
        }
        self.seen = self.seen.saturating_sub(1);
    }
}

impl Body {
    async fn new(data_len: usize, trailer: usize) -> Result<Self, End> {
        let len = data_len + trailer;
        let bytes = match pool::alloc(len) {
            Some(bytes) => bytes,
            None if len > pool::MAX_ALLOC => return Err(End::NoBuffers),
            // Other connections hold all buffers. They mostly release some soon; a connection that
            // got none for long releases its own.
            None => runtime::timeout(PATIENCE, pool::alloc_wait(len)).await.map_err(|_| End::NoBuffers)?,
        };
        Ok(Self { bytes, filled: 0, data_len, begun: false, landed: Landed::default() })
    }

    /// Gives the PDU to `taker`: all of its data is here.
    fn give(mut self, pdu: &Received<'_>, account: &TcpAccount, taker: &mut impl Taker) -> Result<(), End> {
        self.bytes.truncate(self.data_len);
        if !self.begun && self.landed.is_empty() {
            account.count(self.data_len, 0);
            return taker.pdu(pdu.bhs, pdu.ahs, Some(self.bytes.freeze()));
        }
        let data = self.landed.among(self.bytes.freeze(), account);
        taker.long(pdu.bhs, pdu.ahs, data, self.begun)
    }
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;

    use iscsi::frame::{Digests, emit_pdu};
    use iscsi::pdu::NopOut;

    use super::*;

    /// Records the tags of the announced PDUs.
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
            let limits = Limits { digests: Digests { header: digests, data: digests }, ..Limits::LOGIN };
            let mut receiver = Receiver::new(limits, Vec::new(), Rc::default());
            let mut notes = Notes::default();
            let runtime = runtime::Runtime::new(runtime::Config::default()).expect("io_uring works here");
            let taken = runtime.block_on(receiver.take(&bytes.into(), &mut notes));
            assert!(taken.is_ok());
            assert_eq!(notes.handled, (0..100).collect::<Vec<_>>());
            assert_eq!(*notes.soon.borrow(), notes.handled);
        }
    }
}
