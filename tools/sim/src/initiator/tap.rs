//! Looks at every PDU that an initiator receives, for rules that its state machine need not enforce to live.

use std::collections::BTreeMap;

use iscsi::initiator::ConnectionId;
use iscsi::keys::Params;
use iscsi::pdu::{Bhs, PduRef};
use iscsi::sn;

/// What was seen on one connection.
#[derive(Debug)]
struct Seen {
    exp_cmd_sn: u32,
    max_cmd_sn: u32,
    /// Data-In bytes since the last F bit, by task.
    sequences: BTreeMap<u32, u32>,
}

/// The observer of one initiator.
#[derive(Debug)]
pub(super) struct Tap {
    queue_depth: u32,
    connections: BTreeMap<ConnectionId, Seen>,
}

impl Tap {
    pub fn new(queue_depth: u32) -> Self {
        Self { queue_depth, connections: BTreeMap::new() }
    }

    pub fn connected(&mut self, on: ConnectionId, exp_cmd_sn: u32, max_cmd_sn: u32) {
        self.connections.insert(on, Seen { exp_cmd_sn, max_cmd_sn, sequences: BTreeMap::new() });
    }

    pub fn forget(&mut self) {
        self.connections.clear();
    }

    /// Checks one PDU.
    pub fn see(&mut self, on: ConnectionId, bhs: &Bhs, params: &Params) -> Result<(), String> {
        let Some(seen) = self.connections.get_mut(&on) else { return Ok(()) };
        let word = |at: usize| {
            let s = &bhs.specific_20;
            u32::from_be_bytes([s[at], s[at + 1], s[at + 2], s[at + 3]])
        };
        let (exp, max) = (word(8), word(12));
        // RFC 7143 §4.2.2.1: what is sent on one connection goes forward, and the window is as deep as it was made.
        if sn::lt(exp, seen.exp_cmd_sn) || sn::lt(max, seen.max_cmd_sn) {
            return Err(format!(
                "the window went back: {bhs}, before {} to {}",
                seen.exp_cmd_sn, seen.max_cmd_sn
            ));
        }
        if max.wrapping_sub(exp).wrapping_add(1) > self.queue_depth {
            return Err(format!("a window of more than {}: {bhs}", self.queue_depth));
        }
        (seen.exp_cmd_sn, seen.max_cmd_sn) = (exp, max);
        if let Some(PduRef::DataIn(pdu)) = bhs.view() {
            let bytes = seen.sequences.entry(pdu.itt.get()).or_default();
            *bytes += bhs.data_segment_len();
            // §13.13: a sequence is no longer than MaxBurstLength; parts of it may come again.
            if *bytes > params.max_burst_length && params.error_recovery_level == 0 {
                return Err(format!("a Data-In sequence of {bytes} bytes: {bhs}"));
            }
            if bhs.is_final() {
                seen.sequences.remove(&pdu.itt.get());
            }
        }
        Ok(())
    }
}
