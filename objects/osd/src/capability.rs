//! Capabilities: what a command may do, as the CDB carries them (80 bytes in OSD-1, 104 in OSD-2).
//!
//! Owns the bytes only. Whether a capability permits a command is checked by the unit; whether it
//! is genuine, with [`crate::security`].

use std::fmt;
use std::ops::{BitOr, BitOrAssign};

use crate::bytes::{Fields, put, six};
use crate::{ObjectType, Version};

/// Bytes of a capability.
pub const fn len(version: Version) -> usize {
    match version {
        Version::Osd1 => 80,
        Version::Osd2 => 104,
    }
}

macro_rules! permissions {
    ($($name:ident = $bit:literal $says:literal,)*) => {
        /// The permissions bit mask: bytes 49 and 50 of a capability.
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
        pub struct Permissions(pub u16);

        impl Permissions {
            $(
                #[doc = $says]
                pub const $name: Self = Self($bit);
            )*

            /// The names of the bits, as `stag osd grant` takes them and the standard has them.
            pub const NAMES: [(&'static str, Self); [$($bit),*].len()] = [$((stringify!($name), Self($bit))),*];
        }
    };
}

permissions! {
    READ = 0x8000 "Read data and lists.",
    WRITE = 0x4000 "Write data.",
    GET_ATTR = 0x2000 "Get attributes.",
    SET_ATTR = 0x1000 "Set attributes.",
    CREATE = 0x0800 "Create objects.",
    REMOVE = 0x0400 "Remove objects.",
    OBJ_MGMT = 0x0200 "Format and flush.",
    APPEND = 0x0100 "Append data.",
    DEV_MGMT = 0x0080 "Keys, maps, checks, tunnels.",
    GLOBAL = 0x0040 "The whole unit.",
    POL_SEC = 0x0020 "Policy and security attributes, keys.",
    M_OBJECT = 0x0010 "Many objects in one command (OSD-2).",
    QUERY = 0x0008 "Search by attributes (OSD-2).",
    GBL_REM = 0x0004 "Remove a partition with all that it holds (OSD-2).",
}

impl Permissions {
    /// Nothing is permitted.
    pub const NONE: Self = Self(0);
    /// Everything.
    pub const ALL: Self = Self(0xFFFC);

    /// Whether every permission of `wanted` is among these.
    pub const fn contains(self, wanted: Self) -> bool {
        self.0 & wanted.0 == wanted.0
    }

    /// These and `other`.
    #[must_use]
    pub const fn with(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }
}

impl BitOr for Permissions {
    type Output = Self;
    fn bitor(self, other: Self) -> Self {
        self.with(other)
    }
}

impl BitOrAssign for Permissions {
    fn bitor_assign(&mut self, other: Self) {
        self.0 |= other.0;
    }
}

impl fmt::Display for Permissions {
    /// The names, `+` between them; `none`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut any = false;
        for (name, bit) in Self::NAMES {
            if self.contains(bit) {
                write!(f, "{}{name}", if any { "+" } else { "" })?;
                any = true;
            }
        }
        if any { Ok(()) } else { f.write_str("none") }
    }
}

/// CAPABILITY FORMAT.
pub mod format {
    crate::bytes::constants! { u8:
        NONE = 0 => "No capability.",
        OSD1 = 1 => "OSD-1's.",
        OSD2 = 2 => "OSD-2's.",
    }
}

/// OBJECT DESCRIPTOR TYPE.
pub mod descriptor {
    crate::bytes::constants! { u8:
        NONE = 0 => "None.",
        OBJECT = 1 => "A user object (in OSD-1 a collection too).",
        PARTITION = 2 => "A partition, or the root.",
        COLLECTION = 3 => "A collection (OSD-2).",
    }
}

/// A capability's fields, as sent: nothing is judged when it is read, so that a unit without
/// security can take what initiators without security send.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Capability {
    /// CAPABILITY FORMAT, 4 bits: see [`format`].
    pub format: u8,
    /// KEY VERSION, 4 bits: which working key signed it.
    pub key_version: u8,
    /// INTEGRITY CHECK VALUE ALGORITHM, 4 bits.
    pub integrity_algorithm: u8,
    /// SECURITY METHOD, 4 bits.
    pub security_method: u8,
    /// CAPABILITY EXPIRATION TIME, milliseconds since 1970, 48 bits; 0 never expires.
    pub expires: u64,
    /// AUDIT.
    pub audit: [u8; 20],
    /// CAPABILITY DISCRIMINATOR: makes capabilities different.
    pub discriminator: [u8; 12],
    /// OBJECT CREATED TIME, milliseconds since 1970, 48 bits; 0 is not checked.
    pub created: u64,
    /// OBJECT TYPE: a code of [`ObjectType`], or whatever was sent.
    pub object_type: u8,
    /// PERMISSIONS BIT MASK.
    pub permissions: Permissions,
    /// OBJECT DESCRIPTOR TYPE, 4 bits: see [`descriptor`].
    pub descriptor_type: u8,
    /// ALLOWED ATTRIBUTES ACCESS: 0, or the number of a list in the Attributes Access page (OSD-2).
    pub allowed_attributes: u32,
    /// POLICY ACCESS TAG; 0 is not checked.
    pub policy_tag: u32,
    /// BOOT EPOCH; 0 is not checked (OSD-2).
    pub boot_epoch: u16,
    /// ALLOWED PARTITION_ID.
    pub partition: u64,
    /// ALLOWED OBJECT_ID.
    pub object: u64,
    /// ALLOWED RANGE LENGTH in bytes; 0 with a start of 0 is no restriction (OSD-2).
    pub range_len: u64,
    /// ALLOWED RANGE STARTING BYTE ADDRESS (OSD-2).
    pub range_start: u64,
}

impl Capability {
    /// A capability of `version` that permits everything on the object at `id` and never expires.
    pub fn all(version: Version, object_type: ObjectType, id: crate::Id) -> Self {
        Self {
            format: match version {
                Version::Osd1 => format::OSD1,
                Version::Osd2 => format::OSD2,
            },
            object_type: object_type.code(),
            permissions: Permissions::ALL,
            descriptor_type: match (object_type, version) {
                (ObjectType::Root | ObjectType::Partition, _) => descriptor::PARTITION,
                (ObjectType::Collection, Version::Osd2) => descriptor::COLLECTION,
                _ => descriptor::OBJECT,
            },
            partition: id.partition,
            object: id.object,
            ..Self::default()
        }
    }

    /// Reads the capability of a CDB of `version`. Bytes missing at the end read as zero.
    pub fn decode(bytes: &[u8], version: Version) -> Self {
        let f = Fields(bytes);
        let wide = version == Version::Osd2;
        // Offsets of the descriptor's fields. The lengths differ, and an OSD-1 capability marked as
        // such in an OSD-2 CDB (open-osd sends that) has OSD-2's layout all the same.
        let at = if wide { 56 } else { 52 };
        let ids = if wide { 72 } else { 60 };
        Self {
            format: f.u8(0) & 0x0F,
            key_version: f.u8(1) >> 4,
            integrity_algorithm: f.u8(1) & 0x0F,
            security_method: f.u8(2) & 0x0F,
            expires: f.u48(4),
            audit: f.array(10),
            discriminator: f.array(30),
            created: f.u48(42),
            object_type: f.u8(48),
            permissions: Permissions(f.u16(49)),
            descriptor_type: f.u8(55) >> 4,
            allowed_attributes: if wide { f.u32(at) } else { 0 },
            policy_tag: f.u32(at + 4),
            boot_epoch: if wide { f.u16(64) } else { 0 },
            partition: f.u64(ids),
            object: f.u64(ids + 8),
            range_len: if wide { f.u64(88) } else { 0 },
            range_start: if wide { f.u64(96) } else { 0 },
        }
    }

    /// Writes the capability into `out`, of [`len`] bytes; fields that `version` does not have are
    /// left out.
    pub fn encode(&self, out: &mut [u8], version: Version) {
        out.fill(0);
        put(out, 0, &[self.format & 0x0F, self.key_version << 4 | self.integrity_algorithm & 0x0F]);
        put(out, 2, &[self.security_method & 0x0F]);
        put(out, 4, &six(self.expires));
        put(out, 10, &self.audit);
        put(out, 30, &self.discriminator);
        put(out, 42, &six(self.created));
        put(out, 48, &[self.object_type]);
        put(out, 49, &self.permissions.0.to_be_bytes());
        put(out, 55, &[self.descriptor_type << 4]);
        match version {
            Version::Osd1 => {
                put(out, 56, &self.policy_tag.to_be_bytes());
                put(out, 60, &self.partition.to_be_bytes());
                put(out, 68, &self.object.to_be_bytes());
            }
            Version::Osd2 => {
                put(out, 56, &self.allowed_attributes.to_be_bytes());
                put(out, 60, &self.policy_tag.to_be_bytes());
                put(out, 64, &self.boot_epoch.to_be_bytes());
                put(out, 72, &self.partition.to_be_bytes());
                put(out, 80, &self.object.to_be_bytes());
                put(out, 88, &self.range_len.to_be_bytes());
                put(out, 96, &self.range_start.to_be_bytes());
            }
        }
    }
}
