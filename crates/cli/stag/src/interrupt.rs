//! Ctrl-C during `stag bench` or `stag lab`: the first one ends the load, and the figures measured
//! until then are printed.
//! A second one ends the process at once, for targets that do not answer any more.

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use runtime::{Runtime, Signal, Signals};

use crate::exit::Exit;

static CAME: AtomicBool = AtomicBool::new(false);

/// Whether the user has asked the process to end.
#[inline]
pub fn came() -> bool {
    CAME.load(Ordering::Relaxed)
}

/// From now on the first SIGINT or SIGTERM calls `first` and sets [`came`]; the second calls `last`
/// and ends the process. Call it before any other thread starts. If it cannot watch signals, they
/// end the process as usual.
///
/// # Errors
/// There is no ring for this process.
pub fn watch(first: impl Fn() + Send + 'static, last: impl Fn() + Send + 'static) -> std::io::Result<()> {
    // Checked here: the thread itself could not report the error.
    ring()?;
    let Ok(signals) = Signals::new(&[Signal::Interrupt, Signal::Terminate]) else { return Ok(()) };
    let watcher = move || {
        if let Ok(ring) = ring() {
            while ring.block_on(signals.next()).is_ok() && !came() {
                say!("stag: ending; once more to end at once");
                first();
                CAME.store(true, Ordering::Relaxed);
            }
        }
        // Also ends the process if signals cannot be received any more, since no signal would end
        // it then.
        last();
        std::process::exit(Exit::Interrupted as i32);
    };
    if let Err(error) = thread::Builder::new().name("signals".into()).spawn(watcher) {
        // The signals are blocked by now, and no thread receives them.
        tracing::warn!(%error, "signals are not seen before the end of the run");
    }
    Ok(())
}

/// A ring of the calling thread's own that only receives signals. Whoever waits for more than one
/// keeps it: later the process may have no descriptor for another. The thread's pool keeps its
/// usual limit, since other parts of the thread allocate from it, too.
pub(crate) fn ring() -> std::io::Result<Runtime> {
    Runtime::new(runtime::Config { entries: 8, spin_us: 0, recv_buffers: 2, ..runtime::Config::default() })
}
