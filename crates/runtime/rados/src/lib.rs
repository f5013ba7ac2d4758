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
//!   `header_lock`: that lock as it lies in the header.
//! - `client`: a connection that images and objects share. `object`: bytes and attributes, changed
//!   by compare-and-set, and watches. Both block.
//! - `luks`: decryption of an image. `operation`: I/O. `bound`: how many bytes of it may be in
//!   flight. `layout`: how they lie in objects. `run`: what an image has.
//!
//! `either` is what other crates see of these. In a simulated world (feature `sim`) it is a model
//! of a cluster instead, `model`.
//!
//! A missing library is an error that names the package; a missing function of a newer Ceph is a
//! missing ability.
#![allow(missing_docs, reason = "only this workspace uses it: names that say all need no comment")]

mod bound;
mod client;
mod connection;
mod either;
mod error;
mod header_lock;
mod image;
mod layout;
mod library;
mod luks;
#[cfg(feature = "sim")]
pub mod model;
mod object;
mod operation;
mod run;
mod unpinned;

pub use connection::{Login, plain as plain_address, wait_until_closed};
pub use either::{Client, Image, Object, Watch};
pub use error::{Error, LoadError};
pub use image::{About, Changed, Source, Successor};
pub use object::{Change, Content, Told};
pub use unpinned::start as start_unpinned;
