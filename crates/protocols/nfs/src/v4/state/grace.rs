//! Owns the grace period: which clients may still reclaim after a restart of the server
//! (RFC 8881 §8.4.2, §18.51).

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::time::Duration;

use super::clients::{Reclaim, Record};
use super::saved::saved;
use crate::v4::{ClientOwner, Status};

/// The grace period, which may be over.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Grace {
    /// When it ends at the latest. None: it is over.
    until: Option<Duration>,
    /// The records of the clients that may reclaim and have not sent RECLAIM_COMPLETE.
    waiting: BTreeMap<Box<[u8]>, Record>,
}

saved! { Grace { until, waiting } }

impl Grace {
    /// Begins with the records of stable storage. Without any, there is nothing to wait for.
    pub(super) fn new(until: Duration, records: Vec<Record>) -> Self {
        let until = (!records.is_empty()).then_some(until);
        Grace { until, waiting: records.into_iter().map(|it| (it.owner.clone(), it)).collect() }
    }

    pub(super) fn is_active(&self) -> bool {
        self.until.is_some()
    }

    /// The kinds of state that the client of this record may reclaim.
    pub(super) fn may_reclaim(&self, record: &Record) -> Reclaim {
        match self.waiting.get(&record.owner) {
            Some(kept) if kept.verifier == record.verifier => {
                Reclaim { opens: true, delegations: !kept.revoked }
            }
            _ => Reclaim::default(),
        }
    }

    /// Whether the name belongs to a client that may reclaim, on other hosts than this one, and the
    /// verifier is not the client's.
    pub(super) fn is_anothers(&self, name: &ClientOwner<'_>, host: IpAddr) -> bool {
        let kept = self.waiting.get(name.owner.bytes());
        kept.is_some_and(|kept| kept.verifier != name.verifier && !kept.hosts.contains(&host))
    }

    /// The owner has nothing more to reclaim.
    pub(super) fn done(&mut self, owner: &[u8]) {
        self.waiting.remove(owner);
    }

    /// Ends the period if its time is over or if all are done. True if it did.
    pub(super) fn end(&mut self, now: Duration) -> bool {
        let ends = self.until.is_some_and(|it| it <= now || self.waiting.is_empty());
        if ends {
            self.until = None;
            self.waiting.clear();
        }
        ends
    }

    /// Whether a client may get state that it did not have, given whether it sent RECLAIM_COMPLETE
    /// (RFC 8881 §18.51.3).
    pub(super) fn admit_new(&self, complete: bool) -> Result<(), Status> {
        if self.is_active() || !complete { Err(Status::Grace) } else { Ok(()) }
    }

    /// Whether a client may reclaim, given whether it has a record and whether it sent
    /// RECLAIM_COMPLETE.
    pub(super) fn admit_reclaim(&self, recorded: bool, complete: bool) -> Result<(), Status> {
        if !self.is_active() || complete {
            Err(Status::NoGrace)
        } else if !recorded {
            Err(Status::ReclaimBad)
        } else {
            Ok(())
        }
    }
}
