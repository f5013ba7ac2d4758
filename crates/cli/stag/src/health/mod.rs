//! The health of units and their file systems: the marks of failed flushes, the room, and the
//! thread that checks both. The data path never comes here: stores report to their
//! `backing::Health`, which this reads.

pub mod monitor;
pub mod space;

use std::collections::HashMap;
use std::path::Path;
use std::sync::Arc;

use backing::Health;
use backing::health::{self as mark, Mark};
use serde::{Deserialize, Serialize};

use crate::identity::{beside, device_key, is_device};
use crate::state;
use crate::unit::{Backing, UnitSpec};
use crate::units::{OpenKind, OpenUnit, Place, Units};

/// Name of marks: the ending of one beside a file, and the folder of those in the state directory.
const FLUSH_FAILED: &str = "flush-failed";

/// A failed flush, as one daemon reports it to the next.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CarriedMark {
    errno: i32,
    unix_s: u64,
}

/// The health of an open unit; `None` for a store that cannot fail.
pub fn of(unit: &OpenUnit) -> Option<&Arc<Health>> {
    match &unit.kind {
        OpenKind::Disk(disk) => disk.opened.store.health(),
        OpenKind::Objects(unit) => unit.store().health(),
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

/// Tells each unit its current target and number.
pub fn name_units(units: &Units) {
    for ((iqn, lun), unit) in &units.open {
        if let Some(health) = of(unit) {
            health.serve_as(iqn, *lun);
        }
    }
}

/// The marks in force, by the media's paths: for a daemon that takes over.
pub fn marks(units: &Units) -> HashMap<String, CarriedMark> {
    let carried = |unit: &OpenUnit| {
        let Mark { errno, unix_s } = of(unit)?.mark()?;
        Some((real_path(unit.spec.backing.path()?), CarriedMark { errno, unix_s }))
    };
    units.open.values().filter_map(carried).collect()
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
    use crate::unit;

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
