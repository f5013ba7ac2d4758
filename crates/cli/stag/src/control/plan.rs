//! The differences between two configurations in plain words: additions, removals, changes, and the
//! initiators that each disturbs.

use std::cell::LazyCell;
use std::collections::{HashMap, HashSet};

use serde::{Deserialize, Serialize};

use crate::config::settings::{Applies, Difference, Group};
use crate::config::{Acl, Alua, Client, Config, Export, GatewayMember, Gateways, Target};
use crate::convert;
use crate::gateways;
use crate::unit::UnitSpec;
use crate::units::{self, Fate, Place, Units};

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Plan {
    /// Changes that apply at once.
    pub changes: Vec<Change>,
    /// Changes that apply from the daemon's next start on.
    pub at_next_start: Vec<String>,
    /// Changes that are impossible; if there is one, nothing is applied.
    pub refused: Vec<String>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Change {
    pub kind: Kind,
    pub what: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub disturbs: Option<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Kind {
    Added,
    Removed,
    Changed,
}

pub type Sessions = Vec<LoggedIn>;

/// A session with a target.
#[derive(Clone, Debug)]
pub struct LoggedIn {
    pub target: String,
    pub initiator: String,
    /// The user as whom the initiator has authenticated.
    pub user: Option<String>,
}

impl Plan {
    /// The changes from `old` to `new`.
    pub fn new(old: &Config, new: &Config, fates: &HashMap<Place, Fate>, sessions: &Sessions) -> Self {
        let mut plan = Self::default();
        plan.portals(old, new);
        plan.daemon(old, new);
        let (olds, news) = (by_name(old), by_name(new));
        for target in old.targets.iter().filter(|target| !news.contains_key(&key(target))) {
            let disturbed = initiators(sessions, &target.iqn, |_| true);
            let what = format!("target {} ({} units)", target.iqn, target.units.len());
            plan.add(Kind::Removed, what, logged_out(&disturbed));
        }
        for target in &new.targets {
            let before = olds.get(&key(target)).copied();
            match before {
                Some(before) => plan.target(before, target, sessions),
                None => plan.add(
                    Kind::Added,
                    format!("target {} ({} units)", target.iqn, target.units.len()),
                    None,
                ),
            }
            let iqn = units::name(&target.iqn);
            for lun in &target.units {
                if let Some(Fate::Refused(why)) = fates.get(&(iqn.clone(), lun.lun)) {
                    plan.refused.push(format!("{} LUN {}: {why}", target.iqn, lun.lun));
                }
            }
            if let Some(before) = before {
                plan.units(before, target, fates, sessions);
            }
        }
        plan.exports(old, new);
        plan.gateways(old, new);
        plan
    }

    pub fn is_empty(&self) -> bool {
        self.changes.is_empty() && self.refused.is_empty()
    }

    /// As lines of text.
    pub fn text(&self) -> String {
        let mut out = String::new();
        for change in &self.changes {
            let sign = match change.kind {
                Kind::Added => '+',
                Kind::Removed => '-',
                Kind::Changed => '~',
            };
            out += &format!("{sign} {}\n", change.what);
            out += &change.disturbs.as_ref().map_or_else(String::new, |who| format!("    {who}\n"));
        }
        for line in &self.at_next_start {
            out += &format!("! {line}: from the daemon's next start on\n");
        }
        for line in &self.refused {
            out += &format!("x {line}\n");
        }
        out
    }

    /// Adds a change.
    pub fn add(&mut self, kind: Kind, what: String, disturbs: Option<String>) {
        self.changes.push(Change { kind, what, disturbs });
    }

    fn portals(&mut self, old: &Config, new: &Config) {
        let describe = |portal: &crate::config::Portal| {
            format!("portal {} for {} (group {})", portal.listen, portal.lets_in(), portal.group)
        };
        let same_place = |a: &crate::config::Portal, b: &crate::config::Portal| a.listen == b.listen;
        for portal in &old.portals {
            if !new.portals.iter().any(|other| same_place(other, portal)) {
                let told = "its connections stay until they end".to_owned();
                self.add(Kind::Removed, describe(portal), Some(told));
            }
        }
        for portal in &new.portals {
            match old.portals.iter().find(|other| same_place(other, portal)) {
                None => self.add(Kind::Added, describe(portal), None),
                Some(before) => {
                    let differences = before.differences(portal);
                    if !differences.is_empty() {
                        self.add(
                            Kind::Changed,
                            format!("{}: {}", describe(portal), joined(&differences)),
                            None,
                        );
                    }
                }
            }
        }
    }

    fn daemon(&mut self, old: &Config, new: &Config) {
        if old.discovery != new.discovery {
            self.add(Kind::Changed, "who may ask for the list of targets".into(), None);
        }
        self.settings("limit ", old.limits.differences(&new.limits));
        self.settings("iser ", old.iser.differences(&new.iser));
        self.settings("", old.daemon.differences(&new.daemon));
        match (&old.isns, &new.isns) {
            (Some(old), Some(new)) => self.settings("isns ", old.differences(new)),
            (None, None) => {}
            (Some(_), None) => self.at_next_start.push("isns: no server any more".to_owned()),
            (None, Some(new)) => self.at_next_start.push(format!("isns: {}", new.server)),
        }
        match (&old.http, &new.http) {
            (Some(old), Some(new)) => self.settings("http ", old.differences(new)),
            (None, None) => {}
            (Some(_), None) => self.at_next_start.push("http: no address any more".to_owned()),
            (None, Some(new)) => self.at_next_start.push(format!("http: {}", new.listen)),
        }
    }

    fn gateways(&mut self, old: &Config, new: &Config) {
        match (&old.gateways, &new.gateways) {
            (Some(before), Some(now)) => {
                self.group(before, now);
                self.images(old, new);
            }
            (None, None) => {}
            (Some(_), None) => {
                self.refused.push("gateways: a daemon leaves its group when it ends: restart it".to_owned())
            }
            (None, Some(_)) => {
                self.refused.push("gateways: a daemon joins a group when it starts: restart it".to_owned())
            }
        }
    }

    fn group(&mut self, old: &Gateways, new: &Gateways) {
        for found in old.differences(new) {
            match found.setting.name {
                // Portals have it, and all other gateways know it.
                "number" => self.refused.push(format!("gateways {found}: restart the daemon")),
                _ => self.at_next_start.push(format!("gateways {found}")),
            }
        }
        if old.secrets != new.secrets {
            let numbers: Vec<u32> = new.secrets.keys().copied().collect();
            self.at_next_start.push(format!("gateways: secrets {}", joined(&numbers)));
        }
        let differs = |one: &GatewayMember, other: &GatewayMember| one.number != other.number;
        for gone in old.members.iter().filter(|one| new.members.iter().all(|other| differs(one, other))) {
            self.at_next_start.push(format!("gateways: no gateway {} any more", gone.number));
        }
        for member in &new.members {
            match old.members.iter().find(|other| !differs(member, other)) {
                None => self.at_next_start.push(format!("gateways: gateway {}", member.number)),
                Some(before) => {
                    let found = before.differences(member).into_iter();
                    let of = format!("gateways: gateway {}", member.number);
                    self.at_next_start.extend(found.map(|found| format!("{of}: {found}")));
                }
            }
        }
    }

    fn images(&mut self, old: &Config, new: &Config) {
        let now = gateways::named(new);
        for (_, image) in gateways::named(old).iter().filter(|(unit, _)| !now.contains_key(unit)) {
            let lose = "its initiators lose it at all gateways".to_owned();
            self.add(Kind::Removed, format!("image {image} of the group"), Some(lose));
        }
    }

    fn exports(&mut self, old: &Config, new: &Config) {
        let (before, now) = (old.nfs_portals(), new.nfs_portals());
        let stay = "its connections stay until they end";
        for address in before.iter().filter(|address| !now.contains(address)) {
            self.add(Kind::Removed, format!("portal {address} for NFS"), Some(stay.to_owned()));
        }
        for address in now.iter().filter(|address| !before.contains(address)) {
            self.add(Kind::Added, format!("portal {address} for NFS"), None);
        }
        self.settings("nfs ", {
            let differences = old.nfs.differences(&new.nfs).into_iter();
            differences.filter(|found| !["listen", "verbs"].contains(&found.setting.name)).collect()
        });
        let stale = || Some("the handles that its clients have become stale".to_owned());
        let (olds, news) = (by_export(old), by_export(new));
        for export in old.exports.iter().filter(|one| !news.contains_key(one.name.as_str())) {
            self.add(Kind::Removed, format!("export {}", export.name), stale());
        }
        for export in &new.exports {
            let what = format!("export {}", export.name);
            let Some(before) = olds.get(export.name.as_str()) else {
                self.add(Kind::Added, what, None);
                continue;
            };
            let (later, now): (Vec<_>, Vec<_>) = before.differences(export).into_iter().partition(|found| {
                found.setting.when() == Applies::NextStart && before.shown == export.shown
            });
            self.at_next_start.extend(later.iter().map(|found| format!("{what}: {found}")));
            let mut differences: Vec<String> = now.iter().map(ToString::to_string).collect();
            differences.extend(of_clients(&before.clients, &export.clients));
            if !differences.is_empty() {
                let disturbs = stale().filter(|_| before.shown != export.shown);
                self.add(Kind::Changed, format!("{what}: {}", differences.join(", ")), disturbs);
            }
        }
    }

    /// Adds changed settings, each with the time when it applies.
    fn settings(&mut self, of: &str, differences: Vec<Difference>) {
        for found in differences {
            match found.setting.when() {
                Applies::NextStart => self.at_next_start.push(format!("{of}{found}")),
                when => self.add(Kind::Changed, format!("{of}{found}, {}", when.words()), None),
            }
        }
    }

    fn target(&mut self, old: &Target, new: &Target, sessions: &Sessions) {
        let name = &new.iqn;
        for found in old.differences(new) {
            let when = match found.setting.when() {
                Applies::AtOnce => String::new(),
                when => format!(", {}", when.words()),
            };
            let logged_out = "sessions through other groups are logged out";
            let disturbs = (found.setting.name == "groups").then(|| logged_out.to_owned());
            self.add(Kind::Changed, format!("target {name}: {found}{when}"), disturbs);
        }
        match (&old.alua, &new.alua) {
            (Some(old), Some(new)) => self.alua(name, old, new),
            (old, new) if old != new => self.add(Kind::Changed, format!("target {name}: alua"), None),
            _ => {}
        }
        if old.acls != new.acls {
            self.acls(old, new, sessions);
        }
    }

    fn alua(&mut self, name: &str, old: &Alua, new: &Alua) {
        for found in old.differences(new).iter().filter(|found| found.setting.name != "group") {
            self.add(Kind::Changed, format!("target {name}: alua {found}"), None);
        }
        for group in old.groups.iter().filter(|old| !new.groups.iter().any(|new| new.id == old.id)) {
            self.add(Kind::Removed, format!("target {name}: alua group {}", group.id), None);
        }
        for group in &new.groups {
            let what = format!("target {name}: alua group {}", group.id);
            match old.groups.iter().find(|old| old.id == group.id) {
                None => self.add(Kind::Added, what, None),
                Some(old) if old == group => {}
                Some(old) => {
                    let differences = joined(&old.differences(group));
                    self.add(Kind::Changed, format!("{what}: {differences}"), None);
                }
            }
        }
    }

    fn acls(&mut self, old: &Target, new: &Target, sessions: &Sessions) {
        let name = &new.iqn;
        let lost = {
            let target = convert::target_config(new, &Units::default());
            initiators(sessions, name, |one| !target.admits(&one.initiator, one.user.as_deref()))
        };
        let (none, all) = (Vec::new(), logged_out(&lost));
        match (&old.acls, &new.acls) {
            (None, Some(_)) => self.add(Kind::Changed, format!("target {name}: open to its ACLs only"), all),
            (Some(_), None) => {
                self.add(Kind::Changed, format!("target {name}: open to every initiator"), None)
            }
            (before, now) => {
                let (before, now) = (before.as_ref().unwrap_or(&none), now.as_ref().unwrap_or(&none));
                let mut all = all;
                let same = |a: &Acl, b: &Acl| a.initiator.eq_ignore_ascii_case(&b.initiator);
                for acl in before.iter().filter(|acl| !now.iter().any(|other| same(acl, other))) {
                    let what = format!("target {name}: access of {}", acl.initiator);
                    self.add(Kind::Removed, what, all.take());
                }
                for acl in now {
                    match before.iter().find(|other| same(acl, other)) {
                        None => {
                            self.add(Kind::Added, format!("target {name}: access of {}", acl.initiator), None)
                        }
                        Some(other) if other != acl => {
                            let differences = joined(&of_acl(other, acl));
                            let what = format!("target {name}: access of {}: {differences}", acl.initiator);
                            self.add(Kind::Changed, what, all.take());
                        }
                        Some(_) => {}
                    }
                }
                if !before.is_empty()
                    && before.len() == now.len()
                    && before.iter().all(|acl| now.contains(acl))
                {
                    self.add(Kind::Changed, format!("target {name}: the order of its ACLs"), all.take());
                }
            }
        }
    }

    fn units(&mut self, old: &Target, new: &Target, fates: &HashMap<Place, Fate>, sessions: &Sessions) {
        let name = &new.iqn;
        let iqn = units::name(name);
        // Only a target that changes asks for them.
        let who = LazyCell::new(|| initiators(sessions, name, |_| true));
        let told = || (!who.is_empty()).then(|| format!("{} told by unit attention", people(&who)));
        let before: HashMap<u16, &UnitSpec> = old.units.iter().map(|unit| (unit.lun, &unit.spec)).collect();
        let now: HashSet<u16> = new.units.iter().map(|unit| unit.lun).collect();
        for unit in old.units.iter().filter(|unit| !now.contains(&unit.lun)) {
            let what = format!("{name} LUN {}: {}", unit.lun, unit.spec.describe());
            let disturbs =
                (!who.is_empty()).then(|| format!("{} told; commands to it end with an error", people(&who)));
            self.add(Kind::Removed, what, disturbs);
        }
        for unit in &new.units {
            let what = |more: &str| format!("{name} LUN {}: {}{more}", unit.lun, unit.spec.describe());
            let fate = fates.get(&(iqn.clone(), unit.lun));
            let changed = |before: &UnitSpec| what(&format!(" ({})", joined(&of_unit(before, &unit.spec))));
            match (before.get(&unit.lun), fate) {
                (None, Some(Fate::Refused(_))) => {}
                (None, _) => self.add(Kind::Added, what(""), told()),
                (Some(_), Some(Fate::Resized(bytes))) => {
                    let size = backing::size::Size(*bytes);
                    self.add(Kind::Changed, format!("{name} LUN {}: size {size}", unit.lun), told());
                }
                (Some(before), Some(Fate::Limited)) if **before != unit.spec => {
                    self.add(Kind::Changed, changed(before), None);
                }
                (Some(before), Some(Fate::Changed)) if **before != unit.spec => {
                    self.add(
                        Kind::Changed,
                        changed(before),
                        told().filter(|_| before.is_told_anew(&unit.spec)),
                    );
                }
                (Some(before), Some(Fate::Opened | Fate::Same(_))) if **before != unit.spec => {
                    let disturbs = (!who.is_empty())
                        .then(|| format!("{} told; it is another unit than before", people(&who)));
                    self.add(Kind::Changed, changed(before), disturbs);
                }
                _ => {}
            }
        }
    }
}

/// Changes of an export's clients.
fn of_clients(old: &[Client], new: &[Client]) -> Vec<String> {
    let among = |list: &[Client], one: &Client| list.iter().any(|other| other.network == one.network);
    let gone =
        old.iter().filter(|one| !among(new, one)).map(|one| format!("no client {} any more", one.network));
    let came = new.iter().filter(|one| !among(old, one)).map(|one| format!("client {}", one.network));
    let changed = new.iter().filter_map(|one| {
        let before = old.iter().find(|other| other.network == one.network)?;
        let mut differences = before.differences(one);
        differences.extend(before.limits.differences(&one.limits));
        (!differences.is_empty()).then(|| format!("client {}: {}", one.network, joined(&differences)))
    });
    gone.chain(came).chain(changed).collect()
}

/// A target's name in the form in which names are compared.
fn key(target: &Target) -> String {
    target.iqn.to_ascii_lowercase()
}

fn by_name(config: &Config) -> HashMap<String, &Target> {
    config.targets.iter().map(|target| (key(target), target)).collect()
}

fn by_export(config: &Config) -> HashMap<&str, &Export> {
    config.exports.iter().map(|export| (export.name.as_str(), export)).collect()
}

fn initiators(sessions: &Sessions, target: &str, which: impl Fn(&LoggedIn) -> bool) -> Vec<String> {
    let of = |one: &&LoggedIn| one.target.eq_ignore_ascii_case(target) && which(one);
    let mut all: Vec<String> = sessions.iter().filter(of).map(|one| one.initiator.clone()).collect();
    all.sort_unstable();
    all.dedup();
    all
}

fn people(who: &[String]) -> String {
    match who {
        [] => "nobody is".into(),
        [one] => format!("{one} is"),
        [a, b] => format!("{a} and {b} are"),
        [first, others @ ..] => format!("{first} and {} others are", others.len()),
    }
}

fn logged_out(who: &[String]) -> Option<String> {
    (!who.is_empty()).then(|| format!("{} asked to log out, and disconnected after 2 s", people(who)))
}

/// Changes of an ACL.
fn of_acl(old: &Acl, new: &Acl) -> Vec<String> {
    told(old.differences(new).into_iter().chain(old.limits.differences(&new.limits)))
}

/// Changes of a unit.
fn of_unit(old: &UnitSpec, new: &UnitSpec) -> Vec<String> {
    let (before, now) = (&old.options, &new.options);
    let path =
        (old.backing != new.backing).then(|| format!("path: {} instead of {}", new.backing, old.backing));
    let options = before.differences(now).into_iter().chain(before.limits.differences(&now.limits));
    path.into_iter().chain(told(options)).collect()
}

fn told(differences: impl Iterator<Item = Difference>) -> Vec<String> {
    differences.map(|found| found.to_string()).collect()
}

/// `differences`, one after the other.
fn joined<T: ToString>(differences: &[T]) -> String {
    differences.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests;
