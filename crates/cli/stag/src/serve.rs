//! `stag serve`: combines the command line and the configuration, starts the server, reports the
//! units' addresses, and ends on a signal.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use gateway::Gateway;
use iscsi_server::config::ServerConfig;
use nfs_server::config::NfsConfig;
use runtime::{Runtime, Signal, Signals};
use server_core::{CoresConfig, Server};

use crate::args::Serve;
use crate::config::{self, Auth, Config, Export, Http, ISCSI_PORT, Lun, Portal, Target, Transports};
use crate::control::apply::{self, Change, How};
use crate::control::client::CallError;
use crate::control::daemon::{Daemon, Parts, Running};
use crate::control::handover::{self, State, Taken};
use crate::control::peer;
use crate::control::place::{Place, PlaceError, REMEDY};
use crate::control::protocol::{Fault, Kind, json};
use crate::control::server::ControlServer;
use crate::control::socket::{ControlSocket, SocketError};
use crate::exit::Exit;
use crate::exports::{self, Trees};
use crate::gateways::Shared;
use crate::managed::{self, Document};
use crate::sandbox::Sandbox;
use crate::supervisor::{self, Supervisor};
use crate::units::Units;
use crate::{
    advice, control, convert, credentials, identity, interrupt, iqn, key, log, metrics, naming, out, rpcbind,
    secret, state,
};

/// Time for initiators to log out when the server ends.
const GRACE: Duration = Duration::from_secs(2);
/// Time for an address to become free before the start fails.
const ADDRESS_PATIENCE: Duration = Duration::from_secs(3);

/// Serves until a signal says to end.
pub fn serve(args: Serve, log: Option<&str>, format: Option<log::Format>) -> Exit {
    // Before the process holds any secret.
    secret::forbid_core_dumps();
    credentials::hold_own();
    if args.takeover {
        let at = args.control.as_ref().and_then(Place::path).map(Path::to_owned);
        credentials::or_else(move || control::credentials::taken(at.as_deref()));
    }
    let config = match joined(args.clone()) {
        Ok(config) => config,
        Err(exit) => return exit,
    };
    let said = &config.daemon;
    log::start(log.or(said.log.as_ref().map(|filter| filter.0.as_str())), "info", format.or(said.log_format));
    // Before any other thread starts, so that all of them leave these signals to this one.
    let signals = Signals::new(&[Signal::Terminate, Signal::Interrupt, Signal::Hangup]);
    match signals.and_then(|signals| Ok((interrupt::ring()?, signals))) {
        Ok((ring, signals)) => run(&args, config, &ring, &signals),
        Err(error) => failed(format_args!("signals cannot be received: {error}"), None),
    }
}

fn run(args: &Serve, mut config: Config, ring: &Runtime, signals: &Signals) -> Exit {
    config.daemon.runtime.prefer();
    advice::warnings(&config).iter().for_each(|warning| tracing::warn!("{warning}"));
    raise_descriptor_limit();
    runtime::survive_file_size_limit();
    let supervisor = Supervisor::find();
    peer::group();
    let mut taken = match take_over(args) {
        Ok(taken) => taken,
        Err(exit) => return exit,
    };
    let socket = match &mut taken {
        Some(taken) => Ok(taken.control.take()),
        None => control_socket(args.control.as_ref().unwrap_or(&Place::Usual)),
    };
    let socket = match socket {
        Ok(socket) => socket,
        Err(error) => {
            return failed(
                error,
                Some(
                    "end it, replace it with --takeover, or choose another place with --control PATH, or --control none",
                ),
            );
        }
    };
    let (isns, rpcbind) = (config.isns.clone(), config.nfs.rpcbind.clone());
    let is_wanted = config.http.is_some() || socket.is_some();
    let http = is_wanted.then(|| {
        let inherited = taken.as_mut().and_then(|taken| taken.http.take());
        metrics::Listener::bind(config.http.as_ref(), inherited)
    });
    let http = match http.transpose() {
        Ok(http) => http,
        Err(error) => return failed(&error, help_for_http(&error)),
    };
    // The daemon that is replaced makes no changes from now on.
    let (joined, parts) = match with_managed(args, config) {
        Ok(joined) => joined,
        Err(exit) => return exit,
    };
    config = joined;
    let mut sockets = supervisor::handed();
    let (mut state, mut nfs_clients, mut carried) = (State::default(), Vec::new(), Trees::default());
    if let Some(taken) = &mut taken {
        sockets.append(&mut taken.sockets);
        (state, nfs_clients, carried) = match taken.commit(&config) {
            Ok(known) => known,
            // It ended meanwhile. A daemon that answers late or in another form has not: it takes
            // its units back when this process ends.
            Err(CallError::Lost(error)) => {
                tracing::warn!(%error, "the running daemon is gone, and what it knew of reservations without APTPL");
                Default::default()
            }
            Err(error) => return failed(error, None),
        };
    }
    let inherited: Vec<SocketAddr> = sockets.iter().map(|(asked, _)| *asked).collect();
    // Before any other thread starts, since threads inherit it.
    let mut sandbox = Sandbox::enter(&config, &own_directories(socket.as_ref()), &own_files(args));
    let served = taken.as_mut().map(|taken| std::mem::take(&mut taken.served)).unwrap_or_default();
    if args.iqn.is_none() && served.targets.iter().any(|iqn| iqn == iqn::OLD_DEFAULT_TARGET) {
        keep_old_name(&mut config);
    }
    let shared = match Shared::new(&config) {
        Ok(shared) => shared,
        Err(error) => return failed(format_args!("the group's images cannot be looked at: {error}"), None),
    };
    let none = Units { carried: served.serials, shared: shared.clone(), ..Units::default() };
    let units = match none.next(&config, &none.fates(&config, false)) {
        Ok(units) => units,
        Err(error) => return failed(error, None),
    };
    let trees = match std::mem::take(&mut carried).next(&config) {
        Ok(trees) => trees,
        Err(error) => return failed(error, None),
    };
    let nfs = match exports::nfs_config(&config, &trees) {
        Ok(nfs) => nfs,
        Err(error) => return failed(error, None),
    };
    identity::sweep();
    recognize_principals(&config);
    let running = Running { config, units, trees, parts };
    let empty =
        running.config.targets.iter().all(|target| target.units.is_empty() && target.redirect.is_none())
            && running.config.exports.is_empty();
    let cores = convert::cores(&running.config);
    let config = convert::iscsi_config(&running.config, &running.units);
    let places: Vec<(String, Vec<u16>, Vec<u16>)> = config
        .targets
        .iter()
        .map(|target| {
            (target.name.clone(), target.groups.clone(), target.units.iter().map(|unit| unit.lun).collect())
        })
        .collect();
    handover::restore_units(&state, &running.units);
    let (core, server, files) = match start(cores, config, (nfs, &nfs_clients), &sockets) {
        Ok(started) => started,
        Err(error) => return failed(&error, help_for(&error)),
    };
    drop((sockets, nfs_clients));
    // Before anything else that takes time: the other daemon waits for so long only.
    if let Some(taken) = taken {
        if let Err(error) = taken.done() {
            return failed(error, None);
        }
        socket.iter().for_each(ControlSocket::claim);
    }
    handover::restore_access(&state, &server);
    let mut urls = Vec::new();
    let portals = server.portals();
    for (iqn, groups, luns) in &places {
        let serving =
            |portal: &&iscsi_server::BoundPortal| groups.is_empty() || groups.contains(&portal.group);
        let Some(portal) = portals.iter().find(serving) else { continue };
        let scheme = match portal.transports {
            Transports::Iser | Transports::Verbs => "iser",
            Transports::All | Transports::Tcp => "iscsi",
        };
        urls.extend(luns.iter().map(|lun| format!("{scheme}://{}/{iqn}/{lun}", reachable(portal.address))));
    }
    if let Some(at) = files.portals().first() {
        let (scheme, at) = (if at.verbs { "nfs+rdma" } else { "nfs" }, reachable(at.listen));
        urls.extend(running.config.exports.iter().map(|export| format!("{scheme}://{at}{}", export.name)));
    }
    if empty {
        tracing::warn!("nothing is served yet: `stag apply FILE` says what");
    }
    if let Err(error) = out::write(urls.iter().map(|url| format!("{url}\n")).collect::<String>().as_bytes()) {
        tracing::warn!(%error, "the URLs could not be printed");
    }
    for portal in server.portals() {
        let transports = config::lets_in(portal.transports);
        tracing::info!(address = %portal.address, group = portal.group, transports, "listening");
    }
    for portal in files.portals() {
        tracing::info!(%portal, "listening for NFS");
    }
    let http = match http.map(metrics::Listener::start).transpose() {
        Ok(http) => http,
        Err(error) => return failed(format_args!("HTTP cannot be served: {error}"), None),
    };
    let gateways = shared.map(|shared| shared.join(core.hub().first())).transpose();
    let gateways = match gateways {
        Ok(gateways) => gateways,
        Err(error) => return failed(format_args!("the group cannot be joined: {error}"), help_for(&error)),
    };
    sandbox.close(&running.config);
    tracing::info!(walls = sandbox.walls().join(", "), "sandbox");
    let daemon = Daemon::new(core.handle(), server.clone(), files, sandbox, running);
    gateways.into_iter().for_each(|gateways| daemon.set_gateways(gateways));
    let http = http.map(|http| http.serve(&daemon));
    let control = socket.map(|socket| {
        tracing::info!(path = %socket.path().display(), "managed by");
        ControlServer::start(socket, daemon.clone())
    });
    let control = match control.transpose() {
        Ok(control) => control,
        Err(error) => return failed(format_args!("the control socket cannot be served: {error}"), None),
    };
    let naming = match isns.map(|isns| naming::Agent::start(isns, server.clone())).transpose() {
        Ok(naming) => naming,
        Err(error) => return failed(format_args!("iSNS has no thread: {error}"), None),
    };
    let portmapper = rpcbind.map(|socket| rpcbind::Agent::start(socket, daemon.clone())).transpose();
    let portmapper = match portmapper {
        Ok(portmapper) => portmapper,
        Err(error) => return failed(format_args!("rpcbind has no thread: {error}"), None),
    };
    let listening = daemon.core.listening_sockets();
    supervisor.let_go(inherited, &listening);
    supervisor.keep(&listening);
    drop(listening);
    supervisor.tell("READY=1");
    let watchdog = supervisor.watchdog(core.handle());
    let signal = loop {
        match ring.block_on(signals.next()) {
            Ok(Signal::Hangup) if args.config.is_some() => reload(&daemon, args.clone()),
            Ok(signal) => break signal,
            Err(error) => {
                tracing::error!(%error, "signals cannot be received any more; ending");
                break Signal::Terminate;
            }
        }
    };
    // A server that ends may wait for its media, so the watchdog no longer applies.
    drop(watchdog);
    // After a takeover the service continues in the other process. The manager would believe this
    // one's STOPPING=1 too.
    if !daemon.is_replaced() {
        supervisor.tell("STOPPING=1");
    }
    drop(control);
    // It keeps the registrations if another daemon has taken over.
    drop(portmapper);
    drop(http);
    // Deregisters the targets before they are gone.
    match daemon.is_replaced() {
        // The other daemon owns the registrations now.
        true => std::mem::forget(naming),
        false => drop(naming),
    }
    // While others take the units, initiators' commands go to them.
    daemon.gateways().into_iter().for_each(Gateway::leave);
    tracing::info!(?signal, sessions = server.sessions().len(), "ending");
    let stopped = core.stop(GRACE);
    drop(daemon);
    if !ceph::wait_until_closed(GRACE) {
        tracing::warn!("connections to the cluster are still open");
    }
    match stopped {
        Ok(()) => Exit::Done,
        Err(error) => {
            say!("stag: {error}");
            Exit::Failed
        }
    }
}

/// Has the server recognize the owners of registrations that a daemon before this one kept.
fn recognize_principals(config: &Config) {
    if let Some(users) = config.gateways.as_ref().and_then(|group| group.users.as_ref()) {
        return iscsi_server::recognize_principals_by(users.users_key());
    }
    let key = state::path("iscsi", "principal-key").and_then(|file| {
        key::kept(&file, "owners of registrations", "and the first user who claims a registration gets it")
    });
    match key {
        Ok(key) => iscsi_server::recognize_principals_by(key),
        // A daemon without users has no owners to recognize.
        Err(error) if config.targets.iter().any(|target| target.auth != Auth::None) => {
            tracing::warn!(%error, "owners of persistent reservations are forgotten when this daemon ends");
        }
        Err(error) => tracing::debug!(%error, "owners of persistent reservations would not be kept"),
    }
}

/// Directories that this process itself writes to: those of its control socket and its state.
fn own_directories(socket: Option<&ControlSocket>) -> Vec<PathBuf> {
    let of = |socket: &ControlSocket| socket.path().parent().map(Path::to_owned);
    socket.and_then(of).into_iter().chain(state::made()).collect()
}

/// Directories that this process itself reads again: those of its configuration and of the service
/// manager's credentials.
fn own_files(args: &Serve) -> Vec<PathBuf> {
    let beside = |file: &PathBuf| file.canonicalize().ok()?.parent().map(Path::to_owned);
    args.config.iter().filter_map(beside).chain(credentials::known()).collect()
}

/// `config` with the managed document, if it is to be served.
fn with_managed(args: &Serve, config: Config) -> Result<(Config, Parts), Exit> {
    let name = name(args);
    if !config.daemon.managed {
        return Ok((config, Parts::first(name, None)));
    }
    let path = managed::path().map_err(|error| failed(error, None))?;
    let joined =
        Document::read(&path).and_then(|mut document| Ok((document.join_at_start(config, &name)?, document)));
    match joined {
        Ok((config, document)) => {
            document.not_served().for_each(|what| tracing::error!("{what}"));
            Ok((config, Parts::first(name, Some(document))))
        }
        Err(error) => {
            say!("{:?}", miette::Report::new(error));
            Err(Exit::Config)
        }
    }
}

/// The name of the administrator's configuration, for messages.
fn name(args: &Serve) -> String {
    args.config.as_ref().map_or_else(|| "the command line".to_owned(), |file| file.display().to_string())
}

/// Reads the configuration again, as at the start, and applies it.
fn reload(daemon: &Daemon, args: Serve) {
    let asked = control::server::recorded(daemon, "unknown", "SIGHUP", apply::VERB);
    let name = name(&args);
    // The mistakes have been shown.
    let config = joined(args).map_err(|_| Fault::new(Kind::Config, "the configuration has mistakes"));
    let answer = config.and_then(|config| {
        let change = Change::File(Box::new(config), name);
        let outcome = apply::apply(daemon, change, How::default(), &mut |_| ())?;
        outcome.plan.text().lines().for_each(|line| tracing::info!("{line}"));
        json(&outcome)
    });
    if let Err(error) = &answer {
        tracing::error!(%error, "the configuration stays as it was");
    }
    if let Some(asked) = asked {
        control::server::recorded_end(daemon, &asked, &answer);
    }
}

/// After an upgrade from a version with another default target name, keeps the old name.
fn keep_old_name(config: &mut Config) {
    let usual = iqn::default_target();
    if let Some(target) = config.targets.iter_mut().find(|target| target.iqn == usual) {
        tracing::warn!(
            from = usual,
            to = iqn::OLD_DEFAULT_TARGET,
            "the target keeps its name: write --iqn to choose one"
        );
        target.iqn = iqn::OLD_DEFAULT_TARGET.into();
    }
}

/// Asks the running daemon for its place, if that is wanted and there is one.
fn take_over(args: &Serve) -> Result<Option<Taken>, Exit> {
    if !args.takeover {
        return Ok(None);
    }
    let path = match &args.control {
        Some(Place::Nowhere) => {
            say!("stag: --takeover needs the running daemon's control socket: name it with --control PATH");
            return Err(Exit::Usage);
        }
        place => place.as_ref().and_then(Place::path),
    };
    match Taken::ask(path, args.lose_memory_units) {
        Ok(taken) => Ok(Some(taken)),
        Err(CallError::Unreachable { path, source })
            if matches!(source.kind(), io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused) =>
        {
            tracing::info!(path = %path.display(), "there is no daemon to take over from");
            Ok(None)
        }
        // It ended before it gave anything away.
        Err(CallError::Lost(error)) => {
            tracing::warn!(%error, "the running daemon went away instead of handing over: starting without it");
            Ok(None)
        }
        Err(error) => {
            say!("stag: {error}");
            Err(Exit::Startup)
        }
    }
}

/// Creates the control socket. At the usual path, a conflict with another daemon is only a warning.
fn control_socket(place: &Place) -> Result<Option<ControlSocket>, SocketError> {
    match place {
        Place::Nowhere => Ok(None),
        Place::At(path) => ControlSocket::bind(path).map(Some),
        Place::Usual => Ok(ControlSocket::bind_usual()
            .inspect_err(|error| {
                let remedy = match error {
                    SocketError::Place(PlaceError::Untrusted { .. }) => REMEDY,
                    _ => "give it a place of its own with --control PATH",
                };
                tracing::warn!(%error, remedy, "this daemon cannot be managed");
            })
            .ok()),
    }
}

/// Starts the server. Retries an address in use for a short time: after a process was killed, the
/// kernel closes its listening socket a little later.
fn start(
    cores: CoresConfig,
    config: ServerConfig,
    (nfs, nfs_clients): (NfsConfig, &[u8]),
    sockets: &[(SocketAddr, OwnedFd)],
) -> io::Result<(Server, iscsi_server::Handle, nfs_server::Handle)> {
    let deadline = Instant::now() + ADDRESS_PATIENCE;
    loop {
        let sockets: io::Result<Vec<_>> =
            sockets.iter().map(|(asked, socket)| Ok((*asked, socket.try_clone()?))).collect();
        let begun = Server::start(cores, sockets?).and_then(|core| {
            let mut change = core.change();
            let iscsi = iscsi_server::prepare(&core, &mut change, config.clone())?;
            let nfs = nfs_server::prepare(&core, &mut change, nfs.clone(), nfs_clients)?;
            change.commit();
            core.hub().drop_inherited();
            Ok((core, iscsi, nfs))
        });
        match begun {
            Err(error) if error.kind() == io::ErrorKind::AddrInUse && Instant::now() < deadline => {
                std::thread::sleep(Duration::from_millis(50));
            }
            other => return other,
        }
    }
}

/// The configuration, combined from the command line and the file.
fn joined(args: Serve) -> Result<Config, Exit> {
    if args.units.is_empty()
        && args.export.is_empty()
        && args.config.is_none()
        && args.control == Some(Place::Nowhere)
    {
        say!(
            "stag: nothing is served, and nobody could change that: name a PATH, --export NAME=PATH or --config FILE, or leave --control none out"
        );
        return Err(Exit::Usage);
    }
    let mut config = match &args.config {
        None => Config::default(),
        Some(file) => config::load_or_show(file, true)?,
    };
    if !args.units.is_empty() {
        let iqn = args.iqn.unwrap_or_else(iqn::default_target);
        if config.targets.iter().any(|target| target.iqn.eq_ignore_ascii_case(&iqn)) {
            say!("stag: the configuration has a target {iqn} already: give the PATHs another --iqn");
            return Err(Exit::Usage);
        }
        let units = args.units.into_iter().zip(0..).map(|(spec, lun)| Lun { lun, spec }).collect();
        config.targets.push(Target { iqn, units, ..Target::default() });
    }
    for given in args.export {
        if config.exports.iter().any(|export| export.name == given.name) {
            say!("stag: {} is exported twice: leave one of them out", given.name);
            return Err(Exit::Usage);
        }
        config.exports.push(Export { name: given.name, shown: given.shown, ..Export::default() });
    }
    if !args.nfs.is_empty() {
        config.nfs.listen = args.nfs;
    }
    if let Some(listen) = args.http {
        let http = Http { listen, ..config.http.take().unwrap_or_default() };
        if http.is_exposed() {
            say!(
                "stag: tokens would cross the network in the clear at {listen}: add certificate and key to \
                  [http], listen on the loopback, or add insecure = true"
            );
            return Err(Exit::Usage);
        }
        config.http = Some(http);
    }
    if !args.nfs_verbs.is_empty() {
        config.nfs.verbs = args.nfs_verbs;
    }
    if let Some(mistake) = config.group_mistakes().into_iter().chain(config.too_many_stages()).next() {
        say!("stag: {mistake}");
        return Err(Exit::Usage);
    }
    // If only files are exported, no iSCSI portal is needed.
    let disks = !config.targets.is_empty() || config.exports.is_empty() || config.daemon.managed;
    let listen: Vec<SocketAddr> =
        if disks && args.listen.is_empty() && args.verbs.is_empty() && config.portals.is_empty() {
            vec![SocketAddr::new(Ipv4Addr::LOCALHOST.into(), ISCSI_PORT)]
        } else {
            args.listen
        };
    let group = config.portal_group();
    if !listen.is_empty() {
        config.portals =
            listen.into_iter().map(|listen| Portal { listen, group, transports: Transports::All }).collect();
    }
    for (at, portal) in config.portals.iter().enumerate() {
        if let Some(other) = config.portals[..at].iter().find(|other| other.excludes(portal)) {
            say!(
                "stag: {} and {} cannot both be listened on: leave one of them out",
                other.listen,
                portal.listen
            );
            return Err(Exit::Usage);
        }
    }
    config.portals.extend(args.verbs.into_iter().map(|listen| Portal {
        listen,
        group,
        transports: Transports::Verbs,
    }));
    let daemon = &mut config.daemon;
    daemon.cores = args.cores.unwrap_or(daemon.cores);
    daemon.spin_us = args.spin.unwrap_or(daemon.spin_us);
    daemon.zero_copy &= !args.no_zero_copy;
    daemon.sandbox &= !args.no_sandbox;
    if args.no_iser {
        config.portals.retain(|portal| portal.transports != Transports::Verbs);
        config.portals.iter_mut().for_each(|portal| portal.transports = Transports::Tcp);
    }
    config.iser.crc = args.iser_crc.unwrap_or(config.iser.crc);
    Ok(config)
}

/// An address for clients on this machine: the loopback address for a wildcard.
fn reachable(address: SocketAddr) -> SocketAddr {
    let ip = match address.ip() {
        IpAddr::V4(ip) if ip.is_unspecified() => Ipv4Addr::LOCALHOST.into(),
        IpAddr::V6(ip) if ip.is_unspecified() => Ipv6Addr::LOCALHOST.into(),
        ip => ip,
    };
    SocketAddr::new(ip, address.port())
}

fn failed(error: impl std::fmt::Display, help: Option<&str>) -> Exit {
    say!("stag: {error}");
    if let Some(help) = help {
        say!("      {help}");
    }
    Exit::Startup
}

/// Advice about a system error at the start.
pub fn help_for(error: &io::Error) -> Option<&'static str> {
    match error.kind() {
        // Its message has advice already.
        _ if runtime::NoRing::is(error) => None,
        io::ErrorKind::AddrInUse => {
            Some("another server listens there: end it, or choose another address with --listen")
        }
        io::ErrorKind::AddrNotAvailable => {
            Some("no interface of this machine has that address: see `ip address`")
        }
        io::ErrorKind::PermissionDenied => Some(
            "ports below 1024 need root or the capability CAP_NET_BIND_SERVICE: choose another with --listen",
        ),
        _ => None,
    }
}

/// Advice about an error of the HTTP address.
fn help_for_http(error: &io::Error) -> Option<&'static str> {
    match error.kind() {
        io::ErrorKind::AddrInUse => {
            Some("another program listens there: choose another address with --http or listen of [http]")
        }
        io::ErrorKind::Unsupported => {
            Some("leave --http and [http] out, or build it with its default features")
        }
        _ => help_for(error),
    }
}

/// Every connection is a descriptor: takes as many as the system grants.
fn raise_descriptor_limit() {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let limit = getrlimit(Resource::Nofile);
    if setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, maximum: limit.maximum }).is_err() {
        tracing::debug!("the limit of open files stays as it is");
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;
    use crate::args::{Cli, Command};

    fn args(words: &[&str]) -> Serve {
        match Cli::parse_from(["stag", "serve"].iter().chain(words)).command {
            Command::Serve(serve) => serve,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn paths_are_numbered_in_their_order_and_served_on_the_loopback() {
        let config = joined(args(&["mem:1M", "mem:2M"])).unwrap();
        assert_eq!(
            config.portals,
            [Portal { listen: "127.0.0.1:3260".parse().unwrap(), group: 1, transports: Transports::All }]
        );
        let target = &config.targets[0];
        assert_eq!(target.iqn, iqn::default_target());
        assert_eq!(target.units.iter().map(|unit| unit.lun).collect::<Vec<_>>(), [0, 1]);
    }

    #[test]
    fn the_command_line_goes_before_the_file() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("stag.toml");
        let text = "cores = 3\n[[portal]]\nlisten = \"192.0.2.1\"\n[[target]]\niqn = \"iqn.2026-01.org.example:t\"\n\
                    [[target.unit]]\nlun = 7\npath = \"mem:1M\"\n";
        std::fs::write(&file, text).unwrap();
        let file = file.to_str().unwrap();
        let config = joined(args(&["--config", file])).unwrap();
        assert_eq!((config.daemon.cores, config.portals[0].listen.port()), (3, 3260));
        let config =
            joined(args(&["--config", file, "--listen", "[::1]:0", "--cores", "1", "mem:1M"])).unwrap();
        assert_eq!((config.daemon.cores, config.portals.len(), config.targets.len()), (1, 1, 2));
        assert!(config.portals[0].listen.is_ipv6());
        assert_eq!(config.portals[0].transports, Transports::All);
        let config = joined(args(&["--config", file, "--no-iser", "--iser-crc", "require"])).unwrap();
        assert_eq!(config.portals[0].transports, Transports::Tcp);
        assert_eq!(config.iser.crc, crate::config::Crc::Require);
        let taken = args(&["--config", file, "--iqn", "iqn.2026-01.org.example:T", "mem:1M"]);
        assert_eq!(joined(taken), Err(Exit::Usage));
    }

    #[test]
    fn a_wildcard_is_shown_as_an_address_to_connect_to() {
        let shown = |address: &str| reachable(address.parse().unwrap()).to_string();
        assert_eq!(shown("0.0.0.0:1"), "127.0.0.1:1");
        assert_eq!(shown("[::]:1"), "[::1]:1");
        assert_eq!(shown("192.0.2.1:1"), "192.0.2.1:1");
    }
}
