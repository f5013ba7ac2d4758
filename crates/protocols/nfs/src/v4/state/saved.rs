//! The encoding in which a daemon hands its state to its successor: fields in order, in XDR.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use rpc::xdr::{Malformed, Reader, Writer, Xdr};

use super::clients::Hosts;
use crate::v4::{Channel, ClientId, CreateSessionOk, SequenceOk, SessionId, Status, Verifier};

/// A value with a form in the handed-over state.
pub(super) trait Saved: Sized {
    fn save(&self, to: &mut Writer<'_>);

    /// # Errors
    /// [`Malformed`].
    fn load(from: &mut Reader<'_>) -> Result<Self, Malformed>;
}

/// Types whose form is that of the wire.
macro_rules! by_xdr {
    ($($type:ty)*) => { $(
        impl Saved for $type {
            fn save(&self, to: &mut Writer<'_>) {
                Xdr::write(self, to);
            }

            fn load(from: &mut Reader<'_>) -> Result<Self, Malformed> {
                Xdr::read(from)
            }
        }
    )* };
}

by_xdr! { u32 u64 bool Channel ClientId CreateSessionOk Hosts SequenceOk SessionId Status Verifier }

/// Structs: names all fields, in the order of their encoding.
macro_rules! saved {
    ($($name:ident { $($field:ident),* $(,)? })*) => { $(
        impl $crate::v4::state::saved::Saved for $name {
            fn save(&self, to: &mut rpc::xdr::Writer<'_>) {
                let Self { $($field),* } = self;
                $($crate::v4::state::saved::Saved::save($field, to);)*
            }

            fn load(from: &mut rpc::xdr::Reader<'_>) -> Result<Self, rpc::xdr::Malformed> {
                Ok(Self { $($field: $crate::v4::state::saved::Saved::load(from)?),* })
            }
        }
    )* };
}
pub(super) use saved;

impl Saved for Duration {
    fn save(&self, to: &mut Writer<'_>) {
        to.u64(self.as_secs());
        to.u32(self.subsec_nanos());
    }

    fn load(from: &mut Reader<'_>) -> Result<Self, Malformed> {
        let seconds = from.u64()?;
        let nanos = from.u32()?;
        if nanos >= 1_000_000_000 {
            return Err(Malformed::Unknown { what: "nanoseconds", value: nanos });
        }
        Ok(Duration::new(seconds, nanos))
    }
}

impl Saved for Box<[u8]> {
    fn save(&self, to: &mut Writer<'_>) {
        to.u32(self.len() as u32);
        to.fixed(self);
    }

    fn load(from: &mut Reader<'_>) -> Result<Self, Malformed> {
        from.opaque(u32::MAX as usize).map(Box::from)
    }
}

impl<T: Saved> Saved for Option<T> {
    fn save(&self, to: &mut Writer<'_>) {
        to.bool(self.is_some());
        if let Some(value) = self {
            value.save(to);
        }
    }

    fn load(from: &mut Reader<'_>) -> Result<Self, Malformed> {
        if from.bool()? { T::load(from).map(Some) } else { Ok(None) }
    }
}

impl<T: Saved, E: Saved> Saved for Result<T, E> {
    fn save(&self, to: &mut Writer<'_>) {
        to.bool(self.is_ok());
        match self {
            Ok(value) => value.save(to),
            Err(error) => error.save(to),
        }
    }

    fn load(from: &mut Reader<'_>) -> Result<Self, Malformed> {
        Ok(if from.bool()? { Ok(T::load(from)?) } else { Err(E::load(from)?) })
    }
}

impl<A: Saved, B: Saved> Saved for (A, B) {
    fn save(&self, to: &mut Writer<'_>) {
        self.0.save(to);
        self.1.save(to);
    }

    fn load(from: &mut Reader<'_>) -> Result<Self, Malformed> {
        Ok((A::load(from)?, B::load(from)?))
    }
}

/// A count, then the elements. An element takes at least one unit, so a wrong count ends in
/// [`Malformed::Truncated`].
fn load_all<T: Saved, C: FromIterator<T>>(from: &mut Reader<'_>) -> Result<C, Malformed> {
    let count = from.length(u32::MAX as usize)?;
    (0..count).map(|_| T::load(from)).collect()
}

impl<T: Saved> Saved for Vec<T> {
    fn save(&self, to: &mut Writer<'_>) {
        to.u32(self.len() as u32);
        self.iter().for_each(|one| one.save(to));
    }

    fn load(from: &mut Reader<'_>) -> Result<Self, Malformed> {
        load_all(from)
    }
}

impl<T: Saved + Ord> Saved for BTreeSet<T> {
    fn save(&self, to: &mut Writer<'_>) {
        to.u32(self.len() as u32);
        self.iter().for_each(|one| one.save(to));
    }

    fn load(from: &mut Reader<'_>) -> Result<Self, Malformed> {
        load_all(from)
    }
}

impl<K: Saved + Ord, V: Saved> Saved for BTreeMap<K, V> {
    fn save(&self, to: &mut Writer<'_>) {
        to.u32(self.len() as u32);
        for (key, value) in self {
            key.save(to);
            value.save(to);
        }
    }

    fn load(from: &mut Reader<'_>) -> Result<Self, Malformed> {
        load_all::<(K, V), _>(from)
    }
}
