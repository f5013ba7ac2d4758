//! Text: the `key=value` pairs of Login and Text PDUs (RFC 7143 §6.1), their value types, and
//! joining and splitting text over several PDUs (C bit). It knows no keys; `keys` defines them.
//!
//! Every length is bounded: a key by [`MAX_KEY_LEN`], a value by its key's limit ([`MAX_VALUE_LEN`]
//! by default), the text of one exchange by the limit given to [`Assembler`].

use std::fmt::Write as _;

/// The maximum length of a key name, bytes (RFC 7143 §6.1).
pub const MAX_KEY_LEN: usize = 63;
/// The default maximum length of a value, bytes (RFC 7143 §6.1).
pub const MAX_VALUE_LEN: usize = 255;
/// The maximum length of a decoded large-binary-value (CHAP challenges and responses), bytes (RFC
/// 7143 §12.1.3).
pub const MAX_BINARY_LEN: usize = 1024;
/// The maximum length of a value in [`Pairs`], bytes: a large binary value in its longest encoding,
/// or a list.
pub(crate) const MAX_RAW_VALUE_LEN: usize = 2 + 2 * MAX_BINARY_LEN;
/// `MaxRecvDataSegmentLength` of both sides during login, bytes (RFC 7143 §6.3).
pub const LOGIN_SEGMENT_LEN: usize = 8192;

/// Why a text is invalid.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum TextError {
    /// A pair has no `=`.
    #[error("a text item has no \"=\"")]
    NoEquals,
    /// A key is empty, too long, or contains a character that RFC 7143 §6.1 forbids.
    #[error("a key name is malformed")]
    BadKey,
    /// A value is longer than any key permits.
    #[error("a value is too long")]
    LongValue,
    /// A value is not UTF-8.
    #[error("a value is not UTF-8")]
    NotUtf8,
    /// The text of one exchange is longer, or has more parts, than the receiver permits.
    #[error("the text is longer than the limit")]
    TooLong,
}

/// One `key=value` pair.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Pair<'a> {
    /// The key's name.
    pub key: &'a str,
    /// The value, as sent.
    pub value: &'a str,
}

/// An iterator over the pairs of a text. An error ends it.
///
/// Skips empty items (two NULs in a row) and accepts a missing last NUL: real peers send both.
#[derive(Debug, Clone)]
pub struct Pairs<'a> {
    rest: &'a [u8],
}

impl<'a> Pairs<'a> {
    /// The pairs of `text`, which must be complete (no C bit pending).
    pub fn new(text: &'a [u8]) -> Self {
        Pairs { rest: text }
    }

    fn parse(item: &'a [u8]) -> Result<Pair<'a>, TextError> {
        let eq = item.iter().position(|&b| b == b'=').ok_or(TextError::NoEquals)?;
        let (key, value) = (&item[..eq], &item[eq + 1..]);
        if key.is_empty() || key.len() > MAX_KEY_LEN || !key.iter().all(|&b| is_key_byte(b)) {
            return Err(TextError::BadKey);
        }
        if value.len() > MAX_RAW_VALUE_LEN {
            return Err(TextError::LongValue);
        }
        let key = std::str::from_utf8(key).map_err(|_| TextError::BadKey)?;
        let value = std::str::from_utf8(value).map_err(|_| TextError::NotUtf8)?;
        Ok(Pair { key, value })
    }
}

/// Whether a key may contain the byte: letters, digits and `. - + @ _` of a standard label, and the
/// `#` of `X#NodeArchitecture` (RFC 7143 §6.1, §13.26).
fn is_key_byte(b: u8) -> bool {
    b.is_ascii_alphanumeric() || b".-+@_#".contains(&b)
}

impl<'a> Iterator for Pairs<'a> {
    type Item = Result<Pair<'a>, TextError>;

    fn next(&mut self) -> Option<Self::Item> {
        loop {
            if self.rest.is_empty() {
                return None;
            }
            let end = self.rest.iter().position(|&b| b == 0).unwrap_or(self.rest.len());
            let item = &self.rest[..end];
            self.rest = self.rest.get(end + 1..).unwrap_or(&[]);
            if item.is_empty() {
                continue;
            }
            let pair = Self::parse(item);
            if pair.is_err() {
                self.rest = &[];
            }
            return Some(pair);
        }
    }
}

/// An outgoing text, sent in parts that fit the peer's limit.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct TextBuf {
    bytes: Vec<u8>,
    sent: usize,
}

impl TextBuf {
    /// An empty text.
    pub fn new() -> Self {
        Self::default()
    }

    /// Appends `key=value\0`. Truncates the value at a NUL, which would otherwise forge a pair.
    pub fn put(&mut self, key: &str, value: &str) {
        let value = value.split('\0').next().unwrap_or("");
        self.bytes.extend_from_slice(key.as_bytes());
        self.bytes.push(b'=');
        self.bytes.extend_from_slice(value.as_bytes());
        self.bytes.push(0);
    }

    /// Appends a number in decimal.
    pub fn put_number(&mut self, key: &str, value: u64) {
        let mut digits = arrayvec::ArrayString::<20>::new();
        // 20 digits hold every u64.
        let _ = write!(digits, "{value}");
        self.put(key, &digits);
    }

    /// Appends `Yes` or `No`.
    pub fn put_bool(&mut self, key: &str, value: bool) {
        self.put(key, if value { "Yes" } else { "No" });
    }

    /// Appends bytes in hex form (`0x…`).
    pub fn put_binary(&mut self, key: &str, value: &[u8]) {
        self.put(key, &to_hex(value));
    }

    /// Appends another text.
    pub fn append(&mut self, other: &TextBuf) {
        self.bytes.extend_from_slice(&other.bytes[other.sent..]);
    }

    /// Whether all bytes written have been taken.
    pub fn is_empty(&self) -> bool {
        self.sent == self.bytes.len()
    }

    /// Bytes not yet taken.
    pub fn remaining(&self) -> usize {
        self.bytes.len() - self.sent
    }

    /// The memory in use, bytes.
    pub fn held(&self) -> usize {
        self.bytes.capacity()
    }

    /// All bytes written, taken or not.
    pub fn as_bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// Takes the next part of at most `max` bytes. Also returns whether more follows (the C bit,
    /// RFC 7143 §11.10.2).
    pub fn take_part(&mut self, max: usize) -> (Vec<u8>, bool) {
        let end = self.bytes.len().min(self.sent.saturating_add(max.max(1)));
        let part = self.bytes[self.sent..end].to_vec();
        self.sent = end;
        let more = self.sent < self.bytes.len();
        if !more {
            self.bytes.clear();
            self.sent = 0;
        }
        (part, more)
    }
}

/// Joins the parts of a text received in several PDUs with the C bit.
#[derive(Debug, Clone)]
pub struct Assembler {
    bytes: Vec<u8>,
    max_bytes: usize,
    complete: bool,
}

impl Assembler {
    /// Joins at most `max_bytes` of text.
    pub fn new(max_bytes: usize) -> Self {
        Assembler { bytes: Vec::new(), max_bytes, complete: true }
    }

    /// Adds a PDU's text. `more` is its C bit. Returns whether the text is now complete. If so,
    /// read it with [`Assembler::text`] before the next call, which starts a new text.
    ///
    /// # Errors
    /// [`TextError::TooLong`] above the limit; the parts received are dropped.
    pub fn push(&mut self, data: &[u8], more: bool) -> Result<bool, TextError> {
        if self.complete {
            self.bytes.clear();
        }
        if self.bytes.len().saturating_add(data.len()) > self.max_bytes {
            self.bytes = Vec::new();
            self.complete = true;
            return Err(TextError::TooLong);
        }
        self.bytes.extend_from_slice(data);
        self.complete = !more;
        Ok(self.complete)
    }

    /// The memory in use, bytes.
    pub fn held(&self) -> usize {
        self.bytes.capacity()
    }

    /// The text received so far.
    pub fn text(&self) -> &[u8] {
        &self.bytes
    }

    /// Takes the whole text; the next call to [`Assembler::push`] starts a new text.
    pub fn take(&mut self) -> Vec<u8> {
        self.complete = true;
        std::mem::take(&mut self.bytes)
    }

    /// Whether the text received is incomplete.
    pub fn is_pending(&self) -> bool {
        !self.complete
    }

    /// Drops the text received.
    pub fn reset(&mut self) {
        self.bytes = Vec::new();
        self.complete = true;
    }
}

/// Parses `Yes` or `No` (RFC 7143 §6.1 boolean-value).
pub fn parse_bool(value: &str) -> Option<bool> {
    match value {
        "Yes" => Some(true),
        "No" => Some(false),
        _ => None,
    }
}

/// Parses a numerical-value: decimal, or hex with `0x`/`0X`, below 2^64 (RFC 7143 §6.1).
pub fn parse_number(value: &str) -> Option<u64> {
    if let Some(hex) = strip_hex(value) {
        if hex.is_empty() || !hex.bytes().all(|b| b.is_ascii_hexdigit()) {
            return None;
        }
        return u64::from_str_radix(hex, 16).ok();
    }
    if value.is_empty() || !value.bytes().all(|b| b.is_ascii_digit()) {
        return None;
    }
    value.parse().ok()
}

/// Parses a numerical-range `low~high`, or a single number as a range of one (RFC 7143 §6.1).
pub fn parse_range(value: &str) -> Option<(u64, u64)> {
    let (low, high) = match value.split_once('~') {
        Some((low, high)) => (parse_number(low)?, parse_number(high)?),
        None => {
            let n = parse_number(value)?;
            (n, n)
        }
    };
    (low <= high).then_some((low, high))
}

/// Parses a list-of-values. `None` if it is malformed: each member must have 1 to [`MAX_VALUE_LEN`]
/// bytes (RFC 7143 §6.1).
pub fn parse_list(value: &str) -> Option<impl Iterator<Item = &str>> {
    value.split(',').all(|v| !v.is_empty() && v.len() <= MAX_VALUE_LEN).then(|| value.split(','))
}

/// Parses a binary-value in hex (`0x…`) or base64 (`0b…`), at most `max` decoded bytes (RFC 7143
/// §6.1).
///
/// An odd number of hex digits is read with a leading `0`, as in a number.
pub fn parse_binary(value: &str, max: usize) -> Option<Vec<u8>> {
    let bytes = if let Some(hex) = strip_hex(value) {
        if hex.len().div_ceil(2) > max {
            return None;
        }
        from_hex(hex)?
    } else {
        let b64 = value.strip_prefix("0b").or_else(|| value.strip_prefix("0B"))?;
        if b64.len() / 4 * 3 > max + 3 {
            return None;
        }
        from_base64(b64)?
    };
    (!bytes.is_empty() && bytes.len() <= max).then_some(bytes)
}

fn strip_hex(value: &str) -> Option<&str> {
    value.strip_prefix("0x").or_else(|| value.strip_prefix("0X"))
}

/// Encodes bytes as `0x…` in lower case.
pub fn to_hex(bytes: &[u8]) -> String {
    let mut out = String::with_capacity(2 + 2 * bytes.len());
    out.push_str("0x");
    for b in bytes {
        // Writing to a String cannot fail.
        let _ = write!(out, "{b:02x}");
    }
    out
}

fn from_hex(digits: &str) -> Option<Vec<u8>> {
    let digits = digits.as_bytes();
    let nibble = |b: u8| (b as char).to_digit(16).map(|d| d as u8);
    let mut out = Vec::with_capacity(digits.len().div_ceil(2));
    let (first, rest) = digits.split_at(digits.len() % 2);
    if let [odd] = first {
        out.push(nibble(*odd)?);
    }
    for pair in rest.chunks_exact(2) {
        out.push(nibble(pair[0])? << 4 | nibble(pair[1])?);
    }
    Some(out)
}

/// Decodes RFC 4648 base64. Padding may be missing, as from some peers, but must be correct if
/// present.
fn from_base64(text: &str) -> Option<Vec<u8>> {
    let sextet = |b: u8| -> Option<u32> {
        Some(match b {
            b'A'..=b'Z' => b - b'A',
            b'a'..=b'z' => b - b'a' + 26,
            b'0'..=b'9' => b - b'0' + 52,
            b'+' => 62,
            b'/' => 63,
            _ => return None,
        } as u32)
    };
    let body = text.trim_end_matches('=');
    let padding = text.len() - body.len();
    if padding > 2 || (padding > 0 && text.len() % 4 != 0) {
        return None;
    }
    let mut out = Vec::with_capacity(body.len() / 4 * 3 + 3);
    for group in body.as_bytes().chunks(4) {
        let mut bits = 0;
        for &b in group {
            bits = bits << 6 | sextet(b)?;
        }
        match group.len() {
            4 => out.extend_from_slice(&bits.to_be_bytes()[1..]),
            3 => out.extend_from_slice(&(bits >> 2).to_be_bytes()[2..]),
            2 => out.push((bits >> 4) as u8),
            _ => return None,
        }
    }
    Some(out)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn pairs(text: &[u8]) -> Vec<Result<(&str, &str), TextError>> {
        Pairs::new(text).map(|p| p.map(|p| (p.key, p.value))).collect()
    }

    #[test]
    fn pairs_are_read_in_order() {
        let got =
            pairs(b"InitiatorName=iqn.2026-01.org.example:a\0HeaderDigest=CRC32C,None\0X-org.example.k=\0");
        assert_eq!(
            got,
            [
                Ok(("InitiatorName", "iqn.2026-01.org.example:a")),
                Ok(("HeaderDigest", "CRC32C,None")),
                Ok(("X-org.example.k", "")),
            ]
        );
    }

    #[test]
    fn a_value_may_hold_an_equals_sign() {
        assert_eq!(pairs(b"TargetAlias=a=b\0"), [Ok(("TargetAlias", "a=b"))]);
    }

    #[test]
    fn empty_items_and_a_missing_last_nul_are_forgiven() {
        assert_eq!(pairs(b"\0\0A=1\0\0B=2"), [Ok(("A", "1")), Ok(("B", "2"))]);
    }

    #[test]
    fn malformed_items_end_the_text() {
        assert_eq!(pairs(b"A\0B=2\0"), [Err(TextError::NoEquals)]);
        assert_eq!(pairs(b"=1\0"), [Err(TextError::BadKey)]);
        assert_eq!(pairs(b"A B=1\0"), [Err(TextError::BadKey)]);
        assert_eq!(pairs(b"A=\xff\0"), [Err(TextError::NotUtf8)]);
        assert_eq!(pairs(format!("{}=1\0", "K".repeat(64)).as_bytes()), [Err(TextError::BadKey)]);
        assert_eq!(pairs(format!("{}=1\0", "K".repeat(63)).as_bytes()).len(), 1);
        assert_eq!(pairs(format!("K={}\0", "v".repeat(3000)).as_bytes()), [Err(TextError::LongValue)]);
    }

    #[test]
    fn numbers_are_decimal_or_hex_and_below_two_to_the_64() {
        for (text, want) in [
            ("0", Some(0)),
            ("262144", Some(262_144)),
            ("0x1F", Some(31)),
            ("0X1f", Some(31)),
            ("18446744073709551615", Some(u64::MAX)),
            ("18446744073709551616", None),
            ("0x", None),
            ("", None),
            ("-1", None),
            ("+1", None),
            ("0x+1", None),
            (" 1", None),
            ("1 ", None),
            ("0b1", None),
        ] {
            assert_eq!(parse_number(text), want, "{text:?}");
        }
    }

    #[test]
    fn ranges_are_ordered() {
        assert_eq!(parse_range("2048~65535"), Some((2048, 65535)));
        assert_eq!(parse_range("7"), Some((7, 7)));
        assert_eq!(parse_range("9~8"), None);
        assert_eq!(parse_range("9~"), None);
    }

    #[test]
    fn lists_have_no_empty_member() {
        assert_eq!(parse_list("CRC32C,None").map(|l| l.collect::<Vec<_>>()), Some(vec!["CRC32C", "None"]));
        assert!(parse_list("").is_none());
        assert!(parse_list("a,,b").is_none());
        assert!(parse_list(&"x".repeat(256)).is_none());
    }

    #[test]
    fn binary_values_in_hex_and_base64_are_decoded() {
        assert_eq!(parse_binary("0x0aFf", 8), Some(vec![0x0a, 0xff]));
        assert_eq!(parse_binary("0xaff", 8), Some(vec![0x0a, 0xff]));
        assert_eq!(parse_binary("0bAAECAw==", 8), Some(vec![0, 1, 2, 3]));
        assert_eq!(parse_binary("0bAAECAw", 8), Some(vec![0, 1, 2, 3]));
        assert_eq!(parse_binary("0BAAEC", 8), Some(vec![0, 1, 2]));
        for bad in ["0x", "0xzz", "0b", "0bA", "0bA===", "0bAA=", "0bA*==", "12", "", "0xé0"] {
            assert_eq!(parse_binary(bad, 8), None, "{bad:?}");
        }
        assert_eq!(parse_binary("0x112233", 2), None);
        assert_eq!(parse_binary("0bAAEC", 2), None);
    }

    #[test]
    fn a_nul_in_a_value_cannot_forge_a_pair() {
        let mut text = TextBuf::new();
        text.put("TargetAlias", "x\0AuthMethod=None");
        assert_eq!(pairs(text.as_bytes()), [Ok(("TargetAlias", "x"))]);
    }

    #[test]
    fn an_assembler_holds_no_more_than_its_limit() {
        let mut a = Assembler::new(10);
        assert_eq!(a.push(b"A=12345", true), Ok(false));
        assert!(a.is_pending());
        assert_eq!(a.push(b"6789", false), Err(TextError::TooLong));
        assert_eq!(a.push(b"B=1\0", false), Ok(true));
        assert_eq!(a.text(), b"B=1\0");
    }

    proptest! {
        #[test]
        fn any_bytes_parse_without_panic(bytes in proptest::collection::vec(any::<u8>(), 0..600)) {
            for pair in Pairs::new(&bytes).flatten() {
                let _ = parse_number(pair.value);
                let _ = parse_range(pair.value);
                let _ = parse_binary(pair.value, 64);
                let _ = parse_list(pair.value).map(Iterator::count);
            }
        }

        #[test]
        fn hex_of_any_bytes_decodes_to_them(bytes in proptest::collection::vec(any::<u8>(), 1..100)) {
            prop_assert_eq!(parse_binary(&to_hex(&bytes), 100), Some(bytes));
        }

        #[test]
        fn a_text_split_anywhere_assembles_to_itself(
            values in proptest::collection::vec("[a-z,:./]{0,80}", 0..12), max in 1usize..120,
        ) {
            let mut text = TextBuf::new();
            for (i, v) in values.iter().enumerate() {
                text.put(&format!("K{i}"), v);
            }
            let whole = text.as_bytes().to_vec();
            let mut assembler = Assembler::new(4096);
            loop {
                let (part, more) = text.take_part(max);
                prop_assert!(part.len() <= max);
                let complete = assembler.push(&part, more).unwrap();
                prop_assert_eq!(complete, !more);
                if complete { break; }
            }
            prop_assert_eq!(assembler.text(), &whole[..]);
            prop_assert!(text.is_empty());
            prop_assert_eq!(Pairs::new(&whole).count(), values.len());
        }
    }
}
