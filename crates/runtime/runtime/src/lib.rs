//! One io_uring a core: sockets, files, timers, and buffers that operations own. Where io_uring is
//! forbidden, epoll(7) and threads do the same ([`Backend`]).
//!
//! This crate, `verbs` and `rados` are the only ones with `unsafe`; each block states why it is
//! sound. Everything here belongs to the thread that made it, unless its documentation states that
//! it is `Send`.
//!
//! - [`Buf`], [`BufMut`], [`Chain`], [`Region`], [`pool`]: bytes that operations own.
//! - [`Runtime`], [`spawn`], [`Cores`]: an executor a thread, and threads pinned to cores.
//!   [`Shared`], [`Use`]: values that cores share without writing to shared memory.
//! - [`TcpListener`], [`TcpStream`], [`Gather`], [`Scatter`]: sockets.
//! - [`File`]: files and block devices. [`files`]: their names. [`FileHandle`]: files without
//!   names. [`act_as`]: calls for another user.
//! - [`thread()`], [`BlockingStream`], [`channel`], [`nap`]: threads that are not cores, and what
//!   they wait with.
//! - [`Answer`]: an operation that may have ended at once.
//! - [`sleep`], [`timeout`], [`now`]: time. [`blocking`]: system calls that the ring does not have.
//!   [`Signals`]. [`Readable`]: descriptors that belong to another library. [`Foreign`]: operations
//!   that another library's threads complete. [`Notify`]: a signal from other code of the core.
//!   [`Awaited`]: a value that tasks of all cores wait for.
//! - [`be_urgent`]: for threads that must run on time; [`be_patient`]: for those that need not.
//!
//! Dropping the future of any operation cancels it. The operation's buffers stay alive until the
//! kernel has released them, and then return to their pool; no task has to wait for that.

mod answer;
mod awaited;
mod blocking;
mod blocking_stream;
mod buf;
mod copies;
mod cores;
mod fs;
mod identity;
mod net;
mod notify;
mod op;
mod outside;
mod pooled;
mod random;
mod readable;
mod runtime;
mod shared;
mod signal;
#[cfg(feature = "sim")]
pub mod sim;
#[cfg(not(feature = "sim"))]
#[path = "sim_off.rs"]
mod sim;
#[cfg(feature = "testing")]
pub mod testing;
mod time;
mod urgency;
mod uses;

pub use answer::Answer;
pub use awaited::Awaited;
pub use blocking::blocking;
pub use blocking_stream::BlockingStream;
pub use buf::{
    Buf, BufMut, Bytes, Chain, Destination, Guard, LastUse, OutOfRange, Region, RegionRange, ZEROS, pool,
};
pub use copies::{Copies, copies, count_copy};
pub use cores::{CoreGone, Cores, Handle, core_count, current_core};
pub use fs::{File, FileHandle, OpenOptions, Patience, names as files};
pub use identity::{ActingAs, act_as, may_access};
pub use net::{
    Destinations, Gather, Keepalive, Lender, Lent, ListenOptions, PathOptions, Scatter, SystemLimits,
    TcpInfo, TcpListener, TcpStream, handed_sockets, peer_groups,
};
pub use notify::Notify;
pub use op::{Backend, Completer, Foreign};
pub use outside::{Receiver, RecvError, RecvTimeoutError, SendError, Sender, channel, nap, thread};
pub use pooled::Pooled;
pub use random::random;
pub use readable::Readable;
pub use runtime::{
    Config, JoinError, JoinHandle, NoRing, Runtime, STALL, Stalls, available_cores, has_polled, is_alone,
    is_running, round, spawn, stalls, submit, yield_now,
};
pub use shared::{Local, Shared};
pub use signal::{Signal, Signals, survive_file_size_limit};
pub use time::{Elapsed, Sleep, clock, clock_since_boot, now, sleep, sleep_until, timeout};
pub use urgency::{Urgency, be_patient, be_urgent};
pub use uses::Use;
