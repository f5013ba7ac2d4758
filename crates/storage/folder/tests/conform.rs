//! A folder passes the checks of all trees, on a disk and on tmpfs.

mod common;

use common::{both_ways, is_root, run};
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
