//! The thread that carries out the group's decisions: it opens and closes this gateway's units,
//! routes commands for others, admits peers, and sets the access states of paths.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, PoisonError};

use ceph::RbdStore;
use ceph::group::{Report, Serving};
use cluster::{GatewayId, InstanceId, Place, UnitId, View};
use device::PortGroups;
use peer_link::Secret;
use peer_units::{Begun, Gate, Life, OwnerAt};
use runtime::{Receiver, Sender};
use scsi::data::target_port_groups::AccessState;
use server_core::audit::TARGET;

use super::host::{HostAt, Members};
use super::units::{Owned, SharedUnit, Units};

/// A message to the thread.
pub enum Told {
    Group(Report),
    /// A unit's disk is made, or cannot be, for the number of the order.
    Made(u64, Serving, Result<Owned, String>),
    /// A unit more is added here.
    Added(Arc<SharedUnit>),
}

pub struct Driver {
    units: Arc<Units>,
    host: HostAt,
    members: Members,
    tell: Sender<Told>,
    /// This life of the gateway.
    instance: u64,
    /// The number of the secret in use.
    secret: Option<u32>,
    /// Counts orders to serve a unit.
    orders: u64,
    /// The last order of each unit that the group wants served here.
    wanted: BTreeMap<u32, u64>,
    here: BTreeMap<u32, (Serving, Owned, Arc<SharedUnit>)>,
    /// The last view of the group.
    seen: View,
    /// The last owner of each unit.
    owners: BTreeMap<UnitId, GatewayId>,
    /// The group has this life of the gateway.
    is_in: bool,
    /// Stores of earlier lives, which may still write.
    ending: Vec<(u64, Arc<RbdStore>)>,
}

impl Driver {
    pub fn new(units: Arc<Units>, host: HostAt, members: Members, tell: Sender<Told>) -> Self {
        Self {
            units,
            host,
            members,
            tell,
            instance: 0,
            secret: None,
            orders: 0,
            wanted: BTreeMap::new(),
            here: BTreeMap::new(),
            seen: View::default(),
            owners: BTreeMap::new(),
            is_in: false,
            ending: Vec::new(),
        }
    }

    /// Runs until the last life is over.
    pub fn run(mut self, told: &Receiver<Told>) {
        while let Ok(told) = told.recv() {
            match told {
                Told::Group(Report::Begins { instance, .. }) => self.begins(instance.0),
                Told::Group(Report::Serve(serving)) => self.serve(serving),
                Told::Group(Report::Gone(unit)) => self.gone(unit),
                Told::Group(Report::Changed(view)) => self.changed(&view),
                Told::Group(Report::Over { why, last: false }) => self.out(&why),
                Told::Group(Report::Over { last: true, .. }) => return self.units.peers.leave(),
                // It is logged where it comes from.
                Told::Group(Report::Problem(_)) => {}
                Told::Made(order, serving, made) => self.made(order, serving, made),
                Told::Added(unit) => self.added(&unit),
            }
        }
    }

    fn begins(&mut self, instance: u64) {
        self.instance = instance;
        let Some(newest) = self.units.config.secrets.iter().next_back() else { return };
        self.secret = Some(*newest.0);
        let secret = (*newest.0, newest.1.clone());
        self.units.peers.renew(Life { instance, secret, versions: peer_link::VERSIONS });
        self.host.with(move |host| host.renew(instance));
    }

    fn serve(&mut self, serving: Serving) {
        let number = serving.unit().0;
        self.orders += 1;
        self.wanted.insert(number, self.orders);
        let Some(unit) = self.units.unit(number) else {
            tracing::error!(number, "a unit of the group is not in this gateway's configuration");
            return serving.not_opened();
        };
        let (tell, order, again) = (self.tell.clone(), self.orders, serving.clone());
        let make = move || {
            let made = unit.open(&serving);
            // The receiver is gone when the daemon ends.
            let _ = tell.send(Told::Made(order, serving, made));
        };
        if let Err(error) = runtime::thread("gateway-open", make) {
            tracing::error!(%error, "a unit of the group cannot be opened yet: there is no thread");
            again.not_opened();
        }
    }

    fn made(&mut self, order: u64, serving: Serving, made: Result<Owned, String>) {
        let number = serving.unit().0;
        if self.wanted.get(&number) != Some(&order) {
            return let_go((serving, made));
        }
        let Some(unit) = self.units.unit(number) else {
            // It was taken out of this gateway while it was being opened.
            made.into_iter().for_each(|owned| owned.store.over());
            return serving.not_opened();
        };
        match made {
            Err(error) => {
                tracing::warn!(image = %unit.name, error, "a unit that is this gateway's now is not open yet");
                unit.health.failed(error);
                serving.not_opened();
            }
            Ok(owned) => {
                tracing::info!(image = %unit.name, "this gateway owns the unit");
                let gate = gate(&serving);
                unit.unit.serve(&owned.disk, gate.clone());
                unit.health.recovered();
                let (disk, opened) = (owned.disk.clone(), serving.clone());
                self.host.with(move |host| {
                    host.serve_unit(number, disk, gate);
                    opened.opened();
                });
                self.here.insert(number, (serving, owned, unit));
            }
        }
    }

    fn gone(&mut self, unit: UnitId) {
        self.wanted.remove(&unit.0);
        let Some((serving, owned, shared)) = self.here.remove(&unit.0) else { return };
        tracing::info!(image = %shared.name, "this gateway owns the unit no more");
        shared.unit.stop();
        self.host.with(move |host| host.stop_unit(unit.0));
        match serving.is_idle() {
            true => owned.store.over(),
            // They end when the cluster refuses this life.
            false => self.ending.push((self.instance, owned.store.clone())),
        }
        let_go((serving, owned));
    }

    fn added(&mut self, unit: &Arc<SharedUnit>) {
        let (number, ports) = (unit.number, unit.unit.ports().clone());
        self.host.with(move |host| host.add_unit(number, &ports));
        // It was taken out and is back before the group has let go of it.
        if let Some((serving, owned, before)) = self.here.get_mut(&number) {
            std::mem::replace(before, unit.clone()).unit.stop();
            unit.unit.serve(&owned.disk, gate(serving));
        }
        // Its owner may be known already.
        let seen = self.seen.clone();
        self.changed(&seen);
    }

    /// A life is over: commands wait for the next one.
    fn out(&mut self, why: &str) {
        self.is_in = false;
        for unit in self.units.all() {
            unit.health.failed(format!("this gateway is out of the group: {why}"));
        }
    }

    fn changed(&mut self, view: &View) {
        let own = (GatewayId(self.units.config.number), InstanceId(self.instance));
        let mut counts = self.units.counts();
        counts.add(&self.seen, view, own);
        self.units.set_counts(counts);
        self.seen.clone_from(view);
        let now: BTreeSet<(u16, u64)> =
            view.gateways.iter().map(|row| (row.gateway.0, row.instance.0)).collect();
        let is_in = now.contains(&(self.units.config.number, self.instance));
        if is_in && !std::mem::replace(&mut self.is_in, is_in) {
            self.units.all().iter().for_each(|unit| unit.health.recovered());
        }
        let before = {
            let mut members = self.members.lock().unwrap_or_else(PoisonError::into_inner);
            std::mem::replace(&mut *members, now.clone())
        };
        for (gateway, instance) in now.difference(&before) {
            let instance = format!("{instance:016x}");
            tracing::info!(target: TARGET, what = "gateway-in", gateway, instance, "a gateway is in the group");
        }
        for (gateway, instance) in before.difference(&now).copied() {
            let fenced = view.fences.iter().any(|fence| fence.instance.0 == instance);
            let name = format!("{instance:016x}");
            tracing::warn!(
                target: TARGET,
                what = "gateway-out",
                gateway,
                instance = name,
                fenced,
                "a gateway is out of the group"
            );
            // One that has left has no commands any more. Of a removed record nothing is on the
            // blocklist: the design page's weaker spots say what follows.
            self.units.peers.fenced(instance);
            self.host.with(move |host| host.forget(instance));
        }
        let own = self.instance;
        self.ending.retain(|(instance, store)| {
            let may_write = *instance == own || now.iter().any(|(_, member)| member == instance);
            if !may_write {
                store.over();
            }
            may_write
        });
        self.use_secret(view);
        if let Some(newest) = view.protocol {
            self.units.peers.use_version(newest);
        }
        // A view has its units in order.
        let is_served = |unit: UnitId| view.units.binary_search_by_key(&unit, |(unit, _)| *unit).is_ok();
        self.units.peers.keep(|unit| is_served(UnitId(unit)));
        self.owners.retain(|unit, _| is_served(*unit));
        let served = view.units.iter().map(|(unit, _)| unit.0);
        let known: BTreeSet<u32> = served.chain(self.units.all().iter().map(|unit| unit.number)).collect();
        self.host.with(move |host| host.keep_units(&known));
        let mut paths = Vec::new();
        for (unit, place) in &view.units {
            let by = match place {
                Place::Owned { by } => Some(*by),
                Place::Vacant | Place::Moving { .. } => None,
            };
            self.units.peers.set_owner(unit.0, by.and_then(|by| self.owner_at(view, by)));
            if let (Some(by), Some(shared)) = (by, self.units.unit(unit.0)) {
                // Who joins hears of all owners at once: that is no news.
                if self.owners.insert(*unit, by).is_some_and(|before| before != by) {
                    let (image, gateway) = (shared.name.to_string(), by.0);
                    tracing::info!(target: TARGET, what = "owner", image, gateway, "a unit has another owner");
                }
                paths.push((shared, by));
            }
        }
        let members: BTreeSet<u16> = now.iter().map(|(gateway, _)| *gateway).collect();
        self.host.spawn(move || async move {
            for (unit, by) in paths {
                tell_paths(&unit, by, &members).await;
            }
        });
    }

    /// Uses the newest secret that all gateways have.
    fn use_secret(&mut self, view: &View) {
        let Some(number) = view.secret.filter(|number| Some(*number) != self.secret) else { return };
        let secret: Option<&Secret> = self.units.config.secrets.get(&number);
        match secret {
            Some(secret) => {
                self.secret = Some(number);
                self.units.peers.use_secret((number, secret.clone()));
            }
            None => tracing::error!(number, "the group uses a secret that this gateway does not have"),
        }
    }

    /// Where another gateway takes commands.
    fn owner_at(&self, view: &View, by: GatewayId) -> Option<OwnerAt> {
        if by.0 == self.units.config.number {
            return None;
        }
        let row = view.gateways.iter().find(|row| row.gateway == by)?;
        let Some(address) = self.units.config.links.get(&by.0).copied() else {
            tracing::error!(
                gateway = by.0,
                "a gateway of the group is no member in this one's configuration"
            );
            return None;
        };
        Some(OwnerAt { instance: row.instance.0, address })
    }
}

/// Drops what may have the last share of an image on a thread of its own: closing waits for the
/// cluster, and what the group reports next must not.
fn let_go(last: impl Send + 'static) {
    if let Err(error) = runtime::thread("gateway-close", move || drop(last)) {
        tracing::warn!(%error, "an image was closed without a thread of its own");
    }
}

/// Lets a unit's commands begin while it is this gateway's.
fn gate(serving: &Serving) -> Gate {
    let serving = serving.clone();
    Arc::new(move || serving.begin().map(|begun| Box::new(begun) as Begun))
}

/// Sets the access states of a unit's ports.
async fn tell_paths(unit: &SharedUnit, owner: GatewayId, members: &BTreeSet<u16>) {
    let ports: &Arc<PortGroups> = unit.unit.ports();
    for group in ports.groups() {
        let state = match group.id {
            id if id == owner.0 => AccessState::ActiveOptimized,
            id if members.contains(&id) => AccessState::ActiveNonOptimized,
            _ => AccessState::Unavailable,
        };
        if group.state != state
            && let Err(error) = ports.change(group.id, state).await
        {
            tracing::warn!(image = %unit.name, group = group.id, %error, "the state of paths is not told");
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    /// An image whose closing waits for an OSD, and which tells when it is closed.
    struct Image(Receiver<()>, Sender<()>);

    impl Drop for Image {
        fn drop(&mut self) {
            // Without an end, a thread that waits for it would never fail its test.
            let _ = self.0.recv_timeout(Duration::from_secs(60));
            let _ = self.1.send(());
        }
    }

    #[test]
    fn an_image_beside_a_silent_osd_does_not_hold_up_the_thread() {
        let ((answer, answers), (tell, closed)) = (runtime::channel(), runtime::channel());
        let_go(Image(answers, tell));
        assert!(closed.recv_timeout(Duration::ZERO).is_err(), "it is not closed yet");
        answer.send(()).expect("the image waits for it");
        closed.recv().expect("it is closed");
    }
}
