//! Requests to all other paths: the head goes to the source, which admits it before a byte of its
//! body is read; the source then executes it on a thread of its own. Knows no route.

use std::fmt::{self, Display};
use std::net::SocketAddr;
use std::sync::Arc;

use axum::body::{Body, Bytes, to_bytes};
use axum::http::request::Parts;
use axum::http::{HeaderMap, HeaderName, HeaderValue, Request, StatusCode, header};
use axum::response::{IntoResponse, Response};
use tokio::sync::Semaphore;

use crate::Source;
use crate::events::Events;

/// Requests that are executed at once. More wait, within the time of their connections.
pub const CALLS: usize = 4;

/// A request without its body. Fields that came twice are joined by commas, as RFC 9110 §5.3 says.
#[derive(Clone, Debug)]
pub struct Head {
    /// In capitals, as `GET`.
    pub method: String,
    /// As it was sent, with `%` and two hexadecimal digits for bytes.
    pub path: String,
    /// Behind the `?`.
    pub query: String,
    /// Host.
    pub host: Option<String>,
    /// Authorization.
    pub authorization: Option<String>,
    /// If-Match.
    pub if_match: Option<String>,
    /// Last-Event-ID: the event that a client of a stream has seen last.
    pub last_event_id: Option<String>,
    /// Content-Type.
    pub content_type: Option<String>,
    /// Cookie.
    pub cookie: Option<String>,
    /// Origin: whose page makes a browser send this.
    pub origin: Option<String>,
    /// Sec-Fetch-Site: the browser's own word for that.
    pub fetch_site: Option<String>,
    /// The client; `None` if its connection is not known.
    pub from: Option<Peer>,
}

/// A request that is admitted.
pub enum Admitted<Call> {
    /// It may be executed, with a body of so many bytes.
    Call(Call, usize),
    /// Its client may follow events, as long as this says so. It is asked often: it must not block.
    Events(Box<dyn Fn() -> bool + Send + Sync>),
}

/// A client, as its connection knows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Peer {
    /// A client of the network.
    Address(SocketAddr),
    /// A client of a Unix socket: its user, and whether that is the daemon's owner.
    User {
        /// The user's number, as the kernel tells it.
        uid: u32,
        /// It has all rights: root, or the daemon's own user.
        is_owner: bool,
    },
}

/// The address, or the user.
impl Display for Peer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Address(address) => address.fmt(f),
            Self::User { uid, .. } => write!(f, "user {uid}"),
        }
    }
}

/// An answer, whole.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Answer {
    /// 100 to 599.
    pub status: u16,
    /// Fields besides Content-Length.
    pub fields: Vec<(&'static str, String)>,
    /// Text.
    pub body: String,
}

impl IntoResponse for Answer {
    fn into_response(self) -> Response {
        let status = StatusCode::from_u16(self.status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
        let mut response = (status, self.body).into_response();
        let fields = response.headers_mut();
        fields.remove(header::CONTENT_TYPE);
        fields.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
        fields.insert(header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
        for (name, value) in self.fields {
            if let Ok(value) = HeaderValue::from_str(&value) {
                fields.insert(HeaderName::from_static(name), value);
            }
        }
        response
    }
}

impl Head {
    /// The head of a request.
    pub fn of(parts: &Parts) -> Self {
        Self {
            method: parts.method.as_str().to_owned(),
            path: parts.uri.path().to_owned(),
            query: parts.uri.query().unwrap_or_default().to_owned(),
            host: field(&parts.headers, header::HOST),
            authorization: field(&parts.headers, header::AUTHORIZATION),
            if_match: field(&parts.headers, header::IF_MATCH),
            last_event_id: field(&parts.headers, HeaderName::from_static("last-event-id")),
            content_type: field(&parts.headers, header::CONTENT_TYPE),
            cookie: field(&parts.headers, header::COOKIE),
            origin: field(&parts.headers, header::ORIGIN),
            fetch_site: field(&parts.headers, HeaderName::from_static("sec-fetch-site")),
            from: parts.extensions.get().copied(),
        }
    }
}

/// All fields of a name, joined; other bytes than text make the field unusable, not absent.
fn field(headers: &HeaderMap, name: HeaderName) -> Option<String> {
    let all: Vec<&str> =
        headers.get_all(name).iter().map(|value| value.to_str().unwrap_or("\u{fffd}")).collect();
    (!all.is_empty()).then(|| all.join(", "))
}

/// Answers a request. `calls` bounds how many are executed at once.
pub async fn answer<S: Source>(
    source: Arc<S>,
    calls: Arc<Semaphore>,
    events: &Arc<Events>,
    request: Request<Body>,
) -> Response {
    let (parts, body) = request.into_parts();
    let head = Head::of(&parts);
    let seen = head.last_event_id.clone();
    let (call, most) = match source.admit(head) {
        Ok(Admitted::Call(call, most)) => (call, most),
        Ok(Admitted::Events(may)) => {
            let stream = events.follow(seen.as_deref(), may, parts.extensions.get().cloned());
            let full = || S::refusal(503, "all streams of events are taken: try again later").into_response();
            return stream.unwrap_or_else(full);
        }
        Err(answer) => return answer.into_response(),
    };
    let body = match body_of(&parts.headers, body, most).await {
        Ok(body) => body,
        Err((status, what)) => return S::refusal(status, &what).into_response(),
    };
    let Ok(permit) = calls.acquire_owned().await else {
        return S::refusal(503, "the daemon ends").into_response();
    };
    let work = move || {
        let _permit = permit;
        source.execute(call, &body)
    };
    match tokio::task::spawn_blocking(work).await {
        Ok(answer) => answer.into_response(),
        Err(_) => S::refusal(500, "the daemon failed at this request: see its log").into_response(),
    }
}

async fn body_of(headers: &HeaderMap, body: Body, most: usize) -> Result<Bytes, (u16, String)> {
    let too_large = || (413, format!("a body has {most} bytes at most here"));
    let length = headers.get(header::CONTENT_LENGTH).and_then(|length| length.to_str().ok()?.parse().ok());
    if length.is_some_and(|length: u64| length > most as u64) {
        return Err(too_large());
    }
    // One byte more shows a body without a length that is too large.
    match to_bytes(body, most.saturating_add(1)).await {
        Ok(body) if body.len() <= most => Ok(body),
        Ok(_) => Err(too_large()),
        Err(error) if length.is_none() => Err((413, format!("{error}: {}", too_large().1))),
        Err(error) => Err((400, format!("the body did not come whole: {error}"))),
    }
}
