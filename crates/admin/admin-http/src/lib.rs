//! HTTP for administrators: `/metrics`, `/healthz` and `/readyz`, on a thread of its own beside the
//! cores. It knows nothing of what is served: a [`Source`] says it.
//!
//! - [`Http`]: the thread, from its start before the sandbox closes to its end.
//! - [`exposition`]: metrics as text, for Prometheus and OpenMetrics.
//!
//! The thread must never run on a core, and nothing here may wait for a client without a bound. It
//! is the only place that uses tokio.
#![forbid(unsafe_code)]

mod accept;
mod connections;
pub mod exposition;
mod pages;

use std::io;
use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;
use std::sync::mpsc;
use std::thread::JoinHandle;

use exposition::Format;
use tokio::sync::oneshot;

/// What a server knows of itself. Its functions may block: they run on a thread that nothing else
/// waits for.
pub trait Source: Send + Sync + 'static {
    /// What it knows at one moment.
    type Picture: Send + Sync + 'static;

    /// Looks at everything. Called once a second at most; all clients share the answer.
    fn look(&self) -> Self::Picture;

    /// All metrics of a picture.
    fn metrics(&self, picture: &Self::Picture, format: Format) -> String;

    /// Whether all is well, and text for people.
    fn health(&self, picture: &Self::Picture) -> Report;

    /// Whether clients can be served now, and text for people.
    fn readiness(&self, picture: &Self::Picture) -> Report;
}

/// An answer of yes or no, with reasons.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Report {
    /// Answered with 200 if so, with 503 if not.
    pub well: bool,
    /// One or more lines.
    pub text: String,
}

/// The thread that serves. It ends when this is dropped; connections end with it.
pub struct Http<S: Source> {
    begin: mpsc::Sender<Arc<S>>,
    end: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl<S: Source> Http<S> {
    /// Starts the thread on a socket that listens. It makes now what a sandbox may forbid later,
    /// and lets clients wait until [`Self::serve`].
    ///
    /// # Errors
    /// When the system has no thread or no events for it.
    pub fn start(listener: TcpListener) -> io::Result<Self> {
        listener.set_nonblocking(true)?;
        let (begin, begun) = mpsc::channel();
        let (end, ended) = oneshot::channel();
        let (say, hear) = mpsc::channel();
        let work = move || {
            if let Err(error) = runtime::be_patient() {
                tracing::warn!(%error, "the HTTP thread may get in the way of cores");
            }
            let made = tokio::runtime::Builder::new_current_thread()
                .enable_io()
                .enable_time()
                // Gathers; its thread inherits the patience.
                .max_blocking_threads(1)
                .thread_name("http-gather")
                .build();
            let runtime = match made {
                Ok(runtime) => runtime,
                Err(error) => return drop(say.send(Err(error))),
            };
            // Whoever starts it waits for this.
            let _ = say.send(Ok(()));
            if let Ok(source) = begun.recv() {
                runtime.block_on(connections::serve(listener, source, ended));
            }
            // What is gathered for nobody any more is not waited for.
            runtime.shutdown_background();
        };
        let thread = std::thread::Builder::new().name("http".into()).spawn(work)?;
        hear.recv().map_err(|_| io::Error::other("the HTTP thread has ended"))??;
        Ok(Self { begin, end: Some(end), thread: Some(thread) })
    }

    /// Answers clients from now on, with what `source` says.
    pub fn serve(&self, source: Arc<S>) {
        if self.begin.send(source).is_err() {
            tracing::error!("the HTTP thread has ended before its time");
        }
    }
}

impl<S: Source> Drop for Http<S> {
    fn drop(&mut self) {
        // A thread that has not begun is told by the end of `begin`.
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
    // The standard library sets SO_REUSEADDR: an ended daemon's connections keep nobody waiting.
    TcpListener::bind(address)
}
