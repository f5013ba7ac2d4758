//! CHAP (RFC 7143 §12.1.3, RFC 1994): hashes, challenges, and the target's and the initiator's side
//! of the exchange, one-way and mutual.
//!
//! It reads and writes text values and handles no Login PDUs. It reveals to a peer, neither by
//! answer nor by timing, whether a user exists. `Debug` never shows secrets.

use std::fmt;
use std::sync::Arc;

use arrayvec::ArrayVec;
use md5::Md5;
use sha1::Sha1;
use sha2::Sha256;
use sha3::{Digest, Sha3_256};
use subtle::ConstantTimeEq;
use zeroize::Zeroizing;

use crate::text::{self, MAX_BINARY_LEN, MAX_VALUE_LEN, TextBuf};

/// The minimum length of a secret without IPsec (RFC 7143 §12.1.3), bytes (96 bits).
pub const MIN_SECRET_LEN: usize = 12;
/// The maximum number of algorithms read from a `CHAP_A` list.
const MAX_ALGORITHMS: usize = 32;

/// A hash of CHAP, by its number in the IANA PPP registry (RFC 7143 §12.1.3, IANA "iSCSI CHAP").
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Hash {
    /// MD5, 5, which every peer supports.
    Md5 = 5,
    /// SHA-1, 6.
    Sha1 = 6,
    /// SHA-256, 7.
    Sha256 = 7,
    /// SHA3-256, 8.
    Sha3_256 = 8,
}

/// A hash value: 16 to 32 bytes.
pub(crate) type HashValue = ArrayVec<u8, 32>;

impl Hash {
    /// All hashes, strongest first: the default order of offering and choosing.
    pub const ALL: [Hash; 4] = [Hash::Sha3_256, Hash::Sha256, Hash::Sha1, Hash::Md5];

    /// The hash with this number in `CHAP_A`.
    pub fn from_number(number: u64) -> Option<Self> {
        Self::ALL.into_iter().find(|h| *h as u64 == number)
    }

    /// The hash with this name in a configuration: `md5`, `sha1`, `sha256`, `sha3-256`.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|h| h.name().eq_ignore_ascii_case(name))
    }

    /// The number in `CHAP_A`.
    pub fn number(self) -> u8 {
        self as u8
    }

    /// The name that [`Hash::from_name`] reads.
    pub fn name(self) -> &'static str {
        match self {
            Hash::Md5 => "md5",
            Hash::Sha1 => "sha1",
            Hash::Sha256 => "sha256",
            Hash::Sha3_256 => "sha3-256",
        }
    }

    /// The length of a response, bytes.
    pub(crate) fn output_len(self) -> usize {
        match self {
            Hash::Md5 => 16,
            Hash::Sha1 => 20,
            Hash::Sha256 | Hash::Sha3_256 => 32,
        }
    }

    /// The response to a challenge: the hash of identifier, secret and challenge (RFC 1994 §4.1).
    pub fn response(self, id: u8, secret: &Secret, challenge: &[u8]) -> HashValue {
        fn run<D: Digest>(id: u8, secret: &[u8], challenge: &[u8]) -> HashValue {
            let sum = D::new().chain_update([id]).chain_update(secret).chain_update(challenge).finalize();
            sum.iter().copied().collect()
        }
        match self {
            Hash::Md5 => run::<Md5>(id, secret.0.as_slice(), challenge),
            Hash::Sha1 => run::<Sha1>(id, secret.0.as_slice(), challenge),
            Hash::Sha256 => run::<Sha256>(id, secret.0.as_slice(), challenge),
            Hash::Sha3_256 => run::<Sha3_256>(id, secret.0.as_slice(), challenge),
        }
    }
}

/// A CHAP secret. All clones share one copy of the bytes, which is zeroed when the last clone is
/// dropped. `Debug` does not show it. Secrets of equal length are compared in constant time.
#[derive(Clone)]
pub struct Secret(Arc<Zeroizing<Vec<u8>>>);

impl Secret {
    /// A secret of these bytes. A `Vec` is taken over without a copy; of other types the caller
    /// keeps its copy.
    pub fn new(bytes: impl Into<Vec<u8>>) -> Self {
        Secret(Arc::new(Zeroizing::new(bytes.into())))
    }

    /// Its length, bytes.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether the secret is empty.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Whether it is shorter than RFC 7143 §12.1.3 requires without IPsec. A configuration should
    /// warn about it.
    pub fn is_short(&self) -> bool {
        self.0.len() < MIN_SECRET_LEN
    }
}

impl PartialEq for Secret {
    fn eq(&self, other: &Self) -> bool {
        self.0.as_slice().ct_eq(other.0.as_slice()).into()
    }
}

impl Eq for Secret {}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(…)")
    }
}

/// A name and its secret.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Credential {
    /// `CHAP_N`, 1 to 255 bytes.
    pub name: String,
    /// The secret shared by both ends.
    pub secret: Secret,
}

/// The user of this name. It compares all names in full, so that the timing reveals no user.
pub fn find<'a>(users: &'a [Credential], name: &str) -> Option<&'a Credential> {
    let mut found = None;
    for user in users {
        if bool::from(user.name.as_bytes().ct_eq(name.as_bytes())) {
            found = Some(user);
        }
    }
    found
}

/// Why CHAP failed. The peer is told "authentication failure" in every case.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ChapError {
    /// No algorithm in common.
    #[error("no CHAP algorithm in common")]
    NoAlgorithm,
    /// A key is missing, out of order, or has a malformed value.
    #[error("a CHAP key is missing, out of turn or malformed")]
    Malformed,
    /// The response is wrong, or no user has that name.
    #[error("the CHAP response is wrong")]
    WrongResponse,
    /// The peer sent our own challenge back (RFC 7143 §12.1.3, §9.2.1).
    #[error("the peer reflected our challenge")]
    Reflection,
    /// The initiator requires mutual authentication, and the target has no credential for it.
    #[error("mutual authentication was requested and is not configured")]
    NoMutual,
    /// The target did not answer the initiator's challenge.
    #[error("the target did not authenticate itself")]
    TargetSilent,
    /// The system provides no random numbers.
    #[error("no random numbers for a challenge")]
    NoRandom,
}

/// Fills a buffer from the operating system's generator; the default source of challenges.
///
/// # Errors
/// [`ChapError::NoRandom`] if the system provides no random numbers.
pub fn os_random(buf: &mut [u8]) -> Result<(), ChapError> {
    getrandom::fill(buf).map_err(|_| ChapError::NoRandom)
}

/// The source of challenges: [`os_random`], or a seeded generator in a simulation.
pub type RandomSource<'a> = &'a mut dyn FnMut(&mut [u8]) -> Result<(), ChapError>;

#[derive(Debug, Clone)]
struct Challenge {
    id: u8,
    bytes: HashValue,
}

impl Challenge {
    /// A challenge as long as the hash's output: a shorter one would be weaker, a longer one adds
    /// no strength.
    fn new(hash: Hash, random: RandomSource<'_>) -> Result<Self, ChapError> {
        let mut id = [0];
        let mut bytes = [0; 32];
        random(&mut id)?;
        random(&mut bytes)?;
        Ok(Challenge { id: id[0], bytes: bytes[..hash.output_len()].iter().copied().collect() })
    }

    fn put(&self, out: &mut TextBuf) {
        out.put_number("CHAP_I", self.id.into());
        out.put_binary("CHAP_C", &self.bytes);
    }
}

/// The CHAP keys of one text, unparsed. Each may occur once.
#[derive(Debug, Clone, Default)]
pub struct ChapKeys<'a> {
    /// `CHAP_A`.
    pub algorithms: Option<&'a str>,
    /// `CHAP_I`.
    pub id: Option<&'a str>,
    /// `CHAP_C`.
    pub challenge: Option<&'a str>,
    /// `CHAP_N`.
    pub name: Option<&'a str>,
    /// `CHAP_R`.
    pub response: Option<&'a str>,
}

impl<'a> ChapKeys<'a> {
    /// Takes a pair if it is a CHAP key; returns whether it is.
    ///
    /// # Errors
    /// [`ChapError::Malformed`] if that key has occurred before.
    pub fn take(&mut self, key: &str, value: &'a str) -> Result<bool, ChapError> {
        let slot = match key {
            "CHAP_A" => &mut self.algorithms,
            "CHAP_I" => &mut self.id,
            "CHAP_C" => &mut self.challenge,
            "CHAP_N" => &mut self.name,
            "CHAP_R" => &mut self.response,
            _ => return Ok(false),
        };
        match slot.replace(value) {
            None => Ok(true),
            Some(_) => Err(ChapError::Malformed),
        }
    }

    /// Whether there is no CHAP key.
    pub fn is_empty(&self) -> bool {
        [self.algorithms, self.id, self.challenge, self.name, self.response].iter().all(Option::is_none)
    }

    fn peer_challenge(&self) -> Result<Option<(u8, Vec<u8>)>, ChapError> {
        match (self.id, self.challenge) {
            (None, None) => Ok(None),
            (Some(id), Some(challenge)) => {
                let id = text::parse_number(id).and_then(|n| u8::try_from(n).ok());
                let challenge = text::parse_binary(challenge, MAX_BINARY_LEN);
                Ok(Some((id.ok_or(ChapError::Malformed)?, challenge.ok_or(ChapError::Malformed)?)))
            }
            _ => Err(ChapError::Malformed),
        }
    }

    fn peer_response(&self) -> Result<Option<(&'a str, Vec<u8>)>, ChapError> {
        match (self.name, self.response) {
            (None, None) => Ok(None),
            (Some(name), Some(response)) => {
                if name.is_empty() || name.len() > MAX_VALUE_LEN {
                    return Err(ChapError::Malformed);
                }
                let response = text::parse_binary(response, MAX_BINARY_LEN).ok_or(ChapError::Malformed)?;
                Ok(Some((name, response)))
            }
            _ => Err(ChapError::Malformed),
        }
    }
}

/// The target's side: it challenges the initiator, and answers the initiator's challenge if there
/// is one.
#[derive(Debug, Clone)]
pub struct TargetEnd {
    hashes: ArrayVec<Hash, 4>,
    mutual: Option<Credential>,
    state: TargetState,
}

#[derive(Debug, Clone)]
enum TargetState {
    WantAlgorithms,
    WantResponse(Hash, Challenge),
    Done,
}

/// The progress of the target's side after a text.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum TargetProgress {
    /// A challenge was written; the response is next.
    Challenged,
    /// The initiator has proved that it is this user. The answer to its challenge, if any, was
    /// written.
    Authenticated(String),
}

impl TargetEnd {
    /// `hashes` are the permitted ones, all of [`Hash::ALL`] if empty; the initiator's order
    /// decides among them. `mutual` is the target's credential for mutual CHAP.
    pub fn new(hashes: &[Hash], mutual: Option<Credential>) -> Self {
        let hashes = if hashes.is_empty() { &Hash::ALL } else { hashes };
        let mut kept = ArrayVec::<Hash, 4>::new();
        for &h in hashes {
            if !kept.contains(&h) {
                // At most four distinct hashes exist.
                kept.push(h);
            }
        }
        TargetEnd { hashes: kept, mutual, state: TargetState::WantAlgorithms }
    }

    /// Handles the CHAP keys of one request. `secret_of` looks up a user's secret.
    ///
    /// # Errors
    /// Any [`ChapError`] ends the login.
    pub fn handle(
        &mut self,
        keys: &ChapKeys<'_>,
        secret_of: impl FnOnce(&str) -> Option<Secret>,
        random: RandomSource<'_>,
        out: &mut TextBuf,
    ) -> Result<TargetProgress, ChapError> {
        match std::mem::replace(&mut self.state, TargetState::Done) {
            TargetState::WantAlgorithms => {
                if keys.response.is_some() || keys.challenge.is_some() {
                    return Err(ChapError::Malformed);
                }
                let list = text::parse_list(keys.algorithms.ok_or(ChapError::Malformed)?);
                let offered: ArrayVec<u64, MAX_ALGORITHMS> = list
                    .ok_or(ChapError::Malformed)?
                    .take(MAX_ALGORITHMS)
                    .filter_map(text::parse_number)
                    .collect();
                // The list is in the initiator's order of preference (RFC 7143 §12.1.3).
                let mut offered = offered.into_iter().filter_map(Hash::from_number);
                let hash = offered.find(|hash| self.hashes.contains(hash)).ok_or(ChapError::NoAlgorithm)?;
                let challenge = Challenge::new(hash, random)?;
                out.put_number("CHAP_A", hash.number().into());
                challenge.put(out);
                self.state = TargetState::WantResponse(hash, challenge);
                Ok(TargetProgress::Challenged)
            }
            TargetState::WantResponse(hash, challenge) => {
                if keys.algorithms.is_some() {
                    return Err(ChapError::Malformed);
                }
                let (name, response) = keys.peer_response()?.ok_or(ChapError::Malformed)?;
                let theirs = keys.peer_challenge()?;
                let known = secret_of(name);
                // An unknown user costs the same work as a wrong response.
                let secret = known.clone().unwrap_or_else(|| Secret::new([0u8; 16]));
                let expected = hash.response(challenge.id, &secret, &challenge.bytes);
                let matches = bool::from(expected[..].ct_eq(&response[..]));
                if !(matches & known.is_some()) {
                    return Err(ChapError::WrongResponse);
                }
                if let Some((id, bytes)) = theirs {
                    if bytes[..] == challenge.bytes[..] {
                        return Err(ChapError::Reflection);
                    }
                    let own = self.mutual.as_ref().ok_or(ChapError::NoMutual)?;
                    out.put("CHAP_N", &own.name);
                    out.put_binary("CHAP_R", &hash.response(id, &own.secret, &bytes));
                }
                Ok(TargetProgress::Authenticated(name.to_owned()))
            }
            TargetState::Done => Err(ChapError::Malformed),
        }
    }
}

/// The initiator's side: it answers the target's challenge, and challenges the target if it has a
/// secret for it.
#[derive(Debug, Clone)]
pub struct InitiatorEnd {
    credential: Credential,
    target: Option<Credential>,
    hashes: ArrayVec<Hash, 4>,
    state: InitiatorState,
}

#[derive(Debug, Clone)]
enum InitiatorState {
    WantChallenge,
    WantResponse(Hash, Challenge),
    Done,
}

impl InitiatorEnd {
    /// `target` is the credential that the target must prove (mutual CHAP). An empty name in it
    /// stands for any name. `hashes` are in order of preference, all of [`Hash::ALL`] if empty.
    pub fn new(credential: Credential, target: Option<Credential>, hashes: &[Hash]) -> Self {
        let hashes = if hashes.is_empty() { &Hash::ALL } else { hashes };
        InitiatorEnd {
            credential,
            target,
            hashes: hashes.iter().copied().take(4).collect(),
            state: InitiatorState::WantChallenge,
        }
    }

    /// Writes the first step, `CHAP_A`.
    pub fn start(&self, out: &mut TextBuf) {
        let list: Vec<String> = self.hashes.iter().map(|h| h.number().to_string()).collect();
        out.put("CHAP_A", &list.join(","));
    }

    /// Whether the exchange is complete.
    pub(crate) fn is_done(&self) -> bool {
        matches!(self.state, InitiatorState::Done)
    }

    /// Handles the CHAP keys of one response.
    ///
    /// # Errors
    /// Any [`ChapError`]: the target must not be trusted, and the connection must be closed.
    pub fn handle(
        &mut self,
        keys: &ChapKeys<'_>,
        random: RandomSource<'_>,
        out: &mut TextBuf,
    ) -> Result<(), ChapError> {
        match std::mem::replace(&mut self.state, InitiatorState::Done) {
            InitiatorState::WantChallenge => {
                let chosen = keys.algorithms.and_then(text::parse_number).and_then(Hash::from_number);
                let hash = chosen.filter(|h| self.hashes.contains(h)).ok_or(ChapError::NoAlgorithm)?;
                let (id, challenge) = keys.peer_challenge()?.ok_or(ChapError::Malformed)?;
                out.put("CHAP_N", &self.credential.name);
                out.put_binary("CHAP_R", &hash.response(id, &self.credential.secret, &challenge));
                if self.target.is_some() {
                    let ours = Challenge::new(hash, random)?;
                    if ours.bytes[..] == challenge[..] {
                        return Err(ChapError::Reflection);
                    }
                    ours.put(out);
                    self.state = InitiatorState::WantResponse(hash, ours);
                }
                Ok(())
            }
            InitiatorState::WantResponse(hash, ours) => {
                let Some(target) = &self.target else { return Err(ChapError::Malformed) };
                let (name, response) = keys.peer_response()?.ok_or(ChapError::TargetSilent)?;
                let expected = hash.response(ours.id, &target.secret, &ours.bytes);
                let name_ok = target.name.is_empty() || target.name == name;
                if bool::from(expected[..].ct_eq(&response[..])) && name_ok {
                    Ok(())
                } else {
                    Err(ChapError::WrongResponse)
                }
            }
            InitiatorState::Done => {
                if keys.is_empty() {
                    Ok(())
                } else {
                    Err(ChapError::Malformed)
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::text::Pairs;

    fn cred(name: &str, secret: &str) -> Credential {
        Credential { name: name.into(), secret: Secret::new(secret.as_bytes()) }
    }

    fn keys(text: &TextBuf) -> ChapKeys<'_> {
        let mut keys = ChapKeys::default();
        for pair in Pairs::new(text.as_bytes()) {
            let pair = pair.unwrap();
            assert!(keys.take(pair.key, pair.value).unwrap());
        }
        keys
    }

    fn counter() -> impl FnMut(&mut [u8]) -> Result<(), ChapError> {
        let mut n = 0u8;
        move |buf| {
            buf.fill_with(|| {
                n = n.wrapping_add(1);
                n
            });
            Ok(())
        }
    }

    /// Runs both sides up to the target's verdict. Returns the texts exchanged, and the result of
    /// each side.
    fn run(
        target: &mut TargetEnd,
        initiator: &mut InitiatorEnd,
        users: &[Credential],
    ) -> Result<String, ChapError> {
        let mut random = counter();
        let find = |name: &str| users.iter().find(|c| c.name == name).map(|c| c.secret.clone());
        let (mut a, mut b) = (TextBuf::new(), TextBuf::new());
        initiator.start(&mut a);
        target.handle(&keys(&a), find, &mut random, &mut b)?;
        let mut c = TextBuf::new();
        initiator.handle(&keys(&b), &mut random, &mut c)?;
        let mut d = TextBuf::new();
        let progress = target.handle(&keys(&c), find, &mut random, &mut d)?;
        initiator.handle(&keys(&d), &mut random, &mut TextBuf::new())?;
        assert!(initiator.is_done());
        match progress {
            TargetProgress::Authenticated(name) => Ok(name),
            TargetProgress::Challenged => panic!("challenged twice"),
        }
    }

    #[test]
    fn each_hash_gives_the_response_of_its_reference_implementation() {
        // printf '\x01%s%s' secretsecret challenge | openssl dgst -md5 (and so on).
        for (hash, want) in [
            (Hash::Md5, "0xd36743c441a60f1cb031bdc095af5677"),
            (Hash::Sha1, "0x1c7ea968cbb2f111c0b124b2beca9dded588621e"),
            (Hash::Sha256, "0x3531d4643a82048385df150bf6eb437cfd6ede391a86c1c66d9cf5135eb00c2b"),
            (Hash::Sha3_256, "0xefb1d413634819da00d1c6232c2fdd5952d3b3d6dd4fcbe894debad9b173948f"),
        ] {
            let got = hash.response(1, &Secret::new(*b"secretsecret"), b"challenge");
            assert_eq!(text::to_hex(&got), want, "{hash:?}");
            assert_eq!(got.len(), hash.output_len());
        }
    }

    #[test]
    fn one_way_and_mutual_chap_succeed_with_every_hash() {
        for hash in Hash::ALL {
            for mutual in [false, true] {
                let own = mutual.then(|| cred("target", "targetsecret1"));
                let mut t = TargetEnd::new(&[], own.clone());
                let mut i = InitiatorEnd::new(cred("alice", "alicesecret12"), own, &[hash]);
                assert_eq!(
                    run(&mut t, &mut i, &[cred("alice", "alicesecret12")]),
                    Ok("alice".to_owned()),
                    "{hash:?}"
                );
            }
        }
    }

    #[test]
    fn the_initiators_order_decides_among_the_allowed_hashes() {
        for (offered, chosen) in [("5,99,6,7,8", "5"), ("8,7,6,5", "7"), ("6,8,99,5,7", "5")] {
            let mut t = TargetEnd::new(&[Hash::Sha256, Hash::Md5], None);
            let mut out = TextBuf::new();
            let offer = ChapKeys { algorithms: Some(offered), ..Default::default() };
            t.handle(&offer, |_| None, &mut counter(), &mut out).unwrap();
            assert_eq!(keys(&out).algorithms, Some(chosen), "{offered}");
        }
    }

    #[test]
    fn a_user_is_found_by_the_whole_name_and_the_last_is_found_too() {
        let users = [cred("alice", "alicesecret12"), cred("bob", "bobs secret 12")];
        assert_eq!(find(&users, "bob"), Some(&users[1]));
        assert_eq!(find(&users, "alice"), Some(&users[0]));
        for nobody in ["", "ali", "alice2", "Alice"] {
            assert_eq!(find(&users, nobody), None, "{nobody}");
        }
    }

    #[test]
    fn no_common_algorithm_fails() {
        let mut t = TargetEnd::new(&[Hash::Sha256], None);
        let mut i = InitiatorEnd::new(cred("a", "x"), None, &[Hash::Md5]);
        assert_eq!(run(&mut t, &mut i, &[]), Err(ChapError::NoAlgorithm));
    }

    #[test]
    fn a_wrong_secret_and_an_unknown_user_fail_alike() {
        for user in [cred("alice", "another"), cred("bob", "alicesecret12")] {
            let mut t = TargetEnd::new(&[], None);
            let mut i = InitiatorEnd::new(cred("alice", "alicesecret12"), None, &[]);
            assert_eq!(run(&mut t, &mut i, &[user]), Err(ChapError::WrongResponse));
        }
    }

    #[test]
    fn the_dummy_secret_of_an_unknown_user_opens_nothing() {
        let mut t = TargetEnd::new(&[], None);
        let dummy = Credential { name: "nobody".into(), secret: Secret::new([0u8; 16]) };
        let mut i = InitiatorEnd::new(dummy, None, &[]);
        assert_eq!(run(&mut t, &mut i, &[]), Err(ChapError::WrongResponse));
    }

    #[test]
    fn a_target_without_credential_refuses_mutual_chap() {
        let mut t = TargetEnd::new(&[], None);
        let mut i = InitiatorEnd::new(cred("alice", "alicesecret12"), Some(cred("t", "s")), &[]);
        assert_eq!(run(&mut t, &mut i, &[cred("alice", "alicesecret12")]), Err(ChapError::NoMutual));
    }

    #[test]
    fn an_impostor_target_fails_mutual_chap() {
        let mut t = TargetEnd::new(&[], Some(cred("target", "guess")));
        let mut i =
            InitiatorEnd::new(cred("alice", "alicesecret12"), Some(cred("target", "targetsecret1")), &[]);
        assert_eq!(run(&mut t, &mut i, &[cred("alice", "alicesecret12")]), Err(ChapError::WrongResponse));
    }

    #[test]
    fn a_reflected_challenge_ends_the_login() {
        let users = |_: &str| Some(Secret::new(*b"alicesecret12"));
        let mut t = TargetEnd::new(&[Hash::Md5], Some(cred("target", "alicesecret12")));
        let mut out = TextBuf::new();
        let offer = ChapKeys { algorithms: Some("5"), ..Default::default() };
        t.handle(&offer, users, &mut counter(), &mut out).unwrap();
        let challenge = keys(&out);
        let (id, bytes) = challenge.peer_challenge().unwrap().unwrap();
        let response = text::to_hex(&Hash::Md5.response(id, &Secret::new(*b"alicesecret12"), &bytes));
        let reflected = ChapKeys {
            name: Some("alice"),
            response: Some(&response),
            id: challenge.id,
            challenge: challenge.challenge,
            ..Default::default()
        };
        let got = t.handle(&reflected, users, &mut counter(), &mut TextBuf::new());
        assert_eq!(got, Err(ChapError::Reflection));
    }

    #[test]
    fn keys_out_of_turn_twice_or_malformed_fail() {
        let mut keys = ChapKeys::default();
        assert_eq!(keys.take("CHAP_A", "5"), Ok(true));
        assert_eq!(keys.take("CHAP_A", "5"), Err(ChapError::Malformed));
        assert_eq!(keys.take("HeaderDigest", "None"), Ok(false));

        let response = ChapKeys { name: Some("a"), response: Some("0x00"), ..Default::default() };
        let mut t = TargetEnd::new(&[], None);
        let got = t.handle(&response, |_| None, &mut counter(), &mut TextBuf::new());
        assert_eq!(got, Err(ChapError::Malformed));

        for bad in [
            ChapKeys { name: Some("a"), ..Default::default() },
            ChapKeys { name: Some("a"), response: Some("zz"), ..Default::default() },
            ChapKeys { name: Some(""), response: Some("0x00"), ..Default::default() },
            ChapKeys {
                name: Some("a"),
                response: Some("0x00"),
                id: Some("256"),
                challenge: Some("0x00"),
                ..Default::default()
            },
            ChapKeys { name: Some("a"), response: Some("0x00"), id: Some("1"), ..Default::default() },
        ] {
            let mut t = TargetEnd::new(&[], None);
            let offer = ChapKeys { algorithms: Some("5"), ..Default::default() };
            t.handle(&offer, |_| None, &mut counter(), &mut TextBuf::new()).unwrap();
            let got = t.handle(&bad, |_| Some(Secret::new(*b"x")), &mut counter(), &mut TextBuf::new());
            assert_eq!(got, Err(ChapError::Malformed), "{bad:?}");
        }
    }

    #[test]
    fn a_secret_does_not_show_in_debug_and_shortness_is_noticed() {
        assert_eq!(format!("{:?}", Secret::new(*b"hunter2")), "Secret(…)");
        assert!(Secret::new(*b"12345678901").is_short());
        assert!(!Secret::new(*b"123456789012").is_short());
    }
}
