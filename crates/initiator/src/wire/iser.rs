//! iSER (RFC 7145) over a queue pair: connecting, and PDUs one by one as Sends. What memory a target may reach is the
//! session's to say ([`crate::session`]).

use std::net::SocketAddr;
use std::time::Duration;

use iscsi::keys::Params;
use iscsi::pdu::{BHS_LEN, Bhs, ahs};
use iser::{Control, HEAD_LEN, HEADER_LEN, Header, Layout, Limits, PrivateData, UNTIL_FULL_FEATURE_DATA};
use rdma::{Completion, Flags, Provider, QueuePair, Stag};
use ring::{Buf, Chain};

use crate::error::Error;
use crate::options::Options;

/// PDUs that a target may send without being asked at any time, on top of an answer to each command: pings,
/// asynchronous messages, rejects.
const UNEXPECTED: u32 = 64;
/// How long the first message waits for a target over software iWARP: Linux's siw looks at the socket only a while after its MPA
/// reply has left, and may never notice what comes before.
const SETTLING: Duration = Duration::from_millis(20);

/// A queue pair that carries iSCSI PDUs.
pub(crate) struct Iser {
    pub pair: QueuePair,
    limits: Limits,
    /// What a message in several pieces is put together in.
    scratch: Vec<u8>,
}

/// Why there is no queue pair.
pub(crate) enum Refusal {
    /// Nobody answers there.
    Unreachable(String),
    /// Somebody does, in another way.
    NoIser(String),
}

impl Iser {
    /// Connects; where the provider lets it, a target may invalidate a task's STag with its response (RFC 7145 §7.3.2).
    pub async fn connect(address: SocketAddr, options: &Options) -> Result<Iser, Refusal> {
        let depth = u32::try_from(options.queue_depth.clamp(1, 32_768)).unwrap_or(32_768);
        let receive_size = (HEAD_LEN + UNTIL_FULL_FEATURE_DATA).next_multiple_of(4) as u32;
        let wanted = rdma::Options {
            provider: options.iser_provider,
            ird: options.iser_reads.clamp(1, 16_383),
            // We read nothing of a target's.
            ord: 1,
            receives: depth + UNEXPECTED,
            receive_size,
            // What each command reads and writes.
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
            ring::sleep(SETTLING).await;
        }
        let limits = Limits { data: UNTIL_FULL_FEATURE_DATA, ahs: 0 };
        Ok(Iser { pair, limits, scratch: Vec::new() })
    }

    pub fn begin_full_feature(&mut self, params: &Params) {
        if params.rdma_extensions {
            self.limits.data = params.initiator_recv_data_segment_length as usize;
        }
    }

    /// Sends a PDU without AHS; its length is set here.
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
                // Nothing else was posted.
                _ => continue,
            }
        }
    }

    /// Reads a message: its header, which has been checked, and its data segment.
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
                // No longer than the receives that were posted.
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

/// A message that holds no PDU ends the session (RFC 7145 §10.1.3.4).
fn broken(error: &dyn std::error::Error) -> Error {
    Error::Lost(format!("the target sent {error}"))
}

/// An STag that was not the message's to invalidate.
pub(crate) fn foreign(stag: Stag) -> Error {
    Error::Lost(format!("the target invalidated {stag}, which is not its command's"))
}

/// Sends a PDU whose lengths are set: iSER header, BHS and AHSs are copied, data goes by reference, padded.
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
