//! `stag doctor`: looks at this machine as `stag serve` would use it, and reports what it lacks and
//! what to do. Changes nothing: it opens no unit, and closes each port that it tries.

mod host;
mod initiator;
mod network;

use std::fmt::Write;
use std::path::PathBuf;

use serde::Serialize;

use crate::args::Doctor;
use crate::config::{self, Config, Portal};
use crate::control::client::Client;
use crate::control::status::Status;
use crate::exit::Exit;
use crate::health::space::Level;
use crate::{advice, out};

/// The result of one check.
#[derive(Debug, Serialize)]
struct Finding {
    level: Level,
    /// The subject, in one or two words.
    about: &'static str,
    what: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    remedy: Option<String>,
}

impl Finding {
    fn ok(about: &'static str, what: impl Into<String>) -> Self {
        Self { level: Level::Ok, about, what: what.into(), remedy: None }
    }

    /// Service works, but worse than it could.
    fn warning(about: &'static str, what: impl Into<String>, remedy: impl Into<String>) -> Self {
        Self { level: Level::Warning, about, what: what.into(), remedy: Some(remedy.into()) }
    }

    /// Something does not work.
    fn critical(about: &'static str, what: impl Into<String>, remedy: impl Into<String>) -> Self {
        Self { level: Level::Critical, about, what: what.into(), remedy: Some(remedy.into()) }
    }
}

/// The files in which the kernel and programs describe this machine, below a root.
struct Files {
    root: PathBuf,
}

impl Files {
    /// The text of a file, trimmed. `None` if there is none that can be read.
    fn text(&self, path: &str) -> Option<String> {
        let bytes = std::fs::read(self.root.join(path.trim_start_matches('/'))).ok()?;
        Some(String::from_utf8_lossy(&bytes).trim().to_owned())
    }

    fn number(&self, path: &str) -> Option<u64> {
        self.text(path)?.parse().ok()
    }

    fn exists(&self, path: &str) -> bool {
        self.root.join(path.trim_start_matches('/')).exists()
    }

    /// Where the symbolic links of a directory point.
    fn links(&self, path: &str) -> Vec<String> {
        let entries = std::fs::read_dir(self.root.join(path.trim_start_matches('/'))).into_iter().flatten();
        let target = |entry: std::fs::DirEntry| {
            std::fs::read_link(entry.path()).ok()?.into_os_string().into_string().ok()
        };
        entries.flatten().filter_map(target).collect()
    }

    /// Names in a directory, sorted.
    fn names(&self, path: &str) -> Vec<String> {
        let entries = std::fs::read_dir(self.root.join(path.trim_start_matches('/'))).into_iter().flatten();
        let mut names: Vec<String> =
            entries.flatten().filter_map(|entry| entry.file_name().into_string().ok()).collect();
        names.sort();
        names
    }
}

pub fn command(args: &Doctor) -> Exit {
    let config = match &args.config {
        Some(path) => config::load_or_show(path, false),
        // What `stag serve` without a configuration opens to others.
        None => Ok(Config {
            portals: vec![Portal { listen: ([0, 0, 0, 0], config::ISCSI_PORT).into(), ..Portal::default() }],
            ..Config::default()
        }),
    };
    let config = match config {
        Ok(config) => config,
        Err(exit) => return exit,
    };
    let daemon = daemon(args);
    let mut findings = look(&config, daemon.as_ref().map(|daemon| daemon.pid), None);
    findings.extend(daemon.as_ref().map(running));
    let text = match args.json {
        true => format!("{:#}\n", serde_json::json!({ "findings": findings })),
        false => shown(&findings),
    };
    let worst = findings.iter().map(|finding| finding.level).max();
    out::print(&text).or(if worst == Some(Level::Critical) { Exit::Failed } else { Exit::Done })
}

/// All checks for what `config` says. `daemon`: the process of the daemon that runs already; `own`:
/// the runtime of this process, if it is that daemon.
fn look(config: &Config, daemon: Option<u32>, own: Option<runtime::Backend>) -> Vec<Finding> {
    let files = Files { root: "/".into() };
    let mut findings = host::look(&files, config, own);
    findings.extend(network::look(&files, config, daemon));
    findings.extend(initiator::look(&files));
    findings.extend(advice::warnings(config).into_iter().map(|warning| Finding {
        level: Level::Warning,
        about: "configuration",
        what: warning,
        remedy: None,
    }));
    findings
}

/// The checks of a daemon that runs on `own`, by itself.
#[cfg(feature = "http")]
pub fn of_daemon(config: &Config, own: runtime::Backend) -> serde_json::Value {
    serde_json::json!(look(config, Some(std::process::id()), Some(own)))
}

/// The daemon that runs, if it answers.
fn daemon(args: &Doctor) -> Option<Status> {
    Client::connect(args.at.control.as_deref()).ok()?.ask("status").ok()
}

fn running(daemon: &Status) -> Finding {
    let what = format!("stag {} runs as process {}", daemon.version, daemon.pid);
    match daemon.health.state {
        Level::Ok => Finding::ok("daemon", what),
        level => Finding {
            level,
            about: "daemon",
            what: format!("{what} and has problems"),
            remedy: Some("stag status --check lists them".to_owned()),
        },
    }
}

/// The findings as lines, worst last, each with its remedy below.
fn shown(findings: &[Finding]) -> String {
    let mut sorted: Vec<&Finding> = findings.iter().collect();
    sorted.sort_by_key(|finding| finding.level);
    let mut text = String::new();
    for Finding { level, about, what, remedy } in sorted {
        let level = match level {
            Level::Ok => "ok",
            Level::Warning => "warning",
            Level::Critical => "critical",
        };
        let _ = writeln!(text, "{level:<9} {about:<14} {what}");
        if let Some(remedy) = remedy {
            let _ = writeln!(text, "{:25}{remedy}", "");
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A machine that is described by files of these texts.
    pub(super) fn machine(files: &[(&str, &str)]) -> (tempfile::TempDir, Files) {
        let dir = tempfile::tempdir().unwrap();
        for (path, text) in files {
            let path = dir.path().join(path.trim_start_matches('/'));
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        }
        let root = dir.path().to_owned();
        (dir, Files { root })
    }

    #[test]
    fn the_worst_stands_last_with_its_remedy_below() {
        let findings = [Finding::critical("port", "taken", "end it"), Finding::ok("kernel", "Linux 6.12")];
        let text = shown(&findings);
        let lines: Vec<&str> = text.lines().map(str::trim_end).collect();
        assert_eq!(lines[0], "ok        kernel         Linux 6.12");
        assert_eq!(lines[1..], ["critical  port           taken", "                         end it"]);
    }
}
