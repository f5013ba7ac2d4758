//! HTTP for administrators: `/metrics`, `/healthz` and `/readyz`, and paths of the source's, such
//! as an API, on a thread of its own beside the cores. It knows nothing of the server: a [`Source`]
//! supplies the content.
//!
//! - [`Http`]: the thread, from its start before the sandbox closes to its end.
//! - [`exposition`]: metrics as text, for Prometheus and OpenMetrics.
//! - [`Tls`]: the certificate and key of a listener that speaks HTTPS.
//! - [`Head`] and [`Answer`]: a request to any other path, and what it gets.
//! - [`Door`]: where clients of a Unix socket come in.
//! - [`Teller`]: where events are told, for clients that follow them.
//!
//! The thread must never run on a core, and nothing here may wait for a client without a bound. It
//! is the only place that uses tokio.
#![forbid(unsafe_code)]

mod accept;
mod api;
mod connections;
mod events;
pub mod exposition;
mod life;
mod pages;
mod tls;

use std::io;
use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;
use std::sync::mpsc;
use std::thread::JoinHandle;

pub use api::{Admitted, Answer, CALLS, Head, Peer};
pub use connections::Door;
pub use events::{STREAMS, Teller};
use exposition::Format;
pub use tls::{Tls, TlsError};
use tokio::sync::oneshot;

/// Source of a server's state. Its functions may block: they run on a thread of their own.
pub trait Source: Send + Sync + 'static {
    /// State at one moment.
    type Picture: Send + Sync + 'static;
    /// A request to another path that may be executed.
    type Call: Send + 'static;

    /// Takes a picture of everything. Called once a second at most; all clients share the result.
    fn look(&self) -> Self::Picture;

    /// All metrics of a picture.
    fn metrics(&self, picture: &Self::Picture, format: Format) -> String;

    /// Whether all is well, and text for people.
    fn health(&self, picture: &Self::Picture) -> Report;

    /// Whether clients can be served now, and text for people.
    fn readiness(&self, picture: &Self::Picture) -> Report;

    /// Whether the request may read the metrics. Must not block.
    ///
    /// # Errors
    /// The answer to a client that may not.
    fn may_scrape(&self, head: &Head) -> Result<(), Answer>;

    /// Decides on a request to another path than those above, before its body is read. Must not
    /// block.
    ///
    /// # Errors
    /// The answer to a client that gets nothing else.
    fn admit(&self, head: Head) -> Result<Admitted<Self::Call>, Answer>;

    /// Executes a request. [`CALLS`] run at once, each on a thread of its own.
    fn execute(&self, call: Self::Call, body: &[u8]) -> Answer;

    /// The answer to a request that cannot be executed, for the reason `what`.
    fn refusal(status: u16, what: &str) -> Answer;
}

/// An answer of yes or no, with reasons.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Report {
    /// Answered with 200 if so, with 503 if not.
    pub well: bool,
    /// One or more lines.
    pub text: String,
}

/// The thread that serves. It ends when this is dropped, once it has answered what was asked until
/// then, or after two seconds.
pub struct Http<S: Source> {
    begin: mpsc::Sender<Arc<S>>,
    teller: Teller,
    door: Door,
    end: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl<S: Source> Http<S> {
    /// Starts the thread on a listening socket, over TLS if that is given. Without a socket only
    /// those come who are let in by the [`Door`]. It makes everything now that a sandbox may forbid
    /// later, and lets clients wait until [`Self::serve`].
    ///
    /// # Errors
    /// When the system has no thread or no events for it.
    pub fn start(listener: Option<TcpListener>, tls: Option<Tls>) -> io::Result<Self> {
        listener.as_ref().map(|listener| listener.set_nonblocking(true)).transpose()?;
        let (begin, begun) = mpsc::channel();
        let (end, ended) = oneshot::channel();
        let (say, hear) = mpsc::channel();
        let ((teller, told), (door, locals)) = (events::entrance(), Door::new());
        let work = move || {
            if let Err(error) = runtime::be_patient() {
                tracing::warn!(%error, "the HTTP thread may get in the way of cores");
            }
            let made = tokio::runtime::Builder::new_current_thread()
                .enable_io()
                .enable_time()
                // One takes the pictures. The threads inherit `be_patient`'s scheduling.
                .max_blocking_threads(1 + CALLS)
                .thread_name("http-gather")
                .build();
            let runtime = match made {
                Ok(runtime) => runtime,
                Err(error) => return drop(say.send(Err(error))),
            };
            // The thread that starts this one waits for the result.
            let _ = say.send(Ok(()));
            if let Ok(source) = begun.recv() {
                runtime.block_on(connections::serve(listener, tls, source, (told, locals), ended));
            }
            // Do not wait for pictures that are still being taken.
            runtime.shutdown_background();
        };
        let thread = std::thread::Builder::new().name("http".into()).spawn(work)?;
        hear.recv().map_err(|_| io::Error::other("the HTTP thread has ended"))??;
        Ok(Self { begin, teller, door, end: Some(end), thread: Some(thread) })
    }

    /// Answers clients from now on, with the state that `source` reports.
    pub fn serve(&self, source: Arc<S>) {
        if self.begin.send(source).is_err() {
            tracing::error!("the HTTP thread has ended before its time");
        }
    }

    /// Where clients of a Unix socket come in.
    pub fn door(&self) -> Door {
        self.door.clone()
    }

    /// Where events are told that clients follow.
    pub fn teller(&self) -> Teller {
        self.teller.clone()
    }
}

impl<S: Source> Drop for Http<S> {
    fn drop(&mut self) {
        // The end of `begin` ends a thread that has not begun to serve.
        drop(std::mem::replace(&mut self.begin, mpsc::channel().0));
        drop(self.end.take());
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// A socket that listens for HTTP.
///
/// # Errors
/// The system's: the address is in use, or is not this machine's.
pub fn listen(address: SocketAddr) -> io::Result<TcpListener> {
    // The standard library sets SO_REUSEADDR, so connections of an ended daemon in TIME_WAIT do not
    // prevent this bind.
    TcpListener::bind(address)
}
