//! `hand-over`: a new daemon replaces the running one, and initiators can connect all the time.
//!
//! Over one connection to the control socket: the new daemon asks; the running one sends its
//! listening sockets and its control socket along (SCM_RIGHTS) and serves on; the new one says
//! `commit`; the running one stops accepting, lets commands in flight end, closes its sessions,
//! units and exports, and says what else it knows, the files of exports in memory too; the new one
//! opens the units, serves, and says `done`; the old one ends. Connections made meanwhile wait in
//! the sockets' backlog. If the new daemon is not heard of again, whatever became of it, the old
//! one opens its units again and goes on. Data is safe at every point: units are open in one of
//! both at most, and what was acknowledged has been written before.

use std::collections::HashMap;
use std::io::{self, BufRead, BufReader, Read};
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use device::{HandedOver, Nexuses};
use disk::unit::DiskUnit;
use objects::unit::OsdUnit;
use peer_units::GroupUnit;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};
use tree::Tree;

use super::client::{CallError, Client, connect};
use super::daemon::{Daemon, Parts, Running};
use super::passing::{self, MOST};
use super::place;
use super::protocol::{
    Answer, Fault, Kind, MAX_REQUEST, Request, VERSION, read_answer, read_line, write_answer, write_line,
};
use super::socket::ControlSocket;
use crate::config::{Config, Export};
use crate::convert;
use crate::export::Shown;
use crate::exports::{self, Trees};
use crate::health::{self, CarriedMark};
use crate::identity::Carried;
use crate::state::hex;
use crate::supervisor::Supervisor;
use crate::unit::Backing;
use crate::units::{OpenKind, Units};

pub const VERB: &str = "hand-over";
/// Time for commands in flight to end.
const DRAIN: Duration = Duration::from_secs(2);
/// Time for units and exports to close: a medium may have much to write.
const CLOSE: Duration = Duration::from_secs(20);
/// Time in which the old daemon retries to open its units after a failed takeover: the other
/// process may take a while to end.
const REOPEN: Duration = Duration::from_secs(60);
/// Time for the new daemon to get ready, after which the old one continues.
const PATIENCE: Duration = Duration::from_secs(60);
/// Time that the new daemon takes to get ready, by its own clock. It starts counting after the old
/// one, and so stops before [`PATIENCE`] is over.
const IN_TIME: Duration = Duration::from_secs(55);

/// The new daemon's arguments.
#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Arguments {
    /// Whether memory units may lose their data.
    #[serde(default)]
    lose_memory_units: bool,
}

/// The arguments of `commit`.
#[derive(Debug, Default, Serialize, Deserialize)]
struct Commit {
    /// Whether the new daemon takes the trees in memory.
    #[serde(default)]
    memory: bool,
}

/// Description of the sockets that are sent along.
#[derive(Debug, Serialize, Deserialize)]
struct Offer {
    /// The configured address of each socket.
    asked: Vec<SocketAddr>,
    /// Whether the last of them is that of HTTP.
    #[serde(default)]
    http: bool,
}

/// State of a daemon that is not on a medium.
#[derive(Debug, Default, Serialize, Deserialize)]
pub struct State {
    /// Units' persistent reservations, by their designators in hexadecimal.
    reservations: HashMap<String, Reservations>,
    /// The access states of target port groups, by their targets: group and state.
    access: HashMap<String, Vec<(u16, String)>>,
    /// Failed flushes that were not acknowledged, by the paths of their media.
    #[serde(default)]
    flush_failed: HashMap<String, CarriedMark>,
    /// Units whose sanitize has failed, by their designators in hexadecimal, and whether EXIT
    /// FAILURE MODE is allowed. A record may have no place.
    #[serde(default)]
    sanitize_failed: HashMap<String, bool>,
    /// Length of the state of NFS clients that follows this line, bytes.
    #[serde(default)]
    nfs: u64,
    /// Whether the trees in memory follow that.
    #[serde(default)]
    memory: bool,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
struct Reservations {
    saved: Vec<u8>,
    aptpl: bool,
    generation: u32,
    /// Versions before 0.2 have no owners.
    #[serde(default)]
    owned: Vec<u8>,
}

impl From<HandedOver> for Reservations {
    fn from(HandedOver { saved, aptpl, generation, owned }: HandedOver) -> Self {
        Self { saved, aptpl, generation, owned }
    }
}

impl From<Reservations> for HandedOver {
    fn from(Reservations { saved, aptpl, generation, owned }: Reservations) -> Self {
        Self { saved, aptpl, generation, owned }
    }
}

/// Tells whether a unit is still open.
enum WeakUnit {
    Disk(Weak<DiskUnit>),
    Objects(Weak<OsdUnit>),
    Shared(Weak<GroupUnit>),
}

impl WeakUnit {
    fn of(kind: &OpenKind) -> Self {
        match kind {
            OpenKind::Disk(disk) => Self::Disk(Arc::downgrade(&disk.unit)),
            OpenKind::Objects(unit) => Self::Objects(Arc::downgrade(unit)),
            OpenKind::Shared(unit) => Self::Shared(Arc::downgrade(&unit.unit)),
        }
    }

    fn is_open(&self) -> bool {
        match self {
            Self::Disk(unit) => unit.strong_count() > 0,
            Self::Objects(unit) => unit.strong_count() > 0,
            Self::Shared(unit) => unit.strong_count() > 0,
        }
    }
}

/// The running daemon's side. Returns whether it has been replaced.
///
/// # Errors
/// The socket fails: the client is gone, and the daemon continues.
pub fn give(
    daemon: &Daemon,
    socket: &ControlSocket,
    stream: &UnixStream,
    lines: &mut impl BufRead,
    request: &Request,
) -> io::Result<bool> {
    let mut out = stream;
    let refuse = |mut out: &UnixStream, kind, what: String| {
        write_answer(&mut out, Answer::Error(Fault::new(kind, what))).map(|()| false)
    };
    let given: Arguments = match request.arguments() {
        Ok(given) => given,
        Err(fault) => return refuse(out, fault.kind, fault.message),
    };
    let _alone = daemon.changing();
    let running = daemon.running();
    let memory: Vec<String> = running
        .units
        .open
        .iter()
        .filter(|(_, unit)| matches!(unit.spec.backing, Backing::Memory(_) | Backing::ObjectMemory(_)))
        .map(|((iqn, lun), _)| format!("{iqn} LUN {lun}"))
        .collect();
    let would_be_lost = |memory: &[String]| {
        let first = memory.first().filter(|_| !given.lose_memory_units)?;
        let what = "units and exports are in this daemon's memory and would be lost with it (such as";
        Some(format!("{} {what} {first}): --lose-memory-units does it", memory.len()))
    };
    if let Some(what) = would_be_lost(&memory) {
        return refuse(out, Kind::Refused, what);
    }
    if let Some(what) = hindered(&running.units) {
        return refuse(out, Kind::Refused, what);
    }
    if daemon.gateways().is_some() {
        let what = "it is a gateway of a group: restart it instead. Its units go to the other gateways first";
        return refuse(out, Kind::Refused, what.into());
    }
    let sockets = daemon.core.listening_sockets();
    if sockets.len() + 3 > MOST {
        return refuse(out, Kind::Refused, format!("more than {} portals cannot be handed over", MOST - 3));
    }
    let http = daemon.http.get();
    let portals = sockets.iter().map(|(asked, socket)| (asked, socket.as_fd()));
    let (asked, mut fds): (Vec<SocketAddr>, Vec<BorrowedFd<'_>>) =
        portals.chain(http.iter().map(|(asked, socket)| (asked, socket.as_fd()))).unzip();
    let offer = Offer { asked, http: http.is_some() };
    fds.push(socket.listener.as_fd());
    fds.push(socket.lock.as_fd());
    passing::send(stream, &offer, &fds)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    let Some(asked) = heard(lines, "commit") else { return Ok(false) };
    let Commit { memory } = asked.arguments().unwrap_or_default();
    let kept = running.trees.in_memory();
    if !memory {
        // A version that knows nothing of them.
        let names: Vec<String> = kept.names().map(|name| format!("export {name}")).collect();
        if let Some(what) = would_be_lost(&names) {
            return refuse(out, Kind::Refused, what);
        }
    }
    if let Some(what) = hindered(&running.units) {
        return refuse(out, Kind::Refused, what);
    }
    tracing::info!(target: iscsi_server::audit::TARGET, what = "takeover", "another daemon takes over");
    daemon.core.pause(DRAIN);
    let unanswered = unanswered(daemon, &running.units);
    // A sanitize may have begun last of all.
    if let Some(what) = unanswered.or_else(|| sanitized(&running.units)) {
        tracing::error!("no takeover: {what}");
        serve_again(daemon, &running.config, &running.units, &running.trees);
        return refuse(out, Kind::Refused, what);
    }
    let mut state = state(daemon, &running.units);
    let healths = health::watched(&running.units);
    let units: Vec<WeakUnit> = running.units.open.values().map(|unit| WeakUnit::of(&unit.kind)).collect();
    let trees = running.trees.watched();
    // All hold one more for as long as they are handed over.
    let in_use = |tree: &Weak<dyn Tree>| tree.strong_count() > usize::from(kept.has(tree));
    daemon.core.let_go();
    let (config, parts) = (running.config.clone(), running.parts.clone());
    daemon.set_running(Running {
        config: config.clone(),
        units: Units::default(),
        trees: Trees::default(),
        parts: parts.clone(),
    });
    drop(running);
    let deadline = Instant::now() + CLOSE;
    let open = || units.iter().any(WeakUnit::is_open) || trees.iter().any(in_use);
    while open() && Instant::now() < deadline {
        std::thread::sleep(Duration::from_millis(1));
    }
    // Closing flushes, which may have failed.
    state.flush_failed = health::marks(&healths);
    // A call that its client sends again to the new daemon would be executed by both.
    if trees.iter().any(in_use) {
        let what = format!(
            "calls of NFS clients have not ended within {} s, since an export's medium does not answer",
            CLOSE.as_secs()
        );
        tracing::error!("{what}: going on");
        let refused = refuse(stream, Kind::Refused, what);
        resume(daemon, config, parts, &state, &kept);
        return refused;
    }
    // All calls have ended, since the trees are closed.
    let nfs = daemon.files.hand_over();
    (state.nfs, state.memory) = (nfs.len() as u64, memory);
    let told = serde_json::to_value(&state).map_err(io::Error::from);
    let told = told.and_then(|state| write_answer(&mut out, Answer::Ok(state)));
    let told = told.and_then(|()| io::Write::write_all(&mut out, &nfs));
    let told = told.and_then(|()| match memory {
        true => {
            let mut out = io::BufWriter::with_capacity(1 << 20, out);
            kept.save(&mut out).and_then(|()| io::Write::flush(&mut out))
        }
        false => Ok(()),
    });
    if told.is_ok() && heard(lines, "done").is_some() {
        socket.give_away();
        daemon.set_replaced();
        name_main_process(stream);
        tracing::info!("another daemon has taken over; ending");
        return Ok(true);
    }
    tracing::error!("the daemon that was to take over is not there: going on");
    resume(daemon, config, parts, &state, &kept);
    Ok(false)
}

/// Why no other daemon can open the units now.
fn hindered(units: &Units) -> Option<String> {
    sanitized(units).or_else(|| in_doubt(units))
}

/// A unit that neither the new daemon could open, nor this one again. All would wait for it in
/// vain.
fn sanitized(units: &Units) -> Option<String> {
    let ((iqn, lun), _) = units.open.iter().find(|(_, unit)| unit.is_sanitizing())?;
    Some(format!("{iqn} LUN {lun} is being sanitized: upgrade when that has ended"))
}

/// A unit whose server may still carry out a request of this daemon, after newer ones of the next.
fn in_doubt(units: &Units) -> Option<String> {
    let ((iqn, lun), unit) = units.open.iter().find(|(_, unit)| unit.is_in_doubt())?;
    let path = &unit.spec.backing;
    Some(format!(
        "{iqn} LUN {lun}: the server of {path} has not answered a request, and may still carry it out: upgrade \
         when the unit is served again (`stag status`), or take it out first"
    ))
}

/// Waits until no command is at work that a unit's server could still have to answer, if there is
/// such a unit. Returns why it could not. For a server that is paused.
fn unanswered(daemon: &Daemon, units: &Units) -> Option<String> {
    let deadline = Instant::now() + CLOSE;
    let is_far = |backing: &Backing| matches!(backing, Backing::Nbd(_) | Backing::Iscsi(_));
    let far = units.open.values().find(|unit| is_far(&unit.spec.backing))?;
    loop {
        let what = in_doubt(units).or_else(|| {
            let path = &far.spec.backing;
            let at_work = !daemon.server.sessions().is_empty();
            at_work.then(|| {
                format!(
                    "commands to units have not ended in {} s, and the server of {path} may still carry one out",
                    CLOSE.as_secs()
                )
            })
        })?;
        if Instant::now() >= deadline {
            return Some(what);
        }
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Tells the service manager that the process at the other end is the service's main one from now
/// on.
fn name_main_process(stream: &UnixStream) {
    match rustix::net::sockopt::socket_peercred(stream) {
        Ok(peer) => Supervisor::find().tell(&format!("MAINPID={}", peer.pid.as_raw_nonzero())),
        Err(error) => tracing::warn!(%error, "the service manager is not told of the new daemon"),
    }
}

/// The next line, if its verb is `word`.
fn heard(lines: &mut impl BufRead, word: &str) -> Option<Request> {
    let line = read_line(lines, MAX_REQUEST).ok().flatten()?;
    serde_json::from_slice::<Request>(&line).ok().filter(|said| said.verb == word)
}

/// Serves what was served before. `kept`: the trees that are still open.
fn resume(daemon: &Daemon, config: Config, parts: Parts, state: &State, kept: &Trees) {
    let deadline = Instant::now() + REOPEN;
    let units = Units::reopened(&config, || Instant::now() >= deadline);
    restore_units(state, &units);
    let trees = kept.next(&config).unwrap_or_else(|error| {
        tracing::error!(%error, "cannot be exported again");
        Trees::default()
    });
    serve_again(daemon, &config, &units, &trees);
    restore_access(state, &daemon.server);
    daemon.set_running(Running { config, units, trees, parts });
}

/// Ends the pause.
fn serve_again(daemon: &Daemon, config: &Config, units: &Units, trees: &Trees) {
    // iSCSI and NFS continue independently: if one fails, the other still serves.
    let mut change = daemon.core.change();
    if let Err(error) = daemon.server.prepare(&mut change, convert::iscsi_config(config, units)) {
        tracing::error!(%error, "cannot go on");
    }
    let nfs = exports::nfs_config(config, trees).map_err(io::Error::other);
    if let Err(error) = nfs.and_then(|nfs| daemon.files.prepare(&mut change, nfs)) {
        tracing::error!(%error, "NFS cannot go on");
    }
    change.commit();
}

fn nexuses(kind: &OpenKind) -> &Nexuses {
    match kind {
        OpenKind::Disk(disk) => disk.unit.nexuses(),
        OpenKind::Objects(unit) => unit.nexuses(),
        // Its reservations are in the image.
        OpenKind::Shared(unit) => unit.unit.nexuses(),
    }
}

/// The state as far as it is known before the units are closed.
fn state(daemon: &Daemon, units: &Units) -> State {
    let reservations = units
        .open
        .values()
        .filter_map(|unit| Some((hex(unit.naa()), nexuses(&unit.kind).hand_over()?.into())));
    let failed =
        units.open.values().filter_map(|unit| Some((hex(unit.naa()), unit.disk()?.unit.failed_sanitize()?)));
    let groups = |name: &String| {
        let groups = daemon.server.port_groups(name)?;
        Some(groups.groups().into_iter().map(|group| (group.id, group.state.name().to_owned())).collect())
    };
    let targets = daemon.server.targets().into_iter().map(|target| target.name);
    State {
        reservations: reservations.collect(),
        access: targets.filter_map(|name| Some((name.clone(), groups(&name)?))).collect(),
        flush_failed: HashMap::new(),
        sanitize_failed: failed.collect(),
        nfs: 0,
        memory: false,
    }
}

/// Restores the reservations, failed flushes and failed sanitizes of another daemon, before
/// initiators reach the units.
pub fn restore_units(state: &State, units: &Units) {
    health::restore_marks(&state.flush_failed, units);
    for unit in units.open.values() {
        if let (Some(disk), Some(may_exit)) = (unit.disk(), state.sanitize_failed.get(&hex(unit.naa()))) {
            disk.unit.fail_sanitize(*may_exit);
        }
        let Some(kept) = state.reservations.get(&hex(unit.naa())) else { continue };
        let taken = nexuses(&unit.kind).take_over(&kept.clone().into());
        if let Err(error) = taken {
            tracing::error!(%error, unit = hex(unit.naa()), "reservations could not be taken over");
        }
    }
}

/// Restores the access states of another daemon.
pub fn restore_access(state: &State, server: &iscsi_server::Handle) {
    for (target, groups) in &state.access {
        let now: HashMap<u16, String> = server
            .port_groups(target)
            .map(|ports| ports.groups())
            .unwrap_or_default()
            .into_iter()
            .map(|group| (group.id, group.state.name().to_owned()))
            .collect();
        for (group, name) in
            groups.iter().filter(|(group, name)| now.get(group).is_some_and(|own| own != name))
        {
            let state = scsi::data::target_port_groups::AccessState::named(name);
            let Some(state) = state else { continue };
            if let Err(error) = server.set_access(target, *group, state) {
                tracing::warn!(%error, target, group, "the access state is as configured");
            }
        }
    }
}

/// The new daemon's connection to the running one, and the received sockets and state.
pub struct Taken {
    stream: UnixStream,
    lines: BufReader<UnixStream>,
    /// Listening sockets by their configured addresses.
    pub sockets: Vec<(SocketAddr, OwnedFd)>,
    /// The socket of HTTP.
    pub http: Option<(SocketAddr, OwnedFd)>,
    pub control: Option<ControlSocket>,
    pub served: Served,
    /// When the running daemon had told all that it knows.
    told: Option<Instant>,
}

/// Targets and serial numbers of a running daemon, from its `status`. The serial numbers show
/// whether it derives names, whatever its version.
#[derive(Debug, Default)]
pub struct Served {
    pub targets: Vec<String>,
    /// Its units' serial numbers.
    pub serials: Carried,
}

impl Served {
    /// Asks the daemon at `path`. Empty if it does not answer within `patience`.
    fn ask(path: &Path, patience: Duration) -> Self {
        let client = Client::connect(Some(path)).and_then(|client| client.patient_for(patience));
        let status = client.and_then(|mut client| client.ask::<Value>("status"));
        let status = status.unwrap_or_default();
        let targets = status["targets"].as_array().map(Vec::as_slice).unwrap_or_default();
        let text = |value: &Value| value.as_str().map(str::to_owned);
        let units = targets.iter().flat_map(|target| target["units"].as_array()).flatten();
        Self {
            targets: targets.iter().filter_map(|target| text(&target["iqn"])).collect(),
            serials: units.filter_map(|unit| text(&unit["serial"])).collect(),
        }
    }
}

impl Taken {
    /// Asks the daemon at `path` to hand over. It continues to serve until [`Self::commit`].
    ///
    /// # Errors
    /// No daemon answers, it refuses, or it went away ([`CallError::Lost`]).
    pub fn ask(path: Option<&Path>, lose_memory_units: bool) -> Result<Self, CallError> {
        let path = path.map_or_else(place::of_own, |path| Ok(path.to_owned()))?;
        Self::ask_within(&path, lose_memory_units, PATIENCE)
    }

    /// [`Self::ask`], which waits for `patience` for each answer.
    fn ask_within(path: &Path, lose_memory_units: bool, patience: Duration) -> Result<Self, CallError> {
        let served = Served::ask(path, patience);
        let (mut stream, path) = connect(Some(path))?;
        stream.set_read_timeout(Some(patience))?;
        let mut arguments = Map::new();
        arguments.insert("lose_memory_units".into(), Value::Bool(lose_memory_units));
        write_line(&mut stream, &Request::new(VERB, arguments))?;
        let (line, mut fds) = passing::receive(&stream)?;
        let offer: Offer = read_told(&mut line.as_slice())?;
        let count = offer.asked.len();
        if fds.len() != count + 2 {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "sockets are missing").into());
        }
        let (lock, listener) = (fds.pop(), fds.pop());
        let control = listener.zip(lock).map(|(listener, lock)| ControlSocket::adopt(&path, listener, lock));
        let lines = BufReader::new(stream.try_clone()?);
        let mut sockets: Vec<_> = offer.asked.into_iter().zip(fds).collect();
        let http = offer.http.then(|| sockets.pop()).flatten();
        Ok(Self { stream, lines, sockets, http, control, served, told: None })
    }

    /// Has the running daemon let go of its sessions and units. It takes them back if this value is
    /// dropped without [`Self::done`]. Returns what it knew, with what NFS knew of its clients and
    /// the trees in memory that `config` exports.
    ///
    /// # Errors
    /// It went away ([`CallError::Lost`]), answers late or in another form, or has files in memory
    /// that `config` has no place for.
    pub fn commit(&mut self, config: &Config) -> Result<(State, Vec<u8>, Trees), CallError> {
        write_line(&mut self.stream, &json!({ "v": VERSION, "do": "commit", "memory": true }))?;
        let state: State = read_told(&mut self.lines)?;
        let mut nfs = Vec::new();
        io::Read::take(&mut self.lines, state.nfs).read_to_end(&mut nfs)?;
        if nfs.len() as u64 != state.nfs {
            return Err(io::Error::from(io::ErrorKind::UnexpectedEof).into());
        }
        let trees = if state.memory { Trees::load(config, &mut self.lines)? } else { Trees::default() };
        self.told = Some(Instant::now());
        Ok((state, nfs, trees))
    }

    /// Tells the other daemon that this one serves, so that it ends.
    ///
    /// # Errors
    /// The other daemon has stopped waiting. It serves again, at the same sockets: this one must
    /// not.
    pub fn done(mut self) -> Result<(), Fault> {
        if self.told.is_some_and(|told| told.elapsed() >= IN_TIME) && !self.is_alone() {
            let what = format!(
                "units and exports were not open within {} s, and the running daemon takes them back",
                IN_TIME.as_secs()
            );
            return Err(Fault::new(Kind::Failed, what));
        }
        if let Err(error) = write_line(&mut self.stream, &json!({ "v": VERSION, "do": "done" })) {
            tracing::warn!(%error, "the daemon that was replaced has gone before its time");
        }
        Ok(())
    }

    /// Whether the other daemon has ended: its end of the connection is closed.
    fn is_alone(&mut self) -> bool {
        use io::ErrorKind::{Interrupted, TimedOut, WouldBlock};
        let limited = self.stream.set_read_timeout(Some(Duration::from_millis(1)));
        match limited.and_then(|()| self.lines.fill_buf().map(<[u8]>::is_empty)) {
            Ok(is_end) => is_end,
            Err(error) => !matches!(error.kind(), Interrupted | TimedOut | WouldBlock),
        }
    }
}

/// Reads the running daemon's answer, one line.
pub(super) fn read_told<T: DeserializeOwned>(from: &mut impl BufRead) -> Result<T, CallError> {
    match read_answer(from)? {
        Some(Answer::Ok(value)) => Ok(serde_json::from_value(value)?),
        Some(Answer::Error(fault)) => Err(fault.into()),
        Some(Answer::Progress(_)) => {
            Err(CallError::Answer(io::Error::new(io::ErrorKind::InvalidData, "progress of nothing")))
        }
        None => Err(CallError::Lost(io::ErrorKind::UnexpectedEof.into())),
    }
}

/// Reads the offer and the state of a daemon that is replaced, with the tree in memory of an
/// export `/m`. Returns its units' reservations as [`Nexuses::take_over`] takes them. For tests of
/// other crates.
///
/// # Errors
/// The lines are incomplete or wrong, or hold a daemon's error.
pub fn read_takeover(mut from: &[u8]) -> Result<Vec<HandedOver>, CallError> {
    let _: Offer = read_told(&mut from)?;
    let state: State = read_told(&mut from)?;
    if state.memory {
        let export = Export { name: "/m".into(), shown: Shown::Memory(1 << 20), ..Export::default() };
        from = from.get(state.nfs.min(from.len() as u64) as usize..).unwrap_or_default();
        Trees::load(&Config { exports: vec![export], ..Config::default() }, &mut from)?;
    }
    Ok(state.reservations.into_values().map(Reservations::into).collect())
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::os::unix::net::UnixListener;

    use super::*;

    /// The conduct of an old daemon after it was told `commit`.
    #[derive(Clone, Copy)]
    enum Then {
        Stay(&'static str),
        Die(&'static str),
    }

    /// The new daemon's result of `commit` at an old daemon that offers its sockets, and then does
    /// this.
    fn committed(then: Then) -> CallError {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("control.sock");
        let listener = UnixListener::bind(&path).unwrap();
        let patience = Duration::from_millis(300);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let (mut status, _) = listener.accept().unwrap();
                status.write_all(b"{\"v\":1,\"ok\":{}}\n").unwrap();
                let (stream, _) = listener.accept().unwrap();
                let mut lines = BufReader::new(&stream);
                assert!(heard(&mut lines, VERB).is_some());
                let portal = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
                let offer = Offer { asked: vec![portal.local_addr().unwrap()], http: false };
                passing::send(&stream, &offer, &[portal.as_fd(), listener.as_fd(), a_lock().as_fd()])
                    .unwrap();
                assert!(heard(&mut lines, "commit").is_some());
                let (Then::Stay(said) | Then::Die(said)) = then;
                (&stream).write_all(said.as_bytes()).unwrap();
                if matches!(then, Then::Stay(_)) {
                    // Alive until the other side has gone.
                    let _ = lines.read_to_end(&mut Vec::new());
                }
            });
            let mut taken = Taken::ask_within(&path, false, patience).ok().unwrap();
            assert_eq!(taken.sockets.len(), 1);
            taken.commit(&Config::default()).err().unwrap()
        })
    }

    fn a_lock() -> std::fs::File {
        tempfile::tempfile().unwrap()
    }

    #[test]
    fn only_a_closed_connection_shows_that_the_old_daemon_has_ended() {
        for said in
            ["", "{\"v\":1,\"ok\"", "{\"v\":1,\"ok\":{\"reservations\":{},\"access\":{},\"nfs\":9}}\nshort"]
        {
            let error = committed(Then::Die(said));
            assert!(matches!(error, CallError::Lost(_)), "{said}: {error:?}");
            // The same from a daemon that stays, and is late.
            let error = committed(Then::Stay(said));
            assert!(matches!(error, CallError::Answer(_)), "{said}: {error:?}");
        }
        for said in
            ["nonsense\n", "{\"v\":1,\"ok\":{\n", "{\"v\":1,\"ok\":[]}\n", "{\"v\":2,\"ok\":{}}\n", "\n"]
        {
            let error = committed(Then::Stay(said));
            assert!(matches!(error, CallError::Answer(_)), "{said}: {error:?}");
        }
        assert!(matches!(
            committed(Then::Stay("{\"v\":1,\"error\":{\"kind\":\"failed\",\"message\":\"\"}}\n")),
            CallError::Fault(_)
        ));
    }

    #[test]
    fn a_new_daemon_that_is_late_does_not_serve_beside_the_old_one() {
        let taken = |told| {
            let (stream, old) = UnixStream::pair().unwrap();
            let lines = BufReader::new(stream.try_clone().unwrap());
            let (sockets, served) = (Vec::new(), Served::default());
            (Taken { stream, lines, sockets, http: None, control: None, served, told }, old)
        };
        let late = Instant::now().checked_sub(PATIENCE);
        assert!(late.is_some());
        let (new, old) = taken(Some(Instant::now()));
        assert!(new.done().is_ok());
        assert!(heard(&mut BufReader::new(&old), "done").is_some());
        let (new, old) = taken(late);
        assert!(new.done().is_err());
        assert!(heard(&mut BufReader::new(&old), "done").is_none());
        // One that has ended does not go on.
        let (new, old) = taken(late);
        drop(old);
        assert!(new.done().is_ok());
    }

    #[test]
    fn an_old_daemon_that_is_silent_is_not_taken_for_one_that_has_ended() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("control.sock");
        // Connections wait in its backlog.
        let listener = UnixListener::bind(&path).unwrap();
        let patience = Duration::from_millis(100);
        let late = Taken::ask_within(&path, false, patience).err();
        assert!(matches!(late, Some(CallError::Answer(_))), "{late:?}");
        drop(listener);
        let gone = Taken::ask_within(&path, false, patience).err();
        assert!(matches!(gone, Some(CallError::Unreachable { .. })), "{gone:?}");
    }
}
