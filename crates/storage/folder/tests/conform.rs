//! A folder passes the checks of all trees, on a disk and on tmpfs.

mod common;

use common::{Ground, both_ways, is_root, on_disk, run};
use rustix::mount::{MountFlags, UnmountFlags};
use tree::testing::{Without, conform};

#[test]
fn a_folder_on_a_disk_does_what_trees_do() {
    both_ways(|ground, as_itself| {
        let folder = ground.open_as(as_itself);
        let without = Without { users: as_itself || !is_root(), devices: !is_root() };
        run(conform(&folder, without));
    });
}

#[test]
fn a_folder_on_tmpfs_does_what_trees_do() {
    both_ways(|ground, as_itself| {
        let mounted =
            rustix::mount::mount("none", ground.path(""), "tmpfs", MountFlags::empty(), c"size=64m");
        if mounted.is_err() {
            return;
        }
        let folder = ground.open_as(as_itself);
        run(conform(&folder, Without { users: as_itself, devices: false }));
        drop(folder);
        rustix::mount::unmount(ground.path(""), UnmountFlags::DETACH).unwrap();
    });
}

#[test]
fn a_folder_without_handles_does_what_trees_do_for_each_caller() {
    let ground = Ground::new();
    let layers = on_disk();
    for name in ["lower", "upper", "work"] {
        std::fs::create_dir(layers.path().join(name)).unwrap();
    }
    let layer = |name: &str| layers.path().join(name).display().to_string();
    let options =
        format!("lowerdir={},upperdir={},workdir={}", layer("lower"), layer("upper"), layer("work"));
    let options = std::ffi::CString::new(options).unwrap();
    let flags = MountFlags::empty();
    if rustix::mount::mount("none", ground.path(""), "overlay", flags, options.as_c_str()).is_err() {
        return;
    }
    let folder = ground.open();
    assert!(folder.acts_as().is_none() && !folder.has_handles());
    run(conform(&folder, Without { users: false, devices: false }));
    drop(folder);
    rustix::mount::unmount(ground.path(""), UnmountFlags::DETACH).unwrap();
}
