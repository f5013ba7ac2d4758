//! Big-endian fields at offsets of a slice, read and written without a panic.

/// Fields of bytes that a peer sent; what lies behind their end reads as zero, so a caller checks
/// lengths first where it matters.
#[derive(Clone, Copy)]
pub(crate) struct Fields<'a>(pub &'a [u8]);

impl<'a> Fields<'a> {
    pub fn array<const N: usize>(self, at: usize) -> [u8; N] {
        let mut out = [0; N];
        if let Some(found) = self.0.get(at..).and_then(|rest| rest.get(..N)) {
            out.copy_from_slice(found);
        }
        out
    }
    pub fn u8(self, at: usize) -> u8 {
        self.0.get(at).copied().unwrap_or(0)
    }
    pub fn u16(self, at: usize) -> u16 {
        u16::from_be_bytes(self.array(at))
    }
    pub fn u32(self, at: usize) -> u32 {
        u32::from_be_bytes(self.array(at))
    }
    pub fn u64(self, at: usize) -> u64 {
        u64::from_be_bytes(self.array(at))
    }
    /// 48 bits, as times are.
    pub fn u48(self, at: usize) -> u64 {
        let [a, b, c, d, e, f] = self.array(at);
        u64::from_be_bytes([0, 0, a, b, c, d, e, f])
    }
    /// The bytes from `at` on, `len` of them; `None` when there are fewer.
    pub fn slice(self, at: usize, len: usize) -> Option<&'a [u8]> {
        self.0.get(at..)?.get(..len)
    }
}

/// Writes `value` at `at`; the buffers this is used with are of constant length, and hold it.
pub(crate) fn put(out: &mut [u8], at: usize, value: &[u8]) {
    if let Some(slot) = out.get_mut(at..).and_then(|rest| rest.get_mut(..value.len())) {
        slot.copy_from_slice(value);
    }
}

/// The low 48 bits of `value`.
pub(crate) fn six(value: u64) -> [u8; 6] {
    let [_, _, a, b, c, d, e, f] = value.to_be_bytes();
    [a, b, c, d, e, f]
}

/// Constants of one type: each with its value and its meaning.
macro_rules! constants {
    ($type:ty: $($name:ident = $value:expr => $says:literal,)*) => {
        $(
            #[doc = $says]
            pub const $name: $type = $value;
        )*
    };
}
pub(crate) use constants;

/// A field of codes of which some are reserved: each with its value and its meaning.
macro_rules! codes {
    ($(#[$meta:meta])* $name:ident: $code:ty {
        $($(#[$about:meta])* $variant:ident = $value:literal $says:literal,)*
    }) => {
        $(#[$meta])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
        #[repr($code)]
        pub enum $name {
            $(#[doc = $says] $(#[$about])* $variant = $value,)*
        }

        impl $name {
            /// All of them.
            pub const ALL: [Self; [$($value),*].len()] = [$(Self::$variant),*];

            /// From the field; `None` for a reserved code.
            pub const fn from_code(code: $code) -> Option<Self> {
                match code {
                    $($value => Some(Self::$variant),)*
                    _ => None,
                }
            }
        }
    };
}
pub(crate) use codes;
