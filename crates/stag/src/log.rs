//! Where log lines go, and which: to stderr, filtered as `--log`, `STAG_LOG` or the configuration say. Never one per I/O.

use std::io::IsTerminal;

use tracing_subscriber::EnvFilter;

/// Whether `filter` can be understood.
///
/// # Errors
/// What is wrong with it.
pub fn check(filter: &str) -> Result<(), String> {
    EnvFilter::try_new(filter).map(drop).map_err(|error| format!("\"{filter}\" is no log filter: {error}"))
}

/// Starts logging. `filter` is what was asked for, `otherwise` what holds if nothing was.
pub fn start(filter: Option<&str>, otherwise: &str) {
    let filter =
        EnvFilter::try_new(filter.unwrap_or(otherwise)).unwrap_or_else(|_| EnvFilter::new(otherwise));
    let subscriber = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr)
        // It would tell stderr that stderr cannot be written, and panic when that fails too.
        .log_internal_errors(false)
        .with_ansi(std::io::stderr().is_terminal() && std::env::var_os("NO_COLOR").is_none());
    // Fails if logging was started before, and then goes on with that.
    let _ = subscriber.try_init();
}
