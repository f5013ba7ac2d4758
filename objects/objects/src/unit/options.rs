//! The options of a new unit.

use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use device::{Identity, IdentityError, Names, Persist};
use osd::cdb::Isolation;

/// The time, in milliseconds since 1970 in UTC, as the unit's timestamps are.
pub trait Clock: Send + Sync + 'static {
    fn now_ms(&self) -> u64;
}

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
    pub read_only: bool,
    pub identity: Identity,
    /// PRODUCT MODEL, an attribute: up to 32 ASCII characters.
    pub model: String,
    /// OSD SYSTEM ID: credentials are made for it. Unique, and the same after a restart.
    pub system_id: [u8; 20],
    /// The isolation method for ISOLATION 0.
    pub isolation: Isolation,
    /// Store of APTPL state; without it APTPL=1 is refused.
    pub persist: Option<Arc<dyn Persist>>,
    /// The clock of timestamps and expiry.
    pub clock: Arc<dyn Clock>,
}

impl Default for OsdOptions {
    fn default() -> Self {
        Self {
            read_only: false,
            identity: Identity::of("OSD"),
            model: "Object store".into(),
            system_id: [0; 20],
            isolation: Isolation::None,
            persist: None,
            clock: Arc::new(SystemClock),
        }
    }
}

impl OsdOptions {
    /// Makes serial number, NAA designator and system id from `seed` (such as target name and LUN,
    /// or the directory's path): the same seed gives the same identity on every start.
    #[must_use]
    pub fn with_identity(self, seed: &str) -> Self {
        self.with_names(Names::derived(seed))
    }

    /// The same with these names, and the system id that the designator makes: the form of a
    /// designation descriptor of 16 bytes, binary, NAA.
    #[must_use]
    pub fn with_names(mut self, names: Names) -> Self {
        self.system_id = [0; 20];
        self.system_id[..4].copy_from_slice(&[0xF1, 0x03, 0x00, 0x10]);
        for (to, from) in self.system_id[4..].iter_mut().zip(&names.naa) {
            *to = *from;
        }
        // Behind a designator of 8 bytes stands the serial number that was made with it, where that
        // is a number.
        if let (8, Ok(number)) = (names.naa.len(), u64::from_str_radix(&names.serial, 16)) {
            self.system_id[12..].copy_from_slice(&number.to_be_bytes());
        }
        self.identity = self.identity.named(names);
        self
    }

    /// Whether the options can be met.
    ///
    /// # Errors
    /// Says which cannot.
    pub fn check(&self) -> Result<(), OptionError> {
        self.identity.check()?;
        IdentityError::unless_ascii("model", &self.model, 32)?;
        if matches!(self.isolation, Isolation::Default | Isolation::Vendor) {
            return Err(OptionError::Isolation);
        }
        Ok(())
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum OptionError {
    /// A name that INQUIRY or the attributes cannot tell.
    #[error(transparent)]
    Identity(#[from] IdentityError),
    /// A default that is itself a default, or not known.
    #[error("the default isolation must be none, strict, range or functional")]
    Isolation,
}
