//! The open units of the daemon, by target and number. Units are opened for a configuration, and
//! kept for the next one if it has the same unit. If opening fails, the served units do not change.

mod make;
mod objects;
mod open;
mod ports;
mod prefault;
mod resize;

use std::borrow::Cow;
use std::collections::{HashMap, HashSet};
use std::ffi::OsStr;
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use backing::Made;
use backing::size::Size;
use device::PortGroups;
use disk::unit::{DiskUnit, Registry};

use crate::config::{Alua, Config, Lun};
use crate::gateways::{Shared, SharedUnit};
use crate::identity::{self, Carried, Choice};
use crate::state::hex;
use crate::unit::{Backing, Options, UnitSpec};

pub use open::{OpenDisk, OpenKind, OpenUnit, Place, Unopened, name, place};
pub use resize::Resizing;

/// Why a unit stays as it is.
const SANITIZED: &str = "it is being sanitized: change it when that has ended";

/// Interval of attempts to open units again.
const RETRY_EVERY: Duration = Duration::from_millis(100);

/// A unit that cannot be served.
#[derive(Debug, thiserror::Error)]
#[error("{target}{}: {reason}", .lun.map_or_else(String::new, |lun| format!(" LUN {lun}")))]
pub struct UnitError {
    pub target: String,
    /// Its number; `None` if the error concerns the whole target.
    pub lun: Option<u16>,
    /// The error.
    pub reason: String,
    /// Another process or the system has its medium, and may let it go.
    pub in_use: bool,
}

#[derive(Clone, Default)]
pub struct Units {
    pub open: HashMap<Place, Arc<OpenUnit>>,
    pub registry: Registry,
    /// The units of the group, if this daemon is a gateway of one.
    pub shared: Option<Arc<Shared>>,
    /// Targets' port groups and their configuration, by the targets' names in lower case.
    pub ports: HashMap<String, (Alua, Arc<PortGroups>)>,
    /// Configured units that are not open, though they were served before. `stag apply` opens them.
    pub closed: HashMap<Place, Arc<backing::Health>>,
    /// Serial numbers served by the daemon that this one replaces, until its units are open here.
    pub carried: Carried,
}

/// The effect of a new configuration on a unit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Fate {
    /// It continues, perhaps at another place.
    Same(Place),
    /// Its file gets this length, bytes; nothing else changes.
    Resized(u64),
    /// It continues with other limits, or stages.
    Limited,
    /// Its store continues, under a new unit with other options.
    Changed,
    Opened,
    /// The change is impossible while the unit is served.
    Refused(String),
}

impl Units {
    /// The fate of each unit of `config`, given the open units.
    pub fn fates(&self, config: &Config, force: bool) -> HashMap<Place, Fate> {
        let mut by_medium: HashMap<Cow<'_, OsStr>, &Place> = HashMap::with_capacity(self.open.len());
        let group = self.shared.as_ref().map(|shared| &shared.config);
        for (place, unit) in &self.open {
            if let Some(medium) = unit.spec.medium(group) {
                by_medium.insert(medium, place);
            }
        }
        let mut fates = HashMap::with_capacity(self.open.len() + 1);
        for target in &config.targets {
            let iqn = name(&target.iqn);
            for lun in &target.units {
                let place = (iqn.clone(), lun.lun);
                let medium = lun.spec.medium(config.gateways.as_ref());
                let fate = self.fate(&place, &lun.spec, medium, &by_medium, force);
                fates.insert(place, fate);
            }
        }
        fates
    }

    fn fate(
        &self,
        place: &Place,
        spec: &UnitSpec,
        medium: Option<Cow<'_, OsStr>>,
        by_medium: &HashMap<Cow<'_, OsStr>, &Place>,
        force: bool,
    ) -> Fate {
        let here = self.open.get(place);
        if let Some(open) = here.filter(|open| open.spec == *spec) {
            // Another program may have changed the file's length.
            return match (spec.options.size, open.disk()) {
                (Some(wanted), Some(disk)) if wanted != disk.opened.store.size() => Fate::Resized(wanted),
                _ => Fate::Same(place.clone()),
            };
        }
        if let Some(open) = here.filter(|open| open.spec.backing == spec.backing) {
            return changed(open, spec, force);
        }
        let Some(medium) = medium else {
            // Memory is identified by target and number.
            return match here {
                Some(open) if open.spec.backing.medium().is_none() => Fate::Refused(
                    "memory has the size that it was made with: give it another number, and take the old one out".into(),
                ),
                _ => Fate::Opened,
            };
        };
        match by_medium.get(&medium).map(|at| (*at, &self.open[*at])) {
            None => Fate::Opened,
            Some((at, open)) if open.spec == *spec => Fate::Same(at.clone()),
            // Both are read-only.
            Some((_, open)) if open.spec.options.ro == Some(true) && spec.options.ro == Some(true) => {
                Fate::Opened
            }
            Some(((iqn, lun), _)) => Fate::Refused(format!(
                "{} is served as LUN {lun} of {iqn} in another way: take that out first",
                medium.display()
            )),
        }
    }

    /// A unit that would get a new one over its store, or another size, and is being sanitized
    /// since its fate was decided.
    pub fn sanitized_since(&self, fates: &HashMap<Place, Fate>) -> Option<UnitError> {
        let (place, _) = fates.iter().find(|(place, fate)| {
            let is_changed = matches!(fate, Fate::Changed | Fate::Resized(_));
            is_changed && self.open.get(*place).is_some_and(|open| open.is_sanitizing())
        })?;
        let (target, lun) = (place.0.to_string(), Some(place.1));
        Some(UnitError { target, lun, reason: SANITIZED.to_owned(), in_use: false })
    }

    /// The disks that `next` replaces by ones with their write cache off. Initiators then take all
    /// that was written before for durable.
    pub fn leaving<'a>(
        &'a self,
        next: &'a Self,
        fates: &'a HashMap<Place, Fate>,
    ) -> impl Iterator<Item = (&'a Place, Arc<DiskUnit>)> {
        let changed = fates.iter().filter(|(_, fate)| **fate == Fate::Changed);
        changed.filter_map(move |(place, _)| {
            let (old, new) = (self.open.get(place)?.disk()?, next.open.get(place)?.disk()?);
            (!new.unit.options().write_cache).then(|| (place, old.unit.clone()))
        })
    }

    /// The units of `config`: open ones continue, and the others are opened, in the configuration's
    /// order.
    ///
    /// # Errors
    /// The first unit that cannot be served.
    pub fn next(&self, config: &Config, fates: &HashMap<Place, Fate>) -> Result<Self, UnitError> {
        let (registry, shared) = (self.registry.clone(), self.shared.clone());
        let open = HashMap::with_capacity(fates.len());
        let mut next = Self { open, registry, shared, ..Self::default() };
        let made = make_files(config, fates)?;
        let around =
            make::Around { registry: &self.registry, carried: &self.carried, shared: self.shared.as_deref() };
        let mut names: HashMap<Vec<u8>, Place> = HashMap::with_capacity(fates.len());
        for target in &config.targets {
            let iqn = name(&target.iqn);
            if let Some(alua) = &target.alua {
                let ports = match self.ports.get(&*iqn).filter(|(before, _)| before == alua) {
                    Some((_, ports)) => ports.clone(),
                    None => ports::port_groups(alua).map_err(|reason| UnitError {
                        target: target.iqn.clone(),
                        lun: None,
                        reason,
                        in_use: false,
                    })?,
                };
                next.ports.insert(iqn.to_string(), (alua.clone(), ports));
            }
            for lun in &target.units {
                let fails = |Unopened { reason, in_use }| UnitError {
                    target: target.iqn.clone(),
                    lun: Some(lun.lun),
                    reason,
                    in_use,
                };
                let failed = |reason: String| fails(reason.into());
                let place = (iqn.clone(), lun.lun);
                let here = self.open.get(&place);
                let unit = match (fates.get(&place), here) {
                    (Some(Fate::Same(from)), _) => self.open.get(from).cloned(),
                    (Some(Fate::Resized(_) | Fate::Limited), Some(open)) => {
                        Some(Arc::new(OpenUnit { spec: lun.spec.clone(), ..OpenUnit::clone(open) }))
                    }
                    (Some(Fate::Changed), Some(open)) => {
                        Some(make::remake(open, &lun.spec, &place, &next.registry).map_err(failed)?.into())
                    }
                    (Some(Fate::Refused(reason)), _) => return Err(failed(reason.clone())),
                    _ => None,
                };
                let unit = match unit {
                    Some(unit) => unit,
                    None => make::open(&lun.spec, &place, &around).map_err(fails)?.into(),
                };
                let first = names.entry(unit.naa().to_vec()).or_insert_with(|| place.clone());
                if let Some(other) = next.open.get(first) {
                    only_one(&unit, other, first).map_err(failed)?;
                }
                next.open.insert(place, unit);
            }
        }
        made.keep();
        Ok(next)
    }

    /// The units of `config` that can be opened. The others are left out of it, and say why by
    /// their health.
    pub fn reopened(config: &Config, is_over: impl Fn() -> bool) -> Self {
        let (mut left, none) = (config.clone(), Self::default());
        let mut closed = HashMap::new();
        loop {
            let error = match none.next(&left, &none.fates(&left, false)) {
                Ok(units) => return Self { closed, ..units },
                Err(error) => error,
            };
            // The other process may still be ending.
            if error.in_use && !is_over() {
                tracing::warn!(%error, "trying again");
                runtime::nap(RETRY_EVERY);
                continue;
            }
            let before = left.clone();
            for target in left.targets.iter_mut().filter(|target| target.iqn == error.target) {
                target.units.retain(|lun| {
                    let is_it = error.lun.is_none_or(|failed| failed == lun.lun);
                    if is_it {
                        let health = backing::Health::new(lun.spec.backing.to_string());
                        health.serve_as(&target.iqn, lun.lun);
                        health.failed(format!(
                            "it cannot be opened again: {}; then `stag apply`",
                            error.reason
                        ));
                        closed.insert(place(&target.iqn, lun.lun), health);
                    }
                    !is_it
                });
                if error.lun.is_none() {
                    target.alua = None;
                }
            }
            if left == before {
                tracing::error!(%error, "no unit can be opened again; what can be changed is: stag apply");
                return Self { closed, ..Self::default() };
            }
        }
    }

    /// Begins to change the length of units' files as `fates` demand. See [`Resizing::begin`].
    ///
    /// # Errors
    /// The first file that cannot be changed; those before it have their old length again.
    pub fn resize(
        &self,
        fates: &HashMap<Place, Fate>,
        force: bool,
        limit: impl Fn(Arc<DiskUnit>, u64) -> io::Result<()>,
    ) -> Result<Resizing, UnitError> {
        let mut resizing = Resizing::default();
        for (place, fate) in fates {
            let (Fate::Resized(bytes), Some(open)) = (fate, self.open.get(place)) else { continue };
            let (Backing::Path(path), Some(disk)) = (&open.spec.backing, open.disk()) else { continue };
            let fails =
                |reason| UnitError { target: place.0.to_string(), lun: Some(place.1), reason, in_use: false };
            resizing.begin(path, disk, *bytes, force, &limit).map_err(fails)?;
        }
        Ok(resizing)
    }
}

/// Whether two units may have one identity: only read-only ones of the same file.
fn only_one(unit: &OpenUnit, other: &OpenUnit, (iqn, lun): &Place) -> Result<(), String> {
    let real = |unit: &OpenUnit| unit.spec.backing.path().and_then(|path| std::fs::canonicalize(path).ok());
    if real(unit).is_some() && real(unit) == real(other) {
        return Ok(());
    }
    Err(format!(
        "it has the worldwide name of LUN {lun} of {iqn}, naa.{}: initiators would take both for one disk. Give it another naa, or, \
         if it is a copy, an identity of its own: stag identity --new PATH",
        hex(unit.naa())
    ))
}

/// Creates the files of units to be opened, if so configured. All of them together, since there may
/// be thousands.
fn make_files(config: &Config, fates: &HashMap<Place, Fate>) -> Result<Made, UnitError> {
    let opened = |place: &Place| matches!(fates.get(place), None | Some(Fate::Opened));
    let wanted = config.targets.iter().flat_map(|target| {
        let iqn = name(&target.iqn);
        let units = target.units.iter().filter(move |unit| opened(&(iqn.clone(), unit.lun)));
        units.filter_map(|unit| match (&unit.spec.backing, unit.spec.options.size, unit.spec.options.ro) {
            (Backing::Path(path), size, None | Some(false)) => {
                Some((path.as_path(), size, unit.spec.options.identity != Some(Choice::Derived)))
            }
            _ => None,
        })
    });
    let wanted: Vec<(&Path, Option<u64>, bool)> = wanted.collect();
    let own: HashSet<&Path> = wanted.iter().filter(|(.., own)| *own).map(|(path, ..)| *path).collect();
    let sized = wanted.iter().map(|(path, size, _)| (*path, *size));
    Made::new(sized, |path, file| {
        if own.contains(path) {
            identity::mark_new(path, file);
        }
    })
    .map_err(|(path, error)| {
        let is_it = |unit: &&Lun| unit.spec.backing.path() == Some(&path);
        let found = config.targets.iter().find_map(|target| Some((target, target.units.iter().find(is_it)?)));
        UnitError {
            target: found.map_or_else(String::new, |(target, _)| target.iqn.clone()),
            lun: found.map(|(_, unit)| unit.lun),
            reason: error.to_string(),
            in_use: false,
        }
    })
}

/// The fate of an open unit with changed options, at the same place and with the same medium.
fn changed(open: &OpenUnit, spec: &UnitSpec, force: bool) -> Fate {
    let fate = match &open.kind {
        OpenKind::Disk(disk) => disk_changed(disk, &open.spec.options, &spec.options, force),
        OpenKind::Objects(_) => objects_changed(&open.spec.options, &spec.options),
        OpenKind::Shared(_) => shared_changed(&open.spec.options, &spec.options),
    };
    match fate {
        // The new unit would take writes that the old one's sanitize then overwrites. One that gets
        // shorter would fail.
        Fate::Changed | Fate::Resized(_) if open.is_sanitizing() => Fate::Refused(SANITIZED.into()),
        fate => fate,
    }
}

/// `options` without those that the unit itself does not see.
fn seen_by_unit(options: &Options) -> Options {
    Options { limits: Default::default(), stages: None, ..options.clone() }
}

/// Whether the unit itself stays the same, with other limits or stages perhaps.
fn is_same_unit(before: &Options, now: &Options) -> bool {
    seen_by_unit(before) == seen_by_unit(now)
}

fn shared_changed(before: &Options, now: &Options) -> Fate {
    match is_same_unit(before, now) {
        true => Fate::Limited,
        false => Fate::Refused(SharedUnit::AT_START.into()),
    }
}

fn objects_changed(before: &Options, now: &Options) -> Fate {
    if is_same_unit(before, now) {
        return Fate::Limited;
    }
    if before.capacity != now.capacity {
        return Fate::Refused(
            "objects have their capacity from their start: take the unit out, apply, and put it back".into(),
        );
    }
    Fate::Changed
}

fn disk_changed(disk: &OpenDisk, before: &Options, now: &Options, force: bool) -> Fate {
    let store = &disk.opened.store;
    let size = store.size();
    if let Some(wanted) = now.size.filter(|wanted| *wanted != size) {
        if wanted < size && !force {
            return Fate::Refused(format!(
                "it has {} and would lose what is behind {}: --force does it",
                Size(size),
                Size(wanted)
            ));
        }
        let others_same = Options { size: None, ..before.clone() } == Options { size: None, ..now.clone() };
        return match others_same {
            true => Fate::Resized(wanted),
            false => Fate::Refused("change its size in a step of its own".into()),
        };
    }
    let of_any_size = |options: &Options| Options { size: None, ..seen_by_unit(options) };
    if of_any_size(before) == of_any_size(now) {
        return Fate::Limited;
    }
    let reads_only = |options: &Options| options.ro == Some(true);
    let opening = |options: &Options| {
        let Options { cache, engine, bs, thin, prefault, ceph_user, ceph_conf, op_timeout_s, .. } =
            options.clone();
        let Options { far_user, far_secret_file, far_initiator, luks_key_file, .. } = options.clone();
        let far = (far_user, far_secret_file, far_initiator, luks_key_file);
        (cache, engine, bs, thin, prefault, ceph_user, ceph_conf, op_timeout_s, far)
    };
    if opening(before) != opening(now) || (reads_only(before) && !reads_only(now) && !store.writable()) {
        return Fate::Refused(
            "cache, engine, bs, thin, prefault, ceph-user, ceph-conf, luks-key-file, far-user, far-secret-file, far-initiator, op-timeout, and writing to what was opened for reading need its file to be opened anew: take it out, apply, and put it back"
                .into(),
        );
    }
    Fate::Changed
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Target;

    fn spec(text: &str) -> UnitSpec {
        crate::unit::parse(text).unwrap()
    }

    fn config(units: &[(u16, &str)]) -> Config {
        let units = units.iter().map(|(lun, text)| Lun { lun: *lun, spec: spec(text) }).collect();
        Config {
            targets: vec![Target { iqn: "iqn.2026-01.org.example:t".into(), units, ..Target::default() }],
            ..Config::default()
        }
    }

    fn open(config: &Config) -> Units {
        let none = Units::default();
        none.next(config, &none.fates(config, false)).unwrap()
    }

    #[test]
    fn what_is_the_same_goes_on_wherever_it_is_served() {
        let dir = tempfile::tempdir().unwrap();
        let file = format!("{},size=1M", dir.path().join("a").display());
        let before = config(&[(0, &file), (1, "mem:1M")]);
        let units = open(&before);
        let after = config(&[(7, &file), (1, "mem:1M"), (2, "mem:2M")]);
        let fates = units.fates(&after, false);
        let at = |lun| place("iqn.2026-01.org.example:t", lun);
        assert_eq!(fates[&at(7)], Fate::Same(at(0)));
        assert_eq!(fates[&at(1)], Fate::Same(at(1)));
        assert_eq!(fates[&at(2)], Fate::Opened);
        let next = units.next(&after, &fates).unwrap();
        assert!(Arc::ptr_eq(
            &next.open[&at(7)].disk().unwrap().unit,
            &units.open[&at(0)].disk().unwrap().unit
        ));
    }

    #[test]
    fn a_unit_whose_stages_are_counted_goes_on() {
        let dir = tempfile::tempdir().unwrap();
        let with = |more: &str| {
            let osd = format!("osd:{},capacity=64M{more}", dir.path().join("b").display());
            config(&[(0, &format!("{},size=1M{more}", dir.path().join("a").display())), (1, &osd)])
        };
        let (before, after) = (with(""), with(",stages,iops=9"));
        let units = open(&before);
        let fates = units.fates(&after, false);
        assert!(fates.values().all(|fate| *fate == Fate::Limited));
        let served = |units: &Units, of: &Config| crate::convert::target_config(&of.targets[0], units).units;
        let (old, new) = (served(&units, &before), served(&units.next(&after, &fates).unwrap(), &after));
        assert!(old.iter().zip(&new).all(|(old, new)| !old.stages && new.stages && old.unit.is(&new.unit)));
    }

    #[test]
    fn a_file_grows_and_shrinks_only_by_force() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a");
        let text = |size: &str| format!("{},size={size}", path.display());
        let units = open(&config(&[(0, &text("2M"))]));
        let at = place("iqn.2026-01.org.example:t", 0);
        let fates = units.fates(&config(&[(0, &text("3M"))]), false);
        assert_eq!(fates[&at], Fate::Resized(3 << 20));
        let limit = |disk: Arc<DiskUnit>, bytes| -> io::Result<()> {
            let core = runtime::Runtime::new(runtime::Config::default())?;
            core.block_on(async move { disk.limit(bytes).await });
            Ok(())
        };
        let disk = units.open[&at].disk().unwrap().clone();
        // The size of the file, and the one that an initiator sees.
        let sizes = || {
            disk.unit.revalidate();
            (std::fs::metadata(&path).unwrap().len() >> 20, disk.opened.store.size() >> 20)
        };
        let grown = units.resize(&fates, false, limit).unwrap();
        assert_eq!(sizes(), (3, 2), "whatever was written there could be cut off again");
        drop(grown);
        assert_eq!(sizes(), (2, 2));
        units.resize(&fates, false, limit).unwrap().finish().unwrap();
        assert_eq!(sizes(), (3, 3));

        assert!(matches!(units.fates(&config(&[(0, &text("1M"))]), false)[&at], Fate::Refused(_)));
        let fates = units.fates(&config(&[(0, &text("1M"))]), true);
        assert_eq!(fates[&at], Fate::Resized(1 << 20));
        assert!(units.resize(&fates, false, limit).is_err());
        let shrinking = units.resize(&fates, true, limit).unwrap();
        assert_eq!(sizes(), (3, 1));
        drop(shrinking);
        assert_eq!(sizes(), (3, 3), "nothing is lost");
        units.resize(&fates, true, limit).unwrap().finish().unwrap();
        assert_eq!(sizes(), (1, 1));
        // A command that was let in before.
        let late = disk.opened.store.write(2 << 20, vec![1u8; 512].into(), false);
        assert!(matches!(late, backing::Io::Ready(Some(Err(backing::StoreError::OutOfRange)))));
        assert_eq!(sizes(), (1, 1));
    }

    #[test]
    fn renamed_objects_stay_one_unit_and_a_new_identity_makes_another() {
        let dir = tempfile::tempdir().unwrap();
        let osd = format!("osd:{},capacity=64M", dir.path().join("a").display());
        let units = open(&config(&[(0, &format!("{osd},name=attic"))]));
        let at = place("iqn.2026-01.org.example:t", 0);
        let unit = |units: &Units| match &units.open[&at].kind {
            OpenKind::Objects(unit) => unit.clone(),
            OpenKind::Disk(_) | OpenKind::Shared(_) => panic!("no unit of objects"),
        };
        let name = |units: &Units| {
            let (mut name, id) = (Vec::new(), osd::attributes::numbers::root_information::OSD_NAME);
            let root = osd::Id::ROOT;
            unit(units).store().attribute(root, id.page.0, id.number, &mut name).unwrap();
            name
        };
        assert_eq!(name(&units), b"attic");
        for (more, same) in [("name=cellar", true), ("name=cellar,product=Other", false)] {
            let after = config(&[(0, &format!("{osd},{more}"))]);
            let fates = units.fates(&after, false);
            assert_eq!(fates[&at], Fate::Changed);
            let next = units.next(&after, &fates).unwrap();
            assert_eq!(name(&next), b"cellar");
            assert_eq!(Arc::ptr_eq(&unit(&next), &unit(&units)), same);
            assert!(Arc::ptr_eq(unit(&next).store(), unit(&units).store()));
        }
    }

    #[test]
    fn another_name_keeps_the_store_and_another_engine_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let file = format!("{},size=1M", dir.path().join("a").display());
        let units = open(&config(&[(0, &file)]));
        let at = place("iqn.2026-01.org.example:t", 0);
        let renamed = config(&[(0, &format!("{file},product=Other,ro"))]);
        let fates = units.fates(&renamed, false);
        assert_eq!(fates[&at], Fate::Changed);
        let next = units.next(&renamed, &fates).unwrap();
        let disk = |units: &Units| units.open[&at].disk().unwrap().unit.clone();
        assert!(Arc::ptr_eq(disk(&next).store(), disk(&units).store()));
        assert!(disk(&next).options().read_only);
        let other = units.fates(&config(&[(0, &format!("{file},engine=uring"))]), false);
        assert!(matches!(&other[&at], Fate::Refused(why) if why.contains("opened anew")));
        let twice = units.fates(&config(&[(0, &file), (1, &format!("{file},engine=uring"))]), false);
        assert!(matches!(&twice[&place("iqn.2026-01.org.example:t", 1)], Fate::Refused(_)));
    }

    #[test]
    fn images_of_one_name_in_two_clusters_are_two() {
        let mut units = open(&config(&[(0, "mem:1M")]));
        let at = |lun| place("iqn.2026-01.org.example:t", lun);
        // No cluster is needed for what is compared.
        let served = spec("rbd:p/a,ceph-conf=/a.conf");
        let unit = OpenUnit { spec: served, ..OpenUnit::clone(&units.open[&at(0)]) };
        units.open.insert(at(0), Arc::new(unit));
        let fates = |units_of: &[(u16, &str)]| units.fates(&config(units_of), false);
        let both = fates(&[(0, "rbd:p/a,ceph-conf=/a.conf"), (1, "rbd:p/a,ceph-conf=/b.conf")]);
        assert_eq!((&both[&at(0)], &both[&at(1)]), (&Fate::Same(at(0)), &Fate::Opened));
        let why = |lun, text: &str| match &fates(&[(lun, text)])[&at(lun)] {
            Fate::Refused(why) => why.clone(),
            other => panic!("{text}: {other:?}"),
        };
        let moved = why(1, "rbd:p/a,ceph-conf=/a.conf,product=Other");
        assert!(moved.starts_with("rbd:p/a,ceph-conf=/a.conf is served as LUN 0"), "{moved}");
        // The new file may be of the same cluster.
        assert!(why(0, "rbd:p/a,ceph-conf=/b.conf").contains("opened anew"));
    }

    #[test]
    fn a_disk_that_is_replaced_by_one_without_write_cache_leaves() {
        let dir = tempfile::tempdir().unwrap();
        let path = |name: &str| format!("{},size=1M", dir.path().join(name).display());
        let (cached, through) = (path("a"), path("b") + ",cache=writethrough");
        let units = open(&config(&[(0, &cached), (1, &through), (2, "mem:1M")]));
        let (cached, through) = (cached + ",product=Other", through + ",product=Other");
        let after = config(&[(0, &cached), (1, &through), (2, "mem:1M")]);
        let fates = units.fates(&after, false);
        let next = units.next(&after, &fates).unwrap();
        let leaving: Vec<_> = units.leaving(&next, &fates).collect();
        let at = place("iqn.2026-01.org.example:t", 1);
        assert_eq!(leaving.len(), 1);
        assert_eq!(*leaving[0].0, at);
        assert!(Arc::ptr_eq(&leaving[0].1, &units.open[&at].disk().unwrap().unit));
    }

    #[test]
    fn an_existing_files_name_is_durable_before_it_is_served() {
        let dir = tempfile::tempdir().unwrap();
        // As left by a daemon that was killed just after it created the file.
        std::fs::File::create(dir.path().join("a")).unwrap().set_len(1 << 20).unwrap();
        let file = |more: &str| config(&[(0, &format!("{}{more}", dir.path().join("a").display()))]);
        let made = |config: &Config| make_files(config, &Units::default().fates(config, false)).unwrap();
        let found = made(&file(",size=1M"));
        assert_eq!((found.len(), found.directory_syncs()), (0, 1));
        assert_eq!(made(&file("")).directory_syncs(), 1);
        assert_eq!(made(&file(",ro")).directory_syncs(), 0);
        drop(found);
        assert!(dir.path().join("a").exists());
    }

    #[test]
    fn no_new_file_stays_if_one_of_many_units_cannot_be_served() {
        let dir = tempfile::tempdir().unwrap();
        let files = || std::fs::read_dir(dir.path()).unwrap().count();
        let name = |at: u16| format!("{},size=64K", dir.path().join(at.to_string()).display());
        let many: Vec<(u16, String)> = (0..600).map(|at| (at, name(at))).collect();
        let mut units: Vec<(u16, &str)> = many.iter().map(|(lun, text)| (*lun, text.as_str())).collect();
        let all = config(&units);
        let fates = Units::default().fates(&all, false);
        let made = make_files(&all, &fates).unwrap();
        // The slow step is syncing the directory to the medium: once, for any number of files.
        assert_eq!((made.len(), made.directory_syncs(), files()), (600, 1, 600));
        drop(made);
        assert_eq!(files(), 0);

        let bad = format!("{},size=64K", dir.path().join("no/such/place").display());
        units.push((600, &bad));
        let none = Units::default();
        let wrong = config(&units);
        let error = none.next(&wrong, &none.fates(&wrong, false)).err().expect("it cannot be made");
        assert_eq!((error.lun, files()), (Some(600), 0));

        units.pop();
        units.push((600, "/dev/null,size=64K"));
        let wrong = config(&units);
        let error = none.next(&wrong, &none.fates(&wrong, false)).err().expect("it is no disk");
        assert_eq!((error.lun, files()), (Some(600), 0));

        let units = open(&all);
        assert_eq!((units.open.len(), files()), (600, 600));
        assert!(make_files(&all, &units.fates(&all, false)).unwrap().is_empty(), "they are there");
    }
}
