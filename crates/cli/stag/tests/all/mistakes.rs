//! Users' mistakes and the messages about them. Each message has advice.

use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};

use crate::support::command::{STAG, STATE, Server, done, fails, path, stag};
use rustix::process::Signal;

/// A file that begins with `bytes`, at `at`.
fn image(directory: &Path, name: &str, at: usize, bytes: &[u8]) -> String {
    let path = path(directory, name);
    let mut content = vec![0; 1 << 20];
    content[at..at + bytes.len()].copy_from_slice(bytes);
    fs::write(&path, content).unwrap();
    path
}

#[test]
fn each_mistake_is_refused_with_what_to_do() {
    let dir = tempfile::tempdir().unwrap();
    let qcow2 = image(dir.path(), "a.qcow2", 0, b"QFI\xfb\0\0\0\x03");
    let vmdk = image(dir.path(), "a.vmdk", 0, b"KDMV");
    let vhdx = image(dir.path(), "a.vhdx", 0, b"vhdxfile");
    let vdi = image(dir.path(), "a.vdi", 64, b"\x7f\x10\xda\xbe");
    let serve = |unit: &str| {
        vec![
            "serve".to_owned(),
            "--listen".into(),
            "127.0.0.1:0".into(),
            "--control".into(),
            "none".into(),
            unit.into(),
        ]
    };
    let export = |folder: &str| {
        let words = ["serve", "--nfs", "127.0.0.1:0", "--control", "none", "--export"];
        [words.map(str::to_owned).to_vec(), vec![format!("/data={folder}")]].concat()
    };
    let convert = |format: &str, path: &str| {
        format!(
            "qemu-img convert -f {format} -O raw {path} {}",
            Path::new(path).with_extension("raw").display()
        )
    };
    let table = [
        (serve("mem"), 2, "write mem:SIZE, as in mem:1G".to_owned()),
        (serve("osd"), 2, "write osd:DIR".into()),
        (serve("mem:1G,prefault,thin"), 2, "leave one of them out".into()),
        (serve("mem:1G,identity=mine"), 2, "write own".into()),
        (serve("/dev/sdzz,size=1G"), 4, "/dev/sdzz does not exist, and nothing is made among devices".into()),
        (
            serve("osd:/dev/sdzz,capacity=64M"),
            4,
            "/dev/sdzz does not exist, and nothing is made among devices".into(),
        ),
        (
            serve("osd:/dev/sdzz/objects"),
            4,
            "/dev/sdzz/objects does not exist, and nothing is made among devices".into(),
        ),
        (export("/dev/sdzz"), 4, "/dev/sdzz: the folder cannot be opened: No such file or directory".into()),
        (serve("/dev/sdzz"), 4, "check the name (`lsblk` lists what there is)".into()),
        (serve(&qcow2), 4, convert("qcow2", &qcow2)),
        (serve(&vmdk), 4, convert("vmdk", &vmdk)),
        (serve(&vhdx), 4, convert("vhdx", &vhdx)),
        (serve(&vdi), 4, convert("vdi", &vdi)),
    ];
    for (words, status, sentence) in table {
        let words: Vec<&str> = words.iter().map(String::as_str).collect();
        let said = fails(&words, status);
        assert!(said.contains(&sentence), "{words:?}: {said}");
    }
    assert!(!Path::new("/dev/sdzz").exists());
}

#[test]
fn an_image_is_served_and_copied_as_it_is_only_if_that_is_said() {
    let dir = tempfile::tempdir().unwrap();
    let qcow2 = image(dir.path(), "a.qcow2", 0, b"QFI\xfb\0\0\0\x03");
    let server = Server::start(&["--listen", "127.0.0.1:0", "mem:1M", &format!("{qcow2},format=raw")], 2);
    assert!(fails(&["cp", &qcow2, &server.urls[0]], 1).contains("qemu-img convert -f qcow2"));
    done(&["cp", "--raw", &qcow2, &server.urls[0]]);
    let copy = path(dir.path(), "copy.qcow2");
    done(&["cp", &server.urls[1], &copy]);
    assert_eq!(server.end(Signal::TERM), Some(0));
    // A client may write what looks like an image: the disk is served as before.
    let disk = format!("{},size=1M", path(dir.path(), "disk.img"));
    let server = Server::start(&["--listen", "127.0.0.1:0", &disk], 1);
    done(&["cp", "--raw", &copy, &server.urls[0]]);
    assert_eq!(server.end(Signal::TERM), Some(0));
    Server::start(&["--listen", "127.0.0.1:0", &disk], 1);
}

/// Stderr of a server until it is ended.
fn said_by(args: &[&str]) -> String {
    use std::io::{BufRead, BufReader};
    let mut child = Command::new(STAG)
        .args(["--log", "warn", "serve", "--control", "none"])
        .args(args)
        .env("STATE_DIRECTORY", STATE)
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    BufReader::new(child.stdout.take().unwrap()).lines().next().unwrap().unwrap();
    child.kill().unwrap();
    String::from_utf8_lossy(&child.wait_with_output().unwrap().stderr).into_owned()
}

#[test]
fn what_is_legal_and_probably_not_meant_is_told_at_the_start() {
    let dir = tempfile::tempdir().unwrap();
    let odd = path(dir.path(), "odd.img");
    fs::write(&odd, vec![0; (1 << 20) + 100]).unwrap();
    let listen = ["--listen", "127.0.0.1:0"];
    let said = said_by(&[&listen[..], &[&odd]].concat());
    assert!(said.contains("the last bytes are less than a block") && said.contains("tail=100"), "{said}");
    let said = said_by(&[&listen[..], &["mem:4T"]].concat());
    assert_eq!(said.matches("the units and exports in memory have 4T together").count(), 1, "{said}");
    let said = said_by(&["--nfs", "127.0.0.1:0", "--export", "/data=mem:4T"]);
    assert_eq!(said.matches("the units and exports in memory have 4T together").count(), 1, "{said}");
    let said = said_by(&["--nfs", "0.0.0.0:0", "--export", "/data=mem:1M"]);
    assert_eq!(said.matches("0.0.0.0:0 may read and write the export /data").count(), 1, "{said}");
    let said = said_by(&["--nfs", "127.0.0.1:0", "--export", "/data=mem:1M"]);
    assert!(!said.contains("WARN"), "{said}");
    let said = said_by(&["--listen", "0.0.0.0:0", "mem:1M"]);
    assert_eq!(said.matches("every host that reaches 0.0.0.0:0 may read and write").count(), 1, "{said}");
    let said = said_by(&[&listen[..], &["mem:1M"]].concat());
    assert!(!said.contains("WARN"), "{said}");
}

#[test]
fn a_relative_path_starts_from_the_configuration_wherever_the_daemon_does() {
    let dir = tempfile::tempdir().unwrap();
    let config = path(dir.path(), "stag.toml");
    let unit = |lun, path: &str| format!("[[target.unit]]\nlun = {lun}\npath = \"{path}\"\nsize = \"1M\"\n");
    let text = format!("[[target]]\niqn = \"iqn.2026-01.org.example:t\"\n{}", unit(0, "disk.img"));
    fs::write(&config, &text).unwrap();
    let socket = path(dir.path(), "control.sock");
    let words = ["--listen", "127.0.0.1:0", "--control", &socket, "--config", &config];
    let server = Server::start(&words, 1);
    assert!(dir.path().join("disk.img").exists());
    // The same file, sent to the daemon from elsewhere, names the same disk.
    let apply = stag(&["apply", "--control", &socket, &config]);
    assert!(String::from_utf8_lossy(&apply.stdout).contains("nothing to change"), "{apply:?}");
    drop(server);
}

#[test]
fn prefault_takes_all_room_before_the_unit_is_served() {
    use std::os::unix::fs::MetadataExt;
    let dir = tempfile::tempdir().unwrap();
    let disk = path(dir.path(), "disk.img");
    let server = Server::start(
        &["--listen", "127.0.0.1:0", &format!("{disk},size=16M,prefault"), "mem:256M,prefault"],
        2,
    );
    assert!(fs::metadata(&disk).unwrap().blocks() * 512 >= 16 << 20);
    let status = fs::read_to_string(format!("/proc/{}/status", server.pid())).unwrap();
    let resident = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
    let kib: u64 = resident.trim().trim_end_matches(" kB").parse().unwrap();
    assert!(kib >= 256 << 10, "{resident}");
}
