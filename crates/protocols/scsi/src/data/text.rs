//! Left-aligned ASCII fields (SPC-4 §4.3.1).

use std::fmt;

/// A field of `N` bytes of printable ASCII, padded with spaces on the right.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Ascii<const N: usize>([u8; N]);

impl<const N: usize> Ascii<N> {
    /// `text`, truncated to `N` characters; a space replaces each character other than printable
    /// ASCII.
    pub fn new(text: &str) -> Self {
        let mut field = [b' '; N];
        for (to, from) in field.iter_mut().zip(text.chars()) {
            *to = if matches!(from, ' '..='~') { from as u8 } else { b' ' };
        }
        Self(field)
    }

    /// A peer's field: a space replaces NULs and other unprintable bytes.
    pub(crate) fn from_wire(bytes: [u8; N]) -> Self {
        Self(bytes.map(|b| if matches!(b, b' '..=b'~') { b } else { b' ' }))
    }

    /// The bytes on the wire.
    pub const fn bytes(&self) -> &[u8; N] {
        &self.0
    }

    /// The text without its padding.
    pub fn as_str(&self) -> &str {
        // Both constructors accept only printable ASCII.
        std::str::from_utf8(&self.0).unwrap_or_default().trim_end()
    }
}

impl<const N: usize> fmt::Display for Ascii<N> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

impl<const N: usize> fmt::Debug for Ascii<N> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self.as_str(), f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_field_is_padded_cut_and_kept_printable() {
        assert_eq!(Ascii::<8>::new("STAG").bytes(), b"STAG    ");
        assert_eq!(Ascii::<4>::new("0.1.0-dev").bytes(), b"0.1.");
        assert_eq!(Ascii::<4>::new("a\né~").bytes(), b"a  ~");
        assert_eq!(Ascii::<4>::from_wire(*b"ab\0\xFF").as_str(), "ab");
    }
}
