//! What the tests of the whole daemon share: the daemon and other commands as processes, and a
//! small blocking client.
#![allow(dead_code)] // Each test file uses a part of it.

pub mod client;
pub mod command;
pub mod daemon;
