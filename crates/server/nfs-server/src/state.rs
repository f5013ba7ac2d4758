//! [`State`]: what the cores know together of NFSv4's clients, behind one lock that is held briefly.

use std::path::PathBuf;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use nfs::v4::Channel;
use nfs::v4::state::{Limits, ServerState};

use crate::handle::Bytes;
use crate::ledger::Ledger;
use crate::records;

/// The state machine, in which handles name files.
pub(crate) type Machine = ServerState<Bytes>;

/// The state of NFSv4.
pub(crate) struct State {
    machine: Mutex<Machine>,
    begin: Instant,
    /// `lease_time`, seconds.
    pub lease_s: u32,
    pub ledger: Ledger,
}

impl State {
    /// The state after a start. `records` is the file of the clients' records.
    pub(crate) fn new(records: Option<PathBuf>) -> Self {
        let limits = limits();
        let (ledger, kept) = Ledger::open(records);
        let start = u32::from_be_bytes(drawn());
        let seed = u64::from_be_bytes(drawn());
        Self {
            lease_s: limits.lease.as_secs() as u32,
            machine: Mutex::new(ServerState::new(Duration::ZERO, start, seed, limits, kept)),
            begin: runtime::clock(),
            ledger,
        }
    }

    /// Asks or changes the state, which is told the time. Nothing else is to be done in `act`.
    pub(crate) fn with<T>(&self, act: impl FnOnce(&mut Machine, Duration) -> T) -> T {
        let mut machine = self.machine.lock().unwrap_or_else(PoisonError::into_inner);
        // Read under the lock, so that it does not go back.
        let now = runtime::clock().saturating_duration_since(self.begin);
        let result = act(&mut machine, now);
        machine.take_effects().for_each(|effect| self.ledger.note(effect));
        result
    }
}

/// Without a backchannel there are no delegations.
fn limits() -> Limits {
    let most = records::MOST as u32;
    let defaults = Limits::default();
    Limits {
        fore: Channel { max_request: most, max_response: most, ..defaults.fore },
        back: Channel::default(),
        delegations: 0,
        ..defaults
    }
}

/// Random bytes. Those of each start differ.
fn drawn<const N: usize>() -> [u8; N] {
    let mut bytes = [0; N];
    if let Err(error) = runtime::random(&mut bytes) {
        tracing::error!(%error, "no random bytes: clients of the last start may be taken for this one's");
    }
    bytes
}
