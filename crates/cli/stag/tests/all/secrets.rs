//! Sources of secrets, and the places where secrets must not show: arguments, messages, core dumps,
//! copies in memory.

use std::fs;
use std::io::{BufRead, BufReader, Read, Seek, SeekFrom};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};

use crate::support::command::{STAG, STATE, Server, fails, path, said, stag, wait_until};
use rustix::process::{Pid, Signal, kill_process};

const SECRET: &str = "correct-horse-battery-4711";
const THEIRS: &str = "staple-staple-staple-0815";

/// A target that lets alice in, and proves that it is `t`.
fn config() -> String {
    format!(
        "pool = \"32M\"\ncores = 1\n[[portal]]\nlisten = \"127.0.0.1:0\"\n[[target]]\niqn = \"iqn.2026-01.org.example:t\"\n\
         auth = {{ users = [{{ name = \"alice\", secret = \"{SECRET}\" }}], mutual = {{ name = \"t\", secret = \"{THEIRS}\" }} }}\n\
         [[target.unit]]\nlun = 0\npath = \"mem:1M\"\n"
    )
}

fn with(args: &[&str], environment: &[(&str, &str)]) -> Output {
    let mut command = Command::new(STAG);
    command.args(args).env_remove("STAG_SECRET").env_remove("STAG_MUTUAL_SECRET");
    // Without a terminal to ask at.
    let mut command = match environment {
        [] => {
            let mut detached = Command::new("setsid");
            detached.arg("--wait").arg(STAG).args(args).env_remove("STAG_SECRET");
            detached
        }
        _ => command,
    };
    command.envs(environment.iter().copied()).stdin(Stdio::null()).output().unwrap()
}

#[test]
fn a_secret_comes_from_a_file_or_the_environment_and_never_from_a_url() {
    let dir = tempfile::tempdir().unwrap();
    let (file, wrong, toml) =
        (path(dir.path(), "secret"), path(dir.path(), "wrong"), path(dir.path(), "stag.toml"));
    fs::write(&file, format!("{SECRET}\n")).unwrap();
    fs::write(&wrong, "wrong-wrong-wrong-wrong\n").unwrap();
    fs::write(&toml, config()).unwrap();
    let server = Server::start(&["--config", &toml], 1);
    let url = &server.urls[0];
    let as_alice = url.replace("iscsi://", "iscsi://alice@");
    let own = [("STAG_SECRET", SECRET)];
    let both = [("STAG_SECRET", SECRET), ("STAG_MUTUAL_SECRET", THEIRS)];
    for (args, environment, status) in [
        (&["info", url, "--user", "alice", "--secret-file", &file][..], &[][..], 0),
        (&["info", url, "--user", "alice"], &own[..], 0),
        (&["info", &as_alice], &own, 0),
        (&["info", url, "--user", "alice", "--mutual-user", "t"], &both, 0),
        (&["info", &as_alice, "--mutual-user", "t"], &both, 0),
        (&["info", &as_alice, "--mutual-user", "x"], &both, 5),
        (&["info", url, "--user", "alice", "--secret-file", &wrong], &own, 5),
        (&["info", url, "--user", "alice"], &[("STAG_SECRET", "wrong-wrong-wrong-wrong")], 5),
        (&["info", url, "--user", "alice"], &[("STAG_SECRET", "")], 1),
        (&["info", url, "--mutual-user", "t"], &both, 1),
    ] {
        let output = with(args, environment);
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(status), "{args:?} {environment:?}: {said}");
    }
    let asked = with(&["info", url, "--user", "alice"], &[]);
    let said = String::from_utf8_lossy(&asked.stderr);
    assert_eq!(asked.status.code(), Some(1), "{said}");
    assert!(said.contains("--secret-file FILE") && said.contains("STAG_SECRET"), "{said}");
    // Before anything is connected to.
    let in_url = "iscsi://alice%correct-horse-battery-4711@127.0.0.1:1/iqn.2026-01.org.example:t/0";
    let place = in_url.trim_end_matches("/0");
    for args in [
        &["info", in_url][..],
        &["ls", place],
        &["read", in_url],
        &["write", in_url],
        &["cp", in_url, "-"],
        &["bench", in_url, "--time", "0.1"],
        &["tune", in_url],
        &["conform", in_url],
        &["osd", "ls", in_url],
        &["osd", "bench", in_url, "ping"],
    ] {
        let said = fails(args, 1);
        assert!(said.contains("STAG_SECRET") && !said.contains(SECRET), "{args:?}: {said}");
    }
    assert_eq!(server.end(Signal::TERM), Some(0));
}

#[test]
fn a_secret_is_asked_for_at_the_terminal_without_echo() {
    let dir = tempfile::tempdir().unwrap();
    let toml = path(dir.path(), "stag.toml");
    fs::write(&toml, config()).unwrap();
    let server = Server::start(&["--config", &toml], 1);
    // A terminal of its own, which types once it is asked.
    let script = r#"
import os, pty, sys
pid, fd = pty.fork()
if pid == 0:
    os.environ.pop("STAG_SECRET", None)
    os.execv(sys.argv[1], sys.argv[1:])
seen = b""
asked = False
while True:
    try:
        data = os.read(fd, 4096)
    except OSError:
        break
    if not data:
        break
    seen += data
    if b"CHAP secret of alice:" in seen and not asked:
        asked = True
        os.write(fd, os.environb[b"TYPED"] + b"\r")
sys.stdout.buffer.write(seen)
sys.exit(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
"#;
    let typed = |text: &str| {
        Command::new("python3")
            .args(["-c", script, STAG, "info", &server.urls[0], "--user", "alice"])
            .env("TYPED", text)
            .output()
            .unwrap()
    };
    let right = typed(SECRET);
    let shown = String::from_utf8_lossy(&right.stdout);
    assert_eq!(right.status.code(), Some(0), "{shown}{}", String::from_utf8_lossy(&right.stderr));
    assert!(shown.contains("CHAP secret of alice: ") && !shown.contains(SECRET), "{shown}");
    assert_eq!(typed("wrong-wrong-wrong-wrong").status.code(), Some(5));
    assert_eq!(typed("\x03").status.code(), Some(1));
    assert_eq!(server.end(Signal::TERM), Some(0));
}

/// A daemon whose process id is known, and the URL of its first unit.
struct Daemon(Child, String);

impl Daemon {
    fn start(words: &[&str]) -> Self {
        Self::of(Command::new(words[0]).args(&words[1..]))
    }

    fn of(command: &mut Command) -> Self {
        let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
        let mut url = String::new();
        BufReader::new(child.stdout.as_mut().unwrap()).read_line(&mut url).unwrap();
        assert!(url.starts_with("iscsi://"), "{url}");
        Self(child, url.trim().to_owned())
    }

    /// Number of occurrences of `what` in the process's writable memory.
    fn copies(&self, what: &[u8]) -> usize {
        let pid = self.0.id();
        let maps = fs::read_to_string(format!("/proc/{pid}/maps")).unwrap();
        let mut memory = fs::File::open(format!("/proc/{pid}/mem")).unwrap();
        let mut found = 0;
        for line in
            maps.lines().filter(|line| line.split(' ').nth(1).is_some_and(|mode| mode.starts_with("rw")))
        {
            let (from, to) = line.split(' ').next().unwrap().split_once('-').unwrap();
            let (from, to) = (u64::from_str_radix(from, 16).unwrap(), u64::from_str_radix(to, 16).unwrap());
            let mut bytes = vec![0; (to - from) as usize];
            // Rings cannot be read this way, and hold no secrets.
            if memory.seek(SeekFrom::Start(from)).and_then(|_| memory.read_exact(&mut bytes)).is_ok() {
                found += bytes.windows(what.len()).filter(|window| *window == what).count();
            }
        }
        found
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn a_daemon_holds_each_secret_once_and_zeroes_what_it_is_done_with() {
    if !rustix::process::geteuid().is_root() {
        return eprintln!("skipped: only root reads the memory of a daemon");
    }
    let dir = tempfile::tempdir().unwrap();
    let (toml, socket) = (path(dir.path(), "stag.toml"), path(dir.path(), "socket"));
    fs::write(&toml, config()).unwrap();
    let daemon = Daemon::start(&[STAG, "serve", "--config", &toml, "--control", &socket]);
    assert_eq!(daemon.copies(SECRET.as_bytes()), 1);
    assert_eq!(daemon.copies(THEIRS.as_bytes()), 1);
    // Another configuration arrives over the control socket and replaces the old one.
    let new = config().replace(SECRET, "incorrect-donkey-fuel-cell-42");
    fs::write(&toml, new).unwrap();
    said(&["apply", "--control", &socket, &toml]);
    // The thread of the control connection may still be at what it does after its answer.
    let left = |what: &str, copies| {
        wait_until(&format!("{copies} copies of {what}"), || daemon.copies(what.as_bytes()) == copies);
    };
    left("incorrect-donkey-fuel-cell-42", 1);
    left(SECRET, 0);
    // A configuration with a mistake leaves no copy.
    fs::write(&toml, config().replace(SECRET, "never-in-force-never-in-force").replace("lun = 0", "lun = x"))
        .unwrap();
    fails(&["apply", "--control", &socket, &toml], 3);
    left("never-in-force", 0);
}

/// The user under whom processes run whose memory must not be readable to that user: not root, to
/// whom everything is readable.
const USER: u32 = 64_714;

/// A command as [`USER`], if this process is root. Else it runs as this process's user.
fn as_user(program: &str) -> Command {
    match rustix::process::geteuid().is_root() {
        true => {
            let mut command = Command::new("setpriv");
            let user = USER.to_string();
            command.args(["--reuid", &user, "--regid", &user, "--clear-groups", program]);
            command
        }
        false => Command::new(program),
    }
}

/// Whether the kernel makes no core dump of a process of [`as_user`]. Its files in /proc belong to
/// root then, else to its user (proc(5)).
fn is_undumpable(pid: u32) -> bool {
    let owner = fs::metadata(format!("/proc/{pid}/status")).unwrap().uid();
    let own = match rustix::process::geteuid().as_raw() {
        0 => USER,
        own => own,
    };
    assert!([0, own].contains(&owner), "{owner}");
    owner == 0
}

/// A directory that [`as_user`] may use.
fn open_directory() -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o777)).unwrap();
    dir
}

#[test]
fn a_command_that_holds_a_secret_leaves_no_core_dump() {
    let dir = open_directory();
    let [secret, keys] = ["secret", "keys"].map(|name| path(dir.path(), name));
    fs::write(&secret, SECRET).unwrap();
    fs::write(&keys, format!("system {}\n", "00".repeat(20))).unwrap();
    let alice = ["--user", "alice", "--secret-file", &secret];
    let copy = path(dir.path(), "copy");
    for (words, more, holds) in [
        (&["info", "URL"][..], &[][..], false),
        (&["info", "URL"], &alice, true),
        (&["ls", "TARGET"], &alice, true),
        (&["bench", "URL", "--time", "0.1"], &alice, true),
        (&["cp", "URL", &copy], &alice, true),
        (&["conform", "URL"], &alice, true),
        (&["osd", "ls", "URL"], &[], false),
        (&["osd", "ls", "URL"], &alice, true),
        (&["osd", "keys", "URL", "--keys", &keys], &[], true),
    ] {
        // A target that says nothing, so that the command waits for it.
        let silent = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let target = format!("iscsi://{}/iqn.2026-01.org.example:t", silent.local_addr().unwrap());
        let url = format!("{target}/0");
        let args = words.iter().map(|word| match *word {
            "URL" => url.as_str(),
            "TARGET" => target.as_str(),
            other => other,
        });
        let mut child = as_user(STAG)
            .args(args)
            .args(more)
            .env("STATE_DIRECTORY", dir.path())
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let reached = silent.accept().unwrap();
        let undumpable = is_undumpable(child.id());
        child.kill().unwrap();
        child.wait().unwrap();
        drop(reached);
        assert_eq!(undumpable, holds, "{words:?} {more:?}");
    }
}

#[test]
fn a_daemon_leaves_no_core_dump() {
    let dir = open_directory();
    let toml = path(dir.path(), "stag.toml");
    fs::write(&toml, config()).unwrap();
    fs::create_dir(dir.path().join("state")).unwrap();
    fs::set_permissions(dir.path().join("state"), fs::Permissions::from_mode(0o777)).unwrap();
    let serve = format!(
        "ulimit -c unlimited; cd {}; exec {STAG} serve --control none --config {toml}",
        dir.path().display()
    );
    let mut daemon =
        Daemon::of(as_user("sh").args(["-c", &serve]).env("STATE_DIRECTORY", dir.path().join("state")));
    // Whether or not this machine makes core dumps at all.
    assert!(is_undumpable(daemon.0.id()));
    kill_process(Pid::from_child(&daemon.0), Signal::ABORT).unwrap();
    let status = daemon.0.wait().unwrap();
    assert_eq!(status.signal(), Some(Signal::ABORT.as_raw()));
    assert!(!status.core_dumped());
    assert!(stag(&["check-config", &toml]).status.success());
}

#[test]
fn a_secret_is_a_credential_of_the_service() {
    let (dir, credentials) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let (toml, socket) = (path(dir.path(), "stag.toml"), path(dir.path(), "socket"));
    let kept = path(credentials.path(), "alice");
    fs::write(&kept, format!("{SECRET}\n")).unwrap();
    let config =
        config().replace(&format!("secret = \"{SECRET}\""), "secret-file = \"$CREDENTIALS_DIRECTORY/alice\"");
    assert!(!config.contains(SECRET));
    fs::write(&toml, config).unwrap();
    let mut service = Command::new(STAG);
    service.env("CREDENTIALS_DIRECTORY", credentials.path()).env("STATE_DIRECTORY", STATE);
    let daemon = Daemon::of(service.args(["serve", "--config", &toml, "--control", &socket]));
    let url = daemon.1.as_str();
    let log_in = |secret: &str| with(&["info", url, "--user", "alice"], &[("STAG_SECRET", secret)]);
    let status =
        |output: Output| (output.status.code(), String::from_utf8_lossy(&output.stderr).into_owned());
    assert_eq!(status(log_in(SECRET)).0, Some(0), "{:?}", status(log_in(SECRET)));
    assert_eq!(status(log_in(THEIRS)).0, Some(5));
    // From inside of the sandbox too, where the service reads a renewed credential.
    fs::write(&kept, "incorrect-donkey-fuel-cell-42\n").unwrap();
    said(&["apply", "--control", &socket, &toml]);
    assert_eq!(status(log_in("incorrect-donkey-fuel-cell-42")).0, Some(0));
    assert_eq!(status(log_in(SECRET)).0, Some(5));
    // A credential that the service was not given.
    fs::remove_file(&kept).unwrap();
    let told = fails(&["apply", "--control", &socket, &toml], 3);
    assert!(told.contains("the secret cannot be read"), "{told}");
    // Other commands of the service may have its environment and not see its credentials.
    let beside = [("CREDENTIALS_DIRECTORY", credentials.path().to_str().unwrap())];
    let (code, told) = status(with(&["check-config", &toml], &beside));
    assert!(code == Some(0) && told.contains("only the service itself sees this secret"), "{told}");
    let (code, told) = status(with(&["serve", "--control", "none", "--config", &toml], &beside));
    assert!(code == Some(3) && told.contains("the secret cannot be read"), "{told}");
    assert_eq!(status(log_in("incorrect-donkey-fuel-cell-42")).0, Some(0));
}

/// systemd 252 shows credentials to the processes of ExecStart= alone. The daemon that takes over
/// is started by ExecReload=.
#[test]
fn a_daemon_that_takes_over_reads_the_credentials_that_it_does_not_see() {
    let (dir, credentials) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let (toml, socket) = (path(dir.path(), "stag.toml"), path(dir.path(), "socket"));
    let (shown, hidden) = (credentials.path().join("shown"), credentials.path().join("hidden"));
    fs::create_dir(&shown).unwrap();
    fs::write(shown.join("alice"), format!("{SECRET}\n")).unwrap();
    let secret = format!("secret = \"{SECRET}\"");
    let config = config().replace(&secret, "secret-file = \"$CREDENTIALS_DIRECTORY/alice\"");
    fs::write(
        &toml,
        config.replace("mem:1M\"", &format!("{}\"\nsize = \"1M\"", path(dir.path(), "disk.img"))),
    )
    .unwrap();
    let serve = |directory: Option<&Path>, takes_over: bool| {
        let mut service = Command::new(STAG);
        service.env_remove("CREDENTIALS_DIRECTORY").env("STATE_DIRECTORY", STATE);
        directory.map(|directory| service.env("CREDENTIALS_DIRECTORY", directory));
        service.args(["serve", "--config", &toml, "--control", &socket]);
        Daemon::of(service.args(takes_over.then_some("--takeover")))
    };
    let log_in = |daemon: &Daemon, secret: &str| {
        let args = ["info", daemon.1.as_str(), "--user", "alice"];
        with(&args, &[("STAG_SECRET", secret)]).status.code()
    };
    let first = serve(Some(&shown), false);
    assert_eq!(log_in(&first, SECRET), Some(0));
    fs::rename(&shown, &hidden).unwrap();
    // One whose environment names it and one whose does not; the second has it at second hand.
    let second = serve(Some(&shown), true);
    assert_eq!((log_in(&second, SECRET), log_in(&second, THEIRS)), (Some(0), Some(5)));
    let third = serve(None, true);
    assert_eq!((log_in(&third, SECRET), log_in(&third, THEIRS)), (Some(0), Some(5)));
    // From inside of the sandbox too.
    fs::write(hidden.join("alice"), "incorrect-donkey-fuel-cell-42\n").unwrap();
    said(&["apply", "--control", &socket, &toml]);
    assert_eq!(log_in(&third, "incorrect-donkey-fuel-cell-42"), Some(0));
    assert_eq!(log_in(&third, SECRET), Some(5));
    drop((first, second));
}
