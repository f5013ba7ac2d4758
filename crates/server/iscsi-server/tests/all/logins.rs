//! Logins of unauthenticated initiators, in numbers, and with wrong secrets: the information that
//! they get, their cost, and their lines in the audit log.

use std::fmt::Write as _;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, Once, PoisonError};
use std::time::{Duration, Instant};

use crate::support::wire::Wire;
use crate::support::{Client, IQN, PATIENCE, address, server};
use iscsi::chap::{Credential, Hash, Secret};
use iscsi::login::initiator::Chap as Proof;
use iscsi::pdu::{
    Bhs, Isid, LoginRequest, LogoutReason, LogoutRequest, Opcode, RESERVED_TAG, Stage, TextRequest,
};
use iscsi::text::Pairs;
use iscsi_server::config::{Acl, Auth, Chap, Limits, Portal, ServerConfig};
use iscsi_server::{DrainOptions, DrainScope, Server};
use iser::Control;

const LISTED: &str = "iqn.2026-01.org.example:client1";
const UNLISTED: &str = "iqn.2026-01.org.example:client2";

fn stop(server: Server) {
    server.stop(Duration::from_millis(100)).expect("everything is flushed");
}

fn credential(name: &str, secret: &str) -> Credential {
    Credential { name: name.into(), secret: Secret::new(secret) }
}

fn chap(hashes: &[Hash]) -> Auth {
    let users = vec![credential("alice", "a secret of alice")];
    Auth::Chap(Chap { users, mutual: None, hashes: hashes.to_vec() })
}

fn entry(initiator: &str) -> Acl {
    Acl { initiator: initiator.into(), user: None, auth: None, luns: None, limits: Default::default() }
}

/// The same dialog with any target and initiator, as an initiator without a secret sees it.
/// Challenges differ and are left out.
fn seen(server: &Server, initiator: &str, target: &str, tsih: u16, methods: &str) -> Vec<String> {
    let mut client = Client::connect(address(server));
    let mut request = LoginRequest::new(7, Isid([0x80, 0, 0, 1, 0, 0]), tsih, 0);
    request.set_stages(Stage::SecurityNegotiation, None);
    let first =
        format!("InitiatorName={initiator} TargetName={target} SessionType=Normal AuthMethod={methods} ");
    // Each with another user, so that wrong secrets before it cost it no time.
    static USERS: AtomicUsize = AtomicUsize::new(0);
    let user = USERS.fetch_add(1, Ordering::Relaxed);
    let wrong = format!("CHAP_N=user{user} CHAP_R=0x00112233445566778899aabbccddeeff ");
    let mut seen = Vec::new();
    for text in [first.as_str(), "CHAP_A=7,5 ", &wrong] {
        client.send(request.into(), text.replace(' ', "\0").as_bytes());
        let Some(pdu) = client.receive() else { break };
        assert_eq!(pdu.bhs.opcode(), Some(Opcode::LoginResponse), "{}", pdu.bhs);
        let mut line = format!("{:?}", pdu.bhs.as_login_response().status());
        for pair in Pairs::new(&pdu.data) {
            let pair = pair.expect("a pair");
            let value = if matches!(pair.key, "CHAP_I" | "CHAP_C") { "…" } else { pair.value };
            write!(line, " {}={value}", pair.key).expect("a string takes it");
        }
        seen.push(line);
    }
    seen
}

#[test]
fn who_has_no_secret_cannot_tell_targets_names_and_sessions_apart() {
    let server = server(|config| {
        let first = &mut config.targets[0];
        first.auth = chap(&[Hash::Sha256, Hash::Md5]);
        first.acls = Some(vec![entry(LISTED)]);
        let mut elsewhere = first.clone();
        (elsewhere.name, elsewhere.groups) = ("iqn.2026-01.org.example:elsewhere".into(), vec![9]);
        elsewhere.units.clear();
        config.targets.push(elsewhere);
    });
    for methods in ["CHAP", "None,CHAP", "None"] {
        let listed = seen(&server, LISTED, IQN, 0, methods);
        assert_eq!(seen(&server, UNLISTED, IQN, 0, methods), listed, "a name that is not in the ACL");
        for target in ["iqn.2026-01.org.example:none", "iqn.2026-01.org.example:elsewhere"] {
            assert_eq!(seen(&server, LISTED, target, 0, methods), listed, "{target}");
        }
        assert_eq!(seen(&server, LISTED, IQN, 77, methods), listed, "a session that is not there");
        let last = listed.last().expect("an answer");
        assert_eq!(last, "Some(AuthenticationFailure)", "{listed:?}");
    }
    let options = DrainOptions { timeout: Duration::from_secs(1), redirect: None };
    server.handle().drain(DrainScope::Target(IQN.into()), options).expect("it is drained");
    assert_eq!(seen(&server, LISTED, IQN, 0, "CHAP"), seen(&server, UNLISTED, IQN, 0, "CHAP"), "a drain");
    stop(server);
}

#[test]
fn acls_without_chap_answer_alike_and_an_open_server_says_not_found() {
    let guarded = server(|config| config.targets[0].acls = Some(vec![entry(LISTED)]));
    let refused = ["Some(AuthorizationFailure)".to_owned()];
    assert_eq!(seen(&guarded, UNLISTED, IQN, 0, "None"), refused);
    assert_eq!(seen(&guarded, UNLISTED, "iqn.2026-01.org.example:none", 0, "None"), refused);
    assert_eq!(seen(&guarded, LISTED, "iqn.2026-01.org.example:none", 0, "None"), refused);
    stop(guarded);
    let open = server(|_| ());
    assert_eq!(seen(&open, LISTED, "iqn.2026-01.org.example:none", 0, "None"), ["Some(NotFound)"]);
    stop(open);
}

fn proof(secret: &str) -> Option<Proof> {
    Some(Proof { credential: credential("alice", secret), target: None, hashes: vec![] })
}

/// Answer of SendTargets to initiator 1.
fn listed(server: &Server, chap: Option<Proof>) -> String {
    let mut config = Client::config(1);
    (config.target, config.skip_security, config.chap) = (None, chap.is_none(), chap);
    let mut client = Client::login(address(server), config);
    let mut text = TextRequest::new(client.tag(), RESERVED_TAG);
    text.cmd_sn.set(client.cmd_sn);
    client.send(text.into(), b"SendTargets=All\0");
    String::from_utf8(client.receive().expect("an answer").data).expect("text")
}

#[test]
fn discovery_tells_who_has_proved_nothing_no_name_of_an_acl_with_chap() {
    for discovery in [Auth::None, chap(&[])] {
        let server = server(|config| {
            config.targets[0].auth = chap(&[]);
            config.targets[0].acls = Some(vec![entry(LISTED)]);
            let mut open = config.targets[0].clone();
            (open.name, open.acls) = ("iqn.2026-01.org.example:no-acl".into(), None);
            open.units.clear();
            config.targets.push(open);
            config.discovery_auth = discovery.clone();
        });
        let proved = matches!(discovery, Auth::Chap(_));
        let told = listed(&server, proved.then(|| proof("a secret of alice")).flatten());
        assert_eq!(told.contains(&format!("TargetName={IQN}\0")), proved, "{told}");
        assert!(
            told.contains("TargetName=iqn.2026-01.org.example:no-acl\0"),
            "its answer depends on no name"
        );
        stop(server);
    }
}

/// A server that can be reached from two addresses: 127.0.0.1, and ::1 at the second.
fn two_sources(limits: Limits, change: impl FnOnce(&mut ServerConfig)) -> (Server, SocketAddr, SocketAddr) {
    let server = server(|config| {
        let second = "[::1]:0".parse().expect("an address");
        config.portals.push(Portal { listen: second, ..config.portals[0] });
        config.limits = limits;
        change(config);
    });
    let (first, second) = (server.portals()[0].address, server.portals()[1].address);
    (server, first, second)
}

#[test]
fn good_logins_from_elsewhere_succeed_while_one_address_holds_all_it_can() {
    let limits = Limits { logins: 128, logins_per_address: 64, ..Limits::default() };
    let (server, first, second) = two_sources(limits, |_| ());
    // Silent ones, and some that send for ever.
    let attackers: Vec<Client> = (0..250).map(|_| Client::connect(first)).collect();
    let began = Instant::now();
    for _ in 0..50 {
        assert!(Client::connect(second).log_in_if_taken());
    }
    assert!(began.elapsed() < limits.login_timeout / 2, "the attackers were still there");
    drop(attackers);
    stop(server);
}

/// Room for 64 KiB of text from one address, for as long as a test takes.
fn little() -> Limits {
    Limits { login_memory: 1 << 20, login_timeout: 10 * PATIENCE, ..Limits::default() }
}

/// 16 logins with a text of 16,000 bytes that goes on. `send` returns the answer.
fn long_texts<C>(connect: fn(SocketAddr) -> C, send: fn(&mut C, LoginRequest, &[u8]) -> Option<Bhs>) {
    let (server, first, second) = two_sources(little(), |_| ());
    let mut request = LoginRequest::new(7, Isid([0x80, 0, 0, 1, 0, 0]), 0, 0);
    request.set_stages(Stage::LoginOperationalNegotiation, None);
    request.set_continues(true);
    let (mut held, mut refused) = (Vec::new(), 0);
    for _ in 0..16 {
        let mut client = connect(first);
        let mut all = true;
        for _ in 0..2 {
            let status =
                send(&mut client, request, &[b'A'; 8000]).map(|bhs| bhs.as_login_response().status_class);
            all &= status == Some(0);
            if !all {
                assert_eq!(status, Some(3), "a target error, after which initiators try again");
                refused += 1;
                break;
            }
        }
        held.extend(all.then_some(client));
    }
    assert!(
        (3..=5).contains(&held.len()),
        "64 KiB are one address's: {} held, {refused} refused",
        held.len()
    );
    assert!(Client::connect(second).log_in_if_taken());
    Wire::login(second, 2, true);
    drop(held);
    stop(server);
}

#[test]
fn long_texts_share_one_pool_and_leave_others_room() {
    long_texts(Client::connect, |client, request, text| {
        client.send(request.into(), text);
        client.receive().map(|pdu| pdu.bhs)
    });
}

#[test]
fn long_texts_over_iser_share_that_pool() {
    let connect = |to| Wire::connect(to, true);
    long_texts(connect, |wire, request, text| {
        wire.send(Control::default(), request.into(), text);
        wire.receive().map(|message| message.bhs)
    });
}

#[test]
fn messages_of_logins_over_iser_that_never_end_share_that_pool() {
    let (server, first, second) = two_sources(little(), |_| ());
    let begin = |_| {
        let mut wire = Wire::connect(first, false);
        wire.send_beginning(vec![0x43; 8000]);
        wire
    };
    let mut all: Vec<Wire> = (0..16).map(begin).collect();
    let is_answered = |wire: &Wire| {
        wire.socket.set_nonblocking(true).expect("it can be set");
        let answered = wire.socket.peek(&mut [0]).is_ok_and(|len| len > 0);
        wire.socket.set_nonblocking(false).expect("it can be set");
        answered
    };
    // Each holds 16 KiB, of which 4 KiB are free.
    let began = Instant::now();
    while all.iter().filter(|wire| is_answered(wire)).count() < 11 {
        assert!(began.elapsed() < PATIENCE, "most of them are held");
        std::thread::sleep(Duration::from_millis(5));
    }
    all.retain(is_answered);
    for wire in &mut all {
        let answer = wire.receive().expect("a refusal").bhs;
        assert_eq!(answer.as_login_response().status_class, 3);
    }
    Wire::login(second, 2, true);
    stop(server);
}

#[test]
fn wrong_secrets_slow_their_own_address_down_and_no_other() {
    let (server, first, second) = two_sources(Limits::default(), |config| {
        config.targets[0].auth = chap(&[]);
    });
    let attempt = |to: SocketAddr, secret: &str| {
        let mut config = Client::config(1);
        (config.skip_security, config.chap) = (false, proof(secret));
        let began = Instant::now();
        (Client::connect(to).log_in(config).is_ok(), began.elapsed())
    };
    // Each delay begins with the wrong secret before it: 250, 500 and 1,000 ms after the third.
    let began = Instant::now();
    for _ in 0..6 {
        assert!(!attempt(first, "a guess of eve.").0);
    }
    let waited = began.elapsed();
    assert!(waited >= Duration::from_millis(1750), "{waited:?}");
    // The quickest of some, since the machine may stand still during any one of them.
    let quickest_of_eight = |to| {
        let each = (0..8).map(|_| {
            let (in_, took) = attempt(to, "a secret of alice");
            assert!(in_);
            took
        });
        each.min().unwrap()
    };
    let took = quickest_of_eight(second);
    assert!(took < Duration::from_millis(900), "another address waits for nothing: {took:?}");
    assert!(attempt(first, "a secret of alice").0);
    let waited = began.elapsed();
    assert!(waited >= Duration::from_millis(3750), "the right one waits as a wrong one: {waited:?}");
    let took = quickest_of_eight(first);
    assert!(took < Duration::from_millis(900), "then it is forgotten: {took:?}");
    stop(server);
}

static LINES: Mutex<Vec<String>> = Mutex::new(Vec::new());

/// Keeps audit lines.
struct Keeper;

impl tracing::Subscriber for Keeper {
    fn enabled(&self, metadata: &tracing::Metadata<'_>) -> bool {
        metadata.target() == iscsi_server::audit::TARGET
    }

    fn new_span(&self, _: &tracing::span::Attributes<'_>) -> tracing::span::Id {
        tracing::span::Id::from_u64(1)
    }

    fn record(&self, _: &tracing::span::Id, _: &tracing::span::Record<'_>) {}
    fn record_follows_from(&self, _: &tracing::span::Id, _: &tracing::span::Id) {}
    fn enter(&self, _: &tracing::span::Id) {}
    fn exit(&self, _: &tracing::span::Id) {}

    fn event(&self, event: &tracing::Event<'_>) {
        struct Line(String);
        impl tracing::field::Visit for Line {
            fn record_debug(&mut self, field: &tracing::field::Field, value: &dyn std::fmt::Debug) {
                write!(self.0, "{}={value:?} ", field.name()).expect("a string takes it");
            }
        }
        let mut line = Line(String::new());
        event.record(&mut line);
        LINES.lock().unwrap_or_else(PoisonError::into_inner).push(line.0);
    }
}

/// Audit lines with all of `words`, once there are so many, or a second has passed.
fn lines(words: &[&str], wanted: usize) -> Vec<String> {
    let end = Instant::now() + Duration::from_secs(1);
    loop {
        let all = LINES.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let found: Vec<_> =
            all.into_iter().filter(|line| words.iter().all(|word| line.contains(word))).collect();
        if found.len() >= wanted || Instant::now() > end {
            return found;
        }
        std::thread::sleep(Duration::from_millis(10));
    }
}

fn keep() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| tracing::subscriber::set_global_default(Keeper).expect("it is the only one"));
}

/// PERSISTENT RESERVE OUT.
fn reserve(client: &mut Client, action: u8, key: u64, action_key: u64) -> u8 {
    let cdb = [0x5f, action, 1, 0, 0, 0, 0, 0, 24, 0];
    let list = [&key.to_be_bytes()[..], &action_key.to_be_bytes(), &[0; 8]].concat();
    client.write(0, &cdb, &list).0
}

#[test]
fn logins_ends_and_preemptions_are_one_audit_line_each() {
    keep();
    let server = server(|config| config.targets[0].auth = chap(&[]));
    let log_in = |number| {
        let mut config = Client::config(number);
        (config.skip_security, config.chap) = (false, proof("a secret of alice"));
        let mut client = Client::login(address(&server), config);
        client.settle(0);
        client
    };
    let (mut one, mut two) = (log_in(101), log_in(102));
    let of = |number: u8| format!("initiator=\"iqn.2026-01.org.example:client{number}\"");
    let came = lines(&["what=\"login\"", &of(101)], 1);
    assert_eq!(came.len(), 1, "{came:?}");
    for part in [&format!("target=\"{IQN}\""), "user=\"alice\"", "address=127.0.0.1:"] {
        assert!(came[0].contains(part), "{came:?}");
    }
    assert_eq!((reserve(&mut one, 0, 0, 11), reserve(&mut two, 0, 0, 22)), (0, 0));
    assert_eq!((reserve(&mut one, 1, 11, 0), reserve(&mut two, 4, 22, 11)), (0, 0));
    let taken = lines(&["what=\"preempt\"", &of(102), "user=\"alice\"", "lun=0", "others=1"], 1);
    assert_eq!(taken.len(), 1, "{taken:?}");
    one.settle(0);
    assert_eq!((reserve(&mut one, 0, 0, 11), reserve(&mut one, 3, 11, 0)), (0, 0));
    assert_eq!(lines(&["what=\"clear\"", &of(101)], 1).len(), 1);

    let mut logout = LogoutRequest::new(one.tag(), LogoutReason::CloseSession, 0);
    logout.cmd_sn.set(one.cmd_sn);
    one.send(logout.into(), &[]);
    while one.receive().is_some() {}
    let gone = lines(&["what=\"end\"", &of(101), "user=\"alice\"", "address=127.0.0.1:", "reason="], 1);
    assert_eq!(gone.len(), 1, "{gone:?}");
    stop(server);
}

#[test]
fn refusals_are_told_with_their_reason_and_a_flood_of_them_is_not() {
    keep();
    let server = server(|config| config.targets[0].acls = Some(vec![entry(LISTED)]));
    let mut config = Client::config(103);
    config.target = Some("iqn.2026-01.org.example:flooded".into());
    for _ in 0..50 {
        assert!(Client::connect(address(&server)).log_in(config.clone()).is_err());
    }
    let told = lines(&["what=\"refused\"", "target=\"iqn.2026-01.org.example:flooded\""], 11);
    assert!((1..=10).contains(&told.len()), "{} lines", told.len());
    for part in
        ["initiator=\"iqn.2026-01.org.example:client103\"", "reason=\"refused: ", "address=127.0.0.1:"]
    {
        assert!(told[0].contains(part), "{told:?}");
    }
    stop(server);
    let counted = lines(&["what=\"suppressed\"", "refusals=40"], 1);
    assert_eq!(counted.len(), 1);
}
