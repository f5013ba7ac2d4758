//! Shared by the tests of the whole daemon: the daemon and other commands as processes, and a small
//! blocking client.
pub mod client;
pub mod command;
pub mod daemon;
pub mod workspace;
