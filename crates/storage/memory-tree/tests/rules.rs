//! Properties of a tree in memory beyond the checks of all trees: its limits and its times.

use std::future::Future;
use std::pin::pin;
use std::task::{Context, Poll, Waker};

use memory_tree::{Limits, MemoryTree, Root};
use tree::{
    Answer, Attributes, Caller, New, NewFile, NodeId, RemovedKind, SetAttributes, SetTime, Stability, Time,
    Tree, TreeError,
};

fn now<T: Unpin>(answer: Answer<T>) -> Result<T, TreeError> {
    match pin!(answer).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(value) => value,
        Poll::Pending => panic!("a tree in memory answers at once"),
    }
}

fn tree() -> MemoryTree {
    let limits = Limits { bytes: 64 << 20, files: 1000 };
    MemoryTree::new(limits, Root { mode: 0o777, uid: 0, gid: 0 }).unwrap()
}

fn create(tree: &MemoryTree, caller: &Caller, at: &NodeId, name: &[u8], new: New<'_>) -> NodeId {
    now(tree.create(caller, at, name, new)).unwrap().node
}

fn file() -> New<'static> {
    New::File(NewFile::Guarded(SetAttributes { mode: Some(0o644), ..SetAttributes::default() }))
}

fn directory(mode: u32) -> New<'static> {
    New::Directory(SetAttributes { mode: Some(mode), ..SetAttributes::default() })
}

fn get(tree: &MemoryTree, node: &NodeId) -> Attributes {
    now(tree.attributes(node)).unwrap()
}

fn user(uid: u32) -> Caller {
    Caller { uid, gid: uid, groups: [].into() }
}

#[test]
fn a_file_has_no_more_links_than_the_limit() {
    let (tree, root) = (tree(), Caller::root());
    let top = tree.root();
    let node = create(&tree, &root, &top, b"f", file());
    for number in 1..tree.limits().links {
        now(tree.link(&root, &node, &top, number.to_string().as_bytes())).unwrap();
    }
    assert_eq!(now(tree.link(&root, &node, &top, b"more")), Err(TreeError::TooManyLinks));
    now(tree.remove(&root, &top, b"1", RemovedKind::File)).unwrap();
    now(tree.link(&root, &node, &top, b"more")).unwrap();
}

#[test]
fn a_read_is_noted_only_after_a_change() {
    let (tree, root) = (tree(), Caller::root());
    let node = create(&tree, &root, &tree.root(), b"f", file());
    let read = || {
        now(tree.read(&root, &node, 0, 1)).unwrap();
        get(&tree, &node)
    };
    let made = get(&tree, &node);
    let first = read();
    assert!(first.atime > made.mtime);
    assert_eq!((first.ctime, first.change), (made.ctime, made.change), "a read is no change");
    assert_eq!(read().atime, first.atime);
    now(tree.write(&root, &node, 0, vec![1].into(), Stability::Unstable)).unwrap();
    assert!(read().atime > first.atime);
}

#[test]
fn each_change_has_a_later_ctime_than_the_one_before() {
    let (tree, root) = (tree(), Caller::root());
    let node = create(&tree, &root, &tree.root(), b"f", file());
    let mut last = get(&tree, &node);
    for round in 0..10_000 {
        let set = SetAttributes { mode: Some(0o600 + round % 8), ..SetAttributes::default() };
        let changed = now(tree.set_attributes(&root, &node, &set, None)).unwrap();
        assert!(changed.after.ctime > last.ctime && changed.after.change > last.change);
        last = changed.after;
    }
}

#[test]
fn a_time_before_1970_and_one_far_ahead_are_kept() {
    let (tree, root) = (tree(), Caller::root());
    let node = create(&tree, &root, &tree.root(), b"f", file());
    for time in [Time { seconds: -5, nanoseconds: 7 }, Time { seconds: 1 << 40, nanoseconds: 999_999_999 }] {
        let set = SetAttributes { mtime: SetTime::To(time), ..SetAttributes::default() };
        now(tree.set_attributes(&root, &node, &set, None)).unwrap();
        assert_eq!(get(&tree, &node).mtime, time);
    }
    now(tree.write(&root, &node, 0, vec![1].into(), Stability::Unstable)).unwrap();
    assert!(get(&tree, &node).mtime.seconds < 1 << 40, "a write has the server's time");
}

/// Its `..` changes, so the caller needs write permission for it.
#[test]
fn a_directory_that_is_read_only_does_not_change_its_parent() {
    let (tree, alice) = (tree(), user(1001));
    let top = tree.root();
    let to = create(&tree, &alice, &top, b"to", directory(0o755));
    create(&tree, &alice, &top, b"d", directory(0o555));
    let rename = |from: (&NodeId, &[u8]), to: (&NodeId, &[u8])| now(tree.rename(&alice, from, to)).map(drop);
    assert_eq!(rename((&top, b"d"), (&to, b"d")), Err(TreeError::Access));
    assert_eq!(rename((&top, b"d"), (&top, b"e")), Ok(()));
}

#[test]
fn an_exclusive_create_is_over_once_attributes_are_set() {
    let (tree, root) = (tree(), Caller::root());
    let new = New::File(NewFile::Exclusive { verifier: *b"verifier", attributes: SetAttributes::default() });
    let node = create(&tree, &root, &tree.root(), b"f", new);
    let again = now(tree.create(&root, &tree.root(), b"f", new)).unwrap();
    assert!(!again.new);
    let set = SetAttributes { mode: Some(0o600), ..SetAttributes::default() };
    now(tree.set_attributes(&root, &node, &set, None)).unwrap();
    assert_eq!(now(tree.create(&root, &tree.root(), b"f", new)), Err(TreeError::Exists));
}

#[test]
fn two_trees_do_not_know_each_others_files() {
    let (one, two) = (tree(), tree());
    assert_eq!(now(two.attributes(&one.root())), Err(TreeError::Stale));
}
