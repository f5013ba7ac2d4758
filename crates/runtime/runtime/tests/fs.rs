//! Files: reads return the written bytes, at any alignment, from any core.

mod common;

use std::io;
use std::sync::Arc;
use std::time::Duration;

use common::{config, pattern, run};
use runtime::{Buf, Chain, Cores, File, OpenOptions, Patience, Region, pool, sleep, spawn, timeout};

fn create(size: u64) -> (tempfile::TempDir, Arc<File>) {
    let dir = tempfile::tempdir().unwrap();
    let options = OpenOptions { create: true, size: Some(size), ..OpenOptions::default() };
    let file = File::open(dir.path().join("disk"), options).unwrap();
    (dir, Arc::new(file))
}

async fn read(file: &File, at: u64, len: usize) -> Vec<u8> {
    let (result, mut buf) = file.read_at(pool::alloc(len).unwrap(), at).await;
    buf.truncate(result.unwrap());
    buf.to_vec()
}

#[test]
fn a_file_reads_what_was_written_as_one_buffer_or_as_many() {
    run(async {
        let (_dir, file) = create(1 << 20);
        assert_eq!(file.size().unwrap(), 1 << 20);
        assert!(!file.is_block_device());
        file.write_at(Buf::from(pattern(5000)), 100, false).await.unwrap();
        let region = Region::new(4096).unwrap();
        region.fill(0, 4096, 9).unwrap();
        let chain: Chain =
            [Buf::from(vec![1; 1000]), region.slice(0, 4096).unwrap(), Buf::from_static(b"end")]
                .into_iter()
                .collect();
        file.write_at(chain, 10_000, true).await.unwrap();
        assert!(read(&file, 100, 5000).await == pattern(5000));
        let got = read(&file, 10_000, 5099).await;
        assert!(got[..1000] == [1; 1000] && got[1000..5096] == [9; 4096] && &got[5096..] == b"end");
        file.sync_data().await.unwrap();
        file.sync_all().await.unwrap();
    });
}

#[test]
fn a_write_of_more_buffers_than_one_call_takes_is_whole() {
    run(async {
        let (_dir, file) = create(1 << 20);
        let data = pattern(300_000);
        let chain: Chain = data.chunks(100).map(|piece| Buf::from(piece.to_vec())).collect();
        assert_eq!(chain.bufs().len(), 3000);
        file.write_at(chain, 1, false).await.unwrap();
        assert!(read(&file, 1, 300_000).await == data);
    });
}

#[test]
fn a_read_beyond_the_end_is_short_and_one_into_a_region_lands_there() {
    run(async {
        let (_dir, file) = create(10_000);
        file.write_at(Buf::from(vec![7; 10_000]), 0, false).await.unwrap();
        assert_eq!(read(&file, 9_000, 4096).await.len(), 1000);
        assert_eq!(read(&file, 20_000, 4096).await.len(), 0);
        let region = Region::new(8192).unwrap();
        let (result, _) = file.read_into(region.destination(10, 8000).unwrap().into(), 0).await;
        assert_eq!(result.unwrap(), 8000);
        assert_eq!(region.slice(9, 2).unwrap().to_vec(), [0, 7]);
        assert_eq!(region.slice(8009, 2).unwrap().to_vec(), [7, 0]);
    });
}

#[test]
fn holes_are_punched_found_and_filled() {
    run(async {
        let (_dir, file) = create(1 << 20);
        file.write_at(Buf::from(vec![1; 1 << 20]), 0, true).await.unwrap();
        let full = file.allocated().unwrap();
        match file.punch(256 << 10, 256 << 10).await {
            Err(e) if e.raw_os_error() == Some(libc::EOPNOTSUPP) => return,
            other => other.unwrap(),
        }
        assert!(file.allocated().unwrap() < full);
        assert!(read(&file, 256 << 10, 4096).await.iter().all(|&b| b == 0));
        assert_eq!(file.seek_hole(0).await.unwrap(), Some(256 << 10));
        assert_eq!(file.seek_data(256 << 10).await.unwrap(), Some(512 << 10));
        assert_eq!(file.seek_data(2 << 20).await.unwrap(), None);
        file.set_len(2 << 20).await.unwrap();
        assert_eq!(file.size().unwrap(), 2 << 20);
        assert_eq!(file.seek_data(1 << 20).await.unwrap(), None);
        match file.zero(0, 4096).await {
            Err(e) if e.raw_os_error() == Some(libc::EOPNOTSUPP) => {}
            other => {
                other.unwrap();
                assert!(read(&file, 0, 4096).await.iter().all(|&b| b == 0));
            }
        }
        file.fallocate(0, 0, 1 << 20).await.unwrap();
        assert!(file.allocated().unwrap() >= full);
    });
}

#[test]
fn direct_io_takes_pool_buffers_as_they_are() {
    run(async {
        let (dir, _file) = create(1 << 20);
        let options = OpenOptions { direct: true, dsync: true, ..OpenOptions::default() };
        let file = match File::open(dir.path().join("disk"), options) {
            Err(e) if e.raw_os_error() == Some(libc::EINVAL) => return,
            other => other.unwrap(),
        };
        assert!(file.logical_sector().unwrap() >= 512);
        let mut buf = pool::alloc(8192).unwrap();
        buf.copy_from_slice(&pattern(8192));
        file.write_at(buf.freeze(), 4096, false).await.unwrap();
        assert!(read(&file, 4096, 8192).await == pattern(8192));
        let unaligned = pool::alloc(8192).unwrap().freeze().slice(1..513);
        // File systems in memory do not mind.
        if let Err(error) = file.write_at(unaligned, 0, false).await {
            assert_eq!(error.raw_os_error(), Some(libc::EINVAL));
        }
    });
}

#[test]
fn errors_are_those_of_the_system() {
    run(async {
        let dir = tempfile::tempdir().unwrap();
        let missing = File::open(dir.path().join("no"), OpenOptions::default()).unwrap_err();
        assert_eq!(missing.kind(), io::ErrorKind::NotFound);
        assert_eq!(
            File::open(dir.path(), OpenOptions { read_only: true, ..Default::default() }).unwrap_err().kind(),
            io::ErrorKind::InvalidInput
        );
        let new = OpenOptions { create_new: true, size: Some(10), ..OpenOptions::default() };
        File::open(dir.path().join("a"), new).unwrap();
        assert_eq!(File::open(dir.path().join("a"), new).unwrap_err().kind(), io::ErrorKind::AlreadyExists);
        let file =
            File::open(dir.path().join("a"), OpenOptions { read_only: true, ..Default::default() }).unwrap();
        let error = file.write_at(Buf::from_static(b"x"), 0, false).await.unwrap_err();
        assert_eq!(error.raw_os_error(), Some(libc::EBADF));
        if let Ok(full) = File::open("/dev/full", OpenOptions::default()) {
            panic!("{full:?} is neither a file nor a block device");
        }
    });
}

#[test]
fn one_file_is_used_from_several_cores_at_once() {
    let (_dir, file) = create(4 << 20);
    let cores = Cores::start(2, config()).unwrap();
    run(async {
        let calls: Vec<_> = cores
            .handles()
            .iter()
            .enumerate()
            .map(|(i, handle)| {
                let file = file.clone();
                handle.call(move || async move {
                    let tasks: Vec<_> = (0..64u64)
                        .map(|n| {
                            let file = file.clone();
                            spawn(async move {
                                let at = (n * 2 + i as u64) * 8192;
                                let mut buf = pool::alloc(8192).unwrap();
                                buf.fill((n * 2) as u8 + i as u8);
                                file.write_at(buf.freeze(), at, false).await.unwrap();
                                assert!(
                                    read(&file, at, 8192).await.iter().all(|&b| b == (n * 2) as u8 + i as u8)
                                );
                            })
                        })
                        .collect();
                    for task in tasks {
                        task.await.unwrap();
                    }
                })
            })
            .collect();
        for call in calls {
            call.await.unwrap();
        }
        assert!(
            read(&file, 0, 1 << 20)
                .await
                .chunks(8192)
                .enumerate()
                .all(|(i, c)| c.iter().all(|&b| b == i as u8))
        );
    });
}

#[test]
fn dropped_writes_return_their_buffers_and_leave_other_data_alone() {
    run(async {
        let (_dir, file) = create(16 << 20);
        let before = pool::stats().in_use;
        for i in 0..100u64 {
            let buf = pool::alloc(1 << 16).unwrap().freeze();
            let write = file.write_at(buf, i << 16, true);
            drop(timeout(Duration::ZERO, write).await);
        }
        for _ in 0..1000 {
            if pool::stats().in_use == before {
                break;
            }
            sleep(Duration::from_millis(1)).await;
        }
        assert_eq!(pool::stats().in_use, before);
        file.write_at(Buf::from_static(b"whole"), 12 << 20, true).await.unwrap();
        assert_eq!(read(&file, 12 << 20, 5).await, b"whole");
    });
}

#[test]
fn calls_on_threads_move_the_same_bytes_as_the_ring() {
    run(async {
        let (_dir, file) = create(1 << 20);
        let data = pattern(300_000);
        let chain: Chain = data.chunks(100).map(|piece| Buf::from(piece.to_vec())).collect();
        file.write_on_thread(chain, 1, false).await.unwrap();
        assert!(read(&file, 1, 300_000).await == data, "more vectors than one call takes");
        file.write_on_thread(Buf::from(vec![7; 4096]), 5000, true).await.unwrap();
        let (result, buf) = file.read_on_thread(pool::alloc(4096).unwrap(), 5000).await;
        assert_eq!((result.unwrap(), &buf[..]), (4096, &[7; 4096][..]));
        let (result, _) = file.read_on_thread(pool::alloc(8192).unwrap(), (1 << 20) - 4096).await;
        assert_eq!(result.unwrap(), 4096, "short at the end of the file");
        let many: Vec<_> = (0..500u64)
            .map(|i| {
                let file = file.clone();
                spawn(async move {
                    file.write_on_thread(Buf::from(vec![i as u8; 512]), i * 512, false).await.unwrap();
                    let (result, buf) = file.read_on_thread(pool::alloc(512).unwrap(), i * 512).await;
                    assert_eq!((result.unwrap(), &buf[..]), (512, &[i as u8; 512][..]));
                })
            })
            .collect();
        for one in many {
            one.await.unwrap();
        }
    });
}

#[test]
fn abandoned_calls_keep_their_buffers_and_file_until_they_end() {
    let before = pool::stats().in_use;
    for _ in 0..50 {
        run(async {
            let (_dir, file) = create(4 << 20);
            for at in 0..4 {
                let reading = file.clone();
                let task = spawn(async move {
                    reading.read_on_thread(pool::alloc(1 << 20).unwrap(), at << 20).await.0.unwrap()
                });
                runtime::yield_now().await;
                drop(task);
            }
            let writing = file.clone();
            let write = async move { writing.write_on_thread(Buf::from(vec![1; 100_000]), 0, true).await };
            let _ = timeout(Duration::from_micros(1), write).await;
            drop(file);
        });
    }
    assert_eq!(pool::stats().in_use, before);
}

#[test]
fn cached_pages_are_read_at_once_and_the_end_of_a_file_is_short() {
    run(async {
        let (_dir, file) = create(1 << 20);
        let chain: Chain = [Buf::from(vec![1; 1000]), Buf::from(vec![2; 3096])].into_iter().collect();
        assert_eq!(file.write_now(&chain, 4096, true, Patience::Wait).unwrap(), 4096);
        let mut buf = pool::alloc(8192).unwrap();
        assert_eq!(file.read_now(&mut buf, 4096, Patience::Wait).unwrap(), 8192);
        assert!(buf[..1000] == [1; 1000] && buf[1000..4096] == [2; 3096] && buf[4096..] == [0; 4096]);
        match file.read_now(&mut buf, 4096, Patience::None) {
            Ok(n) => assert_eq!(n, 8192),
            Err(e) => assert!(matches!(e.raw_os_error(), Some(libc::EOPNOTSUPP | libc::EAGAIN)), "{e}"),
        }
        assert_eq!(file.read_now(&mut buf, (1 << 20) - 4096, Patience::Wait).unwrap(), 4096);
        assert_eq!(file.read_now(&mut buf, 2 << 20, Patience::Wait).unwrap(), 0);
    });
}

#[test]
fn a_mapped_file_shows_writes_both_ways_and_survives_truncation() {
    run(async {
        let (dir, file) = create(1 << 20);
        let region = match Region::of_file(&file, 1 << 20, true, true) {
            Err(e) if e.kind() == io::ErrorKind::Unsupported => return,
            other => other.unwrap(),
        };
        file.write_at(Buf::from(pattern(100_000)), 5000, false).await.unwrap();
        let slice = region.slice(5000, 100_000).unwrap();
        assert!(slice.is_region() && slice.is_lent() && slice.to_vec() == pattern(100_000));
        assert!(!Region::of_file(&file, 4096, false, false).unwrap().slice(0, 4096).unwrap().is_lent());
        region.write_from(200_001, &pattern(5000)).unwrap();
        assert!(read(&file, 200_001, 5000).await == pattern(5000));
        assert!(region.is_resident(5000, 100_000) && region.touch(5000, 100_000).is_ok());
        let mut pages = [9; 24];
        region.resident_pages(4096, &mut pages).unwrap();
        assert_eq!(pages, [1; 24]);
        assert_eq!(region.resident_pages(1, &mut pages).unwrap_err().kind(), io::ErrorKind::InvalidInput);
        assert!(region.resident_pages((1 << 20) - 4096, &mut pages).is_err());
        assert_eq!(region.punch(0, 4096).unwrap_err().kind(), io::ErrorKind::Unsupported);

        let path = dir.path().join("disk");
        std::fs::OpenOptions::new().write(true).open(path).unwrap().set_len(65536).unwrap();
        let mut bytes = vec![0; 8192];
        for _ in 0..3 {
            assert!(region.touch(65536, 1).is_err() && region.touch(61440, 8192).is_err());
            assert!(region.touch(1000, 64_000).is_ok());
            assert!(region.write_from(65536 - 10, &[1; 20]).is_err());
            assert!(region.read_into(65536, &mut bytes).is_err());
            assert!(region.slice(61440, 8192).unwrap().try_copy_to(&mut bytes).is_err());
            assert!(region.slice(61440, 8192).unwrap().stable().is_none());
            assert!(region.fill(70_000, 10, 1).is_err());
        }
        assert!(!region.is_resident(65536, 4096));
        assert!(slice.slice(..60_000).to_vec() == pattern(100_000)[..60_000]);
        // A file that grows again is there again.
        file.set_len(1 << 20).await.unwrap();
        region.write_from(500_000, &[7; 100]).unwrap();
        assert_eq!(read(&file, 500_000, 100).await, [7; 100]);
    });
}

#[test]
fn a_bus_error_of_anything_else_still_ends_the_process() {
    const CHILD: &str = "RING_TEST_BUS_ERROR";
    const NAME: &str = concat!(module_path!(), "::a_bus_error_of_anything_else_still_ends_the_process");
    if std::env::var_os(CHILD).is_some() {
        let (_dir, file) = create(4096);
        let _region = Region::of_file(&file, 4096, false, false).unwrap();
        // Not within a copy, and from outside: only the process's own handler counts. Rust's own
        // handler, to which ours passes it on, only removes itself the first time, and counts on
        // the access to be made again.
        let me = std::process::id().to_string();
        for _ in 0..100 {
            let _ = std::process::Command::new("kill").args(["-BUS", &me]).status();
            std::thread::sleep(Duration::from_millis(20));
        }
        return;
    }
    let child = std::process::Command::new(std::env::current_exe().unwrap())
        .args(["--exact", NAME.split_once("::").unwrap().1, "-q"])
        .env(CHILD, "1")
        .output()
        .unwrap();
    if cfg!(target_arch = "x86_64") {
        use std::os::unix::process::ExitStatusExt;
        assert_eq!(child.status.signal(), Some(libc::SIGBUS), "{child:?}");
    }
}

#[test]
fn a_write_is_made_as_the_user_as_whom_the_core_acted() {
    use std::os::unix::fs::{MetadataExt, PermissionsExt};
    // SAFETY: takes nothing and cannot fail.
    if unsafe { libc::geteuid() } != 0 {
        return;
    }
    run(async {
        let (dir, file) = create(4096);
        let path = dir.path().join("disk");
        let mode = || std::fs::metadata(&path).unwrap().mode() & 0o7777;
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o4777)).unwrap();
        file.write_at(Buf::from_static(b"own"), 0, false).await.unwrap();
        assert_eq!(mode(), 0o4777, "the super-user's writes keep set-user-ID");
        let mut write = std::pin::pin!(file.write_at(Buf::from_static(b"theirs"), 0, false));
        let acting = runtime::act_as(1234, 1234, &[]).unwrap();
        std::future::poll_fn(|cx| {
            assert!(write.as_mut().poll(cx).is_pending());
            std::task::Poll::Ready(())
        })
        .await;
        runtime::submit();
        drop(acting);
        write.await.unwrap();
        assert_eq!(mode(), 0o777);
    });
}
