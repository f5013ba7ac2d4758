//! Bound on the data that the units of a core request from initiators at once.
//!
//! Data requested by R2Ts arrives in buffers of the core's pool. If units could request more than
//! the pool holds, it would fill with the beginnings of transfers, each waiting for buffers that
//! the others hold. So a unit waits for a grant before it requests data. It keeps the grant as long
//! as it requests no more at a time, and returns it when it requests more or ends.
//!
//! Deadlock rule: a unit never waits for a grant while it holds another, and never between two
//! pieces of the same length. Otherwise the holders of all other grants could wait for what it
//! holds then (an object's end, a lock). Over iSER it requests more data ahead of the unit, as long
//! as no other task waits.
//!
//! Every connection may hold one grant, however much the others hold: none can keep another from
//! progressing.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::rc::{Rc, Weak};
use std::task::{Context, Poll};

use invariant::invariant;
use runtime::{Notify, pool};

/// Data granted to the connections of one core.
#[derive(Default)]
pub struct Granted {
    bytes: Cell<usize>,
    /// Connections with waiting tasks.
    waiting: RefCell<VecDeque<Weak<Own>>>,
}

/// One connection's grants.
pub struct Grants {
    core: Rc<Granted>,
    own: Rc<Own>,
}

#[derive(Default)]
struct Own {
    granted: Cell<usize>,
    /// Its tasks that wait.
    waiters: Notify,
    /// Whether `waiting` of the core has an entry for it.
    known: Cell<bool>,
}

/// Divisor: units may request the pool's bytes divided by this. Data may come in pieces for which
/// buffers are up to twice as long, and unsolicited data, reads and the copies of stores need
/// buffers too.
const PART: usize = 4;

impl Grants {
    /// Creates the share of a connection that has been granted nothing yet.
    pub fn new(core: Rc<Granted>) -> Self {
        Self { core, own: Rc::default() }
    }

    fn fits(&self, len: usize) -> bool {
        self.core.bytes.get() + len <= pool::stats().limit / PART
    }

    fn add(&self, len: usize) {
        self.own.granted.set(self.own.granted.get() + len);
        self.core.bytes.set(self.core.bytes.get() + len);
    }

    /// Grants a task of the connection `len` bytes, or registers its waker.
    pub fn poll_take(&self, len: usize, cx: &mut Context<'_>) -> Poll<()> {
        let own = &self.own;
        if self.fits(len) || own.granted.get() == 0 {
            self.add(len);
            return Poll::Ready(());
        }
        own.waiters.register(cx.waker());
        if !own.known.replace(true) {
            self.core.waiting.borrow_mut().push_back(Rc::downgrade(own));
        }
        Poll::Pending
    }

    /// Grants a task of the connection `len` bytes more, for data requested ahead of the unit.
    /// False if any task waits or the core's bound is reached.
    pub fn try_take(&self, len: usize) -> bool {
        let fits = self.core.waiting.borrow().is_empty() && self.fits(len);
        if fits {
            self.add(len);
        }
        fits
    }

    /// A task of the connection gives `len` bytes back.
    pub fn give_back(&self, len: usize) {
        if len == 0 {
            return;
        }
        let (core, own) = (&self.core, &self.own);
        let (granted, bytes) = (own.granted.get(), core.bytes.get());
        invariant!(len <= granted && granted <= bytes, "{len} bytes given back of {granted}, of {bytes}");
        own.granted.set(granted.saturating_sub(len));
        core.bytes.set(bytes.saturating_sub(len));
        // A connection with waiters holds a grant, so each is woken by itself sooner or later; the
        // others in turn before.
        own.waiters.notify();
        while let Some(next) = core.waiting.borrow_mut().pop_front() {
            if let Some(next) = next.upgrade() {
                next.known.set(false);
                next.waiters.notify();
                break;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::task::Waker;

    use runtime::{Config, Runtime};

    use super::*;

    #[test]
    fn a_connection_waits_for_its_second_grant_and_gets_it_in_turn() {
        Runtime::new(Config { pool_bytes: 16 << 20, ..Config::default() }).unwrap().block_on(async {
            let (core, part) = (Rc::<Granted>::default(), pool::stats().limit / PART);
            let (one, other) = (Grants::new(core.clone()), Grants::new(core.clone()));
            let cx = &mut Context::from_waker(Waker::noop());
            assert!(one.poll_take(part, cx).is_ready());
            assert!(!other.try_take(1), "nothing is left to ask for ahead");
            assert!(other.poll_take(1 << 20, cx).is_ready(), "each connection may hold one grant");
            assert!(other.poll_take(1 << 20, cx).is_pending());
            one.give_back(part);
            assert!(other.poll_take(1 << 20, cx).is_ready());
            other.give_back(2 << 20);
            assert_eq!(core.bytes.get(), 0);
        });
    }
}
