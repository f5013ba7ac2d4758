//! A conformance suite for targets of iSCSI (RFC 7143) and iSER (RFC 7145), and for servers of NFS
//! (RFC 1813, RFC 8881, RFC 7862): it reports each deviation as a sentence with the violated
//! clause.
//!
//! - [`check`] and [`finding`]: checks and their possible results.
//! - [`areas`](checks): the checks, by subject.
//! - [`run`] and [`run_share`]: run them against a target or an NFS server, each check on its own
//!   connections and with a time limit.
//! - [`Report`]: the results, as text, JSON and JUnit.
//!
//! Its connection is raw: it sends whatever a check requests, valid or not, and keeps no session
//! state except the numbers of RFC 7143 §4.2.2. It must never use the crates `iscsi-client` and
//! `nfs-client`, or `iscsi::initiator`: shared code would not give a second opinion on a target of
//! this workspace.
//!
//! Without permission to write it changes nothing on a medium: VERIFY compares data instead of
//! writing it. In an export of NFS it works in a directory of its own.
#![forbid(unsafe_code)]
#![allow(missing_docs, reason = "only this workspace uses it: a name that says all needs no comment")]

mod areas;
mod check;
mod conn;
mod finding;
mod iser;
mod lab;
mod login;
mod lost;
mod options;
mod pair;
mod pdu;
mod report;
mod runner;
mod scsi;
mod share;
mod stream;
mod target;
mod tcp;

pub use areas::{all as checks, matching};
pub use check::{Area, Check, Level, Needs, Over};
pub use options::{Account, Options, Transport};
pub use report::{Outcome, Record, Report};
pub use runner::{Progress, RunError};
pub use share::{ShareOptions, run_share};
pub use target::run;
