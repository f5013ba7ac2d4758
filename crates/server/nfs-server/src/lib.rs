//! NFS over TCP and RDMA as a front end of [`server_core`]: version 3 (RFC 1813) with its MOUNT
//! protocol and a portmapper (RFC 1833), and versions 4.1 and 4.2 (RFC 8881, RFC 7862), all at
//! every portal.
//!
//! Each export is a tree of files behind [`tree::Tree`], under a name. A call that has begun is
//! never dropped: its client may ask for the reply again, over another connection if need be.
#![forbid(unsafe_code)]

mod back_channel;
mod call;
mod caller;
mod carried;
mod changes;
mod changing;
mod checksum;
mod client;
pub mod config;
mod connection;
mod dispatch;
mod end;
mod file;
mod front_end;
mod groups;
mod handle;
mod ledger;
mod long_calls;
mod model;
mod mount;
mod mounts;
mod over_rdma;
mod pace;
mod portmap;
mod pseudo;
mod records;
mod replies;
mod reply;
mod shared;
mod slow;
mod state;
mod tally;
mod v3;
mod v4;

pub use front_end::{Activity, ClientStatus, ExportStatus, Handle, begin, prepare};
pub use slow::{Progress, SlowCall};
pub use tally::{Counts, OperationCounts, Outcome};
