//! The handshake: who gets in, and who does not.

use std::ops::RangeInclusive;

use super::world::{FORWARDER, OWNER, limits, own, secret};
use crate::frame::Keys;
use crate::handshake::{Answering, Calling, HandshakeError, Own, Reason, Said, Welcome};
use crate::{Forwarder, Owner, Progress, Secret, Time};

/// All messages of a handshake, in order.
#[derive(Debug)]
struct Shaken {
    messages: Vec<Vec<u8>>,
    welcome: Welcome,
    keys: Keys,
}

fn shake(own: Own, forwarder: &Secret, owner: &Secret, token: u64) -> Result<Shaken, HandshakeError> {
    shake_with(own, forwarder, owner, (false, token), |_, _| {})
}

/// `change` sees each message on its way.
fn shake_with(
    own: Own,
    forwarder: &Secret,
    owner: &Secret,
    said: (bool, u64),
    change: impl Fn(usize, &mut Vec<u8>),
) -> Result<Shaken, HandshakeError> {
    shake_between(own, forwarder, (owner, 1..=1), said, change)
}

/// The owner speaks these versions.
fn shake_between(
    own: Own,
    forwarder: &Secret,
    (owner, versions): (&Secret, RangeInclusive<u16>),
    (remembers, token): (bool, u64),
    change: impl Fn(usize, &mut Vec<u8>),
) -> Result<Shaken, HandshakeError> {
    let mut messages = vec![Vec::new(); 4];
    let mut calling = Calling::open(own, forwarder, [1; 32], &mut messages[0]);
    change(0, &mut messages[0]);
    let mut answering = Answering::new();
    let Some(Said::Hello(claim)) = answering.advance(&mut &messages[0][..])? else {
        return Err(HandshakeError::Malformed("no hello"));
    };
    let Some(version) = Answering::version(&claim, &versions) else {
        Answering::refuse(Reason::Version, &mut messages[1]);
        calling.advance(&mut &messages[1].clone()[..], &mut messages[2])?;
        return Err(HandshakeError::Malformed("no refusal"));
    };
    answering.challenge((2, OWNER, version), &limits(), owner, [2; 32], &mut messages[1]);
    change(1, &mut messages[1]);
    if calling.advance(&mut &messages[1].clone()[..], &mut messages[2])?.is_some() {
        return Err(HandshakeError::Malformed("too early"));
    }
    change(2, &mut messages[2]);
    if answering.advance(&mut &messages[2][..])? != Some(Said::Proven) {
        return Err(HandshakeError::Malformed("no proof"));
    }
    let keys = answering.accept(remembers, token, &mut messages[3]).expect("proven");
    change(3, &mut messages[3]);
    let welcome = calling.advance(&mut &messages[3].clone()[..], &mut Vec::new())?;
    let welcome = welcome.ok_or(HandshakeError::Malformed("no welcome"))?;
    Ok(Shaken { messages, welcome, keys })
}

/// What both ends have after a handshake.
pub fn keys(remembers: bool, token: u64) -> (Welcome, Keys) {
    let shaken = shake_with(own(), &secret(), &secret(), (remembers, token), |_, _| {});
    let shaken = shaken.expect("an honest handshake");
    (shaken.welcome, shaken.keys)
}

#[test]
fn both_ends_agree() {
    let Shaken { welcome, messages, .. } = shake(own(), &secret(), &secret(), 77).expect("honest");
    assert_eq!((welcome.gateway, welcome.version, welcome.token), (2, 1, 77));
    assert_eq!(welcome.limits, limits());
    assert!(!welcome.remembers);
    // Bytewise, and nothing behind a message is taken.
    let mut answering = Answering::new();
    for byte in &messages[0][..messages[0].len() - 1] {
        assert_eq!(answering.advance(&mut &[*byte][..]), Ok(None));
    }
    let last = [&messages[0][messages[0].len() - 1..], b"behind"].concat();
    let mut input = &last[..];
    assert_eq!(answering.advance(&mut input), Ok(Some(Said::Hello(own()))));
    assert_eq!(input, b"behind");
}

#[test]
fn another_secret_proves_nothing_at_either_end() {
    let other = Secret::new(&[9; 32]).expect("32");
    assert_eq!(shake(own(), &other, &secret(), 0).expect_err("no proof"), HandshakeError::Proof);
    // An owner that lets anybody in does not have the secret by that.
    for at in 12..12 + 32 {
        let forged = shake_with(own(), &secret(), &secret(), (false, 0), |message, bytes| {
            if message == 3 {
                bytes[at] ^= 4;
            }
        });
        assert_eq!(forged.expect_err("no proof"), HandshakeError::Proof, "byte {at}");
    }
}

#[test]
fn a_message_that_is_changed_on_its_way_leads_to_no_connection() {
    let honest = shake(own(), &secret(), &secret(), 77).expect("honest");
    for message in 0..4 {
        for at in 0..honest.messages[message].len() {
            // A byte that receivers ignore, and which the MACs cover nevertheless.
            let changed = shake_with(own(), &secret(), &secret(), (false, 77), |which, bytes| {
                if which == message {
                    bytes[at] ^= 1;
                }
            });
            let why = format!("message {message}, byte {at}");
            // The last message's own spare byte is behind all proofs: the keys differ by it.
            if (message, at) == (3, 9) {
                continue;
            }
            assert!(changed.is_err(), "{why}");
        }
    }
}

#[test]
fn what_a_newer_release_appends_is_ignored_and_proven() {
    let appended = |which: usize| {
        shake_with(own(), &secret(), &secret(), (true, 1), |message, bytes| {
            if message == which {
                bytes.extend(b"more");
                let len = (bytes.len() - 12) as u16;
                bytes[10..12].copy_from_slice(&len.to_be_bytes());
            }
        })
    };
    for message in 0..4 {
        // Appended on the way, not by the sender: read, and then found out.
        let error = appended(message).expect_err("a MAC covers it");
        assert_eq!(error, HandshakeError::Proof, "message {message}");
    }
}

#[test]
fn recorded_messages_open_nothing() {
    let recorded = shake(own(), &secret(), &secret(), 1).expect("honest").messages;
    // A forwarder's, played to an owner with another nonce.
    let mut answering = Answering::new();
    answering.advance(&mut &recorded[0][..]).expect("a hello");
    answering.challenge((2, OWNER, 1), &limits(), &secret(), [3; 32], &mut Vec::new());
    assert_eq!(answering.advance(&mut &recorded[2][..]), Err(HandshakeError::Proof));
    // An owner's, played to a forwarder with another nonce.
    let mut calling = Calling::open(own(), &secret(), [3; 32], &mut Vec::new());
    let mut out = Vec::new();
    assert!(calling.advance(&mut &recorded[1][..], &mut out).expect("a challenge").is_none());
    let replayed = calling.advance(&mut &recorded[3][..], &mut out);
    assert_eq!(replayed.expect_err("no proof"), HandshakeError::Proof);
    // A forwarder's own messages, sent back.
    let mut calling = Calling::open(own(), &secret(), [3; 32], &mut Vec::new());
    let reflected = calling.advance(&mut &recorded[0][..], &mut Vec::new());
    assert!(matches!(reflected, Err(HandshakeError::Malformed(_))));
    let own = Own { owner: FORWARDER, ..own() };
    let mut out = Vec::new();
    Calling::open(own, &secret(), [1; 32], &mut out);
    assert!(Answering::new().advance(&mut &out[..]).is_err(), "a gateway does not forward to itself");
}

#[test]
fn the_newest_version_that_both_speak_is_used() {
    let version = |a: std::ops::RangeInclusive<u16>, b| Answering::version(&Own { versions: a, ..own() }, &b);
    assert_eq!(version(1..=3, 2..=5), Some(3));
    assert_eq!(version(2..=5, 1..=2), Some(2));
    assert_eq!(version(1..=1, 2..=5), None);
    let newer = Own { versions: 2..=3, ..own() };
    let refused = HandshakeError::Refused(Reason::Version);
    assert_eq!(shake(newer, &secret(), &secret(), 0).expect_err("refused"), refused);
    // A version that was not offered.
    let chosen = shake_with(own(), &secret(), &secret(), (false, 0), |which, bytes| {
        if which == 1 {
            bytes[13] = 9;
        }
    });
    assert_eq!(chosen.expect_err("not offered"), HandshakeError::Version(9));
}

#[test]
fn gateways_of_two_releases_speak_what_both_know() {
    let shake = |forwarder, owner| {
        let own = Own { versions: forwarder, ..own() };
        shake_between(own, &secret(), (&secret(), owner), (false, 0), |_, _| {})
    };
    let refused = HandshakeError::Refused(Reason::Version);
    assert_eq!(shake(2..=2, 1..=1).expect_err("the forwarder is too new"), refused);
    assert_eq!(shake(1..=1, 2..=2).expect_err("the owner is too new"), refused);
    for (forwarder, owner, version) in [(1..=2, 1..=1, 1), (1..=1, 1..=2, 1), (1..=2, 1..=2, 2)] {
        let Shaken { welcome, keys, .. } = shake(forwarder, owner).expect("they have one in common");
        // Their first frames are understood.
        let (mut forwarder, mut owner) = (Forwarder::new(own().piece), Owner::new(limits()));
        let mut out = Vec::new();
        forwarder.connect(Time::ZERO, welcome, &mut out).expect("the owner's limits are new");
        let connection = owner.connect(Time::ZERO, keys, own().piece, 0);
        assert_eq!(owner.receive(connection, Time::ZERO, &mut &out[..]), Ok(Some(Progress::Settled)));
        assert_eq!(forwarder.version(), version);
    }
}

#[test]
fn strangers_keep_nothing_and_get_an_error() {
    let shut = |bytes: &[u8]| Answering::new().advance(&mut &bytes[..]).map(|_| ());
    assert_eq!(shut(b"GET / HTTP/1.1\r\n"), Err(HandshakeError::Foreign));
    assert_eq!(shut(b"stagp"), Ok(()));
    let long = HandshakeError::Malformed("a length");
    assert_eq!(shut(b"stagpeer\x01\0\x02\x01"), Err(long));
    assert_eq!(shut(b"stagpeer\x01\0\0\0"), Err(long));
    assert_eq!(shut(b"stagpeer\x01\0\0\x01\0"), Err(HandshakeError::Malformed("a version")));
    let order = HandshakeError::Malformed("the order of messages");
    assert_eq!(shut(b"stagpeer\x03\0\0\x01\0"), Err(order));
    let mut calling = Calling::open(own(), &secret(), [1; 32], &mut Vec::new());
    let refused = calling.advance(&mut &b"stagpeer\x05\0\0\x02\0\x63"[..], &mut Vec::new());
    let error = refused.expect_err("refused");
    assert_eq!(error, HandshakeError::Refused(Reason::Unknown(99)));
    assert_eq!(error.to_string(), "the peer refuses: reason 99, of a newer release");
}
