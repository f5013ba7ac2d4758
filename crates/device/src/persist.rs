//! A place for the few bytes that must outlive the daemon. What they mean is their owner's business.

use std::io;

use ring::Pooled;

/// A place for a few kilobytes that must not be lost or torn.
pub trait Persist: Send + Sync + 'static {
    /// Replaces what is kept. When this resolves well, `bytes` is what [`Self::load`] gives after a crash at any moment
    /// from then on; when it fails, either the old or the new bytes are.
    fn save(&self, bytes: Vec<u8>) -> Pooled<io::Result<()>>;

    /// What was kept last; `None` if nothing ever was. Blocks: for start-up only.
    ///
    /// # Errors
    /// When the medium cannot be read, or holds more than `max` bytes.
    fn load(&self, max: usize) -> io::Result<Option<Vec<u8>>>;
}
