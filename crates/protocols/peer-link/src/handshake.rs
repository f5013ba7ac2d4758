//! The handshake of a connection: who each end is, which version they speak, and proofs that both
//! have the group's secret.
//!
//! Four messages. Each has a head of 12 bytes: `stagpeer`, the kind (1), a zero (1), and the length
//! of the rest (2), at most 512.
//!
//! Kind and message, sender: the rest.
//!
//! - 1 Hello, forwarder: oldest and newest version (2 + 2), number of the secret (4), gateway (2),
//!   channel (2), instance (8), the owner's instance (8), nonce (32), piece (4).
//! - 2 Challenge, owner: version (2), gateway (2), instance (8), nonce (32), piece (4), commands
//!   (2), nexuses (4), unsolicited (4).
//! - 3 Proof, forwarder: MAC (32) over label, Hello, Challenge and what follows.
//! - 4 Accept, owner: MAC (32) over label, Hello, Challenge, Proof and what follows; flags (1): bit
//!   0, the owner remembers this forwarder; token (8).
//! - 5 Refusal, owner: reason (2).
//!
//! A receiver ignores what follows the fields that it knows, but each MAC covers it. The owner
//! chooses the newest version that both speak, and the MACs cover both offers, so nobody on the way
//! makes them speak an older one. The forwarder proves first: whoever can only connect to a gateway
//! gets no MAC to try guesses of the secret by.
//!
//! A Refusal has no MAC, since the two may have no secret in common. It says why there is no
//! connection, and never what became of a command.

use std::ops::RangeInclusive;

use crate::frame::Keys;
use crate::limits::Limits;
use crate::secret::{Label, MAC, Secret};
use crate::wire::{Reader, Violation};

const MAGIC: &[u8; 8] = b"stagpeer";
const HEAD: usize = 12;
/// The most bytes behind a head.
const MOST: usize = 512;
/// Bytes of a nonce.
pub const NONCE: usize = 32;

const HELLO: u8 = 1;
const CHALLENGE: u8 = 2;
const PROOF: u8 = 3;
const ACCEPT: u8 = 4;
const REFUSAL: u8 = 5;

/// Why there is no connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum HandshakeError {
    /// The peer speaks another protocol.
    #[error("the peer is no gateway: it does not speak this protocol")]
    Foreign,
    /// A message is malformed.
    #[error("the peer's handshake is malformed: {0}")]
    Malformed(&'static str),
    /// The peer does not have the secret.
    #[error("the peer could not prove that it has the group's secret: give all gateways the same one")]
    Proof,
    /// The owner has chosen a version that was not offered.
    #[error("the peer chose version {0}, which was not offered")]
    Version(u16),
    /// Another gateway or another life of it has answered.
    #[error("another gateway answers at this address, or another life of it")]
    Other,
    /// The owner refuses. Not proven: it may be said by anybody.
    #[error("the peer refuses: {0}")]
    Refused(Reason),
}

/// Why an owner refuses a forwarder.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reason {
    /// No version in common.
    Version,
    /// The owner does not have this secret.
    Secret,
    /// The forwarder's instance is no member of the group.
    NoMember,
    /// The owner is another instance than the one named.
    OtherInstance,
    /// It has no room for another forwarder now.
    Busy,
    /// One of a newer release.
    Unknown(u16),
}

impl Reason {
    fn code(self) -> u16 {
        match self {
            Self::Version => 1,
            Self::Secret => 2,
            Self::NoMember => 3,
            Self::OtherInstance => 4,
            Self::Busy => 5,
            Self::Unknown(code) => code,
        }
    }

    fn from_code(code: u16) -> Self {
        match code {
            1 => Self::Version,
            2 => Self::Secret,
            3 => Self::NoMember,
            4 => Self::OtherInstance,
            5 => Self::Busy,
            code => Self::Unknown(code),
        }
    }
}

impl std::fmt::Display for Reason {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Version => f.write_str("it speaks none of this gateway's versions of the protocol"),
            Self::Secret => f.write_str("it does not have the secret that the group uses"),
            Self::NoMember => f.write_str("it does not know this gateway as a member"),
            Self::OtherInstance => f.write_str("it is another life of that gateway"),
            Self::Busy => f.write_str("it has no room for another connection"),
            Self::Unknown(code) => write!(f, "reason {code}, of a newer release"),
        }
    }
}

/// A forwarder's identity, and its offer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Own {
    /// Its name in the group.
    pub gateway: u16,
    /// This life of it.
    pub instance: u64,
    /// Which of several links between the two: one a core, for instance.
    pub channel: u16,
    /// The life of the owner that is meant.
    pub owner: u64,
    /// The versions that it speaks: at most what the group has agreed on.
    pub versions: RangeInclusive<u16>,
    /// The number of the secret.
    pub secret: u32,
    /// Most bytes of data in one frame to it.
    pub piece: u32,
}

/// The same as the owner has received it, without a proof yet.
pub type Claim = Own;

/// The owner's answer, with its proof checked.
#[derive(Debug)]
pub struct Welcome {
    /// The owner's name in the group.
    pub gateway: u16,
    /// The version of the connection.
    pub version: u16,
    /// The owner's limits.
    pub limits: Limits,
    /// The owner remembers this forwarder.
    pub remembers: bool,
    /// The owner's time.
    pub token: u64,
    /// For the frames.
    pub keys: Keys,
}

/// One message of a handshake, put together of what arrives.
#[derive(Debug, Default)]
struct Inbox(Vec<u8>);

impl Inbox {
    /// Takes no byte behind the message. The whole message, its kind and what is behind its head.
    fn take(&mut self, input: &mut &[u8]) -> Result<Option<(u8, Vec<u8>)>, HandshakeError> {
        loop {
            let need = match self.0.get(..HEAD) {
                None => HEAD,
                Some(head) => HEAD + usize::from(u16::from_be_bytes([head[10], head[11]])),
            };
            if self.0.len() == need && need > HEAD {
                return Ok(Some((self.0[8], std::mem::take(&mut self.0))));
            }
            let part = input.len().min(need - self.0.len());
            if part == 0 {
                return Ok(None);
            }
            self.0.extend_from_slice(&input[..part]);
            *input = &input[part..];
            let seen = self.0.len().min(MAGIC.len());
            if self.0[..seen] != MAGIC[..seen] {
                return Err(HandshakeError::Foreign);
            }
            if let Some(head) = self.0.get(..HEAD) {
                let len = usize::from(u16::from_be_bytes([head[10], head[11]]));
                if len == 0 || len > MOST {
                    return Err(HandshakeError::Malformed("a length"));
                }
            }
        }
    }
}

fn message(kind: u8, rest: &[u8]) -> Vec<u8> {
    let mut bytes = MAGIC.to_vec();
    bytes.extend([kind, 0]);
    bytes.extend((rest.len() as u16).to_be_bytes());
    bytes.extend(rest);
    bytes
}

/// With its MAC in front of `rest`.
fn proven(kind: u8, secret: &Secret, label: Label, before: &[&[u8]], rest: &[u8]) -> Vec<u8> {
    let proof = secret.proof(label, &[before, &[rest]].concat());
    message(kind, &[&proof, rest].concat())
}

fn malformed(violation: Violation) -> HandshakeError {
    match violation {
        Violation::Malformed { what, .. } => HandshakeError::Malformed(what),
        _ => HandshakeError::Malformed("a message"),
    }
}

fn reader(kind: u8, bytes: &[u8]) -> Reader<'_> {
    Reader { kind, bytes: bytes.get(HEAD..).unwrap_or_default() }
}

/// The forwarder's part.
#[derive(Debug)]
pub struct Calling {
    own: Own,
    secret: Secret,
    inbox: Inbox,
    hello: Vec<u8>,
    /// The Challenge, what it says, and the Proof.
    answered: Option<(Vec<u8>, Challenge, Vec<u8>)>,
}

#[derive(Clone, Copy, Debug)]
struct Challenge {
    version: u16,
    gateway: u16,
    limits: Limits,
}

impl Calling {
    /// Begins. `nonce` is random, and used once. Appends to `out` what is to be sent.
    pub fn open(own: Own, secret: &Secret, nonce: [u8; NONCE], out: &mut Vec<u8>) -> Self {
        let mut rest = Vec::new();
        rest.extend(own.versions.start().to_be_bytes());
        rest.extend(own.versions.end().to_be_bytes());
        rest.extend(own.secret.to_be_bytes());
        rest.extend(own.gateway.to_be_bytes());
        rest.extend(own.channel.to_be_bytes());
        rest.extend(own.instance.to_be_bytes());
        rest.extend(own.owner.to_be_bytes());
        rest.extend(nonce);
        rest.extend(own.piece.to_be_bytes());
        let hello = message(HELLO, &rest);
        out.extend(&hello);
        Self { own, secret: secret.clone(), inbox: Inbox::default(), hello, answered: None }
    }

    /// Takes what has come, and no byte behind the handshake. `None` while more has to come.
    ///
    /// # Errors
    /// There is no connection.
    pub fn advance(
        &mut self,
        input: &mut &[u8],
        out: &mut Vec<u8>,
    ) -> Result<Option<Welcome>, HandshakeError> {
        while let Some((kind, bytes)) = self.inbox.take(input)? {
            match (kind, self.answered.take()) {
                (REFUSAL, _) => {
                    let code = reader(kind, &bytes).u16("a reason").map_err(malformed)?;
                    return Err(HandshakeError::Refused(Reason::from_code(code)));
                }
                (CHALLENGE, None) => self.challenged(bytes, out)?,
                (ACCEPT, Some((challenge, said, proof))) => {
                    return self.accepted(&bytes, &challenge, said, &proof).map(Some);
                }
                _ => return Err(HandshakeError::Malformed("the order of messages")),
            }
        }
        Ok(None)
    }

    fn challenged(&mut self, bytes: Vec<u8>, out: &mut Vec<u8>) -> Result<(), HandshakeError> {
        let mut fields = reader(CHALLENGE, &bytes);
        let read = |fields: &mut Reader<'_>| {
            let (version, gateway) = (fields.u16("a version")?, fields.u16("a gateway")?);
            let instance = fields.u64("an instance")?;
            fields.take(NONCE, "a nonce")?;
            let limits = Limits {
                piece: fields.u32("a piece")?,
                commands: fields.u16("commands")?,
                nexuses: fields.u32("nexuses")?,
                unsolicited: fields.u32("unsolicited bytes")?,
            };
            Ok((instance, Challenge { version, gateway, limits }))
        };
        let (instance, said) = read(&mut fields).map_err(malformed)?;
        if !self.own.versions.contains(&said.version) {
            return Err(HandshakeError::Version(said.version));
        }
        if instance != self.own.owner || instance == self.own.instance {
            return Err(HandshakeError::Other);
        }
        if !said.limits.fit() {
            return Err(HandshakeError::Malformed("limits"));
        }
        let proof = proven(PROOF, &self.secret, Label::Forwarder, &[&self.hello, &bytes], &[]);
        out.extend(&proof);
        self.answered = Some((bytes, said, proof));
        Ok(())
    }

    fn accepted(
        &self,
        bytes: &[u8],
        challenge: &[u8],
        said: Challenge,
        proof: &[u8],
    ) -> Result<Welcome, HandshakeError> {
        let mut fields = reader(ACCEPT, bytes);
        let mac = fields.take(MAC, "a MAC").map_err(malformed)?;
        let before: [&[u8]; 4] = [&self.hello, challenge, proof, fields.bytes];
        if !self.secret.proves(Label::Owner, &before, mac) {
            return Err(HandshakeError::Proof);
        }
        let flags = fields.u8("flags").map_err(malformed)?;
        let token = fields.u64("a token").map_err(malformed)?;
        let Challenge { version, gateway, limits } = said;
        let transcript: [&[u8]; 4] = [&self.hello, challenge, proof, bytes];
        let keys = Keys {
            sends: self.secret.key(Label::FromForwarder, &transcript),
            receives: self.secret.key(Label::FromOwner, &transcript),
        };
        Ok(Welcome { gateway, version, limits, remembers: flags & 1 != 0, token, keys })
    }
}

/// The owner's part.
///
/// After [`Said::Hello`] the caller looks whether the group knows the claimed instance, and answers
/// with [`Self::challenge`] or [`Self::refuse`]. After [`Said::Proven`] it answers with
/// [`Self::accept`].
#[derive(Debug)]
pub struct Answering {
    inbox: Inbox,
    hello: Vec<u8>,
    secret: Option<Secret>,
    challenge: Vec<u8>,
    proof: Vec<u8>,
}

/// A message of the forwarder.
#[derive(Debug, PartialEq, Eq)]
pub enum Said {
    /// Its identity, without a proof yet.
    Hello(Claim),
    /// It has proven that it has the secret.
    Proven,
}

impl Default for Answering {
    fn default() -> Self {
        Self::new()
    }
}

impl Answering {
    /// A connection has come.
    #[must_use]
    pub fn new() -> Self {
        let (hello, challenge, proof) = Default::default();
        Self { inbox: Inbox::default(), hello, secret: None, challenge, proof }
    }

    /// Takes what has come, up to the next thing to answer.
    ///
    /// # Errors
    /// There is no connection.
    pub fn advance(&mut self, input: &mut &[u8]) -> Result<Option<Said>, HandshakeError> {
        let Some((kind, bytes)) = self.inbox.take(input)? else { return Ok(None) };
        match (kind, &self.secret) {
            (HELLO, None) if self.hello.is_empty() => {
                let claim = claim(&bytes).map_err(malformed)?;
                if claim.versions.is_empty() || claim.instance == claim.owner {
                    return Err(HandshakeError::Malformed("a hello"));
                }
                if !(Limits::LEAST_PIECE..=Limits::MOST_PIECE).contains(&claim.piece) {
                    return Err(HandshakeError::Malformed("a piece"));
                }
                self.hello = bytes;
                Ok(Some(Said::Hello(claim)))
            }
            (PROOF, Some(secret)) if self.proof.is_empty() => {
                let mut fields = reader(kind, &bytes);
                let mac = fields.take(MAC, "a MAC").map_err(malformed)?;
                let before: [&[u8]; 3] = [&self.hello, &self.challenge, fields.bytes];
                if !secret.proves(Label::Forwarder, &before, mac) {
                    return Err(HandshakeError::Proof);
                }
                self.proof = bytes;
                Ok(Some(Said::Proven))
            }
            _ => Err(HandshakeError::Malformed("the order of messages")),
        }
    }

    /// The newest version that both speak.
    #[must_use]
    pub fn version(claim: &Claim, own: &RangeInclusive<u16>) -> Option<u16> {
        let newest = *claim.versions.end().min(own.end());
        (newest >= *claim.versions.start().max(own.start())).then_some(newest)
    }

    /// Says who this owner is. `nonce` is random, and used once.
    pub fn challenge(
        &mut self,
        (gateway, instance, version): (u16, u64, u16),
        limits: &Limits,
        secret: &Secret,
        nonce: [u8; NONCE],
        out: &mut Vec<u8>,
    ) {
        let mut rest = Vec::new();
        rest.extend(version.to_be_bytes());
        rest.extend(gateway.to_be_bytes());
        rest.extend(instance.to_be_bytes());
        rest.extend(nonce);
        rest.extend(limits.piece.to_be_bytes());
        rest.extend(limits.commands.to_be_bytes());
        rest.extend(limits.nexuses.to_be_bytes());
        rest.extend(limits.unsolicited.to_be_bytes());
        self.challenge = message(CHALLENGE, &rest);
        self.secret = Some(secret.clone());
        out.extend(&self.challenge);
    }

    /// Says why there is no connection.
    pub fn refuse(reason: Reason, out: &mut Vec<u8>) {
        out.extend(message(REFUSAL, &reason.code().to_be_bytes()));
    }

    /// Lets the proven forwarder in. `None` before [`Said::Proven`].
    #[must_use]
    pub fn accept(self, remembers: bool, token: u64, out: &mut Vec<u8>) -> Option<Keys> {
        let secret = self.secret.filter(|_| !self.proof.is_empty())?;
        let rest = [&[u8::from(remembers)][..], &token.to_be_bytes()].concat();
        let before: [&[u8]; 3] = [&self.hello, &self.challenge, &self.proof];
        let accept = proven(ACCEPT, &secret, Label::Owner, &before, &rest);
        let transcript: [&[u8]; 4] = [&self.hello, &self.challenge, &self.proof, &accept];
        out.extend(&accept);
        Some(Keys {
            sends: secret.key(Label::FromOwner, &transcript),
            receives: secret.key(Label::FromForwarder, &transcript),
        })
    }
}

fn claim(bytes: &[u8]) -> Result<Claim, Violation> {
    let mut fields = reader(HELLO, bytes);
    let versions = fields.u16("a version")?..=fields.u16("a version")?;
    let (secret, gateway) = (fields.u32("a secret")?, fields.u16("a gateway")?);
    let (channel, instance) = (fields.u16("a channel")?, fields.u64("an instance")?);
    let owner = fields.u64("an instance")?;
    fields.take(NONCE, "a nonce")?;
    Ok(Claim { gateway, instance, channel, owner, versions, secret, piece: fields.u32("a piece")? })
}
