//! The management of a running daemon: a Unix socket on which it answers one JSON object a line, and the commands that ask it.
//!
//! [`place`] knows where that is, [`socket`] holds it, [`peer`] knows who may come in and [`clients`] who is, [`protocol`] what a line is, [`server`] the clients' threads, [`client`]
//! the commands' side, [`daemon`] what the daemon knows of itself, and [`verbs`] which verb is whose. Each verb has a file of its own. Nothing
//! here runs on a core of the data path; what a verb wants of the cores goes through [`iscsi_server::Handle`].

pub mod acknowledge;
pub mod alua;
pub mod apply;
pub mod client;
mod clients;
pub mod daemon;
pub mod drain;
pub mod handover;
pub mod health;
pub mod peer;
pub mod place;
pub mod plan;
pub mod protocol;
pub mod server;
pub mod socket;
pub mod status;
mod status_text;
pub mod top;
pub mod upgrade;
mod verbs;
