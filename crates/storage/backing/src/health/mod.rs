//! The health of a medium, under a unit or an export: its failures with time and count, and whether
//! flushes are refused.
//!
//! Owns the log lines about failing media (one per kind and minute), and the mark of a failed
//! flush. The mark is stored durably and stays in force after a restart, until an administrator
//! acknowledges it. Only failures come here, never successes.
//!
//! Usage: the store of a unit has one ([`crate::BlockStore::health`]). On a failure call
//! [`Health::report`] with its errno and block. If the whole unit is unusable call
//! [`Health::failed`] with a sentence, and [`Health::recovered`] when that ends. Every few seconds
//! tell it by [`Health::saw`] whether the medium's files are there. Both log, show in
//! `stag status`, and are cheap enough for each failed command.

mod mark;
pub mod problems;

use std::io;
use std::path::PathBuf;
use std::sync::atomic::{AtomicI32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Instant, SystemTime, UNIX_EPOCH};

pub use mark::{Mark, Place};
use problems::{Fault, Line, Now, Problems};
pub use problems::{Kind, Problem, State};

use crate::StoreError;

/// Why a file without a name cannot be used.
const ORPHAN: &str =
    "its file was removed, or replaced by another one: what is written to it is lost when it is closed";

/// The present name of an open file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Presence {
    /// Its path names it.
    There,
    /// It has another name. It is intact, so nothing fails yet.
    Moved,
    /// It has no name.
    Removed,
}

/// The health of one medium.
#[derive(Debug)]
pub struct Health {
    path: String,
    start: Instant,
    /// The errno with which flushes are refused; 0 if they are not. Every flush reads it.
    refusal: AtomicI32,
    /// Number of acknowledgements: a failure before the last one is no longer in force.
    acknowledged: AtomicU64,
    inner: Mutex<Inner>,
}

/// The unit or the export by which the medium is served, as fields of log lines.
#[derive(Clone, Debug, Default)]
struct Served {
    target: Option<String>,
    lun: Option<u16>,
    export: Option<String>,
}

#[derive(Debug, Default)]
struct Inner {
    served: Served,
    problems: Problems,
    mark: Option<Mark>,
    /// Files that store the mark.
    places: Vec<Place>,
    /// Minimum size of the medium, bytes.
    least_size: u64,
}

/// The health of a unit at one moment.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Report {
    /// The worst of its problems.
    pub state: State,
    pub problems: Vec<Problem>,
    /// Whether flushes are refused.
    pub refuses_flushes: bool,
}

impl Health {
    /// The health of a medium without known problems; `path` is its name in log lines.
    pub fn new(path: impl Into<String>) -> Arc<Self> {
        Arc::new(Self {
            path: path.into(),
            start: runtime::clock(),
            refusal: AtomicI32::new(0),
            acknowledged: AtomicU64::new(0),
            inner: Mutex::default(),
        })
    }

    /// The medium's name in log lines.
    pub fn path(&self) -> &str {
        &self.path
    }

    /// Sets the unit's target and LUN for log lines.
    pub fn serve_as(&self, target: &str, lun: u16) {
        self.lock().served = Served { target: Some(target.to_owned()), lun: Some(lun), export: None };
    }

    /// Sets the export's name for log lines.
    pub fn serve_as_export(&self, name: &str) {
        self.lock().served = Served { export: Some(name.to_owned()), ..Served::default() };
    }

    /// Counts a failed operation, and logs it unless one of its kind was logged within a minute.
    /// `lba`: its first logical block, if it has one.
    #[cold]
    pub fn report(&self, kind: Kind, errno: i32, lba: Option<u64>) {
        self.note(kind, Fault { errno, lba, reason: None });
    }

    /// Like [`Self::report`] for a failure without a block; the reason names its location.
    #[cold]
    pub fn explain(&self, kind: Kind, errno: i32, reason: impl Into<String>) {
        self.note(kind, Fault { errno, lba: None, reason: Some(reason.into()) });
    }

    /// Marks the unit as unusable for this reason: its file was removed or replaced. Flushes are
    /// refused until [`Self::recovered`] or until the store is reopened. An acknowledgement does
    /// not end it.
    #[cold]
    pub fn failed(&self, reason: impl Into<String>) {
        self.note(Kind::Unusable, Fault { errno: 0, lba: None, reason: Some(reason.into()) });
        self.refusal.store(libc::EIO, Ordering::Release);
    }

    /// Records whether the medium's files are there. A file that was removed stays so: the medium is
    /// unusable until it is opened anew.
    pub fn saw(&self, files: &[Presence]) {
        match files.iter().max() {
            Some(Presence::Removed) => self.failed(ORPHAN),
            Some(Presence::Moved) => self.report(Kind::Replaced, 0, None),
            Some(Presence::There) => drop(self.lock().problems.clear(Kind::Replaced)),
            None => {}
        }
    }

    /// Ends [`Self::failed`].
    pub fn recovered(&self) {
        let mut inner = self.lock();
        if inner.problems.clear(Kind::Unusable) {
            self.refusal.store(inner.mark.as_ref().map_or(0, |mark| mark.errno), Ordering::Release);
        }
    }

    /// The error for every flush, if one is in force.
    #[inline]
    pub fn flush_refusal(&self) -> Option<StoreError> {
        match self.refusal.load(Ordering::Acquire) {
            0 => None,
            errno => Some(refusal(errno)),
        }
    }

    /// Number of acknowledgements of failed flushes.
    #[inline]
    pub(crate) fn acknowledgements(&self) -> u64 {
        self.acknowledged.load(Ordering::Acquire)
    }

    /// Records a failed flush: from now on every flush is refused, even after a restart. Blocks
    /// until the mark is stored, or storing it has failed.
    #[cold]
    pub fn flush_failed(&self, errno: i32, lba: Option<u64>) {
        let errno = if errno > 0 { errno } else { libc::EIO };
        self.note(Kind::Flush, Fault { errno, lba, reason: None });
        let mark = Mark { errno, unix_s: now_unix_s() };
        let places = {
            let mut inner = self.lock();
            self.refusal.store(errno, Ordering::Release);
            if inner.mark.is_some() {
                return;
            }
            inner.mark = Some(mark.clone());
            inner.places.clone()
        };
        self.save(&mark, &places);
    }

    /// Stores the mark of a failed flush in each of these files from now on, and puts an existing
    /// mark in force. An unreadable file counts as a mark. Blocks: use it only at start-up.
    pub fn keep_at(&self, places: Vec<Place>) {
        let found = places.iter().find_map(|place| mark::load(&place.file));
        let known = {
            let mut inner = self.lock();
            inner.places.clone_from(&places);
            inner.mark.clone()
        };
        match (known, found) {
            (Some(mark), _) => self.save(&mark, &places),
            (None, Some(mark)) => self.restore(&mark),
            (None, None) => {}
        }
    }

    /// Puts the mark of an earlier failed flush in force.
    pub fn restore(&self, mark: &Mark) {
        let places = {
            let mut inner = self.lock();
            if inner.mark.is_some() {
                return;
            }
            let fault = Fault { errno: mark.errno, lba: None, reason: None };
            inner.problems.restore(self.now(), Kind::Flush, mark.unix_s, fault);
            inner.mark = Some(mark.clone());
            self.refusal.store(mark.errno, Ordering::Release);
            inner.places.clone()
        };
        let Served { target, lun, export } = self.served();
        let (path, error) = (&self.path, io::Error::from_raw_os_error(mark.errno));
        tracing::error!(
            target, lun, export, path, kind = Kind::Flush.name(), %error, since_unix_s = mark.unix_s,
            "a flush failed earlier and was not acknowledged: flushes are refused (stag acknowledge)"
        );
        self.save(mark, &places);
    }

    /// The mark in force.
    pub fn mark(&self) -> Option<Mark> {
        self.lock().mark.clone()
    }

    /// Acknowledges all failures for an administrator: clears them, and allows flushes again.
    /// Blocks.
    ///
    /// # Errors
    /// A mark file that cannot be removed; then nothing changes.
    pub fn acknowledge(&self) -> Result<Report, (PathBuf, io::Error)> {
        let before = self.look();
        let places = self.lock().places.clone();
        for place in places {
            crate::durable::remove(&place.file).or_else(|error| match error.kind() {
                // The directory does not exist, so neither does the file.
                io::ErrorKind::NotADirectory => Ok(()),
                _ => Err((place.file, error)),
            })?;
        }
        let mut inner = self.lock();
        inner.mark = None;
        let lasting = inner.problems.iter().any(|problem| problem.kind == Kind::Unusable);
        for kind in Kind::ALL.into_iter().filter(|kind| *kind != Kind::Unusable) {
            inner.problems.clear(kind);
        }
        self.acknowledged.fetch_add(1, Ordering::AcqRel);
        self.refusal.store(if lasting { libc::EIO } else { 0 }, Ordering::Release);
        Ok(before)
    }

    /// Sets the minimum size of the medium, bytes.
    pub fn expect_size(&self, bytes: u64) {
        let mut inner = self.lock();
        inner.least_size = bytes;
        inner.problems.clear(Kind::Shrunk);
    }

    /// Records a new size of the medium, bytes. Call it when the size has changed.
    #[cold]
    pub fn saw_size(&self, bytes: u64) {
        let least = self.lock().least_size;
        if bytes >= least {
            self.lock().problems.clear(Kind::Shrunk);
        } else {
            let reason = Some(format!("it has {bytes} of {least} bytes"));
            self.note(Kind::Shrunk, Fault { errno: 0, lba: None, reason });
        }
    }

    /// Logs due lines, and clears expired problems. Call it every few seconds.
    pub fn tick(&self) {
        let lines = self.lock().problems.tick(self.now());
        lines.iter().for_each(|line| self.log(line));
    }

    pub fn look(&self) -> Report {
        let refuses_flushes = self.flush_refusal().is_some();
        let inner = self.lock();
        Report {
            state: inner.problems.state(),
            problems: inner.problems.iter().cloned().collect(),
            refuses_flushes,
        }
    }

    fn note(&self, kind: Kind, fault: Fault) {
        let line = self.lock().problems.note(self.now(), kind, fault);
        if let Some(line) = line {
            self.log(&line);
        }
    }

    fn log(&self, line: &Line) {
        let Served { target, lun, export } = self.served();
        let (path, kind, lba, suppressed) = (&self.path, line.kind.name(), line.fault.lba, line.suppressed);
        let error = (line.fault.errno != 0).then(|| io::Error::from_raw_os_error(line.fault.errno));
        let error = error.as_ref().map(tracing::field::display);
        let reason = line.fault.reason.as_deref();
        tracing::error!(
            target,
            lun,
            export,
            path,
            kind,
            error,
            reason,
            lba,
            suppressed,
            "{}",
            line.kind.text()
        );
    }

    fn served(&self) -> Served {
        self.lock().served.clone()
    }

    /// Stores the mark in each place. One success is enough.
    fn save(&self, mark: &Mark, places: &[Place]) {
        let failed = |at: &Place| mark.save(at, &self.path).err().map(|error| (at.file.clone(), error));
        let failures: Vec<(PathBuf, io::Error)> = places.iter().filter_map(failed).collect();
        if !places.is_empty() && failures.len() < places.len() {
            return;
        }
        for (at, error) in failures {
            let at = at.display();
            tracing::error!(%at, %error, path = self.path, "the mark of a failed flush cannot be kept there");
        }
        let path = &self.path;
        tracing::error!(
            path,
            "a failed flush will be forgotten when the daemon ends: it could be kept nowhere"
        );
    }

    fn now(&self) -> Now {
        Now { monotonic: runtime::clock().saturating_duration_since(self.start), unix_s: now_unix_s() }
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The error for initiators in place of the original one: neither free space nor a retry would
/// help.
fn refusal(errno: i32) -> StoreError {
    match StoreError::from_errno(errno) {
        error @ (StoreError::Io(_) | StoreError::NoSpace) => error,
        _ => StoreError::Io(errno),
    }
}

fn now_unix_s() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(files: &[PathBuf]) -> Vec<Place> {
        files.iter().map(|file| Place { file: file.clone(), make_folder: false }).collect()
    }

    #[test]
    fn a_failed_flush_is_in_force_after_a_restart_until_it_is_acknowledged() {
        let directory = tempfile::tempdir().unwrap();
        let places = vec![directory.path().join("state"), directory.path().join("a.flush-failed")];
        let health = Health::new("/srv/a");
        health.keep_at(at(&places));
        assert_eq!(health.flush_refusal(), None);
        health.flush_failed(libc::EIO, Some(0));
        assert_eq!(health.flush_refusal(), Some(StoreError::Io(libc::EIO)));
        assert_eq!(health.look().state, State::Failed);

        let again = Health::new("/srv/a");
        again.keep_at(at(&places));
        assert_eq!(again.flush_refusal(), Some(StoreError::Io(libc::EIO)));
        assert_eq!(again.mark(), health.mark());
        assert_eq!(again.look().problems[0].since_unix_s, health.look().problems[0].since_unix_s);
        again.acknowledge().unwrap();
        assert_eq!((again.flush_refusal(), again.look().state), (None, State::Ok));

        let last = Health::new("/srv/a");
        last.keep_at(at(&places));
        assert_eq!(last.flush_refusal(), None);
    }

    #[test]
    fn one_place_is_enough_for_a_mark() {
        let directory = tempfile::tempdir().unwrap();
        let gone = directory.path().join("gone").join("a.flush-failed");
        for places in [[directory.path().join("s1"), gone.clone()], [gone, directory.path().join("s2")]] {
            let health = Health::new("/srv/a");
            health.keep_at(at(&places));
            health.flush_failed(libc::EIO, None);
            let again = Health::new("/srv/a");
            again.keep_at(at(&places));
            assert!(again.flush_refusal().is_some());
        }
    }

    #[test]
    fn the_folder_of_a_mark_is_made_only_where_that_was_asked_for() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("state").join("flush-failed").join("a");
        for make_folder in [false, true] {
            let health = Health::new("/srv/a");
            health.keep_at(vec![Place { file: file.clone(), make_folder }]);
            assert_eq!(
                std::fs::read_dir(directory.path()).unwrap().count(),
                0,
                "nothing before a flush fails"
            );
            health.flush_failed(libc::EIO, None);
            assert_eq!(file.exists(), make_folder);
        }
    }

    #[test]
    fn a_torn_mark_counts() {
        let directory = tempfile::tempdir().unwrap();
        let place = directory.path().join("a.flush-failed");
        for content in ["", "stag flush-fai", "errno x\n", &"x".repeat(100_000)] {
            std::fs::write(&place, content).unwrap();
            let health = Health::new("/srv/a");
            health.keep_at(at(std::slice::from_ref(&place)));
            assert_eq!(health.flush_refusal(), Some(StoreError::Io(libc::EIO)), "{content:.20}");
        }
    }

    #[test]
    fn a_mark_that_cannot_be_removed_stays_in_force() {
        let directory = tempfile::tempdir().unwrap();
        let place = directory.path().join("mark");
        let health = Health::new("/srv/a");
        health.keep_at(at(std::slice::from_ref(&place)));
        health.flush_failed(libc::EIO, None);
        std::fs::remove_file(&place).unwrap();
        std::fs::create_dir(&place).unwrap();
        assert_eq!(health.acknowledge().unwrap_err().0, place);
        assert!(health.flush_refusal().is_some());
    }

    #[test]
    fn an_unusable_unit_refuses_flushes_whatever_is_acknowledged() {
        let health = Health::new("/srv/a");
        health.failed("/srv/a names another file");
        health.acknowledge().unwrap();
        assert!(health.flush_refusal().is_some());
        assert_eq!(health.look().state, State::Failed);
        health.recovered();
        assert_eq!((health.flush_refusal(), health.look().state), (None, State::Ok));
        health.flush_failed(libc::EIO, None);
        health.failed("/srv/a names another file");
        health.recovered();
        assert!(health.flush_refusal().is_some(), "the failed flush is still there");
    }

    #[test]
    fn a_medium_is_too_short_until_it_has_its_size_again() {
        let health = Health::new("/srv/a");
        health.expect_size(1 << 20);
        health.saw_size(1 << 19);
        assert_eq!(health.look().problems[0].kind, Kind::Shrunk);
        health.saw_size(1 << 21);
        assert_eq!(health.look().state, State::Ok);
        health.saw_size(0);
        health.expect_size(0);
        assert_eq!(health.look().state, State::Ok);
    }
}
