//! The management of a running daemon, as its administrators see it: the control socket and the
//! commands that use it.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpListener;
use std::os::unix::net::UnixStream;
use std::sync::mpsc;
use std::time::Duration;

use crate::support;
use crate::support::command::{
    Server, done, fails, free_portal, noise, path, reads_and_writes, said, stag, stag_with, wait_until,
};
use isns::header::{RESPONSE, flags};
use isns::{Function, Joiner, Message, Status};
use rustix::process::Signal;
use serde_json::Value;

/// The daemon's answer to one line.
fn ask(socket: &str, line: &str) -> Value {
    let mut stream = UnixStream::connect(socket).unwrap();
    // A client beyond the limit gets its answer and is disconnected before it sends anything.
    let _ = stream.write_all(format!("{line}\n").as_bytes());
    let mut answer = String::new();
    BufReader::new(stream).read_line(&mut answer).unwrap();
    serde_json::from_str(&answer).unwrap()
}

fn status(socket: &str) -> Value {
    serde_json::from_str(&said(&["status", "--control", socket, "--json"])).unwrap()
}

#[test]
fn status_tells_what_is_served_and_to_whom() {
    let dir = tempfile::tempdir().unwrap();
    let (socket, disk) = (path(dir.path(), "control.sock"), path(dir.path(), "disk.img"));
    let server = Server::start(
        &["--listen", "127.0.0.1:0", "--control", &socket, "mem:8M", &format!("{disk},size=4M,bs=4096")],
        2,
    );
    let empty = status(&socket);
    assert_eq!(empty["version"], env!("CARGO_PKG_VERSION"));
    assert_eq!(empty["portals"][0]["listen"], server.portal());
    assert_eq!(empty["targets"][0]["units"][0]["size"], 8 << 20);
    assert_eq!(empty["targets"][0]["units"][1]["path"], disk.as_str());
    assert_eq!(empty["targets"][0]["units"][1]["block"], 4096);
    assert_eq!(empty["sessions"].as_array().unwrap().len(), 0);
    let mut bench = std::process::Command::new(support::command::STAG)
        .args(["bench", server.iscsi(0), "--time", "300", "--connections", "2"])
        .stdout(std::process::Stdio::null())
        .spawn()
        .unwrap();
    let deadline = std::time::Instant::now() + std::time::Duration::from_secs(60);
    let busy = loop {
        let busy = status(&socket);
        let connections = busy["sessions"][0]["connections"].as_array().map_or(0, Vec::len);
        if connections == 2 {
            break busy;
        }
        assert!(std::time::Instant::now() < deadline, "{busy:#}");
        std::thread::sleep(std::time::Duration::from_millis(20));
    };
    let text = said(&["status", "--control", &socket]);
    bench.kill().unwrap();
    bench.wait().unwrap();
    let session = &busy["sessions"][0];
    assert_eq!(session["target"], empty["targets"][0]["iqn"]);
    assert_eq!(session["connections"][1]["transport"], "iscsi");
    assert!(text.contains(session["initiator"].as_str().unwrap()), "{text}");
    assert!(text.contains("lun 1: ") && text.contains("4M, 4096-byte blocks"), "{text}");
    assert_eq!(server.end(Signal::TERM), Some(0));
    assert!(!std::path::Path::new(&socket).exists(), "the socket goes with its daemon");
    assert!(fails(&["status", "--control", &socket], 5).contains("is `stag serve` running?"));
}

#[test]
fn status_tells_how_much_rdma_reads_brought_into_units() {
    const SIZE: u64 = 8 << 20;
    let dir = tempfile::tempdir().unwrap();
    let (socket, image) = (path(dir.path(), "control.sock"), path(dir.path(), "disk.img"));
    std::fs::write(&image, (0..SIZE as u32).map(|at| (at >> 9) as u8 | 1).collect::<Vec<u8>>()).unwrap();
    let server = Server::start(&["--listen", "127.0.0.1:0", "--control", &socket, "mem:8M"], 1);
    said(&["cp", &image, &server.iser(0)]);
    let now = status(&socket);
    let sum = |what: &str| -> u64 {
        let cores = now["cores"].as_array().unwrap();
        cores.iter().map(|core| core["rdma"][what].as_u64().unwrap()).sum()
    };
    let placed = sum("placed");
    assert!(placed > SIZE / 2 && placed <= sum("in_place") + sum("copied_in"), "{now:#}");
    let text = said(&["status", "--control", &socket]);
    assert!(text.contains(" into units, "), "{text}");
}

#[test]
fn two_daemons_do_not_share_a_socket_and_a_dead_one_leaves_it_to_the_next() {
    let dir = tempfile::tempdir().unwrap();
    let socket = path(dir.path(), "control.sock");
    let args = ["--listen", "127.0.0.1:0", "--control", &socket, "mem:1M"];
    let first = Server::start(&args, 1);
    let words: Vec<&str> = ["serve"].iter().chain(&args).copied().collect();
    assert!(fails(&words, 4).contains("another daemon has the control socket"));
    assert_eq!(ask(&socket, r#"{"do":"status"}"#)["v"], 1);
    assert_eq!(first.end(Signal::KILL), None);
    let second = Server::start(&args, 1);
    assert_eq!(status(&socket)["portals"][0]["listen"], second.portal());
}

#[test]
fn what_is_no_request_is_answered_and_the_next_one_is_served() {
    let dir = tempfile::tempdir().unwrap();
    let socket = path(dir.path(), "control.sock");
    let _server = Server::start(&["--listen", "127.0.0.1:0", "--control", &socket, "mem:1M"], 1);
    for nonsense in [
        "",
        "{",
        "[]",
        r#"{"do":7}"#,
        r#"{"do":"dance"}"#,
        r#"{"v":2,"do":"status"}"#,
        r#"{"do":"status","x":1}"#,
    ] {
        assert_eq!(ask(&socket, nonsense)["error"]["kind"], "request", "{nonsense}");
    }
    // Silent clients block no others.
    let silent: Vec<UnixStream> = (0..20).map(|_| UnixStream::connect(&socket).unwrap()).collect();
    assert!(ask(&socket, r#"{"do":"status"}"#)["ok"]["pid"].is_u64());
    drop(silent);
}

#[test]
fn a_drain_lets_nobody_in_until_it_is_undone() {
    let dir = tempfile::tempdir().unwrap();
    let socket = path(dir.path(), "control.sock");
    let server = Server::start(&["--listen", "127.0.0.1:0", "--control", &socket, "mem:8M"], 1);
    let drain = |words: &[&str]| said(&[&["drain", "--control", &socket], words].concat());
    assert_eq!(drain(&[]), "nothing is being drained\n");
    let name = status(&socket)["targets"][0]["iqn"].as_str().unwrap().to_owned();
    let mut idle = std::process::Command::new(support::command::STAG)
        .args(["bench", server.iscsi(0), "--time", "300", "--depth", "1", "--reconnect", "0"])
        .stdout(std::process::Stdio::null())
        .stderr(std::process::Stdio::null())
        .spawn()
        .unwrap();
    let deadline = std::time::Instant::now() + std::time::Duration::from_secs(60);
    while status(&socket)["sessions"].as_array().unwrap().is_empty() {
        assert!(std::time::Instant::now() < deadline, "nobody logs in");
        std::thread::sleep(std::time::Duration::from_millis(20));
    }
    let told = drain(&[&name, "--timeout", "30"]);
    idle.kill().unwrap();
    idle.wait().unwrap();
    assert!(told.starts_with(&format!("{name}: drained, 1 asked")), "{told}");
    assert!(drain(&[]).contains("drained"));
    fails(&["info", server.iscsi(0)], 5);
    assert!(fails(&["drain", "--control", &socket, &name], 1).contains("being drained already"));
    assert!(
        fails(&["drain", "--control", &socket, "iqn.2026-01.org.example:none"], 1)
            .contains("there is no target")
    );
    drain(&[&name, "--undo"]);
    said(&["info", server.iscsi(0)]);
    drain(&["--portal", server.portal(), "--redirect", "192.0.2.1", "--no-wait"]);
    let redirected: Value = serde_json::from_str(&drain(&["--json"])).unwrap();
    assert_eq!(redirected[0]["redirect"], "192.0.2.1:3260");
    drain(&["--portal", server.portal(), "--undo"]);
    said(&["info", server.iscsi(0)]);
    assert_eq!(server.end(Signal::TERM), Some(0));
}

/// A configuration of one target, and what else there is to say.
fn document(units: &[(u16, &str)], more: &str) -> String {
    let mut text = format!("{more}\n[[target]]\niqn = \"iqn.2026-01.org.example:t\"\n");
    for (lun, rest) in units {
        text += &format!("[[target.unit]]\nlun = {lun}\n{rest}\n");
    }
    text
}

#[test]
fn apply_changes_what_is_served_whole_or_not_at_all() {
    let dir = tempfile::tempdir().unwrap();
    let (socket, file) = (path(dir.path(), "control.sock"), path(dir.path(), "stag.toml"));
    let (a, b) = (path(dir.path(), "a.img"), path(dir.path(), "b.img"));
    let with = |size: &str| format!("path = \"{a}\"\nsize = \"{size}\"");
    std::fs::write(&file, document(&[(0, &with("4M"))], "")).unwrap();
    let server = Server::start(&["--listen", "127.0.0.1:0", "--control", &socket, "--config", &file], 1);
    let apply = |extra: &[&str]| {
        let text = said(&[&["apply", "--control", &socket, "--json"], extra, &[file.as_str()]].concat());
        serde_json::from_str::<Value>(&text).unwrap()
    };
    assert_eq!(apply(&[])["plan"]["changes"].as_array().unwrap().len(), 0);
    // Grown, and one more; seen first in a dry run, which changes nothing.
    let other = format!("path = \"{b}\"\nsize = \"1M\"");
    std::fs::write(&file, document(&[(0, &with("8M")), (5, &other)], "")).unwrap();
    // A time that is none is refused before anything changes.
    let refused = fails(&["apply", "--control", &socket, "--wait", "--timeout=-1", &file], 2);
    assert!(refused.contains("wait_s is no time"), "{refused}");
    let text = said(&["apply", "--control", &socket, "--dry-run", &file]);
    assert!(text.contains("~ iqn.2026-01.org.example:t LUN 0: size 8M"), "{text}");
    assert!(text.contains("+ iqn.2026-01.org.example:t LUN 5") && text.contains("would be done"), "{text}");
    assert!(!std::path::Path::new(&b).exists() && std::fs::metadata(&a).unwrap().len() == 4 << 20);
    // A time beyond the clock's end is no limit.
    assert_eq!(apply(&["--wait", "--timeout", "1.5e19"])["applied"], true);
    let units = || -> Vec<(Value, Value)> {
        let told = status(&socket)["targets"][0]["units"].as_array().unwrap().clone();
        told.into_iter().map(|unit| (unit["lun"].clone(), unit["size"].clone())).collect()
    };
    let grown = [(0.into(), (8 << 20).into()), (5.into(), (1 << 20).into())];
    assert_eq!(units(), grown);
    let url = server.urls[0].replace("/0", "/5");
    assert!(said(&["info", &url]).contains("1M") || said(&["info", &url]).contains("MiB"));
    // A configuration that cannot be applied is refused as a whole.
    std::fs::write(&file, document(&[(0, &with("2M")), (6, "path = \"mem:1M\"")], "")).unwrap();
    assert!(fails(&["apply", "--control", &socket, &file], 1).contains("--force"));
    std::fs::write(&file, document(&[(0, &with("8M")), (6, "path = \"/nowhere/at/all\"")], "")).unwrap();
    assert!(fails(&["apply", "--control", &socket, &file], 1).contains("nothing has been changed"));
    assert!(fails(&["apply", "--control", &socket, "/nowhere/at/all.toml"], 3).contains("cannot be read"));
    assert_eq!(units(), grown);
    // SIGHUP reads the same file.
    std::fs::write(&file, document(&[(9, "path = \"mem:2M\"")], "")).unwrap();
    server.signal(Signal::HUP);
    let deadline = std::time::Instant::now() + std::time::Duration::from_secs(60);
    while status(&socket)["targets"][0]["units"][0]["lun"] != 9 {
        assert!(std::time::Instant::now() < deadline);
        std::thread::sleep(std::time::Duration::from_millis(10));
    }
    assert_eq!(server.end(Signal::TERM), Some(0));
}

#[test]
fn a_session_at_work_is_not_disturbed_by_what_is_not_its_business() {
    let dir = tempfile::tempdir().unwrap();
    let (socket, file) = (path(dir.path(), "control.sock"), path(dir.path(), "stag.toml"));
    let mine = (0, "path = \"mem:16M\"");
    std::fs::write(&file, document(&[mine], "")).unwrap();
    let server = Server::start(&["--listen", "127.0.0.1:0", "--control", &socket, "--config", &file], 1);
    let bench = std::process::Command::new(support::command::STAG)
        .args([
            "bench",
            server.iscsi(0),
            "--time",
            "2",
            "--verify",
            "--destroy",
            "--pattern",
            "randrw",
            "--reconnect",
            "0",
        ])
        .stdout(std::process::Stdio::piped())
        .stderr(std::process::Stdio::piped())
        .spawn()
        .unwrap();
    let applier = std::thread::spawn({
        let (socket, file) = (socket.clone(), file.clone());
        move || {
            for round in 0..10u16 {
                let other = (round + 1, "path = \"mem:1M\"");
                let luns: &[_] = if round % 2 == 0 { &[mine, other] } else { &[mine] };
                std::fs::write(&file, document(luns, "[limits]\nqueue-depth = 64")).unwrap();
                said(&["apply", "--control", &socket, &file]);
                std::thread::sleep(std::time::Duration::from_millis(100));
            }
        }
    });
    applier.join().unwrap();
    let output = bench.wait_with_output().unwrap();
    let said =
        String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}");
}

/// Starts `stag bench` on a unit, verifying its reads.
fn verifier(url: &str, seconds: &str) -> std::process::Child {
    std::process::Command::new(support::command::STAG)
        .args([
            "bench",
            url,
            "--time",
            seconds,
            "--verify",
            "--destroy",
            "--pattern",
            "randrw",
            "--depth",
            "8",
        ])
        .stdout(std::process::Stdio::piped())
        .stderr(std::process::Stdio::piped())
        .spawn()
        .unwrap()
}

#[test]
fn top_shows_what_units_and_sessions_do() {
    let dir = tempfile::tempdir().unwrap();
    let socket = path(dir.path(), "control.sock");
    let server = Server::start(&["--listen", "127.0.0.1:0", "--control", &socket, "mem:16M", "mem:1M"], 2);
    let mut bench = verifier(server.iscsi(0), "300");
    let deadline = std::time::Instant::now() + std::time::Duration::from_secs(120);
    let busy = loop {
        let top: Value = serde_json::from_str(&said(&[
            "top",
            "--control",
            &socket,
            "--once",
            "--json",
            "--interval",
            "0.3",
        ]))
        .unwrap();
        // Higher when the machine is idle.
        if top["total"]["reads"].as_f64().unwrap() > 10.0 && top["total"]["writes"].as_f64().unwrap() > 10.0 {
            break top;
        }
        assert!(std::time::Instant::now() < deadline, "{top:#}");
    };
    assert!(busy["units"][0]["name"].as_str().unwrap().ends_with("/0"), "the busiest comes first: {busy:#}");
    assert_eq!(busy["units"][1]["rates"]["reads"], 0.0);
    assert!(busy["sessions"][0]["rates"]["read_bytes"].as_f64().unwrap() > 10.0 * 4096.0);
    assert!(busy["units"][0]["rates"]["mean_us"].as_f64().unwrap() > 0.0);
    let text = said(&["top", "--control", &socket, "--once", "--interval", "0.1"]);
    assert!(text.contains("reads/s") && text.contains("all "), "{text}");
    wait_until("a hundred reads", || reads_and_writes(&socket).0 > 100);
    bench.kill().unwrap();
    bench.wait().unwrap();
    // The unit's counts remain when the session has ended.
    let deadline = std::time::Instant::now() + std::time::Duration::from_secs(60);
    let after = loop {
        let after = status(&socket);
        if after["sessions"].as_array().unwrap().is_empty() {
            break after;
        }
        assert!(std::time::Instant::now() < deadline);
        std::thread::sleep(std::time::Duration::from_millis(20));
    };
    assert!(after["targets"][0]["units"][0]["io"]["reads"].as_u64().unwrap() > 100, "{after:#}");
}

#[test]
fn new_daemons_take_over_one_after_the_other_under_verified_load() {
    let dir = tempfile::tempdir().unwrap();
    let (socket, disk) = (path(dir.path(), "control.sock"), path(dir.path(), "disk.img"));
    let unit = format!("{disk},size=16M");
    let portal = free_portal();
    let mut args = vec!["--listen", &portal, "--control", &socket, &unit];
    let mut server = Server::start(&args, 1);
    let url = server.iscsi(0).to_owned();
    // It ends by itself, and then reads everything once more. On a slow machine it may end before
    // all daemons have come and gone.
    let bench = std::cell::RefCell::new(verifier(&url, "7"));
    let is_over = || bench.borrow_mut().try_wait().unwrap().is_some();
    let reads = || {
        let status = stag(&["status", "--control", &socket, "--json"]).stdout;
        let status: Option<Value> = serde_json::from_slice(&status).ok();
        status.and_then(|status| status["targets"][0]["units"][0]["io"]["reads"].as_u64())
    };
    let goes_on = || {
        let before = reads();
        std::thread::sleep(std::time::Duration::from_millis(50));
        before.is_some() && (reads() > before || is_over())
    };
    args.push("--takeover");
    wait_until("the load begins", goes_on);
    for _ in 0..3 {
        let next = Server::start(&args, 1);
        assert_eq!(next.iscsi(0), url, "the same socket");
        assert_eq!(std::mem::replace(&mut server, next).ended(), Some(0));
        wait_until("the load goes on", goes_on);
    }
    // A daemon that cannot serve leaves the other one serving, and so does one that dies during
    // takeover.
    let mut wrong = args.clone();
    wrong.extend(["/nowhere/at/all"]);
    fails(&[&["serve"], &wrong[..]].concat(), 4);
    for delay in [2, 10, 30] {
        let mut victim = std::process::Command::new(support::command::STAG)
            .arg("serve")
            .args(&args)
            .env("STATE_DIRECTORY", support::command::STATE)
            .stdout(std::process::Stdio::null())
            .stderr(std::process::Stdio::null())
            .spawn()
            .unwrap();
        std::thread::sleep(std::time::Duration::from_millis(delay));
        victim.kill().unwrap();
        victim.wait().unwrap();
        // The load continues with the old daemon. If the new one died too late for that, no daemon
        // serves.
        let deadline = std::time::Instant::now() + std::time::Duration::from_secs(90);
        while !goes_on() {
            if server.has_ended() {
                server = Server::start(&args[..5], 1);
            }
            assert!(std::time::Instant::now() < deadline, "the load does not go on");
        }
    }
    // The old daemon may have answered just before its end.
    std::thread::sleep(std::time::Duration::from_millis(500));
    if server.has_ended() {
        server = Server::start(&args[..5], 1);
    }
    let output = bench.into_inner().wait_with_output().unwrap();
    let said =
        String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}");
    // It may only now read the last victim's message, and opens its unit once more.
    wait_until("the unit is there", || status(&socket)["targets"][0]["units"][0]["size"] == 16 << 20);
    assert_eq!(server.end(Signal::TERM), Some(0));
}

#[test]
fn what_is_in_memory_is_not_lost_by_accident() {
    let dir = tempfile::tempdir().unwrap();
    let socket = path(dir.path(), "control.sock");
    let args = ["--listen", "127.0.0.1:0", "--control", &socket, "mem:1M", "--takeover"];
    let first = Server::start(&args, 1);
    let words: Vec<&str> = ["serve"].iter().chain(&args).copied().collect();
    assert!(fails(&words, 4).contains("--lose-memory-units"));
    said(&["info", first.iscsi(0)]);
    let second = Server::start(&[&args[..], &["--lose-memory-units"]].concat(), 1);
    assert_eq!(first.ended(), Some(0));
    said(&["info", second.iscsi(0)]);
}

/// A start is refused as a whole, a change too; a takeover that fails leaves out what cannot be
/// opened again.
#[test]
fn a_store_that_cannot_be_opened_takes_no_other_unit_out_of_service() {
    let dir = tempfile::tempdir().unwrap();
    let (socket, file) = (path(dir.path(), "control.sock"), path(dir.path(), "stag.toml"));
    let (disk, store, broken) =
        (path(dir.path(), "a.img"), path(dir.path(), "store"), path(dir.path(), "broken"));
    let what = "holds a part of a store of objects, but metadata.redb is missing or empty: put it back";
    std::fs::create_dir(&broken).unwrap();
    std::fs::write(format!("{broken}/arena"), [1; 8192]).unwrap();

    let words = ["serve", "--listen", "127.0.0.1:0", "--control", "none"];
    let refused = fails(&[&words[..], &[&format!("{disk},size=8M"), &format!("osd:{broken}")]].concat(), 4);
    assert!(refused.contains(&format!("LUN 1: {broken} {what}")), "{refused}");
    assert!(!std::path::Path::new(&disk).exists(), "a new file of a start that was refused is there");

    let units = [
        (0, format!("path = \"{disk}\"\nsize = \"8M\"")),
        (1, format!("path = \"osd:{store}\"\ncapacity = \"64M\"")),
        (2, format!("path = \"osd:{broken}\"")),
    ];
    let units: Vec<(u16, &str)> = units.iter().map(|(lun, rest)| (*lun, rest.as_str())).collect();
    std::fs::write(&file, document(&units[..2], "")).unwrap();
    let portal = free_portal();
    let serve = ["--listen", &portal, "--control", &socket, "--config", &file];
    let server = Server::start(&serve, 2);
    assert!(stag_with(&["write", server.iscsi(0)], &noise(1 << 20)).status.success());
    let problems = || status(&socket)["health"]["problems"].as_array().unwrap().clone();
    let reads = || assert_eq!(done(&["read", "--length", "1M", server.iscsi(0)]), noise(1 << 20));

    std::fs::write(&file, document(&units, "")).unwrap();
    let refused = fails(&["apply", "--control", &socket, &file], 1);
    assert!(refused.contains(what) && refused.contains("nothing has been changed"), "{refused}");
    reads();
    assert_eq!(problems(), [Value::Null; 0]);

    std::fs::write(&file, document(&units[..2], "")).unwrap();
    let lost = "holds a part of a store of objects, but arena is missing or empty: put it back";
    let (here, away) = (format!("{store}/arena"), path(dir.path(), "away"));
    std::fs::rename(&here, &away).unwrap();
    let refused = fails(&[&["serve", "--takeover"], &serve[..]].concat(), 4);
    assert!(refused.contains(&format!("LUN 1: {store} {lost}")), "{refused}");
    wait_until("the daemon says what it cannot open", || {
        problems().iter().any(|found| found["kind"] == "unusable")
    });
    let problem = &problems()[0];
    assert_eq!((&problem["target"], &problem["lun"]), (&"iqn.2026-01.org.example:t".into(), &1.into()));
    assert!(problem["text"].as_str().unwrap().contains(lost), "{problem}");
    let check = stag(&["status", "--check", "--control", &socket]);
    assert_eq!(check.status.code(), Some(2), "{check:?}");
    reads();

    std::fs::rename(&away, &here).unwrap();
    said(&["apply", "--control", &socket, &file]);
    assert_eq!(problems(), [Value::Null; 0]);
    assert_eq!(status(&socket)["targets"][0]["units"].as_array().unwrap().len(), 2);
    reads();
    assert_eq!(server.end(Signal::TERM), Some(0));
}

/// An iSNS server that takes whole registrations, and forgets them at once. Gives its address, and
/// the text in each of them.
fn forgetful_isns() -> (String, mpsc::Receiver<String>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let (say, hear) = mpsc::channel();
    std::thread::spawn(move || {
        for mut stream in listener.incoming().map_while(Result::ok) {
            let (mut joiner, mut piece) = (Joiner::new(), [0; 4096]);
            while let Ok(len @ 1..) = stream.read(&mut piece) {
                joiner.feed(&piece[..len]).unwrap();
                while let Some(asked) = joiner.next_message().unwrap() {
                    let whole = asked.flags & flags::REPLACE != 0;
                    let status = match asked.function() {
                        Some(Function::DevAttrReg) if !whole => Status::SourceUnknown,
                        _ => Status::Success,
                    };
                    if whole {
                        // The test may be over.
                        let _ = say.send(String::from_utf8_lossy(&asked.payload).into_owned());
                    }
                    let payload = status.code().to_be_bytes().to_vec();
                    let function = asked.function | RESPONSE;
                    let answer = Message { function, flags: flags::SERVER, payload, ..asked };
                    stream.write_all(&answer.encode()).unwrap();
                }
            }
        }
    });
    (address, hear)
}

#[test]
fn added_targets_are_registered_at_an_isns_server_that_has_forgotten_the_others() {
    let dir = tempfile::tempdir().unwrap();
    let (socket, config) = (path(dir.path(), "control.sock"), path(dir.path(), "stag.toml"));
    let (isns, registrations) = forgetful_isns();
    let write = |names: &[&str]| {
        let target = |name: &&str| {
            let iqn = format!("iqn.2026-01.org.example:{name}");
            format!("[[target]]\niqn = \"{iqn}\"\n[[target.unit]]\nlun = 0\npath = \"mem:1M\"\n")
        };
        let targets: String = names.iter().map(target).collect();
        let server = format!("[isns]\nserver = \"{isns}\"\nentity = \"test.example\"\n");
        std::fs::write(&config, format!("{server}[[portal]]\nlisten = \"127.0.0.1:0\"\n{targets}")).unwrap();
    };
    let registered = |name: &str| {
        let text = || registrations.recv_timeout(Duration::from_secs(60)).expect("it registers");
        while !text().contains(name) {}
    };
    write(&["one"]);
    let server = Server::start(&["--config", &config, "--control", &socket], 1);
    registered("iqn.2026-01.org.example:one");
    write(&["one", "two"]);
    said(&["apply", "--control", &socket, &config]);
    registered("iqn.2026-01.org.example:two");
    assert_eq!(server.end(Signal::TERM), Some(0));
}
