//! Time: the clock of the current turn, and sleeping.
//!
//! All timers of a core are in one heap, and the ring waits no longer than the first of them: no
//! timer is an operation of its own, and starting or dropping one makes no system call.

use std::future::Future;
use std::pin::{Pin, pin};
use std::rc::Rc;
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use slab::Slab;

use crate::runtime::Core;

/// The monotonic time as of the runtime's current turn, which costs nothing to ask again; outside
/// of a runtime, the time.
pub fn now() -> Instant {
    Core::with_current(|core| core.map_or_else(clock, |core| core.now()))
}

/// The monotonic time; in a simulated world the world's time.
pub fn clock() -> Instant {
    crate::sim::now().unwrap_or_else(Instant::now)
}

/// The time since the machine was started, suspended time included; in a simulated world the
/// world's time.
pub fn clock_since_boot() -> Duration {
    crate::sim::elapsed().unwrap_or_else(|| {
        let mut now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
        // SAFETY: it fills the structure, which outlives the call. This clock is always there.
        unsafe { libc::clock_gettime(libc::CLOCK_BOOTTIME, &raw mut now) };
        Duration::new(now.tv_sec.unsigned_abs(), now.tv_nsec.unsigned_abs() as u32)
    })
}

struct Timer {
    at: Instant,
    /// Position in the heap; `None` once it has fired.
    position: Option<usize>,
    waker: Waker,
}

/// The timers of one core: a 4-ary heap whose entries know their places, so that any of them can be
/// moved or removed.
#[derive(Default)]
pub(crate) struct Timers {
    timers: Slab<Timer>,
    heap: Vec<(Instant, usize)>,
}

impl Timers {
    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.heap.is_empty()
    }

    /// Time of the first timer.
    pub(crate) fn next(&self) -> Option<Instant> {
        self.heap.first().map(|(at, _)| *at)
    }

    /// Takes the waker of a timer that is due.
    pub(crate) fn pop_due(&mut self, now: Instant) -> Option<Waker> {
        let &(at, key) = self.heap.first()?;
        if at > now {
            return None;
        }
        self.remove_at(0);
        let timer = self.timers.get_mut(key)?;
        timer.position = None;
        Some(std::mem::replace(&mut timer.waker, Waker::noop().clone()))
    }

    fn insert(&mut self, at: Instant, waker: Waker) -> usize {
        let key = self.timers.insert(Timer { at, position: None, waker });
        self.enter_heap(at, key);
        key
    }

    fn enter_heap(&mut self, at: Instant, key: usize) {
        self.heap.push((at, key));
        self.sift_up(self.heap.len() - 1);
    }

    fn remove(&mut self, key: usize) {
        if let Some(timer) = self.timers.try_remove(key) {
            if let Some(position) = timer.position {
                self.remove_at(position);
            }
        }
    }

    /// Gives a timer another time and waker.
    fn update(&mut self, key: usize, at: Instant, waker: &Waker) {
        let Some(timer) = self.timers.get_mut(key) else { return };
        timer.waker.clone_from(waker);
        let moved = std::mem::replace(&mut timer.at, at) != at;
        match timer.position {
            None => self.enter_heap(at, key),
            Some(position) if moved => {
                self.heap[position].0 = at;
                self.sift_up(position);
                let position = self.timers.get(key).and_then(|t| t.position).unwrap_or(position);
                self.sift_down(position);
            }
            Some(_) => {}
        }
    }

    fn place(&mut self, position: usize, entry: (Instant, usize)) {
        self.heap[position] = entry;
        if let Some(timer) = self.timers.get_mut(entry.1) {
            timer.position = Some(position);
        }
    }

    fn remove_at(&mut self, position: usize) {
        let last = self.heap.len() - 1;
        self.heap.swap(position, last);
        self.heap.pop();
        if position < last {
            self.sift_up(position);
            self.sift_down(position);
        }
    }

    fn sift_up(&mut self, mut position: usize) {
        let entry = self.heap[position];
        while position > 0 {
            let parent = (position - 1) / 4;
            if self.heap[parent].0 <= entry.0 {
                break;
            }
            self.place(position, self.heap[parent]);
            position = parent;
        }
        self.place(position, entry);
    }

    fn sift_down(&mut self, mut position: usize) {
        let entry = self.heap[position];
        loop {
            let first = position * 4 + 1;
            let children = first..(first + 4).min(self.heap.len());
            let Some(least) = children.min_by_key(|&i| self.heap[i].0) else { break };
            if self.heap[least].0 >= entry.0 {
                break;
            }
            self.place(position, self.heap[least]);
            position = least;
        }
        self.place(position, entry);
    }
}

/// Waits for `duration`.
pub fn sleep(duration: Duration) -> Sleep {
    let now = now();
    sleep_until(now.checked_add(duration).unwrap_or_else(|| now + Duration::from_secs(1 << 32)))
}

/// Waits until `deadline`.
pub fn sleep_until(deadline: Instant) -> Sleep {
    Sleep { deadline, timer: None }
}

/// The future of [`sleep`]. It can be moved to another time while it waits, which is cheaper than
/// another sleep.
pub struct Sleep {
    deadline: Instant,
    timer: Option<(Rc<Core>, usize)>,
}

impl Sleep {
    /// When it ends.
    pub fn deadline(&self) -> Instant {
        self.deadline
    }

    /// Makes it end at another time. Takes effect when it is next polled, and also lets one that
    /// has ended be used again.
    pub fn reset(&mut self, deadline: Instant) {
        self.deadline = deadline;
    }
}

impl Future for Sleep {
    type Output = ();
    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let this = &mut *self;
        if now() >= this.deadline {
            return Poll::Ready(());
        }
        match &this.timer {
            Some((core, key)) => core.timers.borrow_mut().update(*key, this.deadline, cx.waker()),
            None => {
                let core = Core::current();
                let key = core.timers.borrow_mut().insert(this.deadline, cx.waker().clone());
                this.timer = Some((core, key));
            }
        }
        Poll::Pending
    }
}

impl Drop for Sleep {
    fn drop(&mut self) {
        if let Some((core, key)) = self.timer.take() {
            core.timers.borrow_mut().remove(key);
        }
    }
}

impl std::fmt::Debug for Sleep {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Sleep({:?})", self.deadline)
    }
}

/// The time was up before the future ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the time is up")]
pub struct Elapsed;

impl From<Elapsed> for std::io::Error {
    fn from(_: Elapsed) -> Self {
        std::io::ErrorKind::TimedOut.into()
    }
}

/// Waits for `future`, but no longer than `duration`; after that the future is dropped.
pub async fn timeout<F: Future>(duration: Duration, future: F) -> Result<F::Output, Elapsed> {
    let mut future = pin!(future);
    let mut sleep = sleep(duration);
    std::future::poll_fn(|cx| {
        if let Poll::Ready(output) = future.as_mut().poll(cx) {
            return Poll::Ready(Ok(output));
        }
        Pin::new(&mut sleep).poll(cx).map(|()| Err(Elapsed))
    })
    .await
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_heap_gives_timers_in_order_whatever_was_moved_or_removed() {
        let start = Instant::now();
        let at = |ms: u64| start + Duration::from_millis(ms);
        let mut timers = Timers::default();
        let mut random = 12345u64;
        let mut step = || {
            random = random.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            random >> 33
        };
        let mut expected: Vec<(u64, usize)> = Vec::new();
        for _ in 0..2000 {
            match step() % 4 {
                0 if !expected.is_empty() => {
                    let (_, key) = expected.swap_remove(step() as usize % expected.len());
                    timers.remove(key);
                }
                1 if !expected.is_empty() => {
                    let i = step() as usize % expected.len();
                    expected[i].0 = step() % 1000;
                    timers.update(expected[i].1, at(expected[i].0), Waker::noop());
                }
                _ => {
                    let ms = step() % 1000;
                    expected.push((ms, timers.insert(at(ms), Waker::noop().clone())));
                }
            }
            assert_eq!(timers.next(), expected.iter().map(|(ms, _)| at(*ms)).min());
        }
        expected.sort_unstable();
        for (ms, _) in expected {
            assert_eq!(timers.next(), Some(at(ms)));
            assert!(ms == 0 || timers.pop_due(at(ms - 1)).is_none());
            assert!(timers.pop_due(at(ms)).is_some());
        }
        assert!(timers.is_empty());
    }
}
