//! The daemon's side of the control socket: one thread that accepts, and one for each client. They
//! block; the data path never waits for them. A client that speaks HTTP goes on to the thread of
//! the HTTP API, with its place and its rights.

use std::io;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use rustix::net::{RecvFlags, recv};
use serde_json::Value;

use super::clients::{Client, Clients};
use super::daemon::Daemon;
use super::peer::{self, Rights};
use super::protocol::{
    Answer, Fault, Kind, MAX_REQUEST, Reader, Request, VERSION, read_body, read_line, write_answer,
};
use super::socket::ControlSocket;
use super::{
    acknowledge, apply, credentials, disconnect, gateways, handover, managed, token, upgrade, verbs,
};
use crate::audit::Asked;

/// Timeout of a read from a client.
const PATIENCE: Duration = Duration::from_secs(600);
/// Timeout of a write to a client.
const UNTIL_IT_READS: Duration = Duration::from_secs(30);

/// A serving control socket. Stops when it is dropped; verbs that are running then finish.
pub struct ControlServer {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

struct Shared {
    socket: ControlSocket,
    clients: Arc<Clients>,
    ending: AtomicBool,
}

impl ControlServer {
    /// Answers for `daemon` from now on.
    ///
    /// # Errors
    /// No thread can be started.
    pub fn start(socket: ControlSocket, daemon: Arc<Daemon>) -> io::Result<Self> {
        let shared = Arc::new(Shared { socket, clients: Arc::default(), ending: AtomicBool::new(false) });
        let theirs = shared.clone();
        let thread =
            std::thread::Builder::new().name("control".into()).spawn(move || accept(&theirs, &daemon))?;
        Ok(Self { shared, thread: Some(thread) })
    }
}

impl Drop for ControlServer {
    fn drop(&mut self) {
        if self.shared.socket.is_given_away() {
            // The socket belongs to another process now, so it must not be shut down.
            return;
        }
        self.shared.ending.store(true, Ordering::Release);
        // Wakes the accepting thread.
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
        let stream = Arc::new(stream);
        let entered = peer::user(&stream).map(|user| shared.clients.enter(user, stream.clone()));
        let place = match entered {
            Ok(Some(place)) => place,
            Ok(None) => {
                // Non-blocking: only what fits into the socket's buffer is sent.
                let told = stream.set_nonblocking(true).and_then(|()| {
                    refuse(&stream, "all clients that this user may have on the control socket are at work")
                });
                if let Err(error) = told {
                    tracing::debug!(%error, "control client");
                }
                continue;
            }
            Err(error) => {
                tracing::debug!(%error, "control client");
                continue;
            }
        };
        let (daemon, theirs) = (daemon.clone(), shared.clone());
        let client = std::thread::Builder::new().name("control-client".into());
        let spawned = client.spawn(move || {
            if let Err(error) = serve(&stream, place, &theirs.socket, &daemon) {
                tracing::debug!(%error, "control client");
            }
        });
        if let Err(error) = spawned {
            tracing::warn!(%error, "control socket: no thread for a client");
        }
    }
}

fn refuse(mut out: &UnixStream, what: &str) -> io::Result<()> {
    write_answer(&mut out, Answer::Error(Fault::new(Kind::Refused, what)))
}

/// The rights that a client needs for `request`.
fn wanted(request: &Request) -> Rights {
    match request.verb.as_str() {
        apply::VERB | handover::VERB | upgrade::VERB | acknowledge::VERB => Rights::Own,
        credentials::VERB => Rights::Own,
        managed::UNDO | token::ADD | token::LIST | token::REMOVE => Rights::Own,
        _ => Rights::Operate,
    }
}

/// Whether `request` may change something. Such a request leaves a line in the audit log.
fn is_change(request: &Request) -> bool {
    let is_plan = request.arguments.get("dry_run") == Some(&Value::Bool(true));
    !is_plan
        && matches!(
            request.verb.as_str(),
            apply::VERB
                | managed::UNDO
                | handover::VERB
                | acknowledge::VERB
                | disconnect::VERB
                | gateways::MOVE
                | gateways::SPREAD
                | token::ADD
                | token::REMOVE
                | "alua"
                | "drain"
                | "undrain"
        )
}

/// Has the audit log record a change that somebody on this machine asks for. Such a change is made
/// in any case: the remedy for a full disk may be one.
pub fn recorded(daemon: &Daemon, who: &str, whence: &str, what: &str) -> Option<Asked> {
    if !daemon.running().config.http.as_ref().is_some_and(|http| http.api) {
        return None;
    }
    let asked = daemon.audit.asked(who, whence, what);
    asked.inspect_err(|error| tracing::error!(%error, "a change is not in the audit log")).ok()
}

/// Has it record what became of the change.
pub fn recorded_end(daemon: &Daemon, asked: &Asked, answer: &Result<Value, Fault>) {
    match answer {
        Ok(value) => daemon.audit.ended(asked, "done", value.get("plan"), generation_made(value)),
        Err(fault) => daemon.audit.ended(asked, fault.words(), None, None),
    }
}

/// The generation that a change has made, by its answer.
fn generation_made(answer: &Value) -> Option<u64> {
    let has_changed = answer["applied"] == true && !answer["plan"]["changes"].as_array()?.is_empty();
    answer["generation"].as_u64().filter(|_| has_changed)
}

/// Whether a client speaks HTTP. The first byte tells: a request of HTTP begins with a method in
/// capitals, and one of the control protocol is a JSON object.
fn speaks_http(stream: &UnixStream) -> io::Result<bool> {
    let mut first = [0];
    let read = rustix::io::retry_on_intr(|| recv(stream, &mut first, RecvFlags::PEEK));
    Ok(read?.0 > 0 && first[0].is_ascii_uppercase())
}

/// Answers one client's requests until it goes.
fn serve(stream: &UnixStream, place: Client, socket: &ControlSocket, daemon: &Arc<Daemon>) -> io::Result<()> {
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.set_write_timeout(Some(UNTIL_IT_READS))?;
    let mut out = stream;
    let Some(rights) = peer::rights(stream)? else {
        return refuse(out, "only root, the daemon's own user and members of the group stag may manage it");
    };
    let uid = peer::user(stream)?.as_raw();
    if speaks_http(stream)? {
        place.set_busy(true);
        let Some(door) = daemon.door.get() else { return refuse(out, "this daemon speaks no HTTP") };
        return door.enter(stream.try_clone()?, uid, rights == Rights::Own, Box::new(place));
    }
    let mut lines = Reader::new(stream);
    loop {
        place.set_busy(false);
        let Some(line) = read_line(&mut lines, MAX_REQUEST)? else { return Ok(()) };
        let request = match serde_json::from_slice::<Request>(&line) {
            Err(error) => Err(Fault::new(Kind::Request, format!("this is no request: {error}"))),
            Ok(request) if request.v != VERSION => {
                let what = format!(
                    "this daemon speaks version {VERSION} of the control protocol, not {}",
                    request.v
                );
                Err(Fault::new(Kind::Request, what))
            }
            Ok(request) if wanted(&request) > rights => {
                let what = format!("only root and the daemon's own user may `{}`", request.verb);
                Err(Fault::new(Kind::Refused, what))
            }
            Ok(request) if request.body > 0 && request.verb != apply::VERB => {
                Err(Fault::new(Kind::Request, format!("`{}` has no body", request.verb)))
            }
            Ok(request) => Ok(request),
        };
        let request = match request {
            Ok(request) => request,
            Err(fault) => {
                write_answer(&mut out, Answer::Error(fault))?;
                // A body may follow, which must not be read as requests.
                match serde_json::from_slice::<Request>(&line) {
                    Ok(Request { body: 1.., .. }) => return Ok(()),
                    _ => continue,
                }
            }
        };
        let body = match read_body(&mut lines, request.body) {
            Ok(body) => body,
            Err(error) if error.kind() == io::ErrorKind::InvalidData => {
                return write_answer(&mut out, Answer::Error(Fault::new(Kind::Request, error.to_string())));
            }
            Err(error) => return Err(error),
        };
        place.set_busy(true);
        if is_change(&request) {
            let verb = request.verb.as_str();
            tracing::info!(target: iscsi_server::audit::TARGET, what = "control", verb, uid, "asked to change something");
        }
        let record = || recorded(daemon, &format!("user {uid}"), "control socket", &request.verb);
        let asked = is_change(&request).then(record).flatten();
        if request.verb == handover::VERB {
            let given = handover::give(daemon, socket, stream, &mut lines, &request);
            if let Some(asked) = asked {
                let result = match &given {
                    Ok(true) => "done",
                    Ok(false) => "this daemon serves on",
                    Err(_) => "the other daemon went away",
                };
                daemon.audit.ended(&asked, result, None, None);
            }
            if given? {
                // Ends as on an administrator's signal.
                rustix::process::kill_process(rustix::process::getpid(), rustix::process::Signal::TERM)?;
                return Ok(());
            }
            stream.set_read_timeout(Some(PATIENCE))?;
            continue;
        }
        if request.verb == credentials::VERB {
            credentials::give(stream)?;
            continue;
        }
        let answer = verbs::answer(daemon, &request, body, &mut |step| {
            // A lost client is noticed at the answer; the verb still finishes.
            let _ = write_answer(&mut out, Answer::Progress(step));
        });
        if let Some(asked) = asked {
            recorded_end(daemon, &asked, &answer);
        }
        write_answer(&mut out, answer.map_or_else(Answer::Error, Answer::Ok))?;
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};

    use serde_json::Map;

    use super::*;

    #[test]
    fn the_first_byte_tells_http_from_json_and_stays_to_be_read() {
        for (sent, is_http) in
            [("GET / HTTP/1.1", true), ("PUT", true), ("{\"do\"", false), (" {", false), ("", false)]
        {
            let (mut client, mut server) = UnixStream::pair().unwrap();
            client.write_all(sent.as_bytes()).unwrap();
            drop(client);
            assert_eq!(speaks_http(&server).unwrap(), is_http, "{sent}");
            let mut read = String::new();
            server.read_to_string(&mut read).unwrap();
            assert_eq!(read, sent);
        }
    }

    #[test]
    fn only_the_owner_changes_what_is_served_and_each_change_is_recorded() {
        for verb in [apply::VERB, managed::UNDO, token::ADD, token::REMOVE, acknowledge::VERB] {
            let request = Request::new(verb, Default::default());
            assert!(wanted(&request) == Rights::Own && is_change(&request), "{verb}");
        }
        let planned = Request::new("drain", Map::from_iter([("dry_run".to_owned(), Value::Bool(true))]));
        assert!(!is_change(&planned) && is_change(&Request::new("drain", Default::default())));
        assert!(wanted(&Request::new(credentials::VERB, Default::default())) == Rights::Own);
        for verb in ["status", managed::VERB, managed::HISTORY] {
            let request = Request::new(verb, Default::default());
            assert!(wanted(&request) == Rights::Operate && !is_change(&request), "{verb}");
        }
    }
}
