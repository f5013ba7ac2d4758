//! One run of a world: how it is run, and its result.

use std::fmt;
use std::panic::AssertUnwindSafe;

use runtime::sim;

use crate::plan::Micros;

/// The counts of a run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Report {
    /// Commands that ended.
    pub commands: u64,
    /// Reconnects of sessions.
    pub reconnects: u64,
    /// Connections that were lost while their session continued.
    pub recovered: u64,
    /// Kills and power cuts of the server.
    pub restarts: u64,
    /// Commands that task management ended.
    pub aborted: u64,
    /// Commands that were rightly refused: by a reservation, or because a unit was out of their
    /// session's reach.
    pub refused: u64,
    /// PDUs that were lost, damaged or repeated in transit.
    pub touched: u64,
    /// Opens, locks and delegations that were reclaimed after a restart.
    pub reclaimed: u64,
    /// A digest of everything that happened.
    pub trace: u64,
    /// Duration in simulated time, µs.
    pub time: Micros,
    /// Turns handed out to threads.
    pub turns: u64,
}

/// A run that found a defect.
#[derive(Clone, Debug)]
pub struct Failure {
    /// The seed.
    pub seed: u64,
    /// The rule that was broken, and how.
    pub what: String,
    /// The option of `sim` that runs this kind of world; empty for that of reads and writes.
    pub world: &'static str,
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { seed, what, world } = self;
        let space = if world.is_empty() { "" } else { " " };
        write!(f, "seed {seed}: {what}\nagain: cargo run -p sim -- {world}{space}--seed {seed}")
    }
}

/// Runs `main` in a world. A panic in it is a failure too.
pub(crate) fn in_world<F>(
    world: &'static str,
    seed: u64,
    config: sim::Config,
    main: impl FnOnce() -> F + Send + 'static,
) -> Result<Report, Box<Failure>>
where
    F: Future<Output = Result<Report, String>> + 'static,
{
    let failure = |what| Box::new(Failure { seed, what, world });
    let broken = invariant::count();
    let ran = std::panic::catch_unwind(AssertUnwindSafe(|| sim::run(config, main)));
    // The panic of a task ends that task only, and a world may continue without it.
    if invariant::count() > broken {
        return Err(failure("an invariant is broken, in this world or in one beside it".to_owned()));
    }
    match ran {
        Ok(sim::Ran { output, elapsed, turns, trace }) => {
            let report = output.map_err(failure)?;
            Ok(Report { trace, turns, time: elapsed.as_micros() as Micros, ..report })
        }
        Err(panic) => {
            let text = panic.downcast_ref::<String>().cloned();
            let text = text.or_else(|| panic.downcast_ref::<&str>().map(|text| (*text).to_owned()));
            Err(failure(text.unwrap_or_else(|| "a panic".to_owned())))
        }
    }
}
