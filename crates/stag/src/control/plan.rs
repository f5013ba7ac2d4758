//! What a configuration would change of another, in plain words: what comes, goes or changes, and who is disturbed by it.

use std::collections::{HashMap, HashSet};

use serde::{Deserialize, Serialize};

use crate::config::{Acl, Config, Limits, Target, iser};
use crate::convert;
use crate::unit::UnitSpec;
use crate::units::{Fate, Place, Units, place};

/// Everything that changes.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Plan {
    /// What changes at once.
    pub changes: Vec<Change>,
    /// What holds from the daemon's next start on.
    pub at_next_start: Vec<String>,
    /// What cannot be done; then nothing is.
    pub refused: Vec<String>,
}

/// One change.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Change {
    /// What kind it is.
    pub kind: Kind,
    /// What changes.
    pub what: String,
    /// Who is disturbed, and how.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub disturbs: Option<String>,
}

/// Kinds of changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Kind {
    /// It is new.
    Added,
    /// It goes.
    Removed,
    /// It becomes another.
    Changed,
}

/// Who is logged in: the target's name and the initiator's.
pub type Sessions = Vec<(String, String)>;

impl Plan {
    /// What `new` changes of `old`.
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
            for lun in &target.units {
                if let Some(Fate::Refused(why)) = fates.get(&place(&target.iqn, lun.lun)) {
                    plan.refused.push(format!("{} LUN {}: {why}", target.iqn, lun.lun));
                }
            }
            if let Some(before) = before {
                plan.units(before, target, fates, sessions);
            }
        }
        plan
    }

    /// Whether nothing changes.
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

    fn add(&mut self, kind: Kind, what: String, disturbs: Option<String>) {
        self.changes.push(Change { kind, what, disturbs });
    }

    fn portals(&mut self, old: &Config, new: &Config) {
        let describe = |portal: &crate::config::Portal| {
            format!(
                "portal {} for {} (group {})",
                portal.listen,
                iser::describe(portal.transports),
                portal.group
            )
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
                Some(before) if before != portal => self.add(Kind::Changed, describe(portal), None),
                Some(_) => {}
            }
        }
    }

    fn daemon(&mut self, old: &Config, new: &Config) {
        if old.discovery != new.discovery {
            self.add(Kind::Changed, "who may ask for the list of targets".into(), None);
        }
        let shown = |value: Option<u64>| value.map_or("its default".to_owned(), |value| value.to_string());
        for ((name, before), (_, now)) in limits(&old.limits).into_iter().zip(limits(&new.limits)) {
            if before != now {
                let what =
                    format!("limit {name}: {} instead of {}, for new logins", shown(now), shown(before));
                self.add(Kind::Changed, what, None);
            }
        }
        if old.limits != new.limits && !self.changes.iter().any(|change| change.what.starts_with("limit ")) {
            self.add(Kind::Changed, "limits, for new logins".into(), None);
        }
        if old.iser != new.iser {
            self.add(Kind::Changed, "how iSER is spoken, for new connections".into(), None);
        }
        if old.zero_copy != new.zero_copy {
            self.add(Kind::Changed, "zero-copy, for new connections".into(), None);
        }
        let fixed = [
            ("cores", old.cores != new.cores),
            ("spin", old.spin_us != new.spin_us),
            ("pool", old.pool_bytes != new.pool_bytes),
            ("log", old.log != new.log),
            ("isns", old.isns != new.isns),
        ];
        self.at_next_start
            .extend(fixed.iter().filter(|(_, differs)| *differs).map(|(name, _)| (*name).to_owned()));
    }

    fn target(&mut self, old: &Target, new: &Target, sessions: &Sessions) {
        let name = &new.iqn;
        if old.alias != new.alias {
            self.add(Kind::Changed, format!("target {name}: alias \"{}\"", new.alias), None);
        }
        if old.groups != new.groups {
            let what = format!("target {name}: portal groups {:?}", new.groups);
            self.add(Kind::Changed, what, Some("sessions through other groups are logged out".into()));
        }
        if old.auth != new.auth {
            self.add(Kind::Changed, format!("target {name}: authentication, for new logins"), None);
        }
        if old.acls != new.acls {
            self.acls(old, new, sessions);
        }
        let rest = |target: &Target| Target {
            alias: String::new(),
            groups: Vec::new(),
            auth: Default::default(),
            units: Vec::new(),
            acls: None,
            ..target.clone()
        };
        if rest(old) != rest(new) {
            self.add(Kind::Changed, format!("target {name}: its other settings"), None);
        }
    }

    fn acls(&mut self, old: &Target, new: &Target, sessions: &Sessions) {
        let name = &new.iqn;
        let lost = {
            let target = convert::target_config(new, &Units::default());
            initiators(sessions, name, |initiator| !target.admits(initiator))
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
                            self.add(
                                Kind::Changed,
                                format!("target {name}: access of {}", acl.initiator),
                                all.take(),
                            );
                        }
                        Some(_) => {}
                    }
                }
            }
        }
    }

    fn units(&mut self, old: &Target, new: &Target, fates: &HashMap<Place, Fate>, sessions: &Sessions) {
        let name = &new.iqn;
        let who = initiators(sessions, name, |_| true);
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
            let fate = fates.get(&place(name, unit.lun));
            match (before.get(&unit.lun), fate) {
                (None, Some(Fate::Refused(_))) => {}
                (None, _) => self.add(Kind::Added, what(""), told()),
                (Some(_), Some(Fate::Resized(bytes))) => {
                    let size = backing::size::Size(*bytes);
                    self.add(Kind::Changed, format!("{name} LUN {}: size {size}", unit.lun), told());
                }
                (Some(before), Some(Fate::Limited)) if **before != unit.spec => {
                    self.add(Kind::Changed, what(""), None);
                }
                (Some(before), Some(Fate::Changed)) if **before != unit.spec => {
                    self.add(Kind::Changed, what(""), told().filter(|_| before.is_told_anew(&unit.spec)));
                }
                (Some(before), Some(Fate::Opened | Fate::Same(_))) if **before != unit.spec => {
                    let disturbs = (!who.is_empty())
                        .then(|| format!("{} told; it is another unit than before", people(&who)));
                    self.add(Kind::Changed, what(""), disturbs);
                }
                _ => {}
            }
        }
    }
}

/// A target's name as names are compared.
fn key(target: &Target) -> String {
    target.iqn.to_ascii_lowercase()
}

fn by_name(config: &Config) -> HashMap<String, &Target> {
    config.targets.iter().map(|target| (key(target), target)).collect()
}

/// The initiators with sessions to `target`.
fn initiators(sessions: &Sessions, target: &str, which: impl Fn(&str) -> bool) -> Vec<String> {
    let of = |(name, initiator): &&(String, String)| name.eq_ignore_ascii_case(target) && which(initiator);
    let mut all: Vec<String> = sessions.iter().filter(of).map(|(_, initiator)| initiator.clone()).collect();
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

/// Limits by their names in the configuration.
fn limits(limits: &Limits) -> Vec<(&'static str, Option<u64>)> {
    vec![
        ("connections", limits.connections.map(u64::from)),
        ("logins", limits.logins.map(u64::from)),
        ("sessions", limits.sessions.map(u64::from)),
        ("connections-per-session", limits.connections_per_session.map(u64::from)),
        ("queue-depth", limits.queue_depth.map(u64::from)),
        ("max-recv-data-segment", limits.max_recv_data_segment.map(u64::from)),
        ("max-burst", limits.max_burst.map(u64::from)),
        ("first-burst", limits.first_burst.map(u64::from)),
        ("max-outstanding-r2t", limits.max_outstanding_r2t.map(u64::from)),
        ("login-timeout", limits.login_timeout.map(u64::from)),
        ("nop-interval", limits.nop_interval.map(u64::from)),
        ("nop-timeout", limits.nop_timeout.map(u64::from)),
        ("send-high-water", limits.send_high_water.map(u64::from)),
    ]
}
