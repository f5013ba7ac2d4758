//! One gateway of a group: several daemons serve the same RBD images, and initiators cannot tell.
//! docs/src/design/gateways.md has the design.
//!
//! - `units`: the group's units at this gateway.
//! - `host`: the end of the peer link at the owner, on a core of the server.
//! - `driver`: does what the group decides.
//! - `counts`: counts what it has done.
//!
//! `ceph::group` joins the group and decides with it. Neither configuration files nor commands are
//! known here: a daemon and the simulator start the same gateway.
#![forbid(unsafe_code)]
#![allow(missing_docs, reason = "only this workspace uses it: names that say all need no comment")]

mod counts;
mod driver;
mod host;
mod units;

use std::collections::BTreeMap;
use std::io;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use ceph::group::{Group, GroupConfig, Report, Status};
use ceph::{ImageName, Login};
use cluster::{GatewayId, Place, Request, Timers, UnitId};
use peer_link::Secret;
use peer_units::Forwarded;
use runtime::{Sender, channel, clock, nap};
use server_core::Post;

pub use counts::Counts;
pub use units::{Open, Owned, SharedUnit, Units};

/// Timeout for a change of the group.
const PATIENCE: Duration = Duration::from_secs(30);
/// Timeout for handing over all units at the daemon's end.
const LEAVE: Duration = Duration::from_secs(10);
/// Interval between two looks at the group's status.
const LOOK: Duration = Duration::from_millis(2);

/// Configuration of a gateway. Only `number` and `secrets` may differ within a group.
#[derive(Clone)]
pub struct Config {
    /// This gateway, unique in the group.
    pub number: u16,
    /// Addresses of all gateways' peer links.
    pub links: BTreeMap<u16, SocketAddr>,
    /// By their numbers; the greatest is the newest.
    pub secrets: BTreeMap<u32, Secret>,
    pub login: Login,
    /// Pool of the group's object.
    pub pool: String,
    pub namespace: Option<String>,
    /// Name of the group's object.
    pub object: String,
    /// Timeout of an operation on an image.
    pub op_timeout: Duration,
    pub timers: Timers,
}

/// This gateway's part in the group. Dropping it ends its life without leaving.
pub struct Gateway {
    group: Group,
    units: Arc<Units>,
    images: Mutex<BTreeMap<u32, ImageName>>,
    tell: Sender<driver::Told>,
}

impl Gateway {
    /// Joins the group, with all of its `images` by the numbers of their units. Those that are
    /// served here are added to `units`; `post` is the core that serves other gateways. Blocks
    /// until that listens.
    ///
    /// # Errors
    /// The peer link's address cannot be listened on, or there is no thread.
    pub fn start(units: Arc<Units>, images: BTreeMap<u32, ImageName>, post: Post) -> io::Result<Self> {
        let config = units.config.clone();
        let number = config.number;
        let at = *config.links.get(&number).ok_or(io::ErrorKind::NotFound)?;
        let members = host::Members::default();
        let host = host::HostAt::start(post, &units, at, members.clone())
            .map_err(|error| io::Error::new(error.kind(), format!("{at}: {error}")))?;
        tracing::info!(address = %at, gateway = number, "listening for other gateways");
        let (tell, told) = channel();
        let driver = driver::Driver::new(units.clone(), host, members, tell.clone());
        runtime::thread("gateway", move || driver.run(&told))?;
        let named = images.iter().map(|(number, name)| (UnitId(*number), name.clone()));
        let group = GroupConfig {
            login: config.login,
            pool: config.pool,
            namespace: config.namespace,
            object: config.object,
            gateway: GatewayId(number),
            protocol: peer_link::VERSIONS,
            secret: config.secrets.keys().next_back().copied().unwrap_or_default(),
            units: named.collect(),
            op_timeout: config.op_timeout,
            timers: config.timers,
        };
        // The receiver is gone when the daemon ends.
        let reports = tell.clone();
        let report = move |report: Report| drop(reports.send(driver::Told::Group(report)));
        let group = Group::start(group, Box::new(report)).map_err(io::Error::other)?;
        units.peers.watch_links(Box::new(group.links()));
        Ok(Self { group, units, images: Mutex::new(images), tell })
    }

    /// This gateway's number.
    #[must_use]
    pub fn number(&self) -> u16 {
        self.units.config.number
    }

    /// The numbers of all gateways of the configuration.
    pub fn configured(&self) -> impl Iterator<Item = u16> + '_ {
        self.units.config.links.keys().copied()
    }

    /// What has happened in the group to this gateway's units.
    #[must_use]
    pub fn counts(&self) -> Counts {
        self.units.counts()
    }

    /// What this gateway has forwarded to owners of units.
    #[must_use]
    pub fn forwarded(&self) -> Forwarded {
        self.units.peers.forwarded()
    }

    /// The instances to which this gateway forwards commands, and whether its links to each are up.
    #[must_use]
    pub fn links(&self) -> BTreeMap<u64, bool> {
        self.units.peers.links()
    }

    /// The images of the group, by the numbers of their units.
    #[must_use]
    pub fn images(&self) -> BTreeMap<u32, ImageName> {
        self.named().clone()
    }

    fn named(&self) -> MutexGuard<'_, BTreeMap<u32, ImageName>> {
        self.images.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The group serves one more unit, which was added to the units here. This gateway owns it if
    /// no other one does.
    pub fn add(&self, number: u32) {
        let Some(unit) = self.units.unit(number) else { return };
        let name = unit.name.clone();
        self.named().insert(number, name.clone());
        // The receiver is gone when the daemon ends.
        let _ = self.tell.send(driver::Told::Added(unit));
        self.group.add(UnitId(number), name);
    }

    /// The group serves the unit no more, at no gateway.
    pub fn remove(&self, number: u32) {
        self.named().remove(&number);
        self.units.remove(number);
        self.group.remove(UnitId(number));
    }

    /// The group's status, as this gateway knows it.
    #[must_use]
    pub fn status(&self) -> Status {
        self.group.status()
    }

    /// Asks the group for a change, and waits until it has decided.
    ///
    /// # Errors
    /// It was not carried out, or not in time.
    pub fn ask(&self, asked: Request) -> Result<(), String> {
        self.ask_within(asked, PATIENCE)
    }

    fn ask_within(&self, asked: Request, patience: Duration) -> Result<(), String> {
        let (say, hear) = channel();
        self.group.ask(asked, Box::new(move |answer| _ = say.send(answer)));
        match hear.recv_timeout(patience) {
            Ok(answer) => answer.map_err(|error| error.to_string()),
            Err(_) => Err(format!("the group has not answered for {} s", patience.as_secs())),
        }
    }

    /// The moves that a change would begin now: unit, owner and next owner.
    ///
    /// # Errors
    /// The group would refuse it, or this gateway is not in the group.
    pub fn plan(&self, asked: Request) -> Result<Vec<(u32, u16, u16)>, String> {
        let view = self.status().view.ok_or("this gateway is not in the group now")?;
        let moves = view.moves(asked).map_err(|refusal| format!("the group refuses: {refusal}"))?;
        Ok(moves.into_iter().map(|(unit, from, to)| (unit.0, from.0, to.0)).collect())
    }

    /// Moves a unit to another gateway, and waits until that owns it.
    ///
    /// # Errors
    /// The group refuses, or the unit stays where it is.
    pub fn move_unit(&self, unit: u32, to: u16) -> Result<(), String> {
        let unit = UnitId(unit);
        let place = || {
            let view = self.status().view?;
            view.units.iter().find(|(one, _)| *one == unit).map(|(_, place)| *place)
        };
        let there = Some(Place::Owned { by: GatewayId(to) });
        if place() == there {
            return Ok(());
        }
        self.ask(Request::Move(unit, GatewayId(to)))?;
        let deadline = clock() + PATIENCE;
        loop {
            match place() {
                now if now == there => return Ok(()),
                Some(Place::Owned { by }) => {
                    return Err(format!(
                        "it stays at gateway {}: commands in flight have not ended in time",
                        by.0
                    ));
                }
                _ if clock() >= deadline => {
                    return Err(format!("gateway {to} does not own it after {} s", PATIENCE.as_secs()));
                }
                _ => nap(LOOK),
            }
        }
    }

    /// Hands this gateway's units over, and leaves.
    pub fn leave(&self) {
        let deadline = clock() + LEAVE;
        if let Err(error) = self.ask_within(Request::Leave, LEAVE) {
            return tracing::warn!(error, "this gateway has not left the group: others take it out");
        }
        while !self.status().ended {
            if clock() >= deadline {
                return tracing::warn!("this gateway's units were not handed over in time: others take them");
            }
            nap(LOOK);
        }
        tracing::info!("this gateway has left the group");
    }
}
