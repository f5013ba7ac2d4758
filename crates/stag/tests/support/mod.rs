//! What the tests of the whole daemon share: the daemon as a process, and a small blocking client.
#![allow(dead_code)] // Each test file uses a part of it.

pub mod client;
pub mod daemon;
