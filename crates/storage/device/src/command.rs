//! One SCSI command for a logical unit, and its outcome.

use std::cell::RefCell;

use runtime::Use;
use scsi::{Sense, Status};
use smallvec::SmallVec;

use crate::ItlNexus;

/// A command descriptor block of 6 to 260 bytes. Up to 16 bytes are stored inline. Longer,
/// variable-length CDBs are on the heap, in memory that their thread reuses; iSCSI carries them in
/// an Extended CDB AHS (RFC 7143 §11.2.2.3).
#[derive(Debug, PartialEq, Eq)]
pub struct Cdb(SmallVec<[u8; 16]>);

/// Maximum number of CDB buffers that a thread keeps for reuse.
const KEPT: usize = 256;

thread_local! {
    static SPARE: RefCell<Vec<SmallVec<[u8; 16]>>> = const { RefCell::new(Vec::new()) };
}

impl Clone for Cdb {
    fn clone(&self) -> Self {
        Self::copied(&self.0)
    }
}

impl Drop for Cdb {
    #[inline]
    fn drop(&mut self) {
        if self.0.spilled() {
            give_back(std::mem::take(&mut self.0));
        }
    }
}

/// Keeps the memory of a CDB for reuse, up to [`KEPT`] buffers.
#[cold]
fn give_back(mut memory: SmallVec<[u8; 16]>) {
    memory.clear();
    // Fails while the thread ends; then the memory is freed.
    let _ = SPARE.try_with(|spare| {
        let mut spare = spare.borrow_mut();
        if spare.len() < KEPT {
            spare.push(memory);
        }
    });
}

impl Cdb {
    /// The longest CDB that SPC-4 allows (variable-length: 8 + 252 bytes).
    pub const MAX_LEN: usize = 260;

    /// Wraps `bytes`. `None` if there are fewer than 6 or more than [`Self::MAX_LEN`].
    pub fn new(bytes: &[u8]) -> Option<Self> {
        (6..=Self::MAX_LEN).contains(&bytes.len()).then(|| Self::copied(bytes))
    }

    fn copied(bytes: &[u8]) -> Self {
        let mut memory = if bytes.len() > 16 { Self::spare() } else { SmallVec::new() };
        memory.extend_from_slice(bytes);
        Self(memory)
    }

    /// Empty memory for a CDB of any length: a reused buffer of this thread, if there is one.
    #[cold]
    pub fn spare() -> SmallVec<[u8; 16]> {
        let kept = SPARE.try_with(|spare| spare.borrow_mut().pop()).ok().flatten();
        kept.unwrap_or_else(|| SmallVec::with_capacity(Self::MAX_LEN))
    }

    /// Wraps an existing buffer. `None` if it has fewer than 6 or more than [`Self::MAX_LEN`]
    /// bytes.
    #[inline]
    pub fn from_bytes(bytes: SmallVec<[u8; 16]>) -> Option<Self> {
        (6..=Self::MAX_LEN).contains(&bytes.len()).then_some(Self(bytes))
    }

    /// The bytes, OPERATION CODE first.
    #[inline]
    pub fn bytes(&self) -> &[u8] {
        &self.0
    }

    /// The OPERATION CODE.
    #[inline]
    pub fn opcode(&self) -> u8 {
        self.0[0]
    }
}

/// The task attribute (SAM-5 §8.6): the order of a task among the others of its task set.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum TaskAttribute {
    /// No order among SIMPLE tasks. iSCSI's "untagged" is this too.
    #[default]
    Simple,
    /// Runs after every older task and before every younger one.
    Ordered,
    /// Runs before every task that has not started.
    HeadOfQueue,
    /// Runs under an auto contingent allegiance.
    Aca,
}

/// One SCSI command that a server passes to a unit.
#[derive(Clone, Debug)]
pub struct Command {
    pub cdb: Cdb,
    /// Its task attribute. The server orders tasks; a unit may read it.
    pub attribute: TaskAttribute,
    /// Its I_T_L nexus: initiator port, target port and unit.
    pub nexus: Use<ItlNexus>,
    /// The initiator's identifier of the task; over iSCSI its Initiator Task Tag. It is unique
    /// among the outstanding tasks of an I_T nexus.
    pub tag: u64,
    /// Expected data-out length of the initiator in bytes; 0 for none.
    pub data_out_len: u64,
    /// Expected data-in length of the initiator in bytes; 0 for none.
    pub data_in_len: u64,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Outcome {
    /// SAM status.
    pub status: Status,
    /// Sense data, for CHECK CONDITION (and for a unit that adds information to GOOD).
    pub sense: Option<Box<Sense>>,
    /// Bytes of data-in that the CDB requests, whatever the expected length. From it the server
    /// computes residual overflow and underflow (RFC 7143 §11.4.5).
    pub wanted_in: u64,
    /// Bytes of data-out that the CDB requests.
    pub wanted_out: u64,
}

impl Outcome {
    /// GOOD, without data.
    pub const GOOD: Self = Self { status: Status::Good, sense: None, wanted_in: 0, wanted_out: 0 };

    /// GOOD after a command that requests `bytes` of data-in.
    pub const fn read(bytes: u64) -> Self {
        Self { wanted_in: bytes, ..Self::GOOD }
    }

    /// GOOD after a command that requests `bytes` of data-out.
    pub const fn wrote(bytes: u64) -> Self {
        Self { wanted_out: bytes, ..Self::GOOD }
    }

    /// CHECK CONDITION with `sense`.
    pub fn check(sense: Sense) -> Self {
        Self { status: Status::CheckCondition, sense: Some(Box::new(sense)), ..Self::GOOD }
    }

    /// A status without sense data.
    pub const fn status(status: Status) -> Self {
        Self { status, ..Self::GOOD }
    }
}

impl From<Sense> for Outcome {
    fn from(sense: Sense) -> Self {
        Self::check(sense)
    }
}
