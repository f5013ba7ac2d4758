//! Operations of version 4.2 on ranges of files (RFC 7862 §15).

use rpc::xdr::List;
use rpc::{xdr_enum, xdr_struct, xdr_union};

use super::file::Stable;
use crate::v4::{Bitmap, Outcome, OutcomeOr, Stateid, Status, Text, Time, Verifier};

/// The result of COPY: with OFFLOAD_NO_REQS come the requirements that the server can meet.
pub type CopyOutcome = OutcomeOr<CopyOk, CopyRequirements, { Status::OffloadNoReqs as u32 }>;

xdr_struct! {
    /// `ALLOCATE4args` and `DEALLOCATE4args`.
    #[derive(Copy)]
    pub struct Allocate {
        /// The open, lock or delegation.
        pub stateid: Stateid,
        /// Offset, bytes.
        pub offset: u64,
        /// Bytes.
        pub length: u64,
    }

    /// `CLONE4args`: from the saved file to the current one.
    #[derive(Copy)]
    pub struct CloneRange {
        /// The saved file's open, lock or delegation.
        pub source: Stateid,
        /// The current file's open, lock or delegation.
        pub destination: Stateid,
        /// Offset in the saved file, bytes.
        pub source_offset: u64,
        /// Offset in the current file, bytes.
        pub destination_offset: u64,
        /// Bytes; 0 is all up to the end.
        pub count: u64,
    }

    /// `COPY4args`: from the saved file, or from another server, to the current file.
    #[derive(Copy)]
    pub struct CopyRange<'a> {
        /// The source's open, lock or delegation.
        pub source: Stateid,
        /// The current file's open, lock or delegation.
        pub destination: Stateid,
        /// Offset in the source, bytes.
        pub source_offset: u64,
        /// Offset in the current file, bytes.
        pub destination_offset: u64,
        /// Bytes; 0 is all up to the end.
        pub count: u64,
        /// In order.
        pub consecutive: bool,
        /// Before the reply.
        pub synchronous: bool,
        /// Addresses of the source's server, if it is another one.
        pub source_servers: List<'a, NetLoc<'a>>,
    }

    /// `netaddr4`.
    #[derive(Copy)]
    pub struct NetAddr<'a> {
        /// Such as `tcp`.
        pub netid: Text<'a>,
        /// The universal address (RFC 5665 §5.2.3).
        pub address: Text<'a>,
    }

    /// `write_response4`.
    #[derive(Copy)]
    pub struct WriteResponse {
        /// Present: the operation continues, and CB_OFFLOAD tells of its end.
        pub callback: Option<Stateid>,
        /// Bytes written.
        pub count: u64,
        /// Stability of the written data.
        pub committed: Stable,
        /// As that of WRITE.
        pub verifier: Verifier,
    }

    /// `copy_requirements4`.
    #[derive(Copy, Default)]
    pub struct CopyRequirements {
        /// In order.
        pub consecutive: bool,
        /// Before the reply.
        pub synchronous: bool,
    }

    /// `COPY4resok`.
    #[derive(Copy)]
    pub struct CopyOk {
        /// The result of the copy.
        pub response: WriteResponse,
        /// How.
        pub requirements: CopyRequirements,
    }

    /// `COPY_NOTIFY4args`.
    #[derive(Copy)]
    pub struct CopyNotify<'a> {
        /// The open, lock or delegation.
        pub source: Stateid,
        /// The server that will read the current file.
        pub destination: NetLoc<'a>,
    }

    /// `COPY_NOTIFY4resok`.
    #[derive(Copy)]
    pub struct CopyNotifyOk<'a> {
        /// Time that the other server has to begin.
        pub lease_time: Time,
        /// The stateid with which the other server reads.
        pub stateid: Stateid,
        /// Addresses from which it reads.
        pub source_servers: List<'a, NetLoc<'a>>,
    }

    /// `OFFLOAD_STATUS4resok`.
    #[derive(Copy)]
    pub struct OffloadStatusOk {
        /// Bytes so far.
        pub count: u64,
        /// The outcome, if it has ended.
        pub complete: Option<Outcome<()>>,
    }

    /// `IO_ADVISE4args`.
    #[derive(Copy)]
    pub struct IoAdvise {
        /// The open, lock or delegation.
        pub stateid: Stateid,
        /// Offset, bytes.
        pub offset: u64,
        /// Bytes; 0 is all up to the end.
        pub count: u64,
        /// Numbers of `IO_ADVISE_type4`.
        pub hints: Bitmap,
    }

    /// `SEEK4args`.
    #[derive(Copy)]
    pub struct Seek {
        /// The open, lock or delegation.
        pub stateid: Stateid,
        /// Offset at which to begin, bytes.
        pub offset: u64,
        /// Data or a hole.
        pub what: Content,
    }

    /// `seek_res4`.
    #[derive(Copy)]
    pub struct SeekOk {
        /// There is none from `offset` on.
        pub eof: bool,
        /// Offset of the data or hole found, bytes.
        pub offset: u64,
    }
}

xdr_enum! {
    /// `data_content4`.
    pub enum Content {
        /// Data.
        Data = 0,
        /// A hole. The end of the file is one.
        Hole = 1,
    }
}

xdr_union! {
    /// `netloc4`: a server.
    #[derive(Copy)]
    pub enum NetLoc<'a> {
        /// Its name.
        Name(Text<'a>) = 1,
        /// A URL.
        Url(Text<'a>) = 2,
        /// Its address.
        Address(NetAddr<'a>) = 3,
    }
}
