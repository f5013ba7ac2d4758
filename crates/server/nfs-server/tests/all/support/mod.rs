//! A server with an export of memory, and a client that can say anything.

pub mod gated;
pub mod liar;
pub mod rdma;
pub mod v4;

use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::sync::Arc;
use std::time::Duration;

use memory_tree::{Limits, MemoryTree, Root};
use nfs::v3::{self, Arguments, Handle, Name, Outcome, Procedure, Results};
use nfs_server::config::{ClientRule, Export, NfsConfig, NfsLimits, NfsPortal, Squash};
use rpc::auth::{AuthSys, OpaqueAuth};
use rpc::message::{Call, Reply};
use rpc::xdr::{Opaque, Reader, Writer};
use rustix::net::{self, AddressFamily, SocketType};
use server_core::{CoresConfig, Server};

/// Time for what must happen, on a machine that is busy.
pub const PATIENCE: Duration = Duration::from_secs(60);

pub struct Served {
    pub server: Server,
    pub nfs: nfs_server::Handle,
    pub config: NfsConfig,
}

/// A server on two cores that exports 64 MiB of memory as `/data`.
pub fn served() -> Served {
    serving(config())
}

/// 64 MiB of memory as `/data`, at a free port.
pub fn config() -> NfsConfig {
    exporting(memory())
}

/// A tree of 64 MiB of memory.
pub fn memory() -> Arc<MemoryTree> {
    let limits = Limits { bytes: 64 << 20, files: 1 << 20 };
    Arc::new(MemoryTree::new(limits, Root { mode: 0o777, uid: 0, gid: 0 }).expect("memory"))
}

/// A tree as `/data`, at a free port.
pub fn exporting(tree: Arc<dyn tree::Tree>) -> NfsConfig {
    let export = Export {
        name: "/data".into(),
        tree,
        exclusive: true,
        clients: vec![ClientRule { squash: Squash::None, ..ClientRule::default() }],
    };
    NfsConfig {
        portals: vec![NfsPortal { listen: SocketAddr::from(([127, 0, 0, 1], 0)), verbs: false }],
        exports: vec![export],
        limits: NfsLimits::default(),
        key: [3; 16],
        groups: None,
        clients: None,
    }
}

/// A server on two cores.
pub fn serving(config: NfsConfig) -> Served {
    succeeding(config, &[])
}

/// The successor of a server that handed this over.
pub fn succeeding(config: NfsConfig, carried: &[u8]) -> Served {
    let cores = CoresConfig { count: 2, spin_us: 0, pool_bytes: 64 << 20 };
    let server = Server::start(cores, Vec::new()).expect("two cores");
    let nfs = nfs_server::begin(&server, config.clone(), carried).expect("a free port");
    Served { server, nfs, config }
}

impl Served {
    pub fn address(&self) -> SocketAddr {
        self.nfs.portals()[0].listen
    }

    pub fn connect(&self) -> Client {
        self.connect_from(Ipv4Addr::LOCALHOST)
    }

    pub fn connect_from(&self, host: Ipv4Addr) -> Client {
        let socket = net::socket(AddressFamily::INET, SocketType::STREAM, None).expect("a socket");
        net::bind(&socket, &SocketAddr::from((host, 0))).expect("an address of this machine");
        net::connect(&socket, &self.address()).expect("it listens");
        let stream = TcpStream::from(socket);
        stream.set_read_timeout(Some(PATIENCE)).expect("an option");
        stream.set_nodelay(true).expect("an option");
        Client { stream, xid: 1, calls: Vec::new(), mute: false }
    }

    pub fn stop(self) {
        self.server.stop(Duration::from_millis(100)).expect("everything is durable");
    }
}

pub struct Client {
    pub stream: TcpStream,
    pub xid: u32,
    /// Calls from the server.
    pub calls: Vec<v4::Called>,
    /// It does not answer calls.
    pub mute: bool,
}

/// A fragment of a record.
pub fn fragment(bytes: &[u8], last: bool) -> Vec<u8> {
    let mark = bytes.len() as u32 | if last { rpc::record::LAST } else { 0 };
    [&mark.to_be_bytes(), bytes].concat()
}

/// A call as root, without its record's mark.
pub fn call(xid: u32, program: u32, version: u32, procedure: u32, arguments: &[u8]) -> Vec<u8> {
    call_as((0, 0, &[]), xid, (program, version, procedure), arguments)
}

/// A call as the user, group and more groups that are claimed, without its record's mark.
pub fn call_as(
    (uid, gid, groups): (u32, u32, &[u32]),
    xid: u32,
    (program, version, procedure): (u32, u32, u32),
    arguments: &[u8],
) -> Vec<u8> {
    let mut auth = Vec::new();
    let sys = AuthSys {
        stamp: 0,
        machine: Opaque::new(b"client").expect("short"),
        uid,
        gid,
        gids: groups.iter().copied().collect(),
    };
    let credential = sys.auth(&mut auth);
    let mut bytes = Vec::new();
    let call = Call { xid, program, version, procedure, credential, verifier: OpaqueAuth::NONE };
    call.write(&mut Writer::new(&mut bytes));
    bytes.extend_from_slice(arguments);
    bytes
}

/// A call of NFSv3, with the data of a WRITE behind it.
pub fn nfs3(xid: u32, arguments: &Arguments<'_>, data: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::new();
    arguments.write(&mut Writer::new(&mut bytes));
    bytes.extend_from_slice(data);
    bytes.resize(bytes.len().next_multiple_of(4), 0);
    call(xid, v3::PROGRAM, v3::VERSION, arguments.procedure() as u32, &bytes)
}

impl Client {
    pub fn send(&mut self, bytes: &[u8]) {
        self.stream.write_all(bytes).expect("the server is there");
    }

    /// The next reply, without its record's mark. Answers the server's calls before it.
    pub fn reply(&mut self) -> Vec<u8> {
        loop {
            let record = self.record();
            if record[4..8] == [0, 0, 0, 1] {
                return record;
            }
            self.called(&record);
        }
    }

    /// The next record, without its mark.
    pub fn record(&mut self) -> Vec<u8> {
        let mut mark = [0; 4];
        self.stream.read_exact(&mut mark).expect("a reply");
        let mark = u32::from_be_bytes(mark);
        assert!(mark & rpc::record::LAST != 0, "one fragment");
        let mut bytes = vec![0; (mark & !rpc::record::LAST) as usize];
        self.stream.read_exact(&mut bytes).expect("a whole reply");
        bytes
    }

    /// Calls, and returns the whole reply.
    pub fn call(&mut self, arguments: &Arguments<'_>, data: &[u8]) -> Vec<u8> {
        self.xid += 1;
        let call = nfs3(self.xid, arguments, data);
        self.send(&fragment(&call, true));
        self.reply()
    }

    /// Whether the server has closed the connection.
    pub fn is_closed(&mut self) -> bool {
        matches!(self.stream.read(&mut [0; 16]), Ok(0) | Err(_))
    }

    /// The handle of the export's root.
    pub fn mount(&mut self) -> Vec<u8> {
        self.xid += 1;
        let mut path = Vec::new();
        nfs::mount::Arguments::Mnt(Opaque::new(b"/data").expect("short")).write(&mut Writer::new(&mut path));
        let call = call(self.xid, nfs::mount::PROGRAM, 3, 1, &path);
        self.send(&fragment(&call, true));
        let reply = self.reply();
        let body = results(&reply);
        let read = nfs::mount::Results::read(nfs::mount::Procedure::Mnt, &mut Reader::new(body));
        let Ok(nfs::mount::Results::Mnt(Outcome::Ok(mounted))) = read else { panic!("{read:?}") };
        mounted.handle.bytes().to_vec()
    }

    /// A new file below the root.
    pub fn create(&mut self, root: &[u8], name: &str) -> Vec<u8> {
        let how = v3::CreateHow::Guarded(v3::SetAttributes::default());
        let place = v3::DirOp { directory: handle(root), name: Name::new(name.as_bytes()).expect("short") };
        let reply = self.call(&Arguments::Create(v3::Create { place, how }), &[]);
        match of(Procedure::Create, &reply) {
            Results::Create(Outcome::Ok(created)) => created.object.expect("a handle").bytes().to_vec(),
            other => panic!("{other:?}"),
        }
    }
}

pub fn handle(bytes: &[u8]) -> Handle<'_> {
    Handle::new(bytes).expect("not too long")
}

/// The results in the reply to an accepted call.
pub fn results(reply: &[u8]) -> &[u8] {
    let mut from = Reader::new(reply);
    let header = Reply::read(&mut from).expect("a reply");
    assert!(header.is_success(), "{header:?}");
    &reply[from.position()..]
}

/// The results of a procedure.
pub fn of(procedure: Procedure, reply: &[u8]) -> Results<'_> {
    v3::results(procedure, results(reply)).expect("results").value
}
