//! The thread that monitors health. It checks whether units' files and exports' folders are still
//! there, logs suppressed messages, and warns of file systems that fill up. It informs the service
//! manager, and measures room on request. A file system that does not answer blocks only this
//! thread.

use std::collections::BTreeSet;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, SyncSender, channel, sync_channel};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::{Duration, Instant};

use backing::health::State;
use iscsi_server::audit::TARGET;

use super::space::{self, Spaces, Watermarks};
use crate::control::daemon::Daemon;
use crate::supervisor::Supervisor;

/// Interval of checks.
const TICK: Duration = Duration::from_secs(5);
/// File systems are measured at every n-th check.
const MEASURED_EACH: u32 = 6;

pub struct Monitor {
    ask: Mutex<Sender<SyncSender<Arc<Spaces>>>>,
    last: Mutex<Arc<Spaces>>,
}

impl Monitor {
    /// A monitor whose thread has not been started, and the receiver of its requests.
    pub fn new() -> (Self, Listener) {
        let (ask, asked) = channel();
        (Self { ask: Mutex::new(ask), last: Mutex::default() }, Listener(asked))
    }

    /// The current room; the last known one if a file system does not answer within `patience`.
    pub fn spaces(&self, patience: Duration) -> Arc<Spaces> {
        let (answer, hear) = sync_channel(1);
        let asked = self.ask.lock().unwrap_or_else(PoisonError::into_inner).send(answer);
        let now = asked.ok().and_then(|()| hear.recv_timeout(patience).ok());
        let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(now) = now {
            *last = now;
        }
        last.clone()
    }
}

/// The problems that were there at the last look: of what, and its kind.
#[derive(Default)]
struct Known(BTreeSet<(String, &'static str)>);

impl Known {
    /// What has begun since then, and what is over.
    fn news(&mut self, now: BTreeSet<(String, &'static str)>) -> [Vec<(String, &'static str)>; 2] {
        let news = [&now - &self.0, &self.0 - &now].map(|all| all.into_iter().collect());
        self.0 = now;
        news
    }
}

/// Receiver of the thread's requests.
pub struct Listener(Receiver<SyncSender<Arc<Spaces>>>);

impl Listener {
    /// Starts the thread, which ends with the daemon.
    ///
    /// # Errors
    /// No thread can be started.
    pub fn start(self, daemon: &Arc<Daemon>) -> std::io::Result<()> {
        let daemon = Arc::downgrade(daemon);
        std::thread::Builder::new().name("health".into()).spawn(move || self.run(&daemon)).map(drop)
    }

    fn run(self, daemon: &Weak<Daemon>) {
        let supervisor = Supervisor::find();
        let (mut watermarks, mut ticks, mut told) = (Watermarks::default(), 0, String::new());
        let mut known = Known::default();
        // Requests must not delay it.
        let mut next = Instant::now();
        loop {
            let asked = match self.0.recv_timeout(next.saturating_duration_since(Instant::now())) {
                Ok(answer) => Some(answer),
                Err(RecvTimeoutError::Timeout) => None,
                Err(RecvTimeoutError::Disconnected) => return,
            };
            let Some(daemon) = daemon.upgrade() else { return };
            let running = daemon.running();
            if let Some(answer) = asked {
                // The requester may have stopped waiting.
                let _ = answer.try_send(Arc::new(space::measure(&running.members())));
                continue;
            }
            next = Instant::now() + TICK;
            let (mut states, mut now) = (State::Ok, BTreeSet::new());
            let members = running.members();
            for member in &members {
                member.medium.inspect();
                if let Some(health) = member.medium.health() {
                    health.tick();
                    let found = health.look();
                    states = states.max(found.state);
                    let kinds = found.problems.iter().map(|problem| problem.kind.name());
                    now.extend(kinds.map(|kind| (member.served.to_string(), kind)));
                }
            }
            if ticks % MEASURED_EACH == 0 {
                for system in watermarks.news(&space::measure(&members).file_systems) {
                    let space::FileSystem { mount, used_percent, free, overcommitted, .. } = system;
                    tracing::warn!(
                        mount,
                        used_percent,
                        free,
                        overcommitted,
                        "a file system under units or exports is nearly full"
                    );
                }
            }
            ticks += 1;
            now.extend(watermarks.warned().map(|mount| (format!("file system {mount}"), "full")));
            let [begun, over] = known.news(now);
            for (served, kind) in begun {
                tracing::warn!(target: TARGET, what = "problem", served, kind, "a problem has begun");
            }
            for (served, kind) in over {
                tracing::info!(target: TARGET, what = "problem-over", served, kind, "a problem is over");
            }
            let (units, exports) = (running.units.open.len(), running.config.exports.len());
            let says = format!("STATUS={units} units, {exports} exports, health: {}", states.name());
            if says != told {
                supervisor.tell(&says);
                told = says;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_problem_is_told_when_it_begins_and_when_it_is_over() {
        let mut known = Known::default();
        let mut news = |now: &[(&str, &'static str)]| {
            let now = now.iter().map(|(served, kind)| ((*served).to_owned(), *kind)).collect();
            known
                .news(now)
                .map(|all| all.into_iter().map(|(served, kind)| served + ": " + kind).collect::<Vec<_>>())
        };
        assert_eq!(
            news(&[("a", "read"), ("b", "full")]),
            [vec!["a: read".to_owned(), "b: full".to_owned()], vec![]]
        );
        assert_eq!(news(&[("a", "read"), ("b", "full")]), [vec![], Vec::<String>::new()]);
        assert_eq!(
            news(&[("a", "gone"), ("b", "full")]),
            [vec!["a: gone".to_owned()], vec!["a: read".to_owned()]]
        );
    }
}
