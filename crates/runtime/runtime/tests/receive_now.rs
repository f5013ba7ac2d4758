//! Receives that take available data and never wait, and the round of the ring in which other tasks
//! run.

mod common;

use std::cell::Cell;
use std::io::ErrorKind;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use common::{pair, pattern, recv, run, send};
use runtime::{BufMut, Destination, Region, Scatter, TcpStream, pool, sleep, spawn};

const UNTOUCHED: u8 = 0xee;

/// Waits until `len` bytes are in the socket.
async fn there(stream: &TcpStream, len: usize) {
    while stream.pending().unwrap() < len {
        sleep(Duration::from_millis(1)).await;
    }
}

fn region(len: usize) -> Arc<Region> {
    let region = Region::new(len).unwrap();
    region.fill(0, len, UNTOUCHED).unwrap();
    region
}

fn buffer(len: usize) -> BufMut {
    let mut buffer = pool::alloc(len).unwrap();
    buffer.fill(UNTOUCHED);
    buffer
}

#[test]
fn three_places_are_filled_one_after_the_other_as_far_as_there_are_bytes() {
    run(async {
        // Bytes in the socket, and the lengths of the places: in front, in the region, behind.
        for (len, [front, middle, back]) in [
            (1, [10, 100, 10]),
            (10, [10, 100, 10]),
            (11, [10, 100, 10]),
            (110, [10, 100, 10]),
            (111, [10, 100, 10]),
            (120, [10, 100, 10]),
            (500, [10, 100, 10]),
            (9000, [0, 8192, 0]),
            (9000, [0, 8192, 200]),
            (9000, [200, 8192, 0]),
            (9000, [0, 0, 5000]),
            (9000, [5000, 0, 0]),
        ] {
            let (a, b) = pair().await;
            let bytes = pattern(len);
            send(&a, &bytes).await;
            there(&b, len).await;
            let region = region(16_384);
            let (mut before, mut behind) = (vec![UNTOUCHED; front], vec![UNTOUCHED; back]);
            let mut place = region.destination(4096, middle).unwrap();
            let room = front + middle + back;
            let got = b.try_recv_around(&mut before, &mut place, &mut behind).unwrap();
            assert_eq!(got, len.min(room));
            assert_eq!(b.has_more(), got == room);
            let whole = region.slice(0, 16_384).unwrap().to_vec();
            let (outside, inside) = (whole.len() - middle, &whole[4096..4096 + middle]);
            let filled = [&before[..], inside, &behind].concat();
            assert!(filled[..got] == bytes[..got]);
            assert!(filled[got..].iter().all(|byte| *byte == UNTOUCHED));
            let untouched = whole[..4096].iter().chain(&whole[4096 + middle..]);
            assert_eq!(untouched.filter(|byte| **byte == UNTOUCHED).count(), outside);
            // Bytes that did not fit are still in the socket.
            assert_eq!(recv(&b, len - got).await, bytes[got..]);
        }
    });
}

#[test]
fn a_receive_tells_no_data_from_the_end_of_the_stream() {
    run(async {
        let (a, b) = pair().await;
        let region = region(4096);
        let mut place = region.destination(0, 4096).unwrap();
        let (mut before, mut behind) = ([UNTOUCHED; 10], [UNTOUCHED; 10]);
        let mut scatter = Scatter::new();
        scatter.push(buffer(100));
        for round in 0..2 {
            let error = b.try_recv_around(&mut before, &mut place, &mut behind).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::WouldBlock);
            assert_eq!(b.try_discard(1 << 20).unwrap_err().kind(), ErrorKind::WouldBlock);
            assert_eq!(b.try_recv_scatter(&mut scatter).unwrap_err().kind(), ErrorKind::WouldBlock);
            assert!(!b.has_more(), "there was nothing");
            assert_eq!(scatter.len(), 100, "nothing was filled");
            if round == 0 {
                send(&a, b"x").await;
                assert_eq!(recv(&b, 1).await, b"x");
            }
        }
        send(&a, b"last").await;
        drop(a);
        there(&b, 4).await;
        assert_eq!(b.try_recv_around(&mut before, &mut place, &mut behind).unwrap(), 4);
        assert_eq!(before[..4], *b"last");
        // The end comes by itself.
        loop {
            match b.try_recv_around(&mut before, &mut place, &mut behind) {
                Ok(got) => break assert_eq!(got, 0),
                Err(error) => assert_eq!(error.kind(), ErrorKind::WouldBlock),
            }
            sleep(Duration::from_millis(1)).await;
        }
        assert_eq!(b.try_discard(10).unwrap(), 0);
        assert_eq!(b.try_recv_scatter(&mut scatter).unwrap(), 0);
        assert!(!b.has_more());
        assert!(region.slice(0, 4096).unwrap().to_vec().iter().all(|byte| *byte == UNTOUCHED));
    });
}

#[test]
fn without_room_nothing_is_taken() {
    run(async {
        let (a, b) = pair().await;
        send(&a, b"stays").await;
        there(&b, 5).await;
        let region = region(4096);
        let mut none = region.destination(100, 0).unwrap();
        assert_eq!(b.try_recv_around(&mut [], &mut none, &mut []).unwrap(), 0);
        assert_eq!(b.try_recv(&mut []).unwrap(), 0);
        assert_eq!(b.try_discard(0).unwrap(), 0);
        assert_eq!(b.try_recv_scatter(&mut Scatter::new()).unwrap(), 0);
        assert_eq!(recv(&b, 5).await, b"stays");
    });
}

#[test]
fn a_scatter_takes_what_is_there_at_once_and_the_rest_as_it_comes() {
    run(async {
        let (a, b) = pair().await;
        let bytes = pattern(20_000);
        let mut scatter = Scatter::new();
        for (at, len) in [(100, 5000), (0, 3000), (0, 12_000)] {
            scatter.push(Destination::Pool { buf: buffer(at + len), at, len });
        }
        // Within the first, to its end, within the last.
        let mut sent = 0;
        for end in [3000, 5000, 9000] {
            send(&a, &bytes[sent..end]).await;
            there(&b, end - sent).await;
            assert_eq!(b.try_recv_scatter(&mut scatter).unwrap(), end - sent);
            assert_eq!(scatter.len(), 20_000 - end);
            sent = end;
        }
        assert_eq!(b.try_recv_scatter(&mut scatter).unwrap_err().kind(), ErrorKind::WouldBlock);
        let rest = bytes[sent..].to_vec();
        let sending = spawn(async move {
            send(&a, &rest).await;
            send(&a, b"behind").await;
            a
        });
        let (result, mut scatter) = b.recv_into(scatter, 11_000).await;
        assert_eq!(result.unwrap(), 11_000);
        let filled: Vec<BufMut> = scatter.take().into_iter().filter_map(Destination::into_buf).collect();
        assert!(filled[0][..100].iter().all(|byte| *byte == UNTOUCHED));
        assert!([&filled[0][100..], &filled[1], &filled[2]].concat() == bytes);
        assert_eq!(recv(&b, 6).await, b"behind");
        drop(sending.await.unwrap());
    });
}

#[test]
fn what_is_there_is_thrown_away_at_once_and_what_follows_is_not() {
    run(async {
        let (a, b) = pair().await;
        let bytes = pattern(50_000);
        send(&a, &bytes).await;
        there(&b, 50_000).await;
        assert_eq!(b.try_discard(30_000).unwrap(), 30_000);
        assert!(b.has_more());
        assert_eq!(recv(&b, 100).await, bytes[30_000..30_100]);
        assert_eq!(b.try_discard(1 << 20).unwrap(), 19_900);
        assert!(!b.has_more());
        send(&a, b"after").await;
        assert_eq!(recv(&b, 5).await, b"after");
    });
}

#[test]
fn a_round_of_the_ring_runs_others_and_submits_their_operations() {
    run(async {
        let (a, b) = pair().await;
        let came = Rc::new(Cell::new(0));
        let counted = came.clone();
        let receiving = spawn(async move {
            while counted.get() < 100 {
                let got = recv(&b, 1).await.len();
                counted.set(counted.get() + got);
            }
        });
        send(&a, &[7; 100]).await;
        // The task waits for nothing but rounds: each lets the other receive, which has asked the
        // kernel for data a round before.
        let mut rounds = 0;
        while came.get() < 100 {
            runtime::round().await;
            rounds += 1;
            assert!(rounds <= 400, "{} came in {rounds} rounds", came.get());
        }
        receiving.await.unwrap();
    });
}
