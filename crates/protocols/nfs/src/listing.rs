//! Directory entries in a reply that a client has limited: the part that READDIR has in common in
//! all versions (RFC 1813 §3.3.16, RFC 8881 §18.23). The server offers entry after entry; the reply
//! takes those that fit.

use rpc::xdr::{Writer, Xdr};

/// The list's last FALSE and `eof`, bytes.
const END_LEN: usize = 8;

/// Result of a finished listing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Listed {
    /// OK, with this number of entries.
    Entries(usize),
    /// TOOSMALL: the limits leave no room for one entry.
    TooSmall,
}

/// Entries as they are appended.
#[derive(Debug)]
pub(crate) struct Entries<'w, 'b> {
    to: &'w mut Writer<'b>,
    /// The position of the status.
    start: usize,
    /// The position that the reply must not exceed.
    end: usize,
    /// Bytes left of the limit of names.
    names_left: usize,
    entries: usize,
    full: bool,
}

impl<'w, 'b> Entries<'w, 'b> {
    /// Begins a reply with OK and `head`: at most `count` bytes behind the status, and `names`
    /// bytes of what [`Self::append`] counts. `names` is a hint: the first entry may exceed it.
    pub(crate) fn new(
        to: &'w mut Writer<'b>,
        names: u32,
        count: u32,
        head: impl FnOnce(&mut Writer<'b>),
    ) -> Self {
        let start = to.position();
        to.u32(0);
        let end = to.position().saturating_add(count as usize);
        head(to);
        Entries { to, start, end, names_left: names as usize, entries: 0, full: false }
    }

    /// Appends an entry that counts `names` bytes. False if it does not fit: nothing is written,
    /// and no later entry fits either, so that none is left out.
    pub(crate) fn append<'t>(&mut self, entry: &impl Xdr<'t>, names: usize) -> bool {
        if self.full {
            return false;
        }
        let before = self.to.position();
        self.to.bool(true);
        entry.write(self.to);
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
    /// Without an entry and without `eof`, the reply is TOOSMALL; so it is if the limit is too
    /// small for an empty list. Then `write_too_small` writes the whole reply.
    pub(crate) fn finish(self, eof: bool, write_too_small: impl FnOnce(&mut Writer<'b>)) -> Listed {
        let too_small = self.to.position().saturating_add(END_LEN) > self.end;
        // An entry that did not fit comes after those that did.
        let eof = eof && !self.full;
        if too_small || (self.entries == 0 && !eof) {
            self.to.truncate(self.start);
            write_too_small(self.to);
            return Listed::TooSmall;
        }
        self.to.bool(false);
        self.to.bool(eof);
        Listed::Entries(self.entries)
    }
}
