//! A simulated world: it replaces the kernel below this crate, and one seed decides everything in
//! it.
//!
//! Inside of [`run`] this crate runs the code that ships, down to the io_uring entries of each
//! core. A simulated kernel takes the entries ([`ring`]). A simulated network with latency, resets
//! and silence connects the sockets ([`net`]), files lie on a modelled medium ([`medium`]), and
//! time is virtual. The threads of a world ([`crate::Cores`], [`aside`]) run one at a time: a
//! thread hands its turn on when it enters its ring, and the seed decides to whom.
//!
//! A thread of a world must not block on another thread by other means than this crate's: it would
//! keep its turn for ever. [`crate::channel`] and [`crate::nap`] hand the turn on while they wait.

mod chance;
mod machine;
pub mod medium;
mod net;
pub(crate) mod ring;
mod socket;
mod turns;
mod waiting;

pub(crate) mod calls;
pub(crate) use medium::operations as files;

use std::cell::RefCell;
use std::future::Future;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

pub use chance::Chance;
pub use machine::{Machine, on_machine};
pub use net::{
    Link, Middlebox, Network, cut, deafen, flip_a_bit, links, pause, reset, set_middlebox, set_network, stall,
};
pub(crate) use socket::Socket;
use turns::Turns;
pub(crate) use waiting::Waiting;

/// Settings of a world.
#[derive(Clone, Debug)]
pub struct Config {
    /// Decides every random choice of the run.
    pub seed: u64,
    /// The network at the start; [`set_network`] changes it.
    pub network: Network,
    /// Virtual time after which a run that has not ended fails.
    pub time_limit: Duration,
}

impl Config {
    /// A quick and reliable network, and an hour.
    pub fn new(seed: u64) -> Self {
        Self { seed, network: Network::default(), time_limit: Duration::from_secs(3600) }
    }
}

/// The result of a run.
#[derive(Debug)]
pub struct Ran<T> {
    /// What the main future returned.
    pub output: T,
    /// Virtual time that passed.
    pub elapsed: Duration,
    /// Number of turns handed out.
    pub turns: u64,
    /// A digest of all events in order. Two runs of one seed have the same digest.
    pub trace: u64,
}

/// One simulated world.
pub(crate) struct World {
    state: Mutex<State>,
    /// The origin of virtual time.
    began: Instant,
}

/// The state of a world. A thread uses it only during its turn.
pub(crate) struct State {
    /// Nanoseconds since the world began.
    now: u64,
    chance: Chance,
    turns: Turns,
    machines: machine::Machines,
    net: net::Net,
    medium: medium::Medium,
    trace: u64,
}

impl State {
    /// Adds an event to the digest.
    fn note(&mut self, what: u64) {
        self.trace = (self.trace ^ what ^ self.now).wrapping_mul(0x0000_0100_0000_01b3).rotate_left(17);
    }
}

/// A thread's world, and its place in it.
#[derive(Clone)]
pub(crate) struct Here {
    pub(crate) world: Arc<World>,
    /// Its number among the threads of the world.
    pub(crate) me: usize,
}

impl Here {
    pub(crate) fn number(&self) -> usize {
        self.me
    }
}

thread_local! {
    static HERE: RefCell<Option<Here>> = const { RefCell::new(None) };
}

/// The world that this thread is in.
pub(crate) fn here() -> Option<Here> {
    HERE.with_borrow(Clone::clone)
}

/// Whether this thread is in a world.
pub fn is_on() -> bool {
    HERE.with_borrow(Option::is_some)
}

/// Runs `f` with the state of this thread's world.
pub(crate) fn with<R>(f: impl FnOnce(&mut State, usize) -> R) -> Option<R> {
    let here = here()?;
    let mut state = here.world.lock();
    Some(f(&mut state, here.me))
}

/// The virtual time, in a world.
pub(crate) fn now() -> Option<Instant> {
    HERE.with_borrow(|here| here.as_ref().map(|here| here.world.time(here.world.lock().now)))
}

/// The virtual time since some time before the world began, in a world.
pub(crate) fn elapsed() -> Option<Duration> {
    with(|state, _| Duration::from_nanos(state.now))
}

/// A random number from the world's seed.
///
/// # Panics
/// Outside of a world.
pub fn chance() -> u64 {
    with(|state, _| state.chance.bits()).expect("in a world")
}

/// In a world: fills `bytes` from its seed. Returns false outside of a world.
pub(crate) fn fill(bytes: &mut [u8]) -> bool {
    with(|state, _| {
        for chunk in bytes.chunks_mut(8) {
            chunk.copy_from_slice(&state.chance.bits().to_le_bytes()[..chunk.len()]);
        }
    })
    .is_some()
}

impl World {
    pub(crate) fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn time(&self, at: u64) -> Instant {
        self.began + Duration::from_nanos(at)
    }
}

/// Runs a future in a new world, on a new thread. Returns when the future and all other threads of
/// the world have ended.
///
/// # Panics
/// If the future or a thread of the world panics, if every thread waits for ever, or beyond the
/// time limit.
pub fn run<M, F>(config: Config, main: M) -> Ran<F::Output>
where
    M: FnOnce() -> F + Send + 'static,
    F: Future + 'static,
    F::Output: Send + 'static,
{
    let thread = std::thread::Builder::new().name("sim-main".into()).stack_size(8 << 20).spawn(move || {
        let state = State {
            now: 1_000_000_000,
            chance: Chance::new(config.seed),
            turns: Turns::new(config.time_limit),
            machines: machine::Machines::default(),
            net: net::Net::new(config.network),
            // Drawn apart, so that files do not change what else a seed decides.
            medium: medium::Medium::new(Chance::new(config.seed ^ 0x4d45_4449_554d)),
            trace: 0,
        };
        let world = Arc::new(World { state: Mutex::new(state), began: Instant::now() });
        let me = world.lock().turns.join(Machine::default());
        world.lock().turns.begin(me);
        let seat = Seat::take(Here { world: world.clone(), me });
        let runtime = crate::Runtime::new(crate::Config { spin_us: 0, ..crate::Config::default() })
            .expect("a simulated ring can be had");
        let output = runtime.block_on(main());
        drop(runtime);
        seat.wait_for_all();
        drop(seat);
        let mut state = world.lock();
        if let Some(why) = state.turns.broken() {
            panic!("{why}");
        }
        state.net.end();
        state.medium.end();
        Ran {
            output,
            elapsed: Duration::from_nanos(state.now - 1_000_000_000),
            turns: state.turns.taken(),
            trace: state.trace,
        }
    });
    match thread.expect("a thread can be had").join() {
        Ok(ran) => ran,
        Err(panic) => std::panic::resume_unwind(panic),
    }
}

/// Runs `f` on a new thread of this world. Unlike a core, the thread may wait, with
/// [`crate::channel`] and [`crate::nap`]. Outside of a world this is [`crate::blocking`].
pub async fn aside<T: Send + 'static>(f: impl FnOnce() -> T + Send + 'static) -> T {
    crate::blocking(f).await
}

/// A thread's place in its world, while it is there.
pub(crate) struct Seat(Here);

impl Seat {
    /// Enters the world and waits for the first turn.
    pub(crate) fn take(here: Here) -> Self {
        HERE.set(Some(here.clone()));
        here.world.wait_for_turn(here.me);
        Self(here)
    }

    /// Reserves a place for a new thread of this thread's world. The number is assigned here,
    /// during this thread's turn, so that it depends on the seed alone.
    pub(crate) fn reserve() -> Option<Here> {
        let world = here()?.world;
        let me = world.lock().turns.join(machine::current());
        Some(Here { world, me })
    }

    /// Waits until all other threads have left.
    fn wait_for_all(&self) {
        self.0.world.wait(self.0.me, turns::Wait::Alone, None);
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        HERE.set(None);
        self.0.world.leave(self.0.me, std::thread::panicking());
    }
}

/// In a world: waits until the thread `other` has left.
pub(crate) fn wait_until_left(other: usize) {
    if let Some(here) = here() {
        here.world.wait(here.me, turns::Wait::Left(other), None);
    }
}

/// In a world: waits for `duration`. Returns false outside of a world.
pub(crate) fn nap(duration: Duration) -> bool {
    let Some(here) = here() else { return false };
    let until = here.world.lock().now + u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX / 2);
    here.world.wait(here.me, turns::Wait::Time, Some(until));
    true
}
