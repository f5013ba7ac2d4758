//! Decoding of a fuzz input, and its counterpart that builds seeds: numbers are big-endian, a chunk
//! is a length of two bytes and so many bytes. Missing input reads as zero or empty, so that every
//! input is valid.

/// Reads an input from its start.
#[derive(Debug, Clone)]
pub struct Input<'a>(&'a [u8]);

impl<'a> Input<'a> {
    /// At the start of `bytes`.
    pub fn new(bytes: &'a [u8]) -> Self {
        Self(bytes)
    }

    /// Nothing is left.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// At most `n` bytes.
    pub fn take(&mut self, n: usize) -> &'a [u8] {
        let (head, rest) = self.0.split_at(n.min(self.0.len()));
        self.0 = rest;
        head
    }

    /// One byte.
    pub fn u8(&mut self) -> u8 {
        self.take(1).first().copied().unwrap_or(0)
    }

    /// A bit.
    pub fn bool(&mut self) -> bool {
        self.u8() & 1 != 0
    }

    /// Two bytes.
    pub fn u16(&mut self) -> u16 {
        u16::from_be_bytes([self.u8(), self.u8()])
    }

    /// Four bytes.
    pub fn u32(&mut self) -> u32 {
        u32::from(self.u16()) << 16 | u32::from(self.u16())
    }

    /// Eight bytes.
    pub fn u64(&mut self) -> u64 {
        u64::from(self.u32()) << 32 | u64::from(self.u32())
    }

    /// A length and so many bytes.
    pub fn chunk(&mut self) -> &'a [u8] {
        let len = self.u16();
        self.take(usize::from(len))
    }

    /// All that is left.
    pub fn rest(&mut self) -> &'a [u8] {
        self.take(usize::MAX)
    }
}

/// A seed being built.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Seed(Vec<u8>);

impl Seed {
    /// An empty one.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds bytes as they are.
    #[must_use]
    pub fn bytes(mut self, bytes: impl AsRef<[u8]>) -> Self {
        self.0.extend_from_slice(bytes.as_ref());
        self
    }

    /// Adds a length and so many bytes.
    ///
    /// # Panics
    /// When there are more than 65535.
    #[must_use]
    pub fn chunk(self, bytes: impl AsRef<[u8]>) -> Self {
        let len = u16::try_from(bytes.as_ref().len()).expect("a seed's chunk is short");
        self.bytes(len.to_be_bytes()).bytes(bytes)
    }

    /// The input.
    pub fn into_bytes(self) -> Vec<u8> {
        self.0
    }
}
