//! PDUs over iSER, one at a time, and memory for the target. Each piece is filled with a pattern
//! first, which shows exactly the bytes that the target has written.

use std::net::SocketAddr;
use std::rc::Rc;
use std::time::{Duration, Instant};

use iscsi::pdu::{BHS_LEN, Bhs};
use iser::{Control, HEADER_LEN, Header, Layout, Limits, PrivateData};
use rdma::{Flags, Rights, Stag};
use runtime::{Buf, BufMut, Runtime};

use crate::lost::Lost;
use crate::pair::Pair;
use crate::pdu::Pdu;

/// The longest accepted message, bytes.
const RECEIVE: usize = 64 << 10;
/// Number of Sends that a target may have in flight.
const RECEIVES: u32 = 256;
/// Fill byte of exposed memory.
pub(crate) const PATTERN: u8 = 0xa5;
/// Bytes per piece of memory from the pool.
const PIECE: usize = 64 << 10;

/// A queue pair for PDUs.
pub(crate) struct Iser(Pair);

impl Iser {
    pub fn connect(runtime: Rc<Runtime>, address: SocketAddr, limit: Duration) -> Result<Self, Lost> {
        let wanted = rdma::Options {
            ird: 64,
            ord: 1,
            receives: RECEIVES,
            receive_size: RECEIVE as u32,
            stags: 256,
            setup_timeout: limit,
            ..rdma::Options::default()
        };
        let private_data = PrivateData::new(true).encode();
        let (pair, _) = Pair::connect(runtime, address, &private_data, &wanted)?;
        Ok(Self(pair))
    }

    /// Sends a PDU; sets its lengths.
    pub fn send(&self, control: Control, bhs: &Bhs, ahs: &[u8], data: &[u8]) -> Result<(), Lost> {
        let mut bhs = *bhs;
        bhs.set_total_ahs_len(ahs.len());
        bhs.set_data_segment_len(data.len());
        let mut message = control.encode().to_vec();
        message.extend_from_slice(bhs.bytes());
        message.extend_from_slice(ahs);
        message.extend_from_slice(data);
        message.resize(message.len() + Layout::padding(data.len()), 0);
        self.send_message(message)
    }

    /// Sends a message unchanged.
    pub(crate) fn send_message(&self, message: Vec<u8>) -> Result<(), Lost> {
        self.0.run(async |pair| {
            pair.post_send(&[], Buf::from(message).into(), Flags::default(), None);
            pair.flush();
        })
    }

    /// The next message, until `until`.
    pub fn receive(&mut self, until: Instant) -> Result<Pdu, Lost> {
        let (message, invalidated) = self.0.receive(until)?;
        read(&message, invalidated.map(|stag| stag.0))
    }

    /// Memory of `len` bytes for the target to write, filled with [`PATTERN`].
    pub fn expose_sink(&self, len: usize) -> Result<Stag, Lost> {
        self.0.run(async |pair| {
            let mut buffers = Vec::new();
            let mut left = len;
            while left > 0 {
                let size = left.min(PIECE);
                let mut buffer: BufMut = runtime::pool::alloc_wait(size).await;
                buffer.fill(PATTERN);
                buffers.push(buffer);
                left -= size;
            }
            pair.expose(buffers, Rights::Write).map_err(|error| Lost::Garbled(error.to_string()))
        })?
    }

    /// Memory for the target to read.
    pub fn expose_source(&self, data: &[u8]) -> Result<Stag, Lost> {
        let chain = Buf::from(data.to_vec()).into();
        self.0.run(async |pair| pair.expose_source(chain))?.map_err(|error| Lost::Garbled(error.to_string()))
    }

    /// Withdraws memory: returns its content, and whether the target had invalidated it.
    pub fn withdraw(&self, stag: Stag) -> (Vec<u8>, bool) {
        let taken = self.0.run(async |pair| {
            pair.withdraw(stag).map(|taken| {
                (taken.buffers.iter().flat_map(|buffer| buffer.to_vec()).collect(), taken.invalidated)
            })
        });
        taken.ok().flatten().unwrap_or_default()
    }
}

fn read(message: &[u8], invalidated: Option<u32>) -> Result<Pdu, Lost> {
    let header = Header::decode(message).map_err(|error| Lost::Garbled(error.to_string()))?;
    let mut pdu = Pdu { header: Some(header), invalidated, ..Pdu::default() };
    if !matches!(header, Header::Control(_)) {
        return Ok(pdu);
    }
    let limits = Limits { data: RECEIVE, ahs: 1020 };
    let layout =
        Layout::of(message, message.len(), limits).map_err(|error| Lost::Garbled(error.to_string()))?;
    if let Some(bhs) = message.get(HEADER_LEN..HEADER_LEN + BHS_LEN).and_then(Bhs::ref_from) {
        pdu.bhs = *bhs;
    }
    pdu.ahs = message.get(layout.ahs).unwrap_or_default().to_vec();
    pdu.data = message.get(layout.data).unwrap_or_default().to_vec();
    Ok(pdu)
}
