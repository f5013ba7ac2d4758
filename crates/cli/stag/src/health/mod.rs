//! The health of units, exports and their file systems: the served media, the marks of failed
//! flushes, the room, and the thread that checks them. The data path never comes here: stores and
//! folders report to their `backing::Health`, which this reads.

pub mod monitor;
pub mod space;

use std::collections::HashMap;
use std::path::Path;
use std::sync::Arc;

use backing::Health;
use backing::health::{self as mark, Mark};
use folder::Folder;
use memory_tree::MemoryTree;
use serde::{Deserialize, Serialize};

use crate::config::Config;
use crate::exports::{self, Trees};
use crate::identity::{beside, device_key, is_device};
use crate::state;
use crate::unit::{Backing, UnitSpec};
use crate::units::{OpenKind, OpenUnit, Place, Units, name};

/// Name of marks: the ending of one beside a file, and the folder of those in the state directory.
const FLUSH_FAILED: &str = "flush-failed";

/// A failed flush, as one daemon reports it to the next.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CarriedMark {
    errno: i32,
    unix_s: u64,
}

/// The unit or the export by which a medium is served: the members of a problem in `status`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Served {
    Unit { target: String, lun: u16 },
    Export { export: String },
}

impl std::fmt::Display for Served {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Unit { target, lun } => write!(f, "{target} LUN {lun}"),
            Self::Export { export } => write!(f, "export {export}"),
        }
    }
}

/// A served medium.
pub struct Member<'a> {
    pub served: Served,
    /// Its path, or `mem:SIZE`, as configured.
    pub path: String,
    pub medium: Medium<'a>,
}

#[derive(Clone, Copy)]
pub enum Medium<'a> {
    Unit(&'a OpenUnit),
    /// A unit that is configured and not open.
    Closed(&'a Arc<Health>),
    /// A folder, and whether a client may write to it.
    Folder(&'a Folder, bool),
    /// A tree in memory, its most bytes, and whether a client may write to it.
    Memory(&'a MemoryTree, u64, bool),
}

impl<'a> Medium<'a> {
    /// Its health; `None` if it cannot fail.
    pub fn health(self) -> Option<&'a Arc<Health>> {
        match self {
            Self::Unit(unit) => of(unit),
            Self::Closed(health) => Some(health),
            Self::Folder(folder, _) => Some(folder.health()),
            Self::Memory(..) => None,
        }
    }

    /// Checks that the medium is still the one that was opened, and reports to its health. Tells
    /// initiators of a size that has changed.
    pub fn inspect(self) {
        match self {
            Self::Unit(unit) => match &unit.kind {
                OpenKind::Disk(disk) => {
                    disk.opened.store.inspect();
                    disk.unit.revalidate();
                }
                OpenKind::Objects(unit) => unit.store().inspect(),
                OpenKind::Shared(unit) => unit.unit.disk().iter().for_each(|disk| disk.revalidate()),
            },
            Self::Closed(_) | Self::Memory(..) => {}
            Self::Folder(folder, _) => folder.inspect(),
        }
    }
}

/// All served media, in the configuration's order. A folder of several exports is there once, as
/// the first of them.
pub fn members<'a>(config: &'a Config, units: &'a Units, trees: &'a Trees) -> Vec<Member<'a>> {
    let mut members = Vec::new();
    for target in &config.targets {
        let iqn = name(&target.iqn);
        for lun in &target.units {
            let place = (iqn.clone(), lun.lun);
            let open = units.open.get(&place).map(|open| Medium::Unit(open));
            if let Some(medium) = open.or_else(|| units.closed.get(&place).map(Medium::Closed)) {
                members.push(Member {
                    served: Served::Unit { target: target.iqn.clone(), lun: lun.lun },
                    path: lun.spec.backing.to_string(),
                    medium,
                });
            }
        }
    }
    // The first export of each tree, and whether a client may write through any of them.
    let (mut shown, mut places) = (Vec::new(), HashMap::new());
    for export in &config.exports {
        let at = *places.entry(exports::asked(export)).or_insert(shown.len());
        match shown.get_mut(at) {
            None => shown.push((export, export.is_writable())),
            Some((_, is_writable)) => *is_writable |= export.is_writable(),
        }
    }
    members.extend(shown.into_iter().filter_map(|(export, is_writable)| {
        Some(Member {
            served: Served::Export { export: export.name.clone() },
            path: export.shown.to_string(),
            medium: trees.medium(export, is_writable)?,
        })
    }));
    members
}

/// The health of an open unit; `None` for a store that cannot fail.
pub fn of(unit: &OpenUnit) -> Option<&Arc<Health>> {
    match &unit.kind {
        OpenKind::Disk(disk) => disk.opened.store.health(),
        OpenKind::Objects(unit) => unit.store().health(),
        OpenKind::Shared(unit) => Some(&unit.health),
    }
}

/// Called when a unit has been opened at `place`: restores a failed flush that was not
/// acknowledged.
pub fn begin(unit: &OpenUnit, (iqn, lun): &Place) {
    let Some(health) = of(unit) else { return };
    health.serve_as(iqn, *lun);
    let places = mark_places(&unit.spec);
    if !places.is_empty() {
        health.keep_at(places);
    }
}

/// Tells each medium what it is served as now.
pub fn name_all(members: &[Member<'_>]) {
    for member in members {
        match (&member.served, member.medium.health()) {
            (Served::Unit { target, lun }, Some(health)) => health.serve_as(target, *lun),
            (Served::Export { export }, Some(health)) => health.serve_as_export(export),
            (_, None) => {}
        }
    }
}

/// The healths of units, by their media's paths. They outlive the units.
pub fn watched(units: &Units) -> Vec<(String, Arc<Health>)> {
    let watched = |unit: &Arc<OpenUnit>| Some((real_path(unit.spec.backing.path()?), of(unit)?.clone()));
    units.open.values().filter_map(watched).collect()
}

/// The marks in force, by the media's paths: for a daemon that takes over. Ask once the units are
/// closed, which flushes them.
pub fn marks(watched: &[(String, Arc<Health>)]) -> HashMap<String, CarriedMark> {
    let carried = |(path, health): &(String, Arc<Health>)| {
        let Mark { errno, unix_s } = health.mark()?;
        Some((path.clone(), CarriedMark { errno, unix_s }))
    };
    watched.iter().filter_map(carried).collect()
}

/// Restores the marks of another daemon.
pub fn restore_marks(marks: &HashMap<String, CarriedMark>, units: &Units) {
    for unit in units.open.values() {
        let carried = unit.spec.backing.path().and_then(|path| marks.get(&real_path(path)));
        if let (Some(CarriedMark { errno, unix_s }), Some(health)) = (carried, of(unit)) {
            health.restore(&Mark { errno: *errno, unix_s: *unix_s });
        }
    }
}

/// Files that keep the mark of a unit: in the state directory, which outlives the medium, and
/// beside the medium, to move with it. A device has only the first.
fn mark_places(spec: &UnitSpec) -> Vec<mark::Place> {
    if let Some(address) = spec.backing.address() {
        let file = state::path(FLUSH_FAILED, &address).ok();
        return file.into_iter().map(|file| mark::Place { file, make_folder: true }).collect();
    }
    let Some(path) = spec.backing.path() else { return Vec::new() };
    let in_state = state::path(FLUSH_FAILED, &key(path)).ok();
    let with_medium = match &spec.backing {
        Backing::Objects(directory) => Some(directory.join(FLUSH_FAILED)),
        _ if is_device(path) => None,
        _ => Some(beside(path, FLUSH_FAILED)),
    };
    let place = |make_folder| move |file| mark::Place { file, make_folder };
    in_state.map(place(true)).into_iter().chain(with_medium.map(place(false))).collect()
}

/// Key of a medium in the state directory: the device's own id, which does not depend on its name,
/// or the path.
fn key(path: &Path) -> String {
    if is_device(path) { device_key(path) } else { real_path(path) }
}

fn real_path(path: &Path) -> String {
    std::fs::canonicalize(path).unwrap_or_else(|_| path.to_owned()).display().to_string()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{Client, Export, Lun, Target};
    use crate::export::Shown;
    use crate::unit;

    #[test]
    fn a_folder_of_several_exports_is_there_once_and_writable_if_one_is() {
        let directory = tempfile::tempdir().unwrap();
        let export = |name: &str, read_only| Export {
            name: name.into(),
            shown: Shown::Directory(directory.path().to_owned()),
            clients: vec![Client { read_only, ..Client::default() }],
            ..Export::default()
        };
        let memory = Export { name: "/m".into(), shown: Shown::Memory(1 << 20), ..Export::default() };
        let exports = vec![export("/a", true), memory, export("/b", false)];
        let config = Config { exports, ..Config::default() };
        let (units, trees) = (Units::default(), Trees::default().next(&config).unwrap());
        let found = members(&config, &units, &trees);
        let found = found.iter().map(|member| match member.medium {
            Medium::Folder(_, is_writable) | Medium::Memory(.., is_writable) => {
                (member.served.to_string(), is_writable)
            }
            Medium::Unit(_) | Medium::Closed(_) => (member.served.to_string(), false),
        });
        let wanted = [("export /a".to_owned(), true), ("export /m".to_owned(), true)];
        assert_eq!(found.collect::<Vec<_>>(), wanted);
    }

    #[test]
    fn a_flush_that_fails_while_its_unit_closes_is_told() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("a.img");
        let unit = unit::parse(&format!("{},size=1M", path.display())).unwrap();
        let units = vec![Lun { lun: 0, spec: unit }];
        let target = Target { iqn: "iqn.2026-01.org.example:t".into(), units, ..Target::default() };
        let config = Config { targets: vec![target], ..Config::default() };
        let none = Units::default();
        let units = none.next(&config, &none.fates(&config, false)).unwrap();
        let watched = watched(&units);
        assert_eq!(marks(&watched), HashMap::new());
        let health = of(units.open.values().next().unwrap()).unwrap().clone();
        let open = units.open.values().map(Arc::downgrade).next().unwrap();
        drop(units);
        assert_eq!(open.strong_count(), 0, "its health holds no unit");
        health.flush_failed(libc::EIO, None);
        let told = marks(&watched);
        assert_eq!(told[&real_path(&path)].errno, libc::EIO);
        // It removes the files of the mark.
        health.acknowledge().unwrap();
        assert_eq!(marks(&watched), HashMap::new());
    }

    #[test]
    fn a_mark_is_kept_beside_its_medium_and_in_the_state_directory() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("a.img");
        std::fs::write(&path, [0; 512]).unwrap();
        let of = |text: String| mark_places(&unit::parse(&text).unwrap());
        let places = of(path.display().to_string());
        assert_eq!(places.last().unwrap().file, directory.path().join("a.img.flush-failed"));
        let objects = of(format!("osd:{}", directory.path().display()));
        assert_eq!(objects.last().unwrap().file, directory.path().join("flush-failed"));
        if let Some(state) = state::directory() {
            assert!(places[0].file.starts_with(&state) && objects[0].file.starts_with(&state));
        }
        assert_eq!(of("mem:1M".into()), Vec::new());
    }
}
