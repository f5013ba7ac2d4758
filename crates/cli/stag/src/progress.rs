//! Progress of a command, shown on a terminal after one second.

use std::cell::Cell;
use std::io::IsTerminal;
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

/// Time before the first display.
const PATIENCE: Duration = Duration::from_secs(1);

/// Counts files and bytes, and shows them.
pub struct Progress {
    began: Instant,
    bar: ProgressBar,
    visible: Cell<bool>,
    may_show: bool,
    files: Cell<u64>,
    bytes: Cell<u64>,
    holes: Cell<u64>,
}

impl Progress {
    /// Begins now. `quiet`: nothing is ever shown.
    pub fn new(quiet: bool) -> Self {
        Self {
            began: Instant::now(),
            bar: ProgressBar::hidden(),
            visible: Cell::new(false),
            may_show: !quiet && std::io::stderr().is_terminal(),
            files: Cell::new(0),
            bytes: Cell::new(0),
            holes: Cell::new(0),
        }
    }

    /// Bytes have been moved.
    pub fn bytes(&self, bytes: u64) {
        self.bytes.set(self.bytes.get() + bytes);
        self.show();
    }

    /// A file is done; of its bytes, so many were in holes.
    pub fn file(&self, holes: u64) {
        self.files.set(self.files.get() + 1);
        self.holes.set(self.holes.get() + holes);
        self.show();
    }

    /// Prints a message on stderr, above the progress line.
    pub fn say(&self, text: &str) {
        self.bar.suspend(|| say!("{text}"));
    }

    fn show(&self) {
        if !self.may_show || self.began.elapsed() < PATIENCE {
            return;
        }
        if !self.visible.replace(true) {
            self.bar.set_draw_target(ProgressDrawTarget::stderr_with_hz(10));
            if let Ok(style) = ProgressStyle::with_template("{spinner} {msg}{bytes} {binary_bytes_per_sec}") {
                self.bar.set_style(style);
            }
        }
        self.bar.set_position(self.bytes.get());
        self.bar.set_message(format!("{} files, ", self.files.get()));
    }

    /// Ends. Files, bytes that were moved, and bytes in holes; told on a terminal unless `silent`.
    pub fn finish(&self, silent: bool) -> (u64, u64, u64) {
        self.bar.finish_and_clear();
        let (files, bytes, holes) = (self.files.get(), self.bytes.get(), self.holes.get());
        if self.may_show && !silent {
            let seconds = self.began.elapsed().as_secs_f64().max(1e-3);
            let rate = bytes as f64 / 1e6 / seconds;
            say!("{files} files, {bytes} bytes, {holes} more in holes, in {seconds:.1} s: {rate:.0} MB/s");
        }
        (files, bytes, holes)
    }
}
