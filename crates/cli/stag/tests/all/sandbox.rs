//! The daemon's sandbox, its watchdog, and a takeover whose other side dies.

use std::io::{BufRead, BufReader, IoSlice, IoSliceMut, Write};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::{UnixDatagram, UnixListener, UnixStream};
use std::process::{Child, Command, Stdio};
use std::sync::Mutex;
use std::sync::mpsc::channel;
use std::time::Duration;

use scsi::cdb::build::{self, Flags};

use crate::support::client::{CHECK_CONDITION, Client, GOOD};
use crate::support::command::{
    STAG, Server, fails, free_portal, path, reads_and_writes, said, stag, wait_until,
};
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage,
    SendFlags,
};
use rustix::process::{Pid, Signal, kill_process};

#[path = "../../../../storage/nbd-store/tests/server/mod.rs"]
#[allow(dead_code)]
mod nbd;

/// A line of `/proc/PID/status`.
fn of_process(server: &Server, what: &str) -> String {
    let status = std::fs::read_to_string(format!("/proc/{}/status", server.id())).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix(&format!("{what}:")));
    line.unwrap().trim().to_owned()
}

#[test]
fn a_daemon_that_serves_has_a_filter_on_every_thread() {
    let server = Server::start(&["--listen", "127.0.0.1:0", "mem:1M"], 1);
    said(&["info", server.iscsi(0)]);
    assert_eq!(of_process(&server, "Seccomp"), "2");
    assert_eq!(of_process(&server, "NoNewPrivs"), "1");
    for thread in std::fs::read_dir(format!("/proc/{}/task", server.id())).unwrap() {
        let status = std::fs::read_to_string(thread.unwrap().path().join("status")).unwrap();
        assert!(status.contains("\nSeccomp:\t2\n"), "{status}");
    }
    let open = Server::start(&["--listen", "127.0.0.1:0", "--no-sandbox", "mem:1M"], 1);
    assert_eq!(of_process(&open, "Seccomp"), "0");
}

/// A configuration with units at `paths`.
fn document(portal: &str, head: &str, paths: &[&str]) -> String {
    let unit = |path: &&str| format!("[[target.unit]]\nlun = LUN\npath = \"{path}\"\nsize = \"1M\"\n");
    let units: Vec<String> =
        paths.iter().enumerate().map(|(lun, path)| unit(path).replace("LUN", &lun.to_string())).collect();
    format!(
        "{head}\n[[portal]]\nlisten = \"{portal}\"\n[[target]]\niqn = \"iqn.2026-01.org.example:t\"\n{}",
        units.concat()
    )
}

#[test]
fn apply_says_what_the_sandbox_keeps_out_of_reach() {
    let (one, other) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let (socket, file) = (path(one.path(), "control.sock"), path(one.path(), "stag.toml"));
    let (near, far) = (path(one.path(), "a.img"), path(other.path(), "b.img"));
    let allowed = format!("sandbox-directories = [\"{}\"]", other.path().display());
    for (head, reached) in [("", false), ("sandbox = false", true), (&allowed, true)] {
        std::fs::write(&file, document("127.0.0.1:0", head, &[&near])).unwrap();
        let server = Server::start(&["--config", &file, "--control", &socket], 1);
        std::fs::write(&file, document("127.0.0.1:0", head, &[&near, &far])).unwrap();
        match reached {
            true => drop(said(&["apply", "--control", &socket, &file])),
            false => {
                // A plan says so, too.
                let planned = stag(&["apply", "--dry-run", "--control", &socket, &file]);
                let told = String::from_utf8_lossy(&planned.stdout);
                assert!(!planned.status.success() && told.contains("b.img is outside of the"), "{told}");
                let told = fails(&["apply", "--control", &socket, &file], 1);
                assert!(told.contains("b.img is outside of the directories"), "{told}");
                said(&["info", server.iscsi(0)]);
            }
        }
        assert_eq!(std::fs::exists(&far).unwrap(), reached);
        drop(server);
    }
}

/// Needs no io_uring that is made later, which the filter denies.
#[test]
fn apply_adds_and_renames_units_within_the_sandbox() {
    let dir = tempfile::tempdir().unwrap();
    let (socket, file) = (path(dir.path(), "control.sock"), path(dir.path(), "stag.toml"));
    let objects = path(dir.path(), "objects");
    let export = nbd::Server::start(nbd::WRITE_COMMANDS, true, |_| nbd::Act::Answer);
    let head = format!("runtime = \"io_uring\"\nsandbox-directories = [\"{}\"]", dir.path().display());
    let first = document("127.0.0.1:0", &head, &[&path(dir.path(), "disk.img")]);
    std::fs::write(&file, &first).unwrap();
    let server = Server::start(&["--config", &file, "--control", &socket], 1);
    let unit = |lun, what: &str| format!("[[target.unit]]\nlun = {lun}\n{what}\n");
    let at = |lun| server.iscsi(0).replace("t/0", &format!("t/{lun}"));
    for name in ["one", "another"] {
        let added = [
            unit(1, &format!("path = \"osd:{objects}\"\ncapacity = \"64M\"\nname = \"{name}\"")),
            unit(2, &format!("path = \"osd:mem:16M\"\nname = \"{name}\"")),
            unit(3, &format!("path = \"{}\"", export.uri())),
        ];
        std::fs::write(&file, format!("{first}{}", added.concat())).unwrap();
        said(&["apply", "--control", &socket, &file]);
        assert_eq!(of_process(&server, "Seccomp"), "2");
        for lun in [1, 2] {
            let told = said(&["osd", "stat", "--json", &at(lun)]);
            assert!(told.contains(name), "{told}");
        }
        said(&["bench", &at(3), "--time", "1", "--verify", "--destroy", "--pattern", "randrw"]);
    }
    let data = path(dir.path(), "data");
    std::fs::write(&data, vec![7; 3 << 20]).unwrap();
    for lun in [1, 2] {
        let partition = said(&["osd", "mkpart", &at(lun)]);
        let place = format!("{}/{}", at(lun), partition.trim());
        said(&["osd", "put", &data, &format!("{place}/data")]);
        let back = path(dir.path(), &format!("back{lun}"));
        said(&["osd", "get", &format!("{place}/data"), &back]);
        assert!(std::fs::read(&back).unwrap() == [7; 3 << 20], "LUN {lun}");
    }
    // Its threads end in order: the last checkpoint is written.
    assert_eq!(server.end(Signal::TERM), Some(0));
    let again = Server::start(&["--config", &file], 4);
    assert!(said(&["osd", "stat", "--json", again.iscsi(1)]).contains("another"));
}

/// The service manager's socket, and a daemon that reports to it.
fn under_a_manager(limit: Duration) -> (UnixDatagram, Child, tempfile::TempDir) {
    let dir = tempfile::tempdir().unwrap();
    let manager = UnixDatagram::bind(dir.path().join("notify")).unwrap();
    manager.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    let daemon = Command::new(STAG)
        .args(["--log", "warn", "serve", "--listen", "127.0.0.1:0", "mem:1M"])
        .env("STAG_CONTROL", "none")
        .env("NOTIFY_SOCKET", dir.path().join("notify"))
        .env("WATCHDOG_USEC", limit.as_micros().to_string())
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    (manager, daemon, dir)
}

fn hear(manager: &UnixDatagram) -> String {
    let mut text = [0; 4096];
    let len = manager.recv(&mut text).unwrap();
    String::from_utf8_lossy(&text[..len]).into_owned()
}

#[test]
fn the_service_manager_hears_that_all_cores_answer() {
    let (manager, mut daemon, _dir) = under_a_manager(Duration::from_millis(300));
    let told: Vec<String> = (0..12).map(|_| hear(&manager)).collect();
    daemon.kill().unwrap();
    daemon.wait().unwrap();
    let ready = told.iter().position(|told| told == "READY=1").unwrap();
    let pings = told.iter().filter(|told| *told == "WATCHDOG=1").count();
    assert!(pings >= 2, "{told:?}");
    assert!(told[..ready].iter().all(|told| told != "WATCHDOG=1"), "{told:?}");
}

/// Stands in for a running daemon: answers `status` with `told`, and ends after it has read the
/// request to hand over, or has answered it with `answer`.
fn fake_daemon(
    socket: &str,
    told: &'static str,
    answer: Option<&'static str>,
) -> std::thread::JoinHandle<()> {
    let listener = UnixListener::bind(socket).unwrap();
    std::thread::spawn(move || {
        for answer in [Some(told), answer] {
            let (mut stream, _) = listener.accept().unwrap();
            let mut line = String::new();
            let mut lines = BufReader::new(stream.try_clone().unwrap());
            lines.read_line(&mut line).unwrap();
            let Some(answer) = answer else { return };
            stream.write_all(answer.as_bytes()).unwrap();
            // Alive until the other side has gone.
            let _ = lines.read_line(&mut line);
        }
    })
}

const NOTHING: &str = "{\"v\":1,\"ok\":{}}\n";

#[test]
fn a_new_daemon_serves_though_the_old_one_dies_when_asked_to_hand_over() {
    let dir = tempfile::tempdir().unwrap();
    let socket = path(dir.path(), "control.sock");
    let old = fake_daemon(&socket, NOTHING, None);
    let args = ["--listen", "127.0.0.1:0", "--control", &socket, "--takeover", "mem:1M"];
    let new = Server::start(&args, 1);
    old.join().unwrap();
    said(&["info", new.iscsi(0)]);
    said(&["status", "--control", &socket]);
}

#[test]
fn a_daemon_that_answers_nonsense_is_not_taken_for_dead() {
    // Whole lines, from a daemon that stays. The last one is an offer without its sockets.
    for answer in [
        "nonsense\n",
        "{\"v\":1,\"ok\":{\"asked\"\n",
        "{\"v\":1,\"ok\":{\"asked\":7}}\n",
        "{\"v\":1,\"progress\":1}\n",
        "{\"v\":1,\"ok\":{\"asked\":[]}}\n",
    ] {
        let dir = tempfile::tempdir().unwrap();
        let socket = path(dir.path(), "control.sock");
        let old = fake_daemon(&socket, NOTHING, Some(answer));
        let args = ["serve", "--listen", "127.0.0.1:0", "--control", &socket, "--takeover", "mem:1M"];
        let told = fails(&args, 4);
        old.join().unwrap();
        assert!(told.contains("does not answer as it should"), "{answer}: {told}");
    }
}

/// Such a request could follow newer ones of the new daemon.
#[test]
fn a_takeover_is_refused_while_an_nbd_server_may_carry_out_an_old_request() {
    let dir = tempfile::tempdir().unwrap();
    let socket = path(dir.path(), "control.sock");
    let (go, gone) = channel::<()>();
    let gone = Mutex::new(Some(gone));
    // The first write waits.
    let export = nbd::Server::start(nbd::WRITE_COMMANDS, true, move |request| {
        let waits = if request.kind == nbd::cmd::WRITE { gone.lock().unwrap().take() } else { None };
        waits.into_iter().for_each(|gone| gone.recv().unwrap());
        nbd::Act::Answer
    });
    let (portal, unit) = (free_portal(), format!("{},op-timeout=3", export.uri()));
    let args = ["--listen", &portal, "--control", &socket, &unit];
    let old = Server::start(&args, 1);
    let target = old.iscsi(0).split('/').nth(3).unwrap().to_owned();
    let login = || Client::login(portal.parse().unwrap(), &target, "iqn.2026-01.test.stag:writer").unwrap();
    let cdb = build::write(0, 1, Flags::default());
    let mut client = login();
    client.run(&build::test_unit_ready(), None, None).unwrap();
    client.submit(&cdb, Some(vec![1; 512]), None);
    client.send().unwrap();
    wait_until("the server has the write", || export.count(|request| request.kind == nbd::cmd::WRITE) > 0);
    let takeover = [&["serve", "--takeover"], &args[..]].concat();
    // The first one finds the write at work, and the second one that it has ended as unknown.
    for _ in 0..2 {
        let told = fails(&takeover, 4);
        assert!(told.contains("has not answered a request, and may still carry it out"), "{told}");
        let refused = login().run(&cdb, Some(vec![2; 512]), None).unwrap();
        assert_eq!(refused.status, CHECK_CONDITION, "the old daemon goes on");
    }
    go.send(()).unwrap();
    let mut client = login();
    while client.run(&cdb, Some(vec![3; 512]), None).unwrap().status != GOOD {
        std::thread::sleep(Duration::from_millis(10));
    }
    let new = Server::start(&[&args[..], &["--takeover"]].concat(), 1);
    assert_eq!(old.ended(), Some(0));
    said(&["info", new.iscsi(0)]);
}

/// A moment of a takeover at which the old daemon is killed.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Moment {
    /// The new daemon has the old one's sockets, and has not said `commit`.
    Offered,
    /// The old daemon has been told `commit`.
    Committed,
    /// The new daemon has what the old one knew, and has not said `done`.
    Told,
}

/// Receives a line with the descriptors that come along.
fn receive(stream: &UnixStream) -> (Vec<u8>, Vec<OwnedFd>) {
    let (mut line, mut fds) = (Vec::new(), Vec::new());
    while line.last() != Some(&b'\n') {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(8))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let mut piece = [0; 4096];
        let into = &mut [IoSliceMut::new(&mut piece)];
        let received = rustix::net::recvmsg(stream, into, &mut control, RecvFlags::CMSG_CLOEXEC).unwrap();
        assert!(received.bytes > 0, "the daemon closes the connection");
        for message in control.drain() {
            if let RecvAncillaryMessage::ScmRights(sent) = message {
                fds.extend(sent);
            }
        }
        line.extend_from_slice(&piece[..received.bytes]);
    }
    (line, fds)
}

fn send(stream: &UnixStream, line: &[u8], fds: &[OwnedFd]) {
    let fds: Vec<_> = fds.iter().map(OwnedFd::as_fd).collect();
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(8))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    assert!(control.push(SendAncillaryMessage::ScmRights(&fds)));
    let sent = rustix::net::sendmsg(stream, &[IoSlice::new(line)], &mut control, SendFlags::NOSIGNAL);
    assert_eq!(sent.unwrap(), line.len());
}

/// Stands between a new daemon, which connects to `at`, and the one at `real`, which is process
/// `pid`. Kills that process at the moment.
fn killing_at(moment: Moment, at: &str, real: &str, pid: u32) -> std::thread::JoinHandle<()> {
    let listener = UnixListener::bind(at).unwrap();
    let real = real.to_owned();
    let relay = move || {
        loop {
            let (new, _) = listener.accept().unwrap();
            let old = UnixStream::connect(&real).unwrap();
            let lines = |stream: &UnixStream| BufReader::new(stream.try_clone().unwrap());
            let (mut from_new, mut from_old) = (lines(&new), lines(&old));
            let pass = |from: &mut BufReader<UnixStream>, mut to: &UnixStream| {
                let mut line = String::new();
                from.read_line(&mut line).unwrap();
                to.write_all(line.as_bytes()).unwrap();
                line
            };
            // Its end closes its sockets and gives up its locks before the new daemon hears of it.
            let kill = |mut from_old: BufReader<UnixStream>| {
                kill_process(Pid::from_raw(pid as i32).unwrap(), Signal::KILL).unwrap();
                let _ = std::io::Read::read_to_end(&mut from_old, &mut Vec::new());
            };
            if !pass(&mut from_new, &old).contains("hand-over") {
                pass(&mut from_old, &new);
                continue;
            }
            let (offer, fds) = receive(&old);
            send(&new, &offer, &fds);
            drop(fds);
            if moment == Moment::Offered {
                return kill(from_old);
            }
            assert!(pass(&mut from_new, &old).contains("commit"));
            if moment == Moment::Told {
                pass(&mut from_old, &new);
            }
            return kill(from_old);
        }
    };
    std::thread::spawn(relay)
}

#[test]
fn an_old_daemon_that_is_killed_while_it_hands_over_leaves_the_new_one_serving() {
    for moment in [Moment::Offered, Moment::Committed, Moment::Told] {
        let dir = tempfile::tempdir().unwrap();
        let [real, at, disk] = ["real.sock", "at.sock", "disk.img"].map(|name| path(dir.path(), name));
        let unit = format!("{disk},size=16M");
        let portal = free_portal();
        let old = Server::start(&["--listen", &portal, "--control", &real, &unit], 1);
        let bench = Command::new(STAG)
            .args(["bench", old.iscsi(0), "--time", "5", "--verify", "--destroy", "--pattern", "randrw"])
            .args(["--depth", "8"])
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        wait_until("the load begins", || reads_and_writes(&real).0 > 0);
        let relay = killing_at(moment, &at, &real, old.pid());
        let new = Server::start(&["--listen", &portal, "--control", &at, "--takeover", &unit], 1);
        relay.join().unwrap();
        assert_eq!(old.ended(), None, "{moment:?}: it was killed");
        assert_eq!(new.portal(), portal, "{moment:?}");
        // The load goes on and finds what was acknowledged, and the daemon is managed at the socket
        // that it was handed.
        let bench = bench.wait_with_output().unwrap();
        assert!(bench.status.success(), "{moment:?}: {}", String::from_utf8_lossy(&bench.stderr));
        assert!(reads_and_writes(&real).0 > 0, "{moment:?}");
        assert_eq!(new.end(Signal::TERM), Some(0), "{moment:?}");
    }
}
