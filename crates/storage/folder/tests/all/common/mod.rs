//! Helpers for the tests of folders: a folder on a real file system, and callers.
use std::future::Future;
use std::path::{Path, PathBuf};

use folder::{Folder, Options};
use runtime::{Buf, Config, Runtime};
use tree::{
    Caller, Created, DirEntry, DirRoom, Found, New, NewFile, NodeId, SetAttributes, Stability, Tree,
    TreeError,
};

/// Runs a future to its end on a ring of its own.
pub fn run<F: Future>(future: F) -> F::Output {
    Runtime::new(Config::default()).expect("a ring").block_on(future)
}

/// A new directory on a real file system: beside the test's program, which is rarely on tmpfs.
pub fn on_disk() -> tempfile::TempDir {
    let test = std::env::current_exe().expect("a test knows where it is");
    tempfile::tempdir_in(test.parent().expect("in a directory")).expect("a directory")
}

pub fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

/// A folder `tree`, with its state in `state` beside it.
pub struct Ground {
    pub directory: tempfile::TempDir,
}

impl Ground {
    pub fn new() -> Self {
        let directory = on_disk();
        std::fs::create_dir(directory.path().join("tree")).expect("a folder");
        Self { directory }
    }

    pub fn path(&self, below: &str) -> PathBuf {
        self.directory.path().join("tree").join(below)
    }

    pub fn options(&self) -> Options {
        Options::new(self.directory.path().join("state"))
    }

    pub fn open(&self) -> Folder {
        self.open_as(false)
    }

    /// With `as_itself`, as an ordinary user has it.
    pub fn open_as(&self, as_itself: bool) -> Folder {
        let options = Options { as_itself, ..self.options() };
        Folder::open(&self.directory.path().join("tree"), &options).expect("a folder")
    }
}

/// Both ways to serve a folder.
pub fn both_ways(test: impl Fn(&Ground, bool)) {
    for as_itself in [false, true] {
        test(&Ground::new(), as_itself);
    }
}

pub fn user(uid: u32) -> Caller {
    Caller { uid, gid: uid, groups: [].into() }
}

pub fn with_mode(mode: u32) -> SetAttributes {
    SetAttributes { mode: Some(mode), ..SetAttributes::default() }
}

pub async fn make(folder: &Folder, directory: &NodeId, name: &[u8]) -> Created {
    let new = New::File(NewFile::Guarded(with_mode(0o644)));
    folder.create(&Caller::root(), directory, name, new).await.expect("a file")
}

pub async fn make_directory(folder: &Folder, directory: &NodeId, name: &[u8]) -> Created {
    let new = New::Directory(with_mode(0o755));
    folder.create(&Caller::root(), directory, name, new).await.expect("a directory")
}

pub async fn find(folder: &Folder, directory: &NodeId, name: &[u8]) -> Result<Found, TreeError> {
    folder.lookup(&Caller::root(), directory, name).await
}

pub async fn write(folder: &Folder, node: &NodeId, at: u64, data: &[u8]) {
    let data = Buf::from(data.to_vec());
    let len = data.len();
    let written =
        folder.write(&Caller::root(), node, at, data.into(), Stability::Unstable).await.expect("a write");
    assert_eq!(written.len, len);
}

pub async fn read(folder: &Folder, node: &NodeId, at: u64, len: usize) -> (Vec<u8>, bool) {
    let read = folder.read(&Caller::root(), node, at, len).await.expect("a read");
    (read.data.to_vec(), read.eof)
}

pub const ROOM: DirRoom = DirRoom { bytes: 32 << 10, each: 100, names: 1 << 20, nodes: true };

/// The whole directory, read in parts of `room`.
pub async fn list(folder: &Folder, directory: &NodeId, room: DirRoom) -> Vec<DirEntry> {
    let (mut all, mut cookie) = (Vec::new(), 0);
    loop {
        let part = folder.read_dir(&Caller::root(), directory, cookie, room).await.expect("a listing");
        assert!(part.eof || !part.entries.is_empty());
        cookie = part.entries.last().map_or(cookie, |entry| entry.cookie);
        all.extend(part.entries);
        if part.eof {
            return all;
        }
    }
}

/// The errno names of a path that must not have changed.
pub fn content(path: &Path) -> Vec<u8> {
    std::fs::read(path).expect("a file")
}
