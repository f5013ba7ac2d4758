//! Connections of clients, all of which are bounded: how many there are, how long each may take,
//! and how much a head may hold. Each carries one request.

use std::error::Error;
use std::future::poll_fn;
use std::net::TcpListener;
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
use tokio::sync::oneshot;
use tokio::task::{AbortHandle, JoinSet};

use crate::api::Peer;
use crate::events::{Events, Told};
use crate::life::Life;
use crate::{Source, Tls, pages};

/// Connections at once. One more replaces the oldest that has not sent a request.
pub const CONNECTIONS: usize = 64;
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

/// What a connection knows of its client.
struct About {
    peer: Peer,
    /// Whether its request has arrived.
    asked: Arc<AtomicBool>,
    life: Life,
}

/// A connection that is open.
struct Guest {
    ends: AbortHandle,
    /// Whether its request has arrived.
    asked: Arc<AtomicBool>,
}

/// Serves until `end` comes, or its sender goes. Requests that have arrived by then are still
/// answered.
pub async fn serve<S: Source>(
    listener: TcpListener,
    tls: Option<Tls>,
    source: Arc<S>,
    told: Told,
    mut end: oneshot::Receiver<()>,
) {
    let listener = match tokio::net::TcpListener::from_std(listener) {
        Ok(listener) => listener,
        Err(error) => return tracing::error!(%error, "HTTP cannot be served"),
    };
    let events = Events::new();
    tokio::spawn(events.clone().remember(told));
    let router = pages::router(source, events.clone());
    let mut tasks = JoinSet::new();
    let mut guests: Vec<Guest> = Vec::with_capacity(CONNECTIONS);
    while let Some(accepted) = unless(&mut end, listener.accept()).await {
        let (stream, peer) = match accepted {
            Ok(accepted) => accepted,
            Err(error) => {
                tracing::warn!(%error, "HTTP: accept failed");
                tokio::time::sleep(Duration::from_millis(50)).await;
                continue;
            }
        };
        while tasks.try_join_next().is_some() {}
        guests.retain(|guest| !guest.ends.is_finished());
        if guests.len() >= CONNECTIONS {
            match guests.iter().position(|guest| !guest.asked.load(Ordering::Relaxed)) {
                Some(at) => guests.remove(at).ends.abort(),
                // All are being answered, which has an end.
                None => {
                    let _ = unless(&mut end, tasks.join_next()).await;
                    guests.retain(|guest| !guest.ends.is_finished());
                }
            }
        }
        let (asked, life) = (Arc::new(AtomicBool::new(false)), Life::new());
        let about = About { peer: Peer(peer), asked: asked.clone(), life: life.clone() };
        let guest = connection(stream, tls.clone(), about, router.clone());
        let ends = tasks.spawn(async move {
            match life.limit(guest).await {
                Some(Ok(())) => {}
                Some(Err(error)) => tracing::debug!(%error, "HTTP client"),
                None => tracing::debug!("an HTTP client was too slow"),
            }
        });
        guests.push(Guest { ends, asked });
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
