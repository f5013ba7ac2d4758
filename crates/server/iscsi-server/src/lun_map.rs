//! Units that one initiator sees, and their LUNs (LUN masking).

use std::cell::RefCell;
use std::collections::HashMap;
use std::rc::Rc;
use std::sync::Arc;

use device::{ItlNexus, Nexus};
use iscsi::pdu::Lun;
use runtime::Use;
use server_core::qos::Limiter;
use server_core::tally::{Counts, Ended, Tally};

use crate::Unit;
use crate::config::{Acl, LunConfig, TargetConfig};
use crate::node::Target;

/// One unit as one session sees it. On a cache line of its own, which cores only read.
#[derive(Debug)]
#[repr(align(64))]
pub struct Entry {
    /// Its LUN in this session.
    pub lun: u16,
    /// The unit.
    pub unit: Unit,
    /// The session's nexus with it.
    pub nexus: Arc<ItlNexus>,
    /// Its limits of service.
    pub limiter: Arc<Limiter>,
    /// Whether the times of its commands' stages are counted for it.
    pub stages: bool,
}

/// The units of one session, by LUN.
#[derive(Debug, Default)]
pub struct LunMap {
    entries: Vec<Option<Entry>>,
}

impl LunMap {
    /// The units of `target` that `nexus` sees under `acl`. A nexus of `before` continues if
    /// number, unit and right to write are the same.
    pub fn new(target: &TargetConfig, acl: Option<&Acl>, nexus: &Arc<Nexus>, before: Option<&Self>) -> Self {
        let mut map = Self::default();
        match acl.and_then(|acl| acl.luns.as_ref()) {
            None => {
                for unit in &target.units {
                    map.add(unit.lun, unit, false, nexus, before);
                }
            }
            Some(luns) => {
                let units: HashMap<u16, &LunConfig> =
                    target.units.iter().map(|unit| (unit.lun, unit)).collect();
                for seen in luns {
                    if let Some(unit) = units.get(&seen.unit) {
                        map.add(seen.seen_as, unit, seen.read_only, nexus, before);
                    }
                }
            }
        }
        map
    }

    fn add(
        &mut self,
        lun: u16,
        unit: &LunConfig,
        read_only: bool,
        nexus: &Arc<Nexus>,
        before: Option<&Self>,
    ) {
        let at = usize::from(lun);
        if self.entries.len() <= at {
            self.entries.resize_with(at + 1, || None);
        }
        let goes_on = |entry: &&Entry| entry.unit.is(&unit.unit) && entry.nexus.read_only == read_only;
        let kept = before.and_then(|before| before.number(lun)).filter(goes_on);
        let nexus = match kept {
            Some(entry) => entry.nexus.clone(),
            None => Arc::new(unit.unit.nexus(nexus.clone(), read_only)),
        };
        let limiter = unit.limiter.clone();
        self.entries[at] = Some(Entry { lun, unit: unit.unit.clone(), nexus, limiter, stages: unit.stages });
    }

    /// The unit with this LUN.
    pub fn number(&self, lun: u16) -> Option<&Entry> {
        self.entries.get(usize::from(lun))?.as_ref()
    }

    /// Whether `other` has another REPORT LUNS inventory, or another unit at some LUN.
    pub fn inventory_differs(&self, other: &Self) -> bool {
        let mut pairs = (self.iter(), other.iter());
        loop {
            match (pairs.0.next(), pairs.1.next()) {
                (None, None) => return false,
                (Some(a), Some(b)) if a.lun == b.lun && a.unit.is(&b.unit) => {}
                _ => return true,
            }
        }
    }

    /// The unit of `lun`, if that is an existing single-level LUN.
    #[inline]
    pub fn get(&self, lun: Lun) -> Option<&Entry> {
        self.entries.get(usize::from(lun.number()?))?.as_ref()
    }

    /// All units, by ascending LUN.
    pub fn iter(&self) -> impl Iterator<Item = &Entry> {
        self.entries.iter().flatten()
    }
}

/// A session's view of a model.
#[derive(Debug, Default)]
pub(crate) struct View {
    /// The model's.
    pub generation: u64,
    /// The target; `None` in a discovery session.
    pub target: Option<Arc<Target>>,
    /// Its units, as this session sees them.
    pub luns: LunMap,
}

/// A session's view, as one of its connections keeps it.
#[derive(Debug)]
pub(crate) struct LocalView {
    view: Arc<View>,
    /// Nexuses of the connection's commands, by unit.
    pub nexuses: LocalNexuses,
}

impl LocalView {
    /// Makes a view; when it is dropped, `ended` keeps its counts.
    pub(crate) fn new(view: Arc<View>, ended: Rc<Ended>) -> Self {
        Self { view, nexuses: LocalNexuses { of: RefCell::default(), ended } }
    }

    /// See [`View::generation`].
    #[inline]
    pub(crate) fn generation(&self) -> u64 {
        self.view.generation
    }

    /// The session's, for other cores.
    pub(crate) fn shared(&self) -> &Arc<View> {
        &self.view
    }

    /// The units.
    #[inline]
    pub(crate) fn luns(&self) -> &LunMap {
        &self.view.luns
    }
}

/// One connection's uses of its session's nexuses, and the counts of its commands: kept here, apart
/// from those of connections on other cores.
#[derive(Debug)]
pub(crate) struct LocalNexuses {
    of: RefCell<Vec<Option<LocalNexus>>>,
    ended: Rc<Ended>,
}

#[derive(Clone, Debug)]
struct LocalNexus {
    nexus: Use<ItlNexus>,
    tally: Rc<Tally>,
    /// Address of its unit, under which the counts are kept.
    unit: usize,
}

impl LocalNexuses {
    /// The nexus of `entry`, for one more command, and the tally that counts it.
    #[inline]
    pub(crate) fn of(&self, entry: &Entry) -> (Use<ItlNexus>, Rc<Tally>) {
        let at = usize::from(entry.lun);
        if let Some(Some(local)) = self.of.borrow().get(at) {
            return (local.nexus.clone(), local.tally.clone());
        }
        self.add(at, entry)
    }

    #[cold]
    fn add(&self, at: usize, entry: &Entry) -> (Use<ItlNexus>, Rc<Tally>) {
        let mut nexuses = self.of.borrow_mut();
        if nexuses.len() <= at {
            nexuses.resize(at + 1, None);
        }
        let local = LocalNexus {
            nexus: entry.nexus.clone().into(),
            tally: Rc::default(),
            unit: entry.unit.address(),
        };
        let local = nexuses[at].insert(local);
        (local.nexus.clone(), local.tally.clone())
    }

    /// Counts by the units' addresses.
    pub(crate) fn counts(&self) -> Vec<(usize, Counts)> {
        self.of.borrow().iter().flatten().map(|local| (local.unit, local.tally.counts())).collect()
    }
}

impl Drop for LocalNexuses {
    fn drop(&mut self) {
        for local in self.of.get_mut().iter().flatten() {
            self.ended.keep(local.unit, &local.tally.counts());
        }
    }
}
