//! Rename.

use super::{Place, mode_of};
use crate::{New, NodeId, Tree, TreeError};

async fn rename<T: Tree>(on: &Place<'_, T>, from: &str, to: &str) -> Result<Option<NodeId>, TreeError> {
    let (from, to) = ((&on.here, from.as_bytes()), (&on.here, to.as_bytes()));
    on.tree.rename(&on.root, from, to).await.map(|renamed| renamed.replaced)
}

async fn inside<T: Tree>(on: &Place<'_, T>, directory: &NodeId, name: &[u8]) -> NodeId {
    on.tree.create(&on.root, directory, name, New::Directory(mode_of(0o755))).await.unwrap().node
}

pub(super) async fn a_moved_file_is_the_same_file<T: Tree>(on: &Place<'_, T>) {
    let (file, directory) = (on.file("f").await, on.directory("d").await);
    on.write(&file, 0, b"data").await;
    assert_eq!(rename(on, "f", "g").await, Ok(None));
    assert_eq!((on.find("f").await, on.find("g").await), (Err(TreeError::NoEntry), Ok(file)));
    on.tree.rename(&on.root, (&on.here, b"g"), (&directory, b"f")).await.unwrap();
    assert_eq!(on.find("g").await, Err(TreeError::NoEntry));
    assert_eq!(on.tree.lookup(&on.root, &directory, b"f").await.unwrap().node, file);
    assert_eq!(on.bytes(&file).await, b"data");
    assert_eq!(on.get(&file).await.links, 1);
}

pub(super) async fn a_move_replaces_what_has_the_new_name<T: Tree>(on: &Place<'_, T>) {
    let (old, new) = (on.file("f").await, on.file("g").await);
    on.tree.link(&on.root, &new, &on.here, b"h").await.unwrap();
    rename(on, "f", "g").await.unwrap();
    assert_eq!((on.find("f").await, on.find("g").await), (Err(TreeError::NoEntry), Ok(old)));
    assert_eq!(on.get(&new).await.links, 1, "it has another name");
    assert_eq!(rename(on, "g", "h").await, Ok(Some(new)));
    assert_eq!(on.tree.attributes(&new).await, Err(TreeError::Stale));
    assert_eq!(on.list(&on.here, 4096).await.len(), 1);
}

pub(super) async fn a_move_between_names_of_one_file_does_nothing<T: Tree>(on: &Place<'_, T>) {
    let file = on.file("f").await;
    on.tree.link(&on.root, &file, &on.here, b"g").await.unwrap();
    assert_eq!(rename(on, "f", "g").await, Ok(None));
    assert_eq!(rename(on, "f", "f").await, Ok(None));
    assert_eq!((on.find("f").await, on.find("g").await), (Ok(file), Ok(file)));
    assert_eq!(on.get(&file).await.links, 2);
}

pub(super) async fn a_directory_replaces_an_empty_directory_alone<T: Tree>(on: &Place<'_, T>) {
    let (moved, full) = (on.directory("d").await, on.directory("full").await);
    inside(on, &full, b"x").await;
    inside(on, &moved, b"y").await;
    let empty = on.directory("empty").await;
    let file = on.file("f").await;
    assert_eq!(rename(on, "d", "f").await, Err(TreeError::NotDirectory));
    assert_eq!(rename(on, "f", "d").await, Err(TreeError::IsDirectory));
    assert_eq!(rename(on, "d", "full").await, Err(TreeError::NotEmpty));
    let links = on.get(&on.here).await.links;
    assert_eq!(rename(on, "d", "empty").await, Ok(Some(empty)));
    assert_eq!(on.find("empty").await, Ok(moved));
    assert_eq!(on.find("f").await, Ok(file));
    assert!([links, links - 1].contains(&on.get(&on.here).await.links));
    assert_eq!(on.list(&moved, 4096).await.len(), 1);
}

pub(super) async fn a_directory_does_not_move_into_itself<T: Tree>(on: &Place<'_, T>) {
    let outer = on.directory("d").await;
    let middle = inside(on, &outer, b"e").await;
    let inner = inside(on, &middle, b"f").await;
    for below in [&outer, &middle, &inner] {
        let moved = on.tree.rename(&on.root, (&on.here, b"d"), (below, b"x")).await;
        assert_eq!(moved.map(drop), Err(TreeError::Invalid));
    }
    let moved = on.tree.rename(&on.root, (&middle, b"f"), (&on.here, b"d")).await;
    assert_eq!(moved.map(drop), Err(TreeError::NotEmpty), "over a directory above it");
    assert_eq!(on.find("d").await, Ok(outer));
}

pub(super) async fn a_moved_directory_has_another_parent<T: Tree>(on: &Place<'_, T>) {
    let (a, b) = (on.directory("a").await, on.directory("b").await);
    let moved = inside(on, &a, b"d").await;
    on.tree.rename(&on.root, (&a, b"d"), (&b, b"d")).await.unwrap();
    assert_eq!(on.tree.lookup(&on.root, &moved, b"..").await.unwrap().node, b);
    let (a, b) = (on.get(&a).await.links, on.get(&b).await.links);
    assert!(b == a + 1 || b == a, "{a} and {b} links");
}

pub(super) async fn a_move_of_what_does_not_exist_fails<T: Tree>(on: &Place<'_, T>) {
    let file = on.file("f").await;
    assert_eq!(rename(on, "g", "f").await, Err(TreeError::NoEntry));
    assert_eq!(on.find("f").await, Ok(file));
}

pub(super) async fn a_move_changes_both_directories<T: Tree>(on: &Place<'_, T>) {
    let (a, b) = (on.directory("a").await, on.directory("b").await);
    let file = inside(on, &a, b"x").await;
    let before = [on.get(&a).await, on.get(&b).await, on.get(&file).await].map(|node| node.change);
    let renamed = on.tree.rename(&on.root, (&a, b"x"), (&b, b"x")).await.unwrap();
    let after = [on.get(&a).await, on.get(&b).await, on.get(&file).await].map(|node| node.change);
    assert!(before.iter().zip(&after).all(|(before, after)| before != after), "{before:?} and {after:?}");
    assert_eq!([renamed.from.after.change, renamed.to.after.change], after[..2]);
}
