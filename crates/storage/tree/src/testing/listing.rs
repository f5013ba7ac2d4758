//! Directories as they are listed.

use std::collections::BTreeSet;

use super::{Place, mode_of};
use crate::{DirRoom, New, NewFile, RemovedKind, Tree, TreeError};

async fn fill<T: Tree>(on: &Place<'_, T>, count: usize) {
    for number in 0..count {
        on.file(&format!("file{number:04}")).await;
    }
}

pub(super) async fn a_listing_has_each_name_once_and_neither_dot_nor_dot_dot<T: Tree>(on: &Place<'_, T>) {
    fill(on, 300).await;
    for bytes in [100, 1000, 1 << 20] {
        let entries = on.list(&on.here, bytes).await;
        let names: BTreeSet<_> = entries.iter().map(|entry| entry.name.clone()).collect();
        assert_eq!((entries.len(), names.len()), (300, 300));
        assert!(names.iter().all(|name| name.starts_with(b"file")));
        let cookies: BTreeSet<_> = entries.iter().map(|entry| entry.cookie).collect();
        assert_eq!(cookies.len(), 300, "each has its cookie");
        assert!(cookies.iter().all(|cookie| *cookie > 2));
    }
}

pub(super) async fn a_listing_goes_on_where_it_stopped<T: Tree>(on: &Place<'_, T>) {
    fill(on, 50).await;
    let all = on.list(&on.here, 1 << 20).await;
    let room = DirRoom { bytes: 1 << 20, each: 24, names: 1 << 20, nodes: false };
    for (at, entry) in all.iter().enumerate() {
        let rest = on.tree.read_dir(&on.root, &on.here, entry.cookie, room).await.unwrap();
        assert_eq!(rest.entries.first(), all.get(at + 1));
    }
}

pub(super) async fn a_listing_survives_changes_around_it<T: Tree>(on: &Place<'_, T>) {
    fill(on, 200).await;
    let room = DirRoom { bytes: 400, each: 24, names: 400, nodes: false };
    let (mut seen, mut cookie) = (Vec::new(), 0);
    for round in 0.. {
        let part = on.tree.read_dir(&on.root, &on.here, cookie, room).await.unwrap();
        seen.extend(part.entries.iter().map(|entry| entry.name.clone()));
        let Some(last) = part.entries.last().filter(|_| !part.eof) else { break };
        cookie = last.cookie;
        // Remove the listed entries, including the last one, and add new ones.
        for entry in &part.entries {
            on.tree.remove(&on.root, &on.here, &entry.name, RemovedKind::File).await.unwrap();
        }
        on.file(&format!("new{round}")).await;
    }
    let old = seen.iter().filter(|name| name.starts_with(b"file")).count();
    assert_eq!(old, 200, "each that was there all the time, once");
    let unique: BTreeSet<_> = seen.iter().collect();
    assert_eq!(unique.len(), seen.len(), "none twice");
}

pub(super) async fn a_listing_keeps_to_its_room<T: Tree>(on: &Place<'_, T>) {
    fill(on, 20).await;
    let room = DirRoom { bytes: 100, each: 24, names: 1000, nodes: false };
    let part = on.tree.read_dir(&on.root, &on.here, 0, room).await.unwrap();
    assert_eq!((part.entries.len(), part.eof), (3, false), "32 bytes each");
    let room = DirRoom { bytes: 1000, each: 24, names: 90, nodes: false };
    let part = on.tree.read_dir(&on.root, &on.here, 0, room).await.unwrap();
    assert_eq!((part.entries.len(), part.eof), (3, false), "28 bytes of ids, names and cookies each");
    let room = DirRoom { bytes: 20, each: 24, names: 50, nodes: false };
    let part = on.tree.read_dir(&on.root, &on.here, 0, room).await.unwrap();
    assert_eq!((part.entries.len(), part.eof), (0, false));
}

pub(super) async fn a_listing_with_nodes_names_the_files<T: Tree>(on: &Place<'_, T>) {
    fill(on, 10).await;
    on.directory("d").await;
    let room = DirRoom { bytes: 1 << 16, each: 100, names: 1 << 16, nodes: true };
    let part = on.tree.read_dir(&on.root, &on.here, 0, room).await.unwrap();
    assert_eq!((part.entries.len(), part.eof), (11, true));
    let parent = on.get(&on.tree.root()).await.fileid;
    assert_eq!((part.parent, part.attributes.fileid), (parent, on.get(&on.here).await.fileid));
    for entry in part.entries {
        let (node, attributes) = entry.node.expect("the node");
        let found = on.tree.lookup(&on.root, &on.here, &entry.name).await.unwrap();
        assert_eq!((node, attributes.fileid), (found.node, entry.fileid));
        assert_eq!((attributes.kind, attributes.size), (found.attributes.kind, found.attributes.size));
    }
}

pub(super) async fn an_empty_directory_ends_at_once<T: Tree>(on: &Place<'_, T>) {
    assert!(on.list(&on.here, 1000).await.is_empty());
    let file = on.tree.create(&on.root, &on.here, b"f", New::File(NewFile::Guarded(mode_of(0o644)))).await;
    let room = DirRoom { bytes: 1000, each: 24, names: 1000, nodes: false };
    let listed = on.tree.read_dir(&on.root, &file.unwrap().node, 0, room).await;
    assert_eq!(listed.map(drop), Err(TreeError::NotDirectory));
}
