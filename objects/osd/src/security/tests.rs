//! Integrity check values against vectors that Python's `hmac` made (they stand in
//! docs/src/objects/security.md too), and the rules of nonces, keys and credentials.

use super::*;
use crate::cdb::{Cdb, Command, ObjectRange};
use crate::{Capability, Id, ObjectType, Permissions, Version};
use proptest::prelude::*;

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// RFC 2202 case 2 and RFC 4231 case 2: the hashes match their names.
#[test]
fn the_algorithms_are_hmac_sha_1_and_hmac_sha_256() {
    let key = Key::new(b"Jefe").unwrap();
    let said = b"what do ya want for nothing?";
    assert_eq!(
        hex(mac(Algorithm::HmacSha1, &key, &[said]).bytes()),
        "effcdf6ae5eb2fa2d27416d5f184df9c259a7c79"
    );
    assert_eq!(
        hex(mac(Algorithm::HmacSha256, &key, &[&said[..9], &said[9..]]).bytes()),
        "5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843"
    );
}

/// The example of docs/src/objects/security.md: a READ of OSD-2's final form under CMDRSP.
fn example(algorithm: Algorithm) -> (KeyPair, Credential, Vec<u8>) {
    let root = KeyPair {
        authentication: Key::new(&[0xA0; 32]).unwrap(),
        generation: Key::new(&[0xB0; 32]).unwrap(),
    };
    let partition = root.derive(algorithm, &[0x11; 20]);
    let working = partition.derive(algorithm, &[0x22; 20]);
    let mut capability = Capability::all(Version::Osd2, ObjectType::User, Id::new(0x1_0000, 0x1_0001));
    capability.permissions = Permissions::READ | Permissions::GET_ATTR;
    capability.integrity_algorithm = algorithm as u8;
    capability.security_method = Method::CmdRsp as u8;
    capability.key_version = 3;
    capability.expires = 0x0190_0000_0000;
    let credential =
        Credential::sign(Version::Osd2, capability, *b"STAG-EXAMPLE-SYSTEM-", &working.authentication)
            .unwrap();
    let mut cdb = Cdb::new(Command::Read(Id::new(0x1_0000, 0x1_0001), ObjectRange { start: 0, len: 4096 }));
    cdb.capability = credential.capability;
    cdb.security.nonce = nonce::nonce(0x018F_FFFF_0000, *b"random");
    let bytes = cdb.encode().unwrap().to_vec();
    (working, credential, bytes)
}

const VECTORS: &str = include_str!("vectors.txt");

#[test]
fn the_documented_example_comes_out() {
    let mut found = String::new();
    for algorithm in Algorithm::ALL {
        let (working, credential, cdb) = example(algorithm);
        let nonce = nonce::nonce(0x018F_FFFF_0000, *b"random");
        let mut sealer = Sealer::new(algorithm, &credential.key, &nonce, Direction::Out);
        sealer.update(b"sixteen bytes ok");
        let lines = [
            ("working authentication", hex(working.authentication.bytes())),
            ("working generation", hex(working.generation.bytes())),
            ("capability", hex(&credential.to_bytes()[..104])),
            ("capability key", hex(credential.key.bytes())),
            ("CAPKEY", hex(capkey_request(algorithm, &credential.key, &[0x77; 16]).bytes())),
            ("CDB", hex(&cdb)),
            ("CMDRSP", hex(command_request(algorithm, &credential.key, &cdb, Form::Osd2).bytes())),
            ("response GOOD", hex(response(algorithm, &credential.key, &nonce, 0, &[]).bytes())),
            ("Data-Out", hex(&sealer.finish([16, 0, 0]))),
        ];
        for (name, value) in lines {
            found.push_str(&format!("{algorithm:?} {name}: {value}\n"));
        }
    }
    assert_eq!(found, VECTORS);
}

#[test]
fn every_byte_of_a_cdb_but_the_value_itself_is_covered() {
    let (_, credential, cdb) = example(Algorithm::HmacSha256);
    let value = command_request(Algorithm::HmacSha256, &credential.key, &cdb, Form::Osd2);
    for at in 0..cdb.len() {
        let mut altered = cdb.clone();
        altered[at] ^= 0x40;
        let other = command_request(Algorithm::HmacSha256, &credential.key, &altered, Form::Osd2);
        assert_eq!(other.is(value.bytes()), (184..216).contains(&at), "byte {at}");
    }
}

#[test]
fn a_value_of_20_bytes_in_a_field_of_32_has_zeros_behind_it() {
    let key = Key::new(b"k").unwrap();
    let value = mac(Algorithm::HmacSha1, &key, &[b"x"]);
    let mut field = value.field();
    assert!(value.is(&field) && value.is(&field[..20]));
    field[31] = 1;
    assert!(!value.is(&field));
    assert!(!value.is(&value.bytes()[..19]));
    let long = mac(Algorithm::HmacSha256, &key, &[b"x"]);
    assert!(!long.is(&long.bytes()[..20]));
}

#[test]
fn a_capability_key_depends_on_every_field_of_the_capability_and_on_the_unit() {
    let key = Key::new(&[1; 20]).unwrap();
    let capability = [7u8; 104];
    let signed = capability_key_of(&capability, &[3; 20], &key);
    for at in 0..104 {
        let mut forged = capability;
        forged[at] ^= 1;
        assert_ne!(capability_key_of(&forged, &[3; 20], &key), signed);
    }
    assert_ne!(capability_key_of(&capability, &[4; 20], &key), signed);
}

fn capability_key_of(capability: &[u8], system: &[u8; 20], key: &Key) -> Key {
    credential::capability_key(Algorithm::HmacSha256, key, capability, system)
}

#[test]
fn a_credential_is_read_as_it_was_written() {
    for algorithm in Algorithm::ALL {
        for version in [Version::Osd1, Version::Osd2] {
            let mut capability = Capability::all(version, ObjectType::Partition, Id::partition(0x1_0000));
            capability.integrity_algorithm = algorithm as u8;
            let credential =
                Credential::sign(version, capability, [9; 20], &Key::new(&[1; 32]).unwrap()).unwrap();
            let bytes = credential.to_bytes();
            assert_eq!(Credential::from_bytes(&bytes), Some(credential));
            assert!((0..bytes.len()).all(|len| {
                Credential::from_bytes(&bytes[..len]).is_none_or(|short| short.version != version)
            }));
        }
    }
}

#[test]
fn both_sides_of_an_exchange_get_the_same_master_key_and_nobody_else_does() {
    let (a, b) = (dh::Exponent::new([0x5A; 32]), dh::Exponent::new([0xC3; 32]));
    let (to_b, to_a) = (dh::exchange(&a.public()), dh::exchange(&b.public()));
    let at_a = a.shared(&dh::parse_exchange(&to_a).unwrap()).unwrap();
    let at_b = b.shared(&dh::parse_exchange(&to_b).unwrap()).unwrap();
    assert_eq!(at_a, at_b);
    let first = dh::master(Algorithm::HmacSha256, None, &at_a);
    let next = dh::master(Algorithm::HmacSha256, Some(&first), &at_a);
    assert_ne!(first, next);
    assert_ne!(first.authentication, first.generation);
    assert_eq!(KeyPair::from_bytes(&first.to_bytes()), Some(first.clone()));
    let proof = dh::confirmation(Algorithm::HmacSha256, &next.authentication, b"key-one");
    assert!(!dh::confirmation(Algorithm::HmacSha256, &first.authentication, b"key-one").is(proof.bytes()));
    // Values that would give the secret away.
    let mut one = [0; 256];
    assert_eq!(a.shared(&one), Err(dh::InvalidValue));
    one[255] = 1;
    assert_eq!(a.shared(&one), Err(dh::InvalidValue));
    assert_eq!(a.shared(&[0xFF; 256]), Err(dh::InvalidValue));
    assert_eq!(dh::parse_exchange(&to_a[..259]), None);
}

#[test]
fn a_response_is_checked_with_its_value_zeroed() {
    let (_, credential, _) = example(Algorithm::HmacSha256);
    let nonce = [5; 12];
    let mut sense = vec![0x72, 5, 0x24, 0, 0, 0, 0, 42, 2, 6, 0, 0, 0xC0, 0, 129, 0, 7, 32];
    sense.extend([0; 32]);
    let value = response(Algorithm::HmacSha256, &credential.key, &nonce, 2, &sense);
    sense[18..].copy_from_slice(value.bytes());
    assert!(check_response(Algorithm::HmacSha256, &credential.key, &nonce, 2, &sense));
    for at in 0..sense.len() {
        let mut altered = sense.clone();
        altered[at] ^= 1;
        assert!(!check_response(Algorithm::HmacSha256, &credential.key, &nonce, 2, &altered), "byte {at}");
    }
    assert!(!check_response(Algorithm::HmacSha256, &credential.key, &nonce, 0, &sense));
}

#[test]
fn data_that_was_altered_moved_or_cut_does_not_verify() {
    let key = Key::new(&[8; 32]).unwrap();
    let seal = |direction, data: &[&[u8]]| {
        let mut sealer = Sealer::new(Algorithm::HmacSha256, &key, &[1; 12], direction);
        data.iter().for_each(|part| sealer.update(part));
        sealer
    };
    let information = seal(Direction::Out, &[b"data", b"more"]).finish([8, 0, 0]);
    assert_eq!(information.len(), Sealer::information_len(Algorithm::HmacSha256, Direction::Out));
    assert!(seal(Direction::Out, &[b"dat", b"amore"]).verify([8, 0, 0], &information));
    assert!(!seal(Direction::Out, &[b"datamorE"]).verify([8, 0, 0], &information));
    assert!(!seal(Direction::Out, &[b"datamor"]).verify([8, 0, 0], &information));
    assert!(!seal(Direction::Out, &[b"datamore"]).verify([0, 8, 0], &information));
    assert!(!seal(Direction::In, &[b"datamore"]).verify([8, 0, 0], &information));
    assert!(!seal(Direction::Out, &[b"datamore"]).verify([8, 0, 0], &information[..55]));
}

#[test]
fn a_nonce_is_taken_once_within_its_window() {
    let window = nonce::Window { oldest: 1000, newest: 100 };
    let mut nonces = Nonces::new(10_000, 8);
    let at = |time: u64, n: u8| nonce::nonce(time, [n; 6]);
    assert_eq!(nonces.take(7, at(10_500, 1), 10_600, window), Ok(()));
    assert_eq!(nonces.take(7, at(10_500, 1), 10_600, window), Err(NonceError::NotUnique));
    assert_eq!(nonces.take(7, at(10_500, 2), 10_600, window), Ok(()));
    // Before the unit started, too old, too new.
    assert_eq!(nonces.take(7, at(10_000, 3), 10_600, window), Err(NonceError::OutOfRange));
    assert_eq!(nonces.take(7, at(10_900, 3), 12_000, window), Err(NonceError::OutOfRange));
    assert_eq!(nonces.take(7, at(12_101, 3), 12_000, window), Err(NonceError::OutOfRange));
    // A nonce that one partition has taken is new to another, unless it is older than the start.
    assert_eq!(nonces.take(8, at(10_500, 1), 10_600, window), Ok(()));
    assert_eq!(nonces.take(8, at(10_000, 1), 10_600, window), Err(NonceError::OutOfRange));
    // A wider window does not make a taken nonce valid again. With many nonces the oldest are
    // forgotten, and are refused from then on.
    assert_eq!(nonces.take(7, at(12_000, 3), 12_000, window), Ok(()));
    let wide = nonce::Window { oldest: 100_000, newest: 100 };
    assert_eq!(nonces.take(7, at(10_500, 1), 12_000, wide), Err(NonceError::NotUnique));
    for n in 10..16 {
        assert_eq!(nonces.take(7, at(12_001, n), 12_000, wide), Ok(()));
    }
    assert_eq!(nonces.take(7, at(10_500, 1), 12_000, wide), Err(NonceError::OutOfRange));
    assert_eq!(nonces.remembered(), 9);
    // No window is wider than an hour.
    let endless = nonce::Window { oldest: u64::MAX, newest: u64::MAX };
    assert_eq!(
        nonces.take(9, at(12_000, 1), 12_001 + nonce::MAX_LIMIT, endless),
        Err(NonceError::OutOfRange)
    );
    assert_eq!(
        nonces.take(9, at(12_001 + nonce::MAX_LIMIT, 1), 12_000, endless),
        Err(NonceError::OutOfRange)
    );
}

#[test]
fn nonces_of_one_partition_never_have_anothers_refused() {
    let window = nonce::Window::default();
    let narrow = nonce::Window { oldest: 0, newest: 0 };
    let at = |time: u64, n: u16| {
        let mut random = [0; 6];
        random[..2].copy_from_slice(&n.to_be_bytes());
        nonce::nonce(time, random)
    };
    let now = 1_000_000;
    let mut nonces = Nonces::new(0, 32);
    assert_eq!(nonces.take(1, at(now - 50_000, 0), now, window), Ok(()));
    // A window that is narrow there, and a flood as far ahead as may be.
    assert_eq!(nonces.take(2, at(now, 0), now, narrow), Ok(()));
    for n in 0..1000 {
        let _ = nonces.take(3, at(now + 10_000, n), now, window);
    }
    assert_eq!(nonces.take(1, at(now - 50_000, 1), now, window), Ok(()));
    assert_eq!(nonces.take(1, at(now - 50_000, 0), now, window), Err(NonceError::NotUnique));
    // However many partitions there are, memory ends, and the one that has most gives it back.
    for n in 0..1000u16 {
        let _ = nonces.take(u64::from(n % 40) + 10, at(now, n), now, window);
    }
    assert!(nonces.remembered() <= 32 * 16);
    assert_eq!(nonces.take(1, at(now - 50_000, 2), now, window), Ok(()));
}

proptest! {
    #[test]
    fn no_nonce_is_taken_twice_and_memory_is_bounded(
        list in proptest::collection::vec((0u64..60, 0u8..4, 0u64..40), 1..300),
        depth in 1usize..10,
    ) {
        let window = nonce::Window { oldest: 20, newest: 20 };
        let mut nonces = Nonces::new(0, depth);
        let mut taken = std::collections::HashSet::new();
        for (now, (time, n, partition)) in list.into_iter().enumerate() {
            let nonce = nonce::nonce(time, [n; 6]);
            if nonces.take(partition, nonce, now as u64 / 5, window).is_ok() {
                prop_assert!(taken.insert((partition, nonce)));
            }
            prop_assert!(nonces.remembered() <= depth * 16);
        }
    }

    #[test]
    fn any_bytes_are_a_credential_or_not(bytes in proptest::collection::vec(any::<u8>(), 100..160)) {
        if let Some(credential) = Credential::from_bytes(&bytes) {
            prop_assert_eq!(Credential::from_bytes(&credential.to_bytes()), Some(credential));
        }
        let _ = KeyPair::from_bytes(&bytes);
        let _ = response_icv_in(&bytes);
    }
}
