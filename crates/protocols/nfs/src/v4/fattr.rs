//! `fattr4` (RFC 8881 §3.3): values of attributes, in the order of their numbers, behind the set
//! of these numbers. [`Fattr`] is its form on the wire.

use rpc::xdr::{Malformed, Reader, Writer, Xdr};

use super::{Attributes, Bitmap, Status, Text};

/// Declares attributes: number, constant, field and type, in ascending order of the numbers.
macro_rules! attributes {
    (
        $(#[$smeta:meta])* pub struct $name:ident<$life:lifetime>;
        $($(#[$meta:meta])* $number:literal $constant:ident $field:ident: $type:ty;)*
    ) => {
        /// Numbers of the attributes.
        pub mod attribute {
            $($(#[$meta])* pub const $constant: u32 = $number;)*
        }

        $(#[$smeta])*
        #[derive(Debug, Clone, Default, PartialEq, Eq)]
        pub struct $name<$life> { $($(#[$meta])* pub $field: Option<$type>,)* }

        impl<$life> $name<$life> {
            /// All attributes that have a field.
            pub const KNOWN: Bitmap = Bitmap::of(&[$($number),*]);

            /// Those that are Some.
            pub fn set(&self) -> Bitmap {
                let mut set = Bitmap::EMPTY;
                $(if self.$field.is_some() { set = set.with($number); })*
                set
            }

            /// Makes those None that are not in `set`.
            pub(super) fn retain(&mut self, set: Bitmap) {
                $(if !set.contains($number) { self.$field = None; })*
            }

            /// Reads the values of `set`, all of which have a field.
            pub(super) fn read_values(
                set: Bitmap,
                from: &mut rpc::xdr::Reader<$life>,
            ) -> Result<Self, rpc::xdr::Malformed> {
                let mut values = Self::default();
                $(if set.contains($number) {
                    values.$field = Some(rpc::xdr::Xdr::read(from)?);
                })*
                Ok(values)
            }

            /// Appends the values of `set`, all of which are Some.
            pub(super) fn write_values(&self, set: Bitmap, to: &mut rpc::xdr::Writer<'_>) {
                $(if let Some(value) = self.$field.as_ref().filter(|_| set.contains($number)) {
                    rpc::xdr::Xdr::write(value, to);
                })*
            }
        }
    };
}
pub(super) use attributes;

/// `fattr4`: received, or to be sent from a borrowed [`Attributes`].
#[derive(Clone, Copy)]
pub struct Fattr<'a> {
    set: Bitmap,
    values: Values<'a>,
}

#[derive(Clone, Copy)]
enum Values<'a> {
    /// As they came.
    Received(Text<'a>),
    /// Those of the set are Some.
    Of(&'a Attributes<'a>),
}

impl<'a> Fattr<'a> {
    /// No attributes.
    pub const EMPTY: Self = Fattr { set: Bitmap::EMPTY, values: Values::Received(Text::EMPTY) };

    /// Those of the `requested` attributes that are Some. A server leaves out what it does not
    /// support (RFC 8881 §18.7).
    pub fn new(requested: Bitmap, attributes: &'a Attributes<'a>) -> Self {
        Fattr { set: requested.and(attributes.set()), values: Values::Of(attributes) }
    }

    /// All that are Some.
    pub fn of(attributes: &'a Attributes<'a>) -> Self {
        Fattr { set: attributes.set(), values: Values::Of(attributes) }
    }

    /// The numbers of the attributes. They may be unknown.
    pub fn set(&self) -> Bitmap {
        self.set
    }

    /// The values.
    ///
    /// # Errors
    /// [`Status::AttrNotSupp`] if there is an attribute that has no field, so that its length is
    /// unknown; [`Status::BadXdr`] if the values do not fit the set.
    pub fn attributes(&self) -> Result<Attributes<'a>, Status> {
        if !self.set.minus(Attributes::KNOWN).is_empty() {
            return Err(Status::AttrNotSupp);
        }
        match self.values {
            Values::Received(values) => {
                let mut from = Reader::new(values.bytes());
                Attributes::read_values(self.set, &mut from)
                    .and_then(|attributes| from.end().map(|()| attributes))
                    .map_err(|_| Status::BadXdr)
            }
            Values::Of(attributes) => {
                let mut some = attributes.clone();
                some.retain(self.set);
                Ok(some)
            }
        }
    }
}

impl<'a> Xdr<'a> for Fattr<'a> {
    fn read(from: &mut Reader<'a>) -> Result<Self, Malformed> {
        Ok(Fattr { set: Xdr::read(from)?, values: Values::Received(Xdr::read(from)?) })
    }

    fn write(&self, to: &mut Writer<'_>) {
        self.set.write(to);
        match self.values {
            Values::Received(values) => values.write(to),
            Values::Of(attributes) => {
                let length_at = to.position();
                to.u32(0);
                let start = to.position();
                attributes.write_values(self.set, to);
                to.replace_u32(length_at, (to.position() - start) as u32);
            }
        }
    }
}

/// Compares the form on the wire.
impl PartialEq for Fattr<'_> {
    fn eq(&self, other: &Self) -> bool {
        rpc::xdr::encode(self) == rpc::xdr::encode(other)
    }
}

impl Eq for Fattr<'_> {}

impl std::fmt::Debug for Fattr<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.attributes() {
            Ok(attributes) => attributes.fmt(f),
            Err(_) => f.debug_struct("Fattr").field("set", &self.set).finish_non_exhaustive(),
        }
    }
}
