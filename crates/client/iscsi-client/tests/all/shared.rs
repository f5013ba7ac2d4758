//! A disk that is used from other threads, and under tokio.

use std::sync::mpsc;
use std::thread;

use crate::fake::{BLOCK, Fake, Faults};
use iscsi::keys::Offer;
use iscsi_client::{Error, Options, SharedDisk, Url, wait};
use runtime::Runtime;

/// Runs `test` beside a target of so many blocks.
fn beside_a_target(blocks: usize, test: impl FnOnce(Url) + Send + 'static) {
    let (tell, told) = mpsc::channel();
    let (end, ended) = mpsc::channel::<()>();
    let target = thread::spawn(move || {
        let runtime = Runtime::new(runtime::Config::default()).expect("io_uring works here");
        runtime.block_on(async {
            let fake = Fake::start(Faults::default(), Offer::default(), blocks);
            tell.send(fake.url()).expect("the test waits");
            runtime::blocking(move || ended.recv()).await.expect_err("the test only drops its end");
        });
    });
    test(told.recv().expect("a target"));
    drop(end);
    target.join().expect("the target does not panic");
}

fn open(url: &Url) -> SharedDisk {
    wait(SharedDisk::open(url, Options::default())).expect("a disk")
}

#[test]
fn threads_share_a_disk() {
    beside_a_target(1024, |url| {
        let disk = open(&url);
        assert_eq!((disk.block_len() as usize, disk.blocks()), (BLOCK, 1024));
        let writers: Vec<_> = (0..8u8)
            .map(|n| {
                let disk = disk.clone();
                thread::spawn(move || {
                    for round in 0..16u64 {
                        let lba = u64::from(n) * 128 + round * 8;
                        wait(disk.write(lba, vec![n ^ round as u8; 8 * BLOCK])).unwrap();
                        assert_eq!(wait(disk.read(lba, 8)).unwrap(), vec![n ^ round as u8; 8 * BLOCK]);
                    }
                })
            })
            .collect();
        writers.into_iter().for_each(|writer| writer.join().unwrap());
        wait(disk.sync()).unwrap();
        wait(disk.close()).unwrap();
    });
}

#[test]
fn a_disk_is_used_under_tokio() {
    beside_a_target(64, |url| {
        let executor = tokio::runtime::Builder::new_multi_thread().worker_threads(2).build().unwrap();
        executor.block_on(async {
            let disk = SharedDisk::open(&url, Options::default()).await.unwrap();
            let tasks: Vec<_> = (0..32u64)
                .map(|lba| {
                    let disk = disk.clone();
                    tokio::spawn(async move {
                        disk.write(lba, vec![lba as u8; BLOCK]).await?;
                        disk.read(lba, 1).await
                    })
                })
                .collect();
            for (lba, task) in tasks.into_iter().enumerate() {
                assert_eq!(task.await.unwrap().unwrap(), vec![lba as u8; BLOCK]);
            }
            disk.close().await.unwrap();
        });
    });
}

#[test]
fn any_status_is_the_outcome_of_a_command() {
    beside_a_target(64, |url| {
        let disk = open(&url);
        let inquiry = wait(disk.command(vec![0x12, 0, 0, 0, 255, 0], None, Some(255))).unwrap();
        assert_eq!(inquiry.status, 0);
        assert!(inquiry.data.len() >= 36);
        let unknown = wait(disk.command(vec![0xff, 0, 0, 0, 0, 0], None, None)).unwrap();
        assert_eq!(unknown.status, 2, "CHECK CONDITION");
        assert!(!unknown.sense.is_empty());
        let beyond = wait(disk.read(64, 1)).unwrap_err();
        assert!(matches!(beyond, Error::Scsi(_)), "{beyond}");
    });
}

#[test]
fn after_a_logout_every_clone_is_closed() {
    beside_a_target(64, |url| {
        let disk = open(&url);
        let other = disk.clone();
        wait(disk.close()).unwrap();
        assert!(matches!(wait(other.read(0, 1)), Err(Error::Closed)));
    });
}

#[test]
fn a_target_that_is_not_there_is_an_error() {
    let nobody = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let url: Url = format!("iscsi://{nobody}/iqn.2026-01.org.example:none/0").parse().unwrap();
    let error = wait(SharedDisk::open(&url, Options::default())).unwrap_err();
    assert!(matches!(error, Error::Connect { .. }), "{error}");
}
