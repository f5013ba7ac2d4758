//! Attributes as they are set.

use super::{Place, mode_of, size_of};
use crate::{New, SetAttributes, SetTime, Time, Tree, TreeError};

pub(super) async fn a_mode_is_set_with_all_its_bits<T: Tree>(on: &Place<'_, T>) {
    let (file, directory) = (on.file("f").await, on.directory("d").await);
    for mode in [0, 0o777, 0o4755, 0o2755, 0o644] {
        on.set(&on.root, &file, mode_of(mode)).await.unwrap();
        assert_eq!(on.get(&file).await.mode, mode);
    }
    on.set(&on.root, &directory, mode_of(0o3777)).await.unwrap();
    assert_eq!(on.get(&directory).await.mode, 0o3777);
}

pub(super) async fn a_size_cuts_and_extends_with_zeros<T: Tree>(on: &Place<'_, T>) {
    let file = on.file("f").await;
    on.write(&file, 0, &[7; 10_000]).await;
    on.set(&on.root, &file, size_of(5000)).await.unwrap();
    assert_eq!(on.bytes(&file).await, [7; 5000]);
    on.set(&on.root, &file, size_of(12_000)).await.unwrap();
    let bytes = on.bytes(&file).await;
    assert_eq!((&bytes[..5000], &bytes[5000..]), (&[7; 5000][..], &[0; 7000][..]));
    on.set(&on.root, &file, size_of(0)).await.unwrap();
    let cut = on.get(&file).await;
    assert_eq!((cut.size, cut.used), (0, 0));
    let most = on.tree.limits().file_size;
    if most < u64::MAX {
        let set = on.set(&on.root, &file, size_of(most + 1)).await;
        assert!(matches!(set, Err(TreeError::FileTooLarge | TreeError::Invalid)), "{set:?}");
    }
}

pub(super) async fn times_are_set_to_what_was_given_and_to_now<T: Tree>(on: &Place<'_, T>) {
    let file = on.file("f").await;
    let (atime, mtime) =
        (Time { seconds: 1_000_000_000, nanoseconds: 0 }, Time { seconds: 1_200_000_000, nanoseconds: 0 });
    let set =
        SetAttributes { atime: SetTime::To(atime), mtime: SetTime::To(mtime), ..SetAttributes::default() };
    on.set(&on.root, &file, set).await.unwrap();
    let past = on.get(&file).await;
    assert_eq!((past.atime, past.mtime), (atime, mtime));
    let set = SetAttributes { mtime: SetTime::Now, ..SetAttributes::default() };
    on.set(&on.root, &file, set).await.unwrap();
    let now = on.get(&file).await;
    assert_eq!(now.atime, atime);
    assert!(now.mtime.seconds > 1_700_000_000);
    assert!(now.ctime >= past.ctime);
}

pub(super) async fn a_guard_that_does_not_match_changes_nothing<T: Tree>(on: &Place<'_, T>) {
    let file = on.file("f").await;
    let before = on.get(&file).await;
    let wrong = Time { seconds: before.ctime.seconds - 1, ..before.ctime };
    let set = on.tree.set_attributes(&on.root, &file, &mode_of(0o600), Some(wrong)).await;
    assert_eq!(set.map(drop), Err(TreeError::NotSync));
    assert_eq!(on.get(&file).await, before);
    on.tree.set_attributes(&on.root, &file, &mode_of(0o600), Some(before.ctime)).await.unwrap();
    assert_eq!(on.get(&file).await.mode, 0o600);
}

pub(super) async fn only_regular_files_have_a_size_to_set<T: Tree>(on: &Place<'_, T>) {
    let directory = on.directory("d").await;
    assert_eq!(on.set(&on.root, &directory, size_of(0)).await, Err(TreeError::IsDirectory));
    let new = New::Symlink(b"x", SetAttributes::default());
    let link = on.tree.create(&on.root, &on.here, b"l", new).await.unwrap().node;
    assert_eq!(on.set(&on.root, &link, size_of(0)).await, Err(TreeError::Invalid));
}

pub(super) async fn a_change_of_attributes_shows_in_ctime_and_change<T: Tree>(on: &Place<'_, T>) {
    let file = on.file("f").await;
    let mut last = on.get(&file).await;
    for set in [mode_of(0o600), size_of(10), mode_of(0o644)] {
        let changed = on.tree.set_attributes(&on.root, &file, &set, None).await.unwrap();
        assert_ne!(changed.after.change, last.change);
        assert!(changed.after.ctime >= last.ctime);
        if let Some(before) = changed.before {
            assert_eq!((before.change, before.ctime), (last.change, last.ctime));
        }
        last = changed.after;
    }
}

pub(super) async fn nothing_to_set_changes_nothing<T: Tree>(on: &Place<'_, T>) {
    let file = on.file("f").await;
    let before = on.get(&file).await;
    on.set(&on.root, &file, SetAttributes::default()).await.unwrap();
    assert_eq!(on.get(&file).await, before);
}

pub(super) async fn the_root_has_attributes_and_space<T: Tree>(on: &Place<'_, T>) {
    let space = on.tree.space(&on.root, &on.tree.root()).await.unwrap();
    assert!(space.free <= space.bytes && space.available <= space.free);
    assert!(space.files_free <= space.files);
    let root = on.get(&on.tree.root()).await;
    assert_eq!(root.kind, crate::Kind::Directory);
    let file = on.file("f").await;
    assert_eq!(on.get(&file).await.fsid, root.fsid);
}
