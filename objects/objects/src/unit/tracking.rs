//! The Command Tracking page of tracking collections: the command at work on the members, its
//! progress, and its end. Owns the page's attributes but NUMBER OF MEMBERS, which is the
//! collection's own. They are set by the change that does the work, so they are right after a crash
//! too: an interrupted command stays an active command.

use osd::Id;
use osd::attributes::AttributeId;
use osd::attributes::numbers::command_tracking as page;
use scsi::{AdditionalSense, Sense, Status};

use super::failure::Failure;
use crate::store::{Change, CollectionType, Kind, ObjectInfo};

/// Progress of a command on the members of a collection.
#[derive(Clone, Copy, Debug)]
pub(super) struct Tracking {
    /// The collection; `None` if it is none that tracks.
    collection: Option<Id>,
    action: u16,
    total: u64,
    /// Objects that were dealt with.
    pub processed: u64,
    /// Objects that were gone when it was their turn.
    pub missing: u64,
}

impl Tracking {
    /// The command with SERVICE ACTION `action` is going to deal with about `total` objects for the
    /// collection `id`.
    pub fn new(id: Id, info: &ObjectInfo, action: u16, total: u64) -> Self {
        let tracks = info.kind == Kind::Collection(CollectionType::TRACKING);
        Self { collection: tracks.then_some(id), action, total, processed: 0, missing: 0 }
    }

    pub const fn none() -> Self {
        Self { collection: None, action: 0, total: 0, processed: 0, missing: 0 }
    }

    fn set(&self, change: &mut Change, attribute: AttributeId, value: &[u8]) {
        if let Some(id) = self.collection {
            change.set_attribute(id, attribute.page.0, attribute.number, value);
        }
    }

    /// Adds to `change` that the command has begun.
    pub fn begin(&self, change: &mut Change) {
        self.set(change, page::ACTIVE_COMMAND, &self.action.to_be_bytes());
        self.set(change, page::ENDED_STATUS, &[]);
        self.set(change, page::SENSE, &[]);
        self.progress(change);
    }

    /// Adds to `change` how far the command has come.
    pub fn progress(&self, change: &mut Change) {
        // A running command is below 100 %, even if the list turned out longer.
        let dealt = self.processed.saturating_add(self.missing);
        let percent = dealt.saturating_mul(100).checked_div(self.total).unwrap_or(0).min(99);
        self.counts(change, percent as u8); // at most 99
    }

    fn counts(&self, change: &mut Change, percent: u8) {
        self.set(change, page::PERCENT_COMPLETE, &[percent]);
        self.set(change, page::PROCESSED, &self.processed.to_be_bytes());
        // An object that was removed has left its collections: none of the same id can be newer
        // than its membership.
        self.set(change, page::NEWER_SKIPPED, &0u64.to_be_bytes());
        self.set(change, page::MISSING_SKIPPED, &self.missing.to_be_bytes());
    }

    /// Adds to `change` that the command has ended with `result`. A command that sends no status
    /// was aborted.
    pub(crate) fn end_with(&self, change: &mut Change, result: &Result<(), Failure>) {
        match result {
            Ok(()) => self.end(change, None),
            Err(Failure::Sense(sense)) => self.end(change, Some(sense)),
            Err(Failure::Lost | Failure::Status(_)) => {
                self.end(change, Some(&Sense::aborted(AdditionalSense::NO_ADDITIONAL_SENSE_INFORMATION)));
            }
        }
    }

    /// Adds to `change` that the command has ended: well, or with `sense`.
    fn end(&self, change: &mut Change, sense: Option<&Sense>) {
        match sense {
            None => self.counts(change, 100),
            Some(_) => self.progress(change),
        }
        let status = if sense.is_some() { Status::CheckCondition } else { Status::Good };
        self.set(change, page::ACTIVE_COMMAND, &0u16.to_be_bytes());
        self.set(change, page::ENDED_STATUS, &u16::from(status as u8).to_be_bytes());
        self.set(
            change,
            page::SENSE,
            &sense.map(|sense| sense.emit_descriptor().to_vec()).unwrap_or_default(),
        );
    }
}
