//! Full and vanished media, a process that is killed, and one that is an ordinary user.

use std::collections::HashMap;
use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::time::Duration;

use crate::common;
use crate::common::{Ground, find, is_root, make, read, run, user, with_mode};
use backing::health::{Kind, State};
use folder::{Folder, Options};
use runtime::Buf;
use rustix::mount::{MountFlags, UnmountFlags};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use tree::{Caller, New, NewFile, Stability, Tree, TreeError};

/// Runs one of these tests again in another process.
fn again(test: &str, path: &Path) -> Command {
    again_from(&std::env::current_exe().expect("a test knows where it is"), test, path)
}

/// The same from a copy of this program.
fn again_from(program: &Path, test: &str, path: &Path) -> Command {
    let mut command = Command::new(program);
    command.arg(format!("troubles::{test}")).args(["--exact", "--nocapture", "--test-threads=1"]);
    command.env("FOLDER_TEST", path);
    command
}

/// Whether that test ran and passed.
fn passed(output: &Output) -> bool {
    output.status.success() && String::from_utf8_lossy(&output.stdout).contains("1 passed")
}

/// The directory that this process was given, if it is one that [`again`] started.
fn given() -> Option<std::path::PathBuf> {
    std::env::var_os("FOLDER_TEST").map(Into::into)
}

#[test]
fn an_ordinary_user_serves_everybody_as_itself() {
    if let Some(directory) = given() {
        let folder = Folder::open(&directory.join("tree"), &Options::new(directory.join("state"))).unwrap();
        assert_eq!(folder.acts_as(), Some(65534));
        assert!(!folder.has_handles());
        return run(async {
            let (root, me) = (folder.root(), user(1234));
            let new = New::File(NewFile::Guarded(with_mode(0o444)));
            let mine = folder.create(&me, &root, b"mine", new).await.unwrap();
            assert_eq!(mine.attributes.uid, 65534);
            // It is read-only by mode, and its maker writes it.
            let data = Buf::from(b"data").into();
            folder.write(&user(5), &mine.node, 0, data, Stability::File).await.unwrap();
            assert_eq!(read(&folder, &mine.node, 0, 9).await.0, b"data");
            let theirs = find(&folder, &root, b"theirs").await.unwrap().node;
            let refused = folder.read(&Caller::root(), &theirs, 0, 1).await.err();
            assert_eq!(refused, Some(TreeError::Access), "what this user may not, no caller may");
            let mode = folder.set_attributes(&Caller::root(), &theirs, &with_mode(0o777), None).await;
            assert_eq!(mode.err(), Some(TreeError::NotOwner));
            let granted = folder.access(&Caller::root(), &theirs, tree::Permissions::ALL).await.unwrap();
            assert_eq!(granted.permissions, tree::Permissions::default());
            let closed = find(&folder, &root, b"closed").await.unwrap().node;
            assert_eq!(find(&folder, &closed, b"x").await.err(), Some(TreeError::Access));
            let listing = folder.read_dir(&Caller::root(), &closed, 0, common::ROOM).await;
            assert_eq!(listing.err(), Some(TreeError::Access));
        });
    }
    if !is_root() {
        return;
    }
    // Directories of the build may be closed to others.
    let directory = tempfile::tempdir_in("/var/tmp").unwrap();
    let nobody = |path: &Path| std::os::unix::fs::chown(path, Some(65534), Some(65534)).unwrap();
    nobody(directory.path());
    for name in ["tree", "state"] {
        fs::create_dir(directory.path().join(name)).unwrap();
        nobody(&directory.path().join(name));
    }
    fs::write(directory.path().join("tree/theirs"), b"root's").unwrap();
    fs::set_permissions(
        directory.path().join("tree/theirs"),
        std::os::unix::fs::PermissionsExt::from_mode(0o600),
    )
    .unwrap();
    fs::create_dir(directory.path().join("tree/closed")).unwrap();
    fs::set_permissions(
        directory.path().join("tree/closed"),
        std::os::unix::fs::PermissionsExt::from_mode(0o700),
    )
    .unwrap();
    // The program too may lie where others cannot execute it.
    let program = directory.path().join("program");
    fs::copy(std::env::current_exe().unwrap(), &program).unwrap();
    let mut command = again_from(&program, "an_ordinary_user_serves_everybody_as_itself", directory.path());
    let output = command.uid(65534).gid(65534).output().unwrap();
    assert!(passed(&output), "{}", String::from_utf8_lossy(&output.stderr));
}

/// A client whose create has failed sends it again, and would find a file that it has not made.
#[test]
fn a_create_without_a_descriptor_to_spare_leaves_no_file() {
    if let Some(directory) = given() {
        let folder = Folder::open(&directory.join("tree"), &Options::new(directory.join("state"))).unwrap();
        return run(async {
            let root = folder.root();
            make(&folder, &root, b"first").await;
            let few = Rlimit { current: Some(100), ..getrlimit(Resource::Nofile) };
            setrlimit(Resource::Nofile, few).unwrap();
            let mut taken = Vec::new();
            while let Ok(file) = fs::File::open("/dev/null") {
                taken.push(file);
            }
            let set = with_mode(0o700);
            let links = New::Symlink(b"to", set);
            let file = New::File(NewFile::Guarded(set));
            for (name, new) in [("directory", New::Directory(set)), ("link", links), ("file", file)] {
                // A file is opened twice: once as it is made.
                if name == "file" {
                    taken.pop();
                }
                let failed = folder.create(&Caller::root(), &root, name.as_bytes(), new).await.err();
                assert_eq!(failed, Some(TreeError::Delay));
                assert!(directory.join("tree").join(name).symlink_metadata().is_err(), "{name}");
            }
            drop(taken);
            make(&folder, &root, b"file").await;
        });
    }
    let ground = Ground::new();
    let test = "a_create_without_a_descriptor_to_spare_leaves_no_file";
    let output = again(test, ground.directory.path()).output().unwrap();
    assert!(passed(&output), "{}", String::from_utf8_lossy(&output.stderr));
}

/// A new tmpfs of this size at `path`; false where none can be had.
fn mount(path: &Path, options: &std::ffi::CStr) -> bool {
    fs::create_dir_all(path).unwrap();
    is_root() && rustix::mount::mount("none", path, "tmpfs", MountFlags::empty(), options).is_ok()
}

#[test]
fn a_full_medium_is_reported_and_recovers() {
    let ground = Ground::new();
    if !mount(&ground.path(""), c"size=1m,nr_inodes=20") {
        return;
    }
    let folder = ground.open();
    let me = Caller::root();
    run(async {
        let root = folder.root();
        let node = make(&folder, &root, b"a").await.node;
        for len in [60_000usize, 500_000] {
            let mut at = 0;
            let error = loop {
                let data = Buf::from(vec![1; len]).into();
                match folder.write(&me, &node, at, data, Stability::File).await {
                    Ok(written) => at += written.len as u64,
                    Err(error) => break error,
                }
                assert!(at <= 1 << 20);
            };
            assert_eq!(error, TreeError::NoSpace);
        }
        assert!(!folder.health().look().problems.is_empty());
        let new = |n: u32| format!("file {n}").into_bytes();
        let mut made = 0;
        let error = loop {
            let file = New::File(NewFile::Guarded(with_mode(0o600)));
            match folder.create(&me, &root, &new(made), file).await {
                Ok(_) => made += 1,
                Err(error) => break error,
            }
            assert!(made < 30);
        };
        assert_eq!(error, TreeError::NoSpace);
        folder.remove(&me, &root, b"a", tree::RemovedKind::File).await.unwrap();
        let file = find(&folder, &root, b"file 0").await.unwrap().node;
        // A child that another test has just forked has all descriptors until its exec: what was
        // removed is not free before that.
        let mut tries = 0..1000;
        loop {
            let data = Buf::from(vec![1; 500_000]).into();
            match folder.write(&me, &file, 0, data, Stability::File).await {
                Ok(_) => break,
                Err(error) => assert!(error == TreeError::NoSpace && tries.next().is_some(), "{error:?}"),
            }
            runtime::sleep(Duration::from_millis(10)).await;
        }
    });
    drop(folder);
    rustix::mount::unmount(ground.path(""), UnmountFlags::DETACH).unwrap();
}

/// An ext4 file system in a file, mounted until it is dropped.
struct Ext4(std::path::PathBuf);

impl Ext4 {
    /// One of `size` bytes in a sparse file at `image`; `None` where none can be had.
    fn mount(image: &Path, at: std::path::PathBuf, size: u64, more: &[&str]) -> Option<Self> {
        fs::create_dir_all(&at).ok()?;
        fs::File::create(image).ok()?.set_len(size).ok()?;
        let run = |command: &mut Command| command.output().ok().filter(|output| output.status.success());
        run(Command::new("mkfs.ext4").args(["-q", "-E", "root_owner=0:0"]).args(more).arg(image))?;
        run(Command::new("mount").args(["-o", "loop"]).arg(image).arg(&at))?;
        Some(Self(at))
    }
}

impl Drop for Ext4 {
    fn drop(&mut self) {
        let _ = rustix::mount::unmount(&self.0, UnmountFlags::DETACH);
    }
}

#[test]
fn a_failed_flush_changes_the_verifier_even_of_a_file_that_was_closed() {
    for is_closed in [false, true] {
        let ground = Ground::new();
        let thin = ground.directory.path().join("thin");
        if !mount(&thin, c"size=12m") {
            return;
        }
        // It promises more than its medium has.
        let Some(mounted) = Ext4::mount(&thin.join("image"), ground.path(""), 64 << 20, &[]) else { return };
        let options = Options { descriptors: Some(100), ..ground.options() };
        let folder = Folder::open(&ground.path(""), &options).unwrap();
        let me = Caller::root();
        run(async {
            let root = folder.root();
            let node = make(&folder, &root, b"file").await.node;
            let quiet = make(&folder, &root, b"quiet").await.node;
            for n in 0..1000 {
                fs::write(ground.path(&format!("other {n}")), b"").unwrap();
            }
            let mut verifier = 0;
            for at in 0..16 {
                let data = Buf::from(vec![7; 1 << 20]).into();
                let written = folder.write(&me, &node, at << 20, data, Stability::Unstable).await.unwrap();
                verifier = written.verifier;
            }
            // A commit of a file with nothing to flush returns the verifier.
            let verifier_now = async || folder.commit(&me, &quiet, 0, 0).await.unwrap().verifier;
            assert_eq!(verifier_now().await, verifier);
            if is_closed {
                // So many other files are opened that this one is flushed, to be closed.
                for n in 0..1000 {
                    find(&folder, &root, format!("other {n}").as_bytes()).await.unwrap();
                }
                for _ in 0..1000 {
                    if verifier_now().await != verifier {
                        break;
                    }
                    runtime::sleep(std::time::Duration::from_millis(5)).await;
                }
            } else {
                let committed = folder.commit(&me, &node, 0, 0).await;
                assert!(matches!(committed, Err(TreeError::Io(_) | TreeError::NoSpace)), "{committed:?}");
            }
            assert_ne!(verifier_now().await, verifier);
            assert!(!folder.health().look().problems.is_empty());
        });
        drop((folder, mounted));
        rustix::mount::unmount(&thin, UnmountFlags::DETACH).unwrap();
    }
}

#[test]
fn the_super_users_reserve_is_not_given_to_others() {
    let ground = Ground::new();
    let image = ground.directory.path().join("image");
    let half = ["-m", "50"];
    let Some(_mounted) = Ext4::mount(&image, ground.path(""), 32 << 20, &half) else { return };
    let folder = ground.open();
    let (user, me) = (user(1000), Caller::root());
    run(async {
        let file = New::File(NewFile::Guarded(with_mode(0o666)));
        let node = folder.create(&me, &folder.root(), b"a", file).await.unwrap().node;
        let mut at = 0;
        let mut fill = async |caller: &Caller, len: usize| loop {
            let data = Buf::from(vec![7; len]).into();
            match folder.write(caller, &node, at, data, Stability::Data).await {
                Ok(written) => at += written.len as u64,
                Err(error) => break (error, at),
            }
        };
        // At once, and by the ring.
        let (error, half) = fill(&user, 32 << 10).await;
        assert_eq!(error, TreeError::NoSpace);
        let (error, again) = fill(&user, 1 << 20).await;
        assert_eq!((error, again), (TreeError::NoSpace, half));
        let space = folder.space(&user, &node).await.unwrap();
        assert!(space.available < 1 << 20 && space.free > 8 << 20, "{space:?}");
        let (error, all) = fill(&me, 256 << 10).await;
        assert_eq!(error, TreeError::NoSpace);
        assert!(all > half + (8 << 20), "{half} {all}");
    });
}

#[test]
fn a_folder_that_vanishes_makes_all_stale_and_says_so() {
    common::both_ways(|ground, as_itself| {
        let folder = ground.open_as(as_itself);
        run(async {
            let root = folder.root();
            let node = make(&folder, &root, b"a").await.node;
            fs::remove_dir_all(ground.path("")).unwrap();
            assert_eq!(folder.attributes(&root).await, Err(TreeError::Stale));
            assert_eq!(folder.attributes(&node).await, Err(TreeError::Stale));
            assert_eq!(find(&folder, &root, b"a").await.err(), Some(TreeError::Stale));
            let made = folder.create(&Caller::root(), &root, b"b", New::Directory(with_mode(0o700))).await;
            assert_eq!(made.err(), Some(TreeError::Stale));
            assert_eq!(kinds(&folder), [Kind::Unusable]);
            assert_eq!(folder.health().look().state, State::Failed);
        });
    });
}

/// The kinds of the folder's problems.
fn kinds(folder: &Folder) -> Vec<Kind> {
    folder.health().look().problems.iter().map(|problem| problem.kind).collect()
}

#[test]
fn a_look_finds_a_folder_that_was_moved_replaced_or_removed() {
    common::both_ways(|ground, as_itself| {
        let folder = ground.open_as(as_itself);
        let (here, away) = (ground.path(""), ground.directory.path().join("away"));
        let after = |change: &dyn Fn()| {
            change();
            folder.inspect();
            kinds(&folder)
        };
        assert_eq!(after(&|| ()), []);
        assert_eq!(after(&|| fs::rename(&here, &away).unwrap()), [Kind::Replaced]);
        assert_eq!(after(&|| fs::create_dir(&here).unwrap()), [Kind::Replaced], "another one is there");
        let back = || {
            fs::remove_dir(&here).unwrap();
            fs::rename(&away, &here).unwrap();
        };
        assert_eq!(after(&back), []);
        assert_eq!(after(&|| fs::remove_dir_all(&here).unwrap()), [Kind::Unusable]);
        folder.health().acknowledge().unwrap();
        assert_eq!(after(&|| fs::create_dir(&here).unwrap()), [Kind::Unusable], "another one is there");
    });
}

/// A process that creates and writes, and prints the answers that it got.
fn work(directory: &Path) {
    let as_itself = directory.ends_with("itself");
    let options = Options { as_itself, ..Options::new(directory.join("state")) };
    let folder = Folder::open(&directory.join("tree"), &options).unwrap();
    run(async {
        let (root, me) = (folder.root(), Caller::root());
        let mut out = std::io::stdout();
        writeln!(out, "begin").unwrap();
        for n in 0u32.. {
            let name = format!("file {n}");
            let file = New::File(NewFile::Guarded(with_mode(0o600)));
            let made = folder.create(&me, &root, name.as_bytes(), file).await.unwrap();
            let data = Buf::from(n.to_le_bytes().repeat(100)).into();
            folder.write(&me, &made.node, 0, data, Stability::File).await.unwrap();
            let id: String = made.node.bytes().iter().map(|byte| format!("{byte:02x}")).collect();
            writeln!(out, "made {n} {id}").unwrap();
            if n % 3 == 2 {
                let moved = format!("moved {n}");
                folder.rename(&me, (&root, name.as_bytes()), (&root, moved.as_bytes())).await.unwrap();
                writeln!(out, "moved {n} {id}").unwrap();
            }
        }
    });
}

#[test]
fn what_was_answered_is_there_after_a_kill_at_any_moment() {
    if let Some(directory) = given() {
        return work(&directory);
    }
    for (round, folder_name) in ["callers", "itself", "callers", "itself"].into_iter().enumerate() {
        let ground = common::on_disk();
        let directory = ground.path().join(folder_name);
        fs::create_dir_all(directory.join("tree")).unwrap();
        let mut child = again("what_was_answered_is_there_after_a_kill_at_any_moment", &directory)
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut answered = HashMap::new();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let mut kill_after = 20 + 7 * round;
        while let Some(Ok(line)) = lines.next() {
            // The harness writes lines of its own.
            let words: Vec<&str> = line.split(' ').collect();
            if let [what @ ("made" | "moved"), number, id] = words[..] {
                answered.insert(number.parse::<u32>().unwrap(), (what == "moved", id.to_owned()));
            }
            kill_after = kill_after.saturating_sub(1);
            if kill_after == 0 {
                child.kill().unwrap();
            }
        }
        child.wait().unwrap();
        assert!(answered.len() > 5, "{answered:?}");
        let options = Options { as_itself: folder_name == "itself", ..Options::new(directory.join("state")) };
        let folder = Folder::open(&directory.join("tree"), &options).unwrap();
        run(async {
            for (n, (moved, id)) in &answered {
                let bytes: Vec<u8> = (0..id.len() / 2)
                    .map(|i| u8::from_str_radix(&id[2 * i..2 * i + 2], 16).unwrap())
                    .collect();
                let id = tree::NodeId::new(&bytes).unwrap();
                assert_eq!(
                    read(&folder, &id, 0, 1000).await.0,
                    n.to_le_bytes().repeat(100),
                    "the id stays good"
                );
                let name = if *moved { format!("moved {n}") } else { format!("file {n}") };
                let found = find(&folder, &folder.root(), name.as_bytes()).await;
                // The last one may have been moved without an answer.
                assert!(found.is_ok_and(|found| found.node == id) || !moved && n % 3 == 2, "{name}");
            }
        });
    }
}

/// Lets this thread, and those that it starts, reach this directory alone. False where that cannot
/// be.
fn confine(directory: &Path) -> bool {
    use landlock::{
        ABI, Access, AccessFs, PathBeneath, PathFd, Ruleset, RulesetAttr, RulesetCreatedAttr, RulesetStatus,
    };
    let all = AccessFs::from_all(ABI::V2);
    let rule = PathBeneath::new(PathFd::new(directory).unwrap(), all);
    let ruleset = Ruleset::default().handle_access(AccessFs::from_all(ABI::V2)).unwrap().create().unwrap();
    let status = ruleset.add_rule(rule).unwrap().restrict_self().unwrap();
    status.ruleset == RulesetStatus::FullyEnforced
}

#[test]
fn a_confined_process_reads_files_after_a_restart() {
    let test = "a_confined_process_reads_files_after_a_restart";
    if let Some(directory) = given() {
        if !confine(&directory) {
            return;
        }
        let folder = Folder::open(&directory.join("tree"), &Options::new(directory.join("state"))).unwrap();
        assert!(folder.acts_as().is_none() && !folder.has_handles());
        return run(async {
            let kept = directory.join("id");
            if let Ok(id) = fs::read(&kept) {
                let id = tree::NodeId::new(&id).unwrap();
                return assert_eq!(read(&folder, &id, 0, 9).await.0, b"data");
            }
            let node = make(&folder, &folder.root(), b"a").await.node;
            let data = Buf::from(b"data").into();
            folder.write(&Caller::root(), &node, 0, data, Stability::File).await.unwrap();
            fs::write(kept, node.bytes()).unwrap();
        });
    }
    if !is_root() {
        return;
    }
    let ground = Ground::new();
    for _ in 0..2 {
        let output = again(test, ground.directory.path()).output().unwrap();
        assert!(passed(&output), "{}", String::from_utf8_lossy(&output.stderr));
        // The names above the file are forgotten, where that can be asked for.
        let _ = fs::write("/proc/sys/vm/drop_caches", "2");
    }
}
