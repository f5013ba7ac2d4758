//! Security of object-based storage as computations: integrity check values, credentials, keys,
//! nonces.
//!
//! A security manager shares keys with a unit. It signs a capability: the signature is the
//! *capability key*, which only the manager, the unit and the client that it is given to know. The
//! client proves with integrity check values that it holds it. This module computes all of these
//! values and compares them in constant time; time, randomness and keys are handed in. The unit
//! decides what it demands and refuses.
//!
//! The standard's text is not public and no open source implements this: where a computation is a
//! decision of this project, `docs/src/objects/security.md` says so, with test vectors.

pub mod credential;
pub mod dh;
pub mod keys;
pub mod nonce;

pub use credential::Credential;
pub use keys::{Key, KeyPair};
pub use nonce::{NonceError, Nonces};

use arrayvec::ArrayVec;
use hmac::{Hmac, Mac};
use subtle::ConstantTimeEq;

use crate::Form;
use crate::bytes::codes;

codes! {
    /// SECURITY METHOD: what a client has to prove, from nothing to everything.
    #[derive(Default)]
    Method: u8 {
        #[default]
        NoSec = 0 "Nothing is proved; capabilities are not looked at.",
        CapKey = 1 "That the client holds the capability's key: for links that are secure themselves.",
        CmdRsp = 2 "That the command is the client's and new.",
        AllData = 3 "That the data is the client's too.",
    }
}

impl Method {
    /// The name in the standard.
    pub const fn name(self) -> &'static str {
        match self {
            Self::NoSec => "NOSEC",
            Self::CapKey => "CAPKEY",
            Self::CmdRsp => "CMDRSP",
            Self::AllData => "ALLDATA",
        }
    }
}

codes! {
    /// INTEGRITY CHECK VALUE ALGORITHM.
    #[non_exhaustive]
    Algorithm: u8 {
        HmacSha1 = 1 "HMAC-SHA1, values of 20 bytes; all that fits CDBs of 200 and 224 bytes.",
        HmacSha256 = 2 "HMAC-SHA-256, values of 32 bytes.",
    }
}

impl Algorithm {
    /// The strongest that a form of CDB has room for.
    pub const fn of_form(form: Form) -> Self {
        match form {
            Form::Osd1 | Form::Osd2Draft => Self::HmacSha1,
            Form::Osd2 => Self::HmacSha256,
        }
    }

    /// Bytes of a value.
    #[expect(clippy::len_without_is_empty, reason = "no value is empty")]
    pub const fn len(self) -> usize {
        match self {
            Self::HmacSha1 => 20,
            Self::HmacSha256 => 32,
        }
    }
}

/// An integrity check value, or another output of [`Hmac`]: 20 or 32 bytes.
#[derive(Clone)]
pub struct Icv(ArrayVec<u8, 32>);

impl Icv {
    /// The bytes.
    pub fn bytes(&self) -> &[u8] {
        &self.0
    }

    /// Whether `field` begins with this value and is zero behind it. Takes the same time whichever
    /// bytes differ.
    pub fn is(&self, field: &[u8]) -> bool {
        let mut whole = [0u8; 32];
        whole[..self.0.len()].copy_from_slice(&self.0);
        // A field of 20 bytes cannot hold a value of 32: bytes without room must be zero, which
        // they are not.
        let mut said = [0u8; 32];
        if field.len() > said.len() || field.len() < self.0.len() {
            return false;
        }
        said[..field.len()].copy_from_slice(field);
        whole.ct_eq(&said).into()
    }

    /// The value in a field of 32 bytes, zeros behind it.
    pub fn field(&self) -> [u8; 32] {
        let mut out = [0; 32];
        out[..self.0.len()].copy_from_slice(&self.0);
        out
    }
}

impl std::fmt::Debug for Icv {
    /// Prints the length but not the value, which may be a key.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Icv({} bytes)", self.0.len())
    }
}

/// A keyed hash at work: takes bytes in any portions.
#[derive(Clone)]
pub struct Keyed(Inner);

#[derive(Clone)]
enum Inner {
    Sha1(Hmac<sha1::Sha1>),
    Sha256(Hmac<sha2::Sha256>),
}

impl Keyed {
    /// Begins with `key`.
    pub fn new(algorithm: Algorithm, key: &Key) -> Self {
        // HMAC takes keys of any length; the fallback cannot be reached and would match nothing.
        let key = key.bytes();
        Self(match algorithm {
            Algorithm::HmacSha1 => Inner::Sha1(
                Hmac::new_from_slice(key)
                    .unwrap_or_else(|_| Hmac::new(&hmac::digest::Key::<Hmac<sha1::Sha1>>::default())),
            ),
            Algorithm::HmacSha256 => Inner::Sha256(
                Hmac::new_from_slice(key)
                    .unwrap_or_else(|_| Hmac::new(&hmac::digest::Key::<Hmac<sha2::Sha256>>::default())),
            ),
        })
    }

    /// Takes more bytes.
    pub fn update(&mut self, bytes: &[u8]) {
        match &mut self.0 {
            Inner::Sha1(mac) => mac.update(bytes),
            Inner::Sha256(mac) => mac.update(bytes),
        }
    }

    /// The value.
    pub fn finish(self) -> Icv {
        let mut out = ArrayVec::new();
        match self.0 {
            Inner::Sha1(mac) => out.extend(mac.finalize().into_bytes()),
            Inner::Sha256(mac) => out.extend(mac.finalize().into_bytes()),
        }
        Icv(out)
    }
}

impl std::fmt::Debug for Keyed {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Keyed")
    }
}

/// The keyed hash of `parts`, one after the other.
pub fn mac(algorithm: Algorithm, key: &Key, parts: &[&[u8]]) -> Icv {
    let mut mac = Keyed::new(algorithm, key);
    parts.iter().for_each(|part| mac.update(part));
    mac.finish()
}

/// REQUEST INTEGRITY CHECK VALUE under CAPKEY: over the security token of VPD page B1h, which the
/// unit ties to the nexus.
pub fn capkey_request(algorithm: Algorithm, capability_key: &Key, token: &[u8]) -> Icv {
    mac(algorithm, capability_key, &[token])
}

/// REQUEST INTEGRITY CHECK VALUE under CMDRSP and ALLDATA: over the CDB with this field zero. `cdb`
/// has as many bytes as `form`; missing ones are left out.
pub fn command_request(algorithm: Algorithm, capability_key: &Key, cdb: &[u8], form: Form) -> Icv {
    let at = form.icv_at().min(cdb.len());
    let end = form.nonce_at().min(cdb.len());
    let whole = form.len().min(cdb.len());
    let zeros = [0; 32];
    mac(algorithm, capability_key, &[&cdb[..at], &zeros[..end - at], &cdb[end..whole]])
}

/// INTEGRITY CHECK VALUE of a CDB continuation: over the request's nonce and the continuation with
/// this field zero.
pub fn continuation(algorithm: Algorithm, capability_key: &Key, nonce: &[u8; 12], bytes: &[u8]) -> Icv {
    let at = crate::continuation::ICV_AT.min(bytes.len());
    let end = crate::continuation::HEADER_LEN.min(bytes.len());
    let zeros = [0; 32];
    mac(algorithm, capability_key, &[nonce, &bytes[..at], &zeros[..end - at], &bytes[end..]])
}

/// RESPONSE INTEGRITY CHECK VALUE: over the request's nonce, the status byte, and the sense data as
/// sent with this field zero (none with GOOD).
pub fn response(
    algorithm: Algorithm,
    capability_key: &Key,
    nonce: &[u8; 12],
    status: u8,
    sense: &[u8],
) -> Icv {
    mac(algorithm, capability_key, &[nonce, &[status], sense])
}

/// Finds the response integrity check value descriptor in descriptor-format sense data: where its
/// value begins, and its length.
pub fn response_icv_in(sense: &[u8]) -> Option<(usize, usize)> {
    let mut at = 8;
    while let (Some(&kind), Some(&len)) = (sense.get(at), sense.get(at + 1)) {
        let len = usize::from(len);
        if at + 2 + len > sense.len() {
            return None;
        }
        if kind == 0x07 {
            return Some((at + 2, len));
        }
        at += 2 + len;
    }
    None
}

/// Whether sense data carries a right response integrity check value.
pub fn check_response(
    algorithm: Algorithm,
    capability_key: &Key,
    nonce: &[u8; 12],
    status: u8,
    sense: &[u8],
) -> bool {
    let Some((at, len)) = response_icv_in(sense) else { return false };
    let mut zeroed = sense.to_vec();
    zeroed[at..at + len].fill(0);
    response(algorithm, capability_key, nonce, status, &zeroed).is(&sense[at..at + len])
}

/// Direction of data, for ALLDATA: distinguishes the values of sent and of received data.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Direction {
    /// Data-In: integrity information has two counts.
    In,
    /// Data-Out: it has three.
    Out,
}

/// ALLDATA's integrity information: counts of bytes, then the value.
///
/// Data-Out: command data (CDB continuation included), set and get attributes; Data-In: command
/// data and retrieved attributes. The value covers nonce, direction, every byte of the buffer
/// before the information (gaps included), and the counts.
#[derive(Debug)]
pub struct Sealer {
    mac: Keyed,
    algorithm: Algorithm,
    direction: Direction,
    len: u64,
}

impl Sealer {
    /// Begins a buffer's value.
    pub fn new(algorithm: Algorithm, capability_key: &Key, nonce: &[u8; 12], direction: Direction) -> Self {
        let mut mac = Keyed::new(algorithm, capability_key);
        mac.update(nonce);
        mac.update(match direction {
            Direction::In => b"I",
            Direction::Out => b"O",
        });
        Self { mac, algorithm, direction, len: 0 }
    }

    /// Takes the next bytes of the buffer.
    pub fn update(&mut self, bytes: &[u8]) {
        self.mac.update(bytes);
        self.len += bytes.len() as u64;
    }

    /// Bytes of the buffer taken so far.
    pub const fn taken(&self) -> u64 {
        self.len
    }

    /// Bytes of the integrity information in direction `direction`.
    pub const fn information_len(algorithm: Algorithm, direction: Direction) -> usize {
        let counts = match direction {
            Direction::In => 2,
            Direction::Out => 3,
        };
        counts * 8 + algorithm.len()
    }

    /// The integrity information; of `counts` Data-In uses the first two.
    pub fn finish(mut self, counts: [u64; 3]) -> Vec<u8> {
        let used = match self.direction {
            Direction::In => &counts[..2],
            Direction::Out => &counts[..],
        };
        let mut out: Vec<u8> = used.iter().flat_map(|count| count.to_be_bytes()).collect();
        self.mac.update(&out);
        out.extend(self.mac.finish().bytes());
        out
    }

    /// Whether `information` is what [`Self::finish`] would give.
    pub fn verify(self, counts: [u64; 3], information: &[u8]) -> bool {
        let len = Self::information_len(self.algorithm, self.direction);
        let Some(said) = information.get(..len) else { return false };
        self.finish(counts).ct_eq(said).into()
    }
}

#[cfg(test)]
mod tests;
