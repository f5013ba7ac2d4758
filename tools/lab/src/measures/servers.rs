//! The servers under measurement: Stag, and the installed peers. Each serves one unit at the
//! target's end of the path, for one point, and is ended after it.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use super::scratch::{Scratch, Sockets};
use super::words::{self, Transport};
use crate::context::{Context, Role, Running};
use crate::measure::Error;
use crate::point::Point;

/// In the server's log: the account of a connection that has ended.
const ENDED: &str = "Copies {";
const IQN: &str = "iqn.2026-01.org.stag";
/// The port of all portals where a link has several lines: iSCSI's own (RFC 7143 §14).
const PORT: u16 = 3260;
/// The time that a peer has until it accepts commands.
const PATIENCE: Duration = Duration::from_secs(8);
/// The administrator's program folders, searched after $PATH.
const SBIN: [&str; 3] = ["/usr/sbin", "/sbin", "/usr/local/sbin"];

pub struct Served {
    running: Running,
    /// The unit's URL without its scheme: HOST:PORT/IQN/LUN.
    place: String,
    iser: bool,
    name: &'static str,
    tgt: Option<Tgt>,
    /// The unit's backing file, if any.
    _file: Option<Scratch>,
    /// Notes for a reader of the figures.
    pub notes: Vec<String>,
    /// The account of the connection that has filled the unit.
    filled: Option<String>,
}

/// The control program of tgtd, with its socket.
struct Tgt {
    tgtadm: PathBuf,
    control: String,
    /// The folder of its control socket. The default place belongs to the administrator.
    sockets: Sockets,
}

impl Tgt {
    /// The environment variable from which both programs read the prefix of the socket's name.
    fn socket(&self) -> (&'static str, PathBuf) {
        ("TGT_IPC_SOCKET", self.sockets.path().join("tgt"))
    }
}

/// The storage of a unit.
enum Medium {
    Memory,
    File,
    Tmpfs,
}

impl Served {
    /// Starts the server that the point names: `server` ("stag", "tgt", "istgt", "floor", "null"),
    /// `unit` ("memory", "file", "tmpfs"), `unit-size`, `unit-options`, `serve-options`,
    /// `serve-config`.
    ///
    /// # Errors
    /// [`Error::Missing`] if a peer is not installed; the server's message if it does not start.
    pub fn start(point: &Point, context: &Context) -> Result<Self, Error> {
        let medium = match point.text("unit")?.as_deref() {
            None | Some("memory") => Medium::Memory,
            Some("file") => Medium::File,
            Some("tmpfs") => Medium::Tmpfs,
            Some(other) => {
                return Err(Error::Experiment(format!(
                    "`unit` is {other}, and should be memory, file or tmpfs"
                )));
            }
        };
        let size = point.whole("unit-size")?.unwrap_or(64 << 20);
        match point.text("server")?.as_deref() {
            None | Some("stag") => Self::stag(point, context, &medium, size),
            Some("tgt") => Self::tgt(point, context, &medium, size),
            Some("istgt") => Self::istgt(context, &medium, size),
            Some("floor") => {
                Self::stag_load(context, "floor", &["--floor-mib", &(size >> 20).max(1).to_string()])
            }
            Some("null") => Self::stag_load(context, "null", &[]),
            Some(other) => Err(Error::Experiment(format!(
                "`server` is {other}, and should be stag, tgt, istgt, floor or null"
            ))),
        }
    }

    fn stag(point: &Point, context: &Context, medium: &Medium, size: u64) -> Result<Self, Error> {
        let file = match medium {
            Medium::Memory => None,
            Medium::File => Some(Scratch::file(context, false, size)?),
            Medium::Tmpfs => Some(Scratch::file(context, true, size)?),
        };
        if let (Some(file), true) = (&file, words::is_direct(point)?) {
            file.settle()?;
        }
        let mut unit = match &file {
            None => format!("mem:{size}"),
            Some(file) => file.path().display().to_string().replace(',', "\\,"),
        };
        for option in point.words("unit-options")? {
            unit.push(',');
            unit.push_str(&option);
        }
        let mut served = Self::stag_unit(point, context, &unit, file)?;
        if matches!(medium, Medium::Memory) && point.truth("fill")?.unwrap_or(true) {
            served.fill(context)?;
            if point.truth("count-payload")?.unwrap_or(false) {
                served.filled = Some(served.account(context)?);
            }
        }
        Ok(served)
    }

    /// Starts `stag serve` with a unit in the syntax of its command line.
    ///
    /// # Errors
    /// The server's message if it does not start.
    pub(crate) fn stag_unit(
        point: &Point,
        context: &Context,
        unit: &str,
        file: Option<Scratch>,
    ) -> Result<Self, Error> {
        let addresses = context.addresses(Role::Target);
        // All portals of several lines have one port: on an emulated link every port is free.
        let port = if addresses.len() > 1 { PORT } else { 0 };
        let cores = point.whole("target-cores")?.unwrap_or(1);
        let mut command = context.stag(Role::Target);
        let log = match point.truth("count-payload")?.unwrap_or(false) {
            true => "warn,iscsi_server::connection=debug",
            false => "warn",
        };
        command.args(["--log", log, "serve", "--control", "none", "--iqn", &format!("{IQN}:lab")]);
        for address in addresses {
            command.args(["--listen", &std::net::SocketAddr::new(address, port).to_string()]);
        }
        command.args(["--cores", &cores.to_string()]);
        if let Some(config) = point.text("serve-config")? {
            let path = context.folder.join("serve.toml");
            std::fs::write(&path, config).map_err(Error::io(path.display().to_string()))?;
            command.arg("--config").arg(path);
        }
        command.args(point.words("serve-options")?).arg(unit);
        let mut running = context.start(command, "stag-serve")?;
        let line = context.wait_for(&mut running, "://")?;
        let (_, place) = line.split_once("://").unwrap_or_default();
        let place = place.trim().to_owned();
        Ok(Self {
            running,
            place,
            iser: true,
            name: "stag",
            tgt: None,
            _file: file,
            notes: Vec::new(),
            filled: None,
        })
    }

    /// Stag's portals on the lines beside the first.
    pub(crate) fn other_portals(context: &Context) -> Vec<String> {
        let addresses = context.addresses(Role::Target).into_iter().skip(1);
        addresses.map(|address| std::net::SocketAddr::new(address, PORT).to_string()).collect()
    }

    /// Writes every block once, from the target's own end, so that measured requests never touch
    /// memory for the first time.
    pub fn fill(&self, context: &Context) -> Result<(), Error> {
        let mut command = context.stag(Role::Target);
        command.args([
            "bench",
            &self.url(Transport::Iscsi)?,
            "--pattern",
            "read",
            "--bs",
            "1M",
            "--depth",
            "4",
        ]);
        command.args(["--count", "1", "--fill", "--destroy", "--json", "--quiet"]);
        context.output(command, "fill").map(drop)
    }

    /// Starts one of `stag-load`'s servers: the bytes of iSCSI over plain TCP ("floor"), or a
    /// target that stores nothing ("null").
    fn stag_load(context: &Context, name: &'static str, options: &[&str]) -> Result<Self, Error> {
        let address = std::net::SocketAddr::new(context.address(Role::Target), 0);
        let mut command = context.command(Role::Target, stag_load(context)?);
        command.args([&format!("--{name}-target"), &address.to_string()]).args(options);
        let mut running = context.start(command, name)?;
        let line = context.wait_for(&mut running, "://")?;
        let place = line.split_once("://").map_or("", |(_, place)| place.trim()).to_owned();
        Ok(Self {
            running,
            place,
            iser: false,
            name,
            tgt: None,
            _file: None,
            notes: Vec::new(),
            filled: None,
        })
    }

    /// The processor time of the floor for one I/O of the run that has just ended, µs, without the
    /// time it waited awake. `None` for other servers.
    ///
    /// # Errors
    /// If the floor does not print it.
    pub fn working_us(&mut self, context: &Context) -> Result<Option<f64>, Error> {
        if self.name != "floor" {
            return Ok(None);
        }
        let line = context.wait_for(&mut self.running, "working_us")?;
        words::number(&words::json("stag-load", &line)?, "working_us").map(Some)
    }

    /// Starts tgtd with one unit in a file.
    fn tgt(point: &Point, context: &Context, medium: &Medium, size: u64) -> Result<Self, Error> {
        let (tgtd, tgtadm) = (need("tgtd", "tgt")?, need("tgtadm", "tgt")?);
        let file = peers_file(context, medium, size)?;
        let port = context.free_port()?;
        let portal = std::net::SocketAddr::new(context.address(Role::Target), port);
        // tgtd needs a number below 32768 for its control socket.
        let control = (u32::from(port) % 30_000 + 100).to_string();
        let tgt = Tgt { tgtadm, sockets: Sockets::new(&control)?, control };
        let (variable, socket) = tgt.socket();
        let mut command = context.command(Role::Target, tgtd);
        command.args(["-f", "-C", &tgt.control, "--iscsi", &format!("portal={portal}")]);
        command.env(variable, socket);
        let running = context.start(command, "tgtd")?;
        let place = format!("{portal}/{IQN}:tgt/1");
        let mut served = Self {
            running,
            place,
            iser: false,
            name: "tgt",
            tgt: Some(tgt),
            _file: None,
            notes: vec![format!("tgt serves a file {}", on(medium))],
            filled: None,
        };
        // tgtadm ends a path at a comma, and the lab's paths contain some.
        let link = served.tgt.as_ref().map(|tgt| tgt.sockets.path().join("unit")).unwrap_or_default();
        let path = link.display().to_string();
        std::path::absolute(file.path())
            .and_then(|file| std::os::unix::fs::symlink(file, &link))
            .map_err(Error::io(path.clone()))?;
        let name = format!("{IQN}:tgt");
        served._file = Some(file);
        let until = Instant::now() + PATIENCE;
        let mut unit = vec!["--op", "new", "--mode", "logicalunit", "--tid", "1", "--lun", "1", "-b", &path];
        if words::is_direct(point)? {
            unit.extend(["--bsoflags", "direct"]);
        }
        for words in [
            &["--op", "new", "--mode", "target", "--tid", "1", "-T", &name][..],
            &unit,
            &["--op", "bind", "--mode", "target", "--tid", "1", "-I", "ALL"],
        ] {
            loop {
                if served.running.status()?.is_some() {
                    return Err(served.running.failure());
                }
                match served.order(context, words) {
                    Ok(()) => break,
                    Err(error @ (Error::Stopped | Error::Late(_) | Error::Missing(_))) => return Err(error),
                    // The daemon's message says more than tgtadm's.
                    Err(error) if Instant::now() > until => {
                        return Err(Error::Failed(format!("{error} ({})", served.running.failure())));
                    }
                    Err(_) => context.sleep(Duration::from_millis(50))?,
                }
            }
        }
        Ok(served)
    }

    fn order(&self, context: &Context, words: &[&str]) -> Result<(), Error> {
        let Some(tgt) = &self.tgt else { return Ok(()) };
        let mut command = context.command(Role::Target, &tgt.tgtadm);
        let (variable, socket) = tgt.socket();
        command.args(["-C", &tgt.control, "--lld", "iscsi"]).args(words).env(variable, socket);
        context.output(command, "tgtadm").map(drop)
    }

    /// Starts istgt with one unit in a file.
    fn istgt(context: &Context, medium: &Medium, size: u64) -> Result<Self, Error> {
        let istgt = need("istgt", "istgt")?;
        let file = peers_file(context, medium, size)?;
        let (port, control) = (context.free_port()?, context.free_port()?);
        let address = context.address(Role::Target);
        let folder = context.folder.display();
        let path = file.path().display();
        let config = context.folder.join("istgt.conf");
        let write = |path: &Path, text: &str| {
            std::fs::write(path, text).map_err(Error::io(path.display().to_string()))
        };
        write(&context.folder.join("istgt-auth.conf"), "")?;
        write(
            &config,
            &format!(
                "[Global]\n  NodeBase \"{IQN}\"\n  PidFile {folder}/istgt.pid\n  AuthFile {folder}/istgt-auth.conf\n  \
                 MediaDirectory {folder}\n  LogFacility \"local7\"\n  Timeout 30\n  NopInInterval 20\n  \
                 DiscoveryAuthMethod None\n  MaxSessions 1024\n  MaxConnections 8\n  MaxR2T 32\n  MaxOutstandingR2T 16\n  \
                 DefaultTime2Wait 2\n  DefaultTime2Retain 0\n  FirstBurstLength 262144\n  MaxBurstLength 1048576\n  \
                 MaxRecvDataSegmentLength 262144\n  InitialR2T Yes\n  ImmediateData Yes\n  DataPDUInOrder Yes\n  \
                 DataSequenceInOrder Yes\n  ErrorRecoveryLevel 0\n[UnitControl]\n  AuthMethod None\n  \
                 Portal UC1 {address}:{control}\n  Netmask {address}\n[PortalGroup1]\n  Portal DA1 {address}:{port}\n\
                 [InitiatorGroup1]\n  InitiatorName \"ALL\"\n  Netmask ALL\n[LogicalUnit1]\n  TargetName istgt\n  \
                 Mapping PortalGroup1 InitiatorGroup1\n  AuthMethod None\n  UseDigest Auto\n  UnitType Disk\n  \
                 QueueDepth 128\n  LUN0 Storage {path} {mib}MB\n",
                mib = size >> 20,
            ),
        )?;
        let mut command = context.command(Role::Target, istgt);
        command.arg("-D").arg("-c").arg(&config);
        let mut running = context.start(command, "istgt")?;
        let place = format!("{address}:{port}/{IQN}:istgt/0");
        let until = Instant::now() + PATIENCE;
        loop {
            if running.status()?.is_some() {
                return Err(running.failure());
            }
            let mut look = context.stag(Role::Client);
            look.args(["info", "--json", "--timeout", "2", &format!("iscsi://{place}")]);
            match context.output(look, "look") {
                Ok(_) => break,
                Err(error @ (Error::Stopped | Error::Late(_))) => return Err(error),
                Err(error) if Instant::now() > until => return Err(error),
                Err(_) => context.sleep(Duration::from_millis(50))?,
            }
        }
        let notes = vec![format!("istgt serves a file {}", on(medium))];
        Ok(Self {
            running,
            place,
            iser: false,
            name: "istgt",
            tgt: None,
            _file: Some(file),
            notes,
            filled: None,
        })
    }

    /// The unit's URL over `transport`.
    ///
    /// # Errors
    /// [`Error::Missing`] if the server does not support it.
    pub fn url(&self, transport: Transport) -> Result<String, Error> {
        if transport == Transport::Iser && !self.iser {
            return Err(Error::Missing(format!("{} is not measured over iSER", self.name)));
        }
        let scheme = if self.name == "floor" { "tcp" } else { transport.scheme() };
        Ok(format!("{scheme}://{}", self.place))
    }

    /// The server's own account of the payload that it moved, bytes by kind: over iSER what became
    /// of it, and of its core the copies. The server logs them when the connection has ended.
    ///
    /// # Errors
    /// If the server ends before.
    pub fn payload(&mut self, context: &Context, transport: Transport) -> Result<Payload, Error> {
        let mut payload = Payload::default();
        if transport == Transport::Iser {
            let line = context.wait_for(&mut self.running, "iSER connection ended")?;
            payload.moved = numbers(&line, "Counters");
        }
        payload.copies = numbers(&self.account(context)?, ENDED).into_iter().collect();
        Ok(payload)
    }

    /// The log's line with the account of the first connection that has ended, but for that which
    /// has filled the unit.
    fn account(&mut self, context: &Context) -> Result<String, Error> {
        let until = Instant::now() + PATIENCE;
        let filled = self.filled.as_deref();
        context.wait_for_line(&mut self.running, until, |line| is_account(line, filled))
    }

    /// The process id of the server.
    pub fn pid(&self) -> u32 {
        self.running.pid()
    }

    /// Ends the server. (Drop ends it too. But SIGTERM does not end tgtd while it has a target, so
    /// drop would kill it. istgt takes seconds to end and has no state to save, so it is killed.)
    pub fn end(mut self, context: &Context) {
        if self.name == "istgt" {
            return self.running.kill();
        }
        for words in [
            &["--op", "unbind", "--mode", "target", "--tid", "1", "-I", "ALL"][..],
            &["--op", "delete", "--mode", "target", "--force", "--tid", "1"],
            &["--op", "delete", "--mode", "system"],
        ] {
            if self.tgt.is_none() || !matches!(self.running.status(), Ok(None)) {
                return;
            }
            let _ = self.order(context, words);
        }
    }
}

/// A server's account of one connection, bytes by kind.
#[derive(Default)]
pub struct Payload {
    /// What became of it, over iSER.
    pub moved: Vec<(String, f64)>,
    /// What the connection's core copied.
    pub copies: BTreeMap<String, f64>,
}

/// Whether the log's line is the account of a connection, of another one than `filled`. Lines begin
/// with their time.
fn is_account(line: &str, filled: Option<&str>) -> bool {
    line.contains(ENDED) && filled != Some(line)
}

/// The numbers of a structure in a line of a log, by their names.
fn numbers(line: &str, structure: &str) -> Vec<(String, f64)> {
    let inside = line.split_once(structure).map_or("", |(_, rest)| rest);
    let inside = inside.split_once('}').map_or(inside, |(inside, _)| inside);
    let pairs = inside.split([',', '{']).filter_map(|pair| pair.split_once(':'));
    pairs.filter_map(|(name, n)| Some((name.trim().to_owned(), n.trim().parse().ok()?))).collect()
}

/// The file of a peer's unit. Peers have no units in memory: those are files in memory.
fn peers_file(context: &Context, medium: &Medium, size: u64) -> Result<Scratch, Error> {
    Scratch::file(context, !matches!(medium, Medium::File), size)
}

fn on(medium: &Medium) -> &'static str {
    match medium {
        Medium::Memory | Medium::Tmpfs => "on tmpfs",
        Medium::File => "that the page cache holds",
    }
}

/// The path of `stag-load`, which lies beside `stag`.
///
/// # Errors
/// [`Error::Missing`], with how to build it.
pub fn stag_load(context: &Context) -> Result<PathBuf, Error> {
    let program = context.stag.with_file_name("stag-load");
    match program.is_file() {
        true => Ok(program),
        false => Err(Error::Missing("stag-load is not beside stag: cargo build -p stag-load".to_owned())),
    }
}

/// The path of a program: of one that is installed, or from the current folder if its name has a
/// slash.
///
/// # Errors
/// [`Error::Missing`], with what to install.
pub fn need(program: &str, package: &str) -> Result<PathBuf, Error> {
    if program.contains('/') {
        let path = PathBuf::from(program);
        let missing = || Error::Missing(format!("there is no {program} here: it comes with {package}"));
        return if path.is_file() { Ok(path) } else { Err(missing()) };
    }
    let path = std::env::var_os("PATH").unwrap_or_default();
    let folders = std::env::split_paths(&path).chain(SBIN.iter().map(PathBuf::from));
    let found = folders.map(|folder| folder.join(program)).find(|file| file.is_file());
    found.ok_or_else(|| {
        Error::Missing(format!("{program} is not installed (on Debian: apt-get install {package})"))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_servers_account_is_read_from_its_log() {
        let line =
            "DEBUG iscsi_server::connection: connection ended core=Copies { user: 7, sent: 40, lent: 0 } x=1";
        let expected = [("user", 7.0), ("sent", 40.0), ("lent", 0.0)].map(|(name, n)| (name.to_owned(), n));
        assert_eq!(numbers(line, ENDED), expected);
        assert_eq!(numbers("nothing of it", "Counters"), []);
        assert!(is_account(line, None) && is_account(line, Some("another")) && !is_account(line, Some(line)));
    }

    #[test]
    fn a_program_that_is_not_installed_is_told_with_its_package() {
        assert!(need("sh", "dash").is_ok());
        let error = need("no-such-program", "nothing").unwrap_err();
        assert!(matches!(error, Error::Missing(_)) && error.to_string().contains("apt-get install nothing"));
        assert!(need("src/lib.rs", "").is_ok());
        let error = need("src/no-such-file", "a checkout").unwrap_err();
        assert!(matches!(error, Error::Missing(_)) && error.to_string().contains("comes with a checkout"));
    }
}
