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
    /// Number of flushes that have failed.
    failures: AtomicU64,
    health: Arc<Health>,
    asynchronous: bool,
}

impl Durability {
    pub(crate) fn new(health: Arc<Health>, asynchronous: bool) -> std::io::Result<Self> {
        let failures = AtomicU64::new(0);
        Ok(Self { verifier: AtomicU64::new(random()?), failures, health, asynchronous })
    }

    /// Differs after a restart, and after each failed flush.
    pub(crate) fn verifier(&self) -> u64 {
        self.verifier.load(Ordering::Acquire)
    }

    /// Number of flushes that have failed: to be read before a change, for [`Self::check`].
    pub(crate) fn failures(&self) -> u64 {
        self.failures.load(Ordering::Acquire)
    }

    /// Checks that no flush of a file has failed since [`Self::failures`] returned `failures`. Call
    /// it after a flush of the file: the system reports lost data to one flush only.
    ///
    /// # Errors
    /// EIO: data written since then may be lost.
    pub(crate) fn check(&self, node: &Node, failures: u64) -> Result<(), TreeError> {
        if node.failed() > failures { Err(TreeError::Io(libc::EIO)) } else { Ok(()) }
    }

    /// Whether nothing is flushed before an answer.
    pub(crate) fn is_asynchronous(&self) -> bool {
        self.asynchronous
    }

    pub(crate) fn health(&self) -> &Arc<Health> {
        &self.health
    }

    /// Records that a flush of a file has failed: written data may be lost.
    #[cold]
    fn lost(&self, node: &Node, error: TreeError) {
        let before = self.verifier();
        // Without randomness, another number is better than none.
        self.verifier.store(random().unwrap_or(before.wrapping_add(1)), Ordering::Release);
        node.fail(self.failures.fetch_add(1, Ordering::AcqRel) + 1);
        self.health.explain(Kind::Write, errno(error), "a flush failed: clients write again what they have");
    }

    /// Flushes a file, with its attributes if `all`, and records the outcome. Blocks.
    pub(crate) fn flush(&self, descriptors: &Descriptors, node: &Node, all: bool) -> Result<(), TreeError> {
        // A flush that succeeds beside one that fails would promise what that one has lost.
        let _alone = node.alone();
        // The flush may not cover writes from here on.
        let written = node.written();
        let flushed = node.flush(descriptors, all);
        if let Err(error) = flushed {
            self.lost(node, error);
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

#[cfg(test)]
mod tests {
    use std::fs::{self, File};
    use std::os::fd::AsFd;

    use tree::NodeId;

    use super::*;
    use crate::stat::Stat;

    #[test]
    fn a_failure_that_one_flush_was_told_counts_for_all_that_was_written_before() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("file");
        fs::write(&path, b"data").unwrap();
        let descriptors = Descriptors::open(File::open(directory.path()).unwrap().into()).unwrap();
        let file = File::open(&path).unwrap();
        let stat = Stat::of(file.as_fd()).unwrap();
        let node = Node::new(NodeId::new(b"file").unwrap(), &stat, None, file.into());
        let durability = Durability::new(Health::new("test"), false).unwrap();
        let (before, verifier) = (durability.failures(), durability.verifier());
        // Files of procfs cannot be flushed.
        let broken = File::open("/proc/self/comm").unwrap();
        node.keep_writer(runtime::File::from_fd(broken.into()).unwrap());
        node.wrote();
        assert!(durability.flush(&descriptors, &node, false).is_err());
        assert!(!node.is_dirty(), "it is known to be lost");
        assert_ne!(durability.verifier(), verifier);
        // The next flush finds nothing wrong.
        assert_eq!(durability.flush(&descriptors, &node, true), Ok(()));
        assert_eq!(durability.check(&node, before), Err(TreeError::Io(libc::EIO)));
        assert_eq!(durability.check(&node, durability.failures()), Ok(()), "what is written now");
    }
}
