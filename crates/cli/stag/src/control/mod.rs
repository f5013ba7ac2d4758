//! The management of a running daemon: a Unix socket on which it answers one JSON object a line,
//! and the commands that use it.
//!
//! [`place`] finds the socket, [`socket`] holds it, [`peer`] decides who may connect, and
//! [`clients`] counts the connections. [`protocol`] describes a line, [`server`] has the clients'
//! threads, and [`client`] is the commands' side. [`daemon`] is the daemon's state, and [`verbs`]
//! finds the file of a verb. Nothing here runs on a core of the data path: a verb reaches the cores
//! through [`iscsi_server::Handle`].

pub mod acknowledge;
pub mod alua;
pub mod apply;
pub mod client;
mod clients;
pub mod counted;
pub mod credentials;
pub mod daemon;
pub mod disconnect;
pub mod drain;
pub mod exports;
pub mod gateways;
pub mod handover;
pub mod health;
pub mod managed;
mod passing;
pub mod peer;
pub mod place;
pub mod plan;
pub mod protocol;
pub mod server;
pub mod slow;
pub mod socket;
pub mod status;
mod status_text;
pub mod token;
pub mod upgrade;
pub mod verbs;
