//! Extended attributes (RFC 8276 §8).

use rpc::xdr::List;
use rpc::{xdr_enum, xdr_struct};

use crate::v4::{Name, Text};

xdr_struct! {
    /// `SETXATTR4args`.
    #[derive(Copy)]
    pub struct SetXattr<'a> {
        /// Whether it must or must not exist.
        pub option: SetXattrOption,
        /// Its name. Linux leaves out the prefix `user.`.
        pub name: Name<'a>,
        /// Its value.
        pub value: Text<'a>,
    }

    /// `LISTXATTRS4args`.
    #[derive(Copy)]
    pub struct ListXattrs {
        /// The cookie of the last reply; 0 at the start.
        pub cookie: u64,
        /// The most bytes of `LISTXATTRS4resok`.
        pub max_count: u32,
    }

    /// `LISTXATTRS4resok`.
    #[derive(Copy)]
    pub struct ListXattrsOk<'a> {
        /// For the next call.
        pub cookie: u64,
        /// The names.
        pub names: List<'a, Name<'a>>,
        /// No name comes after these.
        pub eof: bool,
    }
}

xdr_enum! {
    /// `setxattr_option4`.
    pub enum SetXattrOption {
        /// Create or replace.
        Either = 0,
        /// An existing one is an error: EXIST.
        Create = 1,
        /// A missing one is an error: NOXATTR.
        Replace = 2,
    }
}
