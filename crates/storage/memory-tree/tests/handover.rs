//! A tree that another process takes over: here another tree of the same process.

use std::future::Future;
use std::io;
use std::pin::pin;
use std::task::{Context, Poll, Waker};

use memory_tree::{Limits, MemoryTree, Root};
use tree::{
    Answer, Attributes, Caller, Device, DirRoom, Kind, New, NewFile, NodeId, RemovedKind, SetAttributes,
    Stability, Tree, TreeError,
};

const LIMITS: Limits = Limits { bytes: 160 << 20, files: 1 << 20 };

fn now<T: Unpin>(answer: Answer<T>) -> Result<T, TreeError> {
    match pin!(answer).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(value) => value,
        Poll::Pending => panic!("a tree in memory answers at once"),
    }
}

fn tree() -> MemoryTree {
    MemoryTree::new(LIMITS, Root { mode: 0o755, uid: 7, gid: 8 }).unwrap()
}

fn root() -> Caller {
    Caller::root()
}

fn make(tree: &MemoryTree, directory: &NodeId, name: &[u8], new: New<'_>) -> NodeId {
    now(tree.create(&root(), directory, name, new)).unwrap().node
}

fn file<'a>() -> New<'a> {
    New::File(NewFile::Guarded(SetAttributes::default()))
}

fn write(tree: &MemoryTree, node: &NodeId, at: u64, data: Vec<u8>) {
    now(tree.write(&root(), node, at, data.into(), Stability::Unstable)).unwrap();
}

/// An entry of a directory: its name, cookie, node, attributes, and content: data, a link's target,
/// extended attributes.
type Entry = (Vec<u8>, u64, NodeId, Attributes, Vec<u8>);

/// Everything below a directory.
fn all(tree: &MemoryTree, directory: &NodeId) -> Vec<Entry> {
    let room = DirRoom { bytes: 1 << 20, each: 0, names: 1 << 20, nodes: true };
    let mut found = Vec::new();
    for entry in now(tree.read_dir(&root(), directory, 0, room)).unwrap().entries {
        let (node, _) = entry.node.unwrap();
        // As it was before it is read.
        let attributes = now(tree.attributes(&node)).unwrap();
        let mut content = match attributes.kind {
            Kind::Regular => now(tree.read(&root(), &node, 0, 200 << 20)).unwrap().data.to_vec(),
            Kind::Symlink => now(tree.read_link(&root(), &node)).unwrap().path,
            _ => Vec::new(),
        };
        for name in now(tree.extended_attributes(&root(), &node)).unwrap_or_default() {
            content.extend_from_slice(&now(tree.extended_attribute(&root(), &node, &name)).unwrap());
        }
        found.push((
            entry.name.to_vec(),
            entry.cookie,
            node,
            Attributes { atime: attributes.ctime, ..attributes },
            content,
        ));
        if attributes.kind == Kind::Directory {
            found.extend(all(tree, &node));
        }
    }
    found
}

/// Some files of each kind; some pages are free again, kept or retired.
fn filled() -> MemoryTree {
    let tree = tree();
    let top = tree.root();
    let dir = make(&tree, &top, b"dir", New::Directory(SetAttributes::default()));
    for number in 0..300u32 {
        let node = make(&tree, &dir, format!("file-{number}").as_bytes(), file());
        write(&tree, &node, u64::from(number) * 997, vec![number as u8; 5000 + number as usize * 100]);
    }
    let long = make(&tree, &top, b"long", file());
    write(&tree, &long, 0, (0..90 << 20).map(|at: u32| (at / 4096 + at) as u8).collect());
    write(&tree, &long, 1 << 30, vec![9; 100]);
    drop(now(tree.read(&root(), &long, 0, 1 << 20)).unwrap());
    now(tree.deallocate(&root(), &long, 8192, 1 << 20)).unwrap();
    for number in (0..300u32).step_by(3) {
        let name = format!("file-{number}");
        now(tree.remove(&root(), &dir, name.as_bytes(), RemovedKind::Any)).unwrap();
    }
    make(&tree, &top, b"link", New::Symlink(b"dir/file-1", SetAttributes::default()));
    let device = Device { major: 3, minor: 4 };
    make(&tree, &top, b"device", New::Special(Kind::Character, device, SetAttributes::default()));
    make(&tree, &top, b"pipe", New::Special(Kind::Fifo, Device::default(), SetAttributes::default()));
    let exclusive = NewFile::Exclusive { verifier: [5; 8], attributes: SetAttributes::default() };
    make(&tree, &top, b"exclusive", New::File(exclusive));
    now(tree.link(&root(), &long, &dir, b"again")).unwrap();
    now(tree.set_extended_attribute(&root(), &long, b"name", Some(&[1; 60_000]), None)).unwrap();
    tree
}

fn taken(tree: &MemoryTree) -> MemoryTree {
    let mut told = Vec::new();
    let memory = tree.memory().unwrap();
    tree.hand_over(&mut told).unwrap();
    MemoryTree::take_over(LIMITS, memory, &mut &told[..]).unwrap()
}

#[test]
fn a_tree_is_the_same_after_each_takeover() {
    let mut tree = filled();
    let before = all(&tree, &tree.root());
    assert_eq!(before.len(), 200 + 7);
    for _ in 0..3 {
        let next = taken(&tree);
        assert_eq!(next.root(), tree.root());
        assert!(all(&next, &next.root()) == before);
        // What it has, and no more: the other had kept some pages besides.
        assert!(next.used() <= tree.used());
        tree = next;
    }
    let dir = now(tree.lookup(&root(), &tree.root(), b"dir")).unwrap().node;
    let node = now(tree.lookup(&root(), &dir, b"file-1")).unwrap().node;
    // An exclusive create that comes again is the same one.
    let exclusive = NewFile::Exclusive { verifier: [5; 8], attributes: SetAttributes::default() };
    let again = now(tree.create(&root(), &tree.root(), b"exclusive", New::File(exclusive))).unwrap();
    assert!(!again.new);
    // It goes on: numbers and cookies are new ones, and free pages are zeros.
    let fresh = make(&tree, &dir, b"fresh", file());
    assert!(before.iter().all(|(_, _, node, ..)| *node != fresh));
    now(tree.allocate(&root(), &fresh, 0, 30 << 20)).unwrap();
    let zeros = now(tree.read(&root(), &fresh, 0, 30 << 20)).unwrap().data.to_vec();
    assert!(zeros.len() == 30 << 20 && zeros.iter().all(|byte| *byte == 0));
    write(&tree, &node, 0, vec![3; 100]);
    let used = tree.used();
    now(tree.remove(&root(), &dir, b"fresh", RemovedKind::Any)).unwrap();
    assert!(tree.used() <= used);
}

#[test]
fn a_tree_that_is_not_taken_goes_on_where_it_was() {
    let tree = filled();
    let before = all(&tree, &tree.root());
    let memory = tree.memory().unwrap();
    let mut told = Vec::new();
    tree.hand_over(&mut told).unwrap();
    assert!(all(&tree, &tree.root()) == before);
    // A reader that is gone, and one that gets nonsense.
    let mut short = &mut [0; 100][..];
    assert_eq!(tree.hand_over(&mut short).unwrap_err().kind(), io::ErrorKind::WriteZero);
    for cut in [0, 3, 36, 500, told.len() - 1] {
        let taken = MemoryTree::take_over(LIMITS, memory.try_clone().unwrap(), &mut &told[..cut]);
        assert_eq!(taken.err().unwrap().kind(), io::ErrorKind::UnexpectedEof, "{cut}");
    }
    let other = Limits { bytes: 80 << 20, ..LIMITS };
    let taken = MemoryTree::take_over(other, memory.try_clone().unwrap(), &mut &told[..]);
    assert_eq!(taken.err().unwrap().kind(), io::ErrorKind::InvalidData);
    told[3] += 1;
    let taken = MemoryTree::take_over(LIMITS, memory, &mut &told[..]);
    assert_eq!(taken.err().unwrap().kind(), io::ErrorKind::InvalidData);
    assert!(all(&tree, &tree.root()) == before);
    let node = make(&tree, &tree.root(), b"more", file());
    write(&tree, &node, 0, vec![1; 40 << 20]);
    now(tree.remove(&root(), &tree.root(), b"more", RemovedKind::Any)).unwrap();
    now(tree.allocate(&root(), &make(&tree, &tree.root(), b"zeros", file()), 0, 40 << 20)).unwrap();
    let node = now(tree.lookup(&root(), &tree.root(), b"zeros")).unwrap().node;
    let zeros = now(tree.read(&root(), &node, 0, 40 << 20)).unwrap().data.to_vec();
    assert!(zeros.iter().all(|byte| *byte == 0));
}
