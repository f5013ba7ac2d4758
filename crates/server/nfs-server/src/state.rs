//! [`State`]: the cores' common state of NFSv4's clients, behind one lock that is held briefly.

use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use nfs::v4::state::{Callback, Claim, Effect, Limits, OpenFile, Opened, ServerState};
use nfs::v4::{Channel, ClientId, ShareAccess, Stateid, Status};

use crate::changing::Changing;
use crate::file::File;
use crate::handle::Bytes;
use crate::ledger::Ledger;
use crate::records;

/// The state machine, in which handles name files.
pub(crate) type Machine = ServerState<Bytes>;

/// The state of NFSv4.
pub(crate) struct State {
    machine: Mutex<Machine>,
    /// Time at which its clock showed `shown`.
    begin: Instant,
    shown: Duration,
    /// `lease_time`, seconds.
    pub lease_s: u32,
    pub ledger: Ledger,
    /// Clients hold something of some file, or may reclaim it.
    held: AtomicBool,
    /// Files were changed while their delegations could be reclaimed.
    changed: AtomicBool,
    /// Files that are being changed.
    pub changing: Changing,
    /// Has a client called.
    call: Box<dyn Fn(Callback<Bytes>) + Send + Sync>,
}

impl State {
    /// The state after a start, or that of a predecessor, with the time of its clock, which has its
    /// limits already. `records` is the file of the clients' records; `call` has a client called
    /// over one of its connections.
    pub(crate) fn new(
        records: Option<PathBuf>,
        limits: Limits,
        carried: Option<(Machine, Duration)>,
        call: impl Fn(Callback<Bytes>) + Send + Sync + 'static,
    ) -> Self {
        let (ledger, kept) = Ledger::open(records);
        // A predecessor does not tell.
        let changed = AtomicBool::new(carried.is_some());
        let (machine, shown) = carried.unwrap_or_else(|| {
            let (start, seed) = (u32::from_be_bytes(drawn()), u64::from_be_bytes(drawn()));
            (ServerState::new(Duration::ZERO, start, seed, limits, kept), Duration::ZERO)
        });
        Self {
            lease_s: machine.lease().as_secs() as u32,
            held: AtomicBool::new(is_held(&machine)),
            changed,
            changing: Changing::default(),
            machine: Mutex::new(machine),
            begin: runtime::clock(),
            shown,
            ledger,
            call: Box::new(call),
        }
    }

    /// Runs `act` on the state with the present time, under the lock: `act` must do nothing else.
    pub(crate) fn with<T>(&self, act: impl FnOnce(&mut Machine, Duration) -> T) -> T {
        let mut machine = self.machine.lock().unwrap_or_else(PoisonError::into_inner);
        // Read under the lock, so that it does not go back.
        let now = self.shown + runtime::clock().saturating_duration_since(self.begin);
        let result = act(&mut machine, now);
        self.held.store(is_held(&machine), Ordering::Release);
        let mut calls = Vec::new();
        for effect in machine.take_effects() {
            match effect {
                Effect::Call(call) => calls.push(call),
                effect => self.ledger.note(effect),
            }
        }
        drop(machine);
        calls.into_iter().for_each(&self.call);
        result
    }

    /// Clients hold something of some file, or may reclaim it.
    pub(crate) fn holds_files(&self) -> bool {
        self.held.load(Ordering::SeqCst)
    }

    /// OPEN of a file, whose handle is the request's. No delegation is given of one that is being
    /// changed, or that others may change. One that is reclaimed is recalled, too, if any file was
    /// changed meanwhile.
    ///
    /// # Errors
    /// Those of [`ServerState::open`].
    pub(crate) fn open(
        &self,
        client: ClientId,
        file: &File,
        request: OpenFile<'_, Bytes>,
    ) -> Result<Opened, Status> {
        self.with(|machine, now| {
            // A change that does not see this has marked its file before.
            self.held.store(true, Ordering::SeqCst);
            let is_exclusive = file.export.config.exclusive;
            let reclaims = matches!(request.claim, Claim::Reclaim { .. });
            let changing = !is_exclusive
                || reclaims && self.changed.load(Ordering::SeqCst)
                || self.changing.may_be(file.export.id, &file.node);
            machine.open(now, client, OpenFile { changing, ..request })
        })
    }

    /// Whether a file, or a name of it, may be changed for `client`, or without one for version 3.
    /// Recalls the delegations that others hold. `file` is called only if some client holds a
    /// delegation or open.
    ///
    /// # Errors
    /// DELAY while they hold them.
    pub(crate) fn may_change(
        &self,
        client: Option<ClientId>,
        file: impl FnOnce() -> Bytes,
    ) -> Result<(), Status> {
        if !self.holds_files() {
            return Ok(());
        }
        let file = file();
        self.with(|machine, now| {
            self.note_change(machine);
            machine.check_change(now, client, &file)
        })
    }

    /// Notes that a file is changed, whose delegations may be reclaimed later.
    fn note_change(&self, machine: &Machine) {
        if machine.in_grace() {
            self.changed.store(true, Ordering::SeqCst);
        }
    }

    /// Whether version 3 may read or write the data of a file. `file` as for [`Self::may_change`].
    ///
    /// # Errors
    /// LOCKED: an open denies it. DELAY while others hold delegations.
    pub(crate) fn may_access(&self, access: ShareAccess, file: impl FnOnce() -> Bytes) -> Result<(), Status> {
        if !self.holds_files() {
            return Ok(());
        }
        let file = file();
        self.with(|machine, now| {
            if access.writes() {
                self.note_change(machine);
            }
            match machine.check_io(now, None, &file, Stateid::ANONYMOUS, access) {
                // Version 3 does not wait for those that may reclaim.
                Err(Status::Grace) => Ok(()),
                other => other,
            }
        })
    }
}

fn is_held(machine: &Machine) -> bool {
    machine.holds_files() || machine.in_grace()
}

/// Limits of the state, with this lease.
pub(crate) fn limits(lease: Duration) -> Limits {
    let most = records::MOST as u32;
    let defaults = Limits::default();
    Limits { lease, fore: Channel { max_request: most, max_response: most, ..defaults.fore }, ..defaults }
}

/// Random bytes. Those of each start differ.
fn drawn<const N: usize>() -> [u8; N] {
    let mut bytes = [0; N];
    if let Err(error) = runtime::random(&mut bytes) {
        tracing::error!(%error, "no random bytes: clients of the last start may be taken for this one's");
    }
    bytes
}
