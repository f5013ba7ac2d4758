//! [`Durability`]: the promises that data is on the medium. Owns the verifier, the reports of a
//! failing medium, and the decision to leave a flush out.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use backing::Health;
use backing::health::Kind;
use tree::TreeError;

use crate::node::{Descriptors, Node};

/// Durability of the answers given.
pub(crate) struct Durability {
    verifier: AtomicU64,
    health: Arc<Health>,
    asynchronous: bool,
}

impl Durability {
    pub(crate) fn new(health: Arc<Health>, asynchronous: bool) -> std::io::Result<Self> {
        Ok(Self { verifier: AtomicU64::new(random()?), health, asynchronous })
    }

    /// Differs after a restart, and after each failed flush.
    pub(crate) fn verifier(&self) -> u64 {
        self.verifier.load(Ordering::Acquire)
    }

    /// Whether nothing is flushed before an answer.
    pub(crate) fn is_asynchronous(&self) -> bool {
        self.asynchronous
    }

    pub(crate) fn health(&self) -> &Arc<Health> {
        &self.health
    }

    /// Records that a flush has failed: written data may be lost.
    #[cold]
    fn lost(&self, error: TreeError) {
        let before = self.verifier();
        // Without randomness, another number is better than none.
        self.verifier.store(random().unwrap_or(before.wrapping_add(1)), Ordering::Release);
        self.health.explain(Kind::Write, errno(error), "a flush failed: clients write again what they have");
    }

    /// Flushes a file, with its attributes if `all`, and records the outcome. Blocks.
    pub(crate) fn flush(&self, descriptors: &Descriptors, node: &Node, all: bool) -> Result<(), TreeError> {
        // The flush may not cover writes from here on.
        let written = node.written();
        let flushed = node.flush(descriptors, all);
        if let Err(error) = flushed {
            self.lost(error);
        }
        // Only now: a thread that finds nothing to flush must find the new verifier.
        node.settle(written);
        flushed
    }

    /// Reports an operation that the medium failed. Returns the error.
    pub(crate) fn report(&self, error: TreeError, write: bool) -> TreeError {
        if matches!(error, TreeError::Io(_) | TreeError::NoSpace) {
            self.health.report(Kind::of_errno(errno(error), write), errno(error), None);
        }
        error
    }
}

fn random() -> std::io::Result<u64> {
    let mut bytes = [0; 8];
    runtime::random(&mut bytes)?;
    Ok(u64::from_ne_bytes(bytes))
}

fn errno(error: TreeError) -> i32 {
    match error {
        TreeError::NoSpace => libc::ENOSPC,
        TreeError::Io(errno) => errno,
        _ => libc::EIO,
    }
}
