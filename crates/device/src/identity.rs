//! What a logical unit of any kind calls itself: vendor, product, revision, serial number and NAA designator, made from a seed
//! where nobody says otherwise, and held against what INQUIRY has room for.

/// A unit's names, as INQUIRY and its VPD pages 80h and 83h tell them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Identity {
    /// T10 VENDOR IDENTIFICATION: up to 8 ASCII characters.
    pub vendor: String,
    /// PRODUCT IDENTIFICATION: up to 16 ASCII characters.
    pub product: String,
    /// PRODUCT REVISION LEVEL: up to 4 ASCII characters.
    pub revision: String,
    /// PRODUCT SERIAL NUMBER: 1 to 64 ASCII characters.
    pub serial: String,
    /// The unit's NAA designator: 8 bytes that begin with 2, 3 or 5, or 16 that begin with 6. Unique, and the same after a
    /// restart: multipathing initiators and EXTENDED COPY know the unit by it.
    pub naa: Vec<u8>,
}

impl Identity {
    /// A product of Stag's, which is not told from others of its kind yet.
    pub fn of(product: &str) -> Self {
        Self {
            vendor: "STAG".into(),
            product: product.into(),
            revision: "0.1".into(),
            serial: "0".into(),
            naa: (3u64 << 60).to_be_bytes().to_vec(),
        }
    }

    /// Serial number and NAA designator made from `seed` (such as target name and LUN, or the file's path): the same seed gives
    /// the same identity on every start.
    #[must_use]
    pub fn seeded(self, seed: &str) -> Self {
        let [a, b] = Self::hashes(seed);
        // NAA 3, locally assigned: for those without a company identifier of IEEE's (SPC-4 §7.8.6.6.4).
        Self { serial: format!("{a:016x}"), naa: (b >> 4 | 3 << 60).to_be_bytes().to_vec(), ..self }
    }

    /// The two numbers that names are made of.
    pub fn hashes(seed: &str) -> [u64; 2] {
        // FNV-1a with two offsets: identity, not security.
        [0xcbf2_9ce4_8422_2325, 0x6c62_272e_07bb_0142].map(|offset| {
            seed.bytes().fold(offset, |h: u64, b| (h ^ u64::from(b)).wrapping_mul(0x0100_0000_01b3))
        })
    }

    /// Whether initiators can be told so.
    ///
    /// # Errors
    /// Says which name cannot be told.
    pub fn check(&self) -> Result<(), IdentityError> {
        for (name, text, max) in [
            ("vendor", &self.vendor, 8),
            ("product", &self.product, 16),
            ("revision", &self.revision, 4),
            ("serial", &self.serial, 64),
        ] {
            IdentityError::unless_ascii(name, text, max)?;
        }
        if self.serial.is_empty() {
            return Err(IdentityError::NoSerial);
        }
        let naa = (self.naa.len(), self.naa.first().map(|byte| byte >> 4));
        if !matches!(naa, (8, Some(2 | 3 | 5)) | (16, Some(6))) {
            return Err(IdentityError::Naa);
        }
        Ok(())
    }
}

/// Why a unit cannot be called so.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum IdentityError {
    /// Too long, or not ASCII.
    #[error("{name} must be ASCII and {max} characters at most")]
    Text {
        /// Which name.
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

impl IdentityError {
    /// Holds a text against what its field has room for.
    ///
    /// # Errors
    /// [`Self::Text`] when it is longer than `max`, or not printable ASCII.
    pub fn unless_ascii(name: &'static str, text: &str, max: usize) -> Result<(), Self> {
        if text.len() <= max && text.bytes().all(|b| b.is_ascii_graphic() || b == b' ') {
            Ok(())
        } else {
            Err(Self::Text { name, max })
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_from_a_seed_are_those_that_initiators_have_remembered_since_the_first_release() {
        let identity = Identity::of("Disk").seeded("/srv/disk.img");
        assert_eq!(identity.serial, "0dc611523028b80c");
        assert_eq!(identity.naa, 0x3306B95EDFEE5D9D_u64.to_be_bytes());
        assert_eq!(identity.check(), Ok(()));
    }

    #[test]
    fn what_inquiry_has_no_room_for_is_refused_by_its_name() {
        let own = || Identity::of("Disk");
        let text = |name, max| Err(IdentityError::Text { name, max });
        let of = |change: fn(&mut Identity)| {
            let mut identity = own();
            change(&mut identity);
            identity.check()
        };
        assert_eq!(of(|i| i.vendor = "ninechars".into()), text("vendor", 8));
        assert_eq!(of(|i| i.product = "caf\u{e9}".into()), text("product", 16));
        assert_eq!(of(|i| i.revision = "0.1.2".into()), text("revision", 4));
        assert_eq!(of(|i| i.serial = "1".repeat(65)), text("serial", 64));
        assert_eq!(of(|i| i.serial.clear()), Err(IdentityError::NoSerial));
        assert_eq!(of(|i| i.naa[0] = 0x60), Err(IdentityError::Naa));
        assert_eq!(of(|i| i.naa.clear()), Err(IdentityError::Naa));
        assert_eq!(of(|i| i.naa = [0x6F; 16].to_vec()), Ok(()));
    }
}
