//! Sockets: data that arrives, data that is sent, and the fate of operations whose future was
//! dropped.

mod common;

use std::io;
use std::net::Shutdown;
use std::os::fd::AsRawFd;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use common::{config, connect, listen, pair, pattern, recv, run, run_with, send};
use runtime::{
    Backend, Buf, Config, Cores, Destination, Gather, Guard, Lender, Lent, ListenOptions, Region, Scatter,
    TcpListener, TcpStream, pool, sleep, spawn, timeout,
};

#[test]
fn what_is_sent_arrives_and_the_end_is_no_bytes() {
    run(async {
        let (a, b) = pair().await;
        send(&a, b"hello").await;
        assert_eq!(recv(&b, 5).await, b"hello");
        send(&b, b"world").await;
        drop(b);
        assert_eq!(recv(&a, 5).await, b"world");
        assert!(a.recv_some(100).await.unwrap().is_empty());
    });
}

#[test]
fn what_is_discarded_is_gone_and_what_follows_is_not() {
    run(async {
        let (a, b) = pair().await;
        let bytes = pattern(300_000);
        let sender = spawn(async move {
            send(&a, &bytes).await;
            a
        });
        assert_eq!(recv(&b, 100).await, pattern(300_000)[..100]);
        let mut left = 299_000;
        while left > 0 {
            let n = b.discard(left).await.unwrap();
            assert!((1..=left).contains(&n));
            left -= n;
        }
        assert_eq!(recv(&b, 900).await, pattern(300_000)[299_100..]);
        drop(sender.await.unwrap());
        assert_eq!(b.discard(1).await.unwrap(), 0);
    });
}

#[test]
fn a_receive_is_immediate_with_data_and_blocks_nothing_without() {
    run(async {
        let (a, b) = pair().await;
        let b = Rc::new(b);
        send(&a, &pattern(3000)).await;
        assert_eq!(b.recv_some(1000).await.unwrap().len(), 1000);
        let came = Rc::new(std::cell::Cell::new(0));
        let receiver = spawn({
            let (b, came) = (b.clone(), came.clone());
            async move {
                while came.get() < 2000 {
                    let n = b.recv_some(1000).await.unwrap().len();
                    came.set(came.get() + n);
                }
            }
        });
        // Lets it ask.
        runtime::yield_now().await;
        let mut rounds = 0;
        while b.receives_first().await {
            rounds += 1;
            assert!(rounds <= 10, "the socket was emptied");
        }
        assert_eq!(came.get(), 2000);
        assert!(rounds >= 1);
        receiver.await.unwrap();
    });
}

/// As a process without a ring does, which shares the listener.
#[test]
fn a_listener_that_others_made_non_blocking_accepts_and_sleeps() {
    run(async {
        let theirs = std::net::TcpListener::bind(common::ANY).unwrap();
        theirs.set_nonblocking(true).unwrap();
        let addr = theirs.local_addr().unwrap();
        let mut listener = TcpListener::from_fd(theirs.try_clone().unwrap().into()).unwrap();
        let accepts = spawn(async move {
            for _ in 0..3 {
                let stream = listener.accept().await.unwrap();
                assert_eq!(recv(&stream, 5).await, b"hello");
            }
        });
        for _ in 0..3 {
            let before = common::thread_cpu();
            sleep(Duration::from_millis(200)).await;
            assert!(common::thread_cpu() - before < Duration::from_millis(100), "it waits by trying");
            let stream = connect(addr).await;
            send(&stream, b"hello").await;
        }
        accepts.await.unwrap();
    });
}

/// A receive ends in front of urgent data; what is behind it announces itself by nothing else.
#[test]
fn bytes_behind_urgent_data_are_received() {
    run(async {
        let (a, b) = pair().await;
        let receives = spawn(async move { recv(&b, 6).await });
        sleep(Duration::from_millis(20)).await;
        let a = a.into_fd();
        for (bytes, flags) in [("abc", 0), ("!", libc::MSG_OOB), ("def", 0)] {
            // SAFETY: the bytes outlive the call.
            let sent = unsafe { libc::send(a.as_raw_fd(), bytes.as_ptr().cast(), bytes.len(), flags) };
            assert_eq!(sent, bytes.len() as isize);
        }
        assert_eq!(receives.await.unwrap(), b"abcdef");
    });
}

#[test]
fn ipv6_works_like_ipv4() {
    run(async {
        let Ok(mut listener) = TcpListener::bind("[::1]:0".parse().unwrap(), ListenOptions::default()) else {
            return;
        };
        let a = connect(listener.local_addr().unwrap()).await;
        let b = listener.accept().await.unwrap();
        send(&a, b"six").await;
        assert_eq!(recv(&b, 3).await, b"six");
    });
}

#[test]
fn connecting_to_nobody_fails_and_to_silence_times_out() {
    run(async {
        let (listener, addr) = listen();
        drop(listener);
        let error = TcpStream::connect(addr, Duration::from_secs(60)).await.unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::ConnectionRefused);
        // A listener whose queue is full answers nothing.
        let options = ListenOptions { backlog: 0, ..ListenOptions::default() };
        let listener = TcpListener::bind(common::ANY.parse().unwrap(), options).unwrap();
        let addr = listener.local_addr().unwrap();
        let mut held = Vec::new();
        let error = loop {
            match TcpStream::connect(addr, Duration::from_millis(100)).await {
                Ok(stream) => held.push(stream),
                Err(error) => break error,
            }
            assert!(held.len() < 10);
        };
        assert_eq!(error.kind(), io::ErrorKind::TimedOut);
    });
}

/// Sends `gather` to a peer that reads in small pieces, slowly; returns the bytes that it got.
async fn through(gather: Gather) -> (Vec<u8>, Gather) {
    let (a, b) = pair().await;
    a.set_send_buffer(4096).unwrap();
    let len = gather.len();
    let reader = spawn(async move {
        let mut all = Vec::new();
        while all.len() < len {
            let bytes = b.recv_some(50_000).await.unwrap();
            assert!(!bytes.is_empty());
            all.extend_from_slice(&bytes);
            if all.len() % 3 == 0 {
                sleep(Duration::from_micros(100)).await;
            }
        }
        all
    });
    let (result, gather) = a.send(gather).await;
    result.unwrap();
    (reader.await.unwrap(), gather)
}

#[test]
fn a_gather_of_everything_arrives_in_order_at_a_slow_reader() {
    run(async {
        let region = Region::new(1 << 20).unwrap();
        region.write_from(0, &pattern(1 << 20)).unwrap();
        let mut gather = Gather::new();
        let mut expected = Vec::new();
        for i in 0..5000usize {
            let header = [i as u8; 48];
            gather.push_copy(&header);
            expected.extend_from_slice(&header);
            let buf = match i % 4 {
                0 => region.slice(i * 7 % 1000, 700).unwrap(),
                1 => Buf::from(vec![i as u8; 300]),
                2 => Buf::from_static(b"static"),
                _ => {
                    let mut block = pool::alloc(1000).unwrap();
                    block.fill(i as u8);
                    block.freeze()
                }
            };
            expected.extend_from_slice(&buf.to_vec());
            gather.push(buf);
        }
        assert!(gather.vectors() > 2 * 1024, "more than one system call takes");
        assert_eq!(gather.len(), expected.len());
        let in_use = pool::stats().in_use;
        let (got, mut gather) = through(gather).await;
        assert!(got == expected);
        assert!(gather.is_empty());
        assert!(pool::stats().in_use < in_use - 1000 * 4096, "sent buffers are back");
        gather.push(region.slice(0, 1 << 20).unwrap());
        assert!(through(gather).await.0 == pattern(1 << 20));
    });
}

#[test]
fn a_send_to_a_peer_that_has_gone_fails_and_keeps_the_process() {
    run(async {
        let (a, b) = pair().await;
        b.reset();
        let error = loop {
            let mut gather = Gather::new();
            gather.push_copy(&[1; 1000]);
            if let (Err(error), _) = a.send(gather).await {
                break error;
            }
            sleep(Duration::from_millis(1)).await;
        };
        assert!(matches!(error.kind(), io::ErrorKind::BrokenPipe | io::ErrorKind::ConnectionReset));
    });
}

#[test]
fn a_scatter_is_filled_in_order_and_the_rest_goes_where_it_belongs() {
    run(async {
        let (a, b) = pair().await;
        let region = Region::new(1 << 20).unwrap();
        let data = pattern(300_000);
        let sent = data.clone();
        let sender = spawn(async move {
            for piece in sent.chunks(70_001) {
                send(&a, piece).await;
                sleep(Duration::from_millis(1)).await;
            }
            a
        });
        let mut scatter = Scatter::new();
        let head = pool::alloc(8192).unwrap();
        scatter.push(Destination::from_offset(head, 1000));
        scatter.push(region.destination(4096, 250_000).unwrap());
        scatter.push(pool::alloc(1 << 20).unwrap());
        let payload = 7192 + 250_000;
        let (result, mut scatter) = b.recv_into(scatter, payload).await;
        let mut got = result.unwrap();
        assert!(got >= payload);
        let mut parts = scatter.take().into_iter();
        let head = parts.next().unwrap().into_buf().unwrap();
        assert!(parts.next().unwrap().into_buf().is_none());
        let mut rest = parts.next().unwrap().into_buf().unwrap();
        rest.truncate(got - payload);
        assert!(head[1000..] == data[..7192]);
        assert!(region.slice(4096, 250_000).unwrap().to_vec() == data[7192..payload]);
        assert!(rest[..] == data[payload..got]);
        let (mut tail, mut scatter) = (rest.to_vec(), scatter);
        while got < data.len() {
            scatter.push(pool::alloc(100_000).unwrap());
            let (result, mut back) = b.recv_into(scatter, 1).await;
            let n = result.unwrap();
            assert!(n > 0);
            got += n;
            tail.extend_from_slice(&back.take()[0].as_bytes().unwrap()[..n]);
            scatter = back;
        }
        assert!(tail[..] == data[payload..]);
        drop(sender.await.unwrap());
        scatter.push(pool::alloc(10).unwrap());
        let (result, _) = b.recv_into(scatter, 10).await;
        assert_eq!(result.unwrap(), 0, "the peer has sent its last");
    });
}

#[test]
fn a_dropped_receive_returns_its_buffer_only_after_the_kernel_has_let_go() {
    run(async {
        let (a, b) = pair().await;
        let before = pool::stats().in_use;
        let mut scatter = Scatter::new();
        scatter.push(pool::alloc(1 << 16).unwrap());
        {
            let receive = std::pin::pin!(b.recv_into(scatter, 1));
            assert!(timeout(Duration::from_millis(1), receive).await.is_err());
        }
        // The future has gone; the buffer is the operation's until its completion has been seen.
        for _ in 0..10_000 {
            if pool::stats().in_use == before {
                break;
            }
            sleep(Duration::from_millis(1)).await;
        }
        assert_eq!(pool::stats().in_use, before);
        send(&a, b"later").await;
        assert_eq!(recv(&b, 5).await, b"later", "a cancelled receive takes nothing that comes later");
    });
}

#[test]
fn a_dropped_queued_operation_holds_its_buffer_until_it_ends() {
    run(async {
        let (_a, b) = pair().await;
        let before = pool::stats().in_use;
        let mut scatter = Scatter::new();
        scatter.push(pool::alloc(4096).unwrap());
        {
            let mut receive = Box::pin(b.recv_into(scatter, 1));
            std::future::poll_fn(|cx| {
                assert!(receive.as_mut().poll(cx).is_pending());
                std::task::Poll::Ready(())
            })
            .await;
        }
        // epoll uses no memory of an operation that waits.
        let held = if config().backend == Backend::Epoll { 0 } else { 4096 };
        assert_eq!(pool::stats().in_use, before + held, "not before its completion has been seen");
        for _ in 0..1000 {
            if pool::stats().in_use == before {
                break;
            }
            sleep(Duration::from_millis(10)).await;
        }
        assert_eq!(pool::stats().in_use, before);
    });
}

#[test]
fn a_dropped_send_to_a_peer_that_does_not_read_returns_its_buffers() {
    run(async {
        let (a, _b) = pair().await;
        let before = pool::stats().in_use;
        let mut gather = Gather::new();
        for _ in 0..32 {
            gather.push(pool::alloc(1 << 20).unwrap().freeze());
        }
        assert!(timeout(Duration::from_millis(20), a.send(gather)).await.is_err());
        drop(a);
        for _ in 0..10_000 {
            if pool::stats().in_use == before {
                return;
            }
            sleep(Duration::from_millis(1)).await;
        }
        panic!("{} bytes are still held", pool::stats().in_use - before);
    });
}

#[test]
fn dropping_a_runtime_with_operations_in_flight_frees_their_buffers() {
    let before = pool::stats().in_use;
    run(async {
        let (a, b) = pair().await;
        for stream in [a, b] {
            drop(spawn(async move {
                let mut scatter = Scatter::new();
                scatter.push(pool::alloc(1 << 16).unwrap());
                stream.recv_into(scatter, 1).await.0.unwrap();
            }));
        }
        sleep(Duration::from_millis(5)).await;
        assert!(pool::stats().in_use >= before + (2 << 16));
    });
    assert_eq!(pool::stats().in_use, before);
}

#[test]
fn a_receive_waits_when_all_buffers_are_held_and_goes_on_when_one_is_back() {
    let config = Config { recv_buffers: 2, pool_bytes: 4 << 20, ..config() };
    run_with(config, async {
        let (a, b) = pair().await;
        let data = pattern(6 << 20);
        let sent = data.clone();
        let sender = spawn(async move {
            let mut gather = Gather::new();
            gather.push(Buf::from(sent));
            a.send(gather).await.0.unwrap();
        });
        // Keep everything that arrives, until nothing more can.
        let mut held = std::collections::VecDeque::new();
        let mut got = 0;
        // Nothing for a while, three times: once may be because this thread did not run.
        let mut silences = 0;
        while silences < 3 {
            let Ok(bytes) = timeout(Duration::from_millis(100), b.recv_some(1 << 16)).await else {
                silences += 1;
                continue;
            };
            silences = 0;
            let bytes = bytes.unwrap();
            assert!(bytes[..] == data[got..got + bytes.len()]);
            got += bytes.len();
            held.push_back(bytes);
        }
        assert!(got < data.len() && held.len() >= 4, "{got} bytes in {}", held.len());
        while got < data.len() {
            drop(held.pop_front());
            let bytes = timeout(Duration::from_secs(60), b.recv_some(1 << 16)).await.unwrap().unwrap();
            assert!(bytes[..] == data[got..got + bytes.len()]);
            got += bytes.len();
            held.push_back(bytes);
        }
        sender.await.unwrap();
    });
}

#[test]
fn small_arrivals_do_not_pin_large_buffers() {
    run(async {
        let (a, b) = pair().await;
        let before = pool::stats().in_use;
        let mut held = Vec::new();
        for _ in 0..100 {
            send(&a, &[1; 48]).await;
            held.push(b.recv_some(1 << 16).await.unwrap());
        }
        assert!(pool::stats().in_use - before <= 100 * 4096, "{}", pool::stats().in_use - before);
    });
}

#[test]
fn shutting_down_ends_a_receive_in_flight() {
    run(async {
        let (a, _b) = pair().await;
        let a = Rc::new(a);
        let other = a.clone();
        let receive = spawn(async move { other.recv_some(10).await });
        sleep(Duration::from_millis(1)).await;
        a.shutdown(Shutdown::Both).unwrap();
        assert!(receive.await.unwrap().unwrap().is_empty());
    });
}

#[test]
fn a_reset_is_an_error_at_the_other_end() {
    run(async {
        let (a, b) = pair().await;
        a.reset();
        assert_eq!(b.recv_some(10).await.unwrap_err().kind(), io::ErrorKind::ConnectionReset);
    });
}

#[test]
fn a_listener_that_nobody_asks_does_not_accept_without_bound() {
    run(async {
        let (mut listener, addr) = listen();
        let first = connect(addr).await;
        let accepted = listener.accept().await.unwrap();
        let open = || std::fs::read_dir("/proc/self/fd").unwrap().count();
        let mut clients = Vec::new();
        for _ in 0..300 {
            clients.push(connect(addr).await);
        }
        sleep(Duration::from_millis(20)).await;
        let before = open();
        let burst = listener.accept_burst(1000).await.unwrap();
        assert!(burst.len() >= 32 && burst.len() <= 128, "{}", burst.len());
        let mut all = burst.len();
        let mut held = burst;
        while all < 300 {
            let burst = listener.accept_burst(16).await.unwrap();
            assert!(burst.len() <= 16);
            all += burst.len();
            held.extend(burst);
        }
        assert!(open() > before, "the rest was accepted later");
        drop((first, accepted, held));
    });
}

#[test]
fn dropping_a_listener_closes_what_it_accepted_for_nobody() {
    run(async {
        let (mut listener, addr) = listen();
        let (first, second) = (connect(addr).await, connect(addr).await);
        let accepted = listener.accept().await.unwrap();
        sleep(Duration::from_millis(5)).await;
        drop(listener);
        let ended = timeout(Duration::from_secs(60), second.recv_some(1)).await.unwrap();
        assert!(ended.is_err() || ended.unwrap().is_empty());
        send(&accepted, b"alive").await;
        assert_eq!(recv(&first, 5).await, b"alive");
    });
}

#[test]
fn ten_thousand_connections_are_served_at_once() {
    const MANY: usize = 10_000;
    // Both ends are here; as many as the limit of descriptors allows.
    // SAFETY: the structure outlives the calls.
    let limit = unsafe {
        let mut limit: libc::rlimit = std::mem::zeroed();
        libc::getrlimit(libc::RLIMIT_NOFILE, &raw mut limit);
        limit.rlim_cur = limit.rlim_max;
        libc::setrlimit(libc::RLIMIT_NOFILE, &raw const limit);
        limit.rlim_cur as usize
    };
    // The other tests of this process run beside.
    let many = MANY.min(limit.saturating_sub(2000) / 2);
    run(async {
        let (mut listener, addr) = listen();
        let server = spawn(async move {
            let mut held = Vec::new();
            while held.len() < many {
                for stream in listener.accept_burst(64).await.unwrap() {
                    held.push(spawn(async move {
                        while let Ok(bytes) = stream.recv_some(100).await {
                            if bytes.is_empty() {
                                return;
                            }
                            send(&stream, &bytes).await;
                        }
                    }));
                }
            }
            for handle in held {
                handle.await.unwrap();
            }
        });
        let idle = pool::stats().in_use;
        let mut clients = Vec::new();
        for _ in 0..many {
            clients.push(connect(addr).await);
        }
        sleep(Duration::from_millis(50)).await;
        assert_eq!(pool::stats().in_use, idle, "idle connections hold no buffers");
        let calls: Vec<_> = clients
            .into_iter()
            .enumerate()
            .map(|(i, stream)| {
                spawn(async move {
                    let message = (i as u64).to_be_bytes();
                    send(&stream, &message).await;
                    assert_eq!(recv(&stream, 8).await, message);
                })
            })
            .collect();
        for call in calls {
            call.await.unwrap();
        }
        server.await.unwrap();
    });
}

#[test]
fn more_operations_than_the_queue_holds_all_complete() {
    let config = Config { entries: 8, ..config() };
    run_with(config, async {
        let mut pairs = Vec::new();
        for _ in 0..200 {
            pairs.push(pair().await);
        }
        let tasks: Vec<_> = pairs
            .into_iter()
            .map(|(a, b)| {
                spawn(async move {
                    for i in 0..20u8 {
                        send(&a, &[i; 10]).await;
                        assert_eq!(recv(&b, 10).await, [i; 10]);
                    }
                })
            })
            .collect();
        for task in tasks {
            task.await.unwrap();
        }
    });
}

#[test]
fn a_stream_moves_to_another_core() {
    let cores = Cores::start(2, config()).unwrap();
    run(async {
        let (a, b) = pair().await;
        let fd = b.into_fd();
        let echo = cores.handles()[1].call(move || async move {
            let stream = TcpStream::from_fd(fd).unwrap();
            let bytes = stream.recv_some(100).await.unwrap();
            send(&stream, &bytes).await;
            runtime::current_core()
        });
        send(&a, b"there").await;
        assert_eq!(recv(&a, 5).await, b"there");
        assert_eq!(echo.await, Ok(1));
    });
}

#[test]
fn listeners_of_one_address_share_its_connections() {
    let cores = Cores::start(2, config()).unwrap();
    run(async {
        let options = ListenOptions { reuse_port: true, ..ListenOptions::default() };
        let mut first = TcpListener::bind(common::ANY.parse().unwrap(), options).unwrap();
        let addr = first.local_addr().unwrap();
        let listens = cores.handles()[0].call(move || async move {
            let mut second = TcpListener::bind(addr, options).unwrap();
            drop(spawn(async move {
                loop {
                    send(&second.accept().await.unwrap(), &[2]).await;
                }
            }));
        });
        listens.await.unwrap();
        drop(spawn(async move {
            loop {
                send(&first.accept().await.unwrap(), &[1]).await;
            }
        }));
        let mut seen = [0; 3];
        for _ in 0..100 {
            seen[usize::from(recv(&connect(addr).await, 1).await[0])] += 1;
        }
        assert!(seen[1] > 10 && seen[2] > 10, "{seen:?}");
    });
}

/// Shortest length that is sent by reference and not copied.
const BLOCK: usize = 12 << 10;

/// A gather of `blocks` blocks of `region` from its start on, each after a header.
fn blocks_of(region: &Region, blocks: usize) -> (Gather, Vec<u8>) {
    let (mut gather, mut bytes) = (Gather::new(), Vec::new());
    for block in 0..blocks {
        let header = [block as u8; 48];
        let payload = region.slice(block * BLOCK, BLOCK).unwrap();
        bytes.extend_from_slice(&header);
        bytes.extend_from_slice(&payload.to_vec());
        gather.push_copy(&header);
        gather.push_lent(payload);
    }
    (gather, bytes)
}

/// Sends everything by reference, however often the socket is full.
async fn lend(stream: &TcpStream, lender: &mut Lender, gather: &mut Gather) {
    loop {
        match stream.try_lend(lender, gather).unwrap() {
            Lent::All => return,
            Lent::Full => stream.writable().await.unwrap(),
            Lent::Rest => panic!("not lent"),
        }
    }
}

#[test]
fn what_is_lent_arrives_whole_and_in_order_through_full_sockets() {
    run(async {
        let (a, b) = pair().await;
        a.set_send_buffer(64 << 10).unwrap();
        let region = Region::new(8 << 20).unwrap();
        region.write_from(0, &pattern(8 << 20)).unwrap();
        // More than the socket holds.
        let (mut gather, expected) = blocks_of(&region, 120);
        let reader = spawn(async move { recv(&b, 120 * (48 + BLOCK)).await });
        let mut lender = Lender::new();
        lend(&a, &mut lender, &mut gather).await;
        assert!(gather.is_empty() && !lender.is_midway());
        assert!(reader.await.unwrap() == expected);
    });
}

#[test]
fn what_is_lent_outlives_its_region_and_its_lender() {
    run(async {
        let (a, b) = pair().await;
        let region = Region::new(1 << 20).unwrap();
        region.write_from(0, &pattern(1 << 20)).unwrap();
        let (mut gather, expected) = blocks_of(&region, 5);
        let mut lender = Lender::new();
        lend(&a, &mut lender, &mut gather).await;
        drop((lender, gather, region, a));
        // Each core releases a closed region's pages when it next sleeps.
        sleep(Duration::from_millis(20)).await;
        assert!(recv(&b, expected.len()).await == expected);
    });
}

#[test]
fn a_stream_with_zero_copy_sends_waits_as_before_and_closes() {
    run(async {
        let (a, b) = pair().await;
        a.set_send_buffer(64 << 10).unwrap();
        let region = Region::new(1 << 20).unwrap();
        let mut lender = Lender::new();
        let (mut gather, expected) = blocks_of(&region, 8);
        lend(&a, &mut lender, &mut gather).await;
        assert!(recv(&b, expected.len()).await == expected);
        assert!(timeout(Duration::from_millis(20), a.recv_some(10)).await.is_err(), "nothing has come");
        let answer = spawn(async move {
            sleep(Duration::from_millis(20)).await;
            send(&b, b"late").await;
            sleep(Duration::from_millis(20)).await;
            recv(&b, 8 << 20).await
        });
        assert_eq!(*a.recv_some(10).await.unwrap(), *b"late");
        // More than the socket takes before its reader comes.
        let mut gather = Gather::new();
        gather.push(Buf::from(pattern(8 << 20)));
        a.send(gather).await.0.unwrap();
        assert!(answer.await.unwrap() == pattern(8 << 20));
        let socket = std::net::TcpStream::from(a.into_fd());
        // SAFETY: takes numbers only.
        let flags = unsafe { libc::fcntl(socket.as_raw_fd(), libc::F_GETFL) };
        assert_eq!(flags & libc::O_NONBLOCK, 0);
    });
}

/// Sends `rounds` gathers of eight blocks of 12 KiB by reference, with `header` bytes before each,
/// which all differ, and confirms none. `late`: the peer reads only when the socket is full.
async fn lend_unconfirmed(rounds: usize, header: usize, late: bool) {
    let (a, b) = pair().await;
    let region = Region::new(8 * BLOCK).unwrap();
    let payload = pattern(8 * BLOCK);
    region.write_from(0, &payload).unwrap();
    let mut lender = Lender::new();
    let mut unread = Vec::new();
    let mut read_at = 0;
    for round in 0..rounds {
        let mut gather = Gather::new();
        for block in 0..8 {
            let number = (round * 8 + block) as u32;
            let bytes: Vec<u8> = number.to_ne_bytes().into_iter().cycle().take(header).collect();
            gather.push_copy(&bytes);
            gather.push_lent(region.slice(block * BLOCK, BLOCK).unwrap());
            unread.extend_from_slice(&bytes);
            unread.extend_from_slice(&payload[block * BLOCK..][..BLOCK]);
        }
        loop {
            let sent = a.try_lend(&mut lender, &mut gather).unwrap();
            assert_ne!(sent, Lent::Rest, "round {round} is not lent");
            if sent == Lent::Full || !late || round + 1 == rounds {
                // What a full socket holds is less than what was handed to it.
                let there = unread.len() - read_at - gather.len();
                assert!(recv(&b, there).await == unread[read_at..][..there], "round {round}");
                read_at += there;
            }
            if sent == Lent::All {
                break;
            }
        }
        if read_at == unread.len() {
            unread.clear();
            read_at = 0;
        }
    }
    assert!(unread.is_empty());
}

#[test]
fn headers_that_nobody_confirms_stay_as_they_are_until_the_peer_has_them() {
    run(lend_unconfirmed(100, 1500, true));
}

#[test]
fn many_gathers_are_lent_without_a_confirmation() {
    run(lend_unconfirmed(2000, 132, false));
}

#[test]
fn confirmed_headers_make_room_for_the_next() {
    run(async {
        let (a, b) = pair().await;
        let region = Region::new(1 << 20).unwrap();
        let mut lender = Lender::new();
        for _ in 0..400 {
            let (mut gather, expected) = blocks_of(&region, 8);
            let mark = lender.mark();
            assert_eq!(a.try_lend(&mut lender, &mut gather).unwrap(), Lent::All);
            assert!(lender.mark() > mark);
            assert!(recv(&b, expected.len()).await == expected);
            lender.confirm(lender.mark());
        }
    });
}

#[test]
fn little_and_what_is_not_a_regions_is_not_lent() {
    run(async {
        let (a, b) = pair().await;
        let mut lender = Lender::new();
        let region = Region::new(1 << 20).unwrap();
        let mut gather = Gather::new();
        for _ in 0..8 {
            gather.push_lent(region.slice(0, BLOCK - 1).unwrap());
        }
        assert_eq!(a.try_lend(&mut lender, &mut gather).unwrap(), Lent::Rest);
        let mut gather = Gather::new();
        gather.push_lent(pool::alloc(64 << 10).unwrap().freeze());
        assert_eq!(a.try_lend(&mut lender, &mut gather).unwrap(), Lent::Rest);
        assert_eq!(lender.mark(), 0);
        send(&a, b"plain").await;
        assert_eq!(recv(&b, 5).await, b"plain");
    });
}

/// A guard of a region that a writer is changing at first, and until a sender has waited for its
/// end.
#[derive(Default)]
struct Busy {
    settled: AtomicBool,
    held: AtomicUsize,
    released: AtomicUsize,
}

impl Guard for Busy {
    fn hold(&self, at: usize, len: usize) -> bool {
        let free = at == 0 || self.settled.load(Ordering::Relaxed);
        self.held.fetch_add(if free { len } else { 0 }, Ordering::Relaxed);
        free
    }

    fn release(&self, _: usize, len: usize) {
        self.released.fetch_add(len, Ordering::Relaxed);
    }

    fn settled(&self, _: usize, _: usize) -> Pin<Box<dyn Future<Output = ()> + '_>> {
        Box::pin(async {
            sleep(Duration::from_millis(1)).await;
            self.settled.store(true, Ordering::Relaxed);
        })
    }
}

#[test]
fn guarded_bytes_are_sent_when_nobody_changes_them_and_held_meanwhile() {
    run(async {
        let (a, b) = pair().await;
        let region = Region::new(1 << 20).unwrap();
        region.write_from(0, &pattern(1 << 20)).unwrap();
        let guard = Arc::new(Busy::default());
        assert!(region.set_guard(guard.clone()) && !region.set_guard(guard.clone()));
        let mut gather = Gather::new();
        for block in 0..2 {
            gather.push_copy(&[7; 48]);
            gather.push_lent(region.slice(block << 19, 4096).unwrap());
        }
        assert!(!a.try_send(&mut gather).unwrap(), "somebody is changing the second");
        assert_eq!(gather.len(), 4096);
        assert!(recv(&b, 2 * 48 + 4096).await[48..][..4096] == pattern(1 << 20)[..4096]);
        a.send(gather).await.0.unwrap();
        assert!(guard.settled.load(Ordering::Relaxed));
        assert!(recv(&b, 4096).await == pattern(1 << 20)[1 << 19..][..4096]);
        let counts = [&guard.held, &guard.released].map(|count| count.load(Ordering::Relaxed));
        assert_eq!(counts, [2 * 4096; 2]);
    });
}

#[test]
fn guarded_bytes_between_lent_ones_are_copied_while_they_are_held() {
    run(async {
        let (a, b) = pair().await;
        let region = Region::new(1 << 20).unwrap();
        region.write_from(0, &pattern(1 << 20)).unwrap();
        let guard = Arc::new(Busy::default());
        assert!(region.set_guard(guard.clone()));
        let (mut gather, mut expected) = blocks_of(&region, 3);
        for at in [0, 1 << 16] {
            gather.push_lent(region.slice(at, 512).unwrap());
            expected.extend_from_slice(&region.slice(at, 512).unwrap().to_vec());
        }
        let mut lender = Lender::new();
        assert_eq!(a.try_lend(&mut lender, &mut gather).unwrap(), Lent::Rest);
        assert_eq!(gather.len(), 512, "all but what somebody is changing");
        assert!(lender.mark() > 0);
        region.write_from(0, &[0; 512]).unwrap();
        a.send(gather).await.0.unwrap();
        let arrived = recv(&b, expected.len()).await;
        let from = expected.len() - 1024;
        assert!(arrived[from..] == expected[from..], "the first was copied before it was overwritten");
    });
}

#[test]
fn lending_to_a_peer_that_is_gone_is_an_error() {
    run(async {
        let (a, b) = pair().await;
        b.reset();
        let region = Region::new(1 << 20).unwrap();
        let mut lender = Lender::new();
        let failed = async {
            loop {
                let (mut gather, _) = blocks_of(&region, 5);
                match a.try_lend(&mut lender, &mut gather) {
                    Err(error) => break error,
                    Ok(_) => sleep(Duration::from_millis(1)).await,
                }
            }
        };
        let error = timeout(Duration::from_secs(60), failed).await.unwrap();
        assert!(
            matches!(error.kind(), io::ErrorKind::ConnectionReset | io::ErrorKind::BrokenPipe),
            "{error}"
        );
    });
}

#[test]
fn more_sockets_than_buffers_receive_without_waiting() {
    run_with(Config { recv_buffers: 2, ..config() }, async {
        let mut pairs = Vec::new();
        for _ in 0..100 {
            pairs.push(Rc::new(pair().await));
        }
        for round in 0..100u8 {
            let readers: Vec<_> = pairs
                .iter()
                .map(|pair| {
                    let pair = pair.clone();
                    spawn(async move { recv(&pair.1, 2000).await })
                })
                .collect();
            for pair in &pairs {
                send(&pair.0, &[round; 2000]).await;
            }
            for reader in readers {
                assert_eq!(reader.await.unwrap(), [round; 2000]);
            }
        }
        // A single connection continues with few.
        for _ in 0..20_000 {
            send(&pairs[0].0, b"alone").await;
            assert_eq!(recv(&pairs[0].1, 5).await, b"alone");
        }
    });
}

#[test]
fn available_data_is_received_into_a_region_without_waiting() {
    run(async {
        let (a, b) = pair().await;
        let region = Region::new(1 << 20).unwrap();
        let mut place = region.destination(4096, 8192).unwrap();
        assert_eq!(b.pending().unwrap(), 0);
        assert_eq!(b.try_recv_into(&mut place).unwrap_err().kind(), io::ErrorKind::WouldBlock);
        send(&a, &pattern(10_000)).await;
        b.readable().await.unwrap();
        while b.pending().unwrap() < 10_000 {
            sleep(Duration::from_millis(1)).await;
        }
        assert_eq!(b.try_recv_into(&mut place).unwrap(), 8192);
        assert_eq!(region.slice(4096, 8192).unwrap().to_vec(), pattern(10_000)[..8192]);
        let mut rest = [0; 4000];
        assert_eq!(b.try_recv(&mut rest).unwrap(), 1808);
        assert_eq!(rest[..1808], pattern(10_000)[8192..]);
        drop(a);
        b.readable().await.unwrap();
        assert_eq!((b.pending().unwrap(), b.try_recv(&mut rest).unwrap()), (0, 0));
    });
}
