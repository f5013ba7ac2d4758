//! The progress of a run: a bar with the remaining time on a terminal, lines elsewhere.

use std::io::{IsTerminal as _, Write as _};
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

use crate::point::Point;
use crate::record::{Outcome, Record};

/// The maximum interval between lines without a terminal.
const LINE_EVERY: Duration = Duration::from_secs(15);

/// Receives the progress of a run.
pub trait Progress {
    /// A point begins. `done` of `total` points in all rounds are recorded; the rest will take
    /// about `left`.
    fn begins(&mut self, point: &Point, round: u32, done: usize, total: usize, left: Duration);
    /// A point is recorded.
    fn ended(&mut self, record: &Record);
    /// A message for the user.
    fn say(&mut self, text: &str);
}

/// Shows the progress on stderr.
pub struct Bar {
    bar: ProgressBar,
    quiet: bool,
    terminal: bool,
    experiment: String,
    last_line: Option<Instant>,
}

impl Bar {
    /// With `quiet`, shows failures only.
    pub fn new(quiet: bool) -> Self {
        let terminal = std::io::stderr().is_terminal();
        let bar = ProgressBar::hidden();
        if terminal && !quiet {
            bar.set_draw_target(ProgressDrawTarget::stderr_with_hz(5));
            let style = ProgressStyle::with_template("[{bar:24}] {pos}/{len} {msg}");
            if let Ok(style) = style {
                bar.set_style(style.progress_chars("=> "));
            }
        }
        Self { bar, quiet, terminal, experiment: String::new(), last_line: None }
    }

    pub fn finish(&self) {
        self.bar.finish_and_clear();
    }
}

impl Progress for Bar {
    fn begins(&mut self, point: &Point, round: u32, done: usize, total: usize, left: Duration) {
        let left = time(left);
        if self.terminal && !self.quiet {
            self.bar.set_length(u64::try_from(total).unwrap_or(u64::MAX));
            self.bar.set_position(u64::try_from(done).unwrap_or(u64::MAX));
            self.bar.set_message(format!(
                "{left} left · {} round {round} · {}",
                point.experiment,
                point.key()
            ));
            self.bar.tick();
            return;
        }
        let another = self.experiment != point.experiment;
        if !self.quiet && (another || self.last_line.is_none_or(|last| last.elapsed() >= LINE_EVERY)) {
            line(format_args!("{done}/{total}, {left} left: {}, round {round}", point.experiment));
            self.last_line = Some(Instant::now());
        }
        self.experiment.clone_from(&point.experiment);
    }

    fn ended(&mut self, record: &Record) {
        match &record.outcome {
            Outcome::Measured(_) => {}
            Outcome::Missing(why) => {
                if !self.quiet {
                    self.say(&format!("{}: {}: left out: {why}", record.experiment, record.key));
                }
            }
            Outcome::Failed(why) => self.say(&format!("{}: {}: {why}", record.experiment, record.key)),
        }
    }

    fn say(&mut self, text: &str) {
        self.bar.suspend(|| line(format_args!("stag: {text}")));
    }
}

/// Writes a line to stderr. Errors are ignored: the run continues without a reader.
pub(crate) fn line(what: std::fmt::Arguments<'_>) {
    let _ = writeln!(std::io::stderr().lock(), "{what}");
}

/// A duration as text: `45 s`, `12 min`, `1 h 05 min`.
pub fn time(time: Duration) -> String {
    let seconds = time.as_secs_f64();
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "minutes of a run")]
    let minutes = (seconds / 60.0).round() as u64;
    if seconds < 90.0 {
        format!("{seconds:.0} s")
    } else if minutes < 90 {
        format!("{minutes} min")
    } else {
        format!("{} h {:02} min", minutes / 60, minutes % 60)
    }
}
