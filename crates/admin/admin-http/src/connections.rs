//! Connections of clients, all of which are bounded: how many there are, how long each may take,
//! and how much a head may hold. Each carries one request. Clients of a Unix socket come through
//! the [`Door`]: who lets them in bounds their number.

use std::error::Error;
use std::future::poll_fn;
use std::io;
use std::net::{SocketAddr, TcpListener};
use std::os::unix::net::UnixStream;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::Poll;
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::http::{Method, Request, Response, StatusCode, header};
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::{Service, service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::sync::{mpsc, oneshot};
use tokio::task::{AbortHandle, JoinSet};

use crate::api::Peer;
use crate::events::{Events, Told};
use crate::life::Life;
use crate::{Source, Tls, pages};

/// Connections of the network at once. One more replaces the oldest that has not sent a request.
pub const CONNECTIONS: usize = 64;
/// Clients that wait behind the door.
const WAITING: usize = 64;
/// Time that a client has to send its request.
const UNTIL_IT_ASKS: Duration = Duration::from_secs(10);
/// At the end: the time for requests that are on their way, and for the answers to those that have
/// arrived.
const ARRIVES: Duration = Duration::from_millis(100);
const LAST: Duration = Duration::from_secs(2);
/// Bytes of a request's head.
const HEAD: usize = 16 << 10;
/// Header fields of a request.
const FIELDS: usize = 64;

/// The first byte of a TLS client: a record of type handshake (RFC 8446 §5.1).
const HANDSHAKE: u8 = 22;
/// The answer to a client that speaks HTTP without TLS.
const IN_THE_CLEAR: &[u8] = b"HTTP/1.1 400 Bad Request\r\ncontent-type: text/plain\r\n\
    connection: close\r\n\r\nthis address speaks TLS: use https://\n";

/// A connection's client.
struct About {
    peer: Peer,
    /// Its request has arrived.
    asked: Arc<AtomicBool>,
    life: Life,
}

/// A connection that is open.
struct Guest {
    ends: AbortHandle,
    /// Whether its request has arrived.
    asked: Arc<AtomicBool>,
    /// Whether it came through the door.
    is_local: bool,
}

/// Where clients of a Unix socket come in, who have shown who they are.
#[derive(Clone)]
pub struct Door(mpsc::Sender<Local>);

/// A client behind the door.
pub struct Local {
    stream: UnixStream,
    peer: Peer,
    /// Dropped when the connection has ended.
    place: Box<dyn Send>,
}

impl Door {
    /// A door, and what comes through it.
    pub(crate) fn new() -> (Self, mpsc::Receiver<Local>) {
        let (to, locals) = mpsc::channel(WAITING);
        (Self(to), locals)
    }

    /// Lets a client in that has sent nothing which was read: the user `uid`, who may be the
    /// daemon's owner. `place` is dropped when its connection has ended.
    ///
    /// # Errors
    /// Too many clients wait, or the server has ended.
    pub fn enter(
        &self,
        stream: UnixStream,
        uid: u32,
        is_owner: bool,
        place: Box<dyn Send>,
    ) -> io::Result<()> {
        stream.set_nonblocking(true)?;
        let local = Local { stream, peer: Peer::User { uid, is_owner }, place };
        self.0.try_send(local).map_err(|_| io::Error::other("HTTP takes no more clients"))
    }
}

/// What the server waits for.
enum Arrival {
    Network(io::Result<(TcpStream, SocketAddr)>),
    Local(Local),
    /// A connection has ended.
    Room,
}

/// What comes next. A client of the network only where there is room for it.
async fn arrival(
    listener: Option<&tokio::net::TcpListener>,
    locals: &mut mpsc::Receiver<Local>,
    tasks: &mut JoinSet<()>,
    has_room: bool,
) -> Arrival {
    poll_fn(|cx| {
        if let Poll::Ready(Some(local)) = locals.poll_recv(cx) {
            return Poll::Ready(Arrival::Local(local));
        }
        match listener {
            Some(listener) if has_room => listener.poll_accept(cx).map(Arrival::Network),
            _ if tasks.is_empty() => Poll::Pending,
            _ => tasks.poll_join_next(cx).map(|_| Arrival::Room),
        }
    })
    .await
}

/// Serves until `end` comes, or its sender goes. Requests that have arrived by then are still
/// answered.
pub async fn serve<S: Source>(
    listener: Option<TcpListener>,
    tls: Option<Tls>,
    source: Arc<S>,
    (told, mut locals): (Told, mpsc::Receiver<Local>),
    mut end: oneshot::Receiver<()>,
) {
    let listener = match listener.map(tokio::net::TcpListener::from_std).transpose() {
        Ok(listener) => listener,
        Err(error) => return tracing::error!(%error, "HTTP cannot be served"),
    };
    let events = Events::new();
    tokio::spawn(events.clone().remember(told));
    let router = pages::router(source, events.clone());
    let mut tasks = JoinSet::new();
    let mut guests: Vec<Guest> = Vec::with_capacity(CONNECTIONS);
    let idle = |guest: &Guest| !guest.is_local && !guest.asked.load(Ordering::Relaxed);
    loop {
        while tasks.try_join_next().is_some() {}
        guests.retain(|guest| !guest.ends.is_finished());
        let is_full = guests.iter().filter(|guest| !guest.is_local).count() >= CONNECTIONS;
        // All are being answered, which has an end.
        let has_room = !is_full || guests.iter().any(idle);
        let next = arrival(listener.as_ref(), &mut locals, &mut tasks, has_room);
        let Some(arrival) = unless(&mut end, next).await else { break };
        let (stream, peer) = match arrival {
            Arrival::Network(Ok((stream, peer))) => (Ok(stream), Peer::Address(peer)),
            Arrival::Local(local) => (Err((local.stream, local.place)), local.peer),
            Arrival::Room => continue,
            Arrival::Network(Err(error)) => {
                tracing::warn!(%error, "HTTP: accept failed");
                tokio::time::sleep(Duration::from_millis(50)).await;
                continue;
            }
        };
        let is_local = stream.is_err();
        if let Some(at) = guests.iter().position(idle).filter(|_| is_full && !is_local) {
            guests.remove(at).ends.abort();
        }
        let (asked, life) = (Arc::new(AtomicBool::new(false)), Life::new());
        let about = About { peer, asked: asked.clone(), life: life.clone() };
        let (tls, router) = (tls.clone(), router.clone());
        let guest = async move {
            match stream {
                Ok(stream) => connection(stream, tls, about, router).await,
                Err((stream, _place)) => {
                    answer(tokio::net::UnixStream::from_std(stream)?, about, router).await
                }
            }
        };
        let ends = tasks.spawn(async move {
            match life.limit(guest).await {
                Some(Ok(())) => {}
                Some(Err(error)) => tracing::debug!(%error, "HTTP client"),
                None => tracing::debug!("an HTTP client was too slow"),
            }
        });
        guests.push(Guest { ends, asked, is_local });
    }
    // The next daemon has the same socket, and accepts later clients.
    drop(listener);
    events.end();
    let all_done = async |tasks: &mut JoinSet<()>| while tasks.join_next().await.is_some() {};
    let _ = tokio::time::timeout(ARRIVES, all_done(&mut tasks)).await;
    let silent = guests.iter().filter(|guest| !guest.asked.load(Ordering::Relaxed));
    silent.for_each(|guest| guest.ends.abort());
    let _ = tokio::time::timeout(LAST, all_done(&mut tasks)).await;
}

/// Does `work`, unless the end comes first.
async fn unless<T>(end: &mut oneshot::Receiver<()>, work: impl Future<Output = T>) -> Option<T> {
    let mut work = pin!(work);
    poll_fn(|cx| match Pin::new(&mut *end).poll(cx) {
        Poll::Ready(_) => Poll::Ready(None),
        Poll::Pending => work.as_mut().poll(cx).map(Some),
    })
    .await
}

async fn connection(
    stream: TcpStream,
    tls: Option<Tls>,
    about: About,
    router: Router,
) -> Result<(), Box<dyn Error + Send + Sync>> {
    let Some(tls) = tls else { return answer(stream, about, router).await };
    let shakes_hands = async {
        let mut first = [0];
        stream.peek(&mut first).await?;
        if first != [HANDSHAKE] {
            // An unread request would make the kernel reset the connection, and drop the answer.
            let _ = stream.try_read(&mut [0; 4096]);
            stream.writable().await?;
            stream.try_write(IN_THE_CLEAR)?;
            return Ok(None);
        }
        tls.acceptor().accept(stream).await.map(Some)
    };
    match tokio::time::timeout(UNTIL_IT_ASKS, shakes_hands).await?? {
        Some(stream) => answer(stream, about, router).await,
        None => Ok(()),
    }
}

/// Answers one request.
async fn answer(
    stream: impl AsyncRead + AsyncWrite + Unpin,
    about: About,
    router: Router,
) -> Result<(), Box<dyn Error + Send + Sync>> {
    let pages = TowerToHyperService::new(router);
    let answer = service_fn(move |mut request: Request<Incoming>| {
        about.asked.store(true, Ordering::Relaxed);
        request.extensions_mut().insert(about.peer);
        request.extensions_mut().insert(about.life.clone());
        let answer = may_be_answered(&request).then(|| pages.call(request));
        async move {
            match answer {
                Some(answer) => answer.await,
                None => Ok(refusal()),
            }
        }
    });
    let mut http = http1::Builder::new();
    http.timer(TokioTimer::new())
        .header_read_timeout(UNTIL_IT_ASKS)
        .max_buf_size(HEAD)
        .max_headers(FIELDS)
        // So bytes behind a request are never read as another one.
        .keep_alive(false);
    Ok(http.serve_connection(TokioIo::new(stream), answer).await?)
}

/// Whether a request may be answered: a GET or HEAD must have no body.
fn may_be_answered(request: &Request<Incoming>) -> bool {
    let fields = request.headers();
    let length = fields.get(header::CONTENT_LENGTH).is_some_and(|length| length != "0");
    let reads = [Method::GET, Method::HEAD].contains(request.method());
    !(reads && (length || fields.contains_key(header::TRANSFER_ENCODING)))
}

fn refusal() -> Response<Body> {
    let mut response = Response::new(Body::from("a request that reads has no body here\n"));
    *response.status_mut() = StatusCode::BAD_REQUEST;
    response
}
