//! Routes and responses: `/metrics`, `/healthz` and `/readyz`, whose clients share a picture that
//! is a second old at most. All other paths are the source's.

use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use axum::Router;
use axum::body::{Body, Bytes};
use axum::extract::State;
use axum::http::{Request, StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use tokio::sync::{Mutex, Semaphore};

use crate::events::Events;
use crate::{CALLS, Head, Report, Source, accept, api};

/// Time for which a picture is served.
const FRESH: Duration = Duration::from_secs(1);

/// State shared by the pages.
struct Shared<S: Source> {
    source: Arc<S>,
    /// Held while a new picture is taken: requests that arrive meanwhile get that one.
    latest: Arc<Mutex<Option<Arc<Taken<S>>>>>,
    /// Requests that the source may execute now.
    calls: Arc<Semaphore>,
    events: Arc<Events>,
}

struct Taken<S: Source> {
    at: Instant,
    picture: S::Picture,
    texts: [OnceLock<Bytes>; 2],
}

impl<S: Source> Shared<S> {
    async fn picture(&self) -> Option<Arc<Taken<S>>> {
        let mut latest = self.latest.clone().lock_owned().await;
        if let Some(taken) = latest.as_ref().filter(|taken| taken.at.elapsed() < FRESH) {
            return Some(taken.clone());
        }
        // Free the old picture first: two in memory would be one too many.
        *latest = None;
        let source = self.source.clone();
        // The lock goes along: a client that leaves must not let the next one begin another look.
        let look = move || {
            let at = Instant::now();
            let taken = Arc::new(Taken { at, picture: source.look(), texts: Default::default() });
            *latest = Some(taken.clone());
            taken
        };
        tokio::task::spawn_blocking(look).await.ok()
    }
}

/// All pages.
pub fn router<S: Source>(source: Arc<S>, events: Arc<Events>) -> Router {
    let calls = Arc::new(Semaphore::new(CALLS));
    let shared = Arc::new(Shared { source, latest: Arc::default(), calls, events });
    Router::new()
        .route("/metrics", get(metrics::<S>))
        .route("/healthz", get(health::<S>))
        .route("/readyz", get(readiness::<S>))
        .fallback(elsewhere::<S>)
        .with_state(shared)
}

async fn elsewhere<S: Source>(State(shared): State<Arc<Shared<S>>>, request: Request<Body>) -> Response {
    api::answer(shared.source.clone(), shared.calls.clone(), &shared.events, request).await
}

async fn metrics<S: Source>(State(shared): State<Arc<Shared<S>>>, request: Request<Body>) -> Response {
    let (parts, _) = request.into_parts();
    if let Err(answer) = shared.source.may_scrape(&Head::of(&parts)) {
        return answer.into_response();
    }
    let format = accept::format(&parts.headers);
    let Some(taken) = shared.picture().await else { return failed() };
    let text = match taken.texts[format as usize].get() {
        Some(text) => Ok(text.clone()),
        // Ten thousand units take milliseconds, in which other requests must be answered.
        None => {
            let source = shared.source.clone();
            let write = move || {
                let text = &taken.texts[format as usize];
                text.get_or_init(|| source.metrics(&taken.picture, format).into()).clone()
            };
            tokio::task::spawn_blocking(write).await
        }
    };
    match text {
        Ok(text) => ([(header::CONTENT_TYPE, format.content_type())], text).into_response(),
        Err(_) => failed(),
    }
}

async fn health<S: Source>(State(shared): State<Arc<Shared<S>>>) -> Response {
    match shared.picture().await {
        Some(taken) => report(shared.source.health(&taken.picture)),
        None => failed(),
    }
}

async fn readiness<S: Source>(State(shared): State<Arc<Shared<S>>>) -> Response {
    match shared.picture().await {
        Some(taken) => report(shared.source.readiness(&taken.picture)),
        None => failed(),
    }
}

fn report(report: Report) -> Response {
    let status = if report.well { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
    let kind = [(header::CONTENT_TYPE, "text/plain; charset=utf-8"), (header::CACHE_CONTROL, "no-store")];
    (status, kind, report.text).into_response()
}

/// The source panicked, which has been logged.
fn failed() -> Response {
    (StatusCode::INTERNAL_SERVER_ERROR, "the daemon could not look at itself: see its log\n").into_response()
}
