use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll, Wake, Waker};

use super::*;

struct Count(AtomicUsize);
impl Wake for Count {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

#[test]
fn a_pool_buffer_is_aligned_and_comes_back_when_the_last_name_of_it_goes() {
    let before = pool::stats().in_use;
    let mut buf = pool::alloc(5000).unwrap();
    assert_eq!((buf.len(), buf.capacity(), buf.as_ptr() as usize % 4096), (5000, 8192, 0));
    buf.fill(7);
    let buf = buf.freeze();
    let part = buf.slice(4000..4500);
    drop(buf);
    assert_eq!(pool::stats().in_use, before + 8192);
    assert_eq!(part.as_slice().unwrap(), [7; 500]);
    drop(part);
    assert_eq!(pool::stats().in_use, before);
    assert!(pool::stats().high_water >= 8192);
}

#[test]
fn the_block_that_was_freed_last_is_used_first() {
    let first = pool::alloc(4096).unwrap();
    let at = first.as_ptr();
    drop(first);
    assert_eq!(pool::alloc(100).unwrap().as_ptr(), at);
}

#[test]
fn a_pool_never_maps_more_than_its_limit_and_carves_free_chunks_anew() {
    pool::set_limit(4 << 20);
    let large: Vec<_> = std::iter::from_fn(|| pool::alloc(1 << 20)).collect();
    assert_eq!(large.len(), 4);
    assert!(pool::alloc(1).is_none());
    drop(large);
    let small: Vec<_> = std::iter::from_fn(|| pool::alloc(4096)).collect();
    assert_eq!(small.len(), 1024);
    assert_eq!(pool::stats().mapped, 4 << 20);
    let mut addresses: Vec<_> = small.iter().map(|b| b.as_ptr() as usize).collect();
    addresses.sort_unstable();
    addresses.dedup();
    assert_eq!(addresses.len(), 1024, "no block is given twice");
    drop(small);
    assert!(pool::alloc(1 << 20).is_some());
}

/// `pool` of the configuration is at least that.
#[test]
fn a_pool_of_18_mib_has_a_block_of_each_size_at_once() {
    let all = |mib: usize| -> usize {
        pool::set_limit(mib << 20);
        let sizes = (12..=20).map(|bits| pool::alloc(1 << bits));
        sizes.collect::<Vec<_>>().iter().flatten().count()
    };
    assert_eq!((all(16), all(18)), (8, 9));
}

#[test]
fn no_buffer_is_longer_than_the_largest_class() {
    assert!(pool::alloc(pool::MAX_ALLOC + 1).is_none());
    let many = pool::alloc_many(2 * pool::MAX_ALLOC + 1).unwrap();
    assert_eq!(many.iter().map(|b| b.len()).collect::<Vec<_>>(), [1 << 20, 1 << 20, 1]);
}

#[test]
fn a_zeroed_buffer_shows_nothing_of_its_last_use() {
    let mut buf = pool::alloc(4096).unwrap();
    buf.fill(0xaa);
    drop(buf);
    assert!(pool::alloc_zeroed(4096).unwrap().iter().all(|&b| b == 0));
}

#[test]
fn waiters_get_blocks_in_the_order_in_which_they_came() {
    pool::set_limit(2 << 20);
    let held: Vec<_> = std::iter::from_fn(|| pool::alloc(1 << 20)).collect();
    let counts = [0; 2].map(|_| Arc::new(Count(AtomicUsize::new(0))));
    let wakers = counts.clone().map(Waker::from);
    let mut first = Box::pin(pool::alloc_wait(1 << 20));
    let mut second = Box::pin(pool::alloc_wait(1 << 20));
    assert!(first.as_mut().poll(&mut Context::from_waker(&wakers[0])).is_pending());
    assert!(second.as_mut().poll(&mut Context::from_waker(&wakers[1])).is_pending());
    drop(held);
    assert_eq!(counts[0].0.load(Ordering::Relaxed), 1);
    assert!(second.as_mut().poll(&mut Context::from_waker(&wakers[1])).is_pending(), "not before the first");
    let Poll::Ready(buf) = first.as_mut().poll(&mut Context::from_waker(&wakers[0])) else {
        panic!("not ready")
    };
    assert_eq!(counts[1].0.load(Ordering::Relaxed), 1, "the next one is told when the first has its block");
    assert!(second.as_mut().poll(&mut Context::from_waker(&wakers[1])).is_ready());
    drop(buf);
}

#[test]
fn a_waiter_that_gives_up_passes_its_turn_on() {
    pool::set_limit(2 << 20);
    let held: Vec<_> = std::iter::from_fn(|| pool::alloc(1 << 20)).collect();
    let count = Arc::new(Count(AtomicUsize::new(0)));
    let waker = Waker::from(count.clone());
    let mut first = Box::pin(pool::alloc_wait(1));
    let mut second = Box::pin(pool::alloc_wait(1));
    assert!(first.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending());
    assert!(second.as_mut().poll(&mut Context::from_waker(&waker)).is_pending());
    drop(held);
    drop(first);
    assert_eq!(count.0.load(Ordering::Relaxed), 1);
    assert!(second.as_mut().poll(&mut Context::from_waker(&waker)).is_ready());
}

#[test]
fn slices_and_splits_name_the_right_bytes_of_any_source() {
    let region = Region::new(8192).unwrap();
    region.write_from(0, b"0123456789").unwrap();
    let mut block = pool::alloc(10).unwrap();
    block.copy_from_slice(b"0123456789");
    let sources = [
        Buf::from(b"0123456789"),
        Buf::from(b"0123456789".to_vec()),
        Buf::from(b"0123456789".to_vec().into_boxed_slice()),
        block.freeze(),
        region.slice(0, 10).unwrap(),
    ];
    for mut buf in sources {
        assert_eq!(buf.slice(2..5).to_vec(), b"234");
        assert_eq!(buf.slice(..=1).to_vec(), b"01");
        assert_eq!(buf.split_to(4).to_vec(), b"0123");
        buf.advance(1);
        buf.truncate(3);
        assert_eq!(buf.to_vec(), b"567");
        assert_eq!(&*buf.stable().unwrap(), b"567");
        assert_eq!(buf.is_region(), buf.as_slice().is_none());
    }
}

#[test]
#[should_panic(expected = "range 3..11 of 10 bytes")]
fn a_slice_beyond_the_end_panics() {
    Buf::from(b"0123456789").slice(3..11);
}

#[test]
fn a_buffer_outlives_the_thread_local_pool() {
    struct Late(std::cell::RefCell<Option<Buf>>);
    impl Drop for Late {
        fn drop(&mut self) {
            let held = self.0.take().unwrap();
            assert_eq!(held.to_vec(), [5; 4096]);
            assert_eq!(Buf::from(vec![1u8; 10]).to_vec(), [1; 10]);
        }
    }
    thread_local!(static LATE: Late = const { Late(std::cell::RefCell::new(None)) });
    std::thread::spawn(|| {
        LATE.with(|_| ());
        let mut buf = pool::alloc(4096).unwrap();
        buf.fill(5);
        LATE.with(|late| late.0.replace(Some(buf.freeze())));
    })
    .join()
    .unwrap();
}

#[test]
fn a_chain_splits_at_any_byte_and_keeps_its_length() {
    for n in 0..=9 {
        let mut chain: Chain =
            [b"012".as_slice(), b"", b"34", b"5678"].into_iter().map(Buf::from_static).collect();
        assert_eq!((chain.len(), chain.bufs().len()), (9, 3));
        let head = chain.split_to(n);
        assert_eq!((head.len(), chain.len()), (n, 9 - n));
        assert_eq!(head.to_vec(), &b"012345678"[..n]);
        assert_eq!(chain.to_vec(), &b"012345678"[n..]);
    }
}

#[test]
fn a_chain_knows_whether_it_is_aligned() {
    let buf = pool::alloc(8192).unwrap().freeze();
    let mut chain = Chain::from(buf.slice(..4096));
    assert!(chain.is_aligned(4096));
    chain.push(buf.slice(4096..4608));
    assert!(chain.is_aligned(512) && !chain.is_aligned(4096));
    chain.push(buf.slice(1..513));
    assert!(!chain.is_aligned(512));
}

#[test]
fn a_region_reads_what_was_written_and_zeros_where_it_was_punched() {
    let region = Region::new(64 << 10).unwrap();
    region.fill(0, 64 << 10, 0xee).unwrap();
    region.punch(1000, 20_000).unwrap();
    let mut bytes = vec![0; 64 << 10];
    region.read_into(0, &mut bytes).unwrap();
    for (i, b) in bytes.iter().enumerate() {
        assert_eq!(*b, if (1000..21_000).contains(&i) { 0 } else { 0xee }, "byte {i}");
    }
    region.punch(30_000, 10).unwrap();
    region.read_into(29_999, &mut bytes[..12]).unwrap();
    assert_eq!(bytes[..12], [0xee, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xee]);
}

#[test]
fn a_region_refuses_every_range_outside_of_it() {
    let region = Region::new(4096).unwrap();
    for (at, len) in [(4096, 1), (0, 4097), (usize::MAX, 2), (2, usize::MAX)] {
        assert_eq!(region.slice(at, len).unwrap_err(), OutOfRange);
        assert!(region.destination(at, len).is_err());
        assert!(region.fill(at, len, 0).is_err());
        assert!(region.punch(at, len).is_err());
    }
    assert!(region.write_from(4095, b"ab").is_err());
    assert!(region.read_into(4095, &mut [0; 2]).is_err());
    assert!(region.slice(4096, 0).is_ok());
}

#[test]
fn overlapping_copies_within_a_region_behave_as_if_made_aside() {
    let region = Region::new(40_000).unwrap();
    let pattern: Vec<u8> = (0..20_000u32).map(|i| (i % 251) as u8).collect();
    for (from, to) in [(0, 1), (0, 5000), (5000, 0), (1, 0), (100, 100)] {
        region.write_from(from, &pattern).unwrap();
        region.write_buf(to, &region.slice(from, pattern.len()).unwrap()).unwrap();
        assert_eq!(region.slice(to, pattern.len()).unwrap().to_vec(), pattern, "{from} to {to}");
    }
}

#[test]
fn a_copy_into_a_large_region_is_exact_at_every_alignment() {
    let region = Region::new(64 << 20).unwrap();
    let pattern: Vec<u8> = (0..70_000u32).map(|i| (i % 251) as u8).collect();
    let source = Buf::from(pattern.clone());
    for (from, to, len) in
        [(0, 0, 4096), (48, 4096, 4096), (1, 64, 2048), (7, 8192, 65_536), (0, 100, 4096), (3, 128, 4000)]
    {
        region.fill(0, 80_000, 0xee).unwrap();
        region.write_buf(to, &source.slice(from..from + len)).unwrap();
        let mut expected = vec![0xee; 80_000];
        expected[to..to + len].copy_from_slice(&pattern[from..from + len]);
        assert!(region.slice(0, 80_000).unwrap().to_vec() == expected, "{len} from {from} to {to}");
    }
    region.write_buf((64 << 20) - 4096, &source.slice(..4096)).unwrap();
    assert_eq!(region.write_buf((64 << 20) - 4032, &source.slice(..4096)), Err(OutOfRange));
}

#[test]
fn a_region_lives_until_its_last_slice_on_any_core_has_gone() {
    let region = Region::new(4096).unwrap();
    region.fill(0, 4096, 3).unwrap();
    let slice = region.slice(10, 20).unwrap();
    let other = region.clone();
    std::thread::spawn(move || assert_eq!(other.slice(0, 1).unwrap().to_vec(), [3])).join().unwrap();
    drop(region);
    assert_eq!(slice.to_vec(), [3; 20]);
}

#[test]
fn a_view_ends_with_its_last_slice_and_leaves_the_region_alone() {
    let region = Region::new(8192).unwrap();
    let view = region.view();
    view.fill(4096, 4096, 7).unwrap();
    let (slice, last) = (view.slice(4096, 10).unwrap(), view.last_use());
    drop(view);
    assert!(!last.is_over(), "a slice of it is there");
    let other = region.view();
    let others = (other.slice(0, 1).unwrap(), region.slice(0, 1).unwrap());
    assert_eq!(slice.to_vec(), [7; 10]);
    drop(slice);
    assert!(last.is_over(), "whatever slices of others there are");
    drop((region, others));
    assert_eq!(other.slice(8191, 1).unwrap().to_vec(), [7], "a view keeps the memory");
}

#[test]
fn a_view_that_a_sleeping_core_has_sliced_ends_all_the_same() {
    let cores = crate::Cores::start(1, crate::Config::default()).unwrap();
    let region = Region::new(4096).unwrap();
    let view = std::sync::Arc::new(region.view());
    let (sender, sliced) = std::sync::mpsc::channel();
    let theirs = view.clone();
    let _ = cores.handles()[0].run(move || async move {
        drop(theirs.slice(0, 1).unwrap());
        drop(theirs);
        sender.send(()).unwrap();
    });
    sliced.recv().unwrap();
    while std::sync::Arc::strong_count(&view) > 1 {
        std::thread::yield_now();
    }
    let last = view.last_use();
    drop(view);
    let patience = std::time::Instant::now() + std::time::Duration::from_secs(10);
    while !last.is_over() {
        assert!(std::time::Instant::now() < patience, "a sleeping core still holds it");
        std::thread::yield_now();
    }
    cores.stop();
    cores.join().unwrap();
}

#[test]
fn digesting_a_region_sees_each_byte_once() {
    let region = Region::new(10_000).unwrap();
    let pattern: Vec<u8> = (0..10_000u32).map(|i| (i % 253) as u8).collect();
    region.write_from(0, &pattern).unwrap();
    let mut seen = Vec::new();
    Chain::from(region.slice(0, 10_000).unwrap()).for_each_slice(|s| seen.extend_from_slice(s));
    assert_eq!(seen, pattern);
}

#[test]
fn a_full_pool_makes_wait_pending_and_dropping_the_future_leaves_no_trace() {
    pool::set_limit(0);
    {
        let mut wait = pin!(pool::alloc_wait(1));
        assert!(wait.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending());
    }
    pool::set_limit(2 << 20);
    assert!(pool::alloc(1).is_some());
}

#[test]
fn what_lies_side_by_side_in_one_memory_is_joined_and_nothing_else_is() {
    let (region, other) = (Region::new(8192).unwrap(), Region::new(8192).unwrap());
    region.fill(0, 4096, 1).unwrap();
    region.fill(4096, 4096, 2).unwrap();
    let mut both = region.slice(0, 4096).unwrap();
    assert!(both.join(region.slice(4096, 100).unwrap()).is_ok());
    assert_eq!((both.len(), both.to_vec()[4095], both.to_vec()[4096]), (4196, 1, 2));
    assert!(both.join(region.slice(4197, 1).unwrap()).is_err());
    assert!(both.join(other.slice(4196, 1).unwrap()).is_err());
    assert!(both.join(Buf::from_static(b"x")).is_err());
    assert!(Buf::from_static(b"x").join(Buf::new()).is_err());
    assert_eq!(both.len(), 4196);
}

#[test]
fn a_region_knows_its_own_bytes_by_their_place() {
    let (region, other) = (Region::new(8192).unwrap(), Region::new(8192).unwrap());
    let slice = region.slice(512, 1024).unwrap();
    assert!(region.is_at(512, &slice) && !region.is_at(513, &slice) && !other.is_at(512, &slice));
    assert!(region.is_at(1024, &slice.slice(512..)));
    assert!(!region.is_at(usize::MAX, &slice));
}

#[test]
fn a_chain_joins_what_lies_side_by_side_and_keeps_the_rest_apart() {
    let (region, other) = (Region::new(8192).unwrap(), Region::new(8192).unwrap());
    region.write_from(0, &[1; 4096]).unwrap();
    region.write_from(4096, &[2; 4096]).unwrap();
    let mut chain = Chain::new();
    chain.push_joined(Buf::new());
    assert!(chain.bufs().is_empty());
    chain.push_joined(region.slice(0, 4000).unwrap());
    chain.push_joined(region.slice(4000, 200).unwrap());
    chain.push_joined(region.slice(4200, 0).unwrap());
    assert_eq!((chain.bufs().len(), chain.len()), (1, 4200));
    assert_eq!(chain.to_vec(), [[1; 4096].as_slice(), &[2; 104]].concat());
    // A gap, memory in front, other memory, and an equal slice elsewhere.
    chain.push_joined(region.slice(4300, 100).unwrap());
    chain.push_joined(region.slice(4200, 100).unwrap());
    chain.push_joined(other.slice(4300, 100).unwrap());
    chain.push_joined(Buf::from_static(b"static"));
    chain.push_joined(vec![3; 10].into());
    assert_eq!(chain.bufs().iter().map(Buf::len).collect::<Vec<_>>(), [4200, 100, 100, 100, 6, 10]);
    assert_eq!(chain.len(), 4516);
    // Parts of one buffer are one memory too.
    let whole = Buf::from(vec![4; 100]);
    chain.push_joined(whole.slice(..60));
    chain.push_joined(whole.slice(60..));
    assert_eq!((chain.bufs().len(), chain.bufs()[6].len(), chain.len()), (7, 100, 4616));
    // A buffer that was pushed as it is stays separate, and is joined with those that follow.
    chain.push(region.slice(0, 10).unwrap());
    chain.push(region.slice(10, 10).unwrap());
    chain.push_joined(region.slice(20, 10).unwrap());
    assert_eq!(chain.bufs().iter().skip(7).map(Buf::len).collect::<Vec<_>>(), [10, 20]);
}

#[test]
fn zeros_are_of_any_length_and_aligned_at_their_beginning() {
    for len in [0, 1, ZEROS - 1, ZEROS, ZEROS + 1, 3 * ZEROS] {
        let mut chain = Chain::new();
        chain.push_zeros(len);
        assert_eq!(chain.to_vec(), vec![0; len]);
        assert!(chain.bufs().iter().all(|buf| buf.as_ptr() as usize % 4096 == 0));
    }
}
