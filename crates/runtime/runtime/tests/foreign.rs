//! Operations that other threads complete: `Foreign`.

mod common;

use std::cell::Cell;
use std::rc::Rc;
use std::sync::mpsc;
use std::time::Duration;

use common::run;
use runtime::{Completer, Config, Foreign, Runtime, sleep, spawn, timeout, yield_now};

struct OnDrop(Rc<Cell<u32>>);
impl Drop for OnDrop {
    fn drop(&mut self) {
        self.0.set(self.0.get() + 1);
    }
}

/// A library's thread: it adds one to each number that it is handed, and completes the operation
/// with the sum. It keeps up to `depth` of them, and completes the latest first.
fn library(depth: usize) -> mpsc::Sender<(usize, Completer)> {
    let (sender, calls) = mpsc::channel::<(usize, Completer)>();
    std::thread::spawn(move || {
        let mut held = Vec::new();
        let mut complete = |(at, completer): (usize, Completer)| {
            let number = at as *mut u64;
            // SAFETY: the operation owns the number until it is completed.
            let sum = unsafe {
                *number += 1;
                *number
            };
            completer.complete(sum as i32);
        };
        loop {
            match calls.recv_timeout(Duration::from_millis(1)) {
                Ok(call) => {
                    held.push(call);
                    if held.len() == depth {
                        held.drain(..).rev().for_each(&mut complete);
                    }
                }
                Err(mpsc::RecvTimeoutError::Timeout) => held.drain(..).rev().for_each(&mut complete),
                Err(mpsc::RecvTimeoutError::Disconnected) => return held.drain(..).for_each(&mut complete),
            }
        }
    });
    sender
}

/// Has the library add one to a number that lies in the operation itself.
fn add_one(to: &mpsc::Sender<(usize, Completer)>, number: u64) -> Foreign<[u64; 9]> {
    let to = to.clone();
    Foreign::start([number; 9], move |numbers, completer| {
        to.send((&raw mut numbers[4] as usize, completer)).unwrap();
    })
}

#[test]
fn each_operation_ends_on_its_core_with_its_memory_under_load() {
    const TASKS: u64 = 40;
    const EACH: u64 = 500;
    let cores: Vec<_> = (0..3)
        .map(|core| {
            std::thread::spawn(move || {
                run(async move {
                    let libraries = [library(1), library(7), library(64)];
                    let tasks: Vec<_> = (0..TASKS)
                        .map(|task| {
                            let libraries = libraries.clone();
                            spawn(async move {
                                for round in 0..EACH {
                                    let number = core * 1_000_000 + task * 1000 + round;
                                    let library = &libraries[(task + round) as usize % 3];
                                    let (result, numbers) = add_one(library, number).await;
                                    assert_eq!(result as u64, number + 1);
                                    assert_eq!(
                                        (numbers[3], numbers[4], numbers[5]),
                                        (number, number + 1, number)
                                    );
                                }
                                EACH
                            })
                        })
                        .collect();
                    let mut done = 0;
                    for task in tasks {
                        done += task.await.unwrap();
                    }
                    done
                })
            })
        })
        .collect();
    let done: u64 = cores.into_iter().map(|core| core.join().unwrap()).sum();
    assert_eq!(done, 3 * TASKS * EACH);
}

#[test]
fn a_dropped_operation_keeps_its_memory_until_it_is_completed() {
    run(async {
        let drops = Rc::new(Cell::new(0));
        let mut completer = None;
        let operation = Foreign::start(OnDrop(drops.clone()), |_, given| completer = Some(given));
        let waited = timeout(Duration::from_millis(5), operation).await;
        assert!(waited.is_err());
        sleep(Duration::from_millis(5)).await;
        assert_eq!(drops.get(), 0, "the library may still use it");
        let completer = completer.unwrap();
        std::thread::spawn(move || completer.complete(0)).join().unwrap();
        while drops.get() == 0 {
            yield_now().await;
        }
        // A later operation, in the same slot of the table, is another one.
        let (result, _) = Foreign::start((), |(), completer| completer.complete(7)).await;
        assert_eq!((result, drops.get()), (7, 1));
    });
}

#[test]
fn a_completion_within_the_submission_counts_and_a_lost_one_is_canceled() {
    run(async {
        let (result, data) = Foreign::start(5, |data, completer| {
            *data = 6;
            completer.complete(-libc::EINVAL);
        })
        .await;
        assert_eq!((result, data), (-libc::EINVAL, 6));
        let (result, ()) = Foreign::start((), |(), completer| drop(completer)).await;
        assert_eq!(result, -libc::ECANCELED);
    });
}

#[test]
fn a_completer_goes_through_a_callbacks_argument() {
    run(async {
        let (result, ()) = Foreign::start((), |(), completer| {
            let argument = completer.into_raw() as usize;
            std::thread::spawn(move || {
                // SAFETY: it is given back once.
                unsafe { Completer::from_raw(argument as *mut _) }.complete(3);
            });
        })
        .await;
        assert_eq!(result, 3);
    });
}

#[test]
fn a_runtime_that_ends_waits_for_completions_and_frees_what_they_held() {
    let (drops, completer) = (Rc::new(Cell::new(0)), Rc::new(Cell::new(None)));
    let runtime = Runtime::new(Config::default()).unwrap();
    runtime.block_on({
        let (drops, completer) = (OnDrop(drops.clone()), completer.clone());
        async move {
            let operation = Foreign::start(drops, |_, given| completer.set(Some(given)));
            drop(spawn(async move { drop(operation.await) }));
            yield_now().await;
        }
    });
    let completer: Completer = completer.take().unwrap();
    let library = std::thread::spawn(move || {
        std::thread::sleep(Duration::from_millis(20));
        completer.complete(0);
    });
    assert_eq!(drops.get(), 0);
    drop(runtime);
    assert_eq!(drops.get(), 1);
    library.join().unwrap();
}
