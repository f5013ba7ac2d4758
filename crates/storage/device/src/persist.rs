//! Storage for a few bytes that must outlive the daemon. Their owner defines their meaning.

use std::io;
use std::sync::Weak;

use runtime::Pooled;

/// Storage for a few kilobytes, safe from loss and tearing.
pub trait Persist: Send + Sync + 'static {
    /// Replaces the stored bytes. After it resolves with success, [`Self::load`] returns `bytes`
    /// even after a crash. After an error, either the old or the new bytes are stored. The error's
    /// kind is [`NotConnected`](io::ErrorKind::NotConnected) if this daemon cannot reach the medium,
    /// and another one may.
    fn save(&self, bytes: Vec<u8>) -> Pooled<io::Result<()>>;

    /// The bytes stored last; `None` if there never were any. Blocks: use it only at start-up.
    ///
    /// # Errors
    /// The medium cannot be read, or holds more than `max` bytes.
    fn load(&self, max: usize) -> io::Result<Option<Vec<u8>>>;

    /// Whether what ends with a power loss is kept too, since another gateway goes on with the
    /// unit.
    fn keeps_all(&self) -> bool {
        false
    }

    /// Counts how often another daemon has replaced the stored bytes, as far as this one knows.
    fn epoch(&self) -> u64 {
        0
    }

    /// [`Self::save`], which fails if the epoch is no longer `epoch`.
    fn save_since(&self, _epoch: u64, bytes: Vec<u8>) -> Pooled<io::Result<()>> {
        self.save(bytes)
    }

    /// Has `reload` told what another daemon has stored, before the epoch changes.
    fn on_replaced(&self, _reload: Weak<dyn Reload>) {}
}

/// The owner of stored bytes that another daemon may replace.
pub trait Reload: Send + Sync {
    /// Takes the bytes that are stored now.
    ///
    /// # Errors
    /// They are torn, or not in the owner's format.
    fn reload(&self, bytes: Option<&[u8]>) -> io::Result<()>;
}
