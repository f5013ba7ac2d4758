//! The form of a table of operations: it lists each once, with its number, arguments and results.
//! [`Fore`](super::Fore) and [`Back`](super::callback::Back) are the two tables.

use rpc::xdr::{Malformed, Reader, Writer, Xdr};

use super::Status;

/// Number of the operation in a result that answers an unknown one: `OP_ILLEGAL`.
pub const ILLEGAL: u32 = 10044;
/// Number of the first operation.
pub(super) const FIRST: u32 = 3;

/// An operation that is answered without being carried out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Refused {
    /// Number for the result: the operation's, or [`ILLEGAL`].
    pub operation: u32,
    /// NOTSUPP, OP_ILLEGAL or BADXDR; in a received result any error.
    pub status: Status,
}

/// A direction: the operations of COMPOUND or of CB_COMPOUND.
pub trait Program: Copy + std::fmt::Debug + 'static {
    /// `callback_ident` of CB_COMPOUND.
    type Ident: for<'x> Xdr<'x>;
    /// Arguments.
    type Arguments<'a>: Item<'a>;
    /// Results.
    type Results<'a>: Answer<'a>;
    /// Numbers of the last operations of minor versions 1 and 2.
    const LAST: [u32; 2];
}

/// Arguments or results of one operation.
pub trait Item<'a>: Sized {
    /// Reads those of the operation with this number. None if it has no types.
    ///
    /// # Errors
    /// [`Malformed`].
    fn read_of(number: u32, from: &mut Reader<'a>) -> Option<Result<Self, Malformed>>;

    /// Appends the number and the value.
    fn write_all(&self, to: &mut Writer<'_>);

    /// Bytes of payload that follow on the wire, before padding.
    fn payload_length(&self) -> u32;
}

/// Results of one operation.
pub trait Answer<'a>: Item<'a> {
    /// The result that answers a refused operation.
    fn of_refused(refused: Refused) -> Self;

    /// The error, if it is one.
    fn status(&self) -> Option<Status>;
}

/// Declares the operations of a direction. Those under `unsupported` have numbers and no types: a
/// server answers NOTSUPP.
macro_rules! operations {
    (
        $(#[$pmeta:meta])* pub enum $program:ident { ident $ident:ty, last $last:expr }
        $(#[$cmeta:meta])* pub enum $code:ident;
        $(#[$ameta:meta])* pub enum $arguments:ident<$alife:lifetime>
            $({ payload $apayload:pat => $alength:expr })?;
        $(#[$rmeta:meta])* pub enum $results:ident<$rlife:lifetime>
            $({ payload $rpayload:pat => $rlength:expr })?;
        supported { $($(#[$vmeta:meta])* $number:literal $variant:ident($args:ty) -> $result:ty;)* }
        unsupported { $($(#[$umeta:meta])* $unumber:literal $uvariant:ident;)* }
    ) => {
        $(#[$pmeta])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        pub enum $program {}

        impl $crate::v4::table::Program for $program {
            type Ident = $ident;
            type Arguments<'x> = $arguments<'x>;
            type Results<'x> = $results<'x>;
            const LAST: [u32; 2] = $last;
        }

        rpc::xdr_enum! {
            $(#[$cmeta])*
            pub enum $code {
                $($(#[$vmeta])* $variant = $number,)*
                $($(#[$umeta])* $uvariant = $unumber,)*
            }
        }

        impl $code {
            /// The operation has types.
            pub fn is_supported(self) -> bool {
                matches!(self, $($code::$variant)|*)
            }
        }

        $(#[$ameta])*
        #[derive(Debug, Clone, PartialEq, Eq)]
        #[allow(clippy::large_enum_variant, reason = "short-lived, and a box would allocate")]
        pub enum $arguments<$alife> { $($(#[$vmeta])* $variant($args),)* }

        $(#[$rmeta])*
        #[derive(Debug, Clone, PartialEq, Eq)]
        #[allow(clippy::large_enum_variant, reason = "short-lived, and a box would allocate")]
        pub enum $results<$rlife> {
            $($(#[$vmeta])* $variant($result),)*
            /// The error of an operation without types.
            Refused($crate::v4::table::Refused),
        }

        impl $arguments<'_> {
            /// The operation.
            pub fn operation(&self) -> $code {
                match self { $($arguments::$variant(_) => $code::$variant,)* }
            }

            /// Bytes of payload that follow the arguments on the wire, before padding. The caller
            /// sends them and [`rpc::xdr::padding`].
            pub fn payload(&self) -> u32 {
                $(if let $apayload = self { return $alength; })?
                0
            }
        }

        impl $results<'_> {
            /// The number of the operation.
            pub fn operation(&self) -> u32 {
                match self {
                    $($results::$variant(_) => $number,)*
                    $results::Refused(refused) => refused.operation,
                }
            }

            /// Bytes of payload that follow the results on the wire, before padding. The caller
            /// sends them and [`rpc::xdr::padding`].
            pub fn payload(&self) -> u32 {
                $(if let $rpayload = self { return $rlength; })?
                0
            }

            /// The error, if it is one.
            pub fn error(&self) -> Option<$crate::v4::Status> {
                match self {
                    $($results::$variant(it) => $crate::v4::status::Fallible::error(it),)*
                    $results::Refused(refused) => Some(refused.status),
                }
            }

            /// The result of an operation that failed and has no more to say.
            pub fn failed(operation: $code, status: $crate::v4::Status) -> Self {
                match operation {
                    $($code::$variant => {
                        $results::$variant($crate::v4::status::Fallible::failed(status))
                    })*
                    $($code::$uvariant => {
                        $results::Refused($crate::v4::table::Refused { operation: $unumber, status })
                    })*
                }
            }
        }

        impl<$alife> $crate::v4::table::Item<$alife> for $arguments<$alife> {
            fn read_of(
                number: u32,
                from: &mut rpc::xdr::Reader<$alife>,
            ) -> Option<Result<Self, rpc::xdr::Malformed>> {
                match number {
                    $($number => Some(rpc::xdr::Xdr::read(from).map($arguments::$variant)),)*
                    _ => None,
                }
            }

            fn write_all(&self, to: &mut rpc::xdr::Writer<'_>) {
                to.u32(self.operation().code());
                match self { $($arguments::$variant(it) => rpc::xdr::Xdr::write(it, to),)* }
            }

            fn payload_length(&self) -> u32 {
                self.payload()
            }
        }

        impl<$rlife> $crate::v4::table::Item<$rlife> for $results<$rlife> {
            fn read_of(
                number: u32,
                from: &mut rpc::xdr::Reader<$rlife>,
            ) -> Option<Result<Self, rpc::xdr::Malformed>> {
                match number {
                    $($number => Some(rpc::xdr::Xdr::read(from).map($results::$variant)),)*
                    _ => Some(rpc::xdr::Xdr::read(from).map(|status| {
                        $results::Refused($crate::v4::table::Refused { operation: number, status })
                    })),
                }
            }

            fn write_all(&self, to: &mut rpc::xdr::Writer<'_>) {
                to.u32(self.operation());
                match self {
                    $($results::$variant(it) => rpc::xdr::Xdr::write(it, to),)*
                    $results::Refused(refused) => rpc::xdr::Xdr::write(&refused.status, to),
                }
            }

            fn payload_length(&self) -> u32 {
                self.payload()
            }
        }

        impl<$rlife> $crate::v4::table::Answer<$rlife> for $results<$rlife> {
            fn of_refused(refused: $crate::v4::table::Refused) -> Self {
                match $code::from_code(refused.operation) {
                    Some(operation) => $results::failed(operation, refused.status),
                    None => $results::Refused(refused),
                }
            }

            fn status(&self) -> Option<$crate::v4::Status> {
                self.error()
            }
        }
    };
}
pub(super) use operations;
