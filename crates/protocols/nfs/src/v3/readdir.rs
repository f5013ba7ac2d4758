//! Directory entries, and a server's bounded replies to READDIR and READDIRPLUS (RFC 1813 §3.3.16,
//! §3.3.17). The server offers entry after entry; the reply takes those that fit.

use rpc::xdr::{Writer, Xdr};
use rpc::xdr_struct;

use super::operations::{Handle, Name};
use super::{Attributes, Outcome, Status, Verifier};

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

/// The list's last FALSE and `eof`, bytes.
const END_LEN: usize = 8;

/// A reply to READDIR or READDIRPLUS as it grows: `READDIR3res` from its status on.
///
/// It counts exactly what it writes: the limit `count` or `maxcount` holds for everything behind
/// the status, the list's end included.
#[derive(Debug)]
pub struct Listing<'w, 'b> {
    to: &'w mut Writer<'b>,
    start: usize,
    /// The position that the reply must not exceed.
    end: usize,
    attributes: Option<Attributes>,
    /// Bytes left of `dircount`.
    names_left: usize,
    entries: usize,
    full: bool,
}

/// What a finished [`Listing`] is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Listed {
    /// OK, with so many entries.
    Entries(usize),
    /// TOOSMALL: the limits leave no room for one entry.
    TooSmall,
}

impl<'w, 'b> Listing<'w, 'b> {
    /// Begins a reply to READDIR: at most `count` bytes behind the status.
    pub fn new(
        to: &'w mut Writer<'b>,
        attributes: Option<Attributes>,
        verifier: Verifier,
        count: u32,
    ) -> Self {
        let start = to.position();
        to.u32(0);
        let end = to.position().saturating_add(count as usize);
        attributes.write(to);
        verifier.write(to);
        Listing { to, start, end, attributes, names_left: usize::MAX, entries: 0, full: false }
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
        Listing { names_left: dir_count as usize, ..Listing::new(to, attributes, verifier, max_count) }
    }

    /// Appends an entry to a reply of READDIR. False if it does not fit: nothing is written, and no
    /// later entry fits either, so that none is left out.
    pub fn entry(&mut self, entry: &Entry<'_>) -> bool {
        self.append(entry, entry.name)
    }

    /// Appends an entry to a reply of READDIRPLUS, as [`Self::entry`] does.
    pub fn entry_plus(&mut self, entry: &EntryPlus<'_>) -> bool {
        self.append(entry, entry.name)
    }

    fn append<'t>(&mut self, entry: &impl Xdr<'t>, name: Name<'_>) -> bool {
        if self.full {
            return false;
        }
        let before = self.to.position();
        self.to.bool(true);
        entry.write(self.to);
        // File ID, length of the name, the name, and cookie.
        let names = 8 + 4 + name.bytes().len().next_multiple_of(4) + 8;
        let fits = self.to.position().saturating_add(END_LEN) <= self.end;
        if !fits || (names > self.names_left && self.entries > 0) {
            self.to.truncate(before);
            self.full = true;
            return false;
        }
        self.names_left = self.names_left.saturating_sub(names);
        self.entries += 1;
        true
    }

    /// Ends the reply. `eof` says that the directory has no entry after those that were appended.
    /// Without an entry and without `eof`, the reply becomes TOOSMALL; so it does if the limit is
    /// too small for an empty list.
    pub fn finish(self, eof: bool) -> Listed {
        let too_small = self.to.position().saturating_add(END_LEN) > self.end;
        // An entry that did not fit comes after those that did.
        let eof = eof && !self.full;
        if too_small || (self.entries == 0 && !eof) {
            self.to.truncate(self.start);
            Outcome::<(), _>::Err(Status::TooSmall, self.attributes).write(self.to);
            return Listed::TooSmall;
        }
        self.to.bool(false);
        self.to.bool(eof);
        Listed::Entries(self.entries)
    }
}
