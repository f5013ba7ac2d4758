//! Directory entries, and a server's bounded replies to READDIR and READDIRPLUS (RFC 1813 §3.3.16,
//! §3.3.17). The server offers entry after entry; the reply takes those that fit.

use rpc::xdr::{Writer, Xdr};
use rpc::xdr_struct;

use super::operations::{Handle, Name};
use super::{Attributes, Outcome, Status, Verifier};
use crate::listing::Entries;
pub use crate::listing::Listed;

xdr_struct! {
    /// `entry3`.
    pub struct Entry<'a> {
        /// The file's identity.
        pub fileid: u64,
        /// The name.
        pub name: Name<'a>,
        /// Place in the directory.
        pub cookie: u64,
    }

    /// `entryplus3`.
    pub struct EntryPlus<'a> {
        /// The file's identity.
        pub fileid: u64,
        /// The name.
        pub name: Name<'a>,
        /// Place in the directory.
        pub cookie: u64,
        /// The file's attributes.
        pub attributes: Option<Attributes>,
        /// The file's handle.
        pub handle: Option<Handle<'a>>,
    }
}

/// A reply to READDIR or READDIRPLUS as it grows: `READDIR3res` from its status on.
///
/// It counts exactly the bytes that it writes: the limit `count` or `maxcount` holds for everything
/// behind the status, the list's end included.
#[derive(Debug)]
pub struct Listing<'w, 'b> {
    entries: Entries<'w, 'b>,
    attributes: Option<Attributes>,
}

impl<'w, 'b> Listing<'w, 'b> {
    /// Begins a reply to READDIR: at most `count` bytes behind the status.
    pub fn new(
        to: &'w mut Writer<'b>,
        attributes: Option<Attributes>,
        verifier: Verifier,
        count: u32,
    ) -> Self {
        Listing::plus(to, attributes, verifier, u32::MAX, count)
    }

    /// Begins a reply to READDIRPLUS: at most `max_count` bytes behind the status, and `dir_count`
    /// of file IDs, names and cookies. `dir_count` is a hint: the first entry may exceed it.
    pub fn plus(
        to: &'w mut Writer<'b>,
        attributes: Option<Attributes>,
        verifier: Verifier,
        dir_count: u32,
        max_count: u32,
    ) -> Self {
        let entries = Entries::new(to, dir_count, max_count, |to| {
            attributes.write(to);
            verifier.write(to);
        });
        Listing { entries, attributes }
    }

    /// Appends an entry to a reply of READDIR. False if it does not fit: nothing is written, and no
    /// later entry fits either, so that none is left out.
    pub fn entry(&mut self, entry: &Entry<'_>) -> bool {
        self.entries.append(entry, counted(entry.name))
    }

    /// Appends an entry to a reply of READDIRPLUS, as [`Self::entry`] does.
    pub fn entry_plus(&mut self, entry: &EntryPlus<'_>) -> bool {
        self.entries.append(entry, counted(entry.name))
    }

    /// Ends the reply. `eof` says that the directory has no entry after those that were appended.
    /// Without an entry and without `eof`, the reply becomes TOOSMALL; so it does if the limit is
    /// too small for an empty list.
    pub fn finish(self, eof: bool) -> Listed {
        let attributes = self.attributes;
        self.entries.finish(eof, |to| Outcome::<(), _>::Err(Status::TooSmall, attributes).write(to))
    }
}

/// Bytes of an entry that count for `dircount`: file ID, length of the name, the name, and cookie.
fn counted(name: Name<'_>) -> usize {
    8 + 4 + name.bytes().len().next_multiple_of(4) + 8
}
