//! Linked lists of optional data (RFC 4506 §4.19), the form of every long list of RPC, MOUNT and
//! NFS: before each element stands TRUE, after the last one FALSE.

use std::marker::PhantomData;

use super::{Malformed, Reader, Writer, Xdr};

/// A list that was checked as a whole and is decoded element by element, so that it needs no memory
/// beside the record.
pub struct Chain<'a, T> {
    /// The elements with the boolean before each, and the last FALSE.
    bytes: &'a [u8],
    element: PhantomData<fn() -> T>,
}

/// Elements in a buffer, for [`Self::chain`].
pub struct Chained<T> {
    bytes: Vec<u8>,
    element: PhantomData<fn() -> T>,
}

/// The elements of a [`Chain`].
pub struct ChainIter<'a, T> {
    from: Reader<'a>,
    element: PhantomData<fn() -> T>,
}

const FALSE: [u8; 4] = [0; 4];

impl<'a, T> Chain<'a, T> {
    /// No elements.
    pub const EMPTY: Self = Chain { bytes: &FALSE, element: PhantomData };
}

impl<'a, T: Xdr<'a>> Chain<'a, T> {
    /// The elements, in order.
    pub fn iter(&self) -> ChainIter<'a, T> {
        ChainIter { from: Reader::new(self.bytes), element: PhantomData }
    }
}

impl<'a, T: Xdr<'a>> Xdr<'a> for Chain<'a, T> {
    fn read(from: &mut Reader<'a>) -> Result<Self, Malformed> {
        let start = from.position();
        while from.bool()? {
            T::read(from)?;
        }
        Ok(Chain { bytes: from.since(start), element: PhantomData })
    }

    fn write(&self, to: &mut Writer<'_>) {
        to.raw(self.bytes);
    }
}

impl<'a, T: Xdr<'a>> Iterator for ChainIter<'a, T> {
    type Item = T;

    fn next(&mut self) -> Option<T> {
        // `Chain::read` has read each element before, so no error is possible here.
        match self.from.bool() {
            Ok(true) => T::read(&mut self.from).ok(),
            _ => None,
        }
    }
}

impl<T> Chained<T> {
    /// No elements yet.
    pub fn new() -> Self {
        Chained { bytes: FALSE.to_vec(), element: PhantomData }
    }

    /// These elements.
    pub fn of<'t>(elements: impl IntoIterator<Item = T>) -> Self
    where
        T: Xdr<'t>,
    {
        let mut chained = Chained::new();
        elements.into_iter().for_each(|one| chained.push(&one));
        chained
    }

    /// Appends an element.
    pub fn push<'t>(&mut self, element: &T)
    where
        T: Xdr<'t>,
    {
        let mut to = Writer::new(&mut self.bytes);
        to.truncate(to.position() - FALSE.len());
        to.bool(true);
        element.write(&mut to);
        to.bool(false);
    }

    /// The list.
    pub fn chain<'a>(&'a self) -> Chain<'a, T>
    where
        T: Xdr<'a>,
    {
        Chain { bytes: &self.bytes, element: PhantomData }
    }
}

impl<T> Default for Chained<T> {
    fn default() -> Self {
        Self::new()
    }
}

impl<T> Clone for Chain<'_, T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for Chain<'_, T> {}

impl<'a, T: Xdr<'a> + PartialEq> PartialEq for Chain<'a, T> {
    fn eq(&self, other: &Self) -> bool {
        self.iter().eq(other.iter())
    }
}

impl<'a, T: Xdr<'a> + Eq> Eq for Chain<'a, T> {}

impl<'a, T: Xdr<'a> + std::fmt::Debug> std::fmt::Debug for Chain<'a, T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_list().entries(self.iter()).finish()
    }
}
