//! The memory of a tree: its accounting, its release, and the data that a slow reader still sees.

use std::future::Future;
use std::io::ErrorKind;
use std::pin::pin;
use std::task::{Context, Poll, Waker};

use memory_tree::{Limits, MemoryTree, Root};
use runtime::Chain;
use runtime::testing::Counting;
use tree::{
    Answer, Caller, Contents, Device, DirRoom, Kind, New, NewFile, NodeId, RemovedKind, SetAttributes,
    Stability, Tree, TreeError,
};

#[global_allocator]
static COUNTING: Counting = Counting;

fn now<T: Unpin>(answer: Answer<T>) -> Result<T, TreeError> {
    match pin!(answer).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(value) => value,
        Poll::Pending => panic!("a tree in memory answers at once"),
    }
}

fn tree(bytes: u64) -> MemoryTree {
    let limits = Limits { bytes, files: 1 << 20 };
    MemoryTree::new(limits, Root { mode: 0o755, uid: 0, gid: 0 }).unwrap()
}

fn root() -> Caller {
    Caller::root()
}

fn create(tree: &MemoryTree, name: &[u8]) -> NodeId {
    let new = New::File(NewFile::Guarded(SetAttributes::default()));
    now(tree.create(&root(), &tree.root(), name, new)).unwrap().node
}

fn write(tree: &MemoryTree, node: &NodeId, at: u64, data: Vec<u8>) -> Result<usize, TreeError> {
    now(tree.write(&root(), node, at, data.into(), Stability::Unstable)).map(|written| written.len)
}

fn read(tree: &MemoryTree, node: &NodeId, at: u64, len: usize) -> Chain {
    now(tree.read(&root(), node, at, len)).unwrap().data
}

fn cut(tree: &MemoryTree, node: &NodeId, size: u64) {
    let set = SetAttributes { size: Some(size), ..SetAttributes::default() };
    now(tree.set_attributes(&root(), node, &set, None)).unwrap();
}

fn remove(tree: &MemoryTree, name: &[u8]) {
    now(tree.remove(&root(), &tree.root(), name, RemovedKind::Any)).unwrap();
}

#[test]
fn everything_that_was_taken_is_given_back() {
    let tree = tree(64 << 20);
    let empty = tree.used();
    for round in 0..3u8 {
        let nodes: Vec<NodeId> = (0..100u8).map(|i| create(&tree, &[b'a', i])).collect();
        for (i, node) in nodes.iter().enumerate() {
            write(&tree, node, i as u64 * 1000, vec![round; 10_000 + i]).unwrap();
            now(tree.set_extended_attribute(&root(), node, b"x", Some(b"yz"), None)).unwrap();
            now(tree.link(&root(), node, &tree.root(), &[b'b', i as u8])).unwrap();
        }
        for i in 0..100u8 {
            remove(&tree, &[b'a', i]);
            remove(&tree, &[b'b', i]);
        }
        assert_eq!(tree.used(), empty);
    }
}

#[test]
fn the_limit_holds_and_space_comes_back() {
    let tree = tree(1 << 20);
    let node = create(&tree, b"f");
    assert_eq!(write(&tree, &node, 0, vec![1; 1 << 20]), Err(TreeError::NoSpace), "the root takes some");
    assert_eq!(now(tree.attributes(&node)).unwrap().used, 0, "nothing was done");
    assert_eq!(write(&tree, &node, 0, vec![1; 1000 << 10]), Ok(1000 << 10));
    assert_eq!(write(&tree, &node, 2 << 20, vec![1; 100 << 10]), Err(TreeError::NoSpace));
    assert_eq!(write(&tree, &node, 4096, vec![2; 8192]), Ok(8192), "what is there can be written again");
    cut(&tree, &node, 4096);
    assert_eq!(write(&tree, &node, 2 << 20, vec![1; 900 << 10]), Ok(900 << 10));
    assert!(tree.used() <= 1 << 20);
}

#[test]
fn empty_files_and_long_names_are_bounded_too() {
    let tree = tree(1 << 20);
    let new = New::File(NewFile::Guarded(SetAttributes::default()));
    let mut made = 0u64;
    let error = loop {
        let mut name = vec![b'n'; 200];
        name.extend_from_slice(made.to_string().as_bytes());
        match now(tree.create(&root(), &tree.root(), &name, new)) {
            Ok(_) => made += 1,
            Err(error) => break error,
        }
    };
    assert_eq!(error, TreeError::NoSpace);
    assert!((500..3000).contains(&made), "{made} files");
    assert!(tree.used() <= 1 << 20);
    let few =
        MemoryTree::new(Limits { bytes: 1 << 20, files: 3 }, Root { mode: 0o755, uid: 0, gid: 0 }).unwrap();
    for name in [b"a", b"b"] {
        create(&few, name);
    }
    assert_eq!(now(few.create(&root(), &few.root(), b"c", new)), Err(TreeError::NoSpace));
    remove(&few, b"a");
    create(&few, b"c");
}

/// Else an empty run would be among the free pages, and a write that finds no other one would take
/// it for ever.
#[test]
fn a_hole_within_a_page_frees_nothing() {
    const PAGE: u64 = 4096;
    let tree = tree(256 * PAGE);
    let [lent, holed, full] = [b"l", b"h", b"f"].map(|name| create(&tree, name));
    let pages = |count: u64| vec![1u8; (count * PAGE) as usize];
    let punch = |node: &NodeId, at: u64, len: u64| {
        now(tree.deallocate(&root(), node, at, len)).unwrap();
    };
    write(&tree, &lent, 0, pages(10)).unwrap();
    drop(read(&tree, &lent, 0, 10 * PAGE as usize));
    let used = tree.used();
    punch(&lent, PAGE, 100);
    assert_eq!(tree.used(), used);
    assert_eq!(read(&tree, &lent, PAGE, 101).to_vec(), [&[0u8; 100][..], &[1]].concat());
    punch(&lent, 8 * PAGE, 2 * PAGE);
    // Single free pages, whose memory is kept.
    write(&tree, &holed, 0, pages(9)).unwrap();
    (0..4).for_each(|n| punch(&holed, (2 * n + 1) * PAGE, PAGE));
    // All others.
    assert_eq!(write(&tree, &full, 0, pages(256 - 8 - 9)), Ok(239 * PAGE as usize));
    assert_eq!(write(&tree, &full, 1000 * PAGE, pages(2)), Ok(2 * PAGE as usize));
}

/// The reader's bytes are those of its file, though another one has taken all memory since.
#[test]
fn a_slow_reader_never_sees_another_files_bytes() {
    let tree = tree(8 << 20);
    let node = create(&tree, b"secret");
    write(&tree, &node, 0, vec![7; 4 << 20]).unwrap();
    let slow = read(&tree, &node, 0, 1 << 20);
    let later = read(&tree, &node, 2 << 20, 1 << 20);
    remove(&tree, b"secret");
    let other = create(&tree, b"other");
    assert_eq!(write(&tree, &other, 0, vec![9; 3 << 20]), Ok(3 << 20), "what was free before is free");
    assert_eq!(write(&tree, &other, 3 << 20, vec![9; 4 << 20]), Err(TreeError::Delay), "soon, not now");
    assert_eq!(slow.to_vec(), vec![7; 1 << 20]);
    drop(slow);
    assert_eq!(write(&tree, &other, 3 << 20, vec![9; 4 << 20]), Err(TreeError::Delay));
    assert_eq!(later.to_vec(), vec![7; 1 << 20]);
    drop(later);
    assert_eq!(write(&tree, &other, 3 << 20, vec![9; 4 << 20]), Ok(4 << 20));
    assert_eq!(read(&tree, &other, 3 << 20, 100).to_vec(), vec![9; 100]);
}

/// The slice was made through a view older than the one that was current when its file was removed.
#[test]
fn an_old_slice_keeps_its_pages_though_other_files_went_since() {
    let tree = tree(8 << 20);
    let nodes: Vec<NodeId> = (0..128u8).map(|name| create(&tree, &[name + 128])).collect();
    // Two whose numbers differ by a multiple of the number of views.
    let [old, other] = [0, 64];
    for at in [old, other] {
        write(&tree, &nodes[at], 0, vec![7; 2 << 20]).unwrap();
    }
    let slow = read(&tree, &nodes[old], 0, 2 << 20);
    drop(read(&tree, &nodes[other], 0, 2 << 20));
    remove(&tree, &[other as u8 + 128]);
    remove(&tree, &[old as u8 + 128]);
    let node = create(&tree, b"f");
    let mut at = 0;
    while write(&tree, &node, at, vec![9; 64 << 10]).is_ok() {
        at += 64 << 10;
    }
    assert_eq!(slow.to_vec(), vec![7; 2 << 20]);
}

#[test]
fn a_long_file_is_freed_in_turns_with_the_cores_other_work() {
    runtime::Runtime::new(runtime::Config::default()).unwrap().block_on(async {
        let tree = tree(128 << 20);
        let empty = tree.used();
        let node = create(&tree, b"f");
        now(tree.allocate(&root(), &node, 0, 100 << 20)).unwrap();
        remove(&tree, b"f");
        assert!(tree.used() > 90 << 20, "not at once");
        let space = now(tree.space(&root(), &tree.root())).unwrap();
        assert_eq!(space.bytes - space.free, empty, "but it counts as free");
        let node = create(&tree, b"g");
        now(tree.allocate(&root(), &node, 0, 100 << 20)).unwrap();
        remove(&tree, b"g");
        let mut turns = 0;
        while tree.used() > empty {
            turns += 1;
            assert!(turns < 1000, "{} bytes are left", tree.used());
            runtime::yield_now().await;
        }
        assert!(turns > 10);
    });
}

#[test]
fn pages_that_are_used_again_are_zeros_first() {
    let tree = tree(2 << 20);
    for round in 0..4u8 {
        let node = create(&tree, b"f");
        write(&tree, &node, 0, vec![0xff; 1 << 20]).unwrap();
        if round % 2 == 0 {
            drop(read(&tree, &node, 0, 1 << 20));
        }
        remove(&tree, b"f");
        let node = create(&tree, b"g");
        for at in 0..256 {
            write(&tree, &node, at * 4096 + 100, vec![1; 10]).unwrap();
        }
        let mut expected = vec![0; 4096];
        expected[100..110].fill(1);
        for at in 0..255 {
            assert_eq!(read(&tree, &node, at * 4096, 4096).to_vec(), expected, "page {at} of round {round}");
        }
        remove(&tree, b"g");
    }
}

#[test]
fn holes_take_nothing_and_pages_of_4_kib_are_given_back_alone() {
    let tree = tree(1 << 20);
    let node = create(&tree, b"f");
    let empty = tree.used();
    cut(&tree, &node, 1 << 40);
    assert_eq!(tree.used(), empty);
    assert_eq!(read(&tree, &node, 1 << 39, 1 << 20).to_vec(), vec![0; 1 << 20]);
    write(&tree, &node, 1 << 39, vec![1; 16 << 10]).unwrap();
    assert_eq!(now(tree.attributes(&node)).unwrap().used, 16 << 10);
    now(tree.deallocate(&root(), &node, (1 << 39) + 100, 9000)).unwrap();
    assert_eq!(now(tree.attributes(&node)).unwrap().used, 12 << 10);
    let mut expected = vec![1; 16 << 10];
    expected[100..9100].fill(0);
    assert_eq!(read(&tree, &node, 1 << 39, 16 << 10).to_vec(), expected);
    cut(&tree, &node, 0);
    assert_eq!(tree.used(), empty);
}

#[test]
fn warm_reads_and_writes_in_place_allocate_nothing() {
    let tree = tree(64 << 20);
    let node = create(&tree, b"f");
    write(&tree, &node, 0, vec![3; 8 << 20]).unwrap();
    let data = runtime::pool::alloc(4096).unwrap().freeze();
    let caller = root();
    let work = || {
        for at in 0..1000u64 {
            drop(now(tree.read(&caller, &node, at * 8192, 4096)));
            now(tree.write(&caller, &node, at * 4096, data.clone().into(), Stability::Unstable)).unwrap();
            now(tree.attributes(&node)).unwrap();
            now(tree.lookup(&caller, &tree.root(), b"f")).unwrap();
        }
        drop(now(tree.read(&caller, &node, 0, 1 << 20)));
    };
    work();
    let before = Counting::allocations_here();
    work();
    assert_eq!(Counting::allocations_here() - before, 0);
}

/// What a client can see below a directory, with cookies and ids.
fn seen(tree: &MemoryTree, directory: &NodeId) -> String {
    let (mut all, mut cookie) = (String::new(), 0);
    loop {
        let room = DirRoom { bytes: 1 << 16, each: 100, names: 1 << 16, nodes: true };
        let listed = now(tree.read_dir(&root(), directory, cookie, room)).unwrap();
        for entry in &listed.entries {
            let (node, attributes) = entry.node.as_ref().unwrap();
            all += &format!("{} {:?} {node:?} {attributes:?}\n", entry.cookie, entry.name);
            for name in now(tree.extended_attributes(&root(), node)).unwrap() {
                let value = now(tree.extended_attribute(&root(), node, &name)).unwrap();
                all += &format!("{name:?} is {value:?}\n");
            }
            match attributes.kind {
                Kind::Directory => all += &seen(tree, node),
                Kind::Symlink => all += &format!("{:?}\n", now(tree.read_link(&root(), node)).unwrap().path),
                Kind::Regular => {
                    let data = read(tree, node, 0, attributes.size as usize).to_vec();
                    let hole = now(tree.seek(&root(), node, 0, Contents::Hole));
                    all += &format!("{data:?} {hole:?}\n");
                }
                _ => {}
            }
            cookie = entry.cookie;
        }
        if listed.eof {
            return all;
        }
    }
}

#[test]
fn another_process_has_the_same_tree_and_goes_on_with_it() {
    let limits = Limits { bytes: 8 << 20, files: 1 << 20 };
    let before = MemoryTree::new(limits, Root { mode: 0o755, uid: 0, gid: 0 }).unwrap();
    let set = SetAttributes { mode: Some(0o2750), uid: Some(7), gid: Some(8), ..SetAttributes::default() };
    let make = |at: &NodeId, name: &[u8], new| now(before.create(&root(), at, name, new)).unwrap().node;
    let below = make(&before.root(), b"below", New::Directory(set));
    let device = Device { major: 3, minor: 4 };
    for (name, kind) in
        [(b"b", Kind::Block), (b"c", Kind::Character), (b"s", Kind::Socket), (b"f", Kind::Fifo)]
    {
        make(&below, name, New::Special(kind, device, set));
    }
    make(&below, b"link", New::Symlink(b"some/where", set));
    let files: Vec<NodeId> = (0..50u8).map(|i| create(&before, &[b'a', i])).collect();
    for (i, node) in files.iter().enumerate() {
        write(&before, node, i as u64 * 9000, vec![i as u8; 3000 * i]).unwrap();
    }
    now(before.link(&root(), &files[3], &below, b"other name")).unwrap();
    now(before.set_extended_attribute(&root(), &files[3], b"user.x", Some(b"value"), None)).unwrap();
    now(before.set_extended_attribute(&root(), &below, b"user.y", Some(b""), None)).unwrap();
    let exclusive = New::File(NewFile::Exclusive { verifier: *b"verifier", attributes: set });
    let held = make(&below, b"exclusive", exclusive);
    for i in 10..30u8 {
        remove(&before, &[b'a', i]);
    }

    let mut bytes = Vec::new();
    before.save(&mut bytes).unwrap();
    let after = MemoryTree::load(limits, &mut &bytes[..]).unwrap();
    assert_eq!(seen(&after, &after.root()), seen(&before, &before.root()));
    assert_eq!((after.used(), after.root()), (before.used(), before.root()));
    let commit = |tree: &MemoryTree| now(tree.commit(&root(), &files[3], 0, 0)).unwrap().verifier;
    assert_eq!(commit(&after), commit(&before), "nobody has to write again");
    let again = now(after.create(&root(), &below, b"exclusive", exclusive)).unwrap();
    assert_eq!((again.node, again.new), (held, false), "a CREATE that comes again finds its file");

    // Neither new files nor new names take what others have, or had.
    assert_eq!(now(after.attributes(&files[15])), Err(TreeError::Stale));
    for i in 0..30u8 {
        let new = create(&after, &[b'n', i]);
        assert!(!files.contains(&new));
        write(&after, &new, 0, vec![9; 100_000]).unwrap();
    }
    for node in &files[30..] {
        let of = |tree: &MemoryTree| read(tree, node, 0, 1 << 20).to_vec();
        assert!(of(&after) == of(&before));
    }
    for i in 0..30u8 {
        remove(&after, &[b'n', i]);
    }
    assert_eq!(after.used(), before.used());

    let small = Limits { bytes: 256 << 10, ..limits };
    let kind = |limits, mut from: &[u8]| MemoryTree::load(limits, &mut from).err().map(|error| error.kind());
    assert_eq!(kind(small, &bytes), Some(ErrorKind::StorageFull));
    assert_eq!(kind(Limits { files: 9, ..limits }, &bytes), Some(ErrorKind::StorageFull));
    assert_eq!(kind(limits, &[&[9], &bytes[1..]].concat()), Some(ErrorKind::InvalidData));
    for len in (0..2000).chain(bytes.len() - 2000..bytes.len()) {
        assert_eq!(kind(limits, &bytes[..len]), Some(ErrorKind::UnexpectedEof), "{len} bytes");
    }
}
