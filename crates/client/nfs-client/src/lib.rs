//! An NFS client: files of any server, with no kernel's mount and no privileges.
//!
//! It runs on [`runtime`], with one io_uring per thread. A [`Client`] speaks NFS 4.2, 4.1 or 3 and
//! hides the difference. A [`File`] takes many reads and writes at a time, and sends again what a
//! server that restarted has lost. Below, a [`Caller`] has many calls outstanding on one
//! connection, matches replies by XID, and sends outstanding calls again over a new connection when
//! the old one is lost. The connection is TCP or RDMA.
//!
//! ```no_run
//! use nfs_client::{Client, Options, Url};
//!
//! # async fn example() -> Result<(), Box<dyn std::error::Error>> {
//! let url: Url = "nfs://192.0.2.1/data/report.txt".parse()?;
//! let client = Client::connect(&url, Options::default()).await?;
//! let (handle, attributes) = client.find(&url, true).await?;
//! let file = client.open(&handle, false).await?;
//! let first = file.read(0, 512).await?.to_vec();
//! println!("{} of {} bytes", first.len(), attributes.size);
//! file.close().await?;
//! client.close().await;
//! # Ok(())
//! # }
//! ```
#![forbid(unsafe_code)]

mod calls;
mod client;
mod error;
mod file;
mod link;
mod message;
mod options;
mod patience;
mod types;
mod url;
mod v3;
mod v4;

pub use calls::{Answer, Caller, Service};
pub use client::Client;
pub use error::Error;
pub use file::File;
pub use message::Room;
pub use nfs::v4::Status;
pub use options::{Auth, Crc, Options, Provider, Sys, Transport};
pub use types::{Attributes, Cursor, Entry, FileType, Handle, Id, SetAttributes, Space, Time};
pub use url::{Url, UrlError, Version};
