//! Events for clients of the HTTP API: the audit lines of the log as JSON, whatever its filter
//! leaves out. Nothing is told here alone: what should be an event becomes an audit line.

use std::fmt::Debug;
use std::sync::OnceLock;
use std::time::{SystemTime, UNIX_EPOCH};

use admin_http::Teller;
use serde_json::{Map, Value, json};
use tracing::field::{Field, Visit};
use tracing::{Event, Level, Subscriber};
use tracing_subscriber::Layer;
use tracing_subscriber::filter::Targets;
use tracing_subscriber::layer::Context;
use tracing_subscriber::registry::LookupSpan;

/// Characters of one text of an event. The rest is left out.
const LONGEST: usize = 4096;

/// The daemon's entrance; none in a program that serves no HTTP.
static TELLER: OnceLock<Teller> = OnceLock::new();

/// Has events told to `teller` from now on.
pub fn begin(teller: Teller) {
    // Fails if already set: a process has one server of HTTP.
    let _ = TELLER.set(teller);
}

/// The part of the log that tells events.
pub fn layer<S: Subscriber + for<'a> LookupSpan<'a>>() -> impl Layer<S> {
    to(|event| TELLER.get().into_iter().for_each(|teller| teller.tell(event())))
}

fn to<S, F>(tell: F) -> impl Layer<S>
where
    S: Subscriber + for<'a> LookupSpan<'a>,
    F: Fn(&dyn Fn() -> String) + Send + Sync + 'static,
{
    Told(tell).with_filter(Targets::new().with_target(iscsi_server::audit::TARGET, Level::INFO))
}

/// Gives each event to a function that may ask for its text.
struct Told<F>(F);

impl<S: Subscriber, F: Fn(&dyn Fn() -> String) + Send + Sync + 'static> Layer<S> for Told<F> {
    fn on_event(&self, event: &Event<'_>, _: Context<'_, S>) {
        (self.0)(&|| {
            let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
            let mut members = Members(Map::new());
            members.0.insert("time_unix_s".into(), json!(now.as_millis() as f64 / 1e3));
            members.0.insert("level".into(), event.metadata().level().as_str().to_ascii_lowercase().into());
            event.record(&mut members);
            Value::Object(members.0).to_string()
        });
    }
}

/// The fields of an event.
struct Members(Map<String, Value>);

impl Visit for Members {
    fn record_str(&mut self, field: &Field, text: &str) {
        let text: String = text.chars().take(LONGEST).collect();
        self.0.insert(field.name().to_owned(), text.into());
    }

    fn record_u64(&mut self, field: &Field, number: u64) {
        self.0.insert(field.name().to_owned(), number.into());
    }

    fn record_i64(&mut self, field: &Field, number: i64) {
        self.0.insert(field.name().to_owned(), number.into());
    }

    fn record_f64(&mut self, field: &Field, number: f64) {
        self.0.insert(field.name().to_owned(), number.into());
    }

    fn record_bool(&mut self, field: &Field, is: bool) {
        self.0.insert(field.name().to_owned(), is.into());
    }

    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        self.record_str(field, &format!("{value:?}"));
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use tracing_subscriber::layer::SubscriberExt;

    use super::*;

    #[test]
    fn audit_lines_are_events_whatever_the_log_leaves_out() {
        let heard = Arc::new(Mutex::new(Vec::new()));
        let ours = heard.clone();
        let layer = to(move |event: &dyn Fn() -> String| ours.lock().unwrap().push(event()));
        let silent = tracing_subscriber::fmt::layer().with_filter(tracing_subscriber::EnvFilter::new("off"));
        let log = tracing_subscriber::registry().with(silent).with(layer);
        tracing::subscriber::with_default(log, || {
            let (none, name): (Option<&str>, _) = (None, "iqn.x:\"\n");
            tracing::info!(target: iscsi_server::audit::TARGET, what = "login", initiator = name, user = none, tsih = 7, iser = true, "logged in");
            tracing::warn!(target: iscsi_server::audit::TARGET, what = "x", %name, long = "ä".repeat(5000));
            tracing::error!("no audit line");
            tracing::debug!(target: iscsi_server::audit::TARGET, what = "too fine");
        });
        let heard = heard.lock().unwrap();
        assert!(heard.iter().all(|event| !event.contains('\n')) && heard.len() == 2, "{heard:?}");
        let of = |at: usize| serde_json::from_str::<Value>(&heard[at]).unwrap();
        let mut first = of(0);
        assert!(first["time_unix_s"].take().as_f64().unwrap() > 1e9);
        let wanted = json!({
            "time_unix_s": null, "level": "info", "what": "login", "initiator": "iqn.x:\"\n", "tsih": 7, "iser": true,
            "message": "logged in"
        });
        assert_eq!(first, wanted);
        assert_eq!(
            (&of(1)["level"], of(1)["long"].as_str().unwrap().chars().count()),
            (&json!("warn"), LONGEST)
        );
    }
}
