//! Counted arrays without a limit of their own (RFC 4506 §4.13): the record bounds them.

use super::{Malformed, Reader, Writer, Xdr};

/// `T<>`: received, and then checked as a whole and decoded element by element; or to be sent, and
/// then a slice. In both forms it needs no memory of its own.
pub struct List<'a, T>(Form<'a, T>);

enum Form<'a, T> {
    /// So many elements in these bytes.
    Received { count: usize, bytes: &'a [u8] },
    /// These elements.
    Slice(&'a [T]),
}

/// The elements of a [`List`].
pub struct ListIter<'a, T>(IterForm<'a, T>);

enum IterForm<'a, T> {
    Received { left: usize, from: Reader<'a> },
    Slice(std::slice::Iter<'a, T>),
}

impl<'a, T> List<'a, T> {
    /// No elements.
    pub const EMPTY: Self = List(Form::Slice(&[]));

    /// These elements.
    pub fn of(elements: &'a [T]) -> Self {
        List(Form::Slice(elements))
    }

    /// Number of elements.
    pub fn len(&self) -> usize {
        match self.0 {
            Form::Received { count, .. } => count,
            Form::Slice(elements) => elements.len(),
        }
    }

    /// There are none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

impl<'a, T: Xdr<'a> + Clone> List<'a, T> {
    /// The elements, in order.
    pub fn iter(&self) -> ListIter<'a, T> {
        ListIter(match self.0 {
            Form::Received { count, bytes } => IterForm::Received { left: count, from: Reader::new(bytes) },
            Form::Slice(elements) => IterForm::Slice(elements.iter()),
        })
    }
}

impl<'a, T: Xdr<'a>> Xdr<'a> for List<'a, T> {
    fn read(from: &mut Reader<'a>) -> Result<Self, Malformed> {
        // No type of XDR but void takes 0 bytes, so the record's end stops a count that lies.
        let count = from.length(u32::MAX as usize)?;
        let start = from.position();
        for _ in 0..count {
            T::read(from)?;
        }
        Ok(List(Form::Received { count, bytes: from.since(start) }))
    }

    fn write(&self, to: &mut Writer<'_>) {
        to.u32(self.len() as u32);
        match self.0 {
            Form::Received { bytes, .. } => to.raw(bytes),
            Form::Slice(elements) => elements.iter().for_each(|one| one.write(to)),
        }
    }
}

impl<'a, T: Xdr<'a> + Clone> Iterator for ListIter<'a, T> {
    type Item = T;

    fn next(&mut self) -> Option<T> {
        match &mut self.0 {
            IterForm::Received { left, from } => {
                *left = left.checked_sub(1)?;
                // `List::read` has read each element before, so no error is possible here.
                T::read(from).ok()
            }
            IterForm::Slice(elements) => elements.next().cloned(),
        }
    }
}

impl<T> Default for List<'_, T> {
    fn default() -> Self {
        Self::EMPTY
    }
}

impl<T> Clone for Form<'_, T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for Form<'_, T> {}

impl<T> Clone for List<'_, T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for List<'_, T> {}

impl<'a, T: Xdr<'a> + Clone + PartialEq> PartialEq for List<'a, T> {
    fn eq(&self, other: &Self) -> bool {
        self.iter().eq(other.iter())
    }
}

impl<'a, T: Xdr<'a> + Clone + Eq> Eq for List<'a, T> {}

impl<'a, T: Xdr<'a> + Clone + std::fmt::Debug> std::fmt::Debug for List<'a, T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_list().entries(self.iter()).finish()
    }
}
