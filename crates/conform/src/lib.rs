//! A conformance suite for targets of iSCSI (RFC 7143) and iSER (RFC 7145): what a target does wrong, said in sentences with the
//! clause that each breaks.
//!
//! - [`check`]: what a check is, and what can come of one.
//! - [`areas`](checks): the checks, by what they are about.
//! - [`run`]: runs them against a target, each on connections of its own, each bounded in time.
//! - [`Report`]: what came of them, as text, JSON and JUnit.
//!
//! Its connection is raw: it sends whatever a check asks for, right or wrong, and knows no session but the numbers of RFC 7143
//! §4.2.2. It must never use the `initiator` crate or `iscsi::initiator`: a second opinion on a target of this workspace would
//! be none if it shared their code.
//!
//! Without leave to write it changes nothing on a medium: data that goes out is compared by VERIFY, not written.
#![forbid(unsafe_code)]

mod areas;
mod check;
mod conn;
mod iser;
mod lab;
mod login;
mod options;
mod report;
mod runner;
mod scsi;
mod tcp;

pub use areas::{all as checks, matching};
pub use check::{Area, Check, Level, Needs, Over};
pub use options::{Account, Options, Transport};
pub use report::{Outcome, Record, Report};
pub use runner::{Progress, RunError, run};
