//! Media that fail under a running daemon: full, shrunk, grown, limited, or broken. The initiator
//! gets the sense data of SPC and SBC, old data can still be read, and the daemon lives.

use std::path::{Path, PathBuf};
use std::process::Command;

use scsi::cdb::build::{self, Flags};

use crate::support::client::{Answer, CHECK_CONDITION, Client, GOOD};
use crate::support::daemon::Daemon;

const WRITER: &str = "iqn.2026-01.test.stag:writer";
const BLOCK: usize = 512;
/// Blocks in one write.
const PIECE: u32 = 128;
const PIECE_BYTES: usize = PIECE as usize * BLOCK;

const MEDIUM_ERROR: u8 = 0x3;
const DATA_PROTECT: u8 = 0x7;
/// SPACE ALLOCATION FAILED WRITE PROTECT.
const SPACE_ALLOCATION_FAILED: (u8, u8) = (0x27, 0x07);

fn login(daemon: &Daemon) -> Client {
    let mut client = Client::login(daemon.portal, &daemon.target, WRITER).expect("a login");
    assert_eq!(run(&mut client, &build::test_unit_ready(), None, None).status, GOOD);
    client
}

fn run(client: &mut Client, cdb: &[u8], write: Option<Vec<u8>>, read_len: Option<u32>) -> Answer {
    client.run(cdb, write, read_len).expect("the daemon lives")
}

/// Writes piece number `piece`, filled with a byte of its own.
fn write(client: &mut Client, piece: u64, flags: Flags) -> Answer {
    let data = vec![piece as u8 + 1; PIECE_BYTES];
    run(client, &build::write(piece * u64::from(PIECE), PIECE, flags), Some(data), None)
}

fn read(client: &mut Client, piece: u64) -> Answer {
    let cdb = build::read(piece * u64::from(PIECE), PIECE, Flags::default());
    run(client, &cdb, None, Some(PIECE_BYTES as u32))
}

#[track_caller]
fn assert_reads(client: &mut Client, pieces: std::ops::Range<u64>) {
    for piece in pieces {
        let answer = read(client, piece);
        assert_eq!(answer.status, GOOD, "{answer:?}");
        assert!(answer.data == vec![piece as u8 + 1; PIECE_BYTES], "piece {piece}");
    }
}

/// The number of blocks by READ CAPACITY (16).
fn capacity(client: &mut Client) -> u64 {
    let answer = run(client, &build::read_capacity16(32), None, Some(32));
    assert_eq!(answer.status, GOOD, "{answer:?}");
    u64::from_be_bytes(answer.data[..8].try_into().expect("8 bytes")) + 1
}

fn sense(answer: &Answer) -> (u8, (u8, u8)) {
    assert_eq!(answer.status, CHECK_CONDITION, "{answer:?}");
    (answer.sense_key(), answer.additional())
}

fn unit(directory: &Path) -> (PathBuf, String) {
    let path = directory.join("disk.img");
    let unit = format!("{},size=4M", path.display());
    (path, unit)
}

#[test]
fn a_full_medium_is_said_to_be_full_and_space_given_back_can_be_written() {
    let directory = tempfile::tempdir().expect("a directory");
    let (_, unit) = unit(directory.path());
    let mount = format!("mount -t tmpfs -o size=1m none {} && exec \"$@\"", directory.path().display());
    let wrapper = ["unshare", "--user", "--map-root-user", "--mount", "sh", "-c", &mount, "sh"];
    let Some(mut daemon) = Daemon::serve_under(&wrapper, &[&format!("{unit},thin")]) else {
        return eprintln!("SKIPPED: no tmpfs of our own can be mounted here (user namespaces are closed)");
    };
    let mut client = login(&daemon);
    let mut written = 0;
    let refused = loop {
        let answer =
            write(&mut client, written, if written % 2 == 0 { Flags::FUA } else { Flags::default() });
        if answer.status != GOOD {
            break answer;
        }
        written += 1;
        assert!(written < 64, "a tmpfs of 1 MiB held 4 MiB");
    };
    assert!(written >= 8, "it was full after {written} pieces");
    assert_eq!(sense(&refused), (DATA_PROTECT, SPACE_ALLOCATION_FAILED));
    assert_eq!(run(&mut client, &build::synchronize_cache10(), None, None).status, GOOD);
    assert_reads(&mut client, 0..written);
    let unmap =
        [&[0, 22, 0, 16, 0, 0, 0, 0][..], &0u64.to_be_bytes(), &(4 * PIECE).to_be_bytes(), &[0; 4]].concat();
    assert_eq!(run(&mut client, &build::unmap(unmap.len() as u16), Some(unmap), None).status, GOOD);
    assert_eq!(write(&mut client, written, Flags::FUA).status, GOOD);
    assert_reads(&mut client, 4..written + 1);
    assert!(daemon.lives());
}

#[test]
fn a_write_beyond_rlimit_fsize_fails_and_the_daemon_lives() {
    let directory = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).expect("a directory");
    for cache in ["writeback", "direct"] {
        let unit = format!("{},size=4M,cache={cache}", directory.path().join(cache).display());
        drop(Daemon::serve(&[&unit]));
        // In blocks of 512 bytes: the second half of the file cannot be written.
        let wrapper = ["sh", "-c", "ulimit -f 4096; exec \"$@\"", "sh"];
        let mut daemon = Daemon::serve_under(&wrapper, &[&unit]).expect("it starts");
        let mut client = login(&daemon);
        assert_eq!(write(&mut client, 0, Flags::FUA).status, GOOD);
        for piece in [32, 63] {
            let refused = write(&mut client, piece, Flags::default());
            assert_eq!(sense(&refused).0, MEDIUM_ERROR, "{cache}: {refused:?}");
        }
        assert_eq!(write(&mut client, 31, Flags::default()).status, GOOD);
        assert_reads(&mut client, 31..32);
        assert!(daemon.lives());
    }
}

#[test]
fn a_file_that_shrinks_or_grows_changes_only_the_capacity() {
    let directory = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).expect("a directory");
    for cache in ["writeback", "direct"] {
        let path = directory.path().join(cache);
        let mut daemon = Daemon::serve(&[&format!("{},size=4M,bs=512,cache={cache}", path.display())]);
        let mut client = login(&daemon);
        for piece in 0..64 {
            assert_eq!(write(&mut client, piece, Flags::default()).status, GOOD);
        }
        let file = std::fs::OpenOptions::new().write(true).open(&path).expect("the file");
        file.set_len((1 << 20) + 100).expect("truncated");
        let lost = read(&mut client, 32);
        assert_eq!(sense(&lost).0, MEDIUM_ERROR, "{cache}: {lost:?}");
        assert_eq!(capacity(&mut client), 2048, "{cache}");
        assert_reads(&mut client, 0..16);
        let beyond = read(&mut client, 16);
        assert_eq!(sense(&beyond), (0x5, (0x21, 0x00)), "{cache}: LOGICAL BLOCK ADDRESS OUT OF RANGE");

        file.set_len(8 << 20).expect("extended");
        assert_eq!(capacity(&mut client), 16384, "{cache}");
        assert_eq!(write(&mut client, 127, Flags::FUA).status, GOOD);
        assert_reads(&mut client, 127..128);
        assert!(daemon.lives());
    }
}

/// Detaches a loop device.
struct Loop(String);

impl Drop for Loop {
    fn drop(&mut self) {
        let _ = Command::new("losetup").args(["--detach", &self.0]).status();
    }
}

#[test]
fn after_a_flush_failed_every_synchronize_cache_fails() {
    // A device whose backing file system fills up: data in the page cache cannot be written back.
    let directory = tempfile::tempdir().expect("a directory");
    let backing = directory.path().join("backing");
    let attach = format!(
        "mount -t tmpfs -o size=2m none {0} && truncate -s 16M {1} && losetup --find --show {1}",
        directory.path().display(),
        backing.display()
    );
    let output = Command::new("unshare").args(["--mount", "sh", "-c", &attach]).output();
    let device = match output {
        Ok(output) if output.status.success() => {
            Loop(String::from_utf8_lossy(&output.stdout).trim().to_owned())
        }
        _ => return eprintln!("SKIPPED: no loop device can be had here"),
    };
    let mut daemon = Daemon::serve(&[&format!("{},cache=writeback", device.0)]);
    let mut client = login(&daemon);
    let sync = |client: &mut Client| run(client, &build::synchronize_cache10(), None, None);
    assert_eq!(write(&mut client, 0, Flags::FUA).status, GOOD);
    assert_eq!(sync(&mut client).status, GOOD);
    for piece in 1..128 {
        assert_eq!(write(&mut client, piece, Flags::default()).status, GOOD, "the page cache takes it");
    }
    for _ in 0..3 {
        // If the system were asked again, the second flush would succeed, and report lost data as
        // stable.
        let failed = sync(&mut client);
        assert_eq!(sense(&failed).0, MEDIUM_ERROR, "{failed:?}");
    }
    assert_reads(&mut client, 0..1);
    assert!(daemon.lives());
}

#[test]
fn a_file_that_is_removed_under_its_unit_takes_no_durable_write_any_more() {
    let directory = tempfile::tempdir().expect("a directory");
    let (path, unit) = unit(directory.path());
    let mut daemon = Daemon::serve(&[&unit]);
    let mut client = login(&daemon);
    assert_eq!(run(&mut client, &build::synchronize_cache10(), None, None).status, GOOD);
    std::fs::remove_file(&path).expect("it is there");
    let fua = Flags { fua: true, ..Flags::default() };
    assert_eq!(sense(&write(&mut client, 0, fua)).0, MEDIUM_ERROR);
    let flushed = run(&mut client, &build::synchronize_cache10(), None, None);
    assert_eq!(sense(&flushed).0, MEDIUM_ERROR);
    assert_eq!(read(&mut client, 0).status, GOOD, "what there is can be read");
    assert!(daemon.lives());
}
