//! Lookup, create, remove and link.

use super::{Place, mode_of, size_of};
use crate::{Device, Kind, New, NewFile, NodeId, RemovedKind, SetAttributes, SetTime, Time, Tree, TreeError};

const GUARDED: New<'_> = New::File(NewFile::Guarded(SetAttributes {
    mode: Some(0o640),
    uid: None,
    gid: None,
    size: None,
    atime: SetTime::Keep,
    mtime: SetTime::Keep,
}));

pub(super) async fn a_new_file_is_found_by_its_name_and_is_empty<T: Tree>(on: &Place<'_, T>) {
    let made = on.tree.create(&on.root, &on.here, b"f", GUARDED).await.unwrap();
    assert!(made.new);
    let found = on.tree.lookup(&on.root, &on.here, b"f").await.unwrap();
    assert_eq!((found.node, found.attributes), (made.node, on.get(&made.node).await));
    assert_eq!(found.directory.fileid, on.get(&on.here).await.fileid);
    let file = made.attributes;
    assert_eq!((file.kind, file.size, file.links), (Kind::Regular, 0, 1));
    assert_eq!((file.uid, file.gid), (0, 0));
    assert_eq!(on.find("f").await, Ok(made.node), "an id stays the same");
}

pub(super) async fn a_lookup_finds_the_directory_itself_and_its_parent<T: Tree>(on: &Place<'_, T>) {
    let inner = on.directory("d").await;
    let lookup = async |at: &NodeId, name: &[u8]| on.tree.lookup(&on.root, at, name).await.unwrap().node;
    assert_eq!(lookup(&inner, b".").await, inner);
    assert_eq!(lookup(&inner, b"..").await, on.here);
    let root = on.tree.root();
    assert_eq!(lookup(&on.here, b"..").await, root);
    assert_eq!(lookup(&root, b"..").await, root);
}

pub(super) async fn what_does_not_exist_is_not_found<T: Tree>(on: &Place<'_, T>) {
    assert_eq!(on.find("f").await, Err(TreeError::NoEntry));
    let removed = on.tree.remove(&on.root, &on.here, b"f", RemovedKind::Any).await;
    assert_eq!(removed.map(drop), Err(TreeError::NoEntry));
}

pub(super) async fn names_are_bytes_and_differ_in_each<T: Tree>(on: &Place<'_, T>) {
    let names: [&[u8]; 6] = [b"a", b"A", b"a ", b"\xff\xfe", b"\xc3\xa9", b"e\xcc\x81"];
    let mut nodes = Vec::new();
    for name in names {
        nodes.push(on.tree.create(&on.root, &on.here, name, GUARDED).await.unwrap().node);
    }
    for (name, node) in names.into_iter().zip(nodes) {
        assert_eq!(on.tree.lookup(&on.root, &on.here, name).await.unwrap().node, node);
    }
}

pub(super) async fn a_name_that_is_too_long_is_refused<T: Tree>(on: &Place<'_, T>) {
    let most = on.tree.limits().name as usize;
    let name = vec![b'n'; most + 1];
    let longest = on.tree.create(&on.root, &on.here, &name[..most], GUARDED).await.unwrap();
    let error = Err(TreeError::NameTooLong);
    assert_eq!(on.tree.create(&on.root, &on.here, &name, GUARDED).await.map(drop), error);
    assert_eq!(on.tree.lookup(&on.root, &on.here, &name).await.map(drop), error);
    assert_eq!(on.tree.link(&on.root, &longest.node, &on.here, &name).await.map(drop), error);
    let moved = on.tree.rename(&on.root, (&on.here, &name[..most]), (&on.here, &name)).await;
    assert_eq!(moved.map(drop), error);
}

pub(super) async fn a_file_has_no_entries<T: Tree>(on: &Place<'_, T>) {
    let file = on.file("f").await;
    let error = Err(TreeError::NotDirectory);
    assert_eq!(on.tree.lookup(&on.root, &file, b"x").await.map(drop), error);
    assert_eq!(on.tree.create(&on.root, &file, b"x", GUARDED).await.map(drop), error);
    assert_eq!(on.tree.remove(&on.root, &file, b"x", RemovedKind::Any).await.map(drop), error);
    assert_eq!(on.tree.link(&on.root, &file, &file, b"x").await.map(drop), error);
    assert_eq!(on.tree.rename(&on.root, (&on.here, b"f"), (&file, b"x")).await.map(drop), error);
}

pub(super) async fn an_unchecked_create_of_a_file_that_exists_sets_its_size_alone<T: Tree>(
    on: &Place<'_, T>,
) {
    let file = on.file("f").await;
    on.write(&file, 0, b"0123456789").await;
    let set = SetAttributes { mode: Some(0o600), ..SetAttributes::default() };
    let again = on.tree.create(&on.root, &on.here, b"f", New::File(NewFile::Unchecked(set))).await.unwrap();
    assert_eq!((again.node, again.new), (file, false));
    assert_eq!((again.attributes.size, again.attributes.mode), (10, 0o644));
    let set = SetAttributes { size: Some(4), ..set };
    let again = on.tree.create(&on.root, &on.here, b"f", New::File(NewFile::Unchecked(set))).await.unwrap();
    assert_eq!((again.attributes.size, again.attributes.mode), (4, 0o644));
    on.directory("d").await;
    let other = on.tree.create(&on.root, &on.here, b"d", New::File(NewFile::Unchecked(size_of(0)))).await;
    assert_eq!(other.map(drop), Err(TreeError::Exists));
}

pub(super) async fn a_guarded_create_refuses_a_name_that_exists<T: Tree>(on: &Place<'_, T>) {
    on.file("f").await;
    on.directory("d").await;
    let set = SetAttributes::default();
    let kinds = [GUARDED, New::Directory(set), New::Symlink(b"x", set)];
    for new in kinds {
        for name in [b"f", b"d"] {
            let made = on.tree.create(&on.root, &on.here, name, new).await;
            assert_eq!(made.map(drop), Err(TreeError::Exists));
        }
    }
}

pub(super) async fn an_exclusive_create_succeeds_again_for_its_verifier_alone<T: Tree>(on: &Place<'_, T>) {
    let exclusive = async |verifier: &[u8; 8]| {
        let new = NewFile::Exclusive { verifier: *verifier, attributes: SetAttributes::default() };
        on.tree.create(&on.root, &on.here, b"f", New::File(new)).await
    };
    let made = exclusive(b"verifier").await.unwrap();
    assert!(made.new);
    let again = exclusive(b"verifier").await.unwrap();
    assert_eq!((again.node, again.new), (made.node, false));
    assert_eq!(exclusive(b"verifies").await.map(drop), Err(TreeError::Exists));
    on.set(&on.root, &made.node, mode_of(0o600)).await.unwrap();
    assert_eq!(on.get(&made.node).await.mode, 0o600);
    on.file("g").await;
    let new = NewFile::Exclusive { verifier: [0; 8], attributes: SetAttributes::default() };
    let other = on.tree.create(&on.root, &on.here, b"g", New::File(new)).await;
    assert_eq!(other.map(drop), Err(TreeError::Exists), "it was not made so");
}

pub(super) async fn a_new_file_gets_the_attributes_it_was_given<T: Tree>(on: &Place<'_, T>) {
    let (atime, mtime) =
        (Time { seconds: 1_000_000_000, nanoseconds: 0 }, Time { seconds: 1_100_000_000, nanoseconds: 0 });
    let set = SetAttributes {
        mode: Some(0o751),
        uid: Some(1001),
        gid: Some(2001),
        size: None,
        atime: SetTime::To(atime),
        mtime: SetTime::To(mtime),
    };
    let file = NewFile::Guarded(SetAttributes { size: Some(5000), ..set });
    for (name, new) in [(b"f", New::File(file)), (b"d", New::Directory(set))] {
        if on.without.users {
            continue;
        }
        let made = on.tree.create(&on.root, &on.here, name, new).await.unwrap().attributes;
        assert_eq!((made.mode, made.uid, made.gid), (0o751, 1001, 2001));
        assert_eq!((made.atime, made.mtime), (atime, mtime));
        assert!(made.kind == Kind::Directory || made.size == 5000);
    }
}

pub(super) async fn directories_count_their_subdirectories<T: Tree>(on: &Place<'_, T>) {
    let outer = on.directory("d").await;
    let (empty, around) = (on.get(&outer).await.links, on.get(&on.here).await.links);
    for (name, more) in [(b"a", 1), (b"b", 2)] {
        on.tree.create(&on.root, &outer, name, New::Directory(mode_of(0o755))).await.unwrap();
        on.tree.create(&on.root, &outer, &[name[0], b'f'], GUARDED).await.unwrap();
        assert!([empty, empty + more].contains(&on.get(&outer).await.links), "or it does not count any");
    }
    on.tree.remove(&on.root, &outer, b"a", RemovedKind::Directory).await.unwrap();
    assert!([empty, empty + 1].contains(&on.get(&outer).await.links));
    assert_eq!(on.get(&on.here).await.links, around);
}

pub(super) async fn a_symbolic_link_keeps_its_path_and_is_not_followed<T: Tree>(on: &Place<'_, T>) {
    let path = b"../no/such\xff/file";
    let new = New::Symlink(path, SetAttributes::default());
    let made = on.tree.create(&on.root, &on.here, b"l", new).await.unwrap();
    assert_eq!((made.attributes.kind, made.attributes.size), (Kind::Symlink, path.len() as u64));
    let read = on.tree.read_link(&on.root, &made.node).await.unwrap();
    assert_eq!(read.path, path);
    assert_eq!(on.tree.lookup(&on.root, &made.node, b"x").await.map(drop), Err(TreeError::NotDirectory));
    let file = on.file("f").await;
    assert_eq!(on.tree.read_link(&on.root, &file).await.map(drop), Err(TreeError::Invalid));
    on.tree.remove(&on.root, &on.here, b"l", RemovedKind::File).await.unwrap();
}

pub(super) async fn sockets_and_pipes_are_made_and_devices_by_root<T: Tree>(on: &Place<'_, T>) {
    let device = Device { major: 7, minor: 300 };
    let kinds = [(Kind::Socket, false), (Kind::Fifo, false), (Kind::Block, true), (Kind::Character, true)];
    for (number, (kind, is_device)) in kinds.into_iter().enumerate() {
        if is_device && on.without.devices {
            continue;
        }
        let new = New::Special(kind, device, mode_of(0o600));
        let made = on.tree.create(&on.root, &on.here, &[b'a' + number as u8], new).await.unwrap();
        assert_eq!((made.attributes.kind, made.attributes.mode), (kind, 0o600));
        assert!(!is_device || made.attributes.device == device);
        if is_device && !on.without.users {
            let made = on.tree.create(&on.alice, &on.here, b"x", new).await;
            assert_eq!(made.map(drop), Err(TreeError::NotOwner));
        }
    }
}

pub(super) async fn a_removed_file_is_gone_and_its_id_is_stale<T: Tree>(on: &Place<'_, T>) {
    let file = on.file("f").await;
    let removed = on.tree.remove(&on.root, &on.here, b"f", RemovedKind::File).await.unwrap();
    assert_eq!(removed.node, file);
    assert_eq!(on.find("f").await, Err(TreeError::NoEntry));
    assert_eq!(on.tree.attributes(&file).await, Err(TreeError::Stale));
    assert_ne!(on.file("f").await, file, "ids are not given again");
    assert_eq!(on.tree.attributes(&file).await, Err(TreeError::Stale));
    let directory = on.directory("d").await;
    on.tree.remove(&on.root, &on.here, b"d", RemovedKind::Directory).await.unwrap();
    assert_eq!(on.tree.create(&on.root, &directory, b"f", GUARDED).await.map(drop), Err(TreeError::Stale));
}

pub(super) async fn a_file_lives_as_long_as_it_has_a_name<T: Tree>(on: &Place<'_, T>) {
    let file = on.file("f").await;
    on.write(&file, 0, b"data").await;
    on.tree.link(&on.root, &file, &on.here, b"g").await.unwrap();
    on.tree.remove(&on.root, &on.here, b"f", RemovedKind::File).await.unwrap();
    assert_eq!(on.get(&file).await.links, 1);
    assert_eq!(on.bytes(&file).await, b"data");
    on.tree.remove(&on.root, &on.here, b"g", RemovedKind::File).await.unwrap();
    assert_eq!(on.tree.attributes(&file).await, Err(TreeError::Stale));
}

pub(super) async fn a_directory_that_has_entries_is_not_removed<T: Tree>(on: &Place<'_, T>) {
    let directory = on.directory("d").await;
    on.tree.create(&on.root, &directory, b"f", GUARDED).await.unwrap();
    for kind in [RemovedKind::Directory, RemovedKind::Any] {
        let removed = on.tree.remove(&on.root, &on.here, b"d", kind).await;
        assert_eq!(removed.map(drop), Err(TreeError::NotEmpty));
    }
    on.tree.remove(&on.root, &directory, b"f", RemovedKind::Any).await.unwrap();
    on.tree.remove(&on.root, &on.here, b"d", RemovedKind::Any).await.unwrap();
}

pub(super) async fn a_remove_takes_only_what_it_was_told_to<T: Tree>(on: &Place<'_, T>) {
    on.file("f").await;
    on.directory("d").await;
    let remove = async |name, kind| on.tree.remove(&on.root, &on.here, name, kind).await.map(drop);
    assert_eq!(remove(b"f", RemovedKind::Directory).await, Err(TreeError::NotDirectory));
    assert_eq!(remove(b"d", RemovedKind::File).await, Err(TreeError::IsDirectory));
    assert_eq!(remove(b"d", RemovedKind::Directory).await, Ok(()));
    assert_eq!(remove(b"f", RemovedKind::File).await, Ok(()));
}

pub(super) async fn a_link_is_another_name_of_the_same_file<T: Tree>(on: &Place<'_, T>) {
    let file = on.file("f").await;
    let before = on.get(&file).await;
    let linked = on.tree.link(&on.root, &file, &on.here, b"g").await.unwrap();
    assert_eq!(linked.attributes.links, 2);
    assert_ne!(linked.attributes.change, before.change);
    assert_eq!(on.find("g").await, Ok(file));
    on.write(&file, 0, b"both").await;
    assert_eq!(on.bytes(&on.find("g").await.unwrap()).await, b"both");
    on.file("h").await;
    let linked = on.tree.link(&on.root, &file, &on.here, b"h").await;
    assert_eq!(linked.map(drop), Err(TreeError::Exists));
    assert_eq!(on.get(&file).await.links, 2);
}

pub(super) async fn a_directory_has_one_name_only<T: Tree>(on: &Place<'_, T>) {
    let directory = on.directory("d").await;
    let linked = on.tree.link(&on.root, &directory, &on.here, b"e").await.map(drop);
    assert!(matches!(linked, Err(TreeError::IsDirectory | TreeError::NotOwner)), "{linked:?}");
    assert_eq!(on.find("e").await, Err(TreeError::NoEntry));
}

pub(super) async fn ids_of_other_trees_are_stale<T: Tree>(on: &Place<'_, T>) {
    let mut bytes = on.here.bytes().to_vec();
    let mut ids = vec![NodeId::new(&[]).unwrap(), NodeId::new(&[1; NodeId::MOST]).unwrap()];
    for at in 0..bytes.len() {
        bytes[at] ^= 0x55;
        ids.push(NodeId::new(&bytes).unwrap());
        bytes[at] ^= 0x55;
    }
    for id in ids {
        let here = on.tree.attributes(&id).await;
        assert_eq!(here, Err(TreeError::Stale), "{id:?}");
        let moved = on.tree.rename(&on.root, (&id, b"a"), (&on.here, b"b")).await;
        assert_eq!(moved.map(drop), Err(TreeError::Stale));
    }
}

pub(super) async fn each_change_of_a_directory_shows_in_its_attributes<T: Tree>(on: &Place<'_, T>) {
    let mut last = on.get(&on.here).await;
    let mut differs = async |step: &str| {
        let here = on.get(&on.here).await;
        assert_ne!(here.change, last.change, "{step}");
        assert!(here.mtime >= last.mtime && here.ctime >= last.ctime, "{step}");
        last = here;
    };
    let made = on.tree.create(&on.root, &on.here, b"f", GUARDED).await.unwrap();
    differs("create").await;
    if let Some(before) = made.directory.before {
        assert_ne!(before.change, made.directory.after.change);
    }
    on.tree.link(&on.root, &made.node, &on.here, b"g").await.unwrap();
    differs("link").await;
    on.tree.rename(&on.root, (&on.here, b"g"), (&on.here, b"h")).await.unwrap();
    differs("rename").await;
    on.tree.remove(&on.root, &on.here, b"h", RemovedKind::File).await.unwrap();
    differs("remove").await;
    let new = New::Directory(mode_of(0o755));
    on.tree.create(&on.root, &on.here, b"d", new).await.unwrap();
    differs("a directory").await;
}
