//! The join of two configurations: the administrator's, and the targets and exports of the managed
//! document.

use std::borrow::Cow;
use std::collections::hash_map::Entry;
use std::collections::{HashMap, HashSet};
use std::ffi::{OsStr, OsString};

use super::model::Config;

impl Config {
    /// The portal groups that targets can name.
    pub fn groups(&self) -> Vec<u16> {
        match self.portals.as_slice() {
            [] => vec![self.portal_group()],
            portals => portals.iter().map(|portal| portal.group).collect(),
        }
    }

    /// This configuration with the targets and exports of `more` behind its own. `places` names
    /// both for errors.
    ///
    /// # Errors
    /// Everything that both have.
    pub fn join(mut self, more: Self, places: &str) -> Result<Self, Vec<String>> {
        let mut twice = Vec::new();
        let one = "take it out of one of them";
        let own: HashSet<String> =
            self.targets.iter().map(|target| target.iqn.to_ascii_lowercase()).collect();
        for target in more.targets.iter().filter(|target| own.contains(&target.iqn.to_ascii_lowercase())) {
            twice.push(format!("target {} is in {places}: {one}", target.iqn));
        }
        let own: HashSet<&str> = self.exports.iter().map(|export| export.name.as_str()).collect();
        for export in more.exports.iter().filter(|export| own.contains(export.name.as_str())) {
            twice.push(format!("export {} is in {places}: {one}", export.name));
        }
        self.targets.extend(more.targets);
        self.exports.extend(more.exports);
        self.secret_files.extend(more.secret_files);
        // A configuration from which its document was taken still has the document's secret files.
        self.secret_files.sort_unstable();
        self.secret_files.dedup();
        for medium in self.media_of_two() {
            let what = "give each unit its own file, or make both read-only with ro = true";
            twice.push(format!("units use {} in {places}: {what}", medium.display()));
        }
        twice.extend(self.group_mistakes());
        if let Some((_, what)) = self.contradicting_export() {
            twice.push(format!("{what}; they are in {places}: say the same of `async` in both"));
        }
        if let Some(what) = self.too_many_stages() {
            twice.push(format!("{what}; they are in {places}: take it out of some"));
        }
        if twice.is_empty() { Ok(self) } else { Err(twice) }
    }

    /// Media that two units use of which one writes: they would destroy each other's data.
    /// A unit of the group of gateways is one, wherever it is seen.
    pub fn media_of_two(&self) -> Vec<OsString> {
        let mut used: HashMap<Cow<'_, OsStr>, (bool, bool)> = HashMap::new();
        let mut found = Vec::new();
        for unit in self.targets.iter().flat_map(|target| &target.units) {
            let Some(medium) = unit.spec.medium(self.gateways.as_ref()) else { continue };
            let (writes, shared) = (unit.spec.options.ro != Some(true), self.shares(&unit.spec));
            match used.entry(medium) {
                Entry::Vacant(first) => drop(first.insert((writes, shared))),
                Entry::Occupied(mut others) => {
                    let (other_writes, other_shared) = others.get_mut();
                    if (*other_writes || writes) && !(*other_shared && shared) {
                        found.push(others.key().clone().into_owned());
                    } else {
                        *other_writes |= writes;
                    }
                }
            }
        }
        found
    }
}
