//! Access to the control socket, and the daemons that a command trusts. These tests run processes
//! of several users, so they need root.

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::fs::{PermissionsExt, chown, symlink};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};

use crate::support::command::{STAG, Server, path, said, wait_until};
use rustix::process::Signal;

/// The user who is attacked, and the attacker.
const VICTIM: u32 = 64_711;
const ATTACKER: u32 = 64_712;
/// The group `stag` of these tests.
const GROUP: u32 = 64_713;

/// Whether these tests can be run here.
fn is_root() -> bool {
    let root = rustix::process::geteuid().is_root();
    if !root {
        eprintln!("skipped: only root can be several users");
    }
    root
}

/// `stag` as the user, with the group and more groups, and without default directories.
fn stag_as(user: u32, groups: &[u32], environment: &[(&str, &str)], args: &[&str]) -> Output {
    let [first, more @ ..] = groups else { panic!("a group is missing") };
    let more: Vec<String> = more.iter().map(u32::to_string).collect();
    let mut command = Command::new("setpriv");
    command.args(["--reuid", &user.to_string(), "--regid", &first.to_string()]);
    match more.is_empty() {
        true => command.arg("--clear-groups"),
        false => command.args(["--groups", &more.join(",")]),
    };
    command.arg(STAG).args(args);
    for variable in ["STAG_CONTROL", "XDG_RUNTIME_DIR", "RUNTIME_DIRECTORY"] {
        command.env_remove(variable);
    }
    command.envs(environment.iter().copied()).stdin(Stdio::null()).output().unwrap()
}

#[track_caller]
fn ended(output: &Output, status: i32) -> String {
    let all =
        format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert_eq!(output.status.code(), Some(status), "{all}");
    all
}

/// A process of the attacker's that listens at `socket` and keeps what it receives in `heard`.
struct Impostor(Child);

impl Impostor {
    fn start(socket: &str, heard: &str) -> Self {
        let script = "import os, socket, sys\ns = socket.socket(socket.AF_UNIX)\ns.bind(sys.argv[1])\nos.chmod(sys.argv[1], 0o777)\n\
                      s.listen()\nout = open(sys.argv[2], 'wb', buffering=0)\n\
                      while True:\n    c, _ = s.accept()\n    out.write(b'connected\\n')\n    c.settimeout(5)\n\
                      \x20   try:\n        out.write(c.recv(65536))\n    except Exception: pass\n    c.close()";
        let user = ATTACKER.to_string();
        let child = Command::new("setpriv")
            .args([
                "--reuid",
                &user,
                "--regid",
                &user,
                "--clear-groups",
                "/usr/bin/python3",
                "-c",
                script,
                socket,
                heard,
            ])
            .spawn()
            .unwrap();
        wait_until("the impostor listens", || Path::new(heard).exists());
        Self(child)
    }
}

impl Drop for Impostor {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A directory that every user may enter, and write to.
fn public() -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    fs::set_permissions(dir.path(), PermissionsExt::from_mode(0o1777)).unwrap();
    dir
}

/// A configuration with a secret, which its user may read.
fn secret_config(dir: &Path) -> String {
    let file = path(dir, "stag.toml");
    let text = "[[target]]\niqn = \"iqn.2026-01.org.example:t\"\nauth = { users = [{ name = \"a\", secret = \"hush-hush-hush\" }] }\n";
    fs::write(&file, text).unwrap();
    chown(&file, Some(VICTIM), Some(VICTIM)).unwrap();
    fs::set_permissions(&file, PermissionsExt::from_mode(0o600)).unwrap();
    file
}

#[test]
fn a_socket_of_another_user_is_told_no_secret() {
    if !is_root() {
        return;
    }
    let tmp = public();
    let config = secret_config(tmp.path());
    let heard = path(tmp.path(), "heard");
    // The directory in which the victim's commands look, made by the attacker.
    let theirs = tmp.path().join(format!("stag-{VICTIM}"));
    fs::create_dir(&theirs).unwrap();
    chown(&theirs, Some(ATTACKER), Some(ATTACKER)).unwrap();
    fs::set_permissions(&theirs, PermissionsExt::from_mode(0o777)).unwrap();
    let socket = path(&theirs, "control.sock");
    let _impostor = Impostor::start(&socket, &heard);
    let environment = [("TMPDIR", tmp.path().to_str().unwrap())];
    let usual = stag_as(VICTIM, &[VICTIM], &environment, &["apply", &config]);
    assert!(ended(&usual, 1).contains(&format!("belongs to user {ATTACKER}")));
    assert_eq!(fs::read(&heard).unwrap(), b"", "nobody connects");
    // The victim names the socket itself: its command checks the daemon before it sends anything.
    for command in [&["apply", "--control", &socket, &config][..], &["status", "--control", &socket]] {
        let named = stag_as(VICTIM, &[VICTIM], &environment, command);
        assert!(ended(&named, 1).contains("neither root nor you"));
    }
    let takeover = ["serve", "--takeover", "--control", &socket, "--listen", "127.0.0.1:0", "mem:1M"];
    assert!(ended(&stag_as(VICTIM, &[VICTIM], &environment, &takeover), 4).contains("neither root nor you"));
    // Root is not fooled either.
    assert!(
        ended(&stag_as(0, &[0], &environment, &["status", "--control", &socket]), 1).contains("neither root")
    );
    wait_until("all have gone", || fs::read_to_string(&heard).unwrap().lines().count() >= 4);
    let heard = fs::read_to_string(&heard).unwrap();
    assert!(heard.lines().all(|line| line == "connected"), "{heard}");
}

#[test]
fn a_directory_or_lock_that_another_user_made_is_not_used_by_a_daemon() {
    if !is_root() {
        return;
    }
    let tmp = public();
    let theirs = tmp.path().join(format!("stag-{VICTIM}"));
    fs::create_dir(&theirs).unwrap();
    chown(&theirs, Some(ATTACKER), Some(ATTACKER)).unwrap();
    fs::set_permissions(&theirs, PermissionsExt::from_mode(0o777)).unwrap();
    let precious = tmp.path().join("precious");
    symlink(&precious, theirs.join("control.sock.lock")).unwrap();
    let environment = [("TMPDIR", tmp.path().to_str().unwrap())];
    // It serves, and reports that it cannot be managed.
    let mut command = Command::new("setpriv");
    command.args(["--reuid", &VICTIM.to_string(), "--regid", &VICTIM.to_string(), "--clear-groups"]);
    command.args([STAG, "serve", "--listen", "127.0.0.1:0", "--cores", "1", "mem:1M"]);
    command.env_remove("STAG_CONTROL").env_remove("XDG_RUNTIME_DIR").envs(environment);
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut daemon = command.spawn().unwrap();
    let (mut url, mut said) = (String::new(), String::new());
    BufReader::new(daemon.stdout.take().unwrap()).read_line(&mut url).unwrap();
    let mut log = BufReader::new(daemon.stderr.take().unwrap());
    while !said.contains("cannot be managed") && log.read_line(&mut said).unwrap() > 0 {}
    rustix::process::kill_process(rustix::process::Pid::from_child(&daemon), Signal::TERM).unwrap();
    log.read_to_string(&mut said).unwrap();
    assert!(daemon.wait().unwrap().success(), "{said}");
    assert!(said.contains("cannot be managed") && said.contains("XDG_RUNTIME_DIR"), "{said}");
    assert!(!precious.exists() && !theirs.join("control.sock").exists());
    assert!(url.starts_with("iscsi://"), "{url}");
}

#[test]
fn systemds_runtime_directory_holds_the_socket() {
    if !is_root() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let runtime = path(dir.path(), "runtime");
    let environment = [("RUNTIME_DIRECTORY", format!("{runtime}:/elsewhere"))];
    let mut daemon = Command::new(STAG)
        .args(["serve", "--listen", "127.0.0.1:0", "--cores", "1", "mem:1M"])
        .env_remove("STAG_CONTROL")
        .envs(environment.clone())
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    let socket = path(Path::new(&runtime), "control.sock");
    wait_until("the socket is there", || Path::new(&socket).exists());
    let status =
        Command::new(STAG).arg("status").env_remove("STAG_CONTROL").envs(environment).output().unwrap();
    assert!(status.status.success(), "{}", String::from_utf8_lossy(&status.stderr));
    rustix::process::kill_process(rustix::process::Pid::from_child(&daemon), Signal::TERM).unwrap();
    daemon.wait().unwrap();
}

#[test]
fn members_of_the_group_may_look_and_drain_but_not_apply() {
    if !is_root() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    fs::set_permissions(dir.path(), PermissionsExt::from_mode(0o755)).unwrap();
    let groups = path(dir.path(), "group");
    let place = dir.path().join("place");
    fs::create_dir(&place).unwrap();
    chown(&place, None, Some(GROUP)).unwrap();
    fs::set_permissions(&place, PermissionsExt::from_mode(0o2750)).unwrap();
    let socket = path(&place, "control.sock");
    // A machine that has the group: it is there for the daemon alone.
    fs::write(&groups, format!("{}stag:x:{GROUP}:\n", fs::read_to_string("/etc/group").unwrap())).unwrap();
    let script = format!(
        "mount --bind {groups} /etc/group && exec {STAG} serve --listen 127.0.0.1:0 --cores 1 --control {socket} mem:1M"
    );
    let mut daemon =
        Command::new("unshare").args(["-m", "sh", "-c", &script]).stdout(Stdio::piped()).spawn().unwrap();
    let mut url = String::new();
    BufReader::new(daemon.stdout.as_mut().unwrap()).read_line(&mut url).unwrap();
    assert!(url.starts_with("iscsi://"), "{url}");
    let about = fs::metadata(&socket).unwrap();
    assert_eq!(about.permissions().mode() & 0o777, 0o660);
    let config = secret_config(dir.path());
    let at = ["--control", socket.as_str()];
    let (carol, dave) = (64_714, 64_715);
    // By its first group, and by another one.
    fs::set_permissions(&place, PermissionsExt::from_mode(0o2751)).unwrap();
    for (user, groups) in [(dave, &[GROUP][..]), (carol, &[carol, GROUP])] {
        let status = stag_as(user, groups, &[], &[&["status"][..], &at].concat());
        assert!(ended(&status, 0).contains("mem") || status.status.success());
        ended(&stag_as(user, groups, &[], &[&["drain", "--all", "--no-wait"][..], &at].concat()), 0);
        ended(&stag_as(user, groups, &[], &[&["drain", "--all", "--undo"][..], &at].concat()), 0);
    }
    chown(&config, Some(carol), None).unwrap();
    let apply = stag_as(carol, &[carol, GROUP], &[], &[&["apply"][..], &at, &[&config]].concat());
    assert!(ended(&apply, 1).contains("only root and the daemon's own user may `apply`"));
    let takeover = [&["serve", "--takeover", "--listen", "127.0.0.1:0"][..], &at, &["mem:1M"]].concat();
    assert!(ended(&stag_as(carol, &[carol, GROUP], &[], &takeover), 4).contains("may `hand-over`"));
    // Other users do not reach the socket; if they do, the daemon refuses them.
    assert!(ended(&stag_as(dave, &[dave], &[], &[&["status"][..], &at].concat()), 5).contains("group stag"));
    fs::set_permissions(&socket, PermissionsExt::from_mode(0o666)).unwrap();
    assert!(
        ended(&stag_as(dave, &[dave], &[], &[&["status"][..], &at].concat()), 1)
            .contains("members of the group stag")
    );
    rustix::process::kill_process(rustix::process::Pid::from_child(&daemon), Signal::TERM).unwrap();
    daemon.wait().unwrap();
}

#[test]
fn silent_clients_lock_nobody_out() {
    let dir = tempfile::tempdir().unwrap();
    let socket = path(dir.path(), "socket");
    let server = Server::start(&["--listen", "127.0.0.1:0", "--control", &socket, "mem:1M"], 1);
    let silent: Vec<UnixStream> = (0..100).map(|_| UnixStream::connect(&socket).unwrap()).collect();
    said(&["status", "--control", &socket]);
    // The latest are still there.
    let mut last = silent.last().unwrap();
    last.write_all(b"{\"do\":\"status\"}\n").unwrap();
    let mut answer = String::new();
    BufReader::new(last).read_line(&mut answer).unwrap();
    assert!(answer.contains("\"ok\""), "{answer}");
    assert_eq!(server.end(Signal::TERM), Some(0));
}

#[test]
fn a_request_line_is_short_and_a_body_is_bounded() {
    let dir = tempfile::tempdir().unwrap();
    let socket = path(dir.path(), "socket");
    let server = Server::start(&["--listen", "127.0.0.1:0", "--control", &socket, "mem:1M"], 1);
    let mut client = UnixStream::connect(&socket).unwrap();
    // A client whose line is too long is disconnected, and no more is read from it.
    let line = vec![b'x'; 1 << 20];
    let sent = (0..64).take_while(|_| client.write_all(&line).is_ok()).count();
    assert!(sent < 4, "{sent} MiB of a line were taken");
    for (request, word) in [
        ("{\"do\":\"apply\",\"body\":100000000,\"name\":\"x\",\"directory\":\"/\"}\n", "more than"),
        ("{\"do\":\"status\",\"body\":5}\n", "no body"),
    ] {
        let mut client = UnixStream::connect(&socket).unwrap();
        client.write_all(request.as_bytes()).unwrap();
        let mut answer = String::new();
        client.read_to_string(&mut answer).unwrap();
        assert!(answer.contains(word), "{answer}");
    }
    said(&["status", "--control", &socket]);
    assert_eq!(server.end(Signal::TERM), Some(0));
}
