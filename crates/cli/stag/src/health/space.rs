//! Room of the file systems under units and exports, and of exports in memory: used, free and
//! promised. Queries the system and returns numbers; decides when low room deserves a warning.

use std::collections::{BTreeMap, HashMap};
use std::fs::Metadata;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::{Medium, Member, Served};
use crate::unit::Backing;
use crate::units::{OpenKind, Place, place};

/// A file system at least this full, per cent, deserves a warning.
pub const WARN_PERCENT: f64 = 90.0;
/// After a warning, it must have been less full than this, per cent, before the next.
const CALM_PERCENT: f64 = 88.0;
/// A file system with less free than this, per cent, counts as full.
const FULL_PERCENT: f64 = 1.0;

/// A file system that units or exports lie on, or an export in memory.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct FileSystem {
    /// Its mount point; `export NAME` for an export in memory.
    pub mount: String,
    /// Bytes.
    pub size: u64,
    /// Bytes in use, by anything.
    pub used: u64,
    /// Bytes that the daemon may still take.
    pub free: u64,
    /// Used part of used and available bytes, per cent.
    pub used_percent: f64,
    /// Bytes promised to its units.
    pub provisioned: u64,
    /// Bytes that its units take.
    pub allocated: u64,
    /// Bytes that its units may still allocate, beyond the free ones.
    pub overcommitted: u64,
    /// Whether files of an export may take all of it.
    pub exported: bool,
    /// `ok`, `warning` or `critical`.
    pub state: Level,
}

/// Severity.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Level {
    #[default]
    Ok,
    Warning,
    Critical,
}

#[derive(Clone, Debug, Default, PartialEq)]
pub struct Spaces {
    pub file_systems: Vec<FileSystem>,
    /// Bytes that units take, where that can be said.
    pub used: HashMap<Place, u64>,
}

impl FileSystem {
    /// Computes the other fields from the measured ones: `size`, `used`, `free`, `provisioned`,
    /// `allocated`, `exported`.
    fn judged(mut self) -> Self {
        let most = self.used.saturating_add(self.free);
        self.used_percent =
            if most == 0 { 0.0 } else { (self.used as f64 / most as f64 * 1000.0).round() / 10.0 };
        let outstanding = self.provisioned.saturating_sub(self.allocated);
        self.overcommitted = outstanding.saturating_sub(self.free);
        // If all promised bytes are allocated, no write of a unit needs more.
        self.state = match self.used_percent {
            _ if outstanding == 0 && !self.exported => Level::Ok,
            percent if percent > 100.0 - FULL_PERCENT => Level::Critical,
            percent if percent >= WARN_PERCENT => Level::Warning,
            _ => Level::Ok,
        };
        self
    }
}

/// Measures the file systems of all served media. Blocks on them.
pub fn measure(members: &[Member<'_>]) -> Spaces {
    let mut spaces = Spaces::default();
    // Subvolumes of Btrfs have device numbers of their own; their mount's is that of them all.
    let mut by_device: BTreeMap<String, FileSystem> = BTreeMap::new();
    let mounts = std::fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    let mut memory = Vec::new();
    for member in members {
        if let Medium::Memory(tree, size, exported) = member.medium {
            let used = tree.used();
            let (mount, free) = (member.served.to_string(), size.saturating_sub(used));
            memory.push(FileSystem { mount, size, used, free, exported, ..FileSystem::default() });
            continue;
        }
        let Some(found) = footprint(member.medium) else { continue };
        if let Served::Unit { target, lun } = &member.served {
            spaces.used.insert(place(target, *lun), found.allocated);
        }
        if found.about.file_type().is_block_device() {
            continue;
        }
        let (mount, device) = mount_of(found.path, &mounts)
            .unwrap_or_else(|| (found.path.to_owned(), found.about.dev().to_string()));
        let system = by_device.entry(device).or_insert_with(|| look(found.path, &mount));
        system.provisioned += found.provisioned;
        system.allocated += found.allocated;
        system.exported |= found.exported;
    }
    spaces.file_systems = by_device.into_values().chain(memory).map(FileSystem::judged).collect();
    spaces
}

/// A medium's path and metadata, and its part of [`FileSystem`].
struct Footprint<'a> {
    path: &'a Path,
    about: Metadata,
    provisioned: u64,
    allocated: u64,
    exported: bool,
}

fn footprint(medium: Medium<'_>) -> Option<Footprint<'_>> {
    let unit = match medium {
        Medium::Unit(unit) => unit,
        Medium::Closed(_) | Medium::Memory(..) => return None,
        Medium::Folder(folder, exported) => {
            let (path, about) = (folder.path(), std::fs::metadata(folder.path()).ok()?);
            return Some(Footprint { path, about, provisioned: 0, allocated: 0, exported });
        }
    };
    let path = unit.spec.backing.path()?;
    let about = std::fs::metadata(path).ok()?;
    let (provisioned, allocated) = match (&unit.kind, &unit.spec.backing) {
        (OpenKind::Disk(disk), Backing::Path(_)) => {
            let size = disk.opened.store.size();
            let allocated = if about.is_file() { about.blocks() * 512 } else { size };
            (if disk.opened.store.writable() { size } else { allocated }, allocated)
        }
        (OpenKind::Objects(unit), _) => {
            let files = ["arena", "journal", "metadata.redb"].map(|file| std::fs::metadata(path.join(file)));
            let allocated = files.iter().flatten().map(|about| about.blocks() * 512).sum();
            (unit.store().root().capacity.max(allocated), allocated)
        }
        _ => return None,
    };
    Some(Footprint { path, about, provisioned, allocated, exported: false })
}

fn look(path: &Path, mount: &Path) -> FileSystem {
    let mount = mount.display().to_string();
    let Ok(system) = rustix::fs::statvfs(path) else { return FileSystem { mount, ..FileSystem::default() } };
    let bytes = |blocks: u64| blocks.saturating_mul(system.f_frsize);
    FileSystem {
        mount,
        size: bytes(system.f_blocks),
        used: bytes(system.f_blocks.saturating_sub(system.f_bfree)),
        free: bytes(system.f_bavail),
        ..FileSystem::default()
    }
}

/// The nearest mount point above `path`, and its device (MAJOR:MINOR), of the lines of
/// /proc/self/mountinfo.
fn mount_of(path: &Path, mounts: &str) -> Option<(PathBuf, String)> {
    let real = std::fs::canonicalize(path).ok()?;
    // ID PARENT MAJOR:MINOR ROOT MOUNT …, with \040 for a space.
    let places = mounts.lines().filter_map(|line| {
        let fields: Vec<&str> = line.split(' ').take(5).collect();
        let at = PathBuf::from(fields.get(4)?.replace("\\040", " "));
        real.starts_with(&at).then(|| (at, fields[2].to_owned()))
    });
    places.max_by_key(|(at, _)| at.as_os_str().len())
}

/// The file systems that were warned about. Each is warned about once, until it has room again.
#[derive(Debug, Default)]
pub struct Watermarks(std::collections::HashSet<String>);

impl Watermarks {
    /// The mounts of those that were warned about.
    pub fn warned(&self) -> impl Iterator<Item = &str> {
        self.0.iter().map(String::as_str)
    }

    /// The file systems of `systems` to warn about now.
    pub fn news<'a>(&mut self, systems: &'a [FileSystem]) -> Vec<&'a FileSystem> {
        let warned = &mut self.0;
        let mut news = Vec::new();
        for system in systems {
            if system.state >= Level::Warning {
                if warned.insert(system.mount.clone()) {
                    news.push(system);
                }
            } else if system.used_percent < CALM_PERCENT {
                warned.remove(&system.mount);
            }
        }
        news
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn system(used: u64, provisioned: u64, allocated: u64) -> FileSystem {
        let (size, free) = (1000, 1000 - used);
        let mount = "/srv".into();
        FileSystem { mount, size, used, free, provisioned, allocated, ..FileSystem::default() }.judged()
    }

    #[test]
    fn a_file_system_that_units_may_fill_is_worth_a_warning_at_90_per_cent() {
        assert_eq!(system(899, 2000, 500).state, Level::Ok);
        assert_eq!(system(900, 2000, 500).state, Level::Warning);
        assert_eq!(system(995, 2000, 500).state, Level::Critical);
        assert_eq!(system(995, 500, 500).state, Level::Ok, "all of it is allocated already");
        assert_eq!(system(0, 0, 0).used_percent, 0.0);
    }

    #[test]
    fn a_file_system_that_is_exported_may_fill_up_whatever_its_units_take() {
        let state = |used, exported| FileSystem { exported, ..system(used, 500, 500) }.judged().state;
        assert_eq!(
            [899, 900, 995].map(|used| state(used, true)),
            [Level::Ok, Level::Warning, Level::Critical]
        );
        assert_eq!([899, 900, 995].map(|used| state(used, false)), [Level::Ok; 3]);
    }

    #[test]
    fn overcommitted_is_what_was_promised_and_is_not_there() {
        assert_eq!(system(500, 800, 400).overcommitted, 0);
        assert_eq!(system(500, 1000, 400).overcommitted, 100);
        assert_eq!(system(500, 400, 600).overcommitted, 0, "metadata makes a file larger than its size");
    }

    #[test]
    fn a_warning_is_given_once_until_there_was_more_room_again() {
        let mut marks = Watermarks::default();
        let mut warned = |used| !marks.news(&[system(used, 2000, 500)]).is_empty();
        let told: Vec<bool> = [800, 900, 899, 905, 885, 901, 879, 900, 950].map(&mut warned).to_vec();
        assert_eq!(told, [false, true, false, false, false, false, false, true, false]);
    }

    #[test]
    fn a_path_belongs_to_the_nearest_and_newest_mount_above_it() {
        let directory = tempfile::tempdir().unwrap();
        let top = std::fs::canonicalize(directory.path()).unwrap();
        let inner = top.join("a disk/subvolume");
        std::fs::create_dir_all(&inner).unwrap();
        let at = top.display();
        let mounts = format!(
            "1 0 8:1 / / rw\n2 1 8:2 / {at} rw\n3 1 0:40 / {at} rw\n4 1 0:41 / {at}/a\\040disk rw\n\
             5 1 0:42 / {at}/a\\040disk/sub rw\n"
        );
        let found = |path: &Path| mount_of(path, &mounts).unwrap();
        assert_eq!(found(&inner), (top.join("a disk"), "0:41".to_owned()));
        assert_eq!(found(&top), (top.clone(), "0:40".to_owned()));
    }

    #[test]
    fn the_file_system_of_a_unit_is_found_with_its_mount() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("a.img");
        let spec = crate::unit::parse(&format!("{},size=1M", path.display())).unwrap();
        let lun = crate::config::Lun { lun: 3, spec };
        let target = crate::config::Target {
            iqn: "iqn.2026-01.org.example:t".into(),
            units: vec![lun],
            ..Default::default()
        };
        let config = crate::config::Config { targets: vec![target], ..Default::default() };
        let none = crate::units::Units::default();
        let units = none.next(&config, &none.fates(&config, false)).unwrap();
        let trees = crate::exports::Trees::default().next(&config).unwrap();
        let spaces = measure(&super::super::members(&config, &units, &trees));
        assert_eq!(spaces.file_systems.len(), 1);
        let found = &spaces.file_systems[0];
        assert!(
            found.size > 0 && found.provisioned == 1 << 20 && path.starts_with(&found.mount),
            "{found:?}"
        );
        assert_eq!(spaces.used.len(), 1);
    }
}
