//! The macro that defines an enum of a field's code points: conversion from and to wire values, and
//! the RFC's names for Display.

/// Defines `enum Name: int { Variant = value => "NAME IN THE RFC", … }` with `from_code`, `code`,
/// `name`, `ALL` and Display.
macro_rules! code_points {
    ($(#[$meta:meta])* pub enum $name:ident: $int:ty { $($(#[$vmeta:meta])* $variant:ident = $value:literal => $text:expr,)+ }) => {
        $(#[$meta])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
        #[repr($int)]
        pub enum $name { $($(#[$vmeta])* $variant = $value,)+ }

        impl $name {
            /// Every code point defined.
            pub const ALL: &'static [Self] = &[$(Self::$variant),+];

            /// The code point with this wire value; `None` if it is reserved or unassigned.
            #[inline]
            pub const fn from_code(code: $int) -> Option<Self> {
                match code {
                    $($value => Some(Self::$variant),)+
                    _ => None,
                }
            }

            /// The wire value.
            #[inline]
            pub const fn code(self) -> $int {
                self as $int
            }

            /// The name in the standard.
            pub const fn name(self) -> &'static str {
                match self { $(Self::$variant => $text,)+ }
            }
        }

        impl core::fmt::Display for $name {
            fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
                f.write_str(self.name())
            }
        }
    };
}
pub(crate) use code_points;

/// Displays a code by name, or by number if it has none.
pub(crate) struct Named<T>(pub Option<T>, pub u8);

impl<T: core::fmt::Display> core::fmt::Display for Named<T> {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match &self.0 {
            Some(name) => write!(f, "\"{name}\""),
            None => write!(f, "{:#04x}", self.1),
        }
    }
}
