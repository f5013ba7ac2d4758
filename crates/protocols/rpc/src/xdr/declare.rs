//! Macros that declare a type once: the Rust type, its reader and its writer come from one list of
//! fields. A type that borrows from the record names its lifetime: `struct Name<'a>`.

/// Declares structs (RFC 4506 §4.14): their fields, in the order of the wire.
#[macro_export]
macro_rules! xdr_struct {
    ($($(#[$meta:meta])* pub struct $name:ident $(<$life:lifetime>)? {
        $($(#[$fmeta:meta])* pub $field:ident: $type:ty,)*
    })*) => { $(
        $(#[$meta])*
        #[derive(Debug, Clone, PartialEq, Eq)]
        pub struct $name $(<$life>)? { $($(#[$fmeta])* pub $field: $type,)* }

        $crate::xdr_impl! { $name $(<$life>)?
            |from| Ok($name { $($field: $crate::xdr::Xdr::read(from)?,)* }),
            |this, to| { $($crate::xdr::Xdr::write(&this.$field, to);)* }
        }
    )* };
}

/// Declares types with the form of another: `struct Name(Inner)`.
#[macro_export]
macro_rules! xdr_newtype {
    ($($(#[$meta:meta])* pub struct $name:ident($inner:ty);)*) => { $(
        $(#[$meta])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub struct $name(pub $inner);

        $crate::xdr_impl! { $name
            |from| $crate::xdr::Xdr::read(from).map($name),
            |this, to| $crate::xdr::Xdr::write(&this.0, to)
        }
    )* };
}

/// Declares enumerations (RFC 4506 §4.3). Numbers that are not listed are malformed.
#[macro_export]
macro_rules! xdr_enum {
    ($($(#[$meta:meta])* pub enum $name:ident {
        $($(#[$vmeta:meta])* $variant:ident = $code:literal,)*
    })*) => { $(
        $(#[$meta])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
        #[repr(u32)]
        pub enum $name { $($(#[$vmeta])* $variant = $code,)* }

        impl $name {
            /// All values, in the order of their declaration.
            pub const ALL: &'static [$name] = &[$($name::$variant,)*];

            /// The value with this number.
            pub fn from_code(code: u32) -> Option<Self> {
                match code { $($code => Some($name::$variant),)* _ => None }
            }

            /// The number on the wire.
            pub fn code(self) -> u32 {
                self as u32
            }
        }

        $crate::xdr_impl! { $name
            |from| {
                let value = from.u32()?;
                $name::from_code(value)
                    .ok_or($crate::xdr::Malformed::Unknown { what: stringify!($name), value })
            },
            |this, to| to.u32(this.code())
        }
    )* };
}

/// Declares discriminated unions (RFC 4506 §4.15): the number and the arm. `()` is a void arm.
#[macro_export]
macro_rules! xdr_union {
    ($($(#[$meta:meta])* pub enum $name:ident $(<$life:lifetime>)? {
        $($(#[$vmeta:meta])* $variant:ident($type:ty) = $code:literal,)*
    })*) => { $(
        $(#[$meta])*
        #[derive(Debug, Clone, PartialEq, Eq)]
        pub enum $name $(<$life>)? { $($(#[$vmeta])* $variant($type),)* }

        $crate::xdr_impl! { $name $(<$life>)?
            |from| match from.u32()? {
                $($code => <$type as $crate::xdr::Xdr<'_>>::read(from).map($name::$variant),)*
                value => Err($crate::xdr::Malformed::Unknown { what: stringify!($name), value }),
            },
            |this, to| match this {
                $($name::$variant(arm) => { to.u32($code); $crate::xdr::Xdr::write(arm, to) })*
            }
        }
    )* };
}

/// Implements [`Xdr`](crate::xdr::Xdr), with or without a lifetime.
#[doc(hidden)]
#[macro_export]
macro_rules! xdr_impl {
    ($name:ident |$from:ident| $read:expr, |$this:ident, $to:ident| $write:expr) => {
        impl<'x> $crate::xdr::Xdr<'x> for $name {
            fn read($from: &mut $crate::xdr::Reader<'x>) -> Result<Self, $crate::xdr::Malformed> {
                $read
            }

            fn write(&self, $to: &mut $crate::xdr::Writer<'_>) {
                let $this = self;
                $write
            }
        }
    };
    ($name:ident<$life:lifetime> |$from:ident| $read:expr, |$this:ident, $to:ident| $write:expr) => {
        impl<$life> $crate::xdr::Xdr<$life> for $name<$life> {
            fn read($from: &mut $crate::xdr::Reader<$life>) -> Result<Self, $crate::xdr::Malformed> {
                $read
            }

            fn write(&self, $to: &mut $crate::xdr::Writer<'_>) {
                let $this = self;
                $write
            }
        }
    };
}

/// Declares the procedures of one version of a program (RFC 5531 §12): number, name, type of the
/// arguments and type of the results. Makes an enum of the numbers, one of arguments and one of
/// results.
#[macro_export]
macro_rules! rpc_program {
    (
        $(#[$pmeta:meta])* pub enum $procedure:ident;
        $(#[$ameta:meta])* pub enum $arguments:ident<$alife:lifetime>;
        $(#[$rmeta:meta])* pub enum $results:ident<$rlife:lifetime>;
        $($(#[$vmeta:meta])* $number:literal $variant:ident($args:ty) -> $result:ty;)*
    ) => {
        $crate::xdr_enum! {
            $(#[$pmeta])*
            pub enum $procedure { $($(#[$vmeta])* $variant = $number,)* }
        }

        $(#[$ameta])*
        #[derive(Debug, Clone, PartialEq, Eq)]
        #[allow(clippy::large_enum_variant, reason = "short-lived, and a box would allocate")]
        pub enum $arguments<$alife> { $($(#[$vmeta])* $variant($args),)* }

        $(#[$rmeta])*
        #[derive(Debug, Clone, PartialEq, Eq)]
        #[allow(clippy::large_enum_variant, reason = "short-lived, and a box would allocate")]
        pub enum $results<$rlife> { $($(#[$vmeta])* $variant($result),)* }

        $crate::rpc_program! { @direction $procedure $arguments<$alife> $($variant($args))* }
        $crate::rpc_program! { @direction $procedure $results<$rlife> $($variant($result))* }
    };
    (@direction $procedure:ident $name:ident<$life:lifetime> $($variant:ident($type:ty))*) => {
        impl<$life> $name<$life> {
            /// The procedure.
            pub fn procedure(&self) -> $procedure {
                match self { $($name::$variant(_) => $procedure::$variant,)* }
            }

            /// Reads those of `procedure`.
            ///
            /// # Errors
            /// `Malformed`, an error in the data.
            pub fn read(
                procedure: $procedure,
                from: &mut $crate::xdr::Reader<$life>,
            ) -> Result<Self, $crate::xdr::Malformed> {
                match procedure {
                    $($procedure::$variant => {
                        <$type as $crate::xdr::Xdr<$life>>::read(from).map($name::$variant)
                    })*
                }
            }

            /// Appends them.
            pub fn write(&self, to: &mut $crate::xdr::Writer<'_>) {
                match self { $($name::$variant(it) => $crate::xdr::Xdr::write(it, to),)* }
            }
        }
    };
}
