//! A tree in memory passes all checks of trees.

use memory_tree::{Limits, MemoryTree, Root};
use runtime::{Config, Runtime};
use tree::testing::{Without, conform};

#[test]
fn a_tree_in_memory_does_what_trees_do() {
    let limits = Limits { bytes: 64 << 20, files: 10_000 };
    let tree = MemoryTree::new(limits, Root { mode: 0o755, uid: 0, gid: 0 }).unwrap();
    Runtime::new(Config::default()).unwrap().block_on(conform(&tree, Without::default()));
}
