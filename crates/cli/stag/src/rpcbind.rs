//! Keeps the registration of NFS and MOUNT at this machine's rpcbind (RFC 1833) up to date. It
//! registers at the start, checks periodically, and unregisters at the end. If rpcbind is down,
//! only log lines report it. Never removes what another server has registered.

use std::io::{self, Read, Write};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpStream};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::mpsc::{self, RecvTimeoutError, Sender};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use nfs_server::config::NfsPortal;
use rpc::auth::OpaqueAuth;
use rpc::bind::v4::{Arguments, Procedure, Results, VERSION};
use rpc::bind::{self, Binding, Text, socket_address, universal_address};
use rpc::message::{Call, Reply};
use rpc::record::{LAST, MARK_LEN};
use rpc::xdr::{Reader, Writer};

use crate::control::daemon::Daemon;

/// Interval at which the agent checks whether the addresses have changed.
const LOOK: Duration = Duration::from_secs(2);
/// Interval at which it checks whether rpcbind still has the registrations: it may have restarted.
const AGAIN: Duration = Duration::from_secs(30);
/// Time for rpcbind's answers.
const PATIENCE: Duration = Duration::from_secs(5);
/// The longest answer, bytes: the list of all that is registered.
const LONGEST: usize = 1 << 20;
/// NFS and MOUNT, and their versions.
const SERVED: [(u32, u32); 3] = [
    (nfs_server::config::PROGRAM, 3),
    (nfs_server::config::PROGRAM, 4),
    (nfs_server::config::MOUNT_PROGRAM, 3),
];

/// A registration: program, version, network ID, address.
type Entry = (u32, u32, String, String);

/// The agent's thread. Unregisters when dropped, unless another daemon has taken over.
pub struct Agent {
    end: Option<Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Agent {
    /// Registers the NFS addresses of `daemon` at the rpcbind behind `socket`, from now on.
    ///
    /// # Errors
    /// No thread can be started.
    pub fn start(socket: PathBuf, daemon: Arc<Daemon>) -> io::Result<Self> {
        let (end, ended) = mpsc::channel();
        let work = move || {
            let mut work = Work { socket, registered: Vec::new(), looked: None, failing: false };
            loop {
                work.look(&wanted(&daemon.files.portals()));
                match ended.recv_timeout(LOOK) {
                    Err(RecvTimeoutError::Timeout) => {}
                    Ok(()) | Err(RecvTimeoutError::Disconnected) => break,
                }
            }
            // The successor has registered the same addresses.
            if !daemon.is_replaced() {
                work.look(&[]);
            }
        };
        let thread = Some(std::thread::Builder::new().name("rpcbind".into()).spawn(work)?);
        Ok(Self { end: Some(end), thread })
    }
}

impl Drop for Agent {
    fn drop(&mut self) {
        drop(self.end.take());
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// The registrations of a server with these portals: one address of each family. RDMA devices have
/// no network ID that clients ask for, and port 111 is a portmapper's.
fn wanted(portals: &[NfsPortal]) -> Vec<Entry> {
    let served = || portals.iter().filter(|one| !one.verbs && one.listen.port() != bind::PORT);
    let v6 = served().map(|one| one.listen).find(SocketAddr::is_ipv6);
    // A wildcard of IPv6 takes IPv4 too.
    let both = v6.filter(|address| address.ip().is_unspecified());
    let both = both.map(|address| SocketAddr::new(IpAddr::V4(Ipv4Addr::UNSPECIFIED), address.port()));
    let v4 = served().map(|one| one.listen).find(SocketAddr::is_ipv4).or(both);
    let all = [("tcp", v4), ("tcp6", v6)].into_iter().filter_map(|(id, at)| Some((id, at?)));
    let entry = |(id, at): (&str, SocketAddr)| {
        SERVED.map(|(program, version)| (program, version, id.to_owned(), universal_address(at)))
    };
    all.flat_map(entry).collect()
}

struct Work {
    socket: PathBuf,
    /// Registrations that this process has made, or the one before it.
    registered: Vec<Entry>,
    looked: Option<Instant>,
    /// The last attempt failed.
    failing: bool,
}

impl Work {
    /// Registers `wanted`, and removes older registrations.
    fn look(&mut self, wanted: &[Entry]) {
        let recent = self.looked.is_some_and(|at| at.elapsed() < AGAIN);
        if self.registered == wanted && (recent || wanted.is_empty()) {
            return;
        }
        match self.update(wanted) {
            Ok(()) => self.failing = false,
            Err(error) if self.failing => tracing::debug!(%error, "rpcbind"),
            Err(error) => {
                self.failing = true;
                tracing::warn!(socket = %self.socket.display(), %error, "not registered with rpcbind");
            }
        }
        self.looked = Some(Instant::now());
    }

    fn update(&mut self, wanted: &[Entry]) -> io::Result<()> {
        let mut link = Link::connect(&self.socket)?;
        let known = link.all()?;
        for entry in self.registered.iter().filter(|entry| !wanted.contains(entry)) {
            if known.contains(entry) {
                link.unset(entry)?;
            }
        }
        self.registered.retain(|entry| wanted.contains(entry));
        for entry in wanted {
            let other = known.iter().find(|one| (one.0, one.1, &one.2) == (entry.0, entry.1, &entry.2));
            let own = match other {
                Some(other) if other == entry => true,
                Some(other) if answers(&other.3) => {
                    if !self.failing {
                        let address = &other.3;
                        tracing::warn!(
                            program = entry.0,
                            version = entry.1,
                            address,
                            "another server is registered"
                        );
                    }
                    false
                }
                stale => {
                    if let Some(stale) = stale {
                        link.unset(stale)?;
                    }
                    link.set(entry)?;
                    true
                }
            };
            if own && !self.registered.contains(entry) {
                self.registered.push(entry.clone());
                let (program, version, netid, address) = entry;
                tracing::info!(program, version, netid, address, "registered with rpcbind");
            }
        }
        Ok(())
    }
}

/// Whether a server listens at a universal address.
fn answers(address: &str) -> bool {
    // An address that is not an IP address cannot be tested: assume that a server answers.
    let Some(mut at) = socket_address(address) else { return true };
    if at.ip().is_unspecified() {
        at.set_ip(match at.ip() {
            IpAddr::V4(_) => Ipv4Addr::LOCALHOST.into(),
            IpAddr::V6(_) => std::net::Ipv6Addr::LOCALHOST.into(),
        });
    }
    TcpStream::connect_timeout(&at, PATIENCE).is_ok()
}

/// A conversation with rpcbind.
struct Link {
    stream: UnixStream,
    xid: u32,
}

impl Link {
    fn connect(socket: &std::path::Path) -> io::Result<Self> {
        let stream = UnixStream::connect(socket)?;
        stream.set_read_timeout(Some(PATIENCE))?;
        stream.set_write_timeout(Some(PATIENCE))?;
        Ok(Self { stream, xid: 0 })
    }

    fn set(&mut self, entry: &Entry) -> io::Result<()> {
        let set =
            self.call(&Arguments::Set(binding(entry)?), |results| matches!(results, Results::Set(true)))?;
        if set { Ok(()) } else { Err(io::Error::other("rpcbind refuses the registration")) }
    }

    /// Removes a registration. One that is gone, or belongs to another user, stays as it is.
    fn unset(&mut self, entry: &Entry) -> io::Result<()> {
        self.call(&Arguments::Unset(binding(entry)?), |_| ())
    }

    /// All registrations.
    fn all(&mut self) -> io::Result<Vec<Entry>> {
        self.call(&Arguments::Dump(()), |results| {
            let Results::Dump(all) = results else { return Vec::new() };
            let text = |text: Text<'_>| String::from_utf8_lossy(text.bytes()).into_owned();
            all.iter().map(|one| (one.program, one.version, text(one.netid), text(one.address))).collect()
        })
    }

    fn call<T>(&mut self, arguments: &Arguments<'_>, read: impl FnOnce(Results<'_>) -> T) -> io::Result<T> {
        self.xid += 1;
        let procedure: Procedure = arguments.procedure();
        let call = Call {
            xid: self.xid,
            program: bind::PROGRAM,
            version: VERSION,
            procedure: procedure.code(),
            credential: OpaqueAuth::NONE,
            verifier: OpaqueAuth::NONE,
        };
        let mut bytes = vec![0; MARK_LEN];
        call.write(&mut Writer::new(&mut bytes));
        arguments.write(&mut Writer::new(&mut bytes));
        let mark = (bytes.len() - MARK_LEN) as u32 | LAST;
        bytes[..MARK_LEN].copy_from_slice(&mark.to_be_bytes());
        self.stream.write_all(&bytes)?;
        let reply = self.record()?;
        let nonsense = || io::Error::new(io::ErrorKind::InvalidData, "rpcbind sends nonsense");
        let mut from = Reader::new(&reply);
        let header = Reply::read(&mut from).map_err(|_| nonsense())?;
        if header.xid != self.xid {
            return Err(nonsense());
        }
        if !header.is_success() {
            return Err(io::Error::other(format!("rpcbind says {:?}", header.body)));
        }
        Ok(read(Results::read(procedure, &mut from).map_err(|_| nonsense())?))
    }

    fn record(&mut self) -> io::Result<Vec<u8>> {
        let mut record = Vec::new();
        loop {
            let mut mark = [0; MARK_LEN];
            self.stream.read_exact(&mut mark)?;
            let mark = u32::from_be_bytes(mark);
            let (begin, len) = (record.len(), (mark & !LAST) as usize);
            if begin + len > LONGEST {
                return Err(io::Error::new(io::ErrorKind::InvalidData, "rpcbind's answer is too long"));
            }
            record.resize(begin + len, 0);
            self.stream.read_exact(&mut record[begin..])?;
            if mark & LAST != 0 {
                return Ok(record);
            }
        }
    }
}

fn binding((program, version, netid, address): &Entry) -> io::Result<Binding<'_>> {
    let text = |text: &'static str| text.as_bytes();
    let of = |bytes| Text::new(bytes).map_err(|_| io::ErrorKind::InvalidInput);
    Ok(Binding {
        program: *program,
        version: *version,
        netid: of(netid.as_bytes())?,
        address: of(address.as_bytes())?,
        // rpcbind takes the owner from the socket.
        owner: of(text("stag"))?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn addresses(listen: &[(&str, bool)]) -> Vec<(String, String)> {
        let portal =
            |(address, verbs): &(&str, bool)| NfsPortal { listen: address.parse().unwrap(), verbs: *verbs };
        let portals: Vec<NfsPortal> = listen.iter().map(portal).collect();
        let all = wanted(&portals);
        assert_eq!(all.len() % SERVED.len(), 0);
        all.into_iter().step_by(SERVED.len()).map(|(_, _, netid, address)| (netid, address)).collect()
    }

    #[test]
    fn one_address_of_each_family_is_registered() {
        let own = |netid: &str, address: &str| (netid.to_owned(), address.to_owned());
        assert_eq!(
            addresses(&[("192.0.2.1:111", false), ("192.0.2.9:20049", true), ("192.0.2.1:2049", false)]),
            [own("tcp", "192.0.2.1.8.1")]
        );
        assert_eq!(addresses(&[("[::]:2049", false)]), [own("tcp", "0.0.0.0.8.1"), own("tcp6", "::.8.1")]);
        assert_eq!(
            addresses(&[("[2001:db8::1]:2049", false), ("0.0.0.0:2050", false)]),
            [own("tcp", "0.0.0.0.8.2"), own("tcp6", "2001:db8::1.8.1")]
        );
        assert!(addresses(&[]).is_empty());
    }
}
