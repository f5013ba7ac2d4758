//! The daemon's sandbox, its watchdog, and a takeover whose other side dies.

mod support;

use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::{UnixDatagram, UnixListener};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use support::command::{STAG, Server, fails, path, said};

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
                let told = fails(&["apply", "--control", &socket, &file], 1);
                assert!(told.contains("b.img is outside of the directories"), "{told}");
                said(&["info", server.iscsi(0)]);
            }
        }
        assert_eq!(std::fs::exists(&far).unwrap(), reached);
        drop(server);
    }
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

/// Stands in for a running daemon that dies: reads the request, sends `answer`, and ends.
fn dying_daemon(socket: &str, answer: &'static [u8]) -> std::thread::JoinHandle<()> {
    let listener = UnixListener::bind(socket).unwrap();
    std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        BufReader::new(&stream).read_line(&mut String::new()).unwrap();
        let _ = stream.write_all(answer);
    })
}

#[test]
fn a_new_daemon_serves_though_the_old_one_dies_at_handing_over() {
    for answer in [&b""[..], b"{\"ok\":{\"asked\""] {
        let dir = tempfile::tempdir().unwrap();
        let socket = path(dir.path(), "control.sock");
        let old = dying_daemon(&socket, answer);
        let started = Instant::now();
        let args = ["--listen", "127.0.0.1:0", "--control", &socket, "--takeover", "mem:1M"];
        let new = Server::start(&args, 1);
        old.join().unwrap();
        said(&["info", new.iscsi(0)]);
        said(&["status", "--control", &socket]);
        assert!(started.elapsed() < Duration::from_secs(30));
    }
}
