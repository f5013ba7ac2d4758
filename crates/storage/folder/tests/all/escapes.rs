//! No id and no name of a client leads out of the folder.

use std::fs;
use std::os::unix::fs::symlink;

use crate::common;
use crate::common::{Ground, both_ways, find, is_root, make, make_directory, read, run, with_mode};
use folder::{Folder, OpenError, Options};
use runtime::{Buf, FileHandle};
use rustix::mount::{MountFlags, UnmountFlags};
use tree::{Caller, New, NewFile, NodeId, RemovedKind, SetAttributes, Stability, Tree, TreeError};

#[test]
fn links_are_files_that_only_the_client_follows() {
    both_ways(|ground, as_itself| {
        let folder = ground.open_as(as_itself);
        let secret = ground.directory.path().join("secret");
        fs::write(&secret, b"secret").unwrap();
        let before = fs::metadata(&secret).unwrap().permissions();
        symlink(&secret, ground.path("out")).unwrap();
        symlink("..", ground.path("up")).unwrap();
        symlink("/proc/self/root/etc", ground.path("magic")).unwrap();
        let me = Caller::root();
        run(async {
            let root = folder.root();
            for name in [&b"out"[..], b"up", b"magic"] {
                let link = find(&folder, &root, name).await.unwrap();
                assert_eq!(link.attributes.kind, tree::Kind::Symlink);
                assert_eq!(find(&folder, &link.node, b"secret").await.err(), Some(TreeError::NotDirectory));
                assert_eq!(folder.read(&me, &link.node, 0, 9).await.err(), Some(TreeError::Invalid));
                let data = Buf::from(b"x").into();
                let written = folder.write(&me, &link.node, 0, data, Stability::File).await;
                assert_eq!(written.err(), Some(TreeError::Invalid));
                for file in [NewFile::Unchecked(with_mode(0o777)), NewFile::Guarded(with_mode(0o777))] {
                    let made = folder.create(&me, &root, name, New::File(file)).await;
                    assert_eq!(made.err(), Some(TreeError::Exists));
                }
                let size = SetAttributes { size: Some(0), ..SetAttributes::default() };
                assert!(folder.set_attributes(&me, &link.node, &size, None).await.is_err());
                let owner = SetAttributes { uid: Some(rustix::process::geteuid().as_raw()), ..size };
                let owner = SetAttributes { size: None, ..owner };
                folder.set_attributes(&me, &link.node, &owner, None).await.unwrap();
                assert!(folder.set_attributes(&me, &link.node, &with_mode(0o777), None).await.is_err());
                // A link to a link is a name of the link itself.
                folder.link(&me, &link.node, &root, b"again").await.unwrap();
                assert_eq!(find(&folder, &root, b"again").await.unwrap().node, link.node);
                folder.remove(&me, &root, b"again", RemovedKind::Any).await.unwrap();
            }
        });
        assert_eq!(fs::read(&secret).unwrap(), b"secret");
        assert_eq!(fs::metadata(&secret).unwrap().permissions(), before);
    });
}

#[test]
fn names_are_single_components_and_the_root_is_its_own_parent() {
    both_ways(|ground, as_itself| {
        let folder = ground.open_as(as_itself);
        fs::write(ground.directory.path().join("secret"), b"secret").unwrap();
        let me = Caller::root();
        run(async {
            let root = folder.root();
            let inner = make_directory(&folder, &root, b"inner").await.node;
            let file = make(&folder, &root, b"file").await.node;
            assert_eq!(find(&folder, &root, b"..").await.unwrap().node, root);
            assert_eq!(find(&folder, &root, b".").await.unwrap().node, root);
            assert_eq!(find(&folder, &inner, b"..").await.unwrap().node, root);
            let long = [b'x'; 256];
            let bad = [
                &b""[..],
                b"../secret",
                b"/etc/passwd",
                b"inner/..",
                b"inner/../../secret",
                b"a\0b",
                b"/",
                &long,
            ];
            for name in bad {
                assert!(find(&folder, &root, name).await.is_err());
            }
            for name in bad.into_iter().chain([&b"."[..], b".."]) {
                for new in [
                    New::File(NewFile::Unchecked(with_mode(0o600))),
                    New::Directory(with_mode(0o700)),
                    New::Symlink(b"x", with_mode(0o777)),
                ] {
                    assert!(folder.create(&me, &root, name, new).await.is_err(), "{name:?}");
                }
                assert!(folder.remove(&me, &inner, name, RemovedKind::Any).await.is_err(), "{name:?}");
                assert!(folder.rename(&me, (&inner, name), (&root, b"new")).await.is_err(), "{name:?}");
                assert!(folder.rename(&me, (&root, b"file"), (&inner, name)).await.is_err(), "{name:?}");
                assert!(folder.link(&me, &file, &inner, name).await.is_err(), "{name:?}");
            }
            assert_eq!(find(&folder, &root, b"file").await.unwrap().node, file);
        });
        assert_eq!(fs::read(ground.directory.path().join("secret")).unwrap(), b"secret");
    });
}

#[test]
fn ids_that_are_forged_or_of_another_folder_are_stale() {
    both_ways(|ground, as_itself| {
        let folder = ground.open_as(as_itself);
        let other = Ground::new();
        let other_folder = other.open_as(as_itself);
        run(async {
            let theirs = make(&other_folder, &other_folder.root(), b"theirs").await.node;
            assert_eq!(folder.attributes(&theirs).await, Err(TreeError::Stale));
            assert_eq!(folder.attributes(&other_folder.root()).await, Err(TreeError::Stale));
            let ours = make(&folder, &folder.root(), b"ours").await.node;
            for byte in 0..ours.bytes().len() {
                let mut forged = ours.bytes().to_vec();
                forged[byte] ^= 1;
                assert_eq!(folder.attributes(&NodeId::new(&forged).unwrap()).await, Err(TreeError::Stale));
            }
            for len in 0..ours.bytes().len() {
                let cut = NodeId::new(&ours.bytes()[..len]).unwrap();
                assert_eq!(folder.attributes(&cut).await, Err(TreeError::Stale));
            }
            // The file system's own handle of a file outside.
            let outside = fs::File::open(other.directory.path()).unwrap();
            let handle = FileHandle::of(std::os::fd::AsFd::as_fd(&outside), c"").unwrap();
            let plain = [&[handle.kind() as u8], handle.bytes(), &[0; 8]].concat();
            assert_eq!(folder.attributes(&NodeId::new(&plain).unwrap()).await, Err(TreeError::Stale));
            assert!(folder.attributes(&ours).await.is_ok());
        });
    });
}

#[test]
fn a_directory_that_was_moved_out_leads_nowhere() {
    both_ways(|ground, as_itself| {
        let inner = run(async {
            let folder = ground.open_as(as_itself);
            let inner = make_directory(&folder, &folder.root(), b"inner").await.node;
            make(&folder, &inner, b"file").await;
            fs::rename(ground.path("inner"), ground.directory.path().join("out")).unwrap();
            // It is open still, and the way up is closed.
            assert_eq!(find(&folder, &inner, b"..").await.err(), Some(TreeError::Stale));
            inner
        });
        let folder = ground.open_as(as_itself);
        run(async {
            assert_eq!(folder.attributes(&inner).await, Err(TreeError::Stale));
            fs::rename(ground.directory.path().join("out"), ground.path("back")).unwrap();
            assert_eq!(find(&folder, &folder.root(), b"back").await.unwrap().node, inner);
            assert_eq!(find(&folder, &inner, b"..").await.unwrap().node, folder.root());
        });
    });
}

#[test]
fn what_is_mounted_inside_is_not_entered() {
    if !is_root() {
        return;
    }
    both_ways(|ground, as_itself| {
        let folder = ground.open_as(as_itself);
        fs::create_dir(ground.path("mounted")).unwrap();
        fs::create_dir(ground.path("bound")).unwrap();
        fs::create_dir(ground.path("itself")).unwrap();
        fs::create_dir(ground.directory.path().join("elsewhere")).unwrap();
        // They are open when something is mounted on them.
        run(async {
            for name in [&b"mounted"[..], b"bound", b"itself"] {
                find(&folder, &folder.root(), name).await.unwrap();
            }
        });
        let data: Option<&std::ffi::CStr> = None;
        if rustix::mount::mount("none", ground.path("mounted"), "tmpfs", MountFlags::empty(), data).is_err() {
            return;
        }
        let bound =
            rustix::mount::mount_bind(ground.directory.path().join("elsewhere"), ground.path("bound"));
        let itself = rustix::mount::mount_bind(ground.path("itself"), ground.path("itself"));
        fs::write(ground.path("mounted/file"), b"x").unwrap();
        run(async {
            let root = folder.root();
            for entry in common::list(&folder, &root, common::ROOM).await {
                assert_eq!(entry.node, None, "{:?}", entry.name);
            }
            for name in [&b"mounted"[..], b"bound", b"itself"] {
                assert_eq!(find(&folder, &root, name).await.err(), Some(TreeError::Access));
                let removed = folder.remove(&Caller::root(), &root, name, RemovedKind::Any).await;
                assert_eq!(removed.err(), Some(TreeError::Access));
            }
        });
        bound.and(itself).unwrap();
        for name in ["mounted", "bound", "itself"] {
            rustix::mount::unmount(ground.path(name), UnmountFlags::DETACH).unwrap();
        }
    });
}

#[test]
fn a_folder_is_served_by_one_process_at_a_time() {
    let ground = Ground::new();
    run(async {
        let first = ground.open();
        let options = Options::new(ground.path("../state"));
        let second = Folder::open(&ground.path(""), &options);
        assert!(matches!(second, Err(OpenError::InUse(_))), "{:?}", second.err());
        drop(first);
        Folder::open(&ground.path(""), &options).unwrap();
    });
}

#[test]
fn the_state_directory_may_not_lie_in_the_folder() {
    let ground = Ground::new();
    let options = Options::new(ground.path("state"));
    let opened = Folder::open(&ground.path(""), &options);
    assert!(matches!(opened, Err(OpenError::StateInside(_))));
    run(async {
        let folder = ground.open();
        assert_eq!(
            read(&folder, &make(&folder, &folder.root(), b"a").await.node, 0, 1).await,
            (vec![], true)
        );
    });
}
