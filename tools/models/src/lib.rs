//! Models of the product's lock-free parts: every order of a few threads' steps, and every value
//! that the memory model lets a load return, up to some preemptions.
//!
//! What is checked is the product's own file. It takes atomics and mutexes from a module `sync`
//! beside it; here that module is another one, [`sync`] with loom's. Each module of this crate is
//! one such part, with the functions that `tests/models.rs` calls. A deadlock, as after a wake-up
//! that got lost, is a failure of loom's.
//!
//! - [`stripes`]: of `disk`, which keep commands whole.
//! - [`exclusion`]: of `device`, for commands that must be atomic.
//! - [`mailbox`]: of `runtime`, by which threads wake each other's cores.
//!
//! `runtime::Use` and `runtime::Shared`, which let units go that are removed, have nothing to
//! model: but for counts of `Arc` each of their states belongs to one thread.
#![forbid(unsafe_code)]
// What is modelled brings its unit tests along, which are not made for loom.
#![cfg(not(test))]

pub mod exclusion;
pub mod mailbox;
pub mod stripes;
mod sync;

/// Runs these at once, each in a thread of its own. (Loom tries fewer orders of a thread that does
/// something after it has begun another one.)
fn at_once(threads: Vec<Box<dyn FnOnce()>>) {
    let threads: Vec<_> = threads.into_iter().map(loom::thread::spawn).collect();
    threads.into_iter().for_each(|thread| thread.join().unwrap_or_else(|_| panic!("a thread panicked")));
}

/// Runs `model` in every order with at most `preemptions` switches away from a thread that could go
/// on.
fn check(preemptions: usize, model: impl Fn() + Send + Sync + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(preemptions);
    builder.check(model);
}
