//! The group's secret, and what is derived from it. It leaves this module only inside of MACs.
//!
//! Each MAC is HMAC-SHA-256 over a label and the transcript of the handshake. The label names the
//! sender's role, so an end never accepts a MAC that it could have made itself. The transcript has
//! a nonce of each end, so a MAC of another connection is worth nothing.

use hmac::Mac as _;
use hmac::digest::KeyInit;

pub(crate) type Mac = hmac::Hmac<sha2::Sha256>;

/// Bytes of a whole MAC.
pub(crate) const MAC: usize = 32;
/// SHA-256's block: HMAC pads a key to it with zeros.
const BLOCK: usize = 64;

/// The claim that a MAC proves.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Label {
    /// The forwarder has the secret.
    Forwarder,
    /// The owner has the secret.
    Owner,
    /// Key of the frames that the forwarder sends.
    FromForwarder,
    /// Key of the frames that the owner sends.
    FromOwner,
    /// Key by which users are recognized.
    Users,
}

impl Label {
    fn bytes(self) -> &'static [u8] {
        match self {
            Self::Forwarder => b"stag peer link: proof of the forwarder\0",
            Self::Owner => b"stag peer link: proof of the owner\0",
            Self::FromForwarder => b"stag peer link: key of the forwarder\0",
            Self::FromOwner => b"stag peer link: key of the owner\0",
            Self::Users => b"stag gateways: key of users\0",
        }
    }
}

/// A secret of the group: random bytes, the same in all gateways.
///
/// A peer that pretends to be an owner gets a MAC of it, by which it can try guesses. So it must be
/// random: `openssl rand -base64 32`.
#[derive(Clone)]
pub struct Secret(Mac);

impl Secret {
    /// The fewest bytes.
    pub const LEAST: usize = 16;
    /// The most bytes.
    pub const MOST: usize = BLOCK;

    /// `None` if there are fewer than [`Self::LEAST`] bytes or more than [`Self::MOST`].
    #[must_use]
    pub fn new(bytes: &[u8]) -> Option<Self> {
        (Self::LEAST..=Self::MOST).contains(&bytes.len()).then(|| Self(keyed(bytes)))
    }

    pub(crate) fn mac(&self, label: Label, transcript: &[&[u8]]) -> Mac {
        let mut mac = self.0.clone();
        mac.update(label.bytes());
        for part in transcript {
            mac.update(part);
        }
        mac
    }

    pub(crate) fn proof(&self, label: Label, transcript: &[&[u8]]) -> [u8; MAC] {
        self.mac(label, transcript).finalize().into_bytes().into()
    }

    /// In a time that does not depend on the bytes.
    pub(crate) fn proves(&self, label: Label, transcript: &[&[u8]], proof: &[u8]) -> bool {
        self.mac(label, transcript).verify_slice(proof).is_ok()
    }

    /// The key by which all gateways recognize users alike.
    #[must_use]
    pub fn users_key(&self) -> [u8; MAC] {
        self.proof(Label::Users, &[])
    }

    /// A key of the connection with this transcript.
    pub(crate) fn key(&self, label: Label, transcript: &[&[u8]]) -> Mac {
        keyed(&self.proof(label, transcript))
    }
}

/// HMAC with a key of at most a block.
fn keyed(key: &[u8]) -> Mac {
    let mut block = [0; BLOCK];
    for (to, from) in block.iter_mut().zip(key) {
        *to = *from;
    }
    <Mac as KeyInit>::new(&block.into())
}

impl PartialEq for Secret {
    /// In a time that does not depend on the bytes.
    fn eq(&self, other: &Self) -> bool {
        self.proves(Label::Forwarder, &[], &other.proof(Label::Forwarder, &[]))
    }
}

impl Eq for Secret {}

impl std::fmt::Debug for Secret {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Secret(…)")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn macs_are_hmac_sha_256() {
        // RFC 4231 §4.2 (test case 1): a key of 20 bytes.
        let mut mac = keyed(&[0x0b; 20]);
        mac.update(b"Hi There");
        let bytes: [u8; MAC] = mac.finalize().into_bytes().into();
        assert_eq!(bytes[..8], [0xb0, 0x34, 0x4c, 0x61, 0xd8, 0xdb, 0x38, 0x53]);
        assert_eq!(bytes[24..], [0x26, 0xe9, 0x37, 0x6c, 0x2e, 0x32, 0xcf, 0xf7]);
    }

    #[test]
    fn a_secret_has_16_to_64_bytes_and_is_never_shown() {
        for (len, fits) in [(0, false), (15, false), (16, true), (64, true), (65, false)] {
            assert_eq!(Secret::new(&vec![7; len]).is_some(), fits, "{len}");
        }
        assert_eq!(format!("{:?}", Secret::new(&[7; 16])), "Some(Secret(…))");
        assert_eq!(Secret::new(&[7; 16]), Secret::new(&[7; 16]));
        assert_ne!(Secret::new(&[7; 16]), Secret::new(&[7; 17]));
    }

    #[test]
    fn a_proof_holds_for_one_role_one_transcript_and_one_secret() {
        let (secret, other) = (Secret::new(&[7; 32]).expect("32"), Secret::new(&[8; 32]).expect("32"));
        let proof = secret.proof(Label::Forwarder, &[b"hello", b"challenge"]);
        assert!(secret.proves(Label::Forwarder, &[b"hello", b"challenge"], &proof));
        assert!(!secret.proves(Label::Owner, &[b"hello", b"challenge"], &proof));
        assert!(!secret.proves(Label::Forwarder, &[b"hello", b"challengf"], &proof));
        assert!(!other.proves(Label::Forwarder, &[b"hello", b"challenge"], &proof));
        assert!(!secret.proves(Label::Forwarder, &[b"hello", b"challenge"], &proof[..31]));
        assert!(!secret.proves(Label::Forwarder, &[b"hello", b"challenge"], b""));
    }
}
