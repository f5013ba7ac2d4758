//! The tests of sockets, files and the executor again, on epoll in place of a ring.
#![allow(clippy::duplicate_mod, reason = "each of the files has the helpers for itself")]

#[path = "fs.rs"]
mod fs;
#[path = "net.rs"]
mod net;
#[path = "receive_now.rs"]
mod receive_now;
#[path = "runtime.rs"]
mod runtime_;
#[path = "socket_options.rs"]
mod socket_options;
