//! Percent-encoding (RFC 3986 §2.1) of one segment of a path.

/// `text` with `%` and two hexadecimal digits replaced by their byte; `None` for a `%` without
/// them, or bytes that are no UTF-8.
pub fn decoded(text: &str) -> Option<String> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.bytes();
    while let Some(byte) = rest.next() {
        bytes.push(match byte {
            b'%' => {
                let digit = |byte: u8| char::from(byte).to_digit(16);
                let (high, low) = (digit(rest.next()?)?, digit(rest.next()?)?);
                u8::try_from(high * 16 + low).ok()?
            }
            other => other,
        });
    }
    String::from_utf8(bytes).ok()
}

/// `text` as one segment of a path: all but unreserved characters and `:` are encoded.
pub fn encoded(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for byte in text.bytes() {
        match byte {
            b'A'..=b'Z' | b'a'..=b'z' | b'0'..=b'9' | b'-' | b'.' | b'_' | b'~' | b':' => {
                out.push(char::from(byte));
            }
            other => out.push_str(&format!("%{other:02X}")),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_encoded_is_decoded() {
        for text in ["", "iqn.2026-01.org.example:a", "/data/a b", "ü%\"<>&'\n", "a+b"] {
            let segment = encoded(text);
            assert_eq!(decoded(&segment).as_deref(), Some(text));
            assert!(segment.bytes().all(|byte| byte.is_ascii_graphic() && !b"/<>\"'&?#+".contains(&byte)));
        }
    }
}
