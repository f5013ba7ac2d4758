//! Human-readable sizes: `4096`, `4k`, `1.5G`, `2TiB`.
//!
//! Every unit is binary (k is 1024), as in qemu-img and lvm. `GB` and the like are rejected: half
//! of their readers mean 10⁹ and half 2³⁰, and a disk's size must be unambiguous.

use std::fmt;

/// Why a text is not a size.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SizeError {
    /// The text does not begin with a number.
    #[error("`{0}` is not a size: write a number and a unit, as in 512M, 1G or 1.5T")]
    NotANumber(String),
    /// The letters after the number are not a unit.
    #[error(
        "`{unit}` is not a unit of size: write k, M, G, T or P (binary: 1k is 1024 bytes), or KiB, MiB, GiB, TiB, PiB"
    )]
    Unit { unit: String },
    /// The unit is decimal or ambiguous.
    #[error("`{unit}` can be read in two ways: write {instead} for {meaning}")]
    Ambiguous {
        unit: String,
        instead: &'static str,
        /// The meaning of that unit.
        meaning: &'static str,
    },
    /// The size is not a whole number of bytes.
    #[error("`{0}` is not a whole number of bytes")]
    Fraction(String),
    /// The size needs more than 63 bits.
    #[error("`{0}` is larger than any disk can be")]
    TooLarge(String),
}

/// Maximum number of digits after the decimal point.
const MAX_DECIMALS: usize = 6;

/// Reads a size in bytes. Accepts the units k, M, G, T, P in either case, alone or followed by `i`
/// or `iB`. Accepts a fraction (`1.5G`) if the result is a whole number of bytes. A bare number, or
/// one followed by `B`, is in bytes.
///
/// # Errors
/// A [`SizeError`] whose text says what to write instead. Sizes of 2⁶³ bytes and more are rejected:
/// file offsets end there.
pub fn parse_size(text: &str) -> Result<u64, SizeError> {
    let trimmed = text.trim();
    let number_len = trimmed.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(trimmed.len());
    let (number, unit) = trimmed.split_at(number_len);
    let (whole, decimals) = number.split_once('.').unwrap_or((number, ""));
    if whole.is_empty() || decimals.contains('.') || (number.contains('.') && decimals.is_empty()) {
        return Err(SizeError::NotANumber(text.to_owned()));
    }
    let shift = unit_shift(unit.trim_start())?;
    let too_large = || SizeError::TooLarge(text.to_owned());
    if decimals.len() > MAX_DECIMALS {
        return Err(SizeError::Fraction(text.to_owned()));
    }
    let whole: u64 = whole.parse().map_err(|_| too_large())?;
    let mut bytes = u128::from(whole) << shift;
    if !decimals.is_empty() {
        let scale = 10u128.pow(decimals.len() as u32);
        let fraction: u128 = decimals.parse().map_err(|_| SizeError::NotANumber(text.to_owned()))?;
        let scaled = fraction << shift;
        if scaled % scale != 0 {
            return Err(SizeError::Fraction(text.to_owned()));
        }
        bytes += scaled / scale;
    }
    u64::try_from(bytes).ok().filter(|&bytes| bytes <= i64::MAX as u64).ok_or_else(too_large)
}

fn unit_shift(unit: &str) -> Result<u32, SizeError> {
    const UNITS: [(&str, &str, &str, u32); 5] = [
        ("k", "KiB", "1024 bytes", 10),
        ("m", "MiB", "1048576 bytes", 20),
        ("g", "GiB", "2³⁰ bytes", 30),
        ("t", "TiB", "2⁴⁰ bytes", 40),
        ("p", "PiB", "2⁵⁰ bytes", 50),
    ];
    let lower = unit.to_ascii_lowercase();
    if lower.is_empty() || lower == "b" {
        return Ok(0);
    }
    for (letter, instead, meaning, shift) in UNITS {
        match lower.strip_prefix(letter) {
            Some("" | "i" | "ib") => return Ok(shift),
            Some("b") => return Err(SizeError::Ambiguous { unit: unit.to_owned(), instead, meaning }),
            _ => {}
        }
    }
    Err(SizeError::Unit { unit: unit.to_owned() })
}

/// Displays a size exactly, in the largest unit that divides it: `1G`, `1536M`, `513`.
/// [`parse_size`] reads it back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Size(
    /// Size in bytes.
    pub u64,
);

impl fmt::Display for Size {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let units = [(50, "P"), (40, "T"), (30, "G"), (20, "M"), (10, "k")];
        for (shift, unit) in units {
            if self.0 != 0 && self.0 % (1 << shift) == 0 {
                return write!(f, "{}{unit}", self.0 >> shift);
            }
        }
        write!(f, "{}", self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn units_are_binary_in_either_case() {
        for (text, bytes) in [
            ("0", 0),
            ("4096", 4096),
            ("512B", 512),
            ("4k", 4096),
            ("4K", 4096),
            ("4KiB", 4096),
            ("3Mi", 3 << 20),
            ("1G", 1 << 30),
            (" 2 TiB ", 2 << 40),
            ("1.5G", 3 << 29),
            ("0.5k", 512),
            ("7P", 7 << 50),
        ] {
            assert_eq!(parse_size(text), Ok(bytes), "{text}");
        }
    }

    #[test]
    fn what_is_no_size_is_refused_with_a_reason() {
        for text in ["", "G", ".5G", "1.", "1..5G", "-1", "1,5G"] {
            assert!(parse_size(text).is_err(), "{text}");
        }
        assert!(matches!(parse_size("1GB"), Err(SizeError::Ambiguous { instead: "GiB", .. })));
        assert!(matches!(parse_size("1x"), Err(SizeError::Unit { .. })));
        assert!(matches!(parse_size("0.3k"), Err(SizeError::Fraction(_))));
        assert!(matches!(parse_size("8192P"), Err(SizeError::TooLarge(_))));
        assert!(matches!(parse_size("99999999999999999999"), Err(SizeError::TooLarge(_))));
        assert!(matches!(parse_size("18446744073709551615P"), Err(SizeError::TooLarge(_))));
    }

    #[test]
    fn a_shown_size_reads_back() {
        for bytes in [0, 1, 511, 512, 1024, 1536, 1 << 20, 3 << 29, (1 << 40) + 1, i64::MAX as u64] {
            assert_eq!(parse_size(&Size(bytes).to_string()), Ok(bytes));
        }
        assert_eq!(Size(3 << 29).to_string(), "1536M");
    }
}
