//! Changes made through a folder are visible in the host's file system, and the other way round.

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::time::Duration;

use crate::common;
use crate::common::{
    Ground, ROOM, both_ways, find, is_root, list, make, make_directory, read, run, user, with_mode, write,
};
use runtime::Buf;
use tree::{
    Batch, Caller, Contents, Device, Kind, New, NewFile, Permissions, RemovedKind, SetAttributes, SetTime,
    Stability, Time, Tree, TreeError,
};

#[test]
fn files_made_through_the_folder_are_files_of_the_host() {
    both_ways(|ground, as_itself| {
        let folder = ground.open_as(as_itself);
        run(async {
            let root = folder.root();
            let made = make(&folder, &root, b"a").await;
            assert!(made.new && made.attributes.kind == Kind::Regular && made.attributes.mode == 0o644);
            write(&folder, &made.node, 0, b"hello").await;
            assert_eq!(common::content(&ground.path("a")), b"hello");
            assert_eq!(read(&folder, &made.node, 1, 100).await, (b"ello".to_vec(), true));
            assert_eq!(read(&folder, &made.node, 0, 4).await, (b"hell".to_vec(), false));
            assert_eq!(read(&folder, &made.node, 9, 4).await, (vec![], true));
            fs::write(ground.path("a"), b"by another").unwrap();
            assert_eq!(read(&folder, &made.node, 0, 100).await.0, b"by another");
            let found = find(&folder, &root, b"a").await.unwrap();
            assert_eq!((found.node, found.attributes.size), (made.node, 10));
            assert_eq!(find(&folder, &root, b"b").await.unwrap_err(), TreeError::NoEntry);

            let inner = make_directory(&folder, &root, b"inner").await.node;
            let link = New::Symlink(b"../a", with_mode(0o777));
            let link = folder.create(&Caller::root(), &inner, b"link", link).await.unwrap();
            let target = folder.read_link(&Caller::root(), &link.node).await.unwrap();
            assert_eq!(target.path, b"../a");
            assert_eq!(fs::read_link(ground.path("inner/link")).unwrap().as_os_str(), "../a");
            let fifo = New::Special(Kind::Fifo, Device::default(), with_mode(0o600));
            let fifo = folder.create(&Caller::root(), &inner, b"fifo", fifo).await.unwrap();
            assert_eq!(fifo.attributes.kind, Kind::Fifo);
            assert_eq!(folder.read(&Caller::root(), &fifo.node, 0, 1).await.err(), Some(TreeError::Invalid));
            assert_eq!(folder.read(&Caller::root(), &inner, 0, 1).await.err(), Some(TreeError::IsDirectory));

            let names = |entries: Vec<tree::DirEntry>| -> Vec<Vec<u8>> {
                let mut names: Vec<_> = entries.into_iter().map(|entry| entry.name).collect();
                names.sort();
                names
            };
            assert_eq!(names(list(&folder, &root, ROOM).await), [&b"a"[..], b"inner"]);
            assert_eq!(names(list(&folder, &inner, ROOM).await), [&b"fifo"[..], b"link"]);
            let up = find(&folder, &inner, b"..").await.unwrap();
            assert_eq!(up.node, root);
        });
    });
}

#[test]
fn a_batch_sees_what_this_server_wrote_and_what_has_grown() {
    both_ways(|ground, as_itself| {
        let folder = ground.open_as(as_itself);
        run(async {
            let file = make(&folder, &folder.root(), b"a").await.node;
            write(&folder, &file, 0, b"hello").await;
            let size = async || {
                let read = folder.read(&Caller::root(), &file, 0, 3).await.unwrap();
                read.attributes.size
            };
            let batch = Batch::begin();
            assert_eq!(size().await, 5);
            write(&folder, &file, 5, b", world").await;
            assert_eq!(size().await, 12);
            fs::write(ground.path("a"), b"hello, host's world").unwrap();
            assert_eq!(read(&folder, &file, 0, 100).await, (b"hello, host's world".to_vec(), true));
            fs::write(ground.path("a"), b"short").unwrap();
            assert_eq!(read(&folder, &file, 0, 100).await, (b"short".to_vec(), true));
            assert_eq!(folder.attributes(&file).await.unwrap().size, 5);
            write(&folder, &file, 5, b"er").await;
            assert_eq!(folder.attributes(&file).await.unwrap().size, 7);
            fs::write(ground.path("a"), b"shortest").unwrap();
            let found = find(&folder, &folder.root(), b"a").await.unwrap();
            assert_eq!((found.node, found.attributes.size), (file, 8));
            drop(batch);
            fs::write(ground.path("a"), b"").unwrap();
            let _batch = Batch::begin();
            assert_eq!(folder.attributes(&file).await.unwrap().size, 0);
        });
    });
}

#[test]
fn names_are_moved_linked_and_removed_as_the_host_does_it() {
    both_ways(|ground, as_itself| {
        let folder = ground.open_as(as_itself);
        let me = Caller::root();
        run(async {
            let root = folder.root();
            let a = make(&folder, &root, b"a").await.node;
            let b = make(&folder, &root, b"b").await.node;
            let inner = make_directory(&folder, &root, b"inner").await.node;
            let renamed = folder.rename(&me, (&root, b"a"), (&inner, b"b")).await.unwrap();
            assert_eq!(renamed.replaced, None);
            assert_eq!(find(&folder, &inner, b"b").await.unwrap().node, a, "the id stays");
            let renamed = folder.rename(&me, (&inner, b"b"), (&root, b"b")).await.unwrap();
            assert_eq!(renamed.replaced, Some(b));
            assert_eq!(folder.attributes(&b).await, Err(TreeError::Stale));
            let linked = folder.link(&me, &a, &inner, b"c").await.unwrap();
            assert_eq!(linked.attributes.links, 2);
            assert_eq!(find(&folder, &inner, b"c").await.unwrap().node, a);
            let renamed = folder.rename(&me, (&inner, b"c"), (&root, b"b")).await.unwrap();
            assert_eq!(renamed.replaced, None, "both are the same file");
            let gone = folder.remove(&me, &root, b"inner", RemovedKind::Any).await;
            assert_eq!(gone, Err(TreeError::NotEmpty));
            let gone = folder.remove(&me, &root, b"inner", RemovedKind::File).await;
            assert_eq!(gone, Err(TreeError::IsDirectory));
            let gone = folder.remove(&me, &root, b"b", RemovedKind::Directory).await;
            assert_eq!(gone, Err(TreeError::NotDirectory));
            folder.remove(&me, &root, b"b", RemovedKind::Any).await.unwrap();
            assert_eq!(folder.attributes(&a).await.unwrap().links, 1);
            folder.remove(&me, &inner, b"c", RemovedKind::File).await.unwrap();
            assert_eq!(folder.attributes(&a).await, Err(TreeError::Stale));
            folder.remove(&me, &root, b"inner", RemovedKind::Directory).await.unwrap();
            assert_eq!(fs::read_dir(ground.path("")).unwrap().count(), 0);
            assert_eq!(folder.attributes(&inner).await, Err(TreeError::Stale));
        });
    });
}

#[test]
fn an_exclusive_create_is_known_again_after_a_restart() {
    both_ways(|ground, as_itself| {
        let exclusive = |byte| {
            New::File(NewFile::Exclusive { verifier: [byte; 8], attributes: SetAttributes::default() })
        };
        let me = Caller::root();
        let first = run(async {
            let folder = ground.open_as(as_itself);
            folder.create(&me, &folder.root(), b"a", exclusive(0xff)).await.unwrap()
        });
        let folder = ground.open_as(as_itself);
        run(async {
            let root = folder.root();
            let again = folder.create(&me, &root, b"a", exclusive(0xff)).await.unwrap();
            assert!(first.new && !again.new && first.node == again.node);
            assert_eq!(folder.create(&me, &root, b"a", exclusive(1)).await, Err(TreeError::Exists));
            let guarded = New::File(NewFile::Guarded(SetAttributes::default()));
            assert_eq!(folder.create(&me, &root, b"a", guarded).await, Err(TreeError::Exists));
            write(&folder, &first.node, 0, b"12345").await;
            let cut = SetAttributes { size: Some(2), mode: Some(0), ..SetAttributes::default() };
            let unchecked =
                folder.create(&me, &root, b"a", New::File(NewFile::Unchecked(cut))).await.unwrap();
            assert_eq!(
                (unchecked.new, unchecked.attributes.size, unchecked.attributes.mode),
                (false, 2, 0o600)
            );
        });
    });
}

#[test]
fn attributes_are_set_and_guarded_and_each_change_shows() {
    both_ways(|ground, as_itself| {
        let folder = ground.open_as(as_itself);
        let me = Caller::root();
        run(async {
            let node = make(&folder, &folder.root(), b"a").await.node;
            let before = folder.attributes(&node).await.unwrap();
            let set = SetAttributes {
                mode: Some(0o4750),
                size: Some(1 << 20),
                atime: SetTime::To(Time { seconds: -5, nanoseconds: 7 }),
                mtime: SetTime::To(Time { seconds: 1 << 33, nanoseconds: 9 }),
                ..SetAttributes::default()
            };
            let after = folder.set_attributes(&me, &node, &set, Some(before.ctime)).await.unwrap().after;
            assert_eq!((after.mode, after.size), (0o4750, 1 << 20));
            assert_eq!(after.atime, Time { seconds: -5, nanoseconds: 7 });
            assert_eq!(after.mtime, Time { seconds: 1 << 33, nanoseconds: 9 });
            assert_ne!(before.change, after.change);
            let late = folder.set_attributes(&me, &node, &set, Some(before.ctime)).await;
            assert_eq!(late, Err(TreeError::NotSync));
            let mut seen = std::collections::HashSet::new();
            for n in 0..300u64 {
                write(&folder, &node, n, b"x").await;
                assert!(
                    seen.insert(folder.attributes(&node).await.unwrap().change),
                    "write {n} does not show"
                );
            }
        });
    });
}

#[test]
fn all_entries_of_a_large_directory_are_listed_once_while_others_change() {
    both_ways(|ground, as_itself| {
        let folder = ground.open_as(as_itself);
        for n in 0..3000 {
            fs::write(ground.path(&format!("stays {n}")), b"").unwrap();
        }
        run(async {
            let room = tree::DirRoom { bytes: 1500, ..ROOM };
            let (mut all, mut cookie, mut n) = (Vec::new(), 0, 0);
            loop {
                let part = folder.read_dir(&Caller::root(), &folder.root(), cookie, room).await.unwrap();
                for entry in &part.entries {
                    assert!(entry.cookie > 2);
                    let (node, attributes) = entry.node.as_ref().expect("nothing vanishes");
                    assert_eq!(entry.fileid, attributes.fileid);
                    assert_eq!(folder.attributes(node).await.unwrap().fileid, entry.fileid);
                }
                cookie = part.entries.last().map_or(cookie, |entry| entry.cookie);
                all.extend(part.entries.into_iter().map(|entry| entry.name));
                if part.eof {
                    break;
                }
                fs::write(ground.path(&format!("new {n}")), b"").unwrap();
                n += 1;
            }
            all.retain(|name| name.starts_with(b"stays"));
            all.sort();
            let listed = all.len();
            all.dedup();
            assert_eq!((listed, all.len()), (3000, 3000));
        });
    });
}

#[test]
fn ids_stay_good_over_a_restart_and_a_rename_by_somebody_else() {
    both_ways(|ground, as_itself| {
        let (file, inner, deep) = run(async {
            let folder = ground.open_as(as_itself);
            let root = folder.root();
            let inner = make_directory(&folder, &root, b"inner").await.node;
            let deep = make_directory(&folder, &inner, b"deep").await.node;
            (make(&folder, &deep, b"a").await.node, inner, deep)
        });
        fs::write(ground.path("inner/deep/a"), b"12").unwrap();
        fs::rename(ground.path("inner/deep/a"), ground.path("inner/deep/b")).unwrap();
        let folder = ground.open_as(as_itself);
        run(async {
            assert_eq!(read(&folder, &file, 0, 9).await.0, b"12");
            // A move through the server itself.
            let me = Caller::root();
            folder.rename(&me, (&inner, b"deep"), (&folder.root(), b"moved")).await.unwrap();
        });
        drop(folder);
        let folder = ground.open_as(as_itself);
        run(async {
            assert_eq!(read(&folder, &file, 0, 9).await.0, b"12");
            assert_eq!(find(&folder, &folder.root(), b"moved").await.unwrap().node, deep);
            // The number is given to another file, which has another id.
            fs::remove_file(ground.path("moved/b")).unwrap();
            fs::write(ground.path("moved/b"), b"new").unwrap();
            assert_eq!(folder.attributes(&file).await, Err(TreeError::Stale));
            assert_ne!(find(&folder, &deep, b"b").await.unwrap().node, file);
        });
    });
}

/// Ids of files that are old enough are kept, for the next listing.
#[test]
fn listings_show_a_new_file_by_a_new_id() {
    both_ways(|ground, as_itself| {
        fs::write(ground.path("a"), b"old").unwrap();
        std::thread::sleep(Duration::from_millis(1100));
        let folder = ground.open_as(as_itself);
        let root = folder.root();
        run(async {
            let listed = async || list(&folder, &root, ROOM).await[0].node.unwrap().0;
            let old = listed().await;
            assert_eq!(listed().await, old);
            assert_eq!(find(&folder, &root, b"a").await.unwrap().node, old);
            // The file system may use the inode's number again.
            fs::remove_file(ground.path("a")).unwrap();
            fs::write(ground.path("a"), b"new").unwrap();
            let new = listed().await;
            assert_ne!(new, old);
            assert_eq!(find(&folder, &root, b"a").await.unwrap().node, new);
            assert_eq!(read(&folder, &new, 0, 9).await.0, b"new");
            assert_eq!(folder.attributes(&old).await, Err(TreeError::Stale));
        });
    });
}

#[test]
fn a_name_that_was_looked_up_means_what_the_host_says_now() {
    both_ways(|ground, as_itself| {
        let folder = ground.open_as(as_itself);
        let root = folder.root();
        for name in ["a", "b"] {
            fs::write(ground.path(name), name).unwrap();
        }
        run(async {
            let found = async |name: &[u8]| find(&folder, &root, name).await.map(|found| found.node);
            let (a, b) = (found(b"a").await.unwrap(), found(b"b").await.unwrap());
            assert_ne!(a, b);
            fs::write(ground.path("a"), b"longer").unwrap();
            let again = find(&folder, &root, b"a").await.unwrap();
            assert_eq!((again.node, again.attributes.size), (a, 6));
            // All files stay open here.
            fs::rename(ground.path("a"), ground.path("c")).unwrap();
            assert_eq!((found(b"a").await, found(b"c").await), (Err(TreeError::NoEntry), Ok(a)));
            fs::rename(ground.path("b"), ground.path("c")).unwrap();
            assert_eq!((found(b"c").await, found(b"b").await), (Ok(b), Err(TreeError::NoEntry)));
            fs::hard_link(ground.path("c"), ground.path("a")).unwrap();
            assert_eq!(found(b"a").await, Ok(b));
            fs::remove_file(ground.path("c")).unwrap();
            fs::create_dir(ground.path("c")).unwrap();
            let directory = find(&folder, &root, b"c").await.unwrap();
            assert_eq!((directory.attributes.kind, found(b"a").await), (Kind::Directory, Ok(b)));
            fs::remove_dir(ground.path("c")).unwrap();
            std::os::unix::fs::symlink("a", ground.path("c")).unwrap();
            assert_eq!(find(&folder, &root, b"c").await.unwrap().attributes.kind, Kind::Symlink);
            assert_eq!(folder.attributes(&a).await, Err(TreeError::Stale));
        });
    });
}

#[test]
fn long_and_durable_writes_and_holes_are_as_they_should_be() {
    both_ways(|ground, as_itself| {
        let folder = ground.open_as(as_itself);
        let me = Caller::root();
        run(async {
            let node = make(&folder, &folder.root(), b"a").await.node;
            let data: Vec<u8> = (0..3_000_000u32).map(|n| (n / 7) as u8).collect();
            for stability in [Stability::Unstable, Stability::Data, Stability::File] {
                let chain = Buf::from(data.clone()).into();
                let written = folder.write(&me, &node, 5, chain, stability).await.unwrap();
                assert_eq!((written.len, written.stability), (data.len(), stability));
                let committed = folder.commit(&me, &node, 0, 0).await.unwrap();
                assert_eq!(committed.verifier, written.verifier);
            }
            assert_eq!(read(&folder, &node, 5, 4_000_000).await, (data, true));
            folder.deallocate(&me, &node, 1 << 20, 1 << 20).await.unwrap();
            assert_eq!(folder.seek(&me, &node, 0, Contents::Hole).await, Ok(1 << 20));
            assert_eq!(folder.seek(&me, &node, 1 << 20, Contents::Data).await, Ok(2 << 20));
            assert_eq!(folder.seek(&me, &node, 1 << 30, Contents::Data).await, Err(TreeError::NoEntry));
            assert_eq!(read(&folder, &node, 1 << 20, 8).await.0, [0; 8]);
            let grown = folder.allocate(&me, &node, 4 << 20, 4096).await.unwrap();
            assert_eq!(grown.after.size, (4 << 20) + 4096);
            let other = make(&folder, &folder.root(), b"b").await.node;
            assert_eq!(folder.copy(&me, (&node, 5), (&other, 0), 1000, false).await, Ok(1000));
            assert_eq!(read(&folder, &other, 0, 2000).await.0, read(&folder, &node, 5, 1000).await.0);
            assert_eq!(folder.copy(&me, (&node, 1 << 40), (&other, 0), 5, false).await, Ok(0));
            let to_the_end = folder.copy(&me, (&node, 4 << 20), (&other, 3), u64::MAX, false).await;
            assert_eq!(to_the_end, Ok(4096));
            let space = folder.space(&me, &node).await.unwrap();
            assert!(space.bytes >= space.free && space.free >= space.available && space.available > 0);
        });
    });
}

#[test]
fn extended_attributes_are_those_of_the_users_name_space() {
    both_ways(|ground, as_itself| {
        let folder = ground.open_as(as_itself);
        if !folder.limits().extended_attributes {
            return;
        }
        let me = Caller::root();
        run(async {
            let node = make(&folder, &folder.root(), b"a").await.node;
            let none = folder.extended_attribute(&me, &node, b"b").await;
            assert_eq!(none, Err(TreeError::NoAttribute));
            let replaced = folder.set_extended_attribute(&me, &node, b"b", Some(b"1"), Some(false)).await;
            assert_eq!(replaced, Err(TreeError::NoAttribute));
            folder.set_extended_attribute(&me, &node, b"b", Some(b"1"), Some(true)).await.unwrap();
            folder.set_extended_attribute(&me, &node, b"a", Some(b""), None).await.unwrap();
            let again = folder.set_extended_attribute(&me, &node, b"b", Some(b"2"), Some(true)).await;
            assert_eq!(again, Err(TreeError::Exists));
            assert_eq!(folder.extended_attribute(&me, &node, b"b").await, Ok(b"1".to_vec()));
            assert_eq!(folder.extended_attributes(&me, &node).await.unwrap(), [b"a", b"b"]);
            folder.set_extended_attribute(&me, &node, b"b", None, None).await.unwrap();
            assert_eq!(folder.extended_attributes(&me, &node).await.unwrap(), [b"a"]);
        });
    });
}

#[test]
fn each_caller_acts_as_itself_where_the_process_may_do_that() {
    if !is_root() {
        return;
    }
    let ground = Ground::new();
    let folder = ground.open();
    assert_eq!(folder.acts_as(), None);
    assert!(folder.has_handles());
    let (me, other) = (user(1001), user(1002));
    run(async {
        let root = folder.root();
        let file = |mode| New::File(NewFile::Guarded(with_mode(mode)));
        let refused = folder.create(&me, &root, b"a", file(0o600)).await;
        assert_eq!(refused, Err(TreeError::Access), "the folder is root's");
        fs::set_permissions(ground.path(""), fs::Permissions::from_mode(0o1777)).unwrap();
        let a = folder.create(&me, &root, b"a", file(0o600)).await.unwrap();
        assert_eq!((a.attributes.uid, a.attributes.gid), (1001, 1001));
        let about = fs::metadata(ground.path("a")).unwrap();
        assert_eq!((about.uid(), about.gid(), about.mode() & 0o7777), (1001, 1001, 0o600));
        let write =
            |caller: Caller| folder.write(&caller, &a.node, 0, Buf::from(b"12").into(), Stability::File);
        assert_eq!(write(other.clone()).await.map(|w| w.len), Err(TreeError::Access));
        assert_eq!(folder.read(&other, &a.node, 0, 2).await.err(), Some(TreeError::Access));
        write(me.clone()).await.unwrap();
        let removed = folder.remove(&other, &root, b"a", RemovedKind::File).await;
        assert_eq!(removed.err(), Some(TreeError::NotOwner), "the directory is sticky");
        let mode = folder.set_attributes(&other, &a.node, &with_mode(0o777), None).await;
        assert_eq!(mode.err(), Some(TreeError::NotOwner));
        let given = SetAttributes { uid: Some(1002), ..SetAttributes::default() };
        assert_eq!(folder.set_attributes(&me, &a.node, &given, None).await.err(), Some(TreeError::NotOwner));
        // An owner may write its data, whatever the mode is.
        folder.set_attributes(&me, &a.node, &with_mode(0o444), None).await.unwrap();
        write(me.clone()).await.unwrap();
        let granted = folder.access(&me, &a.node, Permissions::ALL).await.unwrap();
        assert_eq!(granted.permissions, Permissions::READ, "it may not be opened for that");
        assert_eq!(write(other.clone()).await.map(|w| w.len), Err(TreeError::Access));
        assert_eq!(folder.read(&other, &a.node, 0, 2).await.unwrap().data.len(), 2);
        let granted = folder.access(&other, &a.node, Permissions::ALL).await.unwrap();
        assert_eq!(granted.permissions, Permissions::READ);

        // A directory that others may not search.
        let private = New::Directory(with_mode(0o700));
        let private = folder.create(&me, &root, b"private", private).await.unwrap().node;
        folder.create(&me, &private, b"x", file(0o666)).await.unwrap();
        assert_eq!(folder.lookup(&other, &private, b"x").await.err(), Some(TreeError::Access));
        assert_eq!(folder.lookup(&other, &private, b"y").await.err(), Some(TreeError::Access));
        assert_eq!(folder.read_dir(&other, &private, 0, ROOM).await.err(), Some(TreeError::Access));
        assert!(folder.lookup(&me, &private, b"x").await.is_ok());

        // Set-user-ID is cleared when a user other than the super-user writes.
        let shared = folder.create(&me, &root, b"shared", file(0o666)).await.unwrap().node;
        folder.set_attributes(&me, &shared, &with_mode(0o4777), None).await.unwrap();
        for (len, caller) in [(10, &other), (200_000, &other)] {
            folder.set_attributes(&me, &shared, &with_mode(0o4777), None).await.unwrap();
            let data = Buf::from(vec![1; len]).into();
            let written = folder.write(caller, &shared, 0, data, Stability::Unstable).await.unwrap();
            assert_eq!(written.file.after.mode, 0o777, "{len} bytes");
        }

        // The super-user makes a file for another user.
        let set = SetAttributes { uid: Some(1002), gid: Some(1002), ..with_mode(0o6755) };
        let given = New::File(NewFile::Guarded(set));
        let given = folder.create(&Caller::root(), &root, b"given", given).await.unwrap().attributes;
        assert_eq!((given.uid, given.gid, given.mode), (1002, 1002, 0o6755));

        // A group by number, and the group of a set-group-ID directory.
        let grouped = Caller { groups: [2000].into(), ..user(1003) };
        let join = SetAttributes { gid: Some(2000), ..SetAttributes::default() };
        let g = folder.create(&grouped, &root, b"g", file(0o640)).await.unwrap().node;
        assert_eq!(folder.set_attributes(&grouped, &g, &join, None).await.unwrap().after.gid, 2000);
        let member = Caller { groups: [2000].into(), ..user(1004) };
        assert!(folder.read(&member, &g, 0, 1).await.is_ok());
        assert!(folder.read(&other, &g, 0, 1).await.is_err());
        let directory = New::Directory(with_mode(0o2777));
        let directory = folder.create(&grouped, &root, b"d", directory).await.unwrap().node;
        let both = SetAttributes { gid: Some(2000), mode: Some(0o2777), ..SetAttributes::default() };
        folder.set_attributes(&grouped, &directory, &both, None).await.unwrap();
        let inherits = folder.create(&me, &directory, b"i", file(0o644)).await.unwrap();
        assert_eq!(inherits.attributes.gid, 2000);
        // The threads keep none of these credentials.
        fs::write(ground.path("by the process"), b"").unwrap();
        assert_eq!(fs::metadata(ground.path("by the process")).unwrap().uid(), 0);
    });
}

#[test]
fn a_file_below_very_many_directories_is_found_after_a_restart() {
    both_ways(|ground, as_itself| {
        let file = run(async {
            let folder = ground.open_as(as_itself);
            let mut directory = folder.root();
            for _ in 0..300 {
                directory = make_directory(&folder, &directory, b"d").await.node;
            }
            make(&folder, &directory, b"a").await.node
        });
        let folder = ground.open_as(as_itself);
        run(async { assert_eq!(folder.attributes(&file).await.unwrap().size, 0) });
    });
}

#[test]
fn cores_share_a_folder_and_its_flushes() {
    both_ways(|ground, as_itself| {
        // So few descriptors that files are closed all the time.
        let options = folder::Options { as_itself, descriptors: Some(100), ..ground.options() };
        let folder = folder::Folder::open(&ground.path(""), &options).unwrap();
        let core = |core: u32| {
            let folder = folder.clone();
            move || {
                run(async {
                    let tasks: Vec<_> = (0..8u32)
                        .map(|task| {
                            let folder = folder.clone();
                            runtime::spawn(async move {
                                let (root, me) = (folder.root(), Caller::root());
                                for n in 0..20u32 {
                                    let name = |what| format!("{what} {core} {task} {n}").into_bytes();
                                    let node = make(&folder, &root, &name("new")).await.node;
                                    let data = Buf::from(n.to_le_bytes().repeat(1000)).into();
                                    let stability = [Stability::Unstable, Stability::Data, Stability::File];
                                    let stability = stability[n as usize % 3];
                                    folder.write(&me, &node, 0, data, stability).await.unwrap();
                                    folder.commit(&me, &node, 0, 0).await.unwrap();
                                    let (old, new) = (name("new"), name("moved"));
                                    folder.rename(&me, (&root, &old), (&root, &new)).await.unwrap();
                                    let whole = n.to_le_bytes().repeat(1000);
                                    assert_eq!(read(&folder, &node, 0, 5000).await.0, whole);
                                    if n % 2 == 0 {
                                        folder.remove(&me, &root, &new, RemovedKind::File).await.unwrap();
                                    }
                                }
                            })
                        })
                        .collect();
                    for task in tasks {
                        task.await.unwrap();
                    }
                });
            }
        };
        std::thread::scope(|threads| {
            let cores: Vec<_> = (0..3).map(|number| threads.spawn(core(number))).collect();
            cores.into_iter().for_each(|core| core.join().unwrap());
        });
        assert_eq!(run(list(&folder, &folder.root(), ROOM)).len(), 3 * 8 * 10);
    });
}

#[test]
fn cached_data_is_read_at_once_whatever_was_asked_for_before() {
    let ground = Ground::new();
    let folder = ground.open();
    run(async {
        let node = make(&folder, &folder.root(), b"a").await.node;
        write(&folder, &node, 0, b"12").await;
        for at in [u64::MAX, 1 << 63, (1 << 63) - 1] {
            assert_eq!(read(&folder, &node, at, 4096).await, (vec![], true));
        }
        let read = folder.read(&Caller::root(), &node, 0, 2);
        assert!(matches!(read, tree::Answer::Ready(_)), "from the page cache");
    });
}

/// An access control list as the kernel keeps it (`posix_acl_xattr.h`): tag, permissions, user or
/// group.
fn list_of(entries: &[(u16, u16, u32)]) -> Vec<u8> {
    let mut list = 2u32.to_le_bytes().to_vec();
    for (tag, permissions, id) in entries {
        list.extend(tag.to_le_bytes());
        list.extend(permissions.to_le_bytes());
        list.extend(id.to_le_bytes());
    }
    list
}

#[test]
fn access_control_lists_of_the_host_are_obeyed() {
    const NONE: u32 = u32::MAX;
    if !is_root() {
        return;
    }
    let ground = Ground::new();
    let folder = ground.open();
    // Owner, user 1002, group, mask, others.
    let list = |user, others| {
        list_of(&[(1, 6, NONE), (2, user, 1002), (4, 0, NONE), (16, 7, NONE), (32, others, NONE)])
    };
    run(async {
        let root = folder.root();
        let file = make(&folder, &root, b"a").await.node;
        write(&folder, &file, 0, b"12").await;
        let flags = rustix::fs::XattrFlags::empty();
        let name = "system.posix_acl_access";
        if rustix::fs::setxattr(ground.path("a"), name, &list(6, 4), flags).is_err() {
            return;
        }
        let read = async |uid| folder.read(&user(uid), &file, 0, 9).await.map(|read| read.data.len());
        let wrote = async |uid| {
            let data = Buf::from(b"x").into();
            folder.write(&user(uid), &file, 0, data, Stability::Unstable).await.map(|written| written.len)
        };
        assert_eq!((read(1002).await, wrote(1002).await), (Ok(2), Ok(1)));
        assert_eq!((read(1003).await, wrote(1003).await), (Ok(2), Err(TreeError::Access)));
        rustix::fs::setxattr(ground.path("a"), name, &list(0, 4), flags).unwrap();
        assert_eq!((read(1002).await, wrote(1002).await), (Err(TreeError::Access), Err(TreeError::Access)));
        let granted = folder.access(&user(1003), &file, Permissions::ALL).await.unwrap();
        assert_eq!(granted.permissions, Permissions::READ);

        // A default list determines the permissions of new files, whatever the umask of the process
        // is.
        let inner = make_directory(&folder, &root, b"inner").await.node;
        let defaults = list_of(&[(1, 7, NONE), (4, 5, NONE), (32, 0, NONE)]);
        rustix::fs::setxattr(ground.path("inner"), "system.posix_acl_default", &defaults, flags).unwrap();
        let new = New::File(NewFile::Guarded(with_mode(0o666)));
        let made = folder.create(&Caller::root(), &inner, b"x", new).await.unwrap();
        assert_eq!(made.attributes.mode, 0o640);
        let set = SetAttributes { uid: Some(1002), ..with_mode(0o4755) };
        let new = New::File(NewFile::Guarded(set));
        let made = folder.create(&Caller::root(), &inner, b"y", new).await.unwrap();
        assert_eq!(made.attributes.mode, 0o4750, "no list has set-user-ID");
        let new = New::File(NewFile::Guarded(with_mode(0o666)));
        let made = folder.create(&Caller::root(), &root, b"x", new).await.unwrap();
        assert_eq!(made.attributes.mode, 0o666, "the mask of the process takes nothing");
    });
}

#[test]
fn a_program_written_through_the_folder_can_be_executed() {
    both_ways(|ground, as_itself| {
        let folder = ground.open_as(as_itself);
        run(async {
            let new = New::File(NewFile::Guarded(with_mode(0o755)));
            let node = folder.create(&Caller::root(), &folder.root(), b"true", new).await.unwrap().node;
            write(&folder, &node, 0, &fs::read("/bin/true").unwrap()).await;
            folder.commit(&Caller::root(), &node, 0, 0).await.unwrap();
            assert!(read(&folder, &node, 0, 4).await.0.starts_with(b"\x7fELF"));
        });
        assert!(std::process::Command::new(ground.path("true")).status().unwrap().success());
    });
}
