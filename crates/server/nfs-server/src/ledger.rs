//! [`Ledger`]: the clients that may reclaim after a restart, in a file that is replaced whole. An
//! answer waits until the records that it promises are there.

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use backing::durable;
use nfs::v4::Verifier;
use nfs::v4::state::{Effect, Hosts, Record};
use rpc::xdr::{Malformed, Reader, Writer, Xdr};

/// The first word of the file: its format.
const FORMAT: u32 = 2;
/// The longest file, bytes: more records than there may be clients.
const LONGEST: usize = 64 << 20;
/// Interval at which a waiting core checks whether another core has written its change.
const PATIENCE: Duration = Duration::from_millis(1);

/// The records of clients. Without a file nothing is kept.
pub(crate) struct Ledger {
    path: Option<PathBuf>,
    kept: Mutex<Kept>,
    /// Changes that were made.
    changes: AtomicU64,
    /// Of these, those that are durable, or could not be written.
    settled: AtomicU64,
    /// The last write of the file failed, so the file lacks changes.
    stale: AtomicBool,
}

struct Kept {
    records: BTreeMap<Box<[u8]>, Record>,
    /// The file is being written.
    busy: bool,
}

impl Ledger {
    /// The ledger in the file at `path`, and its records. If the file cannot be read, there are
    /// none: its clients get NO_GRACE.
    pub(crate) fn open(path: Option<PathBuf>) -> (Self, Vec<Record>) {
        let found = path.as_deref().map(read).transpose().unwrap_or_else(|error| {
            tracing::warn!(%error, ?path, "NFS clients cannot reclaim what they had open");
            None
        });
        let records = found.unwrap_or_default();
        let by_owner = records.iter().map(|record| (record.owner.clone(), record.clone())).collect();
        let kept = Mutex::new(Kept { records: by_owner, busy: false });
        let (changes, settled) = (AtomicU64::new(0), AtomicU64::new(0));
        (Self { path, kept, changes, settled, stale: AtomicBool::new(false) }, records)
    }

    fn kept(&self) -> MutexGuard<'_, Kept> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Notes what the state asks for, but for calls. To be called in the state's order.
    pub(crate) fn note<F>(&self, effect: Effect<F>) {
        if self.path.is_none() {
            return;
        }
        let records = &mut self.kept().records;
        match effect {
            Effect::Remember(record) => drop(records.insert(record.owner.clone(), record)),
            Effect::Forget(owner) => drop(records.remove(&owner)),
            Effect::EndGrace(left) => {
                *records = left.into_iter().map(|record| (record.owner.clone(), record)).collect();
            }
            Effect::Call(_) => return,
        }
        self.changes.fetch_add(1, Ordering::AcqRel);
    }

    /// Waits until all that was noted is durable. If it cannot be written, that is logged, and
    /// clients are served on.
    pub(crate) async fn settle(&self) {
        let Some(path) = &self.path else { return };
        let wanted = self.changes.load(Ordering::Acquire);
        while self.settled.load(Ordering::Acquire) < wanted {
            let Some((bytes, changes)) = self.begin() else {
                runtime::sleep(PATIENCE).await;
                continue;
            };
            let to = path.clone();
            let written = runtime::blocking(move || durable::replace(&to, &bytes)).await;
            let was_stale = self.stale.swap(written.is_err(), Ordering::AcqRel);
            match written {
                Err(error) if !was_stale => tracing::error!(
                    %error,
                    path = %path.display(),
                    "NFS clients that come now cannot reclaim after a restart, until this file can be written"
                ),
                Ok(()) if was_stale => {
                    tracing::info!(path = %path.display(), "NFS clients can reclaim after a restart again");
                }
                _ => {}
            }
            self.settled.fetch_max(changes, Ordering::AcqRel);
            self.kept().busy = false;
        }
    }

    /// Writes the file once more if the last write failed.
    pub(crate) async fn retry(&self) {
        if self.stale.load(Ordering::Acquire) {
            self.changes.fetch_add(1, Ordering::AcqRel);
        }
        self.settle().await;
    }

    /// The bytes to write now, and the number of changes in them. `None`: another core writes.
    fn begin(&self) -> Option<(Vec<u8>, u64)> {
        let mut kept = self.kept();
        if std::mem::replace(&mut kept.busy, true) {
            return None;
        }
        // Changes are counted under the same lock.
        let changes = self.changes.load(Ordering::Acquire);
        Some((encoded(kept.records.values()), changes))
    }
}

fn encoded<'r>(records: impl ExactSizeIterator<Item = &'r Record>) -> Vec<u8> {
    let mut bytes = Vec::new();
    let to = &mut Writer::new(&mut bytes);
    to.u32(FORMAT);
    to.u32(records.len() as u32);
    for Record { owner, verifier, hosts, revoked } in records {
        to.u32(owner.len() as u32);
        to.raw(owner);
        to.raw(rpc::xdr::padding(owner.len()));
        verifier.write(to);
        hosts.write(to);
        to.bool(*revoked);
    }
    bytes
}

fn decoded(bytes: &[u8]) -> Result<Vec<Record>, Malformed> {
    let mut from = Reader::new(bytes);
    let format = from.u32()?;
    if format != FORMAT {
        return Err(Malformed::Unknown { what: "format of the clients' records", value: format });
    }
    let count = from.u32()?;
    let mut records = Vec::new();
    for _ in 0..count {
        let owner = from.opaque(nfs::v4::MAX_OPAQUE)?.into();
        let (verifier, hosts) = (Verifier::read(&mut from)?, Hosts::read(&mut from)?);
        records.push(Record { owner, verifier, hosts, revoked: from.bool()? });
    }
    from.end().map(|()| records)
}

fn read(path: &Path) -> io::Result<Vec<Record>> {
    let Some(bytes) = durable::read(path, LONGEST)? else { return Ok(Vec::new()) };
    decoded(&bytes).map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error.to_string()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_are_read_as_they_were_written() {
        let record = |owner: &[u8], hosts: &[&str], revoked| Record {
            owner: owner.into(),
            verifier: Verifier([7; 8]),
            hosts: hosts.iter().map(|it| it.parse().unwrap()).collect(),
            revoked,
        };
        let records = [record(b"one", &["192.0.2.1", "2001:db8::1"], false), record(&[9; 1024], &[], true)];
        assert_eq!(decoded(&encoded(records.iter())).unwrap(), records);
        assert_eq!(decoded(&encoded([].iter())).unwrap(), []);
    }

    #[test]
    fn a_file_that_is_no_ledger_is_refused() {
        let record = Record {
            owner: b"x"[..].into(),
            verifier: Verifier([0; 8]),
            hosts: Hosts::from_iter([[192, 0, 2, 1].into()]),
            revoked: false,
        };
        let whole = encoded([record].iter());
        for len in 0..whole.len() {
            assert!(decoded(&whole[..len]).is_err(), "{len} bytes");
        }
        assert!(decoded(&[0, 0, 0, 3, 0, 0, 0, 0]).is_err(), "another format");
    }
}
