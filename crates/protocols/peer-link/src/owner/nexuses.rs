//! The I_T_L nexuses of the forwarder, and what it has to be told of them and of their units.

use std::collections::{BTreeMap, BTreeSet};

use crate::frame::Sealer;
use crate::message::{Attach, Attention, Message, View};
use crate::wire::Violation;

#[derive(Debug)]
pub(super) struct Nexuses {
    most: usize,
    nexuses: BTreeMap<u32, Nexus>,
    last_itl: u32,
    views: BTreeMap<u32, View>,
    /// Nexuses that were cleared, and those whose attentions have changed, to be told.
    cleared: BTreeSet<u32>,
    told: BTreeSet<u32>,
    /// Units of which there is something to say.
    shown: BTreeSet<u32>,
}

#[derive(Debug)]
struct Nexus {
    attach: Attach,
    generation: u32,
    /// On the present connection.
    attached: bool,
}

impl Nexuses {
    pub fn new(most: u32) -> Self {
        Self {
            most: most as usize,
            nexuses: BTreeMap::new(),
            last_itl: 0,
            views: BTreeMap::new(),
            cleared: BTreeSet::new(),
            told: BTreeSet::new(),
            shown: BTreeSet::new(),
        }
    }

    /// The connection is lost: the forwarder attaches them again on the next one.
    pub fn lost(&mut self) {
        self.cleared.clear();
        self.told.clear();
        self.shown.clear();
        self.nexuses.values_mut().for_each(|nexus| nexus.attached = false);
    }

    pub fn all(&self) -> impl Iterator<Item = &Attach> {
        self.nexuses.values().map(|nexus| &nexus.attach)
    }

    /// Those that the forwarder has not attached again.
    pub fn left(&self) -> Vec<u32> {
        self.nexuses.iter().filter(|(_, nexus)| !nexus.attached).map(|(itl, _)| *itl).collect()
    }

    /// How often a nexus was cleared.
    pub fn generation(&self, itl: u32) -> Option<u32> {
        self.nexuses.get(&itl).map(|nexus| nexus.generation)
    }

    /// Whether the owner did not know it.
    pub fn attach(&mut self, attach: &Attach) -> Result<bool, Violation> {
        let (itl, unit) = (attach.itl, attach.unit);
        if let Some(known) = self.nexuses.get_mut(&itl) {
            if known.attached || !known.attach.is_same(attach) {
                return Err(Violation::State("a nexus that is attached already"));
            }
            if attach.generation > known.generation {
                return Err(Violation::State("a generation that the owner has not told"));
            }
            known.attached = true;
            if attach.generation < known.generation {
                self.cleared.insert(itl);
            }
            if attach.attentions != known.attach.attentions {
                self.told.insert(itl);
            }
            self.show(unit);
            return Ok(false);
        }
        if itl <= self.last_itl {
            return Err(Violation::State("the number of a nexus is used again"));
        }
        if self.nexuses.len() >= self.most {
            return Err(Violation::State("too many nexuses"));
        }
        if attach.generation != 0 {
            return Err(Violation::State("a generation that the owner has not told"));
        }
        self.last_itl = itl;
        let attach = attach.clone();
        self.nexuses.insert(itl, Nexus { attach, generation: 0, attached: true });
        self.show(unit);
        Ok(true)
    }

    pub fn detach(&mut self, itl: u32) -> Result<(), Violation> {
        let nexus = self.nexuses.remove(&itl).ok_or(Violation::State("a nexus that is not attached"))?;
        self.cleared.remove(&itl);
        self.told.remove(&itl);
        let unit = nexus.attach.unit;
        if !self.all().any(|attach| attach.unit == unit) {
            self.views.remove(&unit);
            self.shown.remove(&unit);
        }
        Ok(())
    }

    /// Raises the generation of a nexus. Whether there is one.
    pub fn clear(&mut self, itl: u32) -> bool {
        let Some(nexus) = self.nexuses.get_mut(&itl) else { return false };
        nexus.generation = nexus.generation.saturating_add(1);
        if nexus.attached {
            self.cleared.insert(itl);
        }
        true
    }

    pub fn attentions(&mut self, itl: u32, attentions: Vec<Attention>) {
        let Some(nexus) = self.nexuses.get_mut(&itl) else { return };
        if nexus.attach.attentions == attentions {
            return;
        }
        nexus.attach.attentions = attentions;
        if nexus.attached {
            self.told.insert(itl);
        }
    }

    pub fn view(&mut self, view: View) {
        let mut of_unit = self.nexuses.values().filter(|nexus| nexus.attach.unit == view.unit).peekable();
        if of_unit.peek().is_none() {
            return;
        }
        let attached = of_unit.any(|nexus| nexus.attached);
        if self.views.insert(view.unit, view) != Some(view) && attached {
            self.shown.insert(view.unit);
        }
    }

    /// Says what one unit is now. `false`: there is nothing to say.
    pub fn say_view(&mut self, sealer: &mut Sealer, out: &mut Vec<u8>) -> bool {
        let Some(unit) = self.shown.pop_first() else { return false };
        if let Some(view) = self.views.get(&unit) {
            sealer.seal(&Message::View(*view), out);
        }
        true
    }

    /// Says that one nexus was cleared. `false`: there is nothing to say.
    pub fn say_cleared(&mut self, sealer: &mut Sealer, out: &mut Vec<u8>) -> bool {
        let Some(itl) = self.cleared.pop_first() else { return false };
        if let Some(Nexus { generation, .. }) = self.nexuses.get(&itl) {
            sealer.seal(&Message::Cleared { itl, generation: *generation }, out);
        }
        true
    }

    /// Says which attentions are pending for one nexus. `false`: there is nothing to say.
    pub fn say_attentions(&mut self, sealer: &mut Sealer, out: &mut Vec<u8>) -> bool {
        let Some(itl) = self.told.pop_first() else { return false };
        if let Some(nexus) = self.nexuses.get(&itl) {
            let attentions = nexus.attach.attentions.clone();
            sealer.seal(&Message::Attentions { itl, attentions }, out);
        }
        true
    }

    fn show(&mut self, unit: u32) {
        if self.views.contains_key(&unit) {
            self.shown.insert(unit);
        }
    }
}
