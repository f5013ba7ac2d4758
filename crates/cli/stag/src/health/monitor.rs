//! The thread that monitors health. It checks whether units' files and exports' folders are still
//! there, logs suppressed messages, and warns of file systems that fill up. It informs the service
//! manager, and measures room on request. A file system that does not answer blocks only this
//! thread.

use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, SyncSender, channel, sync_channel};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::{Duration, Instant};

use backing::health::State;

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
            let mut states = State::Ok;
            let members = running.members();
            for medium in members.iter().map(|member| member.medium) {
                medium.inspect();
                if let Some(health) = medium.health() {
                    health.tick();
                    states = states.max(health.look().state);
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
            let (units, exports) = (running.units.open.len(), running.config.exports.len());
            let says = format!("STATUS={units} units, {exports} exports, health: {}", states.name());
            if says != told {
                supervisor.tell(&says);
                told = says;
            }
        }
    }
}
