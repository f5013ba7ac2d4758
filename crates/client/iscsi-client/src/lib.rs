//! An iSCSI initiator: sessions with any target, over one or more connections, and block access to
//! its units.
//!
//! It runs on [`runtime`], with one io_uring per thread. A [`Session`] takes hundreds of concurrent
//! commands, sends many PDUs per system call, and distributes them over its connections (MC/S).
//! When a connection breaks it logs in again and repeats repeatable commands; its user only notices
//! a pause. A [`Disk`] reads and writes blocks; a [`Unit`] takes any SCSI command.
//!
//! ```no_run
//! use iscsi_client::{Disk, Options, Session, Url};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let runtime = runtime::Runtime::new(runtime::Config::default())?;
//! runtime.block_on(async {
//!     let url: Url = "iscsi://192.0.2.1/iqn.2026-01.org.example:disks/0".parse()?;
//!     let session = Session::connect(&url, Options::default()).await?;
//!     let disk = Disk::open(&session, url.lun.unwrap_or(0)).await?;
//!
//!     let first = disk.read(0, 8).await?.to_vec();
//!     println!("{} bytes of {}, beginning with {:02x?}", first.len(), disk.len(), &first[..4]);
//!
//!     disk.write(8, runtime::Buf::from(first)).await?;
//!     disk.sync().await?;
//!     session.close().await?;
//!     Ok(())
//! })
//! # }
//! ```
//!
//! Many concurrent commands: start them all, then wait for each.
//!
//! ```no_run
//! # async fn example(disk: &iscsi_client::Disk) -> Result<(), iscsi_client::Error> {
//! use scsi::cdb::build;
//!
//! let mut tickets = Vec::new();
//! for lba in 0..64u32 {
//!     let cdb = build::read10(lba, 1, build::Flags::default());
//!     let command = disk.command(&cdb).reading(disk.block_len());
//!     tickets.push(disk.session().start(command).await?);
//! }
//! for ticket in tickets {
//!     let response = ticket.await?.ok()?;
//!     assert_eq!(response.data.len(), disk.block_len() as usize);
//! }
//! # Ok(())
//! # }
//! ```
//!
//! Very many commands: a [`Queue`] submits and collects them in batches, for well under a
//! microsecond each.
//!
//! From other threads and under other executors, such as tokio's: [`SharedDisk`].
//!
//! A URL that begins with `iser://` reaches the same unit by RDMA (iSER, RFC 7145), over software
//! iWARP or an RDMA device ([`Options::iser_provider`]). Everything else is the same.
//!
//! Mutual CHAP, digests and four connections:
//!
//! ```no_run
//! use iscsi_client::{Chap, Credential, DigestChoice, Options, Secret};
//!
//! let target = Credential { name: "disks".into(), secret: Secret::new(*b"staple and then some") };
//! let options = Options {
//!     chap: Some(Chap {
//!         credential: Credential {
//!             name: "alice".into(),
//!             secret: Secret::new(*b"correct horse battery"),
//!         },
//!         target: Some(target),
//!         hashes: vec![iscsi_client::Hash::Sha256],
//!     }),
//!     header_digest: DigestChoice::Require,
//!     data_digest: DigestChoice::Require,
//!     connections: 4,
//!     ..Options::default()
//! };
//! ```
//!
//! # The cost of a fault
//!
//! It depends on the negotiated error recovery level ([`Options::error_recovery_level`]). At level
//! 2 the commands of a lost connection continue on another one, without loss or repetition. At
//! level 1 a wrong data digest, or a lost PDU, is recovered within its connection.
//! [`Session::recoveries`] counts both.
//!
//! For other faults, and for all at level 0, the session logs in again, for up to
//! [`Options::reconnect_timeout`], unless the target refuses permanently. Outstanding commands that
//! are repeatable ([`Command::repeatable`]) are sent again in order, each at most
//! [`Options::max_replays`] times. The others end with [`Error::Lost`]: whether they ran is
//! unknown. Units report the lost nexus with a unit attention, which [`Disk`] handles.
#![forbid(unsafe_code)]

mod bell;
mod dial;
mod discover;
mod disk;
mod error;
pub mod objects;
mod options;
mod payload;
mod session;
mod shared;
pub mod tune;
mod unit;
mod url;
mod wire;

pub use discover::discover;
pub use disk::Disk;
pub use error::{Error, ScsiError};
pub use options::Options;
pub use session::{Command, Completed, MAX_READ, Queue, Response, Session, Ticket, Transfer};
pub use shared::{Outcome, SharedDisk, wait};
pub use unit::Unit;
pub use url::{Transport, Url, UrlError};

pub use iscsi::chap::{Credential, Hash, Secret};
pub use iscsi::discovery::{Record, TargetAddress};
pub use iscsi::initiator::{Recoveries, Spread};
pub use iscsi::keys::{DigestChoice, Params};
pub use iscsi::login::initiator::Chap;
pub use iscsi::pdu::{Isid, Lun, Residual, TaskAttribute, TaskManagementFunction, TaskManagementResult};
pub use rdma::{Crc, Provider};
pub use runtime::{Buf, Chain};
pub use scsi::data::capacity::ReadCapacity16;
pub use scsi::data::inquiry::StandardInquiry;
pub use scsi::data::lba_status::LbaStatus;
pub use scsi::data::unmap::UnmapRange;
pub use scsi::data::vpd::{BlockLimits, LogicalBlockProvisioning};

/// The example of the README, compiled and run by the tests.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
