//! Front ends that are no iSCSI: a line of text comes back as it was sent.

use std::future::Future;
use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream as Client};
use std::pin::Pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, mpsc};
use std::time::Duration;

use runtime::{Gather, TcpStream};
use server_core::admission::Rules;
use server_core::drain::{Audience, Drains, Options, Scope, State};
use server_core::portals::{Asked, Portal};
use server_core::{
    Applied, Arrival, Change, Changing, ConnectionId, CoresConfig, Edition, FrontEnd, Hub, Link, Portals,
    Served, Server, Service, Services, Sniff,
};

/// A portal, and what the services behind it take: lines that begin with one of these words.
#[derive(Clone, Copy, PartialEq)]
struct At(SocketAddr, &'static [&'static str]);

const ANYWHERE: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(std::net::Ipv4Addr::LOCALHOST), 0);

impl Asked for At {
    fn address(&self) -> SocketAddr {
        self.0
    }

    fn by_device(&self) -> bool {
        false
    }
}

/// Serves lines that begin with its word.
struct Echo {
    hello: &'static str,
    /// Connections at once.
    most: usize,
    served: AtomicUsize,
}

impl Echo {
    fn new(hello: &'static str, most: usize) -> Arc<Self> {
        Arc::new(Self { hello, most, served: AtomicUsize::new(0) })
    }
}

impl Service for Echo {
    fn rules(&self) -> Rules {
        Rules {
            connections: self.most,
            connections_per_address: self.most,
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
        let hello = self.hello.as_bytes();
        match first.len().min(hello.len()) {
            len if first[..len] != hello[..len] => Sniff::No("not this protocol"),
            len if len < hello.len() => Sniff::More,
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

/// Content of a front end of echoes: the word of each edition, and its services by their words.
struct Words {
    hub: Arc<Hub>,
    served: Served<&'static str, At>,
    echoes: Vec<Arc<Echo>>,
    followed: AtomicUsize,
}

impl FrontEnd for Words {
    fn portals(&self) -> &dyn Portals {
        &self.served
    }

    fn quiesce(&self) {}

    fn has_clients(&self) -> bool {
        self.hub.connections().sum::<usize>() > 0
    }

    fn disconnect(&self) {}

    fn let_go(&self) {
        self.served.replace("nothing");
    }

    fn wind_down(self: Arc<Self>, _: Duration) -> Pin<Box<dyn Future<Output = io::Result<()>>>> {
        Box::pin(std::future::ready(Ok(())))
    }
}

impl Changing for Words {
    type Content = &'static str;
    type Asked = At;

    fn contents(&self) -> &Served<&'static str, At> {
        &self.served
    }

    fn services(self: &Arc<Self>, portal: &Portal<At>) -> Services {
        let of = |word: &&str| self.echoes.iter().find(|echo| echo.hello == *word).expect("an echo").clone();
        portal.asked.1.iter().map(|word| of(word) as Arc<dyn Service>).collect()
    }

    fn follow(self: &Arc<Self>, before: &&'static str, now: &Edition<&'static str, At>) -> Applied {
        let old = self.followed.fetch_add(1, Ordering::SeqCst);
        Applied { changed: usize::from(*before != **now), leaving: vec![old as u64] }
    }
}

struct Running {
    server: Server,
    words: Arc<Words>,
}

fn start(asked: &[At]) -> Running {
    let cores = CoresConfig { count: 2, spin_us: 0, pool_bytes: 64 << 20 };
    let server = Server::start(cores, Vec::new()).expect("two cores");
    let words = words(server.hub());
    let mut change = server.change();
    change.prepare(&words, "first", asked).expect("a free port");
    change.commit();
    server.add(words.clone());
    Running { server, words }
}

fn words(hub: &Arc<Hub>) -> Arc<Words> {
    Arc::new(Words {
        hub: hub.clone(),
        served: Served::new("nothing"),
        echoes: vec![Echo::new("ECHO ", 4), Echo::new("ECSTATIC ", 1)],
        followed: AtomicUsize::new(0),
    })
}

impl Running {
    fn address(&self, at: usize) -> SocketAddr {
        self.words.served.now().portals[at].address
    }

    fn connect(&self) -> Client {
        connect(self.address(0))
    }

    fn apply(&self, content: &'static str, asked: &[At]) -> Applied {
        let handle = self.server.handle();
        let mut change = handle.change();
        change.prepare(&self.words, content, asked).expect("it can be listened on");
        change.commit()
    }

    fn stop(self) {
        self.server.stop(Duration::ZERO).expect("no core panicked");
        assert!(self.words.served.now().portals.is_empty(), "its sockets are closed");
    }
}

fn connect(address: SocketAddr) -> Client {
    let client = Client::connect(address).expect("it listens");
    client.set_nodelay(true).expect("an option");
    client.set_read_timeout(Some(Duration::from_secs(60))).expect("an option");
    client
}

/// Says a line, byte by byte, and expects it back.
fn echoes(client: &mut Client, line: &str) {
    for byte in line.as_bytes() {
        client.write_all(&[*byte]).expect("it reads");
    }
    let mut answer = vec![0; line.len()];
    client.read_exact(&mut answer).expect("it answers");
    assert_eq!(answer, line.as_bytes());
}

/// Sends `line`, and checks that the server closes the connection without an answer.
fn refused(client: &mut Client, line: &str) {
    client.write_all(line.as_bytes()).expect("it reads");
    let mut left = Vec::new();
    // A reset is an end too.
    let _ = client.read_to_end(&mut left);
    assert_eq!(left, b"");
}

#[test]
fn the_first_bytes_choose_among_the_services_of_a_portal() {
    let running = start(&[At(ANYWHERE, &["ECHO ", "ECSTATIC "])]);
    let (mut one, mut other) = (running.connect(), running.connect());
    echoes(&mut one, "ECHO hello");
    refused(&mut running.connect(), "GET /");
    // The second service takes one connection at once, of all that there are.
    refused(&mut other, "ECSTATIC hello");
    drop(one);
    while running.words.has_clients() {
        std::thread::yield_now();
    }
    echoes(&mut running.connect(), "ECSTATIC hello");
    let served: Vec<_> = running.words.echoes.iter().map(|echo| echo.served.load(Ordering::SeqCst)).collect();
    assert_eq!(served, [1, 1]);
    running.stop();
}

#[test]
fn a_change_keeps_portals_and_tells_them_who_serves() {
    let running = start(&[At(ANYWHERE, &["ECHO "])]);
    let address = running.address(0);
    let mut before = running.connect();
    echoes(&mut before, "ECHO hello");
    let applied = running.apply("second", &[At(ANYWHERE, &["ECSTATIC "]), At(ANYWHERE, &["ECHO "])]);
    assert_eq!(applied, Applied { changed: 1, leaving: vec![1] });
    let now = running.words.served.now();
    assert_eq!((**now, now.generation, running.words.served.generation()), ("second", 2, 2));
    assert_eq!((running.address(0), now.portals.len()), (address, 2));
    // It keeps its sockets.
    drop(now);
    refused(&mut running.connect(), "ECHO hello");
    echoes(&mut connect(running.address(1)), "ECHO hello");
    echoes(&mut before, "ECHO it goes on");
    let gone = running.address(1);
    running.apply("third", &[At(ANYWHERE, &["ECHO "])]);
    echoes(&mut running.connect(), "ECHO hello");
    while Client::connect(gone).is_ok() {
        std::thread::yield_now();
    }
    running.stop();
}

#[test]
fn a_change_that_cannot_be_prepared_whole_changes_nothing() {
    let running = start(&[At(ANYWHERE, &["ECHO "])]);
    let other = words(running.server.hub());
    let taken = std::net::TcpListener::bind(ANYWHERE).expect("a free port");
    let taken = At(taken.local_addr().expect("an address"), &["ECHO "]);
    let handle = running.server.handle();
    let free;
    {
        let mut change = handle.change();
        change
            .prepare(&running.words, "second", &[At(ANYWHERE, &[]), At(ANYWHERE, &[])])
            .expect("free ports");
        free = handle.listening_sockets().len();
        assert!(change.prepare(&other, "second", &[taken]).is_err());
    }
    assert_eq!(free, 1, "what is prepared does not listen");
    let now = running.words.served.now();
    assert_eq!((**now, now.portals.len(), now.generation), ("first", 1, 1));
    assert_eq!((**other.served.now(), running.words.followed.load(Ordering::SeqCst)), ("nothing", 1));
    echoes(&mut running.connect(), "ECHO hello");
    running.stop();
}

#[test]
fn a_paused_server_listens_again_at_the_same_sockets() {
    let running = start(&[At(ANYWHERE, &["ECHO "])]);
    let address = running.address(0);
    let handle = running.server.handle();
    handle.pause(Duration::from_secs(60));
    handle.let_go();
    assert_eq!((**running.words.served.now(), handle.listening_sockets().len()), ("nothing", 1));
    // The connection waits until a task accepts.
    let mut waiting = running.connect();
    running.apply("again", &[At(ANYWHERE, &["ECHO "])]);
    assert_eq!(running.address(0), address);
    echoes(&mut waiting, "ECHO hello");
    running.stop();
}

/// The watchdog of the service manager depends on it: a server with one core that hangs is not well.
#[test]
fn a_server_answers_only_if_each_of_its_cores_does() {
    let running = start(&[At(ANYWHERE, &["ECHO "])]);
    let handle = running.server.handle();
    let patience = Duration::from_secs(60);
    assert!(handle.answers(patience));
    for hanging in 0..2 {
        let (tell, hangs) = mpsc::channel();
        let (go_on, until) = mpsc::channel::<()>();
        let post = running.words.hub.posts().nth(hanging).expect("a core");
        let asked = post.run(move |_| async move {
            tell.send(()).expect("the test waits");
            // Blocks the thread of the core, until the sender is dropped.
            let _ = until.recv();
        });
        assert!(asked.is_ok());
        hangs.recv().expect("the core runs it");
        assert!(!handle.answers(Duration::from_millis(50)), "core {hanging} hangs");
        assert!(handle.cores(Duration::from_millis(50))[hanging].is_none());
        drop(go_on);
        assert!(handle.answers(patience), "core {hanging} goes on");
    }
    running.stop();
}

#[test]
fn a_connection_is_served_once_its_first_bytes_tell_its_protocol() {
    let running = start(&[At(ANYWHERE, &["ECHO "])]);
    let mut clients: Vec<Client> = (0..2).map(|_| running.connect()).collect();
    clients.iter_mut().for_each(|client| echoes(client, "ECHO hello"));
    let status = running.words.hub.status(Duration::from_secs(60));
    let status: Vec<_> = status.into_iter().map(|core| core.expect("it answers")).collect();
    assert!(status.iter().all(|core| core.connections == 1), "one connection a core");
    assert!(status.iter().all(|core| core.tcp.received == 10));
    assert_eq!(running.words.hub.admission.logins(), 0);
    drop(clients);
    running.stop();
}

#[test]
fn what_speaks_something_else_is_closed_and_gives_its_place_back() {
    let running = start(&[At(ANYWHERE, &["ECHO "])]);
    for _ in 0..8 {
        refused(&mut running.connect(), "GET /");
        while running.words.has_clients() {
            std::thread::yield_now();
        }
    }
    assert_eq!(running.words.echoes[0].served.load(Ordering::SeqCst), 0);
    running.stop();
}

#[test]
fn a_drain_without_clients_ends_and_can_be_undone() {
    let running = start(&[]);
    let (hub, echo) = (running.words.hub.clone(), running.words.echoes[0].clone());
    let drains = Drains::<SocketAddr>::default();
    let options = || Options { timeout: Duration::from_secs(60), redirect: None };
    let begin = || drains.begin(Scope::All, options(), &hub, echo.clone());
    begin().expect("it begins");
    assert!(begin().is_err(), "it is drained already");
    while drains.all()[0].state != State::Drained {
        std::thread::yield_now();
    }
    assert!(drains.undo(&Scope::All) && drains.all().is_empty());
    assert_eq!(drains.covering(|_| true), None);
    running.stop();
}

/// As in a process that is killed, of which only the sockets' other ends are left.
#[test]
fn cores_that_end_let_go_of_front_ends_and_their_sockets() {
    let (hub, cores) = Hub::start(1, runtime::Config::default(), Vec::new()).expect("a core");
    let hub = Arc::new(hub);
    let words = words(&hub);
    let mut change = Change::begin(&hub);
    change.prepare(&words, "first", &[At(ANYWHERE, &["ECHO "])]).expect("a free port");
    change.commit();
    let (address, there) = (words.served.now().portals[0].address, Arc::downgrade(&words));
    drop(words);
    echoes(&mut connect(address), "ECHO hello");
    cores.stop();
    cores.join().expect("no core panicked");
    assert!(there.upgrade().is_none(), "nobody has it");
    assert!(Client::connect(address).is_err(), "nobody listens");
}
