//! The effect of "durable" on a real file. After a durable write or a sync, its data has blocks of
//! the medium; before, it waits in the page cache's delayed allocation. ext4 and XFS show this in a
//! file's extent map.

use std::path::Path;
use std::process::Command;

use backing::BlockStore;
use backing::engine::Engine;
use backing::spec::StoreSpec;

mod support;
use support::run;

const PIECE: u64 = 64 << 10;

/// Number of the file's extents that wait in the page cache for allocation. `None` if unknown.
fn waiting_extents(path: &Path) -> Option<usize> {
    let output = Command::new("filefrag").arg("-v").arg(path).output().ok()?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    output.status.success().then(|| text.lines().filter(|line| line.contains("delalloc")).count())
}

fn each_mode(test: impl Fn(&dyn BlockStore, &Path, &str)) {
    let directory = tempfile::tempdir_in(support::directory_on_disk()).unwrap();
    let probe = directory.path().join("probe");
    std::fs::write(&probe, vec![1; 1 << 20]).unwrap();
    if waiting_extents(&probe).is_none_or(|waiting| waiting == 0) {
        return eprintln!("SKIPPED: no filefrag, or a file system that does not delay allocation");
    }
    let modes = ["writeback", "writethrough", "direct"];
    let ways = modes.iter().flat_map(|cache| Engine::ALL.map(|(engine, _)| (*cache, engine)));
    for (cache, engine) in ways.filter(|(cache, engine)| engine.fits(cache.parse().unwrap()).is_ok()) {
        let path = directory.path().join(format!("{cache}-{engine}"));
        let mut spec = StoreSpec::parse(path.to_str().unwrap()).unwrap();
        spec.set("size", Some("8M")).unwrap();
        spec.set("cache", Some(cache)).unwrap();
        spec.set("bs", Some("4096")).unwrap();
        spec.set("engine", Some(engine.name())).unwrap();
        match spec.open() {
            Ok(opened) => test(opened.store.as_ref(), &path, &format!("{cache}, {engine}")),
            Err(e) => eprintln!("SKIPPED: {e}"),
        }
    }
}

#[test]
fn a_durable_write_is_on_the_medium_when_it_ends() {
    each_mode(|store, path, cache| {
        run(async {
            store.write(0, vec![1; PIECE as usize].into(), true).await.unwrap();
            assert_eq!(waiting_extents(path), Some(0), "{cache}");
            store.write(0, vec![2; PIECE as usize].into(), true).await.unwrap();
            store.write(2 * PIECE, vec![2; PIECE as usize].into(), true).await.unwrap();
            assert_eq!(waiting_extents(path), Some(0), "{cache}");
        });
    });
}

#[test]
fn a_sync_puts_every_earlier_write_on_the_medium() {
    each_mode(|store, path, cache| {
        run(async {
            let waits = !cache.starts_with("direct") && !cache.ends_with("sync");
            for tries in 1.. {
                // Places without blocks on the medium so far.
                for piece in [0, 2, 4, 6] {
                    let at = (piece + 10 * tries) * PIECE;
                    store.write(at, vec![1; PIECE as usize].into(), false).await.unwrap();
                }
                // The kernel itself writes data that has waited long, for example on a machine that
                // was paused.
                if !waits || waiting_extents(path) != Some(0) {
                    break;
                }
                assert!(tries < 10, "{cache}: this test would notice nothing");
            }
            store.sync().await.unwrap();
            assert_eq!(waiting_extents(path), Some(0), "{cache}");
            store.write(8 * PIECE, vec![1; PIECE as usize].into(), false).await.unwrap();
            store.sync().await.unwrap();
            assert_eq!(waiting_extents(path), Some(0), "{cache}: the second sync was a real one too");
        });
    });
}
