//! The pages as clients see them, and clients that break every rule.

use std::io::{BufRead, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::RecvTimeoutError::Disconnected;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use admin_http::exposition::Format;
use admin_http::{Admitted, Answer, Head, Http, Peer, Report, STREAMS, Source, Tls};

/// Time limit of an answer on a machine that is busy with other tests.
const PATIENCE: Duration = Duration::from_secs(60);

#[derive(Default)]
struct Counted {
    looks: AtomicUsize,
    ill: AtomicBool,
    panics: AtomicBool,
    /// A look lasts as long as this is held.
    slow: Mutex<()>,
    executes: AtomicBool,
    strangers: Arc<AtomicBool>,
}

impl Source for Counted {
    type Picture = usize;
    type Call = Head;

    fn look(&self) -> usize {
        assert!(!self.panics.load(Ordering::SeqCst), "as the test wants");
        let look = self.looks.fetch_add(1, Ordering::SeqCst) + 1;
        drop(self.slow.lock().unwrap());
        look
    }

    fn metrics(&self, picture: &usize, format: Format) -> String {
        format!("looks {picture} {format:?}\n")
    }

    fn health(&self, _: &usize) -> Report {
        let well = !self.ill.load(Ordering::SeqCst);
        Report { well, text: format!("well: {well}\n") }
    }

    fn readiness(&self, _: &usize) -> Report {
        Report { well: true, text: "ready\n".into() }
    }

    fn may_scrape(&self, head: &Head) -> Result<(), Answer> {
        match head.authorization.as_deref() {
            Some("Bearer wrong") => Err(Self::refusal(401, "who is it?")),
            _ => Ok(()),
        }
    }

    fn admit(&self, head: Head) -> Result<Admitted<Head>, Answer> {
        match head.host.as_deref() {
            _ if head.path == "/api/events" => {
                let strangers = self.strangers.clone();
                Ok(Admitted::Events(Box::new(move || !strangers.load(Ordering::SeqCst))))
            }
            _ if !head.path.starts_with("/api/") => Err(Self::refusal(404, "there is nothing here")),
            Some("a") => Ok(Admitted::Call(head, 1000)),
            host => Err(Self::refusal(421, &format!("{host:?}"))),
        }
    }

    fn execute(&self, call: Head, body: &[u8]) -> Answer {
        if call.path == "/api/slow" {
            self.executes.store(true, Ordering::SeqCst);
            std::thread::sleep(Duration::from_millis(300));
        }
        assert!(!self.panics.load(Ordering::SeqCst), "as the test wants");
        let from = call.from.filter(|from| matches!(from, Peer::User { .. })).map(|from| format!("{from}: "));
        let from = from.unwrap_or_default();
        let body = format!("{from}{} {}?{} {} bytes", call.method, call.path, call.query, body.len());
        Answer {
            status: 200,
            fields: vec![("content-type", "text/x".into()), ("etag", "\"1\"".into())],
            body,
        }
    }

    fn refusal(status: u16, what: &str) -> Answer {
        Answer { status, fields: vec![("content-type", "text/plain".into())], body: what.into() }
    }
}

fn served() -> (Arc<Counted>, Http<Counted>, SocketAddr) {
    served_over(None)
}

fn served_over(tls: Option<Tls>) -> (Arc<Counted>, Http<Counted>, SocketAddr) {
    let socket = admin_http::listen("127.0.0.1:0".parse().unwrap()).unwrap();
    let address = socket.local_addr().unwrap();
    let http = Http::start(Some(socket), tls).unwrap();
    let source = Arc::new(Counted::default());
    http.serve(source.clone());
    (source, http, address)
}

fn connect(address: SocketAddr) -> TcpStream {
    let stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream
}

/// The answer to `request` until the connection is closed. A reset ends an answer too.
fn answer(address: SocketAddr, request: &str) -> String {
    let mut stream = connect(address);
    // A server that refuses early may not read all of it.
    let _ = stream.write_all(request.as_bytes());
    let (mut answer, mut piece) = (Vec::new(), [0; 4096]);
    while let Ok(count @ 1..) = stream.read(&mut piece) {
        answer.extend_from_slice(&piece[..count]);
    }
    String::from_utf8_lossy(&answer).into_owned()
}

fn get(address: SocketAddr, path: &str) -> String {
    answer(address, &format!("GET {path} HTTP/1.1\r\nHost: a\r\n\r\n"))
}

fn status(answer: &str) -> u16 {
    answer.split(' ').nth(1).and_then(|status| status.parse().ok()).unwrap_or(0)
}

#[test]
fn a_client_gets_metrics_in_the_format_that_it_asks_for() {
    let (_, _http, address) = served();
    let plain = get(address, "/metrics");
    assert!(plain.contains("content-type: text/plain; version=0.0.4; charset=utf-8\r\n"), "{plain}");
    assert!(plain.ends_with("looks 1 Prometheus\n"), "{plain}");
    let open =
        answer(address, "GET /metrics HTTP/1.1\r\nHost: a\r\nAccept: application/openmetrics-text\r\n\r\n");
    assert!(
        open.contains("content-type: application/openmetrics-text; version=1.0.0; charset=utf-8\r\n"),
        "{open}"
    );
    assert!(open.ends_with(" OpenMetrics\n"), "{open}");
    let head = answer(address, "HEAD /metrics HTTP/1.1\r\nHost: a\r\n\r\n");
    assert!(status(&head) == 200 && head.ends_with("\r\n\r\n"), "{head}");
}

#[test]
fn all_who_ask_within_a_second_share_one_look() {
    let (source, _http, address) = served();
    let began = std::time::Instant::now();
    let clients: Vec<_> = (0..40).map(|_| std::thread::spawn(move || get(address, "/metrics"))).collect();
    for client in clients {
        assert_eq!(status(&client.join().unwrap()), 200);
    }
    let most = began.elapsed().as_secs() as usize + 1;
    let looks = source.looks.load(Ordering::SeqCst);
    assert!((1..=most).contains(&looks), "{looks} looks in {most} s");
}

/// Each would take a thread that requests of the API need, and room in their queue.
#[test]
fn clients_that_leave_do_not_begin_a_look_each() {
    let (source, _http, address) = served();
    let slow = source.slow.lock().unwrap();
    for _ in 0..20 {
        let mut stream = connect(address);
        stream.write_all(b"GET /healthz HTTP/1.1\r\nHost: a\r\n\r\n").unwrap();
        while source.looks.load(Ordering::SeqCst) == 0 {
            std::thread::yield_now();
        }
        // Time for the server to read the request.
        std::thread::sleep(Duration::from_millis(5));
        stream.shutdown(Shutdown::Write).unwrap();
        // The server has noticed that the client is gone when it closes.
        let _ = stream.read(&mut [0]);
    }
    assert_eq!(source.looks.load(Ordering::SeqCst), 1);
    drop(slow);
    assert_eq!(status(&get(address, "/healthz")), 200);
}

#[test]
fn health_is_a_status_and_a_text() {
    let (source, _http, address) = served();
    assert_eq!(status(&get(address, "/healthz")), 200);
    source.ill.store(true, Ordering::SeqCst);
    let ill = get(address, "/healthz");
    assert!(status(&ill) == 503 && ill.ends_with("well: false\n"), "{ill}");
    assert_eq!(status(&get(address, "/readyz")), 200);
}

#[test]
fn a_source_that_panics_is_an_error_of_the_server_and_not_its_end() {
    let (source, _http, address) = served();
    source.panics.store(true, Ordering::SeqCst);
    assert_eq!(status(&get(address, "/metrics")), 500);
    source.panics.store(false, Ordering::SeqCst);
    assert_eq!(status(&get(address, "/metrics")), 200);
}

#[test]
fn wrong_requests_get_the_status_that_says_why() {
    let (_, _http, address) = served();
    let head = "HTTP/1.1\r\nHost: a\r\n";
    let long = "a".repeat(20 << 10);
    let many: String = (0..200).map(|at| format!("X-{at}: 1\r\n")).collect();
    for (request, expected) in [
        (format!("POST /metrics {head}Content-Length: 0\r\n\r\n"), 405),
        (format!("DELETE /healthz {head}\r\n"), 405),
        (format!("GET /etc/passwd {head}\r\n"), 404),
        (format!("GET /../metrics {head}\r\n"), 404),
        (format!("GET /metrics {head}X: {long}\r\n\r\n"), 431),
        (format!("GET /metrics {head}{many}\r\n"), 431),
        (format!("GET /{long} {head}\r\n"), 431),
        (format!("GET /metrics {head}Content-Length: 5\r\n\r\nhello"), 400),
        (format!("GET /metrics {head}Transfer-Encoding: chunked\r\n\r\n0\r\n\r\n"), 400),
        (format!("GET /metrics {head}Content-Length: 4\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n"), 400),
        (format!("GET /metrics {head}Content-Length: 1\r\nContent-Length: 2\r\n\r\nab"), 400),
        (format!("GET /metrics {head}Content-Length: -1\r\n\r\n"), 400),
        (format!("GET /metrics {head} folded: 1\r\n\r\n"), 400),
        // It recognizes HTTP/2 as another protocol, and closes.
        ("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_owned(), 0),
        ("\x16\x03\x01\x02\x00\r\n\r\n".to_owned(), 400),
    ] {
        let answer = answer(address, &request);
        let shown: String = request.chars().take(60).collect();
        assert_eq!(status(&answer), expected, "{shown:?} is answered with {answer}");
    }
    assert_eq!(status(&get(address, "/metrics")), 200);
}

#[test]
fn a_request_to_the_api_is_admitted_before_its_body_is_read() {
    let (source, _http, address) = served();
    let ask = |line: &str, fields: &str, body: &str| {
        answer(address, &format!("{line} HTTP/1.1\r\nHost: a\r\n{fields}\r\n{body}"))
    };
    let done = ask("PUT /api/v1/a%2Fb?plan=1", "Content-Length: 5\r\n", "hello");
    assert!(done.ends_with("PUT /api/v1/a%2Fb?plan=1 5 bytes") && done.contains("etag: \"1\"\r\n"), "{done}");
    assert!(done.contains("cache-control: no-store") && done.contains("content-type: text/x\r\n"), "{done}");
    let chunked = ask("POST /api/x", "Transfer-Encoding: chunked\r\n", "3\r\nabc\r\n0\r\n\r\n");
    assert!(chunked.ends_with("POST /api/x? 3 bytes"), "{chunked}");
    // A client that is not admitted need not send its body to get its answer.
    let refused = answer(address, "PUT /api/v1/x HTTP/1.1\r\nHost: b\r\nContent-Length: 500\r\n\r\n");
    assert!(status(&refused) == 421 && refused.ends_with("Some(\"b\")"), "{refused}");
    let twice = answer(address, "GET /api/v1/x HTTP/1.1\r\nHost: a\r\nHost: a\r\n\r\n");
    assert!(status(&twice) == 421 && twice.ends_with("Some(\"a, a\")"), "{twice}");
    // Nor does a body that is too large come whole.
    assert_eq!(status(&ask("PUT /api/x", "Content-Length: 1001\r\n", "")), 413);
    let long = format!("3e9\r\n{}\r\n0\r\n\r\n", "a".repeat(1001));
    assert_eq!(status(&ask("PUT /api/x", "Transfer-Encoding: chunked\r\n", &long)), 413);
    // Of two lengths Transfer-Encoding counts, and the connection ends (RFC 9112 §6.1).
    let both = ask("PUT /api/x", "Content-Length: 4\r\nTransfer-Encoding: chunked\r\n", "0\r\n\r\n");
    assert!(both.contains("connection: close\r\n") && both.ends_with("PUT /api/x? 0 bytes"), "{both}");
    source.panics.store(true, Ordering::SeqCst);
    assert_eq!(status(&ask("PUT /api/x", "Content-Length: 0\r\n", "")), 500);
    let scrape = answer(address, "GET /metrics HTTP/1.1\r\nHost: a\r\nAuthorization: Bearer wrong\r\n\r\n");
    assert_eq!(status(&scrape), 401);
}

#[test]
fn what_follows_a_request_is_no_request() {
    let (_, _http, address) = served();
    let two = answer(
        address,
        "GET /readyz HTTP/1.1\r\nHost: a\r\nContent-Length: 0\r\n\r\nGET /metrics HTTP/1.1\r\nHost: a\r\n\r\n",
    );
    assert!(two.matches("HTTP/1.1 ").count() == 1 && two.ends_with("ready\n"), "{two}");
}

/// The oldest of those that ask for nothing makes room.
#[test]
fn idle_connections_keep_nobody_out() {
    let (_, _http, address) = served();
    let idle: Vec<_> = (0..300).map(|_| connect(address)).collect();
    for _ in 0..20 {
        assert_eq!(status(&get(address, "/metrics")), 200);
    }
    // All but some have been closed.
    let open = idle.iter().filter(|stream| {
        stream.set_nonblocking(true).unwrap();
        let mut stream: &TcpStream = stream;
        matches!(stream.read(&mut [0; 1]), Err(error) if error.kind() == std::io::ErrorKind::WouldBlock)
    });
    assert!(open.count() <= 64);
}

#[test]
fn an_address_in_use_is_an_error() {
    let (_, _http, address) = served();
    let error = admin_http::listen(address).unwrap_err();
    assert_eq!(error.kind(), std::io::ErrorKind::AddrInUse);
}

#[test]
fn clients_wait_until_there_is_something_to_say_and_the_end_frees_the_address() {
    let socket = admin_http::listen("127.0.0.1:0".parse().unwrap()).unwrap();
    let address = socket.local_addr().unwrap();
    let http = Http::<Counted>::start(Some(socket), None).unwrap();
    let early = std::thread::spawn(move || get(address, "/readyz"));
    http.serve(Arc::default());
    assert_eq!(status(&early.join().unwrap()), 200);
    drop(http);
    assert!(TcpStream::connect(address).is_err());
    // A server that has never served ends too.
    let socket = admin_http::listen("127.0.0.1:0".parse().unwrap()).unwrap();
    drop(Http::<Counted>::start(Some(socket), None).unwrap());
}

#[test]
fn where_tls_is_spoken_nothing_is_answered_in_the_clear() {
    let pem = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/pem");
    let tls = Tls::read(&pem.join("a.pem"), &pem.join("a.key")).unwrap();
    let (source, _http, address) = served_over(Some(tls));
    let told = get(address, "/metrics");
    assert!(status(&told) == 400 && told.contains("use https://"), "{told}");
    // A record of type handshake without one in it.
    let mut stream = connect(address);
    stream.write_all(&[22, 3, 1, 0, 4, 1, 0, 0, 0]).unwrap();
    let mut alert = [0; 7];
    stream.read_exact(&mut alert).unwrap();
    assert_eq!((alert[0], alert[5]), (21, 2), "a fatal alert: {alert:?}");
    assert_eq!(source.looks.load(Ordering::SeqCst), 0);
}

#[test]
fn what_was_asked_before_the_end_is_answered() {
    let (source, http, address) = served();
    let mut silent = connect(address);
    let client = std::thread::spawn(move || get(address, "/api/slow"));
    while !source.executes.load(Ordering::SeqCst) {
        std::thread::yield_now();
    }
    drop(http);
    let told = client.join().unwrap();
    assert_eq!(status(&told), 200, "{told}");
    // A client without a request does not delay the end.
    assert_eq!(silent.read(&mut [0]).unwrap_or(0), 0);
}

/// A client that follows events.
struct Follower(std::io::BufReader<TcpStream>);

impl Follower {
    fn new(address: SocketAddr, fields: &str) -> Self {
        let mut stream = connect(address);
        write!(stream, "GET /api/events HTTP/1.1\r\nHost: a\r\n{fields}\r\n").unwrap();
        Self(std::io::BufReader::new(stream))
    }

    /// The next line that begins so, without its beginning; nothing at the end of the stream.
    fn line(&mut self, begins: &str) -> Option<String> {
        let mut line = String::new();
        while self.0.read_line(&mut line).unwrap_or(0) > 0 {
            if let Some(rest) = line.trim_end().strip_prefix(begins) {
                return Some(rest.to_owned());
            }
            line.clear();
        }
        None
    }
}

#[test]
fn events_are_followed_and_a_client_that_was_cut_off_goes_on() {
    let (source, http, address) = served();
    let mut first = Follower::new(address, "");
    assert_eq!(first.line("HTTP/1.1 ").as_deref(), Some("200 OK"));
    assert_eq!(first.line("content-type: ").as_deref(), Some("text/event-stream"));
    let began = first.line("id: ").unwrap();
    http.teller().tell("{\"a\":1}".into());
    assert_eq!(first.line("data: ").as_deref(), Some("{\"a\":1}"));
    drop(first);
    http.teller().tell("{\"a\":2}".into());
    let mut again = Follower::new(address, &format!("Last-Event-ID: {began}\r\n"));
    assert_eq!([again.line("data: "), again.line("data: ")].map(Option::unwrap), ["{\"a\":1}", "{\"a\":2}"]);
    let mut other = Follower::new(address, "Last-Event-ID: 4711\r\n");
    assert_eq!(other.line("data: ").as_deref(), Some("{\"what\":\"lost\",\"events\":null}"));
    // Nothing happens: a comment shows that the stream is alive.
    assert!(again.line(":").is_some());
    // One who may not follow any more is sent nothing more.
    source.strangers.store(true, Ordering::SeqCst);
    http.teller().tell("{\"secret\":1}".into());
    assert_eq!((again.line("data: "), Follower::new(address, "").line("data: ")), (None, None));
    source.strangers.store(false, Ordering::SeqCst);
    let mut last = Follower::new(address, "");
    assert!(last.line("id: ").is_some());
    let began = std::time::Instant::now();
    drop(http);
    assert!(
        last.line("data: ").is_none() && began.elapsed() < Duration::from_secs(2),
        "the end waits for a stream"
    );
}

#[test]
fn many_followers_are_refused_and_keep_nobody_out() {
    let (_, http, address) = served();
    let followers: Vec<_> = (0..1000).map(|_| Follower::new(address, "")).collect();
    assert_eq!(status(&get(address, "/metrics")), 200);
    let mut all: Vec<_> = followers
        .into_iter()
        .filter_map(|mut follower| {
            let status = follower.line("HTTP/1.1 ");
            assert!(
                matches!(status.as_deref(), Some("200 OK" | "503 Service Unavailable") | None),
                "{status:?}"
            );
            (status? == "200 OK").then_some(follower)
        })
        .collect();
    assert_eq!(all.len(), STREAMS);
    http.teller().tell("{}".into());
    assert!(all.iter_mut().all(|follower| follower.line("data: ").is_some()));
    drop(all);
    // Their places are free again.
    while Follower::new(address, "").line("HTTP/1.1 ").as_deref() != Some("200 OK") {
        http.teller().tell("{}".into());
    }
}

/// A client that comes through the door, and who is told when its connection has ended.
fn let_in(http: &Http<Counted>) -> (UnixStream, std::sync::mpsc::Receiver<()>) {
    let (client, server) = UnixStream::pair().unwrap();
    client.set_read_timeout(Some(PATIENCE)).unwrap();
    let (place, left) = std::sync::mpsc::channel();
    http.door().enter(server, 4711, true, Box::new(place)).unwrap();
    (client, left)
}

#[test]
fn clients_of_a_unix_socket_are_users_and_nobody_of_the_network_keeps_them_out() {
    let (_, http, address) = served();
    // All that may come over the network, and more, each of which is being answered.
    let followers: Vec<_> = (0..STREAMS).map(|_| Follower::new(address, "")).collect();
    let head = "PUT /api/x HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\n\r\n";
    let half = |_| {
        let mut stream = connect(address);
        stream.write_all(head.as_bytes()).unwrap();
        stream
    };
    let half: Vec<_> = (0..100).map(half).collect();
    for _ in 0..20 {
        let (mut client, left) = let_in(&http);
        client.write_all(format!("{head}hello").as_bytes()).unwrap();
        let mut answer = String::new();
        client.read_to_string(&mut answer).unwrap();
        assert!(answer.ends_with("user 4711: PUT /api/x? 5 bytes"), "{answer}");
        assert!(left.recv_timeout(PATIENCE).is_err_and(|error| error == Disconnected), "it keeps its place");
    }
    drop((followers, half));
    // Without an address there is the door alone.
    let alone = Http::<Counted>::start(None, None).unwrap();
    let (mut early, left) = let_in(&alone);
    early.write_all(b"GET /readyz HTTP/1.1\r\nHost: a\r\n\r\n").unwrap();
    alone.serve(Arc::default());
    let mut answer = String::new();
    early.read_to_string(&mut answer).unwrap();
    assert!(answer.ends_with("ready\n"), "{answer}");
    assert_eq!(left.recv_timeout(PATIENCE), Err(Disconnected));
    let (idle, left) = let_in(&alone);
    drop(alone);
    assert_eq!(left.recv_timeout(PATIENCE), Err(Disconnected), "the end waits for nobody");
    drop(idle);
}
