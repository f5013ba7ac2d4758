//! iSCSI names: iqn., eui. and naa. (RFC 7143 §4.2.7), and their normal form.

/// The maximum length of an iSCSI name, bytes of UTF-8 (RFC 7143 §4.2.7.1).
pub const MAX_NAME_LEN: usize = 223;

/// Why an iSCSI name is invalid.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum NameError {
    /// It is empty, or longer than 223 bytes.
    #[error("an iSCSI name has 1 to 223 bytes")]
    Length,
    /// It begins with neither iqn., eui. nor naa.
    #[error("an iSCSI name begins with \"iqn.\", \"eui.\" or \"naa.\"")]
    Type,
    /// It contains a character that RFC 3722 forbids.
    #[error("an iSCSI name holds a character that RFC 3722 prohibits")]
    Character,
    /// `iqn.` without `yyyy-mm.` and a reversed domain name.
    #[error("an iqn. name is \"iqn.\" yyyy-mm \".\" reversed domain [\":\" anything]")]
    Iqn,
    /// `eui.` without exactly 16 hexadecimal digits.
    #[error("an eui. name has 16 hexadecimal digits")]
    Eui,
    /// `naa.` without exactly 16 or 32 hexadecimal digits.
    #[error("an naa. name has 16 or 32 hexadecimal digits")]
    Naa,
}

/// Checks a name of a configuration by all rules of RFC 7143 §4.2.7.
///
/// # Errors
/// The rule that the name violates.
pub fn check(name: &str) -> Result<(), NameError> {
    check_received(name)?;
    if let Some(rest) = strip_type(name, "iqn.") { check_iqn(rest) } else { Ok(()) }
}

/// Checks a name of a peer: length, characters and type. It does not check date and domain of an
/// iqn. name, in which real peers have errors. Names that pass can be compared by [`eq`].
///
/// # Errors
/// The rule that the name violates.
pub fn check_received(name: &str) -> Result<(), NameError> {
    if name.is_empty() || name.len() > MAX_NAME_LEN {
        return Err(NameError::Length);
    }
    if !name.chars().all(is_name_char) {
        return Err(NameError::Character);
    }
    let hex = |s: &str| s.bytes().all(|b| b.is_ascii_hexdigit());
    if strip_type(name, "iqn.").is_some_and(|rest| !rest.is_empty()) {
        Ok(())
    } else if let Some(rest) = strip_type(name, "eui.") {
        if rest.len() == 16 && hex(rest) { Ok(()) } else { Err(NameError::Eui) }
    } else if let Some(rest) = strip_type(name, "naa.") {
        if (rest.len() == 16 || rest.len() == 32) && hex(rest) { Ok(()) } else { Err(NameError::Naa) }
    } else {
        Err(NameError::Type)
    }
}

/// Whether two names are equal, ignoring case (RFC 3722 folds it).
pub fn eq(a: &str, b: &str) -> bool {
    a.eq_ignore_ascii_case(b) || (!a.is_ascii() && a.to_lowercase() == b.to_lowercase())
}

/// The normal form of a name, in lower case, for comparison byte by byte.
pub fn normalize(name: &str) -> String {
    name.to_lowercase()
}

/// Whether a name may contain `c`: ASCII letters, digits, `-`, `.`, `:`, and letters beyond ASCII
/// (RFC 3722 §6). The RFC forbids underscore, but real initiators send it.
fn is_name_char(c: char) -> bool {
    c.is_ascii_alphanumeric() || matches!(c, '-' | '.' | ':' | '_') || (!c.is_ascii() && c.is_alphanumeric())
}

fn strip_type<'a>(name: &'a str, kind: &str) -> Option<&'a str> {
    let (head, rest) = name.split_at_checked(4)?;
    head.eq_ignore_ascii_case(kind).then_some(rest)
}

fn check_iqn(rest: &str) -> Result<(), NameError> {
    let date = rest.as_bytes().get(..8).ok_or(NameError::Iqn)?;
    let digits = |r: std::ops::Range<usize>| date[r].iter().all(u8::is_ascii_digit);
    if !(digits(0..4) && date[4] == b'-' && digits(5..7) && date[7] == b'.') {
        return Err(NameError::Iqn);
    }
    let month = (date[5] - b'0') * 10 + (date[6] - b'0');
    // `rest` begins with eight ASCII bytes, so this is a character boundary.
    let domain = rest[8..].split(':').next().unwrap_or("");
    let labels_ok = domain.split('.').all(|l| !l.is_empty() && !l.starts_with('-') && !l.ends_with('-'));
    if (1..=12).contains(&month) && labels_ok { Ok(()) } else { Err(NameError::Iqn) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn names_of_all_three_types_pass() {
        for name in [
            "iqn.2001-04.com.example:storage:diskarrays-sn-a8675309",
            "iqn.2001-04.com.example",
            "eui.02004567A425678D",
            "naa.52004567BA64678D",
            "naa.62004567BA64678D0123456789ABCDEF",
            "IQN.2001-04.com.example:UPPER",
        ] {
            assert_eq!(check(name), Ok(()), "{name}");
        }
    }

    #[test]
    fn each_fault_of_a_name_is_named() {
        for (name, want) in [
            ("", NameError::Length),
            ("disk", NameError::Type),
            ("iqn.", NameError::Type),
            ("iqn.2001-13.com.example", NameError::Iqn),
            ("iqn.2001-00.com.example", NameError::Iqn),
            ("iqn.201-01.com.example", NameError::Iqn),
            ("iqn.2001-01.", NameError::Iqn),
            ("iqn.2001-01.com..example", NameError::Iqn),
            ("iqn.2001-04.com.example:a b", NameError::Character),
            ("iqn.2001-04.com.example:a/b", NameError::Character),
            ("eui.0200", NameError::Eui),
            ("eui.02004567A425678Z", NameError::Eui),
            ("naa.52004567BA64678D0", NameError::Naa),
        ] {
            assert_eq!(check(name), Err(want), "{name}");
        }
        assert_eq!(check(&format!("iqn.2001-04.com.example:{}", "x".repeat(220))), Err(NameError::Length));
    }

    #[test]
    fn names_compare_without_case() {
        assert!(eq("iqn.2001-04.com.EXAMPLE:a", "iqn.2001-04.com.example:A"));
        assert!(!eq("iqn.2001-04.com.example:a", "iqn.2001-04.com.example:b"));
    }

    proptest! {
        #[test]
        fn any_string_is_checked_without_panic(name in "\\PC{0,40}") {
            let _ = check(&name);
            let _ = check(&format!("iqn.{name}"));
        }
    }
}
