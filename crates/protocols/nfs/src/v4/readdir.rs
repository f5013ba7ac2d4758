//! Directory entries, and a server's bounded reply to READDIR (RFC 8881 §18.23).

use rpc::xdr::{Writer, Xdr};
use rpc::xdr_struct;

use super::{Fattr, Name, Status, Verifier};
use crate::listing::{Entries, Listed};

xdr_struct! {
    /// `entry4`.
    #[derive(Copy)]
    pub struct Entry<'a> {
        /// Place in the directory; 0, 1 and 2 are none.
        pub cookie: u64,
        /// The name; "." and ".." have no entry.
        pub name: Name<'a>,
        /// The requested attributes. An entry whose attributes fail has only
        /// [`rdattr_error`](super::Attributes::rdattr_error), if that was requested.
        pub attributes: Fattr<'a>,
    }
}

/// A reply to READDIR as it grows: `READDIR4res` from its status on, for
/// [`ReplyWriter::in_place`](super::ReplyWriter::in_place).
#[derive(Debug)]
pub struct Listing<'w, 'b>(Entries<'w, 'b>);

impl<'w, 'b> Listing<'w, 'b> {
    /// Begins a reply: at most `max_count` bytes of `READDIR4resok`, and `dir_count` of names and
    /// cookies. `dir_count` is a hint: the first entry may exceed it, and 0 is no limit.
    pub fn new(to: &'w mut Writer<'b>, verifier: Verifier, dir_count: u32, max_count: u32) -> Self {
        let dir_count = if dir_count == 0 { u32::MAX } else { dir_count };
        Listing(Entries::new(to, dir_count, max_count, |to| verifier.write(to)))
    }

    /// Appends an entry. False if it does not fit: nothing is written, and no later entry fits
    /// either, so that none is left out.
    pub fn entry(&mut self, entry: &Entry<'_>) -> bool {
        // Cookie, length of the name, and the name.
        let names = 8 + 4 + entry.name.bytes().len().next_multiple_of(4);
        self.0.append(entry, names)
    }

    /// Ends the reply, and returns how many entries it has. `eof` says that the directory has no
    /// entry after those that were appended. Without an entry and without `eof`, the reply becomes
    /// TOOSMALL; so it does if the limit is too small for an empty list.
    ///
    /// # Errors
    /// [`Status::TooSmall`], which is written.
    pub fn finish(self, eof: bool) -> Result<usize, Status> {
        match self.0.finish(eof, |to| Status::TooSmall.write(to)) {
            Listed::Entries(entries) => Ok(entries),
            Listed::TooSmall => Err(Status::TooSmall),
        }
    }
}
