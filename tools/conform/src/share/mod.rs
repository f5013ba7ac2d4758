//! An NFS server as the subject of a run: raw RPC over TCP or RDMA, versions 3, 4.1 and 4.2, and a
//! directory of the run's own in the export.

mod conn;
mod four;
mod lab;
mod messages;
mod options;
mod server;
mod three;

pub(crate) use conn::{Conn, auth_sys, call, fragment};
pub(crate) use four::{
    BOTH, CHANNEL, Four, READ, Reply4, WRITE, alone, compound, create_session, exchange_id, get, name, ok4,
    open, owner, put, read, send, write,
};
pub(crate) use lab::Lab;
pub use options::ShareOptions;
pub use server::run_share;
pub(crate) use three::{Reply3, Three, at, encoded, fh, mounted, ok3, raw_at};
