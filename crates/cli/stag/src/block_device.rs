//! Stable ids of block devices, which do not change over a restart. Reads sysfs and udev's links,
//! and never the device.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// The device's own id: of a volume (device mapper, MD), a disk's worldwide name or serial number,
/// a partition's UUID, a loop device's file. `None` if the system knows none.
pub fn stable_id(path: &Path) -> Option<String> {
    let number = fs::metadata(path).ok()?.rdev();
    let (major, minor) = (rustix::fs::major(number), rustix::fs::minor(number));
    let sysfs = fs::canonicalize(format!("/sys/dev/block/{major}:{minor}")).ok()?;
    of_partition(&sysfs).or_else(|| of_disk(&sysfs)).or_else(|| link(path))
}

fn read(path: PathBuf) -> Option<String> {
    let text = fs::read_to_string(path).ok()?;
    Some(text.trim().to_owned()).filter(|text| !text.is_empty())
}

fn of_disk(sysfs: &Path) -> Option<String> {
    let known = [
        ("loop", "loop/backing_file"),
        ("dm", "dm/uuid"),
        ("md", "md/uuid"),
        ("wwid", "wwid"),
        ("wwid", "device/wwid"),
        ("serial", "serial"),
        ("serial", "device/serial"),
    ];
    known.iter().find_map(|(kind, file)| Some(format!("{kind}:{}", read(sysfs.join(file))?)))
}

fn of_partition(sysfs: &Path) -> Option<String> {
    let number = read(sysfs.join("partition"))?;
    let facts = read(sysfs.join("uevent")).unwrap_or_default();
    match facts.lines().find_map(|line| line.strip_prefix("PARTUUID=")) {
        Some(uuid) => Some(format!("partuuid:{uuid}")),
        None => Some(format!("{}:part{number}", of_disk(sysfs.parent()?)?)),
    }
}

/// udev's name of it.
fn link(path: &Path) -> Option<String> {
    let device = fs::canonicalize(path).ok()?;
    ["by-id", "by-partuuid"].iter().find_map(|folder| {
        let links = fs::read_dir(Path::new("/dev/disk").join(folder)).ok()?;
        let mut names: Vec<String> = links
            .filter_map(Result::ok)
            .filter(|link| fs::canonicalize(link.path()).is_ok_and(|to| to == device))
            .map(|link| link.file_name().to_string_lossy().into_owned())
            .collect();
        names.sort_unstable();
        Some(format!("{folder}:{}", names.first()?))
    })
}
