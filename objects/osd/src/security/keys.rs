//! Keys: master → root → partition → 16 working keys. Each is a pair: the authentication key signs
//! credentials, the generation key derives the keys of the level below.

use arrayvec::ArrayVec;

use super::{Algorithm, Icv, mac};

/// Bytes of a SET KEY's seed.
pub const SEED_LEN: usize = 20;
/// Bytes of a key's identifier.
pub const KEY_ID_LEN: usize = 7;
/// Working keys of a partition.
pub const WORKING_KEYS: usize = 16;

/// A secret of up to 32 bytes. It is overwritten when it is dropped, and never shown.
#[derive(Clone)]
pub struct Key(ArrayVec<u8, 32>);

impl Key {
    /// A key of these bytes; `None` if there are none or more than 32.
    pub fn new(bytes: &[u8]) -> Option<Self> {
        if bytes.is_empty() { None } else { ArrayVec::try_from(bytes).ok().map(Self) }
    }

    /// The bytes.
    pub fn bytes(&self) -> &[u8] {
        &self.0
    }
}

impl From<Icv> for Key {
    fn from(icv: Icv) -> Self {
        Self(icv.0)
    }
}

impl PartialEq for Key {
    /// In constant time, of keys of one length.
    fn eq(&self, other: &Self) -> bool {
        use subtle::ConstantTimeEq;
        self.0.as_slice().ct_eq(other.0.as_slice()).into()
    }
}

impl Eq for Key {}

impl Drop for Key {
    fn drop(&mut self) {
        self.0.fill(0);
        // Keeps the compiler from removing the writes: it must assume that they are read.
        std::hint::black_box(&self.0);
    }
}

impl std::fmt::Debug for Key {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Key(secret)")
    }
}

/// The two halves of a key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeyPair {
    /// Signs credentials.
    pub authentication: Key,
    /// Derives the keys below.
    pub generation: Key,
}

impl KeyPair {
    /// Derives the pair that SET KEY sets from the key above it and the CDB's seed. The
    /// authentication key is the keyed hash of the seed under the parent's generation key. The
    /// generation key is that of the seed with its last bit inverted.
    #[must_use]
    pub fn derive(&self, algorithm: Algorithm, seed: &[u8; SEED_LEN]) -> Self {
        Self::from_secret(algorithm, &self.generation, seed)
    }

    /// Derives a pair from a secret of any length: a seed, or a Diffie-Hellman secret.
    pub fn from_secret(algorithm: Algorithm, key: &Key, secret: &[u8]) -> Self {
        let mut turned = secret.to_vec();
        if let Some(last) = turned.last_mut() {
            *last ^= 1;
        }
        let pair = Self {
            authentication: mac(algorithm, key, &[secret]).into(),
            generation: mac(algorithm, key, &[&turned]).into(),
        };
        turned.fill(0);
        std::hint::black_box(&turned);
        pair
    }

    /// The key that derives a first master key, where there is none to derive it from. It is
    /// public, so all secrecy comes from the Diffie-Hellman exchange.
    pub fn initial() -> Key {
        Key(b"OSD initial master key".iter().copied().collect())
    }

    /// The pair as a unit keeps it: length and bytes of each half.
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(66);
        for half in [&self.authentication, &self.generation] {
            out.push(half.0.len() as u8); // at most 32
            out.extend(half.bytes());
        }
        out
    }

    /// Reads [`Self::to_bytes`]; `None` for anything else.
    pub fn from_bytes(bytes: &[u8]) -> Option<Self> {
        let half = |bytes: &[u8]| -> Option<(Key, usize)> {
            let len = usize::from(*bytes.first()?);
            Some((Key::new(bytes.get(1..=len)?)?, 1 + len))
        };
        let (authentication, first) = half(bytes)?;
        let (generation, second) = half(bytes.get(first..)?)?;
        (bytes.len() == first + second).then_some(Self { authentication, generation })
    }
}
