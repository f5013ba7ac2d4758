//! `apply`: replaces a part of the daemon's configuration, whole or not at all: the
//! administrator's, or the managed document. The other part stays.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use disk::unit::DiskUnit;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

use super::client::{CallError, Client};
use super::daemon::{Daemon, Parts, Running};
use super::plan::{LoggedIn, Plan, Sessions};
use super::protocol::{Fault, Kind, Progress, Request, json};
use crate::config::{self, Config, Text};
use crate::earlier;
use crate::exit::Exit;
use crate::exports;
use crate::managed::{self, Document};
use crate::out;
use crate::supervisor::Supervisor;
use crate::units::Units;
use crate::{args, convert};

pub const VERB: &str = "apply";
/// Time for a unit's medium to do what a change waits for. A hung one must not lock out all other
/// changes.
const SETTLE: Duration = Duration::from_secs(60);

/// The client's arguments.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Arguments {
    /// The file's name, for messages.
    name: String,
    /// Directory that relative paths in the configuration start from.
    directory: PathBuf,
    /// Whether others than its owner may read it.
    #[serde(default)]
    open_to_others: bool,
    /// Only report what would change.
    #[serde(default)]
    dry_run: bool,
    /// Also make changes that lose data.
    #[serde(default)]
    force: bool,
    /// Seconds to wait for sessions that have to log out.
    #[serde(default)]
    wait_s: Option<f64>,
    /// Whether this is the managed document.
    #[serde(default)]
    managed: bool,
    /// The generation that the change was planned on; any if it is left out.
    #[serde(default)]
    generation: Option<u64>,
}

/// A change of one part of the configuration.
pub enum Change<'a> {
    /// The administrator's part, with its name for messages.
    File(Box<Config>, String),
    /// What is done to the managed document.
    Managed(&'a dyn Fn(&mut Document) -> Result<(), Fault>),
}

/// How a change is made.
#[derive(Clone, Copy, Debug, Default)]
pub struct How {
    /// Only say what would change.
    pub dry_run: bool,
    /// Also make changes that lose data.
    pub force: bool,
    /// The generation that it was planned on; any if `None`.
    pub generation: Option<u64>,
}

/// The verb's answer.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Outcome {
    pub plan: Plan,
    /// Whether the configuration was applied.
    pub applied: bool,
    /// Sessions that see other units than before.
    pub sessions_changed: usize,
    /// TSIHs of sessions that were asked to leave.
    pub sessions_leaving: Vec<u64>,
    /// Whether those had logged out within `wait_s`.
    pub settled: bool,
    /// Duration, milliseconds.
    pub took_ms: f64,
    /// The generation in force: that of a plan, or the one that the change has made.
    #[serde(default)]
    pub generation: u64,
}

impl Outcome {
    /// What would be done.
    pub fn planned(plan: Plan, generation: u64) -> Self {
        Self {
            plan,
            applied: false,
            sessions_changed: 0,
            sessions_leaving: Vec::new(),
            settled: true,
            took_ms: 0.0,
            generation,
        }
    }

    /// An answer for people.
    ///
    /// # Errors
    /// It is none.
    pub fn shown(answer: Value) -> Result<String, CallError> {
        Ok(serde_json::from_value::<Self>(answer)?.text())
    }

    /// For people.
    pub fn text(&self) -> String {
        let end = match (self.applied, self.plan.is_empty()) {
            (_, true) => "nothing to change".to_owned(),
            (false, false) if self.plan.refused.is_empty() => "this is what would be done".to_owned(),
            (false, false) => "this cannot be done".to_owned(),
            (true, false) => format!("done in {:.0} ms", self.took_ms),
        };
        format!("{}{end}\n", self.plan.text())
    }
}

/// The verb.
///
/// # Errors
/// The configuration has mistakes, or cannot be applied.
pub fn answer(
    daemon: &Daemon,
    request: &Request,
    text: Text,
    progress: Progress<'_>,
) -> Result<Value, Fault> {
    let given: Arguments = request.arguments()?;
    let patience = given.wait_s.map(Duration::try_from_secs_f64).transpose();
    let patience = patience.map_err(|_| Fault::new(Kind::Request, "apply: wait_s is no time"))?;
    let how = How { dry_run: given.dry_run, force: given.force, generation: given.generation };
    let mut outcome = if given.managed {
        let wrong = |error| Fault::new(Kind::Config, format!("{} is no TOML: {error}", given.name));
        let document = Document::from_toml(&text).map_err(wrong)?;
        drop(text);
        let replace = |managed: &mut Document| {
            *managed = document.clone().with_secrets_of(managed);
            Ok(())
        };
        apply(daemon, Change::Managed(&replace), how, progress)?
    } else {
        let place =
            config::Place { open_to_others: given.open_to_others, ..config::Place::new(&given.directory) };
        let loaded = config::load_text(&given.name, &text, &place);
        drop(text);
        let (mut config, _) = loaded.map_err(|errors| {
            let plain = Some(errors.lines().join("\n"));
            Fault { plain, ..Fault::new(Kind::Config, format!("{:?}", miette::Report::new(errors))) }
        })?;
        // The portals come from the command line.
        if config.portals.is_empty() {
            config.portals = daemon.running().config.portals.clone();
        }
        if config.nfs.listen.is_empty() {
            config.nfs.listen = daemon.running().config.nfs.listen.clone();
        }
        apply(daemon, Change::File(Box::new(config), given.name), how, progress)?
    };
    if let Some(patience) = patience.filter(|_| outcome.applied) {
        outcome.settled = settle(daemon, &outcome.sessions_leaving, patience);
    }
    json(&outcome)
}

/// Makes `change`. A managed document is on its medium before it is served: a daemon that ends in
/// between serves it from its next start on, though nobody was told that the change was made.
///
/// # Errors
/// It cannot be made; nothing has changed then. [`Kind::Failed`]: it is in force, but a file could
/// not be made shorter.
pub fn apply(
    daemon: &Daemon,
    change: Change<'_>,
    how: How,
    progress: Progress<'_>,
) -> Result<Outcome, Fault> {
    let How { dry_run, force, generation } = how;
    let started = Instant::now();
    let _alone = daemon.changing();
    let running = daemon.running();
    if daemon.is_replaced() {
        return Err(Fault::new(Kind::Refused, "another daemon has taken over: ask that one"));
    }
    let now = running.parts.generation;
    if let Some(planned) = generation.filter(|planned| *planned != now) {
        let what = format!(
            "another change came between: the generation is {now} instead of {planned}; look again, and \
             plan anew"
        );
        return Err(Fault::new(Kind::Conflict, what));
    }
    let is_managed = matches!(change, Change::Managed(_));
    let Next { config, mut parts, written } = next(&running, change)?;
    let fates = running.units.fates(&config, force);
    let sessions: Sessions = daemon
        .server
        .sessions()
        .into_iter()
        .filter_map(|session| {
            Some(LoggedIn { target: session.target?, initiator: session.initiator, user: session.user })
        })
        .collect();
    let mut plan = Plan::new(&running.config, &config, &fates, &sessions);
    if let Some(path) = daemon.sandbox.out_of_reach(&config, &running.config) {
        plan.refused.push(format!(
            "{} is outside of the directories that the sandbox left in reach when the daemon started: \
             restart it, have `stag serve --takeover` take its place, or add the directory to sandbox-directories",
            path.display()
        ));
    }
    // Whoever asks for what is there gets it, and disturbs nobody's plan.
    let is_there = is_managed && written.is_none() && plan.is_empty();
    if dry_run || is_there {
        return Ok(Outcome {
            applied: is_there && !dry_run,
            took_ms: started.elapsed().as_secs_f64() * 1e3,
            ..Outcome::planned(plan, now)
        });
    }
    let refuse = |what: String| Fault::new(Kind::Refused, format!("{what}; nothing has been changed"));
    if !plan.refused.is_empty() {
        return Err(refuse(plan.refused.join("; ")));
    }
    progress(json!({ "step": "opening units" }));
    // Steps that can fail come first, for all protocols.
    // On an error, EXTENDED COPY again finds the old units, and not the new ones.
    let take_back = |error: String| {
        disks(&running.units).for_each(|disk| {
            running.units.registry.add(disk);
            disk.stay();
        });
        refuse(error)
    };
    let units = running.units.next(&config, &fates).map_err(|error| take_back(error.to_string()))?;
    let trees = running.trees.next(&config).map_err(|error| take_back(error.to_string()))?;
    let nfs = exports::nfs_config(&config, &trees).map_err(take_back)?;
    let mut change = daemon.core.change();
    let prepared = daemon.server.prepare(&mut change, convert::iscsi_config(&config, &units));
    let prepared = prepared.and_then(|()| daemon.files.prepare(&mut change, nfs));
    prepared.map_err(|error| take_back(error.to_string()))?;
    for ((iqn, lun), disk) in running.units.leaving(&units, &fates) {
        // A task of its own: a flush that is late must still tell of its failure.
        let leave = move || runtime::spawn(async move { disk.leave().await.is_ok() });
        let left = daemon.core.hub().wait_for(move || runtime::timeout(SETTLE, leave()));
        if !matches!(left, Ok(Ok(Ok(true)))) {
            let what = format!("{iqn} LUN {lun}: what its initiators have written could not be flushed");
            return Err(take_back(what));
        }
    }
    // One may have begun during the flushes.
    if let Some(error) = running.units.sanitized_since(&fates) {
        return Err(take_back(error.to_string()));
    }
    let limit = |disk: Arc<DiskUnit>, bytes| {
        let limit = move || runtime::timeout(SETTLE, async move { disk.limit(bytes).await });
        let limited = daemon.core.hub().wait_for(limit);
        limited.and_then(|in_time| in_time.map_err(|_| std::io::ErrorKind::TimedOut.into()))
    };
    let resizing = running.units.resize(&fates, force, limit);
    let resizing = resizing.map_err(|error| take_back(error.to_string()))?;
    if let Some(text) = written {
        let kept = managed::path().and_then(|path| {
            earlier::keep(&path, now)?;
            managed::write(&path, &text).inspect_err(|_| earlier::restore(&path, now))
        });
        kept.map_err(take_back)?;
    }
    progress(json!({ "step": "changing what is served" }));
    let listened = daemon.core.listening_sockets();
    let applied = change.commit();
    Supervisor::find().follow(&listened, &daemon.core.listening_sockets());
    drop(listened);
    let resized = resizing.finish();
    if let (Some(gateway), Some(shared)) = (daemon.gateways(), &units.shared) {
        shared.follow(gateway, &config);
    }
    // A file may have grown, by this change or another program.
    disks(&units).for_each(|disk| disk.revalidate());
    // Settings for the next start keep their old values here, so that the next change reports them
    // again.
    let config = config.until_next_start(&running.config);
    let in_memory = |place| units.open.get(place).is_some_and(|unit| unit.spec.backing.path().is_none());
    running.units.open.iter().filter(|(place, _)| !in_memory(place)).for_each(|(_, out)| out.settled.end());
    parts.generation += 1;
    let generation = parts.generation;
    daemon.set_running(Running { config, units, trees, parts });
    tracing::info!(
        target: iscsi_server::audit::TARGET,
        what = "apply",
        changes = plan.changes.len(),
        generation,
        "a new configuration is in force"
    );
    resized.map_err(|what| Fault::new(Kind::Failed, format!("the configuration is in force, but {what}")))?;
    Ok(Outcome {
        plan,
        applied: true,
        sessions_changed: applied.changed,
        settled: applied.leaving.is_empty(),
        sessions_leaving: applied.leaving,
        took_ms: started.elapsed().as_secs_f64() * 1e3,
        generation,
    })
}

/// The configuration after a change.
struct Next {
    config: Config,
    parts: Parts,
    /// The managed document, where it is another one than before.
    written: Option<Text>,
}

/// Makes the configuration that `change` leads to. Nothing is written, and nothing served changes.
fn next(running: &Running, change: Change<'_>) -> Result<Next, Fault> {
    let mut parts = running.parts.clone();
    let mut is_new = false;
    let file = match change {
        Change::File(config, name) => {
            parts.file = name;
            *config
        }
        Change::Managed(edit) => {
            let Some(managed) = &mut parts.managed else {
                let what = "this daemon keeps no managed document: write managed = true into its \
                            configuration, and restart it";
                return Err(Fault::new(Kind::Refused, what));
            };
            let file = managed.without(&running.config);
            edit(managed)?;
            is_new = running.parts.managed.as_ref() != Some(managed);
            file
        }
    };
    let Some(managed) = &mut parts.managed else {
        return Ok(Next { config: file, parts, written: None });
    };
    managed.serve_all();
    let (config, text) = managed.join(file, &parts.file).map_err(|error| {
        let plain = error.lines();
        let shown = format!("{:?}", miette::Report::new(error));
        Fault { plain: Some(plain), ..Fault::new(Kind::Config, shown) }
    })?;
    Ok(Next { config, parts, written: is_new.then_some(text) })
}

fn disks(units: &Units) -> impl Iterator<Item = &Arc<DiskUnit>> {
    units.open.values().filter_map(|open| Some(&open.disk()?.unit))
}

/// Waits until sessions are gone.
fn settle(daemon: &Daemon, leaving: &[u64], patience: Duration) -> bool {
    // A time beyond the clock's end never comes.
    let deadline = Instant::now().checked_add(patience);
    loop {
        if !leaving.iter().any(|tsih| daemon.server.has_session(*tsih)) {
            return true;
        }
        if deadline.is_some_and(|deadline| Instant::now() >= deadline) {
            return false;
        }
        std::thread::sleep(Duration::from_millis(10));
    }
}

pub fn command(args: &args::Apply) -> Exit {
    // This shows mistakes with colours; the daemon then reads the text again. The managed document
    // is checked with the daemon's portals.
    if !args.managed
        && let Err(exit) = config::load_or_show(&args.file, false)
    {
        return exit;
    }
    match run(args) {
        Ok(outcome) => show(args, &outcome),
        Err(error) => error.show(),
    }
}

fn run(args: &args::Apply) -> Result<Outcome, CallError> {
    let unreadable = |error: std::io::Error| {
        Fault::new(Kind::Config, format!("{} cannot be read: {error}", args.file.display()))
    };
    let file = std::fs::canonicalize(&args.file).map_err(unreadable)?;
    let (text, open_to_others) = config::read(&file).map_err(unreadable)?;
    let arguments = Arguments {
        name: args.file.display().to_string(),
        directory: file.parent().unwrap_or(Path::new("/")).to_owned(),
        open_to_others,
        dry_run: args.dry_run,
        force: args.force,
        wait_s: args.wait.then_some(args.timeout),
        managed: args.managed,
        generation: args.generation,
    };
    let arguments = match serde_json::to_value(arguments) {
        Ok(Value::Object(map)) => map,
        _ => Map::new(),
    };
    let value =
        Client::connect(args.at.control.as_deref())?.call_with(VERB, arguments, text.as_bytes(), |_| ())?;
    Ok(serde_json::from_value(value)?)
}

fn show(args: &args::Apply, outcome: &Outcome) -> Exit {
    let settled = outcome.settled || !args.wait;
    if !settled {
        say!("stag: sessions that have to leave are still there after {} s", args.timeout);
    }
    let exit = if outcome.plan.refused.is_empty() && settled { Exit::Done } else { Exit::Failed };
    let text = match args.json {
        true => format!("{:#}\n", serde_json::to_value(outcome).unwrap_or_default()),
        false => outcome.text(),
    };
    exit.or(out::print(&text))
}
