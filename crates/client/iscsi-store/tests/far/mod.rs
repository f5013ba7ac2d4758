//! A target with one unit, a medium that holds writes back, and a wire that is cut.

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use backing::{BlockStore, Extent, Geometry, Io, MemoryStore};
use disk::unit::{DiskOptions, DiskUnit, Registry};
use iscsi_server::config::{Auth, Limits, LunConfig, Portal, ServerConfig, TargetConfig};
use iscsi_server::{CoresConfig, Server, Unit};
use runtime::Chain;

pub const SIZE: u64 = 16 << 20;
const IQN: &str = "iqn.2026-01.org.example:far";

pub struct Far {
    pub medium: Arc<Medium>,
    pub wire: Wire,
    address: SocketAddr,
    _server: Server,
}

impl Far {
    pub fn start(medium: Arc<Medium>, options: DiskOptions) -> Self {
        let unit = DiskUnit::new(medium.clone(), options.with_identity("far"), &Registry::new()).unwrap();
        let unit = LunConfig { lun: 0, unit: Unit::Disk(unit), limiter: Default::default(), stages: false };
        let config = ServerConfig {
            portals: vec![Portal {
                listen: "127.0.0.1:0".parse().unwrap(),
                group: 1,
                transports: Default::default(),
            }],
            targets: vec![TargetConfig {
                name: IQN.into(),
                alias: "far".into(),
                groups: vec![],
                auth: Auth::None,
                units: vec![unit],
                acls: None,
                redirect: None,
                ports: None,
                elsewhere: Vec::new(),
            }],
            discovery_auth: Auth::None,
            limits: Limits::default(),
            zero_copy: true,
            iser: Default::default(),
        };
        let cores = CoresConfig { count: 1, spin_us: 0, pool_bytes: 64 << 20 };
        let server = Server::start(cores, config).unwrap();
        let address = server.portals()[0].address;
        Self { medium, wire: Wire::to(address), address, _server: server }
    }

    pub fn direct(&self, scheme: &str) -> String {
        format!("{scheme}://{}/{IQN}/0", self.address)
    }

    /// Through the wire.
    pub fn wired(&self) -> String {
        format!("iscsi://{}/{IQN}/0", self.wire.address)
    }
}

/// Forwards connections, and cuts them.
#[derive(Clone)]
pub struct Wire {
    pub address: SocketAddr,
    open: Arc<Mutex<Vec<TcpStream>>>,
}

impl Wire {
    fn to(target: SocketAddr) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let wire = Self { address: listener.local_addr().unwrap(), open: Arc::default() };
        let open = wire.open.clone();
        std::thread::spawn(move || {
            for near in listener.incoming().map_while(Result::ok) {
                let Ok(far) = TcpStream::connect(target) else { continue };
                let both = || (near.try_clone().unwrap(), far.try_clone().unwrap());
                let (to, from) = (both(), both());
                open.lock().unwrap().extend([near, far]);
                std::thread::spawn(move || forward(to.0, to.1));
                std::thread::spawn(move || forward(from.1, from.0));
            }
        });
        wire
    }

    /// Ends all connections.
    pub fn cut(&self) {
        for stream in self.open.lock().unwrap().drain(..) {
            let _ = stream.shutdown(Shutdown::Both);
        }
    }
}

fn forward(mut from: TcpStream, mut to: TcpStream) {
    let mut piece = vec![0; 64 << 10];
    while let Ok(len @ 1..) = from.read(&mut piece) {
        if to.write_all(&piece[..len]).is_err() {
            break;
        }
    }
    let _ = (from.shutdown(Shutdown::Both), to.shutdown(Shutdown::Both));
}

/// Memory that holds a write back on demand, and grows.
pub struct Medium(Arc<Inner>);

struct Inner {
    memory: MemoryStore,
    size: AtomicU64,
    /// The next write is held.
    is_armed: AtomicBool,
    is_held: AtomicBool,
    syncs: AtomicUsize,
    /// The last write had to be durable.
    is_durable: AtomicBool,
    written: Mutex<Vec<u8>>,
}

impl Medium {
    pub fn new() -> Arc<Self> {
        Arc::new(Self(Arc::new(Inner {
            memory: MemoryStore::new(4 * SIZE, true).unwrap(),
            size: AtomicU64::new(SIZE),
            is_armed: AtomicBool::new(false),
            is_held: AtomicBool::new(false),
            syncs: AtomicUsize::new(0),
            is_durable: AtomicBool::new(false),
            written: Mutex::default(),
        })))
    }

    /// Holds the next write back.
    pub fn hold(&self) {
        self.0.is_held.store(true, Ordering::SeqCst);
        self.0.is_armed.store(true, Ordering::SeqCst);
    }

    pub fn release(&self) {
        self.0.is_held.store(false, Ordering::SeqCst);
    }

    pub fn grow(&self, size: u64) {
        self.0.size.store(size, Ordering::SeqCst);
    }

    pub fn syncs(&self) -> usize {
        self.0.syncs.load(Ordering::SeqCst)
    }

    /// Whether the last write had to be durable.
    pub fn is_durable(&self) -> bool {
        self.0.is_durable.load(Ordering::SeqCst)
    }

    /// The first byte of each write, in the order in which they reached the medium.
    pub fn written(&self) -> Vec<u8> {
        self.0.written.lock().unwrap().clone()
    }
}

impl BlockStore for Medium {
    fn size(&self) -> u64 {
        self.0.size.load(Ordering::SeqCst)
    }

    fn geometry(&self) -> Geometry {
        self.0.memory.geometry()
    }

    fn writable(&self) -> bool {
        true
    }

    fn thin(&self) -> bool {
        self.0.memory.thin()
    }

    fn read(&self, at: u64, len: usize) -> Io<Chain> {
        self.0.memory.read(at, len)
    }

    fn write(&self, at: u64, data: Chain, durable: bool) -> Io<()> {
        let inner = self.0.clone();
        Io::running(async move {
            let is_first = inner.is_armed.swap(false, Ordering::SeqCst);
            while is_first && inner.is_held.load(Ordering::SeqCst) {
                runtime::sleep(Duration::from_millis(2)).await;
            }
            inner.is_durable.store(durable, Ordering::SeqCst);
            inner.written.lock().unwrap().extend(data.to_vec().first());
            inner.memory.write(at, data, durable).await
        })
    }

    fn sync(&self) -> Io<()> {
        self.0.syncs.fetch_add(1, Ordering::SeqCst);
        self.0.memory.sync()
    }

    fn discard(&self, at: u64, len: u64) -> Io<()> {
        self.0.memory.discard(at, len)
    }

    fn write_zeros(&self, at: u64, len: u64, deallocate: bool) -> Io<()> {
        self.0.memory.write_zeros(at, len, deallocate)
    }

    fn extent(&self, at: u64, len: u64) -> Io<Extent> {
        self.0.memory.extent(at, len)
    }
}
