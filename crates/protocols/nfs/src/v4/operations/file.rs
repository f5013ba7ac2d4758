//! Operations on the current file's handle, data and attributes (RFC 8881 §18).

use rpc::xdr_struct;

pub use crate::v3::Stable;
use crate::v4::{Fattr, Stateid, Verifier};

xdr_struct! {
    /// `ACCESS4resok`.
    #[derive(Copy)]
    pub struct AccessOk {
        /// Those of the asked bits of [`access`](crate::v4::flags::access) that can be answered.
        pub supported: u32,
        /// Those of them that are granted.
        pub access: u32,
    }

    /// `COMMIT4args`.
    #[derive(Copy)]
    pub struct Commit {
        /// Offset, bytes.
        pub offset: u64,
        /// Bytes; 0 is all up to the end.
        pub count: u32,
    }

    /// `READ4args`.
    #[derive(Copy)]
    pub struct Read {
        /// The open, lock or delegation; or a special stateid.
        pub stateid: Stateid,
        /// Offset, bytes.
        pub offset: u64,
        /// The most to read, bytes.
        pub count: u32,
    }

    /// `READ4resok` up to its data. The data and its padding follow.
    #[derive(Copy)]
    pub struct ReadOk {
        /// The read reached the end of the file.
        pub eof: bool,
        /// Length of the data that follows, bytes.
        pub length: u32,
    }

    /// `SETATTR4args`.
    #[derive(Copy)]
    pub struct SetAttr<'a> {
        /// Needed for the size; else [`Stateid::ANONYMOUS`].
        pub stateid: Stateid,
        /// The attributes to set.
        pub attributes: Fattr<'a>,
    }

    /// `WRITE4args` up to its data. The data and its padding follow.
    #[derive(Copy)]
    pub struct Write {
        /// The open, lock or delegation; or [`Stateid::ANONYMOUS`].
        pub stateid: Stateid,
        /// Offset, bytes.
        pub offset: u64,
        /// Stability that the data must have before the reply.
        pub stable: Stable,
        /// Length of the data that follows, bytes.
        pub length: u32,
    }

    /// `WRITE4resok`.
    #[derive(Copy)]
    pub struct WriteOk {
        /// Bytes written.
        pub count: u32,
        /// Stability of the written data; at least the requested one.
        pub committed: Stable,
        /// Changes when the server may have lost data that was not stable.
        pub verifier: Verifier,
    }
}
