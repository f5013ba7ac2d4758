//! The daemon's side of the control socket: one thread that accepts, and one for each client. They block; nothing of the data path
//! waits for them.

use std::io::{self, BufReader};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use super::daemon::Daemon;
use super::handover;
use super::protocol::{Answer, Fault, Kind, Request, VERSION, read_line, write_answer};
use super::socket::{ControlSocket, may_enter};

/// Clients at once. One more is told so and let go.
const CLIENTS: usize = 32;
/// How long a client may say nothing, or not read what it is told.
const PATIENCE: Duration = Duration::from_secs(600);

/// A control socket at work. Ends when it is dropped; verbs that are at work then end by themselves.
pub struct ControlServer {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

struct Shared {
    socket: ControlSocket,
    clients: AtomicUsize,
    ending: AtomicBool,
}

impl ControlServer {
    /// Answers for `daemon` from now on.
    ///
    /// # Errors
    /// When there is no thread to be had.
    pub fn start(socket: ControlSocket, daemon: Arc<Daemon>) -> io::Result<Self> {
        let shared =
            Arc::new(Shared { socket, clients: AtomicUsize::new(0), ending: AtomicBool::new(false) });
        let theirs = shared.clone();
        let thread =
            std::thread::Builder::new().name("control".into()).spawn(move || accept(&theirs, &daemon))?;
        Ok(Self { shared, thread: Some(thread) })
    }
}

impl Drop for ControlServer {
    fn drop(&mut self) {
        if self.shared.socket.is_given_away() {
            // It would not be this process's alone that is shut down.
            return;
        }
        self.shared.ending.store(true, Ordering::Release);
        // Wakes the thread that accepts.
        let _ = rustix::net::shutdown(&self.shared.socket.listener, rustix::net::Shutdown::Both);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

fn accept(shared: &Arc<Shared>, daemon: &Arc<Daemon>) {
    loop {
        let accepted = shared.socket.listener.accept();
        if shared.ending.load(Ordering::Acquire) || shared.socket.is_given_away() {
            return;
        }
        let stream = match accepted {
            Ok((stream, _)) => stream,
            Err(error) => {
                tracing::warn!(%error, "control socket: accept failed");
                std::thread::sleep(Duration::from_millis(50));
                continue;
            }
        };
        let place = ClientPlace::take(shared);
        let daemon = daemon.clone();
        let client = std::thread::Builder::new().name("control-client".into());
        let spawned = client.spawn(move || {
            if let Err(error) = serve(&stream, place, &daemon) {
                tracing::debug!(%error, "control client");
            }
        });
        if let Err(error) = spawned {
            tracing::warn!(%error, "control socket: no thread for a client");
        }
    }
}

/// One client among those that may be.
struct ClientPlace {
    shared: Arc<Shared>,
    full: bool,
}

impl ClientPlace {
    fn take(shared: &Arc<Shared>) -> Self {
        let before = shared.clients.fetch_add(1, Ordering::Relaxed);
        Self { shared: shared.clone(), full: before >= CLIENTS }
    }
}

impl Drop for ClientPlace {
    fn drop(&mut self) {
        self.shared.clients.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Answers one client's requests until it goes.
fn serve(stream: &UnixStream, place: ClientPlace, daemon: &Arc<Daemon>) -> io::Result<()> {
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.set_write_timeout(Some(PATIENCE))?;
    let mut out = stream;
    let refuse = |mut out: &UnixStream, what: &str| {
        write_answer(&mut out, Answer::Error(Fault::new(Kind::Refused, what)))
    };
    if !may_enter(stream)? {
        return refuse(out, "only root and the daemon's own user may manage it");
    }
    if place.full {
        return refuse(out, "too many clients on the control socket");
    }
    let mut lines = BufReader::new(stream);
    while let Some(line) = read_line(&mut lines)? {
        let answer = match serde_json::from_slice::<Request>(&line) {
            Err(error) => Err(Fault::new(Kind::Request, format!("this is no request: {error}"))),
            Ok(request) if request.v != VERSION => {
                let what = format!(
                    "this daemon speaks version {VERSION} of the control protocol, not {}",
                    request.v
                );
                Err(Fault::new(Kind::Request, what))
            }
            Ok(request) if request.verb == handover::VERB => {
                if handover::give(daemon, &place.shared.socket, stream, &mut lines, &request)? {
                    // As an administrator ends it.
                    rustix::process::kill_process(rustix::process::getpid(), rustix::process::Signal::TERM)?;
                    return Ok(());
                }
                continue;
            }
            Ok(request) => daemon.answer(&request, &mut |step| {
                // A client that is gone is noticed when it is answered; what it has begun is done.
                let _ = write_answer(&mut out, Answer::Progress(step));
            }),
        };
        let answer = answer.map_or_else(Answer::Error, Answer::Ok);
        write_answer(&mut out, answer)?;
    }
    Ok(())
}
