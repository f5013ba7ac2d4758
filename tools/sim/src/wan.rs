//! One session on a path with a rate: the part of the path that it fills, in simulated time, and
//! its own changes for that. Nothing fails here; every command must end with GOOD.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use backing::model::ModelStore;
use disk::unit::{DiskOptions, DiskUnit, Registry};
use iscsi_client::tune::Tune;
use iscsi_client::{Command, Error, Lun, Options, Session, Url};
use iscsi_server::config::{Limits, LunConfig};
use iscsi_server::{Server, Unit};
use runtime::sim::{self, Network};
use scsi::SenseKey;
use scsi::cdb::build::{self, Flags};

use crate::daemon::{self, NAME};
use crate::plan::Plan;

/// Bytes of the unit, and of its blocks.
const UNIT: (usize, u32) = (8 << 20, 4096);
/// Virtual time within which a run must end.
const TIME_LIMIT: Duration = Duration::from_secs(600);

/// The path between server and client.
#[derive(Clone, Copy, Debug)]
pub struct Path {
    /// Bytes a second in each direction, of all connections together.
    pub rate: u64,
    /// Round trip.
    pub rtt: Duration,
    /// Most bytes in flight of one connection in a direction.
    pub window: usize,
}

/// The commands of a session.
#[derive(Clone, Copy, Debug)]
pub struct Work {
    /// It writes; else it reads.
    pub write: bool,
    /// Bytes of a command.
    pub io: u32,
    /// Commands that its user has outstanding.
    pub depth: usize,
    /// The client demands R2Ts for all data (InitialR2T=Yes, ImmediateData=No).
    pub initial_r2t: bool,
    /// Most commands outstanding; `None`: the session tunes itself.
    pub limit: Option<usize>,
    /// Simulated time.
    pub time: Duration,
}

/// Result of a session.
#[derive(Clone, Debug, PartialEq)]
pub struct Outcome {
    /// Bytes a second over the second half of the time.
    pub rate: f64,
    /// Its limit of outstanding commands at the end.
    pub commands: usize,
    /// Connections at the end.
    pub connections: usize,
    /// Decisions that changed something.
    pub changes: u64,
    /// Changes that were reverted.
    pub reverted: u64,
    /// Commands that ended.
    pub ended: u64,
}

/// Runs the session.
///
/// # Errors
/// A command or a login failed.
pub fn run(path: Path, work: Work, seed: u64) -> Result<Outcome, String> {
    let network = Network {
        latency: path.rtt / 2,
        jitter: Duration::ZERO,
        rate: path.rate,
        window: path.window,
        segment: 9000,
        ..Network::default()
    };
    let config = sim::Config { network, time_limit: TIME_LIMIT, ..sim::Config::new(seed) };
    sim::run(config, move || whole(work)).output
}

async fn whole(work: Work) -> Result<Outcome, String> {
    let mut settings = Plan::new(0).target;
    (settings.iser, settings.chap) = (None, None);
    let mut config = daemon::config(&settings);
    config.limits = Limits { connections_per_session: 4, ..Limits::default() };
    let store = Arc::new(ModelStore::new(UNIT.0, 512));
    let options = DiskOptions { block_size: UNIT.1, ..DiskOptions::default() };
    let unit = DiskUnit::new(store, options, &Registry::new()).map_err(|error| format!("{error:?}"))?;
    config.targets[0].units =
        vec![LunConfig { lun: 0, unit: Unit::Disk(unit), limiter: Arc::default(), stages: false }];
    let server = Server::start(daemon::cores(1), config).map_err(|error| error.to_string())?;
    let url = Url::portal("10.0.0.200", 3260).with_unit(NAME, 0);
    let options = Options {
        queue_depth: work.limit.unwrap_or(work.depth),
        initial_r2t: work.initial_r2t,
        immediate_data: !work.initial_r2t,
        tune: if work.limit.is_some() { Tune::Off } else { Tune::Auto },
        ..Options::default()
    };
    let session = Session::connect(&url, options).await.map_err(|error| error.to_string())?;
    let (begun, bytes) = (runtime::clock(), Rc::new(Cell::new(0)));
    let wrong = Rc::new(RefCell::new(None));
    let users: Vec<_> = (0..work.depth)
        .map(|user| {
            let (session, bytes, wrong) = (session.clone(), bytes.clone(), wrong.clone());
            runtime::spawn(async move {
                while runtime::clock() - begun < work.time && wrong.borrow().is_none() {
                    match one(&session, work, user).await {
                        Ok(()) => bytes.set(bytes.get() + u64::from(work.io)),
                        Err(error) => drop(wrong.borrow_mut().replace(error)),
                    }
                }
            })
        })
        .collect();
    runtime::sleep(work.time / 2).await;
    let half = bytes.get();
    runtime::sleep(work.time / 2).await;
    let (all, tuning) = (bytes.get(), session.tuning());
    let connections = session.connections();
    for user in users {
        user.await.map_err(|error| format!("{error:?}"))?;
    }
    drop(session.close().await);
    sim::aside(move || drop(server)).await;
    if let Some(error) = wrong.borrow_mut().take() {
        return Err(error.to_string());
    }
    Ok(Outcome {
        rate: (all - half) as f64 / (work.time / 2).as_secs_f64(),
        commands: tuning.as_ref().map_or(work.limit.unwrap_or(0), |tuning| tuning.commands),
        connections,
        changes: tuning.as_ref().map_or(0, |tuning| tuning.changes),
        reverted: tuning.as_ref().map_or(0, |tuning| tuning.reverted),
        ended: all / u64::from(work.io),
    })
}

/// Runs one command, until it is answered with something other than a unit attention.
async fn one(session: &Session, work: Work, user: usize) -> Result<(), Error> {
    let blocks = work.io / UNIT.1;
    let lba = (user * work.io as usize % UNIT.0) as u64 / u64::from(UNIT.1);
    loop {
        let command = match work.write {
            true => Command::new(Lun::ZERO, &build::write(lba, blocks, Flags::default()))
                .writing(runtime::Buf::from(vec![0xa5; work.io as usize])),
            false => Command::new(Lun::ZERO, &build::read(lba, blocks, Flags::default())).reading(work.io),
        };
        match session.execute(command).await.and_then(iscsi_client::Response::ok) {
            Ok(_) => return Ok(()),
            Err(Error::Scsi(scsi))
                if scsi.sense.as_ref().is_some_and(|sense| sense.key == SenseKey::UnitAttention) => {}
            Err(error) => return Err(error),
        }
    }
}
