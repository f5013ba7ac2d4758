//! XDR (RFC 4506): a bounded reader of received bytes, a writer, and [`Xdr`], which ties a type to
//! its form on the wire in both directions. Reading never allocates; it borrows from the record.

use std::net::IpAddr;
use std::ops::Range;

use arrayvec::ArrayVec;

mod chain;
mod declare;
mod list;
#[cfg(test)]
mod tests;

pub use chain::{Chain, ChainIter, Chained};
pub use list::{List, ListIter};

/// Every item's size is a multiple of this many bytes (RFC 4506 §3).
pub const UNIT: usize = 4;

/// The error in received XDR.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Malformed {
    /// An item reaches beyond the end of the data.
    #[error("the data ends at byte {at}, within an item")]
    Truncated {
        /// Offset of the item, bytes.
        at: usize,
    },
    /// A variable-length item longer than its limit.
    #[error("an item of length {length} exceeds its limit of {limit}")]
    TooLong {
        /// The length that the sender states, in bytes or elements.
        length: u32,
        /// The longest that is accepted.
        limit: usize,
    },
    /// A boolean that is neither 0 nor 1 (RFC 4506 §4.4).
    #[error("{0} is not a boolean")]
    Bool(u32),
    /// A number that an enumeration or union does not define.
    #[error("{what} has no value {value}")]
    Unknown {
        /// The type's name.
        what: &'static str,
        /// The number.
        value: u32,
    },
    /// Bytes after the last item.
    #[error("{0} bytes follow the last item")]
    Trailing(usize),
}

/// The padding that follows `length` bytes of opaque data (RFC 4506 §4.10), 0 to 3 bytes.
pub fn padding(length: usize) -> &'static [u8] {
    &[0; UNIT - 1][..length.wrapping_neg() % UNIT]
}

/// Reads items from the start of a slice.
#[derive(Debug, Clone, Copy)]
pub struct Reader<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl<'a> Reader<'a> {
    /// At the start of `bytes`.
    pub fn new(bytes: &'a [u8]) -> Self {
        Reader { bytes, at: 0 }
    }

    /// Offset of the next item, bytes.
    pub fn position(&self) -> usize {
        self.at
    }

    /// Bytes that are left.
    pub fn remaining(&self) -> &'a [u8] {
        self.bytes.get(self.at..).unwrap_or_default()
    }

    /// Bytes read since `start`, an earlier [`Self::position`].
    fn since(&self, start: usize) -> &'a [u8] {
        self.bytes.get(start..self.at).unwrap_or_default()
    }

    fn chunk<const N: usize>(&mut self) -> Result<[u8; N], Malformed> {
        let chunk = self.remaining().first_chunk().ok_or(Malformed::Truncated { at: self.at })?;
        self.at += N;
        Ok(*chunk)
    }

    /// An unsigned integer (§4.2).
    ///
    /// # Errors
    /// [`Malformed::Truncated`].
    pub fn u32(&mut self) -> Result<u32, Malformed> {
        self.chunk().map(u32::from_be_bytes)
    }

    /// An unsigned hyper integer (§4.5).
    ///
    /// # Errors
    /// [`Malformed::Truncated`].
    pub fn u64(&mut self) -> Result<u64, Malformed> {
        self.chunk().map(u64::from_be_bytes)
    }

    /// A boolean (§4.4).
    ///
    /// # Errors
    /// [`Malformed::Truncated`], [`Malformed::Bool`].
    pub fn bool(&mut self) -> Result<bool, Malformed> {
        match self.u32()? {
            0 => Ok(false),
            1 => Ok(true),
            other => Err(Malformed::Bool(other)),
        }
    }

    /// `length` bytes and their padding, as a range of the data. The padding's value is ignored, as
    /// other implementations do.
    ///
    /// # Errors
    /// [`Malformed::Truncated`].
    pub fn payload(&mut self, length: usize) -> Result<Range<usize>, Malformed> {
        let at = self.at;
        let end = at.checked_add(length).ok_or(Malformed::Truncated { at })?;
        let padded = end.checked_add(padding(length).len()).ok_or(Malformed::Truncated { at })?;
        if padded > self.bytes.len() {
            return Err(Malformed::Truncated { at });
        }
        self.at = padded;
        Ok(at..end)
    }

    /// Opaque data of fixed length (§4.9).
    ///
    /// # Errors
    /// [`Malformed::Truncated`].
    pub fn fixed(&mut self, length: usize) -> Result<&'a [u8], Malformed> {
        let range = self.payload(length)?;
        Ok(self.bytes.get(range).unwrap_or_default())
    }

    /// A count of bytes or elements, at most `limit`.
    ///
    /// # Errors
    /// [`Malformed::Truncated`], [`Malformed::TooLong`].
    pub fn length(&mut self, limit: usize) -> Result<usize, Malformed> {
        let length = self.u32()?;
        usize::try_from(length).ok().filter(|it| *it <= limit).ok_or(Malformed::TooLong { length, limit })
    }

    /// Opaque data or a string of at most `limit` bytes (§4.10, §4.11).
    ///
    /// # Errors
    /// [`Malformed::Truncated`], [`Malformed::TooLong`].
    pub fn opaque(&mut self, limit: usize) -> Result<&'a [u8], Malformed> {
        let length = self.length(limit)?;
        self.fixed(length)
    }

    /// Checks that nothing is left.
    ///
    /// # Errors
    /// [`Malformed::Trailing`].
    pub fn end(&self) -> Result<(), Malformed> {
        match self.remaining().len() {
            0 => Ok(()),
            left => Err(Malformed::Trailing(left)),
        }
    }
}

/// Appends items to a buffer of the caller's.
#[derive(Debug)]
pub struct Writer<'b> {
    out: &'b mut Vec<u8>,
}

impl<'b> Writer<'b> {
    /// Appends to `out`.
    pub fn new(out: &'b mut Vec<u8>) -> Self {
        Writer { out }
    }

    /// Length of the whole buffer, bytes.
    pub fn position(&self) -> usize {
        self.out.len()
    }

    /// Removes everything written at `position` and after it.
    pub fn truncate(&mut self, position: usize) {
        self.out.truncate(position);
    }

    /// Replaces the integer at `position`, which was written before.
    pub fn replace_u32(&mut self, position: usize, value: u32) {
        if let Some(place) = self.out.get_mut(position..).and_then(|rest| rest.first_chunk_mut::<4>()) {
            *place = value.to_be_bytes();
        }
    }

    /// An unsigned integer (§4.2).
    pub fn u32(&mut self, value: u32) {
        self.out.extend_from_slice(&value.to_be_bytes());
    }

    /// An unsigned hyper integer (§4.5).
    pub fn u64(&mut self, value: u64) {
        self.out.extend_from_slice(&value.to_be_bytes());
    }

    /// A boolean (§4.4).
    pub fn bool(&mut self, value: bool) {
        self.u32(value.into());
    }

    /// Items that are encoded already.
    pub fn raw(&mut self, items: &[u8]) {
        self.out.extend_from_slice(items);
    }

    /// Opaque data of fixed length, with its padding (§4.9).
    pub fn fixed(&mut self, bytes: &[u8]) {
        self.out.extend_from_slice(bytes);
        self.out.extend_from_slice(padding(bytes.len()));
    }
}

/// A type with a form in XDR. [`Self::read`] accepts exactly what [`Self::write`] makes, except
/// that it ignores padding.
pub trait Xdr<'a>: Sized {
    /// Reads a value.
    ///
    /// # Errors
    /// [`Malformed`].
    fn read(from: &mut Reader<'a>) -> Result<Self, Malformed>;

    /// Appends the value.
    fn write(&self, to: &mut Writer<'_>);
}

/// Reads a value that takes all of `bytes`.
///
/// # Errors
/// [`Malformed`].
pub fn decode<'a, T: Xdr<'a>>(bytes: &'a [u8]) -> Result<T, Malformed> {
    let mut from = Reader::new(bytes);
    let value = T::read(&mut from)?;
    from.end()?;
    Ok(value)
}

/// The bytes of a value.
pub fn encode<'a>(value: &impl Xdr<'a>) -> Vec<u8> {
    let mut out = Vec::new();
    value.write(&mut Writer::new(&mut out));
    out
}

/// `opaque<MAX>` or `string<MAX>` (RFC 4506 §4.10, §4.11): at most `MAX` bytes. Strings of these
/// protocols have no encoding, so they are bytes too.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Opaque<'a, const MAX: usize>(&'a [u8]);

/// Bytes longer than the limit of their type.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("{length} bytes exceed the limit of {limit}")]
pub struct TooLong {
    /// Length, bytes.
    pub length: usize,
    /// The longest allowed, bytes.
    pub limit: usize,
}

impl<'a, const MAX: usize> Opaque<'a, MAX> {
    /// No bytes.
    pub const EMPTY: Self = Opaque(&[]);

    /// These bytes.
    ///
    /// # Errors
    /// [`TooLong`] if there are more than `MAX`.
    pub fn new(bytes: &'a [u8]) -> Result<Self, TooLong> {
        if bytes.len() > MAX { Err(TooLong { length: bytes.len(), limit: MAX }) } else { Ok(Opaque(bytes)) }
    }

    /// The bytes.
    pub fn bytes(self) -> &'a [u8] {
        self.0
    }

    /// The bytes, if they are UTF-8.
    pub fn text(self) -> Option<&'a str> {
        std::str::from_utf8(self.0).ok()
    }
}

impl<const MAX: usize> std::fmt::Debug for Opaque<'_, MAX> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "\"{}\"", self.0.escape_ascii())
    }
}

impl<'a, const MAX: usize> Xdr<'a> for Opaque<'a, MAX> {
    fn read(from: &mut Reader<'a>) -> Result<Self, Malformed> {
        from.opaque(MAX).map(Opaque)
    }

    fn write(&self, to: &mut Writer<'_>) {
        // A slice longer than 4 GiB needs a MAX that no protocol here has.
        to.u32(self.0.len() as u32);
        to.fixed(self.0);
    }
}

/// `opaque[N]` (RFC 4506 §4.9).
impl<'a, const N: usize> Xdr<'a> for [u8; N] {
    fn read(from: &mut Reader<'a>) -> Result<Self, Malformed> {
        let at = from.position();
        from.fixed(N)?.try_into().map_err(|_| Malformed::Truncated { at })
    }

    fn write(&self, to: &mut Writer<'_>) {
        to.fixed(self);
    }
}

/// Not from an RFC: the sixteen bytes in which Stag stores addresses. An IPv4 address is mapped
/// (RFC 4291 §2.5.5.2).
impl<'a> Xdr<'a> for IpAddr {
    fn read(from: &mut Reader<'a>) -> Result<Self, Malformed> {
        let octets = <[u8; 16]>::read(from)?;
        Ok(IpAddr::from(octets).to_canonical())
    }

    fn write(&self, to: &mut Writer<'_>) {
        let mapped = match self {
            IpAddr::V4(address) => address.to_ipv6_mapped(),
            IpAddr::V6(address) => *address,
        };
        mapped.octets().write(to);
    }
}

impl<'a> Xdr<'a> for u32 {
    fn read(from: &mut Reader<'a>) -> Result<Self, Malformed> {
        from.u32()
    }

    fn write(&self, to: &mut Writer<'_>) {
        to.u32(*self);
    }
}

impl<'a> Xdr<'a> for u64 {
    fn read(from: &mut Reader<'a>) -> Result<Self, Malformed> {
        from.u64()
    }

    fn write(&self, to: &mut Writer<'_>) {
        to.u64(*self);
    }
}

/// A hyper integer (RFC 4506 §4.5).
impl<'a> Xdr<'a> for i64 {
    fn read(from: &mut Reader<'a>) -> Result<Self, Malformed> {
        from.u64().map(u64::cast_signed)
    }

    fn write(&self, to: &mut Writer<'_>) {
        to.u64(self.cast_unsigned());
    }
}

impl<'a> Xdr<'a> for bool {
    fn read(from: &mut Reader<'a>) -> Result<Self, Malformed> {
        from.bool()
    }

    fn write(&self, to: &mut Writer<'_>) {
        to.bool(*self);
    }
}

/// `void` (RFC 4506 §4.16).
impl<'a> Xdr<'a> for () {
    fn read(_: &mut Reader<'a>) -> Result<Self, Malformed> {
        Ok(())
    }

    fn write(&self, _: &mut Writer<'_>) {}
}

/// `*`, optional data (RFC 4506 §4.19), and every union over a boolean whose FALSE is void.
impl<'a, T: Xdr<'a>> Xdr<'a> for Option<T> {
    fn read(from: &mut Reader<'a>) -> Result<Self, Malformed> {
        if from.bool()? { T::read(from).map(Some) } else { Ok(None) }
    }

    fn write(&self, to: &mut Writer<'_>) {
        to.bool(self.is_some());
        if let Some(value) = self {
            value.write(to);
        }
    }
}

/// `T<MAX>` (RFC 4506 §4.13).
impl<'a, T: Xdr<'a>, const MAX: usize> Xdr<'a> for ArrayVec<T, MAX> {
    fn read(from: &mut Reader<'a>) -> Result<Self, Malformed> {
        let length = from.length(MAX)?;
        (0..length).map(|_| T::read(from)).collect()
    }

    fn write(&self, to: &mut Writer<'_>) {
        to.u32(self.len() as u32);
        self.iter().for_each(|one| one.write(to));
    }
}
