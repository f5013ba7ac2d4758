//! The `stag` command as people run it: its own server and its own client, in processes of their
//! own.

use std::fs;
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use crate::support::command::{
    STAG, Server, done, fails, free_portal, noise, path, reads_and_writes, stag, stag_with, wait_until,
};
use rustix::process::{Pid, Signal, kill_process};

#[test]
fn the_demo_shows_that_all_works_and_leaves_nothing_behind() {
    let dir = tempfile::tempdir().unwrap();
    let output =
        Command::new(STAG).args(["demo", "--size", "8M"]).env("TMPDIR", dir.path()).output().unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{said}{}", String::from_utf8_lossy(&output.stderr));
    assert!(said.ends_with("OK\n"), "{said}");
    assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0);
}

#[test]
fn what_was_written_is_there_after_the_server_was_ended_and_started_again() {
    let dir = tempfile::tempdir().unwrap();
    let (disk, back) = (path(dir.path(), "disk.img"), path(dir.path(), "back"));
    let data = noise(3_000_017);
    let server = Server::start(&["--listen", "127.0.0.1:0", &format!("{disk},size=16M")], 1);
    let written = stag_with(&["write", &server.urls[0], "--offset", "1M"], &data);
    assert!(written.status.success(), "{}", String::from_utf8_lossy(&written.stderr));
    assert_eq!(server.end(Signal::TERM), Some(0));
    assert!(fs::read(&disk).unwrap()[1 << 20..][..data.len()] == data);
    let server = Server::start(&["--listen", "[::1]:0", &disk], 1);
    let range = ["--offset", "1M", "--length", "3000017"];
    done(&[&["read", &server.urls[0], "-o", &back][..], &range].concat());
    assert!(fs::read(&back).unwrap() == data);
    assert!(done(&[&["read", &server.urls[0]][..], &range].concat()) == data, "read to stdout");
    assert_eq!(server.end(Signal::INT), Some(0));
}

#[test]
fn a_sparse_file_stays_sparse_on_a_thin_unit_and_on_its_way_back() {
    use std::os::unix::fs::{FileExt, MetadataExt};
    let dir = tempfile::tempdir().unwrap();
    let (disk, from, back) = (path(dir.path(), "disk"), path(dir.path(), "from"), path(dir.path(), "back"));
    let file = fs::File::create(&from).unwrap();
    file.set_len(256 << 20).unwrap();
    file.write_all_at(&noise(100_000), 128 << 20).unwrap();
    let server = Server::start(&["--listen", "127.0.0.1:0", &format!("{disk},size=256M,thin")], 1);
    done(&["cp", "--verify", "--connections", "3", &from, &server.urls[0]]);
    done(&["cp", "--header-digest", "require", "--data-digest", "require", &server.urls[0], &back]);
    assert_eq!(server.end(Signal::TERM), Some(0));
    for copy in [&disk, &back] {
        let about = fs::metadata(copy).unwrap();
        assert_eq!(about.len(), 256 << 20);
        assert!(about.blocks() * 512 < 4 << 20, "{copy} takes {} bytes", about.blocks() * 512);
    }
    let mut middle = vec![0; 100_000];
    fs::File::open(&back).unwrap().read_exact_at(&mut middle, 128 << 20).unwrap();
    assert!(middle == noise(100_000));
}

#[test]
fn a_file_in_a_directory_of_nfs_is_compared_and_written_in_part_by_the_directorys_url() {
    let dir = tempfile::tempdir().unwrap();
    let (file, missing) = (path(dir.path(), "file"), path(dir.path(), "missing"));
    let (old, mut new) = (noise(1_000_000), noise(1_000_000));
    new[600_000] ^= 1;
    fs::write(&file, &new).unwrap();
    fs::write(&missing, b"x").unwrap();
    let server = Server::start(&["--nfs", "127.0.0.1:0", "--export", "/data=mem:64M"], 1);
    let export = server.urls[0].as_str();
    let there = format!("{export}/file");
    let written = stag_with(&["write", &there], &old);
    assert!(written.status.success(), "{}", String::from_utf8_lossy(&written.stderr));
    let differs = fails(&["cp", "--check", &file, export], 1);
    assert!(differs.contains("in 1 of 1000000 bytes, the first at byte 600000"), "{differs}");
    assert!(done(&["cat", &there]) == old, "a comparison writes nothing");
    assert!(!stag(&["cp", "--check", &missing, export]).status.success());
    assert!(!stag(&["cat", &format!("{export}/missing")]).status.success(), "it creates nothing");
    done(&["cp", "--differing", &file, export]);
    assert!(done(&["cat", &there]) == new);
    // A write replaces the beginning, and leaves the rest.
    fs::write(&file, b"new").unwrap();
    done(&["write", export, "-i", &file]);
    new[..3].copy_from_slice(b"new");
    assert!(done(&["cat", &there]) == new);
    done(&["cp", &file, export]);
    assert!(done(&["cat", &there]) == b"new", "a copy replaces all of it");
}

#[test]
fn ls_and_info_tell_of_units_as_they_were_served() {
    let units =
        ["--listen", "127.0.0.1:0", "mem:8M,serial=S1", "mem:16M,bs=4096,ro,vendor=ACME,product=Deep"];
    let server = Server::start(&units, 2);
    let portal = server.portal();
    let targets = String::from_utf8(done(&["ls", portal])).unwrap();
    assert!(
        targets.contains("iqn.2026-01.org.stag:") && targets.contains(":disk") && targets.contains(portal),
        "{targets}"
    );
    let listed = String::from_utf8(done(&["ls", "--units", portal])).unwrap();
    assert!(server.urls.iter().all(|url| listed.contains(url)), "{listed}");
    assert!(listed.contains("disk  16M  ACME Deep"), "{listed}");
    let info: serde_json::Value =
        serde_json::from_slice(&done(&["info", "--json", &server.urls[1]])).unwrap();
    assert_eq!(info["block_bytes"], 4096);
    assert_eq!(info["capacity_bytes"], 16 << 20);
    assert_eq!(info["write_protected"], true);
    let text = String::from_utf8(done(&["info", &server.urls[0]])).unwrap();
    assert!(text.lines().any(|line| line.starts_with("serial") && line.ends_with("S1")), "{text}");
}

#[test]
fn a_configuration_with_chap_and_masking_lets_in_whom_it_names() {
    let dir = tempfile::tempdir().unwrap();
    let (config, right, wrong) =
        (path(dir.path(), "stag.toml"), path(dir.path(), "right"), path(dir.path(), "wrong"));
    let target_secret = path(dir.path(), "target");
    fs::write(&right, "correct horse battery\n").unwrap();
    fs::write(&wrong, "incorrect horse battery\n").unwrap();
    fs::write(&target_secret, "staple staple staple\n").unwrap();
    let text = r#"
        [[portal]]
        listen = "127.0.0.1:0"
        [[target]]
        iqn = "iqn.2026-01.org.example:t"
        auth = { users = [{ name = "alice", secret-file = "right" }], mutual = { name = "t", secret-file = "target" } }
        [[target.unit]]
        lun = 3
        path = "mem:1M"
        [[target.unit]]
        lun = 4
        path = "mem:2M"
        [[target.acl]]
        initiator = "iqn.2026-01.org.example:i*"
        luns = [{ lun = 4, as = 0, ro = true }]
    "#;
    fs::write(&config, text).unwrap();
    let server = Server::start(&["--config", &config], 2);
    let url = format!("{}0", server.urls[0].trim_end_matches('3'));
    let me = ["--initiator", "iqn.2026-01.org.example:i7", "--user", "alice"];
    let with = |secret: &str, more: &[&str]| -> Output {
        stag(&[&["info", "--json", &url, "--secret-file", secret][..], &me, more].concat())
    };
    let info = with(&right, &["--mutual-user", "t", "--mutual-secret-file", &target_secret]);
    assert!(info.status.success(), "{}", String::from_utf8_lossy(&info.stderr));
    let info: serde_json::Value = serde_json::from_slice(&info.stdout).unwrap();
    assert_eq!((&info["capacity_bytes"], &info["write_protected"]), (&(2 << 20).into(), &true.into()));
    assert_eq!(with(&wrong, &[]).status.code(), Some(5), "a wrong secret");
    let mutual = with(&right, &["--mutual-user", "t", "--mutual-secret-file", &wrong]);
    assert_eq!(mutual.status.code(), Some(5), "a target that cannot prove itself");
    let stranger = ["--initiator", "iqn.2026-01.org.example:x", "--user", "alice", "--secret-file", &right];
    fails(&[&["info", &url][..], &stranger].concat(), 5);
    let write = [&["write", &url, "--secret-file", &right][..], &me].concat();
    let refused = stag_with(&write, &[1; 512]);
    assert_eq!(refused.status.code(), Some(1), "{}", String::from_utf8_lossy(&refused.stderr));
    assert_eq!(server.end(Signal::TERM), Some(0));
}

#[test]
fn every_way_to_fail_has_its_status_and_says_what_to_do() {
    let dir = tempfile::tempdir().unwrap();
    let (disk, config) = (path(dir.path(), "disk.img"), path(dir.path(), "stag.toml"));
    fails(&["read", "http://x"], 2);
    fs::write(&config, "[[target]]\niqm = \"x\"\n").unwrap();
    assert!(fails(&["check-config", &config], 3).contains("did you mean `iqn`?"));
    assert!(fails(&["serve", "--config", &config], 3).contains("stag.toml:2:1"));
    assert!(fails(&["serve", "--config", &path(dir.path(), "none")], 3).contains("cannot be read"));
    assert!(fails(&["serve", "--listen", "127.0.0.1:0", &disk], 4).contains("size=1G"));
    let server = Server::start(&["--listen", "127.0.0.1:0", &format!("{disk},size=1M")], 1);
    assert!(fails(&["serve", "--listen", "127.0.0.1:0", &disk], 4).contains("in use by another process"));
    let portal = server.portal();
    assert!(fails(&["serve", "--listen", portal, "mem:1M"], 4).contains("--listen"));
    assert!(fails(&["serve", "--listen", "192.0.2.1:0", "mem:1M"], 4).contains("no interface"));
    fails(&["info", "iscsi://127.0.0.1:1/iqn.2026-01.org.example:t/0"], 5);
    fails(&["info", &format!("iscsi://{portal}/iqn.2026-01.org.example:none/0")], 5);
    assert!(fails(&["info", &format!("{}9", server.urls[0])], 1).contains("no such unit"));
    assert!(fails(&["cp", &config, &path(dir.path(), "no/such/directory")], 1).contains("no/such/directory"));
    let too_long = stag_with(&["write", &server.urls[0]], &vec![1; (1 << 20) + 1]);
    assert_eq!(too_long.status.code(), Some(1));
    let refused = String::from_utf8_lossy(&too_long.stderr).into_owned();
    assert!(refused.contains("room for"), "{refused}");
}

#[test]
fn a_copy_goes_on_where_its_target_was_killed_and_started_again() {
    use std::os::unix::fs::MetadataExt;
    let dir = tempfile::tempdir().unwrap();
    let (disk, from) = (path(dir.path(), "disk"), path(dir.path(), "from"));
    fs::write(&from, noise(48 << 20)).unwrap();
    let port = free_portal();
    // No faster than this until it is killed: the whole copy would take a minute.
    let server = Server::start(&["--listen", &port, &format!("{disk},size=48M,iops=1000")], 1);
    let url = server.urls[0].clone();
    let words = ["cp", "--verify", "--connections", "2", "--block", "4K", "--depth", "4", &from, &url];
    let mut copy = Command::new(STAG).args(words).spawn().unwrap();
    wait_until("something is copied", || fs::metadata(&disk).unwrap().blocks() * 512 > 4 << 20);
    assert_eq!(copy.try_wait().unwrap(), None, "the copy has ended before the target could be killed");
    assert_eq!(server.end(Signal::KILL), None);
    let server = Server::start(&["--listen", &port, &disk], 1);
    assert!(copy.wait().unwrap().success());
    assert_eq!(server.end(Signal::TERM), Some(0));
    assert!(fs::read(&disk).unwrap() == fs::read(&from).unwrap());
}

/// Starts `stag bench` on `url`, and ends it by SIGINT when its daemon has heard of it; what came
/// of it.
fn interrupted_bench(socket: &str, url: &str, more: &[&str]) -> Output {
    let before = reads_and_writes(socket).0;
    let child = Command::new(STAG)
        .args(["bench", url, "--json", "--time", "600", "--depth", "4"])
        .args(more)
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    wait_until("it reads", || reads_and_writes(socket).0 > before + 10);
    std::thread::sleep(Duration::from_millis(100));
    kill_process(Pid::from_raw(child.id() as i32).unwrap(), Signal::INT).unwrap();
    let begin = Instant::now();
    let output = child.wait_with_output().unwrap();
    assert!(begin.elapsed() < Duration::from_secs(120), "it went on");
    output
}

#[test]
fn a_bench_that_is_interrupted_tells_what_it_measured_until_then() {
    let dir = tempfile::tempdir().unwrap();
    let socket = path(dir.path(), "control.sock");
    let server = Server::start(&["--listen", "127.0.0.1:0", "--control", &socket, "mem:16M"], 1);
    for more in [&["--warmup", "0"][..], &["--warmup", "0", "--rate", "20", "--bs", "4k,8k"]] {
        let output = interrupted_bench(&socket, &server.urls[0], more);
        assert_eq!(output.status.code(), Some(130), "{output:?}");
        let document: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
        let runs = document["runs"].as_array().unwrap();
        assert_eq!(runs.len(), 1, "no other run is begun");
        let seconds = runs[0]["seconds"].as_f64().unwrap();
        assert!((0.01..200.0).contains(&seconds), "{seconds}");
        let (ios, iops) = (runs[0]["ios"].as_f64().unwrap(), runs[0]["iops"].as_f64().unwrap());
        assert!(ios > 0.0 && (iops - ios / seconds).abs() <= iops / 100.0, "{document}");
        assert_eq!(runs[0]["errors"], 0);
    }
    // Before there are any results.
    let output = interrupted_bench(&socket, &server.urls[0], &["--warmup", "500"]);
    assert_eq!(output.status.code(), Some(130), "{output:?}");
    assert!(String::from_utf8_lossy(&output.stderr).contains("before anything was measured"));
}

#[test]
fn a_daemon_whose_log_cannot_be_written_serves_on_and_ends_when_asked() {
    let full = || fs::File::options().write(true).open("/dev/full").unwrap().into();
    let server = Server::start_logging("debug", full(), &["--listen", "127.0.0.1:0", "mem:16M"], 1);
    done(&["info", server.iscsi(0)]);
    done(&["info", server.iscsi(0)]);
    assert_eq!(server.end(Signal::TERM), Some(0));
}
