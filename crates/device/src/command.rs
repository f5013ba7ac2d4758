//! One SCSI command on its way to a logical unit, and what came of it.

use std::cell::RefCell;

use ring::Use;
use scsi::{Sense, Status};
use smallvec::SmallVec;

use crate::ItlNexus;

/// A command descriptor block of 6 to 260 bytes. Up to 16 bytes are held in place; longer ones (variable-length CDBs,
/// which iSCSI carries in an Extended CDB AHS, RFC 7143 §11.2.2.3) are on the heap, in memory that its thread uses again.
#[derive(Debug, PartialEq, Eq)]
pub struct Cdb(SmallVec<[u8; 16]>);

/// Memory of CDBs that a thread keeps to use it again.
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

/// Keeps the memory of a CDB, if there is not much of it already.
#[cold]
fn give_back(mut memory: SmallVec<[u8; 16]>) {
    memory.clear();
    // A thread that is ending keeps none.
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

    /// Memory for a CDB of any length, empty: that of an earlier one of this thread, where there is one.
    #[cold]
    pub fn spare() -> SmallVec<[u8; 16]> {
        let kept = SPARE.try_with(|spare| spare.borrow_mut().pop()).ok().flatten();
        kept.unwrap_or_else(|| SmallVec::with_capacity(Self::MAX_LEN))
    }

    /// Wraps bytes that are there already. `None` if there are fewer than 6 or more than [`Self::MAX_LEN`].
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

/// How a task is ordered among the others of its task set (SAM-5 §8.6).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum TaskAttribute {
    /// No order among SIMPLE tasks. Also what iSCSI's "untagged" becomes.
    #[default]
    Simple,
    /// Runs after every older task and before every younger one.
    Ordered,
    /// Runs before every task that has not started.
    HeadOfQueue,
    /// Runs under an auto contingent allegiance.
    Aca,
}

/// One SCSI command as a server hands it to a unit.
#[derive(Clone, Debug)]
pub struct Command {
    /// The CDB.
    pub cdb: Cdb,
    /// Its task attribute. Ordering is the server's business; a unit may look.
    pub attribute: TaskAttribute,
    /// Whence it came: initiator port, target port and unit.
    pub nexus: Use<ItlNexus>,
    /// What the initiator calls the task; over iSCSI its Initiator Task Tag. No two tasks of an I_T nexus that are at work at the same
    /// time have the same.
    pub tag: u64,
    /// Bytes that the initiator is ready to send (its expected data-out length); 0 for none.
    pub data_out_len: u64,
    /// Bytes that the initiator has room for (its expected data-in length); 0 for none.
    pub data_in_len: u64,
}

/// What came of a command.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Outcome {
    /// SAM status.
    pub status: Status,
    /// Sense data, for CHECK CONDITION (and where a unit wants to say more with GOOD).
    pub sense: Option<Box<Sense>>,
    /// How many bytes of data-in the CDB called for, whatever the initiator had room for: the server computes residual
    /// overflow and underflow from it (RFC 7143 §11.4.5).
    pub wanted_in: u64,
    /// How many bytes of data-out the CDB called for.
    pub wanted_out: u64,
}

impl Outcome {
    /// GOOD, with nothing moved.
    pub const GOOD: Self = Self { status: Status::Good, sense: None, wanted_in: 0, wanted_out: 0 };

    /// GOOD after a command that called for `bytes` of data-in.
    pub const fn read(bytes: u64) -> Self {
        Self { wanted_in: bytes, ..Self::GOOD }
    }

    /// GOOD after a command that called for `bytes` of data-out.
    pub const fn wrote(bytes: u64) -> Self {
        Self { wanted_out: bytes, ..Self::GOOD }
    }

    /// CHECK CONDITION with `sense`.
    pub fn check(sense: Sense) -> Self {
        Self { status: Status::CheckCondition, sense: Some(Box::new(sense)), ..Self::GOOD }
    }

    /// A bare status.
    pub const fn status(status: Status) -> Self {
        Self { status, ..Self::GOOD }
    }
}

impl From<Sense> for Outcome {
    fn from(sense: Sense) -> Self {
        Self::check(sense)
    }
}
