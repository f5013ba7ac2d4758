//! A front end that is no iSCSI: a line of text comes back as it was sent.

use std::future::Future;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream as Client};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use runtime::{Gather, TcpStream};
use server_core::admission::Rules;
use server_core::drain::{Audience, Drains, Options, Scope, State};
use server_core::portals::{self, Asked};
use server_core::{Arrival, ConnectionId, Hub, Link, Service, Sniff};

const HELLO: &[u8] = b"ECHO ";

#[derive(Clone, Copy, PartialEq)]
struct Anywhere;

impl Asked for Anywhere {
    fn address(&self) -> SocketAddr {
        SocketAddr::from(([127, 0, 0, 1], 0))
    }

    fn by_device(&self) -> bool {
        false
    }
}

#[derive(Default)]
struct Echo {
    served: AtomicUsize,
}

impl Service for Echo {
    fn rules(&self) -> Rules {
        Rules {
            connections: 4,
            connections_per_address: 4,
            logins: 4,
            logins_per_address: 4,
            login_memory: 1 << 20,
        }
    }

    fn setup_time(&self) -> Duration {
        Duration::from_secs(60)
    }

    fn prepare(&self, _: &TcpStream, _: SocketAddr) {}

    fn takes_rdma(&self) -> Result<(), &'static str> {
        Err("it has no RDMA")
    }

    fn sniff(&self, first: &[u8]) -> Sniff {
        match first.len().min(HELLO.len()) {
            len if first[..len] != HELLO[..len] => Sniff::No("not this protocol"),
            len if len < HELLO.len() => Sniff::More,
            _ => Sniff::Mine,
        }
    }

    fn serve(self: Arc<Self>, arrival: Arrival) -> Pin<Box<dyn Future<Output = ()>>> {
        Box::pin(async move {
            let Arrival { link: Link::Stream(stream, first), mut place, core, .. } = arrival else { return };
            place.logged_in();
            self.served.fetch_add(1, Ordering::SeqCst);
            let mut bytes = first;
            while !bytes.is_empty() {
                core.tcp.count(bytes.len(), 0);
                let mut gather = Gather::new();
                gather.push_copy(&bytes);
                stream.send(gather).await.0.expect("the client reads");
                bytes = stream.recv_some(4096).await.expect("the client is there").to_vec();
            }
        })
    }
}

impl Audience for Echo {
    type Group = ();

    fn affected(&self, _: &Scope) -> Vec<()> {
        Vec::new()
    }

    fn connections(&self, (): &()) -> Vec<ConnectionId> {
        Vec::new()
    }

    fn ask_to_leave(&self, (): &(), _: ConnectionId, _: Duration) {}

    fn drop_with_notice(&self, (): &(), _: &Scope) -> Pin<Box<dyn Future<Output = ()>>> {
        Box::pin(std::future::ready(()))
    }

    fn login_time(&self) -> Duration {
        Duration::ZERO
    }
}

struct Served {
    hub: Arc<Hub>,
    echo: Arc<Echo>,
    address: SocketAddr,
    cores: runtime::Cores,
}

fn start() -> Served {
    let (hub, cores) = Hub::start(2, runtime::Config::default(), Vec::new()).expect("two cores");
    let (hub, echo) = (Arc::new(hub), Arc::new(Echo::default()));
    let (portals, _) = portals::prepare(&hub, &[], &[Anywhere]).expect("a free port");
    portals[0].start(&hub, echo.clone()).expect("it listens");
    Served { hub, echo, address: portals[0].address, cores }
}

impl Served {
    fn connect(&self) -> Client {
        let client = Client::connect(self.address).expect("it listens");
        client.set_nodelay(true).expect("an option");
        client.set_read_timeout(Some(Duration::from_secs(60))).expect("an option");
        client
    }

    fn stop(self) {
        self.hub.close();
        self.cores.stop();
        self.cores.join().expect("no core panicked");
    }
}

#[test]
fn a_connection_is_served_once_its_first_bytes_tell_its_protocol() {
    let served = start();
    let mut clients: Vec<Client> = (0..2).map(|_| served.connect()).collect();
    for client in &mut clients {
        for byte in HELLO {
            client.write_all(&[*byte]).expect("it reads");
        }
        client.write_all(b"hello").expect("it reads");
        let mut answer = [0; 10];
        client.read_exact(&mut answer).expect("it answers");
        assert_eq!(&answer, b"ECHO hello");
    }
    let status = served.hub.status(Duration::from_secs(60));
    let status: Vec<_> = status.into_iter().map(|core| core.expect("it answers")).collect();
    assert!(status.iter().all(|core| core.connections == 1), "one connection a core");
    assert!(status.iter().all(|core| core.tcp.received == 10));
    assert_eq!(served.hub.admission.logins(), 0);
    drop(clients);
    served.stop();
}

#[test]
fn what_speaks_something_else_is_closed_and_gives_its_place_back() {
    let served = start();
    for _ in 0..8 {
        let mut client = served.connect();
        client.write_all(b"GET /").expect("it reads");
        let mut left = Vec::new();
        // A reset is an end too.
        let _ = client.read_to_end(&mut left);
        assert_eq!(left, b"");
        while served.hub.connections().sum::<usize>() > 0 {
            std::thread::yield_now();
        }
    }
    assert_eq!(served.echo.served.load(Ordering::SeqCst), 0);
    served.stop();
}

#[test]
fn a_drain_without_clients_ends_and_can_be_undone() {
    let served = start();
    let drains = Drains::<SocketAddr>::default();
    let options = || Options { timeout: Duration::from_secs(60), redirect: None };
    let begin = || drains.begin(Scope::All, options(), &served.hub, served.echo.clone());
    begin().expect("it begins");
    assert!(begin().is_err(), "it is drained already");
    while drains.all()[0].state != State::Drained {
        std::thread::yield_now();
    }
    assert!(drains.undo(&Scope::All) && drains.all().is_empty());
    assert_eq!(drains.covering(|_| true), None);
    served.stop();
}
