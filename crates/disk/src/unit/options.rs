//! What a disk is told to be when it is made.

use std::sync::Arc;

use super::Persist;

/// Identity, limits and modes of a disk.
#[derive(Clone)]
pub struct DiskOptions {
    /// Bytes of a logical block: 512, 1024, 2048 or 4096.
    pub block_size: u32,
    /// LOGICAL BLOCKS PER PHYSICAL BLOCK EXPONENT, 0 to 15.
    pub physical_block_exponent: u8,
    /// Nothing can be written.
    pub read_only: bool,
    /// The medium can be ejected and loaded.
    pub removable: bool,
    /// UNMAP and WRITE SAME may deallocate; what is deallocated reads as zeros. Needs a store that is thin.
    pub thin: bool,
    /// WCE at power on: writes may stay in a volatile cache until SYNCHRONIZE CACHE or FUA.
    pub write_cache: bool,
    /// T10 VENDOR IDENTIFICATION: up to 8 ASCII characters.
    pub vendor: String,
    /// PRODUCT IDENTIFICATION: up to 16 ASCII characters.
    pub product: String,
    /// PRODUCT REVISION LEVEL: up to 4 ASCII characters.
    pub revision: String,
    /// PRODUCT SERIAL NUMBER: ASCII.
    pub serial: String,
    /// The unit's NAA designator: 8 bytes that begin with 2, 3 or 5, or 16 that begin with 6. Unique, and the same after a
    /// restart: multipathing initiators and EXTENDED COPY know the unit by it.
    pub naa: Vec<u8>,
    /// Where APTPL state is kept; without it APTPL=1 is refused.
    pub persist: Option<Arc<dyn Persist>>,
    /// The most that SANITIZE writes in a second, so that it does not starve what else the daemon serves; `None` for as
    /// fast as the medium goes.
    pub sanitize_bytes_per_s: Option<u64>,
    /// Soft thresholds of a thin unit: what initiators are warned of. MODE SELECT may change them.
    pub thresholds: Thresholds,
}

/// Soft thresholds, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Thresholds {
    /// Reached when no more than this can still be allocated.
    pub available: Option<u64>,
    /// Reached when at least this is allocated.
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
            vendor: "STAG".into(),
            product: "Disk".into(),
            revision: "0.1".into(),
            serial: "0".into(),
            naa: (3u64 << 60).to_be_bytes().to_vec(),
            persist: None,
            sanitize_bytes_per_s: None,
            thresholds: Thresholds::default(),
        }
    }
}

impl DiskOptions {
    /// Makes serial number and NAA designator from `seed` (such as target name and LUN, or the file's path): the same seed
    /// gives the same identity on every start.
    #[must_use]
    pub fn with_identity(mut self, seed: &str) -> Self {
        // FNV-1a with two offsets: identity, not security.
        let hash =
            |offset: u64| seed.bytes().fold(offset, |h, b| (h ^ u64::from(b)).wrapping_mul(0x0100_0000_01b3));
        let (a, b) = (hash(0xcbf2_9ce4_8422_2325), hash(0x6c62_272e_07bb_0142));
        // NAA 3, locally assigned: for those without a company identifier of IEEE's (SPC-4 §7.8.6.6.4).
        self.naa = (b >> 4 | 3 << 60).to_be_bytes().to_vec();
        self.serial = format!("{a:016x}");
        self
    }

    /// Whether the options can be met.
    ///
    /// # Errors
    /// Says which cannot.
    pub fn check(&self) -> Result<(), OptionError> {
        let ascii = |text: &str, max: usize| {
            text.len() <= max && text.bytes().all(|b| b.is_ascii_graphic() || b == b' ')
        };
        if !matches!(self.block_size, 512 | 1024 | 2048 | 4096) {
            return Err(OptionError::BlockSize(self.block_size));
        }
        if self.physical_block_exponent > 15 {
            return Err(OptionError::Exponent(self.physical_block_exponent));
        }
        for (name, text, max) in [
            ("vendor", &self.vendor, 8),
            ("product", &self.product, 16),
            ("revision", &self.revision, 4),
            ("serial", &self.serial, 64),
        ] {
            if !ascii(text, max) {
                return Err(OptionError::Text { name, max });
            }
        }
        if self.serial.is_empty() {
            return Err(OptionError::NoSerial);
        }
        let naa = (self.naa.len(), self.naa.first().map(|byte| byte >> 4));
        if !matches!(naa, (8, Some(2 | 3 | 5)) | (16, Some(6))) {
            return Err(OptionError::Naa);
        }
        Ok(())
    }
}

/// Why options cannot be met.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum OptionError {
    /// Not a power of two from 512 to 4096.
    #[error("the block size is {0}, but must be 512, 1024, 2048 or 4096")]
    BlockSize(u32),
    /// More than 15.
    #[error("the physical block exponent is {0}, but must be 15 at most")]
    Exponent(u8),
    /// Too long, or not ASCII.
    #[error("{name} must be ASCII and {max} characters at most")]
    Text {
        /// Which option.
        name: &'static str,
        /// How long it may be.
        max: usize,
    },
    /// An empty serial number.
    #[error("a serial number is needed")]
    NoSerial,
    /// Not an NAA designator.
    #[error(
        "the identifier must be an NAA designator: 8 bytes that begin with 2, 3 or 5, or 16 that begin with 6"
    )]
    Naa,
}
