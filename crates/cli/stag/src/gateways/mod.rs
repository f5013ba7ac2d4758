//! This daemon as a gateway of a group: several daemons serve the same RBD images, and initiators
//! cannot tell. docs/src/design/gateways.md has the design.
//!
//! - `shared`: the group's units at this gateway.
//! - `host`: the end of the peer link at the owner, on a core of the server.
//! - `own`: a unit's disk, while this gateway owns it.
//! - `driver`: does what the group decides.
//! - `secret`: the lines of the group's secret file.

mod driver;
mod host;
mod own;
pub mod secret;
mod shared;

use std::collections::BTreeMap;
use std::io;
use std::sync::Arc;
use std::sync::mpsc::channel;
use std::time::{Duration, Instant};

use ceph::ImageName;
use ceph::group::{Group, GroupConfig, Report, Status};
use cluster::{GatewayId, Place, Request, Timers, UnitId};
use server_core::Post;

use crate::config::gateways::unit_number;
pub use shared::{Shared, SharedUnit};

/// How long a change of the group is waited for.
const PATIENCE: Duration = Duration::from_secs(30);
/// How long a daemon that ends waits for others to take its units.
const LEAVE: Duration = Duration::from_secs(10);
/// How often it is looked whether the group has done something.
const LOOK: Duration = Duration::from_millis(2);

/// This gateway's part in the group. Dropping it ends its life without leaving.
pub struct Gateways {
    group: Group,
    shared: Arc<Shared>,
}

impl Gateways {
    /// Joins the group. Its units are open; `post` is the core that serves other gateways. Blocks
    /// until that listens.
    ///
    /// # Errors
    /// The peer link's address cannot be listened on, or there is no thread.
    pub fn start(shared: Arc<Shared>, post: Post) -> io::Result<Self> {
        let config = &shared.config;
        let own = config.members.iter().find(|member| member.number == config.number);
        let at = own.ok_or(io::ErrorKind::NotFound)?.link;
        let members = host::Members::default();
        let host = host::HostAt::start(post, &shared, at, members.clone())
            .map_err(|error| io::Error::new(error.kind(), format!("{at}: {error}")))?;
        tracing::info!(address = %at, gateway = config.number, "listening for other gateways");
        let (tell, told) = channel();
        let driver = driver::Driver::new(shared.clone(), host, members, tell.clone());
        std::thread::Builder::new().name("gateways".into()).spawn(move || driver.run(&told))?;
        let images = shared.images().into_iter().map(|(number, name)| (UnitId(number), name));
        let group = GroupConfig {
            login: shared::login(config),
            pool: config.pool.clone(),
            namespace: config.namespace.clone(),
            object: config.object.clone(),
            gateway: GatewayId(config.number),
            secret: config.secrets.keys().next_back().copied().unwrap_or_default(),
            units: images.collect(),
            op_timeout: Duration::from_secs(config.op_timeout_s.into()),
            timers: Timers::default(),
        };
        // The receiver is gone when the daemon ends.
        let report = move |report: Report| drop(tell.send(driver::Told::Group(report)));
        let group = Group::start(group, Box::new(report)).map_err(io::Error::other)?;
        shared.peers.watch_links(Box::new(group.links()));
        Ok(Self { group, shared })
    }

    /// This gateway's number.
    pub fn number(&self) -> u16 {
        self.shared.config.number
    }

    /// The images of the group, by the numbers of their units.
    pub fn images(&self) -> BTreeMap<u32, ImageName> {
        self.shared.images()
    }

    /// How the group is, as this gateway knows it.
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

    /// Moves a unit to another gateway, and waits until that owns it.
    ///
    /// # Errors
    /// The group refuses, or the unit stays where it is.
    pub fn move_unit(&self, image: &ImageName, to: u16) -> Result<(), String> {
        let unit = UnitId(unit_number(image));
        let place = || {
            let view = self.status().view?;
            view.units.iter().find(|(one, _)| *one == unit).map(|(_, place)| *place)
        };
        let there = Some(Place::Owned { by: GatewayId(to) });
        if place() == there {
            return Ok(());
        }
        self.ask(Request::Move(unit, GatewayId(to)))?;
        let deadline = Instant::now() + PATIENCE;
        loop {
            match place() {
                now if now == there => return Ok(()),
                Some(Place::Owned { by }) => {
                    return Err(format!(
                        "it stays at gateway {}: commands in flight have not ended in time",
                        by.0
                    ));
                }
                _ if Instant::now() >= deadline => {
                    return Err(format!("gateway {to} does not own it after {} s", PATIENCE.as_secs()));
                }
                _ => std::thread::sleep(LOOK),
            }
        }
    }

    /// Hands this gateway's units over, and leaves.
    pub fn leave(&self) {
        let deadline = Instant::now() + LEAVE;
        if let Err(error) = self.ask_within(Request::Leave, LEAVE) {
            return tracing::warn!(error, "this gateway has not left the group: others take it out");
        }
        while !self.status().ended {
            if Instant::now() >= deadline {
                return tracing::warn!("this gateway's units were not handed over in time: others take them");
            }
            std::thread::sleep(LOOK);
        }
        tracing::info!("this gateway has left the group");
    }
}
