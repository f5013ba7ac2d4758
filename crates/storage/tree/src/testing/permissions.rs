//! Permission checks. All of them need callers other than the super-user.

use super::{Place, mode_of, size_of, write_all};
use crate::{
    Caller, DirRoom, New, NewFile, NodeId, Permissions, RemovedKind, SetAttributes, SetTime, Time, Tree,
    TreeError,
};

const DENIED: Result<(), TreeError> = Err(TreeError::Access);
const NOT_OWNER: Result<(), TreeError> = Err(TreeError::NotOwner);

fn owner(uid: Option<u32>, gid: Option<u32>) -> SetAttributes {
    SetAttributes { uid, gid, ..SetAttributes::default() }
}

async fn create<T: Tree>(
    on: &Place<'_, T>,
    caller: &Caller,
    at: &NodeId,
    name: &[u8],
    mode: u32,
) -> Result<NodeId, TreeError> {
    let new = New::File(NewFile::Guarded(mode_of(mode)));
    on.tree.create(caller, at, name, new).await.map(|made| made.node)
}

pub(super) async fn the_mode_says_what_access_grants<T: Tree>(on: &Place<'_, T>) {
    if on.without.users {
        return;
    }
    let file = on.file_of(&on.alice, "f", 0o640).await;
    on.set(&on.alice, &file, owner(None, Some(2001))).await.unwrap();
    let other = Caller { uid: 1003, gid: 1003, groups: [].into() };
    let access =
        async |caller: &Caller, wanted| on.tree.access(caller, &file, wanted).await.unwrap().permissions;
    assert_eq!(access(&on.alice, Permissions::ALL).await, Permissions(6));
    assert_eq!(access(&on.bob, Permissions::ALL).await, Permissions::READ);
    assert_eq!(access(&on.bob, Permissions::WRITE).await, Permissions(0));
    assert_eq!(access(&other, Permissions::ALL).await, Permissions(0));
    assert_eq!(access(&on.root, Permissions::ALL).await, Permissions(6), "nobody executes it");
}

pub(super) async fn data_is_for_those_whom_the_mode_lets<T: Tree>(on: &Place<'_, T>) {
    if on.without.users {
        return;
    }
    let file = on.file_of(&on.alice, "f", 0o600).await;
    let read = async |caller: &Caller| on.tree.read(caller, &file, 0, 10).await.map(drop);
    let write = async |caller: &Caller| write_all(on.tree, caller, &file, 0, b"x").await;
    assert_eq!((read(&on.alice).await, write(&on.alice).await), (Ok(()), Ok(())));
    assert_eq!((read(&on.bob).await, write(&on.bob).await), (DENIED, DENIED));
    on.set(&on.alice, &file, mode_of(0o604)).await.unwrap();
    assert_eq!((read(&on.bob).await, write(&on.bob).await), (Ok(()), DENIED));
    on.set(&on.alice, &file, mode_of(0o666)).await.unwrap();
    assert_eq!((read(&on.bob).await, write(&on.bob).await), (Ok(()), Ok(())));
}

pub(super) async fn owners_write_what_is_read_only<T: Tree>(on: &Place<'_, T>) {
    if on.without.users {
        return;
    }
    let file = on.file_of(&on.alice, "f", 0o444).await;
    write_all(on.tree, &on.alice, &file, 0, b"x").await.unwrap();
    on.set(&on.alice, &file, mode_of(0)).await.unwrap();
    on.tree.read(&on.alice, &file, 0, 1).await.unwrap();
    write_all(on.tree, &on.root, &file, 0, b"y").await.unwrap();
}

pub(super) async fn a_directory_is_searched_listed_and_changed_by_its_mode<T: Tree>(on: &Place<'_, T>) {
    if on.without.users {
        return;
    }
    let directory = on.directory_of(&on.alice, "d", 0o755).await;
    create(on, &on.alice, &directory, b"f", 0o644).await.unwrap();
    let room = DirRoom { bytes: 1000, each: 24, names: 1000, nodes: false };
    let lookup = async || on.tree.lookup(&on.bob, &directory, b"f").await.map(drop);
    let list = async || on.tree.read_dir(&on.bob, &directory, 0, room).await.map(drop);
    let make = async || create(on, &on.bob, &directory, b"g", 0o644).await.map(drop);
    let remove = async || on.tree.remove(&on.bob, &directory, b"f", RemovedKind::File).await.map(drop);
    let moves = async || on.tree.rename(&on.bob, (&directory, b"f"), (&on.here, b"f")).await.map(drop);
    assert_eq!((lookup().await, list().await, make().await), (Ok(()), Ok(()), DENIED));
    assert_eq!((remove().await, moves().await), (DENIED, DENIED));
    on.set(&on.alice, &directory, mode_of(0o754)).await.unwrap();
    assert_eq!((lookup().await, list().await), (DENIED, Ok(())));
    on.set(&on.alice, &directory, mode_of(0o751)).await.unwrap();
    assert_eq!((lookup().await, list().await), (Ok(()), DENIED));
    on.set(&on.alice, &directory, mode_of(0o752)).await.unwrap();
    assert_eq!((make().await, remove().await), (DENIED, DENIED), "writing alone is not enough");
    on.set(&on.alice, &directory, mode_of(0o753)).await.unwrap();
    assert_eq!((make().await, moves().await), (Ok(()), Ok(())));
}

pub(super) async fn only_the_owner_changes_mode_and_times<T: Tree>(on: &Place<'_, T>) {
    if on.without.users {
        return;
    }
    let file = on.file_of(&on.alice, "f", 0o666).await;
    let time = SetTime::To(Time { seconds: 1_000_000_000, nanoseconds: 0 });
    let times = SetAttributes { mtime: time, ..SetAttributes::default() };
    for set in [mode_of(0o777), times, owner(None, Some(2001))] {
        assert_eq!(on.set(&on.bob, &file, set).await, NOT_OWNER);
        assert_eq!(on.set(&on.alice, &file, set).await, Ok(()));
        assert_eq!(on.set(&on.root, &file, set).await, Ok(()));
    }
}

pub(super) async fn only_root_gives_files_away<T: Tree>(on: &Place<'_, T>) {
    if on.without.users {
        return;
    }
    let file = on.file_of(&on.alice, "f", 0o666).await;
    assert_eq!(on.set(&on.alice, &file, owner(Some(1002), None)).await, NOT_OWNER);
    assert_eq!(on.set(&on.bob, &file, owner(Some(1002), None)).await, NOT_OWNER);
    assert_eq!(on.set(&on.root, &file, owner(Some(1002), Some(5))).await, Ok(()));
    let file = on.get(&file).await;
    assert_eq!((file.uid, file.gid), (1002, 5));
}

pub(super) async fn an_owner_gives_files_to_groups_of_his<T: Tree>(on: &Place<'_, T>) {
    if on.without.users {
        return;
    }
    let file = on.file_of(&on.alice, "f", 0o666).await;
    assert_eq!(on.set(&on.alice, &file, owner(None, Some(1002))).await, NOT_OWNER);
    assert_eq!(on.set(&on.alice, &file, owner(Some(1001), Some(2001))).await, Ok(()));
    assert_eq!(on.get(&file).await.gid, 2001);
}

pub(super) async fn who_may_write_may_touch<T: Tree>(on: &Place<'_, T>) {
    if on.without.users {
        return;
    }
    let file = on.file_of(&on.alice, "f", 0o646).await;
    let now = SetAttributes { atime: SetTime::Now, mtime: SetTime::Now, ..SetAttributes::default() };
    assert_eq!(on.set(&on.bob, &file, now).await, Ok(()));
    on.set(&on.alice, &file, mode_of(0o644)).await.unwrap();
    assert_eq!(on.set(&on.bob, &file, now).await, DENIED);
}

pub(super) async fn a_file_belongs_to_who_makes_it<T: Tree>(on: &Place<'_, T>) {
    if on.without.users {
        return;
    }
    let file = on.file_of(&on.alice, "f", 0o600).await;
    let file = on.get(&file).await;
    assert_eq!((file.uid, file.gid, file.mode), (1001, 1001, 0o600));
    let directory = on.directory_of(&on.bob, "d", 0o700).await;
    let directory = on.get(&directory).await;
    assert_eq!((directory.uid, directory.gid, directory.mode), (1002, 1002, 0o700));
}

pub(super) async fn a_directory_with_setgid_passes_its_group_on<T: Tree>(on: &Place<'_, T>) {
    if on.without.users {
        return;
    }
    let directory = on.directory_of(&on.alice, "d", 0o777).await;
    on.set(&on.root, &directory, SetAttributes { mode: Some(0o2777), ..owner(None, Some(77)) })
        .await
        .unwrap();
    let file = create(on, &on.bob, &directory, b"f", 0o644).await.unwrap();
    assert_eq!(on.get(&file).await.gid, 77);
    let inner = on.tree.create(&on.bob, &directory, b"d", New::Directory(mode_of(0o755))).await.unwrap();
    assert_eq!((inner.attributes.gid, inner.attributes.mode), (77, 0o2755));
}

pub(super) async fn setgid_of_a_foreign_group_is_not_given<T: Tree>(on: &Place<'_, T>) {
    if on.without.users {
        return;
    }
    let file = on.file_of(&on.alice, "f", 0o755).await;
    on.set(&on.alice, &file, mode_of(0o2755)).await.unwrap();
    assert_eq!(on.get(&file).await.mode, 0o2755);
    on.set(&on.root, &file, owner(None, Some(77))).await.unwrap();
    on.set(&on.alice, &file, mode_of(0o2755)).await.unwrap();
    assert_eq!(on.get(&file).await.mode, 0o755);
}

pub(super) async fn a_write_by_another_takes_setuid_away<T: Tree>(on: &Place<'_, T>) {
    if on.without.users {
        return;
    }
    let file = on.file_of(&on.alice, "f", 0o666).await;
    on.set(&on.alice, &file, mode_of(0o6777)).await.unwrap();
    assert_eq!(on.get(&file).await.mode, 0o6777);
    write_all(on.tree, &on.bob, &file, 0, b"x").await.unwrap();
    assert_eq!(on.get(&file).await.mode, 0o777);
    on.set(&on.alice, &file, mode_of(0o4777)).await.unwrap();
    on.set(&on.bob, &file, size_of(0)).await.unwrap();
    assert_eq!(on.get(&file).await.mode, 0o777, "a cut does too");
}

pub(super) async fn a_file_that_changes_hands_loses_setuid<T: Tree>(on: &Place<'_, T>) {
    if on.without.users {
        return;
    }
    let file = on.file_of(&on.alice, "f", 0o755).await;
    on.set(&on.alice, &file, mode_of(0o6755)).await.unwrap();
    on.set(&on.root, &file, owner(Some(1002), None)).await.unwrap();
    assert_eq!(on.get(&file).await.mode, 0o755);
}

pub(super) async fn of_a_sticky_directory_only_owners_remove<T: Tree>(on: &Place<'_, T>) {
    if on.without.users {
        return;
    }
    let directory = on.directory("d").await;
    on.set(&on.root, &directory, mode_of(0o1777)).await.unwrap();
    for name in [b"f", b"g"] {
        create(on, &on.alice, &directory, name, 0o666).await.unwrap();
    }
    create(on, &on.bob, &directory, b"b", 0o666).await.unwrap();
    let at = &directory;
    let remove = async |caller: &Caller| on.tree.remove(caller, at, b"f", RemovedKind::File).await.map(drop);
    let moves = async |caller: &Caller, from: &[u8], to: &[u8]| {
        on.tree.rename(caller, (at, from), (at, to)).await.map(drop)
    };
    assert_eq!(remove(&on.bob).await, NOT_OWNER);
    assert_eq!(moves(&on.bob, b"f", b"h").await, NOT_OWNER);
    assert_eq!(moves(&on.bob, b"b", b"f").await, NOT_OWNER, "it would replace another's");
    assert_eq!(moves(&on.alice, b"f", b"h").await, Ok(()));
    assert_eq!(moves(&on.alice, b"h", b"f").await, Ok(()));
    assert_eq!(remove(&on.alice).await, Ok(()));
    let taken = on.tree.remove(&on.root, at, b"g", RemovedKind::File).await;
    assert_eq!(taken.map(drop), Ok(()));
}

pub(super) async fn who_may_not_write_does_not_cut<T: Tree>(on: &Place<'_, T>) {
    if on.without.users {
        return;
    }
    let file = on.file_of(&on.alice, "f", 0o644).await;
    write_all(on.tree, &on.alice, &file, 0, b"data").await.unwrap();
    assert_eq!(on.set(&on.bob, &file, size_of(0)).await, DENIED);
    let new = New::File(NewFile::Unchecked(size_of(0)));
    assert_eq!(on.tree.create(&on.bob, &on.here, b"f", new).await.map(drop), DENIED);
    for punched in [
        on.tree.deallocate(&on.bob, &file, 0, 2).await.map(drop),
        on.tree.allocate(&on.bob, &file, 0, 20).await.map(drop),
    ] {
        assert!(matches!(punched, Err(TreeError::Access | TreeError::Unsupported)), "{punched:?}");
    }
    assert_eq!(on.bytes(&file).await, b"data");
}
