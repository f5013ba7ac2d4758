//! The options with which a disk is created.

use std::sync::Arc;

use device::{Identity, IdentityError};

use super::Persist;

/// Identity, limits and modes of a disk.
#[derive(Clone)]
pub struct DiskOptions {
    /// Bytes of a logical block: 512, 1024, 2048 or 4096.
    pub block_size: u32,
    /// LOGICAL BLOCKS PER PHYSICAL BLOCK EXPONENT, 0 to 15.
    pub physical_block_exponent: u8,
    /// The unit rejects writes.
    pub read_only: bool,
    /// The medium can be ejected and loaded.
    pub removable: bool,
    /// UNMAP and WRITE SAME may deallocate; deallocated blocks read as zeros. Requires a thin
    /// store.
    pub thin: bool,
    /// WCE at power on: writes may stay in a volatile cache until SYNCHRONIZE CACHE or FUA.
    pub write_cache: bool,
    /// Vendor, product, revision and names for INQUIRY.
    pub identity: Identity,
    /// Storage for APTPL state; without it APTPL=1 is rejected.
    pub persist: Option<Arc<dyn Persist>>,
    /// Storage for the record of a sanitize. Without it one that the daemon's end cut off is
    /// forgotten, and one that failed, unless the next daemon is told.
    pub sanitize_record: Option<Arc<dyn Persist>>,
    /// Maximum rate of SANITIZE in bytes per second, so that it does not starve the daemon's other
    /// work. `None` for no limit.
    pub sanitize_bytes_per_s: Option<u64>,
    /// Soft thresholds of a thin unit, of which initiators are warned. MODE SELECT may change them.
    pub thresholds: Thresholds,
}

/// Soft thresholds, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Thresholds {
    /// Reached when this many bytes or fewer can still be allocated.
    pub available: Option<u64>,
    /// Reached when at least this many bytes are allocated.
    pub used: Option<u64>,
}

impl Default for DiskOptions {
    fn default() -> Self {
        Self {
            block_size: 512,
            physical_block_exponent: 3,
            read_only: false,
            removable: false,
            thin: false,
            write_cache: true,
            identity: Identity::of("Disk"),
            persist: None,
            sanitize_record: None,
            sanitize_bytes_per_s: None,
            thresholds: Thresholds::default(),
        }
    }
}

impl DiskOptions {
    /// The same options with a serial number and an NAA designator from `seed`: see
    /// [`Identity::seeded`].
    #[must_use]
    pub fn with_identity(self, seed: &str) -> Self {
        Self { identity: self.identity.seeded(seed), ..self }
    }

    /// Checks that the options are valid.
    ///
    /// # Errors
    /// The invalid option.
    pub fn check(&self) -> Result<(), OptionError> {
        if !matches!(self.block_size, 512 | 1024 | 2048 | 4096) {
            return Err(OptionError::BlockSize(self.block_size));
        }
        if self.physical_block_exponent > 15 {
            return Err(OptionError::Exponent(self.physical_block_exponent));
        }
        Ok(self.identity.check()?)
    }
}

/// Why options are invalid.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum OptionError {
    /// Not a power of two from 512 to 4096.
    #[error("the block size is {0}, but must be 512, 1024, 2048 or 4096")]
    BlockSize(u32),
    /// More than 15.
    #[error("the physical block exponent is {0}, but must be 15 at most")]
    Exponent(u8),
    /// A name that does not fit INQUIRY.
    #[error(transparent)]
    Identity(#[from] IdentityError),
}
