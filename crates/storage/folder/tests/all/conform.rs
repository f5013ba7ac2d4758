//! A folder passes the checks of all trees, on a disk and on tmpfs.

use crate::common::{Ground, both_ways, is_root, on_disk, run};
use folder::{Folder, Options};
use rustix::mount::{MountFlags, UnmountFlags};
use tree::testing::model::{Operation, compare};
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

/// Pseudo-random numbers (xorshift64).
struct Random(u64);

impl Random {
    fn below(&mut self, n: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % n
    }

    fn byte(&mut self) -> u8 {
        self.below(256) as u8
    }

    fn node(&mut self) -> usize {
        self.below(64) as usize
    }

    /// An offset, often of a page.
    fn at(&mut self) -> u16 {
        if self.below(2) == 0 { self.below(20_000) as u16 } else { 4096 * self.below(5) as u16 }
    }

    fn operation(&mut self) -> Operation {
        let (node, other, name, new) = (self.node(), self.node(), self.byte(), self.byte());
        let (at, place, len) = (self.at(), self.at(), self.at());
        match self.below(20) {
            0..4 => Operation::Create { directory: node, name, kind: new },
            4..6 => Operation::Remove { directory: node, name, kind: new },
            6..9 => Operation::Rename { from: node, name, to: other, new },
            9 => Operation::Link { node, directory: other, name },
            10..13 => Operation::Write { node, at, len, byte: new.max(1) },
            13 => Operation::Read { node, at, len },
            14 => Operation::SetSize { node, size: at },
            15 => Operation::Allocate { node, at, len },
            16 => Operation::Deallocate { node, at, len },
            17 => Operation::Copy { from: node, at, to: other, place, len },
            18 => Operation::SetExtended { node, name, value: (new % 2 == 0).then_some(new) },
            _ => Operation::List { directory: node, bytes: other },
        }
    }
}

#[test]
fn a_folder_does_what_a_plain_model_does() {
    both_ways(|ground, as_itself| {
        // So few descriptors that files are closed all the time. The table forgets second names
        // then.
        let descriptors = Some(if as_itself { 1000 } else { 100 });
        let options = Options { as_itself, asynchronous: true, descriptors, ..ground.options() };
        let without = Without { users: as_itself || !is_root(), devices: !is_root() };
        for seed in 1..=60 {
            let mut random = Random(0x9e37_79b9_7f4a_7c15_u64.wrapping_mul(seed));
            let operations: Vec<_> = (0..150).map(|_| random.operation()).collect();
            println!("seed {seed}");
            let folder = Folder::open(&ground.path(""), &options).unwrap();
            run(compare(&folder, &format!("top {seed}"), &operations, without));
        }
    });
}
