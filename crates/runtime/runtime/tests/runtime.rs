//! The executor: tasks, wakers, time, other threads.

mod common;

use std::cell::{Cell, RefCell};
use std::io::Write;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use common::{config, run, thread_cpu};
use runtime::{
    Cores, JoinError, ListenOptions, Runtime, TcpListener, blocking, is_alone, sleep, spawn, timeout,
    yield_now,
};

struct OnDrop(Rc<Cell<u32>>);
impl Drop for OnDrop {
    fn drop(&mut self) {
        self.0.set(self.0.get() + 1);
    }
}

#[test]
fn tasks_run_in_spawn_order_and_give_their_output() {
    run(async {
        let order = Rc::new(RefCell::new(Vec::new()));
        let handles: Vec<_> = (0..1000)
            .map(|i| {
                let order = order.clone();
                spawn(async move {
                    yield_now().await;
                    order.borrow_mut().push(i);
                    i * 2
                })
            })
            .collect();
        for (i, handle) in handles.into_iter().enumerate() {
            assert_eq!(handle.await.unwrap(), i * 2);
        }
        assert_eq!(*order.borrow(), (0..1000).collect::<Vec<_>>());
    });
}

#[test]
fn a_core_is_alone_while_nothing_else_is_ready_and_nothing_has_completed() {
    run(async {
        assert!(is_alone());
        let other = spawn(async {});
        assert!(!is_alone());
        other.await.unwrap();
        let mut listener =
            TcpListener::bind("127.0.0.1:0".parse().unwrap(), ListenOptions::default()).unwrap();
        let mut peer = std::net::TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let stream = listener.accept().await.unwrap();
        let begin = Instant::now();
        let in_time = || assert!(begin.elapsed() < Duration::from_secs(60));
        while !is_alone() {
            in_time();
            yield_now().await;
        }
        let mut received = std::pin::pin!(stream.recv_some(1));
        let mut nobody = Context::from_waker(Waker::noop());
        assert!(received.as_mut().poll(&mut nobody).is_pending());
        assert!(is_alone(), "what was queued has gone to the kernel, and waits there");
        peer.write_all(b"x").unwrap();
        while is_alone() {
            in_time();
        }
        assert_eq!(*received.await.unwrap(), *b"x");
    });
}

#[test]
fn an_aborted_task_drops_its_future_at_once_and_says_so() {
    run(async {
        let drops = Rc::new(Cell::new(0));
        let guard = OnDrop(drops.clone());
        let handle = spawn(async move {
            let _guard = guard;
            std::future::pending::<()>().await;
        });
        yield_now().await;
        handle.abort();
        assert_eq!(drops.get(), 1);
        assert!(handle.is_finished());
        assert!(matches!(handle.await, Err(JoinError::Aborted)));
    });
}

#[test]
fn a_task_that_aborts_itself_ends_when_it_next_waits() {
    run(async {
        let own: Rc<RefCell<Option<runtime::JoinHandle<()>>>> = Rc::default();
        let theirs = own.clone();
        let reached = Rc::new(Cell::new(false));
        let flag = reached.clone();
        *own.borrow_mut() = Some(spawn(async move {
            theirs.borrow().as_ref().unwrap().abort();
            flag.set(true);
            yield_now().await;
            unreachable!("it was aborted");
        }));
        let handle = loop {
            yield_now().await;
            if reached.get() {
                break own.borrow_mut().take().unwrap();
            }
        };
        assert!(matches!(handle.await, Err(JoinError::Aborted)));
    });
}

#[test]
fn a_panic_ends_its_task_and_nothing_else() {
    run(async {
        let bad = spawn(async { panic!("on purpose") });
        let good = spawn(async { 5 });
        assert!(matches!(bad.await, Err(JoinError::Panicked(_))));
        assert_eq!(good.await.unwrap(), 5);
    });
}

#[test]
fn tasks_outlive_their_handle_but_not_their_runtime() {
    let drops = Rc::new(Cell::new(0));
    let runtime = Runtime::new(config()).unwrap();
    runtime.block_on(async {
        for _ in 0..3 {
            let guard = OnDrop(drops.clone());
            drop(spawn(async move {
                let _guard = guard;
                sleep(Duration::from_secs(3600)).await;
            }));
        }
        sleep(Duration::from_millis(1)).await;
    });
    assert_eq!(drops.get(), 0);
    runtime.block_on(yield_now());
    drop(runtime);
    assert_eq!(drops.get(), 3);
}

#[test]
fn stale_wakers_do_not_harm_a_reused_task_slot() {
    run(async {
        let stale: Rc<RefCell<Option<Waker>>> = Rc::default();
        let theirs = stale.clone();
        spawn(std::future::poll_fn(move |cx| {
            *theirs.borrow_mut() = Some(cx.waker().clone());
            Poll::Ready(())
        }))
        .await
        .unwrap();
        let polls = Rc::new(Cell::new(0));
        let count = polls.clone();
        let next = spawn(std::future::poll_fn(move |_| {
            count.set(count.get() + 1);
            Poll::<()>::Pending
        }));
        yield_now().await;
        for _ in 0..10 {
            stale.borrow().as_ref().unwrap().wake_by_ref();
            yield_now().await;
        }
        assert_eq!(polls.get(), 1);
        next.abort();
    });
}

#[test]
fn a_waker_works_from_any_thread_and_after_its_runtime_has_gone() {
    struct Flag(Arc<(AtomicUsize, Mutex<Option<Waker>>)>);
    impl Future for Flag {
        type Output = ();
        fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
            *self.0.1.lock().unwrap() = Some(cx.waker().clone());
            if self.0.0.load(Ordering::SeqCst) > 0 { Poll::Ready(()) } else { Poll::Pending }
        }
    }
    let shared = Arc::new((AtomicUsize::new(0), Mutex::new(None::<Waker>)));
    let theirs = shared.clone();
    let thread = std::thread::spawn(move || {
        std::thread::sleep(Duration::from_millis(20));
        theirs.0.store(1, Ordering::SeqCst);
        theirs.1.lock().unwrap().as_ref().unwrap().wake_by_ref();
    });
    run(async {
        spawn(Flag(shared.clone())).await.unwrap();
    });
    thread.join().unwrap();
    shared.1.lock().unwrap().take().unwrap().wake();
}

#[test]
fn no_wake_from_another_thread_is_lost() {
    // Each round trips over the edge between polling and sleeping at another moment.
    let turns = Arc::new(AtomicUsize::new(0));
    let waker: Arc<Mutex<Option<Waker>>> = Arc::default();
    let (theirs, their_waker) = (turns.clone(), waker.clone());
    let thread = std::thread::spawn(move || {
        for i in 0..5000usize {
            while theirs.load(Ordering::SeqCst) != 2 * i {
                std::hint::spin_loop();
                std::thread::yield_now();
            }
            for _ in 0..(i % 50) * 20 {
                std::hint::spin_loop();
            }
            theirs.store(2 * i + 1, Ordering::SeqCst);
            if let Some(waker) = &*their_waker.lock().unwrap() {
                waker.wake_by_ref();
            }
        }
    });
    run(async {
        for i in 0..5000usize {
            std::future::poll_fn(|cx| {
                *waker.lock().unwrap() = Some(cx.waker().clone());
                if turns.load(Ordering::SeqCst) == 2 * i + 1 { Poll::Ready(()) } else { Poll::Pending }
            })
            .await;
            turns.store(2 * i + 2, Ordering::SeqCst);
        }
    });
    thread.join().unwrap();
}

#[test]
fn sleepers_wake_in_order_and_not_too_early() {
    run(async {
        let order = Rc::new(RefCell::new(Vec::new()));
        let start = Instant::now();
        let handles: Vec<_> = [30u64, 10, 20, 0, 10]
            .into_iter()
            .map(|ms| {
                let order = order.clone();
                spawn(async move {
                    // By the clock, and not from when this task came to it.
                    runtime::sleep_until(start + Duration::from_millis(ms)).await;
                    assert!(start.elapsed() >= Duration::from_millis(ms));
                    order.borrow_mut().push(ms);
                })
            })
            .collect();
        for handle in handles {
            handle.await.unwrap();
        }
        assert_eq!(*order.borrow(), [0, 10, 10, 20, 30]);
        assert!(start.elapsed() < Duration::from_secs(20));
    });
}

#[test]
fn a_sleep_can_be_moved_both_ways() {
    run(async {
        let start = Instant::now();
        let mut long = sleep(Duration::from_secs(100));
        assert!(timeout(Duration::from_millis(5), &mut long).await.is_err());
        long.reset(Instant::now() + Duration::from_millis(10));
        (&mut long).await;
        long.reset(Instant::now() + Duration::from_millis(20));
        (&mut long).await;
        assert!(start.elapsed() >= Duration::from_millis(35));
    });
}

#[test]
fn a_timeout_drops_what_was_too_slow() {
    run(async {
        let drops = Rc::new(Cell::new(0));
        let guard = OnDrop(drops.clone());
        let slow = async move {
            let _guard = guard;
            std::future::pending::<()>().await;
        };
        assert!(timeout(Duration::from_millis(5), slow).await.is_err());
        assert_eq!(drops.get(), 1);
        assert_eq!(timeout(Duration::from_secs(5), async { 3 }).await, Ok(3));
    });
}

#[test]
fn a_hundred_thousand_timers_are_started_and_dropped_in_no_time() {
    run(async {
        let start = Instant::now();
        let mut sleeps: Vec<_> =
            (0..100_000u64).map(|i| Box::pin(sleep(Duration::from_secs(1 + i * 7919 % 1000)))).collect();
        for sleep in &mut sleeps {
            assert!(timeout(Duration::ZERO, sleep).await.is_err());
        }
        drop(sleeps);
        assert!(start.elapsed() < Duration::from_secs(60), "{:?}", start.elapsed());
    });
}

#[test]
fn an_idle_runtime_uses_no_processor_time() {
    run(async {
        // The least of some: a busy machine adds to what a switch of threads costs, but not to
        // each.
        let mut least = Duration::MAX;
        for _ in 0..5 {
            sleep(Duration::from_millis(20)).await;
            let before = thread_cpu();
            sleep(Duration::from_millis(500)).await;
            least = least.min(thread_cpu() - before);
            if least < Duration::from_millis(5) {
                return;
            }
        }
        panic!("{least:?}");
    });
}

#[test]
fn tasks_that_always_yield_leave_room_for_timers() {
    run(async {
        let busy = spawn(async {
            loop {
                yield_now().await;
            }
        });
        let start = Instant::now();
        sleep(Duration::from_millis(10)).await;
        assert!(start.elapsed() < Duration::from_secs(20));
        busy.abort();
    });
}

#[test]
fn blocking_calls_run_elsewhere_and_their_panics_come_back() {
    run(async {
        let here = std::thread::current().id();
        assert_ne!(blocking(move || std::thread::current().id()).await, here);
        let calls: Vec<_> = (0..40).map(|i| spawn(blocking(move || i))).collect();
        for (i, call) in calls.into_iter().enumerate() {
            assert_eq!(call.await.unwrap(), i);
        }
        let bad = spawn(blocking(|| panic!("on purpose")));
        assert!(matches!(bad.await, Err(JoinError::Panicked(_))));
    });
}

#[test]
fn cores_run_what_they_are_given_and_say_who_they_are() {
    let cores = Cores::start(3, config()).unwrap();
    assert_eq!(cores.len(), 3);
    run(async {
        for (i, handle) in cores.handles().iter().enumerate() {
            let seen = handle.call(|| async { (runtime::current_core(), runtime::core_count()) }).await;
            assert_eq!(seen, Ok((i, 3)));
        }
        // From one core to the next and back.
        let next = cores.handles()[1];
        let answer = cores.handles()[0].call(move || async move { next.call(|| async { 7 }).await }).await;
        assert_eq!(answer, Ok(Ok(7)));
        let panicked = cores.handles()[0].call(|| async { panic!("on purpose") }).await;
        assert_eq!(panicked, Err::<(), _>(runtime::CoreGone));
    });
    let handle = cores.handles()[0];
    cores.stop();
    cores.join().unwrap();
    assert_eq!(handle.run(|| async {}), Err(runtime::CoreGone));
    // A new runtime that takes the place of the old one does not get its mail.
    run(async { assert_eq!(handle.call(|| async { 1 }).await, Err(runtime::CoreGone)) });
}

#[test]
fn a_core_that_stops_answers_what_it_cannot_do_any_more() {
    let cores = Cores::start(1, config()).unwrap();
    let never = cores.handles()[0].call(|| async { std::future::pending::<()>().await });
    drop(cores);
    run(async { assert_eq!(never.await, Err(runtime::CoreGone)) });
}

#[test]
fn a_round_trip_between_cores_takes_microseconds() {
    let cores = Cores::start(2, config()).unwrap();
    let far = cores.handles()[1];
    let times = run(async {
        cores.handles()[0]
            .call(move || async move {
                let mut times = Vec::new();
                for _ in 0..2000 {
                    let start = Instant::now();
                    far.call(|| async {}).await.unwrap();
                    times.push(start.elapsed());
                }
                times.sort_unstable();
                times
            })
            .await
            .unwrap()
    });
    println!("10% {:?}, median {:?}, 99% {:?}", times[200], times[1000], times[1980]);
    // The fastest tenth had a processor at once: others wait for their turn where there are more
    // threads than processors. A wait for a timer would be slow each time.
    assert!(times[200] < Duration::from_millis(1), "{:?}", times[200]);
}

#[test]
#[should_panic(expected = "a runtime runs on this thread already")]
fn runtimes_do_not_nest() {
    run(async { run(async {}) });
}

#[test]
fn a_signal_is_received_instead_of_ending_the_process() {
    // Directed at this thread, which blocks it; other threads of the test do not.
    let signals = runtime::Signals::new(&[runtime::Signal::Hangup, runtime::Signal::User1]).unwrap();
    run(async {
        assert!(timeout(Duration::from_millis(5), signals.next()).await.is_err());
        let kill = |signal: i32| {
            // SAFETY: takes numbers only, and the signal is blocked.
            let rc = unsafe { libc::syscall(libc::SYS_tgkill, libc::getpid(), libc::gettid(), signal) };
            assert_eq!(rc, 0);
        };
        kill(libc::SIGHUP);
        assert_eq!(signals.next().await.unwrap(), runtime::Signal::Hangup);
        kill(libc::SIGUSR1);
        assert_eq!(
            timeout(Duration::from_secs(5), signals.next()).await.unwrap().unwrap(),
            runtime::Signal::User1
        );
    });
}
