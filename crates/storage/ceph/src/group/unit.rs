//! A unit at this gateway: its image, the image's lock, and how many commands have begun.

use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use cluster::{Event, InstanceId, Locked, Time, UnitId};
use rados::{Changed, Client, Error, Image, Source};
use runtime::clock_since_boot as clock;

use super::life::Teller;
use super::lock;
use super::object::errno;

/// A unit whose lock is this gateway's. Clones share it.
#[derive(Clone)]
pub struct Serving {
    unit: UnitId,
    image: Image,
    gate: Arc<Gate>,
    changed: Hook,
}

/// What is called after the image's header has changed.
type Hook = Arc<Mutex<Option<Changed>>>;

/// A command that has begun, until it is dropped.
pub struct Begun(Arc<Gate>);

/// Whether commands may begin, and how many have.
pub(super) struct Gate {
    unit: UnitId,
    /// Until when commands may begin, by [`clock`], in nanoseconds.
    admits: AtomicU64,
    begun: AtomicU64,
    /// The machine waits for the host's word that the unit is open, or cannot be.
    opening: AtomicBool,
    /// The machine waits until none is left.
    draining: Mutex<Option<Time>>,
    tell: Teller,
}

impl fmt::Debug for Serving {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Serving({:?})", self.unit)
    }
}

impl Serving {
    pub(super) fn new(unit: UnitId, (image, changed): Open, gate: Arc<Gate>) -> Self {
        Self { unit, image, gate, changed }
    }

    #[must_use]
    pub fn unit(&self) -> UnitId {
        self.unit
    }

    /// The image. Its operations fail with ESHUTDOWN or EROFS when it is another gateway's.
    #[must_use]
    pub fn image(&self) -> &Image {
        &self.image
    }

    /// Has `changed` called after each change of the image's header: perhaps its size.
    pub fn on_change(&self, changed: Changed) {
        *lock(&self.changed) = Some(changed);
    }

    /// The unit's own record is loaded: commands may begin.
    pub fn opened(&self) {
        self.gate.answers(Event::Opened { unit: self.unit });
    }

    /// The unit's own record cannot be loaded now; it is reported again.
    pub fn not_opened(&self) {
        self.gate.answers(Event::Failed { unit: self.unit });
    }

    /// Begins a command, if the unit is this gateway's now.
    #[must_use]
    pub fn begin(&self) -> Option<Begun> {
        self.gate.begin()
    }

    /// Whether no command has begun and not ended.
    #[must_use]
    pub fn is_idle(&self) -> bool {
        self.gate.begun.load(Ordering::SeqCst) == 0
    }

    /// An operation on the image has failed with an error that says that this gateway is fenced, or
    /// has ended without an answer: this life ends.
    pub fn lost(&self, why: &str) {
        self.gate.tell.lost(format!("unit {}: {why}", self.unit.0));
    }
}

impl Drop for Begun {
    fn drop(&mut self) {
        if self.0.begun.fetch_sub(1, Ordering::SeqCst) == 1 {
            self.0.tell_drained();
        }
    }
}

impl Gate {
    pub(super) fn new(unit: UnitId, tell: Teller) -> Arc<Self> {
        let zero = AtomicU64::default;
        let (opening, draining) = (AtomicBool::default(), Mutex::default());
        Arc::new(Self { unit, admits: zero(), begun: zero(), opening, draining, tell })
    }

    /// The host is asked to open the unit.
    pub(super) fn opens(&self) {
        self.opening.store(true, Ordering::SeqCst);
    }

    /// The host's answer: the first one counts.
    fn answers(&self, event: Event) {
        if self.opening.swap(false, Ordering::SeqCst) {
            self.tell.event(event);
        }
    }

    /// Commands may begin until then; `None`: not now.
    pub(super) fn set(&self, admits: Option<Time>) {
        self.admits.store(admits.map_or(0, |until| until.as_nanos() as u64), Ordering::SeqCst);
    }

    fn begin(self: &Arc<Self>) -> Option<Begun> {
        let now = clock();
        let admits = || now < Duration::from_nanos(self.admits.load(Ordering::SeqCst));
        // A refused command is not counted: a unit that goes has to look idle.
        if !admits() {
            return None;
        }
        self.begun.fetch_add(1, Ordering::SeqCst);
        let begun = Begun(self.clone());
        // The group's thread closes the gate before it looks at the count.
        admits().then_some(begun)
    }

    /// The machine waits until no begun command is left; none begins any more.
    pub(super) fn drain(&self, asked: Time) {
        *lock(&self.draining) = Some(asked);
        if self.begun.load(Ordering::SeqCst) == 0 {
            self.tell_drained();
        }
    }

    fn tell_drained(&self) {
        if let Some(asked) = lock(&self.draining).take() {
            self.tell.event(Event::Drained { unit: self.unit, asked });
        }
    }
}

/// The image of a unit. One operation at a time, each on a thread of its own.
#[derive(Clone)]
pub(super) struct Slot {
    unit: UnitId,
    client: Client,
    source: Source,
    open: Arc<Mutex<Option<Open>>>,
}

/// An open image.
pub(super) type Open = (Image, Hook);

impl Slot {
    pub(super) fn new(unit: UnitId, client: Client, source: Source) -> Self {
        Self { unit, client, source, open: Arc::default() }
    }

    pub(super) fn open(&self) -> Option<Open> {
        lock(&self.open).clone()
    }

    fn opened(&self) -> Result<Image, Error> {
        if let Some((image, _)) = self.open() {
            return Ok(image);
        }
        let hook = Hook::default();
        let called = hook.clone();
        let changed = move || {
            let changed = lock(&called).clone();
            changed.iter().for_each(|changed| changed());
        };
        let image = Image::open_unlocked(&self.client, &self.source, Arc::new(changed))?;
        *lock(&self.open) = Some((image.clone(), hook));
        Ok(image)
    }

    pub(super) fn acquire(&self) -> Result<Event, Error> {
        let (image, unit, own) = (self.opened()?, self.unit, instance(&self.client.address()?));
        // Asking a living owner for the lock would take it from a virtual machine.
        let holder = image.lock_owner()?.map(|owner| instance(&owner)).filter(|holder| *holder != own);
        let outcome = match holder {
            Some(holder) => Locked::By(holder),
            None if image.lock()? => Locked::Acquired,
            None => match image.lock_owner()? {
                Some(owner) => Locked::By(instance(&owner)),
                None => return Ok(Event::Failed { unit }),
            },
        };
        Ok(Event::Lock { unit, outcome })
    }

    pub(super) fn break_lock(&self, of: InstanceId) -> Result<Event, Error> {
        let image = self.opened()?;
        if let Some(owner) = image.lock_owner()?.filter(|owner| instance(owner) == of) {
            image.break_fenced_lock(&owner)?;
        }
        Ok(Event::Broken { unit: self.unit })
    }

    /// Releases the lock, tells so, and lets go of the image. The next owner waits for the first
    /// alone.
    pub(super) fn release(&self, tell: &Teller) {
        let open = lock(&self.open).take();
        match open.as_ref().map_or(Ok(()), |(image, _)| image.release_lock()) {
            Ok(()) => tell.event(Event::Released { unit: self.unit }),
            Err(error) => {
                lock(&self.open).clone_from(&open);
                self.tell(tell, Err(error));
            }
        }
    }

    /// Lets go of the image.
    pub(super) fn close(&self) {
        let image = lock(&self.open).take();
        drop(image);
    }

    /// What an operation's outcome means for this life.
    pub(super) fn tell(&self, tell: &Teller, outcome: Result<Event, Error>) {
        match outcome {
            Ok(event) => tell.event(event),
            Err(error) => match errno(&error) {
                Some(libc::ESHUTDOWN) => tell.event(Event::Fenced),
                // It may still be carried out.
                Some(libc::ETIMEDOUT) => tell.lost(format!("{}: {error}", self.source.image)),
                _ => tell.failed(self.unit, format!("{}: {error}", self.source.image)),
            },
        }
    }
}

/// The instance whose client has this address: the same wherever the address is read.
pub(super) fn instance(address: &str) -> InstanceId {
    // FNV-1a.
    let hash = |hash: u64, byte: u8| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
    InstanceId(rados::plain_address(address).bytes().fold(0xcbf2_9ce4_8422_2325, hash))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_instance_is_the_same_in_each_form_of_its_address() {
        assert_eq!(instance("v2:192.0.2.1:0/77"), instance("192.0.2.1:0/77"));
        assert_ne!(instance("192.0.2.1:0/77"), instance("192.0.2.1:0/78"));
        assert_ne!(instance("192.0.2.1:0/77"), instance("192.0.2.2:0/77"));
    }

    #[test]
    fn a_unit_is_drained_when_its_last_command_has_ended() {
        let (tell, told) = Teller::for_tests();
        let gate = Gate::new(UnitId(1), tell);
        gate.set(Some(clock() + Duration::from_secs(3_600)));
        let begins = |gate: &Arc<Gate>| gate.begin().expect("the gate is open");
        let (one, two) = (begins(&gate), begins(&gate));
        let asked = Duration::from_secs(3);
        gate.drain(asked);
        drop(one);
        assert!(told.recv_timeout(Duration::ZERO).is_err());
        drop(two);
        let drained = |event| matches!(event, Event::Drained { asked: of, .. } if of == asked);
        assert!(told.recv_timeout(Duration::ZERO).is_ok_and(|told| told.event().is_some_and(drained)));
        drop(begins(&gate));
        assert!(told.recv_timeout(Duration::ZERO).is_err(), "it was told once");
        gate.drain(asked);
        assert!(told.recv_timeout(Duration::ZERO).is_ok(), "a unit without commands is drained at once");
    }

    #[test]
    fn a_command_that_a_closed_gate_refuses_is_not_counted() {
        let (tell, told) = Teller::for_tests();
        let gate = Gate::new(UnitId(1), tell);
        // One that was counted would be the last to end.
        *lock(&gate.draining) = Some(Duration::ZERO);
        assert!(gate.begin().is_none());
        assert!(told.recv_timeout(Duration::ZERO).is_err());
    }
}
