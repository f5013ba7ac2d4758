//! The log on stderr, filtered by `--log`, `STAG_LOG` or the configuration, in one of three
//! formats. Never one line per I/O.

use std::fmt;
use std::io::IsTerminal;

use tracing::{Event, Level, Subscriber};
use tracing_subscriber::fmt::format::{FormatEvent, FormatFields, Full, Writer};
use tracing_subscriber::fmt::{FmtContext, format};
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::registry::LookupSpan;
use tracing_subscriber::util::SubscriberInitExt;
use tracing_subscriber::{EnvFilter, Layer};

use crate::{out, suggest};

/// A log filter that [`check`] accepts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Filter(pub String);

/// Format of log lines.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// For people: time, level, place, message, `field=value`.
    Text,
    /// A JSON object a line.
    Json,
    /// For systemd's journal: like text, without the time, since the journal has its own, and with
    /// the priority in front (sd-daemon(3)).
    Journald,
}

impl Format {
    fn usual() -> Self {
        if is_journal() { Self::Journald } else { Self::Text }
    }
}

const LEVELS: [&str; 6] = ["off", "error", "warn", "info", "debug", "trace"];
/// Names that other programs use for these levels.
const OTHERS_WORDS: [(&str, &str); 9] = [
    ("verbose", "debug"),
    ("all", "trace"),
    ("warning", "warn"),
    ("err", "error"),
    ("critical", "error"),
    ("fatal", "error"),
    ("notice", "info"),
    ("quiet", "error"),
    ("none", "off"),
];
/// Targets of log lines: the crates that log.
const TARGETS: [&str; 21] = [
    "stag",
    "admin_http",
    "backing",
    "ceph",
    "device",
    "disk",
    "folder",
    "gateway",
    "iscsi_client",
    "iscsi_store",
    "iscsi_server",
    "nbd_store",
    "nfs_client",
    "nfs_server",
    "objects",
    "peer_units",
    "rados",
    "rdma",
    "runtime",
    "server_core",
    "verbs",
];

/// Whether `filter` can be understood: a level, or `target=level`, or several of them with commas.
///
/// # Errors
/// It is not; with advice.
pub fn check(filter: &str) -> Result<(), String> {
    for part in filter.split(',').map(str::trim) {
        let (target, level) = match part.split_once('=') {
            Some((target, level)) => (Some(target), Some(level)),
            None if TARGETS.contains(&part) => (Some(part), None),
            None => (None, Some(part)),
        };
        if let Some(level) = level.filter(|level| !LEVELS.contains(&level.to_ascii_lowercase().as_str())) {
            return Err(format!("\"{level}\" is no log level: {}", instead(level, LEVELS)));
        }
        let of = target.map(|target| target.split("::").next().unwrap_or(target));
        if let Some(of) = of.filter(|of| !TARGETS.contains(of)) {
            return Err(format!("no line comes from \"{of}\": {}", instead(of, TARGETS)));
        }
    }
    EnvFilter::try_new(filter).map(drop).map_err(|error| format!("\"{filter}\" is no log filter: {error}"))
}

fn instead<'a>(word: &str, known: impl IntoIterator<Item = &'a str> + Clone) -> String {
    let lower = word.to_ascii_lowercase();
    let other = OTHERS_WORDS
        .iter()
        .find(|(other, level)| *other == lower && known.clone().into_iter().any(|known| known == *level));
    match other.map(|(_, level)| *level).or_else(|| suggest::nearest(word, known.clone())) {
        Some(near) => format!("did you mean \"{near}\"? There are {}", suggest::list(known)),
        None => format!("there are {}", suggest::list(known)),
    }
}

/// Starts logging. `filter` falls back to `otherwise`, and `format` to the one that suits stderr.
pub fn start(filter: Option<&str>, otherwise: &str, format: Option<Format>) {
    let filter =
        EnvFilter::try_new(filter.unwrap_or(otherwise)).unwrap_or_else(|_| EnvFilter::new(otherwise));
    let lines = tracing_subscriber::fmt::layer()
        .with_writer(std::io::stderr)
        // Otherwise it would report to stderr that stderr cannot be written, and panic when that
        // fails.
        .log_internal_errors(false)
        .with_ansi(std::io::stderr().is_terminal() && std::env::var_os("NO_COLOR").is_none());
    let format = format.unwrap_or_else(Format::usual);
    out::for_journal(format == Format::Journald);
    invariant::report_to(|broken| {
        let place = format_args!("{}:{}", broken.file, broken.line);
        tracing::error!(%place, "a defect of Stag, please report it: {}", broken.what);
    });
    let lines = match format {
        Format::Text => lines.boxed(),
        Format::Json => lines.json().with_current_span(false).with_span_list(false).boxed(),
        Format::Journald => lines.with_ansi(false).event_format(Journald::default()).boxed(),
    };
    let all = tracing_subscriber::registry().with(lines.with_filter(filter));
    #[cfg(feature = "http")]
    let all = all.with(crate::events::layer());
    // Fails if logging was started before, and then it goes on with that.
    let _ = all.try_init();
}

/// Whether stderr is the journal's: JOURNAL_STREAM has its device and inode (systemd.exec(5)).
pub fn is_journal() -> bool {
    let Some(stream) = std::env::var("JOURNAL_STREAM").ok() else { return false };
    let stderr = rustix::fs::fstat(std::io::stderr());
    let about = stderr.map(|about| format!("{}:{}", about.st_dev, about.st_ino));
    about.is_ok_and(|about| about == stream)
}

/// Lines with the priority in front, `<N>`.
struct Journald {
    line: format::Format<Full, ()>,
}

impl Default for Journald {
    fn default() -> Self {
        Self { line: format::Format::default().without_time().with_level(false).with_ansi(false) }
    }
}

/// A level as the journal's priority (syslog(3)).
fn priority(level: Level) -> u8 {
    match level {
        Level::ERROR => 3,
        Level::WARN => 4,
        Level::INFO => 6,
        _ => 7,
    }
}

impl<S, N> FormatEvent<S, N> for Journald
where
    S: Subscriber + for<'a> LookupSpan<'a>,
    N: for<'a> FormatFields<'a> + 'static,
{
    fn format_event(
        &self,
        ctx: &FmtContext<'_, S, N>,
        mut writer: Writer<'_>,
        event: &Event<'_>,
    ) -> fmt::Result {
        let mut text = String::new();
        self.line.format_event(ctx, Writer::new(&mut text), event)?;
        let priority = priority(*event.metadata().level());
        // The journal makes an entry of each line.
        text.trim_end().lines().try_for_each(|line| writeln!(writer, "<{priority}>{line}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_word_that_is_no_level_is_an_error_that_says_which_there_are() {
        for right in [
            "info",
            "DEBUG",
            "off",
            "iscsi_server=debug,info",
            "warn,iscsi_server::login=trace",
            "server_core",
            "nfs_server=debug,folder=trace",
        ] {
            assert_eq!(check(right), Ok(()), "{right}");
        }
        for (wrong, instead) in [
            ("verbose", "did you mean \"debug\""),
            ("warning", "did you mean \"warn\""),
            ("inof", "did you mean \"info\""),
            ("iscsi_server=loud", "no log level"),
            ("iscsi_serevr=debug", "did you mean \"iscsi_server\""),
            ("nfs_sevrer=debug", "did you mean \"nfs_server\""),
            ("nonsense", "there are off, error, warn, info, debug and trace"),
            ("", "no log level"),
            ("info,", "no log level"),
        ] {
            let error = check(wrong).unwrap_err();
            assert!(error.contains(instead), "{wrong}: {error}");
        }
    }

    #[test]
    fn the_crates_that_log_are_the_places_that_lines_come_from() {
        let root = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../..");
        let manifest = |folder: &std::path::Path| -> Option<toml::Table> {
            Some(std::fs::read_to_string(folder.join("Cargo.toml")).ok()?.parse().unwrap())
        };
        let workspace = manifest(&root).unwrap();
        let mut logging = Vec::new();
        for member in workspace["workspace"]["members"].as_array().unwrap() {
            let member = member.as_str().unwrap();
            let mut folders = vec![root.clone()];
            for part in member.split('/') {
                let within = |folder: std::path::PathBuf| match part {
                    "*" => std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect(),
                    part => vec![folder.join(part)],
                };
                folders = folders.into_iter().filter(|folder| folder.is_dir()).flat_map(within).collect();
            }
            let found: Vec<_> = folders.iter().filter_map(|folder| manifest(folder)).collect();
            assert!(!found.is_empty(), "{member} names no crate");
            let logs =
                |of: &&toml::Table| of.get("dependencies").is_some_and(|all| all.get("tracing").is_some());
            let name = |of: &toml::Table| of["package"]["name"].as_str().unwrap().replace('-', "_");
            logging.extend(found.iter().filter(logs).map(name));
        }
        let mut known = TARGETS.map(str::to_owned);
        logging.sort();
        known.sort();
        assert_eq!(logging, known);
    }

    #[test]
    fn priorities_are_those_of_syslog() {
        let all = [Level::ERROR, Level::WARN, Level::INFO, Level::DEBUG, Level::TRACE].map(priority);
        assert_eq!(all, [3, 4, 6, 7, 7]);
    }
}
