//! Extended attributes, of trees that have them.

use super::{Place, mode_of};
use crate::{Changed, NodeId, Tree, TreeError};

async fn set<T: Tree>(
    on: &Place<'_, T>,
    node: &NodeId,
    value: Option<&[u8]>,
    create: Option<bool>,
) -> Result<Changed, TreeError> {
    on.tree.set_extended_attribute(&on.root, node, b"name", value, create).await
}

pub(super) async fn an_extended_attribute_is_kept_replaced_and_removed<T: Tree>(on: &Place<'_, T>) {
    if !on.tree.limits().extended_attributes {
        return;
    }
    let get = async |node: &NodeId| on.tree.extended_attribute(&on.root, node, b"name").await;
    for node in [on.file("f").await, on.directory("d").await] {
        assert_eq!(get(&node).await, Err(TreeError::NoAttribute));
        for value in [&b"value"[..], b"", b"\0\xff", &[7; 2000]] {
            set(on, &node, Some(value), None).await.unwrap();
            assert_eq!(get(&node).await.unwrap(), value);
        }
        set(on, &node, None, None).await.unwrap();
        assert_eq!(get(&node).await, Err(TreeError::NoAttribute));
        assert_eq!(set(on, &node, None, None).await.map(drop), Err(TreeError::NoAttribute));
    }
}

pub(super) async fn extended_attributes_are_listed<T: Tree>(on: &Place<'_, T>) {
    if !on.tree.limits().extended_attributes {
        return;
    }
    let file = on.file("f").await;
    assert_eq!(on.tree.extended_attributes(&on.root, &file).await, Ok(vec![]));
    for name in [&b"b"[..], b"a", b"a.long.name"] {
        on.tree.set_extended_attribute(&on.root, &file, name, Some(b"x"), None).await.unwrap();
    }
    let list = on.tree.extended_attributes(&on.root, &file).await.unwrap();
    assert_eq!(on.tree.extended_attributes(&on.root, &file).await.unwrap(), list, "the order stays");
    let mut names = list.clone();
    names.sort();
    assert_eq!(names, [&b"a"[..], b"a.long.name", b"b"]);
}

pub(super) async fn creating_and_replacing_differ<T: Tree>(on: &Place<'_, T>) {
    if !on.tree.limits().extended_attributes {
        return;
    }
    let file = on.file("f").await;
    let replaced = set(on, &file, Some(b"x"), Some(false)).await;
    assert_eq!(replaced.map(drop), Err(TreeError::NoAttribute));
    set(on, &file, Some(b"x"), Some(true)).await.unwrap();
    assert_eq!(set(on, &file, Some(b"y"), Some(true)).await.map(drop), Err(TreeError::Exists));
    set(on, &file, Some(b"z"), Some(false)).await.unwrap();
    assert_eq!(on.tree.extended_attribute(&on.root, &file, b"name").await.unwrap(), b"z");
}

pub(super) async fn extended_attributes_are_for_those_whom_the_mode_lets<T: Tree>(on: &Place<'_, T>) {
    if !on.tree.limits().extended_attributes || on.without.users {
        return;
    }
    let file = on.file_of(&on.alice, "f", 0o600).await;
    let set = async |caller| on.tree.set_extended_attribute(caller, &file, b"name", Some(b"x"), None).await;
    let get = async |caller| on.tree.extended_attribute(caller, &file, b"name").await.map(drop);
    set(&on.alice).await.unwrap();
    assert_eq!(set(&on.bob).await.map(drop), Err(TreeError::Access));
    assert_eq!(get(&on.bob).await, Err(TreeError::Access));
    on.set(&on.alice, &file, mode_of(0o604)).await.unwrap();
    assert_eq!((get(&on.bob).await, set(&on.bob).await.map(drop)), (Ok(()), Err(TreeError::Access)));
}

pub(super) async fn a_change_of_an_extended_attribute_shows_in_ctime<T: Tree>(on: &Place<'_, T>) {
    if !on.tree.limits().extended_attributes {
        return;
    }
    let file = on.file("f").await;
    let before = on.get(&file).await;
    set(on, &file, Some(b"x"), None).await.unwrap();
    let after = on.get(&file).await;
    assert_ne!(after.change, before.change);
    assert!(after.ctime >= before.ctime);
    assert_eq!(after.mtime, before.mtime);
}
