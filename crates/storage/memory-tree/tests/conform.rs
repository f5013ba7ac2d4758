//! A tree in memory passes all checks of trees, and does what a plain model does.

use std::future::Future;

use memory_tree::{Limits, MemoryTree, Root};
use proptest::prelude::*;
use runtime::{Config, Runtime};
use tree::Tree;
use tree::testing::model::{Operation, compare};
use tree::testing::{Without, conform};

fn run<F: Future>(future: F) -> F::Output {
    Runtime::new(Config::default()).unwrap().block_on(future)
}

fn tree() -> MemoryTree {
    let limits = Limits { bytes: 64 << 20, files: 10_000 };
    MemoryTree::new(limits, Root { mode: 0o755, uid: 0, gid: 0 }).unwrap()
}

#[test]
fn a_tree_in_memory_does_what_trees_do() {
    run(conform(&tree(), Without::default()));
}

fn operation() -> impl Strategy<Value = Operation> {
    let number = || 0..64usize;
    let name = || 0..8u8;
    // About as many bytes as some pages, so that ranges meet, and meet the ends of pages.
    let at = || prop_oneof![0..20_000u16, (0..5u16).prop_map(|page| page * 4096)];
    prop_oneof![
        4 => (number(), name(), any::<u8>())
            .prop_map(|(directory, name, kind)| Operation::Create { directory, name, kind }),
        2 => (number(), name(), any::<u8>())
            .prop_map(|(directory, name, kind)| Operation::Remove { directory, name, kind }),
        3 => (number(), name(), number(), name())
            .prop_map(|(from, name, to, new)| Operation::Rename { from, name, to, new }),
        1 => (number(), number(), name())
            .prop_map(|(node, directory, name)| Operation::Link { node, directory, name }),
        5 => (number(), at(), at(), 1..=255u8)
            .prop_map(|(node, at, len, byte)| Operation::Write { node, at, len, byte }),
        2 => (number(), at(), at()).prop_map(|(node, at, len)| Operation::Read { node, at, len }),
        2 => (number(), at()).prop_map(|(node, size)| Operation::SetSize { node, size }),
        1 => (number(), at(), at()).prop_map(|(node, at, len)| Operation::Allocate { node, at, len }),
        2 => (number(), at(), at()).prop_map(|(node, at, len)| Operation::Deallocate { node, at, len }),
        2 => (number(), at(), number(), at(), at())
            .prop_map(|(from, at, to, place, len)| Operation::Copy { from, at, to, place, len }),
        1 => (number(), name(), any::<Option<u8>>())
            .prop_map(|(node, name, value)| Operation::SetExtended { node, name, value }),
        1 => (number(), number()).prop_map(|(directory, bytes)| Operation::List { directory, bytes }),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    #[test]
    fn a_tree_in_memory_does_what_a_plain_model_does(
        operations in proptest::collection::vec(operation(), 1..150),
    ) {
        let tree = tree();
        let [empty, cleared] = run(async {
            let empty = free(&tree).await;
            compare(&tree, "top", &operations, Without::default()).await;
            clear(&tree, tree.root()).await;
            [empty, free(&tree).await]
        });
        prop_assert_eq!(cleared, empty, "all memory came back");
    }
}

/// Bytes and files that are free.
async fn free(tree: &MemoryTree) -> (u64, u64) {
    let space = tree.space(&tree::Caller::root(), &tree.root()).await.unwrap();
    (space.free, space.files_free)
}

/// Removes all that is in a directory.
async fn clear(tree: &MemoryTree, directory: tree::NodeId) {
    let root = tree::Caller::root();
    let room = tree::DirRoom { bytes: 1 << 20, each: 100, names: 1 << 20, nodes: true };
    let listed = tree.read_dir(&root, &directory, 0, room).await.unwrap();
    assert!(listed.eof);
    for entry in listed.entries {
        let (node, attributes) = entry.node.unwrap();
        if attributes.kind == tree::Kind::Directory {
            Box::pin(clear(tree, node)).await;
        }
        tree.remove(&root, &directory, &entry.name, tree::RemovedKind::Any).await.unwrap();
    }
}
