//! A folder of the host as a tree.

mod common;
mod conform;
mod escapes;
mod files;
mod troubles;
