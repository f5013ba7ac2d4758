//! From a connection request to the first PDU over RDMA: the parameters of a queue pair, and login
//! PDUs as messages.

use iscsi::pdu::Bhs;
use iser::{Control, HEAD_LEN, HEADER_LEN, Header, Layout, PrivateData, UNTIL_FULL_FEATURE_DATA};
use rdma::{Completion, Flags, Incoming, Options, QueuePair};
use runtime::Chain;

use crate::config::{IserConfig, Limits};
use crate::end::LoginFailure;

/// Most bytes of AHSs in a message: MaxAHSLength's default (RFC 7145 §6.8). A CDB of 260 bytes and
/// a bidirectional command's read length fit into it.
pub(crate) const MAX_AHS: usize = 256;

/// Limits of a message, in any phase of the connection.
pub(crate) const LIMITS: iser::Limits = iser::Limits { data: UNTIL_FULL_FEATURE_DATA, ahs: MAX_AHS };

/// Longest data segment of a command over software iWARP, bytes (TargetRecvDataSegmentLength). A
/// receive there takes no memory before data comes. The limit allows as much as a distant write may
/// bring along, instead of being fetched a round trip later. A nearby initiator chooses how much it
/// sends so; that costs a copy.
const SOFTWARE_SEGMENT: usize = 64 << 10;

/// Longest data segment that an initiator may send in full-feature phase, bytes, by the kind of its
/// queue pair.
pub(crate) fn segment(software: bool) -> usize {
    if software { SOFTWARE_SEGMENT } else { UNTIL_FULL_FEATURE_DATA }
}

/// Messages besides commands that an initiator may have in flight: immediate ones, pings and their
/// answers, task management, logout (RFC 7145 §8.1). MaxOutstandingUnexpectedPDUs declares it.
pub(crate) const UNEXPECTED: u32 = 64;

/// Longest data segment for an initiator that has not declared more, bytes: Linux's initiator has
/// room for no more in full-feature phase, whatever it declares.
pub(crate) const SMALLEST_PEER: u32 = 128;

/// Receives needed for the messages that an initiator may send before more are posted. Each message
/// taken in posts one.
fn receives(limits: &Limits, config: &IserConfig) -> u32 {
    let per_command = match config.unsolicited_data {
        true => 1 + limits.first_burst.div_ceil(UNTIL_FULL_FEATURE_DATA as u32),
        false => 1,
    };
    limits.queue_depth.saturating_mul(per_command).saturating_add(UNEXPECTED)
}

/// Receives that are posted during login: requests come one at a time.
const LOGIN_RECEIVES: u32 = 2;

/// Bytes of the longest message with a data segment of `segment` bytes.
fn message_len(segment: usize) -> u32 {
    (HEAD_LEN + MAX_AHS + segment) as u32
}

/// The initiator has logged in: allows messages of the full-feature phase.
pub(crate) fn widen(pair: &QueuePair, limits: &Limits, config: &IserConfig) {
    pair.set_receive_size(message_len(segment(pair.is_software())));
    pair.post_receives(receives(limits, config).saturating_sub(LOGIN_RECEIVES));
}

/// Accepts a connection request. `lend`: whether units' memory may be sent by reference. Also
/// returns whether responses may invalidate the initiator's STags.
pub(crate) async fn accept(
    incoming: Incoming,
    limits: &Limits,
    config: &IserConfig,
    lend: bool,
) -> Result<(QueuePair, bool), rdma::Error> {
    let options = Options {
        // Initiators read nothing of a target's memory, but some demand that they could.
        ird: 1,
        ord: config.reads,
        receives: receives(limits, config),
        first_receives: LOGIN_RECEIVES,
        // Over software iWARP a peer that has not logged in may send no more than a login needs. An
        // adapter's receives have their full length from the start.
        receive_size: message_len(UNTIL_FULL_FEATURE_DATA),
        // None of the target's memory is exposed.
        stags: 1,
        send_high_water: limits.send_high_water,
        setup_timeout: limits.login_timeout,
        crc: config.crc,
        max_fpdu: config.max_fpdu,
        markers: config.markers,
        lend,
        ..Options::default()
    };
    let peer = PrivateData::decode(incoming.private_data());
    let own = PrivateData::new(peer.remote_invalidation);
    let pair = incoming.accept(&own.encode(), &options).await?;
    Ok((pair, peer.remote_invalidation))
}

/// The next PDU of a login, with its data segment.
pub(crate) async fn receive(pair: &QueuePair) -> Result<(Bhs, Vec<u8>), LoginFailure> {
    loop {
        let message = match pair.next().await {
            Ok(Completion::Received { message, .. }) => message.to_vec(),
            Ok(_) => continue,
            Err(rdma::Error::Closed) => return Err(LoginFailure::Closed),
            Err(error) => return Err(error.into()),
        };
        pair.post_receives(1);
        let header = Header::decode(&message)?;
        let layout = Layout::of(&message, message.len(), LIMITS)?;
        let bhs = Bhs::ref_from(&message[HEADER_LEN..HEAD_LEN]);
        let (Header::Control(_), Some(bhs)) = (header, bhs) else { return Err(LoginFailure::Closed) };
        return Ok((*bhs, message[layout.data].to_vec()));
    }
}

/// Sends a PDU of a login.
pub(crate) fn send(pair: &QueuePair, bhs: &Bhs, data: &[u8]) {
    let mut message = Vec::with_capacity(HEAD_LEN + data.len() + 3);
    message.extend_from_slice(&Control::default().encode());
    message.extend_from_slice(bhs.bytes());
    message.extend_from_slice(data);
    message.resize(message.len() + Layout::padding(data.len()), 0);
    pair.post_send(&message, Chain::new(), Flags { invalidate: None, solicited: true }, None);
}
