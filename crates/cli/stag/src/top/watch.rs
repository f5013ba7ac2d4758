//! Asks a daemon for its status, again and again, on a thread of its own: a daemon that is slow to
//! answer must not hold up the keyboard.

use std::io;
use std::path::PathBuf;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, SyncSender, channel, sync_channel};
use std::thread;
use std::time::{Duration, Instant};

use serde_json::Map;

use crate::control::client::{CallError, Client};
use crate::control::slow::{self, Slow};
use crate::control::status::Status;

/// Time between two attempts to find a daemon that has gone.
const RETRY: Duration = Duration::from_secs(1);

/// What the daemon has said.
pub enum News {
    Status(Box<Status>),
    /// Its slow commands, or why it does not tell them.
    Slow(Result<Vec<Slow>, String>),
    /// It is gone, or cannot be understood.
    Lost(String),
}

/// The thread. It ends once this is dropped, and the daemon has answered.
pub struct Watch {
    /// Whether slow commands are wanted.
    orders: Sender<bool>,
    pub news: Receiver<News>,
}

impl Watch {
    /// Watches `client`'s daemon, and whichever comes after it at the same place.
    ///
    /// # Errors
    /// The system starts no thread.
    pub fn start(client: Client, place: Option<PathBuf>, interval: Duration) -> io::Result<Self> {
        let (orders, wanted) = channel();
        // A view that is stopped (SIGSTOP) lets the thread wait.
        let (teller, news) = sync_channel(2);
        let mut watcher = Watcher { client: Some(client), place, interval, wanted, slow: false, teller };
        thread::Builder::new().name("watch".into()).spawn(move || while watcher.turn().is_some() {})?;
        Ok(Self { orders, news })
    }

    /// Slow commands are wanted from now on, or no longer.
    pub fn want_slow(&self, wanted: bool) {
        // If the thread has ended, `news` tells.
        let _ = self.orders.send(wanted);
    }
}

struct Watcher {
    client: Option<Client>,
    place: Option<PathBuf>,
    interval: Duration,
    wanted: Receiver<bool>,
    slow: bool,
    teller: SyncSender<News>,
}

impl Watcher {
    /// One interval, and a report at its end; `None` once nobody listens.
    fn turn(&mut self) -> Option<()> {
        let wait = if self.client.is_some() { self.interval } else { self.interval.min(RETRY) };
        let next = Instant::now() + wait;
        loop {
            match self.wanted.recv_timeout(next.saturating_duration_since(Instant::now())) {
                Ok(slow) => {
                    self.slow = slow;
                    self.tell_slow()?;
                }
                Err(RecvTimeoutError::Timeout) => break,
                Err(RecvTimeoutError::Disconnected) => return None,
            }
        }
        let place = self.place.as_deref();
        let client = match self.client.take() {
            Some(client) => Ok(client),
            None => Client::connect(place),
        };
        let asked = client.and_then(|mut client| {
            let status = client.ask("status")?;
            self.client = Some(client);
            Ok(status)
        });
        self.tell(match asked {
            Ok(status) => News::Status(Box::new(status)),
            Err(error) => News::Lost(error.to_string()),
        })?;
        self.tell_slow()
    }

    /// Tells the slow commands, if they are wanted and a daemon answers.
    fn tell_slow(&mut self) -> Option<()> {
        let Some(client) = self.client.as_mut().filter(|_| self.slow) else { return Some(()) };
        let asked = client.call(slow::VERB, Map::new(), |_| ());
        let told = asked.and_then(|value| Ok(serde_json::from_value(value)?));
        if !matches!(told, Ok(_) | Err(CallError::Fault(_))) {
            // The next turn finds out what has become of the daemon.
            self.client = None;
        }
        self.tell(News::Slow(told.map_err(|error| error.to_string())))
    }

    fn tell(&self, news: News) -> Option<()> {
        self.teller.send(news).ok()
    }
}
