//! Credentials: a capability, the unit it is for, and the capability key that proves it.

use super::{Algorithm, Key, mac};
use crate::{Capability, Version, capability};

/// Bytes of an OSD SYSTEM ID.
pub const SYSTEM_ID_LEN: usize = 20;

/// A credential: a security manager issues it to a client.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Credential {
    /// Version of its capability's layout.
    pub version: Version,
    /// The client's permissions.
    pub capability: Capability,
    /// OSD SYSTEM ID of the unit that takes it.
    pub system_id: [u8; SYSTEM_ID_LEN],
    /// The capability key: a secret of the client's.
    pub key: Key,
}

/// The capability key: the keyed hash of the capability and the unit's id, under the authentication
/// key that the capability's KEY VERSION names. `capability` is as in the CDB.
pub fn capability_key(
    algorithm: Algorithm,
    authentication: &Key,
    capability: &[u8],
    system_id: &[u8; SYSTEM_ID_LEN],
) -> Key {
    mac(algorithm, authentication, &[capability, system_id]).into()
}

impl Credential {
    /// Signs `capability`. `None` when it names no algorithm that is known.
    pub fn sign(
        version: Version,
        capability: Capability,
        system_id: [u8; SYSTEM_ID_LEN],
        authentication: &Key,
    ) -> Option<Self> {
        let algorithm = Algorithm::from_code(capability.integrity_algorithm)?;
        let mut bytes = [0; 104];
        let bytes = &mut bytes[..capability::len(version)];
        capability.encode(bytes, version);
        let key = capability_key(algorithm, authentication, bytes, &system_id);
        // As the unit will read it: without what the version has no field for.
        let capability = Capability::decode(bytes, version);
        Some(Self { version, capability, system_id, key })
    }

    /// The algorithm of its values; `None` when the capability names none that is known.
    pub fn algorithm(&self) -> Option<Algorithm> {
        Algorithm::from_code(self.capability.integrity_algorithm)
    }

    /// Capability, system id and key, one after the other.
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut out = vec![0; capability::len(self.version)];
        self.capability.encode(&mut out, self.version);
        out.extend(self.system_id);
        out.extend(self.key.bytes());
        out
    }

    /// Reads [`Self::to_bytes`]; the length determines the version. `None` for anything else.
    pub fn from_bytes(bytes: &[u8]) -> Option<Self> {
        let version = match bytes.len() {
            120 | 132 => Version::Osd1,
            144 | 156 => Version::Osd2,
            _ => return None,
        };
        let (capability, rest) = bytes.split_at_checked(capability::len(version))?;
        let (system_id, key) = rest.split_first_chunk()?;
        let found = Self {
            version,
            capability: Capability::decode(capability, version),
            system_id: *system_id,
            key: Key::new(key)?,
        };
        (found.algorithm()?.len() == key.len()).then_some(found)
    }
}
