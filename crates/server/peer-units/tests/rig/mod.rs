//! Two owners on cores of their own, and this thread as a gateway that forwards to them. Over the
//! simulated network or over loopback sockets.
#![allow(dead_code, reason = "each test file uses a part")]

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::future::Future;
use std::pin::Pin;
use std::rc::{Rc, Weak};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use backing::faulty::{Faults, FaultyStore};
use backing::{BlockStore, MemoryStore};
use device::{
    AbortTasks, Cdb, Command, DataMover, Execution, ItlNexus, LogicalUnit, Lost, Nexus, NexusId, Outcome,
    PortGroups, TaskAttribute, Tasks,
};
use disk::unit::{DiskOptions, DiskUnit, Registry};
use peer_link::{Limits, Secret};
use peer_units::{Begun, Gate, GroupUnit, Host, HostConfig, Life, OwnerAt, Peers, PeersConfig};
use runtime::{Buf, Chain, Config, Cores, Handle, JoinHandle, ListenOptions, TcpListener, sim};
use scsi::reservation::TransportId;
use scsi::{AdditionalSense, Status};

pub const FORWARDER: u64 = 0x100;
pub const UNIT: u32 = 7;
pub const HOLD: Duration = Duration::from_secs(10);

thread_local! {
    static HOST: RefCell<Option<Host>> = const { RefCell::new(None) };
    static TASKS: RefCell<Vec<(NexusId, u64, Weak<Wire>)>> = const { RefCell::new(Vec::new()) };
}

/// A number for an I_T nexus.
fn next_nexus() -> NexusId {
    static NEXT: AtomicU64 = AtomicU64::new(1);
    NexusId(NEXT.fetch_add(1, Ordering::Relaxed))
}

pub fn secret(byte: u8) -> Secret {
    Secret::new(&[byte; 32]).unwrap()
}

/// A gate that is always open.
pub fn open_gate() -> Gate {
    Arc::new(|| Some(Box::new(()) as Begun))
}

/// A gateway that owns the unit, or may.
pub struct Owner {
    pub core: Handle,
    pub at: OwnerAt,
    pub disk: Arc<DiskUnit>,
    /// Whether the group knows the forwarder.
    pub members: Arc<AtomicBool>,
}

impl Owner {
    async fn start(
        core: Handle,
        instance: u64,
        store: Arc<dyn BlockStore>,
        change: fn(&mut HostConfig),
    ) -> Self {
        let disk = DiskUnit::new(store, DiskOptions::default(), &Registry::default()).unwrap();
        let members = Arc::new(AtomicBool::new(true));
        let (unit, known) = (disk.clone(), members.clone());
        let address = core.call(move || async move {
            let address = match sim::is_on() {
                true => format!("10.0.0.{instance}:3261"),
                false => "127.0.0.1:0".to_owned(),
            };
            let listener = TcpListener::bind(address.parse().unwrap(), ListenOptions::default()).unwrap();
            let address = listener.local_addr().unwrap();
            let mut config = HostConfig {
                gateway: instance as u16,
                instance,
                secrets: BTreeMap::from([(1, secret(7))]),
                versions: 1..=1,
                limits: Limits { commands: 64, ..Limits::default() },
                fresh: Duration::from_secs(2),
                peers: 8,
                is_member: Box::new(move |_, _| known.load(Ordering::SeqCst)),
                nexus_id: Box::new(next_nexus),
            };
            change(&mut config);
            let host = Host::new(config, core);
            host.serve_unit(UNIT, unit, open_gate());
            HOST.set(Some(host.clone()));
            runtime::spawn(async move { host.listen(listener).await });
            address
        });
        let at = OwnerAt { instance, address: address.await.unwrap() };
        Self { core, at, disk, members }
    }

    /// Does something with the host, on its core.
    pub async fn with<T: Send + 'static>(&self, act: impl FnOnce(&Host) -> T + Send + 'static) -> T {
        let host = self.core.call(|| async move { HOST.with_borrow(|host| act(host.as_ref().unwrap())) });
        host.await.unwrap()
    }

    /// A session of this owner's own.
    pub fn session(&self, number: u64) -> Session<DiskUnit> {
        Session::new(&self.disk, number)
    }
}

pub struct Rig {
    pub owners: [Owner; 2],
    pub peers: Arc<Peers>,
    pub unit: Arc<GroupUnit>,
    /// The forwarder's own, for when it owns the unit.
    pub disk: Arc<DiskUnit>,
    pub faults: Faults,
}

impl Rig {
    pub async fn new(cores: &Cores, change: fn(&mut PeersConfig), host: fn(&mut HostConfig)) -> Self {
        let faults = Faults::new();
        let memory: Arc<dyn BlockStore> = Arc::new(MemoryStore::new(8 << 20, false).unwrap());
        let store: Arc<dyn BlockStore> = Arc::new(FaultyStore::new(memory, faults.clone()));
        let owners = [
            Owner::start(cores.handles()[0], 0x21, store.clone(), host).await,
            Owner::start(cores.handles()[1], 0x22, store.clone(), host).await,
        ];
        let disk = DiskUnit::new(store, DiskOptions::default(), &Registry::default()).unwrap();
        let mut config = PeersConfig {
            gateway: 1,
            life: Life { instance: FORWARDER, secret: (1, secret(7)), versions: 1..=1 },
            piece: 64 << 10,
            hold: HOLD,
            fresh: Duration::from_secs(2),
        };
        change(&mut config);
        let peers = Peers::new(config);
        let unit = GroupUnit::new(&peers, UNIT, PortGroups::symmetric(&[1])).unwrap();
        unit.nexuses().set_aborter(Arc::new(Server));
        peers.set_owner(UNIT, Some(owners[0].at));
        Self { owners, peers, unit, disk, faults }
    }

    pub fn session(&self, number: u64) -> Session<GroupUnit> {
        Session::new(&self.unit, number)
    }

    /// Nothing is connected any more.
    pub fn end(&self) {
        for owner in &self.owners {
            self.peers.fenced(owner.at.instance);
        }
    }
}

/// Runs a scenario over loopback sockets, and in a simulated world for some seeds.
pub fn both<Fut: Future<Output = ()> + 'static>(
    scenario: impl Fn(Rc<Rig>) -> Fut + Clone + Send + Sync + 'static,
) {
    loopback(|_| {}, |_| {}, scenario.clone());
    for seed in 1..=3 {
        simulated(seed, |_| {}, |_| {}, scenario.clone());
    }
}

pub fn loopback<Fut: Future<Output = ()>>(
    change: fn(&mut PeersConfig),
    host: fn(&mut HostConfig),
    scenario: impl Fn(Rc<Rig>) -> Fut,
) {
    let config = Config { spin_us: 0, ..Config::default() };
    runtime::Runtime::new(config).unwrap().block_on(world(change, host, scenario));
}

pub fn simulated<Fut: Future<Output = ()> + 'static>(
    seed: u64,
    change: fn(&mut PeersConfig),
    host: fn(&mut HostConfig),
    scenario: impl Fn(Rc<Rig>) -> Fut + Send + 'static,
) {
    sim::run(sim::Config::new(seed), move || world(change, host, scenario));
}

async fn world<Fut: Future<Output = ()>>(
    change: fn(&mut PeersConfig),
    host: fn(&mut HostConfig),
    scenario: impl Fn(Rc<Rig>) -> Fut,
) {
    let cores = Cores::start(2, Config { spin_us: 0, ..Config::default() }).unwrap();
    let rig = Rc::new(Rig::new(&cores, change, host).await);
    runtime::timeout(Duration::from_secs(300), scenario(rig.clone())).await.expect("the scenario ends");
    rig.end();
    runtime::sleep(Duration::from_millis(300)).await;
    cores.stop();
    cores.join().unwrap();
}

/// An initiator's end of a command.
#[derive(Default)]
pub struct Wire {
    data_out: RefCell<Vec<u8>>,
    data_in: RefCell<Vec<u8>>,
    /// The initiator sends no data, or takes none.
    pub stuck: std::cell::Cell<bool>,
    lost: std::cell::Cell<bool>,
    /// The initiator has not been heard for long.
    pub away: std::cell::Cell<bool>,
    waker: RefCell<Option<Waker>>,
    ended: runtime::Notify,
    over: std::cell::Cell<bool>,
}

impl Wire {
    fn wait<T>(&self, cx: &Context<'_>) -> Poll<T> {
        *self.waker.borrow_mut() = Some(cx.waker().clone());
        Poll::Pending
    }

    fn wake(&self) {
        self.waker.take().into_iter().for_each(Waker::wake);
    }

    /// The server aborts the task, and waits for its end.
    pub fn abort(&self) {
        self.lost.set(true);
        self.wake();
    }

    pub fn is_lost(&self) -> bool {
        self.lost.get()
    }

    /// How much data-in has come.
    pub fn came(&self) -> usize {
        self.data_in.borrow().len()
    }

    pub fn go_on(&self) {
        self.stuck.set(false);
        self.wake();
    }
}

struct Mover(Rc<Wire>);

impl DataMover for Mover {
    fn put_data(&mut self, data: Buf) {
        self.0.data_in.borrow_mut().extend(data.to_vec());
    }

    fn is_fresh(&mut self, _: Duration) -> bool {
        !self.0.away.get()
    }

    fn poll_put_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Lost>> {
        match () {
            () if self.0.lost.get() => Poll::Ready(Err(Lost)),
            () if self.0.stuck.get() => self.0.wait(cx),
            () => Poll::Ready(Ok(())),
        }
    }

    fn poll_get_data(&mut self, cx: &mut Context<'_>, len: usize) -> Poll<Result<Chain, Lost>> {
        match () {
            () if self.0.lost.get() => Poll::Ready(Err(Lost)),
            () if self.0.stuck.get() => self.0.wait(cx),
            () => {
                let mut data = self.0.data_out.borrow_mut();
                let len = len.min(data.len());
                let rest = data.split_off(len);
                Poll::Ready(Ok(std::mem::replace(&mut *data, rest).into()))
            }
        }
    }

    fn poll_lost(&mut self, cx: &mut Context<'_>) -> Poll<Lost> {
        if self.0.lost.get() { Poll::Ready(Lost) } else { self.0.wait(cx) }
    }
}

/// The forwarder's server: aborts tasks of a nexus.
struct Server;

impl AbortTasks for Server {
    fn abort(
        &self,
        nexus: Arc<ItlNexus>,
        which: Tasks,
        _: Option<&Command>,
    ) -> Pin<Box<dyn Future<Output = usize>>> {
        Box::pin(async move {
            let is_one =
                |id, tag| id == nexus.nexus.id && (which == Tasks::All || which == Tasks::Tagged(tag));
            let tasks = TASKS.with_borrow(Vec::clone).into_iter().filter(|(id, tag, _)| is_one(*id, *tag));
            let tasks: Vec<_> = tasks.filter_map(|(.., wire)| wire.upgrade()).collect();
            for wire in &tasks {
                wire.abort();
                wire.ended.until(|| wire.over.get().then_some(())).await;
            }
            tasks.len()
        })
    }

    fn count(&self, _: Arc<ItlNexus>, _: Tasks, _: Option<&Command>) -> Pin<Box<dyn Future<Output = usize>>> {
        Box::pin(std::future::ready(0))
    }
}

/// A session and the unit that it sees.
pub struct Session<U: LogicalUnit> {
    pub unit: Arc<U>,
    pub nexus: Arc<ItlNexus>,
    tag: std::cell::Cell<u64>,
}

impl<U: LogicalUnit> Session<U> {
    pub fn new(unit: &Arc<U>, number: u64) -> Self {
        let initiator = format!("iqn.2000-01.com.example:host{number}");
        let nexus = Nexus {
            id: next_nexus(),
            transport_id: TransportId::iscsi_port(&initiator, number).unwrap().bytes().to_vec(),
            initiator,
            target_port: 1,
            principal: None,
            target: "iqn.2000-01.com.example:target".into(),
            ports: None,
        };
        let nexus = Arc::new(ItlNexus::new(Arc::new(nexus), false));
        unit.attach(&nexus);
        Self::of(unit, &nexus)
    }

    /// Another connection of a session, on this core.
    pub fn of(unit: &Arc<U>, nexus: &Arc<ItlNexus>) -> Self {
        Self { unit: unit.clone(), nexus: nexus.clone(), tag: Default::default() }
    }

    /// Begins a command.
    pub fn start(&self, cdb: &[u8], out: &[u8], data_in: u64, stuck: bool) -> (Rc<Wire>, JoinHandle<Ran>) {
        self.tag.set(self.tag.get() + 1);
        let command = Command {
            cdb: Cdb::new(cdb).unwrap(),
            attribute: TaskAttribute::Simple,
            nexus: self.nexus.clone().into(),
            tag: self.tag.get(),
            data_out_len: out.len() as u64,
            data_in_len: data_in,
        };
        let wire = Rc::new(Wire::default());
        *wire.data_out.borrow_mut() = out.to_vec();
        wire.stuck.set(stuck);
        TASKS.with_borrow_mut(|tasks| {
            tasks.retain(|(.., wire)| wire.strong_count() > 0);
            tasks.push((self.nexus.nexus.id, self.tag.get(), Rc::downgrade(&wire)));
        });
        let (unit, mover, own) = (self.unit.clone(), Mover(wire.clone()), wire.clone());
        let task = runtime::spawn(async move {
            let (mover, outcome) = match unit.execute(command, mover) {
                Execution::Done(mover, outcome) => (mover, outcome),
                Execution::Running(future) => future.await,
            };
            own.over.set(true);
            own.ended.notify();
            Ran { outcome, data: mover.0.data_in.take() }
        });
        (wire, task)
    }

    pub async fn run(&self, cdb: &[u8], out: &[u8], data_in: u64) -> Ran {
        self.start(cdb, out, data_in, false).1.await.unwrap()
    }

    /// Takes the unit attention of a new session.
    pub async fn ready(self) -> Self {
        self.run(&[0; 6], &[], 0).await.fails(AdditionalSense::POWER_ON_RESET_OR_BUS_DEVICE_RESET);
        self.run(&[0; 6], &[], 0).await.good();
        self
    }

    pub async fn write(&self, lba: u32, data: &[u8]) -> Ran {
        self.run(&cdb10(0x2a, lba, data.len() / 512), data, 0).await
    }

    pub async fn read(&self, lba: u32, len: usize) -> Ran {
        self.run(&cdb10(0x28, lba, len / 512), &[], len as u64).await
    }

    /// PERSISTENT RESERVE OUT; a reservation is of type Write Exclusive - Registrants Only.
    pub async fn reserve_out(&self, action: u8, key: u64, new: u64) -> Ran {
        let mut list = [0; 24];
        list[..8].copy_from_slice(&key.to_be_bytes());
        list[8..16].copy_from_slice(&new.to_be_bytes());
        self.run(&[0x5f, action, 5, 0, 0, 0, 0, 0, 24, 0], &list, 0).await
    }
}

pub fn cdb10(code: u8, lba: u32, blocks: usize) -> [u8; 10] {
    let mut cdb = [code, 0, 0, 0, 0, 0, 0, 0, 0, 0];
    cdb[2..6].copy_from_slice(&lba.to_be_bytes());
    cdb[7..9].copy_from_slice(&(blocks as u16).to_be_bytes());
    cdb
}

/// A command's end.
pub struct Ran {
    pub outcome: Outcome,
    pub data: Vec<u8>,
}

impl Ran {
    #[track_caller]
    pub fn good(self) -> Vec<u8> {
        assert_eq!(self.outcome.status, Status::Good, "{:?}", self.outcome.sense);
        self.data
    }

    #[track_caller]
    pub fn fails(self, additional: AdditionalSense) {
        let sense = self.outcome.sense.unwrap_or_else(|| panic!("{}", self.outcome.status));
        assert_eq!(sense.additional, additional);
    }

    #[track_caller]
    pub fn ends(self, status: Status) {
        assert_eq!(self.outcome.status, status, "{:?}", self.outcome.sense);
    }
}

/// Waits for something that happens soon.
pub async fn soon(mut happened: impl FnMut() -> bool) {
    for _ in 0..2_000 {
        if happened() {
            return;
        }
        runtime::sleep(Duration::from_millis(5)).await;
    }
    panic!("it does not happen");
}

/// Data of which each byte is known.
pub fn pattern(seed: u8, len: usize) -> Vec<u8> {
    (0..len).map(|at| (at / 512) as u8 ^ (at as u8) ^ seed).collect()
}
