//! The management of a running daemon: a Unix socket on which it answers one JSON object a line, and the commands that ask it.
//!
//! [`socket`] owns where that is and who may come in, [`protocol`] what a line is, [`server`] the clients' threads, [`client`]
//! the commands' side, [`daemon`] what the daemon knows of itself and which verb is whose. Each verb has a file of its own. Nothing
//! here runs on a core of the data path; what a verb wants of the cores goes through [`target::Handle`].

pub mod alua;
pub mod apply;
pub mod client;
pub mod daemon;
pub mod drain;
pub mod handover;
pub mod plan;
pub mod protocol;
pub mod server;
pub mod socket;
pub mod status;
pub mod top;
