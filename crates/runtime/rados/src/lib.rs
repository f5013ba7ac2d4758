//! Ceph's librados and librbd, loaded at run time, behind a safe interface.
//!
//! An [`Image`] is an open RBD image with a connection to its cluster of its own. Reads, writes,
//! zeros and flushes are started on a core, carried out by librbd's threads, and end on the core
//! that started them. All else blocks, and runs on threads that are pinned to no core: the threads
//! that librados starts inherit the pin of the thread that connects.
//!
//! Rule: no function here that a core calls waits for the cluster.
//!
//! - `library`: the two libraries and their functions. `unpinned`: threads for calls that block.
//! - `connection`: a cluster, and a pool of it. `image`: an open image, its lock and metadata.
//! - `client`: a connection that images and objects share. `object`: bytes and attributes, changed
//!   by compare-and-set, and watches. Both block.
//! - `luks`: decryption of an image. `operation`: I/O. `bound`: how many bytes of it may be in
//!   flight. `run`: what an image has.
//!
//! A missing library is an error that names the package; a missing function of a newer Ceph is a
//! missing ability.
#![allow(missing_docs, reason = "only this workspace uses it: names that say all need no comment")]

mod bound;
mod client;
mod connection;
mod error;
mod image;
mod library;
mod luks;
mod object;
mod operation;
mod run;
mod unpinned;

pub use client::Client;
pub use connection::{Login, plain as plain_address, wait_until_closed};
pub use error::{Error, LoadError};
pub use image::{About, Changed, Image, Source, Successor};
pub use object::{Change, Content, Object, Told, Watch};
pub use unpinned::start as start_unpinned;
