//! The identity of a logical unit of any kind: vendor, product, revision, and the unique names:
//! serial number and NAA designator. The names are random or derived from a seed, and checked
//! against the sizes of INQUIRY's fields.

/// The names that identify a unit to initiators: VPD pages 80h and 83h.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Names {
    /// PRODUCT SERIAL NUMBER: 1 to 64 ASCII characters.
    pub serial: String,
    /// The NAA designator: 8 bytes that begin with 2, 3 or 5, or 16 that begin with 6.
    pub naa: Vec<u8>,
}

/// The company identifier of [`Names::random`]. It is not from the IEEE, since Stag has none. In
/// the first octet the U/L bit says "locally administered" (IEEE 802 §8.2). The next two bits are
/// 0, which IEEE 802c reserves for administrators, so no company can be assigned it. The other two
/// octets are "ST" in ASCII.
const LOCAL_COMPANY: u128 = 0x02_5354;

impl Names {
    /// Names from a random number. The NAA 6 designator (IEEE Registered Extended, SPC-4
    /// §7.8.6.6.7) has an unassigned company identifier and the lowest 100 bits of `random`. These
    /// bits, as 25 hexadecimal digits, are the serial number too.
    pub fn random(random: u128) -> Self {
        let own = random & ((1 << 100) - 1);
        let naa = 6 << 124 | LOCAL_COMPANY << 100 | own;
        Self { serial: format!("{own:025x}"), naa: naa.to_be_bytes().to_vec() }
    }

    /// Names derived from `seed` (a path, or a target's name and a LUN): the same seed gives the
    /// same names everywhere.
    pub fn derived(seed: &str) -> Self {
        let [a, b] = Identity::hashes(seed);
        // NAA 3, locally assigned: for vendors without an IEEE company identifier (SPC-4
        // §7.8.6.6.4).
        Self { serial: format!("{a:016x}"), naa: (b >> 4 | 3 << 60).to_be_bytes().to_vec() }
    }
}

/// A unit's identity in INQUIRY data and VPD pages 80h and 83h.
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
    /// The unit's NAA designator: 8 bytes that begin with 2, 3 or 5, or 16 that begin with 6. It is
    /// unique and survives restarts: multipath initiators and EXTENDED COPY identify the unit by
    /// it.
    pub naa: Vec<u8>,
}

impl Identity {
    /// A product of Stag, without names that distinguish units.
    pub fn of(product: &str) -> Self {
        Self {
            vendor: "STAG".into(),
            product: product.into(),
            revision: "0.1".into(),
            serial: "0".into(),
            naa: (3u64 << 60).to_be_bytes().to_vec(),
        }
    }

    /// Derives serial number and NAA designator from `seed`, such as target name and LUN, or the
    /// file's path. The same seed gives the same identity on every start.
    #[must_use]
    pub fn seeded(self, seed: &str) -> Self {
        self.named(Names::derived(seed))
    }

    /// The same with these names.
    #[must_use]
    pub fn named(self, Names { serial, naa }: Names) -> Self {
        Self { serial, naa, ..self }
    }

    /// The two numbers from which names are derived.
    pub fn hashes(seed: &str) -> [u64; 2] {
        // FNV-1a with two offsets: for identity, not for security.
        [0xcbf2_9ce4_8422_2325, 0x6c62_272e_07bb_0142].map(|offset| {
            seed.bytes().fold(offset, |h: u64, b| (h ^ u64::from(b)).wrapping_mul(0x0100_0000_01b3))
        })
    }

    /// Checks that the identity fits the fields of INQUIRY.
    ///
    /// # Errors
    /// The name that does not fit.
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

/// Why an identity is invalid.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum IdentityError {
    /// Too long, or not ASCII.
    #[error("{name} must be ASCII and {max} characters at most")]
    Text {
        /// The name of the field.
        name: &'static str,
        /// Its maximum length, characters.
        max: usize,
    },
    /// An empty serial number.
    #[error("the serial number is missing")]
    NoSerial,
    /// Not an NAA designator.
    #[error(
        "the identifier must be an NAA designator: 8 bytes that begin with 2, 3 or 5, or 16 that begin with 6"
    )]
    Naa,
}

impl IdentityError {
    /// Checks a text against the size of its field.
    ///
    /// # Errors
    /// [`Self::Text`] if it is longer than `max`, or not printable ASCII.
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
    fn names_from_a_seed_never_change_between_releases() {
        let identity = Identity::of("Disk").seeded("/srv/disk.img");
        assert_eq!(identity.serial, "0dc611523028b80c");
        assert_eq!(identity.naa, 0x3306B95EDFEE5D9D_u64.to_be_bytes());
        assert_eq!(identity.check(), Ok(()));
    }

    #[test]
    fn random_names_are_locally_administered_naa_6_and_share_their_bits() {
        let names = Names::random(u128::MAX);
        assert_eq!(names.serial, "f".repeat(25));
        assert_eq!(names.naa[..4], [0x60, 0x25, 0x35, 0x4F]);
        let first_octet = names.naa[0] << 4 | names.naa[1] >> 4;
        assert_eq!(first_octet & 0b1111, 0b0010, "locally administered, of no registry");
        let (low, names) = (Names::random(0), Identity::of("Disk").named(names));
        assert_eq!((low.serial.len(), low.naa.len(), names.check()), (25, 16, Ok(())));
        assert_ne!(low.naa, names.naa);
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
