//! Data of regular files.

use runtime::Chain;

use super::{Place, pattern, size_of, write_all};
use crate::{Contents, New, SetAttributes, Stability, Tree, TreeError};

/// The result of an optional operation; `None` if the tree does not support it.
fn supported<R>(result: Result<R, TreeError>) -> Option<R> {
    match result {
        Err(TreeError::Unsupported) => None,
        result => Some(result.expect("supported")),
    }
}

pub(super) async fn written_bytes_are_read_back<T: Tree>(on: &Place<'_, T>) {
    let file = on.file("f").await;
    let mut expected = pattern(300_000);
    on.write(&file, 0, &expected).await;
    for (at, len) in [(0, 1), (4095, 2), (100_000, 4096), (8192, 65_536), (299_999, 1)] {
        let new: Vec<u8> = (0..len).map(|i| (i as u8).wrapping_mul(7)).collect();
        on.write(&file, at as u64, &new).await;
        expected[at..at + len].copy_from_slice(&new);
    }
    assert!(on.bytes(&file).await == expected);
    for (at, len) in [(1, 100), (4000, 200), (65_535, 70_000)] {
        assert!(on.range(&file, at as u64, len).await == expected[at..at + len], "{len} at {at}");
    }
}

pub(super) async fn a_read_ends_with_the_file<T: Tree>(on: &Place<'_, T>) {
    let file = on.file("f").await;
    let read = async |at, len| {
        let read = on.tree.read(&on.root, &file, at, len).await.unwrap();
        (read.data.len(), read.eof)
    };
    assert_eq!(read(0, 10).await, (0, true));
    on.write(&file, 0, &[1; 100]).await;
    assert_eq!(read(0, 10).await, (10, false));
    assert_eq!(read(90, 10).await, (10, true));
    assert_eq!(read(90, 100).await, (10, true));
    assert_eq!(read(100, 10).await, (0, true));
    assert_eq!(read(u64::MAX - 5, 10).await, (0, true));
}

pub(super) async fn a_gap_reads_as_zeros<T: Tree>(on: &Place<'_, T>) {
    let file = on.file("f").await;
    on.write(&file, 0, b"begin").await;
    on.write(&file, 1 << 20, b"end").await;
    let bytes = on.bytes(&file).await;
    assert_eq!(bytes.len(), (1 << 20) + 3);
    assert!(bytes.starts_with(b"begin\0") && bytes.ends_with(b"\0end"));
    assert!(bytes[5..1 << 20].iter().all(|byte| *byte == 0));
    // Bytes that a truncation removed do not come back.
    on.set(&on.root, &file, size_of(2)).await.unwrap();
    on.write(&file, 10, b"x").await;
    assert_eq!(on.bytes(&file).await, b"be\0\0\0\0\0\0\0\0x");
}

pub(super) async fn a_write_makes_the_file_longer_and_changes_its_times<T: Tree>(on: &Place<'_, T>) {
    let file = on.file("f").await;
    let before = on.get(&file).await;
    let written = on.tree.write(&on.root, &file, 10, vec![1; 10].into(), Stability::File).await.unwrap();
    assert_eq!((written.len, written.stability, written.file.after.size), (10, Stability::File, 20));
    let after = on.get(&file).await;
    assert_eq!(after.size, 20);
    assert_ne!(after.change, before.change);
    assert!(after.mtime >= before.mtime && after.ctime >= before.ctime);
    assert!(after.used > 0);
    on.write(&file, 0, &[2; 5]).await;
    assert_eq!(on.get(&file).await.size, 20);
}

pub(super) async fn long_data_in_many_pieces_is_one_write<T: Tree>(on: &Place<'_, T>) {
    let file = on.file("f").await;
    let data = pattern(1 << 20);
    let mut chain = Chain::new();
    let mut at = 0;
    for len in [1, 4095, 4096, 100_000, 7, 65_536].into_iter().cycle() {
        let len = len.min(data.len() - at);
        chain.push(data[at..at + len].to_vec());
        at += len;
        if at == data.len() {
            break;
        }
    }
    let mut done = 0;
    while !chain.is_empty() {
        let rest = chain.iter().cloned().collect();
        let written = on.tree.write(&on.root, &file, 3 + done, rest, Stability::Unstable).await.unwrap();
        chain.advance(written.len);
        done += written.len as u64;
    }
    assert!(on.bytes(&file).await[3..] == data);
}

pub(super) async fn only_regular_files_have_data<T: Tree>(on: &Place<'_, T>) {
    let directory = on.directory("d").await;
    let link = on.tree.create(&on.root, &on.here, b"l", New::Symlink(b"x", SetAttributes::default())).await;
    for (node, error) in [(directory, TreeError::IsDirectory), (link.unwrap().node, TreeError::Invalid)] {
        assert_eq!(on.tree.read(&on.root, &node, 0, 1).await.map(drop), Err(error));
        assert_eq!(write_all(on.tree, &on.root, &node, 0, b"x").await, Err(error));
    }
}

pub(super) async fn a_write_beyond_the_largest_file_is_refused<T: Tree>(on: &Place<'_, T>) {
    let file = on.file("f").await;
    let most = on.tree.limits().file_size;
    for at in [most, u64::MAX] {
        let written = on.tree.write(&on.root, &file, at, vec![1; 10].into(), Stability::Unstable).await;
        let error = written.map(drop).unwrap_err();
        assert!(matches!(error, TreeError::FileTooLarge | TreeError::Invalid), "{error:?}");
    }
    assert_eq!(on.get(&file).await.size, 0);
}

pub(super) async fn a_commit_has_the_verifier_of_the_writes<T: Tree>(on: &Place<'_, T>) {
    let file = on.file("f").await;
    let write = async |stability| on.tree.write(&on.root, &file, 0, vec![1; 10].into(), stability).await;
    let first = write(Stability::Unstable).await.unwrap();
    let second = write(Stability::Data).await.unwrap();
    assert!(second.stability >= Stability::Data);
    assert_eq!(first.verifier, second.verifier);
    for (at, len) in [(0, 0), (0, 10), (5, 100)] {
        assert_eq!(on.tree.commit(&on.root, &file, at, len).await.unwrap().verifier, first.verifier);
    }
}

pub(super) async fn allocated_space_reads_as_zeros_and_makes_the_file_longer<T: Tree>(on: &Place<'_, T>) {
    let file = on.file("f").await;
    on.write(&file, 0, &[1; 100]).await;
    let Some(changed) = supported(on.tree.allocate(&on.root, &file, 50, 20_000).await) else { return };
    assert_eq!(changed.after.size, 20_050);
    assert!(changed.after.used >= 20_050);
    let bytes = on.bytes(&file).await;
    assert_eq!((&bytes[..100], &bytes[100..]), (&[1; 100][..], &[0; 19_950][..]));
    assert_eq!(on.tree.allocate(&on.root, &file, 0, 10).await.unwrap().after.size, 20_050);
}

pub(super) async fn deallocated_bytes_read_as_zeros_and_the_size_stays<T: Tree>(on: &Place<'_, T>) {
    let file = on.file("f").await;
    let mut expected = pattern(100_000);
    on.write(&file, 0, &expected).await;
    let before = on.get(&file).await;
    let punched = on.tree.deallocate(&on.root, &file, 5000, 50_000).await;
    let Some(changed) = supported(punched) else { return };
    expected[5000..55_000].fill(0);
    assert!(on.bytes(&file).await == expected);
    assert_eq!(changed.after.size, 100_000);
    assert!(changed.after.used < before.used);
    on.tree.deallocate(&on.root, &file, 90_000, 1 << 40).await.unwrap();
    expected[90_000..].fill(0);
    assert!(on.bytes(&file).await == expected);
    on.tree.deallocate(&on.root, &file, 1 << 40, 10).await.unwrap();
    assert_eq!(on.get(&file).await.size, 100_000);
}

pub(super) async fn data_and_holes_are_found<T: Tree>(on: &Place<'_, T>) {
    let file = on.file("f").await;
    on.write(&file, 1 << 20, &[1; 65_536]).await;
    on.set(&on.root, &file, size_of(4 << 20)).await.unwrap();
    let seek = async |at, contents| on.tree.seek(&on.root, &file, at, contents).await;
    if supported(seek(0, Contents::Hole).await).is_none() {
        return;
    }
    let data = seek(0, Contents::Data).await.unwrap();
    assert!(data <= 1 << 20, "{data}");
    assert_eq!(seek((1 << 20) + 100, Contents::Data).await, Ok((1 << 20) + 100));
    let hole = seek(1 << 20, Contents::Hole).await.unwrap();
    assert!(((1 << 20) + 65_536..=4 << 20).contains(&hole), "{hole}");
    assert_eq!(seek(4 << 20, Contents::Data).await, Err(TreeError::NoEntry));
    assert_eq!(seek(4 << 20, Contents::Hole).await, Err(TreeError::NoEntry));
    on.write(&file, (4 << 20) - 1, b"x").await;
    assert_eq!(seek((4 << 20) - 1, Contents::Hole).await, Ok(4 << 20), "the end is a hole");
}

pub(super) async fn a_copy_copies_bytes_and_holes<T: Tree>(on: &Place<'_, T>) {
    let (from, to) = (on.file("f").await, on.file("g").await);
    on.write(&from, 0, &pattern(100_000)).await;
    on.write(&from, 500_000, &pattern(1000)).await;
    on.write(&to, 0, &[9; 700_000]).await;
    let mut expected = on.bytes(&from).await;
    let mut done = 0;
    while done < 501_000 {
        let copied = on.tree.copy(&on.root, (&from, done), (&to, 10 + done), 501_000 - done, false).await;
        let Some(copied) = supported(copied) else { return };
        assert!(copied > 0);
        done += copied;
    }
    assert_eq!(on.tree.copy(&on.root, (&from, 501_000), (&to, 0), 10, false).await, Ok(0));
    expected.splice(..0, [9; 10]);
    expected.resize(700_000, 9);
    assert!(on.bytes(&to).await == expected);
}

pub(super) async fn a_copy_within_a_file_does_not_overlap<T: Tree>(on: &Place<'_, T>) {
    let file = on.file("f").await;
    on.write(&file, 0, &pattern(10_000)).await;
    let copy = async |from, to, len| on.tree.copy(&on.root, (&file, from), (&file, to), len, false).await;
    if copy(0, 5000, 5001).await == Err(TreeError::Unsupported) {
        return;
    }
    assert_eq!(copy(0, 5000, 5001).await, Err(TreeError::Invalid));
    assert_eq!(copy(0, 5000, 5000).await, Ok(5000));
    let bytes = on.bytes(&file).await;
    assert_eq!(bytes[..5000], bytes[5000..]);
}
