//! Owns what clients hold of files: opens, locks and delegations, and the rules between them. A
//! file is a number here, and an expired client is one like any other.

use std::collections::BTreeSet;
use std::time::Duration;

use invariant::broken;

use super::delegations::Delegations;
use super::files::FileNo;
use super::limits::Limits;
use super::locks::{Denied, Locks, Wanted};
use super::opens::{Open, Opens, Share};
use super::ranges::Range;
use super::saved::saved;
use super::stateid::{Names, StateNo, check_seqid};
use crate::v4::{ClientId, ShareAccess, Stateid, Status, WhyNoDelegation};

/// State of other clients that is in the way.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Conflict {
    pub(super) status: Status,
    /// The clients that hold it.
    pub(super) clients: BTreeSet<ClientId>,
    /// Delegations to recall.
    pub(super) recall: Vec<StateNo>,
    /// The lock in the way.
    pub(super) denied: Option<Denied>,
}

/// Reasons for which an operation is not done.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Refusal {
    Status(Status),
    Conflict(Box<Conflict>),
}

impl From<Status> for Refusal {
    fn from(status: Status) -> Self {
        Refusal::Status(status)
    }
}

/// The lock owner of a LOCK, new or existing.
#[derive(Debug, Clone, Copy)]
pub enum Locker<'a> {
    /// A lock owner that may have no locks of the file yet, and an open of the file.
    New {
        /// The open.
        open: Stateid,
        /// The lock owner. Its client is that of the session.
        owner: &'a [u8],
    },
    /// The locks with this stateid.
    Existing(Stateid),
}

/// The opens, locks and delegations of all clients, and the names of their stateids.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Holdings {
    pub(super) names: Names,
    pub(super) opens: Opens,
    pub(super) locks: Locks,
    pub(super) delegations: Delegations,
}

saved! { Holdings { names, opens, locks, delegations } }

/// The state that a stateid names.
enum Found<'a> {
    Open(&'a Open),
    Locks(StateNo),
    Delegation(FileNo),
}

impl Holdings {
    pub(super) fn new(start: u32) -> Self {
        Holdings {
            names: Names::new(start),
            opens: Opens::default(),
            locks: Locks::default(),
            delegations: Delegations::default(),
        }
    }

    pub(super) fn has_client(&self, client: ClientId) -> bool {
        self.opens.count(client) > 0
            || self.locks.count(client) > 0
            || !self.delegations.of_client(client).is_empty()
    }

    pub(super) fn has_file(&self, file: FileNo) -> bool {
        self.opens.has_file(file) || self.locks.has_file(file) || self.delegations.has_file(file)
    }

    /// Removes all that a client holds. Returns the files.
    pub(super) fn remove_client(&mut self, client: ClientId) -> BTreeSet<FileNo> {
        let mut files = BTreeSet::new();
        files.extend(self.locks.forget_waiting(|it, _| it == client));
        for number in self.opens.of_client(client).collect::<Vec<_>>() {
            files.extend(self.remove_open(number));
        }
        for number in self.delegations.of_client(client) {
            files.extend(self.delegations.remove(number));
        }
        files
    }

    /// Removes an open and the locks made with it.
    fn remove_open(&mut self, number: StateNo) -> Option<FileNo> {
        for locks in self.locks.of_open(number) {
            self.locks.remove(locks);
        }
        self.opens.take(number).map(|(_, open)| open.file)
    }

    /// Finds the state that a client's stateid names (RFC 8881 §8.2.4).
    ///
    /// # Errors
    /// BAD_STATEID, OLD_STATEID, DELEG_REVOKED.
    fn find(&self, client: ClientId, stateid: &Stateid) -> Result<(StateNo, Found<'_>), Status> {
        if stateid.is_special() {
            return Err(Status::BadStateid);
        }
        let number = self.names.number(stateid)?;
        let (owner, seqid, found) = if let Some(open) = self.opens.get(number) {
            (open.client, open.seqid, Found::Open(open))
        } else if let Some(held) = self.locks.get(number) {
            (held.client, held.seqid, Found::Locks(held.open))
        } else if let Some(delegation) = self.delegations.get(number) {
            if delegation.client == client && delegation.revoked {
                return Err(Status::DelegRevoked);
            }
            (delegation.client, 1, Found::Delegation(delegation.file))
        } else {
            return Err(Status::BadStateid);
        };
        if owner != client {
            return Err(Status::BadStateid);
        }
        check_seqid(stateid.seqid, seqid)?;
        Ok((number, found))
    }

    fn find_open(&self, client: ClientId, stateid: &Stateid) -> Result<(StateNo, &Open), Status> {
        match self.find(client, stateid)? {
            (number, Found::Open(open)) => Ok((number, open)),
            _ => Err(Status::BadStateid),
        }
    }

    /// TEST_STATEID of one stateid (RFC 8881 §18.48).
    pub(super) fn test(&self, client: ClientId, stateid: &Stateid) -> Result<(), Status> {
        self.find(client, stateid).map(|_| ())
    }

    /// FREE_STATEID (RFC 8881 §18.38). Returns the file.
    pub(super) fn free(&mut self, client: ClientId, stateid: &Stateid) -> Result<Option<FileNo>, Status> {
        match self.find(client, stateid) {
            Ok((number, Found::Locks(_))) => {
                let Some(held) = self.locks.get(number).filter(|it| it.ranges.len() == 0) else {
                    return Err(Status::LocksHeld);
                };
                let file = held.file;
                self.locks.remove(number);
                Ok(Some(file))
            }
            Ok(_) => Err(Status::LocksHeld),
            Err(Status::DelegRevoked) => Ok(self.delegations.remove(self.names.number(stateid)?)),
            Err(status) => Err(status),
        }
    }

    /// Delegations of other clients are in the way of a change of the file.
    pub(super) fn check_delegations(&self, file: FileNo, except: Option<ClientId>) -> Result<(), Refusal> {
        let held = self.delegations.held(file, except);
        if held.is_empty() {
            return Ok(());
        }
        Err(Refusal::Conflict(Box::new(Conflict {
            status: Status::Delay,
            clients: held.iter().map(|(_, client)| *client).collect(),
            recall: held.into_iter().map(|(number, _)| number).collect(),
            denied: None,
        })))
    }

    /// Opens are in the way of `access` or `deny`, which are sets of bits. `except` is an open that
    /// does not count.
    fn check_shares(
        &self,
        file: FileNo,
        (access, deny): (u32, u32),
        except: Option<StateNo>,
        status: Status,
    ) -> Result<(), Refusal> {
        let conflicts = self.opens.conflicts(file, access, deny);
        let clients: BTreeSet<ClientId> = conflicts
            .iter()
            .filter(|(number, _)| Some(*number) != except)
            .map(|(_, open)| open.client)
            .collect();
        if clients.is_empty() {
            return Ok(());
        }
        Err(Refusal::Conflict(Box::new(Conflict { status, clients, recall: Vec::new(), denied: None })))
    }

    /// Whether the client may have one more open.
    pub(super) fn has_room(&self, client: ClientId, limits: &Limits) -> bool {
        self.opens.count(client) < limits.opens && self.opens.len() < limits.all_opens
    }

    /// OPEN, after its claim was admitted (RFC 8881 §18.16). `under` is the stateid of the
    /// client's delegation that it claims. Without `limits` there is room for it.
    pub(super) fn open(
        &mut self,
        client: ClientId,
        file: FileNo,
        owner: &[u8],
        share: Share,
        under: Option<&Stateid>,
        limits: Option<&Limits>,
    ) -> Result<Stateid, Refusal> {
        if let Some(stateid) = under {
            match self.find(client, stateid)? {
                (_, Found::Delegation(of)) if of == file => {}
                _ => return Err(Status::BadStateid.into()),
            }
        }
        let bits = (share.access.code(), share.deny.code());
        self.check_shares(file, bits, None, Status::ShareDenied)?;
        if share.access.writes() || share.deny.denies(ShareAccess::Read) {
            self.check_delegations(file, Some(client))?;
        }
        let full = limits.is_some_and(|limits| !self.has_room(client, limits));
        if full && self.opens.find(client, file, owner).is_none() {
            return Err(Status::Delay.into());
        }
        let number = self.names.next();
        let (number, seqid) = self.opens.open(number, client, file, owner, share);
        Ok(self.names.stateid(number, seqid))
    }

    /// Gives the client a read delegation of a file that it has open.
    pub(super) fn delegate(
        &mut self,
        client: ClientId,
        file: FileNo,
        limits: &Limits,
    ) -> Result<Stateid, WhyNoDelegation> {
        let held = &self.delegations;
        if self.opens.has_writer(file) || held.is_cooling(file) || held.is_held_by(file, client) {
            return Err(WhyNoDelegation::Contention(false));
        }
        if held.burden() >= limits.delegations {
            return Err(WhyNoDelegation::Resource(false));
        }
        let number = self.names.next();
        self.delegations.give(number, client, file);
        Ok(self.names.stateid(number, 1))
    }

    /// DELEGRETURN (RFC 8881 §18.6). Returns the file.
    pub(super) fn return_delegation(
        &mut self,
        client: ClientId,
        stateid: &Stateid,
    ) -> Result<FileNo, Status> {
        let (number, Found::Delegation(_)) = self.find(client, stateid)? else {
            return Err(Status::BadStateid);
        };
        self.delegations.remove(number).ok_or_else(|| gone(number))
    }

    /// OPEN_DOWNGRADE (RFC 8881 §18.18).
    pub(super) fn downgrade(
        &mut self,
        client: ClientId,
        stateid: &Stateid,
        share: Share,
    ) -> Result<Stateid, Status> {
        let (number, _) = self.find_open(client, stateid)?;
        let seqid = self.opens.downgrade(number, share)?;
        Ok(self.names.stateid(number, seqid))
    }

    /// CLOSE: also releases the locks made with the open (RFC 8881 §18.2). Returns the file.
    pub(super) fn close(&mut self, client: ClientId, stateid: &Stateid) -> Result<FileNo, Status> {
        let (number, _) = self.find_open(client, stateid)?;
        self.remove_open(number).ok_or_else(|| gone(number))
    }

    /// READ, or a WRITE or SETATTR of the size (RFC 8881 §9.1.2). Without a client, or with a
    /// special stateid, only the opens and delegations of others count.
    pub(super) fn check_io(
        &self,
        client: Option<ClientId>,
        file: FileNo,
        stateid: &Stateid,
        access: ShareAccess,
    ) -> Result<(), Refusal> {
        if *stateid == Stateid::ANONYMOUS || *stateid == Stateid::BYPASS {
            self.check_shares(file, (access.code(), 0), None, Status::Locked)?;
            return if access.writes() { self.check_delegations(file, client) } else { Ok(()) };
        }
        let client = client.ok_or(Status::BadStateid)?;
        let (number, open) = match self.find(client, stateid)? {
            (number, Found::Open(open)) => (number, open),
            (_, Found::Locks(number)) => (number, self.opens.get(number).ok_or_else(|| gone(number))?),
            (_, Found::Delegation(of)) if of != file => return Err(Status::BadStateid.into()),
            (_, Found::Delegation(_)) if access.writes() => return Err(Status::OpenMode.into()),
            (_, Found::Delegation(_)) => return Ok(()),
        };
        if open.file != file {
            return Err(Status::BadStateid.into());
        }
        if access.writes() && !open.writes() {
            return Err(Status::OpenMode.into());
        }
        // A client that opened for WRITE alone reads to write parts of pages. Another open may deny
        // it.
        if access.reads() && !open.reads() {
            self.check_shares(file, (ShareAccess::Read.code(), 0), Some(number), Status::OpenMode)?;
        }
        Ok(())
    }

    /// LOCK (RFC 8881 §18.10). `wait`: the client waits for the lock if it is denied.
    pub(super) fn lock(
        &mut self,
        now: Duration,
        client: ClientId,
        file: FileNo,
        locker: Locker<'_>,
        (range, writes, wait): (Range, bool, bool),
        limits: &Limits,
    ) -> Result<Stateid, Refusal> {
        let (open, owner) = match locker {
            Locker::New { open, owner } => (self.find_open(client, &open)?.0, Box::from(owner)),
            Locker::Existing(stateid) => match self.find(client, &stateid)? {
                (number, Found::Locks(open)) => {
                    (open, self.locks.get(number).map(|it| it.owner.clone()).ok_or_else(|| gone(number))?)
                }
                _ => return Err(Status::BadStateid.into()),
            },
        };
        let mode = self.opens.get(open).ok_or_else(|| gone(open))?;
        if mode.file != file {
            return Err(Status::BadStateid.into());
        }
        if !(if writes { mode.writes() } else { mode.reads() }) {
            return Err(Status::OpenMode.into());
        }
        let wanted = Wanted { client, file, owner: &owner, range, writes };
        // A lock splits at most one range in three, beside a new owner.
        let room =
            self.locks.count(client) + 3 <= limits.ranges && self.locks.total() + 3 <= limits.all_ranges;
        if let Err(refusal) = self.check_lock(&wanted) {
            if wait && room {
                self.locks.wait(now, &wanted);
            }
            return Err(refusal);
        }
        if !room {
            return Err(Status::Delay.into());
        }
        let number = self.names.next();
        let (number, seqid) = self.locks.lock(number, open, &wanted);
        Ok(self.names.stateid(number, seqid))
    }

    /// LOCKT (RFC 8881 §18.11).
    pub(super) fn check_lock(&self, wanted: &Wanted<'_>) -> Result<(), Refusal> {
        let Some(denied) = self.locks.conflict(wanted) else { return Ok(()) };
        Err(Refusal::Conflict(Box::new(Conflict {
            status: Status::Denied,
            clients: BTreeSet::from([denied.client]),
            recall: Vec::new(),
            denied: Some(denied),
        })))
    }

    /// LOCKU (RFC 8881 §18.12).
    pub(super) fn unlock(
        &mut self,
        client: ClientId,
        stateid: &Stateid,
        range: Range,
        limits: &Limits,
    ) -> Result<Stateid, Status> {
        let (number, Found::Locks(_)) = self.find(client, stateid)? else {
            return Err(Status::BadStateid);
        };
        // An unlock in the middle of a range makes one more.
        let full = self.locks.count(client) >= limits.ranges || self.locks.total() >= limits.all_ranges;
        if full && self.locks.splits(number, range) {
            return Err(Status::Delay);
        }
        let seqid = self.locks.unlock(number, range).ok_or_else(|| gone(number))?;
        Ok(self.names.stateid(number, seqid))
    }
}

/// The answer where state is named that was there a moment ago.
fn gone(number: StateNo) -> Status {
    broken!("state {number} was found and has gone");
    Status::BadStateid
}
