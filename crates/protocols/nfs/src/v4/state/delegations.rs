//! Owns the read delegations: given, recalled, revoked (RFC 8881 §10.2, §10.4).

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use invariant::{broken, invariant};
use rpc::xdr::{Malformed, Reader, Writer};

use super::files::FileNo;
use super::saved::{Saved, saved};
use super::stateid::StateNo;
use crate::v4::ClientId;

/// A recall that is not answered by a DELEGRETURN yet.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Recall {
    since: Duration,
    /// CB_RECALL is outstanding or answered.
    sent: bool,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Delegation {
    pub(super) client: ClientId,
    pub(super) file: FileNo,
    recall: Option<Recall>,
    /// The client did not return it in time. It is kept until FREE_STATEID.
    pub(super) revoked: bool,
}

/// All delegations. Fields after the second are derived from the first.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Delegations {
    all: BTreeMap<StateNo, Delegation>,
    /// Files that get no delegation, and until when.
    cooling: BTreeMap<FileNo, Duration>,
    by_file: BTreeSet<(FileNo, StateNo)>,
    by_client: BTreeSet<(ClientId, StateNo)>,
    recalled: BTreeSet<(ClientId, StateNo)>,
    /// Revoked ones of each client.
    revoked: BTreeSet<(ClientId, StateNo)>,
}

saved! {
    Recall { since, sent }
    Delegation { client, file, recall, revoked }
}

impl Saved for Delegations {
    fn save(&self, to: &mut Writer<'_>) {
        self.all.save(to);
        self.cooling.save(to);
    }

    fn load(from: &mut Reader<'_>) -> Result<Self, Malformed> {
        let mut delegations = Delegations::default();
        for (number, delegation) in BTreeMap::<StateNo, Delegation>::load(from)? {
            delegations.insert(number, delegation);
        }
        delegations.cooling = Saved::load(from)?;
        Ok(delegations)
    }
}

impl Delegations {
    pub(super) fn len(&self) -> usize {
        self.all.len()
    }

    /// Delegations, and files that get none for a while.
    pub(super) fn burden(&self) -> usize {
        self.all.len() + self.cooling.len()
    }

    pub(super) fn get(&self, number: StateNo) -> Option<&Delegation> {
        self.all.get(&number)
    }

    pub(super) fn has_file(&self, file: FileNo) -> bool {
        self.cooling.contains_key(&file) || self.of_file(file).next().is_some()
    }

    /// The delegations of a file, revoked ones too.
    fn of_file(&self, file: FileNo) -> impl Iterator<Item = (StateNo, &Delegation)> {
        let numbers = self.by_file.range((file, 0)..=(file, StateNo::MAX));
        numbers.filter_map(move |(_, number)| {
            let delegation = self.all.get(number);
            invariant!(delegation.is_some(), "delegation {number} of file {file} has gone");
            Some((*number, delegation?))
        })
    }

    /// The delegations of a file that clients hold, without those of `except`.
    pub(super) fn held(&self, file: FileNo, except: Option<ClientId>) -> Vec<(StateNo, ClientId)> {
        let held = self.of_file(file).filter(|(_, it)| !it.revoked && Some(it.client) != except);
        held.map(|(number, it)| (number, it.client)).collect()
    }

    pub(super) fn is_held_by(&self, file: FileNo, client: ClientId) -> bool {
        self.of_file(file).any(|(_, it)| it.client == client)
    }

    pub(super) fn of_client(&self, client: ClientId) -> Vec<StateNo> {
        self.by_client.range((client, 0)..=(client, StateNo::MAX)).map(|(_, number)| *number).collect()
    }

    /// The client has a revoked delegation that it did not free.
    pub(super) fn has_revoked(&self, client: ClientId) -> bool {
        self.revoked.range((client, 0)..=(client, StateNo::MAX)).next().is_some()
    }

    /// A delegation of the file was recalled not long ago.
    pub(super) fn is_cooling(&self, file: FileNo) -> bool {
        self.cooling.contains_key(&file)
    }

    pub(super) fn give(&mut self, number: StateNo, client: ClientId, file: FileNo) {
        self.insert(number, Delegation { client, file, recall: None, revoked: false });
    }

    fn insert(&mut self, number: StateNo, delegation: Delegation) {
        self.by_file.insert((delegation.file, number));
        self.by_client.insert((delegation.client, number));
        if delegation.revoked {
            self.revoked.insert((delegation.client, number));
        } else if delegation.recall.is_some() {
            self.recalled.insert((delegation.client, number));
        }
        self.all.insert(number, delegation);
    }

    /// DELEGRETURN, FREE_STATEID, or the end of the client. Returns the file.
    pub(super) fn remove(&mut self, number: StateNo) -> Option<FileNo> {
        let delegation = self.all.remove(&number)?;
        self.by_file.remove(&(delegation.file, number));
        self.by_client.remove(&(delegation.client, number));
        self.recalled.remove(&(delegation.client, number));
        self.revoked.remove(&(delegation.client, number));
        Some(delegation.file)
    }

    /// Begins to recall a delegation, unless that has begun. `sent`: OPEN's results carried the
    /// recall.
    pub(super) fn recall(&mut self, now: Duration, number: StateNo, cooling: Duration, sent: bool) {
        let Some(delegation) = self.all.get_mut(&number).filter(|it| it.recall.is_none()) else { return };
        delegation.recall = Some(Recall { since: now, sent });
        self.cooling.insert(delegation.file, now + cooling);
        self.recalled.insert((delegation.client, number));
    }

    /// The clients of whom something is recalled.
    pub(super) fn recalled(&self) -> impl Iterator<Item = ClientId> {
        self.recalled.iter().map(|(client, _)| *client)
    }

    /// Recalls to send to a client.
    pub(super) fn unsent(&self, client: ClientId) -> Vec<StateNo> {
        let recalled = self.recalled.range((client, 0)..=(client, StateNo::MAX)).map(|(_, number)| *number);
        let unsent = recalled.filter(|it| {
            let recall = self.all.get(it).and_then(|it| it.recall.as_ref());
            recall.is_some_and(|it| !it.sent)
        });
        unsent.collect()
    }

    /// Notes that CB_RECALL was sent, or that it has to be sent again.
    pub(super) fn set_sent(&mut self, number: StateNo, sent: bool) {
        if let Some(recall) = self.all.get_mut(&number).and_then(|it| it.recall.as_mut()) {
            recall.sent = sent;
        }
    }

    /// Revokes the delegations that were recalled `time` ago or earlier. Returns their clients.
    pub(super) fn revoke_overdue(&mut self, now: Duration, time: Duration) -> BTreeSet<ClientId> {
        let mut clients = BTreeSet::new();
        for (client, number) in self.recalled.clone() {
            let Some(delegation) = self.all.get_mut(&number) else {
                broken!("delegation {number} is recalled and has gone");
                continue;
            };
            let since = delegation.recall.as_ref().map_or(now, |it| it.since);
            if now.saturating_sub(since) >= time {
                delegation.revoked = true;
                self.revoked.insert((client, number));
                self.recalled.remove(&(client, number));
                clients.insert(client);
            }
        }
        clients
    }

    /// Ends the time without delegations of files. Returns these.
    pub(super) fn cooled(&mut self, now: Duration) -> Vec<FileNo> {
        let over: Vec<FileNo> =
            self.cooling.iter().filter(|(_, until)| **until <= now).map(|(file, _)| *file).collect();
        over.iter().for_each(|it| {
            self.cooling.remove(it);
        });
        over
    }
}
