//! The two tasks of a TCP connection: one sends the protocol's PDUs, one splits received bytes into
//! PDUs.

use std::rc::Rc;

use iscsi::initiator::{ConnectionId, Segment, TaskKey};
use iscsi::keys::Params;
use iscsi::pdu::{Bhs, Opcode};
use iscsi::stream::{Limits, Step};
use runtime::{Gather, TcpStream};

use super::event::{act, follow_up, heard};
use super::state::{Core, Inner};
use crate::bell::Bell;
use crate::error::Error;
use crate::payload::Out;

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

/// A data segment that arrives in pieces.
enum Incoming {
    /// Of a Data-In: it is placed as it arrives.
    Data {
        /// `None` for repeated or early data.
        key: Option<TaskKey>,
        /// Offset of the segment in the read.
        at: usize,
        /// The data is dropped.
        unwanted: bool,
    },
    /// Of any other PDU: it is handled whole.
    Kept(Vec<u8>),
}

/// Gives a connection's PDUs to the session. Data-In data is copied directly from the receive
/// buffer to its place.
struct Reader {
    pdus: iscsi::Stream,
    incoming: Option<Incoming>,
    /// The last Data-In was long, and its data was dropped.
    discarding: bool,
}

impl Reader {
    fn new(params: &Params) -> Self {
        let pdus = iscsi::Stream::new(Limits::of_initiator(params));
        Reader { pdus, incoming: None, discarding: false }
    }

    /// Maximum bytes of the next receive.
    fn room(&self) -> usize {
        if self.discarding { SHORT } else { RECEIVE }
    }

    /// Number of the next bytes to drop, if a call of their own is worth it.
    fn unwanted(&self) -> usize {
        match self.incoming {
            // Also discard the rest after a short receive or a discard.
            Some(Incoming::Data { unwanted: true, .. }) if self.discarding || self.pdus.left() >= DISCARD => {
                self.pdus.left()
            }
            _ => 0,
        }
    }

    /// Like [`Reader::feed`] for `len` of the [`Reader::unwanted`] bytes, which the kernel
    /// discarded.
    fn skip(&mut self, inner: &Inner, on: ConnectionId, len: usize) -> Result<(), Error> {
        self.pdus.took_unseen(len);
        self.feed(inner, on, &[])
    }

    fn feed(&mut self, inner: &Inner, on: ConnectionId, mut input: &[u8]) -> Result<(), Error> {
        let mut core = inner.core.borrow_mut();
        let core = &mut *core;
        heard(core, on);
        let data_digest = self.pdus.limits().digests.data;
        loop {
            // After an error the start of the next PDU is unknown (RFC 7143 §7.7).
            match self.pdus.step(&mut input).map_err(|error| Error::Lost(error.to_string()))? {
                Step::More => break,
                Step::Dropped => core.protocol.bad_header_digest(),
                Step::Pdu(pdu) => {
                    self.discarding &= pdu.data.is_empty();
                    let event = core.protocol.handle(on, pdu.bhs, Segment::Here(pdu.data))?;
                    act(inner, core, on, event)?;
                }
                Step::Payload { bhs, offset, here, rest, .. } => {
                    let incoming = match &mut self.incoming {
                        Some(incoming) => incoming,
                        None => {
                            let incoming = Incoming::begin(core, on, bhs, data_digest)?;
                            let unwanted = matches!(incoming, Incoming::Data { unwanted: true, .. });
                            if !matches!(incoming, Incoming::Kept(_)) {
                                self.discarding = unwanted && here + rest >= DISCARD;
                            }
                            self.incoming.insert(incoming)
                        }
                    };
                    let (bytes, others) = input.split_at(here);
                    match incoming {
                        Incoming::Data { key: Some(key), at, .. } => {
                            core.protocol.place(*key, *at + offset, bytes);
                        }
                        Incoming::Data { key: None, .. } => {}
                        Incoming::Kept(data) => data.extend_from_slice(bytes),
                    }
                    self.pdus.took(bytes);
                    input = others;
                    if rest > 0 {
                        break;
                    }
                }
                Step::Taken(pdu) => {
                    let event = match self.incoming.take() {
                        Some(Incoming::Kept(data)) => {
                            self.discarding &= data.is_empty();
                            core.protocol.handle(on, pdu.bhs, Segment::Here(&data[..]))?
                        }
                        _ => core.protocol.handle(on, pdu.bhs, Segment::Placed::<&[u8]>)?,
                    };
                    act(inner, core, on, event)?;
                }
                Step::Damaged(pdu) => {
                    self.incoming = None;
                    core.protocol.bad_data_digest(on, pdu.bhs)?;
                }
            }
        }
        follow_up(inner, core);
        Ok(())
    }
}

impl Incoming {
    /// The data of the PDU with this header begins.
    fn begin(core: &mut Core, on: ConnectionId, bhs: &Bhs, data_digest: bool) -> Result<Self, Error> {
        if bhs.opcode() != Some(Opcode::DataIn) {
            return Ok(Self::Kept(Vec::new()));
        }
        let place = core.protocol.expect_data(on, bhs)?;
        let (key, at) = place.map_or((None, 0), |(key, offset)| (Some(key), offset as usize));
        let token = key.map(|key| core.protocol.token_mut(key));
        let unwanted = !data_digest && token.is_none_or(|token| token.is_some_and(|task| task.discards()));
        Ok(Self::Data { key, at, unwanted })
    }
}
