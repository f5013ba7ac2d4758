//! The start of a daemon and its messages: the words and formats of its log, a forbidden io_uring,
//! nothing to serve.

use std::fs::{self, File};
use std::os::unix::fs::MetadataExt;
use std::process::{Command, Stdio};

use crate::support;
use crate::support::command::{STAG, Server, done, fails, path, said, stag};
use rustix::process::Signal;

#[test]
fn a_log_level_that_does_not_exist_is_an_error_wherever_it_stands() {
    let dir = tempfile::tempdir().unwrap();
    let config = path(dir.path(), "stag.toml");
    fs::write(&config, "log = \"verbose\"\n").unwrap();
    assert!(fails(&["check-config", &config], 3).contains("did you mean \"debug\""));
    assert!(fails(&["serve", "--config", &config], 3).contains("did you mean \"debug\""));
    assert!(fails(&["--log", "wran", "lab", "list"], 2).contains("did you mean \"warn\""));
    let by_environment = Command::new(STAG).args(["lab", "list"]).env("STAG_LOG", "loud").output().unwrap();
    assert_eq!(by_environment.status.code(), Some(2));
    assert!(String::from_utf8_lossy(&by_environment.stderr).contains("no log level"));
    fs::write(&config, "log-format = \"jsno\"\n").unwrap();
    assert!(fails(&["check-config", &config], 3).contains("did you mean \"json\""));
}

/// A daemon's log from its start to its end.
fn log(args: &[&str], environment: impl Fn(&File) -> Vec<(&'static str, String)>) -> String {
    let dir = tempfile::tempdir().unwrap();
    let file = path(dir.path(), "log");
    let log = File::create(&file).unwrap();
    let environment = environment(&log);
    let mut daemon = Command::new(STAG)
        .args(["serve", "--listen", "127.0.0.1:0", "--cores", "1", "--control", "none", "mem:1M"])
        .args(args)
        .env_remove("STAG_LOG")
        .envs(environment)
        .stdout(Stdio::piped())
        .stderr(log)
        .spawn()
        .unwrap();
    let mut url = String::new();
    std::io::BufRead::read_line(&mut std::io::BufReader::new(daemon.stdout.as_mut().unwrap()), &mut url)
        .unwrap();
    rustix::process::kill_process(rustix::process::Pid::from_child(&daemon), Signal::TERM).unwrap();
    assert!(daemon.wait().unwrap().success());
    fs::read_to_string(&file).unwrap()
}

#[test]
fn a_json_log_has_an_object_a_line() {
    let log = log(&["--log-format", "json"], |_| Vec::new());
    let lines: Vec<serde_json::Value> = log.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let listening = lines.iter().find(|line| line["fields"]["message"] == "listening").unwrap();
    assert_eq!((&listening["level"], &listening["target"]), (&"INFO".into(), &"stag::serve".into()));
    assert!(listening["timestamp"].is_string() && listening["fields"]["address"].is_string(), "{listening}");
}

/// The environment in which systemd declares that stderr is the journal's.
fn journal(log: &File) -> Vec<(&'static str, String)> {
    let about = log.metadata().unwrap();
    vec![("JOURNAL_STREAM", format!("{}:{}", about.dev(), about.ino()))]
}

#[test]
fn the_journal_gets_priorities_and_no_times() {
    let year = "20";
    for (args, environment) in
        [(&[][..], journal as fn(&File) -> _), (&["--log-format", "journald"], |_| Vec::new())]
    {
        let log = log(args, environment);
        assert!(log.lines().any(|line| line.starts_with("<6>") && line.contains("listening")), "{log}");
        for line in log.lines() {
            assert!(line.starts_with('<') && !line[3..].starts_with(year), "{line}");
            assert!(!line.contains("INFO") && !line.contains('\x1b'), "{line}");
        }
    }
    // Another process's stream is not this one's journal.
    let log = log(&[], |_| vec![("JOURNAL_STREAM", "1:1".to_owned())]);
    assert!(log.contains(" INFO ") && !log.contains("<6>"), "{log}");
}

#[test]
fn a_start_that_fails_is_an_error_in_the_journal() {
    let dir = tempfile::tempdir().unwrap();
    let file = path(dir.path(), "log");
    for (args, status) in [(&["/nowhere/at/all"][..], 4), (&["--config", "/nowhere/at/all"], 3)] {
        let log = File::create(&file).unwrap();
        let mut command = Command::new(STAG);
        command.args(["serve", "--control", "none"]).args(args).envs(journal(&log)).stderr(log);
        assert_eq!(command.status().unwrap().code(), Some(status));
        let log = fs::read_to_string(&file).unwrap();
        assert!(!log.is_empty() && log.lines().all(|line| line.starts_with("<3>")), "{log}");
    }
}

/// `stag` under a filter as containers have it, which refuses io_uring_setup(2) and others with an
/// error number.
fn filtered(errno: i32) -> Command {
    let mut command = Command::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../../../tests/lab/forbidden"));
    command.env("STAG_FILTERED", STAG).env("STAG_ERRNO", errno.to_string());
    command.env("STATE_DIRECTORY", support::command::STATE);
    command
}

/// The status and the stderr of a command that ends.
fn told(command: &mut Command) -> (Option<i32>, String) {
    let output = command.output().unwrap();
    (output.status.code(), String::from_utf8_lossy(&output.stderr).into_owned())
}

#[test]
fn a_forbidden_io_uring_is_replaced_by_epoll_which_is_said() {
    for errno in [libc::EPERM, libc::ENOSYS] {
        let dir = tempfile::tempdir().unwrap();
        let (socket, log, disk) =
            (path(dir.path(), "socket"), path(dir.path(), "log"), path(dir.path(), "disk"));
        let unit = format!("{disk},size=1M");
        let server = Server::spawn(
            filtered(errno).args(["--log", "info"]).stderr(File::create(&log).unwrap()),
            &["--listen", "127.0.0.1:0", "--cores", "2", "--control", &socket, &unit, "mem:1M"],
            2,
        );
        let noise = support::command::noise(1 << 20);
        for url in &server.urls {
            support::command::stag_with(&["write", url], &noise);
            assert_eq!(done(&["read", url]), noise, "{url}");
            // The client has no ring either.
            let read = filtered(errno).args(["read", url]).output().unwrap();
            assert!(read.status.success() && read.stdout == noise, "{url}");
        }
        let status: serde_json::Value =
            serde_json::from_str(&said(&["status", "--control", &socket, "--json"])).unwrap();
        assert_eq!(status["runtime"], "epoll");
        assert!(said(&["status", "--control", &socket]).contains("runs on epoll instead of io_uring"));
        assert_eq!(server.end(Signal::TERM), Some(0));
        let log = fs::read_to_string(&log).unwrap();
        assert!(log.contains("epoll and threads") && log.contains("seccomp filter"), "{log}");
    }
}

#[test]
fn io_uring_that_is_asked_for_and_forbidden_is_told_as_such() {
    let dir = tempfile::tempdir().unwrap();
    let config = path(dir.path(), "stag.toml");
    fs::write(&config, "runtime = \"io_uring\"\n").unwrap();
    let serve = ["serve", "--control", "none", "--listen", "127.0.0.1:0", "mem:1M"];
    for asked in [&["--config", config.as_str()][..], &[]] {
        let variable = if asked.is_empty() { "io_uring" } else { "auto" };
        let (status, told) =
            told(filtered(libc::EPERM).args(serve).args(asked).env("STAG_RUNTIME", variable));
        assert_eq!(status, Some(4), "{told}");
        assert!(told.contains("seccomp filter") && told.contains("io_uring_setup"), "{told}");
        assert!(!told.contains("1024") && !told.contains("too old"), "{told}");
    }
    let (status, said) = told(filtered(libc::ENOSYS).args(serve).env("STAG_RUNTIME", "io_uring"));
    assert!(status == Some(4) && said.contains("hides it"), "{said}");
    let (status, said) = told(Command::new(STAG).args(serve).env("STAG_RUNTIME", "io-uring"));
    assert!(status == Some(4) && said.contains("STAG_RUNTIME=io-uring: write auto"), "{said}");
}

#[test]
fn a_takeover_goes_between_io_uring_and_epoll() {
    let dir = tempfile::tempdir().unwrap();
    let (socket, disk) = (path(dir.path(), "socket"), path(dir.path(), "disk"));
    let portal = support::command::free_portal();
    let unit = format!("{disk},size=1M");
    let args = ["--listen", &portal, "--control", &socket, &unit];
    let with_ring = || {
        let mut command = Command::new(STAG);
        command.env("STATE_DIRECTORY", support::command::STATE);
        command
    };
    let mut running = Server::spawn(&mut with_ring(), &args, 1);
    let noise = support::command::noise(1 << 20);
    support::command::stag_with(&["write", &running.urls[0]], &noise);
    for epoll in [true, false, true] {
        let successor = || if epoll { filtered(libc::EPERM) } else { with_ring() };
        // One that fails gives the listening socket back as it is then.
        let (status, told) =
            told(successor().args(["serve", "--takeover"]).args(args).arg("/nowhere/at/all"));
        assert_eq!(status, Some(4), "{told}");
        let url = running.urls[0].clone();
        assert_eq!(done(&["read", &url]), noise, "epoll: {epoll}");
        let next = Server::spawn(&mut successor(), &[&args[..], &["--takeover"]].concat(), 1);
        assert_eq!(running.ended(), Some(0));
        assert_eq!(done(&["read", &url]), noise, "epoll: {epoll}");
        running = next;
    }
    assert_eq!(running.end(Signal::TERM), Some(0));
}

#[test]
fn a_daemon_starts_empty_and_is_told_later_what_to_serve() {
    let dir = tempfile::tempdir().unwrap();
    let (socket, config, empty) =
        (path(dir.path(), "socket"), path(dir.path(), "stag.toml"), path(dir.path(), "empty.toml"));
    let target = "[[target]]\niqn = \"iqn.2026-01.org.example:t\"\n";
    fs::write(&empty, "").unwrap();
    for start in [&["--config", empty.as_str()][..], &[]] {
        let args = [&["--listen", "127.0.0.1:0", "--cores", "1", "--control", &socket][..], start].concat();
        let server = Server::start(&args, 0);
        support::command::wait_until("it answers", || {
            stag(&["status", "--control", &socket]).status.success()
        });
        let status: serde_json::Value =
            serde_json::from_str(&said(&["status", "--control", &socket, "--json"])).unwrap();
        assert_eq!(status["targets"].as_array().unwrap().len(), 0);
        let portal = status["portals"][0]["listen"].as_str().unwrap().to_owned();
        fs::write(&config, target).unwrap();
        said(&["apply", "--control", &socket, &config]);
        assert!(said(&["ls", &portal]).contains("iqn.2026-01.org.example:t"));
        fs::write(&config, format!("{target}[[target.unit]]\nlun = 0\npath = \"mem:1M\"\n")).unwrap();
        said(&["apply", "--control", &socket, &config]);
        said(&["info", &format!("iscsi://{portal}/iqn.2026-01.org.example:t/0")]);
        said(&["apply", "--control", &socket, &empty]);
        assert_eq!(said(&["ls", &portal]), "");
        assert_eq!(server.end(Signal::TERM), Some(0));
    }
    assert!(fails(&["serve", "--control", "none"], 2).contains("nothing is served"));
}

#[test]
fn portals_that_exclude_each_other_are_refused_on_the_command_line_too() {
    let both =
        ["serve", "--control", "none", "--listen", "0.0.0.0:3999", "--listen", "127.0.0.1:3999", "mem:1M"];
    assert!(fails(&both, 2).contains("cannot both be listened on"));
}

#[test]
fn info_hides_security_tokens_and_a_read_beyond_the_end_fails() {
    let server = Server::start(&["--listen", "127.0.0.1:0", "osd:mem:64M", "mem:1M"], 2);
    let info = said(&["info", "--json", &server.urls[0]]);
    let info: serde_json::Value = serde_json::from_str(&info).unwrap();
    assert!(info["vpd_pages"].as_array().unwrap().contains(&0xb1.into()), "{info}");
    assert!(info["characteristics"].is_null(), "{info}");
    assert!(!said(&["info", &server.urls[0]]).contains("medium"));
    let disk = said(&["info", "--json", &server.urls[1]]);
    assert!(
        serde_json::from_str::<serde_json::Value>(&disk).unwrap()["characteristics"].is_object(),
        "{disk}"
    );
    assert!(fails(&["read", &server.urls[1], "--offset", "600M"], 1).contains("ends at byte 1048576"));
    assert!(fails(&["read", &server.urls[1], "--offset", "1048577"], 1).contains("ends at byte 1048576"));
    assert_eq!(said(&["read", &server.urls[1], "--offset", "1M"]), "");
    assert_eq!(server.end(Signal::TERM), Some(0));
}
