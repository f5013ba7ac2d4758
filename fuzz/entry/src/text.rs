//! Text of Login and Text PDUs: joining parts, pairs, and every form of value.

use crate::input::{Input, Seed};
use iscsi::keys::Key;
use iscsi::text::{self, Assembler, MAX_BINARY_LEN, MAX_KEY_LEN, Pairs, TextBuf};

/// A byte with how large the parts are, then the text, which comes in parts and is read as a whole.
pub fn keys(data: &[u8]) {
    let mut input = Input::new(data);
    let part = usize::from(input.u8()) + 1;
    let whole = input.rest();
    let mut assembler = Assembler::new(16_384);
    let mut parts = whole.chunks(part).peekable();
    let mut complete = false;
    while let Some(bytes) = parts.next() {
        match assembler.push(bytes, parts.peek().is_some()) {
            Ok(done) => complete = done,
            Err(_) => {
                assert!(whole.len() > 16_384 && assembler.text().is_empty());
                return;
            }
        }
    }
    if complete {
        assert_eq!(assembler.text(), whole);
    }
    let mut written = TextBuf::new();
    for pair in Pairs::new(whole) {
        let Ok(pair) = pair else { break };
        assert!(!pair.key.is_empty() && pair.key.len() <= MAX_KEY_LEN);
        written.put(pair.key, pair.value);
        value(pair.value);
        if let Some(key) = Key::from_name(pair.key) {
            assert_eq!(key.name(), pair.key);
        }
        let _ = iscsi::name::check_received(pair.value);
    }
    // Decoded pairs can be encoded and decoded again.
    let again: Vec<_> = Pairs::new(written.as_bytes()).collect();
    let first = Pairs::new(whole).take_while(Result::is_ok);
    assert!(first.eq(again.iter().copied()));
    let total = written.remaining();
    let mut taken = 0;
    while !written.is_empty() {
        let (bytes, more) = written.take_part(part);
        assert!(bytes.len() <= part && more != written.is_empty());
        taken += bytes.len();
    }
    assert_eq!(taken, total);
}

fn value(value: &str) {
    let _ = text::parse_bool(value);
    if let Some(number) = text::parse_number(value) {
        assert_eq!(text::parse_number(&number.to_string()), Some(number));
    }
    if let Some((low, high)) = text::parse_range(value) {
        assert!(low <= high);
    }
    if let Some(list) = text::parse_list(value) {
        assert!(list.count() <= value.len() + 1);
    }
    if let Some(bytes) = text::parse_binary(value, MAX_BINARY_LEN) {
        assert!(bytes.len() <= MAX_BINARY_LEN);
        assert_eq!(text::parse_binary(&text::to_hex(&bytes), MAX_BINARY_LEN), Some(bytes));
    }
    if iscsi::name::check(value).is_ok() {
        assert!(iscsi::name::eq(value, &iscsi::name::normalize(value)));
    }
}

/// Logins as they are sent, every form of value, and malformed pairs.
pub fn keys_seeds() -> Vec<(&'static str, Seed)> {
    let seed = |part: u8, text: &str| Seed::new().bytes([part]).bytes(text);
    vec![
        (
            "login",
            seed(
                255,
                "InitiatorName=iqn.1993-08.org.debian:01:8c7e1\0InitiatorAlias=h\0TargetName=iqn.2026-01.org.stag:x\0\
                 SessionType=Normal\0HeaderDigest=CRC32C,None\0DataDigest=None\0MaxRecvDataSegmentLength=262144\0\
                 DefaultTime2Wait=2\0IFMarker=No\0ErrorRecoveryLevel=0\0",
            ),
        ),
        ("parts", seed(3, "SendTargets=All\0X-org.stag.test=Reject\0MaxBurstLength=0x40000\0")),
        ("numbers", seed(255, "A=1~65535\0B=18446744073709551616\0C=0xFFFFFFFF\0D=007\0E=0x\0")),
        ("binary", seed(255, "CHAP_C=0x0123456789abcdef\0CHAP_R=0bAAECAwQFBgc=\0CHAP_I=255\0CHAP_N=me\0")),
        ("malformed", seed(7, "\0\0=x\0no-equals\0Key==value=\0last=without-nul")),
        (
            "names",
            seed(
                255,
                "TargetName=eui.02004567A425678D\0InitiatorName=naa.52004567BA64678D\0X=iqn.2001-04.COM.a:b\0",
            ),
        ),
    ]
}

/// An answer to SendTargets, or any other text, as records of targets and their portals.
pub fn discovery(data: &[u8]) {
    let Ok(records) = iscsi::discovery::read_records(data) else { return };
    // With the default port written out, an address may pass the limit of a value.
    let fits = |address: &iscsi::discovery::TargetAddress| address.to_string().len() <= text::MAX_VALUE_LEN;
    let mut out = TextBuf::new();
    records.iter().for_each(|record| record.put(&mut out));
    if records.iter().flat_map(|record| &record.addresses).all(fits) {
        assert_eq!(iscsi::discovery::read_records(out.as_bytes()).as_ref(), Ok(&records));
    }
    for address in records.iter().flat_map(|record| &record.addresses) {
        assert!(!address.to_string().contains(char::is_control));
    }
}

/// Records with all forms of addresses, and malformed ones.
pub fn discovery_seeds() -> Vec<(&'static str, Seed)> {
    let seed = |text: &str| Seed::new().bytes(text);
    vec![
        (
            "two-targets",
            seed(
                "TargetName=iqn.2026-01.org.stag:a\0TargetAddress=192.0.2.1:3260,1\0TargetAddress=[2001:db8::1]:860,2\0TargetName=iqn.2026-01.org.stag:b\0",
            ),
        ),
        (
            "names",
            seed(
                "TargetName=eui.02004567a425678d\0TargetAddress=storage.example.org,7\0TargetAddress=host\0",
            ),
        ),
        (
            "malformed",
            seed(
                "TargetAddress=1.2.3.4\0TargetName=x\0TargetName=iqn.2026-01.org.stag:a\0TargetAddress=[::1:3260\0TargetAddress=:,\0TargetAddress=h:99999,1\0TargetAddress=h:1,99999\0",
            ),
        ),
    ]
}
