//! A world in which a LUN's disk is replaced while commands wait: none of them may reach the new
//! disk.
//!
//! The network is fast and nothing fails. So the submission time of a command tells whether the
//! server received it before the change began or after it ended.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use backing::faulty::{Action, Faults, FaultyStore, Operations, Rule};
use backing::model::ModelStore;
use backing::{BlockStore, Extent, Geometry, Io};
use disk::unit::{DiskOptions, DiskUnit, Registry};
use iscsi_client::{Command, Lun, Options, Session, TaskAttribute};
use iscsi_server::config::{LunConfig, ServerConfig};
use iscsi_server::{Server, Unit};
use runtime::{Chain, sim};
use scsi::cdb::build::{Flags, write10};

use crate::daemon::{self, NAME};

use crate::plan::Plan;
use crate::random::Rng;
use crate::run::{Failure, Report, in_world};

/// Blocks of each disk, of 512 bytes.
const BLOCKS: usize = 256;
/// The server has received a command this long after its submission.
const ARRIVED: Duration = Duration::from_millis(5);

/// One write: its submission time, and whether it ended with GOOD.
struct Write {
    submitted: Instant,
    good: bool,
}

/// Runs a seed. The report's commands are writes that ended with GOOD.
///
/// # Errors
/// The rule that was broken, and how.
pub fn run(seed: u64, _loud: bool) -> Result<Report, Box<Failure>> {
    in_world("--replacement", seed, sim::Config::new(seed), move || whole(seed, false))
}

/// Runs a seed in which the server does not notice the replacement: commands that wait continue on
/// the new disk. A fault that must be found.
///
/// # Errors
/// The rule that was broken, and how.
pub fn run_unnoticed(seed: u64) -> Result<Report, Box<Failure>> {
    in_world("--replacement", seed, sim::Config::new(seed), move || whole(seed, true))
}

/// The first disk until it is replaced, and the second from then on.
struct Either {
    models: [ModelStore; 2],
    replaced: AtomicBool,
}

impl Either {
    fn now(&self) -> &ModelStore {
        &self.models[usize::from(self.replaced.load(Ordering::SeqCst))]
    }
}

impl BlockStore for Either {
    fn size(&self) -> u64 {
        self.now().size()
    }
    fn geometry(&self) -> Geometry {
        self.now().geometry()
    }
    fn writable(&self) -> bool {
        true
    }
    fn thin(&self) -> bool {
        self.now().thin()
    }
    fn read(&self, at: u64, len: usize) -> Io<Chain> {
        self.now().read(at, len)
    }
    fn write(&self, at: u64, data: Chain, durable: bool) -> Io<()> {
        self.now().write(at, data, durable)
    }
    fn sync(&self) -> Io<()> {
        self.now().sync()
    }
    fn discard(&self, at: u64, len: u64) -> Io<()> {
        self.now().discard(at, len)
    }
    fn write_zeros(&self, at: u64, len: u64, deallocate: bool) -> Io<()> {
        self.now().write_zeros(at, len, deallocate)
    }
    fn extent(&self, at: u64, len: u64) -> Io<Extent> {
        self.now().extent(at, len)
    }
}

fn disk(store: Arc<dyn BlockStore>, delay: u64, seed: u64) -> Result<Unit, String> {
    let faults = Faults::timed();
    faults.add(Rule::new(Operations::WRITE, Action::Delay(0..delay)).seed(seed));
    let store = Arc::new(FaultyStore::new(store, faults));
    let options = DiskOptions { write_cache: false, ..DiskOptions::default() };
    let unit = DiskUnit::new(store, options, &Registry::new());
    unit.map(Unit::Disk).map_err(|error| format!("{error:?}"))
}

fn serving(config: &ServerConfig, unit: Unit) -> ServerConfig {
    let mut config = config.clone();
    config.targets[0].units = vec![LunConfig { lun: 0, unit, limiter: Arc::default(), stages: false }];
    config
}

async fn whole(seed: u64, unnoticed: bool) -> Result<Report, String> {
    let mut rng = Rng::new(seed ^ 0x5245_504c);
    let mut settings = Plan::new(seed).target;
    (settings.iser, settings.chap) = (None, None);
    settings.queue_depth = 64;
    let config = daemon::config(&settings);
    let cores = daemon::cores(1 + rng.index(3));
    let models = [(); 2].map(|()| ModelStore::new(BLOCKS * 512, 512));
    let delay = rng.pick(&[1, 1000, 40_000]);
    let store = Arc::new(Either { models: models.clone(), replaced: AtomicBool::new(false) });
    let first = disk(store.clone(), delay, rng.bits())?;
    let server = Server::start(cores, serving(&config, first.clone())).map_err(|error| error.to_string())?;
    let url = iscsi_client::Url::portal("10.0.0.200", 3260).with_unit(NAME, 0);
    let options = Options { connections: rng.pick(&[1, 1, 2, 4]), ..Options::default() };
    let session = Session::connect(&url, options).await.map_err(|error| error.to_string())?;

    let writes: Rc<RefCell<BTreeMap<usize, Write>>> = Rc::default();
    let mut running = Vec::new();
    let change_at = rng.below(48) as usize;
    let mut change = None;
    for op in 1..=64usize {
        if op == change_at + 1 {
            runtime::sleep(Duration::from_micros(rng.below(30_000))).await;
            let second = disk(Arc::new(models[1].clone()), delay, rng.bits())?;
            store.replaced.store(unnoticed, Ordering::SeqCst);
            let second = serving(&config, if unnoticed { first.clone() } else { second });
            let handle = server.handle();
            change = Some(runtime::spawn(async move {
                let begun = runtime::clock();
                let applied = sim::aside(move || handle.apply(second)).await;
                (begun, runtime::clock(), applied.is_ok())
            }));
        }
        if rng.chance(300) {
            runtime::sleep(Duration::from_micros(rng.below(3000))).await;
        }
        writes.borrow_mut().insert(op, Write { submitted: runtime::clock(), good: false });
        let mut command = Command::new(Lun::ZERO, &write10(op as u32, 1, Flags::default())).once();
        command.attribute =
            rng.pick(&[TaskAttribute::Simple, TaskAttribute::Ordered, TaskAttribute::HeadOfQueue]);
        let command = command.writing(runtime::Buf::from(vec![op as u8; 512]));
        let (session, writes) = (session.clone(), writes.clone());
        running.push(runtime::spawn(async move {
            let good = session.execute(command).await.is_ok_and(|response| response.status == 0);
            if let Some(write) = writes.borrow_mut().get_mut(&op) {
                write.good = good;
            }
        }));
    }
    for write in running {
        write.await.map_err(|error| format!("{error:?}"))?;
    }
    let change = change.ok_or("no change")?.await.map_err(|error| format!("{error:?}"))?;
    drop(session.close().await);
    let stopped = sim::aside(move || server.stop(Duration::from_secs(1))).await;
    stopped.map_err(|error| format!("it does not stop: {error}"))?;
    let commands = judge(&writes.borrow(), change, &models)? as u64;
    Ok(Report { commands, ..Report::default() })
}

fn judge(
    writes: &BTreeMap<usize, Write>,
    (begun, ended, applied): (Instant, Instant, bool),
    models: &[ModelStore; 2],
) -> Result<usize, String> {
    if !applied {
        return Err("the change was refused".into());
    }
    let media = models.each_ref().map(|model| model.durable_bytes(0, BLOCKS * 512).unwrap_or_default());
    for (op, write) in writes {
        let is_on = |disk: usize| media[disk].get(op * 512) == Some(&(*op as u8));
        let when = format!(
            "write {op} (good: {}), {:?} before the change",
            write.good,
            begun.checked_duration_since(write.submitted)
        );
        if is_on(1) && write.submitted + ARRIVED < begun {
            return Err(format!("{when}, is on the new disk"));
        }
        if is_on(0) && write.submitted > ended {
            return Err(format!("{when}, is on the old disk"));
        }
        if write.good != (is_on(0) || is_on(1)) && write.good {
            return Err(format!("{when}, is on no disk"));
        }
    }
    Ok(writes.values().filter(|write| write.good).count())
}
