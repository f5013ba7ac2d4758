//! Events that clients follow while they happen (server-sent events, WHATWG HTML §9.2): the latest
//! in a bounded memory, and the streams that read it.
//!
//! - [`Teller`]: the entrance. It never waits, so that any thread may tell, a core too.
//! - [`Events`]: the memory. A stream holds a place in it and no events of its own, so a client
//!   that reads slowly costs no more than one that reads fast. It is told what it has missed.
//!
//! Numbers of events grow by one, and from one daemon to the next: they begin with the time.

use std::collections::VecDeque;
use std::pin::Pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use axum::body::{Body, Bytes};
use axum::http::{HeaderValue, header};
use axum::response::Response;
use hyper::body::Frame;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc, watch};
use tokio::time::timeout;

use crate::life::Life;

/// Streams at once: a quarter of all connections.
pub const STREAMS: usize = 16;
/// Bytes of events that are remembered.
const MEMORY: usize = 1 << 20;
/// Events that wait for the thread to remember them.
const QUEUE: usize = 256;
/// Bytes of one piece of a stream.
const PIECE: usize = 16 << 10;
/// Silence after which a client gets a comment, and by which a client that may follow no longer is
/// found.
const SILENCE: Duration = Duration::from_secs(5);
/// The time after which a browser comes back, ms.
const RETRY_MS: u32 = 2000;
/// The number that ends all streams.
const END: u64 = u64::MAX;

/// Where events are told.
#[derive(Clone)]
pub struct Teller {
    queue: mpsc::Sender<String>,
    left_out: Arc<AtomicU64>,
}

impl Teller {
    /// Tells an event: JSON on one line. Does not wait: if too many are told at once, clients learn
    /// how many are lost.
    pub fn tell(&self, event: String) {
        if self.queue.try_send(event).is_err() {
            self.left_out.fetch_add(1, Ordering::Relaxed);
        }
    }
}

/// What has been told and is not remembered yet.
pub struct Told {
    queue: mpsc::Receiver<String>,
    left_out: Arc<AtomicU64>,
}

/// An entrance and what comes out of it.
pub fn entrance() -> (Teller, Told) {
    let (to, queue) = mpsc::channel(QUEUE);
    let left_out = Arc::new(AtomicU64::new(0));
    (Teller { queue: to, left_out: left_out.clone() }, Told { queue, left_out })
}

/// The latest events.
pub struct Events {
    memory: Mutex<Memory>,
    /// The number of the latest event, or [`END`].
    latest: watch::Sender<u64>,
    seats: Arc<Semaphore>,
}

struct Memory {
    /// Number and text of each, the oldest first.
    kept: VecDeque<(u64, Bytes)>,
    bytes: usize,
    /// The number before that of this daemon's first event.
    base: u64,
    latest: u64,
}

impl Memory {
    fn keep(&mut self, event: &str, left_out: u64) {
        self.latest += left_out + 1;
        let text = Bytes::from(format!("id: {}\ndata: {event}\n\n", self.latest));
        self.bytes += text.len();
        self.kept.push_back((self.latest, text));
        while self.bytes > MEMORY {
            let Some((_, old)) = self.kept.pop_front() else { break };
            self.bytes -= old.len();
        }
    }

    /// Where a client begins that has seen `id` last, as it says, and the first words to it.
    fn begin(&self, id: Option<&str>) -> (u64, String) {
        let (seen, lost) = match id.map(str::parse) {
            None => (self.latest, None),
            Some(Ok(id)) if (self.base..=self.latest).contains(&id) => (id, None),
            // It was another daemon's client.
            Some(_) => (self.base, Some(lost(self.base, None))),
        };
        (seen, format!("retry: {RETRY_MS}\nid: {seen}\n\n{}", lost.unwrap_or_default()))
    }

    /// The next piece for a client that has seen the event `seen`, and what it has seen then.
    fn after(&self, mut seen: u64) -> Option<(u64, Bytes)> {
        let at = self.kept.partition_point(|(id, _)| *id <= seen);
        let mut piece = Vec::new();
        for (id, text) in self.kept.range(at..) {
            if !piece.is_empty() && piece.len() + text.len() > PIECE {
                break;
            }
            if *id > seen + 1 {
                piece.extend_from_slice(lost(id - 1, Some(id - 1 - seen)).as_bytes());
            }
            piece.extend_from_slice(text);
            seen = *id;
        }
        (!piece.is_empty()).then(|| (seen, piece.into()))
    }
}

/// Says that events up to `id` are lost to a client: how many, if that is known.
fn lost(id: u64, events: Option<u64>) -> String {
    let events = events.map_or_else(|| "null".to_owned(), |events| events.to_string());
    format!("id: {id}\ndata: {{\"what\":\"lost\",\"events\":{events}}}\n\n")
}

impl Events {
    /// A memory without events.
    pub fn new() -> Arc<Self> {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        // Microseconds: no daemon has told more events in its time.
        let base = u64::try_from(now.as_micros()).unwrap_or(0);
        let memory = Memory { kept: VecDeque::new(), bytes: 0, base, latest: base };
        Arc::new(Self {
            memory: Mutex::new(memory),
            latest: watch::Sender::new(base),
            seats: Arc::new(Semaphore::new(STREAMS)),
        })
    }

    fn memory(&self) -> MutexGuard<'_, Memory> {
        self.memory.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Remembers what is told, until no more can be.
    pub async fn remember(self: Arc<Self>, mut told: Told) {
        while let Some(event) = told.queue.recv().await {
            let left_out = told.left_out.swap(0, Ordering::Relaxed);
            let latest = {
                let mut memory = self.memory();
                memory.keep(&event, left_out);
                memory.latest
            };
            self.latest.send_if_modified(|now| {
                let ends = *now == END;
                *now = if ends { END } else { latest };
                !ends
            });
        }
    }

    /// Ends all streams, once they have told what is remembered.
    pub fn end(&self) {
        self.latest.send_replace(END);
    }

    /// The answer to a client that follows events from `seen` on, as long as it `may`. Each piece
    /// that it takes prolongs its `life`. `None` if there are too many.
    pub fn follow(
        self: &Arc<Self>,
        seen: Option<&str>,
        may: Box<dyn Fn() -> bool + Send + Sync>,
        life: Option<Life>,
    ) -> Option<Response> {
        let seat = self.seats.clone().try_acquire_owned().ok()?;
        let (seen, first) = self.memory().begin(seen);
        let place = Place { events: self.clone(), latest: self.latest.subscribe(), seen, may, _seat: seat };
        let next = Box::pin(std::future::ready(Some((Bytes::from(first), place))));
        let mut response = Response::new(Body::new(Stream { next, life }));
        let fields = response.headers_mut();
        fields.insert(header::CONTENT_TYPE, HeaderValue::from_static("text/event-stream"));
        fields.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
        fields.insert(header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
        Some(response)
    }
}

/// A client's place.
struct Place {
    events: Arc<Events>,
    latest: watch::Receiver<u64>,
    seen: u64,
    may: Box<dyn Fn() -> bool + Send + Sync>,
    _seat: OwnedSemaphorePermit,
}

impl Place {
    /// The next piece of the stream; `None` at its end.
    async fn next(mut self) -> Option<(Bytes, Self)> {
        loop {
            if !(self.may)() {
                return None;
            }
            let ends = *self.latest.borrow_and_update() == END;
            let piece = self.events.memory().after(self.seen);
            if let Some((seen, piece)) = piece {
                self.seen = seen;
                return Some((piece, self));
            }
            if ends {
                return None;
            }
            match timeout(SILENCE, self.latest.changed()).await {
                Ok(Ok(())) => {}
                Ok(Err(_)) => return None,
                Err(_) => return Some((Bytes::from_static(b":\n\n"), self)),
            }
        }
    }
}

type Next = Pin<Box<dyn Future<Output = Option<(Bytes, Place)>> + Send>>;

/// A stream as the body of an answer.
struct Stream {
    next: Next,
    life: Option<Life>,
}

impl hyper::body::Body for Stream {
    type Data = Bytes;
    type Error = std::convert::Infallible;

    /// Called only while the client takes what it was sent.
    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Self::Error>>> {
        self.life.iter().for_each(Life::prolong);
        let next = std::task::ready!(self.next.as_mut().poll(cx));
        Poll::Ready(next.map(|(piece, place)| {
            self.next = Box::pin(place.next());
            Ok(Frame::data(piece))
        }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn memory() -> Memory {
        Memory { kept: VecDeque::new(), bytes: 0, base: 100, latest: 100 }
    }

    fn text(piece: Option<(u64, Bytes)>) -> (u64, String) {
        let (seen, piece) = piece.unwrap();
        (seen, String::from_utf8(piece.to_vec()).unwrap())
    }

    #[test]
    fn a_client_that_comes_back_goes_on_where_it_was() {
        let mut memory = memory();
        (1..=3).for_each(|number| memory.keep(&format!("{{\"n\":{number}}}"), 0));
        assert_eq!(memory.begin(None), (103, "retry: 2000\nid: 103\n\n".into()));
        assert_eq!(memory.begin(Some("101")).0, 101);
        let (seen, said) = text(memory.after(101));
        assert_eq!(said, "id: 102\ndata: {\"n\":2}\n\nid: 103\ndata: {\"n\":3}\n\n");
        assert_eq!((seen, memory.after(seen)), (103, None));
    }

    #[test]
    fn lost_events_are_counted_where_they_are_missing() {
        let mut memory = memory();
        memory.keep("{}", 0);
        memory.keep("{}", 7);
        let (seen, said) = text(memory.after(100));
        assert_eq!(seen, 109);
        assert!(said.contains("id: 108\ndata: {\"what\":\"lost\",\"events\":7}\n\nid: 109\n"), "{said}");
        // Of another daemon's events none is known.
        for other in ["99", "110", "", "-1", "x", "99999999999999999999999"] {
            let (seen, said) = memory.begin(Some(other));
            assert!(
                seen == 100 && said.contains("id: 100\ndata: {\"what\":\"lost\",\"events\":null}"),
                "{said}"
            );
        }
    }

    #[test]
    fn the_memory_is_bounded_and_the_oldest_go_first() {
        let mut memory = memory();
        let event = "x".repeat(10_000);
        (0..1000).for_each(|_| memory.keep(&event, 0));
        let held: usize = memory.kept.iter().map(|(_, text)| text.len()).sum();
        assert!(held == memory.bytes && held <= MEMORY && held > MEMORY - 11_000, "{held}");
        let (mut seen, said) = text(memory.after(100));
        assert!(said.len() < PIECE + 11_000, "{}", said.len());
        let gone = memory.kept[0].0 - 101;
        assert!(said.contains(&format!("\"events\":{gone}}}")) && gone > 800, "{gone}");
        while let Some((next, piece)) = memory.after(seen) {
            assert!(next > seen && piece.len() <= PIECE);
            seen = next;
        }
        assert_eq!(seen, memory.latest);
        // One that is larger than all of it is lost.
        memory.keep(&"x".repeat(MEMORY), 0);
        assert!(memory.kept.is_empty() && memory.bytes == 0);
        memory.keep("{}", 0);
        assert!(text(memory.after(seen)).1.contains("\"events\":1}"));
    }
}
