//! Several threads use one tree at a time: no thread stalls, no data is lost, and no file shows
//! another file's bytes.

use std::collections::VecDeque;
use std::future::Future;
use std::pin::pin;
use std::task::{Context, Poll, Waker};

use memory_tree::{Limits, MemoryTree, Root};
use runtime::Chain;
use tree::{
    Answer, Caller, DirRoom, New, NewFile, NodeId, RemovedKind, SetAttributes, Stability, Tree, TreeError,
};

fn now<T: Unpin>(answer: Answer<T>) -> Result<T, TreeError> {
    match pin!(answer).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(value) => value,
        Poll::Pending => panic!("a tree in memory answers at once"),
    }
}

/// Pseudo-random numbers (xorshift64).
struct Random(u64);

impl Random {
    fn below(&mut self, n: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % n
    }
}

/// The byte that fills the file.
fn byte(fileid: u64) -> u8 {
    (fileid % 251) as u8 + 1
}

struct Worker<'a> {
    tree: &'a MemoryTree,
    caller: Caller,
    random: Random,
    directories: [NodeId; 3],
    /// Data that was read and not yet sent.
    queue: VecDeque<(u8, Chain)>,
}

impl Worker<'_> {
    fn place(&mut self) -> (NodeId, [u8; 1]) {
        let at = self.random.below(self.directories.len() as u64) as usize;
        (self.directories[at], [b'a' + self.random.below(6) as u8])
    }

    fn step(&mut self) -> Result<(), TreeError> {
        let (directory, name) = self.place();
        let (other, new) = self.place();
        let (at, len) = (self.random.below(20) * 10_000, 1 + self.random.below(600_000));
        let (tree, caller) = (self.tree, &self.caller);
        match self.random.below(12) {
            0 | 1 => {
                let new = NewFile::Unchecked(SetAttributes::default());
                now(tree.create(caller, &directory, &name, New::File(new))).map(drop)
            }
            2 => now(tree.remove(caller, &directory, &name, RemovedKind::Any)).map(drop),
            3 => now(tree.rename(caller, (&directory, &name), (&other, &new))).map(drop),
            4 => {
                // A directory of the three moves into another of them: not into itself.
                let top = tree.root();
                let from = [top, self.directories[0], self.directories[1], self.directories[2]];
                let (old, new) = (from[self.random.below(4) as usize], from[self.random.below(4) as usize]);
                let name = [b'0' + self.random.below(3) as u8];
                now(tree.rename(caller, (&old, &name), (&new, &name))).map(drop)
            }
            5 => {
                let node = now(tree.lookup(caller, &directory, &name))?.node;
                now(tree.link(caller, &node, &other, &new)).map(drop)
            }
            6 => {
                let node = now(tree.lookup(caller, &directory, &name))?.node;
                let set = SetAttributes { size: Some(at), ..SetAttributes::default() };
                now(tree.set_attributes(caller, &node, &set, None)).map(drop)
            }
            7 => {
                let room = DirRoom { bytes: 10_000, each: 100, names: 10_000, nodes: true };
                let listed = now(tree.read_dir(caller, &directory, 0, room))?;
                assert!(listed.eof && listed.entries.len() <= 9);
                Ok(())
            }
            8 | 9 => {
                let found = now(tree.lookup(caller, &directory, &name))?;
                let data = vec![byte(found.attributes.fileid); len as usize];
                now(tree.write(caller, &found.node, at, data.into(), Stability::Unstable)).map(drop)
            }
            _ => {
                let found = now(tree.lookup(caller, &directory, &name))?;
                let read = now(tree.read(caller, &found.node, at, len as usize))?;
                self.queue.push_back((byte(found.attributes.fileid), read.data));
                if self.queue.len() > 8 {
                    self.send();
                }
                Ok(())
            }
        }
    }

    fn send(&mut self) {
        let Some((expected, data)) = self.queue.pop_front() else { return };
        let foreign = data.to_vec().into_iter().find(|byte| *byte != 0 && *byte != expected);
        assert_eq!(foreign, None, "a byte of another file than that of {expected}");
    }

    fn work(mut self, steps: usize) {
        for _ in 0..steps {
            if let Err(error @ (TreeError::Io(_) | TreeError::Unsupported | TreeError::Access)) = self.step()
            {
                panic!("no step can end so: {error}");
            }
        }
        while !self.queue.is_empty() {
            self.send();
        }
    }
}

fn remove_all(tree: &MemoryTree, caller: &Caller, directory: NodeId) {
    let room = DirRoom { bytes: 10_000, each: 100, names: 10_000, nodes: true };
    for entry in now(tree.read_dir(caller, &directory, 0, room)).unwrap().entries {
        let (node, attributes) = entry.node.unwrap();
        if attributes.kind == tree::Kind::Directory {
            remove_all(tree, caller, node);
        }
        now(tree.remove(caller, &directory, &entry.name, RemovedKind::Any)).unwrap();
    }
}

#[test]
fn threads_on_one_tree_see_no_bytes_of_other_files_and_lose_none() {
    let limits = Limits { bytes: 4 << 20, files: 100 };
    let tree = MemoryTree::new(limits, Root { mode: 0o755, uid: 0, gid: 0 }).unwrap();
    let caller = Caller::root();
    let space = || now(tree.space(&Caller::root(), &tree.root())).unwrap();
    let empty = space();
    let new = New::Directory(SetAttributes::default());
    let directories =
        [b"0", b"1", b"2"].map(|name| now(tree.create(&caller, &tree.root(), name, new)).unwrap().node);
    std::thread::scope(|scope| {
        for seed in 1..=4u64 {
            let (tree, caller) = (&tree, caller.clone());
            scope.spawn(move || {
                let random = Random(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15));
                let worker = Worker { tree, caller, random, directories, queue: VecDeque::new() };
                worker.work(20_000);
            });
        }
    });
    remove_all(&tree, &caller, tree.root());
    assert_eq!(space(), empty);
}
