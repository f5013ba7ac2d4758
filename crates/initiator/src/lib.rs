//! An iSCSI initiator: sessions with any target, over one connection or many, and block access to its units.
//!
//! It runs on [`ring`], one io_uring a thread. A [`Session`] takes commands by the hundred, sends many PDUs in one system
//! call, spreads them over its connections (MC/S), and when a connection breaks it logs in again and repeats what may be
//! repeated, without its user noticing more than a pause. A [`Disk`] reads and writes blocks; a [`Unit`] takes any SCSI
//! command.
//!
//! ```no_run
//! use initiator::{Disk, Options, Session, Url};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let runtime = ring::Runtime::new(ring::Config::default())?;
//! runtime.block_on(async {
//!     let url: Url = "iscsi://192.0.2.1/iqn.2026-01.org.example:disks/0".parse()?;
//!     let session = Session::connect(&url, Options::default()).await?;
//!     let disk = Disk::open(&session, url.lun.unwrap_or(0)).await?;
//!
//!     let first = disk.read(0, 8).await?.to_vec();
//!     println!("{} bytes of {}, beginning with {:02x?}", first.len(), disk.len(), &first[..4]);
//!
//!     disk.write(8, ring::Buf::from(first)).await?;
//!     disk.sync().await?;
//!     session.close().await?;
//!     Ok(())
//! })
//! # }
//! ```
//!
//! Many commands at once: start them all, then wait for each.
//!
//! ```no_run
//! # async fn example(disk: &initiator::Disk) -> Result<(), initiator::Error> {
//! use scsi::cdb::build;
//!
//! let mut tickets = Vec::new();
//! for lba in 0..64u32 {
//!     let command = disk.command(&build::read10(lba, 1, build::Flags::default())).reading(disk.block_len());
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
//! Very many commands: a [`Queue`] sends and collects them by the batch, and costs well under a microsecond for each.
//!
//! A URL that begins with `iser://` reaches the same unit by RDMA (iSER, RFC 7145), over software iWARP or an RDMA device
//! ([`Options::iser_provider`]); all else is the same.
//!
//! Mutual CHAP, digests and four connections:
//!
//! ```no_run
//! use initiator::{Chap, Credential, DigestChoice, Options, Secret};
//!
//! let options = Options {
//!     chap: Some(Chap {
//!         credential: Credential { name: "alice".into(), secret: Secret::new(*b"correct horse battery") },
//!         target: Some(Credential { name: "disks".into(), secret: Secret::new(*b"staple and then some") }),
//!         hashes: vec![initiator::Hash::Sha256],
//!     }),
//!     header_digest: DigestChoice::Require,
//!     data_digest: DigestChoice::Require,
//!     connections: 4,
//!     ..Options::default()
//! };
//! ```
//!
//! # What a fault costs
//!
//! As much as the error recovery level that the target agrees to ([`Options::error_recovery_level`]) makes necessary. At
//! level 2 a lost connection's commands go on on another one, which loses and repeats nothing; at level 1 a wrong data
//! digest, or a PDU that went missing, is recovered within its connection ([`Session::recoveries`] counts both). What
//! cannot be recovered, and everything at level 0, has the whole session made anew, for up to
//! [`Options::reconnect_timeout`], unless the target refuses for good. Commands that were under way and may be repeated ([`Command::repeatable`]) are
//! sent again in their order, each at most [`Options::max_replays`] times; the others end with [`Error::Lost`], and whether
//! they ran is unknown. Units report the lost nexus with a unit attention, which [`Disk`] takes in its stride.
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
pub mod tune;
mod unit;
mod url;
mod wire;

pub use discover::discover;
pub use disk::Disk;
pub use error::{Error, ScsiError};
pub use options::Options;
pub use session::{Command, Completed, MAX_READ, Queue, Response, Session, Ticket, Transfer};
pub use unit::Unit;
pub use url::{Transport, Url, UrlError};

pub use iscsi::chap::{Credential, Hash, Secret};
pub use iscsi::discovery::{Record, TargetAddress};
pub use iscsi::initiator::{Recoveries, Spread};
pub use iscsi::keys::{DigestChoice, Params};
pub use iscsi::login::initiator::Chap;
pub use iscsi::pdu::{Lun, Residual, TaskAttribute, TaskManagementFunction, TaskManagementResult};
pub use rdma::{Crc, Provider};
