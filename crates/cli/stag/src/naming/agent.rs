//! Keeps a server's iSNS registration up to date. It registers at the start, refreshes the
//! registration before it expires, updates it after changes, and deregisters at the end. If the
//! server is down, it retries with growing intervals.

use std::io::{self, Read, Write};
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use isns::Status;
use isns::registration::{self, Entity};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::inquiries::Inquiries;
use super::link::{Link, LinkError, reachable};
use crate::config::Isns as Config;

/// The shortest and the longest time between attempts to reach a server.
const RETRIES: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(60));
/// Interval at which the agent checks for changes.
const LOOK: Duration = Duration::from_secs(5);

/// The agent's thread. On drop it deregisters, if the server answers, and ends.
pub struct Agent {
    wake: UnixStream,
    ending: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Agent {
    /// Registers what `server` serves, from now on.
    ///
    /// # Errors
    /// No thread can be started.
    pub fn start(config: Config, server: iscsi_server::Handle) -> io::Result<Self> {
        let (wake, woken) = UnixStream::pair()?;
        woken.set_nonblocking(true)?;
        wake.set_nonblocking(true)?;
        let ending = Arc::new(AtomicBool::new(false));
        let theirs = ending.clone();
        let work = move || Work::new(config, server, woken, theirs).run();
        let thread = Some(std::thread::Builder::new().name("isns".into()).spawn(work)?);
        Ok(Self { wake, ending, thread })
    }

    /// The set of targets has changed: check at once.
    pub fn changed(&self) {
        // A full pipe holds a wake-up already.
        let _ = (&self.wake).write(&[0]);
    }
}

impl Drop for Agent {
    fn drop(&mut self) {
        self.ending.store(true, Ordering::Release);
        self.changed();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

struct Work {
    config: Config,
    id: String,
    server: iscsi_server::Handle,
    woken: UnixStream,
    ending: Arc<AtomicBool>,
    inquiries: Option<Inquiries>,
    /// The registrations at the iSNS server.
    registered: Option<Entity>,
    /// The server's own portals when that was registered.
    portals: Vec<iscsi_server::BoundPortal>,
    refresh_at: Instant,
    /// Time of the next attempt, and the pause after the next failure.
    retry: (Instant, Duration),
}

impl Work {
    fn new(config: Config, server: iscsi_server::Handle, woken: UnixStream, ending: Arc<AtomicBool>) -> Self {
        let host = || {
            let name = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
            Some(name.trim().to_owned()).filter(|name| !name.is_empty()).unwrap_or_else(|| "stag".to_owned())
        };
        let id = config.entity.clone().unwrap_or_else(host);
        let now = Instant::now();
        Self {
            config,
            id,
            server,
            woken,
            ending,
            inquiries: None,
            registered: None,
            portals: Vec::new(),
            refresh_at: now,
            retry: (now, RETRIES.0),
        }
    }

    fn run(mut self) {
        while !self.ending.load(Ordering::Acquire) {
            if Instant::now() >= self.retry.0 {
                self.attempt();
            }
            self.wait(LOOK);
            if let Some(inquiries) = &mut self.inquiries {
                inquiries.serve();
            }
        }
        if let Some(entity) = self.registered.take() {
            self.leave(&entity);
        }
    }

    /// Waits for `most`, a wake-up, or an inquiry.
    fn wait(&mut self, most: Duration) {
        let wanted = [Some(self.refresh_at), Some(self.retry.0)].into_iter().flatten();
        let now = Instant::now();
        let soonest = wanted.filter(|at| *at > now).map(|at| at - now).min().unwrap_or(most).min(most);
        let mut descriptors = vec![PollFd::from_borrowed_fd(self.woken.as_fd(), PollFlags::IN)];
        for fd in self.inquiries.iter().flat_map(Inquiries::descriptors) {
            descriptors.push(PollFd::from_borrowed_fd(fd, PollFlags::IN));
        }
        let limit = Timespec { tv_sec: soonest.as_secs() as i64, tv_nsec: i64::from(soonest.subsec_nanos()) };
        if let Err(error) = poll(&mut descriptors, Some(&limit)) {
            tracing::debug!(%error, "poll");
        }
        let mut drain = [0; 64];
        while matches!((&self.woken).read(&mut drain), Ok(len) if len > 0) {}
    }

    /// Updates the registration if needed, and counts a failure.
    fn attempt(&mut self) {
        match self.update() {
            Ok(()) => self.retry = (Instant::now(), RETRIES.0),
            Err(error) => {
                let pause = self.retry.1;
                tracing::warn!(server = self.config.server, %error, retry_s = pause.as_secs(), "iSNS");
                self.retry = (Instant::now() + pause, (pause * 2).min(RETRIES.1));
            }
        }
    }

    fn update(&mut self) -> Result<(), LinkError> {
        let now = Instant::now();
        match self.registered.clone() {
            Some(known) => {
                let wanted = self.entity(known.inquiries, |portal| known_as(&known, portal));
                if self.server.portals() != self.portals || wanted.source().is_none() {
                    // Portals have changed, or no registered name is left to act as source:
                    // register anew.
                    self.leave(&known);
                    self.register()
                } else if wanted != known {
                    match self.change(&known, wanted) {
                        Err(LinkError::Refused(_)) => self.register_anew(),
                        changed => changed,
                    }
                } else if now >= self.refresh_at {
                    self.refresh(&known)
                } else {
                    Ok(())
                }
            }
            None => self.register(),
        }
    }

    /// The targets served, with portals under the addresses that `seen` gives them.
    fn entity(
        &self,
        inquiries: Option<registration::Inquiries>,
        seen: impl Fn(iscsi_server::BoundPortal) -> Option<registration::Portal>,
    ) -> Entity {
        let portals = self.server.portals();
        let mut groups: Vec<u16> = portals.iter().map(|portal| portal.group).collect();
        groups.sort_unstable();
        groups.dedup();
        let target = |target: iscsi_server::TargetStatus| registration::Target {
            name: target.name,
            alias: target.alias,
            groups: if target.groups.is_empty() { groups.clone() } else { target.groups },
        };
        Entity {
            id: self.id.clone(),
            period_s: self.config.period_s,
            portals: portals.into_iter().filter_map(seen).collect(),
            targets: self.server.targets().into_iter().map(target).collect(),
            inquiries,
        }
    }

    fn register(&mut self) -> Result<(), LinkError> {
        if self.server.targets().is_empty() {
            return Ok(());
        }
        let mut link = Link::connect(&self.config.server)?;
        let local = link.local()?;
        let interval_s = self.config.esi_interval_s;
        // After a change of this machine's addresses the server asks at the new one.
        let listens = self.inquiries.as_ref().is_some_and(|inquiries| inquiries.is_at(local));
        if interval_s > 0 && !listens {
            self.inquiries = Some(Inquiries::listen(local)?);
        }
        let port = self.inquiries.as_ref().map(|inquiries| inquiries.address()).transpose()?;
        let inquiries = port.map(|at| registration::Inquiries { at: local, port: at.port(), interval_s });
        let entity = self.entity(inquiries, |portal| {
            let address = reachable(portal.address, local)?;
            Some(registration::Portal { address, group: portal.group })
        });
        let answer = link.ask(|number| entity.register(number))?;
        tracing::info!(
            server = self.config.server,
            entity = entity.id,
            targets = entity.targets.len(),
            portals = entity.portals.len(),
            "registered with iSNS"
        );
        self.holds(&answer, &entity);
        if entity.inquiries.is_some()
            && let Err(error) = link.ask(|number| entity.watch(number))
        {
            tracing::debug!(%error, "no notices of changes");
        }
        self.registered = Some(entity);
        self.portals = self.server.portals();
        Ok(())
    }

    fn leave(&mut self, entity: &Entity) {
        self.registered = None;
        let bye = Link::connect(&self.config.server)
            .and_then(|mut link| link.ask(|number| entity.deregister(number)));
        match bye {
            Ok(_) => tracing::info!(server = self.config.server, "deregistered with iSNS"),
            Err(error) => tracing::warn!(server = self.config.server, %error, "not deregistered with iSNS"),
        }
    }

    /// Registers new targets, and deregisters removed ones.
    fn change(&mut self, known: &Entity, wanted: Entity) -> Result<(), LinkError> {
        let mut link = Link::connect(&self.config.server)?;
        // A name that stays registered is the source of the following messages.
        let source = |name: &str| {
            let mut targets = wanted.targets.clone();
            targets.retain(|target| target.name == name);
            Entity { targets, ..wanted.clone() }
        };
        for target in &wanted.targets {
            if !known.targets.contains(target) {
                let by = known.targets.first().map_or_else(
                    || wanted.clone(),
                    |first| Entity { targets: vec![first.clone()], ..wanted.clone() },
                );
                link.ask(|number| by.register_target(target, number))?;
                tracing::info!(target = target.name, "registered with iSNS");
            }
        }
        for target in &known.targets {
            if !wanted.targets.iter().any(|other| other.name == target.name) {
                let stays = wanted.targets.first().map_or(target.name.as_str(), |first| first.name.as_str());
                let gone = link.ask(|number| source(stays).deregister_target(&target.name, number));
                match gone {
                    Err(LinkError::Refused(status)) if status == Status::NoSuchEntry.code() => {}
                    other => drop(other?),
                }
                tracing::info!(target = target.name, "deregistered with iSNS");
            }
        }
        self.registered = Some(wanted);
        Ok(())
    }

    /// Renews the registration; registers anew if the server has forgotten it.
    fn refresh(&mut self, known: &Entity) -> Result<(), LinkError> {
        let answer = Link::connect(&self.config.server)?.ask(|number| known.refresh(number));
        match answer {
            Ok(answer) if registration::period(&answer).is_some() => {
                self.holds(&answer, known);
                Ok(())
            }
            Ok(_) | Err(LinkError::Refused(_)) => self.register_anew(),
            Err(error) => Err(error),
        }
    }

    /// Registers all of it: the server does not know the registration any more.
    fn register_anew(&mut self) -> Result<(), LinkError> {
        tracing::info!(server = self.config.server, "the iSNS server has forgotten us");
        self.registered = None;
        self.register()
    }

    /// Schedules the refresh at half of the registration period.
    fn holds(&mut self, answer: &isns::Message, entity: &Entity) {
        let period = registration::period(answer).filter(|period| *period > 0).unwrap_or(entity.period_s);
        self.refresh_at = Instant::now() + Duration::from_secs(u64::from(period.max(2)) / 2);
    }
}

/// The address under which a portal was registered.
fn known_as(known: &Entity, portal: iscsi_server::BoundPortal) -> Option<registration::Portal> {
    let same = |other: &&registration::Portal| {
        let ip = portal.address.ip();
        let ip_fits = ip.is_unspecified() || ip.to_canonical() == other.address.ip();
        ip_fits && other.address.port() == portal.address.port() && other.group == portal.group
    };
    known.portals.iter().find(same).copied()
}
