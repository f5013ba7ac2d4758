//! Against `istgt`, an independent target that supports several connections per session. Passes
//! with a note if it is not installed, unless CI is set.

use std::net::TcpStream;
use std::path::Path;
use std::process::{Child, Command as Process, Stdio};
use std::time::{Duration, Instant};

use crate::ports;
use iscsi_client::{
    Chap, Credential, DigestChoice, Disk, Error, Hash, Options, Secret, Session, Url, discover,
};
use runtime::{Buf, Runtime};

const BASE: &str = "iqn.2026-01.org.example";
const DISK_BYTES: u64 = 64 << 20;

struct Istgt {
    daemon: Child,
    port: u16,
    _dir: tempfile::TempDir,
}

impl Istgt {
    /// `auth` is the target's AuthMethod.
    fn start(auth: &str) -> Option<Istgt> {
        let installed =
            ["/usr/sbin", "/usr/bin", "/sbin"].iter().any(|d| Path::new(d).join("istgt").exists());
        if !installed {
            assert!(std::env::var_os("CI").is_none(), "istgt is not installed, and CI must not skip this");
            eprintln!("skipped: istgt is not installed");
            return None;
        }
        let (port, control) = (ports::free(), ports::free());
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().display();
        std::fs::File::create(dir.path().join("disk")).unwrap().set_len(DISK_BYTES).unwrap();
        let users = "[AuthGroup1]\n  Auth \"alice\" \"alicesecret12\" \"thetarget\" \"targetsecret1\"\n";
        std::fs::write(dir.path().join("auth"), users).unwrap();
        let config = format!(
            "[Global]\n  NodeBase \"{BASE}\"\n  PidFile {path}/pid\n  AuthFile {path}/auth\n  Timeout 30\n  NopInInterval 20\n  \
             DiscoveryAuthMethod Auto\n  MaxSessions 16\n  MaxConnections 4\n  MaxR2T 32\n  MaxOutstandingR2T 16\n  \
             DefaultTime2Wait 2\n  DefaultTime2Retain 60\n  FirstBurstLength 65536\n  MaxBurstLength 262144\n  \
             MaxRecvDataSegmentLength 65536\n  InitialR2T Yes\n  ImmediateData Yes\n  DataPDUInOrder Yes\n  \
             DataSequenceInOrder Yes\n  ErrorRecoveryLevel 0\n[UnitControl]\n  AuthMethod Auto\n  \
             Portal UC1 127.0.0.1:{control}\n  Netmask 127.0.0.1\n[PortalGroup1]\n  Portal DA1 127.0.0.1:{port}\n\
             [InitiatorGroup1]\n  InitiatorName \"ALL\"\n  Netmask 127.0.0.0/8\n[LogicalUnit1]\n  TargetName disk\n  \
             TargetAlias \"a disk\"\n  Mapping PortalGroup1 InitiatorGroup1\n  AuthMethod {auth}\n  \
             AuthGroup AuthGroup1\n  UseDigest Auto\n  UnitType Disk\n  QueueDepth 32\n  LUN0 Storage {path}/disk 64MB\n"
        );
        std::fs::write(dir.path().join("config"), config).unwrap();
        let daemon = Process::new("istgt")
            .args(["-D", "-c", &format!("{path}/config")])
            .env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin")
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .expect("istgt starts");
        let istgt = Istgt { daemon, port, _dir: dir };
        let deadline = Instant::now() + Duration::from_secs(60);
        while TcpStream::connect(("127.0.0.1", port)).is_err() {
            assert!(Instant::now() < deadline, "istgt does not listen");
            std::thread::sleep(Duration::from_millis(50));
        }
        Some(istgt)
    }

    fn url(&self) -> Url {
        format!("iscsi://127.0.0.1:{}/{BASE}:disk/0", self.port).parse().unwrap()
    }
}

impl Drop for Istgt {
    fn drop(&mut self) {
        // The daemon may already have ended.
        let _ = self.daemon.kill();
        let _ = self.daemon.wait();
    }
}

fn run<T>(test: impl Future<Output = T>) -> T {
    let runtime = Runtime::new(runtime::Config::default()).expect("io_uring works here");
    runtime.block_on(async {
        runtime::timeout(Duration::from_secs(300), test).await.expect("the test ends in time")
    })
}

#[test]
fn a_session_of_four_connections_writes_and_reads_back() {
    let Some(istgt) = Istgt::start("Auto") else { return };
    for digest in [DigestChoice::Never, DigestChoice::Require] {
        run(async {
            let options =
                Options { connections: 4, header_digest: digest, data_digest: digest, ..Options::default() };
            let session = Session::connect(&istgt.url(), options).await.unwrap();
            assert_eq!(session.connections(), 4);
            let disk = Disk::open(&session, 0).await.unwrap();
            assert_eq!(disk.len(), DISK_BYTES);
            let tasks: Vec<_> = (0..8u64)
                .map(|task| {
                    let disk = disk.clone();
                    runtime::spawn(async move {
                        for round in 0..8u64 {
                            let (lba, blocks) = (task * 8192 + round * 700, 33 + round as u32 * 90);
                            let data: Vec<u8> = (0..blocks as usize * 512)
                                .map(|i| ((i as u64 / 3 * (task + 1)) ^ round) as u8)
                                .collect();
                            disk.write(lba, Buf::from(data.clone())).await.unwrap();
                            assert!(disk.read(lba, blocks).await.unwrap().to_vec() == data);
                        }
                    })
                })
                .collect();
            for task in tasks {
                task.await.unwrap();
            }
            disk.sync().await.unwrap();
            assert_eq!(session.reconnects(), 0);
            session.close().await.unwrap();
        });
    }
}

#[test]
fn discovery_and_mutual_chap_work() {
    let Some(istgt) = Istgt::start("CHAP Mutual") else { return };
    let credential =
        |name: &str, secret: &str| Credential { name: name.into(), secret: Secret::new(secret.as_bytes()) };
    let options = |secret: &str| Options {
        chap: Some(Chap {
            credential: credential("alice", "alicesecret12"),
            target: Some(credential("thetarget", secret)),
            hashes: vec![Hash::Md5],
        }),
        ..Options::default()
    };
    run(async {
        let records = discover(&istgt.url(), &Options::default()).await.unwrap();
        assert_eq!(records[0].name, format!("{BASE}:disk"));
        let session = Session::connect(&istgt.url(), options("targetsecret1")).await.unwrap();
        assert_eq!(session.target_alias().as_deref(), Some("a disk"));
        Disk::open(&session, 0).await.unwrap().read(0, 1).await.unwrap();
        session.close().await.unwrap();
        for wrong in [options("wrong"), Options::default()] {
            let error = Session::connect(&istgt.url(), wrong).await.unwrap_err();
            assert!(matches!(error, Error::Login(_)), "{error}");
        }
    });
}
