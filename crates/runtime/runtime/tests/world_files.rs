//! The files of a simulated world: what a power cut and a failed flush leave of them.
#![cfg(feature = "sim")]

use std::path::Path;

use runtime::sim::{self, medium};
use runtime::{File, OpenOptions, files};

const DISK: &str = "/srv/disk";
const PAGE: usize = 4096;

fn in_world<T: Send + 'static, F: Future<Output = T> + 'static>(
    seed: u64,
    main: impl FnOnce() -> F + Send + 'static,
) -> T {
    sim::run(sim::Config::new(seed), main).output
}

fn open() -> File {
    File::open(DISK, OpenOptions { create: true, size: Some(16 * PAGE as u64), ..OpenOptions::default() })
        .unwrap()
}

/// A file with a page of 1 that is durable, name and all.
async fn begun() -> File {
    let file = open();
    file.write_at(vec![1; PAGE], 0, false).await.unwrap();
    file.sync_data().await.unwrap();
    files::sync_directory(Path::new("/srv")).unwrap();
    file
}

fn first(bytes: &[u8]) -> Vec<u8> {
    bytes[..PAGE].chunks(512).map(|sector| sector[0]).collect()
}

fn after_power_cut(name: &str) -> Option<Vec<u8>> {
    medium::cut_power();
    assert!(files::metadata(Path::new(name)).is_err(), "there is no power");
    medium::power_on().unwrap();
    medium::on_medium(Path::new(name))
}

#[test]
fn a_power_cut_leaves_what_was_synced_and_any_part_of_the_rest() {
    let (mut lost, mut kept, mut torn) = (0, 0, 0);
    for seed in 0..100 {
        let left = in_world(seed, || async {
            let file = begun().await;
            file.write_at(vec![2; PAGE], 0, false).await.unwrap();
            file.write_at(vec![3; PAGE], PAGE as u64, true).await.unwrap();
            after_power_cut(DISK).unwrap()
        });
        assert!(left[PAGE..2 * PAGE].iter().all(|byte| *byte == 3), "RWF_DSYNC");
        match first(&left) {
            page if page == [1; 8] => lost += 1,
            page if page == [2; 8] => kept += 1,
            page => {
                assert!(page.iter().all(|byte| [1, 2].contains(byte)), "{page:?}");
                torn += 1;
            }
        }
    }
    assert!(lost > 15 && kept > 15 && torn > 15, "{lost} lost, {kept} kept, {torn} torn");
}

#[test]
fn a_failed_flush_is_reported_once_to_each_open_file_and_its_pages_are_gone() {
    for seed in 0..20 {
        in_world(seed, || async {
            let (file, other) = (begun().await, open());
            file.write_at(vec![2; PAGE], 0, false).await.unwrap();
            medium::fail_flush(Path::new(DISK));
            for file in [&file, &other] {
                assert_eq!(file.sync_data().await.unwrap_err().raw_os_error(), Some(5));
                file.sync_data().await.unwrap();
            }
            open().sync_data().await.unwrap();
            let seen = async || first(&file.read_at(runtime::pool::alloc(PAGE).unwrap(), 0).await.1);
            assert_eq!(seen().await, [2; 8], "the page cache has it");
            assert!(medium::drop_caches().unwrap());
            assert_eq!(seen().await, [1; 8], "the medium does not");
            assert_eq!(first(&after_power_cut(DISK).unwrap()), [1; 8]);
        });
    }
}

#[test]
fn a_name_is_durable_once_its_directory_is_synced() {
    let (mut old, mut new) = (0, 0);
    for seed in 0..60 {
        let (before, after) = in_world(seed, || async {
            let (to, aside) = (Path::new("/srv/mark"), Path::new("/srv/mark.new"));
            let replace = |bytes: &[u8]| {
                let file =
                    files::open(aside, OpenOptions { create_new: true, ..OpenOptions::default() }).unwrap();
                files::write(&file, bytes).unwrap();
                files::sync(&file).unwrap();
                files::rename(aside, to).unwrap();
            };
            replace(b"one");
            files::sync_directory(Path::new("/srv")).unwrap();
            replace(b"two");
            let before = after_power_cut("/srv/mark").unwrap();
            let _ = files::remove(aside);
            replace(b"two");
            files::sync_directory(Path::new("/srv")).unwrap();
            (before, after_power_cut("/srv/mark").unwrap())
        });
        old += usize::from(before == b"one");
        new += usize::from(before == b"two");
        assert_eq!(after, b"two");
    }
    assert!(old > 5 && new > 5 && old + new == 60, "{old} old, {new} new");
}

#[test]
fn a_full_file_takes_what_fits_and_a_hole_gives_room_again() {
    in_world(1, || async {
        let file = begun().await;
        medium::limit_space(Path::new(DISK), Some(PAGE as u64));
        file.write_at(vec![2; PAGE], 0, false).await.unwrap();
        let full = file.write_at(vec![2; 3 * PAGE], PAGE as u64, false).await.unwrap_err();
        assert_eq!(full.raw_os_error(), Some(libc::ENOSPC));
        file.punch(0, PAGE as u64).await.unwrap();
        file.write_at(vec![4; PAGE], 5 * PAGE as u64, false).await.unwrap();
        file.sync_data().await.unwrap();
        let left = after_power_cut(DISK).unwrap();
        assert_eq!([left[0], left[PAGE], left[2 * PAGE], left[5 * PAGE]], [0, 2, 0, 4]);
    });
}

#[test]
fn direct_writes_are_durable_sector_by_sector() {
    for seed in 0..40 {
        let left = in_world(seed, || async {
            let cached = begun().await;
            let file = File::open(DISK, OpenOptions { direct: true, ..OpenOptions::default() }).unwrap();
            let sectors = |byte: u8| {
                let mut buf = runtime::pool::alloc(512).unwrap();
                buf.fill(byte);
                buf.freeze()
            };
            file.write_at(sectors(2), 0, false).await.unwrap();
            file.write_at(sectors(3), 512, true).await.unwrap();
            let odd = file.write_at(sectors(4), 1, false).await.unwrap_err();
            assert_eq!(odd.raw_os_error(), Some(libc::EINVAL));
            drop(cached);
            first(&after_power_cut(DISK).unwrap())
        });
        assert!([1, 2].contains(&left[0]) && left[1..] == [3, 1, 1, 1, 1, 1, 1], "{left:?}");
    }
}
