//! RBD images of a Ceph cluster as stores of units.
//!
//! - `name`: how an image is written, `POOL[/NAMESPACE]/IMAGE[@SNAPSHOT]`.
//! - `store`: its bytes, a `backing::BlockStore`.
//! - `live`: the open instance of an image, and its replacement.
//! - `lock`: who has an image's lock.
//! - `persist`: reservations in the image's metadata. `space`: how much room there is.
//! - `group`: one of several gateways that act as one.
#![forbid(unsafe_code)]
#![allow(missing_docs, reason = "only this workspace uses it: names that say all need no comment")]

pub mod group;
mod live;
mod lock;
mod name;
mod persist;
mod space;
mod store;

pub use lock::{LockOwner, lock_owner};
pub use name::{ImageName, NameError};
pub use persist::ImagePersist;
pub use rados::{Error, Login, wait_until_closed};
pub use store::RbdStore;
