//! Against `tgtd`, an independent target. Passes with a note if it is not installed, unless CI is
//! set.

use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command as Process, Stdio};
use std::time::{Duration, Instant};

use crate::ports;
use iscsi_client::{
    Chap, Command, Credential, DigestChoice, Disk, Error, Hash, Options, Secret, Session, Unit, Url, discover,
};
use runtime::{Buf, Runtime};
use scsi::SenseKey;
use scsi::cdb::build;
use scsi::data::unmap::UnmapRange;

const TARGET: &str = "iqn.2026-01.org.example:tgt";
const DISK_BYTES: u64 = 64 << 20;

/// A tgtd with one target whose unit 1 is a file.
struct Tgt {
    daemon: Option<Child>,
    control: u16,
    port: u16,
    dir: tempfile::TempDir,
}

impl Tgt {
    fn start(setup: &[&[&str]]) -> Option<Tgt> {
        let installed = |name: &str| {
            ["/usr/sbin", "/usr/bin", "/sbin", "/bin"].iter().any(|d| Path::new(d).join(name).exists())
        };
        if !installed("tgtd") || !installed("tgtadm") {
            assert!(std::env::var_os("CI").is_none(), "tgt is not installed, and CI must not skip this");
            eprintln!("skipped: tgt is not installed");
            return None;
        }
        let port = ports::free();
        let dir = tempfile::tempdir().unwrap();
        let mut tgt = Tgt { daemon: None, control: port & 0x7fff, port, dir };
        std::fs::File::create(tgt.image()).unwrap().set_len(DISK_BYTES).unwrap();
        tgt.launch(setup);
        Some(tgt)
    }

    fn image(&self) -> PathBuf {
        self.dir.path().join("disk")
    }

    fn launch(&mut self, setup: &[&[&str]]) {
        let daemon = Process::new("tgtd")
            .args([
                "-f",
                "--iscsi",
                &format!("portal=127.0.0.1:{}", self.port),
                "-C",
                &self.control.to_string(),
            ])
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .expect("tgtd starts");
        self.daemon = Some(daemon);
        let deadline = Instant::now() + Duration::from_secs(60);
        while !self.try_admin(&["--op", "new", "--mode", "target", "--tid", "1", "-T", TARGET]) {
            assert!(Instant::now() < deadline, "tgtd does not answer");
            std::thread::sleep(Duration::from_millis(50));
        }
        let image = self.image();
        self.admin(&[
            "--op",
            "new",
            "--mode",
            "logicalunit",
            "--tid",
            "1",
            "--lun",
            "1",
            "-b",
            image.to_str().unwrap(),
        ]);
        for args in setup {
            self.admin(args);
        }
        self.admin(&["--op", "bind", "--mode", "target", "--tid", "1", "-I", "ALL"]);
    }

    fn try_admin(&self, args: &[&str]) -> bool {
        let status = Process::new("tgtadm")
            .args(["-C", &self.control.to_string(), "--lld", "iscsi"])
            .args(args)
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .status();
        status.is_ok_and(|s| s.success())
    }

    fn admin(&self, args: &[&str]) {
        assert!(self.try_admin(args), "tgtadm {args:?}");
    }

    fn kill(&mut self) {
        if let Some(mut daemon) = self.daemon.take() {
            daemon.kill().expect("it was running");
            daemon.wait().expect("it ends");
            for file in ["", ".lock"] {
                // Left behind by a killed daemon.
                let _ = std::fs::remove_file(format!("/var/run/tgtd/socket.{}{file}", self.control));
            }
        }
    }

    fn url(&self) -> Url {
        format!("iscsi://127.0.0.1:{}/{TARGET}/1", self.port).parse().unwrap()
    }
}

impl Drop for Tgt {
    fn drop(&mut self) {
        self.kill();
    }
}

/// Runs a test on a runtime, with a timeout.
fn run<T>(test: impl Future<Output = T>) -> T {
    let runtime = Runtime::new(runtime::Config::default()).expect("io_uring works here");
    runtime.block_on(async {
        runtime::timeout(Duration::from_secs(300), test).await.expect("the test ends in time")
    })
}

fn pattern(seed: u64, len: usize) -> Vec<u8> {
    (0..len as u64).map(|i| (i.wrapping_mul(seed * 2 + 1) >> 3) as u8 ^ seed as u8).collect()
}

async fn open(tgt: &Tgt, options: Options) -> Disk {
    let session = Session::connect(&tgt.url(), options).await.expect("a session");
    Disk::open(&session, 1).await.expect("a disk")
}

#[test]
fn discovery_finds_the_target_at_its_portal() {
    let Some(tgt) = Tgt::start(&[]) else { return };
    let records = run(discover(&tgt.url(), &Options::default())).unwrap();
    assert_eq!(records.len(), 1);
    assert_eq!(records[0].name, TARGET);
    assert_eq!(
        (records[0].addresses[0].host.as_str(), records[0].addresses[0].port),
        ("127.0.0.1", tgt.port)
    );
}

#[test]
fn what_is_written_is_read_back_with_and_without_digests() {
    let update = |key, value| ["--op", "update", "--mode", "target", "--tid", "1", "-n", key, "-v", value];
    let crc = [update("HeaderDigest", "CRC32C"), update("DataDigest", "CRC32C"), update("InitialR2T", "No")];
    let crc = crc.each_ref().map(|a| &a[..]);
    for (digest, setup) in [(DigestChoice::Never, &[][..]), (DigestChoice::Require, &crc[..])] {
        let Some(tgt) = Tgt::start(setup) else { return };
        run(async {
            let options = Options { header_digest: digest, data_digest: digest, ..Options::default() };
            let disk = open(&tgt, options).await;
            assert_eq!((disk.len(), disk.block_len()), (DISK_BYTES, 512));
            for (lba, len) in
                [(0, 512), (7, 4096), (100, 70_000 / 512 * 512), (5000, 300 << 10), (20_000, 5 << 20)]
            {
                let data = pattern(lba + 1, len);
                disk.write(lba, Buf::from(data.clone())).await.unwrap();
                let back = disk.read(lba, (len / 512) as u32).await.unwrap();
                assert!(back.to_vec() == data, "{len} bytes at {lba}");
            }
            disk.sync().await.unwrap();
            disk.write_durably(3, Buf::from(pattern(9, 512))).await.unwrap();
            let image = std::fs::read(tgt.image()).unwrap();
            assert!(image[3 * 512..4 * 512] == pattern(9, 512));
            disk.session().close().await.unwrap();
        });
    }
}

#[test]
fn a_unit_tells_what_it_is() {
    let Some(tgt) = Tgt::start(&[]) else { return };
    run(async {
        let session = Session::connect(&tgt.url(), Options::default()).await.unwrap();
        let luns = session.report_luns().await.unwrap();
        assert!(luns.iter().any(|l| l.number() == Some(1)), "{luns:?}");
        let unit = Unit::new(&session, 1).unwrap();
        unit.test_unit_ready().await.unwrap();
        let inquiry = unit.inquiry().await.unwrap();
        assert_eq!((inquiry.device_type, inquiry.vendor.as_str()), (0, "IET"));
        let pages = unit.vpd_pages().await.unwrap();
        assert!(pages.contains(&0x83));
        assert!(!unit.vpd(0x83).await.unwrap().is_empty());
        let error = unit.vpd(0xdd).await.unwrap_err();
        assert!(error.is_unsupported(), "{error}");
        session.close().await.unwrap();
    });
}

#[test]
fn hundreds_of_commands_run_at_once_over_one_and_several_connections() {
    let Some(tgt) = Tgt::start(&[]) else { return };
    for connections in [1, 4] {
        run(async {
            // tgt supports one connection per session, whatever we request.
            let disk = open(&tgt, Options { connections, queue_depth: 64, ..Options::default() }).await;
            let mut tickets = Vec::new();
            for i in 0..400u32 {
                let cdb = build::write10(i * 16, 16, build::Flags::default());
                let data = Buf::from(pattern(i.into(), 8192));
                tickets.push(disk.session().start(disk.command(&cdb).writing(data)).await.unwrap());
            }
            for ticket in tickets {
                ticket.await.unwrap().ok().unwrap();
            }
            let mut tickets = Vec::new();
            for i in 0..400u32 {
                let cdb = build::read10(i * 16, 16, build::Flags::default());
                tickets.push(disk.session().start(disk.command(&cdb).reading(8192)).await.unwrap());
            }
            for (i, ticket) in tickets.into_iter().enumerate() {
                let data = ticket.await.unwrap().ok().unwrap().data;
                assert!(data.to_vec() == pattern(i as u64, 8192), "command {i}");
            }
            // A dropped ticket is harmless.
            let cdb = build::read10(0, 16, build::Flags::default());
            drop(disk.session().start(disk.command(&cdb).reading(8192)).await.unwrap());
            disk.read(0, 16).await.unwrap();
            disk.session().close().await.unwrap();
        });
    }
}

#[test]
fn errors_of_the_unit_are_told_with_their_sense() {
    let Some(tgt) = Tgt::start(&[]) else { return };
    run(async {
        let disk = open(&tgt, Options::default()).await;
        let error = disk.read(disk.blocks(), 1).await.unwrap_err();
        assert_eq!(error.sense_key(), Some(SenseKey::IllegalRequest), "{error}");
        let response = disk.scsi_command(&[0xff; 16], None, None).await.unwrap();
        assert_eq!(response.status, 2);
        let short = disk.write(0, Buf::from(vec![0; 100])).await.unwrap_err();
        assert!(matches!(short, Error::Argument(_)));
        let none = disk.session().start(Command::new(disk.lun(), &[0])).await.unwrap_err();
        assert!(matches!(none, Error::Argument(_)));
        disk.session().close().await.unwrap();
        let closed = disk.read(0, 1).await.unwrap_err();
        assert_eq!(closed, Error::Closed);
    });
}

#[test]
fn compare_and_write_write_same_and_unmap_do_what_they_say() {
    let thin: &[&[&str]] = &[&[
        "--op",
        "update",
        "--mode",
        "logicalunit",
        "--tid",
        "1",
        "--lun",
        "1",
        "--params",
        "thin_provisioning=1",
    ]];
    let Some(tgt) = Tgt::start(thin) else { return };
    run(async {
        let disk = open(&tgt, Options::default()).await;
        let (a, b) = (pattern(1, 512), pattern(2, 512));
        disk.write(9, Buf::from(a.clone())).await.unwrap();
        match disk.compare_and_write(9, Buf::from(a.clone()), Buf::from(b.clone())).await {
            // Some versions of tgt lack it.
            Err(error) => assert!(error.is_unsupported(), "{error}"),
            Ok(done) => {
                assert!(done && disk.read(9, 1).await.unwrap().to_vec() == b);
                assert!(!disk.compare_and_write(9, Buf::from(a.clone()), Buf::from(b)).await.unwrap());
            }
        }
        disk.write_same(20, 5, Buf::from(a.clone())).await.unwrap();
        assert!(disk.read(24, 1).await.unwrap().to_vec() == a);
        assert!(disk.read(25, 1).await.unwrap().to_vec() == [0; 512]);
        disk.write_zeros(20, 2).await.unwrap();
        assert!(disk.read(21, 1).await.unwrap().to_vec() == [0; 512]);
        assert!(disk.can_unmap());
        disk.unmap(&[UnmapRange { lba: 0, blocks: 16 }, UnmapRange { lba: 22, blocks: 8 }]).await.unwrap();
        assert!(disk.read(24, 1).await.unwrap().to_vec() == [0; 512]);
        disk.session().close().await.unwrap();
    });
}

#[test]
fn chap_one_way_and_mutual_works_and_wrong_secrets_do_not() {
    let setup: &[&[&str]] = &[
        &["--op", "new", "--mode", "account", "--user", "alice", "--password", "alicesecret12"],
        &["--op", "bind", "--mode", "account", "--tid", "1", "--user", "alice"],
        &["--op", "new", "--mode", "account", "--user", "thetarget", "--password", "targetsecret1"],
        &["--op", "bind", "--mode", "account", "--tid", "1", "--user", "thetarget", "--outgoing"],
    ];
    let Some(tgt) = Tgt::start(setup) else { return };
    let credential =
        |name: &str, secret: &str| Credential { name: name.into(), secret: Secret::new(secret.as_bytes()) };
    let chap = |secret: &str, target: Option<&str>| Options {
        chap: Some(Chap {
            credential: credential("alice", secret),
            target: target.map(|t| credential("thetarget", t)),
            hashes: vec![Hash::Sha1, Hash::Md5],
        }),
        ..Options::default()
    };
    run(async {
        for target in [None, Some("targetsecret1")] {
            let disk = open(&tgt, chap("alicesecret12", target)).await;
            disk.read(0, 1).await.unwrap();
            disk.session().close().await.unwrap();
        }
        for options in [chap("wrong", None), chap("alicesecret12", Some("wrong")), Options::default()] {
            let error = Session::connect(&tgt.url(), options).await.unwrap_err();
            assert!(matches!(error, Error::Login(_)), "{error}");
        }
        let mut url = tgt.url();
        url.credential = Some(credential("alice", "alicesecret12"));
        // tgt uses algorithm 7 for SHA-1: the second attempt, with only MD5, succeeds.
        let session = Session::connect(&url, Options::default()).await.unwrap();
        session.close().await.unwrap();
    });
}

#[test]
fn a_killed_target_that_comes_back_is_not_noticed_by_readers_and_writers() {
    let Some(mut tgt) = Tgt::start(&[]) else { return };
    run(async {
        let disk = open(&tgt, Options { queue_depth: 16, ..Options::default() }).await;
        disk.write(0, Buf::from(pattern(1, 1 << 20))).await.unwrap();
        disk.sync().await.unwrap();
        let mut tickets = Vec::new();
        for i in 0..12u32 {
            let cdb = build::write10(4096 + i * 2048, 2048, build::Flags::default());
            tickets.push(
                disk.session()
                    .start(disk.command(&cdb).writing(Buf::from(pattern(i.into(), 1 << 20))))
                    .await
                    .unwrap(),
            );
        }
        runtime::yield_now().await;
        tgt.kill();
        let reader = {
            let disk = disk.clone();
            runtime::spawn(async move { disk.read(0, 2048).await })
        };
        runtime::sleep(Duration::from_millis(200)).await;
        tgt.launch(&[]);
        assert!(reader.await.unwrap().unwrap().to_vec() == pattern(1, 1 << 20));
        for ticket in tickets {
            // The new session begins with a unit attention for one of them: that command did not
            // run.
            let response = ticket.await.unwrap();
            if let Err(error) = response.ok() {
                assert_eq!(error.sense_key(), Some(SenseKey::UnitAttention), "{error}");
            }
        }
        assert!(disk.session().reconnects() >= 1);
        disk.write(1, Buf::from(pattern(5, 512))).await.unwrap();
        assert!(disk.read(1, 1).await.unwrap().to_vec() == pattern(5, 512));
        disk.session().close().await.unwrap();
    });
}

#[test]
fn a_target_that_stays_away_ends_the_session_in_bounded_time() {
    let Some(mut tgt) = Tgt::start(&[]) else { return };
    run(async {
        let options = Options { reconnect_timeout: Duration::from_millis(500), ..Options::default() };
        let disk = open(&tgt, options).await;
        tgt.kill();
        let begun = Instant::now();
        let error = disk.read(0, 1).await.unwrap_err();
        assert!(error.is_unreachable(), "{error}");
        assert!(begun.elapsed() < Duration::from_secs(60));
        assert!(disk.read(0, 1).await.is_err());
    });
}

#[test]
fn a_stopped_target_is_found_out_by_pings() {
    let Some(mut tgt) = Tgt::start(&[]) else { return };
    run(async {
        let options = Options {
            ping_interval: Duration::from_millis(1500),
            reconnect_timeout: Duration::from_millis(600),
            connect_timeout: Duration::from_secs(2),
            ..Options::default()
        };
        let disk = open(&tgt, options).await;
        let stop = |signal: &str| {
            let pid = tgt.daemon.as_ref().unwrap().id().to_string();
            assert!(Process::new("kill").args([signal, &pid]).status().unwrap().success());
        };
        // Pings are answered: some such interval passes without a lost connection. If pings were
        // not answered, each interval would lose one.
        for tries in 1.. {
            let before = disk.session().reconnects();
            runtime::sleep(Duration::from_secs(4)).await;
            if (disk.session().connections(), disk.session().reconnects()) == (1, before) {
                break;
            }
            assert!(tries < 5, "pings are not answered");
            disk.read(0, 1).await.unwrap();
        }
        stop("-STOP");
        let error = disk.read(0, 1).await.unwrap_err();
        stop("-CONT");
        assert_eq!(error, Error::TimedOut("login"), "{error}");
    });
    tgt.kill();
}

#[test]
fn a_wrong_address_and_a_wrong_name_are_told_apart() {
    let Some(tgt) = Tgt::start(&[]) else { return };
    run(async {
        let nobody = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        let url: Url = format!("iscsi://127.0.0.1:{nobody}/{TARGET}/1").parse().unwrap();
        let error = Session::connect(&url, Options::default()).await.unwrap_err();
        assert!(matches!(error, Error::Connect { .. }), "{error}");
        let url: Url = format!("iscsi://127.0.0.1:{}/{TARGET}2/1", tgt.port).parse().unwrap();
        let error = Session::connect(&url, Options::default()).await.unwrap_err();
        assert!(matches!(error, Error::Login(_)), "{error}");
        let url: Url = format!("iscsi://no-such-host.invalid/{TARGET}/1").parse().unwrap();
        let error = Session::connect(&url, Options::default()).await.unwrap_err();
        assert!(matches!(error, Error::Resolve { .. }), "{error}");
    });
}
