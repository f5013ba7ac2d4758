//! iSER (RFC 7145) over a queue pair: connecting, and PDUs one by one as Sends. The session decides
//! which memory a target may access ([`crate::session`]).

use std::net::SocketAddr;
use std::time::Duration;

use iscsi::keys::Params;
use iscsi::pdu::{BHS_LEN, Bhs, ahs};
use iser::{Control, HEAD_LEN, HEADER_LEN, Header, Layout, Limits, PrivateData, UNTIL_FULL_FEATURE_DATA};
use rdma::{Completion, Flags, Provider, QueuePair, Stag};
use runtime::{Buf, Chain};

use crate::error::Error;
use crate::options::Options;

/// Unsolicited PDUs that a target may send at any time, besides an answer to each command: pings,
/// asynchronous messages, rejects.
const UNEXPECTED: u32 = 64;
/// Delay of the first message to a target over software iWARP. Linux's siw checks the socket only
/// some time after its MPA reply, and may never notice an earlier message.
const SETTLING: Duration = Duration::from_millis(20);

/// A queue pair that carries iSCSI PDUs.
pub(crate) struct Iser {
    pub pair: QueuePair,
    limits: Limits,
    /// Buffer to reassemble a message in several pieces.
    scratch: Vec<u8>,
}

/// Why there is no queue pair.
pub(crate) enum Refusal {
    /// No answer at the address.
    Unreachable(String),
    /// The address answers, but not with iSER.
    NoIser(String),
}

impl Iser {
    /// Connects. If the provider supports it, a target may invalidate a task's STag with its
    /// response (RFC 7145 §7.3.2).
    pub async fn connect(address: SocketAddr, options: &Options) -> Result<Iser, Refusal> {
        let depth = u32::try_from(options.queue_depth.clamp(1, 32_768)).unwrap_or(32_768);
        let receive_size = (HEAD_LEN + UNTIL_FULL_FEATURE_DATA).next_multiple_of(4) as u32;
        let wanted = rdma::Options {
            provider: options.iser_provider,
            ird: options.iser_reads.clamp(1, 16_383),
            // This side never reads from a target.
            ord: 1,
            receives: depth + UNEXPECTED,
            receive_size,
            // One for each command's read, one for its write.
            stags: 2 * depth + 16,
            setup_timeout: options.connect_timeout,
            crc: options.iser_crc,
            markers: options.iser_markers,
            max_fpdu: options.iser_fpdu.clamp(256, 65_544),
            path: options.path.clone(),
            ..rdma::Options::default()
        };
        let private_data = |invalidation| PrivateData::new(invalidation).encode().to_vec();
        let connected = rdma::connect_with(address, private_data, &wanted).await;
        let (pair, _) = connected.map_err(|error| match error {
            rdma::Error::Connect { source, .. } => Refusal::Unreachable(source.to_string()),
            rdma::Error::Io(error) => Refusal::NoIser(error.to_string()),
            other => Refusal::NoIser(other.to_string()),
        })?;
        if options.iser_provider == Provider::Software {
            runtime::sleep(SETTLING).await;
        }
        let limits = Limits { data: UNTIL_FULL_FEATURE_DATA, ahs: 0 };
        Ok(Iser { pair, limits, scratch: Vec::new() })
    }

    pub fn begin_full_feature(&mut self, params: &Params) {
        if params.rdma_extensions {
            self.limits.data = params.initiator_recv_data_segment_length as usize;
        }
    }

    /// Sends a PDU without AHS; sets its length.
    pub fn send(&self, mut header: Bhs, data: &[u8]) {
        header.set_total_ahs_len(0);
        header.set_data_segment_len(data.len());
        post(&self.pair, Control::default(), &header, &[], Some(Buf::from(data.to_vec()).into()));
    }

    pub async fn receive(&mut self) -> Result<(Bhs, Vec<u8>), Error> {
        loop {
            match self.pair.next().await.map_err(|e| Error::of_pair(&e))? {
                Completion::Received { message, invalidated, .. } => {
                    self.pair.post_receives(1);
                    if let Some(stag) = invalidated {
                        return Err(foreign(stag));
                    }
                    return self.read(&message, |bhs, data| Ok((*bhs, data.to_vec())));
                }
                // No other completion was posted for.
                _ => continue,
            }
        }
    }

    /// Reads a message: its checked header, and its data segment.
    pub fn read<R>(
        &mut self,
        message: &Chain,
        with: impl FnOnce(&Bhs, &[u8]) -> Result<R, Error>,
    ) -> Result<R, Error> {
        let whole = match message.bufs() {
            [one] => one.as_slice(),
            _ => None,
        };
        let bytes = match whole {
            Some(bytes) => bytes,
            None => {
                // At most as long as the posted receives.
                self.scratch.resize(message.len(), 0);
                message.copy_to_slice(&mut self.scratch);
                &self.scratch
            }
        };
        match Header::decode(bytes).map_err(|e| broken(&e))? {
            Header::Control(_) => {}
            Header::Hello(_) | Header::HelloReply(_) => {
                return Err(Error::Lost("the target sent a Hello that nobody asked for".to_owned()));
            }
        }
        let layout = Layout::of(bytes, bytes.len(), self.limits).map_err(|e| broken(&e))?;
        let bhs = bytes.get(HEADER_LEN..HEAD_LEN).and_then(Bhs::ref_from);
        let (Some(bhs), Some(data)) = (bhs, bytes.get(layout.data)) else {
            return Err(Error::Lost("the target sent a message that holds no PDU".to_owned()));
        };
        with(bhs, data)
    }
}

/// A message without a PDU ends the session (RFC 7145 §10.1.3.4).
fn broken(error: &dyn std::error::Error) -> Error {
    Error::Lost(format!("the target sent {error}"))
}

/// The error for an STag that the message was not allowed to invalidate.
pub(crate) fn foreign(stag: Stag) -> Error {
    Error::Lost(format!("the target invalidated {stag}, which is not its command's"))
}

/// Sends a PDU with its lengths already set: iSER header, BHS and AHSs are copied, data is sent by
/// reference, padded.
pub(crate) fn post(pair: &QueuePair, control: Control, header: &Bhs, ahs: &[u8], data: Option<Chain>) {
    let mut data = data.unwrap_or_default();
    let padding = Layout::padding(data.len());
    if padding > 0 {
        data.push(Buf::from_static(&[0; 3][..padding]));
    }
    if ahs.is_empty() {
        let mut head = [0; HEAD_LEN];
        put_head(&mut head, control, header);
        return pair.post_send(&head, data, Flags::default(), None);
    }
    let mut head = [0; HEAD_LEN + ahs::MAX_LEN];
    let len = HEAD_LEN + ahs.len();
    if let Some(part) = head.get_mut(HEAD_LEN..len) {
        part.copy_from_slice(ahs);
        put_head(&mut head, control, header);
        pair.post_send(&head[..len], data, Flags::default(), None);
    }
}

fn put_head(head: &mut [u8], control: Control, header: &Bhs) {
    head[..HEADER_LEN].copy_from_slice(&control.encode());
    head[HEADER_LEN..HEADER_LEN + BHS_LEN].copy_from_slice(header.bytes());
}
