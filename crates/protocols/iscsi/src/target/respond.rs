//! Content of a SCSI Response: status, residuals and sense data.

use std::cmp::Ordering;

use super::events::Completion;
use super::inbound::InboundError;
use super::payload::Payload;
use super::tasks::Task;
use crate::pdu::{self, Residual, ResponseCode};

/// The SCSI Response of `task`, without StatSN and window, and its data segment.
pub(super) fn scsi_response<P: Payload>(
    task: &Task<P>,
    completion: &Completion,
    peer_max_data_segment: u32,
) -> (pdu::ScsiResponse, Vec<u8>) {
    let residuals = Residuals::of(task, completion);
    let mut response = pdu::ScsiResponse::new(task.itt, ResponseCode::CommandCompleted, completion.status);
    response.exp_data_sn.set(task.next_data_sn());
    response.set_residual(residuals.main);
    response.set_bidi_residual(residuals.read);
    response.snack_tag.set(task.history.as_ref().map_or(0, |history| history.snack_tag));
    let mut segment = Vec::new();
    if let Some(sense) = &completion.sense {
        // All of it, or as much as the initiator receives: SenseLength has the length (RFC 7143
        // §11.4.7.1).
        let sense = &sense[..sense.len().min(peer_max_data_segment as usize - 2)];
        segment.reserve(2 + sense.len());
        segment.extend_from_slice(&(sense.len() as u16).to_be_bytes());
        segment.extend_from_slice(sense);
    }
    (response, segment)
}

/// The residuals of a command (RFC 7143 §11.4.5).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Residuals {
    /// Of a unidirectional command, or of a bidirectional command's data-out.
    pub main: Residual,
    /// Of a bidirectional command's data-in.
    pub read: Residual,
}

impl Residuals {
    pub fn of<P>(task: &Task<P>, completion: &Completion) -> Self {
        // A failed command transferred the bytes that were put, regardless of the CDB's length.
        let good = completion.status == 0;
        let wanted_in = if good { completion.wanted_in } else { u64::from(task.put) };
        let read = residual(wanted_in, task.expected_in);
        let write = residual(completion.wanted_out, task.expected_out);
        match (task.bidirectional, task.expected_out > 0) {
            (true, _) => Self { main: write, read },
            (false, true) => Self { main: write, read: Residual::Exact },
            // If R and W are both clear, the CDB's whole data is an overflow of the expected length
            // 0.
            (false, false) if task.expected_in == 0 && completion.wanted_out > 0 => {
                Self { main: write, read: Residual::Exact }
            }
            (false, false) => Self { main: read, read: Residual::Exact },
        }
    }
}

fn residual(wanted: u64, expected: u32) -> Residual {
    let expected = u64::from(expected);
    let clamp = |n: u64| u32::try_from(n).unwrap_or(u32::MAX);
    match wanted.cmp(&expected) {
        Ordering::Equal => Residual::Exact,
        Ordering::Greater => Residual::Overflow(clamp(wanted - expected)),
        Ordering::Less => Residual::Underflow(clamp(expected - wanted)),
    }
}

/// CHECK CONDITION, ABORTED COMMAND for data that violates the rules (RFC 7143 §11.4.7.2).
pub(super) fn refusal(error: InboundError) -> Completion {
    aborted_command(match error {
        InboundError::UnexpectedUnsolicited => (0x0c, 0x0c), // UNEXPECTED UNSOLICITED DATA
        InboundError::TooMuch | InboundError::Incorrect => (0x0c, 0x0d), // INCORRECT AMOUNT OF DATA
        // A Data-Out dropped for its digest leaves such a gap (§7.8): PROTOCOL SERVICE CRC ERROR.
        InboundError::OutOfOrder | InboundError::DataSn => (0x47, 0x05),
    })
}

/// CHECK CONDITION, ABORTED COMMAND for data-in that was requested again and is no longer retained
/// (RFC 7143 §11.4.7.2).
pub(super) fn snack_rejected() -> Completion {
    aborted_command((0x11, 0x13)) // READ ERROR - FAILED RETRANSMISSION REQUEST
}

/// CHECK CONDITION, ABORTED COMMAND, in fixed format (SPC-4 §4.5.3).
pub(super) fn aborted_command((asc, ascq): (u8, u8)) -> Completion {
    let mut sense = [0; 18];
    (sense[0], sense[2], sense[7], sense[12], sense[13]) = (0x70, 0x0b, 10, asc, ascq);
    Completion { status: 0x02, sense: Some(Box::new(sense)), ..Completion::default() }
}

/// Changes sense data of [`aborted_command`] to descriptor format (SPC-4 §4.5.2). Sense data of a
/// logical unit has the unit's format already.
pub(super) fn to_descriptor_format(completion: &mut Completion) {
    if let Some(sense) = &mut completion.sense
        && let [0x70, 0, key, 0, 0, 0, 0, 10, 0, 0, 0, 0, asc, ascq, 0, 0, 0, 0] = **sense
    {
        *sense = Box::new([0x72, key, asc, ascq, 0, 0, 0, 0]);
    }
}
