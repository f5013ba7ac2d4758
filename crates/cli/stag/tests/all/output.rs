//! Commands whose output cannot be written: the reader of a pipe has gone, or the disk is full.

use std::collections::BTreeSet;
use std::fs::{self, File, OpenOptions};
use std::process::{Command, Output, Stdio};

use crate::support;
use crate::support::command::{STAG, Server, path, said, stag};
use rustix::process::Signal;

/// A pipe that has lost its reader.
fn closed() -> Stdio {
    std::io::pipe().unwrap().1.into()
}

/// A device with no room (ENOSPC).
fn full() -> Stdio {
    Stdio::from(OpenOptions::new().write(true).open("/dev/full").unwrap())
}

fn run(args: &[&str], stdout: Stdio, stderr: Stdio) -> Output {
    let child = Command::new(STAG)
        .args(args)
        .env_remove("STAG_LOG")
        .stdin(Stdio::null())
        .stdout(stdout)
        .stderr(stderr)
        .spawn();
    child.unwrap().wait_with_output().unwrap()
}

/// `command` must end quietly without a reader, and report a full disk.
#[track_caller]
fn survives(command: &[&str]) {
    let output = run(command, closed(), Stdio::piped());
    let complaint = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(141), "stag {command:?} | true: {complaint}");
    for word in ["panicked", "ipe", "stdout"] {
        assert!(!complaint.contains(word), "stag {command:?} | true: {complaint}");
    }
    let output = run(command, full(), Stdio::piped());
    let complaint = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "stag {command:?} > /dev/full: {complaint}");
    assert!(
        complaint.contains("stdout") && complaint.contains("No space left"),
        "stag {command:?} > /dev/full: {complaint}"
    );
    assert!(!complaint.contains("panicked"), "{complaint}");
    // stderr has no reader either: the exit status is still right.
    for stderr in [closed(), full()] {
        let status = run(command, full(), stderr).status;
        assert_eq!(status.code(), Some(1), "stag {command:?} > /dev/full 2> nowhere");
    }
}

/// The names of the subcommands of `stag words…`.
fn subcommands(words: &[&str]) -> BTreeSet<String> {
    let help = said(&[words, &["--help"]].concat());
    let list = help.split("Commands:\n").nth(1).unwrap().split("\n\n").next().unwrap();
    let names = list.lines().filter(|line| line.starts_with("  ") && !line.starts_with("   "));
    names.filter_map(|line| line.split_whitespace().next()).map(str::to_owned).collect()
}

/// Every command that is not tested here has a reason.
#[test]
fn every_command_that_prints_is_tested_without_a_reader() {
    let silent = [
        "serve",
        "write",
        "cp",
        "man",
        "lab",
        "osd",
        "help",
        "rdma-bench",
        "upgrade",
        "identity",
        "rm",
        "import",
        "disconnect",
        "move",
        "lock",
    ];
    let told = [&ALONE[..], &SERVED, &MANAGED].concat();
    let told: BTreeSet<&str> =
        told.iter().map(|command| command[0]).chain(silent).chain(["apply", "read", "cat"]).collect();
    let all = subcommands(&[]);
    let missing: Vec<_> = all.iter().filter(|name| !told.contains(name.as_str())).collect();
    assert!(missing.is_empty(), "{missing:?}");
}

/// Commands that need no server.
const ALONE: [&[&str]; 12] = [
    &["--help"],
    &["--version"],
    &["serve", "--help"],
    &["check-config", "CONFIG"],
    &["completions", "bash"],
    &["conform", "--list"],
    &["conform", "--explain", "login"],
    &["demo", "--size", "1M"],
    &["doctor"],
    &["gateways", "secret"],
    &["lab", "list"],
    &["lab", "equations"],
];

#[test]
fn commands_without_a_server_never_panic_on_their_output() {
    let dir = tempfile::tempdir().unwrap();
    let config = path(dir.path(), "stag.toml");
    fs::write(
        &config,
        "[[target]]\niqn = \"iqn.2026-01.org.example:t\"\n[[target.unit]]\nlun = 0\npath = \"mem:1M\"\n",
    )
    .unwrap();
    for command in ALONE {
        let command: Vec<&str> =
            command.iter().map(|word| if *word == "CONFIG" { &config } else { *word }).collect();
        survives(&command);
    }
    survives(&["osd", "attr", "names"]);
    survives(&["identity", &config]);
}

/// Commands that are given the URL of a unit.
const SERVED: [&[&str]; 6] = [
    &["ls", "--units"],
    &["info"],
    &["info", "--json"],
    &["bench", "--time", "0.1", "--warmup", "0"],
    &["tune", "-q", "--time", "0.1", "--most", "8M"],
    &["conform", "--only", "login/key-declared-twice"],
];

#[test]
fn commands_on_a_unit_never_panic_on_their_output() {
    let server = Server::start(&["--listen", "127.0.0.1:0", "mem:16M"], 1);
    for command in SERVED {
        let place = if command[0] == "ls" { server.portal() } else { &server.urls[0] };
        survives(&[command, &[place]].concat());
    }
    survives(&["read", &server.urls[0]]);
    survives(&["cp", &server.urls[0], "-"]);
    assert_eq!(server.end(Signal::TERM), Some(0));
}

#[test]
fn commands_on_files_never_panic_on_their_output() {
    let dir = tempfile::tempdir().unwrap();
    let here = path(dir.path(), "file");
    fs::write(&here, vec![7; 1 << 20]).unwrap();
    let server = Server::start(&["--nfs", "127.0.0.1:0", "--export", "/data=mem:16M"], 1);
    let export = server.urls[0].as_str();
    let file = format!("{export}/file");
    assert!(stag(&["cp", &here, &file]).status.success());
    for command in [
        &["cat", &file][..],
        &["ls", export],
        &["info", &file],
        &["read", &file],
        &["cp", &file, "-"],
        &["bench", &file, "--time", "0.05"],
    ] {
        survives(command);
    }
    assert_eq!(server.end(Signal::TERM), Some(0));
}

#[test]
fn commands_on_objects_never_panic_on_their_output() {
    let dir = tempfile::tempdir().unwrap();
    let (file, back) = (path(dir.path(), "file"), path(dir.path(), "back"));
    fs::write(&file, vec![7; 1 << 20]).unwrap();
    let server = Server::start(&["--listen", "127.0.0.1:0", "osd:mem:64M"], 1);
    let unit = server.urls[0].as_str();
    let part = format!("{unit}/0x10000");
    let object = format!("{part}/0x10000");
    let ok = |args: &[&str]| assert!(stag(args).status.success(), "{args:?}");
    ok(&["osd", "mkpart", &part]);
    ok(&["osd", "put", &file, &object]);
    for command in [
        &["osd", "ls", unit][..],
        &["osd", "stat", &object],
        &["osd", "get", &object, "-"],
        &["osd", "get", "--json", &object, &back],
        &["osd", "attr", "list", &object],
        &["osd", "attr", "get", "--raw", &object, "used"],
        &["osd", "put", "--json", &file, &object],
        &["osd", "bench", unit, "ping", "--time", "0.05", "--warmup", "0"],
    ] {
        survives(command);
    }
    assert_eq!(server.end(Signal::TERM), Some(0));
}

/// Commands that are given `--control`.
const MANAGED: [&[&str]; 12] = [
    &["acknowledge", "iqn.2026-01.org.example:t/0"],
    &["slow"],
    &["slow", "--json"],
    &["status"],
    &["status", "--json"],
    &["alua"],
    &["drain"],
    &["top", "--once", "--interval", "0.1"],
    &["top", "--interval", "0.1"],
    &["top", "--json", "--interval", "0.1"],
    &["managed", "--json"],
    &["token", "list", "--json"],
];

#[test]
fn commands_to_a_daemon_never_panic_on_their_output() {
    let dir = tempfile::tempdir().unwrap();
    let (socket, config) = (path(dir.path(), "socket"), path(dir.path(), "stag.toml"));
    let text = "managed = true\n[[portal]]\nlisten = \"127.0.0.1:0\"\n[[target]]\niqn = \"iqn.2026-01.org.example:t\"\n\
                alua = { group = [{ id = 1, portal-groups = [1], state = \"active/optimized\" }] }\n[[target.unit]]\nlun = 0\npath = \"mem:1M\"\n";
    fs::write(&config, text).unwrap();
    let server = Server::start(&["--config", &config, "--control", &socket], 1);
    for command in MANAGED {
        survives(&[command, &["--control", &socket]].concat());
    }
    survives(&["apply", "--dry-run", "--control", &socket, &config]);
    survives(&["apply", "--json", "--control", &socket, &config]);
    assert_eq!(server.end(Signal::TERM), Some(0));
}

/// A daemon's work is not its output: it reports that its URLs could not be printed, and serves on.
#[test]
fn a_daemon_serves_on_where_its_stdout_is_closed_or_full() {
    for stdout in [closed(), full()] {
        let dir = tempfile::tempdir().unwrap();
        let socket = path(dir.path(), "socket");
        let log = path(dir.path(), "log");
        let mut daemon = Command::new(STAG)
            .args(["serve", "--listen", "127.0.0.1:0", "--control", &socket, "mem:1M"])
            .stdout(stdout)
            .stderr(File::create(&log).unwrap())
            .spawn()
            .unwrap();
        support::command::wait_until("it answers", || {
            stag(&["status", "--control", &socket]).status.success()
        });
        rustix::process::kill_process(rustix::process::Pid::from_child(&daemon), Signal::TERM).unwrap();
        assert!(daemon.wait().unwrap().success());
        let log = fs::read_to_string(&log).unwrap();
        assert!(log.contains("URLs could not be printed"), "{log}");
    }
}

#[test]
fn a_mistake_on_the_command_line_keeps_its_status_without_stderr() {
    for stderr in [closed(), full()] {
        assert_eq!(run(&["bench", "--no-such"], Stdio::null(), stderr).status.code(), Some(2));
    }
    for stderr in [closed(), full()] {
        let unreachable = ["info", "iscsi://127.0.0.1:1/iqn.2026-01.org.example:t/0"];
        assert_eq!(run(&unreachable, Stdio::null(), stderr).status.code(), Some(5));
    }
    for stderr in [closed(), full()] {
        assert_eq!(run(&["check-config", "/nowhere"], Stdio::null(), stderr).status.code(), Some(3));
    }
}
