//! Shared by the tests of the whole daemon: the daemon and other commands as processes, and a small
//! blocking client.
#![allow(dead_code)] // Each test file uses a part of it.

pub mod client;
pub mod command;
pub mod daemon;
