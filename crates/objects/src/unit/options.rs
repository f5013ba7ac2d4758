//! What a unit is told to be when it is made.

use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use device::Persist;
use osd::cdb::Isolation;

/// The time, in milliseconds since 1970 in UTC, as the unit's timestamps are.
pub trait Clock: Send + Sync + 'static {
    /// The present time.
    fn now_ms(&self) -> u64;
}

/// The system's clock.
#[derive(Clone, Copy, Debug, Default)]
pub struct SystemClock;

impl Clock for SystemClock {
    fn now_ms(&self) -> u64 {
        let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
    }
}

/// Identity and manners of an object-based storage device.
#[derive(Clone)]
pub struct OsdOptions {
    /// Nothing can be changed.
    pub read_only: bool,
    /// T10 VENDOR IDENTIFICATION: up to 8 ASCII characters.
    pub vendor: String,
    /// PRODUCT IDENTIFICATION: up to 16 ASCII characters.
    pub product: String,
    /// PRODUCT MODEL: up to 32 ASCII characters.
    pub model: String,
    /// PRODUCT REVISION LEVEL: up to 4 ASCII characters.
    pub revision: String,
    /// PRODUCT SERIAL NUMBER: ASCII.
    pub serial: String,
    /// The unit's NAA designator: 8 bytes that begin with 2, 3 or 5, or 16 that begin with 6. Unique, and the same after a
    /// restart.
    pub naa: Vec<u8>,
    /// OSD SYSTEM ID: what credentials are made for. Unique, and the same after a restart.
    pub system_id: [u8; 20],
    /// What ISOLATION 0 stands for.
    pub isolation: Isolation,
    /// Where APTPL state is kept; without it APTPL=1 is refused.
    pub persist: Option<Arc<dyn Persist>>,
    /// What timestamps and expiry are measured with.
    pub clock: Arc<dyn Clock>,
}

impl Default for OsdOptions {
    fn default() -> Self {
        Self {
            read_only: false,
            vendor: "STAG".into(),
            product: "OSD".into(),
            model: "Object store".into(),
            revision: "0.1".into(),
            serial: "0".into(),
            naa: (3u64 << 60).to_be_bytes().to_vec(),
            system_id: [0; 20],
            isolation: Isolation::None,
            persist: None,
            clock: Arc::new(SystemClock),
        }
    }
}

impl OsdOptions {
    /// Makes serial number, NAA designator and system id from `seed` (such as target name and LUN, or the directory's path):
    /// the same seed gives the same identity on every start.
    #[must_use]
    pub fn with_identity(mut self, seed: &str) -> Self {
        // FNV-1a with several offsets: identity, not security.
        let hash =
            |offset: u64| seed.bytes().fold(offset, |h, b| (h ^ u64::from(b)).wrapping_mul(0x0100_0000_01b3));
        let (a, b) = (hash(0xcbf2_9ce4_8422_2325), hash(0x6c62_272e_07bb_0142));
        // NAA 3, locally assigned: for those without a company identifier of IEEE's (SPC-4 §7.8.6.6.4).
        self.naa = (b >> 4 | 3 << 60).to_be_bytes().to_vec();
        self.serial = format!("{a:016x}");
        // In the form of a designation descriptor: binary, NAA, 16 bytes of which 8 are used.
        self.system_id = [0; 20];
        self.system_id[..4].copy_from_slice(&[0xF1, 0x03, 0x00, 0x10]);
        self.system_id[4..12].copy_from_slice(&self.naa);
        self.system_id[12..].copy_from_slice(&a.to_be_bytes());
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
        for (name, text, max) in [
            ("vendor", &self.vendor, 8),
            ("product", &self.product, 16),
            ("model", &self.model, 32),
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
        if matches!(self.isolation, Isolation::Default | Isolation::Vendor) {
            return Err(OptionError::Isolation);
        }
        Ok(())
    }
}

/// Why options cannot be met.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum OptionError {
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
    /// A default that is itself a default, or not known.
    #[error("the default isolation must be none, strict, range or functional")]
    Isolation,
}
