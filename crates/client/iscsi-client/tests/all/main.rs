//! The client against targets that lose, damage and lie, and against foreign ones.

#[path = "../fake/mod.rs"]
mod fake;
#[path = "../fake_iser/mod.rs"]
mod fake_iser;
mod faults;
mod iser;
mod istgt;
mod ports;
mod queue;
mod shared;
mod tgt;
