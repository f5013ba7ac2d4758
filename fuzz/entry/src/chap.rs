//! Both ends of CHAP against a peer that sends anything, and against each other over a line that
//! modifies messages.

use crate::input::{Input, Seed};
use iscsi::chap::{ChapError, ChapKeys, Credential, Hash, InitiatorEnd, Secret, TargetEnd, TargetProgress};
use iscsi::text::{Pair, Pairs, TextBuf};

fn secret(name: &str) -> Credential {
    Credential { name: name.to_owned(), secret: Secret::new(format!("secret of {name}").into_bytes()) }
}

/// Numbers in place of random ones.
fn random(state: &mut u8) -> impl FnMut(&mut [u8]) -> Result<(), ChapError> {
    move |bytes| {
        for byte in bytes {
            *state = state.wrapping_mul(5).wrapping_add(1);
            *byte = *state;
        }
        Ok(())
    }
}

fn keys<'a>(text: &'a [u8]) -> Option<ChapKeys<'a>> {
    let mut keys = ChapKeys::default();
    for pair in Pairs::new(text) {
        let Pair { key, value } = pair.ok()?;
        keys.take(key, value).ok()?;
    }
    Some(keys)
}

/// Byte 0 selects the end under test and whether CHAP is mutual; then chunks, each a message of the
/// peer. Byte 0 with bit 2 runs both ends against each other, with the rest of the input XORed into
/// the messages.
pub fn run(data: &[u8]) {
    let mut input = Input::new(data);
    let flags = input.u8();
    let mutual = flags & 2 != 0;
    let hashes = &Hash::ALL[..1 + usize::from(flags >> 4 & 3)];
    let mut target = TargetEnd::new(hashes, mutual.then(|| secret("target")));
    let mut initiator = InitiatorEnd::new(secret("user"), mutual.then(|| secret("target")), hashes);
    let (mut a, mut b) = (1, 2);
    let secret_of = |name: &str| (name == "user").then(|| secret("user").secret);
    if flags & 4 == 0 {
        for _ in 0..6 {
            let Some(keys) = keys(input.chunk()) else { return };
            let mut out = TextBuf::new();
            let failed = if flags & 1 == 0 {
                match target.handle(&keys, secret_of, &mut random(&mut a), &mut out) {
                    Ok(TargetProgress::Authenticated(name)) => {
                        assert_eq!(name, "user");
                        return;
                    }
                    Ok(TargetProgress::Challenged) => false,
                    Err(_) => true,
                }
            } else {
                initiator.handle(&keys, &mut random(&mut b), &mut out).is_err()
            };
            if failed || input.is_empty() {
                return;
            }
        }
        return;
    }
    let mut untouched = true;
    let mut line = |text: &TextBuf| {
        let mut bytes = text.as_bytes().to_vec();
        let noise = input.take(bytes.len());
        untouched &= noise.iter().all(|&n| n == 0);
        bytes.iter_mut().zip(noise).for_each(|(byte, noise)| *byte ^= noise);
        bytes
    };
    let mut from_initiator = TextBuf::new();
    initiator.start(&mut from_initiator);
    let mut authenticated = false;
    for _ in 0..3 {
        let heard = line(&from_initiator);
        let Some(said) = keys(&heard) else { break };
        let mut from_target = TextBuf::new();
        match target.handle(&said, secret_of, &mut random(&mut a), &mut from_target) {
            Ok(progress) => authenticated |= matches!(progress, TargetProgress::Authenticated(_)),
            Err(_) => break,
        }
        let heard = line(&from_target);
        let Some(said) = keys(&heard) else { break };
        from_initiator = TextBuf::new();
        if initiator.handle(&said, &mut random(&mut b), &mut from_initiator).is_err() || authenticated {
            break;
        }
    }
    assert!(authenticated || !untouched, "two honest ends agree over an honest line");
}

/// Both ends' honest exchanges, and the well-known wrong ones.
pub fn seeds() -> Vec<(&'static str, Seed)> {
    let seed = |flags: u8, texts: &[&str]| {
        texts.iter().fold(Seed::new().bytes([flags]), |seed, text| seed.chunk(text))
    };
    let md5 = "CHAP_N=user\0CHAP_R=0x00112233445566778899aabbccddeeff\0";
    vec![
        ("target", seed(0x30, &["CHAP_A=5,6,7,8\0", md5])),
        ("target-mutual", seed(0x32, &["CHAP_A=7\0", "CHAP_N=user\0CHAP_R=0x00\0CHAP_I=1\0CHAP_C=0x0011\0"])),
        ("target-no-algorithm", seed(0x30, &["CHAP_A=1,2,3,999999999999999999999\0"])),
        ("target-out-of-turn", seed(0x30, &[md5, "CHAP_A=5\0"])),
        ("initiator", seed(0x31, &["CHAP_A=5\0CHAP_I=7\0CHAP_C=0x000102030405060708090a0b0c0d0e0f\0"])),
        (
            "initiator-mutual",
            seed(0x33, &["CHAP_A=8\0CHAP_I=0xff\0CHAP_C=0bAAECAwQFBgc=\0", "CHAP_N=target\0CHAP_R=0x0011\0"]),
        ),
        ("line-one-way", Seed::new().bytes([0x34])),
        ("line-mutual", Seed::new().bytes([0x36])),
        ("line-mutual-md5", Seed::new().bytes([0x06])),
        ("line-noise", Seed::new().bytes([0x36]).bytes([0; 40]).bytes([1])),
    ]
}
