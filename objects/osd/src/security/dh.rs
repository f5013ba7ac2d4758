//! SET MASTER KEY's Diffie-Hellman exchange, over the 2048-bit MODP group of RFC 3526 §3 (group
//! 14).
//!
//! Owns the arithmetic (by `crypto-bigint`, in constant time) and the exchange's parameter data.
//! Step 0 exchanges public values; step 1 proves that both sides have the same new key, and changes
//! it.

use crypto_bigint::modular::{MontyForm, MontyParams};
use crypto_bigint::{Odd, U256, U2048};

use super::keys::KEY_ID_LEN;
use super::{Algorithm, Icv, Key, KeyPair, mac};
use crate::bytes::Fields;

/// DH_GROUP of the only group that is supported: the number that RFC 3526 gives it.
pub const GROUP: u8 = 14;
/// Bytes of a public value and of the shared secret.
pub const VALUE_LEN: usize = 256;
/// Bytes of step 0's data, in both directions: a length of 4 bytes and the public value.
pub const EXCHANGE_LEN: usize = 4 + VALUE_LEN;

/// 2^2048 - 2^1984 - 1 + 2^64 * (floor(2^1918 * pi) + 124476), RFC 3526 §3. The generator is 2.
const PRIME: U2048 = U2048::from_be_hex(concat!(
    "FFFFFFFFFFFFFFFFC90FDAA22168C234C4C6628B80DC1CD1",
    "29024E088A67CC74020BBEA63B139B22514A08798E3404DD",
    "EF9519B3CD3A431B302B0A6DF25F14374FE1356D6D51C245",
    "E485B576625E7EC6F44C42E9A637ED6B0BFF5CB6F406B7ED",
    "EE386BFB5A899FA5AE9F24117C4B1FE649286651ECE45B3D",
    "C2007CB8A163BF0598DA48361C55D39A69163FA8FD24CF5F",
    "83655D23DCA3AD961C62F356208552BB9ED529077096966D",
    "670C354E4ABC9804F1746C08CA18217C32905E462E36CE3B",
    "E39E772C180E86039B2783A2EC07A28FB5C55DF06F4C52C9",
    "DE2BCBF6955817183995497CEA956AE515D2261898FA0510",
    "15728E5A8AACAA68FFFFFFFFFFFFFFFF",
));

/// A public value that no honest side sends: it would make the secret guessable.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("not a public value of the Diffie-Hellman group")]
pub struct InvalidValue;

/// One side's secret exponent. A power takes time by its length, and it is no longer than it has to
/// be.
pub struct Exponent(U256);

impl Exponent {
    /// Of 32 random bytes: 256 bits are more than twice the group's strength.
    pub fn new(random: [u8; 32]) -> Self {
        Self(U256::from_be_slice(&random))
    }

    /// The public value to send.
    pub fn public(&self) -> [u8; VALUE_LEN] {
        power(&U2048::from_u8(2), &self.0)
    }

    /// The secret that both sides share, from the other's public value.
    ///
    /// # Errors
    /// The value is not between 2 and the prime less 2.
    pub fn shared(&self, other: &[u8; VALUE_LEN]) -> Result<[u8; VALUE_LEN], InvalidValue> {
        let other = U2048::from_be_slice(other);
        if other <= U2048::ONE || other >= PRIME.wrapping_sub(&U2048::ONE) {
            return Err(InvalidValue);
        }
        Ok(power(&other, &self.0))
    }
}

impl std::fmt::Debug for Exponent {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Exponent(secret)")
    }
}

fn power(base: &U2048, exponent: &U256) -> [u8; VALUE_LEN] {
    // The prime is odd. Zero, which is not, would be a mistake in the constant.
    let Some(prime) = Option::<Odd<U2048>>::from(Odd::new(PRIME)) else { return [0; VALUE_LEN] };
    MontyForm::new(base, MontyParams::new_vartime(prime)).pow(exponent).retrieve().to_be_bytes()
}

/// Step 0's data: the public value behind its length.
pub fn exchange(public: &[u8; VALUE_LEN]) -> Vec<u8> {
    let mut out = (VALUE_LEN as u32).to_be_bytes().to_vec();
    out.extend(public);
    out
}

/// The public value in step 0's data; `None` when it is of another length.
pub fn parse_exchange(bytes: &[u8]) -> Option<[u8; VALUE_LEN]> {
    let f = Fields(bytes);
    if bytes.len() < EXCHANGE_LEN || f.u32(0) as usize != VALUE_LEN {
        return None;
    }
    Some(f.array(4))
}

/// The new master key, from the shared secret and the old master key's generation half; from
/// [`KeyPair::initial`] where there is no old one.
pub fn master(algorithm: Algorithm, old: Option<&KeyPair>, shared: &[u8; VALUE_LEN]) -> KeyPair {
    match old {
        Some(old) => KeyPair::from_secret(algorithm, &old.generation, shared),
        None => KeyPair::from_secret(algorithm, &KeyPair::initial(), shared),
    }
}

/// Step 1's data: the initiator's proof that it has the new key, over the key's identifier.
pub fn confirmation(algorithm: Algorithm, new: &Key, key_id: &[u8; KEY_ID_LEN]) -> Icv {
    mac(algorithm, new, &[b"OSD change master key", key_id])
}
