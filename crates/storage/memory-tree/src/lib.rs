//! A tree of files in memory: `mem:1G`.
//!
//! Nothing outlives the process but what it hands to the next one, so every write counts as
//! durable, and the ids of other processes are stale. All operations end at once. Reads answer with
//! the memory itself.
//!
//! - [`MemoryTree`] implements [`tree::Tree`]. `names`, `attributes`, `file` and `extended` have
//!   the operations, `state` their common parts.
//! - `table` has the nodes, each behind its own lock, and the one rule against deadlocks.
//! - `arena` has the pages of all files, and keeps those that are being sent from other files.
//!   `pages` has those that are free.
//! - `saved` is the form in which a tree goes to the next process.
//! - `budget` counts memory and files: data, names and attributes alike.
#![forbid(unsafe_code)]

mod arena;
mod attributes;
mod budget;
mod data;
mod directory;
mod extended;
mod file;
mod free;
mod memory_tree;
mod names;
mod node;
mod pages;
mod saved;
mod state;
mod table;

pub use memory_tree::{MemoryTree, Root};
pub use state::Limits;
